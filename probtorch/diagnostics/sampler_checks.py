"""What a sampler tells of itself: divergences, saturated trees, energy, equations left unsolved.

`checks.py` asks all of these; each returns a `Finding`, or None where nothing is wrong. A finding
names the parameters that show it most, because the cure is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from probtorch.core.typed import Tree
from probtorch.diagnostics.columns import normal_scores
from probtorch.diagnostics.convergence import bfmi
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.entrywise import per_entry
from probtorch.diagnostics.findings import (
    ConvergenceWarning,
    DivergenceWarning,
    EnergyWarning,
    Finding,
    InferenceWarning,
    TreeDepthWarning,
)
from probtorch.diagnostics.judged_entries import (
    NAMED,
    Entries,
    counts,
    listed,
    most,
    percent,
)

__all__ = [
    "divergences",
    "diverging",
    "energy",
    "excess_variance",
    "outside_support",
    "replicas",
    "treedepth",
    "unsolved",
]

# Divergent draws lie in a peak of the curvature if it is this share of what leapfrog can follow,
# and this many times the usual one. Measured: 1.0 to 1.8, and 4 to 14 times (log-scale Gaussian
# processes, funnels); 0.03, and 1.3 times (a wall).
PEAK, PEAK_RATIO = 0.25, 3.0
# Share by which the variances of a kernel that rejects nothing may be too large.
EXCESS = 0.1
# Share of proposals that may be rejected because their equations were not solved: in funnels, where
# draws are right all the same, it is 0.05 to 0.2.
UNSOLVED = 0.25
# Draws for each replica of a run in which it should have been at 1.
TRAVELS = 50


def diverging(draws: Draws, every: int) -> np.ndarray | None:
    """Which of the draws that are judged diverge; None if all do, or none."""
    diverging = draws.sample_stats.get("diverging")
    if diverging is None:
        return None
    seen = np.asarray(diverging, bool)[:, ::every]
    return seen if seen.any() and not seen.all() else None


def divergences(
    draws: Draws,
    entries: Entries,
    allowed: int,
    seen: np.ndarray | None,
    shifts: np.ndarray | None,
) -> Finding | None:
    """Trajectories that left the level set, and the parameters they did it at."""
    diverging = draws.sample_stats.get("diverging")
    if diverging is None:
        return None
    diverging = np.asarray(diverging, bool)
    count = int(diverging.sum())
    if count <= allowed:
        return None
    where = ""
    suspects: Sequence[tuple[str, np.ndarray]] = ()
    if seen is not None and shifts is not None:
        suspects = most(entries, shifts)
        medians = (
            f"{label} ({np.median(x[seen]):.3g} there, {np.median(x[~seen]):.3g} elsewhere)"
            for label, x in suspects
        )
        where = "; divergent draws differ most, by their medians, in " + ", ".join(medians)
    parameters = tuple(label for label, _ in suspects)
    target = draws.attrs.get("target_accept_prob", draws.attrs.get("target_accept"))
    aims = [] if target is None else sorted(set(np.ravel(target).tolist()))
    now = f" (now {' or '.join(map(str, aims))})" if aims else ""
    return Finding(
        kind="divergence",
        subject=f"{count} divergent transition{'s' * (count != 1)} after warm-up",
        expected="none" if allowed == 0 else f"at most {allowed}",
        got=f"{count} of {diverging.size} draws ({percent(count / diverging.size)})"
        f"{counts(diverging)}{where}{_peak(draws.attrs)}",
        fix=_cure_for_divergences(draws.attrs, parameters, now),
        parameters=parameters,
        category=DivergenceWarning,
    )


def excess_variance(draws: Draws) -> Finding | None:
    """Of kernels that accept everything: what steps and noise of the gradients add."""
    told = draws.sample_stats.get("excess_variance")
    if told is None:
        return None
    share = float(np.mean(told))
    if not share > EXCESS:
        return None
    return Finding(
        kind="excess_variance",
        subject="nothing is rejected, and the draws are too wide",
        expected=f"variances that are at most {percent(EXCESS)} too large",
        got=f"about {percent(share)} too large, by the gradients at the draws",
        fix="a smaller step_size, a larger subsample_size, control_variates=True, or SGNHT, whose "
        "friction takes up the noise",
        category=InferenceWarning,
    )


def replicas(draws: Draws) -> Finding | None:
    """Of replica exchange: replicas that should have come to 1 long ago."""
    told, powers = draws.sample_stats.get("replica"), draws.attrs.get("inverse_temperatures")
    if told is None or powers is None or np.shape(told)[-1] < TRAVELS * len(powers):
        return None
    missing = [len(powers) - len(np.unique(chain)) for chain in np.asarray(told)]
    stranded = [i for i, count in enumerate(missing) if count]
    if not stranded:
        return None
    worst = int(np.argmax(missing))
    rate = ""
    if "swap_rate" in draws.sample_stats:
        rate = f"; neighbours swap in {percent(float(np.mean(draws.sample_stats['swap_rate'])))}"
    return Finding(
        kind="replicas",
        subject="replicas do not travel: modes may be missing, or have the wrong shares",
        expected=f"each of {len(powers)} replicas at 1 now and then, in {np.shape(told)[-1]} draws",
        got=f"{missing[worst]} of them never were in chain {worst}{rate}",
        fix=f"take more replicas: inverse_temperatures=np.geomspace(1.0, {powers[-1]:.3g}, "
        f"{2 * len(powers)}), adapt_temperatures=True",
        category=ConvergenceWarning,
    )


def unsolved(draws: Draws) -> Finding | None:
    """Of implicit integrators: proposals rejected because equations of a step were not solved."""
    told = draws.sample_stats.get("unsolved")
    if told is None:
        return None
    told = np.asarray(told, bool)
    share = float(told.mean())
    if not share > UNSOLVED:
        return None
    return Finding(
        kind="unsolved",
        subject="many proposals are rejected because a step of theirs has no solution",
        expected=f"at most {percent(UNSOLVED)} of the draws; that biases none, and costs them",
        got=f"{int(told.sum())} of {told.size} draws ({percent(share)}){counts(told)}",
        fix="a smaller step_size (a higher target_accept_prob), a smaller alpha, or more "
        "max_iterations",
        category=InferenceWarning,
    )


def outside_support(draws: Draws) -> Finding | None:
    """Of full conditionals by the user: draws without a density, for which the old ones stayed."""
    told = draws.sample_stats.get("outside_support")
    if told is None or not np.any(told):
        return None
    told = np.asarray(told, bool)
    count = int(told.sum())
    return Finding(
        kind="outside_support",
        subject="the function of a FullConditional draws values without a density",
        expected="draws of the block's distribution given all other sites, inside its support",
        got=f"none in {count} of {told.size} draws ({percent(count / told.size)}){counts(told)}, "
        "where the old values stayed: the draws are not those of the posterior",
        fix="compare the function with the model: it is another distribution, or other parameters",
        category=InferenceWarning,
    )


def _peak(attrs: Mapping[str, Tree]) -> str:
    """Says, where divergent draws lie in a peak of the curvature, how high it is; else empty."""
    there = attrs.get("curvature_at_divergences", 0.0)
    elsewhere = attrs.get("curvature_elsewhere", np.inf)
    if there < max(PEAK, PEAK_RATIO * elsewhere):
        return ""
    return (
        f"; the curvature there is {there:.3g} times what the step size can follow "
        f"({elsewhere:.2g} elsewhere)"
    )


def _cure_for_divergences(attrs: Mapping[str, Tree], parameters: Sequence[str], now: str) -> str:
    """What to do, by what the run says of itself.

    That a site is centred names the reason itself; a peak of the curvature is what it is met by, as
    for other reasons. Sites are None where they are not known.
    """
    centred = attrs.get("centred_sites")
    raised = f"raise target_accept_prob{now} towards 0.99"
    form = "non-centred (loc + scale * z with z ~ Normal(0, 1))"
    near = f", starting around {parameters[0]}" if parameters else ""
    which = f" for {', '.join(parameters)}" if parameters else ""
    if attrs.get("adaptive_steps"):
        raised = (
            f"raise max_halvings (now {attrs.get('max_halvings')})"
            if _peak(attrs)
            else "look for a jump or a wall of the log density, which steps of any size run into"
        )
    elif _peak(attrs) and not centred:
        raised = (
            "give NUTS(..., adaptive_steps=True), which divides steps where the curvature peaks; a "
            f"higher target_accept_prob{now} makes all of them small"
        )
    if centred is None:
        return f"write hierarchical sites {form}{near}, or {raised}"
    if centred:
        return f"write {listed(list(centred))} {form}, or {raised}"
    return f"{raised}; if some stay, give stronger priors or another parameterisation{which}"


def treedepth(
    draws: Draws, quality: tuple[list[str], np.ndarray, np.ndarray], share: float
) -> Finding | None:
    """Trajectories that reached the greatest length."""
    reached = draws.sample_stats.get("reached_max_treedepth")
    if reached is None or not np.any(reached):
        return None
    count, size = int(np.count_nonzero(reached)), np.size(reached)
    labels, r_hat, ess = quality
    ess = np.where(np.isfinite(ess) & ~np.isnan(r_hat), ess, np.inf)
    slowest = [i for i in np.argsort(ess, kind="stable")[:NAMED] if np.isfinite(ess[i])]
    depth = draws.attrs.get("max_treedepth", draws.attrs.get("max_tree_depth"))
    if depth is None and "tree_depth" in draws.sample_stats:
        depth = int(np.max(draws.sample_stats["tree_depth"]))
    at = "" if depth is None else f" of {depth}"
    mixed = ", ".join(f"{labels[i]} (effective size {ess[i]:.0f})" for i in slowest)
    return Finding(
        kind="treedepth",
        subject=f"trajectories reached the maximum tree depth{at}",
        expected=f"at most {percent(share)} of the draws",
        got=f"{count} of {size} draws ({percent(count / size)})"
        + (f"; slowest to mix: {mixed}" if mixed else ""),
        fix="bring parameters to similar scales, or decorrelate them (dense mass matrix), and only "
        "then raise max_tree_depth",
        parameters=tuple(labels[i] for i in slowest),
        category=TreeDepthWarning if count > share * size else None,
    )


def energy(draws: Draws, entries: Entries, bfmi_min: float, every: int) -> Finding | None:
    """Chains that move slowly between levels of energy."""
    energy = draws.sample_stats.get("energy")
    if energy is None:
        return None
    values = bfmi(energy)
    low = np.flatnonzero(values < bfmi_min)
    if not low.size:
        return None
    suspects = []
    if np.isfinite(energy).all():
        of_energy = normal_scores(np.asarray(energy, float)[None, :, ::every])[0]

        def tied_to_energy(columns: np.ndarray) -> np.ndarray:
            return np.abs((normal_scores(columns) * of_energy).mean(axis=(1, 2)))

        ties = [np.ravel(per_entry(tied_to_energy, values)) for _, values in entries]
        suspects = most(entries, np.concatenate([np.empty(0), *ties]))
    tied = ", ".join(label for label, _ in suspects)
    return Finding(
        kind="energy",
        subject="the energy is explored too slowly" + (f" ({tied})" if tied else ""),
        expected=f"E-BFMI of at least {bfmi_min} in every chain",
        got=", ".join(f"{values[chain]:.2f} in chain {chain}" for chain in low)
        + (f"; the energy goes with {tied}" if tied else ""),
        fix="lighten the tails or reparameterise these parameters, and warm up longer",
        parameters=tuple(label for label, _ in suspects),
        category=EnergyWarning,
    )
