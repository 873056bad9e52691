"""Records in an order that a seed decides, in bounded memory, however many there are.

Record number n has the n-th number of SplitMix64 as its key, and the order is that of the keys: any order is as likely
as any other, and it depends on the seed alone, not on sizes or on how much memory there was. What does not fit in
memory goes to files, one for each first byte of the key, which are sorted one after the other; a file that does not fit
is parted again by the next byte.
"""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from shardfeed.errors import DataError

#: Records in memory at once; more go to files.
MEMORY_BYTES = 256 << 20
#: What Python keeps of a record beside its bytes, about: two objects, a pair, its place in a list.
_RECORD_OVERHEAD_BYTES = 176
#: Key, length, CRC-32 of the record that follows.
_HEADER = struct.Struct("<QQI")
_KEY_BITS = 64
_MASK = (1 << _KEY_BITS) - 1
#: By which the state of SplitMix64 goes on.
_STEP = 0x9E3779B97F4A7C15


class Keys:
    """The keys of the records of one seed.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. No two of its 2**64 numbers are
    equal, so that no two records have one key.
    """

    def __init__(self, seed: int) -> None:
        # Seeds that follow each other would give each other's numbers, one place further.
        self._state = _scramble(seed)

    def key(self, number: int) -> int:
        """The key of record `number`, from 0."""
        return _scramble((self._state + (number + 1) * _STEP) & _MASK)


class Mixer:
    """Takes records in any order, and gives them in that of their keys.

    - `folder`: for files, if there is need; made then, and emptied by `drain`.
    - `shift`: of the key's byte that parts the files.
    """

    def __init__(self, folder: Path, shift: int = _KEY_BITS - 8) -> None:
        self._folder = folder
        self._shift = shift
        self._held: list[tuple[int, bytes]] = []
        self._held_bytes = 0
        self._spilled = False

    def add(self, key: int, record: bytes) -> None:
        """Takes a record; no other one may have its key."""
        size = len(record) + _RECORD_OVERHEAD_BYTES
        if self._held and self._held_bytes + size > MEMORY_BYTES:
            self._spill()
        self._held.append((key, record))
        self._held_bytes += size

    def drain(self) -> Iterator[bytes]:
        """All records, ordered; the last use of the mixer."""
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
        """Appends what is held to the files, one of which is open at a time."""
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
            raise DataError(f"{path}: what was put there a moment ago came back damaged; check the disk")


def _scramble(state: int) -> int:
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
    return state ^ state >> 31
