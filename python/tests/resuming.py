"""Stopping and resuming loaders at random steps and world sizes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import shardfeed as sf

#: Samples of a step of all ranks; every world size divides it.
GLOBAL_BATCH = 12


def random_order(rng: random.Random, *, shuffle: bool) -> dict[str, Any]:
    """Returns options of an order that every world size can continue."""
    return {
        "tail": rng.choice(["pad", "drop"]), "lanes": 12, "shuffle": shuffle, "shuffle_window": rng.choice([1, 7, 500]),
        "interleave": rng.randint(1, 5), "block_length": rng.randint(1, 4),
    }  # fmt: skip


def resumed_steps(
    rng: random.Random,
    loader: Callable[..., sf.Loader],
    rows_of: Callable[[sf.Batch], list[Any]],
    steps: int,
    stop_max: int,
) -> list[list[Any]]:
    """Returns the rows of each step, of all ranks, from loaders that stop after up to `stop_max` steps.

    - `loader`: makes the loader of a rank, of `rank`, `world_size`, `batch_size` and `resume`.
    """
    found: list[list[Any]] = []
    state: Any = None
    while len(found) < steps:
        size = rng.choice([1, 2, 3, 4, 6, 12])
        ranks = [loader(rank=rank, world_size=size, batch_size=GLOBAL_BATCH // size, resume=state) for rank in range(size)]
        stop = rng.randint(1, stop_max)
        for batches in zip(*ranks, strict=True):
            found.append(sum((rows_of(batch) for batch in batches), []))
            stop -= 1
            if stop == 0:
                break
        states = [each.state_dict() for each in ranks]
        assert all(one == states[0] for one in states) and len(json.dumps(states[0])) < 1024
        state = states[0]
        for each in ranks:
            each.close()
    return found
