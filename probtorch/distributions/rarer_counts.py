"""Counts besides the usual ones: uniform, heavy-tailed, overdispersed twice, discrete lifetimes."""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.facts import cdf_by_sum
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.precision import doubled
from probtorch.distributions.source import Source
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import clamp, floor, maximum, minimum, where
from probtorch.ops.exponentials import exp, expm1, log, log1p
from probtorch.ops.exponentials import pow as power
from probtorch.ops.special import (
    beta_binomial_kernel,
    factorial_rest,
    lgamma,
    lgamma_difference,
    log1mexp,
    stirling_rest,
)
from probtorch.tensor import Tensor

__all__ = ["BetaNegativeBinomial", "DiscreteUniform", "DiscreteWeibull", "YuleSimon"]


def exact_betaln(a: Tensor, b: Tensor) -> Tensor:
    """Log of B(a, b), also where one of them is large, or both: of three lgammas two are small."""
    low = minimum(a, b)
    return lgamma(low) - lgamma_difference(maximum(a, b), low)


class DiscreteUniform(Distribution):
    """All whole numbers from `low` to `high`, both included, with the same probability.

    Probability ``p(x) = 1 / (high - low + 1)``.

    Parameters
    ----------
    low : Tensor or number, whole
    high : Tensor or number, whole, not below `low`
    """

    low: Parameter = param(constraints.integer, default=0.0)
    high: Parameter = param(
        constraints.dependent(lambda self: constraints.integer_greater_than(self.low)), default=1.0
    )
    has_enumerate_support = True
    _total = True

    @constraints.dependent_property(event_dim=0, is_discrete=True)
    def support(self) -> Constraint:
        """Whole numbers between the bounds."""
        return constraints.integer_interval(self.low, self.high)

    def _count(self) -> Tensor:
        return self.high - self.low + 1.0

    def _enumerate_support(self) -> Tensor:
        low, high = self.low.array, self.high.array
        if (low != low.min()).any() or (high != high.max()).any():
            raise ArgumentError(
                "DiscreteUniform.enumerate_support",
                expected="the same bounds for the whole batch",
                got=f"low from {low.min():g} to {low.max():g}, high from {high.min():g} to "
                f"{high.max():g}",
                fix="enumerate one batch element at a time",
            )
        dtype = self._dtype or high.dtype
        return wrap(np.arange(float(low.min()), float(high.max()) + 1.0).astype(dtype))

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        x = floor(self.low + self._count() * rng.uniform(shape))
        # Rounding may reach the number after the last.
        return minimum(x, self.high)

    def _log_prob(self, x: Tensor) -> Tensor:
        return -log(self._count()) + x * 0.0

    def _cdf(self, x: Tensor) -> Tensor:
        k = clamp(floor(x), self.low - 1.0, self.high)
        return (k - self.low + 1.0) / self._count()

    def _entropy(self) -> Tensor:
        return log(self._count())

    def _mean(self) -> Tensor:
        return (self.low + self.high) * 0.5

    def _mode(self) -> Tensor:
        return self.low

    def _variance(self) -> Tensor:
        n = self._count()
        return (n * n - 1.0) / 12.0

    def _skewness(self) -> Tensor:
        return self.low * 0.0

    def _kurtosis(self) -> Tensor:
        square = self._count() * self._count()
        several = square > 1.0
        value = -1.2 * (square + 1.0) / where(several, square - 1.0, 1.0)
        return where(several, value, math.nan)


class BetaNegativeBinomial(Distribution):
    """Negative binomial counts whose probability of success is itself a beta draw.

    Probability ``p(x) = gamma(n + x) / (gamma(n) * factorial(x)) * B(concentration1 + x,
    concentration0 + n) / B(concentration1, concentration0)``.

    Parameters
    ----------
    concentration1, concentration0 : Tensor or number, positive
        Of the beta.
    n : Tensor or number, positive
        Number of failures.
    """

    concentration1: Parameter = param(constraints.positive)
    concentration0: Parameter = param(constraints.positive)
    n: Parameter = param(constraints.positive)
    support = constraints.nonnegative_integer

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        odds = rng.log_gamma(self.concentration1, shape) - rng.log_gamma(self.concentration0, shape)
        return rng.poisson(rng.finite(exp(rng.log_gamma(self.n, shape) + odds)), shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        a, b, n = self.concentration1, self.concentration0, self.n
        # A beta-binomial mass of x among n + x, times n / (n + x); in the form of BetaBinomial.
        s, kernel = a + b, beta_binomial_kernel(a, b, x, n)
        seen = log(n) + stirling_rest(n + x) - factorial_rest(x) - factorial_rest(n)
        both = stirling_rest(x + a) + stirling_rest(n + b) - stirling_rest(n + x + s)
        imagined = factorial_rest(a) - log(a) + (factorial_rest(b) - log(b)) - stirling_rest(s)
        return kernel + seen + (both - imagined)

    def _cdf(self, x: Tensor) -> Tensor:
        return cdf_by_sum(self, x)

    def _survival(self, x: Tensor) -> Tensor:
        return cdf_by_sum(self, x, above=True)

    def _mean(self) -> Tensor:
        b = maximum(self.concentration0, 1.0 + 1e-12)
        return where(self.concentration0 > 1.0, self.n * self.concentration1 / (b - 1.0), math.inf)

    def _variance(self) -> Tensor:
        finite = self.concentration0 > 2.0
        a, b, n = self.concentration1, where(finite, self.concentration0, 3.0), self.n
        top = n * (n + b - 1.0) * a * (a + b - 1.0)
        return where(finite, top / ((b - 2.0) * (b - 1.0) * (b - 1.0)), math.inf)


class DiscreteWeibull(Distribution):
    """Counts with survival ``q ** ((x + 1) ** beta)``: the floor of a Weibull lifetime.

    Probability ``p(x) = q ** (x ** beta) - q ** ((x + 1) ** beta)``.

    Parameters
    ----------
    q : Tensor or number in (0, 1)
        Probability of a count above 0.
    beta : Tensor or number, positive
        1 for a geometric distribution; below 1 with heavier tails.
    """

    q: Parameter = param(constraints.open_interval(0.0, 1.0))
    beta: Parameter = param(constraints.positive)
    support = constraints.nonnegative_integer

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        e = rng.exponential(shape) / -log(self.q)
        return rng.finite(floor(power(e, 1.0 / self.beta)))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        rate = -log(self.q)
        some = x > 0.0
        k = where(some, x, 1.0)
        here = where(some, power(k, self.beta), 0.0)
        # (k + 1)^beta - k^beta without the difference for large k
        step = where(some, here * expm1(self.beta * log1p(1.0 / k)), 1.0)
        return log1mexp(rate * step) - rate * here

    def _log_survival(self, x: Tensor) -> Tensor:
        k = maximum(floor(x), -1.0) + 1.0
        some = k > 0.0
        return where(some, log(self.q) * power(where(some, k, 1.0), self.beta), 0.0)

    def _cdf(self, x: Tensor) -> Tensor:
        return -expm1(self._log_survival(x))


class YuleSimon(Distribution):
    """Counts from 1 on with a power-law tail: geometric ones of a probability exp(-e / alpha).

    Probability ``p(x) = alpha * B(x, alpha + 1)``.

    Parameters
    ----------
    alpha : Tensor or number, positive
        Tail exponent of the survival; the mean exists above 1, the variance above 2.
    """

    alpha: Parameter = param(constraints.positive)
    support = constraints.positive_integer

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        e = rng.exponential(shape) / self.alpha
        # floor(log u / log(1 - p)) + 1 with p = exp(-e)
        return rng.finite(floor(rng.exponential(shape) / -log1mexp(e)) + 1.0)

    def _log_prob(self, x: Tensor) -> Tensor:
        return log(self.alpha) + self._log_beta(x)

    def _log_beta(self, k: Tensor) -> Tensor:
        """Log of B(k, alpha + 1), exact where one of them is large, or both."""
        return exact_betaln(k, self.alpha + 1.0)

    def _log_survival(self, x: Tensor) -> Tensor:
        k = floor(x)
        inside = (k >= 1.0) & (k < math.inf)
        k = where(inside, k, 1.0)
        tail = log(k) + self._log_beta(k)
        return where(inside, tail, where(x < 1.0, 0.0, -math.inf))

    def _cdf(self, x: Tensor) -> Tensor:
        return -expm1(self._log_survival(x))

    def _mean(self) -> Tensor:
        a = maximum(self.alpha, 1.0 + 1e-12)
        return where(self.alpha > 1.0, a / (a - 1.0), math.inf)

    def _mode(self) -> Tensor:
        return self.alpha * 0.0 + 1.0

    def _variance(self) -> Tensor:
        finite = self.alpha > 2.0
        a = where(finite, self.alpha, 3.0)
        return where(finite, a * a / ((a - 1.0) * (a - 1.0) * (a - 2.0)), math.inf)
