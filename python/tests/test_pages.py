"""Pages of docs agree with the code: the output of `why`, and the rights of roles. Their links are
valid."""

from __future__ import annotations

import inspect
import re
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
from conftest import ROOT
from recount import parse

import shardfeed as sf
from shardfeed.reports import Bottleneck
from shardfeed.testing import BINARY


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def code(path: str) -> str:
    """Returns a file's code without tests, with multi-line strings joined."""
    text = (ROOT / path).read_text().split("#[cfg(test)]\nmod ")[0]
    return re.sub(r"\\\n\s*", "", text)


def rows(text: str, header: str) -> list[list[str]]:
    """Returns the cells of the table with this header line."""
    (table,) = re.findall(rf"^{re.escape(header)}\n\|[- |]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]


TOLD = "| limit | it says | it is so when | change, the first that fits |"
KNOBS = "| knob | where | default | more of it | costs |"


def test_every_limit_has_its_row_with_the_words_of_why() -> None:
    text = code("worker/pipeline/src/limit.rs")
    (variants,) = re.findall(r"pub enum Limit \{(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    names = [re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for name in re.findall(r"^    (\w+),$", variants, re.MULTILINE)]
    found = rows(page("PERFORMANCE.md"), TOLD)
    assert sorted(cells[0].strip("`") for cells in found) == sorted(names) == sorted(get_args(Bottleneck))
    for limit, says, _, change in found:
        words = re.findall(r'"([^"]+)"', says) + [word for word in re.findall(r'"([^"]+)"', change) if " " in word]
        assert words, limit
        for each in words:
            assert each in text, f"{limit}: {each!r}"


def test_the_knobs_are_there() -> None:
    parameters = inspect.signature(sf.Loader.__init__).parameters
    told = subprocess.run([BINARY, "worker", "start", "--help"], capture_output=True, text=True, timeout=60).stdout
    text = page("PERFORMANCE.md")
    assert set(re.findall(r"`(\w+)=", text)) <= set(parameters)
    for cells in rows(text, KNOBS):
        assert all(f"{flag} <" in told for flag in re.findall(r"`(--[a-z-]+)`", cells[1])), cells
    defaults = {"shuffle_window": 10_000, "interleave": None, "block_length": 1, "cache_bytes": 0, "prefetch": None}
    assert {name: parameters[name].default for name in defaults} == defaults


def test_links_lead_somewhere() -> None:
    pages = [path for folder in (".", "docs", "deploy", "examples") for path in (ROOT / folder).glob("*.md")]
    for path in pages:
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            if link.startswith(("http:", "https:")):
                continue
            file, _, anchor = link.partition("#")
            to = path.parent / file if file else path
            assert to.exists(), f"{path.name}: {link}"
            titles = re.findall(r"^#+ (.*)$", to.read_text(), re.MULTILINE) if anchor else []
            found = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert not anchor or anchor in found, f"{path.name}: {link}"


def test_a_context_that_is_set_is_used() -> None:
    """Setting a context does not select it, so later commands on a page would use another
    coordinator."""
    found = 0
    for path in (path for folder in (".", "docs", "deploy", "examples") for path in (ROOT / folder).glob("*.md")):
        for block in re.findall(r"^```\w*\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL):
            for shown in re.finditer(r"^ *shardfeed context set ([\w-]+) ", block, re.MULTILINE):
                found += 1
                used = re.compile(rf"^ *shardfeed context use {re.escape(shown[1])}$", re.MULTILINE)
                assert used.search(block, shown.end()), f"{path.name}: {shown[0]}"
    assert found >= 2


def test_every_page_is_in_the_contents() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= set(re.findall(r"\(([A-Z_]+\.md)\)", page("README.md")))


#: Words on the page for the functions of the table.
REACHES = {"Any": "allowed", "Job": "that job", "Whole": "refused"}
ROLES = "| call | for | with a token for some jobs |"


def test_the_table_of_roles_is_the_one_that_is_asked() -> None:
    text = code("coordinator/server/src/rpc/rights.rs")
    groups = {name: set(re.findall(r"\w+", roles.lower())) for name, roles in re.findall(r"^const (\w+): &\[Role\] = &\[(.*?)\];", text, re.MULTILINE)}
    (table,) = re.findall(r"^calls! \{(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    asked: dict[str, tuple[frozenset[str], str]] = {}
    for call, group, reach in re.findall(r"^    (\w+): +(\w+), +(\w+), +\w+, +\w+;$", table, re.MULTILINE):
        asked[call] = (frozenset(groups[group]), REACHES[reach])
    # Every row was read; `rights.rs` itself tests that every call of the protocol has one.
    assert len(asked) == table.count(";")
    among_nodes = {call for call, (roles, _) in asked.items() if roles == {"coordinator"}}
    text = page("OPERATIONS.md")
    (sentence,) = re.findall(r"^What coordinators ask of each other \((.*?)\) is for the role coordinator", text, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == among_nodes
    found = {call.strip("`"): (frozenset(roles.split(", ")), reach) for call, roles, reach in rows(text, ROLES)}
    # For any role: the join token is verified, not its bearer.
    assert found.pop("ExchangeAccess") == (frozenset({"any bearer of a join token"}), "allowed")
    exchanged, _ = asked.pop("ExchangeAccess")
    assert exchanged == groups["ALL"]
    assert found == {call: told for call, told in asked.items() if call not in among_nodes}


def test_the_ledger_on_the_page_is_the_one_that_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDFEED_LEDGER", "")  # The page sets it; this restores it.
    (section,) = re.findall(r"^## Ledger\n(.*?)^## ", page("GUARANTEES.md"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        exec(block, names)
    shown = re.findall(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert shown == [(tmp_path / folder / "rank-0").read_text() for folder in ("ledger", "packs")]
    entries = [line for text in shown for line in text.splitlines() if line[0].isdigit()]
    parsed = [names["parse"](line) for line in entries]
    assert parsed[5] == ([0, 0, 1, 1], "-", 0, "b.tfrecord", [1, 2, 0, 0, 1], "1")
    assert [one[1:] for one in parsed if one[-1] == "pad"][0] == ("-", 0, "a.tfrecord", [0, 0, 0, 0, 1], "pad")
    # Against the parser of the recount.
    for line, (batch, source, source_epoch, path, part, mark) in zip(entries, parsed, strict=True):
        assert parse(line) == (*batch, None if source == "-" else source, source_epoch, path, *part, mark)
    assert names["parse"]("0 0 0 1 - 0 x/b 100%25.tfrecord 0 1 0 0 1 skip")[3] == "x/b 100%.tfrecord"
