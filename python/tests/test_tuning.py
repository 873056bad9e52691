"""Settings chosen by loaders while batches flow: they are shown with a reason, and change no
batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset, loader
from test_why import arrays, batches, heavy  # noqa: F401 (a fixture)

import shardfeed as sf
from shardfeed.testing import until


def setup(each: sf.Loader) -> dict[str, Any]:
    found: dict[str, Any] = each.stats()["account"]["setup"]
    return found


def test_what_was_asked_for_stays(dataset: Dataset) -> None:
    with loader(dataset, prefetch=2) as each:
        for _ in batches(each, 2000):
            pass
        chosen = setup(each)
    assert (chosen["prefetch"], chosen["reasons"]["prefetch"]) == (2, "asked")


def test_a_null_trainer_gets_every_core_to_decode_with(arrays: str) -> None:  # noqa: F811
    whole = [batch["y"].tobytes() for batch in sf.Loader(heavy(arrays), batch_size=50, prefetch=1, outputs=["y"])]
    with sf.Loader(heavy(arrays), batch_size=50, outputs=["y"]) as each:
        epochs: list[list[bytes]] = []

        def is_told() -> bool:
            epochs.append([batch["y"].tobytes() for batch in each])
            return setup(each)["reasons"]["computing"] == "at_most"

        until(is_told, "as many threads as cores")
        chosen = setup(each)
    cores = len(os.sched_getaffinity(0))
    assert chosen["cores"] == cores and chosen["computing_threads"] == cores
    # The first epoch was read while the number changed.
    assert epochs[0] == whole


@pytest.mark.parametrize("budget", ["600KiB", "64MiB"])
def test_batches_ahead_stay_within_the_budget(tmp_path: Path, budget: str) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for number in range(400):
            writer.write(bytes([number % 256]) * 4000)
    with sf.Loader(str(tmp_path / "x.tfrecord"), batch_size=8, shuffle_window=20, memory_budget=budget) as each:
        for _ in batches(each, 300):
            pass
        chosen, stats = setup(each), each.stats()
    assert 1 <= stats["prefetch"] <= 16 and stats["prefetch"] == chosen["prefetch"]
    if budget == "600KiB":
        assert stats["prefetch"] * 8 * 8000 <= 300 << 10
