"""Random programs and mixtures, stopped and resumed at random world sizes: nothing lost, doubled or moved.

`SHARDFEED_PROGRAM_CASES=N` makes about N stops, `SHARDFEED_PROGRAM_KILLS=N` about N kills.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from recount import Step, parse, read_ledger
from resuming import GLOBAL_BATCH, random_order, resumed_steps
from test_cluster_samples import FEATURES, TURNS, World, record_parts, rows_of
from test_unlike_sources import value_sources

import shardfeed as sf

FILTERS = ["id % 3 != 1", "len(label) < 4 or id % 2 == 0", "len(tokens) > 9", "ordinal % 5 != 2", "hash(id) % 4 != 1"]
RECORD_COSTS = ["len(tokens)", "id % 7", "len(tokens) * len(tokens)", "where(len(label) > 2, 2.5, 1.0)"]
ROW_COSTS = ["label", "label * 3 + len(tokens)", "len(tokens)"]
#: Costs of the samples of each kind; windows have none.
COSTS = {"records": RECORD_COSTS, "rows": ROW_COSTS, "rows around": ["len(tokens)"], "packs": ["sum_squares"]}


def rows(rng: random.Random, source: sf.Source) -> sf.Source:
    source = source.unbatch("label", "score", stride=rng.choice([1, 1, 2]))
    return source.filter("label > 2") if rng.random() < 0.5 else source


def rows_around(rng: random.Random, source: sf.Source) -> sf.Source:
    return source.unbatch("score", offsets={"label": (-1, 2)}, edge=rng.choice(["repeat", "zero"]))


def windows(rng: random.Random, source: sf.Source) -> sf.Source:
    by = rng.choice([None, "id // 10"])
    if rng.random() < 0.3:
        source = rows(rng, source)
    return source.window("id", size=rng.randint(1, 5), stride=rng.randint(1, 4), by=by, partial=rng.choice(["drop", "pad", "keep"]))


def packs(rng: random.Random, source: sf.Source) -> sf.Source:
    method: Any = rng.choice(["fit", "concat"])
    column = rng.choice(["tokens", "tokens", "turns"])
    if column == "turns":
        source = source.unbatch("turns").filter(rng.choice(["len(turns) > 2", "ordinal % 2 == 0", "id % 4 != 1"]))
    return source.pack(column, length=rng.choice([24, 64]), method=method, block=rng.choice([8, 64]), variants=rng.randint(1, 3), long="split")


MAKERS = {"rows": rows, "rows around": rows_around, "windows": windows, "packs": packs}


class Programs:
    """Makes programs over a few folders of random records."""

    def __init__(self, folder: Path) -> None:
        counts = [[40, 0, 25, 3, 31], [60], [1, 2, 80], [17, 17, 17, 17]]
        self.worlds = [World(folder / f"{at}", at, each, compression=[None, "gzip"][at % 2]) for at, each in enumerate(counts)]

    def random(self, rng: random.Random) -> tuple[sf.Source | sf.Mixture, str]:
        """Returns samples and the kind of them."""
        if rng.random() < 0.15:
            return self.unlike(rng)
        kind = rng.choice([*MAKERS, "records"])
        seed = rng.randrange(2**32)

        def made(world: World) -> sf.Source:
            # All sources of a mixture have the same columns.
            of = random.Random(seed)
            source = world.source(FEATURES | TURNS if kind == "packs" else FEATURES)
            if rng.random() < 0.5:
                source = source.filter(rng.choice(FILTERS))
            if kind in ("records", "rows") and of.random() < 0.3:
                source = source.cast("id", "int32", output="narrow").compute("mixed", "narrow * 2 + 1", "float64")
                source = source.filter(of.choice(["narrow % 5 != 2", "mixed % 3 != 1", "mixed > narrow + 20 or mixed % 2 == 0"]))
            return MAKERS[kind](of, source) if kind in MAKERS else source

        is_mixture = rng.random() < 0.4
        samples: sf.Source | sf.Mixture
        if is_mixture:
            worlds = rng.sample(self.worlds, rng.randint(1, 3))
            given = {f"s{at}": (made(world), rng.choice([1, 2, "0.3"])) for at, world in enumerate(worlds)}
            samples = sf.mix(given, epoch=rng.randint(20, 150))
        else:
            samples = made(rng.choice(self.worlds))
        if kind in COSTS and rng.random() < 0.5:
            samples = samples.balance(rng.choice(COSTS[kind]), window=rng.choice([1, 10, 40, 4096]))
        return samples, f"{kind} of {samples!r}"


    def unlike(self, rng: random.Random) -> tuple[sf.Mixture, str]:
        """Returns a mixture of sources that make a column in different ways."""
        given = {}
        for world in rng.sample(self.worlds, rng.randint(2, 4)):
            kind, source = rng.choice(sorted(value_sources(world.source()).items()))
            given[f"{kind}-{len(given)}"] = (source, rng.choice([1, 2, "0.3"]))
        samples = sf.mix(given, epoch=rng.randint(20, 150), columns=["value"])
        if not any("windows" in name for name in given) and rng.random() < 0.5:
            costs = {name: "sum_squares" if "packs" in name else "len(tokens)" for name in given}
            samples = samples.balance(costs, window=rng.choice([1, 10, 40, 4096]))
        return samples, f"unlike sources {samples!r}"


class Case:
    """A random program with options, and its undisturbed order."""

    def __init__(self, programs: Programs, seed: int, ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng = rng = random.Random(seed)
        self.samples, self.words = programs.random(rng)
        self.order = random_order(rng, shuffle=rng.random() < 0.7) | {"seed": rng.randrange(100), "restart": False}
        monkeypatch.setenv("SHARDFEED_LEDGER", str(ledger))
        self.steps: list[Any] = []
        try:
            loader = sf.Loader(self.samples, rank=0, world_size=1, batch_size=GLOBAL_BATCH, provenance=True, **self.order)
        except sf.ConfigError as error:
            # A filter may leave too few samples.
            assert "none" in str(error) or "has no step" in str(error), (self.words, error)
            return
        batches = [batch for _ in range(2) for batch in loader]
        self.steps = [rows_of(batch) for batch in batches]
        monkeypatch.delenv("SHARDFEED_LEDGER")
        if self.steps:
            check_once(ledger / "rank-0", loader, 2)
            check_parts(ledger / "rank-0", loader, batches)
        loader.close()


def check_once(ledger: Path, loader: sf.Loader, epochs: int) -> None:
    """Checks that a loader without interruption delivered each sample of an epoch once."""
    lines = [parse(text) for text in ledger.read_text().splitlines() if not text.startswith("start")]
    entries = {(line.epoch, line.step, line.entry): line for line in lines if line.mark == "1"}
    times = Counter((line.source, line.source_epoch, line.shard, line.sample) for line in entries.values())
    assert set(times.values()) <= {1}
    for epoch in range(epochs):
        assert sum(of == epoch for of, _, _ in entries) == loader.samples - loader.dropped


def check_parts(ledger: Path, loader: sf.Loader, batches: list[sf.Batch]) -> None:
    """Checks that batches name the parts that the ledger names."""
    lines = [parse(text) for text in ledger.read_text().splitlines() if not text.startswith("start")]
    told = [(line.epoch, line.step, line.entry, line.shard, line.record, line.record_row, line.first, line.rows) for line in lines]
    found = []
    for batch in batches:
        for row, shard, *part in zip(*record_parts(batch), strict=True):
            path = Path(loader.shards[shard]).name
            found.append((batch.epoch, batch.step, row, path, *part))
    assert found == [(*of[:3], Path(of[3]).name, *of[4:]) for of in told]


@pytest.mark.filterwarnings("ignore:every epoch has 0 steps")
@pytest.mark.parametrize("part", range(4))
def test_stops_and_resumes_change_nothing(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs, stops, number = Programs(tmp_path), 0, 0
    while stops < int(os.environ.get("SHARDFEED_PROGRAM_CASES", "400")) // 4:
        number += 1
        case = Case(programs, 1000 * number + part, tmp_path / f"ledger-{number}", monkeypatch)

        def loader(case: Case = case, **given: Any) -> sf.Loader:
            nonlocal stops
            stops += given["rank"] == 0
            return sf.Loader(case.samples, **(case.order | given))

        if case.steps:
            found = resumed_steps(case.rng, loader, rows_of, len(case.steps), 6)
            assert found == case.steps, (number, part, case.words)


@pytest.mark.filterwarnings("ignore:every epoch has 0 steps")
def test_kills_at_any_moment_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks die and start again from the last state, in another number; the ledgers tell what was delivered."""
    programs, kills, number = Programs(tmp_path), 0, 0
    while kills < int(os.environ.get("SHARDFEED_PROGRAM_KILLS", "12")):
        number += 1
        folder = tmp_path / f"case-{number}"
        case = Case(programs, number, folder / "whole", monkeypatch)
        if not case.steps:
            continue
        (folder / "samples").write_bytes(pickle.dumps(case.samples))
        order = {name: value for name, value in case.order.items() if name != "restart"}
        status = None
        while status is None:
            size = case.rng.choice([1, 2, 3, 4])
            options = json.dumps(order | {"world_size": size, "batch_size": GLOBAL_BATCH // size})
            command = [sys.executable, str(Path(__file__).with_name("killed.py")), "samples", options, "state", str(len(case.steps))]
            env = os.environ | {"SHARDFEED_LEDGER": str(folder / "ledger")}
            with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE) as ranks:
                assert ranks.stdout is not None
                if case.rng.random() < 0.8:
                    # Mostly while it trains, else while it opens the files.
                    ranks.stdout.readline()
                try:
                    status = ranks.wait(case.rng.uniform(0, 0.3))
                except subprocess.TimeoutExpired:
                    ranks.kill()
                    kills += 1
        assert status == 0, (number, case.words)
        (_, expected), (_, found) = read_ledger(folder / "whole"), read_ledger(folder / "ledger")
        assert {at: parts_of(step) for at, step in found.items()} == {at: parts_of(step) for at, step in expected.items()}, (number, case.words)


def parts_of(step: Step) -> list[Any]:
    """Returns what the entries of a step's global batch were made of."""
    return [line[4:] for _, lines in sorted(step.lines.items()) for line in lines]
