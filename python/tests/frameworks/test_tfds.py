"""`from_tfds` over what TensorFlow Datasets itself writes, beside what it reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import shardfeed as sf
from shardfeed import operators as op

RECORDS = {"train": 23, "test": 4}
GOOD = {
    "image": tfds.features.Image(shape=(4, 5, 3), encoding_format="png"),
    "deep": tfds.features.Image(shape=(4, 5, 1), dtype=np.uint16, encoding_format="png"),
    "mask": tfds.features.LabeledImage(labels=7, shape=(4, 5, 1)),
    "photo": tfds.features.Image(shape=(16, 24, 3), encoding_format="jpeg"),
    "any_size": tfds.features.Image(shape=(None, None, 1), encoding_format="png"),
    "label": tfds.features.ClassLabel(names=["a", "b", "c"]),
    "text": tfds.features.Text(),
    "strings": tfds.features.Tensor(shape=(2,), dtype=np.str_),
    "id": tfds.features.Scalar(np.int64),
    "box": tfds.features.BBoxFeature(),
    "deeper": {"number": tfds.features.Scalar(np.int32), "still": {"text": tfds.features.Text()}},
}
TYPES = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "float32", "float64")
GOOD |= {f"scalar_{name}": tfds.features.Scalar(np.dtype(name).type) for name in TYPES}
GOOD |= {f"plain_{name}": tfds.features.Tensor(shape=(2, 3), dtype=np.dtype(name).type) for name in TYPES}
#: TFDS writes uint32 with an encoding, but TensorFlow does not read it.
ENCODED = tuple(name for name in TYPES if name != "uint32")
GOOD |= {
    f"bytes_{name}": tfds.features.Tensor(shape=(2, 3), dtype=np.dtype(name).type, encoding="bytes") for name in ENCODED
}
OTHER = {
    "sequence": tfds.features.Sequence(np.int64),
    "sequence_of_dicts": tfds.features.Sequence({"q": np.int64}),
    "inner": {"sequence": tfds.features.Sequence(np.float32)},
    "length": tfds.features.Tensor(shape=(None,), dtype=np.int64),
    "zlib": tfds.features.Tensor(shape=(2,), dtype=np.int32, encoding="zlib"),
    "uint64": tfds.features.Tensor(shape=(2,), dtype=np.uint64),
    "optional": tfds.features.Scalar(np.int64, optional=True),
    "float_image": tfds.features.Image(shape=(4, 5, 1), dtype=np.float32),
    "video": tfds.features.Video(shape=(None, 4, 4, 3)),
    "translation": tfds.features.Translation(["en", "de"]),
}


def number(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> Any:
    dtype = np.dtype(name)
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    info = np.iinfo(dtype)
    return random.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def record(at: int) -> dict[str, Any]:
    random = np.random.default_rng(at)
    rows, columns = np.mgrid[0:16, 0:24]
    values: dict[str, Any] = {
        "image": number(random, "uint8", (4, 5, 3)),
        "deep": number(random, "uint16", (4, 5, 1)),
        "mask": number(random, "uint8", (4, 5, 1)) % 7,
        "photo": np.stack([100 + rows * 2, 100 + columns * 2, 10 + at * 10 + rows], axis=-1).astype(np.uint8),
        "any_size": number(random, "uint8", (3 + at % 3, 4 + at % 2, 1)),
        "label": at % 3,
        "text": f"té {at}",
        "strings": ["a", "b" * at],
        "id": at,
        "box": tfds.features.BBox(0.125, 0.25, 0.5, 1.0),
        "deeper": {"number": -at, "still": {"text": f"deep {at}"}},
    }
    for name in TYPES:
        values[f"scalar_{name}"] = number(random, name, ())[()]
        values[f"plain_{name}"] = number(random, name, (2, 3))
    for name in ENCODED:
        values[f"bytes_{name}"] = number(random, name, (2, 3))
    return values


def other(at: int) -> dict[str, Any]:
    return {
        "sequence": [1, 2], "sequence_of_dicts": {"q": [1]}, "inner": {"sequence": [0.5]}, "length": np.arange(at),
        "zlib": np.zeros(2, np.int32), "uint64": np.zeros(2, np.uint64), "optional": None,
        "float_image": np.zeros((4, 5, 1), np.float32), "video": np.zeros((2, 4, 4, 3), np.uint8),
        "translation": {"en": "a", "de": "b"},
    }  # fmt: skip


class Whole(tfds.core.GeneratorBasedBuilder):
    """All that is read."""

    VERSION = tfds.core.Version("1.2.0")
    features, make = GOOD, staticmethod(record)

    def _info(self) -> Any:
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(self.features))

    def _split_generators(self, _: Any) -> Any:
        return {split: self._generate_examples(count) for split, count in RECORDS.items()}

    def _generate_examples(self, count: int) -> Iterator[Any]:
        return ((at, self.make(at)) for at in range(count))


class Mixed(Whole):
    """With what is not."""

    features = {"id": tfds.features.Scalar(np.int64), "text": tfds.features.Text(), **OTHER}
    make = staticmethod(lambda at: {"id": at, "text": str(at), **other(at)})


def prepare(builder: Any, folder: Path, **options: Any) -> Any:
    made = builder(data_dir=folder, **options)
    made.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return prepare(Whole, tmp_path_factory.mktemp("whole"))


def flat(example: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    values = {}
    for name, value in example.items():
        values |= flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: value}
    return values


NAMES = sorted(flat(GOOD))
#: A job's operators have 4,096 bytes at most, which these have together only in parts.
PARTS = {
    "scalar": [name for name in NAMES if name.startswith("scalar_")],
    "plain": [name for name in NAMES if name.startswith("plain_")],
    "bytes": [name for name in NAMES if name.startswith("bytes_")],
    "other": [name for name in NAMES if not name.startswith(("scalar_", "plain_", "bytes_", "id"))],
}


@pytest.mark.parametrize("part", PARTS)
def test_every_value_is_what_tfds_gives(
    whole: Any, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDFEED_CACHE_DIR", str(tmp_path))
    theirs = {int(each["id"]): flat(each) for each in tfds.as_numpy(whole.as_dataset(split="train"))}
    assert len(theirs) == RECORDS["train"]
    source = sf.from_tfds(whole.data_dir, "train", columns=["id", *PARTS[part]])
    assert (len(source.files), source.records) == (3, RECORDS["train"])
    same_size = [op.crop("any_size", (3, 4), offset=(0, 0))] if part == "other" else []
    with sf.Loader(source, operators=same_size, batch_size=5, tail="uneven") as loader:
        seen = [check(batch, row, theirs, ["id", *PARTS[part]]) for batch in loader for row in range(len(batch["id"]))]
    assert sorted(seen) == sorted(theirs)


def check(batch: sf.Batch, row: int, theirs: dict[int, dict[str, Any]], names: list[str]) -> int:
    identity = int(batch["id"][row])
    assert set(batch) == set(names)
    for name in names:
        wanted, got = theirs[identity][name], batch[name][row]
        if name == "any_size":
            wanted = wanted[:3, :4]
        if isinstance(got, bytes | list):
            assert got == (wanted if isinstance(wanted, bytes) else wanted.tolist()), name
        elif name == "photo":
            # Decoders of JPEGs differ in the last bits, and TFDS takes the fast one of libjpeg's transforms.
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
            difference = np.abs(got.astype(int) - wanted)
            assert difference.max() <= 6 and difference.mean() <= 1.5
        else:
            assert (got.dtype, got.shape) == (np.asarray(wanted).dtype, np.shape(wanted)), name
            assert got.tobytes() == np.asarray(wanted).tobytes(), name
    return identity


def test_splits_and_columns(whole: Any) -> None:
    test = sf.from_tfds(whole.data_dir, "test", columns=["deeper/number", "label"])
    assert test.records == RECORDS["test"]
    assert test.features is not None and list(test.features) == ["deeper/number", "label"]
    with pytest.raises(sf.ConfigError, match="several splits; split= takes one of train, test"):
        sf.from_tfds(whole.data_dir)
    with pytest.raises(sf.ConfigError, match=r"no split 'train\[:10%\]'"):
        sf.from_tfds(whole.data_dir, "train[:10%]")
    with pytest.raises(sf.ConfigError, match="no column 'colour', but any_size, box"):
        sf.from_tfds(whole.data_dir, "train", columns=["label", "colour"])


def test_all_columns_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    folder = prepare(Mixed, tmp_path).data_dir
    with pytest.raises(sf.ConfigError) as caught:
        sf.from_tfds(folder, "train")
    text = str(caught.value)
    for name in ("inner/sequence" if name == "inner" else name for name in OTHER):
        assert f"{name!r} is " in text, name
    assert "Read the others with columns=['id', 'text']" in text
    assert text.count("' is ") == len(OTHER)
    source = sf.from_tfds(folder, "train", columns=["id", "text"])
    with sf.Loader(source, batch_size=4, tail="uneven", cache_dir=tmp_path / "cache") as loader:
        texts = {int(at): text for batch in loader for at, text in zip(batch["id"], batch["text"], strict=True)}
    assert texts == {at: str(at).encode() for at in range(RECORDS["train"])}


def test_what_is_missing_is_named(whole: Any, tmp_path: Path) -> None:
    copy = tmp_path / "whole/1.2.0"
    shutil.copytree(whole.data_dir, copy)
    with pytest.raises(sf.DatasetNotFoundError, match=rf"there is one in {copy}"):
        sf.from_tfds(copy.parent, "train")
    (copy / "whole-train.tfrecord-00001-of-00003").unlink()
    with pytest.raises(sf.DatasetNotFoundError, match=r"00001-of-00003: is not there, and 1 of 3 files of .* 'train'"):
        sf.from_tfds(copy, "train")
    (copy / "whole-train.tfrecord-00001-of-00003").write_bytes(b"")
    with pytest.raises(sf.ShardChangedError, match="records, but 23 were written"):
        sf.Loader(sf.from_tfds(copy, "train", columns=["id"]), batch_size=2, cache_dir=tmp_path / "cache")
    info = json.loads((copy / "dataset_info.json").read_text())
    (copy / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "array_record"}))
    with pytest.raises(sf.ConfigError, match='array_record; prepare it with file_format="tfrecord"'):
        sf.from_tfds(copy, "train")


def test_arrays_of_bfloat16(tmp_path: Path) -> None:
    """Here, as numpy has them of the `ml_dtypes` that TensorFlow brings."""
    bfloat16 = tf.bfloat16.as_numpy_dtype
    values = np.arange(32, dtype=np.float32).reshape(16, 2).astype(bfloat16)
    source = sf.from_arrays({"x": values}, tmp_path / "out")
    assert sf.open_source(tmp_path / "out") == source
    with sf.Loader(source, batch_size=16, cache_dir=tmp_path / "cache") as loader:
        (batch,) = loader
    assert batch["x"].dtype == bfloat16
    assert sorted(map(tuple, batch["x"].astype(int).tolist())) == [(2 * row, 2 * row + 1) for row in range(16)]
