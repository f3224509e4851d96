"""Directions and angles: sets without an edge, which no map from the line reaches evenly.

There is no bijection from R^(n-1) onto a sphere. A sampler takes a vector of n numbers instead and
looks at its direction alone: an exact augmentation, whose extra coordinate, the length, has a
density of its own. `augmented` transforms say so, and their log-determinant is what makes the
density of the direction come out right when the length is integrated out.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.transforms.transform import Transform
from probtorch.distributions.transforms.vector import last_part
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.exponentials import pow as power
from probtorch.ops.movement import squeeze
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import atan2, cos, sin
from probtorch.tensor import Tensor

__all__ = ["AngleTransform", "Normalize", "UnitVectorTransform"]

# Vectors have the density exp(-((length - CENTRE) / SPREAD)^2 / 2), up to a factor. Normal vectors
# of two or three numbers are often short, where the direction turns at each step: they diverge. So
# does, once in some thousand draws, any density with a pole at 0; here 0 is 8 nats below the top.
CENTRE, SPREAD = 3.0, 0.75


class _Augmented(Transform):
    """Vectors of which only the direction counts; their length has a density of its own."""

    domain = constraints.real_vector
    bijective = False
    augmented = True

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the log density of the vector on its ray.

        The integral of ``p(T(x)) exp(it)`` over vectors is that of p over directions.
        """
        n = x.array.shape[-1]
        z = (squeeze(_norm(x, 2.0)[1], -1) - CENTRE) / SPREAD
        return -0.5 * z * z - _log_ray(n)


@functools.cache
def _log_ray(n: int) -> float:
    """Log of the integral of r^(n - 1) exp(-((r - CENTRE) / SPREAD)^2 / 2) over r > 0."""
    # The integrand is nowhere wider than the normal's part of it, and peaks below `top`.
    peak = 0.5 * (CENTRE + math.sqrt(CENTRE**2 + 4.0 * (n - 1) * SPREAD**2))
    low, top = max(peak - 12.0 * SPREAD, 0.0), peak + 12.0 * SPREAD
    nodes, weights = np.polynomial.legendre.leggauss(100)
    r = 0.5 * (top - low) * (nodes + 1.0) + low
    logs = (n - 1) * np.log(r) - 0.5 * ((r - CENTRE) / SPREAD) ** 2
    most = np.max(logs)
    return float(most + np.log(0.5 * (top - low) * (weights @ np.exp(logs - most))))


class UnitVectorTransform(_Augmented):
    """y = x / |x|: vectors to their directions, with the length as an augmentation.

    Notes
    -----
    Densities over the sphere are with respect to its surface. The inverse gives the vector of
    length 3. At 0 the direction is that of the first coordinate.
    """

    codomain = constraints.sphere

    def _call(self, x: Tensor) -> Tensor:
        return _direction(x, 2.0)

    def _inverse(self, y: Tensor) -> Tensor:
        return y * CENTRE


class AngleTransform(_Augmented):
    """The angle, in [-pi, pi), of vectors of two numbers, with their length as an augmentation.

    Notes
    -----
    The inverse gives the vector of length 3.
    """

    codomain = constraints.circular

    def _call(self, x: Tensor) -> Tensor:
        angle = atan2(last_part(x, 1, 2), last_part(x, 0, 1))
        return squeeze(where(angle >= math.pi, -angle, angle), -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return stack([cos(y), sin(y)], -1) * CENTRE

    def forward_shape(self, shape: Shape) -> Shape:
        if not shape or shape[-1] != 2:
            raise ShapeError(
                "AngleTransform",
                expected="vectors of 2 numbers",
                got=f"shape {tuple(shape)}",
                fix="check the event shape",
            )
        return tuple(shape[:-1])

    def inverse_shape(self, shape: Shape) -> Shape:
        return (*shape, 2)


class Normalize(Transform):
    """y = x / |x|, for any norm: cheap, but not bijective, and without a density.

    Parameters
    ----------
    p : float, positive
        Of the norm, ``sum(|x|**p) ** (1 / p)``.

    Notes
    -----
    At 0 the result is the first unit vector. See `UnitVectorTransform` for a density.
    """

    domain = constraints.real_vector
    codomain = constraints.sphere
    bijective = False
    _settings = ("p",)

    def __init__(self, p: float = 2.0, cache_size: int = 0) -> None:
        if not p > 0.0:
            raise ArgumentError(
                "Normalize", expected="a p above 0", got=repr(p), fix="2 is the Euclidean norm"
            )
        self.p = float(p)

    def _call(self, x: Tensor) -> Tensor:
        return _direction(x, self.p)

    def _inverse(self, y: Tensor) -> Tensor:
        return y


def _norm(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Return where vectors are 0, and their norms; that of 0 counts as 1."""
    powers = total(x * x if p == 2.0 else power(absolute(x), p), -1, keepdim=True)
    nothing = powers == 0.0
    safe = where(nothing, 1.0, powers)
    return nothing, sqrt(safe) if p == 2.0 else power(safe, 1.0 / p)


def _direction(x: Tensor, p: float) -> Tensor:
    """Vectors divided by their norm; that of 0 is the first unit vector."""
    nothing, length = _norm(x, p)
    return where(nothing, constraints.corner(x), x / length)


explain_calls(globals())
