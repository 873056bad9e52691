"""Progress of an epoch on a terminal: with tqdm if installed, else in lines of text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from shardfeed._native import NativeBatch
    from shardfeed.batch import Batch
    from shardfeed.loader import Epoch, Loader

#: Seconds between two lines of text, without tqdm.
_LINE_EVERY_S = 5.0


def show(loader: Loader, epoch: Epoch, file: TextIO | None) -> Iterator[Batch]:
    """Implements `Loader.progress`."""
    file = sys.stderr if file is None else file
    if loader.rank != 0 or not file.isatty():
        return epoch
    bar = _bar(f"epoch {epoch.number}", loader._native.steps(), loader.step, file)
    shown = _Shown(loader._make, bar, loader.step)
    return type(epoch)(loader, epoch.number, shown.make, shown.asked, shown.ended)


class _Shown:
    """Advances a bar while batches are created, before they are consumed, so that no code runs
    between consuming a batch and the loop."""

    def __init__(self, make: Callable[[NativeBatch], Batch], bar: Any, step: int) -> None:
        self._make, self._bar, self._step = make, bar, step
        self._began = self._asked = time.monotonic()
        self._waited = 0.0
        self._last: tuple[int, int] | None = None

    def asked(self) -> None:
        self._asked = time.monotonic()

    def make(self, native: NativeBatch) -> Batch:
        # After an interrupt the batch is created again.
        if (native.epoch, native.step) != self._last:
            self._last = native.epoch, native.step
            self._look()
            # `skip()` in the loop leaves out steps.
            self._bar.update(native.step + 1 - self._step)
            self._step = native.step + 1
        return self._make(native)

    def ended(self) -> None:
        self._look()
        self._bar.close()

    def _look(self) -> None:
        now = time.monotonic()
        self._waited += now - self._asked
        share = self._waited / max(now - self._began, 1e-9)
        self._bar.set_postfix_str(f"wait {100 * share:.0f} %", refresh=False)

    def __del__(self) -> None:
        # An interrupt may have stopped `__init__`.
        if bar := getattr(self, "_bar", None):
            bar.close()


def _bar(title: str, steps: int | None, step: int, file: TextIO) -> Any:
    try:
        import tqdm
    except ImportError:
        return _Lines(title, steps, step, file)
    return tqdm.tqdm(desc=title, total=steps, initial=step, unit="step", file=file, dynamic_ncols=True)


class _Lines:
    """The used subset of tqdm's interface, in lines of text."""

    def __init__(self, title: str, steps: int | None, step: int, file: TextIO) -> None:
        self._title, self._of = title, "" if steps is None else f" of {steps}"
        self._began_at = self._step = self._said = step
        self._file, self._postfix = file, ""
        self._began = self._last = time.monotonic()

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self._postfix = text

    def update(self, steps: int) -> None:
        self._step += steps
        if time.monotonic() - self._last >= _LINE_EVERY_S:
            self._say()

    def close(self) -> None:
        if self._said != self._step:
            self._say()

    def _say(self) -> None:
        self._last, self._said = time.monotonic(), self._step
        rate = (self._step - self._began_at) / max(self._last - self._began, 1e-9)
        print(f"{self._title}: step {self._step}{self._of}, {rate:.3g} steps/s, {self._postfix}", file=self._file, flush=True)
