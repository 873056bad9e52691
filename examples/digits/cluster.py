"""Coordinator, workers and commands of a cluster on this host, each in its own process."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("SHARDFEED_BINARY", ROOT / "target/release/shardfeed"))

#: Upper bound for every wait here.
DEADLINE_S = 30.0
#: Upper bound for a change to be visible in the whole cluster.
KNOWN_S = 15.0
#: The defaults suit epochs of hours: the tables would lag by an epoch here.
CONFIG = "session-ttl-ms = 1500\nheartbeat-ms = 250\n"


class FailedError(Exception):
    """The demo does not show the expected behavior."""


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


class Server:
    """One process of the cluster, which reports on standard output when it is ready."""

    def __init__(self, name: str, arguments: list[str], folder: Path) -> None:
        self.name, self.arguments, self._folder = name, arguments, folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> list[str]:
        """Starts it and waits until it is ready; returns the words of its ready line."""
        log = self._folder / f"{self.name}.log"
        with log.open("ab") as errors, Ending.held():
            self._process = subprocess.Popen(
                [BINARY, *self.arguments],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._process.stdout is not None
        line = self._first_line(self._process.stdout)
        if not line:
            ended = f"{self.name} ended with {self._process.wait()}"
            raise FailedError(f"{ended}: {log.read_text(errors='replace')[-500:]}")
        return line.split()

    def kill(self) -> None:
        """Sends SIGKILL if it runs; it has ended when this returns."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def _first_line(self, stream: IO[bytes]) -> str:
        """Returns the first line; "" at the end of the stream."""
        text, deadline = b"", time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not text.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise FailedError(f"{self.name} was not ready in {DEADLINE_S:.0f} s")
                more = os.read(stream.fileno(), 4096)
                if not more:
                    return ""
                text += more
        return text.decode()


class Cluster:
    """A coordinator, and workers that represent hosts: each has its own socket."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        config = folder / "coordinator.toml"
        config.write_text(CONFIG)
        arguments = ["coordinator", "start", "--config", str(config), "--data", "state"]
        arguments += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        self.coordinator = Server("coordinator", arguments, folder)
        self.workers = [Server(f"worker-{number}", [], folder) for number in range(workers)]
        self.address = ""

    def __enter__(self) -> Cluster:
        try:
            words = self.coordinator.start()
            self.address = words[words.index("grpc") + 1]
            # It restarts at the same address, where workers and trainers look for it.
            listen = self.coordinator.arguments.index("--listen")
            self.coordinator.arguments[listen + 1] = self.address
            for number, worker in enumerate(self.workers):
                worker.arguments = ["worker", "start", "--coordinator", self.address]
                worker.arguments += ["--name", worker.name, "--socket", self.socket(number)]
                worker.arguments += ["--memory-budget", "256MiB"]
                worker.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for server in (*self.workers, self.coordinator):
            server.kill()

    def socket(self, number: int) -> str:
        """Returns a path relative to the folder, as the path of a unix socket must be short."""
        return f"host-{number}/worker.sock"

    def variables(self, number: int) -> dict[str, str]:
        """Returns variables that connect a trainer to the cluster, on the host of this worker."""
        return {
            "SHARDFEED_COORDINATOR": self.address,
            "SHARDFEED_WORKER": self.socket(number),
        }

    def command(self, arguments: Sequence[str]) -> str:
        """Returns the output of `shardfeed ...`."""
        try:
            return subprocess.run(
                [BINARY, *arguments, "--coordinator", self.address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                timeout=DEADLINE_S,
                check=True,
            ).stdout
        except subprocess.CalledProcessError as error:
            words = f"shardfeed {' '.join(arguments)}: exit {error.returncode}"
            raise FailedError(f"{words}: {error.stderr.strip()}") from None

    def ask(self, *arguments: str) -> Any:
        """Returns the parsed JSON output of `shardfeed ...`."""
        return json.loads(self.command([*arguments, "-o", "json"]))

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
