"""Datasets written from Python: records, arrays, generators, and their loaders."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf
from shardfeed import mixing
from shardfeed.testing import Cluster

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/DATASETS.md"
NUMBERS = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "float32", "float64")


def records(count: int) -> list[bytes]:
    """Returns records of different sizes, in a recognizable order."""
    return [b"%06d" % number + b"x" * (number % 97) for number in range(count)]


def read(source: sf.Source) -> list[list[bytes]]:
    return [list(sf.read_records(file)) for file in source.files]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Message:
    """The required part of a `tf.train.Example`; the real one is in tests/frameworks."""

    def SerializeToString(self) -> bytes:
        return sf.encode_example({"x": [1, 2]})


# Records


def test_protocol_buffers_are_records(tmp_path: Path) -> None:
    with sf.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write(Message())
        with pytest.raises(sf.ConfigError, match="a record is bytes, a protocol buffer .* not a int"):
            writer.write(5)  # type: ignore[arg-type]
    assert list(sf.read_records(tmp_path / "x.tfrecord")) == [Message().SerializeToString()]
    source = sf.write_dataset([Message(), Message()], tmp_path / "out")
    assert read(source) == [[Message().SerializeToString()] * 2]


def test_tuples_are_x_and_y(tmp_path: Path) -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(4)
    source = sf.from_arrays((x, y), tmp_path / "arrays")
    assert list(source.features or {}) == ["x", "y"]
    # The same as by name: nothing is written.
    assert sf.from_arrays({"x": x, "y": y}, tmp_path / "arrays") == source
    made = sf.from_generator(lambda: zip(x, y, [0.5] * 4, strict=True), tmp_path / "generator")
    with sf.Loader(made, batch_size=4, shuffle_window=1) as loader:
        batch = next(iter(loader))
        assert set(batch) == {"x", "y", "sample_weight"}
        assert (batch["x"][:, 0] == 3 * batch["y"]).all() and batch["sample_weight"].dtype == np.float64
    for wrong in ((), (x, y, y, y)):
        with pytest.raises(sf.ConfigError, match=r"or a tuple \(x, y\), not a tuple"):
            sf.from_arrays(wrong, tmp_path / "wrong")
    with pytest.raises(sf.ConfigError, match="record 1: lacks the columns"):
        sf.from_generator(lambda: iter([(1, 2), (1,)]), tmp_path / "wrong")


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
        # The mean of 1,000 of them has a standard deviation of 183; and neighbors in the input are
        # separated.
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
    # Chi-square with 5 degrees of freedom; exceeds 20.5 once in 1,000 times, and the seeds are
    # fixed.
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
    with sf.Loader(source.parse(features), batch_size=8) as loader:
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
    sf.from_arrays({"x": np.arange(100)}, tmp_path, shard_bytes=1000)
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


@pytest.mark.parametrize(("gone", "come"), [(0, 0), (2, 0), (3, 0), (3, 1), (3, 2)])
@pytest.mark.parametrize("force", [False, True])
def test_old_shards_return_after_a_kill_between_renames(tmp_path: Path, gone: int, come: int, force: bool) -> None:
    """- `gone`: old shards that were aside.
    - `come`: new ones that had their names.
    """
    out, staging = tmp_path / "out", tmp_path / "out/.data.writing"
    (staging / "replaced").mkdir(parents=True)
    (staging / "locked").touch()
    (out / "kept").write_text("kept")
    for shard in range(3):
        name = f"data-{shard:05}-of-00003.tfrecord"
        ((staging / "replaced" if shard < gone else out) / name).write_text("old")
    new = [f"data-{shard:05}-of-00002.tfrecord" for shard in range(2)]
    for shard, name in enumerate(new):
        ((out if shard < come else staging) / name).write_text("new")
    if gone == 3:
        (staging / "names").write_text("\n".join([*new, "kept"]))
    if force:
        with pytest.raises(ZeroDivisionError):
            sf.write_dataset((bytes([1 // 0]) for _ in range(1)), out, force=True)
    else:
        with pytest.raises(sf.ConfigError, match="already holds 3 files with the prefix 'data'"):
            sf.write_dataset([b"x"], out)
    expected = {f"data-{shard:05}-of-00003.tfrecord": b"old" for shard in range(3)}
    assert content(out) == expected | {"kept": b"kept"}


def test_a_kill_after_the_last_rename_keeps_the_new_shards(tmp_path: Path) -> None:
    sf.write_dataset([b"new"], tmp_path)
    before, staging = content(tmp_path), tmp_path / ".data.writing"
    (staging / "obsolete").mkdir(parents=True)
    (staging / "locked").touch()
    (staging / "obsolete/data-00000-of-00002.tfrecord").write_text("old")
    with pytest.raises(sf.ConfigError, match="already holds 1 files"):
        sf.write_dataset([b"x"], tmp_path)
    assert content(tmp_path) == before
    assert not staging.exists()


def test_shards_that_cannot_be_moved_back_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sf.write_dataset([b"old"], tmp_path)
    before, rename, shard = content(tmp_path), Path.rename, "data-00000-of-00001.tfrecord"

    def broken(source: Path, target: Path) -> Path:
        if target == tmp_path / shard:
            raise OSError("broken disk")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(sf.ConfigError, match=r"the shards in .*/\.data\.writing cannot be moved back: broken disk; keep"):
        sf.write_dataset([b"new"], tmp_path, force=True)
    with pytest.raises(sf.ConfigError, match=r"cannot move back the shards in .*/\.data\.writing: broken disk"):
        sf.write_dataset([b"new"], tmp_path, force=True)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == [".data.writing"]
    with pytest.raises(sf.ConfigError, match="already holds 1 files"):
        sf.write_dataset([b"new"], tmp_path)
    assert content(tmp_path) == before


def test_a_folder_that_cannot_be_marked_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(OSError, match="disk full"):
        sf.write_dataset([b"x"], tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_file_system_without_locks_keeps_the_lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("shardfeed.staging.fcntl.flock", unsupported)
    assert read(sf.write_dataset([b"x"], tmp_path)) == [[b"x"]]
    assert sorted(os.listdir(tmp_path)) == [".data.lock", "data-00000-of-00001.tfrecord"]
    monkeypatch.undo()
    sf.write_dataset([b"x"], tmp_path, force=True)
    assert os.listdir(tmp_path) == ["data-00000-of-00001.tfrecord"]


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
        ([b"x", "y"], {}, "record 1: a record is bytes, a protocol buffer .*, or a dict of features, not a str"),
        ([b"x", 5], {}, "record 1: a record is bytes.* not a int"),
        ([b"x"], {"force": "no"}, "force must be True or False, not 'no'"),
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


# Arrays


def arrays(count: int, shape: tuple[int, ...]) -> dict[str, Any]:
    random = np.random.default_rng(5)
    made: dict[str, Any] = {"row": np.arange(count)}
    for name in NUMBERS:
        dtype = np.dtype(name)
        if dtype.kind == "b":
            made[name] = random.integers(0, 2, (count, *shape)).astype(dtype)
        else:
            # Random bits: NaNs with their payloads, infinities, negative zeros.
            values = random.bytes(count * int(np.prod(shape)) * dtype.itemsize)
            made[name] = np.frombuffer(values, dtype).reshape(count, *shape)
    return made


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_every_type_comes_back_as_it_went_in(tmp_path: Path, shape: tuple[int, ...]) -> None:
    given = arrays(353, shape)
    source = sf.from_arrays(given, tmp_path / "out", shard_bytes=30_000)
    assert len(source.files) >= 3 and source.records == 353
    seen: list[int] = []
    with sf.Loader(source, batch_size=70, tail="uneven") as loader:
        for batch in loader:
            rows = batch["row"]
            seen += rows.tolist()
            for name, array in given.items():
                got, wanted = batch[name], array[rows]
                assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
                assert got.tobytes() == wanted.tobytes(), name
    assert sorted(seen) == list(range(353))


def test_foreign_byte_orders_and_strides(tmp_path: Path) -> None:
    wide = np.arange(240, dtype=">i4").reshape(20, 12)
    turned = wide.T[:2].T
    given = {"big": wide, "double": wide.astype(">f8"), "part": wide[:, ::3], "turned": turned, "at": np.arange(20)}
    with sf.Loader(sf.from_arrays(given, tmp_path / "out"), batch_size=20) as loader:
        (batch,) = loader
    for name, array in given.items():
        assert batch[name].dtype == array.dtype.newbyteorder("=")
        assert np.array_equal(batch[name], array[batch["at"]]), name


def test_strings_keep_every_byte(tmp_path: Path) -> None:
    texts = [f"té {row}" for row in range(9)]
    blobs = [b"\0" * row for row in range(9)]
    pairs = [["a" * row, "b"] for row in range(9)]
    given = {"at": np.arange(9), "text": texts, "blob": blobs, "pair": pairs, "numpy": np.array(texts)}
    with sf.Loader(sf.from_arrays(given, tmp_path / "out"), batch_size=9) as loader:
        (batch,) = loader
    for row, at in enumerate(batch["at"]):
        assert batch["text"][row] == batch["numpy"][row] == texts[at].encode()
        assert batch["blob"][row] == blobs[at]
        assert batch["pair"][row] == [text.encode() for text in pairs[at]]


def test_a_long_string_does_not_make_all_long(tmp_path: Path) -> None:
    texts = ["x" * 10_000_000, *["short"] * 2000]  # 80 GB as an array of numpy's own strings
    source = sf.from_arrays({"text": texts}, tmp_path / "out")
    (shard,) = read(source)
    assert len(shard) == 2001 and 10_000_000 < sum(map(len, shard)) < 10_100_000


def test_the_second_call_writes_nothing(tmp_path: Path) -> None:
    given = {"x": np.arange(100), "y": ["a"] * 100}
    folder = tmp_path / "out"
    first = sf.from_arrays(given, folder)
    written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    folder.chmod(0o555)
    try:
        again = sf.from_arrays(given, folder)
    finally:
        folder.chmod(0o755)
    assert again == first == sf.open_source(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == written


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"x": np.arange(1, 101)}, {}),
        ({"x": np.arange(100, dtype=np.int32)}, {}),
        ({"x": np.arange(100).reshape(100, 1)}, {}),
        ({"x": np.arange(99), "y": ["a"] * 99}, {}),
        ({"y": ["a"] * 99 + ["b"]}, {}),
        ({"z": np.zeros(100)}, {}),
        ({}, {"seed": 1}),
        ({}, {"shard_bytes": 1000}),
        ({}, {"compression": "zlib"}),
    ],
)
def test_other_arrays_or_options_are_refused_or_replace(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"x": np.arange(100), "y": ["a"] * 100}
    sf.from_arrays(given, tmp_path)
    before = content(tmp_path)
    with pytest.raises(sf.ConfigError, match="already holds 2 files with the prefix 'data'"):
        sf.from_arrays(given | change, tmp_path, **options)
    assert content(tmp_path) == before
    sf.from_arrays(given | change, tmp_path, force=True, **options)
    assert content(tmp_path) != before
    assert sf.open_source(tmp_path) == sf.from_arrays(given | change, tmp_path, **options)


def test_a_run_goes_on_at_the_exact_batch_over_the_same_arrays_elsewhere(tmp_path: Path) -> None:
    given = {"at": np.arange(200), "x": np.random.default_rng(1).random((200, 4)).astype(np.float16)}
    options: dict[str, Any] = {"shard_bytes": 1000, "seed": 3}
    with sf.Loader(sf.from_arrays(given, tmp_path / "a", **options), batch_size=8) as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        state = loader.state_dict()
        rest = [batch["at"].tolist() for batch in batches]
    with sf.Loader(sf.from_arrays(given, tmp_path / "b", **options), batch_size=8, resume=state) as loader:
        assert [batch["at"].tolist() for batch in loader] == rest
    other = sf.from_arrays(given | {"at": np.arange(1, 201)}, tmp_path / "c", **options)
    with pytest.raises(sf.StateError):
        sf.Loader(other, batch_size=8, resume=state)


RANK = """
    import sys, time
    import numpy as np
    import shardfeed as sf

    x = np.arange(3000)
    source = sf.from_arrays({"x": x, "y": x.astype(np.uint8)}, sys.argv[1], shard_bytes=20_000)
    print(source.records, len(source.files))
"""


def start(code: str, *arguments: Any) -> subprocess.Popen[str]:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **paths},
    )  # fmt: skip


def test_ranks_that_start_together_write_once(tmp_path: Path) -> None:
    ranks = [start(RANK, tmp_path / "out") for _ in range(4)]
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, said
    assert len({out for out, _ in said}) == 1
    assert len(list((tmp_path / "out").iterdir())) == len(sf.open_source(tmp_path / "out").files) + 1


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


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "arrays is a dict of arrays by name"),
        (np.zeros(3), "arrays is a dict of arrays by name"),
        ({"x": [1, 2], "y": [1]}, r"their lengths are \{'x': 2, 'y': 1\}"),
        ({"x": []}, "no rows|no values"),
        ({"x": np.zeros((0, 2))}, "the arrays have no rows"),
        ({"x": np.zeros((2, 0))}, r"column 'x': shape \(0,\) has no values"),
        ({"x": np.float32(1)}, "one row for each record"),
        ({"x": [[1], [2, 3]]}, "column 'x' is no array"),
        ({"x": np.zeros(2, np.uint64)}, "column 'x' is uint64, which cannot be stored; convert it to int64"),
        ({"x": np.zeros(2, complex)}, "column 'x' is complex128, which cannot be stored"),
        ({"x": np.zeros(2, "M8[s]")}, r"column 'x' is datetime64\[s\], which cannot be stored"),
        ({"x": [object()]}, "neither numbers, all of one shape, nor strings"),
        ({"x": [b"a", 1]}, "neither numbers, all of one shape, nor strings"),
        ({1: [1]}, "a column's name is a str, not 1"),
    ],
)
def test_arrays_that_cannot_be_written(tmp_path: Path, given: Any, says: str) -> None:
    with pytest.raises(sf.ConfigError, match=says):
        sf.from_arrays(given, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Generators


def photos() -> Iterator[dict[str, Any]]:
    for at in range(30):
        pixels = np.full((4, 2), at, np.uint8)
        yield {"at": at, "half": at / 2, "pixels": pixels, "name": f"n{at}", "is_even": at % 2 == 0}


def test_a_generator_is_written_once_and_opened_later(tmp_path: Path) -> None:
    source = sf.from_generator(photos, tmp_path / "out", shard_bytes=500)
    assert sf.open_source(tmp_path / "out") == source
    with sf.Loader(sf.open_source(tmp_path / "out"), batch_size=5) as loader:
        rows = [(batch, row) for batch in loader for row in range(5)]
    given = list(photos())
    assert sorted(int(batch["at"][row]) for batch, row in rows) == list(range(30))
    for batch, row in rows:
        wanted = given[int(batch["at"][row])]
        assert batch["half"].dtype == np.float64 and batch["half"][row] == wanted["half"]
        assert batch["pixels"].dtype == np.uint8 and np.array_equal(batch["pixels"][row], wanted["pixels"])
        assert batch["is_even"].dtype == np.bool_ and batch["is_even"][row] == wanted["is_even"]
        assert batch["name"][row] == wanted["name"].encode()
    with pytest.raises(sf.ConfigError, match=r"open them with open_source\(\), .* force=True"):
        sf.from_generator(photos, tmp_path / "out")


def test_columns_as_declared(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for at in range(12):
            yield {"at": at, "x": 0.1, "tokens": list(range(at)), "words": ["w"] * at}

    columns: dict[str, Any] = {
        "at": ("int32", ()), "x": (np.float32, ()), "tokens": ("int64", (None,)), "words": ("string", (None,)),
    }  # fmt: skip
    source = sf.from_generator(rows, tmp_path / "out", columns=columns)
    assert sf.open_source(tmp_path / "out") == source
    with sf.Loader(source, batch_size=12) as loader:
        (batch,) = loader
    assert batch["at"].dtype == np.int32 and batch["x"].tolist() == [np.float32(0.1)] * 12
    for row, at in enumerate(batch["at"]):
        assert batch["tokens"][row].tolist() == list(range(at))
        assert list(batch["words"][row]) == [b"w"] * at


@pytest.mark.parametrize(
    ("rows", "columns", "says"),
    [
        ([{"a": 1}, {"a": 1.5}], None, "record 1: column 'a' is int64, but here float64: 1.5"),
        ([{"a": 1}, {"a": "x"}], None, "record 1: column 'a' is int64, but here"),
        ([{"a": 1.0}, {"a": 2**53 + 1}], None, "record 1: column 'a' is float64, but here int64"),
        ([{"a": "x"}, {"a": 1}], None, "record 1: column 'a' has strings, but here 1"),
        ([{"a": [1]}, {"a": [1, 2]}], None, r"record 1: column 'a' has shape \(1,\), but here \(2,\)"),
        ([{"a": np.int32(1)}, {"a": np.int64(1)}], None, "record 1: column 'a' is int32, but here int64"),
        ([{"a": True}, {"a": 1}], None, "record 1: column 'a' is bool, but here int64"),
        ([{"a": 1, "b": 1}, {"a": 1}], None, r"record 1: lacks the columns \['b'\]"),
        ([{"a": 1}, {"a": 1, "b": 1}], None, "record 1: has columns besides: 'b'"),
        ([{"a": 1}, None], None, "record 1 is a dict of columns, not None"),
        ([{"a": None}], None, "record 0: column 'a' has objects"),
        ([], None, "there are no records"),
        (None, None, "the function returns an iterable of dicts, or yields them, but here NoneType"),
        ([{"a": 300}], {"a": ("uint8", ())}, "record 0: column 'a' is uint8, but here int64: 300"),
        ([{"a": 1}], {"a": ("uint64", ())}, "column 'a' is uint64"),
        ([{"a": 1}], {"a": ("int32", (None,))}, "rows may differ as .None,. only"),
        ([{"a": 1}], {"a": ("int64", (2, None))}, "rows may differ as .None,. only"),
        ([{"a": 1}], {"a": ("int64", 5)}, "shape 5 must be a sequence"),
        ([{"a": 1}], {"a": "int64"}, r"declared as \(dtype, shape\)"),
        ([{"a": 1}], {}, "columns is a dict of name to"),
    ],
)
def test_rows_that_are_not_alike(tmp_path: Path, rows: Any, columns: Any, says: str) -> None:
    with pytest.raises(sf.ConfigError, match=says):
        sf.from_generator(lambda: rows, tmp_path / "out", columns=columns)
    assert not (tmp_path / "out").exists()


def test_a_generator_is_passed_uncalled(tmp_path: Path) -> None:
    with pytest.raises(sf.ConfigError, match="pass it without calling it"):
        sf.from_generator(photos(), tmp_path / "out")  # type: ignore[arg-type]


# Sources in a loader


def test_methods_come_after_the_columns_of_the_source(tmp_path: Path) -> None:
    source = sf.from_arrays({"x": np.arange(8, dtype=np.uint8), "at": np.arange(8)}, tmp_path / "out")
    scaled = source.scale("x", 2.0, output="y")
    with sf.Loader(scaled, batch_size=8) as loader:
        (batch,) = loader
    assert set(batch) == {"x", "y", "at"} and batch["x"].dtype == np.uint8
    assert batch["y"].tolist() == (batch["x"] * 2.0).tolist()
    with sf.Loader(scaled, outputs=["y"], batch_size=8) as loader:
        assert set(next(iter(loader))) == {"y"}
    # Other features of the same files are another source.
    with sf.Loader(source.files, {"x": sf.FixedLenFeature((), "string")}, batch_size=8) as loader:
        assert sorted(next(iter(loader))["x"]) == [bytes([value]) for value in range(8)]


def test_files_that_were_cut_between_records_are_noticed(tmp_path: Path) -> None:
    source = sf.write_dataset([b"x" * 8] * 100, tmp_path / "out")
    path = Path(source.files[0])
    path.write_bytes(path.read_bytes()[: 24 * 90])
    with pytest.raises(sf.ShardChangedError, match="the files hold 90 records, but 100 were written"):
        sf.Loader(source, batch_size=4)
    with sf.Loader(source, batch_size=4, corrupt="skip-record") as loader:
        assert loader.records == 90


SHARD, SAYS = "data-00000-of-00001.tfrecord", "data.shardfeed.json"


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda out: (out / SHARD).unlink(), sf.DatasetNotFoundError, "is not there, but was written"),
        (lambda out: os.truncate(out / SHARD, 30), sf.ShardChangedError, "has 30 bytes, but"),
        (lambda out: (out / SAYS).unlink(), sf.DatasetNotFoundError, "the content of the records is unknown"),
        (lambda out: (out / SAYS).write_text("{"), sf.ConfigError, "does not describe the shards"),
        (lambda out: (out / SAYS).write_text('{"format": 1}'), sf.ConfigError, "does not describe the"),
        (lambda out: (out / SAYS).write_text('{"format": 2}'), sf.ConfigError, "has format 2; this version .* reads 1"),
    ],
)
def test_a_source_that_is_not_whole(
    tmp_path: Path, change: Callable[[Path], Any], error: type[Exception], says: str
) -> None:
    given = {"x": np.arange(10)}
    sf.from_arrays(given, tmp_path)
    change(tmp_path)
    with pytest.raises(error, match=says):
        sf.open_source(tmp_path)
    with pytest.raises((error, sf.ConfigError)):
        sf.from_arrays(given, tmp_path)
    sf.from_arrays(given, tmp_path, force=True)
    assert sf.open_source(tmp_path).records == 10


def test_of_several_datasets_one_is_named(tmp_path: Path) -> None:
    for prefix in ("train", "test"):
        sf.from_arrays({"x": np.arange(len(prefix))}, tmp_path, prefix=prefix)
    with pytest.raises(sf.ConfigError, match="holds the datasets test, train; say which with prefix="):
        sf.open_source(tmp_path)
    assert sf.open_source(tmp_path, "train").records == 5
    description = json.loads((tmp_path / "train.shardfeed.json").read_text())
    assert description["columns"] == [{"name": "x", "dtype": "int64", "shape": []}]


def test_the_examples_of_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) == 4
    exec("\n".join(blocks), {})
    assert sorted(os.listdir("data")) == ["digits", "documents", "scores"]
    assert len(os.listdir("data/scores")) > 2


def test_a_worker_of_a_cluster_reads_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_cluster: Cluster
) -> None:
    given = {"at": np.arange(100), "x": np.arange(100, dtype=np.uint8)}
    source = sf.from_arrays(given, tmp_path / "out", shard_bytes=1000)
    for variable, value in small_cluster.variables("from-python").items():
        monkeypatch.setenv(variable, value)
    with sf.Loader(source, batch_size=10, job="from-python") as loader:
        seen = {int(at): value for batch in loader for at, value in zip(batch["at"], batch["x"], strict=True)}
        assert loader.job == "from-python"
    assert seen == {at: np.uint8(at) for at in range(100)}
