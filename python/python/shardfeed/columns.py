"""Columns that are not plain arrays: byte strings, and rows of different lengths.

All of them view the batch's slot; data is copied only on request. Code that traverses batches
(torch's collate functions, tf.nest) treats them as leaves: they read like sequences, but are no
`collections.abc.Sequence`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from inspect import signature
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from shardfeed.output import Jax, TensorFlow, Torch

if TYPE_CHECKING:
    import tensorflow as tf
    import torch
    from jax.experimental.sparse import BCOO

Array = npt.NDArray[Any]
#: A byte string, or nested lists of them.
Nested: TypeAlias = "bytes | list[Nested]"

#: Row length of each split, None where rows differ; (): unknown.
Lengths = tuple[int | None, ...]


class BytesColumn:
    """Byte strings of a fixed shape, `[rows, *shape]`.

    Indexing returns `bytes` (a copy) for shape `()`, else nested lists of them.

    - `values`: uint8, all strings concatenated.
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

    def __iter__(self) -> Iterator[Nested]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Nested: ...
    @overload
    def __getitem__(self, index: slice) -> list[Nested]: ...
    def __getitem__(self, index: int | slice) -> Nested:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = _row(index, len(self))
        if len(self.shape) == 1:
            return self._item(row)
        items = [self._item(row * self._per_row + i) for i in range(self._per_row)]
        return _nest(items, self.shape[1:])

    def view(self, index: int) -> memoryview:
        """Returns string `index` (row-major) without a copy."""
        return self.values[self.offsets[index] : self.offsets[index + 1]].data

    def tolist(self) -> list[Nested]:
        """Returns all rows as `bytes`, or nested lists of them; copies."""
        return self[:]

    def to_numpy(self) -> Array:
        """Returns an object array of `bytes` of the column's shape; copies."""
        out = np.empty(self.shape[0] * self._per_row, dtype=object)
        for i in range(len(out)):
            out[i] = self._item(i)
        return out.reshape(self.shape)

    def to_tf(self) -> tf.Tensor:
        """Returns a string `tf.Tensor` of the column's shape; copies."""
        framework = TensorFlow().framework
        return framework.constant(self.to_numpy(), dtype=framework.string)

    def _item(self, index: int) -> bytes:
        return self.values[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def __repr__(self) -> str:
        return f"BytesColumn(shape={self.shape}, bytes={len(self.values)})"


class RaggedColumn:
    """Rows of any number of numbers, possibly nested.

    Indexing returns a row without a copy: an array, or with several splits a `RaggedColumn` of the
    row's content.

    - `values`: `[n, *shape]`, all rows concatenated.
    - `nested_row_splits`: int64 each, the outermost `[rows + 1]` first: row r is the range
      `splits[r]` to `splits[r + 1]` of the next split, or for the last split of `values`.
    """

    __slots__ = ("_lengths", "nested_row_splits", "values")

    def __init__(self, values: Array, *nested_row_splits: Array, lengths: Lengths = ()) -> None:
        self.values = values
        self.nested_row_splits = nested_row_splits
        self._lengths = lengths

    @property
    def row_splits(self) -> Array:
        """Outermost splits, int64 `[rows + 1]`."""
        return self.nested_row_splits[0]

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def __iter__(self) -> Iterator[Array | RaggedColumn]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Array | RaggedColumn: ...
    @overload
    def __getitem__(self, index: slice) -> list[Array | RaggedColumn]: ...
    def __getitem__(self, index: int | slice) -> Array | RaggedColumn | list[Array | RaggedColumn]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = _row(index, len(self))
        begin, end, inner = _inner(self.nested_row_splits, row)
        values = self.values[begin:end]
        return RaggedColumn(values, *inner, lengths=self._lengths[1:]) if inner else values

    def lengths(self) -> Array:
        """Returns the number of values, or rows of values, in each row, int64 `[rows]`."""
        return np.diff(self.row_splits)

    def tolist(self) -> list[object]:
        """Returns all rows as nested lists; copies."""
        return [row.tolist() for row in self]

    def inner(self) -> RaggedColumn:
        """Returns the nested rows, concatenated: a column of all splits but the outermost, over the
        same memory.

        Raises `ValueError` with one split.
        """
        return RaggedColumn(self.values, *_without_outermost(self.nested_row_splits), lengths=self._lengths[1:])

    def to_dense(self, default: npt.ArrayLike = 0, length: int | None = None) -> Array:
        """Returns an array `[rows, length, ...]` with short rows filled with `default`; copies.

        `length` defaults to the longest row; inner rows have the length of the longest one.

        Raises `ValueError` if a row is longer than `length`.
        """
        indices, values, shape = self.to_sparse()
        if length is not None:
            if shape[1] > length:
                raise ValueError(f"a row has {shape[1]} values, more than length={length}")
            shape = (shape[0], length, *shape[2:])
        out = np.full((*shape, *values.shape[1:]), default, dtype=values.dtype)
        out[tuple(indices.T)] = values
        return out

    def to_sparse(self) -> tuple[Array, Array, tuple[int, ...]]:
        """Returns indices int64 `[n, 1 + splits]`, values `[n, ...]` and dense shape, as in
        TensorFlow's SparseTensor for a VarLenFeature. Values are not copied."""
        indices, shape = _places(self.nested_row_splits)
        return indices, self.values, shape

    def to_torch_jagged(self) -> torch.Tensor:
        """Returns a nested `torch.Tensor` of layout torch.jagged, over the same memory.

        Writing to its `values()` writes to the batch. Raises `ValueError` for nested rows: torch
        supports one ragged dimension. With two splits use `inner()` and the outermost `row_splits`.
        """
        if len(self.nested_row_splits) != 1:
            raise ValueError(
                f"torch's jagged layout has one ragged dimension, this column {len(self.nested_row_splits)}; "
                f"take to_dense(), or row_splits and inner()"
            )
        output = Torch()
        values, splits = output.view(self.values), output.view(self.row_splits)
        make = output.framework.nested.nested_tensor_from_jagged
        if "max_seqlen" not in signature(make).parameters:
            return make(values, splits)
        # Without the longest row, torch pads to the total number of values.
        lengths = self.lengths()
        least, most = int(lengths.min(initial=len(self.values))), int(lengths.max(initial=0))
        return make(values, splits, min_seqlen=least, max_seqlen=most)

    def to_tf_ragged(self) -> tf.RaggedTensor:
        """Returns a `tf.RaggedTensor` over the same memory, row splits int64."""
        output = TensorFlow()
        return _tf_ragged(output, output.view(self.values), self.nested_row_splits, self._lengths)

    def to_tf_sparse(self) -> tf.SparseTensor:
        """Returns a `tf.SparseTensor`, as `tf.io.parse_example` for a VarLenFeature. Values are not
        copied.

        Raises `ValueError` if the values are not scalars.
        """
        if self.values.ndim != 1:
            raise ValueError(
                f"tf.SparseTensor has single values, this column values of shape {self.values.shape[1:]}; "
                f"take to_tf_ragged() or to_dense()"
            )
        return SparseColumn(*self.to_sparse()).to_tf_sparse()

    def __repr__(self) -> str:
        return f"RaggedColumn(rows={len(self)}, values={len(self.values)}, {self.values.dtype})"


class RaggedBytesColumn:
    """Rows of any number of byte strings, possibly nested. Indexing returns a row as a list of
    `bytes`, or nested lists, a copy.

    - `values`, `offsets`: the strings, as in `BytesColumn`.
    - `nested_row_splits`: as in `RaggedColumn`, over strings.
    - `shape`: of one element of the innermost rows, `()` for single strings.
    """

    __slots__ = ("_lengths", "nested_row_splits", "offsets", "shape", "values")

    def __init__(
        self, values: Array, offsets: Array, *nested_row_splits: Array, shape: tuple[int, ...] = (), lengths: Lengths = ()
    ) -> None:
        self.values = values
        self.offsets = offsets
        self.nested_row_splits = nested_row_splits
        self.shape = shape
        self._lengths = lengths

    @property
    def row_splits(self) -> Array:
        """Outermost splits, int64 `[rows + 1]`."""
        return self.nested_row_splits[0]

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def __iter__(self) -> Iterator[list[Nested]]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> list[Nested]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[Nested]]: ...
    def __getitem__(self, index: int | slice) -> list[Nested] | list[list[Nested]]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = _row(index, len(self))
        begin, end, inner = _inner(self.nested_row_splits, row)
        width = prod(self.shape)
        offsets = self.offsets[begin * width : end * width + 1]
        if inner:
            return RaggedBytesColumn(self.values, offsets, *inner, shape=self.shape).tolist()
        return BytesColumn(self.values, offsets, (end - begin, *self.shape)).tolist()

    def lengths(self) -> Array:
        """Returns the number of strings, or rows of strings, in each row, int64 `[rows]`."""
        return np.diff(self.row_splits)

    def inner(self) -> RaggedBytesColumn:
        """As `RaggedColumn.inner()`."""
        splits = _without_outermost(self.nested_row_splits)
        return RaggedBytesColumn(self.values, self.offsets, *splits, shape=self.shape, lengths=self._lengths[1:])

    def tolist(self) -> list[list[Nested]]:
        """Returns all rows as nested lists of `bytes`; copies."""
        return self[:]

    def to_tf_ragged(self) -> tf.RaggedTensor:
        """Returns a string `tf.RaggedTensor`, row splits int64; copies."""
        return _tf_ragged(TensorFlow(), self._strings().to_tf(), self.nested_row_splits, self._lengths)

    def to_tf_sparse(self) -> tf.SparseTensor:
        """Returns a string `tf.SparseTensor`, as `tf.io.parse_example` for a VarLenFeature; copies.

        Raises `ValueError` if the elements are not single strings.
        """
        if self.shape:
            raise ValueError(
                f"tf.SparseTensor has single values, this column strings of shape {self.shape}; take to_tf_ragged()"
            )
        indices, shape = _places(self.nested_row_splits)
        return SparseColumn(indices, self._strings(), shape).to_tf_sparse()

    def _strings(self) -> BytesColumn:
        """Returns the content of the innermost rows, `[n, *shape]`."""
        return BytesColumn(self.values, self.offsets, (int(self.nested_row_splits[-1][-1]), *self.shape))

    def __repr__(self) -> str:
        return f"RaggedBytesColumn(rows={len(self)}, strings={len(self.offsets) - 1})"


class SparseColumn:
    """Values at positions of a mostly empty tensor.

    - `indices`: int64 `[n, 1 + dims]`, row and position in it of each value, ascending.
    - `values`: `[n]`, for strings a `BytesColumn`.
    - `shape`: `(rows, *size)`.
    """

    __slots__ = ("indices", "shape", "values")

    def __init__(self, indices: Array, values: Array | BytesColumn, shape: tuple[int, ...]) -> None:
        self.indices = indices
        self.values = values
        self.shape = shape

    def __len__(self) -> int:
        return self.shape[0]

    def to_dense(self, default: npt.ArrayLike = 0) -> Array:
        """Returns an array of `shape`, with `default` where there is no value. Of several values at
        one position the last is used. Copies."""
        values = self.values.to_numpy() if isinstance(self.values, BytesColumn) else self.values
        out = np.full(self.shape, default, dtype=values.dtype)
        out[tuple(self.indices.T)] = values
        return out

    def to_torch_sparse(self) -> torch.Tensor:
        """Returns a sparse COO `torch.Tensor` of `shape`; values are not copied. Not for
        strings."""
        numbers = self._numbers("torch")
        output = Torch()
        indices, values = output.view(self.indices).t(), output.view(numbers)
        # The worker checked the indices.
        return output.framework.sparse_coo_tensor(indices, values, self.shape, check_invariants=False)

    def to_tf_sparse(self) -> tf.SparseTensor:
        """Returns a `tf.SparseTensor` of `shape`; numbers are not copied, strings are."""
        output = TensorFlow()
        values = self.values.to_tf() if isinstance(self.values, BytesColumn) else output.view(self.values)
        return output.framework.SparseTensor(output.view(self.indices), values, self.shape)

    def to_jax_bcoo(self) -> BCOO:
        """Returns a `jax.experimental.sparse.BCOO` of `shape`. Indices are int32 unless
        jax_enable_x64 is on. Not for strings."""
        numbers = self._numbers("JAX")
        output = Jax()
        indices, values = output.view(self.indices), output.view(numbers)
        return import_module("jax.experimental.sparse").BCOO((values, indices), shape=self.shape)

    def _numbers(self, framework: str) -> Array:
        if isinstance(self.values, BytesColumn):
            raise ValueError(f"{framework} has no tensors of strings; take values, a BytesColumn, and indices")
        return self.values

    def __repr__(self) -> str:
        return f"SparseColumn(shape={self.shape}, values={len(self.values)})"


def _tf_ragged(output: TensorFlow, values: Any, splits: tuple[Array, ...], lengths: Lengths) -> Any:
    """Returns a RaggedTensor with uniform row lengths where TensorFlow's own parser has them."""
    ragged = output.framework.RaggedTensor
    for split, length in zip(reversed(splits), reversed(lengths or (None,) * len(splits)), strict=True):
        if length is None:
            values = ragged.from_row_splits(values, output.view(split), validate=False)
        else:
            values = ragged.from_uniform_row_length(values, length, len(split) - 1, validate=False)
    return values


def _without_outermost(splits: tuple[Array, ...]) -> tuple[Array, ...]:
    if len(splits) == 1:
        raise ValueError("the rows of this column are values, no rows; take values")
    return splits[1:]


def _inner(splits: tuple[Array, ...], row: int) -> tuple[int, int, list[Array]]:
    """Returns the range of a row in the values, and its inner splits."""
    begin, end = int(splits[0][row]), int(splits[0][row + 1])
    inner = []
    for ends in splits[1:]:
        part = ends[begin : end + 1]
        begin, end = int(part[0]), int(part[-1])
        inner.append(part - begin)
    return begin, end, inner


def _places(splits: tuple[Array, ...]) -> tuple[Array, tuple[int, ...]]:
    """Returns the indices of each value, int64 `[n, 1 + splits]`, and the shape that contains
    all."""
    columns = [np.arange(len(splits[0]) - 1)]
    shape = [len(splits[0]) - 1]
    for ends in splits:
        lengths = np.diff(ends)
        columns = [np.repeat(column, lengths) for column in columns]
        columns.append(np.arange(ends[-1]) - np.repeat(ends[:-1], lengths))
        shape.append(int(lengths.max(initial=0)))
    return np.stack(columns, axis=1).astype(np.int64), tuple(shape)


def _row(index: int, rows: int) -> int:
    row = index + rows if index < 0 else index
    if not 0 <= row < rows:
        raise IndexError(f"row {index} of {rows}")
    return row


def _nest(items: list[bytes], shape: tuple[int, ...]) -> list[Nested]:
    if len(shape) <= 1:
        return [*items]
    width = prod(shape[1:])
    rows: Iterator[list[bytes]] = (items[i * width : (i + 1) * width] for i in range(shape[0]))
    return [_nest(row, shape[1:]) for row in rows]
