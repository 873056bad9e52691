"""Packs scikit-learn's handwritten digits into TFRecord shards.

    python pack.py --train DIR --test FILE [--shards 24] [--seed 0]

Every sixth image goes into the test file; the others are divided at random among train shards of
very unequal sizes, as in real datasets. A record is a tf.train.Example:

    image  float32[64]  8x8 grey values, row-major, 0 to 1
    label  int64        the digit
    index  int64        number of the image in the original set
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import shardfeed as sf
from sklearn.datasets import load_digits

TEST_EVERY = 6


def pack(train: Path, test: Path, shards: int = 24, seed: int = 0) -> int:
    """Writes `train/train-XXXXX-of-XXXXX.tfrecord` and the test file; returns the number of train
    records."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)

    def write(path: Path, indices: Iterable[int]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with sf.TFRecordWriter(path) as writer:
            for i in indices:
                record = {"image": images[i], "label": int(labels[i]), "index": int(i)}
                writer.write(record)

    everything = np.arange(len(labels))
    is_test = everything % TEST_EVERY == 0
    write(test, everything[is_test])

    random = np.random.default_rng(seed)
    dealt = random.permutation(everything[~is_test])
    cuts = np.sort(random.choice(np.arange(1, len(dealt)), shards - 1, replace=False))
    for number, part in enumerate(np.split(dealt, cuts)):
        write(train / f"train-{number:05d}-of-{shards:05d}.tfrecord", part)
    return len(dealt)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--train", type=Path, required=True, metavar="DIR")
    parser.add_argument("--test", type=Path, required=True, metavar="FILE")
    parser.add_argument("--shards", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    records = pack(args.train, args.test, args.shards, args.seed)
    print(f"packed {records} records into {args.shards} shards in {args.train}")


if __name__ == "__main__":
    main()
