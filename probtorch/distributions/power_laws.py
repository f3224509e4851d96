"""Power laws between bounds, and the log-uniform distribution: exponential in the logarithm.

They share `Tilt` (shares.py), which is exact around a flat density too.
"""

from __future__ import annotations

import math

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.precision import doubled
from probtorch.distributions.shares import Tilt
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import clamp, maximum, where
from probtorch.ops.exponentials import exp, expm1, log, log1p
from probtorch.ops.exponentials import pow as power
from probtorch.ops.special import (
    log_ratio,
)
from probtorch.tensor import Tensor

__all__ = ["DoublyTruncatedPowerLaw", "LogUniform", "LowerTruncatedPowerLaw"]


class DoublyTruncatedPowerLaw(Distribution):
    """Density prop. to ``x ** alpha`` between two bounds.

    Density ``f(x) = (alpha + 1) * x ** alpha / (high ** (alpha + 1) - low ** (alpha + 1))``.

    Parameters
    ----------
    alpha : Tensor or number
        Exponent; -1 is a uniform distribution of the logarithm.
    low : Tensor or number, positive
    high : Tensor or number, above `low`
    """

    alpha: Parameter = param(constraints.real)
    low: Parameter = param(constraints.positive)
    high: Parameter = param(constraints.dependent(lambda self: constraints.greater_than(self.low)))

    @constraints.dependent_property(event_dim=0, is_discrete=False)
    def support(self) -> Constraint:
        """Values between the bounds."""
        return constraints.interval(self.low, self.high)

    def _width(self) -> Tensor:
        return log_ratio(self.high, self.low)

    def _tilt(self, order: float = 0.0) -> Tilt:
        """Of the logarithm of x, rescaled to [0, 1]."""
        return Tilt((self.alpha + (1.0 + order)) * self._width())

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._icdf(rng.uniform(shape))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        width = self._width()
        return self._tilt().log_density(log_ratio(x, self.low) / width) - log(x) - log(width)

    def _cdf(self, x: Tensor) -> Tensor:
        share = log_ratio(clamp(x, self.low, self.high), self.low) / self._width()
        return self._tilt().cdf(share)

    def _icdf(self, p: Tensor) -> Tensor:
        x = self.low * exp(self._width() * self._tilt().quantile(p))
        return clamp(x, self.low, self.high)

    def _raw(self, order: float) -> Tensor:
        """E x^order: a ratio of two integrals."""
        zero = self.alpha * 0.0
        sizes = self._tilt().log_density(zero) - self._tilt(order).log_density(zero)
        return power(self.low, order) * exp(sizes)

    def _mean(self) -> Tensor:
        return self._raw(1.0)

    def _variance(self) -> Tensor:
        m = self._raw(1.0)
        return self._raw(2.0) - m * m

    def _mode(self) -> Tensor:
        return where(self.alpha > 0.0, self.high, self.low)


class LogUniform(Distribution):
    """Uniform distribution of the logarithm between those of two bounds; also called reciprocal.

    Density ``f(x) = 1 / (x * log(high / low))``.

    Parameters
    ----------
    low : Tensor or number, positive
    high : Tensor or number, above `low`
    """

    low: Parameter = param(constraints.positive)
    high: Parameter = param(constraints.dependent(lambda self: constraints.greater_than(self.low)))

    @constraints.dependent_property(event_dim=0, is_discrete=False)
    def support(self) -> Constraint:
        """Values between the bounds."""
        return constraints.interval(self.low, self.high)

    def _width(self) -> Tensor:
        return log_ratio(self.high, self.low)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return clamp(self._icdf(rng.uniform(shape)), self.low, self.high)

    def _log_prob(self, x: Tensor) -> Tensor:
        return -log(x) - log(self._width())

    def _cdf(self, x: Tensor) -> Tensor:
        return log_ratio(clamp(x, self.low, self.high), self.low) / self._width()

    def _icdf(self, p: Tensor) -> Tensor:
        return self.low * exp(p * self._width())

    def _entropy(self) -> Tensor:
        return 0.5 * (log(self.low) + log(self.high)) + log(self._width())

    def _mean(self) -> Tensor:
        return (self.high - self.low) / self._width()

    def _mode(self) -> Tensor:
        return self.low

    def _variance(self) -> Tensor:
        m = self._mean()
        return m * (0.5 * (self.high + self.low) - m)


class LowerTruncatedPowerLaw(Distribution):
    """Density prop. to ``x ** alpha`` from a lower bound on: a Pareto distribution.

    Density ``f(x) = -(alpha + 1) * x ** alpha / low ** (alpha + 1)``.

    Parameters
    ----------
    alpha : Tensor or number, below -1
        Exponent of the density.
    low : Tensor or number, positive
    """

    alpha: Parameter = param(constraints.less_than(-1.0))
    low: Parameter = param(constraints.positive)

    @constraints.dependent_property(event_dim=0, is_discrete=False)
    def support(self) -> Constraint:
        """Values from `low` on."""
        return constraints.greater_than_eq(self.low)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.positive(self._from_exponential(rng.exponential(shape)))

    def _from_exponential(self, e: Tensor) -> Tensor:
        return self.low * exp(-e / (self.alpha + 1.0))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        b = -1.0 - self.alpha
        return log(b) - b * log_ratio(x, self.low) - log(x)

    def _log_survival(self, x: Tensor) -> Tensor:
        return (self.alpha + 1.0) * log_ratio(maximum(x, self.low), self.low)

    def _cdf(self, x: Tensor) -> Tensor:
        return -expm1(self._log_survival(x))

    def _icdf(self, p: Tensor) -> Tensor:
        return self._from_exponential(-log1p(-p))

    def _entropy(self) -> Tensor:
        b = -1.0 - self.alpha
        return log(self.low / b) + (1.0 + 1.0 / b)

    def _mean(self) -> Tensor:
        finite = self.alpha < -2.0
        a = where(finite, -1.0 - self.alpha, 2.0)
        return where(finite, self.low * (a / (a - 1.0)), math.inf)

    def _mode(self) -> Tensor:
        return self.low

    def _variance(self) -> Tensor:
        finite = self.alpha < -3.0
        a = where(finite, -1.0 - self.alpha, 3.0)
        spread = self.low * self.low * (a / ((a - 1.0) * (a - 1.0) * (a - 2.0)))
        return where(finite, spread, math.inf)
