"""Jobs that are paused, cancelled and resumed by operators, and reports of ranks that moved."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset, ids, loader, make_dataset

import shardfeed as sf
from shardfeed.testing import BINARY, Cluster, until

#: Long enough to see that nothing arrives, and for many heartbeats.
WAITED_US = 1_000_000


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    ttl = "session-ttl-ms = 1500\nheartbeat-ms = 100\n"
    with Cluster(tmp_path_factory.mktemp("hold"), config=ttl) as cluster:
        yield cluster


@pytest.fixture(params=["worker", "here"])
def where(running: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    absent = {} if request.param == "worker" else {"worker": tmp_path / "nobody.sock"}
    return running.loader_options() | absent


@pytest.fixture
def many(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "many", [500] * 8)


def told(running: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Returns the command's result, also after a failure."""
    command = [str(BINARY), *arguments, "--coordinator", running.address]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


class Reading(threading.Thread):
    """Takes the batches of one epoch on a thread, each when permitted."""

    def __init__(self, each: sf.Loader) -> None:
        super().__init__()
        self.each, self.seen = each, list[int]()
        self.error: Exception | None = None
        self.go = threading.Semaphore(0)

    def run(self) -> None:
        try:
            for batch in self.each:
                self.seen += ids(batch)
                self.go.acquire()
        except sf.ShardfeedError as error:
            self.error = error

    def begin(self) -> None:
        """Starts, and waits until it has taken a batch or failed."""
        self.start()
        until(lambda: self.seen or self.error, "the first batch")

    def ends(self) -> bool:
        """Permits one more batch; returns true if the thread has failed."""
        self.go.release()
        return self.error is not None

    def waits(self) -> bool:
        """Permits one more batch; returns true if the thread has waited more than WAITED_US for
        it."""
        self.go.release()
        account = self.each.stats().get("account")
        return account is not None and account["waiting_us"] > WAITED_US


def test_a_paused_job_waits_and_goes_on_where_it_stood(
    running: Cluster, where: dict[str, Any], many: Dataset
) -> None:
    with loader(many, batch_size=4, prefetch=2, **where) as each:
        reading = Reading(each)
        reading.begin()
        said = running.ask("job", "pause", each.job, "--reason", "disk swap")
        assert said["held"]["hold"] == "paused" and said["held"]["reason"] == "disk swap", said
        assert "paused by cli:" in told(running, "job", "show", each.job).stdout
        until(reading.waits, "the trainer waits")
        assert 0 < len(reading.seen) < 4000, len(reading.seen)
        assert running.ask("job", "resume", each.job)["held"] is None
        reading.go.release(1000)
        reading.join(60)
        assert not reading.is_alive() and reading.error is None, reading.error
    assert sorted(reading.seen) == sorted(many.ids)


def test_a_cancelled_job_ends_and_goes_on_from_a_state_after_it_is_resumed(
    running: Cluster, where: dict[str, Any], many: Dataset
) -> None:
    with loader(many, batch_size=4, prefetch=2, **where) as each:
        reading = Reading(each)
        reading.begin()
        unsure = told(running, "job", "cancel", each.job)
        assert unsure.returncode == 2 and "--yes" in unsure.stderr, unsure
        running.ask("job", "cancel", each.job, "--yes", "--reason", "wrong data")
        until(reading.ends, "the trainer is notified")
        reading.join(60)
        assert isinstance(reading.error, sf.JobCancelledError), reading.error
        assert "wrong data" in str(reading.error) and "cli:" in str(reading.error)
        state = each.state_dict()
    again = where | {"run": "second"}
    with loader(many, batch_size=4, **again) as each, pytest.raises(sf.JobCancelledError):
        next(iter(each))
    paused = told(running, "job", "pause", where["job"])
    assert paused.returncode == 5 and "was cancelled by" in paused.stderr, paused
    running.ask("job", "resume", where["job"])
    with loader(many, batch_size=4, **again) as each:
        each.load_state_dict(state)
        rest = [number for batch in each for number in ids(batch)]
    assert sorted(reading.seen + rest) == sorted(many.ids)


def test_a_job_that_is_not_there_is_not_found(running: Cluster) -> None:
    missing = told(running, "job", "pause", "no-such-job")
    assert missing.returncode == 3 and "there is no job `no-such-job`" in missing.stderr


def test_events_and_history_tell_of_a_worker_that_was_killed(tmp_path: Path, many: Dataset) -> None:
    ttl = "session-ttl-ms = 1500\nheartbeat-ms = 100\n"
    with Cluster(tmp_path / "cluster", config=ttl) as running:
        where = {"coordinator": running.address, "worker": running.socket(), "job": "moved"}
        with loader(many, batch_size=4, prefetch=2, **where) as each:
            reading = Reading(each)
            reading.begin()
            running.workers[0].kill()
            reading.go.release(1000)
            reading.join(60)
            assert reading.error is None
            assert sorted(reading.seen) == sorted(many.ids)

            def ended() -> list[dict[str, Any]]:
                events: list[dict[str, Any]] = running.ask("events")["events"]
                gone = [event for event in events if event["kind"] == "worker_ended"]
                return events if gone and gone[0]["worker"] == "worker-0" else []

            # The trainer continued in its process before the loss of the worker was detected.
            everything = until(ended, "the worker is missed")
        events = [event for event in everything if event["job"] == "moved"]
        kinds = [event["kind"] for event in events]
        first = ["job_registered", "generation_opened", "generation_complete", "rank_served"]
        assert kinds[:4] == first, kinds
        moved = events[3]
        assert moved["ranks"] == [0] and moved["worker"] != "worker-0", moved
        numbers = [event["number"] for event in running.ask("events")["events"]]
        assert numbers == list(range(1, len(numbers) + 1))
        shard = many.file(3).name
        history = running.ask("shard", "history", shard, "--job", "moved", "--epoch", "0")
        whys = [(lease["worker"], lease["why"]) for lease in history["leases"]]
        assert whys[0] == ("worker-0", "trainer_returned"), history
        assert len(whys) == 2 and whys[1][0] != "worker-0", history
        assert history["records"] == 500 and history["path"].endswith(shard)
        table = told(running, "shard", "history", "3", "--job", "moved", "--epoch", "0").stdout
        assert "its trainer came back" in table, table
        none = told(running, "shard", "history", "800", "--job", "moved")
        assert none.returncode == 3 and "8 shards" in none.stderr, none


def test_events_are_followed(running: Cluster) -> None:
    arguments = ["events", "-f", "-o", "jsonl", "--worker", "follower", "--coordinator"]
    follow = subprocess.Popen([BINARY, *arguments, running.address], stdout=subprocess.PIPE)
    try:
        server = running.worker(7)
        server.arguments[server.arguments.index("--name") + 1] = "follower"
        server.start()
        assert server.end() == 0
        assert follow.stdout is not None
        events = [json.loads(follow.stdout.readline()) for _ in range(2)]
    finally:
        follow.kill()
        follow.wait()
    assert [event["kind"] for event in events] == ["worker_joined", "worker_ended"]
    assert events[0]["worker"] == "follower" and events[1]["text"].endswith("it left")
