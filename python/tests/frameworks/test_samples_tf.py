"""The worked examples of docs/SAMPLES.md and tf.data, on photos in files that TensorFlow wrote."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import tensorflow as tf

import shardfeed as sf

#: The layout of TensorFlow's object detection files.
IMAGE, BOX, LABEL = "image/encoded", "image/object/bbox/", "image/object/class/label"
SIDES = ("ymin", "xmin", "ymax", "xmax")


def photo(name: str) -> Any:
    """Decodes a photo, uint8 [427, 640, 3]."""
    return tf.io.decode_jpeg((Path(sklearn.datasets.__file__).parent / "images" / name).read_bytes())


def decoded(image: Any) -> Any:
    return tf.io.decode_jpeg(image, 3, dct_method="INTEGER_ACCURATE")


def all_decoded(row: Any, name: str) -> Any:
    return row | {name: tf.map_fn(decoded, row[name], fn_output_signature=tf.uint8)}


def feature(values: Any) -> tf.train.Feature:
    """Makes a feature of a byte string, or of numbers of one type, possibly none."""
    if isinstance(values, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[values]))
    numbers = np.atleast_1d(values)
    if numbers.dtype.kind == "i":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))
    return tf.train.Feature(float_list=tf.train.FloatList(value=numbers))


def features(values: dict[str, Any]) -> tf.train.Features:
    return tf.train.Features(feature={name: feature(value) for name, value in values.items()})


def write(folder: Path, files: Iterable[Iterable[Any]]) -> list[str]:
    """Writes protocol buffers into files, and returns their paths."""
    paths = []
    for number, records in enumerate(files):
        paths.append(str(folder / f"part-{number}.tfrecord"))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for record in records:
                writer.write(record.SerializeToString())
    return paths


def rows_of(source: sf.Source, **options: Any) -> Iterator[dict[str, Any]]:
    """Yields the valid rows of a shuffled epoch: half of it from one rank, the rest from two ranks that resume it."""
    state = None
    for world_size in (1, 2):
        for rank in range(world_size):
            options |= {"batch_size": 4 // world_size, "rank": rank, "world_size": world_size, "lanes": 2}
            with sf.Loader(source, tail="pad", shuffle_window=32, restart=False, resume=state, **options) as loader:
                for batch in itertools.islice(loader, len(loader) // 2 if world_size == 1 else None):
                    for row in np.flatnonzero(batch.valid):
                        yield {name: np.array(batch[name][row]) for name in batch}
                reached = loader.state_dict()
        state = reached


def key(row: dict[str, Any]) -> str:
    """Returns a text of all values of a row, bit for bit."""
    numbers = {name: value for name, value in row.items() if value.dtype.kind not in "OS"}
    texts = [(name, row[name].tolist()) for name in sorted(row.keys() - numbers.keys())]
    return repr([texts, *((name, str(value.dtype), value.shape, value.tobytes()) for name, value in sorted(numbers.items()))])


def scenes() -> Iterator[tf.train.Example]:
    """Yields pieces of two photos of different sizes and kinds of JPEG, with 0 to 6 boxes."""
    rng = np.random.default_rng(3)
    photos = [photo(name) for name in ("china.jpg", "flower.jpg")]
    for scene in range(48):
        height, width = (int(side) for side in rng.choice([64, 97, 100, 150], 2))
        top, left = int(rng.integers(427 - height)), int(rng.integers(640 - width))
        piece = photos[scene % 2][top : top + height, left : left + width]
        piece = tf.image.rgb_to_grayscale(piece) if scene % 8 == 5 else piece
        kind = {"quality": 50 + scene, "progressive": scene % 3 == 1, "chroma_downsampling": scene % 4 != 2}
        boxes = int(rng.integers(7)) if scene % 6 else 0
        if scene % 2:
            # In eighths of a side: many are in the middle of a pixel.
            edges = rng.integers([0, 0, 5, 5], [4, 4, 9, 9], (boxes, 4)) / 8
        else:
            corner = rng.random((boxes, 2)) * 0.7
            edges = np.concatenate([corner, corner + 0.05 + 0.25 * rng.random((boxes, 2))], axis=1)
        edges = edges.astype(np.float32)
        values = {"image/id": scene, IMAGE: tf.io.encode_jpeg(piece, **kind).numpy()}
        values |= {BOX + side: edges[:, at] for at, side in enumerate(SIDES)}
        values |= {LABEL: rng.integers(0, 4, boxes)}
        yield tf.train.Example(features=features(values))


@pytest.mark.parametrize("shown", ["whole", "resized"])
def test_crops_of_boxes_are_those_of_tf_data(tmp_path: Path, shown: str) -> None:
    everything = list(scenes())
    files = write(tmp_path, [everything[at::3] for at in range(3)])
    side = 152 if shown == "whole" else 32

    def boxes(row: Any) -> Any:
        image = decoded(row[IMAGE])

        def crop(one: Any) -> Any:
            edges = tf.cast(one["box"], tf.float64) * tf.cast(tf.tile(tf.shape(image)[:2], [2]), tf.float64)
            top, left, bottom, right = tf.unstack(tf.cast(tf.round(edges), tf.int32))
            part = tf.image.crop_to_bounding_box(image, top, left, bottom - top, right - left)
            if shown == "whole":
                part = tf.image.pad_to_bounding_box(part, 0, 0, side, side)
            else:
                part = tf.image.resize(part, (side, side), antialias=True)
            return one | {"id": row["image/id"], "image": part}

        rows = tf.data.Dataset.from_tensor_slices({"box": tf.stack([row[BOX + side] for side in SIDES], 1), "label": row[LABEL]})
        return rows.filter(lambda one: one["label"] != 0).map(crop)

    numbers = {BOX + side: tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True) for side in SIDES}
    theirs = numbers | {LABEL: tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}
    theirs |= {"image/id": tf.io.FixedLenFeature([], tf.int64), IMAGE: tf.io.FixedLenFeature([], tf.string)}
    data = tf.data.TFRecordDataset(files).map(lambda record: tf.io.parse_single_example(record, theirs))
    data = data.filter(lambda row: tf.size(row[LABEL]) <= 5).flat_map(boxes).shuffle(32).batch(8)
    columns = ("id", "box", "label", "image")
    rows = [row for batch in data.as_numpy_iterator() for row in zip(*(batch[name] for name in columns), strict=True)]
    expected = {(int(number), box.tobytes()): (int(label), image) for number, box, label, image in rows}
    assert len(expected) == len(rows)

    source = sf.source(files, theirs).filter(f"len(`{LABEL}`) <= 5")
    source = source.unbatch(*(BOX + side for side in SIDES), LABEL).filter(f"`{LABEL}` != 0")
    source = source.concat([BOX + side for side in SIDES], "box").decode_image(IMAGE, output="image").crop("image", box="box")
    source = source.pad("image", (side, side)) if shown == "whole" else source.resize("image", (side, side))
    found = Counter[Any]()
    for row in rows_of(source, outputs=["image/id", "box", LABEL, "image"]):
        name = int(row["image/id"]), row["box"].tobytes()
        found[name] += 1
        label, image = expected[name]
        assert int(row[LABEL]) == label
        difference = np.abs(row["image"].astype(float) - np.rint(image)).max()
        assert difference == 0 if shown == "whole" else difference <= 1, name
    assert found == Counter(expected.keys()) and len(found) > 50


def frames(videos: Iterable[tuple[str, int]]) -> Iterator[tf.train.Example]:
    """Yields frames of videos that pan over a photo."""
    for video, count in videos:
        image = photo(video.partition("-")[0] + ".jpg")
        for at in range(count):
            frame = tf.io.encode_jpeg(image[at : at + 40, 5 * at : 5 * at + 56], quality=90).numpy()
            yield tf.train.Example(features=features({"image": frame, "video": video.encode(), "at": at}))


@pytest.mark.parametrize("partial", ["drop", "pad"])
def test_clips_are_the_windows_of_each_video_of_tf_data(tmp_path: Path, partial: Any) -> None:
    size, stride = 8, 3
    # A video that is continued in another file, and one that is shorter than a clip.
    files = write(tmp_path, [frames([("china-a", 23), ("flower-b", 8)]), frames([("china-a", 5), ("flower-c", 17), ("china-d", 10)])])
    types = {"image": tf.string, "video": tf.string, "at": tf.int64}
    theirs = {name: tf.io.FixedLenFeature([], dtype) for name, dtype in types.items()}

    def clips(file: Any) -> Any:
        def of_video(_: Any, rows: Any) -> Any:
            windows = rows.window(size, shift=stride, drop_remainder=partial == "drop")
            return windows.flat_map(lambda window: tf.data.Dataset.zip(window).batch(size))

        rows = tf.data.TFRecordDataset(file).map(lambda record: tf.io.parse_single_example(record, theirs))
        return rows.group_by_window(lambda row: tf.strings.to_hash_bucket_fast(row["video"], 2**31), of_video, window_size=1000)

    data = tf.data.Dataset.from_tensor_slices(files).flat_map(clips).map(lambda row: all_decoded(row, "image"))
    expected = Counter(map(key, data.as_numpy_iterator()))

    source = sf.source(files, theirs).window(size=size, stride=stride, by="video", partial=partial)
    found = Counter[str]()
    for row in rows_of(source.decode_image("image", size=(40, 56))):
        length = int(row.pop("window_length", size))
        for values in row.values():
            assert all(np.array_equal(values[at], values[length - 1]) for at in range(length, size))
        found[key({name: values[:length] for name, values in row.items()})] += 1
    assert found == expected and len(found) == (12 if partial == "drop" else 23)


def episodes() -> Iterator[tf.train.SequenceExample]:
    """Yields episodes of a robot: its state, action and view at each step."""
    rng, view = np.random.default_rng(5), photo("flower.jpg")
    for episode, count in enumerate([20, 1, 0, 7, 16, 33]):
        states, actions = (rng.normal(size=(count, 7)).astype(np.float32) for _ in range(2))
        pieces = [view[at : at + 24, 9 * at : 9 * at + 32] for at in range(count)]
        lists = {
            "step": [*map(feature, range(count))],
            "state": [*map(feature, states)],
            "action": [*map(feature, actions)],
            "frame": [feature(tf.io.encode_jpeg(piece).numpy()) for piece in pieces],
        }
        lists = {name: tf.train.FeatureList(feature=values) for name, values in lists.items()}
        yield tf.train.SequenceExample(
            context=features({"episode": episode}), feature_lists=tf.train.FeatureLists(feature_list=lists)
        )


@pytest.mark.parametrize(("edge", "stride"), [("repeat", 1), ("zero", 3), ("drop", 2)])
def test_histories_and_chunks_of_actions_are_those_of_tensorflow(tmp_path: Path, edge: Any, stride: int) -> None:
    everything = list(episodes())
    files = write(tmp_path, [everything[:4], everything[4:]])
    context = {"episode": tf.io.FixedLenFeature([], tf.int64)}
    lists = {name: tf.io.FixedLenSequenceFeature([7], tf.float32, allow_missing=True) for name in ("state", "action")}
    lists |= {"step": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}
    lists |= {"frame": tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True)}
    offsets = {"state": (-3, 0), "action": (0, 15), "frame": (-1, 0)}
    if edge == "zero":
        # An empty string is no image.
        del lists["frame"], offsets["frame"]

    def samples(record: Any) -> Any:
        values, steps = tf.io.parse_single_sequence_example(record, context, lists)
        count = tf.shape(steps["step"])[0]
        at = tf.range(count, delta=stride)
        made = {"episode": tf.repeat(values["episode"], tf.size(at)), "step": tf.gather(steps["step"], at)}
        kept = tf.ones_like(at, tf.bool)
        for name, (first, last) in offsets.items():
            rows = at[:, None] + tf.range(first, last + 1)
            is_pad = (rows < 0) | (rows >= count)
            made[name] = tf.gather(steps[name], tf.clip_by_value(rows, 0, count - 1))
            if edge == "zero":
                made[name] = tf.where(is_pad[..., None], 0.0, made[name])
            if edge == "drop":
                kept &= ~tf.reduce_any(is_pad, 1)
            else:
                made[f"{name}_is_pad"] = is_pad
        return tf.data.Dataset.from_tensor_slices({name: tf.boolean_mask(value, kept) for name, value in made.items()})

    data = tf.data.TFRecordDataset(files).flat_map(samples)
    data = data.map(lambda row: all_decoded(row, "frame")) if "frame" in offsets else data
    expected = Counter(map(key, data.as_numpy_iterator()))

    source = sf.source(files, context, sequence_features=lists).unbatch("step", offsets=offsets, edge=edge, stride=stride)
    source = source.decode_image("frame", size=(24, 32)) if "frame" in offsets else source
    assert Counter(map(key, rows_of(source))) == expected
    assert set(expected.values()) == {1} and len(expected) == {"repeat": 77, "zero": 28, "drop": 8}[edge]
