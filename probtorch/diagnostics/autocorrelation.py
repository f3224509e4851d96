"""Effective sample sizes: how long draws remember, and what R-hat compares.

Draws come as columns whose chains are halved, (entry, half, draw). The autocorrelation time tau
sums autocorrelations in pairs P_t = rho_2t + rho_2t+1, which are positive and decreasing for a
reversible chain: the sum stops at the first pair that is not positive and is made monotone (Geyer
1992). Of the last pair the even term is kept once, an improvement for antithetic chains (Vehtari et
al. 2021, section 3.2).

Most sums stop after a few pairs, which are cheaper one lag at a time, for the entries that still
want them; for the rest all lags are made at once by Fourier transforms. Of large blocks native code
makes the first lags. Draws that are 0 or 1 are multiplied 64 at a time, as bits.

Read `effective_size` first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.fft import irfft, rfft

from probtorch.diagnostics import native_halves

__all__ = [
    "Halves",
    "effective_size",
    "effective_size_of_bits",
    "fast_size",
    "rhat_of_halves",
    "rhat_of_moments",
    "sure",
]

# Pairs of lags that are made one by one, from one look at the sums to the next: half of the sums of
# independent draws stop at the second pair, and a transform takes about as long as 16 pairs.
STEPS = (2, 2, 4)
# Where native code made the first lags, they come first, all together.
EARLY_STEPS = (native_halves.LAGS // 2, 4)
# Bits are multiplied so quickly that more of them come before a transform.
STEPS_OF_BITS = (2, 2, 4, 8)

# A variance below this share of the squared mean may be rounding noise of values that never vary.
NOISE = 1e-20


@dataclass(frozen=True, eq=False, slots=True)
class Halves:
    """Halved chains and their moments.

    Attributes
    ----------
    deviations : ndarray, shape (entry, half, draw)
        From the mean of the half.
    means : ndarray, shape (entry, half)
    variance : ndarray, shape (entry,)
        With divisor n; the mean over the halves.
    early : ndarray, shape (entry, lag), or None
        Autocovariances at the first lags, where they are known.
    """

    deviations: np.ndarray
    means: np.ndarray
    variance: np.ndarray
    early: np.ndarray | None = None

    @classmethod
    def of(cls, halves: np.ndarray, *, overwrite: bool = False) -> Halves:
        """Centre halves (entry, half, draw), in their own memory with `overwrite`."""
        if native_halves.worth_it(halves):
            centred = halves if overwrite and halves.flags.c_contiguous else halves.copy()
            means, early = native_halves.remember(centred)
            return cls(centred, means, early[:, 0], early)
        means = halves.mean(axis=2)
        centred = np.subtract(halves, means[:, :, None], out=halves if overwrite else None)
        return cls(centred, means, _autocovariance(centred, 0))

    @property
    def pooled(self) -> np.ndarray:
        """Variance within halves plus that between their means."""
        return self.variance + self.means.var(axis=1, ddof=1)

    def within(self) -> np.ndarray:
        """Tell which entries have a half with at least two different values."""
        return self._certain(
            self.variance, lambda rows: np.ptp(self.deviations[rows], axis=2).max(axis=1) > 0
        )

    def vary(self) -> np.ndarray:
        """Tell which entries have at least two different values."""
        between = np.ptp(self.means, axis=1) > 0
        return self.within() | self._certain(self.pooled, lambda rows: between[rows])

    def _certain(
        self, variance: np.ndarray, looked_at: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Whether a variance is one, looking at the values where it may be rounding noise."""
        found = sure(self.means, variance)
        if not found.all():
            doubtful = np.flatnonzero(~found)
            found[doubtful] = looked_at(doubtful)
        return found


def rhat_of_halves(halves: Halves) -> np.ndarray:
    """Return R-hat of chains that are already split, shape (entry,)."""
    # The variance of a stuck chain is rounding noise, not 0.
    moving, varying = halves.within(), halves.vary()
    return rhat_of_moments(
        halves.means, halves.variance, halves.deviations.shape[2], moving, varying
    )


def sure(means: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Tell of which entries, given moments of their halves, the variance is no rounding noise."""
    return variance > NOISE * np.square(means).max(axis=1)


def rhat_of_moments(
    means: np.ndarray,
    variance: np.ndarray,
    draws: int,
    moving: np.ndarray,
    varying: np.ndarray,
) -> np.ndarray:
    """Return R-hat, shape (entry,), given the moments of `Halves` and their number of draws.

    `moving` tells which entries vary within a half, `varying` which do at all.
    """
    within = variance * (draws / (draws - 1.0))
    between = draws * means.var(axis=1, ddof=1)
    result = np.where(varying, np.inf, np.nan)
    result[moving] = np.sqrt((between[moving] / within[moving] + draws - 1) / draws)
    return result


def effective_size(halves: Halves) -> np.ndarray:
    """Return the effective sample size of the mean, for chains that are already split.

    Parameters
    ----------
    halves : Halves

    Returns
    -------
    ndarray, shape (entry,)
        The number of draws where an entry never varies.
    """
    _, count, draws = halves.deviations.shape
    pooled = halves.pooled
    return _size(
        _Series(halves.deviations, halves.early).rows,
        halves.variance,
        pooled,
        halves.vary() & (pooled > 0),
        (count, draws),
        STEPS if halves.early is None else EARLY_STEPS,
    )


def effective_size_of_bits(halves: np.ndarray) -> np.ndarray:
    """Return the effective sample size of the mean of draws that are 0 or 1.

    Parameters
    ----------
    halves : ndarray of bool, shape (entry, half, draw)

    Returns
    -------
    ndarray, shape (entry,)
    """
    bits = _Bits.of(halves)
    means = bits.means
    variance = (means * (1.0 - means)).mean(axis=1)
    pooled = variance + means.var(axis=1, ddof=1)
    return _size(bits.rows, variance, pooled, pooled > 0, halves.shape[1:], STEPS_OF_BITS)


def _size(
    series_of: Callable[[np.ndarray | slice], _Bits | _Series],
    variance: np.ndarray,
    pooled: np.ndarray,
    moving: np.ndarray,
    shape: tuple[int, ...],
    steps: tuple[int, ...],
) -> np.ndarray:
    """Effective sizes, given what makes the series of some of the entries."""
    total = math.prod(shape)
    tau = np.ones(len(pooled))
    some: np.ndarray | slice = slice(None) if moving.all() else moving  # a slice copies nothing
    of_some = variance[some], pooled[some]
    tau[some] = _autocorrelation_time(series_of(some), *of_some, shape[1], steps)
    tau = np.maximum(tau, 1.0 / math.log10(total))
    return np.where(moving, total / tau, float(total))


def _autocorrelation_time(
    series: _Bits | _Series,
    variance: np.ndarray,
    pooled: np.ndarray,
    draws: int,
    steps: tuple[int, ...],
) -> np.ndarray:
    """Tau of entries that vary."""
    # rho is (missing + autocovariance) / pooled.
    missing = pooled - variance * (draws / (draws - 1.0))
    pairs = max((draws - 1) // 2, 1)
    tau = np.empty(len(pooled))
    left = np.arange(len(pooled))
    for start, stop, at_once in _plan(steps, pairs):
        if not left.size:
            break
        if at_once:
            rho = series.first(2 * stop)
        else:
            rho = np.empty((2 * (stop - start), left.size))
            for i, lag in enumerate(range(2 * start, 2 * stop)):
                rho[i] = series.at(lag) if lag else variance
        rho += missing
        rho /= pooled
        if start == 0:
            rho[0] = 1.0
            # What the pairs so far add up to, and the least of them.
            head, lowest = np.zeros(left.size), np.full(left.size, np.inf)
        heads, lows, tail, stopped = _geyer(rho, head, lowest, stop == pairs)
        done = np.any(stopped, axis=0)
        if done.any():
            last = stopped[:, done].argmax(axis=0), np.flatnonzero(done)
            tau[left[done]] = 2.0 * heads[last] + tail[last] - 1.0
            going = ~done
            series = series.rows(going)
            left, missing, pooled = left[going], missing[going], pooled[going]
            heads, lows = heads[:, going], lows[:, going]
        head, lowest = heads[-1], lows[-1]
    return tau


def _plan(steps: tuple[int, ...], pairs: int) -> Iterator[tuple[int, int, bool]]:
    """Yield pairs of lags to make next, as start, stop, and whether by a transform."""
    stop = 0
    for step in steps:
        start, stop = stop, min(stop + step, pairs)
        if start < stop:
            yield start, stop, False
    if stop < pairs:
        # A transform of fewer lags is shorter: half as long for a quarter of them.
        if stop < pairs // 4:
            yield 0, pairs // 4, True
        yield 0, pairs, True


def _geyer(
    rho: np.ndarray, head: np.ndarray, lowest: np.ndarray, all_lags: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The terms of Geyer's sum, if it stopped at each of the pairs; arrays are (lag, entry).

    Returns the sum of the pairs before each one, with one row more for what comes after the last;
    the least of them up to each one; the even term to keep of each; and whether the sum stops.
    """
    even = rho[0::2]
    pair = even + rho[1::2]
    stopped = pair <= 0.0
    stopped[-1] |= all_lags
    lows = np.minimum(pair, lowest)
    np.minimum.accumulate(lows, axis=0, out=lows)
    heads = np.empty((len(pair) + 1, pair.shape[1]))
    heads[0] = head
    heads[1:] = lows
    np.add.accumulate(heads, axis=0, out=heads)
    return heads, lows, np.where((even > 0.0) | (pair >= 0.0), even, 0.0), stopped


# ------------------------------------------------------------------------------------------- series


class _Series:
    """Autocovariances, the mean over the halves of each entry, of deviations.

    `early` are those at the first lags, (entry, lag), where they are known.
    """

    def __init__(self, deviations: np.ndarray, early: np.ndarray | None) -> None:
        self.deviations, self.early = deviations, early

    def at(self, lag: int) -> np.ndarray:
        """Autocovariance at one lag."""
        if self.early is not None and lag < self.early.shape[1]:
            return self.early[:, lag]
        return _autocovariance(self.deviations, lag)

    def rows(self, some: np.ndarray | slice) -> _Series:
        """Only some of the entries."""
        return _Series(self.deviations[some], None if self.early is None else self.early[some])

    def first(self, lags: int) -> np.ndarray:
        """Autocovariances at the first `lags` lags, shape (lag, entry)."""
        return _autocovariances(self.deviations, lags)


@dataclass(frozen=True, eq=False, slots=True)
class _Bits:
    """As `_Series`, of draws that are 0 or 1: a product is an `and`, a sum counts bits.

    With c the number of draws at which a half is 1 now and `lag` draws later, m its mean, n its
    length and f the number of ones among its first and its last `lag` draws, the sum of products
    of deviations is c + m f - (n + lag) m^2.
    """

    halves: np.ndarray  # (entry, half, draw), bool
    words: np.ndarray  # the same, 64 draws each
    means: np.ndarray  # (entry, half)
    ends: np.ndarray  # sum over halves of m f, (entry, lag)

    @classmethod
    def of(cls, halves: np.ndarray) -> _Bits:
        entries, count, draws = halves.shape
        few = min(2 * sum(STEPS_OF_BITS), draws)
        filled = np.zeros((entries, count, -(-draws // 64) * 8), np.uint8)
        packed = np.packbits(halves, axis=2, bitorder="little")
        filled[:, :, : packed.shape[2]] = packed
        words = filled.view("<u8").astype(np.uint64, copy=False)
        means = np.bitwise_count(words).sum(axis=2, dtype=np.int64) / draws
        of_lag = np.add(halves[:, :, :few], halves[:, :, : -few - 1 : -1], dtype=np.float64)
        ends = np.zeros((entries, few + 1))
        np.cumsum(np.matmul(means[:, None, :], of_lag)[:, 0], axis=1, out=ends[:, 1:])
        return cls(halves, words, means, ends)

    def at(self, lag: int) -> np.ndarray:
        count, draws = self.halves.shape[1:]
        skipped, shift = divmod(lag, 64)
        later = self.words[:, :, skipped:]
        if shift:
            shifted = later >> np.uint64(shift)
            shifted[:, :, :-1] |= later[:, :, 1:] << np.uint64(64 - shift)
            later = shifted
        both = np.bitwise_count(self.words[:, :, : later.shape[2]] & later)
        ones = both.sum(axis=(1, 2), dtype=np.int64)
        squares = np.vecdot(self.means, self.means)
        return (ones + self.ends[:, lag] - (draws + lag) * squares) / (count * draws)

    def rows(self, some: np.ndarray | slice) -> _Bits:
        return _Bits(self.halves[some], self.words[some], self.means[some], self.ends[some])

    def first(self, lags: int) -> np.ndarray:
        return _autocovariances(self.halves - self.means[:, :, None], lags)


def _autocovariance(deviations: np.ndarray, lag: int) -> np.ndarray:
    """Autocovariance at one lag, the mean over the halves of each entry."""
    count, draws = deviations.shape[1:]
    ahead, behind = deviations[:, :, lag:], deviations[:, :, : draws - lag]
    return np.vecdot(ahead, behind).sum(axis=1) / (count * draws)


def _autocovariances(deviations: np.ndarray, lags: int) -> np.ndarray:
    """Autocovariances at the first lags, shape (lag, entry)."""
    count, draws = deviations.shape[1:]
    size = fast_size(draws + lags)
    spectrum = rfft(deviations, size, axis=2)
    # The transform is linear: the halves' autocovariances are averaged before it is inverted.
    real, imag = spectrum.real, spectrum.imag
    power = np.einsum("ehf,ehf->ef", real, real) + np.einsum("ehf,ehf->ef", imag, imag)
    return irfft(power, size, axis=1)[:, :lags].T / (count * draws)


def fast_size(n: int) -> int:
    """Return a length of at least `n` that NumPy's Fourier transforms like: 2^a, 3 2^a or 5 2^a."""
    return min(odd << max(0, -(-n // odd) - 1).bit_length() for odd in (1, 3, 5))
