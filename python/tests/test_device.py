"""Batches on a GPU, with a stand-in for its driver: docs/GPU.md describes the limits of this
test."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from conftest import Dataset

import shardfeed as sf


@pytest.mark.parametrize("columns", ["ragged", "padded"])
def test_batches_on_the_device_are_those_of_the_host(run: Any, columns: str) -> None:
    """Also when the worker is killed."""
    ended = run(
        """
stream = dc.Stream()
here, there = loader(job=f"here-{os.getpid()}"), loader(job=f"there-{os.getpid()}", device="cuda:0", provenance="padded" in sys.argv)
steps = 0
for ours, theirs in zip(there, here, strict=True):
    assert list(ours) == list(theirs) and (ours.epoch, ours.step) == (theirs.epoch, theirs.step)
    for asked in ({}, {"max_version": (1, 0), "dl_device": (2, 0), "copy": None}):
        for name in numbers(theirs):
            assert isinstance(ours[name], sf.DeviceArray) and ours[name].dtype == str(theirs[name].dtype)
            values = dc.on_host(ours[name], stream, **asked)
            assert values.dtype == theirs[name].dtype and np.array_equal(values, theirs[name]), name
        assert np.array_equal(dc.on_host(ours.valid, stream, **asked), theirs.valid)
    assert list(ours["name"]) == list(theirs["name"])
    assert np.array_equal(ours.lengths("list"), theirs.lengths("list"))
    assert there.state_after(ours)["segments"] == here.state_after(theirs)["segments"]
    if "padded" in sys.argv:
        assert ours.provenance[0].dtype == np.int64
    steps += 1
assert steps == len(here) == 32
stats = there.stats()
assert stats["device"] == "cuda:0" and stats["device_batches"] >= 32 and stats["device_slots"] <= 3, stats
assert stats["device_pageable_batches"] == 0 and stats["device_pinned_bytes"] > 0, stats
del ours, theirs
there.close(), here.close()
stream.close()
""",
        columns,
    )
    ended.is_clean()
    # The loader used the driver only on its own thread; the other thread is the program's.
    assert sorted(name == "shardfeed-gpu" for name in ended.report["context_threads"]) == [False, True]


@pytest.mark.embedded_only
def test_the_next_batch_is_copied_while_the_loop_works(run: Any) -> None:
    ended = run(
        """
import time
stream = dc.Stream()
feed = loader(outputs=["id", "image"], device="cuda")
batches = iter(feed)
for step in range(4):
    batch = next(batches)
    taken = dc.Taken(batch["image"].__dlpack__(stream=stream.number))
    stream.works(taken.tensor.data, taken.size, 400_000)
    taken.close()  # before the work is done, as a framework that only queues it
    deadline = time.monotonic() + 20
    while feed.stats()["device_ahead"] == 0:
        assert time.monotonic() < deadline, feed.stats()
        time.sleep(0.001)
del batch
feed.close()
stream.close()
""",
        STANDIN_TRACE="1",
        STANDIN_COPY_US="2000",
    )
    ended.is_clean()
    trace = [(kind, part) for _, kind, part, *_ in ended.report["trace"]]
    copied = [at for at, piece in enumerate(trace) if piece == ("copy_in", "end")]
    begun = [at for at, piece in enumerate(trace) if piece == ("work", "begin")]
    worked = [at for at, piece in enumerate(trace) if piece == ("work", "end")]
    for step in range(3):
        assert copied[step] < begun[step], "work on a batch begins after its copy"
        assert copied[step + 1] < worked[step], f"batch {step + 1} is there while {step} is in work"


@pytest.mark.embedded_only
def test_torch_gets_tensors_of_its_own_on_its_stream(run: Any) -> None:
    ended = run(
        """
stream = dc.Stream()
sys.modules["torch"] = dc.fake_torch(stream)
here, feed = loader(), loader(output="torch", device="cuda")
assert feed.device == "cuda:0" and feed.output == "torch"
kept = []
for step, (ours, theirs) in enumerate(zip(feed, here, strict=True)):
    # All are kept, and the loader's slots are free all the same.
    kept += [(ours["image"], theirs["image"].copy()), (ours["id"], theirs["id"].copy()), (ours.valid, theirs.valid.copy())]
for tensor, expected in kept:
    assert np.array_equal(tensor.on_host(stream), expected)
    tensor.free()
stats = feed.stats()
assert stats["device_extra_slots"] == 0 and stats["device_slots"] <= 3, stats
feed.close(), here.close()
stream.close()
""",
    )
    ended.is_clean()


@pytest.mark.embedded_only
def test_torch_views_are_used_again_after_what_was_queued_on_its_stream(run: Any) -> None:
    """`zero_copy=True`: the stand-in ends the process if a view is written while work reads it."""
    ended = run(
        """
stream = dc.Stream()
sys.modules["torch"] = dc.fake_torch(stream)
here, feed = loader(), loader(output="torch", device="cuda:0", zero_copy=True)
steps, addresses, kept = 0, set(), None
for ours, theirs in zip(feed, here, strict=True):
    for name in numbers(theirs):
        tensor = ours[name]
        assert isinstance(tensor, dc.FakeView) and tensor.dtype == theirs[name].dtype
        assert np.array_equal(tensor.on_host(stream), theirs[name]), name
        stream.works(tensor.data_ptr(), tensor.size, 2_000)
    assert np.array_equal(ours.valid.on_host(stream), theirs.valid)
    if steps == 3:
        kept = (ours["image"], theirs["image"].copy())
    addresses.add(ours["image"].data_ptr())
    steps += 1
    # The batch and its tensors go while the work on them is only queued.
    del ours, tensor
assert steps == 32 and 2 <= len(addresses) <= 3, addresses
assert np.array_equal(kept[0].on_host(stream), kept[1]), "a tensor that is kept keeps its slot"
stats = feed.stats()
assert stats["device_extra_slots"] == 0 and stats["device_slots"] <= 3, stats
feed.close(), here.close()
assert np.array_equal(kept[0].on_host(stream), kept[1]), "also of a loader that was closed"
del kept, feed
dc.wait_for_the_thread()
stream.close()
""",
        STANDIN_COPY_US="1000",
    )
    ended.is_clean()


@pytest.mark.embedded_only
def test_jax_gets_arrays_of_its_own_and_the_slot_is_free_when_they_are_made(run: Any) -> None:
    ended = run(
        """
stream = dc.Stream()
sys.modules["jax"] = jax = dc.fake_jax()
here, feed = loader(), loader(output="jax", device="cuda")
assert feed.device == "cuda:0" and feed.output == "jax"
kept = []
for ours, theirs in zip(feed, here, strict=True):
    # All are kept, and the loader's slots are free all the same.
    kept += [(ours[name], theirs[name].copy()) for name in numbers(theirs)] + [(ours.valid, theirs.valid.copy())]
    assert list(ours["name"]) == list(theirs["name"])
for array, expected in kept:
    assert isinstance(array, dc.FakeTensor) and array.dtype == expected.dtype
    assert np.array_equal(array.on_host(stream), expected)
    array.free()
assert len(kept) == 3 * 32
stats = feed.stats()
assert stats["device_extra_slots"] == 0 and stats["device_slots"] <= 3, stats
feed.close(), here.close()
jax.close(), stream.close()
""",
        STANDIN_COPY_US="1000",
    )
    ended.is_clean()


@pytest.mark.embedded_only
def test_types_that_jax_has_not_are_refused_before_anything_is_read(run: Any) -> None:
    ended = run(
        """
sys.modules["jax"] = jax = dc.fake_jax(x64=False)
try:
    loader(output="jax", device="cuda")
except sf.ConfigError as error:
    print("said:", error)
feed = loader(lambda source: source.cast("id", "int32"), output="jax", device="cuda", outputs=["id", "image"])
batch = next(iter(feed))
assert batch["id"].dtype == np.int32
for array in (batch["id"], batch["image"], batch.valid):
    array.free()
del batch
feed.close()
jax.close()
"""
    )
    assert "said: columns 'id' have types of 64 bits, which JAX has not here" in ended.output
    ended.is_clean()


@pytest.mark.embedded_only
def test_a_loop_that_holds_every_batch_does_not_wait_for_itself(run: Any) -> None:
    run(
        """
stream = dc.Stream()
feed, here = loader(device="cuda"), loader()
held = list(feed)
assert feed.stats()["device_extra_slots"] >= 29
feed.close()
for ours, theirs in zip(held, here, strict=True):
    assert np.array_equal(dc.on_host(ours["image"], stream), theirs["image"])
del ours, held, feed
here.close()
dc.wait_for_the_thread()
stream.close()
"""
    ).is_clean()


@pytest.mark.embedded_only
def test_a_trainer_captures_graphs_while_batches_are_copied_and_slots_made(run: Any) -> None:
    """The stand-in ends the process at a call that would break a capture in torch's default
    mode."""
    run(
        """
import time
stream, graph = dc.Stream(blocking=False), dc.Stream(blocking=False)
here = loader()
with graph.captured():
    feed = loader(lambda source: source.on_device().cast("image", "float64"), device="cuda:0")
    held = list(feed)
    taken = [dc.Taken(batch["image"].__dlpack__(stream=stream.number)) for batch in held]
assert feed.stats()["device_extra_slots"] >= 29
for ours, theirs in zip(taken, here, strict=True):
    values = np.frombuffer(stream.read(ours.tensor.data, ours.size), dtype=ours.dtype).reshape(ours.shape)
    assert np.array_equal(values, theirs["image"].astype(np.float64))
with graph.captured():
    for each in taken:
        each.close()
    del held, taken, each, ours
    deadline = time.monotonic() + 20
    while feed.stats()["device_slots"] > 3:
        assert time.monotonic() < deadline, feed.stats()
        time.sleep(0.001)
    # The graph's own stream can neither wait for a copy nor say when it is done with a batch.
    rest = iter(feed)
    for _ in range(4):
        dc.Taken(next(rest)["image"].__dlpack__(stream=graph.number)).close()
    del rest
    feed.close()
here.close()
del feed
dc.wait_for_the_thread()
graph.close(), stream.close()
""",
        STANDIN_COPY_US="1000",
    ).is_clean()


@pytest.mark.embedded_only
def test_tensors_that_would_be_copied_into_a_graph_are_refused(run: Any) -> None:
    ended = run(
        """
graph = dc.Stream(blocking=False)
sys.modules["torch"] = torch = dc.fake_torch(graph)
feed = loader(output="torch", device="cuda:0")
class Tensor(dc.FakeTensor):
    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.address = 4096
with graph.captured():
    # torch's allocator works within a capture.
    torch.empty = lambda shape, dtype, device: Tensor(shape, dtype)
    try:
        next(iter(feed))
    except sf.DeviceError as error:
        print("said:", error)
feed.close()
graph.close()
"""
    )
    ended.is_clean()
    assert "said: the stream that batches are copied on is part of the capture of a CUDA graph" in ended.output


@pytest.mark.embedded_only
@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("801", "raise the limit on locked memory (ulimit -l)"),
        ("712", "something else in this process registered (pinned) this memory"),
    ],
)
def test_memory_that_cannot_be_pinned_is_a_warning_and_a_metric(run: Any, code: str, hint: str) -> None:
    ended = run(
        """
stream = dc.Stream()
feed, here = loader(device="cuda"), loader()
for ours, theirs in zip(feed, here, strict=True):
    assert np.array_equal(dc.on_host(ours["image"], stream), theirs["image"])
stats = feed.stats()
assert stats["device_pageable_batches"] == stats["device_batches"] > 0 and stats["device_pinned_bytes"] == 0, stats
del ours
feed.close(), here.close()
stream.close()
""",
        STANDIN_REFUSE_PIN=code,
    )
    ended.is_clean()
    assert ended.output.count("cannot be pinned") == 1 and hint in ended.output, ended.output


@pytest.mark.embedded_only
def test_a_device_that_fails_consumes_nothing(run: Any) -> None:
    ended = run(
        """
feed = loader(device="cuda", prefetch=8)
delivered = 0
try:
    for batch in feed:
        delivered += 1
except sf.DeviceError as error:
    print("said:", error)
assert 1 <= delivered < 32 and feed.step == delivered, (delivered, feed.step)
try:
    next(iter(feed))
except sf.DeviceError as error:
    print("again:", error)
del batch
state = feed.state_dict()
feed.close()
# Where another process continues.
rest = loader(resume=state)
assert sum(1 for _ in rest) == 32 - delivered
""",
        STANDIN_FAIL="cuMemcpyHtoDAsync_v2:5:700",
    )
    assert ended.report["violation"] == ""
    for line in ("said:", "again:"):
        assert f"{line} cuMemcpyHtoDAsync: the NVIDIA driver says CUDA_ERROR_ILLEGAL_ADDRESS (700)" in ended.output


def test_ctrl_c_ends_the_wait_for_a_device_that_is_busy(run: Any) -> None:
    """The loop is so far ahead that no slot is left; the awaited batch comes next, at any later
    time and in any thread."""
    run(
        """
import signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
stream = dc.Stream()
here, feed = loader(job=f"here-{os.getpid()}"), loader(job=f"there-{os.getpid()}", outputs=["id", "image"], device="cuda")
batches = iter(feed)

def takes(work_us):
    batch = next(batches)
    taken = dc.Taken(batch["image"].__dlpack__(stream=stream.number))
    stream.works(taken.tensor.data, taken.size, work_us)
    taken.close()
    return batch["id"]

def is_asleep(looks):
    # Whether this program's first thread does nothing, look after look.
    stat = f"/proc/self/task/{os.getpid()}/stat"
    while looks > 0:
        if open(stat).read().rsplit(")", 1)[1].split()[0] != "S":
            return False
        time.sleep(0.002)
        looks -= 1
    return True

def interrupts():
    while not (is_waiting.is_set() and is_asleep(20)):
        time.sleep(0.001)
    asked.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

for again in range(2):
    is_waiting, asked = threading.Event(), []
    threading.Thread(target=interrupts).start()
    if again == 0:
        # Three batches, and three more that are copied as soon as those were read.
        for _ in range(6):
            takes(30_000_000)
    assert feed.step == 6
    state = feed.state_dict()
    is_waiting.set()
    try:
        takes(0)
    except KeyboardInterrupt:
        ended = time.monotonic()
    else:
        raise AssertionError("there was a slot")
    assert ended - asked[0] < 10, ended - asked[0]
    assert feed.step == 6 and feed.state_dict() == state, "nothing was consumed"
    # A generator that raised has ended.
    batches = iter(feed)

dc.call("standin_hurry")
expected = [theirs["id"].copy() for theirs in here]
for step in range(6, 32):
    assert np.array_equal(dc.on_host(takes(0), stream), expected[step]), step
assert feed.stats()["device_extra_slots"] == 0 and feed.step == 0 and feed.epoch == 1, feed.stats()
del batches
feed.close(), here.close()
stream.close()
"""
    ).is_clean()


@pytest.mark.embedded_only
def test_an_answer_that_no_list_has_is_an_error_with_its_number(run: Any) -> None:
    """Newer drivers have results that this package's list lacks."""
    ended = run(
        """
feed = loader(device="cuda")
try:
    for batch in feed:
        pass
except sf.DeviceError as error:
    print("said:", error)
del batch
feed.close()
""",
        STANDIN_FAIL="cuMemcpyHtoDAsync_v2:5:12345",
    )
    assert ended.report["violation"] == ""
    assert "said: cuMemcpyHtoDAsync: the NVIDIA driver says an error without a name (12345)" in ended.output


@pytest.mark.embedded_only
def test_a_forked_child_is_refused_and_leaves_the_device_alone(run: Any) -> None:
    run(
        """
stream = dc.Stream()
feed = loader(device="cuda")
batches = iter(feed)
batch = next(batches)
child = os.fork()
if child == 0:
    refused = 0
    for use in (lambda: next(batches), lambda: batch["image"].__dlpack__(stream=1)):
        try:
            use()
        except sf.ShardfeedError as error:
            refused += "fork" in str(error)
    feed.close()
    del batch, batches, feed
    os._exit(40 + refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
assert dc.on_host(batch["image"], stream).shape == (4, 2, 3)
del batch
feed.close()
stream.close()
"""
    ).is_clean()


@pytest.mark.embedded_only
def test_a_loader_that_is_left_open_ends_with_the_interpreter(run: Any) -> None:
    ended = run(
        """
feed = loader(device="cuda")
batch = next(iter(feed))
"""
    )
    assert ended.report["violation"] == "" and ended.report["live"]["pinned"] == 0, ended.report


@pytest.mark.embedded_only
def test_streams_and_wishes_that_make_no_sense_are_refused(run: Any) -> None:
    run(
        """
feed = loader(device="cuda")
array = next(iter(feed))["image"]
for asked in ({"stream": 0}, {"stream": -3}, {"stream": 1, "copy": True}, {"stream": 1, "dl_device": (1, 0)}):
    try:
        array.__dlpack__(**asked)
    except BufferError as error:
        assert len(str(error)) > 20
    else:
        raise AssertionError(asked)
unused = [array.__dlpack__(stream=s, max_version=v) for s in (None, 1, 2, -1) for v in (None, (1, 1))]
del unused, array
feed.close()
"""
    ).is_clean()


@pytest.mark.embedded_only
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"STANDIN_DEVICES": "0"}, "the NVIDIA driver sees no GPU (CUDA_VISIBLE_DEVICES: "),
        ({}, 'there is no device "cuda:7": this process sees 1, counted from 0'),
        ({"STANDIN_FAIL": "cuInit:1:803"}, "driver and libcuda.so.1 are of different versions"),
    ],
)
def test_a_device_that_is_not_there_is_refused(run: Any, environment: dict[str, str], said: str) -> None:
    ended = run('try:\n    loader(device="cuda:7")\nexcept sf.ShardfeedError as error:\n    print(error)\n', **environment)
    assert said in ended.output


@pytest.mark.embedded_only
def test_without_a_driver_it_is_said_what_was_looked_for_and_what_to_do(dataset: Dataset) -> None:
    code = "import sys, shardfeed as sf\nsf.Loader(sys.argv[1], batch_size=1, device='cuda')"
    command = [sys.executable, "-c", code, dataset.pattern]
    done = subprocess.run(command, env=os.environ | {"LD_LIBRARY_PATH": "/nonexistent"}, capture_output=True, text=True)
    if done.returncode == 0:
        pytest.skip("there is a GPU here, whose driver is found without LD_LIBRARY_PATH")
    assert "ConfigError" in done.stderr and 'use device="cpu"' in done.stderr, done.stderr
    if "no NVIDIA driver here" in done.stderr:
        assert "libcuda.so.1 was looked for" in done.stderr and 'LD_LIBRARY_PATH ("/nonexistent")' in done.stderr


@pytest.mark.embedded_only
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "gpu"}, "device='gpu' is neither \"cpu\" nor \"cuda\""),
        ({"device": "cuda:x"}, "device='cuda:x' is neither"),
        ({"device": "cuda", "output": "tf"}, 'output="tf" is not for GPUs'),
        ({"device": "cuda", "zero_copy": True}, 'zero_copy=True is for output="torch"'),
        ({"zero_copy": True}, 'zero_copy=True is for device="cuda"'),
        ({"device": "cuda", "output": "cupy"}, "output='cupy' is none of"),
    ],
)
def test_options_that_mean_nothing_are_refused(dataset: Dataset, options: dict[str, Any], said: str) -> None:
    with pytest.raises(sf.ConfigError) as raised:
        sf.Loader(dataset.pattern, batch_size=1, **options)
    assert said in str(raised.value)


@pytest.mark.embedded_only
@pytest.mark.parametrize("versioned", [False, True])
def test_numpy_takes_a_hosts_buffer_by_dlpack_without_a_copy(dataset: Dataset, versioned: bool) -> None:
    feed = sf.Loader(dataset.pattern, {"id": sf.FixedLenFeature((), "int64")}, batch_size=4)
    batch = next(iter(feed))
    values, _, _ = batch._native.column(0)

    class Offered:
        def __dlpack_device__(self) -> tuple[int, int]:
            return values.__dlpack_device__()

        def __dlpack__(self, **asked: Any) -> Any:
            return values.__dlpack__(**(asked if versioned else {}))

    array = np.from_dlpack(Offered())
    assert array.ctypes.data == batch["id"].ctypes.data and array.ctypes.data % 256 == 0
    assert array.dtype == np.int64 and np.array_equal(array, batch["id"]) and array.flags.writeable == versioned
    expected = array.copy()
    del batch, values
    feed.close()
    assert np.array_equal(array, expected)
