"""External shuffle: orders any number of records by a seed, in bounded memory.

The key of record n is the n-th number of SplitMix64, and records are ordered by key: all orders are
equally likely, and the order depends only on the seed, not on sizes or available memory. Records
that do not fit in memory go to files, one per first byte of the key, which are sorted one after the
other; a file that does not fit in memory is divided again by the next byte.
"""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from shardfeed.errors import DataError

#: Maximum bytes of records in memory; more go to files.
MEMORY_BYTES = 256 << 20
#: Approximate memory of a record besides its bytes: two objects, a pair, its position in a list.
_RECORD_OVERHEAD_BYTES = 176
#: Key, length and CRC-32 of the record that follows.
_HEADER = struct.Struct("<QQI")
_KEY_BITS = 64
_MASK = (1 << _KEY_BITS) - 1
#: Increment of the state of SplitMix64.
_STEP = 0x9E3779B97F4A7C15


class Keys:
    """Keys of the records of one seed.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. Its 2**64
    numbers are distinct, so no two records have the same key.
    """

    def __init__(self, seed: int) -> None:
        # Consecutive seeds would otherwise give the same numbers, shifted by one position.
        self._state = _scramble(seed)

    def key(self, number: int) -> int:
        """Returns the key of record `number`, counted from 0."""
        return _scramble((self._state + (number + 1) * _STEP) & _MASK)


class Mixer:
    """Accepts records in any order and yields them ordered by key.

    - `folder`: for spilled records; created when needed, and emptied by `drain`.
    - `shift`: bit position of the key byte that selects the file.
    """

    def __init__(self, folder: Path, shift: int = _KEY_BITS - 8) -> None:
        self._folder = folder
        self._shift = shift
        self._held: list[tuple[int, bytes]] = []
        self._held_bytes = 0
        self._spilled = False

    def add(self, key: int, record: bytes) -> None:
        """Adds a record; its key must be unique."""
        size = len(record) + _RECORD_OVERHEAD_BYTES
        if self._held and self._held_bytes + size > MEMORY_BYTES:
            self._spill()
        self._held.append((key, record))
        self._held_bytes += size

    def drain(self) -> Iterator[bytes]:
        """Yields all records ordered by key; the mixer must not be used afterwards."""
        if not self._spilled:
            self._held.sort()
            yield from (record for _, record in self._held)
            self._held.clear()
            return
        self._spill()
        for byte in range(256):
            path = self._file(byte)
            if path.exists():
                inner = Mixer(self._folder / f"in-{byte:02x}", self._shift - 8)
                for key, record in _read(path):
                    inner.add(key, record)
                path.unlink()
                yield from inner.drain()
        shutil.rmtree(self._folder)

    def _spill(self) -> None:
        """Appends the records in memory to the files, with one file open at a time."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._spilled = True
        self._held.sort()
        for byte, records in groupby(self._held, key=lambda pair: pair[0] >> self._shift & 0xFF):
            with self._file(byte).open("ab") as file:
                for key, record in records:
                    file.write(_HEADER.pack(key, len(record), zlib.crc32(record)))
                    file.write(record)
        self._held.clear()
        self._held_bytes = 0

    def _file(self, byte: int) -> Path:
        return self._folder / f"{byte:02x}"


def _read(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        while header := file.read(_HEADER.size):
            if len(header) == _HEADER.size:
                key, length, checksum = _HEADER.unpack(header)
                record = file.read(length)
                if len(record) == length and zlib.crc32(record) == checksum:
                    yield key, record
                    continue
            raise DataError(f"{path}: data written a moment ago came back damaged; check the disk")


def _scramble(state: int) -> int:
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
    return state ^ state >> 31
