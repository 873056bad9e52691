"""A loader as a source of Grain pipelines, with its state in Grain's checkpoints. Requires
grain."""

from __future__ import annotations

import threading
from typing import Any

import grain

from shardfeed._native import NativeBatch
from shardfeed.errors import ConfigError, no_mixture
from shardfeed.loader import Epoch, Loader, State
from shardfeed.sizes import whole_number


class IterDataset(grain.IterDataset):
    """Batches of a loader as dicts, for `map()` and Grain's other transformations of an
    `IterDataset`.

    An iterator begins at the loader's current position and continues from epoch to epoch. Its
    `get_state()` is the loader's `state_dict()`, which Grain stores in checkpoints. Iterators that
    fetch ahead of the step store the state of the last element they returned. The state is JSON,
    the same on every rank (except with tail="uneven"), and valid for `Loader(resume=)`.

    - `epochs`: number of the epoch to stop before; None: unlimited.
    - `valid`, `source`: names of `batch.valid`, and of `batch.source` of a mixture, in the elements;
      None: not included.

    A rank has one iterator at a time: a new one starts from the beginning, and the previous one
    raises `ConfigError`. Processes of `mp_prefetch()` are rejected, as each would deliver all
    batches of the rank; shardfeed reads and decodes in its own threads.

    Raises `ConfigError` if a name is a column's, and for `source` without a mixture.
    """

    def __init__(
        self, loader: Loader, *, epochs: int | None = None, valid: str | None = None, source: str | None = None
    ) -> None:
        super().__init__()
        if source is not None and not loader.sources:
            raise no_mixture(source)
        for option, name, others in (("valid", valid, {source}), ("source", source, {valid})):
            if name is not None and name in loader._columns.keys() | others:
                raise ConfigError(f"{name!r} is the name of a column already; take another one for {option}=")
        self.loader = loader
        self._epochs = None if epochs is None else whole_number("epochs", epochs, 0)
        self._added = valid, source
        self._start = loader.state_dict()
        self._start_at = loader.epoch, loader.step
        self._turn = _Turn()

    def __iter__(self) -> Iterator:
        loader, turn = self.loader, self._turn
        with turn.lock:
            turn.number += 1
            if (loader.epoch, loader.step) != self._start_at:
                loader.load_state_dict(self._start)
            return Iterator(loader, self._epochs, self._added, turn)


class _Turn:
    """The iterator of a dataset that may consume batches; the lock is held while it does."""

    def __init__(self) -> None:
        self.number = 0
        self.lock = threading.Lock()


class Iterator(grain.DatasetIterator):
    """Iterator over an `IterDataset`."""

    def __init__(self, loader: Loader, epochs: int | None, added: tuple[str | None, str | None], turn: _Turn) -> None:
        super().__init__()
        self._loader, self._epochs, self._added, self._turn = loader, epochs, added, turn
        self._number = turn.number

    def __next__(self) -> dict[str, Any]:
        with self._turn.lock:
            self._check()
            loader = self._loader
            while self._epochs is None or loader.epoch < self._epochs:
                # Created before its batch is consumed, as creating it may fail or be interrupted.
                element: Any = next(Epoch(loader, loader.epoch, self._make), None)
                if element is not None:
                    return element  # type: ignore[no-any-return]
                if loader._native.steps() == 0:
                    break  # all other epochs are empty, too
            raise StopIteration

    def _make(self, native: NativeBatch) -> dict[str, Any]:
        batch = self._loader._make(native)
        element = dict(batch)
        valid, source = self._added
        for name in element.keys() & {valid, source}:
            raise ConfigError(f"{name!r} is the name of a column of transform=; take another one for valid= or source=")
        if valid is not None:
            element[valid] = batch.valid
        if source is not None:
            element[source] = batch.source
        return element

    def get_state(self) -> State:
        """Returns the loader's `state_dict()`."""
        self._check_turn()
        return self._loader.state_dict()

    def set_state(self, state: State) -> None:
        """Resumes from a state, at any world size whose batches the lanes divide."""
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
