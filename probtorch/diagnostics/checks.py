"""What is wrong with a run: findings, and the warnings that every sampler gives unasked.

`diagnose` looks for divergences, disagreeing chains, too few effective draws, saturated trees and
poor energy exploration, and returns one `Finding` for each; `warn_about` turns the serious ones
into Python warnings. A finding names the parameters that show it most, because the cure is there.
The default thresholds are those of Vehtari et al. (2021), ArviZ and Stan; all are arguments. Where
a statistic is compared with its threshold, the threshold gives way by what the statistic errs by
chance, over all parameters: so that of a thousand sound runs one is suspected, whether it has one
parameter or ten thousand (`_rhat_limits`, `_size_limit`).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.core.late import special
from probtorch.core.signatures import explained
from probtorch.diagnostics.columns import normal_scores, split
from probtorch.diagnostics.convergence import bfmi, ess_bulk
from probtorch.diagnostics.drawn import HasDraws, drawn
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.entrywise import per_entry
from probtorch.diagnostics.judged_entries import (
    NAMED,
    Entries,
    by_chain,
    columns_of,
    counts,
    entries_of,
    listed,
    most,
    out_of,
    percent,
    quality_of,
)
from probtorch.diagnostics.layout import flat_entries
from probtorch.diagnostics.relabelling import Renumbering, renumbered
from probtorch.diagnostics.stored import every_th

if TYPE_CHECKING:
    from probtorch.infer.results import SampledDraws

__all__ = [
    "ConvergenceWarning",
    "DivergenceWarning",
    "EnergyWarning",
    "Finding",
    "InferenceWarning",
    "TreeDepthWarning",
    "diagnose",
    "smallest_ess",
    "warn_about",
]

# Where a prior does not fall off, chains are lost above this R-hat, below this effective size per
# chain, or beyond this number.
LOST_RHAT, LOST_SIZE, BEYOND = 1.1, 10.0, 1e100
# A chain whose spread is this share of the others' in everything did not move; of how many draws.
STUCK_SHARE, STUCK_DRAWS = 1e-3, 20
# Trajectories of the greatest length that go this far, in standard deviations as the metric knows
# them, lead nowhere. Those of a run that works go 1 or more.
SHORT_TRAJECTORY = 0.05
# Divergent draws lie in a peak of the curvature if it is this share of what leapfrog can follow,
# and this many times the usual one. Measured: 1.0 to 1.8, and 4 to 14 times (log-scale Gaussian
# processes, funnels); 0.03, and 1.3 times (a wall).
PEAK, PEAK_RATIO = 0.25, 3.0
# How many sound runs in which any parameter at all may be suspected, of R-hat or effective size.
FALSE_ALARMS = 1e-3
# R-hat says little about halves with fewer effective draws; see `ess_per_chain`.
HALF_SIZE = 50
# Standard error of an estimated effective size n, relative to n: this over the square root of n.
# Autoregressive chains (coefficient 0.8, of 1000 draws) have 2.3 to 2.6, with a longer tail below.
SIZE_ERROR = 3.0
# Share by which the variances of a kernel that rejects nothing may be too large.
EXCESS = 0.1
# Share of proposals that may be rejected because their equations were not solved: in funnels, where
# draws are right all the same, it is 0.05 to 0.2.
UNSOLVED = 0.25
# Draws for each replica of a run in which it should have been at 1.
TRAVELS = 50
# Parameters whose draws are worked on at a time.
BLOCK = 256


class InferenceWarning(UserWarning):
    """A result of inference that is doubtful."""


class DivergenceWarning(InferenceWarning):
    """The sampler met curvature that its step size could not follow, so a region may be missing."""


class ConvergenceWarning(InferenceWarning):
    """Chains disagree, or hold too few independent draws for reliable estimates."""


class TreeDepthWarning(InferenceWarning):
    """Trajectories were cut off before they turned: correct, but slow."""


class EnergyWarning(InferenceWarning):
    """Momentum resampling explores the energy too slowly; tails may be missing."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing, about a run.

    Parameters
    ----------
    kind : str
        ``non_finite stuck divergence excess_variance replicas unsolved short_run rhat ess treedepth
        energy few_chains``.
    subject, expected, got, fix : str
        The message: what it is about, what would be right, what was found, what to do.
    parameters : tuple of str
        Labels of the parameters that show it most, worst first.
    category : type or None
        The warning it deserves; None for a note.
    """

    kind: str
    subject: str
    expected: str
    got: str
    fix: str
    parameters: tuple[str, ...] = ()
    category: type[InferenceWarning] | None = None

    def __str__(self) -> str:
        return (
            f"{self.subject}\n  expected: {self.expected}\n"
            f"  got:      {self.got}\n  fix:      {self.fix}"
        )


def warn_about(draws: Draws, *, stacklevel: int = 1, **thresholds: Any) -> list[Finding]:
    """Warn of everything serious that `diagnose` finds.

    Parameters
    ----------
    draws : Draws
        What an inference engine returned.
    stacklevel : int
        Which caller the warning names: 1 for the line that calls this function, 2 for its caller.
    **thresholds
        Passed to `diagnose`.

    Returns
    -------
    list of Finding
        All findings, notes included.

    Warns
    -----
    DivergenceWarning, ConvergenceWarning, TreeDepthWarning, EnergyWarning, InferenceWarning
        One for all serious findings, of the category of the worst: a line that names them all, and
        what to do about the worst.
    """
    findings = diagnose(draws, **thresholds)
    serious = [finding for finding in findings if finding.category is not None]
    if serious:
        worst = serious[0]
        text = str(worst).replace(worst.subject, "; ".join(f.subject for f in serious), 1)
        if len(serious) > 1:
            text += "\n  more:     probtorch.diagnostics.diagnose(draws) has all of them in full"
        warnings.warn(text, worst.category, stacklevel=stacklevel + 1)
    return findings


def smallest_ess(draws: Draws) -> float:
    """Return the smallest bulk or tail effective size of all entries that vary; inf if none do."""
    _, r_hats, sizes, _ = quality_of(entries_of(draws, None))
    sizes = sizes[~np.isnan(r_hats)]
    return float(sizes.min(initial=np.inf))


@explained("diagnose")
def diagnose(
    draws: Draws | HasDraws,
    *,
    names: str | Sequence[str] | None = None,
    every: int = 1,
    rhat_max: float = 1.01,
    ess_per_chain: int = 100,
    bfmi_min: float = 0.3,
    treedepth_share: float = 0.05,
    max_divergences: int = 0,
    min_draws: int = 100,
    min_chains: int = 4,
) -> list[Finding]:
    """Look for everything that makes draws doubtful.

    Parameters
    ----------
    draws : Draws, or what has some
        What an inference engine returned.
    names : str or sequence of str, optional
        Which variables to judge; all of the posterior by default.
    every : int
        Judge variables by every so many-th draw, for draws that fill a disk. What the sampler
        tells, such as divergences, is counted in all.
    rhat_max : float
        Largest acceptable rank-normalised split R-hat, where it is more than chance explains.
    ess_per_chain : float
        Smallest acceptable bulk and tail effective sample size, times the number of chains; less
        what its estimate may err by.
    bfmi_min : float
        Smallest acceptable E-BFMI of a chain.
    treedepth_share : float
        Share of draws that may reach the maximum tree depth before it is more than a note.
    max_divergences : int
        Number of divergences to let pass.
    min_draws : int
        With fewer draws per chain one finding says so, with the worst parameter, instead of
        findings on R-hat and effective size, which would mostly be noise.
    min_chains : int
        With fewer chains a note says so.

    Returns
    -------
    list of Finding
        The most serious kind first; empty when nothing is wrong.

    Raises
    ------
    ArgumentError
        If a name is not in the posterior.

    Notes
    -----
    Entries that never vary (structural zeros, constants) are not judged.
    """
    draws = drawn(draws, "diagnose")
    entries = entries_of(draws, names)
    if every > 1:
        entries = [(labels, every_th(values, every)) for labels, values in entries]
    diverging = _diverging(draws, every)
    labels, r_hats, sizes, shifts = quality_of(entries, diverging)
    quality = labels, r_hats, sizes
    stuck = _stuck(draws, entries)
    findings = [
        _non_finite(entries, every),
        _improper(draws, entries, quality),
        stuck,
        _divergences(draws, entries, max_divergences, diverging, shifts),
        _excess_variance(draws),
        _replicas(draws),
        _unsolved(draws),
        _energy(draws, entries, bfmi_min, every),
        _few_chains(draws, min_chains),
    ]
    if stuck is None:
        # A chain that stands still is no matter of more draws or deeper trees.
        findings[4:4] = [
            *_convergence(draws, entries, quality, rhat_max, ess_per_chain, min_draws),
            _treedepth(draws, quality, treedepth_share),
        ]
    return [finding for finding in findings if finding is not None]


# -------------------------------------------------------------------------------- the single checks


def _non_finite(entries: Entries, every: int) -> Finding | None:
    bad = []
    for labels, values in entries:
        finite = np.isfinite(values)
        if not finite.all():
            flat = flat_entries(finite)
            counts = (~flat).sum(axis=(0, 1))
            bad += [(counts[i], labels[i], ~flat[..., i]) for i in np.flatnonzero(counts)]
    if not bad:
        return None
    bad.sort(key=lambda item: -item[0])
    count, worst, where = bad[0]
    chain, draw = np.argwhere(where)[0] * (1, every)
    return Finding(
        kind="non_finite",
        subject=f"draws of {listed([label for _, label, _ in bad])} are not finite",
        expected="finite numbers",
        got=f"{count} draws of {worst} NaN or infinite, the first in chain {chain}, draw {draw}",
        fix="look for overflow or a division by zero where the model computes it",
        parameters=tuple(label for _, label, _ in bad[:NAMED]),
        category=InferenceWarning,
    )


def _improper(
    draws: Draws, entries: Entries, quality: tuple[list[str], np.ndarray, np.ndarray]
) -> Finding | None:
    """Chains that go on and on where no prior ends: what nothing bounds has no posterior."""
    names = draws.attrs.get("improper_sites", ())
    labels, r_hats, sizes = quality
    with np.errstate(invalid="ignore"):
        lost = (r_hats > LOST_RHAT) | (sizes < LOST_SIZE * draws.num_chains)
    of_sites = [i for i, label in enumerate(labels) if _name(label) in names]
    if draws.num_draws < STUCK_DRAWS or not of_sites:
        return None
    columns = dict(zip(of_sites, columns_of(entries, np.array(of_sites))))
    bad = [i for i, x in columns.items() if lost[i] or np.max(np.abs(x)) > BEYOND]
    if not bad:
        return None
    x = columns[bad[0]]
    several = len({_name(labels[i]) for i in bad}) > 1
    return Finding(
        kind="improper",
        subject=f"the posterior of {listed([labels[i] for i in bad])} may be no distribution",
        expected=f"chains that agree on {'sites' if several else 'a site'} whose prior, an "
        "ImproperUniform, does not fall off",
        got=f"R-hat {r_hats[bad[0]]:.3g}, draws of {labels[bad[0]]} from {np.min(x):.3g} to "
        f"{np.max(x):.3g}",
        fix="give proper priors, such as Normal(0, 10) in the scale of the data; the data may not "
        "bound them, or only their sum",
        parameters=tuple(labels[i] for i in bad[:NAMED]),
        category=ConvergenceWarning,
    )


def _stuck(draws: Draws, entries: Entries) -> Finding | None:
    """Chains that did not get away from where they started."""
    if draws.num_draws < STUCK_DRAWS:
        return None
    columns = [np.empty((draws.num_chains, 0))]
    labels = []
    for of_variable, values in entries:
        flat = flat_entries(values)
        # Of numbers far from 0 the rounding of a mean is no spread.
        with np.errstate(all="ignore"):
            columns.append(np.where((flat == flat[:, :1]).all(axis=1), 0.0, flat.std(axis=1)))
        labels += of_variable
    spread = np.concatenate(columns, axis=1)
    varies = (spread > 0.0).any(axis=0) & np.isfinite(spread).all(axis=0)
    accepted = draws.sample_stats.get("acceptance_rate")
    rates = None if accepted is None else np.asarray(accepted).reshape(draws.num_chains, -1).mean(1)
    if varies.any():
        usual = np.median(spread[:, varies], axis=0)
        if draws.num_chains > 2:
            where = (spread[:, varies] <= STUCK_SHARE * usual).all(axis=1)
        else:
            where = (spread[:, varies] <= STUCK_SHARE * spread[:, varies].max(axis=0)).all(axis=1)
    elif labels and rates is not None:
        where = rates < STUCK_SHARE  # nothing ever moved, and nothing was accepted
    else:
        return None
    where |= _went_nowhere(draws)
    if not where.any():
        return None
    chains = np.flatnonzero(where)
    several = len(chains) > 1
    named = ("chains " if several else "chain ") + ", ".join(map(str, chains))
    entry = int(np.argmax(varies)) if varies.any() else 0
    found = f"standard deviation of {labels[entry]} {spread[chains[0], entry]:.2g}"
    if not where.all():
        found += f", {np.median(spread[~where, entry]):.2g} elsewhere"
    if rates is not None:
        found += f"; {percent(float(rates[chains[0]]))} of the proposals accepted"
    return Finding(
        kind="stuck",
        subject=f"{named} never moved from where {'they' if several else 'it'} started",
        expected="draws that leave their starting point; more of them will not help",
        got=found,
        fix="start elsewhere (another seed, init_strategy=init_to_median()), and look at the model "
        "where it stands: target.value_and_grad there, solvers and tolerances; leave the draws of "
        f"{named} out",
        parameters=(labels[entry],),
        category=ConvergenceWarning,
    )


def _went_nowhere(draws: Draws) -> np.ndarray:
    """Whether each chain's trajectories were as long as they may be, and short all the same."""
    names = "reached_max_treedepth", "step_size", "tree_depth"
    if any(name not in draws.sample_stats for name in names):
        return np.zeros(draws.num_chains, bool)
    deepest, step_size, depth = (np.asarray(draws.sample_stats[name]) for name in names)
    length = step_size * (2**depth - 1)
    return (deepest.mean(axis=1) > 0.9) & (np.median(length, axis=1) < SHORT_TRAJECTORY)


def _diverging(draws: Draws, every: int) -> np.ndarray | None:
    """Which of the draws that are judged diverge; None if all do, or none."""
    diverging = draws.sample_stats.get("diverging")
    if diverging is None:
        return None
    seen = np.asarray(diverging, bool)[:, ::every]
    return seen if seen.any() and not seen.all() else None


def _divergences(
    draws: Draws,
    entries: Entries,
    allowed: int,
    seen: np.ndarray | None,
    shifts: np.ndarray | None,
) -> Finding | None:
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
    now = "" if target is None else f" (now {target})"
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


def _excess_variance(draws: Draws) -> Finding | None:
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


def _replicas(draws: Draws) -> Finding | None:
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


def _unsolved(draws: Draws) -> Finding | None:
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


def _peak(attrs: Mapping[str, Any]) -> str:
    """Says, where divergent draws lie in a peak of the curvature, how high it is; else empty."""
    there = attrs.get("curvature_at_divergences", 0.0)
    elsewhere = attrs.get("curvature_elsewhere", np.inf)
    if there < max(PEAK, PEAK_RATIO * elsewhere):
        return ""
    return (
        f"; the curvature there is {there:.3g} times what the step size can follow "
        f"({elsewhere:.2g} elsewhere)"
    )


def _cure_for_divergences(attrs: Mapping[str, Any], parameters: Sequence[str], now: str) -> str:
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


def _convergence(
    draws: Draws,
    entries: Entries,
    quality: tuple[list[str], np.ndarray, np.ndarray],
    rhat_max: float,
    ess_per_chain: float,
    min_draws: int,
) -> Iterator[Finding]:
    if draws.num_draws < min_draws:
        yield _short_run(draws, quality, min_draws)
        return
    labels, r_hat, ess = quality
    judged = max(int(np.count_nonzero(~np.isnan(r_hat))), 1)
    limits = _rhat_limits(entries, r_hat, judged, rhat_max)
    order = np.argsort(-np.nan_to_num(r_hat, nan=0.0), kind="stable")
    bad = [i for i in order if r_hat[i] > limits[i]]
    switched: Renumbering | None = None
    if bad:
        switched = renumbered(_variables(entries, [labels[i] for i in bad]))
        named = listed([labels[i] for i in bad])
        limit = limits[bad[0]]
        chance = "" if limit == rhat_max else f", which {judged} parameters may reach by chance"
        several = draws.num_chains > 1
        yield Finding(
            kind="rhat",
            subject=f"chains disagree on {named}"
            if several
            else f"the chain has not settled: its halves differ on {named}",
            expected=f"R-hat at most {limit:.4g} for every parameter{chance}",
            got=", ".join(f"{labels[i]} {r_hat[i]:.3f}" for i in bad[:NAMED])
            + out_of(len(bad), len(labels))
            + by_chain(labels[bad[0]], next(columns_of(entries, np.array(bad[:1])))),
            fix=_in_one_order(switched)
            if switched is not None
            else "run longer (more warm-up and more draws); if chains sit in different places, "
            "reparameterise the model or give it stronger priors"
            if several
            else "run longer (more warm-up and more draws), and several chains (num_chains=4), "
            "which show whether it is the start or the model",
            parameters=tuple(labels[i] for i in bad[:NAMED]),
            category=ConvergenceWarning,
        )
    needed = ess_per_chain * draws.num_chains
    limit = _size_limit(needed, judged)
    # An entry that never varies has no R-hat, and an effective size that says nothing.
    order = np.argsort(np.where(np.isnan(r_hat), np.inf, ess), kind="stable")
    bad = [i for i in order if ess[i] < limit and not np.isnan(r_hat[i])]
    if switched is not None:  # of numbers that each chain gives otherwise there is no size
        bad = [i for i in bad if _name(labels[i]) not in switched.names]
    if bad:
        worst = max(ess[bad[0]], 1.0)
        yield Finding(
            kind="ess",
            subject=f"too few effective draws of {listed([labels[i] for i in bad])}",
            expected=f"bulk and tail effective size of at least {needed:g} "
            f"({ess_per_chain:g} per chain)",
            got=", ".join(f"{labels[i]} {ess[i]:.0f}" for i in bad[:NAMED])
            + out_of(len(bad), len(labels)),
            fix=f"draw about {np.ceil(needed / worst):.0f} times as many, or reparameterise",
            parameters=tuple(labels[i] for i in bad[:NAMED]),
            category=ConvergenceWarning,
        )


def _variables(entries: Entries, of: Sequence[str]) -> dict[str, np.ndarray]:
    """By name the variables that entries with these labels are of."""
    names = {_name(label) for label in of}
    return {
        _name(labels[0]): values
        for labels, values in entries
        if labels and _name(labels[0]) in names
    }


def _name(label: str) -> str:
    return label.partition("[")[0]


def _in_one_order(found: Renumbering) -> str:
    """What to do about chains that only number components differently."""
    names = ", ".join(map(repr, found.names[:NAMED]))
    more = len(found.names) - NAMED
    chain = next(i for i, order in enumerate(found.orders) if order != found.orders[0])
    order = ", ".join(map(str, found.orders[chain]))
    return (
        f"the chains agree once the components of {names}{f' and {more} more' if more > 0 else ''} "
        f"are renumbered (chain {chain}: {order}): nothing in the model tells them apart. Give one "
        f"site an order, such as Ordered(base_dist, {len(found.orders[0])}) for locations; what "
        "does not depend on the numbers is right as it is"
    )


def _rhat_limits(entries: Entries, r_hat: np.ndarray, judged: int, rhat_max: float) -> np.ndarray:
    """What R-hat of each parameter may be, with all chains in one distribution.

    With k + 1 half chains of e effective draws each, R-hat^2 - 1 is about 1/e times a chi-squared
    variate with k degrees of freedom over k. Of a run as long as is asked for, e = 50, a quarter of
    all parameters is above 1.01 by chance alone. R-hat is the larger of two, and the largest of
    all parameters counts, so the quantile is taken at `FALSE_ALARMS` over twice their number. e is
    counted within the halves: chains apart from each other are no excuse for being apart. It is the
    smaller of those of location and of spread, as R-hat is the larger of the two: draws of NUTS
    are often antithetic, more effective than independent ones for the first and less for the other.
    """
    limits = np.full(r_hat.shape, float(rhat_max))
    doubtful = np.flatnonzero(r_hat > rhat_max)
    if not doubtful.size:
        return limits
    columns = columns_of(entries, doubtful)
    sizes, count = [], 2
    while block := list(itertools.islice(columns, BLOCK)):
        halves = split(np.stack(block))
        count = halves.shape[1]
        folded = np.abs(halves - np.median(halves, axis=(1, 2), keepdims=True))
        both = [x - x.mean(axis=2, keepdims=True) for x in (halves, folded)]
        sizes.append(np.minimum(*(ess_bulk(np.moveaxis(x, 0, 2)) for x in both)))
    inside = np.concatenate(sizes) / count
    inside = np.where(np.isfinite(inside), np.maximum(inside, HALF_SIZE), HALF_SIZE)
    chance = special.chdtri(count - 1, FALSE_ALARMS / (2 * judged)) / (count - 1)
    limits[doubtful] = np.maximum(rhat_max, np.sqrt(1.0 + chance / inside))
    return limits


def _size_limit(needed: float, judged: int) -> float:
    """The estimated effective size below which the true one is surely below `needed`."""
    sure = -special.ndtri(FALSE_ALARMS / judged)
    return needed / (1.0 + sure * SIZE_ERROR / np.sqrt(needed))


def _short_run(
    draws: Draws | SampledDraws, quality: tuple[list[str], np.ndarray, np.ndarray], min_draws: int
) -> Finding:
    labels, r_hat, ess = quality
    parameters: tuple[str, ...] = ()
    detail = ""
    if np.isfinite(ess).any():
        worst = int(np.argmax(np.nan_to_num(r_hat, nan=0.0)))
        if np.isnan(r_hat[worst]):
            worst = int(np.nanargmin(ess))
        parameters = (labels[worst],)
        detail = f"; worst is {labels[worst]} with R-hat {r_hat[worst]:.2f} and "
        detail += f"effective size {ess[worst]:.0f}"
    return Finding(
        kind="short_run",
        subject="the run is too short to judge" + (f" ({parameters[0]})" if parameters else ""),
        expected=f"at least {min_draws} draws per chain for reliable R-hat and effective sizes",
        got=f"{draws.num_draws} draws per chain{detail}",
        fix="draw more, 1000 per chain as a rule",
        parameters=parameters,
        category=ConvergenceWarning,
    )


def _treedepth(
    draws: Draws, quality: tuple[list[str], np.ndarray, np.ndarray], share: float
) -> Finding | None:
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


def _energy(draws: Draws, entries: Entries, bfmi_min: float, every: int) -> Finding | None:
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


def _few_chains(draws: Draws, min_chains: int) -> Finding | None:
    if draws.num_chains >= min_chains:
        return None
    return Finding(
        kind="few_chains",
        subject="few chains to compare",
        expected=f"at least {min_chains} chains, so that R-hat can see chains that disagree",
        got=str(draws.num_chains),
        fix=f"run with num_chains={min_chains}",
    )
