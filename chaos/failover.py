"""Runs `make failover`: a training on a whole cluster with ten or eleven faults, followed by a count.

    python failover.py [--seed N] [--faults 3,4] [--ledger DIR] [--coordinators 3|1] [--program NAME]

Three coordinators, four workers and four ranks, each a process, train for some epochs. One fault
after the other is injected in the middle of an epoch (failover/faults.py); after each the cluster
must be whole again within 30 s (failover/whole.py). At the end the samples are counted from the
ranks' ledgers and the shards alone (tests/recount.py), and every global batch is compared with the
order that the independent oracle computes (tests/order_oracle.py).

One line per fault reports its position and the longest time that any rank waited from one batch to
the next during the fault. That time includes the training step but not restarts of the ranks. The
last line is `failover: ok faults=F records=N lost=0 duplicated=0 stall_ms_max=S`, N over all
epochs, or `failover: FAILED ...`; the exit status is 0 or 1, or 128 plus the number of the signal
that ended it.

`--coordinators 1` omits the faults that need several coordinators. `--program` makes samples of the
records (failover/programs.py), which the workers count first: `filter` leaves about half of them out,
`rows`, `packs`, `windows`, `balance` and `mixture` do what their methods do. The batches of all but
`filter` are compared, part by part, with those of one undisturbed process, and what it delivers with
a count from the records. N is the number of samples then.

With `--program` the first fault is 11 or 12, by the seed or `--faults`: a worker or the leader is
killed in the counting pass, before the training (failover/counting.py). If it was killed too late,
everything is repeated with another cluster and cold caches, and the third time the run fails.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from shardfeed.testing import FailedError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(path) for path in (HERE / "failover", ROOT / "examples/digits", ROOT / "tests")]
import counting  # noqa: E402
import dataset  # noqa: E402
import order  # noqa: E402
import programs  # noqa: E402
import recount  # noqa: E402
import stage  # noqa: E402
from faults import FAULTS, Fault  # noqa: E402
from scene import GLOBAL_BATCH, RECORDS, SHARDS, Scene  # noqa: E402
from servers import Bound, Cluster  # noqa: E402
from stage import say  # noqa: E402

COORDINATORS, WORKERS, RANKS = 3, 4, 4
#: Clusters in which a run tries to inject a fault in the counting pass.
CLUSTERS = 3
#: Time limit of everything except the count.
BOUND_S = 225.0


class Failover:
    """Injects one fault after the other, then counts."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        #: Begin and end of each fault.
        self.disturbed: list[tuple[float, float]] = []
        self.stalls_ms = [0]

    def play(self, faults: Sequence[Fault]) -> None:
        scene = self.scene
        try:
            scene.start(RANKS)
            for fault in faults:
                if fault.is_of_counting:
                    self.suffer(fault)
            scene.until_whole()
            self.disturbed = [(0.0, time.monotonic())]
            for fault in faults:
                if not fault.is_of_counting:
                    self.suffer(fault)
            scene.run.signal(signal.SIGUSR1)
            if {*scene.run.exits()} != {0}:
                raise FailedError(f"not all ranks finished: {scene.run}")
        finally:
            for run in scene.runs:
                run.close()
        calm = self.calm_gap()
        say(f"{len(scene.runs)} runs; undisturbed no rank waited longer than {calm * 1e3:.0f} ms")

    def suffer(self, fault: Fault) -> None:
        """Injects a fault and waits until the cluster is whole again."""
        scene = self.scene
        victim = fault.play(scene)
        scene.until_whole()
        end = time.monotonic()
        self.disturbed.append((scene.struck, end))
        stall_ms = round(scene.longest_gap(scene.struck, end) * 1e3)
        self.stalls_ms.append(stall_ms)
        epoch, step = scene.struck_at
        where = f"victim={victim} epoch={epoch} step={step}"
        whole_ms = round((end - scene.struck) * 1e3)
        say(f"fault {fault.number} {fault.name} {where} stall_ms={stall_ms} whole_ms={whole_ms}")

    def calm_gap(self) -> float:
        """Returns the longest gap between two batches outside faults, in seconds."""
        ends = [*(begun for begun, _ in self.disturbed[1:]), time.monotonic()]
        times = zip((end for _, end in self.disturbed), ends, strict=True)
        return max(self.scene.longest_gap(since, until) for since, until in times)

    def count(self) -> str:
        """Returns the last line of the output."""
        scene = self.scene
        data = scene.ledger / "data"
        if scene.program not in (None, "filter"):
            return self.count_program()
        samples = {name: {*records} for name, records in dataset.samples(data).items()}
        total = recount.recount(scene.ledger, data, samples=samples)
        if not total.is_ok():
            problems = "".join(f"; {problem}" for problem in total.problems[:3])
            counted = f"lost={total.lost} duplicated={total.duplicated} unknown={total.unknown}"
            raise FailedError(f"{counted}{problems}")
        self.check_runs(total.generations)
        batches = order.compare(scene.ledger, data, total.epochs, GLOBAL_BATCH, scene.loader)
        say(f"counted {total.epochs} epochs of {total.records} records; all {batches} in order")
        return self.result(total.epochs * total.records, total.lost, total.duplicated)

    def count_program(self) -> str:
        """Returns the last line of the output of a run with a program."""
        starts, steps = recount.read_ledger(self.scene.ledger)
        self.check_runs(starts)
        epochs = max(epoch for epoch, _ in steps) + 1
        batches, wanted, delivered = order.compare_alone(self.scene, epochs)
        say(f"counted {epochs} epochs; all {batches} global batches are those of one process")
        return self.result(wanted.total(), (wanted - delivered).total(), (delivered - wanted).total())

    def check_runs(self, starts: Sequence[recount.Start]) -> None:
        # A run that skips batches of an earlier run loses them, although the ledgers contain them.
        began = [(start.world_size, (start.epoch, start.step)) for start in starts]
        if began != (runs := [(run.world_size, tuple(run.origin)) for run in self.scene.runs]):
            raise FailedError(f"generations began as {began}, the runs' states say {runs}")

    def result(self, records: int, lost: int, duplicated: int) -> str:
        faults, stall = len(self.stalls_ms) - 1, f"stall_ms_max={max(self.stalls_ms)}"
        return f"failover: ok faults={faults} records={records} lost={lost} duplicated={duplicated} {stall}"


def play(
    work: Path, ledger: Path, seed: int, coordinators: int, faults: Sequence[Fault], program: str | None
) -> str:
    """Runs everything and returns the last line of the output."""
    Bound.set(BOUND_S)
    of = programs.PROGRAMS.get(program or "")
    counts = dataset.unequal(RECORDS * of.times, programs.SHARDS, seed) if of else dataset.unequal(RECORDS, SHARDS, seed)
    dataset.write(ledger / "data", counts, of is not None and of.has_decoys)
    with Cluster(work, coordinators, WORKERS) as cluster:
        scene = Scene(work, ledger, cluster, seed, program)
        failover = Failover(scene)
        say(f"{coordinators} coordinators, {WORKERS} workers, {RANKS} ranks, seed {seed}")
        failover.play(faults)
        scene.no_panic()
    return failover.count()


def chosen(numbers: str, coordinators: int, seed: int, has_program: bool) -> list[Fault]:
    """Returns the selected faults. Raises ValueError for an unknown number, or two faults of one counting pass."""
    known = {str(fault.number): fault for fault in FAULTS}
    of_pass = [number for number in known if known[number].is_of_counting]
    of_training = [number for number in known if number not in of_pass]
    of_seed = [of_pass[(seed - 1) % len(of_pass)]] if has_program else []
    wanted = numbers.replace(",", " ").split() or of_seed + of_training
    if not {*wanted} <= {*known}:
        raise ValueError(f"FAULTS={numbers!r}: faults are numbers from 1 to {len(FAULTS)}")
    if len([number for number in wanted if number in of_pass]) > 1:
        raise ValueError(f"FAULTS={numbers!r}: a run has one counting pass; choose one of {', '.join(of_pass)}")
    few = {number for number in wanted if coordinators == 1 and known[number].is_of_many}
    uncounted = {number for number in wanted if not has_program and known[number].is_of_counting}
    for left_out, need in ((few, "several coordinators"), (uncounted, "a program")):
        if left_out:
            say(f"faults {','.join(sorted(left_out, key=int))} need {need} and are left out")
    return [known[number] for number in wanted if number not in few | uncounted]


def main() -> int:
    parser = argparse.ArgumentParser(description="Trains, breaks, mends and counts.")
    parser.add_argument("--seed", type=int, default=1, help="of data, order, victims and times")
    parser.add_argument("--faults", default="", metavar="N,N", help="only these, in this order")
    parser.add_argument("--ledger", type=Path, metavar="DIR", help="keep ledgers and shards there")
    parser.add_argument("--coordinators", type=int, default=COORDINATORS, choices=[3, 1])
    parser.add_argument("--program", choices=[*programs.PROGRAMS], help="makes samples of the records")
    args = parser.parse_args()

    def whole_play(work: Path) -> str:
        ledger = args.ledger.resolve() if args.ledger else work / "ledger"
        if used := [*ledger.glob("rank-*"), *ledger.glob("data")]:
            raise FailedError(f"{used[0]} is of an earlier run; give LEDGER a new or empty folder")
        faults = chosen(args.faults, args.coordinators, args.seed, args.program is not None)
        try:
            number = 0
            while True:
                number += 1
                (folder := work / f"{number}").mkdir()
                try:
                    return play(folder, ledger, args.seed, args.coordinators, faults, args.program)
                except counting.MissedError as error:
                    if number == CLUSTERS:
                        raise
                    say(f"{error}; again in another cluster with cold caches")
                    shutil.rmtree(ledger / "data")
                    for path in ledger.glob("rank-*"):
                        path.unlink()
        except stage.KNOWN_ERRORS as error:
            raise FailedError(f"{error}; seed {args.seed}") from error

    return stage.perform("failover", whole_play)


if __name__ == "__main__":
    sys.exit(main())
