"""Commands that read a source from a Python module (`--source`) show what a loader of it delivers."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfeed as sf
from shardfeed.testing import BINARY

COUNTS = [37, 0, 52, 23]
#: Sources of all kinds, over the files beside the module.
MODULE = """
import os
from pathlib import Path

import shardfeed as sf
from beside import LEAST

print("a print of the module")
os.system("echo a print of a child")
FILES = str(Path(__file__).parent / "data/*.tfrecord")
FEATURES = {"id": sf.FixedLenFeature((), "int64"), "video": sf.FixedLenFeature((), "int64"), "tokens": sf.VarLenFeature("int64")}
plain = sf.source(FILES, FEATURES)
filtered = plain.filter(f"len(tokens) >= {LEAST}")
rows = plain.unbatch("tokens").filter("tokens % 3 != 0")
packs = filtered.pack("tokens", length=32, append=1, long="drop", block=16)
cut = plain.pack("tokens", length=16, long="truncate", method="concat")
windows = sf.source(FILES, {key: FEATURES[key] for key in ("id", "video")}).window(size=4, stride=3, by="video", partial="pad")
kept = sf.source(FILES, {key: FEATURES[key] for key in ("id", "video")}).window(size=4, stride=3, by="video", partial="keep")
short = sf.source(FILES, {key: FEATURES[key] for key in ("id", "video")}).window(size=4, stride=6, by="video")
balanced = plain.balance("len(tokens)", window=20)
weak = plain.balance("len(tokens)", window=1)
floats = plain.balance("len(tokens) / 7", window=20)
squares = packs.balance("sum_squares", window=12)
# A NaN is no value of JSON.
nan = sf.source(FILES, {"tokens": sf.VarLenFeature("int64"), "x": sf.FixedLenFeature((), "float32", float("nan"))}).pack("tokens", length=64)
mixture = sf.mix({"web": (filtered, 0.7), "code": (plain, 0.3)}, epoch=200)
mixed_rows = sf.mix({"a": (rows, "0.5"), "b": (filtered.unbatch("tokens").filter("tokens % 3 != 0"), 0.5)}, epoch="first_exhausted")
mixed_packs = sf.mix({"a": (packs, 1), "b": (plain.pack("tokens", length=32, append=1, long="drop", block=16), 2)}, epoch=150)
grown = sf.mix({"a": (plain, 1)}, epoch=150, stages=[sf.Stage(1, {"a": (filtered, 1)})])
even = mixture.balance("len(tokens)", window=40)
ids = {"records": plain.rename("id", "of"), "windows": windows.slice("id", [0], [1]).reshape("id", []).rename("id", "of")}
unlike = sf.mix({name: (source, 1) for name, source in ids.items()}, epoch=100, columns=["of"])
clustered = sf.source(dataset="web")
known = sf.source(FILES, FEATURES, records=112)
unknown = sf.mix({"a": (plain, 1), "b": (sf.source(FILES, FEATURES, records=111), 1)}, epoch=10)
number = 3


def made():
    return filtered


def broken():
    raise KeyError("of the module")
"""
#: Functions, of which the command lists those that can return a source.
BUILDERS = """
import shardfeed as sf
from shardfeed import source
from beside import LEAST

ready = sf.source("data/*.tfrecord")

def typed(least: int = 3) -> sf.Source: ...
def either() -> "sf.Source | sf.Mixture": ...
def bare(): ...
def later() -> "OnlyForTypeCheckers": ...
def main() -> None: ...
def needs(least: int) -> sf.Source: ...
def _hidden(): ...
class Options: ...
"""
SINGLE = ["plain", "filtered", "rows", "packs", "cut", "windows", "short", "balanced", "floats", "squares", "nan"]
MIXTURES = ["mixture", "mixed_rows", "mixed_packs", "even", "unlike"]
ORDER = {"batch_size": 3, "world_size": 2, "seed": 5, "shuffle_window": 12, "interleave": 2}


class Place:
    """A folder with a module `train.py` and its files, in which commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "data").mkdir()
        rng = random.Random(3)
        self.tokens: list[list[list[int]]] = []
        for shard, count in enumerate(COUNTS):
            self.tokens.append([list(range(rng.choice([0, 3, rng.randrange(50)]))) for _ in range(count)])
            with sf.TFRecordWriter(folder / f"data/s-{shard}.tfrecord") as writer:
                for ordinal, tokens in enumerate(self.tokens[shard]):
                    writer.write({"id": shard * 1000 + ordinal, "video": ordinal // 9, "tokens": tokens})
        (folder / "beside.py").write_text("LEAST = 4\n")
        (folder / "train.py").write_text(MODULE)

    def source(self, name: str) -> Any:
        """Returns a source of the module."""
        spec = importlib.util.spec_from_file_location("train_of_test", self.folder / "train.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(self.folder))
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.pop(0)
            sys.modules.pop("beside", None)
        return getattr(module, name)

    def loader(self, name: str, **options: Any) -> sf.Loader:
        return sf.Loader(self.source(name), **(ORDER | {"rank": 0, "provenance": True, "cache_dir": self.folder / "cache"} | options))

    def run(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command."""
        env = os.environ | {"SHARDFEED_PYTHON": sys.executable, "SHARDFEED_CACHE_DIR": str(self.folder / "cache")} | environment
        line = [BINARY, *map(str, arguments)]
        return subprocess.run(line, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def json(self, *arguments: str | Path) -> dict[str, Any]:
        done = self.run(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        printed: dict[str, Any] = json.loads(done.stdout)
        return printed

    def fails(self, *arguments: str | Path, **environment: str) -> str:
        """Returns the error of a command that must fail."""
        done = self.run(*arguments, **environment)
        assert (done.returncode != 0, done.stdout) == (True, ""), done
        return done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("cli-sources"))


def order(**options: Any) -> list[str]:
    """Returns options of a loader as those of a command."""
    given = {key: value for key, value in (ORDER | options).items() if key != "rank"}
    return [part for key, value in given.items() for part in (f"--{key.replace('_', '-')}", str(value))]


def rows_of(loader: sf.Loader, batch: sf.Batch) -> list[tuple[str, bool, list[tuple[int, int, int, int]]]]:
    """Returns the shard of each row, whether it is valid, and its parts."""
    parts = batch.parts
    rows = []
    for row in range(len(batch.valid)):
        columns = (parts.row, parts.shard, parts.record, parts.record_row, parts.first, parts.count)
        of_row = [tuple(map(int, part)) for part in zip(*columns, strict=True) if part[0] == row]
        (shard,) = {part[1] for part in of_row}
        source = f"{loader.sources[batch.source[row]]}:" if loader.sources else ""
        rows.append((source + loader.shards[shard], bool(batch.valid[row]), [part[2:] for part in of_row]))
    return rows  # type: ignore[return-value]


def shown(batch: dict[str, Any]) -> list[tuple[str, bool, list[tuple[int, int, int]]]]:
    return [
        (sample["shard"], sample["valid"], [(part["record"], part["record_row"], part["first"], part["count"]) for part in sample["parts"]])
        for sample in batch["samples"]
    ]


@pytest.mark.parametrize("name", [name for name in SINGLE + MIXTURES if name != "plain"])
def test_plans_and_batches_are_those_of_a_loader(place: Place, name: str) -> None:
    tail: Any = "drop" if name in ("squares", "mixture") else "pad"
    options = order(tail=tail, epoch=2)
    plan = place.json("plan", "show", "--source", f"train.py:{name}", *options)
    for rank in range(2):
        with place.loader(name, tail=tail, rank=rank) as loader:
            loader.set_epoch(2)
            assert (plan["samples"], plan["steps"], plan["dropped"]) == (loader.samples, len(loader), loader.dropped)
            assert plan["rank_steps_min"] == plan["rank_steps_max"] == len(loader)
            batches = [rows_of(loader, batch) for batch in loader]
        assert plan["padded"] == (len(batches) * 6 - plan["samples"] if tail == "pad" else 0)
        for step in [0, len(batches) - 1] if rank == 0 else [len(batches) // 2]:
            at = ("--step", str(step), "--rank", str(rank))
            batch = place.json("batch", "show", "--source", f"train.py:{name}", *options, *at)
            assert shown(batch) == batches[step], (rank, step)


@pytest.mark.parametrize("name", ["filtered", "rows", "packs", "cut", "windows", "balanced", "squares", "mixed_rows", "mixed_packs"])
def test_sample_maps_in_a_file_have_the_same_samples(place: Place, name: str) -> None:
    """With 0 bytes in memory all maps are in the file, or in memory if no file can be written."""
    at = ("batch", "show", "--source", f"train.py:{name}", *order(epoch=1), "--step", "2", "-o", "json")
    in_memory, in_file = place.run(*at), place.run(*at, SHARDFEED_SAMPLES_MEMORY="0")
    unwritten = place.run(*at, SHARDFEED_SAMPLES_MEMORY="0", TMPDIR=str(place.folder / "none"))
    unread = place.run(*at, SHARDFEED_SAMPLES_MEMORY="much")
    assert in_memory.returncode == 0 and json.loads(in_memory.stdout)["samples"]
    assert in_memory.stdout == in_file.stdout == unwritten.stdout == unread.stdout
    assert "sample maps" not in in_memory.stderr + in_file.stderr
    assert unwritten.stderr.count("sample maps stay in memory") == 1
    assert "SHARDFEED_SAMPLES_MEMORY is `much`, not a number of bytes" in unread.stderr


@pytest.mark.parametrize(
    ("name", "epoch"),
    [("plain", 0), ("filtered", 1), ("rows", 0), ("packs", 1), ("cut", 0), ("windows", 0), ("balanced", 1), ("squares", 0)]
    + [("mixture", 0), ("mixed_packs", 0), ("even", 0), ("grown", 1)],
)
def test_all_batches_of_a_record_are_found(place: Place, name: str, epoch: int) -> None:
    """What `batch show --find` prints is counted in the batches of all ranks."""
    delivered: dict[tuple[str, int], set[tuple[int, int, int]]] = {}
    for rank in range(2):
        with place.loader(name, rank=rank) as loader:
            loader.set_epoch(epoch)
            for batch in loader:
                for row, (shard, valid, parts) in enumerate(rows_of(loader, batch)):
                    for record in {part[0] for part in parts} if valid else ():
                        delivered.setdefault((shard, record), set()).add((batch.step, rank, row))
    rng = random.Random(name)
    (most, _), rest = max(delivered.items(), key=lambda of: len(of[1])), sorted({shard for shard, _ in delivered})
    for shard, record in [most] + [(rest[at % len(rest)], rng.randrange(23)) for at in range(4)]:
        options = order(epoch=epoch)
        found = place.json("batch", "show", "--find", f"{shard}:{record}", "--source", f"train.py:{name}", *options)
        places = {(sample["step"], sample["rank"], sample["row"]) for sample in found["samples"]}
        assert places == delivered.get((shard, record), set()), (shard, record)
        assert (found["delivered"], found["shard"], found["ordinal"], len(found["samples"])) == (bool(places), shard, record, len(places))
        assert place.run("batch", "show", "--find", f"{shard}:{record}", "--source", f"train.py:{name}", *options).stdout


def test_a_source_of_plain_records_is_its_files(place: Place) -> None:
    for command in (["plan", "show"], ["batch", "show", "--step", "3"]):
        by_source, by_files = (place.json(*command, *order(), *of) for of in (["--source", "train.py:plain"], ["data/*.tfrecord"]))
        assert by_source == by_files
    assert by_source["samples"][0]["parts"] is None and plan_of(place, "plain")["counted"] is None


def plan_of(place: Place, name: str, **options: Any) -> dict[str, Any]:
    return place.json("plan", "show", "--source", f"train.py:{name}", *order(**options))


def test_a_plan_has_the_rest_of_a_replaced_source(place: Place) -> None:
    # Of the second pass over 112 records, 38 are in epoch 0.
    rests = [plan_of(place, "grown", epoch=epoch)["sources"][0]["rest_dropped"] for epoch in range(3)]
    assert rests == [0, 74, 0]


def all_batches(place: Place, name: str, **options: Any) -> list[sf.Batch]:
    with place.loader(name, batch_size=1, world_size=1, **options) as loader:
        return list(loader)


def test_the_numbers_of_a_filter_are_those_of_the_records(place: Place) -> None:
    lengths = [len(tokens) for shard in place.tokens for tokens in shard]
    counted = plan_of(place, "filtered")["counted"]
    passing = sum(length >= 4 for length in lengths)
    assert (counted["records"], counted["samples"]) == (sum(COUNTS), passing)
    assert counted["records_left_out"] == sum(COUNTS) - passing
    assert (counted["rows"], counted["packs"], counted["windows"]) == (None, None, None)


def test_the_statistics_of_a_source_are_those_of_its_records(place: Place) -> None:
    lengths = [len(tokens) for shard in place.tokens for tokens in shard]
    passing = [length for length in lengths if length >= 4]

    def tokens(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        found = place.json("dataset", "stats", "--source", f"train.py:{name}")
        (feature,) = (each for each in found["features"] if each["name"] == "tokens")
        return found, feature["values"]

    for name in ("filtered", "packs"):
        found, values = tokens(name)
        assert (found["records"], found["examples"], found["sampled"]["records"]) == (len(passing), len(passing), sum(COUNTS))
        assert (values["min"], values["max"]) == (min(passing), max(passing))
        assert found["sampled"]["samples"] == plan_of(place, name)["counted"]["samples"]
    text = place.run("dataset", "stats", "--source", "train.py:packs").stdout
    facts = text.split("\n\n")[1].splitlines()
    assert facts[0].startswith("samples ") and len({line.rindex("  ") for line in facts}) == 1, text
    found, values = tokens("plain")
    assert (found["records"], found["sampled"], values["max"]) == (sum(COUNTS), None, max(lengths))
    found, _ = tokens("mixture")
    assert (found["records"], found["shard_count"]) == (len(passing) + sum(COUNTS), 2 * len(COUNTS))


def test_the_numbers_of_rows_are_those_of_the_records(place: Place) -> None:
    lengths = [len(tokens) for shard in place.tokens for tokens in shard]
    counted = plan_of(place, "rows")["counted"]
    taken = [sum(token % 3 != 0 for token in range(length)) for length in lengths]
    assert counted["samples"] == sum(taken) and counted["rows"] == {"rows": sum(lengths), "rows_left_out": sum(lengths) - sum(taken)}
    assert counted["records_left_out"] == sum(rows == 0 for rows in taken)


@pytest.mark.parametrize("name", ["packs", "cut", "nan"])
def test_the_numbers_of_packs_are_those_of_the_batches(place: Place, name: str) -> None:
    counted = plan_of(place, name)["counted"]
    batches = all_batches(place, name)
    segments = np.concatenate([batch["tokens_segment_ids"] for batch in batches])
    packs = counted["packs"]
    assert (packs["places"], packs["tokens"]) == (segments.size, np.count_nonzero(segments))
    assert packs["padding"] == segments.size - np.count_nonzero(segments)
    records = {(int(shard), int(record)) for batch in batches for shard, record in zip(batch.parts.shard, batch.parts.record)}
    assert counted["records_left_out"] == sum(COUNTS) - len(records)
    lengths = [len(tokens) for shard in place.tokens for tokens in shard]
    taken = {"packs": [length for length in lengths if length >= 4], "cut": lengths, "nan": lengths}[name]
    appended = int(name == "packs")
    assert packs["tokens_left_out"] == sum(length + appended for length in taken if length) - packs["tokens"]
    assert packs["records_too_long"] == (sum(length + 1 > 32 for length in taken) if name == "packs" else 0)
    assert packs["records_empty"] == sum(length == 0 for length in taken)
    assert packs["tokens_left_out"] > 0 or name == "nan"


def test_the_numbers_of_windows_are_those_of_the_batches(place: Place) -> None:
    for name in ("windows", "short", "kept"):
        counted = plan_of(place, name)["counted"]
        batches = all_batches(place, name)
        members = sum(len(batch.parts.row) for batch in batches)
        numbers = [np.asarray(getattr(batch["id"], "values", batch["id"])).ravel() for batch in batches]
        places = sum(each.size for each in numbers)
        distinct = {int(number) for each in numbers for number in each}
        outside = sum(COUNTS) - len(distinct)
        assert counted["windows"] == {"records_in_none": outside, "members": members, "members_repeated": places - members}, name
        assert counted["records_left_out"] == sum(COUNTS) - len(distinct) and counted["samples"] == len(batches)
        assert (places - members > 0, len(distinct) < sum(COUNTS)) == (name == "windows", name == "short")


def test_the_numbers_of_balance_are_those_of_the_batches(place: Place) -> None:
    def ratios(name: str, cost: Any) -> tuple[float, float]:
        costs = []
        for rank in range(4):
            with place.loader(name, rank=rank, world_size=4) as loader:
                costs.append([cost(batch) for batch in loader])
        found = [max(step) * 4 / sum(step) if sum(step) else 1.0 for step in zip(*costs, strict=True)]
        return sum(found) / len(found), max(found)

    def tokens(batch: sf.Batch) -> int:
        return int(batch["tokens"].lengths().sum())

    def squares(batch: sf.Batch) -> int:
        return int((batch.parts.count**2).sum())

    for name, without, cost in [("balanced", "plain", tokens), ("floats", "plain", tokens), ("squares", "packs", squares), ("even", "mixture", tokens)]:
        plan = plan_of(place, name, world_size=4)
        found = plan["balance"]
        assert (found["mean"], found["max"]) == pytest.approx(ratios(name, cost)), name
        assert (found["unbalanced_mean"], found["unbalanced_max"]) == pytest.approx(ratios(without, cost)), name
        assert found["steps"] == plan["steps"] and found["mean"] < found["unbalanced_mean"]
    assert plan_of(place, "plain")["balance"] is None
    for world_size, is_weak in ((4, True), (1, False)):
        text = place.run("plan", "show", "--source", "train.py:weak", *order(world_size=world_size)).stdout
        assert ("the lanes' costs differ" in text) == is_weak, text


@pytest.mark.parametrize("name", MIXTURES)
def test_the_sources_of_a_mixture_are_those_of_its_batches(place: Place, name: str) -> None:
    plan = plan_of(place, name, epoch=3, batch_size=1, world_size=1)
    with place.loader(name, batch_size=1, world_size=1) as loader:
        loader.set_epoch(3)
        names = [loader.sources[batch.source[0]] for batch in loader]
    assert {source["name"]: source["in_epoch"] for source in plan["sources"]} == Counter(names)
    for source in plan["sources"]:
        before = source["in_epoch"] * 3
        assert source["first_source_epoch"] == before // source["samples"]
        assert source["last_source_epoch"] == (before + source["in_epoch"] - 1) // source["samples"]


def test_a_state_continues_the_source_that_it_is_of(place: Place) -> None:
    for name, other in [("packs", "cut"), ("squares", "packs"), ("mixture", "mixed_packs"), ("unlike", "mixture")]:
        with place.loader(name, restart=False) as loader:
            for _, _ in zip(range(3), loader, strict=False):
                pass
            (place.folder / "state.json").write_text(json.dumps(loader.state_dict()))
            following = rows_of(loader, next(iter(loader)))
        options = [*order(), "--state", "state.json"]
        assert place.json("plan", "show", "--source", f"train.py:{name}", *options)["steps_taken"] == 3
        batch = place.json("batch", "show", "--source", f"train.py:{name}", *options, "--step", "3")
        assert shown(batch) == following
        assert "the state " in place.fails("plan", "show", "--source", f"train.py:{other}", *options)
    assert "--source" in place.fails("plan", "show", "data/*.tfrecord", *options)


@pytest.mark.parametrize("name", ["filtered", "rows", "packs", "windows", "balanced"])
def test_inspect_adds_the_samples(place: Place, name: str) -> None:
    found = place.json("dataset", "inspect", "--source", f"train.py:{name}")
    files = place.json("dataset", "inspect", "data/*.tfrecord")
    sampled = found.pop("sampled")
    plan = plan_of(place, name)
    assert sampled["samples"] == sum(shard.pop("samples") for shard in found["shards"]) == plan["samples"]
    assert {key: sampled[key] for key in plan["counted"]} == plan["counted"]
    assert sampled["samples_digest"] == plan["order"]["content_digest"] != found["content_digest"]
    assert sampled["map_bytes"] > 0 and sampled["sample_bytes_mean"] > 0
    assert files.pop("sampled") is None and [shard.pop("samples") for shard in files["shards"]] == COUNTS
    assert found == files


def test_inspect_lists_the_sources_of_a_mixture(place: Place) -> None:
    found = place.json("dataset", "inspect", "--source", "train.py:mixture")
    one = {name: place.json("dataset", "inspect", "--source", f"train.py:{name}") for name in ("filtered", "plain")}
    names = [(source["name"], source["shards"], source["records"]) for source in found["sources"]]
    assert names == [("web", 4, sum(COUNTS)), ("code", 4, sum(COUNTS))]
    assert [shard["path"] for shard in found["shards"]] == [f"{name}:s-{shard}.tfrecord" for name in ("web", "code") for shard in range(4)]
    web, code = found["sources"]
    assert (web["samples"], web["samples_digest"]) == (one["filtered"]["sampled"]["samples"], one["filtered"]["sampled"]["samples_digest"])
    assert (code["samples"], code["samples_digest"]) == (sum(COUNTS), one["plain"]["content_digest"])
    assert found["sampled"]["samples"] == web["samples"] + code["samples"]


def test_tables_have_the_samples(place: Place) -> None:
    def table(*arguments: str) -> str:
        done = place.run(*arguments)
        assert done.returncode == 0
        assert done.stderr == "a print of the module\na print of a child\n"
        return done.stdout

    plan = table("plan", "show", "--source", "train.py:squares", *order())
    assert all(part in plan for part in ("\nbalance ", "\nmixing ", "\npadding ", "\ntoo long ", "\nleft out "))
    assert "SOURCE  SHARDS" in table("plan", "show", "--source", "train.py:mixture", *order())
    assert "RECORD  RECORD ROW  FIRST  COUNT" in table("batch", "show", "--source", "train.py:packs", *order(), "--step", "0")
    inspected = table("dataset", "inspect", "--source", "train.py:rows")
    assert "\nrows left out " in inspected and "RECORDS  SAMPLES" in inspected


def test_a_module_is_named_in_several_ways(place: Place) -> None:
    samples = plan_of(place, "filtered")["samples"]
    (place.folder / "package").mkdir(exist_ok=True)
    (place.folder / "package/inner.py").write_text("from train import filtered as source\n")
    for name in ("train:filtered", "train.py:made", f"{place.folder}/train.py:made", "package.inner:source"):
        assert place.json("plan", "show", "--source", name, *order())["samples"] == samples, name


def test_files_with_other_records_than_known_are_refused(place: Place) -> None:
    assert plan_of(place, "known")["samples"] == sum(COUNTS) == 112
    assert "the files hold 112 records, but 111 were written" in place.fails("dataset", "inspect", "--source", "train.py:unknown")
    assert place.json("dataset", "inspect", "--source", "train.py:unknown", "--corrupt", "skip-record")["records"] == 224


def test_what_is_no_source_is_refused(place: Place) -> None:
    (place.folder / "exits.py").write_text("raise SystemExit('no arguments')\n")
    (place.folder / "syntax.py").write_text("def f(:\n")
    (place.folder / "imports.py").write_text("import there_is_none\n")
    (place.folder / "empty.py").write_text("")
    (place.folder / "asks.py").write_text("input()\n")
    (place.folder / "builders.py").write_text(BUILDERS)
    for name, expected in {
        "nope:packs": "there is no module 'nope'",
        "nope.inner:packs": "there is no module 'nope'",
        "nope.py:packs": "there is no file nope.py",
        "train.py:nope": "hint: its sources are balanced, clustered, cut, even, ",
        "builders.py:nope": "hint: its sources are either(), ready, typed(); its functions without arguments, of which the type is "
        "unknown, are bare(), later()",
        "empty.py:packs": "hint: it has no sources",
        "train.py:number": "train.py:number is of type int, which is no source",
        "train.py:LEAST": "is of type int",
        "train.py:broken": f"train.py raised KeyError: 'of the module' ({place.folder}/train.py, line ",
        "exits.py:packs": f"exits.py raised SystemExit: no arguments ({place.folder}/exits.py, line 1)",
        "syntax.py:packs": "syntax.py raised SyntaxError: invalid syntax (syntax.py, line 1) (syntax.py)",
        "imports.py:packs": f"imports.py raised ModuleNotFoundError: No module named 'there_is_none' ({place.folder}/imports.py, line 1)",
        "asks.py:packs": "asks.py raised EOFError",
        "train.py:clustered": "the source reads dataset='web', which only a coordinator knows",
    }.items():
        error = place.fails("plan", "show", "--source", name)
        assert expected in error and "\nhint: " in error, error
        assert "Traceback" not in error
    for name in ("train.py", "train.py:", ":packs", ""):
        assert "write MODULE:SOURCE" in place.fails("plan", "show", "--source", name), name
    for more in (["data/*.tfrecord"], ["--compression", "gzip"]):
        assert "cannot be used with" in place.fails("plan", "show", "--source", "train.py:packs", *more)
    assert "cannot be used with" in place.fails("batch", "show", "--source", "train.py:packs", "--step", "0", "--job", "train")
    for name, record in {"mixture": "s-0.tfrecord:1", "packs": "web:s-0.tfrecord:1"}.items():
        assert "no shard of these files" in place.fails("batch", "show", "--source", f"train.py:{name}", "--find", record)
    assert "cannot be used with" in place.fails("dataset", "inspect", "--source", "train.py:packs", "--unscanned")


def test_an_interpreter_needs_this_shardfeed(place: Place) -> None:
    def interpreter(text: str) -> str:
        path = place.folder / "interpreter"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def refused(python: str) -> str:
        by_option = place.fails("plan", "show", "--source", "train.py:packs", "--python", python)
        assert place.fails("plan", "show", "--source", "train.py:packs", SHARDFEED_PYTHON=python) == by_option
        return by_option

    assert refused("/none/python").startswith("error: cannot run the interpreter /none/python: No such file")
    without = interpreter(f'exec {sys.executable} -I -S "$@"')
    assert f"`{without} -m shardfeed.declaration train.py:packs` gave no answer (exit status: 1)" in refused(without)
    earlier = refused(interpreter("""echo '{"version": "0.0.1", "files": []}'"""))
    assert f"has shardfeed 0.0.1, and this command is {sf.__version__}\nhint: install shardfeed {sf.__version__} there" in earlier
    assert "the declaration is invalid" in refused(interpreter(f"""echo '{{"version": "{sf.__version__}"}}'"""))
