"""Low-rank mass matrices of few dimensions, of many windows at a time.

What `LowRank` (forms.py) says of a window, said of many side by side: with ten dimensions
NumPy's calls cost more than what they compute. Windows that are as long are one stack; a stack of
one is a stack like any other, so that what a chain is given does not depend on the chains that are
with it. Arrays have a row for each window, (windows, 2, n, dim) for draws and gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from probtorch.infer.mcmc.warm_up import estimates
from probtorch.infer.mcmc.warm_up.estimates import LEAST, Spectrum

__all__ = ["StackedRows", "gains_by_ridge", "spectra"]


class StackedRows:
    """Draws and gradients of windows that are as long, less their means; see `Rows`.

    Parameters
    ----------
    pairs : ndarray, shape (windows, 2, n, dim)

    Attributes
    ----------
    count : int
        n.
    pairs : ndarray, shape (windows, 2, n, dim)
        Centred.
    squares : ndarray, shape (windows, 2, dim)
        Sums of squares over rows.
    """

    def __init__(self, pairs: np.ndarray) -> None:
        self.count = pairs.shape[2]
        self.pairs = pairs - np.add.reduce(pairs, axis=2, keepdims=True) / self.count
        self.squares = np.einsum("wsnd,wsnd->wsd", self.pairs, self.pairs)

    def scaled(self, scale: np.ndarray) -> np.ndarray:
        """Return draws by scales (windows, dim), and gradients times scales."""
        return self.pairs * np.stack([1.0 / scale, scale], axis=1)[:, :, None]

    def rows(self, chosen: np.ndarray) -> StackedRows:
        """Return some of the windows."""
        some = object.__new__(StackedRows)
        some.count = self.count
        some.pairs, some.squares = self.pairs[chosen], self.squares[chosen]
        return some

    def halves(self) -> tuple[StackedRows, StackedRows]:
        """Return the earlier and the later half."""
        middle = self.count // 2
        return StackedRows(self.pairs[:, :, :middle]), StackedRows(self.pairs[:, :, middle:])

    def plain_misfit(self, variance: np.ndarray) -> np.ndarray:
        """Return `estimates.plain_misfit` of each window for its diagonal, (windows, dim)."""
        x, g = self.squares[:, 0], self.squares[:, 1]
        total = np.vecdot(x, 1.0 / variance) + np.vecdot(g, variance)
        return total / (2.0 * self.count * variance.shape[1])


class _Fits:
    """What `estimates.low_rank` finds, of each window with the same ridges.

    Attributes
    ----------
    scale, variances : ndarray, shape (windows, ridges, dim)
    vectors : ndarray, shape (windows, ridges, dim, dim)
        Directions are columns.
    """

    def __init__(self, stack: StackedRows, variance: np.ndarray, ridges: np.ndarray) -> None:
        scale = np.sqrt(variance)
        within = stack.scaled(scale)
        of_both = within.mT @ within / stack.count
        of_x, of_g = of_both[:, 0, None], of_both[:, 1, None]
        variances, self.vectors = estimates.geometric_mean(of_x, of_g, ridges[..., None, None])
        ordered, dim = np.sort(variances, axis=-1), variances.shape[-1]
        common = 0.5 * (ordered[..., dim // 2] + ordered[..., (dim - 1) // 2])[..., None]
        self.scale = scale[:, None] * np.sqrt(common)
        self.variances = variances / common

    def misfits(self, judge: StackedRows, cut: float) -> np.ndarray:
        """Return `estimates.misfit` of other rows, with directions within `cut` left out."""
        kept = np.abs(np.log(np.maximum(self.variances, LEAST))) > math.log(cut)
        found = np.empty(self.scale.shape[:2])
        for i in range(found.shape[1]):
            scale, variances = self.scale[:, i], self.variances[:, i]
            along = np.add.reduce((judge.scaled(scale) @ self.vectors[:, None, i]) ** 2, axis=2)
            excess = along[:, 0] * (1.0 / variances - 1.0) + along[:, 1] * (variances - 1.0)
            total = np.where(kept[:, i], excess, 0.0).sum(axis=1)
            found[:, i] = judge.plain_misfit(scale**2) + total / (
                2.0 * judge.count * scale.shape[1]
            )
        return found


def gains_by_ridge(
    stack: StackedRows, ridges: Sequence[float], cut: float, *, both_ways: bool
) -> np.ndarray:
    """Return what directions from the earlier half of the draws gain on the later.

    Parameters
    ----------
    stack : StackedRows
    ridges : sequence of float
    cut : float
        Directions with variances within this factor are left out.
    both_ways : bool
        Whether to take the mean of that and the other way round.

    Returns
    -------
    ndarray, shape (windows, ridges)
        Summed over all dimensions.
    """
    early, late = stack.halves()
    dim = stack.pairs.shape[-1]
    each = np.tile(ridges, (len(stack.pairs), 1))
    gains = np.zeros(each.shape)
    for sample, judge in [(early, late), (late, early)][: 1 + both_ways]:
        variance = estimates.diagonal(sample.squares.swapaxes(0, 1), 1.0)
        plain = judge.plain_misfit(variance)
        gains += plain[:, None] - _Fits(sample, variance, each).misfits(judge, cut)
    return 2.0 * dim / (1 + both_ways) * gains


def spectra(stack: StackedRows, variance: np.ndarray, ridges: np.ndarray) -> list[Spectrum]:
    """Return what all rows say of each window, given its diagonal and its ridge.

    Parameters
    ----------
    stack : StackedRows
    variance : ndarray, shape (windows, dim)
    ridges : ndarray, shape (windows,)
    """
    fits = _Fits(stack, variance, ridges[:, None])
    parts = zip(fits.scale[:, 0], fits.vectors[:, 0], fits.variances[:, 0])
    return [Spectrum(scale, vectors.T, variances) for scale, vectors, variances in parts]
