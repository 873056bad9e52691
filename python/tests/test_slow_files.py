"""Files on a file system with slow responses or none: a shim between the processes and the system
delays the calls."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset, loader, make_dataset

import shardfeed as sf
from shardfeed.testing import BINARY, Cluster, until

#: Checking them takes longer than the trainer's timeout for its worker, even with 16 checks at a
#: time: an opening checks each file several times, and the files beside it. With sequential checks,
#: or without progress reports, the coordinator would consider the scan hung.
FILES, SLOW_US = 700, 25_000
PATIENT = "session-ttl-ms = 1500\nheartbeat-ms = 200\n"
RANKS = 8
#: Calls that hang.
CALLS = ["statx", "open", "read"]
HUNG_US = 3_600_000_000
SHORT = "session-ttl-ms = 1000\nheartbeat-ms = 200\n"


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shim") / "slow_files.so"
    source = Path(__file__).with_name("slow_files.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("data") / "slow", [1] * FILES)


def slowly(shim: Path, us: int, calls: str = "statx", **more: object) -> dict[str, str]:
    more = {"US": us, "CALLS": calls} | more
    return {"LD_PRELOAD": str(shim)} | {f"SLOW_FILES_{name}": str(value) for name, value in more.items()}


def looks_of_a_worker(folder: Path, shim: Path, slow: Dataset, us: int, ranks: int) -> Counter[str]:
    """Counts a worker's checks of each file until all of its ranks have read to the end."""
    seen = folder / "seen"
    with Cluster(folder, workers=0, config=PATIENT) as running:
        worker = running.worker(0)
        worker.env = worker.env | slowly(shim, us, SEEN=seen)
        worker.start()
        where: dict[str, Any] = {"coordinator": running.address, "worker": running.socket(), "job": "slow", "run": "first"}

        def read(rank: int) -> tuple[int, str]:
            with loader(slow, **where, rank=rank, world_size=ranks, timeout=120.0) as each:
                return sum(1 for _ in each), each.stats()["source"]

        try:
            with ThreadPoolExecutor(ranks) as pool:
                assert set(pool.map(read, range(ranks))) == {(FILES // ranks // 4, "worker worker-0")}
        finally:
            worker.kill()
    assert "scans made no progress" not in running.coordinator.log.read_text()
    return Counter(seen.read_text().splitlines())


def test_a_worker_whose_files_answer_slowly_keeps_its_trainers_and_looks_once_for_all_of_them(
    tmp_path: Path, shim: Path, slow: Dataset
) -> None:
    of_one = looks_of_a_worker(tmp_path / "one", shim, slow, 0, 1)
    assert {str(slow.folder / name) for name in os.listdir(slow.folder)} <= set(of_one)
    assert looks_of_a_worker(tmp_path / "all", shim, slow, SLOW_US, RANKS) == of_one


@pytest.mark.parametrize("calls", CALLS)
def test_a_mount_that_hangs_on_one_worker_does_not_keep_a_dataset_from_the_cluster(
    tmp_path: Path, shim: Path, slow: Dataset, calls: str
) -> None:
    with Cluster(tmp_path / "cluster", workers=0, config=SHORT) as running:
        hung, other = running.worker(0), running.worker(1)
        hung.env = hung.env | slowly(shim, HUNG_US, calls)
        hung.start()
        command = [BINARY, "dataset", "add", "d", slow.pattern, "--coordinator", running.address]
        adding = subprocess.Popen(command, env=running.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:

            def waits() -> bool:
                found = [one for one in running.ask("dataset", "list")["datasets"] if one["name"] == "d"]
                waiting = running.ask("dataset", "show", "d").get("waiting") or "" if found else ""
                doing = "lists" if calls == "statx" else "scans"
                return f"worker `worker-0` {doing}" in waiting and "made no progress" in waiting

            until(waits, "`dataset show` names the worker that hangs")
            other.start()
            assert adding.wait(60) == 0
            assert running.ask("dataset", "show", "d")["shard_count"] == FILES
        finally:
            adding.kill()
            adding.wait()
            hung.kill()
            other.kill()


@pytest.mark.parametrize("calls", CALLS)
def test_a_loader_behind_a_worker_whose_mount_hangs_ends_after_its_timeout(
    tmp_path: Path, shim: Path, slow: Dataset, calls: str
) -> None:
    with Cluster(tmp_path / "cluster", workers=0) as running:
        worker = running.worker(0)
        worker.env = worker.env | slowly(shim, HUNG_US, calls)
        worker.start()
        try:
            where: dict[str, Any] = {"coordinator": running.address, "worker": running.socket()}
            begun = time.monotonic()
            with pytest.raises(sf.ShardfeedError, match="made no progress for"):
                loader(slow, **where, job="hung", run="first", timeout=6.0)
            assert time.monotonic() - begun < 3 * 6.0
        finally:
            worker.kill()


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("pattern", ["*.tfrecord", "train-00.tfrecord"])
def test_a_loader_whose_files_never_answer_ends_at_ctrl_c(
    shim: Path, slow: Dataset, pattern: str, calls: str
) -> None:
    code = f"import shardfeed as sf\nprint('begun', flush=True)\nsf.Loader({str(slow.folder / pattern)!r}, batch_size=1)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | slowly(shim, HUNG_US, calls),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"

        def ended() -> bool:
            process.send_signal(signal.SIGINT)
            return process.poll() is not None

        until(ended, "it ends at Ctrl-C")
    finally:
        process.kill()
        _, said = process.communicate()
    assert "KeyboardInterrupt" in said, said


#: Reads files in order, which stop responding after three batches, and prints when it waits for
#: them.
HANGS = """import json, os, sys, threading, shardfeed as sf
got = 0

def look():
    while "has waited" not in each.why()["sentence"]:
        threading.Event().wait(0.05)
    print("waits", flush=True)

with sf.Loader(sys.argv[1], batch_size=1, shuffle=False, interleave=4, prefetch=2) as each:
    try:
        for batch in each:
            got += 1
            if got == 3:
                os.environ["SLOW_FILES_US"] = sys.argv[2]
                threading.Thread(target=look, daemon=True).start()
    except KeyboardInterrupt:
        print(json.dumps([got, each.why()["limit"], each.state_dict()]), flush=True)
"""


def test_a_loop_whose_mount_hangs_ends_at_ctrl_c_and_is_resumed_where_it_was(shim: Path, slow: Dataset) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS, slow.pattern, str(HUNG_US)],
        env=os.environ | slowly(shim, 0, "read"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    got, limit, state = json.loads(said)
    assert 3 <= got < FILES and limit == "storage", said
    with sf.Loader(slow.pattern, batch_size=1, shuffle=False, interleave=4) as each:
        each.load_state_dict(state)
        assert got + sum(1 for _ in each) == FILES


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOSYS])
def test_a_cache_without_locks_is_used_and_a_warning_says_what_that_costs(
    tmp_path: Path, shim: Path, slow: Dataset, error: int
) -> None:
    code = f"import shardfeed as sf\nprint(sum(1 for _ in sf.Loader({slow.pattern!r}, batch_size=1)))"
    env = {"SHARDFEED_CACHE_DIR": str(tmp_path / "cache"), "SLOW_FILES_FLOCK": str(error)}
    env = os.environ | slowly(shim, 0) | env

    def said() -> str:
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, f"{FILES}\n"), done.stderr
        return done.stderr

    (message,) = said().splitlines()
    assert "cannot lock the index cache" in message and os.strerror(error) in message
    assert "start together each read the files as a whole" in message and "SHARDFEED_CACHE_DIR" in message
    assert said() == "", "the results of the first one are kept"
