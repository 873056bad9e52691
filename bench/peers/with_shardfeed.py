"""shardfeed: entirely in the trainer's process, or with a coordinator and a worker beside it."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cases

import shardfeed as sf
from shardfeed.testing import Cluster

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples/chess"), str(ROOT / "python/tests")]
import boards  # noqa: E402

VERSION = "this tree"

#: Processes that work for this one.
BESIDE: list[int] = []


def prepare(contender: str, case: str, data: str, setting: str) -> None:
    """Prepares the process before the loader is created, with an empty index cache."""
    folder = tempfile.mkdtemp(prefix="shardfeed-bench-")
    atexit.register(lambda: __import__("shutil").rmtree(folder, ignore_errors=True))
    os.environ["SHARDFEED_CACHE_DIR"] = folder
    if contender != "ours_cluster":
        return
    running = Cluster(Path(folder) / "cluster", memory="4GiB")
    running.__enter__()
    atexit.register(running.close)
    os.environ.update(running.variables(f"bench-{time.monotonic_ns()}"))
    BESIDE.extend([running.coordinator.pid, *(worker.pid for worker in running.workers)])


def loader(case: str, data: str) -> sf.Loader:
    of = cases.CASES[case]
    options: dict[str, Any] = {"batch_size": of.batch, "shuffle": False}
    if case == "boards":
        made: sf.Loader = boards.loader(cases.files(data, case), **options)
        return made
    features: dict[str, Any] = {
        name: sf.FixedLenFeature(shape, kind) for name, (kind, shape) in of.features.items()
    }
    source = sf.source(cases.files(data, case), features or None)
    if cases.image_case(case):
        source = source.decode_image("photo")
        if case == "parts":
            source = source.crop("photo", (cases.PART, cases.PART), offset=cases.PLACE)
        source = source.resize("photo", cases.SIDE, antialias=False)
    return sf.Loader(source, **options)


def batches(case: str, data: str, setting: str, repeat: bool) -> Iterator[tuple[int, Any]]:
    made = loader(case, data)
    while True:
        for batch in made:
            # A trainer uses the columns: the arrays are created here.
            yield batch.rows, {name: batch[name] for name in batch}
        if not repeat:
            return


def columns(case: str, batch: Any) -> dict[str, Any]:
    if not cases.CASES[case].features and case != "boards":
        (values,) = batch.values()
        return {"record": list(values)}
    return {name: list(values) if name == "board" else values for name, values in batch.items()}
