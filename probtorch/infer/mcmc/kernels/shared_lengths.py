"""What ChEES-HMC and SNAPER-HMC share: walkers that learn how long trajectories should be.

All walkers take the same number of steps, drawn anew each time, as in dynamic_hmc.py. How the
criterion of a good length changes with it, each walker says of its own trajectory; `LengthTuner`
climbs by that (tuners.py).
"""

from __future__ import annotations

import math
import typing
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64, int64
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace
from probtorch.infer.mcmc.inlined import InlinedDensity
from probtorch.infer.mcmc.integrators import Density, PhasePoint, leapfrog
from probtorch.infer.mcmc.kernel import S, setting, statistic, tuned
from probtorch.infer.mcmc.kernels.hmc import (
    DIVERGENCE_THRESHOLD,
    acceptance,
    energy_drop,
    trajectory,
)
from probtorch.infer.mcmc.kernels.walkers import WalkingKernel, row_of, with_row
from probtorch.infer.mcmc.metrics import Metric
from probtorch.infer.mcmc.randomness import Key, normals, uniform
from probtorch.infer.mcmc.warm_up.tuners import LengthTuner
from probtorch.ops.arithmetic import ceil, clamp, where
from probtorch.ops.control import while_loop
from probtorch.ops.indexing import index_put
from probtorch.ops.reduction import any as any_
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.infer.mcmc.kernels.hmc import HMCState

__all__ = ["LengthInfo", "LengthKernel"]

# Steps that a trajectory may take.
MOST_STEPS = 1024


@record
class LengthInfo:
    """What the trajectory of each walker came to; all of shape (walkers,).

    Parameters
    ----------
    accept_prob : Tensor
    length_slope : Tensor
        Of the criterion, by the logarithm of the length.
    diverging : Tensor, bool
    energy_error, lp, step_size : Tensor
    n_steps : Tensor, int64
        Gradients.
    """

    accept_prob: TensorBase = statistic("acceptance_rate")
    length_slope: TensorBase = statistic()
    diverging: TensorBase = statistic("diverging", dtype=bool, combine=np.logical_or)
    energy_error: TensorBase = statistic("energy_error")
    lp: TensorBase = statistic("lp")
    step_size: TensorBase = statistic("step_size")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


# Which walker is next; where the trajectories of those before it ended, their drops and steps.
_Moves: TypeAlias = tuple[TensorBase, PhasePoint, TensorBase, TensorBase]
# Steps so far, those of each walker, their drops of energy, and where they are.
_Strides: TypeAlias = tuple[TensorBase, TensorBase, TensorBase, PhasePoint]


def trajectories(
    density: Density, metric: Metric, starts: PhasePoint, step_size: TensorBase, steps: TensorBase
) -> tuple[TensorBase, TensorBase, PhasePoint]:
    """Return what `trajectory` does for each walker, whose points are rows.

    One after the other, as suits a processor, or, by a density that takes rows, all in step: those
    that have diverged stand and wait.
    """
    members = starts.position.shape[0]
    if isinstance(density, InlinedDensity):
        return _in_step(density, metric, starts, step_size, steps)

    def move(carry: _Moves) -> _Moves:
        k, ends, drops, taken = carry
        count, drop, end = trajectory(density, metric, row_of(starts, k), step_size, steps)
        ends = with_row(ends, k, end)
        return k + 1, ends, index_put(drops, (k,), drop), index_put(taken, (k,), count)

    none = wrap(np.array(0)), starts, wrap(np.zeros(members)), wrap(np.zeros(members, np.int64))
    _, ends, drops, taken = while_loop(lambda carry: carry[0] < members, move, none)
    return taken, drops, ends


def _in_step(
    density: InlinedDensity,
    metric: Metric,
    starts: PhasePoint,
    step_size: TensorBase,
    steps: TensorBase,
) -> tuple[TensorBase, TensorBase, PhasePoint]:
    """Trajectories of all walkers at once."""
    members = starts.position.shape[0]
    energy = _kinetic_energies(starts.momentum) - starts.logdensity

    def going(carry: _Strides) -> TensorBase:
        k, _, drops, _ = carry
        return (k < steps) & any_(drops > -DIVERGENCE_THRESHOLD)

    def advance(carry: _Strides) -> _Strides:
        k, taken, drops, points = carry
        moving = drops > -DIVERGENCE_THRESHOLD
        row = moving.reshape(members, 1)
        new = leapfrog(density, metric, points, step_size)
        drop = energy_drop(energy, _kinetic_energies(new.momentum) - new.logdensity)
        points = PhasePoint(
            where(row, new.position, points.position),
            where(row, new.momentum, points.momentum),
            where(moving, new.logdensity, points.logdensity),
            where(row, new.grad, points.grad),
        )
        return k + 1, taken + moving.long(), where(moving, drop, drops), points

    none = wrap(np.array(0)), wrap(np.zeros(members, np.int64)), wrap(np.zeros(members)), starts
    _, taken, drops, ends = while_loop(going, advance, none)
    return taken, drops, ends


def _kinetic_energies(momenta: TensorBase) -> TensorBase:
    """The `kinetic_energy` of each row."""
    return 0.5 * total(momenta * momenta, 1)


class LengthKernel(WalkingKernel[S]):
    """Hamiltonian Monte Carlo of many chains that learn how long trajectories should be.

    Parameters
    ----------
    trajectory_length : float
        The mean, to begin with, or to keep where the step size is; lengths are uniform from 0 to
        twice as much.
    """

    info = LengthInfo

    # 0.651 is the optimal rate for HMC in high dimension; the harmonic mean is below the plain one.
    target_accept_prob: float = setting(default=0.651, between=(0.0, 1.0))
    trajectory_length: float | TensorBase = tuned(default=1.0, between=(0.0, math.inf))

    def tuner(self) -> LengthTuner:
        """Return what tunes step size and length, as an ensemble begins with it."""
        return LengthTuner.around(
            self.step_size, float(self.trajectory_length), self.target_accept_prob, MOST_STEPS
        )

    @abstractmethod
    def slopes(
        self, state: S, ends: PhasePoint, weights: TensorBase, time: TensorBase
    ) -> TensorBase:
        """Return how the criterion changes with the logarithm of the length, (walkers,).

        Up to a factor that all walkers share; pure, in tensor ops.

        Parameters
        ----------
        state : record
            Where trajectories began.
        ends : PhasePoint
            Where they ended; a row for each walker.
        weights : Tensor, shape (walkers,)
            Their acceptances.
        time : Tensor, 0-d
            Their length.
        """

    def after(self, state: S) -> S:
        """Return the state with what else it knows brought up to date."""
        return state

    def whitened(self, positions: TensorBase, weights: TensorBase) -> TensorBase:
        """Return positions in the metric's coordinates, around their weighted mean."""
        reached = where(weights.reshape(-1, 1) > 0.0, positions, 0.0)
        centre = total(weights.reshape(-1, 1) * reached, 0) / (total(weights) + 1e-300)
        return (positions - centre) / self.metric.scale

    def step(self, key: Key, state: S) -> tuple[S, LengthInfo]:
        """Return ``(state, info)`` after a trajectory of each walker."""
        now = typing.cast("HMCState", state)
        members, dim = now.position.shape
        momenta = normals(key, state.counter, members * dim).reshape(members, dim)
        counter = state.counter + members * dim
        length = 2.0 * self.trajectory_length * uniform(key, counter)
        # Compared as floats: the quotient may not fit an integer.
        steps = cast(clamp(ceil(length / self.step_size), min=1.0, max=float(MOST_STEPS)), int64)

        begin = PhasePoint(now.position, momenta, now.logdensity, now.grad)
        taken, drops, ends = trajectories(self.density, self.metric, begin, self.step_size, steps)

        accept_prob, _ = acceptance(drops)
        diverging = ~(drops > -DIVERGENCE_THRESHOLD)
        drawn = uniform(key, counter + 1 + wrap(np.arange(members)))
        accepted = (drawn < accept_prob) & ~diverging
        row = accepted.reshape(members, 1)
        new = replace(
            state,
            position=where(row, ends.position, now.position),
            logdensity=where(accepted, ends.logdensity, now.logdensity),
            grad=where(row, ends.grad, now.grad),
            counter=counter + (1 + members),
        )
        time = cast(steps, float64) * self.step_size
        info = LengthInfo(
            accept_prob,
            self.slopes(state, ends, accept_prob, time),
            diverging,
            where(accepted, -drops, 0.0),
            new.logdensity,
            self.step_size + wrap(np.zeros(members)),
            taken,
        )
        return self.after(new), info
