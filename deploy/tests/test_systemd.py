"""The units of deploy/systemd under a real systemd: three coordinators and a worker on one
machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import roots
from command import BINARY, DEPLOY, ROOT, run, shardfeed, until
from machine import Machine

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples/digits")]

UNITS = ["shardfeed-coordinator@.service", "shardfeed-worker.service"]
COORDINATORS = {n: f"shardfeed-coordinator@{n}.service" for n in (1, 2, 3)}
WORKER = "shardfeed-worker.service"
PORTS = {1: 7070, 2: 7170, 3: 7270}
ADDRESSES = ",".join(f"127.0.0.1:{port}" for port in PORTS.values())
SOCKET = "/run/shardfeed/worker.sock"
#: Two processes of one host, with one folder each.
TLS = {"coordinator": "/etc/shardfeed/tls", "worker": "/etc/shardfeed/tls-worker"}
AS_ADMIN = ("--coordinator", ADDRESSES, "--tls", "/root/pki/admin")
#: As in the units: seconds until systemd considers a silent process dead, and a margin.
WATCHDOG_S = {"coordinator": 30.0 + 15.0, "worker": 60.0 + 15.0}
#: Result of `systemd-analyze security`: 0 to 10, where 10 is a root process.
EXPOSURE_MOST = {COORDINATORS[1]: 1.1, WORKER: 1.4}
SHARDS, EPOCHS, STEP_SECONDS = 12, 6, 0.05


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    shown = {ROOT / "examples": "/srv/examples", DEPLOY: "/srv/tree/deploy", BINARY: "/srv/tree/shardfeed"}
    made = Machine("units", binds=tuple(f"--bind-ro={source}:{place}" for source, place in shown.items()))
    run([DEPLOY / "systemd/install.sh", made.root], env={**os.environ, "SHARDFEED_BINARY": str(BINARY)})
    etc = made.root / "etc"
    peers = ", ".join(f'"{node}=127.0.0.1:{port}"' for node, port in PORTS.items())
    with (etc / "shardfeed/coordinator.toml").open("a") as options:
        options.write(f'peers = [{peers}]\ntls = "{TLS["coordinator"]}"\n')
    worker = etc / "shardfeed/worker.toml"
    worker.write_text(worker.read_text().replace('"127.0.0.1:7070"', f'"{ADDRESSES}"') + f'tls = "{TLS["worker"]}"\n')
    pki = made.root / "root/pki"
    shardfeed("tls", "init", pki, "--coordinator", "127.0.0.1")
    shardfeed("tls", "issue", pki, "trainer", "trainer")
    for node, port in PORTS.items():
        # Not needed with three hosts.
        drop_in = etc / f"systemd/system/{COORDINATORS[node]}.d/ports.conf"
        drop_in.parent.mkdir(parents=True)
        variables = f"LISTEN=127.0.0.1:{port} SHARDFEED_COORDINATOR__HTTP=127.0.0.1:{port + 1}"
        drop_in.write_text(f"[Service]\nEnvironment=SHARDFEED_COORDINATOR__{variables}\n")
    (made.root / "srv/data").mkdir()
    (made.root / "srv/data/readable").write_text("data\n")
    with made:
        made.run("useradd", "--create-home", "--groups", "shardfeed", "trainer")
        made.run("useradd", "stranger")
        install_certificates(made)
        made.run("cp", "-R", "/root/pki/trainer", "/home/trainer/tls")
        made.run("chown", "-R", "trainer", "/home/trainer/tls")
        made.run("chmod", "0777", "/srv/data")
        made.run("sh", "-c", "chmod 0755 /home/trainer; echo data > /home/trainer/readable; chmod 0777 /home/trainer")
        yield made


def install_certificates(machine: Machine) -> None:
    """Installs certificates as in deploy/README.md."""
    for process, source in (("coordinator", "127.0.0.1"), ("worker", "worker")):
        folder = TLS[process]
        machine.run("install", "-d", "-m", "0750", "-g", "shardfeed", folder)
        machine.run("sh", "-c", f"install -m 0640 -g shardfeed /root/pki/{source}/* {folder}")


@pytest.fixture(scope="module")
def cluster(machine: Machine) -> Machine:
    """The machine with everything started: by the first two tests, or here if others run alone."""
    machine.run("systemctl", "start", *COORDINATORS.values(), WORKER)
    return machine


def ask(machine: Machine, *arguments: str) -> Any:
    return json.loads(machine.run("shardfeed", *arguments, *AS_ADMIN, "-o", "json"))


def leader(machine: Machine) -> int:
    """Returns the leader's id; 0: no leader at the moment."""
    done = machine.execute("shardfeed", "cluster", "status", *AS_ADMIN, "-o", "json")
    return int(json.loads(done.stdout)["leader"] or 0) if done.returncode == 0 else 0


def test_systemd_understands_every_line(machine: Machine) -> None:
    # It prints unknown lines, but exits with 0.
    for unit in (COORDINATORS[1], WORKER):
        done = machine.execute("systemd-analyze", "verify", "--man=no", unit)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", EXPOSURE_MOST)
def test_little_is_exposed(machine: Machine, unit: str) -> None:
    said = machine.run("systemd-analyze", "security", "--no-pager", unit)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= EXPOSURE_MOST[unit], said


def test_a_coordinator_that_waits_for_others_says_so_and_is_ready_when_they_came(machine: Machine) -> None:
    machine.run("systemctl", "start", "--no-block", COORDINATORS[1])
    told = ("ActiveState", "StatusText")

    def waits() -> bool:
        return machine.unit(COORDINATORS[1], *told)["StatusText"].startswith("starting: ")

    until(waits, "node 1 reports that it waits", 30)
    assert machine.unit(COORDINATORS[1], *told)["ActiveState"] == "activating"
    machine.run("systemctl", "start", COORDINATORS[2], COORDINATORS[3])
    for unit in COORDINATORS.values():
        machine.until_active(unit)
        status = machine.unit(unit, "StatusText", "NRestarts")
        assert status["StatusText"].startswith("coordinator ready: "), status
        assert status["NRestarts"] == "0"
    assert leader(machine) in PORTS
    for node in PORTS:
        folder = machine.run("stat", "--format=%U %a", f"/var/lib/shardfeed/coordinator-{node}").split()
        assert folder == ["shardfeed", "700"]


def test_a_worker_is_ready_and_serves_its_group_only(cluster: Machine) -> None:
    cluster.until_active(WORKER)
    assert cluster.unit(WORKER, "StatusText")["StatusText"].startswith("worker ready: ")
    modes = cluster.run("stat", "--format=%U:%G %a", "/run/shardfeed", SOCKET).splitlines()
    assert modes == ["shardfeed:shardfeed 750", "shardfeed:shardfeed 660"]
    health = ("shardfeed", "health", "--worker", "--socket", SOCKET)
    assert "serves" in cluster.run(*health, user="trainer")
    stranger = cluster.execute(*health, user="stranger")
    assert stranger.returncode == 4 and "may not connect" in stranger.stderr, stranger


@pytest.mark.parametrize("process", ["coordinator", "worker"])
def test_the_watchdog_ends_one_that_hangs_and_it_comes_back(cluster: Machine, process: str) -> None:
    unit = WORKER if process == "worker" else COORDINATORS[leader(cluster)]
    cluster_id = ask(cluster, "cluster", "status")["cluster_id"]
    before = cluster.unit(unit, "MainPID", "NRestarts")
    cluster.run("systemctl", "kill", "--kill-whom=main", "--signal=SIGSTOP", unit)
    cluster.until_active(unit, WATCHDOG_S[process], but_not=before["MainPID"])
    assert int(cluster.unit(unit, "NRestarts")["NRestarts"]) == int(before["NRestarts"]) + 1
    assert "with result 'watchdog'" in cluster.journal(unit)
    until(lambda: leader(cluster), "a node leads", 30)
    assert ask(cluster, "cluster", "status")["cluster_id"] == cluster_id
    if process == "worker":
        assert "serves" in cluster.run("shardfeed", "health", "--worker", "--socket", SOCKET, user="trainer")


def test_a_killed_one_comes_back(cluster: Machine) -> None:
    for unit in (COORDINATORS[2], WORKER):
        before = cluster.until_active(unit)
        cluster.run("systemctl", "kill", "--kill-whom=main", "--signal=SIGKILL", unit)
        cluster.until_active(unit, but_not=before)
        assert "status=9/KILL" in cluster.journal(unit)


def test_renewed_certificates_are_taken_by_what_runs(cluster: Machine) -> None:
    units = (*COORDINATORS.values(), WORKER)
    before = {unit: cluster.until_active(unit) for unit in units}
    cluster.run("shardfeed", "tls", "rotate", "/root/pki")
    install_certificates(cluster)
    # Files are checked when a connection is opened or accepted, as after a change of the leader.
    restarted = COORDINATORS[until(lambda: leader(cluster), "a node leads", 30)]
    cluster.run("systemctl", "restart", restarted)
    for unit in set(units) - {restarted}:
        until(lambda unit=unit: "certificates were read again" in cluster.journal(unit), f"{unit} has read them", 60)  # type: ignore[misc]
        assert cluster.unit(unit, "MainPID")["MainPID"] == before[unit]
    until(lambda: leader(cluster), "a node leads", 30)
    assert ask(cluster, "access", "whoami")["role"] == "admin"


@pytest.mark.parametrize("process", ["coordinator", "worker"])
def test_a_key_that_only_root_can_read_comes_by_systemd_s_credentials(cluster: Machine, process: str) -> None:
    unit = WORKER if process == "worker" else COORDINATORS[3]
    comment = (DEPLOY / "systemd" / UNITS[process == "worker"]).read_text()
    lines = re.findall(r"^#   ((?:LoadCredential|Environment)=.*)$", comment, flags=re.MULTILINE)
    assert len(lines) == 4
    text = "\n".join(["[Service]", *lines, ""]).replace("/etc/shardfeed/tls/", "/etc/shardfeed/kept/")
    folder, drop_in = "/etc/shardfeed/kept", f"/etc/systemd/system/{unit}.d/credentials.conf"
    source = "/root/pki/" + ("worker" if process == "worker" else "127.0.0.1")
    cluster.run("sh", "-c", f"install -d -m 0700 {folder} && install -m 0600 {source}/* {folder} && mkdir -p {Path(drop_in).parent}")
    (cluster.root / drop_in.lstrip("/")).write_text(text)
    before = cluster.until_active(unit)
    try:
        cluster.run("systemctl", "daemon-reload")
        cluster.run("systemctl", "restart", unit)
        now = cluster.until_active(unit, but_not=before)
        variables = cluster.run("cat", f"/proc/{now}/environ").split("\0")
        (shown,) = [value for value in variables if value.startswith(f"SHARDFEED_{process.upper()}__TLS=")]
        assert shown.split("=")[1] == f"/run/credentials/{unit}"
        stranger = cluster.execute("cat", f"/run/credentials/{unit}/tls.key", user="stranger")
        assert stranger.returncode != 0
        assert cluster.execute("cat", f"{folder}/tls.key", user="shardfeed").returncode != 0
    finally:
        cluster.run("rm", "-r", drop_in, folder)
        cluster.run("systemctl", "daemon-reload")
        cluster.run("systemctl", "restart", unit)


def test_a_worker_that_has_a_join_token_gets_a_token_of_its_own(cluster: Machine) -> None:
    before, drop_in = cluster.until_active(WORKER), f"/etc/systemd/system/{WORKER}.d/token.conf"
    cluster.run("shardfeed", "access", "create", "rack", "--role", "worker", "--join", "--out", "/root/join.token", *AS_ADMIN)
    cluster.run("sh", "-c", "install -m 0640 -g shardfeed /root/join.token /etc/shardfeed/ && install -D -m 0644 /root/pki/ca.crt /etc/shardfeed/ca/ca.crt")
    own = "/var/lib/shardfeed/worker/token"
    options = {"TLS": "/etc/shardfeed/ca", "TOKEN_FILE": own, "JOIN_TOKEN_FILE": "/etc/shardfeed/join.token"}
    variables = "".join(f"Environment=SHARDFEED_WORKER__{name}={value}\n" for name, value in options.items())
    cluster.run("mkdir", "-p", str(Path(drop_in).parent))
    (cluster.root / drop_in.lstrip("/")).write_text(f"[Service]\n{variables}")
    try:
        cluster.run("systemctl", "daemon-reload")
        cluster.run("systemctl", "restart", WORKER)
        before = cluster.until_active(WORKER, but_not=before)
        assert cluster.run("stat", "--format=%U %a", own).split() == ["shardfeed", "600"]
        tokens = ask(cluster, "access", "list", "--all")["tokens"]
        assert sorted(each["state"] for each in tokens if each["role"] == "worker") == ["good", "used"]
        # The join token is no longer valid, and not needed.
        cluster.run("systemctl", "restart", WORKER)
        cluster.until_active(WORKER, but_not=before)
    finally:
        cluster.run("rm", drop_in)
        cluster.run("systemctl", "daemon-reload")
        cluster.run("systemctl", "restart", WORKER)


def test_a_leader_that_is_stopped_hands_over_and_ends_well(cluster: Machine) -> None:
    old = until(lambda: leader(cluster), "a node leads", 30)
    cluster.run("systemctl", "stop", COORDINATORS[old])
    end = cluster.unit(COORDINATORS[old], "Result", "ExecMainStatus", "ActiveState")
    assert end == {"Result": "success", "ExecMainStatus": "0", "ActiveState": "inactive"}
    assert leader(cluster) not in (0, old)
    cluster.run("systemctl", "start", COORDINATORS[old])


def test_installing_over_what_runs_leaves_its_options_and_lets_it_run(cluster: Machine) -> None:
    files = ("md5sum", "/etc/shardfeed/coordinator.toml", "/etc/shardfeed/worker.toml")
    options, before = cluster.run(*files), cluster.until_active(WORKER)
    cluster.run("env", "SHARDFEED_BINARY=/srv/tree/shardfeed", "/srv/tree/deploy/systemd/install.sh")
    assert (cluster.run(*files), cluster.unit(WORKER, "MainPID")["MainPID"]) == (options, before)
    cluster.run("systemctl", "restart", WORKER)
    cluster.until_active(WORKER, but_not=before)


def test_options_that_have_no_meaning_are_refused_before_the_start(cluster: Machine) -> None:
    bad = "/etc/systemd/system/shardfeed-worker.service.d/bad.conf"
    cluster.run("mkdir", "-p", str(Path(bad).parent))
    cluster.run("sh", "-c", f"printf '[Service]\\nEnvironment=SHARDFEED_WORKER__THREADS=0\\nRestart=no\\n' > {bad}")
    try:
        cluster.run("systemctl", "daemon-reload")
        assert cluster.execute("systemctl", "restart", WORKER).returncode != 0
        assert "must be a whole number, at least 1" in cluster.journal(WORKER)
        assert cluster.unit(WORKER, "ExecMainPID")["ExecMainPID"] == "0"
    finally:
        cluster.run("rm", bad)
        cluster.run("systemctl", "daemon-reload")
        cluster.run("systemctl", "reset-failed", WORKER)
        cluster.run("systemctl", "start", WORKER)


def test_a_worker_that_its_cluster_refuses_for_good_is_not_started_again(cluster: Machine) -> None:
    other = "/etc/systemd/system/shardfeed-worker.service.d/other.conf"
    cluster.run("mkdir", "-p", str(Path(other).parent))
    cluster.run("sh", "-c", f"printf '[Service]\\nEnvironment=SHARDFEED_WORKER__CLUSTER_ID=other\\n' > {other}")
    try:
        cluster.run("systemctl", "daemon-reload")
        assert cluster.execute("systemctl", "restart", WORKER).returncode != 0
        end = cluster.unit(WORKER, "ActiveState", "ExecMainStatus", "NRestarts")
        assert end == {"ActiveState": "failed", "ExecMainStatus": "5", "NRestarts": "0"}
    finally:
        cluster.run("rm", other)
        cluster.run("systemctl", "daemon-reload")
        cluster.run("systemctl", "reset-failed", WORKER)
        cluster.run("systemctl", "start", WORKER)


#: Operations that the probe tries -> the units that must be able to do them.
MAY = {
    "write its folder": UNITS,
    "connect on loopback": UNITS,
    "shared memory": UNITS,
    "read the system": UNITS,
    "read datasets": UNITS,
    "read a home": UNITS[1:],
}


def test_the_hardening_holds(machine: Machine) -> None:
    probe = Path(__file__).with_name("hardening_probe.py")
    shutil.copy(probe, machine.root / "usr/bin/hardening_probe.py")
    tried = json.loads(machine.run("/usr/bin/python3", "/usr/bin/hardening_probe.py", "/var/tmp"))
    # As root without a unit: an operation that fails there would prove nothing.
    assert {what for what, is_done in tried.items() if not is_done} <= {"change the user"} and tried
    for unit in UNITS:
        text = (DEPLOY / "systemd" / unit).read_text()
        folder = "/var/cache/shardfeed" if "worker" in unit else "/var/lib/shardfeed/coordinator-probe"
        text = re.sub(r"^(ExecStartPre|ExecStart|Type|Restart|WatchdogSec|RuntimeDirectory)=.*\n", "", text, flags=re.MULTILINE)
        start = f"ExecStart=/usr/bin/python3 /usr/bin/hardening_probe.py {folder}\nType=oneshot\n"
        name = unit.replace(".service", "probe.service") if "@" in unit else "shardfeed-worker-probe.service"
        path = machine.root / "etc/systemd/system" / name
        path.write_text(text.replace("[Service]\n", f"[Service]\n{start}"))
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "start", name)
        lines = [line for line in machine.journal(name).splitlines() if line.startswith("{")]
        done = {what for what, is_done in json.loads(lines[-1]).items() if is_done}
        assert done == {what for what, units in MAY.items() if unit in units}, unit
        path.unlink()
    machine.run("systemctl", "daemon-reload")


def test_a_training_loses_nothing_when_the_worker_is_stopped_and_started(cluster: Machine) -> None:
    import pack
    import recount

    data, ledger = cluster.root / "srv/data/digits", cluster.root / "home/trainer/ledger"
    records = pack.pack(data, cluster.root / "srv/data/test.tfrecord", SHARDS)
    shutil.copytree(roots.packages(), cluster.root / "srv/packages", dirs_exist_ok=True)
    session = ask(cluster, "worker", "list")["workers"][0]["session"]
    variables = {
        "PYTHONPATH": "/srv/packages", "SHARDFEED_COORDINATOR": ADDRESSES, "SHARDFEED_WORKER": SOCKET,
        "SHARDFEED_LEDGER": "/home/trainer/ledger", "SHARDFEED_CACHE_DIR": "/home/trainer/cache",
        "SHARDFEED_TLS": "/home/trainer/tls",
    }  # fmt: skip
    train = ["/usr/bin/python3", "/srv/examples/digits/train.py", "--data", "/srv/data/digits"]
    train += ["--checkpoint", "last.npz", "--epochs", str(EPOCHS), "--step-seconds", str(STEP_SECONDS)]
    options = [f"--setenv={name}={value}" for name, value in variables.items()]
    options += ["--unit=training", "--uid=trainer", "--working-directory=/home/trainer", "--remain-after-exit"]
    cluster.run("systemd-run", *options, *train)

    def served(by: str) -> bool:
        ranks = ask(cluster, "rank", "list", "--job", "digits")["ranks"]
        return [each["state"] for each in ranks] == [by]

    def at(epoch: int) -> bool:
        ended = cluster.unit("training", "SubState")["SubState"]
        assert ended == "running", f"{ended}: {cluster.journal('training')[-3000:]}"
        return f"rank 0 epoch {epoch} step " in cluster.journal("training")

    until(lambda: at(1), "the training is in epoch 1", 60)
    assert served("served")
    cluster.run("systemctl", "stop", WORKER)
    end = cluster.unit(WORKER, "Result", "ExecMainStatus")
    assert end == {"Result": "success", "ExecMainStatus": "0"}
    states = {each["session"]: each["state"] for each in ask(cluster, "worker", "list", "--all")["workers"]}
    assert states[session] == "left"
    until(lambda: at(2), "the training continues without the worker", 60)
    cluster.run("systemctl", "start", WORKER)
    until(lambda: at(4) and served("served"), "the worker serves it again", 60)
    until(lambda: cluster.unit("training", "SubState")["SubState"] == "exited", "the training ends", 120)
    assert cluster.unit("training", "ExecMainStatus")["ExecMainStatus"] == "0"
    total = recount.recount(ledger, data)
    assert (total.lost, total.duplicated, total.unknown, total.problems) == (0, 0, 0, [])
    assert (total.epochs, total.records) == (EPOCHS, records)
