"""How fast batches come to a GPU, beside how fast this host can send bytes there at all. Needs a GPU; the package must
be built for release (`make build`). Prints one JSON object; exits with 1 if a goal is missed.

    .venv/bin/python bench/gpu/run.py [--device 0] [--gigabytes 4] [--batches 10000] [--kills 100]

Everything is timed with the driver alone, without a framework: what is measured is ours. Without --kills and --batches
it takes about a minute. On the stand-in of the tests it runs, and its numbers mean nothing; it says so.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf

ROW_BYTES = 224 * 224 * 3
FEATURES = {"image": sf.FixedLenFeature((), "string")}
OPERATORS = [sf.operators.decode_raw("image", "uint8", (224, 224, 3))]

GOAL_RATE = 0.95
GOAL_WAIT = 0.01
GOAL_READY_US = 30.0


class Driver:
    """What is measured against, by ctypes."""

    def __init__(self, ordinal: int) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.is_standin = hasattr(self.cuda, "standin_work")
        self.ordinal, self.context, self.stream = ordinal, ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), ordinal)
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code:
            sys.exit(f"error: {name} answers {code}; is there a GPU? nvidia-smi")

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def pinned_rate(self, size: int) -> float:
        """Bytes a second from pinned memory, in copies of a batch's size, best of five rounds."""
        host, target = mmap.mmap(-1, size), ctypes.c_uint64()
        host.write(b"\1" * size)
        base = ctypes.addressof(ctypes.c_char.from_buffer(host))
        self.call("cuMemHostRegister_v2", ctypes.c_void_p(base), ctypes.c_size_t(size), 1)
        self.call("cuMemAlloc_v2", ctypes.byref(target), ctypes.c_size_t(size))
        rates = []
        for _ in range(5):
            begun = time.perf_counter()
            for _ in range(20):
                copy = (target, ctypes.c_void_p(base), ctypes.c_size_t(size), self.stream)
                self.call("cuMemcpyHtoDAsync_v2", *copy)
            self.call("cuStreamSynchronize", self.stream)
            rates.append(20 * size / (time.perf_counter() - begun))
        self.call("cuMemFree_v2", target)
        self.call("cuMemHostUnregister", ctypes.c_void_p(base))
        return max(rates)


def write(folder: Path, rows: int) -> str:
    """Records that cost next to nothing to decode."""
    generator = np.random.default_rng(0)
    for shard in range(4):
        with sf.TFRecordWriter(folder / f"rows-{shard}.tfrecord") as writer:
            for _ in range(rows // 4):
                writer.write({"image": generator.bytes(ROW_BYTES)})
    return str(folder / "*.tfrecord")


def loader(files: str, rows: int, **options: Any) -> sf.Loader:
    return sf.Loader(files, FEATURES, operators=OPERATORS, batch_size=rows, shuffle_window=64, **options)


def batches(feed: sf.Loader, count: int) -> Any:
    """So many batches, over as many epochs as it takes."""
    left = count
    while left > 0:
        for batch in feed:
            yield batch
            left -= 1
            if left == 0:
                return


def rate(feed: sf.Loader, count: int) -> float:
    """Batches a second, after the first few."""
    begun = 0.0
    for number, _ in enumerate(batches(feed, count + 8)):
        if number == 7:
            begun = time.perf_counter()
    return count / (time.perf_counter() - begun)


def paced(feed: sf.Loader, count: int, period: float) -> float:
    """The part of its time that a loop waits which takes a batch each `period` seconds."""
    source, waited = batches(feed, count + 8), 0.0
    for _ in range(8):
        next(source)
    begun = time.perf_counter()
    for step in range(count):
        asked = time.perf_counter()
        next(source)
        waited += time.perf_counter() - asked
        time.sleep(max(0.0, begun + (step + 1) * period - time.perf_counter()))
    return waited / (time.perf_counter() - begun)


def ready(feed: sf.Loader, count: int) -> float:
    """Microseconds for a batch that is there already, the median."""
    source, times = batches(feed, count + 1), []
    next(source)
    for _ in range(count):
        deadline = time.monotonic() + 30
        while feed.stats()["device_ahead"] == 0 and time.monotonic() < deadline:
            time.sleep(0.001)
        asked = time.perf_counter()
        next(source)
        times.append(1e6 * (time.perf_counter() - asked))
    return statistics.median(times)


def left_behind(driver: Driver, files: str, rows: int, count: int) -> dict[str, int]:
    """What many batches leave on the device, in descriptors and threads."""
    def held() -> tuple[int, int, int]:
        return driver.free_bytes(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def go(batches_: int) -> None:
        with loader(files, rows, device=f"cuda:{driver.ordinal}") as feed:
            for _ in batches(feed, batches_):
                pass

    go(20)
    time.sleep(0.5)
    before = held()
    go(count)
    time.sleep(0.5)
    after = held()
    names = ("device_bytes", "descriptors", "threads")
    return {name: sign * (b - a) for name, sign, a, b in zip(names, (-1, 1, 1), before, after, strict=True)}


def kills(driver: Driver, files: str, rows: int, count: int) -> int:
    """Bytes of the device that are gone after so many trainers were killed at work."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import run\n"
        "feed = run.loader(sys.argv[2], int(sys.argv[3]), device='cuda:' + sys.argv[4])\n"
        "for step, batch in enumerate(run.batches(feed, 10**9)):\n"
        "    if step == 5: print('working', flush=True)\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), files, str(rows), str(driver.ordinal)]
    before = driver.free_bytes()
    for _ in range(count):
        trainer = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert trainer.stdout is not None
        trainer.stdout.readline()
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
    time.sleep(2)
    return before - driver.free_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=int, default=0, help="number of the GPU")
    parser.add_argument("--rows", type=int, default=256, help="images of 224 x 224 x 3 bytes in a batch")
    parser.add_argument("--gigabytes", type=float, default=4, help="that are sent in each measurement")
    parser.add_argument("--batches", type=int, default=0, help="that must leave nothing behind, such as 10000")
    parser.add_argument("--kills", type=int, default=0, help="of trainers, which must leave nothing behind")
    options = parser.parse_args()
    driver, size = Driver(options.device), options.rows * ROW_BYTES
    count, device = max(16, int(options.gigabytes * 1e9 / size)), f"cuda:{options.device}"
    found: dict[str, Any] = {"batch_bytes": size, "is_standin": driver.is_standin}
    with tempfile.TemporaryDirectory() as folder:
        files = write(Path(folder), 4 * options.rows)
        found["pinned_bytes_per_s"] = driver.pinned_rate(size)
        with loader(files, options.rows) as feed:
            host = rate(feed, count)
        free = driver.free_bytes()
        with loader(files, options.rows, device=device) as feed:
            there = rate(feed, count)
            stats = feed.stats()
            found["device_bytes_taken"] = free - driver.free_bytes()
        with loader(files, options.rows, device=device) as feed:
            found["wait"] = paced(feed, count, 1 / (0.9 * host))
        with loader(files, options.rows, device=device) as feed:
            found["ready_us"] = ready(feed, 200)
        found |= {"host_bytes_per_s": host * size, "device_bytes_per_s": there * size}
        found |= {name: stats[name] for name in stats if name.startswith("device_")}
        if options.batches:
            found["left_behind"] = left_behind(driver, files, options.rows, options.batches)
        if options.kills:
            found["lost_by_kills"] = kills(driver, files, options.rows, options.kills)
    # Reading itself may be slower than the bus: nobody can be faster than the slower one of both.
    bound = min(found["pinned_bytes_per_s"], found["host_bytes_per_s"])
    slack = 4 << 20
    found["goals"] = {
        "rate": found["device_bytes_per_s"] >= GOAL_RATE * bound,
        "bus_was_the_bound": found["pinned_bytes_per_s"] <= found["host_bytes_per_s"],
        "wait": found["wait"] < GOAL_WAIT,
        "ready": found["ready_us"] < GOAL_READY_US,
        "memory": found["device_bytes_taken"] <= found["device_slot_bytes"] + slack,
        "nothing_left": all(value <= slack for value in found.get("left_behind", {}).values()),
        "kills": found.get("lost_by_kills", 0) <= slack,
    }
    print(json.dumps(found, indent=1))
    if driver.is_standin:
        print("this is the stand-in of the tests: these numbers mean nothing", file=sys.stderr)
    missed = [goal for goal, met in found["goals"].items() if not met and goal != "bus_was_the_bound"]
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
