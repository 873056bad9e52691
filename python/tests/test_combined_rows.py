"""Packs and windows of rows: `unbatch` before `pack` and `window`, as docs/ORDER.md, sections 14 and 16, define them."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recount import parse
from resuming import random_order, resumed_steps
from test_bad_input import flip, record_offsets
from test_filter import read_chars
from test_pack import digest_of, loader, pack_oracle, packs_of

import shardfeed as sf

END = 7
Turn = dict[str, Any]


class World:
    """Files of conversations: records of turns, of which each has tokens, weights, a point and a speaker.

    They hold Examples, in which partitions divide the tokens; with `as_lists` SequenceExamples.
    """

    def __init__(self, folder: Path, seed: int, counts: list[int], as_lists: bool = False, compression: Any = None) -> None:
        self.folder, self.as_lists, self.compression = folder, as_lists, compression
        rng = random.Random(seed)
        folder.mkdir(parents=True)
        self.shards: list[list[list[Turn]]] = []
        for shard, count in enumerate(counts):
            records = [self.turns(rng, 1000 * shard + number) for number in range(count)]
            self.shards.append(records)
            with sf.TFRecordWriter(folder / f"part-{shard:02}.tfrecord", compression=compression) as writer:
                for turns in records:
                    writer.write(self.written(turns))

    @staticmethod
    def turns(rng: random.Random, number: int) -> list[Turn]:
        turns, token = [], 1000 * number + 10
        for row in range(rng.choice([0, 1, 3, rng.randrange(12)])):
            tokens = list(range(token, token + rng.choice([0, 1, rng.randrange(30)])))
            token += len(tokens)
            turns.append({"id": number, "row": row, "tokens": tokens, "point": [float(number), row / 2], "speaker": rng.randrange(3)})
        return turns or [{"id": number, "row": None}]

    def written(self, turns: list[Turn]) -> Any:
        rows = [turn for turn in turns if turn["row"] is not None]
        number = turns[0]["id"]
        if self.as_lists:
            return sf.encode_sequence_example(
                {"id": number},
                {
                    "tokens": [turn["tokens"] for turn in rows],
                    "weights": [[token / 4 for token in turn["tokens"]] for turn in rows],
                    "point": [turn["point"] for turn in rows],
                    "speaker": [[turn["speaker"]] for turn in rows],
                },
            )
        tokens = [token for turn in rows for token in turn["tokens"]]
        return {
            "id": number,
            "values": tokens,
            "weights": [token / 4 for token in tokens],
            "lengths": [len(turn["tokens"]) for turn in rows],
            "splits": [0, *itertools.accumulate(len(turn["tokens"]) for turn in rows)],
            "point": [value for turn in rows for value in turn["point"]],
            "speaker": [turn["speaker"] for turn in rows],
        }

    def source(self) -> sf.Source:
        pattern, of = str(self.folder / "*.tfrecord"), {"id": sf.FixedLenFeature((), "int64")}
        point = sf.FixedLenSequenceFeature((2,), "float32", allow_missing=True)
        if self.as_lists:
            lists = {
                "tokens": sf.VarLenFeature("int64"),
                "weights": sf.RaggedFeature("float32"),
                "point": point,
                "speaker": sf.FixedLenSequenceFeature((), "int64", allow_missing=True),
            }
            return sf.source(pattern, of, sequence_features=lists)
        features = of | {
            "tokens": sf.RaggedFeature("int64", value_key="values", partitions=[sf.RaggedFeature.RowLengths("lengths")]),
            "weights": sf.RaggedFeature("float32", partitions=[sf.RaggedFeature.RowSplits("splits")]),
            "point": point,
            "speaker": sf.VarLenFeature("int64"),
        }
        return sf.source(pattern, features)

    def rows(self, keeps: Callable[[Turn], bool] = lambda turn: True) -> Iterator[tuple[str, list[Turn]]]:
        """Iterates over the turns of each file for which `keeps` holds, in order, with the record of each."""
        for shard, records in enumerate(self.shards):
            turns = [turn | {"record": at} for at, of in enumerate(records) for turn in of if turn["row"] is not None]
            yield f"part-{shard:02}.tfrecord", [turn for turn in turns if keeps(turn)]


def lines_of(ledger: Path) -> list[Any]:
    lines = [parse(text) for path in ledger.iterdir() for text in path.read_text().splitlines() if not text.startswith("start")]
    return [line for line in lines if line.mark == "1" and line.epoch == 0]


PACKS: list[tuple[dict[str, Any], str | None, str | None, Callable[[Turn], bool]]] = [
    ({"length": 32}, None, None, lambda turn: True),
    ({"length": 24, "append": END, "block": 8, "variants": 2}, None, "speaker != 1", lambda turn: turn["speaker"] != 1),
    ({"length": 16, "long": "truncate", "append": END}, "id % 3 != 1", None, lambda turn: turn["id"] % 3 != 1),
    ({"length": 20, "long": "drop"}, "id % 2 == 0", "len(tokens) > 2", lambda turn: turn["id"] % 2 == 0 and len(turn["tokens"]) > 2),
    ({"length": 40, "method": "concat", "block": 16}, None, "speaker == 2 or len(weights) > 4", lambda turn: turn["speaker"] == 2 or len(turn["tokens"]) > 4),
]  # fmt: skip


@pytest.mark.parametrize("as_lists", [False, True], ids=["partitions", "lists"])
@pytest.mark.parametrize("number", range(len(PACKS)))
def test_tokens_of_rows_are_packed_once(number: int, as_lists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As packs of sequences of the same lengths; the ledger names the row of each part."""
    settings, of_records, of_rows, keeps = PACKS[number]
    world = World(tmp_path / "data", number, [25, 0, 40, 7], as_lists, "gzip" if number == 1 else None)
    source = world.source()
    source = source if of_records is None else source.filter(of_records)
    source = source.unbatch("tokens", "weights", "speaker")
    source = source if of_rows is None else source.filter(of_rows)
    columns = ("tokens",) if "append" in settings else ("tokens", "weights")
    source = source.pack(*columns, **settings)
    expected: Counter[Any] = Counter()
    parts: Counter[tuple[str, int, int, int, int]] = Counter()
    for name, turns in world.rows(keeps):
        case: dict[str, Any] = {"block": 4096, "variants": 8, "long": "split", "method": "fit", **settings}
        case |= {"append": "append" in settings, "shard": digest_of(world.folder / name, world.compression)}
        answer = pack_oracle.answer(case | {"lengths": [len(turn["tokens"]) for turn in turns]})
        whole = [[*turn["tokens"], END] if case["append"] else turn["tokens"] for turn in turns]
        for pack in answer["variants"][0]:
            expected[tuple(tuple(whole[at][first : first + count]) for at, first, count in pack)] += 1
            parts.update((name, turns[at]["record"], turns[at]["row"], first, count) for at, first, count in pack)
    assert expected.total() > 5
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    with loader(source, tail="pad", provenance=True) as each:
        assert each.samples == expected.total()
        found: Counter[Any] = Counter()
        for batch in each:
            found.update(pack for pack, valid in packs_of(batch) if valid)
            if "weights" in columns:
                np.testing.assert_array_equal(batch["weights"], np.float32(batch["tokens"] / 4))
            assert batch.parts is not None and len(batch.parts.record_row) == len(batch.parts.first)
    assert found == expected
    told = Counter((Path(line.shard).name, line.record, line.record_row, line.first, line.rows) for line in lines_of(tmp_path / "ledger"))
    assert told == parts


WINDOWS: list[tuple[dict[str, Any], str | None, Callable[[Turn], Any], Callable[[Turn], bool]]] = [
    ({"size": 3}, None, lambda turn: 0, lambda turn: True),
    ({"size": 4, "stride": 2, "by": "id"}, None, lambda turn: turn["id"], lambda turn: True),
    ({"size": 3, "stride": 1, "by": "id // 2", "partial": "pad"}, "speaker != 0", lambda turn: turn["id"] // 2, lambda turn: turn["speaker"] != 0),
    ({"size": 2, "by": "speaker * 1.5", "partial": "pad"}, None, lambda turn: turn["speaker"], lambda turn: True),
    ({"size": 5, "stride": 3, "partial": "keep"}, "ordinal % 3 != 1", lambda turn: 0, lambda turn: turn["record"] % 3 != 1),
]  # fmt: skip


@pytest.mark.parametrize("as_lists", [False, True], ids=["partitions", "lists"])
@pytest.mark.parametrize("number", range(len(WINDOWS)))
def test_windows_of_rows_come_once(number: int, as_lists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a record and across records; the ledger names the row of each part."""
    settings, of_rows, key, keeps = WINDOWS[number]
    world = World(tmp_path / "data", 50 + number, [25, 0, 40, 7], as_lists)
    source = world.source().unbatch("point", "speaker")
    source = source if of_rows is None else source.filter(of_rows)
    source = source.window("point", "id", **settings)
    size, stride, partial = settings["size"], settings.get("stride", settings["size"]), settings.get("partial", "drop")
    expected = []
    for name, turns in world.rows():
        # The record's number in its file is the ordinal of an expression.
        turns = [turn for turn in turns if keeps(turn)]
        for _, group in itertools.groupby(turns, key):
            members = list(group)
            for start in range(0, len(members), stride):
                window = members[start : start + size]
                if len(window) == size or partial != "drop":
                    expected.append((name, window))
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    with loader(source, shuffle=False, interleave=1, tail="pad") as each:
        assert each.samples == len(expected) > 5
        found = [
            (np.asarray(batch["id"][row]).tolist(), np.asarray(batch["point"][row]).reshape(-1, 2).tolist())
            for batch in each
            for row in range(batch.rows)
            if batch.valid[row]
        ]
    filled = [window + [window[-1]] * (size - len(window) if partial == "pad" else 0) for _, window in expected]
    assert found == [([turn["id"] for turn in window], [turn["point"] for turn in window]) for window in filled]
    told = Counter((Path(line.shard).name, line.record, line.record_row, line.first, line.rows) for line in lines_of(tmp_path / "ledger"))
    assert told == Counter((name, turn["record"], turn["row"], 0, 1) for name, window in expected for turn in window)


def test_values_that_are_nan_begin_windows_of_their_own(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write({"x": [1.0, 1.0, float("nan"), float("nan"), 1.0, 1.0]})
    source = sf.source(str(tmp_path / "a.tfrecord"), {"x": sf.VarLenFeature("float32")}).unbatch("x").window("x", size=2, by="x", partial="pad")
    for _ in range(2):
        with loader(source, batch_size=1, shuffle=False) as each:
            assert [int(batch["window_length"][0]) for batch in each] == [2, 1, 1, 2]


def test_ragged_rows_are_samples(tmp_path: Path) -> None:
    for as_lists in (False, True):
        world = World(tmp_path / f"{as_lists}", 3, [20, 9], as_lists)
        source = world.source().unbatch("tokens", "weights", "speaker").filter("len(tokens) != 1")
        expected = [(turn["id"], turn["tokens"], turn["speaker"]) for _, turns in world.rows() for turn in turns if len(turn["tokens"]) != 1]
        with loader(source, batch_size=3, shuffle=False, interleave=1, tail="pad") as each:
            found = [
                (int(batch["id"][row]), np.asarray(batch["tokens"][row]).tolist(), int(batch["speaker"][row]))
                for batch in each
                for row in range(batch.rows)
                if batch.valid[row]
            ]
        assert found == expected
    with pytest.raises(sf.ConfigError, match="rows of column `tokens` have any number of values; offsets takes rows of one shape"):
        world.source().unbatch(offsets={"tokens": (0, 1)})


def test_other_settings_read_nothing(tmp_path: Path) -> None:
    """Lengths and keys of rows are kept with what the filters measured."""
    world = World(tmp_path / "data", 8, [2000, 2500])
    size = sum(file.stat().st_size for file in world.folder.iterdir())

    def opened(source: sf.Source) -> int:
        before = read_chars()
        with loader(source) as each:
            assert each.samples > 0
        return read_chars() - before

    rows = world.source().unbatch("tokens", "weights", "speaker")
    assert opened(rows.filter("speaker > 0").pack("tokens", length=64)) >= size
    assert opened(rows.filter("speaker > 1").pack("tokens", length=32, append=END)) < size // 3
    assert opened(rows.window("speaker", size=3, by="speaker")) >= size
    assert opened(rows.filter("speaker != 2").window("speaker", size=4, stride=2, by="speaker")) < size // 3


def test_stops_and_resumes_of_packed_rows_change_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 4, [60, 3, 80])
    rows = world.source().unbatch("tokens", "weights", "speaker").filter("len(tokens) > 0")
    packs = rows.pack("tokens", length=32, block=16)
    mixed = sf.mix({"a": (packs, 1), "b": (rows.pack("tokens", length=32, append=END), 2)}, epoch=40)
    windows = rows.window("speaker", size=2, by="id")
    for seed, each in enumerate([packs, windows, mixed, packs.balance("sum_squares", window=12)] * 3):
        rng = random.Random(seed)
        order = random_order(rng, shuffle=True) | {"seed": seed, "restart": False}

        def of(each: sf.Source | sf.Mixture = each, order: Any = order, **given: Any) -> sf.Loader:
            return sf.Loader(each, **(order | given))

        def shown(batch: sf.Batch) -> list[Any]:
            return [([np.asarray(batch[name][row]).tolist() for name in sorted(batch)], bool(batch.valid[row])) for row in range(batch.rows)]

        with of(rank=0, world_size=1, batch_size=12) as whole:
            steps = [shown(batch) for _ in range(2) for batch in whole]
        if steps:
            assert resumed_steps(rng, of, shown, len(steps), 6) == steps, (seed, each)


def test_damaged_records_have_no_rows_in_packs(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 6, [30])
    (file,) = world.folder.iterdir()
    bad = next(at for at, turns in enumerate(world.shards[0]) if any(len(turn.get("tokens", [])) > 1 for turn in turns))
    flip(file, record_offsets(file)[bad] + 14)
    source = world.source().unbatch("tokens").pack("tokens", length=16)
    with pytest.raises(sf.ShardfeedError):
        loader(source)
    with loader(source, corrupt="skip-record", tail="pad") as each:
        found = [token for batch in each for pack, valid in packs_of(batch) if valid for part in pack for token in part]
        assert [one.ordinal for one in each.skipped] == [bad]
    kept = [token for at, turns in enumerate(world.shards[0]) if at != bad for turn in turns for token in turn.get("tokens", [])]
    assert sorted(found) == kept


def test_a_row_that_is_too_long_is_named(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 6, [30])
    turns = ((at, turn) for at, of in enumerate(world.shards[0]) for turn in of if len(turn.get("tokens", [])) > 16)
    at, turn = next(turns)
    said = f"row {turn['row']} of record {at} has {len(turn['tokens'])} tokens, more than length=16; pass"
    with pytest.raises(sf.ConfigError, match=said):
        loader(world.source().unbatch("tokens").pack("tokens", length=16, long="error"))


def test_wrong_programs_are_errors_at_once() -> None:
    source = sf.source(
        "none",
        {
            "id": sf.FixedLenFeature((), "int64"),
            "words": sf.VarLenFeature("int64"),
            "turns": sf.RaggedFeature("int64", value_key="values", partitions=[sf.RaggedFeature.RowLengths("lengths")]),
            "score": sf.FixedLenSequenceFeature((2,), "float32", allow_missing=True),
        },
    )
    rows = source.unbatch("turns", "score")
    for made, said in (
        (lambda: rows.pack("words", length=8), "column `words` is repeated in each row; pack after unbatch.. takes its columns"),
        (lambda: rows.pack("score", length=8), "column `score` has no tokens for pack"),
        (lambda: rows.window("turns", size=2), "column `turns` has any number of values"),
        (lambda: rows.window("other", size=2), "there is no feature `other`; there are `id`, `score`, `turns`, `words`"),
        (lambda: source.unbatch(offsets={"score": (0, 1)}).window("score", size=2), "column `score` has several rows a sample, by offsets"),
        (lambda: source.window("id", size=2).unbatch("turns"), r"call unbatch\(\) before"),
        (lambda: rows.pack("turns", length=8).unbatch("turns"), "unbatch already"),
        (lambda: rows.window("id", size=2).pack("id", length=8), "a source has one of pack and window"),
        (lambda: rows.window("id", size=2).filter("id > 1"), r"call filter\(\) before window\(\)"),
        (lambda: rows.cast("id", "int32").pack("turns", length=8), r"call pack\(\) before the operators"),
    ):
        with pytest.raises(sf.ConfigError, match=said):
            made()
    lists = sf.source("none", None, sequence_features={"frame": sf.FixedLenSequenceFeature((), "string", allow_missing=True)})
    with pytest.raises(sf.ConfigError, match=r"column `frame` is a feature list; call unbatch\(\) of it first"):
        lists.window("frame", size=2)


def test_a_file_with_other_rows_than_were_counted_is_an_error(tmp_path: Path) -> None:
    """A file that another one of the same size and time replaces, while a loader is open, is an error."""
    features = {"x": sf.FixedLenSequenceFeature((2,), "float32", allow_missing=True), "y": sf.VarLenFeature("int64")}
    file = tmp_path / "a.tfrecord"

    def write(rows: list[int]) -> None:
        before = file.stat() if file.exists() else None
        with sf.TFRecordWriter(file) as writer:
            for count in rows:
                writer.write({"x": [0.5] * (2 * count), "y": [3] * count})
        if before is not None:
            assert file.stat().st_size == before.st_size
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    windows = sf.source(str(file), features).unbatch("x", "y").window("x", size=3)
    write([3, 6, 3])
    with loader(windows, batch_size=1, shuffle=False) as each:
        assert each.samples == 4
        write([6, 3, 3])
        with pytest.raises(sf.ShardChangedError):
            list(each)


def test_columns_of_one_feature_and_partition_do_not_change_each_other(tmp_path: Path) -> None:
    ragged = sf.RaggedFeature("int64", value_key="v", partitions=[sf.RaggedFeature.RowLengths("l")])
    files = str(tmp_path / "a.tfrecord")
    with sf.TFRecordWriter(files) as writer:
        writer.write({"v": [1, 2, 3, 4], "l": [1, 3], "s": [5, 6]})
        writer.write({"v": [7, 8], "l": [0, 2], "s": [7, 8]})
    plain, same = sf.VarLenFeature("int64"), sf.RaggedFeature("int64", value_key="s")

    def rows(features: dict[str, Any], *columns: str, keep: str = "") -> list[list[Any]]:
        source = sf.source(files, features).unbatch(*columns)
        with loader(source.filter(keep) if keep else source, batch_size=1, shuffle=False) as each:
            return [[batch[name][0].tolist() for name in features] for batch in each]

    # The numbers of a partition are a column, too.
    assert rows({"t": ragged, "l": plain}, "t", "l") == [[[1], 1], [[2, 3, 4], 3], [[], 0], [[7, 8], 2]]
    assert rows({"l": plain, "t": ragged}, "l", "t", keep="l > 1") == [[3, [2, 3, 4]], [2, [7, 8]]]
    # Another column has the same values, in rows or in each row.
    assert rows({"t": ragged, "u": ragged}, "t", "u") == [[[1], [1]], [[2, 3, 4], [2, 3, 4]], [[], []], [[7, 8], [7, 8]]]
    assert rows({"s": sf.FixedLenFeature((2,), "int64"), "x": same}, "x") == [[[5, 6], 5], [[5, 6], 6], [[7, 8], 7], [[7, 8], 8]]
    assert rows({"s": plain, "x": same}, "s", "x") == [[5, 5], [6, 6], [7, 7], [8, 8]]
    source = sf.source(files, {"t": ragged, "l": plain}).unbatch("t", "l").filter("l > 1").pack("t", length=4)
    with loader(source, batch_size=1, shuffle=False) as each:
        assert sorted(token for batch in each for token in batch["t"][0].tolist() if token) == [2, 3, 4, 7, 8]


def test_a_float_follows_the_rows_of_a_feature_list(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write(sf.encode_sequence_example({"id": 1}, {"mask": [[0.5, 0.25], [1.0]]}))
    lists = {"mask": sf.VarLenFeature("float32")}
    rows = sf.source(str(tmp_path / "a.tfrecord"), {"id": sf.FixedLenFeature((), "int64")}, sequence_features=lists).unbatch("mask")
    with loader(rows.pack("mask", length=6, append=-0.5), batch_size=1, shuffle=False) as each:
        assert [batch["mask"][0].tolist() for batch in each] == [[0.5, 0.25, -0.5, 1.0, -0.5, 0.0]]


def test_columns_of_a_row_with_different_numbers_of_tokens_are_an_error(tmp_path: Path) -> None:
    """The error names the row, if rows are packed."""
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write({"x": [1, 2, 3], "x_lengths": [2, 1], "y": [4, 5, 6], "y_lengths": [2, 1]})
        writer.write({"x": [1, 2, 3], "x_lengths": [2, 1], "y": [4, 5, 6, 7], "y_lengths": [2, 2]})

    def turns(name: str) -> sf.RaggedFeature:
        return sf.RaggedFeature("int64", value_key=name, partitions=[sf.RaggedFeature.RowLengths(f"{name}_lengths")])

    files = str(tmp_path / "a.tfrecord")
    rows = sf.source(files, {"x": turns("x"), "y": turns("y")}).unbatch("x", "y").pack("x", "y", length=4)
    with pytest.raises(sf.FeatureError, match=r"record 1 at offset \d+: column `x` has 1 tokens and `y` 2 in row 1; pack takes columns with as many"):
        list(sf.Loader(rows, batch_size=1, restart=False))
    records = sf.source(files, dict.fromkeys("xy", sf.VarLenFeature("int64"))).pack("x", "y", length=4)
    with pytest.raises(sf.FeatureError, match=r"record 1 at offset \d+: column `x` has 3 tokens and `y` 4; pack takes columns with as many"):
        list(sf.Loader(records, batch_size=1, restart=False))
