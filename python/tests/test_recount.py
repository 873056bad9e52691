"""tests/recount.py on handwritten ledgers: it must be able to fail."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import shardfeed as sf

SCRIPT = Path(__file__).resolve().parents[2] / "tests" / "recount.py"
sys.path.insert(0, str(SCRIPT.parent))
from recount import Recount, recount  # noqa: E402

State = dict[str, Any]

#: Eight records; two ranks with two rows each need two steps.
COUNTS = {"a b/100% x.tfrecord": 5, "c\u2028d.tfrecord": 3}
ORDER = [(shard, ordinal) for shard, count in COUNTS.items() for ordinal in range(count)]
#: Source, source epoch and shard of the second record, as a ledger has them.
SECOND = "- 0 a b/100%25 x.tfrecord"


class World:
    """Writes ledgers like ranks that take ORDER, four records per step."""

    def __init__(self, folder: Path) -> None:
        self.ledger, self.data = folder / "ledger", folder / "data"
        self.ledger.mkdir(parents=True)
        for shard, count in COUNTS.items():
            (self.data / shard).parent.mkdir(parents=True, exist_ok=True)
            with sf.TFRecordWriter(self.data / shard) as writer:
                for ordinal in range(count):
                    writer.write(b"record %d" % ordinal)

    def start(self, generation: int, at: tuple[int, int], world: int, ranks: Sequence[int]) -> None:
        for rank in ranks:
            line = f"start {generation} {at[0]} {at[1]} {world} {4 // world}\n"
            self.append(rank, line)

    def give(self, generation: int, at: tuple[int, int], world: int, ranks: Sequence[int]) -> None:
        """Delivers step `at` to the ranks."""
        for rank in ranks:
            first, size = at[1] * 4 + rank * (4 // world), 4 // world
            for shard, ordinal in ORDER[first : first + size]:
                self.row(rank, generation, at, shard, ordinal)

    def row(
        self,
        rank: int,
        generation: int,
        at: tuple[int, int],
        shard: str,
        ordinal: int,
        mark: str = "1",
    ) -> None:
        escaped, entry = shard.replace("%", "%25"), ordinal % 2
        line = f"{generation} {at[0]} {at[1]} {entry} - {at[0]} {escaped} {ordinal} {ordinal} 0 0 1 {mark}\n"
        self.append(rank, line)

    def append(self, rank: int, text: str) -> None:
        with (self.ledger / f"rank-{rank}").open("a", encoding="utf-8") as file:
            file.write(text)

    def run(self, generation: int, world: int, *steps: tuple[int, int]) -> None:
        """Starts all ranks at the first of the steps, and delivers the steps to all of them."""
        ranks = range(world)
        self.start(generation, steps[0], world, ranks)
        for at in steps:
            self.give(generation, at, world, ranks)

    def edit(self, rank: int, old: str, new: str) -> None:
        path = self.ledger / f"rank-{rank}"
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), encoding="utf-8")

    def count(self, epochs: int | None = None, tail: str = "pad") -> Recount:
        return recount(self.ledger, self.data, epochs, tail)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def numbers(total: Recount) -> tuple[int, int, int, int]:
    return total.lost, total.duplicated, total.unknown, len(total.problems)


def test_all_is_well(world: World) -> None:
    world.run(0, 2, (0, 0), (0, 1), (1, 0), (1, 1))
    total = world.count(epochs=2)
    assert numbers(total) == (0, 0, 0, 0)
    assert (total.records, total.epochs, total.is_ok()) == (8, 2, True)


def test_a_lost_record(world: World) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    world.edit(0, f"0 0 0 1 {SECOND} 1 1 0 0 1 1\n", f"0 0 0 1 {SECOND} 1 1 0 0 1 pad\n")
    assert numbers(world.count()) == (1, 0, 0, 0)


def test_a_lost_row(world: World) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    world.edit(0, f"0 0 0 1 {SECOND} 1 1 0 0 1 1\n", "")
    assert numbers(world.count()) == (1, 0, 0, 1)


def test_a_doubled_record(world: World) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    world.edit(0, f"0 0 0 1 {SECOND} 1 1 0 0 1 1\n", f"0 0 0 1 {SECOND} 4 4 0 0 1 1\n")
    assert numbers(world.count()) == (1, 1, 0, 0)


def test_a_step_given_twice(world: World) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    world.give(0, (0, 1), 2, [1])
    assert numbers(world.count()) == (0, 2, 0, 1)


def test_records_that_no_shard_has(world: World) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    world.edit(1, "c\u2028d.tfrecord 2 2 0 0 1 1", "c\u2028d.tfrecord 3 3 0 0 1 1")
    assert numbers(world.count()) == (1, 0, 1, 0)
    world.edit(1, "c\u2028d.tfrecord 1 1 0 0 1 1", "elsewhere.tfrecord 1 1 0 0 1 1")
    assert numbers(world.count()) == (2, 0, 2, 0)


def test_padding_is_not_counted_but_must_exist(world: World) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    for rank in (0, 1):
        world.row(rank, 0, (0, 2), ORDER[0][0], 0, mark="pad")
        world.row(rank, 0, (0, 2), ORDER[0][0], 1, mark="pad")
    assert numbers(world.count()) == (0, 0, 0, 0)
    world.edit(1, f"0 0 2 1 {SECOND} 1 1 0 0 1 pad", f"0 0 2 1 {SECOND} 9 9 0 0 1 pad")
    assert numbers(world.count()) == (0, 0, 1, 0)


def test_the_entry_of_a_corrupt_record_is_skipped_and_padding_is_not(world: World) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    world.edit(0, f"0 0 0 1 {SECOND} 1 1 0 0 1 1\n", f"0 0 0 1 {SECOND} 1 1 0 0 1 skip\n")
    total = recount(world.ledger, world.data, corrupt="skip-record")
    assert (numbers(total), total.skipped) == ((0, 0, 0, 0), 1)
    assert numbers(world.count()) == (1, 0, 0, 0)
    world.edit(0, " skip\n", " pad\n")
    total = recount(world.ledger, world.data, corrupt="skip-record")
    assert (numbers(total), total.skipped) == ((1, 0, 0, 0), 0)


def test_a_missing_step_and_a_gap(world: World) -> None:
    world.run(0, 2, (0, 0), (1, 1))
    total = world.count(epochs=2)
    assert numbers(total) == (8, 0, 0, 1)  # epoch 0 without its end looks like a short epoch: lost
    assert "epoch 1: steps [1]" in total.problems[0]


def test_a_rank_behind_the_others(world: World) -> None:
    world.run(0, 2, (0, 0))
    world.give(0, (0, 1), 2, [0])
    total = world.count()
    assert numbers(total) == (2, 0, 0, 1)
    assert "epoch 0 step 1: (rank, rows) [(0, 2)]" in total.problems[0]


def test_epochs_that_were_not_begun_or_not_asked_for(world: World) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    assert numbers(world.count(epochs=2)) == (8, 0, 0, 1)
    world.run(1, 2, (1, 0), (1, 1))
    assert numbers(world.count(epochs=1)) == (0, 0, 0, 1)


def test_nothing_was_delivered(world: World) -> None:
    world.append(0, "")
    assert not world.count().is_ok()


def test_a_rewound_generation(world: World) -> None:
    world.start(0, (0, 0), 2, [0, 1])
    world.give(0, (0, 0), 2, [0, 1])
    world.give(0, (0, 1), 2, [0])  # rank 0 was ahead when rank 1 died
    world.run(1, 2, (0, 1), (1, 0), (1, 1))
    assert numbers(world.count(epochs=2)) == (0, 0, 0, 0)


def test_a_resume_one_step_too_early_or_too_late(world: World, tmp_path: Path) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    world.start(1, (1, 0), 2, [0, 1])
    world.give(1, (0, 1), 2, [0, 1])  # begins at (1, 0) and gives (0, 1) again
    assert numbers(world.count(epochs=1))[:2] == (0, 4)

    late = World(tmp_path / "late")
    late.run(0, 2, (0, 0))
    late.run(1, 2, (1, 0), (1, 1))
    assert numbers(late.count(epochs=2)) == (4, 0, 0, 0)


def test_ranks_that_resume_at_different_steps(world: World) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    world.start(1, (0, 1), 2, [0])
    world.start(1, (0, 0), 2, [1])
    world.give(1, (0, 1), 2, [0])
    world.give(1, (0, 0), 2, [1])
    assert not world.count(epochs=1).is_ok()


def test_a_generation_started_twice(world: World) -> None:
    world.run(0, 2, (0, 0))
    world.run(1, 2, (0, 1))  # crashes before its first checkpoint
    world.start(1, (0, 1), 2, [0])  # so does this one, rank 1 even before its first batch
    world.give(1, (0, 1), 2, [0])
    world.run(1, 2, (0, 1), (1, 0), (1, 1))
    world.run(2, 2, (1, 1))
    assert numbers(world.count(epochs=2)) == (0, 0, 0, 0)


@pytest.mark.parametrize(("first", "second"), [(4, 2), (2, 4), (1, 4), (4, 1)])
def test_a_generation_started_twice_at_other_world_sizes(
    world: World, first: int, second: int
) -> None:
    world.run(0, 2, (0, 0))
    world.run(1, first, (0, 1), (1, 0))
    world.run(1, second, (0, 1), (1, 0), (1, 1))
    assert numbers(world.count(epochs=2)) == (0, 0, 0, 0)


def test_the_last_of_two_starts_counts(world: World) -> None:
    world.run(0, 2, (0, 0))
    world.run(1, 2, (0, 1))
    world.start(1, (0, 1), 2, [0, 1])  # deliveries of the first attempt are dropped with it
    assert numbers(world.count(epochs=1)) == (4, 0, 0, 0)


def test_a_start_that_goes_on_after_an_error(world: World) -> None:
    world.run(0, 2, (0, 0))
    world.start(0, (0, 1), 2, [1])  # rank 1 alone retried
    world.give(0, (0, 1), 2, [0, 1])
    assert numbers(world.count()) == (0, 0, 0, 0)


def test_going_back_to_an_older_token_leaves_a_branch(world: World) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    world.run(1, 2, (0, 1), (1, 0))
    world.run(2, 2, (1, 0), (1, 1))
    world.run(1, 2, (0, 1), (1, 0), (1, 1))
    total = world.count(epochs=2)
    assert numbers(total) == (0, 0, 0, 0)
    assert [start.generation for start in total.generations] == [0, 1]


def test_a_rank_that_vanished(world: World) -> None:
    world.run(0, 4, (0, 0), (0, 1), (1, 0))
    world.run(1, 2, (0, 1), (1, 0), (1, 1))
    assert numbers(world.count(epochs=2)) == (0, 0, 0, 0)


def test_a_rank_that_should_have_vanished(world: World) -> None:
    world.run(0, 4, (0, 0))
    world.run(1, 2, (0, 1), (1, 0))
    world.give(0, (0, 1), 4, [3])  # before the generation's end at (0, 1): dropped
    assert numbers(world.count(epochs=1))[:2] == (0, 0)
    world.run(2, 2, (1, 1))
    world.give(0, (0, 0), 4, [3])
    assert numbers(world.count(epochs=2)) == (0, 1, 0, 1)


def test_tail_drop(world: World) -> None:
    with sf.TFRecordWriter(world.data / "rest.tfrecord") as writer:
        for _ in range(3):
            writer.write(b"left out")
    world.run(0, 2, (0, 0), (0, 1))
    assert numbers(world.count()) == (3, 0, 0, 0)
    total = world.count(tail="drop")
    assert (numbers(total), total.dropped) == ((0, 0, 0, 0), 3)
    world.edit(0, f"0 0 0 1 {SECOND} 1 1 0 0 1 1\n", f"0 0 0 1 {SECOND} 4 4 0 0 1 1\n")
    assert numbers(world.count(tail="drop")) == (1, 1, 0, 0)


def test_tail_uneven(world: World) -> None:
    world.start(0, (0, 0), 2, [0, 1])
    world.give(0, (0, 0), 2, [0, 1])
    world.give(0, (0, 1), 2, [0])
    # A short step, and one more step than the other rank.
    world.row(1, 0, (0, 1), *ORDER[6])
    world.row(1, 0, (0, 2), *ORDER[7])
    assert numbers(world.count(tail="uneven")) == (0, 0, 0, 0)
    assert not world.count(tail="pad").is_ok()
    world.row(1, 0, (0, 2), *ORDER[7])
    assert numbers(world.count(tail="uneven")) == (0, 1, 0, 0)


def test_tail_uneven_with_a_hole_or_too_many_rows(world: World) -> None:
    world.start(0, (0, 0), 2, [0, 1])
    world.give(0, (0, 0), 2, [0, 1])
    world.give(0, (0, 1), 2, [0])
    world.row(1, 0, (0, 2), *ORDER[6])
    total = world.count(tail="uneven")
    assert numbers(total) == (1, 0, 0, 1)  # a rank that skips a step has lost its rows
    assert "epoch 0: rank 1's steps [0, 2]" in total.problems[0]
    for _ in range(3):
        world.row(0, 0, (0, 2), *ORDER[7])
    total = world.count(tail="uneven")
    assert numbers(total) == (0, 2, 0, 2)
    assert "epoch 0 step 2: (rank, rows) [(0, 3), (1, 1)]" in total.problems[1]


@pytest.mark.parametrize(
    "line",
    [
        "0 0 0 0 - 0 a.tfrecord 1 1 0 0 1 1",
        "0 0 0 0 - 0 a.tfrecord x 1 0 0 1 1\n",
        "0 0 0 0 - 0 a.tfrecord 1 1 0 0 1 2\n",
        "0 0 0 0 - 0 a.tfrecord 1 1 1\n",
        "0 0 0 a.tfrecord 1 1\n",
        "1 0 0 0 - 0 a.tfrecord 1 1 0 0 1 1\n",
        "start 0 0 0 2\n",
        "\n",
    ],
)
def test_a_line_that_is_no_ledgers(world: World, line: str) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    world.append(1, line)
    with pytest.raises(ValueError, match="rank-1"):
        world.count()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0 0 1 0 web 0 a b/100%25 x.tfrecord 4 4 0 0 1 1", "is of a mixture"),
        ("0 0 1 0 - 0 a b/100%25 x.tfrecord 2 4 0 0 1 1", "is made by filter, unbatch, pack or window"),
        ("0 0 1 0 - 0 a b/100%25 x.tfrecord 4 4 3 0 1 1", "is made by filter, unbatch, pack or window"),
        ("0 0 1 0 - 0 a b/100%25 x.tfrecord 4 4 0 3 1 1", "is made by filter, unbatch, pack or window"),
        ("0 0 1 0 - 0 a b/100%25 x.tfrecord 4 4 0 0 9 1", "is made by filter, unbatch, pack or window"),
    ],
)
def test_other_samples_than_records_are_refused(world: World, line: str, said: str) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    world.edit(0, "0 0 1 0 - 0 a b/100%25 x.tfrecord 4 4 0 0 1 1", line)
    with pytest.raises(ValueError, match=rf"epoch 0 step 1: sample \d of a b/100% x.tfrecord {said}, and only plain records"):
        world.count()


def test_records_of_a_filter_that_are_known(world: World) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    world.edit(0, f"{SECOND} 1 1 0 0 1 1", f"{SECOND} 0 1 0 0 1 1")
    samples = {shard: range(count) for shard, count in COUNTS.items()}
    assert recount(world.ledger, world.data, samples=samples).is_ok()


def test_the_command(world: World) -> None:
    world.run(0, 2, (0, 0), (0, 1))
    command = [sys.executable, str(SCRIPT), f"--ledger={world.ledger}", f"--data={world.data}"]
    done = subprocess.run(command, capture_output=True, text=True)
    line = "recount: epochs=1 records=8 lost=0 duplicated=0 unknown=0 dropped=0 skipped=0\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, line, "")
    done = subprocess.run([*command, "--epochs", "2", "--json"], capture_output=True, text=True)
    assert (done.returncode, json.loads(done.stdout)["lost"]) == (1, 8)
    world.append(0, "nonsense\n")
    assert subprocess.run(command, capture_output=True).returncode == 2


def test_ledgers_that_the_loader_wrote(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDFEED_LEDGER", str(world.ledger))
    monkeypatch.setenv("SHARDFEED_CACHE_DIR", str(world.ledger.parent / "cache"))

    def load(world_size: int, state: State | None, steps: int) -> State:
        """Lets each rank take `steps` steps; returns their state."""
        after = []
        for rank in range(world_size):
            with sf.Loader(
                [world.data / shard for shard in COUNTS],
                batch_size=6 // world_size,
                lanes=6,
                tail="pad",
                rank=rank,
                world_size=world_size,
                resume=state,
            ) as loader:
                for _ in range(steps):
                    next(iter(loader))
                after.append(loader.state_dict())
        assert all(state == after[0] for state in after)
        return after[0]

    first = load(2, None, 1)
    load(2, first, 2)
    load(3, load(3, first, 2), 1)
    total = world.count(epochs=2)
    assert numbers(total) == (0, 0, 0, 0)
    assert [start.world_size for start in total.generations] == [2, 3, 3]
