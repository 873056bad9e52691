"""The counting pass at the start of a run with a program: a worker that counts, and the end of the pass.

A cluster counts a dataset once, so a fault that misses the pass is repeated in another cluster.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import object_log
from scene import Scene
from servers import Server, until
from stage import say

from shardfeed.testing import FailedError

#: Polling interval of the caches: a worker counts the shards of a part within some 10 ms.
LOOK_AGAIN_S = 0.001
#: Number of shards that the stopped worker has counted at least; the smallest part has 22.
COUNTED = (1, 16)


class MissedError(FailedError):
    """The fault was not in the counting pass."""


class CountingPass(NamedTuple):
    """A counting pass, and a worker that is stopped in it."""

    worker: Server
    #: Datasets that were not yet counted.
    datasets: frozenset[str]


def stop_worker(scene: Scene) -> CountingPass:
    """Stops the first worker that has counted some shards.

    Raises MissedError if the leader does not say that this worker holds a part, which it cannot report while it is
    stopped.
    """
    worker = first_to_count(scene, scene.random.randint(*COUNTED))
    worker.stop()
    scene.struck = time.monotonic()
    shards, parts = counted_shards(scene, worker), ask(scene, "worker", "show", worker.name)["scans"]
    known = ask(scene, "dataset", "list", "--all")["datasets"]
    datasets = frozenset(each["name"] for each in known if each["program"] and each["state"] == "scanning")
    held = f"{worker.name} has counted {shards} shards, holds {parts} parts, and {len(datasets)} datasets are not counted"
    if not parts or not datasets:
        raise MissedError(held)
    say(held)
    return CountingPass(worker, datasets)


def must_end_after(scene: Scene, died_ms: int, datasets: frozenset[str]) -> None:
    """Waits until these datasets are counted. Raises MissedError if they were before `died_ms`, Unix ms."""
    ready_ms: dict[str, int] = {}

    def missing() -> str:
        events = ask(scene, "events", "--all", "--kind", "dataset_ready")["events"]
        ready_ms.update({each["dataset"]: each["at_ms"] for each in events})
        return f"not all of {sorted(datasets)} are counted" if datasets - {*ready_ms} else ""

    scene.run.until(missing)
    later_ms = max(ready_ms[name] for name in datasets) - died_ms
    if later_ms <= 0:
        raise MissedError(f"the counting pass ended {-later_ms} ms before the fault")
    say(f"the counting pass ended {later_ms} ms after the fault")


def first_to_count(scene: Scene, shards: int) -> Server:
    found: list[Server] = []

    def missing() -> str:
        scene.run.must_run()
        found.extend(worker for worker in scene.cluster.workers if counted_shards(scene, worker) >= shards)
        return "" if found else f"no worker has counted {shards} shards"

    until(missing, every_s=LOOK_AGAIN_S)
    return found[0]


def counted_shards(scene: Scene, worker: Server) -> int:
    """Returns the number of sample maps in the cache of a worker's host."""
    return object_log.maps(scene.cluster.cache(worker))


def ask(scene: Scene, *arguments: str) -> Any:
    """Waits for the JSON output of a command."""
    found: list[Any] = []

    def missing() -> str:
        found.append(scene.cluster.look(*arguments))
        return f"no answer to `{' '.join(arguments)}`" if found[-1] is None else ""

    scene.run.until(missing)
    return found[-1]
