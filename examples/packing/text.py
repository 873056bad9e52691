"""Packs of text for a language model: Python's own modules as documents, one byte a token.

    python examples/packing/text.py [--length L] [--epochs E] [--method fit|concat]

Prints the packs and the padding of each epoch, and counts every token from the batches: each is in
exactly one pack.
"""

from __future__ import annotations

import argparse
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf

#: Token after each document. Bytes are tokens from 1 on, 0 is padding.
END = 257

FEATURES: dict[str, Any] = {"tokens": sf.VarLenFeature("int64")}


def documents() -> Iterable[np.ndarray[Any, np.dtype[np.int64]]]:
    """Yields the tokens of modules of the standard library."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield np.frombuffer(path.read_bytes(), np.uint8).astype(np.int64) + 1


def write(folder: Path, shards: int = 4) -> tuple[sf.Source, Counter[int]]:
    """Writes the documents, and returns their source and the number of each token."""
    counts: Counter[int] = Counter()
    found = [tokens for tokens in documents() if len(tokens) > 0]
    for shard in range(shards):
        with sf.TFRecordWriter(folder / f"text-{shard}.tfrecord") as writer:
            for tokens in found[shard::shards]:
                writer.write({"tokens": tokens})
                counts.update({int(token): int(count) for token, count in zip(*np.unique(tokens, return_counts=True), strict=True)})
                counts[END] += 1
    return sf.source(str(folder / "text-*.tfrecord"), FEATURES, records=len(found)), counts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=2048, help="tokens of a pack")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--method", choices=("fit", "concat"), default="fit")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        source, written = write(Path(temporary))
        source = source.pack("tokens", length=arguments.length, append=END, method=arguments.method).cast("tokens", "int32")
        loader = sf.Loader(source, batch_size=16, tail="pad")
        for epoch in loader.epochs(arguments.epochs):
            read: Counter[int] = Counter()
            for batch in epoch:
                tokens = batch["tokens"][batch.valid]
                read.update({int(token): int(count) for token, count in zip(*np.unique(tokens, return_counts=True), strict=True)})
            padding = read.pop(0, 0)
            total = sum(read.values())
            print(
                f"epoch {epoch.number}: {loader.samples:,} packs of {arguments.length} tokens from {source.records:,} documents, "
                f"{100 * padding / (total + padding):.2f} % padding, tokens {'conserved' if read == written else 'LOST OR DOUBLED'}"
            )
        loader.close()


if __name__ == "__main__":
    main()
