"""Scripts of the build for libjpeg-turbo: their output, and the effect of JPEG_SIMD=off."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

IMAGE = Path(__file__).resolve().parents[2] / "worker/image"

needs_nasm = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64", "i686"), reason="its SIMD needs no nasm")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The scripts in a checkout without builds, and `bin`, the entire PATH: no nasm, no apt-get."""
    made, commands = tmp_path / "worker/image", tmp_path / "bin"
    made.mkdir(parents=True)
    commands.mkdir()
    for script in ("nasm.sh", "cmake.sh"):
        shutil.copy(IMAGE / script, made)
    for name in ("sh", "uname", "dirname", "cat", "rm"):
        found = shutil.which(name)
        assert found is not None
        (commands / name).symlink_to(found)
    return tmp_path


def command(checkout: Path, name: str, text: str) -> None:
    path = checkout / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run(checkout: Path, *line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "worker/image" / line[0], *line[1:]], capture_output=True, text=True, timeout=60,
        env={"PATH": str(checkout / "bin"), **variables},
    )  # fmt: skip


@needs_nasm
@pytest.mark.parametrize("way_to_fetch", ["none", "no network"])
def test_without_nasm_a_build_stops_with_the_line_to_type(checkout: Path, way_to_fetch: str) -> None:
    if way_to_fetch == "no network":
        (checkout / "bin/mkdir").symlink_to(shutil.which("mkdir") or "")
        command(checkout, "apt-get", 'echo "E: Temporary failure resolving deb.debian.org" >&2; exit 100')
    done = run(checkout, "nasm.sh", "--fetch")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: nasm is missing" in done.stderr
    assert "\n  sudo apt install nasm " in done.stderr and "\n  JPEG_SIMD=off make build " in done.stderr
    assert ("Temporary failure resolving" in done.stderr) == (way_to_fetch == "no network")
    assert not (checkout / "target/tools").exists(), "nothing half-made is left"


@needs_nasm
def test_the_cmake_of_a_build_without_nasm_stops_too(checkout: Path) -> None:
    command(checkout, "cmake", 'echo "$@"')
    done = run(checkout, "cmake.sh", "source")
    assert (done.returncode, done.stdout) == (1, "")
    assert "\n  JPEG_SIMD=off make build " in done.stderr


def test_jpeg_simd_off_needs_no_nasm_and_compiles_without(checkout: Path) -> None:
    command(checkout, "cmake", 'echo "$@"')
    nasm = run(checkout, "nasm.sh", "--fetch", JPEG_SIMD="off")
    assert (nasm.returncode, nasm.stdout, nasm.stderr) == (0, "", "")
    done = run(checkout, "cmake.sh", "source", JPEG_SIMD="off")
    assert (done.returncode, done.stdout) == (0, "source -DWITH_SIMD=0 -DREQUIRE_SIMD=0\n"), done.stderr


def test_with_nasm_it_is_compiled_with_simd_or_not_at_all(checkout: Path) -> None:
    command(checkout, "cmake", 'echo "$ASM_NASM $@"')
    command(checkout, "nasm", "exit 1")
    done = run(checkout, "cmake.sh", "source")
    nasm = checkout / "bin/nasm" if platform.machine() in ("x86_64", "AMD64", "i686") else ""
    assert (done.returncode, done.stdout) == (0, f"{nasm} source -DWITH_SIMD=1 -DREQUIRE_SIMD=1\n"), done.stderr
