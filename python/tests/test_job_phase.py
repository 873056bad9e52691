"""Output of `shardfeed job show` for a job: the end of its training, and the error."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset, make_dataset

from shardfeed.testing import Cluster, until

PROGRAM = """
import json, sys
import shardfeed as sf

where = json.loads(sys.argv[1])
files = where.pop("files")
loader = sf.Loader(files, batch_size=4, seed=7, shuffle_window=16, **where)
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("phases")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("data"), [40, 41])


@pytest.fixture
def job(running: Cluster, data: Dataset) -> Any:
    return Job(running, data)


class Job:
    def __init__(self, running: Cluster, data: Dataset) -> None:
        self.name, self.running = f"job-{uuid.uuid4().hex[:8]}", running
        self.where = {"coordinator": running.address, "job": self.name, "files": data.pattern}

    def start(self, code: str, run: str, **more: Any) -> subprocess.Popen[str]:
        where = self.where | {"worker": str(self.running.socket()), "run": run} | more
        program = PROGRAM + textwrap.dedent(code)
        return subprocess.Popen(
            [sys.executable, "-u", "-c", program, json.dumps(where)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, code: str, run: str = "first", **more: Any) -> tuple[int, str]:
        child = self.start(code, run, **more)
        _, err = child.communicate(timeout=60)
        return child.returncode, err

    def shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = self.running.ask("job", "show", self.name)
        return shown

    def is_in(self, phase: str) -> dict[str, Any]:
        """Waits until the job is in a phase: a rank's end is reported with a delay."""
        return until(lambda: (shown := self.shown())["phase"] == phase and shown, f"the job is {phase}")


def test_a_training_that_ended_is_finished_and_begins_no_epoch(job: Job) -> None:
    status, err = job.run("for epoch in range(2):\n    loader.set_epoch(epoch)\n    for batch in loader: pass\n")
    assert status == 0, err
    assert job.is_in("finished")["failure"] is None
    epochs = job.running.ask("epoch", "list", "--job", job.name)["epochs"]
    assert [(one["epoch"], one["state"]) for one in epochs] == [(0, "sealed"), (1, "sealed")]
    assert job.running.ask("epoch", "show", "--job", job.name)["state"] == "sealed"


@pytest.mark.parametrize("ends", ["with", "left open", "in process"])
def test_an_exception_of_the_training_fails_the_job(job: Job, ends: str) -> None:
    code = "next(iter(loader))\nraise ValueError('loss is NaN')\n"
    if ends == "with":
        code = "with loader:\n" + textwrap.indent(code, "    ")
    more = {"worker": str(job.running.folder / "none.sock")} if ends == "in process" else {}
    status, err = job.run(code, **more)
    assert status == 1 and "loss is NaN" in err
    failed = job.is_in("failed")
    assert failed["failure"] == {"rank": 0, "message": "ValueError: loss is NaN"}
    status, err = job.run("for batch in loader: pass\n", "second", **more)
    assert status == 0, err
    assert job.is_in("finished")["failure"] is None, "a generation followed"


def test_an_error_is_told_before_a_process_without_a_worker_ends(job: Job) -> None:
    """The coordinator answers late, and no other process would report the error."""
    worker = str(job.running.folder / "none.sock")
    code = "next(iter(loader))\nprint('ready')\nsys.stdin.readline()\nraise ValueError('loss is NaN')\n"
    child = job.start(code, "first", worker=worker)
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    assert child.stdout.readline() == "ready\n"
    job.running.coordinator.stop()
    try:
        child.stdin.write("\n")
        child.stdin.flush()
        while "loss is NaN" not in child.stderr.readline():
            assert child.poll() is None
        with suppress(subprocess.TimeoutExpired):
            child.wait(0.5)
    finally:
        job.running.coordinator.resume()
    child.communicate(timeout=60)
    assert job.is_in("failed")["failure"]["message"] == "ValueError: loss is NaN"


def test_a_trainer_that_is_killed_fails_the_job(job: Job) -> None:
    child = job.start("next(iter(loader))\nprint('ready')\nsys.stdin.read()\n", "first", fallback=False)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    assert job.shown()["phase"] == "running"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert "without closing the loader" in job.is_in("failed")["failure"]["message"]


def test_a_damaged_record_fails_the_job(job: Job, tmp_path: Path) -> None:
    data = make_dataset(tmp_path / "damaged", [30])
    with data.file(0).open("r+b") as file:
        file.seek(-20, 2)
        file.write(b"\xff\xff")
    status, _ = job.run("for batch in loader: pass\n", files=data.pattern)
    assert status == 1
    failed = job.is_in("failed")["failure"]
    assert failed["rank"] == 0 and "checksum" in failed["message"], failed
