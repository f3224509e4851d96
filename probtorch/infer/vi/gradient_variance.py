"""How much the gradient of a fit varies, and what it costs, by estimator: `SVI.gradient_variance`.

Each estimator is put in turn on the sites of the guide to which it applies, and the gradients of
many independent estimates are compared. Nothing moves: parameters, gradients, generators and the
objective's memory are as before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.modes import enable_grad, no_grad
from probtorch.backends.registry import to_host
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, InferenceError
from probtorch.estimators.registry import as_estimator, check, refusal
from probtorch.estimators.score_function import ScoreFunction
from probtorch.estimators.variance import VarianceRow, VarianceTable
from probtorch.infer.objectives.loss_function import as_objective
from probtorch.infer.objectives.runs import run_pair, same_draws
from probtorch.infer.vi.fit_memory import FitMemory

if TYPE_CHECKING:
    from probtorch.estimators.finite import Enumerate
    from probtorch.estimators.protocol import Estimator


__all__ = ["AS_WRITTEN", "gradient_variance"]

# The row of the guide with the estimators that it states itself.
AS_WRITTEN = "as written"

# What is compared unless told: unbiased, and content with the values of the support.
DEFAULTS = (
    "score_function",
    "enumerate",
    "sum_and_sample",
    "unordered_set",
    "arm",
    "disarm",
    "measure_valued",
)


def gradient_variance(
    fit: FitMemory,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    estimators: Sequence[str | Estimator] | None = None,
    num_samples: int = 100,
) -> VarianceTable:
    """Return the gradient variance of several estimators; see `SVI.gradient_variance`.

    Parameters
    ----------
    fit : FitMemory
    args, kwargs
        What model and guide are called with.
    estimators : sequence, optional
        Estimators, names, or dicts of them by site.
    num_samples : int, at least 2

    Returns
    -------
    VarianceTable
    """
    if isinstance(num_samples, bool) or not num_samples >= 2:
        raise ArgumentError(
            "SVI.gradient_variance(num_samples=...)",
            expected="a number of at least 2",
            got=repr(num_samples),
            fix="100 give a variance to about 15 %",
        )
    objective = fit.objective
    if not getattr(objective, "estimators_per_site", False):
        raise InferenceError(
            "SVI.gradient_variance",
            expected="an objective that takes estimators per site: Trace_ELBO, TraceGraph_ELBO",
            got=type(objective).__name__,
            fix="compare estimators with SVI(model, guide, optim, Trace_ELBO())",
        )
    objective = as_objective(objective)
    fit.resume(args, kwargs)
    sites = _latent_sites(fit, args, kwargs)
    fit.updater.adopt(dict(fit.params.named_parameters()))
    leaves = dict(fit.updater.parameters)
    grads = {name: leaf.grad for name, leaf in leaves.items()}
    generators, memory = fit.generator_states(), objective.state_dict()
    rows = []
    try:
        for name, choice in _choices(sites, estimators, objective):
            fit.set_generator_states(generators)
            objective.load_state_dict(memory)
            rows.append(_row(fit, args, kwargs, name, choice, leaves, num_samples))
    finally:
        fit.set_generator_states(generators)
        objective.load_state_dict(memory)
        fit.feed.looked()
        for name, leaf in leaves.items():
            leaf.grad = grads[name]
    return VarianceTable(tuple(sorted(rows, key=lambda row: row.total)), num_samples)


class _Choose(Handler):
    """Put estimators on sites, over what they ask for themselves."""

    def __init__(self, estimators: Mapping[str, str | Estimator]) -> None:
        super().__init__()
        self.estimators = estimators

    def on_sample(self, site: Site) -> None:
        """Set the choice."""
        if site.name in self.estimators:
            site.infer["estimator"] = self.estimators[site.name]


def _latent_sites(
    fit: FitMemory, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, Site]:
    """The guide's latent sites, from a run that leaves no trace."""
    with no_grad(), fit.active(), same_draws():
        allow = bool(getattr(fit.objective, "allow_missing", False))
        run = run_pair(fit.model, fit.guide, args, kwargs, allow_missing=allow)
    return {
        name: site
        for name, site in run.guide.nodes.items()
        if site.kind == "sample" and not site.observed and hasattr(site.fn, "log_prob")
    }


def _choices(sites, estimators, objective):
    """Yield (name, estimators by site) for each row; the first is the guide as it is."""
    yield AS_WRITTEN, {}
    # Where a draw has a path, only who names the site wants to do without it.
    scored = {n: s for n, s in sites.items() if not s.fn.has_rsample} or sites
    if estimators is None:
        estimators = [*DEFAULTS]
        if objective.num_particles > 1:
            estimators.insert(1, ScoreFunction("leave_one_out"))
        lenient = True
    else:
        lenient = False
    for entry in estimators:
        if isinstance(entry, Mapping):
            chosen = {name: as_estimator(given) for name, given in entry.items()}
            for name, estimator in chosen.items():
                if name not in sites:
                    raise _unknown(name, sites)
                check(estimator, sites[name].fn, f"site {name!r}: ", sites[name].location)
            yield ", ".join(f"{n}: {_shown(e)}" for n, e in entry.items()), chosen
            continue
        estimator = as_estimator(entry)
        chosen = {n: estimator for n, s in scored.items() if refusal(estimator, s.fn) is None}
        if chosen:
            yield _shown(entry), chosen
        elif not lenient:
            name, site = next(iter(scored.items()))
            check(estimator, site.fn, f"site {name!r}: ", site.location)


def _shown(entry: Enumerate | ScoreFunction | str) -> str:
    return entry if isinstance(entry, str) else repr(entry)


def _unknown(name: str, sites: dict[str, Site]) -> ArgumentError:
    return ArgumentError(
        "SVI.gradient_variance(estimators=...)",
        expected=f"latent sites of the guide: {', '.join(map(repr, sites)) or 'none'}",
        got=repr(name),
        fix="name a site of the guide, or give an estimator for all of them",
    )


def _row(fit, args, kwargs, name, choice, leaves, num_samples):
    found: dict[str, list[np.ndarray]] = {leaf: [] for leaf in leaves}
    seconds = 0.0
    for _ in range(num_samples):
        for leaf in leaves.values():
            leaf.grad = None
        start = time.perf_counter()
        with enable_grad(), fit.active(), _Choose(choice):
            fit.objective.loss_and_grads(fit.model, fit.guide, *args, **kwargs)
        seconds += time.perf_counter() - start
        for key, leaf in leaves.items():
            g = leaf.grad
            host = np.zeros(leaf.array.shape) if g is None else to_host(g.array)
            found[key].append(np.asarray(host, np.float64).copy())
    gradients = {key: np.stack(gs) for key, gs in found.items()}
    unbiased = all(estimator.unbiased for estimator in choice.values())
    return VarianceRow.of(name, unbiased, gradients, seconds / num_samples)
