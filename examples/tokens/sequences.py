"""Token sequences for language models: padded to one length, with the next token as target.

    python examples/tokens/sequences.py [PATTERN] [--records N]

A record has any number of `tokens`, as a packed protobuf list of integers. The worker pads them to
LENGTH + 1 and slices inputs and targets; longer sequences are truncated. Documents are not packed
into one row, as that would change the number of samples.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf

LENGTH = 512
PAD = 0

FEATURES: dict[str, Any] = {"tokens": sf.VarLenFeature("int64")}


def shifted(source: sf.Source, length: int = LENGTH) -> sf.Source:
    """Returns the source with `inputs` and `targets`, int32 [length]."""
    return (
        source.padded_batch("tokens", length + 1, value=PAD, truncate=True, output="all")
        .slice("all", [0], [length], output="inputs")
        .slice("all", [1], [length], output="targets")
        .cast("inputs", "int32")
        .cast("targets", "int32")
    )


def loader(files: str, *, length: int = LENGTH, **options: Any) -> sf.Loader:
    """Returns the loader: `inputs` and `targets`, int32 [batch, length]; targets of PAD have no
    loss."""
    defaults: dict[str, Any] = {"batch_size": 64}
    return sf.Loader(shifted(sf.source(files, FEATURES), length), outputs=["inputs", "targets"], **(defaults | options))


def sequence(number: int) -> list[int]:
    """Returns random numbers from 1, not a real text."""
    rng = np.random.default_rng(number)
    tokens: list[int] = rng.integers(1, 50_000, int(rng.integers(0, 1_000))).tolist()
    return tokens


def write(folder: Path, count: int, files: int = 4) -> str:
    """Writes sequences and returns the pattern of their files."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        with sf.TFRecordWriter(folder / f"tokens-{file:02}.tfrecord") as writer:
            for number in range(file, count, files):
                writer.write({"tokens": np.array(sequence(number), np.int64)})
    return str(folder / "tokens-*.tfrecord")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="?", help="pattern of TFRecord files")
    parser.add_argument("--records", type=int, default=20_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        files = arguments.files or write(Path(temporary), arguments.records)
        begun, rows, tokens = time.perf_counter(), 0, 0
        for batch in loader(files):
            rows += batch.rows
            tokens += int(np.count_nonzero(batch["targets"]))
        took = time.perf_counter() - begun
    print(f"{rows:,} sequences in {took:.2f} s, {rows / took:,.0f}/s; {tokens:,} targets")


if __name__ == "__main__":
    main()
