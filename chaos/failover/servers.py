"""Coordinators and workers on this host: processes that can be killed, stopped and replaced."""

from __future__ import annotations

import json
import math
import os
import selectors
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from cluster import BINARY, DEADLINE_S, Ending, FailedError

#: What the cluster says of a dead worker is soon true; the default suits longer epochs.
CONFIG = "session-ttl-ms = 1500\nheartbeat-ms = 250\n"
#: An answer that takes longer counts as none; the next look asks again.
LOOK_S = 5.0
#: Between two looks at the same thing.
LOOK_AGAIN_S = 0.05


class Bound:
    """No wait of the whole program ends later."""

    at = math.inf

    @classmethod
    def set(cls, seconds: float) -> None:
        cls.at = time.monotonic() + seconds


def until(missing: Callable[[], str], within_s: float = DEADLINE_S) -> None:
    """Waits until nothing is missing; `missing` says what is, "" if nothing."""
    begun = time.monotonic()
    while words := missing():
        now = time.monotonic()
        if now > min(begun + within_s, Bound.at):
            raise FailedError(f"after {now - begun:.0f} s {words}")
        time.sleep(LOOK_AGAIN_S)


class Server:
    """One process of the cluster. It says on its standard output when it is ready.

    - `inside`: what its command begins with, to run it elsewhere than here.
    """

    def __init__(self, name: str, folder: Path, inside: Sequence[str] = ()) -> None:
        self.name, self._folder, self._inside = name, folder, inside
        self.is_stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""

    @property
    def log(self) -> Path:
        return self._folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_answering(self) -> bool:
        """It runs, and was not stopped."""
        return self._process is not None and not self.is_stopped

    def spawn(self, arguments: list[str]) -> None:
        """Starts it, and does not wait for it."""
        assert self._process is None, f"{self.name} runs already"
        with self.log.open("ab") as errors, Ending.held():
            self._process = subprocess.Popen(
                [*self._inside, BINARY, *arguments],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._said = b""

    def ready(self) -> None:
        """Waits until it says that it is ready."""
        process, deadline = self._running(), time.monotonic() + DEADLINE_S
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._said:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise FailedError(f"{self.name} was not ready in {DEADLINE_S:.0f} s")
                more = os.read(process.stdout.fileno(), 4096)
                if not more:
                    words = self.log.read_text(errors="replace")[-500:]
                    raise FailedError(f"{self.name} ended with {process.wait()}: {words}")
                self._said += more

    def kill(self) -> None:
        """SIGKILL, if it runs, stopped or not; it has ended when this returns."""
        process, self._process = self._process, None
        self.is_stopped = False
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def stop(self) -> None:
        """SIGSTOP; none of its threads runs when this returns."""
        self.is_stopped = True
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{process.pid}/task")

        def still_running() -> str:
            stats = [(task / "stat").read_text() for task in tasks.iterdir()]
            states = {stat.rsplit(")", 1)[1].split()[0] for stat in stats}
            return "" if states == {"T"} else f"{self.name} has threads in states {states}"

        until(still_running)

    def go_on(self) -> None:
        """SIGCONT."""
        self._running().send_signal(signal.SIGCONT)
        self.is_stopped = False

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} does not run"
        return self._process


class Node(Server):
    """A coordinator, with its place in the cluster."""

    def __init__(
        self, number: int, address: str, folder: Path, inside: Sequence[str] = ()
    ) -> None:
        super().__init__(f"coordinator-{number}", folder, inside)
        self.number, self.address = number, address

    @property
    def data(self) -> Path:
        return self._folder / f"state-{self.number}"

    def wipe(self) -> None:
        """Its disk is gone."""
        shutil.rmtree(self.data)


class Hosts:
    """Where processes run: here, and coordinators listen on ports that nobody else has."""

    #: More options of all coordinators and workers.
    options: Sequence[str] = ()

    def coordinators(self, count: int) -> list[str]:
        """Their addresses."""
        return free_addresses(count)

    def inside(self, name: str) -> Sequence[str]:
        """What the command of this process begins with; `admin`: of those that ask and tell."""
        return ()


class Cluster:
    """Coordinators, and workers that stand for hosts: each has a socket of its own."""

    def __init__(
        self,
        folder: Path,
        coordinators: int,
        workers: int,
        config: str = CONFIG,
        hosts: Hosts | None = None,
    ) -> None:
        self._folder, self.is_replicated = folder, coordinators > 1
        self._hosts = hosts or Hosts()
        addresses = self._hosts.coordinators(coordinators)
        inside = self._hosts.inside
        #: The members, by their number.
        self.nodes = {
            n: Node(n, address, folder, inside(f"coordinator-{n}"))
            for n, address in enumerate(addresses, 1)
        }
        self._founders = dict(enumerate(addresses, 1))
        names = [f"worker-{number}" for number in range(workers)]
        self.workers = [Server(name, folder, inside(name)) for name in names]
        (folder / "coordinator.toml").write_text(config)
        #: Every server that ever ran, so that none outlives the cluster.
        self.servers: list[Server] = [*self.workers, *self.nodes.values()]

    def __enter__(self) -> Cluster:
        try:
            self.start_nodes()
            for worker in self.workers:
                self.start_worker(worker)
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
        for server in self.servers:
            server.kill()

    @property
    def address(self) -> str:
        """Where workers and trainers look for the coordinators, whether those are there or not."""
        return ",".join(node.address for node in self.nodes.values())

    def socket(self, worker: int) -> str:
        """Relative to the folder, as the path of a unix socket must be short."""
        return f"host-{worker}/worker.sock"

    def variables(self, worker: int) -> dict[str, str]:
        """What makes a trainer on the host of this worker use the cluster."""
        return {"SHARDFEED_COORDINATOR": self.address, "SHARDFEED_WORKER": self.socket(worker)}

    def start_nodes(self) -> None:
        """Starts those that do not run. A majority makes the first one ready, so all are started
        before any is waited for."""
        gone = [node for node in self.nodes.values() if not node.is_answering]
        for node in gone:
            self.spawn_node(node)
        for node in gone:
            node.ready()

    def spawn_node(self, node: Node) -> None:
        arguments = ["coordinator", "start", "--config", "coordinator.toml"]
        arguments += ["--data", node.data.name, "--listen", node.address, "--http", "127.0.0.1:0"]
        arguments += self._hosts.options
        if self.is_replicated:
            arguments += ["--node-id", str(node.number)]
            if node.number in self._founders:
                peers = (f"{number}={address}" for number, address in self._founders.items())
                arguments += ["--peers", ",".join(peers)]
            else:
                others = (each.address for each in self.nodes.values() if each is not node)
                arguments += ["--join", ",".join(others)]
        node.spawn(arguments)

    def start_worker(self, worker: Server) -> None:
        number = self.workers.index(worker)
        arguments = ["worker", "start", "--coordinator", self.address, "--name", worker.name]
        arguments += ["--socket", self.socket(number), "--memory-budget", "256MiB"]
        arguments += self._hosts.options
        worker.spawn(arguments)
        worker.ready()

    def replace(self, gone: Node) -> Node:
        """Takes a dead member out and a new one, with a number never used before, in."""
        self.command("cluster", "remove", str(gone.number), "--yes")
        del self.nodes[gone.number]
        number = 1 + max(gone.number, *self.nodes)
        # Not the dead one's address: workers that run must hear of it from the others.
        [address] = free_addresses(1)
        node = Node(number, address, self._folder)
        self.servers.append(node)
        self.nodes[number] = node
        self.spawn_node(node)

        def not_added() -> str:
            status = self.status()
            if status is not None and number in {each["node"] for each in status["members"]}:
                return ""  # by a command of which we saw no good end
            try:
                self.command("cluster", "add", str(number), node.address, asked=self._others(node))
            except FailedError as error:
                return str(error)
            return ""

        until(not_added)
        node.ready()
        return node

    def command(self, *arguments: str, asked: str | None = None) -> str:
        """What `shardfeed ...` prints. Stopped and dead coordinators are not among the `asked`."""
        words = f"shardfeed {' '.join(arguments)}"
        try:
            return subprocess.run(
                [*self._asking(), *arguments, "--coordinator", asked or self._others(None)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=True,
            ).stdout
        except subprocess.CalledProcessError as error:
            raise FailedError(f"{words}: exit {error.returncode}: {error.stderr.strip()}") from None
        except subprocess.TimeoutExpired:
            raise FailedError(f"{words}: no end in {DEADLINE_S:.0f} s") from None

    def look(self, *arguments: str, asked: str | None = None) -> Any:
        """The same for programs; None: there is no answer now."""
        asked = asked or self._others(None)
        try:
            done = subprocess.run(
                [*self._asking(), *arguments, "-o", "json", "--coordinator", asked],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LOOK_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        return json.loads(done.stdout) if done.returncode == 0 else None

    def status(self) -> Any:
        """What the coordinators say of themselves, the leader if there is one; None: no answer."""
        return self.look("cluster", "status") if self.is_replicated else self.look("status")

    def leader(self) -> Node | None:
        """Whom all that answer take for the leader; None: they do not agree, or one is silent."""
        status = self.status()
        if status is None:
            return None
        named = {status["leader"]}
        if self.is_replicated:
            own = {each["node"]: each["view"]["leader"] for each in status["members"]}
            up = (node.number for node in self.nodes.values() if node.is_answering)
            named |= {own.get(number) for number in up}
        return self.nodes.get(named.pop()) if len(named) == 1 else None

    def until_led(self, otherwise_than_by: Node | None = None) -> Node:
        """Waits until those that answer agree on a leader; returns it."""
        found: list[Node] = []

        def missing() -> str:
            leader = self.leader()
            if leader is None or leader is otherwise_than_by or not leader.is_answering:
                return "the coordinators have not agreed on a leader"
            found.append(leader)
            return ""

        until(missing)
        return found[-1]

    def _asking(self) -> Sequence[str | Path]:
        return (*self._hosts.inside("admin"), BINARY)

    def _others(self, than: Node | None) -> str:
        """Addresses of the coordinators that run, without one of them."""
        nodes = (node for node in self.nodes.values() if node.is_answering and node is not than)
        return ",".join(node.address for node in nodes)


def free_addresses(count: int) -> list[str]:
    """Addresses that nobody listens on, all different."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in held]
    finally:
        for each in held:
            each.close()
