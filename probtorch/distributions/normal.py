"""The normal distribution and its kin on the half-line: log-normal and half-normal.

Read this file first: a distribution here is its fields, a support, and the mathematics. Densities
are written so that terms without the value are combined first: they are scalars when the parameters
are.
"""

from __future__ import annotations

import math

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.precision import doubled
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import sqrt, square, where
from probtorch.ops.exponentials import exp, expm1, log
from probtorch.ops.special import erf, erfc, erfinv, log_ndtr, ndtr, ndtri
from probtorch.tensor import Tensor

__all__ = ["HalfNormal", "LogNormal", "Normal"]

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
ROOT_2 = math.sqrt(2.0)


class Normal(Distribution):
    """Normal distribution with mean `loc` and standard deviation `scale`.

    Density ``f(x) = exp(-z ** 2 / 2) / (scale * sqrt(2 * pi))`` with ``z = (x - loc) / scale``.

    Parameters
    ----------
    loc : Tensor or number
        Mean.
    scale : Tensor or number, positive
        Standard deviation.
    """

    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.normal(shape, self.loc, self.scale)

    def _log_prob(self, x: Tensor) -> Tensor:
        # Of many rows no name keeps what was computed on the way.
        return square((x - self.loc) / self.scale) * -0.5 - (log(self.scale) + HALF_LOG_2PI)

    def _cdf(self, x: Tensor) -> Tensor:
        return ndtr((x - self.loc) / self.scale)

    def _icdf(self, p: Tensor) -> Tensor:
        return self.loc + self.scale * ndtri(p)

    def _entropy(self) -> Tensor:
        return log(self.scale) + (0.5 + HALF_LOG_2PI)

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean

    def _variance(self) -> Tensor:
        return self.scale * self.scale

    def _log_cdf(self, x: Tensor) -> Tensor:
        return log_ndtr((x - self.loc) / self.scale)

    def _log_survival(self, x: Tensor) -> Tensor:
        return log_ndtr((self.loc - x) / self.scale)

    def _skewness(self) -> Tensor:
        return self.scale * 0.0

    _kurtosis = _skewness


class LogNormal(Distribution):
    """Distribution of exp(x) for x normal with mean `loc` and standard deviation `scale`.

    Density ``f(x) = exp(-z ** 2 / 2) / (x * scale * sqrt(2 * pi))`` with ``z = (log(x) - loc) /
    scale``.

    Parameters
    ----------
    loc : Tensor or number
        Mean of the logarithm.
    scale : Tensor or number, positive
        Standard deviation of the logarithm.
    """

    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.positive

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.positive(exp(self.loc + self.scale * rng.normal(shape)))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        y = log(x)
        z = (y - self.loc) / self.scale
        return z * z * -0.5 - y - (log(self.scale) + HALF_LOG_2PI)

    def _cdf(self, x: Tensor) -> Tensor:
        inside = x > 0.0
        y = log(where(inside, x, 1.0))
        return where(inside, ndtr((y - self.loc) / self.scale), 0.0)

    def _icdf(self, p: Tensor) -> Tensor:
        return exp(self.loc + self.scale * ndtri(p))

    def _entropy(self) -> Tensor:
        return self.loc + log(self.scale) + (0.5 + HALF_LOG_2PI)

    def _mean(self) -> Tensor:
        return exp(self.loc + self.scale * self.scale * 0.5)

    def _mode(self) -> Tensor:
        return exp(self.loc - self.scale * self.scale)

    def _variance(self) -> Tensor:
        square = self.scale * self.scale
        return expm1(square) * exp(self.loc * 2.0 + square)

    def _log_cdf(self, x: Tensor) -> Tensor:
        inside = x > 0.0
        y = log(where(inside, x, 1.0))
        return where(inside, log_ndtr((y - self.loc) / self.scale), -math.inf)

    def _log_survival(self, x: Tensor) -> Tensor:
        inside = x > 0.0
        y = log(where(inside, x, 1.0))
        return where(inside, log_ndtr((self.loc - y) / self.scale), 0.0)

    def _skewness(self) -> Tensor:
        square = self.scale * self.scale
        return (exp(square) + 2.0) * sqrt(expm1(square))

    def _kurtosis(self) -> Tensor:
        square = self.scale * self.scale
        return expm1(square * 4.0) + 2.0 * expm1(square * 3.0) + 3.0 * expm1(square * 2.0)


class HalfNormal(Distribution):
    """Distribution of abs(x) for x normal with mean 0 and standard deviation `scale`.

    Density ``f(x) = sqrt(2 / pi) / scale * exp(-(x / scale) ** 2 / 2)``.

    Parameters
    ----------
    scale : Tensor or number, positive
        Standard deviation of the whole normal.
    """

    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.nonnegative
    _total = True

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self.scale * absolute(rng.normal(shape))

    def _log_prob(self, x: Tensor) -> Tensor:
        z = x / self.scale
        return z * z * -0.5 - (log(self.scale) + (HALF_LOG_2PI - math.log(2.0)))

    def _cdf(self, x: Tensor) -> Tensor:
        # 2 ndtr(z) - 1 without the cancellation near 0.
        return where(x > 0.0, erf(x / (self.scale * ROOT_2)), 0.0)

    def _icdf(self, p: Tensor) -> Tensor:
        return self.scale * (erfinv(p) * ROOT_2)

    def _entropy(self) -> Tensor:
        return log(self.scale) + (0.5 + HALF_LOG_2PI - math.log(2.0))

    def _mean(self) -> Tensor:
        return self.scale * math.sqrt(2.0 / math.pi)

    def _mode(self) -> Tensor:
        return self.scale * 0.0

    def _variance(self) -> Tensor:
        return self.scale * self.scale * (1.0 - 2.0 / math.pi)

    def _survival(self, x: Tensor) -> Tensor:
        return where(x > 0.0, erfc(x / (self.scale * ROOT_2)), 1.0)

    def _skewness(self) -> Tensor:
        return self.scale * 0.0 + ROOT_2 * (4.0 - math.pi) / (math.pi - 2.0) ** 1.5

    def _kurtosis(self) -> Tensor:
        return self.scale * 0.0 + 8.0 * (math.pi - 3.0) / (math.pi - 2.0) ** 2
