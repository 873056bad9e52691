"""Training with Keras' `fit`, by examples/trainers/keras_fit.py.

It is killed inside an epoch, while TensorFlow has fetched ahead, and resumed from a checkpoint of
tf.train.
"""

from __future__ import annotations

from pathlib import Path

from trainings import ENDLESS, STEPS, Images, Training, assert_trained, epochs_after


def test_it_goes_on_inside_of_an_epoch(tmp_path: Path) -> None:
    images = Images(tmp_path / "digits")

    def start(part: str, epochs: int) -> Training:
        command = ["keras_fit.py", *images.arguments(tmp_path / "checkpoint", epochs)]
        return Training(tmp_path / part, [(command, {})])

    with start("first", ENDLESS) as first:
        killed_at = first.hold_inside_an_epoch(after=2 * STEPS)
        first.kill()
    with start("second", epochs_after(killed_at)) as second:
        accuracy = second.accuracy()
    assert_trained(images, [(first, 1), (second, 1)], killed_at, accuracy)
