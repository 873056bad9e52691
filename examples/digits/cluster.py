"""The demo's cluster on this host, and the signals that end the demo."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shardfeed import testing
from shardfeed.testing import FailedError

ROOT = Path(__file__).resolve().parents[2]

#: Upper bound for a change to be visible in the whole cluster.
KNOWN_S = 15.0
#: The defaults suit epochs of hours: the tables would lag by an epoch here.
CONFIG = "session-ttl-ms = 1500\nheartbeat-ms = 250\n"


class Ending:
    """Signals that end the demo through every `finally`.

    They are deferred while a process is started, as its id would otherwise be unknown.
    """

    _held = 0
    _number = 0

    @classmethod
    def on_signals(cls) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, cls._on_signal)

    @classmethod
    def _on_signal(cls, number: int, frame: object) -> None:
        if cls._number:
            return  # already ending
        cls._number = number
        if not cls._held:
            sys.exit(128 + number)

    @classmethod
    @contextmanager
    def held(cls) -> Iterator[None]:
        cls._held += 1
        try:
            yield
        finally:
            cls._held -= 1
        if cls._number and not cls._held:
            sys.exit(128 + cls._number)


class Server(testing.Server):
    """One process of the cluster."""

    def spawn(self) -> None:
        with Ending.held():
            super().spawn()


class Cluster(testing.Cluster):
    """A coordinator, and workers that represent hosts: each has its own socket."""

    server = Server

    def __init__(self, folder: Path, workers: int) -> None:
        super().__init__(folder, workers, CONFIG, memory="256MiB")

    def socket(self, number: int = 0) -> Path:
        """Returns a path relative to the folder, as the path of a unix socket must be short."""
        return Path(f"host-{number}/worker.sock")

    def until(
        self, ask: Callable[[], object], expected: object, wait: Callable[[float], None]
    ) -> None:
        """Waits until the cluster reports the expected value."""
        deadline = time.monotonic() + KNOWN_S
        while (answer := ask()) != expected:
            if time.monotonic() > deadline:
                said = f"after {KNOWN_S:.0f} s the cluster says {answer}"
                raise FailedError(f"{said}, not {expected}")
            wait(0.05)
