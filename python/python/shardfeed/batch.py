"""A batch: a mapping of feature names to columns that view its slot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, MutableMapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from shardfeed._native import NativeBatch, NativeBuffer
from shardfeed.dtypes import as_numpy
from shardfeed.columns import BytesColumn, RaggedBytesColumn, RaggedColumn, SparseColumn
from shardfeed.errors import ConfigError
from shardfeed.output import Output

Array = npt.NDArray[Any]


class Column(NamedTuple):
    """A column that every batch of a loader has."""

    place: int
    kind: str
    dtype: str
    shape: tuple[int, ...]
    #: Of a ragged column: the length of the rows of each of its splits, None where they differ.
    row_lengths: tuple[int | None, ...]


class Batch(MutableMapping[str, Any]):
    """One step's samples of one rank.

    `batch["label"]` is an array `[rows, *shape]` of numpy, or a tensor of the loader's `output`; for strings,
    ragged and sparse features it is one of shardfeed's columns. All view the batch's slot without a copy and may
    be written where the framework writes; the slot is used again when the batch and all of them are gone. With
    `device=` of a GPU the arrays and tensors of columns, and `valid`, are there; what else there is stays on the host.

    Columns may be replaced, added and deleted, as in a dict; a `copy.copy` shares those that are not.
    """

    __slots__ = ("_arrays", "_columns", "_names", "_native", "_output", "_valid", "_with_provenance")

    def __init__(
        self, native: NativeBatch, columns: dict[str, Column], with_provenance: bool, output: Output
    ) -> None:
        self._native = native
        self._columns = columns
        self._with_provenance = with_provenance
        self._output = output
        self._names: Collection[str] = columns
        self._arrays: dict[str, Any] = {}
        self._valid: Any = None
        output.fill(self)

    def __getitem__(self, name: str) -> Any:
        array = self._arrays.get(name)
        if array is None:
            if name not in self._names:
                raise KeyError(name)
            array = self._arrays[name] = self._make(name, self._columns[name])
        return array

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._names:
            self._names = [*self._names, name]
        self._arrays[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self._names:
            raise KeyError(name)
        self._names = [each for each in self._names if each != name]
        self._arrays.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __copy__(self) -> Batch:
        new = Batch.__new__(Batch)
        new._native, new._columns, new._output = self._native, self._columns, self._output
        new._with_provenance = self._with_provenance
        new._names, new._arrays, new._valid = self._names, dict(self._arrays), self._valid
        return new

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Batch views memory of its worker, which does not go to other processes; pickle dict(batch), which copies"
        )

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """This batch with its tensors on another device, as Lightning and Accelerate ask for it.
        For output="torch"; columns that are no tensors stay as they are."""
        if self._output.name != "torch":
            raise ConfigError(f'batches of output="{self._output.name}" do not move to devices; use output="torch"')
        new = self.__copy__()
        for name, value in self.items():
            if hasattr(value, "to"):
                new._arrays[name] = value.to(device, non_blocking=non_blocking)
        new._valid = self.valid.to(device, non_blocking=non_blocking)
        return new

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
    def valid(self) -> Any:
        """bool `[rows]`, False for padding, and where a corrupt record was skipped: another one stands there."""
        if self._valid is None:
            self._valid = self._tensor(_array(self._native.valid(), np.bool_), "bool", "valid")
        return self._valid

    @property
    def provenance(self) -> tuple[Any, Any] | None:
        """Shard ordinal and ordinal in the shard of each row, int64 `[rows]` each; `loader.shards`
        has the shards' paths. Where a corrupt record was skipped they name that one. None unless the loader was made with `provenance=True`."""
        if not self._with_provenance:
            return None
        shard, ordinal = self._native.provenance()
        return (
            self._tensor(_array(shard, np.int64), "int64", "provenance"),
            self._tensor(_array(ordinal, np.int64), "int64", "provenance"),
        )

    def lengths(self, name: str) -> Any:
        """How many values each row of a padded or ragged column has, int64 `[rows]`, on the host."""
        column = self._columns[name]
        _, _, splits = self._native.column(column.place)
        if column.kind == "padded":
            return self._tensor(_array(splits[0], np.int64), "int64", name)
        if column.kind == "ragged":
            return self._tensor(np.diff(_array(splits[0], np.int64)), "int64", name)
        raise ValueError(f"column {name!r} is {column.kind}: all of its rows are of shape {column.shape}")

    def _tensor(self, array: Array, dtype: str, column: str) -> Any:
        return self._output.tensor(array, dtype, column)

    def _make(self, name: str, column: Column) -> Any:
        native, starts, native_splits = self._native.column(column.place)
        rows = self._native.rows
        splits = [_array(split, np.int64) for split in native_splits]
        is_dense = column.kind in ("dense", "padded")
        if starts is None:
            storage = self._output.storage if is_dense else as_numpy
            values, items = _array(native, storage(column.dtype)), None
        else:
            values, items = _array(native, np.uint8), _array(starts, np.int64)
        if column.kind == "ragged":
            if items is not None:
                return RaggedBytesColumn(values, items, *splits, shape=column.shape, lengths=column.row_lengths)
            values = values.reshape(-1, *column.shape) if column.shape else values
            return RaggedColumn(values, *splits, lengths=column.row_lengths)
        if column.kind == "sparse":
            places = splits[0].reshape(-1, 1 + len(column.shape))
            found = values if items is None else BytesColumn(values, items, (len(items) - 1,))
            return SparseColumn(places, found, (rows, *column.shape))
        shape = (rows, *column.shape)
        if column.kind == "padded":
            shape = (rows, int(splits[0].max(initial=0)), *column.shape)
        if items is not None:
            return BytesColumn(values, items, shape)
        return self._tensor(values.reshape(shape), column.dtype, name)

    def __repr__(self) -> str:
        names = ", ".join(self._names)
        return f"Batch(epoch={self.epoch}, step={self.step}, rows={self.rows}, columns=[{names}])"


def _array(buffer: NativeBuffer | None, dtype: Any) -> Array:
    assert buffer is not None, "a column of this kind has this buffer"
    array: Array = np.frombuffer(memoryview(buffer), dtype=dtype)
    return array
