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
from probtorch.infer.mcmc.kernels.ensembles import EnsembleInfo, EnsembleKernel, others_of
from probtorch.infer.mcmc.kernels.random_walk import PointState, accept_probability
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.ops.arithmetic import where
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import log
from probtorch.ops.indexing import index_put

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

        def move(
            carry: tuple[TensorBase, TensorBase, TensorBase, TensorBase],
        ) -> tuple[TensorBase, TensorBase, TensorBase, TensorBase]:
            k, position, logdensity, accept = carry
            mine, other = position[k], position[(k + others[k]) % count]
            proposal = other + factors[k] * (mine - other)
            value, _ = self.density(proposal)
            rise = (dim - 1) * log(factors[k]) + value - logdensity[k]
            accept_prob = accept_probability(rise)
            accepted = drawn[2][k] < accept_prob
            return (
                k + 1,
                index_put(position, (k,), where(accepted, proposal, mine)),
                index_put(logdensity, (k,), where(accepted, value, logdensity[k])),
                index_put(accept, (k,), accept_prob),
            )

        none = wrap(np.zeros(count))
        start = wrap(np.array(0)), state.position, state.logdensity, none
        _, position, logdensity, accept = while_loop(lambda c: c[0] < count, move, start)
        new = PointState(position, logdensity, state.counter + 3 * count)
        return new, EnsembleInfo(accept, logdensity, wrap(np.ones(count, np.int64)))
