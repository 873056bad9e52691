"""Mixtures in a cluster: the order of docs/ORDER.md, section 13, and what operators see of it."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_bad_input import flip, record_offsets
from test_cluster_samples import programs, rows_of
from test_cluster_samples import FEATURES as RECORD_FEATURES
from test_cluster_samples import World as RecordsWorld
from test_mixtures import FEATURES, NAMES, WEIGHTS, Ranks, Row, World, case_of, expected, shard_name

import shardfeed as sf
from shardfeed.testing import Cluster, FailedError, Killer, until

TTL = "session-ttl-ms = 1500\nheartbeat-ms = 300\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("mixtures"), config=TTL) as cluster:
        yield cluster


@pytest.fixture
def where(running: Cluster) -> dict[str, Any]:
    return running.loader_options()


@pytest.mark.parametrize("seed", range(8))
def test_ranks_deliver_what_the_oracle_says(
    running: Cluster, where: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Stopped anywhere, resumed at any world size, while the worker is killed again and again."""
    rng = random.Random(seed)
    world = World(tmp_path / "data")
    names = rng.sample(NAMES, rng.randint(1, 4))
    sizes = {name: [rng.randrange(25) for _ in range(rng.randint(1, 4))] + [rng.randint(1, 30)] for name in names}
    given = {name: (world.source(counts), rng.choice(WEIGHTS)) for name, counts in sizes.items()}
    length: Any = rng.choice([rng.randint(40, 200), "first_exhausted" if seed % 2 else 120])
    of: dict[str, tuple[Any, Sequence[int]]] = {name: (weight, sizes[name]) for name, (_, weight) in given.items()}
    stages, oracle_stages = [], [(0, length, of)]
    if seed % 2 == 0:
        # One source leaves, one joins, one grows, and the others have other weights.
        grown = [*sizes[names[0]], 7]
        changed: dict[str, Any] = {names[0]: (world.source(grown), 2), "new": (world.source([9, 11]), "0.5")}
        changed |= dict.fromkeys(names[2:], 1)
        stages = [sf.Stage(1, changed, 90)]
        counts = {names[0]: grown, "new": [9, 11], **{name: sizes[name] for name in names[2:]}}
        later = {name: (value[1] if isinstance(value, tuple) else value, counts[name]) for name, value in changed.items()}
        oracle_stages.append((1, 90, later))
    mixture = sf.mix(given, epoch=length, stages=stages)
    options: dict[str, Any] = {
        "seed": seed, "shuffle": seed != 5, "shuffle_window": rng.choice([1, 5, 40, 3000]), "interleave": rng.randint(1, 6),
        "block_length": rng.randint(1, 3), "tail": rng.choice(["drop", "pad"]), "lanes": 12, "restart": False,
    }  # fmt: skip
    case = case_of(oracle_stages, {**options, "batch_size": 12}, 1)
    whole = [[sum(step, []) for step in expected(case, epoch)] for epoch in range(2)]
    with Ranked(tmp_path / "one", monkeypatch, mixture, 1, batch_size=12, fallback=False, **options, **where) as ranks:
        assert [[sum(step, []) for step in ranks.steps()] for _ in range(2)] == whole
        assert ranks.loaders[0].stats()["source"] == "worker worker-0"
    found: list[list[list[Row]]] = [[], [], []]
    state = None
    where |= {"job": f"{where['job']}-killed"}
    with Killer(running.workers[0], seed):
        for part in itertools.count():
            size = rng.choice([1, 2, 3, 4, 6, 12])
            more: dict[str, Any] = {"resume": state, "memory_budget": "16MiB", "batch_size": 12 // size}
            more |= where | {"run": f"run-{part}"}
            with Ranked(tmp_path / f"part-{part}", monkeypatch, mixture, size, **more, **options) as ranks:
                epoch = ranks.loaders[0].epoch
                if epoch == 2:
                    break
                found[epoch] += [sum(step, []) for step in ranks.steps(rng.randint(1, 9))]
                state = ranks.state()
                assert len(json.dumps(state)) < 1024
    assert found[:2] == whole


class Ranked(Ranks):
    """`Ranks` that are made at the same time, as those of a job are, and closed at the end."""

    def __enter__(self) -> Ranked:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def batches(mixture: sf.Mixture, epochs: int, **of: Any) -> list[Any]:
    with sf.Loader(mixture, **of) as loader:
        return [(rows_of(batch), batch.source.tolist()) for _ in range(epochs) for batch in loader]


def parts_by_name(loader: sf.Loader, batch: sf.Batch) -> list[tuple[Any, ...]]:
    """Returns the parts of the records of a batch: row, source and shard, record, its row, first and count."""
    parts = batch.parts
    assert parts is not None
    columns = zip(parts.row, parts.shard, parts.record, parts.record_row, parts.first, parts.count, strict=True)
    return [
        (int(row), f"{loader.sources[batch.source[row]]}:{loader.shards[shard]}", *map(int, rest)) for row, shard, *rest in columns
    ]


@pytest.mark.parametrize("kind", ["filter", "rows of some", "packs", "balanced filter", "balanced packs"])
def test_sources_with_programs_give_the_batches_of_one_process(
    running: Cluster, where: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    rng = random.Random(kind)
    given: dict[str, tuple[sf.Source, Any]] = {}
    is_balanced, kind = "balanced" in kind, kind.removeprefix("balanced ")
    for number, name in enumerate(NAMES[:3]):
        made = programs(RecordsWorld(tmp_path / str(number), number, [40, 0, 25 + number], compression=rng.choice([None, "gzip"])).source())
        given[name] = (made[kind].filter("id % 7 > 0") if kind == "filter" and number else made[kind], number + 1)
    if kind == "filter":
        # Filters differ, and one source has none.
        given["all"] = (RecordsWorld(tmp_path / "all", 9, [30]).source(), "0.5")
    mixture = sf.mix(given, epoch=97)
    if is_balanced:
        mixture = mixture.balance("sum_squares" if kind == "packs" else "len(tokens)", window=18)
    order = {"seed": 3, "batch_size": 12, "restart": False, "shuffle_window": 20, "interleave": 3}
    alone = batches(mixture, 2, **order)
    assert alone
    assert alone == batches(mixture, 2, fallback=False, **order, **where)
    with sf.Loader(mixture, provenance=True, **order) as loader:
        named = [parts_by_name(loader, batch) for _ in range(2) for batch in loader]
    steps = len(named) // 2
    for at in [0, steps + 1]:
        epoch, step = divmod(at, steps)
        shown = running.ask("batch", "show", "--job", where["job"], "--epoch", str(epoch), "--step", str(step))["samples"]
        parts = [(row["row"], row["shard"], part) for row in shown for part in row["parts"]]
        assert [(row, shard, part["record"], part["record_row"], part["first"], part["count"]) for row, shard, part in parts] == named[at]
    with Killer(running.workers[0], len(kind)):
        assert alone == batches(mixture, 2, **order, **where | {"job": f"{where['job']}-killed"})
    # A process without a worker is one itself.
    here = {"coordinator": where["coordinator"], "job": f"{where['job']}-here", "worker": tmp_path / "none.sock", "timeout": 3}
    assert alone == batches(mixture, 2, **order, **where | here)


def filtered_and_plain(folder: Path, **of: Any) -> list[Any]:
    """Returns the parts of all batches of an epoch of a mixture with one filter."""
    plain = RecordsWorld(folder, 4, [40, 25]).source()
    mixture = sf.mix({"some": (plain.filter("id % 3 > 0"), 2), "all": (plain, 1)}, epoch=60)
    with sf.Loader(mixture, batch_size=12, seed=2, provenance=True, **of) as loader:
        return [parts_by_name(loader, batch) for batch in loader]


def test_a_trainer_without_memory_for_sample_maps_has_them_in_a_file(where: dict[str, Any], tmp_path: Path) -> None:
    """The trainer has the maps of its worker, and of the source without a filter a map without bytes."""
    alone = filtered_and_plain(tmp_path / "alone")
    code = (
        "import json, sys; from pathlib import Path; from test_cluster_mixtures import filtered_and_plain\n"
        "folder, where = sys.argv[1:]; print(json.dumps(filtered_and_plain(Path(folder), **json.loads(where))))"
    )
    environment = os.environ | {"SHARDFEED_SAMPLES_MEMORY": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    given = [str(tmp_path / "data"), json.dumps(where | {"fallback": False}, default=str)]
    done = subprocess.run([sys.executable, "-c", code, *given], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[list(part) for part in batch] for batch in alone] and alone


def test_operators_see_the_sources_of_a_mixture(running: Cluster, where: dict[str, Any], tmp_path: Path) -> None:
    world = World(tmp_path / "data")
    web, code = world.source([30, 20]), world.source([25])
    running.command("dataset", "add", "web-text", web.files[0], "--wait")
    mixture = sf.mix({"web": (sf.source(dataset="web-text", features=FEATURES), 3), "code": (code, 1)}, epoch=80)
    job = where["job"]
    options: dict[str, Any] = {"lanes": 4, "shuffle_window": 8, "restart": False}
    ranks = [sf.Loader(mixture, rank=rank, world_size=2, batch_size=4, **options, **where) for rank in range(2)]
    rows = [step for step in zip(*ranks, strict=True)]
    shown = running.ask("job", "show", job)
    assert shown["dataset"] == "" and [version["name"] for version in shown["mixture"]["versions"]] == ["web", "code"]
    assert shown["mixture"]["versions"][0]["dataset"] == "web-text"
    assert shown["mixture"]["stages"] == [{"first_epoch": 0, "versions": [1, 0], "counts": [20, 60]}]
    text = running.command("job", "show", job)
    assert "web" in text and "web-text" in text, text

    def sealed() -> dict[str, Any] | None:
        epoch = running.ask("epoch", "show", "--job", job, "--epoch", "0")
        return epoch if epoch["state"] == "sealed" else None

    epoch = until(sealed, "the epoch is sealed")
    assert (epoch["total"], epoch["delivered"], epoch["dropped"], epoch["lost"]) == (80, 80, 0, 0)
    assert epoch["sources"] == [
        {"name": "code", "total": 20, "delivered": 20, "dropped": 0, "rest_dropped": 0, "left_out": 0},
        {"name": "web", "total": 60, "delivered": 60, "dropped": 0, "rest_dropped": 0, "left_out": 0},
    ]
    text = running.command("epoch", "show", "--job", job, "--epoch", "0")
    assert "code" in text and "web" in text, text
    shards = running.ask("shard", "list", "--job", job, "--epoch", "0")["shards"]
    assert [(shard["path"], shard["records"]) for shard in shards] == [
        (f"code:{shard_name(0)}", 25), (f"web:{shard_name(0)}", 30), (f"web:{shard_name(1)}", 20),
    ]  # fmt: skip
    # The web samples are one epoch of that source and 10 of the next one.
    assert sum(shard["records_done"] for shard in shards) == 80
    batch = running.ask("batch", "show", "--job", job, "--epoch", "0", "--step", "3")
    values = [int(value) for each in rows[3] for value in each["id"]]
    named = [(row["shard"], row["ordinal"]) for row in batch["samples"]]
    assert named == [
        (f"{'code' if value // 10**6 else 'web'}:{shard_name(value // 1000 % 1000)}", value % 1000) for value in values
    ]
    history = running.ask("shard", "history", "--job", job, "--epoch", "0", "2")
    assert history["path"] == f"web:{shard_name(1)}"
    assert running.ask("rank", "list", "--job", job)["ranks"][0]["steps"] == 10
    taken = [[int(value) for batch in itertools.islice(loader, 3) for value in batch["id"]] for loader in ranks]

    def of_ranks() -> list[list[dict[str, Any]]] | None:
        shown = running.ask("rank", "list", "--job", job)["ranks"]
        return [rank["sources"] for rank in shown] if all(rank["step"] == 3 for rank in shown) else None

    delivered = [Counter(value // 10**6 for value in values) for values in taken]
    expected = [[{"name": "code", "delivered": of[1]}, {"name": "web", "delivered": of[0]}] for of in delivered]
    assert until(of_ranks, "the ranks' positions are known") == expected
    first = expected[0]
    text = running.command("rank", "list", "--job", job, "-o", "wide")
    assert f"code {first[0]['delivered']}, web {first[1]['delivered']}" in text, text
    lines = {
        f'shardfeed_job_source_samples{{job="{job}",source="{name}"}} {sum(of[at] for of in delivered)}'
        for at, name in enumerate(["web", "code"])
    }
    words = running.coordinator.ready.split()

    def metrics() -> set[str]:
        with urllib.request.urlopen(f"http://{words[words.index('http') + 1]}/metrics", timeout=10) as answer:
            return set(answer.read().decode().splitlines())

    until(lambda: lines <= metrics(), "the leader counts the sources", 60)
    with pytest.raises(FailedError, match=f"job `{job}` reads dataset `web-text`\nhint: remove the job first"):
        running.command("dataset", "remove", "web-text", "--yes")
    with pytest.raises(FailedError, match="reads a mixture, and a bench reads one dataset"):
        running.command("bench", job)
    for loader in ranks:
        loader.close()


def test_the_rest_of_a_replaced_source_is_shown(running: Cluster, where: dict[str, Any], tmp_path: Path) -> None:
    world = World(tmp_path / "data")
    given = {"a": (world.source([30]), 1), "b": (world.source([20]), 1)}
    mixture = sf.mix(given, epoch=40, stages=[sf.Stage(1, {"a": (world.source([25]), 1), "b": 1})])
    with sf.Loader(mixture, batch_size=8, restart=False, **where) as loader:
        for epoch, rests in enumerate([[0, 0], [10, 0], [0, 0]]):
            for _ in loader:
                pass
            shown = running.ask("epoch", "show", "--job", where["job"], "--epoch", str(epoch))
            assert [(one["total"], one["rest_dropped"]) for one in shown["sources"]] == list(zip([20, 20], rests))
    assert "REST DROPPED" in running.command("epoch", "show", "--job", where["job"], "--epoch", "1")


def test_a_corrupt_record_is_counted_as_often_as_it_was_skipped(
    running: Cluster, where: dict[str, Any], tmp_path: Path
) -> None:
    world = World(tmp_path / "data")
    given = {"a": (world.source([30]), 1), "b": (world.source([6, 9]), 1)}
    file = tmp_path / "data" / "version-1" / shard_name(1)
    flip(file, record_offsets(file)[4] + 12 + 6)
    mixture = sf.mix(given, epoch=80)
    options: dict[str, Any] = {"batch_size": 8, "lanes": 8, "corrupt": "skip-record", "restart": False}
    with sf.Loader(mixture, **options, **where) as loader:
        skipped = sum(int((~batch.valid).sum()) for batch in loader)
        # The 40 samples of b are two epochs of it, and ten samples of the next one.
        assert skipped in {2, 3}
        assert [(one.file, one.ordinal) for one in loader.skipped] == [(str(file), 4)]
        state = loader.state_dict()

    def sealed(number: int) -> dict[str, Any] | None:
        epoch = running.ask("epoch", "show", "--job", where["job"], "--epoch", str(number))
        return epoch if epoch["state"] == "sealed" and epoch["skipped"] else None

    epoch = until(lambda: sealed(0), "the epoch is sealed, and the record reported")
    assert (epoch["delivered"], epoch["skipped"], epoch["lost"]) == (80 - skipped, skipped, 0)
    assert [(one["path"], one["ordinal"]) for one in epoch["skipped_records"]] == [(f"b:{shard_name(1)}", 4)]
    # A source that joins has the first shards now. The same worker finds the record again, and says so.
    joined = sf.mix(given, epoch=80, stages=[sf.Stage(1, {"0": (world.source([40]), 1), "b": 1})])
    with sf.Loader(joined, resume=state, **options, **where | {"run": "r2"}) as loader:
        skipped = sum(int((~batch.valid).sum()) for batch in loader)
        assert skipped in {2, 3} and loader.epoch == 2

    epoch = until(lambda: sealed(1), "the epoch is sealed, and the record reported")
    assert (epoch["delivered"], epoch["skipped"], epoch["lost"]) == (80 - skipped, skipped, 0)
    assert [(one["path"], one["ordinal"]) for one in epoch["skipped_records"]] == [(f"b:{shard_name(1)}", 4)]


def test_all_ranks_have_the_same_stages(running: Cluster, where: dict[str, Any], tmp_path: Path) -> None:
    world = World(tmp_path / "data")
    a, b = world.source([40]), world.source([40])
    first = sf.mix({"a": (a, 1), "b": (b, 1)}, epoch=80)
    other = sf.mix({"a": (a, 1), "b": (b, 1)}, epoch=80, stages=[sf.Stage(1, {"a": 1})])
    options: dict[str, Any] = {"batch_size": 4, "world_size": 2, "restart": False, **where}
    with sf.Loader(first, rank=0, **options) as one:
        assert next(iter(one)) is not None
        two = sf.Loader(other, rank=1, **options)
        with pytest.raises(sf.ShardfeedError, match="mixture") as caught:
            next(iter(two))
        assert "rank 1" in str(caught.value)
        two.close()
        state = one.state_dict()
    # A stage that is not begun may be another one in the next run, and the coordinator's state knows those begun.
    again = options | {"run": "r2"}
    with sf.Loader(other, rank=0, resume=state, **again) as one, sf.Loader(other, rank=1, resume=state, **again) as two:
        together([one, two])
        assert one.epoch == 1
        together([one, two], 3)

    def reported() -> bool:
        generation = running.ask("job", "show", where["job"])["generation"]
        return (generation["cursor_epoch"], generation["cursor_step"]) == (1, 3)

    until(reported, "both ranks reported where they stopped")
    last = options | {"run": "r3"}
    with sf.Loader(other, rank=0, resume="latest", **last) as one, sf.Loader(other, rank=1, resume="latest", **last) as two:
        assert (one.epoch, one.step) == (1, 3)
        assert two.sources == ["a", "b"]
    changed = sf.mix({"a": (a, 1), "b": (b, 2)}, epoch=80)
    with pytest.raises(sf.StateError, match="mixture whose stages until epoch 1 have the digest"):
        sf.Loader(changed, rank=0, resume="latest", **options | {"run": "r4"})


def test_hosts_may_have_copies_with_other_modification_times(
    running: Cluster, where: dict[str, Any], tmp_path: Path
) -> None:
    world = World(tmp_path / "data")
    given = [world.source([40]), world.source([25, 15])]
    loaders = []
    for rank in range(2):
        folder = tmp_path / f"host-{rank}"
        shutil.copytree(tmp_path / "data", folder)
        names = [Path(source.files[0]).relative_to(tmp_path / "data") for source in given]
        copies = [sf.source(str(folder / name), FEATURES) for name in names]
        mixture = sf.mix({"a": (copies[0], 1), "b": (copies[1], 1)}, epoch=80)
        loaders.append(sf.Loader(mixture, rank=rank, world_size=2, batch_size=4, restart=False, **where))
    values = together(loaders)
    assert len(values) == 80 and set(Counter(values).values()) == {1}
    for loader in loaders:
        loader.close()


def test_a_process_that_takes_the_workers_place_reads_by_the_rules_of_the_datasets(
    running: Cluster, where: dict[str, Any], tmp_path: Path
) -> None:
    world = World(tmp_path / "data")
    a, b = world.source([30, 30]), world.source([40])
    torn = tmp_path / "data" / "version-0" / shard_name(1)
    torn.write_bytes(torn.read_bytes()[: record_offsets(torn)[20] + 5])
    running.command("dataset", "add", "torn", a.files[0], "--corrupt", "skip-file", "--wait")
    mixture = sf.mix({"a": (sf.source(dataset="torn", features=FEATURES), 1), "b": (b, 1)}, epoch=60)
    expected = batches(mixture, 1, batch_size=4, restart=False, **where)
    assert len(expected) == 15
    other = where | {"job": f"{where['job']}-killed"}
    with sf.Loader(mixture, batch_size=4, restart=False, prefetch=1, **other) as loader:
        found = []
        for batch in loader:
            found.append((rows_of(batch), batch.source.tolist()))
            if len(found) == 3:
                running.workers[0].kill()
        assert loader.stats()["source"] == "in process"
    running.workers[0].start()
    assert found == expected


def together(loaders: list[sf.Loader], steps: int | None = None) -> list[int]:
    """Reads the rest of an epoch, or some steps of it, on all ranks at once; returns the values."""

    def read(loader: sf.Loader) -> list[int]:
        values: list[int] = []
        for number, batch in enumerate(loader, 1):
            values += batch["id"].tolist()
            if number == steps:
                break
        return values

    with ThreadPoolExecutor(len(loaders)) as pool:
        return [value for values in pool.map(read, loaders) for value in values]


def test_a_live_reshard_and_the_death_of_the_worker_lose_nothing(
    running: Cluster, where: dict[str, Any], tmp_path: Path
) -> None:
    world = World(tmp_path / "data")
    sizes: Mapping[str, list[int]] = {"a": [50, 30], "b": [60], "c": [20]}
    given = {name: (world.source(counts), sum(counts)) for name, counts in sizes.items()}
    mixture = sf.mix(given, epoch=160)
    options: dict[str, Any] = {"batch_size": 2, "lanes": 8, "restart": False}
    loaders = [sf.Loader(mixture, rank=rank, world_size=4, **options, **where) for rank in range(4)]
    values = together(loaders, 5)
    running.workers[0].kill()
    values += together(loaders, 5)
    running.workers[0].start()
    step = loaders[0].step
    for loader in loaders[:2]:
        loader.reshard(step, 2)
    values += together(loaders[:2])
    # Weights in proportion to the sizes: the epoch is one pass over each source.
    assert len(values) == 160 and set(Counter(values).values()) == {1}
    for loader in loaders:
        loader.close()


def test_bad_input_is_named(running: Cluster, where: dict[str, Any], tmp_path: Path) -> None:
    world = World(tmp_path / "data")
    a, b = world.source([30]), world.source([0, 0])
    with pytest.raises(sf.ConfigError, match="source `b` has no samples in 2 shards"):
        sf.Loader(sf.mix({"a": (a, 1), "b": (b, 1)}, epoch=100), batch_size=4, **where)
    missing = sf.source(str(tmp_path / "none-*.tfrecord"), FEATURES)
    with pytest.raises(FileNotFoundError, match="none-"):
        sf.Loader(sf.mix({"a": (a, 1), "b": (missing, 1)}, epoch=100), batch_size=4, **where)
    with pytest.raises(sf.ConfigError, match="none of the 30 records"):
        sf.Loader(sf.mix({"a": (a.filter("id < 0"), 1)}, epoch=100), batch_size=4, **where)
    with pytest.raises(sf.ShardfeedError, match="there is no dataset `unknown`"):
        sf.Loader(sf.mix({"a": (sf.source(dataset="unknown", features=FEATURES), 1)}, epoch=100), batch_size=4, **where)


@pytest.mark.parametrize("kind", ["records", "filter", "packs"])
def test_a_stage_that_ended_needs_no_files(running: Cluster, where: dict[str, Any], tmp_path: Path, kind: str) -> None:
    """Neither through the worker, nor after its death, nor in a process without one."""
    made = {
        "records": lambda source: source,
        "filter": lambda source: source.filter("id % 5 != 0"),
        "packs": lambda source: source.pack("tokens", length=16),
    }[kind]
    folders = [tmp_path / name for name in ("old", "new", "b")]
    old, new, b = (made(RecordsWorld(folder, number, [30, 7]).source()) for number, folder in enumerate(folders))
    mixture = sf.mix({"a": (old, 1), "b": (b, 1)}, epoch=30, stages=[sf.Stage(2, {"a": (new, 1), "b": 1})])
    order = {"batch_size": 6, "seed": 3, "shuffle_window": 8, "restart": False}

    def rest(loader: sf.Loader) -> list[Any]:
        return [rows_of(batch) for epoch in loader.epochs(4) for batch in epoch]

    with sf.Loader(mixture, **order, **where) as loader:
        for _ in loader.epochs(2):
            list(loader)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = [rows_of(batch) for batch in batches] + rest(loader)
    # A start that fails keeps nothing.
    part = sorted(folders[0].iterdir())[0]
    away = part.rename(tmp_path / "away")
    with pytest.raises(sf.StateError, match="stage"):
        sf.Loader(mixture, resume=state, **order, **where)
    away.rename(part)
    shutil.rmtree(folders[0])
    with sf.Loader(mixture, resume=state, fallback=False, **order, **where) as loader:
        assert loader.stats()["source"] == "worker worker-0"
        assert rest(loader) == expected
        loader.set_epoch(1)
        with pytest.raises(sf.DatasetNotFoundError, match=r"source `a` of the mixture: .* in epoch 1; from epoch 2 on"):
            next(iter(loader))
    with sf.Loader(mixture, resume=state, **order, **where) as loader, Killer(running.workers[0], 3):
        assert rest(loader) == expected
    here = where | {"worker": tmp_path / "none.sock", "timeout": 3}
    with sf.Loader(mixture, resume=state, **order, **here) as loader:
        assert rest(loader) == expected
    # Before the stage ended, and without what earlier starts kept, the files are needed.
    with pytest.raises(sf.DatasetNotFoundError, match="source `a`"), sf.Loader(mixture, **order, **where | {"job": f"again-{kind}"}) as loader:
        next(iter(loader))
    with pytest.raises(sf.DatasetNotFoundError):
        sf.Loader(mixture, resume=state, cache_dir=tmp_path / "other", **order, **where)


#: A trainer of another user: arguments are its number, the folder of the data, epochs, state and options.
OF_ANOTHER_USER = """
import json, os, sys
import shardfeed as sf

user, folder, epochs, state, where = int(sys.argv[1]), sys.argv[2], *map(json.loads, sys.argv[3:])
os.setgroups([]); os.setgid(user); os.setuid(user)
features = {"id": sf.FixedLenFeature((), "int64")}
a, b = (sf.source(f"{folder}/{name}/*.tfrecord", features) for name in "ab")
mixture = sf.mix({"a": (a, 1), "b": (b, 1)}, epoch=30, stages=[sf.Stage(1, {"b": 1})])
try:
    with sf.Loader(mixture, batch_size=6, fallback=False, resume=state, cache_dir=f"{folder}/cache", **where) as loader:
        samples = [int(one) for epoch in loader.epochs(epochs) for batch in epoch for one in batch["id"]]
        print(json.dumps({"samples": samples, "state": loader.state_dict()}))
except sf.ShardfeedError as error:
    print(json.dumps({"error": type(error).__name__}))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_a_trainer_of_another_user_than_the_worker_needs_the_files_of_ended_stages() -> None:
    """Otherwise it could read paths and maps of any dataset that it names."""
    nobody = 65534
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in (folder, folder / "cache"):
            part.mkdir(exist_ok=True)
            os.chmod(part, 0o755)
        os.chown(folder / "cache", nobody, nobody)
        for number, source in enumerate("ab"):
            RecordsWorld(folder / source, number, [30, 7])
        with Cluster(folder / "cluster", workers=0) as cluster:
            worker = cluster.worker(0, "--socket-gid", str(nobody))
            worker.start()
            where = {"coordinator": cluster.address, "worker": str(cluster.socket()), "job": "theirs", "timeout": 5}

            def trains(user: int, epochs: int, state: Any) -> Any:
                arguments = [str(user), name, *map(json.dumps, (epochs, state, where))]
                command = [sys.executable, "-c", OF_ANOTHER_USER, *arguments]
                run = subprocess.run(command, capture_output=True, text=True, timeout=120)
                assert run.returncode == 0, run.stderr
                return json.loads(run.stdout)

            try:
                first = trains(nobody, 2, None)
                assert len(first["samples"]) == 60
                shutil.rmtree(folder / "a")
                assert trains(nobody, 4, first["state"]) == {"error": "DatasetNotFoundError"}
                assert len(trains(0, 4, first["state"])["samples"]) == 60
            finally:
                worker.kill()


@pytest.mark.parametrize("kind", ["records", "filter"])
def test_a_process_that_replaces_the_worker_needs_no_files_of_ended_stages(
    running: Cluster, where: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    made = [RecordsWorld(folder, number, [30, 7]).source() for number, folder in enumerate(folders)]
    a, b = (source.filter("id % 5 != 0") if kind == "filter" else source for source in made)
    mixture = sf.mix({"a": (a, 1), "b": (b, 1)}, epoch=30, stages=[sf.Stage(1, {"b": 1})])
    order = {"batch_size": 6, "seed": 3, "restart": False}
    expected = [rows for rows, _ in batches(mixture, 3, **order)]
    with sf.Loader(mixture, **order, **where) as loader:
        found = [rows_of(batch) for batch in loader]
        later = iter(loader)
        found.append(rows_of(next(later)))
        shutil.rmtree(folders[0])
        try:
            running.workers[0].kill()
            found += [rows_of(batch) for batch in later]
            found += [rows_of(batch) for batch in loader]
            assert "in process" in loader.stats()["source"]
        finally:
            running.workers[0].start()
    assert found == expected


@pytest.mark.parametrize("kind", ["records", "filter"])
def test_a_dataset_of_an_ended_stage_that_was_added_by_name_needs_no_files(
    running: Cluster, where: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    name, world = f"ended-{kind}", RecordsWorld(tmp_path / "a", 1, [30, 7])
    running.command("dataset", "add", name, world.pattern, "--wait")
    a = sf.source(dataset=name, features=RECORD_FEATURES)
    a, b = (a.filter("id % 5 != 0") if kind == "filter" else a), RecordsWorld(tmp_path / "b", 2, [25]).source()
    mixture = sf.mix({"a": (a, 1), "b": (b, 1)}, epoch=30, stages=[sf.Stage(1, {"b": 1})])
    order = {"batch_size": 6, "seed": 3, "restart": False}
    with sf.Loader(mixture, **order, **where) as loader:
        list(loader)
        later = iter(loader)
        next(later)
        state = loader.state_dict()
        expected = [rows_of(batch) for batch in later]
    shutil.rmtree(tmp_path / "a")
    with sf.Loader(mixture, resume=state, **order, **where) as loader:
        assert [rows_of(batch) for batch in loader] == expected
