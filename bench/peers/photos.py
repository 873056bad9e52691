"""Creates JPEG files of the size of photographs from smooth noise of several scales.

    python bench/peers/photos.py FOLDER     # needs numpy and pillow
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

COUNT = 64

#: Side of the noise before it is enlarged to the picture, and its strength.
LAYERS = ((4, 90.0), (16, 40.0), (64, 20.0), (250, 12.0))


def picture(rng: np.random.Generator) -> Image.Image:
    height, width = (375, 500) if rng.random() < 0.7 else (500, 375)
    pixels = np.full((height, width, 3), 128.0)
    for side, strength in LAYERS:
        noise = rng.normal(0, strength, (side, side, 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(noise[..., channel]).resize((width, height), Image.Resampling.BICUBIC)
            pixels[..., channel] += np.asarray(layer)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for number in range(COUNT):
        picture(rng).save(folder / f"{number:02}.jpg", quality=90)


if __name__ == "__main__":
    main()
