"""A real cluster for tests: the coordinator and the worker in their own processes."""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("SHARDFEED_BINARY", ROOT / "target/release/shardfeed"))

#: Upper bound for every wait here.
DEADLINE_S = 30.0


class Server:
    """One process of the cluster, which reports on standard output when it is ready.

    `inside`: prefix of a command that runs it on another host.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        log: Path,
        env: dict[str, str],
        inside: Sequence[str] = (),
    ) -> None:
        assert BINARY.exists(), f"{BINARY} is missing: `make build` makes it"
        self.name, self.arguments, self.log, self.env = name, arguments, log, env
        self.inside = inside
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = ""

    def start(self) -> str:
        """Starts it and waits until it is ready; returns its ready line."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.inside, BINARY, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.env,
            )
        assert self.process.stdout is not None
        self.ready = _line(self.process.stdout)
        if not self.ready:
            text = self.log.read_text()[-2000:]
            raise AssertionError(f"{self.name} ended with {self.process.wait()}: {text}")
        return self.ready

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits for the end; returns the exit status."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            status = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        assert process.stdout is not None
        process.stdout.close()
        return status

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


def _line(stream: IO[bytes]) -> str:
    """Returns the first line, or "" at the end of the stream."""
    text, deadline = b"", time.monotonic() + DEADLINE_S
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not text.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"not ready in {DEADLINE_S:.0f} s")
            more = os.read(stream.fileno(), 4096)
            if not more:
                return ""
            text += more
    return text.decode()


class Cluster:
    """A coordinator and workers on this host, in their own folder."""

    def __init__(
        self, folder: Path, workers: int = 1, ttl: str | None = None, memory: str = "1GiB"
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        unset = ("SHARDFEED_", "RANK", "WORLD_SIZE")
        self.env = {name: v for name, v in os.environ.items() if not name.startswith(unset)}
        self.env |= {"SHARDFEED_LOG": "info", "SHARDFEED_CACHE_DIR": str(folder / "cache")}
        self.address, self.cluster_id = "", ""
        self._ttl = ttl
        self.coordinator = self._coordinator("127.0.0.1:0")
        self._count, self._memory = workers, memory
        self.workers: list[Server] = []

    def _coordinator(self, listen: str) -> Server:
        arguments = ["coordinator", "start", "--data", str(self.folder / "state")]
        arguments += ["--listen", listen, "--http", "127.0.0.1:0"]
        if self._ttl is not None:
            config = self.folder / "coordinator.toml"
            config.write_text(self._ttl)
            arguments += ["--config", str(config)]
        return Server("coordinator", arguments, self.folder / "coordinator.log", self.env)

    def __enter__(self) -> Cluster:
        try:
            words = self.coordinator.start().split()
            self.address = words[words.index("grpc") + 1]
            self.cluster_id = words[words.index("cluster") + 1]
            # From now on it restarts at the same address.
            arguments = self.coordinator.arguments
            arguments[arguments.index("--listen") + 1] = self.address
            for number in range(self._count):
                self.workers.append(self.worker(number))
                self.workers[-1].start()
        except BaseException:
            self.close()
            raise
        return self

    def worker(self, number: int, *more: str) -> Server:
        arguments = ["worker", "start", "--coordinator", self.address, "--name", f"worker-{number}"]
        arguments += ["--socket", str(self.socket(number)), "--memory-budget", self._memory, *more]
        return Server(f"worker-{number}", arguments, self.folder / f"worker-{number}.log", self.env)

    def socket(self, number: int = 0) -> Path:
        return self.folder / f"run-{number}" / "worker.sock"

    def variables(self, run: str, number: int = 0) -> dict[str, str]:
        """Returns variables that connect loaders to this cluster."""
        return {
            "SHARDFEED_COORDINATOR": self.address,
            "SHARDFEED_WORKER": str(self.socket(number)),
            "SHARDFEED_RUN_ID": run,
        }

    def close(self) -> None:
        for server in (*self.workers, self.coordinator):
            server.kill()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Killer:
    """Kills a worker with SIGKILL at random times, and restarts it."""

    def __init__(self, worker: Server, seed: int) -> None:
        self._worker, self._random = worker, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.kills = 0

    def _run(self) -> None:
        while not self._stop.wait(self._random.uniform(0.005, 0.25)):
            self._worker.kill()
            self.kills += 1
            self._stop.wait(self._random.choice([0.0, 0.02, 0.6]))
            self._worker.start()

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
