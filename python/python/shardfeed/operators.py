"""Operators: what the worker makes of a sample's columns, with TensorFlow's and numpy's meaning.

They are declared for `Loader(operators=[...])` and carried out in their order. Each makes one column, of one
fixed shape for every row, and may replace the one that it takes: `output` is the input's name if it is left
out. Shapes and axes are those of one row, without the batch.

    operators=[
        op.decode_raw("board", "uint8", (194,)),
        op.unpack_bits("board", output="bits"),
        op.compute("value", "tanh(score / 400)", "float32"),
    ]

docs/OPERATORS.md says what each does with every input, and where it was compared with TensorFlow.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardfeed.errors import ConfigError

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


@dataclass(frozen=True)
class Operator:
    """One operator, made by the functions of this module."""

    output: str
    operation: dict[str, dict[str, Any]]


def decode_raw(
    input: str,
    dtype: Any,
    shape: Sequence[int] | int,
    *,
    little_endian: bool = True,
    fixed_length: int | None = None,
    output: str | None = None,
) -> Operator:
    """The bytes of a string as numbers of `dtype` and `shape`, as `tf.io.decode_raw`.

    - `fixed_length`: cuts every string off at so many bytes, or fills it up with zeros. None: a string of
      another length is an error.
    """
    fields: dict[str, Any] = {
        "dtype": _dtype(dtype),
        "shape": _sizes("shape", shape),
        "little_endian": bool(little_endian),
    }
    if fixed_length is not None:
        fields["fixed_length"] = _size("fixed_length", fixed_length)
    return _one("decode_raw", input, output, fields)


def cast(input: str, dtype: Any, *, output: str | None = None) -> Operator:
    """The same numbers as another type, as `tf.cast`. A float that no integer of the type can be becomes its
    largest or smallest one, one that is no number 0 (in TensorFlow that is left open)."""
    return _one("cast", input, output, {"dtype": _dtype(dtype)})


def reshape(input: str, shape: Sequence[int] | int, *, output: str | None = None) -> Operator:
    """The same numbers in another shape; one size may be -1."""
    return _one("reshape", input, output, {"shape": _sizes("shape", shape, -1)})


def unpack_bits(
    input: str, *, bit_order: Literal["big", "little"] = "big", output: str | None = None
) -> Operator:
    """Eight numbers, 0 or 1, of each uint8 along the last dimension, as `np.unpackbits(x, axis=-1)`."""
    if bit_order not in ("big", "little"):
        raise ConfigError(f'bit_order is "big" or "little", not {bit_order!r}')
    return _one("unpack_bits", input, output, {"bit_order": bit_order})


def scale(
    input: str,
    scale: float | Sequence[float] = 1.0,
    offset: float | Sequence[float] = 0.0,
    *,
    dtype: Any = "float32",
    output: str | None = None,
) -> Operator:
    """`x * scale + offset`, computed in `dtype`, float32 or float64; one value for all, or one for each of
    the last dimension."""
    fields = {
        "scale": _floats("scale", scale),
        "offset": _floats("offset", offset),
        "dtype": _dtype(dtype),
    }
    return _one("scale", input, output, fields)


def normalize(
    input: str,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    *,
    dtype: Any = "float32",
    output: str | None = None,
) -> Operator:
    """`(x - mean) / std`, computed in `dtype`, float32 or float64; one value for all, or one for each of
    the last dimension."""
    fields = {"mean": _floats("mean", mean), "std": _floats("std", std), "dtype": _dtype(dtype)}
    return _one("normalize", input, output, fields)


def transpose(input: str, perm: Sequence[int], *, output: str | None = None) -> Operator:
    """The dimensions in the order `perm`, as `tf.transpose`."""
    return _one("transpose", input, output, {"perm": _sizes("perm", perm)})


def slice(
    input: str, begin: Sequence[int], size: Sequence[int], *, output: str | None = None
) -> Operator:
    """A part of each dimension, as `tf.slice`; a size of -1 is all that is left."""
    fields = {"begin": _sizes("begin", begin), "size": _sizes("size", size, -1)}
    return _one("slice", input, output, fields)


def select(
    input: str, indices: Sequence[int], *, axis: int = 0, output: str | None = None
) -> Operator:
    """These of a dimension, in this order, as `tf.gather(x, indices, axis)` without the batch."""
    fields = {"indices": _sizes("indices", indices), "axis": _size("axis", axis)}
    return _one("select", input, output, fields)


def one_hot(
    input: str,
    depth: int,
    *,
    on: float = 1.0,
    off: float = 0.0,
    dtype: Any = "float32",
    output: str | None = None,
) -> Operator:
    """A last dimension of `depth` more: `on` at the place that an integer says, `off` elsewhere, as
    `tf.one_hot`. An integer that is no place is all `off`."""
    fields = {"depth": _size("depth", depth), "on": _float("on", on), "off": _float("off", off)}
    return _one("one_hot", input, output, {**fields, "dtype": _dtype(dtype)})


def compute(output: str, expression: str, dtype: Any = "float32") -> Operator:
    """An expression over columns of one number a row, computed in float64 and cast to `dtype`.

    It has numbers, names of columns, `+ - * /`, `< <= > >= == !=`, `and or not`, brackets, and `abs exp floor
    log max min sign sqrt tanh where(condition, yes, no)`. What is true is 1, what is false 0. A name with other
    signs than letters, digits and `_` stands between two backticks.
    """
    if not isinstance(expression, str):
        raise ConfigError(f"expression is a str, not {expression!r}")
    return Operator(_name(output), {"compute": {"expression": expression, "dtype": _dtype(dtype)}})


def to_native(operators: Sequence[Operator]) -> str:
    """The operators as the extension module takes them."""
    if not isinstance(operators, Sequence) or isinstance(operators, str):
        raise ConfigError(f"operators is a list of operators, not {operators!r}")
    for number, operator in enumerate(operators):
        if not isinstance(operator, Operator):
            raise ConfigError(
                f"operators[{number}] is {operator!r}; make operators with the functions of shardfeed.operators"
            )
    return json.dumps([{"output": one.output, "operation": one.operation} for one in operators])


def _one(kind: str, input: str, output: str | None, fields: dict[str, Any]) -> Operator:
    name = _name(input)
    made = name if output is None else _name(output)
    return Operator(made, {kind: {"input": name, **fields}})


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"a column's name is a str, not {name!r}")
    return name


def _dtype(dtype: Any) -> str:
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if text is None:
        try:
            text = "None" if dtype is None else np.dtype(dtype).name
        except TypeError:
            text = repr(dtype)
    if text not in _DTYPES:
        raise ConfigError(f"dtype {text!r} is none of {', '.join(_DTYPES)}")
    if text == "bfloat16":
        as_numpy(text)
    return text


def as_numpy(dtype: str) -> Any:
    """numpy's type of a column's type."""
    if dtype != "bfloat16":
        return np.dtype(dtype)
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        raise ConfigError(
            "numpy has no bfloat16; install ml_dtypes, which brings it, or use float32"
        ) from None
    return np.dtype(ml_dtypes.bfloat16)


def _size(what: str, size: Any, least: int = 0) -> int:
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < least:
        raise ConfigError(f"{what} has {size!r}; it needs whole numbers, {least} or more")
    return int(size)


def _sizes(what: str, sizes: Any, least: int = 0) -> list[int]:
    if isinstance(sizes, int | np.integer):
        sizes = [sizes]
    try:
        return [_size(what, size, least) for size in sizes]
    except TypeError:
        raise ConfigError(f"{what} is a sequence of whole numbers, not {sizes!r}") from None


def _float(what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{what} has {value!r}, which is no number") from None
    if not np.isfinite(number):
        raise ConfigError(f"{what} has {number}, which is not finite")
    return number


def _floats(what: str, values: Any) -> list[float]:
    return [_float(what, value) for value in np.atleast_1d(np.asarray(values, dtype=object)).tolist()]
