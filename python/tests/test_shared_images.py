"""Crops of an image that several rows share, beside crops of one image for each row."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf

IMAGE = {"image": sf.FixedLenFeature((), "string"), "id": sf.FixedLenFeature((), "int64")}
ROWS = 6


def random_png(rng: np.random.Generator) -> bytes:
    height, width = int(rng.integers(20, 40)), int(rng.integers(20, 40))
    return png(rng.integers(0, 256, (height, width, 3), np.uint8))


def png(pixels: Any) -> bytes:
    height, width, _ = pixels.shape

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write(folder: Path, bad: int) -> dict[int, Any]:
    """Writes 60 records of 6 boxes, and the same with one box in each record.

    - `bad`: number of records with an empty box, which is an error of its row.
    - Returns the crop of each box, as loaders of the latter make it.
    """
    rng = np.random.default_rng(bad)
    with sf.TFRecordWriter(folder / "rows.tfrecord") as rows, sf.TFRecordWriter(folder / "single.tfrecord") as single:
        for record in range(60):
            image, corner = random_png(rng), rng.uniform(0, 0.6, (ROWS, 2))
            boxes = np.concatenate([corner, corner + 0.3], 1).astype(np.float32)
            numbers = np.arange(ROWS) + record * ROWS
            for number, box in zip(numbers, boxes, strict=True):
                single.write({"image": [image], "id": int(number), "box": box})
            if record < bad:
                boxes[rng.integers(ROWS)] = 0.5
            rows.write({"image": [image], "number": numbers, "box": boxes.ravel(), "id": record})
    source = sf.source(str(folder / "single.tfrecord"), {**IMAGE, "box": sf.FixedLenFeature((4,), "float32")})
    with sf.Loader(cropped(source), batch_size=ROWS, shuffle=False) as loader:
        return {int(number): image for batch in loader for number, image in zip(batch["id"], np.array(batch["image"]), strict=True)}


def cropped(source: sf.Source) -> sf.Source:
    return source.decode_image("image").crop("image", box="box").resize("image", (8, 8))


@pytest.mark.parametrize("bad", [0, 9])
@pytest.mark.parametrize("budget", ["512MiB", "4MiB"])
def test_each_row_has_the_crop_of_its_box(tmp_path: Path, bad: int, budget: str) -> None:
    expected = write(tmp_path, bad)
    features = {
        **IMAGE, "number": sf.VarLenFeature("int64"), "box": sf.FixedLenSequenceFeature((4,), "float32", allow_missing=True),
    }  # fmt: skip
    source = cropped(sf.source(str(tmp_path / "rows.tfrecord"), features).unbatch("number", "box"))
    corrupt: Any = "skip-record" if bad else "error"
    with sf.Loader(source, batch_size=7, tail="pad", corrupt=corrupt, corrupt_budget=100, memory_budget=budget, shuffle_window=100) as loader:
        seen = []
        for _ in range(2):
            for batch in loader:
                for number, image, valid in zip(batch["number"], np.array(batch["image"]), batch.valid, strict=True):
                    assert (image == expected[int(number)]).all(), number
                    seen += [int(number)] if valid else []
    assert len(seen) == 2 * (60 * ROWS - bad) and len(set(seen)) == 60 * ROWS - bad
