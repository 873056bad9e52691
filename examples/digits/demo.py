"""What `make demo` runs: training on two ranks, a kill, a resume, a resume on more ranks, a count.

    python demo.py [--ledger DIR] [--seed N]

1. Packs the digits into shards and trains on two ranks (train.py).
2. Kills one of them inside an epoch, between two checkpoints; the other one ends too.
3. Resumes both from the last checkpoint; stops them inside a later epoch.
4. Resumes at another world size, with the same global batch, and trains to the end.
5. Counts from the ranks' ledgers and the shards alone (tests/recount.py) that every epoch delivered
   every record exactly once; compares every global batch, and the final weights, with those of one
   undisturbed rank; evaluates on images that nobody trained on.

The last line is `demo: ok ...` or `demo: FAILED ...`, the exit status 0 or 1.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import shardfeed as sf

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests")]
import recount  # noqa: E402
import train  # noqa: E402
from pack import pack  # noqa: E402

EPOCHS = 6
SHARDS = 24
GLOBAL_BATCH = 48
LANES = 12
SAVE_EVERY = 8
FIRST_RANKS = 2
#: World sizes of the last part; they divide the global batch.
LATER_RANKS = (3, 4)
#: A larger model would need it; here it lets a signal hit the step that it is meant for.
STEP_SECONDS = 0.02
#: A signal that comes late, on a busy machine, may miss the middle of an epoch; it is sent again in
#: a later one.
TRIES = 2
#: No run takes this long.
DEADLINE_S = 120.0
ACCURACY_LEAST = 0.9
#: World sizes differ in the order of sums, so by about 1e-15 a step.
WEIGHTS_TOLERANCE = 1e-9

PROGRESS = re.compile(r"rank (\d+) epoch (\d+) step (\d+) of (\d+) loss (\S+)")

Place = tuple[int, int]  # epoch, step
Processes = list[subprocess.Popen[bytes]]


class FailedError(Exception):
    """The demo does not show what it should."""


#: Of the demo, the loader, the recount and the system; others are bugs and keep their traceback.
KNOWN_ERRORS = (FailedError, sf.ShardfeedError, ValueError, OSError, subprocess.SubprocessError)


def require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise FailedError(otherwise)


class Progress(NamedTuple):
    """A rank has finished a step."""

    rank: int
    epoch: int
    step: int
    steps: int
    loss: float

    @property
    def place(self) -> Place:
        return self.epoch, self.step


class Screen:
    """Lines; on a terminal the last one shows how far the epoch is."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._shown = 0

    def say(self, line: str) -> None:
        print("\r" + " " * self._shown + "\r" if self._shown else "", line, sep="", flush=True)
        self._shown = 0

    def show(self, at: Progress) -> None:
        if at.step + 1 == at.steps:
            self.say(f"  epoch {at.epoch} rank {at.rank}: {at.steps} steps, loss {at.loss:.3f}")
        elif self._is_terminal and at.rank == 0:
            done = 32 * (at.step + 1) // at.steps
            line = f"  epoch {at.epoch} [{'#' * done:.<32}] loss {at.loss:.3f}"
            print("\r" + line, end="", flush=True)
            self._shown = len(line)


@dataclass
class Outcome:
    """How the ranks of one run ended."""

    exits: list[int]
    #: What each rank said besides its progress.
    said: list[list[str]]

    def __str__(self) -> str:
        ends = zip(self.exits, (lines[-1] if lines else "" for lines in self.said), strict=True)
        return "; ".join(f"rank {r}: exit {code} {text!r}" for r, (code, text) in enumerate(ends))


@dataclass
class Run:
    """The ranks of one run, each a process."""

    processes: Processes
    said: list[list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.said = [[] for _ in self.processes]

    def progress(self) -> Iterator[Progress]:
        """Every step of every rank as soon as it is reported, until all ranks have ended."""
        deadline = time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self.processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, (rank, bytearray()))
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                require(bool(ready), f"ranks said nothing and did not end in {DEADLINE_S:.0f} s")
                for key, _ in ready:
                    rank, unfinished = key.data
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fileobj)
                    *lines, unfinished[:] = (unfinished + data).split(b"\n")
                    for line in lines:
                        match = PROGRESS.fullmatch(line.decode(errors="replace"))
                        if match is None:
                            self.said[rank].append(line.decode(errors="replace"))
                        else:
                            of, epoch, step, steps = map(int, match.groups()[:4])
                            yield Progress(of, epoch, step, steps, float(match[5]))

    def outcome(self) -> Outcome:
        return Outcome([process.wait(DEADLINE_S) for process in self.processes], self.said)


class Demo:
    """The acts. Where a run stood is read from the ledger and the checkpoint afterwards."""

    def __init__(self, work: Path, ledger: Path, seed: int) -> None:
        self.work, self.ledger, self.seed = work, ledger, seed
        # Beside the ledgers, which say nothing without the shards.
        self.data = ledger / "data"
        self.test = work / "test.tfrecord"
        self.checkpoint = work / "last.npz"
        self.random = random.Random(seed)
        self.screen = Screen()

    def play(self) -> str:
        """All acts; returns the last line."""
        records = pack(self.data, self.test, SHARDS, self.seed)
        self.screen.say(f"packed {records} records into {SHARDS} shards")
        with self.one_rank() as loader:
            self.steps = len(loader)
        self.screen.say(f"training on {FIRST_RANKS} ranks, {self.steps} steps an epoch")
        self.in_mid_epoch(self.kill_one)
        self.in_mid_epoch(self.stop_all)
        outcome = self.run(self.random.choice(LATER_RANKS))
        require(set(outcome.exits) == {0}, f"not all ranks finished: {outcome}")

        total = recount.recount(self.ledger, self.data)
        counted = f"lost={total.lost} duplicated={total.duplicated}"
        problems = "".join(f"; {problem}" for problem in total.problems[:3])
        require(total.is_ok(), f"{counted} unknown={total.unknown}{problems}")
        require(total.epochs == EPOCHS, f"{total.epochs} epochs instead of {EPOCHS}")
        self.compare_with_one_rank()
        accuracy = self.accuracy()
        require(accuracy >= ACCURACY_LEAST, f"accuracy {accuracy:.3f} is below {ACCURACY_LEAST}")
        ranks = total.generations[0].world_size
        numbers = f"ranks={ranks} epochs={total.epochs} records={total.records} {counted}"
        return f"demo: ok {numbers} accuracy={accuracy:.3f}"

    def in_mid_epoch(self, interrupt: Callable[[], bool]) -> None:
        for left in reversed(range(TRIES)):
            if interrupt():
                return
            require(left > 0, f"{TRIES} signals came too late to hit the middle of an epoch")
            self.screen.say("the signal came too late; once more")

    def kill_one(self) -> bool:
        """Kills a rank in the next epoch; returns whether it was inside, between checkpoints."""
        victim = self.random.randrange(FIRST_RANKS)
        peer = 1 - victim
        # A little after a checkpoint of the first half, so that being late does no harm.
        step = SAVE_EVERY * self.random.randint(1, 2) + self.random.randint(1, 4)
        place = (self.saved_at()[0] + 1, step)
        outcome = self.run(FIRST_RANKS, place, lambda ranks: ranks[victim].kill())
        require(outcome.exits[victim] == -signal.SIGKILL, f"rank {victim} lives: {outcome}")
        words = "".join(outcome.said[peer][-1:])
        ended_well = outcome.exits[peer] == 1 and f"lost rank {victim}" in words
        require(ended_well, f"rank {peer} did not end as it should: {outcome}")
        epoch, step = last = self.last_delivered(victim)
        self.screen.say(f"rank {victim} killed at epoch {epoch} step {step}")
        self.screen.say(f"rank {peer} ended too: {words!r}")
        saved = self.saved_at()
        return 0 < step < self.steps - 1 and saved[0] == epoch and saved <= last

    def stop_all(self) -> bool:
        """Stops all ranks in the next epoch; returns whether they were inside of one."""

        def terminate(ranks: Processes) -> None:
            for rank in ranks:
                rank.terminate()

        place = (self.saved_at()[0] + 1, self.random.randint(SAVE_EVERY // 2, self.steps // 2))
        outcome = self.run(FIRST_RANKS, place, terminate)
        stopped = 128 + signal.SIGTERM
        require(set(outcome.exits) == {stopped}, f"not all ranks stopped: {outcome}")
        epoch, step = saved = self.saved_at()
        self.screen.say(f"all ranks stopped before epoch {epoch} step {step}")
        lasts = [self.last_delivered(rank) for rank in range(FIRST_RANKS)]
        require(lasts[0] == lasts[1] < saved, f"ranks stopped after {lasts}, saved {saved}")
        return step > 0 and lasts[0] == (epoch, step - 1)

    def run(
        self,
        world_size: int,
        place: Place | None = None,
        signal_ranks: Callable[[Processes], object] | None = None,
    ) -> Outcome:
        """Starts the ranks and follows them to their end; when the first of them has finished step
        `place`, signals them. Checks that all of them began where the last checkpoint stands."""
        saved = self.saved_at()
        is_silent, is_signalled = True, place is None
        processes: Processes = []
        try:
            for rank in range(world_size):
                processes.append(self.start(rank, world_size))
            run = Run(processes)
            for at in run.progress():
                if is_silent and self.checkpoint.exists():
                    where = f"epoch {at.epoch} step {at.step}"
                    self.screen.say(f"resumed at {where} with {world_size} ranks")
                is_silent = False
                self.screen.show(at)
                if not is_signalled and place is not None and at.place >= place:
                    assert signal_ranks is not None
                    signal_ranks(processes)
                    is_signalled = True
            outcome = run.outcome()
        finally:
            for process in processes:
                process.kill()  # does nothing to a process that has ended
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
        require(is_signalled, f"the ranks ended before epoch and step {place}: {outcome}")
        for rank in range(world_size):
            start = self.last_part(rank).start
            require((start.epoch, start.step) == saved, f"rank {rank}: {start}, not at {saved}")
            require(start.world_size == world_size, f"rank {rank}: {start}, not of {world_size}")
        return outcome

    def start(self, rank: int, world_size: int) -> subprocess.Popen[bytes]:
        options = {
            "data": self.data,
            "checkpoint": self.checkpoint,
            "socket": "ranks.sock",  # relative, as the path of a unix socket must be short
            "epochs": EPOCHS,
            "seed": self.seed,
            "global-batch": GLOBAL_BATCH,
            "lanes": LANES,
            "save-every": SAVE_EVERY,
            "log-every": 1,
            "step-seconds": STEP_SECONDS,
        }
        return subprocess.Popen(
            [sys.executable, HERE / "train.py", *(f"--{name}={v}" for name, v in options.items())],
            cwd=self.work,
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
            | {"SHARDFEED_LEDGER": str(self.ledger), "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def saved_at(self) -> Place:
        """The first step that the last checkpoint does not have."""
        with self.one_rank() as loader:
            if self.checkpoint.exists():
                loader.load_state_dict(train.load(self.checkpoint)[1])
            return loader.epoch, loader.step

    def last_part(self, rank: int) -> recount.Part:
        parts = recount.read_rank(self.ledger / f"rank-{rank}")
        return parts[max(parts)]

    def last_delivered(self, rank: int) -> Place:
        place: Place = max(self.last_part(rank).steps)
        return place

    def one_rank(self) -> sf.Loader:
        """A loader of all ranks' batches, in this process, which keeps no ledger."""
        return train.open_loader(
            self.data, self.seed, GLOBAL_BATCH, LANES, rank=0, world_size=1, provenance=True
        )

    def compare_with_one_rank(self) -> None:
        """Global batches in the ledgers, row by row, and the weights, with an undisturbed run."""
        _, steps = recount.read_ledger(self.ledger)
        weights, compared = np.zeros(train.WEIGHTS_SHAPE), 0
        with self.one_rank() as loader:
            while loader.epoch < EPOCHS:
                for batch in loader:
                    assert batch.provenance is not None
                    shards = [loader.shards[shard] for shard in batch.provenance[0]]
                    ordinals, valid = batch.provenance[1].tolist(), batch.valid.tolist()
                    expected = list(zip(shards, ordinals, valid, strict=True))
                    same = steps[batch.epoch, batch.step].global_batch() == expected
                    where = f"epoch {batch.epoch} step {batch.step}"
                    require(same, f"{where}: the global batch is not what one rank gets")
                    sums = train.gradient_sums(weights, batch)
                    weights = train.updated(weights, sums, GLOBAL_BATCH)
                    compared += 1
        require(compared == len(steps), f"{len(steps)} steps delivered, {compared} planned")
        self.screen.say(f"global batches unchanged: all {compared} as for one undisturbed rank")
        difference = np.abs(weights - train.load(self.checkpoint)[0]).max()
        require(difference < WEIGHTS_TOLERANCE, f"weights differ from one rank's by {difference}")
        self.screen.say(f"weights too, up to rounding ({difference:.0e})")

    def accuracy(self) -> float:
        """Of the last checkpoint on the images that were held out."""
        weights, _ = train.load(self.checkpoint)
        right, rows = 0, 0
        with sf.Loader(
            self.test,
            train.FEATURES,
            batch_size=64,
            shuffle=False,
            tail="uneven",  # every image once, the last batch short
            rank=0,
            world_size=1,
        ) as loader:
            for batch in loader:
                digits = train.scores(weights, batch["image"]).argmax(axis=1)
                right, rows = right + int((digits == batch["label"]).sum()), rows + batch.rows
        return right / rows


def on_sigterm(number: int, frame: object) -> None:
    sys.exit(128 + number)  # by way of every `finally`


def main() -> int:
    parser = argparse.ArgumentParser(description="Trains, kills, resumes and counts.")
    parser.add_argument("--ledger", type=Path, metavar="DIR", help="keep ledgers and shards there")
    parser.add_argument("--seed", type=int, default=1, help="of data, order and signals")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, on_sigterm)
    used = [*args.ledger.glob("rank-*"), *args.ledger.glob("data")] if args.ledger else []
    if used:
        print(f"demo: FAILED {used[0]} is of an earlier run; give --ledger a new or empty folder")
        return 1
    folder = ROOT / ".demo"
    folder.mkdir(exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    os.environ["SHARDFEED_CACHE_DIR"] = str(work / "cache")
    os.environ.pop("SHARDFEED_LEDGER", None)
    ledger = args.ledger.resolve() if args.ledger else work / "ledger"
    demo = Demo(work, ledger, args.seed)
    try:
        last_line = demo.play()
    except KNOWN_ERRORS as error:
        demo.screen.say(f"demo: FAILED {error} (seed {args.seed}, files are in {work})")
        return 1
    except KeyboardInterrupt:
        shutil.rmtree(work)
        demo.screen.say("demo: FAILED interrupted")
        return 128 + signal.SIGINT
    except SystemExit:
        shutil.rmtree(work)
        raise
    shutil.rmtree(work)
    demo.screen.say(last_line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
