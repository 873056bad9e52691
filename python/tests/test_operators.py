"""Operators in the loader: the example's boards, declared twice, and invalid declarations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf

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
    other = boards.planes(sf.source(files, boards.FEATURES)).compute("target", "score", "float64")
    with pytest.raises(sf.StateError, match="record_spec"):
        sf.Loader(other, outputs=["planes", "flags", "target"], batch_size=100, resume=first.state_dict())


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
    too_long = sf.source(files, sequences.FEATURES).padded_batch("tokens", 400)
    with pytest.raises(sf.FeatureError, match="numbers, more than the 400 of padded_batch"):
        list(sf.Loader(too_long, batch_size=64))


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


def batch_of(source: sf.Source, **options: Any) -> sf.Batch:
    return next(iter(sf.Loader(source, batch_size=4, shuffle=False, **options)))


@pytest.fixture
def source(file: str) -> sf.Source:
    return sf.source(file, FEATURES)


def test_columns_beside_operators(source: sf.Source) -> None:
    batch = batch_of(
        source.decode_raw("raw", np.int16, (2, 3), output="table")
        .transpose("table", (1, 0), output="turned")
        .one_hot("n", 4, output="hot")
        .normalize("n", [1, 2], [2, 4], dtype="float64")
        .cast("table", "float16", output="half")
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


def test_what_is_in_between_counts_for_the_budget(source: sf.Source) -> None:
    def one_of(depth: int) -> sf.Source:
        return source.cast("f", "int32").one_hot("f", depth, output="h").select("h", [1], output="y")

    with pytest.raises(sf.ConfigError, match="memory_budget"):
        batch_of(one_of(2**22), outputs=["y"], memory_budget="64MiB")
    batch = batch_of(one_of(2**10), outputs=["y"], memory_budget="64MiB")
    assert batch["y"].tolist() == [[0.0], [1.0], [0.0], [0.0]]


def test_raw_records_can_be_decoded(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for number in range(5):
            writer.write(np.full(4, number, np.float32).tobytes())
    source = sf.source(tmp_path / "x.tfrecord").decode_raw("record", "float32", 4, output="x")
    batch = next(iter(sf.Loader(source, outputs=["x"], batch_size=5, shuffle=False)))
    assert list(batch) == ["x"] and batch["x"].tolist() == [[float(n)] * 4 for n in range(5)]


def test_bfloat16_needs_its_type(source: sf.Source) -> None:
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(sf.ConfigError, match="install ml_dtypes"):
            batch_of(source.cast("f", "bfloat16"), outputs=["f"])
        return
    batch = batch_of(source.cast("f", "bfloat16"), outputs=["f"])
    assert batch["f"].dtype == ml_dtypes.bfloat16


def test_what_a_batch_cannot_have_is_refused(file: str, source: sf.Source) -> None:
    with pytest.raises(sf.ConfigError, match="outputs is a list of columns' names, not 'fn'"):
        batch_of(source, outputs="fn")
    with pytest.raises(sf.ConfigError, match="3 is not bytes"):
        sf.Loader(file, {"x": sf.FixedLenFeature((), "string", default_value=3)}, batch_size=1)
    with pytest.raises(sf.ConfigError, match="outputs name `z`, but there are `f`, `n`, `raw`, `v`"):
        batch_of(source, outputs=["z"])
    with pytest.raises(sf.FeatureError, match=r"x\.tfrecord.*the string has 12 bytes"):
        batch_of(source.decode_raw("raw", "float32", 4))
    with pytest.raises(sf.ConfigError, match="`raw`.: its images differ in size from row to row, and nothing makes"):
        batch_of(source.decode_image("raw"))
