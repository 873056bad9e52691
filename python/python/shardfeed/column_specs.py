"""Columns of a source, and the texts that list them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Literal, NamedTuple

#: Columns that a text shows.
SHOWN_MAX = 20


class ColumnSpec(NamedTuple):
    """A column of a source: its kind, and type and shape of one row.

    - `kind`: "dense": the same shape in every row; "padded", "ragged" and "sparse": as the features
      of these names; "images": images whose size differs from row to row, which a batch cannot
      contain until `resize` or a crop makes them equal.
    - `dtype`: numeric type, or "string" for byte strings.
    - `shape`: without the batch dimension; None: differs from row to row.
    """

    kind: Literal["dense", "padded", "ragged", "sparse", "images"]
    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        kind = "" if self.kind == "dense" else f" {self.kind}"
        return f"{self.dtype} [{', '.join(map(str, self.shape))}]{kind}"


def listed(columns: Mapping[str, ColumnSpec]) -> str:
    shown = [f"{name!r} {column}" for name, column in list(columns.items())[:SHOWN_MAX]]
    rest = f" and {len(columns) - SHOWN_MAX} more" if len(columns) > SHOWN_MAX else ""
    return f"{', '.join(shown)}{rest}"


def no_column(name: str, columns: Mapping[str, ColumnSpec]) -> str:
    close = difflib.get_close_matches(name, columns, 1, 0.5)
    hint = f"; did you mean {close[0]!r}? The" if close else "; the"
    return f"there is no column {name!r}{hint} columns are {listed(columns)}"
