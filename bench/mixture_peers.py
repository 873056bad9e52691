"""Samples per CPU-second of a mixture of many sources, beside tf.data's sample_from_datasets.

    python bench/mixture_peers.py --tensorflow PYTHON [--sources 35] [--rounds 3]

PYTHON is an interpreter with TensorFlow. Both read the same files from the page cache, mix by the
same weights, shuffle 10,000 samples, parse 128 integers of each record, and make batches of 256;
tf.data parses whole batches. Each measurement runs in a process of its own, by turns; CPU time is
that of the whole process after the first batch.
"""

from __future__ import annotations

import argparse
import glob
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOKENS, BATCH, WINDOW = 128, 256, 10_000


def weights(names: list[str]) -> dict[str, int]:
    return {name: 1 + place % 7 for place, name in enumerate(names)}


def write(folder: Path, sources: int, shards: int, records: int) -> None:
    import numpy as np

    import shardfeed as sf

    rng = np.random.default_rng(1)
    for source in range(sources):
        (folder / f"s{source:02}").mkdir()
        for shard in range(shards):
            with sf.TFRecordWriter(folder / f"s{source:02}" / f"{shard:04}.tfrecord") as writer:
                for tokens in rng.integers(0, 50_000, (records, TOKENS)):
                    writer.write({"tokens": tokens})


def ours(folder: str, names: list[str], samples: int) -> Iterator[int]:
    import shardfeed as sf

    features: dict[str, Any] = {"tokens": sf.FixedLenFeature((TOKENS,), "int64")}
    given = {name: (sf.source(f"{folder}/{name}/*.tfrecord", features), weight) for name, weight in weights(names).items()}
    loader = sf.Loader(sf.mix(given, epoch=samples), batch_size=BATCH, shuffle_window=WINDOW, memory_budget="1GiB")
    for batch in loader:
        assert batch["tokens"].shape == (BATCH, TOKENS)
        yield batch.rows


def tensorflow(folder: str, names: list[str], samples: int) -> Iterator[int]:
    import tensorflow as tf

    def source(name: str) -> Any:
        files = tf.data.Dataset.from_tensor_slices(sorted(glob.glob(f"{folder}/{name}/*.tfrecord"))).shuffle(1000, seed=1)
        return files.flat_map(tf.data.TFRecordDataset).repeat()

    of = weights(names)
    total = sum(of.values())
    mixed = tf.data.Dataset.sample_from_datasets([source(name) for name in names], [of[name] / total for name in names], seed=1)
    features = {"tokens": tf.io.FixedLenFeature((TOKENS,), tf.int64)}
    batches = mixed.shuffle(WINDOW, seed=1).batch(BATCH, drop_remainder=True)
    batches = batches.map(lambda records: tf.io.parse_example(records, features), num_parallel_calls=tf.data.AUTOTUNE)
    for batch in batches.prefetch(tf.data.AUTOTUNE).take(samples // BATCH):
        yield int(batch["tokens"].shape[0])


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(contender: str, folder: str, samples: int) -> None:
    names = sorted(path.name for path in Path(folder).iterdir())
    batches = {"ours": ours, "tensorflow": tensorflow}[contender](folder, names, samples)
    next(batches)
    begun, cpu_begun = time.perf_counter(), cpu()
    rows = sum(batches)
    used, took = cpu() - cpu_begun, time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    found = {"contender": contender, "per_cpu_s": round(rows / used), "per_s": round(rows / took), "peak_mib": peak}
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("sources", 35), ("shards", 20), ("records", 300), ("samples", 400_000), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tensorflow", help="Python with TensorFlow")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(*given.measure, given.samples)
        return
    pythons = {"ours": sys.executable, "tensorflow": given.tensorflow}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), given.sources, given.shards, given.records)
        for _ in range(given.rounds):
            for contender, python in pythons.items():
                if python:
                    command = [python, __file__, "--measure", contender, folder, f"--samples={given.samples}"]
                    print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip(), flush=True)


if __name__ == "__main__":
    main()
