"""Ranks that continue without lost ones: a live reshard, and a restart with more ranks."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import FEATURES, Dataset, loader, make_dataset
from recount import read_ledger, recount
from trainer import Raised, Trainer, served

import shardfeed as sf
from shardfeed.testing import Cluster, until

TTL = "session-ttl-ms = 1500\nheartbeat-ms = 300\n"
#: Samples of a global batch: 4 ranks of 6, 3 of 8, 6 of 4.
GLOBAL = 24


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("reshard"), workers=1, config=TTL) as cluster:
        yield cluster


@pytest.fixture
def large(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "large", [113, 0, 240, 7, 121, 1, 130, 88])


def embedded(dataset: Dataset, **options: Any) -> list[list[int]]:
    """Returns the global batches of an undisturbed run."""
    with loader(dataset, batch_size=GLOBAL, lanes=4, **options) as each:
        return [[int(number) for number in batch["id"]] for batch in each]


def spawned(
    running: Cluster, dataset: Dataset, folder: Path, job: str, rank: int, size: int, **more: Any
) -> Trainer:
    env = running.variables("first") | {"SHARDFEED_LEDGER": str(folder / "ledger")}
    options: dict[str, Any] = {
        "files": dataset.pattern, "batch_size": GLOBAL // size, "shuffle_window": 16,
        "interleave": 3, "seed": 7, "job": job, "rank": rank, "world_size": size, "lanes": 4,
    }  # fmt: skip
    made = Trainer(folder / f"rank-{rank}-of-{size}.log", env, **(options | more))
    made("open")
    return made


def step_of_all(ranks: list[Trainer]) -> list[int]:
    for each in ranks:
        each.begin("next")
    return [number for each in ranks for number in each.answer()]


@pytest.mark.parametrize("worker_too", [False, True])
def test_three_of_four_ranks_deal_the_rest_anew_when_one_is_killed(
    running: Cluster, large: Dataset, tmp_path: Path, worker_too: bool
) -> None:
    whole = embedded(large)
    job = f"job-{uuid.uuid4().hex[:8]}"
    more = {} if worker_too is False else {"fallback": True}
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(spawned(running, large, tmp_path, job, rank, 4, **more))
            for rank in range(4)
        ]
        for step in range(5):
            assert step_of_all(ranks) == whole[step]
        # The last rank gets one step more than the others; another rank dies.
        ahead = ranks[3]("next")
        assert ahead == whole[5][18:]
        ranks[1].kill()
        left = [ranks[0], ranks[2], ranks[3]]
        if worker_too:
            running.workers[0].kill()
            running.workers[0].start()
        common = min(each("step") for each in left)
        assert common == 5
        with pytest.raises(Raised, match="ConfigError.*step=6.*step 5 of epoch 0"):
            left[0]("reshard", 6, 3, None)
        with pytest.raises(Raised, match="ConfigError.*this is rank 3.*rank="):
            left[2]("reshard", common, 3, None)
        with pytest.raises(Raised, match="ConfigError.*global batch of 24.*4 or 6"):
            left[0]("reshard", common, 5, None)
        for rank, each in enumerate(left):
            each("reshard", common, 3, rank)
        got = [step_of_all(left) for _ in range(6)]
        assert got == whole[5:11]
        assert {each("generation") for each in left} == {1}
        # Returning to an earlier step begins another generation, which delivers from there again.
        for each in left:
            each("reshard", 8, 3, None)
        assert [step_of_all(left) for _ in range(2)] == whole[8:10]
        state = left[0]("state")
    # Six ranks resume from the state.
    with ExitStack() as stack:
        env = {"resume": state, "run": "second"}
        six = [
            stack.enter_context(spawned(running, large, tmp_path, job, rank, 6, **env))
            for rank in range(6)
        ]
        rest = [step_of_all(six) for _ in range(len(whole) - 10)]
        assert rest == whole[10:]
    generations, steps = read_ledger(tmp_path / "ledger")
    assert [(s.step, s.world_size, s.batch_size) for s in generations] == [
        (0, 4, 6), (5, 3, 8), (8, 3, 8), (10, 6, 4),
    ]  # fmt: skip
    shards = sorted(path.name for path in large.folder.iterdir())
    for number, expected in enumerate(whole):
        rows = steps[0, number].global_batch()
        assert [shards.index(shard) * 1000 + ordinal for shard, ordinal, _ in rows] == expected
    counted = recount(tmp_path / "ledger", large.folder, 1, "drop")
    assert counted.is_ok(), counted


@pytest.mark.parametrize("new_first", [False, True])
def test_a_new_rank_takes_the_place_of_a_killed_one(
    running: Cluster, large: Dataset, tmp_path: Path, new_first: bool
) -> None:
    """A reshard to as many ranks as before; all but one of the survivors are at its step."""
    whole = embedded(large)
    job = f"job-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(spawned(running, large, tmp_path, job, rank, 4)) for rank in range(4)
        ]
        for step in range(5):
            assert step_of_all(ranks) == whole[step]
        assert ranks[3]("next") == whole[5][18:]
        ranks[1].kill()
        until(lambda: served(running, job)[1]["state"] == "ended", "the coordinator knows that its trainer is gone")

        def start_new() -> None:
            ranks[1] = stack.enter_context(spawned(running, large, tmp_path, job, 1, 4, resume=state))
            ranks[1].begin("next")

        for rank in (0, 2, 3):
            ranks[rank]("reshard", 5, 4, None)
        state = ranks[0]("state")
        if new_first:
            start_new()
            assert ranks[1].answer() == whole[5][6:12]
        for rank in (0, 2, 3):
            ranks[rank].begin("next")
        if not new_first:
            start_new()
        for rank in (0, 2, 3) if new_first else range(4):
            assert ranks[rank].answer() == whole[5][6 * rank : 6 * rank + 6]
        assert [step_of_all(ranks) for _ in range(6)] == whole[6:12]
        first = 2 if new_first else 1
        assert {each("generation") for each in ranks} == {first}
        # All ranks begin again at their own step, without one that is new.
        for each in ranks:
            each("reshard", 12, 4, None)
        assert [step_of_all(ranks) for _ in whole[12:]] == whole[12:]
        assert {each("generation") for each in ranks} == {first + 1}
    counted = recount(tmp_path / "ledger", large.folder, 1, "drop")
    assert counted.is_ok(), counted


def test_a_rank_that_was_not_called_is_superseded(
    running: Cluster, large: Dataset, tmp_path: Path
) -> None:
    job = f"job-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(spawned(running, large, tmp_path, job, rank, 4)) for rank in range(4)
        ]
        for _ in range(3):
            step_of_all(ranks)
        for rank in range(3):
            ranks[rank]("reshard", 3, 3, rank)
            ranks[rank]("next")

        def refused() -> bool:
            try:
                ranks[3]("next")
            except Raised as raised:
                assert raised.kind == "SupersededError", raised
                return True
            return False

        until(refused, "the rank that was left out is notified")
        job_now = running.ask("job", "show", job)["generation"]
        assert (job_now["world_size"], job_now["global_batch"], job_now["step"]) == (3, GLOBAL, 3)


def test_embedded_ranks_deal_anew_too(large: Dataset) -> None:
    whole = embedded(large)
    options = {"batch_size": 6, "world_size": 4, "lanes": 4}
    with ExitStack() as stack:
        ranks = [stack.enter_context(loader(large, rank=r, **options)) for r in range(4)]
        for each in ranks:
            for _ in zip(range(4), each, strict=False):
                pass
        left = [ranks[0], ranks[3]]
        for rank, each in enumerate(left):
            each.reshard(2, 2, rank)
            assert (each.rank, each.world_size, each.batch_size) == (rank, 2, 12)
            assert (each.epoch, each.step, each.generation) == (0, 2, 1)
        got = [[int(n) for each in left for n in next(iter(each))["id"]] for _ in range(5)]
        assert got == whole[2:7]
        with pytest.raises(sf.ConfigError, match="step=8.*is at step 7 of epoch 0"):
            left[0].reshard(8, 2)
        with pytest.raises(sf.ConfigError, match="world_size must be"):
            left[0].reshard(7, 0)


def test_uneven_ranks_are_sent_to_their_states(dataset: Dataset) -> None:
    with (
        loader(dataset, tail="uneven", batch_size=6) as each,
        pytest.raises(sf.ConfigError, match="uneven.*resume="),
    ):
        each.reshard(0, 1)


def test_the_ledger_of_a_rank_that_takes_another_place(
    large: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "own"))
    assert os.environ["SHARDFEED_LEDGER"]
    with loader(large, batch_size=6, rank=3, world_size=4, features=FEATURES) as each:
        next(iter(each))
        each.reshard(1, 3, 0)
        next(iter(each))
    first = {p.name: p.read_text().splitlines()[0] for p in (tmp_path / "own").iterdir()}
    assert first == {"rank-3": "start 0 0 0 4 6", "rank-0": "start 1 0 1 3 8"}
