"""Kernels that other libraries have, too: the same posteriors, settings and starts, in turns.

Warm-ups differ, so they are left out: our warm-up tunes the step size, and all systems take that,
with a mass matrix of 1. What is timed is one compiled loop over draws in each. Effective draws are
those of one long run; per evaluation they should be alike, which checks both.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.kernel_targets import PIECE, TARGETS
from benchmarks.kernels import SHARE, judged
from benchmarks.peers import OURS, adapter
from benchmarks.peers.jax_targets import check, log_density
from benchmarks.report import duration, table
from benchmarks.timing import race
from probtorch.infer import (
    AIES,
    ESS,
    GHMC,
    HMC,
    MALA,
    MCLMC,
    MCMC,
    MEADS,
    NUTS,
    SGLD,
    AdjustedMCLMC,
    BarkerMH,
    ChEESHMC,
    EllipticalSlice,
    RandomWalk,
    Target,
)
from probtorch.infer.mcmc.chunk import ChunkRunner
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.starts import resumed_chains

__all__ = ["KERNELS", "POSTERIORS", "run"]

POSTERIORS = ("normal", "skewed", "schools", "logistic")
WARMUP, DRAWS = 1000, 20_000
ROUNDS, ROUND_SECONDS = 5, 0.1
WALKERS = 32

# A draw of a long run, and evaluations or None where they are not told.
Sampled = tuple[np.ndarray, float | None]
Sampler = Callable[..., Sampled]


def _unit(kind: Callable[..., Kernel], **settings: object) -> Callable[[Target], Kernel]:
    def make(target: Target) -> Kernel:
        ones = np.ones(target.dim)
        kept = {"inverse_mass_matrix": ones, "adapt_mass_matrix": False, "metric": "diag"}
        return kind(target, **kept, **settings)

    return make


def _chees(target: Target) -> Kernel:
    ones = np.ones(target.dim)
    return ChEESHMC(target, walkers=WALKERS, inverse_mass_matrix=ones, adapt_mass_matrix=False)


def _ellipse(target: Target) -> Kernel:
    return EllipticalSlice(target, loc=np.zeros(target.dim), covariance=np.full(target.dim, 4.0))


KERNELS: Mapping[str, Callable[[Target], Kernel]] = {
    "NUTS": _unit(NUTS),
    "HMC, 5 steps": _unit(HMC, num_steps=5),
    "MALA": _unit(MALA),
    "BarkerMH": _unit(BarkerMH),
    "GHMC": _unit(GHMC),
    "MCLMC": _unit(MCLMC, num_steps=1),
    "AdjustedMCLMC": _unit(AdjustedMCLMC),
    "RandomWalk": _unit(RandomWalk),
    "EllipticalSlice": _ellipse,
    # Of all data: these posteriors have no plates to draw rows of.
    "SGLD, exact gradients": _unit(SGLD, step_size=0.3),
    "ChEESHMC": _chees,
    "MEADS": lambda target: MEADS(target, walkers=WALKERS),
    "AIES": lambda target: AIES(target, walkers=WALKERS),
    "ESS": lambda target: ESS(target, walkers=WALKERS),
}
METHOD = (
    "One chain, or one ensemble of 32 walkers, in float64. Step sizes are those that our warm-up "
    "found, mass matrices 1 in all systems; but MEADS has what each system's warm-up found: ours "
    "goes on tuning, BlackJAX's is generalised HMC with fixed settings by then. SGLD has steps of "
    f"0.3 and exact gradients. Time: the best of {ROUNDS} rounds of one compiled "
    f"loop of {PIECE} draws, systems in turns, processor time, one core, compiled before. "
    "Effective draws: the smallest bulk ESS of any coordinate and of its distance from the median, "
    f"in one run of {DRAWS} draws (ensembles a tenth). Such ratios are off by 10 to 20 % by "
    "chance, and by a factor of three where a chain has few (skewed tails). `-`: the system has no "
    "such kernel, or does not tell its evaluations; `!`: the share of draws below a quantile is "
    "off."
)


@dataclass(frozen=True)
class Figures:
    """Of one system: seconds per draw, effective draws per draw and evaluation, and the bias."""

    seconds: float
    effective: float
    per_evaluation: float | None
    off: float


def ours(make: Callable[[Target], Kernel], target: Target) -> tuple[Sampler, np.ndarray, dict]:
    """Return our sampler, where it starts, and what it was tuned to."""
    mcmc = MCMC(make(target), 10, WARMUP, num_chains=1, seed=3, progress_bar=False)
    mcmc.diagnose = False
    with warnings.catch_warnings(action="ignore"):  # what is wrong is in the table
        mcmc.run()
    ((chain, context),) = resumed_chains(target, mcmc.last_state, 1)
    settings = {
        name: float(value.array)
        for name in ("step_size", "trajectory_length", "mu")
        if (value := getattr(chain.kernel, name, None)) is not None
    }
    runner = ChunkRunner(chain)

    def sample(draws: int, seed: int = 0) -> Sampled:
        parts, evaluations = [], 0.0
        while draws:
            count = min(draws, runner.capacity)
            positions, _, info = runner.run(count)
            parts.append(positions.copy())
            evaluations += float(info.n_steps.sum())
            draws -= count
        whole = np.concatenate(parts)
        return (np.swapaxes(whole, 0, 1) if whole.ndim == 3 else whole[None]), evaluations

    # The program has only the address of the context.
    sample.context = context
    return sample, chain.state.position.array, settings


def contestants(kernel, name, peers):
    """Return the samplers of all systems for a kernel and a posterior, ours first."""
    target = TARGETS[name].make()
    sampler, start, settings = ours(KERNELS[kernel], target)
    found = {OURS: sampler}
    density = log_density(name)
    for peer in peers:
        module = adapter(peer)
        check(density, target)
        made = module.kernel_sampler(kernel, density, start, settings)
        if made is not None:
            found[peer] = made
    return found


def figures(samplers, reference):
    """Return the `Figures` of each system."""
    times = race(
        {peer: functools.partial(run, PIECE) for peer, run in samplers.items()},
        rounds=ROUNDS,
        round_seconds=ROUND_SECONDS,
        clock=time.process_time,
    )
    found = {}
    for peer, run in samplers.items():
        positions, _ = run(PIECE)
        draws = DRAWS if len(positions) == 1 else DRAWS // 10
        positions, evaluations = run(draws, seed=1)
        effective, _, off = judged(positions, reference)
        found[peer] = Figures(
            times[peer].best / PIECE,
            effective / draws,
            None if evaluations is None else effective / evaluations,
            off,
        )
    return found


def run(names: Sequence[str], targets: Sequence[str] | None = None) -> tuple[str, list[str]]:
    """Return the tables as text, and what could not be measured."""
    chosen = [name for name in targets or POSTERIORS if name in POSTERIORS]
    peers = [name for name in names if hasattr(adapter(name), "kernel_sampler")]
    outcomes: dict[tuple[str, str], dict[str, Figures]] = {}
    problems = []
    for name in chosen:
        reference = TARGETS[name].reference(TARGETS[name].make())
        for kernel in KERNELS:
            try:
                outcomes[kernel, name] = figures(contestants(kernel, name, peers), reference)
            except Exception as error:
                problems.append(f"{kernel}, {name}: {type(error).__name__}: {error}")
    return report(outcomes, chosen, peers), problems


def report(
    outcomes: Mapping[tuple[str, str], Mapping[str, Figures]],
    chosen: Sequence[str],
    peers: Sequence[str],
) -> str:
    """Return the tables: our time, and ratios for each peer that has a kernel."""

    def ours_of(kernel: str, name: str) -> str:
        found = outcomes.get((kernel, name))
        return duration(found[OURS].seconds) if found else "failed"

    def ratios(show: Callable[[Figures, Figures], str]) -> str:
        rows = []
        for kernel in KERNELS:
            for peer in peers:
                if not any(peer in outcomes.get((kernel, name), {}) for name in chosen):
                    continue
                pairs = [outcomes.get((kernel, name), {}) for name in chosen]
                cells = [show(p[OURS], p[peer]) if peer in p else "failed" for p in pairs]
                rows.append([kernel, peer, *cells])
        return table(["kernel", "peer", *chosen], rows)

    def sizes(a: float | None, b: float | None, mine: Figures, other: Figures) -> str:
        if mine.off > SHARE or other.off > SHARE:
            return "!"
        return "-" if a is None or b is None else f"{a / b:.2f}"

    own = [[kernel, *(ours_of(kernel, name) for name in chosen)] for kernel in KERNELS]
    return (
        f"Our time per draw (of an ensemble: of all its walkers):\n\n"
        f"{table(['kernel', *chosen], own)}\n\n"
        f"Time per draw, theirs / ours:\n\n"
        f"{ratios(lambda a, b: f'{b.seconds / a.seconds:.1f}')}\n\n"
        f"Effective draws per evaluation, ours / theirs:\n\n"
        f"{ratios(lambda a, b: sizes(a.per_evaluation, b.per_evaluation, a, b))}\n\n"
        f"Effective draws per second, ours / theirs:\n\n"
        f"{ratios(lambda a, b: sizes(a.effective / a.seconds, b.effective / b.seconds, a, b))}"
        f"\n\n{METHOD}"
    )
