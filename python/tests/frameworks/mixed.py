"""Files with a column of every kind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import shardfeed as sf

ROWS = 48
BATCH = 8

FEATURES: dict[str, Any] = {
    "id": sf.FixedLenFeature((), "int64"),
    "image": sf.FixedLenFeature((2, 3), "float32"),
    "name": sf.FixedLenFeature((), "string"),
    "list": sf.VarLenFeature("int64"),
    "words": sf.VarLenFeature("string"),
    "at": sf.SparseFeature("place", "weight", "float32", 10),
    "padded": sf.FixedLenSequenceFeature((), "int64", allow_missing=True, default_value=-1),
    "deep": sf.RaggedFeature("float32", value_key="value", partitions=[sf.RaggedFeature.RowLengths("length")]),
}

#: Types that `cast` supports; 0 to 5 are exact in all of them.
DTYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip


def row(number: int) -> dict[str, Any]:
    n = number % 4
    return {
        "id": number,
        "image": np.arange(6, dtype=np.float32) + number,
        "name": f"name {number}",
        "list": list(range(n)),
        "words": [f"word {i}" for i in range(n)],
        "place": [(number + i) % 10 for i in range(n)],
        "weight": [float(i) for i in range(n)],
        "padded": [number] * n,
        "value": [float(i) for i in range(3 * n)],
        "length": [3] * n,
    }


def write(folder: Path, rows: int = ROWS) -> str:
    """Writes two shards; returns their pattern."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(2):
        with sf.TFRecordWriter(folder / f"part-{shard}.tfrecord") as writer:
            for number in range(shard, rows, 2):
                writer.write(row(number))
    return str(folder / "part-*.tfrecord")


def loader(files: str, **options: Any) -> sf.Loader:
    defaults: dict[str, Any] = {"features": FEATURES, "batch_size": BATCH, "shuffle_window": 16, "seed": 3}
    return sf.Loader(files, **(defaults | options))


def mixture(files: str, **options: Any) -> sf.Loader:
    """Returns a loader of a mixture of all records, and of those with small numbers."""
    plain = sf.source(files, {"id": FEATURES["id"]})
    sources = {"all": (plain, 2), "few": (plain.filter("id < 10"), 1)}
    return sf.Loader(sf.mix(sources, epoch=ROWS), **({"batch_size": BATCH, "shuffle_window": 16, "seed": 3} | options))


def casts(files: str, output: Any, dtypes: tuple[str, ...] = DTYPES) -> sf.Loader:
    """Returns a loader with one column of each type, named after it, with the values 0 to 5."""
    features = {name: sf.FixedLenFeature((2, 3), "float32") for name in ("image",)}
    source = sf.source(files, features)
    for dtype in dtypes:
        source = source.cast("image", dtype, output=dtype)
    return sf.Loader(source, outputs=list(dtypes), output=output, batch_size=1, shuffle=False)


#: Partitions by kind of description, for the features of `parted` records: `kind` has
#: RaggedFeature's names.
PARTITIONS: dict[str, Callable[[Any], list[Any]]] = {
    "none": lambda kind: [],
    "row lengths": lambda kind: [kind.RowLengths("lengths")],
    "row limits": lambda kind: [kind.RowLimits("limits")],
    "row starts": lambda kind: [kind.RowStarts("starts")],
    "row splits": lambda kind: [kind.RowSplits("splits")],
    "value row ids": lambda kind: [kind.ValueRowIds("ids")],
    "uniform": lambda kind: [kind.UniformRowLength(4)],
    "uniform twice": lambda kind: [kind.UniformRowLength(2), kind.UniformRowLength(2)],
    "lengths, uniform": lambda kind: [kind.RowLengths("lengths"), kind.UniformRowLength(1)],
    "uniform, lengths": lambda kind: [kind.UniformRowLength(2), kind.RowLengths("ones and threes")],
    "lengths, lengths": lambda kind: [kind.RowLengths("twos"), kind.RowLengths("ones and threes")],
    "lengths, uniform, lengths": lambda kind: [
        kind.RowLengths("units"), kind.UniformRowLength(2), kind.RowLengths("ones and threes")
    ],
}  # fmt: skip


def parted(file: Path) -> list[bytes]:
    """Writes records with all kinds of partitions, and returns them; the first record has no
    values."""
    with sf.TFRecordWriter(file) as writer:
        for number in range(6):
            n = number % 4
            writer.write({
                "number": [float(i) for i in range(4 * n)], "string": [f"{number}/{i}" for i in range(4 * n)],
                "lengths": [4] * n, "limits": [4 * i + 4 for i in range(n)], "starts": [4 * i for i in range(n)],
                "splits": [4 * i for i in range(n + 1)], "ids": [i // 4 for i in range(4 * n)], "units": [1] * n,
                "twos": [2] * n if number % 2 else [0, 2 * n] if n else [], "ones and threes": [1, 3] * n,
            })  # fmt: skip
    return [bytes(record) for record in sf.read_records(file)]


def slots_in_use(each: sf.Loader) -> int:
    return int(each.stats()["slots_in_use"])


def buffer(batch: sf.Batch, name: str) -> Any:
    """Returns a column's values in the slot, which frameworks also import by DLPack."""
    return batch._native.column(batch._columns[name].place)[0]


def address(batch: sf.Batch, column: str) -> int:
    """Returns the address of a column's values, from the slot."""
    place = batch._columns[column].place
    return np.frombuffer(memoryview(batch._native.column(place)[0]), np.uint8).ctypes.data


def two_processes(code: str, word: str, *arguments: str) -> list[list[Any]]:
    """Runs code in two processes, with (an address, its number, *arguments); both must succeed.
    Returns, for each, the JSON of its lines that begin with `word`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, address, str(number), *arguments],
            env={**os.environ, **paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], said[0][1][-3000:] + said[1][1][-3000:]
    begin = len(word) + 1
    return [[json.loads(line[begin:]) for line in out.splitlines() if line.startswith(f"{word} ")] for out, _ in said]
