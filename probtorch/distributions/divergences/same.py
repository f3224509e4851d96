"""Divergences between two distributions of one family of the line.

Each is written so that it is 0 to rounding for equal parameters, which entropies and expectations
taken apart would not give.
"""

from __future__ import annotations

import itertools
import math

from probtorch.distributions.beta import Beta
from probtorch.distributions.divergences.expectations import distance
from probtorch.distributions.divergences.rarer_expectations import squares
from probtorch.distributions.from_gammas import ExpGamma, SigmoidBeta
from probtorch.distributions.gamma import Gamma, GammaFamily, InverseGamma
from probtorch.distributions.heavy_tailed import Cauchy, HalfCauchy
from probtorch.distributions.kl_rules import kl_divergence, no_closed_form, register_kl
from probtorch.distributions.lifetimes import Frechet, Maxwell, Rayleigh
from probtorch.distributions.location_scale import EULER_GAMMA, Gumbel, Laplace
from probtorch.distributions.normal import HalfNormal, LogNormal, Normal
from probtorch.distributions.polya_gamma import PolyaGamma
from probtorch.distributions.positive import Exponential, Pareto, Weibull
from probtorch.distributions.power_laws import LogUniform, LowerTruncatedPowerLaw
from probtorch.distributions.ratios import Chi, InverseGaussian
from probtorch.distributions.shares import ContinuousBernoulli, LogitNormal
from probtorch.distributions.skewed import GeneralizedNormal, Moyal, TwoSided
from probtorch.distributions.uniform import Uniform
from probtorch.distributions.von_mises import VonMises
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponentials import exp, log, log1p
from probtorch.ops.special import betaln, digamma, lgamma, log_i0e, log_ratio, mean_cosine_loss
from probtorch.ops.trigonometry import sin
from probtorch.tensor import Tensor

__all__: list[str] = []


@register_kl(Normal, Normal)
@register_kl(LogNormal, LogNormal)
def _(p: Normal | LogNormal, q: Normal | LogNormal) -> Tensor:
    ratio, shift = p.scale / q.scale, (p.loc - q.loc) / q.scale
    return (ratio * ratio + shift * shift - 1.0) * 0.5 - log(ratio)


@register_kl(HalfNormal, HalfNormal)
def _(p: HalfNormal, q: HalfNormal) -> Tensor:
    ratio = p.scale / q.scale
    return (ratio * ratio - 1.0) * 0.5 - log(ratio)


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


@register_kl(InverseGamma, InverseGamma)
def _(p: InverseGamma, q: InverseGamma) -> Tensor:
    # A divergence does not change when both sides are mapped alike, here by 1 / x.
    return kl_divergence(
        Gamma(p.concentration, p.rate, validate_args=False),
        Gamma(q.concentration, q.rate, validate_args=False),
    )


@register_kl(ExpGamma, ExpGamma)
def _(p: ExpGamma, q: ExpGamma) -> Tensor:
    # By exp, or by exp(-x): both are ExpGamma or both are ExpInverseGamma.
    if p._sign != q._sign:
        raise no_closed_form(p, q, "two logarithms of gamma numbers, or two of their inverses")
    return kl_divergence(
        Gamma(p.concentration, p.rate, validate_args=False),
        Gamma(q.concentration, q.rate, validate_args=False),
    )


@register_kl(SigmoidBeta, SigmoidBeta)
def _(p: SigmoidBeta, q: SigmoidBeta) -> Tensor:
    return kl_divergence(
        Beta(p.concentration1, p.concentration0, validate_args=False),
        Beta(q.concentration1, q.concentration0, validate_args=False),
    )


@register_kl(PolyaGamma, PolyaGamma)
def _(p: PolyaGamma, q: PolyaGamma) -> Tensor:
    if not bool(eq(p.h, q.h).all()):
        raise no_closed_form(p, q, "one h on both sides")
    # The tilt is a natural parameter: -z^2 / 2 goes with x.
    gap = 0.5 * (q.z - p.z) * (q.z + p.z) * p._mean()
    return p.h * (_log_cosh(p.z) - _log_cosh(q.z)) + gap


def _log_cosh(z: Tensor) -> Tensor:
    """Log of 2 cosh(z / 2)."""
    half = 0.5 * absolute(z)
    return half + log1p(exp(-2.0 * half))


@register_kl(HalfCauchy, HalfCauchy)
def _(p: HalfCauchy, q: HalfCauchy) -> Tensor:
    # Of |x| for two Cauchys around 0, whose ratio of densities is the same at x and -x.
    scales = p.scale + q.scale
    return log(scales * scales / (4.0 * p.scale * q.scale))


@register_kl(Weibull, Weibull)
def _(p: Weibull, q: Weibull) -> Tensor:
    # (x / q.scale) ** q.concentration is growth * e ** ratio, for e standard exponential.
    ratio = q.concentration / p.concentration
    shift = q.concentration * log(p.scale / q.scale)
    growth = exp(lgamma(1.0 + ratio) + shift)
    return EULER_GAMMA * (ratio - 1.0) - log(ratio) - shift + growth - 1.0


@register_kl(Frechet, Frechet)
def _(p: Frechet, q: Frechet) -> Tensor:
    # Of 1 / x.
    return kl_divergence(
        Weibull(1.0 / p.scale, p.concentration, validate_args=False),
        Weibull(1.0 / q.scale, q.concentration, validate_args=False),
    )


_Length = HalfNormal | Rayleigh | Maxwell | Chi


def _square(d: _Length) -> Gamma:
    """Return the distribution of x ** 2 / 2."""
    n, s = (1.0, d.scale) if isinstance(d, HalfNormal) else squares(d)
    return Gamma(0.5 * n, 1.0 / (s * s), validate_args=False)


def _of_squares(p: _Length, q: _Length) -> Tensor:
    return kl_divergence(_square(p), _square(q))


for _p, _q in itertools.product((HalfNormal, Rayleigh, Maxwell, Chi), repeat=2):
    if (_p, _q) != (HalfNormal, HalfNormal):
        register_kl(_p, _q)(_of_squares)


@register_kl(InverseGaussian, InverseGaussian)
def _(p: InverseGaussian, q: InverseGaussian) -> Tensor:
    ratio, gap = q.concentration / p.concentration, (p.loc - q.loc) / q.loc
    return 0.5 * (ratio - 1.0 - log(ratio) + q.concentration / p.loc * gap * gap)


@register_kl(LogUniform, LogUniform)
def _(p: LogUniform, q: LogUniform) -> Tensor:
    inside = (q.low <= p.low) & (p.high <= q.high)
    widths = log_ratio(q.high, q.low), log_ratio(p.high, p.low)
    return where(inside, log(widths[0] / widths[1]), math.inf)


@register_kl(LowerTruncatedPowerLaw, LowerTruncatedPowerLaw)
@register_kl(LowerTruncatedPowerLaw, Pareto)
@register_kl(Pareto, LowerTruncatedPowerLaw)
def _(p: Pareto | LowerTruncatedPowerLaw, q: Pareto | LowerTruncatedPowerLaw) -> Tensor:
    return kl_divergence(_pareto(p), _pareto(q))


def _pareto(d: Pareto | LowerTruncatedPowerLaw) -> Pareto:
    return d if isinstance(d, Pareto) else Pareto(d.low, -1.0 - d.alpha, validate_args=False)


@register_kl(LogitNormal, LogitNormal)
def _(p: LogitNormal, q: LogitNormal) -> Tensor:
    return kl_divergence(
        Normal(p.loc, p.scale, validate_args=False), Normal(q.loc, q.scale, validate_args=False)
    )


@register_kl(Moyal, Moyal)
def _(p: Moyal, q: Moyal) -> Tensor:
    ratio, shift = p.scale / q.scale, (p.loc - q.loc) / q.scale
    growth = exp(lgamma(0.5 + ratio) + (ratio * math.log(2.0) - shift)) / math.sqrt(math.pi)
    mean = EULER_GAMMA + math.log(2.0)
    return 0.5 * (mean * (ratio - 1.0) + shift + growth - 1.0) - log(ratio)


@register_kl(TwoSided, TwoSided)
def _(p: TwoSided, q: TwoSided) -> Tensor:
    (a, b), (left, right) = p.sides(), q.sides()
    apart, shift = distance(p, q.loc), p._mean() - q.loc
    spread = 0.5 * ((apart + shift) / right + (apart - shift) / left)
    return log((left + right) / (a + b)) + spread - 1.0


@register_kl(GeneralizedNormal, GeneralizedNormal)
def _(p: GeneralizedNormal, q: GeneralizedNormal) -> Tensor:
    if not bool(eq(p.loc, q.loc).all()):
        raise no_closed_form(p, q, "one loc on both sides")
    r, k = 1.0 / p.power, q.power
    log_ratio_ = log(q.scale / p.scale)
    constant = log_ratio_ + lgamma(1.0 + 1.0 / k) - lgamma(1.0 + r)
    return constant + exp(lgamma((k + 1.0) * r) - lgamma(r) - k * log_ratio_) - r


@register_kl(VonMises, VonMises)
def _(p: VonMises, q: VonMises) -> Tensor:
    # log i0e instead of log i0, and 1 - mean of the cosine: nothing large is subtracted.
    a, b = p.concentration, q.concentration
    loss, half = mean_cosine_loss(a), sin((p.loc - q.loc) * 0.5)
    turned = 2.0 * b * (half * half) * (1.0 - loss)
    return log_i0e(b) - log_i0e(a) + (b - a) * loss + turned


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _(p: ContinuousBernoulli, q: ContinuousBernoulli) -> Tensor:
    mean = p._mean()
    return p._tilt().log_density(mean) - q._tilt().log_density(mean)
