"""What `fit` says of its draws: a verdict in words, and whether to believe them.

Chains are judged by their diagnostics, approximations by their importance weights, and particles by
the one or the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.checks import diagnose
from probtorch.diagnostics.psis import pareto_k_limit
from probtorch.infer.plans.facts import Facts
from probtorch.infer.results import SampledDraws
from probtorch.infer.sequential.weighted_draws import WeightedDraws
from probtorch.infer.vi.guide_quality import LARGEST_SD_RATIO, verdict

__all__ = ["JUDGES", "SHARES", "is_trusted"]

# What weights of the prior's draws have to be worth.
ENOUGH, EVEN = 400, 0.25
# Ratios with a larger k have no variance: the limit of `pareto_k_limit` is that of weighted means
# that still converge, not of an approximation that nobody has looked at.
TRUSTED_K = 0.5
# What tells shares of modes that replicas do not: particles that begin in all of them.
SHARES = (
    "weigh particles that begin in all modes: fit(model, ..., engine=lambda m: SMC(NUTS(m), 4000, "
    "reference=fitted.plan.facts.reference, num_steps=5))"
)
# Below it the noise of an estimate by rows is large, and so may be the bias that it leaves.
ROWS_ACCEPTED = 0.5


def is_trusted(found: WeightedDraws) -> bool:
    """Whether draws of the prior are worth enough; weights that are nearly equal have no tail."""
    even = found.ess >= EVEN * found.log_ratios.size
    return found.ess >= ENOUGH and (even or not found.pareto_k > TRUSTED_K)


def _of_chains(draws: SampledDraws, facts: Facts) -> tuple[str, bool]:
    found = [finding for finding in diagnose(draws) if finding.category is not None]
    if not found:
        return (
            "no sign of trouble: chains agree, and draws are enough for means and quantiles",
            True,
        )
    return "; ".join(f"{finding.subject} ({finding.fix})" for finding in found), False


def _of_replicas(draws: SampledDraws, facts: Facts) -> tuple[str, bool]:
    said, good = _of_chains(draws, facts)
    doubt = "" if facts.found is None else facts.found.doubt(draws.positions)
    if not doubt:
        return said, good
    return f"{doubt} ({SHARES})" + ("" if good else f"; {said}"), False


def _of_approximation(draws: SampledDraws, facts: Facts) -> tuple[str, bool]:
    k = float(draws.attrs.get("pareto_k", math.nan))
    good = k <= min(TRUSTED_K, pareto_k_limit(max(draws.num_draws, 2)))
    wide = float(draws.attrs.get("sd_ratio", math.nan))
    if "log_weight" in draws.sample_stats and wide > LARGEST_SD_RATIO:
        good = False
    if good:
        return verdict(draws), True
    # Parameters and subsamples have no other method.
    alone = facts.params or facts.subsampled
    cure = "give a guide= that fits better" if alone else "compare with method='nuts'"
    return f"{verdict(draws)} Not to be relied on: {cure}.", False


def _of_table(draws: SampledDraws, facts: Facts) -> tuple[str, bool]:
    return f"exact: {draws.num_draws} independent draws of the posterior", True


def _of_particles(draws: SampledDraws, facts: Facts) -> tuple[str, bool]:
    if draws.attrs.get("inference_method") == "ParticleGibbs":
        return _of_chains(draws, facts)
    return (
        f"draws of the prior, whose weights are worth {draws.attrs['weighted_ess']:.0f} of them",
        True,
    )


def _of_rows(draws: SampledDraws, facts: Facts) -> tuple[str, bool]:
    said, good = _of_chains(draws, facts)
    rate = float(np.mean(draws.sample_stats["rows_acceptance_rate"]))
    if rate < ROWS_ACCEPTED:
        poor = f"proposed rows are accepted in {rate:.0%}: polynomials are poor stand-ins for them"
        cure = "give a larger subsample_size, or engine=lambda m: HMCECS(NUTS(m), num_blocks=10)"
        return f"{poor} ({cure})" + ("" if good else f"; {said}"), False
    return said, good


def _of_given(draws: SampledDraws, facts: Facts) -> tuple[str, bool]:
    if {"pareto_k", "sd_ratio"} <= set(draws.attrs):
        return _of_approximation(draws, facts)
    if "weighted_ess" in draws.attrs and "pareto_k" in draws.attrs:
        ess, k = float(draws.attrs["weighted_ess"]), float(draws.attrs["pareto_k"])
        said = f"weights are worth {ess:.0f} draws, the Pareto k of their tail is {k:.2f}"
        return said, ess >= ENOUGH and not k > TRUSTED_K
    if draws.num_chains > 1 or {"acceptance_rate", "moved"} & set(draws.sample_stats):
        return _of_chains(draws, facts)
    told = draws.attrs.get("engine_warnings", ())
    if told:
        return "; ".join(told), False
    return "the engine warned of nothing; one chain cannot be compared with others", True


JUDGES: Mapping[str, Callable[[SampledDraws, Facts], tuple[str, bool]]] = {
    "particles": _of_particles,
    "exact": _of_table,
    "nuts": _of_chains,
    "replica_exchange": _of_replicas,
    "gibbs": _of_chains,
    "hmcecs": _of_rows,
    "dadvi": _of_approximation,
    "given": _of_given,
    "pathfinder": _of_approximation,
    "svi": _of_approximation,
}

explain_calls(globals())
