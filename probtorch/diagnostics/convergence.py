"""How far draws can be trusted: R-hat, effective sample sizes and Monte Carlo standard errors.

All functions take draws as an array (chain, draw, *event) and return one number per entry of the
event, so a vector of parameters costs one call and no Python loop. The statistics are those of
Vehtari et al. (2021), whose notation the code follows: draws are split in halves, so that one
drifting chain shows, and are replaced by the normal scores of their ranks, so that heavy tails do
no harm.

Conventions for awkward draws, the same everywhere:

- an entry with a NaN or an infinity among its draws gives NaN;
- an entry that never varies gives R-hat NaN, an effective size equal to the number of draws (less
  the middle one of odd chains, which no half holds), and errors of 0;
- fewer than 4 draws per chain give NaN;
- one chain is enough: its two halves are compared.

The arithmetic is in `columns.py`, the loop over entries in `entrywise.py`; `statistics` is what
`summary.py` prints. Sources: Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), "Rank-
normalization, folding, and localization", Bayesian Analysis 16(2); Geyer (1992), "Practical Markov
chain Monte Carlo", for the truncation of the sum of autocorrelations; Betancourt (2016),
arXiv:1604.00695, for E-BFMI.
"""

from __future__ import annotations

import numpy as np
from numpy.fft import irfft, rfft
from numpy.typing import ArrayLike

from probtorch.core.late import special
from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.autocorrelation import fast_size
from probtorch.diagnostics.columns import (
    TAIL_PROBS,
    bulk_size,
    effective_size_below,
    mean_error_of_units,
    mean_size,
    narrowest_interval,
    ordered_draws,
    quantile_of,
    rank_rhat,
    sd_error_of_units,
    sd_of_units,
    split_rhat_of_units,
    standard_units,
    tail_size,
    trust,
)
from probtorch.diagnostics.entrywise import MIN_DRAWS, checked_draws, checked_prob, per_entry
from probtorch.diagnostics.ranks import SortedRows
from probtorch.errors import ShapeError

__all__ = [
    "autocovariance",
    "bfmi",
    "ess_bulk",
    "ess_mean",
    "ess_quantile",
    "ess_sd",
    "ess_tail",
    "mcse_mean",
    "mcse_quantile",
    "mcse_sd",
    "quality",
    "rhat",
    "split_rhat",
    "statistics",
]

# What `statistics` returns, in this order.
STATISTICS = (
    "mean", "sd", "hdi_low", "hdi_high", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat",
)  # fmt: skip

# Energies that `bfmi` takes at a time, or a chain's: it copies them some times.
BFMI_ELEMENTS = 2**18


# -------------------------------------------------------------------------------------------- R-hat


def rhat(x: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat: how much the chains disagree, in location or in spread.

    Use it to decide whether chains have reached the same distribution. At most 1.01 is the usual
    demand.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws.

    Returns
    -------
    ndarray, shape (*event,)
        The larger of two values: one of the draws, one of their distances from the median, which
        sees chains of equal location and different spread. NaN for an entry that never varies;
        infinity when every half chain is stuck at a value of its own.

    Raises
    ------
    ShapeError
        If `x` has no chain and draw dims.
    DTypeError
        If `x` is not numeric and real.

    Notes
    -----
    A single chain is split and judged by its halves, as Stan does; ArviZ returns NaN there.

    References
    ----------
    Vehtari et al. (2021), section 4.

    Examples
    --------
    >>> from numpy.random import default_rng
    >>> bool(rhat(default_rng(0).normal(size=(4, 1000))) < 1.01)
    True
    """
    return per_entry(rank_rhat, x)


def split_rhat(x: np.ndarray) -> np.ndarray:
    """Split R-hat of the draws as they are, without ranks.

    The older form (Gelman et al. 2013): misses chains that differ in spread, and is unreliable
    when the variance is infinite. Prefer `rhat`.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws.

    Returns
    -------
    ndarray, shape (*event,)

    Raises
    ------
    ShapeError, DTypeError
        As `rhat`.
    """
    return per_entry(lambda columns: split_rhat_of_units(standard_units(columns)[0]), x)


# --------------------------------------------------------------------------- effective sample sizes


def ess_bulk(x: np.ndarray) -> np.ndarray:
    """Effective number of independent draws for the centre of the distribution.

    Computed on normal scores of the ranks, so it exists for distributions without a variance. Ask
    for 100 per chain.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws.

    Returns
    -------
    ndarray, shape (*event,)
        May exceed the number of draws when they are negatively correlated, at most by a factor
        log10(draws).

    Raises
    ------
    ShapeError, DTypeError
        As `rhat`.

    References
    ----------
    Vehtari et al. (2021), section 3.
    """
    return per_entry(bulk_size, x)


def ess_tail(x: np.ndarray, prob: tuple[float, ...] = TAIL_PROBS) -> np.ndarray:
    """Effective number of independent draws for the tails: the smaller one of two quantiles.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws.
    prob : pair of float, in (0, 1)
        The two quantiles.

    Returns
    -------
    ndarray, shape (*event,)

    Raises
    ------
    DomainError
        If a probability is not inside (0, 1).
    ShapeError, DTypeError
        As `rhat`.
    """
    low, high = (checked_prob("ess_tail", p) for p in prob)
    return per_entry(lambda columns: tail_size(columns, ordered_draws(columns), (low, high)), x)


def ess_mean(x: np.ndarray) -> np.ndarray:
    """Effective number of independent draws for the mean.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws.

    Returns
    -------
    ndarray, shape (*event,)

    Raises
    ------
    ShapeError, DTypeError
        As `rhat`.
    """
    return per_entry(lambda columns: mean_size(standard_units(columns)[0]), x)


def ess_sd(x: np.ndarray) -> np.ndarray:
    """Effective number of independent draws for the standard deviation: that of squared deviations.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws.

    Returns
    -------
    ndarray, shape (*event,)

    Raises
    ------
    ShapeError, DTypeError
        As `rhat`.
    """
    return per_entry(lambda columns: mean_size(standard_units(columns)[0] ** 2), x)


def ess_quantile(x: np.ndarray, prob: float) -> np.ndarray:
    """Effective number of independent draws for one quantile.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws.
    prob : float, in (0, 1)
        Which quantile.

    Returns
    -------
    ndarray, shape (*event,)

    Raises
    ------
    DomainError
        If `prob` is not inside (0, 1).
    ShapeError, DTypeError
        As `rhat`.
    """
    prob = checked_prob("ess_quantile", prob)
    return per_entry(
        lambda columns: effective_size_below(columns, quantile_of(ordered_draws(columns), prob)), x
    )


# ---------------------------------------------------------------------- Monte Carlo standard errors


def mcse_mean(x: np.ndarray) -> np.ndarray:
    """Standard error of the mean of the draws, in the units of `x`.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws.

    Returns
    -------
    ndarray, shape (*event,)
        sd / sqrt(ess_mean).

    Raises
    ------
    ShapeError, DTypeError
        As `rhat`.
    """

    def statistic(columns: np.ndarray) -> np.ndarray:
        units, _, exponent = standard_units(columns)
        return np.ldexp(mean_error_of_units(units), exponent)

    return per_entry(statistic, x)


def mcse_sd(x: np.ndarray) -> np.ndarray:
    """Standard error of the standard deviation of the draws, in the units of `x`.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws.

    Returns
    -------
    ndarray, shape (*event,)

    Raises
    ------
    ShapeError, DTypeError
        As `rhat`.

    Notes
    -----
    The delta method on the variance: with s = (x - mean)^2, Var(sd) = Var(s) / ess(s) / (4
    mean(s)). It needs no normality, unlike the textbook sd / sqrt(2 ess).
    """

    def statistic(columns: np.ndarray) -> np.ndarray:
        units, _, exponent = standard_units(columns)
        return np.ldexp(sd_error_of_units(units), exponent)

    return per_entry(statistic, x)


def mcse_quantile(x: np.ndarray, prob: float) -> np.ndarray:
    """Standard error of one quantile of the draws, in the units of `x`.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws.
    prob : float, in (0, 1)
        Which quantile.

    Returns
    -------
    ndarray, shape (*event,)
        Half the distance between the draws at the ends of a one-sigma interval for the quantile's
        rank.

    Raises
    ------
    DomainError
        If `prob` is not inside (0, 1).
    ShapeError, DTypeError
        As `rhat`.

    References
    ----------
    Vehtari et al. (2021), section 4.4: the rank has a Beta distribution, so no density estimate is
    needed.
    """
    prob = checked_prob("mcse_quantile", prob)

    def statistic(columns: np.ndarray) -> np.ndarray:
        ordered = ordered_draws(columns)
        size = ordered.shape[-1]
        ess = effective_size_below(columns, quantile_of(ordered, prob))
        a, b = ess * prob + 1.0, ess * (1.0 - prob) + 1.0
        low = np.floor(special.betaincinv(a, b, special.ndtr(-1.0)) * size - 1.0)
        high = np.ceil(special.betaincinv(a, b, special.ndtr(1.0)) * size - 1.0)
        ends = np.stack([np.maximum(low, 0), np.minimum(high, size - 1)], axis=-1).astype(np.intp)
        below, above = np.take_along_axis(ordered, ends, axis=-1).T
        # Each is halved before the difference, which could overflow otherwise.
        return above / 2.0 - below / 2.0

    return per_entry(statistic, x)


# ------------------------------------------------------------------------- time series and energies


def autocovariance(x: np.ndarray, axis: int = 1, bias: bool = True) -> np.ndarray:
    """Autocovariance of each chain along its draws, at all lags.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws; with another `axis` of any shape.
    axis : int
        Where the draws are; NumPyro's default is 0.
    bias : bool
        Divide by n at all lags, else by the number of terms, n - t.

    Returns
    -------
    ndarray, of the shape of `x`
        Entry t of the draw dim is (1/n) sum_i (x[i] - mean) (x[i+t] - mean): the biased form,
        whose lag 0 is the variance with divisor n. NaN for a chain that is not finite.

    Raises
    ------
    ShapeError, DTypeError
        As `rhat`.

    Notes
    -----
    By the fast Fourier transform: n log n operations per chain.
    """
    x = np.asarray(x) if axis != 1 else checked_draws("autocovariance", x)
    x = np.moveaxis(x.astype(np.float64), axis, -1)
    n = x.shape[-1]
    finite = np.isfinite(x).all(axis=-1, keepdims=True)
    x = np.where(finite, x, np.nan)
    centred = x - x.mean(axis=-1, keepdims=True)
    size = fast_size(2 * n)
    spectrum = rfft(centred, size, axis=-1)
    power = spectrum.real**2 + spectrum.imag**2
    terms = n if bias else np.arange(n, 0.0, -1.0)
    return np.moveaxis(irfft(power, size, axis=-1)[..., :n] / terms, -1, axis)


def bfmi(energy: np.ndarray) -> np.ndarray:
    """Estimated Bayesian fraction of missing information of each chain (E-BFMI).

    Below 0.3, momentum resampling moves the energy too little for the chain to explore the tails.

    Parameters
    ----------
    energy : array_like, shape (chain, draw)
        Hamiltonian at each draw, natural log scale.

    Returns
    -------
    ndarray, shape (chain,)
        Mean squared change of the energy between draws over its variance; about 1 for a well
        matched kinetic energy. NaN when a chain's energy is constant, not finite, or shorter than
        two draws.

    Raises
    ------
    ShapeError
        If `energy` is not (chain, draw).
    DTypeError
        If `energy` is not numeric and real.

    References
    ----------
    Betancourt (2016), arXiv:1604.00695, equation 3.
    """
    energy = checked_draws("bfmi", energy)
    if energy.ndim != 2:
        raise ShapeError(
            "bfmi", expected="energy of shape (chain, draw)", got=f"shape {energy.shape}",
            fix="pass draws.sample_stats['energy']",
        )  # fmt: skip
    result = np.full(energy.shape[0], np.nan)
    if energy.shape[1] < 2:
        return result
    step = max(1, BFMI_ELEMENTS // energy.shape[1])
    for start in range(0, len(energy), step):
        some = energy[start : start + step].astype(np.float64)
        usable = np.isfinite(some).all(axis=1) & (np.ptp(some, axis=1) > 0)
        chains = some[usable]
        changes = np.mean(np.diff(chains, axis=1) ** 2, axis=1)
        result[start + np.flatnonzero(usable)] = changes / chains.var(axis=1, ddof=1)
    return result


# -------------------------------------------------------------------------------------- all at once


def statistics(x: ArrayLike, hdi_prob: float = 0.9) -> dict[str, np.ndarray]:
    """All columns of a summary at once, sharing the sorting between them.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws.
    hdi_prob : float, in (0, 1)
        Share of the draws in the narrowest interval.

    Returns
    -------
    dict of str to ndarray, each of shape (*event,)
        ``mean sd hdi_low hdi_high mcse_mean mcse_sd ess_bulk ess_tail r_hat``.

    Raises
    ------
    DomainError
        If `hdi_prob` is not inside (0, 1).
    ShapeError, DTypeError
        As `rhat`.

    Examples
    --------
    >>> columns = statistics(np.arange(40.0).reshape(4, 10))
    >>> float(columns["mean"])
    19.5
    """
    hdi_prob = checked_prob("hdi_prob", hdi_prob)
    x = checked_draws("statistics", x)
    long_enough = x.shape[1] >= MIN_DRAWS

    def statistic(columns: np.ndarray) -> np.ndarray:
        order = SortedRows.of(columns.reshape(len(columns), -1))
        units, mean, exponent = standard_units(columns, order[:, 0], order[:, -1])
        sd = np.ldexp(sd_of_units(units), exponent)
        location = [mean, sd, *narrowest_interval(order, hdi_prob).T]
        if not long_enough:
            return np.stack(location + [np.full(len(columns), np.nan)] * 5, axis=-1)
        error_of_sd = np.ldexp(sd_error_of_units(units), exponent)
        error = np.ldexp(mean_error_of_units(units), exponent)
        return np.stack([*location, error, error_of_sd, *trust(columns, order)], axis=-1)

    table = per_entry(statistic, x, result_shape=(len(STATISTICS),), min_draws=1)
    return {name: table[..., i] for i, name in enumerate(STATISTICS)}


def quality(x: np.ndarray, marked: np.ndarray | None = None) -> np.ndarray:
    """`rhat`, the smaller one of `ess_bulk` and `ess_tail`, and where marked draws lie.

    The sorting is shared between them.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws.
    marked : ndarray of bool, shape (chain, draw), optional
        Some of the draws, not all.

    Returns
    -------
    ndarray, shape (2, *event), or (3, *event) with marked draws
        The third one is the distance between the mean normal score of marked draws and of the
        rest; 0 is no relation. Ranks make it the same on either side of a monotone transform (tau
        or log tau).
    """

    def statistic(columns: np.ndarray) -> np.ndarray:
        order = SortedRows.of(columns.reshape(len(columns), -1))
        bulk, tail, r_hat = trust(columns, order)
        found = [r_hat, np.minimum(bulk, tail)]
        if marked is not None:
            scores, chosen = order.scores(), marked.ravel()
            found.append(np.abs(scores[:, chosen].mean(axis=1) - scores[:, ~chosen].mean(axis=1)))
        return np.stack(found, axis=-1)

    return np.moveaxis(per_entry(statistic, x, result_shape=(2 + (marked is not None),)), -1, 0)


explain_calls(globals())
