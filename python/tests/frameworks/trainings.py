"""Runs the trainings of examples/trainers as processes, and counts the samples of their steps.

The count does not use shardfeed. The set of images follows from scikit-learn's; the images of a
step are those recorded by the trainer when it had them; a start resumes at the step in the
framework's own checkpoint.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import shardfeed as sf
from shardfeed.testing import until

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
sys.path += [str(EXAMPLES / "digits"), str(EXAMPLES / "trainers")]
import digits  # noqa: E402
import pack  # noqa: E402

IMAGES = 1797
TEST = [number for number in range(IMAGES) if number % pack.TEST_EVERY == 0]
TRAIN = sorted(set(range(IMAGES)) - set(TEST))
#: For a start to be killed: it does not end before.
ENDLESS = 1_000
#: Enough to learn the digits.
EPOCHS_LEAST = 8
#: Each lane has a part of the images and of each step; both are rounded up with tail="pad".
STEPS = ceil(ceil(len(TRAIN) / digits.LANES) / (digits.GLOBAL_BATCH // digits.LANES))
ACCURACY_LEAST = 0.95
#: The models are small; more threads would only compete.
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
#: Importing a framework takes seconds on an idle machine.
DEADLINE_S = 400.0


@dataclass
class Images:
    """The shards and the test file."""

    folder: Path

    def __post_init__(self) -> None:
        assert pack.pack(self.data, self.test, shards=12) == len(TRAIN)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def test(self) -> Path:
        return self.folder / "test.tfrecord"

    def arguments(self, checkpoint: Path, epochs: int) -> list[str]:
        """Returns the common arguments of the examples."""
        named = {"--data": self.data, "--test": self.test, "--checkpoint": checkpoint, "--epochs": epochs}
        return [str(word) for pair in named.items() for word in pair]


class Training:
    """One start of a training: launchers and ranks. Remaining processes end when this object is
    closed."""

    def __init__(self, folder: Path, commands: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> None:
        """A command begins with an example's name or with `-m`, a launcher and an example's
        name."""
        folder.mkdir()
        self.seen, self.log = folder / "seen", folder / "log"
        self._started: list[subprocess.Popen[bytes]] = []
        for arguments, variables in commands:
            with self.log.open("ab") as log:
                self._started.append(
                    subprocess.Popen(
                        [sys.executable, *arguments, "--seen", str(self.seen)],
                        cwd=EXAMPLES / "trainers", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                        env={**os.environ, **ENVIRONMENT, **variables}, preexec_fn=_end_with_parent,
                    )
                )  # fmt: skip

    def processes(self) -> list[int]:
        """Returns launchers and the processes that they have started."""
        found = [process.pid for process in self._started if process.poll() is None]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(child) for child in _text(task).split()]
        return found

    def steps(self) -> int:
        """Returns the number of steps begun by the rank that is furthest ahead, over all starts."""
        return max((lines[-1][0] + 1 for lines in seen(self.seen) if lines), default=0)

    def hold_inside_an_epoch(self, after: int = 0) -> int:
        """Stops all processes (SIGSTOP) when more than `after` steps have begun; returns their
        number. This point is inside an epoch with a checkpoint, and no checkpoint is being
        written."""

        def held() -> int:
            self.must_run()
            if self.steps() <= after:
                return 0
            pids = self.processes()
            _signal(pids, signal.SIGSTOP)
            until(lambda: all(_is_stopped(pid) for pid in pids), "all processes are stopped", DEADLINE_S)
            at = self.steps()
            in_epoch, since_save = at % STEPS, at % digits.SAVE_EVERY
            if at > digits.SAVE_EVERY and 3 < since_save < min(16, in_epoch) and in_epoch < STEPS - STEPS // 8:
                return at
            self.go_on()
            return 0

        return until(held, "the training is inside of an epoch", DEADLINE_S)

    def go_on(self) -> None:
        _signal(self.processes(), signal.SIGCONT)

    def kill(self) -> None:
        """Sends SIGKILL to all of its processes, as if its hosts were lost."""
        pids = self.processes()
        _signal(pids, signal.SIGKILL)
        for process in self._started:
            process.wait()
        until(lambda: not any(_is_alive(pid) for pid in pids), "all processes have ended", DEADLINE_S)

    def must_run(self) -> None:
        ended = [process.poll() for process in self._started]
        assert ended == [None] * len(ended), f"it ended with {ended}: {self.said()}"

    def first_step(self) -> int:
        """Returns the first step after the start, as in the framework's checkpoint."""
        return seen(self.seen)[0][0][0]

    def accuracy(self) -> float:
        """Waits for the end; returns the model's reported accuracy on the test images."""
        ended = [process.wait(DEADLINE_S) for process in self._started]
        assert not any(ended), f"it ended with {ended}: {self.said()}"
        (answer,) = re.findall(r"^accuracy (\d\.\d+) of (\d+) images$", self.log.read_text(), re.MULTILINE)
        assert int(answer[1]) == len(TEST), answer
        return float(answer[0])

    def said(self) -> str:
        return self.log.read_text()[-6000:]

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def seen(folder: Path) -> list[list[tuple[int, list[int]]]]:
    """Returns the steps with their images, by rank. A line that is still being written is
    omitted."""
    files = sorted(folder.glob("rank-*"), key=lambda file: int(file.name.removeprefix("rank-")))
    ranks = []
    for file in files:
        lines = [list(map(int, line.split())) for line in file.read_text().split("\n")[:-1]]
        ranks.append([(step, images) for step, *images in lines])
    return ranks


def trained_on(starts: Sequence[tuple[Training, int]]) -> list[list[int]]:
    """Returns the images of each step, of all ranks in order, that the final weights include.

    A start that resumes from a checkpoint replaces the steps of earlier ones after it. Starts are
    given with their numbers of ranks.
    """
    steps: list[list[int]] = []
    for training, world_size in starts:
        ranks = seen(training.seen)
        assert len(ranks) == world_size
        (begin,) = {lines[0][0] for lines in ranks}
        assert begin <= len(steps), f"a start began at {begin}, the one before got to {len(steps)}"
        for lines in ranks:
            assert [step for step, _ in lines] == list(range(begin, begin + len(lines)))
        del steps[begin:]
        # Of killed ranks, one may have begun one more step than another.
        steps += [[image for _, part in lines for image in part] for lines in zip(*ranks, strict=False)]
    return steps


def epochs_after(killed_at: int) -> int:
    """Returns the number of epochs to train after a start was killed at this step."""
    return max(EPOCHS_LEAST, killed_at // STEPS + 3)


def assert_trained(images: Images, starts: Sequence[tuple[Training, int]], killed_at: int, accuracy: float) -> None:
    """The last start resumed inside the epoch in which the one before was killed; each epoch had
    each image once, in the batches of an undisturbed run; and the model learned them."""
    resumed_at, epochs = starts[-1][0].first_step(), epochs_after(killed_at)
    went_on = f"killed at {killed_at}, resumed at {resumed_at}"
    assert 0 < killed_at - resumed_at <= digits.SAVE_EVERY and resumed_at % STEPS != 0, went_on
    steps = trained_on(starts)
    assert len(steps) == epochs * STEPS, f"{len(steps)} steps were trained on, not {epochs} epochs of {STEPS}"
    for epoch in range(epochs):
        counts = Counter(image for step in steps[epoch * STEPS : (epoch + 1) * STEPS] for image in step)
        lost = sorted(set(TRAIN) - set(counts))
        others = {image: count for image, count in counts.items() if count > 1 or image not in set(TRAIN)}
        assert not lost and not others, f"epoch {epoch}: lost {lost}, more than once or not to be trained on {others}"
    assert steps == undisturbed(images, epochs), "a step has other images than in a run that nothing disturbs"
    assert accuracy >= ACCURACY_LEAST, f"accuracy {accuracy}"


def undisturbed(images: Images, epochs: int) -> list[list[int]]:
    """Returns the steps of one rank that runs to the end, without a cluster."""
    loader = sf.Loader(
        f"{images.data}/train-*.tfrecord", digits.FEATURES, batch_size=digits.GLOBAL_BATCH, lanes=digits.LANES,
        tail="pad", shuffle_window=128,
    )  # fmt: skip
    return [batch["index"][batch.valid].tolist() for epoch in loader.epochs(epochs) for batch in epoch]


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def _end_with_parent() -> None:
    """Requests SIGTERM when the tests are killed, which launchers pass on; otherwise an endless
    training would never end."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def _text(path: Path) -> str:
    """Returns the file's content, "" if the process has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _states(pid: int) -> set[str]:
    """Returns the states of its threads, as in /proc; "" for a thread that has ended."""
    stats = [_text(task) for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats if stat}


def _is_stopped(pid: int) -> bool:
    return _states(pid) <= {"T", "Z", "X"}


def _is_alive(pid: int) -> bool:
    return not _states(pid) <= {"Z", "X"}
