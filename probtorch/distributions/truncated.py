"""The normal distribution between bounds.

Far in a tail the mass between the bounds is a difference of two numbers near 0 or 1. Everything
here is done with log_ndtr on the side where it is small: intervals right of the mean are reflected
to the left first.
"""

from __future__ import annotations

import math

from probtorch.core.dispatch import set_grad_enabled
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.precision import in_double
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import clamp, maximum, minimum, sqrt, where
from probtorch.ops.comparisons import isinf
from probtorch.ops.exponentials import exp, log, log1p, logaddexp
from probtorch.ops.special import erfcx, log1mexp, log_ndtr, ndtri
from probtorch.tensor import Tensor

__all__ = ["TruncatedNormal"]

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
SQRT_HALF = math.sqrt(0.5)


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

    def _cdf(self, x: Tensor) -> Tensor:
        a, b, flipped = self._reflected()
        z = (clamp(x, self.low, self.high) - self.loc) / self.scale
        z = where(flipped, -z, z)
        left = exp(log_mass(a, z) - log_mass(a, b))
        return where(flipped, 1.0 - left, left)

    def _icdf(self, p: Tensor) -> Tensor:
        a, b, flipped = self._reflected()
        share = where(flipped, 1.0 - p, p)
        # log of ndtr(a) + share (ndtr(b) - ndtr(a)), as a mixture of the two ends.
        log_p = logaddexp(log_ndtr(a) + log1p(-share), log_ndtr(b) + log(share))
        z = _normal_quantile_of_log(log_p)
        x = self.loc + self.scale * where(flipped, -z, z)
        return clamp(x, self.low, self.high)

    def _mean(self) -> Tensor:
        return self.loc + self.scale * self._first_moment()

    def _first_moment(self) -> Tensor:
        """Mean of the standardised distribution: (density at a - density at b) / mass."""
        a, b, flipped = self._reflected()
        mass = log_mass(a, b)
        shift = exp(_log_density(a) - mass) - exp(_log_density(b) - mass)
        return where(flipped, -shift, shift)

    def _mode(self) -> Tensor:
        return clamp(self.loc, self.low, self.high)

    def _variance(self) -> Tensor:
        a, b, _ = self._reflected()
        mass, shift = log_mass(a, b), self._first_moment()
        ends = _times_density(a, mass) - _times_density(b, mass)
        return self.scale * self.scale * (1.0 + ends - shift * shift)

    def _entropy(self) -> Tensor:
        # The mean of minus the log density, in which 1 plus what the ends add is E z^2.
        a, b, _ = self._reflected()
        mass = log_mass(a, b)
        ends = _times_density(a, mass) - _times_density(b, mass)
        return log(self.scale) + HALF_LOG_2PI + mass + 0.5 * (1.0 + ends)

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
        slope = exp(fixed - _log_density(z))
    finally:
        set_grad_enabled(before)
    return z + (log_p - fixed) * slope
