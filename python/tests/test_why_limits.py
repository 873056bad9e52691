"""Each of the rarer bottlenecks, produced for real and reported while it exists."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset, loader
from stores import S3, Fault, Proxy, Seen, is_read
from test_why import blobs, command

import shardfeed as sf
from shardfeed.testing import Cluster, until

pytestmark = pytest.mark.alone

IDS: dict[str, Any] = {"id": sf.FixedLenFeature((), "int64")}

TTL = "session-ttl-ms = 1500\nheartbeat-ms = 100\n"


def in_cluster(running: Cluster) -> dict[str, Any]:
    return running.loader_options()


class Taking:
    """A trainer that takes batches continuously, on its own thread."""

    def __init__(self, each: sf.Loader) -> None:
        self._each, self._stop, self.taken = each, threading.Event(), 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for _ in self._each:
                    self.taken += 1
                    if self._stop.is_set():
                        return
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Taking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.error is None, self.error


def slow(seen: Seen) -> Fault | None:
    return Fault("slow") if is_read(seen) else None


def silent(seen: Seen) -> Fault | None:
    return Fault("silent") if is_read(seen) else None


def test_a_slow_store_is_the_limit_and_a_cache_of_it_is_not_cold(
    s3: S3, proxy: Proxy, tmp_path: Path
) -> None:
    blobs(tmp_path / "plain", 1500, None)
    s3.upload(tmp_path / "plain", tmp_path.name)
    files = f"s3://bucket/{tmp_path.name}/*.tfrecord"
    sf.Loader(files, batch_size=10).close()  # It is indexed now.
    proxy.choose = slow
    with sf.Loader(files, batch_size=10, shuffle=False) as each:
        told = [each.why() for _ in each]
        account = each.stats()["account"]
    said = [why for why in told if why["limit"] == "storage"]
    assert said and all(why["is_cold"] for why in said), told[-1]
    assert "cache_bytes= keeps them on this host" in said[0]["sentence"]
    assert account["setup"]["remote"] and not account["setup"]["cached"]
    assert account["since_start"]["store_bytes"] > 20 << 20
    proxy.choose = lambda _: None
    cache: dict[str, Any] = {"cache_bytes": "1GiB", "cache_dir": tmp_path / "blocks"}
    for _ in range(2):
        # Indexing or the first epoch caches it, and the second loader makes no requests.
        with sf.Loader(files, batch_size=10, shuffle=False, **cache) as each:
            told = [each.why() for _ in each]
            account = each.stats()["account"]
    assert account["is_first"] and account["setup"]["cached"]
    assert account["since_start"]["cached_bytes"] > 20 << 20
    assert account["since_start"]["store_bytes"] == 0
    assert not any(why["is_cold"] and "store" in why["sentence"] for why in told)


def test_a_store_that_stops_answering_is_named_while_the_trainer_waits(
    s3: S3, proxy: Proxy, dataset: Dataset, tmp_path: Path
) -> None:
    s3.upload(dataset.folder, tmp_path.name)
    with Cluster(tmp_path / "cluster", config=TTL) as running:
        where = in_cluster(running)
        files = f"s3://bucket/{tmp_path.name}/*.tfrecord"
        with sf.Loader(files, IDS, batch_size=4, prefetch=2, **where) as each:
            proxy.choose = silent
            with Taking(each) as taking:

                def stuck() -> dict[str, Any] | None:
                    said = running.ask("why", each.job)
                    is_told = said["limit"] == "storage" and "has waited" in said["sentence"]
                    return said if is_told else None

                said = until(stuck, "the cluster says that storage is waited for")
                account = said["ranks"][0]["account"]
                assert account["waiting_us"] >= 2_000_000 and account["recent"]["batches"] == 0
                assert account["idle_us"] >= account["waiting_us"]
                own = each.why()
                assert own["limit"] == "storage" and own["wait_percent"] > 90, own
                assert "the trainer has waited " in own["sentence"]
                assert taking.taken == 0
                proxy.choose = lambda _: None
                until(lambda: taking.taken >= 20, "batches flow again")
                # The ended wait is no longer reported.
                until(lambda: each.stats()["account"]["recent"]["batches"] > 0, "batches are reported")
            # The cost of the store is reported with the account, to the trainer and to the
            # coordinator.
            stats = each.stats()
            assert stats["store_requests"] > stats["store_retries"] > 0 < stats["store_bytes"]

            def served() -> dict[str, Any] | None:
                serving = running.ask("worker", "show", "worker-0")["serving"]
                spent = serving[0]["account"]["since_start"] if serving else {}
                return spent if spent.get("store_bytes", 0) == stats["store_bytes"] else None

            spent = until(served, "the coordinator knows the store's cost")
            assert spent["store_requests"] >= stats["store_requests"] > 0 and spent["store_retries"] > 0
            table = command("worker", "show", "worker-0", "--coordinator", running.address)
            assert "requests (" in table.stdout and " again), " in table.stdout, table


def test_a_trainer_that_asks_for_nothing_is_told_from_one_that_waits(
    tmp_path: Path, dataset: Dataset
) -> None:
    with (
        Cluster(tmp_path / "cluster", config=TTL) as running,
        loader(dataset, **in_cluster(running), prefetch=3) as each,
    ):
        next(iter(each))

        # Batches that were sent to the trainer and not taken are ready, too.
        def ready() -> bool:
            (rank,) = running.ask("rank", "list", "--job", each.job)["ranks"]
            return bool(rank["ready"] == 3)

        until(ready, "three batches are ready")

        def idle() -> dict[str, Any] | None:
            said = running.ask("why", each.job)
            return said if "has not asked for the next" in said["sentence"] else None

        said = until(idle, "the trainer is said not to ask")
        assert said["limit"] == "trainer" and said["ranks"][0]["account"]["waiting_us"] == 0
        assert each.why()["limit"] == "trainer"


def test_a_trainer_that_keeps_all_batches_is_limited_by_copying_them(tmp_path: Path) -> None:
    """Large batches that are quick to produce from few bytes: each is mostly zeros."""
    with sf.TFRecordWriter(tmp_path / "few.tfrecord") as writer:
        for number in range(64):
            writer.write({"x": list(range(1 << 20)) if number % 16 == 0 else [number]})
    features = {"x": sf.FixedLenSequenceFeature((), "int64", allow_missing=True)}
    with Cluster(tmp_path / "cluster", config=TTL, memory="4GiB") as running:
        where = in_cluster(running)
        with sf.Loader(
            str(tmp_path / "few.tfrecord"), features, batch_size=8, shuffle=False, prefetch=2, **where
        ) as each:
            held: list[sf.Batch] = []

            def hold() -> dict[str, Any] | None:
                held.append(next(iter(each)))
                why = each.why()
                if len(held) > 20:
                    del held[:8]
                return why if why["limit"] == "held_batches" else None

            why = until(hold, "the batches that are held are named")
            assert each.stats()["copied_batches"] > 0
            assert why["change"].startswith("keep fewer batches"), why

            def keep() -> bool:
                del held[:-1]
                held.append(next(iter(each)))
                return bool(each.why()["limit"] != "held_batches")

            until(keep, "fewer batches are kept, and none is copied any more")


@contextlib.contextmanager
def stopped(running: Cluster) -> Iterator[None]:
    running.coordinator.stop()
    try:
        yield
    finally:
        running.coordinator.resume()


def test_a_coordinator_that_does_not_answer_limits_a_dynamic_job(
    tmp_path: Path, dataset: Dataset
) -> None:
    with (
        Cluster(tmp_path / "cluster", config=TTL) as running,
        loader(dataset, **in_cluster(running), mode="dynamic", tail="uneven") as each,
        Taking(each) as taking,
    ):
        until(lambda: taking.taken > 50, "batches flow")
        with stopped(running):

            def stuck() -> dict[str, Any] | None:
                why = each.why()
                is_told = why["limit"] == "coordinator" and "has waited" in why["sentence"]
                return why if is_told else None

            why = until(stuck, "the coordinator is waited for")
            assert why["wait_percent"] > 50 and "cluster status" in why["change"], why
            assert 'mode="deterministic" needs no coordinator' in why["change"]
        before = taking.taken
        until(lambda: taking.taken > before + 50, "batches flow again")


def test_a_deterministic_job_goes_on_without_a_coordinator_as_the_advice_says(tmp_path: Path, dataset: Dataset) -> None:
    with (
        Cluster(tmp_path / "cluster", config=TTL) as running,
        loader(dataset, **in_cluster(running)) as each,
        Taking(each) as taking,
    ):
        until(lambda: taking.taken > 50, "batches flow")
        with stopped(running):
            before = taking.taken
            until(lambda: taking.taken > before + 500, "batches flow on")
            assert each.why()["limit"] != "coordinator"


def test_many_small_records_are_limited_by_gathering_them(tmp_path: Path) -> None:
    """The same bytes in records of 4 KiB are collected quickly, as advised."""

    def gathered(size: int) -> dict[str, Any]:
        file = tmp_path / f"{size}.tfrecord"
        with sf.TFRecordWriter(file) as writer:
            for number in range((4 << 20) // size):
                writer.write(bytes([number % 251]) * size)
        # The window is so small that filling it takes no time beside collecting the batches.
        options: dict[str, Any] = {"batch_size": (256 << 10) // size, "shuffle_window": max(2, (8 << 10) // size)}
        with sf.Loader(str(file), **options) as each, Taking(each) as taking:
            until(lambda: taking.taken >= 200, "batches flow")
            why, spent = each.why(), each.stats()["account"]["since_start"]
        return {"limit": why["limit"], "change": why["change"], "us": spent["gather_us"] / spent["batches"]}

    small, large = gathered(8), gathered(4 << 10)
    assert small["limit"] == "gathering", small
    assert small["change"].startswith("put more into a record"), small
    assert large["limit"] != "gathering" and large["us"] < small["us"] / 4, (small, large)


def bursts(dataset: Dataset, prefetch: int | None, limit: str) -> dict[str, Any]:
    """Returns the diagnosis once `limit` limits a trainer that takes eight batches at a time."""
    with loader(dataset, prefetch=prefetch, shuffle_window=1) as each:
        endless = (batch for _ in iter(int, 1) for batch in each)

        def burst() -> dict[str, Any] | None:
            began = time.monotonic()
            for _ in range(8):
                next(endless)
            # Its work with them takes longer than producing them.
            threading.Event().wait(4 * (time.monotonic() - began))
            why = each.why()
            return why if why["limit"] == limit else None

        return until(burst, f"{limit} limits bursts with prefetch={prefetch}")


def test_a_trainer_that_takes_in_bursts_needs_more_than_one_batch_ahead(dataset: Dataset) -> None:
    why = bursts(dataset, 1, "prefetch")
    assert why["change"] == "raise prefetch= above 1, or leave it out"
    # Both are tried, and both help.
    for prefetch in (8, None):
        bursts(dataset, prefetch, "trainer")
