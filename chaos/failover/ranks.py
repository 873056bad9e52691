"""The ranks of one run, each a process, and how far they are by their own word."""

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
from types import TracebackType
from typing import NamedTuple

from cluster import DEADLINE_S, ROOT, Ending, FailedError
from servers import until
from trainer import Options

TRAINER = Path(__file__).with_name("trainer.py")
#: `trainer` takes the meeting of ranks from the example.
PATHS = (ROOT / "examples/digits",)


class Place(NamedTuple):
    epoch: int
    step: int


class Given(NamedTuple):
    """A rank has got a batch, at a time of the monotonic clock."""

    place: Place
    time: float


class Run:
    """One start of all ranks."""

    def __init__(self, number: int, world_size: int, folder: Path, options: Options) -> None:
        self.number, self.world_size, self.options = number, world_size, options
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        #: The batches of each rank.
        self.given: list[list[Given]] = [[] for _ in range(world_size)]
        #: What each rank said besides.
        self.said: list[list[str]] = [[] for _ in range(world_size)]
        self._readers: list[threading.Thread] = []

    def start(
        self,
        variables: Callable[[int], dict[str, str]],
        inside: Callable[[int], Sequence[str]] = lambda rank: (),
    ) -> None:
        """Starts all ranks. `variables`: of a rank's environment. `inside`: what its command begins with."""
        options = json.dumps(asdict(self.options))
        for rank in range(self.world_size):
            environment = os.environ | variables(rank)
            environment |= {"RANK": str(rank), "WORLD_SIZE": str(self.world_size)}
            # The package that this process uses comes with it.
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
            # A pipe that nobody reads would hold the rank up.
            self._readers.append(threading.Thread(target=self._read, args=(rank,)))
            self._readers[-1].start()

    def close(self) -> None:
        """Ends what runs of it."""
        for process in self.processes:
            process.kill()  # does nothing to a process that has ended
            process.wait()
        for reader in self._readers:
            reader.join()
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def signal(self, number: int) -> None:
        """To all ranks that run."""
        for process in self.processes:
            process.send_signal(number)

    @property
    def origin(self) -> Place:
        """Where it begins."""
        return place_of(Path(self.options.state)) if self.options.state else Place(0, 0)

    @property
    def first(self) -> Place:
        """Of the rank that is farthest."""
        return max((given[-1].place for given in self.given if given), default=Place(-1, -1))

    @property
    def last(self) -> Place:
        """Of the rank that is least far."""
        return min(given[-1].place if given else Place(-1, -1) for given in self.given)

    def must_run(self) -> None:
        """Raises if a rank has ended."""
        if any(process.poll() is not None for process in self.processes):
            raise FailedError(f"run {self.number}: not all ranks run: {self}")

    def until(self, missing: Callable[[], str]) -> None:
        """Waits, while all ranks run, until nothing is missing."""

        def still_missing() -> str:
            self.must_run()
            return missing()

        until(still_missing)

    def until_all_at(self, place: Place) -> None:
        """Waits until every rank has got this step."""
        words = f"not all ranks are at epoch {place.epoch} step {place.step}"
        self.until(lambda: "" if self.last >= place else f"{words}, one is at {self.last}")

    def exits(self, ranks: Sequence[int] | None = None, within_s: float = DEADLINE_S) -> list[int]:
        """Waits for the end of these ranks, of all by default; returns their exit statuses."""
        waited = [self.processes[r] for r in (range(self.world_size) if ranks is None else ranks)]

        def still_running() -> str:
            running = [each for each in waited if each.poll() is None]
            return f"run {self.number}: {len(running)} ranks have not ended" if running else ""

        until(still_running, within_s)
        for reader in self._readers if ranks is None else ():
            reader.join()
        return [process.wait() for process in waited]

    def longest_gap(self, since: float, until: float) -> float:
        """Seconds between two batches of a rank, if some of them were between these times."""
        longest = 0.0
        for given in self.given:
            for before, after in pairwise(given):
                if before.time < until and after.time > since:
                    longest = max(longest, after.time - before.time)
        return longest

    def common_state(self) -> Path | None:
        """The last state that every rank has; None: there is none yet. Raises if ranks differ."""
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
    """Where a state goes on, by its file's name."""
    epoch, step = state.stem.split("-")
    return Place(int(epoch), int(step))


STOPPED = 128 + signal.SIGTERM
