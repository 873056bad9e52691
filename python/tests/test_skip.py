"""Steps that all ranks leave out: the others are those of the undisturbed order, and the counts say so."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import FEATURES, Dataset, make_dataset
from recount import read_whole_ledger, recount
from resuming import GLOBAL_BATCH, random_order

import shardfeed as sf
from shardfeed.testing import BINARY, Cluster, until

COUNTS = [33, 0, 50, 7, 41, 1]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("skip"), config="session-ttl-ms = 1500\nheartbeat-ms = 300\n") as cluster:
        yield cluster


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "data", COUNTS)


def ids(batch: sf.Batch) -> list[tuple[int, bool]]:
    return [(int(one), bool(valid)) for one, valid in zip(batch["id"], batch.valid, strict=True)]


def open_ranks(data: Dataset, size: int, state: Any = None, *, balance: int | None = None, **options: Any) -> list[sf.Loader]:
    source = sf.source(data.pattern, FEATURES)
    source = source if balance is None else source.balance("id % 7", window=balance)
    options = {"batch_size": GLOBAL_BATCH // size, "resume": state, "restart": False} | options
    return [sf.Loader(source, rank=rank, world_size=size, **options) for rank in range(size)]


def whole(data: Dataset, **options: Any) -> list[list[tuple[int, bool]]]:
    with open_ranks(data, 1, **options)[0] as loader:
        return [ids(batch) for _ in range(2) for batch in loader]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("place", ["one process", "cluster"])
def test_all_other_steps_are_those_of_the_undisturbed_order(
    running: Cluster, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, place: str
) -> None:
    rng = random.Random(f"{place} {seed}")
    order = random_order(rng, shuffle=seed % 3 > 0) | {"seed": seed}
    if seed % 2 == 1:
        order["balance"] = rng.choice([7, 40])
    expected = whole(data, **order)
    steps = len(expected) // 2
    where = running.loader_options() | {"job": f"skip-{seed}"} if place == "cluster" else {}
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    found: dict[int, list[tuple[int, bool]]] = {}
    at, state, left_out, run = 0, None, set[int](), 0
    while at < 2 * steps:
        size, run = rng.choice([1, 2, 3, 4]), run + 1
        ranks = open_ranks(data, size, state, **order, **(where | {"run": f"run-{run}"} if where else {}))
        for _ in range(rng.randint(1, 3)):
            left = steps - at % steps
            if left > 1 and rng.random() < 0.6:
                leaves = rng.randint(1, min(left - 1, 3))
                for each in ranks:
                    each.skip(leaves)
                left_out |= set(range(at, at + leaves))
                at += leaves
                assert {each.step for each in ranks} == {at % steps}
                here = [one for one in left_out if one // steps == at // steps]
                assert {each.left_out for each in ranks} == {GLOBAL_BATCH * len(here)}
            for batches in zip(*ranks, strict=True):
                found[at] = sum(map(ids, batches), [])
                at += 1
                if rng.random() < 0.4 or at % steps == 0:
                    break
            if at >= 2 * steps:
                break
        states = [each.state_dict() for each in ranks]
        assert all(one == states[0] for one in states) and len(json.dumps(states[0])) < 1024
        state = states[0]
        for each in ranks:
            each.close()
    assert found == {at: rows for at, rows in enumerate(expected) if at not in left_out}
    assert left_out
    _, _, said = read_whole_ledger(tmp_path / "ledger")
    assert set(said) == {divmod(at, steps) for at in left_out}
    total = recount(tmp_path / "ledger", tmp_path / "data", epochs=2, tail=order["tail"])
    assert total.is_ok() and total.left_out == GLOBAL_BATCH * len(left_out), total


def test_steps_after_an_older_checkpoint_are_delivered_or_left_out_and_never_both(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss spike at step 7: back to step 4, and without the steps 6 to 8."""
    expected = whole(data, seed=3)
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    loader = open_ranks(data, 1, seed=3, tail="pad")[0]
    found = []
    for batch in loader:
        if batch.step == 3:
            state = loader.state_dict()
        if batch.step == 8:
            break
    loader.load_state_dict(state)
    for batch in loader:
        found.append(ids(batch))
        if batch.step == 5:
            # In the loop: it goes on with the step that is next then.
            loader.skip(3)
    assert found == expected[4:6] + expected[9:len(loader)]
    assert state_of(loader)["epoch"] == 1 and "left_out" not in state_of(loader)
    loader.close()
    total = recount(tmp_path / "ledger", tmp_path / "data", epochs=1)
    assert total.is_ok() and (total.left_out, total.lost) == (36, 0)


def state_of(loader: sf.Loader) -> dict[str, Any]:
    return dict(loader.state_dict())


def test_a_cluster_counts_what_is_left_out(running: Cluster, data: Dataset) -> None:
    where = running.loader_options()
    ranks = open_ranks(data, 2, tail="pad", seed=1, lanes=2, **where | {"run": "one"})

    def epoch() -> dict[str, Any]:
        return dict(running.ask("epoch", "show", "--job", where["job"], "--epoch", "0"))

    for batches in zip(*ranks, strict=True):
        assert {batch.step for batch in batches} == {0}
        break
    for each in ranks:
        each.skip(2)
    for batches in zip(*ranks, strict=True):
        assert {batch.step for batch in batches} == {3}
        break
    assert state_of(ranks[0])["left_out"] == [[1, 3]]
    # A restart from the coordinator's positions has it, too.
    for each in ranks:
        each.close()
    until(lambda: epoch()["steps_done"] == 4, "the final positions are known")
    assert (epoch()["left_out"], epoch()["delivered"]) == (24, 24)
    again = open_ranks(data, 2, "latest", tail="pad", seed=1, lanes=2, **where | {"run": "two"})
    assert {each.step for each in again} == {4} and {each.left_out for each in again} == {24}
    # At other steps the ranks disagree.
    again[0].skip(1)
    next(iter(again[0]))
    again[1].skip(2)
    with pytest.raises(sf.ShardfeedError, match=r"left_out|epoch 0 step"):
        next(iter(again[1]))
    for each in again:
        each.close()
    last = open_ranks(data, 1, again[0].state_dict(), tail="pad", seed=1, lanes=2, **where | {"run": "three"})[0]
    rows = sum(int(batch.valid.sum()) for batch in last)
    until(lambda: epoch()["state"] == "sealed", "the epoch is sealed")
    sealed = epoch()
    assert (sealed["left_out"], sealed["lost"], sealed["delivered"]) == (36, 0, sum(COUNTS) - 36)
    assert rows == sum(COUNTS) - 36 - 12 * 3
    assert "left out" in running.command("epoch", "show", "--job", where["job"], "--epoch", "0")
    last.close()


@pytest.mark.parametrize("mixed", [False, True], ids=["files", "mixture"])
def test_views_of_a_cluster_count_what_was_delivered(running: Cluster, data: Dataset, mixed: bool) -> None:
    where = running.loader_options()
    job = where["job"]
    source = sf.source(data.pattern, FEATURES)
    given = sf.mix({"a": (source, 2), "b": (source, 1)}, epoch=150) if mixed else source
    options: dict[str, Any] = {"batch_size": 12, "lanes": 4, "seed": 7, "restart": False, "shuffle_window": 9, **where}

    def show(*of: str) -> dict[str, Any]:
        return dict(running.ask(*of, "--job", job, "--epoch", "0"))

    delivered: Counter[tuple[str, int]] = Counter()

    def take(loader: sf.Loader, steps: int | None = None) -> int:
        for number, batch in enumerate(loader, 1):
            names = [loader.sources[at] for at in batch.source] if mixed else [""] * batch.rows
            delivered.update((name, int(one) // 1000) for name, one in zip(names, batch["id"], strict=True))
            if number == steps:
                return batch.step
        return -1

    def check(left_out: int) -> None:
        total = sum(delivered.values())
        until(lambda: show("epoch", "show")["delivered"] == total, "all are counted")
        epoch = show("epoch", "show")
        assert epoch["left_out"] == left_out
        for of in epoch["sources"] if mixed else []:
            here = sum(count for (name, _), count in delivered.items() if name == of["name"])
            assert of["delivered"] == here
        assert not mixed or sum(of["left_out"] for of in epoch["sources"]) == left_out
        shards = show("shard", "list")["shards"]
        for shard in shards:
            name, _, path = shard["path"].rpartition(":")
            assert shard["records_done"] == delivered[name, int(path[-len("00.tfrecord") : -len(".tfrecord")])]

    with sf.Loader(given, **options) as loader:
        take(loader, 2)
        loader.skip(3)
        assert take(loader, 1) == 5
        check(36)
        state = loader.state_dict()
    # Another global batch: two segments, both with steps that are left out.
    with sf.Loader(given, **options | {"batch_size": 8, "run": "two"}, resume=state) as loader:
        loader.skip(1)
        assert take(loader, 1) == 7
        check(44)
        assert [show("batch", "show", "--step", str(step))["left_out"] for step in (5, 6, 7)] == [False, True, False]
        text = running.command("batch", "show", "--job", job, "--epoch", "0", "--step", "6")
        assert text.startswith("All ranks left out step 6 of epoch 0: no rank got these samples.")
        take(loader)
        check(44)
        counts = show("shard", "list")["counts"]
        assert counts["done"] == sum(counts.values())


def test_back_to_a_state_in_a_later_epoch_and_on_to_the_same_step(
    running: Cluster, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator knows the position that results; the steps before it were delivered, and are left out now."""
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    where = running.loader_options()
    loader = open_ranks(data, 1, tail="pad", seed=1, **where)[0]
    for batch in loader:
        pass
    for batch in loader:
        if batch.step == 3:
            state = loader.state_dict()
        if batch.step == 7:
            break
    loader.load_state_dict(state)
    loader.skip(2)
    # Twice: one part.
    loader.skip(2)
    assert (loader.step, state_of(loader)["left_out"]) == (8, [[4, 8]])
    assert [batch.step for batch in loader] == [8, 9, 10]
    until(lambda: running.ask("epoch", "show", "--job", where["job"], "--epoch", "1")["state"] == "sealed", "it is sealed")
    epochs = running.ask("epoch", "list", "--job", where["job"])["epochs"]
    # The generation is known as the successor of the one that had the first epoch.
    found = {epoch["epoch"]: (epoch["left_out"], epoch["delivered"], epoch["lost"]) for epoch in epochs}
    assert found | {0: (0, sum(COUNTS), 0), 1: (48, sum(COUNTS) - 48, 0)} == found
    loader.close()
    total = recount(tmp_path / "ledger", tmp_path / "data", epochs=2)
    assert total.is_ok() and (total.left_out, total.lost) == (48, 0)


def test_left_out_steps_keep_their_batch(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another batch size in mid-epoch, after steps were left out; then back before the last of them."""
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    order: dict[str, Any] = {"lanes": 2, "seed": 4, "tail": "pad"}
    loader = open_ranks(data, 1, **order)[0]
    next(iter(loader))
    loader.skip(3)
    next(iter(loader))
    state = state_of(loader)
    loader.close()
    loader = open_ranks(data, 1, state, **order | {"batch_size": 24})[0]
    assert loader.left_out == 36
    next(iter(loader))
    loader.skip(1)
    assert loader.left_out == 60 and state_of(loader)["left_out"] == [[1, 4], [6, 7]]
    loader.reshard(5, 1)
    assert loader.left_out == 36 and state_of(loader)["left_out"] == [[1, 4]]
    assert [batch.step for batch in loader] == [5, 6, 7]
    total = recount(tmp_path / "ledger", tmp_path / "data", epochs=1)
    assert total.is_ok() and (total.left_out, total.lost) == (36, 0), total
    loader.close()


def test_what_skip_refuses(running: Cluster, data: Dataset) -> None:
    loader = open_ranks(data, 1, tail="pad")[0]
    for steps, said in [
        (0, "steps must be at least 1"),
        (11, r"epoch 0 has 11 more steps, and one must remain; leave out at most 10, .* set_epoch\(1\)"),
        (10**9, "epoch 0 has 11 more steps"),
    ]:
        with pytest.raises(sf.ConfigError, match=said):
            loader.skip(steps)
    assert (loader.step, loader.left_out) == (0, 0)
    loader.skip(10)
    assert (loader.step, loader.left_out) == (10, 120)
    assert [batch.step for batch in loader] == [10]
    loader.close()
    with pytest.raises(sf.ShardfeedError, match="closed"):
        loader.skip(1)

    many = sf.Loader(sf.source(data.pattern, FEATURES), batch_size=1, restart=False)
    for _ in range(8):
        many.skip(1)
        next(iter(many))
    with pytest.raises(sf.ConfigError, match="a state names at most 8 parts of an epoch that are left out"):
        many.skip(1)
    assert next(iter(many)).step == 16
    many.close()

    again = open_ranks(data, 1, restart=True)[0]
    with pytest.raises(sf.ConfigError, match="leaves out nothing with restart=True"):
        again.skip(1)
    again.close()
    uneven = open_ranks(data, 1, tail="uneven")[0]
    with pytest.raises(sf.ConfigError, match="needs steps that are the same on all ranks"):
        uneven.skip(1)
    uneven.close()
    where = running.loader_options()
    dynamic = open_ranks(data, 1, mode="dynamic", tail="uneven", **where)[0]
    with pytest.raises(sf.ConfigError, match="needs steps that are the same on all ranks"):
        dynamic.skip(1)
    dynamic.close()


def test_a_state_that_leaves_out_what_it_did_not_reach_is_none(data: Dataset) -> None:
    loader = open_ranks(data, 1)[0]
    loader.skip(2)
    state = state_of(loader)
    for odd in ([[0, 3]], [[1, 1]], [[1, 2], [0, 1]], [[0, 1]] * 9, "all", [[0]]):
        with pytest.raises(sf.StateError, match="not a whole shardfeed state"):
            loader.load_state_dict(state | {"left_out": odd})
    loader.close()


def test_the_plan_of_a_state_counts_them(data: Dataset, tmp_path: Path) -> None:
    with open_ranks(data, 1)[0] as loader:
        next(iter(loader))
        loader.skip(2)
        next(iter(loader))
        state = tmp_path / "state.json"
        state.write_text(json.dumps(loader.state_dict()))
    shown = subprocess.run(
        [BINARY, "plan", "show", "-o", "json", "--state", state, data.pattern], capture_output=True, check=True
    )
    plan = json.loads(shown.stdout)
    assert (plan["steps_taken"], plan["left_out"]) == (4, 2 * GLOBAL_BATCH)
