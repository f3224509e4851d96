"""A space whose metric follows the curvature of a density, and steps that conserve its volume.

The generalised leapfrog conserves it where the metric depends on the point; two of its three parts
are equations for what they return, solved by iteration. rmhmc.py is the kernel that takes such
steps, and names the sources.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace
from probtorch.infer.mcmc.integrators import Density
from probtorch.infer.mcmc.kernels.softabs import SoftAbs, softabs
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.control import while_loop
from probtorch.ops.movement import reshape, transpose
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum as total

__all__ = ["CurvedPoint", "CurvedSpace", "curved", "generalised_leapfrog", "norm"]


@record
class CurvedPoint:
    """A position and a momentum, with what is known of the density there.

    Parameters
    ----------
    position, momentum : Tensor, shape (dim,)
    logdensity : Tensor, 0-d
    grad : Tensor, shape (dim,)
    hessian : Tensor, shape (dim, dim)
        Of minus the log density.
    metric : SoftAbs
    push : Tensor, shape (dim,)
        What the momentum gained in the last half step: a first guess for the next.
    """

    position: TensorBase
    momentum: TensorBase
    logdensity: TensorBase
    grad: TensorBase
    hessian: TensorBase
    metric: SoftAbs
    push: TensorBase

    def energy(self) -> TensorBase:
        """Return minus the log density of position and momentum."""
        potential = self.metric.half_log_determinant() - self.logdensity
        return potential + self.metric.kinetic_energy(self.momentum)


# Of an equation: iterations, how far the last one led in units of the metric, and what it led to.
_Momentum: TypeAlias = tuple[TensorBase, TensorBase, TensorBase]
_Position: TypeAlias = tuple[TensorBase, TensorBase, TensorBase, CurvedPoint]


@record
class CurvedSpace:
    """What does not change on the way.

    Parameters
    ----------
    density : callable
        `Target.curved_density`.
    scale : Tensor, shape (dim,)
        Unit of each coordinate: Hessians, momenta and their metric are in these units, which
        changes nothing but which curvatures are small.
    alpha : Tensor, 0-d
        Curvatures below its inverse are softened.
    """

    density: Density
    scale: TensorBase
    alpha: TensorBase

    def metric(self, hessian: TensorBase) -> SoftAbs:
        """Return the metric of a Hessian."""
        return softabs(hessian * self._units(), self.alpha)

    def velocity(self, metric: SoftAbs, momentum: TensorBase) -> TensorBase:
        """Return dq/dt."""
        return self.scale * metric.velocity(momentum)

    def force(self, point: CurvedPoint, momentum: TensorBase) -> TensorBase:
        """Return dp/dt at another momentum: minus the derivative of the energy in the position."""
        size = momentum.array.shape[0]
        matrix = point.metric.pull(momentum) * self._units()
        _, grad = self.density(cat([point.position, reshape(matrix, (size * size,))]))
        return self.scale * grad[:size]

    def _units(self) -> TensorBase:
        size = self.scale.array.shape[0]
        return reshape(self.scale, (size, 1)) * reshape(self.scale, (1, size))


def curved(density: Density, position: TensorBase) -> tuple[TensorBase, TensorBase, TensorBase]:
    """Return log density, gradient, and Hessian of minus the log density at a position."""
    size = position.array.shape[0]
    value, grad = density(cat([position, wrap(np.zeros(size * size))]))
    found = reshape(-grad[size:], (size, size))
    return value, grad[:size], 0.5 * (found + transpose(found, 0, 1))


def norm(x: TensorBase) -> TensorBase:
    """Return the length of a vector."""
    return sqrt(total(x * x))


def generalised_leapfrog(
    space: CurvedSpace,
    point: CurvedPoint,
    step_size: TensorBase,
    tolerance: float,
    most: int,
) -> tuple[CurvedPoint, TensorBase, TensorBase]:
    """Return the point one step further, whether it was found, and how many evaluations it took.

    Parameters
    ----------
    space : CurvedSpace
    point : CurvedPoint
    step_size : Tensor, 0-d
        Negative to go back in time.
    tolerance : float
        Iterations end when one changes less than this, measured by the metric.
    most : int
        Iterations that one equation may take.

    Notes
    -----
    ``p1 = p - h/2 dH/dq(q, p1)``, ``q1 = q + h/2 (dH/dp(q, p1) + dH/dp(q1, p1))``, ``p2 = p1 - h/2
    dH/dq(q1, p1)``. Reversible and volume-preserving as far as the equations are solved.
    """
    # Plain iteration: it ends where steps are short for the metric, at the one solution near. Where
    # it does not, there mostly is none; Anderson's acceleration found others, from which the way
    # back led elsewhere.
    half = 0.5 * step_size
    none, far = wrap(np.zeros((), np.int64)), wrap(np.array(math.inf))

    def unsolved(iterations: TensorBase, error: TensorBase) -> TensorBase:
        # The error is nan from the first iteration on that left the numbers.
        return (iterations < most) & ((iterations == 0) | (error > tolerance))

    def push(carry: _Momentum) -> _Momentum:
        iterations, _, momentum = carry
        new = point.momentum + half * space.force(point, momentum)
        return iterations + 1, norm(point.metric.whitened_momentum(new - momentum)), new

    pushes, push_error, momentum = while_loop(
        lambda carry: unsolved(*carry[:2]), push, (none, far, point.momentum + point.push)
    )
    here = space.velocity(point.metric, momentum)

    def drift(carry: _Position) -> _Position:
        iterations, _, position, _ = carry
        logdensity, grad, hessian = curved(space.density, position)
        metric = space.metric(hessian)
        at = CurvedPoint(position, momentum, logdensity, grad, hessian, metric, point.push)
        new = point.position + half * (here + space.velocity(metric, momentum))
        error = norm(metric.whitened((new - position) / space.scale))
        return iterations + 1, where(metric.finite, error, math.nan), new, at

    first = none, far, point.position + step_size * here, point
    drifts, drift_error, _, end = while_loop(lambda carry: unsolved(*carry[:2]), drift, first)
    gained = half * space.force(end, momentum)
    solved = (push_error <= tolerance) & (drift_error <= tolerance)
    return replace(end, momentum=momentum + gained, push=gained), solved, pushes + drifts + 1
