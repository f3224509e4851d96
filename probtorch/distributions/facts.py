"""Means, entropies and modes by quadrature, where a class states no closed form.

For distributions of single numbers with a cdf. The line is cut at the mode or the median; each half
is an integral by a double exponential rule (Takahasi and Mori 1974), which takes poles at finite
ends and tails of any weight. Counts are summed one by one, from 1024 on by the integral of the same
formula between them, with the first term of Euler and Maclaurin. All is in double precision; the
error is about 1e-10 of the result for smooth densities.

Nothing here guesses: where the masses of all points do not sum to 1 within 1e-6, or half of the
points give a result that is 1e-5 off, as at kinks away from the mode, the result is nan, and a
moment whose integrand does not fall at 10^26 to 10^47 times the spread is infinite. Derivatives in
the parameters go through the density, and through the ends of the support.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import set_grad_enabled, wrap
from probtorch.core.dtype import float64
from probtorch.distributions.constraints import Circular
from probtorch.distributions.constraints.base import infinite_somewhere
from probtorch.distributions.quantiles import bounds
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, maximum, minimum, where
from probtorch.ops.comparisons import isfinite, isinf, isnan
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp, log, sigmoid
from probtorch.ops.extremes import argmax
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, reshape, unsqueeze
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution

__all__ = ["FACTS", "cdf_by_sum", "expectation", "has_facts"]

# Of y = exp(pi / 2 sinh(t)) on a half-line, from exp(-60) to exp(316), and of the logistic function
# of pi sinh(t) between two ends, to exp(-230) from each.
STEP = 1.0 / 32.0
T = np.arange(-4.35, 6.0, STEP)
LOG_Y = 0.5 * math.pi * np.sinh(T)
LOG_DY = LOG_Y + np.log(0.5 * math.pi * STEP * np.cosh(T))
U = np.arange(-5.0, 5.0 + STEP / 2, STEP)
LOGIT = math.pi * np.sinh(U)
LOG_DU = np.log(math.pi * STEP * np.cosh(U)) - np.logaddexp(0.0, LOGIT) - np.logaddexp(0.0, -LOGIT)
# Where the fall of a tail is looked at: log of y.
NEAR, FAR = 60.0, 110.0
# Spreads from the center to which the first of two integrals up to a finite end goes.
NEARER = 24.0
# Points along a new first dim, and logs of their weights.
_Parts: TypeAlias = list[tuple[Tensor, Tensor]]
# Counts that are summed one by one.
COUNTS = 1024
# Steps of the search of a mode: each leaves 0.62 of the bracket.
GOLDEN, SEARCH = 0.5 * (math.sqrt(5.0) - 1.0), 60.0


def has_facts(d: Distribution) -> bool:
    """Whether the functions of this file apply: a distribution of single numbers with a cdf.

    Angles and categories have other means, or none.
    """
    if d._event_shape or not hasattr(d, "_cdf") or isinstance(d.support, Circular):
        return False
    return not (d._takes_integers and d.has_enumerate_support)


class _Points:
    """Points x along a new first dim, with the logs of the masses that stand for them."""

    def __init__(self, d: Distribution) -> None:
        self.d = d
        self.low, self.high = (None if b is None else _double(b) for b in bounds(d.support))
        before = set_grad_enabled(False)
        try:
            center = self._level(0.5)
            center = center if d.is_discrete else self._peak(center)
            below = cast(d.cdf(center), float64)
            spreads = (center - self._level(0.5 * below), self._level(0.5 + 0.5 * below) - center)
        finally:
            set_grad_enabled(before)
        # Of each side, the distance of half its mass; at least 1 for counts.
        least = 1.0 if d.is_discrete else 1e-300
        self.center = center.detach()
        self.spreads = {s: maximum(w, least).detach() for s, w in zip((-1.0, 1.0), spreads)}
        # Where half-lines start, on which side, and in which rows.
        self.ends: list[tuple[Tensor, float, Tensor | None]] = []
        parts = self._counts() if d.is_discrete else self._line()
        if d.has_enumerate_support and self.low is None and self.high is None:
            # Values that are no counts.
            x = cast(d.enumerate_support(), float64)
            parts = [(x, x * 0.0)]
        x = cat([p[0] for p in parts], 0)
        # Between counts the formula goes on.
        log_p = d._to_batch(d._density(x, d.is_discrete))
        none = isnan(log_p) | isinf(log_p)
        if log_p.requires_grad:
            # Where the density is no number its slopes are none, whatever they are multiplied by.
            log_p = d._to_batch(d._density(where(none, self.center, x), d.is_discrete))
        log_p = where(none, -math.inf, log_p)
        self.x, self.log_p = x, log_p
        weights = [expand(p[1], p[0].array.shape) for p in parts]
        self.log_mass = log_p + cat(weights, 0)
        self.mass = total(exp(self.log_mass), 0)
        # The same integrals with every other point.
        summed = 1 if d.is_discrete else 0
        half = [w + self._grid(_alternating(len(w))) for w in weights[summed:]]
        self.coarse = exp((log_p + cat([*weights[:summed], *half], 0)).detach())

    def _level(self, p: float | Tensor) -> Tensor:
        level = p if isinstance(p, Tensor) else wrap(np.array(p))
        return cast(expand(self.d.icdf(level), self.d._batch_shape), float64)

    def _peak(self, middle: Tensor) -> Tensor:
        """The mode where the class states it and it is no end; else the median.

        A density may have a kink there; one that it has elsewhere the class states as `_kink`.
        """
        if hasattr(self.d, "_kink"):
            return middle * 0.0 + self.d._kink
        if not hasattr(self.d, "_mode"):
            return middle
        peak = cast(expand(self.d._mode(), self.d._batch_shape), float64)
        inside = isfinite(peak)
        inside = inside if self.low is None else inside & (peak > self.low)
        inside = inside if self.high is None else inside & (peak < self.high)
        return where(inside, peak, middle)

    def _grid(self, values: np.ndarray) -> Tensor:
        """Numbers along a new first dim."""
        return reshape(wrap(values), (len(values), *(1,) * len(self.d._batch_shape)))

    def _half(self, start: Tensor, end: Tensor | None, sign: float) -> _Parts:
        """Points and log weights between a start and an end on one side of it."""
        batch, spread = tuple(self.d._batch_shape), self.spreads[sign]
        if end is None:
            self.ends.append((start, sign, None))
            x = start + sign * spread * exp(self._grid(LOG_Y))
            return [(expand(x, (len(T), *batch)), log(spread) + self._grid(LOG_DY))]
        if infinite_somewhere(end):
            return self._half_by_rows(start, end, sign)
        # What is far from the start has an integral of its own.
        width = maximum(sign * (end - start), 0.0)
        middle = start + sign * minimum(width, NEARER * spread)
        return [self._between(start, middle, sign), self._between(middle, end, sign)]

    def _half_by_rows(self, start: Tensor, end: Tensor, sign: float) -> _Parts:
        """The same where some rows have an end, and others points on a half-line."""
        endless = isinf(end)
        near = self._half(start, where(endless, start + sign, end), sign)
        x, weight = (cat([part[i] for part in near], 0) for i in range(2))
        # The half-line has fewer points: some are there twice.
        again = np.arange(x.array.shape[0]) % len(T)
        log_times = np.log(np.bincount(again)[again])
        line = start + sign * self.spreads[sign] * exp(self._grid(LOG_Y[again]))
        log_dy = log(self.spreads[sign]) + self._grid(LOG_DY[again] - log_times)
        self.ends.append((start, sign, endless))
        return [(where(endless, line, x), where(endless, log_dy, weight))]

    def _between(self, start: Tensor, end: Tensor, sign: float) -> tuple[Tensor, Tensor]:
        width = maximum(sign * (end - start), 0.0)
        t, shape = self._grid(LOGIT), (len(U), *self.d._batch_shape)
        # From the nearer end, so that neither is lost in rounding.
        x = where(t < 0.0, start + sign * width * sigmoid(t), end - sign * width * sigmoid(-t))
        some = (width > 0.0) & (sign * x < sign * end) & (sign * x > sign * start)
        weight = log(where(width > 0.0, width, 1.0)) + self._grid(LOG_DU)
        inner = start + 0.5 * sign * width
        return expand(where(some, x, inner), shape), where(some, weight, -math.inf)

    def _line(self) -> _Parts:
        return self._half(self.center, self.low, -1.0) + self._half(self.center, self.high, 1.0)

    def _counts(self) -> _Parts:
        batch = tuple(self.d._batch_shape)
        around = (self.center - COUNTS / 2).floor()
        # Some rows may have a lowest count and others none.
        start = around if self.low is None else where(isinf(self.low), around, self.low)
        k = expand(start + self._grid(np.arange(COUNTS + 1.0)), (COUNTS + 1, *batch))
        weights = np.ones(COUNTS + 1)
        weights[-2:] = 23.0 / 24.0, 1.0 / 24.0
        log_w = self._grid(np.log(weights))
        if self.high is not None:
            # All of a support that ends before there is an integral.
            log_w = where(self.high < start + COUNTS, 0.0, log_w)
            inside = k <= self.high
            log_w, k = where(inside, log_w, -math.inf), where(inside, k, self.high)
        out: _Parts = [(k, expand(log_w, k.array.shape))]
        edge = start + (COUNTS - 0.5)
        end = None if self.high is None else maximum(self.high + 0.5, edge)
        middle = maximum(self.center + 0.25, edge)
        middle = middle if end is None else minimum(middle, end)
        out += self._half(middle, edge, -1.0) + self._half(middle, end, 1.0)
        if self.low is not None and not infinite_somewhere(self.low):
            return out
        rows = None if self.low is None else isinf(self.low)
        end = None if rows is None else where(rows, -math.inf, start - 0.5)
        return out + self._half(start - 0.5, end, -1.0)

    def mean_of(self, log_size: Tensor, sign: Tensor | float = 1.0) -> Tensor:
        """Mean of ``sign exp(log_size)`` of each point; nan where masses do not sum to 1."""
        # Where the integral has no end the sum is not used, but must be a number.
        terms = exp(minimum(self.log_mass + log_size, 600.0))
        value = total(sign * terms, 0)
        rough = self.coarse * exp(minimum(log_size.detach(), 600.0))
        apart = absolute(total(sign * minimum(rough, 1e260), 0) - value.detach())
        smooth = apart <= 1e-5 * total(terms, 0).detach()
        return where((absolute(self.mass - 1.0) < 1e-6) & smooth, value, math.nan)

    def endless(self, order: float) -> list[tuple[Tensor, float]]:
        """For each infinite end, whether the integral of abs(x)^order has none, and its side."""
        out = []
        for start, sign, rows in self.ends:
            x = start + sign * self.spreads[sign] * exp(self._grid(np.array([NEAR, FAR])))
            x = x if rows is None else where(rows, x, start)
            log_p = self.d._to_batch(self.d._density(x, True)).detach()
            fall = (log_p[1] - log_p[0]) / (FAR - NEAR)
            never = (log_p[1] > -math.inf) & (fall + order + 1.0 > -1e-4)
            out.append((never if rows is None else never & rows, sign))
        return out


def expectation(d: Distribution, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean of ``fn(x)`` over draws x of a continuous distribution."""
    points = _Points(d)
    value = total(exp(points.log_mass) * fn(points.x), 0)
    return _as_asked(d, where(absolute(points.mass - 1.0) < 1e-6, value, math.nan))


def _alternating(n: int) -> np.ndarray:
    """Logs of weights 2, 0, 2, 0, ..."""
    return np.where(np.arange(n) % 2 == 0, math.log(2.0), -math.inf)


def _double(x: float | Tensor) -> Tensor:
    return cast(x, float64) if isinstance(x, Tensor) else wrap(np.array(float(x)))


def _as_asked(d: Distribution, value: Tensor) -> Tensor:
    return value if d._dtype is None else cast(value, d._dtype)


def _apart(points: _Points, center: Tensor) -> tuple[Tensor, Tensor]:
    """Log distances from a center, and on which side."""
    apart = points.x - center
    some = apart != 0.0
    size = where(some, log(where(some, absolute(apart), 1.0)), -math.inf)
    one = apart.new_tensor(1.0)
    return size, where(apart < 0.0, -one, one)


def _mean_at(points: _Points) -> Tensor:
    size, sign = _apart(points, points.center)
    value = points.center + points.mean_of(size, sign)
    up, down = (points.center < -math.inf for _ in range(2))
    for none, side in points.endless(1.0):
        up, down = (up | none, down) if side > 0.0 else (up, down | none)
    value = where(up, math.inf, where(down, -math.inf, value))
    return where(up & down, math.nan, value)


def _central(points: _Points, order: int) -> Tensor:
    """Central moment, infinite where the integral has no end, nan without a mean."""
    mean = _mean_at(points)
    fixed = where(isfinite(mean), mean, points.center)
    size, sign = _apart(points, fixed)
    value = points.mean_of(size * float(order), sign if order % 2 else 1.0)
    for none, _ in points.endless(float(order)):
        value = where(none, math.nan if order % 2 else math.inf, value)
    return where(isfinite(mean), value, math.nan)


def mean(d: Distribution) -> Tensor:
    """The mean: nan or infinite where there is none."""
    return _as_asked(d, _mean_at(_Points(d)))


def variance(d: Distribution) -> Tensor:
    """The variance."""
    return _as_asked(d, _central(_Points(d), 2))


def skewness(d: Distribution) -> Tensor:
    """Third central moment over the cube of the standard deviation."""
    points = _Points(d)
    return _as_asked(d, _central(points, 3) / _central(points, 2) ** 1.5)


def kurtosis(d: Distribution) -> Tensor:
    """Fourth central moment over the squared variance, less 3."""
    points = _Points(d)
    return _as_asked(d, _central(points, 4) / _central(points, 2) ** 2 - 3.0)


def entropy(d: Distribution) -> Tensor:
    """The mean of minus the log density."""
    points = _Points(d)
    known = where(points.log_p > -math.inf, points.log_p, 0.0)
    size = where(known == 0.0, -math.inf, log(where(known == 0.0, 1.0, absolute(known))))
    one = known.new_tensor(1.0)
    return _as_asked(d, points.mean_of(size, where(known > 0.0, -one, one)))


def mode(d: Distribution) -> Tensor:
    """A point of highest density, without a derivative; nan where the density has no bound."""
    before = set_grad_enabled(False)
    try:
        points = _Points(d)
        x = points.x
        raw = d._to_batch(d._density(x, True))
        seen = points.log_mass > -math.inf
        height = where(seen, points.log_p, -math.inf)
        order = x.argsort(0)
        x, height, raw = gather(x, 0, order), gather(height, 0, order), gather(raw, 0, order)
        best = unsqueeze(argmax(height, 0), 0)
        last = x.array.shape[0] - 1
        # A neighbour may be the same point again.
        a, b = (gather(x, 0, clamp(best + k, 0, last))[0] for k in (-2, 2))
        # A density that still grows by a nat over the last points before an end has no bound.
        around = [gather(height, 0, clamp(best + k, 0, last))[0] for k in (-10, 0, 10)]
        ends = [gather(gather(seen, 0, order), 0, clamp(best + k, 0, last))[0] for k in (-1, 1)]
        grows = (~ends[0] & (around[1] > around[2] + 1.0)) | (
            ~ends[1] & (around[1] > around[0] + 1.0)
        )
        endless = (raw == math.inf).any(0) | (grows & (not d.is_discrete))
        top, at = gather(height, 0, best)[0], gather(x, 0, best)[0]
        value = lambda x: d._to_batch(d._density(x, True))

        def closer(state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            a, b, n = state
            c, e = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
            left = value(c) > value(e)
            return where(left, a, c), where(left, e, b), n + 1.0

        a, b, _ = while_loop(lambda s: s[2] < SEARCH, closer, (a, b, total(a) * 0.0))
        found = 0.5 * (a + b)
        candidates = [at, found.floor(), found.floor() + 1.0] if d.is_discrete else [at, found]
        for x in candidates[1:]:
            inside = d.support.check(x)
            here = where(inside, value(where(inside, x, at)), -math.inf)
            better = here > top
            top, at = where(better, here, top), where(better, x, at)
        if d.is_discrete:
            at = at.round()
    finally:
        set_grad_enabled(before)
    return _as_asked(d, where(endless, math.nan, at).detach())


FACTS = {
    "_mean": mean,
    "_variance": variance,
    "_skewness": skewness,
    "_kurtosis": kurtosis,
    "_entropy": entropy,
    "_mode": mode,
}


def cdf_by_sum(d: Distribution, x: Tensor, *, above: bool = False) -> Tensor:
    """Return the probability of a count at or below `x`, or above it, by a sum of masses.

    For counts from 0 on whose formula goes on between them. Costs 1024 masses and an integral for
    each value.
    """
    k = cast(maximum(x.floor(), -1.0), float64)
    whole = k == math.inf
    k = where(whole, 0.0, k)
    grid = lambda v: reshape(wrap(v), (len(v), *(1,) * max(k.array.ndim, len(d._batch_shape))))
    masses = lambda at: exp(d._to_batch(d._density(at, True)))
    counts, edge = grid(np.arange(COUNTS + 1.0)), COUNTS - 0.5
    each = masses(counts)
    # The correction of Euler and Maclaurin for the integral from the edge on.
    cut = (each[COUNTS : COUNTS + 1] - each[COUNTS - 1 : COUNTS])[0] / 24.0
    small = k < edge
    chosen = (counts > k) if above else (counts <= k)
    first = total(where(chosen & (counts < edge), each, 0.0), 0)
    end = where(small, COUNTS * 1.0, k) + 0.5
    width = end - edge
    if above:
        start = where(small, edge, end)
        wide = grid(np.exp(LOG_DY))
        rest = total(masses(start + grid(np.exp(LOG_Y))) * wide, 0)
        return where(whole, 0.0, minimum(first + where(small, rest + cut, rest), 1.0))
    share = grid(1.0 / (1.0 + np.exp(-LOGIT)))
    rest = total(masses(edge + width * share) * grid(np.exp(LOG_DU)), 0) * width
    return where(whole, 1.0, minimum(first + where(small, 0.0, rest + cut), 1.0))
