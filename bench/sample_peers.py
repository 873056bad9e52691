"""Samples made of records, per CPU-second: packs, action chunks and crops, beside Grain and tf.data.

    python bench/sample_peers.py --peers PYTHON [--rounds 3] [--tasks pack chunks crops]

PYTHON is an interpreter with grain and TensorFlow. All read the same data, shuffled, for one epoch:
shardfeed and tf.data from the same files in the page cache, Grain's packing from arrays in memory.
Each measurement runs in a process of its own, by turns; CPU time is that of the whole process from
the first request for a batch on: without imports, and without shardfeed's counting pass.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LENGTH, CHUNK, STEPS, WIDTH, CROP, BOXES = 2048, 16, 200, 7, 64, 8
#: Real tokens, samples or crops of each batch.
Counts = Iterator[int]


def documents(count: int) -> Iterator[Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    for _ in range(count):
        yield rng.integers(1, 50_000, int(np.clip(rng.lognormal(5.8, 1.0), 8, LENGTH)))


def write(folder: Path, records: int) -> None:
    import numpy as np

    import shardfeed as sf

    rng = np.random.default_rng(1)
    with sf.TFRecordWriter(folder / "pack.tfrecord") as writer:
        for tokens in documents(records):
            writer.write({"tokens": tokens})
    with sf.TFRecordWriter(folder / "chunks.tfrecord") as writer:
        for _ in range(records // 50):
            writer.write({name: rng.random(STEPS * WIDTH, np.float32) for name in ("state", "action")})
    with sf.TFRecordWriter(folder / "crops.tfrecord") as writer:
        for image in sorted(folder.glob("*.jpeg")):
            corner = rng.uniform(0, 0.75, (BOXES, 2))
            writer.write({"image": [image.read_bytes()], "box": np.concatenate([corner, corner + 0.25], 1).ravel()})


def write_images(folder: Path, count: int) -> None:
    import tensorflow as tf

    for number in range(count):
        small = tf.random.stateless_uniform((60, 80, 3), (number, 1), 0, 255)
        image = tf.cast(tf.image.resize(small, (480, 640)), tf.uint8)
        (folder / f"{number:04}.jpeg").write_bytes(tf.io.encode_jpeg(image, quality=90).numpy())


def ours(task: str, folder: Path) -> Counts:
    import shardfeed as sf

    def source(features: Any) -> sf.Source:
        return sf.source(str(folder / f"{task}.tfrecord"), features)

    if task == "pack":
        packs = source({"tokens": sf.VarLenFeature("int64")}).pack("tokens", length=LENGTH)
        return (int((batch["tokens_segment_ids"] > 0).sum()) for batch in sf.Loader(packs, batch_size=16))
    if task == "chunks":
        steps = sf.FixedLenSequenceFeature((WIDTH,), "float32", allow_missing=True)
        chunks = source({"state": steps, "action": steps})
        chunks = chunks.unbatch(offsets={"state": (-1, 0), "action": (0, CHUNK - 1)}, edge="repeat")
        return (len(batch["action"]) for batch in sf.Loader(chunks, batch_size=256))
    boxes = sf.FixedLenSequenceFeature((4,), "float32", allow_missing=True)
    crops = source({"image": sf.FixedLenFeature((), "string"), "box": boxes}).unbatch("box")
    crops = crops.decode_image("image").crop("image", box="box").resize("image", (CROP, CROP))
    return (len(batch["image"]) for batch in sf.Loader(crops, batch_size=64))


def tensorflow(task: str, folder: Path) -> Counts:
    import tensorflow as tf

    records = tf.data.TFRecordDataset(str(folder / f"{task}.tfrecord"))

    def parsed(features: Any) -> Any:
        return records.map(lambda record: tf.io.parse_single_example(record, features), num_parallel_calls=tf.data.AUTOTUNE)

    if task == "pack":
        return packs_in_python(parsed({"tokens": tf.io.FixedLenSequenceFeature((), tf.int64, allow_missing=True)}).shuffle(10_000))
    if task == "chunks":
        steps = tf.io.FixedLenSequenceFeature((WIDTH,), tf.float32, allow_missing=True)

        def windows(record: Any) -> Any:
            count = tf.shape(record["state"])[0]
            at = tf.range(count)[:, None]
            found = {}
            for name, offsets in (("state", (-1, 0)), ("action", tuple(range(CHUNK)))):
                rows = at + tf.constant(offsets)[None]
                found[name] = tf.gather(record[name], tf.clip_by_value(rows, 0, count - 1))
                found[f"{name}_is_pad"] = (rows < 0) | (rows >= count)
            return found

        data = parsed({"state": steps, "action": steps}).map(windows, num_parallel_calls=tf.data.AUTOTUNE)
        data, name = data.unbatch().shuffle(10_000).batch(256, drop_remainder=True), "action"
    else:
        boxes = tf.io.FixedLenSequenceFeature((4,), tf.float32, allow_missing=True)

        def crops(record: Any) -> Any:
            image = tf.io.decode_jpeg(record["image"], 3)[None]
            of = tf.zeros((tf.shape(record["box"])[0],), tf.int32)
            cropped = tf.image.crop_and_resize(image, record["box"], of, (CROP, CROP))
            return {"image": tf.cast(cropped, tf.uint8), "box": record["box"]}

        data = parsed({"image": tf.io.FixedLenFeature((), tf.string), "box": boxes})
        data = data.map(crops, num_parallel_calls=tf.data.AUTOTUNE)
        data, name = data.unbatch().shuffle(10_000).batch(64, drop_remainder=True), "image"
    return (int(batch[name].shape[0]) for batch in data.prefetch(tf.data.AUTOTUNE))


def packs_in_python(data: Any) -> Counts:
    """First fit into 64 open packs, in Python, as training scripts do it."""
    import numpy as np

    def filled() -> Iterator[Any]:
        packs: list[list[Any]] = [[] for _ in range(64)]
        room = [LENGTH] * 64
        for record in data.as_numpy_iterator():
            tokens = record["tokens"]
            at = next((at for at, left in enumerate(room) if left >= len(tokens)), None)
            if at is None:
                at = int(np.argmin(room))
                yield packs[at]
                packs[at], room[at] = [], LENGTH
            packs[at].append(tokens)
            room[at] -= len(tokens)
        yield from (pack for pack in packs if pack)

    packs = filled()
    while batch := list(itertools.islice(packs, 16)):
        tokens, segments = np.zeros((2, len(batch), LENGTH), np.int64)
        positions, count = np.zeros((len(batch), LENGTH), np.int64), 0
        for row, parts in enumerate(batch):
            start = 0
            for segment, part in enumerate(parts, 1):
                end = start + len(part)
                tokens[row, start:end], segments[row, start:end] = part, segment
                positions[row, start:end] = np.arange(len(part))
                start, count = end, count + len(part)
        yield count


def grain(packer: str) -> Callable[[str, Path], Counts]:
    def batches(task: str, folder: Path) -> Counts:
        import grain

        found = list(documents(int((folder / "records").read_text())))
        data = grain.MapDataset.source(found).shuffle(seed=0).map(lambda tokens: {"tokens": tokens}).to_iter_dataset()
        packs = getattr(grain.experimental, packer)(data, length_struct={"tokens": LENGTH}, num_packing_bins=64)
        return (int((batch["tokens_segment_ids"] > 0).sum()) for batch in packs.batch(16))

    return batches


CONTENDERS: dict[str, Callable[[str, Path], Counts]] = {
    "ours": ours,
    "tf.data": tensorflow,
    "grain first fit": grain("FirstFitPackIterDataset"),
    "grain best fit": grain("BestFitPackIterDataset"),
}


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(task: str, contender: str, folder: Path) -> None:
    batches = CONTENDERS[contender](task, folder)
    begun, cpu_begun = time.perf_counter(), cpu()
    count = sum(batches)
    used, took = cpu() - cpu_begun, time.perf_counter() - begun
    print(json.dumps({"task": task, "contender": contender, "per_cpu_s": round(count / used), "per_s": round(count / took)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", required=True, help="Python with grain and TensorFlow")
    parser.add_argument("--records", type=int, default=60_000, help="documents; episodes and images are fewer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=["pack", "chunks", "crops"])
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--images", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.images:
        write_images(Path(given.images), given.records // 100)
        return
    if given.measure:
        measure(given.measure[0], given.measure[1], Path(given.measure[2]))
        return

    def run(python: str, *arguments: str) -> str:
        command = [python, __file__, "--peers", given.peers, f"--records={given.records}", *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    with tempfile.TemporaryDirectory() as folder:
        run(given.peers, "--images", folder)
        write(Path(folder), given.records)
        (Path(folder) / "records").write_text(str(given.records))
        for _ in range(given.rounds):
            for task, contender in itertools.product(given.tasks, CONTENDERS):
                if task == "pack" or not contender.startswith("grain"):
                    python = sys.executable if contender == "ours" else given.peers
                    print(run(python, "--measure", task, contender, folder), flush=True)


if __name__ == "__main__":
    main()
