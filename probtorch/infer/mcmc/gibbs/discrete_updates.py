"""Updates of one discrete coordinate given all others, as parts of programs.

Each is a function of a `SweepState`, a coordinate and its bounds, and leaves the conditional
distribution of that coordinate invariant. `conditional` draws from it, `modified` from the other
values, with a correction; both evaluate the density once for each other value. `metropolis`
proposes one value, and so needs no last one; `sweep` applies one of them to coordinate after
coordinate.

References
----------
S. Geman, D. Geman, "Stochastic relaxation, Gibbs distributions, and the Bayesian restoration of
images", IEEE PAMI 6 (1984). J. S. Liu, "Peskun's theorem and a modified discrete-state Gibbs
sampler", Biometrika 83 (1996).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace
from probtorch.infer.mcmc.integrators import Density
from probtorch.infer.mcmc.kernels.random_walk import accept_probability
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.ops.arithmetic import clamp, floor, maximum, where
from probtorch.ops.comparisons import isfinite, isnan
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp, log
from probtorch.ops.indexing import index_put

__all__ = ["PROPOSALS", "UPDATES", "ProposedValue", "SweepState", "Update", "sweep"]

# Jumps among values without bound: half of those of one length are twice as long, up to this power
# of two, so that some fit whatever the scale. And how many are tried where one value of many is
# proposed.
LONGEST_JUMP, TRIES = 20.0, 8


@record
class SweepState:
    """Where an update of single coordinates has got to.

    Parameters
    ----------
    position : Tensor, shape (dim,)
    logdensity : Tensor, 0-d
    counter : Tensor, 0-d int64
        The first random counter not used yet.
    taken : Tensor, 0-d int64
        Evaluations of the density.
    accept : Tensor, 0-d
        Sum of acceptance probabilities, each coordinate counting as one.
    """

    position: TensorBase
    logdensity: TensorBase
    counter: TensorBase
    taken: TensorBase
    accept: TensorBase


# ``update(density, key, walk, coordinate, lowest, highest)``, the bounds being 0-d tensors.
Update: TypeAlias = Callable[
    [Density, Key, SweepState, TensorBase, TensorBase, TensorBase], SweepState
]
# The number of a value, the best score so far with its value and log density, log of a sum.
Race: TypeAlias = tuple[TensorBase, TensorBase, TensorBase, TensorBase, TensorBase]


def sweep(
    update: Update,
    density: Density,
    key: Key,
    walk: SweepState,
    places: np.ndarray,
    lowest: TensorBase,
    highest: TensorBase,
    *,
    whole: bool = True,
) -> SweepState:
    """Update the coordinates at `places`, one after the other.

    Parameters
    ----------
    update : callable
        One of `UPDATES`.
    density : callable
    key : Key
    walk : SweepState
    places : ndarray of int64
    lowest, highest : Tensor, shape (dim,)
        Bounds of all coordinates.
    whole : bool
        Whether coordinates are whole numbers.
    """
    chosen, count = wrap(places), len(places)

    def advance(carry: tuple[TensorBase, SweepState]) -> tuple[TensorBase, SweepState]:
        i, walk = carry
        at = chosen[i]
        if whole:
            # From here on: where a chain starts, they may be something between.
            present = clamp(floor(walk.position[at] + 0.5), min=lowest[at], max=highest[at])
            walk = replace(walk, position=index_put(walk.position, (at,), present))
        return i + 1, update(density, key, walk, at, lowest[at], highest[at])

    _, end = while_loop(lambda carry: carry[0] < count, advance, (wrap(np.array(0)), walk))
    return end


@record
class ProposedValue:
    """Another value of a coordinate, and what it takes to accept it.

    Parameters
    ----------
    value, logdensity : Tensor, 0-d
        The value, and the log density with it.
    log_ratio : Tensor, 0-d
        Log of the ratio of both densities, times that of the chances to propose one from the other.
    counter, taken : Tensor, 0-d int64
        As for `SweepState`.
    """

    value: TensorBase
    logdensity: TensorBase
    log_ratio: TensorBase
    counter: TensorBase
    taken: TensorBase


def conditional_value(
    density: Density,
    key: Key,
    walk: SweepState,
    at: TensorBase,
    lowest: TensorBase,
    highest: TensorBase,
) -> ProposedValue:
    """Draw a value from its conditional distribution [geman1984]_; it may be the present one."""
    own = walk.logdensity + _gumbel(key, walk.counter)
    first = own, walk.position[at], walk.logdensity
    _, _, value, logdensity, _ = _race(density, key, walk, at, lowest, highest, first)
    others = (highest - lowest).long()
    zero = 0.0 * own
    return ProposedValue(value, logdensity, zero, walk.counter + (others + 1), walk.taken + others)


def other_value(
    density: Density,
    key: Key,
    walk: SweepState,
    at: TensorBase,
    lowest: TensorBase,
    highest: TensorBase,
) -> ProposedValue:
    """Propose another value in proportion to its probability [liu1996]_.

    With the share p of the present value and p' of the proposed one, the ratio is
    ``(1 - p) / (1 - p')``; a chain stays where it is less often than by `conditional_value`.
    """
    none = wrap(np.array(-np.inf))
    first = none, walk.position[at], none
    _, _, value, logdensity, rest = _race(density, key, walk, at, lowest, highest, first)
    others = (highest - lowest).long()
    found = isfinite(logdensity)
    # Sums over all values but the present one, and but the proposed one: without cancellation.
    but_present = _log_sum(rest, where(found, logdensity, 0.0))
    ratio = but_present - _log_sum(rest, walk.logdensity)
    return ProposedValue(
        value,
        logdensity,
        where(found, ratio, -np.inf),
        walk.counter + (others + 1),
        walk.taken + others,
    )


def any_value(
    density: Density,
    key: Key,
    walk: SweepState,
    at: TensorBase,
    lowest: TensorBase,
    highest: TensorBase,
) -> ProposedValue:
    """Propose one of the other values, each as likely; far ones less if there is no end."""
    bounded = isfinite(highest - lowest)
    # Not infinite, so that no branch is nan.
    width = where(bounded, highest - lowest, 1.0)
    present, u = walk.position[at], uniform(key, walk.counter)
    other = where(bounded, lowest, 0.0) + floor(width * u)
    other = where(other >= present, other + 1.0, other)
    length = floor(exp(math.log(2.0) * LONGEST_JUMP * u))
    jump = where(uniform(key, walk.counter + 1) < 0.5, -length, length)
    value = where(bounded, other, present + jump)
    inside = (value >= lowest) & (value <= highest)
    there = clamp(value, min=lowest, max=highest)
    logdensity, _ = density(index_put(walk.position, (at,), there))
    rise = logdensity - walk.logdensity
    possible = inside & ~isnan(rise)
    return ProposedValue(
        there, logdensity, where(possible, rise, -np.inf), walk.counter + 2, walk.taken + 1
    )


PROPOSALS: dict[str, Callable[..., ProposedValue]] = {
    "conditional": conditional_value,
    "modified": other_value,
    "metropolis": any_value,
}


def conditional(
    density: Density,
    key: Key,
    walk: SweepState,
    at: TensorBase,
    lowest: TensorBase,
    highest: TensorBase,
) -> SweepState:
    """Take a value drawn from the conditional distribution."""
    found = conditional_value(density, key, walk, at, lowest, highest)
    position = index_put(walk.position, (at,), found.value)
    return SweepState(position, found.logdensity, found.counter, found.taken, walk.accept + 1.0)


def modified(
    density: Density,
    key: Key,
    walk: SweepState,
    at: TensorBase,
    lowest: TensorBase,
    highest: TensorBase,
) -> SweepState:
    """Take another value, proposed in proportion to its probability, or stay."""
    return _settled(key, walk, at, other_value(density, key, walk, at, lowest, highest))


def metropolis(
    density: Density,
    key: Key,
    walk: SweepState,
    at: TensorBase,
    lowest: TensorBase,
    highest: TensorBase,
) -> SweepState:
    """Take any other value, or stay; a few times in turn where there are many."""
    tries = clamp(highest - lowest, max=float(TRIES)).long()

    def attempt(carry: tuple[TensorBase, SweepState]) -> tuple[TensorBase, SweepState]:
        done, walk = carry
        found = any_value(density, key, walk, at, lowest, highest)
        return done + 1, _settled(key, walk, at, found, share=1.0 / tries)

    _, end = while_loop(lambda carry: carry[0] < tries, attempt, (wrap(np.array(0)), walk))
    return end


UPDATES: dict[str, Update] = {
    "conditional": conditional,
    "modified": modified,
    "metropolis": metropolis,
}


def _race(
    density: Density,
    key: Key,
    walk: SweepState,
    at: TensorBase,
    lowest: TensorBase,
    highest: TensorBase,
    first: tuple[TensorBase, TensorBase, TensorBase],
) -> Race:
    """Evaluate all other values; the one with the highest log density plus Gumbel noise wins.

    `first` is a score with its value and log density to begin with. The last of the results is the
    log of the sum of the densities of those that lost.
    """
    present = walk.position[at]

    def run(race: Race) -> Race:
        n, score, value, logdensity, rest = race
        here = lowest + n
        here = where(here >= present, here + 1.0, here)
        found, _ = density(index_put(walk.position, (at,), here))
        found = where(isnan(found), -np.inf, found)
        mine = found + _gumbel(key, walk.counter + 1 + n.long())
        won = mine > score
        return (
            n + 1.0,
            where(won, mine, score),
            where(won, here, value),
            where(won, found, logdensity),
            _log_sum(rest, where(won, logdensity, found)),
        )

    start = (wrap(np.zeros(())), *first, wrap(np.array(-np.inf)))
    return while_loop(lambda race: race[0] < highest - lowest, run, start)


def _log_sum(a: TensorBase, b: TensorBase) -> TensorBase:
    """Log of the sum of two densities, either of which may be 0."""
    larger = maximum(a, b)
    top = where(isfinite(larger), larger, 0.0)
    return log(exp(a - top) + exp(b - top)) + top


def _settled(
    key: Key,
    walk: SweepState,
    at: TensorBase,
    found: ProposedValue,
    share: TensorBase | float = 1.0,
) -> SweepState:
    """Take a proposed value by Metropolis's rule, or stay."""
    accept_prob = accept_probability(found.log_ratio)
    accepted = uniform(key, found.counter) < accept_prob
    return SweepState(
        index_put(walk.position, (at,), where(accepted, found.value, walk.position[at])),
        where(accepted, found.logdensity, walk.logdensity),
        found.counter + 1,
        found.taken,
        walk.accept + share * accept_prob,
    )


def _gumbel(key: Key, counter: TensorBase) -> TensorBase:
    """Standard Gumbel noise."""
    return -log(-log(uniform(key, counter)))
