"""Runs `make failover-dynamic`: failures that make tf.data service lose data, one after the other.

    python dynamic_failures.py [--records 200000] [--cases sole-worker,...] [--mode dynamic]

Each case is one epoch of a separate cluster. The ranks consume batches of 512 at a fixed pace, not
in step with each other. After about 35 % of the records a process is killed; it restarts 1 s later
or never. Then the ranks' ledgers are counted (tests/recount.py), and a row is printed beside the
result of tf.data service 2.21 in the same case: dynamic sharding, 10 files, 1,000,000 records, one
client, kill at 35 %, restart after 1 s.

Cases in which a rank is lost permanently require mode="dynamic": its remaining groups go to the
other ranks. The other cases run in deterministic mode, or all cases in the mode given by `--mode`.

Both lost and duplicated must be 0. The only exception is a rank that is killed permanently: batches
that it received after its last report may be delivered again, because no other process knows
whether they were consumed. The last line is `failover-dynamic: ok ...` or `failover-dynamic: FAILED
...`, the exit status 0 or 1.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shardfeed.testing import FailedError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(path) for path in (HERE / "failover", ROOT / "examples/digits", ROOT / "tests")]
import dataset  # noqa: E402
import recount  # noqa: E402
import stage  # noqa: E402
from ranks import Run  # noqa: E402
from servers import Bound, Cluster  # noqa: E402
from stage import say  # noqa: E402
from trainer import Options  # noqa: E402

NAME = "failover-dynamic"
BATCH_SIZE = 512
SHARDS = 10
#: Time of the kill as a fraction of all records, and downtime of the killed process.
KILL_AT, GONE_S = 0.35, 1.0
#: Time limit of one case in addition to its steps; an epoch that has not ended by then never ends.
BOUND_S = 60.0
#: Time that an epoch waits for a rank that was killed permanently, once all its other samples are
#: consumed.
GRACE_S = 5.0
#: Duration of a training step: long enough for the killed process to restart before the epoch ends.
STEP_SECONDS = 0.02


class Outcome(NamedTuple):
    """Columns of the table."""

    lost: str
    doubled: str
    ended: str
    gap: str


class Case(NamedTuple):
    name: str
    #: Number of workers, with one rank each.
    workers: int
    coordinators: int
    #: "worker", "host" (a worker and its trainer), "leader" or "" for none.
    victim: str
    #: Result of tf.data service.
    peer: Outcome


#: Rank whose worker is killed, alone or with the rank. Never rank 0, which all ledgers need.
VICTIM = -1
CASES: Sequence[Case] = (
    Case("none", 1, 1, "", Outcome("0", "0", "yes", "-")),
    Case("sole-worker", 1, 1, "worker", Outcome("449,792", "0", '"yes"', "5.5 - 6.7 s")),
    Case("one-of-2", 2, 1, "worker", Outcome("264,320 - 462,272", "0", '"yes"', "to its end")),
    Case("one-of-2-gone", 2, 1, "host", Outcome("24,896; 425,920", "0", "never", "-")),
    Case(
        "coordinator", 1, 1, "leader", Outcome("0 (or 600,128)", "0", "yes (error)", "5.2 - 7.1 s")
    ),
    Case("leader-of-3", 2, 3, "leader", Outcome("has no such", "", "", "")),
)


class Play:
    """One run of a case."""

    def __init__(self, case: Case, mode: str, work: Path) -> None:
        self.case, self.mode, self.work = case, mode, work
        self.tail = "uneven" if mode == "dynamic" else "pad"
        self.data, self.ledger = work.parent / "data", work / "ledger"
        self.struck = math.inf

    def play(self, records: int) -> Outcome:
        """Runs the case. Raises FailedError if samples were lost or duplicated, or a rank hung."""
        self.work.mkdir()
        Bound.set(BOUND_S + 2 * STEP_SECONDS * records / BATCH_SIZE)
        with (
            Cluster(self.work, self.case.coordinators, self.case.workers) as cluster,
            Run(0, self.case.workers, self.work, self.options()) as run,
        ):
            ledger = {"SHARDFEED_RUN_ID": NAME, "SHARDFEED_LEDGER": str(self.ledger)}
            run.start(lambda rank: ledger | cluster.variables(rank))
            if self.case.victim:
                self.strike(cluster, run, records)
            *survivors, victim = range(run.world_size)
            ranks = survivors if self.case.victim == "host" else [*survivors, victim]
            if {*run.exits(ranks, within_s=math.inf)} != {0}:
                raise FailedError(f"not all ranks finished: {run}")
            gap = run.longest_gap(min(self.struck, run.given[0][0].time), math.inf)
        return self.count(f"{gap * 1e3:.0f} ms")

    def options(self) -> Options:
        loader: dict[str, Any] = {
            "folder": f"{self.data}",
            "tail": self.tail,
            "job": NAME,
        }
        if self.mode == "dynamic":
            loader |= {"mode": self.mode, "in_doubt_grace": GRACE_S}
        return Options(
            loader=loader,
            global_batch=BATCH_SIZE * self.case.workers,
            states="states",
            state=None,
            save_every=10,
            step_seconds=STEP_SECONDS,
            meet=None,
        )

    def strike(self, cluster: Cluster, run: Run, records: int) -> None:
        leader = cluster.until_led() if self.case.victim == "leader" else None

        def too_early() -> str:
            taken = BATCH_SIZE * sum(len(given) for given in run.given)
            return f"only {taken} records were taken" if taken < KILL_AT * records else ""

        run.until(too_early)
        self.struck = time.monotonic()
        worker = cluster.workers[VICTIM]
        (leader or worker).kill()
        if self.case.victim == "host":
            run.processes[VICTIM].kill()
            return
        time.sleep(GONE_S)
        if leader is None:
            cluster.start_worker(worker)
        else:
            cluster.start_nodes()

    def count(self, gap: str) -> Outcome:
        total = recount.recount(self.ledger, self.data, epochs=1, tail=self.tail)
        among = "by any rank"
        doubled = total.duplicated
        if self.case.victim == "host":
            among, doubled = "by survivors", self.doubled_among_survivors()
        if total.lost or doubled or total.unknown or total.problems:
            found = f"lost={total.lost} doubled={doubled} {among} unknown={total.unknown}"
            raise FailedError("; ".join([found, *total.problems[:3]]))
        return Outcome(f"{total.lost}", f"{total.duplicated:,}", "yes", gap)

    def doubled_among_survivors(self) -> int:
        _, steps = recount.read_ledger(self.ledger)
        gone = self.case.workers - 1
        times = Counter(
            (line.shard, line.record)
            for step in steps.values()
            for rank, lines in step.lines.items()
            for line in lines
            if line.mark == "1" and rank != gone
        )
        return sum(times.values()) - len(times)


def mode_of(case: Case, wanted: str | None) -> str:
    return wanted or ("dynamic" if case.victim == "host" else "deterministic")


def play_all(cases: Sequence[Case], wanted: str | None, records: int, work: Path) -> str:
    """Returns the last line; raises FailedError if any case failed."""
    dataset.write(work / "data", [records // SHARDS] * SHARDS)
    records = records // SHARDS * SHARDS
    say(
        f"{records:,} records in {SHARDS} files, batches of {BATCH_SIZE}; beside it tf.data service"
    )
    row = "{:14} {:13} {:>7} {:>8} {:6} {:>8}   | {:>18} {:>8} {:12} {}".format
    say(row("case", "mode", *Outcome._fields, *Outcome._fields))
    failed = []
    for case in cases:
        mode = mode_of(case, wanted)
        if case.victim == "host" and mode != "dynamic":
            say(f"{case.name:14} {mode:13} waits for the lost rank, as it should: left out")
            continue
        try:
            outcome = Play(case, mode, work / case.name).play(records)
            say(row(case.name, mode, *outcome, *case.peer))
        except stage.KNOWN_ERRORS as error:
            failed.append(case.name)
            say(f"{case.name:14} {mode:13} FAILED {error}")
    if failed:
        raise FailedError(f"{len(failed)} of {len(cases)} cases: {', '.join(failed)}")
    return f"{NAME}: ok cases={len(cases)} records={records} lost=0"


def main() -> int:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description="Kills processes that a training needs, and counts.")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--cases", default=",".join(names), help="only these, by name")
    parser.add_argument("--mode", choices=["deterministic", "dynamic"], help="of all cases")
    args = parser.parse_args()
    wanted = args.cases.split(",")
    if not {*wanted} <= {*names}:
        parser.error(f"--cases: there are {', '.join(names)}")
    cases = [case for case in CASES if case.name in wanted]
    return stage.perform(NAME, lambda work: play_all(cases, args.mode, args.records, work))


if __name__ == "__main__":
    sys.exit(main())
