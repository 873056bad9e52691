"""`Source.unbatch` with offsets: samples have the rows around their own, within their record."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resuming import random_order, resumed_steps
from test_unbatch import FEATURES, Place, Program, World, lines_of, loader, plain

import shardfeed as sf

ZEROS: dict[str, Any] = {"box": [0.0] * 4, "label": 0, "name": b""}


class Around:
    """Offsets of columns: in shardfeed and in Python."""

    def __init__(self, offsets: Mapping[str, tuple[int, int]], edge: Any = "drop", stride: int = 1, of: Program | None = None) -> None:
        self.offsets, self.edge, self.stride = offsets, edge, stride
        self.program = of or Program(())
        self.columns = sorted({*self.program.columns, *offsets})

    def source(self, world: World) -> sf.Source:
        source = sf.source(world.pattern, FEATURES)
        source = source if self.program.filter is None else source.filter(self.program.filter[0])
        source = source.unbatch(*self.program.columns, offsets=self.offsets, edge=self.edge, stride=self.stride)
        return source if self.program.rows is None else source.filter(self.program.rows[0])

    def places(self, world: World) -> list[Place]:
        return [
            (shard, record, row)
            for shard, records in world.records.items()
            for record, values in enumerate(records)
            if self.program.takes(values)
            for row in range(len(values["label"]))
            if row % self.stride == 0 and self.program.takes_row(values, row) and self.has_all(row, len(values["label"]))
        ]

    def has_all(self, row: int, rows: int) -> bool:
        return self.edge != "drop" or all(row + first >= 0 and row + last < rows for first, last in self.offsets.values())

    def expected(self, world: World, place: Place) -> dict[str, Any]:
        """Returns the columns with rows, and those that mark padding."""
        shard, record, row = place
        values, found = world.records[shard][record], {}
        for name in self.columns:
            rows = values[name]
            if name not in self.offsets:
                found[name] = plain(rows[row])
                continue
            first, last = self.offsets[name]
            at = range(row + first, row + last + 1)
            outside = [not 0 <= one < len(rows) for one in at]
            nearest = [rows[min(max(one, 0), len(rows) - 1)] for one in at]
            if self.edge == "zero":
                nearest = [ZEROS[name] if out else one for one, out in zip(nearest, outside, strict=True)]
            found[name] = plain(nearest)
            if self.edge != "drop":
                found[f"{name}_is_pad"] = outside
        return found

    def rows_of(self, batch: sf.Batch) -> list[Any]:
        names = [*self.columns] + [name for name in batch if name.endswith("_is_pad")]
        return [
            (int(batch["id"][row]), {name: plain(batch[name][row]) for name in names}, bool(batch.valid[row]))
            for row in range(batch.rows)
        ]


def text_of(row: Any) -> str:
    return json.dumps(row, sort_keys=True, default=repr)


TASKS = [
    Around({"label": (-1, 0)}, "repeat"),
    Around({"label": (0, 3), "box": (-2, 1)}, "zero"),
    Around({"label": (0, 2)}),
    Around({"label": (0, 0)}),
    Around({"name": (-1, 1)}, "zero", of=Program(("label",))),
    Around({"name": (1, 2), "label": (-9, -7)}, "repeat", stride=2),
    Around({"box": (0, 1)}, "drop", 3, Program(("label",), ("id % 3 != 1", lambda record: record["id"] % 3 != 1))),
    Around({"box": (0, 2)}, "repeat", 1, Program(("label", "name"), None, ("label > 0", lambda record, row: record["label"][row] > 0))),
    Around({}, stride=2, of=Program(("label", "box"))),
]


@pytest.mark.parametrize("number", range(len(TASKS)))
def test_samples_have_the_rows_around_theirs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS[number]
    world = World(tmp_path / "data", number, [13, 0, 40, 7, 120], rows=9, compression="gzip" if number == 1 else None)
    places = task.places(world)
    expected = [(world.records[shard][record]["id"], task.expected(world, (shard, record, row))) for shard, record, row in places]
    source = task.source(world)
    with loader(source, shuffle=False, interleave=1, tail="pad") as each:
        assert each.samples == len(places) > 0
        rows = [row[:-1] for batch in each for row in task.rows_of(batch) if row[-1]]
    assert rows == expected
    monkeypatch.setenv("SHARDFEED_LEDGER", str(tmp_path / "ledger"))
    # By position where the budget is small.
    with loader(source, shuffle_window=5000, tail="pad", memory_budget=200_000 if number % 2 else None) as each:
        rows = [row[:-1] for batch in each for row in task.rows_of(batch) if row[-1]]
    assert sorted(rows, key=text_of) == sorted(expected, key=text_of) and rows != expected
    assert lines_of(tmp_path / "ledger") == Counter(places)


@pytest.mark.parametrize("seed", range(4))
def test_any_stop_and_resume_at_any_world_size(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    task = TASKS[rng.randrange(len(TASKS))]
    world = World(tmp_path / "data", seed, [rng.choice([0, 9, 30]) for _ in range(5)] + [100], rows=9)
    options, source = random_order(rng, shuffle=True), task.source(world)
    with loader(source, batch_size=12, **options) as each:
        whole = [task.rows_of(batch) for batch in each]
    assert resumed_steps(rng, lambda **of_rank: loader(source, **options, **of_rank), task.rows_of, len(whole), 8) == whole


def episodes(folder: Path, lengths: list[int]) -> sf.Source:
    """Writes episodes whose step s of episode e has the action [e, s], the state [-s] and the frame b"e/s"."""
    with sf.TFRecordWriter(folder / "a.tfrecord") as writer:
        for number, length in enumerate(lengths):
            lists: dict[str, Any] = {
                "action": [[number, step] for step in range(length)],
                "state": [[-step] for step in range(length)],
                "frame": [[f"{number}/{step}".encode()] for step in range(length)],
            }
            writer.write(sf.encode_sequence_example({"episode": number}, lists))
    return sf.source(
        str(folder / "a.tfrecord"),
        {"episode": sf.FixedLenFeature((), "int64")},
        sequence_features={
            "action": sf.FixedLenSequenceFeature((2,), "int64", allow_missing=True),
            "state": sf.FixedLenSequenceFeature((1,), "int64", allow_missing=True),
            "frame": sf.FixedLenSequenceFeature((), "string", allow_missing=True),
        },
    )


def test_an_episode_has_histories_and_chunks_of_actions(tmp_path: Path) -> None:
    source = episodes(tmp_path, [3, 0, 1, 6]).unbatch("frame", offsets={"state": (-1, 0), "action": (0, 3)}, edge="repeat")
    assert {name: str(column) for name, column in source.columns.items()} == {
        "episode": "int64 []", "action": "int64 [4, 2]", "frame": "string []", "state": "int64 [2, 1]",
        "action_is_pad": "bool [4]", "state_is_pad": "bool [2]",
    }  # fmt: skip
    source = source.cast("action", "float32").normalize("action", mean=0.0, std=2.0)
    with loader(source, batch_size=5, shuffle=False) as each:
        batches = list(each)
    joined = {name: np.concatenate([batch[name] for batch in batches]) for name in source.columns if name != "frame"}
    places = [(episode, step, length) for episode, length in ((0, 3), (2, 1), (3, 6)) for step in range(length)]
    assert joined["action"].dtype == np.float32 and joined["action_is_pad"].dtype == np.bool_
    for row, (episode, step, length) in enumerate(places):
        chunk = [min(step + ahead, length - 1) for ahead in range(4)]
        assert joined["episode"][row] == episode
        assert joined["action"][row].tolist() == [[episode / 2, at / 2] for at in chunk]
        assert joined["action_is_pad"][row].tolist() == [step + ahead >= length for ahead in range(4)]
        assert joined["state"][row].tolist() == [[-max(step - 1, 0)], [-step]]
        assert joined["state_is_pad"][row].tolist() == [step == 0, False]


def test_windows_of_an_episode(tmp_path: Path) -> None:
    """Four frames, each second of which begins a window."""
    source = episodes(tmp_path, [3, 9, 4]).unbatch(offsets={"frame": (0, 3), "state": (0, 3)}, stride=2)
    with loader(source, batch_size=1, shuffle=False) as each:
        found = [(int(batch["episode"][0]), [bytes(one) for one in batch["frame"][0]], batch["state"][0].ravel().tolist()) for batch in each]
    starts = [(1, 0), (1, 2), (1, 4), (2, 0)]
    assert found == [(number, [f"{number}/{at}".encode() for at in range(start, start + 4)], [-at for at in range(start, start + 4)]) for number, start in starts]


def test_wrong_offsets_are_errors_at_once(tmp_path: Path) -> None:
    source = sf.source("none", FEATURES | {"label_is_pad": sf.FixedLenFeature((), "int64")})
    for options, said in (
        ({"offsets": {"label": (2, 1)}}, r"the offsets of `label` are \(2, 1\), not the first and the last one"),
        ({"offsets": {"label": (0, 2**40)}}, r"not the first and the last one, between -1048576 and 1048576"),
        ({"offsets": {"label": (0, 4096)}}, "a sample would have 4097 rows of `label`; the most is 4096"),
        ({"offsets": {"label": 3}}, r"offsets of 'label' are \(first, last\), not 3"),
        ({"offsets": [("label", 0, 1)]}, "offsets is a dict of column to"),
        ({"offsets": {"label": (0, 0.5)}}, "it needs whole numbers"),
        ({"offsets": {"id": (0, 1)}}, "column `id` has no rows to take one by one"),
        ({"offsets": {"box": (0, 1)}, "edge": "pad"}, '"pad"|edge'),
        ({"edge": "pad"}, "edge"),
        ({"edge": "repeat"}, "edge='repeat' is for columns of offsets="),
        ({"offsets": {"box": (0, 1)}, "stride": 0}, "stride"),
        ({"offsets": {"label": (0, 1)}, "edge": "zero"}, "a feature has the name `label_is_pad`"),
    ):
        with pytest.raises(sf.ConfigError, match=said):
            source.unbatch("name", **options)  # type: ignore[arg-type]
    with pytest.raises(sf.ConfigError, match="column `label` is named twice"):
        source.unbatch("label", offsets={"label": (0, 1)})
    with pytest.raises(sf.ConfigError, match=r"call unbatch\(\) with offsets before the operators"):
        source.cast("id", "float32").unbatch(offsets={"box": (0, 1)}, edge="zero")
    world = World(tmp_path / "data", 1, [20], rows=3)
    with pytest.raises(sf.ConfigError, match="no sample is left"):
        loader(Around({"label": (0, 5)}).source(world))
