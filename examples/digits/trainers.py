"""The ranks of one run, each in a process, and the screen that shows their progress."""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cluster import Ending

from shardfeed.testing import FailedError

#: Upper bound for a run.
DEADLINE_S = 120.0

PROGRESS = re.compile(r"rank (\d+) epoch (\d+) step (\d+) of (\d+) loss (\S+)")

Place = tuple[int, int]  # epoch, step


class Progress(NamedTuple):
    """Report of a finished step."""

    rank: int
    epoch: int
    step: int
    steps: int
    loss: float
    time: float

    @property
    def place(self) -> Place:
        return self.epoch, self.step


class Screen:
    """Lines of output; on a terminal the last one shows the progress of the epoch."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._shown = 0

    def say(self, line: str) -> None:
        print("\r" + " " * self._shown + "\r" if self._shown else "", line, sep="", flush=True)
        self._shown = 0

    def show(self, at: Progress) -> None:
        if at.rank != 0:
            return
        if at.step + 1 == at.steps:
            self.say(f"  epoch {at.epoch}: {at.steps} steps, loss {at.loss:.3f}")
        elif self._is_terminal:
            done = 32 * (at.step + 1) // at.steps
            line = f"  epoch {at.epoch} [{'#' * done:.<32}] loss {at.loss:.3f}"
            print("\r" + line, end="", flush=True)
            self._shown = len(line)


@dataclass
class Outcome:
    """Result of the ranks of one run."""

    exits: list[int]
    #: Output of each rank besides its progress.
    said: list[list[str]]

    def __str__(self) -> str:
        ends = zip(self.exits, (lines[-1] if lines else "" for lines in self.said), strict=True)
        return "; ".join(f"rank {r}: exit {code} {text!r}" for r, (code, text) in enumerate(ends))


class Trainers:
    """The ranks of one run. `start(rank)` starts a process that reports steps on its standard
    output."""

    def __init__(
        self, world_size: int, start: Callable[[int], subprocess.Popen[bytes]], screen: Screen
    ) -> None:
        self.world_size = world_size
        self.processes: list[subprocess.Popen[bytes]] = []
        #: Steps of each rank, as soon as they are reported.
        self.steps: list[list[Progress]] = [[] for _ in range(world_size)]
        self._said: list[list[str]] = [[] for _ in range(world_size)]
        self._start, self._screen = start, screen
        self._lines: queue.SimpleQueue[tuple[int, float, str | None]] = queue.SimpleQueue()
        self._readers: list[threading.Thread] = []
        self._deadline = time.monotonic() + DEADLINE_S
        self._ended = 0

    def __enter__(self) -> Trainers:
        try:
            for rank in range(self.world_size):
                with Ending.held():
                    self.processes.append(self._start(rank))
                # Not in the main thread, which is busy and would record the times late.
                self._readers.append(threading.Thread(target=self._read, args=(rank,)))
                self._readers[-1].start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in self.processes:
            process.kill()  # does nothing to a process that has ended
            process.wait()
        for reader in self._readers:
            reader.join()
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.close()

    @property
    def last(self) -> Progress | None:
        """Returns the last report of the rank that is furthest ahead."""
        ends = [steps[-1] for steps in self.steps if steps]
        return max(ends, key=lambda at: at.place, default=None)

    def until(self, place: Place) -> None:
        """Follows the ranks until the first of them has finished this step."""
        while self.last is None or self.last.place < place:
            if not self._follow():
                where = "epoch {} step {}".format(*place)
                raise FailedError(f"the ranks ended before {where}: {self.outcome()}")

    def for_seconds(self, seconds: float) -> None:
        """Follows the ranks for `seconds`, or to their end."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._ended == self.world_size:
                return
            self._follow(end)

    def outcome(self) -> Outcome:
        """Follows the ranks to their end."""
        while self._follow():
            pass
        return Outcome([process.wait(DEADLINE_S) for process in self.processes], self._said)

    def longest_step(self, since: float, until: float) -> float:
        """Returns the duration in seconds of the longest step of any rank that overlaps this
        period."""
        longest = 0.0
        for steps in self.steps:
            for before, after in zip(steps, steps[1:], strict=False):
                if before.time < until and after.time > since:
                    longest = max(longest, after.time - before.time)
        return longest

    def _follow(self, end: float | None = None) -> bool:
        """Processes a rank's next line, if it comes before `end`; False: all ranks have ended."""
        if self._ended == self.world_size:
            return False
        wait = (self._deadline if end is None else min(end, self._deadline)) - time.monotonic()
        try:
            rank, at, line = self._lines.get(timeout=max(0.0, wait))
        except queue.Empty:
            if time.monotonic() >= self._deadline:
                raise FailedError(f"the ranks did not end in {DEADLINE_S:.0f} s") from None
            return True
        if line is None:
            self._ended += 1
            return True
        match = PROGRESS.fullmatch(line)
        if match is None:
            self._said[rank].append(line)
        else:
            of, epoch, step, steps = map(int, match.groups()[:4])
            progress = Progress(of, epoch, step, steps, float(match[5]), at)
            self.steps[rank].append(progress)
            self._screen.show(progress)
        return True

    def _read(self, rank: int) -> None:
        stream = self.processes[rank].stdout
        assert stream is not None
        for line in stream:
            text = line.decode(errors="replace").rstrip("\n")
            self._lines.put((rank, time.monotonic(), text))
        self._lines.put((rank, time.monotonic(), None))
