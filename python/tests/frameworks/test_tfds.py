"""`from_tfds` over datasets written by TensorFlow Datasets, compared with its own reads."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import shardfeed as sf
from shardfeed.testing import BINARY

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
#: As in question answering, object detection and translation.
COMMON = {
    "photo": GOOD["photo"],
    "answers": tfds.features.Sequence({"text": tfds.features.Text(), "answer_start": np.int32}),
    "objects": tfds.features.Sequence({
        "bbox": tfds.features.BBoxFeature(), "label": tfds.features.ClassLabel(names=["a", "b"]), "is_crowd": np.bool_,
        "polygon": tfds.features.Sequence(np.float32), "inside": {"name": tfds.features.Text()},
    }),
    "translated": tfds.features.Translation(["de", "en"]),
    "translations": tfds.features.TranslationVariableLanguages(["de", "en"]),
    "labels": tfds.features.Sequence(tfds.features.ClassLabel(names=["a", "b"])),
    "words": tfds.features.Sequence(tfds.features.Text()),
    "points": tfds.features.Sequence(tfds.features.Tensor(shape=(2,), dtype=np.float32)),
    "deep": tfds.features.Sequence(tfds.features.Sequence(tfds.features.Sequence(np.int64))),
    "four": tfds.features.Sequence(np.int16, length=4),
    "pairs": tfds.features.Sequence({"name": tfds.features.Text(), "box": tfds.features.BBoxFeature()}, length=2),
    "rows": tfds.features.Tensor(shape=(None, 3), dtype=np.uint8),
    "strings": tfds.features.Tensor(shape=(None,), dtype=np.str_),
    "inner": {"floats": tfds.features.Sequence(np.float64)},
    "may_be": tfds.features.Scalar(np.int32, optional=True),
    "may_be_text": tfds.features.Tensor(shape=(), dtype=np.str_, optional=True),
    "may_be_floats": tfds.features.Tensor(shape=(2,), dtype=np.float32, optional=True),
    "may_be_true": tfds.features.Scalar(np.bool_, optional=True),
}  # fmt: skip
#: TFDS returns these in their declared type; they are stored, and read here, as int64 and float32.
SEQUENCES = {f"sequence_{name}": tfds.features.Sequence(np.dtype(name).type) for name in TYPES}
OPTIONAL = {f"optional_{name}": tfds.features.Scalar(np.dtype(name).type, optional=True) for name in TYPES}
OTHER = {
    "sequence_of_images": tfds.features.Sequence(tfds.features.Image(shape=(4, 5, 1), encoding_format="png")),
    "sequence_of_bytes": tfds.features.Sequence(tfds.features.Tensor(shape=(2,), dtype=np.int32, encoding="bytes")),
    "sequence_uint64": tfds.features.Sequence(np.uint64),
    "two_of_any": tfds.features.Sequence(tfds.features.Sequence(np.int64), length=2),
    "inner": {"dataset": tfds.features.Dataset({"q": np.int64})},
    "length": tfds.features.Tensor(shape=(2, None), dtype=np.int64),
    "length_bytes": tfds.features.Tensor(shape=(None,), dtype=np.int64, encoding="bytes"),
    "zlib": tfds.features.Tensor(shape=(2,), dtype=np.int32, encoding="zlib"),
    "uint64": tfds.features.Tensor(shape=(2,), dtype=np.uint64),
    "optional_bytes": tfds.features.Tensor(shape=(), dtype=np.int64, encoding="bytes", optional=True),
    "float_image": tfds.features.Image(shape=(4, 5, 1), dtype=np.float32),
    "video": tfds.features.Video(shape=(None, 4, 4, 3)),
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


def common(at: int) -> dict[str, Any]:
    """Includes sequences without values; every fourth optional value is missing."""
    n, there = at % 4, at % 4 != 1
    return {
        "photo": record(at)["photo"],
        "answers": {"text": [f"té {at}"] * n, "answer_start": [at + i for i in range(n)]},
        "objects": [
            {"bbox": tfds.features.BBox(0.125 * i, 0.25, 0.5, 1.0), "label": i % 2, "is_crowd": i == 1,
             "polygon": [0.5 * at] * i, "inside": {"name": f"{at}/{i}"}}
            for i in range(n)
        ],
        "translated": {"de": f"eins {at}", "en": f"one {at}"},
        "translations": {"de": f"zwei {at}", "en": ["two", "2"][:n]},
        "labels": [i % 2 for i in range(n)],
        "words": ["w" * i for i in range(n)],
        "points": [[at, i] for i in range(n)],
        "deep": [[[at] * i for i in range(j)] for j in range(n)],
        "four": [at, -at, at, 0],
        "pairs": [{"name": "x" * i, "box": tfds.features.BBox(0.0, 0.25, 0.5, 1.0)} for i in (at, 1)],
        "rows": np.full((n, 3), at, np.uint8),
        "strings": [f"s{i}" for i in range(n)],
        "inner": {"floats": [0.1 * i for i in range(n)]},
        "may_be": at if there else None,
        "may_be_text": f"t{at}" if there else None,
        "may_be_floats": np.array([at, 0.5], np.float32) if there else None,
        "may_be_true": True if there else None,
    }  # fmt: skip


def other(at: int) -> dict[str, Any]:
    return {
        "sequence_of_images": [np.zeros((4, 5, 1), np.uint8)], "sequence_of_bytes": [np.zeros(2, np.int32)],
        "sequence_uint64": [1], "two_of_any": [[1], [1, 2]], "inner": {"dataset": [{"q": 1}]},
        "length": np.zeros((2, at), np.int64), "length_bytes": np.arange(at),
        "zlib": np.zeros(2, np.int32), "uint64": np.zeros(2, np.uint64), "optional_bytes": np.int64(at),
        "float_image": np.zeros((4, 5, 1), np.float32), "video": np.zeros((2, 4, 4, 3), np.uint8),
    }  # fmt: skip


class Whole(tfds.core.GeneratorBasedBuilder):
    """All features that can be read."""

    VERSION = tfds.core.Version("1.2.0")
    features, make = GOOD, staticmethod(record)

    def _info(self) -> Any:
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(self.features))

    def _split_generators(self, _: Any) -> Any:
        return {split: self._generate_examples(count) for split, count in RECORDS.items()}

    def _generate_examples(self, count: int) -> Iterator[Any]:
        return ((at, self.make(at)) for at in range(count))


class Common(Whole):
    """Features of many datasets."""

    features = {"id": tfds.features.Scalar(np.int64), **COMMON}
    make = staticmethod(lambda at: {"id": at, **common(at)})


class Sequences(Whole):
    """A sequence, and an optional value, of every type."""

    features = {"id": tfds.features.Scalar(np.int64), **SEQUENCES, **OPTIONAL}

    @staticmethod
    def make(at: int) -> dict[str, Any]:
        random = np.random.default_rng(at)
        sequences = {name: list(number(random, name.removeprefix("sequence_"), (at % 4,))) for name in SEQUENCES}
        values = {name: number(random, name.removeprefix("optional_"), ())[()] for name in OPTIONAL}
        return {"id": at, **sequences, **(values if at % 4 != 1 else dict.fromkeys(OPTIONAL))}


class Mixed(Whole):
    """Includes features that cannot be read."""

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


def test_every_value_is_what_tfds_gives(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDFEED_CACHE_DIR", str(tmp_path))
    theirs = {int(each["id"]): flat(each) for each in tfds.as_numpy(whole.as_dataset(split="train"))}
    assert len(theirs) == RECORDS["train"]
    source = sf.from_tfds(whole.data_dir, "train")
    assert (len(source.files), source.records) == (3, RECORDS["train"])
    same_size = source.crop("any_size", (3, 4), offset=(0, 0))
    with sf.Loader(same_size, batch_size=5, tail="uneven") as loader:
        seen = [check(batch, row, theirs, NAMES) for batch in loader for row in range(len(batch["id"]))]
    assert sorted(seen) == sorted(theirs)


@pytest.mark.parametrize("builder", [Common, Sequences])
def test_one_call_reads_sequences_translations_and_optional_values(
    builder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDFEED_CACHE_DIR", str(tmp_path / "cache"))
    made = prepare(builder, tmp_path)
    theirs = {int(each["id"]): flat(each) for each in tfds.as_numpy(made.as_dataset(split="train"))}
    assert len(theirs) == RECORDS["train"]
    names = list(theirs[0])
    with sf.Loader(sf.from_tfds(made.data_dir, "train"), batch_size=5, tail="uneven") as loader:
        seen = [check(batch, row, theirs, names) for batch in loader for row in range(len(batch["id"]))]
    assert sorted(seen) == sorted(theirs)


def check_ragged(column: sf.RaggedColumn | sf.RaggedBytesColumn, row: int, wanted: Any, name: str) -> None:
    """The values are TFDS's; their type is that of the record, as operators do not take ragged
    columns."""
    if isinstance(column, sf.RaggedColumn):
        is_float = (wanted.values if isinstance(wanted, tf.RaggedTensor) else wanted).dtype.name.startswith("float")
        assert column.values.dtype == (np.float32 if is_float else np.int64), name
    got = column[row]
    as_list = wanted.to_list() if isinstance(wanted, tf.RaggedTensor) else wanted.tolist()
    assert (got if isinstance(got, list) else got.tolist()) == as_list, name
    if isinstance(got, np.ndarray):
        assert got.shape == wanted.shape, name


def check(batch: sf.Batch, row: int, theirs: dict[int, dict[str, Any]], names: list[str]) -> int:
    identity = int(batch["id"][row])
    assert set(batch) == set(names)
    for name in names:
        wanted = theirs[identity][name]
        if isinstance(batch[name], sf.RaggedColumn | sf.RaggedBytesColumn):
            check_ragged(batch[name], row, wanted, name)
            continue
        got = batch[name][row]
        if name == "any_size":
            wanted = wanted[:3, :4]
        if isinstance(got, bytes | list):
            assert got == (wanted if isinstance(wanted, bytes) else wanted.tolist()), name
        elif name == "photo":
            # TFDS decodes with libjpeg's fast transform, this package with the accurate one.
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
    for name in ("inner/dataset" if name == "inner" else name for name in OTHER):
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


def command(*words: str) -> tuple[int, dict[str, Any]]:
    """Returns the status and output of the command."""
    done = subprocess.run([str(BINARY), *words, "-o", "json"], capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(done.stdout)


def test_its_numbers_of_records_are_known_to_the_command(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read from TFDS's `dataset_info.json`, before a scan; a truncated shard is named."""
    monkeypatch.setenv("SHARDFEED_CACHE_DIR", str(tmp_path / "cache"))
    copy = tmp_path / "whole/1.2.0"
    shutil.copytree(whole.data_dir, copy)
    files = str(copy / "whole-train.tfrecord-*")
    lengths = whole.info.splits["train"].shard_lengths
    status, found = command("dataset", "inspect", "--unscanned", files)
    assert (status, found["records"], found["sidecar_faults"]) == (0, RECORDS["train"], [])
    assert [shard["records"] for shard in found["shards"]] == lengths and len(lengths) == 3
    assert not (tmp_path / "cache").exists()
    status, found = command("dataset", "verify", files)
    assert (status, found["records_ok"], found["sidecar_faults"]) == (0, RECORDS["train"], [])
    assert [file["records_ok"] for file in found["files"]] == lengths
    cut = copy / "whole-train.tfrecord-00001-of-00003"
    with sf.TFRecordWriter(tmp_path / "shorter") as writer:
        for record in list(sf.read_records(cut))[:-1]:
            writer.write(record)
    (tmp_path / "shorter").replace(cut)
    status, found = command("dataset", "verify", files)
    assert (status, found["records_ok"], found["records_damaged"]) == (1, RECORDS["train"] - 1, 0)
    (fault,) = found["sidecar_faults"]
    assert fault["file"] == str(copy / "dataset_info.json")
    assert f"{lengths[1]} records of {cut.name}" in fault["what"]


def test_arrays_of_bfloat16(tmp_path: Path) -> None:
    """Tested here, as TensorFlow provides the `ml_dtypes` for numpy."""
    bfloat16 = tf.bfloat16.as_numpy_dtype
    values = np.arange(32, dtype=np.float32).reshape(16, 2).astype(bfloat16)
    source = sf.from_arrays({"x": values}, tmp_path / "out")
    assert sf.open_source(tmp_path / "out") == source
    with sf.Loader(source, batch_size=16, cache_dir=tmp_path / "cache") as loader:
        (batch,) = loader
    assert batch["x"].dtype == bfloat16
    assert sorted(map(tuple, batch["x"].astype(int).tolist())) == [(2 * row, 2 * row + 1) for row in range(16)]
