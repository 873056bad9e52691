"""Invalid input: a clear error with cause, location and remedy; never a crash, a hang or
silence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FEATURES, Dataset, example, ids, loader, make_dataset

import shardfeed as sf


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x10
    file.write_bytes(data)


def record_offsets(file: Path) -> list[int]:
    data, at, offsets = file.read_bytes(), 0, []
    while at < len(data):
        offsets.append(at)
        at += 16 + int.from_bytes(data[at : at + 8], "little")
    return offsets


def drain(each: sf.Loader) -> list[list[int]]:
    return [ids(batch) for batch in each]


def test_truncated_file(dataset: Dataset) -> None:
    file = dataset.file(4)
    last = record_offsets(file)[-1]
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(sf.CorruptRecordError, match="truncated") as caught:
        loader(dataset)
    assert (caught.value.file, caught.value.offset, caught.value.ordinal) == (str(file), last, 20)
    assert "copy the file again" in str(caught.value)


def test_flipped_bit_in_a_length(dataset: Dataset) -> None:
    file = dataset.file(2)
    at = record_offsets(file)[17]
    flip(file, at + 1)
    with pytest.raises(sf.CorruptRecordError, match="length does not match") as caught:
        loader(dataset)
    assert (caught.value.file, caught.value.offset, caught.value.ordinal) == (str(file), at, 17)


@pytest.mark.parametrize("budget", [None, 140_000])
def test_flipped_bit_in_data(dataset: Dataset, budget: int | None) -> None:
    whole = drain(loader(dataset))
    file = dataset.file(2)
    at = record_offsets(file)[17]
    flip(file, at + 12 + 5)
    each = loader(dataset, memory_budget=budget)
    got = []
    with pytest.raises(sf.CorruptRecordError, match="do not match") as caught:
        for batch in each:
            got.append(ids(batch))
    assert (caught.value.file, caught.value.offset, caught.value.ordinal) == (str(file), at, 17)
    # Everything before it was delivered, the cursor is before it, and a retry raises the same
    # error.
    assert got == whole[: len(got)] and 2017 in whole[len(got)]
    assert each.step == len(got)
    with pytest.raises(sf.CorruptRecordError):
        next(iter(each))


def test_a_mended_file_goes_on_at_the_same_batch(dataset: Dataset) -> None:
    whole = drain(loader(dataset))
    file = dataset.file(2)
    stat = file.stat()
    flip(file, record_offsets(file)[17] + 20)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    each = loader(dataset)
    with pytest.raises(sf.CorruptRecordError):
        drain(each)
    step = each.step
    flip(file, record_offsets(file)[17] + 20)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert drain(each) == whole[step:]


def test_not_a_tfrecord_file(dataset: Dataset) -> None:
    file = dataset.folder / "train-99.tfrecord"
    file.write_text("id,label\n" * 100)
    with pytest.raises(sf.CorruptRecordError, match="not a TFRecord file") as caught:
        loader(dataset)
    assert str(file) in str(caught.value)


def test_wrong_compression(dataset: Dataset) -> None:
    with pytest.raises(sf.CorruptRecordError, match="gzip"):
        loader(dataset, compression="gzip")
    with pytest.raises(sf.ConfigError, match="brotli"):
        loader(dataset, compression="brotli")


def test_no_file(tmp_path: Path) -> None:
    for pattern, text in (
        (tmp_path / "*.tfrecord", "no file matches"),
        (tmp_path / "one.tfrecord", "no such file"),
        (tmp_path, "is a folder"),
        ("hdfs://bucket/x-*", "is not known"),
    ):
        with pytest.raises(sf.DatasetNotFoundError, match=text) as caught:
            sf.Loader(str(pattern), batch_size=1)
        assert isinstance(caught.value, FileNotFoundError)
        assert str(pattern) in str(caught.value)
    with pytest.raises(sf.DatasetNotFoundError, match="list of files is empty"):
        sf.Loader([], batch_size=1)


def test_a_file_twice(dataset: Dataset) -> None:
    with pytest.raises(sf.ConfigError, match="listed twice"):
        sf.Loader([dataset.pattern, str(dataset.file(3))], batch_size=1)


def test_one_file_under_two_names(dataset: Dataset) -> None:
    (dataset.folder / "train-98.tfrecord").symlink_to(dataset.file(3))
    with pytest.raises(sf.ConfigError, match="are one file"):
        loader(dataset)
    (dataset.folder / "train-98.tfrecord").unlink()
    other = f"{dataset.folder}/../{dataset.folder.name}/{dataset.file(3).name}"
    with pytest.raises(sf.ConfigError, match="are one file|listed twice"):
        sf.Loader([dataset.pattern, other], batch_size=1)


@pytest.mark.embedded_only  # the cache is this process's
def test_what_was_scanned_beside_a_damaged_file_is_kept(dataset: Dataset, tmp_path: Path) -> None:
    bad = dataset.folder / "train-99.tfrecord"
    bad.write_bytes(b"x" * 100)
    with pytest.raises(sf.CorruptRecordError):
        loader(dataset)
    assert any(not f.suffix for f in (tmp_path / "cache" / "index").iterdir())
    bad.unlink()
    assert loader(dataset).records == 130


def test_new_content_under_an_old_stamp_is_indexed_anew(dataset: Dataset) -> None:
    state = loader(dataset).state_dict()
    file = dataset.file(2)
    stat = file.stat()
    with sf.TFRecordWriter(file) as writer:
        for ordinal in range(40):
            writer.write(example(2000 + 39 - ordinal))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.stat().st_size == stat.st_size
    with pytest.raises(sf.StateError, match="content"):
        loader(dataset, resume=state)


def test_shards_that_the_names_speak_of(tmp_path: Path) -> None:
    for number in (0, 1, 3):
        with sf.TFRecordWriter(tmp_path / f"x-{number:05}-of-00004.tfrecord") as writer:
            writer.write(b"record")
    with pytest.warns(UserWarning, match="'x-00002-of-00004.tfrecord'"):
        sf.Loader(str(tmp_path / "*"), batch_size=1)


def test_no_records(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", [0, 0, 0])
    with pytest.raises(sf.ConfigError, match="no records: 3 shards, all empty"):
        loader(dataset)


def test_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.tfrecord")
    with pytest.raises(sf.DatasetNotFoundError, match="not a regular file"):
        sf.Loader(str(tmp_path / "x.tfrecord"), batch_size=1)


@pytest.mark.parametrize(
    ("features", "text"),
    [
        ({"nothing": sf.FixedLenFeature((), "int64")}, "nothing.*holds `id`, `image`"),
        ({"id": sf.FixedLenFeature((), "float32")}, "int64"),
        ({"image": sf.FixedLenFeature((7,), "float32")}, "6"),
        ({"name": sf.FixedLenFeature((2,), "string")}, "name"),
        ({"list": sf.VarLenFeature("string")}, "list"),
    ],
)
def test_records_that_are_not_what_the_features_say(
    dataset: Dataset, features: dict[str, Any], text: str
) -> None:
    with pytest.raises(sf.FeatureError, match=text) as caught:
        for _ in loader(dataset, features=features):
            pass
    error = caught.value
    assert error.file is not None and error.ordinal is not None
    assert f"record {error.ordinal} at offset {error.offset}" in str(error)


def test_records_that_are_no_examples(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write(b"\xff\xff\xff not a protocol buffer")
    with pytest.raises(sf.FeatureError, match="Example"):
        list(sf.Loader(str(tmp_path / "x.tfrecord"), FEATURES, batch_size=1))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"features": {"id": sf.FixedLenFeature((), "float64")}}, "float64.*cannot be in"),
        ({"features": {"id": sf.FixedLenFeature((-1,), "int64")}}, "shape"),
        ({"features": {"id": sf.FixedLenFeature((2,), "int64", [1, 2, 3])}}, "default_value"),
        ({"features": {"id": sf.FixedLenFeature((), "int64", 1.5)}}, "default_value"),
        ({"features": {"id": "int64"}}, "FixedLenFeature"),
        ({"features": {}}, "empty"),
        ({"features": {"x": sf.FixedLenFeature((2**40, 2**40), "int64")}}, "x"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"batch_size": 2**62, "world_size": 4, "rank": 0}, "at most"),
        ({"seed": -1}, "seed"),
        ({"shuffle_window": 0}, "shuffle_window"),
        ({"block_length": 2**63}, "block_length"),
        ({"tail": "keep"}, '"drop", "pad", "uneven"'),
        ({"shuffle": "no"}, "shuffle must be True or False, not 'no'"),
        ({"restart": "no"}, "restart must be True or False, not 'no'"),
        ({"provenance": None}, "provenance must be True or False, not None"),
        ({"fallback": "0"}, "fallback must be True or False, not '0'"),
        ({"zero_copy": 1}, "zero_copy must be True or False, not 1"),
        ({"limit": 0}, "limit"),
        ({"prefetch": 0}, "prefetch"),
        ({"memory_budget": "lots"}, "memory_budget"),
        ({"memory_budget": 1000}, "too small"),
        ({"rank": 3}, "both rank and world_size"),
        ({"rank": 3, "world_size": 3}, r"rank=3 is not in 0..2"),
        ({"lanes": 3}, r"lanes=3 does not divide .* batch_size=3 or 6, or one of lanes=1, 2, 4"),
        ({"lanes": 2**21, "batch_size": 2**21}, "lanes"),
        ({"coordinator": "host"}, "write HOST:PORT"),
        ({"timeout": -1}, "timeout must be seconds"),
    ],
)
def test_options_without_a_meaning(dataset: Dataset, options: dict[str, Any], text: str) -> None:
    with pytest.raises(sf.ConfigError, match=text):
        for _ in loader(dataset, **options):
            pass


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("batchsize", "has no option 'batchsize'; did you mean batch_size?"),
        ("worldsize", "did you mean world_size?"),
        ("shuffle_buffer", "did you mean shuffle_window?"),
        ("buffer_size", "did you mean shuffle_window?"),
        ("drop_last", "did you mean tail?"),
        ("xyz", "has no option 'xyz'$"),
    ],
)
def test_an_option_that_does_not_exist(dataset: Dataset, option: str, said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said).replace(r"\$", "$")):
        loader(dataset, **{option: 1})


def test_numbers_and_flags_of_numpy_are_options_and_states(dataset: Dataset) -> None:
    each = loader(dataset, batch_size=np.int64(4), shuffle=np.bool_(True))
    next(iter(each))
    state = each.state_dict()
    segments = [[np.int64(number) for number in segment] for segment in state["segments"]]
    framework = changed(state, epoch=np.int64(0), generation=np.array(0), segments=segments)
    assert loader(dataset, resume=framework).step == 1
    with pytest.raises(sf.StateError, match="not a result of state_dict..: .* is a ndarray"):
        loader(dataset, resume=changed(state, epoch=np.zeros(2)))


def test_epochs_have_one_bound(dataset: Dataset) -> None:
    each = loader(dataset)
    for epoch in (2**48, 2**62, 2**63 + 5, 2**64, 2**70):
        with pytest.raises(sf.ConfigError, match=rf"epoch must be at least 0 and below 2\*\*48, not {epoch}"):
            each.set_epoch(epoch)
    assert (each.epoch, each.step) == (0, 0)
    each.set_epoch(2**48 - 1)
    assert loader(dataset, resume=each.state_dict()).epoch == 2**48 - 1
    assert len(list(each)) == len(each)
    with pytest.raises(sf.ConfigError, match=r"below 2\*\*48, not 281474976710656"):
        next(iter(each))
    with pytest.raises(sf.StateError, match=r"below 2\*\*48, not 281474976710656"):
        loader(dataset, resume=each.state_dict())


def test_a_loader_has_no_items(dataset: Dataset) -> None:
    """As a torch DataLoader over it would request them."""
    with pytest.raises(TypeError, match=r"DataLoader\(sf.torch.Dataset\(loader\), batch_size=None, num_workers=0\)"):
        loader(dataset)[0]


def test_a_window_that_does_not_fit_compressed_shards(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", [800], "gzip")
    with pytest.raises(sf.ConfigError, match="shuffle_window=") as caught:
        next(iter(loader(dataset, shuffle_window=700, memory_budget=240_000)))
    fits = int(str(caught.value).split("shuffle_window=")[1].split()[0])
    next(iter(loader(dataset, shuffle_window=fits, memory_budget=240_000)))


def test_a_record_that_does_not_fit_into_the_budget_is_refused_by_its_file(dataset: Dataset) -> None:
    file, budget = dataset.file(5), 500_000
    with sf.TFRecordWriter(file) as writer:
        writer.write(example(5_000) | {"name": "x" * 600_000})
    size = file.stat().st_size - 16  # without its framing
    each = loader(dataset, memory_budget=budget)
    with pytest.raises(sf.ConfigError) as caught:
        next(iter(each))
    said = f"{file}: has a record of {size} bytes, and memory_budget has {budget}; raise it, or leave the file out"
    assert said in str(caught.value)
    # No reading mode was chosen.
    assert each.step == each.stats()["batches"] == 0 and "reading" not in each.stats()


def changed(state: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**state, **fields}


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda s: changed(s, shardfeed_state=2), "format 2.*upgrade shardfeed"),
        (lambda s: changed(s, order=9), "order version 9.*upgrade shardfeed"),
        (
            lambda s: changed(s, order=0, epoch=3),
            r"order version 0, this shardfeed computes order version 1.*start without a state and call set_epoch\(3\)",
        ),
        (lambda s: {k: v for k, v in s.items() if k != "segments"}, "missing field `segments`"),
        (lambda s: {"step": 7}, "no field `shardfeed_state`"),
        (lambda s: json.dumps(s)[: len(json.dumps(s)) // 2], "not a whole shardfeed state"),
        (lambda s: changed(s, segments=[]), "1 to 16 segments"),
        (lambda s: changed(s, segments=[[1, 4, 3]] * 17), "1 to 16 segments"),
        (lambda s: changed(s, segments=[[1, 4, 10**6]]), "beyond the epoch"),
        (lambda s: changed(s, segments=[[1, 4, 2**63]]), "beyond the epoch"),
        (lambda s: changed(s, segments=[[2**60, 2**61, 1]]), "at most"),
        (lambda s: changed(s, segments=[[3, 4, 1]]), "does not divide"),
        (lambda s: changed(s, segments=[[1, 4, [1, 2]]]), "list of steps"),
        (lambda s: changed(s, speaks_for=[0, 2**44]), "do not fit its batch"),
        (lambda s: changed(s, speaks_for=[3, 2]), "do not fit its batch"),
        (lambda s: changed(s, epoch=2**48), r"epoch must be at least 0 and below 2\*\*48, not 281474976710656"),
        (lambda s: changed(s, epoch=2**63 + 5), r"epoch must be at least 0 and below 2\*\*48"),
        (lambda s: changed(s, epoch=2**70), r"epoch must be at least 0 and below 2\*\*48"),
        (lambda s: changed(s, epoch=np.float64(1.5)), "not a whole shardfeed state: .*1.5"),
        (lambda s: changed(s, segments=[[1, 4, -1]]), "not a whole"),
        (lambda s: changed(s, job="00"), "64 hex digits"),
        (lambda s: changed(s, job="0" * 64), "another job: job digest"),
        (lambda s: changed(s, job="0" * 64, records="no spec"), "another job: job digest"),
        (
            lambda s: changed(s, checks=s["checks"].replace("drop,deterministic", "drop,dynamic")),
            'mode="dynamic" and tail="drop", but mode="dynamic" has tail="uneven" only; start over',
        ),
        (lambda s: object(), "not a result of state_dict"),
        (lambda s: "state.json", r"'state.json' is not a state's JSON; if it is a path"),
    ],
)
def test_states_that_are_none(
    dataset: Dataset, damage: Callable[[dict[str, Any]], Any], text: str
) -> None:
    each = loader(dataset)
    next(iter(each))
    state = each.state_dict()
    before = (each.epoch, each.step, each.plan_digest)
    with pytest.raises((sf.StateError, sf.ConfigError), match=text):
        each.load_state_dict(damage(state))
    assert (each.epoch, each.step, each.plan_digest) == before


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"seed": 8}, "seed is 7 in the state and 8 here"),
        ({"shuffle": False}, "shuffle is true in the state and false here, window is 16 in the state and 0 here"),
        ({"shuffle": False, "interleave": 3, "shuffle_window": 1}, "shuffle is true .*, window is 16 .* and 0 here; create"),
        ({"shuffle_window": 15}, "window is 16 in the state and 15 here"),
        ({"interleave": 2}, "interleave is 3 in the state and 2 here"),
        ({"block_length": 2}, "block_length is 1 in the state and 2 here"),
        ({"tail": "pad"}, "tail is drop in the state and pad here"),
        ({"features": {"id": FEATURES["id"]}}, "feature `[a-z]+` is .* in the state and absent here"),
        ({"outputs": ["id"]}, "outputs is absent in the state and id here"),
    ],
)
def test_a_state_of_another_job_names_the_fields(
    dataset: Dataset, other: dict[str, Any], field: str
) -> None:
    state = loader(dataset).state_dict()
    with pytest.raises(sf.StateError, match=f"another job: {field}"):
        loader(dataset, resume=state, **other)


def test_a_state_of_many_features_holds_their_digest_alone(dataset: Dataset) -> None:
    many = {f"{'x' * 60}{number}": sf.VarLenFeature("int64") for number in range(20)}
    state = loader(dataset, features=FEATURES | many).state_dict()
    assert len(json.dumps(state)) < 1024
    with pytest.raises(sf.StateError, match="record_spec is #[0-9a-f]{8} in the state and #[0-9a-f]{8} here"):
        loader(dataset, resume=state)


def test_a_state_of_another_dataset(dataset: Dataset, tmp_path: Path) -> None:
    state = loader(dataset).state_dict()
    other = make_dataset(tmp_path / "other", [13, 0, 40, 7, 21, 1, 30, 17])
    with pytest.raises(sf.StateError, match="another job: order_digest .* content is "):
        loader(other, resume=state)


def test_lanes_of_a_state_that_do_not_divide(dataset: Dataset) -> None:
    state = loader(dataset, world_size=4, rank=0).state_dict()
    with pytest.raises((sf.ConfigError, sf.StateError), match="lanes=4 does not divide") as caught:
        loader(dataset, world_size=3, rank=0, batch_size=5, resume=state)
    assert "batch_size=4 or 8" in str(caught.value)


@pytest.mark.not_killed
@pytest.mark.parametrize("change", ["grow", "rewrite", "remove", "truncate", "fifo"])
def test_a_file_changed_after_indexing(dataset: Dataset, change: str) -> None:
    each = loader(dataset, shuffle_window=4)
    file = dataset.file(2)
    if change == "grow":
        with file.open("ab") as out:
            out.write(b"more")
    elif change == "rewrite":
        stat = file.stat()
        file.write_bytes(file.read_bytes())
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    elif change == "remove":
        file.unlink()
    elif change == "fifo":
        # Opening it would wait for a writer.
        file.unlink()
        os.mkfifo(file)
    else:
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(sf.ShardChangedError, match="changed after it was indexed") as caught:
        for _ in each:
            pass
    assert caught.value.file == str(file)


ODD_NAMES = ("a\ttab", "b\nnewline", "c\x01control", "d\x7f", "ends with#12", "e%41", "f g", "h\u00fc")


def test_names_of_any_characters_are_read(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    for number, name in enumerate(ODD_NAMES):
        with sf.TFRecordWriter(tmp_path / "odd" / name) as writer:
            writer.write({"id": number})
    features = {"id": sf.FixedLenFeature((), "int64")}
    with sf.Loader(str(tmp_path / "odd" / "*"), features, batch_size=4) as each:
        got = [int(number) for batch in each for number in batch["id"]]
        assert set(each.shards) == set(ODD_NAMES)
    assert sorted(got) == list(range(len(ODD_NAMES)))


def test_a_folder_of_names_that_are_not_utf_8_says_so(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff.tfrecord", "wb"):
        pass
    with pytest.raises(sf.DatasetNotFoundError, match="the name is not UTF-8; rename the file"):
        sf.Loader(str(tmp_path / "*.tfrecord"), batch_size=1)


#: Loaders of many files in a process with a low, fixed limit of descriptors.
FEW_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
loaders = [sf.Loader(FILES, batch_size=8, interleave=16, shuffle_window=64, seed=seed) for seed in range(6)]
print([sum(1 for _ in each) for each in loaders])
"""


@pytest.mark.embedded_only  # the limit is this process's
def test_many_loaders_share_few_descriptors(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "many", [3] * 100)
    code = FEW_DESCRIPTORS.replace("FILES", repr(dataset.pattern)).replace("DESCRIPTORS", "64")
    result = subprocess.run(
        [sys.executable, "-c", "import shardfeed as sf\n" + code], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str([300 // 8] * 6)


@pytest.mark.embedded_only  # as above
def test_the_soft_limit_of_descriptors_is_raised(dataset: Dataset) -> None:
    code = """
import resource, sys, shardfeed as sf
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000))
next(iter(sf.Loader(sys.argv[1], batch_size=2)))
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run([sys.executable, "-c", code, dataset.pattern], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "(1000, 1000)\n"), done.stderr


def test_a_file_cut_short_under_the_same_stamp(dataset: Dataset) -> None:
    """Even a false time stamp does not make a record disappear silently."""
    each = loader(dataset, shuffle=False, batch_size=1, prefetch=1)
    file = dataset.file(2)
    stat = file.stat()
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] + b"\0" * (len(data) - len(data) // 2))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(sf.DataError):
        drain(each)
    assert each.step < 53


def as_nobody(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code without root's privileges, so that file modes apply."""
    drop = "import os\nif os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
    return subprocess.run(
        [sys.executable, "-c", "import shardfeed as sf, sys\n" + drop + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.embedded_only  # the cache is this process's
def test_a_cache_folder_that_cannot_be_written(dataset: Dataset, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and str(folder) not in ("/", "/tmp"):
            folder.chmod(0o755)
    cache = tmp_path / "locked"
    cache.mkdir(mode=0o555)
    code = f"print(len(list(sf.Loader({dataset.pattern!r}, batch_size=1))))"
    fine = as_nobody(code, SHARDFEED_CACHE_DIR="off")
    assert fine.returncode == 0 and fine.stderr == "", fine.stderr
    result = as_nobody(code, SHARDFEED_CACHE_DIR=str(cache))
    assert result.returncode == 0 and result.stdout == fine.stdout, result.stderr
    # One warning, with its cost and its remedy.
    (message,) = result.stderr.strip().splitlines()
    assert str(cache) in message and "read as a whole at each start" in message
    assert "SHARDFEED_CACHE_DIR" in message


@pytest.mark.embedded_only  # the cache is this process's
def test_a_cache_folder_that_is_full(dataset: Dataset, tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: the write fails in the middle."""
    code = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "import shardfeed as sf\n"
        f"print(len(list(sf.Loader({dataset.pattern!r}, batch_size=1))))\n"
    )
    cache = tmp_path / "full"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SHARDFEED_CACHE_DIR": str(cache)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0 and int(result.stdout) > 0, result.stderr
    (message,) = result.stderr.strip().splitlines()
    assert "cannot write the index cache" in message and "SHARDFEED_CACHE_DIR" in message
    # No partial file is left, and the next start works.
    left = [file.name for file in (cache / "index").iterdir() if "part" in file.name]
    assert left == []


@pytest.mark.embedded_only  # the cache is this process's
def test_a_damaged_cache_is_scanned_anew(dataset: Dataset, tmp_path: Path) -> None:
    expected = drain(loader(dataset))
    (index,) = [f for f in (tmp_path / "cache" / "index").iterdir() if not f.suffix]
    for damage in (b"", b"garbage", index.read_bytes()[:-3]):
        index.write_bytes(damage)
        assert drain(loader(dataset)) == expected


def test_a_ledger_that_cannot_be_written(dataset: Dataset, monkeypatch: Any) -> None:
    monkeypatch.setenv("SHARDFEED_LEDGER", str(dataset.file(0)))
    with pytest.raises(sf.ShardfeedError, match="SHARDFEED_LEDGER"):
        loader(dataset)


def test_a_closed_loader(dataset: Dataset) -> None:
    with loader(dataset) as each:
        batch = next(iter(each))
    with pytest.raises(sf.ShardfeedError, match="closed"):
        next(iter(each))
    assert len(ids(batch)) == 4
    assert example(0)["id"] == 0


@pytest.mark.embedded_only
def test_what_only_a_cluster_has(dataset: Dataset) -> None:
    with pytest.raises(sf.ConfigError, match="needs a coordinator"):
        loader(dataset, resume="latest")
    with pytest.raises(sf.ConfigError, match="known to a coordinator only"):
        sf.Loader(dataset="train", batch_size=1)
    with pytest.raises(sf.ConfigError, match="pass files, or dataset="):
        sf.Loader(dataset.pattern, dataset="train", batch_size=1)
    with pytest.raises(sf.ConfigError, match="pass files, or dataset="):
        sf.Loader(batch_size=1)
