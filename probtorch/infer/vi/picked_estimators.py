"""`pick_estimators`: for each site without a path, the gradient estimator that costs least.

``Trace_ELBO(estimator="auto")`` asks for it: before its first step SVI measures, site by site, how
much the gradient in the parameters of the site's distribution varies with each estimator that is
unbiased and applies, and what an estimate costs in runs of the guide. Half the variance is worth
twice the cost, since two estimates may be averaged: the least product wins. Runs are counted, not
timed, so the same fit picks the same everywhere. Nothing else moves, generators included.

gradient_variance.py measures; the objective remembers what was picked, and saves it with its state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.core.tree import record
from probtorch.errors import ProbtorchError
from probtorch.estimators.registry import refusal
from probtorch.infer.objectives.elbo import LEAVE_ONE_OUT, Trace_ELBO, estimator_called
from probtorch.infer.objectives.loss_function import as_objective
from probtorch.infer.objectives.runs import run_pair, same_draws
from probtorch.infer.vi.gradient_variance import (
    AS_WRITTEN,
    DEFAULTS,
    Measure,
    at_rest,
    latent_sites,
)
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution
    from probtorch.estimators.protocol import Estimator
    from probtorch.infer.vi.fit_memory import FitMemory

__all__ = ["Measured", "Picks", "pick_estimators", "waits_for_a_choice"]

# A first look at few gradients tells variances to a factor of 2; who then costs more than SURELY
# times the least is out. The rest is told to 35 %.
FEW, MANY, SURELY = 6, 16, 6.0
# Steps with reruns are taken in Python. Between what that costs a large network (1.4 times) and a
# model of a few numbers (700 times), see docs/internals/decisions/vi.md.
EAGER = 10.0
# Who takes more runs than this for one estimate is left out, however exact it is.
MOST_RUNS = 64.0


@record
class Measured:
    """One estimator at one site.

    Attributes
    ----------
    site, estimator : str
    variance : float
        Of the gradient, summed over the elements of the parameters of the site's distribution; nan
        where it was not measured.
    runs : float
        Of the guide, per estimate.
    eager : bool
        Whether it makes steps eager that would be native without it, by runs of its own.
    refused : str
        Why it was not measured, if so.
    """

    site: str
    estimator: str
    variance: float = math.nan
    runs: float = math.nan
    eager: bool = False
    refused: str = ""

    @property
    def cost(self) -> float:
        """Variance times runs, ten times that where steps turn eager; infinite if unknown."""
        known = not self.refused and math.isfinite(self.variance)
        return self.variance * self.runs * (EAGER if self.eager else 1.0) if known else math.inf


@record
class Picks:
    """The estimators that were picked, and what they were compared with.

    Attributes
    ----------
    chosen : dict of str to str
        Names of estimators by site; "as written" leaves the site to the objective.
    rows : tuple of Measured
    """

    chosen: dict[str, str]
    rows: tuple[Measured, ...]

    def __repr__(self) -> str:
        lines = []
        for site, chosen in self.chosen.items():
            others = [r for r in self.rows if r.site == site]
            lines.append(f"estimator of site {site!r}: {chosen}")
            for row in sorted(others, key=lambda r: r.cost):
                found = row.refused or f"variance {row.variance:.3g}, {row.runs:.3g} runs"
                lines.append(f"  {row.estimator}: {found}")
        return "\n".join(lines) or "no site of the guide without a pathwise gradient"


def waits_for_a_choice(fit: FitMemory) -> bool:
    """Whether the objective of a fit is to be given its estimators before the next step."""
    objective = fit.objective
    return (
        isinstance(objective, Trace_ELBO)
        and objective.estimator == "auto"
        and objective.picked is None
    )


def pick_estimators(
    fit: FitMemory, args: tuple[object, ...], kwargs: dict[str, object]
) -> Picks | None:
    """Measure at the present parameters, and give the objective what it is to use.

    Parameters
    ----------
    fit : FitMemory
        Whose objective is a `Trace_ELBO`; with another one nothing is done.
    args, kwargs
        What model and guide are called with.

    Returns
    -------
    Picks or None
    """
    objective = as_objective(fit.objective)
    if not isinstance(objective, Trace_ELBO):
        return None
    objective.pick({})
    rows: list[Measured] = []
    chosen: dict[str, str] = {}
    sites = latent_sites(fit, args, kwargs)
    with at_rest(fit, args, kwargs) as measure:
        leaves, eager = _leaves(fit, args, kwargs), False
        for name, site in sites.items():
            own = site.infer.get("estimator") is not None
            if site.fn.has_rsample or own or not leaves.get(name):
                continue
            race = _Race(measure, name, leaves[name], _built(chosen), eager)
            found = race.run(_candidates(site.fn, objective.num_particles))
            rows += found
            best = min(found, key=lambda row: row.cost)
            chosen[name], eager = best.estimator, eager or best.eager
    objective.pick({n: e for n, e in chosen.items() if e != AS_WRITTEN})
    return Picks(chosen, tuple(rows))


def _leaves(
    fit: FitMemory, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, list[str]]:
    """Names of the parameters that the distribution of each site of the guide is a function of."""
    named = fit.updater.parameters
    allow = bool(getattr(fit.objective, "allow_missing", False))
    with enable_grad(), fit.active(), same_draws():
        run = run_pair(fit.model, fit.guide, args, kwargs, allow_missing=allow)
        found = {}
        for name, site in run.guide.nodes.items():
            if not site.has_density:
                continue
            density = total(site.compute_log_prob())
            if density.requires_grad:
                slopes = grad(density, list(named.values()), retain_graph=True, allow_unused=True)
                found[name] = [n for n, g in zip(named, slopes, strict=True) if g is not None]
    return found


def _built(chosen: dict[str, str]) -> dict[str, Estimator]:
    return {n: estimator_called(e) for n, e in chosen.items() if e != AS_WRITTEN}


def _candidates(fn: Distribution, num_particles: int) -> list[str]:
    """Names of what applies, the objective's own first."""
    names = [LEAVE_ONE_OUT] if num_particles > 1 else []
    names += [n for n in DEFAULTS if n != "score_function"]
    return [AS_WRITTEN, *(n for n in names if refusal(estimator_called(n), fn) is None)]


@dataclass
class _Race:
    """Estimators of one site, measured in rounds of which each keeps the better ones."""

    measure: Measure
    site: str
    leaves: list[str]
    others: dict[str, Estimator]
    eager: bool

    def run(self, candidates: list[str]) -> list[Measured]:
        """Return what was measured, the objective's own estimator first."""
        found = {name: self._once(name, 1, math.inf) for name in candidates}
        least = found[AS_WRITTEN].runs
        for count in (FEW, MANY):
            best = min(row.cost for row in found.values())
            for name, row in found.items():
                if not row.refused and (count == FEW or row.cost <= SURELY * best):
                    found[name] = self._once(name, count, least)
        return list(found.values())

    def _once(self, name: str, count: int, least: float) -> Measured:
        choice = dict(self.others)
        if name != AS_WRITTEN:
            choice[self.site] = estimator_called(name)
        try:
            row, runs = self.measure(name, choice, count)
        except ProbtorchError as error:
            # What applies to the distribution may not bear its plates, its mask or its size.
            return Measured(self.site, name, refused=str(error).split("\n", 1)[0])
        if runs > MOST_RUNS:
            return Measured(self.site, name, runs=runs, refused=f"{runs:.3g} runs an estimate")
        variance = sum(float(row.variances[leaf].sum()) for leaf in self.leaves)
        return Measured(self.site, name, variance, runs, runs > least and not self.eager)
