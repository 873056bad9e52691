"""output="tf": tensors over the slot's memory, and TensorFlow's ragged and sparse tensors."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import mixed
import numpy as np
import pytest
import tensorflow as tf

import shardfeed as sf
from shardfeed.testing import until


@pytest.fixture
def files(tmp_path: Path) -> str:
    return mixed.write(tmp_path / "data")


def pointer(tensor: tf.Tensor) -> int:
    """Returns the address of the values; an export by DLPack shares TensorFlow's memory."""
    return int(np.from_dlpack(Exported(tensor)).ctypes.data)


class Exported:
    def __init__(self, tensor: tf.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **_: object) -> object:
        return tf.experimental.dlpack.to_dlpack(self.tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_tensorflow_takes_a_buffer_by_dlpack_without_a_copy(files: str) -> None:
    batch = next(iter(mixed.loader(files)))
    tensor = tf.experimental.dlpack.from_dlpack(mixed.buffer(batch, "image").__dlpack__())
    assert pointer(tensor) == mixed.address(batch, "image")
    np.testing.assert_array_equal(tensor.numpy(), batch["image"].ravel())


def test_tensors_view_the_slot(files: str) -> None:
    for batch, plain in zip(mixed.loader(files, output="tf"), mixed.loader(files), strict=True):
        for name in ("id", "image", "padded"):
            tensor = batch[name]
            assert isinstance(tensor, tf.Tensor) and tensor.dtype.name == plain[name].dtype.name
            assert pointer(tensor) == mixed.address(batch, name)
            np.testing.assert_array_equal(tensor.numpy(), plain[name])
        assert batch.valid.dtype == tf.bool and batch.valid.numpy().tolist() == plain.valid.tolist()
        assert batch.lengths("list").numpy().tolist() == (batch["id"] % 4).numpy().tolist()


def test_a_slot_is_not_used_again_while_a_tensor_lives(files: str) -> None:
    each = mixed.loader(files, output="tf", prefetch=1)
    held = [tf.reshape(batch["image"], [-1]) for _ in range(3) for batch in each]
    expected = [np.array(tensor.numpy()) for tensor in held]
    assert mixed.slots_in_use(each) >= len(held) == 18
    for _ in range(5):
        for _batch in each:
            pass
    del _batch
    each.close()
    for tensor, then in zip(held, expected, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), then)


def test_dropped_tensors_give_their_slots_back(files: str) -> None:
    each = mixed.loader(files, output="tf", prefetch=1)
    held = [batch["image"] for _ in range(3) for batch in each]
    assert mixed.slots_in_use(each) >= len(held)
    del held
    gc.collect()
    until(lambda: mixed.slots_in_use(each) <= 4, "the slots are free")


@pytest.mark.parametrize("dtype", mixed.DTYPES)
def test_every_type(files: str, dtype: str) -> None:
    batch = next(iter(mixed.casts(files, "tf", (dtype,))))
    tensor = batch[dtype]
    assert tensor.dtype == tf.as_dtype(dtype)
    # TensorFlow exports no bfloat16 that numpy supports.
    shown = tf.bitcast(tensor, tf.uint16) if dtype == "bfloat16" else tensor
    assert pointer(shown) == mixed.address(batch, dtype) and pointer(shown) % 256 == 0
    expected = np.arange(6).reshape(1, 2, 3)
    assert tf.cast(tensor, tf.float64).numpy().tolist() == (expected > 0 if dtype == "bool" else expected).tolist()


def test_ragged_sparse_and_strings_are_what_parse_example_gives(files: str) -> None:
    """Compared with TensorFlow's own parser over the same records."""
    of_tf = {
        "name": tf.io.FixedLenFeature((), tf.string),
        "list": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
        "words": tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64),
        "at": tf.io.SparseFeature("place", "weight", tf.float32, 10),
        "deep": tf.io.RaggedFeature(
            tf.float32, "value", [tf.io.RaggedFeature.RowLengths("length")], row_splits_dtype=tf.int64
        ),
    }
    as_sparse = {name: tf.io.VarLenFeature(kind) for name, kind in (("list", tf.int64), ("words", tf.string))}
    batches = list(mixed.loader(files, shuffle=False, output="tf"))
    records = [record for shard in range(2) for record in sf.read_records(files.replace("*", str(shard)))]
    for number, batch in enumerate(batches):
        part = records[number * mixed.BATCH : (number + 1) * mixed.BATCH]
        expected = tf.io.parse_example(part, of_tf)
        assert batch["name"].to_tf().dtype == tf.string
        assert batch["name"].to_tf().numpy().tolist() == expected["name"].numpy().tolist()
        for name in ("list", "words", "deep"):
            ragged = batch[name].to_tf_ragged()
            assert ragged.to_list() == expected[name].to_list()
            assert tf.type_spec_from_value(ragged).dtype == tf.type_spec_from_value(expected[name]).dtype
            assert ragged.ragged_rank == expected[name].ragged_rank and ragged.row_splits.dtype == tf.int64
        assert pointer(batch["list"].to_tf_ragged().values) == mixed.address(batch, "list")
        same_sparse(batch["at"].to_tf_sparse(), expected["at"])
        assert pointer(batch["at"].to_tf_sparse().values) == mixed.address(batch, "at")
        for name, sparse in tf.io.parse_example(part, as_sparse).items():
            same_sparse(batch[name].to_tf_sparse(), sparse)


@pytest.mark.parametrize("dtype", ["float32", "string"])
@pytest.mark.parametrize("partitions", mixed.PARTITIONS)
def test_partitions_are_what_parse_example_gives(partitions: str, dtype: Any, tmp_path: Path) -> None:
    """Compares values, splits, and shapes as far as they are known."""
    records = mixed.parted(tmp_path / "x.tfrecord")
    key = "number" if dtype == "float32" else "string"
    ours, theirs = (mixed.PARTITIONS[partitions](kind) for kind in (sf.RaggedFeature, tf.io.RaggedFeature))
    feature = tf.io.RaggedFeature(tf.as_dtype(dtype), key, theirs, row_splits_dtype=tf.int64)
    expected = tf.io.parse_example(records, {"x": feature})["x"]
    each = sf.Loader(tmp_path / "x.tfrecord", {"x": sf.RaggedFeature(dtype, key, ours)}, batch_size=6, shuffle=False)
    column = next(iter(each))["x"]
    (element,) = each.as_tf_dataset()
    for ragged in (column.to_tf_ragged(), element["x"]):
        assert ragged.to_list() == expected.to_list() == column.tolist()
        assert ragged.shape.as_list() == expected.shape.as_list() and ragged.ragged_rank == expected.ragged_rank
        assert ragged.dtype == expected.dtype
        for split, other in zip(ragged.nested_row_splits, expected.nested_row_splits, strict=True):
            assert split.dtype == tf.int64 and split.numpy().tolist() == other.numpy().tolist()
    if column.nested_row_splits[1:]:
        inner = column.inner().to_tf_ragged()
        assert inner.to_list() == expected.values.to_list() == column.inner().tolist()
        assert inner.shape.as_list() == expected.values.shape.as_list()


def same_sparse(one: tf.SparseTensor, other: tf.SparseTensor) -> None:
    assert one.dtype == other.dtype
    for part in ("indices", "values", "dense_shape"):
        assert getattr(one, part).numpy().tolist() == getattr(other, part).numpy().tolist(), part
