"""loader.as_tf_dataset(): element_spec, epochs, states under prefetch, tf.distribute and Keras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import mixed
import numpy as np
import pytest
import tensorflow as tf

import shardfeed as sf


# While tests are collected, as TensorFlow takes it only before it has done anything.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture
def files(tmp_path: Path) -> str:
    return mixed.write(tmp_path / "data")


def ids(elements: Any) -> list[list[int]]:
    return [element["id"].numpy().tolist() for element in elements]


def order(files: str, **options: Any) -> list[list[int]]:
    each = mixed.loader(files, **options)
    return [batch["id"].tolist() for _ in range(3) for batch in each]


@pytest.mark.parametrize("output", ["numpy", "tf"])
def test_one_pass_is_one_epoch(files: str, output: Any) -> None:
    dataset = mixed.loader(files, output=output).as_tf_dataset()
    passes = [ids(dataset) for _ in range(3)]
    assert [len(each) for each in passes] == [6, 6, 6]
    assert sum(passes, []) == order(files)


@pytest.mark.parametrize("tail", ["drop", "pad", "uneven"])
def test_the_spec_is_static_and_true(files: str, tail: str) -> None:
    """Each column's values are compared in test_tf_output.py; here with the batches."""
    each = mixed.loader(files, tail=tail, batch_size=20)
    dataset = each.as_tf_dataset(valid="valid")
    rows = None if tail == "uneven" else 20
    assert dataset.element_spec == {
        "id": tf.TensorSpec([rows], tf.int64),
        "image": tf.TensorSpec([rows, 2, 3], tf.float32),
        "name": tf.TensorSpec([rows], tf.string),
        "list": tf.RaggedTensorSpec([rows, None], tf.int64, 1, tf.int64),
        "words": tf.RaggedTensorSpec([rows, None], tf.string, 1, tf.int64),
        "at": tf.SparseTensorSpec([rows, 10], tf.float32),
        "padded": tf.TensorSpec([rows, None], tf.int64),
        "deep": tf.RaggedTensorSpec([rows, None, None], tf.float32, 2, tf.int64),
        "valid": tf.TensorSpec([rows], tf.bool),
    }
    batches = list(mixed.loader(files, tail=tail, batch_size=20))
    elements = list(dataset)
    assert len(elements) == len(batches) == (2 if tail == "drop" else 3)
    for element, batch in zip(elements, batches, strict=True):
        for name in ("id", "image", "padded"):
            np.testing.assert_array_equal(element[name], batch[name])
        assert element["valid"].numpy().tolist() == batch.valid.tolist()
        assert element["name"].numpy().tolist() == batch["name"].tolist()
        for name in ("list", "words", "deep"):
            assert element[name].to_list() == batch[name].tolist()
        np.testing.assert_array_equal(tf.sparse.to_dense(element["at"]), batch["at"].to_dense())
        assert all(spec.is_compatible_with(element[name]) for name, spec in dataset.element_spec.items())


@pytest.mark.parametrize("dtype", mixed.DTYPES)
def test_every_type(files: str, dtype: str) -> None:
    for output in ("numpy", "tf"):
        dataset = mixed.casts(files, output, (dtype,)).as_tf_dataset()
        (element,) = dataset.take(1)
        assert dataset.element_spec[dtype].dtype == element[dtype].dtype == tf.as_dtype(dtype)
        expected = np.arange(6).reshape(1, 2, 3)
        shown = tf.cast(element[dtype], tf.float64).numpy()
        assert shown.tolist() == (expected > 0 if dtype == "bool" else expected).tolist()


def test_nested_and_uniform_partitions_of_sequences(tmp_path: Path) -> None:
    ragged = sf.RaggedFeature
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for _ in range(2):
            writer.write(sf.encode_sequence_example({"a": [1, 2], "len": [1, 1]}, {"f": [[1, 2], [3]], "g": [[4]]}))
    features: dict[str, Any] = {
        "r": ragged("int64", "a", [ragged.RowLengths("len")]),
        "u": ragged("int64", "a", [ragged.UniformRowLength(2)]),
        "uu": ragged("int64", "a", [ragged.UniformRowLength(1), ragged.RowLengths("len")]),
    }
    lists = {"f": sf.VarLenFeature("int64"), "g": ragged("int64", "g")}
    each = sf.Loader(tmp_path / "x.tfrecord", features, sequence_features=lists, batch_size=2)
    dataset = each.as_tf_dataset()
    (element,) = dataset
    batch = next(iter(each))
    for name, spec in dataset.element_spec.items():
        assert spec.ragged_rank == element[name].ragged_rank == len(batch[name].nested_row_splits)
        assert element[name].to_list() == batch[name].tolist()


def test_tensorflow_does_not_shard_it(files: str) -> None:
    dataset = mixed.loader(files, outputs=["id", "image"]).as_tf_dataset()
    policy = dataset.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    got = []
    for element in strategy.experimental_distribute_dataset(dataset):
        parts = strategy.experimental_local_results(element["id"])
        assert [len(part) for part in parts] == [4, 4]
        got.append([number for part in parts for number in part.numpy().tolist()])
    assert got == order(files)[:6]


@pytest.mark.parametrize("taken", [1, 5, 6, 8])
def test_a_state_of_each_element_holds_under_prefetch(files: str, taken: int) -> None:
    each = mixed.loader(files)
    dataset = each.as_tf_dataset(state="state").prefetch(3)
    elements = [element for _ in range(2) for element in dataset]
    assert ids(elements[:taken]) == order(files)[:taken]
    state = json.loads(elements[taken - 1]["state"].numpy())
    assert mixed.loader(files, resume=state).as_tf_dataset().element_spec
    again = mixed.loader(files, resume=state)
    rest: list[list[int]] = []
    while len(rest) < 12 - taken:
        rest += ids(again.as_tf_dataset())
    assert rest[: 12 - taken] == order(files)[taken:12]


def test_a_pass_that_was_left_is_told_of(files: str, caplog: pytest.LogCaptureFixture) -> None:
    """What was fetched ahead is gone then, as TensorFlow does not say what of it was used."""
    each = mixed.loader(files)
    dataset = each.as_tf_dataset(state="state")
    assert len(ids(dataset)) == 6 and len(ids(dataset)) == 6
    state = json.loads(next(iter(dataset.prefetch(2)))["state"].numpy())
    assert not caplog.messages
    each.load_state_dict(state)
    assert ids(dataset) == order(files)[13:]
    assert not caplog.messages
    next(iter(dataset))
    ids(dataset)
    (message,) = caplog.messages
    assert message.startswith("a pass over as_tf_dataset() was left inside of epoch 3, and the next one goes on")


def test_keras_fits(files: str) -> None:
    """The target is a linear function of the image, so that its loss goes to zero."""
    each = mixed.loader(files, tail="pad", batch_size=9)
    seen: list[int] = []

    def pair(element: dict[str, Any]) -> tuple[Any, Any, Any]:
        tf.py_function(lambda ids: seen.extend(ids.numpy().tolist()), [element["id"]], [])
        image = tf.reshape(element["image"], [-1, 6]) / 50
        return image, tf.reduce_sum(image, axis=1, keepdims=True), tf.cast(element["valid"], tf.float32)

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse", weighted_metrics=[])
    history = model.fit(each.as_tf_dataset(valid="valid").map(pair), epochs=60, verbose=0)
    assert len(history.history["loss"]) == 60 and history.history["loss"][-1] < 1e-2
    assert each.epoch == 60 and len(seen) == 60 * 6 * 9
    assert set(seen) == set(range(mixed.ROWS))


def test_what_cannot_be_is_refused(files: str) -> None:
    with pytest.raises(sf.ConfigError, match="'id' is the name of a column already"):
        mixed.loader(files).as_tf_dataset(valid="id")
    with pytest.raises(sf.ConfigError, match="'x' is the name of a column already"):
        mixed.loader(files).as_tf_dataset(valid="x", state="x")


def test_a_loaders_error_comes_through(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for number in range(8):
            writer.write({"id": number} if number != 6 else {"other": 1})
    features = {"id": sf.FixedLenFeature((), "int64")}
    each = sf.Loader(tmp_path / "x.tfrecord", features, batch_size=2, shuffle=False)
    got = []
    with pytest.raises(tf.errors.OpError, match=r"FeatureError: .*x.tfrecord: record 6 at offset"):
        for element in each.as_tf_dataset():
            got.append(element["id"].numpy().tolist())
    assert got == [[0, 1], [2, 3], [4, 5]]
