"""`sf.keras.fit_arguments`, with Keras' own `fit`."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import keras
import mixed
import pytest
import tensorflow as tf

import shardfeed as sf

STEPS = mixed.ROWS // mixed.BATCH


class Seen(keras.callbacks.Callback):
    """Steps of each of Keras' epochs, and the loader's state after each step."""

    def __init__(self, loader: sf.Loader) -> None:
        super().__init__()
        self.loader, self.states, self.epochs = loader, [], {}  # type: ignore[var-annotated]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs[epoch] = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.epochs[self._epoch()] += 1
        self.states.append(self.loader.state_dict())

    def _epoch(self) -> int:
        return max(self.epochs)


class Model(keras.Model):
    """Records the numbers of the records that it was trained and evaluated on."""

    def __init__(self, inputs: Any, outputs: Any) -> None:
        super().__init__(inputs, outputs)
        self.ids: list[list[int]] = []
        #: By evaluation.
        self.evaluated: list[list[int]] = []

    def train_step(self, element: Any) -> Any:
        (image, ids), *rest = element
        tf.numpy_function(lambda given: self.ids.append(given.tolist()), [ids], [])
        return super().train_step((image, *rest))

    def test_step(self, element: Any) -> Any:
        (image, ids), targets, valid = element
        tf.numpy_function(lambda some: self.evaluated[-1].extend(some.tolist()), [ids[valid > 0]], [])
        return super().test_step((image, targets, valid))

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        self.evaluated.append([])
        return super().evaluate(*arguments, **options)


def model() -> Model:
    inputs = keras.Input([6])
    made = Model(inputs, keras.layers.Dense(1)(inputs))
    made.compile(optimizer="sgd", loss="mse", weighted_metrics=[])
    return made


def element(x: Any) -> Any:
    image = tf.reshape(x["image"], [-1, 6]) / 100.0
    return (image, x["id"]), tf.reduce_sum(image, 1), tf.cast(x["valid"], tf.float32)


def fit(loader: sf.Loader, epochs: int, *more: keras.callbacks.Callback, **options: Any) -> tuple[Model, Seen]:
    made, seen = model(), Seen(loader)
    arguments = sf.keras.fit_arguments(loader, epochs, element, valid="valid", **options)
    arguments["callbacks"] += [seen, *more]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        made.fit(**arguments, verbose=0)
    return made, seen


def loader(files: str, **options: Any) -> sf.Loader:
    return mixed.loader(files, outputs=["id", "image"], tail="pad", **options)


def whole(files: str, epochs: int) -> list[list[int]]:
    return [batch["id"].tolist() for epoch in loader(files).epochs(epochs) for batch in epoch]


@pytest.mark.parametrize("taken", [0, 1, STEPS - 1, STEPS, STEPS + 2])
def test_a_fit_after_a_resume_has_all_steps_that_are_left(tmp_path: Path, taken: int) -> None:
    files = mixed.write(tmp_path)
    first = loader(files)
    for _, _ in zip(range(taken), (batch for epoch in first.epochs(9) for batch in epoch), strict=False):
        pass
    resumed = loader(files, resume=first.state_dict())
    made, seen = fit(resumed, 3)
    assert made.ids == whole(files, 3)[taken:]
    begin = taken // STEPS
    assert seen.epochs == {begin: STEPS - taken % STEPS, **{epoch: STEPS for epoch in range(begin + 1, 3)}}
    assert (resumed.epoch, resumed.step) == (3, 0) and resumed.state_dict()["epoch"] == 3


def test_the_state_is_that_after_each_batch(tmp_path: Path) -> None:
    """While TensorFlow fetches ahead, and across the ends of epochs."""
    files = mixed.write(tmp_path)
    _, seen = fit(loader(files), 3)
    expected = whole(files, 4)
    for taken, state in enumerate(seen.states, start=1):
        resumed = loader(files, resume=json.loads(json.dumps(state)))
        assert next(iter(resumed))["id"].tolist() == expected[taken]


def test_callbacks_may_still_end_the_fit(tmp_path: Path) -> None:
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    files = mixed.write(tmp_path)
    made, seen = fit(loader(files), 3, Stop())
    assert seen.epochs == {0: STEPS} and len(made.ids) == STEPS


def test_validation_comes_after_each_epoch(tmp_path: Path) -> None:
    """It sees every sample each time, also of files whose last step is not full, and after an
    `evaluate()` that stopped early."""
    files, held_out = mixed.write(tmp_path / "train"), mixed.write(tmp_path / "held out", rows=21)
    test = loader(held_out, shuffle=False, restart=True)
    made, seen = fit(loader(files), 3, validation=test)
    assert seen.epochs == {0: STEPS, 1: STEPS, 2: STEPS}
    every = [number for batch in test for number in batch["id"][batch.valid].tolist()]
    assert sorted(every) == list(range(21)) and made.evaluated == [every] * 3
    pairs = test.as_tf_dataset(valid="valid").map(element)
    for steps, expected in ((1, every[: mixed.BATCH]), (len(test), every)):
        made.evaluate(pairs, steps=steps, verbose=0)
        assert made.evaluated.pop() == expected


def test_a_validation_that_continues_is_refused(tmp_path: Path) -> None:
    files = mixed.write(tmp_path)
    for restart in (None, False):
        with pytest.raises(sf.ConfigError, match=r"fit_arguments\(validation=\.\.\.\).*make it with restart=True"):
            sf.keras.fit_arguments(loader(files), 2, validation=loader(files, restart=restart))


def test_nothing_is_left_to_train(tmp_path: Path) -> None:
    done = loader(mixed.write(tmp_path))
    done.set_epoch(3)
    made, seen = fit(done, 3)
    assert made.ids == [] and seen.epochs == {}
