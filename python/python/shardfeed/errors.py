"""What shardfeed raises. Messages say what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable


class ShardfeedError(Exception):
    """Anything that shardfeed says."""


class ConfigError(ShardfeedError, ValueError):
    """Options that have no meaning, alone or together; the message names values that have."""


class TokenError(ShardfeedError, ValueError):
    """A state that this loader cannot go on from. The loader is unchanged."""


class DatasetNotFoundError(ShardfeedError, FileNotFoundError):
    """No file under a name or pattern."""


class ClusterError(ShardfeedError, ConnectionError):
    """The coordinator or the worker does not answer, or is not the right one."""


class DeniedError(ShardfeedError, PermissionError):
    """The cluster does not know who this is, or does not let it do what it asked for."""


class JobIdentityError(ConfigError):
    """The job's name stands for a job with another identity; the message lists what differs."""


class ConflictError(ShardfeedError):
    """The ranks of one run were started from different states or with different numbers."""


class SupersededError(ShardfeedError):
    """The ranks were started again elsewhere: restart this one from the same state."""


class JobCancelledError(ShardfeedError):
    """Somebody cancelled the job: the message says who. After `shardfeed job resume` ranks may start again."""


class FencedError(ShardfeedError):
    """This rank was started again elsewhere; this loader no longer speaks for it."""


class DeviceError(ShardfeedError, RuntimeError):
    """A GPU, or the thread that copies to it, failed. The batch was not consumed."""


class DataError(ShardfeedError):
    """Something is wrong with a file; the loader stands before it and may be asked again."""

    #: Path of the file.
    file: str | None = None
    #: Offset of the record's header in the uncompressed file, in bytes.
    offset: int | None = None
    #: The record's number in the file, from 0.
    ordinal: int | None = None


class CorruptRecordError(DataError):
    """A record or its framing is damaged, or the file is no TFRecord file."""


class FeatureError(DataError):
    """A record is not what the features say."""


class ShardChangedError(DataError):
    """A file is not the one that was indexed."""


def no_column(name: object, columns: Iterable[str]) -> KeyError:
    """The error for a name that no column has."""
    return KeyError(f"there is no column {name!r}; the columns are {', '.join(map(repr, columns))}")
