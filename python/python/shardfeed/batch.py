"""A batch: a mapping of feature names to columns that view its slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from shardfeed._native import NativeBatch, NativeBuffer
from shardfeed.dtypes import as_numpy
from shardfeed.columns import BytesColumn, RaggedBytesColumn, RaggedColumn, SparseColumn
from shardfeed.errors import ConfigError, no_column
from shardfeed.output import Output

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]


class Column(NamedTuple):
    """A column that every batch of a loader has."""

    place: int
    kind: str
    dtype: str
    shape: tuple[int, ...]
    #: Of a ragged column: row length of each split; None where rows differ.
    row_lengths: tuple[int | None, ...]


@dataclass(frozen=True)
class Parts:
    """Parts of records that the rows of a batch consist of, numpy int64 `[parts]` each."""

    #: Row of the batch, ascending.
    row: npt.NDArray[np.int64]
    #: Shard of the record: an index into `loader.shards`.
    shard: npt.NDArray[np.int64]
    #: Index of the record in the shard.
    record: npt.NDArray[np.int64]
    #: Row of the record (`unbatch`); otherwise 0.
    record_row: npt.NDArray[np.int64]
    #: First token of the record or row (`pack`); otherwise 0.
    first: npt.NDArray[np.int64]
    #: Number of its tokens, with an appended one; otherwise 1.
    count: npt.NDArray[np.int64]


class RowSources(NamedTuple):
    """Finds the sources of a mixture's rows by their shards."""

    names: list[str]
    #: Ordinal of the first shard of each version of a source, and the index of its name.
    first_shards: Array
    indexes: Array

    @classmethod
    def of(cls, names: list[str], versions: list[tuple[str, int, int]]) -> RowSources:
        """- `versions`: name, first shard and number of records of each."""
        firsts = np.array([first for _, first, _ in versions], np.int64)
        return cls(names, firsts, np.array([names.index(name) for name, _, _ in versions], np.int32))

    def find(self, shards: Array) -> Array:
        """Returns the index of the source of each row, int32 `[rows]`."""
        found: Array = self.indexes[np.searchsorted(self.first_shards, shards, side="right") - 1]
        return found


class Batch(dict[str, Any]):
    """One step's samples of one rank: a dict of its columns.

    `batch["label"]` is a numpy array `[rows, *shape]`, or a tensor of the loader's `output`;
    strings, ragged and sparse features are shardfeed's columns. All view the batch's slot without a
    copy, and may be written where the framework permits writing; the slot is reused after the batch
    and all its columns are freed. With a GPU `device=`, the arrays and tensors of columns, and
    `valid`, are on the GPU; everything else stays on the host.

    Type checkers see columns as `Any`, as with torch's DataLoader: `output=` and the features
    determine their types.

    Columns may be replaced, added and deleted; `copy.copy` shares unchanged columns. A batch made
    from a mapping, `Batch({...})`, as some frameworks do, or by pickle or `copy.deepcopy`, has only
    columns: no `valid`, no step, and no state after it.
    """

    __slots__ = ("_columns", "_native", "_output", "_sources", "_valid", "_with_provenance")

    #: `None` in a batch made from a mapping, which has only this and `_valid`.
    _native: NativeBatch | None
    _columns: dict[str, Column]
    _output: Output
    _sources: RowSources | None
    _valid: Any
    _with_provenance: bool

    def __new__(cls, *arguments: Any, **columns: Any) -> Self:
        new = super().__new__(cls)
        new._native = new._valid = None
        return new

    def __missing__(self, name: str) -> Any:
        raise no_column(name, self)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise no_column(name, self)
        super().__delitem__(name)

    @classmethod
    def _of(
        cls,
        native: NativeBatch,
        columns: dict[str, Column],
        with_provenance: bool,
        output: Output,
        sources: RowSources | None = None,
    ) -> Batch:
        """Creates a loader's batch."""
        new = cls(dict.fromkeys(columns))
        new._native, new._columns = native, columns
        new._with_provenance, new._output, new._sources = with_provenance, output, sources
        output.fill(new)
        for name, column in columns.items():
            if new[name] is None:
                new[name] = new._make(name, column)
        return new

    def __copy__(self) -> Batch:
        return self._with(self)

    copy = __copy__

    def _with(self, columns: Mapping[str, object]) -> Batch:
        """Returns this batch with other columns."""
        new = Batch(columns)
        if self._native is not None:
            new._native, new._valid, new._columns = self._native, self._valid, self._columns
            new._with_provenance, new._output = self._with_provenance, self._output
            new._sources = self._sources
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (dict(self),)

    @property
    def _slot(self) -> NativeBatch:
        if self._native is None:
            raise ConfigError(
                "this Batch was made from a mapping, by pickle, by a deep copy, or by a framework that rebuilds its "
                "inputs: it has columns alone. Ask the batch that the Loader gave for valid, lengths(), provenance, "
                "rows, epoch, step and the state after it, or put them into a column before"
            )
        return self._native

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Batch:
        """Returns this batch with its tensors on another device, as used by Lightning and
        Accelerate.

        For output="torch"; columns that are not tensors are unchanged.
        """
        if self._native is not None and self._output.name != "torch":
            raise ConfigError(f'batches of output="{self._output.name}" do not move to devices; use output="torch"')
        new = self.__copy__()
        for name, value in self.items():
            if hasattr(value, "to"):
                new[name] = value.to(device, non_blocking=non_blocking)
        if self._native is not None:
            new._valid = self.valid.to(device, non_blocking=non_blocking)
        return new

    @property
    def rows(self) -> int:
        """Samples in the batch, padding included."""
        return self._slot.rows

    @property
    def epoch(self) -> int:
        """Epoch of the batch."""
        return self._slot.epoch

    @property
    def step(self) -> int:
        """Step of the batch in its epoch."""
        return self._slot.step

    @property
    def valid(self) -> Any:
        """Validity of each row, bool `[rows]`: False for padding, and where another record replaces
        a corrupt one."""
        if self._valid is None:
            self._valid = self._tensor(_array(self._slot.valid(), np.bool_), "bool", "valid")
        return self._valid

    @property
    def provenance(self) -> tuple[Any, Any] | None:
        """Shard ordinal and ordinal in the shard of each row, int64 `[rows]` each.

        `loader.shards` has the shards' paths. For a skipped corrupt record they name that record.
        None unless the loader was created with `provenance=True`.
        """
        native = self._slot
        if not self._with_provenance:
            return None
        shard, ordinal = native.provenance()
        return (
            self._tensor(_array(shard, np.int64), "int64", "provenance"),
            self._tensor(_array(ordinal, np.int64), "int64", "provenance"),
        )

    @property
    def parts(self) -> Parts | None:
        """Parts of records that the rows consist of, in order: one for each row, but several for a
        pack or window.

        None unless the loader was created with `provenance=True`. For a skipped corrupt record
        they name that record.
        """
        found = self._slot.parts() if self._with_provenance else None
        if found is None:
            return None
        return Parts(*np.frombuffer(found, np.int64).reshape(6, -1))

    @property
    def source(self) -> Any:
        """Source of each row of a mixture, int32 `[rows]`: an index into `loader.sources`. None
        without a mixture."""
        native = self._slot
        if self._sources is None:
            return None
        found = self._sources.find(_array(native.provenance()[0], np.int64))
        return self._output.view(found, "source")

    def lengths(self, name: str) -> Any:
        """Returns the number of values in each row of a padded or ragged column, int64 `[rows]`, on
        the host."""
        native = self._slot
        if name not in self._columns:
            raise no_column(name, self._columns)
        column = self._columns[name]
        _, _, splits = native.column(column.place)
        if column.kind == "padded":
            return self._tensor(_array(splits[0], np.int64), "int64", name)
        if column.kind == "ragged":
            return self._tensor(np.diff(_array(splits[0], np.int64)), "int64", name)
        raise ValueError(f"column {name!r} is {column.kind}: all of its rows are of shape {column.shape}")

    def _tensor(self, array: Array, dtype: str, column: str) -> Any:
        return self._output.tensor(array, dtype, column)

    def _make(self, name: str, column: Column) -> Any:
        native, starts, native_splits = self._slot.column(column.place)
        rows = self._slot.rows
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
            values = values.reshape(int(splits[-1][-1]), *column.shape) if column.shape else values
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
        names = f"columns=[{', '.join(self)}]"
        if self._native is None:
            return f"Batch({names})"
        return f"Batch(epoch={self.epoch}, step={self.step}, rows={self.rows}, {names})"


def _array(buffer: NativeBuffer | None, dtype: Any) -> Array:
    assert buffer is not None, "a column of this kind has this buffer"
    array: Array = np.frombuffer(memoryview(buffer), dtype=dtype)
    return array
