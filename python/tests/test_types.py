"""The package as seen by type checkers."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from mypy import api

import shardfeed as sf
from shardfeed.reports import Bottleneck

ROOT = Path(__file__).resolve().parents[2]
#: The types of columns follow from `output=` and the features, which no type checker evaluates.
UNKNOWN = {"Batch"}
#: Declared by a framework or the extension module.
FOREIGN = {"DeviceArray"}


def functions(name: str, value: object) -> Iterator[tuple[str, types.FunctionType]]:
    """Yields the public functions of a public object, with their names."""
    if isinstance(value, types.FunctionType):
        yield name, value
    elif isinstance(value, property):
        yield from functions(name, value.fget)
    elif inspect.isclass(value) or isinstance(value, types.ModuleType) and value.__name__.startswith("shardfeed."):
        for inner, part in vars(value).items():
            is_public = not inner.startswith("_") or inner in ("__init__", "__iter__", "__getitem__", "__enter__")
            is_own = getattr(part, "__module__", "shardfeed").startswith("shardfeed")
            if is_public and is_own and not isinstance(part, types.ModuleType):
                yield from functions(f"{name}.{inner}", inspect.unwrap(part) if callable(part) else part)


@pytest.mark.parametrize("name", sorted(set(sf.__all__) - UNKNOWN - FOREIGN))
def test_nothing_public_is_any(name: str) -> None:
    found = dict(functions(name, getattr(sf, name)))
    annotations = {of: getattr(function, "__annotations__", {}) for of, function in found.items()}
    for kind in [getattr(sf, name)] if inspect.isclass(getattr(sf, name)) else []:
        annotations[name] = {key: text for key, text in kind.__dict__.get("__annotations__", {}).items() if key[0] != "_"}
    wrong = [(of, key) for of, texts in annotations.items() for key, text in texts.items() if re.search(r"\bAny\b", str(text))]
    assert not wrong


def test_what_a_type_checker_infers(tmp_path: Path) -> None:
    """mypy, strict, as a user runs it; pyright checks the examples in `make test`."""
    program = tmp_path / "program.py"
    program.write_text(
        """import numpy as np
import shardfeed as sf

features = {"a": sf.FixedLenFeature((), np.int64), "b": sf.VarLenFeature("string"), "c": sf.RaggedFeature("float32")}
reveal_type(features)
loader = sf.Loader("x", features, batch_size=1, tail="uneven", mode="dynamic", corrupt="skip-record", compression=None)
reveal_type(loader.state_dict())
reveal_type(loader.output)
reveal_type(loader.why()["limit"])
reveal_type(loader.stats()["batches"])
reveal_type(sf.torch.Dataset(loader))
reveal_type(sf.source("x", features).decode_image("b").resize("b", (3, 4)).on_device().cast("a", "int32"))
reveal_type(sf.source("x").columns["record"].shape)
loader.load_state_dict(loader.state_dict())
sf.Loader("x", features, batch_size=1, tail="keep")
sf.Loader("x", features, batchsize=1)
sf.from_arrays((np.zeros(3), [1, 2, 3]), "out", compression="zip")
sf.nothing
sf.source("x").resise("b", 3)
sf.source("x").resize("b", sizes=3)
sf.source("x").map(len)
sf.Loader("x", features, batch_size=1, transform=lambda batch: {"rows": batch["a"]})
sf.Loader("x", features, batch_size=1, transform=len)
"""
    )
    said, problems, _ = api.run(
        ["--strict", "--no-incremental", "--config-file", str(ROOT / "python/pyproject.toml"), str(program)]
    )
    assert not problems
    revealed = re.findall(r'Revealed type is "(.*)"', said)
    assert [text.replace("builtins.", "") for text in revealed] == [
        "dict[str, shardfeed.features.Feature]", "dict[str, object]",
        "Literal['numpy'] | Literal['torch'] | Literal['jax'] | Literal['tf']", " | ".join(f"Literal['{limit}']" for limit in get_args(Bottleneck)), "int", "shardfeed.torch.Dataset",
        "shardfeed.sources.Source", "tuple[int | None, ...]",
    ]  # fmt: skip
    errors = re.findall(r"^.*?:(\d+): error: (.*)$", said, re.MULTILINE)
    assert [int(line) for line, _ in errors] == [15, 16, 17, 18, 19, 20, 21, 23], said
