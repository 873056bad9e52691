"""The deployed command, and shared code of the tests in this folder."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
#: Roots, images and folders of these tests; ignored by git.
HOME = ROOT / "target/deploy"
BINARY = Path(os.environ.get("SHARDFEED_BINARY", ROOT / "target/release/shardfeed"))

#: Upper bound for a single command.
COMMAND_S = 120.0


def plain_environment() -> dict[str, str]:
    """Returns the environment without the user's variables for shardfeed."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SHARDFEED_")}


def run(
    arguments: Sequence[str | Path], seconds: float = COMMAND_S, env: dict[str, str] | None = None
) -> str:
    """Returns the output of a command; it must succeed."""
    words = " ".join(map(str, arguments))
    done = subprocess.run(
        [str(argument) for argument in arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        env=env,
    )
    assert done.returncode == 0, f"{words}: exit {done.returncode}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def shardfeed(*arguments: str | Path) -> str:
    """Returns the output of the deployed command, on this host."""
    assert BINARY.exists(), f"{BINARY} is missing: `make build` makes it"
    return run([BINARY, *arguments], env=plain_environment())


def ask(*arguments: str | Path) -> Any:
    """Returns the parsed JSON output of the deployed command."""
    return json.loads(shardfeed(*arguments, "-o", "json"))


def until(look: Callable[[], T], what: str, seconds: float) -> T:
    """Calls `look` repeatedly until it returns something; returns that."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        pause.wait(0.2)
