"""Divergences between distributions of directions."""

from __future__ import annotations

from probtorch.distributions.directions import PowerSpherical, SphericalUniform, VonMisesFisher
from probtorch.distributions.kl_rules import register_kl
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__: list[str] = []


@register_kl(VonMisesFisher, VonMisesFisher)
@register_kl(PowerSpherical, VonMisesFisher)
@register_kl(SphericalUniform, VonMisesFisher)
def _(p: VonMisesFisher | PowerSpherical | SphericalUniform, q: VonMisesFisher) -> Tensor:
    # The log density of q is linear in x: what counts of p is its mean.
    cosine = total(p.mean * q.loc, -1)
    return q._log_size() + q.concentration * (1.0 - cosine) - p._entropy()


@register_kl(VonMisesFisher, SphericalUniform)
@register_kl(PowerSpherical, SphericalUniform)
@register_kl(SphericalUniform, SphericalUniform)
def _(p: VonMisesFisher | PowerSpherical | SphericalUniform, q: SphericalUniform) -> Tensor:
    return q._entropy() - p._entropy()
