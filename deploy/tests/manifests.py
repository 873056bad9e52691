"""Manifests of deploy/kubernetes as rendered by kustomize, and a kubelet's expansion of a pod's
environment."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml
from command import DEPLOY, run

KUBERNETES = DEPLOY / "kubernetes"
RENDERED = [
    "overlays/dev", "overlays/prod", "overlays/prod-cert-manager", "examples/job", "examples/admin", "examples/monitored",
    "examples/monitored-job",
]  # fmt: skip
#: API groups whose objects are known only to their own controllers.
CUSTOM = ("cert-manager.io/", "monitoring.coreos.com/")

Manifest = dict[str, Any]
REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@cache
def text(folder: str) -> str:
    """Returns the manifests that `kubectl apply -k` would send."""
    for command in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(command[0]):
            return run([*command, KUBERNETES / folder])
    raise AssertionError("missing: kubectl or kustomize, which renders the manifests")


def render(folder: str) -> list[Manifest]:
    return list(yaml.safe_load_all(text(folder)))


def file(path: str) -> list[Manifest]:
    return list(yaml.safe_load_all((KUBERNETES / path).read_text()))


def one(manifests: list[Manifest], kind: str, name: str = "") -> Manifest:
    found = [each for each in manifests if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    assert len(found) == 1, f"{kind} {name}: {len(found)}"
    return found[0]


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Yields kind and name of the objects that create pods, with the template. A pod is its own
    template."""
    for each in manifests:
        template = each if each["kind"] == "Pod" else each.get("spec", {}).get("template")
        if template is not None:
            yield f"{each['kind']}/{each['metadata']['name']}", template


def containers(template: Manifest) -> list[Manifest]:
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def environment(container: Manifest, fields: Mapping[str, str]) -> dict[str, str]:
    """Expands variables like a kubelet: $(NAME) is an earlier variable, and unchanged if there is
    none.

    - `fields`: values of `fieldRef`, by path.
    """
    made: dict[str, str] = {}
    for each in container.get("env", []):
        if "valueFrom" in each:
            made[each["name"]] = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            made[each["name"]] = expand(str(each.get("value", "")), made)
    return made


def expand(words: str, known: Mapping[str, str]) -> str:
    return REFERENCE.sub(lambda match: known.get(match[1], match[0]), words)
