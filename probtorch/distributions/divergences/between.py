"""Divergences between different families of the line: minus entropy of p, minus E log q.

`_CROSS` has for each q its minus E log q(x) and the expectations under p that it is made of. Where
p has all of them, or where p always has mass outside the support of q, the pair gets a rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.dispatch import wrap
from probtorch.distributions.beta import Beta
from probtorch.distributions.constraints import is_dependent
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.divergences.expectations import (
    distance,
    log_laplace,
    log_power,
    mean_log,
    mean_log_complement,
    mean_reciprocal,
    variance_log,
)
from probtorch.distributions.divergences.rarer_expectations import squares
from probtorch.distributions.gamma import GammaFamily, InverseGamma
from probtorch.distributions.heavy_tailed import Cauchy, HalfCauchy, StudentT
from probtorch.distributions.kl_rules import _RULES, register_kl
from probtorch.distributions.lifetimes import Frechet, LogLogistic, Maxwell, Rayleigh
from probtorch.distributions.location_scale import Gumbel, Laplace, Logistic
from probtorch.distributions.normal import HALF_LOG_2PI, HalfNormal, LogNormal, Normal
from probtorch.distributions.positive import Exponential, Pareto, Weibull
from probtorch.distributions.power_laws import LogUniform
from probtorch.distributions.ratios import Chi, InverseGaussian
from probtorch.distributions.shares import ContinuousBernoulli, Kumaraswamy, Triangular
from probtorch.distributions.skewed import GeneralizedNormal, Moyal, TwoSided
from probtorch.distributions.truncated import TruncatedNormal
from probtorch.distributions.uniform import Uniform
from probtorch.ops.arithmetic import where
from probtorch.ops.exponentials import exp, log
from probtorch.ops.special import betaln, lgamma, log_ratio
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from functools import _SingleDispatchCallable

__all__: list[str] = []

_FAMILIES: tuple[type[Distribution], ...] = (
    Normal,
    Laplace,
    Logistic,
    Gumbel,
    StudentT,
    Cauchy,
    Uniform,
    Beta,
    ContinuousBernoulli,
    Exponential,
    GammaFamily,
    InverseGamma,
    HalfNormal,
    HalfCauchy,
    LogNormal,
    Weibull,
    Pareto,
    TwoSided,
    Moyal,
    GeneralizedNormal,
    TruncatedNormal,
    Triangular,
    LogUniform,
    Kumaraswamy,
    Rayleigh,
    Maxwell,
    Chi,
    LogLogistic,
    Frechet,
)


def _moment(p: Distribution, name: str) -> Tensor:
    # In the shape and precision of the parameters, which the public one may not have.
    return p._ask(f"_{name}", name)


def _square(p: Distribution, m: Tensor | float) -> Tensor:
    """E (x - m) ** 2."""
    if isinstance(p, StudentT):
        exists = p.df > 2.0
        df, gap = where(exists, p.df, 3.0), p.loc - m
        return where(exists, p.scale * p.scale * (df / (df - 2.0)) + gap * gap, math.inf)
    square = _moment(p, "variance")
    if isinstance(p, Cauchy):
        return square
    gap = _moment(p, "mean") - m
    return square + gap * gap


def _to_normal(p: Distribution, q: Normal) -> Tensor:
    return log(q.scale) + HALF_LOG_2PI + _square(p, q.loc) / (2.0 * q.scale * q.scale)


def _to_half_normal(p: Distribution, q: HalfNormal) -> Tensor:
    constant = log(q.scale) + (HALF_LOG_2PI - math.log(2.0))
    return constant + _square(p, 0.0) / (2.0 * q.scale * q.scale)


def _to_laplace(p: Distribution, q: Laplace) -> Tensor:
    return log(q.scale) + math.log(2.0) + distance(p, q.loc) / q.scale


def _to_gumbel(p: Distribution, q: Gumbel) -> Tensor:
    shift = q.loc / q.scale
    return (
        log(q.scale) + _moment(p, "mean") / q.scale - shift + exp(log_laplace(p, q.scale) + shift)
    )


def _to_exponential(p: Distribution, q: Exponential) -> Tensor:
    return q.rate * _moment(p, "mean") - log(q.rate)


def _to_gamma(p: Distribution, q: GammaFamily) -> Tensor:
    a, b = q.as_gamma()
    return lgamma(a) - a * log(b) - (a - 1.0) * mean_log(p) + b * _moment(p, "mean")


def _to_inverse_gamma(p: Distribution, q: InverseGamma) -> Tensor:
    a, b = q.concentration, q.rate
    return lgamma(a) - a * log(b) + (a + 1.0) * mean_log(p) + b * mean_reciprocal(p)


def _to_log_normal(p: Distribution, q: LogNormal) -> Tensor:
    y = mean_log(p)
    gap = y - q.loc
    square = (variance_log(p) + gap * gap) / (2.0 * q.scale * q.scale)
    return log(q.scale) + HALF_LOG_2PI + y + square


def _to_weibull(p: Distribution, q: Weibull) -> Tensor:
    k, log_scale = q.concentration, log(q.scale)
    growth = exp(log_power(p, k) - k * log_scale)
    return k * log_scale - log(k) - (k - 1.0) * mean_log(p) + growth


def _to_pareto(p: Distribution, q: Pareto) -> Tensor:
    return (q.alpha + 1.0) * mean_log(p) - log(q.alpha) - q.alpha * log(q.scale)


def _to_beta(p: Distribution, q: Beta) -> Tensor:
    a, b = q.concentration1, q.concentration0
    return betaln(a, b) - (a - 1.0) * mean_log(p) - (b - 1.0) * mean_log_complement(p)


def _to_continuous_bernoulli(p: Distribution, q: ContinuousBernoulli) -> Tensor:
    # The log density is linear in x.
    return -q._tilt().log_density(_moment(p, "mean"))


def _to_two_sided(p: Distribution, q: TwoSided) -> Tensor:
    left, right = q.sides()
    apart, shift = distance(p, q.loc), _moment(p, "mean") - q.loc
    # E (x - loc) above and below it.
    return log(left + right) + 0.5 * ((apart + shift) / right + (apart - shift) / left)


def _to_moyal(p: Distribution, q: Moyal) -> Tensor:
    z = (_moment(p, "mean") - q.loc) / q.scale
    return log(q.scale) + HALF_LOG_2PI + 0.5 * (z + exp(log_laplace(p, q.scale) + q.loc / q.scale))


def _to_truncated_normal(p: Distribution, q: TruncatedNormal) -> Tensor:
    at_loc = q.log_prob_inside(q.loc)
    return _square(p, q.loc) / (2.0 * q.scale * q.scale) - at_loc


def _to_length(p: Distribution, q: Chi | Maxwell | Rayleigh) -> Tensor:
    n, s = squares(q)
    half = q.entropy() * 0.0 + n * 0.5
    log_s = log(s) if isinstance(s, Tensor) else 0.0
    constant = lgamma(half) + (half - 1.0) * math.log(2.0) + n * log_s
    return constant - (n - 1.0) * mean_log(p) + _square(p, 0.0) / (2.0 * s * s)


def _to_inverse_gaussian(p: Distribution, q: InverseGaussian) -> Tensor:
    m, b = q.loc, q.concentration
    drift = _moment(p, "mean") / (m * m) - 2.0 / m + mean_reciprocal(p)
    return HALF_LOG_2PI - 0.5 * log(b) + 1.5 * mean_log(p) + 0.5 * b * drift


def _to_log_uniform(p: Distribution, q: LogUniform) -> Tensor:
    return mean_log(p) + log(log_ratio(q.high, q.low))


def _to_uniform(p: Distribution, q: Uniform) -> Tensor:
    return log(q.high - q.low)


_Cross = Callable[..., Tensor]
_Needed = tuple["str | _SingleDispatchCallable[Tensor]", ...]
_CROSS: dict[type[Distribution], tuple[_Cross, _Needed]] = {
    Normal: (_to_normal, ("_mean", "_variance")),
    HalfNormal: (_to_half_normal, ("_mean", "_variance")),
    Laplace: (_to_laplace, (distance,)),
    Gumbel: (_to_gumbel, ("_mean", log_laplace)),
    Exponential: (_to_exponential, ("_mean",)),
    GammaFamily: (_to_gamma, ("_mean", mean_log)),
    InverseGamma: (_to_inverse_gamma, (mean_log, mean_reciprocal)),
    LogNormal: (_to_log_normal, (mean_log, variance_log)),
    Weibull: (_to_weibull, (mean_log, log_power)),
    Pareto: (_to_pareto, (mean_log,)),
    Beta: (_to_beta, (mean_log, mean_log_complement)),
    ContinuousBernoulli: (_to_continuous_bernoulli, ("_mean",)),
    Uniform: (_to_uniform, ()),
    TwoSided: (_to_two_sided, ("_mean", distance)),
    Moyal: (_to_moyal, ("_mean", log_laplace)),
    TruncatedNormal: (_to_truncated_normal, ("_mean", "_variance")),
    Rayleigh: (_to_length, ("_mean", "_variance", mean_log)),
    Maxwell: (_to_length, ("_mean", "_variance", mean_log)),
    Chi: (_to_length, ("_mean", "_variance", mean_log)),
    InverseGaussian: (_to_inverse_gaussian, ("_mean", mean_log, mean_reciprocal)),
    LogUniform: (_to_log_uniform, (mean_log,)),
}
# Between two bounds that are parameters.
_BOUNDED = (Uniform, LogUniform, Triangular, TruncatedNormal)


def _bounds(support: object) -> tuple[float | Tensor, float | Tensor]:
    return getattr(support, "lower_bound", -math.inf), getattr(support, "upper_bound", math.inf)


def _ends(cls: type[Distribution]) -> tuple[float | Tensor, float | Tensor]:
    """Bounds of the supports of a class; for those that move, a number that none of them has."""
    if cls is Pareto:
        return 0.5, math.inf
    support = cls.support
    return (0.25, 0.75) if is_dependent(support) else _bounds(support)


def _never_inside(cls_p: type[Distribution], cls_q: type[Distribution]) -> bool:
    """Whether every p is wider than every q."""
    (a, b), (c, d) = _ends(cls_p), _ends(cls_q)
    if cls_p in _BOUNDED or cls_q is TruncatedNormal or (cls_q in _BOUNDED and b == 1.0):
        return False
    return bool(a < c or b > d)


def _has(cls: type[Distribution], needed: _Needed) -> bool:
    return all(
        hasattr(cls, n) if isinstance(n, str) else n.dispatch(cls) is not n.dispatch(object)
        for n in needed
    )


def _infinite(p: Distribution, q: Distribution) -> Tensor:
    dtype = p._dtype or q._dtype or dtypes.default_dtype()
    return wrap(np.full((), math.inf, dtype))


def _rule(cross: _Cross) -> _Cross:
    def rule(p: Distribution, q: Distribution) -> Tensor:
        value = cross(p, q) - p.entropy()
        (a, b), (c, d) = _bounds(p.support), _bounds(q.support)
        inside = (a >= c) & (b <= d)
        if isinstance(inside, bool):
            return value if inside else _infinite(p, q)
        return where(inside, value, math.inf)

    return rule


for _p in _FAMILIES:
    for _q, (_cross, _needed) in _CROSS.items():
        if (_p, _q) in _RULES:
            continue
        if _never_inside(_p, _q):
            register_kl(_p, _q)(_infinite)
        elif _has(_p, _needed):
            register_kl(_p, _q)(_rule(_cross))
