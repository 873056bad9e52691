"""Exceptions at any point of a loop, with TensorFlow's tensors."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Dataset
from interrupts import interrupted, whole

OPTIONS: dict[str, Any] = {"batch_size": 2, "shuffle_window": 16, "interleave": 3, "seed": 7}


@pytest.mark.parametrize(("loop", "interrupts"), [("for", 200), ("next", 100)])
def test_nothing_is_lost_and_nothing_doubled(
    dataset: Dataset, env: dict[str, str], loop: str, interrupts: int
) -> None:
    got = interrupted(dataset.pattern, loop, env, **OPTIONS, output="tf", interrupts=interrupts)
    assert got == whole(dataset.pattern, got[-1][0] + 1, **OPTIONS)[: len(got)]
