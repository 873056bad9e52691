"""Exceptions of shardfeed. Messages state the problem, its location and a remedy."""

from __future__ import annotations

from collections.abc import Iterable


class ShardfeedError(Exception):
    """Base class of all errors of shardfeed."""


class ConfigError(ShardfeedError, ValueError):
    """Options that are invalid, alone or combined; the message lists valid values."""


class StateError(ShardfeedError, ValueError):
    """A state from which this loader cannot resume. The loader is unchanged."""


class DatasetNotFoundError(ShardfeedError, FileNotFoundError):
    """No file matches a name or pattern."""


class ClusterError(ShardfeedError, ConnectionError):
    """The coordinator or the worker does not answer, or is not the expected one."""


class DeniedError(ShardfeedError, PermissionError):
    """The cluster does not authenticate this client, or does not authorize its request."""


class JobIdentityError(ConfigError):
    """The job's name belongs to a job with another identity; the message lists the differences."""


class ConflictError(ShardfeedError):
    """The ranks of one run were started from different states, or with different options such as
    world size, global batch or limit."""


class SupersededError(ShardfeedError):
    """The ranks were restarted elsewhere: restart this one from the same state."""


class JobCancelledError(ShardfeedError):
    """The job was cancelled; the message names who cancelled it. Ranks may start again after
    `shardfeed job resume`."""


class FencedError(ShardfeedError):
    """This rank was restarted elsewhere; this loader no longer acts for it."""


class DeviceError(ShardfeedError, RuntimeError):
    """A GPU, or the thread that copies to it, failed. The batch was not consumed."""


class DataError(ShardfeedError):
    """A file is invalid; the loader stays before it and may be retried."""

    #: Path of the file.
    file: str | None = None
    #: Offset of the record's header in the uncompressed file, in bytes.
    offset: int | None = None
    #: Record number in the file, from 0.
    ordinal: int | None = None


class CorruptRecordError(DataError):
    """A record or its framing is damaged, or the file is no TFRecord file."""


class FeatureError(DataError):
    """A record does not match the features."""


class ShardChangedError(DataError):
    """A file differs from the one that was indexed."""


def no_column(name: object, columns: Iterable[str]) -> KeyError:
    """Returns the error for a column name that does not exist."""
    return KeyError(f"there is no column {name!r}; the columns are {', '.join(map(repr, columns))}")


def no_mixture(name: str) -> ConfigError:
    """Returns the error for `source=name` of an adapter, where batches have no `source`."""
    return ConfigError(f"source={name!r} is for a loader of sf.mix(...), and this one reads no mixture; leave it out")
