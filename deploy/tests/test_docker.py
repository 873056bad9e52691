"""deploy/docker: builds the images, starts compose.yaml, kills a coordinator and a worker during a
training, and verifies the trainers' deliveries on the host."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import DEPLOY, HOME, ROOT, run, until
from containers import IMAGES, PROJECT

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples/digits")]
import pack  # noqa: E402
import recount  # noqa: E402

COORDINATORS = [f"coordinator-{number}" for number in (1, 2, 3)]
WORKERS, TRAINERS = ["worker-1", "worker-2"], ["trainer-1", "trainer-2"]
SHARDS, EPOCHS = 12, 30
#: Six containers start, three of them after the others are healthy.
UP_S = 180.0
COME_BACK_S = 60.0


class Compose:
    """The project, with a folder of the host in place of a shared file system."""

    def __init__(self, demo: Path) -> None:
        self.demo = demo
        self._containers: dict[str, str] = {}
        self._env = os.environ | {
            "SHARDFEED_IMAGE": IMAGES["shardfeed"],
            "SHARDFEED_TRAINER_IMAGE": IMAGES["trainer"],
            "SHARDFEED_DEMO": str(demo),
            "SHARDFEED_DEMO_EPOCHS": str(EPOCHS),
        }

    def __call__(self, *arguments: str, seconds: float = UP_S) -> str:
        file = str(DEPLOY / "docker/compose.yaml")
        command = ["docker-compose", "--project-name", PROJECT, "--profile", "demo", "--file", file]
        return run([*command, *arguments], seconds, env=self._env)

    def container(self, service: str) -> str:
        """Returns its id, which is kept across restarts."""
        if service not in self._containers:
            self._containers[service] = self("ps", "--all", "--quiet", service).strip()
        return self._containers[service]

    def inspect(self, service: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(run(["docker", "inspect", self.container(service)]))
        return found[0]

    def execute(self, service: str, *arguments: str) -> str:
        # Equivalent to `docker-compose exec`, which takes seconds.
        return run(["docker", "exec", self.container(service), *arguments])

    def state(self, service: str) -> dict[str, Any]:
        state: dict[str, Any] = self.inspect(service)["State"]
        return state

    def is_healthy(self, service: str) -> bool:
        state = self.state(service)
        return bool(state["Running"] and state["Health"]["Status"] == "healthy")

    def ask(self, *arguments: str, on: str = COORDINATORS[0]) -> Any:
        return json.loads(self.execute(on, "shardfeed", *arguments, "-o", "json"))

    def stranger(self, *script: str) -> subprocess.CompletedProcess[str]:
        """Runs a shell in another container of the network, with the workers' /tls, as a client of
        coordinator-1."""
        options = ["--network", f"{PROJECT}_shardfeed", "--volume", f"{PROJECT}_tls-worker:/tls:ro"]
        options += ["--env", f"SHARDFEED_COORDINATOR={COORDINATORS[0]}:7070", "--entrypoint", "/bin/sh"]
        command = ["docker", "run", "--rm", *options, IMAGES["shardfeed"], "-c", "\n".join(script)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def kill(self, service: str) -> None:
        """Simulates a crash; `docker kill` would count as a requested stop."""
        before = self.state(service)
        os.kill(before["Pid"], signal.SIGKILL)

        def is_back() -> bool:
            now = self.state(service)
            return now["StartedAt"] != before["StartedAt"] and self.is_healthy(service)

        until(is_back, f"{service} is back", COME_BACK_S)

    def log(self, service: str) -> str:
        return self("logs", "--no-color", service)


@pytest.fixture(scope="module")
def compose(images: None) -> Iterator[Compose]:
    demo = HOME / "demo"
    shutil.rmtree(demo, ignore_errors=True)
    made = Compose(demo)
    made("down", "--volumes", "--remove-orphans")
    pack.pack(demo / "data", demo / "test.tfrecord", SHARDS)
    run(["chmod", "-R", "a+rwX", demo])
    try:
        made("up", "--detach", *COORDINATORS, *WORKERS)
        for service in (*COORDINATORS, *WORKERS):
            until(lambda service=service: made.is_healthy(service), f"{service} is healthy", UP_S)  # type: ignore[misc]
        yield made
    finally:
        made("down", "--volumes", "--remove-orphans")


def test_nobody_in_a_container_is_root_or_may_write_its_image(compose: Compose) -> None:
    for service in (*COORDINATORS, *WORKERS):
        found = compose.inspect(service)
        assert found["Config"]["User"] == "shardfeed"
        assert found["HostConfig"]["ReadonlyRootfs"]
        assert compose.execute(service, "id", "--user").strip() == "10001"
        caps = Path(f"/proc/{found['State']['Pid']}/status").read_text()
        assert "CapBnd:\t0000000000000000\n" in caps and "NoNewPrivs:\t1\n" in caps
        assert found["NetworkSettings"]["Ports"] in ({}, None)


def test_who_does_not_prove_who_they_are_is_refused(compose: Compose) -> None:
    assert compose.ask("access", "whoami")["role"] == "admin"
    only_ca = "mkdir /tmp/tls && cp /tls/ca.crt /tmp/tls"
    others = "shardfeed tls init /tmp/other --coordinator coordinator-1 && cp /tls/ca.crt /tmp/other/admin/"
    for script in (
        [only_ca, "exec shardfeed cluster status --tls /tmp/tls"],
        [others, "exec shardfeed cluster status --tls /tmp/other/admin"],
        # A worker has only its own rights.
        ["exec shardfeed worker cordon worker-1 --tls /tls"],
    ):
        refused = compose.stranger(*script)
        assert refused.returncode == 4, f"{script}: {refused}"
    assert compose.stranger("exec shardfeed cluster status").returncode != 0
    assert compose.stranger("exec shardfeed cluster status --tls /tls").returncode == 0

    def written() -> bool:
        refused = compose.ask("audit", "--refused")["entries"]
        return ("ListWorkers", "worker:worker") in {(each["method"], each["principal"]) for each in refused}

    until(written, "the audit has the refused call", 10)


def test_certificates_are_renewed_while_all_runs(compose: Compose) -> None:
    """As by `up pki` shortly before they expire."""

    def serial(role: str) -> str:
        return str(compose.ask("tls", "show", f"/tls/{role}")["certificate"]["serial"])

    before, session = serial("coordinator-1"), compose.ask("worker", "list")["workers"][0]["session"]
    volumes = ["--volume", f"{PROJECT}_pki:/var/lib/shardfeed", "--entrypoint", "shardfeed"]
    run(["docker", "run", "--rm", *volumes, IMAGES["shardfeed"], "tls", "rotate", "/var/lib/shardfeed/pki"])
    compose("up", "--no-deps", "pki")
    assert serial("coordinator-1") != before
    # Files are checked when a connection is opened or accepted.
    since = compose.state(WORKERS[0])["StartedAt"]
    killed = COORDINATORS[compose.ask("cluster", "status")["leader"] - 1]
    compose.kill(killed)
    for service in {WORKERS[0], *COORDINATORS} - {killed}:
        until(lambda service=service: "certificates were read again" in compose.log(service), f"{service} has read them", 60)  # type: ignore[misc]
    assert compose.ask("worker", "list")["workers"][0]["session"] == session
    assert compose.state(WORKERS[0])["StartedAt"] == since


def test_a_training_survives_a_coordinator_and_a_worker_and_every_record_is_there_once(compose: Compose) -> None:
    compose("up", "--detach", *TRAINERS)

    def epoch() -> int:
        for service in TRAINERS:
            state = compose.state(service)
            assert state["Running"] or state["ExitCode"] == 0, compose.log(service)[-3000:]
        if not compose.ask("job", "list")["jobs"]:
            return -1
        epochs = compose.ask("epoch", "list", "--job", "digits", "--all")["epochs"]
        return max((each["epoch"] for each in epochs), default=-1)

    def served() -> dict[int, tuple[str, str]]:
        ranks = compose.ask("rank", "list", "--job", "digits")["ranks"]
        return {each["rank"]: (each["state"], each["worker"]) for each in ranks}

    is_served = {0: ("served", "worker-1"), 1: ("served", "worker-2")}
    until(lambda: epoch() >= 1, "the training is in epoch 1", 60)
    until(lambda: served() == is_served, "each rank is served by its worker", 30)

    leader = compose.ask("cluster", "status")["leader"]
    compose.kill(COORDINATORS[leader - 1])
    assert compose.ask("cluster", "status", on=COORDINATORS[leader % 3])["leader"] in (1, 2, 3)
    compose.kill("worker-1")
    before = epoch()
    assert before < EPOCHS - 2, "the training was over too soon"
    until(lambda: epoch() > before + 1, "the training continues", 60)
    until(lambda: served() == is_served, "the killed worker serves again", 60)

    for service in TRAINERS:
        until(lambda service=service: not compose.state(service)["Running"], f"{service} ends", 180)  # type: ignore[misc]
        assert compose.state(service)["ExitCode"] == 0, compose.log(service)[-3000:]
    total = recount.recount(compose.demo / "ledger", compose.demo / "data")
    assert (total.lost, total.duplicated, total.unknown, total.problems) == (0, 0, 0, [])
    assert total.epochs == EPOCHS and total.generations[0].world_size == 2


def test_a_leader_that_is_stopped_hands_over_and_ends_well(compose: Compose) -> None:
    leader = compose.ask("cluster", "status")["leader"]
    compose("stop", COORDINATORS[leader - 1])
    assert compose.state(COORDINATORS[leader - 1])["ExitCode"] == 0
    other = COORDINATORS[leader % 3]
    assert compose.ask("cluster", "status", on=other)["leader"] not in (None, leader)
    compose("start", COORDINATORS[leader - 1])
    until(lambda: compose.is_healthy(COORDINATORS[leader - 1]), "it is healthy again", UP_S)


def test_a_worker_that_is_stopped_leaves_the_cluster(compose: Compose) -> None:
    compose("stop", "worker-2")
    assert compose.state("worker-2")["ExitCode"] == 0
    workers = {(each["name"], each["state"]) for each in compose.ask("worker", "list", "--all")["workers"]}
    assert ("worker-2", "left") in workers and ("worker-2", "live") not in workers
    assert ("worker-1", "live") in workers
