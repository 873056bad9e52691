"""A loader inside `torch.utils.data.DataLoader`, for trainers that require one. Requires torch.

Lightning, Accelerate and torch.distributed.checkpoint accept a `Loader` directly:
docs/FRAMEWORKS.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import torch.utils.data
from torch.utils.data._utils.collate import default_collate_fn_map

from shardfeed.batch import Batch
from shardfeed.errors import ConfigError
from shardfeed.loader import Loader, State


class Dataset(torch.utils.data.IterableDataset):
    """Batches of a loader with `output="torch"`, for `DataLoader(dataset, batch_size=None,
    num_workers=0)`.

    One pass is (the rest of) one epoch of the loader. torchdata's `StatefulDataLoader` saves the
    loader's state through `state_dict()`; its elements are `Batch`es, so `state_after(batch)` works
    for each. There is no `set_epoch()` by design: some trainers count epochs from their own start,
    while a resumed loader continues at its own epoch.

    DataLoader runs Python between the loader and the loop. After an asynchronous exception, such as
    that of a signal handler, `state_after()` of the last trained batch is exact, and `state_dict()`
    may be one batch ahead.

    Raises `ConfigError` in worker processes, where a `batch_size=` would combine batches, and where
    Accelerate would divide a rank's batches once more.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        if loader.output != "torch":
            raise ConfigError(f'the loader gives output="{loader.output}"; make it with output="torch"')
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            raise ConfigError(
                f"DataLoader(num_workers={worker.num_workers}): each worker process would deliver all batches of this "
                f"rank again, and shardfeed reads and decodes in its own threads; use num_workers=0"
            )
        _check_readers(self.loader.world_size)
        return iter(self.loader)

    def __len__(self) -> int:
        """Steps of the whole epoch for this rank."""
        return len(self.loader)

    def state_dict(self) -> State:
        """Returns the loader's `state_dict()`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Calls the loader's `load_state_dict()`."""
        self.loader.load_state_dict(state)

    def state_after(self, batch: Batch) -> State:
        """Returns the loader's `state_after()`."""
        return self.loader.state_after(batch)


_BATCHES = (
    "these are batches already: use DataLoader(dataset, batch_size=None); for Hugging Face's Trainer return the Loader "
    "from get_train_dataloader()"
)


def _check_readers(world_size: int) -> None:
    """Rejects readers that would combine several batches, whatever their collate function, and
    readers that would divide a rank's batches once more.

    A dataset has no reference to its reader, so this searches the call stack.
    """
    frame = sys._getframe(2)
    for _ in range(12):
        reader = frame.f_locals.get("self")
        if type(reader).__name__ == "_IterableDatasetFetcher" and getattr(reader, "auto_collation", False):
            raise ConfigError(_BATCHES)
        # Accelerate's `prepare()` lets one process read for all, which would drop the other ranks'
        # batches.
        name = (type(reader).__module__, type(reader).__name__)
        if world_size > 1 and name == ("accelerate.data_loader", "DataLoaderDispatcher"):
            raise ConfigError(
                "Accelerate's DataLoaderDispatcher would deal this rank's batches out to all processes; do not "
                "prepare() the DataLoader: iterate over the Loader, and register_for_checkpointing(loader)"
            )
        if frame.f_back is None:
            return
        frame = frame.f_back


def _refuse_to_collate(batches: Any, *, collate_fn_map: Any = None) -> NoReturn:
    raise ConfigError(_BATCHES)


# Otherwise a DataLoader's own batch_size would add a dimension to each column.
default_collate_fn_map[Batch] = _refuse_to_collate
