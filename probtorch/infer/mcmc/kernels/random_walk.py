"""Metropolis's random walk, the simplest kernel, and the states and infos of kernels like it.

References
----------
N. Metropolis, A. W. Rosenbluth, M. N. Rosenbluth, A. H. Teller, E. Teller, "Equation of state
calculations by fast computing machines", Journal of Chemical Physics 21 (1953). G. O. Roberts,
A. Gelman, W. R. Gilks, "Weak convergence and optimal scaling of random walk Metropolis algorithms",
Annals of Applied Probability 7 (1997), for the acceptance to aim at. H. Haario, E. Saksman,
J. Tamminen, "An adaptive Metropolis algorithm", Bernoulli 7 (2001), for the covariance of draws as
that of the proposals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.infer.mcmc.kernel import setting, statistic
from probtorch.infer.mcmc.kernels.stepping import SteppingKernel
from probtorch.infer.mcmc.randomness import Key, normals, uniform
from probtorch.ops.arithmetic import clamp, where
from probtorch.ops.comparisons import isnan
from probtorch.ops.exponentials import exp

if TYPE_CHECKING:
    from probtorch.infer.potential import Target

__all__ = [
    "MetropolisInfo",
    "PointState",
    "RandomWalk",
    "RandomWalkKernel",
    "accept_probability",
]


@record
class PointState:
    """A position, its log density, and the first random counter not used yet."""

    position: TensorBase
    logdensity: TensorBase
    counter: TensorBase


@record
class MetropolisInfo:
    """What one proposal came to: its acceptance, the new log density, and what it was made with."""

    accept_prob: TensorBase = statistic("acceptance_rate")
    lp: TensorBase = statistic("lp")
    step_size: TensorBase = statistic("step_size")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


def accept_probability(rise: TensorBase) -> TensorBase:
    """Return min(1, exp(rise)) of a rise of the log density, 0 where it is nan."""
    return exp(clamp(where(isnan(rise), -np.inf, rise), max=0.0))


class RandomWalk(SteppingKernel[PointState]):
    """Metropolis's algorithm with normal proposals around the present point [metropolis1953]_.

    It needs no gradient. Its steps are small and forget where they came from, so it takes of the
    order of ``dim`` times as many draws as `NUTS` for the same precision.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`.
    step_size : float
        Scale of the proposals, in units of the metric, to begin with or to keep.
    adapt_step_size, adapt_mass_matrix : bool
        What warm-up tunes.
    target_accept_prob : float, in (0, 1)
        Acceptance that the step size is tuned to [roberts1997]_.
    metric : {"auto", "dense", "diag"}
        Whether proposals have the covariance of the draws, or their variances only; "auto" is dense
        in up to 2000 dimensions.
    inverse_mass_matrix
        As for `NUTS`: variances or covariance to begin with or to keep.
    find_heuristic_step_size
        Not for this kernel: there is no gradient to find it by.

    References
    ----------
    [metropolis1953]_, [roberts1997]_, [haario2001]_.

    Examples
    --------
    >>> from probtorch.infer import MCMC, RandomWalk, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(RandomWalk(target), num_samples=4000, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(4 chains x 4000 draws: x (2))
    """

    info = MetropolisInfo
    gradients = False

    target_accept_prob: float = setting(default=0.234, between=(0.0, 1.0))

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> PointState:
        """Return the state at a position."""
        return PointState(position, self.density(position)[0], as_tensor(counter))

    def step(self, key: Key, state: PointState) -> tuple[PointState, MetropolisInfo]:
        """Return ``(state, info)`` after one proposal."""
        (dim,) = state.position.shape
        jump = self.metric.velocity(normals(key, state.counter, dim))
        position = state.position + self.step_size * jump
        logdensity, _ = self.density(position)
        accept_prob = accept_probability(logdensity - state.logdensity)
        accepted = uniform(key, state.counter + dim) < accept_prob
        new = PointState(
            where(accepted, position, state.position),
            where(accepted, logdensity, state.logdensity),
            state.counter + (dim + 1),
        )
        one = wrap(np.array(1))
        return new, MetropolisInfo(accept_prob, new.logdensity, self.step_size, one)


def RandomWalkKernel(
    model: Callable[..., object] | Target,
    init_step_size: float = 0.1,
    target_accept_prob: float = 0.234,
) -> RandomWalk:
    """Return a `RandomWalk`, by the name and the arguments that Pyro has for it.

    Parameters
    ----------
    model : callable or Target
    init_step_size : float
        Scale of the first proposals.
    target_accept_prob : float, in (0, 1)
    """
    return RandomWalk(model, step_size=init_step_size, target_accept_prob=target_accept_prob)


explain_calls(globals(), names=["RandomWalkKernel"])
