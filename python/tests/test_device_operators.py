"""Operators on a GPU, compared with the worker's: the committed kernels, in the PTX interpreter of
the driver's stand-in. docs/GPU.md describes the limits of this test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import on_standin
import pytest
from conftest import ROOT, Dataset, loader

import shardfeed as sf
from shardfeed import operators as op

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)

#: Before the program: its own files, of images.
IMAGES = """
from shardfeed import operators as op

FEATURES = {"image": sf.FixedLenFeature((), "string"), "label": sf.FixedLenFeature((), "int64")}
DECODE = op.decode_raw("image", "uint8", (5, 7, 3))
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)

def images(way, *operators, **options):
    return loader(operators=[DECODE, *operators], job=f"{way}-{os.getpid()}", **options)

def bits(array):
    return array.view(np.uint16) if str(array.dtype) == "bfloat16" else array
"""


@pytest.fixture
def run(tmp_path: Path, standin: Path) -> Any:
    files, generator = tmp_path / "images", np.random.default_rng(5)
    files.mkdir()
    for shard in range(3):
        with sf.TFRecordWriter(files / f"{shard}.tfrecord") as writer:
            for ordinal in range(25):
                writer.write({"image": generator.bytes(5 * 7 * 3), "label": 100 * shard + ordinal})
    pattern = str(files / "*.tfrecord")
    return lambda code, **variables: on_standin.Ended(tmp_path, standin, pattern, IMAGES + code, **variables)


def test_the_committed_kernels_are_what_their_script_writes() -> None:
    subprocess.run([sys.executable, ROOT / "worker/device/kernels/make.py", "--check"], check=True)


@pytest.mark.parametrize(
    "chain",
    [
        'op.normalize("image", MEAN, STD), op.layout("image", "chw")',
        'op.layout("image", "chw"), op.cast("image", "float16")',
        'op.normalize("image", 127.5, 0.3), op.cast("image", "int8"), op.cast("label", "float32")',
    ],
)
def test_what_the_device_makes_is_what_the_worker_makes(run: Any, chain: str) -> None:
    """Also when the worker is killed."""
    ended = run(
        f"CHAIN = [{chain}]"
        """
stream = dc.Stream()
here, there = images("here", *CHAIN), images("there", device_operators=CHAIN, device="cuda:0")
steps = 0
for ours, theirs in zip(there, here, strict=True):
    for name in ("image", "label"):
        array = ours[name]
        assert array.dtype == str(theirs[name].dtype) and array.shape == theirs[name].shape, (array, theirs[name].shape)
        # The same bits, not nearly the same numbers.
        assert dc.on_host(array, stream).tobytes() == theirs[name].tobytes(), name
    assert np.array_equal(dc.on_host(ours.valid, stream), theirs.valid)
    steps += 1
assert steps == len(here) == 18
stats = there.stats()
assert stats["device_bytes"] <= stats["device_batches"] * (4 * 105 + 4 * 8 + 4 + 2 * 256), "the copied bytes are uint8"
del ours, theirs, array
there.close(), here.close()
stream.close()
"""
    )
    ended.is_clean()
    assert ended.report["kernels"] >= 18


@pytest.mark.embedded_only
def test_bfloat16_and_torchs_own_tensors(run: Any) -> None:
    ended = run(
        """
stream = dc.Stream()
chain = [op.cast("image", "float32"), op.normalize("image", MEAN, STD), op.layout("image"), op.cast("image", "bfloat16")]
here, there = images("here", *chain[:-1]), images("there", device_operators=chain, device="cuda")
for ours, theirs in zip(there, here, strict=True):
    found = dc.on_host(ours["image"], stream)
    assert ours["image"].dtype == "bfloat16" and found.dtype == np.uint16
    # To the nearest, ties to even, as a second implementation.
    wide = theirs["image"].view(np.uint32).astype(np.uint64)
    assert np.array_equal(found, (wide + 0x7FFF + (wide >> 16 & 1)) >> 16)
    assert not hasattr(ours["image"], "__cuda_array_interface__")
del ours
there.close(), here.close()
sys.modules["torch"] = dc.fake_torch(stream)
here, there = images("here", *chain[:-1]), images("there", device_operators=chain[:-1], device="cuda", output="torch")
for ours, theirs in zip(there, here, strict=True):
    assert np.array_equal(ours["image"].on_host(stream), theirs["image"])
    for tensor in (ours["image"], ours["label"], ours.valid):
        tensor.free()
there.close(), here.close()
stream.close()
"""
    )
    ended.is_clean()


@pytest.mark.embedded_only
def test_a_state_goes_on_under_other_operators_of_the_device(run: Any) -> None:
    run(
        """
stream = dc.Stream()
there = images("there", device_operators=[op.cast("image", "float32")], device="cuda")
for step, batch in enumerate(there):
    if step == 4:
        break
state = there.state_dict()
del batch
there.close()
here = images("here", resume=state)
there = images("there", device_operators=[op.layout("image")], device="cuda", resume=state)
ours, theirs = next(iter(there)), next(iter(here))
assert ours.step == theirs.step == 5
assert np.array_equal(dc.on_host(ours["image"], stream), np.moveaxis(theirs["image"], -1, 1))
del ours
there.close(), here.close()
stream.close()
"""
    ).is_clean()


@pytest.mark.embedded_only
def test_kernels_that_cannot_be_loaded_are_said_when_the_loader_is_made(run: Any) -> None:
    ended = run(
        """
try:
    images("there", device_operators=[op.layout("image")], device="cuda")
except sf.DeviceError as error:
    print("said:", error)
""",
        STANDIN_FAIL="cuModuleLoadData:1:222",
    )
    assert "said: cuModuleLoadData" in ended.output and "operators does the same on the host" in ended.output


@pytest.mark.embedded_only
def test_others_take_columns_by_the_cuda_array_interface(run: Any) -> None:
    """As in CuPy: its stream is ordered after the named one, and the array is kept while it
    works."""
    ended = run(
        """
import time
stream = dc.Stream()
chain = [op.normalize("image", MEAN, STD), op.layout("image")]
here, there = images("here", *chain), images("there", device_operators=chain, device="cuda")
for step, (ours, theirs) in enumerate(zip(there, here, strict=True)):
    for name, kind in (("image", "<f4"), ("label", "<i8")):
        array = ours[name] if step % 2 else ours[name].for_stream(stream.number)
        said = array.__cuda_array_interface__
        expected = {"shape": theirs[name].shape, "typestr": kind, "strides": None, "version": 3}
        assert said | expected == said and said["stream"] == (1 if step % 2 else stream.number), said
        address, read_only = said["data"]
        assert address % 256 == 0 and not read_only
        if step % 2:
            stream.follows(said["stream"])
        assert stream.read(address, array.nbytes) == theirs[name].tobytes(), (step, name)
        # Work that is under way when the batch is given back: the slot is not written before it is over.
        stream.works(address, array.nbytes, 3000)
    said = ours.valid.__cuda_array_interface__
    assert (said["typestr"], said["shape"]) == ("|b1", (4,))
    del ours, array
for wrong in (0, -1, -7):
    try:
        next(iter(there))["label"].for_stream(wrong)
    except ValueError:
        continue
    raise AssertionError(wrong)
there.close(), here.close()
stream.close()
""",
        STANDIN_COPY_US="1000",
        STANDIN_KERNEL_US="1000",
    )
    ended.is_clean()


@pytest.mark.embedded_only
def test_on_the_cpu_they_are_the_last_operators(dataset: Dataset) -> None:
    chain = [op.cast("image", "float64"), op.normalize("image", (1, 2, 3), 4, dtype="float64")]
    with loader(dataset, device_operators=chain) as ours, loader(dataset, operators=chain) as theirs:
        assert ours.plan_digest == theirs.plan_digest
        for a, b in zip(ours, theirs, strict=True):
            assert a["image"].dtype == np.float64 and np.array_equal(a["image"], b["image"])


@pytest.mark.embedded_only
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("operators", "said"),
    [
        ([op.resize("image", 4)], "device_operators[0] is resize, but they are cast, layout, normalize"),
        ([op.cast("image", "int8", output="small")], "device_operators[0] makes 'small' of 'image'; leave output out"),
        ("image", "operators is a list of operators"),
    ],
)
def test_what_is_not_for_a_device_is_refused(dataset: Dataset, device: str, operators: Any, said: str) -> None:
    with pytest.raises(sf.ConfigError) as raised:
        loader(dataset, device=device, device_operators=operators)
    assert said in str(raised.value)


@pytest.mark.embedded_only
def test_columns_that_a_device_cannot_change_are_refused(run: Any) -> None:
    ended = run(
        """
FEATURES = FEATURES | {"tags": sf.RaggedFeature("int64")}
for operators, options in (
    ([op.cast("other", "int8")], {}),
    ([op.cast("image", "int8")], {"outputs": ["label"]}),
    ([op.cast("tags", "int8")], {}),
    ([op.layout("label")], {}),
    ([op.normalize("image", (1, 2), 1)], {}),
    ([op.cast("image", "int8"), op.normalize("image", 0, 0)], {}),
    ([op.cast("image", "int8")], {"batch_size": 30_000_000}),
):
    try:
        images("there", device_operators=operators, device="cuda", **options)
    except sf.ConfigError as error:
        print("said:", error)
    else:
        raise AssertionError(operators)
"""
    )
    for said in (
        "device_operators[0] (column `other`): batches have no such column; name it in outputs",
        "device_operators[0] (column `image`): batches have no such column",
        "device_operators[0] (column `tags`): it is not of one shape for all rows",
        "device_operators[0] (column `label`): it takes images of three dimensions",
        "device_operators[0] (column `image`): mean has 2 values",
        "device_operators[1] (column `image`): std has 0",
        "and a device changes fewer than 2147483648 at once",
    ):
        assert f"said: {said}" in ended.output or said in ended.output, ended.output
