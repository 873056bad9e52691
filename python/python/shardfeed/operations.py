"""Operators of a `Source` in the format of the extension module, and checks of their arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardfeed.dtypes import DType, dtype_name
from shardfeed.errors import ConfigError


@dataclass(frozen=True)
class Operator:
    """One operator: a column made of others by the worker."""

    output: str
    operation: dict[str, dict[str, object]]

    @property
    def method(self) -> str:
        """Name of the method of `Source`."""
        return next(iter(self.operation))

    def json(self) -> str:
        """Returns the operator in the format of the extension module."""
        return json.dumps({"output": self.output, "operation": self.operation})


def to_native(operators: Sequence[Operator]) -> str:
    """Returns the operators in the format of the extension module."""
    return f"[{','.join(operator.json() for operator in operators)}]"


def name_of(name: Any) -> str:
    """Returns a column's name. Raises `ConfigError` if it is not a str, as do the others below."""
    if not isinstance(name, str):
        raise ConfigError(f"a column's name is a str, not {name!r}")
    return name


def one_of(what: str, value: Any, choices: tuple[str, ...]) -> str:
    """Returns one of the texts."""
    if value not in choices:
        listed = ", ".join(f'"{choice}"' for choice in choices[:-1])
        raise ConfigError(f'{what} is {listed} or "{choices[-1]}", not {value!r}')
    return str(value)


def size_of(what: str, size: Any, least: int = 0) -> int:
    is_whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
    if not is_whole or not least <= size < 2**63:
        raise ConfigError(f"{what} has {size!r}; it needs whole numbers, {least} or more and below 2**63")
    return int(size)


def sizes_of(what: str, sizes: Any, least: int = 0) -> list[int]:
    if isinstance(sizes, int | np.integer):
        sizes = [sizes]
    try:
        return [size_of(what, size, least) for size in sizes]
    except TypeError:
        raise ConfigError(f"{what} is a sequence of whole numbers, not {sizes!r}") from None


def dims_of(what: str, sizes: Any, least: int = 0) -> list[int | str]:
    if isinstance(sizes, str):
        raise ConfigError(f"{what} is a sequence of whole numbers and names, not {sizes!r}")
    if isinstance(sizes, Sequence):
        return [size if isinstance(size, str) else size_of(what, size, least) for size in sizes]
    return list(sizes_of(what, sizes, least))


def pair_of(what: str, size: Any) -> list[int]:
    sizes = sizes_of(what, size)
    if isinstance(size, int | np.integer):
        sizes = sizes * 2
    if len(sizes) != 2:
        raise ConfigError(f"{what} is (height, width), not {size!r}")
    return sizes


def range_of(what: str, values: Any) -> list[float]:
    numbers = floats_of(what, values)
    if len(numbers) != 2:
        raise ConfigError(f"{what} is two numbers, from and to, not {values!r}")
    return numbers


def jitter_of(what: str, value: Any, center: int) -> list[float] | None:
    """Returns the range of random numbers around `center`; None: always `center`."""
    numbers = floats_of(what, value)
    if len(numbers) == 1:
        if numbers[0] < 0:
            raise ConfigError(f"{what} is {numbers[0]}; as one number it is 0 or more")
        low = center - numbers[0]
        numbers = [max(0.0, low) if center else low, center + numbers[0]]
    both = range_of(what, numbers)
    return None if both == [center, center] else both


def float_of(what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{what} has {value!r}, which is no number") from None
    except OverflowError:
        raise ConfigError(f"{what} has {value!r:.80}, which float64 cannot hold") from None
    if isinstance(value, int | np.integer) and int(number) != int(value):
        raise ConfigError(f"{what} has {value}, which float64 cannot hold exactly")
    if not np.isfinite(number):
        raise ConfigError(f"{what} has {number}, which is not finite")
    return number


def bytes_of(what: str, text: str | bytes) -> bytes:
    """Returns a str as UTF-8."""
    try:
        return text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} has a str without UTF-8: {error}") from None


def text_of(what: str, text: str | bytes) -> str:
    try:
        return bytes_of(what, text).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} has bytes that are not UTF-8: {error}") from None


def constant_of(value: Any, dtype: DType | None) -> dict[str, object]:
    """Returns the fields of the operator `constant`."""
    try:
        # Numpy removes zeros from the ends of strings, unless they are objects.
        texts = np.asarray(value, dtype=object)
        is_text = texts.size > 0 and all(isinstance(one, str | bytes) for one in texts.flat)
        array = texts if is_text else np.asarray(value)
    except ValueError as error:
        raise ConfigError(f"value is no array: {error}") from None
    flat: list[Any]
    if is_text:
        if dtype is not None:
            raise ConfigError(f"value is strings; leave dtype={dtype!r} out")
        name = "bytes"
        flat = [text_of("value", text) for text in array.flat]
    else:
        is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
        if not is_float and array.dtype.kind not in "biu":
            raise ConfigError(f"value is numbers or strings, not {value!r:.80}")
        if dtype is None:
            dtype = "float32" if is_float and not isinstance(value, np.ndarray | np.generic) else array.dtype
        name = dtype_name(dtype)
        flat = [float_of("value", number) if is_float else int(number) for number in array.flat]
    return {"value": flat, "shape": list(array.shape), "dtype": name}


def floats_of(what: str, values: Any) -> list[float]:
    return [float_of(what, value) for value in np.atleast_1d(np.asarray(values, dtype=object)).tolist()]


def row_offsets(offsets: Any) -> list[dict[str, Any]]:
    """Returns the columns of which `unbatch` takes several rows, in the format of the extension module."""
    if not isinstance(offsets, Mapping):
        raise ConfigError(f"offsets is a dict of column to (first, last), not {offsets!r}")
    found: list[dict[str, Any]] = []
    for name, pair in offsets.items():
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ConfigError(f"offsets of {name!r} are (first, last), not {pair!r}")
        found.append({"name": name, "offsets": [size_of(f"offsets of {name!r}", one, -(2**63)) for one in pair]})
    return found


def shown_rows(unbatch: str) -> str:
    """Returns the columns and settings of `unbatch` as text, from the format of the extension module."""
    spec = json.loads(unbatch)
    plain = [column["name"] for column in spec["columns"] if "offsets" not in column]
    offsets = {column["name"]: tuple(column["offsets"]) for column in spec["columns"] if "offsets" in column}
    text = f"{plain!r}" + (f" offsets={offsets!r} edge={spec['edge']!r}" if offsets else "")
    return text + (f" stride={spec['stride']}" if spec["stride"] > 1 else "")


def shown_balance(balance: str | None) -> str:
    """Returns the cost and window of `balance` as text, from the format of the extension module."""
    if balance is None:
        return ""
    spec = json.loads(balance)
    return f", balance {spec['by']!r} window={spec['window']}"


def appended(columns: Sequence[str], features: Mapping[str, Any], append: Any) -> list[dict[str, list[Any]]]:
    """Returns the value that `pack` appends to each column, in the format of the extension module."""
    if append is None:
        return []
    values = append if isinstance(append, Mapping) else {columns[0]: append}
    if sorted(values) != sorted(columns):
        raise ConfigError(f"append has {sorted(values)}; with several columns it is a dict of all of them: {sorted(columns)}")
    found: list[dict[str, list[Any]]] = []
    for name in columns:
        value, feature = values[name], features.get(name)
        is_float = feature is not None and np.dtype(feature.dtype if feature.dtype != "string" else "int64").kind == "f"
        if is_float and isinstance(value, int | float | np.number) and not isinstance(value, bool):
            if not np.isfinite(value):
                raise ConfigError(f"append of {name!r} is {value!r}; it needs a finite number")
            found.append({"float32": [float(value)]})
        else:
            whole = size_of(f"append of {name!r}", value, -(2**63))
            found.append({"int64": [whole]})
    return found
