"""Several images in a row: frames around a row of a record, and cameras of a record."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
from conftest import ROOT

import shardfeed as sf

sys.path.insert(0, str(ROOT / "examples/imagenet"))
from images import png  # noqa: E402

#: Sizes of the images, in turn.
SIZES = [(12, 20), (33, 17), (16, 16), (21, 30)]
CAMERAS: dict[str, Any] = {"cameras": sf.FixedLenFeature((3,), "string"), "box": sf.FixedLenFeature((4,), "float32")}
ONE: dict[str, Any] = {"image": sf.FixedLenFeature((), "string"), "box": sf.FixedLenFeature((4,), "float32")}
EPISODE: dict[str, Any] = {"frame": sf.FixedLenSequenceFeature((), "string", allow_missing=True), "state": sf.FixedLenSequenceFeature((2,), "float32", allow_missing=True)}


def pixels(number: int, size: tuple[int, int] | None = None) -> np.ndarray:
    height, width = size or SIZES[number % len(SIZES)]
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)


def encoded(number: int) -> bytes:
    return png(pixels(number))


def photo(number: int) -> bytes:
    folder = Path(sklearn.datasets.__file__).parent / "images"
    files = [folder / "flower.jpg", folder / "china.jpg", ROOT / "python/tests/waves.jpeg"]
    return files[number * number % 3].read_bytes()


def write(path: Path, images: list[list[bytes]]) -> None:
    with sf.TFRecordWriter(path / "cameras.tfrecord") as several:
        for number, of in enumerate(images):
            several.write({"cameras": of, "box": [0.0, 0.25, 0.5 + number % 5 / 10, 1.0]})
    for camera in range(3):
        with sf.TFRecordWriter(path / f"camera-{camera}.tfrecord") as one:
            for number, of in enumerate(images):
                one.write({"image": of[camera], "box": [0.0, 0.25, 0.5 + number % 5 / 10, 1.0]})


def batches(source: sf.Source, **options: Any) -> list[dict[str, np.ndarray]]:
    defaults: dict[str, Any] = {"batch_size": 4, "rank": 0, "world_size": 1, "seed": 9, "restart": False}
    loader = sf.Loader(source, **(defaults | options))
    found = [{name: np.array(batch[name]) for name in batch} for batch in loader]
    loader.close()
    return found


PIPELINES: list[Callable[[sf.Source, str], sf.Source]] = [
    lambda source, name: source.decode_image(name).resize(name, (14, 10)),
    lambda source, name: source.decode_image(name, channels=1).flip(name).random_resized_crop(name).resize(name, 8, dtype="float32"),
    lambda source, name: source.decode_image(name).crop(name, box="box").resize(name, (9, 11)).layout(name),
    lambda source, name: source.decode_image(name).random_crop(name, 12).color_jitter(name, 0.5, 0.5, 0.5, 0.1).flip(name),
    lambda source, name: source.decode_image(name).pad(name, (40, 40)).crop(name, (30, 20)).normalize(name, 127.5, [1.0, 2.0, 3.0]),
    lambda source, name: source.decode_image(name).crop(name, 12, offset=(0, 3)).resize(name, 6).layout(name).layout(name, "hwc"),
]


# The photos are larger than the size that pipeline 4 fills images up to.
@pytest.mark.parametrize(
    ("number", "image"),
    [(number, image) for image in (encoded, photo) for number in range(len(PIPELINES)) if image is encoded or number != 4],
)
def test_each_image_of_a_row_is_that_of_a_row_of_its_own(number: int, image: Callable[[int], bytes], tmp_path: Path) -> None:
    """With the same draws, also of images that differ in size."""
    write(tmp_path, [[image(3 * at + camera + at) for camera in range(3)] for at in range(20)])
    pipeline = PIPELINES[number]
    several = batches(pipeline(sf.source(str(tmp_path / "cameras.tfrecord"), CAMERAS), "cameras"))
    for camera in range(3):
        one = batches(pipeline(sf.source(str(tmp_path / f"camera-{camera}.tfrecord"), ONE), "image"))
        assert len(one) == len(several) == 5
        for batch, alone in zip(several, one, strict=True):
            assert batch["cameras"].shape == (4, 3, *alone["image"].shape[1:]) and batch["cameras"].dtype == alone["image"].dtype
            assert np.array_equal(batch["cameras"][:, camera], alone["image"])


def test_frames_around_a_step(tmp_path: Path) -> None:
    """Each sample has its own frame and the one before it."""
    lengths = [5, 1, 0, 8]
    frames = [[pixels(100 * record + step, (10, 12)) for step in range(count)] for record, count in enumerate(lengths)]
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for record, of in enumerate(frames):
            steps: dict[str, Any] = {"frame": [[png(one)] for one in of], "state": [[float(record), float(step)] for step in range(len(of))]}
            writer.write(sf.encode_sequence_example({}, steps))
    episodes = sf.source(str(tmp_path / "a.tfrecord"), None, sequence_features=EPISODE)
    source = episodes.unbatch("state", offsets={"frame": (-1, 0)}, edge="repeat").decode_image("frame", size=(10, 12))
    assert source.columns["frame"].shape == (2, 10, 12, 3)
    seen = set()
    for batch in batches(source, batch_size=2):
        for state, images, is_pad in zip(batch["state"].astype(int), batch["frame"], batch["frame_is_pad"], strict=True):
            record, step = map(int, state)
            expected = [frames[record][max(0, step + offset)] for offset in (-1, 0)]
            assert np.array_equal(images, np.stack(expected))
            assert is_pad.tolist() == [step == 0, False]
            seen.add((record, step))
    assert len(seen) == sum(lengths)
    with pytest.raises(sf.ConfigError, match='rows outside of a record are empty strings with edge="zero"'):
        episodes.unbatch(offsets={"frame": (-1, 0)}, edge="zero").decode_image("frame")


def test_what_is_declared_and_what_is_refused(tmp_path: Path) -> None:
    source = sf.source(str(tmp_path / "cameras.tfrecord"), CAMERAS).decode_image("cameras")
    assert source.columns["cameras"].shape == (3, None, None, 3)
    assert source.resize("cameras", 8).columns["cameras"].shape == (3, 8, 8, 3)
    one = sf.source("a", {"image": sf.FixedLenFeature((1,), "string")}).decode_image("image", size=(3, 4))
    assert one.columns["image"].shape == (1, 3, 4, 3)
    table = sf.source("a", {"image": sf.FixedLenFeature((2, 2), "string")})
    with pytest.raises(sf.ConfigError, match="it takes one byte string a row"):
        table.decode_image("image")
    with pytest.raises(sf.ConfigError, match="a row of shape .* has more than"):
        sf.source("a", {"image": sf.FixedLenFeature((4096,), "string")}).decode_image("image").resize("image", 512)
    # An image that cannot be decoded is named by file and record.
    images = [[encoded(3 * at + camera) for camera in range(3)] for at in range(6)]
    images[4][2] = images[4][2][:40]
    write(tmp_path, images)
    with pytest.raises(sf.FeatureError, match=r"cameras\.tfrecord.*record 4.*cameras"):
        batches(source.resize("cameras", 8))
    rest = batches(source.resize("cameras", 8), corrupt="skip-record", batch_size=2)
    assert sum(len(batch["cameras"]) for batch in rest) == 6
