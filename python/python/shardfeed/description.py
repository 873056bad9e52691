"""The file `PREFIX.shardfeed.json`, which describes the content of the shards beside it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardfeed.errors import ConfigError, DatasetNotFoundError, ShardChangedError
from shardfeed.sources import Source
from shardfeed.sources import source as make_source
from shardfeed.staging import description_name
from shardfeed.stored import StoredColumn

_FORMAT = 1


@dataclass(frozen=True)
class Description:
    """Content of the shards of a dataset.

    - `files`: name and size in bytes of each shard.
    - `digest`: of the data that the shards were made from; None if not known in advance.
    """

    columns: tuple[StoredColumn, ...]
    files: tuple[tuple[str, int], ...]
    records: int
    digest: str | None = None

    @classmethod
    def read(cls, path: Path) -> Description:
        """Reads the description at `path`. Raises `ConfigError` if it is invalid or of a later
        version."""
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            version = data["format"]
            if version == _FORMAT:
                return cls(
                    tuple(StoredColumn.of(one["name"], one["dtype"], one["shape"]) for one in data["columns"]),
                    tuple((str(one["name"]), int(one["bytes"])) for one in data["files"]),
                    int(data["records"]),
                    data["digest"],
                )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}: does not describe the shards ({error}); write them again") from None
        raise ConfigError(f"{path}: has format {version!r}; this version of shardfeed reads {_FORMAT}")

    def write(self, path: Path) -> None:
        """Writes the description durably."""
        data = {
            "format": _FORMAT,
            "records": self.records,
            "digest": self.digest,
            "columns": [{"name": one.name, "dtype": one.dtype, "shape": one.shape} for one in self.columns],
            "files": [{"name": name, "bytes": size} for name, size in self.files],
        }
        with path.open("w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())

    def source(self, directory: Path) -> Source:
        """Returns the dataset in `directory`. Raises if a file is missing or has another size."""
        for name, size in self.files:
            path = directory / name
            try:
                found = path.stat().st_size
            except FileNotFoundError:
                raise DatasetNotFoundError(f"{path}: is not there, but was written; copy or write it again") from None
            if found != size:
                raise ShardChangedError(f"{path}: has {found} bytes, but {size} were written; copy or write it again")
        files = [str(directory / name) for name, _ in self.files]
        features = {column.name: column.feature for column in self.columns}
        source = make_source(files, features, records=self.records)
        for column in self.columns:
            source = column.decoded(source)
        return source


def open_source(directory: str | os.PathLike[str], prefix: str | None = None) -> Source:
    """Returns a dataset that `from_arrays` or `from_generator` wrote, in any process.

    - `prefix`: of the dataset; optional if the directory has only one.

    Raises `DatasetNotFoundError` if there is none or a file is missing, `ShardChangedError` if a
    file has another size.
    """
    folder = Path(os.path.abspath(os.fspath(directory)))
    if prefix is None:
        ending = description_name("")
        try:
            names = sorted(entry.name for entry in os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetNotFoundError(f"{folder}: is no directory") from None
        found = [name.removesuffix(ending) for name in names if name.endswith(ending)]
        if len(found) > 1:
            raise ConfigError(f"{folder} holds the datasets {', '.join(found)}; say which with prefix=")
        prefix = found[0] if found else "*"
    path = folder / description_name(prefix)
    if not path.exists():
        raise DatasetNotFoundError(
            f"{path}: is not there, so the content of the records is unknown; from_arrays() and from_generator() write "
            f"it. Files of another origin go to Loader(files, features)"
        )
    return Description.read(path).source(folder)
