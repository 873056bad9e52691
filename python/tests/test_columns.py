"""Columns that are no plain arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf


@pytest.fixture
def batch(tmp_path: Path) -> sf.Batch:
    rows: list[dict[str, Any]] = [
        {"n": [1, 2, 3], "f": [0.5], "s": [b"a", b"bc"], "pair": [b"x", b"yz"], "id": 0},
        {"n": [], "f": [1.5, 2.5], "s": [], "pair": [b"", b"w"], "id": 1},
        {"n": [-7], "f": [], "s": [b"d"], "pair": ["é", "v"], "id": 2, "opt": [9, 8]},
    ]
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for row in rows:
            writer.write(row)
    features = {
        "n": sf.VarLenFeature("int64"),
        "f": sf.VarLenFeature(np.float32),
        "s": sf.VarLenFeature("string"),
        "pair": sf.FixedLenFeature((2,), "string"),
        "id": sf.FixedLenFeature((), "int64"),
        "opt": sf.FixedLenFeature((2,), "int64", default_value=5),
        "name": sf.FixedLenFeature((), "string", default_value="none"),
    }
    path = str(tmp_path / "x.tfrecord")
    return next(iter(sf.Loader(path, features, batch_size=3, shuffle=False)))


def test_ragged_rows(batch: sf.Batch) -> None:
    column = batch["n"]
    assert [row.tolist() for row in column] == [[1, 2, 3], [], [-7]]
    assert column[-1].tolist() == [-7] and len(column[1:]) == 2
    assert column.row_splits.tolist() == [0, 3, 3, 4] and column.lengths().tolist() == [3, 0, 1]
    assert column.to_dense(-1).tolist() == [[1, 2, 3], [-1, -1, -1], [-7, -1, -1]]
    assert column.to_dense(length=4).shape == (3, 4)
    with pytest.raises(ValueError, match="3 values, more than length=2"):
        column.to_dense(length=2)
    with pytest.raises(IndexError):
        column[3]
    indices, values, shape = column.to_sparse()
    assert indices.tolist() == [[0, 0], [0, 1], [0, 2], [2, 0]]
    assert values.tolist() == [1, 2, 3, -7] and shape == (3, 3)
    assert batch["f"].values.dtype == np.float32
    assert batch["f"].to_dense().tolist() == [[0.5, 0], [1.5, 2.5], [0, 0]]


def test_strings(batch: sf.Batch) -> None:
    assert list(batch["s"]) == [[b"a", b"bc"], [], [b"d"]]
    pair = batch["pair"]
    assert pair.shape == (3, 2)
    assert pair[0] == [b"x", b"yz"] and pair[2] == ["é".encode(), b"v"]
    assert pair.to_numpy().tolist() == [[b"x", b"yz"], [b"", b"w"], ["é".encode(), b"v"]]
    assert bytes(pair.view(1)) == b"yz"
    assert batch["name"][:] == [b"none"] * 3


def test_defaults(batch: sf.Batch) -> None:
    assert batch["opt"].tolist() == [[5, 5], [5, 5], [9, 8]]


def test_a_batch_is_a_mapping(batch: sf.Batch) -> None:
    assert set(batch) == {"n", "f", "s", "pair", "id", "opt", "name"} and len(batch) == 7
    assert dict(batch)["id"] is batch["id"]
    assert "nothing" not in batch
    assert "rows=3" in repr(batch)
    with pytest.raises(KeyError):
        batch["nothing"]
