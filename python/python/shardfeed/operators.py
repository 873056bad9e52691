"""Operators: transformations of a sample's columns by the worker, as in TensorFlow and numpy.

They are declared in `Loader(operators=[...])` and applied in order. Each creates one column, with
the same fixed shape for every row, and may replace its input: `output` defaults to the input's
name. Shapes and axes are those of one row, without the batch dimension.

    operators=[
        op.decode_raw("board", "uint8", (194,)),
        op.unpack_bits("board", output="bits"),
        op.compute("value", "tanh(score / 400)", "float32"),
    ]

docs/OPERATORS.md defines each operator for every input, and lists the comparisons with TensorFlow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardfeed.dtypes import DType
from shardfeed.dtypes import dtype_name as _dtype
from shardfeed.errors import ConfigError
from shardfeed.tables import Table

@dataclass(frozen=True)
class Operator:
    """One operator, created by the functions of this module."""

    output: str
    operation: dict[str, dict[str, object]]


def decode_raw(
    input: str,
    dtype: DType,
    shape: Sequence[int | str] | int,
    *,
    little_endian: bool = True,
    fixed_length: int | None = None,
    output: str | None = None,
) -> Operator:
    """Converts the bytes of a string to numbers of `dtype` and `shape`, as `tf.io.decode_raw`.

    - `fixed_length`: bytes to which every string is truncated or padded with zeros. None: a string
      of another length is an error.
    - `shape`: with names of int64 columns, `("height", "width", 3)`, it is the shape of an image,
      and differs from row to row, as for `decode_image`.
    """
    fields: dict[str, Any] = {
        "dtype": _dtype(dtype),
        "shape": _dims("shape", shape),
        "little_endian": bool(little_endian),
    }
    if fixed_length is not None:
        fields["fixed_length"] = _size("fixed_length", fixed_length)
    return _one("decode_raw", input, output, fields)


def cast(input: str, dtype: DType, *, output: str | None = None) -> Operator:
    """Converts numbers to another type, as `tf.cast`. A float out of range of an integer type
    becomes its largest or smallest value, and NaN becomes 0 (undefined in TensorFlow)."""
    return _one("cast", input, output, {"dtype": _dtype(dtype)})


def reshape(
    input: str, shape: Sequence[int | str] | int, *, output: str | None = None
) -> Operator:
    """Changes the shape; one size may be -1. With names of int64 columns it is the shape of an
    image, and differs from row to row, as for `decode_image`."""
    return _one("reshape", input, output, {"shape": _dims("shape", shape, -1)})


def unpack_bits(
    input: str, *, bit_order: Literal["big", "little"] = "big", output: str | None = None
) -> Operator:
    """Expands each uint8 to eight numbers, 0 or 1, along the last dimension, as `np.unpackbits(x,
    axis=-1)`."""
    if bit_order not in ("big", "little"):
        raise ConfigError(f'bit_order is "big" or "little", not {bit_order!r}')
    return _one("unpack_bits", input, output, {"bit_order": bit_order})


def scale(
    input: str,
    scale: float | Sequence[float] = 1.0,
    offset: float | Sequence[float] = 0.0,
    *,
    dtype: DType = "float32",
    output: str | None = None,
) -> Operator:
    """Computes `x * scale + offset` in `dtype`, float32 or float64; one value for all, or one for
    each index of the last dimension."""
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
    dtype: DType = "float32",
    output: str | None = None,
) -> Operator:
    """Computes `(x - mean) / std` in `dtype`, float32 or float64; one value for all, or one for
    each index of the last dimension."""
    fields = {"mean": _floats("mean", mean), "std": _floats("std", std), "dtype": _dtype(dtype)}
    return _one("normalize", input, output, fields)


def transpose(input: str, perm: Sequence[int], *, output: str | None = None) -> Operator:
    """Permutes the dimensions to the order `perm`, as `tf.transpose`."""
    return _one("transpose", input, output, {"perm": _sizes("perm", perm)})


def slice(
    input: str, begin: Sequence[int], size: Sequence[int], *, output: str | None = None
) -> Operator:
    """Returns a part of each dimension, as `tf.slice`; a size of -1 means the rest."""
    fields = {"begin": _sizes("begin", begin), "size": _sizes("size", size, -1)}
    return _one("slice", input, output, fields)


def select(
    input: str, indices: Sequence[int], *, axis: int = 0, output: str | None = None
) -> Operator:
    """Selects indices of a dimension, in the given order, as `tf.gather(x, indices, axis)` without
    the batch."""
    fields = {"indices": _sizes("indices", indices), "axis": _size("axis", axis)}
    return _one("select", input, output, fields)


def one_hot(
    input: str,
    depth: int,
    *,
    on: float = 1.0,
    off: float = 0.0,
    dtype: DType = "float32",
    output: str | None = None,
) -> Operator:
    """Adds a last dimension of size `depth`: `on` at the index given by an integer, `off`
    elsewhere, as `tf.one_hot`. An integer out of range gives only `off`."""
    fields = {"depth": _size("depth", depth), "on": _float("on", on), "off": _float("off", off)}
    return _one("one_hot", input, output, {**fields, "dtype": _dtype(dtype)})


def padded_batch(
    input: str,
    length: int,
    *,
    value: float = 0,
    truncate: bool = False,
    output: str | None = None,
) -> Operator:
    """Pads each row of a `VarLenFeature` with `value` to `length`, as `tf.data`'s
    `padded_batch(..., [length], value)`.

    A longer row is an error, or with `truncate` is truncated. Padding to the longest row of the
    batch needs no operator: use `FixedLenSequenceFeature`, with `batch.lengths()`.
    """
    fields = {"length": _size("length", length), "value": _float("value", value), "truncate": bool(truncate)}
    return _one("padded_batch", input, output, fields)


def decode_image(
    input: str,
    channels: int = 3,
    *,
    dtype: DType = "uint8",
    size: Sequence[int] | None = None,
    output: str | None = None,
) -> Operator:
    """Decodes JPEG and PNG strings to images `[height, width, channels]`, as `tf.io.decode_image`.

    JPEG pixels are bit-identical to `tf.io.decode_jpeg(dct_method="INTEGER_ACCURATE")`. Sizes may
    differ from row to row: `resize` or a crop must make them equal before they are batched.
    Orientation metadata is ignored.

    - `channels`: 1 grey, 3 red, green, blue, 4 with alpha. `dtype`: uint8, or uint16 for PNG.
    - `size`: (height, width) of all images; another size is an error.
    """
    fields: dict[str, Any] = {
        "channels": _size("channels", channels),
        "dtype": _dtype(dtype),
    }
    if size is not None:
        fields["size"] = _pair("size", size)
    return _one("decode_image", input, output, fields)


def crop(
    input: str,
    size: Sequence[int] | int,
    *,
    offset: Sequence[int] | None = None,
    output: str | None = None,
) -> Operator:
    """Crops to (height, width) pixels: centered, or from row and pixel `offset`, as
    `tf.image.crop_to_bounding_box`. A smaller image is an error."""
    fields = {"size": _pair("size", size)}
    if offset is not None:
        fields["offset"] = _pair("offset", offset)
    return _one("crop", input, output, fields)


def random_crop(input: str, size: Sequence[int] | int, *, output: str | None = None) -> Operator:
    """Crops to (height, width) pixels at a uniformly random position, as `tf.image.random_crop`.

    Random numbers are keyed by the job's seed, the epoch, the sample and the operator's position:
    the same on any rank and after any resume.
    """
    return _one("random_crop", input, output, {"size": _pair("size", size)})


def random_resized_crop(
    input: str,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    *,
    output: str | None = None,
) -> Operator:
    """Crops a random area, `scale` times the image's, with a random aspect ratio (width by height)
    in `ratio`, at a random position; follow it with `resize`. Keyed as `random_crop`.

    Tries ten times; if no candidate lies within the image, takes the largest centered part with a
    ratio in `ratio`.
    """
    fields = {"scale": _range("scale", scale), "ratio": _range("ratio", ratio)}
    return _one("random_resized_crop", input, output, fields)


def resize(
    input: str,
    size: Sequence[int] | int,
    *,
    method: Literal["nearest", "bilinear", "bicubic"] = "bilinear",
    antialias: bool = True,
    dtype: DType | None = None,
    output: str | None = None,
) -> Operator:
    """Resizes images to (height, width) pixels, as `tf.image.resize`.

    - `antialias`: when downscaling, each pixel averages all pixels that it covers (TensorFlow's
      default is False).
    - `dtype`: None, the images' own type, with rounding; or float32, as in TensorFlow.
    """
    if method not in ("nearest", "bilinear", "bicubic"):
        raise ConfigError(f'method is "nearest", "bilinear" or "bicubic", not {method!r}')
    fields: dict[str, Any] = {
        "size": _pair("size", size),
        "method": method,
        "antialias": bool(antialias),
    }
    if dtype is not None:
        fields["dtype"] = _dtype(dtype)
    return _one("resize", input, output, fields)


def flip(
    input: str,
    axis: Literal["horizontal", "vertical"] = "horizontal",
    *,
    probability: float = 0.5,
    output: str | None = None,
) -> Operator:
    """Mirrors the image horizontally or vertically with `probability`; 1.0: always. Keyed as
    `random_crop`."""
    if axis not in ("horizontal", "vertical"):
        raise ConfigError(f'axis is "horizontal" or "vertical", not {axis!r}')
    fields = {"axis": axis, "probability": _float("probability", probability)}
    return _one("flip", input, output, fields)


def layout(input: str, to: Literal["chw", "hwc"] = "chw", *, output: str | None = None) -> Operator:
    """Transposes images from channels last to channels first, `[channels, height, width]`, or vice
    versa."""
    if to not in ("chw", "hwc"):
        raise ConfigError(f'layout is "chw" or "hwc", not {to!r}')
    return _one("layout", input, output, {"to": to})


def lookup(
    input: str,
    table: str | os.PathLike[str] | Table,
    column: str | None = None,
    *,
    missing: float | Literal["error"] = "error",
    output: str | None = None,
) -> Operator:
    """Returns the rows of `table` for the keys in `input`, as `tf.lookup.StaticHashTable`.

    The keys are int64 (any integers) or byte strings, one per row or of any fixed shape; the output
    has a row of the table for each key. The table is a file of `shardfeed.write_table` that every
    worker opens under the same path; its content is part of the job.

    - `column`: column of the table; optional if it has only one. Also the default name of the
      output.
    - `missing`: "error", or the number to use for a key that is not in the table.
    """
    found = table if isinstance(table, Table) else Table(table)
    if column is None:
        if len(found.columns) != 1:
            raise ConfigError(f"{found.path} has the columns {', '.join(found.columns)}; say which")
        column = next(iter(found.columns))
    if column not in found.columns:
        raise ConfigError(f"{found.path} has no column {column!r}, but {', '.join(found.columns)}")
    dtype, shape = found.columns[column]
    fields: dict[str, Any] = {
        "table": {"digest": found.digest, "path": found.path},
        "column": column,
        "dtype": _dtype(dtype),
        "shape": list(shape),
    }
    if missing != "error":
        fields["missing"] = _float("missing", missing)
    return _one("lookup", input, column if output is None else output, fields)


def compute(output: str, expression: str, dtype: DType = "float32") -> Operator:
    """Evaluates an expression over columns of one number per row, in float64, and casts it to
    `dtype`.

    Supports numbers, column names, `+ - * /`, `< <= > >= == !=`, `and or not`, parentheses, and
    `abs exp floor log max min sign sqrt tanh where(condition, yes, no)`. True is 1 and false is 0.
    Names with characters other than letters, digits and `_` must be enclosed in backticks.
    """
    if not isinstance(expression, str):
        raise ConfigError(f"expression is a str, not {expression!r}")
    return Operator(_name(output), {"compute": {"expression": expression, "dtype": _dtype(dtype)}})


def to_native(operators: Sequence[Operator]) -> str:
    """Returns the operators in the format of the extension module."""
    if not isinstance(operators, Sequence) or isinstance(operators, str):
        raise ConfigError(f"operators is a list of operators, not {operators!r}")
    for number, operator in enumerate(operators):
        if not isinstance(operator, Operator):
            raise ConfigError(
                f"operators[{number}] is {operator!r}; make operators with the functions of shardfeed.operators"
            )
    return json.dumps([{"output": one.output, "operation": one.operation} for one in operators])


#: Operators that a GPU applies.
_ON_DEVICE = ("cast", "layout", "normalize")


def device_to_native(operators: Sequence[Operator]) -> str:
    """As `to_native`, for `Loader(device_operators=[...])`; the CPU accepts the same ones as the
    GPU."""
    text = to_native(operators)
    for number, operator in enumerate(operators):
        (kind, fields), = operator.operation.items()
        if kind not in _ON_DEVICE:
            raise ConfigError(f"device_operators[{number}] is {kind}, but they are {', '.join(_ON_DEVICE)}; use operators")
        if fields["input"] != operator.output:
            raise ConfigError(f"device_operators[{number}] makes {operator.output!r} of {fields['input']!r}; leave output out")
    return text


def _one(kind: str, input: str, output: str | None, fields: dict[str, Any]) -> Operator:
    name = _name(input)
    made = name if output is None else _name(output)
    return Operator(made, {kind: {"input": name, **fields}})


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"a column's name is a str, not {name!r}")
    return name


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


def _dims(what: str, sizes: Any, least: int = 0) -> list[int | str]:
    if isinstance(sizes, str):
        raise ConfigError(f"{what} is a sequence of whole numbers and names, not {sizes!r}")
    if isinstance(sizes, Sequence):
        return [size if isinstance(size, str) else _size(what, size, least) for size in sizes]
    return list(_sizes(what, sizes, least))


def _pair(what: str, size: Any) -> list[int]:
    sizes = _sizes(what, size)
    if isinstance(size, int | np.integer):
        sizes = sizes * 2
    if len(sizes) != 2:
        raise ConfigError(f"{what} is (height, width), not {size!r}")
    return sizes


def _range(what: str, values: Any) -> list[float]:
    numbers = _floats(what, values)
    if len(numbers) != 2:
        raise ConfigError(f"{what} is two numbers, from and to, not {values!r}")
    return numbers


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
