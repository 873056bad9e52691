"""A batch: a mapping of feature names to columns that view its slot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardfeed._native import NativeBatch, NativeBuffer
from shardfeed.dtypes import as_numpy
from shardfeed.columns import BytesColumn, RaggedBytesColumn, RaggedColumn, SparseColumn

Array = npt.NDArray[Any]


class Column(NamedTuple):
    """A column that every batch of a loader has."""

    place: int
    kind: str
    dtype: str
    shape: tuple[int, ...]


class Batch(Mapping[str, Any]):
    """One step's samples of one rank.

    `batch["label"]` is a numpy array `[rows, *shape]`, or one of shardfeed's columns for strings and
    ragged features. Arrays view the batch's slot without a copy and may be written; the slot is used
    again when the batch and all arrays of it are gone.
    """

    __slots__ = ("_arrays", "_columns", "_native", "_with_provenance")

    def __init__(
        self, native: NativeBatch, columns: dict[str, Column], with_provenance: bool
    ) -> None:
        self._native = native
        self._columns = columns
        self._with_provenance = with_provenance
        self._arrays: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = self._make(self._columns[name])
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def rows(self) -> int:
        """Samples in the batch, padding included."""
        return self._native.rows

    @property
    def epoch(self) -> int:
        """Epoch of the batch."""
        return self._native.epoch

    @property
    def step(self) -> int:
        """Step of the batch in its epoch."""
        return self._native.step

    @property
    def valid(self) -> Array:
        """bool `[rows]`, False for padding, and where a corrupt record was skipped: another one stands there."""
        return _array(self._native.valid(), np.bool_)

    @property
    def provenance(self) -> tuple[Array, Array] | None:
        """Shard ordinal and ordinal in the shard of each row, int64 `[rows]` each; `loader.shards`
        has the shards' paths. Where a corrupt record was skipped they name that one. None unless the loader was made with `provenance=True`."""
        if not self._with_provenance:
            return None
        shard, ordinal = self._native.provenance()
        return _array(shard, np.int64), _array(ordinal, np.int64)

    def lengths(self, name: str) -> Array:
        """How many values each row of a padded or ragged column has, int64 `[rows]`."""
        column = self._columns[name]
        if column.kind == "padded":
            _, _, splits = self._native.column(column.place)
            return _array(splits[0], np.int64)
        if column.kind == "ragged":
            lengths: Array = self[name].lengths()
            return lengths
        raise ValueError(f"column {name!r} is {column.kind}: all of its rows are of shape {column.shape}")

    def _make(self, column: Column) -> Any:
        native, starts, native_splits = self._native.column(column.place)
        rows = self._native.rows
        splits = [_array(split, np.int64) for split in native_splits]
        if starts is None:
            values, items = _array(native, as_numpy(column.dtype)), None
        else:
            values, items = _array(native, np.uint8), _array(starts, np.int64)
        if column.kind == "ragged":
            if items is not None:
                return RaggedBytesColumn(values, items, *splits, shape=column.shape)
            return RaggedColumn(values.reshape(-1, *column.shape) if column.shape else values, *splits)
        if column.kind == "sparse":
            places = splits[0].reshape(-1, 1 + len(column.shape))
            found = values if items is None else BytesColumn(values, items, (len(items) - 1,))
            return SparseColumn(places, found, (rows, *column.shape))
        shape = (rows, *column.shape)
        if column.kind == "padded":
            shape = (rows, int(splits[0].max(initial=0)), *column.shape)
        return values.reshape(shape) if items is None else BytesColumn(values, items, shape)

    def __repr__(self) -> str:
        names = ", ".join(self._columns)
        return f"Batch(epoch={self.epoch}, step={self.step}, rows={self.rows}, columns=[{names}])"


def _array(buffer: NativeBuffer | None, dtype: Any) -> Array:
    assert buffer is not None, "a column of this kind has this buffer"
    array: Array = np.frombuffer(memoryview(buffer), dtype=dtype)
    return array
