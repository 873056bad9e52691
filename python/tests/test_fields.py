"""docs/FIELDS.md has every field that the commands print, with its type and description."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from conftest import ROOT, make_dataset
from field_tables import cells_of, current, table_of
from test_security import Secure

import shardfeed as sf
from shardfeed.testing import BINARY, Cluster, until

IDS: dict[str, Any] = {"id": sf.FixedLenFeature((), "int64")}

PAGE = ROOT / "docs/FIELDS.md"

#: Sources of which commands print more fields than of files.
SOURCES_OF_A_MODULE = """
import shardfeed as sf

lists = sf.source({files!r}, {{"list": sf.VarLenFeature("int64")}})
packs = lists.pack("list", length=4).balance("sum_squares")
rows = lists.unbatch("list")
windows = sf.source({files!r}, {{"id": sf.FixedLenFeature((), "int64")}}).window(size=4)
mixture = sf.mix({{"a": (lists, 1), "b": (lists.filter("len(list) > 1"), 2)}}, epoch=40)
"""

LINK = re.compile(r"\[([a-z-]+)\]\(#\1\)")
NAME = re.compile(r"`([a-z_]+)`")


class Field(NamedTuple):
    """Description of a field on the page."""

    #: "integer", "number", "text", "boolean", "object", "any", or the name of a section.
    kind: str
    is_list: bool
    may_be_null: bool


def section(title: str) -> list[list[str]]:
    """Returns the cells of the first table below a title of the page."""
    return cells_of(table_of(PAGE.read_text(), title))


@cache
def fields(title: str) -> dict[str, Field]:
    """Returns the fields of an object, by path. "..." includes the fields of another object."""
    found: dict[str, Field] = {}
    for path, kind, _ in section(title):
        link = LINK.search(kind)
        if path == "...":
            assert link is not None, title
            found |= fields(link[1])
            continue
        words = kind.removesuffix(", or absent").removesuffix(" or null").removeprefix("list of ")
        name = path.strip("`")
        assert name not in found, f"{title} has {name} twice"
        found[name] = Field(link[1] if link else words, kind.startswith("list of "), " or null" in kind)
    return found


@cache
def objects() -> dict[str, str]:
    """Returns the section for the output of each command."""
    found: dict[str, str] = {}
    for commands, prints in section("Commands"):
        link = LINK.fullmatch(prints)
        assert link is not None, prints
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", commands), link[1])
    return found


SCALARS: dict[str, Any] = {"integer": int, "number": (int, float), "text": str, "boolean": bool, "object": dict, "any": object}


def wrong(value: dict[str, Any], title: str, below: str = "") -> Iterator[str]:
    """Yields the fields of an object that its section lacks or describes differently."""
    for name, found in value.items():
        path = below + name
        field = fields(title).get(path)
        if field is None:
            yield f"{title} has no `{path}`"
        elif found is None:
            if not field.may_be_null:
                yield f"{title} `{path}` is null"
        elif field.kind != "any" and isinstance(found, list) != field.is_list:
            yield f"{title} `{path}` is {found!r}"
        else:
            inside = (field.kind, "") if field.kind not in SCALARS else (title, path + ("[]." if field.is_list else "."))
            for item in found if field.is_list else [found]:
                is_odd = isinstance(item, bool) and field.kind in ("integer", "number")
                if is_odd or not isinstance(item, SCALARS.get(field.kind, dict)):
                    yield f"{title} `{path}` is {item!r}"
                elif isinstance(item, dict) and field.kind != "any":
                    yield from wrong(item, *inside)


class Asked:
    """Runs commands, and records them."""

    def __init__(self, *options: str) -> None:
        self.options, self.asked = options, set[str]()

    def __call__(self, command: str, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
        """Returns the output of a command, after comparing it with the page.

        - `command`: as named on the page; flags that select the output are also in `arguments`.
        """
        words = [word for word in command.split() if not word.startswith("-")]
        line = [str(BINARY), *words, *map(str, arguments), *self.options, "-o", "json"]
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, f"{command}: exit {done.returncode}: {done.stderr}"
        printed: dict[str, Any] = json.loads(done.stdout)
        assert list(wrong(printed, objects()[command])) == [], command
        self.asked.add(command)
        return printed


#: Not run here: they change the set of coordinators, of which this cluster has one.
OF_SEVERAL = {"cluster add", "cluster remove", "cluster transfer-leader"}
#: Run by test_dynamic.py: it needs samples in doubt.
OF_DOUBT = {"rank gone"}
#: Run by the test of the group.
OF_FILES = {
    "dataset inspect", "dataset inspect --unscanned", "dataset index", "dataset stats", "dataset verify", "dataset write", "plan show",
    "batch show", "batch show --find", "bench", "doctor", "config validate", "config show", "tls init", "tls issue", "tls rotate",
    "tls show",
}  # fmt: skip
OF_TOKENS = {
    "access create", "access list", "access revoke", "access exchange", "access whoami", "audit", "cluster snapshot save",
    "cluster snapshot restore",
}  # fmt: skip
OF_JOBS = {
    "dataset list", "dataset add", "dataset show", "dataset remove", "batch show --job", "job list", "job show", "job pause", "job resume",
    "job cancel", "job remove", "epoch list", "epoch show", "shard list", "shard history", "rank list", "worker list", "worker show",
    "worker cordon", "worker uncordon", "worker drain", "why", "trace", "status", "cluster status", "events", "context list", "health",
    "wait leader", "wait dataset", "wait worker", "wait epoch",
}  # fmt: skip


def test_every_command_of_the_page_is_asked_by_a_test() -> None:
    assert set(objects()) == OF_FILES | OF_TOKENS | OF_JOBS | OF_SEVERAL | OF_DOUBT
    assert {objects()[command] for command in OF_SEVERAL} == {objects()["cluster status"]}


def test_every_command_is_on_the_page() -> None:
    commands = re.findall(r"^#+ shardfeed (.+)$", (ROOT / "docs/CLI.md").read_text(), re.MULTILINE)
    verbs = [command for command in commands if not any(other.startswith(f"{command} ") for other in commands)]
    assert "wait epoch" in verbs and [verb for verb in verbs if f"`{verb}`" not in PAGE.read_text()] == []


def test_the_tables_are_those_of_the_types_that_commands_print() -> None:
    """With UPDATE_EXPECT=1 it writes them."""
    page = current(PAGE.read_text())
    if os.environ.get("UPDATE_EXPECT") == "1":
        PAGE.write_text(page)
    assert PAGE.read_text() == page


def in_cluster(running: Cluster) -> dict[str, Any]:
    return {"coordinator": running.address, "worker": running.socket(), "job": "train", "run": "first"}


def test_what_commands_say_of_files(tmp_path: Path) -> None:
    asked = Asked()
    dataset = make_dataset(tmp_path / "data", [30, 20, 10])
    asked("dataset inspect", dataset.pattern)
    asked("dataset inspect --unscanned", "--unscanned", dataset.pattern)
    asked("dataset stats", dataset.pattern)
    asked("dataset verify", dataset.pattern)
    folder = tmp_path / "classes"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        (folder / name / "1.jpg").write_bytes(b"not looked into")
    asked("dataset write", folder, tmp_path / "written")
    plan = ["--batch-size", "4", "--world-size", "2"]
    asked("plan show", dataset.pattern, *plan)
    asked("batch show", dataset.pattern, *plan, "--step", "0")
    (tmp_path / "sources.py").write_text(SOURCES_OF_A_MODULE.format(files=dataset.pattern))
    for source in ("packs", "rows", "windows", "mixture"):
        of_source = ["--source", f"{tmp_path}/sources.py:{source}", "--python", sys.executable]
        asked("dataset inspect", *of_source)
        asked("dataset index", *of_source[1:], "--index", tmp_path / "index")
        printed = asked("plan show", *of_source, *plan)
        assert printed["counted"] and printed["mixing"] and printed["balance" if source == "packs" else "lanes"]
        assert asked("batch show", *of_source, *plan, "--step", "0")["samples"][0]["parts"]
    asked("batch show --find", dataset.pattern, *plan, "--find", f"{dataset.file(0).name}:3")
    asked("bench", "--files", dataset.pattern, "--batch-size", "4", "--batches", "4")
    # A slow disk is a finding, with exit code 1.
    done = subprocess.run([BINARY, "doctor", "-o", "json"], capture_output=True, text=True, timeout=60)
    assert list(wrong(json.loads(done.stdout), objects()["doctor"])) == []
    asked("config validate", "worker", ROOT / "deploy/config/worker.toml")
    asked("config show", "coordinator", "--origin")
    asked("tls init", tmp_path / "pki", "--coordinator", "head")
    asked("tls issue", tmp_path / "pki", "worker", "w-1")
    asked("tls rotate", tmp_path / "pki")
    asked("tls show", tmp_path / "pki/head")
    assert asked.asked | {"doctor"} == OF_FILES
    # The output for damaged files.
    file = bytearray(dataset.file(1).read_bytes())
    file[200] ^= 1
    dataset.file(1).write_bytes(file)
    assert asked("dataset verify", dataset.pattern, code=1)["files"][1]["damage"]


def test_what_commands_say_of_jobs(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", [30, 20, 10])
    with Cluster(tmp_path / "cluster") as running:
        asked = Asked("--coordinator", running.address)
        asked("dataset add", "digits", dataset.pattern)
        asked("wait dataset", "digits")
        options = in_cluster(running)
        with sf.Loader(dataset.pattern, IDS, batch_size=4, **options) as each:
            for _ in range(2):
                for _ in each:
                    pass
            next(iter(each))
            until(lambda: "account" in asked("why", "train")["ranks"][0], "the worker reports its rank")
            for command in ("job list", "dataset list", "worker list", "status", "cluster status", "wait leader"):
                asked(command)
            asked("dataset show", "digits")
            even = sf.source(dataset="digits", features=IDS).filter("id % 2 == 0")
            with sf.Loader(even, batch_size=4, **in_cluster(running) | {"job": "even"}) as each:
                asked("dataset show", asked("job show", "even")["dataset"], "--samples")
            asked("job show", "train")
            asked("batch show --job", "--job", "train", "--step", "1")
            asked("wait epoch", "--job", "train", "--epoch", "0")
            for command in ("epoch list", "epoch show", "shard list", "rank list"):
                asked(command, "--job", "train")
            asked("shard history", "0", "--job", "train", "--epoch", "0")
            asked("worker show", "worker-0")
            asked("wait worker", "worker-0")
            asked("job pause", "train", "--reason", "a test")
            asked("why", "train")
            asked("job resume", "train")
            asked("worker cordon", "worker-0")
            asked("worker uncordon", "worker-0")
            alone = Asked()
            alone("trace", tmp_path / "trace", "--worker", running.socket(), "--duration", "1s")
            alone("health", "--worker", "--socket", running.socket())
        asked("job cancel", "train", "--yes")
        asked("job remove", "train", "--yes")
        asked("worker drain", "worker-0")
        asked("dataset remove", "digits", "--yes")
        printed = asked("events")
        for event in printed["events"]:
            has = {name for name in EVENT_FIELDS if event.get(name) not in (None, [])}
            assert has <= kinds_of_events()[event["kind"]], event
        assert {"worker_joined", "generation_opened", "epoch_sealed", "job_held"} <= {event["kind"] for event in printed["events"]}
    contexts(asked, tmp_path)
    assert asked.asked | alone.asked == OF_JOBS


#: Fields that only some kinds of events have.
EVENT_FIELDS = ("job", "worker", "dataset", "generation", "ranks", "epoch", "step")


def contexts(asked: Asked, folder: Path) -> None:
    """Tests the commands for contexts, in a separate folder."""
    env = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config"), "PATH": "/usr/bin"}
    for line in (["context", "set", "prod", "--coordinator", "head:7070"], ["context", "list", "-o", "json"]):
        done = subprocess.run([BINARY, *line], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["contexts"] and list(wrong(printed, objects()["context list"])) == []
    asked.asked.add("context list")


def test_the_kinds_of_events_are_those_of_the_code() -> None:
    code = (ROOT / "coordinator/scheduler/src/log/event.rs").read_text()
    (variants,) = re.findall(r"^pub enum EventKind \{(.*?)^\}", code, re.MULTILINE | re.DOTALL)
    names = re.findall(r"^    (\w+) \{", variants, re.MULTILINE)
    kinds = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in names}
    assert kinds and set(kinds_of_events()) == kinds


def kinds_of_events() -> dict[str, set[str]]:
    """Returns the fields of each kind of event on the page."""
    table = section("Kinds of events")
    return {kind: set(NAME.findall(has)) for kinds, has, _ in table for kind in NAME.findall(kinds)}


def test_what_commands_say_of_tokens_and_of_the_audit(tmp_path: Path) -> None:
    with Secure(tmp_path / "cluster") as running:
        shown = ["--coordinator", running.address, "--tls"]
        asked, anonymous = Asked(*shown, str(running.pki / "admin")), tmp_path / "anonymous"
        anonymous.mkdir()
        (anonymous / "ca.crt").write_bytes((running.pki / "ca.crt").read_bytes())
        made = asked("access create", "ci", "--role", "viewer", "--job", "nightly-*")
        asked("access create", "rack-7", "--role", "worker", "--join", "--out", tmp_path / "join.token")
        joining = Asked(*shown, str(anonymous), "--token-file", str(tmp_path / "join.token"))
        joined = joining("access exchange", "node-1", "--out", tmp_path / "token")
        as_worker = Asked(*shown, str(anonymous), "--token-file", str(tmp_path / "token"))
        as_worker("access whoami")
        line = [str(BINARY), "cluster", "snapshot", "save", str(tmp_path / "x"), *as_worker.options]
        assert subprocess.run(line, capture_output=True, timeout=60).returncode == 4
        asked("access revoke", made["id"])
        asked("access list")
        saved = tmp_path / "saved"
        asked("cluster snapshot save", saved)
        alone = Asked()
        alone("cluster snapshot restore", saved, "--data-dir", tmp_path / "restored")
        entries = until(
            lambda: [each for each in asked("audit")["entries"] if each["outcome"] == "DENIED"], "the denied call is written"
        )
        assert [(each["principal"], each["method"]) for each in entries] == [(f"worker:node-1 (token {joined['id']})", "SaveSnapshot")]
        # The files have the same fields, except the node, which owns them.
        lines = [json.loads(line) for path in running.folder.rglob("audit/*.jsonl") for line in path.read_text().splitlines()]
        assert lines and all(set(line) <= set(fields("audit-entry")) - {"node"} for line in lines)
        assert asked.asked | joining.asked | as_worker.asked | alone.asked == OF_TOKENS


def test_lines_of_logs_have_the_fields_of_the_page(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", [8])
    with Cluster(tmp_path / "cluster", workers=0) as running:
        log = {"SHARDFEED_LOG_FORMAT": "json", "SHARDFEED_LOG": "info,shardfeed_coordinator=debug"}
        for server in (running.coordinator, running.worker(0)):
            server.end(signal.SIGTERM)
            server.log.unlink(missing_ok=True)
            server.env = server.env | log
            server.start()
            running.workers.append(server)
        options = in_cluster(running)
        with sf.Loader(dataset.pattern, IDS, batch_size=4, **options) as each:
            next(iter(each))
    lines = [json.loads(line) for server in running.workers for line in server.log.read_text().splitlines()]
    known = {path.strip("`"): kind for path, kind, _ in section("Lines of logs")}
    page = PAGE.read_text()
    spans = set(re.findall(r"^\| `(operation|call)` \|", page, re.MULTILINE))
    assert {line["level"] for line in lines} >= {"INFO", "DEBUG"}
    seen: set[str] = set()
    for line in lines:
        assert set(line) <= set(known) and line["fields"]["message"], line
        for span in line.get("spans", []):
            assert set(span) <= SPAN_FIELDS, span
            seen |= set(span)
    assert spans == {"operation", "call"} and seen == SPAN_FIELDS
    assert all(f"`{name}`" in page for name in SPAN_FIELDS)


SPAN_FIELDS = {"name", "trace_id", "span_id", "parent_id", "rpc", "request_id", "principal"}
