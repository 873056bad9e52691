"""A long outage of all coordinators: running ranks continue, also at earlier positions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset, embedded, ids, loader
from trainer import Raised, Trainer, cursors, take

import shardfeed as sf
from shardfeed.testing import Cluster, Server, until

TTL = "session-ttl-ms = 1500\nheartbeat-ms = 300\n"
NOBODY = "127.0.0.1:1"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "outage", workers=1, config=TTL) as cluster:
        yield cluster


@pytest.fixture
def where(running: Cluster) -> dict[str, Any]:
    return running.loader_options()


def generations(running: Cluster, job: str) -> list[tuple[int, int | None]]:
    history = running.ask("job", "show", job)["history"]
    return [(each["generation"], each["parent"]) for each in history]


@pytest.mark.parametrize("by_worker", [True, False])
def test_a_validation_loop_goes_on_without_a_coordinator(
    running: Cluster, dataset: Dataset, where: dict[str, Any], by_worker: bool
) -> None:
    if not by_worker:
        # No worker there: the trainers read in their processes.
        where = where | {"worker": running.socket(9)}
    whole = [embedded(dataset, world_size=2, rank=rank) for rank in range(2)]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(loader(dataset, **where, world_size=2, rank=rank))
            for rank in range(2)
        ]
        for rank, each in enumerate(ranks):
            assert [ids(batch) for batch in each] == whole[rank]
        running.coordinator.kill()
        longest = 0.0
        for round_ in range(1, 4):
            for rank, each in enumerate(ranks):
                begun = time.monotonic()
                each.set_epoch(0)
                first = ids(next(iter(each)))
                longest = max(longest, time.monotonic() - begun)
                rest = [ids(batch) for batch in each]
                assert [first, *rest] == whole[rank]
                assert each.generation == round_
        assert longest < 3
        running.coordinator.start()
        for rank, each in enumerate(ranks):
            each.set_epoch(0)
            assert take(each, 2) == whole[rank][:2]
            assert each.generation == 4
        stand = {0: (0, 2), 1: (0, 2)}
        until(lambda: cursors(running, where["job"]) == stand, "both ranks are in one generation")
        known = [(0, None), (1, 0), (2, 1), (3, 2), (4, 3)]
        assert generations(running, where["job"]) == known
        for rank, each in enumerate(ranks):
            assert take(each, 2) == whole[rank][2:4]


def test_a_worker_that_restarted_before_an_outage_is_replaced(
    running: Cluster, dataset: Dataset, where: dict[str, Any]
) -> None:
    """The worker accepts the trainer, and waits for a coordinator to know its dataset."""
    whole = embedded(dataset)
    with loader(dataset, **where) as each:
        assert take(each, 3) == whole[:3]
        running.workers[0].kill()
        running.workers[0].start()
        running.coordinator.stop()
        assert take(each, len(whole) - 3) == whole[3:]
        assert "in process" in each.stats()["source"]
        running.coordinator.resume()


def test_a_move_that_cannot_be_confirmed_is_told(
    running: Cluster, dataset: Dataset, where: dict[str, Any], tmp_path: Path
) -> None:
    options = {"batch_size": 4, "shuffle_window": 16, "interleave": 3, "seed": 7, "job": where["job"]}
    env = running.variables("first")
    other = running.worker(1)
    with Trainer(tmp_path / "log", env, files=dataset.pattern, **options) as each:
        each("open")
        first = each("take", 3)
        running.coordinator.kill()
        each("set_epoch", 0)
        assert each("take", 2) == first[:2]
        assert each("generation") == 1
        # Others start before the coordinator receives a report of it.
        running.workers[0].stop()
        running.coordinator.start()
        try:
            other.start()
            elsewhere = {"coordinator": running.address, "worker": running.socket(1)}
            with loader(dataset, **elsewhere, job=where["job"], run="second") as later:
                next(iter(later))
                assert later.generation == 1
                running.workers[0].resume()

                def refused() -> Raised | None:
                    try:
                        each("next")
                    except Raised as raised:
                        return raised
                    return None

                raised = until(refused, "the rank is notified")
                assert raised is not None and raised.kind == "SupersededError", raised
                assert "while no coordinator answered" in raised.message, raised
        finally:
            other.kill()


def test_one_address_of_the_list_that_answers_is_enough(
    running: Cluster, dataset: Dataset, where: dict[str, Any]
) -> None:
    whole = embedded(dataset)
    lists: list[str | list[str] | tuple[str, ...]] = [
        f"{NOBODY},{running.address}",
        [NOBODY, running.address],
        (running.address, NOBODY),
    ]
    for number, addresses in enumerate(lists):
        for worker in (running.socket(), running.socket(9)):
            mine = {"coordinator": addresses, "worker": worker, "job": f"{where['job']}-{number}"}
            with loader(dataset, **(where | mine), timeout=20.0) as each:
                assert take(each, 3) == whole[:3]
    assert ask_of(running, f"{NOBODY},{running.address}")["cluster_id"] == running.cluster_id


def ask_of(running: Cluster, addresses: str) -> dict[str, Any]:
    kept, running.address = running.address, addresses
    try:
        return running.ask("status")
    finally:
        running.address = kept


def test_a_worker_with_a_list_joins_by_the_one_that_answers(
    running: Cluster, dataset: Dataset, where: dict[str, Any]
) -> None:
    made: Server = running.worker(2)
    at = made.arguments.index("--coordinator")
    made.arguments[at + 1] = f"{NOBODY},{running.address}"
    try:
        assert f"{NOBODY},{running.address}" in made.start()
        with loader(dataset, **(where | {"worker": running.socket(2)})) as each:
            assert take(each, 2) == embedded(dataset)[:2]
            assert each.stats()["source"] == "worker worker-2"
    finally:
        made.kill()


def test_when_none_of_the_list_answers_each_is_named(dataset: Dataset) -> None:
    addresses = [NOBODY, "127.0.0.1:2"]
    with pytest.raises(sf.ClusterError, match="did not answer for 1 s") as caught:
        loader(dataset, coordinator=addresses, job="never", timeout=1.0)
    said = str(caught.value)
    assert all(f"{address}: Connection refused" in said for address in addresses), said
    wrong: list[Any] = [[], ["a:1", 3], ["a:1,b:2"], "here", ["here"], "a:1,,b:2"]
    for each in wrong:
        with pytest.raises(sf.ConfigError, match="coordinator="):
            loader(dataset, coordinator=each, job="never")
