"""Loops over a loader that are ended by signals at any point, and the batches that they received.
Run as a program by `interrupted`."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from recount import parse

import shardfeed as sf

#: Epoch, step and ids of a batch.
Got = list[tuple[int, int, list[int]]]

#: Maximum seconds from the beginning of a loop to its interrupt.
LATEST_S = 0.004


def interrupted(files: str, loop: str, env: Mapping[str, str], **options: Any) -> Got:
    """Returns the batches that all loops of a program received, in that order.

    - `loop`: "for", "progress" (with a bar) or "epochs"; or "next" or "torch" (DataLoader), where
      only trained batches count.
    - `options`: of the loader, and `interrupts`, their number; `threads`, busy ones beside the
      loop; `by`, "timer" or "thread", the source of signals; `latest_s`, the latest moment of an
      interrupt; `completes`, True to end with an uninterrupted rest of the epoch.
    """
    done = subprocess.run(
        [sys.executable, __file__, files, loop, json.dumps(options)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [(epoch, step, ids) for epoch, step, ids in json.loads(done.stdout)]


def whole(files: str, epochs: int, **options: Any) -> Got:
    """Returns the batches of uninterrupted loops."""
    with sf.Loader(files, features(), **options) as each:
        return [key(batch) for _ in range(epochs) for batch in each]


def ledger(folder: Path) -> Got:
    """Returns the deliveries in rank 0's ledger."""
    found: dict[tuple[int, int], list[int]] = {}
    lines = (folder / "rank-0").read_text().splitlines()
    for line in (parse(line) for line in lines if not line.startswith("start")):
        number = 1000 * int(line.shard.removeprefix("train-").removesuffix(".tfrecord")) + line.record
        found.setdefault((line.epoch, line.step), []).append(number)
    return [(epoch, step, ids) for (epoch, step), ids in found.items()]


def features() -> dict[str, Any]:
    return {"id": sf.FixedLenFeature((), "int64"), "image": sf.FixedLenFeature((2, 3), "float32")}


def key(batch: sf.Batch) -> tuple[int, int, list[int]]:
    ids = batch["id"].numpy() if hasattr(batch["id"], "numpy") else batch["id"]
    return batch.epoch, batch.step, [int(number) for number in ids]


class Interrupt(BaseException):
    """Raised by the signal handler."""


#: Set when the signal arrived: Python swallows exceptions in a `__del__`, such as a progress bar's.
_came = threading.Event()


def _raise(*_: Any) -> None:
    _came.set()
    raise Interrupt


def _by_timer(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _by_thread(seconds: float) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def send() -> None:
        time.sleep(seconds)
        signal.pthread_kill(main, signal.SIGALRM)

    threading.Thread(target=send).start()


def _wait() -> None:
    """Waits for an outstanding signal."""
    while not _came.is_set():
        time.sleep(0.001)


class _Terminal(io.StringIO):
    """The terminal for the progress bar."""

    def isatty(self) -> bool:
        return True


#: Sources of batches for loops, epoch by epoch.
LOOPS: dict[str, Callable[[sf.Loader], Iterable[Iterable[sf.Batch]]]] = {
    "for": lambda each: [each],
    "progress": lambda each: [each.progress(file=_Terminal())],
    "epochs": lambda each: each.epochs(1_000_000),
}


def _for(each: sf.Loader, loop: str, arm: Callable[[], None]) -> tuple[Got, Any]:
    """Returns the batches of a `for` until its interrupt, and the loader's state then."""
    got: Got = []
    batch: Any = None
    try:
        arm()
        for epoch in LOOPS[loop](each):
            for batch in epoch:
                got.append(key(batch))
        _wait()
    except Interrupt:
        # The loop received its bound batch, although it had no time to record it.
        if batch is not None and (not got or got[-1][:2] != (batch.epoch, batch.step)):
            got.append(key(batch))
    return got, each.state_dict()


def _next(each: sf.Loader, batches: Iterable[sf.Batch], arm: Callable[[], None], first: int) -> tuple[Got, Any]:
    """Returns the batches trained with `next()`, which may lose a taken batch, and the state after
    the last.

    - `first`: number of batches before the interrupt.
    """
    done = [((-1, -1, []), each.state_dict())]
    try:
        iterator = iter(batches)
        for _ in range(first):
            batch = next(iterator)
            done.append((key(batch), each.state_after(batch)))
        arm()
        while (batch := next(iterator, None)) is not None:
            done.append((key(batch), each.state_after(batch)))
        _wait()
    except Interrupt:
        pass
    return [got for got, _ in done[1:]], done[-1][1]


def _main() -> None:
    files, loop = sys.argv[1:3]
    options = json.loads(sys.argv[3])
    usual = {"interrupts": 200, "by": "timer", "threads": 0, "latest_s": LATEST_S, "completes": False}
    count, by, threads, latest_s, completes = (options.pop(name, value) for name, value in usual.items())
    if options.get("output") == "tf":
        # An exception during TensorFlow's startup leaves it unusable, and its first tensor starts
        # it.
        import tensorflow as tf

        tf.zeros(())
    if loop == "progress":
        # Its import takes longer than the latest interrupt, and no batch comes before it.
        import tqdm

        tqdm.tqdm(file=_Terminal()).close()
    signal.signal(signal.SIGALRM, _raise)
    for _ in range(threads):
        threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
    rng, got, state = random.Random(options.get("seed")), [], None
    while count > 0:
        with sf.Loader(files, features(), resume=state, restart=False, **options) as each:
            # Some are interrupted several times.
            for _ in range(rng.choice([1, 1, 2, 5])):
                seconds = rng.uniform(1e-6, latest_s)

                def arm(seconds: float = seconds) -> None:
                    _came.clear()
                    _by_timer(seconds) if by == "timer" else _by_thread(seconds)

                if loop in LOOPS:
                    more, state = _for(each, loop, arm)
                else:
                    more, state = _next(each, _data_loader(each) if loop == "torch" else each, arm, rng.choice([0, 1]))
                got += more
                count -= 1
                if loop not in LOOPS:
                    break
    if completes:
        with sf.Loader(files, features(), resume=state, restart=False, **options) as each:
            got += [key(batch) for batch in each]
    print(json.dumps(got))


def _data_loader(each: sf.Loader) -> Iterable[sf.Batch]:
    from torch.utils.data import DataLoader

    made: Iterable[sf.Batch] = DataLoader(sf.torch.Dataset(each), batch_size=None)
    return made


if __name__ == "__main__":
    _main()
