"""`Easing`: a lower acceptance where short trajectories become shorter by it, and nothing is lost.

A trajectory of NUTS has 1, 3, 7, 15 ... steps. Where a near normal posterior has a metric that fits
it, those at an acceptance of 0.8 are of 3 steps and of 7; with a step a quarter longer nearly all
have 3, and end as far away. So a draw costs less, while acceptance stays at 0.7. Where trajectories
are longer than that anyway, draws only become worse, and where the energy is lost now and then, as
near a neck, there would be divergences: there the acceptance stays as it is.
"""

from __future__ import annotations

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace
from probtorch.ops.arithmetic import minimum, where

__all__ = ["Easing"]

# What is aimed at where the acceptance is eased, by what was aimed at before: 0.7 for 0.8.
EASED = 0.875
# Trajectories of at most so many steps are short; so large a share of them has to be.
SHORT, SHARE = 3, 0.4
# The mean acceptance of a trajectory that lost the energy; the share of these below which
# acceptance is eased, and above which it no longer is.
LOST, SMOOTH, ROUGH = 0.1, 0.004, 0.007
# Transitions that do not count, since no scale is known yet; the weight, in transitions, of the
# guess to begin with; and how many are remembered.
FIRST, GUESSED, REMEMBERED = 40, 20.0, 150.0


@record
class Easing:
    """Whether the acceptance that is aimed at is eased; all float64, 0-d.

    Parameters
    ----------
    short, lost : Tensor
        Shares of short trajectories, and of those that lost the energy.
    count : Tensor
        Transitions so far.
    eased : Tensor
        1 where it is, else 0.
    settled : Tensor
        1 once it is not to begin any more, else 0.
    """

    short: TensorBase
    lost: TensorBase
    count: TensorBase
    eased: TensorBase
    settled: TensorBase

    @classmethod
    def begun(cls) -> Easing:
        """Return it before the first transition."""
        zero = wrap(np.zeros(()))
        return cls(zero, wrap(np.asarray(ROUGH)), zero, zero, zero)

    def of(self, target: TensorBase) -> TensorBase:
        """Return the acceptance to aim at in place of `target`."""
        return where(self.eased > 0.0, EASED * target, target)

    def updated(self, steps: TensorBase, acceptance: TensorBase, longer: TensorBase) -> Easing:
        """Return it after a transition.

        Parameters
        ----------
        steps, acceptance : Tensor, 0-d
            Of the transition: how many there were, and their mean.
        longer : Tensor, 0-d bool
            Whether they were longer than steps usually are by now.
        """
        count = self.count + 1.0
        counted = count - FIRST
        weight = where(counted > 0.0, 1.0 / minimum(counted + GUESSED, REMEMBERED), 0.0)
        short = self.short + weight * (where(steps <= SHORT, 1.0, 0.0) - self.short)
        # With longer steps than it will have, any chain loses the energy.
        weight = where(longer, 0.0, weight)
        lost = self.lost + weight * (where(acceptance < LOST, 1.0, 0.0) - self.lost)
        smooth = lost < where(self.eased > 0.0, ROUGH, SMOOTH)
        wanted = where(self.settled > 0.0, self.eased > 0.0, short > SHARE)
        eased = where(wanted & smooth, 1.0, 0.0)
        return Easing(short, lost, count, eased, self.settled)

    def refocused(self) -> Easing:
        """Return it as it will stay, but where the energy is lost after all."""
        return replace(self, settled=1.0 + 0.0 * self.settled)
