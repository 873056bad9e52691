"""Programs that make samples of the records of a fault run, and what they must deliver in an epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import dataset

import shardfeed as sf

#: Three parts of at most 64 shards, so three workers count.
SHARDS = 150
#: Samples of the mixture in an epoch.
MIXTURE_EPOCH = 2_390

FEATURES: dict[str, Any] = {
    "id": sf.FixedLenFeature((), "int64"),
    "label": sf.VarLenFeature("int64"),
    "words": sf.VarLenFeature("int64"),
}


class Program(NamedTuple):
    make: Callable[[Path], sf.Source | sf.Mixture]
    #: Samples of an epoch, or of packs the tokens, counted from the ids of the records.
    counted: Callable[[list[int]], int]
    #: Records for each one of a run without a program.
    times: int = 1
    has_decoys: bool = False


def files(folder: Path, pattern: str = "*") -> sf.Source:
    return sf.source(f"{folder}/{pattern}.tfrecord", FEATURES)


def mixture(folder: Path) -> sf.Mixture:
    """Two sources of 50 and 100 shards; the former has a filter, and its share is delivered several times."""
    less = files(folder, "part-001*").filter(dataset.FILTER)
    return sf.mix({"less": (less, 2), "more": (files(folder, "part-000*"), 1)}, epoch=MIXTURE_EPOCH).balance("len(words)", window=90)


PROGRAMS = {
    "filter": Program(lambda folder: files(folder).filter(dataset.FILTER), lambda ids: sum(number >= 0 for number in ids), 1, True),
    "rows": Program(lambda folder: files(folder).unbatch("label"), lambda ids: sum(map(dataset.labels, ids))),
    "packs": Program(
        lambda folder: files(folder).pack("words", length=64, block=64).balance("sum_squares", window=60),
        lambda ids: sum(map(dataset.words, ids)),
        3,
    ),
    "windows": Program(lambda folder: files(folder).window("id", size=3, stride=1, partial="pad"), len),
    # A window begins with each row.
    "row-windows": Program(
        lambda folder: files(folder).unbatch("label").window("label", "id", size=3, stride=1, by="id", partial="pad"),
        lambda ids: sum(map(dataset.labels, ids)),
    ),
    "balance": Program(lambda folder: files(folder).balance("len(words)", window=80), len),
    "mixture": Program(mixture, lambda ids: MIXTURE_EPOCH, 1, True),
}


def source(program: str | None, folder: Path) -> sf.Source | sf.Mixture:
    """Returns the samples of the shards in a folder. `program`: None: each record is one."""
    return files(folder) if program is None else PROGRAMS[program].make(folder)
