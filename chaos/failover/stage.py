"""Common parts of all fault runs: a working folder, signal handling, and the final line."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from cluster import Ending

import shardfeed as sf
from shardfeed.testing import BINARY, FailedError

#: Errors of a fault run, the loader, the recount and the system; all others are bugs and keep their
#: traceback.
KNOWN_ERRORS = (FailedError, sf.ShardfeedError, ValueError, OSError, subprocess.SubprocessError)


def say(line: str) -> None:
    print(line, flush=True)


def perform(name: str, play: Callable[[Path], str]) -> int:
    """Calls `play` with an empty folder and prints the last line: its result or `name: FAILED ...`.

    Returns the exit status. After a failure the folder is kept for diagnosis."""
    if not BINARY.exists():
        say(f"{name}: FAILED {BINARY} is missing; `make build` makes it")
        return 1
    Ending.on_signals()
    # The caller's cluster must not be used.
    for variable in [each for each in os.environ if each.startswith("SHARDFEED_")]:
        del os.environ[variable]
    work = Path(tempfile.mkdtemp(prefix=f"shardfeed-{name}-"))
    os.environ["SHARDFEED_CACHE_DIR"] = str(work / "cache")
    try:
        last_line = play(work)
    except KNOWN_ERRORS as error:
        say(f"{name}: FAILED {error} (files are in {work})")
        return 1
    except SystemExit:
        shutil.rmtree(work)
        say(f"{name}: FAILED interrupted")
        raise
    shutil.rmtree(work)
    say(last_line)
    return 0
