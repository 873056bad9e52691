"""Operators on ragged columns: each value becomes another one, and the rows stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf

RECORDS = 40
PARTS = sf.RaggedFeature
FEATURES: dict[str, Any] = {
    "label": sf.VarLenFeature("int64"),
    "ymin": sf.VarLenFeature("float32"),
    "xmin": sf.VarLenFeature("float32"),
    "pairs": PARTS("float32", "pairs", [PARTS.UniformRowLength(2)]),
    "deep": PARTS("int64", "deep", [PARTS.RowLengths("deep_lengths")]),
    "other": PARTS("int64", "other", [PARTS.RowLengths("other_lengths")]),
    "words": sf.VarLenFeature("string"),
    "number": sf.FixedLenFeature((), "int64"),
    "padded": sf.FixedLenSequenceFeature((), "int64", allow_missing=True),
}


def row(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    count = number % 6
    deep = rng.integers(0, 4, count)
    return {
        "label": rng.integers(0, 7, count),
        "ymin": rng.normal(size=count).astype(np.float32),
        "xmin": rng.normal(size=count).astype(np.float32),
        "pairs": rng.normal(size=(count, 2)).astype(np.float32),
        "deep": rng.integers(-5, 5, deep.sum()),
        "deep_lengths": deep,
        "other": rng.integers(-5, 5, deep.sum()),
        "other_lengths": deep,
        "words": [rng.integers(0, 256, 4, np.uint8).tobytes() for _ in range(count)],
        "number": number,
        "padded": [],
    }


ROWS = [row(number) for number in range(RECORDS)]


def write(path: Path, rows: list[dict[str, Any]]) -> sf.Source:
    with sf.TFRecordWriter(path) as writer:
        for values in rows:
            flat = {name: np.ravel(value) if isinstance(value, np.ndarray) else value for name, value in values.items()}
            writer.write({name: value for name, value in flat.items() if np.size(value)})
    return sf.source(path, FEATURES)


@pytest.fixture
def source(tmp_path: Path) -> sf.Source:
    return write(tmp_path / "x.tfrecord", ROWS)


def rows_of(source: sf.Source, column: str, batch_size: int = 7) -> tuple[list[np.ndarray], Any]:
    """Returns the rows of a ragged column, and its type."""
    rows, dtype = [], None
    for batch in sf.Loader(source, outputs=["number", column], batch_size=batch_size, shuffle=False, tail="uneven"):
        found = batch[column]
        dtype = found.values.dtype
        assert len(found) == len(batch["number"])
        rows += [np.array(each) for each in found]
    assert len(rows) == RECORDS
    return rows, dtype


def check(source: sf.Source, column: str, dtype: Any, expected: Any) -> None:
    rows, found = rows_of(source, column)
    assert found == dtype
    for values, got in zip(ROWS, rows, strict=True):
        want = np.asarray(expected(values), dtype)
        assert got.shape == want.shape and np.array_equal(got, want), values["number"]


def test_each_value_is_changed(source: sf.Source) -> None:
    check(source.cast("label", "uint8"), "label", np.uint8, lambda row: row["label"])
    check(source.cast("label", "float16", output="half"), "half", np.float16, lambda row: row["label"])
    check(source.scale("ymin", 2, 1), "ymin", np.float32, lambda row: row["ymin"] * 2 + 1)
    check(
        source.normalize("pairs", [1, 2], [2, 4], dtype="float64"), "pairs", np.float64,
        lambda row: (row["pairs"].astype(np.float64) - [1, 2]) / [2, 4],
    )  # fmt: skip
    hot = source.one_hot("label", 5)
    assert hot.columns["label"] == ("ragged", "float32", (None, 5))
    check(hot, "label", np.float32, lambda row: row["label"][:, None] == np.arange(5))
    check(source.select("pairs", [1, 1, 0]), "pairs", np.float32, lambda row: row["pairs"][:, [1, 1, 0]])
    numbers = source.decode_raw("words", "int16", 2)
    assert numbers.columns["words"] == ("ragged", "int16", (None, 2))
    check(numbers, "words", np.int16, lambda row: np.array([np.frombuffer(word, np.int16) for word in row["words"]]).reshape(-1, 2))
    # One operator after the other, and the parsed column beside it.
    chain = source.scale("label", 0.5, output="x").cast("x", "int8").one_hot("x", 3, dtype="bool")
    check(chain, "x", np.bool_, lambda row: (row["label"] // 2)[:, None] == np.arange(3))
    check(chain, "label", np.int64, lambda row: row["label"])


def test_columns_of_the_same_rows(source: sf.Source) -> None:
    boxes = source.concat(["ymin", "xmin", "ymin"], "box")
    assert boxes.columns["box"] == ("ragged", "float32", (None, 3))
    check(boxes, "box", np.float32, lambda row: np.stack([row["ymin"], row["xmin"], row["ymin"]], -1))
    check(source.concat(["pairs", "pairs"], "y"), "y", np.float32, lambda row: np.concatenate([row["pairs"]] * 2, 1))
    areas = source.compute("area", "(ymin - 1) * label + xmin", "float64")
    check(areas, "area", np.float64, lambda row: (row["ymin"].astype(np.float64) - 1) * row["label"] + row["xmin"])


def test_values_without_numbers_are_read(source: sf.Source) -> None:
    rows, _ = rows_of(source.one_hot("label", 0), "label")
    assert [found.shape for found in rows] == [(len(row["label"]), 0) for row in ROWS]


def test_nested_rows_stay(source: sf.Source) -> None:
    made = source.scale("deep", 3, dtype="float64").compute("sum", "deep + other", "int32")
    assert made.columns["sum"] == ("ragged", "int32", (None, None))
    numbers: list[int] = []
    with sf.Loader(made, outputs=["number", "deep", "other", "sum"], batch_size=8, seed=1) as loader:
        for batch in loader:
            for place, number in enumerate(batch["number"].tolist()):
                values = ROWS[number]
                ends = np.cumsum(values["deep_lengths"])
                split = [part.tolist() for part in np.split(values["deep"], ends)][: len(ends)]
                assert batch["deep"][place].tolist() == [[3.0 * value for value in part] for part in split]
                both = [part.tolist() for part in np.split(3 * values["deep"] + values["other"], ends)][: len(ends)]
                assert batch["sum"][place].tolist() == both
                numbers.append(number)
    assert len(set(numbers)) == len(numbers) == RECORDS


def test_results_are_padded(source: sf.Source) -> None:
    made = source.cast("label", "int16").pad("label", 8, value=-1).concat(["ymin", "xmin"], "box").pad("box", (6, 3), side="both")
    made = made.scale("xmin", 2).padded_batch("xmin", 5, output="x")
    (batch,) = sf.Loader(made, outputs=["label", "box", "x"], batch_size=RECORDS, shuffle=False)
    assert batch["label"].dtype == np.int16
    for place, values in enumerate(ROWS):
        count = len(values["label"])
        assert batch["label"][place].tolist() == [*values["label"].tolist(), *[-1] * (8 - count)]
        box = np.pad(np.stack([values["ymin"], values["xmin"]], -1), (((6 - count) // 2, 6 - count - (6 - count) // 2), (0, 1)))
        assert np.array_equal(batch["box"][place], box)
        assert np.array_equal(batch["x"][place], np.pad(values["xmin"] * 2, (0, 5 - count)))


def test_keys_of_a_side_table(source: sf.Source, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    sf.write_table(tmp_path / "weights.sft", np.arange(7), {"w": weights})
    check(source.lookup("label", tmp_path / "weights.sft"), "w", np.float32, lambda row: weights[row["label"]])
    words = [word for values in ROWS for word in values["words"]]
    sf.write_table(tmp_path / "words.sft", words, {"place": np.arange(len(words))})
    check(source.lookup("words", tmp_path / "words.sft"), "place", np.int64, lambda row: [words.index(word) for word in row["words"]])


def test_sequence_features(tmp_path: Path) -> None:
    steps = [[[1, 2], [], [3]], [], [[4]], [[5, 6, 7]]]
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for number, lists in enumerate(steps):
            writer.write(sf.encode_sequence_example({"number": number}, {"list": lists}))
    source = sf.source(
        tmp_path / "x.tfrecord", {"number": FEATURES["number"]}, sequence_features={"list": sf.VarLenFeature("int64")}
    ).scale("list", 2)
    (batch,) = sf.Loader(source, batch_size=4, shuffle=False)
    assert batch["list"].tolist() == [[[2 * value for value in part] for part in lists] for lists in steps]


def test_the_record_of_a_failing_value_is_named(source: sf.Source, tmp_path: Path) -> None:
    sf.write_table(tmp_path / "few.sft", np.arange(6), {"w": np.arange(6)})
    first = next(number for number, values in enumerate(ROWS) if 6 in values["label"])
    assert first > 0
    with pytest.raises(sf.FeatureError, match="few.sft has no key 6") as error:
        rows_of(source.lookup("label", tmp_path / "few.sft"), "w")
    assert error.value.ordinal == first
    # Nested rows: the value of a record that is not the first of its part.
    deep = next(number for number, values in enumerate(ROWS) if -5 in values["deep"])
    sf.write_table(tmp_path / "deep.sft", np.arange(-4, 5), {"w": np.arange(9)})
    with pytest.raises(sf.FeatureError, match="deep.sft has no key -5") as error:
        rows_of(source.lookup("deep", tmp_path / "deep.sft"), "w", batch_size=RECORDS)
    assert error.value.ordinal == deep > 0


def test_rows_of_other_lengths_are_corrupt_records(tmp_path: Path) -> None:
    rows = [row(number) for number in range(6)]
    rows[3]["xmin"] = rows[3]["xmin"][:2]
    rows[5]["other_lengths"] = rows[5]["other_lengths"][::-1]
    assert rows[5]["other_lengths"].tolist() != rows[5]["deep_lengths"].tolist()
    source = write(tmp_path / "x.tfrecord", rows)
    for made, bad, said in [
        (source.concat(["ymin", "xmin"], "y"), 3, r"rows of `ymin` and `xmin` have different lengths, \[3, 2\]"),
        (source.compute("y", "deep + other"), 5, r"rows of `deep` and `other` have different lengths, "),
    ]:
        with pytest.raises(sf.FeatureError, match=rf"record {bad} .*column `y`: {said}"):
            list(sf.Loader(made, outputs=["y"], batch_size=6, shuffle=False))
        (batch,) = sf.Loader(
            made, outputs=["y"], batch_size=6, shuffle=False, corrupt="skip-record", corrupt_budget=1.0
        )
        assert np.flatnonzero(~np.asarray(batch.valid, bool)).tolist() == [bad]
    # Rows whose values do not fill elements, and partitions that do not fit, although no batch has them.
    rows = [row(number) for number in range(3)]
    rows[2]["pairs"] = np.ones(3, np.float32)
    made = write(tmp_path / "x.tfrecord", rows).pad("pairs", 4, output="y")
    with pytest.raises(sf.FeatureError, match=r"record 2 .*feature `pairs` cannot be parted by `uniform_row_length`"):
        list(sf.Loader(made, outputs=["y"], batch_size=3, shuffle=False))


CHECKS: list[tuple[Any, str]] = [
    (lambda s: s.compute("y", "label + number"), "`label` and `number` are not both of a fixed shape, or both rows of the same depth; pad rows first"),
    (lambda s: s.concat(["label", "deep"], "y"), "`label` and `deep` are not both of a fixed shape, or both rows of the same depth"),
    (lambda s: s.concat(["label", "ymin"], "y"), "`ymin` is float32 of shape [], but `label` is int64 of shape []"),
    (lambda s: s.cast("padded", "int8"), "it takes columns of a fixed shape (a FixedLenFeature, or an operator's output) or ragged ones"),
    (lambda s: s.cast("words", "int8"), "it takes numbers, but its input is byte strings of shape []; decode them first"),
    (lambda s: s.decode_image("words"), "it takes columns of a fixed shape: a FixedLenFeature, or an operator's output"),
    (lambda s: s.scale("pairs", [1, 2, 3]), "scale has 3 values; it needs one, or one for each of the last dimension's 2"),
    (lambda s: s.pad("deep", 3), "it takes rows of values, not rows of such rows"),
    (lambda s: s.padded_batch("pairs", 3), "it takes a VarLenFeature of int64 or float32"),
    (lambda s: s.crop("label", 3), "it takes columns of a fixed shape"),
    (lambda s: s.on_device().cast("label", "int8"), "a device takes columns of a fixed shape; 'label' is int64 [None] ragged"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "said"), CHECKS)
def test_a_method_checks_at_once(source: sf.Source, call: Any, said: str) -> None:
    with pytest.raises(sf.ConfigError) as error:
        call(source)
    assert said in str(error.value)
