"""Datasets for tests, and the order as computed by the independent oracle."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import on_standin
import pytest

import shardfeed as sf
from shardfeed.testing import Cluster, Killer

# Background processes ignore SIGINT, and so would the trainers that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from stores import S3, Proxy

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

FEATURES = {
    "id": sf.FixedLenFeature((), "int64"),
    "image": sf.FixedLenFeature((2, 3), "float32"),
}


@dataclass
class Dataset:
    """Shards whose record `id` is shard * 1000 + ordinal."""

    folder: Path
    counts: list[int]

    @property
    def pattern(self) -> str:
        return str(self.folder / "*.tfrecord")

    @property
    def ids(self) -> set[int]:
        return {s * 1000 + i for s, count in enumerate(self.counts) for i in range(count)}

    def file(self, shard: int) -> Path:
        return self.folder / f"train-{shard:02}.tfrecord"


def example(number: int) -> dict[str, Any]:
    image = np.arange(6, dtype=np.float32) + number
    return {"id": number, "image": image, "name": f"name {number}", "list": list(range(number % 4))}


def make_dataset(folder: Path, counts: Sequence[int], compression: str | None = None) -> Dataset:
    folder.mkdir(parents=True, exist_ok=True)
    dataset = Dataset(folder, list(counts))
    for shard, count in enumerate(counts):
        with sf.TFRecordWriter(dataset.file(shard), compression=compression) as writer:
            for ordinal in range(count):
                writer.write(example(shard * 1000 + ordinal))
    return dataset


#: Files whose tests run in every way: the batches must be the same.
IN_EVERY_WAY = (
    "test_loader", "test_columns", "test_operators", "test_images", "test_bad_input", "test_corrupt", "test_device",
    "test_device_operators", "test_transform",
)  # fmt: skip
WAYS = ("embedded", "cluster", "killed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    ways = WAYS if metafunc.module.__name__ in IN_EVERY_WAY else WAYS[:1]
    if metafunc.definition.get_closest_marker("embedded_only"):
        ways = WAYS[:1]
    elif metafunc.definition.get_closest_marker("not_killed"):
        ways = tuple(way for way in ways if way != "killed")
    metafunc.parametrize("way", ways, indirect=True)


@pytest.fixture(scope="session")
def small_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One coordinator and one worker for the whole session."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(autouse=True)
def way(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, private_cache: None
) -> Iterator[str]:
    """Source of the loaders' batches: this process, a worker, or a worker that is killed."""
    way: str = request.param
    if way == "embedded":
        yield way
        return
    running: Cluster = request.getfixturevalue("small_cluster")
    name = request.node.name
    for variable, value in running.variables(f"{name[:60]}-{uuid.uuid4().hex[:8]}").items():
        monkeypatch.setenv(variable, value)
    if way == "cluster":
        yield way
        return
    seed = zlib.crc32(name.encode())
    with Killer(running.workers[0], seed):
        yield way


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDFEED_CACHE_DIR", str(tmp_path / "cache"))
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SHARDFEED_LEDGER")
    for name in (*names, "SHARDFEED_COORDINATOR", "SHARDFEED_WORKER", "SHARDFEED_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["embedded", "cluster"])
def env(request: pytest.FixtureRequest) -> dict[str, str]:
    """Variables that let a program's loaders read in their process, or from a worker."""
    if request.param == "embedded":
        return {}
    running: Cluster = request.getfixturevalue("small_cluster")
    return running.variables(f"interrupts-{uuid.uuid4().hex[:8]}")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    import stores

    with stores.S3() as server:
        yield server


@pytest.fixture
def proxy(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the S3 server, and the environment that routes through it."""
    import stores

    with stores.Proxy(s3.address) as between:
        for name in list(os.environ):
            if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
                monkeypatch.delenv(name)
        for name, value in stores.environment(between.endpoint).items():
            monkeypatch.setenv(name, value)
        yield between


@pytest.fixture
def relaunch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes later loaders part of another run, as after a restart by a launcher.

    Within one run, a worker that is killed before it reported the end of its ranks leaves some
    ranks that are known to have ended here, beside some that may have progressed further.
    """
    run, launched = os.environ.get("SHARDFEED_RUN_ID", "run"), itertools.count(1)
    return lambda: monkeypatch.setenv("SHARDFEED_RUN_ID", f"{run}-{next(launched)}")


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in for a GPU's driver."""
    return on_standin.build(tmp_path_factory.mktemp("standin"))


@pytest.fixture
def run(tmp_path: Path, standin: Path, dataset: Dataset) -> Callable[..., on_standin.Ended]:
    """Runs a program with the stand-in, over the dataset."""
    return lambda code, *more, **variables: on_standin.Ended(
        tmp_path, standin, dataset.pattern, code, *more, **variables
    )


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "data", [13, 0, 40, 7, 21, 1, 30, 18])


def loader(
    dataset: Dataset,
    then: Callable[[sf.Source], sf.Source] = lambda source: source,
    features: dict[str, Any] | None = FEATURES,
    **options: Any,
) -> sf.Loader:
    """Returns a loader of the dataset, with the operators of `then`."""
    defaults: dict[str, Any] = {
        "batch_size": 4,
        "shuffle_window": 16,
        # Without shuffle, files in order by default.
        "interleave": 3 if options.get("shuffle", True) else 1,
        "seed": 7,
        # Many tests consume batches in several loops.
        "restart": False,
    }
    of = {name: options.pop(name) for name in ("sequence_features", "compression") if name in options}
    return sf.Loader(then(sf.source(dataset.pattern, features, **of)), **(defaults | options))


def embedded(dataset: Dataset, epochs: int = 1, **options: Any) -> list[list[int]]:
    """Returns the ids of all batches of an undisturbed loader without a cluster."""
    with loader(dataset, **options) as each:
        return [ids(batch) for _ in range(epochs) for batch in each]


def ids(batch: sf.Batch) -> list[int]:
    return [int(number) for number in batch["id"]]


def valid_ids(batch: sf.Batch) -> list[int]:
    return [int(number) for number in batch["id"][batch.valid]]
