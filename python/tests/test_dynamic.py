"""mode="dynamic" over real processes: claims are served in order of arrival, every sample once."""

from __future__ import annotations

import signal
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset, ids, loader, make_dataset
from trainer import Raised, Trainer, cursors, served

import shardfeed as sf
from shardfeed.testing import BINARY, Cluster, Server, until

TTL = "session-ttl-ms = 1500\nheartbeat-ms = 300\n"
NUMBERS = count(10)
Ids = list[list[int]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("dynamic"), workers=0, config=TTL) as cluster:
        yield cluster


@pytest.fixture
def workers(running: Cluster) -> Iterator[list[Server]]:
    made = [running.worker(next(NUMBERS)) for _ in range(2)]
    try:
        for worker in made:
            worker.start()
        yield made
    finally:
        for worker in made:
            worker.kill()


@pytest.fixture
def where(running: Cluster, workers: list[Server]) -> dict[str, Any]:
    return {"coordinator": running.address, "job": f"dynamic-{uuid.uuid4().hex[:8]}", "run": "one"}


@pytest.fixture
def large(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "large", [37, 0, 60, 21, 44, 1, 52, 30, 18, 29, 55, 40])


def spawned(
    log: Path, dataset: Dataset, where: dict[str, Any], worker: Server, **options: Any
) -> Trainer:
    fixed = {"batch_size": 4, "shuffle_window": 16, "interleave": 2, "seed": 7, "mode": "dynamic"}
    return Trainer(
        log, {}, files=dataset.pattern, worker=worker.option("--socket"), **(where | fixed | options)
    )


def start(
    stack: ExitStack, tmp_path: Path, dataset: Dataset, where: dict[str, Any],
    workers: list[Server], world_size: int, **options: Any,
) -> list[Trainer]:  # fmt: skip
    """Starts `world_size` trainers, distributed over the workers and opened together."""
    log = tmp_path / f"log-{uuid.uuid4().hex[:6]}"
    ranks = [
        stack.enter_context(spawned(
            Path(f"{log}-{rank}"), dataset, where, workers[rank % len(workers)],
            rank=rank, world_size=world_size, **options,
        ))
        for rank in range(world_size)
    ]  # fmt: skip
    for each in ranks:
        each.begin("open")
    for each in ranks:
        each.answer()
    return ranks


def epoch(ranks: list[Trainer], got: list[Ids] | None = None) -> list[Ids]:
    """Returns the batches of each rank until its epoch ends. It ends when all samples are consumed,
    so the ranks run concurrently."""
    got = got or [[] for _ in ranks]

    def run(rank: int) -> None:
        while (batch := ranks[rank]("next")) is not None:
            got[rank].append(batch)

    with ThreadPoolExecutor(len(ranks)) as pool:
        for running in [pool.submit(run, rank) for rank in range(len(ranks))]:
            running.result()
    return got


def flat(got: list[Ids]) -> Counter[int]:
    return Counter(number for batches in got for batch in batches for number in batch)


def once(dataset: Dataset) -> Counter[int]:
    return Counter(dataset.ids)


def test_without_a_coordinator_it_is_refused(dataset: Dataset) -> None:
    with pytest.raises(sf.ConfigError, match="coordinator="):
        loader(dataset, mode="dynamic")
    with pytest.raises(sf.ConfigError, match='"deterministic", "dynamic"'):
        loader(dataset, mode="quick")


@pytest.mark.parametrize(("option", "value"), [("limit", 8), ("lanes", 2)])
def test_what_a_plan_only_has_is_refused(dataset: Dataset, option: str, value: int) -> None:
    with pytest.raises(sf.ConfigError, match=f"{option}="):
        loader(dataset, mode="dynamic", coordinator="127.0.0.1:1", **{option: value})


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_equal_steps_are_refused(dataset: Dataset, tail: str) -> None:
    with pytest.raises(sf.ConfigError, match=f'pass tail="uneven", or mode="deterministic" for tail="{tail}"'):
        loader(dataset, mode="dynamic", coordinator="127.0.0.1:1", tail=tail)


def test_without_a_tail_it_is_uneven(dataset: Dataset, where: dict[str, Any], workers: list[Server]) -> None:
    options = {"worker": workers[0].option("--socket"), "batch_size": 8, "interleave": 2, **where}
    with loader(dataset, mode="dynamic", **options) as each:
        got = [ids(batch) for batch in each]
        assert Counter(number for batch in got for number in batch) == once(dataset)
        assert len(got[-1]) < 8, "the last batch is short"
        state = each.state_dict()
    options["run"] = "two"
    with loader(dataset, mode="dynamic", tail="uneven", **options, resume=state) as again:
        assert (again.epoch, again.step) == (1, 0), "it is the same job"
    # With mode="deterministic" the default is still "drop".
    assert loader(dataset, batch_size=8).state_dict() == loader(dataset, batch_size=8, tail="drop").state_dict()


def test_ranks_share_every_epoch_once(
    large: Dataset, where: dict[str, Any], workers: list[Server], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        ranks = start(stack, tmp_path, large, where, workers, 2)
        for number in range(3):
            got = epoch(ranks)
            assert flat(got) == once(large), f"epoch {number}"


def test_len_is_not_known(large: Dataset, where: dict[str, Any], workers: list[Server]) -> None:
    with loader(large, worker=workers[0].option("--socket"), mode="dynamic", **where) as each:
        with pytest.raises(TypeError, match="unknown until the epoch ends"):
            len(each)
        assert "/?" in repr(each) and each.dropped == 0
        next(iter(each))
        stats = each.stats()
        assert stats["lookahead"] > 0 and stats["granted"] >= 0
        assert "cluster" in each.state_dict()


def test_a_worker_that_is_killed_loses_and_doubles_nothing(
    large: Dataset, where: dict[str, Any], workers: list[Server], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        ranks = start(stack, tmp_path, large, where, workers, 2)
        got: list[Ids] = [each("take", 5) for each in ranks]
        workers[0].kill()
        assert flat(epoch(ranks, got)) == once(large)
        assert "in process" in ranks[0]("stats")["source"]


@pytest.mark.parametrize("to", [1, 0])
def test_a_rank_that_leaves_an_epoch_keeps_what_it_consumed(
    running: Cluster, large: Dataset, where: dict[str, Any], workers: list[Server], tmp_path: Path, to: int
) -> None:
    with ExitStack() as stack:
        ranks = start(stack, tmp_path, large, where, workers, 2, in_doubt_grace=3600.0)
        got: list[Ids] = [each("take", 5) for each in ranks]
        # No worker knows that the trainer consumes further batches, which it has in hand.
        until(lambda: served(running, where["job"])[0]["ready"] > 2, "batches are in hand")
        workers[0].signal(signal.SIGSTOP)
        got[0] += ranks[0]("take", 2)
        workers[0].kill()
        ranks[0]("set_epoch", to)
        assert ranks[0]("next")
        # Also where the rank begins the same epoch again, in a generation of its own.
        [rest] = epoch(ranks[1:], [got[1]])
        assert flat([got[0], rest]) == once(large)


@pytest.mark.parametrize("going", ["drained", "terminated", "restarted"])
def test_a_worker_that_goes_loses_and_doubles_nothing(
    running: Cluster, large: Dataset, where: dict[str, Any], workers: list[Server],
    tmp_path: Path, going: str,
) -> None:  # fmt: skip
    where = where | {"coordinator": [running.address, "127.0.0.1:1"]}
    with ExitStack() as stack:
        ranks = start(stack, tmp_path, large, where, workers, 2, prefetch=4)
        got: list[Ids] = [each("take", 5) for each in ranks]
        # Several batches are in hand, and the other rank claims those that were not begun.
        match going:
            case "drained":
                running.command("worker", "drain", workers[0].option("--name"), "--no-wait")
            case "terminated":
                workers[0].signal(signal.SIGTERM)
            case "restarted":
                workers[0].kill()
                workers[0].start()
        assert flat(epoch(ranks, got)) == once(large)


@pytest.mark.parametrize("dies", ["trainer", "host"])
@pytest.mark.parametrize("in_doubt", ["redeliver", "drop"])
def test_a_rank_that_is_gone_for_good_leaves_its_rest_to_the_others(
    large: Dataset, running: Cluster, where: dict[str, Any], workers: list[Server], tmp_path: Path, dies: str, in_doubt: str
) -> None:
    with ExitStack() as stack:
        policy: dict[str, Any] = {"in_doubt": in_doubt, "in_doubt_grace": 0.5}
        ranks = start(stack, tmp_path, large, where, workers, 2, **policy)
        got: list[Ids] = [each("take", 5) for each in ranks]
        if dies == "host":
            workers[0].kill()
        ranks[0].kill()
        [rest] = epoch(ranks[1:], [got[1]])
        delivered = flat([got[0], rest])
        shown = until(
            lambda: (found := running.ask("epoch", "show", "--epoch", "0", "--job", where["job"]))["state"] == "sealed" and found,
            "the epoch is sealed",
        )
        again = [number for number, times in delivered.items() if times > 1]
        missing = large.ids - set(delivered)
        if in_doubt == "redeliver":
            # Only samples that it may have consumed are delivered again.
            assert not missing and set(again) <= {number for batch in got[0] for number in batch}
            assert len(again) <= shown["redelivered"] and shown["dropped"] == 0
        else:
            # Nothing is delivered twice; samples that it had begun and not consumed are lost.
            assert not again and len(missing) <= shown["dropped"] and shown["redelivered"] == 0
        assert (shown["lost"], shown["duplicated"], shown["in_doubt"]) == (0, 0, [])


def test_a_rank_that_ends_while_no_coordinator_answers_leaves_its_rest_to_the_others(
    running: Cluster, large: Dataset, where: dict[str, Any], workers: list[Server], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        # The worker of both ranks lives on, so only the report of the end frees the rest.
        ranks = start(stack, tmp_path, large, where, workers[:1], 2, in_doubt_grace=3600.0)
        got: list[Ids] = [each("take", 5) for each in ranks]
        running.coordinator.kill()
        ranks[0]("close")
        running.coordinator.start()
        [rest] = epoch(ranks[1:], [got[1]])
        assert flat([got[0], rest]) == once(large)


def test_what_is_in_doubt_is_named_until_an_operator_decides(
    large: Dataset, running: Cluster, where: dict[str, Any], workers: list[Server], tmp_path: Path
) -> None:
    job = where["job"]
    with ExitStack() as stack:
        ranks = start(stack, tmp_path, large, where, workers, 2, in_doubt_grace=3600.0)
        got: list[Ids] = [each("take", 5) for each in ranks]
        ranks[0].kill()
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(epoch, ranks[1:], [got[1]])
            why = until(
                lambda: (found := running.ask("why", job))["limit"] == "in_doubt" and found,
                "the epoch waits for nothing else",
            )
            shown = running.ask("epoch", "show", "--epoch", "0", "--job", job)
            [doubt] = shown["in_doubt"]
            assert shown["state"] == "running" and 0 < shown["decides_in_ms"] <= 3_600_000
            assert doubt["rank"] == 0 and doubt["samples"] == shown["total"] - shown["delivered"]
            assert f"{doubt['samples']} of rank 0 for" in why["sentence"]
            assert f"`shardfeed rank gone {job} 0`" in why["sentence"]
            command = [BINARY, "wait", "epoch", "--job", job, "--epoch", "0", "--for", "1s", "--coordinator", running.address]
            late = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert late.returncode == 7 and f"samples in doubt: {doubt['samples']} of rank 0 for" in late.stderr
            assert not rest.done()
            gone = running.ask("rank", "gone", job, "0")
            assert gone["samples"] == doubt["samples"]
            rest.result()
        shown = running.ask("epoch", "show", "--epoch", "0", "--job", job)
        assert (shown["state"], shown["in_doubt"], shown["redelivered"]) == ("sealed", [], doubt["samples"])
        assert set(flat(got)) == large.ids


def test_a_state_replays_the_same_batches_of_every_rank(
    large: Dataset, where: dict[str, Any], workers: list[Server], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        ranks = start(stack, tmp_path, large, where, workers, 2)
        for each in ranks:
            each("take", 6)
        states = [each("state") for each in ranks]
        assert states[0]["cluster"] and states[0]["segments"] == states[1]["segments"]
        # Only samples that were granted by then are certain to repeat.
        first = [each("take", 3) for each in ranks]
    with ExitStack() as stack:
        where = where | {"run": "two"}
        ranks = start(stack, tmp_path, large, where, workers, 2)
        for each, state in zip(ranks, states, strict=True):
            each("load", state)
        assert [each("take", 3) for each in ranks] == first
        generations = {each("generation") for each in ranks}
        assert len(generations) == 1 and min(generations) > states[0]["generation"]


def test_four_then_three_then_six_ranks_give_everything_once(
    large: Dataset, where: dict[str, Any], workers: list[Server], tmp_path: Path
) -> None:
    got: list[Ids] = []
    states: list[dict[str, Any]] = []
    for number, (world_size, batch_size) in enumerate([(4, 3), (3, 4), (6, 2)]):
        with ExitStack() as stack:
            ranks = start(
                stack, tmp_path, large, where | {"run": f"run-{number}"}, workers, world_size, batch_size=batch_size
            )
            if states:
                for each in ranks:
                    each("load", states)
            if number < 2:
                got += [each("take", 7) for each in ranks]
                states = [each("state") for each in ranks]
            else:
                got += epoch(ranks)
    assert flat(got) == once(large)


def test_a_state_of_another_cluster_is_refused(
    large: Dataset, where: dict[str, Any], workers: list[Server]
) -> None:
    options = {"worker": workers[0].option("--socket"), "mode": "dynamic", **where}
    with loader(large, **options) as each:
        next(iter(each))
        state = each.state_dict()
        foreign = state | {"cluster": "somewhere-else"}
        with pytest.raises(sf.StateError, match="cluster somewhere-else"):
            each.load_state_dict(foreign)


def test_nothing_is_delivered_without_the_coordinators_word(
    running: Cluster, large: Dataset, where: dict[str, Any], workers: list[Server], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        [each] = start(stack, tmp_path, large, where, workers[:1], 1)
        got: Ids = each("take", 3)
        running.coordinator.signal(signal.SIGSTOP)
        try:
            # Until then granted samples are delivered; then delivery stops, and the reason is
            # logged.
            log = workers[0].log
            begun = log.stat().st_size

            def waits() -> bool:
                each.begin("next")
                try:
                    each.wait_s = 3.0
                    got.append(each.answer())
                except AssertionError:
                    return True
                return False

            until(waits, "delivery stops")

            def says_why() -> bool:
                said = log.read_bytes()[begun:] + each.log.read_bytes()
                return b"does not answer" in said or b"has not confirmed the lease" in said

            until(says_why, "the log says why")
        finally:
            running.coordinator.resume()
            each.wait_s = 60.0
        batch = each.answer()
        while batch is not None:
            got.append(batch)
            batch = each("next")
        assert flat([got]) == once(large)


def test_an_older_loader_of_a_rank_is_fenced(
    running: Cluster, dataset: Dataset, where: dict[str, Any], workers: list[Server]
) -> None:
    options: dict[str, Any] = {**where, "mode": "dynamic", "interleave": 2, "worker": workers[0].option("--socket")}
    with loader(dataset, **options) as first:
        iterator = iter(first)
        got = [ids(next(iterator)) for _ in range(3)]
        state = first.state_dict()
        # The previous one may have consumed more than it reported: the state begins a new
        # generation.
        until(lambda: cursors(running, where["job"]) == {0: (0, 3)}, "it is known")
        with loader(dataset, **options, resume=state) as second:
            got.append(ids(next(iter(second))))
            for _ in range(3):
                # Its worker raises one, the coordinator the other.
                with pytest.raises((sf.FencedError, sf.SupersededError), match="started again"):
                    next(iterator)
            got += [ids(batch) for batch in second]
    assert flat([got]) == once(dataset)


def test_two_jobs_in_one_process_do_not_mix(
    large: Dataset, where: dict[str, Any], workers: list[Server]
) -> None:
    options = {"worker": workers[0].option("--socket"), "tail": "uneven", **where}
    with (
        loader(large, mode="dynamic", **options) as first,
        loader(large, **(options | {"job": where["job"] + "-planned"})) as second,
    ):
        both: list[list[int]] = [[], []]
        dynamic, planned = iter(first), iter(second)
        for one, other in zip_longest(dynamic, planned):
            both[0] += [] if one is None else ids(one)
            both[1] += [] if other is None else ids(other)
        assert Counter(both[0]) == once(large)
        assert Counter(both[1]) == once(large)


def test_a_mode_is_part_of_the_job(
    large: Dataset, where: dict[str, Any], workers: list[Server], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        start(stack, tmp_path, large, where, workers, 1)
        other = stack.enter_context(
            spawned(tmp_path / "other", large, where, workers[1], mode="deterministic")
        )
        with pytest.raises(Raised, match="mode is dynamic there and deterministic here"):
            other("open")
