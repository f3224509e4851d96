"""Pyro's ``ops.stats``: statistics of tensors, along any dim, that return tensors.

`probtorch.ops.stats` has them under that name. What they share with NumPyro is in
`older_forms.py`, for arrays; gradients flow through quantiles, scores and criteria, and not through
what comes from there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.diagnostics import older_forms
from probtorch.diagnostics.convergence import autocovariance as covariance_of_array
from probtorch.errors import ShapeError
from probtorch.factories import arange, as_tensor, ones, zeros
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.categories import multinomial
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.gathering import index_select
from probtorch.ops.movement import movedim, reshape
from probtorch.ops.order_statistics import quantile as quantile_of
from probtorch.ops.products import cdist
from probtorch.ops.sorting import sort
from probtorch.tensor import Tensor

__all__ = [
    "autocorrelation",
    "autocovariance",
    "crps_empirical",
    "effective_sample_size",
    "energy_score_empirical",
    "gelman_rubin",
    "hpdi",
    "pi",
    "quantile",
    "resample",
    "split_gelman_rubin",
    "waic",
    "weighed_quantile",
]


def gelman_rubin(input: Tensor, chain_dim: int = 0, sample_dim: int = 1) -> Tensor:
    """Return `older_forms.gelman_rubin`, of a tensor.

    Parameters
    ----------
    input : Tensor
    chain_dim, sample_dim : int
        Where chains and draws are.
    """
    return _like(input, older_forms.gelman_rubin(_array(input), chain_dim, sample_dim))


def split_gelman_rubin(input: Tensor, chain_dim: int = 0, sample_dim: int = 1) -> Tensor:
    """Return `older_forms.split_gelman_rubin`, of a tensor.

    Parameters
    ----------
    input : Tensor
    chain_dim, sample_dim : int
        Where chains and draws are.
    """
    return _like(input, older_forms.split_gelman_rubin(_array(input), chain_dim, sample_dim))


def effective_sample_size(input: Tensor, chain_dim: int = 0, sample_dim: int = 1) -> Tensor:
    """Return the effective number of draws, of autocovariances with divisor n - lag.

    Parameters
    ----------
    input : Tensor
    chain_dim, sample_dim : int
        Where chains and draws are.
    """
    x = _array(input)
    return _like(input, older_forms.effective_sample_size(x, chain_dim, sample_dim, bias=False))


def autocorrelation(input: Tensor, dim: int = 0) -> Tensor:
    """Return autocorrelations at all lags, with divisor n - lag; 1 for what never varies.

    Parameters
    ----------
    input : Tensor
    dim : int
        Where the draws are.
    """
    found = older_forms.autocorrelation(_array(input), dim, bias=False)
    constant = np.ptp(_array(input), axis=dim, keepdims=True) == 0.0
    return _like(input, np.where(constant, 1.0, found))


def autocovariance(input: Tensor, dim: int = 0) -> Tensor:
    """Return autocovariances at all lags, with divisor n - lag.

    Parameters
    ----------
    input : Tensor
    dim : int
        Where the draws are.
    """
    return _like(input, covariance_of_array(_array(input), dim, bias=False))


def resample(input: Tensor, num_samples: int, dim: int = 0, replacement: bool = False) -> Tensor:
    """Return draws of the rows of a tensor.

    Parameters
    ----------
    input : Tensor
    num_samples : int
    dim : int
        Where the rows are.
    replacement : bool
        Whether a row may come twice.
    """
    rows = multinomial(ones(input.shape[dim]), num_samples, replacement)
    return index_select(input, dim, rows)


def quantile(input: Tensor, probs: TensorLike, dim: int = 0) -> Tensor:
    """Return quantiles, interpolated linearly, in the place of the draws.

    Parameters
    ----------
    input : Tensor
    probs : float or sequence of float, in [0, 1]
        Of a number, `dim` goes.
    dim : int
        Where the draws are.
    """
    levels = as_tensor(probs, dtype=input.dtype)
    found = quantile_of(input, levels, dim=dim)
    return movedim(found, 0, dim) if levels.ndim else found


def weighed_quantile(
    input: Tensor, probs: Sequence[float] | Tensor, log_weights: Tensor, dim: int = 0
) -> Tensor:
    """Return quantiles of weighted draws, interpolated linearly between cumulated weights.

    Parameters
    ----------
    input : Tensor
    probs : sequence of float, in [0, 1]
    log_weights : Tensor, shape (draws,)
        Log weights, up to a constant.
    dim : int
        Where the draws are.

    Notes
    -----
    Cumulated weights are scaled so that the least draw has 0 and the largest 1, as in Pyro.
    """
    x = np.moveaxis(_array(input), dim, -1)
    weights = _array(log_weights)
    weights = np.exp(weights - weights.max())
    levels = np.asarray(probs, np.float64)
    order = np.argsort(x, axis=-1)
    ordered = np.take_along_axis(x, order, axis=-1)
    edges = np.cumsum(weights[order], axis=-1)
    edges = (edges - edges[..., :1]) / (edges[..., -1:] - edges[..., :1])
    rows = zip(edges.reshape(-1, x.shape[-1]), ordered.reshape(-1, x.shape[-1]), strict=True)
    found = np.array([np.interp(levels, at, values) for at, values in rows])
    return _like(input, np.moveaxis(found.reshape(*x.shape[:-1], len(levels)), -1, dim))


def pi(input: Tensor, prob: float, dim: int = 0) -> Tensor:
    """Return the interval that leaves out the same share of draws at both ends.

    Parameters
    ----------
    input : Tensor
    prob : float, in (0, 1)
        Share of the draws inside.
    dim : int
        Where the draws are, and the two ends in the result.
    """
    return quantile(input, [(1.0 - prob) / 2.0, (1.0 + prob) / 2.0], dim)


def hpdi(input: Tensor, prob: float, dim: int = 0) -> Tensor:
    """Return the narrowest interval, `older_forms.hpdi`, of a tensor.

    Parameters
    ----------
    input : Tensor
    prob : float, in (0, 1)
    dim : int
        Where the draws are, and the two ends in the result.
    """
    return _like(input, older_forms.hpdi(_array(input), prob, dim))


def waic(
    input: Tensor, log_weights: Tensor | None = None, pointwise: bool = False, dim: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the widely applicable information criterion, on the scale of the deviance.

    `diagnostics.waic` is on the scale of log densities, and has standard errors.

    Parameters
    ----------
    input : Tensor
        Log density of each observation at each draw.
    log_weights : Tensor, shape (draws,), optional
        Of the draws, up to a constant.
    pointwise : bool
        Return it by observation, else the sums.
    dim : int
        Where the draws are.

    Returns
    -------
    waic, p_waic : Tensor
        The second is the effective number of parameters.
    """
    x = movedim(input, dim, 0)
    given = zeros(len(x), dtype=x.dtype) if log_weights is None else log_weights
    logs = reshape(given - logsumexp(given, 0), (-1,) + (1,) * (x.ndim - 1))
    weights = logs.exp()
    density = logsumexp(x + logs, 0)
    mean = (weights * x).sum(0)
    spread = (weights * (x - mean) ** 2).sum(0) * (len(x) / (len(x) - 1.0))
    found = -2.0 * (density - spread)
    return (found, spread) if pointwise else (found.sum(), spread.sum())


def crps_empirical(pred: Tensor, truth: Tensor) -> Tensor:
    """Return the continuous ranked probability score of draws: smaller is better.

    Parameters
    ----------
    pred : Tensor, shape (draws, *batch)
    truth : Tensor, shape (*batch)

    Raises
    ------
    ShapeError
        If the shapes do not fit.
    """
    if tuple(pred.shape[1:]) != (1,) * (pred.ndim - truth.ndim - 1) + tuple(truth.shape):
        raise ShapeError(
            "crps_empirical", expected=f"pred of shape (draws, *{tuple(truth.shape)})",
            got=f"shape {tuple(pred.shape)}", fix="put the draws first",
        )  # fmt: skip
    n = len(pred)
    ordered = sort(pred, 0).values
    ranks = 2.0 * arange(n, dtype=pred.dtype) - (n - 1.0)
    apart = (reshape(ranks, (-1,) + (1,) * (pred.ndim - 1)) * ordered).sum(0) / n**2
    return absolute(pred - truth).mean(0) - apart


def energy_score_empirical(
    pred: Tensor, truth: Tensor, pred_batch_size: int | None = None
) -> Tensor:
    """Return the energy score of draws of vectors: smaller is better.

    Parameters
    ----------
    pred : Tensor, shape (*batch, draws, dim)
    truth : Tensor, shape (*batch, dim) or (*batch, truths, dim)
    pred_batch_size : int, optional
        How many draws are compared with all others at a time.

    Returns
    -------
    Tensor, shape (*batch) or (*batch, truths)

    Raises
    ------
    ShapeError
        If the shapes do not fit.
    """
    if pred.ndim - truth.ndim not in (0, 1):
        raise ShapeError(
            "energy_score_empirical", expected="pred (*batch, draws, dim), truth (*batch, dim)",
            got=f"shapes {tuple(pred.shape)} and {tuple(truth.shape)}",
            fix="put the draws next to the vectors",
        )  # fmt: skip
    one = pred.ndim > truth.ndim
    y = truth[..., None, :] if one else truth
    n = pred.shape[-2]
    step = n if pred_batch_size is None else pred_batch_size
    apart = sum(
        (cdist(pred[..., i : i + step, :], pred).sum((-1, -2)) for i in range(0, n, step)),
        start=zeros((), dtype=pred.dtype),
    )
    found = cdist(pred, y).mean(-2) - 0.5 * apart[..., None] / n**2
    return found[..., 0] if one else found


# ------------------------------------------------------------------------------------------ helpers


def _array(x: Tensor) -> np.ndarray:
    return np.asarray(as_tensor(x).detach().numpy(), np.float64)


def _like(x: Tensor, found: np.ndarray) -> Tensor:
    return wrap(np.asarray(found).astype(as_tensor(x).array.dtype))


explain_calls(globals())
