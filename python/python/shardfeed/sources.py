"""Files together with what is in them: what `Loader` takes in place of files, features and first operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardfeed.features import Feature
from shardfeed.operators import Operator


@dataclass(frozen=True)
class Source:
    """A dataset's files and what is in them; `Loader(source, batch_size=...)` reads it.

    - `files`: paths, in order.
    - `features`: what is in the records; None: they are raw.
    - `operators`: what makes the columns of them, before those that a loader is given.
    - `records`: how many there are, if that is known. A loader raises `ShardChangedError` if the files hold another
      number.
    """

    files: tuple[str, ...]
    features: Mapping[str, Feature] | None = None
    operators: tuple[Operator, ...] = ()
    records: int | None = None

    def __repr__(self) -> str:
        columns = "raw records" if self.features is None else ", ".join(self.features)
        return f"Source({len(self.files)} files, {self.records} records: {columns})"
