"""Counts: binomial, beta-binomial, Poisson, negative binomial.

Log masses are differences of lgammas that cancel when the parameters are large; they are written
with `betaln` and `lgamma_difference`, which do the cancellation in the algebra. A count of 0 times
an infinite logarithm is 0.
"""

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.distributions import constraints
from probtorch.distributions.bernoulli import Trial, count_times
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, one_of, param
from probtorch.errors import ArgumentError
from probtorch.ops.elementwise import (
    eq,
    exp,
    floor,
    log,
    maximum,
    minimum,
    sigmoid,
    softplus,
    where,
)
from probtorch.ops.special import (
    betainc,
    betaln,
    gammaincc,
    lgamma,
    lgamma_difference,
    xlog1py,
    xlogy,
)

__all__ = ["BetaBinomial", "Binomial", "NegativeBinomial", "Poisson"]


def log_choose(n, k):
    """Log of n choose k; one special function instead of three."""
    return -(log(n + 1.0) + betaln(k + 1.0, n - k + 1.0))


def counts_up_to(total_count, owner):
    """Return 0, ..., total_count; the counts of a batch must agree."""
    counts = total_count._data
    largest = int(total_count.max())
    if (counts != largest).any():
        raise ArgumentError(
            f"{owner}.enumerate_support",
            expected="one total_count for the whole batch",
            got=f"counts from {int(counts.min())} to {largest}",
            fix="enumerate one batch element at a time",
        )
    return wrap(np.arange(largest + 1).astype(counts.dtype))


class Binomial(Trial):
    """Number of successes in `total_count` independent trials.

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
    def support(self):
        """Whole numbers from 0 to `total_count`."""
        return constraints.integer_interval(0, self.total_count)

    def _enumerate_support(self):
        return counts_up_to(self.total_count, type(self).__name__)

    def _sample(self, rng, shape):
        return rng.binomial(self.total_count, self.probs, shape)

    def _log_prob(self, x):
        n = self.total_count
        rest = n - x
        if self._given("logits"):
            up = count_times(x, softplus(-self.logits))
            return log_choose(n, x) - (up + count_times(rest, softplus(self.logits)))
        return log_choose(n, x) + (xlogy(x, self.probs) + xlog1py(rest, -self.probs))

    def _cdf(self, x):
        k, n = floor(x), self.total_count
        inside = (k >= 0.0) & (k < n)
        k = where(inside, k, 0.0)
        p = betainc(where(inside, n - k, 1.0), k + 1.0, 1.0 - self.probs)
        return where(inside, p, where(x < 0.0, 0.0, 1.0))

    def _mean(self):
        return self.total_count * self.probs

    def _mode(self):
        return minimum(floor((self.total_count + 1.0) * self.probs), self.total_count)

    def _variance(self):
        return self.total_count * self.probs * (1.0 - self.probs)


class BetaBinomial(Distribution):
    """Number of successes in `total_count` trials whose probability is itself a beta draw.

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
    def support(self):
        """Whole numbers from 0 to `total_count`."""
        return constraints.integer_interval(0, self.total_count)

    def _enumerate_support(self):
        return counts_up_to(self.total_count, type(self).__name__)

    def _sample(self, rng, shape):
        a = rng.log_gamma(self.concentration1, shape)
        b = rng.log_gamma(self.concentration0, shape)
        return rng.binomial(self.total_count, sigmoid(a - b), shape)

    def _log_prob(self, x):
        a, b, n = self.concentration1, self.concentration0, self.total_count
        rest = n - x
        rising = lgamma_difference(a, x) + lgamma_difference(b, rest) - lgamma_difference(a + b, n)
        return log_choose(n, x) + rising

    def _mean(self):
        a, b = self.concentration1, self.concentration0
        return self.total_count * a / (a + b)

    def _variance(self):
        a, b, n = self.concentration1, self.concentration0, self.total_count
        s = a + b
        return n * (a / s) * (b / s) * ((s + n) / (s + 1.0))


class Poisson(Distribution):
    """Number of independent events when `rate` are expected.

    Parameters
    ----------
    rate : Tensor or number, >= 0
        Mean and variance; with 0 the count is 0.
    """

    rate: Parameter = param(constraints.nonnegative)
    support = constraints.nonnegative_integer

    def _sample(self, rng, shape):
        return rng.poisson(self.rate, shape)

    def _log_prob(self, x):
        return xlogy(x, self.rate) - self.rate - lgamma(x + 1.0)

    def _cdf(self, x):
        k = floor(x)
        inside = k >= 0.0
        return where(inside, gammaincc(where(inside, k, 0.0) + 1.0, self.rate), 0.0)

    def _mean(self):
        return self.rate

    _variance = _mean

    def _mode(self):
        return floor(self.rate)


class NegativeBinomial(Distribution):
    """Number of successes before `total_count` failures; a Poisson whose rate is a gamma draw.

    Parameters
    ----------
    total_count : Tensor or number, >= 0
        Number of failures, or any positive number: the concentration of the gamma. With 0 the count
        is 0.
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

    def _odds(self):
        return exp(self.logits) if self._given("logits") else self.probs / (1.0 - self.probs)

    def _sample(self, rng, shape):
        some = self.total_count > 0.0
        rate = rng.gamma(where(some, self.total_count, 1.0), shape) * self._odds()
        return rng.poisson(where(some, rate, 0.0), shape)

    def _log_prob(self, x):
        r, none = self.total_count, eq(x, 0.0)
        # A first term of 0 for x = 0 holds at r = 0 too, where both lgammas are infinite.
        orders = where(none, 0.0, lgamma_difference(r, where(none, 1.0, x)) - lgamma(x + 1.0))
        if self._given("logits"):
            up = count_times(x, softplus(-self.logits))
            return orders - (up + r * softplus(self.logits))
        return orders + (xlogy(x, self.probs) + xlog1py(r, -self.probs))

    def _cdf(self, x):
        k = floor(x)
        inside = (k >= 0.0) & (self.total_count > 0.0)
        r = where(self.total_count > 0.0, self.total_count, 1.0)
        p = betainc(r, where(inside, k, 0.0) + 1.0, 1.0 - self.probs)
        return where(inside, p, where(x < 0.0, 0.0, 1.0))

    def _mean(self):
        return self.total_count * self._odds()

    def _mode(self):
        return floor(maximum(self.total_count - 1.0, 0.0) * self._odds())

    def _variance(self):
        return self._mean() * (1.0 + self._odds())
