"""The bound of an enumerated run: terms, their weights, their exact means, and score terms.

Sites enumerated in the guide make each term of the bound a function of their values. The mean of a
function of several of them is taken one site at a time, the last drawn first: a site's own
probabilities, given what was drawn before, are all that is needed for it, so nothing in the guide
ever has to be multiplied together.

Draws without pathwise gradients get score-function terms, as in score.py: each term is multiplied
by the score of such a draw, both averaged over what is enumerated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from probtorch.backends.registry import device_of, to_device
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.infer.enumeration.factors import Term, factor_of, marginal_terms, unscaled
from probtorch.infer.enumeration.sum_product import (
    Axes,
    Axis,
    Factor,
    add,
    aligned,
    expect,
    sum_plates,
)
from probtorch.infer.objectives.runs import Run
from probtorch.infer.objectives.score import CostTerm, downstream, has_score
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponentials import exp
from probtorch.ops.movement import permute, reshape
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.effects.enumeration import Enumeration
    from probtorch.effects.site import Frame, Site


__all__ = [
    "EnumeratedRun",
    "as_factor",
    "bound_terms",
    "chosen_weight",
    "means",
    "score_terms",
    "times",
    "weights_of",
]


@dataclass(frozen=True, eq=False)
class EnumeratedRun(Run):
    """A run of guide and model in which sites may have all their values.

    Attributes
    ----------
    enumeration : Enumeration
    axes : Axes
    guided : frozenset of int
        Variables of the guide; the others are the model's.
    chosen : tuple of str
        Sites of the guide that had one of their values in this run, by sequential enumeration.
    """

    # Every enumerated run has both.
    enumeration: Enumeration = cast("Enumeration", None)
    axes: Axes = cast("Axes", None)
    guided: frozenset[int] = frozenset()
    chosen: tuple[str, ...] = ()

    @property
    def summed(self) -> set[int]:
        """Variables of the model."""
        return self.enumeration.variables.keys() - self.guided


# -------------------------------------------------------------------------------------------- terms


def bound_terms(run: EnumeratedRun) -> list[tuple[Term, bool]]:
    """Return the terms of the bound as functions of the guide's values, and whose they are.

    Returns
    -------
    list of (Term, bool)
        Those of the guide, which are not the model's, have their sign; only their `log_prob` has
        not.
    """
    found = [(term, True) for term in marginal_terms(run.model, run.summed, run.axes)]
    for term in marginal_terms(run.guide, (), run.axes):
        if term.factor is not None:
            f = term.factor
            term = replace(term, factor=Factor(-f.value, f.axes, f.plates, f.origin))
        found.append((term, False))
    return found


def as_factor(run: EnumeratedRun, term: Term, of_model: bool) -> Term:
    """Return the term with a factor, also where no variable concerns it."""
    if term.factor is not None:
        return term
    site = term.sites[0]
    value = site.compute_log_prob()
    return Term(factor_of(site, value if of_model else -value, run.axes), term.sites)


def times(term: Term, weight: Factor, axes: Axes) -> Term:
    """Return the term times a weight; where that is 0 the term does not count."""
    f = term.factor
    assert f is not None  # see `as_factor`
    onto = axes.ordered({*f.axes, *weight.axes})
    w = aligned(weight.value, weight.axes, onto)
    value = w * where(eq(w, 0.0), 0.0, aligned(f.value, f.axes, onto))
    return Term(Factor(value, onto, f.plates, f.origin), term.sites)


def weights_of(run: EnumeratedRun, v: int) -> Factor:
    """Return the probabilities of a variable of the guide, given those before it."""
    variable, axes = run.enumeration.variables[v], run.axes
    if variable.sampled:
        device = device_of(run.guide.nodes[variable.name].value.array)
        value = wrap(to_device(np.full(variable.size, 1.0 / variable.size), device))
        return Factor(value, (v,) if variable.size > 1 else (), axes.plates[v], variable.name)
    site = run.guide.nodes[variable.name]
    site.compute_log_prob()
    f = factor_of(site, exp(unscaled(site)), axes)
    mask = site.mask
    if mask is None or mask is True or v not in f.axes:
        return f
    # Masked elements have log density 0 at each value.
    share = f.value * (1.0 / variable.size)
    if mask is False:
        return Factor(share, f.axes, f.plates, f.origin)
    m = factor_of(site, mask, axes)
    value = where(aligned(m.value, m.axes, f.axes), f.value, share)
    return Factor(value, f.axes, f.plates, f.origin)


def chosen_weight(run: EnumeratedRun) -> Factor | None:
    """Return the probability of the values that were chosen in this run, None if none were."""
    found = []
    for name in run.chosen:
        site = run.guide.nodes[name]
        site.compute_log_prob()
        found.append(factor_of(site, unscaled(site), run.axes))
    if not found:
        return None
    joint = add(found, run.axes)
    return Factor(exp(joint.value), joint.axes, joint.plates, joint.origin)


def means(factors: Iterable[Factor], weights: Mapping[int, Factor], axes: Axes) -> list[Factor]:
    """Return factors averaged over all variables and summed over all plates, without axes."""
    groups = _grouped((_reduced(f, axes) for f in factors), axes)
    for v in sorted(weights, reverse=True):
        held = [f for f in groups if v in f.axes]
        if held:
            rest = [f for f in groups if v not in f.axes]
            averaged = (_reduced(expect(f, v, weights[v], axes), axes) for f in held)
            groups = _grouped([*rest, *averaged], axes)
    return groups


def _reduced(factor: Factor, axes: Axes) -> Factor:
    """A factor summed over the plates that none of its variables is in."""
    needed = frozenset().union(*(axes.plates[a] for a in factor.axes if isinstance(a, int)))
    return sum_plates(factor, factor.plates - needed, axes) if factor.plates - needed else factor


def _grouped(factors: Iterable[Factor], axes: Axes) -> list[Factor]:
    """Factors of equal axes and plates added up."""
    groups: dict[tuple[object, ...], list[Factor]] = {}
    for f in factors:
        groups.setdefault((f.axes, f.plates), []).append(f)
    return [add(held, axes) for held in groups.values()]


# --------------------------------------------------------------------------- score-function terms


def score_terms(
    run: EnumeratedRun, terms: list[tuple[Term, bool]], weights: Mapping[int, Factor]
) -> TensorBase | None:
    """Return the score-function terms of draws that are not differentiable.

    Parameters
    ----------
    run : EnumeratedRun
    terms : list of (Term, bool)
        See `bound_terms`.
    weights : mapping from int to Factor
        See `weights_of`.

    Returns
    -------
    Tensor, shape (), or None
        Only its gradient means anything; None if there are no such draws.
    """
    drawn = [
        site
        for site in run.guide.nodes.values()
        if has_score(site)
        and site.name not in run.chosen
        and ("variable" not in site.notes or _is_sampled(run, site))
    ]
    if not drawn:
        return None
    fixed = {v: Factor(w.value.detach(), w.axes, w.plates) for v, w in weights.items()}
    detached = [(_detached(run, term, of_model), of_model) for term, of_model in terms]
    costs: list[CostTerm] | None = None
    found = None
    for site in drawn:
        log_q = site.compute_log_prob()
        score = factor_of(site, unscaled(site), run.axes)
        if any(isinstance(axis, int) for axis in score.axes):
            term = _score_with_variables(run, site, score, detached, fixed)
        else:
            if costs is None:
                costs = [_as_cost(run, t, of_model, fixed) for t, of_model in detached]
            term = total(unscaled(site) * downstream(run, site, costs))
            # Takes the gradient of -log q out of the bound: it is 0 in expectation.
            term = term + total(log_q)
        found = term if found is None else found + term
    return found


def _is_sampled(run: EnumeratedRun, site: Site) -> bool:
    return run.enumeration.variables[site.notes["variable"]].sampled


def _detached(run: EnumeratedRun, term: Term, of_model: bool) -> Term:
    term = as_factor(run, term, of_model)
    f = term.factor
    assert f is not None  # see `as_factor`
    return Term(Factor(f.value.detach(), f.axes, f.plates, f.origin), term.sites)


def _as_cost(
    run: EnumeratedRun, term: Term, of_model: bool, weights: Mapping[int, Factor]
) -> CostTerm:
    """A term averaged over all variables, plates kept, at the dims of its plates."""
    factor = term.factor
    assert factor is not None  # see `_detached`
    for v in sorted(weights, reverse=True):
        if v in factor.axes:
            factor = expect(factor, v, weights[v], run.axes)
    frames = _frames(term.sites)
    value = factor.value
    dims: dict[Axis, int] = {f.name: f.dim for f in frames if f.dim is not None}
    order = sorted(factor.axes, key=lambda plate: dims[plate])
    if tuple(order) != factor.axes:
        value = permute(value, tuple(factor.axes.index(plate) for plate in order))
    if order:
        sizes = dict(zip(order, value.array.shape))
        at = {dims[plate]: n for plate, n in sizes.items()}
        value = reshape(value, tuple(at.get(d, 1) for d in range(dims[order[0]], 0)))
    first = term.sites[0]
    return CostTerm(value, replace(first, plates=frames), of_model)


def _frames(sites: Iterable[Site]) -> tuple[Frame, ...]:
    """The frames of plates around a term: those that all its sites share, copies of the others.

    A copy is the frame of no other site, so that the rows of the plate count as dependent.
    """
    held: dict[str, Frame] = {}
    for site in sites:
        for frame in site.plates:
            if frame.dim is not None:
                before = held.setdefault(frame.name, frame)
                if before is not frame:
                    held[frame.name] = replace(frame)
    return tuple(held.values())


def _score_with_variables(
    run: EnumeratedRun,
    site: Site,
    score: Factor,
    terms: list[tuple[Term, bool]],
    weights: Mapping[int, Factor],
) -> TensorBase:
    """The score of a draw that was made for each value of some variables.

    Rows of a plate that such a variable is in are independent: what depended on several rows would
    depend on several values of the variable. Rows of other plates are held independent where the
    sites share a block, as in score.py.
    """
    axes = run.axes
    score = Factor(score.value - score.value.detach(), score.axes, score.plates, score.origin)
    rowwise = frozenset().union(*(axes.plates[a] for a in score.axes if isinstance(a, int)))
    twin = run.model.nodes.get(site.name)
    products = []
    for term, of_model in terms:
        other = twin if of_model else site
        shared = set() if other is None else {id(f) for f in other.plates}
        apart = {f.name for f in _frames(term.sites) if id(f) not in shared}
        assert term.factor is not None  # see `_detached`
        factor = _without_rows(term.factor, (apart & score.plates) - rowwise, weights, axes)
        onto = axes.ordered({*factor.axes, *score.axes})
        value = aligned(factor.value, factor.axes, onto) * aligned(score.value, score.axes, onto)
        products.append(Factor(value, onto, factor.plates | score.plates, score.origin))
    # Takes the gradient of -log q out of the bound: it is 0 in expectation.
    products.append(factor_of(site, site.compute_log_prob(), axes))
    found: TensorBase | float = 0.0
    for factor in means(products, weights, axes):
        found = found + factor.value
    return as_tensor(found)


def _without_rows(
    factor: Factor, plates: set[str], weights: Mapping[int, Factor], axes: Axes
) -> Factor:
    """A factor averaged over the variables in `plates`, and summed over their rows."""
    if not plates:
        return factor
    for v in sorted(weights, reverse=True):
        if v in factor.axes and axes.plates[v] & plates:
            factor = expect(factor, v, weights[v], axes)
    return sum_plates(factor, plates, axes)
