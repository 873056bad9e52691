"""Progress bars, as shown on a terminal."""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios

import pytest
from conftest import Dataset, ids, loader

import shardfeed as sf

#: Two epochs, one of them begun and resumed; the loop's batches are printed to standard output.
LOOP = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
if sys.argv[1] == "lines":
    sys.modules["tqdm"] = None
from conftest import Dataset, ids, loader
import shardfeed as sf, shardfeed.progress
shardfeed.progress._LINE_EVERY_S = 0
options = json.loads(sys.argv[4])
data = Dataset(Path(sys.argv[3]), [])
first = loader(data, **options)
got = []
for batch in first.progress():
    got.append(ids(batch))
    if len(got) == 5:
        break
second = loader(data, resume=first.state_dict(), **options)
for epoch in second.epochs(2):
    got += [ids(batch) for batch in epoch.progress()]
print(json.dumps(got))
"""


def in_a_terminal(dataset: Dataset, kind: str, options: str = "{}") -> tuple[str, str]:
    """Returns the loop's output, and the text on the terminal that is its standard error."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            [sys.executable, "-c", LOOP, kind, os.path.dirname(__file__), str(dataset.folder), options],
            stdout=subprocess.PIPE, stderr=its, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        os.close(its)
        shown = b""
        while True:
            try:
                more = terminal.read(4096)
            except OSError:  # closed by all processes
                break
            if not more:
                break
            shown += more
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown.decode()
    return out, shown.decode()


@pytest.fixture
def whole(dataset: Dataset) -> str:
    each = loader(dataset)
    return f"{[ids(batch) for _ in range(2) for batch in each]}\n"


def test_a_bar_of_tqdm(dataset: Dataset, whole: str) -> None:
    out, shown = in_a_terminal(dataset, "tqdm")
    assert out == whole
    # 130 records in batches of 4. The first and last update of each bar; the second one continues
    # the first.
    looks = [line.split("\r") for line in shown.split("\r\n")[:3]]
    firsts, lasts = [each[1] for each in looks], [each[-1] for each in looks]
    for first, begin in zip(firsts, ("epoch 0:   0%", "epoch 0:  16%", "epoch 1:   0%"), strict=True):
        assert first.startswith(begin), shown
    for last, begin in zip(lasts, (r"epoch 0:  16%.* 5/32 ", r"epoch 0: 100%.* 32/32 ", r"epoch 1: 100%.* 32/32 "), strict=True):
        assert re.match(begin, last) and re.search(r"(step/s|s/step), wait \d+ %", last), shown


def test_lines_without_tqdm(dataset: Dataset, whole: str) -> None:
    out, shown = in_a_terminal(dataset, "lines")
    assert out == whole
    lines = shown.split("\r\n")
    steps = [(0, step) for step in range(1, 33)] + [(1, step) for step in range(1, 33)]
    for (epoch, step), line in zip(steps, lines, strict=False):
        assert re.fullmatch(rf"epoch {epoch}: step {step} of 32, [\d.e+]+ steps/s, wait \d+ %", line)
    assert lines[64:] == [""]


def test_only_rank_0_shows_one(dataset: Dataset) -> None:
    out, shown = in_a_terminal(dataset, "lines", '{"rank": 1, "world_size": 2}')
    assert shown == "" and len(out.split("], [")) == 2 * 16


def test_nothing_is_written_into_a_file(dataset: Dataset, capfd: pytest.CaptureFixture[str]) -> None:
    file = io.StringIO()
    each = loader(dataset)
    shown = each.progress(file=file)
    assert isinstance(shown, sf.Epoch) and len(list(shown)) == len(list(each.progress())) == 32
    assert file.getvalue() == "" and capfd.readouterr() == ("", "")


def test_no_batch_is_held_while_the_next_one_is_waited_for(dataset: Dataset) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    each = loader(dataset, prefetch=1)
    for batch in each.progress(file=Terminal()):
        del batch
    assert each.stats()["slots"] <= 3
