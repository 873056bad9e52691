"""Shards of unequal sizes, some of them empty, as in real datasets; and their digest."""

from __future__ import annotations

import hashlib
import random
import re
from pathlib import Path
from typing import Any

import shardfeed as sf

#: In the text of records that `FILTER` leaves out.
DECOY = b"decoy"
FILTER = "id >= 0"


def write(folder: Path, counts: list[int], decoys: bool = False) -> None:
    """Writes shards with these record counts; a record's `id` counts over the whole dataset.

    - `decoys`: adds records that `FILTER` leaves out.
    """
    folder.mkdir(parents=True)
    number = 0
    for shard, count in enumerate(counts):
        name = f"part-{shard:05d}.tfrecord"
        with sf.TFRecordWriter(folder / name) as writer:
            for _ in range(count):
                # Lengths differ because the content digest consists of lengths and checksums.
                writer.write(record(number, f"record {number} " * (1 + number % 5)))
                number += 1
                for _ in range(number % 3 if decoys else 0):
                    writer.write(record(-number, f"decoy {number}"))


def record(number: int, text: str) -> dict[str, Any]:
    """Returns a record with 0 to 3 labels and 1 to 39 words."""
    return {"id": number, "text": text, "label": [*range(labels(number))], "words": [*range(words(number))]}


def labels(number: int) -> int:
    return abs(number) * 7 % 4


def words(number: int) -> int:
    return 1 + abs(number) * 31 % 39


def unequal(records: int, shards: int, seed: int) -> list[int]:
    """Returns shard sizes that add up to `records`; the second shard is empty."""
    cuts = sorted(random.Random(seed).sample(range(1, records), shards - 2))
    sizes = [after - before for before, after in zip([0, *cuts], [*cuts, records], strict=True)]
    return [sizes[0], 0, *sizes[1:]]


def read_back(folder: Path) -> tuple[list[str], list[int], str]:
    """Returns names, record counts and the content digest, from the bytes of plain shards."""
    names, counts, whole = [], [], hashlib.sha256()
    for path in sorted(folder.iterdir()):
        data, at, count, each = path.read_bytes(), 0, 0, hashlib.sha256()
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            each.update(data[at : at + 8] + data[at + 12 + length : at + 16 + length])
            at, count = at + 16 + length, count + 1
        whole.update(count.to_bytes(8, "little") + each.digest())
        names.append(path.name)
        counts.append(count)
    return names, counts, whole.hexdigest()


def ids(folder: Path) -> list[int]:
    """Returns the `id` of each record, from its text."""
    found = []
    for path in sorted(folder.iterdir()):
        for each in sf.read_records(path):
            kind, number = re.search(rb"(record|decoy) (\d+)", each).groups()  # type: ignore[union-attr]
            found.append(-int(number) if kind == DECOY else int(number))
    return found


def samples(folder: Path) -> dict[str, list[int]]:
    """Returns the records of each shard without decoys, from the shards alone."""
    return {
        path.name: [number for number, record in enumerate(sf.read_records(path)) if DECOY not in record]
        for path in sorted(folder.iterdir())
    }
