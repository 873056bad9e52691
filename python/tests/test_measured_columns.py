"""Filters and costs over columns that operators made, and over lists: against numpy and Python."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf

ROWS = 400


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "label": rng.integers(0, 10, ROWS).astype(np.int32),
        "flag": rng.integers(0, 2, ROWS).astype(bool),
        "pixel": rng.integers(0, 255, (ROWS, 4)).astype(np.uint8),
        "weight": rng.random(ROWS),
        "half": rng.random(ROWS).astype(np.float16),
        "row": np.arange(ROWS),
    }


def rows_of(source: sf.Source, column: str = "row", **options: Any) -> list[int]:
    with sf.Loader(source, batch_size=1, shuffle_window=16, restart=False, **options) as each:
        return sorted(int(batch[column][0]) for batch in each)


def test_filters_of_written_arrays_are_those_of_numpy(tmp_path: Path) -> None:
    have = arrays()
    source = sf.from_arrays(have, tmp_path, shard_bytes=4000)
    for expression, expected in (
        ("label % 3 == 1", have["label"] % 3 == 1),
        ("flag and label > 4", have["flag"] & (have["label"] > 4)),
        ("weight > 0.3 and half < 0.5", (have["weight"] > 0.3) & (have["half"].astype(float) < 0.5)),
        ("weight == half", have["weight"] == have["half"].astype(float)),
        (f"weight == {float(have['weight'][7])!r}", np.arange(ROWS) == 7),
    ):
        if expected.any():
            assert rows_of(source.filter(expression)) == np.flatnonzero(expected).tolist(), expression
        else:
            with pytest.raises(sf.ConfigError, match="leaves none"):
                rows_of(source.filter(expression))
    first = source.select("pixel", [0]).reshape("pixel", ()).filter("pixel < 100").filter("not flag")
    assert rows_of(first) == np.flatnonzero((have["pixel"][:, 0] < 100) & ~have["flag"]).tolist()
    with pytest.raises(sf.ConfigError, match=r"column `pixel` has shape \[4\]"):
        source.filter("pixel > 3")


def test_another_threshold_reads_nothing(tmp_path: Path) -> None:
    have = arrays()
    source = sf.from_arrays(have, tmp_path / "data", shard_bytes=4000)
    assert source.filter("weight < 0.5 and label < 9").count() == int(((have["weight"] < 0.5) & (have["label"] < 9)).sum())
    before = io_bytes()
    assert source.filter("weight < 0.25 or label == 3").count() == int(((have["weight"] < 0.25) | (have["label"] == 3)).sum())
    size = sum(file.stat().st_size for file in (tmp_path / "data").glob("*.tfrecord"))
    assert io_bytes() - before < size // 2
    # The same name, made in another way, is another column.
    scaled = source.scale("weight", 2.0, dtype="float64").filter("weight < 0.5")
    assert scaled.count() == int((have["weight"] * 2 < 0.5).sum())


def test_another_filter_of_rows_reads_nothing(tmp_path: Path) -> None:
    rng, labels = np.random.default_rng(4), []
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(300):
            labels.append(rng.integers(0, 9, number % 5))
            writer.write({"label": labels[-1], "id": number, "image": bytes(rng.bytes(2000))})
    features = {"label": sf.VarLenFeature("int64"), "id": sf.FixedLenFeature((), "int64")}
    rows = sf.source(tmp_path / "a.tfrecord", features).unbatch("label")
    flat = [(number, label) for number, row in enumerate(labels) for label in row]
    assert rows.filter("label > 6 or id == 3").count() == sum(label > 6 or number == 3 for number, label in flat)
    before = io_bytes()
    assert rows.filter("label < 2 and id > 9").count() == sum(label < 2 and number > 9 for number, label in flat)
    assert rows.count() == len(flat)
    strided = sf.source(tmp_path / "a.tfrecord", features).unbatch("label", stride=2).filter("label != 4")
    expected = [labels[number][at] for number in range(300) for at in range(0, number % 5, 2)]
    assert strided.count() == sum(label != 4 for label in expected)
    assert io_bytes() - before < (tmp_path / "a.tfrecord").stat().st_size // 2
    assert rows_of(strided, "label") == sorted(label for label in expected if label != 4)


def test_packs_of_lengths_that_a_filter_measured_read_nothing(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(200):
            writer.write({"tokens": np.full(number % 60, 70_000), "id": number})
    source = sf.source(tmp_path / "a.tfrecord", {"tokens": sf.VarLenFeature("int64")})
    assert source.filter("len(tokens) > 8").count() == sum(number % 60 > 8 for number in range(200))
    before = io_bytes()
    packs = source.pack("tokens", length=64)
    assert packs.count() >= sum(number % 60 for number in range(200)) / 64
    assert io_bytes() - before < (tmp_path / "a.tfrecord").stat().st_size // 2
    with sf.Loader(packs, batch_size=1, restart=False) as each:
        tokens = sum(int((batch["tokens_segment_ids"] > 0).sum()) for batch in each)
    assert tokens == sum(number % 60 for number in range(200))


def io_bytes() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_operators_before_a_filter_and_after_it(tmp_path: Path) -> None:
    have = arrays()
    source = sf.from_arrays(have, tmp_path)
    made = source.compute("sum", "label * 2 + weight", "float64").filter("sum > 7 and label < 8").cast("label", "float32")
    made = made.rename("sum", "total").filter("half >= 0.25")
    expected = (have["label"] * 2 + have["weight"] > 7) & (have["label"] < 8) & (have["half"] >= 0.25)
    assert rows_of(made) == np.flatnonzero(expected).tolist()
    assert pickle.loads(pickle.dumps(made)) == made
    with sf.Loader(made, batch_size=4) as each:
        state = each.state_dict()
    other = source.compute("sum", "label * 3 + weight", "float64").filter("sum > 7 and label < 8").cast("label", "float32")
    other = other.rename("sum", "total").filter("half >= 0.25")
    with pytest.raises(sf.StateError, match="record_spec"):
        sf.Loader(other, batch_size=4, resume=state)
    balanced = source.filter("flag").balance("label * label", window=64)
    assert rows_of(balanced) == np.flatnonzero(have["flag"]).tolist()


def hashed(value: int | bytes) -> int:
    data = b"t" + value if isinstance(value, bytes) else b"i" + struct.pack("<q", value)
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little") & (2**63 - 1)


def test_functions_are_those_of_python(tmp_path: Path) -> None:
    words = [f"word {number % 50}" for number in range(ROWS)]
    source = sf.from_arrays({"word": words, "number": np.arange(ROWS) - 9, "row": np.arange(ROWS)}, tmp_path)
    for expression, holds in (
        ("hash(number) % 10 == 0", lambda row: hashed(row - 9) % 10 == 0),
        ("hash(word) % 3 != 0", lambda row: hashed(words[row].encode()) % 3 != 0),
        ("exp(number / 100) > 9.5 or tanh(number / 9) < 0.5", lambda row: math.exp((row - 9) / 100) > 9.5 or math.tanh((row - 9) / 9) < 0.5),
        ("log(number) > 3", lambda row: row > 9 and math.log(row - 9) > 3),
    ):
        assert rows_of(source.filter(expression)) == [row for row in range(ROWS) if holds(row)], expression
    parts = [rows_of(source.filter(f"hash(word) % 4 {test} 1")) for test in ("==", "!=")]
    assert sorted(parts[0] + parts[1]) == list(range(ROWS))


def test_a_filter_takes_scores_of_a_table(tmp_path: Path) -> None:
    scores = np.random.default_rng(1).random(ROWS).astype(np.float32)
    languages = ["en" if row % 3 else "de" for row in range(ROWS)]
    table = tmp_path / "quality.sft"
    sf.write_table(table, np.arange(ROWS), {"score": scores, "lang": languages})
    source = sf.from_arrays({"row": np.arange(ROWS)}, tmp_path / "data").lookup("row", table, "score").lookup("row", table, "lang")
    chosen = source.filter("score >= 0.5 and lang == 'de'")
    expected = [row for row in range(ROWS) if scores[row] >= 0.5 and row % 3 == 0]
    assert rows_of(chosen) == expected
    with pytest.raises(sf.ConfigError, match="workers without the table count samples"):
        sf.Loader(chosen, batch_size=1, coordinator="127.0.0.1:1", fallback=False)
    module = tmp_path / "declared.py"
    files, path = str(tmp_path / "data" / "*.tfrecord"), str(table)
    module.write_text(
        f"import shardfeed as sf\nsource = sf.source({files!r}, {{'row': sf.FixedLenFeature((), 'int64')}})\n"
        f"source = source.lookup('row', {path!r}, 'score').filter('score >= 0.5')\n"
    )
    command = [os.environ["SHARDFEED_BINARY"], "plan", "show", "--source", f"{module}:source", "--python", sys.executable, "--batch-size", "1"]
    shown = subprocess.run([*command, "--output", "json"], check=True, capture_output=True, text=True).stdout
    assert json.loads(shown)["samples"] == int((scores >= 0.5).sum())
    # Keys of records that a filter before leaves out need not be in the table.
    few = tmp_path / "few.sft"
    sf.write_table(few, np.arange(50), {"score": scores[:50]})
    first = sf.from_arrays({"row": np.arange(ROWS)}, tmp_path / "data").filter("row < 50")
    for later in ("score >= 0.5", "score >= 0.5 and row != 7"):
        expected = [row for row in range(50) if scores[row] >= 0.5 and (row != 7 or "row" not in later)]
        assert rows_of(first.lookup("row", few, "score").filter(later)) == expected
    with pytest.raises(sf.FeatureError, match="has no key"):
        rows_of(sf.from_arrays({"row": np.arange(ROWS)}, tmp_path / "data").lookup("row", few, "score").filter("score >= 0.5"))
    # A table with other content is another filter.
    other = tmp_path / "other.sft"
    sf.write_table(other, np.arange(ROWS), {"score": 1 - scores, "lang": languages})
    again = sf.from_arrays({"row": np.arange(ROWS)}, tmp_path / "data").lookup("row", other, "score").filter("score >= 0.5")
    assert rows_of(again) == [row for row in range(ROWS) if 1 - scores[row] >= 0.5]


def test_rows_take_columns_that_operators_made_of_them(tmp_path: Path) -> None:
    features = {"box": sf.FixedLenSequenceFeature((4,), "float32", allow_missing=True), "id": sf.FixedLenFeature((), "int64")}
    rng, kept = np.random.default_rng(2), []
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(60):
            boxes = rng.random((number % 4, 4)).astype(np.float32)
            writer.write({"box": boxes.reshape(-1), "id": number})
            kept += [number for box in boxes if box[2] * box[3] > 0.2 and number % 5]
    source = sf.source(tmp_path / "a.tfrecord", features).cast("id", "int32").filter("id % 5 != 0").unbatch("box")
    sides = source.select("box", [2], output="height").select("box", [3], output="width")
    sides = sides.reshape("height", ()).reshape("width", ()).filter("height * width > 0.2")
    assert rows_of(sides, "id") == kept
    early = sf.source(tmp_path / "a.tfrecord", {"box": sf.VarLenFeature("float32")}).cast("box", "float64", output="wide")
    with pytest.raises(sf.ConfigError, match="an operator makes `wide` of column `box`, and runs on each row: call unbatch"):
        early.unbatch("box")
    around = sf.source(tmp_path / "a.tfrecord", features).unbatch(offsets={"box": (0, 1)}, edge="repeat")
    first = around.slice("box", [0, 0], [1, 1], output="first").reshape("first", ())
    with pytest.raises(sf.ConfigError, match="the rows of `box` around a sample's own"):
        first.filter("first > 0.5")


def test_lists_of_every_kind_are_measured_and_packed(tmp_path: Path) -> None:
    lists = [[number] * (number % 7) for number in range(50)]
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for number, tokens in enumerate(lists):
            writer.write({"tokens": np.array(tokens, np.int64), "row": number})
    for feature in (
        sf.VarLenFeature("int64"),
        sf.FixedLenSequenceFeature((), "int64", allow_missing=True),
        sf.RaggedFeature("int64"),
    ):
        source = sf.source(tmp_path / "a.tfrecord", {"tokens": feature, "row": sf.FixedLenFeature((), "int64")})
        assert rows_of(source.filter("len(tokens) > 4")) == [row for row in range(50) if row % 7 > 4]
        names: Any = {"segment_ids": "inputs_segmentation", "positions": "inputs_position"}
        packs = source.filter("len(tokens) > 1").pack("tokens", length=16, names=names)
        assert sorted(packs.columns) == ["inputs_position", "inputs_segmentation", "tokens"]
        found = []
        with sf.Loader(packs, batch_size=1, restart=False) as each:
            for batch in each:
                found += batch["tokens"][batch["inputs_segmentation"] > 0].tolist()
        assert sorted(found) == sorted(token for tokens in lists if len(tokens) > 1 for token in tokens)
        flat = source.unbatch("tokens")
        assert rows_of(flat, "tokens") == sorted(token for tokens in lists for token in tokens)
    for wrong in ({"segments": "x"}, ["x"]):
        with pytest.raises(sf.ConfigError, match="names is"):
            source.pack("tokens", length=16, names=wrong)  # type: ignore[arg-type]


def test_the_steps_of_feature_lists_are_their_length(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(40):
            steps = [np.full(3, step, np.float32) for step in range(number % 6)]
            writer.write(sf.encode_sequence_example({"row": number}, {"state": steps}))
    source = sf.source(
        tmp_path / "a.tfrecord",
        {"row": sf.FixedLenFeature((), "int64")},
        sequence_features={"state": sf.FixedLenSequenceFeature((3,), "float32", allow_missing=True)},
    )
    assert rows_of(source.filter("len(state) >= 4")) == [row for row in range(40) if row % 6 >= 4]
    steps = source.filter("len(state) >= 4").unbatch("state")
    assert rows_of(steps) == sorted(row for row in range(40) for _ in range(row % 6) if row % 6 >= 4)
    with pytest.raises(sf.ConfigError, match="any number of values a record"):
        source.filter("state > 1")


def test_the_strings_of_windows_are_decoded_to_arrays(tmp_path: Path) -> None:
    frames = np.random.default_rng(5).integers(0, 255, (40, 6, 5, 3)).astype(np.uint8)
    with sf.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for row, frame in enumerate(frames):
            writer.write({"frame": frame.tobytes(), "row": row, "wide": np.array([row, -row], ">i2").tobytes()})
    features = {name: sf.FixedLenFeature((), kind) for name, kind in (("frame", "string"), ("row", "int64"), ("wide", "string"))}
    clips = sf.source(tmp_path / "a.tfrecord", features).window(size=4, stride=2)
    arrays = clips.decode_raw("frame", "uint8", (6, 5, 3)).decode_raw("wide", "int16", (2,), little_endian=False)
    seen = []
    with sf.Loader(arrays, batch_size=3, restart=False, tail="pad") as each:
        for batch in each:
            for rows, clip, wide in zip(batch["row"][batch.valid], batch["frame"][batch.valid], batch["wide"][batch.valid], strict=True):
                assert np.array_equal(clip, frames[rows]) and np.array_equal(wide, np.stack([rows, -rows], 1))
                seen.append(int(rows[0]))
    assert sorted(seen) == list(range(0, 37, 2))
    single = sf.source(tmp_path / "a.tfrecord", features).window(size=1).decode_raw("frame", "uint8", (6, 5, 3))
    assert single.columns["frame"].shape == (1, 6, 5, 3)
    # Each string is checked; the error names the sample of it.
    with pytest.raises(sf.FeatureError, match="90"):
        next(iter(sf.Loader(clips.decode_raw("frame", "uint8", (7,)), batch_size=2, shuffle=False)))
