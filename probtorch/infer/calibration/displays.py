"""What the tests of a sampler show while they last: one line on stderr, as for an optimisation."""

from __future__ import annotations

import time

from probtorch.infer.vi.step_progress import BAR, StepProgress

__all__ = ["TurnProgress"]


class TurnProgress(StepProgress):
    """A count of turns, with what is left; a context manager.

    Parameters
    ----------
    total : int
    what : str
        What is counted, such as "replications".
    shown : bool
    """

    def __init__(self, total: int, what: str, *, shown: bool = True) -> None:
        super().__init__(total, shown=shown)
        self.what = what

    def line(self) -> str:
        """Return the line as it is now."""
        seconds = time.perf_counter() - self._start
        rate = self.done / seconds if seconds else 0.0
        left = (self.total - self.done) / rate if rate else 0.0
        filled = BAR * self.done // max(self.total, 1)
        return (
            f"[{'#' * filled}{'.' * (BAR - filled)}] {self.done}/{self.total} {self.what}, "
            f"{seconds:.0f} s, {left:.0f} s left"
        )
