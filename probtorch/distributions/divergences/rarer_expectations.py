"""Expectations, as in expectations.py, of the rarer families of the line."""

from __future__ import annotations

import math

from probtorch.distributions.divergences.expectations import (
    distance,
    log_laplace,
    log_power,
    mean_log,
    mean_reciprocal,
    variance_log,
)
from probtorch.distributions.lifetimes import Frechet, LogLogistic, Maxwell, Rayleigh
from probtorch.distributions.location_scale import EULER_GAMMA
from probtorch.distributions.power_laws import LogUniform
from probtorch.distributions.ratios import Chi, InverseGaussian
from probtorch.distributions.shares import Kumaraswamy
from probtorch.distributions.skewed import Moyal, TwoSided
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.exponentials import exp, log, log1p
from probtorch.ops.special import betaln, digamma, lgamma, log_ratio, polygamma
from probtorch.ops.special import sinc as sine_over
from probtorch.tensor import Tensor

__all__ = ["squares"]


def squares(d: Chi | Maxwell | Rayleigh) -> tuple[Tensor | float, Tensor | float]:
    """Return n and s such that d is s times the length of n standard normal numbers."""
    if isinstance(d, Chi):
        return d.df, 1.0
    return (3.0 if isinstance(d, Maxwell) else 2.0), d.scale


# ------------------------------------------------------------------------------ the whole line


@log_laplace.register
def _(p: TwoSided, s: Tensor) -> Tensor:
    left, right = p.sides()
    exists = left < s
    below = where(exists, left / s, 0.0)
    return where(exists, -p.loc / s - log1p(right / s) - log1p(-below), math.inf)


@distance.register
def _(p: TwoSided, m: Tensor) -> Tensor:
    left, right = p.sides()
    d = m - p.loc
    above = d > 0.0
    side, far = where(above, right, left), where(above, d, -d)
    # Twice what lies beyond m as seen from loc, and E x - m with the sign of the other side.
    beyond = 2.0 * side * side / (left + right) * exp(-far / side)
    return beyond + far + where(above, left - right, right - left)


@log_laplace.register
def _(p: Moyal, s: Tensor) -> Tensor:
    # exp(-z) is a chi-squared number of 1 degree of freedom.
    r = p.scale / s
    return lgamma(0.5 + r) - 0.5 * math.log(math.pi) + r * math.log(2.0) - p.loc / s


# ------------------------------------------------------------------------------ intervals


@mean_log.register
def _(p: Kumaraswamy) -> Tensor:
    return (-EULER_GAMMA - digamma(p.concentration0 + 1.0)) / p.concentration1


@variance_log.register
def _(p: Kumaraswamy) -> Tensor:
    a = p.concentration1
    return (math.pi**2 / 6.0 - polygamma(1, p.concentration0 + 1.0)) / (a * a)


@mean_reciprocal.register
def _(p: Kumaraswamy) -> Tensor:
    a, b = p.concentration1, p.concentration0
    exists = a > 1.0
    a = where(exists, a, 2.0)
    return where(exists, b * exp(betaln(1.0 - 1.0 / a, b)), math.inf)


@log_power.register
def _(p: Kumaraswamy, k: Tensor) -> Tensor:
    return log(p.concentration0) + betaln(1.0 + k / p.concentration1, p.concentration0)


@mean_log.register
def _(p: LogUniform) -> Tensor:
    return 0.5 * (log(p.low) + log(p.high))


@variance_log.register
def _(p: LogUniform) -> Tensor:
    width = log_ratio(p.high, p.low)
    return width * width / 12.0


@mean_reciprocal.register
def _(p: LogUniform) -> Tensor:
    return (1.0 / p.low - 1.0 / p.high) / log_ratio(p.high, p.low)


# ------------------------------------------------------------------------------ the half-line


@mean_log.register(Chi)
@mean_log.register(Maxwell)
@mean_log.register(Rayleigh)
def _(p: Chi | Maxwell | Rayleigh) -> Tensor:
    n, s = squares(p)
    half = p.entropy() * 0.0 + n * 0.5
    return 0.5 * (digamma(half) + math.log(2.0)) + (log(s) if isinstance(s, Tensor) else 0.0)


@variance_log.register(Chi)
@variance_log.register(Maxwell)
@variance_log.register(Rayleigh)
def _(p: Chi | Maxwell | Rayleigh) -> Tensor:
    return 0.25 * polygamma(1, p.entropy() * 0.0 + squares(p)[0] * 0.5)


@mean_reciprocal.register(Chi)
@mean_reciprocal.register(Maxwell)
@mean_reciprocal.register(Rayleigh)
def _(p: Chi | Maxwell | Rayleigh) -> Tensor:
    n, s = squares(p)
    half = p.entropy() * 0.0 + n * 0.5
    exists = half > 0.5
    half = where(exists, half, 1.0)
    value = exp(lgamma(half - 0.5) - lgamma(half)) / (math.sqrt(2.0) * s)
    return where(exists, value, math.inf)


@log_power.register(Chi)
@log_power.register(Maxwell)
@log_power.register(Rayleigh)
def _(p: Chi | Maxwell | Rayleigh, k: Tensor) -> Tensor:
    n, s = squares(p)
    half = p.entropy() * 0.0 + n * 0.5
    grown = lgamma(half + 0.5 * k) - lgamma(half) + k * (0.5 * math.log(2.0))
    return grown + (k * log(s) if isinstance(s, Tensor) else 0.0)


@mean_log.register
def _(p: LogLogistic) -> Tensor:
    return log(p.scale)


@variance_log.register
def _(p: LogLogistic) -> Tensor:
    return math.pi**2 / 3.0 / (p.concentration * p.concentration)


@mean_reciprocal.register
def _(p: LogLogistic) -> Tensor:
    exists = p.concentration > 1.0
    share = where(exists, 1.0 / p.concentration, 0.0)
    return where(exists, 1.0 / (sine_over(share) * p.scale), math.inf)


@log_power.register
def _(p: LogLogistic, k: Tensor) -> Tensor:
    exists = k < p.concentration
    share = where(exists, k / p.concentration, 0.0)
    return where(exists, k * log(p.scale) - log(sine_over(share)), math.inf)


@mean_log.register
def _(p: Frechet) -> Tensor:
    return log(p.scale) + EULER_GAMMA / p.concentration


@variance_log.register
def _(p: Frechet) -> Tensor:
    return math.pi**2 / 6.0 / (p.concentration * p.concentration)


@mean_reciprocal.register
def _(p: Frechet) -> Tensor:
    return exp(lgamma(1.0 + 1.0 / p.concentration)) / p.scale


@log_power.register
def _(p: Frechet, k: Tensor) -> Tensor:
    exists = k < p.concentration
    share = where(exists, k / p.concentration, 0.0)
    return where(exists, k * log(p.scale) + lgamma(1.0 - share), math.inf)


@mean_reciprocal.register
def _(p: InverseGaussian) -> Tensor:
    return 1.0 / p.loc + 1.0 / p.concentration


@log_laplace.register
def _(p: InverseGaussian, s: Tensor) -> Tensor:
    root = sqrt(1.0 + 2.0 * p.loc * p.loc / (p.concentration * s))
    # concentration / loc times 1 - root, without the difference.
    return -2.0 * p.loc / (s * (1.0 + root))
