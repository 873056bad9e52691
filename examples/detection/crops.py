"""Boxes of images as samples: crops of labelled boxes, and a classifier that is trained on them.

    python examples/detection/crops.py [--scenes N] [--epochs E]

Scenes are pieces of one of scikit-learn's photos with several of its handwritten digits, each with a
box and a label, as detection datasets have them. The crops of all boxes but the smallest train a
classifier, on two ranks in turn. Prints the crops of each epoch, how often each box was delivered,
and the part of the boxes of other scenes, with other digits, that is classified correctly.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import shardfeed as sf

#: Height and width of a scene, and of the squares in which its digits lie, in pixels.
SCENE, SQUARE = 160, 40

FEATURES: dict[str, Any] = {
    "scene": sf.FixedLenFeature((), "int64"),
    "image": sf.FixedLenFeature((), "string"),
    # Top, left, bottom, right as parts of the image.
    "box": sf.FixedLenSequenceFeature((4,), "float32", allow_missing=True),
    "label": sf.VarLenFeature("int64"),
    # Height in pixels.
    "height": sf.VarLenFeature("int64"),
}


def photo() -> np.ndarray[Any, Any]:
    """Decodes a photo, uint8 [427, 640, 3]."""
    file = Path(sklearn.datasets.__file__).parent / "images" / "china.jpg"
    with tempfile.TemporaryDirectory() as folder:
        with sf.TFRecordWriter(Path(folder) / "photo.tfrecord") as writer:
            writer.write({"image": file.read_bytes()})
        source = sf.source(str(Path(folder) / "*.tfrecord"), {"image": FEATURES["image"]})
        with sf.Loader(source.decode_image("image", size=(427, 640)), batch_size=1) as loader:
            return np.array(next(iter(loader))["image"][0])


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Encodes uint8 [height, width, 3] as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def scenes(count: int, *, held_out: bool) -> Iterator[dict[str, Any]]:
    """Yields scenes with up to 8 digits in random squares; some have none.

    - `held_out`: with every sixth digit of the dataset, otherwise with the others.
    """
    rng = np.random.default_rng(int(held_out))
    background, (digits, labels) = photo(), load_digits(return_X_y=True)
    of_kind = np.flatnonzero((np.arange(len(digits)) % 6 == 0) == held_out)
    for scene in range(count):
        top, left = (int(rng.integers(size - SCENE)) for size in background.shape[:2])
        image = background[top : top + SCENE, left : left + SCENE].copy()
        boxes, found, heights = [], [], []
        squares = rng.permutation((SCENE // SQUARE) ** 2)[: rng.integers(9)]
        for square in squares:
            number = int(rng.choice(of_kind))
            zoom = int(rng.integers(1, 5))
            drawn = np.kron(digits[number].reshape(8, 8) * (255 / 16), np.ones((zoom, zoom)))
            size = 8 * zoom
            y, x = divmod(int(square), SCENE // SQUARE)
            y, x = (SQUARE * at + int(rng.integers(SQUARE - size)) for at in (y, x))
            image[y : y + size, x : x + size] = drawn[..., None].astype(np.uint8)
            boxes.append(np.array([y, x, y + size, x + size], np.float32) / SCENE)
            found.append(int(labels[number]))
            heights.append(size)
        box = np.array(boxes, np.float32).reshape(-1)
        yield {"scene": scene, "image": png(image), "box": box, "label": found, "height": heights}


def write(folder: Path, records: Iterable[dict[str, Any]], shards: int = 4) -> str:
    folder.mkdir(parents=True)
    everything = list(records)
    for shard in range(shards):
        with sf.TFRecordWriter(folder / f"scenes-{shard}.tfrecord") as writer:
            for record in everything[shard::shards]:
                writer.write(record)
    return str(folder / "scenes-*.tfrecord")


def crops(files: str) -> sf.Source:
    """Makes a sample of each box of at least 16 pixels: its crop, resized to 16 pixels, and its label."""
    rows = sf.source(files, FEATURES).unbatch("box", "label", "height").filter("height >= 16")
    return rows.decode_image("image").crop("image", box="box").resize("image", (16, 16))


def inputs(batch: sf.Batch) -> np.ndarray[Any, Any]:
    """Converts a batch's images to float64 [rows, 256] of grey values from 0 to 1."""
    grey: np.ndarray[Any, Any] = np.asarray(batch["image"]).mean(axis=3)
    return grey.reshape(batch.rows, -1) / 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    model = SGDClassifier(loss="log_loss", random_state=0)
    with tempfile.TemporaryDirectory() as folder:
        train = crops(write(Path(folder) / "train", scenes(args.scenes, held_out=False)))
        held_out = crops(write(Path(folder) / "test", scenes(args.scenes // 5, held_out=True)))
        ranks = [sf.Loader(train, rank=rank, world_size=2, batch_size=32, tail="pad") for rank in range(2)]
        for epoch in range(args.epochs):
            times: Counter[tuple[int, bytes]] = Counter()
            for batches in zip(*ranks, strict=True):
                for batch in batches:
                    valid = batch.valid
                    scene, box = batch["scene"][valid], np.asarray(batch["box"])[valid]
                    times.update(zip(scene.tolist(), map(np.ndarray.tobytes, box), strict=True))
                    model.partial_fit(inputs(batch)[valid], batch["label"][valid], classes=range(10))
            least, most = min(times.values()), max(times.values())
            print(f"epoch {epoch}: {len(times)} crops in {len(ranks[0])} steps, each {least} to {most} times")
        with sf.Loader(held_out, batch_size=64, shuffle=False, tail="pad") as loader:
            right = [(model.predict(inputs(batch)) == batch["label"])[batch.valid] for batch in loader]
        print(f"accuracy {np.concatenate(right).mean():.3f}")
        for loader in ranks:
            loader.close()


if __name__ == "__main__":
    main()
