"""Booleans, integers and vectors of counts."""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.distributions.constraints.base import Constraint, infinite_somewhere, named
from probtorch.ops.arithmetic import floor, where
from probtorch.ops.comparisons import eq, ge, le, logical_and
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "Boolean",
    "Integer",
    "IntegerGreaterThanEq",
    "IntegerInterval",
    "MultinomialConstraint",
    "OneHot",
    "boolean",
    "corner",
    "integer",
    "integer_greater_than",
    "integer_interval",
    "multinomial",
    "nonnegative_integer",
    "one_hot",
    "positive_integer",
]


class Boolean(Constraint):
    """0 or 1 (or False and True)."""

    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return eq(value * value, value) if value.array.dtype.kind != "b" else eq(value, value)

    def interior(self, value: Tensor) -> float | Tensor:
        return 0


class Integer(Constraint):
    """Whole numbers."""

    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return _is_integral(value)

    def interior(self, value: Tensor) -> float | Tensor:
        return 0


class IntegerGreaterThanEq(Constraint):
    """Whole numbers from lower_bound on."""

    is_discrete = True

    def __init__(self, lower_bound: float | Tensor) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Tensor) -> Tensor:
        return logical_and(_is_integral(value), ge(value, self.lower_bound))

    def interior(self, value: Tensor) -> float | Tensor:
        return _least(self.lower_bound, 0.0)


class IntegerInterval(Constraint):
    """Whole numbers from lower_bound to upper_bound, both included."""

    is_discrete = True

    def __init__(self, lower_bound: float | Tensor, upper_bound: float | Tensor) -> None:
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        inside = logical_and(ge(value, self.lower_bound), le(value, self.upper_bound))
        return logical_and(_is_integral(value), inside)

    def interior(self, value: Tensor) -> float | Tensor:
        high = self.upper_bound
        top = where(high == math.inf, 0.0, high) if isinstance(high, TensorBase) else min(high, 0.0)
        return _least(self.lower_bound, top)


class OneHot(Constraint):
    """Vectors of one 1 and otherwise 0."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return logical_and(every(boolean.check(value), -1), eq(total(value, -1), 1))

    def interior(self, value: Tensor) -> float | Tensor:
        return corner(value)


class MultinomialConstraint(Constraint):
    """Vectors of counts that add up to `total_count`."""

    is_discrete = True
    event_dim = 1

    def __init__(self, total_count: TensorLike) -> None:
        self.total_count = total_count

    def check(self, value: Tensor) -> Tensor:
        counts = every(nonnegative_integer.check(value), -1)
        return logical_and(counts, eq(total(value, -1), self.total_count))

    def interior(self, value: Tensor) -> float | Tensor:
        count = self.total_count
        if isinstance(count, TensorBase) and count.array.ndim:
            count = unsqueeze(count, -1)
        return corner(value) * count


def _least(low: float | Tensor, other: float | Tensor) -> float | Tensor:
    """Return a lower bound, another number where there is none."""
    if not infinite_somewhere(low):
        return low
    return where(low == -math.inf, other, low) if isinstance(low, TensorBase) else other


def corner(value: Tensor) -> Tensor:
    """The first unit vector of the size of the last dim of `value`."""
    return wrap(np.eye(1, value.array.shape[-1], dtype=value.array.dtype)[0])


def _is_integral(value: Tensor) -> Tensor:
    return eq(value, floor(value)) if value.array.dtype.kind == "f" else eq(value, value)


boolean = named("boolean", Boolean())
integer = named("integer", Integer())
integer_greater_than = IntegerGreaterThanEq
integer_interval = IntegerInterval
nonnegative_integer = named("nonnegative_integer", IntegerGreaterThanEq(0))
positive_integer = named("positive_integer", IntegerGreaterThanEq(1))
one_hot = named("one_hot", OneHot())
multinomial = MultinomialConstraint


explain_calls(globals())
