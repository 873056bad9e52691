"""`Source.filter`: which records are samples, counted once, and delivered exactly once."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import object_log
import pytest
from recount import parse
from test_bad_input import flip, record_offsets

import shardfeed as sf

FEATURES: dict[str, Any] = {
    "width": sf.FixedLenFeature((), "int64"),
    "score": sf.FixedLenFeature((), "float32"),
    "lang": sf.FixedLenFeature((), "string"),
    "tags": sf.VarLenFeature("int64"),
}
LANGUAGES = ("en", "de", "fr", "é", "")

Record = dict[str, Any]


class World:
    """Files of random records, which the test knows."""

    def __init__(self, folder: Path, seed: int, counts: Sequence[int], compression: Any = None) -> None:
        self.folder = folder
        self.pattern = str(folder / "*.tfrecord")
        self.records: dict[str, list[Record]] = {}
        rng = random.Random(seed)
        folder.mkdir(parents=True)
        for shard, count in enumerate(counts):
            name = f"part-{shard:02}.tfrecord"
            self.records[name] = [self.record(rng) for _ in range(count)]
            with sf.TFRecordWriter(folder / name, compression=compression) as writer:
                for record in self.records[name]:
                    writer.write(record)

    @staticmethod
    def record(rng: random.Random) -> Record:
        score = rng.choice([0.0, 0.5, -1.5, math.nan, rng.uniform(-4, 4)])
        return {
            "width": rng.randint(-20, 100),
            "score": np.float32(score),
            "lang": rng.choice(LANGUAGES),
            "tags": [rng.randrange(9) for _ in range(rng.randrange(4))],
        }

    def source(self, expression: str) -> sf.Source:
        return sf.source(self.pattern, FEATURES).filter(expression)

    def loader(self, expression: str, **options: Any) -> sf.Loader:
        defaults = {"batch_size": 4, "shuffle_window": 16, "interleave": 3, "seed": 5, "restart": False}
        return sf.Loader(self.source(expression), **(defaults | options))

    def passing(self, holds: Callable[[Record], Any]) -> list[tuple[str, int]]:
        return [
            (name, ordinal)
            for name, records in self.records.items()
            for ordinal, record in enumerate(records)
            if holds(record | {"ordinal": ordinal, "shard_path": name})
        ]


def evaluated(expression: str) -> Callable[[Record], bool]:
    """Evaluates the expression with Python. Texts have the order of their UTF-8."""
    functions: dict[str, Any] = {
        "where": lambda when, yes, no: yes if when else no,
        "len": lambda value: len(value.encode() if isinstance(value, str) else value),
    }

    def holds(record: Record) -> bool:
        names = {name: float(value) if isinstance(value, np.float32) else value for name, value in record.items()}
        value = eval(expression, functions, names)
        return bool(value) and value == value

    return holds


#: Expressions that are also Python, and true for some records and not for others.
EXPRESSIONS = (
    "width >= 64 and lang == 'en'",
    "width % 7 in (1, 2, 5) or lang in ('de', 'fr') and not width // 10 == 3",
    "score > 0 or not (score < 1)",
    "len(tags) > 1 and len(lang) == 2 or ordinal % 5 == 0",
    "shard_path != 'part-02.tfrecord' and -width % 3 != 1",
    "abs(score) * 2 + width / 4 >= where(lang == 'en', 10, 20)",
    "min(width, 30) - max(score, 0) > 12.5 or lang < 'de'",
)


def sources(batch: sf.Batch) -> list[tuple[int, int]]:
    """Returns shard and record of each row."""
    assert batch.provenance is not None
    shards, ordinals = batch.provenance
    return list(zip(map(int, shards), map(int, ordinals), strict=True))


def identity(batch: sf.Batch) -> list[tuple[Any, ...]]:
    """Returns the rows of a batch: values, and whether they are valid."""
    tags = batch["tags"]
    rows = zip(batch["width"], batch["score"], batch["lang"], tags, batch.valid, strict=True)
    return [
        (int(width), float(score).hex(), bytes(lang), of.tolist(), bool(valid)) for width, score, lang, of, valid in rows
    ]


def together(world: World, expression: str, size: int, **options: Any) -> list[list[tuple[Any, ...]]]:
    """Returns the global batches, and checks that ranks have equal steps."""
    loaders = [
        world.loader(expression, rank=rank, world_size=size, batch_size=12 // size, lanes=12, **options) for rank in range(size)
    ]
    assert len({len(each) for each in loaders}) == 1
    steps = [[identity(batch) for batch in each] for each in loaders]
    assert {len(each) for each in steps} == {len(loaders[0])}
    return [sum(parts, []) for parts in zip(*steps, strict=True)]


def ledger_rows(folder: Path) -> Counter[tuple[str, int]]:
    """Counts the valid records in the ledgers, after the last start of each step."""
    found: dict[tuple[int, str, int], list[tuple[str, int]]] = {}
    for path in sorted(folder.iterdir()):
        latest: dict[tuple[int, int], tuple[int, list[tuple[str, int]]]] = {}
        for text in path.read_text().splitlines():
            if text.startswith("start"):
                continue
            line = parse(text)
            at = (line.epoch, line.step)
            if at not in latest or latest[at][0] < line.generation:
                latest[at] = (line.generation, [])
            if line.mark == "1":
                latest[at][1].append((line.shard, line.record))
        for (_, done), (last, rows) in latest.items():
            found[(done, path.name, last)] = rows
    newest = {step: max(number for at, _, number in found if at == step) for step, _, _ in found}
    return Counter(row for (step, _, number), rows in found.items() if number == newest[step] for row in rows)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_passing_records_come_exactly_once(tmp_path: Path, expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "data", len(expression), [13, 0, 40, 7, 21, 1, 300])
    expected = world.passing(evaluated(expression))
    assert 0 < len(expected) < sum(map(len, world.records.values()))
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    with world.loader(expression, tail="pad", provenance=True) as each:
        assert (each.samples, each.records) == (len(expected), sum(map(len, world.records.values())))
        assert len(each) == -(-len(expected) // 4)
        seen: Counter[tuple[str, int]] = Counter()
        for batch in each:
            for (shard, ordinal), width, valid in zip(sources(batch), batch["width"], batch.valid, strict=True):
                name = each.shards[shard]
                assert world.records[name][ordinal]["width"] == width
                seen[(name, ordinal)] += int(valid)
    assert +seen == Counter(expected)
    assert ledger_rows(tmp_path / "ledger") == Counter(expected)


@pytest.mark.parametrize("tail", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("seed", range(3))
def test_arrays_are_the_same_at_every_world_size(tmp_path: Path, tail: str, seed: int) -> None:
    rng = random.Random(seed)
    world = World(tmp_path / "data", seed, [rng.choice([0, 1, 9, 60, 200]) for _ in range(6)] + [40])
    expression = EXPRESSIONS[seed]
    expected = len(world.passing(evaluated(expression)))
    if tail == "uneven":
        with world.loader(expression, tail=tail, batch_size=12) as each:
            assert sum(int(batch.valid.sum()) for batch in each) == expected
        return
    whole = together(world, expression, 1, tail=tail)
    delivered = sum(row[-1] for step in whole for row in step)
    assert delivered == expected if tail == "pad" else expected - 12 < delivered <= expected
    for size in (2, 3, 4):
        assert together(world, expression, size, tail=tail) == whole


@pytest.mark.parametrize(("before", "after"), [(1, 3), (4, 2), (3, 4), (2, 1)])
def test_a_stop_and_a_resume_at_another_world_size(
    tmp_path: Path, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "data", before, [50, 120, 33, 80, 1, 200])
    expression = EXPRESSIONS[before]
    whole = together(world, expression, 1, tail="pad")
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    stop = len(whole) // 2
    states, got = [], []
    for rank in range(before):
        with world.loader(expression, rank=rank, world_size=before, batch_size=12 // before, lanes=12, tail="pad") as each:
            got.append([identity(batch) for _, batch in zip(range(stop), each, strict=False)])
            states.append(each.state_dict())
    assert all(state == states[0] for state in states) and len(json.dumps(states[0])) < 1024
    rest = []
    for rank in range(after):
        options: dict[str, Any] = {"rank": rank, "world_size": after, "batch_size": 12 // after, "tail": "pad"}
        with world.loader(expression, resume=states[0], **options) as each:
            rest.append([identity(batch) for batch in each])
    steps: list[Any] = [sum(parts, []) for ranks in (got, rest) for parts in zip(*ranks, strict=True)]
    assert steps == whole
    assert ledger_rows(tmp_path / "ledger") == Counter(world.passing(evaluated(expression)))


def test_records_found_by_position_are_the_same(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 8, [900, 1, 1500])
    options: dict[str, Any] = {"shuffle_window": 5000, "tail": "pad", "provenance": True}
    found = []
    for budget, reading in ((None, "hold"), (200_000, "locate")):
        with world.loader(EXPRESSIONS[2], memory_budget=budget, **options) as each:
            found.append([(sources(batch), identity(batch)) for batch in each])
            assert each.stats().get("reading") == reading
    assert found[0] == found[1]


def test_compressed_files_and_sparse_samples(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 1, [3000, 10, 2000], compression="gzip")
    expression = "ordinal % 997 == 3 or ordinal == 1999"
    expected = world.passing(evaluated(expression))
    with world.loader(expression, tail="pad", batch_size=2, provenance=True) as each:
        rows = Counter(
            (each.shards[shard], ordinal)
            for batch in each
            for (shard, ordinal), valid in zip(sources(batch), batch.valid, strict=True)
            if valid
        )
    assert rows == Counter(expected)


OPERATIONS = ("+", "-", "*", "//", "%", "/", "<", "<=", "==", "!=", ">", ">=")


def random_expression(rng: random.Random, depth: int) -> tuple[str, str]:
    """Returns an expression over numbers, and one of Python, whose `and` and `or` return operands."""
    if depth == 0 or rng.random() < 0.2:
        numbers = ("width", "score", "ordinal", "len(tags)", str(rng.randint(-9, 99)), f"{rng.uniform(-9, 9):.3}", "0.0")
        return (rng.choice(numbers),) * 2
    one, other, third = (random_expression(rng, depth - 1) for _ in range(3))
    operation = rng.choice((*OPERATIONS, "and", "or", "not ", "negate", "abs", "min", "max", "in", "not in", "where"))

    def text(place: int) -> str:
        first, second, last = one[place], other[place], third[place]
        if operation in ("not ", "negate"):
            return f"({'-' if operation == 'negate' else operation}{first})"
        if operation in ("abs", "min", "max", "where"):
            taken = {"abs": [first], "where": [first, second, last]}.get(operation, [first, second])
            return f"{operation}({', '.join(taken)})"
        if operation in ("in", "not in"):
            return f"({first} {operation} ({second}, {last}))"
        if operation in ("and", "or") and place == 1:
            return f"(bool({first}) {operation} bool({second}))"
        return f"({first} {operation} {second})"

    return text(0), text(1)


def truth(expression: str, row: dict[str, Any]) -> bool | None:
    """Returns the truth of Python's value; None: Python has none, or one that depends on the order of NaN."""
    functions: dict[str, Any] = {"where": lambda when, yes, no: yes if when else no}
    if any(isinstance(value, float) and math.isnan(value) for value in row.values()):
        return None
    try:
        return bool(eval(expression, functions, dict(row)))
    except ZeroDivisionError:
        return None


def test_random_expressions(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 12, [60])
    rng, compared = random.Random(1), 0
    rows = [
        {name: float(value) if isinstance(value, np.float32) else value for name, value in record.items()}
        | {"ordinal": ordinal}
        for ordinal, record in enumerate(world.records["part-00.tfrecord"])
    ]
    for _ in range(150):
        expression, python = random_expression(rng, 3)
        expected = [truth(python, row) for row in rows]
        try:
            with world.loader(expression, batch_size=1, shuffle=False, provenance=True) as each:
                found = {ordinal for batch in each for _, ordinal in sources(batch)}
        except sf.ConfigError as error:
            assert "no sample is left" in str(error)
            found = set()
        for ordinal, holds in enumerate(expected):
            assert holds is None or holds == (ordinal in found), (expression, rows[ordinal])
            compared += holds is not None
    assert compared > 5_000


def read_chars() -> int:
    """Returns the bytes that this process has read, from files or the cache of the system."""
    return int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])


def test_a_second_start_reads_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 2, [2000, 3000, 2500])
    size = sum(file.stat().st_size for file in world.folder.iterdir())

    def opened(expression: str) -> int:
        before = read_chars()
        with world.loader(expression) as each:
            assert each.samples == len(world.passing(evaluated(expression)))
        return read_chars() - before

    assert size < opened("ordinal < 10000") < 1.5 * size, "files are counted while they are indexed"
    assert opened("width > 50") > size
    assert opened("width > 50") < size / 4
    assert opened("(width>50)") < size / 4, "the same expression"
    assert opened("width > 51") < size / 2, "the values are kept"
    assert opened("len(tags) + width > 51") > size, "one of them is new"
    assert opened("len(tags) > 2") < size / 2
    assert opened("lang in ('de', 'fr') and score > 0") > size
    assert opened("width + score > 3 or lang == 'en' or ordinal % 3 == 0 and len(tags) == 1") < size / 2
    # Copies have the same samples: they are indexed, and not counted.
    copy = tmp_path / "copy"
    shutil.copytree(world.folder, copy)
    before = read_chars()
    with sf.Loader(sf.source(str(copy / "*"), FEATURES).filter("width > 50"), batch_size=4) as each:
        assert each.samples == len(world.passing(evaluated("width > 50")))
    assert read_chars() - before < 1.5 * size
    # A file that changed is counted again; the others are not.
    (world.folder / "part-00.tfrecord").unlink()
    del world.records["part-00.tfrecord"]
    assert opened("width > 50") < size / 4

    object_log.damage(tmp_path / "cache", "samples")
    assert opened("width > 50") < size / 4, "damaged maps are made of the values"
    object_log.damage(tmp_path / "cache", "samples")
    object_log.damage(tmp_path / "cache", "columns")
    assert opened("width > 50") > size / 2, "and damaged values of the records"
    assert opened("width > 52") < size / 2


def test_packs_with_another_threshold_read_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 21, [2000, 3000])
    size = sum(file.stat().st_size for file in world.folder.iterdir())

    def opened(least: int, length: int = 32, **fresh: Any) -> tuple[int, list[Any]]:
        before = read_chars()
        source = sf.source(world.pattern, FEATURES).filter(f"len(tags) >= {least}").pack("tags", length=length)
        with sf.Loader(source, batch_size=4, shuffle_window=64, **fresh) as each:
            read = read_chars() - before
            return read, [batch["tags"].tolist() for batch in each]

    assert opened(2)[0] > size
    for number, (least, length) in enumerate([(1, 32), (0, 16), (3, 16)]):
        read, batches = opened(least, length)
        assert read < size
        assert batches == opened(least, length, cache_dir=tmp_path / f"fresh-{number}")[1]


def test_damaged_records(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 3, [30, 40])
    file = world.folder / "part-01.tfrecord"
    at = record_offsets(file)[7]
    flip(file, at + 12 + 5)
    expression = "width > -100"
    with pytest.raises(sf.CorruptRecordError, match="do not match") as caught:
        world.loader(expression)
    assert (caught.value.file, caught.value.offset, caught.value.ordinal) == (str(file), at, 7)
    for _ in range(2):
        with world.loader(expression, corrupt="skip-record", tail="pad", provenance=True) as each:
            assert each.samples == 69
            assert [(one.file, one.offset, one.ordinal, one.what) for one in each.skipped] == [(str(file), at, 7, "record")]
            assert each.stats()["skipped"] == 1
            rows = [
                source for batch in each for source, valid in zip(sources(batch), batch.valid, strict=True) if valid
            ]
        assert sorted(rows) == [(0, record) for record in range(30)] + [(1, record) for record in range(40) if record != 7]
    with world.loader(expression, corrupt="skip-file") as each:
        assert each.samples == 30
    with pytest.raises(sf.CorruptRecordError):
        world.loader(expression)
    with pytest.raises(sf.ShardfeedError, match="corrupt_budget allows 0"):
        world.loader(expression, corrupt="skip-record", corrupt_budget=0)


def test_damage_after_counting_names_the_record_of_the_file(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 4, [60])
    expression = "ordinal % 3 == 1"
    file = world.folder / "part-00.tfrecord"
    with world.loader(expression, tail="pad") as each:
        stamp = file.stat()
        flip(file, record_offsets(file)[31] + 12 + 5)
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        with pytest.raises(sf.CorruptRecordError) as caught:
            list(each)
        assert (caught.value.offset, caught.value.ordinal) == (record_offsets(file)[31], 31)
    # The map is addressed by lengths and stored checksums, which are as before: the record is still
    # a sample, and is replaced when it is read.
    with world.loader(expression, tail="pad", corrupt="skip-record") as each:
        assert (each.samples, each.skipped) == (20, [])
        assert sum(int(batch.valid.sum()) for batch in each) == 19
        assert [(one.ordinal, one.what) for one in each.skipped] == [(31, "record")]


def test_damage_of_the_filter_and_of_a_batch_have_one_budget(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 9, [40])
    file = world.folder / "part-00.tfrecord"
    flip(file, record_offsets(file)[5] + 12 + 5)
    options: dict[str, Any] = {"corrupt": "skip-record", "corrupt_budget": 1, "tail": "pad"}
    with world.loader("width > -100", **options) as each:
        stamp = file.stat()
        flip(file, record_offsets(file)[9] + 12 + 5)
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        with pytest.raises(sf.ShardfeedError, match="2 .*corrupt_budget allows 1"):
            list(each)


def test_a_file_with_damaged_records_is_counted_once(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 9, [2000, 2000])
    file = world.folder / "part-01.tfrecord"
    at = record_offsets(file)[31]
    flip(file, at + 12 + 5)
    options: dict[str, Any] = {"corrupt": "skip-record", "tail": "pad"}

    def opened(expression: str = "width > -100", **more: Any) -> tuple[int, int, list[Any]]:
        before = read_chars()
        with world.loader(expression, **options | more) as each:
            return read_chars() - before, each.samples, list(each.skipped)

    size = file.stat().st_size
    first, samples, skipped = opened()
    assert first > 2 * size, "indexed and counted"
    assert (samples, [(one.offset, one.ordinal) for one in skipped]) == (3999, [(at, 31)])
    again, *same = opened()
    assert again < size / 10
    assert same == [samples, skipped]
    with pytest.raises(sf.CorruptRecordError, match="do not match"):
        opened(corrupt="error")
    # A repaired file has the digest that it had before, and possibly the time.
    stamp = file.stat()
    flip(file, at + 12 + 5)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    _, samples, skipped = opened()
    assert (samples, skipped) == (4000, [])


def test_a_state_is_refused_if_other_records_are_samples(tmp_path: Path) -> None:
    """The counts are equal, so that the order is, too."""
    world = World(tmp_path / "data", 10, [40, 40])
    files = [world.folder / name for name in world.records]
    flip(files[0], record_offsets(files[0])[3] + 12 + 5)
    with world.loader("width > -100", corrupt="skip-record") as each:
        state = each.state_dict()
    flip(files[0], record_offsets(files[0])[3] + 12 + 5)
    flip(files[0], record_offsets(files[0])[30] + 12 + 5)
    with pytest.raises(sf.StateError, match="content"):
        world.loader("width > -100", corrupt="skip-record", resume=state)
    flip(files[0], record_offsets(files[0])[30] + 12 + 5)
    expression = "(shard_path == 'part-01.tfrecord') == (ordinal < 20)"
    with world.loader(expression) as each:
        state = each.state_dict()
    files[1].rename(world.folder / "part-02.tfrecord")
    with pytest.raises(sf.StateError, match="content"):
        world.loader(expression, resume=state)


def test_a_map_of_another_shard_is_not_used(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 11, [300, 300])
    expression = "width > 50"
    with world.loader(expression) as each:
        state = each.state_dict()
    (log,) = (tmp_path / "cache").glob("samples-*/*")
    one, other = object_log.objects(log).values()
    assert len(one.content) == len(other.content)
    with log.open("r+b") as file:
        for place, content in ((one.offset, other.content), (other.offset, one.content)):
            file.seek(place)
            file.write(content)
    world.loader(expression, resume=state).close()


def test_a_filter_is_part_of_the_job_and_of_the_source(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 5, [50])
    first, same, other = (world.source(text) for text in ("width>3", "( width > 3 )", "width > 4"))
    assert first == same != other
    both = first.filter("lang == 'en' or lang == 'de'")
    assert "filter \"width > 3 and (lang == 'en' or lang == 'de')\"" in repr(both)
    assert pickle.loads(pickle.dumps(both)) == both
    with sf.Loader(first, batch_size=4) as each:
        state = each.state_dict()
    with pytest.raises(sf.StateError, match="filter"):
        sf.Loader(other, batch_size=4, resume=state)
    sf.Loader(same, batch_size=4, resume=state).close()
    # Operators after the filter may replace its columns.
    replaced = first.cast("width", "float32").filter("score >= 0 or score < 0")
    with sf.Loader(replaced, batch_size=4) as each:
        assert each.samples == len(world.passing(evaluated("width > 3 and (score >= 0 or score < 0)")))


def test_fewer_samples_than_a_batch_are_told(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 7, [50])
    with pytest.warns(UserWarning, match="every epoch has 0 steps: 3 samples"):
        assert len(world.loader("ordinal < 3")) == 0


def test_raw_records(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(20):
            writer.write(b"x" * number)
    source = sf.source(tmp_path / "a.tfrecord").filter("len(record) > 10 and ordinal != 15")
    with sf.Loader(source, batch_size=1, shuffle=False, tail="pad") as each:
        assert [len(batch["record"][0]) for batch in each] == [11, 12, 13, 14, 16, 17, 18, 19]
    with pytest.raises(sf.ConfigError, match="window or balance already"):
        source.parse(FEATURES)


def test_a_wrong_filter_is_an_error_at_once() -> None:
    source = sf.source("none", FEATURES | {"photo": sf.FixedLenFeature((), "string"), "box": sf.FixedLenFeature((4,), "float32")})
    made = source.decode_image("photo").compute("sum", "width + 1")
    renamed = source.rename("width", "w").rename("score", "width")
    kept = source.filter("width > 3").rename("width", "w")
    cast = source.filter("width > 3").cast("width", "float32")
    crops = source.cast("width", "float32").on_device().normalize("width", 1, 2)
    for of, expression, said in (
        (source, "widht > 3", r"filter\('widht > 3'\): there is no column `widht`; there are `box`, `lang`, .*`ordinal`, `shard_path`"),
        (source, "lang > 3", "has a number and a text; they do not compare"),
        (source, "lang + 1 > 3", "needs numbers, but has a text"),
        (source, "box > 3", r"has shape \[4\]"),
        (source, "tags > 3", r"len\(tags\)"),
        (source, "hash(score) > 3", "`hash\\(score\\)` has a float; `hash` takes an integer or a text"),
        (source, "width >", "needs a number, a column or a function"),
        (made, "len(photo) > 3", "column `photo` is made of images, which no expression takes"),
        (made, "summ > 3", "there is no column `summ`"),
        (renamed, "score > 3", "column `score` was renamed to `width`; use this name, or call all methods that take the column before rename"),
        (kept, "w > 3", "column `width` was renamed to `w`"),
        (cast, "width > 4", "column `width` was changed by an operator between two expressions that use it"),
        (crops, "width > 4", "the device makes a column of this expression"),
    ):
        with pytest.raises(sf.ConfigError, match=said):
            of.filter(expression)
    made.filter("width > 3 and len(lang) == 2")
    with pytest.raises(sf.ConfigError, match="compute has no texts"):
        source.compute("x", "lang == 'en'")
    with pytest.raises(sf.ConfigError, match="a str, not 3"):
        source.filter(3)  # type: ignore[arg-type]


def test_no_sample_is_an_error(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 6, [20, 30])
    with pytest.raises(sf.ConfigError, match="leaves none of the 50 records in 2 files"):
        world.loader("width > 1000")
