"""Each example of docs/FRAMEWORKS.md as a separate script, where its framework is installed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import mixed
import pytest

TEXT = (Path(__file__).resolve().parents[3] / "docs/FRAMEWORKS.md").read_text()
NEEDS = {"PyTorch": "torch", "JAX": "jax", "TensorFlow": "tensorflow"}


def blocks(section: str) -> list[str]:
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


INSTALLED = [name for name, module in NEEDS.items() if importlib.util.find_spec(module)]
#: Of "A loader", the function over each batch needs no framework.
HERE = [("A loader", 2), *((name, at) for name in INSTALLED for at in range(len(blocks(name))))]


def test_all_examples_belong_to_a_framework() -> None:
    others = len(blocks("A loader")), len(blocks("Tests of a training"))
    assert others == (3, 1) and INSTALLED
    assert TEXT.count("```python") == sum(others) + sum(len(blocks(name)) for name in NEEDS)


@pytest.mark.parametrize(("section", "at"), HERE)
def test_an_example(section: str, at: int, tmp_path: Path) -> None:
    mixed.write(tmp_path / "data")
    code = blocks("A loader")[0] + "\n" + blocks(section)[at]
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:__main__", "-c", code], cwd=tmp_path, capture_output=True, text=True,
        timeout=240, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, f"{code}\n{done.stderr[-4000:]}"
