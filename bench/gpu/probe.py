"""Check the GPU and driver features that shardfeed relies on, and measure their cost.

    python bench/gpu/probe.py [--device 0] [--megabytes 1024]

Measures the machine, not shardfeed. Needs the package from a wheel and a GPU, but no compiler and
no other file of this repository. Prints one JSON object; checks that cannot run here contain the
reason. Exits with 1 if a result differs from the assumptions of shardfeed. With torch or JAX for
CUDA there are more checks. Also runs on the simulated driver of the tests, with meaningless
numbers.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import importlib
import json
import mmap
import os
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

#: Values of `CU_DEVICE_ATTRIBUTE_...` that determine what a driver can share and register.
ATTRIBUTES = {
    "multiprocessors": 16, "unified_addressing": 41, "compute_major": 75, "compute_minor": 76,
    "host_register": 99, "virtual_memory_management": 102, "handle_posix_fd": 103,
    "host_register_read_only": 113, "memory_pools": 115, "ipc_events": 125,
}  # fmt: skip
PORTABLE = 1
NON_BLOCKING = 1
#: Maximum slowdown of a trainer's work on the GPU by a loader's copies.
STALL_MAX = 0.01


class NotShown(Exception):
    """Reason why a check cannot run here."""


class Driver:
    """The driver through ctypes, with the context that frameworks use in this process."""

    def __init__(self, ordinal: int) -> None:
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            sys.exit(f"skipped: there is no NVIDIA driver here ({error}); this looks at a GPU")
        self.is_standin = hasattr(self.cuda, "standin_work")
        self.ordinal, self.device, self.context = ordinal, ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self.device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self.cuda, name)
        except AttributeError:
            raise NotShown(f"the driver has no {name}") from None
        code = function(*arguments)
        if code:
            raise NotShown(f"{name} answers {code}")

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def stream(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), NON_BLOCKING)
        return made

    def allocate(self, size: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def send(self, target: ctypes.c_uint64, base: int, size: int, stream: ctypes.c_void_p) -> None:
        copy = (target, ctypes.c_void_p(base), ctypes.c_size_t(size), stream)
        self.call("cuMemcpyHtoDAsync_v2", *copy)


class Sealed:
    """Memory like a worker's slots: a memfd with a sealed size, mapped and written."""

    def __init__(self, size: int) -> None:
        self.size = size
        fd = os.memfd_create("probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        self._map = mmap.mmap(fd, size)
        self.array = np.frombuffer(self._map, dtype=np.uint8)
        self.array[:] = np.arange(size, dtype=np.uint64).astype(np.uint8)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        os.close(fd)
        self.base = int(self.array.ctypes.data)


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def device(driver: Driver, _: int) -> dict[str, Any]:
    """Returns the GPU's identity and the capabilities of its driver."""
    name, uuid, version = ctypes.create_string_buffer(96), (ctypes.c_ubyte * 16)(), ctypes.c_int()
    driver.call("cuDeviceGetName", name, 96, driver.device)
    driver.call("cuDeviceGetUuid_v2", uuid, driver.device)
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    found: dict[str, Any] = {"name": name.value.decode(), "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}"}
    text = bytes(uuid).hex()
    found["uuid"] = "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    for attribute, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        driver.call("cuDeviceGetAttribute", ctypes.byref(value), number, driver.device)
        found[attribute] = value.value
    return found


def registration(driver: Driver, size: int) -> dict[str, float]:
    """Measures registering memory with the device and unregistering it, in seconds per GB.

    This is the cost of the first batch in each slot.
    """
    memory, found = Sealed(size), {}
    for name, count in (("whole", size), ("batches_of_32MiB", 32 << 20)):
        starts = range(memory.base, memory.base + size - count + 1, count)

        def known(starts: range = starts, count: int = count) -> None:
            for start in starts:
                driver.call("cuMemHostRegister_v2", ctypes.c_void_p(start), ctypes.c_size_t(count), PORTABLE)

        def forgotten(starts: range = starts) -> None:
            for start in starts:
                driver.call("cuMemHostUnregister", ctypes.c_void_p(start))

        gigabytes = len(starts) * count / 1e9
        if gigabytes:
            found[f"register_s_per_gb_{name}"] = seconds(known) / gigabytes
            found[f"unregister_s_per_gb_{name}"] = seconds(forgotten) / gigabytes
    return found


def rates(driver: Driver, size: int) -> dict[str, Any]:
    """Measures bytes per second to the device, from registered and from unregistered memory.

    Also checks whether calls return before the copy ends, and whether the bytes arrive."""
    memory, target, stream = Sealed(size), driver.allocate(size), driver.stream()
    found: dict[str, Any] = {}

    def copies() -> None:
        driver.send(target, memory.base, size, stream)
        driver.call("cuStreamSynchronize", stream)

    for name in ("pageable", "registered"):
        if name == "registered":
            driver.call("cuMemHostRegister_v2", ctypes.c_void_p(memory.base), ctypes.c_size_t(size), PORTABLE)
        found[f"{name}_bytes_per_s"] = size / min(seconds(copies) for _ in range(5))
        call = seconds(lambda: driver.send(target, memory.base, size, stream))
        driver.call("cuStreamSynchronize", stream)
        found[f"{name}_call_us"] = 1e6 * call
    there = ctypes.create_string_buffer(size)
    driver.call("cuMemcpyDtoHAsync_v2", there, target, ctypes.c_size_t(size), stream)
    driver.call("cuStreamSynchronize", stream)
    found["as_expected"] = there.raw == memory.array.tobytes()
    driver.call("cuMemHostUnregister", ctypes.c_void_p(memory.base))
    driver.call("cuMemFree_v2", target)
    driver.call("cuStreamDestroy_v2", stream)
    return found


def second_context(driver: Driver, _: int) -> dict[str, int]:
    """Measures the device memory used by a second process's context, as a worker with one would."""
    code = (
        "import ctypes, sys\n"
        "cuda, device, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_int(), ctypes.c_void_p()\n"
        "cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), int(sys.argv[1]))\n"
        "print(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), flush=True)\n"
        "sys.stdin.read()\n"
    )
    before = driver.free_bytes()
    command = [sys.executable, "-c", code, str(driver.ordinal)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        if (said := other.stdout.readline().strip()) != "0":
            raise NotShown(f"a second process has no context: {said or 'it ended'}")
        return {"bytes": before - driver.free_bytes()}


def torch_of() -> Any:
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        raise NotShown("torch is not installed") from None
    if not torch.cuda.is_available():
        raise NotShown("torch sees no GPU")
    return torch


def overlap(driver: Driver, size: int) -> dict[str, Any]:
    """Measures how much slower a trainer's matrix products are during a copy of registered memory.

    The copy uses another stream of the same context; the result is the median of pairs."""
    torch = torch_of()
    memory, target, stream = Sealed(size), driver.allocate(size), driver.stream()
    driver.call("cuMemHostRegister_v2", ctypes.c_void_p(memory.base), ctypes.c_size_t(size), PORTABLE)
    left = torch.randn(8192, 8192, device=f"cuda:{driver.ordinal}", dtype=torch.bfloat16)

    def works(copies: int) -> float:
        for _ in range(copies):
            driver.send(target, memory.base, size, stream)
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        for _ in range(50):
            left @ left
        ended.record()
        ended.synchronize()
        driver.call("cuStreamSynchronize", stream)
        return float(begun.elapsed_time(ended))

    alone = works(0)
    alone = works(0)
    copy = min(seconds(lambda: (driver.send(target, memory.base, size, stream), driver.call("cuStreamSynchronize", stream))) for _ in range(3))
    count = max(1, int(2 * alone / 1e3 / copy))
    pairs = [(works(0), works(count)) for _ in range(7)]
    stall = statistics.median(beside / alone for alone, beside in pairs) - 1
    driver.call("cuMemHostUnregister", ctypes.c_void_p(memory.base))
    driver.call("cuMemFree_v2", target)
    return {"matmul_ms": pairs[0][0] / 50, "stall": stall, "as_expected": stall <= STALL_MAX}


class Seen:
    """A loader's array that records the requests made to it."""

    def __init__(self, array: Any) -> None:
        self._array, self.asked = array, {}

    def __dlpack_device__(self) -> tuple[int, int]:
        found: tuple[int, int] = self._array.__dlpack_device__()
        return found

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked = asked
        return self._array.__dlpack__(**asked)


def batch_of(driver: Driver, folder: str) -> tuple[Any, Any]:
    """Returns a loader, and a batch of [0, 1, 2, 3] on the device."""
    with sf.TFRecordWriter(Path(folder) / "numbers.tfrecord") as writer:
        for number in range(4):
            writer.write({"x": float(number)})
    features = {"x": sf.FixedLenFeature((), "float32")}
    feed = sf.Loader(f"{folder}/*.tfrecord", features, batch_size=4, shuffle_window=1, device=f"cuda:{driver.ordinal}")
    return feed, next(iter(feed))


def own(driver: Driver, _: int) -> dict[str, Any]:
    """Checks a batch of the loader: whether its slot could be registered, and its contents."""
    with tempfile.TemporaryDirectory() as folder:
        feed, batch = batch_of(driver, folder)
        said, stream = batch["x"].for_stream(1).__cuda_array_interface__, driver.stream()
        there = (ctypes.c_float * 4)()
        driver.call("cuStreamSynchronize", ctypes.c_void_p(1))
        driver.call("cuMemcpyDtoHAsync_v2", there, ctypes.c_uint64(said["data"][0]), ctypes.c_size_t(16), stream)
        driver.call("cuStreamSynchronize", stream)
        stats = feed.stats()
        del batch
        feed.close()
        driver.call("cuStreamDestroy_v2", stream)
        values = sorted(there)
        return {
            "pageable_batches": stats["device_pageable_batches"],
            "values": values,
            "as_expected": values == [0.0, 1.0, 2.0, 3.0] and stats["device_pageable_batches"] == 0,
        }


def torch_streams(driver: Driver, size: int) -> dict[str, Any]:
    """Records what torch requests of an array, by stream.

    Expected is 1 on the default stream and the stream's address on a side stream. Also checks
    whether torch treats memory as pinned that was registered without it."""
    torch = torch_of()
    side = torch.cuda.Stream(driver.ordinal)
    with tempfile.TemporaryDirectory() as folder:
        feed, batch = batch_of(driver, folder)
        seen = Seen(batch["x"])
        tensor = torch.from_dlpack(seen)
        found: dict[str, Any] = {"default": {name: str(value) for name, value in seen.asked.items()}}
        values, on_default = sorted(tensor.tolist()), seen.asked.get("stream")
        with torch.cuda.stream(side):
            torch.from_dlpack(seen)
        found["side"], found["side_is_its_address"] = str(seen.asked.get("stream")), seen.asked.get("stream") == side.cuda_stream
        found["as_expected"] = on_default == 1 and found["side_is_its_address"] and values == [0.0, 1.0, 2.0, 3.0]
        del tensor, batch, seen
        feed.close()
    memory = Sealed(1 << 20)
    driver.call("cuMemHostRegister_v2", ctypes.c_void_p(memory.base), ctypes.c_size_t(memory.size), PORTABLE)
    found["registered_is_pinned"] = bool(torch.from_numpy(memory.array).is_pinned())
    driver.call("cuMemHostUnregister", ctypes.c_void_p(memory.base))
    return found


def jax_streams(driver: Driver, _: int) -> dict[str, Any]:
    """Records what JAX requests of an array, and measures the cost of a copy that JAX makes.

    Also checks that the values are correct once JAX reports that they are ready.
    """
    try:
        jax = importlib.import_module("jax")
    except ModuleNotFoundError:
        raise NotShown("jax is not installed") from None
    if all(each.platform != "gpu" for each in jax.devices()):
        raise NotShown("jax sees no GPU")
    with tempfile.TemporaryDirectory() as folder:
        feed, batch = batch_of(driver, folder)
        seen = Seen(batch["x"])

        def takes() -> Any:
            return jax.block_until_ready(jax.dlpack.from_dlpack(seen, copy=True))

        values = sorted(float(value) for value in takes())
        times = [1e6 * seconds(takes) for _ in range(20)]
        found = {"asked": {name: str(value) for name, value in seen.asked.items()}, "copy_us": statistics.median(times)}
        del batch, seen
        feed.close()
    return found | {"as_expected": values == [0.0, 1.0, 2.0, 3.0]}


#: In execution order: frameworks come last, because they allocate memory and contexts.
PROBES: list[Callable[[Driver, int], dict[str, Any]]] = [
    device, registration, rates, second_context, own, torch_streams, overlap, jax_streams,
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=int, default=0, help="number of the GPU")
    parser.add_argument("--megabytes", type=int, default=1024, help="of memory that is registered and sent")
    options = parser.parse_args()
    try:
        driver = Driver(options.device)
    except NotShown as error:
        sys.exit(f"error: {error}; is there a GPU? nvidia-smi")
    found: dict[str, Any] = {"shardfeed": sf.__version__, "is_standin": driver.is_standin}
    for probe in PROBES:
        try:
            found[probe.__name__] = probe(driver, options.megabytes << 20)
        except NotShown as error:
            found[probe.__name__] = {"not_shown": str(error)}
        except Exception as error:  # of a framework; run the other checks anyway
            found[probe.__name__] = {"failed": f"{type(error).__name__}: {error}", "as_expected": False}
    print(json.dumps(found, indent=1))
    if driver.is_standin:
        print("this is the simulated driver of the tests: these numbers mean nothing", file=sys.stderr)
    parts = {name: part for name, part in found.items() if isinstance(part, dict)}
    for name, part in parts.items():
        if "not_shown" in part:
            print(f"not shown: {name}: {part['not_shown']}", file=sys.stderr)
    wrong = [name for name, part in parts.items() if not part.get("as_expected", True)]
    if wrong:
        sys.exit(f"not as expected: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
