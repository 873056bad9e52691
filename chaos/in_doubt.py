"""Runs `make failover-doubt`: faults that leave samples of a dynamic job in doubt.

    python in_doubt.py [--cases cut-worker,...] [--ttl-ms 1500,4000] [--seeds 3] [--records 20000]

Every process has its own network namespace (python/tests/lossy.py), so that it can be cut off. That
needs root and /dev/net/tun; without them the cases that cut are omitted. A relay that can be held
connects each trainer to its worker. Each case is one epoch of four ranks, each at its own pace,
with three coordinators. Received samples are counted from the ranks' ledgers and the shards alone.

If the lost rank returns, lost and duplicated must be 0. Otherwise in_doubt= decides: "redeliver"
duplicates at most the number that `epoch show` reports as redelivered, "drop" loses at most the
number reported as dropped, and the epoch is sealed soon after the grace period. The last line is
`failover-doubt: ok ...` or `failover-doubt: FAILED ...`, the exit status 0 or 1.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from shardfeed.testing import FailedError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FOLDERS = ("chaos/failover", "examples/digits", "tests", "python/tests")
sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]
import dataset  # noqa: E402
import recount  # noqa: E402
import stage  # noqa: E402
from lossy import Network, is_available  # noqa: E402
from ranks import Run  # noqa: E402
from servers import Bound, Cluster, Hosts, until  # noqa: E402
from stage import say  # noqa: E402
from trainer import Options  # noqa: E402

NAME = "failover-doubt"
COORDINATORS, RANKS = 3, 4
BATCH_SIZE, STEP_SECONDS = 16, 0.03
SHARDS = 10
#: Grace periods: where ranks return the policy must not decide; elsewhere it decides soon.
LONG_GRACE_S, GRACE_S = 600.0, 4.0
#: Time limit of one case in addition to its steps.
BOUND_S = 240.0

Sample = tuple[str, int]


class Namespaces(Hosts):
    """Network namespaces: one per coordinator, worker and trainer, and one for commands."""

    options = ("--insecure",)

    def __init__(self, network: Network) -> None:
        self._network = network


    def coordinators(self, count: int) -> list[str]:
        return [f"{address}:7070" for address in self._network.addresses[:count]]

    def inside(self, name: str) -> Sequence[str]:
        return self._network.inside(host_of(name))


#: Number of namespaces.
COUNT = COORDINATORS + 2 * RANKS + 1


def host_of(name: str) -> int:
    """Returns the number of a process's namespace."""
    kind, _, number = name.partition("-")
    begin = {"coordinator": -1, "worker": COORDINATORS, "trainer": COORDINATORS + RANKS}
    return COUNT - 1 if kind == "admin" else begin[kind] + int(number)


class Line:
    """Relay between a trainer and its worker's socket.

    While held, it buffers the messages of both until it is released.
    """

    def __init__(self, listen: Path, to: Path) -> None:
        self._to, self._open, self._closed = to, threading.Event(), False
        self._open.set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listen))
        self._listener.listen()
        self._ends: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._closed = True
        self.let_go()
        for end in self._ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            self._open.wait()
            try:
                far.connect(str(self._to))
            except OSError:
                near.close()
                far.close()
                continue
            self._ends += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        """Forwards bytes and the descriptors sent with them until one end is closed."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(source, 65536, 64)
                self._open.wait()
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                sent = socket.send_fds(target, [data], descriptors)
                target.sendall(data[sent:])
            except OSError:
                source.close()
                target.close()
                return
            for each in descriptors:
                os.close(each)


@dataclass
class Play:
    """One run of a case, with one session TTL and one seed."""

    case: Case
    ttl_ms: int
    seed: int
    work: Path
    records: int
    #: True if the leader is killed during the fault.
    kills_leader: bool
    #: Maximum time from the end of the grace period until the epoch is sealed.
    sealed_s: float
    random: random.Random = field(init=False)
    network: Network | None = field(init=False, default=None)
    hosts: Hosts = field(init=False, default_factory=Hosts)
    cluster: Cluster = field(init=False)
    run: Run = field(init=False)
    lines: list[Line] = field(init=False)
    gone: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.case.name} {self.ttl_ms} {self.seed}")
        self.data, self.ledger = self.work.parent / "data", self.work / "ledger"

    @property
    def job(self) -> str:
        return NAME

    def play(self) -> str:
        """Returns the counts. Raises FailedError if they violate the case's expectation."""
        self.work.mkdir()
        Bound.set(BOUND_S + 4 * STEP_SECONDS * self.records / BATCH_SIZE / RANKS)
        config = f"session-ttl-ms = {self.ttl_ms}\nheartbeat-ms = {self.ttl_ms // 5}\n"
        with ExitStack() as stack:
            if is_available():
                self.network = stack.enter_context(Network(COUNT, seed=self.seed))
                self.hosts = Namespaces(self.network)
            self.cluster = stack.enter_context(
                Cluster(self.work, COORDINATORS, RANKS, config, self.hosts)
            )
            self.lines = [
                Line(self.work / f"line-{rank}", self.work / self.cluster.socket(rank))
                for rank in range(RANKS)
            ]
            for line in self.lines:
                stack.callback(line.close)
            with self.started(0, RANKS, ()) as run:
                self.run = run
                at = self.random.uniform(0.15, 0.4)
                until(lambda: self.too_early(at))
                return self.case.play(self)

    @contextmanager
    def started(self, number: int, world_size: int, states: Sequence[str]) -> Iterator[Run]:
        """Starts the ranks of a run and stops them at the end."""
        loader: dict[str, Any] = {
            "folder": f"{self.data}",
            "mode": "dynamic",
            "job": self.job,
            "in_doubt": self.case.in_doubt,
            "in_doubt_grace": self.case.grace_s,
            "prefetch": self.random.choice([2, 8]),
        }
        options = Options(
            loader=loader, global_batch=BATCH_SIZE * world_size, states=f"states-{number}", state=None,
            save_every=10, step_seconds=STEP_SECONDS, meet=None, all_states=tuple(states),
        )  # fmt: skip

        def variables(rank: int) -> dict[str, str]:
            where = {"SHARDFEED_COORDINATOR": self.cluster.address, "SHARDFEED_WORKER": f"line-{rank}"}
            ledger = self.ledger / f"run-{number}"
            return where | {"SHARDFEED_RUN_ID": f"run-{number}", "SHARDFEED_LEDGER": str(ledger)}

        with Run(number, world_size, self.work, options) as run:
            run.start(variables, lambda rank: self.hosts.inside(f"trainer-{rank}"))
            yield run

    def too_early(self, part: float) -> str:
        self.must_run()
        taken = BATCH_SIZE * sum(len(given) for given in self.run.given)
        return f"only {taken} records were taken" if taken < part * self.records else ""

    def must_run(self) -> None:
        for rank, process in enumerate(self.run.processes):
            if rank not in self.gone and process.poll() not in (None, 0):
                raise FailedError(f"rank {rank} ended: {self.run}")

    def cut(self, *names: str) -> None:
        """Cuts exactly these processes off; only their unix sockets still work."""
        if self.network is not None:
            self.network.cut(*map(host_of, names))

    def victim(self) -> int:
        return self.random.randrange(RANKS)

    def pauses(self) -> list[float]:
        """Returns the downtimes: several short ones, or one that may exceed the session TTL."""
        choices = [[2.0, 3.0, 2.0], [self.random.uniform(5, 15)], [self.random.uniform(2, 60)]]
        return choices[self.seed % len(choices)]

    def meanwhile(self, seconds: float) -> None:
        """Waits while a process is down; kills the leader meanwhile if the case says so."""
        begun = time.monotonic()
        if self.kills_leader:
            leader = self.cluster.until_led()
            leader.kill()
            self.cluster.until_led(otherwise_than_by=leader)
            self.cluster.start_nodes()
        while time.monotonic() < begun + seconds:
            self.must_run()
            time.sleep(0.05)

    def show(self) -> dict[str, Any] | None:
        """Returns the epoch as the command shows it; None if it is unavailable now."""
        shown: dict[str, Any] | None = self.cluster.look(
            "epoch", "show", "--job", self.job, "--epoch", "0"
        )
        return shown

    def until_shown(self, what: Callable[[dict[str, Any]], Any], words: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def missing() -> str:
            self.must_run()
            shown = self.show()
            if shown is None or not what(shown):
                return f"{words}: {shown}"
            found.append(shown)
            return ""

        until(missing, within_s=BOUND_S)
        return found[-1]

    def end(self) -> None:
        """Waits until all ranks that are not gone have ended successfully."""
        ranks = [rank for rank in range(self.run.world_size) if rank not in self.gone]
        if {*self.run.exits(ranks, within_s=BOUND_S)} != {0}:
            raise FailedError(f"not all ranks finished: {self.run}")

    def all(self) -> set[Sample]:
        files = self.data.glob("*.tfrecord")
        return {(f.name, n) for f in files for n in range(recount.count_records(f, "error"))}

    def received(self, ledger: str = "run-0", before: dict[int, int] | None = None) -> Counter[Sample]:
        """Counts the samples that ranks received.

        - `before`: per rank, ignore this step and later ones.
        """
        times: Counter[Sample] = Counter()
        for path in (self.ledger / ledger).glob("rank-*"):
            rank = int(path.name[5:])
            for line in path.read_text().splitlines():
                if line.startswith("start "):
                    continue
                entry = recount.parse(line)
                is_later = before is not None and entry.step >= before.get(rank, 0)
                if entry.mark == "1" and not is_later:
                    times[entry.shard, entry.record] += 1
        return times

    def exactly_once(self, times: Counter[Sample]) -> str:
        lost, doubled = self.all() - set(times), sum(times.values()) - len(times)
        if lost or doubled or set(times) - self.all():
            raise FailedError(f"lost={len(lost)} doubled={doubled}; {self.show()}")
        return "lost 0 doubled 0"


def nothing_happens(play: Play) -> str:
    """Runs without a fault, for comparison."""
    play.end()
    return play.exactly_once(play.received())


def away(
    begin: Callable[[Play, int], None],
    over: Callable[[Play, int], None],
    ends_session: bool = True,
) -> Callable[[Play], str]:
    """Returns a fault that makes a component of a random rank unavailable several times.

    - `ends_session`: the worker's session must end if the downtime exceeds the TTL.
    """

    def fault(play: Play) -> str:
        pauses = play.pauses()
        for seconds in pauses:
            victim = play.victim()
            begin(play, victim)
            play.meanwhile(seconds)
            over(play, victim)
            play.meanwhile(play.random.uniform(0, 1))
        play.end()
        # If the leader was lost in between, every session is granted its whole TTL again.
        if ends_session and not play.kills_leader and max(pauses) > play.ttl_ms / 1e3 + 2:
            ended = play.cluster.look("events", "--kind", "worker_ended")
            if not ended or not ended["events"]:
                raise FailedError(f"no session ended within {max(pauses):.0f} s: nothing was cut")
        return play.exactly_once(play.received())

    return fault


def cut_worker(play: Play, rank: int) -> None:
    play.cut(f"worker-{rank}")


def cut_host(play: Play, rank: int) -> None:
    play.cut(f"worker-{rank}", f"trainer-{rank}")
    play.lines[rank].hold()


def mend(play: Play, rank: int) -> None:
    play.cut()
    play.lines[rank].let_go()


def hold_line(play: Play, rank: int) -> None:
    play.lines[rank].hold()


def stop_worker(play: Play, rank: int) -> None:
    play.cluster.workers[rank].stop()


def stop_trainer(play: Play, rank: int) -> None:
    play.run.processes[rank].send_signal(signal.SIGSTOP)


def stop_host(play: Play, rank: int) -> None:
    stop_worker(play, rank)
    stop_trainer(play, rank)


def go_on(play: Play, rank: int) -> None:
    if play.cluster.workers[rank].is_stopped:
        play.cluster.workers[rank].resume()
    play.run.processes[rank].send_signal(signal.SIGCONT)


def kill_worker(play: Play, rank: int) -> None:
    play.cluster.workers[rank].kill()


def start_worker(play: Play, rank: int) -> None:
    play.cluster.start_worker(play.cluster.workers[rank])


def stop_leader(play: Play) -> str:
    # Without another one there would be no majority.
    play.kills_leader = False
    for seconds in play.pauses():
        leader = play.cluster.until_led()
        leader.stop()
        play.meanwhile(min(seconds, 3 * play.ttl_ms / 1e3))
        leader.resume()
        play.cluster.until_led()
    play.end()
    return play.exactly_once(play.received())


def leader_then_worker(play: Play) -> str:
    """Repeatedly kills the leader, then a worker that may just have received a horizon."""
    for _ in range(3):
        leader, victim = play.cluster.until_led(), play.victim()
        leader.kill()
        time.sleep(play.random.choice([0.0, 0.01, 0.1]))
        kill_worker(play, victim)
        play.cluster.start_nodes()
        start_worker(play, victim)
        play.meanwhile(play.random.uniform(0, 2))
    play.end()
    return play.exactly_once(play.received())


def restart(play: Play) -> str:
    """Kills all trainers, not the workers; a new run resumes from each rank's last saved state."""
    world_size = RANKS if play.seed % 2 else RANKS // 2
    play.gone = {*range(RANKS)}
    play.run.signal(signal.SIGKILL)
    play.run.exits()
    if play.kills_leader:
        play.meanwhile(0)
    states, before = [], {}
    for rank in range(RANKS):
        files = sorted((play.work / f"states-0/rank-{rank}").glob("*.json"))
        if not files:
            raise FailedError(f"rank {rank} saved nothing")
        states.append(str(files[-1]))
        epoch, step = map(int, files[-1].stem.split("-"))
        before[rank] = step if epoch == 0 else sys.maxsize
    first = play.received("run-0", before)
    play.gone = set()
    with play.started(1, world_size, states) as run:
        play.run = run
        play.end()
    return play.exactly_once(first + play.received("run-1"))


def gone(count: int) -> Callable[[Play], str]:
    """Returns a fault that kills `count` workers and their trainers permanently."""

    def fault(play: Play) -> str:
        play.gone = {*play.random.sample(range(RANKS), count)}
        for rank in play.gone:
            play.run.processes[rank].kill()
            kill_worker(play, rank)
        if play.kills_leader:
            play.meanwhile(0)
        waiting = play.until_shown(
            lambda shown: shown["decides_in_ms"] is not None or shown["state"] == "sealed",
            "the epoch does not wait for samples in doubt",
        )
        begun = time.monotonic()
        in_doubt = sum(each["samples"] for each in waiting["in_doubt"])
        if waiting["state"] == "sealed":
            raise FailedError(f"the epoch was not seen waiting: {waiting}")
        play.end()
        shown = play.until_shown(lambda shown: shown["state"] == "sealed", "the epoch is not sealed")
        took = time.monotonic() - begun
        if took > play.case.grace_s + play.sealed_s:
            raise FailedError(f"sealed {took:.1f} s after it waited for nothing else")
        return judge(play, shown, in_doubt) + f", sealed after {took:.1f} s"

    return fault


def judge(play: Play, shown: dict[str, Any], in_doubt: int | None) -> str:
    """Compares the ledgers of an epoch on which the policy decided with the shown counts."""
    times = play.received()
    lost, doubled = len(play.all() - set(times)), sum(times.values()) - len(times)
    redelivered, dropped = shown["redelivered"], shown["dropped"]
    words = f"lost {lost} doubled {doubled} redelivered {redelivered} dropped {dropped}"
    bad = max(times.values()) > 2 or (in_doubt is not None and redelivered + dropped > in_doubt)
    if play.case.in_doubt == "redeliver":
        bad |= lost > 0 or doubled > redelivered + shown["duplicated"] or dropped > 0
    else:
        # Samples that were dropped although they had been consumed were never reported.
        told = shown["total"] - dropped
        bad |= doubled > 0 or lost > dropped or redelivered > 0 or shown["delivered"] != told
    if bad or shown["lost"]:
        raise FailedError(f"{words}; {shown}")
    return words


def returns(play: Play) -> str:
    """Stops two processes until the policy has decided; then they report their positions."""
    victim = play.victim()
    stop_host(play, victim)
    play.gone = {victim}
    if play.kills_leader:
        play.meanwhile(0)
    before = play.until_shown(lambda shown: shown["state"] == "sealed", "the epoch is not sealed")
    judge(play, before, None)
    go_on(play, victim)
    play.gone = set()
    play.end()
    times = play.received()
    lost, doubled = len(play.all() - set(times)), sum(times.values()) - len(times)

    def is_corrected(shown: dict[str, Any]) -> bool:
        return bool(shown["duplicated"] == doubled and shown["dropped"] == lost)

    shown = play.until_shown(is_corrected, f"lost {lost} doubled {doubled} differ from the shown counts")
    return judge(play, shown, None) + f", shown duplicated {shown['duplicated']}"


class Case(NamedTuple):
    name: str
    play: Callable[[Play], str]
    in_doubt: str = "redeliver"
    grace_s: float = LONG_GRACE_S
    #: True if the case needs network namespaces.
    cuts: bool = False


CASES: Sequence[Case] = (
    Case("none", nothing_happens),
    Case("cut-worker", away(cut_worker, mend), cuts=True),
    Case("cut-trainer", away(hold_line, mend, ends_session=False)),
    Case("cut-host", away(cut_host, mend), cuts=True),
    Case("stop-worker", away(stop_worker, go_on)),
    Case("stop-trainer", away(stop_trainer, go_on, ends_session=False)),
    Case("stop-host", away(stop_host, go_on)),
    Case("stop-leader", stop_leader),
    Case("kill-worker", away(kill_worker, start_worker, ends_session=False)),
    Case("leader-then-worker", leader_then_worker),
    Case("restart", restart),
    Case("gone-1", gone(1), "redeliver", GRACE_S),
    Case("gone-2", gone(2), "redeliver", GRACE_S),
    Case("gone-1-drop", gone(1), "drop", GRACE_S),
    Case("gone-2-drop", gone(2), "drop", GRACE_S),
    Case("returns", returns, "redeliver", GRACE_S),
    Case("returns-drop", returns, "drop", GRACE_S),
)


def play_all(args: argparse.Namespace, cases: Sequence[Case], work: Path) -> str:
    """Returns the last line; raises FailedError if any case failed."""
    records = args.records // SHARDS * SHARDS
    dataset.write(work / "data", [records // SHARDS] * SHARDS)
    os.environ["SHARDFEED_INSECURE"] = "true"
    failed, count = [], 0
    for case in cases:
        for ttl_ms in map(int, args.ttl_ms.split(",")):
            for seed in range(args.start, args.start + args.seeds):
                for kills_leader in [False, True] if args.leader else [False]:
                    name = f"{case.name}-{ttl_ms}-{seed}" + "-leader" * kills_leader
                    count, begun = count + 1, time.monotonic()
                    try:
                        of = (case, ttl_ms, seed, work / name, records)
                        words = Play(*of, kills_leader, args.sealed_s).play()
                    except stage.KNOWN_ERRORS as error:
                        failed.append(name)
                        words = f"FAILED {error}"
                    say(f"{name:28} {words} [{time.monotonic() - begun:.0f} s]")
    if failed:
        raise FailedError(f"{len(failed)} of {count} cases: {', '.join(failed)}")
    return f"{NAME}: ok cases={count} records={records}"


def main() -> int:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description="Leaves samples in doubt, and counts.")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--cases", default=",".join(names), help="only these, by name")
    parser.add_argument("--ttl-ms", default="1500", help="lives of sessions, each of them")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--sealed-s", type=float, default=5.0, help="maximum seconds after the grace")
    parser.add_argument("--leader", action="store_true", help="each case also with a leader killed")
    args = parser.parse_args()
    wanted = args.cases.split(",")
    if not {*wanted} <= {*names}:
        parser.error(f"--cases: there are {', '.join(names)}")
    cases = [case for case in CASES if case.name in wanted]
    if not is_available():
        say("without root, ip, nsenter or /dev/net/tun nothing can be cut off: left out")
        cases = [case for case in cases if not case.cuts]
    return stage.perform(NAME, lambda work: play_all(args, cases, work))


if __name__ == "__main__":
    sys.exit(main())
