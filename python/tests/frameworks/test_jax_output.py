"""output="jax": arrays over the slot's memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import mixed
import numpy as np
import pytest

import shardfeed as sf
from shardfeed.testing import until


@pytest.fixture
def files(tmp_path: Path) -> str:
    return mixed.write(tmp_path / "data")


@pytest.fixture
def x64() -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def test_jax_takes_a_buffer_by_dlpack_without_a_copy(files: str) -> None:
    batch = next(iter(mixed.loader(files)))
    array = jax.dlpack.from_dlpack(mixed.buffer(batch, "image"))
    assert array.unsafe_buffer_pointer() == mixed.address(batch, "image")
    np.testing.assert_array_equal(np.asarray(array), batch["image"].ravel())


def test_arrays_view_the_slot(files: str, x64: None) -> None:
    for batch, plain in zip(mixed.loader(files, output="jax"), mixed.loader(files), strict=True):
        for name in ("id", "image", "padded"):
            array = batch[name]
            assert isinstance(array, jax.Array) and array.dtype == plain[name].dtype
            assert array.unsafe_buffer_pointer() == mixed.address(batch, name)
            np.testing.assert_array_equal(np.asarray(array), plain[name])
        assert isinstance(batch.valid, jax.Array) and batch.valid.dtype == jnp.bool_ and batch.valid.all()
        assert batch.lengths("list").tolist() == (batch["id"] % 4).tolist()


def test_int64_becomes_int32_without_x64(files: str, tmp_path: Path) -> None:
    batch = next(iter(mixed.loader(files, output="jax")))
    plain = next(iter(mixed.loader(files)))
    assert batch["id"].dtype == jnp.int32 and batch["id"].tolist() == plain["id"].tolist()
    assert batch["image"].unsafe_buffer_pointer() == mixed.address(batch, "image")
    with sf.TFRecordWriter(tmp_path / "large.tfrecord") as writer:
        writer.write({"id": 2**31})
    features = {"id": sf.FixedLenFeature((), "int64")}
    large = sf.Loader(tmp_path / "large.tfrecord", features, batch_size=1, output="jax")
    with pytest.raises(OverflowError, match="column 'id' has 2147483648, which does not fit into int32.*jax_enable_x64"):
        next(iter(large))
    assert large.step == 0


def test_a_slot_is_not_used_again_while_an_array_lives(files: str) -> None:
    each = mixed.loader(files, output="jax", prefetch=1)
    held = [batch["image"] for _ in range(3) for batch in each]
    expected = [np.array(array) for array in held]
    assert mixed.slots_in_use(each) >= len(held) == 18
    for _ in range(5):
        for _batch in each:
            pass
    del _batch
    each.close()
    for array, then in zip(held, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(array), then)
        np.testing.assert_array_equal(np.asarray(jax.jit(lambda x: x + 1)(array)), then + 1)


def test_dropped_arrays_give_their_slots_back(files: str) -> None:
    each = mixed.loader(files, output="jax", prefetch=1)
    held = [batch["image"] for _ in range(3) for batch in each]
    assert mixed.slots_in_use(each) >= len(held)
    del held
    until(lambda: mixed.slots_in_use(each) <= 4, "the slots are free")


@pytest.mark.parametrize("dtype", mixed.DTYPES)
def test_every_type(files: str, dtype: str, x64: None) -> None:
    batch = next(iter(mixed.casts(files, "jax", (dtype,))))
    array = batch[dtype]
    assert array.dtype == jnp.dtype(dtype)
    assert array.unsafe_buffer_pointer() == mixed.address(batch, dtype)
    expected = np.arange(6).reshape(1, 2, 3)
    assert array.astype(jnp.float64).tolist() == (expected > 0 if dtype == "bool" else expected).tolist()


def test_float64_becomes_float32_without_x64(files: str) -> None:
    assert next(iter(mixed.casts(files, "jax", ("float64",))))["float64"].dtype == jnp.float32


def test_other_columns_stay_and_know_the_way(files: str, x64: None) -> None:
    batch = next(iter(mixed.loader(files, output="jax")))
    assert isinstance(batch["name"], sf.BytesColumn) and isinstance(batch["list"], sf.RaggedColumn)
    sparse = batch["at"].to_jax_bcoo()
    assert sparse.shape == (8, 10) and sparse.data.unsafe_buffer_pointer() == mixed.address(batch, "at")
    np.testing.assert_array_equal(np.asarray(sparse.todense()), batch["at"].to_dense())


def test_a_batch_is_a_dict_to_jit(files: str) -> None:
    batch = next(iter(mixed.loader(files, output="jax", outputs=["image", "id"])))
    total = jax.jit(lambda columns: columns["image"].sum())(dict(batch))
    assert float(total) == float(np.asarray(batch["image"]).sum())
