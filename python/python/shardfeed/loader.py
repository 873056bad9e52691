"""One rank's batches, epoch after epoch."""

from __future__ import annotations

import functools
import json
import operator
import os
import re
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self, TextIO, TypeAlias, cast

from shardfeed import _native, progress, ranks
from shardfeed import device as on_device
from shardfeed.batch import Batch, Column
from shardfeed.dtypes import as_numpy
from shardfeed.device import Device
from shardfeed.errors import ConfigError, ShardChangedError, TokenError
from shardfeed.features import Feature, ForeignFeature, checked, row_lengths, to_native
from shardfeed.operators import Operator
from shardfeed.operators import device_to_native as device_operators_to_native
from shardfeed.operators import to_native as operators_to_native
from shardfeed.options import CompressionChoice, Corrupt, InDoubt, Mode, OutputName, Tail, doubt_policy, flag, suggesting
from shardfeed.output import TensorFlow
from shardfeed.output import check_name as check_output
from shardfeed.output import find as find_output
from shardfeed.reports import Stats, Why
from shardfeed.sizes import byte_size as _bytes
from shardfeed.sizes import whole_number as _number
from shardfeed.sources import Source

if TYPE_CHECKING:
    import tensorflow as tf

#: What `state_dict()` returns: JSON.
State: TypeAlias = dict[str, object]


class Skipped(NamedTuple):
    """Something corrupt that was skipped. `what` is "record"; or of a damaged file "rest", all from this record
    on, or "file", all of it."""

    file: str
    offset: int
    ordinal: int
    reason: str
    what: str


def _described(error: BaseException) -> str | None:
    """An error as the coordinator shows it; None: the process was asked to end."""
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)) or (isinstance(error, SystemExit) and not error.code):
        return None
    return f"{type(error).__name__}: {error}"


def _close(native: _native.NativeLoader) -> None:
    """Closes a loader that its program left open, with the error that ended the program, if one did."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    native.close(None if error is None else _described(error))


class Loader:
    """The batches of one rank. Iterating goes through one epoch and stops; iterating again goes on
    with the next one. After a `break` the next loop goes on with the batch that would have come.

    Which sample stands in which batch follows from the files' content, `seed`, `shuffle`,
    `shuffle_window`, `interleave`, `block_length`, `lanes` and `tail` alone, and from the global batch
    (batch_size x world_size): not from prefetch or threads. Ranks agree without talking to each other.
    For the same global batches at another world size keep `lanes` and batch_size x world_size; a state
    keeps its lanes.

    - `files`: a path, a glob, or a list of them, or "@whole.txt" for what the lines of a text name; or URLs, such as "s3://bucket/train/*.tfrecord", gs://, az:// or
      https:// (there without patterns): docs/SOURCES.md. Credentials come from the environment. Or a `Source`, as
      `from_arrays`, `from_generator`, `from_tfds` and `open_source` give it, which says what is in its files: its
      features, and its operators before those that are given, unless `features` are. docs/DATASETS.md.
    - `features`: name to `FixedLenFeature`, `VarLenFeature`, `FixedLenSequenceFeature`, `RaggedFeature` or
      `SparseFeature`, or those of `tf.io` themselves; None: raw records under "record".
    - `sequence_features`: name to `FixedLenSequenceFeature`, `VarLenFeature` or `RaggedFeature` of the feature
      lists of `tf.train.SequenceExample`s; `features` are then those of the context. No name may be in both.
    - `operators`: what is made of the columns, one after the other, by the worker: see `shardfeed.operators`. They
      are part of the job's order: a state goes on under the same ones only.
    - `outputs`: names of the columns that batches have; None: all of features and operators.
    - `output`: what batches have for numbers: "numpy" arrays, or "torch", "jax" or "tf" (TensorFlow) tensors, which
      view the batch without a copy. See docs/FRAMEWORKS.md.
    - `device`: where they are: "cpu", or "cuda" or "cuda:0" for a GPU of NVIDIA's, to which batches are copied ahead of
      the loop. There "numpy" gives `DeviceArray`s, which others take by DLPack, "torch" and "jax" tensors of the
      framework's own memory; "tf" is for the CPU. `zero_copy`: with "torch", tensors that view the batch instead, which
      is used again when they are gone: work on other streams must be over by then. See docs/GPU.md.
    - `device_operators`: `cast`, `normalize` and `layout` that come after `operators` and that the GPU carries out, so that
      what is small crosses the bus. The bits are the worker's. They are no part of the order: a state goes on under others.
      With device="cpu" they are the last of `operators`, and as those.
    - `batch_size`: samples per rank and step.
    - `shuffle_window`: samples of a lane that are shuffled among each other; at least a lane's
      length is one uniform shuffle. Memory is about two windows of records for each lane of this
      rank, or less within `memory_budget`.
    - `interleave`, `block_length`: files that are read in turn, and samples taken in a turn. `interleave=None`: 16, or
      1 with `shuffle=False`, which keeps the order of the files.
    - `lanes`: equal pieces that an epoch is cut into; must divide batch_size x world_size. None: the
      world size, or what the state to resume from says.
    - `tail`: "drop" leaves the incomplete last step out, "pad" fills it with samples that are not
      `valid`, "uneven" gives everything once, in steps that may be short and may differ by rank. None: "drop", or with
      mode="dynamic" "uneven", the only one that it has.
    - `mode`: "deterministic": which rank delivers what follows from the order. "dynamic": the coordinator hands
      groups of `interleave` files out to whoever asks first, for ranks of different speed and for files that
      arrive slowly; everything in an epoch is still delivered once. An epoch ends for all ranks when every
      sample is consumed, so its steps are not known before; a rank that is gone leaves its rest to the others. A
      state goes on only in the same cluster, while that keeps the lists. It has tail="uneven" only, and no `limit` or
      `lanes`.
    - `in_doubt`, `in_doubt_grace`: with mode="dynamic", what becomes of samples that a trainer had begun when its worker or
      its process was gone, and of which it has not said whether it consumed them. No other rank gets them while it may
      come back and say so: once everything else of the epoch is consumed, for `in_doubt_grace` seconds (None: 60) more, or
      until `shardfeed rank gone`. Then "redeliver" (None) gives them to other ranks: none is lost, and those that
      the trainer did consume come twice; "drop" to nobody: none comes twice, and those that it did not consume are lost.
      The same on all ranks.
    - `limit`: only the first slots of the order, for smoke runs.
    - `rank`, `world_size`: None: from SHARDFEED_RANK and SHARDFEED_WORLD_SIZE, torch.distributed if it is initialized,
      torchrun, Horovod, Open MPI, MVAPICH2, Slurm, Cray PALS, Cray ALPS, PMI, jax.distributed if it is initialized, or
      TF_CONFIG, the first that knows, else 0 of 1. The logger "shardfeed" says which one.
    - `replica`: (i, n): this process is the i-th of n that get the same batches, as with tensor or pipeline parallelism. A
      launcher's rank is then that of n consecutive processes; a given one is the data-parallel rank, for any other
      grouping. None: no other process gets these batches. In a cluster the replicas are a job each, "NAME.replica-1"
      beside "NAME", which reads for itself; mode="deterministic" only, and no resume="latest".
    - `coordinator`: addresses of a cluster's coordinators, a list of "host:port" or one text with commas; one
      that answers is enough, the leader is found. "@PATH": of the file that a coordinator writes with
      --endpoint-file, which is waited for. None: SHARDFEED_COORDINATOR if that is set, else everything in
      this process.
      In a cluster this host's worker reads and batches, and the arrays view its shared memory; the batches are
      the same. If it dies, this process goes on in its place at the exact batch.
    - `job`: the name that the ranks share in the cluster; it stands for one order. None: made of `run` and
      the order. `run`: one start of all ranks; None: what Slurm says, or torchrun with
      --rdzv-id.
    - `dataset`: a dataset that the cluster knows by this name, instead of `files`.
    - `worker`: path of this host's worker's socket; None: SHARDFEED_WORKER, else the usual place; without one
      this process reads by itself. `fallback`: whether it also does in place of a worker that is gone.
    - `timeout`: seconds to wait for a coordinator (or a worker without fallback) that does not answer, or for files whose
      listing or scan makes no progress. A
      rank of a dynamic job that does its lost worker's work waits on, as nobody else can say what it may read.
    - `prefetch`: batches ahead at most; None: 4, and more while the trainer is kept waiting by bursts. `memory_budget`: bytes or text like "4GiB" for batches ahead
      and records in reading; None: a quarter of the memory of the host or container, divided by the ranks on the host if
      the launcher says how many.
    - `cache_bytes`: space on this host's disk, bytes or text, for what was read of files in object stores, shared by
      all its processes; 0: nothing of it is kept. `cache_dir`: folder for that and for indexes; None:
      SHARDFEED_CACHE_DIR, else ~/.cache/shardfeed. In a cluster the worker has its own.
    - `provenance`: whether batches say which records they are made of.
    - `resume`: a state to go on from, as for `load_state_dict`; "latest": where the cluster knows all
      ranks of the job to stand (it hears of it every heartbeat, so some batches may come again); not with
      tail="uneven", so neither with mode="dynamic".
    - `restart`: True: every `iter()` begins at step 0 of the same epoch, for evaluation: of epoch 0, or of that which
      `set_epoch()` or a state says. Not with mode="dynamic". False: an `iter()` after a `break` goes on with the batch
      that would have come, for training. None: as False, and the first such `iter()` warns.
    - `compression`: "auto", "none", "gzip" or "zlib".
    - `corrupt`: what to do about a record whose data does not match its checksum, or is not what features and
      operators say. "error": raise. "skip-record": its slot is filled with the nearest good record of the order and
      is not `valid`; a file whose framing breaks ends there. "skip-file": the same, but a file with any wrong checksum
      is left out whole, for which all files are read when they are indexed. Everything that is skipped is in
      `loader.skipped`, and logged. Batches without corrupt records are the same under all three, and a state goes
      on under any of them (unless files were left out, which is other content).
    - `corrupt_budget`: how much may be skipped of an epoch on this rank, in records or, as a float, as a part of its
      samples; a file that is left out, or cut, counts as one. Beyond it: an error. None: 0.01, at least 16.
    """

    @suggesting
    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Source | None = None,
        features: Mapping[str, Feature | ForeignFeature] | None = None,
        *,
        sequence_features: Mapping[str, Feature | ForeignFeature] | None = None,
        operators: Sequence[Operator] = (),
        outputs: Sequence[str] | None = None,
        output: OutputName = "numpy",
        device: str | Device = "cpu",
        device_operators: Sequence[Operator] = (),
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
    ) -> None:
        known_records = None
        if isinstance(files, Source):
            known_records = files.records
            if features is None:
                features, operators = files.features, _after(files.operators, operators)
            files = list(files.files)
        features, sequence_features = checked(features), checked(sequence_features, "sequence_features")
        coordinators = _coordinators(coordinator)
        if coordinators is None and resume == "latest":
            raise ConfigError('resume="latest" needs a coordinator; pass a state_dict()')
        if (files is None) == (dataset is None):
            raise ConfigError("pass files, or dataset= with a name that the cluster knows")
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
        number = on_device.ordinal(device, output)
        zero_copy, shuffle = flag("zero_copy", zero_copy), flag("shuffle", shuffle)
        if number is None and zero_copy:
            raise ConfigError('zero_copy=True is for device="cuda"; on the CPU batches are viewed without a copy as it is')
        #: Where batches are: "cpu", or "cuda:N".
        self.device = "cpu" if number is None else f"cuda:{number}"
        self._output = find_output(output) if number is None else on_device.find(output, number, zero_copy)
        found = ranks.find(rank, world_size, replica)
        own = _check_replica(replica, coordinators is not None, mode, resume)
        on_gpu = device_operators_to_native(device_operators)
        # What is no list of operators is refused later.
        if number is None and isinstance(operators, list | tuple):
            operators = [*operators, *device_operators]
        options: dict[str, Any] = {
            "files": [] if files is None else _files(files),
            "dataset": dataset,
            "coordinator": coordinators,
            "worker": None if worker is None else os.fspath(worker),
            "fallback": flag("fallback", fallback),
            "timeout": float(timeout),
            "run": own(ranks.run_id(run)),
            "ranks_on_host": ranks.on_this_host(),
            "features": to_native(features),
            "sequence_features": to_native(sequence_features),
            "operators": operators_to_native(operators),
            "outputs": _outputs(outputs),
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
            "job": own(job),
            "prefetch": None if prefetch is None else _number("prefetch", prefetch, 1),
            "device": number,
            "device_operators": None if number is None else on_gpu,
            "provenance": flag("provenance", provenance),
            "memory_budget": _budget(memory_budget, coordinators is not None),
            "cache_bytes": _bytes("cache_bytes", cache_bytes, 0),
            "cache_dir": None if cache_dir is None else os.fspath(cache_dir),
            "compression": compression or "none",
            "corrupt": str(corrupt),
            "corrupt_budget": _corrupt_budget(corrupt_budget),
        }
        #: This rank, the number of ranks, and the samples per rank and step: `redeal()` changes them.
        self.rank, self.world_size = found.rank, found.world_size
        self.batch_size: int = options["batch_size"]
        self._mode = mode
        #: How often a loop over it began, or it was told where to go on; and what TensorFlow has fetched since.
        self._moves = 0
        self._passes: Any = None
        self._native = _native.NativeLoader.open(options)
        # What is left open when the interpreter ends says how its rank ended, writes its timeline, and lets go of the
        # driver before that shuts down.
        weakref.finalize(self, _close, self._native)
        lengths = row_lengths(features, sequence_features)
        self._columns = {
            name: Column(place, kind, dtype, tuple(shape), lengths.get(name, ()) if kind == "ragged" else ())
            for place, (name, kind, dtype, shape) in enumerate(self._native.columns())
        }
        #: Makes batches of the native ones.
        self._make = functools.partial(
            Batch._of, columns=self._columns, with_provenance=provenance, output=self._output
        )
        self._check_dtypes()
        self._has_short_batches = tail == "uneven"
        if known_records is not None and corrupt == "error":
            self._check_records(known_records)
        #: The epoch of each pass with `restart=True`; and where the pass began that was the last one.
        self._restart, self._pass_epoch = restart, self.epoch
        self._pass: tuple[int, int] | None = None
        if resume == "latest":
            self._native.load_latest()
            self._moved()
        elif resume is not None:
            self.load_state_dict(resume)
        self._warn_of_what_is_missing()

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the epoch that the loader stands in; with `restart=True` all of it."""
        return self._begin()

    def epochs(self, count: int) -> Iterator[Epoch]:
        """What is left of the epochs 0 to `count` - 1: for each an iterator over (the rest of) its batches.

            for epoch in loader.epochs(90):
                for batch in epoch: ...

        A resumed loader goes on in its epoch and ends with the same one. After a `break` in the inner loop the rest of
        that epoch comes next, as with `iter()`. Raises `RuntimeError` if no batch was taken in between, `ConfigError`
        with `restart=True`.
        """
        if self._restart:
            raise ConfigError("epochs() goes from epoch to epoch, and restart=True repeats one; iterate over the loader")
        last = None
        while self.epoch < _number("count", count, 0):
            stands = self._native.cursor()
            if stands == last:
                raise RuntimeError(
                    f"no batch of epoch {self.epoch} was taken since the loop over epochs({count}) gave it; iterate over it"
                )
            last = stands
            self._moves += 1
            yield Epoch(self, self.epoch)

    def progress(self, *, file: TextIO | None = None) -> Iterator[Batch]:
        """The rest of the epoch, as `iter()` gives it, with a progress bar on rank 0: the step, of how many, the rate,
        and how much of the time was spent waiting for batches.

            for batch in loader.progress(): ...
            for epoch in loader.epochs(90):
                for batch in epoch.progress(): ...

        By tqdm if that is installed, else as lines of text; nothing is written if `file` (None: stderr) is no terminal.
        A resumed loader's begins where it goes on.
        """
        return self._begin().progress(file=file)

    def __len__(self) -> int:
        """Steps of the whole epoch for this rank, also after a resume. Raises `TypeError` with
        mode="dynamic"."""
        steps = self._native.steps()
        if steps is None:
            raise TypeError(
                'len() is unknown until the epoch ends with mode="dynamic"; use mode="deterministic" for equal steps '
                'that are known'
            )
        return steps

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of."""
        return self._native.cursor()[0]

    @property
    def step(self) -> int:
        """The step of the epoch that comes next."""
        return self._native.cursor()[1]

    @property
    def generation(self) -> int:
        """Counts starts that went elsewhere than the ranks stood: a start from a state has a higher one
        than the start that made the state. A cluster counts all starts of its job."""
        return self._native.cursor()[2]

    @property
    def output(self) -> OutputName:
        """What batches have for numbers: "numpy", "torch", "jax" or "tf"."""
        return self._output.name

    @property
    def mode(self) -> Mode:
        """Who decides which rank delivers a sample: "deterministic" or "dynamic"."""
        return self._mode

    @property
    def job(self) -> str:
        """Name of the job in its cluster; "local" without one."""
        return self._native.job()

    @property
    def shards(self) -> list[str]:
        """Paths of the shards relative to the dataset, in manifest order."""
        return self._native.shards()[0]

    @property
    def records(self) -> int:
        """Records of the dataset."""
        return self._native.counts()[0]

    @property
    def dropped(self) -> int:
        """Samples of the current epoch that no step delivers."""
        return self._native.counts()[1]

    @property
    def skipped(self) -> list[Skipped]:
        """What was skipped because it is corrupt: files that are left out, then records in the order in which
        this rank met them, each once; the first 1,000. `stats()` counts all: `skipped`, `skipped_in_epoch`,
        `files_left_out`."""
        return [Skipped(*one) for one in self._native.skipped()]

    @property
    def plan_digest(self) -> str:
        """Equal on all ranks that were started alike: same job, state, world size and batch size."""
        return self._native.plan_digest()

    def set_epoch(self, epoch: int) -> None:
        """Moves to the beginning of `epoch`, except right after loading a state of that epoch."""
        self._native.set_epoch(_number("epoch", epoch, 0, _native.EPOCHS))
        self._moved()

    def redeal(self, step: int, world_size: int, rank: int | None = None) -> None:
        """Deals the rest of this epoch anew to `world_size` ranks, without a restart: for the ranks that
        are left when others are gone for good, or when more have come.

        All of them call it with the same `step`, the least first step that one of them has not consumed
        (`loader.step`; what was taken beyond it comes again). The global batches stay the same, so
        `batch_size` becomes the global batch divided by `world_size`; whoever was not called gets
        `SupersededError`. Ranks that come anew start from a `state_dict()` of this position.

        - `step`: of this epoch; not beyond this rank's own.
        - `world_size`: must divide the global batch.
        - `rank`: what this rank becomes; None: what it is. The ranks must be 0 to world_size - 1.

        Raises `ConfigError` if the numbers do not fit, also with tail="uneven" or mode="dynamic"; the loader is
        unchanged then.
        """
        self.rank, self.batch_size = self._native.redeal(
            _number("step", step, 0),
            _number("world_size", world_size, 1),
            None if rank is None else _number("rank", rank, 0),
        )
        self.world_size = int(world_size)
        self._moved()

    def state_dict(self) -> State:
        """Where the loader stands: the batches that the loop got are consumed, no others; of `as_tf_dataset()` the
        elements that came out. Small, JSON, and the same on every rank (not with tail="uneven", where it speaks for its
        rank)."""
        unused = None if self._passes is None else self._passes.state(self._moves)
        state: State = json.loads(unused or self._native.state())
        return state

    def state_after(self, batch: Batch) -> State:
        """The state after a batch of this loader: where frameworks fetch ahead, and wherever an exception may come
        between the loader and the step, as around `next()`. Raises `ConfigError` for a batch that was rebuilt from a
        mapping, which has no place in the order."""
        state: State = json.loads(self._native.state_after(batch._slot))
        return state

    def load_state_dict(
        self, state: State | str | Sequence[State | str], *, missing: Literal["error", "replay"] = "error"
    ) -> None:
        """Goes on from a state, at any world size whose batches the lanes divide.

        - `state`: what `state_dict()` returned, or its JSON. With tail="uneven" and another world
          size: the states of all ranks, as a list.
        - `missing`: "error", or "replay": ranks without a state in that list deliver what they had
          since their last start again.

        Raises `TokenError` if the state is not of this job, is of a later version, or is no state;
        the loader is unchanged then.
        """
        if missing not in ("error", "replay"):
            raise ConfigError(f'missing={missing!r} is neither "error" nor "replay"')
        states: list[Any] = list(state) if isinstance(state, list | tuple) else [state]
        self._native.load([_json(each) for each in states], missing == "replay")
        self._moved()

    def as_tf_dataset(
        self, *, valid: str | None = None, state: str | None = None, epochs: int | None = None
    ) -> tf.data.Dataset:
        """A `tf.data.Dataset` of dicts, batch by batch; one pass is (the rest of) one epoch of this rank.

        Its `element_spec` is static: the batch size unless tail="uneven", strings as string tensors, ragged and
        sparse features as `tf.RaggedTensor` (splits int64) and `tf.SparseTensor`. TensorFlow must not shard it again:
        its AutoShard policy is OFF. Keras' `fit` takes it; batches are copied into TensorFlow's threads.

        A pass that is left (`break`, `take()`) goes on in the next one: what TensorFlow had fetched ahead of the last
        element used comes again, and `state_dict()` does not count it. Used is what came out of the dataset, or of
        what `map()`, `prefetch()`, `take()` and `with_options()` made of it. Other transformations (`batch()`, `repeat()`,
        `shuffle()`, a strategy of tf.distribute) use what they take.

        - `valid`: name under which elements have `batch.valid`, bool `[rows]`; None: they have not.
        - `state`: name under which elements have the JSON of `state_after(batch)`, a string `[]`: for checkpoints where
          other transformations fetch ahead.
        - `epochs`: a pass continues until the epochs 0 to `epochs` - 1 are done, as `epochs()`; None: to the end of one.
          `repeat()` does that, too, but then `state_dict()` counts what it has fetched.

        Needs output="numpy" or "tf". Raises `ConfigError` if a name is that of a column.
        """
        TensorFlow()  # says so if it is not installed
        from shardfeed import tf_dataset

        return tf_dataset.make(self, valid, state, None if epochs is None else _number("epochs", epochs, 0))

    def stats(self) -> Stats:
        """What the loader chose and holds: reading mode, batches ahead, bytes, waiting time. With
        mode="dynamic" also `granted`, the samples that this rank was granted and has not begun, and
        `lookahead`, how many it asks for, and `horizon_waits`, batches that were ready and had to wait for the coordinator. Of files in a store `store_requests`, of these `store_retries`,
        `store_bytes` and `cached_bytes`, as its worker told last. `suspect_images` counts images that were decoded
        although libjpeg-turbo warned of their data, as TensorFlow decodes them.

        With `device=` of a GPU `device_slots`, `device_slot_bytes` (memory there), `device_ahead`, `device_batches`, of these
        `device_late_batches` (asked for before they were copied), `device_bytes`, `device_pageable_batches` (the
        system refused to pin their memory, so that they were copied slowly), `device_pinned_bytes`, and
        `device_extra_slots` (times that the loop held all slots).

        `account` says where time went, in microseconds: over the last seconds (`recent`) and in this epoch
        (`in_epoch`), of the trainer (`wait_us`, `work_us`), the thread that plans (`fill_us`, `read_wait_us`,
        `gather_us`, `grant_us`, `room_us`, `confirm_us`), and, summed over threads, storage and computing (`storage_us`,
        `inflate_us`, `parse_us`, `write_us`; `compute_us` is the last two by the clock, so also what threads
        waited for a core), and under `setup` what was chosen. `waiting_us` is how long the trainer has waited
        for its next batch; of a long wait `recent` tells what was done since the batch before. `why()` says
        what it means.
        """
        stats = self._native.stats()
        if "account" in stats:
            stats["account"] = json.loads(stats["account"])
        return cast(Stats, stats)

    def why(self) -> Why:
        """What limits this rank and what to change: `sentence` for people; `limit` ("trainer", "storage",
        "inflating", "decoding", "gathering", "window_fill", "memory_budget", "prefetch", "held_batches",
        "coordinator" or "unknown"), `wait_percent` (of the trainer's time, how much it waited), `is_cold` (shards
        are read for the first time, from storage devices), `because` and `change`."""
        text, sentence = self._native.why()
        found: Why = json.loads(text) | {"sentence": sentence}
        return found

    def close(self) -> None:
        """Stops reading ahead. Batches in use stay good, and what the loader says of itself stays as it was: its
        state, epoch, step, length and statistics."""
        self._native.close()

    def __getitem__(self, index: object) -> NoReturn:
        """Says what to use: a torch `DataLoader` over a loader would ask it for samples."""
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
        """What is legal, but most often a mistake."""
        if self._native.steps() == 0:
            warnings.warn(
                f"every epoch has 0 steps: {self.records} records are less than one batch of all "
                f'ranks; use a smaller batch_size, or tail="pad"',
                stacklevel=4,
            )
        missing = _missing_shards(self.shards)
        if missing:
            warnings.warn(
                f"{len(missing)} shards that the files' names speak of are not among the files, "
                f"the first is {missing[0]!r}; check the pattern and the copy",
                stacklevel=4,
            )

    def _check_records(self, known: int) -> None:
        """Refuses files that were cut off between two records, which looks like shorter ones."""
        if self.records != known:
            found = self.records
            self.close()
            raise ShardChangedError(
                f"the files hold {found} records, but {known} were written; they were changed since, or a copy "
                f"is not whole: write or copy them anew"
            )

    def _check_dtypes(self) -> None:
        """Refuses columns of types that batches cannot have, before anything is read."""
        numbers = [(name, column) for name, column in self._columns.items() if column.dtype != "bytes"]
        whole = [(name, column.dtype) for name, column in numbers if column.kind in ("dense", "padded")]
        self._output.check(whole)
        for name, column in numbers:
            if (name, column.dtype) not in whole:
                as_numpy(column.dtype)

    def _check_restart(self, where: str) -> None:
        """Refuses a loader whose evaluations would each see other samples."""
        if not self._restart:
            raise ConfigError(
                f"{where}: this loader has no restart=True, so an evaluation that stops early would leave its rest to the "
                f"next one; make it with restart=True, then each begins at step 0 of the same epoch"
            )

    def _moved(self) -> None:
        """It was told where to go on."""
        self._moves += 1
        self._pass, self._pass_epoch = None, self.epoch

    def _begin(self) -> Epoch:
        """A pass over the loader."""
        self._moves += 1
        if self._restart:
            self._native.restart(self._pass_epoch)
        stands = self.epoch, self.step
        if self._pass is not None and self._pass < stands and self._pass[0] == stands[0]:
            self._warn_of_rest(*stands, stacklevel=4)
        self._pass = stands
        return Epoch(self, stands[0])

    def _warn_of_rest(self, epoch: int, step: int, stacklevel: int) -> None:
        """A pass begins inside of an epoch, where the one before was left. Warns once, unless that is meant."""
        if self._restart is None:
            warnings.warn(
                f"this loop goes on at step {step} of epoch {epoch}, where the one before was left; for evaluation, where "
                f"every loop is to see the same batches, make the loader with restart=True, and where this is meant, with "
                f"restart=False",
                stacklevel=stacklevel,
            )
            self._restart = False


class Epoch(_native.NativeEpoch):
    """The rest of one epoch of a loader; `number` is the epoch's.

    In `for batch in epoch` an exception, such as that of a signal handler, finds `loader.state_dict()` at the first
    batch that the loop did not get. `make`: what makes of the worker's batch what the loop gets, before it is consumed.
    """

    __slots__ = ("_loader",)
    _loader: Loader

    def __new__(cls, loader: Loader, epoch: int, make: Any = None, asked: Any = None, ended: Any = None) -> Self:
        new = super().__new__(cls, loader._native, epoch, make or loader._make, asked, ended)
        new._loader = loader
        return new

    def progress(self, *, file: TextIO | None = None) -> Iterator[Batch]:
        """These batches, with a progress bar: as `Loader.progress()`."""
        return progress.show(self._loader, self, file)


def _missing_shards(shards: list[str]) -> list[str]:
    """Names like `x-00003-of-00010` say how many files there are to be."""
    numbered = re.compile(r"(.*)-([0-9]{2,})-of-([0-9]{2,})(\..*)?")
    if numbered.fullmatch(shards[0]) is None:
        return []
    sets: dict[tuple[str, str, str], set[int]] = {}
    for shard in shards:
        match = numbered.fullmatch(shard)
        if match is not None:
            prefix, number, total, suffix = match.groups(default="")
            sets.setdefault((prefix, total, suffix), set()).add(int(number))
    return [
        f"{prefix}-{number:0{len(total)}}-of-{total}{suffix}"
        for (prefix, total, suffix), found in sets.items()
        for number in range(min(int(total), 10**6))
        if number not in found
    ]


def _after(first: Sequence[Operator], operators: Any) -> Any:
    """All of them, or what is no list of operators, which is refused later."""
    return [*first, *operators] if isinstance(operators, list | tuple) else operators


def _outputs(outputs: Sequence[str] | None) -> list[str] | None:
    if outputs is None:
        return None
    if isinstance(outputs, str) or not all(isinstance(name, str) for name in outputs):
        raise ConfigError(f"outputs is a list of columns' names, not {outputs!r}")
    return list(outputs)


def _check_replica(
    replica: tuple[int, int] | None, in_cluster: bool, mode: str, resume: Any
) -> Callable[[str | None], str | None]:
    """Refuses what replicas cannot have; returns what makes of a name in the cluster this replica's own."""
    part, parts = (0, 1) if replica is None else replica
    if parts > 1 and os.environ.get("SHARDFEED_LEDGER"):
        raise ConfigError(
            f"replica={replica!r}: a ledger has one file for each rank, and replicas share their rank; unset "
            f"SHARDFEED_LEDGER"
        )
    if parts > 1 and in_cluster and mode == "dynamic":
        raise ConfigError(
            f'replica={replica!r}: with mode="dynamic" a rank gets what is free when it asks, so replicas would get '
            f'different batches; use mode="deterministic"'
        )
    if parts > 1 and in_cluster and resume == "latest":
        raise ConfigError(
            f'replica={replica!r}: resume="latest" is where the cluster knows a job to stand, and replicas are a job '
            f"each; load one state_dict() on all of them"
        )
    suffix = f".replica-{part}" if in_cluster and part > 0 else ""
    return lambda name: None if name is None else name + suffix


def _coordinators(given: str | Sequence[str] | None) -> str | None:
    """The addresses with commas between them; None without a cluster."""
    if given is None or given == "":
        return os.environ.get("SHARDFEED_COORDINATOR") or None
    if isinstance(given, str):
        return given
    addresses = list(given)
    if not addresses or not all(isinstance(address, str) and "," not in address for address in addresses):
        raise ConfigError(f'coordinator={given!r} is no list of texts such as "host:7070"')
    return ",".join(addresses)


def _files(files: Any) -> list[str]:
    if isinstance(files, str | os.PathLike):
        files = [files]
    return [os.fspath(file) for file in files]


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
    """A number of a framework, such as np.int64, as it comes out of its checkpoints."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{value!r:.60} is a {type(value).__name__}") from None


def _json(state: State | str) -> str:
    if isinstance(state, str):
        if not state.lstrip().startswith("{"):
            raise TokenError(
                f"{state[:60]!r} is not a state's JSON; if it is a path, pass json.load(open(path))"
            )
        return state
    try:
        return json.dumps(state, default=_whole)
    except (TypeError, ValueError) as error:
        raise TokenError(f"the state is not what state_dict() returned: {error}") from None

