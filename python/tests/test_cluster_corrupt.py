"""Corrupt records in a cluster: the coordinator's counts and lists, while workers are killed."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset, loader, make_dataset
from test_bad_input import flip, record_offsets
from test_corrupt import BAD, SKIP, damage, recount, rows

import shardfeed as sf
from shardfeed.testing import BINARY, Cluster, FailedError, until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("corrupt")) as cluster:
        yield cluster


@pytest.fixture
def where(running: Cluster) -> dict[str, Any]:
    return running.loader_options()


def epoch(running: Cluster, job: str, number: int, **expected: int) -> dict[str, Any]:
    """Returns the output of `epoch show`, once it has these values."""

    def look() -> dict[str, Any] | None:
        found = running.ask("epoch", "show", "--job", job, "--epoch", str(number))
        return found if all(found[name] == value for name, value in expected.items()) else None

    return until(look, f"{expected} of epoch {number}")


@pytest.mark.parametrize("kills", [0, 3])
def test_the_coordinator_and_the_ledgers_count_the_same(
    running: Cluster, where: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    dataset = make_dataset(tmp_path / "data", [13, 0, 40, 7, 21, 1, 30, 18])
    damage(dataset)
    total = sum(dataset.counts)
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    options = where | SKIP | {"batch_size": 4, "world_size": 2, "prefetch": 2}
    ranks = [loader(dataset, rank=rank, **options) for rank in range(2)]
    for number in range(2):
        each = [iter(rank) for rank in ranks]
        for step in range(len(ranks[0])):
            for rank in each:
                next(rank)
            if number == 0 and step % 4 == 3 and step // 4 < kills:
                running.workers[0].kill()
                running.workers[0].start()
        assert [next(rank, None) for rank in each] == [None, None]
        found = epoch(running, where["job"], number, state="sealed", skipped=len(BAD))
        assert (found["total"], found["delivered"]) == (total, total - len(BAD))
        assert (found["dropped"], found["lost"], found["duplicated"]) == (0, 0, 0)
    listed = {(one["path"], one["ordinal"], one["offset"]) for one in found["skipped_records"]}
    offsets = {shard: record_offsets(dataset.file(shard)) for shard, _ in BAD}
    assert listed == {(dataset.file(s).name, o, offsets[s][o]) for s, o in BAD}
    assert all("do not match" in one["reason"] for one in found["skipped_records"])
    for rank in ranks:
        rank.close()
    counted = recount(tmp_path / "ledger", dataset.folder, 2, corrupt="skip-record")
    assert (counted.skipped, counted.lost, counted.duplicated) == (2 * len(BAD), 0, 0)
    assert counted.problems == []


def test_what_was_skipped_is_counted_where_it_was_consumed(
    running: Cluster, where: dict[str, Any], tmp_path: Path
) -> None:
    dataset = make_dataset(tmp_path / "data", [40, 40])
    damage(dataset, [(0, 3), (0, 37)])
    # In file order, record 3 comes in the first steps, and record 37 in later ones.
    with loader(dataset, batch_size=8, shuffle=False, **where, **SKIP | {"lanes": 1}) as each:
        batches = iter(each)
        first = rows(next(batches))
        assert [number for number, valid, _ in first if not valid] == [2]
        found = epoch(running, where["job"], 0, skipped=1)
        assert [one["ordinal"] for one in found["skipped_records"]] == [3]
        for _ in batches:
            pass
    epoch(running, where["job"], 0, skipped=2, delivered=78, lost=0)


@pytest.mark.parametrize("mode", ["deterministic", "dynamic"])
def test_more_than_are_listed_are_counted(running: Cluster, where: dict[str, Any], tmp_path: Path, mode: str) -> None:
    dataset = make_dataset(tmp_path / "data", [900, 900])
    bad = [(shard, ordinal) for shard in (0, 1) for ordinal in range(0, 900, 3)]
    more = [(shard, ordinal + 1) for shard, ordinal in bad]
    damage(dataset, bad + more)
    options = {"batch_size": 30, "shuffle": False, "corrupt": "skip-record", "corrupt_budget": 1.0, "mode": mode}
    with loader(dataset, tail="pad" if mode == "deterministic" else "uneven", **options, **where) as each:
        got = sum(int(batch.valid.sum()) for batch in each)
    assert got == 600
    found = epoch(running, where["job"], 0, skipped=1200, delivered=600, lost=0)
    assert len(found["skipped_records"]) == 1000


def test_a_dataset_is_registered_with_its_policy(running: Cluster, dataset: Dataset) -> None:
    flip(dataset.file(2), record_offsets(dataset.file(2))[17] + 1)
    damage(dataset, [(4, 3)])
    name = f"d-{uuid.uuid4().hex[:8]}"
    add = ("dataset", "add", name, dataset.pattern)
    with pytest.raises(FailedError, match="length does not match"):
        running.ask(*add)
    with pytest.raises(FailedError, match="corrupt"):
        running.ask(*add, "--corrupt", "skip-file")
    assert running.ask(*add[:2], name + "-r", add[3], "--corrupt", "skip-record")["records"] == 107
    assert running.ask(*add[:2], name + "-f", add[3], "--corrupt", "skip-file")["records"] == 69
    where = {"coordinator": running.address, "worker": running.socket(), "run": "first"}
    with sf.Loader(
        dataset=name + "-f", features={"id": sf.FixedLenFeature((), "int64")}, batch_size=4,
        tail="pad", job=name, corrupt="skip-file", **where,
    ) as each:  # fmt: skip
        got = [int(number) for batch in each for number in batch["id"][batch.valid]]
        assert [(Path(one.file).name, one.what) for one in each.skipped] == [
            ("train-02.tfrecord", "file"), ("train-04.tfrecord", "file"),
        ]  # fmt: skip
    assert sorted(got) == sorted(number for number in dataset.ids if number // 1000 not in (2, 4))


def test_a_list_of_whole_files_is_a_dataset_without_anything_to_skip(
    running: Cluster, where: dict[str, Any], dataset: Dataset, tmp_path: Path
) -> None:
    flip(dataset.file(2), record_offsets(dataset.file(2))[17] + 1)
    damage(dataset, [(4, 3)])
    out = tmp_path / "whole.txt"
    verify = [str(BINARY), "dataset", "verify", "--exclude", str(out), dataset.pattern]
    assert subprocess.run(verify, capture_output=True, timeout=60).returncode == 1
    whole = {number for number in dataset.ids if number // 1000 not in (2, 4)}
    name = f"d-{uuid.uuid4().hex[:8]}"
    added = running.ask("dataset", "add", name, f"@{out}")
    assert (added["records"], added["shard_count"]) == (len(whole), 6), added
    features = {"id": sf.FixedLenFeature((), "int64")}
    options: dict[str, Any] = {"features": features, "batch_size": 4, "tail": "pad"} | where
    # By its name, and by the list, which has the same content and is therefore the same job.
    for named in ({"dataset": name}, {"files": f"@{out}"}):
        with sf.Loader(**named, **options | {"run": uuid.uuid4().hex}) as each:
            got = [int(number) for batch in each for number in batch["id"][batch.valid]]
            assert each.skipped == [] and sorted(got) == sorted(whole)


def test_a_dynamic_job_skips_as_well(running: Cluster, where: dict[str, Any], dataset: Dataset) -> None:
    damage(dataset)
    bad = {shard * 1000 + ordinal for shard, ordinal in BAD}
    options = where | {"mode": "dynamic", "corrupt": "skip-record"}
    with loader(dataset, **options) as each:
        got = [row for batch in each for row in rows(batch)]
        assert each.stats()["skipped"] == len(BAD)
        assert sorted(number for number, valid, _ in got if valid) == sorted(dataset.ids - bad)
        assert not any(number in bad for number, _, _ in got)
        left = sum(dataset.counts) - len(BAD)
        epoch(running, where["job"], 0, skipped=len(BAD), delivered=left, lost=0)


def test_a_bench_skips_what_it_is_told_to_and_says_so(running: Cluster, dataset: Dataset) -> None:
    damage(dataset)
    name = f"d-{uuid.uuid4().hex[:8]}"
    assert running.ask("dataset", "add", name, dataset.pattern)["records"] == sum(dataset.counts)
    where = {"coordinator": running.address, "worker": running.socket(), "run": "first"}
    features = {"id": sf.FixedLenFeature((), "int64")}
    with sf.Loader(
        dataset=name, features=features, batch_size=4, shuffle=False, job=name, **SKIP, **where
    ) as each:
        assert len(list(each)) == len(each)
        bench = ("bench", name, "--batches", "60")
        # The loader's policy does not apply to other commands.
        command = [str(BINARY), *bench, "--coordinator", running.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "hint: " in done.stderr, done
        assert "bench --corrupt skip-record" in done.stderr and "do not match" in done.stderr
        report = running.ask(*bench, "--corrupt", "skip-record")
    assert (report["corrupt"], report["batches"]) == ("skip-record", 60)
    assert report["skipped"] >= len(BAD)
