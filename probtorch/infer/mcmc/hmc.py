"""Hamiltonian Monte Carlo, and the state and info that all its kin share.

A kernel is a frozen record with pure `init` and `step`, written once in tensor ops: it runs eagerly
under a debugger, and chunk.py compiles it. All it knows of a model is a `density`. Read
integrators.py and metrics.py first; momenta are whitened as explained there.

References
----------
R. M. Neal, "MCMC using Hamiltonian dynamics", Handbook of Markov Chain Monte Carlo (2011), chapter
5.
"""

from typing import Any

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import int64
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, static
from probtorch.infer.mcmc.integrators import PhasePoint, leapfrog
from probtorch.infer.mcmc.metrics import kinetic_energy, sample_momentum
from probtorch.infer.mcmc.randomness import uniform
from probtorch.ops.control import while_loop
from probtorch.ops.elementwise import abs as absolute
from probtorch.ops.elementwise import clamp, exp, isfinite, minimum, shift_left, where

__all__ = ["DIVERGENCE_THRESHOLD", "HMCInfo", "HMCKernel", "HMCState", "acceptance", "energy_drop"]

# An energy error this large means that the integrator has left the level set [hoffman2014, section
# 3.1.1]; Stan's value.
DIVERGENCE_THRESHOLD = 1000.0
# Doublings of a trajectory that is not limited: more than any can have.
DEEPEST = 30


@record
class HMCState:
    """What the next transition needs.

    Parameters
    ----------
    position : Tensor, shape (dim,), float64
    logdensity : Tensor, 0-d
    grad : Tensor, shape (dim,)
    counter : Tensor, 0-d int64
        The first random counter not used yet.
    """

    position: TensorBase
    logdensity: TensorBase
    grad: TensorBase
    counter: TensorBase


@record
class HMCInfo:
    """What happened in one transition; all 0-d tensors.

    Parameters
    ----------
    accept_prob : Tensor
        Mean over the trajectory of min(1, exp(-energy error)); with adaptive steps the error is
        that of each step as it was tried first.
    accept_symmetric : Tensor
        Mean over the trajectory of the symmetric statistic, what the step size is tuned by; see
        `acceptance`.
    diverging : Tensor, bool
    energy : Tensor
        Hamiltonian of the new state with the momentum it was reached with.
    energy_error : Tensor
        `energy` minus that of the start of the trajectory.
    lp : Tensor
        Log density of the new state.
    step_size : Tensor
        What the trajectory was integrated with.
    n_steps : Tensor, int64
        Leapfrog steps, each one gradient, those tried in vain too.
    tree_depth : Tensor, int64
        Doublings; 0 for plain HMC.
    reached_max_treedepth : Tensor, bool
        Whether the trajectory was cut off before it turned.
    """

    accept_prob: TensorBase
    accept_symmetric: TensorBase
    diverging: TensorBase
    energy: TensorBase
    energy_error: TensorBase
    lp: TensorBase
    step_size: TensorBase
    n_steps: TensorBase
    tree_depth: TensorBase
    reached_max_treedepth: TensorBase


def energy_drop(start, energy):
    """Return ``start - energy``, and -inf where the energy is nan or infinite.

    An infinite log density counts as a divergence, too: a chain that reached a pole would never
    leave it.
    """
    return where(isfinite(energy), start - energy, -np.inf)


def acceptance(drop):
    """Return the acceptance of a point by its `energy_drop`, and its symmetric statistic.

    The first is ``min(1, exp(drop))``; the second ``2 min(1, exp(drop)) / (1 + exp(drop))``, which
    does not change if the trajectory is walked the other way. In equilibrium both have the same
    mean; the second varies less, and a step size that is too small cannot hide behind drops of
    the energy on the way into the typical set.
    """
    smaller = exp(-absolute(drop))
    return where(drop < 0.0, smaller, 1.0), 2.0 * smaller / (1.0 + smaller)


@record
class HMCKernel:
    """Hamiltonian Monte Carlo with trajectories of a fixed length [neal2011]_.

    Parameters
    ----------
    density : callable
        ``density(position) -> (log density, gradient)``; a `DensityHandle` in compiled programs.
    step_size : Tensor, 0-d float64
    metric : DiagonalMetric or DenseMetric
    length : Tensor, 0-d float64
        Duration of a trajectory, the step size times the number of steps; read where `num_steps` is
        0.
    num_steps : int
        A fixed number of leapfrog steps, or 0.
    jitter : float, in [0, 1)
        Each trajectory has its own step size, uniform within this share of `step_size`: against
        periodic orbits.
    max_num_steps : int
        Bound on the number of steps, for trajectories whose step size has become tiny.
    divergence_threshold : float
    """

    density: Any
    step_size: TensorBase
    metric: Any
    length: TensorBase
    num_steps: int = static(default=0)
    jitter: float = static(default=0.0)
    max_num_steps: int = static(default=1024)
    divergence_threshold: float = static(default=DIVERGENCE_THRESHOLD)

    def init(self, position, counter=0):
        """Return the state at a position, a float64 tensor of shape (dim,)."""
        logdensity, grad = self.density(position)
        return HMCState(position, logdensity, grad, as_tensor(counter))

    def step(self, key, state, depth=DEEPEST):
        """Return ``(HMCState, HMCInfo)`` after one transition; pure in its arguments.

        Parameters
        ----------
        key : Key
        state : HMCState
        depth : int or Tensor, 0-d int64
            The trajectory has at most ``2**depth`` steps, where its length is not given in steps.
        """
        dim = state.position._data.shape[0]
        momentum = sample_momentum(key, state.counter, dim)
        counter = state.counter + dim
        jittered = 1.0 + self.jitter * (2.0 * uniform(key, counter) - 1.0)
        step_size = self.step_size * jittered
        accept_draw = uniform(key, counter + 1)
        steps = self._steps(step_size, depth)
        start = PhasePoint(state.position, momentum, state.logdensity, state.grad)
        energy = kinetic_energy(momentum) - state.logdensity

        def going(carry):
            taken, drop, _ = carry
            return (taken < steps) & (drop > -self.divergence_threshold)

        def advance(carry):
            taken, _, point = carry
            point = leapfrog(self.density, self.metric, point, step_size)
            drop = energy_drop(energy, kinetic_energy(point.momentum) - point.logdensity)
            return taken + 1, drop, point

        zero = wrap(np.zeros((), np.int64)), wrap(np.zeros(()))
        taken, drop, end = while_loop(going, advance, (*zero, start))
        accept_prob, accept_symmetric = acceptance(drop)
        diverging = ~(drop > -self.divergence_threshold)
        accepted = (accept_draw < accept_prob) & ~diverging
        new = HMCState(
            where(accepted, end.position, state.position),
            where(accepted, end.logdensity, state.logdensity),
            where(accepted, end.grad, state.grad),
            counter + 2,
        )
        error = where(accepted, -drop, 0.0)
        never = diverging & ~diverging
        info = HMCInfo(
            accept_prob,
            accept_symmetric,
            diverging,
            energy + error,
            error,
            new.logdensity,
            step_size,
            taken,
            0 * taken,
            never,
        )
        return new, info

    def _steps(self, step_size, depth):
        if self.num_steps:
            return wrap(np.asarray(self.num_steps))
        # Compared as floats: the quotient may not fit an integer.
        steps = clamp(self.length / step_size, min=1.0, max=float(self.max_num_steps))
        return minimum(cast(steps, int64), shift_left(wrap(np.asarray(1)), depth))
