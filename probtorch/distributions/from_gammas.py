"""Functions of gamma and beta numbers: logarithms, odds, log odds, and a t with two tails."""

from __future__ import annotations

import math

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.beta import Beta, smaller_share
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.lifetimes import log_quotient
from probtorch.distributions.precision import doubled
from probtorch.distributions.rarer_counts import exact_betaln
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import maximum, sqrt, where
from probtorch.ops.exponentials import exp, expm1, log, sigmoid, softplus
from probtorch.ops.special import (
    betainc,
    betaln,
    digamma,
    gammainc,
    gammaincc,
    lgamma_difference,
    log1p_square,
    polygamma,
    stirling_rest,
)
from probtorch.ops.trigonometry import asinh
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

    def _log_prob(self, x: Tensor) -> Tensor:
        y = SigmoidBeta(self.concentration, self.mixing_concentration, validate_args=False)
        return y._log_prob(log_quotient(x, self.mixing_rate)) - log(x)

    def _smaller_share(self, x: Tensor) -> tuple[Tensor, Tensor]:
        odds = maximum(x, 0.0) / self.mixing_rate
        return smaller_share(self.concentration, self.mixing_concentration, odds)

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        far, part = self._smaller_share(x)
        return where(far, 1.0 - part, part)

    @doubled
    def _survival(self, x: Tensor) -> Tensor:
        far, part = self._smaller_share(x)
        return where(far, part, 1.0 - part)

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

    def _log_prob(self, x: Tensor) -> Tensor:
        # A beta density of the smaller share v, of either side: d v / d x = v (1 - v).
        a, b = self.concentration1, self.concentration0
        less = x < 0.0
        y = where(less, x, -x)
        inside = y > -80.0
        z = where(inside, y, 0.0)
        first, second = where(less, a, b), where(less, b, a)
        v = sigmoid(z)
        beta = Beta(first, second, validate_args=False)
        usual = beta._log_prob(v) - softplus(-z) - softplus(z)
        # Of so small a share v, log1p(exp(y)) is v as well.
        tail = first * y - (first + second) * exp(where(inside, -80.0, y))
        return where(inside, usual, tail - exact_betaln(first, second))

    @doubled
    def _nearer_tail(self, x: Tensor) -> Tensor:
        """Return the probability below x for x < 0, else that above it."""
        less = x < 0.0
        y = where(less, x, -x)
        a, b = self.concentration1, self.concentration0
        first, second = where(less, a, b), where(less, b, a)
        # Of so small a share, if it is one at all, the cdf is a power.
        tiny = y < -80.0
        power = exp(first * where(tiny, y, -80.0) - log(first) - exact_betaln(first, second))
        return where(tiny, power, betainc(first, second, sigmoid(where(tiny, 0.0, y))))

    def _cdf(self, x: Tensor) -> Tensor:
        part = self._nearer_tail(x)
        return where(x < 0.0, part, 1.0 - part)

    def _survival(self, x: Tensor) -> Tensor:
        part = self._nearer_tail(x)
        return where(x < 0.0, 1.0 - part, part)

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

    def _odds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return half the log odds of the beta number, and z / sqrt(a + b)."""
        z = (x - self.loc) / self.scale / sqrt(self.a + self.b)
        return asinh(z), z

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        half, z = self._odds(x)
        y = SigmoidBeta(self.a, self.b, validate_args=False)
        # x = loc + scale sqrt(a + b) sinh(half), half = y / 2
        slope = 0.5 * log1p_square(z) + log(0.5 * self.scale) + 0.5 * log(self.a + self.b)
        return y._log_prob(2.0 * half) - slope

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        return SigmoidBeta(self.a, self.b, validate_args=False)._cdf(2.0 * self._odds(x)[0])

    @doubled
    def _survival(self, x: Tensor) -> Tensor:
        return SigmoidBeta(self.a, self.b, validate_args=False)._survival(2.0 * self._odds(x)[0])

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
