"""Real and complex numbers, and intervals of the reals."""

from __future__ import annotations

import math

from probtorch.core.signatures import explain_calls
from probtorch.distributions.constraints.base import Constraint, infinite_somewhere, named
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq, ge, gt, le, logical_and, lt
from probtorch.tensor import Tensor

__all__ = [
    "Circular",
    "Complex",
    "GreaterThan",
    "GreaterThanEq",
    "HalfOpenInterval",
    "Interval",
    "LeftOpenInterval",
    "LessThan",
    "LessThanEq",
    "OffsetMultiplier",
    "OpenInterval",
    "Real",
    "SoftplusPositive",
    "circular",
    "complex",
    "greater_than",
    "greater_than_eq",
    "half_open_interval",
    "interval",
    "left_open_interval",
    "less_than",
    "less_than_eq",
    "nonnegative",
    "offset_multiplier",
    "open_interval",
    "positive",
    "real",
    "softplus_positive",
    "unit_interval",
]


class Real(Constraint):
    """Real numbers; infinities count, nan does not."""

    def check(self, value: Tensor) -> Tensor:
        return eq(value, value)

    def interior(self, value: Tensor) -> float | Tensor:
        return 0.0


class Complex(Constraint):
    """Complex numbers; infinities count, nan does not."""

    def check(self, value: Tensor) -> Tensor:
        return eq(value, value)

    def interior(self, value: Tensor) -> float | Tensor:
        return 0.0


class Circular(Real):
    """Angles in radians. Every real stands for an angle, so the density has to be periodic."""


class OffsetMultiplier(Real):
    """Real numbers that are sampled as ``(x - offset) / multiplier``: Stan's form of scaling.

    Parameters
    ----------
    offset, multiplier : float or Tensor
        Where values are about, and their size there, above 0.
    """

    def __init__(self, offset: float | Tensor = 0.0, multiplier: float | Tensor = 1.0) -> None:
        self.offset, self.multiplier = offset, multiplier


class GreaterThan(Constraint):
    """x > lower_bound."""

    open_ends = True, False

    def __init__(self, lower_bound: float | Tensor) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Tensor) -> Tensor:
        return gt(value, self.lower_bound)

    def interior(self, value: Tensor) -> float | Tensor:
        low = self.lower_bound
        return _inside(low, math.inf) if infinite_somewhere(low) else low + 1.0


class GreaterThanEq(GreaterThan):
    """x >= lower_bound."""

    open_ends = False, False

    def check(self, value: Tensor) -> Tensor:
        return ge(value, self.lower_bound)


class SoftplusPositive(GreaterThan):
    """Positive reals that are reached by softplus instead of exp: kinder to large values."""

    def __init__(self) -> None:
        super().__init__(0.0)


class LessThan(Constraint):
    """x < upper_bound."""

    open_ends = False, True

    def __init__(self, upper_bound: float | Tensor) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return lt(value, self.upper_bound)

    def interior(self, value: Tensor) -> float | Tensor:
        high = self.upper_bound
        return _inside(-math.inf, high) if infinite_somewhere(high) else high - 1.0


class LessThanEq(LessThan):
    """x <= upper_bound."""

    open_ends = False, False

    def check(self, value: Tensor) -> Tensor:
        return le(value, self.upper_bound)


class Interval(Constraint):
    """lower_bound <= x <= upper_bound."""

    def __init__(self, lower_bound: float | Tensor, upper_bound: float | Tensor) -> None:
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return logical_and(ge(value, self.lower_bound), le(value, self.upper_bound))

    def interior(self, value: Tensor) -> float | Tensor:
        return _inside(self.lower_bound, self.upper_bound)


class HalfOpenInterval(Interval):
    """lower_bound <= x < upper_bound."""

    open_ends = False, True

    def check(self, value: Tensor) -> Tensor:
        return logical_and(ge(value, self.lower_bound), lt(value, self.upper_bound))


class LeftOpenInterval(Interval):
    """lower_bound < x <= upper_bound."""

    open_ends = True, False

    def check(self, value: Tensor) -> Tensor:
        return logical_and(gt(value, self.lower_bound), le(value, self.upper_bound))


class OpenInterval(Interval):
    """lower_bound < x < upper_bound."""

    open_ends = True, True

    def check(self, value: Tensor) -> Tensor:
        return logical_and(gt(value, self.lower_bound), lt(value, self.upper_bound))


def _inside(low: float | Tensor, high: float | Tensor) -> float | Tensor:
    """Return numbers between bounds, of which some rows may have one or none."""
    if infinite_somewhere(low):
        low = _where(low == -math.inf, _where(high == math.inf, -1.0, high - 2.0), low)
    if infinite_somewhere(high):
        high = _where(high == math.inf, low + 2.0, high)
    return 0.5 * low + 0.5 * high


def _where(mask: bool | Tensor, x: float | Tensor, y: float | Tensor) -> float | Tensor:
    if isinstance(mask, Tensor):
        return where(mask, x, y)
    return x if mask else y


greater_than = GreaterThan
greater_than_eq = GreaterThanEq
less_than = LessThan
less_than_eq = LessThanEq
interval = Interval
half_open_interval = HalfOpenInterval
left_open_interval = LeftOpenInterval
open_interval = OpenInterval
real = named("real", Real())
complex = named("complex", Complex())
circular = named("circular", Circular())
offset_multiplier = OffsetMultiplier
positive = named("positive", GreaterThan(0.0))
nonnegative = named("nonnegative", GreaterThanEq(0.0))
softplus_positive = named("softplus_positive", SoftplusPositive())
unit_interval = named("unit_interval", Interval(0.0, 1.0))


explain_calls(globals())
