"""Processes with the same batches in a cluster: one job each, and the same batches after any
failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset, ids, loader
from trainer import Trainer, take

import shardfeed as sf
from shardfeed.testing import Cluster


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as cluster:
        yield cluster


def spawned(
    stack: ExitStack, running: Cluster, log: Path, dataset: Dataset, processes: int, **options: Any
) -> list[Trainer]:
    """Starts all processes of a launcher, two per data-parallel rank; each has opened its
    loader."""
    made = []
    order = {"batch_size": 8 // processes, "shuffle_window": 16, "interleave": 3, "seed": 7, "lanes": 4}
    for process in range(processes):
        env = {"SHARDFEED_COORDINATOR": running.address, "SHARDFEED_WORKER": str(running.socket()),
               "RANK": str(process), "WORLD_SIZE": str(processes)}  # fmt: skip
        replica = [process % 2, 2]
        made.append(
            stack.enter_context(Trainer(log, env, files=dataset.pattern, replica=replica, **order | options))
        )
    for each in made:
        each.begin("open")
    for each in made:
        each.answer()
    return made


def test_replicas_get_the_same_batches_through_faults_and_restarts(
    running: Cluster, dataset: Dataset, tmp_path: Path
) -> None:
    log = tmp_path / "trainer.log"
    whole = take(loader(dataset, lanes=4), 40)
    with ExitStack() as stack:
        four = spawned(stack, running, log, dataset, 4, job="tensor", run="first")
        assert [each("job") for each in four] == ["tensor", "tensor.replica-1"] * 2
        got = [each("take", 3) for each in four]
        running.workers[0].kill()
        got = [before + each("take", 4) for before, each in zip(got, four, strict=True)]
        assert got[0] == got[1] and got[2] == got[3]
        assert [sum(steps, []) for steps in zip(got[0], got[2], strict=True)] == whole[:7]
        states = [each("state") for each in four]
        assert all(state == states[0] for state in states)
    running.workers[0].start()
    # All of them resume from the saved state, at another number of ranks.
    with ExitStack() as stack:
        two = spawned(stack, running, log, dataset, 2, job="tensor", run="second", resume=states[0])
        assert [each("take", 30) for each in two] == [whole[7:37]] * 2
    jobs = [job["name"] for job in running.ask("job", "list")["jobs"]]
    assert sorted(jobs) == ["tensor", "tensor.replica-1"]


def test_replicas_without_a_name_have_that_of_their_run(
    running: Cluster, dataset: Dataset, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        four = spawned(stack, running, tmp_path / "trainer.log", dataset, 4, run="launch")
        names = [each("job") for each in four]
        assert names[:2] == names[2:] and names[0].startswith("launch-")
        assert names[1] == names[0].replace("launch-", "launch.replica-1-")
        got = [each("take", 5) for each in four]
        assert got[0] == got[1] and got[2] == got[3]


def test_what_replicas_in_a_cluster_cannot_have(running: Cluster, dataset: Dataset) -> None:
    where: dict[str, Any] = {"coordinator": running.address, "worker": running.socket(), "job": "refused"}
    where |= {"rank": 0, "world_size": 1, "replica": (1, 2)}
    with pytest.raises(sf.ConfigError, match='with mode="dynamic" .* replicas would get different batches'):
        loader(dataset, mode="dynamic", **where)
    with pytest.raises(sf.ConfigError, match='resume="latest" is the position of a job that the cluster knows'):
        loader(dataset, resume="latest", **where)
    assert running.ask("job", "list")["jobs"] == []
    with loader(dataset, **where) as each:
        assert each.job == "refused.replica-1"
        assert take(each, 2) == [ids(batch) for _, batch in zip(range(2), loader(dataset), strict=False)]
