"""A mixture of two text sources: Python's own sources and its language reference, by weight.

    python examples/mixture/text.py [--length N] [--epochs E]

Both are on every host with Python, and differ in size. Each record is LENGTH bytes of text. The
weights grow less than the sizes (temperature 2); from epoch 1 on they are equal.
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

LENGTH = 256

FEATURES: dict[str, Any] = {"text": sf.FixedLenFeature((LENGTH,), "int64")}


def code() -> Iterable[bytes]:
    """Yields modules of the standard library."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-m]*.py")):
        yield path.read_bytes()


def prose() -> Iterable[bytes]:
    """Yields the topics of the language reference, as `help()` shows them."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield topics[name].encode()


def write(folder: Path, texts: Iterable[bytes], shards: int = 4) -> sf.Source:
    """Writes pieces of LENGTH bytes, and returns their source."""
    folder.mkdir(parents=True)
    text = b"".join(texts)
    pieces = np.frombuffer(text[: len(text) // LENGTH * LENGTH], np.uint8).reshape(-1, LENGTH)
    for shard in range(shards):
        with sf.TFRecordWriter(folder / f"text-{shard}.tfrecord") as writer:
            for piece in pieces[shard::shards]:
                writer.write({"text": piece.astype(np.int64)})
    return sf.source(str(folder / "text-*.tfrecord"), FEATURES, records=len(pieces)).cast("text", "uint8")


def mixture(sources: dict[str, sf.Source], length: int) -> sf.Mixture:
    """Mixes sources in epochs of `length` samples."""
    weights = sf.weights_by_size(sources, temperature=2)
    first = {name: (source, weights[name]) for name, source in sources.items()}
    return sf.mix(first, epoch=length, stages=[sf.Stage(1, dict.fromkeys(sources, 1))])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=20_000, help="samples of an epoch")
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sources = {"code": write(folder / "code", code()), "prose": write(folder / "prose", prose())}
        loader = sf.Loader(mixture(sources, arguments.length), batch_size=64, tail="pad")
        for epoch in loader.epochs(arguments.epochs):
            counts: Counter[str] = Counter()
            for batch in epoch:
                counts.update(loader.sources[at] for at in batch.source[batch.valid])
            shown = ", ".join(f"{count:,} of {name} ({sources[name].records:,} records)" for name, count in sorted(counts.items()))
            print(f"epoch {epoch.number}: {shown}")
        loader.close()


if __name__ == "__main__":
    main()
