"""Dense mass matrices of many chains in step: what `MassMatrix` does for one, on stacked arrays.

The rules, and the order in which numbers are added, are those of warm_up/mass_matrix.py and of
`Dense`: tests compare draws bit for bit. Draws that were repeated are rows of zeros, which only a
single coordinate or windows of hundreds of draws are added up differently for.
"""

from __future__ import annotations

import contextlib

import numpy as np

from probtorch.infer.mcmc.warm_up import estimates
from probtorch.infer.mcmc.warm_up.forms import FEWEST, TO_CHOOSE
from probtorch.infer.mcmc.warm_up.mass_matrix import ARRIVED

__all__ = ["DenseWindows"]


class _Sums:
    """`Moments` of many chains: counts (chains,), means and squares (2, chains, dim)."""

    def __init__(self, count: np.ndarray, mean: np.ndarray, squares: np.ndarray) -> None:
        self.count, self.mean, self.squares = count, mean, squares

    @classmethod
    def empty(cls, chains: int, dim: int) -> _Sums:
        return cls(np.zeros(chains, int), *np.zeros((2, 2, chains, dim)))

    @classmethod
    def of(cls, pairs: np.ndarray, fine: np.ndarray) -> _Sums:
        """Those of rows (2, chains, n, dim) that are `fine`; the others are zero."""
        count = fine.sum(axis=1)
        mean = pairs.sum(axis=2) / count[:, None]
        apart = np.where(fine[..., None], pairs - mean[:, :, None], 0.0)
        return cls(count, mean, (apart**2).sum(axis=2))

    def __add__(self, other: _Sums) -> _Sums:
        count = self.count + other.count
        share = (other.count / count)[:, None]
        apart = other.mean - self.mean
        squares = self.squares + other.squares + (self.count[:, None] * share) * apart**2
        both = _Sums(count, self.mean + share * apart, squares)
        return both.where(self.count > 0, other).where(other.count > 0, self)

    def where(self, chosen: np.ndarray, otherwise: _Sums) -> _Sums:
        """These for some chains, others elsewhere."""
        return _Sums(
            np.where(chosen, self.count, otherwise.count),
            np.where(chosen[:, None], self.mean, otherwise.mean),
            np.where(chosen[:, None], self.squares, otherwise.squares),
        )


class DenseWindows:
    """What the warm-ups of many chains know about their dense mass matrices.

    Parameters
    ----------
    positions : ndarray, shape (chains, dim)
        Where they stand.
    length : int
        Transitions that will be shown.
    """

    def __init__(self, positions: np.ndarray, length: int) -> None:
        chains, dim = positions.shape
        self._rows = np.zeros((2, chains, length, dim))
        self._fine = np.zeros((chains, length), bool)
        self._seen, self._last = 0, positions.copy()
        self._older, self._background = _Sums.empty(chains, dim), _Sums.empty(chains, dim)
        # Where the two windows begin.
        self._begins = np.zeros((2, chains), int)

    @staticmethod
    def first(grads: np.ndarray) -> np.ndarray:
        """Return the factors of the metrics that gradients (chains, dim) ask for."""
        return np.sqrt(estimates.first_diagonal(grads))[..., None] * np.eye(grads.shape[1])

    def end_segment(self, positions: np.ndarray, grads: np.ndarray, *, switch: bool) -> None:
        """Let draws (chains, n, dim) and gradients count; see `MassMatrix.end_segment`."""
        count = positions.shape[1]
        before = np.concatenate([self._last[:, None], positions[:, :-1]], axis=1)
        fine = np.isfinite(grads).all(axis=2) & (positions != before).any(axis=2)
        self._last = positions[:, -1].copy()
        pairs = np.where(fine[..., None], np.stack([positions, grads]), 0.0)
        now = slice(self._seen, self._seen + count)
        self._rows[:, :, now], self._fine[:, now] = pairs, fine
        self._seen += count
        self._background = self._background + _Sums.of(pairs, fine)
        if switch:
            self._forget(np.ones(len(fine), bool))

    def _forget(self, chosen: np.ndarray) -> None:
        """Let the background of some chains be all that is old."""
        empty = _Sums.empty(*self._last.shape)
        self._older = self._background.where(chosen, self._older)
        self._background = empty.where(chosen, self._background)
        older, background = self._begins
        self._begins = np.stack(
            [np.where(chosen, background, older), np.where(chosen, self._seen, background)]
        )

    def learnt(self, factor: np.ndarray) -> np.ndarray:
        """Return the factors to go on with, given the present ones, (chains, dim, dim)."""
        arrived = (np.nan_to_num(self.shift(), nan=0.0) > ARRIVED) | (self._steepness() > ARRIVED)
        if arrived.any():
            self._forget(arrived)
        sums = self._older + self._background
        known = np.flatnonzero(sums.count >= FEWEST)
        if not known.size:
            return factor
        new = factor.copy()
        squares = sums.squares[:, known]
        variance = estimates.diagonal(squares, (factor[known] ** 2).sum(axis=2))
        few = sums.count[known] < TO_CHOOSE
        new[known[few]] = np.sqrt(variance[few])[..., None] * np.eye(factor.shape[1])
        many, variance = known[~few], variance[~few]
        begins = self._begins[0, many]
        for begin in np.unique(begins):
            # Only chains whose windows are as long: rounding must not depend on the others.
            alike = begins == begin
            try:
                new[many[alike]] = self._dense(many[alike], variance[alike])
            except np.linalg.LinAlgError:
                for i, v in zip(many[alike], variance[alike]):
                    with contextlib.suppress(np.linalg.LinAlgError):
                        # Of draws that overflow the present one stays: a later window does better.
                        new[i] = self._dense(np.array([i]), v[None])[0]
        return new

    def _dense(self, chosen: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Factors of the whole matrices of chains whose windows begin at the same draw."""
        window = slice(int(self._begins[0, chosen[0]]), self._seen)
        used, rows = self._fine[chosen, window], self._rows[:, chosen, window]
        count = used.sum(axis=1)[:, None, None]
        centred = np.where(used[..., None], rows - rows.sum(axis=2, keepdims=True) / count, 0.0)
        scale = np.sqrt(variance)
        within = centred * np.stack([1.0 / scale, scale])[:, :, None]
        ridges = [estimates.noisy_ridge(n, scale.shape[1]) for n in count.ravel().tolist()]
        covariance = estimates.dense_of_scaled(
            within, scale, count, np.array(ridges)[:, None, None]
        )
        return np.linalg.cholesky(covariance)

    def shift(self) -> np.ndarray:
        """Return what `MassMatrix.shift` does for each chain; nan where that is None."""
        older, late = self._older, self._background
        share = (older.mean[0] - late.mean[0]) ** 2 / (late.squares[0] / late.count[:, None])
        known = (older.count >= FEWEST) & (late.count >= TO_CHOOSE)
        return np.where(known, np.sqrt(_largest(share)), np.nan)

    def _steepness(self) -> np.ndarray:
        older, late = self._older, self._background
        known = (older.count >= FEWEST) & (late.count >= TO_CHOOSE)
        ratio = older.squares[1] / older.count[:, None] / (late.squares[1] / late.count[:, None])
        return np.where(known, np.sqrt(_largest(ratio)), 1.0)


def _largest(x: np.ndarray) -> np.ndarray:
    return np.nanmax(x, axis=1, initial=0.0)
