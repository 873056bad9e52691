"""Lookups in the loader: hits, misses, and tables that change while in use."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster import Cluster

import shardfeed as sf
from shardfeed import operators as op

RECORDS = 600
FEATURES: dict[str, Any] = {
    "id": sf.FixedLenFeature((), "int64"),
    "name": sf.FixedLenFeature((), "string"),
    "near": sf.FixedLenFeature((3,), "int64"),
}


def name(number: int) -> bytes:
    return f"n{number:05}.jpg".encode()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "x.tfrecord"
    with sf.TFRecordWriter(path) as writer:
        for number in range(RECORDS):
            near = [number, (number + 1) % RECORDS, (number * 7) % RECORDS]
            writer.write({"id": number * 1000 - 5, "name": name(number), "near": near})
    return str(path)


def arrays(seed: int = 0, count: int = RECORDS) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "score": rng.normal(size=count).astype(np.float32),
        "embedding": rng.normal(size=(count, 2, 40)),
        "class": rng.integers(0, 255, count, dtype=np.uint8),
    }


def write(folder: Path, seed: int = 0, file_name: str = "ids.sft") -> tuple[str, dict[str, Any]]:
    columns = arrays(seed)
    path = str(folder / file_name)
    sf.write_table(path, np.arange(RECORDS) * 1000 - 5, columns)
    return path, columns


def load(file: str, *operators: op.Operator, **options: Any) -> sf.Loader:
    options = {"batch_size": 50, "seed": 3} | options
    return sf.Loader(file, FEATURES, operators=operators, **options)


def test_columns_come_by_key(file: str, tmp_path: Path) -> None:
    path, columns = write(tmp_path)
    weights = np.memmap(tmp_path / "weights", np.float16, "w+", shape=(RECORDS,))
    weights[:] = np.arange(RECORDS) / 4
    by_name = str(tmp_path / "names.sft")
    sf.write_table(by_name, [name(number) for number in range(RECORDS)], {"weight": weights})
    near = str(tmp_path / "near.sft")
    sf.write_table(near, np.arange(RECORDS, dtype=np.int32), {"x": columns["embedding"][:, 0]})
    loader = load(
        file,
        op.lookup("id", path, "score"),
        op.lookup("id", sf.Table(path), "embedding"),
        op.lookup("id", path, "class", output="label"),
        op.lookup("name", Path(by_name)),
        op.lookup("near", near, output="neighbours"),
        op.normalize("embedding", 1, 2, dtype="float64", output="e"),
    )
    seen = []
    for batch in loader:
        rows = (batch["id"] + 5) // 1000
        seen += rows.tolist()
        assert np.array_equal(batch["score"], columns["score"][rows])
        assert np.array_equal(batch["embedding"], columns["embedding"][rows])
        assert np.array_equal(batch["e"], (columns["embedding"][rows] - 1) / 2)
        assert batch["label"].dtype == np.uint8 and np.array_equal(batch["label"], columns["class"][rows])
        assert np.array_equal(batch["weight"], weights[rows])
        assert np.array_equal(batch["neighbours"], columns["embedding"][batch["near"], 0])
    assert sorted(seen) == list(range(RECORDS))


def test_a_table_says_what_it_is(tmp_path: Path) -> None:
    path, _ = write(tmp_path)
    table = sf.Table(path)
    forms = {"score": ("float32", ()), "embedding": ("float64", (2, 40)), "class": ("uint8", ())}
    assert (len(table), table.key, table.columns) == (RECORDS, "int64", forms)
    order = np.random.default_rng(1).permutation(RECORDS)
    shuffled = {name: values[order] for name, values in arrays().items()}
    again = sf.write_table(tmp_path / "again.sft", (np.arange(RECORDS) * 1000 - 5)[order], shuffled)
    assert again == table.digest
    assert (tmp_path / "again.sft").read_bytes() == Path(path).read_bytes()
    big = np.arange(3).astype(">i4")
    sf.write_table(tmp_path / "big.sft", [b"a", b"b", b""], {"x": big})
    assert sf.Table(tmp_path / "big.sft").columns == {"x": ("int32", ())}


def test_a_state_goes_on_with_the_same_bits(file: str, tmp_path: Path) -> None:
    path, _ = write(tmp_path)
    operators = [op.lookup("id", path, "embedding")]
    whole = [batch["embedding"].tobytes() for batch in load(file, *operators)]
    first = load(file, *operators)
    begun = [next(it)["embedding"].tobytes() for it in [iter(first)] for _ in range(5)]
    state = first.state_dict()
    # The table's path is not part of the job.
    moved = tmp_path / "elsewhere" / "t.sft"
    moved.parent.mkdir()
    os.rename(path, moved)
    second = load(file, op.lookup("id", moved, "embedding"), resume=state)
    assert begun + [batch["embedding"].tobytes() for batch in second] == whole
    # Its content is.
    other, _ = write(tmp_path, seed=1)
    with pytest.raises(sf.StateError, match=r"operators\[0\] is embedding = lookup.*digest=.* in the state and .* here"):
        load(file, op.lookup("id", other, "embedding"), resume=state)


def test_keys_that_are_not_there(file: str, tmp_path: Path) -> None:
    path = str(tmp_path / "few.sft")
    keys = np.arange(0, RECORDS, 2) * 1000 - 5
    sf.write_table(path, keys, {"x": np.ones((len(keys), 2), np.int16)})
    batch = next(iter(load(file, op.lookup("id", path, missing=-1))))
    there = (batch["id"] + 5) // 1000 % 2 == 0
    assert np.array_equal(batch["x"], np.where(there[:, None], [1, 1], [-1, -1]))
    with pytest.raises(sf.FeatureError, match="few.sft has no key") as error:
        list(load(file, op.lookup("id", path), shuffle=False))
    assert (error.value.file, error.value.ordinal) == (file, 1)
    skip = {"corrupt": "skip-record", "corrupt_budget": 1.0, "shuffle": False}
    loader = load(file, op.lookup("id", path), **skip)
    valid = np.concatenate([batch.valid for batch in loader])
    assert valid.sum() == RECORDS // 2 and loader.stats()["skipped"] == RECORDS // 2


def test_a_damaged_table_is_an_error_under_every_policy(file: str, tmp_path: Path) -> None:
    path, _ = write(tmp_path)
    operators = [op.lookup("id", path, "score", missing=0)]
    content = bytearray(Path(path).read_bytes())
    content[-5000] ^= 1
    Path(path).write_bytes(content)
    for options in ({}, {"corrupt": "skip-record", "corrupt_budget": 1.0}):
        with pytest.raises(sf.DataError, match="ids.sft: damaged at offset") as error:
            list(load(file, *operators, **options))
        assert error.value.file == path and (error.value.offset or 0) > 4096
        assert not isinstance(error.value, sf.FeatureError)
    Path(path).write_bytes(content[:6000])
    with pytest.raises(sf.DataError, match="cut off"):
        load(file, *operators)
    os.remove(path)
    with pytest.raises(sf.DatasetNotFoundError, match="cannot open the table"):
        load(file, *operators)


def test_a_table_that_is_replaced_or_cut_off_while_it_is_read(file: str, tmp_path: Path) -> None:
    path, columns = write(tmp_path)
    operators = [op.lookup("id", path, "embedding")]
    batches = iter(load(file, *operators, prefetch=1))
    read = [next(batches)]
    # Another table takes its name: open loaders continue with the first one.
    write(tmp_path, seed=1)
    for batch in [*read, *batches]:
        assert np.array_equal(batch["embedding"], columns["embedding"][(batch["id"] + 5) // 1000])
    # A new loader would read other rows.
    with pytest.raises(sf.ShardChangedError, match="but the job was declared with"):
        load(file, *operators)
    # Truncated in use: an error, not a crash of the process.
    path = str(tmp_path / "large.sft")
    sf.write_table(path, np.arange(RECORDS) * 1000 - 5, {"x": np.zeros((RECORDS, 20_000), np.float32)})
    batches = iter(load(file, op.lookup("id", path), prefetch=1, batch_size=10))
    next(batches)
    os.truncate(path, 1 << 20)
    with pytest.raises(sf.DataError, match="damaged at offset .* the file ends before it"):
        list(batches)


def test_what_makes_no_table(tmp_path: Path) -> None:
    def refused(keys: Any, columns: Any) -> str:
        with pytest.raises(sf.ConfigError) as error:
            sf.write_table(tmp_path / "t.sft", keys, columns)
        return str(error.value)

    one = {"x": np.zeros(2)}
    assert "rows 0 and 1 have the same key" in refused([7, 7], one)
    assert "integers of shape [n] or a list of bytes" in refused([0.5, 1.5], one)
    assert "integers of shape [n] or a list of bytes" in refused(["a", "b"], one)
    assert "no int64" in refused(np.array([1, 2**63], np.uint64), one)
    assert "one row for each of 3 keys" in refused([1, 2, 3], one)
    assert "dict of arrays" in refused([1, 2], {})
    assert "dtype" in refused([1, 2], {"x": np.array(["a", "b"])})
    assert "no bytes" in refused([1, 2], {"x": np.zeros((2, 0))})
    assert list(tmp_path.iterdir()) == []
    sf.write_table(tmp_path / "t.sft", [1, 2], {"x": np.zeros(2), "y": np.zeros(2)})
    with pytest.raises(sf.ConfigError, match="say which"):
        op.lookup("id", tmp_path / "t.sft")
    with pytest.raises(sf.ConfigError, match="has no column 'z', but x, y"):
        op.lookup("id", tmp_path / "t.sft", "z")
    (tmp_path / "text").write_text("no table")
    with pytest.raises(sf.DataError, match="is no table"):
        op.lookup("id", tmp_path / "text")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("lookup"), workers=2) as cluster:
        yield cluster
        for log in cluster.folder.glob("*.log"):
            assert "panicked" not in log.read_text(), log.read_text()[-4000:]


def test_workers_look_up_the_same(running: Cluster, file: str, tmp_path: Path) -> None:
    path, _ = write(tmp_path)
    operators = [op.lookup("id", path, "embedding"), op.lookup("id", path, "score")]
    whole = [batch["embedding"].tobytes() for batch in load(file, *operators, batch_size=10)]
    job = {"coordinator": running.address, "job": f"job-{uuid.uuid4().hex[:8]}", "run": "first"}
    loader = load(file, *operators, batch_size=10, worker=running.socket(), prefetch=2, **job)
    got = []
    for number, batch in enumerate(loader):
        got.append(batch["embedding"].tobytes())
        if number in (10, 30):
            running.workers[0].kill()
            running.workers[0].start()
    assert got == whole
    loader.close()
    # Another host has another table under the same name.
    other, _ = write(tmp_path, seed=1)
    assert other == path
    with pytest.raises(sf.JobIdentityError, match="operators"):
        load(
            file,
            op.lookup("id", path, "embedding"),
            op.lookup("id", path, "score"),
            batch_size=10,
            worker=running.socket(1),
            **job,
        )
