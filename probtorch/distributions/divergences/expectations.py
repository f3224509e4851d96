"""Expectations under distributions of the line, which divergences between families are made of.

One function per expectation, with one formula per class that has it; `f.registry` says which have.
An expectation that does not exist is infinite. Means and variances are methods of the classes.
"""

from __future__ import annotations

import math
from functools import singledispatch

from probtorch.distributions.beta import Beta
from probtorch.distributions.gamma import GammaFamily, InverseGamma
from probtorch.distributions.heavy_tailed import HalfCauchy
from probtorch.distributions.location_scale import EULER_GAMMA, Laplace, Logistic
from probtorch.distributions.normal import HalfNormal, LogNormal, Normal
from probtorch.distributions.positive import Exponential, Pareto, Weibull
from probtorch.distributions.uniform import Uniform
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, maximum, where
from probtorch.ops.exponentials import exp, expm1, log, log1p, softplus
from probtorch.ops.special import betaln, digamma, erf, gammainc, lgamma, polygamma
from probtorch.ops.special import sinc as sine_over
from probtorch.tensor import Tensor

__all__ = [
    "distance",
    "log_laplace",
    "log_power",
    "mean_log",
    "mean_log_complement",
    "mean_reciprocal",
    "variance_log",
]


def _unknown(p: object, what: str) -> Tensor:
    raise NotImplementedError(f"{type(p).__name__} has no {what} in closed form")


@singledispatch
def mean_log(p: object) -> Tensor:
    """E log x."""
    return _unknown(p, "mean of log x")


@singledispatch
def mean_log_complement(p: object) -> Tensor:
    """E log(1 - x)."""
    return _unknown(p, "mean of log(1 - x)")


@singledispatch
def variance_log(p: object) -> Tensor:
    """Variance of log x."""
    return _unknown(p, "variance of log x")


@singledispatch
def mean_reciprocal(p: object) -> Tensor:
    """E 1 / x."""
    return _unknown(p, "mean of 1 / x")


@singledispatch
def log_power(p: object, k: Tensor) -> Tensor:
    """Log E x ** k, for k > 0."""
    return _unknown(p, "mean of powers of x")


@singledispatch
def log_laplace(p: object, s: Tensor) -> Tensor:
    """Log E exp(-x / s), for s > 0: the Laplace transform at 1 / s."""
    return _unknown(p, "mean of exp(-x / s)")


@singledispatch
def distance(p: object, m: Tensor) -> Tensor:
    """E |x - m|."""
    return _unknown(p, "mean distance from a point")


# ------------------------------------------------------------------------------ the whole line


@log_laplace.register
def _(p: Normal, s: Tensor) -> Tensor:
    z = p.scale / s
    return z * z * 0.5 - p.loc / s


@log_laplace.register
def _(p: Laplace, s: Tensor) -> Tensor:
    z = p.scale / s
    exists = z < 1.0
    z = where(exists, z, 0.0)
    return where(exists, -p.loc / s - log1p(-z * z), math.inf)


@log_laplace.register
def _(p: Logistic, s: Tensor) -> Tensor:
    z = p.scale / s
    exists = z < 1.0
    # pi z / sin(pi z), and sinc is its inverse.
    return where(exists, -p.loc / s - log(sine_over(where(exists, z, 0.0))), math.inf)


@distance.register
def _(p: Normal, m: Tensor) -> Tensor:
    d = m - p.loc
    z = d / p.scale
    near = p.scale * (math.sqrt(2.0 / math.pi) * exp(z * z * -0.5))
    return near + d * erf(z * math.sqrt(0.5))


@distance.register
def _(p: Logistic, m: Tensor) -> Tensor:
    d = absolute(m - p.loc)
    return d + 2.0 * p.scale * softplus(-d / p.scale)


# ------------------------------------------------------------------------------ intervals


def _uniform_share(p: Uniform) -> tuple[Tensor, Tensor, Tensor]:
    """Bounds moved into the positive numbers, and width / low there (1 where low is 0)."""
    low = maximum(p.low, 0.0)
    high = where(p.high > low, p.high, low + 1.0)
    some = low > 0.0
    return low, high, where(some, (high - low) / where(some, low, 1.0), 1.0)


@mean_log.register
def _(p: Uniform) -> Tensor:
    low, high, share = _uniform_share(p)
    # (h log h - l log l) / (h - l) - 1 without its cancellation for close bounds.
    return log(high) + where(low > 0.0, log1p(share) / share, 0.0) - 1.0


@mean_log_complement.register
def _(p: Uniform) -> Tensor:
    return mean_log(Uniform(1.0 - p.high, 1.0 - p.low, validate_args=False))


@variance_log.register
def _(p: Uniform) -> Tensor:
    low, _, share = _uniform_share(p)
    turn = log1p(share)
    return where(low > 0.0, 1.0 - turn * turn * (1.0 + share) / (share * share), 1.0)


@mean_reciprocal.register
def _(p: Uniform) -> Tensor:
    low, _, share = _uniform_share(p)
    some = low > 0.0
    return where(some, log1p(share) / (share * where(some, low, 1.0)), math.inf)


@log_power.register
def _(p: Uniform, k: Tensor) -> Tensor:
    low, high, share = _uniform_share(p)
    turn = log1p(share)
    # (h ** (k + 1) - l ** (k + 1)) / ((k + 1) (h - l)) over h ** k.
    rest = log(-expm1(-(k + 1.0) * turn)) - log(-expm1(-turn))
    return k * log(high) - log(k + 1.0) + where(low > 0.0, rest, 0.0)


@log_laplace.register
def _(p: Uniform, s: Tensor) -> Tensor:
    width = (p.high - p.low) / s
    return log(-expm1(-width) / width) - p.low / s


@distance.register
def _(p: Uniform, m: Tensor) -> Tensor:
    nearest = clamp(m, p.low, p.high)
    below, above = nearest - p.low, p.high - nearest
    return absolute(m - nearest) + (below * below + above * above) / (2.0 * (p.high - p.low))


@mean_log.register
def _(p: Beta) -> Tensor:
    return digamma(p.concentration1) - digamma(p.concentration1 + p.concentration0)


@mean_log_complement.register
def _(p: Beta) -> Tensor:
    return digamma(p.concentration0) - digamma(p.concentration1 + p.concentration0)


@variance_log.register
def _(p: Beta) -> Tensor:
    return polygamma(1, p.concentration1) - polygamma(1, p.concentration1 + p.concentration0)


@mean_reciprocal.register
def _(p: Beta) -> Tensor:
    a, b = p.concentration1, p.concentration0
    exists = a > 1.0
    return where(exists, (a + b - 1.0) / where(exists, a - 1.0, 1.0), math.inf)


@log_power.register
def _(p: Beta, k: Tensor) -> Tensor:
    a, b = p.concentration1, p.concentration0
    return betaln(a + k, b) - betaln(a, b)


# ------------------------------------------------------------------------------ the half-line


@mean_log.register
def _(p: GammaFamily) -> Tensor:
    a, b = p.as_gamma()
    return digamma(a) - log(b)


@variance_log.register
def _(p: GammaFamily) -> Tensor:
    return polygamma(1, p.as_gamma()[0])


@mean_reciprocal.register
def _(p: GammaFamily) -> Tensor:
    a, b = p.as_gamma()
    exists = a > 1.0
    return where(exists, b / where(exists, a - 1.0, 1.0), math.inf)


@log_power.register
def _(p: GammaFamily, k: Tensor) -> Tensor:
    a, b = p.as_gamma()
    return lgamma(a + k) - lgamma(a) - k * log(b)


@log_laplace.register
def _(p: GammaFamily, s: Tensor) -> Tensor:
    a, b = p.as_gamma()
    return -a * log1p(1.0 / (s * b))


@distance.register
def _(p: GammaFamily, m: Tensor) -> Tensor:
    a, b = p.as_gamma()
    point = maximum(m, 0.0)
    # E |x - m| is mean - m, and twice the integral of the cdf up to m.
    below = point * gammainc(a, b * point) - a / b * gammainc(a + 1.0, b * point)
    return a / b - m + 2.0 * below


@mean_log.register
def _(p: Exponential) -> Tensor:
    return -EULER_GAMMA - log(p.rate)


@variance_log.register
def _(p: Exponential) -> Tensor:
    return p.rate * 0.0 + math.pi**2 / 6.0


@mean_reciprocal.register
@mean_reciprocal.register(HalfNormal)
@mean_reciprocal.register(HalfCauchy)
def _(p: Exponential) -> Tensor:
    return p.entropy() * 0.0 + math.inf


@log_power.register
def _(p: Exponential, k: Tensor) -> Tensor:
    return lgamma(1.0 + k) - k * log(p.rate)


@log_laplace.register
def _(p: Exponential, s: Tensor) -> Tensor:
    return -log1p(1.0 / (s * p.rate))


@distance.register
def _(p: Exponential, m: Tensor) -> Tensor:
    point = maximum(m, 0.0)
    return 1.0 / p.rate - m + 2.0 * (point + expm1(-p.rate * point) / p.rate)


@mean_log.register
def _(p: InverseGamma) -> Tensor:
    return log(p.rate) - digamma(p.concentration)


@variance_log.register
def _(p: InverseGamma) -> Tensor:
    return polygamma(1, p.concentration)


@mean_reciprocal.register
def _(p: InverseGamma) -> Tensor:
    return p.concentration / p.rate


@log_power.register
def _(p: InverseGamma, k: Tensor) -> Tensor:
    a = p.concentration
    exists = k < a
    rest = where(exists, a - k, a)
    return where(exists, lgamma(rest) - lgamma(a) + k * log(p.rate), math.inf)


@mean_log.register
def _(p: LogNormal) -> Tensor:
    return p.loc


@variance_log.register
def _(p: LogNormal) -> Tensor:
    return p.scale * p.scale


@mean_reciprocal.register
def _(p: LogNormal) -> Tensor:
    return exp(p.scale * p.scale * 0.5 - p.loc)


@log_power.register
def _(p: LogNormal, k: Tensor) -> Tensor:
    z = k * p.scale
    return k * p.loc + z * z * 0.5


@mean_log.register
def _(p: HalfNormal) -> Tensor:
    return log(p.scale) - 0.5 * (EULER_GAMMA + math.log(2.0))


@variance_log.register
def _(p: HalfNormal) -> Tensor:
    return p.scale * 0.0 + math.pi**2 / 8.0


@log_power.register
def _(p: HalfNormal, k: Tensor) -> Tensor:
    orders = lgamma((k + 1.0) * 0.5) + k * (0.5 * math.log(2.0))
    return k * log(p.scale) + (orders - 0.5 * math.log(math.pi))


@mean_log.register
def _(p: HalfCauchy) -> Tensor:
    return log(p.scale)


@variance_log.register
def _(p: HalfCauchy) -> Tensor:
    return p.scale * 0.0 + math.pi**2 / 4.0


@mean_log.register
def _(p: Weibull) -> Tensor:
    return log(p.scale) - EULER_GAMMA / p.concentration


@variance_log.register
def _(p: Weibull) -> Tensor:
    return math.pi**2 / 6.0 / (p.concentration * p.concentration)


@mean_reciprocal.register
def _(p: Weibull) -> Tensor:
    k = p.concentration
    exists = k > 1.0
    k = where(exists, k, 2.0)
    return where(exists, exp(lgamma(1.0 - 1.0 / k)) / p.scale, math.inf)


@log_power.register
def _(p: Weibull, k: Tensor) -> Tensor:
    return k * log(p.scale) + lgamma(1.0 + k / p.concentration)


@mean_log.register
def _(p: Pareto) -> Tensor:
    return log(p.scale) + 1.0 / p.alpha


@variance_log.register
def _(p: Pareto) -> Tensor:
    return 1.0 / (p.alpha * p.alpha)


@mean_reciprocal.register
def _(p: Pareto) -> Tensor:
    return p.alpha / ((p.alpha + 1.0) * p.scale)


@log_power.register
def _(p: Pareto, k: Tensor) -> Tensor:
    exists = k < p.alpha
    rest = where(exists, p.alpha - k, 1.0)
    return where(exists, log(p.alpha / rest) + k * log(p.scale), math.inf)
