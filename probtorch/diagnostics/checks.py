"""What is wrong with a run: findings, and the warnings that every sampler gives unasked.

`diagnose` looks for divergences, disagreeing chains, too few effective draws, saturated trees and
poor energy exploration, and returns one `Finding` for each; `warn_about` turns the serious ones
into Python warnings. A finding names the parameters that show it most, because the cure is there.
The default thresholds are those of Vehtari et al. (2021), ArviZ and Stan; all are arguments.

`chain_checks` has what is asked of draws, `sampler_checks` what is asked of what made them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from probtorch.core.signatures import explained
from probtorch.diagnostics import chain_checks, sampler_checks
from probtorch.diagnostics.drawn import HasDraws, drawn
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.findings import (
    Finding,
)
from probtorch.diagnostics.judged_entries import (
    entries_of,
    quality_of,
)
from probtorch.diagnostics.stored import every_th, let_go

__all__ = ["diagnose", "smallest_ess", "warn_about"]


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
    diverging = sampler_checks.diverging(draws, every)
    labels, r_hats, sizes, shifts = quality_of(entries, diverging)
    quality = labels, r_hats, sizes
    stuck = chain_checks.stuck(draws, entries)
    if every > 1:
        let_go(draws.sample_stats.values())
    findings = [
        chain_checks.non_finite(entries, every),
        chain_checks.improper(draws, entries, quality),
        stuck,
        sampler_checks.divergences(draws, entries, max_divergences, diverging, shifts),
        sampler_checks.excess_variance(draws),
        sampler_checks.replicas(draws),
        sampler_checks.unsolved(draws),
        sampler_checks.outside_support(draws),
        sampler_checks.energy(draws, entries, bfmi_min, every),
        chain_checks.few_chains(draws, min_chains),
    ]
    if stuck is None:
        # A chain that stands still is no matter of more draws or deeper trees.
        findings[4:4] = [
            *chain_checks.convergence(draws, entries, quality, rhat_max, ess_per_chain, min_draws),
            sampler_checks.treedepth(draws, quality, treedepth_share),
        ]
    return [finding for finding in findings if finding is not None]
