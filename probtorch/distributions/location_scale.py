"""Location-scale distributions of the line besides the normal: Laplace, logistic, Gumbel."""

from __future__ import annotations

import math

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.precision import doubled
from probtorch.distributions.source import Source
from probtorch.distributions.transforms.scalar import log_sigmoid_derivative
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import maximum, minimum, where
from probtorch.ops.exponentials import exp, expm1, log, log1p, sigmoid, softplus
from probtorch.ops.trigonometry import atan, tan
from probtorch.tensor import Tensor

__all__ = ["Gumbel", "Laplace", "Logistic", "SoftLaplace"]

EULER_GAMMA = 0.57721566490153286
ZETA_3 = 1.2020569031595942


class Laplace(Distribution):
    """Laplace (double exponential) distribution.

    Density ``f(x) = exp(-abs(x - loc) / scale) / (2 * scale)``.

    Parameters
    ----------
    loc : Tensor or number
        Mean and median.
    scale : Tensor or number, positive
        Mean distance from `loc`.
    """

    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._icdf(rng.uniform(shape))

    def _log_prob(self, x: Tensor) -> Tensor:
        return -(absolute(x - self.loc) / self.scale + (log(self.scale) + math.log(2.0)))

    def _cdf(self, x: Tensor) -> Tensor:
        z = (x - self.loc) / self.scale
        tail = exp(-absolute(z)) * 0.5
        return where(z < 0.0, tail, 1.0 - tail)

    def _icdf(self, p: Tensor) -> Tensor:
        distance = -log(minimum(p, 1.0 - p) * 2.0)
        return self.loc + self.scale * where(p < 0.5, -distance, distance)

    def _entropy(self) -> Tensor:
        return log(self.scale) + (1.0 + math.log(2.0))

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean

    def _variance(self) -> Tensor:
        return self.scale * self.scale * 2.0

    def _log_cdf(self, x: Tensor) -> Tensor:
        return _log_lower_tail((x - self.loc) / self.scale)

    def _log_survival(self, x: Tensor) -> Tensor:
        return _log_lower_tail((self.loc - x) / self.scale)

    def _skewness(self) -> Tensor:
        return self.scale * 0.0

    def _kurtosis(self) -> Tensor:
        return self.scale * 0.0 + 3.0


class Logistic(Distribution):
    """Logistic distribution, whose cdf is the sigmoid.

    Density ``f(x) = exp(-z) / (scale * (1 + exp(-z)) ** 2)`` with ``z = (x - loc) / scale``.

    Parameters
    ----------
    loc : Tensor or number
        Mean and median.
    scale : Tensor or number, positive
    """

    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._icdf(rng.uniform(shape))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        # Even in z, and of a positive one the two terms do not differ by infinities.
        z = absolute((x - self.loc) / self.scale)
        return log_sigmoid_derivative(z) - log(self.scale)

    def _cdf(self, x: Tensor) -> Tensor:
        return sigmoid((x - self.loc) / self.scale)

    def _icdf(self, p: Tensor) -> Tensor:
        return self.loc + self.scale * (log(p) - log1p(-p))

    def _entropy(self) -> Tensor:
        return log(self.scale) + 2.0

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean

    def _variance(self) -> Tensor:
        return self.scale * self.scale * (math.pi**2 / 3.0)

    def _log_cdf(self, x: Tensor) -> Tensor:
        return -softplus((self.loc - x) / self.scale)

    def _log_survival(self, x: Tensor) -> Tensor:
        return -softplus((x - self.loc) / self.scale)

    def _skewness(self) -> Tensor:
        return self.scale * 0.0

    def _kurtosis(self) -> Tensor:
        return self.scale * 0.0 + 1.2


class SoftLaplace(Distribution):
    """Laplace distribution with a rounded peak: density prop. to 1 / cosh((x - loc) / scale).

    Density ``f(x) = 1 / (pi * scale * cosh(z))`` with ``z = (x - loc) / scale``.

    Parameters
    ----------
    loc : Tensor or number
        Mean and median.
    scale : Tensor or number, positive
        Mean length of the tails, which are exponential.
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._icdf(rng.uniform(shape))

    def _log_prob(self, x: Tensor) -> Tensor:
        z = absolute((x - self.loc) / self.scale)
        return math.log(2.0 / math.pi) - log(self.scale) - z - log1p(exp(-2.0 * z))

    def _cdf(self, x: Tensor) -> Tensor:
        z = (x - self.loc) / self.scale
        tail = atan(exp(-absolute(z))) * (2.0 / math.pi)
        return where(z < 0.0, tail, 1.0 - tail)

    def _survival(self, x: Tensor) -> Tensor:
        return self._cdf(2.0 * self.loc - x)

    def _icdf(self, p: Tensor) -> Tensor:
        distance = -log(tan(minimum(p, 1.0 - p) * (0.5 * math.pi)))
        return self.loc + self.scale * where(p < 0.5, -distance, distance)

    def _entropy(self) -> Tensor:
        # E log cosh = log 2
        return log(self.scale) + math.log(2.0 * math.pi)

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean

    def _variance(self) -> Tensor:
        return self.scale * self.scale * (0.25 * math.pi**2)

    def _skewness(self) -> Tensor:
        return self.scale * 0.0

    def _kurtosis(self) -> Tensor:
        return self.scale * 0.0 + 2.0


class Gumbel(Distribution):
    """Extreme-value distribution of the largest of many draws.

    Density ``f(x) = exp(-z - exp(-z)) / scale`` with ``z = (x - loc) / scale``.

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
        return self.loc - self.scale * log(rng.exponential(shape))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        # Far below, the exponential is infinite, and z must not be.
        z = maximum((x - self.loc) / self.scale, -1e300)
        return -(z + exp(-z) + log(self.scale))

    def _cdf(self, x: Tensor) -> Tensor:
        return exp(-exp((self.loc - x) / self.scale))

    def _icdf(self, p: Tensor) -> Tensor:
        return self.loc - self.scale * log(-log(p))

    def _entropy(self) -> Tensor:
        return log(self.scale) + (1.0 + EULER_GAMMA)

    def _mean(self) -> Tensor:
        return self.loc + self.scale * EULER_GAMMA

    def _mode(self) -> Tensor:
        return self.loc

    def _variance(self) -> Tensor:
        return self.scale * self.scale * (math.pi**2 / 6.0)

    def _log_cdf(self, x: Tensor) -> Tensor:
        return -exp((self.loc - x) / self.scale)

    def _survival(self, x: Tensor) -> Tensor:
        return -expm1(self._log_cdf(x))

    def _skewness(self) -> Tensor:
        return self.scale * 0.0 + 12.0 * math.sqrt(6.0) * ZETA_3 / math.pi**3

    def _kurtosis(self) -> Tensor:
        return self.scale * 0.0 + 2.4


def _log_lower_tail(z: Tensor) -> Tensor:
    """Log of the standard Laplace cdf."""
    tail = -absolute(z) - math.log(2.0)
    return where(z < 0.0, tail, log1p(-exp(tail)))
