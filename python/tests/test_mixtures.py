"""`sf.mix`: loaders deliver the order of docs/ORDER.md, section 13, and refuse invalid mixtures."""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import mixture_oracle
import numpy as np
import order_oracle
import pytest
from recount import parse
from test_bad_input import flip, record_offsets

import shardfeed as sf

FEATURES: dict[str, Any] = {"id": sf.FixedLenFeature((), "int64")}
NAMES = ("web", "Code", "books-2", "é", "zz")
WEIGHTS: tuple[Any, ...] = (1, 0.25, "3", ".7", "1e1", Decimal("20.5e-1"), 33)

#: Source, source epoch, shard, ordinal, valid.
Row = tuple[str, int, int, int, bool]


def shard_name(shard: int) -> str:
    return f"part {shard:02}%.tfrecord"


def number(version: int, shard: int, ordinal: int) -> int:
    return (version * 1000 + shard) * 1000 + ordinal


class World:
    """Versions of sources, whose records the test knows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.counts = folder, dict[int, Sequence[int]]()

    def source(self, counts: Sequence[int]) -> sf.Source:
        version = len(self.counts)
        self.counts[version] = counts
        folder = self.folder / f"version-{version}"
        folder.mkdir(parents=True)
        for shard, count in enumerate(counts):
            with sf.TFRecordWriter(folder / shard_name(shard)) as writer:
                for ordinal in range(count):
                    writer.write({"id": number(version, shard, ordinal)})
        return sf.source(str(folder / "*.tfrecord"), FEATURES)


class Ranks:
    """The loaders of all ranks, and the rows in their ledgers."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, mixture: sf.Mixture, size: int, **options: Any
    ) -> None:
        self.ledger, self.mixture = folder, mixture
        monkeypatch.setenv("SHARDFEED_LEDGER", str(folder))
        self.loaders = [sf.Loader(mixture, rank=rank, world_size=size, **options) for rank in range(size)]
        monkeypatch.delenv("SHARDFEED_LEDGER")

    def steps(self, most: int | None = None) -> list[list[list[Row]]]:
        """Delivers the rest of an epoch, or `most` steps; returns the rows of each step and rank."""
        steps: list[list[list[Row]]] = []
        for batches in zip(*map(iter, self.loaders), strict=False):
            rows = [self.rows(rank, batch) for rank, batch in enumerate(batches)]
            steps.append(rows)
            if len(steps) == most:
                break
        return steps

    def rows(self, rank: int, batch: sf.Batch) -> list[Row]:
        text = (self.ledger / f"rank-{rank}").read_text(encoding="utf-8")
        lines = [parse(line) for line in text.splitlines()[-batch.rows :]]
        assert [line.entry for line in lines] == list(range(batch.rows))
        assert {(line.epoch, line.step) for line in lines} == {(batch.epoch, batch.step)}
        names = self.loaders[rank].sources
        assert [names[at] for at in batch.source] == [line.source for line in lines]
        assert batch.source.dtype == np.int32
        rows = []
        for line, value, valid in zip(lines, batch["id"], batch.valid, strict=True):
            version, shard, ordinal = value // 1_000_000, value // 1000 % 1000, value % 1000
            assert self.mixture.versions[self.version_of(version)][0] == line.source
            assert (shard_name(shard), ordinal) == (line.shard, line.record)
            assert valid == (line.mark == "1")
            assert line.source is not None
            rows.append((line.source, line.source_epoch, int(shard), int(ordinal), bool(valid)))
        return rows

    def version_of(self, version: int) -> int:
        """Returns the index in the mixture of the version with this folder."""
        found = [at for at, (_, source) in enumerate(self.mixture.versions) if f"/version-{version}/" in source.files[0]]
        assert len(found) == 1
        return found[0]

    def state(self) -> Any:
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return json.loads(json.dumps(states[0]))

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


def case_of(
    stages: Sequence[tuple[int, Any, Mapping[str, tuple[Any, Sequence[int]]]]], options: Mapping[str, Any], size: int
) -> dict[str, Any]:
    """Returns the case of the oracle. `stages`: first epoch, length, and weight and counts by name."""
    made = [
        {"first_epoch": first, "length": length, "sources": [[name, str(weight), counts] for name, (weight, counts) in of.items()]}
        for first, length, of in stages
    ]
    lanes = options.get("lanes", size)
    return {
        "stages": made,
        "seed": options.get("seed", 0),
        "shuffle": options.get("shuffle", True),
        "window": options["shuffle_window"],
        "interleave": options["interleave"],
        "block_length": options.get("block_length", 1),
        "tail": options.get("tail", "drop"),
        "limit": options.get("limit"),
        "segments": [[lanes, options["batch_size"] * size, 0]],
        "world_size": size,
    }


def expected(case: Mapping[str, Any], epoch: int) -> list[list[list[Row]]]:
    """Returns the rows of each step and rank."""
    stages = [stage for stage in case["stages"] if stage["first_epoch"] <= epoch]
    names = sorted((source[0] for source in stages[-1]["sources"]), key=str.encode)
    answer = mixture_oracle.answer({**case, "epoch": epoch})
    assert "error" not in answer, answer
    return [
        [[(names[source], i, shard, ordinal, valid) for source, i, shard, ordinal, valid in rows] for rows in ranks]
        for ranks in answer["batches"]
    ]


@pytest.mark.parametrize("seed", range(12))
def test_loaders_deliver_what_the_oracle_says(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    world = World(tmp_path / "data")
    names = rng.sample(NAMES, rng.randint(1, 4))
    sizes = {name: [rng.randrange(25) for _ in range(rng.randint(1, 4))] + [rng.randint(1, 30)] for name in names}
    given = {name: (world.source(counts), rng.choice(WEIGHTS)) for name, counts in sizes.items()}
    length: Any = rng.choice([rng.randint(40, 300), "first_exhausted" if seed % 2 else 120])
    of: dict[str, tuple[Any, Sequence[int]]] = {name: (weight, sizes[name]) for name, (_, weight) in given.items()}
    stages: list[Any] = []
    oracle_stages: list[tuple[int, Any, Any]] = [(0, length, of)]
    if seed % 3 == 0:
        # One source leaves, one joins, one grows, and the others have other weights.
        grown = [*sizes[names[0]], 7]
        changed: dict[str, Any] = {names[0]: (world.source(grown), 2), "new": (world.source([9, 11]), "0.5")}
        changed |= dict.fromkeys(names[2:], 1)
        stages = [sf.Stage(2, changed, 90)]
        counts = {names[0]: grown, "new": [9, 11], **{name: sizes[name] for name in names[2:]}}
        later = {name: (value[1] if isinstance(value, tuple) else value, counts[name]) for name, value in changed.items()}
        oracle_stages.append((2, 90, later))
    mixture = sf.mix(given, epoch=length, stages=stages)
    lanes, size = 12, rng.choice([1, 2, 3])
    options: dict[str, Any] = {
        "seed": seed, "shuffle": seed != 5, "shuffle_window": rng.choice([1, 5, 40, 3000]), "interleave": rng.randint(1, 6),
        "block_length": rng.randint(1, 3), "tail": rng.choice(["drop", "pad"]), "lanes": lanes, "restart": False,
        "limit": rng.choice([None, None, 60]),
    }  # fmt: skip
    case = case_of(oracle_stages, {**options, "batch_size": lanes // size}, size)
    whole = [expected(case, epoch) for epoch in range(4)]
    ranks = Ranks(tmp_path / "one", monkeypatch, mixture, size, batch_size=lanes // size, **options)
    assert [ranks.steps() for _ in range(4)] == whole
    assert ranks.loaders[0].samples == sum(mixture_oracle.answer({**case, "epoch": 4})["counts"][-1])
    ranks.close()
    # Stopped anywhere, and resumed at any other world size.
    global_batches = [[sum(step, []) for step in epoch] for epoch in whole]
    found: list[list[list[Row]]] = [[], [], [], []]
    state = None
    for part in range(40):
        size = rng.choice([1, 2, 3, 4, 6, 12])
        ranks = Ranks(
            tmp_path / f"part-{part}", monkeypatch, mixture, size, batch_size=lanes // size, resume=state,
            **{**options, "prefetch": rng.choice([None, 1])},
        )  # fmt: skip
        epoch = ranks.loaders[0].epoch
        if epoch == 4:
            break
        found[epoch] += [sum(step, []) for step in ranks.steps(rng.randint(1, 9))]
        state = ranks.state()
        assert len(json.dumps(state)) < 1024
        ranks.close()
    else:
        found = found if state["epoch"] > 3 else [*found[: state["epoch"]]]
    for epoch, batches in enumerate(found):
        assert batches == global_batches[epoch][: len(batches)]
    assert found[0] == global_batches[0]


def test_a_live_reshard_keeps_the_global_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "data")
    sizes = {"a": [40, 11], "b": [25]}
    mixture = sf.mix({name: (world.source(of), place + 1) for place, (name, of) in enumerate(sizes.items())}, epoch=120)
    options: dict[str, Any] = {"shuffle_window": 20, "interleave": 2, "lanes": 4}
    stages = [(0, 120, {name: (place + 1, of) for place, (name, of) in enumerate(sizes.items())})]
    case = case_of(stages, {**options, "batch_size": 8}, 1)
    ranks = Ranks(tmp_path / "ledger", monkeypatch, mixture, 2, batch_size=4, restart=False, **options)
    found = [sum(step, []) for step in ranks.steps(5)]
    ranks.loaders[1].close()
    ranks.loaders[0].reshard(4, 1)
    del ranks.loaders[1]
    again = [sum(step, []) for step in ranks.steps()]
    whole = [sum(step, []) for step in expected(case, 0)]
    assert found == whole[:5] and again == whole[4:]


@pytest.mark.parametrize("epoch", [10**6, 2**40 + 3])
def test_any_epoch_is_found_without_those_before_it(epoch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "data")
    given = {"small": (world.source([3]), 1), "large": (world.source([90, 70]), "0.5")}
    options: dict[str, Any] = {"shuffle_window": 8, "interleave": 3, "tail": "pad"}
    ranks = Ranks(tmp_path / "ledger", monkeypatch, sf.mix(given, epoch=50), 1, batch_size=8, **options)
    ranks.loaders[0].set_epoch(epoch)
    case = case_of([(0, 50, {"small": (1, [3]), "large": ("0.5", [90, 70])})], {**options, "batch_size": 8}, 1)
    assert ranks.steps() == expected(case, epoch)


def test_every_source_epoch_is_whole_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recount, without the oracle: with tail="pad" nothing of a range is dropped."""
    world = World(tmp_path / "data")
    sizes = {"a": [10, 0, 17], "b": [3], "c": [50, 41, 60]}
    mixture = sf.mix({name: (world.source(of), weight) for (name, of), weight in zip(sizes.items(), (5, 3, 2), strict=True)}, epoch=100)
    ranks = Ranks(tmp_path / "ledger", monkeypatch, mixture, 2, batch_size=7, tail="pad", shuffle_window=9, interleave=2)
    times: Counter[tuple[str, int, int, int]] = Counter()
    for _ in range(6):
        rows = [row for step in ranks.steps() for rank in step for row in rank if row[4]]
        assert Counter(row[0] for row in rows) == {"a": 50, "b": 30, "c": 20}
        times.update(row[:4] for row in rows)
    assert set(times.values()) == {1}
    for name, of in sizes.items():
        epochs = Counter(source_epoch for source, source_epoch, *_ in times if source == name)
        samples = sum(of)
        # All source epochs but the last one are whole.
        assert all(count == samples for epoch, count in epochs.items() if epoch < max(epochs)), epochs
        assert sorted(epochs) == list(range(max(epochs) + 1))
    orders = [[row for row in times if row[:2] == ("b", epoch)] for epoch in range(8)]
    assert len({tuple(row[2:] for row in order) for order in orders}) > 1, "each source epoch has an order of its own"


def test_one_source_that_is_repeated_opens_few_files(tmp_path: Path) -> None:
    """A source of one sample in a long epoch: hundreds of portions, each with a stream of its own."""
    world = World(tmp_path / "data")
    mixture = sf.mix({"one": (world.source([1]), 1), "many": (world.source([400, 400]), 1)}, epoch=800)
    loader = sf.Loader(mixture, batch_size=8, shuffle_window=4, memory_budget="8MiB", restart=False)
    for _ in range(2):
        assert sum(int((batch.source == 1).sum()) for batch in loader) == 400
    assert loader.sources == ["many", "one"]


@pytest.mark.parametrize("budget", ["200KiB", "64MiB"])
def test_records_are_read_by_position_if_windows_do_not_fit(budget: str, tmp_path: Path) -> None:
    def batches(memory_budget: str) -> Iterator[tuple[Any, ...]]:
        loader = sf.Loader(mixture, batch_size=5, shuffle_window=500, prefetch=1, memory_budget=memory_budget, restart=False)
        for batch in loader:
            yield tuple(batch["id"]), tuple(batch.source)
        readings.append(loader.stats()["reading"])

    world = World(tmp_path)
    readings: list[Any] = []
    mixture = sf.mix({"a": (world.source([500, 300]), 1), "b": (world.source([90]), 2)}, epoch=1000)
    assert list(batches(budget)) == list(batches("256MiB"))
    assert readings == ["locate" if budget == "200KiB" else "hold", "hold"]


@pytest.mark.parametrize("tail", ["drop", "uneven"])
def test_a_stage_without_steps_is_passed(tail: Any, tmp_path: Path) -> None:
    world = World(tmp_path)
    mixture = sf.mix({"a": (world.source([40]), 1)}, epoch=16, stages=[sf.Stage(1, {"a": 1}, 1), sf.Stage(3, {"a": 1}, 16)])
    for rank in range(2):
        loader = sf.Loader(mixture, batch_size=4, rank=rank, world_size=2, tail=tail, restart=False)
        least = 1 if (tail, rank) == ("uneven", 0) else 0
        assert [len(list(epoch)) for epoch in loader.epochs(5)] == [2, least, least, 2, 2]


def test_a_repeated_source_of_large_records_counts_as_often_as_it_is_held(tmp_path: Path) -> None:
    for name, count, size in (("small", 10, 50_000), ("many", 4000, 50)):
        (tmp_path / name).mkdir()
        with sf.TFRecordWriter(tmp_path / name / "x.tfrecord") as writer:
            for _ in range(count):
                writer.write(bytes(size))
    given = {name: (sf.source(str(tmp_path / name / "*")), 1) for name in ("small", "many")}
    loader = sf.Loader(sf.mix(given, epoch=8000), batch_size=4, shuffle_window=300, memory_budget="8MiB", restart=False)
    next(iter(loader))
    assert loader.stats()["reading"] == "locate"


def test_weights_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    source = World(tmp_path).source([3])
    mixture = sf.mix({"a": (source, np.float64(0.7)), "b": (source, np.int64(3))}, epoch=100)  # type: ignore[dict-item]
    assert "a 0.7, b 3" in repr(mixture)


def test_equal_features_may_be_written_differently(tmp_path: Path) -> None:
    a, b = World(tmp_path).source([8]), World(tmp_path / "other").source([5])
    ways: list[Any] = [
        sf.FixedLenFeature((2,), "int64", default_value=np.array([1, 2])),
        sf.FixedLenFeature([2], np.int64, default_value=[1, 2]),
    ]
    first, second = (sf.source(of.files, {"pair": way}) for of, way in zip((a, b), ways, strict=True))
    mixture = sf.mix({"a": (first, 1), "b": (second, 1)}, epoch=16, stages=[sf.Stage(1, {"a": (first, 2), "b": 1})])
    assert len(mixture.versions) == 2
    batch = next(iter(sf.Loader(mixture, batch_size=4)))
    assert batch["pair"].tolist() == [[1, 2]] * 4


def test_defaults_may_be_no_numbers(tmp_path: Path) -> None:
    features = {"score": sf.FixedLenFeature((), "float32", default_value=float("nan"))}
    a, b = (sf.source(str(tmp_path / f"{name}-*.tfrecord"), features) for name in "ab")
    mixture = sf.mix({"a": (a, 1), "b": (b, 1)}, epoch=10, stages=[sf.Stage(2, {"a": (a, 1), "b": 2})])
    assert len(mixture.versions) == 2


def test_filters_differ_between_sources(tmp_path: Path) -> None:
    world = World(tmp_path)
    a, b = world.source([40, 41]), world.source([30])
    mixture = sf.mix({"a": (a.filter("id % 2 == 0"), 1), "b": (b, 1)}, epoch="first_exhausted")
    loader = sf.Loader(mixture, batch_size=6, tail="pad", restart=False)
    assert loader.samples == 60
    ids = [int(value) for batch in loader for value, valid in zip(batch["id"], batch.valid, strict=True) if valid]
    ours = [value for value in ids if value < 1_000_000]
    assert len(ids) == 60 and len(ours) == 30 and len(set(ids)) == 60
    assert all(value % 2 == 0 for value in ours)


def test_a_corrupt_record_is_replaced_from_its_own_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "data")
    given = {"a": (world.source([30]), 1), "b": (world.source([20, 20]), 1)}
    file = tmp_path / "data" / "version-1" / shard_name(1)
    flip(file, record_offsets(file)[4] + 12 + 6)
    mixture = sf.mix(given, epoch=80)
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    seen = []
    for size in (1, 2):
        loaders = [
            sf.Loader(mixture, rank=rank, world_size=size, batch_size=8 // size, lanes=8, corrupt="skip-record", restart=False)
            for rank in range(size)
        ]
        batches = []
        for parts in zip(*loaders, strict=True):
            batches.append([(int(value), bool(valid)) for batch in parts for value, valid in zip(batch["id"], batch.valid, strict=True)])
            for batch in parts:
                assert [value // 1_000_000 for value in batch["id"]] == batch.source.tolist()
        seen.append(batches)
        listed = [one for loader in loaders for one in loader.skipped]
        assert [(one.file, one.ordinal) for one in listed] == [(str(file), 4)]
    assert seen[0] == seen[1]
    assert sum(not valid for batch in seen[0] for _, valid in batch) == 1
    with pytest.raises(sf.CorruptRecordError, match="record 4"):
        for _ in sf.Loader(mixture, batch_size=8, restart=False):
            pass


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_corrupt_record_that_is_alone_in_its_lane_is_replaced(lanes: int, tmp_path: Path) -> None:
    """A source of three samples in eight lanes: parts of one sample, in some of them the corrupt one."""
    world = World(tmp_path / "data")
    mixture = sf.mix({"a": (world.source([3]), 1), "b": (world.source([60]), 1)}, epoch=48)
    file = tmp_path / "data" / "version-0" / shard_name(0)
    flip(file, record_offsets(file)[1] + 12 + 6)
    options: dict[str, Any] = {"batch_size": 8, "lanes": lanes, "corrupt": "skip-record", "corrupt_budget": 8, "restart": False}
    for batch in sf.Loader(mixture, **options):
        # The values are those of another sample of source "a".
        assert {int(value) for value in batch["id"][batch.source == 0]} <= {0, 2}
        assert all(batch.valid[batch.source == 1])
    flip(file, record_offsets(file)[0] + 12 + 6)
    flip(file, record_offsets(file)[2] + 12 + 6)
    with pytest.raises(sf.CorruptRecordError, match="none can replace it"):
        list(sf.Loader(mixture, **options))


def test_the_corrupt_budget_is_of_the_samples_of_the_epoch(tmp_path: Path) -> None:
    world = World(tmp_path / "data")
    small, large = world.source([8]), world.source([400])
    file = tmp_path / "data" / "version-1" / shard_name(0)
    for ordinal in range(20):
        flip(file, record_offsets(file)[ordinal] + 12 + 6)
    options: dict[str, Any] = {"batch_size": 8, "corrupt": "skip-record", "restart": False}
    for length, budget in (("all_exhausted", 0.06), ("all_exhausted", 0.04)):
        stage = sf.Stage(1, {"b": (large, 1)}, length)
        loader = sf.Loader(sf.mix({"a": (small, 1)}, epoch=8, stages=[stage]), corrupt_budget=budget, **options)
        list(loader)
        if budget == 0.06:  # 24 of 400 records
            assert sum(int((~batch.valid).sum()) for batch in loader) == 20
        else:
            with pytest.raises(sf.CorruptRecordError, match="allows 16 on this rank"):
                list(loader)


def test_the_memory_budget_is_for_the_files_of_the_stage(tmp_path: Path) -> None:
    """A record that is larger than the budget is an error of the epoch that reads it."""
    world = World(tmp_path / "data")
    first = world.source([40])
    with sf.TFRecordWriter(tmp_path / "large.tfrecord") as writer:
        writer.write({"id": [7], "more": [bytes(2 << 20)]})
    large = sf.source(str(tmp_path / "large.tfrecord"), FEATURES)
    mixture = sf.mix({"a": (first, 1)}, epoch=16, stages=[sf.Stage(2, {"b": (large, 1)})])
    loader = sf.Loader(mixture, batch_size=8, memory_budget="1MiB", restart=False)
    assert [len(list(loader)) for _ in range(2)] == [2, 2]
    with pytest.raises(sf.ConfigError, match="large.tfrecord"):
        list(loader)


def test_random_operators_draw_by_source_and_source_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By docs/ORDER.md, section 11, with the generator of the oracle."""
    counts = {"a": [5, 4], "b": [3]}
    given: dict[str, Any] = {}
    for name, of in counts.items():
        (tmp_path / name).mkdir()
        for shard, count in enumerate(of):
            with sf.TFRecordWriter(tmp_path / name / shard_name(shard)) as writer:
                for _ in range(count):
                    writer.write({"raw": bytes([1, 2])})
        source = sf.source(f"{tmp_path}/{name}/*.tfrecord", {"raw": sf.FixedLenFeature((), "string")})
        given[name] = (source.decode_raw("raw", "uint8", (1, 2, 1)).flip("raw", probability=0.5), 1)
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    loader = sf.Loader(sf.mix(given, epoch=24), batch_size=6, seed=3, restart=False)
    turned = [int(row.ravel()[0]) == 2 for _ in range(2) for batch in loader for row in batch["raw"]]
    lines = [parse(line) for line in (tmp_path / "ledger" / "rank-0").read_text().splitlines() if not line.startswith("start")]
    assert len(lines) == len(turned) == 48
    for line, is_turned in zip(lines, turned, strict=True):
        assert line.source is not None
        key = order_oracle.make_key("source", hashlib.sha256(line.source.encode()).digest())
        shard = [shard_name(0), shard_name(1)].index(line.shard)
        numbers = (3, line.source_epoch, key, shard, line.sample, 0, 0, 1)
        draws = order_oracle.draws(order_oracle.make_key("operator", order_oracle.order_digest(counts[line.source]), *numbers), 0)
        assert is_turned == ((next(draws) >> 11) / 2**53 < 0.5), line
    assert {line.source_epoch for line in lines if line.source == "b"} == set(range(8))


def test_states_belong_to_the_stages_that_were_begun(tmp_path: Path) -> None:
    world = World(tmp_path)
    a, b, c = world.source([30]), world.source([20, 20]), world.source([7])
    given = {"a": (a, 1), "b": (b, 1)}
    options: dict[str, Any] = {"batch_size": 8, "restart": False}
    loader = sf.Loader(sf.mix(given, epoch=80), **options)
    fresh = loader.state_dict()
    next(iter(loader))
    state = loader.state_dict()
    # Before the first step no stage is begun, so any mixture takes the state.
    sf.Loader(sf.mix({"c": (c, 1)}, epoch=80), resume=fresh, **options).close()
    # A stage that is not begun may be added, or changed.
    for later in ({"a": 1, "b": 2}, {"a": 1, "c": (c, 3)}):
        sf.Loader(sf.mix(given, epoch=80, stages=[sf.Stage(1, later)]), resume=state, **options).close()
    others = [
        sf.mix({"a": (a, 1), "b": (b, 2)}, epoch=80),
        sf.mix(given, epoch=81),
        sf.mix({"a": (a, 1), "B": (b, 1)}, epoch=80),
        sf.mix({"a": (a, 1), "b": (world.source([20, 19]), 1)}, epoch=80),
    ]
    for other in others:
        with pytest.raises(sf.StateError, match="mixture whose stages until epoch 0 have the digest"):
            sf.Loader(other, resume=state, **options)
    # Only ratios of weights matter.
    sf.Loader(sf.mix({"a": (a, "0.5"), "b": (b, 0.5)}, epoch=80), resume=state, **options).close()
    with pytest.raises(sf.StateError, match="another job"):
        sf.Loader(a, resume=state, **options)


def test_each_mixture_error_says_what_to_do(tmp_path: Path) -> None:
    world = World(tmp_path)
    a, b = world.source([30]), world.source([20])
    strings = sf.source(a.files, {"id": sf.FixedLenFeature((), "string")})
    more = sf.source(a.files, {"id": sf.FixedLenFeature((), "int64"), "x": sf.FixedLenFeature((), "float32")})
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ({}, {}, "are a dict of names, not {}"),
        ([a], {}, "are a dict of names"),
        ({"a": a}, {}, r"source 'a' of the mixture is \(source, weight\)"),
        ({"a": ("x", 1)}, {}, "source 'a' is a Source, such as"),
        ({1: (a, 1)}, {}, "the name of a source is a str, not 1"),
        ({"a b": (a, 1)}, {}, '"a b" cannot name a source of a mixture'),
        ({"-": (a, 1)}, {}, '"-" cannot name a source'),
        ({"a": (a, 0)}, {}, "the weight of source `a` is \"0\"; use a positive decimal number"),
        ({"a": (a, -1.5)}, {}, "the weight of source `a` is \"-1.5\""),
        ({"a": (a, float("nan"))}, {}, "the weight of source `a` is \"nan\""),
        ({"a": (a, True)}, {}, "the weight of source 'a' is a number, or a decimal as text, not True"),
        ({"a": (a, 1), "b": (b, "0.0001")}, {}, "has none of source `b`.* at least 5001 samples"),
        ({"a": (a, 1), "b": (strings, 1)}, {}, r"column 'id' is int64 \[\] in source 'a' and string \[\] in source 'b'"),
        ({"a": (a, 1), "b": (more, 1)}, {}, r"column 'x' is missing in source 'a' and float32 \[\] in source 'b'"),
        ({"a": (a, 1)}, {"epoch": 0}, "epoch must be at least 1"),
        ({"a": (a, 1)}, {"epoch": "shortest"}, "neither \"first_exhausted\" nor \"all_exhausted\""),
        ({"a": (a, 1)}, {"stages": [3]}, r"a stage is sf.Stage\(first_epoch, sources"),
        ({"a": (a, 1)}, {"stages": [sf.Stage(0, {"a": 1})]}, "stage 1 begins at epoch 0"),
        ({"a": (a, 1)}, {"stages": [sf.Stage(1, {"b": 1})]}, r"source 'b' of the mixture is \(source, weight\), not 1"),
    ]
    for given, options, message in cases:
        with pytest.raises(sf.ConfigError, match=message):
            sf.mix(given, **({"epoch": 100} | options))
    mixture = sf.mix({"a": (a, 1), "b": (b, 1)}, epoch=100)
    with pytest.raises(sf.ConfigError, match="source 'm' is a mixture; mix its sources"):
        sf.mix({"m": (mixture, 1)}, epoch=9)  # type: ignore[dict-item]
    with pytest.raises(AttributeError, match=r"call filter\(\) on each source, before sf.mix\(\)"):
        mixture.filter("id > 3")  # type: ignore[attr-defined]
    named = sf.mix({"a": (a, 1), "x": (sf.source(dataset="x", features=FEATURES), 1)}, epoch=100)
    with pytest.raises(sf.ConfigError, match='dataset="x" is known to a coordinator only'):
        sf.Loader(named, batch_size=4)
    with pytest.raises(sf.ConfigError, match='mode="dynamic" grants whole files'):
        sf.Loader(mixture, batch_size=4, mode="dynamic")
    with pytest.raises(sf.ConfigError, match="features= belongs to the source"):
        sf.Loader(mixture, FEATURES, batch_size=4)
    with pytest.raises(sf.ConfigError, match="source `b` has no samples in 2 shards"):
        sf.Loader(sf.mix({"a": (a, 1), "b": (world.source([0, 0]), 1)}, epoch=100), batch_size=4)
    short = sf.source(b.files, FEATURES, records=21)
    with pytest.raises(sf.ShardChangedError, match="hold 20 records, but 21 were written"):
        sf.Loader(sf.mix({"a": (a, 1), "b": (short, 1)}, epoch=100), batch_size=4)
    assert "b 1" in repr(mixture) and mixture.names == ["a", "b"]
    assert sf.Loader(a, batch_size=4).sources == []


def test_weights_by_size() -> None:
    sizes = {"a": 10_000, "b": 100, "c": 10**9}
    assert sf.weights_by_size(sizes) == {"a": 10_000.0, "b": 100.0, "c": 1e9}
    weights = sf.weights_by_size(sizes, temperature=2, maximum=10_000)
    assert weights == pytest.approx({"a": 100.0, "b": 10.0, "c": 100.0})
    known = sf.source("x", FEATURES, records=16)
    assert sf.weights_by_size({"k": known}, temperature=4) == {"k": 2.0}
    with pytest.raises(sf.ConfigError, match=r"samples of source 'u' is not known: records= is not given; call count\(\) on"):
        sf.weights_by_size({"u": sf.source("x", FEATURES)})
    tokens = sf.source("x", {"t": sf.VarLenFeature("int64")}, records=16)
    for other in (known.filter("id < 10"), known.window(size=2), tokens.unbatch("t"), tokens.pack("t", length=8)):
        with pytest.raises(sf.ConfigError, match="samples of source 'k' is not known: records= counts records, of which its"):
            sf.weights_by_size({"k": other})
    assert sf.weights_by_size({"k": known.balance("id")}) == {"k": 16.0}
    with pytest.raises(sf.ConfigError, match="temperature=0.001 makes the weight of 'a' too large"):
        sf.weights_by_size(sizes, temperature=0.001)
    with pytest.raises(sf.ConfigError, match="temperature must be a number above 0"):
        sf.weights_by_size(sizes, temperature=0)


def test_weights_by_size_of_counted_sources(tmp_path: Path) -> None:
    source = World(tmp_path).source([30, 10])
    passing = source.filter("ordinal < 12")
    assert (source.count(cache_dir=tmp_path / "cache"), passing.count(cache_dir=tmp_path / "cache")) == (40, 22)
    assert sf.weights_by_size({"all": source, "passing": passing}) == {"all": 40.0, "passing": 22.0}
    # Other samples are counted on their own.
    for other in (passing.filter("ordinal < 3"), passing.with_files("x"), source.filter("ordinal < 12")):
        with pytest.raises(sf.ConfigError, match="samples of source 'k' is not known"):
            sf.weights_by_size({"k": other})
    assert passing == source.filter("ordinal < 12")


def test_a_mixture_names_what_takes_the_place_of_a_method(tmp_path: Path) -> None:
    source = sf.source("x", FEATURES)
    mixture: Any = sf.mix({"a": (source, 1)}, epoch=100)
    expected = {
        "shuffle": r"Mixture has no shuffle\(\): use Loader\(mixture, shuffle=True",
        "take": r"Mixture has no take\(\): use Loader\(mixture, limit=",
        "repeat": r"Mixture has no repeat\(\): iterate over the epochs of a loader",
        "count": r"Mixture has no count\(\): a loader of it has .* loader.samples, .* source.count\(\) counts those of a source",
        "resize": r"Mixture has no resize\(\): call resize\(\) on each source, before sf.mix\(\)",
        "name": "Mixture has no attribute 'name'; did you mean names?",
        "files": "Mixture has no attribute 'files'$",
    }
    for name, said in expected.items():
        with pytest.raises(AttributeError, match=said):
            getattr(mixture, name)


def test_the_example_mixes_real_texts() -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "mixture" / "text.py"
    command = [sys.executable, str(example), "--length", "1000", "--epochs", "3"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found = [[(name, int(count.replace(",", ""))) for count, name in re.findall(r"([0-9,]+) of (\w+) ", line)] for line in lines]
    assert len(found) == 3
    assert found[1] == found[2] == [("code", 500), ("prose", 500)]
    assert sum(count for _, count in found[0]) == 1000 and found[0][0][1] > found[0][1][1]
