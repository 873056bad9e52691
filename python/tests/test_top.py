"""`shardfeed top` in a terminal, and a single screen without one."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
import uuid
from collections.abc import Iterator
from fcntl import ioctl

import pytest
from conftest import Dataset, loader

from shardfeed.testing import BINARY, DEADLINE_S, Cluster

LINES, COLUMNS = 24, 80


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    ttl = "session-ttl-ms = 1500\nheartbeat-ms = 100\n"
    with Cluster(tmp_path_factory.mktemp("top"), config=ttl) as cluster:
        yield cluster


def once(running: Cluster, *more: str) -> subprocess.CompletedProcess[str]:
    command = [str(BINARY), "top", "--once", "--coordinator", running.address, *more]
    env = os.environ | {"COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)


def test_one_screen_shows_a_job_its_shards_ranks_workers_and_events(
    running: Cluster, dataset: Dataset
) -> None:
    job = f"job-{uuid.uuid4().hex[:8]}"
    where = {"coordinator": running.address, "worker": running.socket(), "job": job}
    with loader(dataset, **where, batch_size=4) as each:
        steps = iter(each)
        for _ in range(10):
            next(steps)
        screen = once(running, "--job", job)
    assert screen.returncode == 0, screen.stderr
    lines = screen.stdout.splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS, screen.stdout
    assert any(line.startswith("> job-") and "1 of 1" in line for line in lines), screen.stdout
    shards = next(at for at, line in enumerate(lines) if line.startswith("SHARDS of epoch 0: 8 "))
    assert len(lines[shards + 1]) == 8, screen.stdout
    assert "worker-0" in screen.stdout and "RANKS 1" in screen.stdout
    assert "was registered" in screen.stdout, screen.stdout


def test_a_job_that_is_not_there_is_not_found(running: Cluster) -> None:
    missing = once(running, "--job", "no-such-job")
    assert missing.returncode == 3 and "there is no job `no-such-job`" in missing.stderr, missing


def test_without_a_terminal_it_says_what_to_do(running: Cluster) -> None:
    command = [str(BINARY), "top", "--coordinator", running.address]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "--once" in refused.stderr, refused


@pytest.mark.parametrize("end", ["q", "SIGTERM", "SIGHUP"])
def test_a_terminal_is_drawn_and_left_as_it_was(running: Cluster, end: str) -> None:
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    before = termios.tcgetattr(follower)
    env = running.env | {"TERM": "xterm", "NO_COLOR": "1"}
    command = [str(BINARY), "top", "--coordinator", running.address, "--every", "100ms"]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=env)
    seen = b""
    try:
        deadline = time.monotonic() + DEADLINE_S

        def read_until(what: bytes) -> None:
            nonlocal seen
            while what not in seen:
                assert time.monotonic() < deadline, seen
                if select.select([leader], [], [], 0.1)[0]:
                    seen += os.read(leader, 65536)

        read_until(b"EVENTS")
        os.write(leader, b"p")
        read_until(b"HELD")
        if end == "q":
            os.write(leader, b"q")
        else:
            process.send_signal(signal.Signals[end])
        while process.poll() is None:
            assert time.monotonic() < deadline, seen
            if select.select([leader], [], [], 0.1)[0]:
                seen += os.read(leader, 65536)
        assert process.returncode == (0 if end == "q" else 128 + signal.Signals[end]), seen
        while select.select([leader], [], [], 0.1)[0]:
            seen += os.read(leader, 65536)
        assert termios.tcgetattr(follower) == before
        # The alternate screen was entered and left.
        assert b"\x1b[?1049h" in seen and b"\x1b[?1049l" in seen
        assert b"\x1b[32m" not in seen and b"\x1b[38;5;2m" not in seen
    finally:
        process.kill()
        process.wait()
        os.close(leader)
        os.close(follower)
