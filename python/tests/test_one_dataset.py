"""Datasets of a cluster are identified by content: the same files are one dataset under any
name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from conftest import make_dataset

import shardfeed as sf
from shardfeed.testing import Cluster

COUNTS = [30, 25, 9]


def datasets(cluster: Cluster) -> list[dict[str, object]]:
    found: list[dict[str, object]] = cluster.ask("dataset", "list", "--all")["datasets"]
    return found


def test_the_same_files_by_glob_list_and_other_spellings_are_one_dataset(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", COUNTS)
    files = sorted(str(file) for file in dataset.folder.glob("*.tfrecord"))
    (tmp_path / "files.txt").write_text("\n".join(files))
    (dataset.folder / "sub").mkdir()
    spellings = [
        dataset.pattern,
        files,
        files[::-1],
        str(dataset.folder / "train-??.tfrecord"),
        [str(dataset.folder / "train-00*"), str(dataset.folder / "train-0[12].tfrecord")],
        f"{dataset.folder}/sub/../train-*.tfrecord",
        f"{dataset.folder}//./train-*.tfrecord",
        f"@{tmp_path / 'files.txt'}",
        f"file://{dataset.pattern}",
    ]
    with Cluster(tmp_path / "cluster") as cluster:
        for number, spelling in enumerate(spellings):
            options = {"coordinator": cluster.address, "worker": str(cluster.socket()), "job": "one", "run": f"r{number}"}
            with sf.Loader(spelling, {"id": sf.FixedLenFeature((), "int64")}, batch_size=4, **options) as found:
                assert len(next(iter(found))["id"]) == 4, spelling
        known = datasets(cluster)
        assert len(known) == 1, known
        assert known[0]["shard_count"] == len(COUNTS)
        assert known[0]["records"] == sum(COUNTS)


def test_a_source_and_its_files_are_one_dataset(tmp_path: Path) -> None:
    numbers = np.arange(64, dtype=np.int64)
    source = sf.from_arrays({"id": numbers}, tmp_path / "data")
    with Cluster(tmp_path / "cluster") as cluster:
        socket = str(cluster.socket())
        for what in (source, sf.open_source(tmp_path / "data"), str(tmp_path / "data" / "*.tfrecord")):
            features = {"id": sf.FixedLenFeature((), "int64")} if isinstance(what, str) else None
            with sf.Loader(what, features, batch_size=4, coordinator=cluster.address, worker=socket) as found:
                assert len(next(iter(found))["id"]) == 4
        assert len(datasets(cluster)) == 1


def test_a_list_of_thousands_of_files_with_long_names_is_served(tmp_path: Path) -> None:
    """More patterns than a dataset may have, and more bytes than a frame of the socket."""
    folder = tmp_path / ("long-" * 40) / ("name-" * 40)
    make_dataset(folder, [1])
    first, count = folder / "train-00.tfrecord", 12_000
    files = [str(first)]
    for number in range(1, count):
        files.append(str(folder / f"copy-{number:06}.tfrecord"))
        Path(files[-1]).write_bytes(first.read_bytes())
    assert sum(map(len, files)) > 4 << 20
    with Cluster(tmp_path / "cluster") as cluster:
        options = {"coordinator": cluster.address, "worker": str(cluster.socket()), "fallback": False}
        with sf.Loader(files, {"id": sf.FixedLenFeature((), "int64")}, batch_size=4, **options) as found:
            assert len(next(iter(found))["id"]) == 4
            assert len(found) == count // 4
        assert [known["shard_count"] for known in datasets(cluster)] == [count]


