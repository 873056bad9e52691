"""Verifies that the files of deploy/config list every option with the command's default."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command import DEPLOY, ask, shardfeed

PROCESSES = ["coordinator", "worker"]
#: Options that a worker derives from its host; the value differs, so the file describes its source.
OF_THE_HOST = {"worker": {"socket", "name", "memory-budget"}, "coordinator": set[str]()}
#: Options without a default.
REQUIRED = {"worker": {"coordinator"}, "coordinator": {"data-dir"}}

OPTION = re.compile(r"(#?)([a-z][a-z-]*) = (.+)")


class Line(NamedTuple):
    """An option in a file."""

    is_set: bool
    value: Any
    #: The comment before it, in one line.
    comment: str


def lines(process: str) -> dict[str, Line]:
    found: dict[str, Line] = {}
    comment: list[str] = []
    for text in file(process).read_text().splitlines():
        option = OPTION.fullmatch(text)
        if option is None:
            comment = [*comment, text.removeprefix("#").strip()] if text.startswith("#") else []
            continue
        mark, name, value = option.groups()
        assert name not in found, f"{name} is listed twice"
        found[name] = Line(mark == "", tomllib.loads(f"it = {value}")["it"], "\n".join(comment))
    return found


def file(process: str) -> Path:
    return DEPLOY / f"config/{process}.toml"


def shown(process: str, *files: Path) -> dict[str, dict[str, Any]]:
    options = ask("config", "show", process, *files, "--origin")["options"]
    return {option["option"]: option for option in options}


@pytest.mark.parametrize("process", PROCESSES)
def test_every_option_stands_there_with_its_default(process: str) -> None:
    options, written = shown(process), lines(process)
    assert set(written) == set(options)
    for name, option in options.items():
        if name in REQUIRED[process]:
            continue
        line = written[name]
        if option["value"] is None:
            assert f"Default: {option['default']}" in line.comment.splitlines(), name
        elif name in OF_THE_HOST[process]:
            assert f"[default: {default(line)}]" in help_of(process), name
        else:
            assert line.value == option["value"], name
            assert "Default:" not in line.comment, f"{name}: the value says it"


@pytest.mark.parametrize("process", PROCESSES)
def test_as_it_is_the_file_sets_what_has_no_default_and_nothing_else(process: str) -> None:
    shardfeed("config", "validate", process, file(process))
    origins = {name: option["origin"] for name, option in shown(process, file(process)).items()}
    assert {name for name, origin in origins.items() if origin != "default"} == REQUIRED[process]
    assert {name for name, line in lines(process).items() if line.is_set} == REQUIRED[process]


@pytest.mark.parametrize("process", PROCESSES)
def test_each_line_is_understood_without_its_mark(process: str, tmp_path: Path) -> None:
    whole = tmp_path / f"{process}.toml"
    whole.write_text(unmarked(file(process).read_text()))
    shardfeed("config", "validate", process, whole)
    assert {option["origin"] for option in shown(process, whole).values()} == {"file"}


def unmarked(text: str) -> str:
    return re.sub(r"^#(?=[a-z][a-z-]* = )", "", text, flags=re.MULTILINE)


def default(line: Line) -> str:
    words = [text.removeprefix("Default: ") for text in line.comment.splitlines() if text.startswith("Default: ")]
    assert len(words) == 1, line.comment
    return words[0]


def help_of(process: str) -> str:
    return " ".join(shardfeed(process, "start", "--help").split())
