"""`LeafProposals`: normal distributions that leaves of a tree are proposed from, by regressions.

A leaf that adds mu to a function f of its rows changes the log likelihood in a way of which values
and slopes can be had. What the leaf may be is found by linear regression of the slope under a
normal distribution of mu, by the quadrature of two points: slopes, summed over the rows of the
leaf, one deviation below the mean and one above. First that distribution is the prior of a leaf;
what comes out, with the prior, is the next one, until it stays (`Fits`). Of a normal likelihood it
is the conditional distribution itself, the first time.

Proposals of leaves from approximations of their conditional distributions follow Linero (2024);
regression of a slope, in place of its slope at the top, bears likelihoods that are not concave.

References
----------
A. R. Linero, "Generalized Bayesian additive regression trees models: beyond conditional
conjugacy", JASA (2024). A. F. Garcia-Fernandez, L. Svensson, M. R. Morelande, S. Sarkka,
"Posterior linearization filter", IEEE Transactions on Signal Processing 63 (2015), for the
regressions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from probtorch.contrib.bart.ensembles import Ensemble
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.ops.arithmetic import abs, clamp, maximum, minimum, sqrt, where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp, log
from probtorch.ops.extremes import amax
from probtorch.ops.indexing import index_put
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total

__all__ = ["At", "Fits", "LeafProposals", "Slopes"]

# From the values of the sum that a tree is in, one per row, to the log density and its slopes.
At: TypeAlias = Callable[[TensorBase], tuple[TensorBase, TensorBase]]

# A leaf is proposed from its normal, made three times as wide in this share of the cases, and from
# its prior in that: then no leaf that has come about some other way is hard to leave.
WIDE, ANYWHERE = 0.05, 0.02
# Regressions for a leaf after the first, at most, and the change, in deviations of the mean and in
# parts of the precision, at which they end.
ROUNDS, SETTLED = 6, 0.1
# Of a distribution: one for all leaves, or one each.
Number: TypeAlias = "TensorBase | float"


@record
class Slopes:
    """Slopes of the log likelihood in the sum without a tree, by row.

    Parameters
    ----------
    low, high : Tensor, shape (rows,)
        One deviation of the prior of a leaf below it, and above.
    bend : Tensor, 0-d
        How far the slopes between are off the lines through these, in all rows together, times that
        deviation: in nats.
    """

    low: TensorBase
    high: TensorBase
    bend: TensorBase


@record
class Fits:
    """Normal distributions that stand for the conditional ones of leaves.

    Parameters
    ----------
    mean, precision : Tensor, shape (nodes,) or ()
    """

    mean: TensorBase
    precision: TensorBase


class LeafProposals:
    """What makes proposals for the leaves of an ensemble.

    Parameters
    ----------
    ensemble : Ensemble

    Attributes
    ----------
    precision : float
        Of the prior of a leaf.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble, self.precision = ensemble, ensemble.leaf_scale**-2

    def slopes(self, rest: TensorBase, at: At) -> Slopes:
        """Return the slopes that serve all shapes of a tree: the prior of a leaf knows of none.

        Parameters
        ----------
        rest : Tensor, shape (rows,)
            The sum without the tree.
        at : callable
        """
        scale = self.ensemble.leaf_scale
        low, middle, high = (at(rest + k * scale)[1] for k in (-1.0, 0.0, 1.0))
        bend = total(abs(middle - 0.5 * (low + high))) * scale
        # Where they lie on lines there is nothing to be found by further regressions.
        return Slopes(low, high, where(isfinite(bend), bend, np.inf))

    def fitted(
        self, leaf: TensorBase, leaves: TensorBase, rest: TensorBase, slopes: Slopes, at: At
    ) -> tuple[Fits, TensorBase]:
        """Return the fits of all leaves, and how many evaluations that took.

        Parameters
        ----------
        leaf : Tensor of int64, shape (rows,)
        leaves : Tensor of bool, shape (nodes,)
            Which nodes are leaves.
        rest : Tensor, shape (rows,)
            The sum without the tree.
        slopes : Slopes
        at : callable
        """
        e = self.ensemble

        def regressed(low: TensorBase, high: TensorBase, mean: Number, spread: Number) -> Fits:
            sums = self._by_leaf(leaf, leaves, low, high)
            slope, weight = 0.5 * (sums[:, 0] + sums[:, 1]), (sums[:, 0] - sums[:, 1]) / spread
            precision = maximum(0.5 * weight, 0.0) + self.precision
            return Fits(mean + (slope - self.precision * mean) / precision, precision)

        def unsettled(carry: tuple[TensorBase, TensorBase, Fits]) -> TensorBase:
            i, moved, _ = carry
            return (i < ROUNDS) & (moved > SETTLED)

        def again(
            carry: tuple[TensorBase, TensorBase, Fits],
        ) -> tuple[TensorBase, TensorBase, Fits]:
            i, _, fits = carry
            spread = 1.0 / sqrt(fits.precision)
            found = regressed(
                at(rest + (fits.mean - spread)[leaf])[1],
                at(rest + (fits.mean + spread)[leaf])[1],
                fits.mean,
                spread,
            )
            # Not further than the prior would go, whatever the slopes say.
            bound = 6.0 * e.leaf_scale
            found = Fits(clamp(found.mean, -bound, bound), found.precision)
            moved = abs(found.mean - fits.mean) / spread
            wider = abs(found.precision / fits.precision - 1.0)
            return i + 1, amax(maximum(moved, wider)), found

        first = regressed(slopes.low, slopes.high, 0.0, e.leaf_scale)
        start = (wrap(np.array(0)), slopes.bend, first)
        rounds, _, fits = while_loop(unsettled, again, start)
        return fits, 2 * rounds

    def _by_leaf(
        self, leaf: TensorBase, leaves: TensorBase, low: TensorBase, high: TensorBase
    ) -> TensorBase:
        """Sums over the rows of each leaf, shape (nodes, 2), of what is finite."""
        low, high = (where(isfinite(x), x, 0.0) for x in (low, high))
        ranks = cumsum(leaves.long(), 0)

        # A pass for each leaf, with vectors: a fifth of what adding row by row takes.
        def summed(carry: tuple[TensorBase, TensorBase]) -> tuple[TensorBase, TensorBase]:
            i, sums = carry
            node = minimum(total((ranks <= i).long()), self.ensemble.nodes - 1)
            own = leaf == node
            pair = stack([total(where(own, low, 0.0)), total(where(own, high, 0.0))])
            return i + 1, index_put(sums, (node,), pair)

        start = (wrap(np.array(0)), wrap(np.zeros((self.ensemble.nodes, 2))))
        return while_loop(lambda carry: carry[0] < ranks[-1], summed, start)[1]

    def drawn(self, fits: Fits, u: TensorBase, z: TensorBase) -> TensorBase:
        """Draw leaves of uniform and normal numbers."""
        spread = where(u < WIDE, 3.0, 1.0) / sqrt(fits.precision)
        return where(u < ANYWHERE, z * self.ensemble.leaf_scale, fits.mean + z * spread)

    def term(self, fits: Fits, value: TensorBase) -> TensorBase:
        """Log of the prior density of leaves by that with which they are proposed."""
        own = 0.5 * fits.precision * (value - fits.mean) * (value - fits.mean)
        root, prior = sqrt(fits.precision / self.precision), -0.5 * self.precision * value * value
        narrow = (1.0 - WIDE) * root * exp(-own)
        wide = ((WIDE - ANYWHERE) / 3.0) * root * exp(-own / 9.0)
        return prior - log(narrow + wide + ANYWHERE * exp(prior))
