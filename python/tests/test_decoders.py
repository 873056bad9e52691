"""Which decoder a job pins, and what happens where it is missing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import cluster

import shardfeed as sf
from shardfeed import operators as op

FEATURES: dict[str, Any] = {"photo": sf.FixedLenFeature((), "string")}
HAS_TURBO = "turbojpeg" in sf.decoders()
needs_turbo = pytest.mark.skipif(not HAS_TURBO, reason="`make test-turbojpeg` builds it")
HEIGHT, WIDTH, COUNT = 83, 121, 12


@pytest.fixture
def files(tmp_path: Path) -> str:
    """The same JPEG again and again, its colours at half the resolution."""
    photo = (Path(__file__).parent / "waves.jpeg").read_bytes()
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for _ in range(COUNT):
            writer.write({"photo": photo})
    return str(tmp_path / "x.tfrecord")


def made(files: str, decoder: Any, *operators: op.Operator, **options: Any) -> sf.Loader:
    decode = op.decode_image("photo", decoder=decoder)
    return sf.Loader(files, FEATURES, batch_size=4, shuffle=True, seed=5, operators=[decode, *operators], **options)


def pixels(loader: sf.Loader) -> np.ndarray:
    return np.concatenate([np.array(batch["photo"]) for batch in loader])


def test_every_build_has_the_first_one(files: str) -> None:
    assert sf.decoders()[0] == "zune-jpeg"
    assert set(sf.decoders()) <= {"zune-jpeg", "turbojpeg"}
    pinned = pixels(made(files, "zune-jpeg", op.crop("photo", (40, 50))))
    decode = op.decode_image("photo")
    unsaid = sf.Loader(
        files, FEATURES, batch_size=4, shuffle=True, seed=5, operators=[decode, op.crop("photo", (40, 50))]
    )
    assert np.array_equal(pixels(unsaid), pinned), "it is what nothing said means, in every build"


@pytest.mark.skipif(HAS_TURBO, reason="this build has it")
def test_a_build_without_a_decoder_says_so_before_it_reads(tmp_path: Path) -> None:
    with pytest.raises(sf.ConfigError, match=r"no JPEG decoder `turbojpeg`, only zune-jpeg; build .* feature `turbojpeg`"):
        made(str(tmp_path / "nothing-is-here"), "turbojpeg", op.crop("photo", (40, 50)))


@needs_turbo
def test_a_part_has_the_pixels_of_the_whole(files: str) -> None:
    whole = pixels(made(files, "turbojpeg", op.crop("photo", (HEIGHT, WIDTH))))
    for top, left, height, width in [(0, 0, 1, 1), (3, 17, 40, 64), (HEIGHT - 9, WIDTH - 33, 9, 33)]:
        part = pixels(made(files, "turbojpeg", op.crop("photo", (height, width), offset=(top, left))))
        assert np.array_equal(part, whole[:, top : top + height, left : left + width])
    apart = np.abs(whole.astype(int) - pixels(made(files, "zune-jpeg", op.crop("photo", (HEIGHT, WIDTH)))))
    assert 0 < apart.max() <= 3, "the two differ, and not by much"


@needs_turbo
def test_a_state_goes_on_under_the_same_decoder_only(files: str) -> None:
    crop = op.random_crop("photo", (40, 50))
    loader = made(files, "turbojpeg", crop)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    wanted = [np.array(batch["photo"]) for batch in batches]
    again = made(files, "turbojpeg", crop)
    again.load_state_dict(state)
    assert np.array_equal(np.concatenate(wanted), pixels(again))
    with pytest.raises(sf.TokenError, match="decoder"):
        made(files, "zune-jpeg", crop).load_state_dict(state)


def in_cluster(there: cluster.Cluster, files: str, **options: Any) -> sf.Loader:
    crop = op.crop("photo", (40, 50))
    return made(files, "turbojpeg", crop, coordinator=there.address, worker=str(there.socket()), job="j", **options)


def shown(there: cluster.Cluster, what: str) -> Any:
    command = [cluster.BINARY, "worker", *what.split(), "--coordinator", there.address, "-o", "json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True, env=there.env).stdout)


def test_workers_say_what_they_have(tmp_path: Path) -> None:
    with cluster.Cluster(tmp_path / "cluster") as there:
        has = shown(there, "show worker-0")["decoders"]
        assert has[0] == "zune-jpeg"
        assert [worker["decoders"] for worker in shown(there, "list")["workers"]] == [has]


@needs_turbo
def test_a_worker_gives_what_its_trainer_would(tmp_path: Path, files: str) -> None:
    with cluster.Cluster(tmp_path / "cluster") as there:
        assert "turbojpeg" in shown(there, "show worker-0")["decoders"], "SHARDFEED_BINARY was built with it"
        with in_cluster(there, files, fallback=False) as loader:
            alone = made(files, "turbojpeg", op.crop("photo", (40, 50)))
            assert np.array_equal(pixels(loader), pixels(alone))


@needs_turbo
@pytest.mark.parametrize("fallback", [True, False])
def test_a_worker_without_the_decoder_is_named(
    tmp_path: Path, files: str, monkeypatch: pytest.MonkeyPatch, fallback: bool
) -> None:
    monkeypatch.setattr(cluster, "BINARY", Path(os.environ["SHARDFEED_BINARY_WITHOUT_TURBOJPEG"]))
    said = "worker worker-0 has no decoder `turbojpeg`.* it has zune-jpeg.* cargo feature `turbojpeg`"
    with cluster.Cluster(tmp_path / "cluster") as there:
        with pytest.raises(sf.ClusterError, match=said):
            in_cluster(there, files, fallback=fallback)
