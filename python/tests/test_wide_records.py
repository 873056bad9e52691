"""Jobs with thousands of features and operators: their batches, and the comparison of two such
jobs."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf
from shardfeed.testing import Cluster

WIDTH = 10_000
RECORDS = 24
NAMES = [f"a/feature/with/a/name/of/some/length/{number:05}" for number in range(WIDTH)]
KINDS = {0: sf.FixedLenFeature((), "int64"), 1: sf.FixedLenFeature((2,), "float32"), 2: sf.VarLenFeature("int64")}


def value(number: int, record: int) -> Any:
    """Returns the value of feature `number`: some records have no value of the variable ones."""
    if number % 3 == 0:
        return number * 100 + record
    if number % 3 == 1:
        return np.array([number, record], np.float32)
    return [record] * (record % 3)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("wide")
    with sf.TFRecordWriter(folder / "wide.tfrecord") as writer:
        for record in range(RECORDS):
            writer.write({name: value(number, record) for number, name in enumerate(NAMES)})
    return str(folder / "wide.tfrecord")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def features() -> dict[str, Any]:
    return {name: KINDS[number % 3] for number, name in enumerate(NAMES)}


#: Numbers of the int64 columns with an operator: every tenth.
DOUBLED = range(0, WIDTH, 30)


def multiplied(source: sf.Source, number: int, factor: int = 2) -> sf.Source:
    return source.compute(f"doubled/{number}", f"{factor} * `{NAMES[number]}`", "int64")


def source(files: str, features: dict[str, Any], numbers: Iterable[int]) -> sf.Source:
    return functools.reduce(multiplied, numbers, sf.source(files, features))


@pytest.mark.parametrize("where", ["embedded", "cluster"])
def test_ten_thousand_features(files: str, running: Cluster, where: str) -> None:
    options: dict[str, Any] = {}
    if where == "cluster":
        options = {"coordinator": running.address, "worker": running.socket(), "job": "wide"}
    seen = []
    wide = source(files, features(), DOUBLED)
    with sf.Loader(wide, batch_size=8, seed=3, shuffle_window=8, provenance=True, **options) as each:
        for batch in each:
            records = batch.provenance[1].tolist()
            seen += records
            assert len(batch) == WIDTH + len(DOUBLED)
            for number, name in enumerate(NAMES):
                column = batch[name]
                if number % 3 == 0:
                    assert column.tolist() == [number * 100 + record for record in records], name
                elif number % 3 == 1:
                    assert column.tolist() == [[number, record] for record in records], name
                else:
                    assert column.tolist() == [[record] * (record % 3) for record in records], name
            for number in DOUBLED:
                assert batch[f"doubled/{number}"].tolist() == [2 * (number * 100 + record) for record in records]
    assert sorted(seen) == list(range(RECORDS))


@pytest.mark.parametrize("where", ["embedded", "cluster"])
def test_a_filter_of_ten_thousand_features(files: str, running: Cluster, where: str) -> None:
    options: dict[str, Any] = {}
    if where == "cluster":
        options = {"coordinator": running.address, "worker": running.socket(), "job": "wide-filter"}
    began = time.monotonic()
    wide = sf.source(files, features()).filter(f"`{NAMES[0]}` >= 6").filter(f"len(`{NAMES[2]}`) > 0")
    seen = []
    with sf.Loader(wide, batch_size=4, seed=3, **options) as each:
        for batch in each:
            assert len(batch) == WIDTH
            seen += batch[NAMES[0]].tolist()
    assert sorted(seen) == [record for record in range(6, RECORDS) if record % 3]
    # Parsing one feature fewer at a time took most of an hour.
    assert time.monotonic() - began < 120


def test_another_spec_under_the_same_name_names_what_differs(files: str, running: Cluster) -> None:
    options = {"coordinator": running.address, "worker": running.socket(), "job": f"named-{uuid.uuid4().hex[:6]}"}
    first = {name: KINDS[number % 3] for number, name in enumerate(NAMES[:3_000])}
    with sf.Loader(source(files, first, DOUBLED[:2]), batch_size=4, **options):
        pass
    other = dict(first)
    del other[NAMES[7]]
    other[NAMES[0]] = sf.FixedLenFeature((), "int64", default_value=5)
    changed = multiplied(source(files, other, DOUBLED[:1]), 30, factor=3)
    with pytest.raises(sf.JobIdentityError) as caught:
        sf.Loader(changed, batch_size=4, seed=9, **options)
    said = str(caught.value)
    assert "seed is 0 there and 9 here" in said, said
    assert f"feature `{NAMES[0]}` is fixed_len int64 [] there and fixed_len int64 [] default [5] here" in said, said
    assert f"feature `{NAMES[7]}` is fixed_len float32 [2] there and absent here" in said, said
    assert 'operators[1] is doubled/30 = compute/1(dtype="int64", expression="2 * ' in said, said
    assert "record_spec" not in said, said
    with sf.Loader(source(files, first, DOUBLED[:2]), batch_size=4, **options) as again:
        assert len(next(iter(again))) == 3_002


def test_more_than_a_job_may_have(tmp_path: Path, files: str) -> None:
    long = {f"{number:06}" + "x" * 400: KINDS[0] for number in range(8_000)}
    with pytest.raises(sf.ConfigError, match=r"have \d+ bytes; a job has at most 3145728"):
        sf.Loader(files, long, batch_size=4)
    many = {f"{number:06}": KINDS[0] for number in range(65_537)}
    with pytest.raises(sf.ConfigError, match="at most 65536 features and operators"):
        sf.Loader(files, many, batch_size=4)
