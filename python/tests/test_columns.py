"""Columns that are not plain arrays."""

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
        "opt": sf.FixedLenFeature((2,), "int64", default_value=[5, 6]),
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
    assert batch["opt"].tolist() == [[5, 6], [5, 6], [9, 8]]


@pytest.mark.parametrize("dtype", ["int64", "float32", "string"])
def test_a_default_has_as_many_values_as_the_shape(tmp_path: Path, dtype: str) -> None:
    """As in TensorFlow 2.21: any nesting of that many values; without values the feature is
    required."""
    values: list[Any] = [b"a", b"b", b"c", b"d"] if dtype == "string" else [1, 2, 3, 4]
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write({"other": 1})
        writer.write({"other": 1, "x": values})
    path = str(tmp_path / "x.tfrecord")

    def load(shape: Any, default: Any) -> Any:
        return next(iter(sf.Loader(path, {"x": sf.FixedLenFeature(shape, dtype, default)}, batch_size=1, shuffle=False)))["x"]

    assert list(np.ravel(load((2, 2), values)[0])) == list(np.ravel(load((4,), [values[:2], values[2:]])[0])) == values
    assert load((1, 1), values[0])[0][0][0] == values[0]
    for shape, default in (((2,), values[0]), ((2,), values[:1]), ((2, 2), values[:2]), ((), []), ((0,), values[0])):
        count = 0 if default == [] else len(default) if isinstance(default, list) else 1
        with pytest.raises(sf.ConfigError, match=f"default_value has {count} values, and shape .* holds"):
            load(shape, default)
    with pytest.raises(sf.FeatureError, match="x"):
        load((0,), [])


def test_an_empty_shape_with_an_empty_default(tmp_path: Path) -> None:
    record = bytes.fromhex("0a090a070a017812021a00")  # a tf.train.Example whose feature x is an empty int64 list
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write(record)
    features = {"x": sf.FixedLenFeature((0,), "int64", default_value=[])}
    assert next(iter(sf.Loader(str(tmp_path / "x.tfrecord"), features, batch_size=1)))["x"].shape == (1, 0)


def test_a_batch_is_a_mapping(batch: sf.Batch) -> None:
    assert set(batch) == {"n", "f", "s", "pair", "id", "opt", "name"} and len(batch) == 7
    assert dict(batch)["id"] is batch["id"]
    assert "nothing" not in batch
    assert "rows=3" in repr(batch)
    for ask in (batch.__getitem__, batch.__delitem__, batch.lengths):
        with pytest.raises(KeyError, match="there is no column 'nothing'; the columns are 'f', 'id', 'n', 'name'"):
            ask("nothing")


def test_padded_ragged_and_sparse(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"n": [1, 2], "v": [1.0, 2.0, 3.0], "len": [1, 2], "i": [4, 0], "w": [b"a", b"b"]},
        {"n": [], "v": [], "len": [], "i": [], "w": []},
        {"n": [5, 6, 7, 8], "v": [4.0], "len": [0, 1], "i": [9], "w": [b"c"]},
    ]
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for row in rows:
            writer.write(row)
    ragged = sf.RaggedFeature
    features: dict[str, Any] = {
        "n": sf.FixedLenSequenceFeature((2,), "int64", allow_missing=True, default_value=-1),
        "w": sf.FixedLenSequenceFeature((), "string", allow_missing=True),
        "parted": ragged("float32", value_key="v", partitions=[ragged.RowLengths("len")]),
        "words": ragged("string", value_key="w"),
        "at": sf.SparseFeature("i", "w", "string", 10),
    }
    path = str(tmp_path / "x.tfrecord")
    batch = next(iter(sf.Loader(path, features, batch_size=3, shuffle=False)))
    assert batch["n"].tolist() == [
        [[1, 2], [-1, -1]],
        [[-1, -1], [-1, -1]],
        [[5, 6], [7, 8]],
    ]
    assert batch.lengths("n").tolist() == [1, 0, 2]
    assert batch["w"].shape == (3, 2) and batch["w"][:] == [[b"a", b"b"], [b"", b""], [b"c", b""]]
    parted = batch["parted"]
    assert parted.tolist() == [[[1.0], [2.0, 3.0]], [], [[], [4.0]]]
    assert batch.lengths("parted").tolist() == [2, 0, 2]
    assert [split.tolist() for split in parted.nested_row_splits] == [[0, 2, 2, 4], [0, 1, 3, 3, 4]]
    assert parted.to_dense(9).tolist() == [
        [[1.0, 9.0], [2.0, 3.0]],
        [[9.0, 9.0], [9.0, 9.0]],
        [[9.0, 9.0], [4.0, 9.0]],
    ]
    assert parted[2].to_dense().tolist() == [[0.0], [4.0]]
    assert batch["words"].tolist() == [[b"a", b"b"], [], [b"c"]]
    at = batch["at"]
    assert at.indices.tolist() == [[0, 0], [0, 4], [2, 9]] and at.shape == (3, 10)
    assert at.values[:] == [b"b", b"a", b"c"]
    assert at.to_dense(b"")[0].tolist() == [b"b", b"", b"", b"", b"a", b"", b"", b"", b"", b""]
    with pytest.raises(ValueError, match="'at' is sparse"):
        batch.lengths("at")


def test_sequence_examples(tmp_path: Path) -> None:
    ints = np.array
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for count in range(3):
            lists: dict[str, Any] = {
                "frame": [[step, step + 0.5] for step in range(count)],
                "tokens": [ints(range(step), np.int64) for step in range(count)],
                "names": [[b"a"] * step + [b"z"] for step in range(count)],
            }
            writer.write(sf.encode_sequence_example({"label": count}, lists))
    loader = sf.Loader(
        str(tmp_path / "x.tfrecord"),
        {"label": sf.FixedLenFeature((), "int64")},
        sequence_features={
            "frame": sf.FixedLenSequenceFeature((2,), "float32", allow_missing=True),
            "tokens": sf.VarLenFeature("int64"),
            "names": sf.RaggedFeature("string"),
        },
        batch_size=3,
        shuffle=False,
    )
    batch = next(iter(loader))
    assert batch["label"].tolist() == [0, 1, 2]
    assert batch["frame"].shape == (3, 2, 2) and batch.lengths("frame").tolist() == [0, 1, 2]
    assert batch["frame"][2].tolist() == [[0.0, 0.5], [1.0, 1.5]]
    assert batch["tokens"].tolist() == [[], [[]], [[], [0]]]
    assert batch["names"].tolist() == [[], [[b"z"]], [[b"z"], [b"a", b"z"]]]


#: bfloat16 needs a package: tests/frameworks/test_tf_output.py.
DTYPES = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "float32", "float64")


def test_what_columns_consist_of_begins_at_multiples_of_256_bytes(tmp_path: Path) -> None:
    """For every kind and type, after odd lengths, and in every batch."""
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for row in range(9):
            n = row % 3 + 1
            writer.write({"x": [float(row)] * 3, "s": "s" * row, "v": list(range(n)), "w": ["w"] * n, "len": [n],
                          "i": [row], "f": [0.5]})  # fmt: skip
    features: dict[str, Any] = {
        "x": sf.FixedLenFeature((3,), "float32"),
        "s": sf.FixedLenFeature((), "string"),
        "v": sf.VarLenFeature("int64"),
        "w": sf.VarLenFeature("string"),
        "parted": sf.RaggedFeature("int64", "v", [sf.RaggedFeature.RowLengths("len")]),
        "padded": sf.FixedLenSequenceFeature((), "int64", True, default_value=-1),
        "at": sf.SparseFeature("i", "f", "float32", 10),
    }
    source = sf.source(tmp_path / "x.tfrecord", features)
    for dtype in DTYPES:
        source = source.cast("x", dtype, output=dtype)
    with sf.Loader(source, batch_size=3, shuffle=False, provenance=True) as each:
        for batch in each:
            parts = {name: batch[name] for name in ("x", "padded", *DTYPES)}
            assert all(parts[name].dtype == name for name in DTYPES)
            for name in ("v", "w", "parted"):
                parts |= {f"{name} splits {at}": splits for at, splits in enumerate(batch[name].nested_row_splits)}
                parts[f"{name} values"] = batch[name].values
            for name in ("s", "w"):
                parts |= {f"{name} values": batch[name].values, f"{name} offsets": batch[name].offsets}
            parts |= {"at indices": batch["at"].indices, "at values": batch["at"].values, "valid": batch.valid}
            shards, ordinals = batch.provenance or (None, None)
            parts |= {"shards": shards, "ordinals": ordinals, "lengths of padded": batch.lengths("padded")}
            off = {name: part.ctypes.data % 256 for name, part in parts.items() if part.size}
            assert off == dict.fromkeys(off, 0) and len(off) > len(DTYPES) + 12


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write({"v": [1.0, 2.0], "len": [1, 2], "i": [1, 10]})
    ragged = sf.RaggedFeature

    def error(**features: Any) -> str:
        with pytest.raises(sf.FeatureError) as raised:
            next(iter(sf.Loader(str(tmp_path / "x.tfrecord"), features, batch_size=1)))
        return str(raised.value)

    parted = ragged("float32", value_key="v", partitions=[ragged.RowLengths("len")])
    said = error(x=parted)
    assert "feature `x` cannot be parted by `len`: its rows hold 3 values, but there are 2" in said
    assert "x.tfrecord" in said
    said = error(x=sf.SparseFeature("i", "v", "float32", 10))
    assert "index `i` has a 10, but that dimension's size is 10" in said
    said = error(v=sf.FixedLenSequenceFeature((3,), "float32", allow_missing=True))
    assert "2 values, which is no multiple of the 3" in said
    with pytest.raises(sf.ConfigError, match="set allow_missing"):
        sf.Loader(
            str(tmp_path / "x.tfrecord"),
            {"v": sf.FixedLenSequenceFeature((), "float32")},
            batch_size=1,
        )
    with pytest.raises(sf.ConfigError, match="is no partition"):
        sf.Loader(
            str(tmp_path / "x.tfrecord"),
            {"v": sf.RaggedFeature("float32", partitions=["len"])},  # type: ignore[list-item]
            batch_size=1,
        )
    flags: dict[str, Any] = {
        "allow_missing": sf.FixedLenSequenceFeature((), "float32", allow_missing="no"),  # type: ignore[arg-type]
        "already_sorted": sf.SparseFeature("i", "v", "float32", 10, already_sorted="no"),  # type: ignore[arg-type]
    }
    for name, feature in flags.items():
        with pytest.raises(sf.ConfigError, match=f"feature 'v': {name} must be True or False, not 'no'"):
            sf.Loader(str(tmp_path / "x.tfrecord"), {"v": feature}, batch_size=1)


def test_defaults_that_are_no_number(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write({"n": [1]})
        writer.write({"n": [1], "seq": [1.0, 2.0]})
    odd = np.uint32(0x15AE43FD).view(np.float32)
    features: dict[str, Any] = {
        "nan": sf.FixedLenFeature((), "float32", default_value=float("nan")),
        "odd": sf.FixedLenFeature((), "float32", default_value=odd),
        "seq": sf.FixedLenSequenceFeature((), "float32", True, default_value=float("-inf")),
    }
    path = str(tmp_path / "x.tfrecord")
    loader = sf.Loader(path, features, batch_size=2, shuffle=False)
    batch = next(iter(loader))
    assert np.isnan(batch["nan"]).all() and batch["odd"].tolist() == [odd, odd]
    assert batch["seq"].tolist() == [[-np.inf, -np.inf], [1.0, 2.0]]
    other = features | {"nan": sf.FixedLenFeature((), "float32", default_value=float("inf"))}
    with pytest.raises(sf.StateError, match=r"feature `nan` is .* default \[NaN\] in the state and .* default \[inf\] here"):
        sf.Loader(path, other, batch_size=2, shuffle=False, resume=loader.state_dict())


def test_steps_without_values(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write(sf.encode_sequence_example({}, {"s": [[b"a"], [], None], "i": [[], [7]]}))
    lists = {"s": sf.VarLenFeature("string"), "i": sf.VarLenFeature("int64")}
    path = str(tmp_path / "x.tfrecord")
    batch = next(iter(sf.Loader(path, sequence_features=lists, batch_size=1)))
    assert batch["s"].tolist() == [[[b"a"], [], []]] and batch["i"].tolist() == [[[], [7]]]


def test_row_numbers_ask_for_no_gigabytes(tmp_path: Path) -> None:
    far = np.array([16_000], np.int64)
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        lists = {"v": [np.array([1])] * 100, "ids": [far] * 100}
        writer.write(sf.encode_sequence_example({}, lists))
    ragged = sf.RaggedFeature
    parted = {"r": ragged("int64", "v", [ragged.ValueRowIds("ids")])}
    with pytest.raises(sf.FeatureError, match="at most 16384 rows of a record may be left empty"):
        next(iter(sf.Loader(str(tmp_path / "x.tfrecord"), sequence_features=parted, batch_size=1)))
