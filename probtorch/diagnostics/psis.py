"""Pareto smoothed importance sampling: how far an approximation is from its target.

A guide or a proposal gives draws; the ratios of target to proposal say how they would have to be
weighted. The largest ratios follow a generalised Pareto distribution whose shape `k` says how many
moments the weights have: below 0.5 the variance is finite, above 0.7 no practical number of draws
makes the estimate reliable. `psis` fits that tail and puts its quantiles in place of the largest
weights.

The method is that of Vehtari, Simpson, Gelman, Yao and Gabry (2024), "Pareto smoothed importance
sampling", JMLR 25(72); the fit is Zhang and Stephens (2009), "A new and efficient estimation method
for the generalized Pareto distribution", Technometrics 51(3).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from probtorch.core.signatures import explain_calls
from probtorch.errors import DomainError, ShapeError

__all__ = ["generalized_pareto", "pareto_k_limit", "psis"]

# Fewer draws than this leave a fifth of them, the tail, with fewer than five.
MIN_DRAWS = 25
# Log ratios closer together than this differ by rounding alone: the weights are all equal.
EQUAL = 1e-6
# The weakly informative prior of the shape: worth ten draws at 0.5 [vehtari2024, sec. 2.4].
PRIOR_DRAWS, PRIOR_SHAPE = 10, 0.5
# Scale of the prior of Zhang and Stephens, in units of the first quartile.
PRIOR_QUARTILES = 3.0


def psis(log_ratios: ArrayLike, *, reff: float = 1.0) -> tuple[np.ndarray, Any]:
    """Smooth importance weights with a generalised Pareto tail.

    Use it to make importance sampling estimates less variable and to learn, from `k`, when not to
    trust them.

    Parameters
    ----------
    log_ratios : array_like, shape (..., draws)
        Log target minus log proposal, natural log, any additive constant; -inf is a weight of 0.
    reff : float, > 0
        Relative efficiency of the draws; 1 for independent ones.

    Returns
    -------
    log_weights : ndarray, shape (..., draws)
        Normalised so that logsumexp over the last dim is 0.
    k : ndarray, shape (...), or float
        Pareto shape. Above `pareto_k_limit` the estimate is unreliable. It is -inf for weights that
        are all equal, and inf when fewer than five stand out, too few for a fit.

    Raises
    ------
    ShapeError
        If fewer than 25 draws are given.
    DomainError
        If a ratio is nan or +inf, or all of a row are -inf.

    Notes
    -----
    Cost is one sort per batch row.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal(4000)
    >>> _, k = psis(-0.5 * (x / 1.1) ** 2 + 0.5 * x**2)
    >>> bool(k < 0.5)
    True
    """
    ratios = np.array(log_ratios, np.float64)
    if ratios.ndim == 0 or ratios.shape[-1] < MIN_DRAWS:
        raise ShapeError(
            "psis",
            expected=f"log ratios of at least {MIN_DRAWS} draws along the last dim",
            got=f"shape {ratios.shape}",
            fix="make more draws, or put the draws last",
        )
    largest = ratios.max(axis=-1, keepdims=True)
    if not np.isfinite(largest).all():
        raise DomainError(
            "psis",
            expected="log ratios below infinity, with a finite one in each row",
            got="nan" if np.isnan(ratios).any() else f"a largest ratio of {np.max(largest)}",
            fix="look at the log densities that the ratios were made from",
        )
    weights = ratios - largest
    rows = weights.reshape(-1, weights.shape[-1])
    k = np.array([_smooth(row, reff) for row in rows]).reshape(weights.shape[:-1])
    weights -= np.log(np.exp(weights).sum(axis=-1, keepdims=True))
    return weights, k if k.ndim else float(k)


def pareto_k_limit(num_draws: int) -> float:
    """Return the largest `k` at which an estimate from so many draws can be trusted.

    ``min(1 - 1 / log10(num_draws), 0.7)`` [vehtari2024, sec. 3.2.4].
    """
    return min(1.0 - 1.0 / math.log10(num_draws), 0.7)


def _smooth(row: np.ndarray, reff: float) -> float:
    """Replace the largest weights of a row, in place, by quantiles of their fit; return k."""
    if row.min() > -EQUAL:
        return -math.inf
    draws = row.size
    length = math.ceil(min(draws / 5.0, 3.0 * math.sqrt(draws / reff)))
    order = np.argsort(row, kind="stable")
    # Weights that underflow are no tail, however few the others are.
    cutoff = max(row[order[-length - 1]], math.log(np.finfo(float).tiny))
    tail = order[-length:]
    tail = tail[row[tail] > cutoff]
    if tail.size < 5:
        return math.inf
    base = math.exp(cutoff)
    k, scale = generalized_pareto(np.exp(row[tail]) - base)
    if math.isfinite(k):
        p = np.arange(0.5, tail.size) / tail.size
        quantiles = -scale * np.log1p(-p) if k == 0.0 else scale * np.expm1(-k * np.log1p(-p)) / k
        # No weight may exceed the largest that was seen.
        row[tail] = np.minimum(np.log(quantiles + base), 0.0)
    return k


def generalized_pareto(exceedances: np.ndarray) -> tuple[float, ...]:
    """Return the shape and scale of a generalised Pareto distribution, fitted to its draws.

    Parameters
    ----------
    exceedances : ndarray, shape (n,), ascending, all > 0

    Returns
    -------
    k, scale : float
        ``P(X > x) = (1 + k x / scale)^(-1/k)``; the shape is drawn towards 0.5 by a prior worth ten
        draws.

    Notes
    -----
    With b = -k / scale the profile likelihood of b has one dimension; the estimate of b is its mean
    over a grid of quantiles of the prior of Zhang and Stephens.
    """
    n = exceedances.size
    grid = 30 + int(math.sqrt(n))
    quartile = exceedances[int(n / 4 + 0.5) - 1]
    b = 1.0 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    b = b / (PRIOR_QUARTILES * quartile) + 1.0 / exceedances[-1]
    shapes = np.log1p(-b[:, None] * exceedances).mean(axis=1)
    log_likelihood = n * (np.log(-b / shapes) - shapes - 1.0)
    weights = np.exp(log_likelihood - log_likelihood.max())
    weights /= weights.sum()
    b_mean = float(np.sum(b * weights))
    k = float(np.log1p(-b_mean * exceedances).mean())
    scale = -k / b_mean
    return (n * k + PRIOR_DRAWS * PRIOR_SHAPE) / (n + PRIOR_DRAWS), scale


explain_calls(globals())
