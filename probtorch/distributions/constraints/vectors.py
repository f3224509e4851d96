"""Sets of vectors: simplexes, ordered vectors, spheres, vectors that sum to nothing."""

from __future__ import annotations

import functools

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.distributions.constraints.base import Constraint, named
from probtorch.distributions.constraints.discrete import corner
from probtorch.distributions.constraints.intervals import GreaterThan, Interval
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.comparisons import ge, gt, le, logical_and
from probtorch.ops.movement import slice_
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "L1Ball",
    "OrderedVector",
    "OrderedWithin",
    "PositiveDefiniteCirculantVector",
    "PositiveOrderedVector",
    "Simplex",
    "Sphere",
    "ZeroSum",
    "circulant_spectrum",
    "l1_ball",
    "ordered_vector",
    "ordered_within",
    "positive_definite_circulant_vector",
    "positive_ordered_vector",
    "simplex",
    "slack",
    "sphere",
    "zero_sum",
]


class Simplex(Constraint):
    """Nonnegative vectors that add up to 1, within the rounding of a sum of that many terms."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        inside = every(ge(value, 0.0), -1)
        return logical_and(inside, le(absolute(total(value, -1) - 1.0), slack(value)))

    def interior(self, value: Tensor) -> float | Tensor:
        return 1.0 / value.array.shape[-1]


class OrderedVector(Constraint):
    """Strictly increasing vectors."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return every(gt(_from(value, 1), _until(value, -1)), -1)

    def interior(self, value: Tensor) -> float | Tensor:
        return wrap(np.arange(1, value.array.shape[-1] + 1, dtype=value.array.dtype))


class PositiveOrderedVector(OrderedVector):
    """Strictly increasing vectors of positive numbers."""

    def check(self, value: Tensor) -> Tensor:
        return logical_and(super().check(value), every(gt(value, 0.0), -1))


class OrderedWithin(OrderedVector):
    """Strictly increasing vectors of numbers in an interval or above a bound.

    Parameters
    ----------
    base_constraint : Interval or GreaterThan
        Of each number. Bounds that are tensors have a last dim of 1.
    """

    def __init__(self, base_constraint: Interval | GreaterThan) -> None:
        self.base_constraint = base_constraint

    def check(self, value: Tensor) -> Tensor:
        inside = every(self.base_constraint.check(value), -1)
        return logical_and(super().check(value), inside)

    def interior(self, value: Tensor) -> float | Tensor:
        size = value.array.shape[-1]
        steps = value.new_tensor(np.arange(1, size + 1) / (size + 1.0))
        base = self.base_constraint
        if isinstance(base, Interval):
            steps = steps * (base.upper_bound - base.lower_bound)
        return steps + base.lower_bound


class Sphere(Constraint):
    """Vectors of Euclidean length 1."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        length = total(value * value, -1)
        return le(absolute(length - 1.0), slack(value))

    def interior(self, value: Tensor) -> float | Tensor:
        return corner(value)


class L1Ball(Constraint):
    """Vectors whose absolute values add up to at most 1."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return le(total(absolute(value), -1), 1.0 + slack(value))

    def interior(self, value: Tensor) -> float | Tensor:
        return 0.0


class PositiveDefiniteCirculantVector(Constraint):
    """First rows of circulant matrices that are positive definite.

    Parameters
    ----------
    size : int, optional
        Length of the row. Unconstrained space has ``size // 2 + 1`` numbers, which leave it open
        whether a row is even or odd: without a size it is odd.
    """

    event_dim = 1

    def __init__(self, size: int | None = None) -> None:
        self.size = size

    def check(self, value: Tensor) -> Tensor:
        n = value.array.shape[-1]
        back = value[..., as_tensor(-np.arange(n) % n)]
        even = every(le(absolute(value - back), 1e-6 * absolute(value)), -1)
        positive = every(gt(value @ value.new_tensor(circulant_spectrum(n)), 0.0), -1)
        return logical_and(even, positive)

    def interior(self, value: Tensor) -> float | Tensor:
        return corner(value)


@functools.cache
def circulant_spectrum(n: int) -> np.ndarray:
    """From the first row of a circulant matrix to its eigenvalues, one for each order."""
    turns = np.outer(np.arange(n), np.arange(n // 2 + 1)) % n
    return np.cos(2.0 * np.pi * turns / n)


class ZeroSum(Constraint):
    """Arrays whose sums along each of the last `event_dim` dims are 0."""

    def __init__(self, event_dim: int = 1) -> None:
        self.event_dim = event_dim

    def check(self, value: Tensor) -> Tensor:
        inside: Tensor | None = None
        for d in range(1, self.event_dim + 1):
            size = total(absolute(value), -d, True)
            near = le(absolute(total(value, -d, True)), (size + 1.0) * slack(value))
            rest = tuple(range(-self.event_dim, 0))
            near = every(near, rest)
            inside = near if inside is None else logical_and(inside, near)
        assert inside is not None  # there is a dim to sum over
        return inside

    def interior(self, value: Tensor) -> float | Tensor:
        return 0.0

    def _fields(self) -> dict[str, object]:
        return {"event_dim": self.event_dim}


def _from(x: Tensor, start: int) -> Tensor:
    """x[..., start:] of the last dim."""
    shape = x.array.shape
    return slice_(x, (*((0, 1, n) for n in shape[:-1]), (start, 1, max(shape[-1] - start, 0))))


def _until(x: Tensor, stop: int) -> Tensor:
    """x[..., :stop] of the last dim, for a negative stop."""
    shape = x.array.shape
    return slice_(x, (*((0, 1, n) for n in shape[:-1]), (0, 1, max(shape[-1] + stop, 0))))


def slack(value: Tensor) -> float:
    """How far a sum along the last dim may be off: rounding, or data written to 6 digits."""
    dtype, size = value.array.dtype, value.array.shape[-1]
    eps = float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
    return max(1e-6, (64 + size) * eps)


simplex = named("simplex", Simplex())
ordered_vector = named("ordered_vector", OrderedVector())
ordered_within = OrderedWithin
positive_ordered_vector = named("positive_ordered_vector", PositiveOrderedVector())
sphere = named("sphere", Sphere())
l1_ball = named("l1_ball", L1Ball())
positive_definite_circulant_vector = named(
    "positive_definite_circulant_vector", PositiveDefiniteCirculantVector()
)
zero_sum = ZeroSum


explain_calls(globals())
