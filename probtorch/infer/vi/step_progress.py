"""What an optimisation shows while it lasts: one line on stderr, rewritten in place.

The line has the step, the smoothed loss, the rate and the time left. In a log file there is a line
every ten seconds instead. Nothing is shown before a third of a second has passed. The handle of a
run in the background has the line, too.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import Self

from probtorch.infer.control import control_here
from probtorch.infer.display import LOG_EVERY, PATIENCE, REFRESH, is_shown

__all__ = ["StepProgress"]

# Steps over which the shown loss is smoothed: its weight on the past is 1 - 1 / SMOOTHING.
SMOOTHING = 50
# Losses that are kept until somebody looks: those before weigh less than rounding.
MEMORY = 2000
BAR = 20


class StepProgress:
    """The display of one run; a context manager.

    Parameters
    ----------
    total : int
        Number of steps.
    done : int
        How many of them were taken before.
    shown : bool
        Off, nothing is ever shown. ``PROBTORCH_PROGRESS=0`` switches all displays off.
    """

    def __init__(self, total: int, *, done: int = 0, shown: bool = True) -> None:
        self.total, self.shown = total, is_shown(shown)
        self.done = self._before = done
        self._smooth = float("nan")
        # The last losses, not in the smoothed one yet, and how many are; handles look, too.
        self._unseen: deque[float] = deque(maxlen=MEMORY)
        self._seen, self._looking = 0, threading.Lock()
        self._start = time.perf_counter()
        self._next = self._start + PATIENCE
        self._wrote = False
        # A terminal or a notebook takes a line back by a carriage return; a file does not.
        self._rewrites = sys.stderr.isatty() or "ipykernel" in sys.modules

    def __enter__(self) -> Self:
        control = control_here()
        if control is not None:
            control.line = self.line
        return self

    def __exit__(self, *exc: object) -> None:
        if self._wrote:
            self._write(last=True)

    def update(self, *losses: float) -> None:
        """Count steps, by their losses; show them if it is time."""
        self._unseen.extend(losses)
        self.done += len(losses)
        if self.shown and time.perf_counter() >= self._next:
            self._write()
            self._next = time.perf_counter() + (REFRESH if self._rewrites else LOG_EVERY)

    @property
    def loss(self) -> float:
        """The smoothed loss; nan before there is one."""
        with self._looking:
            for _ in range(len(self._unseen)):
                loss, self._seen = self._unseen.popleft(), self._seen + 1
                if loss == loss:
                    smooth, weight = self._smooth, 1.0 / min(self._seen, SMOOTHING)
                    self._smooth = smooth + weight * (loss - smooth) if smooth == smooth else loss
            return self._smooth

    def line(self) -> str:
        """Return the line as it is now."""
        seconds = time.perf_counter() - self._start
        rate = (self.done - self._before) / seconds if seconds else 0.0
        left = (self.total - self.done) / rate if rate else 0.0
        filled = BAR * self.done // max(self.total, 1)
        return (
            f"[{'#' * filled}{'.' * (BAR - filled)}] {self.done}/{self.total} steps, "
            f"loss {self.loss:.6g}, {rate:.4g} steps/s, {seconds:.0f} s, {left:.0f} s left"
        )

    def _write(self, last: bool = False) -> None:
        self._wrote = True
        if self._rewrites:
            # Erase what a longer line before may have left behind.
            print(f"\r\x1b[2K{self.line()}", end="\n" if last else "", file=sys.stderr, flush=True)
        else:
            print(self.line(), file=sys.stderr, flush=True)
