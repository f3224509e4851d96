"""The arithmetic of convergence statistics, on blocks of columns (entry, chain, draw).

`convergence.py` is the public face: it checks draws, turns them into columns and calls these
functions, which trust what they get: finite float64 values, at least one chain, at least four
draws where chains are split. Each returns one number per entry. "Units" are centred and scaled
columns, "halves" are columns whose chains are split.

Read `effective_size` first. Notation and formulas: Vehtari, Gelman, Simpson, Carpenter and
Buerkner (2021).
"""

import math

import numpy as np
from numpy.fft import irfft, rfft
from scipy.special import ndtri

__all__ = [
    "effective_size",
    "effective_size_below",
    "fast_size",
    "mean_error_of_units",
    "narrowest_interval",
    "normal_scores",
    "ordered_draws",
    "quantile_of",
    "rank_rhat",
    "rhat_of_halves",
    "rhat_of_scores",
    "sd_error_of_units",
    "sd_of_units",
    "split",
    "standard_units",
    "tail_size",
    "varies",
]


# Pairs of lags of which autocorrelations are made one by one: draws of NUTS stop after one to four.
FEW_PAIRS = 8


def normal_scores(columns):
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
    flat = columns.reshape(len(columns), -1)
    size = flat.shape[1]
    order = np.argsort(flat, axis=1)
    ordered = np.sort(flat, axis=1)  # quicker than by the order
    scores = np.empty(flat.shape)
    tied = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    quantiles = ndtri((np.arange(size) + 0.625) / (size + 0.25))
    np.put_along_axis(scores, order, np.broadcast_to(quantiles, flat.shape), axis=1)
    if tied.any():
        scores[tied] = _tied_scores(order[tied], ordered[tied])
    return scores.reshape(columns.shape)


def _tied_scores(order, ordered):
    """`normal_scores` where values are equal: each has their average rank."""
    size = ordered.shape[1]
    position = np.arange(size)
    starts = np.ones(ordered.shape, bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.maximum.accumulate(np.where(starts, position, 0), axis=1)
    ends = np.ones(ordered.shape, bool)
    ends[:, :-1] = starts[:, 1:]
    last = np.minimum.accumulate(np.where(ends, position, size)[:, ::-1], axis=1)[:, ::-1]
    # Average ranks are half integers, so 2 size - 1 normal quantiles serve all entries.
    half_ranks = np.arange(2 * size - 1) / 2.0 + 1.0
    quantiles = ndtri((half_ranks - 0.375) / (size + 0.25))
    scores = np.empty(ordered.shape)
    np.put_along_axis(scores, order, quantiles[first + last], axis=1)
    return scores


def split(columns):
    """Halve each chain; of an odd number of draws the middle one is left out."""
    half = columns.shape[2] // 2
    return np.concatenate([columns[:, :, :half], columns[:, :, -half:]], axis=1)


def standard_units(columns):
    """Centre entries and scale them by powers of two, so that no square overflows or vanishes.

    Returns the scaled deviations, the means, and the exponents: deviation = 2^exponent times the
    scaled one.
    """
    _, magnitude = np.frexp(np.abs(columns).max(axis=(1, 2)))
    scaled = np.ldexp(columns, -magnitude[:, None, None])
    # An entry that never varies keeps its exact value; a rounded mean would make noise out of it.
    mean = np.where(varies(columns), scaled.mean(axis=(1, 2)), scaled[:, 0, 0])
    deviation = scaled - mean[:, None, None]
    _, spread = np.frexp(np.abs(deviation).max(axis=(1, 2)))
    return (
        np.ldexp(deviation, -spread[:, None, None]),
        np.ldexp(mean, magnitude),
        magnitude + spread,
    )


def varies(columns):
    """Tell which entries have at least two different values."""
    return columns.max(axis=(1, 2)) > columns.min(axis=(1, 2))


def sd_of_units(units):
    """Standard deviation with divisor S - 1 of centred values; 0 for a single draw."""
    size = units.shape[1] * units.shape[2]
    return np.sqrt((units**2).sum(axis=(1, 2)) / max(size - 1, 1))


def mean_error_of_units(units):
    """Standard error of the mean."""
    return sd_of_units(units) / np.sqrt(effective_size(split(units)))


def sd_error_of_units(units):
    """Standard error of the standard deviation, by the delta method on the variance."""
    squares = units**2
    variance = squares.mean(axis=(1, 2))
    variance_of_squares = np.maximum((squares**2).mean(axis=(1, 2)) - variance**2, 0.0)
    error = np.zeros(len(units))
    ess = effective_size(split(squares))
    np.divide(variance_of_squares, 4.0 * ess * variance, out=error, where=variance > 0)
    return np.sqrt(error)


def ordered_draws(columns):
    """Merge the chains and sort: (entry, chain * draw)."""
    return np.sort(columns.reshape(len(columns), -1), axis=1)


def quantile_of(ordered, prob):
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


def narrowest_interval(ordered, prob):
    """Ends (entry, 2) of the narrowest interval holding floor(prob * S) + 1 sorted draws."""
    reach = math.floor(prob * ordered.shape[1])
    starts = ordered.shape[1] - reach
    with np.errstate(over="ignore"):
        width = ordered[:, reach:] - ordered[:, :starts]
    first = np.argmin(width, axis=1)[:, None]
    return np.take_along_axis(ordered, np.concatenate([first, first + reach], axis=1), axis=1)


def rhat_of_halves(halves):
    """R-hat of chains that are already split."""
    draws = halves.shape[2]
    within = halves.var(axis=2, ddof=1).mean(axis=1)
    between = draws * halves.mean(axis=2).var(axis=1, ddof=1)
    # The variance of a stuck chain is rounding noise, not 0: ask for its range instead.
    moving = (halves.max(axis=2) > halves.min(axis=2)).any(axis=1)
    result = np.where(varies(halves), np.inf, np.nan)
    result[moving] = np.sqrt((between[moving] / within[moving] + draws - 1) / draws)
    return result


def rank_rhat(columns):
    """Rank-normalised split R-hat of columns."""
    return rhat_of_scores(normal_scores(split(columns)), columns)


def rhat_of_scores(scores, columns):
    """Rank-normalised R-hat, given the normal scores of the split chains."""
    # Half of everything cannot overflow. Centring first would round, and so undo ties of
    # |x - median|.
    halves = split(columns * 0.5)
    median = np.median(halves, axis=(1, 2), keepdims=True)
    folded = normal_scores(np.abs(halves - median))
    # Two values at equal distance from the median fold into one and give NaN: location decides.
    return np.fmax(rhat_of_halves(scores), rhat_of_halves(folded))


def effective_size_below(columns, quantile):
    """Effective size of the indicator of draws at most `quantile`."""
    return effective_size(split((columns <= quantile[:, None, None]).astype(float)))


def tail_size(columns, ordered, probs):
    """Effective size for the tails: the least of those below some quantiles."""
    sizes = [effective_size_below(columns, quantile_of(ordered, p)) for p in probs]
    return np.min(np.stack(sizes), 0)


def fast_size(n):
    """Return the smallest 2^a 3^b 5^c that is at least `n`: a length that Fourier transforms like.

    SciPy has a better table, but importing scipy.fft takes longer than the summary of a small
    model.
    """
    best = 1 << (n - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            best = min(best, three << max(0, -(-n // three) - 1).bit_length())
            three *= 3
        five *= 5
    return best


def effective_size(halves):
    """Effective sample size of the mean, for chains that are already split.

    The autocorrelation time tau sums autocorrelations in pairs P_t = rho_2t + rho_2t+1, which are
    positive and decreasing for a reversible chain: the sum stops at the first pair that is not
    positive and is made monotone (Geyer 1992). Of the last pair the even term is kept once, an
    improvement for antithetic chains (Vehtari et al. 2021, section 3.2).
    """
    total = halves.shape[1] * halves.shape[2]
    means = halves.mean(axis=2)
    centred = halves - means[:, :, None]
    variance = _autocovariance(centred, 0)
    pooled = variance + means.var(axis=1, ddof=1)
    moving = varies(halves) & (pooled > 0)
    tau = np.ones(len(halves))
    some = slice(None) if moving.all() else moving  # a slice copies nothing
    tau[some] = _autocorrelation_time(centred[some], variance[some], pooled[some])
    tau = np.maximum(tau, 1.0 / math.log10(total))
    return np.where(moving, total / tau, float(total))


def _autocovariance(centred, lag):
    """Autocovariance at one lag, the mean over the chains of each entry."""
    _, chains, draws = centred.shape
    ahead, behind = centred[:, :, lag:], centred[:, :, : draws - lag]
    return np.einsum("ecd,ecd->e", ahead, behind) / (chains * draws)


def _autocorrelation_time(centred, variance, pooled):
    """Tau of entries that vary.

    Most sums stop after a few pairs, which are cheaper one lag at a time; for the rest all lags are
    made at once by Fourier transforms.
    """
    draws = centred.shape[2]
    # rho is (missing + autocovariance) / pooled.
    missing = pooled - variance * draws / (draws - 1.0)
    pairs = max((draws - 1) // 2, 1)
    few = min(FEW_PAIRS, pairs - 1)
    tau = np.empty(len(centred))
    left = np.arange(len(centred))
    rho = np.zeros((len(centred), 2 * few))
    for k in range(few):
        if not left.size:
            break
        for lag in (2 * k, 2 * k + 1):
            found = variance[left] if lag == 0 else _autocovariance(centred, lag)
            rho[left, lag] = 1.0 if lag == 0 else (missing[left] + found) / pooled[left]
        stopped = rho[left, 2 * k] + rho[left, 2 * k + 1] <= 0.0
        if stopped.any():
            done = left[stopped]
            tau[done] = _tau(rho[done, : 2 * k + 2])
            left, centred = left[~stopped], centred[~stopped]
    if left.size:
        size = fast_size(2 * draws)
        spectrum = rfft(centred, size, axis=2)
        # The transform is linear: the chains' autocovariances are averaged before it is inverted.
        power = (spectrum.real**2 + spectrum.imag**2).mean(axis=1)
        autocov = irfft(power, size, axis=1)[:, : 2 * pairs] / draws
        rho = (missing[left, None] + autocov) / pooled[left, None]
        rho[:, 0] = 1.0
        tau[left] = _tau(rho)
    return tau


def _tau(rho):
    """Geyer's sum over pairs of autocorrelations, up to the first that is not positive."""
    even, odd = rho[:, 0::2], rho[:, 1::2]
    pair = even + odd
    pairs = pair.shape[1]
    positive = pair > 0
    last = np.where(positive.all(axis=1), pairs - 1, np.argmin(positive, axis=1))
    before_last = np.arange(pairs) < last[:, None]
    head = np.where(before_last, np.minimum.accumulate(pair, axis=1), 0.0).sum(axis=1)
    row = np.arange(len(rho))
    last_even = even[row, last]
    tail = np.where((last_even > 0) | (pair[row, last] >= 0), last_even, 0.0)
    return -1.0 + 2.0 * head + tail
