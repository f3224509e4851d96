"""Differential evolution: walkers that move along the differences of others.

A walker's proposal is a step along the difference of two others, drawn at random, so proposals have
the covariance of the walkers, whatever it is. Now and then the step is the whole difference, which
leads from one mode to another where walkers are in both; or it is taken along the line to a third
walker, the snooker move.

References
----------
C. J. F. ter Braak, "A Markov chain Monte Carlo version of the genetic algorithm differential
evolution", Statistics and Computing 16 (2006). C. J. F. ter Braak, J. A. Vrugt, "Differential
evolution Markov chain with snooker updater and fewer chains", Statistics and Computing 18 (2008).
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import static
from probtorch.infer.mcmc.kernel import checked
from probtorch.infer.mcmc.kernels.ensembles import (
    EnsembleInfo,
    EnsembleKernel,
    Proposal,
    others_of,
)
from probtorch.infer.mcmc.kernels.random_walk import PointState
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.ops.arithmetic import maximum, where
from probtorch.ops.exponentials import log
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import ndtri

__all__ = ["DEMetropolis"]

# The snooker move's factor is uniform between these [terbraak2008, section 2].
LEAST_SNOOKER, MOST_SNOOKER = 1.2, 2.2
# Standard deviation of what is added to the factor of a difference, so that proposals are no
# lattice; emcee's.
JITTER = 1e-5
# The squared length under which two walkers stand in one place, and no line leads through them.
ONE_PLACE = 1e-300


class DEMetropolis(EnsembleKernel):
    """Differential evolution MCMC with snooker moves [terbraak2006]_ [terbraak2008]_.

    It needs no gradient and no tuning: a warm-up is for moving to the posterior. Good in up to ten
    or twenty dimensions; and where a few modes have walkers in them, these go between.

    Each walker is a chain of the result, as for `AIES`: ``num_chains`` ensembles make ``num_chains
    * walkers`` chains. Walkers of one ensemble move along each other, so R-hat between them says
    less than between ensembles: run several.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`. Starting points that are given have a row for each walker of each ensemble.
    walkers : int
        Points of an ensemble, twice the dimensions at least, and 4.
    gamma : float, optional
        Factor of the difference; 2.38 / sqrt(2 dim) if None, the best one for a Gaussian.
    jumps : float, in [0, 1]
        Share of the differences that are taken whole.
    snooker : float, in [0, 1]
        Share of the moves that are snooker moves. These are not affine-invariant: on scales that
        differ by orders of magnitude leave them out.

    References
    ----------
    [terbraak2006]_, [terbraak2008]_.

    Examples
    --------
    >>> from probtorch.infer import DEMetropolis, MCMC, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> kernel = DEMetropolis(target, walkers=8)
    >>> mcmc = MCMC(kernel, num_samples=4000, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(8 chains x 4000 draws: x (2))
    """

    info = EnsembleInfo
    fewest = 4

    gamma: float | None = static(default=None)
    jumps: float = static(default=0.1)
    snooker: float = static(default=0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma is not None:
            self._set(gamma=checked(self.name, "gamma", self.gamma, 0.0, math.inf))
        # A share may be none or all: the bounds of `checked` are exclusive.
        low, high = math.nextafter(0.0, -1.0), math.nextafter(1.0, 2.0)
        for name in ("jumps", "snooker"):
            self._set(**{name: checked(self.name, name, getattr(self, name), low, high)})

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        own = {"gamma": self.gamma, "jumps": self.jumps, "snooker": self.snooker}
        return {**super().attrs(), **{name: x for name, x in own.items() if x is not None}}

    def step(self, key: Key, state: PointState) -> tuple[PointState, EnsembleInfo]:
        """Return ``(state, info)`` after one proposal for each walker."""
        count, dim = state.position.shape
        # Eight numbers for each walker: three for whom it looks at, one each for which move it is,
        # whether a difference is taken whole, how far the move goes, its jitter, and acceptance.
        drawn = uniform(key, state.counter + wrap(np.arange(8 * count).reshape(8, count)))
        first, second, third = others_of(drawn[:3], count, 3)
        usual = 2.38 / math.sqrt(2 * dim) if self.gamma is None else self.gamma
        factors = where(drawn[4] < self.jumps, 1.0, usual) + JITTER * ndtri(drawn[6])
        strides = LEAST_SNOOKER + (MOST_SNOOKER - LEAST_SNOOKER) * drawn[5]

        def propose(k: TensorBase, position: TensorBase) -> Proposal:
            mine = position[k]
            difference = position[(k + first[k]) % count] - position[(k + second[k]) % count]
            # The snooker move: along the line to a third walker, by the difference's part there.
            to_third = mine - position[(k + third[k]) % count]
            square = maximum(total(to_third * to_third), ONE_PLACE)
            share = strides[k] * total(to_third * difference) / square
            # The line's length changes by 1 + share: that of the volumes, in dim - 1 dimensions.
            ratio = (dim - 1) * log(maximum((1.0 + share) * (1.0 + share), ONE_PLACE)) / 2.0
            is_snooker = drawn[3][k] < self.snooker
            jump = where(is_snooker, share * to_third, factors[k] * difference)
            return mine + jump, where(is_snooker, ratio, 0.0), drawn[7][k]

        return self.moved(state, propose, used=8)
