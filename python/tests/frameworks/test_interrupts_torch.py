"""Exceptions at any point of a loop, with torch's tensors, DataLoader, Accelerate's loop and
Lightning."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from conftest import Dataset
from interrupts import Interrupt, features, interrupted, key, whole
from lightning.pytorch.callbacks import OnExceptionCheckpoint

import shardfeed as sf

OPTIONS: dict[str, Any] = {"batch_size": 2, "shuffle_window": 16, "interleave": 3, "seed": 7}


@pytest.mark.parametrize("loop", ["for", "next", "torch"])
def test_nothing_is_lost_and_nothing_doubled(dataset: Dataset, env: dict[str, str], loop: str) -> None:
    """`for` with `state_dict()`; `next()` and DataLoader with `state_after()` the last batch."""
    got = interrupted(dataset.pattern, loop, env, **OPTIONS, output="torch", interrupts=200 if loop == "for" else 100)
    assert got == whole(dataset.pattern, got[-1][0] + 1, **OPTIONS)[: len(got)]


class Model(L.LightningModule):
    """Records the batches whose step was done."""

    def __init__(self, got: list[Any]) -> None:
        super().__init__()
        self.layer, self.got, self.seconds = torch.nn.Linear(6, 1), got, 0.0

    def on_train_start(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def training_step(self, batch: sf.Batch, index: int) -> torch.Tensor:
        return self.layer(batch["image"].flatten(1)).square().mean()

    def on_train_batch_end(self, outputs: Any, batch: sf.Batch, index: int) -> None:
        self.got.append(key(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def test_lightning_goes_on_after_the_last_batch_that_was_trained_on(dataset: Dataset, tmp_path: Path) -> None:
    """The checkpoint after an exception comes from the callback. Only the model knows the progress
    of a batch when the exception came; the state in the checkpoint is that after a batch, and the
    next one follows."""

    def handler(*_: Any) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    rng, checkpoint, trained = random.Random(1), None, []
    expected = whole(dataset.pattern, 40, **OPTIONS)
    try:
        for _ in range(12):
            got: list[Any] = []
            model = Model(got)
            model.seconds = rng.uniform(0.001, 0.05)
            kept = OnExceptionCheckpoint(str(tmp_path), filename=f"kept-{rng.random()}")
            trainer = L.Trainer(
                max_epochs=1000, default_root_dir=tmp_path, accelerator="cpu", logger=False, enable_progress_bar=False,
                enable_model_summary=False, callbacks=[sf.lightning.LoaderState(), kept],
            )  # fmt: skip
            with sf.Loader(dataset.pattern, features(), output="torch", restart=False, **OPTIONS) as each:
                with pytest.raises(Interrupt):
                    trainer.fit(model, each, ckpt_path=checkpoint)
            checkpoint = kept.ckpt_path
            (state,) = torch.load(checkpoint, weights_only=False)["loops"]["fit_loop"]["state_dict"]["combined_loader"]
            with sf.Loader(dataset.pattern, features(), resume=state, **OPTIONS) as each:
                stands = key(next(iter(each)))
            # The model's hook runs after the callback's, so it may have missed the last batch.
            done = expected[len(trained) : expected.index(stands)]
            assert got in (done, done[:-1])
            trained += done
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert trained == expected[: len(trained)] and trained
