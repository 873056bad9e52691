"""Coordinators and workers on this host: processes that can be killed, stopped and replaced."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cluster
from cluster import CONFIG

from shardfeed.testing import BINARY, DEADLINE_S, FailedError

#: Time limit for an answer; after it the request counts as unanswered and is repeated.
LOOK_S = 5.0
#: Polling interval.
LOOK_AGAIN_S = 0.05


class Bound:
    """Time limit of all waits of the program."""

    at = math.inf

    @classmethod
    def set(cls, seconds: float) -> None:
        cls.at = time.monotonic() + seconds


def until(
    missing: Callable[[], str], within_s: float = DEADLINE_S, every_s: float = LOOK_AGAIN_S
) -> None:
    """Waits until `missing` returns "" instead of a description of the missing condition."""
    begun = time.monotonic()
    while words := missing():
        now = time.monotonic()
        if now > min(begun + within_s, Bound.at):
            raise FailedError(f"after {now - begun:.0f} s {words}")
        time.sleep(every_s)


class Server(cluster.Server):
    """A process of the cluster, whose arguments are known when it starts.

    - `inside`: prefix of its command, to run it in a network namespace.
    """

    def __init__(self, name: str, folder: Path, inside: Sequence[str] = ()) -> None:
        super().__init__(name, [], folder / f"{name}.log", inside=inside)

    @property
    def is_answering(self) -> bool:
        """True if it runs and is not stopped."""
        return self.process is not None and not self.is_stopped


class Node(Server):
    """A coordinator and its node number, address and data folder."""

    def __init__(
        self, number: int, address: str, folder: Path, inside: Sequence[str] = ()
    ) -> None:
        super().__init__(f"coordinator-{number}", folder, inside)
        self.number, self.address = number, address

    @property
    def data(self) -> Path:
        return self.log.parent / f"state-{self.number}"

    def wipe(self) -> None:
        """Deletes its data, as if the disk were lost."""
        shutil.rmtree(self.data)


class Hosts:
    """Location of the processes: this host; coordinators listen on ports that are free."""

    #: Additional options of all coordinators and workers.
    options: Sequence[str] = ()

    def coordinators(self, count: int) -> list[str]:
        """Returns the addresses of the coordinators."""
        return free_addresses(count)

    def inside(self, name: str) -> Sequence[str]:
        """Returns the command prefix of a process; `admin` is that of administrative commands."""
        return ()


class Cluster:
    """Coordinators, and workers that represent hosts: each has its own socket and cache."""

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
        #: Members by node number.
        self.nodes = {
            n: Node(n, address, folder, inside(f"coordinator-{n}"))
            for n, address in enumerate(addresses, 1)
        }
        self._founders = dict(enumerate(addresses, 1))
        names = [f"worker-{number}" for number in range(workers)]
        self.workers = [Server(name, folder, inside(name)) for name in names]
        (folder / "coordinator.toml").write_text(config)
        #: Every server that was ever started, so that none outlives the cluster.
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for server in self.servers:
            server.kill()

    @property
    def address(self) -> str:
        """Addresses of the coordinators for workers and trainers, whether these run or not."""
        return ",".join(node.address for node in self.nodes.values())

    def socket(self, worker: int) -> str:
        """Path of a worker's socket, relative because the path of a unix socket must be short."""
        return f"host-{worker}/worker.sock"

    def cache(self, worker: Server) -> Path:
        """Folder of the cache of a worker's host."""
        return self._folder / f"host-{self.workers.index(worker)}" / "cache"

    def variables(self, worker: int) -> dict[str, str]:
        """Returns the variables that make a trainer on the host of this worker use the cluster."""
        of_host = {"SHARDFEED_CACHE_DIR": str(self.cache(self.workers[worker]))}
        return of_host | {"SHARDFEED_COORDINATOR": self.address, "SHARDFEED_WORKER": self.socket(worker)}

    def start_nodes(self) -> None:
        """Starts the coordinators that do not run.

        The first one is ready only with a majority, so all are started before any is waited for."""
        gone = [node for node in self.nodes.values() if not node.is_answering]
        for node in gone:
            self.spawn_node(node)
        for node in gone:
            node.await_ready()

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
        node.arguments = arguments
        node.spawn()

    def start_worker(self, worker: Server) -> None:
        number = self.workers.index(worker)
        arguments = ["worker", "start", "--coordinator", self.address, "--name", worker.name]
        arguments += ["--socket", self.socket(number), "--memory-budget", "256MiB"]
        arguments += self._hosts.options
        worker.env = os.environ | {"SHARDFEED_CACHE_DIR": str(self.cache(worker))}
        worker.arguments = arguments
        worker.start()

    def replace(self, gone: Node) -> Node:
        """Removes a dead member and adds a new one with a number never used before."""
        self.command("cluster", "remove", str(gone.number), "--yes")
        del self.nodes[gone.number]
        number = 1 + max(gone.number, *self.nodes)
        # A new address: running workers must learn it from the other coordinators.
        [address] = free_addresses(1)
        node = Node(number, address, self._folder)
        self.servers.append(node)
        self.nodes[number] = node
        self.spawn_node(node)

        def not_added() -> str:
            status = self.status()
            if status is not None and number in {each["node"] for each in status["members"]}:
                return ""  # added by an attempt that seemed to fail
            try:
                self.command("cluster", "add", str(number), node.address, asked=self._others(node))
            except FailedError as error:
                return str(error)
            return ""

        until(not_added)
        node.await_ready()
        return node

    def command(self, *arguments: str, asked: str | None = None) -> str:
        """Returns the output of `shardfeed ...`. `asked`: addresses of running coordinators."""
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
        """Returns the JSON output of a command; None if there is no answer now."""
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
        """Returns the coordinators' status, from the leader if there is one; None: no answer."""
        return self.look("cluster", "status") if self.is_replicated else self.look("status")

    def leader(self) -> Node | None:
        """Returns the leader on which all answers agree; None if they differ or one is missing."""
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
        """Waits until the coordinators that answer agree on a leader; returns it."""
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
        """Returns the addresses of the running coordinators except `than`."""
        nodes = (node for node in self.nodes.values() if node.is_answering and node is not than)
        return ",".join(node.address for node in nodes)


def free_addresses(count: int) -> list[str]:
    """Returns different addresses that are not in use."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in held]
    finally:
        for each in held:
            each.close()
