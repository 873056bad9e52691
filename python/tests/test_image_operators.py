"""`crop` by box, `pad` of images and `color_jitter`, against numpy and the order oracle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import order_oracle
import pytest

import shardfeed as sf

#: Sizes of the images, in turn.
SIZES = [(12, 20), (33, 7), (8, 8), (21, 30)]
FEATURES: dict[str, Any] = {
    "raw": sf.FixedLenFeature((), "string"),
    "height": sf.FixedLenFeature((), "int64"),
    "width": sf.FixedLenFeature((), "int64"),
    "box": sf.FixedLenFeature((4,), "float32"),
}


def image_of(number: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (*SIZES[number % len(SIZES)], channels), np.uint8)


def box_of(number: int) -> tuple[int, int, int, int]:
    """Returns top, left, bottom and right in pixels, with at least one pixel."""
    height, width = SIZES[number % len(SIZES)]
    rng = np.random.default_rng(1000 + number)
    top, left = int(rng.integers(0, height)), int(rng.integers(0, width))
    return top, left, int(rng.integers(top + 1, height + 1)), int(rng.integers(left + 1, width + 1))


def write(path: Path, boxes: list[Any]) -> sf.Source:
    with sf.TFRecordWriter(path) as writer:
        for number, box in enumerate(boxes):
            image = image_of(number)
            height, width = image.shape[:2]
            row = {"raw": image.tobytes(), "height": height, "width": width, "box": np.asarray(box, np.float32)}
            writer.write(row)
    source = sf.source(path, FEATURES)
    return source.decode_raw("raw", "uint8", ("height", "width", 3), output="image")


def rows(source: sf.Source, column: str, **options: Any) -> Iterator[np.ndarray]:
    for batch in sf.Loader(source, outputs=[column], **({"batch_size": 1, "shuffle": False} | options)):
        yield from batch[column].copy()


FORMATS: dict[str, Any] = {
    "yxyx": lambda top, left, bottom, right: (top, left, bottom, right),
    "xyxy": lambda top, left, bottom, right: (left, top, right, bottom),
    "xywh": lambda top, left, bottom, right: (left, top, right - left, bottom - top),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("normalized", [True, False])
def test_an_image_becomes_its_box(tmp_path: Path, format: Any, normalized: bool) -> None:
    boxes = []
    for number in range(40):
        height, width = SIZES[number % len(SIZES)]
        top, left, bottom, right = box_of(number)
        edges = (top / height, left / width, bottom / height, right / width) if normalized else (top, left, bottom, right)
        boxes.append(FORMATS[format](*edges))
    source = write(tmp_path / "x.tfrecord", boxes)
    cropped = source.crop("image", box="box", format=format, normalized=normalized)
    assert cropped.columns["image"] == ("images", "uint8", (None, None, 3))
    # Padding keeps all pixels, so that parts of different sizes can be compared.
    for number, found in enumerate(rows(cropped.pad("image", (40, 40), value=7), "image")):
        top, left, bottom, right = box_of(number)
        expected = np.full((40, 40, 3), 7, np.uint8)
        expected[: bottom - top, : right - left] = image_of(number)[top:bottom, left:right]
        assert np.array_equal(found, expected), number


def test_boxes_of_four_columns_and_of_later_images(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    with sf.TFRecordWriter(path) as writer:
        for number in range(6):
            image = np.random.default_rng(number).integers(0, 256, (16, 24, 3), np.uint8)
            row = {"raw": image.tobytes(), "ymin": 0.25, "xmin": 0.5, "ymax": 0.75, "xmax": 1.0}
            writer.write(row)
    names = ["ymin", "xmin", "ymax", "xmax"]
    source = sf.source(path, {"raw": FEATURES["raw"]} | {name: sf.FixedLenFeature((), "float32") for name in names})
    source = source.decode_raw("raw", "uint8", (16, 24, 3), output="image").concat(names, "box")
    assert source.columns["box"] == ("dense", "float32", (4,))
    # A box is a part of the image as the operators before it left it: here of its mirrored half.
    source = source.crop("image", (16, 12), offset=(0, 12)).flip("image", probability=1.0).crop("image", box="box")
    for number, found in enumerate(rows(source.crop("image", (8, 6)), "image")):
        image = np.random.default_rng(number).integers(0, 256, (16, 24, 3), np.uint8)
        assert np.array_equal(found, image[:, 12:][:, ::-1][4:12, 6:12])


def test_edges_are_rounded_to_pixels(tmp_path: Path) -> None:
    height, width = SIZES[0]
    within = 0.4999 / height
    for box, expected in [
        ((-within, 0, 1 + within, 1), (0, 0, height, width)),
        ((2.49 / height, 0, 4.51 / height, 1), (2, 0, 5, width)),
        # Halves to even.
        ((2.5 / height, 0, 5.5 / height, 1), (2, 0, 6, width)),
    ]:
        source = write(tmp_path / "x.tfrecord", [box]).cast("box", "float64").crop("image", box="box")
        top, left, bottom, right = expected
        (found,) = rows(source.pad("image", (40, 40)), "image")
        assert np.array_equal(found[: bottom - top, : right - left], image_of(0)[top:bottom, left:right])
        assert not found[bottom - top :].any()


NO_BOXES = [
    ((0.5, 0.1, 0.5, 0.9), "has none of its pixels"),
    ((0.9, 0.1, 0.5, 0.9), "has none of its pixels"),
    ((0.1, 0.1, 0.1001, 0.9), "has none of its pixels"),
    ((0.1, 0.1, 1.1, 0.9), "does not lie in it"),
    ((-0.2, 0.1, 0.5, 0.9), "does not lie in it"),
    ((0.1, float("nan"), 0.5, 0.9), "does not lie in it"),
    ((1.0, 2.0, 7.0, 9.0), "does not lie in it; pass normalized=False if boxes are in pixels"),
]


@pytest.mark.parametrize(("box", "said"), NO_BOXES)
def test_what_is_no_box_of_the_image_is_a_corrupt_record(tmp_path: Path, box: Any, said: str) -> None:
    source = write(tmp_path / "x.tfrecord", [(0, 0, 1, 1), box, (0, 0, 0.5, 0.5)]).crop("image", box="box")
    source = source.resize("image", (4, 4))
    with pytest.raises(sf.FeatureError, match=r"x\.tfrecord: record 1 .*column `image`: the box .* of `box` for an image of 33x7 ") as error:
        list(rows(source, "image"))
    assert said in str(error.value) and error.value.ordinal == 1
    loader = sf.Loader(
        source, outputs=["image"], batch_size=3, shuffle=False, corrupt="skip-record", corrupt_budget=1.0
    )
    (batch,) = loader
    assert np.asarray(batch.valid).tolist() == [True, False, True] and loader.stats()["skipped"] == 1


@pytest.mark.parametrize(
    ("feature", "shown"),
    [
        (sf.VarLenFeature("float32"), r"float32 \[None\] ragged"),
        (sf.FixedLenSequenceFeature((4,), "float32", allow_missing=True), r"float32 \[None, 4\] padded"),
    ],
)
def test_several_boxes_of_a_record_are_named(feature: sf.Feature, shown: str) -> None:
    source = sf.source("x", {"image": sf.FixedLenFeature((), "string"), "boxes": feature}).decode_image("image")
    said = rf"crop\('image'\): a box is four numbers of a fixed shape, \[4\], but 'boxes' is {shown}; .* unbatch\(\) makes"
    with pytest.raises(sf.ConfigError, match=said):
        source.crop("image", box="boxes")


def test_boxes_are_checked_at_once(tmp_path: Path) -> None:
    source = write(tmp_path / "x.tfrecord", [])
    for call, said in [
        (lambda: source.crop("image"), "crop('image'): it takes a size, with or without an offset, or a box"),
        (lambda: source.crop("image", 3, box="box"), "it takes a size, with or without an offset, or a box"),
        (lambda: source.crop("image", offset=(0, 0), box="box"), "it takes a size, with or without an offset, or a box"),
        (lambda: source.crop("image", box="bx"), "there is no column 'bx'; did you mean 'box'?"),
        (lambda: source.crop("image", box="height"), "a box is four numbers, but `height` is int64 of shape []"),
        (lambda: source.crop("image", box="raw"), "it takes numbers, but its input is byte strings"),
        (lambda: source.crop("image", box="image"), "the images of `image` differ in size"),
        (lambda: source.crop("image", box="box", format="cxcywh"), 'format is "yxyx", "xyxy" or "xywh"'),
        (lambda: source.crop("image", 3, normalized=False), "format and normalized describe a box"),
        (lambda: source.crop("box", box="box"), "it takes images, [height, width, channels]"),
        (lambda: source.on_device().crop("image", box="box"), "call others before on_device()"),
        (lambda: source.pad("image", 30), "size of images is (height, width), not [30]"),
        (lambda: source.pad("image", (0, 30)), "size is 0x30; both are 1 or more"),
        (lambda: source.pad("image", (30, 30), value=0.5), "value is 0.5, which uint8 cannot hold"),
        (lambda: source.on_device().pad("box", 5), "call others before on_device()"),
    ]:
        with pytest.raises(sf.ConfigError) as error:
            call()
        assert said in str(error.value)


def centered(image: np.ndarray, size: tuple[int, int], value: int) -> np.ndarray:
    """`tf.image.resize_with_crop_or_pad`, in numpy."""
    for axis, length in enumerate(size):
        more = image.shape[axis] - length
        if more > 0:
            image = np.take(image, range(more // 2, more // 2 + length), axis)
        else:
            widths = [(0, 0)] * image.ndim
            widths[axis] = (-more // 2, -more - -more // 2)
            image = np.pad(image, widths, constant_values=value)
    return image


def test_images_are_padded(tmp_path: Path) -> None:
    source = write(tmp_path / "x.tfrecord", [(0, 0, 1, 1)] * 8)
    images = [image_of(number) for number in range(8)]
    ends = [np.pad(image, ((0, 40 - image.shape[0]), (0, 30 - image.shape[1]), (0, 0))) for image in images]
    assert np.array_equal(list(rows(source.pad("image", (40, 30)), "image")), ends)
    starts = [np.pad(image, ((40 - image.shape[0], 0), (30 - image.shape[1], 0), (0, 0))) for image in images]
    assert np.array_equal(list(rows(source.pad("image", (40, 30), side="start"), "image", batch_size=4)), starts)
    both = [centered(image, (11, 25), 9) for image in images]
    made = source.pad("image", (11, 25), value=9, side="both", truncate=True)
    assert np.array_equal(list(rows(made, "image")), both)
    # Mirrored before, and of one size after: operators on both sides of it.
    made = source.flip("image", probability=1.0).pad("image", (40, 30)).cast("image", "int16").crop("image", (5, 6), offset=(1, 2))
    turned = [np.pad(image[:, ::-1], ((0, 40), (0, 30), (0, 0)))[1:6, 2:8] for image in images]
    assert np.array_equal(list(rows(made, "image")), turned)
    with pytest.raises(sf.FeatureError, match=r"its shape is \[33, 7\], larger than size \[30, 30\] of pad; raise size, or set truncate"):
        list(rows(source.pad("image", (30, 30)), "image"))


def blended(image: np.ndarray, other: Any, ratio: float) -> np.ndarray:
    mixed = np.float32(ratio) * image.astype(np.float32) + np.float32(1.0 - ratio) * np.asarray(other, np.float32)
    return np.clip(mixed, 0, 255).astype(np.uint8)


def grey(image: np.ndarray) -> np.ndarray:
    red, green, blue = np.moveaxis(image.astype(np.float32), -1, 0)
    return (np.float32(0.2989) * red + np.float32(0.587) * green + np.float32(0.114) * blue).astype(np.uint8)


def brightness(image: np.ndarray, factor: float) -> np.ndarray:
    return blended(image, np.zeros_like(image), factor)


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    values = grey(image) if image.shape[-1] == 3 else image
    # The sum is exact in float32.
    mean = np.float32(int(values.astype(np.int64).sum())) / np.float32(values.size)
    return blended(image, mean, factor)


def saturation(image: np.ndarray, factor: float) -> np.ndarray:
    return image if image.shape[-1] == 1 else blended(image, grey(image)[..., None], factor)


def hue(image: np.ndarray, shift: float) -> np.ndarray:
    if image.shape[-1] == 1:
        return image
    one, six = np.float32(1), np.float32(6)
    r, g, b = np.moveaxis(image.astype(np.float32) / np.float32(255), -1, 0)
    most, least = np.maximum(np.maximum(r, g), b), np.minimum(np.minimum(r, g), b)
    same = most == least
    s = (most - least) / np.where(same, one, most)
    divisor = np.where(same, one, most - least)
    rc, gc, bc = ((most - each) / divisor for each in (r, g, b))
    h = (most == r) * (bc - gc)
    h = h + ((most == g) & (most != r)) * (np.float32(2) + rc - bc)
    h = h + ((most != g) & (most != r)) * (np.float32(4) + gc - rc)
    h = np.fmod(h / six + one, one)
    h = np.fmod(h + np.float32(shift), one)
    h = np.where(h < 0, h + one, h)
    sixth = np.floor(h * six)
    f = h * six - sixth
    p = np.clip(most * (one - s), 0, 1)
    q = np.clip(most * (one - s * f), 0, 1)
    t = np.clip(most * (one - s * (one - f)), 0, 1)
    choices = [(most, t, p), (q, most, p), (p, most, t), (p, q, most), (t, p, most), (most, p, q)]
    place = sixth.astype(np.int32) % 6
    turned = np.stack([np.choose(place, [choice[channel] for choice in choices]) for channel in range(3)], -1)
    assert turned.dtype == np.float32
    return (turned * np.float32(255.999)).astype(np.uint8)


STEPS = (brightness, contrast, saturation, hue)


def jittered(image: np.ndarray, at: tuple[int, int], ranges: list[Any], counts: list[int], **key: int) -> np.ndarray:
    """`ColorJitter` with the draws of docs/ORDER.md, section 11, by the oracle's generator."""
    parts = [key["seed"], key["epoch"], 0, *at, 0, 0, key["position"]]
    draws = order_oracle.draws(order_oracle.make_key("operator", order_oracle.order_digest(counts), *parts), 0)
    order = [0, 1, 2, 3]
    for place in (3, 2, 1):
        other = order_oracle.below(place + 1, draws)
        order[place], order[other] = order[other], order[place]
    units = [(next(draws) >> 11) / 2**53 for _ in range(4)]
    for step in order:
        if ranges[step] is not None:
            low, high = ranges[step]
            image = STEPS[step](image, low + units[step] * (high - low))
    return image


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("given", "ranges"),
    [
        ((0.4, 0.4, 0.4, 0.1), [(0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1)]),
        ((1.5, (0.2, 3.0), (0, 2.5), (-0.5, 0.5)), [(0.0, 2.5), (0.2, 3.0), (0.0, 2.5), (-0.5, 0.5)]),
        ((0, 0, 0, (0.3, 0.3)), [None, None, None, (0.3, 0.3)]),
        ((0, 0.9, 0, 0), [None, (1 - 0.9, 1 + 0.9), None, None]),
        ((0, 0, (7, 9), 0), [None, None, (7.0, 9.0), None]),
    ],
)
def test_colors_are_those_of_torchvision(tmp_path: Path, channels: int, given: Any, ranges: Any) -> None:
    counts = [7, 6]
    images = {}
    for shard, count in enumerate(counts):
        with sf.TFRecordWriter(tmp_path / f"{shard}.tfrecord") as writer:
            for ordinal in range(count):
                image = np.random.default_rng(10 * shard + ordinal).integers(0, 256, (23, 31, channels), np.uint8)
                # Greys and blacks have no hue.
                image[:3] = image[:3, :, :1] // (1 + ordinal)
                image[3] = 0
                images[shard, ordinal] = image
                writer.write({"raw": image.tobytes()})
    source = sf.source(str(tmp_path / "*.tfrecord"), {"raw": FEATURES["raw"]})
    source = source.decode_raw("raw", "uint8", (23, 31, channels), output="image")
    source = source.color_jitter("image", *given, output="changed")
    seen, changed = 0, 0
    with sf.Loader(source, batch_size=3, seed=5, tail="pad", provenance=True) as loader:
        for epoch in range(2):
            for batch in loader:
                assert batch.provenance is not None
                for valid, at, found in zip(batch.valid, np.stack(batch.provenance, 1).tolist(), batch["changed"], strict=True):
                    if valid:
                        image = images[tuple(at)]
                        expected = jittered(image, tuple(at), ranges, counts, seed=5, epoch=epoch, position=1)
                        assert np.array_equal(found, expected), (epoch, at)
                        seen += 1
                        changed += not np.array_equal(found, image)
    assert seen == 2 * sum(counts)
    assert changed == 0 if channels == 1 and ranges[:2] == [None, None] else changed > sum(counts)


def test_jitter_is_checked_at_once(tmp_path: Path) -> None:
    images = write(tmp_path / "x.tfrecord", [])
    source = images.resize("image", (8, 8))
    for call, said in [
        (lambda: images.color_jitter("image", 0.4), "the images of `image` differ in size from row to row; resize or crop them first"),
        (lambda: source.color_jitter("box", 0.4), "it takes images, [height, width, channels], or some in each row"),
        (lambda: source.cast("image", "int16").color_jitter("image", 0.4), "images of uint8 with 1 or 3 channels, not int16"),
        (lambda: source.color_jitter("image", -0.4), "brightness is -0.4; as one number it is 0 or more"),
        (lambda: source.color_jitter("image", contrast=(-1, 1)), "contrast is from -1 to 1; it has to rise"),
        (lambda: source.color_jitter("image", saturation=(2, 1)), "saturation is from 2 to 1; it has to rise"),
        (lambda: source.color_jitter("image", hue=0.6), "hue is from -0.6 to 0.6; it has to rise, from at least -0.5 to at most 0.5"),
        (lambda: source.color_jitter("image", hue=(1, 2, 3)), "hue is two numbers, from and to"),
        (lambda: source.color_jitter("image", "much"), "brightness has 'much', which is no number"),
        (lambda: source.on_device().color_jitter("image", 0.4), "call others before on_device()"),
    ]:
        with pytest.raises(sf.ConfigError) as error:
            call()
        assert said in str(error.value)
