"""What draws tell of the chains that made them: whether they are finite, moved, and agree.

`checks.py` asks all of these; each returns a `Finding`, or None where nothing is wrong. Where a
statistic is compared with its threshold, the threshold gives way by what the statistic errs by
chance, over all parameters: so that of a thousand sound runs one is suspected, whether it has one
parameter or ten thousand (`_rhat_limits`, `_size_limit`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.late import special
from probtorch.diagnostics.columns import split
from probtorch.diagnostics.convergence import ess_bulk
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.findings import (
    ConvergenceWarning,
    Finding,
    InferenceWarning,
)
from probtorch.diagnostics.judged_entries import (
    NAMED,
    Entries,
    by_chain,
    columns_of,
    listed,
    out_of,
    percent,
)
from probtorch.diagnostics.layout import flat_entries
from probtorch.diagnostics.relabelling import Renumbering, renumbered

if TYPE_CHECKING:
    from probtorch.infer.results import SampledDraws

__all__ = [
    "convergence",
    "few_chains",
    "improper",
    "non_finite",
    "stuck",
]

# Where a prior does not fall off, chains are lost above this R-hat, below this effective size per
# chain, or beyond this number.
LOST_RHAT, LOST_SIZE, BEYOND = 1.1, 10.0, 1e100
# A chain whose spread is this share of the others' in everything did not move; of how many draws.
STUCK_SHARE, STUCK_DRAWS = 1e-3, 20
# Trajectories of the greatest length that go this far, in standard deviations as the metric knows
# them, lead nowhere. Those of a run that works go 1 or more.
SHORT_TRAJECTORY = 0.05
# How many sound runs in which any parameter at all may be suspected, of R-hat or effective size.
FALSE_ALARMS = 1e-3
# R-hat says little about halves with fewer effective draws; see `ess_per_chain`.
HALF_SIZE = 50
# Parameters whose draws are worked on at a time.
BLOCK = 256
# Standard error of an estimated effective size n, relative to n: this over the square root of n.
# Autoregressive chains (coefficient 0.8, of 1000 draws) have 2.3 to 2.6, with a longer tail below.
SIZE_ERROR = 3.0


def non_finite(entries: Entries, every: int) -> Finding | None:
    """Draws that are no numbers."""
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


def improper(
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


def stuck(draws: Draws, entries: Entries) -> Finding | None:
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
    found = deepest.mean(axis=1) > 0.9
    for chain in np.flatnonzero(found):
        length = step_size[chain] * (2 ** depth[chain] - 1)
        found[chain] = np.median(length) < SHORT_TRAJECTORY
    return found


def convergence(
    draws: Draws,
    entries: Entries,
    quality: tuple[list[str], np.ndarray, np.ndarray],
    rhat_max: float,
    ess_per_chain: float,
    min_draws: int,
) -> Iterator[Finding]:
    """Parameters whose chains disagree, or have too few effective draws."""
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


def few_chains(draws: Draws, min_chains: int) -> Finding | None:
    """A run of fewer chains than it takes to compare them."""
    if draws.num_chains >= min_chains:
        return None
    return Finding(
        kind="few_chains",
        subject="few chains to compare",
        expected=f"at least {min_chains} chains, so that R-hat can see chains that disagree",
        got=str(draws.num_chains),
        fix=f"run with num_chains={min_chains}",
    )
