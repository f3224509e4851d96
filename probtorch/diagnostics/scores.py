"""How good a predictive distribution is where the truth is known: CRPS, energy score, PIT.

The empirical scores are of draws beside the truth. `loo_score` and `loo_pit` give each observation
the prediction of all others, by the weights of `loo` (criteria.py).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.criteria import Pointwise, pointwise_of
from probtorch.diagnostics.drawn import HasDraws, drawn
from probtorch.diagnostics.draws import Draws
from probtorch.errors import ArgumentError, ShapeError

__all__ = ["crps_empirical", "energy_score_empirical", "loo_pit", "loo_score"]

# Distances that are held at once.
BLOCK_ELEMENTS = 2**22


def crps_empirical(pred: ArrayLike, truth: ArrayLike) -> np.ndarray:
    """Return the continuous ranked probability score of draws: smaller is better.

    Parameters
    ----------
    pred : array_like, shape (draws, *batch)
        Draws of the prediction.
    truth : array_like, shape (*batch)

    Returns
    -------
    ndarray, shape (*batch)
        ``E|X - y| - E|X - X'| / 2``, in the unit of the data; of one draw the absolute error.

    Raises
    ------
    ShapeError
        If the shapes do not fit.

    References
    ----------
    [gneiting2007]_

    Examples
    --------
    >>> crps_empirical(np.array([[0.0], [1.0], [2.0]]), [1.0]).round(4)
    array([0.2222])
    """
    x, y = _paired("crps_empirical", pred, truth)
    flat = x.reshape(len(x), -1).T
    weights = np.full(flat.shape, 1.0 / len(x))
    near, apart = _distances(flat, weights, y.reshape(-1))
    return (near - 0.5 * apart).reshape(y.shape)


def energy_score_empirical(pred: ArrayLike, truth: ArrayLike) -> np.ndarray:
    """Return the energy score of draws of vectors: smaller is better.

    Parameters
    ----------
    pred : array_like, shape (draws, *batch, dim)
        Draws of the prediction.
    truth : array_like, shape (*batch, dim)

    Returns
    -------
    ndarray, shape (*batch)
        ``E||X - y|| - E||X - X'|| / 2`` with Euclidean norms; for ``dim=1`` that of
        `crps_empirical`.

    Raises
    ------
    ShapeError
        If the shapes do not fit.

    References
    ----------
    [gneiting2007]_

    Examples
    --------
    >>> energy_score_empirical(np.array([[[0.0, 0.0]], [[3.0, 4.0]]]), np.zeros((1, 2)))
    array([1.25])
    """
    x, y = _paired("energy_score_empirical", pred, truth)
    if not y.ndim:
        raise ShapeError(
            "energy_score_empirical", expected="truth of shape (*batch, dim)", got="shape ()",
            fix="use crps_empirical for numbers",
        )  # fmt: skip
    near = np.linalg.norm(x - y, axis=-1).mean(axis=0)
    step = max(1, BLOCK_ELEMENTS // max(x.size, 1))
    apart = np.zeros(y.shape[:-1])
    for start in range(0, len(x), step):
        part = x[start : start + step, None]
        apart += np.linalg.norm(part - x, axis=-1).sum(axis=(0, 1))
    return np.asarray(near - 0.5 * apart / len(x) ** 2)


def loo_score(
    draws: Draws | HasDraws, var_name: str | None = None, *, kind: str = "crps", seed: int = 0
) -> np.ndarray:
    """Return a score of the prediction of each observation by all others: smaller is better.

    Parameters
    ----------
    draws : Draws
        With groups ``log_likelihood``, ``posterior_predictive`` and ``observed_data``, or draws
        that know their model.
    var_name : str, optional
        Which observed site, where there are several.
    kind : {"crps", "scrps"}
        The continuous ranked probability score, in the unit of the data; or its scaled form
        ``E|X - y| / E|X - X'| + log(E|X - X'|) / 2``, to which observations with a large spread
        count no more than others.
    seed : int
        For the predictions, where the draws make them.

    Returns
    -------
    ndarray, shape (*observations)

    Raises
    ------
    ArgumentError
        If a group is missing, or the kind is another.

    References
    ----------
    [gneiting2007]_; [bolin2023]_ for the scaled form.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> mu, y = rng.normal(0.0, 0.3, (1, 2000, 1)), np.array([-1.0, 0.2, 0.9])
    >>> draws = Draws({"mu": mu}, groups={
    ...     "log_likelihood": {"y": -0.5 * (y - mu) ** 2},
    ...     "posterior_predictive": {"y": mu + rng.normal(size=(1, 2000, 3))},
    ...     "observed_data": {"y": y}})
    >>> loo_score(draws).shape
    (3,)
    """
    if kind not in ("crps", "scrps"):
        raise ArgumentError(
            "loo_score(kind=...)", expected="'crps' or 'scrps'", got=repr(kind),
            fix="leave it out for 'crps'",
        )  # fmt: skip
    data, x, y = _predicted(draws, var_name, "loo_score", seed)
    log_weights, _ = data.without_each()
    near, apart = _distances(x.T, np.exp(log_weights), y)
    found = near - 0.5 * apart if kind == "crps" else near / apart + 0.5 * np.log(apart)
    return data.of_each(found)


def loo_pit(draws: Draws | HasDraws, var_name: str | None = None, *, seed: int = 0) -> np.ndarray:
    """Return the probability, given all other observations, of less than what was observed.

    Parameters
    ----------
    draws : Draws
        With groups ``log_likelihood``, ``posterior_predictive`` and ``observed_data``, or draws
        that know their model.
    var_name : str, optional
        Which observed site, where there are several.
    seed : int
        For the predictions, where the draws make them, and for ties.

    Returns
    -------
    ndarray, shape (*observations), in [0, 1]
        Near uniform where the model's predictions are calibrated: many near 0 and 1 say that they
        are too narrow, few that they are too wide.

    Raises
    ------
    ArgumentError
        If a group is missing.

    Notes
    -----
    Where predictions are equal to the observation, as of counts, a uniform share of them is below
    it, so that the values are uniform for discrete data too.

    References
    ----------
    [gelfand1992]_; [czado2009]_ for ties.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> mu, y = rng.normal(0.0, 0.3, (1, 2000, 1)), np.array([-8.0, 0.0, 8.0])
    >>> draws = Draws({"mu": mu}, groups={
    ...     "log_likelihood": {"y": np.zeros((1, 2000, 3))},
    ...     "posterior_predictive": {"y": mu + rng.normal(size=(1, 2000, 3))},
    ...     "observed_data": {"y": y}})
    >>> loo_pit(draws).round(1)
    array([0. , 0.5, 1. ])
    """
    data, x, y = _predicted(draws, var_name, "loo_pit", seed)
    log_weights, _ = data.without_each()
    weights = np.exp(log_weights)
    below = (weights * (x < y).T).sum(axis=1)
    equal = (weights * (x == y).T).sum(axis=1)
    share = np.random.default_rng(seed).random(len(y))
    return data.of_each(np.clip(below + share * equal, 0.0, 1.0))


# ------------------------------------------------------------------------------------------ helpers


def _paired(subject: str, pred: ArrayLike, truth: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(pred, np.float64), np.asarray(truth, np.float64)
    if not x.ndim or x.shape[1:] != y.shape or not len(x):
        raise ShapeError(
            subject, expected=f"pred of shape (draws, *{y.shape}), as truth has {y.shape}",
            got=f"shape {x.shape}", fix="put the draws first, chains joined",
        )  # fmt: skip
    return x, y


def _distances(x: np.ndarray, weights: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E|X - y| and E|X - X'| of rows of weighted draws, (rows, draws); one sort per row."""
    near = (weights * np.abs(x - y[:, None])).sum(axis=1)
    order = np.argsort(x, axis=1)
    x, w = np.take_along_axis(x, order, axis=1), np.take_along_axis(weights, order, axis=1)
    # Each draw is above all before it and below all after it, whatever is in the middle.
    below = np.cumsum(w, axis=1)
    centred = x - x[:, :1]
    return near, 2.0 * (w * centred * (2.0 * below - w - 1.0)).sum(axis=1)


def _predicted(
    draws: Draws | HasDraws, var_name: str | None, subject: str, seed: int
) -> tuple[Pointwise, np.ndarray, np.ndarray]:
    """Log densities, predictions (draws, observations) and data (observations,) of a site."""
    draws = drawn(draws, subject)
    data = pointwise_of(draws, var_name, subject)
    name = data.var_name
    observed = draws.groups.get("observed_data", {})
    replicated = draws.replications(seed)
    for group, variables in (("observed_data", observed), ("posterior_predictive", replicated)):
        if name not in variables:
            raise ArgumentError(
                subject, expected=f"{name!r} among the variables of {group}",
                got=", ".join(variables) or "none",
                fix=f"draws.with_group({group!r}, {{{name!r}: ...}})",
            )  # fmt: skip
    y, x = np.asarray(observed[name], np.float64), np.asarray(replicated[name], np.float64)
    if y.shape != data.shape or x.shape[2:] != data.shape:
        raise ShapeError(
            subject, expected=f"numbers of shape {data.shape}, as the log densities have",
            got=f"data {y.shape}, predictions {x.shape[2:]}",
            fix="vectors have no order: score them with energy_score_empirical",
        )  # fmt: skip
    return data, x.reshape(-1, math.prod(data.shape)), y.reshape(-1)


explain_calls(globals())
