"""How much the gradient of a fit varies, and what it costs, by estimator: `SVI.gradient_variance`.

Each estimator is put in turn on the sites of the guide to which it applies, and the gradients of
many independent estimates are compared. Nothing moves: parameters, gradients, generators and the
objective's memory are as before.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

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
    from probtorch.core.tensor_base import TensorBase
    from probtorch.estimators.protocol import Estimator


__all__ = ["AS_WRITTEN", "DEFAULTS", "Measure", "at_rest", "gradient_variance", "latent_sites"]

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


# What is put on all sites to which it applies, or on some by their names.
Entry: TypeAlias = "str | Estimator | Mapping[str, str | Estimator]"


def gradient_variance(
    fit: FitMemory,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    estimators: Sequence[Entry] | None = None,
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
    rows = []
    sites = latent_sites(fit, args, kwargs)
    with at_rest(fit, args, kwargs) as measure:
        several = getattr(objective, "num_particles", 1) > 1
        for name, choice in _choices(sites, estimators, several):
            rows.append(measure(name, choice, num_samples)[0])
    return VarianceTable(tuple(sorted(rows, key=lambda row: row.total)), num_samples)


# From a name, estimators by site and a number of estimates to a row, and runs of the guide.
Measure: TypeAlias = Callable[[str, Mapping[str, "Estimator"], int], tuple[VarianceRow, float]]


@contextlib.contextmanager
def at_rest(
    fit: FitMemory, args: tuple[object, ...], kwargs: dict[str, object]
) -> Iterator[Measure]:
    """Context manager: yields a function that measures a choice; all is as before afterwards.

    Parameters
    ----------
    fit : FitMemory
    args, kwargs
        What model and guide are called with.

    Yields
    ------
    measure : callable
        ``measure(name, estimators by site, num_samples)`` returns a row, and how often an estimate
        runs the guide. Each choice begins with the same draws.
    """
    objective = as_objective(fit.objective)
    fit.updater.adopt(dict(fit.params.named_parameters()))
    leaves = dict(fit.updater.parameters)
    grads = {name: leaf.grad for name, leaf in leaves.items()}
    generators, memory = fit.generator_states(), objective.state_dict()

    def measure(
        name: str, choice: Mapping[str, Estimator], num_samples: int
    ) -> tuple[VarianceRow, float]:
        fit.set_generator_states(generators)
        objective.load_state_dict(memory)
        return _row(fit, args, kwargs, name, choice, leaves, num_samples)

    try:
        yield measure
    finally:
        fit.set_generator_states(generators)
        objective.load_state_dict(memory)
        fit.feed.looked()
        for name, leaf in leaves.items():
            leaf.grad = grads[name]


class _Choose(Handler):
    """Put estimators on sites, over what they ask for themselves."""

    def __init__(self, estimators: Mapping[str, str | Estimator]) -> None:
        super().__init__()
        self.estimators = estimators
        self.drawn: collections.Counter[str] = collections.Counter()

    def on_sample(self, site: Site) -> None:
        """Set the choice, and count the draw."""
        self.drawn[site.name] += 1
        if site.name in self.estimators:
            site.infer["estimator"] = self.estimators[site.name]


def latent_sites(
    fit: FitMemory, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, Site]:
    """Return the guide's latent sites by name, from a run that leaves no trace."""
    fit.resume(args, kwargs)
    with no_grad(), fit.active(), same_draws():
        allow = bool(getattr(fit.objective, "allow_missing", False))
        run = run_pair(fit.model, fit.guide, args, kwargs, allow_missing=allow)
    return {
        name: site
        for name, site in run.guide.nodes.items()
        if site.kind == "sample" and not site.observed and hasattr(site.fn, "log_prob")
    }


def _choices(
    sites: dict[str, Site], estimators: Sequence[Entry] | None, several: bool
) -> Iterator[tuple[str, dict[str, Estimator]]]:
    """Yield (name, estimators by site) for each row; the first is the guide as it is."""
    yield AS_WRITTEN, {}
    # Where a draw has a path, only who names the site wants to do without it.
    scored = {n: s for n, s in sites.items() if not s.fn.has_rsample} or sites
    lenient = estimators is None
    entries: list[Entry] = list(DEFAULTS if estimators is None else estimators)
    if lenient and several:
        entries.insert(1, ScoreFunction("leave_one_out"))
    for entry in entries:
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


def _shown(entry: Estimator | str) -> str:
    return entry if isinstance(entry, str) else repr(entry)


def _unknown(name: str, sites: dict[str, Site]) -> ArgumentError:
    return ArgumentError(
        "SVI.gradient_variance(estimators=...)",
        expected=f"latent sites of the guide: {', '.join(map(repr, sites)) or 'none'}",
        got=repr(name),
        fix="name a site of the guide, or give an estimator for all of them",
    )


def _row(
    fit: FitMemory,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    name: str,
    choice: Mapping[str, Estimator],
    leaves: Mapping[str, TensorBase],
    num_samples: int,
) -> tuple[VarianceRow, float]:
    found: dict[str, list[np.ndarray]] = {leaf: [] for leaf in leaves}
    objective = as_objective(fit.objective)
    seconds, chosen = 0.0, _Choose(choice)
    for _ in range(num_samples):
        for leaf in leaves.values():
            leaf.grad = None
        start = time.perf_counter()
        with enable_grad(), fit.active(), chosen:
            objective.loss_and_grads(fit.model, fit.guide, *args, **kwargs)
        seconds += time.perf_counter() - start
        for key, leaf in leaves.items():
            g = leaf.grad
            host = np.zeros(leaf.array.shape) if g is None else to_host(g.array)
            found[key].append(np.asarray(host, np.float64).copy())
    gradients = {key: np.stack(gs) for key, gs in found.items()}
    unbiased = all(estimator.unbiased for estimator in choice.values())
    # Guide and model state each latent site once a run; what the guide alone states is less often.
    runs = max(chosen.drawn.values(), default=0) / (2.0 * num_samples)
    return VarianceRow.of(name, unbiased, gradients, seconds / num_samples), runs
