"""`Source.balance` and `Mixture.balance`: samples of similar cost share a step, in the order of docs/ORDER.md, section 15."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from documents import documents
from recount import parse
from resuming import GLOBAL_BATCH, random_order
from test_bad_input import flip, record_offsets

import shardfeed as sf

sys.path.insert(0, str(ROOT / "tests"))
import balance_oracle  # noqa: E402
import pack_oracle  # noqa: E402
from test_pack import digest_of  # noqa: E402

FEATURES: dict[str, Any] = {
    "id": sf.FixedLenFeature((), "int64"),
    "weight": sf.FixedLenFeature((), "float32"),
    "size": sf.VarLenFeature("int64"),
    "tokens": sf.VarLenFeature("int64"),
}

Record = Mapping[str, Any]
#: Shard, index of the sample in it, valid.
Row = tuple[int, int, bool]


class World:
    """Files of records that the test knows."""

    def __init__(self, folder: Path, seed: int, counts: Sequence[int], compression: Any = None) -> None:
        self.folder, self.pattern, self.compression = folder, str(folder / "*.tfrecord"), compression
        self.records: list[list[Record]] = []
        rng = random.Random(seed)
        folder.mkdir(parents=True)
        for shard, count in enumerate(counts):
            self.records.append([self.record(rng, shard * 1000 + ordinal) for ordinal in range(count)])
            with sf.TFRecordWriter(folder / f"part-{shard:02}.tfrecord", compression=compression) as writer:
                for record in self.records[-1]:
                    writer.write(dict(record))

    @staticmethod
    def record(rng: random.Random, number: int) -> Record:
        return {
            "id": number,
            "weight": float(np.float32(rng.choice([0.0, 0.1, 2.5, rng.random() * 1e9]))),
            "size": [rng.randrange(300) for _ in range(rng.randrange(4))],
            "tokens": [1 + number] * rng.choice([0, 1, rng.randrange(40), rng.randrange(300)]),
        }

    def source(self) -> sf.Source:
        return sf.source(self.pattern, FEATURES)

    def digests(self) -> list[str]:
        return [digest_of(path, self.compression) for path in sorted(self.folder.iterdir())]


class Task:
    """A balanced source in shardfeed, and the costs of its samples by shard in Python."""

    def __init__(self, source: Callable[[sf.Source], sf.Source], by: str, costs: Callable[[World, int], list[list[Any]]]) -> None:
        self.source, self.by, self.costs = source, by, costs


def of_records(cost: Callable[[Record], Any], kept: Callable[[Record], bool] = lambda record: True) -> Any:
    return lambda world, epoch: [[cost(record) for record in records if kept(record)] for records in world.records]


def of_packs(method: str, block: int, variants: int) -> Callable[[World, int], list[list[int]]]:
    def costs(world: World, epoch: int) -> list[list[int]]:
        found = []
        for records, digest in zip(world.records, world.digests(), strict=True):
            lengths = [len(record["tokens"]) for record in records]
            case = {"length": 64, "method": method, "block": block, "variants": variants, "append": False, "long": "split"}
            packs = pack_oracle.answer(case | {"shard": digest, "lengths": lengths})["variants"][epoch % variants]
            found.append([sum(count * count for _, _, count in pack) for pack in packs])
        return found

    return costs


def plain(source: sf.Source) -> sf.Source:
    return source


TASKS = [
    Task(plain, "len(tokens)", of_records(lambda record: len(record["tokens"]))),
    Task(plain, "weight * 2", of_records(lambda record: record["weight"] * 2)),
    Task(
        lambda source: source.filter("id % 3 != 1"),
        "where(len(tokens) > 9, len(tokens), 0.5)",
        of_records(lambda record: max(float(len(record["tokens"])), 0.5) if len(record["tokens"]) > 9 else 0.5, lambda record: record["id"] % 3 != 1),
    ),
    Task(
        lambda source: source.unbatch("size").filter("size != 7"),
        "size // 10 + len(tokens)",
        lambda world, epoch: [
            [size // 10 + len(record["tokens"]) for record in records for size in record["size"] if size != 7] for records in world.records
        ],
    ),
    Task(lambda source: source.pack("tokens", length=64, block=16, variants=3), "sum_squares", of_packs("fit", 16, 3)),
    Task(lambda source: source.pack("tokens", length=64, method="concat", block=9, variants=2), "sum_squares", of_packs("concat", 9, 2)),
    Task(plain, "ordinal * ordinal % 7", lambda world, epoch: [[at * at % 7 for at in range(len(records))] for records in world.records]),
]


class Ranks:
    """The loaders of all ranks, and the rows in their ledgers."""

    def __init__(self, ledger: Path, monkeypatch: pytest.MonkeyPatch, source: Any, size: int, **options: Any) -> None:
        self.ledger = ledger
        monkeypatch.setenv("SHARDFEED_LEDGER", str(ledger))
        self.loaders = [sf.Loader(source, rank=rank, world_size=size, restart=False, **options) for rank in range(size)]
        monkeypatch.delenv("SHARDFEED_LEDGER")

    def steps(self, most: int | None = None) -> list[list[list[Any]]]:
        """Delivers the rest of an epoch, or `most` steps; returns the rows of each step and rank."""
        steps: list[list[list[Any]]] = []
        for batches in zip(*map(iter, self.loaders), strict=True):
            steps.append([rows_of(self.ledger / f"rank-{rank}", batch) for rank, batch in enumerate(batches)])
            if len(steps) == most:
                break
        return steps

    def state(self) -> Any:
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states) and len(json.dumps(states[0])) < 1024
        return states[0]

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


def rows_of(ledger: Path, batch: sf.Batch) -> list[Any]:
    """Returns the last batch in a ledger: of each entry shard, sample and valid, in a mixture also its source."""
    lines = [parse(text) for text in ledger.read_text().splitlines() if not text.startswith("start")]
    found: dict[int, Any] = {}
    for line in lines:
        if (line.epoch, line.step) == (batch.epoch, batch.step):
            at = (int(line.shard[5:7]), line.sample, line.mark == "1")
            found[line.entry] = at if line.source is None else (line.source, line.source_epoch, *at)
    return [found[entry] for entry in range(batch.rows)]


def case_of(costs: list[list[Any]], options: Mapping[str, Any], size: int, epoch: int, window: int) -> dict[str, Any]:
    return {
        "counts": [len(of) for of in costs], "costs": costs, "seed": options["seed"], "epoch": epoch, "shuffle": options["shuffle"],
        "window": options["shuffle_window"], "interleave": options["interleave"], "block_length": options["block_length"],
        "tail": options["tail"], "limit": options.get("limit"), "segments": [[options["lanes"], GLOBAL_BATCH, 0]],
        "world_size": size, "balance_window": window,
    }  # fmt: skip


def delivered(case: Mapping[str, Any]) -> list[list[list[Row]]]:
    answer = balance_oracle.answer(case)
    assert "error" not in answer, answer
    return [[[tuple(row) for row in rank] for rank in step] for step in answer["batches"]]


def random_options(rng: random.Random, seed: int) -> dict[str, Any]:
    return random_order(rng, shuffle=seed % 4 != 3) | {"seed": seed, "lanes": rng.choice([1, 2, 4, 12])}


@pytest.mark.parametrize("number", range(2 * len(TASKS)))
def test_balanced_steps_are_those_of_the_oracle(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In three epochs; then stopped anywhere in one, and resumed at other world sizes."""
    task, rng = TASKS[number % len(TASKS)], random.Random(number)
    world = World(tmp_path / "data", number, [40, 0, 75, 13, 120], "gzip" if number == 2 else None)
    options, window = random_options(rng, number), rng.choice([1, 9, 40, 4096])
    source = task.source(world.source()).balance(task.by, window=window)
    size = rng.choice([1, 2, 3, 4])
    batch = {"batch_size": GLOBAL_BATCH // size, "memory_budget": rng.choice([None, None, "24MiB"])}
    ranks = Ranks(tmp_path / "ledger", monkeypatch, source, size, **batch, **options)
    whole = [ranks.steps() for _ in range(3)]
    ranks.close()
    for epoch, steps in enumerate(whole):
        # Without shuffle, packs have the first variant in each epoch.
        costs = task.costs(world, epoch if options["shuffle"] else 0)
        assert steps == delivered(case_of(costs, options, size, epoch, window)), (number, epoch)
    unbalanced = Ranks(tmp_path / "plain", monkeypatch, task.source(world.source()), size, **batch, **options)
    same = [unbalanced.steps() for _ in range(3)]
    unbalanced.close()
    assert [len(steps) for steps in same] == [len(steps) for steps in whole]
    assert same != whole or window == 1

    state, found = None, list[Any]()
    while len(found) < len(whole[0]):
        size = rng.choice([one for one in (1, 2, 3, 4, 6, 12) if one % options["lanes"] == 0 or options["lanes"] % one == 0])
        part = Ranks(tmp_path / f"part-{len(found)}", monkeypatch, source, size, batch_size=GLOBAL_BATCH // size, resume=state, **options)
        found += part.steps(rng.randint(1, 9))
        state = part.state()
        part.close()
    assert [sum(step, []) for step in found] == [sum(step, []) for step in whole[0]]


@pytest.mark.parametrize("seed", range(12))
def test_another_batch_in_mid_epoch_balances_the_rest(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of lanes or batch opens a segment, whose lanes are balanced anew."""
    task, rng = TASKS[seed % len(TASKS)], random.Random(100 + seed)
    world = World(tmp_path / "data", seed, [90, 31, 0, 200])
    options, window = random_options(rng, seed), rng.choice([5, 12, 60])
    source = task.source(world.source()).balance(task.by, window=window)
    case = case_of(task.costs(world, 0), options, 1, 0, window)
    lanes, state = options.pop("lanes"), None
    segments: list[list[int]] = []
    rows: Counter[Any] = Counter()
    for part in range(4):
        size = rng.choice([1, 2, 3])
        lanes = math.lcm(size, lanes if part == 0 else rng.choice([2, 3, 6]))
        batch = lanes * rng.choice([1, 2, 4])
        ranks = Ranks(tmp_path / f"part-{part}", monkeypatch, source, size, batch_size=batch // size, lanes=lanes, resume=state, **options)
        steps = ranks.steps(rng.randint(1, 5) if part < 3 else None)
        state = ranks.state()
        ranks.close()
        # A start with the lanes and the batch of the last segment continues it.
        if not segments or segments[-1][:2] != [lanes, batch]:
            segments.append([lanes, batch, 0])
        answer = balance_oracle.answer(case | {"segments": [*segments[:-1], [lanes, batch, 0]], "world_size": size})
        assert "error" not in answer, answer
        start = segments[-1][2]
        expected = answer["batches"][start : start + len(steps)]
        assert steps == [[[tuple(row) for row in rank] for rank in step] for step in expected], (seed, part)
        segments[-1][2] += len(steps)
        rows.update(row[:2] for step in steps for rank in step for row in rank if row[2])
    assert set(rows.values()) == {1}


def rank_steps(ranks: Ranks, rank: int, most: int | None = None) -> list[list[Row]]:
    """Delivers the rest of a rank's epoch, or `most` steps of it."""
    found = []
    for batch in ranks.loaders[rank]:
        found.append(rows_of(ranks.ledger / f"rank-{rank}", batch))
        if len(found) == most:
            break
    return found


@pytest.mark.parametrize("seed", range(14))
def test_tails_limits_and_ranks_that_stop_apart(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of an uneven job stop at different steps; other ranks, with another batch, continue."""
    task, rng = TASKS[seed % len(TASKS)], random.Random(300 + seed)
    world = World(tmp_path / "data", seed, [rng.randrange(90) for _ in range(rng.randint(1, 4))] + [70])
    lanes, size = rng.choice([2, 4, 12]), rng.choice([1, 2, 4])
    options = random_options(rng, seed) | {"lanes": lanes, "tail": "uneven", "limit": rng.choice([None, None, 61])}
    window = rng.choice([1, 9, 40, 4096])
    source = task.source(world.source()).balance(task.by, window=window)
    case = case_of(task.costs(world, 0), options, size, 0, window)
    ranks = Ranks(tmp_path / "one", monkeypatch, source, size, batch_size=GLOBAL_BATCH // size, **options)
    answer = balance_oracle.answer(case)
    assert "error" not in answer, answer
    stops = [rng.randint(0, max(0, answer["rank_steps"][rank] - 1)) for rank in range(size)]
    assert max(answer["rank_steps"]) > 1
    stops[0] = max(1, stops[0])
    for rank in range(size):
        found = rank_steps(ranks, rank, stops[rank]) if stops[rank] else []
        assert found == [[tuple(row) for row in step[rank]] for step in answer["batches"][: stops[rank]]]
    states = [loader.state_dict() for loader in ranks.loaders]
    ranks.close()

    size = rng.choice([1, 2, 3])
    batch = math.lcm(size, lanes) * rng.choice([1, 2])
    ranks = Ranks(
        tmp_path / "two", monkeypatch, source, size, batch_size=batch // size, resume=states, **options | {"lanes": lanes}
    )
    # Ranks that stopped at one step, and go on with the same batch, continue their segment.
    is_same = batch == GLOBAL_BATCH and len(set(stops)) == 1
    segments = [[lanes, batch, 0]] if is_same else [[lanes, GLOBAL_BATCH, stops], [lanes, batch, 0]]
    answer = balance_oracle.answer(case | {"segments": segments, "world_size": size})
    assert "error" not in answer, answer
    for rank in range(size):
        steps = answer["batches"][stops[0] if is_same else 0 :]
        expected = [[tuple(row) for row in step[rank]] for step in steps]
        assert rank_steps(ranks, rank) == [rows for rows in expected if rows], (seed, rank)
    ranks.close()


@pytest.mark.parametrize("seed", range(8))
def test_balanced_mixtures_are_those_of_the_oracle(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(200 + seed)
    names = ["web", "Code", "é"][: rng.randint(1, 3)]
    packs = seed % 2 == 1
    worlds = {name: World(tmp_path / f"data-{at}", 10 * seed + at, [rng.randint(9, 80), rng.randrange(60), 30]) for at, name in enumerate(names)}
    task = TASKS[4] if packs else TASKS[0]
    mixture = sf.mix({name: (task.source(world.source()), at + 1) for at, (name, world) in enumerate(worlds.items())}, epoch=120)
    window = rng.choice([7, 50, 4096])
    options, size = random_options(rng, seed), rng.choice([1, 2, 3])
    ranks = Ranks(tmp_path / "ledger", monkeypatch, mixture.balance(task.by, window=window), size, batch_size=GLOBAL_BATCH // size, **options)
    ordered = sorted(names, key=str.encode)
    for epoch in range(3):
        steps = ranks.steps()
        costs = [task.costs(worlds[name], 0) for name in ordered]
        stage = [[name, str(at + 1), [len(of) for of in task.costs(worlds[name], 0)]] for at, name in enumerate(names)]
        case = case_of(costs[0], options, size, epoch, window) | {"costs": costs}
        case |= {"stages": [{"first_epoch": 0, "length": 120, "sources": stage}]}
        if packs:
            # The cost of a pack is that of its variant, which follows the source epoch.
            turn = 1 if options["shuffle"] else 0
            case["costs"] = [BySourceEpoch(lambda i, name=name: task.costs(worlds[name], turn * i)) for name in ordered]
            monkeypatch.setattr(balance_oracle, "cost_of", lambda case, sample: case["costs"][sample[1]].of(sample))
        answer = balance_oracle.answer(case)
        assert "error" not in answer, answer
        expected = [[[(ordered[s], i, shard, at, valid) for s, i, shard, at, valid in rank] for rank in step] for step in answer["batches"]]
        assert steps == expected, (seed, epoch)
    ranks.close()


class BySourceEpoch:
    """Costs of a source whose packs differ by source epoch."""

    def __init__(self, costs: Callable[[int], list[list[int]]]) -> None:
        self.costs, self.known = costs, dict[int, list[list[int]]]()

    def of(self, sample: Sequence[Any]) -> int:
        _, _, source_epoch, shard, ordinal = sample
        if source_epoch not in self.known:
            self.known[source_epoch] = self.costs(source_epoch)
        return self.known[source_epoch][shard][ordinal]


def test_the_steps_of_eight_ranks_cost_alike(tmp_path: Path) -> None:
    """The largest cost of a rank in a step, over the mean of the step: 1.1 or less, and 1.5 or more without balance."""
    rng = np.random.default_rng(5)
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for length in np.minimum(2048, rng.lognormal(5.5, 1.1, 20_000)).astype(int):
            writer.write({"length": int(length)})
    source = sf.source(str(tmp_path / "a.tfrecord"), {"length": sf.FixedLenFeature((), "int64")})

    def spread(source: sf.Source) -> float:
        ranks = [sf.Loader(source, batch_size=4, rank=rank, world_size=8, seed=1, restart=False) for rank in range(8)]
        costs = np.array([[int(batch["length"].sum()) for batch in loader] for loader in ranks], dtype=float)
        for loader in ranks:
            loader.close()
        assert costs.shape == (8, 20_000 // 32)
        return float((costs.max(axis=0) / costs.mean(axis=0)).mean())

    assert spread(source) > 1.5
    assert spread(source.balance("length")) < 1.1


def test_the_steps_of_64_ranks_cost_alike_with_real_lengths(tmp_path: Path) -> None:
    """Functions of Python's library, cut to 2,048 bytes: each once, and as many as fill the windows of all lanes."""
    lengths = np.array([min(2048, len(text)) for text in documents("**/*.py")])

    def spread(source: sf.Source) -> tuple[float, float]:
        """Returns the largest cost of a rank by the mean of its step: the mean of steps, and of an epoch's cost."""
        # A global batch is the same at every world size: the batches of 64 ranks, one after the other.
        with sf.Loader(source, batch_size=64 * 4, lanes=64, rank=0, world_size=1, seed=1) as loader:
            costs = np.array([batch["length"].reshape(64, 4).sum(axis=1) for batch in loader], dtype=float)
        most, mean = costs.max(axis=1), costs.mean(axis=1)
        return float((most / mean).mean()), float(most.sum() / mean.sum())

    features: dict[str, Any] = {"length": sf.FixedLenFeature((), "int64")}
    found = []
    for name, of in (("once", lengths), ("filled", np.random.default_rng(5).choice(lengths, 64 * 4096))):
        source = sf.write_dataset(({"length": int(length)} for length in of), tmp_path / name, shard_bytes="1MiB").parse(features)
        found.append((spread(source), spread(source.balance("length"))))
    (once, once_balanced), (filled, filled_balanced) = found
    assert once_balanced[0] < once[0] / 2
    assert filled[0] > 2 and filled_balanced[0] < 1.08 and filled_balanced[1] < 1.07


def test_each_sample_comes_once_while_the_trainer_is_killed(tmp_path: Path) -> None:
    """A trainer that saves its state after each step dies by SIGKILL in mid-epoch, again and again."""
    world = World(tmp_path / "data", 3, [60, 60, 60])
    program = """
import json, os, signal, sys, shardfeed as sf
pattern, state_file, out, limit = sys.argv[1:]
F = {"id": sf.FixedLenFeature((), "int64"), "tokens": sf.VarLenFeature("int64")}
source = sf.source(pattern, F).balance("len(tokens)", window=32)
state = json.load(open(state_file)) if os.path.exists(state_file) else None
loader = sf.Loader(source, batch_size=5, lanes=1, rank=0, world_size=1, resume=state, restart=False, shuffle_window=20)
for number, batch in enumerate(loader):
    with open(out, "a") as file:
        file.write(json.dumps([batch.step, batch["id"].tolist()]) + "\\n")
    with open(state_file + ".new", "w") as file:
        json.dump(loader.state_dict(), file)
    os.rename(state_file + ".new", state_file)
    if number == int(limit):
        os.kill(os.getpid(), signal.SIGKILL)
print("end")
"""
    out, state = tmp_path / "out", tmp_path / "state"
    for limit in (0, 3, 7, 2, 11, 100):
        ran = subprocess.run(
            [sys.executable, "-c", program, world.pattern, str(state), str(out), str(limit)],
            env=os.environ, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert ran.returncode == (0 if limit == 100 else -9), ran.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [step for step, _ in lines] == list(range(36))
    ids = Counter(one for _, of in lines for one in of)
    assert ids == Counter(record["id"] for records in world.records for record in records)


def test_damaged_records_are_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "data", 1, [30, 40])
    damaged = tmp_path / "data" / "part-01.tfrecord"
    flip(damaged, record_offsets(damaged)[4] + 14)
    source = world.source().balance("len(tokens)", window=8)
    options: dict[str, Any] = {"batch_size": 3, "rank": 0, "world_size": 1}
    with pytest.raises(sf.CorruptRecordError, match=r"part-01\.tfrecord.*record 4"):
        sf.Loader(source, **options)
    loader = sf.Loader(source, corrupt="skip-record", tail="pad", restart=False, **options)
    assert loader.samples == 69
    ids = Counter(int(one) for batch in loader for one, valid in zip(batch["id"], batch.valid, strict=True) if valid)
    assert ids == Counter(record["id"] for records in world.records for record in records if record["id"] != 1004)
    loader.close()


def test_costs_that_are_none(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 1, [5, 6])
    source, options = world.source(), {"batch_size": 3, "rank": 0, "world_size": 1}
    for by, value in {
        "2 - id": r"-\d+",
        "sqrt(0 - 1 - id)": "NaN",
        "weight / 0": "inf|NaN",
        "4000000000000000000 * (id + 3)": "NaN",
    }.items():
        with pytest.raises(sf.FeatureError, match=rf"part-0\d\.tfrecord.*record \d+.*the cost `.*` is ({value}); balance takes finite"):
            sf.Loader(source.balance(by), **options)  # type: ignore[arg-type]
    loader = sf.Loader(source.balance("2 - id"), corrupt="skip-record", restart=False, **options)  # type: ignore[arg-type]
    assert (loader.samples, len(loader.skipped)) == (3, 8)
    loader.close()


def test_what_balance_refuses(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 1, [20])
    source = world.source()
    for call, said in [
        (lambda: source.balance("nothing"), "there is no column `nothing`; there are `id`, `size`, `tokens`, `weight`"),
        (lambda: source.balance("sum_squares"), "it is the cost of packs"),
        (lambda: source.balance("tokens"), "`len(tokens)`"),
        (lambda: source.balance("'a'"), "is a text"),
        (lambda: source.balance("1 +"), "balance('1 +')"),
        (lambda: source.balance(7), "expression as str"),  # type: ignore[arg-type]
        (lambda: source.balance("id", window=0), "window"),
        (lambda: source.balance("id", window=2**20 + 1), "balance window"),
        (lambda: source.rename("id", "number").balance("id"), "column `id` was renamed to `number`"),
        (lambda: source.balance("id").balance("id"), "balanced already"),
        (lambda: source.balance("id").unbatch("size"), "call unbatch() before balance()"),
        (lambda: source.balance("id").pack("tokens", length=9), "call pack() before balance()"),
        (lambda: source.pack("tokens", length=9).balance("id"), 'packs are balanced by "sum_squares"'),
        (lambda: sf.mix({"a": (source.balance("id"), 1)}, epoch=9), "call balance() on it instead"),
        (lambda: source.balance("len(shard_path)"), "a cost has no `shard_path`"),
        (lambda: sf.mix({"a": (source, 1)}, epoch=9).balance("id").balance("id"), "balanced already"),
        (lambda: sf.mix({"a": (source, 1)}, epoch=9).balance("nothing"), "balance('nothing'): source 'a': there is no column `nothing`"),
        (lambda: sf.Loader(source.balance("id"), batch_size=1, coordinator="localhost:1", job="a", mode="dynamic"), "no steps that ranks share"),
    ]:  # fmt: skip
        with pytest.raises(sf.ConfigError, match=re.escape(said)):
            call()
    # A filter after balance() leaves its cost as it is.
    later = source.balance("id").filter("id > 3")
    assert later.count() == 16
    assert "balance 'id' window=4096" in repr(later)
    again = pickle.loads(pickle.dumps(later))
    assert again == later and again.balance is not None
    assert "balance 'id' window=7" in repr(sf.mix({"a": (source, 1)}, epoch=9).balance("id", window=7))


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_after_a_restart_with_another_batch_no_more_is_read_than_without_balance(tmp_path: Path, compression: Any) -> None:
    """Rows of later steps are kept when the reader passes them."""
    rng = random.Random(3)
    with sf.TFRecordWriter(tmp_path / "a.tfrecord", compression=compression) as writer:
        for number in range(30_000):
            writer.write({"id": number, "data": rng.randbytes(rng.randrange(200))})
    features: dict[str, Any] = {"id": sf.FixedLenFeature((), "int64"), "data": sf.FixedLenFeature((), "string")}
    plain = sf.source(str(tmp_path / "a.tfrecord"), features)
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "lanes": 2, "seed": 2, "restart": False, "shuffle_window": 2048, "tail": "pad"}

    def read(source: sf.Source) -> int:
        with sf.Loader(source, batch_size=32, **options) as loader:
            seen = [int(one) for _, batch in zip(range(300), loader, strict=False) for one in batch["id"]]
            state = loader.state_dict()
        # Counting is over: the maps are in the cache.
        before = bytes_read()
        with sf.Loader(source, batch_size=48, resume=state, **options) as loader:
            seen += [int(one) for batch in loader for one in batch["id"][batch.valid]]
        assert sorted(seen) == list(range(30_000))
        return bytes_read() - before

    assert read(plain.balance("len(data)", window=2048)) < 1.5 * read(plain)


@pytest.mark.parametrize("seed", range(6))
def test_a_record_damaged_later_fails_in_its_own_window(seed: int, tmp_path: Path) -> None:
    """After a restart with another batch size, rows are read early; the batches before are complete."""
    rng = random.Random(seed)
    world = World(tmp_path / "data", seed, [200, 90, 300])
    source = world.source().balance("len(tokens)", window=24)
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "lanes": 2, "seed": seed, "restart": False, "shuffle_window": 8, "tail": "pad"}
    with sf.Loader(source, batch_size=4, **options) as loader:
        for _ in zip(range(40), loader, strict=False):
            pass
        state = loader.state_dict()
    with sf.Loader(source, batch_size=6, resume=state, **options) as loader:
        expected = [batch["id"].tolist() for batch in loader]
    file = tmp_path / "data" / sorted(one.name for one in (tmp_path / "data").iterdir())[2]
    ordinal = rng.randrange(300)
    # A byte of the record's data: the modification time stays, so that the maps are still used.
    stamp, offset = file.stat(), record_offsets(file)[ordinal]
    flip(file, offset + 13)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    found: list[list[int]] = []
    with sf.Loader(source, batch_size=6, resume=state, **options) as loader:
        try:
            found.extend(batch["id"].tolist() for batch in loader)
            # It was in the steps before.
            assert found == expected
        except sf.CorruptRecordError as error:
            assert error.ordinal == ordinal
    assert found == expected[: len(found)]
    assert len(found) == len(expected) or world.records[2][ordinal]["id"] in sum(expected[len(found):], [])


def bytes_read() -> int:
    """Returns the bytes that this process has read."""
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])  # type: ignore[index]


def test_a_window_that_does_not_fit_is_named(tmp_path: Path) -> None:
    """Compressed shards cannot be read out of order; with the window that the error names they are read."""
    with sf.TFRecordWriter(tmp_path / "a.tfrecord", compression="gzip") as writer:
        for number in range(3000):
            writer.write({"id": number, "data": bytes(8000)})
    features: dict[str, Any] = {"id": sf.FixedLenFeature((), "int64"), "data": sf.FixedLenFeature((), "string")}
    source = sf.source(str(tmp_path / "a.tfrecord"), features)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": False, "memory_budget": "16MiB", "rank": 0, "world_size": 1, "restart": False}

    def ids(source: sf.Source, **given: Any) -> list[int]:
        with sf.Loader(source, **(options | given)) as loader:
            return [int(one) for batch in loader for one in batch["id"]]

    with pytest.raises(sf.ConfigError, match="compressed shards cannot be read out of order") as refused:
        ids(source.balance("id % 100"))
    found = re.search(r"use balance\(window=(\d+)\) or less.*memory_budget of at least (\d+)", str(refused.value))
    assert found is not None, refused.value
    window, budget = map(int, found.groups())
    assert 100 < window < 4096
    assert sorted(ids(source.balance("id % 100", window=window))) == list(range(3000))
    assert sorted(ids(source.balance("id % 100"), memory_budget=budget)) == list(range(3000))


def test_other_costs_are_another_job(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 1, [40])
    options: dict[str, Any] = {"batch_size": 4, "rank": 0, "world_size": 1}
    loader = sf.Loader(world.source().balance("id"), **options)
    next(iter(loader))
    state = loader.state_dict()
    loader.close()
    for other in (world.source(), world.source().balance("id", window=5), world.source().balance("id * 2")):
        with pytest.raises(sf.StateError, match="balance"):
            sf.Loader(other, resume=state, **options)
    sf.Loader(world.source().balance("(id)"), resume=state, **options).close()
