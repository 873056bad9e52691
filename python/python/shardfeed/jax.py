"""Global JAX arrays from the batches of each process's loader. Requires jax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from shardfeed.batch import Batch
from shardfeed.errors import ConfigError, no_mixture
from shardfeed.output import narrowed


def global_batch(
    batch: Mapping[str, object],
    sharding: jax.sharding.Sharding | Mapping[str, jax.sharding.Sharding],
    *,
    valid: str | None = None,
    source: str | None = None,
) -> dict[str, jax.Array]:
    """Returns a step of all ranks as global `jax.Array`s `[world_size * rows, ...]`.

    Uses `jax.make_array_from_process_local_data`; processes do not wait for each other.

    - `batch`: this process's batch of a loader with output="numpy" or "jax", or a dict of arrays
      `[rows, ...]`.
    - `sharding`: for all columns, or by name. Rows are divided among processes in the order of the
      mesh's devices; with `rank=jax.process_index()` and devices in default order, rows follow the
      order of the ranks.
    - `valid`, `source`: names of `batch.valid`, bool, and of `batch.source` of a mixture, int32, in
      the result; None: not included.

    64-bit types become 32-bit unless jax_enable_x64 is on.

    Raises `ConfigError` for columns that are not arrays, for names without a sharding, and for
    `source` without a mixture; `OverflowError` for an int64 value that does not fit.
    """
    columns = dict(batch)
    for option, name in (("valid", valid), ("source", source)):
        if name is not None:
            if name in columns or not isinstance(batch, Batch):
                raise ConfigError(f"{option}={name!r} must be no column's name, and needs a Batch")
            columns[name] = getattr(batch, option)
            if columns[name] is None:
                raise no_mixture(name)
    others = [name for name, value in columns.items() if not isinstance(value, np.ndarray | jax.Array)]
    if others:
        raise ConfigError(
            f"columns {', '.join(map(repr, others))} are no arrays, and JAX has no global arrays of them; leave them "
            f"out with Loader(outputs=[...]), or pass a dict of arrays, such as those of to_dense()"
        )
    return {name: _global(name, value, sharding) for name, value in columns.items()}


def _global(name: str, value: Any, sharding: Any) -> jax.Array:
    if isinstance(sharding, Mapping):
        if name not in sharding:
            raise ConfigError(f"no sharding for column {name!r}, only for {', '.join(map(repr, sharding))}")
        sharding = sharding[name]
    if isinstance(value, np.ndarray):
        value = narrowed(value, name)
    return jax.make_array_from_process_local_data(sharding, value)
