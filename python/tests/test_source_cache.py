"""Cache of remote files on this host: fewer requests, and the same batches when processes die."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import FEATURES, Dataset, make_dataset
from stores import S3, Proxy
from test_sources import batches, local

import shardfeed as sf

#: Loads an epoch and prints the ids, a given number of times.
READER = """
import json, sys
import shardfeed as sf
options = json.loads(sys.argv[1])
features = {"id": sf.FixedLenFeature((), "int64")}
for _ in range(options.pop("times")):
    with sf.Loader(options["files"], features, **options["options"]) as loader:
        print(json.dumps([[int(n) for n in batch["id"]] for batch in loader]), flush=True)
"""


@pytest.fixture
def remote(s3: S3, proxy: Proxy, dataset: Dataset, tmp_path: Path) -> str:
    s3.upload(dataset.folder, tmp_path.name)
    return f"s3://bucket/{tmp_path.name}/*.tfrecord"


def blocks(folder: Path) -> list[Path]:
    return [path for path in (folder / "blocks").rglob("*") if path.is_file() and path.name != "used"]


def disk_bytes(folder: Path) -> int:
    """Returns the blocks' current size on disk: no space is reserved while the lock is held."""
    with (folder / "blocks/used").open() as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        sizes: dict[int, int] = {}
        for path in blocks(folder):
            # A file may be deleted or renamed in the meantime.
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                sizes[found.st_ino] = -(-found.st_size // 4096) * 4096
        return sum(sizes.values())


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_what_was_read_once_is_not_asked_for_again(
    s3: S3, proxy: Proxy, tmp_path: Path, compression: str | None
) -> None:
    dataset = make_dataset(tmp_path / "data", [40, 7, 0, 30], compression)
    s3.upload(dataset.folder, tmp_path.name)
    files, cache = f"s3://bucket/{tmp_path.name}/*.tfrecord", tmp_path / "kept"
    kept: dict[str, Any] = {"cache_dir": str(cache), "cache_bytes": "64MiB"}
    whole = local(dataset, 2)
    assert batches(files, 2, **kept) == whole
    # Indexing has read everything, so the following epochs found it in the cache.
    assert len(proxy.reads()) == sum(f.stat().st_size > 0 for f in dataset.folder.iterdir())
    proxy.seen.clear()
    assert batches(files, 2, **kept) == whole
    assert proxy.reads() == []
    with sf.Loader(files, FEATURES, batch_size=4, **kept) as each:
        list(each)
        stats = each.stats()
    assert stats["store_requests"] == 0 and stats["cached_bytes"] > 0


def test_without_a_cache_nothing_is_kept(remote: str, proxy: Proxy, tmp_path: Path) -> None:
    batches(remote, 2, cache_dir=str(tmp_path / "kept"))
    assert blocks(tmp_path / "kept") == []
    proxy.seen.clear()
    batches(remote, 1, cache_dir=str(tmp_path / "kept"))
    assert proxy.reads()


def test_a_damaged_block_is_fetched_again(
    dataset: Dataset, remote: str, proxy: Proxy, tmp_path: Path
) -> None:
    cache = tmp_path / "kept"
    kept: dict[str, Any] = {"cache_dir": str(cache), "cache_bytes": 64 << 20}
    whole = local(dataset)
    assert batches(remote, **kept) == whole
    rng = random.Random(1)
    for number, path in enumerate(blocks(cache)):
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 0x10
        path.write_bytes(bytes(content if number % 2 else content[: len(content) // 2]))
    proxy.seen.clear()
    assert batches(remote, **kept) == whole
    # The two parts of the file inside which the epoch begins may both ask for its only block.
    assert len({read.path for read in proxy.reads()}) == len(blocks(cache)) > 0
    assert len(proxy.reads()) <= len(blocks(cache)) + 1
    proxy.seen.clear()
    assert batches(remote, **kept) == whole
    assert proxy.reads() == []


def test_an_object_that_was_replaced_is_never_taken_from_the_cache(
    dataset: Dataset, remote: str, s3: S3, tmp_path: Path
) -> None:
    kept: dict[str, Any] = {"cache_dir": str(tmp_path / "kept"), "cache_bytes": 64 << 20}
    batches(remote, **kept)
    other = make_dataset(tmp_path / "other", [5] * len(dataset.counts))
    s3.upload(other.folder, tmp_path.name)
    assert batches(remote, **kept) == local(other)


def test_a_cache_without_a_folder_is_refused(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDFEED_CACHE_DIR", "off")
    with pytest.raises(sf.ConfigError, match="cache_bytes has no folder.*cache_dir"):
        batches(remote, cache_bytes=1 << 20)


def test_processes_that_share_a_small_cache_and_are_killed_damage_nothing(
    s3: S3, proxy: Proxy, tmp_path: Path
) -> None:
    dataset = make_dataset(tmp_path / "data", [20] * 24)
    s3.upload(dataset.folder, tmp_path.name)
    files, cache = f"s3://bucket/{tmp_path.name}/*.tfrecord", tmp_path / "kept"
    most = 12 * 4096  # half of the files fit, so that all processes evict constantly
    options = {"batch_size": 4, "seed": 7, "shuffle_window": 16, "interleave": 3}
    options |= {"cache_dir": str(cache), "cache_bytes": most}
    whole = local(dataset)
    log = (tmp_path / "log").open("wb")

    def start(times: int) -> subprocess.Popen[str]:
        arguments = json.dumps({"files": files, "options": options, "times": times})
        return subprocess.Popen(
            [sys.executable, "-c", READER, arguments], stdout=subprocess.PIPE, stderr=log, text=True
        )

    def check(text: str) -> int:
        epochs = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        assert all(epoch == whole for epoch in epochs)
        return len(epochs)

    rng, epochs = random.Random(3), 0
    deadline = time.monotonic() + 60
    survivor = start(12)
    for _ in range(4):
        victims = [start(1000) for _ in range(2)]
        # Each has read something when it is killed, at a random time.
        lines = [victim.stdout.readline() for victim in victims if victim.stdout is not None]
        moment = time.monotonic() + rng.uniform(0, 0.2)
        while time.monotonic() < moment:
            assert disk_bytes(cache) <= most
            threading.Event().wait(0.002)  # Others want the lock, too.
        for victim, line in zip(victims, lines, strict=True):
            os.kill(victim.pid, signal.SIGKILL)
            rest, _ = victim.communicate()
            epochs += check(line + rest)
        assert time.monotonic() < deadline
    text, _ = survivor.communicate(timeout=60)
    assert survivor.returncode == 0, (tmp_path / "log").read_text()[-2000:]
    assert check(text) == 12 and epochs >= 8
    assert disk_bytes(cache) <= most
    assert batches(files, **{k: v for k, v in options.items() if k.startswith("cache")}) == whole
    assert disk_bytes(cache) <= most
