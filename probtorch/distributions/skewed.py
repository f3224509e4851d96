"""Distributions of the line that lean to one side, or are shaped by a parameter of their own.

Laplace distributions with two scales, and transformed normals. Those blurred by a normal are in
blurred.py.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.location_scale import EULER_GAMMA, ZETA_3
from probtorch.distributions.normal import HALF_LOG_2PI, ROOT_2
from probtorch.distributions.precision import doubled, in_double
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, maximum, minimum, sqrt, where
from probtorch.ops.comparisons import lt
from probtorch.ops.exponentials import exp, expm1, log, log1p, softplus
from probtorch.ops.exponentials import pow as power
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import (
    digamma,
    erf,
    erfc,
    gammaincc,
    lgamma,
    log1mexp,
    log1p_square,
    log_ndtr,
    ndtr,
    ndtri,
    polygamma,
)
from probtorch.ops.trigonometry import asinh, atan2, sinh
from probtorch.tensor import Tensor

__all__ = [
    "AsymmetricLaplace",
    "AsymmetricLaplaceQuantile",
    "GeneralizedNormal",
    "JohnsonSU",
    "Moyal",
    "SinhArcsinh",
    "SkewLogistic",
    "SkewNormal",
]


NODES, WEIGHTS = np.polynomial.legendre.leggauss(48)


class TwoSided(Distribution):
    """Two exponential tails that meet at `loc`, their mean lengths given by `sides`."""

    loc: Parameter
    support = constraints.real

    def sides(self) -> tuple[Tensor, Tensor]:
        """Return the mean lengths of the tail below and above."""
        raise NotImplementedError(f"{type(self).__name__} does not say how long its tails are")

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        left, right = self.sides()
        sides = right * rng.exponential(shape) - left * rng.exponential(shape)
        return rng.finite(self.loc + sides)

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        left, right = self.sides()
        z = x - self.loc
        return -absolute(z) / where(z < 0.0, left, right) - log(left + right)

    def _cdf(self, x: Tensor) -> Tensor:
        left, right = self.sides()
        z, share = x - self.loc, left / (left + right)
        below = share * exp(minimum(z, 0.0) / left)
        return where(z < 0.0, below, share - (1.0 - share) * expm1(-maximum(z, 0.0) / right))

    def _survival(self, x: Tensor) -> Tensor:
        left, right = self.sides()
        z, share = x - self.loc, right / (left + right)
        above = share * exp(-maximum(z, 0.0) / right)
        return where(z > 0.0, above, share - (1.0 - share) * expm1(minimum(z, 0.0) / left))

    def _icdf(self, p: Tensor) -> Tensor:
        left, right = self.sides()
        share = left / (left + right)
        below = left * log(minimum(p / share, 1.0))
        return self.loc + where(
            p < share, below, -right * log(minimum((1.0 - p) / (1.0 - share), 1.0))
        )

    def _entropy(self) -> Tensor:
        left, right = self.sides()
        return log(left + right) + 1.0

    def _mean(self) -> Tensor:
        left, right = self.sides()
        return self.loc + (right - left)

    def _mode(self) -> Tensor:
        return self.loc

    def _variance(self) -> Tensor:
        left, right = self.sides()
        return left * left + right * right

    def _skewness(self) -> Tensor:
        left, right = self._relative()
        return 2.0 * (right * right * right - left * left * left)

    def _kurtosis(self) -> Tensor:
        left, right = self._relative()
        return 6.0 * (power(left, 4.0) + power(right, 4.0))

    def _relative(self) -> tuple[Tensor, Tensor]:
        """Return the sides in standard deviations."""
        left, right = self.sides()
        sd = sqrt(self._variance())
        return left / sd, right / sd


class AsymmetricLaplace(TwoSided):
    """Laplace distribution of scale ``scale * asymmetry`` below, ``scale / asymmetry`` above.

    Density ``f(x) = exp(-abs(x - loc) / (a if x < loc else b)) / (a + b)`` with ``a = scale *
    asymmetry`` and ``b = scale / asymmetry``.

    Parameters
    ----------
    loc : Tensor or number
        Mode.
    scale : Tensor or number, positive
        Geometric mean of the two.
    asymmetry : Tensor or number, positive
        Above 1 the lower tail is the longer one.
    """

    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    asymmetry: Parameter = param(constraints.positive, default=1.0)

    def sides(self) -> tuple[Tensor, Tensor]:
        """Return the mean lengths of the tail below and above."""
        return self.scale * self.asymmetry, self.scale / self.asymmetry

    @property
    def left_scale(self) -> Tensor:
        """Mean length of the tail below."""
        return self.sides()[0]

    @property
    def right_scale(self) -> Tensor:
        """Mean length of the tail above."""
        return self.sides()[1]


class AsymmetricLaplaceQuantile(TwoSided):
    """Asymmetric Laplace distribution whose quantile at `quantile` is `loc`.

    Its log density is the check loss of quantile regression.

    Density ``f(x) = exp(-abs(x - loc) / (a if x < loc else b)) / (a + b)`` with ``a = scale / (1 -
    quantile)`` and ``b = scale / quantile``.

    Parameters
    ----------
    loc : Tensor or number
        Mode, and the quantile.
    scale : Tensor or number, positive
    quantile : Tensor or number in (0, 1)
        Probability of a draw below `loc`.
    """

    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    quantile: Parameter = param(constraints.open_interval(0.0, 1.0), default=0.5)

    def sides(self) -> tuple[Tensor, Tensor]:
        """Return the mean lengths of the tail below and above."""
        return self.scale / (1.0 - self.quantile), self.scale / self.quantile


class SkewLogistic(Distribution):
    """Logistic distribution whose cdf is raised to a power.

    Density ``f(x) = asymmetry * exp(-z) / (scale * (1 + exp(-z)) ** (asymmetry + 1))`` with ``z =
    (x - loc) / scale``.

    Parameters
    ----------
    loc : Tensor or number
    scale : Tensor or number, positive
    asymmetry : Tensor or number, positive
        The power: below 1 the lower tail is longer, above 1 the upper one.
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)
    asymmetry: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.finite(self._from_exponential(rng.exponential(shape)))

    def _from_exponential(self, e: Tensor) -> Tensor:
        """The quantile at exp(-e): sigmoid(z) = exp(-e / asymmetry)."""
        y = e / self.asymmetry
        # log(s / (1 - s)) of s = exp(-y)
        return self.loc - self.scale * (y + log(-expm1(-y)))

    def _log_prob(self, x: Tensor) -> Tensor:
        z, a = (self.loc - x) / self.scale, self.asymmetry
        # z - softplus(z) = -softplus(-z), which keeps the rest for large z
        return log(a) - log(self.scale) - softplus(-z) - a * softplus(z)

    def _log_cdf(self, x: Tensor) -> Tensor:
        return -self.asymmetry * softplus((self.loc - x) / self.scale)

    def _cdf(self, x: Tensor) -> Tensor:
        return exp(self._log_cdf(x))

    def _survival(self, x: Tensor) -> Tensor:
        return -expm1(self._log_cdf(x))

    def _icdf(self, p: Tensor) -> Tensor:
        return self._from_exponential(-log(p))

    def _entropy(self) -> Tensor:
        # E softplus(-z) = 1 / a, since its distribution is exponential.
        a = self.asymmetry
        return log(self.scale / a) + digamma(a) + EULER_GAMMA + (a + 1.0) / a

    def _mean(self) -> Tensor:
        return self.loc + self.scale * (digamma(self.asymmetry) + EULER_GAMMA)

    def _mode(self) -> Tensor:
        return self.loc + self.scale * log(self.asymmetry)

    def _variance(self) -> Tensor:
        return self.scale * self.scale * (polygamma(1, self.asymmetry) + math.pi**2 / 6.0)

    def _skewness(self) -> Tensor:
        spread = polygamma(1, self.asymmetry) + math.pi**2 / 6.0
        return (polygamma(2, self.asymmetry) + 2.0 * ZETA_3) / power(spread, 1.5)

    def _kurtosis(self) -> Tensor:
        spread = polygamma(1, self.asymmetry) + math.pi**2 / 6.0
        return (polygamma(3, self.asymmetry) + math.pi**4 / 15.0) / (spread * spread)


class Moyal(Distribution):
    """Moyal distribution: an approximation to the loss of energy of a charged particle.

    Density ``f(x) = exp(-(z + exp(-z)) / 2) / (scale * sqrt(2 * pi))`` with ``z = (x - loc) /
    scale``.

    Parameters
    ----------
    loc : Tensor or number
        Mode.
    scale : Tensor or number, positive
    """

    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self.loc - self.scale * 2.0 * log(absolute(rng.normal(shape)))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        z = (x - self.loc) / self.scale
        return (z + exp(-z)) * -0.5 - (log(self.scale) + HALF_LOG_2PI)

    def _cdf(self, x: Tensor) -> Tensor:
        return erfc(exp((self.loc - x) / (2.0 * self.scale)) / ROOT_2)

    def _survival(self, x: Tensor) -> Tensor:
        return erf(exp((self.loc - x) / (2.0 * self.scale)) / ROOT_2)

    def _icdf(self, p: Tensor) -> Tensor:
        return self.loc - self.scale * 2.0 * log(-ndtri(p * 0.5))

    def _entropy(self) -> Tensor:
        return log(self.scale) + (0.5 * (EULER_GAMMA + math.log(2.0) + 1.0) + HALF_LOG_2PI)

    def _mean(self) -> Tensor:
        return self.loc + self.scale * (EULER_GAMMA + math.log(2.0))

    def _mode(self) -> Tensor:
        return self.loc

    def _variance(self) -> Tensor:
        return self.scale * self.scale * (0.5 * math.pi**2)

    def _skewness(self) -> Tensor:
        return self.scale * 0.0 + 28.0 * ROOT_2 * ZETA_3 / math.pi**3

    def _kurtosis(self) -> Tensor:
        return self.scale * 0.0 + 4.0


class GeneralizedNormal(Distribution):
    """Density prop. to exp(-abs((x - loc) / scale) ** power): Laplace at 1, normal at 2.

    Density ``f(x) = power / (2 * scale * gamma(1 / power)) * exp(-abs((x - loc) / scale) **
    power)``.

    Parameters
    ----------
    loc : Tensor or number
        Mean, median and mode.
    scale : Tensor or number, positive
    power : Tensor or number, positive
        Large for a flat top, small for heavy tails.
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)
    power: Parameter = param(constraints.positive)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        r = 1.0 / self.power
        # Finite both before and after the scale, by which a density divides.
        z = rng.finite(exp(rng.log_gamma(r, shape) * r))
        return rng.finite(self.loc + self.scale * where(lt(rng.uniform(shape), 0.5), -z, z))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        z = absolute((x - self.loc) / self.scale)
        constant = log(self.scale) + lgamma(1.0 + 1.0 / self.power) + math.log(2.0)
        # At the tip of a cusp the slopes of both sides are infinite; 0, their mean, stands there.
        tip = (z == 0.0) & (self.power < 1.0)
        return -where(tip, 0.0, power(where(tip, 1.0, z), self.power)) - constant

    def _cdf(self, x: Tensor) -> Tensor:
        z = (x - self.loc) / self.scale
        # Near the middle a line; the power may be no number there, and has no slope at 0.
        near = power(absolute(z).detach(), self.power.detach()) < 1e-18
        line = 0.5 + 0.5 * where(near, z, 0.0) * exp(-lgamma(1.0 + 1.0 / self.power))
        far = power(where(near, 1.0, absolute(z)), self.power)
        tail = gammaincc(1.0 / self.power, far) * 0.5
        return where(near, line, where(z < 0.0, tail, 1.0 - tail))

    def _survival(self, x: Tensor) -> Tensor:
        return self._cdf(2.0 * self.loc - x)

    def _entropy(self) -> Tensor:
        r = 1.0 / self.power
        return r + log(self.scale) + lgamma(1.0 + r) + math.log(2.0)

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean

    def _variance(self) -> Tensor:
        r = 1.0 / self.power
        return self.scale * self.scale * exp(lgamma(3.0 * r) - lgamma(r))

    def _skewness(self) -> Tensor:
        return self.loc * 0.0

    def _kurtosis(self) -> Tensor:
        r = 1.0 / self.power
        return exp(lgamma(5.0 * r) + lgamma(r) - 2.0 * lgamma(3.0 * r)) - 3.0


class JohnsonSU(Distribution):
    """Distribution of ``loc + scale * sinh((n - skew) / tailweight)`` for n standard normal.

    Density ``f(x) = tailweight * exp(-w ** 2 / 2) / (scale * sqrt(2 * pi) * sqrt(1 + z ** 2))``
    with ``z = (x - loc) / scale`` and ``w = skew + tailweight * asinh(z)``.

    Parameters
    ----------
    skew : Tensor or number
        Negative for a longer upper tail.
    tailweight : Tensor or number, positive
        Small for heavy tails.
    loc : Tensor or number
    scale : Tensor or number, positive
    """

    skew: Parameter = param(constraints.real)
    tailweight: Parameter = param(constraints.positive)
    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        # Finite both before and after the scale, by which a density divides.
        z = rng.finite(sinh((rng.normal(shape) - self.skew) / self.tailweight))
        return rng.finite(self.loc + self.scale * z)

    def _from_normal(self, n: Tensor) -> Tensor:
        return self.loc + self.scale * sinh((n - self.skew) / self.tailweight)

    def _normal(self, x: Tensor) -> Tensor:
        return self.skew + self.tailweight * asinh((x - self.loc) / self.scale)

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        n = self._normal(x)
        slope = 0.5 * log1p_square((x - self.loc) / self.scale)
        return n * n * -0.5 - slope + (log(self.tailweight / self.scale) - HALF_LOG_2PI)

    def _cdf(self, x: Tensor) -> Tensor:
        return ndtr(self._normal(x))

    def _log_cdf(self, x: Tensor) -> Tensor:
        return log_ndtr(self._normal(x))

    def _log_survival(self, x: Tensor) -> Tensor:
        return log_ndtr(-self._normal(x))

    def _icdf(self, p: Tensor) -> Tensor:
        return self._from_normal(ndtri(p))

    def _mean(self) -> Tensor:
        w = 0.5 / (self.tailweight * self.tailweight)
        return self.loc - self.scale * exp(w) * sinh(self.skew / self.tailweight)

    def _variance(self) -> Tensor:
        square = 1.0 / (self.tailweight * self.tailweight)
        e, ratio = expm1(square), 2.0 * self.skew / self.tailweight
        # (w - 1)(w cosh(2 skew / tailweight) + 1) / 2 with w = exp(1 / tailweight^2)
        hill = (exp(square + ratio) + exp(square - ratio)) * 0.5
        return self.scale * self.scale * 0.5 * e * (hill + 1.0)


class SkewNormal(Distribution):
    """Normal distribution leaning to one side: density prop. to a normal times a normal cdf.

    Density ``f(x) = 2 * exp(-z ** 2 / 2) * Phi(alpha * z) / (scale * sqrt(2 * pi))`` with ``z = (x
    - loc) / scale``.

    Parameters
    ----------
    loc : Tensor or number
    scale : Tensor or number, positive
    alpha : Tensor or number
        Positive for a longer upper tail; 0 for a normal.
    """

    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    alpha: Parameter = param(constraints.real, default=1.0)
    support = constraints.real

    def _share(self) -> Tensor:
        """Return delta, the share of a half-normal in a draw."""
        return self.alpha / sqrt(1.0 + self.alpha * self.alpha)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        half, rest = absolute(rng.normal(shape)), rng.normal(shape)
        z = self._share() * half + rest / sqrt(1.0 + self.alpha * self.alpha)
        return self.loc + self.scale * z

    def _log_prob(self, x: Tensor) -> Tensor:
        z = (x - self.loc) / self.scale
        constant = log(self.scale) + (HALF_LOG_2PI - math.log(2.0))
        return z * z * -0.5 + log_ndtr(self.alpha * z) - constant

    def _cdf(self, x: Tensor) -> Tensor:
        return in_double(_skewed_cdf, (x - self.loc) / self.scale, self.alpha)

    def _survival(self, x: Tensor) -> Tensor:
        return in_double(_skewed_cdf, (self.loc - x) / self.scale, -self.alpha)

    def _mean(self) -> Tensor:
        return self.loc + self.scale * self._share() * math.sqrt(2.0 / math.pi)

    def _variance(self) -> Tensor:
        d = self._share()
        return self.scale * self.scale * (1.0 - d * d * (2.0 / math.pi))

    def _standard(self) -> tuple[Tensor, Tensor]:
        m = self._share() * math.sqrt(2.0 / math.pi)
        return m, 1.0 - m * m

    def _skewness(self) -> Tensor:
        m, square = self._standard()
        return (4.0 - math.pi) / 2.0 * m * m * m / power(square, 1.5)

    def _kurtosis(self) -> Tensor:
        m, square = self._standard()
        return 2.0 * (math.pi - 3.0) * m * m * m * m / (square * square)


def _skewed_cdf(z: Tensor, alpha: Tensor) -> Tensor:
    """From the mass of the thin tail: what is elsewhere is that and a normal, of one sign."""
    z = clamp(z, -40.0, 40.0)
    below, left = z < 0.0, alpha < 0.0
    size = where(below, -z, z)
    thin = thin_tail(size, where(left, -alpha, alpha))
    wide = erfc(where(below == left, size, 0.0) * math.sqrt(0.5)) - thin
    inner = erf(where(below, 0.0, z) * math.sqrt(0.5)) + thin
    return where(left, where(below, wide, 1.0 - thin), where(below, thin, inner))


def thin_tail(h: Tensor, a: Tensor) -> Tensor:
    """P(X < -h) of a skew normal X leaning upwards, for h and a from 0 on.

    That is ndtr(-h) - 2 T(h, a), or the integral of exp(-h^2 (1 + t^2) / 2) / (1 + t^2) over t > a,
    divided by pi: by Gauss's rule in log(t / a), up to where it is 1e-17 of what it is at a.
    """
    c = a * h
    plain, start = (c < 1.0) & (a < 1.0), c < 1e-9
    # Where the integral is not used, any numbers.
    some = plain | start
    steep, drop = where(some, 2.0, a), where(some, 1.0, c)
    half = unsqueeze(log1p(80.0 / (drop * drop)) * 0.25, -1).detach()
    s = exp(half * (half.new_tensor(NODES) + 1.0))
    d, t = unsqueeze(drop, -1) * s, unsqueeze(steep, -1) * s
    terms = exp((unsqueeze(h * h, -1) + d * d) * -0.5) / (1.0 / t + t)
    integral = total(half * half.new_tensor(WEIGHTS) * terms, -1) * (1.0 / math.pi)
    # Beside 0 a line, its next term being c^2 as large.
    line = atan2(1.0 + a * 0.0, a) * (1.0 / math.pi) - h * math.sqrt(0.5 / math.pi)
    mild = where(plain, a, 0.5)
    return where(plain, ndtr(-h) - 2.0 * owens_t(h, mild), where(start, line, integral))


def owens_t(h: Tensor, a: Tensor) -> Tensor:
    """Owen's T function, by Gauss's rule on [0, min(a, 1 / a)]."""
    size, up = absolute(a), absolute(h)
    steep = size > 1.0
    # T(h, a) = (ndtr(h) + ndtr(ah)) / 2 - ndtr(h) ndtr(ah) - T(ah, 1 / a) for positive ones, with
    # upper tails in place of cdfs.
    slope = where(steep, 1.0 / where(steep, size, 1.0), size)
    at = where(steep, size * up, up)
    half = unsqueeze(slope, -1) * 0.5
    x = half * (half.new_tensor(NODES) + 1.0)
    square = unsqueeze(at * at, -1)
    values = exp(square * (1.0 + x * x) * -0.5) / (1.0 + x * x)
    integral = total(values * half * half.new_tensor(WEIGHTS), -1) * (0.5 / math.pi)
    p, q = ndtr(-up), ndtr(-(size * up))
    other = 0.5 * (p + q) - p * q - integral
    return where(a < 0.0, -1.0, 1.0) * where(steep, other, integral)


class SinhArcsinh(Distribution):
    """A normal number with its tails stretched: asinh, shifted and scaled, then sinh.

    Density ``f(x) = c * cosh(v) * exp(-sinh(v) ** 2 / 2) / (tailweight * sqrt(2 * pi * (1 + u
    ** 2)))`` with ``c = sinh(asinh(2) * tailweight) / (2 * scale)`` and ``u = c * (x - loc)``
    and ``v = asinh(u) / tailweight - skew``.

    Parameters
    ----------
    loc : Tensor or number
    scale : Tensor or number, positive
    skew : Tensor or number
        Positive for a longer upper tail; TFP's `skewness`.
    tailweight : Tensor or number, positive
        Above 1 for heavier tails than those of a normal.

    References
    ----------
    Jones and Pewsey (2009), with TFP's normalisation of the scale: the quantile of a normal at 2
    stays where it is without skewness.
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)
    skew: Parameter = param(constraints.real, default=0.0)
    tailweight: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    # Of large tail weights 1 / sinh underflows, and what is divided by it overflows: from here on
    # their logarithms are used.
    _far = 40.0

    def _reach(self) -> Tensor:
        return self.tailweight * math.asinh(2.0)

    def _log_size(self) -> Tensor:
        """Log of what the argument of asinh is measured in: 2 scale / sinh(reach)."""
        t = self._reach()
        return log(self.scale) + math.log(4.0) - t - log1mexp(2.0 * t)

    def _from_normal(self, n: Tensor) -> Tensor:
        t, v = self._reach(), (asinh(n) + self.skew) * self.tailweight
        far = t > self._far
        near = 2.0 * sinh(where(far, 0.0, v)) / sinh(where(far, 1.0, t))
        w = where(far, v, 1.0)
        size = absolute(w)
        rest = where(w < 0.0, 2.0, -2.0) * expm1(-2.0 * size)
        return self.loc + self.scale * where(far, exp(size - t) * rest, near)

    def _normal(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return minus the log slope of asinh(y) in x, and asinh of the normal number."""
        t, apart = self._reach(), x - self.loc
        far = (t > self._far) & (apart != 0.0)
        log_apart, log_size = log(absolute(where(far, apart, 1.0))), self._log_size()
        log_y = log_apart - log_size
        # From exp(20) on the next term of asinh(y) = log(2 y) + ... is below rounding.
        huge = far & (log_y > 20.0)
        small = exp(where(huge, 0.0, where(far, log_y, 0.0)))
        sign_ = where(apart < 0.0, -1.0, 1.0)
        # At the location itself the slope is as large as a float may be.
        top = math.log(float(dtypes.finfo(t.array.dtype).max)) - 2.0
        plain = (apart / self.scale) * 0.5 * sinh(where(far, 1.0, minimum(t, top)))
        y = where(far, sign_ * small, plain)
        outer = where(huge, sign_ * (log_y + math.log(2.0)), asinh(y))
        steep = where(huge, log_apart, 0.5 * log1p_square(y) + log_size)
        return steep, outer / self.tailweight - self.skew

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.finite(self._from_normal(rng.normal(shape)))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        steep, inner = self._normal(x)
        n = sinh(inner)
        size = absolute(inner)
        # log(cosh(inner)), which is finite where the cosine is not
        slope = size + log1p(exp(-2.0 * size)) - math.log(2.0) - steep
        return n * n * -0.5 + slope - log(self.tailweight) - HALF_LOG_2PI

    def _cdf(self, x: Tensor) -> Tensor:
        return ndtr(sinh(self._normal(x)[1]))

    def _log_cdf(self, x: Tensor) -> Tensor:
        return log_ndtr(sinh(self._normal(x)[1]))

    def _log_survival(self, x: Tensor) -> Tensor:
        return log_ndtr(-sinh(self._normal(x)[1]))

    def _icdf(self, p: Tensor) -> Tensor:
        return self._from_normal(ndtri(p))
