"""Quotients of beta numbers: how many times more likely one thing is than another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.precision import in_double
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import clamp, maximum, minimum, where
from probtorch.ops.exponentials import exp, log, sigmoid, softplus
from probtorch.ops.extremes import amax, amin
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import betainc, betaln
from probtorch.tensor import Tensor

__all__ = ["BetaQuotient"]

# Points of the integral over the log odds of one of the two numbers, whose singularities are pi off
# the real line: with steps up to a half the rule is exact to rounding. Before, fewer points narrow
# the range, so many times, to where the integrand is above exp(-FALL) of its peak.
NODES, LOOKS, ZOOMS, FALL = np.arange(256.0), np.arange(32.0), 6, 45.0
# Beyond this distance from where an integrand changes its form it is exponential to rounding.
FAR = 40.0
# The two concentrations of the numerator, then of the denominator.
_Four: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


class BetaQuotient(Distribution):
    """Quotient of two independent beta numbers, such as a ratio of two conversion rates.

    Density ``f(x) = integral(x ** (a - 1) * (1 - x * y) ** (b - 1) * y ** (a + c - 1) * (1 -
    y) ** (d - 1) for y in between(0, min(1, 1 / x))) / (B(a, b) * B(c, d))`` with ``a =
    concentration1_numerator`` and ``b = concentration0_numerator`` and ``c =
    concentration1_denominator`` and ``d = concentration0_denominator``.

    Parameters
    ----------
    concentration1_numerator, concentration0_numerator : Tensor or number, positive
        Of the number above.
    concentration1_denominator, concentration0_denominator : Tensor or number, positive
        Of the number below.

    Notes
    -----
    The density is an integral over the log odds of the denominator, by the trapezium rule, whose
    tails are geometric series: to rounding, but next to 1 where the density may be infinite, and
    for concentrations up to about 1e4. A log density is off by 1e-8 at 1e6, and nan beyond 1e30.
    The arguments are TFP's.

    References
    ----------
    [phamgia2000]_
    """

    concentration1_numerator: Parameter = param(constraints.positive)
    concentration0_numerator: Parameter = param(constraints.positive)
    concentration1_denominator: Parameter = param(constraints.positive)
    concentration0_denominator: Parameter = param(constraints.positive)
    support = constraints.positive
    # Where the density changes its form.
    _kink = 1.0

    def _four(self) -> _Four:
        return (
            self.concentration1_numerator,
            self.concentration0_numerator,
            self.concentration1_denominator,
            self.concentration0_denominator,
        )

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        a, b, c, d = (rng.log_gamma(x, shape) for x in self._four())
        x = rng.positive(exp(softplus(d - c) - softplus(b - a)))
        # Next to 1 the density may be as large as one likes, at 1 infinite.
        return where(x == 1.0, 1.0 - float(dtypes.finfo(rng.dtype).epsneg), x)

    def _log_prob(self, x: Tensor) -> Tensor:
        return in_double(_log_density, *self._four(), x)

    def _cdf(self, x: Tensor) -> Tensor:
        return in_double(lambda *args: _tails(*args)[0], *self._four(), x)

    def _survival(self, x: Tensor) -> Tensor:
        return in_double(lambda *args: _tails(*args)[1], *self._four(), x)

    def _raw(self, order: int) -> Tensor:
        """Mean of x^order, infinite where there is none."""
        a, b, c, d = self._four()
        finite = c > float(order)
        c, out = where(finite, c, order + 1.0), a * 0.0 + 1.0
        for k in range(order):
            out = out * ((a + float(k)) / (a + b + float(k)))
            out = out * ((c + d - (k + 1.0)) / (c - (k + 1.0)))
        return where(finite, out, math.inf)

    def _mean(self) -> Tensor:
        return self._raw(1)

    def _variance(self) -> Tensor:
        m, square = self._raw(1), self._raw(2)
        finite = square < math.inf
        m = where(finite, m, 0.0)
        none = where(self.concentration1_denominator > 1.0, math.inf, math.nan)
        return where(finite, square - m * m, none)


def _turned(four: _Four, x: Tensor) -> tuple[Tensor, _Four, Tensor, Tensor]:
    """Return whether x > 1, the concentrations of the quotient below 1, it, and 1 less it."""
    a, b, c, d = four
    over = x > 1.0
    numbers = where(over, c, a), where(over, d, b), where(over, a, c), where(over, b, d)
    safe = where(over, x, 1.0)
    return over, numbers, where(over, 1.0 / safe, x), where(over, (safe - 1.0) / safe, 1.0 - x)


class _Odds:
    """Points in the log odds y of the denominator, for integrands that `of` takes logs of."""

    def __init__(self, rest: Tensor, of: Callable[[Tensor], Tensor]) -> None:
        change = -log(maximum(rest.detach(), math.exp(-FAR)))
        low, high = change * 0.0 - FAR, change + FAR
        for _ in range(ZOOMS):
            t, step = self._grid(low, high, LOOKS)
            size = of(t).detach()
            kept = size > amax(size, -1, True) - FALL
            first = amin(where(kept, t, math.inf), -1) - step
            last = amax(where(kept, t, -math.inf), -1) + step
            low, high = maximum(low, first), minimum(high, last)
        t, step = self._grid(low, high, NODES)
        size = of(t)
        top = amax(size.detach(), -1, True)
        terms = exp(size - top)
        # Beyond the last points the terms go on as geometric series.
        ends = [(size[..., 0], size[..., 1]), (size[..., -1], size[..., -2])]
        sum_ = total(terms, -1)
        for end, inner in ends:
            ratio = exp(end - inner)
            falls = ratio < 1.0
            ratio = where(falls, ratio, 0.0)
            tail = exp(end - top[..., 0]) * ratio / (1.0 - ratio)
            sum_ = sum_ + where(falls, tail, math.inf)
        self.log_integral = log(sum_ * step) + top[..., 0]

    @staticmethod
    def _grid(low: Tensor, high: Tensor, places: np.ndarray) -> tuple[Tensor, Tensor]:
        step = (high - low) / float(len(places) - 1)
        return unsqueeze(low, -1) + unsqueeze(step, -1) * low.new_tensor(places), step


def _log_density(a: Tensor, b: Tensor, c: Tensor, d: Tensor, x: Tensor) -> Tensor:
    over, (a, b, c, d), w, rest = _turned((a, b, c, d), x)
    wide = [unsqueeze(v, -1) for v in (a + c, d, b - 1.0, w, rest)]

    def of(t: Tensor) -> Tensor:
        both, d, b, w, rest = wide
        # 1 - w y, without a difference
        return b * log(rest + w * sigmoid(-t)) - both * softplus(-t) - d * softplus(t)

    rest_ = rest + a * 0.0 + b * 0.0 + c * 0.0 + d * 0.0
    value = _Odds(rest_, of).log_integral + (a - 1.0) * log(w) - betaln(a, b) - betaln(c, d)
    return value + where(over, 2.0 * log(w), 0.0)


def _tails(a: Tensor, b: Tensor, c: Tensor, d: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return cdf and survival: the mean of the cdf of one number at x times the other."""
    inside = (x > 0.0) & (x < math.inf)
    over, (a, b, c, d), w, rest = _turned((a, b, c, d), where(inside, x, 1.0))
    wide = [unsqueeze(v, -1) for v in (a, b, c, d, w)]

    def of(t: Tensor) -> Tensor:
        a, b, c, d, w = wide
        part = maximum(betainc(a, b, w * sigmoid(t)), 1e-300)
        return log(part) - c * softplus(-t) - d * softplus(t)

    rest_ = rest + a * 0.0 + b * 0.0 + c * 0.0 + d * 0.0
    part = clamp(exp(_Odds(rest_, of).log_integral - betaln(c, d)), 0.0, 1.0)
    low, high = where(over, 1.0 - part, part), where(over, part, 1.0 - part)
    below = x <= 0.0
    return where(inside, low, where(below, 0.0, 1.0)), where(inside, high, where(below, 1.0, 0.0))
