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

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from probtorch.effects.site import Site
from probtorch.infer.objectives.runs import Run
from probtorch.ops.reduction import sum as total

__all__ = ["Cost", "all_costs", "downstream", "has_score", "later_costs", "score_terms"]


class Cost(NamedTuple):
    """One summand of what the guide is judged by.

    Attributes
    ----------
    value : Tensor
        Of the shape of the site's log density; without a gradient.
    site : Site
        Where it comes from.
    of_model : bool
    """

    value: Any
    site: Site
    of_model: bool


def all_costs(run: Run) -> Callable[[Site], Iterable[Cost]]:
    """Return a function that gives every site all densities of the run."""
    costs: list[Cost] = []

    def relevant(site):
        if not costs:
            costs.extend(_costs(run))
        return costs

    return relevant


def later_costs(run: Run) -> Callable[[Site], Iterable[Cost]]:
    """Return a function that gives a site the densities that may depend on it, by order of drawing.

    A draw that was made before the site cannot depend on it; nor can a density of the model that
    has seen only such draws.
    """
    position = {name: i for i, name in enumerate(run.guide.nodes)}
    # Of the values a density of the model may have seen, the one that was drawn last.
    latest, seen = -1, {}
    for name, site in run.model.nodes.items():
        if name in position and site.kind == "sample" and not site.observed:
            latest = max(latest, position[name])
        seen[name] = latest
    found: list[Cost] = []

    def relevant(site):
        if not found:
            found.extend(_costs(run))
        here = position[site.name]
        return [
            cost
            for cost in found
            if (seen[cost.site.name] if cost.of_model else position[cost.site.name]) >= here
        ]

    return relevant


def _costs(run):
    for site in run.model.nodes.values():
        if site.has_density:
            yield Cost(site.compute_log_prob().detach(), site, True)
    for site in run.guide.nodes.values():
        if site.has_density:
            yield Cost(-site.compute_log_prob().detach(), site, False)


def score_terms(
    run: Run,
    relevant: Callable[[Site], Iterable[Cost]],
    baseline: Callable[[Site, Any], tuple[Any, Any]] | None = None,
    integrated: Collection[str] = (),
) -> Any:
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

    Returns
    -------
    Tensor, shape (), or None
        Only its gradient means anything; None if every draw is differentiable.
    """
    found = None
    for site in run.guide.nodes.values():
        if not has_score(site):
            continue
        log_q = site.compute_log_prob()
        cost = downstream(run, site, relevant(site))
        extra = None
        if baseline is not None:
            cost, extra = baseline(site, cost)
        term = total(site.unscaled_log_prob * cost)
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
    return site.kind == "sample" and not site.observed and not site.fn.has_rsample


def downstream(run: Run, site: Site, costs: Iterable[Cost]) -> Any:
    """Return the costs of a site, summed over all dims but the plates (and particles) it shares.

    Returns
    -------
    Tensor or float
        Broadcasts with the site's log density.
    """
    twin = run.model.nodes.get(site.name)
    found = None
    for cost in costs:
        other = twin if cost.of_model else site
        shared = set() if other is None else {id(f) for f in other.plates}
        kept = {f.dim for f in cost.site.plates if id(f) in shared}
        kept.add(run.dim)
        value = cost.value
        rest = tuple(d for d in range(-value._data.ndim, 0) if d not in kept)
        if rest:
            value = total(value, rest, keepdim=True)
        while value._data.ndim and value._data.shape[0] == 1:
            value = value[0]
        found = value if found is None else found + value
    return 0.0 if found is None else found
