"""The files in which a host keeps what was counted: worker/source/src/cache/object_log.rs.

Written from the description at the head of that file, so that tests look at the files themselves.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

MAGIC = b"shardfeed objects 1\n"
HEAD = struct.Struct("<IHI")


class Kept(NamedTuple):
    """An object, and its place in the file."""

    offset: int
    content: bytes


def objects(path: Path) -> dict[str, Kept]:
    """Returns the newest complete object of each key; checksums are not verified."""
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        return {}
    found, at = {}, len(MAGIC)
    while at + HEAD.size <= len(data):
        _, key_bytes, object_bytes = HEAD.unpack_from(data, at)
        key, offset = data[at + HEAD.size :][:key_bytes].decode(), at + HEAD.size + key_bytes
        if offset + object_bytes > len(data):
            break
        found[key] = Kept(offset, data[offset : offset + object_bytes])
        at = offset + object_bytes
    return found


def maps(cache: Path) -> int:
    """Returns the number of sample maps in the cache folder of a host."""
    return sum(len(objects(path)) for path in cache.glob("samples-*/*"))


def damage(cache: Path, kind: str) -> None:
    """Flips the last bit of each object of a kind."""
    found = list(cache.glob(f"{kind}-*/*"))
    assert found, f"{cache} has no {kind}"
    for path in found:
        data = bytearray(path.read_bytes())
        for kept in objects(path).values():
            data[kept.offset + len(kept.content) - 1] ^= 1
        path.write_bytes(data)
