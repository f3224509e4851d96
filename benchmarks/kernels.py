"""All kernels on ten small posteriors: effective draws per evaluation, and per second.

What counts is the worst coordinate's, of itself and of its distance from the median, by ArviZ's
bulk ESS. A number is given only for what is right: chains have to agree, and shares of draws below
known quantiles to be what they should be.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.kernel_targets import TARGETS, KernelTarget
from benchmarks.report import table
from probtorch.diagnostics.convergence import ess_bulk, ess_mean, split_rhat
from probtorch.infer import (
    AIES,
    ESS,
    GHMC,
    GIST,
    HMC,
    MALA,
    MALT,
    MCLMC,
    MCMC,
    MEADS,
    NUTS,
    RMHMC,
    SA,
    SMMALA,
    SNAPERHMC,
    AdjustedMCLMC,
    BarkerMH,
    ChEESHMC,
    DEMetropolis,
    DynamicHMC,
    EllipticalSlice,
    IndependentMH,
    OrbitalHMC,
    RandomWalk,
    ReplicaExchange,
    Slice,
    Target,
)

__all__ = ["KERNELS", "Outcome", "measure", "run"]

WARMUP = 500
# Draws before the clock is started, which compile what sampling needs; and as many again, for the
# time that a call takes whatever is drawn.
FIRST = 10
LEVELS = (0.05, 0.5, 0.95)
# Chains that disagree by more have not converged.
LARGEST_RHAT = 1.05
# A share of draws that is off by so much, and by so many of its standard errors, is a bias.
# The largest of 10 targets' 200 shares is beyond 5 by chance in 1 of 10 000 tables.
SHARE, ERRORS = 0.02, 5.0


@dataclass(frozen=True)
class Entry:
    """A kernel as it takes part: how it is made for a target, its draws per chain, its chains, and
    which targets are for it, where not all are.
    """

    make: Callable[[Target], object]
    draws: int
    chains: int = 4
    only: tuple[str, ...] = ()


def _walkers(target: Target) -> int:
    return max(2 * target.dim, 8)


KERNELS = {
    "NUTS": Entry(NUTS, 1000),
    "NUTS, adaptive steps": Entry(lambda t: NUTS(t, adaptive_steps=True), 1000),
    "HMC": Entry(HMC, 2000),
    "DynamicHMC": Entry(DynamicHMC, 2000),
    "ChEESHMC": Entry(ChEESHMC, 250, 2),
    "SNAPERHMC": Entry(SNAPERHMC, 250, 2),
    "GHMC": Entry(GHMC, 6000),
    "MEADS": Entry(MEADS, 1500, 2),
    "AdjustedMCLMC": Entry(AdjustedMCLMC, 2000),
    "MCLMC": Entry(MCLMC, 2000),
    "MALT": Entry(MALT, 2000),
    "GIST": Entry(GIST, 2000),
    "OrbitalHMC": Entry(OrbitalHMC, 2000),
    "MALA": Entry(MALA, 6000),
    "BarkerMH": Entry(BarkerMH, 6000),
    "SMMALA": Entry(SMMALA, 2000),
    "RMHMC": Entry(RMHMC, 300),
    "IndependentMH": Entry(IndependentMH, 6000),
    "EllipticalSlice": Entry(EllipticalSlice, 4000, only=("logistic",)),
    "RandomWalk": Entry(RandomWalk, 10_000),
    "Slice": Entry(Slice, 1000),
    "AIES": Entry(lambda t: AIES(t, walkers=_walkers(t)), 2000, 2),
    "DEMetropolis": Entry(lambda t: DEMetropolis(t, walkers=_walkers(t)), 2000, 2),
    "SA": Entry(lambda t: SA(t, walkers=_walkers(t)), 1000, 2),
    "ESS": Entry(lambda t: ESS(t, walkers=_walkers(t)), 500, 2),
    "ReplicaExchange(NUTS)": Entry(lambda t: ReplicaExchange(NUTS(t)), 300),
}
METHOD = (
    f"After {WARMUP} transitions of warm-up with default settings; 4 chains, or 2 ensembles, of "
    "1000 to 10 000 draws, by what a draw costs. Evaluations of the density are counted, with or "
    "without gradient; warm-up does not count. Seconds are the processor's, one core, compiled, "
    "less what a call of 10 draws takes. `RMHMC` makes 300 draws. "
    "Effective draws: the smallest bulk ESS of any coordinate and of its distance from the median. "
    f"`-`: chains, or walkers, do not agree (R-hat above {LARGEST_RHAT}); `!`: they do, and are "
    f"wrong: the share of draws below a quantile is off by more than {SHARE:g} and {ERRORS:g} "
    "standard errors; an empty cell: the kernel is not for this target, whose prior is no Gaussian."
)


@dataclass(frozen=True)
class Outcome:
    """What a kernel made of a target.

    Parameters
    ----------
    effective : float
        Draws.
    evaluations, seconds : float
    rhat : float
        The largest.
    off : float
        The largest error of a share of draws that is beyond its standard errors; 0 if none is.
    """

    effective: float
    evaluations: float
    seconds: float
    rhat: float
    off: float

    def shown(self, rate: float) -> str:
        """Return a rate with three digits, or why there is none."""
        if not self.rhat < LARGEST_RHAT:
            return "-"
        return "!" if self.off > SHARE else f"{rate:.3g}"


def judged(draws: np.ndarray, reference: np.ndarray) -> tuple[float, float, float]:
    """Return effective draws, largest R-hat and largest error of a share.

    Parameters
    ----------
    draws : ndarray, shape (chains, draws, dim)
    reference : ndarray, shape (n, dim)
    """
    effective, rhat, off = np.inf, 0.0, 0.0
    for i in range(draws.shape[-1]):
        x, right = draws[..., i], reference[:, i]
        apart = np.abs(x - np.median(right))
        effective = min(effective, float(ess_bulk(x)), float(ess_bulk(apart)))
        rhat = np.fmax(rhat, float(split_rhat(x)))
        for level in LEVELS:
            below = (x < np.quantile(right, level)).astype(np.float64)
            error = abs(float(below.mean()) - level)
            if below.std() == 0.0:
                off = max(off, error)
            elif error > ERRORS * np.sqrt(level * (1.0 - level) / float(ess_mean(below))):
                off = max(off, error)
    return effective, rhat, off


def measure(entry: Entry, target: Target, reference: np.ndarray, seed: int = 1) -> Outcome:
    """Run a kernel on a target."""
    kernel = entry.make(target)
    mcmc = MCMC(kernel, FIRST, WARMUP, num_chains=entry.chains, seed=seed, progress_bar=False)
    mcmc.diagnose = False
    with warnings.catch_warnings(action="ignore"):  # that it did not converge is in the table
        mcmc.run()
        once = _seconds(lambda: mcmc.more(FIRST))
        seconds = _seconds(lambda: mcmc.more(entry.draws))
    draws = mcmc.draws
    effective, rhat, off = judged(draws.positions, reference)
    evaluations = float(draws.sample_stats["n_steps"].sum())
    return Outcome(effective, evaluations, max(seconds - once, 1e-3), rhat, off)


def _seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def run(names: Sequence[str], targets: Sequence[str] | None = None) -> tuple[str, list[str]]:
    """Return the tables as text, and what could not be measured."""
    chosen: dict[str, KernelTarget] = {name: TARGETS[name] for name in targets or TARGETS}
    outcomes: dict[tuple[str, str], Outcome] = {}
    problems = []
    for name, posterior in chosen.items():
        target = posterior.make()
        reference = posterior.reference(target)
        for kernel, entry in KERNELS.items():
            if entry.only and name not in entry.only:
                continue
            try:
                outcomes[kernel, name] = measure(entry, target, reference)
            except Exception as error:
                problems.append(f"{kernel}, {name}: {type(error).__name__}: {error}")

    def rows(rate: Callable[[Outcome], float]) -> str:
        def cell(kernel: str, name: str) -> str:
            found, only = outcomes.get((kernel, name)), KERNELS[kernel].only
            if only and name not in only:
                return ""
            return "failed" if found is None else found.shown(rate(found))

        cells = [[kernel, *(cell(kernel, name) for name in chosen)] for kernel in KERNELS]
        return table(["kernel", *chosen], cells)

    stated = "\n".join(f"- {name}: {posterior.statement}" for name, posterior in chosen.items())
    text = (
        f"Effective draws per 1000 evaluations:\n\n"
        f"{rows(lambda o: 1000.0 * o.effective / o.evaluations)}\n\n"
        f"Effective draws per millisecond:\n\n"
        f"{rows(lambda o: 1e-3 * o.effective / o.seconds)}\n\n{METHOD}\n\n{stated}"
    )
    return text, problems
