"""deploy/slurm on a Slurm of three nodes, with a job on two of them; a node dies, and nothing is
lost."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import BINARY, DEPLOY, ROOT, plain_environment, until
from slurm_lab import SlurmLab

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples/digits"), str(ROOT / "python/tests/frameworks")]
import pack  # noqa: E402
import recount  # noqa: E402

SHARDS, EPOCHS, STEP_SECONDS = 12, 10, 0.06
#: SlurmdTimeout, and a queue that is checked every 30 s.
REQUEUE_S = 180.0
JOB_S = 240.0


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    for name in [name for name in os.environ if name.startswith(("SHARDFEED_", "SLURM_"))]:
        if name not in ("SHARDFEED_BINARY", "SHARDFEED_TORCH_PYTHON"):
            del os.environ[name]
    with SlurmLab() as running:
        yield running


class Job:
    """A batch job with its own folder on the shared file system."""

    def __init__(self, lab: SlurmLab, name: str, script: str, **variables: str) -> None:
        self.lab, self.folder = lab, lab.home / "jobs" / name
        self.data, self.ledger = self.folder / "data", self.folder / "ledger"
        self.records = pack.pack(self.data, self.folder / "test.tfrecord", SHARDS)
        training = ROOT / "examples/digits/train.py"
        options = f"--data data --checkpoint last.npz --socket ranks.sock --epochs {EPOCHS} --step-seconds {STEP_SECONDS}"
        settings = {
            "SHARDFEED_DEPLOY": str(DEPLOY / "slurm"),
            "SHARDFEED_BINARY": str(BINARY),
            "SHARDFEED_STATE": str(self.folder / "state"),
            "SHARDFEED_LEDGER": str(self.ledger),
            "SHARDFEED_CACHE_DIR": str(self.folder / "cache"),
            "SHARDFEED_WORKER_OPTIONS": "--memory-budget 256MiB",
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT / "python/python"),
            "TRAINING": f"{training} {options}",
        } | variables
        submit = ["sbatch", "--parsable", "--nodes=2", f"--chdir={self.folder}"]
        self.number = lab.run(*submit, DEPLOY / "slurm" / script, **settings).strip()

    @property
    def now(self) -> dict[str, str]:
        return self.lab.job(self.number)

    def until(self, state: str, seconds: float = JOB_S) -> None:
        def is_so() -> bool:
            now = self.now["JobState"]
            assert now in (state, "PENDING", "RUNNING", "COMPLETING", "CONFIGURING"), f"{now}: {self.said()}"
            return now == state

        until(is_so, f"job {self.number} is {state}", seconds)

    def said(self) -> str:
        files = [*self.folder.glob("*.out"), *(self.folder / "state").glob("log-*/*")]
        return "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in files)

    @property
    def hosts(self) -> list[str]:
        """The job's hosts; the first one has the coordinator, and the batch script."""
        return self.lab.run("scontrol", "show", "hostnames", self.now["NodeList"]).split()

    def ready(self, restart: int = 0) -> list[str]:
        """Returns the words of the coordinator's ready line; none before."""
        said = self.folder / f"state/log-{restart}/coordinator.out"
        return said.read_text().split() if said.exists() else []

    def cluster_id(self, restart: int = 0) -> str:
        words = self.ready(restart)
        return words[words.index("cluster") + 1]

    def ask(self, *arguments: str, restart: int = 0) -> Any:
        words = self.ready(restart)
        address = words[words.index("grpc") + 1]
        admin = str(self.folder / "state/pki/admin")
        command = [str(BINARY), *arguments, "--coordinator", address, "--tls", admin, "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=plain_environment())
        assert done.returncode == 0, f"{done.stderr}{self.said()}"
        return json.loads(done.stdout)

    def epoch(self, restart: int = 0) -> int:
        """Returns the highest epoch known to the coordinator; -1: none."""
        self.must_run()
        if not self.ready(restart):
            return -1
        jobs = self.ask("job", "list", restart=restart)["jobs"]
        if not jobs:
            return -1
        epochs = self.ask("epoch", "list", "--job", "digits", "--all", restart=restart)["epochs"]
        return max((each["epoch"] for each in epochs), default=-1)

    def written(self, restart: int = 0) -> int:
        """Returns the highest epoch in the coordinator's log, which gets cursors about once per
        second; -1: none."""
        if self.epoch(restart) < 0:
            return -1
        history = self.ask("job", "show", "digits", restart=restart)["history"]
        return max((each["cursor_epoch"] for each in history), default=-1)

    def must_run(self) -> None:
        assert self.now["JobState"] in ("PENDING", "RUNNING", "CONFIGURING"), f"{self.now}: {self.said()}"

    def served(self) -> dict[int, tuple[str, str]]:
        ranks = self.ask("rank", "list", "--job", "digits")["ranks"]
        return {each["rank"]: (each["state"], each["worker"]) for each in ranks}

    def count(self) -> None:
        total = recount.recount(self.ledger, self.data)
        assert (total.lost, total.duplicated, total.unknown, total.problems) == (0, 0, 0, []), self.said()
        assert (total.epochs, total.records) == (EPOCHS, self.records)


def left_behind(lab: SlurmLab, node: str) -> list[str]:
    """Returns the processes on a node besides Slurm's."""
    found = lab.inside(node, "ip", "netns", "pids", node).stdout.split()
    lines = [Path(f"/proc/{pid}/cmdline") for pid in found]
    words = [line.read_bytes().decode().replace("\0", " ") for line in lines if line.exists()]
    return [word for word in words if word and not word.startswith(("slurm", "ip "))]


def test_ranks_workers_and_coordinator_are_steps_of_one_allocation(lab: SlurmLab) -> None:
    job = Job(lab, "overlap", "overlap.sbatch")
    until(lambda: job.epoch() >= 1, "the training is in epoch 1", 120)
    hosts = job.hosts
    is_served = {rank: ("served", host) for rank, host in enumerate(hosts)}
    until(lambda: job.served() == is_served, "each rank is served by its node's worker", 30)
    address = job.ready()[job.ready().index("grpc") + 1]
    assert address.startswith(f"{lab.nodes[hosts[0]]}:")
    pki = job.folder / "state/pki"
    assert f"--coordinator @{job.folder}/state/cluster.json --tls {pki}/admin" in job.said()
    assert stat.S_IMODE(pki.stat().st_mode) == 0o700
    assert not (pki / "ca.key").exists()
    for options, exit_code in ((), 6), (("--tls", pki / "trainer"), 4):
        refused = subprocess.run([BINARY, "job", "list", "--coordinator", address, *options], capture_output=True, env=plain_environment())
        assert refused.returncode == exit_code, refused
    job.until("COMPLETED")
    job.count()
    for host in hosts:
        until(lambda host=host: not left_behind(lab, host), f"nothing is left on {host}", 30)  # type: ignore[misc]
    workers = "".join(file.read_text() for file in (job.folder / "state/log-0").glob("worker-*.log"))
    assert workers.count("worker stopped") == 2
    assert "coordinator stopped" in (job.folder / "state/log-0/coordinator.log").read_text()


@pytest.mark.parametrize("victim", ["a rank's node", "the coordinator's node"])
def test_after_a_node_died_the_job_goes_on_where_it_was(lab: SlurmLab, victim: str) -> None:
    job = Job(lab, victim.replace(" ", "-").replace("'", ""), "overlap.sbatch")
    until(lambda: job.written() >= 2, "the training is known to be in epoch 2", 120)
    before, cluster_id = job.written(), job.cluster_id()
    node = job.hosts[0 if victim.startswith("the coordinator") else 1]
    lab.kill_node(node)
    try:

        def requeued() -> bool:
            now = job.now
            assert now["JobState"] not in ("FAILED", "COMPLETED", "NODE_FAIL"), f"{now}: {job.said()}"
            return now["Restarts"] == "1" and now["JobState"] == "PENDING"

        until(requeued, "the job is queued again", REQUEUE_S)
        # Slurm would wait for two minutes.
        lab.run("scontrol", "update", f"JobId={job.number}", "StartTime=now")
        until(lambda: job.ready(restart=1), "the coordinator is back", REQUEUE_S)
        assert node not in job.hosts
        assert job.cluster_id(restart=1) == cluster_id
        # The certificate of a node that joined now was created then.
        assert (job.folder / f"state/pki/{lab.nodes[job.hosts[0]]}/tls.crt").exists()
        # From its disk: no rank of the second start has reported a later epoch.
        assert job.written(restart=1) >= before
        job.until("COMPLETED")
        job.count()
    finally:
        lab.start_node(node)
    until(lambda: lab.idle() == set(lab.nodes), "the node is back", 60)


def test_torchrun_starts_the_ranks(lab: SlurmLab) -> None:
    epochs, ranks_per_node = 8, 2
    job = Job(
        lab, "torchrun", "torchrun.sbatch", PYTHON=torch_python(), RANKS_PER_NODE=str(ranks_per_node),
        TRAINING=f"{ROOT}/examples/trainers/torch_ddp.py --data data --test test.tfrecord --checkpoint saved "
                 f"--epochs {epochs} --seen seen",
        GLOO_SOCKET_IFNAME="eth0",
    )  # fmt: skip
    until(lambda: job.epoch() >= 1, "the training is in epoch 1", 240)
    hosts = sorted(job.hosts * ranks_per_node)

    def is_served() -> bool:
        job.must_run()
        # torchrun chooses the ranks of each node.
        served = job.served()
        return sorted(worker for state, worker in served.values() if state == "served") == hosts

    until(is_served, "each rank is served by its node's worker", 60)
    job.until("COMPLETED", 400)
    seen: Counter[int] = Counter()
    for rank in range(2 * ranks_per_node):
        for line in (job.folder / f"seen/rank-{rank}").read_text().splitlines():
            seen.update(int(word) for word in line.split()[1:])
    assert len(seen) == job.records and set(seen.values()) == {epochs}
    assert "accuracy" in job.said()


def torch_python() -> str:
    """Returns a Python with torch; `make test-frameworks` creates one, too."""
    given = os.environ.get("SHARDFEED_TORCH_PYTHON")
    if given:
        return given
    import run as frameworks

    home = ROOT / "target/frameworks"
    home.mkdir(parents=True, exist_ok=True)
    return str(frameworks.environment(home, "torch"))


def test_the_scripts_say_what_is_missing() -> None:
    script = DEPLOY / "slurm/with-shardfeed.sh"
    env = {name: value for name, value in plain_environment().items() if not name.startswith("SLURM_")}
    for variables, words in (
        ({}, "this is no batch job"),
        ({"SLURM_JOB_ID": "1"}, "a folder that all nodes share"),
        ({"SLURM_JOB_ID": "1", "SHARDFEED_STATE": "x", "PATH": "/nowhere"}, "shardfeed is not in PATH"),
    ):
        done = subprocess.run([script, "true"], capture_output=True, text=True, env=env | variables)
        assert done.returncode != 0 and words in done.stderr
