"""`memory_budget=` is respected: RssAnon + RssShmem of a separate process, measured from outside,
for every example and for demanding cases."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf
from shardfeed.testing import Cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES / name) for name in ("chess", "imagenet", "tokens")]

import boards  # noqa: E402
import images  # noqa: E402
import sequences  # noqa: E402

MIB = 1 << 20
PROBE = Path(__file__).with_name("memory_probe.py")


def resident(pid: int) -> int:
    """Returns the bytes of a process that are not backed by a file."""
    total = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("RssAnon", "RssShmem"):
            total += int(rest.split()[0]) << 10
    return total


class Watcher:
    """Samples a process's memory until it ends, and keeps the maximum."""

    def __init__(self, pid: int) -> None:
        self.pid, self.most, self.looks = pid, resident(pid), 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._end.wait(0.002):
            try:
                self.most = max(self.most, resident(self.pid))
            except (FileNotFoundError, ProcessLookupError):
                return
            self.looks += 1

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def run(case: str, files: str, budget: int | str, env: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
    """Runs one epoch; returns the probe's output, and `used`: the maximum growth of its memory."""
    process = subprocess.Popen(
        [sys.executable, PROBE, case, files, str(budget), json.dumps(options)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    with process:
        assert process.stdout.readline() == "ready\n"
        before = resident(process.pid)
        with Watcher(process.pid) as watcher:
            process.stdin.write("go\n")
            process.stdin.flush()
            said = process.stdout.readline()
        assert process.wait() == 0 and watcher.looks > 0
    return json.loads(said) | {"used": watcher.most - before}


def write_strings(folder: Path, sizes: list[list[int]]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for number, file in enumerate(sizes):
        with sf.TFRecordWriter(folder / f"{number:03}.tfrecord") as writer:
            for size in file:
                writer.write(rng.bytes(size))
    return str(folder / "*.tfrecord")


def write_values(folder: Path, records: int, longest: int) -> str:
    """Writes mostly short rows; one in a hundred has up to `longest` numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(2)
    for number in range(4):
        with sf.TFRecordWriter(folder / f"{number}.tfrecord") as writer:
            for _ in range(records // 4):
                count = rng.integers(longest // 2, longest) if rng.random() < 0.01 else rng.integers(0, 50)
                writer.write({"values": rng.integers(0, 1 << 62, int(count))})
    return str(folder / "*.tfrecord")


def write_photos(folder: Path, count: int) -> str:
    """Writes images of 3,000 x 2,000 pixels, with some small ones between."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    row = rng.integers(0, 256, (1, 3_000, 3), dtype=np.uint8)
    large, small = images.png(np.repeat(row, 2_000, axis=0)), images.png(np.repeat(row[:, :90], 90, axis=0))
    with sf.TFRecordWriter(folder / "photos.tfrecord") as writer:
        for number in range(count):
            writer.write({"image": small if number % 5 == 0 else large})
    return str(folder / "*.tfrecord")


def uneven(folder: Path) -> str:
    """Writes files of small records, and a few of large ones, which may all be read at once."""
    return write_strings(folder, [[200] * 3_000] * 60 + [[100_000] * 150] * 4)


CASES: dict[str, tuple[str, Callable[[Path], str], int]] = {
    "a window of small records": ("windows", lambda f: write_strings(f, [[200] * 20_000] * 10), 64 * MIB),
    "large records": ("large", lambda f: write_strings(f, [[112_000] * 200] * 4), 64 * MIB),
    "large records by place": ("placed", lambda f: write_strings(f, [[60_000] * 400] * 4), 32 * MIB),
    "files of small and of large records": ("windows", uneven, 64 * MIB),
    "rows of very different length": ("skewed", lambda f: write_values(f, 4_000, 100_000), 48 * MIB),
    "rows padded to the longest": ("padded", lambda f: write_values(f, 4_000, 40_000), 48 * MIB),
    "photographs": ("photos", lambda f: write_photos(f, 48), 128 * MIB),
    "examples/chess": ("chess", lambda f: boards.write(f, 60_000), 48 * MIB),
    "examples/imagenet": ("imagenet", lambda f: images.write(f, 600), 48 * MIB),
    "examples/tokens": ("tokens", lambda f: sequences.write(f, 8_000), 32 * MIB),
}


@pytest.mark.embedded_only
@pytest.mark.parametrize("name", CASES)
def test_a_loader_stays_within_its_memory_budget(name: str, tmp_path: Path) -> None:
    case, write, budget = CASES[name]
    files = write(tmp_path / "files")
    run(case, files, budget, limit=1_000)  # The index is in the cache from here on.
    said = run(case, files, budget)
    assert said["rows"] > 0
    # The trainer's batch is its own, and so is the batch that it is handed meanwhile.
    allowed = 1.1 * budget + 2 * said["largest"]
    print(f"{name}: {said['used'] / MIB:.1f} MiB of {allowed / MIB:.1f}, {said}")
    assert said["used"] <= allowed, said


@pytest.mark.embedded_only
def test_a_batch_that_never_fits_is_an_error_that_says_what_would(tmp_path: Path) -> None:
    files = write_values(tmp_path, 2_000, 400_000)
    features = {"values": sf.FixedLenSequenceFeature((), "int64", allow_missing=True)}
    with (
        sf.Loader(files, features, batch_size=64, shuffle_window=64, memory_budget="32MiB") as each,
        pytest.raises(sf.ConfigError, match=r"a batch of \d+ bytes does not fit .* raise it to \d+") as caught,
    ):
        for _ in each:
            pass
    fits = int(str(caught.value).split("raise it to ")[1].split()[0])
    steps = int(str(caught.value).split("step ")[1]) + 1
    options = {"batch_size": 64, "shuffle_window": 64, "memory_budget": fits, "limit": 64 * steps}
    with sf.Loader(files, features, **options) as each:
        assert [batch.rows for batch in each] == [64] * steps


@pytest.mark.embedded_only
def test_a_worker_stays_within_its_memory_budget(tmp_path: Path) -> None:
    # Three jobs of one rank each: the last one gets a part of the memory reserved for later jobs.
    budget = 160 * MIB
    skewed, padded = write_values(tmp_path / "skewed", 4_000, 100_000), write_values(tmp_path / "padded", 4_000, 20_000)
    large = write_strings(tmp_path / "large", [[112_000] * 300] * 2)
    with Cluster(tmp_path / "cluster", memory="160MiB") as running:
        pid = running.workers[0].pid
        with Watcher(pid) as watcher, ThreadPoolExecutor(3) as pool:
            cases = [("skewed", skewed), ("padded", padded), ("large", large)]
            env = [running.env | running.variables(f"run-{case}") for case, _ in cases]
            said = pool.map(
                lambda at: run(*cases[at], "none", env[at], job=cases[at][0]), range(len(cases))
            )
            assert [one["rows"] for one in said] == [4_000, 4_000, 576]
    print(f"a worker: {watcher.most / MIB:.1f} MiB of {budget / MIB:.1f}")
    assert watcher.most <= 1.1 * budget
