"""Affine-invariant ensemble sampling: walkers that move along the lines through each other.

A walker is moved towards another one, drawn at random, or away from it, by a factor that is drawn
from a law between 1/a and a. Nothing needs to be tuned: a change of scales and correlations changes
what the walkers do in the same way. One step moves each walker once, one after the other, as in the
paper; the others stand where they have got to.

References
----------
J. Goodman, J. Weare, "Ensemble samplers with affine invariance", Communications in Applied
Mathematics and Computational Science 5 (2010). D. Foreman-Mackey, D. W. Hogg, D. Lang, J. Goodman,
"emcee: the MCMC hammer", PASP 125 (2013), for advice on its use.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.infer.mcmc.kernel import tuned
from probtorch.infer.mcmc.kernels.ensembles import (
    EnsembleInfo,
    EnsembleKernel,
    Proposal,
    others_of,
)
from probtorch.infer.mcmc.kernels.random_walk import PointState
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.ops.exponentials import log

__all__ = ["AIES"]


class AIES(EnsembleKernel):
    """The affine-invariant ensemble sampler with stretch moves [goodman2010]_; `emcee`'s.

    It needs no gradient and no tuning: a warm-up is for moving to the posterior. Good in up to ten
    dimensions or so; beyond, the walkers' lines miss the typical set.

    Each walker is a chain of the result, as in ArviZ's converters: ``num_chains`` ensembles make
    ``num_chains * walkers`` chains. Walkers of one ensemble move along each other, so R-hat between
    them says less than between ensembles: run several.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`. Starting points that are given have a row for each walker of each ensemble.
    walkers : int
        Points of an ensemble, twice the dimensions at least.
    stretch : float
        The largest factor; a in the paper.

    References
    ----------
    [goodman2010]_, [foremanmackey2013]_.

    Examples
    --------
    >>> from probtorch.infer import AIES, MCMC, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(AIES(target, walkers=6), num_samples=5000, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(6 chains x 5000 draws: x (2))
    """

    info = EnsembleInfo

    stretch: float | TensorBase = tuned(default=2.0, between=(1.0, math.inf))

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "stretch": self.stretch}

    def step(self, key: Key, state: PointState) -> tuple[PointState, EnsembleInfo]:
        """Return ``(state, info)`` after one proposal for each walker."""
        count, dim = state.position.shape
        # Three numbers for each walker: whom it looks at, how far it goes, whether it does.
        drawn = uniform(key, state.counter + wrap(np.arange(3 * count).reshape(3, count)))
        (others,) = others_of(drawn[:1], count, 1)
        factors = (1.0 + (self.stretch - 1.0) * drawn[1]) ** 2 / self.stretch

        def propose(k: TensorBase, position: TensorBase) -> Proposal:
            mine, other = position[k], position[(k + others[k]) % count]
            proposal = other + factors[k] * (mine - other)
            return proposal, (dim - 1) * log(factors[k]), drawn[2][k]

        return self.moved(state, propose, used=3)
