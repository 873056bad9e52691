"""Demo of `make demo`: training in a cluster, kills of every part of it, resumes, a recount.

    python demo.py [--ledger DIR] [--seed N]

1. Packs the digits into shards, starts a coordinator and two workers, and trains on two ranks
   (train.py), each with its own worker, as on two hosts.
2. Kills a worker inside an epoch and restarts it. Kills the coordinator inside a later epoch and
   restarts it. Training continues throughout. Prints the tables of epochs and shards.
3. Kills a rank inside an epoch, between two checkpoints; the other one ends too.
4. Resumes both from the last checkpoint; stops them inside a later epoch.
5. Resumes at another world size, with the same global batch, and trains to the end.
6. Verifies from the ranks' ledgers and the shards alone (tests/recount.py) that every epoch
   delivered every record exactly once; compares every global batch, and the final weights, with
   those of one undisturbed rank without a cluster; evaluates on held-out images.

All kills are SIGKILL. The last line is `demo: ok ...` or `demo: FAILED ...`; the exit status is 0
or 1, or 128 plus the number of the signal that ended it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import shardfeed as sf
from shardfeed.testing import BINARY, FailedError, Server

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests")]
import recount  # noqa: E402
import train  # noqa: E402
from cluster import Cluster, Ending  # noqa: E402
from pack import pack  # noqa: E402
from trainers import Outcome, Place, Screen, Trainers  # noqa: E402

EPOCHS = 12
SHARDS = 24
GLOBAL_BATCH = 24
LANES = 12
SAVE_EVERY = 8
WORKERS = 2
FIRST_RANKS = 2
#: World sizes of the last part; they divide the global batch.
LATER_RANKS = (3, 4)
#: Simulates a larger model, so that a signal hits the intended step.
STEP_SECONDS = 0.02
#: A late signal, on a busy machine, may miss the middle of an epoch; it is sent again in a later
#: one.
TRIES = 2
#: Downtime of a server; some are noticed by the cluster and some are not (cluster.CONFIG).
GONE_S = (0.1, 2.0)
#: Seconds after a server's return in which the longest step is measured.
AFTER_S = 0.5
ACCURACY_LEAST = 0.9
#: World sizes differ in the order of sums, and so by about 1e-15 per step.
WEIGHTS_TOLERANCE = 1e-9

#: Errors of the demo, the loader, the recount and the system; others are bugs and keep their
#: traceback.
KNOWN_ERRORS = (FailedError, sf.ShardfeedError, ValueError, OSError, subprocess.SubprocessError)


def require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise FailedError(otherwise)


class Demo:
    """The phases of the demo. The position of a run is read from the ledger and the checkpoint."""

    def __init__(self, work: Path, ledger: Path, seed: int) -> None:
        self.work, self.ledger, self.seed = work, ledger, seed
        # Beside the ledgers, which are meaningless without the shards.
        self.data = ledger / "data"
        self.test = work / "test.tfrecord"
        self.checkpoint = work / "last.npz"
        self.random = random.Random(seed)
        self.screen = Screen()
        self.runs, self.last_step_at, self.calm_since = 0, 0.0, 0.0
        self.faults = [self.kill_worker, self.kill_coordinator]

    def play(self) -> str:
        """Runs all phases; returns the last line."""
        records = pack(self.data, self.test, SHARDS, self.seed)
        self.screen.say(f"packed {records} records into {SHARDS} shards")
        with self.one_rank() as loader:
            self.steps = len(loader)
        with Cluster(self.work, WORKERS) as self.cluster:
            self.screen.say(f"coordinator on {self.cluster.address}, {WORKERS} workers")
            self.screen.say(f"training on {FIRST_RANKS} ranks, {self.steps} steps an epoch")
            self.in_mid_epoch(self.first_run)
            self.in_mid_epoch(self.stop_all)
            outcome = self.last_run(self.random.choice(LATER_RANKS))
            require(set(outcome.exits) == {0}, f"not all ranks finished: {outcome}")
            self.until_sealed(records)
            self.show_table("epoch", "list", "--job", train.JOB)

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

    def first_run(self) -> bool:
        """Kills replaceable parts, then one rank; returns whether the rank was inside an epoch,
        between checkpoints."""
        with self.trainers(FIRST_RANKS) as ranks:
            self.begin(ranks)
            while self.faults:
                self.in_mid_epoch(lambda: self.faults[0](ranks))
                del self.faults[0]
            return self.kill_rank(ranks)

    def kill_worker(self, ranks: Trainers) -> bool:
        """Kills a rank's worker inside an epoch and restarts it. Returns whether it was inside."""
        number = self.random.randrange(WORKERS)
        is_inside = self.kill_server(ranks, self.cluster.workers[number], [number])
        assert ranks.last is not None
        self.show_table("shard", "list", "--job", train.JOB, "--epoch", str(ranks.last.epoch))
        return is_inside

    def kill_coordinator(self, ranks: Trainers) -> bool:
        """Kills the coordinator inside an epoch and restarts it. Returns whether it was inside."""
        return self.kill_server(ranks, self.cluster.coordinator, [*range(FIRST_RANKS)])

    def kill_server(self, ranks: Trainers, server: Server, of_ranks: list[int]) -> bool:
        self.until_served(ranks)
        ranks.until(self.next_place(ranks, self.random.randint(self.steps // 4, self.steps // 2)))
        killed = time.monotonic()
        server.kill()
        epoch, step = min(self.last_delivered(rank) for rank in of_ranks)
        ranks.for_seconds(self.random.uniform(*GONE_S))
        server.start()
        back = time.monotonic()
        ranks.for_seconds(AFTER_S)
        before = ranks.longest_step(self.calm_since, killed)
        self.calm_since = back + AFTER_S
        longest = ranks.longest_step(killed, self.calm_since)
        self.screen.say(
            f"{server.name} killed at epoch {epoch} step {step}, back after {back - killed:.1f} s; "
            f"longest step {longest * 1e3:.0f} ms (before {before * 1e3:.0f} ms)"
        )
        self.until_served(ranks)
        self.show_table("epoch", "list", "--job", train.JOB)
        return 0 < step < self.steps - 1

    def until_served(self, ranks: Trainers) -> None:
        """Waits until the cluster reports that every rank's batches come from its own worker."""

        def served() -> object:
            of_ranks = self.cluster.ask("rank", "list", "--job", train.JOB)["ranks"]
            return {of["rank"]: (of["state"], of["worker"]) for of in of_ranks}

        names = [self.cluster.workers[rank % WORKERS].name for rank in range(ranks.world_size)]
        expected = {rank: ("served", name) for rank, name in enumerate(names)}
        self.cluster.until(served, expected, ranks.for_seconds)

    def until_sealed(self, records: int) -> None:
        """Waits until the cluster reports every epoch as completely delivered."""

        def sealed() -> object:
            epochs = self.cluster.ask("epoch", "list", "--job", train.JOB, "--all")["epochs"]
            return {of["epoch"]: of["delivered"] for of in epochs if of["state"] == "sealed"}

        self.cluster.until(sealed, dict.fromkeys(range(EPOCHS), records), time.sleep)

    def next_place(self, ranks: Trainers, step: int) -> Place:
        """Returns this step of the ranks' current epoch, or of the next one if it has passed."""
        assert ranks.last is not None
        epoch, now = ranks.last.place
        return (epoch, step) if now < step else (epoch + 1, step)

    def kill_rank(self, ranks: Trainers) -> bool:
        victim = self.random.randrange(FIRST_RANKS)
        peer = 1 - victim
        # Shortly after a checkpoint of the first half, so that a delay does no harm.
        step = SAVE_EVERY * self.random.randint(1, 3) + self.random.randint(1, 4)
        ranks.until(self.next_place(ranks, step))
        ranks.processes[victim].kill()
        outcome = self.end(ranks)
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
        """Stops all ranks in an epoch; returns whether they were inside it."""
        with self.trainers(FIRST_RANKS) as ranks:
            self.begin(ranks)
            ranks.until((self.saved_at()[0] + 1, self.random.randint(4, self.steps // 2)))
            for process in ranks.processes:
                process.terminate()
            outcome = self.end(ranks)
        stopped = 128 + signal.SIGTERM
        require(set(outcome.exits) == {stopped}, f"not all ranks stopped: {outcome}")
        epoch, step = saved = self.saved_at()
        self.screen.say(f"all ranks stopped before epoch {epoch} step {step}")
        lasts = [self.last_delivered(rank) for rank in range(FIRST_RANKS)]
        require(lasts[0] == lasts[1] < saved, f"ranks stopped after {lasts}, saved {saved}")
        return step > 0 and lasts[0] == (epoch, step - 1)

    def last_run(self, world_size: int) -> Outcome:
        with self.trainers(world_size) as ranks:
            self.begin(ranks)
            return self.end(ranks)

    def trainers(self, world_size: int) -> Trainers:
        """Starts the ranks of a new run."""
        self.runs += 1
        return Trainers(world_size, lambda rank: self.start(rank, world_size), self.screen)

    def begin(self, ranks: Trainers) -> None:
        """Waits for the first step, and prints where a run continues."""
        self.began_at = self.saved_at()
        ranks.until(self.began_at)
        assert ranks.last is not None
        if self.runs > 1:
            epoch, step = self.began_at
            waited = ranks.last.time - self.last_step_at
            words = f"resumed at epoch {epoch} step {step} with {ranks.world_size} ranks"
            self.screen.say(f"{words}, {waited:.1f} s after the last step")

    def end(self, ranks: Trainers) -> Outcome:
        """Follows the ranks to their end. Checks that all began at the position of the
        checkpoint."""
        outcome = ranks.outcome()
        assert ranks.last is not None
        self.last_step_at = ranks.last.time
        for rank in range(ranks.world_size):
            start = self.last_part(rank).start
            began = (start.epoch, start.step)
            require(began == self.began_at, f"rank {rank}: {start}, not at {self.began_at}")
            ours = start.world_size == ranks.world_size
            require(ours, f"rank {rank}: {start}, not of {ranks.world_size}")
        return outcome

    def show_table(self, *arguments: str) -> None:
        self.screen.say(f"$ shardfeed {' '.join(arguments)}")
        for line in self.cluster.command(*arguments).splitlines():
            self.screen.say(f"  {line}".rstrip())

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
            | {"SHARDFEED_LEDGER": str(self.ledger), "OPENBLAS_NUM_THREADS": "1"}
            # The run, as set by torchrun.
            | self.cluster.variables(f"demo-{self.runs}", rank % WORKERS),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def saved_at(self) -> Place:
        """Returns the first step that is not in the last checkpoint."""
        with self.one_rank() as loader:
            if self.checkpoint.exists():
                loader.load_state_dict(train.load(self.checkpoint)[1])
            return loader.epoch, loader.step

    def last_part(self, rank: int) -> recount.Part:
        parts = recount.read_rank(self.ledger / f"rank-{rank}")
        return parts[max(parts)]

    def last_delivered(self, rank: int) -> Place:
        """Returns the last delivered step in the ledger, also while the rank writes it."""
        *lines, _ = (self.ledger / f"rank-{rank}").read_bytes().decode().split("\n")
        for line in reversed(lines):
            if not line.startswith("start "):
                _, epoch, step, _ = line.split(" ", 3)
                return int(epoch), int(step)
        raise FailedError(f"rank {rank} was given nothing")

    def one_rank(self) -> sf.Loader:
        """Returns a loader of all ranks' batches, in this process, which keeps no ledger."""
        return train.open_loader(
            self.data, self.seed, GLOBAL_BATCH, LANES, rank=0, world_size=1, provenance=True
        )

    def compare_with_one_rank(self) -> None:
        """Compares the ledgers' global batches, row by row, and the weights with an undisturbed
        run."""
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
                    require(same, f"{where}: the global batch differs from that of one rank")
                    sums = train.gradient_sums(weights, batch)
                    weights = train.updated(weights, sums, GLOBAL_BATCH)
                    compared += 1
        require(compared == len(steps), f"{len(steps)} steps delivered, {compared} planned")
        self.screen.say(f"global batches unchanged: all {compared} as for one undisturbed rank")
        difference = np.abs(weights - train.load(self.checkpoint)[0]).max()
        require(difference < WEIGHTS_TOLERANCE, f"weights differ from one rank's by {difference}")
        self.screen.say(f"weights too, up to rounding ({difference:.0e})")

    def accuracy(self) -> float:
        """Returns the accuracy of the last checkpoint on the held-out images."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description="Trains, kills, resumes and counts.")
    parser.add_argument("--ledger", type=Path, metavar="DIR", help="keep ledgers and shards there")
    parser.add_argument("--seed", type=int, default=1, help="of data, order and signals")
    args = parser.parse_args()
    used = [*args.ledger.glob("rank-*"), *args.ledger.glob("data")] if args.ledger else []
    if used:
        print(f"demo: FAILED {used[0]} is of an earlier run; give --ledger a new or empty folder")
        return 1
    if not BINARY.exists():
        print(f"demo: FAILED {BINARY} is missing; `make build` makes it")
        return 1
    Ending.on_signals()
    folder = ROOT / ".demo"
    folder.mkdir(exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    for name in [name for name in os.environ if name.startswith("SHARDFEED_")]:
        del os.environ[name]
    os.environ["SHARDFEED_CACHE_DIR"] = str(work / "cache")
    ledger = args.ledger.resolve() if args.ledger else work / "ledger"
    demo = Demo(work, ledger, args.seed)
    try:
        last_line = demo.play()
    except KNOWN_ERRORS as error:
        demo.screen.say(f"demo: FAILED {error} (seed {args.seed}, files are in {work})")
        return 1
    except SystemExit:
        shutil.rmtree(work)
        demo.screen.say("demo: FAILED interrupted")
        raise
    shutil.rmtree(work)
    demo.screen.say(last_line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
