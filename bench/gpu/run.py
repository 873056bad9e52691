"""Measure batches delivered to a GPU, compared with the host's transfer rate to it.

    .venv/bin/python bench/gpu/run.py [--device 0] [--gigabytes 4] [--batches 10000] [--kills 100]

Needs a GPU and the package, built for release (`make build`, or a wheel). Prints one JSON object in
which each goal is "met", "missed", or "not shown": because it was not requested, or because
something else was the limit. Exits with 1 if a goal is missed.

All times are measured with the driver alone, without a framework, so they are those of shardfeed.
Only a batch that is ready is also timed with torch, if that is installed. Without --kills and
--batches a run takes about a minute. Also runs on the simulated driver of the tests, with
meaningless numbers; the output reports it.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import mmap
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf

ROW_BYTES = 224 * 224 * 3
FEATURES = {"image": sf.FixedLenFeature((), "string")}

#: Batches that wait in host memory when reading is not measured.
FILLED = 32

GOAL_RATE = 0.95
GOAL_WAIT = 0.01
GOAL_READY_US = 30.0


class Driver:
    """Reference measurements with the driver, through ctypes."""

    def __init__(self, ordinal: int) -> None:
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            sys.exit(f"skipped: there is no NVIDIA driver here ({error}); this measures a GPU")
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
        """Returns bytes per second from pinned memory, in copies of a batch's size; best of 5."""
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
    """Writes records that are very cheap to decode."""
    generator = np.random.default_rng(0)
    for shard in range(4):
        with sf.TFRecordWriter(folder / f"rows-{shard}.tfrecord") as writer:
            for _ in range(rows // 4):
                writer.write({"image": generator.bytes(ROW_BYTES)})
    return str(folder / "*.tfrecord")


def images(files: str) -> sf.Source:
    return sf.source(files, FEATURES).decode_raw("image", "uint8", (224, 224, 3))


def changed(source: sf.Source) -> sf.Source:
    """Adds the usual operators for images: on the device one kernel, and four times the bytes."""
    return source.normalize("image", (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)).layout("image")


def loader(files: str, rows: int, **options: Any) -> sf.Loader:
    return loader_of(images(files), rows, **options)


def loader_of(source: sf.Source, rows: int, **options: Any) -> sf.Loader:
    return sf.Loader(source, batch_size=rows, shuffle_window=64, **options)


def batches(feed: sf.Loader, count: int) -> Any:
    """Iterates over `count` batches, over as many epochs as needed."""
    left = count
    while left > 0:
        for batch in feed:
            yield batch
            left -= 1
            if left == 0:
                return


def rate(feed: sf.Loader, count: int) -> float:
    """Returns batches per second, after the first few."""
    begun = 0.0
    for number, _ in enumerate(batches(feed, count + 8)):
        if number == 7:
            begun = time.perf_counter()
    return count / (time.perf_counter() - begun)


def filled_rate(driver: Driver, files: str, rows: int) -> float | None:
    """Returns bytes per second from host slots filled before the clock starts, without reading.

    The slots are registered with the device since the previous round. None if they are not full
    within a minute."""
    size, best = rows * ROW_BYTES, 0.0
    # Records use a part of it, too.
    budget = 4 * FILLED * size
    with loader(files, rows, device=f"cuda:{driver.ordinal}", prefetch=FILLED, memory_budget=budget) as feed:
        source = batches(feed, 4 * FILLED + 1)
        next(source)
        for _ in range(3):
            deadline = time.monotonic() + 60
            while (stats := feed.stats())["ready"] < stats["prefetch"] or stats["device_ahead"] < stats["device_slots"] - 1:
                if time.monotonic() > deadline:
                    return None
                time.sleep(0.001)
            # Batches that are on the device already do not count.
            full, count = stats["ready"], stats["ready"] - stats["device_ahead"]
            begun = time.perf_counter()
            for _ in range(full):
                batch = next(source)
            # The legacy default stream waits for the last batch's copy.
            last = batch["image"].for_stream(1).__cuda_array_interface__["data"]
            driver.call("cuStreamSynchronize", ctypes.c_void_p(1))
            best = max(best, count * size / (time.perf_counter() - begun))
            del batch, last
    return best


def paced(feed: sf.Loader, count: int, period: float) -> float:
    """Returns the fraction of its time that a loop with one batch per `period` seconds waits."""
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


def has_torch() -> bool:
    """True if torch is installed and sees a GPU."""
    try:
        return bool(importlib.import_module("torch").cuda.is_available())
    except ModuleNotFoundError:
        return False


def ready(feed: sf.Loader, count: int) -> float:
    """Returns the median time in microseconds to get a batch that is ready.

    With torch this includes the creation of its tensors and the queueing of the copies into them.
    """
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


def kernel_time(driver: Driver, rows: int, rounds: int = 50) -> dict[str, float]:
    """Measures the kernel alone on a batch of `rows` images, in microseconds.

    It uses the loader's parameters and the driver's clock, best of the rounds. Also returns the
    bytes per second that the kernel reads and writes."""
    text = (Path(__file__).parents[2] / "worker/device/kernels/kernels.ptx").read_bytes()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    source, target, table = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    begin, end, elapsed = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
    count = rows * ROW_BYTES
    driver.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(text))
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, b"shardfeed_normalize_f32")
    for memory, size in ((source, count), (target, 4 * count), (table, 24)):
        driver.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
    driver.call("cuMemsetD8_v2", source, ctypes.c_ubyte(77), ctypes.c_size_t(count))
    values = (ctypes.c_float * 6)(123.675, 116.28, 103.53, 58.395, 57.12, 57.375)
    driver.call("cuMemcpyHtoD_v2", table, values, ctypes.c_size_t(24))
    for event in (begin, end):
        driver.call("cuEventCreate", ctypes.byref(event), 0)
    numbers = [ctypes.c_uint32(number) for number in (count, 224 * 224, 3, 1, 10)]
    all_of_them = [source, target, *numbers, table, ctypes.c_uint32(3), ctypes.c_uint32(0)]
    parameters = (ctypes.c_void_p * 10)(*(ctypes.addressof(each) for each in all_of_them))
    best = float("inf")
    for _ in range(rounds):
        driver.call("cuEventRecord", begin, driver.stream)
        launch = (function, -(-count // 256), 1, 1, 256, 1, 1, 0, driver.stream, parameters, None)
        driver.call("cuLaunchKernel", *launch)
        driver.call("cuEventRecord", end, driver.stream)
        driver.call("cuEventSynchronize", end)
        driver.call("cuEventElapsedTime", ctypes.byref(elapsed), begin, end)
        best = min(best, 1000 * elapsed.value)
    for event in (begin, end):
        driver.call("cuEventDestroy_v2", event)
    for memory in (source, target, table):
        driver.call("cuMemFree_v2", memory)
    driver.call("cuModuleUnload", module)
    return {"kernel_us": best, "kernel_bytes_per_s": 5 * count / (best / 1e6)}


def same_bits(driver: Driver, files: str, rows: int) -> bool:
    """True if the device and the worker compute the same bits for some batches."""
    with (
        loader_of(changed(images(files)), rows) as here,
        loader_of(changed(images(files).on_device()), rows, device=f"cuda:{driver.ordinal}") as there,
    ):
        for ours, theirs in zip(batches(there, 2), batches(here, 2), strict=True):
            said = ours["image"].for_stream(1).__cuda_array_interface__
            size = ours["image"].nbytes
            found = ctypes.create_string_buffer(size)
            driver.call("cuStreamSynchronize", ctypes.c_void_p(1))
            address = (ctypes.c_uint64(said["data"][0]), ctypes.c_size_t(size))
            driver.call("cuMemcpyDtoHAsync_v2", found, *address, driver.stream)
            driver.call("cuStreamSynchronize", driver.stream)
            if found.raw != theirs["image"].tobytes():
                return False
    return True


def left_behind(driver: Driver, files: str, rows: int, count: int) -> dict[str, int]:
    """Returns the device memory, descriptors and threads that many batches leave allocated."""
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
    """Returns the device memory in bytes that is lost after `count` trainers were killed."""
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


def goals(found: dict[str, Any]) -> dict[str, str]:
    """Returns the result of each goal: "met", "missed", or "not shown"."""
    pinned, host, there = (found[f"{name}_bytes_per_s"] for name in ("pinned", "host", "device"))
    slack = 4 << 20  # bytes
    left = found.get("left_behind", {})

    def goal(is_shown: bool, is_met: Callable[[], bool]) -> str:
        return "not shown" if not is_shown else "met" if is_met() else "missed"

    def below(name: str, most: float) -> str:
        return goal(name in found, lambda: found[name] < most)

    filled = found["filled_bytes_per_s"] or 0.0
    # If reading is slower than the bus, a rate proves nothing about the bus unless it reaches the
    # bus's rate anyway.
    is_bus = pinned <= host or filled >= GOAL_RATE * pinned
    return {
        "bus": goal(is_bus, lambda: max(there, filled) >= GOAL_RATE * pinned),
        # The rate cannot exceed that of the slower of both.
        "rate": goal(True, lambda: there >= GOAL_RATE * min(pinned, host)),
        # Batches changed on the device must not arrive later than unchanged ones.
        "changed": goal("changed_bytes_per_s" in found, lambda: found["changed_bytes_per_s"] >= GOAL_RATE * there),
        "kernels_agree": goal("kernels_agree" in found, lambda: found["kernels_agree"]),
        "wait": below("wait", GOAL_WAIT),
        "ready": below("ready_us", GOAL_READY_US),
        "ready_torch": below("ready_torch_us", GOAL_READY_US),
        "memory": goal(True, lambda: found["device_bytes_taken"] <= found["device_slot_bytes"] + slack),
        "nothing_left": goal(bool(left), lambda: all(left[name] <= (slack if name == "device_bytes" else 0) for name in left)),
        "kills": goal("lost_by_kills" in found, lambda: found["lost_by_kills"] <= slack),
    }


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
        if has_torch():
            with loader(files, options.rows, device=device, output="torch") as feed:
                found["ready_torch_us"] = ready(feed, 200)
        found["filled_bytes_per_s"] = filled_rate(driver, files, options.rows)
        if not driver.is_standin or options.rows <= 2:  # takes a second for a million numbers
            found["kernels_agree"] = same_bits(driver, files, options.rows)
        if not driver.is_standin:
            with loader_of(changed(images(files).on_device()), options.rows, device=device) as feed:
                found["changed_bytes_per_s"] = rate(feed, count) * size
            found |= kernel_time(driver, options.rows)
        found |= {"host_bytes_per_s": host * size, "device_bytes_per_s": there * size}
        found |= {name: stats[name] for name in stats if name.startswith("device_")}
        if options.batches:
            found["left_behind"] = left_behind(driver, files, options.rows, options.batches)
        if options.kills:
            found["lost_by_kills"] = kills(driver, files, options.rows, options.kills)
    found["goals"] = goals(found)
    print(json.dumps(found, indent=1))
    if driver.is_standin:
        print("this is the simulated driver of the tests: these numbers mean nothing", file=sys.stderr)
    for said in ("not shown", "missed"):
        if names := [goal for goal, met in found["goals"].items() if met == said]:
            print(f"{said}: {', '.join(names)}", file=sys.stderr)
    if "missed" in found["goals"].values():
        sys.exit(1)


if __name__ == "__main__":
    main()
