"""Each advice of `why()` is followed, and helps: those not covered by test_why.py and
test_why_limits.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_slow_files import shim, slowly
from test_why import arrays, batches, blobs, heavy
from test_why_limits import TTL, in_cluster

import shardfeed as sf
from shardfeed.reports import Why
from shardfeed.testing import Cluster, until

__all__ = ["arrays", "shim"]

pytestmark = pytest.mark.alone

#: Reads a number of batches with a number of cores; prints its setup, why, and time breakdown.
PROGRAM = """import json, os, sys
import shardfeed as sf
from test_why_advice import batches, heavy

files, options, most, cores = json.loads(sys.argv[1])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
if options.pop("heavy", False):
    files, options["outputs"] = heavy(files), ["y"]
with sf.Loader(files, **options) as each:
    assert sum(1 for _ in batches(each, most)) == most
    account = each.stats()["account"]
    print(json.dumps([account["setup"], each.why(), account["since_start"]]))
"""

Account = dict[str, Any]


def read(each: sf.Loader, most: int) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the diagnosis after `most` batches, and the time breakdown."""
    with each:
        assert sum(1 for _ in batches(each, most)) == most
        return dict(each.why()), each.stats()["account"]["since_start"]


def test_fewer_features_are_parsed_in_less_time(tmp_path: Path) -> None:
    file = tmp_path / "wide.tfrecord"
    with sf.TFRecordWriter(file) as writer:
        for number in range(1500):
            writer.write({f"f{feature:03}": [number] * 8 for feature in range(200)})

    def of(count: int) -> tuple[dict[str, Any], int]:
        features = {f"f{feature:03}": sf.FixedLenFeature((8,), "int64") for feature in range(count)}
        why, spent = read(sf.Loader(str(file), features, batch_size=50), 60)
        return why, spent["parse_us"] + spent["write_us"]

    (why, many), (_, few) = of(100), of(5)
    assert why["limit"] == "decoding", why
    assert "ask for fewer features" in why["change"] or "computing threads" in why["change"], why
    assert few < 0.75 * many, (few, many)


def test_neighbours_are_gathered_together(tmp_path: Path) -> None:
    for shard in range(8):
        with sf.TFRecordWriter(tmp_path / f"{shard}.tfrecord") as writer:
            for number in range(1 << 13):
                writer.write(bytes([number % 251]) * 8)

    def of(block_length: int) -> tuple[dict[str, Any], float]:
        options: dict[str, Any] = {"batch_size": 1 << 13, "interleave": 8, "shuffle_window": 1}
        each = sf.Loader(str(tmp_path / "*.tfrecord"), block_length=block_length, **options)
        why, spent = read(each, 80)
        return why, spent["gather_us"] / spent["batches"]

    found = [(of(1), of(64)) for _ in range(3)]
    for (why, _), _ in found:
        assert why["limit"] == "gathering" and "use block_length=" in why["change"], why
    single, blocks = min(took for (_, took), _ in found), min(took for _, (_, took) in found)
    assert blocks < 0.7 * single, found


def test_a_smaller_window_fits_the_budget(tmp_path: Path) -> None:
    files = blobs(tmp_path / "plain", 3000, None)
    options: dict[str, Any] = {"batch_size": 8, "memory_budget": "4MiB"}
    why, _ = read(sf.Loader(files, shuffle_window=2500, **options), 700)
    assert why["limit"] == "memory_budget" and why["change"].endswith("or use a smaller shuffle_window="), why
    with sf.Loader(files, shuffle_window=20, **options) as each:
        assert sum(1 for _ in batches(each, 700)) == 700
        assert each.stats()["reading"] != "locate" and each.why()["limit"] != "memory_budget"


def bursts(each: sf.Loader, many: int) -> Callable[[], Why]:
    """A trainer that takes `many` batches at a time, and then works four times as long as producing
    them took.

    Returns a function that runs one burst and returns the diagnosis after it.
    """
    endless = (batch for _ in iter(int, 1) for batch in each)

    def burst() -> Why:
        for _ in range(many):
            next(endless)
        account = each.stats()["account"]
        spent, threads = account["since_start"], account["setup"]["computing_threads"]
        assert isinstance(threads, int)
        made_us = max(spent["compute_us"], spent["parse_us"] + spent["write_us"]) / spent["batches"] / threads
        threading.Event().wait(4 * many * made_us / 1e6)
        return each.why()

    return burst


def limited(burst: Callable[[], Why], limit: str, advice: str = "") -> str:
    """Returns the advice once it contains `advice` for this limit."""

    def look() -> str | None:
        why = burst()
        return why["change"] if why["limit"] == limit and advice in why["change"] else None

    return until(look, f"{limit} limits, with the advice {advice!r}")


@pytest.mark.parametrize("follow", [{"memory_budget": "64MiB"}, {"batch_size": 2}])
def test_a_budget_that_holds_few_batches_ahead_is_raised_or_needed_less(tmp_path: Path, follow: dict[str, Any]) -> None:
    files = blobs(tmp_path / "plain", 1500, None)
    options: dict[str, Any] = {"batch_size": 64, "memory_budget": "4MiB", "prefetch": 8, "shuffle_window": 1}
    with sf.Loader(files, **options) as each:
        change = limited(bursts(each, 8), "memory_budget")
        assert each.stats()["prefetch"] < 8
    assert change == "raise memory_budget=, or use a smaller shuffle_window= or batch_size="
    with sf.Loader(files, **options | follow) as each:
        assert bursts(each, 8)()["limit"] != "memory_budget"
        assert each.stats()["prefetch"] == 8


def test_batches_ahead_are_tried_and_then_asked_for(arrays: str) -> None:
    """Bursts of 64 batches need more than 16, the chosen maximum."""
    source = heavy(arrays)
    options: dict[str, Any] = {"batch_size": 4, "shuffle_window": 1, "outputs": ["y"]}
    with sf.Loader(source, **options) as each:
        burst = bursts(each, 64)
        limited(burst, "prefetch", "ask again in a minute")
        # No other remedy is available until then.
        limited(burst, "prefetch", "set prefetch= to 32 or more, ")
        assert each.stats()["prefetch"] == 16
    # Larger batches are the alternative: as many samples at a time.
    for follow, many in (({"prefetch": 64}, 64), ({"batch_size": 64}, 4)):
        with sf.Loader(source, **options | follow) as each:
            limited(bursts(each, many), "trainer")
    with sf.Loader(source, prefetch=32, **options) as each:
        change = limited(bursts(each, 64), "prefetch")
    # Without the option there would be fewer.
    assert change == "raise prefetch= above 32"


def test_more_batches_ahead_may_also_be_held(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "few.tfrecord") as writer:
        for number in range(64):
            writer.write({"x": list(range(1 << 18)) if number % 16 == 0 else [number]})
    features = {"x": sf.FixedLenSequenceFeature((), "int64", allow_missing=True)}
    with Cluster(tmp_path / "cluster", config=TTL, memory="4GiB") as running:

        def hold(prefetch: int, most: int, is_enough: Callable[[sf.Loader], bool]) -> Why:
            """Returns the bottleneck of a trainer that keeps its last 8 to 12 batches."""
            options: dict[str, Any] = {"batch_size": 8, "shuffle": False, "prefetch": prefetch}
            with sf.Loader(str(tmp_path / "few.tfrecord"), features, **options, **in_cluster(running)) as each:
                held: list[sf.Batch] = []
                for batch in batches(each, most):
                    held.append(batch)
                    if len(held) > 12:
                        del held[:4]
                    if is_enough(each):
                        break
                return each.why()

        why = hold(2, 5000, lambda each: each.why()["limit"] == "held_batches")
        assert why["limit"] == "held_batches", why
        assert why["change"] == "keep fewer batches, or raise prefetch=, which raises the number that may be held"

        copied: list[int] = []

        def count(each: sf.Loader) -> bool:
            copied.append(each.stats()["copied_batches"])
            return False

        assert hold(16, 60, count)["limit"] != "held_batches"
        assert copied[-1] == 0


def apart(
    files: str, most: int, cores: int = 1024, env: dict[str, str] | None = None, **options: Any
) -> tuple[Account, dict[str, Any], Account]:
    """Runs a separate process; returns its setup, diagnosis, and time breakdown."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([files, options, most, cores])], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    setup, why, spent = json.loads(done.stdout)
    return setup, why, spent


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="more cores are needed to have more of them")
def test_more_cores_compute_more_at_a_time(arrays: str) -> None:
    setup, why, one = apart(arrays, 60, cores=1, batch_size=50, heavy=True)
    assert (setup["cores"], setup["computing_threads"]) == (1, 1)
    assert why["limit"] == "decoding", why
    assert why["change"] == "give the worker more cores, or do less in operators"
    setup, _, two = apart(arrays, 60, cores=2, batch_size=50, heavy=True)
    assert (setup["cores"], setup["computing_threads"]) == (2, 2)
    assert two["compute_us"] / two["wall_us"] > 1.3 * one["compute_us"] / one["wall_us"], (one, two)


def test_files_that_answer_slowly_are_read_several_at_a_time_or_from_nearby(tmp_path: Path, shim: Path) -> None:
    folder = tmp_path / "slow"
    for shard in range(8):
        blobs(folder, 400, None)
        (folder / "blobs.tfrecord").rename(folder / f"{shard}.tfrecord")
    files, options = str(folder / "*.tfrecord"), {"batch_size": 16, "shuffle": False}
    sf.Loader(files, **options).close()  # It is indexed now.
    more: dict[str, Any] = {"interleave": 8, "memory_budget": "256MiB"}
    slow = slowly(shim, 20_000, "read")
    _, why, single = apart(files, 190, env=slow, interleave=1, memory_budget="8MiB", **options)
    assert why["limit"] == "storage" and "a larger interleave=, and a memory_budget= that is larger" in why["change"], why
    _, why, several = apart(files, 190, env=slow, **more, **options)
    assert several["wait_us"] < 0.6 * single["wait_us"], (several, single)
    assert why["change"] == "all reading threads wait: use faster storage, or a copy of the files nearer by", why
    nearby = folder.rename(tmp_path / "nearby")
    _, why, near = apart(str(nearby / "*.tfrecord"), 190, env=slow, **more, **options)
    assert near["storage_us"] < 0.2 * several["storage_us"], (near, several)
    assert why["limit"] != "storage", why
