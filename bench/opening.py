"""Opening a balanced mixture of packs in mid-epoch, at another world size.

    python bench/opening.py FOLDER [--records 1000000]

FOLDER gets the documents of four sources in 64 files, unless it has them, and a cache. Prints how long
counting and three later starts take: until the loader is open, and until its first batch.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf

SOURCES, FILES, LENGTH = 4, 16, 2048


def write(folder: Path, records: int) -> None:
    rng = np.random.default_rng(0)
    for source in range(SOURCES):
        (folder / f"s{source}").mkdir(parents=True)
        for file in range(FILES):
            with sf.TFRecordWriter(folder / f"s{source}" / f"{file:02}.tfrecord") as writer:
                lengths = np.clip(rng.lognormal(4.0, 0.8, records // SOURCES // FILES), 4, LENGTH)
                for length in lengths.astype(int):
                    writer.write({"tokens": rng.integers(0, 30_000, length)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, default=1_000_000)
    given = parser.parse_args()
    if not (given.folder / "s0").exists():
        write(given.folder, given.records)
    features = {"tokens": sf.VarLenFeature("int64")}
    sources: dict[str, Any] = {
        f"s{at}": (sf.source(f"{given.folder}/s{at}/*.tfrecord", features).pack("tokens", length=LENGTH), 1 + at) for at in range(SOURCES)
    }
    mixture = sf.mix(sources, epoch=given.records // 50).balance("sum_squares")
    state: dict[str, Any] | None = None
    for name in ("counted or kept", "kept", "kept", "kept"):
        sizes = {"batch_size": 16, "rank": 0, "world_size": 4} if state is None else {"batch_size": 8, "rank": 2, "world_size": 8}
        begun = time.perf_counter()
        with sf.Loader(mixture, cache_dir=given.folder / "cache", restart=False, **sizes) as loader:
            if state is not None:
                loader.load_state_dict(state)
            opened = time.perf_counter() - begun
            batches = iter(loader)
            next(batches)
            first = time.perf_counter() - begun
            print(f"{name:16} open {opened:5.2f} s, first batch {first:5.2f} s, state {len(json.dumps(loader.state_dict()))} bytes")
            if state is None:
                for _ in range(20):
                    next(batches)
                state = loader.state_dict()


if __name__ == "__main__":
    main()
