"""Measured cases, the same for all contenders: records, features, batch sizes and goals.

Independent of the contenders: every process of the benchmark imports this, in any Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Number of files per case.
FILES = 4

#: Photographs are resized to a square of side SIDE; `parts` first crops a square of side PART at
#: PLACE.
SIDE, PART, PLACE = 224, 256, (20, 30)

#: Maximum mean difference of a photograph's pixels, out of 255: JPEG decoders round differently.
PIXELS_APART = 1.5

#: Maximum relative difference of floating-point results.
FLOATS_APART = 1e-9

#: Name -> ("string" | "int64" | "float32", shape).
Features = dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Case:
    """One kind of record and its processing."""

    title: str
    records: int
    batch: int
    #: Goal of records per CPU-second, relative to the best setting of tf.data.
    goal: float
    #: The same relative to the other loaders, and of worker and trainer to tf.data service.
    goal_others: float | None = None
    goal_service: float | None = None
    #: Empty: the records' bytes are delivered.
    features: Features = field(default_factory=dict)
    #: Case whose files are used, if not its own.
    files_of: str = ""
    #: Columns that are equal except for rounding.
    rounded: tuple[str, ...] = ()
    #: Contenders besides ours and tf.data.
    others: tuple[str, ...] = ()


PHOTO: Features = {"photo": ("string", ()), "label": ("int64", ())}
SMALL: Features = {"board": ("string", ()), "label": ("int64", ())}
TOKENS: Features = {"inputs": ("int64", (2048,)), "targets": ("int64", (2048,))}
FLOATS: Features = {"x": ("float32", (1024,)), "label": ("int64", ())}

CASES = {
    "raw_large": Case("raw, 112 KB", 1024, 64, 2.5, others=("dali", "torch", "webdataset")),
    "raw_small": Case("raw, 242 bytes", 409_600, 512, 8.0, files_of="small", others=("dali", "torch")),
    "small": Case(
        "small Examples: 194 bytes, an int64", 409_600, 512, 5.0, None, 4.0, SMALL, others=("dali", "torch")
    ),
    "boards": Case("chess boards to float32 planes", 204_800, 512, 5.0, rounded=("target",)),
    "tokens": Case(
        "int64 tokens, 2 x 2048 packed", 12_288, 64, 3.0, None, 4.0, TOKENS, others=("dali", "torch")
    ),
    "floats": Case("1,024 floats, an int64", 24_576, 512, 3.5, None, 4.0, FLOATS, others=("dali", "torch")),
    "photos": Case(
        "JPEG, resized to 224", 1024, 64, 1.2, 1.5, 1.3, PHOTO,
        rounded=("photo",), others=("dali", "torch", "webdataset"),
    ),
    "parts": Case(
        "a part of a JPEG, resized to 224", 1024, 64, 1.2, 1.5, None, PHOTO, "photos",
        rounded=("photo",), others=("dali", "torch", "webdataset"),
    ),
}  # fmt: skip

#: Settings of each contender; the best one counts.
SETTINGS: dict[str, tuple[str, ...]] = {
    "ours": ("default",),
    "ours_cluster": ("default",),
    "tfdata": ("lean", "sequential", "interleaved"),
    "tfservice": ("compressed", "plain"),
    "dali": ("mapped", "read"),
    "torch": ("workers", "in_process"),
    "webdataset": ("workers", "in_process"),
}

#: Photograph decoders with which torch's loaders are measured.
TORCH_IMAGES = ("torchvision", "opencv")

TITLES = {
    "ours": "shardfeed",
    "ours_cluster": "shardfeed, worker and trainer",
    "tfdata": "tf.data",
    "tfservice": "tf.data service",
    "dali": "DALI (CPU)",
    "torch": "torch DataLoader over `tfrecord`",
    "webdataset": "WebDataset",
}


def settings(contender: str, case: str) -> tuple[str, ...]:
    if contender in ("torch", "webdataset") and case in ("photos", "parts"):
        return TORCH_IMAGES
    return SETTINGS[contender]


def folder(data: str | Path, case: str) -> Path:
    """Returns the folder of a case's files."""
    return Path(data) / (CASES[case].files_of or case)


def files(data: str | Path, case: str) -> list[str]:
    return [str(path) for path in sorted(folder(data, case).glob("*.tfrecord"))]


def tars(data: str | Path, case: str) -> list[str]:
    """Returns the files with the same contents in WebDataset's format."""
    return [str(path) for path in sorted(folder(data, case).glob("*.tar"))]


def indexes(data: str | Path, case: str) -> list[str]:
    """Returns the files with offset and size of each record, as DALI requires them."""
    return [str(path) for path in sorted(folder(data, case).glob("*.idx"))]


def image_case(case: str) -> bool:
    return case in ("photos", "parts")


def stored(case: str) -> dict[str, Any]:
    """Returns the features in a case's records, even if they are delivered as bytes."""
    return PHOTO if case == "raw_large" else SMALL if case == "raw_small" else CASES[case].features
