"""Metropolis-adjusted Langevin trajectories: a momentum that is rubbed on its way, then one test.

Between the leapfrog steps of a trajectory the momentum is refreshed in part, as in Langevin
dynamics with friction. What is tested at the end is the sum of the energy errors of the leapfrog
steps alone: the refreshments leave the law of the momentum as it is, there and back. With friction
0 it is Hamiltonian Monte Carlo, and a single step is MALA.

References
----------
L. Riou-Durand, J. Vogrinc, "Metropolis adjusted Langevin trajectories: a robust alternative to
Hamiltonian Monte Carlo", arXiv:2202.13230 (2022), algorithm 1.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from probtorch.core.arguments import count_of
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import int64
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import static
from probtorch.infer.mcmc.integrators import PhasePoint, leapfrog
from probtorch.infer.mcmc.kernel import tuned
from probtorch.infer.mcmc.kernels.hmc import (
    HMCInfo,
    HMCState,
    TrajectoryKernel,
    acceptance,
    energy_drop,
)
from probtorch.infer.mcmc.metrics import kinetic_energy, sample_momentum
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.ops.arithmetic import clamp, minimum, sqrt, where
from probtorch.ops.comparisons import shift_left
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp, expm1

__all__ = ["MALT"]

# Steps taken, the energy lost in all of them, and where they led.
_Way: TypeAlias = tuple[TensorBase, TensorBase, PhasePoint]


class MALT(TrajectoryKernel):
    """Metropolis-adjusted Langevin trajectories [rioudurand2022]_.

    As `HMC`, but for a friction that makes all directions of the posterior forget: no length is a
    multiple of anyone's period, so the length need not be drawn at random, and one that is too long
    costs gradients and no precision.

    Parameters
    ----------
    model, potential_fn, step_size, init_strategy, reparam
        As for `NUTS`.
    trajectory_length : float
        Step size times number of steps, in units of the metric.
    friction : float
        How fast the momentum is forgotten on the way: of a momentum, ``exp(-friction * length)`` is
        left. At 2 a Gaussian of the metric's own scales is damped critically.
    max_num_steps : int
        Leapfrog steps that a trajectory may take.
    adapt_step_size, adapt_mass_matrix, metric, target_accept_prob, inverse_mass_matrix
        As for `NUTS`.
    find_heuristic_step_size, divergence_threshold
        As for `NUTS`.

    References
    ----------
    [rioudurand2022]_.

    Examples
    --------
    >>> from probtorch.infer import MALT, MCMC, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(MALT(target), num_samples=500, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(4 chains x 500 draws: x (2))
    """

    trajectory_length: float | TensorBase = tuned(default=2.0, between=(0.0, math.inf))
    friction: float | TensorBase = tuned(default=0.3, between=(0.0, math.inf))
    max_num_steps: int = static(default=1024)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(max_num_steps=count_of(self.name, "max_num_steps", self.max_num_steps))

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        own = {"trajectory_length": self.trajectory_length, "friction": self.friction}
        return {**super().attrs(), **own}

    def step(self, key: Key, state: HMCState) -> tuple[HMCState, HMCInfo]:
        """Return ``(state, info)`` after one trajectory, accepted at its end or not."""
        (dim,) = state.position.shape
        # Compared as floats: the quotient may not fit an integer.
        steps = clamp(
            self.trajectory_length / self.step_size, min=1.0, max=float(self.max_num_steps)
        )
        most = minimum(cast(steps, int64), shift_left(wrap(np.asarray(1)), self.depth))
        rate = self.friction * self.step_size
        kept, fresh = exp(-rate), sqrt(-expm1(-2.0 * rate))
        first = state.counter + 1

        def going(carry: _Way) -> TensorBase:
            taken, drop, _ = carry
            return (taken < most) & (drop > -self.divergence_threshold)

        def advance(carry: _Way) -> _Way:
            taken, drop, point = carry
            # The momentum that was drawn is refreshed, so much, before each step but the first.
            noise = sample_momentum(key, first + taken * dim, dim)
            momentum = where(taken > 0, kept * point.momentum + fresh * noise, point.momentum)
            start = PhasePoint(point.position, momentum, point.logdensity, point.grad)
            energy = kinetic_energy(momentum) - point.logdensity
            point = leapfrog(self.density, self.metric, start, self.step_size)
            gain = energy_drop(energy, kinetic_energy(point.momentum) - point.logdensity)
            return taken + 1, drop + gain, point

        drawn = sample_momentum(key, first, dim)
        start = PhasePoint(state.position, drawn, state.logdensity, state.grad)
        zero = wrap(np.zeros((), np.int64)), wrap(np.zeros(()))
        taken, drop, end = while_loop(going, advance, (*zero, start))
        accept_prob, accept_symmetric = acceptance(drop)
        diverging = ~(drop > -self.divergence_threshold)
        accepted = (uniform(key, state.counter) < accept_prob) & ~diverging
        new = HMCState(
            where(accepted, end.position, state.position),
            where(accepted, end.logdensity, state.logdensity),
            where(accepted, end.grad, state.grad),
            first + taken * dim,
        )
        info = HMCInfo(
            accept_prob,
            accept_symmetric,
            diverging,
            # Of what is kept: a rejected end is not where the chain is.
            kinetic_energy(where(accepted, end.momentum, drawn)) - new.logdensity,
            # What the steps came to; refreshments, which are exact, change the energy besides.
            where(accepted, -drop, 0.0),
            new.logdensity,
            self.step_size,
            taken,
            0 * taken,
            diverging & ~diverging,
        )
        return new, info
