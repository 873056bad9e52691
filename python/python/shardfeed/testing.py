"""A cluster on this host for tests: a coordinator and workers in their own processes.

    with shardfeed.testing.Cluster(tmp_path, workers=2) as cluster:
        with shardfeed.Loader(files, batch_size=4, **cluster.loader_options()) as loader:
            cluster.workers[0].kill()
            ...
"""

from __future__ import annotations

import json
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Self, TypeVar

T = TypeVar("T")

#: Upper bound of every wait here, in seconds.
DEADLINE_S = 30.0


def _binary() -> Path:
    beside = Path(sys.executable).with_name("shardfeed")
    built = Path(__file__).resolve().parents[3] / "target/release/shardfeed"
    in_path = shutil.which("shardfeed")
    said = os.environ.get("SHARDFEED_BINARY")
    found = said or next((each for each in (beside, built) if each.exists()), in_path) or built
    return Path(found).absolute()


#: The command `shardfeed`: `SHARDFEED_BINARY`, else that of this Python environment, of this
#: checkout's `make build`, or in `PATH`.
BINARY = _binary()


class FailedError(Exception):
    """A process of the cluster failed, or something did not happen in time."""


def until(look: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Calls `look` every 10 ms until it returns a true value, and returns that."""
    deadline, pause = time.monotonic() + deadline_s, threading.Event()
    while not (found := look()):
        if time.monotonic() >= deadline:
            raise FailedError(f"not in {deadline_s:.0f} s: {what}")
        pause.wait(0.01)
    return found


class Server:
    """A process of a cluster, which prints a line when it is ready.

    - `log`: file that gets its standard error.
    - `env`: all of its variables; by default those of this process.
    - `inside`: prefix of its command, e.g. to run it in a network namespace.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        self.name, self.arguments, self.log = name, list(arguments), log
        self.env, self.inside = env, inside
        #: True between `stop` and `resume`.
        self.is_stopped = False
        #: Its first line.
        self.ready = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Starts it and waits until it is ready; returns its first line."""
        self.spawn()
        return self.await_ready()

    def spawn(self) -> None:
        """Starts it."""
        if not BINARY.exists():
            raise FailedError(f"{BINARY} is missing; set SHARDFEED_BINARY, or run `make build`")
        if self.process is not None:
            raise FailedError(f"{self.name} runs already")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.inside, BINARY, *self.arguments],
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.env,
            )

    def await_ready(self) -> str:
        """Waits until it is ready; returns its first line."""
        process = self._running()
        assert process.stdout is not None
        self.ready = self._first_line(process.stdout)
        if not self.ready:
            end = self.log.read_text(errors="replace")[-2000:]
            raise FailedError(f"{self.name} ended with {process.wait()}: {end}")
        return self.ready

    def _first_line(self, stream: IO[bytes]) -> str:
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

    def kill(self) -> None:
        """Sends SIGKILL if it runs, stopped or not, and waits for its end."""
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits for the end; returns the exit status, 0 if it does not run."""
        process, self.process = self.process, None
        was_stopped, self.is_stopped = self.is_stopped, False
        if process is None:
            return 0
        process.send_signal(number)
        if was_stopped:
            process.send_signal(signal.SIGCONT)
        try:
            status = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        assert process.stdout is not None
        process.stdout.close()
        return status

    def signal(self, number: int) -> None:
        """Sends a signal."""
        self._running().send_signal(number)

    def stop(self) -> None:
        """Sends SIGSTOP and waits until none of its threads runs."""
        self.signal(signal.SIGSTOP)
        self.is_stopped = True
        tasks = Path(f"/proc/{self.pid}/task")

        def states() -> set[str]:
            stats = [(task / "stat").read_text() for task in tasks.iterdir()]
            return {stat.rsplit(")", 1)[1].split()[0] for stat in stats}

        until(lambda: states() == {"T"}, f"all threads of {self.name} are stopped")

    def resume(self) -> None:
        """Sends SIGCONT."""
        self.signal(signal.SIGCONT)
        self.is_stopped = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running().pid

    def option(self, name: str) -> str:
        """Returns the value of an option of its command."""
        return self.arguments[self.arguments.index(name) + 1]

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise FailedError(f"{self.name} does not run")
        return self.process


class Cluster:
    """A coordinator, and workers that represent hosts, in a folder of their own.

    - `folder`: made if missing; paths of unix sockets in it must have at most 107 bytes.
    - `config`: content of the coordinator's configuration file.
    - `memory`: each worker's `--memory-budget`.
    """

    server: ClassVar[type[Server]] = Server

    def __init__(
        self, folder: Path, workers: int = 1, config: str = "", memory: str = "1GiB"
    ) -> None:
        # The processes run in it.
        self.folder = folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        unset = ("SHARDFEED_", "RANK", "WORLD_SIZE")
        #: Variables of the processes; change them before the start.
        self.env = {name: v for name, v in os.environ.items() if not name.startswith(unset)}
        self.env |= {"SHARDFEED_LOG": "info", "SHARDFEED_CACHE_DIR": str(folder / "cache")}
        self.address, self.cluster_id = "", ""
        file = folder / "coordinator.toml"
        file.write_text(config)
        arguments = ["coordinator", "start", "--config", str(file)]
        arguments += ["--data", str(folder / "state")]
        arguments += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        self.coordinator = self._server("coordinator", arguments)
        self._count, self._memory = workers, memory
        self.workers: list[Server] = []

    def __enter__(self) -> Self:
        try:
            words = self.coordinator.start().split()
            self.address = words[words.index("grpc") + 1]
            self.cluster_id = words[words.index("cluster") + 1]
            # It restarts at the same address, where workers and trainers look for it.
            arguments = self.coordinator.arguments
            arguments[arguments.index("--listen") + 1] = self.address
            for number in range(self._count):
                self.workers.append(self.worker(number))
                self.workers[-1].start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close()
        if kind is None:
            for log in sorted(self.folder.glob("*.log")):
                text = log.read_text(errors="replace")
                if "panicked" in text:
                    raise FailedError(f"{log.name}: {text[-4000:]}")

    def close(self) -> None:
        """Kills the coordinator and the workers."""
        for server in (*self.workers, self.coordinator):
            server.kill()

    def worker(self, number: int, *more: str) -> Server:
        """Returns a worker with further options, which is not started."""
        arguments = ["worker", "start", "--coordinator", self.address, "--name", f"worker-{number}"]
        arguments += ["--socket", str(self.socket(number)), "--memory-budget", self._memory, *more]
        return self._server(f"worker-{number}", arguments)

    def _server(self, name: str, arguments: list[str]) -> Server:
        return self.server(name, arguments, self.folder / f"{name}.log", self.env)

    def socket(self, number: int = 0) -> Path:
        """Returns the path of a worker's socket."""
        return self.folder / f"run-{number}" / "worker.sock"

    def variables(self, run: str, number: int = 0) -> dict[str, str]:
        """Returns variables with which loaders use the cluster, on this worker's host."""
        return {
            "SHARDFEED_COORDINATOR": self.address,
            "SHARDFEED_WORKER": str(self.socket(number)),
            "SHARDFEED_RUN_ID": run,
        }

    def loader_options(self, number: int = 0) -> dict[str, Any]:
        """Returns options of a loader of a new job, on this worker's host."""
        job = f"job-{uuid.uuid4().hex[:8]}"
        worker = self.socket(number)
        return {"coordinator": self.address, "worker": worker, "job": job, "run": "first"}

    def command(self, *arguments: str) -> str:
        """Returns the output of `shardfeed ...` about this cluster."""
        done = subprocess.run(
            [BINARY, *arguments, "--coordinator", self.address],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_S,
            check=False,
        )
        if done.returncode:
            words = f"shardfeed {' '.join(arguments)}: exit {done.returncode}"
            raise FailedError(f"{words}: {done.stderr.strip()}")
        return done.stdout

    def ask(self, *arguments: str) -> Any:
        """Returns the JSON output of `shardfeed ...` about this cluster."""
        return json.loads(self.command(*arguments, "-o", "json"))


class Killer:
    """Kills a worker with SIGKILL at random times and restarts it, while in its context."""

    def __init__(self, worker: Server, seed: int) -> None:
        self._worker, self._random = worker, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None
        self.kills = 0

    def _run(self) -> None:
        try:
            self._kill_and_start()
        except BaseException as error:
            # The thread that uses the context gets it at the end.
            self._error = error

    def _kill_and_start(self) -> None:
        while not self._stop.wait(self._random.uniform(0.005, 0.25)):
            self._worker.kill()
            self.kills += 1
            self._stop.wait(self._random.choice([0.0, 0.02, 0.6]))
            self._worker.start()

    def is_alive(self) -> bool:
        """True until the context ends or the worker does not start."""
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error
