"""loader.as_tf_dataset(): element_spec, epochs, states under prefetch, tf.distribute and Keras."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import mixed
import numpy as np
import pytest
from recount import parse
import tensorflow as tf

import shardfeed as sf


# At collection time, as TensorFlow accepts it only before its first use.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture
def files(tmp_path: Path) -> str:
    return mixed.write(tmp_path / "data")


def ids(elements: Any) -> list[list[int]]:
    return [element["id"].numpy().tolist() for element in elements]


def order(files: str, *, epochs: int = 3, **options: Any) -> list[list[int]]:
    each = mixed.loader(files, **options)
    return [batch["id"].tolist() for _ in range(epochs) for batch in each]


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


def test_skip_counts_from_the_elements_that_were_used(files: str) -> None:
    each = mixed.loader(files)
    dataset = each.as_tf_dataset().prefetch(4)
    used = [element for _, element in zip(range(2), dataset, strict=False)]
    assert each.step > 2, "TensorFlow fetched ahead"
    each.skip(2)
    rest = list(each.as_tf_dataset())
    assert ids(used) + ids(rest) == order(files)[:2] + order(files)[4:6]


def delivered(ledger: Path) -> list[list[int]]:
    """Returns the ids of each step in the loader's ledger: a record is `shard + 2 * ordinal`."""
    steps: list[list[int]] = []
    last = None
    for line in (ledger / "rank-0").read_text().splitlines():
        if line.startswith("start"):
            continue
        found = parse(line)
        if (found.epoch, found.step) != last:
            steps.append([])
        last = found.epoch, found.step
        steps[-1].append(int(Path(found.shard).stem.removeprefix("part-")) + 2 * found.record)
    return steps


Make = Callable[[Any], Any]
AHEAD: dict[str, Make] = {
    "as it is": lambda dataset: dataset,
    "prefetch": lambda dataset: dataset.prefetch(3),
    "autotuned": lambda dataset: dataset.prefetch(tf.data.AUTOTUNE),
    "parallel map": lambda dataset: dataset.map(lambda x: {"id": x["id"]}, num_parallel_calls=2).prefetch(2),
    "more than an epoch": lambda dataset: dataset.prefetch(100),
    "options": lambda dataset: dataset.prefetch(2).with_options(tf.data.Options()).map(lambda x: dict(x)),
}


@pytest.mark.parametrize("ahead", AHEAD)
def test_a_pass_that_was_left_goes_on_in_the_next_one(
    files: str, ahead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any fetch-ahead, all epochs are complete and in order, and the loader delivered each
    batch once."""
    whole = order(files, epochs=4)
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    each = mixed.loader(files)
    dataset = AHEAD[ahead](each.as_tf_dataset())
    got = ids(dataset.take(1))
    for element in dataset:
        got += ids([element])
        if len(got) == 3:
            break
    got += ids([next(iter(dataset))])
    kept = iter(dataset)
    got += ids([next(kept)])
    passes = [got, ids(dataset), ids(dataset), ids(dataset.take(6)), ids(dataset)]
    assert [len(each) for each in passes] == [5, 1, 6, 6, 6]
    assert sum(passes, []) == delivered(tmp_path / "ledger") == whole


def test_a_pass_is_one_at_a_time(files: str) -> None:
    dataset = mixed.loader(files).as_tf_dataset().prefetch(2)
    first = iter(dataset)
    next(first)
    second = iter(dataset)
    assert ids([next(second)]) == order(files)[1:2]
    with pytest.raises(tf.errors.OpError, match="another pass over as_tf_dataset.. has begun since"):
        for _ in first:
            pass
    assert ids(second) == order(files)[2:6]


@pytest.mark.parametrize("ahead", AHEAD)
def test_the_loaders_state_is_that_of_what_was_used(files: str, ahead: str) -> None:
    each = mixed.loader(files)
    dataset = AHEAD[ahead](each.as_tf_dataset())
    used = 0
    for _ in range(2):
        for _ in dataset:
            used += 1
            again = mixed.loader(files, resume=each.state_dict())
            rest = [batch["id"].tolist() for _ in range(2) for batch in again]
            assert (rest + order(files))[0] == order(files)[used]
    left = next(iter(dataset))
    state = each.state_dict()
    assert ids([left]) + ids(mixed.loader(files, resume=state).as_tf_dataset()) == order(files)[12:18]


def test_a_loader_that_is_told_where_to_go_on_goes_there(files: str) -> None:
    """It does not continue at TensorFlow's position."""
    each = mixed.loader(files)
    dataset = each.as_tf_dataset().prefetch(2)
    start = each.state_dict()
    next(iter(dataset))
    each.load_state_dict(start)
    assert ids(dataset.take(2)) == order(files)[:2]
    each.set_epoch(2)
    assert ids(dataset.take(1)) == order(files)[12:13]
    # Batches taken outside of TensorFlow follow those that it fetched.
    position = next(iter(each)).step
    assert each.state_dict() == json.loads(each._native.state())
    assert ids(dataset) == order(files)[12 + position + 1 : 18]


def test_other_transformations_use_what_they_take(files: str) -> None:
    each = mixed.loader(files, outputs=["id"])
    repeated = each.as_tf_dataset(state="state").repeat().prefetch(2)
    elements = [element for _, element in zip(range(8), repeated, strict=False)]
    assert ids(elements) == order(files)[:8]
    state = json.loads(elements[-1]["state"].numpy())
    each.load_state_dict(state)
    pairs = each.as_tf_dataset().map(lambda x: (x["id"], x["id"] + 1)).batch(2)
    (first, *_) = pairs.map(lambda a, b: [a, b])
    assert first[0].numpy().tolist() == order(files)[8:10] and (first[1] == first[0] + 1).numpy().all()


def test_loops_of_a_graph(files: str) -> None:
    """With `take()` they use all elements that they take, and so does an iterator in a graph."""
    dataset = mixed.loader(files).as_tf_dataset().prefetch(2)

    @tf.function
    def two() -> Any:
        seen = tf.TensorArray(tf.int64, 0, True)
        for number, element in dataset.take(2).enumerate():
            seen = seen.write(tf.cast(number, tf.int32), element["id"])
        return seen.stack()

    @tf.function
    def one(elements: Any) -> Any:
        return next(elements)["id"]

    got = two().numpy().tolist() + two().numpy().tolist() + [one(iter(dataset)).numpy().tolist()]
    assert got + ids(dataset) == order(files)[:6]


def test_keras_goes_on_where_it_was_left(files: str) -> None:
    """After `take()` of a batch, a fit that is stopped inside an epoch, and another one that Keras
    cuts."""
    each = mixed.loader(files, tail="pad", batch_size=9)
    seen: list[list[int]] = []

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 1

    class Model(keras.Model):
        def train_step(self, data: Any) -> Any:
            image, target, number = data
            tf.py_function(lambda numbers: seen.append(numbers.numpy().tolist()), [number], [])
            return super().train_step((image, target))

    dataset = each.as_tf_dataset().map(
        lambda x: (tf.reshape(x["image"], [-1, 6]), tf.reduce_sum(x["image"], [1, 2]), x["id"])
    ).prefetch(2)  # fmt: skip
    inputs = keras.Input([6])
    model = Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(optimizer="sgd", loss="mse")
    looked_at = [numbers.numpy().tolist() for _, _, numbers in dataset.take(1)]
    model.fit(dataset, epochs=9, callbacks=[Stop()], verbose=0)
    assert len(seen) == 2
    # The rest of the epoch has 3 steps. Keras cuts the next one, as it assumes that number for all
    # epochs.
    model.fit(dataset, epochs=2, verbose=0)
    steps = 1 + len(seen)
    assert 6 < steps < 12
    whole = order(files, tail="pad", batch_size=9)
    assert looked_at + seen == whole[:steps]
    state = each.state_dict()
    assert next(iter(mixed.loader(files, tail="pad", batch_size=9, resume=state)))["id"].tolist() == whole[steps]


def test_keras_fits(files: str) -> None:
    """The target is a linear function of the image, so the loss goes to zero."""
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
    with pytest.raises(sf.ConfigError, match="'x' is the name of a column already"):
        mixed.mixture(files).as_tf_dataset(valid="x", source="x")
    with pytest.raises(sf.ConfigError, match=r"source='s' is for a loader of sf.mix\(...\), and this one reads no mixture"):
        mixed.loader(files).as_tf_dataset(source="s")


@pytest.mark.parametrize("output", ["numpy", "tf"])
@pytest.mark.parametrize("tail", ["drop", "uneven"])
def test_sources_of_a_mixture(files: str, output: Any, tail: Any) -> None:
    options: dict[str, Any] = {"tail": tail, "batch_size": 10}
    dataset = mixed.mixture(files, output=output, **options).as_tf_dataset(source="source", valid="valid")
    assert dataset.element_spec["source"] == tf.TensorSpec([10 if tail == "drop" else None], tf.int32)
    elements, batches = list(dataset), list(mixed.mixture(files, **options))
    assert len(elements) == len(batches) == (4 if tail == "drop" else 5)
    for element, batch in zip(elements, batches, strict=True):
        assert element["id"].numpy().tolist() == batch["id"].tolist()
        assert element["source"].numpy().tolist() == batch.source.tolist()
    assert {int(source) for element in elements for source in element["source"]} == {0, 1}


PROGRAMS: dict[str, Callable[[sf.Source], sf.Source]] = {
    "pack": lambda source: source.pack("list", length=5, append=-1),
    "unbatch": lambda source: source.unbatch("list").filter("list != 1"),
    "window": lambda source: source.window("id", "image", size=3, partial="pad"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_samples_that_are_no_records(files: str, program: str) -> None:
    features = {name: mixed.FEATURES[name] for name in ("id", "image", "list")}
    if program == "window":
        del features["list"]
    source = PROGRAMS[program](sf.source(files, features))
    dataset = sf.Loader(source, batch_size=4).as_tf_dataset()
    elements, batches = list(dataset), list(sf.Loader(source, batch_size=4))
    assert len(elements) == len(batches) > 3
    for element, batch in zip(elements, batches, strict=True):
        assert set(element) == set(batch) == set(dataset.element_spec)
        for name, spec in dataset.element_spec.items():
            assert spec.is_compatible_with(element[name])
            np.testing.assert_array_equal(element[name], batch[name])


def test_every_method_of_a_dataset_is_a_method_or_names_its_equivalent(files: str) -> None:
    source = sf.source(files, mixed.FEATURES)
    for name in (name for name in dir(tf.data.Dataset) if not name.startswith("_") and not hasattr(source, name)):
        with pytest.raises(AttributeError, match=rf"^Source has no {name}\(\): "):
            getattr(source, name)


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


def test_a_pass_that_continues_one_that_was_left_warns_once(tmp_path: Path) -> None:
    files = mixed.write(tmp_path / "data")
    dataset = mixed.loader(files).as_tf_dataset()
    assert len(list(dataset.take(2))) == 2
    with pytest.warns(UserWarning, match="make the loader with restart=True"):
        assert len(list(dataset.take(2))) == 2
    meant = mixed.loader(files, restart=False).as_tf_dataset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for again in (dataset, meant, meant):
            assert len(list(again.take(1))) == 1


def test_every_pass_of_a_restarting_loader_is_the_same(tmp_path: Path) -> None:
    """Also after abandoned passes, with elements that TensorFlow had fetched ahead."""
    files = mixed.write(tmp_path / "data")
    whole = [batch["id"].tolist() for batch in mixed.loader(files)]
    loader = mixed.loader(files, restart=True)
    dataset = loader.as_tf_dataset().map(lambda each: each["id"]).prefetch(3)
    for taken in (2, 1, 6, 3, 6):
        assert [ids.numpy().tolist() for ids in dataset.take(taken)] == whole[:taken]
    assert [ids.numpy().tolist() for ids in dataset] == whole


def test_a_transform_has_no_static_spec(files: str) -> None:
    with pytest.raises(sf.ConfigError, match=r"without it, and use as_tf_dataset\(\)\.map"):
        mixed.loader(files, transform=dict).as_tf_dataset()
