"""Failures in a cluster of processes: a clear error or the exact next batch; never a hang."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset, embedded, ids, loader
from trainer import Raised, cursors, served, spawned, take, written

import shardfeed as sf
from shardfeed.testing import Cluster, Server, until

TTL = "session-ttl-ms = 1500\nheartbeat-ms = 300\n"
MIB = 1 << 20
NOBODY = 65534
NUMBERS = count(10)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A coordinator; each test has its own worker."""
    with Cluster(tmp_path_factory.mktemp("faults"), workers=0, config=TTL) as cluster:
        yield cluster


@pytest.fixture
def number() -> int:
    return next(NUMBERS)


@pytest.fixture
def worker(running: Cluster, number: int) -> Iterator[Server]:
    made = running.worker(number)
    made.start()
    yield made
    # Even if it is stopped.
    made.kill()


@pytest.fixture
def where(running: Cluster, worker: Server, number: int) -> dict[str, Any]:
    """Options of a loader on the test's worker, with a unique job name per test."""
    return running.loader_options(number)


def source(each: sf.Loader) -> str:
    return str(each.stats()["source"])


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def memory(pid: int, *kinds: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB$", status, re.MULTILINE))
    return sum(int(values[kind]) for kind in kinds or ("RssAnon", "RssShmem")) * 1024


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def with_budget(running: Cluster, budget: str) -> Server:
    server = running.worker(next(NUMBERS))
    server.arguments[server.arguments.index("--memory-budget") + 1] = budget
    return server


def big_records(folder: Path, files: int, records: int, size: int) -> str:
    folder.mkdir()
    for file in range(files):
        with sf.TFRecordWriter(folder / f"{file:02}.tfrecord") as writer:
            for _ in range(records):
                writer.write(bytes(size))
    return str(folder / "*.tfrecord")


def test_a_coordinator_that_is_down_at_the_start_is_waited_for(
    dataset: Dataset, tmp_path: Path
) -> None:
    late = Cluster(tmp_path / "late", workers=0)
    address = free_address()
    late.coordinator.arguments[late.coordinator.arguments.index("--listen") + 1] = address
    with spawned(tmp_path / "log", dataset, {"coordinator": address, "job": "late"}) as each:
        each.begin("open")
        until(lambda: "does not answer" in each.said(), "the trainer reports that it waits")
        assert address in each.said()
        with late:
            each.answer()
            assert each("take", 4) == embedded(dataset)[:4]
            assert "in process" in each("stats")["source"]


def test_a_worker_waits_for_a_coordinator_that_is_down_and_serves_when_it_comes(
    dataset: Dataset, tmp_path: Path
) -> None:
    late = Cluster(tmp_path / "late", workers=0)
    late.address = free_address()
    late.coordinator.arguments[late.coordinator.arguments.index("--listen") + 1] = late.address
    worker = late.worker(0)
    starts = threading.Thread(target=worker.start)
    starts.start()
    where = {"coordinator": late.address, "worker": late.socket(), "job": "late"}
    try:
        with spawned(tmp_path / "log", dataset, where) as each:
            each.begin("open")
            until(lambda: "does not answer" in each.said(), "the trainer reports that it waits")
            assert "does not answer" in worker.log.read_text()
            with late:
                each.answer()
                assert each("take", 4) == embedded(dataset)[:4]
                assert each("stats")["source"] == "worker worker-0"
                starts.join()
    finally:
        starts.join()
        worker.kill()


def test_a_coordinator_that_never_comes_is_an_error_after_the_timeout(dataset: Dataset) -> None:
    address, begun = free_address(), time.monotonic()
    with pytest.raises(sf.ClusterError, match="did not answer for 1 s") as caught:
        loader(dataset, coordinator=address, job="never", timeout=1.0)
    assert address in str(caught.value) and "shardfeed coordinator start" in str(caught.value)
    assert 0.9 < time.monotonic() - begun < 5


def test_the_timeout_counts_behind_a_worker_too(
    running: Cluster, dataset: Dataset, where: dict[str, Any], tmp_path: Path
) -> None:
    running.coordinator.kill()
    try:
        with spawned(tmp_path / "log", dataset, where, timeout=1.0) as each:
            each.wait_s = 8.0
            with pytest.raises(Raised, match="ClusterError.*did not answer"):
                each("open")
                each("next")
    finally:
        running.coordinator.start()


def test_a_coordinator_that_is_killed_delays_no_batch_and_comes_back_knowing_everything(
    running: Cluster, dataset: Dataset, where: dict[str, Any]
) -> None:
    expected = [embedded(dataset, 3, world_size=2, rank=rank) for rank in range(2)]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(loader(dataset, **where, world_size=2, rank=rank))
            for rank in range(2)
        ]
        got = [take(each, 5) for each in ranks]
        until(lambda: written(running, where["job"]) == (0, 5), "the cursors are written down")

        def known() -> list[Any]:
            datasets = running.ask("dataset", "list")["datasets"]
            job = running.ask("job", "show", where["job"])
            whole = [(each["name"], each["content_digest"], each["records"]) for each in datasets]
            return [whole, job["identity"], job["digest"], len(job["history"])]

        before = known()
        running.coordinator.kill()
        longest = 0.0
        for _ in range(30):
            for rank, each in enumerate(ranks):
                begun = time.monotonic()
                got[rank] += take(each, 1)
                longest = max(longest, time.monotonic() - begun)
        assert longest < 0.5
        running.coordinator.start()
        assert known() == before
        assert all(at >= (0, 5) for at in cursors(running, where["job"]).values())
        stand = {rank: (2, 3) for rank in range(2)}
        until(lambda: cursors(running, where["job"]) == stand, "the cursors are reported again")
        for rank, each in enumerate(ranks):
            got[rank] += take(each, 5)
            assert got[rank] == expected[rank][:40] and each.generation == 0


def test_coordinator_and_worker_killed_at_once_leave_the_trainer_to_itself(
    running: Cluster, dataset: Dataset, where: dict[str, Any], worker: Server
) -> None:
    expected = embedded(dataset, 3)
    with loader(dataset, **where) as each:
        got = take(each, 5)
        running.coordinator.kill()
        worker.kill()
        try:
            got += take(each, 40)
            assert source(each) == "in process"
        finally:
            running.coordinator.start()
        worker.start()
        got += take(each, 45)
        assert got == expected[:90] and each.generation == 0
        until(lambda: cursors(running, where["job"]) == {0: (2, 26)}, "the cursor is reported")


def test_a_killed_worker_is_replaced_at_the_exact_batch_and_back_with_the_next_epoch(
    dataset: Dataset, where: dict[str, Any], worker: Server
) -> None:
    whole = embedded(dataset, 4)
    steps = len(whole) // 4
    with loader(dataset, **where, prefetch=1) as each:
        got = take(each, 5)
        assert source(each) == f"worker {worker.name}"
        worker.kill()
        got += take(each, 2)
        begun = time.monotonic()
        got += take(each, 2)
        assert time.monotonic() - begun < 1.5
        assert source(each) == "in process"
        worker.start()
        got += take(each, steps - 9)

        def returned() -> bool:
            # The worker is looked up at the end of an epoch and used when it answers.
            nonlocal got
            got += take(each, 1)
            return source(each) == f"worker {worker.name}"

        until(returned, "the worker serves again")
        assert steps < len(got) < 3 * steps
        assert got == whole[: len(got)]


def test_a_stopped_worker_is_replaced_and_what_it_says_later_changes_nothing(
    running: Cluster, dataset: Dataset, where: dict[str, Any], worker: Server
) -> None:
    whole = embedded(dataset, 3)
    with loader(dataset, **where) as each:
        got = take(each, 5)
        worker.stop()
        begun = time.monotonic()
        got += take(each, 15)
        assert time.monotonic() - begun < 10
        assert source(each) == "in process"

        def rank() -> dict[str, Any]:
            return served(running, where["job"])[0]

        until(lambda: rank()["step"] == 20, "this process speaks for the rank")
        fencing = rank()["fencing"]
        worker.resume()
        got += take(each, 5)
        until(lambda: rank()["step"] == 25, "the older lease changed nothing")
        assert rank()["fencing"] == fencing and rank()["worker"].startswith("trainer-")
        got += take(each, 50)
        assert got == whole[:75] and each.generation == 0


def test_of_two_workers_for_one_rank_the_older_is_fenced(
    running: Cluster, dataset: Dataset, where: dict[str, Any], worker: Server, tmp_path: Path
) -> None:
    """Both hold the rank: one copy of the trainer is stopped, and another is started elsewhere."""
    whole = embedded(dataset)
    other = running.worker(next(NUMBERS))
    other.start()
    try:
        with spawned(tmp_path / "log", dataset, where) as old:
            old("open")
            assert old("take", 3) == whole[:3]
            worker.stop()
            where = where | {"worker": other.option("--socket")}
            with loader(dataset, **where) as new:
                assert take(new, 2) == whole[:2] and new.generation == 1
                worker.resume()
                with pytest.raises(Raised, match="SupersededError|FencedError"):
                    for _ in range(20_000):
                        old("next")
                assert take(new, 5) == whole[2:7]
                until(lambda: cursors(running, where["job"]) == {0: (0, 7)}, "the newer counts")
        assert "a lease ended" in worker.log.read_text()
    finally:
        other.kill()


def test_without_fallback_the_worker_is_waited_for_and_missed_after_the_timeout(
    dataset: Dataset, where: dict[str, Any], worker: Server, tmp_path: Path
) -> None:
    whole = embedded(dataset)
    log = tmp_path / "log"
    with spawned(log, dataset, where, fallback=False, timeout=2.0, prefetch=1) as each:
        each("open")
        assert each("take", 3) == whole[:3]
        worker.kill()
        each.begin("take", 8)
        worker.start()
        assert each.answer() == whole[3:11]
        assert each("stats")["source"] == f"worker {worker.name}"
        worker.kill()
        begun = time.monotonic()
        with pytest.raises(Raised, match="ClusterError") as caught:
            each("take", 8)
        assert 1.5 < time.monotonic() - begun < 6
        assert "worker.sock" in caught.value.message
        worker.start()
        rest = each("take", 8)
        at = whole.index(rest[0])
        assert 11 <= at <= 13 and rest == whole[at : at + 8]


def test_a_worker_of_another_cluster_is_refused(
    running: Cluster, dataset: Dataset, where: dict[str, Any], tmp_path: Path
) -> None:
    with (
        Cluster(tmp_path / "other", workers=0) as other,
        pytest.raises(sf.ClusterError, match="of cluster") as caught,
    ):
        loader(dataset, **(where | {"coordinator": other.address}))
    for part in (running.cluster_id, other.cluster_id, running.address, other.address):
        assert part in str(caught.value)


@pytest.mark.parametrize("was_silent", [False, True])
def test_another_cluster_under_the_old_address_is_refused_and_stops_nobody(
    dataset: Dataset, tmp_path: Path, was_silent: bool
) -> None:
    """The coordinator's state was wiped; the worker says so also where nobody answered before."""
    with Cluster(tmp_path / "wiped", config=TTL) as wiped:
        (worker,) = wiped.workers
        where = {"coordinator": wiped.address, "worker": wiped.socket(), "timeout": 5.0}
        whole = embedded(dataset)
        with loader(dataset, **where, job="job") as each:
            got = take(each, 3)
            wiped.coordinator.kill()
            shutil.rmtree(wiped.folder / "state")
            if was_silent:
                until(lambda: "does not answer" in worker.log.read_text(), "the worker misses the coordinator")
            words = wiped.coordinator.start().split()
            ids_of = (wiped.cluster_id, words[words.index("cluster") + 1])
            assert ids_of[0] != ids_of[1]
            until(lambda: all(i in worker.log.read_text() for i in ids_of), "the worker notices")
            got += take(each, 20)
            assert got == whole[:23]
            with pytest.raises(sf.ClusterError) as caught:
                take(loader(dataset, **where, job="new"), 1)
            assert all(name in str(caught.value) for name in ids_of)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "host:port", ":7070", "h:1/x"])
def test_an_address_that_is_none_is_refused_at_once(dataset: Dataset, address: str) -> None:
    with pytest.raises(sf.ConfigError, match="HOST:PORT"):
        loader(dataset, coordinator=address, job="job")


def test_a_host_that_does_not_exist_is_an_error_after_the_timeout(dataset: Dataset) -> None:
    with pytest.raises(sf.ClusterError, match=r"no-such-host\.invalid:7070"):
        loader(dataset, coordinator="no-such-host.invalid:7070", job="job", timeout=0.5)


def test_the_port_of_another_program_is_an_error_after_the_timeout(
    dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    begun = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with (
            caplog.at_level(logging.WARNING, "shardfeed"),
            pytest.raises(sf.ClusterError, match=address),
        ):
            loader(dataset, coordinator=address, job="job", timeout=1.5)
    assert time.monotonic() - begun < 4
    assert address in caplog.text


def test_a_missing_socket_is_replaced_by_this_process_or_named(
    running: Cluster, dataset: Dataset, tmp_path: Path
) -> None:
    missing = tmp_path / "none.sock"
    options = {"coordinator": running.address, "worker": missing, "timeout": 0.5}
    with pytest.raises(sf.ClusterError, match="no such file") as caught:
        loader(dataset, **options, fallback=False)
    assert str(missing) in str(caught.value)
    with loader(dataset, **options) as each:
        assert take(each, 3) == embedded(dataset)[:3] and source(each) == "in process"


def test_a_path_that_is_no_socket_is_named(
    running: Cluster, dataset: Dataset, tmp_path: Path
) -> None:
    for path in (dataset.file(0), tmp_path):
        with pytest.raises(sf.ShardfeedError, match="is not a socket") as caught:
            loader(dataset, coordinator=running.address, worker=path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None])
def test_the_socket_of_another_program_is_an_error_or_replaced(
    running: Cluster, dataset: Dataset, tmp_path: Path, says: bytes | None
) -> None:
    """It replies in another protocol, closes without a reply, or does not reply."""
    path = tmp_path / "other.sock"
    ends = threading.Event()

    def serve() -> None:
        held = []
        while not ends.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                held.append(connection)
                if says is not None:
                    connection.sendall(says)
                    held.pop().close()

    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    server.settimeout(0.05)
    thread = threading.Thread(target=serve)
    thread.start()
    options = {"coordinator": running.address, "worker": path, "timeout": 0.5}
    try:
        with pytest.raises(sf.ShardfeedError) as caught:
            loader(dataset, **options, fallback=False)
        assert str(path) in str(caught.value)
        if says:
            assert "another program" in str(caught.value) and "HTTP" in str(caught.value)
    finally:
        ends.set()
        thread.join()
        server.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_somebody_elses_process_at_the_workers_path_is_not_believed(
    running: Cluster, dataset: Dataset, tmp_path: Path
) -> None:
    code = (
        "import os, socket, sys\n"
        "server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[1])\n"
        f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "server.listen(); print('ready', flush=True)\n"
        "while True: server.accept()\n"
    )
    path = tmp_path / "foreign.sock"
    process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        with pytest.raises(sf.ShardfeedError, match=str(NOBODY)) as caught:
            loader(dataset, coordinator=running.address, worker=path, timeout=1.0)
        assert str(path) in str(caught.value)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_a_user_whom_the_worker_does_not_serve_is_told_so(
    running: Cluster, dataset: Dataset, where: dict[str, Any], worker: Server
) -> None:
    code = (
        "import os, sys, shardfeed as sf\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "try:\n"
        "    sf.Loader(sys.argv[1], batch_size=4, coordinator=sys.argv[2], worker=sys.argv[3],\n"
        "              job='foreign', fallback=False, timeout=1.0)\n"
        "except sf.ShardfeedError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    arguments = [dataset.pattern, running.address, where["worker"]]
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "may not connect" in result.stdout, result.stdout + result.stderr
    assert "group" in result.stdout


def test_a_worker_that_ends_leaves_a_waiting_trainer_to_its_own_process(tmp_path: Path, dataset: Dataset) -> None:
    """As one that is killed."""
    with Cluster(tmp_path / "cluster", config=TTL) as cluster:
        cluster.env["SHARDFEED_LOG"] = "debug"
        where = {"coordinator": cluster.address, "worker": cluster.socket(), "timeout": 30.0, "job": "waits"}
        (worker,) = cluster.workers
        log = cluster.folder / "worker-0.log"
        expected = embedded(dataset)

        def is_asked(times: int) -> bool:
            return log.read_text().count("a trainer connected") >= times

        worker.end()
        worker.start()
        cluster.coordinator.stop()
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(loader, dataset, **where)
            until(lambda: is_asked(1), "the trainer has connected")
            worker.end()
            cluster.coordinator.resume()
            each = opening.result(60)
        with each:
            assert take(each, 3) == expected[:3]
            worker.start()
            assert take(each, len(expected) - 3) == expected[3:]


def garbage(seed: int) -> Iterator[bytes]:
    choose = random.Random(seed)
    yield b""
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + choose.randbytes(200)
    yield b"\xff" * 4096
    yield b"\0" * 4096
    for size in (1, 7, 8, 9, 100, 5000, 200_000):
        yield choose.randbytes(size)


def test_garbage_on_the_sockets_disturbs_nobody(
    running: Cluster, dataset: Dataset, where: dict[str, Any], worker: Server
) -> None:
    host, port = running.address.split(":")
    expected = embedded(dataset, 2)
    held: list[socket.socket] = []
    with loader(dataset, **where) as each:
        # The first bytes of a valid connection, then garbage.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(where["worker"]))
            probe.settimeout(5)
            preamble = probe.recv(64)
        got = take(each, 2)
        for seed, text in enumerate([*garbage(1), *(preamble + more for more in garbage(2))]):
            for to in (str(where["worker"]), (host, int(port))):
                family = socket.AF_UNIX if isinstance(to, str) else socket.AF_INET
                connection = socket.socket(family)
                connection.settimeout(5)
                connection.connect(to)
                with contextlib.suppress(OSError):
                    connection.sendall(text)
                if seed % 3:
                    connection.close()
                else:
                    held.append(connection)
            got += take(each, 1)
        got += take(each, 10)
        assert got == expected[: len(got)] and source(each) == f"worker {worker.name}"
        for connection in held:
            connection.close()
        with loader(dataset, **(where | {"job": f"{where['job']}-2"})) as other:
            assert take(other, 3) == expected[:3] and source(other) == f"worker {worker.name}"
    assert running.ask("status")["counts"]["jobs"] >= 2
    for server in (worker, running.coordinator):
        assert server.process is not None and server.process.poll() is None
        assert "panicked" not in server.log.read_text()


def test_a_worker_without_enough_memory_says_so_and_lends_it_again(
    running: Cluster, dataset: Dataset, where: dict[str, Any]
) -> None:
    small = with_budget(running, "3MiB")
    small.start()
    where = where | {"worker": small.option("--socket")}
    second = where | {"job": f"{where['job']}-2"}
    try:
        with loader(dataset, **where, memory_budget="64MiB") as each:
            with pytest.raises(sf.ConfigError, match="memory budget") as caught:
                take(each, 1)
            assert str(3 * MIB) in str(caught.value) and "--memory-budget" in str(caught.value)
        with loader(dataset, **second, memory_budget="1MiB") as each:
            assert take(each, 2) == embedded(dataset)[:2]
            with (
                loader(dataset, **where, memory_budget="1536KiB") as other,
                pytest.raises(sf.ConfigError, match="memory budget left"),
            ):
                take(other, 1)
        with loader(dataset, **where, memory_budget="1536KiB") as other:
            assert until(lambda: attempt(other), "the memory is lent again") == embedded(dataset)[:1]
    finally:
        small.kill()


def attempt(each: sf.Loader) -> list[list[int]]:
    try:
        return take(each, 1)
    except sf.ConfigError:
        return []


def test_a_trainer_that_holds_every_batch_gets_copies(
    dataset: Dataset, where: dict[str, Any]
) -> None:
    expected = embedded(dataset)
    with loader(dataset, **where, prefetch=2) as each:
        held = list(each)
        stats = each.stats()
        assert [ids(batch) for batch in held] == expected
        assert 0 < stats["copied_batches"] < len(held)
        copied = stats["copied_batches"]
        del held
        for batch in each:
            ids(batch)
        assert each.stats()["copied_batches"] == copied


def test_batches_in_use_stay_good_when_their_worker_is_killed(
    dataset: Dataset, where: dict[str, Any], worker: Server
) -> None:
    expected = embedded(dataset)
    with loader(dataset, **where, prefetch=8) as each:
        held = [batch for _, batch in zip(range(6), each, strict=False)]
        arrays = [batch["image"] for batch in held]
        worker.kill()
        held += list(each)
    assert [ids(batch) for batch in held] == expected
    for array, numbers in zip(arrays, expected, strict=False):
        assert [row[0, 0] for row in array] == numbers


def test_the_memory_of_a_killed_trainer_is_free_again(
    running: Cluster, where: dict[str, Any], worker: Server, tmp_path: Path
) -> None:
    pattern = big_records(tmp_path / "data", 8, 16, 256 << 10)
    data = Dataset(tmp_path / "data", [16] * 8)
    assert pattern == data.pattern
    base = memory(worker.pid, "RssShmem")
    options = {"features": None, "prefetch": 6, "shuffle": False}
    with spawned(tmp_path / "log", data, where, **options) as each:
        each("open")
        each("hold", 12)
        until(lambda: memory(worker.pid, "RssShmem") - base > 5 * MIB, "the slots are there")
        each.kill()
    until(lambda: memory(worker.pid, "RssShmem") - base < 2 * MIB, "the slots are free")
    until(lambda: served(running, where["job"])[0]["state"] != "served", "no rank is served")


def test_one_worker_serves_several_jobs_and_ranks(dataset: Dataset, where: dict[str, Any]) -> None:
    got: dict[tuple[int, int], list[list[int]]] = {}

    def train(job: int, rank: int) -> None:
        options = where | {"job": f"{where['job']}-{job}", "seed": job}
        with loader(dataset, **options, world_size=3, rank=rank) as each:
            got[job, rank] = take(each, 20)

    pairs = [(job, rank) for job in range(3) for rank in range(3)]
    threads = [threading.Thread(target=train, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for job, rank in pairs:
        assert got[job, rank] == embedded(dataset, 2, seed=job, world_size=3, rank=rank)[:20]


def test_descriptors_and_memory_stay_flat_over_two_hundred_reconnects(
    dataset: Dataset, where: dict[str, Any], worker: Server
) -> None:
    def held() -> tuple[int, int, int]:
        threads = len(os.listdir(f"/proc/{worker.pid}/task"))
        return descriptors(worker.pid), threads, descriptors(os.getpid())

    first = embedded(dataset)[:1]

    def connect() -> None:
        with loader(dataset, **where) as each:
            assert take(each, 1) == first

    for _ in range(10):
        connect()
    before, bytes_before = held(), memory(worker.pid)
    for _ in range(200):
        connect()
    # Threads and connections end shortly after the loader that had them.
    until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)), "all is closed")
    assert memory(worker.pid) - bytes_before < 16 * MIB


def test_the_memory_of_a_worker_stays_within_its_budget(
    running: Cluster, where: dict[str, Any], tmp_path: Path
) -> None:
    """At most 110 % of the budget, and 32 MiB for the program itself."""
    pattern = big_records(tmp_path / "data", 8, 16, MIB)
    budget = 96 * MIB
    tight = with_budget(running, str(budget))
    tight.start()
    where = where | {"worker": tight.option("--socket")}
    try:
        most, held = 0, []
        with ExitStack() as stack:
            jobs = [
                stack.enter_context(
                    sf.Loader(
                        pattern, batch_size=4, prefetch=16, shuffle_window=8, interleave=2,
                        **(where | {"job": f"{where['job']}-{job}"}),
                    )
                )
                for job in range(2)
            ]  # fmt: skip
            for _ in range(40):
                for each in jobs:
                    held += [batch for _, batch in zip(range(1), each, strict=False)]
                    most = max(most, memory(tight.pid))
                del held[:-8]
        assert most <= budget * 1.1 + 32 * MIB, f"{most / MIB:.0f} MiB"
    finally:
        tight.kill()


def test_nothing_is_left_behind_after_sigkill_of_every_side(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    places = [Path("/dev/shm"), Path("/tmp"), temporary]

    def files() -> set[Path]:
        return {file for place in places for file in place.iterdir() if file.name != "pytest-of-root"}

    before = files()
    with Cluster(tmp_path / "cluster") as all_sides:
        where = {"coordinator": all_sides.address, "worker": all_sides.socket(), "job": "job"}
        with spawned(tmp_path / "log", dataset, where) as each:
            each("open")
            each("hold", 6)
            each.kill()
        all_sides.close()
    assert {file for file in files() - before if "shardfeed" in file.name.lower()} == set()
    assert not [file for file in files() - before if file.parent in (places[0], temporary)]
    # It starts again over the remains in its own folders.
    with Cluster(tmp_path / "cluster") as again:
        where = {"coordinator": again.address, "worker": again.socket(), "job": "job"}
        with loader(dataset, **where) as each_again:
            assert take(each_again, 3) == embedded(dataset)[:3]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "full" / "state"
    disk.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small disk needs a mount")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_under_the_coordinator_is_said_and_loses_nothing(
    dataset: Dataset, small_disk: Path
) -> None:
    whole = embedded(dataset, 3)
    with Cluster(small_disk.parent, config=TTL) as full:
        where = {"coordinator": full.address, "worker": full.socket(), "timeout": 5.0}
        with loader(dataset, **where, job="before") as each:
            got = take(each, 5)
            until(lambda: written(full, "before") == (0, 5), "the cursor is written down")
            filler = small_disk / "filler"
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            refused: sf.ShardfeedError | None = None
            for number in range(200):
                try:
                    with loader(dataset, **where, job=f"job-{number}", seed=number) as other:
                        take(other, 1)
                except sf.ShardfeedError as error:
                    refused = error
                    break
            assert isinstance(refused, sf.ClusterError), refused
            acknowledged = number
            said = str(refused) + full.coordinator.log.read_text()
            assert re.search("no space|full|StorageFull|os error 28", said, re.IGNORECASE), said
            # The training continues.
            got += take(each, 40)
            full.coordinator.kill()
            filler.unlink()
            full.coordinator.start()
            assert written(full, "before") >= (0, 5)
            names = {job["name"] for job in full.ask("job", "list", "--all")["jobs"]}
            assert {"before", *(f"job-{n}" for n in range(acknowledged))} <= names
            until(lambda: cursors(full, "before") == {0: (1, 13)}, "the cursor is reported again")
            got += take(each, 20)
            assert got == whole[:65] and each.generation == 0
            with loader(dataset, **where, job="after") as after:
                assert take(after, 2) == whole[:2]
