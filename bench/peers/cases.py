"""What is measured, the same for all contenders: records, features, batch sizes and goals.

Knows no contender: every process of the bench reads this, in whichever Python it runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Files of a case.
FILES = 4

#: Photographs are resized to a square of this side; a part of them is this square, at this place.
SIDE, PART, PLACE = 224, 256, (20, 30)

#: A photograph's pixels may differ by this much in the mean, out of 255: JPEG decoders round differently.
PIXELS_APART = 1.5

#: What is computed in floating point may differ by this much, relatively.
FLOATS_APART = 1e-9

#: Name -> ("string" | "int64" | "float32", shape).
Features = dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Case:
    """One kind of record, and what is made of it."""

    title: str
    records: int
    batch: int
    #: Ours over the best setting of tf.data, records per CPU-second.
    goal: float
    #: The same over the other loaders, and worker and trainer over tf.data service.
    goal_others: float | None = None
    goal_service: float | None = None
    #: None of them: the records' bytes.
    features: Features = field(default_factory=dict)
    #: Whose files these are, if not its own.
    files_of: str = ""
    #: Columns that are equal but for rounding.
    rounded: tuple[str, ...] = ()
    #: Who takes part beside ours and tf.data.
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

#: How each contender may be set up; the best counts.
SETTINGS: dict[str, tuple[str, ...]] = {
    "ours": ("default",),
    "ours_cluster": ("default",),
    "tfdata": ("lean", "sequential", "interleaved"),
    "tfservice": ("compressed", "plain"),
    "dali": ("mapped", "read"),
    "torch": ("workers", "in_process"),
    "webdataset": ("workers", "in_process"),
}

#: Decoders of photographs that torch's loaders are measured with.
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
    """Where a case's files are."""
    return Path(data) / (CASES[case].files_of or case)


def files(data: str | Path, case: str) -> list[str]:
    return [str(path) for path in sorted(folder(data, case).glob("*.tfrecord"))]


def tars(data: str | Path, case: str) -> list[str]:
    """The same records' contents as WebDataset wants them."""
    return [str(path) for path in sorted(folder(data, case).glob("*.tar"))]


def indexes(data: str | Path, case: str) -> list[str]:
    """Offset and size of each record, as DALI wants them."""
    return [str(path) for path in sorted(folder(data, case).glob("*.idx"))]


def image_case(case: str) -> bool:
    return case in ("photos", "parts")


def stored(case: str) -> dict[str, Any]:
    """What is in a case's records, also where they are taken as bytes."""
    return PHOTO if case == "raw_large" else SMALL if case == "raw_small" else CASES[case].features
