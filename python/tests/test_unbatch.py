"""`Source.unbatch`: each row of columns is a sample, counted once, and delivered exactly once."""

from __future__ import annotations

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
from recount import parse
from resuming import random_order, resumed_steps
from test_bad_input import flip, record_offsets
from test_filter import read_chars

import shardfeed as sf

ROOT = Path(__file__).parents[2]

FEATURES: dict[str, Any] = {
    "id": sf.FixedLenFeature((), "int64"),
    "box": sf.FixedLenSequenceFeature((4,), "float32", allow_missing=True),
    "label": sf.VarLenFeature("int64"),
    "name": sf.VarLenFeature("string"),
    "tags": sf.VarLenFeature("int64"),
}

Record = dict[str, Any]
#: Shard, record, row.
Place = tuple[str, int, int]


class World:
    """Files of random records with rows, which the test knows."""

    def __init__(self, folder: Path, seed: int, counts: Sequence[int], *, rows: int = 6, compression: Any = None) -> None:
        self.folder, self.pattern = folder, str(folder / "*.tfrecord")
        self.records: dict[str, list[Record]] = {}
        rng = random.Random(seed)
        folder.mkdir(parents=True)
        for shard, count in enumerate(counts):
            name = f"part-{shard:02}.tfrecord"
            self.records[name] = [self.record(rng, shard * 1000 + ordinal, rows) for ordinal in range(count)]
            with sf.TFRecordWriter(folder / name, compression=compression) as writer:
                for record in self.records[name]:
                    writer.write({**record, "box": [value for row in record["box"] for value in row]})

    @staticmethod
    def record(rng: random.Random, number: int, most: int) -> Record:
        rows = rng.choice([0, 1, rng.randrange(most)])
        return {
            "id": number,
            "box": [[np.float32(rng.uniform(0, 1)) for _ in range(4)] for _ in range(rows)],
            "label": [rng.choice([0, 1, -1, 300, 2**40]) for _ in range(rows)],
            "name": [f"{number}-{row}".encode() * rng.randrange(3) for row in range(rows)],
            "tags": [rng.randrange(9) for _ in range(rng.randrange(4))],
        }

    def places(self, program: Program) -> list[Place]:
        """Returns the samples, shard after shard in order."""
        return [
            (name, ordinal, row)
            for name, records in self.records.items()
            for ordinal, record in enumerate(records)
            if program.takes(record)
            for row in range(len(record["label"]))
            if program.takes_row(record, row)
        ]

    def source(self, program: Program) -> sf.Source:
        return program.of(sf.source(self.pattern, FEATURES))

    def expected(self, place: Place, columns: Sequence[str]) -> tuple[Any, ...]:
        name, ordinal, row = place
        record = self.records[name][ordinal]
        return tuple(record[column][row] if column in columns else record[column] for column in FEATURES)


class Program:
    """A filter, columns whose rows are samples, and a filter of rows: in shardfeed and in Python."""

    def __init__(
        self,
        columns: Sequence[str] = ("box", "label", "name"),
        filter: tuple[str, Callable[[Record], bool]] | None = None,
        rows: tuple[str, Callable[[Record, int], bool]] | None = None,
    ) -> None:
        self.columns, self.filter, self.rows = columns, filter, rows

    def takes(self, record: Record) -> bool:
        return self.filter is None or self.filter[1](record)

    def takes_row(self, record: Record, row: int) -> bool:
        return self.rows is None or self.rows[1](record, row)

    def of(self, source: sf.Source) -> sf.Source:
        source = source if self.filter is None else source.filter(self.filter[0])
        source = source.unbatch(*self.columns)
        return source if self.rows is None else source.filter(self.rows[0])


FILTERS: Any = [
    None,
    ("id % 3 != 1 and len(label) < 5", lambda record: record["id"] % 3 != 1 and len(record["label"]) < 5),
    ("len(tags) > 0", lambda record: len(record["tags"]) > 0),
]
ROWS: Any = [
    None,
    ("label == 300 or label < 0", lambda record, row: record["label"][row] == 300 or record["label"][row] < 0),
    ("len(name) > 0 and label != 0", lambda record, row: len(record["name"][row]) > 0 and record["label"][row] != 0),
    ("len(tags) >= 2 and id % 2 == 0", lambda record, row: len(record["tags"]) >= 2 and record["id"] % 2 == 0),
]
PROGRAMS = [
    Program(),
    Program(("label",)),
    Program(("name", "box"), FILTERS[1]),
    *(Program(("box", "label", "name"), FILTERS[at % 3], rows) for at, rows in enumerate(ROWS)),
    Program(("label", "name"), FILTERS[2], ROWS[2]),
]


def value(column: Any, row: int) -> Any:
    found = column[row]
    return found.tolist() if isinstance(found, np.ndarray) else [*found] if isinstance(found, sf.RaggedColumn) else found


def plain(values: Any) -> Any:
    """Returns values that compare, of a batch or of a record."""
    if isinstance(values, np.ndarray | np.generic):
        return plain(values.tolist())
    if isinstance(values, list | tuple):
        return [plain(one) for one in values]
    return values


def rows_of(batch: sf.Batch, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Returns the rows: all columns, and whether they are valid."""
    found = []
    for row in range(batch.rows):
        values: list[Any] = []
        for name in FEATURES:
            column = batch[name]
            if name == "box" and name not in columns:
                # Padded to the longest row of the batch.
                values.append(plain(column[row][: batch.lengths(name)[row]]))
            elif name == "name" and name not in columns:
                values.append([bytes(one) for one in column[row]])
            else:
                values.append(plain(column[row]))
        found.append((*values, bool(batch.valid[row])))
    return found


def loader(source: sf.Source | sf.Mixture, **options: Any) -> sf.Loader:
    defaults = {"batch_size": 4, "shuffle_window": 16, "interleave": 3, "seed": 5, "restart": False}
    return sf.Loader(source, **(defaults | options))


def lines_of(ledger: Path) -> Counter[Place]:
    """Counts the valid samples in the ledgers of all ranks."""
    found: Counter[Place] = Counter()
    for path in ledger.iterdir():
        lines = [parse(text) for text in path.read_text().splitlines() if not text.startswith("start")]
        assert all((line.first, line.rows) == (0, 1) for line in lines)
        found.update((line.shard, line.record, line.record_row) for line in lines if line.mark == "1")
    return found


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_rows_come_exactly_once(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = PROGRAMS[number]
    world = World(tmp_path / "data", number, [13, 0, 40, 7, 21, 1, 300], compression="gzip" if number == 3 else None)
    places = world.places(program)
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    expected = Counter(repr(plain(world.expected(place, program.columns))) for place in places)
    found: Counter[str] = Counter()
    with loader(world.source(program), tail="pad") as each:
        assert (each.samples, each.records) == (len(places), 382)
        assert len(each) == -(-len(places) // 4)
        for batch in each:
            found.update(repr(list(row[:-1])) for row in rows_of(batch, program.columns) if row[-1])
    assert found == expected
    assert lines_of(tmp_path / "ledger") == Counter(places)
    # The sample of a line is the place among the samples of the shard.
    by_shard: dict[str, list[Place]] = {}
    for place in places:
        by_shard.setdefault(place[0], []).append(place)
    for text in (tmp_path / "ledger" / "rank-0").read_text().splitlines()[1:]:
        line = parse(text)
        assert by_shard[line.shard][line.sample] == (line.shard, line.record, line.record_row)


@pytest.mark.parametrize("seed", range(6))
def test_any_stop_and_resume_at_any_world_size(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    program = PROGRAMS[rng.randrange(len(PROGRAMS))]
    world = World(tmp_path / "data", seed, [rng.choice([0, 1, 9, 30, 90]) for _ in range(5)] + [60])
    options = random_order(rng, shuffle=seed != 2)
    source = world.source(program)
    with loader(source, batch_size=12, **options) as each:
        whole = [rows_of(batch, program.columns) for batch in each]
        assert each.samples == len(world.places(program))
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))

    def of_rank(**rank: Any) -> sf.Loader:
        return loader(source, **options, **rank, memory_budget=rng.choice([None, 100_000]))

    steps = resumed_steps(rng, of_rank, lambda batch: rows_of(batch, program.columns), len(whole), 6)
    assert steps == whole
    delivered = lines_of(tmp_path / "ledger")
    assert max(delivered.values(), default=1) == 1
    if options["tail"] == "pad":
        assert delivered == Counter(world.places(program))


def test_rows_found_by_position_are_the_same(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 8, [900, 1, 1500], rows=12)
    found = []
    for budget, reading in ((None, "hold"), (700_000, "locate")):
        with loader(world.source(PROGRAMS[3]), shuffle_window=5000, tail="pad", memory_budget=budget) as each:
            found.append([rows_of(batch, PROGRAMS[3].columns) for batch in each])
            assert each.stats().get("reading") == reading
    assert found[0] == found[1]


def test_steps_of_feature_lists_are_samples(tmp_path: Path) -> None:
    """Frames and actions of episodes."""
    episodes = [[([number, step, 0.5], f"{number}/{step}".encode()) for step in range(length)] for number, length in enumerate([3, 0, 7, 1])]
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for number, steps in enumerate(episodes):
            lists = {"action": [action for action, _ in steps], "frame": [[frame] for _, frame in steps]}
            writer.write(sf.encode_sequence_example({"episode": number}, lists))
    source = sf.source(
        str(tmp_path / "a.tfrecord"),
        {"episode": sf.FixedLenFeature((), "int64")},
        sequence_features={
            "action": sf.FixedLenSequenceFeature((3,), "float32", allow_missing=True),
            "frame": sf.FixedLenSequenceFeature((), "string", allow_missing=True),
        },
    )
    source = source.unbatch("action", "frame")
    assert [str(column) for column in source.columns.values()] == ["int64 []", "float32 [3]", "string []"]
    with loader(source, batch_size=2, shuffle=False, tail="pad") as each:
        rows = [
            (int(batch["episode"][row]), batch["action"][row].tolist(), bytes(batch["frame"][row]))
            for batch in each
            for row in range(2)
            if batch.valid[row]
        ]
    assert rows == [(number, action, frame) for number, steps in enumerate(episodes) for action, frame in steps]
    with loader(source.filter("frame != '2/3' and episode != 0"), batch_size=1, shuffle=False) as each:
        assert [bytes(batch["frame"][0]) for batch in each] == [f"2/{step}".encode() for step in range(7) if step != 3] + [b"3/0"]


def test_boxes_of_images_are_cropped(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    images = [rng.integers(0, 256, (20, 30, 3), np.uint8) for _ in range(5)]
    boxes = [[(2, 3, 12, 17), (0, 0, 20, 30)], [], [(5, 5, 9, 10)], [(1, 2, 8, 8), (3, 3, 4, 4), (10, 20, 20, 30)], []]
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for image, of in zip(images, boxes, strict=True):
            writer.write({"image": [image.tobytes()], "box": [float(edge) for box in of for edge in box], "label": list(range(len(of)))})
    source = sf.source(str(tmp_path / "a.tfrecord"), {
        "image": sf.FixedLenFeature((), "string"),
        "box": sf.FixedLenSequenceFeature((4,), "float32", allow_missing=True),
        "label": sf.VarLenFeature("int64"),
    })  # fmt: skip
    source = source.unbatch("box", "label").decode_raw("image", "uint8", (20, 30, 3))
    source = source.crop("image", box="box", normalized=False).pad("image", (20, 30))
    found = {}
    with loader(source, batch_size=2, tail="pad") as each:
        assert each.samples == 6
        for batch in each:
            for row in range(2):
                top, left, bottom, right = map(int, batch["box"][row])
                crop = batch["image"][row][: bottom - top, : right - left]
                found[(top, left, bottom, right)] = (int(batch["label"][row]), crop.copy())
    for image, of in zip(images, boxes, strict=True):
        for label, (top, left, bottom, right) in enumerate(of):
            assert found[(top, left, bottom, right)][0] == label
            assert np.array_equal(found[(top, left, bottom, right)][1], image[top:bottom, left:right])


def test_rows_of_a_fixed_number_and_shape(tmp_path: Path) -> None:
    grids = np.arange(4 * 3 * 2 * 2, dtype=np.float32).reshape(4, 3, 2, 2)
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for grid in grids:
            writer.write({"grid": grid.ravel()})
    source = sf.source(str(tmp_path / "a.tfrecord"), {"grid": sf.FixedLenFeature((3, 2, 2), "float32")}).unbatch("grid")
    with loader(source, batch_size=4, shuffle=False) as each:
        assert np.array_equal(np.concatenate([batch["grid"] for batch in each]), grids.reshape(12, 2, 2))


def test_rows_of_ragged_features_of_uniform_length(tmp_path: Path) -> None:
    """Those of TFDS are declared so."""
    World(tmp_path / "data", 8, [40, 25])
    pattern, ragged = str(tmp_path / "data/*.tfrecord"), sf.RaggedFeature
    box = ragged("float32", "box", [ragged.UniformRowLength(2), ragged.UniformRowLength(2)])
    features = {name: FEATURES[name] for name in ("id", "label")}
    rows = sf.source(pattern, features | {"sides": box}).filter("len(sides) < 5").unbatch("label", "sides")
    same = {"sides": sf.FixedLenSequenceFeature((2, 2), "float32", allow_missing=True)}
    renamed = [{"sides": [value for row in record["box"] for value in row], **record} for records in World(tmp_path / "same", 8, [40, 25]).records.values() for record in records]
    with sf.TFRecordWriter(tmp_path / "renamed.tfrecord") as writer:
        for record in renamed:
            writer.write({name: record[name] for name in ("id", "label", "sides")})
    expected = sf.source(str(tmp_path / "renamed.tfrecord"), features | same).filter("len(sides) < 5").unbatch("label", "sides")

    def taken(source: sf.Source) -> list[tuple[Any, ...]]:
        with sf.Loader(source, batch_size=1, shuffle=False) as each:
            return [(int(batch["id"][0]), int(batch["label"][0]), batch["sides"].shape, batch["sides"].tolist()) for batch in each]

    found = taken(rows)
    assert found == taken(expected) and len(found) > 50
    with sf.TFRecordWriter(tmp_path / "data/uneven.tfrecord") as writer:
        writer.write({"id": 1, "label": [1, 2], "box": [0.0] * 7})
    with pytest.raises(sf.FeatureError, match="feature `sides` cannot be parted by `uniform_row_length`.*uneven.tfrecord|uneven.tfrecord.*feature `sides` cannot be parted"):
        taken(sf.source(pattern, features | {"sides": box}).unbatch("label", "sides"))


def test_a_second_start_reads_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 2, [2000, 3000])
    size = sum(file.stat().st_size for file in world.folder.iterdir())

    def opened(program: Program) -> int:
        before = read_chars()
        with loader(world.source(program)) as each:
            assert each.samples == len(world.places(program))
        return read_chars() - before

    loader(sf.source(world.pattern, FEATURES)).close()
    assert size < opened(PROGRAMS[0]) < 1.2 * size, "each byte once"
    assert opened(PROGRAMS[0]) < size / 4
    assert opened(PROGRAMS[1]) > size, "other columns"
    assert opened(PROGRAMS[4]) > size, "other filters"


def test_samples_are_counted_without_a_loop(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 4, [200, 300])
    plain = sf.source(world.pattern, FEATURES)
    for program in (PROGRAMS[0], PROGRAMS[4]):
        assert world.source(program).count() == len(world.places(program))
    assert plain.count() == 500
    assert sf.source(world.pattern, {"tags": FEATURES["tags"]}).pack("tags", length=8, method="concat").count() > 0
    before = read_chars()
    with loader(world.source(PROGRAMS[4])) as each:
        assert each.samples == world.source(PROGRAMS[4]).count()
    assert read_chars() - before < 100_000, "counted already"
    with pytest.raises(sf.ConfigError, match="`shardfeed dataset show images` shows its records"):
        sf.source(dataset="images").count()
    (tmp_path / "none.tfrecord").touch()
    with pytest.raises(sf.ConfigError, match="the dataset has no records"):
        sf.source(str(tmp_path / "none.tfrecord")).count()


def test_mixtures_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, others = Program(rows=ROWS[1]), Program(filter=FILTERS[1], rows=ROWS[1])
    one, other = World(tmp_path / "one", 1, [40, 30]), World(tmp_path / "other", 2, [60])
    places = {"one": one.places(program), "other": other.places(others)}
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    mixture = sf.mix({"one": (one.source(program), 1), "other": (other.source(others), 1)}, epoch=2 * len(places["one"]))
    with loader(mixture, batch_size=5, tail="pad") as each:
        for batch in each:
            for row, source, valid in zip(rows_of(batch, program.columns), batch.source, batch.valid, strict=True):
                world = (one, other)[source]
                assert not valid or row[:-1] in [tuple(plain(one) for one in world.expected(place, program.columns)) for place in places[each.sources[source]]]
    lines = [parse(text) for text in (tmp_path / "ledger" / "rank-0").read_text().splitlines()[1:]]
    found = Counter((line.shard, line.record, line.record_row) for line in lines if line.mark == "1" and line.source == "one")
    assert found == Counter(places["one"])


def test_damaged_records(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 3, [30, 40])
    file, program = world.folder / "part-01.tfrecord", PROGRAMS[0]
    bad = next(ordinal for ordinal, record in enumerate(world.records["part-01.tfrecord"]) if len(record["label"]) > 2)
    at = record_offsets(file)[bad]
    whole = len(world.places(program))
    rows = len(world.records["part-01.tfrecord"][bad]["label"])
    with loader(world.source(program)) as each:
        assert each.samples == whole
    flip(file, at + 12 + 5)
    # Counted before: the rows are replaced, and are one damaged record.
    with loader(world.source(program), corrupt="skip-record", tail="pad") as each:
        assert each.samples == whole
        assert sum(int(batch.valid.sum()) for batch in each) == whole - rows
        assert [(one.file, one.offset, one.ordinal) for one in each.skipped] == [(str(file), at, bad)]
    # Counted with it: it has no samples.
    for kept in [*(tmp_path / "cache").glob("samples-*/*"), *(tmp_path / "cache").glob("columns-*/*")]:
        kept.unlink()
    with pytest.raises(sf.CorruptRecordError, match="do not match"):
        loader(world.source(program))
    with loader(world.source(program), corrupt="skip-record", tail="pad") as each:
        assert each.samples == whole - rows
        assert [(one.file, one.ordinal) for one in each.skipped] == [(str(file), bad)]


def test_records_whose_columns_differ_are_errors(tmp_path: Path) -> None:
    file = tmp_path / "a.tfrecord"
    with sf.TFRecordWriter(file) as writer:
        for number in range(9):
            labels = [1] * (3 if number == 4 else 2)
            writer.write({"id": number, "box": [0.0] * 8, "label": labels})
    source = sf.source(str(file), {name: FEATURES[name] for name in ("id", "box", "label")})
    both = source.unbatch("label", "box")
    with pytest.raises(sf.FeatureError, match="column `box` has 2 rows and `label` 3; unbatch takes columns with as many") as caught:
        loader(both)
    assert (caught.value.file, caught.value.ordinal) == (str(file), 4)
    with loader(both, corrupt="skip-record") as each:
        assert each.samples == 16 and [one.ordinal for one in each.skipped] == [4]
    with loader(source.unbatch("label")) as each:
        assert each.samples == 19
    with pytest.raises(sf.ConfigError, match=r'no sample is left: unbatch\("label"\).filter\("label > 1"\) leaves none of the 9 records in 1 files'):
        loader(source.unbatch("label").filter("label > 1"))


def test_wrong_declarations_are_errors_at_once() -> None:
    features = FEATURES | {
        "photo": sf.FixedLenFeature((), "string"),
        "four": sf.FixedLenFeature((4,), "int64", default_value=[1, 2, 3, 4]),
        "none": sf.FixedLenFeature((3, 0), "int64"),
        "rows": sf.RaggedFeature("int64", value_key="values", partitions=[sf.RaggedFeature.RowSplits("splits")]),
        "nested": sf.RaggedFeature("int64", value_key="values", partitions=[sf.RaggedFeature.RowSplits("of"), sf.RaggedFeature.RowSplits("splits")]),
    }
    source = sf.source("none", features)
    for of, columns, said in (
        (source, ("lable",), "there is no feature `lable`; there are `box`, `four`, `id`"),
        (source, ("id",), "column `id` has no rows to take one by one"),
        (source, ("nested",), "column `nested` has no rows to take one by one"),
        (source, ("four",), "column `four` has a default"),
        (source, ("none",), r"column `none` has rows of shape \[0\], without values"),
        (source, ("label", "label"), "column `label` is named twice"),
        (source, (), "unbatch takes names of columns"),
        (source, (3,), "unbatch takes names of columns"),
        (source.unbatch("label"), ("box",), "name all columns in one call"),
        (source.cast("id", "float32"), ("id",), "column `id` is made or renamed by an operator; unbatch takes features"),
        (sf.source("none"), ("record",), "there is no feature `record`; there are none"),
    ):
        with pytest.raises(sf.ConfigError, match=said):
            of.unbatch(*columns)  # type: ignore[arg-type]
    with pytest.raises(sf.ConfigError, match="column `box` has shape"):
        source.unbatch("box", "label").filter("box > 3")


def test_a_program_is_part_of_the_job_and_of_the_source(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 5, [50])
    plain, same, other = (sf.source(world.pattern, FEATURES).unbatch(*names) for names in (("box", "label"), ("box", "label"), ("label",)))
    assert plain == same != other
    both = plain.filter("label>0").filter("len(tags) >= 0")
    assert "unbatch ['box', 'label'], filter of rows 'label > 0 and len(tags) >= 0'" in repr(both)
    assert pickle.loads(pickle.dumps(both)) == both and pickle.loads(pickle.dumps(both)).columns == both.columns
    with loader(plain) as each:
        state = each.state_dict()
    with pytest.raises(sf.StateError, match="unbatch"):
        loader(other, resume=state)
    loader(sf.source(world.pattern, FEATURES).unbatch("label", "box"), resume=state).close()


def test_the_example_trains_on_each_box_once() -> None:
    pytest.importorskip("sklearn")
    command = [sys.executable, str(ROOT / "examples/detection/crops.py"), "--scenes", "200", "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    *epochs, accuracy = done.stdout.splitlines()
    assert len(epochs) == 2 and all(line.endswith("each 1 to 1 times") for line in epochs), epochs
    found = re.fullmatch(r"accuracy (0\.\d+)", accuracy)
    # A tenth of the labels would be guessed.
    assert found and float(found[1]) > 0.5, accuracy
