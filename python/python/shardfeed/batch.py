"""A batch: a mapping of feature names to columns that view its slot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardfeed._native import NativeBatch, NativeBuffer
from shardfeed.columns import BytesColumn, RaggedBytesColumn, RaggedColumn

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
        """bool `[rows]`, False for padding."""
        return _array(self._native.valid(), np.bool_)

    @property
    def provenance(self) -> tuple[Array, Array] | None:
        """Shard ordinal and ordinal in the shard of each row, int64 `[rows]` each; `loader.shards`
        has the shards' paths. None unless the loader was made with `provenance=True`."""
        if not self._with_provenance:
            return None
        shard, ordinal = self._native.provenance()
        return _array(shard, np.int64), _array(ordinal, np.int64)

    def _make(self, column: Column) -> Any:
        values, offsets, row_splits = self._native.column(column.place)
        shape = (self._native.rows, *column.shape)
        if column.kind == "dense":
            return _array(values, column.dtype).reshape(shape)
        if column.kind == "ragged":
            return RaggedColumn(_array(values, column.dtype), _array(row_splits, np.int64))
        strings = _array(values, np.uint8)
        if column.kind == "bytes":
            return BytesColumn(strings, _array(offsets, np.int64), shape)
        return RaggedBytesColumn(strings, _array(offsets, np.int64), _array(row_splits, np.int64))

    def __repr__(self) -> str:
        names = ", ".join(self._columns)
        return f"Batch(epoch={self.epoch}, step={self.step}, rows={self.rows}, columns=[{names}])"


def _array(buffer: NativeBuffer | None, dtype: Any) -> Array:
    assert buffer is not None, "a column of this kind has this buffer"
    array: Array = np.frombuffer(memoryview(buffer), dtype=dtype)
    return array
