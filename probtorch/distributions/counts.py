"""Counts: binomial, beta-binomial, Poisson, negative binomial.

Log masses are differences of lgammas that cancel when the parameters are large; they are written
with kernels that are near 0 where the mass is large (ops/special/gamma.py), which do the
cancellation in the algebra. A count of 0 times an infinite logarithm is 0.

While a function is recorded, counts known to be small take the plain form, which is as exact for
them: what it has of logarithms is of the parameters alone, and one number for many counts.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import recorder, wrap
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.bernoulli import Trial, count_times
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, one_of, param
from probtorch.distributions.formulas import finite, known_small
from probtorch.distributions.precision import in_double
from probtorch.distributions.source import Source
from probtorch.distributions.windows import counts_within, weighted
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import floor, maximum, minimum, sqrt, where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponentials import exp, log, sigmoid, softplus
from probtorch.ops.extremes import argmax
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import (
    beta_binomial_kernel,
    betainc,
    betaln,
    binomial_kernel,
    binomial_logits_kernel,
    entr,
    factorial_rest,
    gammainc,
    gammaincc,
    lgamma,
    lgamma_difference,
    poisson_kernel,
    stirling_rest,
    xlog1py,
    xlogy,
)
from probtorch.tensor import Tensor

__all__ = ["BetaBinomial", "Binomial", "NegativeBinomial", "Poisson", "binomial_masses"]


def log_choose(n: Tensor, k: Tensor) -> Tensor:
    """Log of n choose k; one special function instead of three."""
    return -(log(n + 1.0) + betaln(k + 1.0, n - k + 1.0))


def log_factorial_rest(n: Tensor) -> Tensor:
    """log(n!) - (n log n - n) for whole n; `factorial_rest` but for n = 0, where it is 0."""
    return where(eq(n, 0.0), 0.0, factorial_rest(n))


def counts_up_to(total_count: Tensor, owner: str) -> Tensor:
    """Return 0, ..., total_count; the counts of a batch must agree.

    Those at all values of a site that is summed out need not: the largest has all values then, and
    the density is 0 for what others do not have.
    """
    counts = total_count.array
    largest = int(total_count.max())
    active = recorder()
    excused = active is not None and active.excuses(eq(total_count, float(largest)))
    if (counts != largest).any() and not excused:
        raise ArgumentError(
            f"{owner}.enumerate_support",
            expected="one total_count for the whole batch",
            got=f"counts from {int(counts.min())} to {largest}",
            fix="enumerate one batch element at a time; in a model, give the numbers up to the "
            "largest as a Categorical of their masses",
        )
    return wrap(np.arange(largest + 1).astype(counts.dtype))


class Binomial(Trial):
    """Number of successes in `total_count` independent trials.

    Probability ``p(x) = binom(total_count, x) * probs ** x * (1 - probs) ** (total_count - x)``.

    Parameters
    ----------
    total_count : Tensor or number, a whole number >= 0
    probs : Tensor or number in [0, 1], optional
        Probability of success in each trial.
    logits : Tensor or number, optional
        Its log odds; exactly one of the two is given.
    """

    total_count: Parameter = param(constraints.nonnegative_integer, default=1.0)
    probs: Parameter = param(constraints.unit_interval, default=None)
    logits: Parameter = param(constraints.real, default=None)
    has_enumerate_support = True

    @constraints.dependent_property(event_dim=0, is_discrete=True)
    def support(self) -> Constraint:
        """Whole numbers from 0 to `total_count`."""
        return constraints.integer_interval(0, self.total_count)

    def _enumerate_support(self) -> Tensor:
        return counts_up_to(self.total_count, type(self).__name__)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.binomial(self.total_count, self.probs, shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        n = self.total_count
        rest = n - x
        logits = self._given("logits")
        if known_small(x, n, rest, beside=(self._as_given(),)):
            if logits:
                up = count_times(x, softplus(-self.logits))
                return log_choose(n, x) - (up + count_times(rest, softplus(self.logits)))
            return log_choose(n, x) + (xlogy(x, self.probs) + xlog1py(rest, -self.probs))
        orders = log_factorial_rest(n) - factorial_rest(x) - factorial_rest(rest)
        if logits:
            return binomial_logits_kernel(x, rest, self.logits) + orders
        return binomial_kernel(x, rest, self.probs) + orders

    def _cdf(self, x: Tensor) -> Tensor:
        k, n = floor(x), self.total_count
        inside = (k >= 0.0) & (k < n)
        k = where(inside, k, 0.0)
        p = betainc(where(inside, n - k, 1.0), k + 1.0, 1.0 - self.probs)
        return where(inside, p, where(x < 0.0, 0.0, 1.0))

    def _mean(self) -> Tensor:
        return self.total_count * self.probs

    def _mode(self) -> Tensor:
        return minimum(floor((self.total_count + 1.0) * self.probs), self.total_count)

    def _variance(self) -> Tensor:
        return self.total_count * self.probs * (1.0 - self.probs)

    def _survival(self, x: Tensor) -> Tensor:
        k, n = floor(x), self.total_count
        inside = (k >= 0.0) & (k < n)
        k = where(inside, k, 0.0)
        p = betainc(k + 1.0, where(inside, n - k, 1.0), self.probs)
        return where(inside, p, where(x < 0.0, 1.0, 0.0))

    def _skewness(self) -> Tensor:
        return (1.0 - 2.0 * self.probs) / sqrt(self._variance())

    def _kurtosis(self) -> Tensor:
        return (1.0 - 6.0 * self.probs * (1.0 - self.probs)) / self._variance()

    def _entropy(self) -> Tensor:
        return in_double(_binomial_entropy, self.total_count, self.probs)


def binomial_masses(n: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts along a new last dim, those that matter; their log masses; and weights."""
    k, weights = counts_within(n * p, sqrt(n * p * (1.0 - p)), n + 0.0 * p)
    d = Binomial(total_count=unsqueeze(n, -1), probs=unsqueeze(p, -1), validate_args=False)
    return k, d._log_prob(k), weights


def _binomial_entropy(n: Tensor, p: Tensor) -> Tensor:
    _, logs, weights = binomial_masses(n, p)
    return weighted(entr(exp(logs)), weights)


class BetaBinomial(Distribution):
    """Number of successes in `total_count` trials whose probability is itself a beta draw.

    Probability ``p(x) = binom(total_count, x) * B(x + concentration1, total_count - x +
    concentration0) / B(concentration1, concentration0)``.

    Parameters
    ----------
    concentration1, concentration0 : Tensor or number, positive
        Of the beta.
    total_count : Tensor or number, a whole number >= 0
    """

    concentration1: Parameter = param(constraints.positive)
    concentration0: Parameter = param(constraints.positive)
    total_count: Parameter = param(constraints.nonnegative_integer, default=1.0)
    has_enumerate_support = True

    @constraints.dependent_property(event_dim=0, is_discrete=True)
    def support(self) -> Constraint:
        """Whole numbers from 0 to `total_count`."""
        return constraints.integer_interval(0, self.total_count)

    def _enumerate_support(self) -> Tensor:
        return counts_up_to(self.total_count, type(self).__name__)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        a = rng.log_gamma(self.concentration1, shape)
        b = rng.log_gamma(self.concentration0, shape)
        return rng.binomial(self.total_count, sigmoid(a - b), shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        a, b, n = self.concentration1, self.concentration0, self.total_count
        rest, s = n - x, a + b
        # Of n + s trials n are seen and s imagined, successes and failures in the same share.
        kernel = beta_binomial_kernel(a, b, x, rest)
        seen = log_factorial_rest(n) - factorial_rest(x) - factorial_rest(rest)
        both = stirling_rest(x + a) + stirling_rest(rest + b) - stirling_rest(n + s)
        imagined = factorial_rest(a) - log(a) + (factorial_rest(b) - log(b)) - stirling_rest(s)
        return kernel + seen + (both - imagined)

    def _mean(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return self.total_count * a / (a + b)

    def _variance(self) -> Tensor:
        a, b, n = self.concentration1, self.concentration0, self.total_count
        s = a + b
        return n * (a / s) * (b / s) * ((s + n) / (s + 1.0))

    def _masses(self) -> tuple[Tensor, Tensor]:
        """Return all counts along a new last dim, and their masses; 0 beyond a smaller total."""
        n = unsqueeze(self.total_count, -1)
        k = n.new_tensor(np.arange(int(self.total_count.max()) + 1.0))
        one = type(self)(
            unsqueeze(self.concentration1, -1),
            unsqueeze(self.concentration0, -1),
            n,
            validate_args=False,
        )
        return k, where(k <= n, exp(one._log_prob(minimum(k, n))), 0.0)

    def _cdf(self, x: Tensor) -> Tensor:
        k, p = self._masses()
        below = minimum(total(where(k <= unsqueeze(x, -1), p, 0.0), -1), 1.0)
        return where(x >= self.total_count, 1.0, below)

    def _survival(self, x: Tensor) -> Tensor:
        k, p = self._masses()
        above = minimum(total(where(k > unsqueeze(x, -1), p, 0.0), -1), 1.0)
        return where(x < 0.0, 1.0, above)

    def _entropy(self) -> Tensor:
        return total(entr(self._masses()[1]), -1)

    def _mode(self) -> Tensor:
        return cast(argmax(self._masses()[1], -1), self.concentration1.array.dtype)


class Poisson(Distribution):
    """Number of independent events when `rate` are expected.

    Probability ``p(x) = rate ** x * exp(-rate) / factorial(x)``.

    Parameters
    ----------
    rate : Tensor or number, >= 0
        Mean and variance; with 0 the count is 0.
    """

    rate: Parameter = param(constraints.nonnegative)
    _also: ClassVar = {"is_sparse": None}
    support = constraints.nonnegative_integer

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.poisson(self.rate, shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        if known_small(x, beside=(self.rate,)):
            return xlogy(x, finite(self.rate, x)) - self.rate - lgamma(x + 1.0)
        return poisson_kernel(x, self.rate) - factorial_rest(x)

    def _cdf(self, x: Tensor) -> Tensor:
        k = floor(x)
        inside = k >= 0.0
        return where(inside, gammaincc(where(inside, k, 0.0) + 1.0, self.rate), 0.0)

    def _mean(self) -> Tensor:
        return self.rate

    _variance = _mean

    def _mode(self) -> Tensor:
        return floor(self.rate)

    def _survival(self, x: Tensor) -> Tensor:
        k = floor(x)
        inside = k >= 0.0
        return where(inside, gammainc(where(inside, k, 0.0) + 1.0, self.rate), 1.0)

    def _skewness(self) -> Tensor:
        return 1.0 / sqrt(self.rate)

    def _kurtosis(self) -> Tensor:
        return 1.0 / self.rate


def _has_plain_slope(r: Tensor) -> bool:
    """Whether the plain form has a slope in `r`: not at 0, where eagerly one is asked for."""
    eager = recorder() is None and r.requires_grad
    return not eager or bool((r.array > 0.0).all())


def _may_be_infinite(*parameters: Tensor) -> bool:
    """Whether some are infinite, which recordings have to be prepared for."""
    return recorder() is not None or any(bool((abs(p.array) == np.inf).any()) for p in parameters)


class NegativeBinomial(Distribution):
    """Number of successes before `total_count` failures; a Poisson whose rate is a gamma draw.

    Probability ``p(x) = gamma(total_count + x) / (gamma(total_count) * factorial(x)) * probs ** x *
    (1 - probs) ** total_count``.

    Parameters
    ----------
    total_count : Tensor or number, >= 0
        Number of failures, or any positive number: the concentration of the gamma. With 0 the count
        is 0. Without end no count is likely: log densities are -inf (and nan where there is no
        success either, in place of those of a Poisson, whose mean is not to be had).
    probs : Tensor or number in [0, 1), optional
        Probability of success in each trial, as in PyTorch.
    logits : Tensor or number, optional
        Its log odds; exactly one of the two is given. The mean is ``total_count * exp(logits)``.
    """

    total_count: Parameter = param(constraints.nonnegative)
    probs: Parameter = param(constraints.half_open_interval(0.0, 1.0), default=None)
    logits: Parameter = param(constraints.real, default=None)
    given = one_of("probs", "logits")
    support = constraints.nonnegative_integer
    _probs, _logits = Trial._probs, Trial._logits
    _as_given: Any = Trial._as_given

    def _odds(self) -> Tensor:
        return exp(self.logits) if self._given("logits") else self.probs / (1.0 - self.probs)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        some = self.total_count > 0.0
        rate = rng.gamma(where(some, self.total_count, 1.0), shape) * self._odds()
        return rng.poisson(rng.finite(where(some, rate, 0.0)), shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        r, p, logits = self.total_count, self._as_given(), self._given("logits")
        if not _may_be_infinite(r, p):
            return self._log_prob_at(x, r, p)
        # Limits, which no slope leads out of: the mean is infinite, or there is no success.
        endless, never = eq(r, np.inf), eq(p, -np.inf if logits else 0.0)
        without_end = endless | eq(abs(p), np.inf)
        usual = where(endless, 1.0, r), where(without_end, 0.0, p)
        limit = where(eq(x, 0.0) & (never | eq(r, 0.0)), 0.0, -np.inf)
        limit = where(endless & never, np.nan, limit)  # a Poisson's, of a mean that nobody knows
        return where(without_end, limit, self._log_prob_at(x, *usual))

    def _log_prob_at(self, x: Tensor, r: Tensor, p: Tensor) -> Tensor:
        none, logits = eq(x, 0.0), self._given("logits")
        failures = -(r * softplus(p)) if logits else xlog1py(r, -p)
        # In float32 the terms of many imagined failures would cancel too badly.
        double = all(v.array.dtype.itemsize == 8 for v in (x, r, p))
        if double and known_small(x) and _has_plain_slope(r):
            # A first term of 0 for x = 0 holds at r = 0 too, where both lgammas are infinite.
            some = where(none, 1.0, x)
            orders = where(none, 0.0, lgamma_difference(r, some) - lgamma(x + 1.0))
            if logits:
                return orders - count_times(x, softplus(-p)) + failures
            return orders + (xlogy(x, p) + failures)
        # A kernel of 1 success in place of 0, where it is not used.
        k = where(none, 1.0, x)
        known = where(eq(r, 0.0), 1.0, r)
        if logits:
            kernel = binomial_logits_kernel(k, known, p)
        else:
            kernel = binomial_kernel(k, known, p)
        orders = stirling_rest(k + known) - factorial_rest(known) - factorial_rest(k)
        several = where(eq(r, 0.0), -np.inf, log(known))
        return where(none, failures, kernel + (orders + several))

    def _cdf(self, x: Tensor) -> Tensor:
        k = floor(x)
        inside = (k >= 0.0) & (self.total_count > 0.0)
        r = where(self.total_count > 0.0, self.total_count, 1.0)
        p = betainc(r, where(inside, k, 0.0) + 1.0, 1.0 - self.probs)
        return where(inside, p, where(x < 0.0, 0.0, 1.0))

    def _mean(self) -> Tensor:
        return self.total_count * self._odds()

    def _mode(self) -> Tensor:
        return floor(maximum(self.total_count - 1.0, 0.0) * self._odds())

    def _variance(self) -> Tensor:
        return self._mean() * (1.0 + self._odds())

    def _survival(self, x: Tensor) -> Tensor:
        k = floor(x)
        inside = (k >= 0.0) & (self.total_count > 0.0)
        r = where(self.total_count > 0.0, self.total_count, 1.0)
        p = betainc(where(inside, k, 0.0) + 1.0, r, self.probs)
        return where(inside, p, where(x < 0.0, 1.0, 0.0))

    def _skewness(self) -> Tensor:
        return (1.0 + self.probs) / sqrt(self.probs * self.total_count)

    def _kurtosis(self) -> Tensor:
        rest = 1.0 - self.probs
        return (6.0 + rest * rest / self.probs) / self.total_count
