"""Columns that are no plain arrays: byte strings, and rows of different lengths.

All of them view the batch's slot; nothing is copied until it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class BytesColumn(Sequence[Any]):
    """Byte strings of a fixed shape, `[rows, *shape]`.

    Indexing gives `bytes` (a copy) for shape `()`, else nested lists of them.

    - `values`: uint8, all strings end to end.
    - `offsets`: int64 `[rows * prod(shape) + 1]`; string i is `values[offsets[i]:offsets[i + 1]]`.
    """

    __slots__ = ("_per_row", "offsets", "shape", "values")

    def __init__(self, values: Array, offsets: Array, shape: tuple[int, ...]) -> None:
        self.values = values
        self.offsets = offsets
        self.shape = shape
        self._per_row = prod(shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = _row(index, len(self))
        if len(self.shape) == 1:
            return self._item(row)
        items = [self._item(row * self._per_row + i) for i in range(self._per_row)]
        return _nest(items, self.shape[1:])

    def view(self, index: int) -> memoryview:
        """String `index` (row-major) without a copy."""
        return self.values[self.offsets[index] : self.offsets[index + 1]].data

    def tolist(self) -> list[Any]:
        """All rows as `bytes`, or nested lists of them; copies."""
        return self[:]

    def to_numpy(self) -> Array:
        """An object array of `bytes` of the column's shape; copies."""
        out = np.empty(self.shape[0] * self._per_row, dtype=object)
        for i in range(len(out)):
            out[i] = self._item(i)
        return out.reshape(self.shape)

    def _item(self, index: int) -> bytes:
        return self.values[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def __repr__(self) -> str:
        return f"BytesColumn(shape={self.shape}, bytes={len(self.values)})"


class RaggedColumn(Sequence[Any]):
    """Rows of any number of numbers. Indexing gives a row as an array, without a copy.

    - `values`: all rows end to end.
    - `row_splits`: int64 `[rows + 1]`; row r is `values[row_splits[r]:row_splits[r + 1]]`.
    """

    __slots__ = ("row_splits", "values")

    def __init__(self, values: Array, row_splits: Array) -> None:
        self.values = values
        self.row_splits = row_splits

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> list[Array]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = _row(index, len(self))
        return self.values[self.row_splits[row] : self.row_splits[row + 1]]

    def lengths(self) -> Array:
        """Values of each row, int64 `[rows]`."""
        return np.diff(self.row_splits)

    def to_dense(self, default: Any = 0, length: int | None = None) -> Array:
        """`[rows, length]`, short rows filled with `default`; `length` is the longest row's if not
        given. Copies.

        Raises `ValueError` if a row is longer than `length`.
        """
        lengths = self.lengths()
        longest = int(lengths.max(initial=0))
        width = longest if length is None else length
        if longest > width:
            raise ValueError(f"a row has {longest} values, more than length={width}")
        out = np.full((len(self), width), default, dtype=self.values.dtype)
        out[np.arange(width) < lengths[:, None]] = self.values
        return out

    def to_sparse(self) -> tuple[Array, Array, tuple[int, int]]:
        """Indices int64 `[n, 2]`, values `[n]` and dense shape, as TensorFlow's SparseTensor has
        them for a VarLenFeature. Values are not copied."""
        lengths = self.lengths()
        rows = np.repeat(np.arange(len(self)), lengths)
        columns = np.arange(len(self.values)) - np.repeat(self.row_splits[:-1], lengths)
        indices = np.stack([rows, columns], axis=1).astype(np.int64)
        return indices, self.values, (len(self), int(lengths.max(initial=0)))

    def __repr__(self) -> str:
        return f"RaggedColumn(rows={len(self)}, values={len(self.values)}, {self.values.dtype})"


class RaggedBytesColumn(Sequence[Any]):
    """Rows of any number of byte strings. Indexing gives a row as a list of `bytes`, a copy.

    - `values`, `offsets`: the strings, as in `BytesColumn`.
    - `row_splits`: int64 `[rows + 1]`; row r has strings `row_splits[r]` to `row_splits[r + 1]`.
    """

    __slots__ = ("offsets", "row_splits", "values")

    def __init__(self, values: Array, offsets: Array, row_splits: Array) -> None:
        self.values = values
        self.offsets = offsets
        self.row_splits = row_splits

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @overload
    def __getitem__(self, index: int) -> list[bytes]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[bytes]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = _row(index, len(self))
        items = range(self.row_splits[row], self.row_splits[row + 1])
        return [self.values[self.offsets[i] : self.offsets[i + 1]].tobytes() for i in items]

    def __repr__(self) -> str:
        return f"RaggedBytesColumn(rows={len(self)}, strings={len(self.offsets) - 1})"


def _row(index: int, rows: int) -> int:
    row = index + rows if index < 0 else index
    if not 0 <= row < rows:
        raise IndexError(f"row {index} of {rows}")
    return row


def _nest(items: list[bytes], shape: tuple[int, ...]) -> Any:
    if len(shape) <= 1:
        return items
    width = prod(shape[1:])
    rows: Iterator[list[bytes]] = (items[i * width : (i + 1) * width] for i in range(shape[0]))
    return [_nest(row, shape[1:]) for row in rows]
