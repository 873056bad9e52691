"""tf.data, in the trainer's process or as a service with a dispatcher and a worker beside it."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import cases  # noqa: E402
import tensorflow as tf  # noqa: E402

VERSION = tf.__version__

BESIDE: list[int] = []

BUFFER = 8 << 20
PROCESSORS = len(os.sched_getaffinity(0))
_service = ""


def prepare(contender: str, case: str, data: str, setting: str) -> None:
    global _service
    if contender != "tfservice":
        return
    # Both load TensorFlow at the same time; the worker then receives the dispatcher's address.
    started = [_start("dispatcher"), _start("worker")]
    address = _ready(started[0])
    assert started[1].stdin is not None
    started[1].stdin.write(f"{address}\n")
    started[1].stdin.flush()
    _ready(started[1])
    _service = f"grpc://{address}"


def _start(role: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, role]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    BESIDE.append(process.pid)
    return process


def _ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    words = process.stdout.readline().split()
    if words[:1] != ["ready"]:
        sys.exit(f"error: a process of tf.data service did not start: {process.args}")
    return words[1]


def serve(role: str) -> None:
    """Runs a dispatcher or a worker until it is killed."""
    service = tf.data.experimental.service
    if role == "dispatcher":
        server = service.DispatchServer(service.DispatcherConfig(port=0))
        print("ready", server.target.removeprefix("grpc://"), flush=True)
    else:
        dispatcher = sys.stdin.readline().strip()
        server = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher))
        print("ready", dispatcher, flush=True)
    server.join()


def pipeline(case: str, data: str, setting: str, repeat: bool) -> tf.data.Dataset:
    """Returns a case's batches.

    - `lean`: one reader, one call at a time. `sequential`: one reader with a large buffer, parallel
      calls.
    - `interleaved`: several files at once, a private thread pool, any order.
    """
    of = cases.CASES[case]
    names = tf.data.Dataset.from_tensor_slices(cases.files(data, case))
    calls = None if setting == "lean" else tf.data.AUTOTUNE
    if setting == "interleaved":
        made = names.interleave(
            lambda name: tf.data.TFRecordDataset(name, buffer_size=BUFFER),
            cycle_length=PROCESSORS, block_length=16, num_parallel_calls=PROCESSORS, deterministic=False,
        )  # fmt: skip
    else:
        made = tf.data.TFRecordDataset(names, buffer_size=None if setting == "lean" else BUFFER)
    made = made.repeat() if repeat else made
    if cases.image_case(case):
        made = made.map(lambda record: photo(case, record), num_parallel_calls=calls)
        made = made.batch(of.batch, drop_remainder=True)
    else:
        made = made.batch(of.batch, drop_remainder=True)
    if case == "boards":
        made = made.map(Boards(data), num_parallel_calls=calls)
    elif of.features and not cases.image_case(case):
        wanted = features(case)
        made = made.map(lambda records: tf.io.parse_example(records, wanted), num_parallel_calls=calls)
    if setting == "interleaved":
        options = tf.data.Options()
        options.deterministic = False
        options.threading.private_threadpool_size = PROCESSORS
        options.threading.max_intra_op_parallelism = 1
        made = made.with_options(options)
    return made.prefetch(2 if setting == "lean" else tf.data.AUTOTUNE)


def features(case: str) -> dict[str, tf.io.FixedLenFeature]:
    return {
        name: tf.io.FixedLenFeature(shape, kind) for name, (kind, shape) in cases.CASES[case].features.items()
    }


def photo(case: str, record: tf.Tensor) -> dict[str, tf.Tensor]:
    row = tf.io.parse_single_example(record, features(case))
    accurate = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}
    if case == "parts":
        window = [*cases.PLACE, cases.PART, cases.PART]
        image = tf.io.decode_and_crop_jpeg(row["photo"], window, **accurate)
    else:
        image = tf.io.decode_jpeg(row["photo"], **accurate)
    image = tf.image.resize(image, [cases.SIDE, cases.SIDE])
    return {"photo": tf.cast(tf.round(image), tf.uint8), "label": row["label"]}


class Boards:
    """The operators declared in examples/chess/boards.py, as a graph."""

    def __init__(self, data: str) -> None:
        text = (cases.folder(data, "boards") / "boards.json").read_text()
        for name, value in json.loads(text).items():
            setattr(self, name, value)

    def __call__(self, records: tf.Tensor) -> dict[str, tf.Tensor]:
        one = tf.io.FixedLenFeature
        wanted = {"board": one((), tf.string), "score": one((), tf.int64), "mate": one((), tf.int64, 0)}
        row = tf.io.parse_example(records, wanted)
        packed = tf.io.decode_raw(row["board"], tf.uint8)
        shifts = tf.constant([7, 6, 5, 4, 3, 2, 1, 0], tf.uint8)
        ones = tf.constant(1, tf.uint8)
        bits = tf.bitwise.bitwise_and(tf.bitwise.right_shift(packed[..., None], shifts), ones)
        bits = tf.reshape(bits, [-1, self.BOARD_BYTES * 8])
        planes = tf.reshape(bits[:, : self.SQUARE_BITS], [-1, 8, 8, self.PLANES])
        planes = tf.cast(tf.gather(planes, self.ORDER, axis=3), tf.float32) * tf.constant(self.SIGNS)
        flags = tf.cast(bits[:, self.SQUARE_BITS : self.SQUARE_BITS + self.FLAGS], tf.float32)
        score = tf.cast(row["score"], tf.float64)
        near = tf.maximum(tf.constant(0, tf.float64), self.B - tf.abs(score))
        far = self.A + (1 - self.A) / (self.B - 1) * near
        calm = self.A * tf.tanh(score / self.K)
        target = tf.where(row["mate"] != 0, tf.sign(score) * far, calm)
        return {"planes": planes, "flags": flags, "target": target}


def batches(case: str, data: str, setting: str, repeat: bool) -> Iterator[tuple[int, Any]]:
    if _service:
        service = tf.data.experimental.service
        inner = "sequential" if cases.image_case(case) else "interleaved"
        made = pipeline(case, data, inner, repeat).apply(
            service.distribute(
                processing_mode=service.ShardingPolicy.DYNAMIC,
                service=_service,
                max_outstanding_requests=4,
                compression="AUTO" if setting == "compressed" else None,
            )
        )
        made = made.prefetch(1)
    else:
        made = pipeline(case, data, setting, repeat)
    rows = cases.CASES[case].batch
    for batch in made:
        yield rows, batch


def columns(case: str, batch: Any) -> dict[str, Any]:
    if not isinstance(batch, dict):
        batch = {"record": batch}
    return {name: values.numpy() for name, values in batch.items()}


if __name__ == "__main__":
    serve(sys.argv[1])
