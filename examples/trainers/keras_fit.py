"""Keras' `fit` over `as_tf_dataset()`, with checkpoints of tf.train.

    python ../digits/pack.py --train data --test test.tfrecord
    python keras_fit.py --data data --test test.tfrecord --checkpoint checkpoint

Start it again: it resumes inside the epoch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import digits
import keras
import tensorflow as tf

import shardfeed as sf


class Resumable(keras.Model):
    """Keeps the loader's state after the last batch that was trained on, for a checkpoint.

    TensorFlow fetches ahead, so the loader itself is further ahead.
    """

    def __init__(self, inputs: Any, outputs: Any, seen: Path | None) -> None:
        super().__init__(inputs, outputs)
        self.state_of_loader = tf.Variable(tf.constant(""), trainable=False)
        self.seen = seen

    def train_step(self, element: Any) -> Any:
        if self.seen is not None:
            index = tf.boolean_mask(element["index"], element["valid"])
            line = tf.concat([[tf.cast(self.optimizer.iterations, tf.int64)], index], 0)
            line = tf.strings.reduce_join(tf.strings.as_string(line), separator=" ")
            tf.print(line, output_stream=f"file://{self.seen}/rank-0")
        self.state_of_loader.assign(element["state"])
        return super().train_step((element["image"], element["label"], element["valid"]))


class Save(keras.callbacks.Callback):
    def __init__(self, manager: tf.train.CheckpointManager) -> None:
        super().__init__()
        self.manager = manager

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        steps = int(self.model.optimizer.iterations)
        if steps % digits.SAVE_EVERY == 0:
            self.manager.save(steps)


def main() -> None:
    args = digits.parser(__doc__).parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(1)
    if args.seen is not None:
        args.seen.mkdir(parents=True, exist_ok=True)
    loader = sf.Loader(
        f"{args.data}/train-*.tfrecord", digits.FEATURES, batch_size=digits.GLOBAL_BATCH, lanes=digits.LANES,
        tail="pad", shuffle_window=128, job="digits",
    )  # fmt: skip
    inputs = keras.Input([64])
    hidden = keras.layers.Dense(64, activation="relu")(inputs)
    model = Resumable(inputs, keras.layers.Dense(10)(hidden), args.seen)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, weighted_metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(args.checkpoint), max_to_keep=2)
    if manager.latest_checkpoint:
        manager.restore_or_initialize()
        loader.load_state_dict(bytes(model.state_of_loader.numpy()).decode())
    # The first epoch may be the rest of one.
    arguments = sf.keras.fit_arguments(loader, args.epochs, valid="valid", state="state")
    arguments["callbacks"].append(Save(manager))
    model.fit(**arguments, verbose=0)

    test = sf.Loader(args.test, digits.FEATURES, batch_size=50, shuffle=False, tail="pad", restart=True, job="digits-test")
    images = sum(int(batch.valid.sum()) for batch in test)
    pairs = test.as_tf_dataset(valid="valid").map(lambda each: (each["image"], each["label"], each["valid"]))
    result = model.evaluate(pairs, verbose=0, return_dict=True)
    print(f"accuracy {result['accuracy']:.3f} of {images} images")


if __name__ == "__main__":
    main()
