"""Corrupt records: the substitutes in their entries, and complete counts under faults."""

from __future__ import annotations

import gzip
import random
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Dataset, example, loader, make_dataset
from test_bad_input import flip, record_offsets

import shardfeed as sf
from shardfeed.testing import BINARY

sys.path.insert(0, str(ROOT / "tests"))
from recount import recount  # noqa: E402

#: Damaged records (shard, ordinal): first and last of a file, neighbors, and an isolated one.
BAD = [(0, 0), (2, 17), (2, 18), (2, 19), (3, 6), (4, 3), (6, 12), (6, 13), (7, 17), (0, 5)]
LANES = 2
SKIP: dict[str, Any] = {"corrupt": "skip-record", "lanes": LANES, "tail": "pad"}

Row = tuple[int, bool, bytes]  # id, valid, image


def rows(batch: sf.Batch) -> list[Row]:
    columns = zip(batch["id"], batch.valid, batch["image"], strict=True)
    return [(int(number), bool(valid), image.tobytes()) for number, valid, image in columns]


def damage(dataset: Dataset, bad: list[tuple[int, int]] = BAD) -> None:
    """Flips a bit in the data of records: lengths, stored checksums and the order are unchanged."""
    for shard, ordinal in bad:
        flip(dataset.file(shard), record_offsets(dataset.file(shard))[ordinal] + 12 + 5)


def take(each: sf.Loader, steps: int | None = None) -> list[list[Row]]:
    return [rows(batch) for _, batch in zip(range(steps or 10**6), each, strict=False)]


def filled(whole: list[list[Row]], bad: set[int], lanes: int = LANES) -> list[list[Row]]:
    """Returns the expected batches, given those without damage, from docs/ORDER.md, section 12."""
    each = len(whole[0]) // lanes
    order: list[list[Row]] = [[] for _ in range(lanes)]
    for step in whole:
        for lane in range(lanes):
            order[lane] += [row for row in step[lane * each : (lane + 1) * each] if row[1]]
    stand_in: dict[int, Row] = {}
    for lane in order:
        for at, (number, _, _) in enumerate(lane):
            near = lane[max(0, at - 64) : at][::-1] + lane[at + 1 : at + 65]
            stand_in[number] = next(row for row in near if row[0] not in bad)
    filler = {number: (row[0], False, row[2]) for number, row in stand_in.items()}
    return [[filler[row[0]] if row[0] in bad else row for row in step] for step in whole]


@pytest.fixture
def numbers() -> set[int]:
    return {shard * 1000 + ordinal for shard, ordinal in BAD}


@pytest.fixture
def expected(dataset: Dataset, numbers: set[int]) -> list[list[Row]]:
    """Damages the records; returns the batches of one rank that must result."""
    with loader(dataset, batch_size=8, lanes=LANES, tail="pad") as each:
        whole = take(each)
    damage(dataset)
    return filled(whole, numbers)


def together(dataset: Dataset, world: int, **options: Any) -> list[list[Row]]:
    """Returns the global batches of `world` ranks."""
    options = SKIP | {"batch_size": 8 // world} | options
    ranks = [loader(dataset, rank=rank, world_size=world, **options) for rank in range(world)]
    taken = [take(each) for each in ranks]
    for each in ranks:
        each.close()
    return [sum(parts, []) for parts in zip(*taken, strict=True)]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_slots_are_filled_the_same_at_every_world_size(
    dataset: Dataset, expected: list[list[Row]], world: int
) -> None:
    assert together(dataset, world) == expected


@pytest.mark.parametrize("options", [{"prefetch": 1}, {"prefetch": 16}, {"memory_budget": 140_000}])
def test_prefetch_and_the_way_of_reading_change_nothing(
    dataset: Dataset, expected: list[list[Row]], options: dict[str, Any]
) -> None:
    assert together(dataset, 1, **options) == expected


def test_a_resume_at_every_step_fills_the_same(
    dataset: Dataset, expected: list[list[Row]]
) -> None:
    with loader(dataset, batch_size=8, **SKIP) as each:
        states = [each.state_dict(), *(each.state_dict() for _ in each)]
    for step, state in enumerate(states[:-1]):
        world = (1, 2, 4)[step % 3]
        assert together(dataset, world, resume=state) == expected[step:]


def test_what_is_skipped_is_listed_once_and_counted_in_every_epoch(
    dataset: Dataset, expected: list[list[Row]]
) -> None:
    with loader(dataset, batch_size=8, **SKIP) as each:
        assert take(each) == expected
        assert each.stats()["skipped"] == len(BAD)
        take(each)
        assert each.stats()["skipped"] == 2 * len(BAD)
        assert each.stats()["skipped_in_epoch"] == len(BAD)
        listed = {(one.file, one.offset, one.ordinal) for one in each.skipped}
        assert len(each.skipped) == len(BAD)
        assert all("do not match" in one.reason and one.what == "record" for one in each.skipped)
    files = {(shard, ordinal): dataset.file(shard) for shard, ordinal in BAD}
    assert listed == {(str(file), record_offsets(file)[at[1]], at[1]) for at, file in files.items()}


def test_a_run_that_stopped_at_a_corrupt_record_goes_on_with_skipping(
    dataset: Dataset, expected: list[list[Row]]
) -> None:
    got: list[list[Row]] = []
    with loader(dataset, batch_size=8, lanes=LANES, tail="pad") as each:
        with pytest.raises(sf.CorruptRecordError):
            for batch in each:
                got.append(rows(batch))
        state = each.state_dict()
    assert got == expected[: len(got)]
    assert together(dataset, 1, resume=state) == expected[len(got) :]


def test_records_that_are_not_what_the_features_say_are_skipped(dataset: Dataset) -> None:
    with loader(dataset, batch_size=8, lanes=LANES, tail="pad") as each:
        counts = (each.records, len(each))
    with sf.TFRecordWriter(dataset.file(3)) as writer:
        for ordinal in range(7):
            writer.write(b"\xff" if ordinal == 2 else example(3000 + ordinal))
    with loader(dataset, batch_size=8, **SKIP) as each:
        assert (each.records, len(each)) == counts
        got = [row for step in take(each) for row in step]
        [skipped] = each.skipped
    assert {number for number, valid, _ in got if valid} == dataset.ids - {3002}
    assert (skipped.file, skipped.ordinal) == (str(dataset.file(3)), 2)


def test_provenance_names_the_sample_that_the_slot_is_of(
    dataset: Dataset, expected: list[list[Row]], numbers: set[int]
) -> None:
    with loader(dataset, batch_size=8, provenance=True, **SKIP) as each:
        for batch, step in zip(each, expected, strict=True):
            assert batch.provenance is not None
            named = [1000 * int(s) + int(o) for s, o in zip(*batch.provenance, strict=True)]
            for name, (number, _, _) in zip(named, step, strict=True):
                assert (name == number) is (name not in numbers)


@pytest.mark.parametrize("budget", [9, 0.02])
def test_over_the_budget_is_an_error_that_names_the_first(
    dataset: Dataset, expected: list[list[Row]], budget: float
) -> None:
    allowed = budget if isinstance(budget, int) else int(sum(dataset.counts) * budget)
    with loader(dataset, batch_size=8, corrupt_budget=budget, **SKIP) as each:
        got: list[list[Row]] = []
        with pytest.raises(sf.CorruptRecordError, match="corrupt_budget allows") as caught:
            for batch in each:
                got.append(rows(batch))
        assert each.stats()["skipped"] <= allowed
        first = each.skipped[0]
        # The cursor is before the batch that exceeds the budget, and a retry raises the same error.
        assert each.step == len(got)
        with pytest.raises(sf.CorruptRecordError, match="corrupt_budget allows"):
            next(iter(each))
    assert got == expected[: len(got)]
    assert f"allows {allowed} on this rank" in str(caught.value)
    assert f"{first.file}: record {first.ordinal} at offset {first.offset}" in str(caught.value)


def test_where_nothing_is_good_it_is_an_error(dataset: Dataset) -> None:
    wrong = {"image": sf.FixedLenFeature((7,), "float32")}
    with loader(dataset, features=wrong, corrupt_budget=1.0, **SKIP) as each:
        with pytest.raises(sf.CorruptRecordError, match="none of the .* records nearest"):
            take(each)


def test_a_file_whose_framing_breaks_ends_there(dataset: Dataset) -> None:
    at = record_offsets(dataset.file(2))[17]
    flip(dataset.file(2), at + 1)
    dataset.file(6).write_bytes(dataset.file(6).read_bytes()[:-7])
    with pytest.raises(sf.CorruptRecordError, match="length does not match"):
        loader(dataset)
    left = dataset.ids - {2000 + n for n in range(17, 40)} - {6029}
    with loader(dataset, **SKIP) as each:
        assert each.records == len(left)
        got = [row for step in take(each) for row in step if row[1]]
        assert [(one.ordinal, one.what) for one in each.skipped] == [(17, "rest"), (29, "rest")]
        assert (each.skipped[0].file, each.skipped[0].offset) == (str(dataset.file(2)), at)
        assert each.stats()["files_left_out"] == 2
    assert sorted(number for number, _, _ in got) == sorted(left)
    with pytest.raises(sf.CorruptRecordError, match="2 in all, and corrupt_budget allows 1"):
        loader(dataset, corrupt_budget=1, **SKIP)
    # Results of a scan under one policy are not reused under another.
    with pytest.raises(sf.CorruptRecordError, match="length does not match"):
        loader(dataset)


def test_skip_file_leaves_out_every_file_with_damage(dataset: Dataset) -> None:
    damage(dataset, [(2, 17), (2, 20), (4, 3)])
    flip(dataset.file(7), record_offsets(dataset.file(7))[2] + 1)
    left = {number for number in dataset.ids if number // 1000 not in (2, 4, 7)}
    with loader(dataset, **SKIP | {"corrupt": "skip-file"}) as each:
        assert each.records == len(left)
        got = [row for step in take(each) for row in step if row[1]]
        assert [(Path(one.file).name, one.ordinal, one.what) for one in each.skipped] == [
            ("train-02.tfrecord", 17, "file"),
            ("train-04.tfrecord", 3, "file"),
            ("train-07.tfrecord", 2, "file"),
        ]
        assert each.stats()["skipped"] == 0
    assert sorted(number for number, _, _ in got) == sorted(left)


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_compressed_files(tmp_path: Path, compression: str) -> None:
    dataset = make_dataset(tmp_path / "plain", [13, 0, 40, 7, 21, 1, 30, 18])
    with loader(dataset, batch_size=8, lanes=LANES, tail="pad") as each:
        whole = take(each)
    damage(dataset)
    other = Dataset(tmp_path / "packed", dataset.counts)
    other.folder.mkdir()
    for shard in range(len(dataset.counts)):
        data = dataset.file(shard).read_bytes()
        pack = gzip.compress if compression == "gzip" else zlib.compress
        other.file(shard).write_bytes(pack(data) if data else b"")
    numbers = {shard * 1000 + ordinal for shard, ordinal in BAD}
    assert together(other, 2) == filled(whole, numbers)
    # A truncated compressed file ends at some record.
    last = other.file(6)
    last.write_bytes(last.read_bytes()[:-20])
    with loader(other, **SKIP) as each:
        got = [row for step in take(each) for row in step if row[1]]
        [cut, *_] = each.skipped
        assert (cut.file, cut.what) == (str(last), "rest")
        assert each.records == sum(dataset.counts) - 30 + cut.ordinal
    assert len(got) == len({number for number, _, _ in got})


@pytest.mark.embedded_only
def test_the_ledger_says_what_was_skipped(
    dataset: Dataset, expected: list[list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    together(dataset, 2)
    total = recount(tmp_path / "ledger", dataset.folder, 1, corrupt="skip-record")
    assert (total.skipped, total.lost, total.duplicated, total.problems) == (len(BAD), 0, 0, [])
    assert total.is_ok(skipped=len(BAD)) and not total.is_ok()
    with pytest.raises(ValueError, match="do not match"):
        recount(tmp_path / "ledger", dataset.folder, 1)


@pytest.mark.embedded_only
@pytest.mark.parametrize("policy", ["skip-record", "skip-file"])
def test_any_flipped_bytes_end_in_right_counts_or_a_clear_error(
    tmp_path: Path, policy: str
) -> None:
    """For any flipped bits, valid rows were written, occur once, and the rest is accounted for."""
    clean = make_dataset(tmp_path / "clean", [9, 14, 6])
    images = {number: example(number)["image"].tobytes() for number in clean.ids}
    outcomes = {"clean": 0, "skipped": 0, "left out": 0, "error": 0}
    for seed in range(60):
        dice = random.Random(seed)
        dataset = Dataset(tmp_path / f"{seed}", clean.counts)
        shutil.copytree(clean.folder, dataset.folder)
        for _ in range(dice.choice([1, 1, 2, 5])):
            file = dataset.file(dice.randrange(3))
            data = bytearray(file.read_bytes())
            at = dice.randrange(len(data))
            if dice.random() < 0.1:
                data = data[:at]
            else:
                data[at] ^= 1 << dice.randrange(8)
            file.write_bytes(bytes(data) or b"\0")
        options = {"lanes": 1, "tail": "pad", "corrupt": policy, "corrupt_budget": 29, "seed": seed}
        try:
            with loader(dataset, **options) as each:
                got = [row for step in take(each) for row in step]
                records, stats, listed = each.records, each.stats(), each.skipped
        except sf.ShardfeedError as error:
            assert "record" in str(error)
            outcomes["error"] += 1
            continue
        valid = [(number, image) for number, is_valid, image in got if is_valid]
        assert len(valid) == len(set(valid)) == records - stats["skipped"]
        assert all(images[number] == image for number, image in valid)
        left_out = [one for one in listed if one.what != "record"]
        assert len(left_out) == stats["files_left_out"]
        for one in listed:
            outcomes["skipped" if one.what == "record" else "left out"] += 1
        outcomes["clean"] += not listed
        if not left_out:
            assert records == 29
    assert all(outcomes[name] for name in ("skipped", "left out") if policy == "skip-record")
    assert outcomes["error"] < 10, outcomes


def test_options_without_a_meaning_are_refused(dataset: Dataset) -> None:
    with pytest.raises(sf.ConfigError, match='corrupt="skip" is none of'):
        loader(dataset, corrupt="skip")
    for budget in (-1, 1.5, "many", float("nan")):
        with pytest.raises(sf.ConfigError, match="corrupt_budget"):
            loader(dataset, corrupt="skip-record", corrupt_budget=budget)


@pytest.mark.embedded_only
def test_a_verified_list_has_nothing_to_skip(dataset: Dataset, tmp_path: Path) -> None:
    damage(dataset, [(2, 17), (4, 3)])
    out = tmp_path / "whole.txt"
    command = [str(BINARY), "dataset", "verify", "--exclude", str(out), dataset.pattern]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "2 of 8 files damaged" in result.stderr, result.stderr
    files = out.read_text().splitlines()
    assert files == [str(dataset.file(shard)) for shard in range(8) if shard not in (2, 4)]
    options = {"features": {"id": sf.FixedLenFeature((), "int64")}, "batch_size": 4, "tail": "pad"}
    for named in (files, f"@{out}"):
        with sf.Loader(named, **options) as each:
            got = [int(number) for batch in each for number in batch["id"][batch.valid]]
            assert each.skipped == []
        assert sorted(got) == sorted(number for number in dataset.ids if number // 1000 not in (2, 4))
    # Without these files there is no damage in the list.
    again = subprocess.run([*command[:3], f"@{out}"], capture_output=True, text=True, timeout=60)
    assert again.returncode == 0, again.stderr
    out.write_text("nowhere.tfrecord\n")
    with pytest.raises(sf.DatasetNotFoundError, match=r"whole\.txt: line 1 names no file"):
        sf.Loader(f"@{out}", **options)
