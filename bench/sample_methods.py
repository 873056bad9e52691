"""Balanced steps, windows and packs beside plain records; and how evenly ranks share the cost of a step.

    python bench/sample_methods.py FOLDER [--epochs 3] [--spread RANKS [SAMPLES]] [--texts LIBRARY]

FOLDER gets 400,000 records in 8 files, unless it has them. Rates are those of this process, shuffled,
without the counting pass. `--spread` prints instead the largest cost of a rank in a step over the
mean of the step, on average, and in brackets that of an epoch, without and with balance(): of
log-normal lengths, or with `--texts` of the functions in the Python modules of a folder, in the order
of the modules, dealt out to 16 and to 64 files, in random order, and SAMPLES drawn from them.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf

sys.path.insert(0, str(Path(__file__).parents[1] / "python/tests"))
from documents import documents  # noqa: E402

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


def spread(folder: Path, ranks: int, files: list[np.ndarray]) -> str:
    folder.mkdir(parents=True)
    for number, lengths in enumerate(files):
        with sf.TFRecordWriter(folder / f"{number:02}.tfrecord") as writer:
            for length in lengths:
                writer.write({"length": int(length)})
    source, found = sf.source(folder / "*.tfrecord", LENGTH), []
    for each in (source, source.balance("length")):
        # The global batch is that of any world size, rank after rank.
        with sf.Loader(each, batch_size=4 * ranks, lanes=ranks, rank=0, world_size=1, seed=1, restart=False) as loader:
            costs = np.array([batch["length"].reshape(ranks, 4).sum(axis=1) for batch in loader], dtype=float)
        most, mean = costs.max(axis=1), costs.mean(axis=1)
        found.append(f"{(most / mean).mean():.3f} ({most.sum() / mean.sum():.3f})")
    return f"{sum(map(len, files)):8,} samples: without {found[0]}, with balance {found[1]}"


def spreads(folder: Path, ranks: int, samples: int, library: str | None) -> None:
    rng, cases = np.random.default_rng(5), {}
    if library is None:
        cases["log-normal"] = [np.minimum(2048, rng.lognormal(5.5, 1.1, samples)).astype(int)]
    else:
        lengths = np.array([min(2048, len(text)) for text in documents("**/*.py", library)])
        cases["in order"] = [lengths]
        cases |= {f"dealt out to {count} files": [lengths[at::count] for at in range(count)] for count in (16, 64)}
        cases |= {"in random order": [rng.permutation(lengths)], "drawn": [rng.choice(lengths, samples)]}
    for name, files in cases.items():
        with tempfile.TemporaryDirectory(dir=folder) as parent:
            print(f"{name:24}", spread(Path(parent) / "files", ranks, files), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--spread", type=int, nargs="+", metavar="RANKS [SAMPLES]")
    parser.add_argument("--texts", metavar="LIBRARY")
    options = parser.parse_args()
    if options.spread:
        ranks, *samples = options.spread
        options.folder.mkdir(parents=True, exist_ok=True)
        spreads(options.folder, ranks, samples[0] if samples else 4096 * ranks, options.texts)
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
