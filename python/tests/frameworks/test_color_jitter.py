"""`color_jitter` and torchvision's functions on uint8 tensors, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import functional

import shardfeed as sf

SIDE = 48


@pytest.fixture
def source(tmp_path: Path) -> sf.Source:
    rng = np.random.default_rng(0)
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for _ in range(16):
            image = rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
            image[:8] = image[:8, :, :1]
            image[8] = rng.choice(np.array([0, 255], np.uint8), (SIDE, 3))
            writer.write({"raw": image.tobytes()})
    features = {"raw": sf.FixedLenFeature((), "string")}
    return sf.source(tmp_path / "x.tfrecord", features).decode_raw("raw", "uint8", (SIDE, SIDE, 3), output="image")


@pytest.mark.parametrize(
    ("step", "factors"),
    [
        ("brightness", (0, 0.37, 1.61, 9)),
        ("contrast", (0, 0.37, 1.61, 9)),
        ("saturation", (0, 0.37, 1.61, 9)),
        ("hue", (-0.5, -0.21, 0.07, 0.5)),
    ],
)
def test_each_step_is_that_of_torchvision(source: sf.Source, step: str, factors: Any) -> None:
    adjust = getattr(functional, f"adjust_{step}")
    for factor in factors:
        both: Any = {step: (factor, factor)}
        made = source.color_jitter("image", **both, output="made").layout("made").layout("image")
        for batch in sf.Loader(made, outputs=["image", "made"], batch_size=4, output="torch"):
            expected = torch.stack([adjust(image, float(factor)) for image in batch["image"]])
            assert torch.equal(batch["made"], expected), factor
