"""Draws the pictures of docs/SAMPLES.md from batches that loaders return.

    python docs/pictures/samples.py [FOLDER]

FOLDER gets the pictures; by default this folder. A test compares them with those in it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf

WIDTH, LEFT, CELL, HEIGHT = 900, 130, 32, 24
STYLE = """<style>
  text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #24292f }
  .s { font-size: 11px } .m { text-anchor: middle } .b { font-weight: 600 } .q { fill: #57606a }
  .line { stroke: #57606a; fill: none } .cell { stroke: #fff }
  .a { fill: #9ecae1 } .o { fill: #fdc38d } .c { fill: #a6d9a0 } .d { fill: #cfc7ea } .g { fill: #e7e9ec }
</style>"""
COLORS = "aocd"
CACHE = tempfile.TemporaryDirectory()


class Picture:
    """Rows of cells, from top to bottom."""

    def __init__(self, title: str) -> None:
        self.title, self.parts, self.top = title, list[str](), 30

    def text(self, left: float, top: float, text: str, kind: str = "s m") -> None:
        self.parts.append(f'<text x="{left:g}" y="{top:g}" class="{kind}">{text}</text>')

    def cell(self, left: float, width: float, color: str, text: str = "", top: float | None = None, height: float = HEIGHT) -> None:
        top = self.top if top is None else top
        self.parts.append(f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" class="{color} cell"/>')
        if text:
            self.text(left + width / 2, top + height / 2 + 4, text)

    def bracket(self, left: float, width: float, text: str) -> None:
        """Draws a bracket below the row, with a text."""
        top = self.top + HEIGHT + 4
        self.parts.append(f'<path d="M{left + 1:g} {top}v4h{width - 2:g}v-4" class="line"/>')
        self.text(left + width / 2, top + 17, text, "s m q")

    def label(self, name: str, below: str = "") -> None:
        self.text(16, self.top + (10 if below else 16), name, "b")
        if below:
            self.text(16, self.top + 25, below, "s q")

    def cells(self, cells: Iterable[tuple[str, str]], width: float = CELL, left: float = LEFT) -> float:
        for color, text in cells:
            self.cell(left, width, color, text)
            left += width
        return left

    def note(self, text: str) -> None:
        self.text(LEFT, self.top + 12, text, "s q")
        self.top += 26

    def down(self, by: float = 58) -> None:
        self.top += int(by)

    def save(self, path: Path) -> None:
        size = f'viewBox="0 0 {WIDTH} {self.top}" width="{WIDTH}" height="{self.top}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{self.title}">'
        back = f'<rect width="{WIDTH}" height="{self.top}" rx="8" fill="#f7f7f4"/>'
        path.write_text("\n".join([head, f"<title>{self.title}</title>", STYLE, back, *self.parts, "</svg>", ""]))


def write(folder: Path, files: dict[str, Sequence[dict[str, Any]]]) -> str:
    """Writes files of records; each record gets an `id` such as a0."""
    folder.mkdir()
    for name, records in files.items():
        with sf.TFRecordWriter(folder / f"{name}.tfrecord") as writer:
            for number, record in enumerate(records):
                writer.write({"id": f"{name}{number}".encode(), **record})
    return str(folder / "*.tfrecord")


ID = {"id": sf.FixedLenFeature((), "string")}


def batches(source: sf.Source | sf.Mixture, batch_size: int, epochs: int = 1, **options: Any) -> list[sf.Batch]:
    """Returns the batches of a process with one rank."""
    options = {"shuffle": False, "restart": False, "rank": 0, "world_size": 1, "cache_dir": CACHE.name, **options}
    with sf.Loader(source, batch_size=batch_size, **options) as loader:
        return [batch for _ in range(epochs) for batch in loader]


def texts(column: Any) -> list[str]:
    return [one.decode() for one in np.asarray(column).ravel()]


def color(name: str) -> str:
    return COLORS["abcd".index(name[0])]


def filter_(folder: Path, picture: Picture) -> None:
    lengths = {"a": [40, 9, 61, 22, 8, 35], "b": [7, 55, 12, 31, 44, 5, 28]}
    files = write(folder, {name: [{"tokens": np.arange(length)} for length in of] for name, of in lengths.items()})
    source = sf.source(files, {**ID, "tokens": sf.VarLenFeature("int64")}).filter("len(tokens) >= 20")
    steps = [texts(batch["id"]) for batch in batches(source, 4)]
    taken = {one for step in steps for one in step}
    picture.label("records", "len(tokens)")
    left: float = LEFT
    for name, of in lengths.items():
        cells = [(color(name) if f"{name}{number}" in taken else "g", str(length)) for number, length in enumerate(of)]
        end = picture.cells(cells, left=left)
        picture.bracket(left, end - left, f"file {name}")
        left = end + 16
    picture.down()
    picture.label("samples")
    left = LEFT
    for number, step in enumerate(steps):
        end = picture.cells([(color(one), one) for one in step], left=left)
        picture.bracket(left, end - left, f"step {number}")
        left = end + 16
    picture.down(54)
    picture.note('filter("len(tokens) &gt;= 20"): records are counted before the first step, so all ranks have the same steps.')


def unbatch(folder: Path, picture: Picture) -> None:
    rows = {"a": [3, 1, 0, 4], "b": [2, 5]}
    record = lambda count: {"box": np.arange(count, dtype=np.float32)}  # noqa: E731
    files = write(folder, {name: [record(count) for count in of] for name, of in rows.items()})
    boxes = sf.source(files, {**ID, "box": sf.FixedLenSequenceFeature((), "float32", allow_missing=True)})
    picture.label("records", "rows of box")
    left: float = LEFT
    for name, of in rows.items():
        start = left
        for number, count in enumerate(of):
            end = picture.cells([(color(name), str(row)) for row in range(count)] or [("g", "none")], left=left)
            picture.bracket(left, end - left, f"{name}{number}")
            left = end + 6
        left += 10 if start != left else 0
    picture.down()
    picture.label("samples", 'unbatch("box")')
    left = LEFT
    for number, batch in enumerate(batches(boxes.unbatch("box"), 5)):
        cells = zip(texts(batch["id"]), np.asarray(batch["box"]), strict=True)
        end = picture.cells([(color(one), f"{one}.{row:g}") for one, row in cells], left=left)
        picture.bracket(left, end - left, f"step {number}")
        left = end + 16
    picture.down()
    picture.label("rows around", 'edge="repeat"')
    around = boxes.unbatch(offsets={"box": (-1, 2)}, edge="repeat")
    left = LEFT
    for batch in batches(around, 5)[2:3]:
        for one, window, pads in zip(texts(batch["id"]), np.asarray(batch["box"]), np.asarray(batch["box_is_pad"]), strict=True):
            cells = zip(window, pads, strict=True)
            end = picture.cells([("g" if pad else color(one), f"{row:g}") for row, pad in cells], 28, left)
            picture.bracket(left, end - left, "one sample")
            left = end + 16
    picture.down(54)
    picture.note("Each row is a sample. With offsets={&quot;box&quot;: (-1, 2)} a sample has four rows of its record; grey: box_is_pad.")


def window(folder: Path, picture: Picture) -> None:
    videos = [("v", 7), ("w", 4)]
    records = [{"video": name.encode()} for name, count in videos for _ in range(count)]
    files = write(folder, {"a": records})
    source = sf.source(files, {**ID, "video": sf.FixedLenFeature((), "string")})
    colors = {"v": "a", "w": "o"}
    of = {f"a{number}": colors[record["video"].decode()] for number, record in enumerate(records)}
    picture.label("records", "of a file")
    left: float = LEFT
    for name, count in videos:
        some = [one for one in of if of[one] == colors[name]]
        end = picture.cells([(of[one], one) for one in some[:count]], left=left)
        picture.bracket(left, end - left, f"video {name}")
        left = end
    picture.down()
    for partial in ("drop", "pad"):
        picture.label("samples", f'partial="{partial}"')
        left = LEFT
        for batch in batches(source.window(size=3, stride=2, by="video", partial=partial), 1):
            have = int(np.asarray(batch["window_length"])[0]) if partial == "pad" else 3
            cells = [(of[one] if place < have else "g", one) for place, one in enumerate(texts(batch["id"]))]
            left = picture.cells(cells, left=left) + 16
        picture.down(40)
    picture.note('window(size=3, stride=2, by="video"): consecutive records of one video; grey: the last record again.')


def pack(folder: Path, picture: Picture) -> None:
    lengths, length = [13, 5, 9, 3, 7, 2, 11, 4, 6, 8, 3], 16
    files = write(folder, {"a": [{"tokens": np.full(one, number)} for number, one in enumerate(lengths)]})
    source = sf.source(files, {"tokens": sf.VarLenFeature("int64")})
    unit = 7
    picture.label("records", "tokens")
    left: float = LEFT
    for number, one in enumerate(lengths):
        picture.cell(left, one * unit, COLORS[number % 4], str(one))
        left += one * unit + 4
    picture.down(44)
    for method in ("fit", "concat"):
        picture.label("samples", f'method="{method}"')
        left = LEFT
        for batch in batches(source.pack("tokens", length=length, method=method), 1):
            tokens, segments = np.asarray(batch["tokens"])[0], np.asarray(batch["tokens_segment_ids"])[0]
            for segment in [*range(1, segments.max() + 1), 0]:
                places = np.flatnonzero(segments == segment)
                if len(places):
                    kind = COLORS[tokens[places[0]] % 4] if segment else "g"
                    picture.cell(left + places[0] * unit, len(places) * unit, kind, str(len(places)) if segment else "")
            left += length * unit + 14
        picture.down(40)
    picture.note("pack(&quot;tokens&quot;, length=16): each token is in one pack of an epoch; grey: padding (segment 0).")


def balance(folder: Path, picture: Picture) -> None:
    rng = np.random.default_rng(3)
    costs = np.clip(rng.lognormal(3.0, 1.0, 240), 1, 120).astype(np.int64)
    files = write(folder, {"a": [{"cost": cost} for cost in costs]})
    source = sf.source(files, {"cost": sf.FixedLenFeature((), "int64")})
    ranks, batch_size, steps = 4, 4, 10
    for name, program in (("without", source), ("with balance", source.balance("cost"))):
        options = {"shuffle": True, "seed": 1, "world_size": ranks}
        loads = [
            [int(np.asarray(batch["cost"]).sum()) for batch in batches(program, batch_size, **{**options, "rank": rank})]
            for rank in range(ranks)
        ]
        scale = 70 / max(max(load) for load in loads)
        picture.label(name, "cost of a rank")
        wasted = sum(max(step) for step in zip(*loads, strict=True)) / (sum(map(sum, loads)) / ranks)
        for step in range(steps):
            for rank, load in enumerate(loads):
                high = load[step] * scale
                left = LEFT + step * 72 + rank * 14
                picture.cell(left, 13, COLORS[rank], "", picture.top + 76 - high, high)
            picture.text(LEFT + step * 72 + 28, picture.top + 92, f"step {step}", "s m q")
        picture.down(102)
        picture.note(f"All wait for the slowest rank: an epoch takes {wasted:.2f} times the mean work of a rank.")
    picture.down(4)


def mix(folder: Path, picture: Picture) -> None:
    folder.mkdir()
    web = write(folder / "web", {"a": [{}] * 16})
    code = write(folder / "code", {"b": [{}] * 5})
    mixture = sf.mix({"web": (sf.source(web, ID), 0.7), "code": (sf.source(code, ID), 0.3)}, epoch=10)
    picture.label("sources", "web 0.7, code 0.3")
    end = picture.cells([("a", f"a{number}") for number in range(16)])
    picture.bracket(LEFT, end - LEFT, "web")
    last = picture.cells([("o", f"b{number}") for number in range(5)], left=end + 24)
    picture.bracket(end + 24, last - end - 24, "code")
    picture.down()
    for first in (0, 2):
        picture.label("samples", f"epochs {first} and {first + 1}")
        left: float = LEFT
        for epoch in (first, first + 1):
            cells = [one for batch in batches(mixture, 5, 4)[2 * epoch : 2 * epoch + 2] for one in texts(batch["id"])]
            end = picture.cells([(color(one), one) for one in cells], left=left)
            web = sum(one.startswith("a") for one in cells)
            picture.bracket(left, end - left, f"epoch {epoch}: {web} of web, {len(cells) - web} of code")
            left = end + 16
        picture.down()
    picture.note("Each source continues where it was: its samples all come once before any comes again.")


PICTURES = {"filter": filter_, "unbatch": unbatch, "window": window, "pack": pack, "balance": balance, "mix": mix}


def draw(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as data:
        for name, drawn in PICTURES.items():
            picture = Picture(f"Samples of {name}")
            drawn(Path(data) / name, picture)
            picture.save(folder / f"{name}.svg")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
