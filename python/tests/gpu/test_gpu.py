"""Batches on a real GPU, with PyTorch and JAX built for CUDA.

Skipped with a reason on other machines, where `test_device.py` uses a stand-in for the driver.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Dataset, loader

import shardfeed as sf
from shardfeed.testing import BINARY, Cluster, Killer, until

pytestmark = pytest.mark.embedded_only


@pytest.fixture(scope="module")
def torch() -> Any:
    torch = pytest.importorskip("torch", reason="no torch here; on a machine with a GPU: pip install torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    return torch


@pytest.fixture(scope="module")
def jax() -> Any:
    # Otherwise JAX takes most of the memory, and torch needs some, too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax", reason="no JAX here; on a machine with a GPU: pip install jax[cuda12]")
    if all(each.platform != "gpu" for each in jax.devices()):
        pytest.skip("JAX sees no GPU here")
    return jax


@pytest.mark.parametrize("zero_copy", [False, True])
def test_tensors_are_those_of_the_host(torch: Any, dataset: Dataset, zero_copy: bool) -> None:
    with loader(dataset) as here, loader(dataset, output="torch", device="cuda:0", zero_copy=zero_copy) as there:
        for ours, theirs in zip(there, here, strict=True):
            for name in ("id", "image"):
                assert ours[name].is_cuda and ours[name].shape == theirs[name].shape
                assert np.array_equal(ours[name].cpu().numpy(), theirs[name])
            assert np.array_equal(ours.valid.cpu().numpy(), theirs.valid)
        assert there.stats()["device_pageable_batches"] == 0


def test_tensors_stay_what_they_are_when_the_loop_goes_on(torch: Any, dataset: Dataset) -> None:
    with loader(dataset) as here, loader(dataset, output="torch", device="cuda") as there:
        kept = [(ours["image"], theirs["image"].copy()) for ours, theirs in zip(there, here, strict=True)]
    assert all(np.array_equal(ours.cpu().numpy(), theirs) for ours, theirs in kept)


def test_a_side_stream_is_honoured(torch: Any, dataset: Dataset) -> None:
    side = torch.cuda.Stream()
    with loader(dataset) as here, loader(dataset, output="torch", device="cuda") as there:
        for theirs in here:
            with torch.cuda.stream(side):
                torch.cuda._sleep(2_000_000)  # the side stream is busy while the copy to it is queued
                ours = next(iter(there))["image"] * 2
            side.synchronize()
            assert np.array_equal(ours.cpu().numpy(), theirs["image"] * 2)


def test_views_are_not_written_while_a_kernel_reads_them(torch: Any, dataset: Dataset) -> None:
    with loader(dataset) as here, loader(dataset, output="torch", device="cuda", zero_copy=True) as there:
        sums = []
        for ours in there:
            torch.cuda._sleep(5_000_000)
            sums.append(ours["image"].sum())
            del ours
        expected = [float(theirs["image"].sum()) for theirs in here]
    assert [float(total) for total in sums] == expected


CHAINS: dict[str, Callable[[sf.Source], sf.Source]] = {
    "normalize": lambda images: images.normalize("image", (1.5, 2.5, 3.5), (0.3, 0.7, 1.1)),
    "layout": lambda images: images.layout("image"),
    "cast": lambda images: images.cast("image", "float16").cast("id", "int32"),
    "usual": lambda images: images.normalize("image", 3.0, 0.7).layout("image").cast("image", "bfloat16"),
    "twice": lambda images: images.cast("image", "uint8").cast("image", "float64").normalize("image", 0.1, 0.2, dtype="float64"),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_what_the_device_makes_is_what_the_worker_makes(torch: Any, dataset: Dataset, chain: str) -> None:
    """The worker's operators are the oracle: results are bit-identical."""

    def before(source: sf.Source) -> sf.Source:
        return source.reshape("image", (1, 2, 3)) if chain in ("layout", "usual") else source

    after = CHAINS[chain]
    with (
        loader(dataset, lambda source: after(before(source)), output="torch") as here,
        loader(dataset, lambda source: after(before(source).on_device()), output="torch", device="cuda") as there,
    ):
        for ours, theirs in zip(there, here, strict=True):
            for name in ("id", "image"):
                assert ours[name].dtype == theirs[name].dtype
                assert torch.equal(ours[name].cpu(), theirs[name]), name


def test_all_casts_are_those_of_the_worker(torch: Any, tmp_path: Any) -> None:
    """Random bits of every type, each cast to every other one. NaN is NaN in both."""
    types = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    types = [each for each in types if hasattr(torch, each)]
    generator = np.random.default_rng(3)
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for _ in range(64):
            writer.write({"x": generator.bytes(8 * 512)})
    features = {"x": sf.FixedLenFeature((), "string")}
    for from_ in types:
        size = torch.empty((), dtype=getattr(torch, from_)).element_size()
        source = sf.source(tmp_path / "x.tfrecord", features).decode_raw("x", from_, (8 * 512 // size,))
        for to in types:
            on_gpu = source.on_device().cast("x", to)
            with (
                sf.Loader(source.cast("x", to), batch_size=64, output="torch") as here,
                sf.Loader(on_gpu, batch_size=64, output="torch", device="cuda") as there,
            ):
                ours, theirs = next(iter(there))["x"].cpu(), next(iter(here))["x"]
                is_equal = ours == theirs
                if to.startswith(("float", "bfloat")):
                    is_equal |= ours.isnan() & theirs.isnan()
                assert bool(is_equal.all()), (from_, to)


def test_cupy_takes_columns_by_the_cuda_array_interface(torch: Any, dataset: Dataset) -> None:
    cupy = pytest.importorskip("cupy", reason="no CuPy here; pip install cupy-cuda12x")
    with loader(dataset) as here, loader(dataset, device="cuda") as there:
        for ours, theirs in zip(there, here, strict=True):
            with cupy.cuda.Stream(non_blocking=True):
                total = (cupy.asarray(ours["image"]) * 2).get()
            assert np.array_equal(total, theirs["image"] * 2)


def test_the_current_device_of_torch_stays(torch: Any, dataset: Dataset) -> None:
    before = torch.cuda.current_device()
    last = torch.cuda.device_count() - 1
    with loader(dataset, output="torch", device=f"cuda:{last}") as there:
        assert next(iter(there))["id"].device.index == last
    assert torch.cuda.current_device() == before


def test_no_memory_is_lost(torch: Any, dataset: Dataset) -> None:
    def free() -> int:
        torch.cuda.synchronize()
        return int(torch.cuda.mem_get_info()[0])

    def epochs(count: int) -> None:
        with loader(dataset, output="torch", device="cuda", batch_size=1) as there:
            for _ in range(count):
                for _ in there:
                    pass

    epochs(2)
    before = free()
    epochs(80)
    assert before - free() < 32 << 20


def test_a_program_that_closes_nothing_ends(torch: Any, dataset: Dataset) -> None:
    code = "import sys, shardfeed as sf\nbatch = next(iter(sf.Loader(sys.argv[1], batch_size=1, output='torch', device='cuda')))"
    subprocess.run([sys.executable, "-c", code, dataset.pattern], check=True, timeout=120, env=dict(os.environ))


def test_a_device_that_is_not_there_is_refused(torch: Any, dataset: Dataset) -> None:
    with pytest.raises(sf.ConfigError, match=f"this process sees {torch.cuda.device_count()}, counted from 0"):
        loader(dataset, device="cuda:4000")


def narrow(source: sf.Source) -> sf.Source:
    """JAX has no 64-bit types unless they are enabled."""
    return source.cast("id", "int32")


def test_arrays_of_jax_are_those_of_the_host_and_stay(jax: Any, dataset: Dataset) -> None:
    kept = []
    with loader(dataset, narrow) as here, loader(dataset, narrow, output="jax", device="cuda:0") as there:
        for ours, theirs in zip(there, here, strict=True):
            assert all(each.platform == "gpu" for each in ours["image"].devices())
            kept += [(ours[name], theirs[name].copy()) for name in ("id", "image")] + [(ours.valid, theirs.valid.copy())]
        stats = there.stats()
    assert stats["device_extra_slots"] == 0 and stats["device_slots"] <= 3 and stats["device_pageable_batches"] == 0
    for ours, theirs in kept:
        assert ours.dtype == theirs.dtype and np.array_equal(np.asarray(ours), theirs)


def test_what_jax_runs_later_sees_the_batch_that_it_was_given(jax: Any, dataset: Dataset) -> None:
    """Work that JAX only queued, on streams that it does not expose, while the loop continues."""
    busy = jax.jit(lambda x, seed: (seed @ seed).sum() * 0 + (x * 2).sum())
    seed = jax.numpy.ones((4096, 4096))
    with loader(dataset, narrow) as here, loader(dataset, narrow, output="jax", device="cuda") as there:
        sums = [busy(ours["image"], seed) for ours in there]
        expected = [float(theirs["image"].sum() * 2) for theirs in here]
    assert [float(total) for total in sums] == expected


TRAINER = """
import sys, torch, shardfeed as sf
feed = sf.Loader(sys.argv[1], {"image": sf.FixedLenFeature((2, 3), "float32")}, batch_size=4, output="torch", device="cuda")
kept = []
print("working", flush=True)
while True:
    for batch in feed:
        kept = [*kept[-4:], batch["image"], batch["image"].sum()]
"""


def test_trainers_killed_at_work_leave_no_memory_behind(torch: Any, dataset: Dataset, tmp_path: Path) -> None:
    def free() -> int:
        return int(torch.cuda.mem_get_info()[0])

    torch.zeros(1, device="cuda")
    drawn, pause, before = random.Random(5), threading.Event(), free()
    for _ in range(10):
        with (tmp_path / "log").open("ab") as log:
            command = [sys.executable, "-c", TRAINER, dataset.pattern]
            trainer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"working\n", (tmp_path / "log").read_text()[-2000:]
        pause.wait(drawn.uniform(0, 0.05))
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()
    until(lambda: before - free() < 32 << 20, "the driver has freed their memory")
    with loader(dataset) as here, loader(dataset, output="torch", device="cuda") as there:
        for ours, theirs in zip(there, here, strict=True):
            assert np.array_equal(ours["image"].cpu().numpy(), theirs["image"])


@pytest.mark.skipif(not BINARY.exists(), reason="no command here; SHARDFEED_BINARY says where it is")
def test_workers_killed_under_a_loop_change_no_batch(torch: Any, dataset: Dataset, tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as running:
        where = {"coordinator": running.address, "worker": str(running.socket()), "job": "gpu"}
        with (
            Killer(running.workers[0], 7) as killer,
            loader(dataset) as here,
            loader(dataset, output="torch", device="cuda", **where) as there,
        ):
            while killer.kills < 10:
                for ours, theirs in zip(there, here, strict=True):
                    assert np.array_equal(ours["image"].cpu().numpy(), theirs["image"])
