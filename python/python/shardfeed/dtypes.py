"""Numeric types by name."""

from __future__ import annotations

import importlib
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from shardfeed.errors import ConfigError


class NamedType(Protocol):
    """A framework's numeric type, such as `tf.float32`."""

    @property
    def name(self) -> str: ...


#: A numeric type: its name, or numpy's or a framework's type.
DType: TypeAlias = npt.DTypeLike | NamedType

_DTYPES = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)


def dtype_name(dtype: DType | None) -> str:
    """Returns shardfeed's name of a type given by name, or as a type of numpy or a framework."""
    text: Any = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if text is None:
        try:
            text = "None" if dtype is None else np.dtype(cast(Any, dtype)).name
        except TypeError:
            text = repr(dtype)
    if text not in _DTYPES:
        raise ConfigError(f"dtype {text!r} is none of {', '.join(_DTYPES)}")
    return str(text)


def as_numpy(dtype: str) -> Any:
    """Returns the numpy type of a column's type."""
    if dtype != "bfloat16":
        return np.dtype(dtype)
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        raise ConfigError(
            'numpy has no bfloat16; install ml_dtypes, which brings it, or use float32 or Loader(output="torch")'
        ) from None
    return np.dtype(ml_dtypes.bfloat16)
