"""Image operators in the loader: the ImageNet example, and invalid images."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples/imagenet"))
import images  # noqa: E402

SIZE = 32
COUNT = 90
OPTIONS: dict[str, Any] = {"size": SIZE, "batch_size": 15, "seed": 3, "provenance": True}


@pytest.fixture
def files(tmp_path: Path) -> str:
    return images.write(tmp_path / "data", COUNT, files=3)


def made(files: str, **options: Any) -> list[dict[str, np.ndarray]]:
    return taken(images.loader(files, **(OPTIONS | options)))


def taken(batches: Iterable[sf.Batch]) -> list[dict[str, np.ndarray]]:
    def copy(batch: sf.Batch) -> dict[str, np.ndarray]:
        assert batch.provenance is not None
        return {name: np.array(batch[name]) for name in batch} | {"at": np.stack(batch.provenance, 1)}

    return [copy(batch) for batch in batches]


def by_sample(batches: list[dict[str, np.ndarray]]) -> dict[tuple[int, int], bytes]:
    rows = [
        (tuple(map(int, at)), image.tobytes())
        for batch in batches
        for at, image in zip(batch["at"], batch["image"], strict=True)
    ]
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def test_random_parts_of_images_with_their_labels(files: str) -> None:
    batches = made(files)
    turned = 0
    for batch in batches:
        assert batch["image"].dtype == np.uint8 and batch["image"].shape == (15, 3, SIZE, SIZE)
        for image, label in zip(batch["image"].astype(int), batch["image/class/label"], strict=True):
            red, green, blue = image
            assert np.all(blue == label * 20)
            # Red grows downwards in the image, and so in each part; green to the right, unless it
            # is mirrored.
            assert np.all(np.diff(red, axis=0) >= 0) and np.ptp(red, axis=1).max() <= 1
            across = np.diff(green, axis=1)
            assert np.all(across >= 0) or np.all(across <= 0)
            turned += bool(np.all(across <= 0))
    assert COUNT / 4 < turned < COUNT * 3 / 4


def test_validation_takes_the_square_in_the_middle(files: str) -> None:
    for batch in made(files, train=False):
        for (shard, ordinal), image in zip(batch["at"], batch["image"].astype(int), strict=True):
            height, width = images.drawn(int(shard + 3 * ordinal)).shape[:2]
            side = min(height, width)
            # The visible range of red is the square's fraction of the height.
            seen = (image[0].max() - image[0].min()) / 255
            assert seen == pytest.approx(side / height * (1 - 1 / SIZE), abs=0.02)
            seen = (image[1].max() - image[1].min()) / 255
            assert seen == pytest.approx(side / width * (1 - 1 / SIZE), abs=0.02)


def test_what_is_drawn_is_the_samples_own(files: str) -> None:
    whole = by_sample(made(files))
    assert by_sample(made(files, batch_size=6, prefetch=1)) == whole
    ranks = [made(files, batch_size=5, world_size=3, rank=rank) for rank in range(3)]
    assert by_sample([batch for rank in ranks for batch in rank]) == whole
    # A run that stops and resumes draws the same parts.
    loader = images.loader(files, **OPTIONS)
    begun = iter(loader)
    first = taken([next(begun), next(begun)])
    assert by_sample(first + made(files, resume=loader.state_dict())) == whole
    # Another seed, and another epoch, draw other parts.
    other = by_sample(made(files, seed=4))
    assert sum(other[at] != whole[at] for at in whole) > COUNT * 0.9
    loader = images.loader(files, **OPTIONS)
    assert by_sample(taken(loader)) == whole
    second = by_sample(taken(loader))
    assert sum(second[at] != whole[at] for at in whole) > COUNT * 0.9


def test_normalized_images(files: str) -> None:
    raw = made(files, train=False)
    batches = made(files, train=False, normalize=True)
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (images.MEAN, images.STD))
    for batch, pixels in zip(batches, raw, strict=True):
        assert batch["image"].dtype == np.float32
        assert np.array_equal(batch["image"], (pixels["image"].astype(np.float32) - mean) / std)


def test_sizes_that_the_record_says(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for number in range(6):
            image = images.drawn(number)
            height, width = image.shape[:2]
            writer.write({"raw": image.tobytes(), "height": height, "width": width})
        writer.write({"raw": b"123", "height": 2, "width": -1})
    features = {
        "raw": sf.FixedLenFeature((), "string"),
        "height": sf.FixedLenFeature((), "int64"),
        "width": sf.FixedLenFeature((), "int64"),
    }
    source = (
        sf.source(tmp_path / "x.tfrecord", features)
        .decode_raw("raw", "uint8", ("height", "width", 3), output="image")
        .crop("image", (100, 120))
    )
    loader = sf.Loader(source, outputs=["image"], shuffle=False, batch_size=1)
    batches = iter(loader)
    for number in range(6):
        image = images.drawn(number)
        top, left = (image.shape[0] - 100) // 2, (image.shape[1] - 120) // 2
        assert np.array_equal(next(batches)["image"][0], image[top : top + 100, left : left + 120])
    with pytest.raises(sf.FeatureError, match=r"record 6 .*column `width` says -1 for a size"):
        next(batches)


def test_what_is_no_image_is_named(tmp_path: Path) -> None:
    whole = images.png(images.drawn(0))
    huge = whole[:16] + b"\x7f\xff\xff\xff\x7f\xff\xff\xff" + whole[24:]
    for content, said in [
        (b"GIF89a and more", 'neither JPEG nor PNG: 15 bytes that begin with "GIF89a a"'),
        (whole[: len(whole) // 2], "damaged PNG of"),
        (b"\xff\xd8\xff\xe0 no", "damaged JPEG of 7 bytes"),
        (huge, r"PNG|pixels"),
    ]:
        with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
            writer.write({"image/encoded": whole, "image/class/label": 1})
            writer.write({"image/encoded": content, "image/class/label": 1})
        batches = iter(images.loader(str(tmp_path / "x.tfrecord"), size=8, train=False, batch_size=1))
        next(batches)
        with pytest.raises(sf.FeatureError, match=rf"(?s)x\.tfrecord: record 1 .*column `image`.*({said})"):
            next(batches)


def test_photographs(tmp_path: Path) -> None:
    photos = sorted((ROOT.parent / "shared/data/photos").glob("*.jpeg"))
    if not photos:
        pytest.skip("needs photographs in ../shared/data/photos")
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for number, photo in enumerate(photos):
            writer.write({"image/encoded": photo.read_bytes(), "image/class/label": number})
    labels: list[int] = []
    for batch in images.loader(str(tmp_path / "x.tfrecord"), batch_size=16, size=224):
        assert batch["image"].shape == (16, 3, 224, 224)
        assert all(image.std() > 5 for image in batch["image"])
        labels += batch["image/class/label"].tolist()
    assert sorted(labels) == list(range(len(photos)))
