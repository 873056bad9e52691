"""Batches that frameworks rebuild, collate or evaluate: Hugging Face's Trainer, Accelerate,
Lightning's validation."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import lightning as L
import mixed
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments, default_data_collator

import shardfeed as sf


@pytest.fixture
def files(tmp_path: Path) -> str:
    return mixed.write(tmp_path / "data")


@pytest.fixture(autouse=True)
def fresh() -> None:
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)
        self.seen: list[list[int]] = []

    def forward(self, id: torch.Tensor, image: torch.Tensor, **more: Any) -> dict[str, torch.Tensor]:
        self.seen.append(id.tolist())
        return {"loss": self.layer(image.flatten(1)).square().mean()}


def trainer(folder: Path, net: Net, loader: Any, **more: Any) -> Trainer:
    class OfLoader(Trainer):
        def get_train_dataloader(self) -> Any:
            return loader

    arguments = TrainingArguments(
        str(folder), max_steps=4, use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no",
        logging_strategy="no", remove_unused_columns=False,
    )  # fmt: skip
    return (OfLoader if loader is not None else Trainer)(model=net, args=arguments, **more)


def test_the_trainer_of_hugging_face_takes_batches_as_they_are(files: str, tmp_path: Path) -> None:
    """The trainer rebuilds them as `type(batch)({...})`."""
    expected = [batch["id"].tolist() for batch in mixed.loader(files, output="torch")]
    net = Net()
    trainer(tmp_path, net, mixed.loader(files, output="torch", outputs=["id", "image"])).train()
    assert net.seen == expected[:4]


def test_a_collator_of_batches_is_refused(files: str, tmp_path: Path) -> None:
    each = mixed.loader(files, output="torch", outputs=["id", "image"])
    dataset = sf.torch.Dataset(each)
    with pytest.raises(sf.ConfigError, match=r"batches already.*batch_size=None.*get_train_dataloader\(\)"):
        trainer(tmp_path, Net(), None, train_dataset=dataset, data_collator=default_data_collator).train()
    with pytest.raises(sf.ConfigError, match="batches already"):
        next(iter(DataLoader(dataset, batch_size=8, collate_fn=lambda batches: batches[0])))
    assert each.step == 0 and next(iter(DataLoader(dataset, batch_size=None))).step == 0


def test_accelerate_in_one_process(files: str) -> None:
    each = mixed.loader(files, output="torch", outputs=["id", "image"])
    expected = [batch["id"].tolist() for batch in mixed.loader(files, output="torch")]
    prepared = Accelerator(cpu=True).prepare(DataLoader(sf.torch.Dataset(each), batch_size=None))
    assert [batch["id"].tolist() for batch in prepared] == expected
    rebuilt = sf.Batch({"id": torch.arange(3)})
    moved = send_to_device(rebuilt, torch.device("cpu"))
    assert isinstance(moved, sf.Batch) and moved["id"].tolist() == [0, 1, 2]


class Evaluated(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)
        self.seen: list[list[int]] = []

    def training_step(self, batch: sf.Batch, index: int) -> torch.Tensor:
        return self.layer(batch["image"].flatten(1)).square().mean()

    def on_validation_epoch_start(self) -> None:
        self.seen.append([])

    def validation_step(self, batch: sf.Batch, index: int) -> None:
        self.seen[-1] += batch["id"][batch.valid].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


@pytest.mark.parametrize("limit", [1.0, 2])
def test_each_validation_sees_the_same_samples(files: str, tmp_path: Path, limit: float) -> None:
    """After a sanity check of two batches, and with `limit_val_batches`."""
    model = Evaluated()
    whole = [batch["id"].tolist() for batch in mixed.loader(files, tail="pad", shuffle=False, output="torch")]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*where the one before was left.*")
        L.Trainer(
            max_epochs=3, default_root_dir=tmp_path, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False, limit_val_batches=limit,
            callbacks=[sf.lightning.LoaderState()],
        ).fit(
            model, mixed.loader(files, output="torch"),
            mixed.loader(files, output="torch", shuffle=False, tail="pad", restart=True),
        )  # fmt: skip
    sanity, *validations = model.seen
    two = [number for ids in whole[:2] for number in ids]
    assert sanity == two and len(validations) == 3
    for seen in validations:
        assert seen == two if limit == 2 else sorted(seen) == list(range(mixed.ROWS))


def test_a_validation_that_continues_is_refused(files: str, tmp_path: Path) -> None:
    """Alone, in a list, and inside a DataLoader; before the sanity check has consumed a batch."""
    for restart, nested in ((None, False), (False, False), (None, True)):
        each = mixed.loader(files, output="torch", shuffle=False, tail="pad", restart=restart)
        given = [DataLoader(sf.torch.Dataset(each), batch_size=None)] if nested else each
        model = Evaluated()
        with pytest.raises(sf.ConfigError, match="LoaderState, a validation dataloader.*make it with restart=True"):
            L.Trainer(
                max_epochs=1, default_root_dir=tmp_path, accelerator="cpu", logger=False, enable_progress_bar=False,
                enable_model_summary=False, enable_checkpointing=False, callbacks=[sf.lightning.LoaderState()],
            ).fit(model, mixed.loader(files, output="torch"), given)  # fmt: skip
        assert model.seen in ([], [[]])
