"""Images of deploy/docker, built without a registry, and their containers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import roots
from command import DEPLOY, run

PROJECT = "shardfeed-test"
BASE = f"{PROJECT}/base:{roots.SUITE}"
IMAGES = {"shardfeed": f"{PROJECT}/shardfeed", "trainer": f"{PROJECT}/trainer"}


def build_images() -> None:
    """Builds the images from a Debian by debootstrap, which is kept for later runs."""
    roots.need("docker")
    if subprocess.run(["docker", "image", "inspect", BASE], capture_output=True).returncode:
        with subprocess.Popen(["tar", "-C", roots.root("base"), "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(["docker", "import", "-", BASE], stdin=tar.stdout, check=True)
    context, bases = roots.context(), ["--build-arg", f"BASE={BASE}", "--build-arg", f"TRAINER_BASE={BASE}"]
    for target, image in IMAGES.items():
        file = DEPLOY / "docker/Dockerfile"
        run(["docker", "build", "--target", target, "--tag", image, *bases, "--file", file, context], 300)


def remove_images() -> None:
    run(["docker", "image", "rm", *IMAGES.values()])


class Container:
    """A container, which is removed when this object is closed."""

    def __init__(self, name: str, options: Sequence[str], image: str, arguments: Sequence[str]) -> None:
        self.name = f"{PROJECT}-{name}"
        self._command = ["docker", "run", "--detach", "--name", self.name, *options, image, *arguments]

    def __enter__(self) -> Container:
        subprocess.run(["docker", "rm", "--force", "--volumes", self.name], capture_output=True)
        run(self._command)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run(["docker", "rm", "--force", "--volumes", self.name])

    @property
    def state(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(run(["docker", "inspect", self.name]))
        state: dict[str, Any] = found[0]["State"]
        return state

    @property
    def address(self) -> str:
        """Its address as seen by the host."""
        found = json.loads(run(["docker", "inspect", self.name]))
        (network,) = found[0]["NetworkSettings"]["Networks"].values()
        return str(network["IPAddress"])

    def execute(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["docker", "exec", self.name, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def log(self) -> str:
        done = subprocess.run(["docker", "logs", self.name], capture_output=True, text=True)
        return done.stdout + done.stderr

    def stop(self, seconds: int) -> int:
        """Stops it like a kubelet at the end of a pod; returns the exit status."""
        run(["docker", "stop", "--time", str(seconds), self.name])
        return int(self.state["ExitCode"])
