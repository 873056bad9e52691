"""A stage of a mixture that ended needs no files: their counts are kept on the host, or in an index."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_mixtures import World

import shardfeed as sf
from shardfeed.testing import until

OPTIONS: dict[str, Any] = {"batch_size": 4, "seed": 3, "shuffle_window": 8, "restart": False}


def mixed(a: sf.Source, b: sf.Source, more: sf.Source) -> sf.Mixture:
    """`a` is in epochs 0 and 1 only, as its first version is."""
    return sf.mix({"a": (a, 1), "b": (b, 3)}, epoch=40, stages=[sf.Stage(2, {"a": (more, 1), "b": 1})])


def ids(loader: sf.Loader, epochs: int) -> list[list[int]]:
    return [batch["id"].tolist() for epoch in loader.epochs(epochs) for batch in epoch]


MADE: dict[str, Callable[[sf.Source], sf.Source]] = {
    "records": lambda source: source,
    "filter": lambda source: source.filter("id % 5 != 0"),
}


@pytest.fixture(params=MADE)
def sources(request: pytest.FixtureRequest, tmp_path: Path) -> list[sf.Source]:
    world = World(tmp_path / "data")
    return [MADE[request.param](world.source(counts)) for counts in ([30, 7], [25, 40], [20])]


def folder(source: sf.Source) -> Path:
    return Path(source.files[0]).parent


def started(mixture: sf.Mixture, epoch: int, steps: int, **options: Any) -> tuple[Any, list[list[int]]]:
    """Returns a state after these steps of an epoch, and the rest of epochs 2 and 3."""
    with sf.Loader(mixture, **OPTIONS, **options) as loader:
        ids(loader, epoch)
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
        state = loader.state_dict()
        return state, [batch["id"].tolist() for batch in batches if batch.epoch == 2] + ids(loader, 4)


@pytest.mark.parametrize("steps", [0, 3])
def test_a_restart_after_a_stage_needs_none_of_its_files(sources: list[sf.Source], steps: int) -> None:
    mixture = mixed(*sources)
    state, rest = started(mixture, 2, steps)
    shutil.rmtree(folder(sources[0]))
    with sf.Loader(mixture, resume=state, **OPTIONS) as loader:
        assert ids(loader, 4) == rest
        # Another start finds the same.
        state = loader.state_dict()
    with sf.Loader(mixture, **OPTIONS) as loader:
        loader.load_state_dict(state)
        assert loader.epoch == 4 and next(iter(loader)).epoch == 4
        assert len(loader.shards) == 5
        loader.set_epoch(1)
        with pytest.raises(sf.DatasetNotFoundError, match=r"source `a` of the mixture: .* in epoch 1; from epoch 2 on"):
            next(iter(loader))
        loader.set_epoch(2)
        assert next(iter(loader)).epoch == 2


def test_before_a_stage_ended_its_files_are_needed(sources: list[sf.Source]) -> None:
    mixture = mixed(*sources)
    state, _ = started(mixture, 1, 3)
    shutil.rmtree(folder(sources[0]))
    for resume in (state, None):
        with sf.Loader(mixture, resume=resume, **OPTIONS) as loader, pytest.raises(sf.DatasetNotFoundError, match="source `a`"):
            next(iter(loader))
    # A source of the last stage never ends.
    shutil.rmtree(folder(sources[1]))
    with pytest.raises(sf.DatasetNotFoundError):
        sf.Loader(mixture, resume=state, **OPTIONS)


def test_another_host_finds_them_in_the_index(sources: list[sf.Source], tmp_path: Path) -> None:
    index = tmp_path / "index"
    index.mkdir()
    indexed = mixed(*[replace(source, index=str(index)) for source in sources])
    state, rest = started(indexed, 2, 3)
    until(lambda: len(list(index.glob("files-1/*"))) == 3, "the files are kept")
    shutil.rmtree(folder(sources[0]))
    with sf.Loader(indexed, resume=state, cache_dir=tmp_path / "other", **OPTIONS) as loader:
        assert ids(loader, 4) == rest
    with pytest.raises(sf.DatasetNotFoundError, match="no file|match"):
        sf.Loader(mixed(*sources), resume=state, cache_dir=tmp_path / "third", **OPTIONS)


def test_files_that_a_failed_start_found_are_not_kept(sources: list[sf.Source]) -> None:
    mixture = mixed(*sources)
    state, rest = started(mixture, 2, 3)
    next(folder(sources[0]).iterdir()).unlink()
    with pytest.raises(sf.StateError, match="stage"):
        sf.Loader(mixture, resume=state, **OPTIONS)
    shutil.rmtree(folder(sources[0]))
    with sf.Loader(mixture, resume=state, **OPTIONS) as loader:
        assert ids(loader, 4) == rest


def test_other_files_under_the_same_names_are_not_taken_for_them(sources: list[sf.Source]) -> None:
    mixture = mixed(*sources)
    state, _ = started(mixture, 2, 3)
    gone = folder(sources[0])
    file = sorted(gone.iterdir())[0]
    with sf.TFRecordWriter(file) as writer:
        for number in range(3):
            writer.write({"id": number})
    # Another job of this host reads the other file.
    sources[0].with_files(str(file)).count()
    shutil.rmtree(gone)
    with pytest.raises(sf.DatasetNotFoundError):
        sf.Loader(mixture, resume=state, **OPTIONS)
