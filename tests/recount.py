"""Counts the records delivered to ranks, from their ledgers and the shards alone, without the
loader.

    python tests/recount.py --ledger DIR --data DIR [--epochs E] [--tail pad|drop|uneven] [--json]
        [--corrupt error|skip-record|skip-file] [--skipped N]

DIR/rank-R is written with SHARDFEED_LEDGER=DIR (worker/client/src/ledger.rs); --data is the dataset's
folder, without other files. --corrupt is the loader's policy: it determines which records of
damaged files count. --skipped is the permitted number of skipped records. A rank's file is in
chronological order. A `start` of the same generation that continues at the end of its file (a retry
after an error) begins nothing. Any other start replaces the file's entries of its generation and of
later ones: two starts from one state have the same number, and an older state abandons a branch.
Rank 0, which every world size has, determines which generations exist. Another rank's part counts
if it began at the same (epoch, step) with the same world size and batch size; otherwise it belongs
to an abandoned attempt. Generations are processed in order: each drops deliveries of earlier ones,
on any rank, at or after its first (epoch, step).

Every record of the shards must be a sample. Lines of mixtures, and of samples that `filter`,
`unbatch`, `pack` or `window` made, are refused. A filter that only the last records of files fail
leaves no such lines: these records count as lost.

Counted in each epoch, then summed:
- lost: records never delivered as `valid`. tail="pad" and "uneven": all of them. tail="drop": less
  those that the last step may omit, records mod B; B - 1 if the global batch B changed in the
  epoch.
- skipped, unless --corrupt is error: records of which an entry is marked `skip`, as that of a
  corrupt record, and none is valid. They are not lost.
- left_out: records of steps that all ranks left out (`left_out` lines, after the start of a
  generation: generation, epoch, first step, first step after them). They are not lost.
- duplicated: valid deliveries after a record's first. unknown: rows, including padding, of no
  record.
- problems: steps that are not 0, 1, 2, ...; steps where not every rank has batch_size rows.
  tail="uneven": each rank has its own steps, of at most batch_size rows, and ranks may end at
  different ones; starts at which ranks were at different steps are not followed, so their
  deliveries are lost.

Exit status: 0 success, 1 failure, 2 counting was impossible.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from shardfeed import CorruptRecordError, read_records

Row = tuple[str, int, bool]  # shard, record, valid


class Line(NamedTuple):
    """Line of a delivered entry. `source` is None without a mixture."""

    generation: int
    epoch: int
    step: int
    entry: int
    source: str | None
    source_epoch: int
    shard: str
    sample: int
    record: int
    record_row: int
    first: int
    rows: int  # `count` is a method of a tuple
    mark: str  # "1": valid; "pad": padding; "skip": the record is corrupt

    @property
    def row(self) -> Row:
        return self.shard, self.record, self.mark == "1"


class Start(NamedTuple):
    generation: int
    epoch: int
    step: int
    world_size: int
    batch_size: int


@dataclass
class Part:
    """Deliveries to one rank in one generation; (epoch, step) in the order of delivery."""

    start: Start
    steps: dict[tuple[int, int], list[Line]] = field(default_factory=dict)
    #: Steps of the epoch of its start, before it, that all ranks left out.
    left_out: set[int] = field(default_factory=set)

    def goes_on(self, start: Start) -> bool:
        if not self.steps or start != self.start._replace(epoch=start.epoch, step=start.step):
            return False
        epoch, step = next(reversed(self.steps))
        return start[1:3] == (epoch, step + 1) or (start.epoch > epoch and start.step == 0)


@dataclass
class Step:
    """One step of all ranks."""

    start: Start
    lines: dict[int, list[Line]] = field(default_factory=dict)

    def rows_by_rank(self) -> list[tuple[int, int]]:
        return [(rank, len(lines)) for rank, lines in sorted(self.lines.items())]

    def global_batch(self) -> list[Row]:
        return [line.row for _, lines in sorted(self.lines.items()) for line in lines]


@dataclass
class Recount:
    epochs: int
    records: int
    generations: list[Start]
    lost: int = 0
    duplicated: int = 0
    unknown: int = 0
    dropped: int = 0
    skipped: int = 0
    left_out: int = 0
    problems: list[str] = field(default_factory=list)

    def is_ok(self, skipped: int = 0) -> bool:
        bad = self.lost or self.duplicated or self.unknown or self.problems
        return not bad and self.skipped <= skipped


def count_records(file: Path, corrupt: str) -> int:
    """Returns the number of records of a file that become samples under a policy."""
    records, count = read_records(file), 0
    while True:
        try:
            if next(records, None) is None:
                return count
            count += 1
        except CorruptRecordError as error:
            if corrupt == "error":
                raise ValueError(str(error)) from None
            if corrupt == "skip-file":
                return 0
            # After damaged data the next record is found; any other damage ends the file.
            if "do not match their checksum" not in str(error):
                return count
            count += 1


def parse(text: str) -> Line:
    """Returns the line of an entry. Raises ValueError for any other text."""
    *numbers, source, source_epoch, rest = text.split(" ", 6)
    shard, *more, mark = rest.rsplit(" ", 6)
    if mark not in ("1", "pad", "skip"):
        raise ValueError(f"{mark!r} is not 1, pad or skip")
    generation, epoch, step, entry = map(int, numbers)
    sample, record, row, first, count = map(int, more)
    shard, of = unquote(shard, errors="strict"), None if source == "-" else source
    at = (generation, epoch, step, entry, of, int(source_epoch))
    return Line(*at, shard, sample, record, row, first, count, mark)


def read_rank(path: Path) -> dict[int, Part]:
    """Returns one rank's file by generation. Raises ValueError for a line that is not of a
    ledger."""
    parts: dict[int, Part] = {}
    part: Part | None = None
    # No splitlines(): a path may contain other line separators.
    *lines, rest = path.read_bytes().decode().split("\n")
    if rest:
        raise ValueError(f"{path}: the last line is torn: {rest!r}")
    try:
        for number, line in enumerate(lines, 1):
            if line.startswith("start "):
                start = Start(*map(int, line.split(" ")[1:]))
                if part is None or not part.goes_on(start):
                    parts = {g: kept for g, kept in parts.items() if g < start.generation}
                    part = parts[start.generation] = Part(start)
                continue
            if line.startswith("left_out ") and part is not None:
                _, epoch, first, end = map(int, line.split(" ")[1:])
                if epoch != part.start.epoch:
                    raise ValueError("it is of another epoch than the start")
                part.left_out |= set(range(first, end))
                continue
            parsed = parse(line)
            if part is None or parsed.generation != part.start.generation:
                raise ValueError("its generation was not started")
            part.steps.setdefault((parsed.epoch, parsed.step), []).append(parsed)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}:{number}: {line!r}: {error}") from None
    return parts


def read_ledger(folder: Path) -> tuple[list[Start], dict[tuple[int, int], Step]]:
    """Returns the generations, and each step as last delivered."""
    starts, steps, _ = read_whole_ledger(folder)
    return starts, steps


def read_whole_ledger(folder: Path) -> tuple[list[Start], dict[tuple[int, int], Step], dict[tuple[int, int], Start]]:
    """As `read_ledger`, with the steps that were left out, and the start that says so."""
    ranks = {int(path.name[5:]): read_rank(path) for path in folder.glob("rank-*")}
    starts = [part.start for _, part in sorted(ranks.get(0, {}).items())]
    steps: dict[tuple[int, int], Step] = {}
    left_out: dict[tuple[int, int], Start] = {}
    for start in starts:
        here = {(start.epoch, step): start for step in ranks[0][start.generation].left_out}
        steps = {at: step for at, step in steps.items() if at < (start.epoch, start.step) and at not in here}
        # The first start that names a step knows its batch.
        here = {at: left_out.get(at, by) for at, by in here.items()}
        left_out = {at: by for at, by in left_out.items() if at[0] < start.epoch} | here
        for rank, parts in ranks.items():
            part = parts.get(start.generation)
            if part is not None and part.start == start:
                for at, lines in part.steps.items():
                    step = steps.setdefault(at, Step(start))
                    step.lines[rank] = step.lines.get(rank, []) + lines
    return starts, steps, left_out


def even_problems(steps: dict[int, Step], left_out: Collection[int] = ()) -> Iterator[str]:
    """Yields the problems of an epoch in which all ranks must have the same full steps."""
    if sorted([*steps, *left_out]) != list(range(len(steps) + len(left_out))):
        yield f": steps {list(steps)}, with {sorted(left_out)} left out, are not 0, 1, 2, ..."
    for number, step in steps.items():
        have, start = step.rows_by_rank(), step.start
        if have != [(rank, start.batch_size) for rank in range(start.world_size)]:
            yield f" step {number}: (rank, rows) {have} in {start}"


def uneven_problems(steps: dict[int, Step]) -> Iterator[str]:
    """Yields the problems of an epoch in which each rank has its own steps, some of them short."""
    for rank in sorted({rank for step in steps.values() for rank in step.lines}):
        numbers = [number for number, step in steps.items() if rank in step.lines]
        if numbers != list(range(len(numbers))):
            yield f": rank {rank}'s steps {numbers} are not 0, 1, 2, ..."
    for number, step in steps.items():
        have, start = step.rows_by_rank(), step.start
        if any(rank >= start.world_size or rows > start.batch_size for rank, rows in have):
            yield f" step {number}: (rank, rows) {have} in {start}"


def check_records(steps: Iterable[Step], is_filtered: bool) -> None:
    """Raises ValueError for a line of a sample that is no plain record.

    - `is_filtered`: some records are no samples.
    """
    for line in (line for step in steps for lines in step.lines.values() for line in lines):
        is_record = (line.record_row, line.first, line.rows) == (0, 0, 1) and (is_filtered or line.sample == line.record)
        if line.source is not None or not is_record:
            what = "is of a mixture" if line.source is not None else "is made by filter, unbatch, pack or window"
            raise ValueError(
                f"epoch {line.epoch} step {line.step}: sample {line.sample} of {line.shard} {what}, and only plain records "
                f"can be counted; compare this ledger with that of an undisturbed run instead"
            )


def recount(
    ledger: Path,
    data: Path,
    epochs: int | None = None,
    tail: str = "pad",
    corrupt: str = "error",
    samples: Mapping[str, Collection[int]] | None = None,
) -> Recount:
    """Counts epochs 0 .. epochs - 1; None: all epochs that were begun.

    - `samples`: records of each shard that are samples; None: all.

    Raises ValueError for a ledger of other samples than records.
    """
    generations, steps, left_out = read_whole_ledger(ledger)
    check_records(steps.values(), samples is not None)
    root = data.resolve()
    files = [path for path in root.rglob("*") if path.is_file()]
    if not files:
        raise ValueError(f"{data}: holds no shards; name the folder that the loader's files were in")
    names = [f.relative_to(root).as_posix() for f in files]
    if samples is None:
        samples = {name: range(count_records(f, corrupt)) for name, f in zip(names, files, strict=True)}
    begun = max((epoch for epoch, _ in steps), default=-1) + 1
    total = Recount(begun if epochs is None else epochs, sum(map(len, samples.values())), generations)
    if begun == 0 or total.epochs != begun:
        total.problems.append(f"{begun} epochs were begun, not {epochs}")
    for epoch in range(total.epochs):
        mine = {number: step for (of, number), step in sorted(steps.items()) if of == epoch}
        without = {number: start for (of, number), start in left_out.items() if of == epoch}
        found = uneven_problems(mine) if tail == "uneven" else even_problems(mine, without)
        total.problems += [f"epoch {epoch}{problem}" for problem in found]
        rows = [line for step in mine.values() for lines in step.lines.values() for line in lines]
        known = [line for line in rows if line.record in samples.get(line.shard, ())]
        times = Counter((line.shard, line.record) for line in known if line.mark == "1")
        marked = {(line.shard, line.record) for line in known if line.mark == "skip"}
        skipped = set() if corrupt == "error" else marked - times.keys()
        total.skipped += len(skipped)
        not_delivered, may_drop = total.records - len(times) - len(skipped), 0
        in_steps = sum(start.world_size * start.batch_size for start in without.values())
        total.left_out += min(not_delivered, in_steps)
        not_delivered -= min(not_delivered, in_steps)
        if tail == "drop" and mine:
            batches = {step.start.world_size * step.start.batch_size for step in mine.values()}
            may_drop = total.records % max(batches) if len(batches) == 1 else max(batches) - 1
        total.dropped += min(not_delivered, may_drop)
        total.lost += not_delivered - min(not_delivered, may_drop)
        total.duplicated += sum(times.values()) - len(times)
        total.unknown += len(rows) - len(known)
    return total


def main() -> int:
    about = "Counts the records that ranks received. Every record is a sample: no mixture, filter, unbatch, pack or window."
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--ledger", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--epochs", type=int, metavar="E", help="required number")
    parser.add_argument("--tail", choices=["pad", "drop", "uneven"], default="pad")
    parser.add_argument("--json", action="store_true")
    policies = ["error", "skip-record", "skip-file"]
    parser.add_argument("--corrupt", choices=policies, default="error")
    parser.add_argument("--skipped", type=int, default=0, metavar="N", help="maximum number")
    args = parser.parse_args()
    try:
        total = recount(args.ledger, args.data, args.epochs, args.tail, args.corrupt)
    except (ValueError, OSError) as error:
        print(f"recount: {error}", file=sys.stderr)
        return 2
    found = asdict(total) | {"generations": [start._asdict() for start in total.generations]}
    if args.json:
        print(json.dumps(found))
    else:
        print("".join(f"{problem}\n" for problem in total.problems), end="")
        shown = ("epochs", "records", "lost", "duplicated", "unknown", "dropped", "skipped")
        print("recount:", *(f"{name}={found[name]}" for name in shown))
    return 0 if total.is_ok(args.skipped) else 1


if __name__ == "__main__":
    sys.exit(main())
