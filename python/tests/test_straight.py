"""Large records in file order are read directly into their batch: the same batches and errors as
with any other method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_bad_input import flip, record_offsets

import shardfeed as sf

#: 1 MiB is not a multiple of their sizes, some are empty, and the mean exceeds the size for direct
#: reads.
SIZES = [(70_001 * (number + 1)) % 131_071 for number in range(60)] + [0, 1, 400_000]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    for shard in range(3):
        with sf.TFRecordWriter(tmp_path / f"{shard}.tfrecord") as writer:
            for size in SIZES[shard:]:
                writer.write(rng.bytes(size))
    return tmp_path


def loader(files: Path, **options: Any) -> sf.Loader:
    defaults: dict[str, Any] = {"batch_size": 7, "shuffle": False, "tail": "uneven", "provenance": True}
    return sf.Loader(str(files / "*.tfrecord"), **(defaults | options))


def records(each: sf.Loader, steps: int | None = None) -> list[list[bytes]]:
    taken = []
    for batch in each:
        taken.append([bytes(record) for record in batch["record"]])
        if len(taken) == steps:
            break
    return taken


def written(files: Path) -> list[bytes]:
    return [record for shard in sorted(files.glob("*.tfrecord")) for record in sf.read_records(shard)]


def test_batches_are_the_records_of_the_files(files: Path) -> None:
    with loader(files) as each:
        taken = records(each)
        stats = each.stats()
    assert stats.get("reading", "locate") == "locate"
    assert [record for batch in taken for record in batch] == written(files)
    assert [len(batch) for batch in taken[:-1]] == [7] * (len(taken) - 1)


@pytest.mark.parametrize("options", [{"prefetch": 1}, {"prefetch": 16}, {"memory_budget": "2MiB"}])
def test_nothing_else_changes_what_comes(files: Path, options: dict[str, Any]) -> None:
    with loader(files, **options) as each:
        assert [record for batch in records(each) for record in batch] == written(files)


def test_provenance_and_padding(files: Path) -> None:
    count = len(written(files))
    with loader(files, tail="pad", batch_size=50) as each:
        batches = list(each)
    places = [zip(*batch.provenance, strict=True) for batch in batches if batch.provenance is not None]
    named = [(int(shard), int(ordinal)) for place in places for shard, ordinal in place]
    valid = [bool(flag) for batch in batches for flag in batch.valid]
    expected = [(shard, ordinal) for shard in range(3) for ordinal in range(len(SIZES) - shard)]
    assert named[:count] == expected
    assert valid == [True] * count + [False] * (len(valid) - count) and not all(valid)


def test_it_resumes_at_every_step(files: Path) -> None:
    whole = records(loader(files))
    for step in range(0, len(whole), 5):
        first = loader(files)
        assert records(first, step) == whole[:step] if step else True
        state = first.state_dict() if step else None
        assert records(loader(files, resume=state)) == whole[step:]


def test_damage_is_an_error_with_its_place_or_is_skipped(files: Path) -> None:
    bad, shard = 20, files / "1.tfrecord"
    offset = record_offsets(shard)[bad]
    whole = written(files)
    flip(shard, offset + 12 + SIZES[1 + bad] // 2)
    with pytest.raises(sf.CorruptRecordError, match=rf"1\.tfrecord.*record {bad} at byte {offset}") as caught:
        records(loader(files))
    assert caught.value.ordinal == bad
    with loader(files, corrupt="skip-record") as each:
        taken = [record for batch in records(each) for record in batch]
    place = len(SIZES) + bad
    assert len(taken) == len(whole)
    assert [at for at in range(len(whole)) if taken[at] != whole[at]] == [place]


def test_a_file_that_was_cut_is_an_error(files: Path) -> None:
    with loader(files, prefetch=1, batch_size=1) as each:
        batches = iter(each)
        next(batches)
        # The open file is truncated under the loader.
        with (files / "0.tfrecord").open("r+b") as file:
            file.truncate(record_offsets(files / "0.tfrecord")[40] + 500)
        with pytest.raises(sf.DataError, match=r"0\.tfrecord"):
            list(batches)


def bytes_read() -> int:
    """Returns the bytes of all reads of this process, as counted by the kernel."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


def test_thousands_of_short_lanes_read_a_file_a_few_times(tmp_path: Path) -> None:
    file, count, lanes = tmp_path / "0.tfrecord", 1 << 16, 1 << 13
    with sf.TFRecordWriter(file) as writer:
        for number in range(count):
            writer.write(b"%048d" % number)
    with sf.Loader(str(file), batch_size=lanes, lanes=lanes, memory_budget="64MiB", prefetch=1) as each:
        before = bytes_read()
        taken = [int(bytes(record)) for batch in each for record in batch["record"]]
    # The headers and the records, each a few times; a lane that read from a mark would read its 8
    # KiB.
    assert bytes_read() - before < 8 * file.stat().st_size
    assert sorted(taken) == list(range(count))
