"""Rules of jobs, states and generations, with a coordinator and a worker as processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import recount
from conftest import Dataset, embedded, ids, loader, valid_ids
from trainer import Raised, Trainer, cursors, served, spawned, take, written

import shardfeed as sf
from shardfeed.testing import Cluster, Server, until

TTL = "session-ttl-ms = 1500\nheartbeat-ms = 100\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("rules"), config=TTL) as cluster:
        yield cluster


@pytest.fixture
def where(running: Cluster) -> dict[str, Any]:
    """Options of a loader in the cluster, with a unique job name per test."""
    return running.loader_options()


@pytest.fixture
def worker(running: Cluster) -> Server:
    return running.workers[0]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "trainer.log"


def state_at(dataset: Dataset, step: int, **options: Any) -> dict[str, Any]:
    """Returns a state that was saved outside of the cluster."""
    with loader(dataset, **options) as each:
        take(each, step)
        return each.state_dict()


def superseded(each: sf.Loader, most: int = 20_000) -> sf.SupersededError:
    """Iterates until the loader raises that it was superseded."""
    with pytest.raises(sf.SupersededError) as caught:
        for _ in range(most):
            next(iter(each), None)
    return caught.value


def test_without_a_token_a_loader_begins_at_the_beginning_whatever_the_coordinator_knows(
    running: Cluster, dataset: Dataset, where: dict[str, Any]
) -> None:
    whole = embedded(dataset)
    with loader(dataset, **where) as each:
        assert take(each, 5) == whole[:5]
    until(lambda: cursors(running, where["job"]) == {0: (0, 5)}, "the cursor is known")
    for run, generation in (("first", 1), ("second", 2)):
        with loader(dataset, **(where | {"run": run})) as each:
            assert take(each, 2) == whole[:2] and each.generation == generation


def test_the_job_of_another_identity_is_refused_with_each_difference_and_both_values(
    dataset: Dataset, where: dict[str, Any]
) -> None:
    with loader(dataset, **where) as each:
        take(each, 1)
    other = {"seed": 8, "shuffle_window": 32, "interleave": 5, "block_length": 2, "lanes": 2}
    with pytest.raises(sf.JobIdentityError) as caught:
        loader(dataset, **where, **other, tail="pad", features=None)
    message = str(caught.value)
    for field, there, here in [
        ("seed", "7", "8"), ("window", "16", "32"), ("interleave", "3", "5"),
        ("block_length", "1", "2"), ("lanes", "1", "2"), ("tail", "drop", "pad"),
    ]:  # fmt: skip
        assert f"{field} is {there} there and {here} here" in message
    assert "feature `image` is " in message and where["job"] in message
    assert "content" not in message


def test_the_job_of_other_files_is_refused(
    dataset: Dataset, where: dict[str, Any], tmp_path: Path
) -> None:
    with loader(dataset, **where) as each:
        take(each, 1)
    with pytest.raises(sf.JobIdentityError, match="content.* is [0-9a-f]+ there and [0-9a-f]+ here"):
        sf.Loader(str(dataset.file(2)), batch_size=4, **where)


def test_numbers_that_are_not_the_jobs_may_change_from_run_to_run(
    dataset: Dataset, where: dict[str, Any]
) -> None:
    for number, options in enumerate([{}, {"batch_size": 8}, {"prefetch": 1}, {"limit": 40}]):
        with loader(dataset, **(where | {"run": f"run-{number}"}), **options) as each:
            assert take(each, 2) == embedded(dataset, **options)[:2]


def test_ranks_of_one_run_from_different_states_conflict_and_both_steps_are_named(
    dataset: Dataset, where: dict[str, Any]
) -> None:
    two = {"world_size": 2, "rank": 0}
    states = [state_at(dataset, step, **two) for step in (3, 5)]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                loader(dataset, **where, world_size=2, rank=rank, resume=states[rank])
            )
            for rank in range(2)
        ]
        take(ranks[0], 1)
        with pytest.raises(sf.ConflictError) as caught:
            take(ranks[1], 1)
        for part in ("rank 1", "epoch 0 step 5", "rank 0", "epoch 0 step 3", "`first`"):
            assert part in str(caught.value)
        # The rejected rank loads the others' state; no rank was disturbed.
        ranks[1].load_state_dict(states[0])
        expected = [embedded(dataset, world_size=2, rank=rank) for rank in range(2)]
        assert take(ranks[1], 2) == expected[1][3:5]
        assert take(ranks[0], 2) == expected[0][4:6]
        assert ranks[0].generation == ranks[1].generation == 1


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"batch_size": 6}, "global batch=12.*global batch=8"),
        ({"world_size": 4, "batch_size": 2}, "world_size=4.*world_size=2"),
        ({"limit": 64}, "limit=64.*limit=none"),
    ],
)
def test_ranks_of_one_run_with_different_numbers_conflict(
    dataset: Dataset, where: dict[str, Any], other: dict[str, int], said: str
) -> None:
    two = {"world_size": 2, "rank": 1, "lanes": 2}
    with loader(dataset, **where, **(two | {"rank": 0})) as first:
        take(first, 1)
        with (
            loader(dataset, **where, **(two | other)) as second,
            pytest.raises(sf.ConflictError, match=said),
        ):
            take(second, 1)
        assert take(first, 3) == embedded(dataset, **(two | {"rank": 0}))[1:4]


def test_a_rank_that_rejoins_elsewhere_supersedes_the_others_until_they_load_its_state(
    dataset: Dataset, where: dict[str, Any], log: Path
) -> None:
    expected = [embedded(dataset, world_size=2, rank=rank) for rank in range(2)]
    first = loader(dataset, **where, world_size=2, rank=0)
    with spawned(log, dataset, where, world_size=2, rank=1) as second:
        second("open")
        take(first, 2)
        second("take", 2)
        state = first.state_dict()
        assert state == second("state")
        assert take(first, 3) == expected[0][2:5]
        assert second("take", 3) == expected[1][2:5]
        second.kill()
    with spawned(log, dataset, where, world_size=2, rank=1, resume=state) as second:
        second("open")
        assert second("next") == expected[1][2] and second("generation") == 1
        error = superseded(first)
        for part in ("generation 0", "rank 1", "epoch 0 step 2", "generation 1"):
            assert part in str(error)
        # A retry raises the same error; only loading the state helps.
        superseded(first, 1)
        first.load_state_dict(state)
        assert take(first, 4) == expected[0][2:6] and first.generation == 1
        assert second("take", 3) == expected[1][3:6]


def test_a_rank_that_was_closed_comes_back_at_its_live_cursor_and_supersedes_nobody(
    running: Cluster, dataset: Dataset, where: dict[str, Any], log: Path
) -> None:
    expected = [embedded(dataset, world_size=2, rank=rank) for rank in range(2)]
    with loader(dataset, **where, world_size=2, rank=0) as first:
        take(first, 3)
        with spawned(log, dataset, where, world_size=2, rank=1) as second:
            second("open")
            second("take", 3)
            state = second("state")
            second("close")

        def has_ended() -> bool:
            rank = served(running, where["job"])[1]
            return rank["state"] != "served" and (rank["epoch"], rank["step"]) == (0, 3)

        until(has_ended, "rank 1 has left")
        with spawned(log, dataset, where, world_size=2, rank=1, resume=state) as second:
            second("open")
            assert second("take", 2) == expected[1][3:5] and second("generation") == 0
            until(lambda: cursors(running, where["job"])[1] == (0, 5), "a heartbeat passed")
        assert take(first, 5) == expected[0][3:8] and first.generation == 0


def test_a_rank_that_is_closed_and_made_again_at_once_supersedes_nobody(
    running: Cluster, dataset: Dataset, where: dict[str, Any]
) -> None:
    two = {"world_size": 2, "batch_size": 1}
    expected = [embedded(dataset, **two, rank=rank) for rank in range(2)]
    with loader(dataset, **where, **two, rank=0) as first:
        take(first, 1)
        state = None
        for step in range(40):
            with loader(dataset, **where, **two, rank=1, resume=state) as second:
                assert take(second, 1) == [expected[1][step]]
                assert second.generation == 0, f"after {step} times"
                state = second.state_dict()
            # One that never starts has the state that it resumed from.
            with loader(dataset, **where, **two, rank=1, resume=state) as idle:
                assert idle.state_dict() == state
                state = idle.state_dict()
        assert take(first, 3) == expected[0][1:4]


def test_a_late_rank_of_an_old_run_is_superseded(dataset: Dataset, where: dict[str, Any]) -> None:
    two = {"world_size": 2}
    with ExitStack() as stack:
        for run in ("first", "second"):
            each = loader(dataset, **(where | {"run": run}), **two, rank=0)
            take(stack.enter_context(each), 1)
        late = stack.enter_context(loader(dataset, **where, **two, rank=1))
        assert "generation 1" in str(superseded(late, 1))
        # The new run is not disturbed by it.
        expected = embedded(dataset, **two, rank=0)
        assert take(each, 3) == expected[1:4]


def test_an_older_loader_of_a_rank_gives_nothing_once_another_one_has_started(
    running: Cluster, dataset: Dataset, where: dict[str, Any]
) -> None:
    """Also for batches in hand, with both loaders on one worker."""
    expected = embedded(dataset, batch_size=1)
    state = None
    for round_ in range(20):
        with loader(dataset, **where, batch_size=1, prefetch=8, resume=state) as first:
            assert take(first, 2) == expected[4 * round_ : 4 * round_ + 2]
            iterator, state = iter(first), first.state_dict()
            # A start at another position than the rank's known one begins a new generation.
            until(lambda: cursors(running, where["job"]) == {0: (0, 4 * round_ + 2)}, "it is known")  # noqa: B023
            with loader(dataset, **where, batch_size=1, resume=state) as second:
                assert take(second, 2) == expected[4 * round_ + 2 : 4 * round_ + 4]
                # A retry raises the same error.
                for _ in range(3):
                    with pytest.raises(sf.FencedError):
                        next(iterator)
                assert first.state_dict() == state
                state = second.state_dict()


def test_an_older_loader_of_a_rank_gives_nothing_while_no_coordinator_answers(
    dataset: Dataset, tmp_path: Path
) -> None:
    """Without an answer, a worker lets a loader continue, but not one that it has replaced."""
    expected = embedded(dataset, batch_size=1)
    with Cluster(tmp_path / "own", config=TTL) as own:
        where = own.loader_options()
        with loader(dataset, **where, batch_size=1, prefetch=8) as first:
            assert take(first, 2) == expected[:2]
            iterator, state = iter(first), first.state_dict()
            until(lambda: cursors(own, where["job"]) == {0: (0, 2)}, "it is known")
            with loader(dataset, **where, batch_size=1, resume=state) as second:
                assert take(second, 2) == expected[2:4]
                own.coordinator.stop()
                for _ in range(3):
                    with pytest.raises(sf.FencedError):
                        next(iterator)
                assert first.state_dict() == state
                first.set_epoch(0)
                with pytest.raises(sf.FencedError):
                    next(iter(first))
                assert take(second, 20) == expected[4:24]
                own.coordinator.resume()


def test_a_late_process_of_an_earlier_run_does_not_end_the_rank_of_the_present_one(
    running: Cluster, dataset: Dataset, where: dict[str, Any]
) -> None:
    """Both loaders are of rank 0 and on one worker."""
    expected = embedded(dataset)
    with loader(dataset, **where) as earlier:
        assert take(earlier, 2) == expected[:2]
    with loader(dataset, **(where | {"run": "second"})) as present:
        assert take(present, 3) == expected[:3]
        with loader(dataset, **where) as late, pytest.raises(sf.SupersededError):
            next(iter(late))
        assert take(present, 1) == expected[3:4]
        until(lambda: cursors(running, where["job"]) == {0: (0, 4)}, "its lease is valid, so its step is known")
        assert take(present, len(expected) - 4) == expected[4:]
        assert present.generation == 1


def test_of_loaders_of_a_rank_that_start_at_once_exactly_one_remains(
    dataset: Dataset, where: dict[str, Any]
) -> None:
    """They are on one worker, which gets the answers to their starts in any order."""
    expected = embedded(dataset)
    state = state_at(dataset, 3)

    def tried(each: sf.Loader) -> list[list[int]]:
        try:
            return take(each, 1)
        except (sf.FencedError, sf.SupersededError):
            return []

    for _ in range(8):
        with ExitStack() as stack, ThreadPoolExecutor(5) as pool:
            loaders = [stack.enter_context(loader(dataset, **where, resume=state)) for _ in range(5)]
            # All that receive a batch before the last start receive the same one.
            assert all(got in ([], expected[3:4]) for got in pool.map(tried, loaders))
            until(lambda: [tried(each) for each in loaders].count([]) == 4, "one remains")  # noqa: B023
            assert sorted(map(tried, loaders))[:4] == [[]] * 4


def test_resume_latest_begins_where_all_ranks_stand(
    running: Cluster, dataset: Dataset, where: dict[str, Any]
) -> None:
    expected = [embedded(dataset, world_size=2, rank=rank) for rank in range(2)]
    for run, reached, begins in (("first", (6, 4), 0), ("second", (1, 3), 4), ("third", (1, 1), 5)):
        with ExitStack() as stack:
            options = where | {"run": run, "resume": "latest"}
            ranks = [
                stack.enter_context(loader(dataset, **options, world_size=2, rank=rank))
                for rank in range(2)
            ]
            for rank, each in enumerate(ranks):
                assert each.step == begins
                assert take(each, reached[rank]) == expected[rank][begins:][: reached[rank]]
            slowest = (0, begins + min(reached))
            until(lambda: written(running, where["job"]) == slowest, "it is written down")  # noqa: B023


def test_ranks_without_a_job_or_a_run_are_refused(dataset: Dataset, where: dict[str, Any]) -> None:
    unnamed = where | {"job": None, "run": None}
    with pytest.raises(sf.ConfigError, match=r"pass job=.*run=") as caught:
        loader(dataset, **unnamed, world_size=2, rank=0)
    assert "  " not in str(caught.value)


def test_one_rank_needs_no_names(dataset: Dataset, where: dict[str, Any]) -> None:
    unnamed = where | {"job": None, "run": None}
    whole = embedded(dataset)
    with loader(dataset, **unnamed) as first, loader(dataset, **unnamed) as second:
        assert first.job != second.job
        assert take(first, 3) == take(second, 3) == whole[:3]
        state = first.state_dict()
    with loader(dataset, **unnamed, resume=state) as again:
        assert take(again, 3) == whole[3:6] and again.generation == 1


@pytest.mark.parametrize(
    ("env", "run"),
    [
        (
            {"RANK": "0", "WORLD_SIZE": "2",
             "TORCHELASTIC_RUN_ID": "elastic-9", "TORCHELASTIC_RESTART_COUNT": "3"},
            "elastic-9-3",
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "4711",
             "SLURM_STEP_ID": "2", "SLURM_RESTART_COUNT": "1"},
            "4711-2-1",
        ),
    ],
)  # fmt: skip
def test_the_launchers_run_is_the_run(
    running: Cluster, dataset: Dataset, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
    env: dict[str, str], run: str,
) -> None:  # fmt: skip
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with loader(dataset, **(where | {"run": None, "job": None})) as each:
        take(each, 1)
        assert (each.rank, each.world_size) == (0, 2)
        assert each.job.startswith(f"{run}-")
        assert running.ask("job", "show", each.job)["generation"]["run"] == run


def test_a_restart_of_the_launcher_is_another_run(
    running: Cluster, dataset: Dataset, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "elastic")
    options = where | {"run": None, "world_size": 2}
    with ExitStack() as stack:
        for count in range(2):
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(count))
            for rank in range(2):
                each = stack.enter_context(loader(dataset, **options, rank=rank))
                take(each, 2)
                assert each.generation == count
    runs = [each["run"] for each in running.ask("job", "show", where["job"])["history"]]
    assert sorted(runs) == ["elastic-0", "elastic-1"]


def test_ranks_that_go_back_one_after_the_other_supersede_nobody(
    running: Cluster, dataset: Dataset, where: dict[str, Any]
) -> None:
    expected = [embedded(dataset, world_size=2, rank=rank) for rank in range(2)]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(loader(dataset, **where, world_size=2, rank=rank))
            for rank in range(2)
        ]
        for _ in range(3):
            for rank, each in enumerate(ranks):
                each.set_epoch(0)
                assert [ids(batch) for batch in each] == expected[rank]
                # The coordinator has enough time for a decision between the ranks.
                until(lambda: cursors(running, where["job"]).get(rank) == (1, 0), "is reported")  # noqa: B023
        assert ranks[0].generation == ranks[1].generation == 2


def test_a_rank_that_is_behind_ends_its_epoch_although_another_went_back(
    running: Cluster, dataset: Dataset, where: dict[str, Any]
) -> None:
    expected = [embedded(dataset, world_size=2, rank=rank) for rank in range(2)]
    with ExitStack() as stack:
        ahead, behind = (
            stack.enter_context(loader(dataset, **where, world_size=2, rank=rank))
            for rank in range(2)
        )
        assert [ids(batch) for batch in ahead] == expected[0]
        assert take(behind, 9) == expected[1][:9]
        ahead.set_epoch(0)
        assert take(ahead, 4) == expected[0][:4]

        def moved() -> bool:
            job = running.ask("job", "show", where["job"])
            return bool(job["generation"]["generation"] == 1)

        until(moved, "the new generation is known")
        assert [ids(batch) for batch in behind] == expected[1][9:]
        behind.set_epoch(0)
        assert take(behind, 4) == expected[1][:4]
        assert take(ahead, 2) == expected[0][4:6]


def test_another_world_size_from_a_state_in_mid_epoch_gives_the_same_global_batches(
    dataset: Dataset, where: dict[str, Any], worker: Server
) -> None:
    whole = {"batch_size": 12, "lanes": 4}
    expected = embedded(dataset, **whole)
    got: list[list[int]] = []
    state: dict[str, Any] | None = None
    for run, (world_size, steps) in enumerate([(4, 3), (3, 4), (6, 99)]):
        with ExitStack() as stack:
            options = where | {"run": f"run-{run}", "batch_size": 12 // world_size, "lanes": 4}
            ranks = [
                stack.enter_context(
                    loader(dataset, **options, world_size=world_size, rank=rank, resume=state)
                )
                for rank in range(world_size)
            ]
            assert len({each.plan_digest for each in ranks}) == 1
            for _, batches in zip(range(steps), zip(*ranks, strict=True), strict=False):
                got.append([number for batch in batches for number in ids(batch)])
            states = [each.state_dict() for each in ranks]
            assert all(each == states[0] for each in states)
            state = json.loads(json.dumps(states[0]))
            assert {each.stats()["source"] for each in ranks} == {f"worker {worker.name}"}
    assert got == expected


def test_epochs_lengths_and_states_are_those_of_one_process(
    dataset: Dataset, where: dict[str, Any]
) -> None:
    def of(state: dict[str, Any]) -> dict[str, Any]:
        # A coordinator also counts branches.
        return {name: value for name, value in state.items() if name != "generation"}

    def story(**options: Any) -> list[Any]:
        said: list[Any] = []
        with loader(dataset, **options) as each:
            batches = [batch for _, batch in zip(range(7), each, strict=False)]
            said += [[ids(batch) for batch in batches], len(each), each.epoch, each.step]
            state = each.state_after(batches[3])
            said += [of(state), of(each.state_dict()), len(list(each)), each.epoch]
            each.set_epoch(3)
            said += [take(each, 2), each.epoch, each.step, each.dropped, each.plan_digest]
            each.set_epoch(1)
            said += [take(each, 2), of(each.state_dict())]
            each.load_state_dict(state)
            each.set_epoch(0)
            said += [each.step, len(each), take(each, 2), of(each.state_dict())]
            each.set_epoch(0)
            said += [each.step, take(each, 1)]
        return said

    assert story(**where) == story()


def test_training_and_validation_run_side_by_side_on_one_worker(
    running: Cluster, dataset: Dataset, where: dict[str, Any], tmp_path: Path
) -> None:
    validation = where | {"job": f"{where['job']}-validation"}
    options = {"tail": "pad", "shuffle": False}
    with loader(dataset, **where) as train, loader(dataset, **validation, **options) as check:
        whole, checked = embedded(dataset), embedded(dataset, **options)
        got: list[list[int]] = []
        for _ in range(3):
            got += take(train, 8)
            check.set_epoch(0)
            assert [ids(batch) for batch in check] == checked
        assert got == whole[:24]
        workers = running.ask("worker", "list")["workers"]
        jobs = {each["job"] for worker in workers for each in worker["serving"]}
        assert {train.job, check.job} <= jobs


def test_uneven_states_speak_for_their_ranks(dataset: Dataset, where: dict[str, Any]) -> None:
    uneven = {"tail": "uneven", "lanes": 3, "batch_size": 4}
    first: list[int] = []
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(loader(dataset, **where, **uneven, world_size=3, rank=rank))
            for rank in range(3)
        ]
        for rank, each in enumerate(ranks):
            first += [number for batch in take(each, 2 + 2 * rank) for number in batch]
        states = [each.state_dict() for each in ranks]
    again = where | {"run": "second"}
    two = uneven | {"batch_size": 6, "world_size": 2}
    for few in (states[:1], states[:2]):
        with pytest.raises(sf.StateError):
            loader(dataset, **again, **two, rank=0, resume=few)
    rest: list[int] = []
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(loader(dataset, **again, **two, rank=rank, resume=states))
            for rank in range(2)
        ]
        for each in ranks:
            rest += [number for batch in each for number in valid_ids(batch)]
    assert sorted(first + rest) == sorted(dataset.ids)


def test_an_uneven_rank_restarts_from_its_own_state(
    dataset: Dataset, where: dict[str, Any]
) -> None:
    uneven = {"tail": "uneven", "world_size": 2}
    expected = [embedded(dataset, **uneven, rank=rank) for rank in range(2)]
    states: list[dict[str, Any]] = []
    for rank, steps in enumerate((2, 5)):
        with loader(dataset, **where, **uneven, rank=rank) as each:
            assert take(each, steps) == expected[rank][:steps]
            states.append(each.state_dict())
    with ExitStack() as stack:
        options = where | {"run": "second"}
        for rank, steps in enumerate((2, 5)):
            each = loader(dataset, **options, **uneven, rank=rank, resume=states[rank])
            got = [ids(batch) for batch in stack.enter_context(each)]
            assert got == expected[rank][steps:]


class World:
    """Trainers in lockstep with ledgers, killed and restarted from a state."""

    def __init__(self, folder: Path, dataset: Dataset, where: dict[str, Any]) -> None:
        self.folder, self.dataset, self.where = folder, dataset, where
        self.trainers: list[Trainer] = []
        self.starts = 0

    def start(self, world_size: int, state: dict[str, Any] | None) -> None:
        self.end()
        self.starts += 1
        options = {"tail": "pad", "lanes": 2, "batch_size": 12 // world_size, "resume": state}
        where = self.where | {"run": f"start-{self.starts}"}
        for rank in range(world_size):
            log = self.folder / f"rank-{rank}.log"
            each = spawned(log, self.dataset, where, **options, world_size=world_size, rank=rank)
            self.trainers.append(each)
        self.all("open")

    def all(self, call: str, *arguments: Any) -> list[Any]:
        for each in self.trainers:
            each.begin(call, *arguments)
        return [each.answer() for each in self.trainers]

    def state(self) -> dict[str, Any]:
        states: list[dict[str, Any]] = self.all("state")
        assert all(state == states[0] for state in states)
        return states[0]

    def end(self) -> None:
        for each in self.trainers:
            each.kill()
        self.trainers = []


def test_every_record_counts_once_through_restarts_and_kills_of_worker_and_trainers(
    running: Cluster, dataset: Dataset, where: dict[str, Any], worker: Server, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    ledger = tmp_path / "ledger"
    monkeypatch.setenv("SHARDFEED_LEDGER", str(ledger))
    world = World(tmp_path, dataset, where)
    try:
        world.start(2, None)
        world.all("take", 3)
        state = world.state()
        world.all("take", 2)
        worker.kill()
        world.trainers[1].kill()
        world.trainers.pop()
        world.all("take", 3)
        world.start(2, state)
        worker.start()
        world.all("take", 2)
        worker.kill()
        world.all("take", 2)
        worker.start()
        state = world.state()
        world.all("take", 1)
        world.start(4, state)
        world.all("take", 5)
        state = world.state()
        world.all("next")
        # One returns elsewhere; the others receive an error and load the same state.
        world.trainers[2].kill()
        log = tmp_path / "rank-2.log"
        options = {"tail": "pad", "lanes": 2, "batch_size": 3, "resume": state}
        again = where | {"run": f"start-{world.starts}"}
        world.trainers[2] = spawned(log, dataset, again, **options, world_size=4, rank=2)
        world.trainers[2]("open")
        world.trainers[2]("next")
        for rank in (0, 1, 3):
            each = world.trainers[rank]
            with pytest.raises(Raised, match="SupersededError"):
                for _ in range(20_000):
                    each("next")
            each("load", state)
            each("next")
        while world.state()["epoch"] < 3:
            world.all("next")
    finally:
        world.end()
        if worker.process is None:
            worker.start()
    total = recount.recount(ledger, dataset.folder, 3, "pad")
    assert total.is_ok(), total
    assert [start.world_size for start in total.generations] == [2, 2, 4, 4]


