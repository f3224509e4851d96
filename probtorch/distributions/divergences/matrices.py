"""Divergences between random matrices, and between normal vectors with a structure of their own."""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.shape import broadcast_shapes
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.graphs import CAR
from probtorch.distributions.kl_rules import kl_divergence, no_closed_form, register_kl
from probtorch.distributions.lkj import LKJ
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import Normal
from probtorch.distributions.vectors import (
    GaussianRandomWalk,
    MatrixNormal,
    ZeroSumNormal,
    half_log_det,
)
from probtorch.distributions.wishart import (
    InverseWishart,
    InverseWishartCholesky,
    Wishart,
    WishartCholesky,
    log_multigamma,
)
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import digamma
from probtorch.tensor import Tensor

__all__: list[str] = []


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a^-1 b for a lower-triangular, batches broadcast."""
    shape = broadcast_shapes(a.array.shape[:-2], b.array.shape[:-2], op="kl_divergence")
    a = expand(a, (*shape, *a.array.shape[-2:]))
    return solve_triangular(a, expand(b, (*shape, *b.array.shape[-2:])), upper=False)


def _square(x: Tensor) -> Tensor:
    return total(x * x, (-2, -1))


def _same_size(p: Distribution, q: Distribution) -> None:
    if p._event_shape != q._event_shape:
        sizes = f"{tuple(p._event_shape)} and {tuple(q._event_shape)}"
        raise no_closed_form(p, q, f"one event shape on both sides, not {sizes}")


@register_kl(Wishart, Wishart)
@register_kl(WishartCholesky, WishartCholesky)
def _(p: Wishart, q: Wishart) -> Tensor:
    _same_size(p, q)
    a, b = p.scale_tril, q.scale_tril
    return _of_scatter(p, q, _ratio(b, a), half_log_det(a) - half_log_det(b))


@register_kl(Wishart, WishartCholesky)
@register_kl(WishartCholesky, Wishart)
def _(p: Wishart, q: Wishart) -> Tensor:
    # No rule of the parent class: one side is symmetric, the other triangular.
    return p.df * math.inf + q.df * 0.0


@register_kl(InverseWishart, InverseWishart)
@register_kl(InverseWishartCholesky, InverseWishartCholesky)
def _(p: InverseWishart, q: InverseWishart) -> Tensor:
    _same_size(p, q)
    # Of the inverses, whose scale matrices are inverse as well.
    a, b = p.scale_tril, q.scale_tril
    return _of_scatter(p, q, _ratio(a, b), half_log_det(b) - half_log_det(a))


def _of_scatter(
    p: Wishart | InverseWishart, q: Wishart | InverseWishart, ratio: Tensor, half: Tensor
) -> Tensor:
    """Between two Wisharts, from the factor of p's scale in units of q's, and its log-det."""
    n, a, b = p._event_shape[-1], p.df, q.df
    steps = a.new_tensor(0.5 * np.arange(n))
    slope = total(digamma(unsqueeze(a * 0.5, -1) - steps), -1)
    sizes = log_multigamma(b * 0.5, n) - log_multigamma(a * 0.5, n) + 0.5 * (a - b) * slope
    return 0.5 * a * (_square(ratio) - float(n)) - b * half + sizes


@register_kl(MatrixNormal, MatrixNormal)
def _(p: MatrixNormal, q: MatrixNormal) -> Tensor:
    _same_size(p, q)
    n, m = p._event_shape
    rows = _ratio(q.scale_tril_row, p.scale_tril_row)
    columns = _ratio(q.scale_tril_column, p.scale_tril_column)
    apart = _ratio(q.scale_tril_column, _ratio(q.scale_tril_row, q.loc - p.loc).mT)
    sizes = m * half_log_det(rows) + n * half_log_det(columns)
    return 0.5 * (_square(rows) * _square(columns) + _square(apart) - float(n * m)) - sizes


@register_kl(LKJ, LKJ)
def _(p: LKJ, q: LKJ) -> Tensor:
    _same_size(p, q)
    return kl_divergence(p._factors(), q._factors())


@register_kl(ZeroSumNormal, ZeroSumNormal)
@register_kl(GaussianRandomWalk, GaussianRandomWalk)
def _(p: ZeroSumNormal | GaussianRandomWalk, q: ZeroSumNormal | GaussianRandomWalk) -> Tensor:
    _same_size(p, q)
    # As many independent normal numbers of mean 0 as there are degrees of freedom.
    lost = 1 if isinstance(p, ZeroSumNormal) else 0
    each = kl_divergence(
        Normal(0.0, p.scale, validate_args=False), Normal(0.0, q.scale, validate_args=False)
    )
    return each * float(math.prod(size - lost for size in p._event_shape))


@register_kl(CAR, CAR)
@register_kl(CAR, MultivariateNormal)
@register_kl(MultivariateNormal, CAR)
def _(p: CAR | MultivariateNormal, q: CAR | MultivariateNormal) -> Tensor:
    _same_size(p, q)
    return kl_divergence(_whole(p), _whole(q))


def _whole(d: CAR | MultivariateNormal) -> MultivariateNormal:
    if isinstance(d, MultivariateNormal):
        return d
    return MultivariateNormal(d.loc, precision_matrix=d.precision_matrix, validate_args=False)
