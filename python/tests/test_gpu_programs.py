"""Programs to run first on a machine with a GPU (bench/gpu), on the stand-in for its driver.

Verifies that they run, and how they report goals that were not measured. Their numbers are
meaningless here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import on_standin
import pytest

import shardfeed as sf

pytestmark = pytest.mark.embedded_only

SMALL = ("--rows", "2", "--gigabytes", "0.01")


def has(module: str) -> bool:
    """True if the module is installed, which then makes its own claims about GPUs."""
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode == 0


def runs(tmp_path: Path, standin: Path, program: str, *arguments: str) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    report = tmp_path / "report.json"
    command = [sys.executable, on_standin.ROOT / "bench/gpu" / program, *arguments]
    env = os.environ | on_standin.environment(standin, report)
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert "Traceback" not in ended.stderr, ended.stderr
    assert json.loads(report.read_text())["violation"] == "", ended.stderr
    return json.loads(ended.stdout), ended


def test_the_probe_looks_at_everything_that_needs_no_framework(tmp_path: Path, standin: Path) -> None:
    found, ended = runs(tmp_path, standin, "probe.py", "--megabytes", "64")
    assert ended.returncode == 0, ended.stderr
    assert found["is_standin"] and "these numbers mean nothing" in ended.stderr
    assert found["shardfeed"] == sf.__version__
    assert found["device"]["name"] == "stand-in 0" and found["device"]["uuid"] == f"GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}"
    assert found["rates"]["as_expected"] and found["rates"]["registered_bytes_per_s"] > 0
    assert found["registration"]["register_s_per_gb_batches_of_32MiB"] > 0
    assert found["second_context"]["bytes"] == 0
    assert found["own"] == {"pageable_batches": 0, "values": [0.0, 1.0, 2.0, 3.0], "as_expected": True}
    for name, module in (("torch_streams", "torch"), ("overlap", "torch"), ("jax_streams", "jax")):
        if not has(module):
            assert found[name] == {"not_shown": f"{module} is not installed"}
            assert f"not shown: {name}: {module} is not installed" in ended.stderr


def test_goals_that_nothing_was_seen_of_are_not_met(tmp_path: Path, standin: Path) -> None:
    found, ended = runs(tmp_path, standin, "run.py", *SMALL)
    goals = found["goals"]
    assert set(goals.values()) <= {"met", "missed", "not shown"}
    # These were not requested, and the stand-in's kernels are not timed.
    assert [goals[name] for name in ("changed", "nothing_left", "kills")] == ["not shown"] * 3
    assert (goals["kernels_agree"], goals["memory"]) == ("met", "met")
    assert found["filled_bytes_per_s"] > 0
    assert "not shown: " in ended.stderr
    assert ended.returncode == (1 if "missed" in goals.values() else 0)


def test_what_is_left_by_batches_and_kills_is_a_goal_if_it_is_asked_for(tmp_path: Path, standin: Path) -> None:
    found, _ = runs(tmp_path, standin, "run.py", *SMALL, "--batches", "50", "--kills", "2")
    assert (found["goals"]["nothing_left"], found["goals"]["kills"]) == ("met", "met"), found


@pytest.mark.parametrize(
    ("pinned", "host", "filled", "said"),
    [
        (100.0, 200.0, None, "missed"),
        (100.0, 50.0, None, "not shown"),
        (100.0, 50.0, 80.0, "not shown"),
        (100.0, 50.0, 96.0, "met"),
    ],
)
def test_a_rate_says_nothing_of_a_bus_that_reading_did_not_fill(
    monkeypatch: pytest.MonkeyPatch, pinned: float, host: float, filled: float | None, said: str
) -> None:
    monkeypatch.syspath_prepend(str(on_standin.ROOT / "bench/gpu"))
    import run

    found = {
        "pinned_bytes_per_s": pinned, "host_bytes_per_s": host, "device_bytes_per_s": 49.0, "filled_bytes_per_s": filled,
        "device_bytes_taken": 0, "device_slot_bytes": 0, "wait": 0.0, "ready_us": 1.0,
    }  # fmt: skip
    goals = run.goals(found)
    assert goals["bus"] == said
    assert goals["rate"] == ("met" if host == 50.0 else "missed")
