"""Ours as a peer of another harness, bench_peers.py of the peers' lab; see lab.py.

That harness calls `build(a)` with its options: `workload`, `set`, `variant`, `batch`, `data`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import with_shardfeed

import shardfeed as sf

ONE = sf.FixedLenFeature

#: Features that the lab reads of each of its data sets.
FEATURES: dict[str, dict[str, Any]] = {
    "A": {"image/encoded": ONE((), "string"), "image/class/label": ONE((), "int64")},
    "B": {"d": ONE((), "string"), "s": ONE((), "int64")},
    "C": {
        "input_ids": ONE((2048,), "int64"),
        "attention_mask": ONE((2048,), "int64"),
        "id": ONE((), "int64"),
    },
    "E": {"x": ONE((1024,), "float32"), "label": ONE((), "int64")},
}


def source(a: Any, files: list[str]) -> sf.Source:
    """Returns the source of one of the lab's workloads."""
    if a.workload == "W1":
        return sf.source(files)
    found = sf.source(files, FEATURES[a.set])
    if a.set == "A":
        found = found.decode_image("image/encoded").resize("image/encoded", 224, antialias=False)
        if a.variant != "u8":
            found = found.cast("image/encoded", "float32").scale("image/encoded", 1 / 255)
    elif a.variant == "bits":
        found = found.decode_raw("d", "uint8", (194,)).unpack_bits("d").cast("d", "float32")
    return found


def build(a: Any) -> tuple[Iterator[int], list[int], str]:
    folder = tempfile.mkdtemp(prefix="shardfeed-lab-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["SHARDFEED_CACHE_DIR"] = folder
    if a.workload == "W4":
        with_shardfeed.prepare("ours_cluster", "", "", "")
    files = sorted(str(path) for path in (Path(a.data) / a.set).glob("*.tfrecord"))
    loader = sf.Loader(source(a, files), batch_size=a.batch, shuffle=False)

    def rows() -> Iterator[int]:
        while True:
            for batch in loader:
                for name in batch:
                    batch[name]
                yield batch.rows

    return rows(), with_shardfeed.BESIDE, "coordinator, worker and trainer" if a.workload == "W4" else ""


def cleanup() -> None:
    """Ends the cluster's processes together with this one."""
    atexit._run_exitfuncs()
