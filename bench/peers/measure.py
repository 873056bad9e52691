"""Runs one measurement of one contender in this process; prints one line of JSON.

    PYTHON bench/peers/measure.py --contender tfdata --case small --setting lean --data FOLDER

Order: the first batch of a new loader (its libraries are already loaded), some batches to warm up,
the window in which records, time and CPU time are counted, memory, and the first batch of another
loader. Child processes are included. With --check the other loader runs through one epoch, and
checksums of the delivered records are computed.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

import cases

MODULES = {
    "ours": "with_shardfeed",
    "ours_cluster": "with_shardfeed",
    "tfdata": "with_tensorflow",
    "tfservice": "with_tensorflow",
    "dali": "with_dali",
    "torch": "with_torch",
    "webdataset": "with_torch",
}

TICKS = os.sysconf("SC_CLK_TCK")

#: Number of photographs that are kept for comparison.
KEPT = 64


def family(roots: list[int]) -> list[int]:
    """Returns these processes and all their descendants."""
    found: list[int] = []
    for root in roots:
        try:
            for task in os.listdir(f"/proc/{root}/task"):
                children = Path(f"/proc/{root}/task/{task}/children").read_text().split()
                found += family([int(child) for child in children])
        except OSError:  # the process has just ended
            continue
        found.append(root)
    return list(dict.fromkeys(found))


def cpu_seconds(beside: list[int]) -> float:
    """Returns user and system time of this process and all its helpers, including ended ones."""
    used = time.process_time()
    mine = os.times()
    used += mine.children_user + mine.children_system
    for pid in family([os.getpid(), *beside]):
        if pid == os.getpid():
            continue
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        used += sum(int(word) for word in words[11:15]) / TICKS
    return used


def memory_mb(beside: list[int]) -> dict[str, float]:
    """Returns the proportional set size of all processes: shared memory counts once.

    Mapped files are also reported separately.
    """
    total = {"Pss": 0, "Pss_File": 0}
    for pid in family([os.getpid(), *beside]):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, rest = line.partition(":")
            if name in total:
                total[name] += int(rest.split()[0])
    return {"memory_mb": total["Pss"] / 1024, "mapped_mb": total["Pss_File"] / 1024}


class Largest:
    """Tracks the peak memory."""

    def __init__(self, beside: list[int]) -> None:
        self.beside, self.seen = beside, {"memory_mb": 0.0, "mapped_mb": 0.0}

    def look(self) -> None:
        now = memory_mb(self.beside)
        if now["memory_mb"] > self.seen["memory_mb"]:
            self.seen = now


def busy_seconds() -> float:
    """Returns the CPU time used by the whole machine, including stolen time."""
    words = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(words) - words[3] - words[4] - sum(words[8:])) / TICKS


def measure(module: Any, given: argparse.Namespace) -> dict[str, Any]:
    largest = Largest(module.BESIDE)
    begun = time.perf_counter()
    each = module.batches(given.case, given.data, given.setting, True)
    next(each)
    found: dict[str, Any] = {"first_ms": (time.perf_counter() - begun) * 1e3}
    largest.look()
    while time.perf_counter() - begun < given.warm:
        next(each)
    rows, cpu, busy = 0, cpu_seconds(module.BESIDE), busy_seconds()
    begun = time.perf_counter()
    while time.perf_counter() - begun < given.seconds:
        rows += next(each)[0]
    took = time.perf_counter() - begun
    cpu, busy = cpu_seconds(module.BESIDE) - cpu, busy_seconds() - busy
    found |= {"per_s": rows / took, "per_cpu_s": rows / cpu, "processors": cpu / took}
    found["others_processors"] = max(0.0, (busy - cpu) / took)
    for _ in range(6):
        until = time.perf_counter() + 0.05
        while time.perf_counter() < until:
            next(each)
        largest.look()
    return found | largest.seen


def again(module: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Measures another loader over the same files, in the same process."""
    begun = time.perf_counter()
    each = module.batches(given.case, given.data, given.setting, not given.check)
    rows, batch = next(each)
    found: dict[str, Any] = {"again_ms": (time.perf_counter() - begun) * 1e3}
    if given.check:
        sums = Sums(given.case, given.check)
        while True:
            columns = module.columns(given.case, batch)
            if columns is None:
                return found | {"epoch": None}
            sums.add(columns)
            rows, batch = next(each, (0, None))
            if batch is None:
                break
        found["epoch"] = sums.said()
    return found


class Sums:
    """Order-independent summary of an epoch: sums over its records."""

    def __init__(self, case: str, pictures: str) -> None:
        self.case, self.pictures = cases.CASES[case], pictures
        self.rows, self.exact, self.names = 0, 0, set[str]()
        self.rounded: dict[str, list[float]] = {}
        self.kept: dict[int, Any] = {}

    def add(self, columns: dict[str, Any]) -> None:
        import numpy as np

        count = len(next(iter(columns.values())))
        self.rows += count
        self.names |= set(columns)
        exact = [self.bytes_of(columns[name]) for name in sorted(columns) if name not in self.case.rounded]
        for row in zip(*exact, strict=True):
            digest = hashlib.blake2b(b"|".join(row), digest_size=8).digest()
            self.exact = (self.exact + int.from_bytes(digest, "little")) % 2**64
        for name in self.case.rounded:
            values = np.asarray(columns[name])
            if name == "photo":
                for label, picture in zip(np.asarray(columns["label"]), values, strict=True):
                    if label < KEPT:
                        self.kept[int(label)] = np.array(picture)
            else:
                floats = values.astype(np.float64)
                sums = self.rounded.setdefault(name, [0.0, 0.0])
                sums[0] += float(floats.sum())
                sums[1] += float((floats * floats).sum())

    @staticmethod
    def bytes_of(values: Any) -> list[bytes]:
        import numpy as np

        if isinstance(values, list) or values.dtype == object:
            return [bytes(value) for value in values]
        if values.dtype.kind == "f":
            values = values + values.dtype.type(0)  # gives all zeros the same sign
        flat = np.ascontiguousarray(values).reshape(len(values), -1)
        return [row.tobytes() for row in flat]

    def said(self) -> dict[str, Any]:
        import numpy as np

        found: dict[str, Any] = {"rows": self.rows, "columns": sorted(self.names), "exact": f"{self.exact:016x}"}
        found["rounded"] = self.rounded
        if self.kept:
            np.save(self.pictures, np.stack([self.kept[label] for label in sorted(self.kept)]))
            found["pictures"] = self.pictures
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contender", required=True, choices=MODULES)
    parser.add_argument("--case", required=True, choices=cases.CASES)
    parser.add_argument("--setting", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument("--processors", type=int, help="number it may use; default: all")
    parser.add_argument("--check", help="sum an epoch up; photographs go to this file (.npy)")
    given = parser.parse_args()
    if given.processors:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.processors])
    module = importlib.import_module(MODULES[given.contender])
    module.prepare(given.contender, given.case, given.data, given.setting)
    for file in Path(cases.folder(given.data, given.case)).iterdir():
        file.read_bytes()
    found = measure(module, given) | again(module, given)
    found["version"] = module.VERSION
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
    # Servers and workers end here; threads of libraries might not.
    atexit._run_exitfuncs()
    os._exit(0)
