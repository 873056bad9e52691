"""Features of records, with the names and semantics of TensorFlow's `tf.io.*Feature`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from shardfeed.dtypes import DType
from shardfeed.errors import ConfigError
from shardfeed.options import flag

#: Value for records without the feature: a number, a string, or an array or nested lists of them.
Default: TypeAlias = npt.ArrayLike | None

_DTYPES = {
    "float32": "float32",
    "float": "float32",
    "int64": "int64",
    "string": "bytes",
    "bytes": "bytes",
}


class Feature:
    """Base class of the features, which describe the values under a name in a record."""

    __slots__ = ()


class ForeignFeature(Protocol):
    """A `tf.io.FixedLenFeature`, `VarLenFeature`, `FixedLenSequenceFeature`, `RaggedFeature` or `SparseFeature`."""

    @property
    def dtype(self) -> object: ...


@dataclass(frozen=True)
class FixedLenFeature(Feature):
    """The same number of values in every record.

    - `shape`: of the values of one record; `()` for one value.
    - `dtype`: "float32", "int64" or "string" (byte strings); or an object with one of these names,
      such as a numpy or TensorFlow type.
    - `default_value`: for records without the feature: as many values as the shape holds; as in
      TensorFlow, a single value is not repeated. None, or a default without values: such a record
      is an error.

    Gives an array `[rows, *shape]`; for strings a `BytesColumn`.
    """

    shape: Sequence[int] | int
    dtype: DType
    default_value: Default = None


@dataclass(frozen=True)
class VarLenFeature(Feature):
    """Zero or more values per record.

    Gives a `RaggedColumn`; for strings a `RaggedBytesColumn`. In `sequence_features`, zero or more
    values per step: rows of steps of values.
    """

    dtype: DType


@dataclass(frozen=True)
class FixedLenSequenceFeature(Feature):
    """Any number of values of one shape, padded to the longest record of the batch.

    - `shape`, `dtype`: of one value, as for `FixedLenFeature`.
    - `allow_missing`: whether a record without the feature has no values; must be True in
      `features`.
    - `default_value`: one value for padding; default 0 or the empty string. Not in
      `sequence_features`.

    Gives an array `[rows, longest, *shape]`, for strings a `BytesColumn`; `batch.lengths(name)` has
    the number of values per row. In `sequence_features` each step has one value of this shape.
    """

    shape: Sequence[int] | int
    dtype: DType
    allow_missing: bool = False
    default_value: Default = None


@dataclass(frozen=True)
class RaggedFeature(Feature):
    """Any number of values, partitioned into (nested) rows by other features of the record.

    - `value_key`: key of the values, if different from the feature's name.
    - `partitions`: outermost first: `RaggedFeature.RowSplits(key)`, `RowLengths(key)`,
      `RowStarts(key)`, `RowLimits(key)`, `ValueRowIds(key)`, `UniformRowLength(length)`. A
      partition that does not fit its values is an error.

    Gives a `RaggedColumn` with one split for the records and one for each partition; trailing
    uniform lengths become dimensions of the values instead. Splits are int64.
    """

    dtype: DType
    value_key: str | None = None
    partitions: Sequence[_Partition] = ()

    @dataclass(frozen=True)
    class RowSplits:
        """Start of each row, and the end of the last row."""

        key: str
        what: ClassVar[str] = "row_splits"

    @dataclass(frozen=True)
    class RowLengths:
        """Number of values in each row."""

        key: str
        what: ClassVar[str] = "row_lengths"

    @dataclass(frozen=True)
    class RowStarts:
        """Start of each row."""

        key: str
        what: ClassVar[str] = "row_starts"

    @dataclass(frozen=True)
    class RowLimits:
        """End of each row."""

        key: str
        what: ClassVar[str] = "row_limits"

    @dataclass(frozen=True)
    class ValueRowIds:
        """Row number of each value, ascending."""

        key: str
        what: ClassVar[str] = "value_row_ids"

    @dataclass(frozen=True)
    class UniformRowLength:
        """All rows have `length` values."""

        length: int
        what: ClassVar[str] = "uniform_row_length"


_Partition = (
    RaggedFeature.RowSplits
    | RaggedFeature.RowLengths
    | RaggedFeature.RowStarts
    | RaggedFeature.RowLimits
    | RaggedFeature.ValueRowIds
    | RaggedFeature.UniformRowLength
)


@dataclass(frozen=True)
class SparseFeature(Feature):
    """Values at positions of a large and mostly empty tensor.

    - `index_key`: key of the positions, int64, as many as values; one key per dimension.
    - `value_key`, `dtype`: the values.
    - `size`: of each dimension; a position outside it is an error.
    - `already_sorted`: whether the positions ascend in every record, which is checked; otherwise
      they are sorted.

    Gives a `SparseColumn` of shape `[rows, *size]`.
    """

    index_key: str | Sequence[str]
    value_key: str
    dtype: DType
    size: int | Sequence[int]
    already_sorted: bool = False


_FEATURES: dict[str, type[Feature]] = {
    kind.__name__: kind
    for kind in (FixedLenFeature, VarLenFeature, FixedLenSequenceFeature, RaggedFeature, SparseFeature)
}

#: Name; everything but the default, as JSON; default.
FeatureTuple = tuple[str, str, list[Any] | None]


def checked(
    features: Mapping[str, Feature | ForeignFeature] | None, argument: str = "features"
) -> dict[str, Feature] | None:
    """Returns the features, converting those of TensorFlow. Raises `ConfigError` for anything
    else."""
    if features is None:
        return None
    if not isinstance(features, Mapping):
        raise ConfigError(
            f"{argument} must be a dict of name to FixedLenFeature, VarLenFeature or another feature, or "
            f"None for raw records; got {type(features).__name__}"
        )
    if not features:
        raise ConfigError(f"{argument} is empty; name at least one, or pass None for raw records")
    return {_name(name): _ours(name, feature) for name, feature in features.items()}


def to_native(features: Mapping[str, Feature] | None) -> list[FeatureTuple] | None:
    """Returns `checked` features in the format of the extension module."""
    return None if features is None else [_to_native(name, feature) for name, feature in features.items()]


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"a feature's name is a str, not {name!r}")
    return name


def _ours(name: str, feature: object) -> Feature:
    if type(feature) in _FEATURES.values():
        return cast(Feature, feature)
    kind = _FEATURES.get(type(feature).__name__)
    if kind is None or not _is_tensorflows(feature):
        raise ConfigError(
            f"feature {name!r} must be a FixedLenFeature, a VarLenFeature or another feature of "
            f"shardfeed or tf.io, not {type(feature).__name__}"
        )
    # TensorFlow's are named tuples; their additional fields concern TensorFlow's own tensors.
    fields = {field.name: getattr(feature, field.name) for field in dataclasses.fields(cast(Any, kind))}
    if kind is RaggedFeature:
        fields["partitions"] = tuple(_our_partition(each) for each in fields["partitions"])
    return kind(**fields)


def _our_partition(partition: object) -> object:
    kind = getattr(RaggedFeature, type(partition).__name__.lstrip("_"), None)
    if kind is None or not _is_tensorflows(partition):
        return partition
    return cast(object, kind(*(getattr(partition, field.name) for field in dataclasses.fields(kind))))


def _is_tensorflows(value: object) -> bool:
    return type(value).__module__.split(".")[0] in ("tensorflow", "tensorflow_core", "keras")


def _to_native(name: str, feature: Feature) -> FeatureTuple:
    default = None
    fields: dict[str, Any]
    match feature:
        case VarLenFeature():
            kind, fields = "var_len", {}
        case FixedLenFeature():
            shape = _shape(name, feature.shape)
            kind, fields = "fixed_len", {"shape": shape}
            default = _default(name, feature, _dtype(name, feature.dtype), shape)
        case FixedLenSequenceFeature():
            shape = _shape(name, feature.shape)
            kind = "fixed_len_sequence"
            fields = {"shape": shape, "allow_missing": flag(f"feature {name!r}: allow_missing", feature.allow_missing)}
            default = _default(name, feature, _dtype(name, feature.dtype), [])
        case RaggedFeature():
            kind, fields = "ragged", _ragged(name, feature)
        case SparseFeature():
            kind, fields = "sparse", _sparse(name, feature)
        case _:
            raise AssertionError(f"{feature!r} was checked to be a feature")
    text = json.dumps({kind: {"dtype": _dtype(name, feature.dtype), **fields}})
    return (name, text, default)


def _ragged(name: str, feature: RaggedFeature) -> dict[str, Any]:
    partitions: list[dict[str, str | int]] = []
    for partition in feature.partitions:
        if isinstance(partition, RaggedFeature.UniformRowLength):
            length = partition.length
            if not isinstance(length, int | np.integer) or length < 1:
                raise ConfigError(f"feature {name!r}: a uniform row length is 1 or more, not {length!r}")
            partitions.append({partition.what: int(length)})
        elif isinstance(partition, _Partition):
            partitions.append({partition.what: _key(name, partition.key)})
        else:
            raise ConfigError(
                f"feature {name!r}: {partition!r} is no partition; use RaggedFeature.RowSplits(key) or another"
            )
    value_key = None if feature.value_key is None else _key(name, feature.value_key)
    return {"value_key": value_key, "partitions": partitions}


def _sparse(name: str, feature: SparseFeature) -> dict[str, Any]:
    keys = [feature.index_key] if isinstance(feature.index_key, str) else list(feature.index_key)
    return {
        "index_keys": [_key(name, key) for key in keys],
        "value_key": _key(name, feature.value_key),
        "size": _shape(name, feature.size),
        "already_sorted": flag(f"feature {name!r}: already_sorted", feature.already_sorted),
    }


def _key(name: str, key: Any) -> str:
    if not isinstance(key, str):
        raise ConfigError(f"feature {name!r}: a key is a str, not {key!r}")
    return key


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
    dims: list[Any]
    try:
        dims = [shape] if isinstance(shape, int | np.integer) else list(shape)
    except TypeError:
        raise ConfigError(f"feature {name!r}: shape {shape!r} must be a sequence of sizes") from None
    if not all(isinstance(dim, int | np.integer) and dim >= 0 for dim in dims):
        raise ConfigError(f"feature {name!r}: shape {shape!r} must be known sizes, each 0 or more")
    return [int(dim) for dim in dims]


def _default(
    name: str, feature: FixedLenFeature | FixedLenSequenceFeature, dtype: str, shape: list[int]
) -> list[Any] | None:
    value: Any = feature.default_value
    if value is None:
        return None
    try:
        # A tensor of a framework.
        values = _default_values(value.numpy() if hasattr(value, "numpy") else value, dtype)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"feature {name!r}: default_value does not have dtype {dtype}: {error}") from None
    if len(values) != prod(shape):
        raise ConfigError(
            f"feature {name!r}: default_value has {len(values)} values, and shape {tuple(shape)} holds {prod(shape)}; "
            f"give one for each (TensorFlow does not repeat a single one either)"
        )
    return values


def _default_values(value: Any, dtype: str) -> list[Any]:
    """Returns all values in row-major order."""
    if dtype == "bytes":
        items = np.empty((), dtype=object)
        items[()] = value
        if isinstance(value, list | tuple | np.ndarray):
            items = np.array(value, dtype=object)
        flat = items.reshape(-1).tolist()
        if not all(isinstance(item, str | bytes | bytearray | memoryview) for item in flat):
            raise ValueError(f"{value!r} is not bytes")
        return [item.encode() if isinstance(item, str) else bytes(item) for item in flat]
    array = np.asarray(value)
    if array.size == 0:
        return []  # without values there is no type to check
    if dtype == "int64" and array.dtype == np.uint64 and array.max() >= 2**63:
        raise ValueError(f"{array.max()} does not fit int64")
    if array.dtype.kind not in ("iub" if dtype == "int64" else "iubf"):
        raise ValueError(f"{value!r} is not {dtype}")
    return [item.item() for item in array.reshape(-1)]
