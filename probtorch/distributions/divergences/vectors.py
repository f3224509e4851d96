"""Divergences between distributions of vectors, and of those made of others."""

from __future__ import annotations

import numpy as np

from probtorch.core.shape import broadcast_shapes
from probtorch.distributions.beta import Beta, Dirichlet
from probtorch.distributions.distribution import Distribution, Independent, MaskedDistribution
from probtorch.distributions.formulas import sum_rightmost
from probtorch.distributions.kl_rules import kl_divergence, no_closed_form, register_kl
from probtorch.distributions.lkj import LKJCholesky
from probtorch.distributions.multivariate_normal import MultivariateNormal, squared_length
from probtorch.distributions.normal import Normal
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.uniform import Delta
from probtorch.distributions.vectors import LowRankMultivariateNormal
from probtorch.ops.arithmetic import where
from probtorch.ops.diagonals import diag_embed, diagonal
from probtorch.ops.exponentials import log
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import digamma, lgamma
from probtorch.tensor import Tensor

__all__: list[str] = []


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


@register_kl(Dirichlet, Dirichlet)
def _(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    n, m = total(a, -1), total(b, -1)
    terms = lgamma(b) - lgamma(a) + (a - b) * (digamma(a) - digamma(n).unsqueeze(-1))
    return lgamma(n) - lgamma(m) + total(terms, -1)


@register_kl(Delta, Distribution)
def _(p: Delta, q: Distribution) -> Tensor:
    return p.log_density - q.log_prob(p.v)


@register_kl(Independent, Independent)
def _(p: Independent, q: Independent) -> Tensor:
    n, m = p.reinterpreted_batch_ndims, q.reinterpreted_batch_ndims
    if n != m:
        raise no_closed_form(p, q, f"as many reinterpreted dims on both sides, not {n} and {m}")
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), n)


@register_kl(TransformedDistribution, TransformedDistribution)
def _(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if p.transforms != q.transforms:
        raise no_closed_form(p, q, "the same transforms on both sides")
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(MaskedDistribution, MaskedDistribution)
def _(p: MaskedDistribution, q: MaskedDistribution) -> Tensor:
    # Pyro's meaning: where either side is masked, nothing is counted.
    a, b = p._mask, q._mask
    both = b if a is True else a if b is True else a & b
    value = kl_divergence(p.base_dist, q.base_dist)
    return value if both is True else where(both, value, 0.0)


@register_kl(Independent, MultivariateNormal)
def _(p: Independent, q: MultivariateNormal) -> Tensor:
    base = p.base_dist
    if not isinstance(base, Normal) or p.reinterpreted_batch_ndims != 1:
        raise no_closed_form(p, q, "a Normal made a vector by to_event(1)")
    return kl_divergence(_as_multivariate(base), q)


@register_kl(MultivariateNormal, Independent)
def _(p: MultivariateNormal, q: Independent) -> Tensor:
    base = q.base_dist
    if not isinstance(base, Normal) or q.reinterpreted_batch_ndims != 1:
        raise no_closed_form(p, q, "a Normal made a vector by to_event(1)")
    return kl_divergence(p, _as_multivariate(base))


def _as_multivariate(d: Normal) -> MultivariateNormal:
    loc, scale = d.loc.expand(d._batch_shape), d.scale.expand(d._batch_shape)
    return MultivariateNormal(loc, scale_tril=diag_embed(scale), validate_args=False)


@register_kl(LKJCholesky, LKJCholesky)
def _(p: LKJCholesky, q: LKJCholesky) -> Tensor:
    # Row i is a uniform direction times a length whose complement's square is beta: so are both.
    dims = np.arange(1.0, p.dim)
    shares = [
        Beta(
            unsqueeze(d.concentration, -1) + 0.5 * (p.dim - 1.0 - dims),
            0.5 * dims,
            validate_args=False,
        )
        for d in (p, q)
    ]
    return total(kl_divergence(*shares), -1)


@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
@register_kl(LowRankMultivariateNormal, MultivariateNormal)
@register_kl(MultivariateNormal, LowRankMultivariateNormal)
def _(
    p: MultivariateNormal | LowRankMultivariateNormal,
    q: MultivariateNormal | LowRankMultivariateNormal,
) -> Tensor:
    return kl_divergence(_whole(p), _whole(q))


def _whole(d: MultivariateNormal | LowRankMultivariateNormal) -> MultivariateNormal:
    if isinstance(d, MultivariateNormal):
        return d
    covariance = d.cov_factor @ d.cov_factor.mT + diag_embed(d.cov_diag)
    return MultivariateNormal(d.loc, covariance_matrix=covariance, validate_args=False)
