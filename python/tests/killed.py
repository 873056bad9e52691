"""All ranks of a training in one process, which is killed at any moment: `killed.py SAMPLES OPTIONS STATE STEPS`.

SAMPLES is a pickled source or mixture, OPTIONS the JSON of the loaders' options, STATE the file that keeps the last
state. It ends after STEPS steps of all epochs.
"""

from __future__ import annotations

import json
import pickle
import random
import sys
import time
from pathlib import Path

import shardfeed as sf


def main(samples: Path, options: str, state: Path, steps: int) -> None:
    given, source = json.loads(options), pickle.loads(samples.read_bytes())
    size = given["world_size"]
    resume = state.read_text() if state.exists() else None
    ranks = [sf.Loader(source, rank=rank, resume=resume, restart=False, **given) for rank in range(size)]
    if len(ranks[0]) * ranks[0].epoch + ranks[0].step >= steps:
        # It was killed after the last step.
        return
    while True:
        for batches in zip(*ranks, strict=True):
            print("step", flush=True)
            # The time of a training step.
            time.sleep(0.004)
            if random.random() < 0.3:
                temporary = state.with_suffix(".tmp")
                temporary.write_text(json.dumps(ranks[0].state_dict()))
                temporary.replace(state)
            if len(ranks[0]) * batches[0].epoch + batches[0].step + 1 == steps:
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
