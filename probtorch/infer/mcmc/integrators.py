"""The leapfrog integrator and the point in phase space that it moves."""

from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.ops.foreign import native_density

__all__ = ["DensityHandle", "PhasePoint", "leapfrog"]


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

    def __call__(self, position):
        return native_density(position, self.function, self.context)


@record
class PhasePoint:
    """Position, whitened momentum, and the log density and its gradient there."""

    position: TensorBase
    momentum: TensorBase
    logdensity: TensorBase
    grad: TensorBase


def leapfrog(density, metric, point, step_size):
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
    momentum = point.momentum + half * metric.force(point.grad)
    position = point.position + step_size * metric.velocity(momentum)
    logdensity, grad = density(position)
    return PhasePoint(position, momentum + half * metric.force(grad), logdensity, grad)
