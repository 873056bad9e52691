"""Mixtures of sources that make the same columns from other features, operators and kinds of samples."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mixture_oracle
import numpy as np
import order_oracle
import pytest
from resuming import GLOBAL_BATCH, random_order, resumed_steps
from test_cluster_samples import FEATURES, World, record_parts, rows_of, turns_of
from test_shared_images import png

import shardfeed as sf
from shardfeed import _native
from shardfeed.mixture import record_options
from shardfeed.testing import Cluster, Killer

TTL = "session-ttl-ms = 1500\nheartbeat-ms = 300\n"


def value_sources(source: sf.Source) -> dict[str, sf.Source]:
    """Returns sources of all kinds of samples, which have a column `value`, int64 []."""

    def first(source: sf.Source, name: str) -> sf.Source:
        return source.slice(name, [0], [1]).reshape(name, []).rename(name, "value")

    return {
        "records": source.rename("id", "value"),
        "some": source.filter("id % 3 != 0").compute("value", "id * 2 + 1", "int64"),
        "rows": source.unbatch("label", "score").filter("label > 1").rename("label", "value"),
        "rows-around": first(source.unbatch("score", offsets={"label": (-1, 2)}, edge="repeat"), "label"),
        # An epoch has other packs than another; one variant has the same.
        "packs": first(source.pack("tokens", length=32, block=16, variants=1), "tokens"),
        "packs-of-rows": first(turns_of(source).pack("turns", length=16, block=16, variants=1), "turns"),
        "windows": first(source.window("id", size=3, stride=2, partial="pad"), "id"),
    }


def value_mixture(folder: Path, rng: random.Random, **options: Any) -> sf.Mixture:
    """Returns a mixture of sources of different kinds, of files of their own."""
    kinds = rng.sample(sorted(value_sources(sf.source("none", FEATURES))), 4)
    given = {}
    for number, kind in enumerate(kinds):
        world = World(folder / kind, number, [20, 0, 25 + number], compression=rng.choice([None, "gzip"]))
        given[kind] = (value_sources(world.source())[kind], rng.choice([1, 2, "0.5"]))
    return sf.mix(given, epoch=101, columns=["value"], **options)


def parts_of(batch: sf.Batch, shards: list[str]) -> list[tuple[Any, ...]]:
    """Returns the parts of each row: shard, record, its row, first token and number of tokens of each."""
    row, shard, *others = record_parts(batch)
    of = zip(row, zip((Path(shards[at]).name for at in shard), *others, strict=True), strict=True)
    return [tuple(part for _, part in group) for _, group in itertools.groupby(of, key=lambda one: one[0])]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("unlike"), config=TTL) as cluster:
        yield cluster


@pytest.fixture
def where(running: Cluster) -> dict[str, Any]:
    return running.loader_options()


@pytest.mark.parametrize("seed", range(6))
def test_each_row_is_that_of_its_source(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    mixture = value_mixture(tmp_path, rng)
    alone: dict[str, dict[Any, int]] = {}
    for name, source in mixture.versions:
        with sf.Loader(source, batch_size=1, provenance=True, tail="pad", outputs=["value"], restart=False) as loader:
            alone[name] = {parts_of(batch, loader.shards)[0]: int(batch["value"][0]) for batch in loader}
    order = random_order(rng, shuffle=True) | {"restart": False, "provenance": True}
    with sf.Loader(mixture, batch_size=GLOBAL_BATCH, **order) as loader:
        batches = [batch for _ in range(3) for batch in loader]
        seen = set()
        for batch in batches:
            for row, parts in enumerate(parts_of(batch, loader.shards)):
                name = loader.sources[batch.source[row]]
                assert alone[name][parts] == batch["value"][row], (name, parts)
                seen.add(name)
    assert len(seen) == 4 and list(batches[0]) == ["value"] == list(mixture.columns)
    steps = [rows_of(batch) for batch in batches]

    def ranks(**given: Any) -> sf.Loader:
        return sf.Loader(mixture, **order | given)

    assert resumed_steps(rng, ranks, rows_of, len(steps), 5) == steps


@pytest.mark.parametrize("seed", range(2))
def test_a_cluster_delivers_the_batches_of_one_process(
    running: Cluster, where: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    mixture = value_mixture(tmp_path, random.Random(seed))
    order = {"seed": 3, "batch_size": 12, "restart": False, "shuffle_window": 20, "interleave": 3}

    def batches(**of: Any) -> list[Any]:
        with sf.Loader(mixture, **order, **of) as loader:
            return [(rows_of(batch), batch.source.tolist()) for _ in range(2) for batch in loader]

    alone = batches()
    assert alone == batches(fallback=False, **where)
    with Killer(running.workers[0], seed):
        assert alone == batches(**where | {"job": f"{where['job']}-killed"})
    here = {"coordinator": where["coordinator"], "job": f"{where['job']}-here", "worker": tmp_path / "none.sock", "timeout": 3}
    assert alone == batches(**where | here)


def test_ranks_have_the_same_operators(running: Cluster, where: dict[str, Any], tmp_path: Path) -> None:
    a, b = (World(tmp_path / name, 1, [30]).source() for name in "ab")
    options: dict[str, Any] = {"batch_size": 4, "world_size": 2, "restart": False, **where}

    def mixture(expression: str) -> sf.Mixture:
        other = b.compute("value", expression, "int64")
        return sf.mix({"a": (a.rename("id", "value"), 1), "b": (other, 1)}, epoch=40, columns=["value"])

    with sf.Loader(mixture("id"), rank=0, **options) as one:
        assert next(iter(one)) is not None
        with sf.Loader(mixture("id + 1"), rank=1, **options) as two, pytest.raises(sf.ShardfeedError, match="mixture"):
            next(iter(two))


def photo(rng: np.random.Generator) -> bytes:
    return rng.integers(0, 256, (6, 5, 3), dtype=np.uint8).tobytes()


def test_names_and_order_of_features_change_nothing(tmp_path: Path) -> None:
    """Also the draws of random operators, and strings, ragged, padded and sparse columns."""
    features: dict[str, Any] = {
        "photo": sf.FixedLenFeature((), "string"),
        "tags": sf.VarLenFeature("string"),
        "steps": sf.FixedLenSequenceFeature((), "int64", allow_missing=True),
        "boxes": sf.RaggedFeature("float32", partitions=[sf.RaggedFeature.UniformRowLength(4)]),
        "lang": sf.FixedLenFeature((), "string", b"en"),
    }
    #: New names sort in another order.
    names = {"photo": "0", "tags": "z-tags", "steps": "a", "boxes": "m", "lang": "1"}
    rng = np.random.default_rng(3)
    records = []
    for number in range(40):
        record = {
            "photo": photo(rng),
            "tags": [f"tag {number}-{tag}".encode() for tag in range(number % 4)],
            "steps": list(range(number % 5)),
            "boxes": rng.random(4 * (number % 3), np.float32).tolist(),
        }
        records.append(record if number % 5 == 0 else record | {"lang": b"de"})
    for folder, named in (("plain", {name: name for name in names}), ("other", names)):
        (tmp_path / folder).mkdir()
        for shard in range(2):
            with sf.TFRecordWriter(tmp_path / folder / f"{shard}.tfrecord") as writer:
                for record in records[shard::2]:
                    writer.write({named[name]: value for name, value in record.items()})

    def source(folder: str, named: dict[str, str]) -> sf.Source:
        made = sf.source(str(tmp_path / folder / "*"), {named[name]: feature for name, feature in features.items()})
        made = made.decode_raw(named["photo"], "uint8", shape=(6, 5, 3)).random_crop(named["photo"], (3, 2))
        for name, other in named.items():
            made = made if name == other else made.rename(other, name)
        return made

    plain = source("plain", {name: name for name in names})

    def batches(second: sf.Source, first: sf.Source = plain) -> list[Any]:
        mixture = sf.mix({"a": (first, 1), "b": (second, 2)}, epoch=90)
        with sf.Loader(mixture, batch_size=7, seed=1, restart=False) as loader:
            return [[rows_of(batch), batch.source.tolist()] for _ in range(2) for batch in loader]

    other = source("other", names)
    expected = batches(plain)
    assert batches(other) == expected
    assert batches(plain, other) == expected
    assert batches(other, other) == expected


def test_stages_change_and_add_operators(tmp_path: Path) -> None:
    a, b, c = (World(tmp_path / name, number, [30]).source() for number, name in enumerate("abc"))
    options: dict[str, Any] = {"batch_size": 10, "restart": False, "shuffle": False, "provenance": True}

    def named(source: sf.Source, expression: str = "id") -> sf.Source:
        return source.compute("value", expression, "int64")

    def mixture(*stages: sf.Stage, of_b: str = "id") -> sf.Mixture:
        given = {"b": (named(b, of_b), 1), "a": (a.rename("id", "value"), 1)}
        return sf.mix(given, epoch=20, columns=["value"], stages=stages)

    with sf.Loader(mixture(), **options) as loader:
        first = [batch["value"].tolist() for batch in loader]
        state = loader.state_dict()
    spec = hashlib.sha256(_native.record_spec(record_options(named(b), ["value"]))).hexdigest()
    numbers = {"digest": order_oracle.order_digest([30]), "n": 30, "m": 10}
    begun = [{"first_epoch": 0, "sources": [{"name": "a", **numbers}, {"name": "b", **numbers, "record_spec": spec}]}]
    assert state["stages"] == mixture_oracle.stages_digest(begun)
    # In one epoch more nothing changes but the values of b; c has features of its own.
    later = sf.Stage(1, {"a": 1, "b": (named(b, "0 - id"), 1), "c": (c.unbatch("label").rename("label", "value"), 1)}, 30)
    for grown in (mixture(later), pickle.loads(pickle.dumps(mixture(later)))):
        with sf.Loader(grown, resume=state, **options) as loader:
            batch = next(iter(loader))
            assert loader.sources == ["a", "b", "c"]
            of = np.array([loader.sources[of] for of in batch.source])
            # The second ten records of b, which continues.
            assert (batch["value"][of == "b"] <= -10).all() and (of == "b").any()
            assert {*batch["value"][of == "c"]} <= set(range(9)) and (of == "c").any()
    # The order of the dict has no influence, and a stage that is begun keeps its operators.
    turned = sf.mix({"a": (a.rename("id", "value"), 1), "b": (named(b), 1)}, epoch=20, columns=["value"])
    with sf.Loader(turned, **options) as loader:
        assert [batch["value"].tolist() for batch in loader] == first
        loader.load_state_dict(state)
    with pytest.raises(sf.StateError, match="mixture whose stages until epoch 1 have the digest"):
        sf.Loader(mixture(of_b="id + 1"), resume=state, **options)
    # So does the filter of a source, although it leaves as many samples.
    folds = [
        sf.mix({"a": (a.filter(f"ordinal % 5 != {fold}"), 1), "b": (b, 1)}, epoch=20) for fold in range(2)
    ]
    with sf.Loader(folds[0], **options) as loader:
        next(iter(loader))
        fold = loader.state_dict()
    sf.Loader(folds[0], resume=fold, **options).close()
    with pytest.raises(sf.StateError, match="mixture whose stages until epoch 0 have the digest"):
        sf.Loader(folds[1], resume=fold, **options)
    # The features and operators of the first source by name are those of the job.
    changed = sf.mix({"b": (named(b), 1), "a": (named(a, "id + 1"), 1)}, epoch=20, columns=["value"])
    with pytest.raises(sf.StateError, match="operators"):
        sf.Loader(changed, resume=state, **options)


def test_a_source_that_decodes_images_or_has_more_columns_joins_later(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    photos = rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    for name in ("raw", "png"):
        with sf.TFRecordWriter(tmp_path / name) as writer:
            for number, pixels in enumerate(photos):
                writer.write({"photo": pixels.tobytes() if name == "raw" else png(pixels), "id": number})
    features: dict[str, Any] = {"photo": sf.FixedLenFeature((), "string")}
    raw = sf.source(str(tmp_path / "raw"), features).decode_raw("photo", "uint8", shape=(8, 8, 3))
    coded = sf.source(str(tmp_path / "png"), features | {"id": sf.FixedLenFeature((), "int64")}).decode_image("photo").crop("photo", (8, 8))
    options: dict[str, Any] = {"batch_size": 6, "restart": False, "shuffle": False}
    with sf.Loader(sf.mix({"raw": (raw, 1)}, epoch=12), **options) as loader:
        list(loader)
        state = loader.state_dict()
    later = sf.mix({"raw": (raw, 1)}, epoch=12, columns=["photo"], stages=[sf.Stage(1, {"raw": 1, "png": (coded, 1)}, 24)])
    with sf.Loader(later, resume=state, **options) as loader:
        rows = [(int(source), row) for batch in loader for source, row in zip(batch.source, batch["photo"], strict=True)]
    for source in (0, 1):
        np.testing.assert_array_equal([row for of, row in rows if of == source], photos)


def test_costs_may_differ_by_source(tmp_path: Path) -> None:
    sources = {kind: value_sources(World(tmp_path / kind, 4, [60]).source())[kind] for kind in ("records", "rows", "packs")}
    mixture = sf.mix({name: (source, 1) for name, source in sources.items()}, epoch=120, columns=["value"])
    costs = {"records": "id % 50", "rows": "label * 5", "packs": "sum_squares"}
    with sf.Loader(mixture.balance(costs, window=60), batch_size=6, lanes=6, restart=False) as loader:
        balanced = [row for batch in loader for row in rows_of(batch)]
    with sf.Loader(mixture, batch_size=6, lanes=6, restart=False) as loader:
        assert sorted(balanced) == sorted(row for batch in loader for row in rows_of(batch))
    with pytest.raises(sf.ConfigError, match=r"source 'packs': .*sum_squares"):
        mixture.balance("len(tokens)")
    with pytest.raises(sf.ConfigError, match="a cost for each source: packs, records, rows; it names records"):
        mixture.balance({"records": "id"})
    with pytest.raises(sf.ConfigError, match="balanced already"):
        mixture.balance(costs).balance(costs)
    floats = mixture.balance(costs | {"rows": "label * 0.5"})
    with pytest.raises(sf.ConfigError, match="an integer in one source of the mixture and a float in another"):
        sf.Loader(floats, batch_size=6)


def test_errors_name_the_source_or_the_file(tmp_path: Path) -> None:
    a, b = (World(tmp_path / name, 1, [9, 9]).source() for name in "ab")

    def mix(other: sf.Source, **options: Any) -> sf.Mixture:
        return sf.mix({"a": (a.rename("id", "value"), 1), "b": (other, 1)}, epoch=20, **options)

    with pytest.raises(sf.ConfigError, match=r"column 'value' is int64 \[\] in source 'a' and float32 \[\] in source 'b'"):
        mix(b.compute("value", "id"), columns=["value"])
    with pytest.raises(sf.ConfigError, match=r"column 'value' is int64 \[\] in source 'a' and missing in source 'b'"):
        mix(b)
    with pytest.raises(sf.ConfigError, match="columns: there is no 'id' in source 'a', which has value, label"):
        mix(b, columns=["id"])
    for columns in ("value", [], ["value", "value"], [1]):
        with pytest.raises(sf.ConfigError, match="columns is a list of names, each once"):
            mix(b, columns=columns)
    absent = sf.source(b.files, {"none": sf.FixedLenFeature((), "int64")}).rename("none", "value")
    with (
        sf.Loader(mix(absent, columns=["value"]), batch_size=4) as loader,
        pytest.raises(sf.DataError, match=r"b/part-0\d.tfrecord.*`none`"),
    ):
        next(iter(loader))
    with sf.Loader(mix(b.rename("id", "value")), batch_size=4, outputs=["value", "label"]) as loader:
        assert list(next(iter(loader))) == ["value", "label"]
