"""Measures the response time of commands during an epoch of many shards; goal: below 1 s each.

    .venv/bin/python bench/answers.py [--shards 100000] [--rounds 3] [--folder FOLDER]

Uses real files with one small record each, and two real trainings in mid-epoch, one deterministic
and one dynamic. A time is that of the whole process, from its start to its end.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import shardfeed as sf
from shardfeed.testing import BINARY, Cluster

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python/tests")]

GOAL_S = 1.0
FILES_OF_A_FOLDER = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each command; medians are printed")
    parser.add_argument("--folder", type=Path, help="folder of temporary files, 4 KiB for each shard")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shardfeed-bench-", dir=options.folder) as folder:
        pattern = write(Path(folder) / "data", options.shards)
        with Cluster(Path(folder) / "cluster") as cluster:
            os.environ.update(cluster.variables("bench"))
            os.environ["SHARDFEED_CACHE_DIR"] = str(Path(folder) / "cache")
            begun = time.monotonic()
            jobs = {"fixed": {}, "moving": {"mode": "dynamic", "tail": "uneven"}}
            loaders = []
            for job, more in jobs.items():
                loaders.append(sf.Loader(pattern, batch_size=16, job=job, **more))  # type: ignore[arg-type]
                batches = iter(loaders[-1])
                for _ in range(options.shards // 16 // 2):
                    next(batches)
                print(f"{job}: in the middle of its epoch after {time.monotonic() - begun:.1f} s")
            late = [ask(words, options.rounds) for words in questions(pattern, options.shards)]
            for loader in loaders:
                loader.close()
    print(f"{sum(late)} of {len(late)} answers took {GOAL_S:.0f} s or more")
    sys.exit(1 if any(late) else 0)


def write(folder: Path, shards: int) -> str:
    for number in range(shards):
        place = folder / f"{number // FILES_OF_A_FOLDER:04}"
        place.mkdir(parents=True, exist_ok=True)
        with sf.TFRecordWriter(place / f"{number:06}.tfrecord") as writer:
            writer.write(number.to_bytes(8, "little"))
    return str(folder / "*/*.tfrecord")


def questions(pattern: str, shards: int) -> list[list[str]]:
    one = f"{shards // 2:06}.tfrecord"
    asked = ["status", "job list", "dataset list", "worker list", "events", "audit", "cluster status"]
    for job in ("fixed", "moving"):
        asked += [f"job show {job}", f"why {job}", f"epoch list --job {job}", f"epoch show --job {job}"]
        asked += [f"rank list --job {job}", f"shard history {one} --job {job}"]
        asked += [f"shard list --job {job}", f"shard list --job {job} --file {one}"]
        asked += [f"shard list --job {job} --state done", f"shard list --job {job} --rank 0"]
        asked += [f"batch show --job {job} --epoch 0 --step 7 --rank 0"]
    whole = [line.split() for line in asked]
    return [*whole, *([*line, "-o", "json"] for line in whole), ["top", "--once"]]


def ask(words: list[str], rounds: int) -> bool:
    times, size = [], 0
    for _ in range(rounds):
        begun = time.monotonic()
        ran = subprocess.run([str(BINARY), *words], capture_output=True)
        times.append(time.monotonic() - begun)
        size = len(ran.stdout)
        if ran.returncode != 0:
            print(f"{' '.join(words)}: {ran.stderr.decode().strip()}")
            return True
    median = statistics.median(times)
    print(f"{median * 1000:7.0f} ms  {size:>11,} bytes  {' '.join(words)}", flush=True)
    return median >= GOAL_S


if __name__ == "__main__":
    main()
