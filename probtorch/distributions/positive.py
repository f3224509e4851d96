"""Distributions of the positive half-line by elementary functions: exponential, Weibull, Pareto."""

from __future__ import annotations

import math

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.location_scale import EULER_GAMMA
from probtorch.distributions.precision import doubled
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import maximum, sqrt, where
from probtorch.ops.exponentials import exp, expm1, log, log1p
from probtorch.ops.exponentials import pow as power
from probtorch.ops.special import lgamma, log_ratio, xlogy
from probtorch.tensor import Tensor

__all__ = ["Exponential", "Pareto", "Weibull"]


class Exponential(Distribution):
    """Exponential distribution: waiting time between events that occur at `rate` per unit of time.

    Density ``f(x) = rate * exp(-rate * x)``.

    Parameters
    ----------
    rate : Tensor or number, positive
        Inverse of the mean.
    """

    rate: Parameter = param(constraints.positive, default=1.0)
    support = constraints.nonnegative
    _total = True

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.positive(rng.exponential(shape, 1.0 / self.rate))

    def _log_prob(self, x: Tensor) -> Tensor:
        return log(self.rate) - self.rate * x

    def _cdf(self, x: Tensor) -> Tensor:
        return -expm1(-(self.rate * maximum(x, 0.0)))

    def _icdf(self, p: Tensor) -> Tensor:
        return -(log1p(-p) / self.rate)

    def _entropy(self) -> Tensor:
        return 1.0 - log(self.rate)

    def _mean(self) -> Tensor:
        return 1.0 / self.rate

    def _mode(self) -> Tensor:
        return self.rate * 0.0

    def _variance(self) -> Tensor:
        return 1.0 / (self.rate * self.rate)

    def _log_survival(self, x: Tensor) -> Tensor:
        return -(self.rate * maximum(x, 0.0))

    def _skewness(self) -> Tensor:
        return self.rate * 0.0 + 2.0

    def _kurtosis(self) -> Tensor:
        return self.rate * 0.0 + 6.0


class Weibull(Distribution):
    """Weibull distribution: ``scale * e ** (1 / concentration)`` for e standard exponential.

    Density ``f(x) = concentration / scale * z ** (concentration - 1) * exp(-z ** concentration)``
    with ``z = x / scale``.

    Parameters
    ----------
    scale : Tensor or number, positive
    concentration : Tensor or number, positive
        Below 1 the hazard falls with time, above 1 it rises.
    """

    scale: Parameter = param(constraints.positive)
    concentration: Parameter = param(constraints.positive)
    support = constraints.nonnegative

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        # Of scale 1 it stays finite, so that dividing the draw by its scale gives it back.
        k = self.concentration
        return rng.positive(self.scale * rng.positive(power(rng.exponential(shape), 1.0 / k)))

    def _from_exponential(self, e: Tensor) -> Tensor:
        return self.scale * power(e, 1.0 / self.concentration)

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        k, z = self.concentration, x / self.scale
        return xlogy(k - 1.0, z) - power(z, k) + (log(k) - log(self.scale))

    def _cdf(self, x: Tensor) -> Tensor:
        inside = x > 0.0
        z = power(where(inside, x, 1.0) / self.scale, self.concentration)
        return where(inside, -expm1(-z), 0.0)

    def _icdf(self, p: Tensor) -> Tensor:
        return self._from_exponential(-log1p(-p))

    def _entropy(self) -> Tensor:
        k = self.concentration
        return (1.0 - 1.0 / k) * EULER_GAMMA + log(self.scale / k) + 1.0

    def _mean(self) -> Tensor:
        return self.scale * exp(lgamma(1.0 + 1.0 / self.concentration))

    def _mode(self) -> Tensor:
        peaked = self.concentration > 1.0
        k = where(peaked, self.concentration, 2.0)
        return where(peaked, self.scale * power((k - 1.0) / k, 1.0 / k), 0.0)

    def _variance(self) -> Tensor:
        # E x^2 - (E x)^2 = (E x)^2 (ratio of gammas - 1), with the ratio formed in logs.
        r = 1.0 / self.concentration
        mean = self._mean()
        return mean * mean * expm1(lgamma(1.0 + 2.0 * r) - 2.0 * lgamma(1.0 + r))

    def _log_survival(self, x: Tensor) -> Tensor:
        inside = x > 0.0
        z = power(where(inside, x, 1.0) / self.scale, self.concentration)
        return where(inside, -z, 0.0)

    def _standard(self) -> tuple[Tensor, ...]:
        """Return the mean and the raw moments of a scale of 1, over powers of the mean."""
        r = 1.0 / self.concentration
        one = lgamma(1.0 + r)
        second, third, fourth = (exp(lgamma(1.0 + k * r) - k * one) for k in (2.0, 3.0, 4.0))
        return second, third, fourth

    def _skewness(self) -> Tensor:
        second, third, _ = self._standard()
        return (third - 3.0 * second + 2.0) / power(second - 1.0, 1.5)

    def _kurtosis(self) -> Tensor:
        second, third, fourth = self._standard()
        square = (second - 1.0) * (second - 1.0)
        return (fourth - 4.0 * third + 6.0 * second - 3.0) / square - 3.0


class Pareto(Distribution):
    """Pareto distribution: ``scale * exp(e / alpha)`` for e standard exponential.

    Density ``f(x) = alpha * scale ** alpha / x ** (alpha + 1)``.

    Parameters
    ----------
    scale : Tensor or number, positive
        Least value.
    alpha : Tensor or number, positive
        Tail exponent: P(x > t) = (scale / t) ** alpha.
    """

    scale: Parameter = param(constraints.positive)
    alpha: Parameter = param(constraints.positive)

    @constraints.dependent_property(event_dim=0, is_discrete=False)
    def support(self) -> Constraint:
        """Values from `scale` on."""
        return constraints.greater_than_eq(self.scale)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.positive(self.scale * exp(rng.exponential(shape) / self.alpha))

    def _log_prob(self, x: Tensor) -> Tensor:
        return log(self.alpha) - self.alpha * log_ratio(x, self.scale) - log(x)

    def _cdf(self, x: Tensor) -> Tensor:
        inside = x > self.scale
        ratio = log(self.scale / where(inside, x, self.scale))
        return -expm1(self.alpha * ratio)

    def _icdf(self, p: Tensor) -> Tensor:
        return self.scale * exp(-log1p(-p) / self.alpha)

    def _entropy(self) -> Tensor:
        return log(self.scale / self.alpha) + (1.0 + 1.0 / self.alpha)

    def _mean(self) -> Tensor:
        finite = self.alpha > 1.0
        a = where(finite, self.alpha, 2.0)
        return where(finite, self.scale * a / (a - 1.0), math.inf)

    def _mode(self) -> Tensor:
        return self.scale

    def _variance(self) -> Tensor:
        finite = self.alpha > 2.0
        a = where(finite, self.alpha, 3.0)
        spread = self.scale * self.scale * a / ((a - 1.0) * (a - 1.0) * (a - 2.0))
        return where(finite, spread, math.inf)

    def _log_survival(self, x: Tensor) -> Tensor:
        return -self.alpha * log_ratio(maximum(x, self.scale), self.scale)

    def _skewness(self) -> Tensor:
        finite = self.alpha > 3.0
        a = where(finite, self.alpha, 4.0)
        value = 2.0 * (1.0 + a) / (a - 3.0) * sqrt((a - 2.0) / a)
        return where(finite, value, math.inf)

    def _kurtosis(self) -> Tensor:
        finite = self.alpha > 4.0
        a = where(finite, self.alpha, 5.0)
        top = 6.0 * (a * a * a + a * a - 6.0 * a - 2.0)
        return where(finite, top / (a * (a - 3.0) * (a - 4.0)), math.inf)
