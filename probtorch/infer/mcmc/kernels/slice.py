"""Slice sampling along random directions: no gradient, nothing rejected, no step size to find.

A transition makes as many updates as there are dimensions, each along a direction that is uniform
in the coordinates that the metric whitens. `slice_along`, the update along a given direction, draws
a level below the log density; steps out from a random interval until its ends are below the level,
a limited number of times that are dealt to both sides at random; and shrinks it towards the present
point until a draw from it is above. ensemble_slice.py has it along the lines between walkers.

References
----------
R. M. Neal, "Slice sampling", Annals of Statistics 31 (2003), figures 3 and 5. R. L. Smith,
"Efficient Monte Carlo procedures for generating points uniformly distributed over bounded regions",
Operations Research 32 (1984), for directions drawn at random.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.infer.mcmc.integrators import Density
from probtorch.infer.mcmc.kernel import statistic, tuned
from probtorch.infer.mcmc.kernels.random_walk import PointState
from probtorch.infer.mcmc.kernels.stepping import MetricKernel
from probtorch.infer.mcmc.randomness import Key, normals, uniform
from probtorch.ops.arithmetic import floor, sqrt, where
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import log
from probtorch.ops.reduction import sum as total

__all__ = ["Slice", "SliceInfo", "SliceUpdate", "slice_along"]

# Widths that an interval may have in all.
MOST_WIDTHS = 64.0
# Each shrinking leaves half of the interval on average: after so many a draw is where it began.
MOST_SHRINKS = 200


# What is carried while an interval shrinks: tries, its ends, a position in it with its log density,
# and whether that is above the level.
Shrinking: TypeAlias = tuple[TensorBase, TensorBase, TensorBase, TensorBase, TensorBase, TensorBase]


@record
class SliceInfo:
    """The new log density, and how often it was evaluated on the way."""

    lp: TensorBase = statistic("lp")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


class Slice(MetricKernel[PointState]):
    """Slice sampling along random directions [neal2003]_.

    It needs no gradient, and copes with densities that have jumps. A draw costs about five
    evaluations of the density for each dimension.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`.
    width : float
        Of the first interval, in standard deviations as the metric has them. It decides what a draw
        costs, hardly how good it is.
    metric : {"auto", "dense", "diag"}
        Whether directions have the covariance of the draws, or their variances only; "auto" is
        dense in up to 2000 dimensions.
    adapt_mass_matrix, inverse_mass_matrix
        As for `NUTS`.

    References
    ----------
    [neal2003]_.

    Examples
    --------
    >>> from probtorch.infer import MCMC, Slice, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(Slice(target), num_samples=1000, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(4 chains x 1000 draws: x (2))
    """

    info = SliceInfo
    gradients = False

    width: TensorBase | float = tuned(default=2.0, between=(0.0, math.inf))

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> PointState:
        """Return the state at a position."""
        return PointState(position, self.density(position)[0], as_tensor(counter))

    def step(self, key: Key, state: PointState) -> tuple[PointState, SliceInfo]:
        """Return ``(state, info)`` after an update along each of `dim` directions."""
        (dim,) = state.position.shape

        def update(
            carry: tuple[TensorBase, TensorBase, PointState],
        ) -> tuple[TensorBase, TensorBase, PointState]:
            done, taken, state = carry
            state, evaluations = self._update(key, state)
            return done + 1, taken + evaluations, state

        zero = wrap(np.array(0))
        _, taken, new = while_loop(lambda carry: carry[0] < dim, update, (zero, zero, state))
        return new, SliceInfo(new.logdensity, taken)

    def _update(self, key: Key, state: PointState) -> tuple[PointState, TensorBase]:
        """Return the state after an update along one direction, and the evaluations it took."""
        (dim,) = state.position.shape
        z, counter = normals(key, state.counter, dim), state.counter + dim
        direction = self.metric.velocity(z / sqrt(total(z * z)))
        start = PointState(state.position, state.logdensity, counter)
        update = slice_along(self.density, key, start, direction, self.width)
        return update.state, update.expansions + update.contractions + 2


@record
class SliceUpdate:
    """Where an update along a line led, and how its interval got its ends.

    Parameters
    ----------
    state : PointState
    expansions, contractions : Tensor, 0-d int64
        How often an end was moved out, and how often a draw was below the level or the last one.
        The density was evaluated so often, and at the two ends of the first interval.
    """

    state: PointState
    expansions: TensorBase
    contractions: TensorBase


def slice_along(
    density: Density,
    key: Key,
    state: PointState,
    direction: TensorBase,
    width: TensorBase | float,
) -> SliceUpdate:
    """Update a point along a line through it [neal2003, figures 3 and 5].

    Parameters
    ----------
    density : callable
        ``density(position) -> (log density, gradient)``.
    key : Key
    state : PointState
    direction : Tensor, shape (dim,)
        Drawn without regard to where the point is on the line.
    width : Tensor or float
        Of the first interval, in lengths of the direction.
    """
    level, counter = state.logdensity + log(uniform(key, state.counter)), state.counter

    def at(offset: TensorBase) -> tuple[TensorBase, TensorBase]:
        position = state.position + offset * direction
        return position, density(position)[0]

    def step_out(
        end: TensorBase, outwards: TensorBase | float, times: TensorBase
    ) -> tuple[TensorBase, TensorBase, TensorBase]:
        """Move an end of the interval until it is below the level; [neal2003, figure 3]."""

        def move(
            carry: tuple[TensorBase, TensorBase, TensorBase],
        ) -> tuple[TensorBase, TensorBase, TensorBase]:
            taken, end, _ = carry
            end = end + outwards
            return taken + 1, end, at(end)[1] > level

        first = wrap(np.array(0)), end, at(end)[1] > level
        return while_loop(lambda c: (c[0] < times) & c[2], move, first)

    begin = -width * uniform(key, counter + 1)
    times = floor(MOST_WIDTHS * uniform(key, counter + 2))
    to_left, left, _ = step_out(begin, -width, times)
    to_right, right, _ = step_out(begin + width, width, (MOST_WIDTHS - 1.0) - times)

    def shrink(carry: Shrinking) -> Shrinking:
        """Draw from the interval, and end it there if that is below; [neal2003, figure 5]."""
        tries, left, right, *_ = carry
        offset = left + (right - left) * uniform(key, counter + 3 + tries)
        position, logdensity = at(offset)
        left, right = where(offset < 0.0, offset, left), where(offset < 0.0, right, offset)
        return tries + 1, left, right, position, logdensity, logdensity > level

    never = to_left < 0
    start = wrap(np.array(0)), left, right, state.position, state.logdensity, never
    tries, _, _, position, logdensity, found = while_loop(
        lambda c: (c[0] < MOST_SHRINKS) & ~c[5], shrink, start
    )
    new = PointState(
        where(found, position, state.position),
        where(found, logdensity, state.logdensity),
        counter + 3 + tries,
    )
    return SliceUpdate(new, to_left + to_right, tries)
