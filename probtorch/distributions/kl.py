"""Kullback-Leibler divergences in closed form, and the registry of them.

`kl_divergence(p, q)` looks for the rule of the most specific pair of classes. Rules say in their
own words where the divergence is infinite: where p has mass outside the support of q.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.distributions.bernoulli import Bernoulli, Geometric, count_times
from probtorch.distributions.beta import Beta, Dirichlet
from probtorch.distributions.categorical import Categorical, OneHotCategorical
from probtorch.distributions.counts import Binomial, Poisson
from probtorch.distributions.distribution import Distribution, Independent, sum_rightmost
from probtorch.distributions.gamma import Gamma, GammaFamily
from probtorch.distributions.heavy_tailed import Cauchy
from probtorch.distributions.location_scale import EULER_GAMMA, Gumbel, Laplace
from probtorch.distributions.multivariate_normal import MultivariateNormal, squared_length
from probtorch.distributions.normal import HalfNormal, LogNormal, Normal
from probtorch.distributions.positive import Exponential, Pareto
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.uniform import Delta, Uniform
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponentials import exp, log, log1p
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import diagonal
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import betaln, digamma, lgamma, xlogy
from probtorch.tensor import Tensor

__all__ = ["kl_divergence", "register_kl"]

_Rule = TypeVar("_Rule", bound=Callable[..., Tensor])
_RULES: dict[tuple[type[Distribution], type[Distribution]], Callable[..., Tensor]] = {}


def register_kl(type_p: type[Distribution], type_q: type[Distribution]) -> Callable[[_Rule], _Rule]:
    """Decorator: use ``fn(p, q)`` for KL(p || q) of these classes and their subclasses."""

    def add(fn: _Rule) -> _Rule:
        _RULES[type_p, type_q] = fn
        return fn

    return add


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """Return KL(p || q), the mean of log p(x) - log q(x) over draws x of p, in nats.

    Parameters
    ----------
    p, q : Distribution
        Of one event shape; batch shapes broadcast.

    Returns
    -------
    Tensor, shape of the broadcast batch

    Raises
    ------
    ArgumentError
        If there is no closed form for the pair.
    """
    found = [
        (type(p).__mro__.index(a), type(q).__mro__.index(b), fn)
        for (a, b), fn in _RULES.items()
        if isinstance(p, a) and isinstance(q, b)
    ]
    if not found:
        raise ArgumentError(
            "kl_divergence",
            expected="a pair of classes with a registered closed form",
            got=f"{type(p).__name__} and {type(q).__name__}",
            fix="average p.log_prob(x) - q.log_prob(x) over draws of p, or register_kl",
        )
    fn = min(found, key=lambda f: f[:2])[2]
    return q._to_batch(p._to_batch(fn(p, q)))


def _weighted_log_ratio(p: Tensor, q: Tensor) -> Tensor:
    """P log(p / q), 0 where p is 0 and inf where only q is."""
    none = eq(p, 0.0)
    safe = where(none, 1.0, p)
    return where(none, 0.0, safe * (log(safe) - log(where(none, 1.0, q))))


@register_kl(Normal, Normal)
@register_kl(LogNormal, LogNormal)
def _(p: Normal | LogNormal, q: Normal | LogNormal) -> Tensor:
    ratio, shift = p.scale / q.scale, (p.loc - q.loc) / q.scale
    return (ratio * ratio + shift * shift - 1.0) * 0.5 - log(ratio)


@register_kl(HalfNormal, HalfNormal)
def _(p: HalfNormal, q: HalfNormal) -> Tensor:
    ratio = p.scale / q.scale
    return (ratio * ratio - 1.0) * 0.5 - log(ratio)


@register_kl(MultivariateNormal, MultivariateNormal)
def _(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    a, b = p.scale_tril, q.scale_tril
    n = p._event_shape[0]
    shape = broadcast_shapes(a.array.shape[:-2], b.array.shape[:-2], op="kl_divergence")
    a, b = a.expand((*shape, n, n)), b.expand((*shape, n, n))
    half_log_dets = total(log(diagonal(b, 0, -2, -1)) - log(diagonal(a, 0, -2, -1)), -1)
    ratio = solve_triangular(b, a, upper=False)
    trace = total(ratio * ratio, (-2, -1))
    return half_log_dets + (trace + squared_length(b, q.loc - p.loc) - n) * 0.5


@register_kl(Laplace, Laplace)
def _(p: Laplace, q: Laplace) -> Tensor:
    distance = absolute(p.loc - q.loc)
    spread = p.scale * exp(-distance / p.scale) + distance
    return log(q.scale / p.scale) + spread / q.scale - 1.0


@register_kl(Cauchy, Cauchy)
def _(p: Cauchy, q: Cauchy) -> Tensor:
    shift = p.loc - q.loc
    scales = p.scale + q.scale
    return log((scales * scales + shift * shift) / (4.0 * p.scale * q.scale))


@register_kl(Gumbel, Gumbel)
def _(p: Gumbel, q: Gumbel) -> Tensor:
    ratio, shift = p.scale / q.scale, (p.loc - q.loc) / q.scale
    growth = exp(lgamma(ratio + 1.0) - shift)
    return -log(ratio) + EULER_GAMMA * (ratio - 1.0) + growth - 1.0 + shift


@register_kl(Uniform, Uniform)
def _(p: Uniform, q: Uniform) -> Tensor:
    inside = (q.low <= p.low) & (p.high <= q.high)
    return where(inside, log(q.high - q.low) - log(p.high - p.low), math.inf)


@register_kl(Exponential, Exponential)
def _(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1.0 - log(ratio)


@register_kl(GammaFamily, GammaFamily)
def _(p: GammaFamily, q: GammaFamily) -> Tensor:
    (a, rate), (b, other) = p.as_gamma(), q.as_gamma()
    ratio = other / rate
    return (a - b) * digamma(a) + lgamma(b) - lgamma(a) - b * log(ratio) + a * (ratio - 1.0)


@register_kl(Exponential, GammaFamily)
def _(p: Exponential, q: GammaFamily) -> Tensor:
    return kl_divergence(Gamma(1.0, p.rate, validate_args=False), q)


@register_kl(GammaFamily, Exponential)
def _(p: GammaFamily, q: Exponential) -> Tensor:
    return kl_divergence(p, Gamma(1.0, q.rate, validate_args=False))


@register_kl(Pareto, Pareto)
def _(p: Pareto, q: Pareto) -> Tensor:
    ratio = q.alpha / p.alpha
    inside = q.scale <= p.scale
    value = q.alpha * log(p.scale / q.scale) - log(ratio) + ratio - 1.0
    return where(inside, value, math.inf)


@register_kl(Beta, Beta)
def _(p: Beta, q: Beta) -> Tensor:
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    first = (a - c) * digamma(a) + (b - d) * digamma(b)
    return betaln(c, d) - betaln(a, b) + first + (c - a + d - b) * digamma(a + b)


@register_kl(Dirichlet, Dirichlet)
def _(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    n, m = total(a, -1), total(b, -1)
    terms = lgamma(b) - lgamma(a) + (a - b) * (digamma(a) - digamma(n).unsqueeze(-1))
    return lgamma(n) - lgamma(m) + total(terms, -1)


@register_kl(Bernoulli, Bernoulli)
def _(p: Bernoulli, q: Bernoulli) -> Tensor:
    a, b = p.probs, q.probs
    return _weighted_log_ratio(a, b) + _weighted_log_ratio(1.0 - a, 1.0 - b)


@register_kl(Geometric, Geometric)
def _(p: Geometric, q: Geometric) -> Tensor:
    a, b = p.probs, q.probs
    return log(a / b) + (1.0 - a) / a * (log1p(-where(a < 1.0, a, 0.0)) - log1p(-b))


@register_kl(Binomial, Binomial)
def _(p: Binomial, q: Binomial) -> Tensor:
    n, m = p.total_count, q.total_count
    if (n.array != m.array).any():
        raise ArgumentError(
            "kl_divergence",
            expected="two Binomials with the same total_count",
            got=f"{n.array} and {m.array}",
            fix="sum over enumerate_support()",
        )
    return n * _RULES[Bernoulli, Bernoulli](p, q)


@register_kl(Poisson, Poisson)
def _(p: Poisson, q: Poisson) -> Tensor:
    return xlogy(p.rate, p.rate / q.rate) - (p.rate - q.rate)


@register_kl(Categorical, Categorical)
@register_kl(OneHotCategorical, OneHotCategorical)
def _(p: Categorical | OneHotCategorical, q: Categorical | OneHotCategorical) -> Tensor:
    logs, others = p._log_weights(), q._log_weights()
    return total(count_times(exp(logs), logs - others), -1)


@register_kl(Delta, Delta)
def _(p: Delta, q: Delta) -> Tensor:
    return p.log_density - q.log_prob(p.v)


@register_kl(Independent, Independent)
def _(p: Independent, q: Independent) -> Tensor:
    n = p.reinterpreted_batch_ndims
    if n != q.reinterpreted_batch_ndims:
        raise ArgumentError(
            "kl_divergence",
            expected="two Independent distributions with as many reinterpreted dims",
            got=f"{n} and {q.reinterpreted_batch_ndims}",
            fix="call to_event with the same number on both",
        )
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), n)


@register_kl(TransformedDistribution, TransformedDistribution)
def _(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if p.transforms != q.transforms:
        raise ArgumentError(
            "kl_divergence",
            expected="the same transforms on both sides: then the divergence is that of the bases",
            got=f"{p.transforms} and {q.transforms}",
            fix="estimate it from draws",
        )
    return kl_divergence(p.base_dist, q.base_dist)


explain_calls(globals())
