"""Manifests are valid for Kubernetes, consistent, and use existing options of the command. No API
server is needed."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import DEPLOY, ask, run
from manifests import CUSTOM, REFERENCE, RENDERED, containers, environment, file, one, pods, render

#: The first has the required features: native sidecars, numbered ordinals, the index of a pod as a
#: label.
VERSIONS = ["1.32", "1.34", "1.37"]
#: Values that the kubelet would insert.
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
    """Returns the Jobs that a JobSet's controller creates, and the objects beside the JobSet."""
    (jobset,) = file("examples/jobset/jobset.yaml")
    return file("examples/jobset/network-policy.yaml") + [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": each["name"], **each["template"].get("metadata", {})}}
        | {"spec": each["template"]["spec"]}
        for each in jobset["spec"]["replicatedJobs"]
    ]  # fmt: skip


def everything() -> dict[str, list[dict[str, Any]]]:
    return {folder: render(folder) for folder in RENDERED} | {"examples/jobset": jobs_of_the_set()}


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field(version: str, tmp_path: Path) -> None:
    for folder, rendered in everything().items():
        manifests = [each for each in rendered if not each["apiVersion"].startswith(CUSTOM)]
        done = validate(manifests, tmp_path, version)
        assert done.returncode == 0 and "WARN" not in done.stdout + done.stderr, f"{folder}: {done.stdout}{done.stderr}"
        assert (done.stdout + done.stderr).count("passed") == len(manifests)


def test_a_field_that_is_misspelt_is_found(tmp_path: Path) -> None:
    manifests = copy.deepcopy(render("overlays/prod"))
    spec = one(manifests, "StatefulSet")["spec"]
    spec["podManagmentPolicy"] = spec.pop("podManagementPolicy")
    assert validate(manifests, tmp_path, VERSIONS[0]).returncode == 1


def test_the_jobset_has_fields_that_its_api_knows() -> None:
    """jobset.x-k8s.io/v1alpha2, limited to the used fields, as its schema is not available."""
    (jobset,) = file("examples/jobset/jobset.yaml")
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert set(jobset["spec"]) <= {"network", "failurePolicy", "successPolicy", "replicatedJobs", "suspend"}
    assert set(jobset["spec"]["network"]) <= {"enableDNSHostnames", "subdomain", "publishNotReadyAddresses"}
    assert set(jobset["spec"]["failurePolicy"]) <= {"maxRestarts"}
    for each in jobset["spec"]["replicatedJobs"]:
        assert set(each) == {"name", "replicas", "template"}


def test_pod_monitors_have_fields_that_their_api_knows_and_pods_to_find() -> None:
    """monitoring.coreos.com/v1, limited to the used fields, as its schema is not available."""
    scraped = yaml.safe_load((DEPLOY / "monitoring/prometheus.yml").read_text())["scrape_configs"]
    found = set()
    for folder in ("examples/monitored", "examples/monitored-job"):
        manifests = render(folder)
        for each in (each for each in manifests if each["kind"] == "PodMonitor"):
            assert each["apiVersion"] == "monitoring.coreos.com/v1" and set(each["spec"]) == {"selector", "podMetricsEndpoints"}
            (endpoint,) = each["spec"]["podMetricsEndpoints"]
            assert set(endpoint) <= {"port", "path", "interval", "honorLabels", "relabelings"}
            assert all(set(rule) <= {"targetLabel", "replacement"} for rule in endpoint["relabelings"])
            wanted = each["spec"]["selector"]["matchLabels"].items()
            chosen = [template for _, template in pods(manifests) if wanted <= template["metadata"].get("labels", {}).items()]
            assert len(chosen) == 1, each
            ports = [port["name"] for container in containers(chosen[0]) for port in container.get("ports", [])]
            assert ports.count(endpoint["port"]) == 1 and endpoint["path"] == "/metrics"
            (job,) = [config for config in scraped if config["job_name"] == endpoint["relabelings"][0]["replacement"]]
            assert endpoint.get("honorLabels", False) == job.get("honor_labels", False)
            found.add((folder, job["job_name"]))
    assert len(found) == 3


#: HTTP ports; a policy may give a port by name or number.
PAGES = {"http": 7071, "worker-http": 7072}
MONITORS = {"namespaceSelector": {"matchLabels": {"shardfeed/monitors": "true"}}}


def who_reaches(manifests: list[dict[str, Any]], template: dict[str, Any], port: int, name: str = "") -> list[dict[str, Any]] | None:
    """Returns the sources that policies admit to a TCP port of a pod. None: all, as no policy
    applies."""
    labels = template.get("metadata", {}).get("labels", {}).items()
    policies = [each["spec"] for each in manifests if each["kind"] == "NetworkPolicy"]
    policies = [each for each in policies if each["podSelector"]["matchLabels"].items() <= labels and "Ingress" in each["policyTypes"]]
    rules = [rule for each in policies for rule in each["ingress"]]

    def is_meant(allowed: dict[str, Any]) -> bool:
        first = allowed["port"]
        is_it = first == name if isinstance(first, str) else first <= port <= allowed.get("endPort", first)
        return is_it and allowed.get("protocol", "TCP") == "TCP"

    let_in = [peer for rule in rules if any(map(is_meant, rule["ports"])) for peer in rule["from"]]
    return let_in if policies else None


@pytest.mark.parametrize("folder", everything())
def test_only_monitors_reach_pages(folder: str) -> None:
    manifests = everything()[folder]
    for name, template in pods(manifests):
        for port in (port for container in containers(template) for port in container.get("ports", [])):
            if port["name"] in PAGES:
                assert port["containerPort"] == PAGES[port["name"]], name
                assert who_reaches(manifests, template, port["containerPort"], port["name"]) == [MONITORS], name


@pytest.mark.parametrize("folder", ["examples/job", "examples/jobset"])
def test_ranks_meet_where_workers_stand_beside_them(folder: str) -> None:
    manifests = everything()[folder]
    template = one(manifests, "Job")["spec"]["template"]
    for port in (1, 29400, 7071, 7073, 65535):
        assert who_reaches(manifests, template, port) == [{"podSelector": {}}], port


def certificates() -> list[dict[str, Any]]:
    return [each for each in render("overlays/prod-cert-manager") if each["kind"] == "Certificate"]


def test_certificates_have_fields_that_their_api_knows() -> None:
    """cert-manager.io/v1, limited to the used fields, as its schema is not available."""
    known = {
        "secretName", "commonName", "isCA", "uris", "dnsNames", "ipAddresses", "usages", "duration", "renewBefore", "privateKey", "issuerRef",
    }  # fmt: skip
    custom = [each for each in render("overlays/prod-cert-manager") if each["apiVersion"].startswith(CUSTOM)]
    assert {each["apiVersion"] for each in custom} == {"cert-manager.io/v1"}
    issuers = {each["metadata"]["name"]: each["spec"] for each in custom if each["kind"] == "Issuer"}
    assert all(set(spec) in ({"selfSigned"}, {"ca"}) for spec in issuers.values())
    assert {spec["ca"]["secretName"] for spec in issuers.values() if "ca" in spec} == {"shardfeed-ca"}
    for each in certificates():
        spec = each["spec"]
        assert set(spec) <= known and set(spec["privateKey"]) <= {"algorithm", "size", "rotationPolicy"}
        assert spec["issuerRef"]["kind"] == "Issuer" and spec["issuerRef"]["name"] in issuers
        assert each["metadata"]["namespace"] == "shardfeed"
    made = {each["spec"]["secretName"] for each in certificates()}
    assert secrets(render("overlays/prod")) | secrets(render("examples/admin")) <= made


def test_the_command_takes_certificates_as_these_objects_say(tmp_path: Path) -> None:
    """OpenSSL in place of cert-manager."""
    (authority,) = [each["spec"] for each in certificates() if each["spec"].get("isCA")]
    leaves = [each for each in certificates() if not each["spec"].get("isCA")]
    assert len(leaves) == 3
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    signer = [tmp_path / "ca.crt", tmp_path / "ca.key"]
    subject = ["-subj", f"/CN={authority['commonName']}", "-days", "2"]
    run(["openssl", "req", "-x509", *key, *subject, "-out", signer[0], "-keyout", signer[1]])
    for spec in (each["spec"] for each in leaves):
        folder = tmp_path / spec["secretName"]
        folder.mkdir()
        names = [("DNS", spec.get("dnsNames", [])), ("IP", spec.get("ipAddresses", [])), ("URI", spec["uris"])]
        alternatives = ",".join(f"{kind}:{name}" for kind, found in names for name in found)
        purposes = [USAGES[usage] for usage in spec["usages"] if usage in USAGES]
        (folder / "extensions").write_text(f"subjectAltName={alternatives}\nextendedKeyUsage={','.join(purposes)}\nkeyUsage=digitalSignature\n")
        run(["openssl", "req", *key, "-subj", f"/CN={spec['commonName']}", "-out", folder / "request", "-keyout", folder / "tls.key"])
        sign = ["openssl", "x509", "-req", "-in", folder / "request", "-CA", signer[0], "-CAkey", signer[1], "-CAcreateserial", "-days", "1"]
        run([*sign, "-extfile", folder / "extensions", "-out", folder / "tls.crt"])
        shutil.copy(signer[0], folder / "ca.crt")
        shown = ask("tls", "show", folder)["certificate"]
        assert f"{shown['role']}:{shown['name']}" == spec["commonName"]
        assert shown["hosts"] == [*spec.get("dnsNames", []), *spec.get("ipAddresses", [])]
        assert ("server auth" in spec["usages"]) == (shown["role"] == "coordinator")


USAGES = {"server auth": "serverAuth", "client auth": "clientAuth"}


def secrets(manifests: list[dict[str, Any]]) -> set[str]:
    """Returns the secrets that pods mount."""
    volumes = [volume for _, template in pods(manifests) for volume in template["spec"].get("volumes", [])]
    return {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}


@pytest.mark.parametrize("folder", everything())
def test_keys_are_for_the_group_of_the_process_only(folder: str) -> None:
    readme = (DEPLOY / "README.md").read_text()
    assert all(f"create secret generic {name}" in readme for name in secrets(everything()[folder]))
    for name, template in pods(everything()[folder]):
        for volume in template["spec"].get("volumes", []):
            if "secret" not in volume:
                continue
            secret, may = volume["secret"], template["spec"]["securityContext"]
            assert secret["defaultMode"] == 0o440 and may["fsGroup"] == may["runAsGroup"] == 10001, name
            assert {each["path"] for each in secret["items"]} == {"ca.crt", "tls.crt", "tls.key"}, name
            # Each container has only its own secret.
            users = [c["name"] for c in containers(template) for m in c.get("volumeMounts", []) if m["name"] == volume["name"]]
            assert len(users) == 1 and secret["secretName"].split("-")[1] in users[0].split("-"), users


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
        # Kubernetes adds that label to a Job's pods.
        if "batch.kubernetes.io/job-name" in selector:
            one(manifests, "Job", selector["batch.kubernetes.io/job-name"])
            continue
        assert len(chosen) == 1, service["metadata"]["name"]
        ports = {each["name"] for container in containers(chosen[0]) for each in container.get("ports", [])}
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports


@pytest.mark.parametrize("folder", everything())
def test_variables_are_options_and_stand_after_what_they_use(folder: str) -> None:
    known = {"SHARDFEED_COORDINATOR", "SHARDFEED_WORKER", "SHARDFEED_LOG_FORMAT", "SHARDFEED_CACHE_DIR", "SHARDFEED_TLS"}
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
    (of_set,) = one(jobs_of_the_set(), "Job")["spec"]["template"]["spec"]["initContainers"]
    assert of_job == of_set
    assert one(render("examples/job"), "NetworkPolicy") == one(jobs_of_the_set(), "NetworkPolicy")


def test_overlays_differ_where_they_should() -> None:
    dev, prod = render("overlays/dev"), render("overlays/prod")
    assert (one(dev, "StatefulSet")["spec"]["replicas"], one(prod, "StatefulSet")["spec"]["replicas"]) == (1, 3)
    for manifests in (dev, prod):
        coordinators = one(manifests, "StatefulSet")["spec"]
        made = environment(coordinators["template"]["spec"]["containers"][0], FIELDS)
        assert int(made["FOUNDERS"]) == coordinators["replicas"]
        openness = {name: made.get(f"SHARDFEED_COORDINATOR__{name}") for name in ("TLS", "INSECURE")}
        assert openness == {"TLS": None, "INSECURE": "true"} if manifests is dev else {"TLS": "/etc/shardfeed/tls", "INSECURE": None}
    # Objects without a namespace, and all others, including those added by components.
    outside = {each["kind"] for each in prod if each["metadata"].get("namespace") != "shardfeed"}
    assert outside == {"Namespace", "PriorityClass"}
    assert not [each for each in dev if each["kind"] in ("DaemonSet", "PodDisruptionBudget")]
    assert one(prod, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert one(dev, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert one(prod, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
