"""Types of options, and errors for unknown options."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeAlias, TypeVar

import numpy as np

from shardfeed.errors import ConfigError

Tail: TypeAlias = Literal["drop", "pad", "uneven"]
Mode: TypeAlias = Literal["deterministic", "dynamic"]
OutputName: TypeAlias = Literal["numpy", "torch", "jax", "tf"]
#: Policy for samples that a lost trainer may have consumed, with mode="dynamic".
InDoubt: TypeAlias = Literal["redeliver", "drop"]
Corrupt: TypeAlias = Literal["error", "skip-record", "skip-file"]
#: Compression of files to write; None is "none".
Compression: TypeAlias = Literal["none", "gzip", "zlib"] | None
#: Compression of files to read.
CompressionChoice: TypeAlias = Literal["auto", "none", "gzip", "zlib"] | None

P = ParamSpec("P")
R = TypeVar("R")

#: Options of torch's DataLoader and of tf.data, and their equivalents here.
_ELSEWHERE = {
    "buffer_size": "shuffle_window",
    "collate_fn": "transform",
    "cycle_length": "interleave",
    "drop_last": "tail",
    "drop_remainder": "tail",
    "epochs": "loader.epochs(n)",
    "num_replicas": "world_size",
    "num_shards": "world_size",
    "pin_memory": "device",
    "prefetch_factor": "prefetch",
    "shard_index": "rank",
    "shuffle_buffer": "shuffle_window",
    "shuffle_buffer_size": "shuffle_window",
}

#: Options that are methods of a source.
_METHODS = {
    "operators": "operators are methods of the source: Loader(sf.source(files, features).cast(...), ...)",
    "device_operators": "call them after on_device(): Loader(source.on_device().normalize(...), ...)",
}


def suggesting(function: Callable[P, R]) -> Callable[P, R]:
    """Wraps a function: its `TypeError` for an unknown option suggests the intended one."""
    names = list(inspect.signature(function).parameters)
    what = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        unknown = [name for name in options if name not in names]
        if unknown:
            close = _ELSEWHERE.get(unknown[0]) or next(iter(difflib.get_close_matches(unknown[0], names, 1, 0.5)), None)
            hint = "" if close is None else f"; did you mean {close}?"
            hint = f"; {_METHODS[unknown[0]]}" if unknown[0] in _METHODS else hint
            raise TypeError(f"{what}() has no option {unknown[0]!r}{hint}")
        return function(*arguments, **options)

    return call


def flag(name: str, value: object) -> bool:
    """Returns the option `name` as a bool. Raises `ConfigError` for other types, such as the text
    "no"."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def doubt_policy(in_doubt: InDoubt | None, grace: float | None, mode: str) -> tuple[InDoubt, float]:
    """Returns the policy for samples in doubt, and its grace period in seconds."""
    if mode != "dynamic" and not (in_doubt is None and grace is None):
        raise ConfigError(
            'in_doubt= and in_doubt_grace= are for mode="dynamic"; with mode="deterministic" no other rank gets '
            "samples that a rank has not consumed, so nothing is in doubt; leave them out"
        )
    in_doubt, grace = "redeliver" if in_doubt is None else in_doubt, 60.0 if grace is None else grace
    if in_doubt not in ("redeliver", "drop"):
        raise ConfigError(f'in_doubt must be "redeliver" or "drop", not {in_doubt!r}')
    if isinstance(grace, bool) or not (isinstance(grace, int | float) and 0 <= grace <= 7 * 24 * 3600):
        raise ConfigError(f"in_doubt_grace must be seconds, from 0 to a week, not {grace!r}")
    return in_doubt, float(grace)
