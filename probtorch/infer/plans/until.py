"""`Until`: when an optimisation that `fit` planned ends."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.infer.vi.converged import Converged

__all__ = ["Until"]

# Steps between two looks at the losses, and seconds between two at the clock.
LOOK, CLOCK = 100, 0.5


class Until:
    """Ends an optimisation when its loss has stopped falling, or there is no time left.

    The clock is looked at every half second or so, the losses every 100 steps whatever the clock
    says, so that a run with time enough is the same each time.
    """

    def __init__(self, deadline: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.deadline, self.rule, self._clock = deadline, Converged(), clock
        self._first: tuple[int, float] | None = None
        self._next = 1

    def __call__(self, losses: np.ndarray) -> bool:
        now, step = self._clock(), len(losses)
        if self.deadline is not None:
            # A step before the deadline, not after it. The first one compiles the others.
            if self._first is None:
                self._first = step, now
                return now > self.deadline
            done, since = self._first
            each = (now - since) / max(step - done, 1)
            if now + each > self.deadline:
                return True
            wait = min(CLOCK, self.deadline - now) / max(each, 1e-9)
            self._next = step + max(1, min(int(wait), LOOK - step % LOOK))
        return step % LOOK == 0 and step >= self.rule.min_steps and self.rule(losses)

    def next_look(self, step: int) -> int:
        """Return the first step after `step` at which to look."""
        if self.deadline is None:
            return step - step % LOOK + LOOK
        return max(self._next, step + 1)


explain_calls(globals())
