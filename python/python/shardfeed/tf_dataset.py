"""A loader as a `tf.data.Dataset`. Needs TensorFlow."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shardfeed.batch import Column
from shardfeed.columns import BytesColumn, RaggedBytesColumn, RaggedColumn, SparseColumn
from shardfeed.errors import ConfigError
from shardfeed.output import TensorFlow

if TYPE_CHECKING:
    from shardfeed.loader import Loader

log = logging.getLogger("shardfeed")

_LEFT = (
    "a pass over as_tf_dataset() was left inside of epoch %d, and the next one goes on with its step %d: what TensorFlow "
    "had fetched ahead of the last element used is not given again, unless the loader loads that element's state"
)


def make(loader: Loader, valid: str | None, state: str | None) -> Any:
    """As `Loader.as_tf_dataset` says."""
    if loader.output not in ("numpy", "tf"):
        raise ConfigError(f'as_tf_dataset() needs output="numpy" or "tf", this loader has output="{loader.output}"')
    if loader.device != "cpu":
        raise ConfigError(f'as_tf_dataset() needs device="cpu", this loader has device="{loader.device}"')
    added = [name for name in (valid, state) if name is not None]
    for name in added:
        if name in loader._columns or added.count(name) > 1:
            raise ConfigError(f"{name!r} is the name of a column already; take another one for valid= or state=")
    tf = TensorFlow().framework
    rows = None if loader._has_short_batches else loader.batch_size
    spec = {
        name: _spec(tf, column, rows, loader._ragged_ranks.get(name)) for name, column in loader._columns.items()
    }
    if valid is not None:
        spec[valid] = tf.TensorSpec([rows], tf.bool)
    if state is not None:
        spec[state] = tf.TensorSpec([], tf.string)

    left_at: tuple[int, int, int] | None = None

    def elements() -> Iterator[dict[str, Any]]:
        nonlocal left_at
        if left_at is not None and left_at[1] != 0 and left_at == loader._native.cursor():
            log.warning(_LEFT, *left_at[:2])
        for batch in loader:
            element = {name: _value(value) for name, value in batch.items()}
            if valid is not None:
                element[valid] = batch.valid
            if state is not None:
                element[state] = json.dumps(loader.state_after(batch))
            left_at = loader._native.cursor()
            yield element
        left_at = None

    options = tf.data.Options()
    # Each process has its rank's part already.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_generator(elements, output_signature=spec).with_options(options)


def _spec(tf: Any, column: Column, rows: int | None, ragged_rank: int | None) -> Any:
    dtype = tf.string if column.dtype == "bytes" else tf.as_dtype(column.dtype)
    if column.kind == "ragged":
        assert ragged_rank is not None, "operators make no ragged columns, so this is a feature's"
        shape = [rows, *[None] * ragged_rank, *column.shape]
        return tf.RaggedTensorSpec(shape, dtype, ragged_rank, row_splits_dtype=tf.int64)
    if column.kind == "sparse":
        return tf.SparseTensorSpec([rows, *column.shape], dtype)
    if column.kind == "padded":
        return tf.TensorSpec([rows, None, *column.shape], dtype)
    return tf.TensorSpec([rows, *column.shape], dtype)


def _value(value: Any) -> Any:
    match value:
        case BytesColumn():
            return value.to_numpy()
        case RaggedColumn() | RaggedBytesColumn():
            return value.to_tf_ragged()
        case SparseColumn():
            return value.to_tf_sparse()
        case _:
            return value
