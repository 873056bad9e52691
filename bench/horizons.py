"""Costs of horizons in an undisturbed dynamic job: steps that waited, samples per second, log entries.

    .venv/bin/python bench/horizons.py [--records 400000] [--ranks 2] [--step-ms 0,5] [--rounds 3]

Starts three coordinators and one worker for each rank, and reads one epoch with mode="dynamic" for
each pace. `--step-ms 0` is a trainer that does nothing else; compare its samples per second between
two builds by turns: SHARDFEED_BINARY and PYTHONPATH select a build.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import shardfeed as sf

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / each) for each in ("chaos/failover", "examples/digits", "python/tests")]
from servers import Cluster  # noqa: E402

SHARDS, BATCH_SIZE = 64, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--step-ms", default="0,5", help="duration of a step of each epoch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--where", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        return train(options.rank, options.ranks, options.where)
    os.environ["SHARDFEED_INSECURE"] = "true"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardfeed-bench-")))
        for shard in range(SHARDS):
            with sf.TFRecordWriter(folder / f"s-{shard:04}.tfrecord") as writer:
                for ordinal in range(options.records // SHARDS):
                    writer.write({"id": shard << 32 | ordinal})
        cluster = stack.enter_context(Cluster(folder, 3, options.ranks))
        paces = [float(each) for each in options.step_ms.split(",")]
        for number in range(options.rounds):
            for pace in paces:
                print(json.dumps(measure(cluster, folder, options, (number, pace))), flush=True)


def applied(cluster: Cluster) -> int:
    status = cluster.look("status")
    assert status is not None, "the coordinators do not answer"
    return int(status["applied_index"])


def written(cluster: Cluster) -> int:
    """Bytes that all coordinators had their disks write."""
    lines = (Path(f"/proc/{node.pid}/io").read_text() for node in cluster.nodes.values())
    return sum(int(line.split("write_bytes: ")[1].split()[0]) for line in lines)


def measure(
    cluster: Cluster, folder: Path, options: argparse.Namespace, which: tuple[int, float]
) -> dict[str, Any]:
    number, pace = which
    processes = []
    for rank in range(options.ranks):
        place = f"{pace}:{number}"
        command = [sys.executable, __file__, f"--rank={rank}", f"--ranks={options.ranks}"]
        command += ["--where", cluster.address, cluster.socket(rank), place]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        processes.append(subprocess.Popen(command, cwd=folder, text=True, **pipes))
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    before, bytes_before, begun = applied(cluster), written(cluster), time.monotonic()
    answers = [process.communicate("go\n")[0] for process in processes]
    took, entries = time.monotonic() - begun, applied(cluster) - before
    on_disk = written(cluster) - bytes_before
    found = [json.loads(answer) for answer in answers]
    samples, steps = (sum(each[name] for each in found) for name in ("samples", "steps"))
    waits = sum(each["waits"] for each in found)
    return {
        "step_ms": pace, "ranks": options.ranks, "samples": samples, "per_s": round(samples / took),
        "steps": steps, "waited": waits, "waited_percent": round(100 * waits / steps, 3),
        "first_100": sum(each["first"] for each in found), "entries_per_million": round(entries / samples * 1e6),
        "entries_per_rank_s": round(entries / took / options.ranks, 2), "disk_mb_per_node": round(on_disk / 3e6, 2),
    }  # fmt: skip


def train(rank: int, world_size: int, where: list[str]) -> None:
    coordinator, worker, place = where
    pace = float(place.split(":")[0]) / 1e3
    with sf.Loader(
        "*.tfrecord", {"id": sf.FixedLenFeature((), "int64")}, batch_size=BATCH_SIZE,
        shuffle_window=256, interleave=2, tail="uneven", mode="dynamic", rank=rank, world_size=world_size,
        coordinator=coordinator, worker=worker, job=f"horizons-{place}", run="bench",
    ) as loader:  # fmt: skip

        def waits() -> int:
            return int(loader.stats().get("horizon_waits", 0))

        print("ready", flush=True)
        sys.stdin.readline()
        steps = samples = first = 0
        due = time.monotonic()
        for batch in loader:
            steps, samples = steps + 1, samples + batch.rows
            first = waits() if steps == 100 else first
            if pace:
                due = max(due + pace, time.monotonic())
                time.sleep(max(0.0, due - time.monotonic()))
        print(json.dumps({"steps": steps, "samples": samples, "waits": waits(), "first": first}))


if __name__ == "__main__":
    main()
