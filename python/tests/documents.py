"""Real documents of very different lengths that every host with Python has: the functions and methods of its library."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


def documents(pattern: str = "*.py", library: str | Path = sysconfig.get_path("stdlib")) -> list[bytes]:
    """Returns the functions and methods of the modules of a pattern, each with the lines that follow it."""
    modules = [path for path in sorted(Path(library).glob(pattern)) if not LEFT_OUT & {*path.relative_to(library).parts}]
    texts = [re.split(rb"\n(?= {0,4}(?:async )?def |class )", path.read_bytes()) for path in modules]
    return [text for of_module in texts for text in of_module if text]
