"""Batches on a GPU, with a stand-in for its driver: docs/GPU.md says what that shows and what not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Dataset

import shardfeed as sf

#: What each of the programs below begins with.
PRELUDE = """
import os, sys, logging
logging.basicConfig()
import numpy as np
import shardfeed as sf
import device_consumer as dc

FEATURES = {
    "id": sf.FixedLenFeature((), "int64"),
    "image": sf.FixedLenFeature((2, 3), "float32"),
    "name": sf.FixedLenFeature((), "string"),
    "list": sf.RaggedFeature("int64"),
}
if "padded" in sys.argv:
    FEATURES["list"] = sf.FixedLenSequenceFeature((), "int64", allow_missing=True)

def loader(**options):
    return sf.Loader(sys.argv[1], FEATURES, **({"batch_size": 4, "seed": 7, "shuffle_window": 16} | options))

def numbers(batch):
    return [name for name in batch if isinstance(batch[name], np.ndarray)]
"""


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in."""
    folder = tmp_path_factory.mktemp("standin")
    source = ROOT / "worker/device/tests/standin/libcuda.c"
    flags = ["-shared", "-fPIC", "-O1", "-pthread", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["cc", *flags, "-o", folder / "libcuda.so.1", source], check=True)
    # This name is looked for first, and there may be a GPU here.
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    return folder


class Ended:
    """A program that has ended, and what the stand-in saw."""

    def __init__(self, folder: Path, standin: Path, dataset: Dataset, code: str, *more: str, **environment: str) -> None:
        report = folder / "report.json"
        there = {"LD_LIBRARY_PATH": str(standin), "STANDIN_REPORT": str(report), "PYTHONPATH": str(Path(__file__).parent)}
        command = [sys.executable, "-c", PRELUDE + code, dataset.pattern, *more]
        done = subprocess.run(command, env=os.environ | there | environment, capture_output=True, text=True, timeout=120)
        self.output = done.stdout + done.stderr
        assert done.returncode == 0, self.output
        self.report: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}

    def is_clean(self) -> None:
        """Nothing was wrong, and nothing is left."""
        assert self.report["violation"] == "", self.output
        assert not any(self.report["live"].values()), self.report["live"]


@pytest.fixture
def run(tmp_path: Path, standin: Path, dataset: Dataset) -> Any:
    return lambda code, *more, **environment: Ended(tmp_path, standin, dataset, code, *more, **environment)


@pytest.mark.parametrize("columns", ["ragged", "padded"])
def test_batches_on_the_device_are_those_of_the_host(run: Any, columns: str) -> None:
    """Also when their worker is killed."""
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
    # The loader used the driver on a thread of its own alone; the other one is the program's.
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
del ours, held
here.close()
feed = None
import gc, time; gc.collect()
time.sleep(0.2)
stream.close()
"""
    ).is_clean()


@pytest.mark.embedded_only
def test_memory_that_cannot_be_pinned_is_a_warning_and_a_metric(run: Any) -> None:
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
        STANDIN_REFUSE_PIN="801",
    )
    ended.is_clean()
    assert ended.output.count("cannot be pinned") == 1, ended.output


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
# Where another process goes on.
rest = loader(resume=state)
assert sum(1 for _ in rest) == 32 - delivered
""",
        STANDIN_FAIL="cuMemcpyHtoDAsync_v2:5:700",
    )
    assert ended.report["violation"] == ""
    for line in ("said:", "again:"):
        assert f"{line} cuMemcpyHtoDAsync: the NVIDIA driver says CUDA_ERROR_ILLEGAL_ADDRESS (700)" in ended.output


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
