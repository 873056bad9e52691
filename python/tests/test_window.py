"""`Source.window`: samples of consecutive records of a file, as docs/ORDER.md, section 16, defines them."""

from __future__ import annotations

import json
import pickle
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from recount import parse
from test_bad_input import flip, record_offsets
from test_filter import read_chars

import shardfeed as sf

sys.path.insert(0, str(ROOT / "examples/imagenet"))
from images import png  # noqa: E402

FEATURES: dict[str, Any] = {
    "id": sf.FixedLenFeature((), "int64"),
    "video": sf.FixedLenFeature((), "string"),
    "state": sf.FixedLenFeature((2, 2), "float32"),
    "mark": sf.FixedLenFeature((2,), "int64", default_value=[-7, 300]),
    "tags": sf.VarLenFeature("int64"),
}

Record = dict[str, Any]


class World:
    """Files of records that the test knows: runs of records of one video, some of which come back later."""

    def __init__(self, folder: Path, seed: int, counts: Sequence[int], compression: Any = None) -> None:
        self.folder, self.pattern = folder, str(folder / "*.tfrecord")
        self.records: list[list[Record]] = []
        rng = random.Random(seed)
        folder.mkdir(parents=True)
        for shard, count in enumerate(counts):
            records: list[Record] = []
            while len(records) < count:
                video = f"v{rng.randrange(4)}"
                for _ in range(min(rng.choice([1, 2, 5, 17]), count - len(records))):
                    records.append(self.record(rng, shard * 1000 + len(records), video))
            self.records.append(records)
            with sf.TFRecordWriter(folder / f"part-{shard:02}.tfrecord", compression=compression) as writer:
                for record in records:
                    writer.write({name: value for name, value in record.items() if value is not None})

    @staticmethod
    def record(rng: random.Random, number: int, video: str) -> Record:
        return {
            "id": number,
            "video": video.encode(),
            "state": [[number * 1.0, -1.0], [0.5, rng.random()]],
            "mark": None if rng.random() < 0.3 else [number - 50, rng.randrange(-(2**62), 2**62)],
            "tags": [1] * rng.randrange(3),
        }

    def source(self) -> sf.Source:
        return sf.source(self.pattern, FEATURES)


class Task:
    """Windows in shardfeed and in Python."""

    def __init__(
        self, size: int, stride: int | None = None, by: tuple[str, Callable[[Record], Any]] | None = None, partial: Any = "drop",
        kept: tuple[str, Callable[[Record], bool]] | None = None, columns: Sequence[str] = ("id", "video", "state", "mark"),
    ) -> None:  # fmt: skip
        self.size, self.stride, self.by, self.partial, self.kept, self.columns = size, stride or size, by, partial, kept, columns

    def source(self, world: World) -> sf.Source:
        source = world.source() if self.kept is None else world.source().filter(self.kept[0])
        return source.window(*self.columns, size=self.size, stride=self.stride, by=self.by and self.by[0], partial=self.partial)

    def windows(self, world: World) -> list[list[list[Record]]]:
        """Returns the windows of each shard."""
        return [self.of_shard([one for one in records if self.kept is None or self.kept[1](one)]) for records in world.records]

    def of_shard(self, records: list[Record]) -> list[list[Record]]:
        groups: list[list[Record]] = []
        for at, record in enumerate(records):
            if at == 0 or (self.by is not None and self.by[1](record) != self.by[1](records[at - 1])):
                groups.append([])
            groups[-1].append(record)
        found = []
        for group in groups:
            for start in range(0, len(group), self.stride):
                window = group[start : start + self.size]
                if len(window) == self.size or self.partial != "drop":
                    found.append(window)
        return found

    def row(self, window: list[Record]) -> dict[str, Any]:
        filled = window + [window[-1]] * (self.size - len(window) if self.partial == "pad" else 0)
        default = {"mark": [-7, 300]}
        row = {name: [default[name] if one[name] is None else one[name] for one in filled] for name in self.columns}
        return row | ({"window_length": len(window)} if self.partial == "pad" else {})


TASKS = [
    Task(4),
    Task(5, 2, ("video", lambda record: record["video"])),
    Task(3, 7),
    Task(6, 6, ("id // 10", lambda record: record["id"] // 10), "pad"),
    Task(4, 1, ("video", lambda record: record["video"]), "pad", ("id % 5 != 2", lambda record: record["id"] % 5 != 2)),
    Task(2, 3, None, "drop", ("len(tags) > 0", lambda record: len(record["tags"]) > 0), ("id", "state")),
    Task(1),
    Task(4, 3, ("video", lambda record: record["video"]), "keep"),
    Task(6, 2, None, "keep", ("id % 5 != 2", lambda record: record["id"] % 5 != 2), ("state", "video")),
    Task(30, 11, ("ordinal % 40 < 20", lambda record: record["id"] % 1000 % 40 < 20), "pad", None, ("mark", "id")),
]


def loader(source: sf.Source | sf.Mixture, **options: Any) -> sf.Loader:
    defaults: dict[str, Any] = {"batch_size": 4, "shuffle_window": 16, "interleave": 3, "seed": 5, "restart": False, "rank": 0, "world_size": 1}
    return sf.Loader(source, **(defaults | options))


def rows_of(batch: sf.Batch) -> list[tuple[str, bool]]:
    columns = {name: batch[name] for name in batch}
    rows = []
    for row in range(batch.rows):
        of = {name: np.asarray(column[row]).tolist() for name, column in columns.items()}
        rows.append((text_of(of), bool(batch.valid[row])))
    return rows


def text_of(row: dict[str, Any]) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(one) for one in value]
        if isinstance(value, bytes):
            return value.decode()
        return float(np.float32(value)) if isinstance(value, float) else value

    return json.dumps({name: plain(value) for name, value in row.items()}, sort_keys=True)


def test_the_memory_budget_that_an_error_names_suffices(tmp_path: Path) -> None:
    """Operators and batches take parts of the budget, so a larger one is needed for more than records."""
    rng = np.random.default_rng(5)
    with sf.TFRecordWriter(tmp_path / "photos") as writer:
        for _ in range(300):
            writer.write({"photo": png(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8))})
    source = sf.source(str(tmp_path / "photos"), {"photo": sf.FixedLenFeature((), "string")}).window(size=3)
    source = source.decode_image("photo").resize("photo", (64, 64))
    for window in (200, 1):
        options: dict[str, Any] = {"batch_size": 24, "lanes": 12, "shuffle_window": window, "restart": False}
        with pytest.raises(sf.ConfigError, match=r"memory_budget of at least \d+") as caught:
            list(sf.Loader(source, memory_budget="2MiB", **options))
        assert "shuffle_window=1 or less" not in str(caught.value)
        named = int(str(caught.value).split("at least ")[1].split()[0].rstrip("."))
        with sf.Loader(source, memory_budget=named, **options) as loader:
            assert sum(len(batch.valid) for batch in loader) == 96


@pytest.mark.parametrize("number", range(len(TASKS)))
def test_each_window_comes_once(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two epochs, with the values of its records; the ledger names each record of a window."""
    task = TASKS[number]
    world = World(tmp_path / "data", number, [40, 0, 75, 13, 220], "gzip" if number == 1 else None)
    windows = task.windows(world)
    expected = Counter(text_of(task.row(window)) for of in windows for window in of)
    assert expected.total() > 10
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    with loader(task.source(world), tail="pad") as each:
        assert each.samples == expected.total()
        for epoch in range(2):
            found = Counter(row for batch in each for row, valid in rows_of(batch) if valid)
            assert found == expected, epoch
    assert task.source(world).count() == expected.total()
    lines = [parse(text) for text in (tmp_path / "ledger/rank-0").read_text().splitlines() if not text.startswith("start")]
    named: dict[tuple[int, int], list[int]] = {}
    for line in lines:
        if line.epoch == 0 and line.mark == "1":
            assert (line.record_row, line.first, line.rows) == (0, 0, 1)
            named.setdefault((int(line.shard[5:7]), line.sample), []).append(line.record)
    ids = {(shard, at): [one["id"] % 1000 for one in window] for shard, of in enumerate(windows) for at, window in enumerate(of)}
    assert named == ids


def test_without_shuffle_windows_are_in_the_order_of_the_files(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 3, [50, 9, 31])
    for task in TASKS:
        expected = [text_of(task.row(window)) for of in task.windows(world) for window in of]
        with loader(task.source(world), shuffle=False, interleave=1, tail="pad") as each:
            assert [row for batch in each for row, valid in rows_of(batch) if valid] == expected


def test_windows_in_mixtures(tmp_path: Path) -> None:
    worlds = {"a": World(tmp_path / "a", 1, [60, 30]), "b": World(tmp_path / "b", 2, [45])}
    task = TASKS[1]
    mixture = sf.mix({name: (task.source(world), 1) for name, world in worlds.items()}, epoch="all_exhausted")
    expected = {name: Counter(text_of(task.row(window)) for of in task.windows(world) for window in of) for name, world in worlds.items()}
    with loader(mixture, tail="pad") as each:
        found: dict[str, Counter[str]] = {name: Counter() for name in worlds}
        for batch in each:
            for (row, valid), source in zip(rows_of(batch), batch.source, strict=True):
                found[each.sources[source]][row] += valid
    for name, of in expected.items():
        assert set(found[name]) == set(of)
    # The longer source ends once; of the other one each window comes again and again, evenly.
    (longer, _), (shorter, least) = sorted(((name, of.total()) for name, of in expected.items()), key=lambda one: -one[1])
    assert found[longer] == expected[longer]
    assert all(count // expected[shorter][row] in (found[longer].total() // least, -(-found[longer].total() // least)) for row, count in found[shorter].items())


def test_a_clip_has_the_frames_of_one_video(tmp_path: Path) -> None:
    """Frames are records; a clip of four of them is decoded at once."""
    frames: dict[str, list[np.ndarray]] = {}
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for video, count in (("x", 9), ("y", 3), ("z", 6)):
            frames[video] = [np.random.default_rng(count * 100 + at).integers(0, 256, (8, 10, 3), np.uint8) for at in range(count)]
            for image in frames[video]:
                writer.write({"image": png(image), "video": video})
    source = sf.source(str(tmp_path / "a.tfrecord"), {"image": sf.FixedLenFeature((), "string"), "video": sf.FixedLenFeature((), "string")})
    clips = source.window(size=4, stride=2, by="video").decode_image("image", size=(8, 10)).layout("image")
    assert {name: str(column) for name, column in clips.columns.items()} == {"image": "uint8 [4, 3, 8, 10]", "video": "string [4]"}
    seen = Counter[tuple[str, int]]()
    with loader(clips, batch_size=1) as each:
        for batch in each:
            (video,) = {one.decode() for one in np.asarray(batch["video"][0]).tolist()}
            starts = [at for at in range(len(frames[video]) - 3) if np.array_equal(batch["image"][0], np.stack(frames[video][at : at + 4]).transpose(0, 3, 1, 2))]
            assert len(starts) == 1
            seen[(video, starts[0])] += 1
    assert seen == Counter({("x", 0): 1, ("x", 2): 1, ("x", 4): 1, ("z", 0): 1, ("z", 2): 1})


def test_another_window_reads_nothing(tmp_path: Path) -> None:
    """Size, stride and partial are no part of what is kept; values of a new `by` are read."""
    world = World(tmp_path / "data", 1, [2000, 1000, 1500])
    size = sum(file.stat().st_size for file in world.folder.iterdir())

    def counted(task: Task) -> int:
        before = read_chars()
        assert task.source(world).count(cache_dir=tmp_path / "cache") == sum(map(len, task.windows(world)))
        return read_chars() - before

    by = ("video", lambda record: record["video"])
    assert counted(Task(4, 4, by)) > size
    assert counted(Task(9, 2, by, "pad")) < size / 4
    assert counted(Task(4, 4)) < size / 4
    assert counted(Task(1)) < size / 4
    assert counted(Task(4, 4, ("id // 7", lambda record: record["id"] // 7))) > size


def test_records_between_windows_are_not_held(tmp_path: Path) -> None:
    """Of 48 MB of records, with windows far apart or a filter that few pass, a few MB are in memory."""
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(48_000):
            writer.write({"id": number, "data": bytes(1000)})
    program = """
import resource, sys, shardfeed as sf
F = {"id": sf.FixedLenFeature((), "int64"), "data": sf.FixedLenFeature((), "string")}
source = sf.source(sys.argv[1], F)
source = source.window(size=2, stride=400) if sys.argv[2] == "far" else source.filter("id % 300 == 7").window(size=2)
with sf.Loader(source, batch_size=4, shuffle_window=4, rank=0, world_size=1) as loader:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ids = [one.tolist() for batch in loader for one in batch["id"]]
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
first = [400 * at for at in range(120)] if sys.argv[2] == "far" else [600 * at + 7 for at in range(80)]
assert sorted(ids) == [[one, one + (1 if sys.argv[2] == "far" else 300)] for one in first], ids
"""
    for case in ("far", "few"):
        command = [sys.executable, "-c", program, str(tmp_path / "a.tfrecord"), case]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert ran.returncode == 0, ran.stderr
        assert int(ran.stdout) < 24_000, (case, ran.stdout)


def test_damaged_records_split_no_batch(tmp_path: Path) -> None:
    """Found while counting, a damaged record is in no window; found later, its windows are replaced."""
    world = World(tmp_path / "data", 5, [40])
    file = tmp_path / "data/part-00.tfrecord"
    task = Task(4, 2)
    with loader(task.source(world), cache_dir=tmp_path / "cache") as each:
        assert each.samples == 19
    whole = file.read_bytes()
    flip(file, record_offsets(file)[10] + 14)
    with pytest.raises(sf.CorruptRecordError, match=r"part-00\.tfrecord.*record 10"):
        loader(task.source(world), cache_dir=tmp_path / "other")
    with loader(task.source(world), cache_dir=tmp_path / "other", corrupt="skip-record") as each:
        assert each.samples == 18 and len(each.skipped) == 1
        ids = [one for batch in each for window in batch["id"] for one in window.tolist()]
        assert 10 not in ids
    file.write_bytes(whole)


def test_what_window_refuses(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 1, [20])
    source = world.source()
    raw, lists = sf.source(world.pattern), sf.source(world.pattern, None, sequence_features={"a": sf.FixedLenSequenceFeature((), "int64", allow_missing=True)})
    for call, said in [
        (lambda: source.window(size=4), "column `tags` has any number of values a record; a window takes FixedLenFeatures"),
        (lambda: source.window("nothing", size=4), "there is no feature `nothing`; there are `id`"),
        (lambda: source.window("id", "id", size=4), "column `id` is named twice"),
        (lambda: source.window("id", size=0), "size"),
        (lambda: source.window("id", size=5000), "window size` is 5000, but may be at most 4096"),
        (lambda: source.window("id", size=4, stride=0), "stride"),
        (lambda: source.window("id", size=4, by="state"), "an expression takes one value a record"),
        (lambda: source.window("id", size=4, by="none"), "there is no column `none`"),
        (lambda: source.window("id", size=4, by=3), "by is an expression as str"),  # type: ignore[arg-type]
        (lambda: source.window("id", size=4, partial="some"), "partial"),  # type: ignore[arg-type]
        (lambda: source.window("id", size=4).window("id", size=4), "windows already"),
        (lambda: source.window("id", size=4).pack("tags", length=9), "one of pack and window"),
        (lambda: source.window("id", size=4).unbatch("tags"), "call unbatch() before"),
        (lambda: source.pack("tags", length=9).window("id", size=4), "one of pack and window"),
        (lambda: source.window("id", size=4).filter("id > 3"), "call filter() before window()"),
        (lambda: source.window("id", size=4).balance("id"), "windows have no cost"),
        (lambda: source.cast("id", "float32").window("id", size=4), "call window() before the operators"),
        (lambda: raw.window("record", size=4), "declare features first"),
        (lambda: lists.window("a", size=4), "column `a` is a feature list; call unbatch() of it first"),
        (lambda: loader(source.filter("id < 3").window("id", size=4)), "no sample is left"),
    ]:  # fmt: skip
        with pytest.raises(sf.ConfigError, match=re.escape(said)):
            call()
    made = source.window("id", "video", size=4, by="video")
    assert pickle.loads(pickle.dumps(made)) == made
    assert "window" in repr(made)
    assert {name: column.shape for name, column in made.columns.items()} == {"id": (4,), "video": (4,)}
    padded = sf.source(world.pattern, {"window_length": sf.FixedLenFeature((), "int64")})
    with pytest.raises(sf.ConfigError, match="`window_length` is made by window"):
        padded.window(size=3, partial="pad")
    with loader(made) as each:
        next(iter(each))
        state = each.state_dict()
    with pytest.raises(sf.StateError, match="window"):
        loader(source.window("id", "video", size=4, by="video", stride=3), resume=state)
    loader(source.window("video", "id", size=4, by="(video)"), resume=state).close()
