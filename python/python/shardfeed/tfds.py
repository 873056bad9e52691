"""Datasets that TensorFlow Datasets (TFDS) wrote to disk, read without TFDS and TensorFlow.

Two files beside the records describe their content: `dataset_info.json` and `features.json`. TFDS
stores integers and bool as int64, all floats as float32, images as PNG or JPEG, tensors with an
encoding as their bytes, features of a dict under `outer/inner`, sequences concatenated, and for
nested sequences the lengths of the inner ones beside them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from shardfeed.errors import ConfigError, DatasetNotFoundError
from shardfeed.features import Feature, FixedLenFeature, RaggedFeature, VarLenFeature
from shardfeed.sources import Source
from shardfeed.sources import source as make_source

_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")
_FLOATS = ("float16", "float32", "float64")
_STRINGS = ("string", "str", "object")


def from_tfds(
    directory: str | os.PathLike[str], split: str | None = None, *, columns: Sequence[str] | None = None
) -> Source:
    """Returns a split of a dataset prepared by TFDS as a `Source`.

        loader = sf.Loader(sf.from_tfds("~/tensorflow_datasets/mnist/3.0.1", "train"), batch_size=32)

    Columns are as in TFDS: `Tensor`, `Scalar`, `ClassLabel` and `BBoxFeature` as numbers of their
    type, `Text` and strings as bytes, `Image` and `LabeledImage` decoded. Nested dicts become
    columns `outer/inner`, and so do sequences of dicts and translations. Images without a fixed
    size need an operator that resizes them: `source.resize("image", 224)`.

    `Sequence`, also nested in a `Sequence`, and tensors of shape `(None, ...)` are ragged columns.
    Their numbers have the stored type: int64 for integers and bool, float32 for all floats. A
    missing optional value has the substitute of TFDS: the minimum of its type, False, or no bytes.

    - `directory`: of one version, with `dataset_info.json`; local or mounted.
    - `split`: such as "train", entire; optional if the dataset has only one.
    - `columns`: names of the columns to read; None: all.

    Raises `ConfigError` for columns of other kinds (`Video`, `Audio`, `Dataset`, sequences of
    images, tensors whose inner sizes differ, uint64, zlib), listing all of them, for splits and
    versions that do not exist, and for other file formats; `DatasetNotFoundError` for missing
    files.
    """
    folder = Path(os.path.abspath(os.path.expanduser(os.fspath(directory))))
    info = _json(folder, "dataset_info.json")
    found = _split(folder, info, split)
    files = tuple(str(folder / name) for name in found.files)
    missing = [file for file in files if not os.path.exists(file)]
    if missing:
        raise DatasetNotFoundError(
            f"{missing[0]}: is not there, and {len(missing)} of {len(files)} files of the split {found.name!r} are "
            f"not; download or prepare the dataset again"
        )
    described = _json(folder, "features.json")
    if "featuresDict" not in described:
        raise ConfigError(
            f"{folder / 'features.json'}: is not a dict of features as TFDS 4.9 writes it; prepare "
            f"the dataset with that, or pass its files and features to Loader"
        )
    wanted = _wanted(folder, dict(_flat("", described)), columns)
    features: dict[str, Feature] = {}
    steps: list[_Step] = []
    refused = []
    for name, column in wanted.items():
        try:
            features[name], step = _column(name, column)
        except ConfigError as error:
            refused.append(str(error))
            continue
        steps.append(step)
    if refused:
        can = f"columns={sorted(features)}" if features else "Loader(files, features)"
        raise ConfigError(f"{folder} has columns that cannot be read: {'; '.join(refused)}. Read the others with {can}")
    source = make_source(files, features, records=found.records)
    for step in steps:
        source = step(source)
    return source


@dataclass(frozen=True)
class _Split:
    name: str
    files: tuple[str, ...]
    records: int


def _json(folder: Path, name: str) -> Any:
    path = folder / name
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        below = sorted({str(found.parent) for depth in ("*", "*/*") for found in folder.glob(f"{depth}/{name}")})
        hint = f"; there is one in {', '.join(below[:8])}" if below else ", where TFDS writes it for each version"
        if "://" in str(folder):
            hint = "; only local and mounted directories are looked into"
        raise DatasetNotFoundError(f"{path}: is not there{hint}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is no JSON: {error}") from None


def _split(folder: Path, info: Mapping[str, Any], name: str | None) -> _Split:
    if info.get("fileFormat", "tfrecord") != "tfrecord":
        raise ConfigError(f"{folder}: its files are {info['fileFormat']}; prepare it with file_format=\"tfrecord\"")
    splits = {split["name"]: split for split in info.get("splits", [])}
    if name is None and len(splits) == 1:
        name = next(iter(splits))
    if name is None or name not in splits:
        what = "has several splits" if name is None else f"has no split {name!r}"
        raise ConfigError(f"{folder} {what}; split= takes one of {', '.join(splits)}, whole")
    split = splits[name]
    lengths = [int(length) for length in split.get("shardLengths", [])]
    if not lengths:
        raise ConfigError(f"{folder}: the split {name!r} has no files")
    template = split.get("filepathTemplate") or "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    files = (_file(template, info["name"], name, shard, len(lengths)) for shard in range(len(lengths)))
    return _Split(name, tuple(files), sum(lengths))


def _file(template: str, dataset: str, split: str, shard: int, shards: int) -> str:
    values = {
        "DATASET": dataset,
        "SPLIT": split,
        "FILEFORMAT": "tfrecord",
        "SHARD_INDEX": f"{shard:05}",
        "NUM_SHARDS": f"{shards:05}",
        "SHARD_X_OF_Y": f"{shard:05}-of-{shards:05}",
    }
    for key, value in values.items():
        template = template.replace("{" + key + "}", value)
    return template


@dataclass(frozen=True)
class _Column:
    feature: Mapping[str, Any]
    #: Lengths of the enclosing sequences, outermost first; None: variable length.
    lengths: tuple[int | None, ...]


_TEXT = {"pythonClassName": "Text"}


def _flat(name: str, feature: Mapping[str, Any], lengths: tuple[int | None, ...] = ()) -> Iterator[tuple[str, _Column]]:
    """Yields the stored features of a TFDS feature with their names."""
    kind, below = _kind(feature), f"{name}/" if name else ""
    if "featuresDict" in feature:
        for inner, one in feature["featuresDict"].get("features", {}).items():
            yield from _flat(below + inner, one, lengths)
    elif kind == "Sequence":
        length = int(feature["sequence"].get("length", -1))
        yield from _flat(name, feature["sequence"]["feature"], (*lengths, None if length < 0 else length))
    elif kind == "Translation":
        for language in feature["translation"]["languages"]:
            yield below + language, _Column(_TEXT, lengths)
    elif kind == "TranslationVariableLanguages":
        for inner in ("language", "translation"):
            yield below + inner, _Column(_TEXT, (*lengths, None))
    else:
        yield name, _Column(feature, lengths)


def _kind(feature: Mapping[str, Any]) -> str:
    return str(feature.get("pythonClassName", "")).rpartition(".")[2]


def _wanted(
    folder: Path, there: dict[str, _Column], columns: Sequence[str] | None
) -> dict[str, _Column]:
    if columns is None:
        return there
    if isinstance(columns, str) or not columns:
        raise ConfigError(f"columns is a list of names, not {columns!r}")
    unknown = [name for name in columns if name not in there]
    if unknown:
        raise ConfigError(f"{folder} has no column {unknown[0]!r}, but {', '.join(sorted(there))}")
    return {name: there[name] for name in columns}


#: Adds the operator that creates a column of its feature.
_Step = Callable[[Source], Source]


def _as_stored(source: Source) -> Source:
    return source


def _column(name: str, column: _Column) -> tuple[Feature, _Step]:
    """Returns the stored feature under the name, and the step that creates the column."""
    feature, lengths = column.feature, column.lengths
    match kind := _kind(feature):
        case "Text":
            tensor: Mapping[str, Any] = {"dtype": "string"}
        case "ClassLabel":
            tensor = {"dtype": "int64"}
        case "BBoxFeature":
            tensor = {"dtype": "float32", "shape": {"dimensions": ["4"]}}
        case "Tensor" | "Scalar":
            tensor = feature["tensor"]
        case "Image" | "LabeledImage" if not lengths:
            return _image(name, feature["image"])
        case _:
            what = "sequence of " if lengths else ""
            raise ConfigError(f"{name!r} is a {what}{kind or 'feature without a name'}")
    return _sequence(name, tensor, lengths) if lengths else _tensor(name, tensor)


def _tensor(name: str, tensor: Mapping[str, Any]) -> tuple[Feature, _Step]:
    dtype, shape, encoding = tensor["dtype"], _shape(tensor), _encoding(tensor)
    is_optional = bool(tensor.get("optional"))
    if shape[:1] == (None,) and encoding == "none" and not is_optional:
        return _ragged(name, tensor, shape[1:], 1), _as_stored
    dims = _known(name, shape)
    if encoding == "bytes" and dtype in ("bool", "bfloat16", *_INTEGERS, *_FLOATS) and not is_optional:
        return FixedLenFeature((), "string"), lambda source: source.decode_raw(name, dtype, dims)
    stored = _stored(name, tensor)
    default = [_default(dtype)] * prod(dims) if is_optional else None
    feature = FixedLenFeature(dims, stored, default)
    if dtype in (stored, *_STRINGS):
        return feature, _as_stored
    return feature, lambda source: source.cast(name, dtype)


def _sequence(
    name: str, tensor: Mapping[str, Any], lengths: tuple[int | None, ...]
) -> tuple[Feature, _Step]:
    shape = _shape(tensor)
    if tensor.get("optional"):
        raise ConfigError(f"{name!r} is a sequence of optional values")
    if len(lengths) > 1 and lengths != (None,) * len(lengths):
        raise ConfigError(f"{name!r} is a sequence of sequences, of lengths {lengths}")
    if lengths[0] is None:
        return _ragged(name, tensor, shape, len(lengths)), _as_stored
    if _encoding(tensor) != "none":
        raise ConfigError(f"{name!r} is a sequence of tensors with encoding {_encoding(tensor)!r}")
    return _tensor(name, {**tensor, "shape": {"dimensions": [lengths[0], *_known(name, shape)]}})


def _ragged(name: str, tensor: Mapping[str, Any], shape: tuple[int | None, ...], levels: int) -> Feature:
    """Returns rows, or nested rows, of tensors of a known shape.

    No operator accepts them, so numbers keep their stored type.
    """
    stored, dims = _stored(name, tensor), _known(name, shape)
    if levels == 1 and not dims:
        return VarLenFeature(stored)
    inner = [RaggedFeature.RowLengths(f"{name}/ragged_row_lengths_{level}") for level in range(levels - 1)]
    key = f"{name}/ragged_flat_values" if inner else name
    return RaggedFeature(stored, key, [*inner, *(RaggedFeature.UniformRowLength(dim) for dim in dims)])


def _stored(name: str, tensor: Mapping[str, Any]) -> str:
    """Returns the stored type of the numbers or strings."""
    dtype, encoding = tensor["dtype"], _encoding(tensor)
    if encoding == "none" and dtype in _STRINGS:
        return "string"
    if encoding == "none" and dtype in ("bool", *_INTEGERS):
        return "int64"
    if encoding == "none" and dtype in _FLOATS:
        return "float32"
    optional = "an optional" if tensor.get("optional") else "a"
    raise ConfigError(f"{name!r} is {optional} tensor of {dtype} with encoding {encoding!r}")


def _default(dtype: str) -> bytes | int | float:
    """Returns the value that TFDS substitutes for a missing optional value."""
    if dtype in _STRINGS:
        return b""
    if dtype in _INTEGERS:
        return int(np.iinfo(dtype).min)
    return 0 if dtype == "bool" else float(np.finfo(dtype).min)


def _encoding(tensor: Mapping[str, Any]) -> str:
    return str(tensor.get("encoding") or "none").lower()


def _known(name: str, shape: tuple[int | None, ...]) -> list[int]:
    dims = [dim for dim in shape if dim]
    if len(dims) < len(shape):
        raise ConfigError(f"{name!r} is a tensor of shape {shape}")
    return dims


def _image(name: str, image: Mapping[str, Any]) -> tuple[Feature, _Step]:
    dtype, shape = image.get("dtype") or "uint8", _shape(image)
    if len(shape) != 3 or shape[2] not in (1, 3, 4) or dtype not in ("uint8", "uint16"):
        raise ConfigError(f"{name!r} is an image of {dtype} and shape {shape}")
    size = None if shape[0] is None or shape[1] is None else (shape[0], shape[1])
    return FixedLenFeature((), "string"), lambda source: source.decode_image(name, shape[2], dtype=dtype, size=size)


def _shape(described: Mapping[str, Any]) -> tuple[int | None, ...]:
    dims = (int(dim) for dim in described.get("shape", {}).get("dimensions", []))
    return tuple(None if dim < 0 else dim for dim in dims)
