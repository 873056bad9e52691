"""The declaration of a source for the command `shardfeed`: `python -m shardfeed.declaration MODULE:SOURCE`.

Prints one JSON object. The prints of MODULE go to stderr.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar, get_args, get_type_hints

import shardfeed as sf
from shardfeed import _native
from shardfeed.mixture import declared

T = TypeVar("T")

#: Return type of a function without an annotation.
_UNKNOWN = object()


class _Refused(Exception):
    """The source cannot be declared. Arguments: the message, and a hint."""


def main(name: str) -> None:
    """Prints the source MODULE:SOURCE, or why it cannot be declared, as JSON."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Prints of the module, also those of its libraries and of processes that it starts.
    os.dup2(2, 1)
    printed: dict[str, Any]
    try:
        printed = _declared(_find(name))
    except _Refused as refused:
        printed = dict(zip(("error", "hint"), refused.args, strict=True))
    with answer:
        json.dump({"version": sf.__version__, **printed}, answer)


def _find(name: str) -> sf.Source | sf.Mixture:
    module_name, _, attribute = name.rpartition(":")
    module = _run(module_name, lambda: _module(module_name))
    value = getattr(module, attribute, None)
    if value is None:
        raise _Refused(f"{module_name} has no {attribute!r}", _sources_of(module))
    if callable(value) and not isinstance(value, type):
        value = _run(module_name, value)
    if not isinstance(value, sf.Source | sf.Mixture):
        kind = type(value).__name__
        hint = "name a Source, a Mixture, or a function without arguments that returns one"
        raise _Refused(f"{name} is of type {kind}, which is no source", hint)
    return value


def _sources_of(module: ModuleType) -> str:
    """Returns the names that can be given for a module: its sources, and functions as `name()`."""
    sources, others = [], []
    for name, value in vars(module).items():
        if isinstance(value, sf.Source | sf.Mixture):
            sources.append(name)
        elif isinstance(value, FunctionType) and _needs_no_arguments(value):
            returned = _returned(value)
            if returned is _UNKNOWN and value.__module__ == module.__name__ and not name.startswith("_"):
                others.append(f"{name}()")
            elif returned is not _UNKNOWN and _is_source(returned) and not value.__module__.startswith("shardfeed."):
                sources.append(f"{name}()")
    hints = [f"its sources are {', '.join(sorted(sources))}"] if sources else []
    hints += [f"its functions without arguments, of which the type is unknown, are {', '.join(sorted(others))}"] if others else []
    return "; ".join(hints) or "it has no sources; give one a name at its top level"


def _needs_no_arguments(function: FunctionType) -> bool:
    required = [one for one in signature(function).parameters.values() if one.default is one.empty]
    return all(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in required)


def _returned(function: FunctionType) -> Any:
    """Returns the type that a function is annotated to return; `_UNKNOWN` without a known one."""
    try:
        return get_type_hints(function).get("return", _UNKNOWN)
    except Exception:
        # An annotation may have names that exist for type checkers only.
        return _UNKNOWN


def _is_source(kind: Any) -> bool:
    return any(one in (sf.Source, sf.Mixture) for one in (kind, *get_args(kind)))


def _module(name: str) -> ModuleType:
    """Returns the module of a dotted name, or of a file, which finds the modules of its folder."""
    if not name.endswith(".py"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise _Refused(f"there is no module {error.name!r}", "give a path to a .py file, or run in the folder of the module") from None
    path = Path(name).absolute()
    if not path.is_file():
        raise _Refused(f"there is no file {name}", "check the path")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _run(name: str, call: Callable[[], T]) -> T:
    """Runs code of a module. Raises `_Refused` for its exceptions."""
    try:
        return call()
    except _Refused:
        raise
    except (Exception, SystemExit) as error:
        ours = str(Path(__file__).parent)
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if not frame.filename.startswith((ours, "<frozen"))]
        where = f"{theirs[-1].filename}, line {theirs[-1].lineno}" if theirs else name
        said = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
        raise _Refused(f"{name} raised {said} ({where})", "run the module with Python for the whole traceback") from None


def _declared(source: sf.Source | sf.Mixture) -> dict[str, Any]:
    versions = [source] if isinstance(source, sf.Source) else [one for _, one in source.versions]
    for one in versions:
        if one.dataset is not None:
            raise _Refused(
                f"the source reads dataset={one.dataset!r}, which only a coordinator knows",
                f"`shardfeed dataset show {one.dataset}` shows the dataset; declare a source of its files",
            )
    first, options = versions[0], declared(source)
    mixed = options["mixture"]
    if mixed:
        mixed["sources"] = [(*of, _encoded(records)) for *of, records in mixed["sources"]]
    return {
        "files": [] if mixed else list(first.files),
        "compression": first.compression,
        "records": [one.records for one in versions],
        "mixture": mixed,
        "index": None if mixed else first.index,
        "record_spec": _encoded(options),
        "tables": [table for one in versions for table in one._tables()],
    }


def _encoded(records: dict[str, Any]) -> str:
    return base64.b64encode(_native.record_spec(records)).decode()


if __name__ == "__main__":
    main(sys.argv[1])
