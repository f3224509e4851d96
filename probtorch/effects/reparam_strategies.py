"""Strategies: a reparameterisation for each site, by its kind.

Give one as the `config` of `reparam`, or call it with a model. The names are Pyro's.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TypeVar

from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls
from probtorch.core.told import is_constant
from probtorch.distributions import constraints
from probtorch.distributions.directional import ProjectedNormal
from probtorch.distributions.distribution import Distribution, MaskedDistribution
from probtorch.distributions.linear_hmm import IndependentHMM, LinearHMM
from probtorch.distributions.relaxed import RelaxedOneHotCategorical
from probtorch.distributions.stable import Stable
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.effects.further_reparams import GumbelSoftmaxReparam, ProjectedNormalReparam
from probtorch.effects.joint_reparams import LinearHMMReparam
from probtorch.effects.reparams import LocScaleReparam, Reparam, TransformReparam, peeled, reparam
from probtorch.effects.site import Site
from probtorch.effects.stable_reparams import (
    LatentStableReparam,
    StableReparam,
    SymmetricStableReparam,
)

__all__ = ["AutoReparam", "MinimalReparam", "ReparamStrategy"]

_Result = TypeVar("_Result")


class ReparamStrategy(abc.ABC):
    """Base of strategies: `configure` says what to do with a site."""

    def __repr__(self) -> str:
        return call_of(self)

    def __call__(self, fn: Site | Callable[..., _Result]) -> object:
        """Return what to do with a site, or the model with all its sites seen to."""
        if not isinstance(fn, Site):
            return reparam(fn, config=self.configure)
        return self.configure(fn)

    @abc.abstractmethod
    def configure(self, site: Site) -> Reparam | None:
        """Return the reparameterisation of a site, or None."""


class MinimalReparam(ReparamStrategy):
    """Reparameterise only where the density is costly: stable distributions, and series of them.

    Latent stable sites become functions of noise (`LatentStableReparam`), observed ones normal
    given noise; so does the noise of a `LinearHMM`. Projected normal directions are those of normal
    vectors. A `TransformedDistribution` of one is taken
    apart first: nest a second strategy for its base.
    """

    def configure(self, site: Site) -> Reparam | None:
        """Return the reparameterisation of a site, or None."""
        return None if site.fn is None else _minimal(site.fn, site.value is not None)


def _minimal(fn: Distribution, observed: bool) -> Reparam | None:
    base, _ = peeled(fn)
    while isinstance(base, MaskedDistribution):
        base, _ = peeled(base.base_dist)
    if isinstance(base, TransformedDistribution):
        costly = not observed and _minimal(base.base_dist, observed) is not None
        return TransformReparam() if costly else None
    if isinstance(base, Stable):
        if not observed:
            return LatentStableReparam()
        symmetric = is_constant(base.skew) and not base.skew.array.any()
        return SymmetricStableReparam() if symmetric else StableReparam()
    if type(base) is ProjectedNormal:
        return None if observed else ProjectedNormalReparam()
    while isinstance(base, IndependentHMM):
        base = base.base_dist
    if isinstance(base, LinearHMM):
        # Given the values of all noise the density is a filter's: as if it were observed.
        noise = (base.initial_dist, base.transition_dist, base._noise())
        changes = [_minimal(d, True) for d in noise]
        return LinearHMMReparam(*changes) if any(changes) else None
    return None


class AutoReparam(ReparamStrategy):
    """Choose by the kind of site: bases of transformed sites, decentred sites of the line.

    Parameters
    ----------
    centered : float in [0, 1], optional
        For `LocScaleReparam`; learned if None.

    Notes
    -----
    Stable sites and series are seen to as by `MinimalReparam`, relaxed categories become functions
    of uniform noise. A site is decentred if it is latent, on the whole line, and has loc and scale;
    its other parameters are passed on. Which sites are better left centred, the data decide: see
    `NUTS` with ``reparam="auto"``.
    """

    def __init__(self, centered: float | None = None) -> None:
        self.centered = centered

    def configure(self, site: Site) -> Reparam | None:
        """Return the reparameterisation of a site, or None."""
        if site.fn is None:
            return None
        change = _minimal(site.fn, site.value is not None)
        if change is not None or site.value is not None:
            return change
        base, _ = peeled(site.fn)
        if isinstance(base, TransformedDistribution):
            return TransformReparam()
        if type(base) is RelaxedOneHotCategorical:
            return GumbelSoftmaxReparam()
        fields = getattr(base, "_fields", {})
        line = base.support is constraints.real
        if not line or base.event_shape or not {"loc", "scale"} <= set(fields):
            return None
        others = tuple(n for n in fields if n not in ("loc", "scale"))
        return LocScaleReparam(self.centered, others)


explain_calls(globals())
