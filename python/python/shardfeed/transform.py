"""A Python function over each batch, in the trainer: `Loader(transform=fn)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from shardfeed._native import NativeBatch
from shardfeed.batch import Batch
from shardfeed.columns import RaggedBytesColumn, RaggedColumn
from shardfeed.errors import ConfigError

#: Returns the columns of a batch: the batch itself, changed, or a dict.
Transform: TypeAlias = Callable[[Batch], Mapping[str, object]]


def check(transform: object) -> None:
    """Raises `ConfigError` if it is no function."""
    if transform is not None and not callable(transform):
        raise ConfigError(f"transform= must be a function of a batch, not {transform!r:.60}")


def then(make: Callable[[NativeBatch], Batch], transform: Transform | None) -> Callable[[NativeBatch], Batch]:
    """Returns a function that creates a batch and transforms it, before the batch is consumed."""
    return make if transform is None else lambda native: _transformed(make(native), transform)


def _transformed(batch: Batch, transform: Transform) -> Batch:
    where = f"epoch {batch.epoch}, step {batch.step}"
    try:
        made = transform(batch)
    except StopIteration as error:
        # The loop would take it for the end of the epoch.
        raise RuntimeError(f"transform= raised StopIteration at {where}") from error
    except Exception as error:
        error.add_note(f"raised by transform= at {where}; the batch was not consumed, so it comes again")
        raise
    if not isinstance(made, Mapping):
        raise ConfigError(
            f"transform= returned a {type(made).__name__} at {where}; it must return the columns: the batch, or a dict"
        )
    for name, value in made.items():
        shape = _shape(value)
        if not isinstance(name, str) or shape is None or shape[:1] != (batch.rows,):
            found = f"a {type(value).__name__}" if shape is None else f"shape {shape}"
            raise ConfigError(
                f"transform= returned column {name!r} with {found} at {where}; a column has a text as its name, and "
                f"{batch.rows} rows as the batch has, so filter() and unbatch() are methods of the source"
            )
    if isinstance(made, Batch) and made._native is batch._native:
        return made
    return batch._with(made)


def _shape(value: object) -> tuple[object, ...] | None:
    """Returns the shape of a column, or its length if it has no shape; None if it has no rows."""
    shape = getattr(value, "shape", None)
    # The shape of a ragged column is that of an item.
    if isinstance(shape, Iterable) and not isinstance(value, RaggedColumn | RaggedBytesColumn):
        return tuple(shape)
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        return None
    return (len(value),)
