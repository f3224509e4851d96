"""What `fit` says of its draws: a verdict in words, and whether to believe them.

Chains are judged by their diagnostics, approximations by their importance weights, and particles by
the one or the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.checks import diagnose
from probtorch.diagnostics.psis import pareto_k_limit
from probtorch.infer.plans.facts import Facts
from probtorch.infer.results import SampledDraws
from probtorch.infer.sequential.weighted_draws import WeightedDraws
from probtorch.infer.vi.guide_quality import LARGEST_SD_RATIO, verdict

__all__ = ["JUDGES", "is_trusted"]

# What weights of the prior's draws have to be worth.
ENOUGH, EVEN = 400, 0.25
# Ratios with a larger k have no variance: the limit of `pareto_k_limit` is that of weighted means
# that still converge, not of an approximation that nobody has looked at.
TRUSTED_K = 0.5


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


JUDGES: Mapping[str, Callable[[SampledDraws, Facts], tuple[str, bool]]] = {
    "particles": _of_particles,
    "exact": _of_table,
    "nuts": _of_chains,
    "replica_exchange": _of_chains,
    "gibbs": _of_chains,
    "pathfinder": _of_approximation,
    "svi": _of_approximation,
}

explain_calls(globals())
