"""`shardfeed worker start --index`: workers find in an index what other hosts found, and keep sample maps there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stores import Web
from test_bad_input import flip, record_offsets
from test_filter import World
from test_shared_index import PROGRAMS, made, objects, size_of

import shardfeed as sf
from shardfeed.testing import BINARY, Cluster, FailedError, Server

pytestmark = pytest.mark.embedded_only


class Indexed:
    """A cluster whose workers are hosts with caches of their own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.workers: list[Server] = []

    def worker(self, index: Path | str | None) -> dict[str, Any]:
        """Starts a worker; returns options of loaders on its host."""
        number = len(self.workers)
        worker = self.cluster.worker(number, *(["--index", str(index)] if index is not None else []))
        worker.env = self.cluster.env | {"SHARDFEED_CACHE_DIR": str(self.cluster.folder / f"cache-{number}")}
        self.workers.append(worker)
        worker.start()
        return self.cluster.loader_options(number) | {"fallback": False}

    def read(self) -> int:
        """Returns the bytes that the last worker read."""
        return int(next(line for line in Path(f"/proc/{self.workers[-1].pid}/io").read_text().splitlines() if line.startswith("rchar")).split()[1])

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[list[Indexed]]:
    """Two clusters without a worker."""
    with Cluster(tmp_path / "a", workers=0) as first, Cluster(tmp_path / "b", workers=0) as second:
        both = [Indexed(first), Indexed(second)]
        yield both
        for each in both:
            each.end()


def batches(source: sf.Source | sf.Mixture, **options: Any) -> list[list[Any]]:
    """Returns the records of an epoch."""
    with sf.Loader(source, batch_size=8, shuffle_window=64, provenance=True, **options) as each:
        return [[array.tolist() for array in (batch.parts.row, batch.parts.shard, batch.parts.record, batch.parts.record_row, batch.parts.first)] for batch in each]


@pytest.mark.parametrize("program", PROGRAMS)
def test_another_cluster_and_another_worker_read_no_file_before_their_first_batch(
    tmp_path: Path, clusters: list[Indexed], program: str
) -> None:
    world, index = World(tmp_path / "data", 3, [3000, 0, 4000, 3500]), tmp_path / "index"
    size, expected = size_of(world.folder), batches(made(world, program, None))
    source = made(world, program, None)
    first, second = clusters
    options = first.worker(index)
    assert batches(source, **options) == expected
    assert objects(index) and not list(index.rglob("*.tmp"))
    # A worker whose host has no cache, after the one that counted was lost.
    first.workers[0].kill()
    there = first.worker(index)
    with sf.Loader(source, batch_size=8, **there):
        assert first.read() < size / 4 + 2 * size_of(index)
    # A cluster that never saw the files; a source may name the index of the workers.
    there = second.worker(index)
    with sf.Loader(source.with_index(index), batch_size=8, **there):
        assert second.read() < size / 4 + 4 * size_of(index)
    assert batches(source.with_index(index), **there | {"job": "again"}) == expected


def test_a_worker_without_the_index_says_what_to_do(tmp_path: Path, clusters: list[Indexed]) -> None:
    world, index = World(tmp_path / "data", 4, [300, 200]), tmp_path / "index"
    source, cluster = made(world, "packs", None), clusters[0]
    options = cluster.worker(index)
    batches(source, **options)
    # The coordinators have no maps: samples are shown, not their records.
    show = [BINARY, "batch", "show", "--coordinator", cluster.cluster.address, "--job", options["job"], "--epoch", "0", "--step", "0"]
    shown = subprocess.run([*show, "-o", "json"], capture_output=True, text=True, check=True)
    assert "sample maps of dataset" in shown.stderr and "are in the index of the workers" in shown.stderr
    assert {row["parts"] for row in json.loads(shown.stdout)["samples"]} == {None}
    cluster.workers[0].kill()
    with pytest.raises(sf.ConfigError, match=r"part-00\S* is in the index of the worker that counted .*--index"):
        batches(source, **cluster.worker(None))
    (tmp_path / "other").mkdir()
    with pytest.raises(sf.DataError, match=r"other: has no sample map of .*part-00\S*, .*all workers need the same index"):
        batches(source, **cluster.worker(tmp_path / "other"))
    # A damaged object is named.
    maps = [path for path in objects(index) if path.relative_to(index).parts[0].startswith("samples")]
    whole = maps[0].read_bytes()
    maps[0].write_bytes(whole[:-1])
    with pytest.raises(sf.DataError, match=maps[0].name):
        batches(source, **cluster.worker(index))
    maps[0].write_bytes(whole)
    batches(source, **cluster.worker(index))


def test_a_source_names_the_index_of_the_workers(tmp_path: Path, clusters: list[Indexed]) -> None:
    world, index = World(tmp_path / "data", 5, [300, 200]), tmp_path / "index"
    options = clusters[0].worker(index)
    for named in ("elsewhere", "s3://bucket/index"):
        with pytest.raises(sf.ConfigError, match=r"the worker of this host has .*index.*--index"):
            batches(made(world, "filter", tmp_path / named if named == "elsewhere" else named), **options)
    two = {name: (made(world, "filter", tmp_path / name), 1) for name in ("one", "two")}
    with pytest.raises(sf.ConfigError, match="sources have different indexes"):
        batches(sf.mix(two, epoch=50), **options)
    one = {name: (made(world, "filter", spelled), 1) for name, spelled in (("one", f"{index}/"), ("two", os.path.relpath(index)))}
    alone = {name: (made(world, "filter", None), 1) for name in ("one", "two")}
    assert batches(sf.mix(one, epoch=50), **options | {"job": "mixed"}) == batches(sf.mix(alone, epoch=50))
    with pytest.raises(sf.ConfigError, match="the worker of this host has none"):
        batches(made(world, "filter", index), **clusters[1].worker(None))


@pytest.mark.parametrize("program", ["filter", "packs"])
def test_trainers_that_read_themselves_use_the_index_of_the_source(
    tmp_path: Path, clusters: list[Indexed], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    world, index = World(tmp_path / "data", 6, [3000, 2000]), tmp_path / "index"
    index.mkdir()
    expected = batches(made(world, program, None))
    for at, each in enumerate(clusters):
        options = {"coordinator": each.cluster.address, "job": "job", "run": "first", "cache_dir": tmp_path / f"host-{at}"}
        assert batches(made(world, program, index), **options) == expected
    # A worker that joins later finds the maps in the same index.
    there = clusters[1].worker(index)
    assert batches(made(world, program, None), **there) == expected


def test_maps_without_damaged_records_are_kept_by_the_coordinators(tmp_path: Path, clusters: list[Indexed]) -> None:
    """Only such maps are in the index: other parts of the same dataset are."""
    world, index = World(tmp_path / "data", 7, [300, 200]), tmp_path / "index"
    file = world.folder / "part-00.tfrecord"
    flip(file, record_offsets(file)[7] + 14)
    source, cluster = made(world, "filter", None), clusters[0]
    expected = batches(source, corrupt="skip-record")
    assert batches(source, corrupt="skip-record", **cluster.worker(index)) == expected
    cluster.workers[0].kill()
    assert batches(source, corrupt="skip-record", **cluster.worker(index)) == expected
    with pytest.raises(sf.CorruptRecordError):
        batches(source, **clusters[1].worker(index))


def test_an_index_that_cannot_be_written(tmp_path: Path, clusters: list[Indexed]) -> None:
    """It must have everything: other workers would not find what was counted."""
    world, index = World(tmp_path / "data", 8, [300, 200]), tmp_path / "index"
    index.mkdir()
    known = [program for program in PROGRAMS if program != "rows"]
    expected = {program: batches(made(world, program, index), cache_dir=tmp_path / "filled") for program in known}
    with Web(tmp_path) as server:
        options = clusters[0].worker(f"{server.endpoint}/index")
        for program in known:
            assert batches(made(world, program, None), **options | {"job": program}) == expected[program]
        with pytest.raises(sf.DataError, match="cannot write: .*405 Method Not Allowed; make the index writable .*`shardfeed dataset index`"):
            batches(made(world, "rows", None), **options | {"job": "rows"})
        # The coordinators have the records of a new file, which no other worker needs to find in the index.
        shutil.copy(world.folder / "part-00.tfrecord", world.folder / "part-02.tfrecord")
        assert sum(map(len, batches(made(world, "records", None), **options | {"job": "more"}))) > 0
    (tmp_path / "file").touch()
    worker = clusters[1].cluster.worker(9, "--index", str(tmp_path / "file"))
    with pytest.raises(FailedError, match="not a directory"):
        worker.start()


def test_a_cluster_that_knows_its_files_gets_an_index(tmp_path: Path, clusters: list[Indexed]) -> None:
    """Maps stay at the coordinators then, also for hosts that have none."""
    world, cluster = World(tmp_path / "data", 10, [300, 200]), clusters[0]
    expected = batches(made(world, "rows", None), **cluster.worker(None))
    for at in range(2):
        assert batches(made(world, "rows", None), **cluster.worker(tmp_path / f"new-{at}")) == expected


def test_the_index_of_a_cluster_serves_hosts_without_one(tmp_path: Path, clusters: list[Indexed]) -> None:
    world, index = World(tmp_path / "data", 9, [300, 200]), tmp_path / "index"
    expected = batches(made(world, "balance", None), **clusters[0].worker(index))
    before = {path: path.read_bytes() for path in objects(index)}
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    assert batches(made(world, "balance", index), cache_dir=tmp_path / "alone") == expected
    assert {path: path.read_bytes() for path in objects(index)} == before
