"""Finite discrete sites of a target: summed out of its density, drawn afterwards.

A sampler moves continuous values only. Where a model has finite discrete latent sites too,
`marginal_density` sums them out of the joint density, exactly, as `TraceEnum_ELBO` does; all is
Tensor ops, so the density is compiled like any other. `OneValue` gives such sites one of their
values where a run is for its shapes or for what does not depend on them.

Read effects/enumeration.py and factors.py first; potential.py is the user.
"""

from __future__ import annotations

from typing import Any

from probtorch.core.dispatch import cast
from probtorch.core.dtype import float64
from probtorch.effects.enumeration import Enumeration, can_enumerate, enumerate_sites
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.effects.trace import Trace
from probtorch.infer.factors import axes_of, factor_of, marginal_terms
from probtorch.ops.movement import expand, permute, reshape
from probtorch.ops.reduction import sum as total

__all__ = [
    "OneValue",
    "enumerating",
    "is_summed",
    "leftmost_plate",
    "marginal_density",
    "marginal_likelihoods",
    "own_shape",
]


def is_summed(site: Site) -> bool:
    """Whether a site is latent, still without a value, and has a finite support."""
    return not site.observed and site.value is None and can_enumerate(site)


class OneValue(Handler):
    """Give finite discrete latent sites the value at one position of their support, in all rows.

    Parameters
    ----------
    position : int
        The last value is taken where there are fewer.

    Attributes
    ----------
    sizes : dict of str to int
        How many values each of the sites has.
    """

    def __init__(self, position: int = 0) -> None:
        super().__init__()
        self.position = position
        self.sizes: dict[str, int] = {}

    def on_sample(self, site: Site) -> None:
        """Give the value."""
        if not is_summed(site):
            return
        values = site.fn.enumerate_support(expand=False)
        size, event = values.shape[0], tuple(site.fn.event_shape)
        value = reshape(values, (size, *event))[min(self.position, size - 1)]
        batch = tuple(site.fn.batch_shape)
        site.value = expand(reshape(value, (*(1,) * len(batch), *event)), (*batch, *event))
        site.inside = True
        self.sizes[site.name] = size


def enumerating(first_dim: int) -> tuple[Enumeration, Handler]:
    """Return a handler that gives finite discrete sites all their values, and its variables."""
    enumeration = Enumeration(first_dim)
    choose = lambda site: "parallel" if is_summed(site) else None
    return enumeration, enumerate_sites(None, enumeration, choose)


def leftmost_plate(trace: Trace) -> int:
    """Return the leftmost dim that a plate takes, 0 if there is none."""
    frames = (frame for site in trace.nodes.values() for frame in site.plates)
    return min((frame.dim for frame in frames if frame.dim is not None), default=0)


def own_shape(site: Site) -> tuple[int, ...]:
    """Return the shape of a value of a site, without the dims of variables it depends on."""
    batch, free = tuple(site.fn.batch_shape), site.free_dim
    if free is not None and len(batch) >= -free:
        batch = batch[len(batch) + free + 1 :]
        while batch and len(batch) > len(site.plate_shape) and batch[0] == 1:
            batch = batch[1:]
    return batch + tuple(site.fn.event_shape)


def marginal_density(trace: Trace, enumeration: Enumeration) -> Any:
    """Return the log density of a trace with all variables summed out, a 0-d float64 tensor."""
    axes = axes_of(enumeration, trace)
    found: Any = 0.0
    for term in marginal_terms(trace, set(enumeration.variables), axes):
        if term.factor is None:
            found = found + term.sites[0].compute_log_prob_sum()
        else:
            found = found + total(term.factor.value)
    return cast(found, float64)


def marginal_likelihoods(trace: Trace, enumeration: Enumeration) -> dict[str, Any]:
    """Return the log densities of observed sites by name, row by row, variables summed out.

    Unscaled. A site has one per row if the rows are independent once the variables are summed out,
    and no other data are summed with it; other sites are left out.
    """
    axes = axes_of(enumeration, trace)
    found = {}
    for term in marginal_terms(trace, set(enumeration.variables), axes, scaled=False):
        data = [site for site in term.sites if site.observed and site.kind == "sample"]
        rest = [s for s in term.sites if not s.observed and "variable" not in s.notes]
        if len(data) != 1 or rest or len(term.sites) > len(data) + _variables(term.sites):
            continue
        site, factor = data[0], term.factor
        if factor is None:
            found[site.name] = site.unscaled_log_prob
        elif factor.plates == factor_of(site, site.unscaled_log_prob, axes).plates:
            found[site.name] = _laid_out(factor, site)
    return found


def _variables(sites):
    return sum("variable" in site.notes for site in sites)


def _laid_out(factor, site):
    """A factor without variables, with the plates of a site at their dims."""
    dims = {frame.name: frame.dim for frame in site.plates if frame.dim is not None}
    order = sorted(factor.axes, key=dims.__getitem__)
    value = factor.value
    if tuple(order) != factor.axes:
        value = permute(value, tuple(factor.axes.index(plate) for plate in order))
    return reshape(value, site.plate_shape)
