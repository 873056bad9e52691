"""A trainer for tests: a loader in its own process that executes requests."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import Dataset

import shardfeed as sf
from shardfeed.testing import DEADLINE_S, Cluster


def take(each: sf.Loader, most: int) -> list[list[int]]:
    """Returns the ids of the next batches, continuing into later epochs."""
    got: list[list[int]] = []
    while len(got) < most:
        batches = zip(range(most - len(got)), each, strict=False)
        got += [[int(number) for number in batch["id"]] for _, batch in batches]
    return got


def served(running: Cluster, job: str) -> dict[int, dict[str, Any]]:
    """Returns the coordinator's state of each rank."""
    ranks: list[dict[str, Any]] = running.ask("rank", "list", "--job", job)["ranks"]
    return {each["rank"]: each for each in ranks}


def cursors(running: Cluster, job: str) -> dict[int, tuple[int, int]]:
    """Returns the (epoch, step) of each rank that is known to the coordinator."""
    return {rank: (each["epoch"], each["step"]) for rank, each in served(running, job).items()}


def written(running: Cluster, job: str) -> tuple[int, int]:
    """Returns the slowest rank's cursor in the coordinator's log, which is updated once per
    second."""
    generation = running.ask("job", "show", job)["generation"]
    return generation["cursor_epoch"], generation["cursor_step"]


class Raised(Exception):
    """An exception of the trainer's loader."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Trainer:
    """A trainer process. It ends when this object is closed, or with SIGKILL.

    `inside`: prefix of a command that runs it on another host.
    """

    def __init__(
        self, log: Path, env: Mapping[str, str], inside: Sequence[str] = (), **options: Any
    ) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*inside, sys.executable, "-u", __file__, json.dumps(options)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                env={**os.environ, **env},
            )  # fmt: skip
        self._rest = b""
        self.wait_s = 60.0

    def begin(self, call: str, *arguments: Any) -> None:
        """Sends a request without waiting for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([call, *arguments]).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Returns the next answer. Raises `Raised` if the loader raised."""
        stream, deadline = self.process.stdout, time.monotonic() + self.wait_s
        assert stream is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"no answer in {self.wait_s:.0f} s: {self.said()}")
                more = os.read(stream.fileno(), 65536)
                assert more, f"the trainer ended with {self.process.wait()}: {self.said()}"
                self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        answer = json.loads(line)
        if "raised" in answer:
            raise Raised(*answer["raised"])
        return answer["value"]

    def __call__(self, call: str, *arguments: Any) -> Any:
        self.begin(call, *arguments)
        return self.answer()

    def said(self) -> str:
        return self.log.read_text()[-4000:]

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def _end(self) -> None:
        self.process.wait(DEADLINE_S)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self._end()


def spawned(log: Path, dataset: Dataset, where: Mapping[str, Any], **options: Any) -> Trainer:
    """Starts a trainer of the dataset in a cluster, with the order of `conftest.loader`.

    `where`: as of `Cluster.loader_options`, with or without a worker.
    """
    options = {**where, "batch_size": 4, "shuffle_window": 16, "interleave": 3, "seed": 7} | options
    env = {"SHARDFEED_COORDINATOR": options.pop("coordinator")}
    if (worker := options.pop("worker", None)) is not None:
        env["SHARDFEED_WORKER"] = str(worker)
    return Trainer(log, env, files=dataset.pattern, **options)


def _main() -> None:
    features = {
        "id": sf.FixedLenFeature((), "int64"),
        "image": sf.FixedLenFeature((2, 3), "float32"),
    }
    options = {"features": features} | json.loads(sys.argv[1])
    made: list[sf.Loader] = []
    held: list[sf.Batch] = []

    def step() -> list[int] | None:
        batch = next(iter(made[0]), None)
        return None if batch is None else [int(number) for number in batch["id"]]

    def hold(count: int) -> int:
        held.extend(batch for _, batch in zip(range(count), made[0], strict=False))
        return len(held)

    calls: dict[str, Callable[..., Any]] = {
        "open": lambda: made.append(sf.Loader(**options)),
        "next": step,
        "epoch": lambda: made[0].epoch,
        "take": lambda count: [step() for _ in range(count)],
        "hold": hold,
        "state": lambda: made[0].state_dict(),
        "load": lambda state: made[0].load_state_dict(state),
        "generation": lambda: made[0].generation,
        "reshard": lambda step, world_size, rank: made[0].reshard(step, world_size, rank),
        "step": lambda: made[0].step,
        "set_epoch": lambda epoch: made[0].set_epoch(epoch),
        "stats": lambda: made[0].stats(),
        "job": lambda: made[0].job,
        "close": lambda: made.pop().close(),
    }
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"value": calls[name](*arguments)}
        except sf.ShardfeedError as error:
            answer = {"raised": (type(error).__name__, str(error))}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main()
