"""Executes docs/GETTING_STARTED.md: its files and commands, in order, in one folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from shardfeed.testing import BINARY, DEADLINE_S, Cluster

PAGE = (ROOT / "docs/GETTING_STARTED.md").read_text()

#: Replaced by the test, which has a build and uses free ports.
OTHERWISE = ("shardfeed coordinator start", "shardfeed worker start", "export SHARDFEED_COORDINATOR")


def blocks(title: str, language: str = "") -> list[str]:
    """Returns the blocks of a section in a language; command blocks have none."""
    (section,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [text for named, text in found if named == language]


def test_everything_on_the_page_runs(tmp_path: Path) -> None:
    folder = tmp_path / "first"
    folder.mkdir()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (tmp_path / "bin/python").chmod(0o755)
    (tmp_path / "bin/shardfeed").symlink_to(BINARY)
    env = dict(os.environ) | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}

    def run(title: str) -> str:
        said = ""
        for block in blocks(title):
            lines = [line for line in block.splitlines() if not line.startswith(OTHERWISE)]
            done = subprocess.run(
                ["bash", "-e", "-c", "\n".join(lines)], cwd=folder, env=env, text=True, timeout=8 * DEADLINE_S,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert done.returncode == 0, f"{block}{done.stdout}"
            said += done.stdout
        return said

    (folder / "write.py").write_text(*blocks("2. A dataset", "python"))
    (train,) = blocks("3. A training, in one process", "python")
    assert train.count("time.sleep(0.02)") == 1
    (folder / "train.py").write_text(train.replace("time.sleep(0.02)", "pass"))
    assert "10,000" in run("2. A dataset")
    alone = run("3. A training, in one process")
    assert len(alone.splitlines()) == 12 and alone.endswith("% right\n"), alone
    with Cluster(tmp_path / "cluster") as running:
        env |= running.variables("") | {"SHARDFEED_RUN_ID": "first"}
        assert run("4. The same training, in a cluster") == alone
        shown = run("5. Look at it")
        assert "sealed" in shown, shown
        # The columns on the page are those in the command's output.
        assert all(column in shown for column in ("DELIVERED", "LOST", "DUPLICATED", "TOOK")), shown
        epochs = running.ask("epoch", "list", "--job", "first")["epochs"]
        sealed = [each for each in epochs if each["state"] == "sealed"]
        counts = {each["epoch"]: (each["delivered"], each["lost"], each["duplicated"]) for each in sealed}
        assert counts == dict.fromkeys(range(3), (10_000, 0, 0))
        assert "ended" in run("6. Two ranks")


@pytest.mark.parametrize("process", ["coordinator", "worker"])
def test_the_processes_have_the_options_of_the_page(process: str) -> None:
    (line,) = re.findall(rf"^shardfeed {process} start (.*)$", PAGE, re.MULTILINE)
    told = subprocess.run([BINARY, process, "start", "--help"], capture_output=True, text=True, timeout=60).stdout
    flags = re.findall(r"--[a-z-]+", line.split("#")[0])
    assert flags and all(f"{flag} <" in told for flag in flags)
