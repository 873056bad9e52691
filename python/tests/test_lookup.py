"""Lookups in the loader: hits, misses, and tables that change while in use."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf
from shardfeed.testing import Cluster

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


def load(file: str, *lookups: tuple[Any, ...], missing: Any = "error", **options: Any) -> sf.Loader:
    """Returns a loader of the file with lookups by these arguments."""
    source = sf.source(file, FEATURES)
    for arguments in lookups:
        source = source.lookup(*arguments, missing=missing)
    return read(source, **options)


def read(source: sf.Source, **options: Any) -> sf.Loader:
    return sf.Loader(source, **({"batch_size": 50, "seed": 3} | options))


def test_columns_come_by_key(file: str, tmp_path: Path) -> None:
    path, columns = write(tmp_path)
    weights = np.memmap(tmp_path / "weights", np.float16, "w+", shape=(RECORDS,))
    weights[:] = np.arange(RECORDS) / 4
    by_name = str(tmp_path / "names.sft")
    sf.write_table(by_name, [name(number) for number in range(RECORDS)], {"weight": weights})
    near = str(tmp_path / "near.sft")
    sf.write_table(near, np.arange(RECORDS, dtype=np.int32), {"x": columns["embedding"][:, 0]})
    loader = read(
        sf.source(file, FEATURES)
        .lookup("id", path, "score")
        .lookup("id", sf.Table(path), "embedding")
        .lookup("id", path, "class", output="label")
        .lookup("name", Path(by_name))
        .lookup("near", near, output="neighbours")
        .normalize("embedding", 1, 2, dtype="float64", output="e")
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


def test_strings_come_by_key(file: str, tmp_path: Path) -> None:
    texts = [f"größe {number}" * (number % 7) for number in range(RECORDS)]
    pairs = np.array([[b"a" * (number % 3), b"\0%d\0" % number] for number in range(RECORDS)], object)
    path = str(tmp_path / "t.sft")
    digest = sf.write_table(path, [name(number).decode() for number in range(RECORDS)], {"text": texts, "n": np.arange(RECORDS), "pair": pairs})
    assert sf.Table(path).columns == {"text": ("string", ()), "n": ("int64", ()), "pair": ("string", (2,))}
    # Keys of str, bytes and numpy arrays are the same.
    keys = np.array([name(number) for number in range(RECORDS)])
    assert keys.dtype.kind == "S" and sf.write_table(path, keys, {"text": texts, "n": np.arange(RECORDS), "pair": pairs}) == digest
    by_number = str(tmp_path / "n.sft")
    sf.write_table(by_number, np.arange(0, RECORDS, 2) * 1000 - 5, {"bits": [number.to_bytes(2, "little") for number in range(0, RECORDS, 2)]})
    near = str(tmp_path / "near.sft")
    sf.write_table(near, np.arange(RECORDS), {"word": [b"w%d" % number for number in range(RECORDS)]})
    source = (
        sf.source(file, FEATURES)
        .lookup("name", path, "text").lookup("name", path, "n").lookup("name", path, "pair").lookup("near", near)
        .lookup("id", by_number, missing="\0\0", output="even")
        .decode_raw("even", "uint16", (), output="value")
    )  # fmt: skip
    assert source.columns["pair"] == ("dense", "string", (2,)) and source.columns["word"] == ("dense", "string", (3,))
    seen = 0
    for batch in read(source):
        for place, number in enumerate(((batch["id"] + 5) // 1000).tolist()):
            assert batch["text"][place] == texts[number].encode() and batch["n"][place] == number
            assert batch["pair"][place] == pairs[number].tolist()
            assert batch["word"][place] == [b"w%d" % other for other in batch["near"][place]]
            assert batch["even"][place] == (number.to_bytes(2, "little") if number % 2 == 0 else b"\0\0")
            assert batch["value"][place] == (number if number % 2 == 0 else 0)
            seen += 1
    assert seen == RECORDS


def test_strings_that_are_not_there(file: str, tmp_path: Path) -> None:
    path = str(tmp_path / "t.sft")
    sf.write_table(path, np.arange(0, RECORDS, 2) * 1000 - 5, {"x": ["a"] * (RECORDS // 2), "n": np.zeros(RECORDS // 2)})
    source = sf.source(file, FEATURES)
    found = source.lookup("id", path, "x")
    with pytest.raises(sf.FeatureError, match=r"column `x`: .*t.sft has no key 995") as error:
        list(read(found, shuffle=False))
    assert (error.value.file, error.value.ordinal) == (file, 1)
    loader = read(found, shuffle=False, corrupt="skip-record", corrupt_budget=1.0)
    assert np.concatenate([batch.valid for batch in loader]).sum() == RECORDS // 2
    for call, said in [
        (lambda: source.lookup("id", path, "x", missing=0), "missing is a number, but the column has strings"),
        (lambda: source.lookup("id", path, "n", missing="none"), 'missing is "none", but the column has float64'),
        (lambda: source.lookup("id", path, "x", missing=b"\xff"), "missing has bytes that are not UTF-8"),
        (lambda: source.cast("id", "int32").lookup("id", path, "x"), "strings of a table are found by a column of the record, with a fixed shape"),
        (lambda: source.on_device().lookup("id", path, "x"), "call others before on_device()"),
    ]:  # fmt: skip
        with pytest.raises(sf.ConfigError) as refused:
            call()
        assert said in str(refused.value)
    os.remove(path)
    with pytest.raises(sf.DatasetNotFoundError, match=r"t\.sft: cannot open the table"):
        list(read(found))


def test_a_state_goes_on_with_the_same_bits(file: str, tmp_path: Path) -> None:
    path, _ = write(tmp_path)
    lookups = [("id", path, "embedding")]
    whole = [batch["embedding"].tobytes() for batch in load(file, *lookups)]
    first = load(file, *lookups)
    begun = [next(it)["embedding"].tobytes() for it in [iter(first)] for _ in range(5)]
    state = first.state_dict()
    # The table's path is not part of the job.
    moved = tmp_path / "elsewhere" / "t.sft"
    moved.parent.mkdir()
    os.rename(path, moved)
    second = load(file, ("id", moved, "embedding"), resume=state)
    assert begun + [batch["embedding"].tobytes() for batch in second] == whole
    # Its content is.
    other, _ = write(tmp_path, seed=1)
    with pytest.raises(sf.StateError, match=r"operators\[0\] is embedding = lookup.*digest=.* in the state and .* here"):
        load(file, ("id", other, "embedding"), resume=state)


def test_keys_that_are_not_there(file: str, tmp_path: Path) -> None:
    path = str(tmp_path / "few.sft")
    keys = np.arange(0, RECORDS, 2) * 1000 - 5
    sf.write_table(path, keys, {"x": np.ones((len(keys), 2), np.int16)})
    batch = next(iter(load(file, ("id", path), missing=-1)))
    there = (batch["id"] + 5) // 1000 % 2 == 0
    assert np.array_equal(batch["x"], np.where(there[:, None], [1, 1], [-1, -1]))
    with pytest.raises(sf.FeatureError, match="few.sft has no key") as error:
        list(load(file, ("id", path), shuffle=False))
    assert (error.value.file, error.value.ordinal) == (file, 1)
    skip = {"corrupt": "skip-record", "corrupt_budget": 1.0, "shuffle": False}
    loader = load(file, ("id", path), **skip)
    valid = np.concatenate([batch.valid for batch in loader])
    assert valid.sum() == RECORDS // 2 and loader.stats()["skipped"] == RECORDS // 2


def test_a_damaged_table_is_an_error_under_every_policy(file: str, tmp_path: Path) -> None:
    path, _ = write(tmp_path)
    source = sf.source(file, FEATURES).lookup("id", path, "score", missing=0)
    content = bytearray(Path(path).read_bytes())
    content[-5000] ^= 1
    Path(path).write_bytes(content)
    for options in ({}, {"corrupt": "skip-record", "corrupt_budget": 1.0}):
        with pytest.raises(sf.DataError, match="ids.sft: damaged at offset") as error:
            list(read(source, **options))
        assert error.value.file == path and (error.value.offset or 0) > 4096
        assert not isinstance(error.value, sf.FeatureError)
    Path(path).write_bytes(content[:6000])
    with pytest.raises(sf.DataError, match="cut off"):
        read(source)
    os.remove(path)
    with pytest.raises(sf.DatasetNotFoundError, match="cannot open the table"):
        read(source)


def test_a_table_that_is_replaced_or_cut_off_while_it_is_read(file: str, tmp_path: Path) -> None:
    path, columns = write(tmp_path)
    source = sf.source(file, FEATURES).lookup("id", path, "embedding")
    batches = iter(read(source, prefetch=1))
    begun = [next(batches)]
    # Another table takes its name: open loaders continue with the first one.
    write(tmp_path, seed=1)
    for batch in [*begun, *batches]:
        assert np.array_equal(batch["embedding"], columns["embedding"][(batch["id"] + 5) // 1000])
    # A new loader would read other rows.
    with pytest.raises(sf.ShardChangedError, match="but the job was declared with"):
        read(source)
    # Truncated in use: an error, not a crash of the process.
    path = str(tmp_path / "large.sft")
    sf.write_table(path, np.arange(RECORDS) * 1000 - 5, {"x": np.zeros((RECORDS, 20_000), np.float32)})
    batches = iter(load(file, ("id", path), prefetch=1, batch_size=10))
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
    assert "integers of shape [n], or bytes or str" in refused([0.5, 1.5], one)
    assert "integers of shape [n], or bytes or str" in refused(["a", 1], one)
    assert "integers of shape [n], or bytes or str" in refused("ab", one)
    assert "rows 0 and 1 have the same key" in refused(["a", b"a"], one)
    assert "no int64" in refused(np.array([1, 2**63], np.uint64), one)
    assert "one row for each of 3 keys" in refused([1, 2, 3], one)
    assert "dict of arrays" in refused([1, 2], {})
    assert "column 'x': dtype 'complex128' is none of" in refused([1, 2], {"x": np.zeros(2, complex)})
    assert "column 'x' is numbers of one type, or bytes and str, not 1" in refused([1, 2], {"x": ["a", 1]})
    assert "which have no bytes" in refused([1, 2], {"x": np.empty((2, 0), object)})
    assert "one row for each of 2 keys" in refused([1, 2], {"x": ["a"]})
    assert "no bytes" in refused([1, 2], {"x": np.zeros((2, 0))})
    assert "is no array" in refused([1, 2], {"x": [[1], [1, 2]]})
    assert "has a str without UTF-8" in refused(["\ud800"], {"x": [1]})
    assert "has a str without UTF-8" in refused([1], {"x": ["\ud800"]})
    assert list(tmp_path.iterdir()) == []
    sf.write_table(tmp_path / "t.sft", [1, 2], {"x": np.zeros(2), "y": np.zeros(2)})
    source = sf.source("none", FEATURES)
    with pytest.raises(sf.ConfigError, match=r"lookup\('id'\): .*say which"):
        source.lookup("id", tmp_path / "t.sft")
    with pytest.raises(sf.ConfigError, match="has no column 'z', but x, y"):
        source.lookup("id", tmp_path / "t.sft", "z")
    with pytest.raises(sf.ConfigError, match="the keys of .*t.sft are int64, but 'name' is string"):
        source.lookup("name", tmp_path / "t.sft", "x")
    (tmp_path / "text").write_text("no table")
    with pytest.raises(sf.DataError, match="is no table"):
        source.lookup("id", tmp_path / "text")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("lookup"), workers=2) as cluster:
        yield cluster


def test_workers_look_up_the_same(running: Cluster, file: str, tmp_path: Path) -> None:
    path, _ = write(tmp_path)
    lookups = [("id", path, "embedding"), ("id", path, "score")]
    whole = [batch["embedding"].tobytes() for batch in load(file, *lookups, batch_size=10)]
    job = {"coordinator": running.address, "job": f"job-{uuid.uuid4().hex[:8]}", "run": "first"}
    loader = load(file, *lookups, batch_size=10, worker=running.socket(), prefetch=2, **job)
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
        load(file, *lookups, batch_size=10, worker=running.socket(1), **job)
