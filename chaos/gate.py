"""Run the long checkers: simulation, deliberate bugs, process faults, fuzzing.

    python gate.py [--seconds N] [--start SEED] [bugs [NAME ...]]

Each part first runs its minimum regardless of the time limit: one seed, two seeds twice with
identical results, one deliberate bug of each kind, one fault in a counting pass and one in a
training, one host failure that leaves samples in doubt, and one second of each fuzz target. The
rest of the time goes to longer runs, up to the goals below. Each command prints one line with its
result. The last line is `gate: ok PART=RAN/GOAL ...` or `gate: FAILED ...`, and the exit status is
0 or 1. A command that does not run, or runs less than requested, is a failure.

- `--seconds`: time limit. A longer run starts only if it would end in time, assuming the duration
  of the longest run before it. The minimum always runs.
- `--start`: first seed of the simulation.
- `bugs`: run only the deliberate bugs, all or the named ones, without a time limit.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "target/debug/shardfeed-chaos"
#: Copy of the binary above, which the build with deliberate bugs replaces.
SIMULATION = ROOT / "target/chaos/clean"
FUZZER = ROOT / "target/debug/shardfeed-fuzz"

#: Seeds that always run twice; two runs of the last one once differed.
TWICE = (0, 740149571)
#: Goals of the longer runs.
SEEDS, SEEDS_TWICE, FAULTS, FUZZ_S = 30, 50, (3, 5, 6), 60
#: Faults in the counting pass of a program: the first one always runs, the other one if there is time.
COUNTING_FAULTS = (11, 12)
#: Programs that make samples: the first one always runs, one of the others if there is time.
PROGRAMS = ("mixture", "packs", "rows", "windows", "balance", "filter")
#: Faults that leave samples in doubt: the first one always runs, the others in turn.
DOUBTS = ("gone-1", "stop-host", "cut-host", "restart", "returns", "gone-2-drop")
#: Output where hosts cannot be cut off because there are no network namespaces.
CUT_OFF = "nothing can be cut off"
#: Seeds per command.
CHUNK = 5
#: Time limit of a command in seconds; one that takes longer hangs.
COMMAND_S = 1800
#: Seeds that run without a bug before the bugs are tried.
SEEDS_CLEAN = 10
#: Maximum duration of a failover with four faults, in seconds.
FAILOVER_S = 240
#: Fractions of the remaining time that seeds, doubts, bugs and fuzzing may use before the next part
#: starts.
SEEDS_SHARE, DOUBTS_SHARE, BUGS_SHARE, FUZZ_SHARE = 0.2, 0.25, 0.6, 0.7
#: Results of a seed whose process died or hung: these do not count as finding a bug.
NO_FIND = ("S1: the process ended", "I16: no end after")


class Failed(Exception):
    """A checker found a failure, or did not run."""


class Bug(NamedTuple):
    kind: str
    name: str
    #: Number of seeds within which it must be found, and the first of them.
    seeds: int
    start: int


def say(line: str) -> None:
    print(line, flush=True)


def bugs() -> list[Bug]:
    """Returns the bugs listed in chaos/bugs/SEEDS."""
    diffs = {diff.stem for diff in (ROOT / "chaos/bugs").glob("*.diff")}
    return listed((ROOT / "chaos/bugs/SEEDS").read_text(), diffs)


def listed(text: str, diffs: set[str]) -> list[Bug]:
    """Parses a list of bugs, which must name exactly the bugs in `diffs`."""
    found = []
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if words:
            kind, name, seeds, start = [*words, "0"][:4]
            found.append(Bug(kind, name, int(seeds), int(start)))
    if odd := diffs ^ {bug.name for bug in found}:
        raise Failed(f"chaos/bugs/SEEDS and the diffs beside it differ: {', '.join(sorted(odd))}")
    return found


def first_of_each(all_bugs: list[Bug]) -> list[Bug]:
    """Returns one bug of each kind."""
    return list({bug.kind: bug for bug in reversed(all_bugs)}.values())


def breach_of(status: int, output: str) -> tuple[str, str] | None:
    """Returns seed and breach if a simulation found one; a crash or a hang does not count."""
    breaches: list[tuple[str, str]] = re.findall(r"^seed (\d+): (\S+: .*)", output, re.MULTILINE)
    finds = (breach for breach in breaches if not breach[1].startswith(NO_FIND))
    return next(finds, None) if status != 0 else None


def simulated(output: str) -> int:
    """Returns the number of runs in a simulation without a breach."""
    ok = re.search(r"^ok: (\d+) runs", output, re.MULTILINE)
    return int(ok[1]) if ok else 0


def fuzzed(output: str) -> int:
    """Returns the number of targets for which the fuzzer reports a run time."""
    return len({*re.findall(r"^(\S+) +\d+ s of processor time", output, re.MULTILINE)})


def chunks(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Splits a range of seeds into chunks: number of seeds and first seed of each."""
    return ((min(CHUNK, end - at), at) for at in range(first, end, CHUNK))


class Gate:
    """The parts, and the time that remains for the longer runs."""

    def __init__(self, seconds: float, start: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.deadline = clock() + seconds
        self.start = start
        self.patched: Path | None = None
        self.targets = 0
        self.faults: set[int] = set()
        self.ran = {"seeds": 0, "twice": 0, "bugs": 0, "faults": 0, "doubts": 0, "fuzz-seconds": 0}

    def left(self) -> float:
        return self.deadline - self.clock()

    def while_time(self, share: float, tasks: Iterable[Callable[[], None]]) -> None:
        """Runs tasks while a share of the remaining time fits one as long as the longest so far."""
        until = self.clock() + self.left() * share
        longest = 0.0
        for task in tasks:
            begun = self.clock()
            if begun + longest >= until:
                break
            task()
            longest = max(longest, self.clock() - begun)

    def run(self, what: str, command: list[str | Path], **variables: str) -> str:
        """Runs a checker and prints its last line; raises Failed if the checker fails."""
        begun = self.clock()
        status, output = finished(what, command, **variables)
        if status != 0:
            say(output)
            raise Failed(f"{what}: exit status {status}")
        last = (output.strip().splitlines() or [""])[-1]
        say(f"{what}: {last[:150]} [{self.clock() - begun:.0f} s]")
        return output

    def seeds(self, number: int, start: int, *options: str) -> None:
        part = "twice" if "--twice" in options else "seeds"
        what = f"{part} {start}..{start + number - 1}"
        command: list[str | Path] = [SIMULATION, "run", "--seeds", str(number), "--start", str(start), *options]
        runs, wanted = simulated(self.run(what, command)), number * (1 + ("--twice" in options))
        if runs != wanted:
            raise Failed(f"{what}: {runs} runs instead of {wanted}")
        self.ran[part] += number

    def build_bugs(self) -> Path:
        """Builds the simulation with all bugs; while none is enabled it must find nothing."""
        if self.patched is None:
            diffs = sorted((ROOT / "chaos/bugs").glob("*.diff"))
            built = self.run("bugs: build", [ROOT / "chaos/patched.sh", *diffs])
            patched = Path(built.strip().splitlines()[-1])
            clean = self.run("bugs: none chosen", [patched, "run", "--seeds", str(SEEDS_CLEAN)])
            if simulated(clean) != SEEDS_CLEAN:
                raise Failed(f"bugs: the clean run is of fewer than {SEEDS_CLEAN} seeds")
            self.patched = patched
        return self.patched

    def bug(self, bug: Bug) -> None:
        """Checks that a bug is found: a breach that a clean run of the same seed does not have."""
        binary, begun = self.build_bugs(), self.clock()
        command: list[str | Path] = [binary, "run", "--seeds", str(bug.seeds), "--start", str(bug.start)]
        status, output = finished(f"bug {bug.name}", [*command, "--until-breach"], SHARDFEED_BUG=bug.name)
        breach = breach_of(status, output)
        if breach is None:
            say(output)
            raise Failed(f"bug {bug.name}: NOT FOUND in {bug.seeds} seeds from {bug.start} on")
        seed, seen = breach
        status, output = finished(f"seed {seed}", [binary, "run", "--seeds", "1", "--start", seed])
        if status != 0 or simulated(output) != 1:
            raise Failed(f"bug {bug.name}: seed {seed} fails without it, too: {seen}")
        say(f"bug {bug.name}: seed {seed}: {seen[:120]} [{self.clock() - begun:.0f} s]")
        self.ran["bugs"] += 1

    def failover(self, faults: tuple[int, ...], *more: str) -> None:
        command: list[str | Path] = [sys.executable, ROOT / "chaos/failover.py", "--faults", ",".join(map(str, faults)), *more]
        if f"failover: ok faults={len(faults)} " not in self.run(f"failover {faults}", command):
            raise Failed(f"failover {faults}: not all faults were played")
        self.faults |= {*faults}
        self.ran["faults"] = len(self.faults)

    def doubt(self, case: str) -> None:
        command: list[str | Path] = [sys.executable, ROOT / "chaos/in_doubt.py", "--records", "20000", "--cases", case]
        # The time until an epoch is sealed is meaningful only on an idle machine, so allow more.
        output = self.run(f"doubt {case}", [*command, "--sealed-s", "60", "--start", str(self.start)])
        if CUT_OFF in output and case.startswith("cut-"):
            return
        if "failover-doubt: ok cases=1 " not in output:
            raise Failed(f"doubt {case}: it was not played")
        self.ran["doubts"] += 1

    def fuzz(self, seconds: int) -> None:
        # The fuzzer adds inputs to this copy; the corpus in the source tree stays unchanged.
        corpus = ROOT / "target/chaos/corpus"
        shutil.copytree(ROOT / "fuzz/corpus", corpus, dirs_exist_ok=True)
        command: list[str | Path] = [FUZZER, "--seconds", str(seconds), "--corpus", corpus]
        targets = fuzzed(self.run(f"fuzz {seconds} s a target", command))
        if targets == 0 or targets < self.targets:
            raise Failed(f"fuzz: {targets} targets ran")
        self.targets = targets
        self.ran["fuzz-seconds"] += seconds

    def minimum(self) -> None:
        self.seeds(1, self.start)
        for seed in TWICE:
            self.seeds(1, seed, "--twice")
        for bug in first_of_each(bugs()):
            self.bug(bug)
        self.failover((COUNTING_FAULTS[0], FAULTS[0]), "--program", PROGRAMS[0])
        self.doubt(DOUBTS[0])
        self.fuzz(1)

    def longer(self) -> None:
        start, some = self.start, first_of_each(bugs())
        self.while_time(SEEDS_SHARE, (partial(self.seeds, *seeds) for seeds in chunks(start + 1, start + SEEDS)))
        if self.left() > FAILOVER_S:
            self.failover(FAULTS)
        if self.left() > FAILOVER_S:
            self.failover((COUNTING_FAULTS[1], *FAULTS), "--program", PROGRAMS[1 + self.start % (len(PROGRAMS) - 1)])
        self.while_time(DOUBTS_SHARE, (partial(self.doubt, case) for case in DOUBTS[1:]))
        self.while_time(BUGS_SHARE, (partial(self.bug, bug) for bug in bugs() if bug not in some))
        if (seconds := min(FUZZ_S, int(self.left() * FUZZ_SHARE / self.targets))) > 0:
            self.fuzz(seconds)
        more = chunks(start + 1, start + 1 + SEEDS_TWICE - len(TWICE))
        self.while_time(1, (partial(self.seeds, *seeds, "--twice") for seeds in more))

    def summary(self) -> str:
        """Returns the amount of work done beside the goals."""
        faults = len(COUNTING_FAULTS) + len(FAULTS)
        goals = {"seeds": SEEDS, "twice": SEEDS_TWICE, "bugs": len(bugs()), "faults": faults, "doubts": len(DOUBTS)}
        goals["fuzz-seconds"] = FUZZ_S
        return " ".join(f"{part}={number}/{goals[part]}" for part, number in self.ran.items())


def finished(what: str, command: list[str | Path], **variables: str) -> tuple[int, str]:
    """Returns the exit status and output of a command.

    Raises Failed if it cannot start or does not end in time.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "SHARDFEED_BUG"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=inherited | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
        )
    except OSError as error:
        raise Failed(f"{what}: cannot start: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{what}: no end after {COMMAND_S} s") from error
    return done.returncode, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("only", nargs="*", metavar="bugs [NAME ...]")
    args = parser.parse_args()
    gate = Gate(args.seconds, args.start)
    if args.only and args.only[0] != "bugs":
        parser.error(f"{args.only[0]!r} is not a part; use `bugs`")
    try:
        if args.only:
            known = {bug.name: bug for bug in bugs()}
            if unknown := [name for name in args.only[1:] if name not in known]:
                parser.error(f"{unknown[0]!r} is not in chaos/bugs/SEEDS")
            for name in args.only[1:] or known:
                gate.bug(known[name])
        else:
            SIMULATION.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(BUILT, SIMULATION)
            gate.minimum()
            gate.longer()
        say(f"gate: ok {gate.summary()}")
    except (Failed, OSError, shutil.Error) as failed:
        say(f"gate: FAILED {failed}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
