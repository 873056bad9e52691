"""Rank of this process, from its launcher.

Reads only existing information: it never starts devices or other services, and never calls a
collective.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from shardfeed.errors import ConfigError

log = logging.getLogger("shardfeed")

#: Launcher, variable with the rank, variable with the world size; the first one that is set is
#: used. A plain `srun` of one task also sets Slurm's variables, so torchrun inside it comes first.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    # Not SLURM_NTASKS: a batch script has it too, although it is one process and not a step.
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    # These have no separate variable for the number of ranks.
    ("Cray PALS", "PALS_RANKID", "PMI_SIZE"),
    ("Cray ALPS", "ALPS_APP_PE", "PMI_SIZE"),
    ("PMI", "PMI_RANK", "PMI_SIZE"),
)

#: The size variable does not identify these: batch scripts or other launchers also set it.
_BY_RANK_ONLY = ("Slurm", "Cray PALS", "Cray ALPS")

#: Variables with the number of ranks on this host; the first one that is set is used.
_LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "PMI_LOCAL_SIZE",
    "PALS_LOCAL_SIZE", "MPI_LOCALNRANKS",
)  # fmt: skip


#: Names of variables in which unknown launchers usually pass a process its rank or world size.
_OF_LAUNCHERS = re.compile(r"(.*_)?((LOCAL_?)?RANK(ID)?|WORLD_SIZE|NRANKS|COMM_SIZE)")


#: Launcher, and variables that together identify one start of its ranks.
_RUNS = (
    ("shardfeed", ("SHARDFEED_RUN_ID",), ()),
    ("torchrun", ("TORCHELASTIC_RUN_ID",), ("TORCHELASTIC_RESTART_COUNT",)),
    ("Slurm", ("SLURM_JOB_ID",), ("SLURM_STEP_ID", "SLURM_RESTART_COUNT")),
)


#: Source if no other source is available.
_DEFAULT = "default"


class Ranks(NamedTuple):
    """Rank, number of ranks, and their source."""

    rank: int
    world_size: int
    source: str


def find(
    rank: int | None, world_size: int | None, replica: tuple[int, int] | None = None
) -> Ranks:
    """Returns the data-parallel rank and world size: as given, else of the first source, else 0 of
    1.

    Logs the returned numbers and their source.

    With `replica` = (i, n) the numbers of a launcher, which counts all processes, are divided into
    groups of n consecutive processes that read the same; given numbers are data-parallel already.
    """
    part, parts = _replica(replica)
    if (rank is None) != (world_size is None):
        raise ConfigError("pass both rank and world_size, or neither to take the launcher's")
    if rank is not None and world_size is not None:
        found = _checked(Ranks(rank, world_size, "arguments"))
    else:
        found = _of_replicas(_found(), part, parts)
    # Logged once, with the numbers in use: this line explains a wrong rank.
    log.info("rank %d of %d, from %s", *found)
    return found


def _found() -> Ranks:
    for source in _SOURCES:
        ranks = source()
        if ranks is not None:
            return _checked(ranks)
    if "PMIX_RANK" in os.environ:
        # Rank 0 of 1 would make every process read everything.
        raise ConfigError("PMIX_RANK is set, but nothing says how many ranks there are; pass rank= and world_size=")
    _warn_of_a_launcher()
    return Ranks(0, 1, _DEFAULT)


def _warn_of_a_launcher() -> None:
    """Warns if variables suggest that an unknown launcher started this process as one of
    several."""
    named = sorted(filter(_OF_LAUNCHERS.fullmatch, os.environ))
    found = {name: os.environ[name] for name in named if os.environ[name].isdigit()}
    sizes = [value for name, value in found.items() if name.endswith(("SIZE", "NRANKS"))]
    if found and (not sizes or any(int(size) > 1 for size in sizes)):
        listed = ", ".join(f"{name}={value}" for name, value in found.items())
        warnings.warn(
            f"this process reads everything, as rank 0 of 1, but {listed} look like one of several processes of a launcher "
            f"that is not known here; pass rank= and world_size=",
            stacklevel=6,
        )


def _shardfeed() -> Ranks | None:
    return _variables("shardfeed", "SHARDFEED_RANK", "SHARDFEED_WORLD_SIZE")


def _torch() -> Ranks | None:
    """Returns the ranks of torch.distributed, if the program has imported and initialized it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Ranks(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _launcher() -> Ranks | None:
    for launcher, rank_name, size_name in _LAUNCHERS:
        ranks = _variables(launcher, rank_name, size_name)
        if ranks is not None:
            return ranks
    return None


def _variables(launcher: str, rank_name: str, size_name: str) -> Ranks | None:
    has_rank, has_size = rank_name in os.environ, size_name in os.environ
    if has_rank and has_size:
        return Ranks(_number(rank_name), _number(size_name), f"{launcher} ({rank_name}, {size_name})")
    # A batch script of Slurm also has the rank, but not the size of a step.
    if has_rank and launcher != "Slurm" or has_size and launcher not in _BY_RANK_ONLY:
        # Rank 0 of 1 would make every process read everything.
        given, absent = (rank_name, size_name) if has_rank else (size_name, rank_name)
        raise ConfigError(f"{given} is set and {absent} is not; set it too, or pass rank= and world_size=")
    return None


def _jax() -> Ranks | None:
    """Returns the ranks of jax.distributed, if the program has imported and initialized it.

    JAX's only public name for the process number is `jax.process_index()`, which starts the
    devices, and that waits for all processes. The number is therefore read from JAX's internal
    state; `jax.process_index()` is called only if that fails and the devices are up.
    """
    if "jax" not in sys.modules:
        return None
    state: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    # The first is public, but newer than the other.
    is_initialized = getattr(sys.modules.get("jax.distributed"), "is_initialized", None)
    if not (is_initialized() if is_initialized is not None else getattr(state, "client", None) is not None):
        return None
    rank, world_size = getattr(state, "process_id", None), getattr(state, "num_processes", None)
    if isinstance(rank, int) and isinstance(world_size, int):
        return Ranks(rank, world_size, "jax.distributed")
    jax = sys.modules["jax"]
    are_up = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    if are_up is not None and are_up():
        return Ranks(jax.process_index(), jax.process_count(), "jax.process_index()")
    # Rank 0 of 1 would make every process read everything.
    raise ConfigError(
        f"jax.distributed is initialized, but JAX {getattr(jax, '__version__', '')} does not say without starting the "
        f"devices which process this is; pass rank=jax.process_index() and world_size=jax.process_count()"
    )


def _tensorflow() -> Ranks | None:
    """Returns the position among chief and workers in TF_CONFIG; an evaluator reads everything."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        task = config.get("task") or {}
        kind, index = task.get("type", "worker"), int(task.get("index", 0))
        sizes = {name: len(hosts) for name, hosts in (config.get("cluster") or {}).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"TF_CONFIG is not valid for TensorFlow: {error}; correct it, or pass rank= and world_size="
        ) from None
    readers = [name for name in ("chief", "master", "worker") if name in sizes]
    if not readers or kind == "evaluator":
        return Ranks(0, 1, f"TF_CONFIG ({kind})")
    if kind not in readers:
        raise ConfigError(
            f"TF_CONFIG says that this process is a {kind!r}, which reads nothing; pass rank= and world_size="
        )
    before = sum(sizes[name] for name in readers[: readers.index(kind)])
    return Ranks(before + index, sum(sizes[name] for name in readers), f"TF_CONFIG ({kind} {index})")


#: The first source with a result is used.
_SOURCES: tuple[Callable[[], Ranks | None], ...] = (_shardfeed, _torch, _launcher, _jax, _tensorflow)


def _replica(replica: tuple[int, int] | None) -> tuple[int, int]:
    if replica is None:
        return 0, 1
    try:
        part, parts = (int(number.__index__()) for number in replica)
    except (TypeError, ValueError, AttributeError):
        raise ConfigError(f"replica={replica!r} must be (i, n): the i-th of n processes that read the same") from None
    if parts < 1 or not 0 <= part < parts:
        raise ConfigError(f"replica={replica!r}: the first number must be in 0..{parts - 1}")
    return part, parts


def check_replica(
    replica: tuple[int, int] | None, in_cluster: bool, mode: str, resume: object
) -> Callable[[str | None], str | None]:
    """Rejects options that replicas lack; returns a function that renames jobs for this replica."""
    part, parts = (0, 1) if replica is None else replica
    if parts > 1 and in_cluster and mode == "dynamic":
        raise ConfigError(
            f'replica={replica!r}: with mode="dynamic" a rank gets the samples that are free when it asks, so replicas '
            f'would get different batches; use mode="deterministic"'
        )
    if parts > 1 and in_cluster and resume == "latest":
        raise ConfigError(
            f'replica={replica!r}: resume="latest" is the position of a job that the cluster knows, and replicas are a '
            f"job each; load one state_dict() on all of them"
        )
    suffix = f".replica-{part}" if in_cluster and part > 0 else ""
    return lambda name: None if name is None else name + suffix


def _of_replicas(ranks: Ranks, part: int, parts: int) -> Ranks:
    rank, world_size, source = ranks
    if parts == 1:
        return ranks
    if source == _DEFAULT:
        raise ConfigError(f"replica=({part}, {parts}): no launcher says which rank this is; pass rank= and world_size=")
    if world_size % parts:
        raise ConfigError(f"replica=({part}, {parts}): {world_size} processes, from {source}, are no groups of {parts}")
    if rank % parts != part:
        raise ConfigError(
            f"replica=({part}, {parts}): process {rank}, from {source}, is number {rank % parts} of its {parts} "
            f"consecutive ones; pass the data-parallel rank= and world_size= if groups are not of consecutive processes"
        )
    return Ranks(rank // parts, world_size // parts, f"{source}, as replica {part} of {parts}")


def run_id(run: str | None) -> str | None:
    """Returns the id of one start of all ranks: as given, else from the launcher, else None.

    torchrun's id is "none" unless set by the user, and then does not identify a run.
    """
    if run is not None:
        return run
    for launcher, required, optional in _RUNS:
        values = [os.environ.get(name, "") for name in required]
        if all(values) and not (launcher == "torchrun" and values == ["none"]):
            return "-".join(values + [os.environ.get(name, "0") for name in optional])
    return None


def on_this_host() -> int:
    """Returns the number of ranks that share this host's memory, from the launcher; 0 if
    unknown."""
    sizes = (_number(name) for name in _LOCAL_SIZES if name in os.environ)
    return max(0, next(sizes, 0) or _slurm_tasks_here())


def are_on_several_hosts(world_size: int) -> bool:
    """Returns whether the launcher reports fewer ranks on this host than in all; False if unknown."""
    sizes = (_number(size) for _, _, size in _LAUNCHERS if size in os.environ)
    return 0 < on_this_host() < next(sizes, world_size)


def _slurm_tasks_here() -> int:
    """Parses Slurm's tasks per node, such as `4(x2),3`."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    tasks = [int(each) for each, times in parts for _ in range(int(times or 1))]
    node = os.environ.get("SLURM_NODEID", "")
    return tasks[int(node)] if node.isdigit() and int(node) < len(tasks) else 0


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
