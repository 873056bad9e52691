"""Debian roots, and a folder of Python packages, for the machines and containers of these tests."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from command import BINARY, DEPLOY, HOME, run

#: The command was built on a host with this C library, or an older one.
SUITE = "bookworm"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
#: What each root has besides a minimal Debian.
PACKAGES = {
    "base": ["ca-certificates", "python3-minimal", "python3"],
    "systemd": ["systemd", "systemd-sysv", "dbus", "python3-minimal", "python3"],
}
#: Two minutes where the mirror is near.
DEBOOTSTRAP_S = 900.0


def need(*programs: str) -> None:
    """These tests make machines of their own: no part of them can be left out."""
    assert os.geteuid() == 0, "these tests make namespaces, mounts and containers: run them as root"
    missing = [program for program in programs if shutil.which(program) is None]
    assert not missing, f"missing: {', '.join(missing)}; deploy/README.md says which packages have them"


def root(name: str) -> Path:
    """A Debian root that nobody changes; it is made once."""
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
    """What deploy/docker/context.sh puts together: command, packages, examples."""
    variables = {"SHARDFEED_BINARY": str(BINARY), "PYTHON": sys.executable}
    folder = run([DEPLOY / "docker/context.sh", HOME / "context"], 300, env=os.environ | variables)
    return Path(folder.strip())


def packages() -> Path:
    """numpy, and shardfeed as `make build` left it, for the Python of the roots."""
    return context() / "packages"
