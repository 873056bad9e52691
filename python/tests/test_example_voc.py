"""The example that writes images with Pascal VOC's annotations."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/detection/voc.py"
sys.path.insert(0, str(EXAMPLE.parent))
import voc  # noqa: E402

GOOD = """<annotation>
    <folder>VOC2012</folder><filename>1.jpg</filename>
    <size><width>200</width><height>100</height><depth>3</depth></size>
    <segmented>0</segmented>
    <object>
        <name>person</name><pose>Unspecified</pose><truncated>1</truncated>
        <bndbox><xmax>100</xmax><xmin>50</xmin><ymin>0</ymin><ymax>100</ymax></bndbox>
        <part><name>head</name><bndbox><xmin>60</xmin><ymin>1</ymin><xmax>70</xmax><ymax>9</ymax></bndbox></part>
    </object>
    <object>
        <difficult>1</difficult>
        <bndbox><xmin>1</xmin><ymin>2.5</ymin><xmax>200</xmax><ymax>25</ymax></bndbox>
        <name> salt &amp; p&#101;pper<![CDATA[ <x>]]> </name>
    </object>
</annotation>
"""


def png(width: int, height: int) -> bytes:
    """Returns the header of a PNG of this size: only the header is read."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def jpeg(width: int, height: int, marker: int = 0xC2, precision: int = 8) -> bytes:
    """Returns the header of a JPEG, by default progressive, behind a comment and a fill byte."""
    comment = b"\xff\xfe\x00\x06\xff\xc0ab"
    frame = struct.pack(">BHHB", precision, height, width, 1) + b"\x01\x11\x00"
    return b"\xff\xd8" + comment + b"\xff\xff" + bytes([marker]) + struct.pack(">H", len(frame) + 2) + frame


def annotation(width: int, height: int, *objects: tuple[str, tuple[int, int, int, int]]) -> str:
    def of(name: str, sides: tuple[int, int, int, int]) -> str:
        box = "".join(f"<{side}>{place}</{side}>" for side, place in zip(voc.SIDES, sides, strict=True))
        return f"<object><name>{name}</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"

    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation>{size}{''.join(of(*each) for each in objects)}</annotation>"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two images, one with two objects and one with none."""
    (tmp_path / "in/more").mkdir(parents=True)
    (tmp_path / "boxes").mkdir()
    (tmp_path / "in/a.png").write_bytes(png(200, 100))
    (tmp_path / "in/more/b.jpg").write_bytes(jpeg(30, 40))
    (tmp_path / "in/list.txt").write_text("a.png\nmore/b.jpg\n")
    boxes = annotation(200, 100, ("dog", (50, 0, 100, 100)), ("cat", (1, 25, 200, 50)))
    (tmp_path / "boxes/a.xml").write_text(boxes)
    (tmp_path / "boxes/b.xml").write_text(annotation(30, 40))
    return tmp_path


def run(place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE), "in/list.txt", "boxes", "out", *options]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60)


def write(place: Path, *options: str) -> tuple[str, list[bytes]]:
    done = run(place, *options)
    assert done.returncode == 0, done.stderr
    shards = sorted((place / "out").iterdir())
    return done.stdout, sorted(record for shard in shards for record in sf.read_records(shard))


def refused(place: Path, *options: str) -> str:
    done = run(place, *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert not (place / "out").exists(), "an error leaves nothing"
    return done.stderr


def first(place: Path, **others: Any) -> dict[str, Any]:
    return {
        "image/encoded": png(200, 100),
        "image/format": b"png",
        "image/filename": b"a.png",
        "image/source_id": b"a.png",
        "image/width": 200,
        "image/height": 100,
        "image/object/bbox/xmin": np.array([0.25, 0.005], np.float32),
        "image/object/bbox/ymin": np.array([0.0, 0.25], np.float32),
        "image/object/bbox/xmax": np.array([0.5, 1.0], np.float32),
        "image/object/bbox/ymax": np.array([1.0, 0.5], np.float32),
        "image/object/class/text": [b"dog", b"cat"],
        "image/object/class/label": [2, 1],
        "image/object/difficult": [0, 0],
        "image/object/truncated": [0, 0],
    } | others


def second(**others: Any) -> dict[str, Any]:
    sides = {f"image/object/bbox/{side}": np.array([], np.float32) for side in voc.SIDES}
    numbers = ("image/object/class/label", "image/object/difficult", "image/object/truncated")
    return {
        "image/encoded": jpeg(30, 40),
        "image/format": b"jpeg",
        "image/filename": b"b.jpg",
        "image/source_id": b"more/b.jpg",
        "image/width": 30,
        "image/height": 40,
        **sides,
        "image/object/class/text": np.array([], "S"),
        **{name: np.array([], np.int64) for name in numbers},
    } | others


def encoded(*records: dict[str, Any]) -> list[bytes]:
    return sorted(map(sf.encode_example, records))


def test_boxes_are_written_as_detection_models_read_them(place: Path) -> None:
    said, records = write(place)
    assert said == "2 images, 2 objects\n1 cat\n2 dog\n"
    assert records == encoded(first(place), second())
    # Lists without values have their types: bytes, float32 and int64.
    (without,) = (record for record in records if b"b.jpg" in record)
    for name, kind in (("class/text", b"\n"), ("bbox/xmin", b"\x12"), ("class/label", b"\x1a")):
        assert f"image/object/{name}".encode() + b"\x12\x02" + kind + b"\0" in without


def test_classes_may_be_numbered_for_all_parts_of_a_dataset(place: Path) -> None:
    classes = place / "classes.txt"
    classes.write_text("person\ndog\n\ncat\n")
    said, records = write(place, "--classes", "classes.txt")
    assert said.endswith("1 person\n2 dog\n3 cat\n")
    assert records == encoded(first(place) | {"image/object/class/label": [2, 3]}, second())
    classes.write_text("person\ndog\n")
    text = "error: boxes/a.xml: object 2: class `cat` is not in --classes\nhint: add it to that file, or fix the annotation\n"
    assert run(place, "--classes", "classes.txt", "--force").stderr == text
    classes.write_text("dog\ncat\ndog\n")
    text = "error: classes.txt: `dog` is there twice\nhint: name each class once\n"
    assert run(place, "--classes", "classes.txt", "--force").stderr == text
    classes.write_bytes(b"dog\n\n\xe9\n")
    text = "error: classes.txt: line 3: not UTF-8\nhint: save the file as UTF-8\n"
    assert run(place, "--classes", "classes.txt", "--force").stderr == text
    classes.write_text("dog\n\u202ecat\n")
    text = "error: classes.txt: line 2: '\\u202ecat' has characters that are not printable\nhint: write one name per line\n"
    assert run(place, "--classes", "classes.txt", "--force").stderr == text
    # As some editors save it, with a byte order mark.
    classes.write_text("\ufeffdog\r\ncat\r\n")
    assert write(place, "--classes", "classes.txt", "--force")[0].endswith("1 dog\n2 cat\n")
    assert write(place, "--prefix", "data", "--force")[0].endswith("2 dog\n")


def test_two_lists_may_share_a_folder(place: Path) -> None:
    write(place)
    (place / "in/val.txt").write_text("a.png\n")
    command = [sys.executable, str(EXAMPLE), "in/val.txt", "boxes", "out"]
    subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=60)
    names = ["list-00000-of-00001.tfrecord", "val-00000-of-00001.tfrecord"]
    assert sorted(path.name for path in (place / "out").iterdir()) == names


def test_a_url_is_no_folder_for_shards(place: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "in/list.txt", "boxes", "s3://bucket/out"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("error: s3://bucket/out: shards are written to local or mounted folders")
    assert not (place / "s3:").exists()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (("\tindoor", "\toutdoor"), [{"image/class/text": "indoor", "image/class/label": 0}, {"image/class/text": "outdoor", "image/class/label": 1}]),
        (("\t7", "\t-1"), [{"image/class/label": 7}, {"image/class/label": -1}]),
        ((" 7", " 8"), [{"image/class/label": 7}, {"image/class/label": 8}]),
    ],
)
def test_a_list_may_have_labels_beside_boxes(place: Path, labels: tuple[str, str], expected: list[dict[str, Any]]) -> None:
    (place / "in/list.txt").write_text(f"a.png{labels[0]}\r\n\nmore/b.jpg{labels[1]}\n")
    _, records = write(place)
    assert records == encoded(first(place) | expected[0], second() | expected[1])


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        (
            "boxes/a.xml",
            annotation(200, 100, ("cat", (0, 0, 9, 9)), ("dog", (0, 0, 201, 9))),
            "boxes/a.xml: object 2: its box of `dog` is not inside of the image: xmin 0, xmax 201, of 200 pixels\n"
            "hint: fix the annotation, or leave its image out of the list",
        ),
        (
            "boxes/a.xml",
            annotation(200, 100, ("dog", (10, 20, 30, 20))),
            "boxes/a.xml: object 1: its box of `dog` is inverted or empty: ymin 20, ymax 20\n"
            "hint: fix the annotation, or leave its image out of the list",
        ),
        (
            "boxes/b.xml",
            annotation(40, 30),
            "boxes/b.xml: is for an image of 40 x 30 pixels, but in/more/b.jpg has 30 x 40\n"
            "hint: annotate the image as it is, or take the one that was annotated",
        ),
        (
            "boxes/b.xml",
            "<!DOCTYPE x [<!ENTITY a 'b'>]>",
            "boxes/b.xml: has a document type, which annotations need not have\n"
            "hint: fix the annotation, or leave its image out of the list",
        ),
        (
            "in/a.png",
            "GIF89a and so on",
            "in/a.png: neither JPEG nor PNG, or its header is damaged\n"
            "hint: leave it out of the list, or convert it to JPEG or PNG",
        ),
        ("boxes/b.xml", None, "[Errno 2] No such file or directory: 'boxes/b.xml'"),
        ("in/more/b.jpg", None, "[Errno 2] No such file or directory: 'in/more/b.jpg'"),
        (
            "in/more/b.jpg",
            jpeg(30, 40, marker=0xC3),
            "in/more/b.jpg: a JPEG that is lossless, hierarchical, or not of 8 bits\n"
            "hint: leave it out of the list, or convert it to JPEG or PNG",
        ),
        ("in/list.txt", b"\xef\xbb\xbfa.png\n\xff\n", "in/list.txt: line 2: not UTF-8\nhint: save the file as UTF-8"),
        (
            "in/list.txt",
            "a.png\n\nmore/\0b.jpg\n",
            "in/list.txt: line 3: has a NUL character\nhint: no path has one; correct the line",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(place: Path, file: str, text: str | bytes | None, says: str) -> None:
    if text is None:
        (place / file).unlink()
    else:
        (place / file).write_bytes(text.encode() if isinstance(text, str) else text)
    assert refused(place) == f"error: {says}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n", "names no files"),
        ("a.png 1\nmore/b.jpg\n", "'more/b.jpg' has no path or no label"),
        ("a.png\t1\n\t2\n", "'\\t2' has no path or no label"),
    ],
)
def test_lists_that_make_no_dataset_are_refused(place: Path, text: str, says: str) -> None:
    (place / "in/list.txt").write_text(text)
    said = refused(place)
    assert said.startswith(f"error: in/list.txt: {says}\nhint: write one path a line"), said


def test_boxes_are_parts_of_their_image() -> None:
    person = voc.Object("person", 0, 1, (0.25, 0.0, 0.5, 1.0))
    other = voc.Object("salt & pepper <x>", 1, 0, (0.005, 0.025, 1.0, 0.25))
    assert voc.parse(GOOD.encode()) == voc.Annotation(200, 100, [person, other])
    text = "\ufeff<?xml version='1.0' encoding='UTF-8'?><!-- x --><annotation><size><width>1</width>" \
        "<height>2</height></size></annotation>\n"
    assert voc.parse(text.encode()) == voc.Annotation(1, 2, [])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("<xmax>100<", "<xmax>201<", "object 1: its box of `person` is not inside of the image: xmin 50, xmax 201, of 200 pixels"),
        ("<ymin>0<", "<ymin>-1<", "object 1: its box of `person` is not inside of the image: ymin -1, ymax 100, of 100 pixels"),
        ("<xmin>50<", "<xmin>100<", "object 1: its box of `person` is inverted or empty: xmin 100, xmax 100"),
        ("<ymax>25<", "<ymax>2<", "object 2: its box of `salt & pepper <x>` is inverted or empty: ymin 2.5, ymax 2"),
        ("<xmin>50</xmin>", "", "object 1: has no <bndbox/xmin> in its <object>"),
        ("<xmin>50<", "<xmin>NaN<", "object 1: has 'NaN' for a coordinate in pixels"),
        ("<xmin>50<", "<xmin>1e999<", "object 1: has '1e999' for a coordinate in pixels"),
        ("<ymin>0<", "<ymin>0</ymin><ymin>0<", "object 1: has a second <bndbox/ymin> in its <object>"),
        ("<name>person</name>", "", "object 1: has no <name> in its <object>"),
        ("<name>person</name>", "<name/>", "object 1: has no <name>"),
        ("<name>person<", "<name>per&#10;son<", "object 1: its name 'per\\nson' has characters that are not printable"),
        ("<truncated>1<", "<truncated>yes<", "object 1: has 'yes' where 0 or 1 is expected"),
        ("<width>200</width>", "", "has no <size/width> in its <annotation>"),
        ("<width>200<", "<width>0<", "has '0' for a number of pixels"),
        ("</object>", "</objekt>", "mismatched tag: line 9"),
        ("</annotation>", "", "no element found: line 16"),
        ("<annotation>", "<!DOCTYPE a [<!ENTITY x 'y'>]><annotation>", "has a document type"),
        ("<annotation>", "<?xml version='1.0' encoding='latin1'?><annotation>", "is written in `latin1`, not in UTF-8"),
        ("salt &amp;", "salt &nbsp;", "undefined entity: line 13"),
        ("</annotation>", "</annotation><annotation/>", "junk after document element"),
        ("</annotation>", "</annotation>text", "junk after document element"),
    ],
)
def test_annotations_that_are_none_are_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in GOOD
    assert refusal(tmp_path, GOOD.replace(old, new, 1).encode()).startswith(says)


def refusal(folder: Path, data: bytes) -> str:
    """Returns the reason for which an annotation is refused."""
    (folder / "x.xml").write_bytes(data)
    with pytest.raises(voc.InvalidInputError, match="\nhint: fix the annotation") as raised:
        voc.read_annotation(folder / "x.xml")
    return str(raised.value).removeprefix(f"{folder}/x.xml: ")


def test_size_depth_and_encoding_are_bounded(tmp_path: Path) -> None:
    assert refusal(tmp_path, b" " * (voc.FILE_BYTES_MAX + 1)) == (
        "has more than the 4194304 bytes that are read\nhint: fix the annotation, or leave its image out of the list"
    )
    refusal(tmp_path, b"<annotation>" + b"<a>" * 1_000_000)
    refusal(tmp_path, b"<a>" * 500_000 + b"</a>" * 500_000)
    refusal(tmp_path, b"<annotation>\n\xff")
    refusal(tmp_path, "<!DOCTYPE a><annotation/>".encode("utf-16"))
    refusal(tmp_path, b"")
    refusal(tmp_path, b"<kitti/>")


def test_no_cut_and_no_changed_byte_gives_another_error(tmp_path: Path) -> None:
    data, whole = GOOD.encode(), voc.parse(GOOD.encode())
    for at in range(len(data)):
        cut = parsed(data[:at])
        assert cut is None or at + 1 >= len(data)
        for byte in b"\0<>&\"-9\xff":
            changed = parsed(data[:at] + bytes([byte]) + data[at + 1 :])
            if changed is not None:
                boxes = [each.sides for each in changed.objects]
                assert all(0 <= box[0] < box[2] <= 1 and 0 <= box[1] < box[3] <= 1 for box in boxes)
                assert len(boxes) <= len(whole.objects)


def parsed(data: bytes) -> Any:
    try:
        return voc.parse(data)
    except (ValueError, voc.ElementTree.ParseError):
        return None


def test_namespaces_of_annotations_are_ignored() -> None:
    with_namespace = GOOD.replace("<annotation>", "<annotation xmlns='http://example.com/voc'>", 1)
    assert voc.parse(with_namespace.encode()) == voc.parse(GOOD.encode())


def test_spaces_around_paths_are_ignored(place: Path) -> None:
    for line in ("  a.png  \n\tmore/b.jpg\n", " a.png 1\n  more/b.jpg  2 \n"):
        (place / "in/list.txt").write_text(line.replace("\t", " "))
        assert [path for path, _ in voc.read_list(place / "in/list.txt")] == ["a.png", "more/b.jpg"]
    (place / "in/list.txt").write_text(" a.png \t x\n more/b.jpg\ty \n")
    assert voc.read_list(place / "in/list.txt") == [("a.png", "x"), ("more/b.jpg", "y")]


def test_only_jpegs_that_decoders_read_are_accepted() -> None:
    accepted = [marker for marker in range(0xC0, 0xD0) if is_image(jpeg(30, 40, marker))]
    assert accepted == [0xC0, 0xC1, 0xC2, 0xC9, 0xCA]
    assert not is_image(jpeg(30, 40, precision=12))


def test_a_header_that_is_cut_is_refused() -> None:
    for whole in (png(30, 40), jpeg(30, 40)):
        end = next(end for end in range(len(whole) + 1) if is_image(whole[:end]))
        assert all(is_image(whole[:at]) == (at >= end) for at in range(len(whole) + 1))


def is_image(data: bytes) -> bool:
    try:
        return voc.image_size(Path("x"), data)[1:] == (30, 40)
    except voc.InvalidInputError:
        return False
