"""The loader's behavior: epochs, states, world sizes, tails."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import order_oracle
import pytest
from conftest import FEATURES, Dataset, example, ids, loader, make_dataset, valid_ids

import shardfeed as sf


def run(dataset: Dataset, world_size: int, epochs: int = 1, **options: Any) -> list[list[int]]:
    """Returns global batches: the ids of all ranks, in rank order, step by step."""
    ranks = [loader(dataset, rank=r, world_size=world_size, **options) for r in range(world_size)]
    steps: list[list[int]] = []
    for _ in range(epochs):
        for batches in zip(*ranks, strict=True):
            steps.append([number for batch in batches for number in ids(batch)])
    return steps


def test_values_are_those_that_were_written(dataset: Dataset) -> None:
    for batch in loader(dataset):
        assert batch["image"].shape == (4, 2, 3) and batch["image"].dtype == np.float32
        assert batch["id"].dtype == np.int64 and batch.valid.dtype == np.bool_
        for row, number in enumerate(ids(batch)):
            expected = example(number)["image"].reshape(2, 3)
            np.testing.assert_array_equal(batch["image"][row], expected)


@pytest.mark.parametrize("tail", ["drop", "pad", "uneven"])
@pytest.mark.parametrize(("world_size", "shuffle"), [(1, True), (2, True), (3, True), (3, False)])
def test_every_rank_delivers_what_the_oracle_says(
    dataset: Dataset, tail: str, world_size: int, shuffle: bool
) -> None:
    order = {"shuffle": shuffle, "interleave": 3, "block_length": 1 if shuffle else 2}
    ranks = [
        loader(dataset, tail=tail, rank=r, world_size=world_size, lanes=3, batch_size=3, **order)
        for r in range(world_size)
    ]
    provenance = sf.Loader(dataset.pattern, batch_size=1)
    for epoch in range(2):
        plan = order_oracle.epoch_plan(
            {
                "counts": dataset.counts, "seed": 7, "epoch": epoch,
                "window": 16, "tail": tail, "limit": None, "segments": [[3, 3 * world_size, 0]],
                "world_size": world_size, **order,
            }
        )  # fmt: skip
        for rank, each in enumerate(ranks):
            got = [
                [[n // 1000, n % 1000, bool(v)] for n, v in zip(ids(b), b.valid, strict=True)]
                for b in each
            ]
            expected = [step[rank] for step in plan["batches"] if step[rank]]
            assert got == expected
    assert provenance.records == sum(dataset.counts)


@pytest.mark.embedded_only
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_an_epoch_that_begins_inside_a_file_reads_it_from_two_places(
    tmp_path: Path, compression: str | None
) -> None:
    dataset = make_dataset(tmp_path / "one", [300], compression)
    order = {"interleave": 4, "block_length": 1, "shuffle": True}
    each = loader(dataset, lanes=1, batch_size=4, tail="pad", prefetch=2, **order)
    begins = []
    for epoch in range(3):
        case = {
            "counts": [300], "seed": 7, "epoch": epoch, "window": 16, "tail": "pad", "limit": None,
            "segments": [[1, 4, 0]], "world_size": 1, **order,
        }  # fmt: skip
        plan = order_oracle.epoch_plan(case)
        expected = [ordinal for step in plan["batches"] for _, ordinal, _ in step[0]]
        assert [number for batch in each for number in ids(batch)] == expected
        begins.append(order_oracle.make_line(case, order_oracle.order_digest([300]))[0][2])
    assert all(begin > 0 for begin in begins), begins
    # Each part is read by one stream, a few chunks ahead, and not again for every sample.
    plain = make_dataset(tmp_path / "plain", [300])
    assert each.stats()["read_bytes"] < 10 * 3 * plain.file(0).stat().st_size


def test_an_identity_has_the_digests_of_the_counts_and_of_the_stored_bytes(dataset: Dataset) -> None:
    checks = loader(dataset).state_dict()["checks"].split(",")
    order_digest = order_oracle.order_digest(dataset.counts).hex()
    for check, digest in [(checks[1], order_digest), (checks[2], content_digest(dataset))]:
        assert check == "#" + hashlib.sha256(digest.encode()).hexdigest()[:8]


def content_digest(dataset: Dataset) -> str:
    """Returns the dataset's digest, from the stored bytes alone."""
    whole = hashlib.sha256()
    for shard, count in enumerate(dataset.counts):
        data, at, each = dataset.file(shard).read_bytes(), 0, hashlib.sha256()
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            crc = data[at + 12 + length : at + 16 + length]
            each.update(data[at : at + 8] + crc)
            at += 16 + length
        whole.update(count.to_bytes(8, "little") + each.digest())
    return whole.hexdigest()


def test_an_epoch_ends_and_the_next_one_is_another_order(dataset: Dataset) -> None:
    each = loader(dataset)
    first = [ids(batch) for batch in each]
    assert len(first) == len(each) == 130 // 4
    assert (each.epoch, each.step) == (1, 0)
    second = [ids(batch) for batch in each]
    assert len(second) == len(first) and second != first
    each.set_epoch(0)
    assert [ids(batch) for batch in each] == first
    each.set_epoch(1)
    assert [ids(batch) for batch in each] == second


def test_a_break_skips_nothing(dataset: Dataset) -> None:
    whole = [ids(batch) for batch in loader(dataset)]
    each = loader(dataset)
    got = []
    for batch in each:
        got.append(ids(batch))
        if len(got) == 5:
            break
    got += [ids(batch) for batch in each]
    assert got == whole


def test_drop_leaves_less_than_a_global_batch_out_and_others_each_epoch(dataset: Dataset) -> None:
    each = loader(dataset, batch_size=32)
    left_out = []
    for _ in range(3):
        dropped = each.dropped
        seen = [number for batch in each for number in ids(batch)]
        assert len(seen) == len(set(seen)) == 128 and dropped == 2
        left_out.append(dataset.ids - set(seen))
    assert left_out[0] != left_out[1] != left_out[2]


def test_pad_delivers_everything_once_and_marks_the_rest(dataset: Dataset) -> None:
    ranks = [loader(dataset, tail="pad", rank=r, world_size=3, batch_size=8) for r in range(3)]
    assert len({len(each) for each in ranks}) == 1
    batches = [batch for each in ranks for batch in each]
    assert all(batch.rows == 8 for batch in batches)
    valid = [number for batch in batches for number in valid_ids(batch)]
    assert sorted(valid) == sorted(dataset.ids)
    assert sum(int((~batch.valid).sum()) for batch in batches) == len(batches) * 8 - 130
    assert all(number in dataset.ids for batch in batches for number in ids(batch))


def test_uneven_delivers_everything_once_in_short_batches(dataset: Dataset) -> None:
    ranks = [loader(dataset, tail="uneven", rank=r, world_size=3, batch_size=8) for r in range(3)]
    batches = [list(each) for each in ranks]
    seen = [number for rank in batches for batch in rank for number in ids(batch)]
    assert sorted(seen) == sorted(dataset.ids)
    assert [len(rank) for rank in batches] == [len(each) for each in ranks]
    assert min(batch.rows for rank in batches for batch in rank) < 8


def test_the_global_batch_is_the_same_for_every_world_size(dataset: Dataset) -> None:
    expected = run(dataset, 1, epochs=2, batch_size=12, lanes=4)
    for world_size in (2, 3, 4, 6, 12):
        assert run(dataset, world_size, epochs=2, batch_size=12 // world_size, lanes=4) == expected


@pytest.mark.parametrize("seed", range(6))
def test_a_run_with_restarts_is_the_run_without(
    dataset: Dataset, seed: int, relaunch: Callable[[], None]
) -> None:
    """4 -> 3 -> 6 -> ... ranks from a state in mid-epoch give the same global batches."""
    choose = random.Random(seed)
    expected = run(dataset, 1, epochs=3, batch_size=12, lanes=4)
    got: list[list[int]] = []
    state = None
    while len(got) < len(expected):
        world_size = choose.choice([1, 2, 3, 4, 6])
        options: dict[str, Any] = {"batch_size": 12 // world_size, "world_size": world_size}
        if state is None:
            options["lanes"] = 4
        relaunch()
        ranks = [loader(dataset, rank=r, resume=state, **options) for r in range(world_size)]
        assert len({each.plan_digest for each in ranks}) == 1
        for _ in range(choose.randrange(1, 15)):
            if len(got) == len(expected):
                break
            iterators = [iter(each) for each in ranks]
            try:
                batches = [next(iterator) for iterator in iterators]
            except StopIteration:
                continue
            got.append([number for batch in batches for number in ids(batch)])
            # Fetch ahead on one rank, as frameworks do: only delivered batches count.
        states = [each.state_dict() for each in ranks]
        assert all(each == states[0] for each in states)
        state = json.loads(json.dumps(states[0]))
    assert got == expected


def test_states_are_small_and_count_generations(dataset: Dataset) -> None:
    each = loader(dataset)
    next(iter(each))
    state = each.state_dict()
    assert len(json.dumps(state)) < 1024
    for step in range(1, 4):
        each = loader(dataset, resume=state)
        assert (each.generation, each.step) == (state["generation"] + 1, step)
        next(iter(each))
        state = each.state_dict()
        assert state["generation"] == each.generation
    assert len(each) == 130 // 4


def test_state_after_a_batch_is_the_state_then(dataset: Dataset) -> None:
    each = loader(dataset)
    states, batches = [], []
    for _ in range(2):
        for batch in each:
            batches.append(batch)
            states.append(each.state_dict())
    for batch, state in zip(batches, states, strict=True):
        assert each.state_after(batch) == state
    again = loader(dataset, resume=states[40])
    assert again.state_dict() == states[40]
    assert ids(next(iter(again))) == ids(batches[41])


def test_set_epoch_right_after_loading_keeps_the_step(dataset: Dataset) -> None:
    each = loader(dataset)
    each.set_epoch(2)
    iterator = iter(each)
    for _ in range(5):
        next(iterator)
    state = each.state_dict()
    again = loader(dataset, resume=state)
    again.set_epoch(2)
    assert (again.epoch, again.step) == (2, 5)
    again.set_epoch(2)
    assert (again.epoch, again.step) == (2, 0)
    again.load_state_dict(state)
    again.set_epoch(4)
    assert (again.epoch, again.step) == (4, 0)


def test_a_finished_epoch_is_the_next_one_at_its_beginning(dataset: Dataset) -> None:
    each = loader(dataset)
    for _ in each:
        pass
    state = each.state_dict()
    assert state["epoch"] == 1
    expected = [ids(batch) for batch in each]
    assert [ids(batch) for batch in loader(dataset, resume=state)] == expected


def test_another_batch_size_in_mid_epoch_loses_and_doubles_nothing(dataset: Dataset) -> None:
    seen: list[int] = []
    each = loader(dataset, tail="pad", batch_size=6, lanes=2)
    for _, batch in zip(range(7), each, strict=False):
        seen += valid_ids(batch)
    state = each.state_dict()
    ranks = [
        loader(dataset, tail="pad", batch_size=5, rank=r, world_size=3, lanes=5, resume=state)
        for r in range(3)
    ]
    assert [segment[:2] for segment in ranks[0].state_dict()["segments"]] == [[2, 6], [5, 15]]
    for each in ranks:
        seen += [number for batch in each for number in valid_ids(batch)]
    assert sorted(seen) == sorted(dataset.ids)
    # The new lanes apply to the following epochs.
    assert ranks[0].state_dict()["segments"] == [[5, 15, 0]]


@pytest.mark.parametrize("missing", [False, True])
def test_uneven_ranks_resume_at_another_world_size(dataset: Dataset, missing: bool) -> None:
    options: dict[str, Any] = {"tail": "uneven", "batch_size": 3}
    ranks = [loader(dataset, rank=r, world_size=4, **options) for r in range(4)]
    seen: list[list[int]] = [[], [], [], []]
    for rank, (each, steps) in enumerate(zip(ranks, (3, 0, 11, 7), strict=True)):
        for _, batch in zip(range(steps), each, strict=False):
            seen[rank] += ids(batch)
    states = [each.state_dict() for each in ranks]
    with pytest.raises(sf.StateError, match="speaks for one rank"):
        loader(dataset, world_size=3, rank=0, resume=states[0], **options)
    if missing:
        states.pop(2)
        with pytest.raises(sf.StateError, match=r"no state of rank \[2\] of 4"):
            loader(dataset, world_size=3, rank=0, lanes=3, resume=states, **options)
    after: list[int] = []
    for rank in range(3):
        each = loader(dataset, world_size=3, rank=rank, lanes=3, **options)
        each.load_state_dict(states, missing="replay" if missing else "error")
        after += [number for batch in each for number in ids(batch)]
    before = [number for rank, numbers in enumerate(seen) for number in numbers
              if not (missing and rank == 2)]  # fmt: skip
    assert sorted(before + after) == sorted(dataset.ids)


@pytest.mark.parametrize("budget", [None, 100_000])
def test_uneven_rests_are_delivered_through_small_windows(tmp_path: Path, budget: int | None) -> None:
    """The rest of a lane belongs to one rank after another, so reading moves back on the lane."""
    dataset = make_dataset(tmp_path / "data", [700, 900, 400])
    options: dict[str, Any] = {
        "tail": "uneven", "batch_size": 5, "shuffle_window": 50, "lanes": 1, "memory_budget": budget,
    }  # fmt: skip
    ranks = [loader(dataset, rank=r, world_size=2, **options) for r in range(2)]
    seen: list[int] = []
    for each, steps in zip(ranks, (120, 8), strict=True):
        for _, batch in zip(range(steps), each, strict=False):
            seen += ids(batch)
    states = [each.state_dict() for each in ranks]
    for rank in range(2):
        each = loader(dataset, rank=rank, world_size=2, resume=states, **options)
        seen += [number for batch in each for number in ids(batch)]
    assert sorted(seen) == sorted(dataset.ids)


@pytest.mark.embedded_only  # a coordinator rejects such ranks at their start
def test_uneven_states_that_do_not_belong_together(dataset: Dataset) -> None:
    def rank(of: int, steps: int, **options: Any) -> dict[str, Any]:
        each = loader(dataset, tail="uneven", rank=of, world_size=2, **options)
        for _, _batch in zip(range(steps), each, strict=False):
            pass
        return each.state_dict()

    mixed = [rank(0, 3, batch_size=4), rank(1, 3, batch_size=8)]
    with pytest.raises(sf.StateError, match="a global batch of 16, another one lanes=2 and a global batch of 8"):
        loader(dataset, tail="uneven", resume=mixed)
    finished = rank(0, 1000)
    assert finished["epoch"] == 1
    each = loader(dataset, tail="uneven")
    with pytest.raises(sf.StateError, match="may have left some of the epoch before"):
        each.load_state_dict([finished], missing="replay")


def test_uneven_ranks_that_stopped_together_may_restart_often(
    dataset: Dataset, relaunch: Callable[[], None]
) -> None:
    options: dict[str, Any] = {"tail": "uneven", "batch_size": 1, "world_size": 2}
    states = None
    seen: list[int] = []
    for _ in range(20):
        relaunch()
        ranks = [loader(dataset, rank=r, resume=states, **options) for r in range(2)]
        for each in ranks:
            seen += ids(next(iter(each)))
        states = [each.state_dict() for each in ranks]
    assert len(set(seen)) == len(seen) == 40
    alone = loader(dataset, tail="uneven", batch_size=4)
    next(iter(alone))
    smaller = loader(dataset, tail="uneven", batch_size=3, resume=alone.state_dict())
    assert smaller.state_dict()["segments"] == [[1, 4, 1], [1, 3, 0]]


def test_an_uneven_rank_goes_on_from_its_own_state(dataset: Dataset) -> None:
    options: dict[str, Any] = {"tail": "uneven", "batch_size": 3, "rank": 1, "world_size": 4}
    whole = [ids(batch) for batch in loader(dataset, **options)]
    each = loader(dataset, **options)
    got = [ids(batch) for _, batch in zip(range(4), each, strict=False)]
    got += [ids(batch) for batch in loader(dataset, resume=each.state_dict(), **options)]
    assert got == whole


def test_limit_is_the_beginning_of_the_whole_run(dataset: Dataset) -> None:
    whole = [ids(batch) for batch in loader(dataset)]
    assert [ids(batch) for batch in loader(dataset, limit=23)] == whole[:5]
    padded = list(loader(dataset, limit=23, tail="pad"))
    assert [n for b in padded for n in valid_ids(b)] == [n for b in whole for n in b][:23]


def test_without_shuffle_the_order_is_that_of_the_files(dataset: Dataset) -> None:
    each = sf.Loader(dataset.pattern, FEATURES, shuffle=False, batch_size=10)
    for _ in range(2):
        assert [number for batch in each for number in ids(batch)] == sorted(dataset.ids)


def test_without_shuffle_files_take_turns_if_asked(dataset: Dataset) -> None:
    each = loader(dataset, shuffle=False, interleave=2, block_length=3, batch_size=8)
    assert [ids(batch) for _, batch in zip(range(4), each, strict=False)] == [
        [0, 1, 2, 2000, 2001, 2002, 3, 4], [5, 2003, 2004, 2005, 6, 7, 8, 2006], [2007, 2008, 9, 10, 11, 2009, 2010, 2011],
        [12, *range(2012, 2019)],
    ]  # fmt: skip
    state, follows = each.state_dict(), ids(next(iter(each)))
    resumed = loader(dataset, shuffle=False, interleave=2, block_length=3, batch_size=8, resume=state)
    assert ids(next(iter(resumed))) == follows


def test_epochs_go_on_and_end_with_the_same_one(dataset: Dataset) -> None:
    each = loader(dataset)
    got = [(epoch.number, batch.epoch, ids(batch)) for epoch in each.epochs(3) for batch in epoch]
    assert {(number, of) for number, of, _ in got} == {(0, 0), (1, 1), (2, 2)} and len(got) == 3 * len(each)
    assert list(each.epochs(3)) == [] and each.epoch == 3
    half = loader(dataset)
    begun = [ids(batch) for _, batch in zip(range(40), (b for e in half.epochs(3) for b in e), strict=False)]
    resumed = loader(dataset, resume=half.state_dict())
    rest = [ids(batch) for epoch in resumed.epochs(3) for batch in epoch]
    assert begun + rest == [numbers for _, _, numbers in got]


def test_a_break_within_epochs_skips_nothing(dataset: Dataset) -> None:
    each = loader(dataset)
    parts = []
    for epoch in each.epochs(1):
        parts.append([ids(batch) for _, batch in zip(range(10), epoch, strict=False)])
    assert sum(parts, []) == [ids(batch) for batch in loader(dataset)]
    with pytest.raises(RuntimeError, match="no batch of epoch 1 was taken"):
        for _epoch in each.epochs(2):
            pass
    with pytest.raises(sf.ConfigError, match="count must be a whole number"):
        next(each.epochs("2"))  # type: ignore[arg-type]


def test_prefetch_threads_and_budget_change_nothing(dataset: Dataset) -> None:
    expected = run(dataset, 1, epochs=2)
    for options in ({"prefetch": 1}, {"prefetch": 64}, {"memory_budget": 300_000}):
        assert run(dataset, 1, epochs=2, **options) == expected


def test_reading_by_offset_gives_the_same_batches(tmp_path: Path, way: str) -> None:
    dataset = make_dataset(tmp_path / "data", [300, 500, 200, 9])
    options: dict[str, Any] = {"shuffle_window": 5000, "interleave": 2, "batch_size": 16}
    expected = run(dataset, 1, epochs=2, **options)
    each = loader(dataset, memory_budget=200_000, **options)
    got = [ids(batch) for _ in range(2) for batch in each]
    if way != "killed":  # a replaced worker has not reported yet
        assert each.stats()["reading"] == "locate"
    assert got == expected
    state = loader(dataset, memory_budget=200_000, **options)
    iterator = iter(state)
    for _ in range(30):
        next(iterator)
    resumed = loader(dataset, memory_budget=200_000, resume=state.state_dict(), **options)
    assert ids(next(iter(resumed))) == expected[30]


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_compressed_shards_give_the_same_batches(
    tmp_path: Path, dataset: Dataset, compression: str, way: str
) -> None:
    packed = make_dataset(tmp_path / "packed", dataset.counts, compression)
    expected = run(dataset, 2, batch_size=5)
    assert run(packed, 2, batch_size=5) == expected
    each = loader(packed, batch_size=5, world_size=2, rank=1)
    for _, _batch in zip(range(9), each, strict=False):
        pass
    resumed = loader(packed, batch_size=5, world_size=2, rank=1, resume=each.state_dict())
    assert ids(next(iter(resumed))) == expected[9][5:]
    if way != "killed":
        assert resumed.stats()["reinflated_bytes"] > 0


def test_files_may_move(tmp_path: Path, dataset: Dataset) -> None:
    each = loader(dataset)
    batches = [ids(batch) for batch in each]
    each.set_epoch(0)
    next(iter(each))
    state = each.state_dict()
    moved = Dataset(tmp_path / "elsewhere", dataset.counts)
    dataset.folder.rename(moved.folder)
    assert [ids(batch) for batch in loader(moved, resume=state)] == batches[1:]


def test_holding_every_batch_does_not_wait_for_itself(dataset: Dataset, way: str) -> None:
    each = loader(dataset, prefetch=2)
    held = list(each) + list(each)
    assert len(held) == 64
    assert len({id(batch["id"]) for batch in held}) == 64
    if way == "killed":
        return
    stats = each.stats()
    assert stats["slots_in_use"] >= 64
    del held
    stats = each.stats()
    assert stats["slots"] <= 2 + 2 + 2
    each.close()
    assert each.stats().keys() == stats.keys()


def test_arrays_outlive_batch_and_loader(dataset: Dataset) -> None:
    each = loader(dataset)
    batch = next(iter(each))
    numbers, expected = batch["id"], ids(batch)
    image = batch["image"]
    del batch
    for _ in each:
        pass
    each.close()
    del each
    assert numbers.tolist() == expected
    assert image[0].reshape(-1).tolist() == example(expected[0])["image"].tolist()


def test_arrays_view_the_slot_and_may_be_written(dataset: Dataset) -> None:
    batch = next(iter(loader(dataset)))
    image, again = batch["image"], batch["image"]
    assert not image.flags.owndata and image.flags.writeable
    assert image.ctypes.data % 256 == 0 and batch["id"].ctypes.data % 256 == 0
    image += 1
    assert again is image
    raw = np.frombuffer(batch._native.column(list(batch).index("image"))[0], dtype=np.float32)
    assert raw.ctypes.data == image.ctypes.data


def test_provenance_names_the_record(dataset: Dataset) -> None:
    each = loader(dataset, provenance=True)
    assert [Path(path).name for path in each.shards] == [
        dataset.file(shard).name for shard in range(8)
    ]
    for batch in each:
        assert batch.provenance is not None
        shard, ordinal = batch.provenance
        assert (shard * 1000 + ordinal).tolist() == ids(batch)
    assert next(iter(loader(dataset))).provenance is None


def test_plan_digest_tells_ranks_apart_that_differ(dataset: Dataset) -> None:
    def digest(**options: Any) -> str:
        return loader(dataset, **({"world_size": 2, "rank": 0} | options)).plan_digest

    same = digest()
    assert same == digest(rank=1) == digest(prefetch=9)
    for other in ({"seed": 8}, {"batch_size": 8}, {"shuffle_window": 17}, {"tail": "pad"},
                  {"limit": 9}, {"features": None}, {"lanes": 1}):  # fmt: skip
        assert digest(**other) != same


@pytest.mark.embedded_only  # the cache is this process's
def test_a_second_start_scans_nothing(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(dataset, 1)
    index = [file for file in (tmp_path / "cache" / "index").iterdir() if not file.suffix]
    assert len(index) == 1
    written = index[0].stat()
    assert run(dataset, 1) == expected
    after = index[0].stat()
    assert (after.st_mtime_ns, after.st_ino) == (written.st_mtime_ns, written.st_ino)
    # After one file changed, only that file is scanned, and the dataset is another one.
    with sf.TFRecordWriter(dataset.file(1)) as writer:
        writer.write(example(1000))
    assert loader(dataset).records == 131
    monkeypatch.setenv("SHARDFEED_CACHE_DIR", "off")
    assert loader(dataset).records == 131


def test_two_processes_scan_once(dataset: Dataset, tmp_path: Path) -> None:
    code = (
        "import shardfeed as sf, sys\n"
        f"l = sf.Loader({dataset.pattern!r}, batch_size=4)\n"
        "print(l.plan_digest, len(l))\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = {process.communicate(timeout=60)[0] for process in processes}
    assert len(outputs) == 1 and all(process.returncode == 0 for process in processes)


def test_more_ranks_than_samples(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", [2, 1])
    ranks = [loader(dataset, tail="pad", batch_size=2, world_size=4, rank=r) for r in range(4)]
    batches = [list(each) for each in ranks]
    assert [len(each) for each in batches] == [1, 1, 1, 1]
    valid = [number for rank in batches for batch in rank for number in valid_ids(batch)]
    assert sorted(valid) == sorted(dataset.ids)
    with pytest.warns(UserWarning, match="every epoch has 0 steps: 3 samples"):
        dropped = loader(dataset, batch_size=4)
    assert len(dropped) == 0 and list(dropped) == [] and dropped.epoch == 1


def test_one_file_for_many_ranks(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", [101])
    seen = [number for step in run(dataset, 5, batch_size=2) for number in step]
    assert len(seen) == len(set(seen)) == 100
    assert run(dataset, 5, batch_size=2) == run(dataset, 1, batch_size=10, lanes=5)


def test_raw_records(dataset: Dataset) -> None:
    raw = loader(dataset, features=None, provenance=True)
    for batch in raw:
        records = batch["record"]
        assert len(records) == 4 and isinstance(records[0], bytes)
        assert batch.provenance is not None
        for row, (shard, ordinal) in enumerate(zip(*batch.provenance, strict=True)):
            expected = list(sf.read_records(dataset.file(int(shard))))[ordinal]
            assert records[row] == expected == records[row - 4] == bytes(records.view(row))


def test_features_sets_do_not_depend_on_their_order(dataset: Dataset) -> None:
    swapped = dict(reversed(list(FEATURES.items())))
    assert loader(dataset).plan_digest == loader(dataset, features=swapped).plan_digest


def test_ranks_come_from_the_launcher(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> tuple[int, int]:
        each = loader(dataset)
        return each.rank, each.world_size

    assert found() == (0, 1)
    for rank, size in (
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        ("RANK", "WORLD_SIZE"),
    ):
        monkeypatch.setenv(rank, "1")
        monkeypatch.setenv(size, "3")
        assert found() == (1, 3)
        monkeypatch.setenv(rank, "0")
        monkeypatch.setenv(size, "2")
    assert found() == (0, 2)
    monkeypatch.delenv("RANK")
    with pytest.raises(sf.ConfigError, match="WORLD_SIZE is set and RANK is not"):
        found()
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(sf.ConfigError, match="RANK='x' is not a number"):
        found()


def test_nothing_is_written_into_what_outlives_its_loader(tmp_path: Path) -> None:
    counts = [40] * 8
    dataset = make_dataset(tmp_path / "data", counts)
    for _ in range(25):
        # The worker works on the next epoch when the loader is dropped.
        held = list(loader(dataset, shuffle=False, batch_size=80))
        kept = [ids(batch) for batch in held]
        assert sorted(sum(kept, [])) == sorted(dataset.ids)
        del held[1::2]
        list(loader(dataset, seed=3, batch_size=80))
        assert [ids(batch) for batch in held] == kept[0::2]


def test_a_restarting_loader_gives_the_same_epoch_at_every_loop(dataset: Dataset, relaunch: Callable[[], None]) -> None:
    expected = [ids(batch) for batch in loader(dataset)]
    relaunch()
    each = loader(dataset, restart=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # As in a sanity check that consumes some batches before the first evaluation.
        assert [ids(batch) for _, batch in zip(range(2), each, strict=False)] == expected[:2]
        for _ in range(3):
            assert [ids(batch) for batch in each] == expected
        assert [ids(batch) for _, batch in zip(range(10), each.progress(), strict=False)] == expected[:10]
        assert [ids(batch) for batch in each] == expected and len(each) == len(expected)
    with pytest.raises(sf.ConfigError, match="restart=True repeats one"):
        next(each.epochs(2))


def test_a_restarting_loader_stays_in_the_epoch_that_it_is_told(dataset: Dataset, relaunch: Callable[[], None]) -> None:
    first = loader(dataset)
    epochs = [[ids(batch) for batch in first] for _ in range(2)]
    relaunch()
    each = loader(dataset, restart=True)
    each.set_epoch(1)
    assert [[ids(batch) for batch in each] for _ in range(2)] == [epochs[1]] * 2
    each.set_epoch(0)
    taken = iter(each)
    assert [ids(next(taken)) for _ in range(3)] == epochs[0][:3]
    state = each.state_dict()
    assert (state["epoch"], each.step) == (0, 3)
    each.close()
    relaunch()
    # Also right after a state was loaded.
    assert [ids(batch) for batch in loader(dataset, restart=True, resume=state)] == epochs[0]


def test_a_loop_that_goes_on_where_one_was_left_says_so_once(dataset: Dataset, relaunch: Callable[[], None]) -> None:
    each = loader(dataset, restart=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(each))
    with pytest.warns(UserWarning, match=r"continues at step 1 of epoch 0.*restart=True.*restart=False"):
        next(iter(each))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(each))
        state = each.state_dict()
        each.close()
        relaunch()
        # No warning if intended: a state was loaded, an epoch ended, or the epoch was set.
        resumed = loader(dataset, resume=state, restart=None)
        for _ in range(2):
            list(resumed)
        next(iter(resumed))
        resumed.set_epoch(7)
        next(iter(resumed))
        relaunch()
        each = loader(dataset)
        for _ in range(3):
            next(iter(each))


def test_a_closed_loader_answers(dataset: Dataset, relaunch: Callable[[], None]) -> None:
    each = loader(dataset)
    batches = iter(each)
    third = [next(batches) for _ in range(3)][-1]
    open_state, open_repr, steps = each.state_dict(), repr(each), len(each)
    each.close()
    assert each.state_dict() == each.state_after(third) == open_state
    assert (each.epoch, each.step, each.generation, len(each), repr(each)) == (0, 3, 0, steps, open_repr)
    assert each.stats()["batches"] == 3 and each.why()["sentence"] and each.skipped == []
    assert each.records == 130 and len(each.shards) == 8 and each.plan_digest and each.job
    each.close()
    for call in (lambda: next(batches), lambda: next(iter(each)), lambda: each.set_epoch(1), lambda: each.reshard(0, 1),
                 lambda: each.load_state_dict(open_state)):  # fmt: skip
        with pytest.raises(sf.ShardfeedError, match="the loader was closed"):
            call()
    relaunch()
    assert next(iter(loader(dataset, resume=each.state_dict()))).step == 3
