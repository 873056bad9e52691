"""Balanced steps, windows and packs beside plain records; and how evenly ranks share the cost of a step.

    python bench/sample_methods.py FOLDER [--epochs 3] [--spread RANKS SAMPLES]

FOLDER gets 400,000 records in 8 files, unless it has them. Rates are those of this process, shuffled,
without the counting pass. `--spread` prints instead the largest cost of a rank in a step over the
mean of the step, on average, without and with balance().
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf

FILES, RECORDS = 8, 50_000
PLAIN: dict[str, Any] = {
    "id": sf.FixedLenFeature((), "int64"),
    "video": sf.FixedLenFeature((), "string"),
    "state": sf.FixedLenFeature((16,), "float32"),
}
TOKENS: dict[str, Any] = {"tokens": sf.VarLenFeature("int64")}
LENGTH: dict[str, Any] = {"length": sf.FixedLenFeature((), "int64")}


def write(folder: Path) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(FILES):
        path = folder / f"a-{file}.tfrecord"
        if path.exists():
            continue
        with sf.TFRecordWriter(path) as writer:
            for number in range(RECORDS):
                tokens = int(min(2048, rng.lognormal(5.0, 1.0)))
                state = rng.random(16).astype(np.float32)
                writer.write({
                    "id": file * RECORDS + number, "video": f"v{number // 97}", "state": state, "tokens": np.arange(tokens),
                })  # fmt: skip


def rate(name: str, source: sf.Source, epochs: int, batch_size: int = 256) -> None:
    with sf.Loader(source, batch_size=batch_size, rank=0, world_size=1, restart=False) as loader:
        before, start, rows = resource.getrusage(resource.RUSAGE_SELF), time.monotonic(), 0
        for _ in range(epochs):
            rows += sum(batch.rows for batch in loader)
        seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name:32} {rows / seconds:12,.0f}/s {rows / cpu:12,.0f} per CPU-second")


def spread(folder: Path, ranks: int, samples: int) -> None:
    path = folder / f"lengths-{samples}.tfrecord"
    folder.mkdir(parents=True, exist_ok=True)
    with sf.TFRecordWriter(path) as writer:
        for length in np.minimum(2048, np.random.default_rng(5).lognormal(5.5, 1.1, samples)).astype(int):
            writer.write({"length": int(length)})
    source = sf.source(path, LENGTH)
    for name, each in (("without", source), ("with balance", source.balance("length"))):
        loaders = [sf.Loader(each, batch_size=4, rank=rank, world_size=ranks, seed=1, restart=False) for rank in range(ranks)]
        costs = np.array([[batch["length"].sum() for batch in loader] for loader in loaders], dtype=float)
        for loader in loaders:
            loader.close()
        print(f"{name:32} {(costs.max(axis=0) / costs.mean(axis=0)).mean():.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--spread", type=int, nargs=2, metavar=("RANKS", "SAMPLES"))
    options = parser.parse_args()
    if options.spread:
        spread(options.folder, *options.spread)
        return
    write(options.folder)
    plain = sf.source(options.folder / "a-*.tfrecord", PLAIN)
    tokens = sf.source(options.folder / "a-*.tfrecord", TOKENS)
    packs = tokens.pack("tokens", length=2048)
    rate("records without tokens", plain, options.epochs)
    rate('filter("id >= 0")', plain.filter("id >= 0"), options.epochs)
    rate('balance("id % 100")', plain.balance("id % 100"), options.epochs)
    rate("tokens", tokens, options.epochs)
    rate('balance("len(tokens)")', tokens.balance("len(tokens)"), options.epochs)
    rate("packs", packs, options.epochs, 16)
    rate('packs, balance("sum_squares")', packs.balance("sum_squares"), options.epochs, 16)
    rate("window(size=16)", plain.window(size=16), options.epochs)


if __name__ == "__main__":
    main()
