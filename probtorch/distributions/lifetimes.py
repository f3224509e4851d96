"""Distributions of the positive half-line for lifetimes, sizes and speeds, by elementary functions.

Each has a cdf that can be inverted, so a draw is its quantile function at a uniform number, made of
an exponential one where that keeps both tails.
"""

from __future__ import annotations

import math

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.location_scale import EULER_GAMMA
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.precision import doubled
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import maximum, sqrt, where
from probtorch.ops.exponentials import exp, expm1, log, log1p, sigmoid, softplus
from probtorch.ops.exponentials import pow as power
from probtorch.ops.special import digamma, erf, erfc, gammainc, gammaincc, lgamma, log_ratio, ndtri
from probtorch.ops.trigonometry import sin
from probtorch.tensor import Tensor

__all__ = ["Burr", "Dagum", "Frechet", "Gompertz", "Levy", "LogLogistic", "Maxwell", "Rayleigh"]


class ByLogCdf(Distribution):
    """A distribution of positive numbers given by the log of its cdf, or of its survival."""

    support = constraints.positive

    def _from_exponential(self, e: Tensor) -> Tensor:
        """Return the point that is exceeded with probability exp(-e)."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its quantiles are")

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.positive(self._from_exponential(rng.exponential(shape)))

    def _icdf(self, p: Tensor) -> Tensor:
        return self._from_exponential(-log1p(-p))


def inside_or_one(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return where x is positive, and x there; 1 elsewhere."""
    inside = x > 0.0
    return inside, where(inside, x, 1.0)


def log_quotient(x: Tensor, y: Tensor) -> Tensor:
    """log(x / y), exact near 1 and where the quotient would under- or overflow."""
    low = x < y
    far = log_ratio(where(low, y, x), where(low, x, y))
    return where(low, -far, far)


class Gompertz(ByLogCdf):
    """Lifetimes whose hazard grows exponentially: ``concentration * rate * exp(rate * x)``.

    Density ``f(x) = concentration * rate * exp(rate * x - concentration * (exp(rate * x) - 1))``.

    Parameters
    ----------
    concentration : Tensor or number, positive
        Hazard at age 0 in units of `rate`.
    rate : Tensor or number, positive
        Growth of the log hazard per unit of time.
    """

    concentration: Parameter = param(constraints.positive)
    rate: Parameter = param(constraints.positive, default=1.0)
    support = constraints.nonnegative

    def _from_exponential(self, e: Tensor) -> Tensor:
        return log1p(e / self.concentration) / self.rate

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        y = self.rate * x
        return y - self.concentration * expm1(y) + log(self.concentration * self.rate)

    def _log_survival(self, x: Tensor) -> Tensor:
        return -self.concentration * expm1(self.rate * maximum(x, 0.0))

    def _cdf(self, x: Tensor) -> Tensor:
        return -expm1(self._log_survival(x))

    def _mode(self) -> Tensor:
        return maximum(-log(self.concentration), 0.0) / self.rate


class Levy(Distribution):
    """Distribution of ``loc + scale / n ** 2`` for n standard normal: first passage of a walk.

    Density ``f(x) = sqrt(scale / (2 * pi)) * exp(-scale / (2 * (x - loc))) / (x - loc) ** (3 /
    2)``.

    Parameters
    ----------
    loc : Tensor or number
        Lower bound.
    scale : Tensor or number, positive
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)

    @constraints.dependent_property(event_dim=0, is_discrete=False)
    def support(self) -> Constraint:
        """Values above `loc`."""
        return constraints.greater_than(self.loc)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        n = rng.normal(shape)
        return rng.finite(self.loc + rng.positive(self.scale / (n * n)))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        z = (x - self.loc) / self.scale
        return -0.5 / z - 1.5 * log(z) - (log(self.scale) + HALF_LOG_2PI)

    def _root(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inside, z = inside_or_one((x - self.loc) / self.scale)
        return inside, sqrt(0.5 / z)

    def _cdf(self, x: Tensor) -> Tensor:
        inside, root = self._root(x)
        return where(inside, erfc(root), 0.0)

    def _survival(self, x: Tensor) -> Tensor:
        inside, root = self._root(x)
        return where(inside, erf(root), 1.0)

    def _icdf(self, p: Tensor) -> Tensor:
        n = ndtri(p * 0.5)
        return self.loc + self.scale / (n * n)

    def _entropy(self) -> Tensor:
        return log(self.scale) + 0.5 * (1.0 + 3.0 * EULER_GAMMA + math.log(16.0 * math.pi))

    def _mean(self) -> Tensor:
        return self.scale * math.inf

    _variance = _mean

    def _mode(self) -> Tensor:
        return self.loc + self.scale / 3.0


class LogLogistic(ByLogCdf):
    """Distribution of exp(x) for x logistic: cdf ``1 / (1 + (x / scale) ** -concentration)``.

    Density ``f(x) = concentration / scale * z ** (concentration - 1) / (1 + z ** concentration) **
    2`` with ``z = x / scale``.

    Parameters
    ----------
    scale : Tensor or number, positive
        Median.
    concentration : Tensor or number, positive
        Tail exponent: the mean exists above 1, the variance above 2.
    """

    scale: Parameter = param(constraints.positive)
    concentration: Parameter = param(constraints.positive)

    def _from_exponential(self, e: Tensor) -> Tensor:
        return self.scale * exp((e + log(-expm1(-e))) / self.concentration)

    def _logit(self, x: Tensor) -> Tensor:
        return self.concentration * log_quotient(x, self.scale)

    def _log_prob(self, x: Tensor) -> Tensor:
        y = self._logit(x)
        return log(self.concentration) - log(x) - softplus(y) - softplus(-y)

    def _cdf(self, x: Tensor) -> Tensor:
        inside, x = inside_or_one(x)
        return where(inside, sigmoid(self._logit(x)), 0.0)

    def _survival(self, x: Tensor) -> Tensor:
        inside, x = inside_or_one(x)
        return where(inside, sigmoid(-self._logit(x)), 1.0)

    def _entropy(self) -> Tensor:
        return 2.0 + log(self.scale / self.concentration)

    def _moment_of(self, order: float) -> Tensor:
        """Return E x^order, infinite where the tail is too heavy."""
        finite = self.concentration > order
        b = order * math.pi / where(finite, self.concentration, 2.0 * order)
        return where(finite, power(self.scale, order) * (b / sin(b)), math.inf)

    def _mean(self) -> Tensor:
        return self._moment_of(1.0)

    def _variance(self) -> Tensor:
        second = self._moment_of(2.0)
        m = self._mean()
        finite = self.concentration > 2.0
        return where(finite, second - where(finite, m * m, 0.0), math.inf)

    def _mode(self) -> Tensor:
        # Without a hill the density grows towards 0, which is outside.
        hill = self.concentration > 1.0
        c = where(hill, self.concentration, 2.0)
        return where(hill, self.scale * power((c - 1.0) / (c + 1.0), 1.0 / c), math.nan)


class Frechet(Distribution):
    """Frechet distribution, the largest of many heavy-tailed draws: 1 / x for x Weibull.

    Density ``f(x) = concentration / scale * z ** (-concentration - 1) * exp(-z **
    (-concentration))`` with ``z = x / scale``.

    Parameters
    ----------
    concentration : Tensor or number, positive
        Tail exponent.
    scale : Tensor or number, positive
    """

    concentration: Parameter = param(constraints.positive)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.positive

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.positive(self._at(rng.exponential(shape)))

    def _at(self, e: Tensor) -> Tensor:
        return self.scale * power(e, -1.0 / self.concentration)

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        y = self.concentration * log_quotient(x, self.scale)
        return log(self.concentration) - log(x) - y - exp(-y)

    def _log_cdf(self, x: Tensor) -> Tensor:
        inside, x = inside_or_one(x)
        return where(inside, -exp(-self.concentration * log_quotient(x, self.scale)), -math.inf)

    def _cdf(self, x: Tensor) -> Tensor:
        return exp(self._log_cdf(x))

    def _survival(self, x: Tensor) -> Tensor:
        return -expm1(self._log_cdf(x))

    def _icdf(self, p: Tensor) -> Tensor:
        return self._at(-log(p))

    def _entropy(self) -> Tensor:
        c = self.concentration
        return 1.0 + EULER_GAMMA + EULER_GAMMA / c + log(self.scale / c)

    def _gamma(self, order: float) -> Tensor:
        """Return log E (x / scale)^order where that is finite."""
        return lgamma(1.0 - order / maximum(self.concentration, order * (1.0 + 1e-9)))

    def _mean(self) -> Tensor:
        return where(self.concentration > 1.0, self.scale * exp(self._gamma(1.0)), math.inf)

    def _variance(self) -> Tensor:
        finite = self.concentration > 2.0
        one = self._gamma(1.0)
        square = self.scale * self.scale * exp(2.0 * one)
        return where(finite, square * expm1(self._gamma(2.0) - 2.0 * one), math.inf)

    def _mode(self) -> Tensor:
        c = self.concentration
        return self.scale * power(c / (1.0 + c), 1.0 / c)


class Dagum(Distribution):
    """Dagum distribution of incomes: cdf ``(1 + (x / scale) ** -sharpness) ** -concentration``.

    Density ``f(x) = concentration * sharpness / x * z ** (-sharpness) * (1 + z ** (-sharpness)) **
    (-concentration - 1)`` with ``z = x / scale``.

    Parameters
    ----------
    concentration : Tensor or number, positive
    sharpness : Tensor or number, positive
        Tail exponent: the mean exists above 1, the variance above 2.
    scale : Tensor or number, positive
    """

    concentration: Parameter = param(constraints.positive)
    sharpness: Parameter = param(constraints.positive)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.positive

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.positive(self._at(rng.exponential(shape)))

    def _at(self, e: Tensor) -> Tensor:
        """The quantile at exp(-e)."""
        y = e / self.concentration
        return self.scale * exp(-(y + log(-expm1(-y))) / self.sharpness)

    def _log_prob(self, x: Tensor) -> Tensor:
        a, c = self.sharpness, self.concentration
        y = a * log_quotient(x, self.scale)
        # -y - softplus(-y) = -softplus(y)
        return log(a) + log(c) - log(x) - softplus(y) - c * softplus(-y)

    def _log_cdf(self, x: Tensor) -> Tensor:
        inside, x = inside_or_one(x)
        y = self.sharpness * log_quotient(x, self.scale)
        return where(inside, -self.concentration * softplus(-y), -math.inf)

    def _cdf(self, x: Tensor) -> Tensor:
        return exp(self._log_cdf(x))

    def _survival(self, x: Tensor) -> Tensor:
        return -expm1(self._log_cdf(x))

    def _icdf(self, p: Tensor) -> Tensor:
        return self._at(-log(p))

    def _entropy(self) -> Tensor:
        # With y the standard variable, E softplus(-y) = 1 / c and E y = digamma(c) + gamma.
        a, c = self.sharpness, self.concentration
        y = digamma(c) + EULER_GAMMA
        return log(self.scale / (a * c)) + y / a + y + (c + 1.0) / c

    def _log_moment(self, order: float) -> Tensor:
        """Return log E (x / scale)^order where that is finite."""
        r = order / maximum(self.sharpness, order * (1.0 + 1e-9))
        c = self.concentration
        return lgamma(1.0 - r) + lgamma(c + r) - lgamma(c)

    def _mean(self) -> Tensor:
        return where(self.sharpness > 1.0, self.scale * exp(self._log_moment(1.0)), math.inf)

    def _variance(self) -> Tensor:
        one = self._log_moment(1.0)
        square = self.scale * self.scale * exp(2.0 * one)
        spread = square * expm1(self._log_moment(2.0) - 2.0 * one)
        return where(self.sharpness > 2.0, spread, math.inf)

    def _mode(self) -> Tensor:
        a, c = self.sharpness, self.concentration
        hill = a * c > 1.0
        top = where(hill, a * c - 1.0, 1.0) / (a + 1.0)
        return where(hill, self.scale * power(top, 1.0 / a), math.nan)


class Burr(ByLogCdf):
    """Burr distribution, type XII: survival ``(1 + (x / scale) ** sharpness) ** -concentration``.

    With a sharpness of 1 it is the Pareto distribution of type II (Lomax).

    Density ``f(x) = concentration * sharpness / x * z ** sharpness * (1 + z ** sharpness) **
    (-concentration - 1)`` with ``z = x / scale``.

    Parameters
    ----------
    concentration : Tensor or number, positive
    sharpness : Tensor or number, positive
        The tail exponent is ``sharpness * concentration``.
    scale : Tensor or number, positive
    """

    concentration: Parameter = param(constraints.positive)
    sharpness: Parameter = param(constraints.positive)
    scale: Parameter = param(constraints.positive, default=1.0)

    def _from_exponential(self, e: Tensor) -> Tensor:
        y = e / self.concentration
        return self.scale * exp((y + log(-expm1(-y))) / self.sharpness)

    def _log_prob(self, x: Tensor) -> Tensor:
        a, c = self.sharpness, self.concentration
        y = a * log_quotient(x, self.scale)
        # y - softplus(y) = -softplus(-y)
        return log(a) + log(c) - log(x) - softplus(-y) - c * softplus(y)

    def _log_survival(self, x: Tensor) -> Tensor:
        inside, x = inside_or_one(x)
        y = self.sharpness * log_quotient(x, self.scale)
        return where(inside, -self.concentration * softplus(y), 0.0)

    def _cdf(self, x: Tensor) -> Tensor:
        return -expm1(self._log_survival(x))

    def _entropy(self) -> Tensor:
        a, c = self.sharpness, self.concentration
        y = digamma(c) + EULER_GAMMA
        return log(self.scale / (a * c)) - y / a + y + (c + 1.0) / c

    def _log_moment(self, order: float) -> Tensor:
        a, c = self.sharpness, self.concentration
        r = order / maximum(a, order / c * (1.0 + 1e-9))
        return lgamma(1.0 + r) + lgamma(c - r) - lgamma(c)

    def _mean(self) -> Tensor:
        finite = self.sharpness * self.concentration > 1.0
        return where(finite, self.scale * exp(self._log_moment(1.0)), math.inf)

    def _variance(self) -> Tensor:
        one = self._log_moment(1.0)
        square = self.scale * self.scale * exp(2.0 * one)
        spread = square * expm1(self._log_moment(2.0) - 2.0 * one)
        return where(self.sharpness * self.concentration > 2.0, spread, math.inf)

    def _mode(self) -> Tensor:
        a, c = self.sharpness, self.concentration
        hill = a > 1.0
        top = where(hill, a - 1.0, 1.0) / (a * c + 1.0)
        return where(hill, self.scale * power(top, 1.0 / a), math.nan)


class Rayleigh(ByLogCdf):
    """Length of a vector of two independent normal numbers of mean 0.

    Density ``f(x) = x / scale ** 2 * exp(-(x / scale) ** 2 / 2)``.

    Parameters
    ----------
    scale : Tensor or number, positive
        Standard deviation of the two, and the mode.
    """

    scale: Parameter = param(constraints.positive)

    def _from_exponential(self, e: Tensor) -> Tensor:
        return self.scale * sqrt(2.0 * e)

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        z = x / self.scale
        return log(z) - 0.5 * z * z - log(self.scale)

    def _log_survival(self, x: Tensor) -> Tensor:
        z = maximum(x, 0.0) / self.scale
        return z * z * -0.5

    def _cdf(self, x: Tensor) -> Tensor:
        return -expm1(self._log_survival(x))

    def _entropy(self) -> Tensor:
        return log(self.scale) + (1.0 - 0.5 * math.log(2.0) + 0.5 * EULER_GAMMA)

    def _mean(self) -> Tensor:
        return self.scale * math.sqrt(0.5 * math.pi)

    def _mode(self) -> Tensor:
        return self.scale

    def _variance(self) -> Tensor:
        return self.scale * self.scale * (2.0 - 0.5 * math.pi)

    def _skewness(self) -> Tensor:
        return (
            self.scale * 0.0 + 2.0 * math.sqrt(math.pi) * (math.pi - 3.0) / (4.0 - math.pi) ** 1.5
        )

    def _kurtosis(self) -> Tensor:
        top = 6.0 * math.pi**2 - 24.0 * math.pi + 16.0
        return self.scale * 0.0 - top / (4.0 - math.pi) ** 2


class Maxwell(Distribution):
    """Length of a vector of three independent normal numbers of mean 0: speeds in a gas.

    Density ``f(x) = sqrt(2 / pi) * x ** 2 / scale ** 3 * exp(-(x / scale) ** 2 / 2)``.

    Parameters
    ----------
    scale : Tensor or number, positive
        Standard deviation of the three.
    """

    scale: Parameter = param(constraints.positive)
    support = constraints.positive

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        half = self.scale * 0.0 + 1.5
        return rng.positive(self.scale * exp((rng.log_gamma(half, shape) + math.log(2.0)) * 0.5))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        z = x / self.scale
        return 2.0 * log(z) - 0.5 * z * z - (log(self.scale) + 0.5 * math.log(0.5 * math.pi))

    def _cdf(self, x: Tensor) -> Tensor:
        z = maximum(x, 0.0) / self.scale
        return gammainc(self.scale * 0.0 + 1.5, z * z * 0.5)

    def _survival(self, x: Tensor) -> Tensor:
        z = maximum(x, 0.0) / self.scale
        return gammaincc(self.scale * 0.0 + 1.5, z * z * 0.5)

    def _entropy(self) -> Tensor:
        return log(self.scale) + (EULER_GAMMA + 0.5 * math.log(2.0 * math.pi) - 0.5)

    def _mean(self) -> Tensor:
        return self.scale * (2.0 * math.sqrt(2.0 / math.pi))

    def _mode(self) -> Tensor:
        return self.scale * math.sqrt(2.0)

    def _variance(self) -> Tensor:
        return self.scale * self.scale * (3.0 - 8.0 / math.pi)

    def _skewness(self) -> Tensor:
        top = 2.0 * math.sqrt(2.0) * (16.0 - 5.0 * math.pi)
        return self.scale * 0.0 + top / (3.0 * math.pi - 8.0) ** 1.5

    def _kurtosis(self) -> Tensor:
        top = -384.0 + 160.0 * math.pi - 12.0 * math.pi**2
        return self.scale * 0.0 + top / (3.0 * math.pi - 8.0) ** 2
