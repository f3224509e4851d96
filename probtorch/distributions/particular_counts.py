"""Counts of a particular origin: from an urn, of a rank, a difference of two, and of offspring."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dtype import float64
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.counts import Binomial
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.facts import cdf_by_sum
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.noncentral import mixed_gamma_cdf
from probtorch.distributions.precision import doubled, in_double
from probtorch.distributions.source import Source
from probtorch.distributions.windows import counts_around
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import ceil, clamp, floor, maximum, minimum, sqrt, where
from probtorch.ops.comparisons import isinf
from probtorch.ops.control import while_loop
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, log, log1p
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.reduction import any as some
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import factorial_rest, poisson_kernel
from probtorch.tensor import Tensor

__all__ = ["GeneralizedPoisson", "HyperGeometric", "Skellam", "Zipf", "mean_log_rank"]

Ratio: TypeAlias = Callable[[Tensor], Tensor]
Triple: TypeAlias = tuple[Tensor, Tensor, Tensor]
Walk: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def found_outward(
    u: Tensor, start: Tensor, low: Tensor, high: Tensor, first: Tensor, rise: Ratio
) -> Tensor:
    """Return the count that a uniform number falls on, counted from `start` up and down at once.

    Exact inversion whose number of steps is that of standard deviations, not of means. `first` is
    the mass of `start`, and ``rise(k)`` that of k + 1 over that of k.
    """

    def step(state: Walk) -> Walk:
        rest, i, up, down, at = state
        above, below = start + i, start - i
        over, under = above > high, below < low
        up = where(over, 0.0, up * rise(where(over, high, above) - 1.0))
        down = where(under, 0.0, down / rise(where(under, low, below)))
        rest = rest - up
        at = where((at < 0.0) & (rest <= 0.0), above, at)
        rest = rest - down
        return rest, i + 1.0, up, down, where((at < 0.0) & (rest <= 0.0), below, at)

    def going(state: Walk) -> Tensor:
        _, _, up, down, at = state
        return some((at < 0.0) & ((up > 0.0) | (down > 0.0)))

    rest = u - first
    at = where(rest <= 0.0, start, start * 0.0 - 1.0)
    at = while_loop(going, step, (rest, u * 0.0 + 1.0, first, first, at))[-1]
    # What rounding has left over belongs to the likeliest.
    return where(at < 0.0, start, at)


class HyperGeometric(Distribution):
    """Number of successes among draws from an urn without putting back.

    Probability ``p(x) = binom(successes, x) * binom(total_count - successes, draws - x) /
    binom(total_count, draws)``.

    Parameters
    ----------
    total_count : Tensor or number, whole
        Size of the urn; PyMC's N.
    successes : Tensor or number, whole
        How many of these are successes; PyMC's k.
    draws : Tensor or number, whole
        How many are drawn; PyMC's n.
    """

    total_count: Parameter = param(constraints.nonnegative_integer)
    successes: Parameter = param(
        constraints.dependent(lambda self: constraints.integer_interval(0, self.total_count))
    )
    draws: Parameter = param(
        constraints.dependent(lambda self: constraints.integer_interval(0, self.total_count))
    )

    @constraints.dependent_property(event_dim=0, is_discrete=True)
    def support(self) -> Constraint:
        """Numbers that leave none of the other counts negative."""
        return constraints.integer_interval(*self._ends())

    def _ends(self) -> tuple[Tensor, Tensor]:
        low = maximum(self.draws - (self.total_count - self.successes), 0.0)
        return low, minimum(self.draws, self.successes) + low * 0.0

    def _log_prob(self, x: Tensor) -> Tensor:
        # Three binomial masses of the same probability, none of which is far from its peak.
        n, k = self.draws, self.successes
        p = where(self.total_count > 0.0, n / maximum(self.total_count, 1.0), 0.0)

        def mass(count: Tensor, value: Tensor) -> Tensor:
            return Binomial(count, p, validate_args=False)._log_prob(value)

        both = mass(k, x) + mass(self.total_count - k, n - x)
        return both - mass(self.total_count, n)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        low, high = (expand(cast(x, float64), shape) for x in self._ends())
        u, start = cast(rng.uniform(shape), float64), expand(cast(self._mode(), float64), shape)
        found = found_outward(u, start, low, high, exp(self._log_prob(start)), self._rise)
        return cast(found, rng.dtype)

    def _mode(self) -> Tensor:
        top = (self.draws + 1.0) * (self.successes + 1.0) / (self.total_count + 2.0)
        return clamp(floor(top), *self._ends())

    def _mean(self) -> Tensor:
        return self.draws * (self.successes / maximum(self.total_count, 1.0))

    def _variance(self) -> Tensor:
        n = maximum(self.total_count, 1.0)
        share = self.successes / n
        left = (n - self.draws) / maximum(n - 1.0, 1.0)
        return self.draws * share * (1.0 - share) * left

    def _rise(self, x: Tensor) -> Tensor:
        """Mass of x + 1 over that of x."""
        k, n = self.successes, self.draws
        left = maximum(self.total_count - k - n + x + 1.0, 0.5)
        return maximum((k - x) * (n - x), 0.0) / ((x + 1.0) * left)

    def _tail(self, x: Tensor, step: float) -> Tensor:
        """Sum of the masses from x on, up (1) or down (-1), where these fall."""
        low, high = self._ends()
        inside = (x >= low) & (x <= high)
        start = where(inside, x, low)
        first = exp(self._log_prob(start))

        def following(state: Triple) -> Triple:
            at, p, sum_ = state
            over = (at + step > high) | (at + step < low)
            ratio = self._rise(at) if step > 0.0 else 1.0 / self._rise(maximum(at - 1.0, low))
            p = where(over, 0.0, p * where(over, 0.0, ratio))
            return where(over, at, at + step), p, sum_ + p

        def going(state: Triple) -> Tensor:
            return some(state[1] > 1e-18 * state[2])

        sum_ = while_loop(going, following, (start, first, first))[2]
        return where(inside, sum_, 0.0)

    def _both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return P(X <= x) and P(X > x), the smaller of which is summed."""
        low, high = self._ends()
        k = clamp(floor(x), low - 1.0, high) + low * 0.0
        beyond = k > self._mode()
        above = where(k < high, self._tail(where(beyond, k + 1.0, high + 1.0), 1.0), 0.0)
        below = self._tail(where(beyond, low - 1.0, k), -1.0)
        return where(beyond, 1.0 - above, below), where(beyond, above, 1.0 - below)

    def _cdf(self, x: Tensor) -> Tensor:
        return self._both(x)[0]

    def _survival(self, x: Tensor) -> Tensor:
        return self._both(x)[1]


class Skellam(Distribution):
    """Difference of two Poisson counts.

    Probability ``p(x) = exp(-rate1 - rate2) * (rate1 / rate2) ** (x / 2) * Iv(x, 2 * sqrt(rate1 *
    rate2))``.

    Parameters
    ----------
    rate1, rate2 : Tensor or number, positive
        Means of the count and of what is subtracted.
    """

    rate1: Parameter = param(constraints.positive)
    rate2: Parameter = param(constraints.positive)
    support = constraints.integer

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.poisson(self.rate1, shape) - rng.poisson(self.rate2, shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        return in_double(_log_skellam, self.rate1, self.rate2, x)

    def _shares(self, x: Tensor, upper: bool) -> Tensor:
        """P(X <= x), or above: that of a chi-squared with a noncentrality (Johnson 1959)."""
        k, m, n = floor(x) + (self.rate1 + self.rate2) * 0.0, self.rate1, self.rate2
        k = clamp(k, -1e15, 1e15)
        first = k >= 0.0
        up = mixed_gamma_cdf(where(first, k + 1.0, 1.0), n, m, upper=not upper)
        down = mixed_gamma_cdf(where(first, 1.0, -k), m, n, upper=upper)
        return where(first, up, down)

    def _cdf(self, x: Tensor) -> Tensor:
        return self._shares(x, False)

    def _survival(self, x: Tensor) -> Tensor:
        return self._shares(x, True)

    def _mean(self) -> Tensor:
        return self.rate1 - self.rate2

    def _variance(self) -> Tensor:
        return self.rate1 + self.rate2

    def _skewness(self) -> Tensor:
        v = self._variance()
        return (self.rate1 - self.rate2) / (v * sqrt(v))

    def _kurtosis(self) -> Tensor:
        return 1.0 / self._variance()


def _log_skellam(m: Tensor, n: Tensor, x: Tensor) -> Tensor:
    # The smaller count is j, with its Poisson mass; the larger one is j + |x|.
    above = x >= 0.0
    k = absolute(x)
    more, less = where(above, m, n), where(above, n, m)
    square = more * less
    j, weights = counts_around(2.0 * square / (k + sqrt(k * k + 4.0 * square)))
    other = j + unsqueeze(k, -1)
    terms = poisson_kernel(j, unsqueeze(less, -1)) - factorial_rest(j)
    terms = terms + poisson_kernel(other, unsqueeze(more, -1)) - factorial_rest(other)
    there = weights > 0.0
    return logsumexp(where(there, terms + log(where(there, weights, 1.0)), -math.inf), -1)


# Bernoulli numbers over factorials: of 2, 4, ..., 20.
_EULER_MACLAURIN = (
    1 / 12,
    -1 / 720,
    1 / 30240,
    -1 / 1209600,
    1 / 47900160,
    -691 / 1307674368000,
    1 / 74724249600,
    -3617 / 10670622842880000,
    43867 / 5109094217170944000,
    -174611 / 802857662698291200000,
)
_FIRST = 12
# From this power on all ranks beyond the first are as likely as 2^-200: never; and powers of the
# terms of the sum stay numbers of single precision up to here.
NO_SECOND = 200.0


def hurwitz(s: Tensor, q: Tensor) -> Tensor:
    """Sum over n >= 0 of (q + n) ** -s, for s > 1 and q > 0, differentiable in both."""
    n = s.new_tensor(np.arange(float(_FIRST)))
    head = total(exp(-unsqueeze(s, -1) * log(unsqueeze(q, -1) + n)), -1)
    a = q + float(_FIRST)
    power = exp(-s * log(a))
    # Euler and Maclaurin: the rest is an integral, half a term, and derivatives.
    tail = a / (s - 1.0) + 0.5
    rising = s / a
    for k, b in enumerate(_EULER_MACLAURIN):
        tail = tail + b * rising
        rising = rising * ((s + (2.0 * k + 1.0)) / a) * ((s + (2.0 * k + 2.0)) / a)
    return head + power * tail


def mean_log_rank(power: Tensor) -> Tensor:
    """The mean logarithm of a Zipf rank: -zeta'(s) / zeta(s), term by term as in `hurwitz`."""
    s = minimum(power, NO_SECOND)
    logs = np.log(np.arange(2.0, _FIRST))
    head = total(exp(-unsqueeze(s, -1) * s.new_tensor(logs)) * s.new_tensor(logs), -1)
    a = float(_FIRST)
    size, r = math.log(a), 1.0 / (s - 1.0)
    # Each term of the tail, times a^-s, with minus the derivative of its logarithm.
    tail = a * r * (size + r) + 0.5 * size
    rising, slope = s / a, size - 1.0 / s
    for k, b in enumerate(_EULER_MACLAURIN):
        tail = tail + b * rising * slope
        one, two = s + (2.0 * k + 1.0), s + (2.0 * k + 2.0)
        rising = rising * (one / a) * (two / a)
        slope = slope - 1.0 / one - 1.0 / two
    whole = 1.0 + hurwitz(s, s * 0.0 + 2.0)
    return (head + exp(-s * size) * tail) / whole


class Zipf(Distribution):
    """Ranks from 1 on whose probability is a power law: also called the zeta distribution.

    Probability ``p(x) = x ** (-power) / zeta(power)``.

    Parameters
    ----------
    power : Tensor or number, above 1
        The probability of k is proportional to ``k ** -power``.
    """

    power: Parameter = param(constraints.greater_than(1.0))
    support = constraints.positive_integer

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        s = cast(expand(minimum(self.power.detach(), NO_SECOND), shape), float64)
        whole = 1.0 + hurwitz(s, s * 0.0 + 2.0)
        rest = cast(rng.uniform(shape), float64) * whole

        def above(k: Tensor) -> Tensor:
            return hurwitz(s, k + 1.0)

        # The least k with sum above k at most `rest`: near the integral's answer.
        near = exp(minimum(-log(rest * (s - 1.0)) / (s - 1.0), 700.0))
        k = maximum(ceil(near - 0.5), 1.0)

        def closer(k: Tensor) -> Tensor:
            low, high = above(k) > rest, (k > 1.0) & (above(k - 1.0) <= rest)
            return where(k < 1e6, where(low, k + 1.0, where(high, k - 1.0, k)), k)

        def wrong(k: Tensor) -> Tensor:
            low, high = above(k) > rest, (k > 1.0) & (above(k - 1.0) <= rest)
            # From there on the integral's answer is that of the sum.
            return some((low | high) & (k < 1e6))

        return cast(rng.finite(while_loop(wrong, closer, k)), rng.dtype)

    def _log_prob(self, x: Tensor) -> Tensor:
        s = minimum(self.power, NO_SECOND)
        return -self.power * log(x) - log1p(hurwitz(s, s * 0.0 + 2.0))

    def _survival(self, x: Tensor) -> Tensor:
        none = isinf(x) & (x > 0.0)
        k = maximum(floor(where(none, 1.0, x)), 0.0)
        s = self.power + k * 0.0
        some_ = k >= 1.0
        high = hurwitz(s, where(some_, k, 1.0) + 1.0) / (1.0 + hurwitz(s, s * 0.0 + 2.0))
        return where(none, 0.0, where(some_, high, 1.0))

    def _cdf(self, x: Tensor) -> Tensor:
        return 1.0 - self._survival(x)

    def _raw(self, order: float) -> Tensor:
        """E[k ** order], infinite where the power is too small."""
        finite = self.power > order + 1.0
        s = where(finite, self.power, order + 2.0)
        one = s * 0.0 + 1.0
        return where(finite, hurwitz(s - order, one) / hurwitz(s, one), math.inf)

    def _mean(self) -> Tensor:
        return self._raw(1.0)

    def _mode(self) -> Tensor:
        return self.power * 0.0 + 1.0

    def _variance(self) -> Tensor:
        square = self._raw(2.0)
        finite = square < math.inf
        mean = where(finite, self._mean(), 0.0)
        return where(finite, square - mean * mean, math.inf)


class GeneralizedPoisson(Distribution):
    """Size of a family tree: Poisson founders, each with Poisson offspring, and so on.

    Overdispersed: the mean is ``rate / (1 - excess)``, the variance that over ``(1 - excess)**2``.

    Probability ``p(x) = rate * (rate + x * excess) ** (x - 1) * exp(-rate - x * excess) /
    factorial(x)``.

    Parameters
    ----------
    rate : Tensor or number, positive
        Mean number of founders; PyMC's mu.
    excess : Tensor or number in [0, 1)
        Mean number of children of each; 0 for a Poisson distribution. PyMC's lam. Negative ones
        have no distribution that sums to 1.

    Notes
    -----
    Draws are exact, by rejection from an inverse Gaussian; they cost the same whatever the mean.
    """

    rate: Parameter = param(constraints.positive)
    excess: Parameter = param(constraints.half_open_interval(0.0, 1.0), default=0.0)
    support = constraints.nonnegative_integer

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return cast(rng.finite(rng.progeny(self.rate, self.excess, shape)), rng.dtype)

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        # rate (rate + x excess)^(x - 1) exp(-rate - x excess) / x!
        mean = self.rate + x * self.excess
        return poisson_kernel(x, mean) - factorial_rest(x) + log(self.rate / mean)

    def _cdf(self, x: Tensor) -> Tensor:
        return cdf_by_sum(self, x)

    def _survival(self, x: Tensor) -> Tensor:
        return cdf_by_sum(self, x, above=True)

    def _mean(self) -> Tensor:
        return self.rate / (1.0 - self.excess)

    def _variance(self) -> Tensor:
        rest = 1.0 - self.excess
        return self.rate / (rest * rest * rest)

    def _skewness(self) -> Tensor:
        return (1.0 + 2.0 * self.excess) / sqrt(self.rate * (1.0 - self.excess))

    def _kurtosis(self) -> Tensor:
        c = self.excess
        return (1.0 + c * (8.0 + 6.0 * c)) / (self.rate * (1.0 - c))
