"""The leapfrog integrator and the point in phase space that it moves.

A trajectory is built from steps of an *integrator*, a record that is called as ``integrator(
density, metric, point, step_size)`` and returns a `IntegratorStep`. `FixedSteps` takes one
leapfrog step; adaptive_steps.py has another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.infer.mcmc.metrics import Metric, kinetic_energy
from probtorch.ops.foreign import native_density

if TYPE_CHECKING:
    from probtorch.compiler.density import DensityContext

__all__ = [
    "Density",
    "DensityHandle",
    "FixedSteps",
    "Integrator",
    "IntegratorStep",
    "PhasePoint",
    "leapfrog",
]

# From a position to the log density and its gradient there.
Density: TypeAlias = Callable[[TensorBase], tuple[TensorBase, TensorBase]]


@record
class DensityHandle:
    """A native log density by its address: ``handle(q) -> (log density, gradient)``.

    The program that calls it depends on the dimension only, so one compiled sampler serves every
    model of that size.

    Parameters
    ----------
    function, context : Tensor, 0-d int64
        Address of ``double f(const double *q, double *grad, void *context)`` and of its context.
    """

    function: TensorBase
    context: TensorBase

    @classmethod
    def of(cls, context: DensityContext) -> DensityHandle:
        """Return the density of a context, which has to live as long."""
        words = context.function, context.address
        return cls(*(wrap(np.asarray(word, np.int64)) for word in words))

    def __call__(self, position: TensorBase) -> tuple[TensorBase, TensorBase]:
        return native_density(position, self.function, self.context)


@record
class PhasePoint:
    """Position, whitened momentum, and the log density and its gradient there.

    `force` is the metric's of that gradient, where it is kept; then a step from here does not look
    at the gradient.
    """

    position: TensorBase
    momentum: TensorBase
    logdensity: TensorBase
    grad: TensorBase
    force: TensorBase | None = None


def leapfrog(
    density: Density, metric: Metric, point: PhasePoint, step_size: TensorBase
) -> PhasePoint:
    """Return the point one leapfrog step further; a negative step size goes back in time.

    Parameters
    ----------
    density : callable
        ``density(position) -> (log density, gradient)``.
    metric : DiagonalMetric or DenseMetric
    point : PhasePoint
    step_size : Tensor, 0-d

    Notes
    -----
    Reversible, and preserves volume (Neal 2011, section 2.3); the energy error over a fixed time is
    of order step_size^2.
    """
    half = 0.5 * step_size
    force = metric.force(point.grad) if point.force is None else point.force
    momentum = point.momentum + half * force
    position = point.position + step_size * metric.velocity(momentum)
    logdensity, grad = density(position)
    force = metric.force(grad)
    kept = None if point.force is None else force
    return PhasePoint(position, momentum + half * force, logdensity, grad, kept)


@record
class IntegratorStep:
    """What came of one step.

    Parameters
    ----------
    point : PhasePoint
    energy : Tensor, 0-d
        There.
    tried_energy : Tensor, 0-d
        Where the step led as it was tried first: what the step size is tuned by.
    gradients : Tensor, 0-d int64
        How many were evaluated.
    accurate : Tensor, 0-d bool
        Whether it kept to the integrator's own tolerance; if not, the trajectory diverges here.
    reversible : Tensor, 0-d bool
        Whether the step back from `point` leads to where this one began; if not, the trajectory
        must end before it.
    """

    point: PhasePoint
    energy: TensorBase
    tried_energy: TensorBase
    gradients: TensorBase
    accurate: TensorBase
    reversible: TensorBase


class Integrator(Protocol):
    """Takes one step from a point; a record, so that kernels can hold it."""

    def __call__(
        self, density: Density, metric: Metric, point: PhasePoint, step_size: TensorBase
    ) -> IntegratorStep:
        """Return the `IntegratorStep` from a point; a negative step size goes back in time."""


@record
class FixedSteps:
    """One leapfrog step, whatever its error."""

    def __call__(
        self, density: Density, metric: Metric, point: PhasePoint, step_size: TensorBase
    ) -> IntegratorStep:
        """Return the `IntegratorStep` from a point; a negative step size goes back in time."""
        end = leapfrog(density, metric, point, step_size)
        energy = kinetic_energy(end.momentum) - end.logdensity
        yes = wrap(np.asarray(True))
        return IntegratorStep(end, energy, energy, wrap(np.asarray(1)), yes, yes)
