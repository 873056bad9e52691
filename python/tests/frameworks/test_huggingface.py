"""`sf.huggingface.LoaderTrainer`: checkpoints after exceptions and with accumulated gradients, and
evaluations."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import mixed
import numpy as np
import pytest
import torch
from interrupts import Interrupt
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import shardfeed as sf

STEPS = mixed.ROWS // mixed.BATCH
EPOCHS = 3
UPDATES = {1: 18, 2: 9, 4: 6}


@pytest.fixture
def files(tmp_path: Path) -> str:
    return mixed.write(tmp_path / "data")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)

    def forward(self, id: torch.Tensor, image: torch.Tensor, valid: torch.Tensor) -> dict[str, torch.Tensor]:
        answer = self.layer(image.flatten(1)).squeeze(1)
        return {"loss": (answer.square() * valid).mean(), "logits": answer}


class Updates(TrainerCallback):
    """Batches in the weights, by update. `stop_at` (a batch's number) raises in its step."""

    def __init__(self, stop_at: int = -1) -> None:
        self.done: list[list[list[int]]] = []
        self.stop_at, self._begun, self._batches = stop_at, 0, []  # type: ignore[var-annotated]

    def begin(self, ids: list[int]) -> None:
        if self._begun == self.stop_at:
            signal.raise_signal(signal.SIGALRM)
        self._begun += 1
        self._batches.append(ids)

    def on_optimizer_step(self, *arguments: Any, **more: Any) -> None:
        self.done.append(self._batches)
        self._batches = []


class Trainer(sf.huggingface.LoaderTrainer):
    def __init__(self, folder: Path, updates: Updates, files: str, accumulate: int = 1, **options: Any) -> None:
        named = {name: options.pop(name) for name in ("eval_loader", "compute_metrics") if name in options}
        arguments = TrainingArguments(
            str(folder), use_cpu=True, report_to="none", disable_tqdm=True, logging_strategy="no",
            gradient_accumulation_steps=accumulate, ignore_data_skip=True, restore_callback_states_from_checkpoint=True,
            **({"num_train_epochs": EPOCHS, "save_strategy": "no"} | options),
        )  # fmt: skip
        super().__init__(
            model=Net(), args=arguments, callbacks=[updates], train_loader=lambda: loader(files),
            model_inputs=lambda batch: {"id": batch["id"], "image": batch["image"], "valid": batch.valid}, **named,
        )  # fmt: skip
        self.updates = updates

    def training_step(self, model: Any, inputs: Any, *more: Any) -> torch.Tensor:
        self.updates.begin(inputs["id"].tolist())
        return super().training_step(model, inputs, *more)


def loader(files: str, **options: Any) -> sf.Loader:
    return mixed.loader(files, **({"output": "torch", "tail": "pad"} | options))


def whole(files: str) -> list[list[int]]:
    return [batch["id"].tolist() for epoch in loader(files).epochs(EPOCHS) for batch in epoch]


def updates_of(batches: list[list[int]], accumulate: int) -> list[list[list[int]]]:
    """Returns the updates; the last update of an epoch has the remaining batches."""
    epochs = [batches[at : at + STEPS] for at in range(0, len(batches), STEPS)]
    return [epoch[at : at + accumulate] for epoch in epochs for at in range(0, STEPS, accumulate)]


@pytest.mark.parametrize("accumulate", UPDATES)
@pytest.mark.parametrize("stop_at", [0, 1, 3, 4, 5, 6, 7, 11, 15])
def test_after_an_exception_the_weights_get_each_batch_once(
    files: str, tmp_path: Path, accumulate: int, stop_at: int
) -> None:
    """Batches that were fetched, or whose gradients were not in an update yet, come again. The
    updates equal those of an undisturbed training, also after the end of an epoch whose last update
    has fewer batches."""

    def handler(*_: Any) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        first = Trainer(tmp_path / "kept", Updates(stop_at), files, accumulate)
        with pytest.raises(Interrupt):
            first.train()
    finally:
        signal.signal(signal.SIGALRM, before)
    first._save_checkpoint(first.model, None)
    second = Trainer(tmp_path / "kept", Updates(), files, accumulate)
    second.train(resume_from_checkpoint=get_last_checkpoint(tmp_path / "kept"))
    assert first.updates.done + second.updates.done == updates_of(whole(files), accumulate)
    assert second.state.global_step == UPDATES[accumulate]
    at_end = second.get_train_dataloader()
    assert (at_end.epoch, at_end.step) == (EPOCHS, 0)


@pytest.mark.parametrize("accumulate", UPDATES)
@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_each_checkpoint_goes_on_at_the_exact_batch(
    files: str, tmp_path: Path, accumulate: int, strategy: str
) -> None:
    first = Trainer(tmp_path / "kept", Updates(), files, accumulate, save_strategy=strategy, save_steps=1)
    first.train()
    expected = updates_of(whole(files), accumulate)
    assert first.updates.done == expected
    saved = sorted(int(folder.name.removeprefix("checkpoint-")) for folder in (tmp_path / "kept").iterdir())
    assert len(saved) == (EPOCHS if strategy == "epoch" else UPDATES[accumulate])
    for done in saved[:-1]:
        second = Trainer(tmp_path / "other", Updates(), files, accumulate)
        second.train(resume_from_checkpoint=str(tmp_path / f"kept/checkpoint-{done}"))
        assert second.updates.done == expected[done:]


def test_a_training_step_with_something_else_is_refused(files: str, tmp_path: Path) -> None:
    class Changed(Trainer):
        def get_batch_samples(self, *arguments: Any) -> Any:
            batches, number = super().get_batch_samples(*arguments)
            return [{"id": each["id"], "image": each["image"], "valid": each.valid} for each in batches], number

    with pytest.raises(sf.ConfigError, match=r"does not know which batch.*training_step\(\).*model_inputs="):
        Changed(tmp_path / "kept", Updates(), files).train()


def test_each_evaluation_sees_every_sample_once(tmp_path: Path) -> None:
    """Verified by the batches that the evaluation received, of 21 samples in batches of 8; also
    after one that was ended by an exception."""
    files, held_out = mixed.write(tmp_path / "train"), mixed.write(tmp_path / "held out", rows=21)
    seen: list[list[int]] = []

    def compute(given: Any) -> dict[str, float]:
        ids, valid = given.label_ids
        seen.append(ids[valid].tolist())
        return {"samples": float(valid.sum()), "mean": float(np.mean(given.predictions[valid]))}

    class Left(Trainer):
        leave = True

        def prediction_step(self, *arguments: Any, **more: Any) -> Any:
            if self.leave:
                self.leave = False
                raise Interrupt
            return super().prediction_step(*arguments, **more)

    trainer = Left(
        tmp_path / "kept", Updates(), files, eval_loader=lambda: loader(held_out, shuffle=False, restart=True),
        compute_metrics=compute, eval_strategy="epoch", label_names=["id", "valid"],
    )  # fmt: skip
    with pytest.raises(Interrupt):
        trainer.evaluate()
    trainer.train()
    metrics = trainer.evaluate()
    assert [sorted(ids) for ids in seen] == [list(range(21))] * (EPOCHS + 1)
    assert metrics["eval_samples"] == 21
    assert trainer.updates.done == updates_of(whole(files), 1), "the training is not disturbed"


def test_an_evaluation_that_continues_is_refused(files: str, tmp_path: Path) -> None:
    for restart in (None, False):
        trainer = Trainer(tmp_path / "kept", Updates(), files, eval_loader=lambda: loader(files, restart=restart))
        with pytest.raises(sf.ConfigError, match="eval_loader of LoaderTrainer.*make it with restart=True"):
            trainer.evaluate()
    with pytest.raises(sf.ConfigError, match="eval_loader= or eval_dataset="):
        sf.huggingface.LoaderTrainer(train_loader=lambda: loader(files), eval_loader=lambda: loader(files), eval_dataset=[])
