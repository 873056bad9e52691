"""A loader as a source of Grain's pipelines, with its state in Grain's checkpoints. Needs grain."""

from __future__ import annotations

import threading
from typing import Any

import grain

from shardfeed._native import NativeBatch
from shardfeed.errors import ConfigError
from shardfeed.loader import Epoch, Loader, State
from shardfeed.sizes import whole_number


class IterDataset(grain.IterDataset):
    """The batches of a loader, as dicts, for `map()` and what else Grain makes of an `IterDataset`.

    An iterator begins where the loader stands now, and goes on from epoch to epoch. Its `get_state()` is the loader's
    `state_dict()`, which Grain's checkpoints keep, also for iterators that fetch ahead of the step: theirs belongs to
    the last element that came out. It is JSON, the same on every rank (not with tail="uneven"), and `Loader(resume=)`
    takes it, too.

    - `epochs`: the last one is this - 1; None: there is no last one.
    - `valid`: name under which elements have `batch.valid`; None: they have not.

    A rank has one iterator at a time: a new one begins anew, and the one before raises `ConfigError`. Processes of
    `mp_prefetch()` are refused, as each would deliver all batches of the rank: shardfeed reads and decodes in threads of
    its own.

    Raises `ConfigError` if `valid` is the name of a column.
    """

    def __init__(self, loader: Loader, *, epochs: int | None = None, valid: str | None = None) -> None:
        super().__init__()
        if valid in loader._columns:
            raise ConfigError(f"{valid!r} is the name of a column already; take another one for valid=")
        self.loader = loader
        self._epochs = None if epochs is None else whole_number("epochs", epochs, 0)
        self._valid = valid
        self._start = loader.state_dict()
        self._start_at = loader.epoch, loader.step
        self._turn = _Turn()

    def __iter__(self) -> Iterator:
        loader, turn = self.loader, self._turn
        with turn.lock:
            turn.number += 1
            if (loader.epoch, loader.step) != self._start_at:
                loader.load_state_dict(self._start)
            return Iterator(loader, self._epochs, self._valid, turn)


class _Turn:
    """Which iterator of a dataset may take batches; held while it does."""

    def __init__(self) -> None:
        self.number = 0
        self.lock = threading.Lock()


class Iterator(grain.DatasetIterator):
    """What `iter()` of an `IterDataset` gives."""

    def __init__(self, loader: Loader, epochs: int | None, valid: str | None, turn: _Turn) -> None:
        super().__init__()
        self._loader, self._epochs, self._valid, self._turn = loader, epochs, valid, turn
        self._number = turn.number

    def __next__(self) -> dict[str, Any]:
        with self._turn.lock:
            self._check()
            loader = self._loader
            while self._epochs is None or loader.epoch < self._epochs:
                # Made before its batch is consumed, as what makes it may fail or be interrupted.
                element: Any = next(Epoch(loader, loader.epoch, self._make), None)
                if element is not None:
                    return element  # type: ignore[no-any-return]
                if loader._native.steps() == 0:
                    break  # as will be every other epoch
            raise StopIteration

    def _make(self, native: NativeBatch) -> dict[str, Any]:
        batch = self._loader._make(native)
        element = dict(batch)
        if self._valid is not None:
            element[self._valid] = batch.valid
        return element

    def get_state(self) -> State:
        """The loader's `state_dict()`."""
        self._check_turn()
        return self._loader.state_dict()

    def set_state(self, state: State) -> None:
        """Goes on from a state, at any world size whose batches the lanes divide."""
        with self._turn.lock:
            self._check()
            self._loader.load_state_dict(state)

    def _check(self) -> None:
        if self._closed:
            raise ValueError("this iterator was closed")
        self._check_turn()

    def _check_turn(self) -> None:
        if self._number != self._turn.number:
            raise ConfigError(
                "another iterator of this dataset has begun since; a rank has one at a time: drop this one, or make a "
                "second Loader"
            )
