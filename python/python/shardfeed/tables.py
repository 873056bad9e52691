"""Side tables: rows of fixed size in a file, found by key with `Source.lookup`.

    sf.write_table("scores.sft", ids, {"score": scores, "embedding": embeddings})
    sf.source(files, {"id": sf.FixedLenFeature((), "int64")}).lookup("id", "scores.sft", "score")

A table may be larger than memory: only its header is read when it is opened, and each lookup takes
two small reads, which are verified.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shardfeed import _native
from shardfeed.dtypes import dtype_name
from shardfeed.errors import ConfigError
from shardfeed.operations import bytes_of

#: Type and shape of a row of a column.
Form = tuple[str, tuple[int, ...]]


def write_table(
    path: str | os.PathLike[str], keys: npt.ArrayLike | Sequence[bytes | str], columns: Mapping[str, npt.ArrayLike]
) -> str:
    """Writes the table at `path` and returns its digest. Replaces an existing table when complete.

    - `keys`: integers `[n]`, or n byte strings or str (in UTF-8), as a list or array; unique.
    - `columns`: arrays `[n, ...]` of fixed shape, by name: bool, (u)int8 to int64, float16 to
      float64, bfloat16. They are read twice and not copied whole, so `np.memmap` may be larger than
      memory. Or lists or arrays of bytes or str (in UTF-8): each string of a column takes 4 bytes
      and those of its longest string.

    The same keys and rows in another order give the same file. A table with other content is
    another job: write it under a new name, and do not change a table in use.
    """
    if not isinstance(columns, Mapping) or not columns:
        raise ConfigError(f"columns is a dict of arrays by name, not {columns!r:.80}")
    native: Any
    if isinstance(keys, np.ndarray) and keys.ndim == 1 and keys.dtype.kind in "OSU":
        keys = keys.tolist()
    if isinstance(keys, Sequence) and not isinstance(keys, str) and keys and all(isinstance(key, bytes | str) for key in keys):
        texts = cast("Sequence[bytes | str]", keys)
        native, is_int64 = [bytes_of("keys", text) for text in texts], False
    else:
        array = np.asarray(keys)
        if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
            raise ConfigError(
                f"keys are integers of shape [n], or bytes or str, not {array.dtype} of shape {array.shape}"
            )
        if array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise ConfigError(f"a key is {array.max()}, which is no int64")
        native, is_int64 = np.ascontiguousarray(array, dtype=np.int64), True
    described, pieces = [], []
    for name, values in columns.items():
        column, rows = _column(name, values, len(native))
        described.append(column)
        pieces.append(rows)

    def gather(numbers: bytes) -> bytes:
        rows = np.frombuffer(numbers, np.int64)
        return np.concatenate([piece[rows] for piece in pieces], axis=1).tobytes()

    return _native.write_table(os.fspath(path), native, is_int64, described, gather)


#: Name, type, shape and bytes of a row.
Described = tuple[str, str, list[int], int]


def _column(name: Any, values: Any, rows: int) -> tuple[Described, npt.NDArray[np.uint8]]:
    """Returns a column's description, and its rows as bytes."""
    if not isinstance(name, str):
        raise ConfigError(f"a column's name is a str, not {name!r}")
    try:
        array = np.asarray(values)
    except UnicodeDecodeError:  # str beside bytes
        array = np.asarray(values, dtype=object)
    except ValueError as error:
        raise ConfigError(f"column {name!r} is no array: {error}") from None
    if array.dtype.kind in "OSU":
        # Numpy removes zeros from the ends of strings, unless they are objects.
        array = np.asarray(values, dtype=object)
    if array.ndim < 1 or len(array) != rows:
        raise ConfigError(f"column {name!r} has shape {array.shape}; it needs one row for each of {rows} keys")
    if array.dtype == object:
        return _strings(name, array)
    try:
        dtype = dtype_name(array.dtype)
    except ConfigError as error:
        raise ConfigError(f"column {name!r}: {error}") from None
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    shape = list(array.shape[1:])
    row_bytes = array.dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if row_bytes == 0:
        raise ConfigError(f"column {name!r} has rows of shape {tuple(shape)}, which have no bytes")
    as_bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return (name, dtype, shape, row_bytes), as_bytes.reshape(rows, row_bytes)


def _strings(name: str, array: npt.NDArray[Any]) -> tuple[Described, npt.NDArray[np.uint8]]:
    """Returns the description of a column of strings, and its rows as bytes: of each string its
    length, 4 bytes little-endian, its bytes, and zeros up to the longest string."""
    strings: list[bytes] = []
    for value in array.flat:
        if not isinstance(value, bytes | str):
            raise ConfigError(f"column {name!r} is numbers of one type, or bytes and str, not {value!r:.80}")
        strings.append(bytes_of(f"column {name!r}", value))
    shape = list(array.shape[1:])
    if 0 in shape:
        raise ConfigError(f"column {name!r} has rows of shape {tuple(shape)}, which have no bytes")
    longest = max(map(len, strings), default=0)
    row_bytes = (4 + longest) * int(np.prod(shape, dtype=np.int64))
    cells = b"".join(len(string).to_bytes(4, "little") + string.ljust(longest, b"\0") for string in strings)
    return (name, "bytes", shape, row_bytes), np.frombuffer(cells, np.uint8).reshape(-1, row_bytes)


class Table:
    """Description of a table. Its digest is part of the identity of jobs that use the table."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        #: Absolute path, under which workers open it.
        self.path: str = os.path.abspath(os.fspath(path))
        digest, key, rows, columns = _native.describe_table(self.path)
        #: SHA-256 of the content, in hex.
        self.digest: str = digest
        #: "int64" or "bytes".
        self.key: str = key
        #: Type and shape of a row of each column, by name.
        self.columns: dict[str, Form] = {
            name: ("string" if dtype == "bytes" else dtype, tuple(shape)) for name, dtype, shape in columns
        }
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        return f"Table({self.path!r}: {self._rows} keys, {self.key}, {self.columns}, digest {self.digest[:12]})"
