"""Sample adaptive MCMC: points that are replaced one by one by draws of the normal through them.

The state is N points, each a draw of the target. A new one is drawn from the normal with the mean
and the covariance of the N; of the N + 1 one is left out, with a chance in proportion to its
density under the normal of the N others over its density under the target. So points in the tails
of the target are hard to lose, and the chain is reversible: had another point been the new one,
the same N + 1 would have come about as often.

The normals that leave one point out have their densities from one factorisation. With z_j the
points about the mean of all N + 1, A the sum of z_j z_j', a = 1 + 1/N and h_j = z_j' A^-1 z_j,

    N C_j = A - a z_j z_j',    log det C_j = log(1 - a h_j) + constant,
    (x_j - m_j)' C_j^-1 (x_j - m_j) = N a^2 h_j / (1 - a h_j).

A step tries as many new points as there are, so a draw means as much as of other ensembles.

References
----------
M. Zhu, "Sample adaptive MCMC", NeurIPS 2019, algorithm 1.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import static
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.kernels.ensembles import EnsembleInfo, EnsembleKernel
from probtorch.infer.mcmc.kernels.random_walk import PointState
from probtorch.infer.mcmc.randomness import Key, normals, uniform
from probtorch.ops.arithmetic import clamp, minimum, sqrt, where
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.control import while_loop
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, log
from probtorch.ops.indexing import index_put
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total

__all__ = ["SA"]

METRICS = ("dense", "diag")
# What is left of 1 - a h_j where the other points lie in a plane but for rounding.
FLAT = 1e-12

# The number of new points tried, the points, their log densities, and acceptance probabilities.
_Sweep: TypeAlias = tuple[TensorBase, TensorBase, TensorBase, TensorBase]


class SA(EnsembleKernel):
    """Sample adaptive MCMC [zhu2019]_: proposals from the normal through the present points.

    It needs no gradient and no tuning: a warm-up is for moving to the posterior, and takes longer
    than that of other kernels. Good where a posterior is near normal in some ten dimensions;
    a proposal looks at all points at once, so two modes are one wide normal to it.

    Each of its points is a chain of the result, as walkers of `AIES` are: ``num_chains`` sets of
    points make ``num_chains * walkers`` chains. Points of one set adapt to each other, so R-hat
    between them says less than between sets: run several.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`. Starting points that are given have a row for each point of each set.
    walkers : int
        Points of a set, NumPyro's ``adapt_state_size``; twice the dimensions at least, and better
        five times: the covariance is theirs.
    metric : {"dense", "diag"}
        Whether the normal has their covariance, or their variances only.

    References
    ----------
    [zhu2019]_.

    Examples
    --------
    >>> from probtorch.infer import MCMC, SA, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(SA(target, walkers=10), num_samples=1000, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(10 chains x 1000 draws: x (2))
    """

    info = EnsembleInfo
    # Those that are left when one is left out have a covariance of full rank.
    fewest = 3

    metric: str = static(default="dense")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric not in METRICS:
            raise ArgumentError(
                "SA(metric=...)",
                expected=" or ".join(map(repr, METRICS)),
                got=repr(self.metric),
                fix="leave it out for the covariance of the points",
            )

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "metric": self.metric}

    def step(self, key: Key, state: PointState) -> tuple[PointState, EnsembleInfo]:
        """Return ``(state, info)`` after as many new points as there are points."""
        count, dim = state.position.shape
        noise = count if self.metric == "dense" else dim

        def substitute(carry: _Sweep) -> _Sweep:
            k, position, logdensity, accept = carry
            counter = state.counter + k * (noise + 1)
            proposal = self._proposal(position, normals(key, counter, noise))
            value, _ = self.density(proposal)
            possible = value > -np.inf  # and no nan
            value = where(possible, value, 0.0)
            everyone = cat([position, reshape(proposal, (1, dim))], 0)
            densities = cat([logdensity, reshape(value, (1,))], 0)
            log_rates = self._left_out(everyone) - densities
            rates = exp(log_rates - logsumexp(log_rates, -1))
            summed = cumsum(rates, 0)
            point = uniform(key, counter + noise) * summed[count]
            lost = total(where(summed <= point, 1, 0))
            stays = possible & (lost < count)
            at = minimum(lost, wrap(np.array(count - 1)))
            return (
                k + 1,
                index_put(position, (at,), where(stays, proposal, position[at])),
                index_put(logdensity, (at,), where(stays, value, logdensity[at])),
                index_put(accept, (k,), where(possible, 1.0 - rates[count], 0.0)),
            )

        start = wrap(np.array(0)), state.position, state.logdensity, wrap(np.zeros(count))
        _, position, logdensity, accept = while_loop(lambda c: c[0] < count, substitute, start)
        new = PointState(position, logdensity, state.counter + count * (noise + 1))
        return new, EnsembleInfo(accept, logdensity, wrap(np.ones(count, np.int64)))

    def _proposal(self, points: TensorBase, noise: TensorBase) -> TensorBase:
        """Draw from the normal with mean and covariance of the points."""
        count = points.shape[0]
        mean = points.mean(0)
        about = points - mean
        if self.metric == "diag":
            return mean + sqrt((about * about).mean(0)) * noise
        # A combination of them with normal coefficients has their covariance.
        return mean + (noise @ about) / math.sqrt(count)

    def _left_out(self, points: TensorBase) -> TensorBase:
        """Log density of each point under the normal through the others, but for a constant."""
        n = points.shape[0] - 1
        about, a = points - points.mean(0), 1.0 + 1.0 / n
        if self.metric == "diag":
            h = about * about / total(about * about, 0)
        else:
            factor = cholesky(about.mT @ about)
            white = solve_triangular(factor, about.mT, upper=False)
            h = reshape(total(white * white, 0), (n + 1, 1))
        rest = clamp(1.0 - a * h, min=FLAT)
        return -0.5 * total(log(rest) + n * a * a * h / rest, 1)
