"""How far an epoch is, for people in front of a terminal: by tqdm where that is installed, else in lines of text."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from shardfeed.batch import Batch
    from shardfeed.loader import Epoch, Loader

#: Seconds between two lines, where there is no tqdm.
_LINE_EVERY_S = 5.0


def show(loader: Loader, epoch: Epoch, file: TextIO | None) -> Iterator[Batch]:
    """As `Loader.progress` says."""
    file = sys.stderr if file is None else file
    if loader.rank != 0 or not file.isatty():
        return epoch
    bar = _bar(f"epoch {epoch.number}", loader._native.steps(), loader.step, file)
    return _shown(epoch, bar)


def _shown(epoch: Epoch, bar: Any) -> Iterator[Batch]:
    began, waited = time.monotonic(), 0.0
    try:
        while True:
            asked = time.monotonic()
            batch = next(epoch, None)
            now = time.monotonic()
            waited += now - asked
            bar.set_postfix_str(f"wait {100 * waited / max(now - began, 1e-9):.0f} %", refresh=False)
            if batch is None:
                return
            bar.update()
            yield batch
            del batch  # else it would be held while the next one is waited for
    finally:
        bar.close()


def _bar(title: str, steps: int | None, step: int, file: TextIO) -> Any:
    try:
        import tqdm
    except ImportError:
        return _Lines(title, steps, step, file)
    return tqdm.tqdm(desc=title, total=steps, initial=step, unit="step", file=file, dynamic_ncols=True)


class _Lines:
    """What is used of tqdm's bar, in lines."""

    def __init__(self, title: str, steps: int | None, step: int, file: TextIO) -> None:
        self._title, self._of = title, "" if steps is None else f" of {steps}"
        self._began_at = self._step = self._said = step
        self._file, self._postfix = file, ""
        self._began = self._last = time.monotonic()

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self._postfix = text

    def update(self) -> None:
        self._step += 1
        if time.monotonic() - self._last >= _LINE_EVERY_S:
            self._say()

    def close(self) -> None:
        if self._said != self._step:
            self._say()

    def _say(self) -> None:
        self._last, self._said = time.monotonic(), self._step
        rate = (self._step - self._began_at) / max(self._last - self._began, 1e-9)
        print(f"{self._title}: step {self._step}{self._of}, {rate:.3g} steps/s, {self._postfix}", file=self._file, flush=True)
