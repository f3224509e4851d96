"""R-hat, effective sizes and intervals in the forms that Pyro and NumPyro report.

They are of the draws as they are, without ranks: prefer `rhat` and `ess_bulk` (convergence.py),
which see chains that differ in spread and do not need a variance. Names, arguments and numbers are
NumPyro's; with ``bias=False`` effective sizes are Pyro's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.convergence import autocovariance, split_rhat
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.entrywise import checked_draws, checked_prob
from probtorch.diagnostics.summary import summary
from probtorch.errors import ShapeError

__all__ = [
    "autocorrelation",
    "effective_sample_size",
    "gelman_rubin",
    "hpdi",
    "print_summary",
    "split_gelman_rubin",
]


def gelman_rubin(x: ArrayLike, chain_dim: int = 0, sample_dim: int = 1) -> np.ndarray:
    """R-hat of whole chains: the root of the pooled variance over the mean variance within.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws; at least 2 chains and 2 draws.
    chain_dim, sample_dim : int
        Where chains and draws are.

    Returns
    -------
    ndarray, shape (*event,)
        NaN for an entry that never varies.

    Raises
    ------
    ShapeError
        If there are too few chains or draws.

    References
    ----------
    [gelman1992]_, without the correction for degrees of freedom.
    """
    x = _arranged("gelman_rubin", x, chain_dim, sample_dim, chains=2, draws=2)
    within, pooled = _variances(x)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt(pooled / within)


def split_gelman_rubin(x: ArrayLike, chain_dim: int = 0, sample_dim: int = 1) -> np.ndarray:
    """R-hat of half chains, as `split_rhat`.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws; at least 4.
    chain_dim, sample_dim : int
        Where chains and draws are.

    Returns
    -------
    ndarray, shape (*event,)

    Raises
    ------
    ShapeError
        If there are too few draws.
    """
    return split_rhat(_arranged("split_gelman_rubin", x, chain_dim, sample_dim, draws=4))


def effective_sample_size(
    x: ArrayLike, chain_dim: int = 0, sample_dim: int = 1, *, bias: bool = True
) -> np.ndarray:
    """Effective number of independent draws for the mean, of chains that are not split.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws; at least 2.
    chain_dim, sample_dim : int
        Where chains and draws are.
    bias : bool
        Autocovariances with divisor n, as NumPyro's; else n - lag, as Pyro's, which is the noisier
        form.

    Returns
    -------
    ndarray, shape (*event,)

    Raises
    ------
    ShapeError
        If there are too few draws.

    References
    ----------
    Geyer (1992), "Practical Markov chain Monte Carlo": the sum of pairs of autocorrelations, made
    to decrease and cut at 0.
    """
    x = _arranged("effective_sample_size", x, chain_dim, sample_dim, draws=2)
    within, pooled = _variances(x)
    if len(x) == 1:
        within = pooled
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = 1.0 - (within - autocovariance(x, bias=bias).mean(axis=0)) / pooled
    rho[0] = 1.0
    pairs = rho[:-1:2] + rho[1::2]
    pairs[1:] = np.minimum.accumulate(np.maximum(pairs[1:], 0.0), axis=0)
    return x.shape[0] * x.shape[1] / (2.0 * pairs.sum(axis=0) - 1.0)


def autocorrelation(x: ArrayLike, axis: int = 0, bias: bool = True) -> np.ndarray:
    """Autocorrelation along an axis, at all lags.

    Parameters
    ----------
    x : array_like
    axis : int
        Where the draws are.
    bias : bool
        As `autocovariance`.

    Returns
    -------
    ndarray, of the shape of `x`
        `autocovariance` over that of lag 0; NaN for draws that never vary.
    """
    found = autocovariance(np.asarray(x), axis, bias)
    with np.errstate(invalid="ignore", divide="ignore"):
        return found / np.take(found, [0], axis=axis)


def hpdi(x: ArrayLike, prob: float = 0.9, axis: int = 0) -> np.ndarray:
    """Narrowest interval between two draws that are ``int(prob * n)`` ranks apart.

    `hdi` has chains and draws in front, and the ends last.

    Parameters
    ----------
    x : array_like
        Real draws.
    prob : float, in (0, 1)
    axis : int
        Where the draws are.

    Returns
    -------
    ndarray
        As `x`, with the lower and the upper end in place of the draws.

    Raises
    ------
    DomainError
        If `prob` is not inside (0, 1).

    Examples
    --------
    >>> hpdi([0.0, 1.0, 1.5, 2.0, 9.0], 0.6)
    array([0., 2.])
    """
    prob = checked_prob("hpdi", prob)
    ordered = np.sort(np.moveaxis(np.asarray(x), axis, 0), axis=0)
    apart = int(prob * len(ordered))
    widths = ordered[apart:] - ordered[: len(ordered) - apart]
    first = widths.argmin(axis=0)[None]
    ends = [np.take_along_axis(ordered, first + shift, axis=0) for shift in (0, apart)]
    return np.moveaxis(np.concatenate(ends), 0, axis)


def print_summary(
    samples: Mapping[str, ArrayLike] | ArrayLike, prob: float = 0.9, group_by_chain: bool = True
) -> None:
    """Print the table of `summary` for draws by name.

    Parameters
    ----------
    samples : dict of str to array_like, or array_like
        Of shape (chain, draw, *event), without chains (draw, *event).
    prob : float, in (0, 1)
        Share of the draws in the interval.
    group_by_chain : bool
        Whether there is a dim of chains in front.

    Notes
    -----
    Effective sizes and R-hat are the rank-normalised ones, which NumPyro's table has not.
    """
    named = samples if isinstance(samples, Mapping) else {"Param:0": samples}
    arrays = {name: np.asarray(x) for name, x in named.items()}
    draws = Draws(arrays if group_by_chain else {name: x[None] for name, x in arrays.items()})
    print(summary(draws, hdi_prob=prob))


# ------------------------------------------------------------------------------------------ helpers


def _arranged(
    subject: str, x: ArrayLike, chain_dim: int, sample_dim: int, *, draws: int, chains: int = 1
) -> np.ndarray:
    """Draws as float64 of shape (chain, draw, *event), as many as are needed."""
    x = checked_draws(subject, x)
    x = np.moveaxis(x, (chain_dim, sample_dim), (0, 1)).astype(np.float64)
    if x.shape[0] < chains or x.shape[1] < draws:
        raise ShapeError(
            subject, expected=f"at least {chains} chains of {draws} draws",
            got=f"{x.shape[0]} chains of {x.shape[1]}",
            fix="split_gelman_rubin takes one chain" if x.shape[0] < chains else "draw more",
        )  # fmt: skip
    return x


def _variances(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean variance within chains, and the estimate that is pooled over them."""
    within = x.var(axis=1, ddof=1).mean(axis=0)
    pooled = within * (x.shape[1] - 1) / x.shape[1]
    if len(x) > 1:
        pooled = pooled + x.mean(axis=1).var(axis=0, ddof=1)
    return within, pooled


explain_calls(globals())
