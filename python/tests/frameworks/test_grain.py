"""shardfeed.grain.IterDataset: states in Grain's own checkpoints, also where Grain fetches
ahead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import mixed
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as v1
import pytest
from absl import flags

import shardfeed as sf


@pytest.fixture
def files(tmp_path: Path) -> str:
    return mixed.write(tmp_path / "data")


def ids(elements: Any, most: int = 100) -> list[list[int]]:
    return [np.asarray(element["id"]).tolist() for _, element in zip(range(most), elements, strict=False)]


def order(files: str, *, epochs: int = 3, **options: Any) -> list[list[int]]:
    each = mixed.loader(files, **options)
    return [batch["id"].tolist() for epoch in each.epochs(epochs) for batch in epoch]


Make = Callable[[Any], Any]
PIPELINES: dict[str, Make] = {
    "as it is": lambda dataset: dataset,
    "map": lambda dataset: dataset.map(lambda element: {"id": element["id"]}),
    "thread ahead": lambda dataset: grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=4),
    "map, thread ahead, map": lambda dataset: grain.experimental.ThreadPrefetchIterDataset(
        dataset.map(lambda element: element), prefetch_buffer_size=8
    ).map(lambda element: {"id": element["id"]}),
    "batches of batches": lambda dataset: grain.experimental.ThreadPrefetchIterDataset(
        dataset.map(lambda element: {"id": element["id"]}).batch(2), prefetch_buffer_size=2
    ),
    "shuffled again": lambda dataset: grain.experimental.WindowShuffleIterDataset(
        dataset.map(lambda element: {"id": element["id"].copy()}), window_size=4, seed=1
    ),
}


@pytest.mark.parametrize("taken", [0, 1, 4, 6, 7])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_grains_checkpoint_goes_on_with_the_next_element(
    files: str, pipeline: str, taken: int, tmp_path: Path
) -> None:
    make = PIPELINES[pipeline]
    whole = ids(make(sf.grain.IterDataset(mixed.loader(files), epochs=3)))
    iterator = iter(make(sf.grain.IterDataset(mixed.loader(files), epochs=3)))
    got = ids(iterator, taken)
    with ocp.CheckpointManager(tmp_path / "checkpoint") as manager:
        weights = ocp.args.StandardSave({"w": np.ones(3)})
        manager.save(taken, args=ocp.args.Composite(weights=weights, data=grain.checkpoint.CheckpointSave(iterator)))
        manager.wait_until_finished()
        state = json.loads((tmp_path / f"checkpoint/{taken}/data/process_0-of-1.json").read_text())
        # Later progress of the first one must not matter.
        after = ids(iterator, 3)
        again = iter(make(sf.grain.IterDataset(mixed.loader(files), epochs=3)))
        restore = grain.checkpoint.CheckpointRestore(again)
        manager.restore(taken, args=ocp.args.Composite(data=restore))
    rest = ids(again)
    assert got + rest == whole and rest[:3] == after
    if pipeline == "as it is":
        assert whole == order(files)
    # The same, into an iterator that has begun.
    iterator.set_state(state)
    assert ids(iterator) == rest


def test_the_checkpointables_of_orbax_are_ours_too(files: str, tmp_path: Path) -> None:
    """Orbax's newer interface calls the iterator itself."""
    make = PIPELINES["thread ahead"]
    iterator = iter(make(sf.grain.IterDataset(mixed.loader(files))))
    assert ids(iterator, 8) == order(files)[:8]
    with v1.training.Checkpointer(tmp_path / "checkpoint") as checkpointer:
        checkpointer.save_checkpointables(8, {"state": {"w": np.ones(3)}, "data": iterator})
        again = iter(make(sf.grain.IterDataset(mixed.loader(files))))
        checkpointer.load_checkpointables(8, {"data": again})
    assert ids(again, 10) == order(files)[8:]


def test_a_state_of_grain_is_one_of_shardfeed(files: str) -> None:
    """Also at another world size, and in the opposite direction."""
    iterator = iter(sf.grain.IterDataset(mixed.loader(files, lanes=2)))
    whole = order(files, lanes=2)
    assert ids(iterator, 7) == whole[:7]
    halves = [
        mixed.loader(files, batch_size=4, rank=rank, world_size=2, resume=iterator.get_state()) for rank in range(2)
    ]
    rest = [left + right for left, right in zip(*(ids(half) for half in halves), strict=True)]
    assert rest == whole[7:12]
    each = mixed.loader(files, lanes=2, resume=halves[0].state_dict())
    assert ids(sf.grain.IterDataset(each), 3) == whole[12:15]


def test_epochs_end_or_do_not(files: str, tmp_path: Path) -> None:
    assert len(ids(sf.grain.IterDataset(mixed.loader(files), epochs=2))) == 12
    assert len(ids(sf.grain.IterDataset(mixed.loader(files)), 100)) == 100
    assert ids(sf.grain.IterDataset(mixed.loader(files), epochs=0)) == []
    with pytest.warns(UserWarning, match="every epoch has 0 steps"):
        nothing = mixed.loader(files, batch_size=1000)
    assert ids(sf.grain.IterDataset(nothing)) == []


def test_elements_are_trees_of_arrays(files: str) -> None:
    each = mixed.loader(files, tail="pad", batch_size=20)
    plain = mixed.loader(files, tail="pad", batch_size=20)
    for element, batch in zip(sf.grain.IterDataset(each, epochs=1, valid="valid"), plain, strict=True):
        assert list(element) == [*batch, "valid"]
        np.testing.assert_array_equal(element["image"], batch["image"])
        assert element["valid"].tolist() == batch.valid.tolist()
        assert element["list"].tolist() == batch["list"].tolist()
    with pytest.raises(sf.ConfigError, match="'id' is the name of a column already"):
        sf.grain.IterDataset(each, valid="id")


def test_sources_of_a_mixture(files: str) -> None:
    each, plain = mixed.mixture(files), mixed.mixture(files)
    found = set()
    for element, batch in zip(sf.grain.IterDataset(each, epochs=1, valid="valid", source="source"), plain, strict=True):
        assert list(element) == ["id", "valid", "source"]
        assert element["id"].tolist() == batch["id"].tolist()
        assert element["source"].dtype == np.int32 and element["source"].tolist() == batch.source.tolist()
        found |= {*element["source"].tolist()}
    assert found == {0, 1}
    for options in ({"source": "id"}, {"valid": "x", "source": "x"}):
        with pytest.raises(sf.ConfigError, match="is the name of a column already"):
            sf.grain.IterDataset(each, **options)
    with pytest.raises(sf.ConfigError, match="source='s' is for a loader of sf.mix"):
        sf.grain.IterDataset(mixed.loader(files), source="s")


def test_each_iterator_begins_where_the_dataset_does(files: str) -> None:
    each = mixed.loader(files)
    whole = order(files)
    next(iter(each))
    dataset = grain.experimental.ThreadPrefetchIterDataset(sf.grain.IterDataset(each), prefetch_buffer_size=2)
    first = iter(dataset)
    assert ids(first, 2) == whole[1:3]
    second = iter(dataset)
    assert ids(second, 8) == whole[1:9]
    with pytest.raises(sf.ConfigError, match="another iterator of this dataset has begun since"):
        ids(first)
    second.close()
    with pytest.raises(ValueError, match="closed"):
        next(second)


def test_processes_and_copies_of_grain_are_refused(files: str) -> None:
    """Each would deliver all batches again."""
    dataset = sf.grain.IterDataset(mixed.loader(files))
    with pytest.raises(TypeError, match="a Loader speaks for its rank"):
        next(iter(grain.experimental.multithread_prefetch(dataset, num_threads=2, buffer_size=2)))
    options = grain.MultiprocessingOptions(num_workers=1)
    flags.FLAGS.mark_as_parsed()  # as a program of absl has done by then
    with pytest.raises(TypeError, match="a Loader speaks for its rank.*make the loader in that process"):
        next(iter(dataset.mp_prefetch(options)))


def test_a_transform_makes_the_elements(files: str) -> None:
    each = mixed.loader(files, transform=lambda batch: {"id": batch["id"] + 1, "valid": batch.valid})
    assert ids(sf.grain.IterDataset(each), 2) == [[number + 1 for number in step] for step in order(files, epochs=1)[:2]]
    with pytest.raises(sf.ConfigError, match="'valid' is the name of a column of transform="):
        next(iter(sf.grain.IterDataset(each, valid="valid")))
