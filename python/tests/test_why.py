"""Bottleneck of a run: with real work in one place, the one sentence must name it."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import order_oracle
import pytest
from conftest import Dataset, loader
from trainer import served

import shardfeed as sf
from shardfeed.testing import BINARY, Cluster, until

#: Compares times, which concurrent tests would change.
pytestmark = pytest.mark.alone

RECORD_BYTES = 16 << 10


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    ttl = "session-ttl-ms = 1500\nheartbeat-ms = 100\n"
    with Cluster(tmp_path_factory.mktemp("why"), config=ttl) as cluster:
        yield cluster


@pytest.fixture
def where(running: Cluster) -> dict[str, Any]:
    return running.loader_options()


def work(seconds: float = 0.02) -> None:
    """Computes for `seconds`."""
    end, digest = time.thread_time() + seconds, b""
    while time.thread_time() < end:
        digest = hashlib.sha256(digest + bytes(4096)).digest()


def batches(each: sf.Loader, most: int) -> Iterator[sf.Batch]:
    """Returns up to `most` batches, over as many epochs as needed."""
    return itertools.islice(itertools.chain.from_iterable(itertools.repeat(each)), most)


def blobs(folder: Path, records: int, compression: str | None) -> str:
    """Writes one file of records that are small when compressed and slow to inflate."""
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(3)
    with sf.TFRecordWriter(folder / "blobs.tfrecord", compression=compression) as writer:
        for _ in range(records):
            writer.write(draw.integers(0, 7, RECORD_BYTES, dtype=np.uint8).tobytes())
    return str(folder / "blobs.tfrecord")


def begins_at(records: int, seed: int, epoch: int) -> int:
    """Returns the record of the only file with which an epoch begins."""
    parts = (order_oracle.order_digest([records]), seed, epoch)
    return order_oracle.below(records, order_oracle.draws(order_oracle.make_key("rotate", *parts), 0))


def light(files: str) -> sf.Source:
    return sf.source(files, {"raw": sf.FixedLenFeature((), "string")}).decode_raw("raw", "uint8", (4096,), output="x")


def heavy(files: str) -> sf.Source:
    """Returns a source with operators that cost far more than reading their input."""
    return (
        light(files)
        .unpack_bits("x")
        .normalize("x", 0.5, 0.25)
        .reshape("x", (128, 256))
        .transpose("x", (1, 0))
        .slice("x", (0, 0), (256, 4), output="y")
    )


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, draw = tmp_path_factory.mktemp("arrays"), np.random.default_rng(5)
    with sf.TFRecordWriter(folder / "arrays.tfrecord") as writer:
        for _ in range(1500):
            writer.write({"raw": draw.integers(0, 256, 4096, dtype=np.uint8).tobytes()})
    return str(folder / "arrays.tfrecord")


def test_a_trainer_that_works_longer_than_reading_takes_is_the_limit(dataset: Dataset) -> None:
    with loader(dataset) as each:
        for _ in batches(each, 40):
            work()
        why, account = each.why(), each.stats()["account"]
    assert why["limit"] == "trainer", why
    assert why["wait_percent"] < 10
    assert why["sentence"].startswith("the trainer limits this rank: it works ")
    recent = account["recent"]
    assert recent["work_us"] >= 30 * 20_000
    # The planning thread did only these.
    planned = ("fill_us", "read_wait_us", "gather_us", "grant_us", "room_us")
    assert 0 < sum(recent[name] for name in planned) <= 1.2 * recent["wall_us"]
    # A faster training step removes the bottleneck.
    assert why["change"].startswith("make the training step faster"), why
    with loader(dataset) as each:
        assert sum(1 for _ in batches(each, 400)) == 400
        assert each.why()["limit"] != "trainer"


def test_one_large_compressed_shard_is_inflated_by_one_thread(tmp_path: Path) -> None:
    def of(files: str) -> tuple[Any, dict[str, int]]:
        with sf.Loader(files, batch_size=32, shuffle=False) as each:
            assert sum(1 for _ in batches(each, 90)) == 90
            return each.why(), each.stats()["account"]["since_start"]

    zlib, plain = blobs(tmp_path / "zlib", 3000, "zlib"), blobs(tmp_path / "plain", 3000, None)
    found = [(of(zlib), of(plain)) for _ in range(3)]
    for (why, inflated), (_, copied) in found:
        assert why["limit"] == "inflating", why
        assert "without compression" in why["change"]
        # The cost of inflating is gone.
        assert copied["inflate_us"] < inflated["inflate_us"] / 4
    # The trainer also waits less for a batch: compares minima, as others may have used the
    # processor.
    waits = [[spent["wait_us"] for _, spent in side] for side in zip(*found, strict=True)]
    assert min(waits[1]) < 0.9 * min(waits[0]), waits


def test_heavy_operators_are_the_limit(arrays: str) -> None:
    with sf.Loader(heavy(arrays), batch_size=50, outputs=["y"]) as each:
        taken = sum(1 for _ in batches(each, 60))
        why, account = each.why(), each.stats()["account"]
    assert taken == 60
    assert why["limit"] == "decoding", why
    assert account["in_epoch"]["write_us"] > account["in_epoch"]["parse_us"]
    assert "do less in operators" in why["change"] or "computing threads" in why["change"], why
    with sf.Loader(light(arrays), batch_size=50, outputs=["x"]) as each:
        assert sum(1 for _ in batches(each, 60)) == 60
        computed = each.stats()["account"]["since_start"]["compute_us"]
    assert computed < account["since_start"]["compute_us"] / 2


def test_a_window_as_long_as_the_epoch_is_filled_before_each_first_batch(tmp_path: Path) -> None:
    files = blobs(tmp_path / "zlib", 1500, "zlib")
    # An epoch that begins late in its only file also waits until the file is inflated up to there.
    seed = next(seed for seed in itertools.count() if all(begins_at(1500, seed, epoch) < 1500 / 8 for epoch in range(3)))
    with sf.Loader(files, batch_size=100, shuffle_window=10_000, seed=seed, memory_budget="512MiB") as each:
        taken = sum(1 for _ in batches(each, 45))
        why = each.why()
    assert taken == 45
    assert why["limit"] == "window_fill", why
    assert "use a smaller shuffle_window=" in why["change"]
    with sf.Loader(files, batch_size=100, shuffle_window=100, seed=seed, memory_budget="512MiB") as each:
        assert sum(1 for _ in batches(each, 45)) == 45
        assert each.why()["limit"] != "window_fill"


def test_a_budget_that_holds_no_windows_is_the_limit(tmp_path: Path) -> None:
    files = blobs(tmp_path / "plain", 3000, None)
    with sf.Loader(files, batch_size=8, shuffle_window=2500, memory_budget="4MiB") as each:
        taken = sum(1 for _ in batches(each, 700))
        why, stats = each.why(), each.stats()
    assert (taken, stats["reading"]) == (700, "locate")
    assert why["limit"] == "memory_budget", why
    # The minimum that it names is sufficient.
    named = re.match(r"raise memory_budget= to ([\d.]+ \w+) or more", why["change"])
    assert named is not None, why
    with sf.Loader(files, batch_size=8, shuffle_window=2500, memory_budget=named[1].replace(" ", "")) as each:
        assert sum(1 for _ in batches(each, 700)) == 700
        assert each.stats()["reading"] != "locate"
        assert each.why()["limit"] != "memory_budget"


def device_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def forget(file: str) -> None:
    """Removes a file from the page cache."""
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_a_cold_first_epoch_is_told_from_a_warm_one(tmp_path: Path) -> None:
    files = blobs(tmp_path / "plain", 2000, None)
    sf.Loader(files, batch_size=10).close()  # It is indexed now.
    forget(files)
    before = device_bytes()
    Path(files).read_bytes()
    has_device = device_bytes() > before  # A folder in memory has none, and is never cold.
    forget(files)
    with sf.Loader(files, batch_size=10, shuffle=False) as each:
        first = list(batches(each, 200))
        cold, account = each.why(), each.stats()["account"]
        del first
        assert account["is_first"]
        assert cold["is_cold"] == has_device, (cold, account)
        for _ in batches(each, 300):
            pass
        warm, account = each.why(), each.stats()["account"]
    assert not account["is_first"] and not warm["is_cold"]


def command(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BINARY), *arguments], capture_output=True, text=True, timeout=60,
        env=None if env is None else {**os.environ, **env},
    )  # fmt: skip


def test_the_cluster_knows_what_limits_a_job(
    running: Cluster, where: dict[str, Any], dataset: Dataset
) -> None:
    with loader(dataset, **where) as each:
        first = running.ask("why", each.job)
        assert first["limit"] in ("ranks", "unknown"), first
        endless = batches(each, 100_000)

        def told() -> dict[str, Any] | None:
            next(endless)
            work()
            said = running.ask("why", each.job)
            return said if said["limit"] == "trainer" and said["rank"] == 0 else None

        said = until(told, "the trainer is named")
        own = each.why()
        assert own["limit"] == "trainer"
        rank = said["ranks"][0]
        assert rank["worker"] == "worker-0" and rank["account"]["recent"]["batches"] > 0
        assert said["sentence"].startswith(f"job `{each.job}`, rank 0: the trainer limits this rank: ")
        ranks = running.ask("rank", "list", "--job", each.job)["ranks"]
        assert ranks[0]["limit"] == "trainer"

        def setup() -> dict[str, Any]:
            return running.ask("worker", "show", "worker-0")["serving"][0]["account"]["setup"]

        # The worker changes it while it reads, and reports it later.
        until(lambda: setup()["prefetch"] == each.stats()["prefetch"], "the depth of the queue is known")
        assert setup()["computing_threads"] > 0
        # The output for people is one sentence.
        line = command("why", each.job, "--coordinator", running.address)
        assert line.stdout.count("\n") == 1 and "the trainer limits" in line.stdout, line


def test_a_job_that_lacks_a_rank_waits_for_it(
    running: Cluster, where: dict[str, Any], dataset: Dataset
) -> None:
    with loader(dataset, **where, rank=0, world_size=2, batch_size=2) as each:
        next(iter(each))
        said = until(lambda: running.ask("why", each.job), "an answer")
    assert said["limit"] == "ranks" and "1 (missing)" in said["sentence"], said
    missing = command("why", "no-such-job", "--coordinator", running.address)
    assert missing.returncode == 3 and "there is no job `no-such-job`" in missing.stderr


def test_a_bench_reads_a_job_without_disturbing_it(
    running: Cluster, where: dict[str, Any], arrays: str, tmp_path: Path
) -> None:
    with sf.Loader(heavy(arrays), batch_size=50, outputs=["y"], **where) as each:
        seen = [batch["y"].tobytes() for _, batch in zip(range(3), each, strict=False)]
        until(lambda: served(running, each.job)[0]["step"] == 3, "the coordinator knows of three")
        before = running.ask("rank", "list", "--job", each.job)["ranks"]
        trace = tmp_path / "bench.json"
        report = running.ask(
            "bench", each.job, "--batches", "40", "--duration", "60s", "--trace", str(trace)
        )
        after = running.ask("rank", "list", "--job", each.job)["ranks"]
        same = ("rank", "generation", "fencing", "trainer", "step")
        assert [[rank[name] for name in same] for rank in after] == [
            [rank[name] for name in same] for rank in before
        ]
        rest = [batch["y"].tobytes() for batch in each]
    whole = [batch["y"].tobytes() for batch in sf.Loader(heavy(arrays), batch_size=50, outputs=["y"])]
    assert seen + rest == whole
    assert (report["batches"], report["samples"], report["batch_size"]) == (40, 2000, 50)
    assert report["finding"]["limit"] == "decoding", report["finding"]
    assert report["memory_peak_bytes"] > 0 and report["cpu_seconds_per_1000_samples"] > 0
    check_timeline(json.loads(trace.read_text()), {"assemble", "check and parse", "operate and write"})


def test_a_bench_of_files_needs_no_cluster(tmp_path: Path) -> None:
    files = blobs(tmp_path / "zlib", 3000, "zlib")
    cache = {"SHARDFEED_CACHE_DIR": str(tmp_path / "cache")}
    done = command("bench", "--files", files, "--batches", "150", "-o", "json", env=cache)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["batches"] == 150 and report["samples"] == 150 * 32
    said = command("bench", "--files", files, "--batches", "5", env=cache)
    assert "samples per second" in said.stdout and "this rank: " in said.stdout
    nothing = command("bench", "--files", str(tmp_path / "none-*.tfrecord"), env=cache)
    assert nothing.returncode == 1 and "none-" in nothing.stderr


def check_timeline(timeline: dict[str, Any], names: set[str]) -> None:
    """Verifies Trace Event Format, as Perfetto loads it: spans of a thread are nested or
    consecutive."""
    events = timeline["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    named = {event["tid"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    assert {event["ph"] for event in events} == {"M", "X"}
    assert names <= {span["name"] for span in spans}, {span["name"] for span in spans}
    begins = [span["ts"] for span in spans]
    assert begins == sorted(begins)
    open_until: dict[int, list[float]] = {}
    for span in spans:
        assert span["tid"] in named and span["pid"] == spans[0]["pid"] and span["dur"] >= 0
        ends = open_until.setdefault(span["tid"], [])
        while ends and ends[-1] <= span["ts"]:
            ends.pop()
        # Times are written with a nanosecond's precision.
        assert not ends or span["ts"] + span["dur"] <= ends[-1] + 0.002, span
        ends.append(span["ts"] + span["dur"])


def test_a_workers_timeline_shows_what_its_threads_did(
    running: Cluster, where: dict[str, Any], arrays: str, tmp_path: Path
) -> None:
    file = tmp_path / "worker.json"
    recording = subprocess.Popen(
        [str(BINARY), "trace", str(file), "--worker", str(running.socket()), "--duration", "2s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with sf.Loader(heavy(arrays), batch_size=50, outputs=["y"], **where) as each:
        for _ in batches(each, 100_000):
            if recording.poll() is not None:
                break
    said = recording.communicate()
    assert recording.returncode == 0, said
    timeline = json.loads(file.read_text())
    check_timeline(timeline, {"room", "assemble", "operate and write", "send", "chunk"})
    threads = {event["args"]["name"] for event in timeline["traceEvents"] if event["ph"] == "M"}
    assert {"shardfeed worker worker-0", "shardfeed-plan", "shardfeed-send"} <= threads
    nobody = command("trace", str(file), "--worker", str(tmp_path / "none.sock"))
    assert nobody.returncode == 6 and "none.sock" in nobody.stderr


def test_a_loader_writes_its_timeline_when_it_is_closed(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDFEED_TRACE", str(tmp_path / "traces"))
    with loader(dataset) as each:
        for _ in each:
            work(0.001)
    (file,) = (tmp_path / "traces").iterdir()
    assert file.name == f"rank-0-{os.getpid()}.json"
    check_timeline(json.loads(file.read_text()), {"trainer works", "trainer waits", "fill window", "read"})
