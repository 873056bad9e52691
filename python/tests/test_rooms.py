"""The structure of the Rust crates: no large import circles, no crowded folders.

A circle is a set of files of one crate that all import each other, directly or through others. Nobody can
read or test one of them without all of them. Imports are read as text from `use` declarations and
`crate::` paths; names that a module re-exports lead to the file that defines them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CIRCLE_MAX = 5
FILES_MAX = 20

Module = tuple[str, ...]
Code = dict[Module, str]

TEST_ITEMS = re.compile(
    r"#\[cfg\(test\)\]\s*(?:pub(?:\(crate\))? )?(?:mod \w+ \{.*?\n\}\n|mod \w+;|use [^;]*;)", re.DOTALL
)
USE = re.compile(r'^\s*(pub(?:\([^)]*\))?\s+)?use\s+([^;"]+);', re.MULTILINE)
PATH = re.compile(r"\bcrate((?:::\w+)+)")


def crates() -> list[Path]:
    """Returns the source folder of each crate that ships."""
    manifest = (ROOT / "Cargo.toml").read_text()
    (members,) = re.findall(r"members = \[(.*?)\]", manifest, re.DOTALL)
    folders = (ROOT / name / "src" for name in re.findall(r'"([^"]+)"', members))
    return [folder for folder in folders if folder.is_dir()]


def shipped(source: Path) -> list[Path]:
    """Returns the files of a crate without those of unit tests."""
    return [file for file in sorted(source.rglob("*.rs")) if "tests" not in file.relative_to(source).with_suffix("").parts]


def read(source: Path) -> Code:
    """Returns the code of each module, without comments and tests."""
    code: Code = {}
    for file in shipped(source):
        names = list(file.relative_to(source).with_suffix("").parts)
        if names[-1] in ("mod", "lib", "main"):
            names.pop()
        code[tuple(names)] = TEST_ITEMS.sub("", re.sub(r"//.*", "", file.read_text()))
    return code


def leaves(tree: str) -> Iterator[list[str]]:
    """Yields the paths of a use tree: `a::{b, c::d}` are `a::b` and `a::c::d`."""
    head, brace, rest = tree.partition("{")
    names = [name.strip() for name in re.sub(r"\s+as\s+\w+", "", head).split("::")]
    names = [name for name in names if name]
    if not brace:
        yield names
        return
    depth, start = 0, 0
    body = rest[: rest.rindex("}")] + ","
    for at, char in enumerate(body):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if part := body[start:at].strip():
                yield from (names + leaf for leaf in leaves(part))
            start = at + 1


def absolute(path: list[str], module: Module, code: Code) -> list[str] | None:
    """Returns a path from the root of the crate, or None if it leads elsewhere."""
    base = list(module)
    if path[0] == "crate":
        return path[1:]
    if path[0] == "self":
        return base + path[1:]
    while path and path[0] == "super":
        base, path = base[:-1], path[1:]
        if path[:1] != ["super"]:
            return base + path
    return base + path if path and (*module, path[0]) in code else None


def imports(code: Code) -> dict[Module, set[Module]]:
    """Returns the modules that each module imports from."""
    paths: dict[Module, list[list[str]]] = {module: [] for module in code}
    exported: dict[tuple[Module, str], list[str]] = {}
    for module, text in code.items():
        for visibility, tree in USE.findall(text):
            for leaf in leaves(tree):
                if (path := absolute(leaf, module, code)) is not None:
                    paths[module].append(path)
                    if visibility and path:
                        exported.setdefault((module, path[-1]), path)
        paths[module] += [found.split("::")[1:] for found in PATH.findall(text)]

    def defining(path: list[str], depth: int = 0) -> Module:
        cut = max(end for end in range(len(path) + 1) if tuple(path[:end]) in code)
        module, rest = tuple(path[:cut]), path[cut:]
        onward = exported.get((module, rest[0])) if rest else None
        if onward is None or onward == path or depth > len(code):
            return module
        return defining(onward + rest[1:], depth + 1)

    reached = {module: {defining(path) for path in paths[module]} for module in code}
    return {module: others - {module, ()} for module, others in reached.items()}


def circles(edges: dict[Module, set[Module]]) -> list[set[Module]]:
    """Returns the sets of modules that reach each other."""

    def reach(start: Module) -> set[Module]:
        seen: set[Module] = set()
        todo = [start]
        while todo:
            for other in edges[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return seen

    reached = {module: reach(module) for module in edges}
    found = {frozenset(other for other in reached[module] if module in reached[other]) for module in edges}
    return [set(each) for each in found if len(each) > 1]


def test_a_circle_is_seen() -> None:
    code: Code = {
        (): "mod a;\npub use b::Low;",
        ("a",): "use crate::b::{c::High, Low as L};",
        ("b",): "pub struct Low;\nuse self::c::High;",
        ("b", "c"): "use super::super::a;\nfn f() { crate::Low }",
        ("d",): "use crate::a;",
    }
    assert circles(imports(code)) == [{("a",), ("b",), ("b", "c")}]


def test_import_circles_are_small() -> None:
    sources = crates()
    assert len(sources) > 15
    for source in sources:
        for circle in circles(imports(read(source))):
            names = ", ".join(sorted("/".join(module) for module in circle))
            assert len(circle) <= CIRCLE_MAX, (
                f"{source.relative_to(ROOT)}: {len(circle)} files import each other: {names}. Move what they "
                "share into a file below them"
            )


def test_folders_are_not_crowded() -> None:
    for source in crates():
        folders = {file.parent for file in shipped(source)}
        for folder in folders:
            count = sum(file.parent == folder for file in shipped(source))
            assert count <= FILES_MAX, f"{folder.relative_to(ROOT)} has {count} files; make rooms of them"
