"""`Source.pack`: the tokens of several records in samples of one length, each token exactly once."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from recount import parse
from resuming import random_order, resumed_steps
from test_bad_input import flip, record_offsets
from test_filter import read_chars

import shardfeed as sf

sys.path.insert(0, str(ROOT / "tests"))
import pack_oracle  # noqa: E402

FEATURES: dict[str, Any] = {
    "id": sf.FixedLenFeature((), "int64"),
    "tokens": sf.VarLenFeature("int64"),
    "mask": sf.VarLenFeature("float32"),
}
END = 7


class World:
    """Files of random token sequences, which the test knows. No token of a record is 0 or `END`."""

    def __init__(self, folder: Path, seed: int, counts: Sequence[int], most: int = 40, compression: Any = None) -> None:
        self.folder, self.pattern = folder, str(folder / "*.tfrecord")
        self.tokens: dict[str, list[list[int]]] = {}
        rng = random.Random(seed)
        folder.mkdir(parents=True)
        for shard, count in enumerate(counts):
            name = f"part-{shard:02}.tfrecord"
            self.tokens[name] = [self.sequence(rng, shard, ordinal, most) for ordinal in range(count)]
            with sf.TFRecordWriter(folder / name, compression=compression) as writer:
                for ordinal, tokens in enumerate(self.tokens[name]):
                    writer.write({"id": ordinal, "tokens": tokens, "mask": [token / 4 for token in tokens]})

    @staticmethod
    def sequence(rng: random.Random, shard: int, ordinal: int, most: int) -> list[int]:
        start = (shard * 10_000 + ordinal) * 1000 + 10
        return list(range(start, start + rng.choice([0, 1, rng.randrange(most), rng.randrange(most)])))

    def source(self, *, expression: str | None = None, columns: Sequence[str] = ("tokens",), **settings: Any) -> sf.Source:
        source = sf.source(self.pattern, FEATURES)
        return (source if expression is None else source.filter(expression)).pack(*columns, **settings)


def loader(source: sf.Source | sf.Mixture, **options: Any) -> sf.Loader:
    defaults = {"batch_size": 4, "shuffle_window": 16, "interleave": 3, "seed": 5, "restart": False}
    return sf.Loader(source, **(defaults | options))


Pack = tuple[tuple[int, ...], ...]


def packs_of(batch: sf.Batch) -> list[tuple[Pack, bool]]:
    """Returns the segments of each row, and checks segment ids, positions and padding."""
    found = []
    for row in range(batch.rows):
        tokens, ids, positions = (batch[name][row].tolist() for name in ("tokens", "tokens_segment_ids", "tokens_positions"))
        used = sum(one > 0 for one in ids)
        assert ids == sorted(ids[:used]) + [0] * (len(ids) - used)
        assert tokens[used:] == positions[used:] == [0] * (len(ids) - used)
        segments: list[list[int]] = []
        for token, number, position in zip(tokens[:used], ids, positions, strict=False):
            if number > len(segments):
                assert number == len(segments) + 1
                segments.append([])
            assert position == len(segments[-1])
            segments[-1].append(token)
        found.append((tuple(map(tuple, segments)), bool(batch.valid[row])))
    return found


def digest_of(file: Path, compression: Any = None) -> str:
    """Returns the digest of a shard: docs/ORDER.md, Input."""
    data = gzip.decompress(file.read_bytes()) if compression else file.read_bytes()
    found, at = hashlib.sha256(), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        found.update(data[at : at + 8] + data[at + 12 + size : at + 16 + size])
        at += 16 + size
    return found.hexdigest()


def expected_packs(
    world: World, settings: dict[str, Any], variant: int, kept: Callable[[int], bool] = lambda ordinal: True, compression: Any = None
) -> dict[tuple[str, int], Pack]:
    """Returns every pack by shard and ordinal, by tests/pack_oracle.py."""
    found: dict[tuple[str, int], Pack] = {}
    for name, sequences in world.tokens.items():
        taken = [tokens for ordinal, tokens in enumerate(sequences) if kept(ordinal)]
        case = {"block": 4096, "variants": 8, "long": "split", "method": "fit", **settings}
        case |= {"append": settings.get("append") is not None, "shard": digest_of(world.folder / name, compression)}
        answer = pack_oracle.answer(case | {"lengths": [len(tokens) for tokens in taken]})
        for number, pack in enumerate(answer["variants"][variant % case["variants"]]):
            whole = [[*tokens, END] if case["append"] else tokens for tokens in taken]
            found[(name, number)] = tuple(tuple(whole[sequence][first : first + count]) for sequence, first, count in pack)
    return found


def lines_of(ledger: Path, epoch: int = 0) -> Counter[tuple[str, int, int, int]]:
    """Counts the valid parts in the ledgers: shard, record, first token, tokens."""
    found: Counter[tuple[str, int, int, int]] = Counter()
    for path in ledger.iterdir():
        lines = [parse(text) for text in path.read_text().splitlines() if not text.startswith("start")]
        found.update((line.shard, line.record, line.first, line.rows) for line in lines if line.mark == "1" and line.epoch == epoch)
    return found


SETTINGS: list[dict[str, Any]] = [
    {"length": 32},
    {"length": 32, "append": END, "block": 16, "variants": 3},
    {"length": 16, "long": "truncate", "append": END},
    {"length": 24, "long": "drop", "block": 10},
    {"length": 32, "method": "concat", "append": END, "block": 16, "variants": 2},
    {"length": 100, "method": "concat", "block": 7},
    {"length": 8, "block": 5, "variants": 2},
]


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_the_packs_are_those_of_the_oracle(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In three epochs: every pack once, with the tokens of docs/ORDER.md, section 14."""
    settings = SETTINGS[number]
    compression = "gzip" if number == 1 else None
    world = World(tmp_path / "data", number, [13, 0, 60, 7, 1, 200], compression=compression)
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    expression = "id % 3 != 1" if number % 2 else None
    kept = (lambda ordinal: ordinal % 3 != 1) if expression else (lambda ordinal: True)
    with loader(world.source(expression=expression, **settings), tail="pad") as each:
        for epoch in range(3):
            expected = expected_packs(world, settings, epoch, kept, compression)
            assert each.samples == len(expected) and len(each) == -(-len(expected) // 4)
            found = Counter(pack for batch in each for pack, valid in packs_of(batch) if valid)
            assert found == Counter(expected.values())
            # The ledger has each token of a record once.
            tokens: Counter[tuple[str, int, int]] = Counter()
            for (shard, record, first, count), times in lines_of(tmp_path / "ledger", epoch).items():
                tokens.update({(shard, record, place): times for place in range(first, first + count)})
            assert set(tokens.values()) <= {1}
            total = sum(len(segment) for pack in expected.values() for segment in pack)
            assert len(tokens) == total
    assert len({repr(sorted(expected_packs(world, settings, epoch, kept, compression).values())) for epoch in range(2)}) == 2


@pytest.mark.parametrize("settings", [
    {"length": 64, "block": 16, "variants": 2},
    {"length": 64, "block": 16, "variants": 2, "method": "concat"},
    {"length": 700, "block": 5, "variants": 2, "method": "concat", "append": END},
])  # fmt: skip
def test_blocks_of_a_file_that_is_read_in_chunks(settings: dict[str, Any], tmp_path: Path) -> None:
    """Packs that need records of several chunks and, with concat, of several blocks."""
    world = World(tmp_path / "data", 9, [1500], most=300)
    assert (world.folder / "part-00.tfrecord").stat().st_size > 8 * 2**16
    with loader(world.source(**settings), tail="pad", memory_budget="4MiB", shuffle_window=50, batch_size=2) as each:
        for epoch in range(2):
            found = Counter(pack for batch in each for pack, valid in packs_of(batch) if valid)
            assert found == Counter(expected_packs(world, settings, epoch).values())
        # From the middle of the file.
        each.set_epoch(0)
        whole = [packs_of(batch) for batch in each]
        each.set_epoch(0)
        state = [each.state_dict() for _ in zip(range(len(whole) // 2), each, strict=False)][-1]
    with loader(world.source(**settings), tail="pad", memory_budget="4MiB", shuffle_window=50, batch_size=2, resume=state) as each:
        rest = [packs_of(batch) for batch in each]
        assert rest == whole[-len(rest) :] and 0 < len(rest) <= len(whole) // 2 + 2


@pytest.mark.parametrize(("most", "length"), [(3, 400), (300, 512), (40_000, 17_000)])
def test_packs_of_many_segments_and_of_long_ones(most: int, length: int, tmp_path: Path) -> None:
    """Segment ids and positions are varints of one byte up to 127, and of two up to 16,383."""
    world = World(tmp_path / "data", most, [1200 if most < 10 else 30], most)
    settings = {"length": length}
    with loader(world.source(**settings), batch_size=1, shuffle=False) as each:
        found = [pack for batch in each for pack, _ in packs_of(batch)]
    assert found == list(expected_packs(world, settings, 0).values())
    assert max(len(pack) for pack in found) > 127 or max(len(part) for pack in found for part in pack) > min(length, 16_400) // 2
    if most == 40_000:
        assert max(len(part) for pack in found for part in pack) > 16_384


@pytest.mark.parametrize("seed", range(5))
def test_any_stop_and_resume_at_any_world_size(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    settings = SETTINGS[rng.randrange(len(SETTINGS))]
    world = World(tmp_path / "data", seed, [rng.choice([0, 9, 30, 90]) for _ in range(5)] + [400])
    options = random_order(rng, shuffle=seed != 2)
    source = world.source(**settings)
    with loader(source, batch_size=12, **options) as each:
        whole = [packs_of(batch) for _ in range(2) for batch in each]
    steps = resumed_steps(rng, lambda **of_rank: loader(source, **options, **of_rank), packs_of, len(whole), 12)
    assert steps == whole
    if not options["shuffle"]:
        half = len(whole) // 2
        assert whole[:half] == whole[half:]


@pytest.mark.parametrize("method", ["fit", "concat"])
def test_the_example_conserves_tokens(method: str) -> None:
    command = [sys.executable, str(ROOT / "examples/packing/text.py"), "--length", "512", "--method", method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all(line.endswith("tokens conserved") for line in lines), lines


def test_columns_of_tokens_are_packed_together(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 3, [50])
    source = world.source(columns=("tokens", "mask"), length=32, append={"tokens": END, "mask": -1})
    names = {name: str(column) for name, column in source.columns.items()}
    assert names == {"mask": "float32 [32]", "tokens": "int64 [32]", "tokens_positions": "int64 [32]", "tokens_segment_ids": "int64 [32]"}
    with loader(source.cast("tokens", "int32"), tail="pad") as each:
        for batch in each:
            expected = np.where(batch["tokens"] == END, -1, batch["tokens"] / 4).astype(np.float32)
            assert np.array_equal(batch["mask"], expected) and batch["tokens"].dtype == np.int32


def test_mixtures_of_packs(tmp_path: Path) -> None:
    """Each source epoch has the packs of its variant."""
    settings = {"length": 32, "variants": 3}
    one, other = World(tmp_path / "one", 1, [70, 40]), World(tmp_path / "other", 2, [300])
    given = {"one": (one.source(**settings), 1), "other": (other.source(**settings), 1)}
    packs = [expected_packs(one, settings, epoch) for epoch in range(3)]
    with loader(sf.mix(given, epoch=2 * len(packs[0])), tail="pad") as each:
        for epoch in range(3):
            rows = [(pack, source) for batch in each for (pack, valid), source in zip(packs_of(batch), batch.source, strict=True) if valid]
            assert Counter(pack for pack, source in rows if source == 0) == Counter(packs[epoch].values())


def test_damaged_records(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 4, [40, 200])
    source = world.source(length=32)
    with loader(source) as each:
        samples = each.samples
    file = world.folder / "part-01.tfrecord"
    bad = next(ordinal for ordinal, tokens in enumerate(world.tokens["part-01.tfrecord"]) if len(tokens) > 3)
    at = record_offsets(file)[bad]
    flip(file, at + 12 + 5)
    lost = set(world.tokens["part-01.tfrecord"][bad])
    # Counted before: the packs with its tokens are replaced.
    with loader(source, corrupt="skip-record", tail="pad") as each:
        assert each.samples == samples
        rows = [row for batch in each for row in packs_of(batch)]
        assert not any(lost & set(segment) for pack, _ in rows for segment in pack)
        whole = expected_packs(world, {"length": 32}, 0)
        damaged = [pack for pack in whole.values() if any(lost & set(segment) for segment in pack)]
        assert Counter(pack for pack, valid in rows if valid) == Counter(whole.values()) - Counter(damaged)
        assert [(one.file, one.offset, one.ordinal) for one in each.skipped] == [(str(file), at, bad)]
    with pytest.raises(sf.CorruptRecordError) as caught:
        list(loader(source))
    assert (caught.value.file, caught.value.offset, caught.value.ordinal) == (str(file), at, bad)
    # Counted with it: the record is left out.
    for kind in ("samples-2", "columns-1"):
        shutil.rmtree(tmp_path / "cache" / kind)
    with loader(source, corrupt="skip-record", tail="pad") as each:
        found = [token for batch in each for pack, valid in packs_of(batch) if valid for segment in pack for token in segment]
        tokens = {token for sequences in world.tokens.values() for tokens in sequences for token in tokens}
        assert sorted(found) == sorted(tokens - lost)


def test_the_memory_budget_names_what_fits(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 5, [500, 500])
    with pytest.raises(sf.ConfigError, match="shards of packs or windows cannot be read out of order"):
        list(loader(world.source(length=512), memory_budget="400KiB", shuffle_window=10_000))


def test_wrong_declarations_are_errors_at_once(tmp_path: Path) -> None:
    features = FEATURES | {"more": sf.VarLenFeature("string"), "tokens_positions": sf.VarLenFeature("int64")}
    source = sf.source("none", features)
    packed = source.pack("tokens", length=8)
    floats = sf.source("none", {"more": sf.VarLenFeature("float32")})
    given: Any
    for of, columns, given, said in (
        (source, ("toknes",), {}, "there is no feature `toknes`; there are `id`, `mask`"),
        (source, ("id",), {}, "column `id` has no tokens for pack"),
        (source, ("more",), {}, "column `more` has no tokens for pack"),
        (source, ("tokens", "tokens"), {}, "column `tokens` is named twice"),
        (source, ("tokens", "tokens_positions"), {}, "column `tokens_positions` is made by pack"),
        (source, (), {}, "pack takes names of columns"),
        (source, ("tokens",), {"length": 0}, "length"),
        (source, ("tokens",), {"length": 2**31}, "length"),
        (source, ("tokens",), {"block": 2**21}, "block"),
        (source, ("tokens",), {"variants": 65}, "variants"),
        (source, ("tokens",), {"method": "best"}, "method is"),
        (source, ("tokens",), {"long": "cut"}, "long is"),
        (source, ("tokens",), {"append": 1.5}, "append of 'tokens'"),
        (floats, ("more",), {"append": float("nan")}, "append of 'more' is nan; it needs a finite number"),
        (source, ("tokens",), {"length": True}, "length must be a whole number, not True"),
        (source, ("tokens", "mask"), {"append": 1}, "a dict of all of them"),
        (source.cast("id", "float32"), ("tokens",), {}, r"call pack\(\) before the operators"),
        (source.unbatch("mask"), ("tokens",), {}, "column `tokens` is repeated in each row"),
        (packed, ("tokens",), {}, "packed already"),
    ):
        with pytest.raises(sf.ConfigError, match=said):
            of.pack(*columns, **{"length": 8, **given})
    with pytest.raises(sf.ConfigError, match=r"call filter\(\) before pack"):
        packed.filter("id > 3")
    with pytest.raises(sf.ConfigError, match=r"call unbatch\(\) before"):
        packed.unbatch("tokens")
    assert pickle.loads(pickle.dumps(packed)) == packed and pickle.loads(pickle.dumps(packed)).columns == packed.columns
    world = World(tmp_path / "data", 6, [60])
    with pytest.raises(sf.ConfigError, match=r"part-00.tfrecord: record \d+ has \d+ tokens, more than length=8; pass long="):
        loader(world.source(length=8, long="error"))
    with loader(world.source(length=16)) as each:
        state = each.state_dict()
    with pytest.raises(sf.StateError, match="pack"):
        loader(world.source(length=16, block=77), resume=state)


def test_a_second_start_counts_nothing_and_other_lengths_use_the_same_map(tmp_path: Path) -> None:
    world = World(tmp_path / "data", 7, [4000], most=200)
    size = sum(file.stat().st_size for file in world.folder.iterdir())

    def opened(**settings: Any) -> int:
        before = read_chars()
        loader(world.source(**settings)).close()
        return read_chars() - before

    loader(sf.source(world.pattern, FEATURES)).close()
    assert size < opened(length=64) < 1.2 * size, "each byte once"
    assert opened(length=64) < size / 4
    assert opened(length=128, append=END, method="concat") < size / 4
