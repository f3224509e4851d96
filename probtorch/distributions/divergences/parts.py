"""Divergences that come apart: of independent parts, of steps, or through one map of both sides.

Where a rule holds for some parameters only, those that both sides must share are looked at.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from probtorch.autograd.scan import scan
from probtorch.core.shape import broadcast_shapes
from probtorch.distributions.beta import Beta
from probtorch.distributions.chains import DiscreteMarkovChain
from probtorch.distributions.circulant import CirculantNormal
from probtorch.distributions.directional import VonMises3D
from probtorch.distributions.directions import PowerSpherical, SphericalUniform, VonMisesFisher
from probtorch.distributions.extremes import ExtendedGeneralizedPareto
from probtorch.distributions.from_gammas import GammaGamma
from probtorch.distributions.inflated_shares import ZeroOneInflatedBeta
from probtorch.distributions.kl_rules import kl_divergence, no_closed_form, register_kl
from probtorch.distributions.lifetimes import Levy
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import Normal
from probtorch.distributions.orders import StickBreakingWeights
from probtorch.distributions.particular_counts import Zipf, mean_log_rank
from probtorch.distributions.processes import KroneckerNormal
from probtorch.distributions.rarer_counts import DiscreteUniform
from probtorch.distributions.skewed import JohnsonSU, SkewLogistic
from probtorch.ops.arithmetic import maximum, where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponentials import log
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.products import kron
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__: list[str] = []


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(eq(a, b).all())


def _share(p: Tensor, q: Tensor) -> Tensor:
    """P log(p / q), 0 where p is 0 and infinite where only q is."""
    none, never = eq(p, 0.0), eq(q, 0.0)
    known = none | never
    usual = p * (log(where(known, 1.0, p)) - log(where(known, 1.0, q)))
    return where(none, 0.0, where(never, math.inf, usual))


def _of_power(ratio: Tensor) -> Tensor:
    """Of two powers of one cdf, or of two exponential numbers: log r + 1 / r - 1."""
    return log(ratio) + (1.0 - ratio) / ratio


# ------------------------------------------------------------------------------ through one map


@register_kl(SkewLogistic, SkewLogistic)
def _(p: SkewLogistic, q: SkewLogistic) -> Tensor:
    if not (_same(p.loc, q.loc) and _same(p.scale, q.scale)):
        raise no_closed_form(p, q, "one loc and scale on both sides")
    return _of_power(p.asymmetry / q.asymmetry)


@register_kl(ExtendedGeneralizedPareto, ExtendedGeneralizedPareto)
def _(p: ExtendedGeneralizedPareto, q: ExtendedGeneralizedPareto) -> Tensor:
    places = _same(p.loc, q.loc) and _same(p.scale, q.scale)
    if not (places and _same(p.concentration, q.concentration)):
        raise no_closed_form(p, q, "one loc, scale and concentration on both sides")
    return _of_power(p.kappa / q.kappa)


@register_kl(JohnsonSU, JohnsonSU)
def _(p: JohnsonSU, q: JohnsonSU) -> Tensor:
    if not (_same(p.loc, q.loc) and _same(p.scale, q.scale)):
        raise no_closed_form(p, q, "one loc and scale on both sides")
    one, other = (
        Normal(-d.skew / d.tailweight, 1.0 / d.tailweight, validate_args=False) for d in (p, q)
    )
    return kl_divergence(one, other)


@register_kl(GammaGamma, GammaGamma)
def _(p: GammaGamma, q: GammaGamma) -> Tensor:
    if not _same(p.mixing_rate, q.mixing_rate):
        raise no_closed_form(p, q, "one mixing_rate on both sides")
    one, other = (
        Beta(d.concentration, d.mixing_concentration, validate_args=False) for d in (p, q)
    )
    return kl_divergence(one, other)


@register_kl(Levy, Levy)
def _(p: Levy, q: Levy) -> Tensor:
    # Inverses of gamma numbers of shape 1/2.
    if not _same(p.loc, q.loc):
        raise no_closed_form(p, q, "one loc on both sides")
    return 0.5 * _of_power(p.scale / q.scale)


# ------------------------------------------------------------------------------ counts


@register_kl(DiscreteUniform, DiscreteUniform)
def _(p: DiscreteUniform, q: DiscreteUniform) -> Tensor:
    inside = (q.low <= p.low) & (p.high <= q.high)
    return where(inside, log((q.high - q.low + 1.0) / (p.high - p.low + 1.0)), math.inf)


@register_kl(Zipf, Zipf)
def _(p: Zipf, q: Zipf) -> Tensor:
    # The mass of rank 1 is 1 over zeta.
    one = p.power * 0.0 + 1.0
    return (q.power - p.power) * mean_log_rank(p.power) + p._log_prob(one) - q._log_prob(one)


@register_kl(DiscreteMarkovChain, DiscreteMarkovChain)
def _(p: DiscreteMarkovChain, q: DiscreteMarkovChain) -> Tensor:
    n = p.initial_probs.array.shape[-1]
    if p.steps != q.steps or q.initial_probs.array.shape[-1] != n:
        raise no_closed_form(p, q, "as many steps and states on both sides")
    rows = total(_share(p.probs, q.probs), -1)
    batch = broadcast_shapes(p.batch_shape, q.batch_shape, op="kl_divergence")
    start = expand(p.initial_probs, (*batch, n))
    first = total(_share(p.initial_probs, q.initial_probs), -1)

    def step(state: tuple[Tensor, Tensor], _: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        shares, sum_ = state
        lost = total(where(eq(shares, 0.0), 0.0, shares * rows), -1)
        return (total(unsqueeze(shares, -1) * p.probs, -2), sum_ + lost), lost

    zero = start[..., 0] * 0.0
    times = start.new_zeros((p.steps,))
    return first + scan(step, (start, zero), times)[0][1]


# ------------------------------------------------------------------------------ shares


@register_kl(StickBreakingWeights, StickBreakingWeights)
def _(p: StickBreakingWeights, q: StickBreakingWeights) -> Tensor:
    if p.K != q.K:
        raise no_closed_form(p, q, "one K on both sides")
    return float(p.K) * _of_power(p.alpha / q.alpha)


@register_kl(ZeroOneInflatedBeta, ZeroOneInflatedBeta)
def _(p: ZeroOneInflatedBeta, q: ZeroOneInflatedBeta) -> Tensor:
    inside, ends = 1.0 - p.gate, p.gate
    gates = _share(ends, q.gate) + _share(inside, 1.0 - q.gate)
    one = p.one_given_end
    which = _share(one, q.one_given_end) + _share(1.0 - one, 1.0 - q.one_given_end)
    numbers = kl_divergence(p._inside(), q._inside())
    at_ends = where(eq(ends, 0.0), 0.0, ends * which)
    return gates + at_ends + where(eq(inside, 0.0), 0.0, inside * numbers)


# ------------------------------------------------------------------------------ vectors


Direction: TypeAlias = VonMises3D | VonMisesFisher | PowerSpherical | SphericalUniform


def _mean(d: Direction) -> Tensor:
    """The mean of the vectors, which is not one of them."""
    if not isinstance(d, VonMises3D):
        return d.mean
    length = maximum(d._log_size()[0], 1e-30)
    return VonMisesFisher(d.mean, length, validate_args=False).mean


@register_kl(VonMises3D, VonMises3D)
@register_kl(VonMisesFisher, VonMises3D)
@register_kl(PowerSpherical, VonMises3D)
@register_kl(SphericalUniform, VonMises3D)
def _(p: Direction, q: VonMises3D) -> Tensor:
    length, size = q._log_size()
    cosine = total(_mean(p) * q.mean, -1)
    return length * (1.0 - cosine) + size + math.log(4.0 * math.pi) - p.entropy()


@register_kl(VonMises3D, VonMisesFisher)
def _(p: VonMises3D, q: VonMisesFisher) -> Tensor:
    cosine = total(_mean(p) * q.loc, -1)
    return q._log_size() + q.concentration * (1.0 - cosine) - p.entropy()


@register_kl(VonMises3D, SphericalUniform)
def _(p: VonMises3D, q: SphericalUniform) -> Tensor:
    return q.entropy() - p.entropy()


def _dense(d: CirculantNormal | KroneckerNormal | MultivariateNormal) -> MultivariateNormal:
    if isinstance(d, MultivariateNormal):
        return d
    if isinstance(d, CirculantNormal):
        matrix = d.covariance_matrix
        return MultivariateNormal(d.loc, covariance_matrix=matrix, validate_args=False)
    tril = d.scale_trils[0]
    for factor in d.scale_trils[1:]:
        tril = kron(tril, factor)
    return MultivariateNormal(d.loc, scale_tril=tril, validate_args=False)


@register_kl(CirculantNormal, CirculantNormal)
def _(p: CirculantNormal, q: CirculantNormal) -> Tensor:
    if p.event_shape != q.event_shape:
        raise no_closed_form(p, q, "vectors of one size on both sides")
    # In the Fourier basis, which both share, the places are independent.
    sizes, apart = q._sizes(), q._in_basis(p.loc - q.loc)
    ratio = p._sizes() / sizes
    return 0.5 * total(ratio - 1.0 - log(ratio) + apart * apart / sizes, -1)


@register_kl(KroneckerNormal, KroneckerNormal)
@register_kl(KroneckerNormal, CirculantNormal)
@register_kl(CirculantNormal, KroneckerNormal)
@register_kl(KroneckerNormal, MultivariateNormal)
@register_kl(MultivariateNormal, KroneckerNormal)
@register_kl(CirculantNormal, MultivariateNormal)
@register_kl(MultivariateNormal, CirculantNormal)
def _(
    p: CirculantNormal | KroneckerNormal | MultivariateNormal,
    q: CirculantNormal | KroneckerNormal | MultivariateNormal,
) -> Tensor:
    return kl_divergence(_dense(p), _dense(q))
