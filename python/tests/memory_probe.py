"""A loader in its own process, whose memory a test measures: `memory_probe.py CASE FILES BUDGET`.

Prints `ready` after imports and before opening anything, continues when it reads a line, and ends
with the largest size of a batch in bytes and the number of rows. A batch is dropped before the next
one is requested.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "examples" / name) for name in ("chess", "imagenet", "tokens")]

import boards  # noqa: E402
import images  # noqa: E402
import sequences  # noqa: E402

VALUES = {"values": sf.VarLenFeature("int64")}
PHOTO = {"image": sf.FixedLenFeature((), "string")}

#: Typical loaders, each for the files that its test writes.
CASES: dict[str, Callable[..., sf.Loader]] = {
    "raw": sf.Loader,
    "windows": lambda files, **options: sf.Loader(files, batch_size=512, shuffle_window=60_000, **options),
    "large": lambda files, **options: sf.Loader(files, batch_size=32, shuffle_window=100, **options),
    "placed": lambda files, **options: sf.Loader(files, batch_size=32, shuffle_window=5_000, **options),
    "skewed": lambda files, **options: sf.Loader(files, VALUES, batch_size=32, shuffle_window=64, **options),
    "padded": lambda files, **options: sf.Loader(
        files, {"values": sf.FixedLenSequenceFeature((), "int64", allow_missing=True)}, batch_size=32, shuffle_window=64, **options
    ),
    "photos": lambda files, **options: sf.Loader(
        sf.source(files, PHOTO).decode_image("image").resize("image", (64, 64)).cast("image", "float32"),
        batch_size=16, shuffle_window=16, outputs=["image"], **options,
    ),
    "chess": boards.loader,
    "imagenet": images.loader,
    "tokens": sequences.loader,
}  # fmt: skip


def bytes_of(batch: sf.Batch) -> int:
    total = 0
    for name in batch:
        column: Any = batch[name]
        parts = [column] if isinstance(column, np.ndarray) else [getattr(column, part, None) for part in PARTS]
        total += sum(part.nbytes for part in parts if isinstance(part, np.ndarray))
    return total


PARTS = ("values", "row_splits", "offsets", "lengths")


def main() -> None:
    case, files, budget, options = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
    print("ready", flush=True)
    sys.stdin.readline()
    rows, largest = 0, 0
    if budget != "none":
        options["memory_budget"] = budget
    with CASES[case](files, **options) as loader:
        for batch in loader:
            rows, largest = rows + batch.rows, max(largest, bytes_of(batch))
            del batch
        stats = loader.stats()
    chosen = {name: stats.get(name) for name in ("reading", "prefetch", "slot_bytes")}
    print(json.dumps({"rows": rows, "largest": largest, **chosen}), flush=True)


if __name__ == "__main__":
    main()
