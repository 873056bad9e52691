"""output="torch": tensors over the slot's memory."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import mixed
import numpy as np
import pytest
import torch

import shardfeed as sf
from shardfeed.testing import until


@pytest.fixture
def files(tmp_path: Path) -> str:
    return mixed.write(tmp_path / "data")


def test_tensors_view_the_slot(files: str) -> None:
    arrays = mixed.loader(files)
    for batch, plain in zip(mixed.loader(files, output="torch", tail="pad"), arrays, strict=True):
        for name in ("id", "image", "padded"):
            tensor = batch[name]
            assert isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu"
            assert tensor.data_ptr() == mixed.address(batch, name)
            np.testing.assert_array_equal(tensor.numpy(), plain[name])
        assert (batch["id"].dtype, batch["image"].dtype) == (torch.int64, torch.float32)
        assert batch["image"].shape == (8, 2, 3) and batch["id"].shape == (8,)
        assert batch.valid.dtype == torch.bool and batch.valid.tolist() == plain.valid.tolist()
        assert torch.equal(batch.lengths("padded"), torch.from_numpy(plain.lengths("padded")))
        assert torch.equal(batch.lengths("list"), batch["id"] % 4)


def test_torch_takes_a_buffer_by_dlpack_without_a_copy(files: str) -> None:
    each = mixed.loader(files)
    batch = next(iter(each))
    tensor = torch.from_dlpack(mixed.buffer(batch, "image"))
    assert tensor.data_ptr() == mixed.address(batch, "image") and tensor.dtype == torch.float32
    assert torch.from_dlpack(batch._native.valid()).dtype == torch.bool
    tensor[0] = 5
    assert batch["image"][0, 0, 0] == 5
    del batch
    each.close()
    assert tensor[0] == 5, "it keeps the slot"


def test_writing_to_a_tensor_writes_to_the_batch(files: str) -> None:
    batch = next(iter(mixed.loader(files, output="torch")))
    before = batch["image"].clone()
    batch["image"].add_(1)
    raw = np.frombuffer(memoryview(batch._native.column(batch._columns["image"].place)[0]), np.float32)
    np.testing.assert_array_equal(raw, before.numpy().reshape(-1) + 1)


def test_a_slot_is_not_used_again_while_a_tensor_lives(files: str) -> None:
    each = mixed.loader(files, output="torch", prefetch=1)
    held, expected = [], []
    for _ in range(3):
        for batch in each:
            held.append(batch["image"].view(-1)[1:])  # a view of a view
            expected.append(held[-1].clone())
    del batch
    assert mixed.slots_in_use(each) >= len(held) == 18
    for _ in range(5):
        for batch in each:
            batch["image"].zero_()
    assert all(torch.equal(*pair) for pair in zip(held, expected, strict=True))
    each.close()
    assert all(torch.equal(*pair) for pair in zip(held, expected, strict=True))


def test_dropped_tensors_give_their_slots_back(files: str) -> None:
    each = mixed.loader(files, output="torch", prefetch=1)
    held = [batch["id"] for _ in range(3) for batch in each]
    assert mixed.slots_in_use(each) >= len(held)
    del held
    until(lambda: mixed.slots_in_use(each) <= 4, "the slots are free")


@pytest.mark.parametrize("dtype", mixed.DTYPES)
def test_every_type(files: str, dtype: str) -> None:
    batch = next(iter(mixed.casts(files, "torch", (dtype,))))
    tensor = batch[dtype]
    assert tensor.dtype == getattr(torch, dtype) and tensor.data_ptr() == mixed.address(batch, dtype)
    expected = np.arange(6).reshape(1, 2, 3)
    assert tensor.to(torch.float64).tolist() == (expected > 0 if dtype == "bool" else expected).tolist()


def test_bfloat16_needs_no_other_package(files: str) -> None:
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import mixed, shardfeed as sf\n"
        f"print(next(iter(mixed.casts({files!r}, 'torch', ('bfloat16',))))['bfloat16'].dtype)\n"
        f"try: mixed.casts({files!r}, 'numpy', ('bfloat16',))\n"
        "except sf.ConfigError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent, timeout=120
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "torch.bfloat16" and "install ml_dtypes" in lines[1], done.stderr


def test_a_type_that_torch_lacks_is_refused(files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "uint16")  # as before torch 2.3
    with pytest.raises(sf.ConfigError, match=r"'uint16' is uint16, which torch .* does not have; .*source\.cast"):
        mixed.casts(files, "torch", ("uint16",))


def test_other_columns_stay_and_know_the_way(files: str) -> None:
    batch = next(iter(mixed.loader(files, output="torch")))
    assert isinstance(batch["name"], sf.BytesColumn) and batch["name"][0] == f"name {batch['id'][0]}".encode()
    column = batch["list"]
    jagged = column.to_torch_jagged()
    assert jagged.layout == torch.jagged and jagged.is_nested
    assert jagged.values().data_ptr() == mixed.address(batch, "list")
    assert [row.tolist() for row in jagged.unbind()] == column.tolist()
    with pytest.raises(ValueError, match="one ragged dimension, this column 2"):
        batch["deep"].to_torch_jagged()
    sparse = batch["at"].to_torch_sparse()
    assert sparse.layout == torch.sparse_coo and sparse.shape == (8, 10)
    assert sparse._values().data_ptr() == mixed.address(batch, "at")
    dense = torch.zeros(8, 10)
    for row, number in enumerate(batch["id"].tolist()):
        for i in range(number % 4):
            dense[row, (number + i) % 10] = i
    assert torch.equal(sparse.to_dense(), dense)


@pytest.mark.parametrize("partitions", mixed.PARTITIONS)
def test_partitions_become_jagged(partitions: str, tmp_path: Path) -> None:
    """Compares the innermost rows, over the same memory; the other splits define the rows around
    them."""
    mixed.parted(tmp_path / "x.tfrecord")
    feature = sf.RaggedFeature("float32", "number", mixed.PARTITIONS[partitions](sf.RaggedFeature))
    batch = next(iter(sf.Loader(tmp_path / "x.tfrecord", {"x": feature}, batch_size=6, shuffle=False, output="torch")))
    column, rows = batch["x"], batch["x"].tolist()
    for _ in column.nested_row_splits[1:]:
        splits = column.row_splits
        column, rows = column.inner(), [row for outer in rows for row in outer]
        assert splits[-1] == len(rows)
    jagged = column.to_torch_jagged()
    assert jagged.values().data_ptr() == mixed.address(batch, "x")
    assert [row.tolist() for row in jagged.unbind()] == rows == column.tolist()
    assert torch.nested.to_padded_tensor(jagged, -1.0).tolist() == column.to_dense(-1.0).tolist()
    with pytest.raises(ValueError, match="the rows of this column are values"):
        column.inner()


def test_a_jagged_tensor_keeps_the_slot(files: str) -> None:
    each = mixed.loader(files, output="torch", prefetch=1)
    held = [(batch["list"].to_torch_jagged(), batch["list"].tolist()) for _ in range(2) for batch in each]
    for _ in range(3):
        for batch in each:
            batch["list"].values[:] = -1
    assert all([row.tolist() for row in jagged.unbind()] == rows for jagged, rows in held)


def test_to_moves_what_is_a_tensor(files: str) -> None:
    each = mixed.loader(files, output="torch")
    batch = next(iter(each))
    moved = batch.to("meta")
    assert moved["image"].device.type == moved.valid.device.type == "meta"
    assert moved["name"].tolist() == batch["name"].tolist() and moved.step == batch.step
    assert each.state_after(moved) == each.state_after(batch)
    assert batch.to("cpu")["image"] is batch["image"]
    with pytest.raises(sf.ConfigError, match='use output="torch"'):
        next(iter(mixed.loader(files))).to("cpu")


def test_a_batch_takes_other_columns(files: str) -> None:
    batch = next(iter(mixed.loader(files, output="torch")))
    shared = copy.copy(batch)
    shared["image"] = batch["image"] * 2
    shared["new"] = 1
    del shared["list"]
    assert "list" in batch and "new" not in batch and set(batch) - set(shared) == {"list"}
    assert torch.equal(shared["image"], batch["image"] * 2) and shared["id"].data_ptr() == batch["id"].data_ptr()
    with pytest.raises(KeyError):
        shared["list"]
    assert pickle.loads(pickle.dumps(dict(batch)))["name"].tolist() == batch["name"].tolist()
    again = pickle.loads(pickle.dumps(batch))
    assert torch.equal(again["image"], batch["image"]) and list(again) == list(batch)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"output": "pytorch"}, "output='pytorch' is none of 'numpy', 'torch', 'jax', 'tf'"),
        ({"output": "torch", "device": torch.device("meta")}, "device='meta' is neither"),
        ({"output": "tf", "device": torch.device("cuda", 1)}, 'output="tf" is not for GPUs'),
        ({"output": "jax"}, 'output="jax" needs jax, which is not installed here: pip install jax'),
    ],
)
def test_what_cannot_be_is_refused(files: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(sf.ConfigError, match=said):
        mixed.loader(files, **options)


def test_importing_shardfeed_imports_no_framework() -> None:
    code = "import shardfeed, sys; print([m for m in ('torch', 'jax', 'tensorflow') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
