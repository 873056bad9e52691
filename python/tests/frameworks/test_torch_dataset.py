"""shardfeed.torch.Dataset in DataLoader and StatefulDataLoader, and states in torch's distributed
checkpoints."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import mixed
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torchdata.stateful_dataloader import StatefulDataLoader

import shardfeed as sf

EPOCHS = 3


@pytest.fixture
def files(tmp_path: Path) -> str:
    return mixed.write(tmp_path / "data")


def loader(files: str, **options: Any) -> sf.Loader:
    return mixed.loader(files, output="torch", **options)


def order(files: str, **options: Any) -> list[list[int]]:
    """Returns the ids of all batches of three epochs."""
    each = loader(files, **options)
    return [batch["id"].tolist() for _ in range(EPOCHS) for batch in each]


def test_a_data_loader_hands_the_batches_on(files: str) -> None:
    each = loader(files)
    dataset = sf.torch.Dataset(each)
    data_loader = DataLoader(dataset, batch_size=None, num_workers=0)
    assert len(data_loader) == len(each) == 6
    got = []
    for epoch in range(EPOCHS):
        for batch in data_loader:
            assert isinstance(batch, sf.Batch) and batch.epoch == epoch
            assert batch["image"].data_ptr() == mixed.address(batch, "image")
            assert isinstance(batch["list"], sf.RaggedColumn) and isinstance(batch["name"], sf.BytesColumn)
            assert dataset.state_after(batch) == dataset.state_dict()
            got.append(batch["id"].tolist())
    assert got == order(files)


def test_batches_in_pinned_memory(files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    each = loader(files)
    with warnings.catch_warnings():
        # Without an accelerator, torch warns that nothing is pinned.
        warnings.simplefilter("ignore")
        data_loader = DataLoader(sf.torch.Dataset(each), batch_size=None, pin_memory=True)
        assert [batch["id"].tolist() for batch in data_loader] == order(files)[:6]
    # With an accelerator, torch does this to each batch.
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor.clone())
    batch = next(iter(each))
    pinned = pin_memory(batch)
    assert isinstance(pinned, sf.Batch) and list(pinned) == list(batch)
    for name in ("id", "image", "padded"):
        assert pinned[name].data_ptr() != batch[name].data_ptr() and torch.equal(pinned[name], batch[name])
    # Columns that are not tensors are unchanged.
    for name in ("name", "list", "words", "at", "deep"):
        assert pinned[name] is batch[name]
    assert each.state_after(pinned) == each.state_dict()


def test_a_break_skips_nothing(files: str) -> None:
    data_loader = DataLoader(sf.torch.Dataset(loader(files)), batch_size=None)
    got = [next(iter(data_loader))["id"].tolist() for _ in range(4)]
    assert got == order(files)[:4]


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_worker_processes_are_refused(files: str, context: str) -> None:
    each = loader(files)
    data_loader = DataLoader(
        sf.torch.Dataset(each), batch_size=None, num_workers=2, multiprocessing_context=context
    )
    said = "would deliver all batches of this rank again" if context == "fork" else "another one cannot take over"
    with pytest.raises((sf.ConfigError, TypeError), match=said) as error:
        next(iter(data_loader))
    assert "num_workers=0" in str(error.value)
    assert next(iter(each)).step == 0


def test_what_else_is_refused(files: str) -> None:
    with pytest.raises(sf.ConfigError, match='gives output="numpy"; make it with output="torch"'):
        sf.torch.Dataset(mixed.loader(files))
    with pytest.raises(sf.ConfigError, match="batch_size=None"):
        next(iter(DataLoader(sf.torch.Dataset(loader(files)))))


@pytest.mark.parametrize("taken", range(0, 14, 2))
def test_a_stateful_data_loader_resumes_exactly(files: str, taken: int) -> None:
    """Also in the middle of an epoch, at its end (6, 12), and before the first batch (0)."""
    first = StatefulDataLoader(sf.torch.Dataset(loader(files)), batch_size=None)
    got: list[list[int]] = []
    while len(got) < taken:
        got += [batch["id"].tolist() for _, batch in zip(range(taken - len(got)), first, strict=False)]
    state = first.state_dict()
    again = StatefulDataLoader(sf.torch.Dataset(loader(files)), batch_size=None)
    again.load_state_dict(state)
    loaded = again.state_dict()["dataset_state"]
    assert {**loaded, "generation": 0} == {**state["dataset_state"], "generation": 0}
    passes = 0
    while len(got) < 18:
        got += [batch["id"].tolist() for batch in again]
        passes += 1
        assert passes < 6, "passes without batches"
    assert got == order(files)


def test_a_distributed_checkpoint_holds_the_state(files: str, tmp_path: Path) -> None:
    """Also if the loading loader has another number of segments than the saving one."""
    model = torch.nn.Linear(6, 1)
    each = loader(files, batch_size=4, lanes=1)
    got = [batch["id"].tolist() for _, batch in zip(range(5), each, strict=False)]
    resumed = loader(files, batch_size=2, resume=each.state_dict())
    got += [batch["id"].tolist() for _, batch in zip(range(3), resumed, strict=False)]
    state = resumed.state_dict()
    assert len(state["segments"]) == 2
    dcp.save({"model": model, "loader": resumed}, checkpoint_id=str(tmp_path / "checkpoint"))
    last = loader(files, batch_size=2, lanes=1)
    next(iter(last))
    dcp.load({"model": torch.nn.Linear(6, 1), "loader": last}, checkpoint_id=str(tmp_path / "checkpoint"))
    assert {**last.state_dict(), "generation": 0} == {**state, "generation": 0}
    rest = [batch["id"].tolist() for batch in last]
    assert rest == [batch["id"].tolist() for batch in resumed]
    assert sorted(number for ids in got + rest for number in ids) == list(range(mixed.ROWS))


TRAINER = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import mixed
dist.init_process_group("gloo")
for name in ("RANK", "WORLD_SIZE"):
    del os.environ[name]
files, checkpoint, out, steps = sys.argv[1:]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 1))
each = mixed.loader(files, output="torch", lanes=2, batch_size=8 // dist.get_world_size())
state = {"model": model, "loader": each}
if checkpoint != "-":
    dcp.load(state, checkpoint_id=checkpoint)
with open(f"{out}-{dist.get_rank()}", "w") as log:
    for batch in each:
        model(batch["image"].flatten(1)).sum().backward()
        print(batch.step, *batch["id"].tolist(), file=log)
        if batch.step + 1 == int(steps):
            dcp.save(state, checkpoint_id=f"{out}.checkpoint")
            break
dist.destroy_process_group()
"""


def torchrun(ranks: int, *arguments: str) -> None:
    """Runs the trainer, which hides torchrun's variables, so that torch.distributed is the source
    of ranks."""
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone",
         "--no-python", sys.executable, "-c", TRAINER, *arguments],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


def steps(out: Path, ranks: int) -> dict[int, list[int]]:
    """Returns the ids of the global batch by step."""
    found: dict[int, list[int]] = {}
    for rank in range(ranks):
        for line in Path(f"{out}-{rank}").read_text().splitlines():
            step, *ids = map(int, line.split())
            found.setdefault(step, []).extend(ids)
    return found


def test_two_ranks_by_torchrun_and_resumed_as_one(files: str, tmp_path: Path) -> None:
    torchrun(2, files, "-", str(tmp_path / "two"), "3")
    torchrun(1, files, str(tmp_path / "two.checkpoint"), str(tmp_path / "one"), "6")
    torchrun(1, files, "-", str(tmp_path / "whole"), "6")
    two, one, whole = (steps(tmp_path / name, 2 if name == "two" else 1) for name in ("two", "one", "whole"))
    assert list(two) == [0, 1, 2] and list(one) == [3, 4, 5]
    assert two | one == whole
    assert sorted(number for ids in whole.values() for number in ids) == list(range(mixed.ROWS))


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"batch_size": None}, {"batch_size": 4, "num_workers": 1}])
def test_a_dataloader_over_a_loader_says_what_to_use(tmp_path: Path, options: dict[str, Any]) -> None:
    with mixed.loader(mixed.write(tmp_path), output="torch") as each:
        with pytest.raises(TypeError, match=r"DataLoader\(sf.torch.Dataset\(loader\), batch_size=None, num_workers=0\)"):
            next(iter(torch.utils.data.DataLoader(each, **options)))
