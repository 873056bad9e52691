"""Compares a cluster (coordinator, worker, trainer on this host) with the same in-process loader.

    .venv/bin/python bench/in_cluster.py [--megabytes 200]

Both are measured alternately in one run over the same warm files, so compare the ratios.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf
from shardfeed.testing import Cluster

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python/tests")]
import loader as embedded  # noqa: E402

ROUNDS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200, help="size of each data set")
    megabytes = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory(prefix="shardfeed-bench-") as folder:
        os.environ["SHARDFEED_CACHE_DIR"] = str(Path(folder) / "cache")
        small = embedded.write_small(Path(folder) / "small", megabytes)
        large = embedded.write_large(Path(folder) / "large", 3 * megabytes)
        features = {"d": sf.FixedLenFeature((), "string"), "s": sf.FixedLenFeature((), "int64")}
        begun = time.monotonic()
        with Cluster(Path(folder) / "cluster", memory="8GiB") as running:
            print(f"coordinator and worker up in {time.monotonic() - begun:.2f} s")
            with inside(running):
                first_batch(small)
            ratio(running, "small, two features", small, features=features, batch_size=512)
            ratio(running, "112 KB, raw", large, batch_size=128, shuffle_window=1000)
            for rows in (1, 32, 512):
                hand_over(running, small, features, rows)
                with outside():
                    hand_over(None, small, features, rows)
            share_of_a_core(running, small, features)
            death(running, small)
            reconnects(running, small)
            flat(running, small)


@contextmanager
def inside(running: Cluster) -> Iterator[None]:
    """Makes loaders use the cluster."""
    os.environ.update(running.variables(f"bench-{time.monotonic_ns()}"))
    try:
        yield
    finally:
        for name in ("SHARDFEED_COORDINATOR", "SHARDFEED_WORKER", "SHARDFEED_RUN_ID"):
            del os.environ[name]


def first_batch(pattern: str) -> None:
    for name in ("unscanned files", "known files"):
        begun = time.perf_counter()
        with sf.Loader(pattern, batch_size=512) as loader:
            next(iter(loader))
        print(f"first batch, {name}: {(time.perf_counter() - begun) * 1e3:.0f} ms")


def ratio(running: Cluster, name: str, pattern: str, **options: Any) -> None:
    """Prints the records per second of both, measured in turn, and the median of their ratios."""

    def rate() -> float:
        with sf.Loader(pattern, **options) as loader:
            for _ in loader:  # everything is mapped and warm
                pass
            begun, records = time.perf_counter(), 0
            for batch in loader:
                records += batch.rows
            return records / (time.perf_counter() - begun)

    local, remote = [], []
    for _ in range(ROUNDS):
        local.append(rate())
        with inside(running):
            remote.append(rate())
    ratios = np.array(remote) / np.array(local)
    print(
        f"{name}: embedded {np.median(local):,.0f}/s, cluster {np.median(remote):,.0f}/s, "
        f"ratio {np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
    )


@contextmanager
def outside() -> Iterator[None]:
    kept = {n: os.environ.pop(n) for n in list(os.environ) if n.startswith("SHARDFEED_COORD")}
    try:
        yield
    finally:
        os.environ.update(kept)


def hand_over(
    running: Cluster | None, pattern: str, features: dict[str, Any], rows: int
) -> None:
    """Measures the time from a ready slot to a batch: alone, and with all columns as arrays."""
    with inside(running) if running else outside():
        loader = sf.Loader(pattern, features, batch_size=rows, prefetch=8, limit=3000 * rows)
    alone, columns = [], []
    with loader:
        iterator = iter(loader)
        next(iterator)
        for _ in range(len(loader) - 1):
            ready = time.perf_counter() + 0.0005
            while time.perf_counter() < ready:  # next batch becomes ready meanwhile
                pass
            begun = time.perf_counter()
            batch = next(iterator)
            got = time.perf_counter()
            for name in batch:
                batch[name]
            alone.append((got - begun) * 1e6)
            columns.append((time.perf_counter() - begun) * 1e6)
    shown = ", ".join(
        f"{name} p50 {np.percentile(times, 50):.1f} us p99 {np.percentile(times, 99):.1f} us"
        for name, times in (("batch", alone), ("with arrays", columns))
    )
    print(f"hand-off, {rows} rows, {'cluster' if running else 'embedded'}: {shown}")


def share_of_a_core(running: Cluster, pattern: str, features: dict[str, Any]) -> None:
    """Measures the CPU time of the trainer's process for loading at 100 batches per second."""
    with inside(running):
        loader = sf.Loader(pattern, features, batch_size=512)
    with loader:
        iterator = iter(loader)
        next(iterator)
        before, begun = time.process_time(), time.monotonic()
        for _ in range(500):
            batch = next(iterator)
            for name in batch:
                batch[name]
            time.sleep(0.0095)
        used, took = time.process_time() - before, time.monotonic() - begun
    before = time.process_time()
    for _ in range(500):
        time.sleep(0.0095)
    used -= time.process_time() - before
    print(f"trainer at {500 / took:.0f} batches/s: {100 * used / took:.2f} % of a core for loading")


def death(running: Cluster, pattern: str) -> None:
    """Measures the longest wait for a batch when the worker is killed and does not return."""
    waits = []
    for _ in range(5):
        with inside(running), sf.Loader(pattern, batch_size=512, prefetch=1) as loader:
            iterator = iter(loader)
            for _ in range(20):
                next(iterator)
            running.workers[0].kill()
            longest = 0.0
            for _ in range(20):
                begun = time.perf_counter()
                next(iterator)
                longest = max(longest, time.perf_counter() - begun)
            waits.append(longest)
            running.workers[0].start()
    print(f"worker killed, longest wait of a trainer: median {np.median(waits) * 1e3:.0f} ms, "
          f"slowest of {len(waits)} {max(waits) * 1e3:.0f} ms")


def memory_kb(pid: int) -> dict[str, int]:
    lines = (line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    wanted = ("RssAnon", "RssShmem")
    return {name: int(value.split()[0]) for name, value in lines if name in wanted}


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def reconnects(running: Cluster, pattern: str) -> None:
    pid = running.workers[0].pid
    counts = []
    for _ in range(200):
        with inside(running), sf.Loader(pattern, batch_size=512, prefetch=2) as loader:
            next(iter(loader))
        counts.append((descriptors(pid), descriptors(os.getpid())))
    print(f"descriptors of worker and trainer after 1, 100, 200 trainers: "
          f"{counts[0]}, {counts[99]}, {counts[-1]}")


def flat(running: Cluster, pattern: str) -> None:
    pid = running.workers[0].pid
    with inside(running), sf.Loader(pattern, batch_size=16) as loader:
        done, marks = 0, (1_000, 10_000, 50_000, 100_000)
        while done < marks[-1]:
            for _ in loader:
                done += 1
                if done in marks:
                    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                    print(f"after {done} batches: worker {memory_kb(pid)} kB, {descriptors(pid)} "
                          f"descriptors; trainer {descriptors(os.getpid())}, {own} kB at most")
                if done == marks[-1]:
                    break


if __name__ == "__main__":
    main()
