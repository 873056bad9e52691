"""Measures the loader in Python: throughput, and the time from a ready slot to a batch.

    .venv/bin/python bench/loader.py [--megabytes 200]

All measurements use the same warm files in one run, so compare the ratios. `floor` only reads these
files with read(), on one thread.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200, help="size of each data set")
    megabytes = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory(prefix="shardfeed-bench-") as folder:
        os.environ["SHARDFEED_CACHE_DIR"] = str(Path(folder) / "cache")
        small = write_small(Path(folder) / "small", megabytes)
        large = write_large(Path(folder) / "large", megabytes)
        features = {"d": sf.FixedLenFeature((), "string"), "s": sf.FixedLenFeature((), "int64")}
        floor("small records", small)
        throughput("raw, shuffled", small, batch_size=512)
        throughput("two features, shuffled", small, features=features, batch_size=512)
        throughput("two features, in order", small, features=features, batch_size=512, shuffle=False)
        floor("112 KB records", large)
        throughput("raw, shuffled in 1000", large, batch_size=128, shuffle_window=1000)
        throughput("raw, in order", large, batch_size=128, shuffle=False)
        for rows in (1, 32, 512):
            hand_over(small, features, rows)
        resume(small)


def write_small(folder: Path, megabytes: int) -> str:
    """Writes Examples of 194 bytes and an int64, about 240 bytes per record, in 8 shards."""
    folder.mkdir()
    data = np.random.default_rng(0).bytes(194 * 1000)
    for shard in range(8):
        with sf.TFRecordWriter(folder / f"{shard}.tfrecord") as writer:
            for number in range(megabytes * 10**6 // 240 // 8):
                at = number % 1000 * 194
                writer.write({"d": data[at : at + 194], "s": number})
    return str(folder / "*.tfrecord")


def write_large(folder: Path, megabytes: int) -> str:
    """Writes records of 112 KB, in 8 shards."""
    folder.mkdir()
    data = np.random.default_rng(0).bytes(112_000)
    for shard in range(8):
        with sf.TFRecordWriter(folder / f"{shard}.tfrecord") as writer:
            for _ in range(max(1, megabytes * 10**6 // 112_000 // 8)):
                writer.write(data)
    return str(folder / "*.tfrecord")


def floor(name: str, pattern: str) -> None:
    files = sorted(Path(pattern).parent.glob("*.tfrecord"))
    size = sum(file.stat().st_size for file in files)
    buffer = bytearray(1 << 20)

    def once() -> None:
        for file in files:
            with file.open("rb", buffering=0) as source:
                while source.readinto(buffer):
                    pass

    once()
    seconds = median(once, 5)
    print(f"{name:24} floor: read() alone {size / seconds / 1e9:6.2f} GB/s")


def throughput(name: str, pattern: str, **options: Any) -> None:
    with sf.Loader(pattern, **options) as loader:
        size = sum(file.stat().st_size for file in Path(pattern).parent.glob("*.tfrecord"))
        rows = 0

        def epoch() -> None:
            nonlocal rows
            rows = sum(batch.rows for batch in loader)

        epoch()
        cpu = time.process_time()
        seconds = median(epoch, 5)
        cpu = (time.process_time() - cpu) / 5
        print(
            f"  {name:26} {rows / seconds:12,.0f} records/s {size / seconds / 1e9:6.2f} GB/s"
            f" {cpu / rows * 1e6:8.2f} us CPU a record"
        )


def hand_over(pattern: str, features: dict[str, Any], rows: int) -> None:
    """Measures the time from a ready slot to a batch with all its columns as arrays."""
    with sf.Loader(pattern, features, batch_size=rows, prefetch=8, limit=3000 * rows) as loader:
        times = []
        for _ in range(2):
            iterator = iter(loader)
            next(iterator)
            for _ in range(len(loader) - 1):
                while loader.stats()["ready"] == 0:
                    pass
                begun = time.perf_counter()
                batch = next(iterator)
                for name in batch:
                    batch[name]
                times.append((time.perf_counter() - begun) * 1e6)
        p50, p99 = np.percentile(times, [50, 99])
        print(f"  ready slot to batch, {rows:3} rows   p50 {p50:6.1f} us  p99 {p99:6.1f} us")


def resume(pattern: str) -> None:
    """Measures the time from a state in mid-epoch to its first batch."""
    with sf.Loader(pattern, batch_size=512) as loader:
        iterator = iter(loader)
        for _ in range(len(loader) // 2):
            next(iterator)
        state = loader.state_dict()

    def once() -> None:
        with sf.Loader(pattern, batch_size=512, resume=state) as again:
            next(iter(again))

    def fresh() -> None:
        with sf.Loader(pattern, batch_size=512) as again:
            next(iter(again))

    first, resumed = median(fresh, 5), median(once, 5)
    print(f"  first batch: fresh {first * 1e3:6.1f} ms, resumed in mid-epoch {resumed * 1e3:6.1f} ms")


def median(call: Callable[[], None], times: int) -> float:
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return float(np.median(seconds))


if __name__ == "__main__":
    main()
