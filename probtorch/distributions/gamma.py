"""The gamma distribution and its kin: inverse gamma, chi-squared.

Draws carry implicit gradients (Figurnov, Mohamed, Mnih 2018), from ops/sampling.py. For small
concentrations most of the mass lies below the smallest float: such draws end at the smallest normal
float instead of 0, where the density is finite.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.dispatch import recorder, wrap
from probtorch.core.shape import broadcast_shapes
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.formulas import finite, known_small, known_true
from probtorch.distributions.precision import in_double
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import maximum, sqrt, where
from probtorch.ops.comparisons import isfinite, isinf
from probtorch.ops.exponentials import exp, log
from probtorch.ops.reduction import mean
from probtorch.ops.special import (
    digamma,
    gamma_kernel,
    gamma_rest,
    gammainc,
    gammaincc,
    lgamma,
    log_ratio,
    xlogy,
)
from probtorch.tensor import Tensor

__all__ = ["Chi2", "Gamma", "InverseGamma"]


class GammaFamily(Distribution):
    """The mathematics of a gamma with `concentration` and `rate`, however they are given."""

    support = constraints.nonnegative
    _flat_ends = True, False

    def as_gamma(self) -> tuple[Tensor, Tensor]:
        """Return the concentration and the rate of the gamma this is."""
        raise NotImplementedError(f"{type(self).__name__} does not say which gamma it is")

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        a, b = self.as_gamma()
        return rng.positive(rng.gamma(a, shape) / b)

    def _log_prob(self, x: Tensor) -> Tensor:
        a, b = self.as_gamma()
        if known_small(a, beside=(b, x)):
            return xlogy(a - 1.0, finite(x)) - b * x + (a * log(finite(b, x)) - lgamma(a))
        if recorder() is not None and known_true(x > 0.0):
            return in_double(_log_density_of_data, a, b, x)
        return _log_density(a, b, x)

    def _cdf(self, x: Tensor) -> Tensor:
        a, b = self.as_gamma()
        return gammainc(a, b * maximum(x, 0.0))

    def _entropy(self) -> Tensor:
        a, b = self.as_gamma()
        return a - log(b) + lgamma(a) + (1.0 - a) * digamma(a)

    def _mean(self) -> Tensor:
        a, b = self.as_gamma()
        return a / b

    def _mode(self) -> Tensor:
        a, b = self.as_gamma()
        return maximum(a - 1.0, 0.0) / b

    def _variance(self) -> Tensor:
        a, b = self.as_gamma()
        return a / (b * b)

    def _survival(self, x: Tensor) -> Tensor:
        a, b = self.as_gamma()
        return gammaincc(a, b * maximum(x, 0.0))

    def _skewness(self) -> Tensor:
        return 2.0 / sqrt(self.as_gamma()[0])

    def _kurtosis(self) -> Tensor:
        return 6.0 / self.as_gamma()[0]


def _log_density(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return gamma_kernel(a, b, x) + (log(finite(b, x)) - gamma_rest(a))


def _log_inverse_density(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return _log_density(a, b, 1.0 / x) - 2.0 * log(x)


def _log_density_of_data(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Of constants: at their geometric mean, and beside it what changes from there.

    What changes is linear in functions of the data that are evaluated once. It cancels no more than
    the data's own rounding does: by the size of a log(x / center), which is large only where the
    log density is.
    """
    n = x.array.ndim
    shape = broadcast_shapes(a.array.shape, b.array.shape, (1,) * n)[-n:]
    dims = tuple(i for i, size in enumerate(shape) if size == 1)
    if not dims or not x.array.size:
        return _log_density(a, b, x)
    center = exp(mean(log(x), dims, True))
    change = (a - 1.0) * log_ratio(x, center) - where(isinf(b), 0.0, b) * (x - center)
    return _log_density(a, b, center) + change


def _log_inverse_density_of_data(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return _log_density_of_data(a, b, 1.0 / x) - 2.0 * log(x)


class Gamma(GammaFamily):
    """Gamma distribution.

    Density ``f(x) = rate ** concentration / gamma(concentration) * x ** (concentration - 1) *
    exp(-rate * x)``.

    Parameters
    ----------
    concentration : Tensor or number, positive
        Shape.
    rate : Tensor or number, positive
        Inverse scale: the mean is ``concentration / rate``.
    """

    concentration: Parameter = param(constraints.positive)
    rate: Parameter = param(constraints.positive, default=1.0)

    def as_gamma(self) -> tuple[Tensor, Tensor]:
        """Return the concentration and the rate."""
        return self.concentration, self.rate


class Chi2(GammaFamily):
    """Chi-squared distribution: sum of `df` squares of standard normals.

    Density ``f(x) = x ** (df / 2 - 1) * exp(-x / 2) / (2 ** (df / 2) * gamma(df / 2))``.

    Parameters
    ----------
    df : Tensor or number, positive
        Degrees of freedom, and the mean.
    """

    df: Parameter = param(constraints.positive)

    def as_gamma(self) -> tuple[Tensor, Tensor]:
        """Return the concentration and the rate of the gamma this is."""
        return self.df * 0.5, _HALF


_HALF = wrap(np.array(0.5))


class InverseGamma(Distribution):
    """Distribution of 1 / x for x gamma.

    Density ``f(x) = rate ** concentration / gamma(concentration) * x ** (-concentration - 1) *
    exp(-rate / x)``.

    Parameters
    ----------
    concentration : Tensor or number, positive
        Of the gamma.
    rate : Tensor or number, positive
        Of the gamma, and so the scale of this distribution.
    """

    concentration: Parameter = param(constraints.positive)
    rate: Parameter = param(constraints.positive, default=1.0)
    support = constraints.positive

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.positive(self.rate / rng.gamma(self.concentration, shape))

    def _log_prob(self, x: Tensor) -> Tensor:
        # The density of 1 / x, whose kernel is that of a gamma, times 1 / x^2.
        a, b = self.concentration, self.rate
        # Of an infinite rate the plain form is inf - inf.
        if known_small(a, beside=(b, x)) and known_true(isfinite(b)):
            return a * log(b) - lgamma(a) - (a + 1.0) * log(x) - b / x
        if recorder() is not None and known_true(x > 0.0):
            return in_double(_log_inverse_density_of_data, a, b, x)
        return in_double(_log_inverse_density, a, b, x)

    def _cdf(self, x: Tensor) -> Tensor:
        inside = x > 0.0
        ratio = self.rate / where(inside, x, 1.0)
        return where(inside, gammaincc(self.concentration, ratio), 0.0)

    def _entropy(self) -> Tensor:
        a = self.concentration
        return a + log(self.rate) + lgamma(a) - (1.0 + a) * digamma(a)

    def _mean(self) -> Tensor:
        finite = self.concentration > 1.0
        a = where(finite, self.concentration, 2.0)
        return where(finite, self.rate / (a - 1.0), math.inf)

    def _mode(self) -> Tensor:
        return self.rate / (self.concentration + 1.0)

    def _variance(self) -> Tensor:
        finite = self.concentration > 2.0
        a = where(finite, self.concentration, 3.0)
        b = self.rate / (a - 1.0)
        return where(finite, b * b / (a - 2.0), math.inf)

    def _survival(self, x: Tensor) -> Tensor:
        inside = x > 0.0
        ratio = self.rate / where(inside, x, 1.0)
        return where(inside, gammainc(self.concentration, ratio), 1.0)

    def _skewness(self) -> Tensor:
        finite = self.concentration > 3.0
        a = where(finite, self.concentration, 4.0)
        return where(finite, 4.0 * sqrt(a - 2.0) / (a - 3.0), math.inf)

    def _kurtosis(self) -> Tensor:
        finite = self.concentration > 4.0
        a = where(finite, self.concentration, 5.0)
        return where(finite, 6.0 * (5.0 * a - 11.0) / ((a - 3.0) * (a - 4.0)), math.inf)
