"""Functions of gamma and beta numbers: logarithms, odds, log odds, and a t with two tails."""

from __future__ import annotations

import math

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.beta import shares_at, shares_of_quotient
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.lifetimes import log_quotient
from probtorch.distributions.precision import doubled
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import maximum, sqrt, square, where
from probtorch.ops.exponentials import exp, expm1, log, log1p
from probtorch.ops.special import (
    betaln,
    digamma,
    gammainc,
    gammaincc,
    lgamma_difference,
    log1p_less,
    log1p_square,
    polygamma,
    stirling_rest,
)
from probtorch.ops.trigonometry import asinh, sinh
from probtorch.tensor import Tensor

__all__ = ["ExpGamma", "ExpInverseGamma", "GammaGamma", "SigmoidBeta", "SkewStudentT"]


class ExpGamma(Distribution):
    """Logarithm of a gamma number, which does not underflow for small concentrations.

    Density ``f(x) = rate ** concentration / gamma(concentration) * exp(concentration * x - rate *
    exp(x))``.

    Parameters
    ----------
    concentration : Tensor or number, positive
    rate : Tensor or number, positive
    """

    concentration: Parameter = param(constraints.positive)
    rate: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real
    _sign = 1.0

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._sign * (rng.log_gamma(self.concentration, shape) - log(self.rate))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        y = self._sign * x + log(self.rate)
        # Far out the number itself would be infinite, or 0, in single precision.
        inside = (y < 80.0) & (y > -80.0)
        z, a = where(inside, y, 0.0), self.concentration
        usual = Gamma(a, 1.0, validate_args=False)._log_prob(exp(z)) + z
        # a y - exp(y) - lgamma(a), relative to its peak where the terms cancel.
        size = maximum(a, 1.0)
        d = y - log(size)
        near = (a > 1.0) & (d < 5.0)
        d = where(near, d, 0.0)
        peaked = size * (d - expm1(d)) - stirling_rest(size)
        apart, small = where(near, 0.0, y), where(near, 1.0, a)
        tail = small * apart - exp(apart) - lgamma_of(small)
        return where(inside, usual, where(near, peaked, tail))

    @doubled
    def _below(self, x: Tensor) -> Tensor:
        # Of so small a number, if it is one at all, the cdf is a power.
        y, a = x + log(self.rate), self.concentration
        tiny = y < -80.0
        power = exp(where(tiny, y, -80.0) * a - lgamma_difference(1.0, a))
        return where(tiny, power, gammainc(a, exp(where(tiny, 0.0, y))))

    @doubled
    def _above(self, x: Tensor) -> Tensor:
        y, a = x + log(self.rate), self.concentration
        tiny = y < -80.0
        power = -expm1(where(tiny, y, -80.0) * a - lgamma_difference(1.0, a))
        return where(tiny, power, gammaincc(a, exp(where(tiny, 0.0, y))))

    def _cdf(self, x: Tensor) -> Tensor:
        return self._below(x)

    def _survival(self, x: Tensor) -> Tensor:
        return self._above(x)

    def _mean(self) -> Tensor:
        return self._sign * (digamma(self.concentration) - log(self.rate))

    def _mode(self) -> Tensor:
        return self._sign * log(self.concentration / self.rate)

    def _variance(self) -> Tensor:
        return polygamma(1, self.concentration)

    def _skewness(self) -> Tensor:
        v = polygamma(1, self.concentration)
        return self._sign * polygamma(2, self.concentration) / (v * sqrt(v))

    def _kurtosis(self) -> Tensor:
        v = polygamma(1, self.concentration)
        return polygamma(3, self.concentration) / (v * v)

    def _entropy(self) -> Tensor:
        a = self.concentration
        return lgamma_of(a) + a * (1.0 - digamma(a))


class ExpInverseGamma(ExpGamma):
    """Logarithm of an inverse gamma number.

    Density ``f(x) = rate ** concentration / gamma(concentration) * exp(-concentration * x - rate *
    exp(-x))``.

    Parameters
    ----------
    concentration : Tensor or number, positive
    rate : Tensor or number, positive
        TFP's `scale`.
    """

    concentration: Parameter = param(constraints.positive)
    rate: Parameter = param(constraints.positive, default=1.0)
    _sign = -1.0

    def _cdf(self, x: Tensor) -> Tensor:
        return self._above(-x)

    def _survival(self, x: Tensor) -> Tensor:
        return self._below(-x)


def lgamma_of(a: Tensor) -> Tensor:
    """Log of the gamma function of a positive number, exact for small ones too."""
    return lgamma_difference(1.0, a) - log(a)


def log_density_of_odds(a: Tensor, b: Tensor, apart: Tensor) -> Tensor:
    """Log density of the log odds y of a beta number, where ``y - log(a / b)`` is `apart`.

    Relative to the highest density, whose terms of the size of the concentrations cancel in the
    algebra: ``-a log(p + q exp(-apart)) - b log(q + p exp(apart))`` with p = a / (a + b).
    """
    n = a + b
    p, q = a / n, b / n
    near = absolute(apart) < 1.0
    d, far = where(near, apart, 0.0), where(near, 1.0, apart)
    # Around the peak, where what is linear cancels, too.
    arch, tail = sinh(0.5 * d), log_of_two(q, p, -far) * a + log_of_two(p, q, far) * b
    close = log1p_less(q * expm1(-d)) * a + log1p_less(p * expm1(d)) * b + 4.0 * a * q * arch * arch
    rest = stirling_rest(a) + stirling_rest(b) - stirling_rest(n)
    return -where(near, close, tail) - rest


def log_of_two(w: Tensor, other: Tensor, t: Tensor) -> Tensor:
    """log(other + w exp(t)) for shares that sum to 1, where t is not near 0."""
    up = t > 700.0
    change = w * expm1(where(up, 0.0, t))
    deep = change < -0.5
    usual = log1p(where(deep, 0.0, change))
    low = log(where(deep, other + w * exp(where(deep, t, 0.0)), 1.0))
    high = where(up, t, 0.0) + log(where(up, w + other * exp(-where(up, t, 0.0)), 1.0))
    return where(up, high, where(deep, low, usual))


def log_of_product(x: Tensor, y: Tensor, product: Tensor) -> Tensor:
    """Log of a product of two factors, whose logs are x and y: their sum where it overflows."""
    there = (absolute(x) < 690.0) & (absolute(y) < 690.0) & (absolute(x + y) < 600.0)
    return where(there, log(where(there, product, 1.0)), where(there, 0.0, x + y))


class GammaGamma(Distribution):
    """Gamma numbers whose rate is itself a gamma draw: scaled odds, also called beta prime.

    Density ``f(x) = (x / mixing_rate) ** concentration * (1 + x / mixing_rate) ** (-concentration -
    mixing_concentration) / (x * B(concentration, mixing_concentration))``.

    Parameters
    ----------
    concentration : Tensor or number, positive
        Of the numbers.
    mixing_concentration : Tensor or number, positive
        Of their rate.
    mixing_rate : Tensor or number, positive
        Of their rate, and a scale of the numbers.
    """

    concentration: Parameter = param(constraints.positive)
    mixing_concentration: Parameter = param(constraints.positive)
    mixing_rate: Parameter = param(constraints.positive, default=1.0)
    support = constraints.positive

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        a, b = self.concentration, self.mixing_concentration
        odds = rng.log_gamma(a, shape) - rng.log_gamma(b, shape)
        return rng.positive(exp(odds + log(self.mixing_rate)))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        a, b = self.concentration, self.mixing_concentration
        size, share = log_quotient(x, self.mixing_rate), log_quotient(b, a)
        return log_density_of_odds(
            a, b, log_of_product(size, share, x / self.mixing_rate * (b / a))
        ) - log(x)

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        a, b = self.concentration, self.mixing_concentration
        return shares_of_quotient(a, b, x, self.mixing_rate)[0]

    @doubled
    def _survival(self, x: Tensor) -> Tensor:
        a, b = self.concentration, self.mixing_concentration
        return shares_of_quotient(a, b, x, self.mixing_rate)[1]

    def _mean(self) -> Tensor:
        b = self.mixing_concentration
        finite = b > 1.0
        size = self.concentration * self.mixing_rate / (where(finite, b, 2.0) - 1.0)
        return where(finite, size, math.inf)

    def _mode(self) -> Tensor:
        hill = self.concentration > 1.0
        top = (self.concentration - 1.0) / (self.mixing_concentration + 1.0) * self.mixing_rate
        return where(hill, top, math.nan)

    def _variance(self) -> Tensor:
        a, b = self.concentration, self.mixing_concentration
        finite = b > 2.0
        b = where(finite, b, 3.0)
        size = a * (a + b - 1.0) / ((b - 2.0) * (b - 1.0) * (b - 1.0))
        return where(finite, size * self.mixing_rate * self.mixing_rate, math.inf)

    def _entropy(self) -> Tensor:
        a, b = self.concentration, self.mixing_concentration
        y = SigmoidBeta(a, b, validate_args=False)
        return y._entropy() + y._mean() + log(self.mixing_rate)


class SigmoidBeta(Distribution):
    """Log odds of a beta number: a logistic distribution with two tails of its own.

    Density ``f(x) = exp(concentration1 * x) * (1 + exp(x)) ** (-concentration1 - concentration0) /
    B(concentration1, concentration0)``.

    Parameters
    ----------
    concentration1, concentration0 : Tensor or number, positive
        Rates of the lower and of the upper tail.
    """

    concentration1: Parameter = param(constraints.positive)
    concentration0: Parameter = param(constraints.positive)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.log_gamma(self.concentration1, shape) - rng.log_gamma(self.concentration0, shape)

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return log_density_of_odds(a, b, x - log_quotient(a, b))

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        part, rest = self._tails(x)
        return where(x > 0.0, rest, part)

    @doubled
    def _survival(self, x: Tensor) -> Tensor:
        part, rest = self._tails(x)
        return where(x > 0.0, part, rest)

    def _tails(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probability of the tail on the side of x, and of what is left."""
        far = x > 0.0
        y = where(far, -x, x)
        odds = exp(maximum(y, -700.0))
        return shares_at(self.concentration1, self.concentration0, far, odds, y)

    def _mean(self) -> Tensor:
        return digamma(self.concentration1) - digamma(self.concentration0)

    def _mode(self) -> Tensor:
        return log(self.concentration1 / self.concentration0)

    def _variance(self) -> Tensor:
        return polygamma(1, self.concentration1) + polygamma(1, self.concentration0)

    def _skewness(self) -> Tensor:
        v = self._variance()
        third = polygamma(2, self.concentration1) - polygamma(2, self.concentration0)
        return third / (v * sqrt(v))

    def _kurtosis(self) -> Tensor:
        v = self._variance()
        return (polygamma(3, self.concentration1) + polygamma(3, self.concentration0)) / (v * v)

    def _entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        both = (a + b) * digamma(a + b)
        return betaln(a, b) + both - a * digamma(a) - b * digamma(b)


class SkewStudentT(Distribution):
    """Student's t distribution with tails of two weights [jones2003]_.

    Density ``f(x) = (1 + r) ** (a + 1 / 2) * (1 - r) ** (b + 1 / 2) / (2 ** (a + b - 1) * B(a,
    b) * sqrt(a + b) * scale)`` with ``z = (x - loc) / scale`` and ``r = z / sqrt(a + b + z **
    2)``.

    Parameters
    ----------
    a, b : Tensor or number, positive
        The upper tail falls as ``x ** -(2 b + 1)``, the lower as that of `a`; equal ones give a t
        with 2 a degrees of freedom.
    loc : Tensor or number
    scale : Tensor or number, positive
    """

    a: Parameter = param(constraints.positive)
    b: Parameter = param(constraints.positive)
    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        # sinh of half the log odds of a beta number
        half = 0.5 * (rng.log_gamma(self.a, shape) - rng.log_gamma(self.b, shape))
        size = 0.5 * sqrt(self.a + self.b) * (exp(half) - exp(-half))
        return rng.finite(self.loc + self.scale * rng.finite(size))

    def _size(self, x: Tensor) -> Tensor:
        # sinh of half the log odds
        return (x - self.loc) / self.scale / sqrt(self.a + self.b)

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        a, b, z = self.a, self.b, self._size(x)
        up = z >= 0.0
        size = where(up, z, -z)
        huge = size > 1e8
        root = size + where(huge, size, sqrt(1.0 + square(where(huge, 0.0, size))))
        # The root of the odds over a / b, and its log.
        over = where(up, root, 1.0 / root) * (sqrt(b) / sqrt(a))
        apart = 2.0 * log_of_product(asinh(z), 0.5 * log_quotient(b, a), over)
        # x = loc + scale sqrt(a + b) sinh(y / 2)
        slope = 0.5 * log1p_square(z) + log(0.5 * self.scale) + 0.5 * log(a + b)
        return log_density_of_odds(a, b, apart) - slope

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        return SigmoidBeta(self.a, self.b, validate_args=False)._cdf(2.0 * asinh(self._size(x)))

    @doubled
    def _survival(self, x: Tensor) -> Tensor:
        return SigmoidBeta(self.a, self.b, validate_args=False)._survival(
            2.0 * asinh(self._size(x))
        )

    def _mean(self) -> Tensor:
        a, b = self.a, self.b
        finite = (a > 0.5) & (b > 0.5)
        a, b = where(finite, a, 1.0), where(finite, b, 1.0)
        ratio = exp(-lgamma_difference(a - 0.5, 0.5) - lgamma_difference(b - 0.5, 0.5))
        size = 0.5 * (a - b) * sqrt(a + b) * ratio
        return where(finite, self.loc + self.scale * size, math.nan)

    def _variance(self) -> Tensor:
        a, b = self.a, self.b
        finite = (a > 1.0) & (b > 1.0)
        a, b = where(finite, a, 2.0), where(finite, b, 2.0)
        square = 0.25 * (a + b) * ((a - b) * (a - b) + a + b - 2.0) / ((a - 1.0) * (b - 1.0))
        m = (where(finite, self._mean(), self.loc) - self.loc) / self.scale
        return where(finite, self.scale * self.scale * (square - m * m), math.inf)

    def _mode(self) -> Tensor:
        a, b = self.a, self.b
        top = (a - b) * sqrt(a + b) / (sqrt(2.0 * a + 1.0) * sqrt(2.0 * b + 1.0))
        return self.loc + self.scale * top
