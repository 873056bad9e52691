"""Compares the delivered batches with the order of the independent oracle of docs/ORDER.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dataset
import recount
from cluster import ROOT

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
