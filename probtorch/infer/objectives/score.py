"""Score-function terms: gradients through draws that are not differentiable.

For a draw z of the guide without a pathwise gradient,

    grad E[cost(z)] = E[grad cost(z) + cost(z) grad log q(z)],

where the cost may leave out everything that does not depend on z (Rao-Blackwellisation; Ranganath
et al. 2014, sec. 3.1) and may be reduced by a baseline that does not either. What may be left out
is decided here from what is certain, so that the estimate stays unbiased:

- rows of a plate: a density in the same ``with`` block of a plate as the site depends on its own
  row alone. A plate that is entered again may see what was computed from all rows in between.
- order (`later_costs`): a density of the guide before the site, or of the model before any value
  drawn from the site on, does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from probtorch.core.tensor_base import TensorBase
from probtorch.effects.site import Site
from probtorch.estimators.pathwise import Pathwise
from probtorch.infer.enumeration.factors import unscaled
from probtorch.infer.objectives.runs import Run
from probtorch.ops.reduction import sum as total

__all__ = [
    "CostTerm",
    "all_costs",
    "downstream",
    "has_score",
    "later_costs",
    "score_terms",
    "shared_dims",
]


class CostTerm(NamedTuple):
    """One summand of what the guide is judged by.

    Attributes
    ----------
    value : Tensor
        Of the shape of the site's log density; without a gradient.
    site : Site
        Where it comes from.
    of_model : bool
    """

    value: TensorBase
    site: Site
    of_model: bool


# Gives a site the costs that count for it; and what its cost is without its baseline, and what
# trains the baseline.
Relevant: TypeAlias = Callable[[Site], Iterable[CostTerm]]
Baselined: TypeAlias = Callable[
    [Site, TensorBase | float], tuple[TensorBase | float, TensorBase | None]
]


def all_costs(run: Run, taped: bool = False) -> Relevant:
    """Return a function that gives every site all densities of the run.

    Parameters
    ----------
    run : Run
    taped : bool
        Whether the costs keep their gradients.
    """
    costs: list[CostTerm] = []

    def relevant(site: Site) -> list[CostTerm]:
        if not costs:
            costs.extend(_costs(run, taped))
        return costs

    return relevant


def later_costs(run: Run, taped: bool = False) -> Relevant:
    """Return a function that gives a site the densities that may depend on it, by order of drawing.

    A draw that was made before the site cannot depend on it; nor can a density of the model that
    has seen only such draws. Parameters as in `all_costs`.
    """
    position = {name: i for i, name in enumerate(run.guide.nodes)}
    # Of the values a density of the model may have seen, the one that was drawn last.
    latest, seen = -1, {}
    for name, site in run.model.nodes.items():
        if name in position and site.kind == "sample" and not site.observed:
            latest = max(latest, position[name])
        seen[name] = latest
    found: list[CostTerm] = []

    def relevant(site: Site) -> list[CostTerm]:
        if not found:
            found.extend(_costs(run, taped))
        here = position[site.name]
        return [
            cost
            for cost in found
            if (seen[cost.site.name] if cost.of_model else position[cost.site.name]) >= here
        ]

    return relevant


def _costs(run: Run, taped: bool) -> Iterator[CostTerm]:
    for of_model, trace in ((True, run.model), (False, run.guide)):
        for site in trace.nodes.values():
            if site.has_density:
                value = site.compute_log_prob()
                value = value if taped else value.detach()
                yield CostTerm(value if of_model else -value, site, of_model)


def score_terms(
    run: Run,
    relevant: Relevant,
    baseline: Baselined | None = None,
    integrated: Collection[str] = (),
    chosen: Callable[[Site], TensorBase | None] | None = None,
) -> TensorBase | None:
    """Return the sum of the score-function terms over sites and particles.

    Parameters
    ----------
    run : Run
    relevant : callable
        From a site to the costs that count for it.
    baseline : callable, optional
        ``baseline(site, cost) -> (cost without its baseline, term to add or None)``.
    integrated : collection of str
        Sites whose log density is not in the bound, but its mean.
    chosen : callable, optional
        From a site to its term by an estimator of its own (site_estimators.py), or None.

    Returns
    -------
    Tensor, shape (), or None
        Only its gradient means anything; None if every draw is differentiable.
    """
    found = None
    for site in run.guide.nodes.values():
        if not has_score(site):
            continue
        own = None if chosen is None else chosen(site)
        if own is not None:
            found = own if found is None else found + own
            continue
        log_q = site.compute_log_prob()
        cost = downstream(run, site, relevant(site))
        extra = None
        if baseline is not None:
            cost, extra = baseline(site, cost)
        term = total(unscaled(site) * cost)
        if site.name not in integrated:
            # Takes the gradient of -log q out of the bound: it is 0 in expectation.
            term = term + total(log_q)
        if extra is not None:
            term = term + extra
        found = term if found is None else found + term
    return found


def has_score(site: Site) -> bool:
    """Whether a site of the guide needs a score-function term."""
    if site.kind == "factor":
        return site.infer.get("has_rsample") is False
    if site.kind != "sample" or site.observed:
        return False
    estimator = site.notes.get("estimator")
    if estimator is not None:
        return not isinstance(estimator, Pathwise)
    return not site.fn.has_rsample


def downstream(
    run: Run, site: Site, costs: Iterable[CostTerm], dims: Collection[int | None] | None = None
) -> TensorBase | float:
    """Return the costs of a site, summed over all dims but the plates (and particles) it shares.

    Parameters
    ----------
    run : Run
    site : Site
        Of the guide.
    costs : iterable of CostTerm
    dims : collection of int, optional
        Keep these (negative) dims, in place of those that each cost shares.

    Returns
    -------
    Tensor or float
        Broadcasts with the site's log density.
    """
    found = None
    for cost in costs:
        kept = shared_dims(run, site, cost) if dims is None else dims
        value = cost.value
        rest = tuple(d for d in range(-value.array.ndim, 0) if d not in kept)
        if rest:
            value = total(value, rest, keepdim=True)
        while value.array.ndim and value.array.shape[0] == 1:
            value = value[0]
        found = value if found is None else found + value
    return 0.0 if found is None else found


def shared_dims(run: Run, site: Site, cost: CostTerm) -> set[int | None]:
    """Return the (negative) dims whose rows a cost and a site of the guide have in common."""
    other = run.model.nodes.get(site.name) if cost.of_model else site
    shared = set() if other is None else {id(f) for f in other.plates}
    return {f.dim for f in cost.site.plates if id(f) in shared} | {run.dim}
