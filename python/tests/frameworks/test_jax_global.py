"""shardfeed.jax.global_batch: two devices in one process, and two processes; states in Orbax'
checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import mixed
import pytest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import shardfeed as sf


@pytest.fixture
def files(tmp_path: Path) -> str:
    return mixed.write(tmp_path / "data")


@pytest.fixture
def parted() -> NamedSharding:
    assert jax.device_count() == 2
    return NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))


def loader(files: str, **options: Any) -> sf.Loader:
    return mixed.loader(files, outputs=["id", "image"], **options)


@pytest.mark.parametrize("output", ["numpy", "jax"])
def test_one_process_with_two_devices(files: str, parted: NamedSharding, output: Any) -> None:
    each = loader(files, output=output, tail="pad", batch_size=10)
    held = []
    for batch, plain in zip(each, loader(files, tail="pad", batch_size=10), strict=True):
        arrays = sf.jax.global_batch(batch, parted, valid="valid")
        assert set(arrays) == {"id", "image", "valid"}
        assert arrays["image"].shape == (10, 2, 3) and arrays["image"].sharding.is_equivalent_to(parted, 3)
        assert [len(shard.data) for shard in arrays["id"].addressable_shards] == [5, 5]
        held.append((arrays, {"id": plain["id"], "image": plain["image"], "valid": plain.valid}))
    del batch
    for _ in range(3):  # the slots are reused, unless they are still in use
        for _batch in each:
            pass
    for arrays, expected in held:
        for name, array in expected.items():
            np.testing.assert_array_equal(np.asarray(arrays[name]), array)


@pytest.mark.parametrize("output", ["numpy", "jax"])
def test_sources_of_a_mixture(files: str, parted: NamedSharding, output: Any) -> None:
    found = set()
    for batch, plain in zip(mixed.mixture(files, output=output), mixed.mixture(files), strict=True):
        arrays = sf.jax.global_batch(batch, parted, source="source")
        assert set(arrays) == {"id", "source"} and arrays["source"].dtype == np.int32
        assert arrays["source"].sharding.is_equivalent_to(parted, 1)
        np.testing.assert_array_equal(np.asarray(arrays["source"]), plain.source)
        found |= {*np.asarray(arrays["source"]).tolist()}
    assert found == {0, 1}
    with pytest.raises(sf.ConfigError, match="source='id' must be no column's name"):
        sf.jax.global_batch(batch, parted, source="id")
    with pytest.raises(sf.ConfigError, match="source='s' is for a loader of sf.mix"):
        sf.jax.global_batch(next(iter(loader(files))), parted, source="s")


def test_a_sharding_for_each_column(files: str, parted: NamedSharding) -> None:
    whole = NamedSharding(parted.mesh, PartitionSpec())
    batch = next(iter(loader(files)))
    arrays = sf.jax.global_batch(batch, {"id": whole, "image": parted})
    assert arrays["id"].is_fully_replicated and not arrays["image"].is_fully_replicated
    with pytest.raises(sf.ConfigError, match="no sharding for column 'image', only for 'id'"):
        sf.jax.global_batch(batch, {"id": whole})


def test_what_cannot_be_is_refused(files: str, parted: NamedSharding) -> None:
    batch = next(iter(mixed.loader(files)))
    with pytest.raises(sf.ConfigError, match="columns 'at', 'deep', 'list', 'name', 'words' are no arrays"):
        sf.jax.global_batch(batch, parted)
    with pytest.raises(sf.ConfigError, match="needs a Batch"):
        sf.jax.global_batch({"id": batch["id"]}, parted, valid="valid")
    with pytest.raises(OverflowError, match="'id' has 2147483648"):
        sf.jax.global_batch({"id": np.array([0, 2**31])}, parted)


def test_orbax_keeps_the_state(files: str, tmp_path: Path) -> None:
    each = loader(files)
    got = [batch["id"].tolist() for _, batch in zip(range(4), each, strict=False)]
    with ocp.CheckpointManager(tmp_path / "orbax") as manager:
        weights, data = ocp.args.StandardSave({"w": np.ones(3)}), ocp.args.JsonSave(each.state_dict())
        manager.save(4, args=ocp.args.Composite(weights=weights, data=data))
        manager.wait_until_finished()
        state = manager.restore(4, args=ocp.args.Composite(data=ocp.args.JsonRestore())).data
    assert state == each.state_dict()
    got += [batch["id"].tolist() for batch in loader(files, resume=state)]
    assert got == [batch["id"].tolist() for batch in loader(files)]


TRAINER = """
import json, os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import mixed, shardfeed as sf
address, rank, files, state = sys.argv[1:]
jax.distributed.initialize(address, num_processes=2, process_id=int(rank), initialization_timeout=60)
each = mixed.loader(
    files, outputs=["id", "image"], batch_size=4, lanes=2, output="jax", resume=json.loads(state),
)
# Asking JAX for its rank would have started the devices up, which waits for the other process.
assert not jax._src.xla_bridge.backends_are_initialized()
assert (each.rank, each.world_size) == (jax.process_index(), jax.process_count()) == (int(rank), 2)
mesh = Mesh(np.array(jax.devices()), ("data",))
parted = NamedSharding(mesh, PartitionSpec("data"))
gather = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))
total = jax.jit(lambda batch: batch["image"].sum() + batch["valid"].sum())
for batch in each:
    arrays = sf.jax.global_batch(batch, parted, valid="valid")
    assert arrays["image"].shape == (8, 2, 3) and len(jax.devices()) == 4
    ids = np.asarray(gather(arrays["id"])).tolist()
    print("step", json.dumps([batch.step, ids, float(total(arrays)), each.state_dict()]), flush=True)
"""


def two_processes(files: str, state: Any) -> list[Any]:
    """Returns the output of both, which must be equal."""
    first, second = mixed.two_processes(TRAINER, "step", files, json.dumps(state))
    assert first == second
    return first


def test_two_processes(files: str) -> None:
    whole = [batch for batch in loader(files, lanes=2)]
    steps = two_processes(files, None)
    assert [ids for _, ids, _, _ in steps] == [batch["id"].tolist() for batch in whole]
    for (_, _, total, _), batch in zip(steps, whole, strict=True):
        assert total == float(batch["image"].sum() + 8)
    resumed = two_processes(files, steps[2][3])
    assert [step[:3] for step in resumed] == [step[:3] for step in steps[3:]]
