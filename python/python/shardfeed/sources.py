"""Files with a description of their content, which `Loader` accepts in place of files and
features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardfeed.features import Feature
from shardfeed.operators import Operator


@dataclass(frozen=True)
class Source:
    """Files of a dataset and their content; read it with `Loader(source, batch_size=...)`.

    - `files`: paths, in order.
    - `features`: features of the records; None: raw records.
    - `operators`: operators that create the columns, applied before those given to a loader.
    - `records`: number of records, if known. A loader raises `ShardChangedError` if the files hold
      another number.
    """

    files: tuple[str, ...]
    features: Mapping[str, Feature] | None = None
    operators: tuple[Operator, ...] = ()
    records: int | None = None

    def __repr__(self) -> str:
        columns = "raw records" if self.features is None else ", ".join(self.features)
        return f"Source({len(self.files)} files, {self.records} records: {columns})"
