"""Storage of columns of any type in Examples, which hold int64, float32 and byte strings.

- int64 and float32: directly.
- str and bytes: as byte strings, text as UTF-8.
- all other numbers (bool, (u)int8 to (u)int32, float16, bfloat16, float64): their bytes,
  little-endian, in row-major order, as one byte string, which `Source.decode_raw` converts back.
"""

from __future__ import annotations

import operator as arithmetic
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardfeed.dtypes import as_numpy, dtype_name
from shardfeed.errors import ConfigError
from shardfeed.features import Feature, FixedLenFeature, VarLenFeature
from shardfeed.sources import Source

Array = npt.NDArray[Any]
_DIRECT = ("int64", "float32", "string")


@dataclass(frozen=True)
class StoredColumn:
    """A column of a dataset written by shardfeed.

    - `dtype`: "string" or a numeric type.
    - `shape`: of one row; `(None,)`: any number of values.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, name: Any, dtype: Any, shape: Any) -> StoredColumn:
        """Validates a column's declaration and returns it."""
        if not isinstance(name, str):
            raise ConfigError(f"a column's name is a str, not {name!r}")
        try:
            dims = tuple(None if dim is None else arithmetic.index(dim) for dim in shape)
        except TypeError:
            raise ConfigError(f"column {name!r}: shape {shape!r} must be a sequence of whole numbers or None") from None
        dtype = _type(name, dtype)
        if None in dims and (dims != (None,) or dtype not in _DIRECT):
            raise ConfigError(
                f"column {name!r}: {dtype} of shape {dims}: rows may differ as (None,) only, of int64, float32 or "
                f"string; pad them, or convert them and use write_dataset()"
            )
        if any(dim is not None and dim < 1 for dim in dims):
            raise ConfigError(f"column {name!r}: shape {dims} has no values; leave it out")
        return cls(name, dtype, dims)

    @property
    def feature(self) -> Feature:
        """Feature of the records that stores the column."""
        stored = self.dtype if self.dtype in _DIRECT else "string"
        if self.shape == (None,):
            return VarLenFeature(stored)
        return FixedLenFeature(() if self.dtype not in _DIRECT else self._dims, stored)

    def decoded(self, source: Source) -> Source:
        """Returns the source with the operator that creates the column, if one is needed."""
        return source if self.dtype in _DIRECT else source.decode_raw(self.name, self.dtype, self._dims)

    def value(self, row: Any) -> Any:
        """Returns a row in the format of `encode_example`.

        Raises `ConfigError` if its type or shape differs from the column's.
        """
        found = self._strings(row) if self.dtype == "string" else self._numbers(row)
        if found.shape != self.shape and not (self.shape == (None,) and found.ndim == 1):
            raise ConfigError(f"column {self.name!r} has shape {self.shape}, but here {found.shape}")
        if self.dtype == "string":
            return found.reshape(-1).tolist()
        if self.dtype in _DIRECT:
            return found
        return found.tobytes()

    @property
    def _dims(self) -> tuple[int, ...]:
        return tuple(dim for dim in self.shape if dim is not None)

    def _strings(self, row: Any) -> Array:
        array = _object_array(row)
        wrong = next((item for item in array.flat if not isinstance(item, str | bytes)), None)
        if wrong is not None:
            raise ConfigError(f"column {self.name!r} has strings, but here {wrong!r:.80}")
        return array

    def _numbers(self, row: Any) -> Array:
        try:
            array = np.asarray(row)
        except ValueError:
            raise ConfigError(f"column {self.name!r} has here rows of different lengths: {row!r:.80}") from None
        asked = as_numpy(self.dtype)
        if array.dtype.name == asked.name:
            return array.astype(asked, copy=False)
        # Python numbers have no fixed type: the column accepts those that it can hold.
        if not hasattr(row, "dtype") and _can_hold(asked, array):
            return array.astype(asked)
        raise ConfigError(f"column {self.name!r} is {self.dtype}, but here {array.dtype}: {row!r:.80}")


def column_of(name: Any, value: Any, rows: bool = False) -> StoredColumn:
    """Returns the column with `value` as a row, or with `rows` as all its rows."""
    array = as_array(name, value)
    if rows and array.ndim < 1:
        raise ConfigError(f"column {name!r} is {value!r:.80}; it needs an array with one row for each record")
    dtype: Any = array.dtype
    if dtype.kind in "SUO":
        if array.size == 0 or not all(isinstance(item, str | bytes) for item in array.flat):
            raise ConfigError(
                f"column {name!r} has objects that are neither numbers, all of one shape, nor strings: {value!r:.80}"
            )
        dtype = str
    return StoredColumn.of(name, dtype, array.shape[rows:])


def as_array(name: Any, value: Any) -> Array:
    """Returns the value as an array; strings as Python objects, as numpy would pad them to the
    longest."""
    leaf = value
    while isinstance(leaf, Sequence) and not isinstance(leaf, str | bytes) and len(leaf) > 0:
        leaf = leaf[0]
    if isinstance(leaf, str | bytes):
        return _object_array(value)
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"column {name!r} is no array: {error}") from None


def _object_array(value: Any) -> Array:
    if isinstance(value, str | bytes):
        array = np.empty((), dtype=object)
        array[()] = value
        return array
    return np.array(value, dtype=object)


def _can_hold(asked: np.dtype[Any], array: Array) -> bool:
    """True if the type can hold Python numbers: integers exactly, fractions rounded."""
    if array.dtype.kind not in "iuf" or asked.kind == "b":
        return False
    with np.errstate(all="ignore"):
        there = array.astype(asked)
        if array.dtype.kind == "f" and asked.kind not in "iu":
            return np.array_equal(np.isfinite(there), np.isfinite(array))
        return np.array_equal(there.astype(array.dtype), array)


def _type(name: str, dtype: Any) -> str:
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if dtype in (str, bytes) or text in ("string", "bytes", "str") or getattr(dtype, "kind", "") in ("S", "U"):
        return "string"
    try:
        return dtype_name(dtype)
    except ConfigError:
        hint = {"uint64": "; convert it to int64, if its values allow that", "complex64": "; store its view as float32"}
        text = repr(dtype) if text is None else text
        raise ConfigError(f"column {name!r} is {text}, which cannot be stored{hint.get(text, '')}") from None

