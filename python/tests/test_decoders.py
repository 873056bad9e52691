"""The pixel contract: the pixels of JPEGs, and the part of it that a job pins."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf
from shardfeed.testing import Cluster

FEATURES: dict[str, Any] = {"photo": sf.FixedLenFeature((), "string")}
HEIGHT, WIDTH, COUNT = 83, 121, 12
PHOTO = (Path(__file__).parent / "waves.jpeg").read_bytes()
#: Digest of the bytes of `tf.io.decode_jpeg(PHOTO, 3, dct_method="INTEGER_ACCURATE")`, TensorFlow
#: 2.21.
TENSORFLOWS = "efae1f9b4b2f70ab"


def whole(source: sf.Source) -> sf.Source:
    return source.crop("photo", (HEIGHT, WIDTH))


def written(path: Path, photo: bytes) -> str:
    """Writes a file with COUNT copies of the JPEG; returns its path."""
    with sf.TFRecordWriter(path) as writer:
        for _ in range(COUNT):
            writer.write({"photo": photo})
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> str:
    return written(tmp_path / "x.tfrecord", PHOTO)


def made(files: str, then: Callable[[sf.Source], sf.Source], **options: Any) -> sf.Loader:
    decoded = sf.source(files, FEATURES).decode_image("photo")
    return sf.Loader(then(decoded), batch_size=4, shuffle=True, seed=5, **options)


def pixels(loader: sf.Loader) -> np.ndarray:
    return np.concatenate([np.array(batch["photo"]) for batch in loader])


def test_a_build_says_its_contract_and_its_library() -> None:
    contract, library = sf.decoders()
    assert contract == "pixels/1"
    assert library.startswith("libjpeg-turbo 3.") and library.endswith((" with SIMD", " without SIMD"))


def test_pixels_are_tensorflows_and_of_a_part_those_of_the_whole(files: str) -> None:
    full = pixels(made(files, whole))
    assert hashlib.sha256(full[0].tobytes()).hexdigest()[:16] == TENSORFLOWS
    for top, left, height, width in [(0, 0, 1, 1), (3, 17, 40, 64), (HEIGHT - 9, WIDTH - 33, 9, 33)]:
        size, offset = (height, width), (top, left)
        part = pixels(made(files, lambda source, size=size, offset=offset: source.crop("photo", size, offset=offset)))
        assert np.array_equal(part, full[:, top : top + height, left : left + width])


def test_a_state_resumes_with_the_same_pixels(files: str) -> None:
    def crop(source: sf.Source) -> sf.Source:
        return source.random_crop("photo", (40, 50))

    loader = made(files, crop)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    wanted = [np.array(batch["photo"]) for batch in batches]
    again = made(files, crop)
    again.load_state_dict(state)
    assert np.array_equal(np.concatenate(wanted), pixels(again))


def test_suspect_images_are_decoded_and_counted(tmp_path: Path, files: str) -> None:
    # A few bytes would go unnoticed, as they are read ahead with the last pixels.
    suspect = written(tmp_path / "suspect.tfrecord", PHOTO[:-2] + b"more" * 16 + PHOTO[-2:])
    loader = made(suspect, whole)
    assert np.array_equal(pixels(loader), pixels(made(files, whole))), "libjpeg-turbo warns of bytes before the end marker"
    assert loader.stats()["suspect_images"] >= COUNT, "those of the next epoch are decoded ahead"
    sound = made(files, whole)
    pixels(sound)
    assert sound.stats()["suspect_images"] == 0


def test_a_job_pins_the_contract_and_workers_give_the_same_pixels(tmp_path: Path, files: str) -> None:
    with Cluster(tmp_path / "cluster") as there:
        has = there.ask("worker", "show", "worker-0")["decoders"]
        assert has == list(sf.decoders())
        assert [worker["decoders"] for worker in there.ask("worker", "list")["workers"]] == [has]
        options: dict[str, Any] = {"coordinator": there.address, "worker": str(there.socket()), "job": "j"}
        with made(files, whole, fallback=False, **options) as loader:
            assert np.array_equal(pixels(loader), pixels(made(files, whole)))
            identity = there.ask("job", "show", "j")["identity"]
        assert identity["decoder"] == "pixels/1"
        assert "libjpeg" not in json.dumps(identity), "another version of the library is no other job"
