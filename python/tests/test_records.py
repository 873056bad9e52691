"""Record files, record by record."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_records_come_back(tmp_path: Path, compression: str | None) -> None:
    records = [b"", b"x", bytes(range(256)) * 5000, b"last"]
    with sf.TFRecordWriter(tmp_path / "x.tfrecord", compression=compression) as writer:
        for record in records:
            writer.write(record)
    assert list(sf.read_records(tmp_path / "x.tfrecord")) == records
    raw = (tmp_path / "x.tfrecord").read_bytes()
    if compression == "gzip":
        assert len(gzip.decompress(raw)) == sum(map(len, records)) + 64
    if compression == "zlib":
        assert len(zlib.decompress(raw)) == sum(map(len, records)) + 64


def test_concatenated_members_read_as_one(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord", compression="gzip") as writer:
        writer.write(b"one")
    member = (tmp_path / "x.tfrecord").read_bytes()
    (tmp_path / "x.tfrecord").write_bytes(member * 3)
    assert list(sf.read_records(tmp_path / "x.tfrecord")) == [b"one"] * 3


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "x.tfrecord").touch()
    assert list(sf.read_records(tmp_path / "x.tfrecord")) == []


def test_a_block_that_raises_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write(b"one")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_closed_writer(tmp_path: Path) -> None:
    writer = sf.TFRecordWriter(tmp_path / "x.tfrecord")
    writer.write(b"one")
    assert not (tmp_path / "x.tfrecord").exists()
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="is closed"):
        writer.write(b"two")
    assert list(sf.read_records(tmp_path / "x.tfrecord")) == [b"one"]


def test_errors_name_the_place(tmp_path: Path) -> None:
    with pytest.raises(sf.DatasetNotFoundError, match=r"none\.tfrecord"):
        sf.read_records(tmp_path / "none.tfrecord")
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for _ in range(3):
            writer.write(b"12345678")
    data = bytearray((tmp_path / "x.tfrecord").read_bytes())
    data[24 + 12] ^= 1
    (tmp_path / "x.tfrecord").write_bytes(data)
    got = []
    with pytest.raises(sf.CorruptRecordError) as caught:
        for record in sf.read_records(tmp_path / "x.tfrecord"):
            got.append(record)
    assert got == [b"12345678"]
    assert (caught.value.offset, caught.value.ordinal) == (24, 1)
    with pytest.raises(OSError, match="cannot create"):
        sf.TFRecordWriter(tmp_path / "no" / "x.tfrecord")


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (3, "int64", [3]),
        (True, "int64", [1]),
        (2.5, "float32", [2.5]),
        ("é", "string", ["é".encode()]),
        (b"\0", "string", [b"\0"]),
        ([1, -2], "int64", [1, -2]),
        ([1, 2.5], "float32", [1, 2.5]),
        (["a", b"b"], "string", [b"a", b"b"]),
        (np.arange(4, dtype=np.uint8).reshape(2, 2), "int64", [0, 1, 2, 3]),
        (np.float64(0.1), "float32", [np.float32(0.1)]),
        (np.array(["x", "yy"]), "string", [b"x", b"yy"]),
        (np.zeros(0, np.float32), "float32", []),
        ([], "int64", []),
        (None, "int64", []),
    ],
)
def test_values_of_an_example(tmp_path: Path, value: Any, dtype: str, expected: list[Any]) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write({"v": value, "id": 1})
    features = {"v": sf.VarLenFeature(dtype), "id": sf.FixedLenFeature((), "int64")}
    batch = next(iter(sf.Loader(str(tmp_path / "x.tfrecord"), features, batch_size=1)))
    assert list(batch["v"][0]) == expected


@pytest.mark.parametrize("value", [2**63, 1j, object(), [b"a", 1], np.uint64(2**63)])
def test_values_that_no_example_holds(value: Any) -> None:
    with pytest.raises((sf.ConfigError, OverflowError), match=r"'v'|too large"):
        sf.encode_example({"v": value})
