"""The arithmetic of convergence statistics, on blocks of columns (entry, chain, draw).

`convergence.py` is the public face: it checks draws, turns them into columns and calls these
functions, which trust what they get: finite float64 values, at least one chain, at least four
draws where chains are split. Each returns one number per entry. "Units" are centred and scaled
columns, "halves" are columns whose chains are split.

Ranks are made in `ranks.py`, autocorrelation times in `autocorrelation.py`. Notation and formulas:
Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021).
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.diagnostics import native_halves
from probtorch.diagnostics.autocorrelation import (
    Halves,
    effective_size,
    effective_size_of_bits,
    fast_size,
    rhat_of_halves,
    rhat_of_moments,
    sure,
)
from probtorch.diagnostics.ranks import SortedRows, normal_scores, quantiles_of_ranks

__all__ = [
    "bulk_size",
    "effective_size_below",
    "fast_size",
    "mean_error_of_units",
    "mean_size",
    "narrowest_interval",
    "normal_scores",
    "order_of_halves",
    "ordered_draws",
    "quantile_of",
    "rank_rhat",
    "rhat_of_scores",
    "scores_of_halves",
    "sd_error_of_units",
    "sd_of_units",
    "split",
    "split_rhat_of_units",
    "standard_units",
    "tail_size",
    "trust",
]

# Quantiles whose effective sizes are those of the tails.
TAIL_PROBS = (0.05, 0.95)

# Columns between these powers of two, and all that varies around zero, have fourth powers.
PLAIN = 120


def split(columns: np.ndarray) -> np.ndarray:
    """Halve each chain; of an odd number of draws the middle one is left out.

    Of an even number the halves are a view of the columns.
    """
    entries, chains, draws = columns.shape
    half = draws // 2
    if draws == 2 * half and columns.flags.c_contiguous:
        return columns.reshape(entries, 2 * chains, half)
    return np.concatenate([columns[:, :, :half], columns[:, :, draws - half :]], axis=1)


def standard_units(
    columns: np.ndarray, lowest: np.ndarray | None = None, highest: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centre entries and scale them by powers of two, so that no square overflows or vanishes.

    Returns the scaled deviations, the means, and the exponents: deviation = 2^exponent times the
    scaled one. `lowest` and `highest` are the extremes of the entries, where they are known.
    """
    lowest = columns.min(axis=(1, 2)) if lowest is None else lowest
    highest = columns.max(axis=(1, 2)) if highest is None else highest
    # An entry that never varies keeps its exact value; a rounded mean would make noise out of it.
    fixed = lowest == highest
    _, magnitude = np.frexp(np.maximum(-lowest, highest))
    if (np.abs(magnitude) < PLAIN).all():
        mean = np.where(fixed, lowest, columns.reshape(len(columns), -1).mean(axis=1))
        return columns - mean[:, None, None], mean, np.zeros(len(columns), magnitude.dtype)
    scaled = np.ldexp(columns, -magnitude[:, None, None])
    mean = np.where(fixed, scaled[:, 0, 0], scaled.mean(axis=(1, 2)))
    deviation = scaled - mean[:, None, None]
    _, spread = np.frexp(np.abs(deviation).max(axis=(1, 2)))
    return (
        np.ldexp(deviation, -spread[:, None, None]),
        np.ldexp(mean, magnitude),
        magnitude + spread,
    )


def _sum_of_squares(columns: np.ndarray) -> np.ndarray:
    flat = columns.reshape(len(columns), -1)
    return np.vecdot(flat, flat)


def sd_of_units(units: np.ndarray) -> np.ndarray:
    """Standard deviation with divisor S - 1 of centred values; 0 for a single draw."""
    size = units.shape[1] * units.shape[2]
    return np.sqrt(_sum_of_squares(units) / max(size - 1, 1))


def mean_size(units: np.ndarray) -> np.ndarray:
    """Effective size of the mean, in whose making the units are lost."""
    return effective_size(Halves.of(split(units), overwrite=True))


def mean_error_of_units(units: np.ndarray) -> np.ndarray:
    """Standard error of the mean, in whose making the units are lost."""
    sd = sd_of_units(units)
    return sd / np.sqrt(mean_size(units))


def sd_error_of_units(units: np.ndarray) -> np.ndarray:
    """Standard error of the standard deviation, by the delta method on the variance."""
    variance = _sum_of_squares(units) / (units.shape[1] * units.shape[2])
    squares = units**2
    halves = Halves.of(split(squares), overwrite=True)
    if units.shape[2] % 2:  # the halves lack a draw, and are copies
        variance_of_squares = squares.var(axis=(1, 2))
    else:
        variance_of_squares = halves.variance + halves.means.var(axis=1)
    error = np.zeros(len(units))
    ess = effective_size(halves)
    np.divide(variance_of_squares, 4.0 * ess * variance, out=error, where=variance > 0)
    return np.sqrt(error)


def split_rhat_of_units(units: np.ndarray) -> np.ndarray:
    """Split R-hat of the values as they are."""
    return rhat_of_halves(Halves.of(split(units)))


# -------------------------------------------------------------------------- quantiles and intervals


def ordered_draws(columns: np.ndarray) -> np.ndarray:
    """Merge the chains and sort: (entry, chain * draw)."""
    return np.sort(columns.reshape(len(columns), -1), axis=1)


def quantile_of(ordered: SortedRows | np.ndarray, prob: float) -> np.ndarray:
    """Quantile by linear interpolation, exact where neighbours are equal.

    With weights (1 - g) a + g b a tie a = b can come out an ulp below a, and "draws <= quantile"
    then misses the whole atom of a discrete variable.
    """
    # Rounding keeps a position meant to be whole from falling just below the draw it means.
    position = round((ordered.shape[1] - 1) * prob, 9)
    index = int(position)
    low = ordered[:, index]
    high = ordered[:, min(index + 1, ordered.shape[1] - 1)]
    weight = position - index
    return np.where(low == high, low, low * (1.0 - weight) + high * weight)


def narrowest_interval(ordered: SortedRows | np.ndarray, prob: float) -> np.ndarray:
    """Ends (entry, 2) of the narrowest interval holding floor(prob * S) + 1 sorted draws."""
    reach = math.floor(prob * ordered.shape[1])
    starts = ordered.shape[1] - reach
    lowest, highest = ordered[:, :starts], ordered[:, reach:]
    with np.errstate(over="ignore"):
        first = np.argmin(highest - lowest, axis=1)
    row = np.arange(len(first))
    return np.stack([lowest[row, first], highest[row, first]], axis=1)


# -------------------------------------------------------------------------------- ranks and tails


def order_of_halves(columns: np.ndarray, order: SortedRows | None = None) -> SortedRows:
    """Order of the draws that the halves have; `order` is that of all draws, where it is known."""
    if order is not None and columns.shape[2] % 2 == 0:
        return order
    return SortedRows.of(split(columns).reshape(len(columns), -1))


def scores_of_halves(order: SortedRows, columns: np.ndarray) -> Halves:
    """Halves of normal scores, given the order of the halves' draws."""
    entries, chains, draws = columns.shape
    scores = order.scores().reshape(entries, 2 * chains, draws // 2)
    return Halves.of(scores, overwrite=True)


def bulk_size(columns: np.ndarray) -> np.ndarray:
    """Effective size of the centre of the distribution."""
    return effective_size(scores_of_halves(order_of_halves(columns), columns))


def rank_rhat(columns: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat of columns."""
    order = order_of_halves(columns)
    return rhat_of_scores(scores_of_halves(order, columns), order, columns)


def rhat_of_scores(scores: Halves, order: SortedRows, columns: np.ndarray) -> np.ndarray:
    """Rank-normalised R-hat, given the normal scores of the halves and the order of their draws."""
    # Two values at equal distance from the median fold into one and give NaN: location decides.
    return np.fmax(rhat_of_halves(scores), _rhat_of_distances(order, columns))


def _rhat_of_distances(order: SortedRows, columns: np.ndarray) -> np.ndarray:
    """R-hat of the normal scores of distances from the median."""
    _, chains, draws = columns.shape
    largest = np.abs(order[:, [0, -1]]).max(initial=0.0)
    if not native_halves.worth_it(columns) or largest > np.finfo(float).max / 4.0:
        folded = SortedRows.of(_distances_from_median(split(columns), order))
        return rhat_of_halves(scores_of_halves(folded, columns))
    quantiles = quantiles_of_ranks(order.shape[1])
    means, variance = native_halves.fold(order.rows, order.positions, quantiles, 2 * chains)
    moving = sure(means, variance)
    result = rhat_of_moments(means, variance, draws // 2, moving, moving)
    if not moving.all():  # halves that may be stuck are looked at
        doubtful = columns[~moving]
        folded = SortedRows.of(_distances_from_median(split(doubtful), order_of_halves(doubtful)))
        result[~moving] = rhat_of_halves(scores_of_halves(folded, doubtful))
    return result


def _distances_from_median(halves: np.ndarray, ordered: SortedRows) -> np.ndarray:
    """Distances (entry, draw) from the median, half of them where the whole could overflow."""
    # Centring first would round, and so undo ties of |x - median|.
    size = ordered.shape[1]
    middle = ordered[:, size // 2 - 1 : size // 2 + 1]  # of halves there is an even number
    flat = halves.reshape(len(halves), -1)
    if np.abs(ordered[:, [0, -1]]).max(initial=0.0) > np.finfo(float).max / 4.0:
        flat, middle = flat * 0.5, middle * 0.5
    distance = flat - (middle[:, :1] * 0.5 + middle[:, 1:] * 0.5)
    return np.abs(distance, out=distance)


def effective_size_below(columns: np.ndarray, quantile: np.ndarray) -> np.ndarray:
    """Effective size of the indicator of draws at most `quantile`."""
    return effective_size_of_bits(split(columns) <= quantile[:, None, None])


def tail_size(
    columns: np.ndarray, ordered: SortedRows | np.ndarray, probs: tuple[float, ...]
) -> np.ndarray:
    """Effective size for the tails: the least of those below some quantiles."""
    halves = split(columns)
    below = np.concatenate([halves <= quantile_of(ordered, prob)[:, None, None] for prob in probs])
    return effective_size_of_bits(below).reshape(len(probs), -1).min(axis=0)


def trust(columns: np.ndarray, order: SortedRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bulk and tail effective sizes and R-hat, given the order of all draws."""
    tail = tail_size(columns, order, TAIL_PROBS)
    order = order_of_halves(columns, order)
    scores = scores_of_halves(order, columns)
    return effective_size(scores), tail, rhat_of_scores(scores, order, columns)
