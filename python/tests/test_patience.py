"""Trainers that pause while their worker has much to send, and batches larger than a message: both
continue."""

from __future__ import annotations

import re
import resource
import threading
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import loader, make_dataset
from trainer import served

import shardfeed as sf
from shardfeed.testing import Cluster, until

#: One in this many records is good: a damaged one is filled from a good one nearby.
GOOD_IN = 60
RECORDS = 62_000
#: A record is framed by its length and two checksums.
DATA_BYTES, FRAMED_BYTES = 8, 8 + 12 + 4
#: Longer than the timeouts of either side.
PAUSE_S = 12.0


@pytest.mark.parametrize("prefetch", [1, 256, 1_024])
def test_a_trainer_that_pauses_continues_with_the_batches_of_its_worker(
    small_cluster: Cluster, tmp_path: Path, prefetch: int
) -> None:
    dataset = make_dataset(tmp_path / "data", [900, 900, 900, 400])
    job = f"pause-{prefetch}"
    where: dict[str, Any] = {"coordinator": small_cluster.address, "worker": small_cluster.socket(), "run": "first"}
    with loader(dataset, batch_size=2, prefetch=prefetch, job=job, fallback=False, **where) as each:
        batches = iter(each)
        got = [next(batches)["id"].tolist()]
        # The worker sends as much as permitted, and is then idle.
        until(lambda: served(small_cluster, job)[0]["ready"] >= prefetch, f"{prefetch} batches are there")
        threading.Event().wait(PAUSE_S)
        assert served(small_cluster, job)[0]["worker"] == "worker-0"
        got += [batch["id"].tolist() for batch in batches]
        assert each.stats()["source"] == "worker worker-0"
    assert {number for batch in got for number in batch} == dataset.ids
    assert len(got) == len(dataset.ids) // 2


def test_a_batch_of_sixty_thousand_skipped_records_arrives(small_cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "x.tfrecord"
    with sf.TFRecordWriter(file) as writer:
        for number in range(RECORDS):
            writer.write(number.to_bytes(DATA_BYTES, "little"))
    framed = bytearray(file.read_bytes())
    assert len(framed) == RECORDS * FRAMED_BYTES
    bad = [number for number in range(RECORDS) if number % GOOD_IN]
    for number in bad:
        framed[number * FRAMED_BYTES + 12] ^= 1
    file.write_bytes(framed)
    where: dict[str, Any] = {"coordinator": small_cluster.address, "worker": small_cluster.socket(), "run": "first"}
    with sf.Loader(
        str(file), batch_size=RECORDS, lanes=1, shuffle=False, tail="pad", corrupt="skip-record", corrupt_budget=1.0,
        job="skipped", fallback=False, **where,
    ) as each:  # fmt: skip
        [batch] = each
        assert int(batch.valid.sum()) == RECORDS - len(bad)
        assert each.stats()["skipped_in_epoch"] == len(bad)
        assert each.stats()["source"] == "worker worker-0"


def test_a_rank_that_reads_record_by_record_is_told_of_by_log_why_and_metric(small_cluster: Cluster, tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", [300, 500, 200, 9])
    worker = small_cluster.worker(9, "--http", "127.0.0.1:0")
    http = re.search(r" http (\S+)", worker.start())
    assert http is not None

    def is_told(job: str, by_place: bool) -> bool:
        with urllib.request.urlopen(f"http://{http[1]}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return f'\nshardfeed_trainer_reading_by_offset{{job="{job}",rank="0"}} {int(by_place)}\n' in text

    def warned() -> list[str]:
        return [line for line in worker.log.read_text().splitlines() if "records are read one by one" in line]

    try:
        where: dict[str, Any] = {"coordinator": small_cluster.address, "worker": small_cluster.socket(9), "run": "first"}
        options: dict[str, Any] = {"shuffle_window": 5_000, "interleave": 2, "batch_size": 16, "fallback": False}
        for job, budget, is_by_place in (("held", 50_000_000, False), ("by-place", 200_000, True)):
            with loader(dataset, job=job, memory_budget=budget, **options, **where) as each:
                batches = iter(each)
                next(batches)
                until(partial(is_told, job, is_by_place), f"the metric of {job}")
                for _ in batches:
                    pass
                why = each.why()
                said = why["limit"] == "memory_budget" or "records are read one by one" in why["because"]
                assert said == is_by_place, why
            assert len(warned()) == int(is_by_place)
        [line] = warned()
        assert " WARN " in line and "raise memory_budget= to hold_bytes" in line and "rank=0" in line, line
    finally:
        worker.kill()


def test_a_worker_without_descriptors_says_so_of_a_batch(small_cluster: Cluster, tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", [100])
    worker = small_cluster.worker(8)
    worker.inside = ["prlimit", "--nofile=256:1000"]
    worker.start()
    try:
        limits = Path(f"/proc/{worker.pid}/limits").read_text()
        assert re.search(r"Max open files +1000 +1000 ", limits), "the soft limit is raised"
        where: dict[str, Any] = {"coordinator": small_cluster.address, "worker": small_cluster.socket(8), "run": "first"}
        with loader(dataset, batch_size=2, prefetch=1, job="no-descriptor", fallback=False, **where) as each:
            batches = iter(each)
            kept = [next(batches)]
            # Open files stay open, but batches that the trainer keeps need new memory.
            resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (4, 4))
            said = "a batch: Too many open files .*this process may have 4 files open, and all are in use; raise the limit"
            with pytest.raises(sf.ConfigError, match=said):
                kept += batches
            assert len(kept) < 50
    finally:
        worker.kill()


def test_eight_ranks_on_a_worker_with_a_thousand_descriptors_read_more_shards_than_that(
    small_cluster: Cluster, tmp_path: Path
) -> None:
    dataset = make_dataset(tmp_path / "data", [2] * 1_600)
    worker = small_cluster.worker(7)
    worker.inside = ["prlimit", "--nofile=1024:1024"]
    worker.start()
    try:
        where: dict[str, Any] = {"coordinator": small_cluster.address, "worker": small_cluster.socket(7), "run": "first"}
        options: dict[str, Any] = {"batch_size": 4, "interleave": 64, "job": "descriptors", "fallback": False}
        ranks = [loader(dataset, rank=rank, world_size=8, **options, **where) for rank in range(8)]
        got = [[batch["id"].tolist() for batch in rank] for rank in ranks]
        assert {rank.stats()["source"] for rank in ranks} == {"worker worker-7"}
        for rank in ranks:
            rank.close()
        ids = sorted(number for batches in got for batch in batches for number in batch)
        assert ids == sorted(dataset.ids)
    finally:
        worker.kill()
