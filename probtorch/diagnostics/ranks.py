"""The order of many columns of draws, and the normal scores of their ranks.

One sort per column serves its quantiles, its narrowest interval and its scores. NumPy sorts numbers
several times faster than it finds their order, so positions are sorted along: they take the place
of the lowest bits of each number (`SortedRows.of`). Neighbours that differ by no more are compared
as they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from probtorch.core.late import special

__all__ = ["SortedRows", "normal_scores", "quantiles_of_ranks"]

# Of the 52 bits of a significand at least these stay: of 2,000 draws of a smooth distribution with
# a mean of 100 standard deviations, one column in a thousand then has a pair that they do not tell
# apart.
KEPT_BITS = 32

# Tables of up to so many elements are kept for the next block.
KEPT_ELEMENTS = 2**19


@dataclass(frozen=True, eq=False, slots=True)
class SortedRows:
    """Rows of numbers and their order; ``ordered[:, i]`` are the numbers at place i of that order.

    Attributes
    ----------
    rows : ndarray, shape (entry, draw)
        The numbers.
    positions : ndarray of int, shape (entry, draw)
        Where in `rows`, counted through all of them, the numbers are in ascending order.
    ties : ndarray of int, shape (n,)
        Places, counted through all rows, at which a number is followed by an equal one of its row;
        ascending.
    """

    rows: np.ndarray
    positions: np.ndarray
    ties: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> SortedRows:
        """Sort each of the rows, finite float64 values of shape (entry, draw)."""
        rows = np.ascontiguousarray(rows)
        low = (1 << (rows.size - 1).bit_length()) - 1 if rows.size else 0
        if low.bit_length() > 52 - KEPT_BITS:
            positions = _order(rows, np.arange(len(rows)))
            values = rows.ravel()[positions]
            return cls(rows, positions, _places(values[:, 1:] == values[:, :-1]))
        keys = rows.view(np.int64) & ~low
        keys |= _counted(*rows.shape)
        keys.view(np.float64).sort(axis=1)
        # What differs by no more than the lowest bits may be equal, or the wrong way round; so may
        # what differs in sign, which makes a negative number: 0.0 and -0.0.
        unsure = np.bitwise_xor(keys[:, 1:], keys[:, :-1]) <= low
        positions = np.bitwise_and(keys, low, out=keys)
        return cls(rows, positions, _put_right(rows, positions, unsure))

    @property
    def shape(self) -> tuple[int, ...]:
        """Entries and draws."""
        return self.rows.shape

    def __getitem__(
        self, places: np.ndarray | slice | tuple[slice, int | slice | list[int]]
    ) -> np.ndarray:
        return self.rows.ravel()[self.positions[places]]

    def scores(self) -> np.ndarray:
        """Return normal scores of the rows where they were: see `normal_scores`."""
        count, size = self.shape
        found = np.empty(count * size)
        found[self.positions.ravel()] = _untied(count, size)
        if self.ties.size:
            # Runs of equal values: where they begin, and where they end.
            new = np.flatnonzero(np.diff(self.ties) != 1)
            first = self.ties[np.concatenate([[0], new + 1])]
            last = self.ties[np.concatenate([new, [-1]])] + 1
            lengths = last - first + 1
            before = np.cumsum(lengths) - lengths
            where = np.arange(lengths.sum()) + np.repeat(first - before, lengths)
            shared = quantiles_of_ranks(size)[first + last - first // size * (2 * size)]
            found[self.positions.ravel()[where]] = np.repeat(shared, lengths)
        return found.reshape(count, size)


def _put_right(rows: np.ndarray, positions: np.ndarray, unsure: np.ndarray) -> np.ndarray:
    """Make an order exact where pairs of neighbours are unsure; returns where ties are."""
    flat, ordered, size = rows.ravel(), positions.ravel(), rows.shape[1]
    place = _places(unsure)
    this, following = flat[ordered[place]], flat[ordered[place + 1]]
    falls = this > following
    ties = place[this == following]
    if falls.any():
        # Mostly two neighbours change places, such as the two draws that are nearly as far from
        # their median as each other. What is around them is sure.
        several = np.zeros(len(place) + 1, bool)
        several[1:-1] = np.diff(place) == 1
        several = several[1:] | several[:-1]
        pair = place[falls & ~several]
        ordered[pair], ordered[pair + 1] = ordered[pair + 1], ordered[pair]
        anew = np.unique(place[falls & several] // size)
        if anew.size:
            positions[anew] = _order(rows, anew)
            values = flat[positions[anew]]
            mask = np.zeros(unsure.shape, bool)
            mask[anew] = values[:, 1:] == values[:, :-1]
            ties = np.union1d(ties[~np.isin(ties // size, anew)], _places(mask))
    return ties


def _places(pairs: np.ndarray) -> np.ndarray:
    """Places, counted through all rows, of the first of each pair of neighbours that is marked."""
    found = np.flatnonzero(pairs)
    return found + found // max(pairs.shape[1], 1)


def _order(rows: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Positions, counted through all rows, that sort some of them."""
    return np.argsort(rows[which], axis=1) + which[:, None] * rows.shape[1]


def _kept(make: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Keep what `make` returns for the next block of the same size, unless it is large."""
    cached = functools.lru_cache(maxsize=4)(make)

    @functools.wraps(make)
    def made(*sizes: int) -> np.ndarray:
        return cached(*sizes) if math.prod(sizes) <= KEPT_ELEMENTS else make(*sizes)

    return made


@_kept
def _counted(count: int, size: int) -> np.ndarray:
    """Positions in rows, counted through all of them."""
    return np.arange(count * size).reshape(count, size)


@_kept
def quantiles_of_ranks(size: int) -> np.ndarray:
    """Normal scores of the ranks 1, 1.5, 2, ... of `size` values."""
    ranks = np.arange(2 * size - 1) / 2.0 + 1.0
    return special.ndtri((ranks - 0.375) / (size + 0.25))


@_kept
def _untied(count: int, size: int) -> np.ndarray:
    """Normal scores of sorted rows of different values, one row after the other."""
    return np.tile(quantiles_of_ranks(size)[::2], count)


def normal_scores(columns: np.ndarray) -> np.ndarray:
    """Replace values by the normal quantiles of their ranks.

    Parameters
    ----------
    columns : ndarray, shape (entry, chain, draw)
        Finite values.

    Returns
    -------
    ndarray, shape (entry, chain, draw)
        ndtri((rank - 3/8) / (S + 1/4)) over the S values of an entry, ties at their average rank.

    References
    ----------
    Blom (1958); Vehtari et al. (2021), equation 14.
    """
    return SortedRows.of(columns.reshape(len(columns), -1)).scores().reshape(columns.shape)
