"""Runs that fit a budget: draws until there are enough effective ones, or the time is up."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from probtorch.diagnostics.checks import smallest_ess
from probtorch.infer.control import positive

if TYPE_CHECKING:
    from probtorch.diagnostics.draws import Draws
    from probtorch.infer.control import Control


__all__ = ["Budget"]

# Effective sizes are estimates: so much more is drawn than the last one says is missing, but no
# more than this many times what is there, and no less than this share of it.
MARGIN, MOST, LEAST = 1.1, 3.0, 0.25


class Budget:
    """What a run may take and is to give; without both arguments it ends after its first draws.

    Parameters
    ----------
    until_ess : float, optional
        Bulk and tail effective size that every parameter is to have, over all chains.
    max_seconds : float, optional
        From now, warm-up included.
    subject : str
        Whose run it is, for messages.

    Attributes
    ----------
    control : Control or None
        By which the run is told to pause; pauses do not count.
    late : bool
        Whether the time was up while draws were missing.

    Raises
    ------
    ArgumentError
        If one of them is not a positive number.
    """

    def __init__(
        self,
        until_ess: float | None = None,
        max_seconds: float | None = None,
        subject: str = "MCMC.run",
    ) -> None:
        self.until_ess = positive(subject, "until_ess", until_ess, 400)
        self.max_seconds = positive(subject, "max_seconds", max_seconds, 60)
        self._began = time.perf_counter()
        self._size = math.nan
        self.control: Control | None = None
        self.late = False

    def seconds_left(self) -> float | None:
        """Return how long the run may still take, None if it does not matter."""
        if self.max_seconds is None:
            return None
        waited = 0.0 if self.control is None else self.control.waited
        return max(self.max_seconds - (time.perf_counter() - self._began - waited), 0.0)

    def missing(self, draws: Draws) -> int:
        """Return how many draws each chain should add; 0 where the budget is met or used up."""
        if self.until_ess is None or draws.attrs.get("interrupted"):
            return 0
        self._size = smallest_ess(draws)
        if self._size >= self.until_ess:
            return 0
        left = self.seconds_left()
        if left is not None and left <= 0.0:
            self.late = True
            return 0
        there = draws.num_draws
        if not self._size > 0.0:
            return math.ceil(there)
        wanted = there * (MARGIN * self.until_ess / self._size - 1.0)
        return math.ceil(np.clip(wanted, LEAST * there, MOST * there))
