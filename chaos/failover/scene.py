"""A training on a cluster during faults: its position, the time of a fault, its recovery."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import programs
from ranks import Place, Run
from servers import Cluster
from trainer import Options
from whole import Whole

import shardfeed as sf
from shardfeed.testing import FailedError

JOB = "failover"
#: Divisible by every world size used here: 4, 3 and 6.
GLOBAL_BATCH = 24
LANES = 12
RECORDS = 2_390  # the last step is padded
SHARDS = 24
SAVE_EVERY = 8
#: Simulated time of training in an epoch: long enough to send a signal in mid-epoch.
EPOCH_SECONDS = 3.0


class Scene:
    """The cluster, the ranks of the current run, and the last fault."""

    def __init__(self, work: Path, ledger: Path, cluster: Cluster, seed: int, program: str | None = None) -> None:
        self.work, self.ledger, self.cluster = work, ledger, cluster
        self.random, self.program = random.Random(seed), program
        #: Options that determine the order; common to all runs.
        self.loader: dict[str, Any] = {
            "folder": f"{ledger / 'data'}",
            "lanes": LANES,
            "tail": "pad",
            "shuffle_window": 64,
            "interleave": 4,
            "seed": seed,
            "job": JOB,
        }
        with self.alone() as loader:
            #: Steps of each epoch.
            self.steps = len(loader)
        self.runs: list[Run] = []
        #: Position of the most advanced rank and time at the first signal of the fault.
        self.struck_at, self.struck = Place(0, 0), 0.0

    def alone(self) -> sf.Loader:
        """Returns a loader of all samples in this process, with a cache of its own."""
        order = {name: value for name, value in self.loader.items() if name not in ("folder", "job")}
        source = programs.source(self.program, self.ledger / "data")
        return sf.Loader(source, batch_size=GLOBAL_BATCH, rank=0, world_size=1, cache_dir=self.work / "alone", **order)

    @property
    def run(self) -> Run:
        return self.runs[-1]

    def start(self, world_size: int, state: Path | None = None) -> None:
        """Starts a new run after the previous one has ended."""
        number = len(self.runs)
        options = Options(
            loader=self.loader,
            program=self.program,
            global_batch=GLOBAL_BATCH,
            states=f"states-{number}",
            state=str(state) if state else None,
            save_every=SAVE_EVERY,
            step_seconds=EPOCH_SECONDS / self.steps,
            meet=f"ranks-{number}.sock",
        )
        run = Run(number, world_size, self.work, options)
        self.runs.append(run)
        of_all = {"SHARDFEED_RUN_ID": f"{JOB}-{number}", "SHARDFEED_LEDGER": str(self.ledger)}
        workers = len(self.cluster.workers)
        run.start(lambda rank: of_all | self.cluster.variables(rank % workers))

    def last_state(self) -> Path | None:
        """Returns the last state that all ranks of the run have, else the one it started from."""
        begun = self.run.options.state
        return self.run.common_state() or (Path(begun) if begun else None)

    def mid_epoch(self) -> Place:
        """Waits for a step in the middle of an epoch; returns it."""
        while True:
            step, first = self.random.randint(self.steps // 4, self.steps // 2), self.run.first
            epoch = max(0, first.epoch + (first.step >= step))
            words = f"no rank is at epoch {epoch} step {step}"
            self.run.until(lambda: "" if self.run.first >= (epoch, step) else words)  # noqa: B023
            if self.run.first.step < self.steps * 3 // 4:
                return self.run.first
            # This process was late; try the next epoch.

    def strike(self) -> None:
        """Waits for the middle of an epoch and records it as the time of the fault."""
        self.struck_at, self.struck = self.mid_epoch(), time.monotonic()

    def hold(self, least_s: float, most_s: float) -> None:
        """Waits for a random time between these bounds while the fault lasts."""
        end = time.monotonic() + self.random.uniform(least_s, most_s)
        self.run.until(lambda: "it lasts" if time.monotonic() < end else "")

    def after(self, place: Place, steps: int) -> Place:
        """Returns the position `steps` later."""
        epochs, step = divmod(place.step + steps, self.steps)
        return Place(place.epoch + epochs, step)

    def until_whole(self) -> None:
        """Waits until the cluster is whole and every rank has received two batches since."""
        self.run.until(Whole(self.cluster, JOB, self.run.world_size).missing)
        self.run.until_all_at(self.after(self.run.first, 2))

    def longest_gap(self, since: float, until: float) -> float:
        """Returns the longest gap of all ranks in seconds, not counting pauses between runs."""
        return max(run.longest_gap(since, until) for run in self.runs)

    def no_panic(self) -> None:
        for server in self.cluster.servers:
            if server.log.exists() and "panicked" in server.log.read_text(errors="replace"):
                raise FailedError(f"{server.name} panicked: see {server.log}")
