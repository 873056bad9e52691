"""A trainer's side of a GPU for tests: streams, memory and work by direct driver calls, and a
DLPack consumer.

Requires the stand-in for the driver (worker/device/tests/standin), which has `standin_work`.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

CUDA = ctypes.CDLL("libcuda.so.1")
CUDA.cuMemFree_v2.argtypes = [ctypes.c_uint64]
CUDA.cuMemcpyDtoHAsync_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
CUDA.cuMemcpyDtoDAsync_v2.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
CUDA.standin_work.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint]

API = ctypes.pythonapi
API.PyCapsule_GetName.restype = ctypes.c_char_p
API.PyCapsule_GetName.argtypes = [ctypes.py_object]
API.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
API.PyCapsule_GetPointer.restype = ctypes.c_void_p
API.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def call(function: str, *arguments: Any) -> None:
    code = getattr(CUDA, function)(*arguments)
    assert code == 0, f"{function}: {code}"


def names_of_threads() -> list[str]:
    """Returns the names of this process's threads, without those that have just ended."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found.append((task / "comm").read_text().strip())
        except OSError:
            continue
    return found


def wait_for_the_thread() -> None:
    """Waits until the thread of a discarded loader has ended and released its device resources."""
    deadline = time.monotonic() + 20
    while "shardfeed-gpu" in names_of_threads():
        assert time.monotonic() < deadline, "the device's thread does not end"
        time.sleep(0.001)


class Stream:
    """A stream of this thread, the only user of the driver here besides the loader's thread.

    `blocking=False`: the legacy default stream does not wait for it, as for torch's streams.
    """

    def __init__(self, blocking: bool = True) -> None:
        context, self.handle = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuInit", 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        call("cuCtxSetCurrent", context)
        call("cuStreamCreate", ctypes.byref(self.handle), 0 if blocking else 1)

    @property
    def number(self) -> int:
        return int(self.handle.value or 0)

    def works(self, address: int, size: int, microseconds: int) -> None:
        """Queues work that reads `size` bytes for `microseconds`."""
        call("standin_work", self.handle, address, size, microseconds)

    def copies(self, to: int, from_: int, size: int) -> None:
        """Queues a copy within the device."""
        call("cuMemcpyDtoDAsync_v2", to, from_, size, self.handle)

    def read(self, address: int, size: int) -> bytes:
        """Returns the content of the memory after all queued work."""
        copy = ctypes.create_string_buffer(max(size, 1))
        call("cuMemcpyDtoHAsync_v2", copy, address, size, self.handle)
        call("cuStreamSynchronize", self.handle)
        return copy.raw[:size]

    def follows(self, other: int) -> None:
        """Orders later work on this stream after the work queued on another one."""
        event = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(event), 2)
        call("cuEventRecord", event, ctypes.c_void_p(other))
        call("cuStreamWaitEvent", self.handle, event, 0)
        call("cuEventDestroy_v2", event)

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Captures a graph, as `torch.cuda.graph` does by default
        (`capture_error_mode="global"`)."""
        graph = ctypes.c_void_p()
        call("cuStreamBeginCapture_v2", self.handle, 0)
        yield
        call("cuStreamEndCapture", self.handle, ctypes.byref(graph))

    def close(self) -> None:
        call("cuStreamSynchronize", self.handle)
        call("cuStreamDestroy_v2", self.handle)
        call("cuDevicePrimaryCtxRelease_v2", 0)


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


class Taken:
    """A consumer's view of a capsule: consumes it, and calls the deleter on close."""

    def __init__(self, capsule: Any) -> None:
        name = API.PyCapsule_GetName(capsule)
        kind: Any = {b"dltensor": Managed, b"dltensor_versioned": Versioned}[name]
        self.is_versioned = kind is Versioned
        self.pointer = API.PyCapsule_GetPointer(capsule, name)
        self._used = b"used_" + name
        API.PyCapsule_SetName(capsule, self._used)
        self.managed = kind.from_address(self.pointer)
        self.tensor = self.managed.tensor
        self.shape = tuple(self.tensor.shape[i] for i in range(self.tensor.ndim))
        self.strides = tuple(self.tensor.strides[i] for i in range(self.tensor.ndim))

    @property
    def dtype(self) -> Any:
        # numpy has no bfloat16, so its bits are used.
        kind = {0: "i", 1: "u", 2: "f", 4: "u", 6: "b"}[self.tensor.code]
        return np.dtype(f"{kind}{self.tensor.bits // 8}")

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.tensor.bits // 8

    def close(self) -> None:
        self.managed.deleter(self.pointer)


def on_host(array: Any, stream: Stream, **asked: Any) -> Any:
    """Returns a `DeviceArray`'s values, read on that stream."""
    taken = Taken(array.__dlpack__(stream=stream.number, **asked))
    tensor = taken.tensor
    assert (tensor.device_type, tensor.device_id) == array.__dlpack_device__() == (2, 0)
    assert tensor.data % 256 == 0 and tensor.byte_offset == 0 and tensor.lanes == 1
    assert taken.shape == array.shape and taken.is_versioned == ("max_version" in asked)
    values = np.frombuffer(stream.read(tensor.data, taken.size), dtype=taken.dtype).reshape(taken.shape)
    assert taken.strides == tuple(s // values.itemsize for s in np.zeros(taken.shape, taken.dtype).strides)
    taken.close()
    return values


class FakeTensor:
    """The required subset of `torch.Tensor`, in memory of the driver."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype, address = shape, np.dtype(dtype), ctypes.c_uint64()
        self.size = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        call("cuMemAlloc_v2", ctypes.byref(address), max(self.size, 1))
        self.address: int = address.value

    def data_ptr(self) -> int:
        return self.address

    def on_host(self, stream: Stream) -> Any:
        return np.frombuffer(stream.read(self.address, self.size), dtype=self.dtype).reshape(self.shape)

    def free(self) -> None:
        call("cuMemFree_v2", self.address)


class FakeView:
    """A `torch.Tensor` that views a capsule's memory, which it releases when it is freed."""

    def __init__(self, array: Any, stream: Stream) -> None:
        assert array.__dlpack_device__() == (2, 0)
        # As torch requests it: with its current stream, as a DLPack 1 capsule.
        self._taken = Taken(array.__dlpack__(stream=stream.number, max_version=(1, 0)))
        assert self._taken.is_versioned
        self.shape, self.dtype, self.size = self._taken.shape, self._taken.dtype, self._taken.size

    def data_ptr(self) -> int:
        return int(self._taken.tensor.data)

    def on_host(self, stream: Stream) -> Any:
        return np.frombuffer(stream.read(self.data_ptr(), self.size), dtype=self.dtype).reshape(self.shape)

    def __del__(self) -> None:
        self._taken.close()


def fake_torch(stream: Stream) -> types.ModuleType:
    """Returns a module `torch` whose current stream is this one. The real one needs a GPU for its
    memory."""
    torch: Any = types.ModuleType("torch")
    torch.__version__ = "0"
    torch.empty = lambda shape, dtype, device: FakeTensor(shape, dtype)
    torch.from_numpy = lambda array: array
    torch.from_dlpack = lambda array: FakeView(array, stream)
    for name in ("bool", "uint8", "int32", "int64", "float16", "float32"):
        setattr(torch, name, name)
    torch.cuda = types.SimpleNamespace(
        is_initialized=lambda: False,
        current_stream=lambda device: types.SimpleNamespace(cuda_stream=stream.number),
    )
    return torch


def fake_jax(x64: bool = True) -> types.ModuleType:
    """Returns a module `jax` that behaves like JAX on GPUs.

    It names a stream that has only its events, works on another one, releases copied arrays in its
    own thread as soon as the copy is queued, and reports completion on request.
    """
    jax: Any = types.ModuleType("jax")
    events, compute = Stream(), Stream()

    def from_dlpack(array: Any, copy: bool) -> FakeTensor:
        assert copy and array.__dlpack_device__() == (2, 0)
        taken = Taken(array.__dlpack__(stream=events.number))
        assert not taken.is_versioned, "JAX knows the old capsule"
        made = FakeTensor(taken.shape, taken.dtype)
        compute.follows(events.number)
        if made.size > 0:
            compute.copies(made.address, taken.tensor.data, made.size)
        thread = threading.Thread(target=taken.close)
        thread.start()
        thread.join()
        return made

    def block_until_ready(arrays: Any) -> Any:
        call("cuStreamSynchronize", compute.handle)
        return arrays

    def close() -> None:
        events.close(), compute.close()

    jax.config = types.SimpleNamespace(jax_enable_x64=x64)
    jax.dlpack = types.SimpleNamespace(from_dlpack=from_dlpack)
    jax.block_until_ready, jax.close, jax.compute = block_until_ready, close, compute
    return jax
