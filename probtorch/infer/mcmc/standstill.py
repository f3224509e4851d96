"""Chains that stand still are named while they do, not when the run is over.

Two ways to stand still: every proposal is rejected, or every trajectory is of the greatest length
and yet short, since the step size is tiny beside the scale that warm-up has learnt. Both come of a
log density that is rough where the chain is (a solver that has lost its digits, a jump), and both
take all the time there is: more draws or deeper trees do not help. A draw of a conditional is no
proposal: discrete sites may keep their values for long, which effective sizes tell of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.diagnostics.chain_checks import SHORT_TRAJECTORY
from probtorch.diagnostics.findings import ConvergenceWarning
from probtorch.errors import ProbtorchError

if TYPE_CHECKING:
    from probtorch.infer.mcmc.chain import ChainRun


__all__ = ["IN_A_ROW", "Standstill", "are_short", "tell_of_standstill"]

# Transitions in a row. Far from the mode early ones are short, too, but never so many.
IN_A_ROW = 50


class Standstill:
    """Counts the transitions in a row that led nowhere.

    Attributes
    ----------
    how : str
        What they were like, once there were many; else empty.
    last : ndarray or None
        Where the last transition led.
    """

    def __init__(self) -> None:
        self.how = ""
        self._rejected = self._short = 0
        self.last: np.ndarray | None = None

    @property
    def is_counting(self) -> bool:
        """Whether the last transition led nowhere."""
        return bool(self._rejected or self._short)

    def stands_at(self, position: np.ndarray) -> None:
        """Take down where the last transition led."""
        self.last = position

    def went_on(self) -> None:
        """Count some more, the last of which led elsewhere, in fewer steps than the most."""
        self._rejected = self._short = 0

    def paused(self, count: int) -> None:
        """Count some more: so many of the last ones led nowhere, too few to speak of."""
        self._rejected, self._short = count, 0

    def update(self, positions: np.ndarray, told: Callable[[str], np.ndarray | None]) -> None:
        """Count some more; `positions` has a row for each.

        Parameters
        ----------
        positions : array, shape (transitions, dim) or (transitions, members, dim)
        told : callable
            From the name of a statistic to its array, (transitions,), or None.
        """
        if self.how:
            return
        before, self.last = self.last, positions[-1].copy()
        saturated = told("reached_max_treedepth")
        # Nearly always the last transition led somewhere, and nothing needs to be counted.
        previous = positions[-2] if len(positions) > 1 else before
        # Mostly the first number says so.
        if previous is None or previous.flat[0] != self.last.flat[0]:
            self._rejected = 0
        elif (previous != self.last).any():
            self._rejected = 0
        else:
            everywhere = tuple(range(1, positions.ndim))
            moved = (positions[1:] != positions[:-1]).any(axis=everywhere)
            first = before is None or (positions[0] != before).any()
            # Updates that reject nothing, draws of conditionals, may well give the same value.
            refused, still = told("acceptance_rate"), ~np.append(first, moved)
            if refused is not None:
                still &= refused.reshape(len(positions), -1).min(axis=1) < 1.0
            self._rejected = _in_a_row(self._rejected, still)
        if saturated is not None and saturated[-1]:
            depth, step_size = told("tree_depth"), told("step_size")
            assert depth is not None and step_size is not None  # told with that they were reached
            self._short = _in_a_row(self._short, saturated & are_short(depth, step_size))
            steps, size = 2 ** int(depth[-1]) - 1, step_size[-1]
        else:
            self._short = 0
        if self._rejected >= IN_A_ROW:
            self.how = f"{self._rejected} proposals in a row were rejected"
        elif self._short >= IN_A_ROW:
            self.how = (
                f"{self._short} trajectories in a row of the greatest length, {steps} steps, "
                f"went {size * steps:.1g} standard deviations each"
            )


def are_short(depth: np.ndarray, step_size: np.ndarray) -> np.ndarray:
    """Whether trajectories of the greatest length are short, of depth and step size of each."""
    # Those of the greatest length have so many steps; of how many gradients is another matter.
    return step_size * (2**depth - 1) < SHORT_TRAJECTORY


def _in_a_row(so_far: int, flags: np.ndarray) -> int:
    """How many hold in a row at the end, where `so_far` did before."""
    if flags.all():
        return so_far + len(flags)
    return int(np.argmin(flags[::-1]))


def tell_of_standstill(runs: Sequence[ChainRun], told: set[int], stacklevel: int) -> None:
    """Warn, once for each, of chains that stand still; `runs` are `ChainRun`s."""
    for i, run in enumerate(runs):
        if not run.standstill.how or i in told:
            continue
        told.add(i)
        # Of quick chains it may show when they are over.
        first = "" if run.finished else "end it (Ctrl-C) and "
        message = ProbtorchError(
            f"chain {i} stands still, after {run.iteration} transitions",
            expected="transitions that lead away from where it started; more of them will not help",
            got=run.standstill.how,
            fix=f"{first}start elsewhere: another seed, init_strategy="
            "init_to_median(); look at the model where it stands: target.value_and_grad, solvers "
            "and their tolerances",
        )
        warnings.warn(str(message), ConvergenceWarning, stacklevel=stacklevel)
