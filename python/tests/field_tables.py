"""Tables of docs/FIELDS.md, made from the types that commands serialize and from their doc comments.

Relies on rustfmt, which writes each field, attribute and variant on lines of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from conftest import ROOT

#: Folders of types that commands print. A name that two folders declare belongs to the first one.
FOLDERS = [
    ROOT / folder
    for folder in (
        "cli/src", "worker/pipeline/src", "proto/src/generated", "tools/dataset/src", "common/plan/src", "common/tfrecord/src",
        "worker/source/src",
    )
]  # fmt: skip

#: Sections of the page that are made from a type, and that type. Other types are part of these tables.
SECTIONS = {
    "inspection": "Inspection", "index": "Indexed", "sampled": "SampledReport", "counted": "CountedReport", "unscanned": "Unscanned",
    "statistics": "Stats", "verification": "Verification", "sidecar-fault": "FaultReport", "written": "Written", "plan": "PlanReport",
    "batch": "BatchReport", "place": "FindReport", "job-batch": "RecordedBatchReport", "datasets": "DatasetsReport",
    "dataset": "DatasetReport", "failure": "Error", "jobs": "JobsReport", "job": "JobReport", "generation": "Generation", "hold": "Held",
    "epochs": "EpochsReport", "one-epoch": "ShowReport", "epoch": "EpochReport", "shards": "ShardsReport", "history": "HistoryReport",
    "ranks": "RanksReport", "workers": "WorkersReport", "worker": "WorkerReport", "verdict": "WhyReport", "finding": "Finding",
    "account": "Account", "spent": "Spent", "benchmark": "BenchReport", "coordinator-status": "StatusReport", "members": "MembersReport",
    "events": "EventsReport", "event": "Event", "tokens": "TokensReport", "token": "TokenReport", "caller": "WhoAmIResponse",
    "audit": "AuditReport", "audit-entry": "AuditEntry", "made": "MadeReport", "folder": "FolderReport",
    "certificate": "CertificateReport", "contexts": "ContextsReport", "checks": "DoctorReport", "options": "OptionsReport",
}  # fmt: skip
#: Section of each type. Lists print messages without the fields that a report adds.
SECTION_OF = {name: title for title, name in SECTIONS.items()} | {"Dataset": "dataset", "Job": "job"}

INTEGERS = ("u8", "u16", "u32", "u64", "i64", "usize")
KINDS = (
    dict.fromkeys(INTEGERS, "integer")
    | dict.fromkeys(("f32", "f64", "Number"), "number")
    | dict.fromkeys(("String", "&'static str", "Digest", "ContentDigest"), "text")
    | {"bool": "boolean", "Value": "any", "Text": "any"}
)

ITEM = re.compile(
    r"((?:^ *#\[[^\n]*\]\n)+)^( *)(?:pub(?:\([a-z]+\))? )?(struct|enum) (\w+)(?:<(\w+) = (\w+)>)? \{\n(.*?)^\2\}$",
    re.MULTILINE | re.DOTALL,
)
MEMBER = re.compile(
    r"((?:^ *///[^\n]*\n)*)((?:^ *#\[.*?\]\n)*)^ *(?:pub(?:\([a-z]+\))? )?(\w+)(?:: ([^\n]+)| = \d+)?,$", re.MULTILINE | re.DOTALL
)
LIST_REPORT = re.compile(r"list_report!\(\s*(\w+) \{ (\w+: [\w:]+) \}(?: of (\w+: \w+))?,")
COUNTERS = re.compile(r"^counters! \{ \$\n(.*?)^\}", re.MULTILINE | re.DOTALL)
COUNTER = re.compile(r'^    (\w+): \w+(?:\([^)]*\))?, "(.*?)";$', re.MULTILINE | re.DOTALL)


class Member(NamedTuple):
    """A field of a struct, or a variant of an enum."""

    name: str
    type_: str
    text: str
    attributes: str


class Declared(NamedTuple):
    """A struct or an enum."""

    name: str
    file: Path
    is_enum: bool
    members: list[Member]
    #: Type parameter and its default.
    parameter: tuple[str, str]


def text_of(comment: str) -> str:
    """Returns the text of a doc comment, without links to other items."""
    lines = (line.strip().removeprefix("///").strip() for line in comment.splitlines())
    return re.sub(r"\[(`[^`]+`)\](\([^)]*\))?", r"\1", " ".join(lines)).removesuffix(".")


def members(body: str, case: str = "") -> list[Member]:
    """Returns the members of a type, except the fields that are not serialized."""
    found = []
    for comment, attributes, name, type_ in MEMBER.findall(body):
        if "serde(skip)" not in attributes:
            renamed = re.search(r'rename = "(\w+)"', attributes)
            name = renamed[1] if renamed else name.lower() if "lowercase" in case else re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
            found.append(Member(name, re.sub(r"::(?:core|prost)::(?:\w+::)+", "", type_), text_of(comment), attributes))
    return found


@cache
def declared() -> list[Declared]:
    """Returns the types that can be serialized, and the enums of messages, whose values are printed as words."""
    found = []
    for file in (file for folder in FOLDERS for file in sorted(folder.rglob("*.rs"))):
        code, *_ = re.split(r"^#\[cfg\(test\)\]", file.read_text(), flags=re.MULTILINE)
        for attributes, _, kind, name, parameter, default, body in ITEM.findall(code):
            is_enum = kind == "enum"
            # The macro of counters has a struct without fields of its own.
            if members(body) and ("Serialize" in attributes or is_enum and file.parent.name == "generated"):
                found.append(Declared(name, file, is_enum, members(body, attributes), (parameter, default)))
        for name, rows, of in LIST_REPORT.findall(code):
            named = [field.split(": ") for field in (of, re.sub(r": (.*)", r": Vec<\1>", rows)) if field]
            found.append(Declared(name, file, False, [Member(field, type_, "", "") for field, type_ in named], ("", "")))
        for counters in COUNTERS.findall(code):
            fields = [Member(name, "u64", re.sub(r"\\\n *", "", text), "") for name, text in COUNTER.findall(counters)]
            found.append(Declared("Spent", file, False, fields, ("", "")))
    return found


def lookup(name: str, near: Path | None = None) -> Declared | None:
    """Returns the type of a name, which is used in the file `near`: of that file, its crate, or any other one."""
    named = [each for each in declared() if each.name == name.split("::")[-1]]
    if near is not None:
        crate = next(folder for folder in FOLDERS if near.is_relative_to(folder))
        named.sort(key=lambda each: (each.file != near, not each.file.is_relative_to(crate)))
    return named[0] if named else None


class Shape(NamedTuple):
    """The JSON of a field."""

    #: Name of the type in Rust, of one item of a list.
    type_: str
    #: Argument of a generic type.
    argument: str
    #: Enum whose values are printed as words.
    values: Declared | None
    is_list: bool
    may_be_null: bool


def shape_of(member: Member, of: Declared, default: str) -> Shape:
    """Returns the JSON of a field of `of`, whose parameter stands for the type `default`."""
    type_, values = member.type_, None
    form = re.search(r"json::(\w+)(?:::<(\w+), _>)?", member.attributes)
    may_be_null = type_.startswith("Option<")
    type_ = re.sub(r"^Option<(.*)>$", r"\1", type_)
    if form is not None:
        function, word = form.groups()
        may_be_null |= function in ("known", "digest", "positive")
        type_ = {"positive": type_, "digests": "Vec<String>"}.get(function, "String")
        values = lookup(word, of.file) if word else None
    is_list = type_.startswith("Vec<")
    type_ = re.sub(r"^Vec<(.*)>$", r"\1", type_)
    type_, _, argument = type_.removesuffix(">").partition("<")
    return Shape(default if type_ == of.parameter[0] else type_, argument, values, is_list, may_be_null)


class Tables:
    """Makes tables of types."""

    def __init__(self, common: dict[str, str]) -> None:
        #: Descriptions of fields by name, for those without a doc comment.
        self.common = common
        #: Enums whose values were described.
        self.listed: set[str] = set()

    def words(self, of: Declared) -> str:
        """Returns the values of an enum, the first time with their doc comments."""
        is_first = of.name not in self.listed
        words = []
        self.listed.add(of.name)
        for value in of.members:
            text = value.text[:1].lower() + value.text[1:] if value.text[1:2].islower() else value.text
            if value.name != "unspecified":
                words.append(f"`{value.name}`" + (f" ({text})" if text and is_first else ""))
        return ", ".join(words)

    def described(self, member: Member, ending: str, values: Declared | None) -> str:
        """Returns the description of a field: its doc comment in terms of JSON, or the common one of its name."""
        text = member.text.replace("`None`", "`null`")
        # Constraints of requests, and forms of fields that differ from those in messages.
        text = re.sub(r"(^|; )(required|unspecified|>= 1)\b[^;]*$", "", text)
        text = text.replace(", 32 bytes", ", hex") if "json::digest" in member.attributes else text
        if ending:
            missing = r"absent|empty|0" if "json::positive" in member.attributes else r"absent|empty"
            text = re.sub(rf"(^|; )(?:{missing})(?=:| if| until| unless)", rf"\1{'`null`' if 'null' in ending else 'absent'}", text)
        text = text[:1].upper() + text[1:]
        if values is not None:
            return f"{text}. {self.words(values)}" if text else self.words(values)
        assert text or member.name in self.common, f"`{member.name}` has neither a doc comment nor a common name"
        return text or self.common[member.name]

    def rows(self, of: Declared, title: str, below: str = "", default: str = "", is_absent: bool = False) -> Iterator[str]:
        """Yields the rows of a type in a section.

        - `default`: type for the parameter of `of`. `is_absent`: the fields may be absent.
        """
        for member in of.members:
            shape = shape_of(member, of, default)
            may_be_absent = is_absent or "skip_serializing_if" in member.attributes
            ending = ", or absent" if may_be_absent else " or null" if shape.may_be_null else ""
            inner = None if shape.type_ in KINDS else lookup(shape.type_, of.file)
            if inner is None or inner.is_enum:
                values = shape.values or inner
                kind = "text" if values is not None else KINDS[shape.type_]
                yield f"| `{below}{member.name}` | {'list of ' * shape.is_list}{kind}{ending} | {self.described(member, ending, values)} |\n"
                continue
            section = SECTION_OF.get(inner.name) if inner == lookup(inner.name) else None
            default_of_inner = shape.argument or inner.parameter[1]
            if "flatten" in member.attributes and section in (None, title):
                yield from self.rows(inner, title, below, default_of_inner, may_be_absent or shape.may_be_null)
            elif "flatten" in member.attributes:
                yield f"| ... | [{section}](#{section}) | All its fields |\n"
            else:
                kind = f"[{section}](#{section})" if section else "object"
                yield f"| `{below}{member.name}` | {'list of ' * shape.is_list}{kind}{ending} | {self.described(member, ending, None)} |\n"
                if section is None:
                    yield from self.rows(inner, title, f"{below}{member.name}{'[]' * shape.is_list}.", default_of_inner)


def table_of(page: str, title: str) -> str:
    """Returns the first table below a title of the page."""
    (text,) = re.findall(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    (table,) = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)[:1]
    return str(table)


def cells_of(table: str) -> list[list[str]]:
    """Returns the cells of a table without its head."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def current(page: str) -> str:
    """Returns the page with the tables of the types as they are now."""
    tables = Tables({name.strip("`"): text for name, text in cells_of(table_of(page, "Common names"))})
    for title, name in SECTIONS.items():
        of = lookup(name)
        assert of is not None, f"there is no type {name}"
        begin = page.index(f"\n### {title}\n")
        table = "".join(["| field | type | is |\n| --- | --- | --- |\n", *tables.rows(of, title)])
        page = page[:begin] + page[begin:].replace(table_of(page, title), table, 1)
    return page
