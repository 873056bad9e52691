"""Builds one wheel with the package and the command, and tests it in a new environment.

Run by `make wheel`. maturin builds wheels of an extension module or of a command, not of both; the
command is added to the first as a script, which pip installs beside the interpreter.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

TRIAL = """
import subprocess, sys, tempfile, os
import shardfeed as sf

folder = tempfile.mkdtemp()
os.environ["SHARDFEED_CACHE_DIR"] = folder + "/cache"
with sf.TFRecordWriter(folder + "/data.tfrecord") as writer:
    for number in range(10):
        writer.write(bytes([number]))
records = [record for batch in sf.Loader(folder + "/data.tfrecord", batch_size=2) for record in batch["record"]]
assert len(records) == 10, records
command = os.path.join(os.path.dirname(sys.executable), "shardfeed")
said = subprocess.run([command, "--version"], check=True, capture_output=True, text=True).stdout
assert said == f"shardfeed {sf.__version__}\\n", said
told = subprocess.run([command, "dataset", "inspect", "-o", "json", folder + "/data.tfrecord"], check=True, capture_output=True)
assert b'"records": 10' in told.stdout, told.stdout
print("tried:", said.strip())
"""


def run(*words: str | Path, env: dict[str, str] | None = None) -> None:
    subprocess.run([str(word) for word in words], check=True, env=env)


def glibc_of(file: Path) -> tuple[int, int]:
    """Returns the newest glibc version that a program requires."""
    found = re.findall(rb"GLIBC_(\d+)\.(\d+)", file.read_bytes())
    return max((int(major), int(minor)) for major, minor in found)


def tag_of(wheel: Path, glibc: tuple[int, int]) -> str:
    """Returns the wheel's platform, or a newer one if the command requires it."""
    platform = wheel.stem.rsplit("-", 1)[1]
    said = re.fullmatch(r"manylinux_(\d+)_(\d+)_(.+)", platform.split(".")[0])
    if said is None or (int(said[1]), int(said[2])) >= glibc:
        return platform
    return f"manylinux_{glibc[0]}_{glibc[1]}_{said[3]}"


def add_command(wheel: Path, command: Path, out: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as scratch:
        run(sys.executable, "-m", "wheel", "unpack", "--dest", scratch, wheel)
        (folder,) = Path(scratch).iterdir()
        scripts = folder / f"{folder.name}.data/scripts"
        scripts.mkdir(parents=True)
        stripped = shutil.which("strip")
        shutil.copy2(command, scripts / "shardfeed")
        if stripped:
            run(stripped, scripts / "shardfeed")
        platform = tag_of(wheel, glibc_of(command))
        (info,) = folder.glob("*.dist-info/WHEEL")
        info.write_text(re.sub(r"(?m)^(Tag: [^-]+-[^-]+-).+$", rf"\g<1>{platform}", info.read_text()))
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        run(sys.executable, "-m", "wheel", "pack", "--dest-dir", out, folder)
    (made,) = out.glob("*.whl")
    return made


def try_out(wheel: Path) -> None:
    """Installs the wheel in an empty environment, and uses both parts."""
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as scratch:
        venv.create(scratch, with_pip=True)
        python = Path(scratch) / "bin/python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SHARDFEED_"))}
        run(python, "-c", TRIAL, env=env)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, help="wheel that maturin made")
    parser.add_argument("command", type=Path, help="the command")
    parser.add_argument("--out", type=Path, default=ROOT / "target/wheels", help="folder of the result")
    args = parser.parse_args(arguments)
    made = add_command(args.wheel, args.command, args.out)
    try_out(made)
    print(f"{made} ({made.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
