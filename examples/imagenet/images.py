"""ImageNet from TFRecords: random-resized crops of 224, mirroring, normalization, channels first.

    python examples/imagenet/images.py [PATTERN] [--records N]

The records have `image/encoded` (JPEG or PNG) and `image/class/label`, as written by TensorFlow's
scripts. Without a pattern it generates images. The worker decodes, crops, resizes and mirrors; the
trainer gets arrays. Random numbers depend only on seed, epoch and sample: they are the same on any
number of ranks and after a resume.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf

SIZE = 224
#: Statistics of the training images, in 0..255.
MEAN = [123.675, 116.28, 103.53]
STD = [58.395, 57.12, 57.375]

FEATURES: dict[str, Any] = {
    "image/encoded": sf.FixedLenFeature((), "string"),
    "image/class/label": sf.FixedLenFeature((), "int64"),
}


def augmented(source: sf.Source, size: int = SIZE) -> sf.Source:
    """Returns the source for training: a random part of each image."""
    return (
        source.decode_image("image/encoded", output="image")
        .random_resized_crop("image", scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
        .flip("image", "horizontal", probability=0.5)
        .resize("image", size)
        .layout("image", "chw")
    )


def plain(source: sf.Source, size: int = SIZE) -> sf.Source:
    """Returns the source for validation: the largest centered square of each image."""
    return (
        source.decode_image("image/encoded", output="image")
        .random_resized_crop("image", scale=(1.0, 1.0), ratio=(1.0, 1.0))
        .resize("image", size)
        .layout("image", "chw")
    )


def normalized(source: sf.Source) -> sf.Source:
    """Returns images in float32, `(x - mean) / std` of each channel.

    Without it images stay uint8, a quarter of the bytes.
    """
    return source.layout("image", "hwc").normalize("image", MEAN, STD).layout("image", "chw")


def loader(
    files: str, *, train: bool = True, normalize: bool = False, size: int = SIZE, **options: Any
) -> sf.Loader:
    """Returns the loader: `image` uint8 [batch, 3, size, size], with `normalize` float32;
    `image/class/label` int64 [batch]."""
    source = (augmented if train else plain)(sf.source(files, FEATURES), size)
    if normalize:
        source = normalized(source)
    defaults: dict[str, Any] = {"batch_size": 64, "shuffle": train}
    return sf.Loader(source, outputs=["image", "image/class/label"], **(defaults | options))


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Encodes uint8 [height, width, 3] as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def drawn(number: int) -> np.ndarray[Any, Any]:
    """Returns an image of random size: red grows downwards, green to the right, blue is its
    class."""
    rng = np.random.default_rng(number)
    height, width = (int(side) for side in rng.integers(180, 320, 2))
    image = np.empty((height, width, 3), np.uint8)
    image[..., 0] = np.linspace(0, 255, height)[:, None]
    image[..., 1] = np.linspace(0, 255, width)
    image[..., 2] = number % 10 * 20
    return image


def write(folder: Path, count: int, files: int = 4) -> str:
    """Writes generated images and returns the pattern of their files."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        with sf.TFRecordWriter(folder / f"images-{file:02}.tfrecord") as writer:
            for number in range(file, count, files):
                writer.write({"image/encoded": png(drawn(number)), "image/class/label": number % 10})
    return str(folder / "images-*.tfrecord")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="?", help="pattern of TFRecord files")
    parser.add_argument("--records", type=int, default=2_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        files = arguments.files or write(Path(temporary), arguments.records)
        begun, rows, shape = time.perf_counter(), 0, ()
        for batch in loader(files):
            rows, shape = rows + batch.rows, batch["image"].shape
        took = time.perf_counter() - begun
    print(f"{rows:,} images in {took:.2f} s, {rows / took:,.0f}/s; {shape}")


if __name__ == "__main__":
    main()
