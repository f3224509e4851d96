"""Trials with two outcomes: Bernoulli, and the number of failures before a success (geometric).

With logits no logarithm of a probability is taken: log p = -softplus(-l) and log(1 - p) =
-softplus(l). With probabilities a certain outcome has log density 0 and an impossible one -inf;
nothing is clamped.
"""

from __future__ import annotations

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, one_of, param
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import floor, maximum, sqrt, where
from probtorch.ops.comparisons import eq, lt
from probtorch.ops.exponentials import exp, log, log1p, log_sigmoid, sigmoid, softplus
from probtorch.ops.special import entr, logit, xlog1py, xlogy
from probtorch.tensor import Tensor

__all__ = ["Bernoulli", "Geometric", "Trial", "count_times"]


def count_times(count: Tensor, x: Tensor) -> Tensor:
    """Count * x, and 0 where the count is 0, x infinite included."""
    return where(eq(count, 0.0), 0.0, count * x)


class Trial(Distribution):
    """What distributions share that are given by a success probability or its log odds."""

    probs: Parameter = param(constraints.unit_interval, default=None)
    logits: Parameter = param(constraints.real, default=None)
    given = one_of("probs", "logits")

    def _as_given(self) -> Tensor:
        """Return the probabilities, or the log odds, that the distribution was made with."""
        return self.logits if self._given("logits") else self.probs

    def _probs(self) -> Tensor:
        return sigmoid(self.logits)

    def _logits(self) -> Tensor:
        return logit(self.probs)


class Bernoulli(Trial):
    """One trial: 1 with probability `probs`, else 0.

    Probability ``p(x) = probs ** x * (1 - probs) ** (1 - x)``.

    Parameters
    ----------
    probs : Tensor or number in [0, 1], optional
    logits : Tensor or number, optional
        Log odds; exactly one of the two is given.
    """

    support = constraints.boolean
    has_enumerate_support = True

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return cast(lt(rng.uniform(shape), self.probs), rng.dtype)

    def _log_prob(self, x: Tensor) -> Tensor:
        if self._given("logits"):
            return log_sigmoid(self.logits * (2.0 * x - 1.0))
        return xlogy(x, self.probs) + xlog1py(1.0 - x, -self.probs)

    def _cdf(self, x: Tensor) -> Tensor:
        below, above = lt(x, 0.0), lt(x, 1.0)
        return where(below, 0.0, where(above, 1.0 - self.probs, 1.0))

    def _entropy(self) -> Tensor:
        if self._given("logits"):
            up, down = softplus(-self.logits), softplus(self.logits)
            return count_times(self.probs, up) + count_times(sigmoid(-self.logits), down)
        return entr(self.probs) + entr(1.0 - self.probs)

    def _enumerate_support(self) -> Tensor:
        dtype = self.probs.array.dtype
        return wrap(np.arange(2).astype(dtype))

    def _mean(self) -> Tensor:
        return self.probs

    def _mode(self) -> Tensor:
        return where(self.probs > 0.5, 1.0, 0.0)

    def _variance(self) -> Tensor:
        return self.probs * (1.0 - self.probs)

    def _survival(self, x: Tensor) -> Tensor:
        below, above = lt(x, 0.0), lt(x, 1.0)
        return where(below, 1.0, where(above, self.probs, 0.0))

    def _skewness(self) -> Tensor:
        return (1.0 - 2.0 * self.probs) / sqrt(self._variance())

    def _kurtosis(self) -> Tensor:
        square = self._variance()
        return (1.0 - 6.0 * square) / square


class Geometric(Trial):
    """Number of failures before the first success.

    Probability ``p(x) = probs * (1 - probs) ** x``.

    Parameters
    ----------
    probs : Tensor or number in (0, 1], optional
        Probability of success in each trial.
    logits : Tensor or number, optional
        Its log odds; exactly one of the two is given.
    """

    probs: Parameter = param(constraints.left_open_interval(0.0, 1.0), default=None)
    logits: Parameter = param(constraints.real, default=None)
    support = constraints.nonnegative_integer

    def _log_failure(self) -> Tensor:
        """log(1 - p)."""
        return -softplus(self.logits) if self._given("logits") else log1p(-self.probs)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        # With p = 1 the quotient is a number over -inf: 0 failures.
        return rng.finite(floor(log(rng.uniform(shape)) / self._log_failure()))

    def _log_prob(self, x: Tensor) -> Tensor:
        if self._given("logits"):
            return -(count_times(x, softplus(self.logits)) + softplus(-self.logits))
        return xlog1py(x, -self.probs) + log(self.probs)

    def _cdf(self, x: Tensor) -> Tensor:
        trials = maximum(floor(x) + 1.0, 0.0)
        return 1.0 - exp(count_times(trials, self._log_failure()))

    def _entropy(self) -> Tensor:
        p = self.probs
        return (entr(p) + entr(1.0 - p)) / p

    def _mean(self) -> Tensor:
        return exp(-self.logits) if self._given("logits") else (1.0 - self.probs) / self.probs

    def _mode(self) -> Tensor:
        return self.probs * 0.0

    def _variance(self) -> Tensor:
        return self._mean() / self.probs

    def _log_survival(self, x: Tensor) -> Tensor:
        return count_times(maximum(floor(x) + 1.0, 0.0), self._log_failure())

    def _skewness(self) -> Tensor:
        return (2.0 - self.probs) / sqrt(1.0 - self.probs)

    def _kurtosis(self) -> Tensor:
        return 6.0 + self.probs * self.probs / (1.0 - self.probs)
