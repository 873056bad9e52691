"""Batches on a real GPU, with PyTorch built for CUDA. Skipped, with the reason, everywhere else: there `test_device.py`
has a stand-in for the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from conftest import Dataset, loader

import shardfeed as sf

pytestmark = pytest.mark.embedded_only


@pytest.fixture(scope="module")
def torch() -> Any:
    torch = pytest.importorskip("torch", reason="no torch here; on a machine with a GPU: pip install torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    return torch


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
