"""Pods of the manifests in deploy/kubernetes, run by Docker like a kubelet: commands, variables,
users, limits, volumes, probes and names. Features that need a cluster, such as scheduling, are not
tested."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import manifests
import pytest
from command import HOME, ROOT, run, shardfeed, until
from containers import IMAGES, PROJECT, Container
from manifests import Manifest, environment, expand, one, render

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples/digits")]
import pack  # noqa: E402
import recount  # noqa: E402

NETWORK = f"{PROJECT}-pods"
DOMAIN = "shardfeed-coordinators.shardfeed.svc"
NAME = "shardfeed-coordinator-{}"
#: As in the manifests' probes, which would fail by then.
STARTED_S = 60.0
EPOCHS, STEP_SECONDS = 3, 0.05


@pytest.fixture(scope="module")
def network(images: None) -> Iterator[str]:
    subprocess.run(["docker", "network", "rm", NETWORK], capture_output=True)
    run(["docker", "network", "create", NETWORK])
    yield NETWORK
    run(["docker", "network", "rm", NETWORK])


@pytest.fixture
def data() -> Path:
    """Creates /data of all pods, which trainers write."""
    folder = HOME / "pods"
    shutil.rmtree(folder, ignore_errors=True)
    pack.pack(folder / "data", folder / "test.tfrecord", 8)
    (folder / "out").mkdir()
    run(["chmod", "-R", "a+rwX", folder])
    return folder


@pytest.fixture(scope="module")
def pki() -> Path:
    """Creates certificates as in deploy/README.md."""
    folder = HOME / "pki"
    shutil.rmtree(folder, ignore_errors=True)
    shardfeed("tls", "init", folder, "--coordinator", "any")
    hosts = [f"--host={name}" for name in (f"*.{DOMAIN}", DOMAIN, "localhost", "127.0.0.1")]
    shardfeed("tls", "issue", folder, "coordinator", "kubernetes", *hosts)
    shardfeed("tls", "issue", folder, "trainer", "trainer")
    return folder


def secrets(template: Manifest, pki: Path) -> dict[str, str]:
    """Creates folders for the template's secret volumes, with a kubelet's owner and modes for
    files."""
    made = {}
    pod = template["spec"]
    for volume in pod.get("volumes", []):
        if "secret" not in volume:
            continue
        secret = volume["secret"]
        role = secret["secretName"].removeprefix("shardfeed-").removesuffix("-tls")
        folder = pki / f"mounted/{role}"
        folder.mkdir(parents=True, exist_ok=True)
        for item in secret["items"]:
            path = folder / item["path"]
            shutil.copy(pki / {"coordinator": "kubernetes"}.get(role, role) / item["key"], path)
            os.chown(path, 0, pod["securityContext"]["fsGroup"])
            path.chmod(secret["defaultMode"])
        folder.chmod(0o755)
        made[volume["name"]] = str(folder)
    return made


def as_a_container(
    template: Manifest, container: Manifest, fields: dict[str, str], mounts: dict[str, str], *more: str
) -> Container:
    """Returns a container of a pod.

    - `mounts`: its volumes by name, as for Docker's `-v`.
    """
    variables = environment(container, fields)
    pod, own = template["spec"]["securityContext"], container["securityContext"]
    merged = pod | own
    options = [f"--user={merged['runAsUser']}:{merged['runAsGroup']}", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    options += [f"--cap-add={each}" for each in own["capabilities"].get("add", [])]
    if own.get("readOnlyRootFilesystem"):
        options.append("--read-only")
    memory = container.get("resources", {}).get("limits", {}).get("memory")
    if memory:
        options.append(f"--memory={memory.removesuffix('i').lower()}")
    options += [f"--env={name}={value}" for name, value in variables.items()]
    for mount in container.get("volumeMounts", []):
        mode = ":ro" if mount.get("readOnly") else ""
        options.append(f"--volume={mounts[mount['name']]}:{mount['mountPath']}{mode}")
    command, arguments = container.get("command", []), container.get("args", [])
    if command:
        options.append(f"--entrypoint={command[0]}")
    words = [expand(word, variables) for word in (*command[1:], *arguments)]
    name = f"{fields['metadata.name']}-{container['name']}"
    return Container(name, [f"--network={NETWORK}", *options, *more], IMAGES["shardfeed"], words)


def probe(running: Container, container: Manifest, which: str) -> bool:
    """True if the kubelet's probe would succeed."""
    asked = container[which]
    if "exec" in asked:
        return running.execute(*asked["exec"]["command"]).returncode == 0
    http = asked["httpGet"]
    (port,) = [each["containerPort"] for each in container["ports"] if each["name"] == http["port"]]
    try:
        with urllib.request.urlopen(f"http://{running.address}:{port}{http['path']}", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class Set:
    """The coordinators' StatefulSet, and the pod of examples/admin as its client."""

    def __init__(self, folder: str, pki: Path) -> None:
        self.set, self._pki = one(render(folder), "StatefulSet"), pki
        self.template = self.set["spec"]["template"]
        (self.container,) = self.template["spec"]["containers"]
        self.secrets = secrets(self.template, pki)
        self.running: dict[int, Container] = {}
        self._admin: Container | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Set:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def numbers(self) -> range:
        first = self.set["spec"]["ordinals"]["start"]
        return range(first, first + self.set["spec"]["replicas"])

    def start(self, number: int) -> Container:
        name = NAME.format(number)
        fields = {
            "metadata.name": name, "metadata.namespace": "shardfeed",
            "metadata.labels['apps.kubernetes.io/pod-index']": str(number),
        }  # fmt: skip
        names = [f"--network-alias={each}" for each in (f"{name}.{DOMAIN}", DOMAIN)]
        # An anonymous volume is removed with the container.
        options = [*names, "--volume=/var/lib/shardfeed"]
        mounted = [each for each in self.container["volumeMounts"] if each["name"] in self.secrets]
        container = self.container | {"volumeMounts": mounted}
        made = as_a_container(self.template, container, fields, self.secrets, *options)
        self.running[number] = self._stack.enter_context(made)
        return made

    def until_probed(self, number: int, which: str) -> None:
        running = self.running[number]

        def is_so() -> bool:
            assert running.state["Running"], running.log()
            return probe(running, self.container, which)

        until(is_so, f"{running.name}: {which}", STARTED_S)

    @property
    def admin(self) -> Container:
        if self._admin is None:
            pod = one(render("examples/admin"), "Pod")
            (container,) = pod["spec"]["containers"]
            fields = {"metadata.name": pod["metadata"]["name"]}
            self._admin = self._stack.enter_context(as_a_container(pod, container, fields, secrets(pod, self._pki)))
        return self._admin

    def ask(self, *arguments: str) -> Any:
        """Equivalent to `kubectl exec` in the admin's pod; without certificates in the first
        coordinator's."""
        running = self.admin if self.secrets else self.running[1]
        done = running.execute("shardfeed", *arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start_all(self) -> None:
        for number in self.numbers:
            self.start(number)
        for number in self.numbers:
            self.until_probed(number, "readinessProbe")


def test_coordinators_found_a_cluster_and_a_fourth_one_is_added(network: str, pki: Path) -> None:
    with Set("overlays/prod", pki) as coordinators:
        coordinators.start(1)
        coordinators.until_probed(1, "startupProbe")
        assert probe(coordinators.running[1], coordinators.container, "livenessProbe")
        assert not probe(coordinators.running[1], coordinators.container, "readinessProbe")
        for number in (2, 3):
            coordinators.start(number)
        for number in coordinators.numbers:
            coordinators.until_probed(number, "readinessProbe")
        status = coordinators.ask("cluster", "status")
        assert {member["address"] for member in status["members"]} == {f"{NAME.format(n)}.{DOMAIN}:7070" for n in (1, 2, 3)}
        # A coordinator has no admin rights.
        refused = coordinators.running[1].execute("shardfeed", "cluster", "remove", "2", "--yes")
        assert refused.returncode == 4, refused
        # Equivalent to `kubectl scale --replicas=4`.
        coordinators.start(4)
        coordinators.until_probed(4, "startupProbe")
        assert not probe(coordinators.running[4], coordinators.container, "readinessProbe")
        coordinators.ask("cluster", "add", "4", f"{NAME.format(4)}.{DOMAIN}:7070")
        coordinators.until_probed(4, "readinessProbe")
        grace = coordinators.template["spec"]["terminationGracePeriodSeconds"]
        leader = coordinators.ask("cluster", "status")["leader"]
        assert coordinators.running[leader].stop(grace) == 0
        other = next(number for number in coordinators.running if number != leader)
        said = coordinators.running[other].execute("shardfeed", "cluster", "status", "-o", "json")
        assert json.loads(said.stdout)["leader"] not in (None, leader), said


def test_the_small_overlay_is_a_cluster_of_one(network: str, pki: Path) -> None:
    with Set("overlays/dev", pki) as coordinators:
        coordinators.start_all()
        assert list(coordinators.numbers) == [1]
        assert len(coordinators.ask("cluster", "status")["members"]) == 1


@pytest.mark.parametrize("shape", ["sidecar", "daemonset"])
def test_a_trainer_gets_all_records_from_the_worker_beside_it(network: str, data: Path, pki: Path, shape: str) -> None:
    if shape == "sidecar":
        owner = one(render("examples/job"), "Job")
        template = owner["spec"]["template"]
        (worker,) = template["spec"]["initContainers"]
        before, name = [], "digits-0-abcde"
        volumes = {"shardfeed-run": "run", "shardfeed-cache": "cache"}
    else:
        template = one(render("overlays/prod"), "DaemonSet")["spec"]["template"]
        before, (worker,) = template["spec"]["initContainers"], template["spec"]["containers"]
        name, volumes = "node-1", {"run": "run", "cache": "cache"}
    fields = {"metadata.name": name, "metadata.namespace": "shardfeed", "spec.nodeName": name}
    mounts = {"datasets": str(data / "data")} | secrets(template, pki)
    for volume, folder in volumes.items():
        # Created by the kubelet for root: an emptyDir is writable for all, a host's folder is not.
        (data / folder).mkdir()
        (data / folder).chmod(0o777 if shape == "sidecar" else 0o755)
        mounts[volume] = str(data / folder)
    with Set("overlays/prod", pki) as coordinators, ExitStack() as stack:
        coordinators.start_all()
        for container in before:
            first = stack.enter_context(as_a_container(template, container, fields, mounts))
            assert run(["docker", "wait", first.name]).strip() == "0", first.log()
        running = stack.enter_context(as_a_container(template, worker, fields, mounts))

        def started() -> bool:
            assert running.state["Running"], running.log()
            return probe(running, worker, "startupProbe") and probe(running, worker, "livenessProbe")

        until(started, "the worker has started", STARTED_S)
        assert coordinators.ask("worker", "list")["workers"][0]["name"] == name
        trainer = stack.enter_context(training(fields, data, mounts[next(iter(volumes))], pki))

        def served() -> bool:
            assert trainer.state["Running"], trainer.log()
            ranks = coordinators.ask("rank", "list", "--job", "digits")["ranks"] if "epoch 0" in trainer.log() else []
            return [(each["state"], each["worker"]) for each in ranks] == [("served", name)]

        until(served, "the trainer is served by the worker beside it", STARTED_S)
        assert run(["docker", "wait", trainer.name]).strip() == "0", trainer.log()
        # The kubelet ends a sidecar when the trainer has ended.
        assert running.stop(30) == 0
    total = recount.recount(data / "out/ledger", data / "data")
    assert (total.lost, total.duplicated, total.unknown, total.problems) == (0, 0, 0, [])
    assert total.epochs == EPOCHS


def training(fields: dict[str, str], data: Path, run_folder: str, pki: Path) -> Container:
    """Returns the user's container: image and training are the user's; the manifest has the
    worker's variables."""
    template = one(manifests.render("examples/job"), "Job")["spec"]["template"]
    (trainer,) = template["spec"]["containers"]
    (tls,) = [each for each in trainer["volumeMounts"] if each["name"] == "shardfeed-trainer-tls"]
    told = {name: value for name, value in environment(trainer, fields | {UID: "1"}).items() if name.startswith("SHARDFEED_")}
    options = [f"--env={name}={value}" for name, value in told.items()]
    options += ["--user=10001:10001", "--cap-drop=ALL", f"--volume={run_folder}:/run/shardfeed:ro"]
    options += [f"--volume={secrets(template, pki)[tls['name']]}:{tls['mountPath']}:ro"]
    options += [f"--volume={data / 'data'}:/data:ro", f"--volume={data / 'out'}:/out", "--env=SHARDFEED_LEDGER=/out/ledger"]
    train = ["/opt/shardfeed/examples/digits/train.py", "--data=/data", "--checkpoint=/out/last.npz"]
    train += [f"--epochs={EPOCHS}", f"--step-seconds={STEP_SECONDS}"]
    return Container(f"{fields['metadata.name']}-trainer", [f"--network={NETWORK}", *options], IMAGES["trainer"], train)


UID = "metadata.labels['batch.kubernetes.io/controller-uid']"
