"""A loader in Keras' `fit`, with resume inside an epoch. Requires keras and tensorflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import keras
import tensorflow as tf

from shardfeed.loader import Loader


class ValidationArguments(TypedDict, total=False):
    """Arguments of `keras.Model.fit` for validation."""

    validation_data: tf.data.Dataset
    validation_steps: int


class FitArguments(ValidationArguments):
    """Arguments of `keras.Model.fit`."""

    x: tf.data.Dataset
    steps_per_epoch: int
    initial_epoch: int
    epochs: int
    shuffle: bool
    callbacks: list[keras.callbacks.Callback]


def fit_arguments(
    loader: Loader,
    epochs: int,
    element: Callable[[dict[str, tf.Tensor]], object] | None = None,
    *,
    validation: Loader | None = None,
    valid: str | None = None,
    state: str | None = None,
    prefetch: int = 2,
) -> FitArguments:
    """Returns arguments for `model.fit` that train on the rest of epochs 0 to `epochs` - 1.

        def pair(x):
            return x["image"], x["label"], x["valid"]

        model.fit(**sf.keras.fit_arguments(loader, 90, pair, validation=held_out, valid="valid"))

    Keras has one number of steps for all epochs of a fit. With these arguments the first epoch ends
    with the loader's epoch, also after a resume inside an epoch, and later epochs have all steps.
    `loader.state_dict()` in a callback's `on_train_batch_end` is the state after that batch.

    - `element`: converts the dict of columns to the model's input; None: the dict.
    - `validation`: a loader with restart=True; Keras evaluates all of its steps after each epoch.
      `element` and `valid` apply to it, `state` does not.
    - `valid`, `state`: as for `Loader.as_tf_dataset`.
    - `prefetch`: elements that TensorFlow fetches ahead.
    - Add your own callbacks after the returned ones: `arguments["callbacks"] += [...]`.

    For steps_per_execution=1. Raises `TypeError` if the steps of an epoch are unknown
    (mode="dynamic"), `ConfigError` for a `validation` without restart=True.
    """

    def elements(each: Loader, **options: Any) -> tf.data.Dataset:
        made = each.as_tf_dataset(valid=valid, **options)
        return (made if element is None else made.map(element)).prefetch(prefetch)

    held_out = ValidationArguments()
    if validation is not None:
        validation._check_restart("fit_arguments(validation=...)")
        held_out = ValidationArguments(validation_data=elements(validation), validation_steps=len(validation))
    steps = len(loader)
    return FitArguments(
        x=elements(loader, state=state, epochs=epochs),
        steps_per_epoch=steps,
        initial_epoch=loader.epoch,
        epochs=epochs,
        shuffle=False,  # the loader shuffles, and Keras warns
        callbacks=[RestOfEpoch(steps - loader.step)],
        **held_out,
    )


class RestOfEpoch(keras.callbacks.Callback):
    """Ends the first epoch of a fit after `steps` steps.

    It must precede other callbacks, so that their request to stop at the end of an epoch is kept.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left: int | None = steps

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Sets `stop_training`, upon which Keras leaves the epoch."""
        if self._left is not None and batch + 1 >= self._left:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Resets `stop_training`, so that Keras continues with the next epoch."""
        if self._left is not None:
            self._left = None
            self.model.stop_training = False
