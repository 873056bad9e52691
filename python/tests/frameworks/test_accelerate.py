"""Accelerate: a loader is iterated over directly, and its state is saved with the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mixed
import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.utils.data import DataLoader

import shardfeed as sf


@pytest.fixture
def files(tmp_path: Path) -> str:
    return mixed.write(tmp_path / "data")


@pytest.fixture(autouse=True)
def fresh() -> None:
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def order(files: str) -> list[list[int]]:
    each = mixed.loader(files, output="torch")
    return [batch["id"].tolist() for _ in range(3) for batch in each]


@pytest.mark.parametrize("stop", [2, 6, 9])
def test_a_loader_is_registered_for_checkpointing(files: str, tmp_path: Path, stop: int) -> None:
    accelerator = Accelerator(cpu=True)
    loader = mixed.loader(files, output="torch")
    model, same = accelerator.prepare(torch.nn.Linear(6, 1), loader)
    assert same is loader
    accelerator.register_for_checkpointing(loader)
    got = train(accelerator, model, loader, stop)
    accelerator.save_state(str(tmp_path / "state"))
    train(accelerator, model, loader, 3)
    accelerator.load_state(str(tmp_path / "state"))
    got += train(accelerator, model, loader, 18 - stop)
    assert got == order(files)


def train(accelerator: Accelerator, model: Any, loader: Any, steps: int) -> list[list[int]]:
    got: list[list[int]] = []
    while len(got) < steps:
        for batch in loader:
            moved = batch.to(accelerator.device)
            accelerator.backward(model(moved["image"].flatten(1)).sum())
            got.append(moved["id"].tolist())
            if len(got) == steps:
                break
    return got


@pytest.mark.parametrize("stop", [2, 6, 9])
def test_a_prepared_stateful_data_loader_of_one_process(files: str, tmp_path: Path, stop: int) -> None:
    """Accelerate fetches a batch ahead, and saves the state from before it."""

    def prepared(accelerator: Accelerator) -> Any:
        dataset = sf.torch.Dataset(mixed.loader(files, output="torch"))
        return accelerator.prepare(DataLoader(dataset, batch_size=None))

    config = DataLoaderConfiguration(use_stateful_dataloader=True, dispatch_batches=False)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    model = accelerator.prepare(torch.nn.Linear(6, 1))
    got = train(accelerator, model, prepared(accelerator), stop)
    accelerator.save_state(str(tmp_path / "state"))
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    again = Accelerator(cpu=True, dataloader_config=config)
    model, loader = again.prepare(torch.nn.Linear(6, 1)), prepared(again)
    again.load_state(str(tmp_path / "state"))
    got += train(again, model, loader, 18 - stop)
    assert got == order(files)


TRAINER = """
import sys, torch
import mixed, shardfeed as sf
from accelerate import Accelerator
files, how, out = sys.argv[1:]
accelerator = Accelerator(cpu=True)
each = mixed.loader(files, output="torch", batch_size=4)
log = open(f"{out}-{accelerator.process_index}", "w")
if how == "loader":
    model, each = accelerator.prepare(torch.nn.Linear(6, 1), each)
    for batch in each:
        accelerator.backward(model(batch["image"].flatten(1)).sum())
        print(batch.step, *batch["id"].tolist(), file=log)
else:
    prepared = accelerator.prepare(torch.utils.data.DataLoader(sf.torch.Dataset(each), batch_size=None))
    try:
        # Only the main process reads; the others would wait for its batches.
        if accelerator.is_main_process:
            next(iter(prepared))
    except sf.ConfigError as error:
        print(error, file=log)
"""


def launch(files: str, how: str, out: Path) -> list[list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone",
         "--no-python", sys.executable, "-c", TRAINER, files, how, str(out)],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [Path(f"{out}-{rank}").read_text().splitlines() for rank in range(2)]


def test_two_processes_share_an_epoch(files: str, tmp_path: Path) -> None:
    logs = launch(files, "loader", tmp_path / "out")
    assert [len(log) for log in logs] == [6, 6]
    ids = [int(number) for log in logs for line in log for number in line.split()[1:]]
    assert sorted(ids) == list(range(mixed.ROWS))


def test_a_rank_is_not_dealt_out_again(files: str, tmp_path: Path) -> None:
    main, _ = launch(files, "dispatch", tmp_path / "out")
    assert "Accelerate's DataLoaderDispatcher would deal this rank's batches out to all processes" in main[0]
    assert "register_for_checkpointing(loader)" in main[0]
