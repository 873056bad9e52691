"""Objects for other processes, in arguments and results of `mp.spawn`: declarations, columns,
errors."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FEATURES, Dataset, ids, loader

import shardfeed as sf

RAGGED = sf.RaggedFeature
DECLARED: dict[str, Any] = {
    "fixed": sf.FixedLenFeature((2, 3), "float32", default_value=[0.5] * 6),
    "any": sf.VarLenFeature("string"),
    "padded": sf.FixedLenSequenceFeature((), "int64", allow_missing=True, default_value=-1),
    "parted": RAGGED("float32", "v", [RAGGED.RowLengths("n"), RAGGED.UniformRowLength(2)]),
    "sparse": sf.SparseFeature("i", "v", "float32", 10),
}


def again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def test_declarations(tmp_path: Path) -> None:
    sf.write_table(tmp_path / "table", np.arange(4), {"weight": np.ones(4, np.float32)})
    features = DECLARED | {"image": sf.FixedLenFeature((), "string"), "id": sf.FixedLenFeature((), "int64")}
    declared = sf.source(["a", "b"], features, compression="gzip", records=7)
    source = (
        declared.decode_image("image", 3, size=(8, 8)).random_crop("image", 4)
        .lookup("id", sf.Table(tmp_path / "table"), missing=0.0).compute("sum", "id + 1", "float32")
        .on_device().normalize("image", 0.5, 0.25)
    )  # fmt: skip
    for copied in (again, copy.copy, copy.deepcopy):
        assert copied(DECLARED) == DECLARED
        assert copied(source) == source != declared and repr(copied(source)) == repr(source)
        assert copied(source).columns == source.columns
        assert copied(source).cast("image", "float16") == source.cast("image", "float16")


def ids_of(source: sf.Source, options: dict[str, Any]) -> list[int]:
    """Runs in a process that was spawned with these arguments."""
    with sf.Loader(source, **options) as each:
        return [number for batch in each for number in ids(batch)]


def test_a_spawned_process_makes_the_loader(dataset: Dataset) -> None:
    source = sf.source(dataset.pattern, FEATURES).cast("image", "float16").reshape("image", (6,))
    options = {"batch_size": 4, "tail": "uneven"}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (got,) = pool.starmap(ids_of, [(source, options)])
    assert sorted(got) == sorted(dataset.ids)


@pytest.fixture
def batch(tmp_path: Path) -> sf.Batch:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for n in range(3):
            writer.write({"v": [float(i) for i in range(4 * n)], "n": [2] * n, "i": list(range(4 * n)), "s": ["ab"] * n,
                          "name": f"row {n}", "id": n})  # fmt: skip
    features = DECLARED | {
        "parted": RAGGED("float32", "v", [RAGGED.RowLengths("n"), RAGGED.UniformRowLength(2)]),
        "sparse": sf.SparseFeature("i", "v", "float32", 20), "s": sf.VarLenFeature("string"),
        "name": sf.FixedLenFeature((), "string"),
    }  # fmt: skip
    return next(iter(sf.Loader(tmp_path / "x.tfrecord", features, batch_size=3, shuffle=False)))


def test_columns_are_copies_that_outlive_their_batch(batch: sf.Batch) -> None:
    for copied in (again, copy.deepcopy):
        got = copied(dict(batch))
        assert list(got) == list(batch)
        for name in ("fixed", "padded"):
            assert np.array_equal(got[name], batch[name]) and not np.shares_memory(got[name], batch[name])
        for name in ("parted", "any", "s", "name"):
            assert type(got[name]) is type(batch[name]) and got[name].tolist() == batch[name].tolist()
            assert not np.shares_memory(got[name].values, batch[name].values)
        assert np.array_equal(got["sparse"].to_dense(), batch["sparse"].to_dense())
        assert got["sparse"].shape == batch["sparse"].shape == (3, 20)
        # Includes the uniform row lengths for TensorFlow.
        assert got["parted"]._lengths == batch["parted"]._lengths


def test_a_batch_is_its_columns(batch: sf.Batch) -> None:
    got = again(batch)
    assert type(got) is sf.Batch and list(got) == list(batch)
    assert got["name"].tolist() == batch["name"].tolist() and not np.shares_memory(got["fixed"], batch["fixed"])


def test_errors_keep_where_they_were(dataset: Dataset) -> None:
    file = dataset.file(2)
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(sf.CorruptRecordError) as raised, loader(dataset, tail="uneven") as each:
        list(each)
    error = again(raised.value)
    assert type(error) is sf.CorruptRecordError and str(error) == str(raised.value)
    assert (error.file, error.offset, error.ordinal) == (raised.value.file, raised.value.offset, raised.value.ordinal)
    assert error.file is not None and error.file.endswith(file.name) and error.ordinal == 39
    refused = again(sf.ConfigError("said"))
    assert isinstance(refused, ValueError) and str(refused) == "said"
