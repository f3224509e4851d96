"""Are ranks uniform? The empirical distribution function against exact simultaneous bands.

Ranks among L draws take the values 0, ..., L. The number of ranks below i, of `replications` ones,
is binomial for each i in 1, ..., L, so each point of the empirical distribution function (ECDF) has
a two-sided tail probability, and their smallest is one statistic for the whole curve. Its law is
exact here, not simulated: uniform ranks are a Poisson process on L + 1 cells given its total, and
the chance that the counts of such a process stay inside given bounds is carried forward by one
convolution per cell.

The statistic and the idea of bands that hold for all points at once are Säilynoja, Bürkner and
Vehtari's; the recursion through a Poisson process is Steck's.

References
----------
T. Säilynoja, P.-C. Bürkner, A. Vehtari, "Graphical test for discrete uniformity and its
applications in goodness-of-fit evaluation and multiple sample comparison", Statistics and Computing
32 (2022), algorithm 2 and section 2.3.
G. P. Steck, "Rectangle probabilities for uniform order statistics and the probability that the
empirical distribution function lies between two distribution functions", Annals of Mathematical
Statistics 42 (1971).
S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
Statistics 6 (1979).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from probtorch.core.late import special

__all__ = ["ecdf_band", "holm", "uniformity_pvalue"]

# Below this a p-value is the difference of two numbers near 1; the union bound, at most L times too
# large, is as good.
SMALLEST_EXACT = 1e-9
BISECTIONS = 60


def uniformity_pvalue(ranks: np.ndarray, num_draws: int) -> float:
    """Return the probability that uniform ranks look as far from uniform as these.

    Parameters
    ----------
    ranks : ndarray of int, shape (replications,)
        Values in 0, ..., num_draws.
    num_draws : int
        Draws that each rank was taken among.

    Returns
    -------
    float
        Exact to about 1e-12; below 1e-9 an upper bound.
    """
    counts = cumulative_counts(ranks, num_draws)
    tails = _tails(len(ranks), num_draws)
    # Tails that are equal but for rounding count as equal.
    statistic = float(tails[np.arange(num_draws), counts].min()) * (1.0 + 1e-9)
    exact = 1.0 - _probability_above(statistic, len(ranks), num_draws)
    return exact if exact > SMALLEST_EXACT else min(1.0, num_draws * statistic)


def ecdf_band(replications: int, num_draws: int, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds between which the whole ECDF of uniform ranks lies.

    Parameters
    ----------
    replications, num_draws : int
    level : float
        Largest probability of leaving them anywhere.

    Returns
    -------
    lower, upper : ndarray, shape (num_draws,)
        Shares of ranks below 1, ..., num_draws that are still inside. A curve leaves them exactly
        if its `uniformity_pvalue` is at most `level`.
    """
    low, high = math.log(level / num_draws) - 1e-9, 0.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        if 1.0 - _probability_above(math.exp(middle), replications, num_draws) <= level:
            low = middle
        else:
            high = middle
    first, last = _bounds(math.exp(low), replications, num_draws)
    return first / replications, last / replications


def cumulative_counts(ranks: np.ndarray, num_draws: int) -> np.ndarray:
    """Return how many ranks are below 1, ..., num_draws."""
    return np.cumsum(np.bincount(ranks, minlength=num_draws + 1))[:num_draws]


def holm(pvalues: np.ndarray) -> np.ndarray:
    """Return p-values adjusted for how many there are.

    Parameters
    ----------
    pvalues : ndarray, shape (tests,)

    Returns
    -------
    ndarray, shape (tests,)
        If all hypotheses are true, the chance that any is at most `level` is at most `level`,
        whatever the dependence between the tests.
    """
    pvalues = np.asarray(pvalues, float)
    order = np.argsort(pvalues, kind="stable")
    scaled = pvalues[order] * np.arange(len(pvalues), 0, -1)
    adjusted = np.empty_like(scaled)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted


# ------------------------------------------------------------------------------------ the exact law


@functools.lru_cache(maxsize=8)
def _tails(replications: int, num_draws: int) -> np.ndarray:
    """Two-sided tail probabilities, shape (num_draws, replications + 1), of each count."""
    share = np.arange(1, num_draws + 1)[:, None] / (num_draws + 1)
    # Of the binomial distribution; scipy.stats, which has it too, takes half a second to import.
    count = np.arange(replications + 1)
    below = special.bdtr(count, replications, share)
    above = special.bdtrc(count - 1, replications, share)
    tails = np.minimum(2.0 * np.minimum(below, above), 1.0)
    tails.flags.writeable = False
    return tails


def _bounds(statistic: float, replications: int, num_draws: int) -> tuple[np.ndarray, np.ndarray]:
    """The least and largest count at each point whose tail probability is above `statistic`."""
    inside = _tails(replications, num_draws) > statistic
    return inside.argmax(axis=1), replications - inside[:, ::-1].argmax(axis=1)


def _probability_above(statistic: float, replications: int, num_draws: int) -> float:
    """The probability that all tail probabilities of uniform ranks are above `statistic`."""
    if not (_tails(replications, num_draws) > statistic).any(axis=1).all():
        return 0.0
    first, last = _bounds(statistic, replications, num_draws)
    # A Poisson process of `replications` expected points, whose counts have the law of the ranks'
    # once its total is `replications`.
    cell = _poisson(np.arange(replications + 1), replications / (num_draws + 1))
    start, weights = 0, np.ones(1)
    for low, high in zip(first, last):
        reached = np.convolve(weights, cell[: high - start + 1])
        start, weights = low, reached[low - start : high - start + 1]
    left = replications - start - np.arange(len(weights))
    total = _poisson(np.array(replications), replications)
    return float(min(1.0, weights @ cell[left] / total))


def _poisson(count: np.ndarray, rate: float) -> np.ndarray:
    """Probabilities of counts."""
    found: np.ndarray = np.exp(special.xlogy(count, rate) - rate - special.gammaln(count + 1))
    return found
