"""Measures the cost of a slow rank: two trainers share an epoch, one of them 5 times slower.

    .venv/bin/python bench/straggler.py [--step-ms 4] [--slow 5] [--shards 64]

With mode="dynamic" the fast rank consumes what the slow one does not. The ideal is the time in
which both together could consume everything; the goal is at most 1.3 times that.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import shardfeed as sf
from shardfeed.testing import Cluster

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python/tests"))

BATCH_SIZE = 16
RECORDS = 256
TTL = "session-ttl-ms = 3000\nheartbeat-ms = 200\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step-ms", type=float, default=4.0, help="of the fast rank")
    parser.add_argument("--slow", type=float, default=5.0, help="times as slow")
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--where", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        return train(options.rank, options.where, options.step_ms)
    with tempfile.TemporaryDirectory(prefix="shardfeed-bench-") as text:
        folder = Path(text)
        for shard in range(options.shards):
            with sf.TFRecordWriter(folder / f"s-{shard:04}.tfrecord") as writer:
                for ordinal in range(RECORDS):
                    writer.write({"id": shard * RECORDS + ordinal})
        with Cluster(folder / "cluster", workers=2, config=TTL) as running:
            for mode in ("dynamic", "deterministic"):
                measure(running, folder, options, mode)


def measure(
    running: Cluster, folder: Path, options: argparse.Namespace, mode: str
) -> None:
    paces = [options.step_ms, options.step_ms * options.slow]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, f"--rank={rank}", f"--step-ms={pace}",
             "--where", running.address, str(running.socket(rank)), f"{folder}:{mode}"],
            stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
        )
        for rank, pace in enumerate(paces)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    begun = time.monotonic()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    steps = []
    for process in processes:
        assert process.stdout is not None
        steps.append(int(process.stdout.readline()))
    took = time.monotonic() - begun
    for process in processes:
        process.communicate()
    total = options.shards * RECORDS / BATCH_SIZE
    ideal = total / sum(1e3 / pace for pace in paces)
    print(
        f"{mode}: {took:.2f} s, ideal {ideal:.2f} s, {took / ideal:.2f} times; "
        f"steps {steps[0]} and {steps[1]} of {total:.0f}"
    )


def train(rank: int, where: list[str], step_ms: float) -> None:
    coordinator, worker, place = where
    folder, mode = place.rsplit(":", 1)
    with sf.Loader(
        f"{folder}/*.tfrecord", {"id": sf.FixedLenFeature((), "int64")}, batch_size=BATCH_SIZE,
        shuffle_window=256, interleave=2, tail="uneven", mode=mode, rank=rank, world_size=2,
        coordinator=coordinator, worker=worker, job=f"straggler-{mode}", run="bench",
    ) as loader:  # fmt: skip
        print("ready", flush=True)
        sys.stdin.readline()
        steps, due = 0, time.monotonic()
        for _ in loader:
            steps += 1
            due = max(due + step_ms / 1e3, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
        print(steps, flush=True)


if __name__ == "__main__":
    main()
