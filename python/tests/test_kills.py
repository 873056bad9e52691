"""Repeated SIGKILL of either side at any point: the remaining resources of the other side. `make
test-kills` does it 100 times.

Trainers loop over batches of more than 1 MiB and keep some of them, on the host, or on a GPU, for
which there is a stand-in (on_standin).
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import on_standin
import pytest

import shardfeed as sf
from shardfeed.testing import Cluster, until

#: Times that each side is killed.
KILLS = int(os.environ.get("SHARDFEED_KILLS", "10"))
#: Number of kills after which all permanent resources have been mapped, opened and started.
#: Observed: the worker's memory rises once, by 11 MiB, up to the fourth kill.
WARM = 6
#: Number of last kills of which the least memory counts.
LAST = 3
#: Maximum delay in seconds from observing a working process to killing it.
MOMENT_S = 0.05
#: Bytes that allocators of working processes may keep: once, and for each kill, 1/16 of a batch.
#: Observed: up to 3 MiB more after 10 kills, up to 8 MiB after 100.
MEMORY_SLACK, MEMORY_SLACK_EACH = 8 << 20, 64 << 10
#: The number of a worker's slots in use varies at random: tolerance for mappings after the first
#: kills.
MAPPINGS_BY_CHANCE = 4
TTL = "session-ttl-ms = 1500\nheartbeat-ms = 300\n"
#: Four of its records make a batch of slightly more than 1 MiB.
FEATURES = {"id": sf.FixedLenFeature((), "int64"), "image": sf.FixedLenFeature((256, 256), "float32")}
ORDER: dict[str, Any] = {"batch_size": 4, "shuffle_window": 16, "interleave": 3, "seed": 7}

pytestmark = pytest.mark.embedded_only

#: Takes a given number of batches, or continues until the next word; prints their content and the
#: source of the last one.
TRAINER = """
import json, select
options = json.loads(sys.argv[2])
stream = dc.Stream() if options["device"] == "cuda" else None
FEATURES["image"] = sf.FixedLenFeature((256, 256), "float32")
source = sf.source(sys.argv[1], {name: FEATURES[name] for name in ("id", "image")})
feed = sf.Loader(source.on_device().cast("id", "int32"), **options)
def batches():
    while True:
        yield from feed
source, kept, rest = batches(), [], b""

def line(waits):
    # The next one: b"" if there is none and it is not waited for, None when there is none any more.
    global rest
    while b"\\n" not in rest:
        if not waits and not select.select([0], [], [], 0)[0]:
            return b""
        more = os.read(0, 4096)
        if not more:
            return None
        rest += more
    first, rest = rest.split(b"\\n", 1)
    return first

def looks(batch):
    there = (lambda array: array) if stream is None else (lambda array: dc.on_host(array, stream))
    # Those before are in use when this process is killed.
    kept.append(batch["image"])
    del kept[:-2]
    return there(batch["id"]).tolist(), float(there(batch["image"]).sum(dtype="float64"))

while word := line(True):
    found = []
    if word == b"go":
        print("going", flush=True)
        while line(False) == b"":
            found.append(looks(next(source)))
    else:
        found += [looks(next(source)) for _ in range(int(word))]
    print(json.dumps([found, feed.stats()["source"]]), flush=True)
kept.clear()
source.close()
feed.close()
if stream is not None:
    stream.close()
"""


class Trainer:
    """A process that runs TRAINER."""

    def __init__(self, folder: Path, standin: Path, files: str, **options: Any) -> None:
        self.report = folder / f"report-{uuid.uuid4().hex[:8]}.json"
        self.log = folder / "trainer.log"
        command = [sys.executable, "-u", "-c", on_standin.PRELUDE + TRAINER, files, json.dumps(options)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=os.environ | on_standin.environment(standin, self.report),
            )  # fmt: skip

    def _says(self, word: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.log.read_text()[-4000:]
        return line

    def take(self, count: int) -> tuple[list[tuple[list[int], float]], str]:
        """Returns the ids of `count` batches with the sum of their images, and the source of the
        last one."""
        return self._found(str(count))

    def go(self) -> None:
        """Starts taking batches continuously."""
        assert self._says("go") == "going\n"

    def stop(self) -> tuple[list[tuple[list[int], float]], str]:
        """As `take`, for all batches since `go`."""
        return self._found("stop")

    def _found(self, word: str) -> tuple[list[tuple[list[int], float]], str]:
        found, source = json.loads(self._says(word))
        return [(ids, total) for ids, total in found], source

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        status = self.process.wait(30)
        self.process.stdout.close()
        return status


def held(pid: int) -> dict[str, int]:
    """Returns a process's resources that could leak, except memory."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "shared mappings": len(re.findall(r"memfd:", maps)),
    }


def memory(pid: int) -> int:
    """Returns the bytes of private memory and of shared memory in use."""
    status = dict(re.findall(r"^(\w+):\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
    return 1024 * (int(status["RssAnon"]) + int(status["RssShmem"]))


def has_no_more(pid: int, before: dict[str, int], goes_on: Callable[[], object] = lambda: None) -> None:
    """Waits until a process has released other processes' resources; `goes_on`: lets it work
    meanwhile."""
    now: dict[str, int] = {}

    def look() -> bool:
        goes_on()
        now.update(held(pid))
        return all(now[name] <= before[name] for name in before)

    try:
        until(look, "no more than at first")
    except AssertionError as error:
        raise AssertionError(f"{error}: {before} at first, {now} now") from None


def named_files() -> list[str]:
    return [name for name in os.listdir("/dev/shm") if "shardfeed" in name.lower()]


def has_not_grown(seen: list[int]) -> None:
    """Verifies memory after each kill: allocators return free memory sooner or later, but leaks
    stay."""
    more = min(seen[-LAST:]) - max(seen[:WARM])
    assert more <= MEMORY_SLACK + KILLS * MEMORY_SLACK_EACH, f"{more} bytes more after {KILLS} kills: {seen}"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", config=TTL) as cluster:
        yield cluster


@pytest.fixture
def files(tmp_path: Path) -> str:
    folder, pixels = tmp_path / "large", np.arange(256 * 256) % 251
    folder.mkdir()
    for shard, count in enumerate([7, 0, 20, 4, 11, 6]):
        with sf.TFRecordWriter(folder / f"{shard}.tfrecord") as writer:
            for number in range(1000 * shard, 1000 * shard + count):
                writer.write({"id": number, "image": (pixels + number).astype(np.float32)})
    return str(folder / "*.tfrecord")


@pytest.fixture
def moments(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Waits for a random time before a kill; the same times in each run of a test."""
    drawn, pause = random.Random(request.node.name), threading.Event()
    yield lambda: pause.wait(drawn.uniform(0, MOMENT_S))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_killed_trainers_leave_their_worker_nothing(
    running: Cluster, files: str, tmp_path: Path, standin: Path, device: str, moments: Any
) -> None:
    worker, coordinator = running.workers[0].pid, running.coordinator.pid
    before: dict[int, dict[str, int]] = {}
    seen: dict[int, list[int]] = {worker: [], coordinator: []}
    where = {"coordinator": running.address, "worker": str(running.socket()), "job": "kills", "device": device}
    for kill in range(WARM + KILLS):
        trainer = Trainer(tmp_path, standin, files, **where, **ORDER, run=f"run-{kill}")
        _, source = trainer.take(3)
        assert source == "worker worker-0"
        trainer.go()
        moments()
        trainer.kill()
        until(lambda: "memfd" not in Path(f"/proc/{worker}/maps").read_text(), "the worker has unmapped all")
        for pid, sizes in seen.items():
            sizes.append(memory(pid))
        if kill + 1 == WARM:
            before = {pid: held(pid) for pid in seen}
    for pid, sizes in seen.items():
        has_no_more(pid, before[pid])
        has_not_grown(sizes)
    assert running.workers[0].process is not None and running.workers[0].process.poll() is None
    assert named_files() == []


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_workers_killed_under_a_loop_leave_their_trainer_nothing(
    running: Cluster, files: str, tmp_path: Path, standin: Path, device: str, moments: Any
) -> None:
    worker = running.workers[0]
    where = {"coordinator": running.address, "worker": str(running.socket()), "job": "kills", "run": "run"}
    # The number of slots follows from the batches ahead, which are chosen by timing unless given.
    trainer = Trainer(tmp_path, standin, files, device=device, prefetch=2, **ORDER, **where)
    pid = trainer.process.pid
    before: dict[str, int] = {}
    seen: list[int] = []
    with sf.Loader(files, FEATURES, **ORDER) as mine:

        def expected() -> Iterator[tuple[list[int], float]]:
            while True:
                for batch in mine:
                    yield batch["id"].tolist(), float(batch["image"].sum(dtype=np.float64))

        whole = expected()

        def is_whole(found: list[tuple[list[int], float]]) -> None:
            """Verifies that these are the next batches, from any source."""
            assert found == [next(whole) for _ in found]

        def takes(count: int) -> str:
            """Takes batches; returns the source of the last one."""
            found, source = trainer.take(count)
            is_whole(found)
            return source

        for kill in range(WARM + KILLS):
            until(lambda: takes(5) == "worker worker-0", "the worker serves")
            trainer.go()
            moments()
            worker.kill()
            moments()
            is_whole(trainer.stop()[0])
            takes(3)
            # It reads in its own process now, which takes additional resources.
            seen.append(memory(pid))
            worker.start()
            if kill + 1 == WARM:
                until(lambda: takes(5) == "worker worker-0", "the worker serves")
                before = held(pid)
        until(lambda: takes(5) == "worker worker-0", "the worker serves")
        before["shared mappings"] += MAPPINGS_BY_CHANCE
        has_no_more(pid, before, lambda: takes(5))
        has_not_grown(seen)
    assert trainer.end() == 0, trainer.log.read_text()[-4000:]
    if device == "cuda":
        report = json.loads(trainer.report.read_text())
        assert report["violation"] == "" and not any(report["live"].values()), report["live"]
    assert named_files() == []
