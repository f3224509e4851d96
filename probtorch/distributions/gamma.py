"""The gamma distribution and its kin: inverse gamma, chi-squared.

Draws carry implicit gradients (Figurnov, Mohamed, Mnih 2018), from ops/sampling.py. For small
concentrations most of the mass lies below the smallest float: such draws end at the smallest normal
float instead of 0, where the density is finite.
"""

import math

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution, param
from probtorch.ops.elementwise import log, maximum, where
from probtorch.ops.special import digamma, gammainc, gammaincc, lgamma, xlogy
from probtorch.tensor import Tensor

__all__ = ["Chi2", "Gamma", "InverseGamma"]


class GammaFamily(Distribution):
    """The mathematics of a gamma with `concentration` and `rate`, however they are given."""

    support = constraints.nonnegative

    def _rsample(self, rng, shape):
        return rng.gamma(self.concentration, shape) / self.rate

    def _log_prob(self, x):
        a = self.concentration
        return xlogy(a - 1.0, x) - self.rate * x + (a * log(self.rate) - lgamma(a))

    def _cdf(self, x):
        return gammainc(self.concentration, self.rate * maximum(x, 0.0))

    def _entropy(self):
        a = self.concentration
        return a - log(self.rate) + lgamma(a) + (1.0 - a) * digamma(a)

    def _mean(self):
        return self.concentration / self.rate

    def _mode(self):
        return maximum(self.concentration - 1.0, 0.0) / self.rate

    def _variance(self):
        return self.concentration / (self.rate * self.rate)


class Gamma(GammaFamily):
    """Gamma distribution.

    Parameters
    ----------
    concentration : Tensor or number, positive
        Shape.
    rate : Tensor or number, positive
        Inverse scale: the mean is ``concentration / rate``.
    """

    concentration: Tensor = param(constraints.positive)
    rate: Tensor = param(constraints.positive, default=1.0)


class Chi2(GammaFamily):
    """Chi-squared distribution: sum of `df` squares of standard normals.

    Parameters
    ----------
    df : Tensor or number, positive
        Degrees of freedom, and the mean.
    """

    df: Tensor = param(constraints.positive)

    @property
    def concentration(self):
        """Concentration of the gamma this is."""
        return self.df * 0.5

    @property
    def rate(self):
        """Rate of the gamma this is."""
        return _HALF


_HALF = wrap(np.array(0.5))


class InverseGamma(Distribution):
    """Distribution of 1 / x for x gamma.

    Parameters
    ----------
    concentration : Tensor or number, positive
        Of the gamma.
    rate : Tensor or number, positive
        Of the gamma, and so the scale of this distribution.
    """

    concentration: Tensor = param(constraints.positive)
    rate: Tensor = param(constraints.positive, default=1.0)
    support = constraints.positive

    def _rsample(self, rng, shape):
        return self.rate / rng.gamma(self.concentration, shape)

    def _log_prob(self, x):
        a = self.concentration
        return a * log(self.rate) - lgamma(a) - (a + 1.0) * log(x) - self.rate / x

    def _cdf(self, x):
        inside = x > 0.0
        ratio = self.rate / where(inside, x, 1.0)
        return where(inside, gammaincc(self.concentration, ratio), 0.0)

    def _entropy(self):
        a = self.concentration
        return a + log(self.rate) + lgamma(a) - (1.0 + a) * digamma(a)

    def _mean(self):
        finite = self.concentration > 1.0
        a = where(finite, self.concentration, 2.0)
        return where(finite, self.rate / (a - 1.0), math.inf)

    def _mode(self):
        return self.rate / (self.concentration + 1.0)

    def _variance(self):
        finite = self.concentration > 2.0
        a = where(finite, self.concentration, 3.0)
        b = self.rate / (a - 1.0)
        return where(finite, b * b / (a - 2.0), math.inf)
