"""The manifests are what Kubernetes knows, fit together, and name options that the command has. No API server is asked."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import ask
from manifests import RENDERED, REFERENCE, containers, environment, file, one, pods, render

#: The first has what is needed: native sidecars, numbered ordinals, the index of a pod as a label.
VERSIONS = ["1.32", "1.34", "1.37"]
#: What the kubelet would put there.
FIELDS = {
    "metadata.name": "shardfeed-coordinator-1", "metadata.namespace": "shardfeed", "spec.nodeName": "node-1",
    "metadata.labels['apps.kubernetes.io/pod-index']": "1",
    "metadata.labels['batch.kubernetes.io/controller-uid']": "uid",
}  # fmt: skip


def validate(manifests: list[dict[str, Any]], folder: Path, version: str) -> subprocess.CompletedProcess[str]:
    path = folder / "manifests.yaml"
    path.write_text(yaml.safe_dump_all(manifests))
    program = Path(sys.executable).with_name("kubernetes-validate")
    command = [str(program), "-k", version, "--strict", str(path)]
    return subprocess.run(command, capture_output=True, text=True)


def jobs_of_the_set() -> list[dict[str, Any]]:
    """What a JobSet's controller makes: plain Jobs."""
    (jobset,) = file("examples/jobset/jobset.yaml")
    return [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": each["name"], **each["template"].get("metadata", {})}}
        | {"spec": each["template"]["spec"]}
        for each in jobset["spec"]["replicatedJobs"]
    ]  # fmt: skip


def everything() -> dict[str, list[dict[str, Any]]]:
    return {folder: render(folder) for folder in RENDERED} | {"examples/jobset": jobs_of_the_set()}


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field(version: str, tmp_path: Path) -> None:
    for folder, manifests in everything().items():
        done = validate(manifests, tmp_path, version)
        assert done.returncode == 0 and "WARN" not in done.stdout + done.stderr, f"{folder}: {done.stdout}{done.stderr}"
        assert (done.stdout + done.stderr).count("passed") == len(manifests)


def test_a_field_that_is_misspelt_is_found(tmp_path: Path) -> None:
    manifests = copy.deepcopy(render("overlays/prod"))
    spec = one(manifests, "StatefulSet")["spec"]
    spec["podManagmentPolicy"] = spec.pop("podManagementPolicy")
    assert validate(manifests, tmp_path, VERSIONS[0]).returncode == 1


def test_the_jobset_has_fields_that_its_api_knows() -> None:
    """jobset.x-k8s.io/v1alpha2, as far as it is used; its schema is not at hand."""
    (jobset,) = file("examples/jobset/jobset.yaml")
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert set(jobset["spec"]) <= {"network", "failurePolicy", "successPolicy", "replicatedJobs", "suspend"}
    assert set(jobset["spec"]["network"]) <= {"enableDNSHostnames", "subdomain", "publishNotReadyAddresses"}
    assert set(jobset["spec"]["failurePolicy"]) <= {"maxRestarts"}
    for each in jobset["spec"]["replicatedJobs"]:
        assert set(each) == {"name", "replicas", "template"}


@pytest.mark.parametrize("folder", everything())
def test_what_a_manifest_names_is_there(folder: str) -> None:
    manifests = everything()[folder]
    for name, template in pods(manifests):
        spec, labels = template["spec"], template.get("metadata", {}).get("labels", {})
        owner = next(each for each in manifests if f"{each['kind']}/{each['metadata']['name']}" == name)
        selected = owner["spec"].get("selector", {}).get("matchLabels", {})
        assert selected.items() <= labels.items(), name
        claims = [each["metadata"]["name"] for each in owner["spec"].get("volumeClaimTemplates", [])]
        volumes = {*claims, *(each["name"] for each in spec.get("volumes", []))}
        for container in containers(template):
            where = f"{name} {container['name']}"
            ports = {each["name"] for each in container.get("ports", [])}
            assert {each["name"] for each in container.get("volumeMounts", [])} <= volumes, where
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                http = container.get(probe, {}).get("httpGet")
                assert http is None or (http["port"] in ports and http["path"] in ("/livez", "/readyz")), where
    for service in (each for each in manifests if each["kind"] == "Service"):
        selector = service["spec"]["selector"]
        chosen = [template for _, template in pods(manifests) if selector.items() <= template["metadata"]["labels"].items()]
        # Kubernetes gives a Job's pods that label.
        if "batch.kubernetes.io/job-name" in selector:
            one(manifests, "Job", selector["batch.kubernetes.io/job-name"])
            continue
        assert len(chosen) == 1, service["metadata"]["name"]
        ports = {each["name"] for container in containers(chosen[0]) for each in container.get("ports", [])}
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports


@pytest.mark.parametrize("folder", everything())
def test_variables_are_options_and_stand_after_what_they_use(folder: str) -> None:
    known = {"SHARDFEED_COORDINATOR", "SHARDFEED_WORKER", "SHARDFEED_LOG_FORMAT", "SHARDFEED_CACHE_DIR"}
    for process in ("coordinator", "worker"):
        for option in ask("config", "show", process)["options"]:
            known.add(f"SHARDFEED_{process.upper()}__{option['option'].replace('-', '_').upper()}")
    for name, template in pods(everything()[folder]):
        for container in containers(template):
            made = environment(container, FIELDS)
            assert not [value for value in made.values() if REFERENCE.search(value)], f"{name}: {made}"
            used = {variable for variable in made if variable.startswith("SHARDFEED_")}
            assert used <= known, f"{name}: {used - known}"


@pytest.mark.parametrize("folder", everything())
def test_no_container_may_more_than_it_needs(folder: str) -> None:
    for name, template in pods(everything()[folder]):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        for container in containers(template):
            where, may = f"{name} {container['name']}", container["securityContext"]
            assert may["allowPrivilegeEscalation"] is False and may["capabilities"]["drop"] == ["ALL"], where
            is_root = may.get("runAsUser", spec["securityContext"].get("runAsUser")) == 0
            assert is_root == (container["name"] == "folders"), where
            assert set(may["capabilities"].get("add", [])) == ({"CHOWN", "FOWNER"} if is_root else set()), where
            assert container["name"] == "trainer" or may["readOnlyRootFilesystem"], where


def test_the_worker_in_the_jobset_is_the_component_s() -> None:
    (of_job,) = one(render("examples/job"), "Job")["spec"]["template"]["spec"]["initContainers"]
    (of_set,) = jobs_of_the_set()[0]["spec"]["template"]["spec"]["initContainers"]
    assert of_job == of_set


def test_overlays_differ_where_they_should() -> None:
    dev, prod = render("overlays/dev"), render("overlays/prod")
    assert (one(dev, "StatefulSet")["spec"]["replicas"], one(prod, "StatefulSet")["spec"]["replicas"]) == (1, 3)
    for manifests in (dev, prod):
        coordinators = one(manifests, "StatefulSet")["spec"]
        made = environment(coordinators["template"]["spec"]["containers"][0], FIELDS)
        assert int(made["FOUNDERS"]) == coordinators["replicas"]
    assert not [each for each in dev if each["kind"] in ("DaemonSet", "PodDisruptionBudget")]
    assert one(prod, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert one(dev, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert one(prod, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
