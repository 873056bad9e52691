"""Signals to trainers and forks of them, with a worker and a coordinator in their own processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from conftest import Dataset, ids, loader

from shardfeed.testing import DEADLINE_S, Cluster, Server

TTL = "session-ttl-ms = 1500\nheartbeat-ms = 300\n"
NUMBERS = count(10)
#: No wait here may end by timeout: only the signal ends it.
FOREVER_S = 600.0

#: `options` are a loader's; the process executes the lines of its input and answers each.
TRAINER = """
import gc, json, os, sys, threading
import shardfeed as sf

options = json.loads(sys.argv[1])
options["features"] = {"id": sf.FixedLenFeature((), "int64"), "image": sf.FixedLenFeature((2, 3), "float32")}

def say(*words):
    print(*words, flush=True)

def ids(batches):
    return [number for batch in batches for number in batch["id"].tolist()]

def say_when_it_waits(loader):
    # Once one step has waited for 300 ms.
    pause, step, before = threading.Event(), None, 0
    while True:
        waited = loader.stats()["account"]["waiting_us"]
        if step != loader.step:
            step, before = loader.step, waited
        elif waited - before >= 300_000:
            return say("waiting")
        pause.wait(0.01)
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("process"), workers=0, config=TTL) as cluster:
        yield cluster


@pytest.fixture
def worker(running: Cluster) -> Iterator[Server]:
    made = running.worker(next(NUMBERS))
    made.start()
    yield made
    made.kill()


@pytest.fixture
def where(running: Cluster, worker: Server) -> dict[str, Any]:
    return running.loader_options() | {"worker": worker.option("--socket")}


class Child:
    """A program as a process, and its output by line."""

    def __init__(self, code: str, dataset: Dataset, where: dict[str, Any], **more: Any) -> None:
        fixed = {"files": dataset.pattern, "batch_size": 4, "shuffle_window": 16, "interleave": 3, "seed": 7}
        options = {**fixed, "fallback": False, "timeout": FOREVER_S, "prefetch": 1, **where, **more}
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", TRAINER + code, json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def line(self) -> str:
        assert self.process.stdout is not None
        said = self.process.stdout.readline().rstrip("\n")
        assert said, self.process.communicate(timeout=DEADLINE_S)
        return said

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> None:
        _, err = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, err

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


#: Continues with the same loader after the interrupt.
READS = """
loader = sf.Loader(**options)
got = ids([next(iter(loader))])
say("open")
sys.stdin.readline()
threading.Thread(target=say_when_it_waits, args=(loader,), daemon=True).start()
try:
    for batch in loader:
        got += ids([batch])
    say("ended")
except KeyboardInterrupt:
    say("interrupted", -(-len(got) // 4) == loader.step)
sys.stdin.readline()
got += ids(loader)
say(json.dumps(got))
"""


def interrupted_while_it_waits(child: Child, silent: Server) -> None:
    assert child.line() == "open"
    silent.stop()
    child.go()
    assert child.line() == "waiting"
    child.interrupt()
    assert child.line() == "interrupted True"


def test_ctrl_c_ends_a_wait_for_a_silent_worker(dataset: Dataset, worker: Server, where: dict[str, Any]) -> None:
    expected = [number for batch in loader(dataset) for number in ids(batch)]
    with Child(READS, dataset, where) as child:
        interrupted_while_it_waits(child, worker)
        worker.resume()
        child.go()
        assert json.loads(child.line()) == expected
        child.end()


def test_ctrl_c_ends_a_wait_for_a_grant(dataset: Dataset, running: Cluster, where: dict[str, Any]) -> None:
    """The coordinator is silent, and only it can grant reads."""
    more = {"mode": "dynamic", "tail": "uneven", "interleave": 1}
    with Child(READS, dataset, where, **more) as child:
        try:
            interrupted_while_it_waits(child, running.coordinator)
        finally:
            running.coordinator.resume()
        child.go()
        assert sorted(json.loads(child.line())) == sorted(dataset.ids)
        child.end()


def test_ctrl_c_ends_a_wait_for_the_other_ranks(dataset: Dataset, where: dict[str, Any]) -> None:
    """An epoch ends when all ranks have consumed their grants; one of them does nothing."""
    more = {"mode": "dynamic", "tail": "uneven", "interleave": 1, "world_size": 2}
    with loader(dataset, **(where | more), rank=1) as idle, Child(READS, dataset, where, **more, rank=0) as child:
        mine = ids(next(iter(idle)))
        assert child.line() == "open"
        child.go()
        assert child.line() == "waiting"
        child.interrupt()
        assert child.line() == "interrupted True"
        child.go()
        mine += [number for batch in idle for number in ids(batch)]
        assert sorted(mine + json.loads(child.line())) == sorted(dataset.ids)
        child.end()


OPENS = """
try:
    say("opening")
    sf.Loader(**options)
    say("open")
except KeyboardInterrupt:
    say("interrupted")
"""


@pytest.mark.parametrize("silent", ["coordinator", "worker"])
def test_ctrl_c_ends_the_making_of_a_loader(
    dataset: Dataset, running: Cluster, worker: Server, where: dict[str, Any], silent: str
) -> None:
    server = running.coordinator if silent == "coordinator" else worker
    server.stop()
    try:
        with Child(OPENS, dataset, where) as child:
            assert child.line() == "opening"
            child.interrupt()
            assert child.line() == "interrupted"
            child.end()
    finally:
        server.resume()


#: The child reads inherited data, releases it, creates a loader, and ends normally.
FORKS = """
loader = sf.Loader(**options)
epoch = iter(loader)
first = next(epoch)
held = first["image"]
before, numbers = held.copy(), first["id"].tolist()
child = os.fork()
if child == 0:
    try:
        next(epoch)
        say("delivered")
    except sf.ShardfeedError as error:
        say("make the loader after forking" in str(error))
    say(first["id"].tolist() == numbers and (held == before).all())
    del epoch, first, held, loader
    gc.collect()
    with sf.Loader(**{**options, "job": options["job"] + "-child"}) as own:
        say(sorted(ids(own)) == sorted(json.loads(sys.stdin.readline())))
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
rest = ids(epoch)
again = ids(loader)
say((held == before).all() and first["id"].tolist() == numbers)
say(json.dumps([numbers + rest, again]))
"""


def test_a_forked_child_leaves_the_parents_slots_alone(dataset: Dataset, where: dict[str, Any]) -> None:
    """Nor does it affect the connection: two epochs reuse the few slots, while one is held."""
    expected = loader(dataset)
    epochs = [[number for batch in expected for number in ids(batch)] for _ in range(2)]
    with Child(FORKS, dataset, where) as child:
        assert child.process.stdin is not None
        child.process.stdin.write(json.dumps(epochs[0]) + "\n")
        child.process.stdin.flush()
        assert [child.line() for _ in range(3)] == ["True"] * 3
        assert child.line() == "True"
        assert json.loads(child.line()) == epochs
        child.end()
