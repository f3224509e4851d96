"""A model with sites that are enumerated sequentially, as one factor: the sum of its branches.

The model runs once for each combination of values of such sites, at the guide's draws. The runs do
not meet, so what is left of them in the bound is the logarithm of the sum of their densities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.effects.enumeration import DeeperPlates, Enumeration, enumerate_sites
from probtorch.effects.handlers import trace
from probtorch.effects.primitives import factor
from probtorch.errors import InferenceError
from probtorch.infer.enumeration.choices import Choices, branches_of
from probtorch.infer.enumeration.enumerated_check import GiveValues, check_against_one
from probtorch.infer.enumeration.factors import compute_densities
from probtorch.infer.enumeration.summed import leftmost_plate, marginal_density
from probtorch.infer.objectives.runs import is_latent, same_draws
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.pieces import stack

if TYPE_CHECKING:
    from probtorch.effects.runtime import Handler
    from probtorch.effects.site import Site
    from probtorch.effects.trace import Trace

__all__ = ["NoBranchesError", "as_one_factor", "no_branches"]

FACTOR = "_branches"


class NoBranchesError(InferenceError):
    """A model has branches where they cannot be summed."""


def as_one_factor(
    run: Callable[..., Trace],
    first: Trace,
    enumeration: Enumeration,
    choose: Callable[[Site], str | None],
    check: bool,
) -> Trace:
    """Return a trace with one factor, the log density of a model with its branches summed.

    Parameters
    ----------
    run : callable
        ``run(*handlers)`` runs the model under handlers, outermost first.
    first : Trace
        Of the model along its first branch, at the guide's draws.
    enumeration : Enumeration
        Of the run that the trace is for, without variables.
    choose : callable
        Which sites are enumerated at once along each branch; see `enumerate_sites`.
    check : bool
        Whether to compare these with runs at single values.

    Raises
    ------
    InferenceError
        If there are latent sites along some branches only, or subsamples.
    """
    totals: list[TensorBase] = []
    traces: list[Trace] = []
    values = {n: site.value for n, site in first.nodes.items() if _is_drawn(site)}

    def along(choices: Choices) -> Trace:
        found, own = _summed_run(run, enumeration, choose, _GiveAlong(values, first), choices)
        totals.append(marginal_density(found, own))
        traces.append(found)
        if check:
            path = choices.whole()

            def again(handlers: list[GiveValues]) -> tuple[Trace, ...]:
                return (run(*handlers, Choices(path)),)

            with same_draws():
                check_against_one((found,), own, again)
        return found

    branches_of(along, "the model")
    for found in traces:
        _check_latents(found, set(values))
    total = logsumexp(stack(totals), 0)
    with trace() as made, enumerate_sites(None, enumeration, choose):
        factor(FACTOR, total)
    for found in traces:
        made.nodes.update({n: s for n, s in found.nodes.items() if s.kind == "param"})
    return made


def _summed_run(
    run: Callable[..., Trace],
    enumeration: Enumeration,
    choose: Callable[[Site], str | None],
    *handlers: Handler,
) -> tuple[Trace, Enumeration]:
    """A run along a branch, and what is enumerated at once in it."""
    first_dim = enumeration.first_dim
    while True:
        own = Enumeration(first_dim)
        try:
            with own.watch():
                found = run(enumerate_sites(None, own, choose), *handlers)
                if leftmost_plate(found) > first_dim:
                    compute_densities(found)
                    return found, own
        except DeeperPlates:
            pass
        first_dim -= 1


class _GiveAlong(GiveValues):
    """Give values of the first branch along another, where they have to fit."""

    def after_sample(self, site: Site) -> None:
        """Refuse a site that has another shape here, before anything is computed with its value."""
        first = self.trace.nodes.get(site.name)
        if first is None or site.name not in self.values or not _is_drawn(site):
            return
        here, there = _shape_of(site), _shape_of(first)
        if here != there:
            raise NoBranchesError(
                f"site {site.name!r} has another shape along another branch of the model",
                expected=f"shape {there}, as along the first, for all values of the sites that are "
                "enumerated sequentially",
                got=f"shape {here}",
                fix=f"draw {site.name!r} before the branch, as large as the largest, and use a "
                "part of it; programs whose sites change are for ParticleGibbs(model) and "
                "Importance(model)",
                at=site.location,
            )


def _shape_of(site: Site) -> tuple[int, ...]:
    """The shape that a value of a site has by its distribution and all rows of its plates."""
    batch = list(broadcast_shapes(tuple(site.fn.batch_shape), site.plate_shape, op="sample"))
    for plate in site.plates:
        if plate.dim is not None:
            batch[plate.dim] = plate.full_size
    return (*batch, *site.fn.event_shape)


def _is_drawn(site: Site) -> bool:
    """Whether a site is latent and has one value, of the guide or of the prior."""
    return is_latent(site) and "variable" not in site.notes and "choice" not in site.notes


def _check_latents(found: Trace, drawn: set[str]) -> None:
    """Refuse a latent site that some branches have and others have not."""
    sites = {n: site for n, site in found.nodes.items() if _is_drawn(site)}
    met = set(sites)
    if met == drawn:
        return
    name = min(met ^ drawn)
    raise InferenceError(
        f"site {name!r} is drawn along some branches of the model only",
        expected="the same continuous latent sites for all values of the sites that are "
        "enumerated sequentially",
        got=f"{', '.join(map(repr, sorted(met))) or 'none'} along one branch, "
        f"{', '.join(map(repr, sorted(drawn))) or 'none'} along the first",
        fix=f"draw {name!r} before the branch; programs whose sites come and go are for "
        "ParticleGibbs(model) and Importance(model)",
        at=sites[name].location if name in sites else None,
    )


def no_branches(site: Site, what: str, fix: str) -> NoBranchesError:
    """Return the error for a model with branches where they cannot be summed."""
    return NoBranchesError(
        f"site {site.name!r} of the model is enumerated sequentially",
        expected="runs of the model one by one, at what the guide draws",
        got=what,
        fix=fix,
        at=site.location,
    )
