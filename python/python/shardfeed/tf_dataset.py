"""`tf.data` over a loader: its elements, their static spec, and elements that TensorFlow fetched
but did not use. Requires tensorflow."""

from __future__ import annotations

import itertools
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from shardfeed.batch import Batch, Column
from shardfeed.columns import BytesColumn, RaggedBytesColumn, RaggedColumn, SparseColumn
from shardfeed.errors import ConfigError, no_mixture
from shardfeed.loader import Epoch

if TYPE_CHECKING:
    from shardfeed.loader import Loader

_LEFT = (
    "another pass over as_tf_dataset() has begun since, and continues where this one was left; a rank has one pass at "
    "a time: drop this iterator"
)


def make(loader: Loader, valid: str | None, source: str | None, state: str | None, epochs: int | None) -> Elements:
    """Implements `Loader.as_tf_dataset`."""
    if loader.output not in ("numpy", "tf"):
        raise ConfigError(f'as_tf_dataset() needs output="numpy" or "tf", this loader has output="{loader.output}"')
    if loader.device != "cpu":
        raise ConfigError(f'as_tf_dataset() needs device="cpu", this loader has device="{loader.device}"')
    if loader._is_transformed:
        raise ConfigError(
            "as_tf_dataset() has the types of its elements before a batch, and transform= may return any; make the loader "
            "without it, and use as_tf_dataset().map()"
        )
    if source is not None and not loader.sources:
        raise no_mixture(source)
    added = [name for name in (valid, source, state) if name is not None]
    for name in added:
        if name in loader._columns or added.count(name) > 1:
            raise ConfigError(f"{name!r} is the name of a column already; take another one for valid=, source= or state=")
    rows = None if loader._has_short_batches else loader.batch_size
    spec = {name: _spec(column, rows) for name, column in loader._columns.items()}
    if valid is not None:
        spec[valid] = tf.TensorSpec([rows], tf.bool)
    if source is not None:
        spec[source] = tf.TensorSpec([rows], tf.int32)
    if state is not None:
        spec[state] = tf.TensorSpec([], tf.string)

    def element(batch: Batch) -> dict[str, Any]:
        made = {name: _value(value) for name, value in batch.items()}
        if valid is not None:
            made[valid] = batch.valid
        if source is not None:
            made[source] = batch.source
        if state is not None:
            made[state] = json.dumps(loader.state_after(batch))
        return made

    options = tf.data.Options()
    # Each process already has its rank's part.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # It would come after the point where elements are counted, and the loader prefetches already.
    options.experimental_optimization.inject_prefetch = False
    passes: Passes = loader._passes or Passes()
    loader._passes = passes
    numbered = tf.data.Dataset.from_generator(
        lambda: passes.elements(loader, element, epochs), output_signature=(tf.TensorSpec([], tf.int64), spec)
    )
    return Elements(passes, numbered.with_options(options))


class Fetched(NamedTuple):
    """A batch, and the loader's state before it."""

    batch: Batch
    state_before: str


class Passes:
    """Elements fetched by the passes over a loader's datasets.

    TensorFlow does not report which of them left the pipeline, so each element carries a number,
    which is reported at the end. The rest of a pass comes first in the next pass.
    """

    def __init__(self) -> None:
        #: Held while a batch is fetched, so that none is in flight when another pass begins.
        self._turn = threading.Lock()
        #: Number of passes begun; only the last one continues.
        self._begun = 0
        self._numbers = itertools.count()
        #: Held while the fields below change.
        self._lock = threading.Lock()
        self._moves = 0
        #: Fetched by TensorFlow and not used yet, by number; then unused ones of earlier passes, to
        #: repeat.
        self._ahead: dict[int, Fetched] = {}
        self._again: deque[Fetched] = deque()
        #: State before the batch that is being fetched.
        self._fetching: str | None = None

    def elements(
        self, loader: Loader, element: Callable[[Batch], dict[str, Any]], epochs: int | None
    ) -> Iterator[tuple[int, Any]]:
        """Yields one pass: the rest of an epoch, or of the epochs before `epochs`, as (number,
        element)."""
        with self._turn, self._lock:
            self._begun += 1
            this = self._begun
            self._again.extendleft(reversed(self._ahead.values()))
            self._ahead.clear()
            if loader._restart:
                self._again.clear()
                loader._begin()
                self._moves = loader._moves
            elif self._moves != loader._moves:
                # The loader was moved since, or later batches were consumed elsewhere.
                self._again.clear()
                self._moves = loader._moves
            elif self._again:
                loader._warn_of_rest(self._again[0].batch.epoch, self._again[0].batch.step, stacklevel=2)
            elif this > 1 and loader.step > 0:
                loader._warn_of_rest(loader.epoch, loader.step, stacklevel=2)
            rest = Epoch(loader, self._again[0].batch.epoch if self._again else loader.epoch)
        if epochs is not None and rest.number >= epochs:
            return
        is_new = False  # an epoch without batches ends the pass
        while True:
            with self._turn:
                if this != self._begun:
                    raise ConfigError(_LEFT)
                taken = self._take_again() or self._fetch(loader, rest)
                if taken is None and epochs is not None and loader.epoch < epochs and not is_new:
                    rest, is_new = Epoch(loader, loader.epoch), True
                    continue
                is_new = False
            if taken is None:
                return
            number, batch = taken
            yield number, element(batch)

    def _take_again(self) -> tuple[int, Batch] | None:
        with self._lock:
            return self._number(self._again.popleft()) if self._again else None

    def _fetch(self, loader: Loader, rest: Epoch) -> tuple[int, Batch] | None:
        with self._lock:
            before = self._fetching = loader._native.state()
        try:
            batch = next(rest, None)
        except BaseException:
            self._fetching = None
            raise
        with self._lock:
            self._fetching = None
            return None if batch is None else self._number(Fetched(batch, before))

    def _number(self, fetched: Fetched) -> tuple[int, Batch]:
        number = next(self._numbers)
        self._ahead[number] = fetched
        return number, fetched.batch

    def use(self, number: Any) -> None:
        """Marks an element as having left its dataset."""
        with self._lock:
            if self._ahead.pop(int(number), None) is None:
                raise ConfigError(_LEFT)

    def state(self, moves: int) -> str | None:
        """Returns the loader's state after the used elements, if more were fetched; else None."""
        with self._lock:
            if moves != self._moves:
                return None
            first = next(iter(self._ahead.values()), None) or (self._again[0] if self._again else None)
            return self._fetching if first is None else first.state_before


class Elements(tf.data.Dataset):
    """A dataset of a loader's elements, which reports each element that is used.

    The results of `map()`, `prefetch()`, `take()` and `with_options()` do, too. Other
    transformations return a plain TensorFlow dataset: an element counts as used when they take it.
    """

    def __init__(self, passes: Passes, numbered: Any) -> None:
        self._passes = passes
        #: Elements with their numbers.
        self._numbered = numbered

        def used(number: Any, element: Any) -> Any:
            tf.numpy_function(passes.use, [number], [])
            return element

        # One by one and in order, also after a prefetch.
        self._used = numbered.map(used)
        super().__init__(tf.data.experimental.to_variant(self._used))

    def _inputs(self) -> list[Any]:
        return [self._used]

    @property
    def element_spec(self) -> Any:
        return self._used.element_spec

    def map(self, map_func: Callable[..., Any], *arguments: Any, **options: Any) -> Elements:
        def mapped(number: Any, element: Any) -> Any:
            # As TensorFlow's own map() passes and returns them.
            made = map_func(*element) if type(element) is tuple else map_func(element)
            return number, tuple(made) if isinstance(made, list) else made

        return Elements(self._passes, self._numbered.map(mapped, *arguments, **options))

    def prefetch(self, *arguments: Any, **options: Any) -> Elements:
        return Elements(self._passes, self._numbered.prefetch(*arguments, **options))

    def take(self, *arguments: Any, **options: Any) -> Elements:
        return Elements(self._passes, self._numbered.take(*arguments, **options))

    def with_options(self, *arguments: Any, **options: Any) -> Elements:
        return Elements(self._passes, self._numbered.with_options(*arguments, **options))


def _spec(column: Column, rows: int | None) -> Any:
    dtype = tf.string if column.dtype == "bytes" else tf.as_dtype(column.dtype)
    if column.kind == "ragged":
        shape = [rows, *column.row_lengths, *column.shape]
        return tf.RaggedTensorSpec(shape, dtype, len(column.row_lengths), row_splits_dtype=tf.int64)
    if column.kind == "sparse":
        return tf.SparseTensorSpec([rows, *column.shape], dtype)
    if column.kind == "padded":
        return tf.TensorSpec([rows, None, *column.shape], dtype)
    return tf.TensorSpec([rows, *column.shape], dtype)


def _value(value: Any) -> Any:
    match value:
        case BytesColumn():
            return value.to_numpy()
        case RaggedColumn() | RaggedBytesColumn():
            return value.to_tf_ragged()
        case SparseColumn():
            return value.to_tf_sparse()
        case _:
            return value
