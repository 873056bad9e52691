"""A loader in Keras' `fit`, also one that continues inside of an epoch. Needs keras and tensorflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import keras
import tensorflow as tf

from shardfeed.loader import Loader


class ValidationArguments(TypedDict, total=False):
    """Those of `keras.Model.fit` that a validation has."""

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
    """Arguments with which `model.fit` trains on what is left of the epochs 0 to `epochs` - 1.

        def pair(x):
            return x["image"], x["label"], x["valid"]

        model.fit(**sf.keras.fit_arguments(loader, 90, pair, validation=held_out, valid="valid"))

    Keras has one number of steps for all epochs of a fit. Here its first epoch ends with the loader's, also after a
    resume inside of an epoch, and each later one has all steps. `loader.state_dict()` in a callback's
    `on_train_batch_end` is the state after that batch.

    - `element`: what the model takes, from the dict of columns; None: the dict.
    - `validation`: a loader with restart=True, all of whose steps Keras evaluates after each epoch. `element` and
      `valid` are for it, too; `state` is not.
    - `valid`, `state`: as for `Loader.as_tf_dataset`.
    - `prefetch`: elements that TensorFlow fetches ahead.
    - Callbacks of your own go behind those that are returned: `arguments["callbacks"] += [...]`.

    For steps_per_execution=1. Raises `TypeError` where the steps of an epoch are unknown (mode="dynamic"), `ConfigError`
    for a `validation` without restart=True.
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
        shuffle=False,  # the loader does that, and Keras warns
        callbacks=[RestOfEpoch(steps - loader.step)],
        **held_out,
    )


class RestOfEpoch(keras.callbacks.Callback):
    """Ends the first epoch of a fit after so many steps. It goes before other callbacks: what they say about stopping
    at the end of an epoch stays."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left: int | None = steps

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Keras leaves the epoch when `stop_training` is set."""
        if self._left is not None and batch + 1 >= self._left:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """And goes on with the next one if it is not."""
        if self._left is not None:
            self._left = None
            self.model.stop_training = False
