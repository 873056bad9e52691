"""Writes images with boxes in Pascal VOC's XML as a dataset.

    python examples/detection/voc.py LIST.txt ANNOTATIONS DIR [--classes FILE]

Each line of LIST.txt is the path of an image, JPEG or PNG, relative to the list; a label may follow
after a tab, or, in all lines, an integer after a space. ANNOTATIONS/STEM.xml describes the image. The
features are those of TensorFlow's Object Detection API (docs/DATASETS.md, "Boxes"). Prints the
classes with their numbers.
"""

from __future__ import annotations

import argparse
import math
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

import shardfeed as sf

#: Maximum size of an annotation, bytes; one object takes about 300.
FILE_BYTES_MAX = 4 << 20
SIDES = ("xmin", "ymin", "xmax", "ymax")
#: JPEGs that decoders read: baseline, extended or progressive, Huffman or arithmetic coding.
FRAMES = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)


class InvalidInputError(ValueError):
    """A file that cannot be written as a record, with a hint in the second line."""

    def __init__(self, path: Path, what: str, hint: str) -> None:
        super().__init__(f"{path}: {what}\nhint: {hint}")


@dataclass(slots=True)
class Object:
    """A box, and its class; `sides`: as `SIDES`, as parts of the image's width and height."""

    name: str
    difficult: int
    truncated: int
    sides: tuple[float, ...]


@dataclass(slots=True)
class Annotation:
    """Width and height of an image in pixels, and its objects."""

    width: int
    height: int
    objects: list[Object]


def parse(data: bytes) -> Annotation:
    """Parses an annotation. The files are not trusted: their size is bounded, and a document type,
    which could define entities, is rejected. Raises `ValueError`."""
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"has more than the {FILE_BYTES_MAX} bytes that are read")
    text = data.decode("utf-8-sig")
    if (declared := re.match(r"""<\?xml[^>]*encoding\s*=\s*["']([^"']*)""", text)) and declared[1].lower() != "utf-8":
        raise ValueError(f"is written in `{declared[1]}`, not in UTF-8")
    if "<!DOCTYPE" in text:
        raise ValueError("has a document type, which annotations need not have")
    root = ElementTree.fromstring(text)
    namespace = root.tag[: root.tag.find("}") + 1]
    if root.tag != f"{namespace}annotation":
        raise ValueError(f"has <{root.tag}> where a single <annotation> is expected")
    if namespace:
        for each in root.iter():
            each.tag = each.tag.removeprefix(namespace)
    width, height = (pixels(content(root, f"size/{side}")) for side in ("width", "height"))
    # Parts of an object have their own names and boxes, one level deeper.
    objects = [object_of(number, each, width, height) for number, each in enumerate(root.findall("object"), 1)]
    return Annotation(width, height, objects)


def content(parent: ElementTree.Element, path: str, default: str | None = None) -> str:
    """Returns the text of an element that occurs once, or at most once if there is a default."""
    found = [(each.text or "").strip() for each in parent.findall(path)]
    if len(found) > 1:
        raise ValueError(f"has a second <{path}> in its <{parent.tag}>")
    if not found and default is None:
        raise ValueError(f"has no <{path}> in its <{parent.tag}>")
    return found[0] if found else str(default)


def pixels(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) == 0:
        raise ValueError(f"has {text!r} for a number of pixels")
    return int(text)


def coordinate(text: str) -> float:
    is_number = re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?", text, re.IGNORECASE)
    number = float(text) if is_number else math.nan
    if not math.isfinite(number):
        raise ValueError(f"has {text!r} for a coordinate in pixels")
    return number


def flag(text: str) -> int:
    if text not in ("0", "1"):
        raise ValueError(f"has {text!r} where 0 or 1 is expected")
    return int(text)


def object_of(number: int, element: ElementTree.Element, width: int, height: int) -> Object:
    """Returns the object of an image; its box must lie inside."""
    try:
        name = content(element, "name")
        xmin, ymin, xmax, ymax = (coordinate(content(element, f"bndbox/{side}")) for side in SIDES)
        difficult, truncated = (flag(content(element, of, "0")) for of in ("difficult", "truncated"))
        if not name:
            raise ValueError("has no <name>")
        if not name.isprintable():
            raise ValueError(f"its name {name!r} has characters that are not printable")
        for least, most, size, axis in ((xmin, xmax, width, "x"), (ymin, ymax, height, "y")):
            sides = f"{axis}min {least:g}, {axis}max {most:g}"
            if least >= most:
                raise ValueError(f"its box of `{name}` is inverted or empty: {sides}")
            if least < 0 or most > size:
                raise ValueError(f"its box of `{name}` is not inside of the image: {sides}, of {size} pixels")
    except ValueError as error:
        raise ValueError(f"object {number}: {error}") from None
    # Images share the names of their classes.
    return Object(sys.intern(name), difficult, truncated, (xmin / width, ymin / height, xmax / width, ymax / height))


def read_annotation(path: Path) -> Annotation:
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    try:
        return parse(data)
    except (ValueError, ElementTree.ParseError) as error:
        hint = "fix the annotation, or leave its image out of the list"
        raise InvalidInputError(path, str(error), hint) from None


def image_size(path: Path, data: bytes) -> tuple[str, int, int]:
    """Returns the format, the width and the height of an image, from its header."""
    hint = "leave it out of the list, or convert it to JPEG or PNG"
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        return "png", width, height
    at = 2 if data[:2] == b"\xff\xd8" else len(data)
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker, length = struct.unpack_from(">BH", data, at + 1)
        # SOF0 to SOF15; in between are the markers of other tables.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            precision, height, width = struct.unpack_from(">BHH", data, at + 4)
            if marker in FRAMES and precision == 8:
                return "jpeg", width, height
            raise InvalidInputError(path, "a JPEG that is lossless, hierarchical, or not of 8 bits", hint)
        # A marker may be preceded by any number of bytes 0xff.
        at += 1 if marker == 0xFF else 2 + length
    raise InvalidInputError(path, "neither JPEG nor PNG, or its header is damaged", hint)


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Returns the lines of a text that are not empty, with their numbers."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Without the byte order mark, which has no line end.
        number = error.object.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(path, f"line {number}: not UTF-8", "save the file as UTF-8") from None
    lines = enumerate(re.split("\r\n?|\n", text), 1)
    return [(number, line.rstrip()) for number, line in lines if line.strip()]


def read_list(path: Path) -> list[tuple[str, str | None]]:
    """Returns the path and the label of each image."""
    numbered = read_lines(path)
    for number, line in numbered:
        if "\0" in line:
            raise InvalidInputError(path, f"line {number}: has a NUL character", "no path has one; correct the line")
    lines = [line for _, line in numbered]
    label = r"(.*\S)\s*\t\s*(.+)" if any("\t" in line for line in lines) else r"(.*\S) +([+-]?[0-9]+)"
    found = [re.fullmatch(label, line) for line in lines]
    if not lines or None in found and any(found):
        bad = repr(lines[found.index(None)]) + " has no path or no label" if lines else "names no files"
        hint = "write one path a line, and behind it nothing, or in every line a label; behind a tab any text is one"
        raise InvalidInputError(path, bad, hint)
    pairs = zip(lines, found, strict=True)
    return [(each[1].strip(), each[2]) if each else (line.strip(), None) for line, each in pairs]


def read_classes(path: Path) -> list[str]:
    """Returns the names of the classes in their order."""
    names: list[str] = []
    for number, line in read_lines(path):
        name = sys.intern(line.strip())
        if not name.isprintable():
            what = f"line {number}: {name!r} has characters that are not printable"
            raise InvalidInputError(path, what, "write one name per line")
        names.append(name)
    return names


class Images:
    """The images of a list with their boxes.

    - `classes`: file with the names of the classes, one per line; None: those in the annotations.
    """

    def __init__(self, list_path: Path, annotations: Path, classes: Path | None = None) -> None:
        self.root, self.entries = list_path.parent, read_list(list_path)
        self.paths = [annotations / f"{Path(path).stem}.xml" for path, _ in self.entries]
        self.annotations = [read_annotation(path) for path in self.paths]
        names = sorted({each.name for annotation in self.annotations for each in annotation.objects})
        if classes:
            names = read_classes(classes)
        #: From 1: readers of these features use 0 for the background.
        self.numbers = {name: number for number, name in enumerate(names, 1)}
        if classes and len(self.numbers) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInputError(classes, f"`{twice}` is there twice", "name each class once")
        for path, annotation in zip(self.paths, self.annotations, strict=True):
            for number, each in enumerate(annotation.objects, 1):
                if each.name not in self.numbers:
                    what = f"object {number}: class `{each.name}` is not in --classes"
                    raise InvalidInputError(path, what, "add it to that file, or fix the annotation")
        labels = {label for _, label in self.entries if label is not None}
        are_numbers = all(re.fullmatch("[+-]?[0-9]+", label) for label in labels)
        self.labels = {label: int(label) if are_numbers else at for at, label in enumerate(sorted(labels))}
        self.has_class_names = not are_numbers

    def records(self) -> Iterator[dict[str, Any]]:
        for (path, label), annotated, annotation in zip(self.entries, self.paths, self.annotations, strict=True):
            record = self._features(path, annotated, annotation)
            if label is not None:
                record["image/class/label"] = self.labels[label]
                if self.has_class_names:
                    record["image/class/text"] = label
            yield record

    def _features(self, name: str, annotated: Path, annotation: Annotation) -> dict[str, Any]:
        path, objects = self.root / name, annotation.objects
        data = path.read_bytes()
        kind, *size = image_size(path, data)
        if size != [annotation.width, annotation.height]:
            wanted, found = f"{annotation.width} x {annotation.height}", f"{size[0]} x {size[1]}"
            what = f"is for an image of {wanted} pixels, but {path} has {found}"
            hint = "annotate the image as it is, or take the one that was annotated"
            raise InvalidInputError(annotated, what, hint)

        def column(dtype: type[np.generic], values: list[Any]) -> np.ndarray[Any, Any]:
            return np.array(values, dtype)

        sides = {f"image/object/bbox/{side}": [each.sides[at] for each in objects] for at, side in enumerate(SIDES)}
        return {
            "image/encoded": data,
            "image/format": kind,
            "image/filename": path.name,
            "image/source_id": name,
            "image/width": size[0],
            "image/height": size[1],
            **{side: column(np.float32, values) for side, values in sides.items()},
            # An array without texts has a type, unlike an empty list.
            "image/object/class/text": [each.name for each in objects] or column(np.bytes_, []),
            "image/object/class/label": column(np.int64, [self.numbers[each.name] for each in objects]),
            "image/object/difficult": column(np.int64, [each.difficult for each in objects]),
            "image/object/truncated": column(np.int64, [each.truncated for each in objects]),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path)
    parser.add_argument("annotations", type=Path)
    # Not a Path, which would make one slash of the two in a URL.
    parser.add_argument("directory")
    parser.add_argument("--classes", type=Path, help="names of the classes, numbered from 1; the same for all parts")
    parser.add_argument("--prefix", help="prefix of the shards' names; by default the list's name without its ending")
    parser.add_argument("--shard-bytes", default="150MB")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compression", choices=("none", "gzip", "zlib"), default="none")
    parser.add_argument("--force", action="store_true", help="replace existing shards")
    arguments = vars(parser.parse_args())
    arguments["prefix"] = arguments["prefix"] or arguments["list"].stem
    inputs = [arguments.pop(name) for name in ("list", "annotations", "classes")]
    try:
        images = Images(*inputs)
        source = sf.write_dataset(images.records(), **arguments)
    except (InvalidInputError, OSError, sf.ConfigError) as error:
        sys.exit(f"error: {error}")
    print(f"{source.records} images, {sum(len(each.objects) for each in images.annotations)} objects")
    for name, number in images.numbers.items():
        print(number, name)


if __name__ == "__main__":
    main()
