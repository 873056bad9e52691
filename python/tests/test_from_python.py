"""Datasets written from Python, and what a loader makes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf
from shardfeed import mixing



def records(count: int) -> list[bytes]:
    """Of sizes that differ, in an order that a reader would notice."""
    return [b"%06d" % number + b"x" * (number % 97) for number in range(count)]


def read(source: sf.Source) -> list[list[bytes]]:
    return [list(sf.read_records(file)) for file in source.files]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Records


@pytest.mark.parametrize(("compression", "ending"), [(None, ""), ("gzip", ".gz"), ("zlib", ".zlib")])
def test_every_record_is_in_one_shard(tmp_path: Path, compression: str | None, ending: str) -> None:
    given = records(1000)
    folder = tmp_path / "deep/out"
    source = sf.write_dataset(given, folder, shard_bytes=10_000, compression=compression)
    shards = len(source.files)
    assert shards == -(-sum(len(record) + 16 for record in given) // 10_000)
    assert sorted(os.listdir(folder)) == [f"data-{at:05}-of-{shards:05}.tfrecord{ending}" for at in range(shards)]
    assert source.files == tuple(str(folder / name) for name in sorted(os.listdir(folder)))
    assert sorted(record for shard in read(source) for record in shard) == given
    assert (source.records, source.features) == (1000, None)
    with sf.Loader(source, batch_size=10) as loader:
        assert sorted(record for batch in loader for record in batch["record"]) == given


def test_shards_are_alike_however_the_records_come(tmp_path: Path) -> None:
    given = [number.to_bytes(4, "big") for number in range(20_000)]
    shards = read(sf.write_dataset(given, tmp_path, shard_bytes=20 * 1000))
    assert len(shards) == 20
    for shard in shards:
        numbers = np.array([int.from_bytes(record, "big") for record in shard])
        assert len(numbers) == 1000
        # The mean of 1,000 of them has a standard deviation of 183; and no two neighbours of the input in a row.
        assert abs(numbers.mean() - 9999.5) < 5 * 183
        assert (np.abs(np.diff(numbers)) == 1).sum() < 10


def test_any_order_is_as_likely_as_any_other(tmp_path: Path) -> None:
    orders = []
    for seed in range(600):
        keys, mixer = mixing.Keys(seed), mixing.Mixer(tmp_path / "unused")
        for number, record in enumerate([b"a", b"b", b"c"]):
            mixer.add(keys.key(number), record)
        orders.append(b"".join(mixer.drain()))
    counts = np.unique(orders, return_counts=True)[1]
    # Chi-square with 5 degrees of freedom; beyond 20.5 once in a thousand times, and the seeds are always these.
    assert len(counts) == 6 and ((counts - 100) ** 2 / 100).sum() < 20.5


def test_the_same_is_the_same_bytes_and_another_seed_is_not(tmp_path: Path) -> None:
    def written(name: str, **options: Any) -> dict[str, bytes]:
        sf.write_dataset(iter(records(500)), tmp_path / name, shard_bytes=9000, **options)
        return content(tmp_path / name)

    plain = written("a")
    assert written("b") == plain
    assert written("c", seed=1) != plain
    assert written("d", compression="gzip") == written("e", compression="gzip")
    assert sorted(plain) == sorted(written("f", seed=1))


@pytest.mark.parametrize("memory_bytes", [1, 5_000, 40_000])
def test_little_memory_gives_the_same_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> None:
    given = records(2000)
    sf.write_dataset(given, tmp_path / "whole", shard_bytes=20_000)
    held = []

    class Watched(mixing.Mixer):
        def add(self, key: int, record: bytes) -> None:
            super().add(key, record)
            held.append(self._held_bytes)

    monkeypatch.setattr(mixing, "MEMORY_BYTES", memory_bytes)
    monkeypatch.setattr("shardfeed.writing.Mixer", Watched)
    sf.write_dataset(given, tmp_path / "parts", shard_bytes=20_000)
    assert content(tmp_path / "parts") == content(tmp_path / "whole")
    assert max(held) <= max(memory_bytes, 500)


def test_a_spilled_record_that_comes_back_otherwise_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixing, "MEMORY_BYTES", 10_000)

    def stream() -> Iterator[bytes]:
        yield from records(500)
        spilled = sorted((tmp_path / "out/.data.writing/mixing").iterdir())[7]
        data = bytearray(spilled.read_bytes())
        data[-1] ^= 1
        spilled.write_bytes(data)

    with pytest.raises(sf.DataError, match="came back damaged; check the disk"):
        sf.write_dataset(stream(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_dicts_are_examples(tmp_path: Path) -> None:
    given = [{"id": number, "text": f"té {number}", "list": list(range(number % 3))} for number in range(40)]
    source = sf.write_dataset(given, tmp_path)
    features = {
        "id": sf.FixedLenFeature((), "int64"), "text": sf.FixedLenFeature((), "string"),
        "list": sf.VarLenFeature("int64"),
    }  # fmt: skip
    with sf.Loader(source, features, batch_size=8) as loader:
        rows = {
            int(at): (text, list(values))
            for batch in loader
            for at, text, values in zip(batch["id"], batch["text"], batch["list"], strict=True)
        }
    assert rows == {each["id"]: (str(each["text"]).encode(), each["list"]) for each in given}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("memory_bytes", [10_000, 1 << 28])
def test_an_error_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], memory_bytes: int
) -> None:
    monkeypatch.setattr(mixing, "MEMORY_BYTES", memory_bytes)

    def stream() -> Iterator[bytes]:
        yield from records(1000)
        raise error

    (tmp_path / "there").mkdir()
    (tmp_path / "there/mine.txt").write_text("mine")
    for folder in ("there", "new/deep"):
        with pytest.raises(error):
            sf.write_dataset(stream(), tmp_path / folder)
    assert content(tmp_path / "there") == {"mine.txt": b"mine"}
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_error_between_renames_leaves_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    sf.write_dataset(records(100), tmp_path, shard_bytes=1000)
    before, rename, calls = content(tmp_path), Path.rename, []
    assert len(before) > 3

    def interrupted(source: Path, target: Path) -> Path:
        if source.parent.name == ".data.writing" and target.parent == tmp_path:
            calls.append(target)
            if len(calls) == after + 1:
                raise KeyboardInterrupt
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sf.write_dataset(records(1000), tmp_path, shard_bytes=10_000, force=True)
    monkeypatch.undo()
    assert content(tmp_path) == before


def test_shards_that_are_there_stay_or_are_replaced_whole(tmp_path: Path) -> None:
    sf.write_dataset(records(100), tmp_path, shard_bytes=1000)
    (tmp_path / "other-00000-of-00001.tfrecord").write_bytes(b"")
    before = content(tmp_path)
    with pytest.raises(sf.ConfigError, match=r"already holds \d+ files with the prefix 'data'.*force=True"):
        sf.write_dataset([b"x"], tmp_path)
    assert content(tmp_path) == before
    sf.write_dataset([b"x"], tmp_path, prefix="more")
    source = sf.write_dataset([b"y"], tmp_path, force=True)
    assert read(source) == [[b"y"]]
    names = ["data-00000-of-00001.tfrecord", "more-00000-of-00001.tfrecord", "other-00000-of-00001.tfrecord"]
    assert sorted(os.listdir(tmp_path)) == names


def test_while_the_command_writes_nobody_else_does(tmp_path: Path) -> None:
    staging = tmp_path / ".data.writing"
    staging.mkdir()
    with pytest.raises(sf.ConfigError, match="another process writes these shards, or one did and was killed"):
        sf.write_dataset([b"x"], tmp_path)
    assert os.listdir(tmp_path) == [".data.writing"]
    sf.write_dataset([b"x"], tmp_path, force=True)
    assert os.listdir(tmp_path) == ["data-00000-of-00001.tfrecord"]


@pytest.mark.parametrize(
    ("given", "options", "says"),
    [
        ([], {}, "there are no records to write"),
        ([b"x", "y"], {}, "record 1 is bytes or a dict of features, not str"),
        ([b"x", 5], {}, "record 1 is bytes or a dict"),
        ([{"a": 1}, {"a": 1j}], {}, "record 1: feature 'a'"),
        ([{"a": 2**63}], {}, "record 0: feature 'a'.*does not fit int64"),
        ({"x": [1]}, {}, "from_arrays"),
        (lambda: [b"x"], {}, "not from function; call it"),
        (5, {}, "not from int"),
        ([b"x"], {"shard_bytes": 0}, "shard_bytes must be at least 1"),
        ([b"x"], {"shard_bytes": "0.1"}, "shard_bytes must be at least 1"),
        ([b"x"], {"shard_bytes": "many"}, "shard_bytes='many': use bytes or text"),
        ([b"x"] * 100_000, {"shard_bytes": 17}, "more than 99999 shards, before the records end"),
        ([b"x"], {"seed": -1}, "seed must be at least 0"),
        ([b"x"], {"compression": "zstd"}, "compression='zstd' is none of"),
        ([b"x"], {"prefix": ".x"}, "does not start with a dot"),
        ([b"x"], {"prefix": "a/b"}, "holds a slash"),
        ([b"x"], {"directory": "s3://bucket/x"}, "local or mounted"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, given: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(sf.ConfigError, match=says):
        sf.write_dataset(given, **({"directory": tmp_path / "out"} | options))
    assert not (tmp_path / "out").exists()


def start(code: str, *arguments: Any) -> subprocess.Popen[str]:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **paths},
    )  # fmt: skip


WRITER = """
    import sys, time
    import shardfeed as sf

    def stream():
        yield b"x"
        print("writing", flush=True)
        while True:
            time.sleep(0.01)
            yield b"y"

    sf.write_dataset(stream(), sys.argv[1])
"""


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGKILL])
def test_a_writer_that_is_killed_is_in_nobodys_way(tmp_path: Path, with_signal: signal.Signals) -> None:
    writer = start(WRITER, tmp_path / "out")
    try:
        assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
        with pytest.raises(sf.ConfigError, match="another process writes shards with the prefix 'data'; wait for it"):
            sf.write_dataset([b"z"], tmp_path / "out")
        sf.write_dataset([b"z"], tmp_path / "out", prefix="other")
    finally:
        writer.send_signal(with_signal)
        writer.communicate(timeout=60)
    left = {"other-00000-of-00001.tfrecord"}
    if with_signal == signal.SIGKILL:
        left |= {".data.writing", ".data.lock"}
    assert set(os.listdir(tmp_path / "out")) == left
    assert read(sf.write_dataset([b"z"], tmp_path / "out")) == [[b"z"]]
    assert len(os.listdir(tmp_path / "out")) == 2


def test_files_that_were_cut_between_records_are_noticed(tmp_path: Path) -> None:
    source = sf.write_dataset([b"x" * 8] * 100, tmp_path / "out")
    path = Path(source.files[0])
    path.write_bytes(path.read_bytes()[: 24 * 90])
    with pytest.raises(sf.ShardChangedError, match="the files hold 90 records, but 100 were written"):
        sf.Loader(source, batch_size=4)
    with sf.Loader(source, batch_size=4, corrupt="skip-record") as loader:
        assert loader.records == 90
