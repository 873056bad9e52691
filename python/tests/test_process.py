"""Ledgers, signals, forks: behavior that is visible only from outside of a process."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset, ids, loader

import shardfeed as sf


def test_the_ledger_says_what_was_handed_out(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    each = loader(dataset, tail="pad", rank=1, world_size=2, batch_size=8)
    expected = ["start 0 0 0 2 8"]
    state = None


    def line(generation: int, step: int, entry: int, number: int, valid: str) -> str:
        shard, record = f"train-{number // 1000:02}.tfrecord", number % 1000
        return f"{generation} 0 {step} {entry} - 0 {shard} {record} {record} 0 0 1 {valid}"

    for batch in each:
        for entry, (number, valid) in enumerate(zip(ids(batch), batch.valid, strict=True)):
            expected.append(line(0, batch.step, entry, number, "1" if valid else "pad"))
        if batch.step == 3:
            state = each.state_dict()
    again = loader(dataset, tail="pad", rank=1, world_size=2, batch_size=8, resume=state)
    batch = next(iter(again))
    expected.append("start 1 0 4 2 8")
    expected += [line(1, 4, entry, number, "1") for entry, number in enumerate(ids(batch))]
    lines = (tmp_path / "ledger" / "rank-1").read_text().splitlines()
    assert lines == expected
    assert [file.name for file in (tmp_path / "ledger").iterdir()] == ["rank-1"]


def test_a_ledger_on_a_full_disk_keeps_whole_batches(dataset: Dataset, tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: the write stops in the middle."""
    code = (
        "import resource, signal, shardfeed as sf\n"
        f"l = sf.Loader({dataset.pattern!r}, batch_size=50, shuffle=False)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "iterator = iter(l); next(iterator)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2700, resource.RLIM_INFINITY))\n"
        "try:\n"
        "    next(iterator); print('delivered')\n"
        "except sf.ShardfeedError as error:\n"
        "    print(l.step, 'SHARDFEED_LEDGER' in str(error))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "print(next(iterator).step)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SHARDFEED_LEDGER": str(tmp_path / "ledger")},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.stdout == "1 True\n1\n", result.stderr
    lines = (tmp_path / "ledger" / "rank-0").read_text().splitlines()
    assert lines[0] == "start 0 0 0 1 50" and len(lines) == 101
    assert [line.split()[2] for line in lines[1:]] == ["0"] * 50 + ["1"] * 50


def test_what_is_waited_for_is_said_once(dataset: Dataset, tmp_path: Path) -> None:
    """Waits are reported by Python's logging or by the exception, and not also in the native
    log."""
    code = (
        "import shardfeed as sf\n"
        f"sf.Loader({dataset.pattern!r}, batch_size=4, coordinator='127.0.0.1:1', job='x', timeout=2,"
        f" worker={str(tmp_path / 'none.sock')!r})\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    native = [line for line in result.stderr.splitlines() if " WARN " in line or " ERROR " in line]
    assert [line.rpartition(": ")[2] for line in native] == ["no worker came; reading in this process"], result.stderr
    assert result.stderr.count("no worker at ") == 1 and result.stderr.count("Connection refused") == 1, result.stderr


def child(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_ctrl_c_ends_a_wait_for_a_batch(tmp_path: Path) -> None:
    """4 GiB must be inflated before the batch; the interrupt does not wait for that."""
    with sf.TFRecordWriter(tmp_path / "x.tfrecord", compression="gzip") as writer:
        for _ in range(64):
            writer.write(bytes(1 << 20))
    member = (tmp_path / "x.tfrecord").read_bytes()
    (tmp_path / "x.tfrecord").write_bytes(member * 64)
    code = (
        "import shardfeed as sf\n"
        f"l = sf.Loader({str(tmp_path / 'x.tfrecord')!r}, batch_size=1, shuffle=False)\n"
        "s = l.state_dict()\n"
        "s['segments'] = [[1, 1, 64 * 64 - 1]]\n"
        "l.load_state_dict(s)\n"
        "try:\n"
        "    print('waiting'); next(iter(l)); print('batch')\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', l.step)\n"
    )
    process = child(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == (f"interrupted {64 * 64 - 1}\n", 0), err


def test_ctrl_c_ends_a_wait_for_another_scan(dataset: Dataset, tmp_path: Path) -> None:
    import fcntl

    loader(dataset).close()
    (index,) = [f for f in (tmp_path / "cache" / "index").iterdir() if not f.suffix]
    index.unlink()
    with index.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code = (
            "import shardfeed as sf\n"
            "print('waiting')\n"
            f"sf.Loader({dataset.pattern!r}, batch_size=1)\n"
        )
        process = child(code)
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode != 0 and "KeyboardInterrupt" in err


def test_a_forked_child_is_refused(dataset: Dataset) -> None:
    code = (
        "import os, shardfeed as sf\n"
        f"l = sf.Loader({dataset.pattern!r}, batch_size=4)\n"
        "b = next(iter(l))\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        next(iter(l)); print('delivered')\n"
        "    except sf.ShardfeedError as error:\n"
        "        print(error)\n"
        "    raise SystemExit(0)\n"
        "os.waitpid(pid, 0)\n"
        "print('parent', len(next(iter(l))['record']))\n"
    )
    out, err = child(code).communicate(timeout=60)
    assert "make the loader after forking" in out, err
    assert out.endswith("parent 4\n")


def test_a_forked_child_may_make_its_own(dataset: Dataset) -> None:
    """As the message advises: the child creates a loader, regardless of the parent's loaders."""
    code = (
        "import os, shardfeed as sf\n"
        f"l = sf.Loader({dataset.pattern!r}, batch_size=4)\n"
        "iterator = iter(l); next(iterator)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        f"    own = sf.Loader({dataset.pattern!r}, batch_size=4)\n"
        "    print('child', sum(b.rows for b in own), flush=True)\n"
        "    l.close(); own.close()\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "print('parent', 4 + sum(b.rows for b in iterator))\n"
    )
    process = child(code)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert out == "child 128\nparent 128\n", err


def test_a_batch_may_be_read_in_a_forked_child(dataset: Dataset) -> None:
    """While the parent holds it. Releasing it in the child has no effect on the parent."""
    code = (
        "import gc, os, sys, shardfeed as sf\n"
        f"l = sf.Loader({dataset.pattern!r}, {{'id': sf.FixedLenFeature((), 'int64')}}, batch_size=4, prefetch=1)\n"
        "epoch = iter(l)\n"
        "batch = next(epoch)\n"
        "pid = os.fork()\n"
        "ids = batch['id']\n"
        "before = ids.tolist()\n"
        "if pid == 0:\n"
        "    print(before, flush=True)\n"
        "    del batch, ids, epoch, l; gc.collect()\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "print(before)\n"
        "print(4 + sum(b.rows for b in epoch), ids.tolist() == before)\n"
    )
    out, err = child(code).communicate(timeout=60)
    first, second, last = out.splitlines()
    assert first == second and last == "128 True", err


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


@pytest.mark.parametrize("options", [{"shuffle": False}, {"shuffle_window": 2}])
def test_the_budget_holds_in_any_order(tmp_path: Path, options: dict[str, Any]) -> None:
    for shard in range(40):
        with sf.TFRecordWriter(tmp_path / f"{shard:02}.tfrecord") as writer:
            for _ in range(8):
                writer.write(bytes(1 << 20))
    each = sf.Loader(
        str(tmp_path / "*.tfrecord"), batch_size=1, memory_budget="32MiB", interleave=1, **options
    )
    before = resident_bytes()
    for _, _batch in zip(range(30), each, strict=False):
        assert resident_bytes() - before < 96 << 20
    assert each.stats()["read_bytes"] < 120 << 20


def test_waiting_does_not_hold_the_interpreter(dataset: Dataset) -> None:
    """Many concurrent threads and loaders finish."""
    expected = [ids(batch) for batch in loader(dataset)]
    results: list[list[list[int]]] = []

    def work() -> None:
        results.append([ids(batch) for batch in loader(dataset, prefetch=1)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert results == [expected] * 8


def test_one_loader_from_many_threads_delivers_each_batch_once(dataset: Dataset) -> None:
    each = loader(dataset)
    got: list[int] = []
    epoch = iter(each)

    def work() -> None:
        for batch in epoch:
            got.append(batch.step)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert sorted(got) == list(range(len(each)))


def test_nothing_is_left_open(dataset: Dataset) -> None:
    def held() -> tuple[int, int]:
        tasks = len(os.listdir("/proc/self/task"))
        return tasks, len(os.listdir("/proc/self/fd"))

    next(iter(loader(dataset)))
    before = held()
    for _ in range(50):
        next(iter(loader(dataset)))
    # Threads end shortly after the loader that had them.
    deadline, pause = time.monotonic() + 30, threading.Event()
    while held() > before and time.monotonic() < deadline:
        pause.wait(0.01)
    assert held() <= before


def test_a_loader_is_not_pickled(dataset: Dataset) -> None:
    each = loader(dataset)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="pickle its state_dict"):
            copied(each)
    assert pickle.loads(pickle.dumps(each.state_dict())) == each.state_dict()


def test_a_forked_child_is_refused_whatever_it_asks(dataset: Dataset) -> None:
    code = (
        "import os, shardfeed as sf\n"
        f"l = sf.Loader({dataset.pattern!r}, batch_size=4)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    for call in (lambda: len(l), l.state_dict, lambda: l.epoch, lambda: l.set_epoch(1), l.stats,\n"
        "                 lambda: next(l.epochs(1)), lambda: repr(l), lambda: l.load_state_dict('{}')):\n"
        "        try:\n"
        "            call(); print('answered', flush=True)\n"
        "        except sf.ShardfeedError as error:\n"
        "            print('make the loader after forking' in str(error), flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    out, err = child(code).communicate(timeout=60)
    assert out == "True\n" * 8, err
