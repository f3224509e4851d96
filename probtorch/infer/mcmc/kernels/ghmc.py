"""Generalised Hamiltonian Monte Carlo: short trajectories whose momentum goes on from draw to draw.

Momentum is refreshed in part before each trajectory, and turned round where one is rejected. What
decides about acceptance is not drawn anew either: it moves on steadily, so that rejections come in
clusters and the chain walks long stretches in between without turning.

References
----------
A. M. Horowitz, "A generalized guided Monte Carlo algorithm", Physics Letters B 268 (1991). R. M.
Neal, "Non-reversibly updating a uniform [0,1] value for Metropolis accept/reject decisions",
arXiv:2001.11950 (2020). M. D. Hoffman, P. Sountsov, "Tuning-free generalized Hamiltonian Monte
Carlo", AISTATS (2022), for one step at a time and its settings.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.infer.mcmc.integrators import PhasePoint, leapfrog
from probtorch.infer.mcmc.kernel import setting, statistic, tuned
from probtorch.infer.mcmc.kernels.hmc import energy_drop
from probtorch.infer.mcmc.kernels.random_walk import accept_probability
from probtorch.infer.mcmc.kernels.stepping import SteppingKernel
from probtorch.infer.mcmc.metrics import kinetic_energy, sample_momentum
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.ops.arithmetic import floor, sqrt, where
from probtorch.ops.exponentials import exp, log

__all__ = ["GHMC", "GHMCInfo", "GHMCState", "onwards"]


@record
class GHMCState:
    """What goes on from draw to draw.

    Parameters
    ----------
    position : Tensor, shape (dim,), float64
    momentum : Tensor, shape (dim,)
        Whitened.
    level : Tensor, 0-d
        In [-1, 1): a trajectory is accepted if its magnitude is below the ratio of densities.
    moving : Tensor, 0-d bool
        Whether momentum and level have been drawn.
    logdensity : Tensor, 0-d
    grad : Tensor, shape (dim,)
    counter : Tensor, 0-d int64
    """

    position: TensorBase
    momentum: TensorBase
    level: TensorBase
    moving: TensorBase
    logdensity: TensorBase
    grad: TensorBase
    counter: TensorBase


@record
class GHMCInfo:
    """What one trajectory came to; `energy` is that of the new state with its momentum."""

    accept_prob: TensorBase = statistic("acceptance_rate")
    energy: TensorBase = statistic("energy")
    lp: TensorBase = statistic("lp")
    step_size: TensorBase = statistic("step_size")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


def onwards(level: TensorBase, drift: TensorBase | float) -> TensorBase:
    """Return a level of acceptance moved on, around the circle [-1, 1), on which it is uniform."""
    turned = level + 1.0 + drift
    return turned - 2.0 * floor(0.5 * turned) - 1.0


class GHMC(SteppingKernel[GHMCState]):
    """Generalised Hamiltonian Monte Carlo [horowitz1991]_: one gradient per draw.

    Like `MALA` it takes one step at a time; but the momentum is kept, but for a share, so that the
    chain walks on instead of wandering about. As all chains do the same at the same time, it suits
    many of them.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`.
    step_size : float
        To begin with, or to keep.
    momentum_length : float
        How far the momentum is remembered, in units of the metric: after steps of that length in
        all, e of it is left.
    drift : float, in (0, 1)
        By how much the level of acceptance moves on in each step [neal2020]_.
    adapt_step_size, adapt_mass_matrix, find_heuristic_step_size : bool
        What warm-up tunes, as for `NUTS`.
    target_accept_prob : float, in (0, 1)
        Acceptance that the step size is tuned to. Rejections turn the chain round, so it is high.
    metric, inverse_mass_matrix
        As for `NUTS`.

    References
    ----------
    [horowitz1991]_, [neal2020]_, [hoffman2022]_.

    Examples
    --------
    >>> from probtorch.infer import GHMC, MCMC, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(GHMC(target), num_samples=2000, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(4 chains x 2000 draws: x (2))
    """

    info = GHMCInfo

    target_accept_prob: float = setting(default=0.9, between=(0.0, 1.0))
    momentum_length: float | TensorBase = tuned(default=1.0, between=(0.0, math.inf))
    drift: float | TensorBase = tuned(default=0.05, between=(0.0, 1.0))

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> GHMCState:
        """Return the state at a position, whose momentum is to be drawn."""
        logdensity, grad = self.density(position)
        zero, no = wrap(np.zeros(())), wrap(np.asarray(False))
        return GHMCState(position, 0.0 * position, zero, no, logdensity, grad, as_tensor(counter))

    def step(self, key: Key, state: GHMCState) -> tuple[GHMCState, GHMCInfo]:
        """Return ``(state, info)`` after one leapfrog step, accepted or not."""
        (dim,) = state.position.shape
        kept = exp(-self.step_size / self.momentum_length)
        noise = sample_momentum(key, state.counter, dim)
        refreshed = kept * state.momentum + sqrt(1.0 - kept * kept) * noise
        momentum = where(state.moving, refreshed, noise)
        drawn = 2.0 * uniform(key, state.counter + dim) - 1.0
        level = where(state.moving, onwards(state.level, self.drift), drawn)

        start = PhasePoint(state.position, momentum, state.logdensity, state.grad)
        end = leapfrog(self.density, self.metric, start, self.step_size)
        energy = kinetic_energy(momentum) - state.logdensity
        drop = energy_drop(energy, kinetic_energy(end.momentum) - end.logdensity)
        magnitude = where(level < 0.0, -level, level)
        accepted = log(magnitude) < drop
        new = GHMCState(
            where(accepted, end.position, state.position),
            where(accepted, end.momentum, -momentum),
            # As a coordinate of the joint law this makes the map from state to state keep volume.
            where(accepted, level * exp(-where(accepted, drop, 0.0)), level),
            state.moving | ~state.moving,
            where(accepted, end.logdensity, state.logdensity),
            where(accepted, end.grad, state.grad),
            state.counter + (dim + 1),
        )
        info = GHMCInfo(
            accept_probability(drop),
            energy - where(accepted, drop, 0.0),
            new.logdensity,
            self.step_size,
            wrap(np.array(1)),
        )
        return new, info
