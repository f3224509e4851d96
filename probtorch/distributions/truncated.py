"""The normal distribution between bounds.

Far in a tail the mass between the bounds is a difference of two numbers near 0 or 1. Everything
here is done with log_ndtr on the side where it is small: intervals right of the mean are reflected
to the left first.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.dispatch import set_grad_enabled
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.precision import doubled, in_double
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, maximum, minimum, sqrt, where
from probtorch.ops.comparisons import isinf
from probtorch.ops.exponentials import exp, log, log1p, logaddexp
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import erfcx, log1mexp, log_ndtr, ndtri
from probtorch.tensor import Tensor

__all__ = ["TruncatedNormal"]

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
SQRT_HALF = math.sqrt(0.5)
# Gauss's rule on [0, 1], and how many lengths of exponential decay have mass.
NODES, WEIGHTS = (v * 0.5 for v in np.polynomial.legendre.leggauss(64))
NODES, REACH = NODES + 0.5, 40.0


class TruncatedNormal(Distribution):
    """Normal distribution restricted to [low, high] and renormalised.

    Density ``f(x) = exp(-z ** 2 / 2) / (scale * sqrt(2 * pi) * (Phi((high - loc) / scale) -
    Phi((low - loc) / scale)))`` with ``z = (x - loc) / scale``.

    Parameters
    ----------
    loc, scale : Tensor or number
        Mean and standard deviation before truncation.
    low, high : Tensor or number
        Bounds; minus and plus infinity for none.
    """

    _flat_ends = True, True

    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    low: Parameter = param(constraints.real, default=-math.inf)
    high: Parameter = param(
        constraints.dependent(lambda self: constraints.greater_than(self.low)), default=math.inf
    )

    @constraints.dependent_property(event_dim=0, is_discrete=False)
    def support(self) -> Constraint:
        """Values between the bounds."""
        low, high = self.low.array, self.high.array
        if (low == -math.inf).all():
            return (
                constraints.real
                if (high == math.inf).all()
                else constraints.less_than_eq(self.high)
            )
        if (high == math.inf).all():
            return constraints.greater_than_eq(self.low)
        return constraints.interval(self.low, self.high)

    def _reflected(self) -> tuple[Tensor, ...]:
        return _reflected(self.loc, self.scale, self.low, self.high)

    def _log_prob(self, x: Tensor) -> Tensor:
        # Between near bounds the slopes are differences of two densities divided by the mass.
        return in_double(_log_density_between, x, self.loc, self.scale, self.low, self.high)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._icdf(rng.uniform(shape))

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        a, b, flipped = self._reflected()
        z = (clamp(x, self.low, self.high) - self.loc) / self.scale
        z = where(flipped, -z, z)
        left = exp(log_mass(a, z) - log_mass(a, b))
        return where(flipped, 1.0 - left, left)

    @doubled
    def _icdf(self, p: Tensor) -> Tensor:
        a, b, flipped = self._reflected()
        share = where(flipped, 1.0 - p, p)
        # log of ndtr(a) + share (ndtr(b) - ndtr(a)), as a mixture of the two ends.
        log_p = logaddexp(log_ndtr(a) + log1p(-share), log_ndtr(b) + log(share))
        z = _normal_quantile_of_log(log_p)
        x = self.loc + self.scale * where(flipped, -z, z)
        return clamp(x, self.low, self.high)

    def _one_of_facts(self, which: int) -> Tensor:
        given = (self.loc, self.scale, self.low, self.high)
        return in_double(lambda *numbers: _facts(*numbers)[which], *given)

    def _mean(self) -> Tensor:
        return self._one_of_facts(0)

    def _mode(self) -> Tensor:
        return clamp(self.loc, self.low, self.high)

    def _variance(self) -> Tensor:
        return self._one_of_facts(1)

    def _entropy(self) -> Tensor:
        return self._one_of_facts(2)

    @doubled
    def _survival(self, x: Tensor) -> Tensor:
        a, b, flipped = self._reflected()
        z = (clamp(x, self.low, self.high) - self.loc) / self.scale
        left = exp(log_mass(a, where(flipped, -z, z)) - log_mass(a, b))
        return where(flipped, left, 1.0 - left)


def _standardised(bound: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """(bound - loc) / scale; an infinite bound stays what it is and takes no gradient."""
    endless = isinf(bound)
    z = (where(endless, loc, bound) - loc) / scale
    return where(endless, bound, z)


def _reflected(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
    """Standardised bounds of the interval or its mirror image, whichever is further left."""
    a, b = _standardised(low, loc, scale), _standardised(high, loc, scale)
    flipped = a > 0.0
    return where(flipped, -b, a), where(flipped, -a, b), flipped


def _log_density_between(
    x: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    a, b, flipped = _reflected(loc, scale, low, high)
    far = b < -1.0
    z = where(far, 0.0, (x - loc) / scale)
    near = z * z * -0.5 - log_mass(where(far, -1.0, a), where(far, 1.0, b))
    # Beyond both bounds' tails the squares of z and of the nearer bound cancel: what is left goes
    # with the distance d from that bound, and the mass with the width w.
    first = where(far, where(flipped, low, high), x)
    last = where(flipped, high, low)
    bounded = far & ~isinf(last)
    last = where(bounded, last, first)
    d, w = (where(flipped, v - first, first - v) / scale for v in (x, last))
    a, b = where(bounded, a, -2.0), where(far, b, -2.0)
    height, other = log(erfcx(b * -SQRT_HALF)), log(erfcx(a * -SQRT_HALF))
    gap = where(bounded, w * (0.5 * w - b) + (height - other), 1.0)
    share = where(bounded, log1mexp(gap), 0.0)
    tail = d * (b - 0.5 * d) + math.log(2.0) - height - share
    return where(far, tail, near) - (log(scale) + HALF_LOG_2PI)


def log_mass(a: Tensor, b: Tensor) -> Tensor:
    """log(ndtr(b) - ndtr(a)) for a <= 0."""
    # Without a bound nothing is subtracted, and no slope is asked for at infinity.
    all_above, all_below = isinf(b), isinf(a)
    above = where(all_above, 0.0, log_ndtr(where(all_above, 0.0, b)))
    gap = where(all_below, 1.0, above - log_ndtr(where(all_below, -1.0, a)))
    return above + where(all_below, 0.0, log1mexp(gap))


def _facts(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and entropy."""
    a, b, flipped = _reflected(loc, scale, low, high)
    mean, variance, entropy = _standard_facts(a, b)
    mean = where(flipped, -mean, mean)
    return loc + scale * mean, scale * scale * variance, log(scale) + entropy


def _standard_facts(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and entropy of a standard normal number between a <= 0 and b.

    In a tail or a narrow interval the closed forms are differences of nearly equal numbers. There
    the density of the distance d from b is exp(b d - d^2 / 2) up to a factor: Gauss's rule, over
    as many lengths of 1 / b as have mass, is exact to rounding.
    """
    tail = b < -1.0
    endless = isinf(a) | isinf(b)
    width = where(endless, math.inf, b - where(endless, 0.0, a))
    by_rule = tail | (width < 1.0)
    near = where(tail, b, where(by_rule, b, -1.0))
    length = minimum(width, REACH / maximum(absolute(near), 1.0))
    length = where(by_rule, length, 1.0)
    d = unsqueeze(length, -1) * length.new_tensor(NODES)
    logs = d * (unsqueeze(near, -1) - 0.5 * d)
    # In a narrow interval far above 0 never: a <= 0.
    weights = exp(logs) * length.new_tensor(WEIGHTS)
    mass = total(weights, -1)
    share = weights / unsqueeze(mass, -1)
    mean = total(share * d, -1)
    apart = d - unsqueeze(mean, -1)
    ruled = (
        near - mean,
        total(share * apart * apart, -1),
        log(mass * length) - total(share * logs, -1),
    )
    a, b = where(by_rule, -1.0, a), where(by_rule, 1.0, b)
    size = log_mass(a, b)
    shift = exp(_log_density(a) - size) - exp(_log_density(b) - size)
    ends = _times_density(a, size) - _times_density(b, size)
    closed = shift, 1.0 + ends - shift * shift, HALF_LOG_2PI + size + 0.5 * (1.0 + ends)
    mean, variance, entropy = (where(by_rule, *both) for both in zip(ruled, closed, strict=True))
    return mean, variance, entropy


def _log_density(z: Tensor) -> Tensor:
    return z * z * -0.5 - HALF_LOG_2PI


def _times_density(z: Tensor, log_scale: Tensor) -> Tensor:
    """Z times the normal density at z over exp(log_scale), 0 at infinity."""
    endless = isinf(z)
    z = where(endless, 0.0, z)
    return where(endless, 0.0, z * exp(_log_density(z) - log_scale))


def _normal_quantile_of_log(log_p: Tensor) -> Tensor:
    """The z with log_ndtr(z) = log_p, also where p underflows; once differentiable.

    Newton's method on log_ndtr, which is concave, from the leading terms of its expansion
    (Abramowitz and Stegun 26.2.12). The gradient comes from the implicit function, dz / dlog_p =
    ndtr / density.
    """
    before = set_grad_enabled(False)
    try:
        fixed = log_p.detach()
        tail = fixed < -2.0
        far = minimum(fixed, -2.0) * -2.0
        z = -sqrt(far - log((far - log(far * math.pi * 0.5 + 1.0)) * (2.0 * math.pi)))
        for _ in range(6):
            value = log_ndtr(z)
            z = z - (value + far * 0.5) * exp(value - _log_density(z))
        z = where(tail, z, ndtri(exp(maximum(fixed, -2.0))))
        z = where(fixed == -math.inf, -math.inf, z)
        slope = exp(fixed - _log_density(where(isinf(z), 0.0, z)))
    finally:
        set_grad_enabled(before)
    return where(isinf(z), z, z + (log_p - fixed) * slope)
