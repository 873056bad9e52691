"""A batch as a dict: changes, copies, and batches made from it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Dataset, ids, loader

import shardfeed as sf


@pytest.fixture
def each(dataset: Dataset) -> sf.Loader:
    return loader(dataset)


@pytest.fixture
def batch(each: sf.Loader) -> sf.Batch:
    return next(iter(each))


def test_it_is_a_dict_of_its_columns(batch: sf.Batch) -> None:
    assert isinstance(batch, dict) and list(batch) == ["id", "image"] and len(batch) == 2
    plain = dict(batch)
    assert type(plain) is dict and plain["image"] is batch["image"] and {**batch}.keys() == batch.keys()
    assert (lambda id, image: image)(**batch) is batch["image"]
    batch["more"] = 7
    del batch["image"]
    assert list(batch.items())[1] == ("more", 7) and "image" not in batch
    with pytest.raises(KeyError):
        batch["image"]
    assert repr(batch) == "Batch(epoch=0, step=0, rows=4, columns=[id, more])"


@pytest.mark.parametrize("copied", [copy.copy, sf.Batch.copy])
def test_a_copy_has_its_place(each: sf.Loader, batch: sf.Batch, copied: Callable[[sf.Batch], sf.Batch]) -> None:
    other = copied(batch)
    other["id"] = batch["id"] + 1
    assert type(other) is sf.Batch and ids(other) != ids(batch) and other["image"] is batch["image"]
    assert (other.epoch, other.step, other.rows) == (0, 0, 4) and other.valid.all()
    assert each.state_after(other) == each.state_dict()


REBUILT: dict[str, Callable[[sf.Batch], Any]] = {
    # As in Hugging Face's Trainer and Accelerate.
    "mapping": lambda batch: type(batch)({name: value for name, value in batch.items()}),
    "pickle": lambda batch: pickle.loads(pickle.dumps(batch)),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("how", REBUILT)
def test_what_is_rebuilt_from_it_has_columns_alone(each: sf.Loader, batch: sf.Batch, how: str) -> None:
    other = REBUILT[how](batch)
    assert type(other) is sf.Batch and list(other) == list(batch)
    assert all(np.array_equal(other[name], batch[name]) for name in batch)
    assert repr(other) == "Batch(columns=[id, image])" and list(copy.copy(other)) == list(batch)
    for ask in (lambda: other.valid, lambda: other.step, lambda: other.epoch, lambda: other.rows,
                lambda: other.provenance, lambda: other.lengths("id"), lambda: each.state_after(other)):  # fmt: skip
        with pytest.raises(sf.ConfigError, match="made from a mapping.*Ask the batch that the Loader gave"):
            ask()


def test_what_it_is_rebuilt_from_may_be_anything() -> None:
    assert sf.Batch() == {} and sf.Batch([("a", 1)], b=2) == {"a": 1, "b": 2}
    assert json.dumps(sf.Batch(a=1)) == '{"a": 1}'
