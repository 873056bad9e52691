"""TFRecord files, record by record."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from shardfeed import _native
from shardfeed.errors import ConfigError
from shardfeed.options import Compression, CompressionChoice


class Message(Protocol):
    """A protocol buffer, such as a `tf.train.Example`."""

    def SerializeToString(self) -> bytes: ...


#: Value of a feature: numbers, `bytes`, `str`, or sequences and arrays of them; None omits it.
Value: TypeAlias = npt.ArrayLike | None
#: Input for a record: its bytes, a protocol buffer, or a dict of features to encode as an Example.
Record: TypeAlias = bytes | bytearray | memoryview | Message | Mapping[str, Value]


def read_records(path: str | os.PathLike[str], compression: CompressionChoice = "auto") -> Iterator[bytes]:
    """Iterates over the records of a file in order, verifying each.

    - `compression`: "auto", "none" (or None), "gzip" or "zlib".

    Raises `DatasetNotFoundError`, and `CorruptRecordError` with file, offset and ordinal at the
    first damaged record. If only that record's data is damaged, `next()` continues after it.
    """
    return _native.NativeRecords(os.fspath(path), compression or "none")


def encode_example(features: Mapping[str, Value]) -> bytes:
    """Returns a serialized `tf.train.Example`.

    Values are numbers, `bytes`, `str` (as UTF-8), or sequences and arrays of them, flattened in
    row-major order: integers and bools become int64, floats float32. None and an empty list omit
    the feature; an empty array of numbers or texts is a list without values.

    Raises `ConfigError` for a value that an Example cannot hold.
    """
    # An empty list has no type, so it is equivalent to no feature.
    typed = [item for item in features.items() if not _is_untyped(item[1])]
    return _native.encode_example([_value(name, value) for name, value in typed])


def encode_sequence_example(
    context: Mapping[str, Value], feature_lists: Mapping[str, Sequence[Value]]
) -> bytes:
    """Returns a serialized `tf.train.SequenceExample`.

    - `context`: features of the whole record, as for `encode_example`.
    - `feature_lists`: name to a sequence of steps, each a value as for `encode_example`. A step
      that is None or an empty list has no values, regardless of the type of the others.

    Raises `ConfigError` for a value that a SequenceExample cannot hold.
    """
    typed = [item for item in context.items() if not _is_untyped(item[1])]
    lists = [
        (name, [(name, "", None) if _is_untyped(step) else _value(name, step) for step in steps])
        for name, steps in feature_lists.items()
    ]
    return _native.encode_sequence_example([_value(name, value) for name, value in typed], lists)


class TFRecordWriter:
    """Writes a TFRecord file, which gets its name when it is complete and closed.

    - `compression`: None, "gzip" or "zlib".

    As a context manager, it removes the file if the block raises.
    """

    def __init__(self, path: str | os.PathLike[str], compression: Compression = None) -> None:
        self._native = _native.NativeWriter(os.fspath(path), compression or "none")

    def write(self, record: Record) -> None:
        """Appends a record: its bytes, a protocol buffer such as a `tf.train.Example`, or a dict of
        features to encode as an Example.

        Raises `ConfigError` for anything else.
        """
        self._native.write(as_bytes(record))

    def close(self) -> None:
        """Completes the file and gives it its name."""
        self._native.finish()

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._native.finish()
        else:
            self._native.abort()


def as_bytes(record: Record) -> bytes:
    """Returns a record's bytes. Raises `ConfigError` for anything that is not a record."""
    if isinstance(record, Mapping):
        return encode_example(record)
    if isinstance(record, bytes | bytearray | memoryview):
        return bytes(record)
    if hasattr(record, "SerializeToString"):
        return record.SerializeToString()
    raise ConfigError(
        f"a record is bytes, a protocol buffer such as tf.train.Example, or a dict of features, not a {type(record).__name__}"
    )


def _is_untyped(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple) and not value)


def _value(name: str, value: Any) -> tuple[str, str, Any]:
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return name, "bytes", [bytes(value)]
    if isinstance(value, list | tuple) and value and isinstance(value[0], bytes | str):
        return name, "bytes", [_bytes(name, item) for item in value]
    array = np.asarray(value)
    if array.dtype.kind in "iub":
        if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
            raise ConfigError(f"feature {name!r}: {array.max()} does not fit int64")
        return name, "int64", np.ascontiguousarray(array, dtype=np.int64).reshape(-1)
    if array.dtype.kind == "f":
        return name, "float32", np.ascontiguousarray(array, dtype=np.float32).reshape(-1)
    # An empty array of objects has no type.
    if array.dtype.kind in "SU" or (array.dtype.kind == "O" and array.size):
        return name, "bytes", [_bytes(name, item) for item in array.reshape(-1).tolist()]
    raise ConfigError(
        f"feature {name!r}: a tf.train.Example holds int64, float32 and bytes, not "
        f"{type(value).__name__} of {array.dtype}"
    )


def _bytes(name: str, item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    raise ConfigError(f"feature {name!r}: {item!r} is not bytes")
