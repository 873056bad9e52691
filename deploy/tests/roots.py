"""Debian roots, and a folder of Python packages, for the machines and containers of these tests."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from command import BINARY, DEPLOY, HOME, run

#: The command was built on a host with this C library or an older one.
SUITE = "bookworm"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
#: Packages of each root in addition to a minimal Debian.
PACKAGES = {
    "base": ["ca-certificates", "python3-minimal", "python3"],
    "systemd": ["systemd", "systemd-sysv", "dbus", "python3-minimal", "python3"],
}
#: Takes two minutes with a nearby mirror.
DEBOOTSTRAP_S = 900.0


def need(*programs: str) -> None:
    """Verifies root's rights and programs: these tests create machines, and no part can be
    skipped."""
    assert os.geteuid() == 0, "these tests make namespaces, mounts and containers: run them as root"
    missing = [program for program in programs if shutil.which(program) is None]
    assert not missing, f"missing: {', '.join(missing)}; deploy/README.md says which packages have them"


def root(name: str) -> Path:
    """Returns a Debian root, which must not be changed; it is created once."""
    folder = HOME / "roots" / name
    if not folder.exists():
        need("debootstrap")
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        packages = ",".join(PACKAGES[name])
        command = ["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(part), MIRROR]
        run(command, DEBOOTSTRAP_S)
        part.rename(folder)
    return folder


def context() -> Path:
    """Returns the folder made by deploy/docker/context.sh: command, packages, examples."""
    variables = {"SHARDFEED_BINARY": str(BINARY), "PYTHON": sys.executable}
    folder = run([DEPLOY / "docker/context.sh", HOME / "context"], 300, env=os.environ | variables)
    return Path(folder.strip())


def packages() -> Path:
    """Returns a folder with numpy, and shardfeed from `make build`, for the Python of the roots."""
    return context() / "packages"
