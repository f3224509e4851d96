"""Divergences between distributions of counts and categories.

A p with a finite support needs no rule here: without one the sum over its support is taken.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.distributions.bernoulli import Bernoulli, Geometric, Trial, count_times
from probtorch.distributions.categorical import Categorical, Multinomial, OneHotCategorical
from probtorch.distributions.counts import Binomial, NegativeBinomial, Poisson
from probtorch.distributions.inflated import (
    Gated,
    HurdleDistribution,
    ZeroInflatedDistribution,
)
from probtorch.distributions.kl_rules import kl_divergence, no_closed_form, register_kl, sum_over
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponentials import exp, expm1, log, log1p
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import entr, xlogy
from probtorch.tensor import Tensor

__all__: list[str] = []


def _weighted_log_ratio(p: Tensor, q: Tensor) -> Tensor:
    """P log(p / q), 0 where p is 0 and inf where only q is."""
    none = eq(p, 0.0)
    safe = where(none, 1.0, p)
    return where(none, 0.0, safe * (log(safe) - log(where(none, 1.0, q))))


@register_kl(Bernoulli, Bernoulli)
def _trial(p: Trial, q: Trial) -> Tensor:
    a, b = p.probs, q.probs
    return _weighted_log_ratio(a, b) + _weighted_log_ratio(1.0 - a, 1.0 - b)


@register_kl(Geometric, Geometric)
def _(p: Geometric, q: Geometric) -> Tensor:
    a, b = p.probs, q.probs
    return log(a / b) + (1.0 - a) / a * (log1p(-where(a < 1.0, a, 0.0)) - log1p(-b))


@register_kl(Binomial, Binomial)
def _(p: Binomial, q: Binomial) -> Tensor:
    n, m = p.total_count, q.total_count
    if bool(eq(n, m).all()):
        return n * _trial(p, q)
    most = np.arange(int(n.max()) + 1.0)
    batch = max(len(p._batch_shape), len(q._batch_shape))
    return sum_over(p, q, n.new_tensor(most.reshape(-1, *(1,) * batch)))


@register_kl(Poisson, Poisson)
def _(p: Poisson, q: Poisson) -> Tensor:
    return xlogy(p.rate, p.rate / q.rate) - (p.rate - q.rate)


@register_kl(Categorical, Categorical)
@register_kl(OneHotCategorical, OneHotCategorical)
def _(p: Categorical | OneHotCategorical, q: Categorical | OneHotCategorical) -> Tensor:
    logs, others = p._log_weights(), q._log_weights()
    return total(count_times(exp(logs), logs - others), -1)


@register_kl(Multinomial, Multinomial)
def _(p: Multinomial, q: Multinomial) -> Tensor:
    n, m = p.total_count, q.total_count
    same = eq(n, m).all() if isinstance(n, Tensor) or isinstance(m, Tensor) else n == m
    if not bool(same):
        raise no_closed_form(p, q, f"one total_count on both sides, not {n} and {m}")
    logs, others = p._log_weights(), q._log_weights()
    return total(count_times(exp(logs), logs - others), -1) * p._left()


@register_kl(NegativeBinomial, NegativeBinomial)
def _(p: NegativeBinomial, q: NegativeBinomial) -> Tensor:
    n, m = p.total_count, q.total_count
    if not bool(eq(n, m).all()):
        raise no_closed_form(p, q, "one total_count on both sides")
    # For each failure a geometric number of successes.
    a, b = p.probs, q.probs
    gain = xlogy(a, where(eq(a, 0.0), 1.0, a) / where(eq(a, 0.0), 1.0, b)) / (1.0 - a)
    return n * (gain + log1p(-a) - log1p(-b))


@register_kl(Bernoulli, Poisson)
def _(p: Bernoulli, q: Poisson) -> Tensor:
    # Neither 0 nor 1 has a factorial other than 1.
    a = p.probs
    return q.rate - xlogy(a, q.rate) - (entr(a) + entr(1.0 - a))


@register_kl(Poisson, Bernoulli)
@register_kl(Poisson, Binomial)
def _(p: Poisson, q: Bernoulli | Binomial) -> Tensor:
    # A Poisson exceeds any count, unless its rate is 0.
    none = -q.log_prob_inside(q.probs * 0.0)
    return where(eq(p.rate, 0.0), none, math.inf)


@register_kl(ZeroInflatedDistribution, ZeroInflatedDistribution)
@register_kl(HurdleDistribution, HurdleDistribution)
@register_kl(ZeroInflatedDistribution, HurdleDistribution)
@register_kl(HurdleDistribution, ZeroInflatedDistribution)
def _(p: Gated, q: Gated) -> Tensor:
    a, b = p.base_dist, q.base_dist
    if a.is_discrete != b.is_discrete:
        raise no_closed_form(p, q, "counts, or no counts, on both sides")
    # First whether it is 0, then how large it is if not. What a count adds at 0 is taken out of
    # the divergence of the bases, and both are rescaled to what is left.
    at = p._gate() * 0.0 + q._gate() * 0.0
    log_p, log_q = p.log_prob_inside(at), q.log_prob_inside(at)
    zero = _weighted_log_ratio(exp(log_p), exp(log_q))
    some, other = -expm1(log_p), -expm1(log_q)
    rest = _weighted_log_ratio(some, other)
    gap = kl_divergence(a, b)
    if a.is_discrete:
        first, second = a.log_prob_inside(at), b.log_prob_inside(at)
        left, right = -expm1(first), -expm1(second)
        gap = (gap - _weighted_log_ratio(exp(first), exp(second))) / left + log(right / left)
    return zero + rest + count_times(some, gap)
