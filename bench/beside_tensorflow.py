"""Records per CPU-second of the loader beside tf.data, over the same warm files.

    python bench/beside_tensorflow.py [--seconds 3] [--rounds 3] [--only small,boards,...] [--photos FOLDER]

Needs a Python that has this package (or its folder in PYTHONPATH) and tensorflow-cpu; nothing else here
does. Both run by turns, in processes of their own, on the cores that there are; of tf.data the best of its
settings counts. Photographs (JPEG files of a folder) are decoded and resized to 224, whole or a part of 256 x 256
that tf.data decodes alone; without a folder these two cases are left out. One line of JSON for each case: medians, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BATCH = 512
SIDE, PART = 224, 256
PHOTOS = "SHARDFEED_BENCH_PHOTOS"
#: Calls of tf.data: how a file's records are read and parsed.
SETTINGS = ("batch_then_parse", "interleaved")


def write(case: str, folder: Path) -> str:
    """The files of a case, about 100 MB of them."""
    import numpy as np

    import shardfeed as sf

    rng = np.random.default_rng(0)
    sys.path.insert(0, str(ROOT / "examples/chess"))
    import boards

    def records() -> Iterator[Any]:
        if case == "raw_large":
            for _ in range(1_000):
                yield rng.bytes(112_000)
        elif case == "raw_small":
            for _ in range(400_000):
                yield rng.bytes(242)
        elif case == "small":
            for number in range(400_000):
                yield {"board": rng.bytes(194), "label": number}
        elif case == "boards":
            yield from boards.positions(200_000)
        elif case == "tokens":
            for _ in range(12_000):
                tokens = rng.integers(0, 50_000, (2, 2048))
                yield {"inputs": tokens[0], "targets": tokens[1]}
        elif case in ("photos", "parts"):
            photos = [path.read_bytes() for path in sorted(Path(os.environ[PHOTOS]).glob("*.jp*g"))]
            for number in range(1_000):
                yield {"photo": photos[number % len(photos)], "label": number}
        elif case == "floats":
            for number in range(25_000):
                yield {"x": rng.random(1024, dtype=np.float32), "label": number}

    every = list(records())
    for number in range(4):
        with sf.TFRecordWriter(folder / f"{case}-{number}.tfrecord") as writer:
            for record in every[number::4]:
                writer.write(record)
    return str(folder / f"{case}-*.tfrecord")


def ours(case: str, files: str) -> Iterator[int]:
    import shardfeed as sf
    from shardfeed import operators as op

    sys.path.insert(0, str(ROOT / "examples/chess"))
    import boards

    one = sf.FixedLenFeature
    features: dict[str, Any] = {
        "small": {"board": one((), "string"), "label": one((), "int64")},
        "tokens": {"inputs": one((2048,), "int64"), "targets": one((2048,), "int64")},
        "floats": {"x": one((1024,), "float32"), "label": one((), "int64")},
        "photos": {"photo": one((), "string"), "label": one((), "int64")},
        "parts": {"photo": one((), "string"), "label": one((), "int64")},
    }
    batch_size = 64 if case in ("raw_large", "tokens", "photos", "parts") else BATCH
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": False}
    if case in ("photos", "parts"):
        part = [op.crop("photo", (PART, PART), offset=(20, 30))] if case == "parts" else []
        options["operators"] = [
            op.decode_image("photo"), *part, op.resize("photo", SIDE, antialias=False)
        ]
    if case == "boards":
        loader = boards.loader(files, **options)
    else:
        loader = sf.Loader(files, features.get(case), **options)
    while True:
        for batch in loader:
            for name in batch:
                batch[name]
            yield batch.rows


def theirs(case: str, files: str, setting: str) -> Iterator[int]:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    sys.path.insert(0, str(ROOT / "examples/chess"))
    one = tf.io.FixedLenFeature
    features = {
        "small": {"board": one((), tf.string), "label": one((), tf.int64)},
        "tokens": {"inputs": one((2048,), tf.int64), "targets": one((2048,), tf.int64)},
        "floats": {"x": one((1024,), tf.float32), "label": one((), tf.int64)},
        "photos": {"photo": one((), tf.string), "label": one((), tf.int64)},
        "parts": {"photo": one((), tf.string), "label": one((), tf.int64)},
        "boards": {
            "board": one((), tf.string),
            "score": one((), tf.int64),
            "mate": one((), tf.int64, 0),
        },
    }.get(case)
    batch_size = 64 if case in ("raw_large", "tokens", "photos", "parts") else BATCH
    names = tf.data.Dataset.list_files(files, shuffle=False)
    if setting == "interleaved":
        data = names.interleave(
            tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE
        )
    else:
        data = tf.data.TFRecordDataset(names)
    if case in ("photos", "parts"):

        def decode(record: Any) -> Any:
            row = tf.io.parse_single_example(record, features)
            accurate = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}
            if case == "parts":
                image = tf.io.decode_and_crop_jpeg(row["photo"], [20, 30, PART, PART], **accurate)
            else:
                image = tf.io.decode_jpeg(row["photo"], **accurate)
            image = tf.image.resize(image, [SIDE, SIDE])
            return tf.cast(tf.round(image), tf.uint8), row["label"]

        data, features = data.repeat().map(decode, num_parallel_calls=tf.data.AUTOTUNE), None
        data = data.batch(batch_size, drop_remainder=True)
    else:
        data = data.repeat().batch(batch_size, drop_remainder=True)
    if features is not None:
        parse = lambda records: tf.io.parse_example(records, features)  # noqa: E731
        data = data.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    if case == "boards":
        data = data.map(_score, num_parallel_calls=tf.data.AUTOTUNE)
    for _ in data.prefetch(tf.data.AUTOTUNE):
        yield batch_size


def _score(row: dict[str, Any]) -> Any:
    import boards
    import tensorflow as tf

    packed = tf.io.decode_raw(row["board"], tf.uint8)
    shifts = tf.constant([7, 6, 5, 4, 3, 2, 1, 0], tf.uint8)
    bits = tf.bitwise.bitwise_and(tf.bitwise.right_shift(packed[..., None], shifts), tf.constant(1, tf.uint8))
    bits = tf.reshape(bits, [-1, boards.BOARD_BYTES * 8])
    planes = tf.reshape(bits[:, : boards.SQUARE_BITS], [-1, 8, 8, boards.PLANES])
    planes = tf.cast(tf.gather(planes, boards.ORDER, axis=3), tf.float32) * tf.constant(boards.SIGNS)
    flags = tf.cast(bits[:, boards.SQUARE_BITS : boards.SQUARE_BITS + boards.FLAGS], tf.float32)
    score = tf.cast(row["score"], tf.float64)
    far = boards.A + (1 - boards.A) / (boards.B - 1) * tf.maximum(
        tf.constant(0, tf.float64), boards.B - tf.abs(score)
    )
    target = tf.where(
        row["mate"] != 0, tf.sign(score) * far, boards.A * tf.tanh(score / boards.K)
    )
    return planes, flags, target


def run(who: str, case: str, files: str, seconds: float) -> None:
    """One measurement, in this process."""
    batches = ours(case, files) if who == "ours" else theirs(case, files, who)
    begun = time.perf_counter()
    rows = 0
    while time.perf_counter() - begun < 1.0:
        next(batches)
    first, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - first < seconds:
        rows += next(batches)
    took, used = time.perf_counter() - first, time.process_time() - cpu
    print(json.dumps({"per_s": rows / took, "per_cpu_s": rows / used}), flush=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="raw_large,raw_small,small,boards,tokens,floats")
    parser.add_argument("--photos", help="folder of JPEG files, at least 300 pixels high and wide")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run(*arguments.run, arguments.seconds)
    if arguments.photos:
        os.environ[PHOTOS] = arguments.photos
    with tempfile.TemporaryDirectory() as temporary:
        for case in [one for one in arguments.only.split(",") if one] + ["photos", "parts"] * bool(arguments.photos):
            files = write(case, Path(temporary))
            found: dict[str, list[dict[str, float]]] = {}
            for _ in range(arguments.rounds):
                for who in ("ours", *SETTINGS):
                    command = [sys.executable, __file__, "--seconds", str(arguments.seconds)]
                    command += ["--run", who, case, files]
                    said = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
                    found.setdefault(who, []).append(json.loads(said))
            def median(who: str, what: str) -> float:
                return statistics.median(one[what] for one in found[who])

            best = max(SETTINGS, key=lambda who: median(who, "per_cpu_s"))
            line = {"case": case, "ours_per_cpu_s": round(median("ours", "per_cpu_s"))}
            line |= {"theirs_per_cpu_s": round(median(best, "per_cpu_s")), "their_setting": best}
            line["ratio"] = round(median("ours", "per_cpu_s") / median(best, "per_cpu_s"), 2)
            fastest = max(median(who, "per_s") for who in SETTINGS)
            line["ratio_per_s"] = round(median("ours", "per_s") / fastest, 2)
            print(json.dumps(line), flush=True)
            for file in Path(temporary).iterdir():
                file.unlink()


if __name__ == "__main__":
    main()
