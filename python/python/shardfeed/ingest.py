"""Datasets from arrays and Python generators."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardfeed.description import Description
from shardfeed.dtypes import DType
from shardfeed.errors import ConfigError, DatasetNotFoundError, ShardChangedError
from shardfeed.options import Compression, suggesting
from shardfeed.records import Value
from shardfeed.sources import Source
from shardfeed.staging import Staging, description_name
from shardfeed.stored import Array, StoredColumn, as_array, column_of
from shardfeed.writing import Layout, encode_numbered

#: Bytes of an array processed at a time.
_CHUNK_BYTES = 16 << 20


#: Column names of a tuple, as in Keras.
_TUPLE_NAMES = ("x", "y", "sample_weight")


@suggesting
def from_arrays(
    arrays: Mapping[str, npt.ArrayLike] | tuple[npt.ArrayLike, ...],
    directory: str | os.PathLike[str],
    *,
    prefix: str = "data",
    shard_bytes: int | str = "150MiB",
    seed: int = 0,
    compression: Compression = None,
    force: bool = False,
) -> Source:
    """Writes arrays as a dataset, one record per row, and returns its `Source`.

    If the same arrays were already written with the same options, only returns it.

        source = sf.from_arrays({"image": images, "label": labels}, "/data/digits")    # [n, 28, 28], [n]
        loader = sf.Loader(source, batch_size=32)

    Every rank may therefore call it at every start: one writes, the others wait. The loader
    delivers the type and shape of a row: int64, float32 and strings are stored directly, text as
    UTF-8 (returned as bytes), all other numbers as their bytes, with `decode_raw` in the source.

    - `arrays`: by name, or a tuple `(x, y)` or `(x, y, sample_weight)`, which gives these column
      names; each convertible to a numpy array `[n, ...]` of bool, (u)int8 to (u)int32, int64,
      float16 to float64, bfloat16, or strings. Arrays are read row by row, so `np.memmap` may be
      larger than memory.
    - The others as for `write_dataset`.

    Raises `ConfigError` as `write_dataset`, for an array that cannot be stored, and if the existing
    shards contain other arrays.
    """
    layout = Layout.of(directory, prefix, shard_bytes, seed, compression, force)
    columns, values = _columns(arrays)
    digest = _digest(layout, columns, values)
    there = _there(layout, digest)
    if there is not None:
        return there
    with layout.stage(wait=True) as staging:
        # Another process may have written them in the meantime.
        there = _there(layout, digest)
        if there is not None:
            return there
        rows = range(_length(values))
        records = ({name: array[row] for name, array in values.items()} for row in rows)
        return _write(layout, staging, _Rows(columns), lambda: records, digest)


@suggesting
def from_generator(
    function: Callable[[], Iterable[Mapping[str, Value] | tuple[Value, ...]]],
    directory: str | os.PathLike[str],
    *,
    columns: Mapping[str, tuple[DType, Sequence[int | None]]] | None = None,
    prefix: str = "data",
    shard_bytes: int | str = "150MiB",
    seed: int = 0,
    compression: Compression = None,
    force: bool = False,
) -> Source:
    """Writes the records of a function as a dataset, once, and returns its `Source`.

    Use `open_source(directory)` later and in other processes.

        def photos():
            for path in paths:
                yield {"photo": path.read_bytes(), "size": np.array([640, 480], np.int32)}

        source = sf.from_generator(photos, "/data/photos")

    All records must have the same columns with the same type and shape; otherwise the error names
    the record. They are stored as in `from_arrays`. Python numbers are int64 and float64 as in
    numpy, unless `columns` declares otherwise.

    - `function`: returns an iterable of dicts, or of tuples `(x, y)` or `(x, y, sample_weight)`,
      which give these column names; called once, without arguments, and read to its end.
    - `columns`: name to (dtype, shape of a row); None: as in the first record. With shape `(None,)`
      rows may have any number of values, of int64, float32 or strings, and the loader gives a
      ragged column.
    - The others as for `write_dataset`.
    """
    if not callable(function):
        raise ConfigError(
            f"from_generator takes the function that makes the records, not {type(function).__name__}; "
            f"pass it without calling it, or `lambda: records`"
        )
    layout = Layout.of(directory, prefix, shard_bytes, seed, compression, force)
    rows = _Rows(None if columns is None else _declared(columns))
    with layout.stage() as staging:
        return _write(layout, staging, rows, function, None)


class _Rows:
    """Encodes rows with equal columns, by default those of the first row."""

    def __init__(self, columns: list[StoredColumn] | None) -> None:
        self.columns = columns or []

    def encoded(self, rows: Iterable[Any]) -> Iterator[bytes]:
        if not isinstance(rows, Iterable) or isinstance(rows, Mapping):
            raise ConfigError(
                f"the function returns an iterable of dicts, or yields them, but here {type(rows).__name__}"
            )
        for number, row in enumerate(rows):
            if isinstance(row, tuple):
                row = _by_name(row)
            if not isinstance(row, Mapping) or not row:
                raise ConfigError(f"record {number} is a dict of columns, not {row!r:.80}")
            try:
                if not self.columns:
                    self.columns = [column_of(name, value) for name, value in row.items()]
                self._check_names(row)
                values = {column.name: column.value(row[column.name]) for column in self.columns}
            except ConfigError as error:
                raise ConfigError(f"record {number}: {error}") from None
            yield encode_numbered(number, values)

    def _check_names(self, row: Mapping[str, Any]) -> None:
        names = {column.name for column in self.columns}
        if set(row) != names:
            lacks, more = sorted(names - set(row)), sorted(map(repr, set(row) - names))
            raise ConfigError(f"lacks the columns {lacks}" if lacks else f"has columns besides: {', '.join(more)}")


def _write(
    layout: Layout, staging: Staging, rows: _Rows, function: Callable[[], Iterable[Any]], digest: str | None
) -> Source:
    staging.refuse_old()
    names, count = layout.write(rows.encoded(function()), staging)
    files = tuple((name, (staging.folder / name).stat().st_size) for name in names)
    description = Description(tuple(rows.columns), files, count, digest)
    last = description_name(layout.prefix)
    description.write(staging.folder / last)
    staging.publish([*names, last])
    return description.source(layout.directory)


def _there(layout: Layout, digest: str) -> Source | None:
    """Returns the dataset if it has this digest and is complete; else None."""
    path = layout.directory / description_name(layout.prefix)
    try:
        description = Description.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ConfigError:
        if layout.force:
            return None
        raise
    if description.digest != digest:
        return None
    try:
        return description.source(layout.directory)
    except (DatasetNotFoundError, ShardChangedError):
        if layout.force:
            return None
        raise


def _declared(columns: Mapping[str, tuple[Any, Any]]) -> list[StoredColumn]:
    if not isinstance(columns, Mapping) or not columns:
        raise ConfigError(f"columns is a dict of name to (dtype, shape), not {columns!r:.80}")
    for name, form in columns.items():
        if not isinstance(form, tuple) or len(form) != 2:
            raise ConfigError(f"column {name!r} is declared as (dtype, shape), not as {form!r:.80}")
    return [StoredColumn.of(name, dtype, shape) for name, (dtype, shape) in columns.items()]


def _by_name(values: tuple[Any, ...]) -> Mapping[str, Any] | tuple[Any, ...]:
    """Returns the values of a tuple by name, if it has at most as many values as there are
    names."""
    return dict(zip(_TUPLE_NAMES, values, strict=False)) if 0 < len(values) <= len(_TUPLE_NAMES) else values


def _columns(arrays: Mapping[str, Any] | tuple[Any, ...]) -> tuple[list[StoredColumn], dict[str, Array]]:
    if isinstance(arrays, tuple):
        arrays = _by_name(arrays)
    if not isinstance(arrays, Mapping) or not arrays:
        raise ConfigError(
            f'arrays is a dict of arrays by name, {{"x": x, "y": y}}, or a tuple (x, y), not a {type(arrays).__name__}'
        )
    values = {name: as_array(name, value) for name, value in arrays.items()}
    columns = [column_of(name, value, rows=True) for name, value in values.items()]
    lengths = {name: len(array) for name, array in values.items()}
    if len(set(lengths.values())) > 1:
        raise ConfigError(f"arrays have one row for each record, but their lengths are {lengths}")
    if _length(values) == 0:
        raise ConfigError("the arrays have no rows")
    return columns, values


def _length(values: dict[str, Array]) -> int:
    return len(next(iter(values.values())))


def _digest(layout: Layout, columns: list[StoredColumn], values: dict[str, Array]) -> str:
    """Returns the digest of everything that determines the bytes of the shards."""
    forms = [(column.name, column.dtype, column.shape) for column in columns]
    options = [1, _length(values), layout.shard_bytes, layout.seed, layout.compression]
    digest = hashlib.sha256(json.dumps([options, forms]).encode())
    for column in columns:
        array = values[column.name]
        if column.dtype == "string":
            for item in array.flat:
                data = item.encode() if isinstance(item, str) else bytes(item)
                digest.update(len(data).to_bytes(8, "little"))
                digest.update(data)
            continue
        rows = max(1, _CHUNK_BYTES // max(1, array[:1].nbytes))
        for first in range(0, len(array), rows):
            chunk = array[first : first + rows]
            native = chunk.astype(chunk.dtype.newbyteorder("=")) if chunk.dtype.byteorder == ">" else chunk
            digest.update(np.ascontiguousarray(native).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
