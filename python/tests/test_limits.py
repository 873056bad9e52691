"""The bounds in docs/GUARANTEES.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from conftest import ROOT

FOLDERS = ("common", "proto", "coordinator", "worker", "tools", "cli")

#: Units after a number, in bytes or seconds.
UNITS = {
    "": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "ms": 0.001, "s": 1, "min": 60, "h": 3_600, "days": 86_400,
}  # fmt: skip
#: Units of plain numbers in the code, by the end of their names.
CODE_UNITS = {"_MS": 0.001, "_DAYS": 86_400, "_SECONDS": 1}


class Bound(NamedTuple):
    """A row of the page."""

    said: str
    file: str
    constant: str


def bounds() -> list[Bound]:
    page = (ROOT / "docs/GUARANTEES.md").read_text()
    return [Bound(*found) for found in re.findall(r"\| ([^|]+) \| `([a-z_/]+\.rs)` `(\w+)` \|$", page, re.MULTILINE)]


def value(said: str) -> float:
    number, _, unit = said.replace(",", "").partition(" ")
    return float(number) * UNITS[unit]


def path_of(end: str) -> Path:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.rs") if str(path).endswith(f"/{end}")]
    assert len(found) == 1, f"{end}: {found}"
    return found[0]


def in_the_code(bound: Bound) -> float:
    """Returns the value of a constant, the default of an option, or the only value of a field."""
    code, name = path_of(bound.file).read_text(), bound.constant
    patterns = (
        rf"const {name}: [\w:]+ = ([^;]+);",
        rf"fn {name}\(\) -> u64 \{{\s*([^}}]+?)\s*\}}",
        rf'default = "number::<(?:\{{ )?([\d_< ]+?)(?: \}})?>"\)\]\s*pub {name}: u64,',
        rf"^\s*{name}: (\d[^,]*),$",
    )
    for pattern in patterns:
        found = {text.strip() for text in re.findall(pattern, code, re.MULTILINE)} - {"0"}
        if found:
            assert len(found) == 1, f"{name}: {found}"
            return worth(found.pop(), name.upper())
    raise AssertionError(f"{bound.file} has no {name}")


def worth(text: str, name: str) -> float:
    scale = next((unit for end, unit in CODE_UNITS.items() if name.endswith(end)), 1)
    timed = re.fullmatch(r"Duration::from_(secs|millis)\((.+)\)", text)
    if timed:
        text, scale = timed[2], {"secs": 1, "millis": 0.001}[timed[1]]
    assert re.fullmatch(r"[0-9_<* .]+", text), f"{name} = {text}"
    return float(eval(text)) * scale  # Numbers, products and shifts only.


def test_every_bound_is_that_of_the_code() -> None:
    rows = bounds()
    assert len(rows) > 50
    wrong = {bound.constant: (bound.said, in_the_code(bound)) for bound in rows if value(bound.said) != in_the_code(bound)}
    assert not wrong, wrong


def test_every_row_names_its_constant() -> None:
    page = (ROOT / "docs/GUARANTEES.md").read_text()
    tables = re.findall(r"^\|.*in the code \|\n\|.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    rows = [line for table in tables for line in table.splitlines() if "](OPERATIONS.md#limits)" not in line]
    assert len(tables) == 6 and len(rows) == len(bounds())
