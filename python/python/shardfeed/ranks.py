"""Which rank this process is, from what launched it."""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from shardfeed.errors import ConfigError

log = logging.getLogger("shardfeed")

#: Launcher, variable with the rank, variable with the world size; the first one that is set wins.
#: A plain `srun` of one task sets Slurm's too, so torchrun inside of it comes first.
_LAUNCHERS = (
    ("shardfeed", "SHARDFEED_RANK", "SHARDFEED_WORLD_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    # Not SLURM_NTASKS: a batch script has it too, although it is one process and no step.
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("PMI", "PMI_RANK", "PMI_SIZE"),
)


#: Variables with the number of ranks on this host; the first one that is set wins.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_LOCAL_SIZE")


#: Launcher, variables that together name one start of its ranks.
_RUNS = (
    ("shardfeed", ("SHARDFEED_RUN_ID",), ()),
    ("torchrun", ("TORCHELASTIC_RUN_ID",), ("TORCHELASTIC_RESTART_COUNT",)),
    ("Slurm", ("SLURM_JOB_ID",), ("SLURM_STEP_ID", "SLURM_RESTART_COUNT")),
)


class Ranks(NamedTuple):
    """A rank, the number of ranks, and who said so."""

    rank: int
    world_size: int
    source: str


def find(rank: int | None, world_size: int | None) -> Ranks:
    """The rank and world size: as given, else from the environment, else 0 of 1."""
    if (rank is None) != (world_size is None):
        raise ConfigError("pass both rank and world_size, or neither to take the launcher's")
    if rank is not None and world_size is not None:
        return _checked(Ranks(rank, world_size, "arguments"))
    for launcher, rank_name, size_name in _LAUNCHERS:
        if rank_name in os.environ and size_name in os.environ:
            numbers = _number(rank_name), _number(size_name)
            ranks = _checked(Ranks(*numbers, f"{launcher} ({rank_name}, {size_name})"))
            log.info("rank %d of %d, from %s", *ranks)
            return ranks
        if launcher != "Slurm" and (rank_name in os.environ) != (size_name in os.environ):
            # Taking this for rank 0 of 1 would make every process read everything.
            given, absent = (
                (rank_name, size_name) if rank_name in os.environ else (size_name, rank_name)
            )
            raise ConfigError(
                f"{given} is set and {absent} is not; set it too, or pass rank= and world_size="
            )
    log.info("rank 0 of 1: no launcher's variables are set")
    return Ranks(0, 1, "default")


def run_id(run: str | None) -> str | None:
    """One start of all ranks: as given, else as the launcher names it, else None.

    torchrun's id is "none" unless somebody sets one, so it says nothing about which run this is.
    """
    if run is not None:
        return run
    for launcher, required, optional in _RUNS:
        values = [os.environ.get(name, "") for name in required]
        if all(values) and not (launcher == "torchrun" and values == ["none"]):
            return "-".join(values + [os.environ.get(name, "0") for name in optional])
    return None


def on_this_host() -> int:
    """Ranks that share this host's memory, as far as the launcher says; 0: it does not."""
    sizes = (_number(name) for name in _LOCAL_SIZES if name in os.environ)
    return max(0, next(sizes, 0))


def _number(name: str) -> int:
    text = os.environ[name]
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a number") from None


def _checked(ranks: Ranks) -> Ranks:
    rank, world_size, source = ranks
    if world_size < 1 or not 0 <= rank < world_size:
        raise ConfigError(
            f"rank={rank} is not in 0..{world_size - 1} (world_size={world_size}, from {source})"
        )
    return ranks
