"""Loader: the batches of one rank, epoch by epoch."""

from __future__ import annotations

import functools
import json
import operator
import os
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self, TextIO, TypeAlias, cast

from shardfeed import _native, progress, ranks
from shardfeed import device as on_device
from shardfeed.batch import Batch, Column, RowSources
from shardfeed.dtypes import as_numpy
from shardfeed.device import Device
from shardfeed.errors import ConfigError, ShardChangedError, StateError
from shardfeed.features import Feature, ForeignFeature
from shardfeed.mixture import Mixture, counts_without_index, declared
from shardfeed.operations import to_native as operators_to_native
from shardfeed.options import CompressionChoice, Corrupt, InDoubt, Mode, OutputName, Tail, doubt_policy, flag, suggesting
from shardfeed.output import TensorFlow
from shardfeed.output import check_name as check_output
from shardfeed.output import find as find_output
from shardfeed.reports import Stats, Why
from shardfeed.shard_names import missing_shards
from shardfeed.sizes import byte_size as _bytes
from shardfeed.sizes import whole_number as _number
from shardfeed.sources import Source
from shardfeed.sources import source as make_source
from shardfeed.transform import Transform, then
from shardfeed.transform import check as check_transform

if TYPE_CHECKING:
    import tensorflow as tf

#: JSON-compatible state returned by `state_dict()`.
State: TypeAlias = dict[str, object]


class Skipped(NamedTuple):
    """Skipped corrupt data. `what` is "record", or for a damaged file "rest" (everything from this
    record on) or "file" (everything)."""

    file: str
    offset: int
    ordinal: int
    reason: str
    what: str


def _described(error: BaseException) -> str | None:
    """Returns the error text shown by the coordinator; None if the process was asked to exit."""
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)) or (isinstance(error, SystemExit) and not error.code):
        return None
    return f"{type(error).__name__}: {error}"


def _close(native: _native.NativeLoader) -> None:
    """Closes a loader that was left open, with the error that ended the program, if any."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    native.close(None if error is None else _described(error))


class Loader:
    """The batches of one rank.

    One iteration covers one epoch; the next iteration covers the next epoch. After a `break`, the
    next loop resumes with the batch that would have come next.

    The batch of a sample depends only on the files' content, `seed`, `shuffle`, `shuffle_window`,
    `interleave`, `block_length`, `lanes`, `tail` and the global batch (batch_size x world_size),
    not on prefetching or threads. Ranks agree without communication. For the same global batches at
    another world size, keep `lanes` and batch_size x world_size; a state keeps its lanes.

    - `files`: a `Source`, with its columns and operators; a `Mixture` of sources; or paths, patterns and URLs:
      `Loader(files, features)` is short for `Loader(sf.source(files, features))`, without
      operators. `sequence_features`, `dataset` and `compression` are also those of `source`; for a
      `Source` they must be given there.
    - `outputs`: names of the columns in a batch; None: all columns of the source.
    - `output`: type of numeric columns: "numpy" arrays, or "torch", "jax" or "tf" (TensorFlow)
      tensors that view the batch without a copy. See docs/FRAMEWORKS.md.
    - `device`: location of numeric columns: "cpu", or "cuda" or "cuda:0" for an NVIDIA GPU, to
      which batches are copied ahead of the loop. On a GPU, "numpy" gives `DeviceArray`s (for
      DLPack); "torch" and "jax" give tensors in the framework's own memory; "tf" is for the CPU.
      `zero_copy`: with "torch", tensors view the batch instead. Its memory is reused after they
      are freed: work on other streams must have finished by then. See docs/GPU.md.
      Operators after `Source.on_device()` run there.
    - `batch_size`: samples per rank and step.
    - `shuffle`: whether each epoch has another order; False: that of the files. `seed`: 0 to 2^64 - 1,
      of the order and of random operators.
    - `shuffle_window`: samples of a lane shuffled together; at least the lane's length: one uniform
      shuffle. Memory: about two windows of records per lane of this rank, less in `memory_budget`.
    - `interleave`, `block_length`: number of files read in turn, and samples taken per turn.
      `interleave=None`: 16, or 1 with `shuffle=False`, which keeps the order of the files.
    - `lanes`: number of equal parts of an epoch; must divide batch_size x world_size. None: the
      world size, or the lanes of the state in `resume`.
    - `tail`: "drop" omits the incomplete last step, "pad" fills it with samples that are not
      `valid`, "uneven" delivers every sample once, in steps that may be short and may differ by
      rank. None: "drop", or "uneven" with mode="dynamic", which supports no other.
    - `mode`: "deterministic": the order determines the rank of each sample. "dynamic": the
      coordinator grants groups of `interleave` files to ranks on request, for ranks of different
      speed and files that arrive slowly; every sample of an epoch is still delivered once. An epoch
      ends for all ranks when all samples are consumed, so its number of steps is not known in
      advance; other ranks take over the rest of a rank that is gone. A state is valid only in the
      same cluster, while it keeps the lists. Requires tail="uneven"; excludes `limit` and `lanes`.
    - `in_doubt`, `in_doubt_grace`: with mode="dynamic", the policy for samples that a trainer had
      begun, but not reported as consumed or not, when its worker or process was lost. They are
      reserved while the trainer may return and report: until `in_doubt_grace` seconds (None: 60)
      after the rest of the epoch is consumed, or until `shardfeed rank gone`. Then "redeliver"
      (None) grants them to other ranks: none is lost, and those that the trainer consumed are
      delivered twice. "drop" grants them to no rank: none is delivered twice, and those that the
      trainer did not consume are lost. All ranks must use the same values.
    - `limit`: use only the first `limit` entries of the order, for smoke tests.
    - `rank`, `world_size`: None: from the first available of SHARDFEED_RANK and
      SHARDFEED_WORLD_SIZE, torch.distributed if initialized, torchrun, Horovod, Open MPI, MVAPICH2,
      Slurm, Cray PALS, Cray ALPS, PMI, jax.distributed if initialized, and TF_CONFIG; else 0 of 1.
      The logger "shardfeed" reports the source.
    - `replica`: (i, n): this process is number i of n that get the same batches, as with tensor or
      pipeline parallelism. A launcher's rank then counts n consecutive processes per data-parallel
      rank; a given `rank` is the data-parallel rank, for any other grouping. None: no other process
      gets these batches. In a cluster each replica is a separate job, "NAME.replica-1" beside
      "NAME", with its own reads; mode="deterministic" only, without resume="latest".
    - `coordinator`: addresses of a cluster's coordinators: a list of "host:port", or one text with
      commas. One address that answers is enough; the leader is found. "@PATH": read from the file
      that a coordinator writes with --endpoint-file; the loader waits for the file. None:
      SHARDFEED_COORDINATOR if set, else everything runs in this process. In a cluster this host's
      worker reads and batches, and the arrays view its shared memory; the batches are the same. If
      the worker dies, this process continues in its place at the exact batch.
    - `job`: name that the ranks share in the cluster; identifies one order. None: from `run` and
      the order. `run`: one start of all ranks; None: from SHARDFEED_RUN_ID, Slurm, or torchrun with
      --rdzv-id.
    - `worker`: socket path of this host's worker; None: SHARDFEED_WORKER, else the default path;
      without a worker this process reads. `fallback`: whether it also replaces a lost worker.
    - `timeout`: seconds to wait for a coordinator (or, without fallback, a worker) that does not
      answer, or for files whose listing or scan makes no progress. A rank of a dynamic job that
      replaces its lost worker waits longer, as only the coordinator can grant its reads.
    - `prefetch`: maximum batches ahead; None: 4, and more while bursts keep the trainer waiting.
      `memory_budget`: bytes or text like "4GiB" for batches ahead and records being read; None: a
      quarter of the host's or container's memory, divided by its ranks if the launcher reports it.
    - `cache_bytes`: disk space on this host, bytes or text, for data read from object stores,
      shared by all its processes; 0: no cache. `cache_dir`: folder for the cache and for indexes;
      None: SHARDFEED_CACHE_DIR, else ~/.cache/shardfeed. In a cluster the worker has its own.
    - `provenance`: whether batches report the records that their rows are made of.
    - `resume`: a state to resume from, as for `load_state_dict`; "latest": the positions of all
      ranks that the cluster knows from their heartbeats, so some batches may come again. "latest"
      excludes tail="uneven", and therefore mode="dynamic".
    - `restart`: True: every `iter()` begins at step 0 of the same epoch, for evaluation: epoch 0,
      or that of `set_epoch()` or a state. Not with mode="dynamic". False: an `iter()` after `break`
      resumes with the next batch, for training. None: as False, and the first such `iter()` warns.
    - `corrupt`: policy for a record whose data does not match its checksum, or does not fit
      features and operators. "error": raise. "skip-record": its entry is filled with the nearest
      good record of the order and is not `valid`; a file with broken framing ends there.
      "skip-file": the same, but a file with any wrong checksum is left out entirely, so all files
      are read in full when they are indexed. Skipped data is listed in `loader.skipped`, and
      logged. Batches without corrupt records are the same under all three, and a state is valid
      under any of them (unless files were left out, which changes the content).
    - `corrupt_budget`: maximum skipped per epoch on this rank: records, or as a float the fraction
      of its samples; a file left out or cut counts as one. More: an error. None: 0.01, at least 16.
    - `transform`: function of each `Batch`, called in this process before the loop receives it;
      returns the columns, as the batch itself or a dict, with as many rows. After an exception of
      it the batch comes again. See docs/FRAMEWORKS.md.
    """

    @suggesting
    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Source | Mixture | None = None,
        features: Mapping[str, Feature | ForeignFeature] | None = None,
        *,
        sequence_features: Mapping[str, Feature | ForeignFeature] | None = None,
        outputs: Sequence[str] | None = None,
        output: OutputName = "numpy",
        device: str | Device = "cpu",
        zero_copy: bool = False,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        shuffle_window: int = 10_000,
        interleave: int | None = None,
        block_length: int = 1,
        lanes: int | None = None,
        tail: Tail | None = None,
        mode: Mode = "deterministic",
        in_doubt: InDoubt | None = None,
        in_doubt_grace: float | None = None,
        limit: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        replica: tuple[int, int] | None = None,
        coordinator: str | Sequence[str] | None = None,
        job: str | None = None,
        run: str | None = None,
        dataset: str | None = None,
        worker: str | os.PathLike[str] | None = None,
        fallback: bool = True,
        timeout: float = 60.0,
        prefetch: int | None = None,
        memory_budget: int | str | None = None,
        cache_bytes: int | str = 0,
        cache_dir: str | os.PathLike[str] | None = None,
        provenance: bool = False,
        resume: State | str | Sequence[State | str] | None = None,
        restart: bool | None = None,
        compression: CompressionChoice = "auto",
        corrupt: Corrupt = "error",
        corrupt_budget: int | float | None = None,
        transform: Transform | None = None,
    ) -> None:
        mixture = files if isinstance(files, Mixture) else None
        first = mixture._main if mixture else cast(Any, files)
        source = _source(first, features, sequence_features=sequence_features, dataset=dataset, compression=compression)
        coordinators = _coordinators(coordinator)
        if coordinators is None and resume == "latest":
            raise ConfigError('resume="latest" needs a coordinator; pass a state_dict()')
        if not (isinstance(timeout, int | float) and 0 <= timeout < 10**9):
            raise ConfigError(f"timeout must be seconds, at least 0, not {timeout!r}")
        restart = None if restart is None else flag("restart", restart)
        if restart and mode == "dynamic":
            raise ConfigError(
                'restart=True: with mode="dynamic" a sample of an epoch is handed out once, so no loop could see the same '
                'batches again; use mode="deterministic" for evaluation'
            )
        if tail is None:
            tail = "uneven" if mode == "dynamic" else "drop"
        in_doubt, in_doubt_grace = doubt_policy(in_doubt, in_doubt_grace, mode)
        check_output(output)
        check_transform(transform)
        number = on_device.ordinal(device, output)
        zero_copy, shuffle = flag("zero_copy", zero_copy), flag("shuffle", shuffle)
        if number is None and zero_copy:
            raise ConfigError('zero_copy=True is for device="cuda"; on the CPU batches are viewed without a copy as it is')
        #: Location of the batches: "cpu" or "cuda:N".
        self.device = "cpu" if number is None else f"cuda:{number}"
        self._output = find_output(output) if number is None else on_device.find(output, number, zero_copy)
        found = ranks.find(rank, world_size, replica)
        own = ranks.check_replica(replica, coordinators is not None, mode, resume)
        on_gpu = () if number is None else source._device_operators or ()
        options: dict[str, Any] = {
            "files": [] if mixture else list(source.files),
            "dataset": source.dataset,
            "index": source.index,
            "coordinator": coordinators,
            "worker": None if worker is None else os.fspath(worker),
            "fallback": flag("fallback", fallback),
            "timeout": float(timeout),
            "run": own(ranks.run_id(run)),
            "ranks_on_host": ranks.on_this_host(),
            "counts_apart": coordinators is None
            and counts_without_index(mixture or source)
            and ranks.are_on_several_hosts(found.world_size),
            **declared(mixture or source, _outputs(outputs), on_device=number is not None, in_cluster=coordinators is not None),
            "batch_size": _number("batch_size", batch_size, 1),
            "seed": _number("seed", seed, 0),
            "shuffle": shuffle,
            "shuffle_window": _number("shuffle_window", shuffle_window, 1),
            "interleave": None if interleave is None else _number("interleave", interleave, 1),
            "block_length": _number("block_length", block_length, 1),
            "lanes": None if lanes is None else _number("lanes", lanes, 1),
            "tail": str(tail),
            "mode": str(mode),
            "in_doubt": in_doubt,
            "in_doubt_grace": in_doubt_grace,
            "limit": None if limit is None else _number("limit", limit, 1),
            "rank": found.rank,
            "world_size": found.world_size,
            "replica": 0 if replica is None else replica[0],
            "job": own(job),
            "prefetch": None if prefetch is None else _number("prefetch", prefetch, 1),
            "device": number,
            "device_operators": operators_to_native(on_gpu),
            "provenance": flag("provenance", provenance),
            "resumes": resume not in (None, "latest"),
            "memory_budget": _budget(memory_budget, coordinators is not None),
            "cache_bytes": _bytes("cache_bytes", cache_bytes, 0),
            "cache_dir": None if cache_dir is None else os.fspath(cache_dir),
            "compression": source.compression,
            "corrupt": str(corrupt),
            "corrupt_budget": _corrupt_budget(corrupt_budget),
        }
        #: This rank, the number of ranks, samples per rank and step; `reshard()` changes them.
        self.rank, self.world_size = found.rank, found.world_size
        self.batch_size: int = options["batch_size"]
        self._mode = mode
        #: Number of loops begun and moves made, and batches fetched by TensorFlow since the last.
        self._moves = 0
        self._passes: Any = None
        self._native = _native.NativeLoader.open(options)
        # For a loader still open at interpreter exit: reports how its rank ended, writes the
        # timeline, and releases the driver before it shuts down.
        weakref.finalize(self, _close, self._native)
        self._columns = {
            name: Column(place, kind, dtype, tuple(shape), tuple(lengths))
            for place, (name, kind, dtype, shape, lengths) in enumerate(self._native.columns())
        }
        #: Creates batches from native batches.
        self._sources = RowSources.of(mixture.names, self._native.sources()) if mixture else None
        make = functools.partial(
            Batch._of, columns=self._columns, with_provenance=provenance, output=self._output, sources=self._sources
        )
        self._make = then(make, transform)
        self._is_transformed = transform is not None
        self._check_dtypes()
        self._has_short_batches = tail == "uneven"
        if corrupt == "error":
            self._check_records([one for _, one in mixture.versions] if mixture else [source])
        #: Epoch of each pass with `restart=True`, and the start position of the last pass.
        self._restart, self._pass_epoch = restart, self.epoch
        self._pass: tuple[int, int] | None = None
        if resume == "latest":
            self._native.load_latest()
            self._moved()
        elif resume is not None:
            self.load_state_dict(resume)
        self._warn_of_what_is_missing()

    def __iter__(self) -> Iterator[Batch]:
        """Iterates over the rest of the current epoch; with `restart=True` over all of it."""
        return self._begin()

    def epochs(self, count: int) -> Iterator[Epoch]:
        """Yields an iterator over (the rest of) the batches of each epoch up to `count` - 1.

            for epoch in loader.epochs(90):
                for batch in epoch: ...

        A resumed loader continues in its epoch and ends with the same one. After a `break` in the
        inner loop, the rest of that epoch comes next, as with `iter()`. Raises `RuntimeError` if no
        batch was consumed in between, `ConfigError` with `restart=True`.
        """
        if self._restart:
            raise ConfigError("epochs() goes from epoch to epoch, and restart=True repeats one; iterate over the loader")
        last = None
        while self.epoch < _number("count", count, 0):
            stands = self._native.cursor()
            if stands == last:
                raise RuntimeError(f"no batch of epoch {self.epoch} was taken since epochs({count}) gave it; iterate over it")
            last = stands
            self._moves += 1
            yield Epoch(self, self.epoch)

    def progress(self, *, file: TextIO | None = None) -> Iterator[Batch]:
        """Iterates over the rest of the epoch, as `iter()`, with a progress bar on rank 0: step,
        number of steps, rate, and percentage of time spent waiting for batches.

            for batch in loader.progress(): ...
            for epoch in loader.epochs(90):
                for batch in epoch.progress(): ...

        Uses tqdm if installed, else lines of text; writes nothing if `file` (None: stderr) is not a
        terminal. The bar of a resumed loader begins at its step.
        """
        return self._begin().progress(file=file)

    def __len__(self) -> int:
        """Steps of the whole current epoch, that of `epoch`, for this rank, also after a resume. Raises
        `TypeError` with mode="dynamic"."""
        steps = self._native.steps()
        if steps is None:
            raise TypeError(
                'len() is unknown until the epoch ends with mode="dynamic"; use mode="deterministic" for equal steps '
                'that are known'
            )
        return steps

    @property
    def epoch(self) -> int:
        """Epoch of the next batch, the current epoch: from the last batch of an epoch on, the next epoch.
        `len()`, `samples`, `dropped` and `left_out` are numbers of the current epoch."""
        return self._native.cursor()[0]

    @property
    def step(self) -> int:
        """Step of the next batch in its epoch."""
        return self._native.cursor()[1]

    @property
    def generation(self) -> int:
        """Number of starts that moved the ranks to another position; higher after a start from a
        state than in the start that saved it. A cluster counts all starts of its job."""
        return self._native.cursor()[2]

    @property
    def output(self) -> OutputName:
        """Type of numeric columns: "numpy", "torch", "jax" or "tf"."""
        return self._output.name

    @property
    def mode(self) -> Mode:
        """Assignment of samples to ranks: "deterministic" or "dynamic"."""
        return self._mode

    @property
    def job(self) -> str:
        """Name of the job in its cluster; "local" without one."""
        return self._native.job()

    @property
    def sources(self) -> list[str]:
        """Names of the sources of a mixture, in the order of their bytes; otherwise empty."""
        return [] if self._sources is None else list(self._sources.names)

    @property
    def shards(self) -> list[str]:
        """Paths of the shards relative to the dataset's folder; of a mixture source after source."""
        return self._native.shards()[0]

    @property
    def records(self) -> int:
        """Records of the dataset."""
        return self._native.counts()[0]

    @property
    def samples(self) -> int:
        """Samples of the dataset; of a mixture those of the current epoch, that of `epoch`."""
        return self._native.counts()[1]

    @property
    def dropped(self) -> int:
        """Samples of the current epoch, that of `epoch`, that no step delivers."""
        return self._native.counts()[2]

    @property
    def left_out(self) -> int:
        """Samples of the current epoch, that of `epoch`, in steps that `skip()` left out."""
        return self._native.counts()[3]

    @property
    def skipped(self) -> list[Skipped]:
        """Skipped corrupt data: files left out, then records as this rank met them, each once; the
        first 1,000. `stats()` counts all: `skipped`, `skipped_in_epoch`, `files_left_out`."""
        return [Skipped(*one) for one in self._native.skipped()]

    @property
    def plan_digest(self) -> str:
        """Digest that is equal on ranks with the same job, state, world size and batch size."""
        return self._native.plan_digest()

    def set_epoch(self, epoch: int) -> None:
        """Moves to the beginning of `epoch`, except right after loading a state of that epoch."""
        self._native.set_epoch(_number("epoch", epoch, 0, _native.EPOCHS))
        self._moved()

    def reshard(self, step: int, world_size: int, rank: int | None = None) -> None:
        """Reshards the rest of this epoch to `world_size` ranks without a restart: for the
        remaining ranks after others are gone for good, or after ranks were added.

        All ranks call it equally often, with the same `step`: the minimum over the ranks of the first step not
        consumed (`loader.step`; batches consumed beyond it come again). The global batches stay the
        same, so `batch_size` becomes the global batch divided by `world_size`. Ranks that do not
        call it get `SupersededError`. New ranks start from a `state_dict()` that a rank makes after its call.

        - `step`: of this epoch; not beyond this rank's own.
        - `world_size`: must divide the global batch. It may be the same as before, when new ranks take the
          places of lost ones.
        - `rank`: new rank; None: unchanged. The ranks must be 0 to world_size - 1.

        Raises `ConfigError` if the numbers do not fit, also with tail="uneven" or mode="dynamic";
        the loader is unchanged then.
        """
        self.rank, self.batch_size = self._native.reshard(
            _number("step", step, 0),
            _number("world_size", world_size, 1),
            None if rank is None else _number("rank", rank, 0),
        )
        self.world_size = int(world_size)
        self._moved()

    def skip(self, steps: int) -> None:
        """Leaves out the next `steps` steps of the epoch, at most all but one. All ranks call it at the
        same step. An epoch has at most 8 parts that are left out; calls in a row extend one part.
        `ConfigError` beyond that, and for tail="uneven", mode="dynamic" and restart=True."""
        steps = _number("steps", steps, 1)
        if self._restart:
            raise ConfigError("skip() leaves out nothing with restart=True, where each loop begins at step 0")
        if self._passes is not None and (unused := self._passes.state(self._moves)):
            self._native.load([unused], False)
        self._native.skip(steps)
        self._moved()

    def state_dict(self) -> State:
        """Returns the state: batches that the loop received count as consumed, and no others; for
        `as_tf_dataset()`, elements that left the dataset. Small, JSON, and the same on every rank
        (with tail="uneven" it describes this rank only)."""
        unused = None if self._passes is None else self._passes.state(self._moves)
        state: State = json.loads(unused or self._native.state())
        return state

    def state_after(self, batch: Batch) -> State:
        """Returns the state after a batch of this loader: for frameworks that fetch ahead, and for
        exceptions between the loader and the step, as around `next()`. Raises `ConfigError` for a
        batch rebuilt from a mapping, which has no position in the order."""
        state: State = json.loads(self._native.state_after(batch._slot))
        return state

    def load_state_dict(
        self, state: State | str | Sequence[State | str], *, missing: Literal["error", "replay"] = "error"
    ) -> None:
        """Resumes from a state, at any world size whose batches the lanes divide.

        - `state`: returned by `state_dict()`, or its JSON. With tail="uneven" and another world
          size: a list of the states of all ranks.
        - `missing`: "error", or "replay": ranks without a state in that list deliver the batches
          since their last start again.

        Raises `StateError` if the state is not of this job, is of a later version, or is not a
        state; the loader is unchanged then.
        """
        if missing not in ("error", "replay"):
            raise ConfigError(f'missing={missing!r} is neither "error" nor "replay"')
        states: list[Any] = list(state) if isinstance(state, list | tuple) else [state]
        self._native.load([_json(each) for each in states], missing == "replay")
        self._moved()

    def as_tf_dataset(
        self, *, valid: str | None = None, source: str | None = None, state: str | None = None, epochs: int | None = None
    ) -> tf.data.Dataset:
        """Returns a `tf.data.Dataset` of dicts, one per batch; one pass is (the rest of) one epoch.

        Its `element_spec` is static: the batch size unless tail="uneven", strings as string
        tensors, ragged and sparse features as `tf.RaggedTensor` (splits int64) and
        `tf.SparseTensor`. TensorFlow must not shard it again: its AutoShard policy is OFF. Keras'
        `fit` accepts it; batches are copied into TensorFlow's threads.

        The next pass continues a pass that was left (`break`, `take()`): elements that TensorFlow
        fetched beyond the last one used come again, and `state_dict()` does not count them. An
        element is used when it leaves the dataset, or its `map()`, `prefetch()`, `take()` or
        `with_options()`. `batch()`, `repeat()`, `shuffle()`, tf.distribute etc. use all they take.

        - `valid`, `source`: names of `batch.valid`, bool `[rows]`, and of `batch.source` of a mixture,
          int32 `[rows]`, in the elements; None: not included.
        - `state`: name of the JSON of `state_after(batch)` in the elements, a string `[]`: for
          checkpoints where other transformations fetch ahead.
        - `epochs`: a pass covers epochs 0 to `epochs` - 1, as `epochs()`; None: one epoch. With
          `repeat()` instead, `state_dict()` counts the elements that `repeat()` has fetched.

        Needs output="numpy" or "tf", device="cpu" and no `transform`. Raises `ConfigError` if a name is a
        column's, and for `source` without a mixture.
        """
        TensorFlow()  # Raises an error if TensorFlow is not installed.
        from shardfeed import tf_dataset

        return tf_dataset.make(self, valid, source, state, None if epochs is None else _number("epochs", epochs, 0))

    def stats(self) -> Stats:
        """Returns counters and chosen settings: reading mode, batches ahead, bytes, waiting time.

        With mode="dynamic" also `granted` (samples granted to this rank that it has not begun),
        `lookahead` (samples that it requests) and `horizon_waits` (ready batches that waited for
        the coordinator). For files in a store: `store_requests`, of these `store_retries`,
        `store_bytes` and `cached_bytes`, as last reported by the worker. `suspect_images`: images
        decoded although libjpeg-turbo warned about their data, as TensorFlow decodes them.

        With a GPU `device=`: `device_slots`, `device_slot_bytes` (device memory), `device_ahead`,
        `device_batches`, of these `device_late_batches` (requested before they were copied),
        `device_bytes`, `device_pageable_batches` (copied slowly, as the system refused to pin their
        memory), `device_pinned_bytes`, `device_extra_slots` (times that the loop held all slots).

        `account`: time in microseconds, over the last seconds (`recent`) and in this epoch
        (`in_epoch`): of the trainer (`wait_us`, `work_us`), the planning thread (`fill_us`,
        `read_wait_us`, `gather_us`, `grant_us`, `room_us`, `confirm_us`), and, summed over threads,
        storage and computing (`storage_us`, `inflate_us`, `parse_us`, `write_us`; `compute_us` is
        the last two in wall time, including waits for a core); `setup` has the chosen settings.
        `waiting_us`: the trainer's wait for its next batch so far; in a long wait, `recent` covers
        the time since the previous batch. `why()` interprets these numbers.
        """
        stats = self._native.stats()
        if "account" in stats:
            stats["account"] = json.loads(stats["account"])
        return cast(Stats, stats)

    def why(self) -> Why:
        """Returns this rank's bottleneck and a remedy: `sentence` for people; `limit` ("trainer",
        "storage", "inflating", "decoding", "gathering", "window_fill", "memory_budget", "prefetch",
        "held_batches", "coordinator" or "unknown"), `wait_percent` (of the trainer's time),
        `is_cold` (first read of the shards, from storage devices), `because` and `change`."""
        text, sentence = self._native.why()
        found: Why = json.loads(text) | {"sentence": sentence}
        return found

    def close(self) -> None:
        """Stops reading ahead. Batches in use stay valid; state, epoch, step, length and statistics
        stay as they were."""
        self._native.close()

    def __getitem__(self, index: object) -> NoReturn:
        """Raises `TypeError` with a remedy: a torch `DataLoader` would index samples."""
        raise TypeError(
            "a Loader has no samples to index: iterate over it. In a torch DataLoader use "
            'DataLoader(sf.torch.Dataset(loader), batch_size=None, num_workers=0), with output="torch"'
        )

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._native.close(None if error is None else _described(error))

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Loader speaks for its rank with threads and memory of this process, which another one cannot take over: "
            "pickle its state_dict(), or make the loader in that process (torch's DataLoader: num_workers=0)"
        )

    def __repr__(self) -> str:
        steps = self._native.steps()
        return (
            f"Loader(rank={self.rank}, world_size={self.world_size}, epoch={self.epoch}, "
            f"step={self.step}/{'?' if steps is None else steps}, shards={len(self.shards)}, records={self.records})"
        )

    def _warn_of_what_is_missing(self) -> None:
        """Warns about settings that are legal, but most often a mistake."""
        sources = self._native.sources()
        if self._native.steps() == 0:
            warnings.warn(
                f"{'epoch ' + str(self.epoch) if sources else 'every epoch'} has 0 steps: {self.samples} samples are less than one batch of all "
                f'ranks; use a smaller batch_size, or tail="pad"',
                stacklevel=4,
            )
        starts = [start for _, start, _ in sources] or [0]
        missing = [one for of in map(slice, starts, [*starts[1:], None]) for one in missing_shards(self.shards[of])]
        if missing:
            warnings.warn(
                f"{len(missing)} shards that the files' names speak of are not among the files, "
                f"the first is {missing[0]!r}; check the pattern and the copy",
                stacklevel=4,
            )

    def _check_records(self, sources: Sequence[Source]) -> None:
        """Rejects files that were cut off between two records, which look like shorter files."""
        counts = self._native.sources() or [("", 0, self.records)]
        for source, (*named, found) in zip(sources, counts, strict=True):
            known = source.records
            if known is None or known == found:
                continue
            self.close()
            which = f"source {named[0]!r}: " if len(sources) > 1 else ""
            raise ShardChangedError(
                f"{which}the files hold {found} records, but {known} were written; they were changed since, or a copy "
                f"is not whole: write or copy them again"
            )

    def _check_dtypes(self) -> None:
        """Rejects columns of types that batches cannot have, before anything is read."""
        numbers = [(name, column) for name, column in self._columns.items() if column.dtype != "bytes"]
        whole = [(name, column.dtype) for name, column in numbers if column.kind in ("dense", "padded")]
        self._output.check(whole)
        for name, column in numbers:
            if (name, column.dtype) not in whole:
                as_numpy(column.dtype)

    def _check_restart(self, where: str) -> None:
        """Rejects a loader whose evaluations would each see different samples."""
        if not self._restart:
            raise ConfigError(
                f"{where}: this loader has no restart=True, so an evaluation that stops early would leave its rest to the "
                f"next one; make it with restart=True, then each begins at step 0 of the same epoch"
            )

    def _moved(self) -> None:
        """Notes that the position was set explicitly."""
        self._moves += 1
        self._pass, self._pass_epoch = None, self.epoch

    def _begin(self) -> Epoch:
        """Begins a pass over the loader."""
        self._moves += 1
        if self._restart:
            self._native.restart(self._pass_epoch)
        stands = self.epoch, self.step
        if self._pass is not None and self._pass < stands and self._pass[0] == stands[0]:
            self._warn_of_rest(*stands, stacklevel=4)
        self._pass = stands
        return Epoch(self, stands[0])

    def _warn_of_rest(self, epoch: int, step: int, stacklevel: int) -> None:
        """Warns once, unless intended, that a pass continues inside an epoch."""
        if self._restart is None:
            warnings.warn(
                f"this loop continues at step {step} of epoch {epoch}, where the one before was left; for evaluation, "
                f"where every loop is to see the same batches, make the loader with restart=True, and where this is "
                f"meant, with restart=False",
                stacklevel=stacklevel,
            )
            self._restart = False


class Epoch(_native.NativeEpoch):
    """The rest of one epoch of a loader; `number` is the epoch number.

    In `for batch in epoch`, when an exception such as that of a signal handler is raised,
    `loader.state_dict()` is at the first batch that the loop did not receive. `make`: converts the
    worker's batch for the loop, before the batch is consumed.
    """

    __slots__ = ("_loader",)
    _loader: Loader

    def __new__(cls, loader: Loader, epoch: int, make: Any = None, asked: Any = None, ended: Any = None) -> Self:
        new = super().__new__(cls, loader._native, epoch, make or loader._make, asked, ended)
        new._loader = loader
        return new

    def progress(self, *, file: TextIO | None = None) -> Iterator[Batch]:
        """Iterates over these batches with a progress bar, as `Loader.progress()`."""
        return progress.show(self._loader, self, file)


def _source(files: Any, features: Any, **more: Any) -> Source:
    """Returns the source that a loader was given, or the source of its files."""
    if not isinstance(files, Source):
        return make_source(files, features, **more)
    more["features"] = features
    given = [name for name, value in more.items() if value not in (None, "auto")]
    if given:
        parse = ", or for raw records to source.parse()" if "features" in given[0] else ""
        raise ConfigError(f"{given[0]}= belongs to the source: pass it to sf.source(files, {given[0]}=...){parse}")
    return files


def _outputs(outputs: Sequence[str] | None) -> list[str] | None:
    if outputs is None:
        return None
    if isinstance(outputs, str) or not all(isinstance(name, str) for name in outputs):
        raise ConfigError(f"outputs is a list of columns' names, not {outputs!r}")
    return list(outputs)


def _coordinators(given: str | Sequence[str] | None) -> str | None:
    """Returns the addresses separated by commas; None without a cluster."""
    if given is None or given == "":
        return os.environ.get("SHARDFEED_COORDINATOR") or None
    if isinstance(given, str):
        return given
    addresses = list(given)
    if not addresses or not all(isinstance(address, str) and "," not in address for address in addresses):
        raise ConfigError(f'coordinator={given!r} is no list of texts such as "host:7070"')
    return ",".join(addresses)


def _budget(value: int | str | None, in_cluster: bool) -> int | None:
    if value is None and in_cluster:
        return None  # the worker divides its own
    if value is None:
        return _native.default_budget_bytes() // max(1, ranks.on_this_host())
    return _bytes("memory_budget", value, 1)


def _corrupt_budget(value: int | float | None) -> int | float | None:
    if isinstance(value, float):
        if not 0 <= value <= 1:
            raise ConfigError(f"corrupt_budget as a part of the samples must be from 0.0 to 1.0, not {value}")
        return value
    return None if value is None else _number("corrupt_budget", value, 0)


def _whole(value: object) -> int:
    """Converts a framework's number, such as np.int64 from its checkpoints."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{value!r:.60} is a {type(value).__name__}") from None


def _json(state: State | str) -> str:
    if isinstance(state, str):
        if not state.lstrip().startswith("{"):
            raise StateError(
                f"{state[:60]!r} is not a state's JSON; if it is a path, pass json.load(open(path))"
            )
        return state
    try:
        return json.dumps(state, default=_whole)
    except (TypeError, ValueError) as error:
        raise StateError(f"the state is not a result of state_dict(): {error}") from None

