"""Distributions on the unit interval and the simplex: beta, Dirichlet.

Draws are made of log-gamma draws: for small concentrations the gammas themselves underflow, and
their ratio would be decided by the floor (PyTorch's Beta(1e-3, 1e-3) puts a quarter of its draws
near 1/2; the truth is 0.0004).
"""

from __future__ import annotations

import math

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.formulas import known_small
from probtorch.distributions.precision import in_double
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import maximum, sqrt, where
from probtorch.ops.exponentials import exp, log
from probtorch.ops.movement import unsqueeze
from probtorch.ops.random_numbers import is_plain
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import (
    beta_kernel,
    betainc,
    betaln,
    digamma,
    gamma_kernel,
    gamma_rest,
    lgamma,
    log_ratio,
    xlog1py,
    xlogy,
)
from probtorch.ops.special.incomplete_beta import beta_density
from probtorch.tensor import Tensor

__all__ = ["Beta", "Dirichlet"]

# A share from which on the incomplete beta function is a power, and its log.
_LEAST = 1e-300
_LOG_LEAST = math.log(_LEAST)


class Beta(Distribution):
    """Beta distribution.

    Density ``f(x) = x ** (concentration1 - 1) * (1 - x) ** (concentration0 - 1) / B(concentration1,
    concentration0)``.

    Parameters
    ----------
    concentration1 : Tensor or number, positive
        Exponent of x plus 1; "alpha".
    concentration0 : Tensor or number, positive
        Exponent of 1 - x plus 1; "beta".
    """

    concentration1: Parameter = param(constraints.positive)
    concentration0: Parameter = param(constraints.positive)
    support = constraints.unit_interval

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.beta(self.concentration1, self.concentration0, shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        if known_small(a, b, beside=(x,)):
            return xlogy(a - 1.0, x) + xlog1py(b - 1.0, -x) - betaln(a, b)
        return beta_kernel(a, b, x) + (gamma_rest(a + b) - gamma_rest(a) - gamma_rest(b))

    def _cdf(self, x: Tensor) -> Tensor:
        inside = (x > 0.0) & (x < 1.0)
        p = betainc(self.concentration1, self.concentration0, where(inside, x, 0.5))
        return where(inside, p, where(x < 0.5, 0.0, 1.0))

    def _entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        spread = (a + b - 2.0) * digamma(a + b)
        return betaln(a, b) - (a - 1.0) * digamma(a) - (b - 1.0) * digamma(b) + spread

    def _mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    def _mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        hill = (a > 1.0) & (b > 1.0)
        top = where(hill, a - 1.0, 1.0) / where(hill, a + b - 2.0, 2.0)
        # Without a hill the density is highest at the end with the smaller exponent.
        return where(hill, top, where(a < b, 0.0, 1.0))

    def _variance(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        n = a + b
        return (a / n) * (b / n) / (n + 1.0)

    def _survival(self, x: Tensor) -> Tensor:
        inside = (x > 0.0) & (x < 1.0)
        # Near 0 the complement of x would be 1 after rounding, the survival not.
        a, b, y = self.concentration1, self.concentration0, where(inside, x, 0.5)
        above = shares_of_quotient(a, b, y, 1.0 - y)[1]
        return where(inside, above, where(x < 0.5, 1.0, 0.0))

    def _skewness(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        n = a + b
        return 2.0 * (b - a) * sqrt(n + 1.0) / ((n + 2.0) * sqrt(a * b))

    def _kurtosis(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        n = a + b
        top = (a - b) * (a - b) * (n + 1.0) - a * b * (n + 2.0)
        return 6.0 * top / (a * b * (n + 2.0) * (n + 3.0))


def shares_at(
    a: Tensor, b: Tensor, far: Tensor, odds: Tensor, log_odds: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the probabilities that the odds of a beta number are below those given, and above.

    The odds are at most 1, and where they are `far` those of the complement, as the probabilities
    are. What underflows is known by its log.
    """
    some = log_odds > -math.inf
    deep = some & (log_odds < _LOG_LEAST)
    less = where(deep, _LEAST, where(some, odds, 1.0))
    first, second = where(far, b, a), where(far, a, b)
    # Of so small a share, if it is one at all, the probability is a power.
    power = exp(first * where(deep, log_odds - _LOG_LEAST, 0.0))
    share = less / (1.0 + less)
    part = where(some, betainc(first, second, share) * power, 0.0)
    # A thin tail is lost in 1 - part. Its own integral from 1 / (1 + less) on is not, but for what
    # a rounding of that number changes, which is the density.
    thin = some & (part > 0.99)
    if is_plain(part) and not thin.array.any():
        return part, 1.0 - part
    thin = thin & (beta_density(first, second, where(thin, share, 0.5)) < 1e-3)
    tail = betainc(second, first, where(thin, 1.0 / (1.0 + less), 0.5))
    return part, where(thin, tail, 1.0 - part)


def shares_of_quotient(
    a: Tensor, b: Tensor, x: Tensor, size: Tensor, power: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the probabilities that the odds of a beta number are below ``(x / size) ** power``,
    for x from 0 on, and above.
    """
    far, some = x > size, (x > 0.0) & (x < math.inf)
    high, low = where(some, where(far, x, size), 1.0), where(some, where(far, size, x), 1.0)
    log_odds = -power * log_ratio(high, low)
    there = log_odds >= _LOG_LEAST
    odds = where(there, low, 1.0) / where(there, high, 1.0)
    odds = odds if power == 1.0 else odds**power
    part, rest = shares_at(a, b, far, odds, where(some, log_odds, -math.inf))
    return where(far, rest, part), where(far, part, rest)


class Dirichlet(Distribution):
    """Dirichlet distribution on the simplex.

    Density ``f(x) = gamma(sum(concentration)) * prod(x ** (concentration - 1) /
    gamma(concentration))``.

    Parameters
    ----------
    concentration : Tensor, shape (..., parts), positive
        Exponents plus 1; their sum says how near the draws are to the mean.
    """

    concentration: Parameter = param(constraints.independent(constraints.positive, 1))
    support = constraints.simplex

    def _infer_event_shape(self) -> Shape:
        return self.concentration.array.shape[-1:]

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.dirichlet(self.concentration, shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        c = self.concentration
        if known_small(c, beside=(x,)):
            return in_double(_plain_log_density, c, x)
        return in_double(_log_density_by_parts, c, x)

    def _entropy(self) -> Tensor:
        c = self.concentration
        n, k = total(c, -1), c.array.shape[-1]
        terms = total(lgamma(c) - (c - 1.0) * digamma(c), -1)
        return terms - lgamma(n) + (n - k) * digamma(n)

    def _mean(self) -> Tensor:
        return self.concentration / total(self.concentration, -1, True)

    def _mode(self) -> Tensor:
        c = self.concentration
        hill = (c > 1.0).all(-1, True)
        above = where(hill, c - 1.0, 1.0)
        top = above / total(above, -1, True)
        # With an exponent below 0 the density has no highest point: it grows towards the boundary.
        return where(hill, top, math.nan)

    def _variance(self) -> Tensor:
        n = total(self.concentration, -1, True)
        m = self.concentration / n
        return m * (1.0 - m) / (n + 1.0)


def _plain_log_density(c: Tensor, x: Tensor) -> Tensor:
    return total(xlogy(c - 1.0, x), -1) + (lgamma(total(c, -1)) - total(lgamma(c), -1))


def _log_density_by_parts(c: Tensor, x: Tensor) -> Tensor:
    # As for a beta: any scale would do, with this one all terms are small. The last is 0 on the
    # simplex; with it slopes are those of the plain form.
    n, k = total(c, -1), c.array.shape[-1]
    scale = maximum(n - 1.0, 1.0)
    constant = gamma_rest(n) + (k - 1.0) * log(scale) - total(gamma_rest(c), -1)
    kernels = total(gamma_kernel(c, unsqueeze(scale, -1), x), -1)
    return kernels + constant + scale * (total(x, -1) - 1.0)
