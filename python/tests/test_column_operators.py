"""`pad`, `rename`, `concat` and `constant`, against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf

RECORDS = 12
FEATURES: dict[str, Any] = {
    "a": sf.FixedLenFeature((2, 3), "float32"),
    "b": sf.FixedLenFeature((2, 3), "float32"),
    "n": sf.FixedLenFeature((), "int64"),
    "text": sf.FixedLenFeature((), "string"),
    "any": sf.VarLenFeature("int64"),
    "pairs": sf.RaggedFeature("float32", "pairs", [sf.RaggedFeature.UniformRowLength(2)]),
    "padded": sf.FixedLenSequenceFeature((2,), "int64", allow_missing=True, default_value=5),
    "deep": sf.RaggedFeature("int64", "deep", [sf.RaggedFeature.RowLengths("deep_lengths")]),
    "words": sf.VarLenFeature("string"),
    "sparse": sf.SparseFeature(["i"], "any", "int64", [100]),
}


def row(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    count = number % 5
    return {
        "a": rng.normal(size=(2, 3)).astype(np.float32),
        "b": rng.normal(size=(2, 3)).astype(np.float32),
        "n": number,
        "text": f"text {number}".encode(),
        "any": rng.integers(-9, 9, count),
        "i": np.arange(count),
        "pairs": rng.normal(size=(count, 2)).astype(np.float32),
        "padded": rng.integers(-9, 9, (count, 2)),
        "deep": np.arange(count),
        "deep_lengths": [count],
        "words": [b"w"] * count,
    }


ROWS = [row(number) for number in range(RECORDS)]


@pytest.fixture
def source(tmp_path: Path) -> sf.Source:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for values in ROWS:
            # An empty list is a feature that the record does not have.
            flat = {name: np.ravel(value) if isinstance(value, np.ndarray) else value for name, value in values.items()}
            writer.write({name: value for name, value in flat.items() if np.size(value)})
    return sf.source(tmp_path / "x.tfrecord", FEATURES)


def batch_of(source: sf.Source, *outputs: str, **options: Any) -> sf.Batch:
    return next(iter(sf.Loader(source, outputs=outputs or None, batch_size=RECORDS, shuffle=False, **options)))


def filled(array: np.ndarray, size: tuple[int, ...], value: float, side: str) -> np.ndarray:
    """Pads or truncates the first dimensions."""
    for axis, length in enumerate(size):
        more = array.shape[axis] - length
        before = {"end": 0, "start": abs(more), "both": abs(more) // 2}[side]
        if more >= 0:
            array = np.take(array, range(before, before + length), axis)
        else:
            widths = [(0, 0)] * array.ndim
            widths[axis] = (before, -more - before)
            array = np.pad(array, widths, constant_values=value)
    return array


@pytest.mark.parametrize("side", ["end", "start", "both"])
@pytest.mark.parametrize(
    ("column", "size"),
    [("a", (4,)), ("a", (2, 6)), ("a", (1, 1)), ("a", (3, 2)), ("any", (3,)), ("any", (6,)), ("pairs", (3,)), ("pairs", (6, 3)),
     ("pairs", (1, 1)), ("padded", (3,)), ("padded", (5, 4)), ("any", (0,))],
)  # fmt: skip
def test_rows_are_padded(source: sf.Source, column: str, size: tuple[int, ...], side: Any) -> None:
    made = source.pad(column, size, value=-3, side=side, truncate=True, output="made")
    found = batch_of(made, "made", column)
    expected = np.stack([filled(np.asarray(values[column]), size, -3, side) for values in ROWS])
    assert found["made"].dtype == (np.float32 if column in ("a", "pairs") else np.int64)
    assert np.array_equal(found["made"], expected)
    assert made.columns["made"].shape == expected.shape[1:]


def test_longer_rows_are_corrupt_records(source: sf.Source) -> None:
    fits = batch_of(source.pad("any", 4).pad("padded", (4, 2)))
    assert fits["any"].shape == (RECORDS, 4) and fits["padded"].shape == (RECORDS, 4, 2)
    too_long = source.pad("any", 3)
    with pytest.raises(sf.FeatureError, match=r"record 4 .*column `any`: its shape is \[4\], larger than size \[3\] of pad; raise size") as error:
        batch_of(too_long)
    assert error.value.ordinal == 4
    batch = batch_of(too_long, "any", corrupt="skip-record", corrupt_budget=1.0)
    assert np.flatnonzero(~np.asarray(batch.valid, bool)).tolist() == [4, 9]


def test_a_renamed_column_keeps_its_place_and_values(source: sf.Source) -> None:
    before = batch_of(source)
    renamed = source
    for name in FEATURES:
        renamed = renamed.rename(name, f"new {name}")
    assert list(renamed.columns) == [f"new {name}" for name in source.columns]
    assert list(renamed.columns.values()) == list(source.columns.values())
    after = batch_of(renamed)
    assert list(after) == list(renamed.columns)
    for name, column in before.items():
        new = after[f"new {name}"]
        if name == "sparse":
            assert np.array_equal(new.indices, column.indices) and np.array_equal(new.values, column.values)
        else:
            assert new.tolist() == column.tolist()
    # Names are free again, and operators take and make the new ones.
    swapped = source.rename("a", "c").rename("b", "a").rename("c", "b").scale("b", 2).cast("n", "int8", output="c")
    assert list(swapped.columns) == ["b", "any", "a", "deep", "n", "padded", "pairs", "sparse", "text", "words", "c"]
    batch = batch_of(swapped, "a", "b", "c")
    assert np.array_equal(batch["a"], before["b"]) and np.array_equal(batch["b"], before["a"] * 2)
    images = source.reshape("a", ("n", "n", 1), output="image").rename("image", "photo")
    assert images.columns["photo"].kind == "images" and "image" not in images.columns
    with pytest.raises(sf.ConfigError, match="outputs name `a`, but there are"):
        batch_of(source.rename("a", "c"), "a")


def test_columns_are_concatenated(source: sf.Source) -> None:
    a, b = (np.stack([values[name] for values in ROWS]) for name in "ab")
    n = np.arange(RECORDS)
    made = (
        source.concat(["a", "b"], "rows")
        .concat(["b", "a", "b"], "columns", axis=1)
        .concat(["a", "b"], "stacked", axis=2)
        .concat(["n", "n", "n"], "numbers")
        .pad("any", 4)
        .concat(["any", "numbers"], "mixed")
        .concat(["n"], "one")
    )
    batch = batch_of(made)
    assert np.array_equal(batch["rows"], np.concatenate([a, b], 1))
    assert np.array_equal(batch["columns"], np.concatenate([b, a, b], 2))
    assert np.array_equal(batch["stacked"], np.stack([a, b], -1))
    assert np.array_equal(batch["numbers"], np.stack([n] * 3, -1))
    assert np.array_equal(batch["mixed"], np.concatenate([batch["any"], batch["numbers"]], 1))
    assert np.array_equal(batch["one"], n[:, None])
    # The inputs remain.
    assert np.array_equal(batch["a"], a)


def test_constants_are_in_every_row(source: sf.Source) -> None:
    table = np.arange(6, dtype=np.uint16).reshape(2, 3)
    values: dict[str, Any] = {"i": 7, "f": 0.1, "t": True, "table": table, "nested": [[1.5], [-2]], "double": np.float64(0.1)}
    made = source
    for name, value in values.items():
        made = made.constant(name, value)
    made = made.constant("half", 2, "float16").constant("negative", -1, np.int8).constant("none", [])
    made = made.constant("word", "größe").constant("words", [["a\0", "b"], ["", "\0"]]).compute("y", "i * 2 + n")
    batch = batch_of(made)
    for name, value in values.items():
        dtype = {"i": np.int64, "t": np.bool_, "table": np.uint16, "double": np.float64}.get(name, np.float32)
        assert batch[name].dtype == dtype, name
        assert np.array_equal(batch[name], np.broadcast_to(np.asarray(value, dtype), batch[name].shape)), name
        assert batch[name].shape == (RECORDS, *np.shape(value))
    assert batch["half"].dtype == np.float16 and set(batch["half"]) == {2} and set(batch["negative"]) == {-1}
    assert batch["none"].shape == (RECORDS, 0)
    assert batch["word"].tolist() == ["größe".encode()] * RECORDS
    assert batch["words"].tolist() == [[[b"a\0", b"b"], [b"", b"\0"]]] * RECORDS
    assert np.array_equal(batch["y"], 14 + np.arange(RECORDS))


def test_constants_of_raw_records_and_as_inputs(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for number in range(5):
            writer.write(b"%d" % number)
    source = sf.source(tmp_path / "x.tfrecord").constant("code", b"\x01\x02").constant("name", "web")
    batch = next(iter(sf.Loader(source.decode_raw("code", "uint8", 2), batch_size=5, shuffle=False)))
    assert list(batch) == ["record", "code", "name"]
    assert batch["record"].tolist() == [b"0", b"1", b"2", b"3", b"4"]
    assert batch["code"].tolist() == [[1, 2]] * 5 and batch["name"].tolist() == [b"web"] * 5


CHECKS: list[tuple[Any, str]] = [
    (lambda s: s.pad("z", 3), "pad('z'): there is no column 'z'"),
    (lambda s: s.pad("text", 3), "it takes numbers, but its input is byte strings"),
    (lambda s: s.pad("words", 3), "it takes numbers, but its input is byte strings"),
    (lambda s: s.pad("deep", 3), "it takes rows of values, not rows of such rows; 'deep' is int64 [None, None] ragged"),
    (lambda s: s.pad("sparse", 3), "it takes columns of a fixed shape, and rows of any number of values"),
    (lambda s: s.pad("n", 3), "it takes columns with a dimension; reshape to [1] first"),
    (lambda s: s.pad("a", (1, 2, 3)), "size [1, 2, 3] has to be 1 to 2 numbers, for the first dimensions"),
    (lambda s: s.pad("a", ()), "size [] has to be 1 to 2 numbers, for the first dimensions"),
    (lambda s: s.pad("a", 1), "its shape is [2], larger than size [1] of pad; raise size, or set truncate"),
    (lambda s: s.pad("a", (2, 2)), "its shape is [2, 3], larger than size [2, 2] of pad"),
    (lambda s: s.pad("any", 3, value=0.5), "value is 0.5, which int64 cannot hold"),
    (lambda s: s.pad("any", 3, value=2**63), "value is 9223372036854776000, which int64 cannot hold"),
    (lambda s: s.pad("any", 3, value=2**53 + 1), "value has 9007199254740993, which float64 cannot hold exactly"),
    (lambda s: s.pad("any", 3, value=10**400), "which float64 cannot hold"),
    (lambda s: s.pad("a", (3, 3), value=1e300), "which float32 cannot hold"),
    (lambda s: s.pad("any", 2**70), "size has 1180591620717411303424; it needs whole numbers, 0 or more and below 2**63"),
    (lambda s: s.pad("any", 2**40), "more than 67108864 numbers"),
    (lambda s: s.pad("any", -1), "size has -1; it needs whole numbers, 0 or more"),
    (lambda s: s.pad("any", 3, side="left"), 'side is "start", "end" or "both", not \'left\''),
    (lambda s: s.rename("z", "y"), "rename('z'): there is no column 'z'"),
    (lambda s: s.rename("a", "b"), "there is a column `b` already; choose another name"),
    (lambda s: s.rename("a", "a"), "there is a column `a` already; choose another name"),
    (lambda s: s.rename("a", 3), "a column's name is a str, not 3"),
    (lambda s: s.rename("a", "c").cast("a", "int8"), "there is no column 'a'"),
    (lambda s: s.on_device().rename("a", "c"), "a device casts, normalizes and lays out; call others before on_device()"),
    (lambda s: s.concat([], "y"), "inputs is empty; name one column or more"),
    (lambda s: s.concat("ab", "y"), "inputs is a sequence of columns' names, not 'ab'"),
    (lambda s: s.concat(["a", "z"], "y"), "there is no column 'z'"),
    (lambda s: s.concat(["a", "n"], "y"), "`n` is int64 of shape [], but `a` is float32 of shape [2, 3]; they need one type, and one shape except for dimension 0"),
    (lambda s: s.cast("n", "float32").concat(["a", "n"], "y"), "`n` is float32 of shape [], but `a` is float32 of shape [2, 3]"),
    (lambda s: s.concat(["a", "b"], "y", axis=3), "axis 3 is beyond the dimensions of [2, 3]; at most 2 is"),
    (lambda s: s.concat(["a", "b"], "y", axis=-1), "axis has -1; it needs whole numbers, 0 or more"),
    (lambda s: s.concat(["text", "text"], "y"), "it takes numbers, but its input is byte strings"),
    (lambda s: s.concat(["a", "pairs"], "y"), "`a` and `pairs` are not both of a fixed shape, or both rows of the same depth; pad rows first"),
    (lambda s: s.on_device().concat(["a", "b"], "y"), "call others before on_device()"),
    (lambda s: s.constant("y", 300, "uint8"), "constant('y'): value has 300, which uint8 cannot hold"),
    (lambda s: s.constant("y", 0.5, "int64"), "value is 0.5, which int64 cannot hold"),
    (lambda s: s.constant("y", 2.0**63, "int64"), "value is 9223372036854776000, which int64 cannot hold"),
    (lambda s: s.constant("y", 2**63, "int64"), "which int64 cannot hold"),
    (lambda s: s.constant("y", 1e300), "which float32 cannot hold"),
    (lambda s: s.constant("y", "\ud800"), "value has a str without UTF-8"),
    (lambda s: s.constant("y", "x", "int64"), "value is strings; leave dtype='int64' out"),
    (lambda s: s.constant("y", b"\xff"), "value has bytes that are not UTF-8"),
    (lambda s: s.constant("y", [[1], [1, 2]]), "value is"),
    (lambda s: s.constant("y", {"a": 1}), "value is numbers or strings, not {'a': 1}"),
    (lambda s: s.constant("y", ["a", 1]), "value is numbers or strings"),
    (lambda s: s.constant("y", float("nan")), "value has nan, which is not finite"),
    (lambda s: s.constant("y", np.uint64(2**63)), "dtype 'uint64' is none of bool"),
    (lambda s: s.constant("y", 1, "complex64"), "dtype 'complex64' is none of bool"),
    (lambda s: s.constant(3, 1), "a column's name is a str, not 3"),
    (lambda s: s.on_device().constant("y", 1), "call others before on_device()"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "said"), CHECKS)
def test_a_method_checks_at_once(source: sf.Source, call: Any, said: str) -> None:
    with pytest.raises(sf.ConfigError) as error:
        call(source)
    assert said in str(error.value)


def test_a_state_goes_on_with_the_same_columns(source: sf.Source) -> None:
    def made(value: int) -> sf.Loader:
        changed = source.rename("any", "ids").pad("ids", 5, value=value).constant("name", "web").concat(["a", "b"], "ab")
        return sf.Loader(changed, outputs=["ids", "name", "ab"], batch_size=3, seed=2)

    def bits(batch: sf.Batch) -> tuple[Any, ...]:
        return batch["ids"].tobytes(), batch["name"].tolist(), batch["ab"].tobytes()

    whole = [bits(batch) for batch in made(1)]
    first, second = made(1), made(1)
    iterator = iter(first)
    begun = [bits(next(iterator)) for _ in range(2)]
    second.load_state_dict(first.state_dict())
    assert begun + [bits(batch) for batch in second] == whole
    with pytest.raises(sf.StateError, match=r"operators\[1\] is ids = pad.*value=1.* in the state and .*value=2"):
        made(2).load_state_dict(first.state_dict())
