"""Memory, threads and reads of a mixture beside one dataset of the same files.

    python bench/mixtures.py [--sources 35] [--shards 1000] [--records 20] [--ranks 64] [--batches 8]

Each of the two runs in a process of its own: it opens the loaders of all ranks of a host in this
process, takes some batches of each, and reports the peak resident memory, the threads and the bytes
read. Files are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import shardfeed as sf

FEATURES = {"tokens": sf.FixedLenFeature((128,), "int64")}


def write(folder: Path, sources: int, shards: int, records: int) -> None:
    rows = np.arange(128, dtype=np.int64) + 2**40
    for source in range(sources):
        (folder / f"s{source:02}").mkdir()
        for shard in range(shards):
            with sf.TFRecordWriter(folder / f"s{source:02}" / f"{shard:04}.tfrecord") as writer:
                for _ in range(records):
                    writer.write({"tokens": rows})


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def measure(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.folder)
    names = sorted(path.name for path in folder.iterdir() if path.name.startswith("s"))
    files: sf.Source | sf.Mixture
    if arguments.kind == "mixture":
        given = {name: (sf.source(f"{folder}/{name}/*.tfrecord", FEATURES), 1 + place % 7) for place, name in enumerate(names)}
        files = sf.mix(given, epoch=arguments.sources * arguments.shards * arguments.records)
    else:
        files = sf.source([f"{folder}/{name}/*.tfrecord" for name in names], FEATURES)
    options = {"batch_size": 32, "world_size": arguments.ranks, "cache_dir": str(folder / "cache"), "restart": False}
    begun = time.perf_counter()
    loaders = [sf.Loader(files, rank=rank, memory_budget="64MiB", **options) for rank in range(arguments.ranks)]
    opened = time.perf_counter()
    rss = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    iterators = [iter(loader) for loader in loaders]
    for _ in range(arguments.batches):
        for iterator in iterators:
            next(iterator)
    found = {
        "kind": arguments.kind,
        "open_s": round((opened - begun) / arguments.ranks, 3),
        "read_s": round(time.perf_counter() - opened, 2),
        "opened_mib": rss >> 20,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "threads": threads(),
        "python_threads": threading.active_count(),
        "read_mib": sum(int(loader.stats()["read_bytes"]) for loader in loaders) >> 20,
    }
    print(json.dumps(found))
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("sources", 35), ("shards", 1000), ("records", 20), ("ranks", 64), ("batches", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kind", choices=["mixture", "one"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind:
        measure(arguments)
        return
    with tempfile.TemporaryDirectory() as temporary:
        write(Path(temporary), arguments.sources, arguments.shards, arguments.records)
        given = [f"--{name}={getattr(arguments, name)}" for name in ("sources", "shards", "records", "ranks", "batches")]
        for kind in ("one", "mixture", "one", "mixture"):
            command = [sys.executable, __file__, *given, f"--kind={kind}", f"--folder={temporary}"]
            print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip(), flush=True)


if __name__ == "__main__":
    main()
