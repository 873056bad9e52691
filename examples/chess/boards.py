"""Chess positions in a common training format: packed bits in, signed planes and a score out.

    python examples/chess/boards.py [FOLDER] [--records N]

A record has a `board` of 194 bytes: 1,536 bits for 24 planes of 8 x 8 squares (12 for own pieces,
12 for those of the other side), 10 bits of flags (castling, side, ...), and 6 unused bits.
`score` is the result of a search in centipawns, or with `mate` the number of moves to mate. The
worker unpacks, selects, signs and scores; the trainer gets arrays. All operators are declared; none
runs in Python.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf

PLANES = 24
SQUARE_BITS = 8 * 8 * PLANES
FLAGS = 10
BOARD_BYTES = 194
BATCH = 512

#: Sign +1 for own pieces, -1 for the other side; the planes alternate between the sides.
ORDER = [plane for piece in range(12) for plane in (piece, piece + 12)]
SIGNS = [1.0, -1.0] * 12

#: An immediate mate is worth 1, one in B moves A; no score is worth more than A.
A, B, K = 0.8, 30.0, 400.0
SCORE = (
    f"where(mate, sign(score) * ({A} + (1 - {A}) / ({B} - 1) * max(0, {B} - abs(score))), "
    f"{A} * tanh(score / {K}))"
)

FEATURES: dict[str, Any] = {
    "board": sf.FixedLenFeature((), "string"),
    "score": sf.FixedLenFeature((), "int64"),
    "mate": sf.FixedLenFeature((), "int64", default_value=0),
}


def planes(source: sf.Source) -> sf.Source:
    """Returns the source with `planes` float32 [8, 8, 24] and `flags` float32 [10]."""
    return (
        source.decode_raw("board", "uint8", (BOARD_BYTES,))
        .unpack_bits("board", output="bits")
        .slice("bits", [0], [SQUARE_BITS], output="planes")
        .reshape("planes", (8, 8, PLANES))
        .select("planes", ORDER, axis=2)
        .scale("planes", SIGNS)
        .slice("bits", [SQUARE_BITS], [FLAGS], output="flags")
        .cast("flags", "float32")
    )


def loader(files: str, **options: Any) -> sf.Loader:
    """Returns the loader: `planes` float32 [512, 8, 8, 24], `flags` float32 [512, 10], `target`
    float64 [512]."""
    source = planes(sf.source(files, FEATURES)).compute("target", SCORE, "float64")
    given: dict[str, Any] = {"batch_size": BATCH} | options
    return sf.Loader(source, outputs=["planes", "flags", "target"], **given)


def positions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Returns artificial positions: random bits, with scores as of a search."""
    rng = np.random.default_rng(seed)
    boards = rng.integers(0, 256, (count, BOARD_BYTES), dtype=np.uint8)
    mates = rng.random(count) < 0.1
    scores = np.where(mates, rng.integers(-40, 41, count), rng.normal(0, 300, count)).astype(np.int64)
    rows: list[dict[str, Any]] = []
    for board, score, mate in zip(boards, scores, mates, strict=True):
        row: dict[str, Any] = {"board": board.tobytes(), "score": int(score)}
        rows.append(row | ({"mate": 1} if mate else {}))
    return rows


def write(folder: Path, count: int, files: int = 4) -> str:
    """Writes positions and returns the pattern of their files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = positions(count)
    for number in range(files):
        with sf.TFRecordWriter(folder / f"boards-{number:02}.tfrecord") as writer:
            for row in rows[number::files]:
                writer.write(row)
    return str(folder / "boards-*.tfrecord")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--records", type=int, default=200_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        files = write(arguments.folder or Path(temporary), arguments.records)
        begun, rows, shape = time.perf_counter(), 0, ()
        for batch in loader(files):
            rows, shape = rows + batch.rows, batch["planes"].shape
        took = time.perf_counter() - begun
    print(f"{rows:,} positions in {took:.2f} s, {rows / took:,.0f}/s; planes {shape}")


if __name__ == "__main__":
    main()
