"""Exceptions at any point of a loop: the state identifies the first batch that the loop did not
receive."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset
from interrupts import interrupted, ledger, whole

from shardfeed.testing import Cluster

OPTIONS: dict[str, Any] = {"batch_size": 2, "shuffle_window": 16, "interleave": 3, "seed": 7, "tail": "drop"}


def once(got: list[Any], files: str) -> None:
    """Verifies that no batch was lost or duplicated, in the order of an uninterrupted run."""
    assert got, "some batches came before an interrupt"
    expected = whole(files, got[-1][0] + 1, **OPTIONS)
    assert got == expected[: len(got)]


@pytest.mark.parametrize(
    "more",
    [{}, {"prefetch": 1}, {"by": "thread"}, {"threads": 2, "by": "thread"}],
    ids=["ready", "not ready", "by a thread", "busy threads"],
)
def test_a_for_loop_loses_and_doubles_nothing(dataset: Dataset, tmp_path: Path, env: dict[str, str], more: Any) -> None:
    env = {**env, "SHARDFEED_LEDGER": str(tmp_path / "ledger")}
    got = interrupted(dataset.pattern, "for", env, **OPTIONS, **more, interrupts=200)
    once(got, dataset.pattern)
    assert ledger(tmp_path / "ledger") == got


@pytest.mark.parametrize("loop", ["progress", "epochs"])
def test_other_loops_lose_and_double_nothing(dataset: Dataset, tmp_path: Path, env: dict[str, str], loop: str) -> None:
    env = {**env, "SHARDFEED_LEDGER": str(tmp_path / "ledger")}
    got = interrupted(dataset.pattern, loop, env, **OPTIONS, interrupts=200)
    once(got, dataset.pattern)
    assert ledger(tmp_path / "ledger") == got


@pytest.mark.parametrize("loop", ["for", "progress", "epochs"])
def test_a_dynamic_loop_loses_and_doubles_nothing(
    dataset: Dataset, tmp_path: Path, small_cluster: Cluster, loop: str
) -> None:
    env = {**small_cluster.variables(f"dynamic-{uuid.uuid4().hex[:8]}"), "SHARDFEED_LEDGER": str(tmp_path / "ledger")}
    # A claim is durable on the coordinator's disk before the first batch, which takes longer than other waits.
    more = {"tail": "uneven", "mode": "dynamic", "latest_s": 0.03, "completes": True}
    got = interrupted(dataset.pattern, loop, env, **OPTIONS | more, interrupts=200)
    assert ledger(tmp_path / "ledger") == got
    # Claims are served in order of arrival, so the order is not fixed; the content of an epoch is.
    of = {epoch: Counter(number for at, _, ids in got if at == epoch for number in ids) for epoch, _, _ in got}
    assert all(of[epoch] == Counter(dataset.ids) for epoch in range(len(of)))


def test_after_next_the_state_after_the_last_batch_is_exact(dataset: Dataset, env: dict[str, str]) -> None:
    once(interrupted(dataset.pattern, "next", env, **OPTIONS, interrupts=100), dataset.pattern)
