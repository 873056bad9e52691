"""The ranks of one run, each a process, and the progress that they report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from cluster import ROOT, Ending
from servers import until
from trainer import Options

from shardfeed.testing import DEADLINE_S, FailedError

TRAINER = Path(__file__).with_name("trainer.py")
#: Folder of `Ranks`, which `trainer` imports from the example.
PATHS = (ROOT / "examples/digits",)


class Place(NamedTuple):
    epoch: int
    step: int


class Given(NamedTuple):
    """Receipt of a batch by a rank, at a time of the monotonic clock."""

    place: Place
    time: float


class Run:
    """One start of all ranks."""

    def __init__(self, number: int, world_size: int, folder: Path, options: Options) -> None:
        self.number, self.world_size, self.options = number, world_size, options
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        #: Batches of each rank.
        self.given: list[list[Given]] = [[] for _ in range(world_size)]
        #: Other lines that each rank printed.
        self.said: list[list[str]] = [[] for _ in range(world_size)]
        self._readers: list[threading.Thread] = []

    def start(
        self,
        variables: Callable[[int], dict[str, str]],
        inside: Callable[[int], Sequence[str]] = lambda rank: (),
    ) -> None:
        """Starts all ranks. `variables`: environment of a rank. `inside`: prefix of its command."""
        options = json.dumps(asdict(self.options))
        for rank in range(self.world_size):
            environment = os.environ | variables(rank)
            environment |= {"RANK": str(rank), "WORLD_SIZE": str(self.world_size)}
            # Inherit the package that this process uses.
            paths = [*map(str, PATHS), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ":".join(paths)}
            with Ending.held():
                process = subprocess.Popen(
                    [*inside(rank), sys.executable, TRAINER, options],
                    cwd=self._folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                self.processes.append(process)
            # A pipe that is not read would block the rank.
            self._readers.append(threading.Thread(target=self._read, args=(rank,)))
            self._readers[-1].start()

    def close(self) -> None:
        """Ends the processes that still run."""
        for process in self.processes:
            process.kill()  # no effect on a process that has ended
            process.wait()
        for reader in self._readers:
            reader.join()
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def signal(self, number: int) -> None:
        """Sends a signal to all running ranks."""
        for process in self.processes:
            process.send_signal(number)

    @property
    def origin(self) -> Place:
        """Position at which the run begins."""
        return place_of(Path(self.options.state)) if self.options.state else Place(0, 0)

    @property
    def first(self) -> Place:
        """Position of the most advanced rank."""
        return max((given[-1].place for given in self.given if given), default=Place(-1, -1))

    @property
    def last(self) -> Place:
        """Position of the least advanced rank."""
        return min(given[-1].place if given else Place(-1, -1) for given in self.given)

    def must_run(self) -> None:
        """Raises FailedError if a rank has ended."""
        if any(process.poll() is not None for process in self.processes):
            raise FailedError(f"run {self.number}: not all ranks run: {self}")

    def until(self, missing: Callable[[], str]) -> None:
        """Waits until `missing` returns ""; raises FailedError if a rank ends before."""

        def still_missing() -> str:
            self.must_run()
            return missing()

        until(still_missing)

    def until_all_at(self, place: Place) -> None:
        """Waits until every rank has received this step."""
        words = f"not all ranks are at epoch {place.epoch} step {place.step}"
        self.until(lambda: "" if self.last >= place else f"{words}, one is at {self.last}")

    def exits(self, ranks: Sequence[int] | None = None, within_s: float = DEADLINE_S) -> list[int]:
        """Waits for the end of these ranks, by default all; returns their exit statuses."""
        waited = [self.processes[r] for r in (range(self.world_size) if ranks is None else ranks)]

        def still_running() -> str:
            running = [each for each in waited if each.poll() is None]
            return f"run {self.number}: {len(running)} ranks have not ended" if running else ""

        until(still_running, within_s)
        for reader in self._readers if ranks is None else ():
            reader.join()
        return [process.wait() for process in waited]

    def longest_gap(self, since: float, until: float) -> float:
        """Returns the longest gap in seconds between a rank's batches that overlaps this time."""
        longest = 0.0
        for given in self.given:
            for before, after in pairwise(given):
                if before.time < until and after.time > since:
                    longest = max(longest, after.time - before.time)
        return longest

    def common_state(self) -> Path | None:
        """Returns the last state common to all ranks, if any; FailedError if they differ."""
        folders = [Path(self.options.states) / f"rank-{rank}" for rank in range(self.world_size)]
        folders = [self._folder / folder for folder in folders]
        names = [{path.name for path in folder.glob("*.json")} for folder in folders]
        common = set.intersection(*names)
        if not common:
            return None
        last = max(common)
        if len({(folder / last).read_bytes() for folder in folders}) != 1:
            raise FailedError(f"run {self.number}: the ranks' states {last} differ")
        return folders[0] / last

    def __str__(self) -> str:
        def how(rank: int, process: subprocess.Popen[bytes]) -> str:
            status, said = process.poll(), self.said[rank]
            return f"rank {rank}: {'runs' if status is None else status} {said[-1:]}"

        return "; ".join(how(rank, process) for rank, process in enumerate(self.processes))

    def _read(self, rank: int) -> None:
        stream = self.processes[rank].stdout
        assert stream is not None
        for line in stream:
            match line.decode(errors="replace").split():
                case ["step", epoch, step, at]:
                    self.given[rank].append(Given(Place(int(epoch), int(step)), float(at)))
                case words:
                    self.said[rank].append(" ".join(words))


def place_of(state: Path) -> Place:
    """Returns the position at which a state resumes, from its file name."""
    epoch, step = state.stem.split("-")
    return Place(int(epoch), int(step))


STOPPED = 128 + signal.SIGTERM
