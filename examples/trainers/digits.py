"""Shared code of the trainers: the images, and a record of each step's samples.

The images are those of `../digits/pack.py`: handwritten digits, 8x8, each with its number in the
original set.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import shardfeed as sf

FEATURES = {
    "image": sf.FixedLenFeature([64], "float32"),
    "label": sf.FixedLenFeature([], "int64"),
    "index": sf.FixedLenFeature([], "int64"),
}

#: Samples of all ranks in a step. Independent of the number of ranks, as are the batches.
GLOBAL_BATCH = 24
#: Number of lanes, independent of the number of ranks: suits 1, 2, 3, 4, 6 or 12 of them.
LANES = 12
SAVE_EVERY = 20


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--data", required=True, metavar="DIR", help="with train-*.tfrecord")
    made.add_argument("--test", required=True, metavar="FILE", help="images that are not trained on")
    made.add_argument("--checkpoint", required=True, type=Path, metavar="DIR", help="resumes from the last one there")
    made.add_argument("--epochs", type=int, default=8)
    made.add_argument("--seen", type=Path, metavar="DIR", help="write there which images each step was trained on")
    return made


class Seen:
    """A file per rank, a line per step: its number as the framework counts it, then the images'
    numbers. The files of all ranks and starts together allow counting each epoch."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._file = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / f"rank-{rank}").open("w", buffering=1)

    def add(self, step: int, indices: Iterable[int]) -> None:
        if self._file is not None:
            self._file.write(" ".join(map(str, [step, *map(int, indices)])) + "\n")
