"""`index=`: what one host found in the files of a dataset, other hosts do not read again."""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stores import S3, Proxy, Web
from test_bad_input import flip, record_offsets
from test_filter import World

import shardfeed as sf
from shardfeed.testing import BINARY

pytestmark = pytest.mark.embedded_only

Make = Callable[[sf.Source], sf.Source]

#: Samples of the records of `test_filter.World`.
PROGRAMS: dict[str, Make] = {
    "records": lambda source: source,
    "filter": lambda source: source.filter("width > 50"),
    "rows": lambda source: source.filter("width > 0").unbatch("tags").filter("tags > 2"),
    "packs": lambda source: source.pack("tags", length=16, block=64, variants=3),
    "windows": lambda source: source.window(size=3, by="lang", partial="pad"),
    "balance": lambda source: source.balance("len(tags)"),
}

FEATURES: dict[str, Any] = {
    "width": sf.FixedLenFeature((), "int64"),
    "lang": sf.FixedLenFeature((), "string"),
    "tags": sf.VarLenFeature("int64"),
}


def made(world: World, program: str, index: str | os.PathLike[str] | None) -> sf.Source:
    features = {name: FEATURES[name] for name in (("width", "lang") if program == "windows" else FEATURES)}
    return PROGRAMS[program](sf.source(world.pattern, features, index=index))


def batches(source: sf.Source | sf.Mixture, cache: Path) -> list[list[Any]]:
    """Returns the records of an epoch, as a host with this cache reads them."""
    with sf.Loader(source, batch_size=8, shuffle_window=64, provenance=True, cache_dir=cache) as each:
        return [[array.tolist() for array in (batch.parts.row, batch.parts.shard, batch.parts.record, batch.parts.record_row, batch.parts.first)] for batch in each]


#: Opens a loader in a process of its own, and prints the bytes that it reads.
OPENER = """
import base64, pickle, re, sys
import shardfeed as sf
read = lambda: int(re.findall(r"rchar: (\\d+)", open("/proc/self/io").read())[0])
source, before = pickle.loads(base64.b64decode(sys.argv[1])), read()
with sf.Loader(source, batch_size=8, cache_dir=sys.argv[2]):
    print(read() - before)
"""


def read_to_open(source: sf.Source | sf.Mixture, cache: Path) -> int:
    """Returns the bytes that a host with this cache reads before its first batch."""
    given = base64.b64encode(pickle.dumps(source)).decode()
    ended = subprocess.run([sys.executable, "-c", OPENER, given, str(cache)], capture_output=True, text=True, check=True)
    assert not ended.stderr, ended.stderr
    return int(ended.stdout)


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def objects(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("program", PROGRAMS)
def test_another_host_reads_no_file_before_its_first_batch(tmp_path: Path, program: str) -> None:
    world = World(tmp_path / "data", 3, [3000, 0, 4000, 3500])
    size, index = size_of(world.folder), tmp_path / "index"
    index.mkdir()
    without = batches(made(world, program, None), tmp_path / "alone")
    source = made(world, program, index)
    assert read_to_open(source, tmp_path / "first") > size
    assert size_of(index) > 0 and not list(index.rglob("*.tmp"))
    assert read_to_open(source, tmp_path / "second") < size / 4 + 2 * size_of(index)
    assert batches(source, tmp_path / "second") == without
    # The second host keeps what it took, so that it needs no index any more.
    shutil.rmtree(index)
    assert read_to_open(made(world, program, None), tmp_path / "second") < size / 4


def test_an_added_file_costs_that_file(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 4, [4000, 4000, 4000, 4000])
    added, index = tmp_path / "part-03.tfrecord", tmp_path / "index"
    index.mkdir()
    (world.folder / "part-03.tfrecord").rename(added)
    source = made(world, "filter", index)
    read_to_open(source, tmp_path / "first")
    added.rename(world.folder / "part-03.tfrecord")
    size = size_of(world.folder)
    # Indexed and counted, and then taken by a third host.
    assert read_to_open(source, tmp_path / "second") < 2 * size / 4 + size / 4
    assert read_to_open(source, tmp_path / "third") < size / 4
    # A file that was rewritten is read again, also by hosts that know its old version.
    other = World(tmp_path / "other", 5, [4100])
    (other.folder / "part-00.tfrecord").replace(world.folder / "part-01.tfrecord")
    expected = batches(made(world, "filter", None), tmp_path / "alone")
    for host in ("first", "third", "fourth"):
        assert batches(source, tmp_path / host) == expected


def test_other_pack_settings_take_the_lengths(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 6, [4000, 4000])
    (tmp_path / "index").mkdir()
    size = size_of(world.folder)
    read_to_open(made(world, "packs", tmp_path / "index"), tmp_path / "first")
    other = sf.source(world.pattern, FEATURES, index=tmp_path / "index").pack("tags", length=32, block=64)
    assert read_to_open(other, tmp_path / "second") < size / 2
    assert batches(other, tmp_path / "second") == batches(other.with_index(tmp_path / "index"), tmp_path / "alone")


def test_an_index_in_a_bucket(tmp_path: Path, s3: S3, proxy: Proxy) -> None:
    world = World(tmp_path / "data", 7, [3000, 2000])
    size, index = size_of(world.folder), f"s3://bucket/{tmp_path.name}/index/"
    without = batches(made(world, "packs", None), tmp_path / "alone")
    source = made(world, "packs", index)
    # Indexing and counting read each file; a client of a store reads files of its own.
    first = read_to_open(source, tmp_path / "first")
    assert batches(source, tmp_path / "second") == without
    proxy.seen.clear()
    assert first - read_to_open(source, tmp_path / "third") > 1.5 * size
    assert proxy.seen
    proxy.seen.clear()
    assert read_to_open(source, tmp_path / "third") < size / 4
    assert not proxy.seen, "the host has everything"


def test_a_web_server_is_read_and_a_warning_says_that_it_cannot_be_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    world, index = World(tmp_path / "data", 8, [3000, 2000]), tmp_path / "index"
    index.mkdir()
    expected = batches(made(world, "filter", index), tmp_path / "first")
    with Web(tmp_path) as server:
        source = made(world, "filter", f"{server.endpoint}/index")
        assert batches(source, tmp_path / "second") == expected
        assert capfd.readouterr().err == ""
        batches(made(world, "rows", f"{server.endpoint}/index"), tmp_path / "second")
    (told,) = capfd.readouterr().err.splitlines()
    assert "cannot write: " in told and "405 Method Not Allowed; hosts that share" in told and "shardfeed dataset index" in told


def test_what_an_index_has_is_not_written_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    world, index = World(tmp_path / "data", 16, [300, 200]), tmp_path / "index"
    index.mkdir()
    expected = {program: batches(made(world, program, index), tmp_path / "first") for program in PROGRAMS}
    with Web(tmp_path) as server:
        for program in PROGRAMS:
            assert batches(made(world, program, f"{server.endpoint}/index"), tmp_path / "second") == expected[program]
    assert capfd.readouterr().err == ""


def test_a_mixture_takes_the_index_of_each_source(tmp_path: Path) -> None:
    sizes, sources = 0, {}
    for name in ("a", "b"):
        world = World(tmp_path / name, ord(name), [3000, 2000])
        (tmp_path / f"index-{name}").mkdir()
        sizes += size_of(world.folder)
        sources[name] = (made(world, "packs", tmp_path / f"index-{name}"), 1)
    mixture = sf.mix(sources, epoch=500)
    assert read_to_open(mixture, tmp_path / "first") > sizes
    assert read_to_open(mixture, tmp_path / "second") < sizes
    assert all(objects(tmp_path / f"index-{name}") for name in ("a", "b"))


def test_a_damaged_object_is_an_error_that_names_it(tmp_path: Path) -> None:
    world, index = World(tmp_path / "data", 9, [300, 200]), tmp_path / "index"
    index.mkdir()
    source = made(world, "packs", index)
    expected = batches(source, tmp_path / "first")
    kinds = {kind_of(path, index) for path in objects(index)}
    assert kinds == {"index", "samples", "packs", "columns"}
    # Values are read where the sample maps are missing.
    order = sorted(objects(index), key=lambda path: kind_of(path, index) == "columns")
    for number, path in enumerate(order):
        if kind_of(path, index) == "columns":
            for one in objects(index):
                if kind_of(one, index) == "samples":
                    one.unlink()
        whole = path.read_bytes()
        other = next(one for one in objects(index) if one != path)
        for damaged in (whole[:-1], whole[:3], b"", whole + b"\0", flipped(whole, 30), flipped(whole, -1), other.read_bytes()):
            path.write_bytes(damaged)
            with pytest.raises(sf.DataError) as raised:
                sf.Loader(source, batch_size=8, cache_dir=tmp_path / f"second-{number}")
            assert str(path) in str(raised.value) and "dataset index" in str(raised.value)
        path.write_bytes(whole)
    assert batches(source, tmp_path / "third") == expected
    assert {kind_of(path, index) for path in objects(index)} == kinds


def kind_of(path: Path, index: Path) -> str:
    return path.relative_to(index).parts[0].rsplit("-", 1)[0]


def flipped(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 16
    return bytes(changed)


def test_maps_without_damaged_records_serve_no_other_job(tmp_path: Path) -> None:
    world, index = World(tmp_path / "data", 10, [300, 200]), tmp_path / "index"
    index.mkdir()
    file = world.folder / "part-00.tfrecord"
    flip(file, record_offsets(file)[7] + 14)
    source = made(world, "filter", index)
    with sf.Loader(source, batch_size=8, corrupt="skip-record", cache_dir=tmp_path / "first") as each:
        assert len(each.skipped) == 1
    maps = [path for path in objects(index) if path.relative_to(index).parts[0].startswith("samples")]
    assert len(maps) == 1, "that of the other file"
    with pytest.raises(sf.CorruptRecordError):
        batches(source, tmp_path / "second")


@pytest.mark.parametrize("bad", ["", "s3://", "ftp://host/x", "s3://bucket/a//b"])
def test_a_bad_name_is_an_error(dataset: Any, bad: str) -> None:
    with pytest.raises(sf.ConfigError, match="index="):
        sf.Loader(sf.source(dataset.pattern, index=bad), batch_size=1)


def test_a_missing_folder_and_a_file_are_errors(dataset: Any, tmp_path: Path) -> None:
    source = sf.source(dataset.pattern, index=tmp_path / "none")
    with pytest.raises(sf.ConfigError, match="none.*no such folder.*shardfeed dataset index"):
        sf.Loader(source, batch_size=1)
    (tmp_path / "file").touch()
    with pytest.raises(sf.DataError, match="file"):
        sf.Loader(source.with_index(tmp_path / "file"), batch_size=1)


def test_an_index_is_pickled(dataset: Any, tmp_path: Path) -> None:
    source = sf.source(dataset.pattern, {"id": sf.FixedLenFeature((), "int64")}, index=tmp_path).filter("id > 3")
    copy = pickle.loads(pickle.dumps(source))
    assert copy.index == source.index == str(tmp_path) and copy == source
    assert source.with_files("x").index == str(tmp_path)


#: Declares sources of the folder that the environment names.
MODULE = """
import os
import shardfeed as sf
FEATURES = {"width": sf.FixedLenFeature((), "int64"), "lang": sf.FixedLenFeature((), "string"), "tags": sf.VarLenFeature("int64")}
files = sf.source(os.environ["FOLDER"] + "/data/*.tfrecord", FEATURES)
packs = files.pack("tags", length=16, block=64, variants=3)
print("a module may print")
def mixture():
    return sf.mix({
        "one": (packs.with_index(os.environ["FOLDER"] + "/one"), 1),
        "two": (packs.with_files(os.environ["FOLDER"] + "/other/*.tfrecord").with_index(os.environ["FOLDER"] + "/two"), 2),
    }, epoch=300)
"""


def index(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `shardfeed dataset index` on a host with its own cache."""
    (folder / "train.py").write_text(MODULE)
    given = {"FOLDER": str(folder), "SHARDFEED_CACHE_DIR": str(folder / "indexer"), "SHARDFEED_PYTHON": sys.executable}
    command = [BINARY, "dataset", "index", "-o", "json", *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | given, capture_output=True, text=True)


def test_a_command_fills_the_index_of_a_source(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 11, [3000, 4000])
    place = tmp_path / "new" / "index"
    done = json.loads(index(tmp_path, "--index", str(place), "train.py:packs").stdout)
    with sf.Loader(made(world, "packs", None), batch_size=8, cache_dir=tmp_path / "alone") as each:
        assert (done["files"], done["records"], done["samples"]) == (2, 7000, each.samples)
    assert done["indexes"] == [str(place)] and done["damaged"] == 0
    source, size = made(world, "packs", place), size_of(world.folder)
    assert read_to_open(source, tmp_path / "first") < size / 2
    assert batches(source, tmp_path / "first") == batches(made(world, "packs", None), tmp_path / "alone")
    # It replaces what is damaged or missing, also from what the host has in its cache.
    for cached in (True, False):
        whole = {path: path.read_bytes() for path in objects(place)}
        for number, path in enumerate(whole):
            path.unlink() if number % 2 else path.write_bytes(flipped(whole[path], 40))
        if not cached:
            shutil.rmtree(tmp_path / "indexer")
        assert index(tmp_path, "--index", str(place), "train.py:packs").returncode == 0
        assert {path: path.read_bytes() for path in objects(place)}.keys() == whole.keys()
        assert read_to_open(source, tmp_path / f"later-{cached}") < size / 2


def test_a_command_fills_the_indexes_of_a_mixture(tmp_path: Path) -> None:
    worlds = [World(tmp_path / "data", 12, [3000]), World(tmp_path / "other", 13, [4000, 100])]
    done = json.loads(index(tmp_path, "train.py:mixture").stdout)
    assert done["records"] == 7100 and done["indexes"] == [str(tmp_path / "one"), str(tmp_path / "two")]
    sources = {name: (made(world, "packs", tmp_path / name), 1) for name, world in zip(("one", "two"), worlds, strict=True)}
    assert read_to_open(sf.mix(sources, epoch=300), tmp_path / "first") < sum(size_of(world.folder) for world in worlds) / 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train.py:packs"], "a source has no index hint: pass --index"),
        (["--index", "ftp://x/y", "train.py:packs"], "is not known"),
        (["--index", "/proc/none", "train.py:packs"], "/proc/none"),
        (["--index", "index", "train.py:nothing"], "its sources are files, packs"),
        (["--index", "index", "train.py:FEATURES"], "no source"),
        (["--index", "index", "absent.py:packs"], "there is no file absent.py"),
        (["--index", "index", "--python", "absent", "train.py:packs"], "cannot run the interpreter absent"),
    ],
)
def test_what_cannot_be_indexed_is_an_error(tmp_path: Path, arguments: list[str], told: str) -> None:
    World(tmp_path / "data", 14, [30])
    ended = index(tmp_path, *arguments)
    assert ended.returncode != 0 and told in ended.stderr.replace("\n", " "), ended.stderr


def test_damaged_records_are_named_or_left_out(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 15, [3000, 2000])
    file = world.folder / "part-01.tfrecord"
    flip(file, record_offsets(file)[7] + 14)
    ended = index(tmp_path, "--index", "index", "train.py:packs")
    assert ended.returncode != 0 and str(file) in ended.stderr
    done = json.loads(index(tmp_path, "--index", "index", "--corrupt", "skip-record", "train.py:packs").stdout)
    assert (done["records"], done["damaged"]) == (5000, 1)
