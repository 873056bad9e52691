"""Datasets that TensorFlow Datasets wrote to disk, without it and without TensorFlow.

What is in the records is in two files beside them, `dataset_info.json` and `features.json`. TFDS stores integers and
bool as int64, all floats as float32, images as PNG or JPEG, tensors with an encoding as their bytes, and features of
a dict under `outer/inner`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardfeed import operators
from shardfeed.errors import ConfigError, DatasetNotFoundError
from shardfeed.features import FixedLenFeature
from shardfeed.operators import Operator
from shardfeed.sources import Source

_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")
_FLOATS = ("float16", "float32", "float64")
_STRINGS = ("string", "str", "object")


def from_tfds(
    directory: str | os.PathLike[str], split: str | None = None, *, columns: Sequence[str] | None = None
) -> Source:
    """A split of a dataset that TFDS has prepared, as `Loader` takes it: its files, and what is in them.

        loader = sf.Loader(sf.from_tfds("~/tensorflow_datasets/mnist/3.0.1", "train"), batch_size=32)

    Columns are what TFDS gives: `Tensor`, `Scalar`, `ClassLabel` and `BBoxFeature` as numbers of their type, `Text`
    and strings as bytes, `Image` and `LabeledImage` decoded. Dicts in dicts give columns `outer/inner`. Images
    without a fixed size need an operator that gives them one: `Loader(source, operators=[op.resize("image", 224)],
    ...)`.

    - `directory`: the one of a version, with `dataset_info.json`; local or mounted.
    - `split`: such as "train", whole; may be left out if there is one.
    - `columns`: those that are wanted; None: all.

    Raises `ConfigError` for columns of other kinds (`Sequence`, `Video`, `Audio`, sizes that differ, optional ones,
    uint64, zlib), all of which it lists, for splits and versions that are not there, for other file formats;
    `DatasetNotFoundError` for missing files.
    """
    folder = Path(os.path.abspath(os.path.expanduser(os.fspath(directory))))
    info = _json(folder, "dataset_info.json")
    found = _split(folder, info, split)
    files = tuple(str(folder / name) for name in found.files)
    missing = [file for file in files if not os.path.exists(file)]
    if missing:
        raise DatasetNotFoundError(
            f"{missing[0]}: is not there, and {len(missing)} of {len(files)} files of the split {found.name!r} are "
            f"not; download or prepare the dataset anew"
        )
    described = _json(folder, "features.json")
    if "featuresDict" not in described:
        raise ConfigError(
            f"{folder / 'features.json'}: is not a dict of features as TFDS 4.9 writes it; prepare "
            f"the dataset with that, or pass its files and features to Loader"
        )
    wanted = _wanted(folder, dict(_flat("", described["featuresDict"])), columns)
    features, made, refused = {}, [], []
    for name, feature in wanted.items():
        try:
            features[name], added = _column(name, feature)
        except ConfigError as error:
            refused.append(str(error))
            continue
        made += added
    if refused:
        can = f"columns={sorted(features)}" if features else "Loader(files, features)"
        raise ConfigError(f"{folder} has columns that cannot be read: {'; '.join(refused)}. Read the others with {can}")
    return Source(files, features, tuple(made), found.records)


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


def _flat(prefix: str, features_dict: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, feature in features_dict.get("features", {}).items():
        if "featuresDict" in feature:
            yield from _flat(f"{prefix}{name}/", feature["featuresDict"])
        else:
            yield prefix + name, feature


def _wanted(
    folder: Path, there: dict[str, Mapping[str, Any]], columns: Sequence[str] | None
) -> dict[str, Mapping[str, Any]]:
    if columns is None:
        return there
    if isinstance(columns, str) or not columns:
        raise ConfigError(f"columns is a list of names, not {columns!r}")
    unknown = [name for name in columns if name not in there]
    if unknown:
        raise ConfigError(f"{folder} has no column {unknown[0]!r}, but {', '.join(sorted(there))}")
    return {name: there[name] for name in columns}


def _column(name: str, feature: Mapping[str, Any]) -> tuple[FixedLenFeature, list[Operator]]:
    """What is in the records under the name, and what makes the column of it."""
    kind = str(feature.get("pythonClassName", "")).rpartition(".")[2]
    match kind:
        case "Text":
            return FixedLenFeature((), "string"), []
        case "ClassLabel":
            return FixedLenFeature((), "int64"), []
        case "Image" | "LabeledImage":
            return _image(name, feature["image"])
        case "BBoxFeature":
            return _tensor(name, {"dtype": "float32", "shape": {"dimensions": ["4"]}})
        case "Tensor" | "Scalar":
            return _tensor(name, feature["tensor"])
        case _:
            raise ConfigError(f"{name!r} is a {kind or 'feature without a name'}")


def _tensor(name: str, tensor: Mapping[str, Any]) -> tuple[FixedLenFeature, list[Operator]]:
    dtype, shape = tensor["dtype"], _shape(tensor)
    encoding = str(tensor.get("encoding") or "none").lower()
    if tensor.get("optional"):
        raise ConfigError(f"{name!r} is optional")
    if None in shape or 0 in shape:
        raise ConfigError(f"{name!r} is a tensor of shape {shape}")
    dims = [dim for dim in shape if dim is not None]
    if encoding == "bytes" and dtype in ("bool", "bfloat16", *_INTEGERS, *_FLOATS):
        return FixedLenFeature((), "string"), [operators.decode_raw(name, dtype, dims)]
    if encoding == "none" and dtype in _STRINGS:
        return FixedLenFeature(dims, "string"), []
    stored = "int64" if dtype in ("bool", *_INTEGERS) else "float32"
    if encoding == "none" and dtype in ("bool", *_INTEGERS, *_FLOATS):
        return FixedLenFeature(dims, stored), [] if dtype == stored else [operators.cast(name, dtype)]
    raise ConfigError(f"{name!r} is a tensor of {dtype} with encoding {encoding!r}")


def _image(name: str, image: Mapping[str, Any]) -> tuple[FixedLenFeature, list[Operator]]:
    dtype, shape = image.get("dtype") or "uint8", _shape(image)
    if len(shape) != 3 or shape[2] not in (1, 3, 4) or dtype not in ("uint8", "uint16"):
        raise ConfigError(f"{name!r} is an image of {dtype} and shape {shape}")
    size = None if shape[0] is None or shape[1] is None else (shape[0], shape[1])
    return FixedLenFeature((), "string"), [operators.decode_image(name, shape[2], dtype=dtype, size=size)]


def _shape(described: Mapping[str, Any]) -> tuple[int | None, ...]:
    dims = (int(dim) for dim in described.get("shape", {}).get("dimensions", []))
    return tuple(None if dim < 0 else dim for dim in dims)
