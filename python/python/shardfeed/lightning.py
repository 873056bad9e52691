"""Exact Lightning checkpoints where Lightning fetches ahead. Requires lightning.

Lightning accepts a `Loader` directly. With a loader of unknown length (mode="dynamic") it fetches
one batch ahead and saves the loader's state then, which is after a batch that was not trained on.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils._pytree import tree_leaves

from shardfeed.batch import Batch
from shardfeed.errors import ConfigError
from shardfeed.loader import Loader, State
from shardfeed.torch import Dataset


class LoaderState(Callback):
    """Saves in each checkpoint the loader's state after the last batch that was trained on.

        trainer = L.Trainer(callbacks=[sf.lightning.LoaderState()])

    For one `Loader` as `train_dataloader`; also correct, but not needed, if the number of batches
    is known.

    Raises `ConfigError` if `train_dataloader` is not a `Loader`, if `training_step` gets anything
    but its batches, and for a validation `Loader` without restart=True, as the sanity check would
    consume its batches.
    """

    def __init__(self) -> None:
        super().__init__()
        self._state: State | None = None

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Uses the checkpoint's state until training begins."""
        states = _states(checkpoint)
        self._state = states[0] if len(states) == 1 else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Uses the state before the first fetch until a batch was trained on."""
        self._state = _loader(trainer).state_dict()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checks the validation loaders; also runs before the sanity check."""
        for given in tree_leaves(trainer.val_dataloaders):
            dataset = getattr(given, "dataset", None)
            loader = dataset.loader if isinstance(dataset, Dataset) else given
            if isinstance(loader, Loader):
                loader._check_restart("LoaderState, a validation dataloader")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Updates the state before the callbacks that save, which Lightning calls last."""
        if not isinstance(batch, Batch):
            raise ConfigError(
                f"LoaderState knows the loader's batches, and training_step() got a {type(batch).__name__}; change batches "
                f"in training_step(), not before"
            )
        loader = _loader(trainer)
        # After an epoch's last batch nothing was fetched; only the loader knows that it was the
        # last.
        is_at_an_end = loader.epoch != batch.epoch and loader.step == 0
        self._state = loader.state_dict() if is_at_an_end else loader.state_after(batch)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Replaces Lightning's state with this one."""
        states = _states(checkpoint)
        if states and self._state is not None:
            states[0] = self._state


def _loader(trainer: Trainer) -> Loader:
    loader = trainer.train_dataloader
    if not isinstance(loader, Loader):
        raise ConfigError(f"LoaderState is for one shardfeed.Loader as train_dataloader, not {type(loader).__name__}")
    return loader


def _states(checkpoint: dict[str, Any]) -> list[Any]:
    """Returns the loaders' states in a Lightning checkpoint."""
    loop = checkpoint.get("loops", {}).get("fit_loop", {})
    found: list[Any] = loop.get("state_dict", {}).get("combined_loader", [])
    return found
