"""Filters, rows of records, packs and windows in a cluster: counted once, by all workers, and delivered exactly once."""

from __future__ import annotations

import itertools
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import object_log
import pytest
from recount import read_ledger
from resuming import random_order, resumed_steps
from test_bad_input import flip, record_offsets

import shardfeed as sf
from shardfeed.testing import Cluster, FailedError, Killer, until

TTL = "session-ttl-ms = 1500\nheartbeat-ms = 300\n"
FEATURES: dict[str, Any] = {
    "id": sf.FixedLenFeature((), "int64"),
    "label": sf.VarLenFeature("int64"),
    "score": sf.VarLenFeature("float32"),
    "tokens": sf.VarLenFeature("int64"),
}
#: Parts of the tokens, which `unbatch` takes as rows.
TURNS = {"turns": sf.RaggedFeature("int64", value_key="tokens", partitions=[sf.RaggedFeature.RowLengths("turn_lengths")])}
#: Numbers of further workers.
NUMBERS = itertools.count(1)


class World:
    """Files of random records."""

    def __init__(self, folder: Path, seed: int, counts: Sequence[int], rows: int = 5, compression: Any = None) -> None:
        self.folder, self.pattern = folder, str(folder / "*.tfrecord")
        rng = random.Random(seed)
        folder.mkdir(parents=True)
        for shard, count in enumerate(counts):
            name = folder / f"part-{shard:02}.tfrecord"
            with sf.TFRecordWriter(name, compression=compression) as writer:
                for ordinal in range(count):
                    writer.write(self.record(rng, shard * 1000 + ordinal, rows))

    @staticmethod
    def record(rng: random.Random, number: int, most: int) -> dict[str, Any]:
        rows = rng.randrange(most)
        record = {
            "id": number,
            "label": [rng.randrange(9) for _ in range(rows)],
            "score": [np.float32(rng.random()) for _ in range(rows)],
            "tokens": [rng.randrange(1, 99) for _ in range(rng.randrange(1, 40))],
        }
        # An empty turn, and others of at most 9 tokens.
        return record | {"turn_lengths": [0] + [len(record["tokens"][at : at + 9]) for at in range(0, len(record["tokens"]), 9)]}

    def source(self, features: dict[str, Any] = FEATURES) -> sf.Source:
        return sf.source(self.pattern, features)


def turns_of(source: sf.Source) -> sf.Source:
    return sf.source(source.files, FEATURES | TURNS).unbatch("turns")


def programs(source: sf.Source) -> dict[str, sf.Source]:
    return {
        "filter": source.filter("id % 3 != 1 and len(label) < 4"),
        "rows": source.unbatch("label", "score"),
        "rows of some": source.filter("len(tokens) > 9").unbatch("label", "score").filter("label > 2"),
        "rows around": source.unbatch("score", offsets={"label": (-1, 2)}, edge="repeat"),
        "operators": source.cast("id", "int32").compute("triple", "id * 3", "int64").filter("triple % 2 == 1 and hash(id) % 5 != 0"),
        "packs": source.pack("tokens", length=32, block=16, append=0),
        "packs of some": source.filter("id % 2 == 0").pack("tokens", length=50, method="concat"),
        "windows": source.window("id", size=4, stride=2, by="id // 10"),
        "packs of rows": turns_of(source).filter("len(turns) != 4 and id % 3 != 0").pack("turns", length=24, block=16, append=0),
        "windows of rows": source.unbatch("label", "score").filter("label > 1").window("label", "id", size=3, stride=2, by="id // 2"),
        "windows of some": source.filter("id % 3 != 0").window("id", size=3, partial="pad"),
        "balanced": source.balance("len(tokens)", window=30),
        "balanced rows": source.unbatch("label", "score").filter("label > 1").balance("label * 3 + len(tokens)"),
        "balanced packs": source.pack("tokens", length=32, block=16, append=0).balance("sum_squares", window=12),
        "path": source.filter("shard_path != 'part-01.tfrecord' and ordinal % 2 == 0"),
    }


KINDS = tuple(programs(sf.source("none", FEATURES)))


def rows_of(batch: sf.Batch) -> list[tuple[Any, ...]]:
    """Returns the values of each row, with those of `valid`."""
    columns = [batch[name] for name in sorted(batch)]
    lists = [[np.asarray(column[row]).tobytes() for row in range(len(batch.valid))] for column in columns]
    return list(zip(*lists, batch.valid.tolist(), strict=True))


def options(rng: random.Random) -> dict[str, Any]:
    return {"seed": 5, "batch_size": 12, "restart": False} | random_order(rng, shuffle=rng.random() < 0.8)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("samples"), config=TTL) as cluster:
        yield cluster


@pytest.fixture
def where(running: Cluster) -> dict[str, Any]:
    return running.loader_options()


def batches(source: sf.Source, epochs: int, **of: Any) -> list[Any]:
    with sf.Loader(source, **of) as loader:
        return [rows_of(batch) for _ in range(epochs) for batch in loader]


def record_parts(batch: sf.Batch) -> list[list[int]]:
    parts = batch.parts
    assert parts is not None
    return [column.tolist() for column in (parts.row, parts.shard, parts.record, parts.record_row, parts.first, parts.count)]


def shown_parts(running: Cluster, job: str, epoch: int, step: int, *more: str) -> list[list[int]]:
    """Returns the records that an operator sees of a batch, in the form of `record_parts`."""
    shown = running.ask("batch", "show", "--job", job, "--epoch", str(epoch), "--step", str(step), *more)
    parts = [(row["row"], row["shard_ordinal"], part) for row in shown["samples"] for part in row["parts"]]
    columns = [(row, shard, part["record"], part["record_row"], part["first"], part["count"]) for row, shard, part in parts]
    return [list(column) for column in zip(*columns, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_batches_are_those_of_one_process(
    running: Cluster, where: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    rng = random.Random(kind)
    world = World(tmp_path / "data", len(kind), [40, 0, 25, 3, 31], compression=rng.choice([None, "gzip"]))
    source, order = programs(world.source())[kind], options(rng)
    with sf.Loader(source, **order, provenance=True) as loader:
        alone = [(rows_of(batch), record_parts(batch)) for _ in range(2) for batch in loader]
    assert alone
    with sf.Loader(source, **order, **where, fallback=False, provenance=True) as loader:
        assert alone == [(rows_of(batch), record_parts(batch)) for _ in range(2) for batch in loader]
        assert loader.stats()["source"] == "worker worker-0"
    steps = len(alone) // 2
    for at in [0, steps - 1, steps, 2 * steps - 1]:
        assert shown_parts(running, where["job"], *divmod(at, steps)) == alone[at][1]
    with Killer(running.workers[0], len(kind)):
        killed = batches(source, 2, **order, **where | {"job": f"{where['job']}-killed"})
    assert killed == [rows for rows, _ in alone]


def test_a_host_without_a_cache_gets_the_samples_from_the_coordinator(
    running: Cluster, where: dict[str, Any], tmp_path: Path
) -> None:
    world, rng = World(tmp_path / "data", 1, [40, 25, 31]), random.Random(1)
    for kind in ("filter", "rows of some", "packs", "windows of some"):
        source, order = programs(world.source())[kind], options(rng)
        alone = batches(source, 1, **order)
        assert alone == batches(source, 1, fallback=False, **order, **where | {"job": f"{kind}-here"})
        other = running.worker(next(NUMBERS))
        other.env = running.env | {"SHARDFEED_CACHE_DIR": str(tmp_path / kind)}
        # Nobody counts any more.
        running.workers[0].kill()
        try:
            other.start()
            there = where | {"worker": Path(other.arguments[other.arguments.index("--socket") + 1])}
            assert alone == batches(source, 1, fallback=False, **order, **there | {"job": f"{kind}-there"})
            kept = {
                of: sum(len(object_log.objects(log)) for log in (tmp_path / kind).glob(f"{of}-*/*"))
                for of in ("samples", "packs")
            }
            # A map for each file, and for packs what packing its blocks gave.
            assert kept == {"samples": 3, "packs": 3 if kind == "packs" else 0}
        finally:
            other.kill()
            running.workers[0].start()


@pytest.mark.parametrize("seed", range(6))
def test_stops_and_resumes_at_other_world_sizes_deliver_each_sample_once(
    running: Cluster, where: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    world = World(tmp_path / "data", seed, [rng.randrange(60) for _ in range(5)])
    source = programs(world.source())[rng.choice(KINDS)]
    order = random_order(rng, shuffle=seed % 3 > 0)
    with sf.Loader(source, batch_size=12, restart=False, seed=seed, **order) as whole:
        steps = 2 * len(whole)
        expected = [rows_of(batch) for _ in range(2) for batch in whole]
        samples = whole.samples
    runs = iter(range(10**6))
    run = ""

    def loader(rank: int, **more: Any) -> sf.Loader:
        nonlocal run
        # The ranks of one start have one run. All are on one host, up to 12.
        run = run if rank > 0 else f"run-{next(runs)}"
        more |= {"rank": rank, "restart": False, "seed": seed, "memory_budget": "16MiB"}
        return sf.Loader(source, **more, **order, **where | {"run": run})

    folder = tmp_path / "ledger"
    monkeypatch.setenv("SHARDFEED_LEDGER", str(folder))
    with Killer(running.workers[0], seed):
        assert resumed_steps(rng, loader, rows_of, steps, 7) == expected
    _, delivered = read_ledger(folder)
    for epoch in range(2):
        steps_of = [step for (of, _), step in delivered.items() if of == epoch]
        entries = {
            (number, rank, line.entry): (line.shard, line.sample)
            for number, step in enumerate(steps_of)
            for rank, lines in step.lines.items()
            for line in lines
            if line.mark == "1"
        }
        times = Counter(entries.values())
        assert set(times.values()) == {1}
        assert samples - len(times) < (12 if order["tail"] == "drop" else 1)


def test_dynamic_ranks_share_the_samples(running: Cluster, where: dict[str, Any], tmp_path: Path) -> None:
    world = World(tmp_path / "data", 9, [40, 25, 3, 31, 17])
    for kind in ("filter", "rows of some", "packs", "windows of some"):
        source = programs(world.source())[kind]
        expected = sorted(row for batch in batches(source, 1, batch_size=1, shuffle=False) for row in batch)
        each = [
            sf.Loader(
                source, batch_size=4, mode="dynamic", tail="uneven", shuffle=False, interleave=1, rank=rank, world_size=3,
                restart=False, provenance=True, **where | {"job": f"dynamic-{kind}"},
            )
            for rank in range(3)
        ]  # fmt: skip
        first = next(iter(each[0]))
        assert shown_parts(running, f"dynamic-{kind}", 0, 0, "--rank", "0") == record_parts(first)
        found = rows_of(first) + together(each)
        # Dynamic ranks have no padding, and a deterministic epoch in batches of 1 has none either.
        assert sorted(found) == expected
        for loader in each:
            loader.close()


def test_balanced_jobs_have_no_dynamic_ranks(running: Cluster, where: dict[str, Any], tmp_path: Path) -> None:
    source = programs(World(tmp_path / "data", 9, [40, 25]).source())["balanced"]
    with pytest.raises(sf.ConfigError, match="no steps that ranks share"):
        sf.Loader(source, batch_size=5, mode="dynamic", **where | {"job": "balanced-dynamic"})
    with sf.Loader(source, batch_size=5, **where) as loader:
        batches = [batch.rows for batch in loader]
        until(lambda: running.ask("epoch", "show", "--epoch", "0", "--job", where["job"])["delivered"] == sum(batches), "all are counted")
        epoch = running.ask("epoch", "show", "--epoch", "0", "--job", where["job"])
        assert (epoch["total"], epoch["dropped"], epoch["steps"]) == (65, 0, len(batches))
        shards = running.ask("shard", "list", "--job", where["job"], "--epoch", "0")["shards"]
        assert [(shard["state"], shard["records_done"]) for shard in shards] == [("done", 40), ("done", 25)]


@pytest.mark.parametrize("tail", ["drop", "uneven"])
@pytest.mark.parametrize("kind", ["balanced", "balanced packs"])
def test_batches_of_a_balanced_job_are_shown_after_restarts_at_other_world_sizes(
    running: Cluster, where: dict[str, Any], tmp_path: Path, kind: str, tail: Any
) -> None:
    source = programs(World(tmp_path / "data", 12, [90, 2, 61, 40]).source())[kind]
    order: dict[str, Any] = {"tail": tail, "seed": 3, "shuffle_window": 16, "provenance": True}
    resume: Any = None
    parts: dict[tuple[int, int], list[list[int]]] = {}
    for world_size, batch_size, stop in [(2, 6, 3), (3, 4, 5), (1, 24, None)]:
        each = [
            sf.Loader(source, rank=rank, world_size=world_size, batch_size=batch_size, resume=resume, **order, **where)
            for rank in range(world_size)
        ]
        first = len(parts) and 1 + max(step for step, _ in parts)

        def read(loader: sf.Loader, first: int = first, stop: Any = stop) -> list[list[list[int]]]:
            return [record_parts(batch) for batch in itertools.islice(loader, stop and stop - first)]

        with ThreadPoolExecutor(world_size) as pool:
            found = list(pool.map(read, each))
        parts |= {(first + step, rank): batch for rank, batches in enumerate(found) for step, batch in enumerate(batches)}
        states = [loader.state_dict() for loader in each]
        resume = states if tail == "uneven" else states[0]
        now = [(step, rank) for step, rank in parts if step >= first]
        for step, rank in [now[0], now[-1], now[len(now) // 2]]:
            assert shown_parts(running, where["job"], 0, step, "--rank", str(rank)) == parts[step, rank], (step, rank)
        whole = running.ask("batch", "show", "--job", where["job"], "--epoch", "0", "--step", str(now[0][0]))["samples"]
        assert sorted({row["rank"] for row in whole}) == list(range(world_size))
        for loader in each:
            loader.close()
    beyond = str(1 + max(step for step, _ in parts))
    with pytest.raises(FailedError, match=f"step {beyond}"):
        running.command("batch", "show", "--job", where["job"], "--epoch", "0", "--step", beyond, "--rank", "0")


@pytest.mark.parametrize("world_size", [3, 2])
def test_uneven_ranks_without_steps_in_the_rest_of_an_epoch_resume_with_the_others(
    running: Cluster, where: dict[str, Any], tmp_path: Path, world_size: int
) -> None:
    source = World(tmp_path / "data", 1, [13]).source()
    order: dict[str, Any] = {"tail": "uneven", "lanes": 3, "shuffle": False, "restart": False}

    def first(rank: int, **of: Any) -> sf.Loader:
        return sf.Loader(source, batch_size=2, world_size=3, rank=rank, **order, **of)

    def resumed(**of: Any) -> list[list[Any]]:
        """Epochs 0 and 1 of each rank after two steps of each."""
        each = [first(rank, **of) for rank in range(3)]
        for loader in each:
            batches = iter(loader)
            next(batches), next(batches)
        states = [loader.state_dict() for loader in each]
        for loader in each:
            loader.close()
        # Another start of the launcher: in the same one a rank that is early would join the ended generation.
        of |= {"world_size": world_size, "batch_size": 6 // world_size} | ({"run": "restarted"} if of else {})
        again = [sf.Loader(source, rank=rank, resume=states, **order, **of) for rank in range(world_size)]

        def read(loader: sf.Loader) -> list[Any]:
            return [(batch.epoch, batch.step, rows_of(batch)) for epoch in loader.epochs(2) for batch in epoch]

        with ThreadPoolExecutor(world_size) as pool:
            return list(pool.map(read, again))

    expected = resumed()
    assert [] in [[at for at in rank if at[0] == 0] for rank in expected]
    assert resumed(**where) == expected


def together(loaders: list[sf.Loader]) -> list[tuple[Any, ...]]:
    """Returns the rows of an epoch that several ranks read at once."""

    def read(loader: sf.Loader) -> list[tuple[Any, ...]]:
        return [row for batch in loader for row in rows_of(batch)]

    with ThreadPoolExecutor(len(loaders)) as pool:
        return [row for rows in pool.map(read, loaders) for row in rows]


def test_a_dataset_that_is_added_by_name_has_programs(running: Cluster, where: dict[str, Any], tmp_path: Path) -> None:
    world = World(tmp_path / "data", 4, [30, 20])
    running.command("dataset", "add", "named", world.pattern, "--wait")
    source = sf.source(dataset="named", features=FEATURES).filter("id % 2 == 0")
    with pytest.raises(sf.ConfigError, match="was added with --corrupt error, .* pass corrupt=\"error\""):
        sf.Loader(source, batch_size=5, corrupt="skip-record", **where)
    with sf.Loader(source, batch_size=5, **where) as loader:
        assert loader.samples == 25
        assert sum(int(batch.valid.sum()) for batch in loader) == 25
        job = running.ask("job", "show", where["job"])
    shown = running.ask("dataset", "show", job["dataset"])
    assert (shown["records"], shown["state"]) == (25, "ready") and len(shown["program"]) == 64
    assert "samples" in running.command("dataset", "show", job["dataset"])
    counted = running.ask("dataset", "show", job["dataset"], "--samples")
    assert counted["record_spec"].endswith("filter id % 2 == 0")
    assert [counted["counted"][name] for name in ("records", "samples", "records_left_out", "rows")] == [50, 25, 25, None]
    assert "left out" in running.command("dataset", "show", job["dataset"], "--samples")
    assert running.ask("dataset", "show", "named")["program"] is None
    with pytest.raises(FailedError, match="each record of dataset `named` is a sample"):
        running.command("dataset", "show", "named", "--samples")
    shards = running.ask("shard", "list", "--job", where["job"])["shards"]
    assert [shard["records"] for shard in shards] == [15, 10]
    with pytest.raises(sf.ShardfeedError, match="is of samples; open its files"):
        sf.Loader(sf.source(dataset=job["dataset"], features=FEATURES), batch_size=5, **where)
    World(tmp_path / "new", 8, [30, 20])
    for file in (tmp_path / "new").iterdir():
        file.replace(tmp_path / "data" / file.name)
    changed = sf.source(dataset="named", features=FEATURES).filter("id % 5 == 0")
    with pytest.raises(sf.ShardChangedError, match="is not the file that was scanned"):
        sf.Loader(changed, batch_size=5, **where)


def test_another_threshold_reads_nothing_in_the_worker_that_counted(
    running: Cluster, where: dict[str, Any], tmp_path: Path
) -> None:
    world = World(tmp_path / "data", 12, [900, 900], rows=60)
    size = sum(file.stat().st_size for file in world.folder.iterdir())
    worker = running.workers[0]

    def samples(source: sf.Source) -> int:
        with sf.Loader(source, batch_size=4, **where | {"job": f"threshold-{next(NUMBERS)}"}) as loader:
            return loader.samples

    def read() -> int:
        return int((Path("/proc") / str(worker.pid) / "io").read_text().split()[1])

    rows = world.source().unbatch("label", "score")
    assert samples(world.source().filter("id % 3 != 1")) > 0
    assert samples(rows.filter("label > 4")) > 0
    before = read()
    expected = [world.source().filter("id % 3 == 1"), rows.filter("label <= 3"), rows.filter("label % 2 == 0")]
    found = [samples(source) for source in expected]
    assert read() - before < size // 2
    assert found == [source.count() for source in expected]


def test_workers_count_together_and_one_that_is_killed_is_replaced(
    running: Cluster, where: dict[str, Any], tmp_path: Path
) -> None:
    world = World(tmp_path / "data", 5, [3000])
    for number in range(1, 256):
        shutil.copy(world.folder / "part-00.tfrecord", world.folder / f"part-{number:02}.tfrecord")
    killed = 0
    for number in range(9):
        source = world.source().filter(f"shard_path != 'x{number}'").unbatch("label", "score").filter("label > 1")
        other = running.worker(next(NUMBERS))
        other.env = running.env | {"SHARDFEED_CACHE_DIR": str(tmp_path / f"other-{number}")}
        other.start()
        of = where | {"job": f"{where['job']}-{number}"}
        with ThreadPoolExecutor(1) as pool:
            opened = pool.submit(sf.Loader, source, batch_size=64, fallback=False, **of)
            # It has counted files that it has not reported, and holds a part.
            until(lambda: object_log.maps(tmp_path / f"other-{number}") or opened.done(), "it counts")  # noqa: B023
            killed += not opened.done()
            other.kill()
            with opened.result() as loader:
                assert loader.samples == source.count()
        if killed:
            break
    # On a fast host the first worker may have counted everything before the other one began.
    assert killed


def test_bad_input_is_named(running: Cluster, where: dict[str, Any], tmp_path: Path) -> None:
    world = World(tmp_path / "data", 6, [30, 20])
    source = world.source()
    with pytest.raises(sf.ConfigError, match="leaves none of the 50 records in 2 files"):
        sf.Loader(source.filter("id < 0"), batch_size=4, **where)
    with pytest.raises(sf.ShardfeedError, match=r"part-0\d.tfrecord: record \d+ has \d+ tokens, more than length=8; pass long="):
        sf.Loader(source.pack("tokens", length=8, long="error"), batch_size=4, **where)
    broken = tmp_path / "data" / "part-01.tfrecord"
    offset = record_offsets(broken)[7]
    flip(broken, offset + 20)
    # Values that were measured before need no file, so this filter needs another one.
    passing = source.filter("id >= 0 and len(score) >= 0")
    with pytest.raises(sf.ShardfeedError, match=r"part-01.tfrecord") as caught:
        sf.Loader(passing, batch_size=4, **where)
    assert "record 7" in str(caught.value), caught.value
    with sf.Loader(passing, batch_size=4, corrupt="skip-record", tail="pad", **where) as loader:
        assert loader.samples == 49
        assert sum(int(batch.valid.sum()) for batch in loader) == 49
        assert [(skipped.ordinal, skipped.file.endswith("part-01.tfrecord")) for skipped in loader.skipped] == [(7, True)]
