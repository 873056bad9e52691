"""One rank: consumes batches at a fixed pace, in step with the others, and saves its state.

    RANK=0 WORLD_SIZE=4 python trainer.py OPTIONS    # JSON, see `Options`

It prints `step EPOCH STEP TIME` for each batch; TIME is that of the monotonic clock. On SIGTERM all
ranks save after the same step and exit with status 143. On SIGUSR1 all ranks end after this epoch.
If a rank is lost, the others report it and exit with status 1. The received samples are in its
ledger, not in this output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import programs
from train import RankLostError, Ranks

import shardfeed as sf

#: Number of states that are kept: ranks are at most one apart when one of them dies.
KEPT = 3


@dataclass(frozen=True)
class Options:
    """Options, equal for all ranks."""

    #: Options of the loader.
    loader: dict[str, Any]
    global_batch: int
    #: Folder for the states of this run, with a subfolder per rank.
    states: str
    #: File of the state to resume from.
    state: str | None
    save_every: int
    step_seconds: float
    #: Socket where the ranks meet after each step; None: each rank runs alone for one epoch.
    meet: str | None
    #: Program that makes samples of the records (programs.py); None: each record is one.
    program: str | None = None
    #: Files of the states of all ranks that stopped at different steps; used instead of `state`.
    all_states: tuple[str, ...] = ()


def train(options: Options) -> int:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    wishes = {signal.SIGTERM: False, signal.SIGUSR1: False}

    def on_signal(number: int, frame: object) -> None:
        wishes[signal.Signals(number)] = True

    for number in wishes:
        signal.signal(number, on_signal)
    order = dict(options.loader)
    source = programs.source(options.program, Path(order.pop("folder")))
    with sf.Loader(
        source,
        batch_size=options.global_batch // world_size,
        rank=rank,
        world_size=world_size,
        **order,
    ) as loader:
        if options.state is not None:
            loader.load_state_dict(Path(options.state).read_text())
        if options.all_states:
            loader.load_state_dict([Path(state).read_text() for state in options.all_states])
        states = Path(options.states) / f"rank-{rank}"
        states.mkdir(parents=True)
        together = (rank, world_size) if options.meet else (0, 1)
        ranks = Ranks(Path(options.meet or ""), *together)
        is_last = options.meet is None
        while True:
            for batch in loader:
                print(f"step {batch.epoch} {batch.step} {time.monotonic():.6f}", flush=True)
                time.sleep(options.step_seconds)
                # Replaces the sum of gradients: it fails if a rank is lost, and a signal to one
                # rank is known to all after the same step.
                said = ranks.gather(bytes(wishes.values()))
                is_over = any(each[0] for each in said)
                is_last |= any(each[1] for each in said)
                if is_over or loader.step % options.save_every == 0:
                    save(states, loader)
                if is_over:
                    return 128 + signal.SIGTERM
            if is_last:
                return 0


def save(states: Path, loader: sf.Loader) -> None:
    """Saves the state atomically."""
    path = states / f"{loader.epoch:06}-{loader.step:06}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(loader.state_dict(), sort_keys=True))
    temporary.replace(path)
    for old in sorted(states.glob("*.json"))[:-KEPT]:
        old.unlink()


def main() -> int:
    try:
        return train(Options(**json.loads(sys.argv[1])))
    except RankLostError as error:
        print(f"{error}; ending", flush=True)
        return 1
    except sf.ShardfeedError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main())
