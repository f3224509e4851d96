"""`TimeGiven`: the seconds that a caller of `fit` gives, and what is left of them."""

from __future__ import annotations

import time
from collections.abc import Callable

from probtorch.core.signatures import explain_calls

__all__ = ["TimeGiven"]


class TimeGiven:
    """Time for one call, which begins when this is made.

    Parameters
    ----------
    seconds : float or None
        All that there is; None for as long as it takes.
    clock : callable, optional
        Seconds of a clock that never goes back.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self._began = clock()

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return self.clock() - self._began

    @property
    def left(self) -> float | None:
        """Seconds that are left; at least one, so that there is a result."""
        return None if self.seconds is None else max(self.seconds - self.spent, 1.0)

    def until(self, last: float) -> float | None:
        """Return when to end so that the `last` seconds are left, by `clock`."""
        return None if self.seconds is None else self._began + self.seconds - last


explain_calls(globals())
