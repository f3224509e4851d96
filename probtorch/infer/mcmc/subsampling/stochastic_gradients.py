"""Kernels on minibatches: gradients of some rows, no acceptance, and a bias that is told.

`StochasticGradientKernel` draws rows of the model's subsampling plate (`RowKernel`, row_kernel.py)
and gives the gradient that they say. It can be taken against the one of the same rows at a point
near the mode, where the gradient of all rows is known: what is left to chance is the difference
between two points that are close [baker2019]. `UnderdampedKernel` is one step of Langevin dynamics
with a momentum; `SGLD` (sgld.py) has none.

Nothing is accepted or rejected, so steps and noise of the gradients widen the draws. At the right
width the whitened gradient of the exact density has mean square 1 per coordinate; what is more is
noise. From that each draw has its `excess_variance`, whose mean is about the share by which the
variances are too large. `diagnose` warns of more than a tenth.

References
----------
J. Baker, P. Fearnhead, E. B. Fox, C. Nemeth, "Control variates for stochastic gradient MCMC",
Statistics and Computing 29 (2019). B. Leimkuhler, X. Shang, "Adaptive thermostats for noisy
gradient systems", SIAM Journal on Scientific Computing 38 (2016), for the splitting.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, static
from probtorch.infer.mcmc.kernel import State, setting, statistic, tuned
from probtorch.infer.mcmc.kernels.stepping import MetricKernel
from probtorch.infer.mcmc.metrics import DenseMetric
from probtorch.infer.mcmc.randomness import Key, normals
from probtorch.infer.mcmc.subsampling.row_kernel import RowKernel
from probtorch.infer.mcmc.warm_up.forms import Dense
from probtorch.infer.mcmc.warm_up.modes import mode_of
from probtorch.infer.potential import Target
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.infer.mcmc.warm_up.estimates import Spectrum

__all__ = [
    "MomentumState",
    "StochasticGradientKernel",
    "StochasticInfo",
    "UnderdampedKernel",
]

S = TypeVar("S", bound=State)


@record
class StochasticInfo:
    """What one step was made with.

    Parameters
    ----------
    lp_estimate : Tensor
        The log density, estimated from the rows of the step.
    excess_variance : Tensor
        Share by which the variances of draws are too large, as this step has it; noisy.
    diverging : Tensor, bool
        Whether the step led to where nothing is finite, so that it was not taken.
    step_size : Tensor
    n_steps : Tensor, int64
        How often the density of a batch was evaluated.
    """

    lp_estimate: TensorBase = statistic("lp_estimate")
    excess_variance: TensorBase = statistic("excess_variance")
    diverging: TensorBase = statistic("diverging", dtype=bool, combine=np.logical_or)
    step_size: TensorBase = statistic("step_size")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


class StochasticGradientKernel(MetricKernel[S], RowKernel[S]):
    """A kernel that moves by gradients of some rows.

    Parameters
    ----------
    step_size : float
        Scale of a step, in units of the metric.
    control_variates : bool
        Whether gradients are taken against those at a point near the mode.
    """

    info = StochasticInfo
    gradients = False

    # What is learnt from draws that forget slowly is too narrow: the metric is that of the mode.
    adapt_mass_matrix: bool = setting(default=False)
    step_size: float | TensorBase = tuned(default=0.2, between=(0.0, math.inf))
    control_variates: bool = static(default=True)
    # The point near the mode, and the gradient of all rows there.
    centre: TensorBase | None = dataclasses.field(default=None, init=False)
    pull: TensorBase | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(control_variates=bool(self.control_variates))

    @property
    def _controls(self) -> bool:
        return self.batch > 0 and self.control_variates

    def first_values(
        self, target: Target, state: S, spectrum: Spectrum | None, warming: bool
    ) -> Mapping[str, object]:
        """Return the point near the mode, and the metric of the curvature there."""
        mode, form = mode_of(target, state.position.array), self.form_for(target)
        values = {"centre": wrap(mode.position), "pull": wrap(mode.gradient)}
        if self.inverse_mass_matrix is not None:
            return {**values, **super().first_values(target, state, spectrum, warming)}
        if isinstance(form, Dense):
            return {**values, "metric": DenseMetric.from_inverse_mass(mode.covariance)}
        return {**values, "metric": form.of_variance(np.diag(mode.covariance))}

    def blank_values(self, dim: int, leaves: Sequence[np.ndarray]) -> Mapping[str, object]:
        """Return what is tuned, of the kind that a saved chain has."""
        nil = wrap(np.zeros(dim))
        return {**super().blank_values(dim, leaves), "centre": nil, "pull": nil}

    def resumed(self, state: S) -> S:
        """Return the state: nothing in it is of the density but an estimate."""
        return state

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "control_variates": self.control_variates}

    def estimate(
        self, key: Key, counter: TensorBase, position: TensorBase
    ) -> tuple[TensorBase, TensorBase, TensorBase]:
        """Return estimates of log density and gradient, and the first counter not used."""
        if not self.batch:
            return *self.density(position), counter
        rows = self.drawn_rows(key, counter)
        value, grad = self.density_of(position, rows)
        if self._controls:
            assert self.centre is not None and self.pull is not None
            grad = grad - self.density_of(self.centre, rows)[1] + self.pull
        return value, grad, counter + self.batch

    @property
    def evaluations(self) -> TensorBase:
        """How often a step evaluates the density."""
        return wrap(np.array(2 if self._controls else 1))

    def mean_square(self, grad: TensorBase) -> TensorBase:
        """Return the mean square of a gradient's whitened coordinates; 1 on average, and noise."""
        white = self.metric.force(grad)
        return total(white * white) / white.array.shape[0]


@record
class MomentumState:
    """What goes on from step to step.

    Parameters
    ----------
    position : Tensor, shape (dim,), float64
    momentum : Tensor, shape (dim,)
        Whitened.
    moving : Tensor, 0-d bool
        Whether the momentum has been drawn.
    friction : Tensor, 0-d
    gradient : Tensor, shape (dim,)
        The last one; none at the start if it is of rows: the first step begins without a kick.
    logdensity : Tensor, 0-d
        The last estimate.
    counter : Tensor, 0-d int64
    """

    position: TensorBase
    momentum: TensorBase
    moving: TensorBase
    friction: TensorBase
    gradient: TensorBase
    logdensity: TensorBase
    counter: TensorBase


class UnderdampedKernel(StochasticGradientKernel[MomentumState]):
    """Langevin dynamics with a momentum, by the steps B A O A B: kick, drift, friction, and back.

    Of a Gaussian whose gradients are exact the positions then have the right variances at any
    step size [leimkuhler2016, section 3]; the gradient at the end of a step serves the next one.
    """

    @property
    @abstractmethod
    def first_friction(self) -> TensorBase:
        """The friction to begin with."""

    @abstractmethod
    def rubbed(
        self, momentum: TensorBase, friction: TensorBase, noise: TensorBase
    ) -> tuple[TensorBase, TensorBase]:
        """Return momentum and friction after the middle of a step."""

    @abstractmethod
    def excess(self, mean_square: TensorBase) -> TensorBase:
        """Return the share by which variances are too large, from `mean_square` of a gradient."""

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> MomentumState:
        """Return the state at a position, whose momentum is to be drawn."""
        value, grad = self.density_of(position, wrap(np.arange(float(self.batch))))
        no, still = wrap(np.asarray(False)), 0.0 * position
        return MomentumState(
            position,
            still,
            no,
            as_tensor(self.first_friction),
            still if self.batch else grad,
            value,
            as_tensor(counter),
        )

    def step(self, key: Key, state: MomentumState) -> tuple[MomentumState, StochasticInfo]:
        """Return ``(state, info)`` after one step."""
        (dim,) = state.position.shape
        half = 0.5 * self.step_size
        fresh, noise = normals(key, state.counter, 2 * dim).reshape(2, dim)
        momentum = where(state.moving, state.momentum, fresh)
        momentum = momentum + half * self.metric.force(state.gradient)
        position = state.position + half * self.metric.velocity(momentum)
        momentum, friction = self.rubbed(momentum, state.friction, noise)
        position = position + half * self.metric.velocity(momentum)
        value, grad, counter = self.estimate(key, state.counter + 2 * dim, position)
        momentum = momentum + half * self.metric.force(grad)
        well = isfinite(value + total(grad) + total(momentum) + friction)
        # What went astray stays where it was, and begins anew.
        new = MomentumState(
            where(well, position, state.position),
            where(well, momentum, 0.0 * state.momentum),
            well,
            where(well, friction, self.first_friction),
            where(well, grad, 0.0 * state.gradient),
            where(well, value, state.logdensity),
            counter,
        )
        excess = where(well, self.excess(self.mean_square(grad)), 0.0)
        info = StochasticInfo(
            new.logdensity, excess, ~well, as_tensor(self.step_size), self.evaluations
        )
        return new, info
