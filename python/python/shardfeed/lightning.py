"""Lightning's checkpoints where it fetches ahead. Needs lightning.

Lightning takes a `Loader` as it is. It fetches one batch ahead of a loader whose length is unknown (mode="dynamic"), and
keeps where the loader stands then: after a batch that nobody was trained on.
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
    """Keeps in every checkpoint where the loader stood after the last batch that was trained on.

        trainer = L.Trainer(callbacks=[sf.lightning.LoaderState()])

    For one `Loader` as `train_dataloader`; also right, and not needed, where the number of batches is known.

    Raises `ConfigError` if that is something else, if `training_step` gets something else than its batches, and for a
    validation over a `Loader` without restart=True, as the sanity check would take batches from it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._state: State | None = None

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Until training begins, the state is that of the checkpoint."""
        states = _states(checkpoint)
        self._state = states[0] if len(states) == 1 else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Until a batch was trained on, the state is that from before the first one is fetched."""
        self._state = _loader(trainer).state_dict()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Also before the sanity check."""
        for given in tree_leaves(trainer.val_dataloaders):
            dataset = getattr(given, "dataset", None)
            loader = dataset.loader if isinstance(dataset, Dataset) else given
            if isinstance(loader, Loader):
                loader._check_restart("LoaderState, a validation dataloader")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Before the callbacks that save, which Lightning puts last."""
        if not isinstance(batch, Batch):
            raise ConfigError(
                f"LoaderState knows the loader's batches, and training_step() got a {type(batch).__name__}; change batches "
                f"in training_step(), not before"
            )
        loader = _loader(trainer)
        # Behind an epoch's last batch nothing was fetched, but that it was the last one is known to the loader alone.
        is_at_an_end = loader.epoch != batch.epoch and loader.step == 0
        self._state = loader.state_dict() if is_at_an_end else loader.state_after(batch)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Puts the state in the place of Lightning's."""
        states = _states(checkpoint)
        if states and self._state is not None:
            states[0] = self._state


def _loader(trainer: Trainer) -> Loader:
    loader = trainer.train_dataloader
    if not isinstance(loader, Loader):
        raise ConfigError(f"LoaderState is for one shardfeed.Loader as train_dataloader, not {type(loader).__name__}")
    return loader


def _states(checkpoint: dict[str, Any]) -> list[Any]:
    """The loaders' states as Lightning has them in a checkpoint."""
    loop = checkpoint.get("loops", {}).get("fit_loop", {})
    found: list[Any] = loop.get("state_dict", {}).get("combined_loader", [])
    return found
