"""Writes records as the shards of a dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardfeed.errors import ConfigError
from shardfeed.mixing import Keys, Mixer
from shardfeed.options import Compression, flag, suggesting
from shardfeed.records import Record, TFRecordWriter, as_bytes
from shardfeed.sizes import byte_size, whole_number
from shardfeed.sources import Source, source
from shardfeed.staging import Staging, check_prefix, shard_name

#: Shard names have five digits, and sort by them.
_SHARDS_MAX = 99_999
#: Length and two checksums.
_FRAME_BYTES = 16


@suggesting
def write_dataset(
    iterable: Iterable[Record],
    directory: str | os.PathLike[str],
    *,
    prefix: str = "data",
    shard_bytes: int | str = "150MiB",
    seed: int = 0,
    compression: Compression = None,
    force: bool = False,
) -> Source:
    """Writes records as TFRecord shards `PREFIX-00000-of-00007.tfrecord`; returns their `Source`.

    Records are divided among all shards at random, so that shards are alike for any order of the
    records; the same records and options give the same bytes. At most 256 MiB of records (or the
    longest record) are in memory; larger inputs pass through files in `directory`, which shrink as
    the shards grow. The shards get their names after all of them are written; an error leaves
    nothing.

    - `iterable`: records as for `TFRecordWriter.write`. Read once, to its end.
    - `directory`: local or mounted; created if it does not exist.
    - `prefix`: first part of the shards' names.
    - `shard_bytes`: approximate size of a shard before compression; bytes or text like "150MiB".
    - `seed`: for the division among the shards.
    - `compression`: None, "gzip" or "zlib"; names then end in `.gz` or `.zlib`.
    - `force`: replace existing shards with this prefix once the new ones are complete; otherwise
      they are an error.

    Raises `ConfigError` if shards exist, another process writes them, there are no records, or a
    record cannot be written; the error then has its number. Exceptions of the iterable propagate.
    """
    layout = Layout.of(directory, prefix, shard_bytes, seed, compression, force)
    with layout.stage() as staging:
        staging.refuse_old()
        names, records = layout.write(_encoded(iterable), staging)
        staging.publish(names)
    return source([str(layout.directory / name) for name in names], records=records)


@dataclass(frozen=True)
class Layout:
    """Location of the shards, and the division of records among them."""

    directory: Path
    prefix: str
    shard_bytes: int
    seed: int
    compression: Literal["none", "gzip", "zlib"]
    force: bool

    @classmethod
    def of(
        cls,
        directory: str | os.PathLike[str],
        prefix: str,
        shard_bytes: int | str,
        seed: int,
        compression: Compression,
        force: bool,
    ) -> Layout:
        """Validates the arguments and returns the layout."""
        compression = compression or "none"
        if compression not in ("none", "gzip", "zlib"):
            raise ConfigError(f'compression={compression!r} is none of None, "gzip" and "zlib"')
        path = os.fspath(directory)
        if "://" in path:
            raise ConfigError(f"{path}: shards are written to local or mounted folders; copy them to the store then")
        return cls(
            # Workers that open the files may have another working directory.
            Path(os.path.abspath(path)),
            check_prefix(prefix),
            byte_size("shard_bytes", shard_bytes, 1),
            whole_number("seed", seed, 0),
            compression,
            flag("force", force),
        )

    def stage(self, *, wait: bool = False) -> Staging:
        """Returns the folder for files being written."""
        return Staging(self.directory, self.prefix, force=self.force, wait=wait)

    def write(self, records: Iterable[bytes], staging: Staging) -> tuple[list[str], int]:
        """Writes the shards to the folder.

        Returns their names and the number of records.
        """
        keys, mixer = Keys(self.seed), Mixer(staging.folder / "mixing")
        count = total = 0
        for record in records:
            mixer.add(keys.key(count), record)
            count, total = count + 1, total + len(record) + _FRAME_BYTES
            if total > self.shard_bytes * _SHARDS_MAX:
                raise ConfigError(
                    f"shard_bytes={self.shard_bytes} makes more than {_SHARDS_MAX} shards, before the records end; "
                    f"use more"
                )
        if count == 0:
            raise ConfigError("there are no records to write")
        names: list[str] = []
        ordered = mixer.drain()
        for part in _parts(ordered, count, total, min(-(-total // self.shard_bytes), count)):
            name = shard_name(self.prefix, len(names), part.shards, self.compression)
            with TFRecordWriter(staging.folder / name, self.compression) as writer:
                for record in part.records:
                    writer.write(record)
            names.append(name)
        return names, count


@dataclass(frozen=True)
class _Part:
    records: Iterator[bytes]
    shards: int


def _parts(records: Iterator[bytes], count: int, total: int, shards: int) -> Iterator[_Part]:
    """Cuts `count` records of `total` bytes with their frames into non-empty parts.

    Each part ends where the cumulative size is nearest to its target, as in `shardfeed dataset
    write`. Each part must be consumed before the next one is requested.
    """
    taken, taken_bytes, ahead = 0, 0, next(records, None)

    def part(shard: int) -> Iterator[bytes]:
        nonlocal taken, taken_bytes, ahead
        first, share = taken, total * shard // shards
        # Each remaining part needs at least one record.
        last = count - (shards - shard)
        while ahead is not None and taken < last:
            size = len(ahead) + _FRAME_BYTES
            if taken > first and shard < shards and taken_bytes + size // 2 > share:
                return
            yield ahead
            taken, taken_bytes, ahead = taken + 1, taken_bytes + size, next(records, None)

    for shard in range(1, shards + 1):
        yield _Part(part(shard), shards)


def _encoded(iterable: Iterable[Record]) -> Iterator[bytes]:
    if isinstance(iterable, Mapping):
        raise ConfigError("a dict is no sequence of records; from_arrays() writes a dict of arrays")
    try:
        records = iter(iterable)
    except TypeError:
        hint = "; call it, and pass its result" if callable(iterable) else ""
        raise ConfigError(f"records come from an iterable, not from {type(iterable).__name__}{hint}") from None
    for number, record in enumerate(records):
        yield encode_numbered(number, record)


def encode_numbered(number: int, record: Record) -> bytes:
    """Returns the record's bytes, or raises an error with its number."""
    try:
        return as_bytes(record)
    except (ConfigError, OverflowError) as error:
        raise ConfigError(f"record {number}: {error}") from None
