"""Dynamic jobs over a network with delay and packet loss: real TCP between namespaces
(lossy.py)."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import lossy
import pytest
from conftest import make_dataset
from trainer import Trainer

from shardfeed.testing import Server, until

pytestmark = [
    pytest.mark.embedded_only,
    pytest.mark.skipif(not lossy.is_available(), reason="needs root and /dev/net/tun"),
]

COUNTS = [150, 90, 210, 0, 170, 130, 200, 60]
RANKS = 2
#: Where a coordinator or worker serves its metrics, on its own host.
HTTP = "127.0.0.1:9464"


class Lab:
    """Coordinators and two workers, each on its own host, and a rank beside each worker."""

    def __init__(self, folder: Path, coordinators: int, config: Sequence[str]) -> None:
        self.folder, self._coordinators = folder, coordinators
        self.dataset = make_dataset(folder / "data", COUNTS)
        self.network = lossy.Network(coordinators + RANKS, seed=coordinators)
        self.address = ",".join(f"{host}:7070" for host in self.network.addresses[:coordinators])
        self.config = folder / "coordinator.toml"
        self.config.write_text("\n".join(config))

    def server(self, name: str, host: int, *arguments: str) -> Server:
        kind = "coordinator" if host < self._coordinators else "worker"
        command = [kind, "start", *arguments, "--insecure"]
        env = {"SHARDFEED_LOG": "info", "SHARDFEED_CACHE_DIR": str(self.folder / "cache")}
        inside = self.network.inside(host)
        return Server(name, command, self.folder / f"{name}.log", env, inside)

    def coordinator(self, number: int) -> Server:
        listen = f"{self.network.addresses[number]}:7070"
        state = str(self.folder / f"state-{number}")
        more = ["--data", state, "--listen", listen, "--http", HTTP, "--config", str(self.config)]
        if self._coordinators > 1:
            members = self.address.split(",")
            peers = ",".join(f"{1 + node}={address}" for node, address in enumerate(members))
            more += ["--node-id", str(1 + number), "--peers", peers]
        return self.server(f"coordinator-{number}", number, *more)

    def worker(self, number: int) -> Server:
        more = ["--coordinator", self.address, "--name", f"worker-{number}", "--memory-budget", "256MiB"]
        # Each worker has a network of its own.
        more += ["--http", HTTP]
        host = self._coordinators + number
        return self.server(f"worker-{number}", host, *more, "--socket", self.socket(number))

    def metric(self, host: int, name: str) -> list[float]:
        """Returns the values of a metric of a host: one for each set of labels that matches."""
        read = f"import urllib.request as http; print(http.urlopen('http://{HTTP}/metrics').read().decode())"
        command = [*self.network.inside(host), sys.executable, "-c", read]
        metrics = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        return [float(found[1]) for found in re.finditer(rf"^{name} (\S+)$", metrics, re.MULTILINE)]

    def answers_take(self, rank: int, delay_s: float) -> bool:
        """True if the last heartbeat of a rank's worker was answered at this delay of each way."""
        found = self.metric(self._coordinators + rank, "shardfeed_worker_heartbeat_seconds")
        return any(each >= 1.9 * delay_s for each in found)

    def impair(self, loss: float, delay_s: float) -> None:
        """Impairs the network, and waits until heartbeats are answered at this delay: TCP takes
        packets for lost if a delay rises at once, and then sends one at a time."""
        self.network.impair(loss, delay_s)
        for rank in range(RANKS):
            until(lambda: self.answers_take(rank, delay_s), f"answers take {2 * delay_s} s")  # noqa: B023

    def heartbeats(self) -> float:
        """Returns the number of heartbeats that the first coordinator has answered."""
        return sum(self.metric(0, r'shardfeed_coordinator_requests_total\{rpc="Heartbeat",outcome="Done"\}'))

    def socket(self, number: int) -> str:
        return str(self.folder / f"run-{number}" / "worker.sock")

    def trainer(self, rank: int) -> Trainer:
        env = {"SHARDFEED_INSECURE": "true", "SHARDFEED_CACHE_DIR": str(self.folder / "cache")}
        trainer = Trainer(
            self.folder / f"trainer-{rank}.log",
            env,
            self.network.inside(self._coordinators + rank),
            files=self.dataset.pattern, batch_size=4, seed=7, shuffle_window=16, mode="dynamic", tail="uneven",
            coordinator=self.address, worker=self.socket(rank), job="lossy", run="one", rank=rank, world_size=RANKS,
        )  # fmt: skip
        trainer.wait_s = 180.0
        return trainer

    @contextmanager
    def started(self) -> Iterator[None]:
        """Starts the coordinators, over a good network; they are ready when they are connected."""
        with self.network, ExitStack() as stack, ThreadPoolExecutor() as pool:
            servers = [self.coordinator(number) for number in range(self._coordinators)]
            for server in servers:
                stack.callback(server.kill)
            list(pool.map(Server.start, servers))
            yield

    @contextmanager
    def ranks(self) -> Iterator[list[Trainer]]:
        """Starts everything, over a good network."""
        with self.started(), ExitStack() as stack:
            trainers = []
            for rank in range(RANKS):
                worker = self.worker(rank)
                stack.callback(worker.kill)
                worker.start()
                trainers.append(stack.enter_context(self.trainer(rank)))
            for trainer in trainers:
                trainer.begin("open")
            for trainer in trainers:
                trainer.answer()
            yield trainers


def rest(trainer: Trainer) -> list[int]:
    """Returns the ids of the epoch's remaining batches."""
    found: list[int] = []
    while (batch := trainer("next")) is not None:
        found += batch
    return found


def delivered(lab: Lab, loss: float, delay_s: float) -> Counter[int]:
    """Returns the samples of an epoch that both ranks receive through an impaired network."""
    with lab.ranks() as trainers, ThreadPoolExecutor() as pool:
        found = Counter(number for trainer in trainers for number in trainer("next"))
        lab.network.impair(loss, delay_s)
        for ids in pool.map(rest, trainers):
            found.update(ids)
    return found


@pytest.mark.parametrize(
    ("coordinators", "config"),
    [
        (1, []),
        # As recommended in docs/GUARANTEES.md for coordinators at this distance.
        (3, ["peer-heartbeat-ms = 1200", "election-min-ms = 3600", "election-max-ms = 7200"]),
    ],
)
def test_an_epoch_ends_with_every_record_once_at_10_percent_loss_and_200_ms(
    tmp_path: Path, coordinators: int, config: list[str]
) -> None:
    lab = Lab(tmp_path, coordinators, config)
    found = delivered(lab, loss=0.1, delay_s=0.2)
    assert found == Counter(lab.dataset.ids)


def test_heartbeats_do_not_wait_for_answers_that_take_longer_than_the_pause_between_them(tmp_path: Path) -> None:
    """If each waited for the answer to the one before, leases would end in between."""
    delay_s = 0.6
    lab = Lab(tmp_path, 1, ["session-ttl-ms = 7000", "heartbeat-ms = 600"])
    with lab.ranks() as trainers, ThreadPoolExecutor() as pool:
        for before_s in (0.05, 0.1, 0.2, 0.4, delay_s):
            lab.impair(0.0, before_s)
        start, before = time.monotonic(), lab.heartbeats()

        def has_overlaps() -> bool:
            """True if more were answered than if each worker waited for two delays after each."""
            more = lab.heartbeats() - before
            return more > RANKS * (1 + (time.monotonic() - start) / (2 * delay_s))

        until(has_overlaps, "heartbeats are sent while earlier ones are unanswered")
        found = Counter(number for ids in pool.map(rest, trainers) for number in ids)
    assert found == Counter(lab.dataset.ids)


def test_coordinators_that_are_too_far_apart_for_their_timers_say_what_to_set(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 3, [])
    with lab.started():
        lab.network.impair(0.0, 0.2)
        said = "too far apart for their timers; on all of them set peer-heartbeat-ms to at least"
        logs = list(tmp_path.glob("coordinator-*.log"))
        until(lambda: any(said in log.read_text() for log in logs), said)
