"""Compares the delivered batches with the order of the independent oracle of docs/ORDER.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import dataset
import programs
import recount
from cluster import ROOT
from scene import Scene

from shardfeed.testing import FailedError

ORACLE = ROOT / "tests/order_oracle.py"


def compare(
    ledger: Path, data: Path, epochs: int, global_batch: int, loader: dict[str, Any]
) -> int:
    """Compares every global batch of these epochs row by row; returns their number.

    - `loader`: options that determine the order, as passed to the loaders.

    Raises FailedError at the first batch that differs or is missing.
    """
    names, _, digest = dataset.read_back(data)
    samples = dataset.samples(data)
    counts = [len(samples[name]) for name in names]
    case = {
        "counts": counts,
        "digest": digest,
        "seed": loader["seed"],
        "shuffle": True,
        "window": loader["shuffle_window"],
        "interleave": loader["interleave"],
        "block_length": 1,
        "tail": loader["tail"],
        "limit": None,
        # The ranks change; lanes and global batch do not, so an epoch is one segment.
        "segments": [[loader["lanes"], global_batch, 0]],
        "world_size": 1,
    }
    _, steps = recount.read_ledger(ledger)
    compared = 0
    for epoch, plan in enumerate(ask_oracle([case | {"epoch": epoch} for epoch in range(epochs)])):
        for number, (batch,) in enumerate(plan["batches"]):
            expected = [
                (names[shard], samples[names[shard]][ordinal], valid) for shard, ordinal, valid in batch
            ]
            step = steps.pop((epoch, number), None)
            if step is None or step.global_batch() != expected:
                raise FailedError(f"epoch {epoch} step {number}: not the order's global batch")
            compared += 1
    if steps:
        raise FailedError(f"{len(steps)} steps that the order does not have, from {min(steps)} on")
    return compared


def compare_alone(scene: Scene, epochs: int) -> tuple[int, Counter[object], Counter[object]]:
    """Compares every global batch of these epochs, part by part, with those of one loader in this process.

    Returns the number of batches, and how often each sample was delivered there and by the ranks. Raises FailedError at
    the first batch that differs or is missing, and if the loader does not deliver each sample of an epoch once.
    """
    alone = scene.work / "alone-ledger"
    os.environ["SHARDFEED_LEDGER"] = str(alone)
    try:
        with scene.alone() as loader:
            for _ in range(epochs):
                for _batch in loader:
                    pass
    finally:
        del os.environ["SHARDFEED_LEDGER"]
    (_, expected), (_, steps) = recount.read_ledger(alone), recount.read_ledger(scene.ledger)
    program = programs.PROGRAMS[scene.program or ""]
    wanted = program.counted(dataset.ids(scene.ledger / "data"))
    known, delivered = times_of(expected), times_of(steps)
    for epoch in range(epochs):
        here = {at: step for at, step in expected.items() if at[0] == epoch}
        tokens = (line.rows for step in here.values() for line in lines_of(step) if line.mark == "1")
        given = sum(tokens) if scene.program == "packs" else times_of(here).total()
        if given != wanted:
            raise FailedError(f"epoch {epoch} of one process has {given} of {wanted}")
    if set(known.values()) != {1}:
        raise FailedError("one process delivers a sample twice")
    for at, step in sorted(expected.items()):
        found = steps.pop(at, None)
        if found is None or [line[4:] for line in lines_of(found)] != [line[4:] for line in lines_of(step)]:
            raise FailedError(f"epoch {at[0]} step {at[1]}: not the global batch of one process")
    if steps:
        raise FailedError(f"{len(steps)} steps that one process does not have, from {min(steps)} on")
    return len(expected), known, delivered


def times_of(steps: dict[tuple[int, int], recount.Step]) -> Counter[object]:
    """Returns how often each sample is a valid entry; a pack has several lines."""
    entries = {
        (at, rank, line.entry): (line.source, line.source_epoch, line.shard, line.sample)
        for at, step in steps.items()
        for rank, lines in step.lines.items()
        for line in lines
        if line.mark == "1"
    }
    return Counter[object](entries.values())


def lines_of(step: recount.Step) -> list[recount.Line]:
    return [line for _, lines in sorted(step.lines.items()) for line in lines]


def ask_oracle(cases: list[dict[str, Any]]) -> list[Any]:
    """Returns the oracle's plan for each case."""
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    command = [sys.executable, str(ORACLE)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    plans = [json.loads(line) for line in done.stdout.splitlines()]
    errors = {plan["error"] for plan in plans if "error" in plan}
    if errors or len(plans) != len(cases):
        raise FailedError(f"the oracle gives {len(plans)} of {len(cases)} plans, errors {errors}")
    return plans
