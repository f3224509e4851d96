"""Hamiltonian Monte Carlo whose trajectories have a length drawn anew for each.

A fixed length is bad for those directions of a posterior whose period it is a multiple of: there a
trajectory ends where it began. A random one, which does not depend on where the chain stands, has
no such directions, and leaves the posterior as it is, as each length does.

References
----------
R. M. Neal, "MCMC using Hamiltonian dynamics", Handbook of Markov Chain Monte Carlo (2011), section
4.2. N. Bou-Rabee, J. M. Sanz-Serna, "Randomized Hamiltonian Monte Carlo", Annals of Applied
Probability 27 (2017), for lengths that are exponential.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from probtorch.core.arguments import choice_of
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import int64
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import static
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.kernel import tuned
from probtorch.infer.mcmc.kernels.hmc import HMCInfo, HMCState, TrajectoryKernel
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.ops.arithmetic import ceil, clamp, minimum
from probtorch.ops.comparisons import shift_left
from probtorch.ops.exponentials import log

__all__ = ["DynamicHMC"]

# Laws of lengths with mean 1, as functions of a number uniform in (0, 1).
LAWS: Mapping[str, Callable[[TensorBase], TensorBase]] = MappingProxyType(
    {"uniform": lambda u: 2.0 * u, "exponential": lambda u: -log(u)}
)


class DynamicHMC(TrajectoryKernel):
    """Hamiltonian Monte Carlo with trajectories of random lengths [neal2011]_.

    Where a good length is known it takes fewer gradients than `NUTS`, which looks for one in each
    draw, and goes twice as far as it uses.

    Parameters
    ----------
    model, potential_fn, step_size, init_strategy, reparam
        As for `NUTS`.
    trajectory_length : float
        The mean, in units of the metric. At pi / 2, the default, draws of a Gaussian whose scales
        are known are uncorrelated; directions wider than the metric knows need more.
    law : {"uniform", "exponential"}
        Of the lengths: uniform from 0 to twice the mean, or exponential [bourabee2017]_.
    max_num_steps : int
        Leapfrog steps that a trajectory may take.
    adapt_step_size, adapt_mass_matrix, metric, target_accept_prob, inverse_mass_matrix
        As for `NUTS`.
    find_heuristic_step_size, divergence_threshold
        As for `NUTS`.

    References
    ----------
    [neal2011]_, [bourabee2017]_.

    Examples
    --------
    >>> from probtorch.infer import MCMC, DynamicHMC, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(DynamicHMC(target), num_samples=500, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(4 chains x 500 draws: x (2))
    """

    trajectory_length: float | TensorBase = tuned(default=0.5 * math.pi, between=(0.0, math.inf))
    law: str = static(default="uniform")
    max_num_steps: int = static(default=1024)

    def __post_init__(self) -> None:
        super().__post_init__()
        choice_of("DynamicHMC", "law", self.law, LAWS)
        if not (isinstance(self.max_num_steps, int) and self.max_num_steps >= 1):
            raise ArgumentError(
                "DynamicHMC(max_num_steps=...)",
                expected="an int of at least 1",
                got=f"{self.max_num_steps!r:.60}",
                fix="leave it out for 1024",
            )

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "trajectory_length": self.trajectory_length, "law": self.law}

    def step(self, key: Key, state: HMCState) -> tuple[HMCState, HMCInfo]:
        """Return ``(state, info)`` after one trajectory."""
        counter = state.counter + state.position.array.shape[0]
        length = self.trajectory_length * LAWS[self.law](uniform(key, counter))
        # Compared as floats: the quotient may not fit an integer.
        steps = clamp(ceil(length / self.step_size), min=1.0, max=float(self.max_num_steps))
        most = shift_left(wrap(np.asarray(1)), self.depth)
        return self.along(
            key, state, self.step_size, minimum(cast(steps, int64), most), counter + 1
        )
