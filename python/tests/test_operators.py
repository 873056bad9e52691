"""Operators in the loader: the example's boards, declared twice, and invalid declarations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf
from shardfeed import operators as op

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES / "chess"), str(EXAMPLES / "tokens")]
import boards  # noqa: E402
import sequences  # noqa: E402


def expected(row: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, float]:
    """Computes the example's result for a position, with numpy."""
    bits = np.unpackbits(np.frombuffer(row["board"], np.uint8))
    planes = bits[: boards.SQUARE_BITS].reshape(8, 8, 24)[..., boards.ORDER] * np.array(boards.SIGNS)
    flags = bits[boards.SQUARE_BITS :][: boards.FLAGS]
    score = float(row["score"])
    far = boards.A + (1 - boards.A) / (boards.B - 1) * max(0.0, boards.B - abs(score))
    target = np.sign(score) * far if "mate" in row else boards.A * np.tanh(score / boards.K)
    return planes.astype(np.float32), flags.astype(np.float32), target


def test_boards_become_planes_and_scores(tmp_path: Path) -> None:
    rows = boards.positions(1200)
    files = boards.write(tmp_path, len(rows), files=3)
    ordered = [row for number in range(3) for row in rows[number::3]]
    batches = list(boards.loader(files, shuffle=False, batch_size=300))
    assert [list(batch) for batch in batches] == [["planes", "flags", "target"]] * 4
    assert batches[0]["planes"].dtype == np.float32 and batches[0]["planes"].shape == (300, 8, 8, 24)
    assert batches[0]["target"].dtype == np.float64
    for batch, begin in zip(batches, range(0, 1200, 300), strict=True):
        for place, row in enumerate(ordered[begin : begin + 300]):
            planes, flags, target = expected(row)
            assert np.array_equal(batch["planes"][place], planes)
            assert np.array_equal(batch["flags"][place], flags)
            assert batch["target"][place] == pytest.approx(target, rel=1e-14)


def test_a_state_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    files = boards.write(tmp_path, 2000)
    whole = [batch["planes"].tobytes() for batch in boards.loader(files, batch_size=100)]
    first = boards.loader(files, batch_size=100)
    begun = [next(it)["planes"].tobytes() for it in [iter(first)] for _ in range(7)]
    second = boards.loader(files, batch_size=100, resume=first.state_dict())
    assert begun + [batch["planes"].tobytes() for batch in second] == whole
    other = [*boards.OPERATORS[:-1], op.compute("target", "score", "float64")]
    with pytest.raises(sf.StateError, match="record_spec"):
        sf.Loader(
            files,
            boards.FEATURES,
            operators=other,
            outputs=["planes", "flags", "target"],
            batch_size=100,
            resume=first.state_dict(),
        )


def test_sequences_are_filled_up(tmp_path: Path) -> None:
    files = sequences.write(tmp_path, 300, files=3)
    ordered = [number for file in range(3) for number in range(file, 300, 3)]
    rows = [row for batch in sequences.loader(files, length=400, shuffle=False, batch_size=50)
            for row in zip(batch["inputs"].copy(), batch["targets"].copy(), strict=True)]
    assert len(rows) == 300
    for number, (inputs, targets) in zip(ordered, rows, strict=True):
        whole = np.zeros(401, np.int64)
        tokens = sequences.sequence(number)[:401]
        whole[: len(tokens)] = tokens
        assert inputs.dtype == np.int32 and np.array_equal(inputs, whole[:-1])
        assert np.array_equal(targets, whole[1:])
    too_long = [op.padded_batch("tokens", 400)]
    with pytest.raises(sf.FeatureError, match="numbers, more than the 400 of padded_batch"):
        list(sequences.loader(files, operators=too_long, outputs=None))
    with pytest.raises(sf.ConfigError, match="columns of any number of values"):
        sequences.loader(files, operators=[*too_long, op.padded_batch("tokens", 4)], outputs=None)


@pytest.fixture
def file(tmp_path: Path) -> str:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for number in range(4):
            raw = np.arange(6, dtype=np.int16) * number
            writer.write({"raw": raw.tobytes(), "n": [number, 3], "f": float(number), "v": [1] * number})
    return str(tmp_path / "x.tfrecord")


FEATURES: dict[str, Any] = {
    "raw": sf.FixedLenFeature((), "string"),
    "n": sf.FixedLenFeature((2,), "int64"),
    "f": sf.FixedLenFeature((), "float32"),
    "v": sf.VarLenFeature("int64"),
}


def batch_of(file: str, *operators: op.Operator, **options: Any) -> sf.Batch:
    loader = sf.Loader(file, FEATURES, operators=operators, batch_size=4, shuffle=False, **options)
    return next(iter(loader))


def test_columns_beside_operators(file: str) -> None:
    batch = batch_of(
        file,
        op.decode_raw("raw", np.int16, (2, 3), output="table"),
        op.transpose("table", (1, 0), output="turned"),
        op.one_hot("n", 4, output="hot"),
        op.normalize("n", [1, 2], [2, 4], dtype="float64"),
        op.cast("table", "float16", output="half"),
    )
    assert list(batch) == ["f", "n", "raw", "v", "table", "turned", "hot", "half"]
    table = np.arange(6, dtype=np.int16).reshape(2, 3) * np.arange(4, dtype=np.int16)[:, None, None]
    assert batch["table"].dtype == np.int16 and np.array_equal(batch["table"], table)
    assert np.array_equal(batch["turned"], table.transpose(0, 2, 1))
    assert batch["n"].tolist() == [[(n - 1) / 2, 0.25] for n in range(4)]
    assert batch["hot"].shape == (4, 2, 4) and batch["half"].dtype == np.float16
    # Parsed columns beside them are unchanged, including inputs of operators.
    assert batch["raw"][1] == np.arange(6, dtype=np.int16).tobytes()
    assert batch["v"].lengths().tolist() == [0, 1, 2, 3]


def test_what_is_in_between_counts_for_the_budget(file: str) -> None:
    huge = [op.one_hot("f", 2**22, output="h"), op.select("h", [1], output="y")]
    whole = op.cast("f", "int32")
    with pytest.raises(sf.ConfigError, match="memory_budget"):
        batch_of(file, whole, *huge, outputs=["y"], memory_budget="64MiB")
    few = [op.one_hot("f", 2**10, output="h"), op.select("h", [1], output="y")]
    batch = batch_of(file, whole, *few, outputs=["y"], memory_budget="64MiB")
    assert batch["y"].tolist() == [[0.0], [1.0], [0.0], [0.0]]


def test_raw_records_can_be_decoded(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for number in range(5):
            writer.write(np.full(4, number, np.float32).tobytes())
    loader = sf.Loader(
        str(tmp_path / "x.tfrecord"),
        operators=[op.decode_raw("record", "float32", 4, output="x")],
        outputs=["x"],
        batch_size=5,
        shuffle=False,
    )
    batch = next(iter(loader))
    assert list(batch) == ["x"] and batch["x"].tolist() == [[float(n)] * 4 for n in range(5)]


def test_bfloat16_needs_its_type(file: str) -> None:
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(sf.ConfigError, match="install ml_dtypes"):
            batch_of(file, op.cast("f", "bfloat16"), outputs=["f"])
        return
    batch = batch_of(file, op.cast("f", "bfloat16"), outputs=["f"])
    assert batch["f"].dtype == ml_dtypes.bfloat16


def test_what_cannot_be_is_refused(file: str) -> None:
    for operator, said in [
        (op.cast("nothing", "int32"), r"operator 0 \(output `nothing`\): there is no column `nothing`"),
        (op.cast("v", "int32"), "it takes columns of a fixed shape"),
        (op.cast("raw", "int32"), "decode them first"),
        (op.compute("y", "f +", "float32"), "at byte 3"),
        (op.compute("y", "n + 1", "float32"), "one number a row"),
        (op.compute("y", "0 < f < 3", "float32"), "compares twice in a row"),
        (op.normalize("n", 0, 1e-50), "which is 0 as float32"),
        (op.scale("n", [], 0.0), "scale has 0 values"),
    ]:
        with pytest.raises(sf.ConfigError, match=said):
            batch_of(file, operator)
    for make, said in [
        (lambda: op.cast("f", "complex64"), "none of bool"),
        (lambda: op.normalize("f", 0, float("nan")), "not finite"),
        (lambda: op.reshape("f", [1.5]), "whole numbers"),
        (lambda: op.slice("f", [-1], [1]), "0 or more"),
        (lambda: op.cast(3, "int32"), "name is a str"),  # type: ignore[arg-type]
        (lambda: op.cast("f", None), "none of bool"),
    ]:
        with pytest.raises(sf.ConfigError, match=said):
            make()
    with pytest.raises(sf.ConfigError, match="make operators with the functions"):
        batch_of(file, "cast")  # type: ignore[arg-type]
    with pytest.raises(sf.ConfigError, match="operators is a list"):
        sf.Loader(file, FEATURES, operators=op.cast("f", "int32"), batch_size=1)  # type: ignore[arg-type]
    with pytest.raises(sf.ConfigError, match="outputs is a list of columns' names, not 'fn'"):
        batch_of(file, outputs="fn")
    with pytest.raises(sf.ConfigError, match="3 is not bytes"):
        sf.Loader(file, {"x": sf.FixedLenFeature((), "string", default_value=3)}, batch_size=1)
    with pytest.raises(sf.ConfigError, match="outputs name `z`, but there are `f`, `n`, `raw`, `v`"):
        batch_of(file, outputs=["z"])
    with pytest.raises(sf.FeatureError, match=r"x\.tfrecord.*the string has 12 bytes"):
        batch_of(file, op.decode_raw("raw", "float32", 4))
