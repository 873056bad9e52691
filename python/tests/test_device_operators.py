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
from conftest import FEATURES, ROOT, Dataset, loader

import shardfeed as sf

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)

#: Before the program: its own files, of images.
IMAGES = """
FEATURES = {"image": sf.FixedLenFeature((), "string"), "label": sf.FixedLenFeature((), "int64")}
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)

def images(way, chain=lambda source: source, **options):
    def then(source):
        source = source.decode_raw("image", "uint8", (5, 7, 3))
        return chain(source.on_device() if "device" in options else source)

    return loader(then, job=f"{way}-{os.getpid()}", **options)

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
        'normalize("image", MEAN, STD).layout("image", "chw")',
        'layout("image", "chw").cast("image", "float16")',
        'normalize("image", 127.5, 0.3).cast("image", "int8").cast("label", "float32")',
    ],
)
def test_what_the_device_makes_is_what_the_worker_makes(run: Any, chain: str) -> None:
    """Also when the worker is killed."""
    ended = run(
        f"chain = lambda source: source.{chain}"
        """
stream = dc.Stream()
here, there = images("here", chain), images("there", chain, device="cuda:0")
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
wide = lambda source: source.cast("image", "float32").normalize("image", MEAN, STD).layout("image")
narrow = lambda source: wide(source).cast("image", "bfloat16")
here, there = images("here", wide), images("there", narrow, device="cuda")
for ours, theirs in zip(there, here, strict=True):
    found = dc.on_host(ours["image"], stream)
    assert ours["image"].dtype == "bfloat16" and found.dtype == np.uint16
    # To the nearest, ties to even, as a second implementation.
    bits = theirs["image"].view(np.uint32).astype(np.uint64)
    assert np.array_equal(found, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    assert not hasattr(ours["image"], "__cuda_array_interface__")
del ours
there.close(), here.close()
sys.modules["torch"] = dc.fake_torch(stream)
here, there = images("here", wide), images("there", wide, device="cuda", output="torch")
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
there = images("there", lambda source: source.cast("image", "float32"), device="cuda")
for step, batch in enumerate(there):
    if step == 4:
        break
state = there.state_dict()
del batch
there.close()
here = images("here", resume=state)
there = images("there", lambda source: source.layout("image"), device="cuda", resume=state)
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
    images("there", lambda source: source.layout("image"), device="cuda")
except sf.DeviceError as error:
    print("said:", error)
""",
        STANDIN_FAIL="cuModuleLoadData:1:222",
    )
    assert "said: cuModuleLoadData" in ended.output and "without on_device() the worker does the same on the host" in ended.output


@pytest.mark.embedded_only
def test_others_take_columns_by_the_cuda_array_interface(run: Any) -> None:
    """As in CuPy: its stream is ordered after the named one, and the array is kept while it
    works."""
    ended = run(
        """
import time
stream = dc.Stream()
chain = lambda source: source.normalize("image", MEAN, STD).layout("image")
here, there = images("here", chain), images("there", chain, device="cuda")
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
    def chain(source: sf.Source) -> sf.Source:
        return source.cast("image", "float64").normalize("image", (1, 2, 3), 4, dtype="float64")

    with loader(dataset, lambda source: chain(source.on_device())) as ours, loader(dataset, chain) as theirs:
        assert ours.plan_digest == theirs.plan_digest
        for a, b in zip(ours, theirs, strict=True):
            assert a["image"].dtype == np.float64 and np.array_equal(a["image"], b["image"])


@pytest.mark.embedded_only
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda there: there.select("image", [1]), "select('image'): a device casts, normalizes and lays out"),
        (lambda there: there.cast("image", "int8", output="small"), "a column of itself; leave output out; 'image' is"),
        (lambda there: there.cast("other", "int8"), "cast('other'): there is no column 'other'"),
        (lambda there: there.cast("tags", "int8"), "cast('tags'): a device takes columns of a fixed shape"),
        (lambda there: there.layout("id"), "it takes images of three dimensions"),
        (lambda there: there.normalize("image", (1, 2), 1), "mean has 2 values"),
        (lambda there: there.cast("image", "int8").normalize("image", 0, 0), "std has 0"),
    ],
)
def test_what_is_not_for_a_device_is_refused_when_it_is_declared(call: Any, said: str) -> None:
    source = sf.source("none", FEATURES | {"tags": sf.RaggedFeature("int64")})
    with pytest.raises(sf.ConfigError) as raised:
        call(source.on_device())
    assert said in str(raised.value)


@pytest.mark.embedded_only
def test_columns_that_a_device_cannot_change_are_refused(run: Any) -> None:
    ended = run(
        """
for options in ({"outputs": ["label"]}, {"batch_size": 30_000_000}):
    try:
        images("there", lambda source: source.cast("image", "int8"), device="cuda", **options)
    except sf.ConfigError as error:
        print("said:", error)
    else:
        raise AssertionError(options)
"""
    )
    for said in (
        "operator 0 after on_device() (column `image`): batches have no such column; name it in outputs",
        "and a device changes fewer than 2147483648 at once",
    ):
        assert f"said: {said}" in ended.output or said in ended.output, ended.output
