"""Exact draws of continuous sites whose conditional distribution is of a known family.

If a site has a conjugate prior, the log density along one of its coordinates, all else fixed, is a
sum of two known functions with unknown factors: ``a q - b exp(q)`` for the log of a Gamma variable.
So three evaluations give the factors, whatever the graph of the model looks like, and a draw from
that distribution is a draw from the conditional. It is taken by Metropolis's rule all the same, as
an independent proposal: where the family was wrong the chain is still exact, and its acceptance,
1 for conjugate sites, says so.

The three points must not depend on the present value. They are 0 and 1 to both sides, on the
unconstrained scale, and then, for the digits, around the centre that these give.

Of a Dirichlet vector each part takes a share of what the parts before it have left. These shares
are Beta variables, independent of each other, and the coordinates are their logits beside an offset
(`offset_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.beta import Beta, Dirichlet
from probtorch.distributions.gamma import Chi2, Gamma, InverseGamma
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import LogNormal, Normal
from probtorch.distributions.positive import Exponential
from probtorch.errors import InferenceError
from probtorch.infer.mcmc.gibbs.discrete_updates import SweepState, Update
from probtorch.infer.mcmc.integrators import Density
from probtorch.infer.mcmc.kernels.random_walk import accept_probability
from probtorch.infer.mcmc.randomness import CountedDraws, Key, normals, uniform
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.comparisons import isfinite, isnan
from probtorch.ops.exponentials import exp, log, log_sigmoid
from probtorch.ops.indexing import index_put
from probtorch.ops.variates import standard_log_gamma

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution
    from probtorch.effects.site import Site

__all__ = ["CONJUGATE", "FAMILIES", "family_of", "offset_of"]

Pair: TypeAlias = tuple[TensorBase, TensorBase]


@dataclass(frozen=True)
class ConditionalFamily:
    """A family of densities of one coordinate, up to a constant ``a f(q) + b g(q)``.

    Parameters
    ----------
    parts : callable
        From q to f and g.
    middle : callable
        From a and b to the centre and the width of the density.
    draw : callable
        From a and b to a draw; within `CountedDraws`.
    signed : bool
        Whether a may be negative.
    """

    parts: Callable[[TensorBase], Pair]
    middle: Callable[[TensorBase, TensorBase], Pair]
    draw: Callable[[TensorBase, TensorBase, TensorBase], TensorBase]
    signed: bool = False


def _gamma_middle(a: TensorBase, b: TensorBase) -> Pair:
    return log(a) - log(b), 1.0 / sqrt(a)


FAMILIES = {
    # Precision times mean, and precision.
    "normal": ConditionalFamily(
        lambda q: (q, -0.5 * q * q),
        lambda a, b: (a / b, 1.0 / sqrt(b)),
        lambda a, b, z: a / b + z / sqrt(b),
        signed=True,
    ),
    # Shape and rate, of the log of the variable; of its inverse; both shapes of a Beta, of the
    # logit.
    "gamma": ConditionalFamily(
        lambda q: (q, -exp(q)),
        _gamma_middle,
        lambda a, b, z: standard_log_gamma(a) - log(b),
    ),
    "inverse gamma": ConditionalFamily(
        lambda q: (-q, -exp(-q)),
        lambda a, b: (log(b) - log(a), 1.0 / sqrt(a)),
        lambda a, b, z: log(b) - standard_log_gamma(a),
    ),
    "beta": ConditionalFamily(
        lambda q: (log_sigmoid(q), log_sigmoid(-q)),
        lambda a, b: (log(a) - log(b), sqrt(1.0 / a + 1.0 / b)),
        lambda a, b, z: standard_log_gamma(a) - standard_log_gamma(b),
    ),
}
_OF_PRIORS = {
    "normal": (Normal, LogNormal, MultivariateNormal),
    "gamma": (Gamma, Exponential, Chi2),
    "inverse gamma": (InverseGamma,),
    "beta": (Beta, Dirichlet),
}


def family_of(site: Site) -> str:
    """Return the family that the conditional distribution of a site is of, if it is conjugate.

    Raises
    ------
    InferenceError
        If its prior is of none.
    """
    fn = _prior(site)
    for name, kinds in _OF_PRIORS.items():
        if isinstance(fn, kinds):
            return name
    shown = ", ".join(kind.__name__ for kinds in _OF_PRIORS.values() for kind in kinds)
    raise InferenceError(
        f"Gibbs(blocks=...): a conjugate update of site {site.name!r}",
        expected=f"a prior among {shown}",
        got=type(fn).__name__,
        fix="give it a kernel such as NUTS, or a FullConditional",
        at=site.location or None,
    )


def offset_of(site: Site, shape: tuple[int, ...]) -> np.ndarray | float:
    """Return what the coordinates of a site, of some shape, are beyond those of its family."""
    if not isinstance(_prior(site), Dirichlet):
        return 0.0
    # As in `StickBreakingTransform`: 0 gives equal parts.
    return np.broadcast_to(np.log(np.arange(shape[-1], 0, -1)), shape)


def _prior(site: Site) -> Distribution:
    fn = site.fn
    while hasattr(fn, "reinterpreted_batch_ndims"):
        fn = fn.base_dist
    return fn


def _conjugate(family: ConditionalFamily) -> Update:
    def update(
        density: Density,
        key: Key,
        walk: SweepState,
        at: TensorBase,
        offset: TensorBase,
        highest: TensorBase,
    ) -> SweepState:
        """Draw a coordinate from its conditional distribution; `offset_of` stands for a bound."""

        def value(q: TensorBase) -> TensorBase:
            return density(index_put(walk.position, (at,), q + offset))[0]

        zero = 0.0 * walk.logdensity
        a, b = _factors(family, value, zero, zero + 1.0)
        a, b = _factors(family, value, *family.middle(a, b))
        z, present = normals(key, walk.counter, 1)[0], walk.position[at] - offset
        with CountedDraws(key, walk.counter + 1) as draws:
            q = family.draw(a, b, z)
        logdensity = value(q)
        rise = (logdensity - _sum(family, a, b, q)) - (
            walk.logdensity - _sum(family, a, b, present)
        )
        accept_prob = accept_probability(where(isnan(logdensity), -np.inf, rise))
        counter = walk.counter + (1 + draws.used)
        accepted = uniform(key, counter) < accept_prob
        return SweepState(
            index_put(walk.position, (at,), where(accepted, q + offset, walk.position[at])),
            where(accepted, logdensity, walk.logdensity),
            counter + 1,
            walk.taken + 7,
            walk.accept + accept_prob,
        )

    return update


def _sum(family: ConditionalFamily, a: TensorBase, b: TensorBase, q: TensorBase) -> TensorBase:
    f, g = family.parts(q)
    return a * f + b * g


def _factors(
    family: ConditionalFamily,
    value: Callable[[TensorBase], TensorBase],
    centre: TensorBase,
    width: TensorBase,
) -> Pair:
    """The factors that fit three points; of some density of the family where none fits."""
    points = [centre + k * width for k in (-1.0, 0.0, 1.0)]
    (f0, g0), (f1, g1), (f2, g2) = map(family.parts, points)
    y0, y1, y2 = map(value, points)
    f1, f2, g1, g2, y1, y2 = f1 - f0, f2 - f0, g1 - g0, g2 - g0, y1 - y0, y2 - y0
    # Cramer's rule.
    scale = f1 * g2 - f2 * g1
    a, b = (y1 * g2 - y2 * g1) / scale, (f1 * y2 - f2 * y1) / scale
    fits = isfinite(a) & isfinite(b) & (b > 0.0)
    if not family.signed:
        fits = fits & (a > 0.0)
    one = wrap(np.ones(()))
    return where(fits, a, 0.0 * one if family.signed else one), where(fits, b, one)


# By the name of the family, of the same form as `UPDATES`.
CONJUGATE: dict[str, Update] = {
    f"conjugate {name}": _conjugate(family) for name, family in FAMILIES.items()
}
