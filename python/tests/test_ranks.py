"""Ranks from arguments and launchers. Those of frameworks are in tests/frameworks."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import conftest
import pytest
from conftest import Dataset, ids, loader
from recount import parse

import shardfeed as sf
from shardfeed import ranks


@pytest.fixture(autouse=True)
def nothing_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_", "SHARDFEED_", "HOROVOD_", "OMPI_", "SLURM_", "PALS_", "PMI_", "PMIX_",
                 "TF_CONFIG", "MPI_", "ALPS_", "MV2_", "FLUX_", "JSM_", "NODE_RANK")  # fmt: skip
    for name in list(os.environ):
        if name.startswith(launchers):
            monkeypatch.delenv(name)


def tf_config(kind: str, index: int, **cluster: int) -> str:
    hosts = {name: [f"host-{i}:1" for i in range(count)] for name, count in cluster.items()}
    return json.dumps({"cluster": hosts, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1, "default")),
        ({"SHARDFEED_RANK": "1", "SHARDFEED_WORLD_SIZE": "3", "RANK": "2", "WORLD_SIZE": "4"}, (1, 3, "shardfeed")),
        ({"RANK": "2", "WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, (2, 4, "torchrun")),
        ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
         (2, 4, "Horovod")),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "1"}, (1, 2, "Open MPI")),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "PMI_RANK": "0", "PMI_SIZE": "8", "PMIX_RANK": "5"},
         (5, 8, "Slurm")),
        # A batch script, and a step of one task: neither is a rank of many.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1, "default")),
        ({"PALS_RANKID": "3", "PMI_SIZE": "4", "PMI_RANK": "3"}, (3, 4, "Cray PALS")),
        ({"ALPS_APP_PE": "3", "PMI_SIZE": "4"}, (3, 4, "Cray ALPS")),
        ({"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_SIZE": "8", "PMI_RANK": "2", "PMI_SIZE": "8"}, (2, 8, "MVAPICH2")),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, (3, 4, "PMI")),
        ({"TF_CONFIG": tf_config("worker", 1, worker=3)}, (1, 3, "TF_CONFIG (worker 1)")),
        ({"TF_CONFIG": tf_config("worker", 1, chief=1, worker=2, ps=4)}, (2, 3, "TF_CONFIG (worker 1)")),
        ({"TF_CONFIG": tf_config("chief", 0, chief=1, worker=2)}, (0, 3, "TF_CONFIG (chief 0)")),
        ({"TF_CONFIG": tf_config("evaluator", 0, chief=1, worker=2)}, (0, 1, "TF_CONFIG (evaluator)")),
        ({"TF_CONFIG": tf_config("worker", 0, worker=2), "RANK": "3", "WORLD_SIZE": "4"}, (3, 4, "torchrun")),
    ],
)  # fmt: skip
def test_the_first_that_knows_wins_and_is_logged(
    variables: dict[str, str], expected: tuple[int, int, str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO, "shardfeed"):
        found = ranks.find(None, None)
        assert ranks.find(6, 7) == (6, 7, "arguments")
    assert found[:2] == expected[:2] and found.source.startswith(expected[2])
    assert caplog.messages == [
        f"rank {found.rank} of {found.world_size}, from {found.source}", "rank 6 of 7, from arguments",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "replica", "said"),
    [
        ((None, None), (0, 1), "rank 3 of 4, from torchrun (RANK, WORLD_SIZE)"),
        ((None, None), (1, 2), "rank 1 of 2, from torchrun (RANK, WORLD_SIZE), as replica 1 of 2"),
        # Given numbers are data-parallel already.
        ((5, 6), (1, 2), "rank 5 of 6, from arguments"),
    ],
)
def test_what_is_logged_is_what_is_used(
    given: tuple[int | None, int | None], replica: tuple[int, int], said: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with caplog.at_level(logging.INFO, "shardfeed"):
        found = ranks.find(*given, replica)
    assert caplog.messages == [said]
    assert said == f"rank {found.rank} of {found.world_size}, from {found.source}"


class Distributed(types.ModuleType):
    """torch.distributed with the permitted calls. Everything else, such as a collective, fails the
    test."""

    def __init__(self, initialized: bool) -> None:
        super().__init__("torch.distributed")
        self.is_available = lambda: True
        self.is_initialized = lambda: initialized
        self.get_rank = lambda: 1 if initialized else self.never("get_rank")
        self.get_world_size = lambda: 2 if initialized else self.never("get_world_size")
        self.asked: list[str] = []

    def never(self, name: str) -> int:
        self.asked.append(name)
        raise AssertionError(f"torch.distributed.{name} was asked for")

    def __getattr__(self, name: str) -> Any:
        return self.never(name)


@pytest.mark.parametrize(
    ("initialized", "variables", "said"),
    [
        (True, {"RANK": "2", "WORLD_SIZE": "4"}, "rank 1 of 2, from torch.distributed"),
        (True, {"TF_CONFIG": tf_config("worker", 1, worker=3)}, "rank 1 of 2, from torch.distributed"),
        (True, {"SHARDFEED_RANK": "0", "SHARDFEED_WORLD_SIZE": "3"},
         "rank 0 of 3, from shardfeed (SHARDFEED_RANK, SHARDFEED_WORLD_SIZE)"),
        (False, {"RANK": "2", "WORLD_SIZE": "4"}, "rank 2 of 4, from torchrun (RANK, WORLD_SIZE)"),
    ],
)  # fmt: skip
def test_torch_is_asked_and_never_called_together(
    dataset: Dataset, initialized: bool, variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """For a whole epoch of a loader: there is no collective, for which ranks would have to wait."""
    fake = Distributed(initialized)
    monkeypatch.setitem(sys.modules, "torch.distributed", fake)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO, "shardfeed"), loader(dataset) as each:
        assert len(list(each)) == len(each)
    assert [message for message in caplog.messages if message.startswith("rank ")] == [said]
    assert fake.asked == []


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "1"}, "RANK is set and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set and RANK is not"),
        ({"PALS_RANKID": "1"}, "PALS_RANKID is set and PMI_SIZE is not"),
        ({"PMI_RANK": "1"}, "PMI_RANK is set and PMI_SIZE is not"),
        ({"ALPS_APP_PE": "0"}, "ALPS_APP_PE is set and PMI_SIZE is not"),
        ({"MV2_COMM_WORLD_RANK": "0"}, "MV2_COMM_WORLD_RANK is set and MV2_COMM_WORLD_SIZE is not"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK is set, but nothing says how many ranks"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, r"rank=4 is not in 0\.\.3 \(world_size=4, from torchrun"),
        ({"HOROVOD_RANK": "x", "HOROVOD_SIZE": "2"}, "HOROVOD_RANK='x' is not a number"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG is not valid for TensorFlow"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG is not valid for TensorFlow"),
        ({"TF_CONFIG": tf_config("ps", 0, worker=2, ps=1)}, "'ps', which reads nothing"),
        ({"TF_CONFIG": tf_config("worker", 2, worker=2)}, r"rank=2 is not in 0\.\.1"),
    ],
)
def test_half_of_it_or_nonsense_is_refused(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(sf.ConfigError, match=said):
        ranks.find(None, None)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "4"}, "JSM_NAMESPACE_RANK=0 look"),
        ({"FLUX_TASK_RANK": "3"}, "FLUX_TASK_RANK=3 look"),
        ({"LOCAL_RANK": "0"}, "LOCAL_RANK=0 look"),
        ({"MPI_LOCALRANKID": "0"}, "MPI_LOCALRANKID=0 look"),
        ({"X_WORLD_SIZE": "4"}, "X_WORLD_SIZE=4 look"),
        ({"X_RANK": "0", "X_WORLD_SIZE": "1"}, None),
        ({"FRANK": "0", "RANKING": "1", "X_RANK": "gold"}, None),
        # A batch script of Slurm.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, None),
        ({"X_RANK": "0", "SHARDFEED_RANK": "0", "SHARDFEED_WORLD_SIZE": "1"}, None),
    ],
)
def test_a_launcher_that_is_not_known_is_warned_of(
    dataset: Dataset, variables: dict[str, str], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if said is None:
        with warnings.catch_warnings(action="error"):
            loader(dataset).close()
        return
    with pytest.warns(UserWarning, match=f"as rank 0 of 1, but {said}.*pass rank= and world_size=") as caught:
        loader(dataset).close()
    assert caught[0].filename == conftest.__file__


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 0),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"PALS_LOCAL_SIZE": "4"}, 4),
        ({"MV2_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
        ({"MPI_LOCALNRANKS": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "1"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "7"}, 0),
    ],
)
def test_ranks_on_this_host(variables: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ranks.on_this_host() == expected


def test_replicas_get_the_same_batches(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    got = []
    for process in range(4):
        monkeypatch.setenv("RANK", str(process))
        monkeypatch.setenv("WORLD_SIZE", "4")
        each = loader(dataset, replica=(process % 2, 2))
        assert (each.rank, each.world_size) == (process // 2, 2)
        got.append([ids(batch) for batch in each])
    assert got[0] == got[1] and got[2] == got[3]
    expected = [[ids(batch) for batch in loader(dataset, rank=rank, world_size=2)] for rank in range(2)]
    assert [got[0], got[2]] == expected
    # Given numbers are data-parallel: groups may consist of any processes.
    strided = loader(dataset, rank=1, world_size=2, replica=(0, 2))
    assert [ids(batch) for batch in strided] == expected[1]


@pytest.mark.parametrize(
    ("replica", "said"),
    [
        ((0, 3), r"4 processes, from torchrun .*, are no groups of 3"),
        ((0, 2), r"process 1, from torchrun .*, is number 1 of its 2 consecutive ones; pass the data-parallel rank="),
        ((2, 2), r"the first number must be in 0\.\.1"),
        (1, r"replica=1 must be \(i, n\)"),
        (("a", 2), r"must be \(i, n\)"),
    ],
)
def test_replicas_that_do_not_fit(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, replica: Any, said: str
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(sf.ConfigError, match=said):
        loader(dataset, replica=replica)


def test_replicas_without_a_launcher(dataset: Dataset) -> None:
    with pytest.raises(sf.ConfigError, match="no launcher says which rank this is"):
        loader(dataset, replica=(0, 2))


def test_each_replica_has_a_ledger(dataset: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path))
    taken = []
    for process in range(4):
        monkeypatch.setenv("RANK", str(process))
        with loader(dataset, replica=(process % 2, 2)) as each:
            taken.append([number for _, batch in zip(range(3 + process), each) for number in ids(batch)])
    for replica, folder in enumerate((tmp_path, tmp_path / "replica-1")):
        assert sorted(path.name for path in folder.glob("rank-*")) == ["rank-0", "rank-1"]
        for rank in range(2):
            lines = [parse(line) for line in (folder / f"rank-{rank}").read_text().splitlines() if line[0].isdigit()]
            assert [int(line.shard[6:8]) * 1000 + line.record for line in lines] == taken[2 * rank + replica]


@pytest.mark.parametrize(
    ("variables", "several"),
    [
        ({}, False),
        ({"RANK": "1", "WORLD_SIZE": "4"}, False),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, False),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, True),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "0"}, False),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "0"}, True),
        # torchrun in each task of a step.
        ({"RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2"}, True),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2"}, False),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, True),
    ],
)
def test_several_hosts_that_each_count_are_warned_of_it(
    variables: dict[str, str], several: bool, dataset: Dataset, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, tmp_path: Path,
) -> None:  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def warned(then: Any, **options: Any) -> bool:
        caplog.clear()
        loader(dataset, then, cache_dir=tmp_path / "cache", **options).close()
        return any("each host reads all files to count" in message for message in caplog.messages)

    assert not warned(lambda source: source)
    assert warned(lambda source: source.filter("id % 2 == 0")) == several
    # What was counted before is not counted again.
    assert not warned(lambda source: source.filter("id % 2 == 0"))
    assert not warned(lambda source: dataclasses.replace(source, index=str(tmp_path)).filter("id % 3 == 0"))
