"""Kin of the gamma, the beta and Student's t: chi, half t, F, and the inverse Gaussian.

Densities are those of the relatives at a function of the value, with the kernels that keep their
digits for large parameters.
"""

from __future__ import annotations

import math

from probtorch.core.dtype import finfo
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.beta import shares_of_quotient
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.heavy_tailed import StudentT, log_power_tail
from probtorch.distributions.normal import HALF_LOG_2PI, ROOT_2
from probtorch.distributions.precision import doubled, in_double
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, maximum, minimum, sqrt, where
from probtorch.ops.exponentials import exp, log, log1p
from probtorch.ops.special import (
    betaln,
    digamma,
    erfcx,
    gammainc,
    gammaincc,
    lgamma,
    lgamma_difference,
    log1p_less,
    ndtr,
    stirling_rest,
)
from probtorch.tensor import Tensor

__all__ = ["Chi", "FisherSnedecor", "HalfStudentT", "InverseGaussian"]

# Coefficients of the variance of a chi number in powers of 1 / df. They follow from
# mean(df) mean(df + 1) = df, power by power; from LARGE_DF on their sum is exact to 1e-14.
CHI_VARIANCE = (
    1 / 2, -1 / 8, -1 / 16, 5 / 128, 23 / 256, -53 / 1024, -593 / 2048, 5165 / 32768,
    110123 / 65536, -231743 / 262144, -8113223 / 524288, 33497425 / 4194304,
)  # fmt: skip
LARGE_DF = 25.0
# Below it the square of a number is nothing beside 1, and soon no number of single precision.
SQUARED = 1e-15


class Chi(Distribution):
    """Length of a vector of `df` standard normal numbers: the root of a chi-squared one.

    Density ``f(x) = x ** (df - 1) * exp(-x ** 2 / 2) / (2 ** (df / 2 - 1) * gamma(df / 2))``.

    Parameters
    ----------
    df : Tensor or number, positive
    """

    df: Parameter = param(constraints.positive)
    support = constraints.positive

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.positive(exp((rng.log_gamma(self.df * 0.5, shape) + math.log(2.0)) * 0.5))

    def _gamma(self) -> Gamma:
        """Return the distribution of x^2 / 2."""
        return Gamma(self.df * 0.5, validate_args=False)

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        # Where the square of x is no double, the density is a power of it.
        near = x < SQUARED
        whole = self._gamma()._log_prob(0.5 * where(near, 1.0, x * x)) + log(where(near, 1.0, x))
        y, half = where(near, x, 1.0), self.df * 0.5
        power = (self.df - 1.0) * log(y) - (half - 1.0) * math.log(2.0) - lgamma(half)
        return where(near, power, whole)

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        usual = clamp(x, 1e-140, 1e150)
        return gammainc(self.df * 0.5, usual * usual * 0.5) * self._below_usual(x)

    @doubled
    def _survival(self, x: Tensor) -> Tensor:
        usual = clamp(x, 1e-140, 1e150)
        half, square = self.df * 0.5, usual * usual * 0.5
        below = gammainc(half, square) * self._below_usual(x)
        return where(x < 1e-140, 1.0 - below, gammaincc(half, square))

    def _below_usual(self, x: Tensor) -> Tensor:
        """The cdf over that at 1e-140, below which it is a power of x."""
        some = x > 0.0
        less = minimum(log(where(some, x, 1.0)) - math.log(1e-140), 0.0)
        return where(some, exp(self.df * less), 0.0)

    def _entropy(self) -> Tensor:
        a = self.df * 0.5
        return lgamma(a) + a - 0.5 * math.log(2.0) - (a - 0.5) * digamma(a)

    def _mean(self) -> Tensor:
        return math.sqrt(2.0) * exp(lgamma_difference(self.df * 0.5, 0.5))

    def _mode(self) -> Tensor:
        # Without a hill the density grows towards 0, which is outside.
        hill = self.df > 1.0
        return where(hill, sqrt(where(hill, self.df - 1.0, 1.0)), math.nan)

    def _variance(self) -> Tensor:
        # df - mean^2 has two large terms; their difference as a series in 1 / df does not cancel.
        large = self.df > LARGE_DF
        df = where(large, 1.0, self.df)
        m = math.sqrt(2.0) * exp(lgamma_difference(df * 0.5, 0.5))
        inverse = 1.0 / where(large, self.df, LARGE_DF)
        series = inverse * 0.0
        for c in reversed(CHI_VARIANCE):
            series = series * inverse + c
        return where(large, series, df - m * m)


class HalfStudentT(Distribution):
    """Distribution of abs(x) for x Student's t around 0.

    Density ``f(x) = 2 * gamma((df + 1) / 2) / (gamma(df / 2) * sqrt(pi * df) * scale) * (1 + (x /
    scale) ** 2 / df) ** (-(df + 1) / 2)``.

    Parameters
    ----------
    df : Tensor or number, positive
        Degrees of freedom.
    scale : Tensor or number, positive
    """

    df: Parameter = param(constraints.positive)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.nonnegative

    def _whole(self) -> StudentT:
        return StudentT(self.df, 0.0, self.scale, validate_args=False)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return absolute(self._whole()._rsample(rng, shape))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        return self._whole()._log_prob(x) + math.log(2.0)

    def _near_zero(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return whether the cdf is a line up to x, that line, and an x where it is none.

        The cdf is f(0) x (1 - (df + 1) / (6 df) z^2 + ...), and a share of z^2 has no slope at 0.
        """
        x = where(x < 0.0, 0.0, x)
        z = x / self.scale
        near = z * z * (1.0 + 1.0 / self.df) < float(finfo(z.array.dtype).eps)
        start = where(near, x, 0.0)
        line = exp(self._log_prob(start * 0.0)) * start
        return near, line, where(near, self.scale, x)

    @doubled
    def _survival(self, x: Tensor) -> Tensor:
        near, line, x = self._near_zero(x)
        return where(near, 1.0 - line, 2.0 * self._whole()._survival(x))

    def _log_survival(self, x: Tensor) -> Tensor:
        return log_power_tail(self, self._survival, x, x, self.df, sides=1)

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        near, line, x = self._near_zero(x)
        z = x / self.scale
        half = self.df * 0.0 + 0.5
        below, _ = shares_of_quotient(half, self.df * 0.5, z, sqrt(self.df), 2.0)
        return where(near, line, below)

    def _entropy(self) -> Tensor:
        return self._whole()._entropy() - math.log(2.0)

    def _mean(self) -> Tensor:
        df = maximum(self.df, 1.0 + 1e-9)
        size = exp(lgamma_difference(df * 0.5, 0.5)) / (df - 1.0) * sqrt(df / math.pi)
        return where(self.df > 1.0, self.scale * 2.0 * size, math.inf)

    def _mode(self) -> Tensor:
        return self.scale * 0.0

    def _variance(self) -> Tensor:
        df, m = where(self.df > 2.0, self.df, 3.0), where(self.df > 2.0, self._mean(), 0.0)
        spread = self.scale * self.scale * (df / (df - 2.0)) - m * m
        return where(self.df > 2.0, spread, math.inf)


class FisherSnedecor(Distribution):
    """F distribution: ratio of two chi-squared numbers, each over its degrees of freedom.

    Density ``f(x) = (df1 / df2) ** (df1 / 2) * x ** (df1 / 2 - 1) * (1 + df1 / df2 * x) ** (-(df1 +
    df2) / 2) / B(df1 / 2, df2 / 2)``.

    Parameters
    ----------
    df1, df2 : Tensor or number, positive
        Degrees of freedom of the numerator and the denominator.
    """

    df1: Parameter = param(constraints.positive)
    df2: Parameter = param(constraints.positive)
    support = constraints.positive

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        a, b = self.df1 * 0.5, self.df2 * 0.5
        ratio = rng.log_gamma(a, shape) - rng.log_gamma(b, shape)
        return rng.positive(exp(ratio + log(self.df2 / self.df1)))

    def _log_prob(self, x: Tensor) -> Tensor:
        return in_double(_log_f, self.df1 * 0.5, self.df2 * 0.5, x)

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        return shares_of_quotient(self.df1 * 0.5, self.df2 * 0.5, x, self.df2 / self.df1)[0]

    @doubled
    def _survival(self, x: Tensor) -> Tensor:
        return shares_of_quotient(self.df1 * 0.5, self.df2 * 0.5, x, self.df2 / self.df1)[1]

    def _entropy(self) -> Tensor:
        a, b = self.df1 * 0.5, self.df2 * 0.5
        spread = (1.0 - a) * digamma(a) - (1.0 + b) * digamma(b) + (a + b) * digamma(a + b)
        return betaln(a, b) + spread + log(self.df2 / self.df1)

    def _mean(self) -> Tensor:
        finite = self.df2 > 2.0
        b = where(finite, self.df2, 3.0)
        return where(finite, b / (b - 2.0), math.inf)

    def _mode(self) -> Tensor:
        top = (self.df1 - 2.0) / self.df1 * (self.df2 / (self.df2 + 2.0))
        return where(self.df1 > 2.0, top, math.nan)

    def _variance(self) -> Tensor:
        finite = self.df2 > 4.0
        a, b = self.df1, where(finite, self.df2, 5.0)
        m = b / (b - 2.0)
        return where(finite, 2.0 * m * m * (a + b - 2.0) / (a * (b - 4.0)), math.inf)


def _log_f(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Log density of the ratio of gamma numbers of shapes a and b, each over its mean.

    Beside a constant and log x it is a log x - (a + b) log1p(p (x - 1)) with p = a / (a + b): 0 at
    x = 1 and falling on both sides. Of 1 / x it is the same with a and b exchanged; with the
    smaller of both first p is at most 1/2, and no term is much larger than their difference.
    """
    first = a <= b
    low, n = where(first, a, b), a + b
    p = low / n
    d = where(first, x - 1.0, (1.0 - x) / x)
    near = absolute(d) < 0.5
    # The terms linear in d cancel: n p is the smaller one.
    c = where(near, d, 0.0)
    inside = low * log1p_less(c) - n * log1p_less(p * c)
    far = where(near, 0.0, d)
    size = where(first, 1.0, -1.0) * log(where(near, 1.0, x))
    outside = low * size - n * log1p(p * far)
    rests = stirling_rest(n) - (stirling_rest(a) + stirling_rest(b))
    return where(near, inside, outside) + rests - log(x)


def _one_of_both_roots(loc: Tensor, concentration: Tensor, n: Tensor, u: Tensor) -> Tensor:
    w = loc * (n * n) / (2.0 * concentration)
    low = 1.0 / (1.0 + w + sqrt(w) * sqrt(w + 2.0))
    return loc * where(u * (1.0 + low) < 1.0, low, 1.0 / low)


class InverseGaussian(Distribution):
    """First time at which a walk with drift reaches a level; also called Wald.

    Density ``f(x) = sqrt(concentration / (2 * pi * x ** 3)) * exp(-concentration * (x - loc) ** 2 /
    (2 * loc ** 2 * x))``.

    Parameters
    ----------
    loc : Tensor or number, positive
        Mean.
    concentration : Tensor or number, positive
        The variance is ``loc ** 3 / concentration``.
    """

    loc: Parameter = param(constraints.positive)
    concentration: Parameter = param(constraints.positive)
    support = constraints.positive

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        # Michael, Schucany and Haas (1976); the smaller root of a quadratic without a difference.
        n, u = rng.normal(shape), rng.uniform(shape)
        x = in_double(_one_of_both_roots, self.loc, self.concentration, n, u)
        return self._implicit(rng.positive(rng.finite(x.detach())))

    def _implicit(self, x: Tensor) -> Tensor:
        """A draw with the derivative of its quantile function: -dF / density."""
        f = self._cdf(x)
        density = exp(self._log_prob(x).detach())
        return x - (f - f.detach()) / maximum(density, float(finfo(x.array.dtype).tiny))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        z = (x - self.loc) / self.loc
        size = 0.5 * log(self.concentration) - 1.5 * log(x) - HALF_LOG_2PI
        return size - self.concentration * (z * z) / (2.0 * x)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first normal deviate and exp(2 concentration / loc) ndtr(-second)."""
        root, ratio = sqrt(self.concentration / x), x / self.loc
        a, b = root * (ratio - 1.0), root * (ratio + 1.0)
        # 2 concentration / loc = (b^2 - a^2) / 2
        return a, exp(a * a * -0.5) * (erfcx(b / ROOT_2) * 0.5)

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        inside = (x > 0.0) & (x < math.inf)
        a, rest = self._parts(where(inside, x, 1.0))
        return where(inside, ndtr(a) + rest, where(x > 0.0, 1.0, 0.0))

    @doubled
    def _survival(self, x: Tensor) -> Tensor:
        inside = (x > 0.0) & (x < math.inf)
        a, rest = self._parts(where(inside, x, 1.0))
        # Far above both deviates have tails of the same height exp(-a^2 / 2).
        far = a > 1.0
        above = exp(a * a * -0.5) * (erfcx(where(far, a, 1.0) / ROOT_2) * 0.5) - rest
        above = where(far, above, ndtr(-a) - rest)
        return where(inside, above, where(x > 0.0, 0.0, 1.0))

    def _mean(self) -> Tensor:
        return self.loc

    def _variance(self) -> Tensor:
        return self.loc * self.loc * (self.loc / self.concentration)

    def _mode(self) -> Tensor:
        # loc (sqrt(1 + r^2) - r), without the difference
        r = 1.5 * self.loc / self.concentration
        return self.loc / (sqrt(1.0 + r * r) + r)

    def _skewness(self) -> Tensor:
        return 3.0 * sqrt(self.loc / self.concentration)

    def _kurtosis(self) -> Tensor:
        return 15.0 * self.loc / self.concentration
