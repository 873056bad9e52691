"""`Loader(transform=fn)`: a Python function over each batch, in the trainer."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Dataset, embedded, ids, loader

import shardfeed as sf


def doubled(batch: sf.Batch) -> dict[str, Any]:
    return {"id": batch["id"], "twice": batch["image"] * 2, "names": [str(number) for number in batch["id"]]}


def test_the_loop_receives_its_columns(dataset: Dataset) -> None:
    """And all else of the batch. Order and states are those without a transform."""
    job, options = uuid.uuid4().hex[:8], {"provenance": True, "tail": "pad"}
    plain = loader(dataset, job=job, **options)
    each = loader(dataset, job=f"{job}-transformed", transform=doubled, **options)
    assert each.plan_digest == plain.plan_digest
    for batch, before in zip(each, plain, strict=True):
        assert type(batch) is sf.Batch and list(batch) == ["id", "twice", "names"]
        assert np.array_equal(batch["twice"], before["image"] * 2) and len(batch["names"]) == batch.rows == 4
        assert (batch.epoch, batch.step, batch.source) == (before.epoch, before.step, None)
        assert np.array_equal(batch.valid, before.valid)
        assert batch.provenance is not None and before.provenance is not None
        assert all(map(np.array_equal, batch.provenance, before.provenance))
        assert batch.parts is not None and batch.parts.row.tolist() == [0, 1, 2, 3]
        assert each.state_after(batch)["segments"] == plain.state_after(before)["segments"]
        assert copy.copy(batch).step == batch.step
    each.load_state_dict(plain.state_dict())


CHANGED: dict[str, Callable[[sf.Batch], Any]] = {
    "the batch": lambda batch: batch,
    "a copy": lambda batch: batch.copy(),
    "a dict": dict,
    "a batch of its columns": sf.Batch,
}


@pytest.mark.parametrize("how", CHANGED)
def test_it_may_return_the_batch_or_a_dict(dataset: Dataset, how: str) -> None:
    def transform(batch: sf.Batch) -> Any:
        batch["id"] = batch["id"] + 10_000
        return CHANGED[how](batch)

    with loader(dataset, transform=transform) as each:
        got = [[number - 10_000 for number in ids(batch)] for batch in each if each.state_after(batch)]
    assert got == embedded(dataset)


@pytest.mark.embedded_only
def test_rows_of_any_column_are_counted(dataset: Dataset) -> None:
    features = {
        "name": sf.FixedLenFeature((), "string"),
        "list": sf.VarLenFeature("int64"),
        "words": sf.RaggedFeature("string", value_key="name"),
        "image": sf.FixedLenFeature((2, 3), "float32"),
    }
    with loader(dataset, features=features, transform=lambda batch: dict(batch)) as each:
        assert sum(batch.rows for batch in each) == 128


WRONG: dict[str, tuple[Any, str]] = {
    "nothing": (None, r"returned a NoneType at epoch 0, step 1; it must return the columns"),
    "a list": ([1], r"returned a list at epoch 0, step 1"),
    "fewer rows": ({"id": np.zeros(4), "x": np.zeros((3, 2))}, r"column 'x' with shape \(3, 2\) at epoch 0, step 1; .* 4 rows"),
    "a scalar": ({"x": np.float32(1)}, r"column 'x' with shape \(\) at"),
    "a number": ({"x": 1.5}, r"column 'x' with a float at"),
    "a text": ({"x": "four"}, r"column 'x' with a str at"),
    "a dict": ({"x": {"a": 1, "b": 2, "c": 3, "d": 4}}, r"column 'x' with a dict at"),
    "a list of another length": ({"x": [1, 2]}, r"column 'x' with shape \(2,\) at"),
    "no name": ({7: np.zeros(4)}, r"column 7 with shape \(4,\) at .* a text as its name"),
}


@pytest.mark.embedded_only
@pytest.mark.parametrize("wrong", WRONG)
def test_other_results_are_an_error(dataset: Dataset, wrong: str) -> None:
    made, words = WRONG[wrong]
    with loader(dataset, transform=lambda batch: made if batch.step == 1 else batch) as each:
        got = iter(each)
        next(got)
        with pytest.raises(sf.ConfigError, match=words):
            next(got)
        assert each.step == 1


@pytest.mark.embedded_only
@pytest.mark.parametrize("given", [7, "image", {"image": np.abs}])
def test_it_is_a_function(dataset: Dataset, given: Any) -> None:
    with pytest.raises(sf.ConfigError, match="transform= must be a function of a batch"):
        loader(dataset, transform=given)


@pytest.mark.parametrize("resumed", ["in the loop", "from the state"])
def test_a_batch_whose_transform_failed_was_not_received(dataset: Dataset, resumed: str) -> None:
    failures = iter([True, False])

    def transform(batch: sf.Batch) -> sf.Batch:
        if batch.step == 5 and next(failures):
            raise ZeroDivisionError("no image")
        return batch

    each, got = loader(dataset, transform=transform), list[list[int]]()
    with pytest.raises(ZeroDivisionError, match="no image") as error:
        got.extend(ids(batch) for batch in each)
    assert error.value.__notes__ == [
        "raised by transform= at epoch 0, step 5; the batch was not consumed, so it comes again"
    ]
    assert len(got) == each.step == 5
    if resumed == "from the state":
        state = json.loads(json.dumps(each.state_dict()))
        each.close()
        each = loader(dataset, transform=transform, resume=state)
    got.extend(ids(batch) for batch in each)
    each.close()
    assert got == embedded(dataset)


def test_writes_before_a_failure_are_undone_by_loading_the_state(dataset: Dataset) -> None:
    failures = iter([True, False])

    def transform(batch: sf.Batch) -> sf.Batch:
        batch["id"][:] += 1
        if batch.step == 3 and next(failures):
            raise ZeroDivisionError
        return batch

    with loader(dataset, transform=transform) as each:
        got = list[list[int]]()
        with pytest.raises(ZeroDivisionError):
            got.extend(ids(batch) for batch in each)
        each.load_state_dict(each.state_dict())
        got.extend(ids(batch) for batch in each)
    assert [[number - 1 for number in numbers] for numbers in got] == embedded(dataset)


@pytest.mark.embedded_only
def test_a_stop_iteration_does_not_end_the_epoch(dataset: Dataset) -> None:
    with loader(dataset, transform=lambda batch: next(iter([]))) as each:
        with pytest.raises(RuntimeError, match="StopIteration at epoch 0, step 0"):
            next(iter(each), None)
        assert (each.epoch, each.step) == (0, 0)


@pytest.mark.embedded_only
def test_the_error_for_an_option_of_torch_names_it(dataset: Dataset) -> None:
    with pytest.raises(TypeError, match="did you mean transform"):
        loader(dataset, collate_fn=len)
    with pytest.raises(AttributeError, match=r"Loader\(source, transform=fn\)"):
        sf.source(dataset.pattern).map(len)  # type: ignore[attr-defined]


@pytest.mark.embedded_only
def test_it_gets_arrays_of_the_device(run: Any) -> None:
    ended = run(
        """
def transform(batch):
    assert isinstance(batch["image"], sf.DeviceArray) and isinstance(batch["name"], sf.BytesColumn)
    return {"moved": batch["image"], "name": batch["name"], "list": batch["list"]}

stream = dc.Stream()
here, there = loader(), loader(device="cuda:0", transform=transform)
for ours, theirs in zip(there, here, strict=True):
    assert list(ours) == ["moved", "name", "list"] and ours.step == theirs.step
    assert np.array_equal(dc.on_host(ours["moved"], stream), theirs["image"])
    assert np.array_equal(dc.on_host(ours.valid, stream), theirs.valid)
del ours, theirs
there.close(), here.close()
stream.close()
"""
    )
    ended.is_clean()
