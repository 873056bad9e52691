"""Runs the frameworks' tests, each group in its own environment, which is created if missing.

    python python/tests/frameworks/run.py target/frameworks               # all
    python python/tests/frameworks/run.py target/frameworks torch -k dcp  # one, with options for pytest
    PYTHON=python3.13 python python/tests/frameworks/run.py target/frameworks  # under another interpreter

With PYTHONPATH and SHARDFEED_BINARY of the Makefile's ON_DEV they use the module and the command of
`make dev`.

Fails if a test fails, or is skipped without being in allowed_skips.txt.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[1]

#: Environment, named after its requirement file -> its tests. docs/FRAMEWORKS.md's examples run in
#: all.
GROUPS = {
    "torch": [
        "test_torch_output.py", "test_torch_dataset.py", "test_torch_ranks.py", "test_lightning.py", "test_accelerate.py",
        "test_huggingface.py", "test_batches_torch.py", "test_interrupts_torch.py", "test_training_torch.py",
        "test_color_jitter.py",
    ],
    "jax": [
        "test_jax_output.py", "test_jax_global.py", "test_jax_ranks.py", "test_grain.py", "test_samples_grain.py",
        "test_training_jax.py",
    ],
    "tensorflow": [
        "test_tf_output.py", "test_tf_dataset.py", "test_tf_features.py", "test_tf_workers.py", "test_tfds.py", "test_keras.py",
        "test_samples_tf.py", "test_interrupts_tf.py", "test_training_keras.py",
    ],
}  # fmt: skip
IN_ALL = ["test_examples.py"]


def version(python: str) -> str:
    """Returns the version of an interpreter, such as 3.13."""
    asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def environment(home: Path, name: str) -> Path:
    """Returns an environment's Python, with exactly the packages of its requirement file.

    Each version of Python has its own environment.
    """
    requirements = HERE / f"{name}.txt"
    python = os.environ.get("PYTHON") or sys.executable
    mine, other = version(sys.executable), version(python)
    folder = home / (name if mine == other else f"{name}-{other}")
    interpreter, mark = folder / "bin/python", folder / ".installed"
    asked = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if mark.exists() and mark.read_text() == asked:
        return interpreter
    print(f"installing {name} into {folder}", file=sys.stderr, flush=True)
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "-r", str(requirements)], check=True)
    mark.write_text(asked)
    return interpreter


def skipped(report: Path) -> list[str]:
    """Returns FILE::TEST of the tests that pytest skipped."""
    cases = xml.parse(report).iter("testcase")
    names = (f"{case.get('classname', '').rsplit('.', 1)[-1]}.py::{case.get('name')}" for case in cases
             if case.find("skipped") is not None)  # fmt: skip
    return sorted(names)


def run(home: Path, name: str, options: list[str]) -> bool:
    """Runs a group; returns true if all of it passed."""
    report = home / f"{name}.xml"
    files = [f"tests/frameworks/{file}" for file in (*GROUPS[name], *IN_ALL)]
    command = [str(environment(home, name)), "-m", "pytest", f"--junitxml={report}", *files, *options]
    # The package of `make build`, or the one beside another command.
    package = os.environ["PYTHONPATH"] if "SHARDFEED_BINARY" in os.environ else str(PYTHON / "python")
    paths = {"PYTHONPATH": package, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(command, cwd=PYTHON, env={**os.environ, **paths})
    allowed = {line for line in (HERE / "allowed_skips.txt").read_text().splitlines() if not line.startswith("#")}
    wrong = [test for test in skipped(report) if test not in allowed]
    for test in wrong:
        print(f"error: {test} was skipped, and is not in allowed_skips.txt", file=sys.stderr)
    return done.returncode == 0 and not wrong


def main() -> int:
    home, names, options = Path(sys.argv[1]).resolve(), sys.argv[2:], []
    begin = next((at for at, word in enumerate(names) if word.startswith("-")), len(names))
    names, options = names[:begin] or list(GROUPS), names[begin:]
    written = {file.name for file in HERE.glob("test_*.py")}
    nobody = written - {file for group in GROUPS.values() for file in group} - set(IN_ALL)
    if nobody:
        print(f"error: no environment runs {', '.join(sorted(nobody))}; add it to GROUPS", file=sys.stderr)
        return 1
    home.mkdir(parents=True, exist_ok=True)
    passed = [run(home, name, options) for name in names]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
