"""`tf.io`'s own features, and TensorFlow's protocol buffers, in place of shardfeed's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mixed
import numpy as np
import pytest
import tensorflow as tf

import shardfeed as sf

THEIRS: dict[str, Any] = {
    "id": tf.io.FixedLenFeature([], tf.int64),
    "image": tf.io.FixedLenFeature(tf.TensorShape([2, 3]), tf.float32),
    "name": tf.io.FixedLenFeature((), tf.string, default_value=tf.constant("nobody")),
    "absent": tf.io.FixedLenFeature([2], tf.int64, default_value=[1, 2]),
    "list": tf.io.VarLenFeature(tf.int64),
    "words": tf.io.VarLenFeature(tf.string),
    "at": tf.io.SparseFeature("place", "weight", tf.float32, 10),
    "padded": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True, default_value=-1),
    "deep": tf.io.RaggedFeature(tf.float32, value_key="value", partitions=[tf.io.RaggedFeature.RowLengths("length")]),
}


def test_features_of_tensorflow_give_what_its_parser_gives(tmp_path: Path) -> None:
    files = mixed.write(tmp_path)
    records = [record for shard in range(2) for record in sf.read_records(tmp_path / f"part-{shard}.tfrecord")]
    expected = tf.io.parse_example(records, THEIRS)
    loader = sf.Loader(files, THEIRS, batch_size=len(records), shuffle=False)
    (element,) = loader.as_tf_dataset()
    assert set(element) == set(expected)
    for name, value in element.items():
        theirs = expected[name]
        if isinstance(theirs, tf.sparse.SparseTensor):
            ours = value if isinstance(value, tf.sparse.SparseTensor) else value.to_sparse()
            assert (ours.indices.numpy() == theirs.indices.numpy()).all()
            ours, theirs = ours.values, theirs.values
        elif isinstance(theirs, tf.RaggedTensor):
            assert value.to_list() == theirs.to_list()
            continue
        else:
            ours = value
        assert ours.dtype == theirs.dtype and np.array_equal(ours.numpy(), theirs.numpy()), name


@pytest.mark.parametrize("parts", sorted(mixed.PARTITIONS))
def test_partitions_of_tensorflow(tmp_path: Path, parts: str) -> None:
    records = mixed.parted(tmp_path / "x.tfrecord")
    features = {"x": tf.io.RaggedFeature(tf.float32, "number", mixed.PARTITIONS[parts](tf.io.RaggedFeature))}
    loader = sf.Loader(tmp_path / "x.tfrecord", features, batch_size=len(records), shuffle=False)
    (element,) = loader.as_tf_dataset()
    assert element["x"].to_list() == tf.io.parse_example(records, features)["x"].to_list()


def test_a_feature_list_of_tensorflow(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write(sf.encode_sequence_example({}, {"i": [[1], [7]]}))
    lists = {"i": tf.io.FixedLenSequenceFeature([1], tf.int64)}
    with sf.Loader(tmp_path / "x.tfrecord", sequence_features=lists, batch_size=1) as loader:
        assert next(iter(loader))["i"].tolist() == [[[1], [7]]]


def test_what_only_looks_like_a_feature_is_refused() -> None:
    class FixedLenFeature:
        shape, dtype, default_value = (), "int64", None

    for wrong in (FixedLenFeature(), tf.TensorSpec([], tf.int64)):
        with pytest.raises(sf.ConfigError, match="of shardfeed or tf.io, not"):
            sf.Loader("x", {"x": wrong}, batch_size=1)


def test_examples_of_tensorflow_are_records(tmp_path: Path) -> None:
    def feature(value: int) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    examples = [tf.train.Example(features=tf.train.Features(feature={"id": feature(n)})) for n in range(3)]
    lists = tf.train.FeatureLists(feature_list={"id": tf.train.FeatureList(feature=[feature(9)])})
    examples.append(tf.train.SequenceExample(feature_lists=lists))
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for example in examples:
            writer.write(example)
    assert list(sf.read_records(tmp_path / "x.tfrecord")) == [example.SerializeToString() for example in examples]
    source = sf.write_dataset(examples, tmp_path / "out")
    assert source.records == 4


def test_a_filter_takes_what_that_of_tensorflow_takes(tmp_path: Path) -> None:
    """The same rows in the same order as TensorFlow's operations, on random records."""
    rng = np.random.default_rng(5)
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for number in range(500):
            score = np.float32(rng.choice([np.nan, -1.5, 0.5, rng.normal()]))
            width = int(rng.integers(-50, 100))
            writer.write({"id": number, "width": width, "score": score, "lang": rng.choice(["en", "de", "fr"])})
    features = {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "width": tf.io.FixedLenFeature([], tf.int64),
        "score": tf.io.FixedLenFeature([], tf.float32),
        "lang": tf.io.FixedLenFeature([], tf.string),
    }
    both = (
        ("width >= 64 and lang == 'en'", lambda row: (row["width"] >= 64) & (row["lang"] == b"en")),
        ("width % 7 == 3 or score > 0.25", lambda row: (row["width"] % 7 == 3) | (row["score"] > 0.25)),
        ("not score < 0.5 and width // 10 != 3", lambda row: ~(row["score"] < 0.5) & (row["width"] // 10 != 3)),
        ("lang in ('de', 'fr') and abs(width) < 30", lambda row: (row["lang"] != b"en") & (tf.abs(row["width"]) < 30)),
    )
    for expression, predicate in both:
        theirs = tf.data.TFRecordDataset(str(tmp_path / "x.tfrecord"))
        theirs = theirs.map(lambda record: tf.io.parse_single_example(record, features))
        # Not in a graph, where TensorFlow replaces `not a < b` by `a >= b`, which differs for NaN.
        expected = [int(row["id"]) for row in theirs if bool(predicate(row))]
        source = sf.source(tmp_path / "x.tfrecord", features).filter(expression)
        with sf.Loader(source, batch_size=16, shuffle=False, tail="uneven") as loader:
            found = [int(number) for batch in loader for number in batch["id"][batch.valid]]
        assert found == expected and 0 < len(found) < 500, expression


@pytest.mark.parametrize("stride", [1, 3, 5, 8])
@pytest.mark.parametrize("partial", ["drop", "pad"])
def test_windows_are_those_of_tf_data(tmp_path: Path, stride: int, partial: Any) -> None:
    files = mixed.write(tmp_path)
    features = {"id": THEIRS["id"], "image": THEIRS["image"]}
    expected = []
    for shard in range(2):
        records = tf.data.TFRecordDataset(str(tmp_path / f"part-{shard}.tfrecord"))
        for window in records.window(5, shift=stride, drop_remainder=partial == "drop"):
            parsed = tf.io.parse_example(list(window.as_numpy_iterator()), features)
            expected.append((parsed["id"].numpy().tolist(), parsed["image"].numpy().tolist()))
    source = sf.source(files, features).window(size=5, stride=stride, partial=partial)
    found = []
    for batch in sf.Loader(source, batch_size=3, shuffle=False, tail="pad"):
        for row in np.flatnonzero(batch.valid):
            length = batch["window_length"][row] if partial == "pad" else 5
            found.append((batch["id"][row][:length].tolist(), batch["image"][row][:length].tolist()))
    assert found == expected
