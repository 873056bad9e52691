"""What is in a record: names and meaning of TensorFlow's `tf.io.*Feature`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardfeed.errors import ConfigError

_DTYPES = {
    "float32": "float32",
    "float": "float32",
    "int64": "int64",
    "string": "bytes",
    "bytes": "bytes",
}


@dataclass(frozen=True)
class FixedLenFeature:
    """The same number of values in every record.

    - `shape`: of one record's values, `()` for one value.
    - `dtype`: "float32", "int64" or "string" (byte strings); anything whose name is one of these, as
      numpy's and TensorFlow's types, will do.
    - `default_value`: for records without the feature, of this shape; a scalar fills it. None: such
      a record is an error.

    Gives an array `[rows, *shape]`; for strings a `BytesColumn`.
    """

    shape: Sequence[int]
    dtype: Any
    default_value: Any = None


@dataclass(frozen=True)
class VarLenFeature:
    """Any number of values in a record, also none.

    Gives a `RaggedColumn`; for strings a `RaggedBytesColumn`.
    """

    dtype: Any


Feature = FixedLenFeature | VarLenFeature
FeatureTuple = tuple[str, str, str, list[int], list[Any] | None]


def to_native(features: Mapping[str, Feature] | None) -> list[FeatureTuple] | None:
    """The features as the extension module takes them."""
    if features is None:
        return None
    if not isinstance(features, Mapping):
        raise ConfigError(
            f"features must be a dict of name to FixedLenFeature or VarLenFeature, or None for raw "
            f"records; got {type(features).__name__}"
        )
    if not features:
        raise ConfigError("features is empty; name at least one, or pass None for raw records")
    return [_to_native(name, feature) for name, feature in features.items()]


def _to_native(name: str, feature: Feature) -> FeatureTuple:
    if not isinstance(name, str):
        raise ConfigError(f"a feature's name is a str, not {name!r}")
    if isinstance(feature, VarLenFeature):
        return (name, "var_len", _dtype(name, feature.dtype), [], None)
    if isinstance(feature, FixedLenFeature):
        dtype, shape = _dtype(name, feature.dtype), _shape(name, feature.shape)
        return (name, "fixed_len", dtype, shape, _default(name, feature, dtype, shape))
    raise ConfigError(
        f"feature {name!r} must be a FixedLenFeature or a VarLenFeature, not "
        f"{type(feature).__name__}"
    )


def _dtype(name: str, dtype: Any) -> str:
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if dtype is bytes:
        text = "bytes"
    if text is None:
        try:
            text = np.dtype(dtype).name
        except TypeError:
            text = repr(dtype)
    if text not in _DTYPES:
        raise ConfigError(
            f"feature {name!r}: dtype {text!r} cannot be in a tf.train.Example; use \"float32\", "
            f"\"int64\" or \"string\" and convert the array"
        )
    return _DTYPES[text]


def _shape(name: str, shape: Sequence[int] | int) -> list[int]:
    dims = [shape] if isinstance(shape, int) else list(shape)
    if not all(isinstance(dim, int | np.integer) and dim >= 0 for dim in dims):
        raise ConfigError(f"feature {name!r}: shape {shape!r} must be known sizes, each 0 or more")
    return [int(dim) for dim in dims]


def _default(
    name: str, feature: FixedLenFeature, dtype: str, shape: list[int]
) -> list[Any] | None:
    if feature.default_value is None:
        return None
    try:
        if dtype == "bytes":
            values = np.empty((), dtype=object)
            values[()] = feature.default_value
            if isinstance(feature.default_value, list | tuple | np.ndarray):
                values = np.array(feature.default_value, dtype=object)
            flat = np.broadcast_to(values, shape).reshape(-1).tolist()
            return [item.encode() if isinstance(item, str) else bytes(item) for item in flat]
        values = np.asarray(feature.default_value)
        if values.dtype.kind not in ("iub" if dtype == "int64" else "iubf"):
            raise ValueError(f"{feature.default_value!r} is not {dtype}")
        return [value.item() for value in np.broadcast_to(values, shape).reshape(-1)]
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"feature {name!r}: default_value does not have dtype {dtype} and shape {tuple(shape)}: "
            f"{error}"
        ) from None
