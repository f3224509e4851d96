"""Mass matrices from draws and gradients: what minimises the Fisher divergence to a normal.

The inverse mass matrix M is sought for which the draws x and the gradients g of their log density,
both centred, become alike after rescaling: ``M^(-1/2) x`` and ``M^(1/2) g``. The mean squared sum
of the two is least where M is the geometric mean of the covariance of the draws and the inverse of
that of the gradients. For a normal posterior that is its covariance, exactly, from as many draws as
dimensions; with draws alone it takes a hundred times as many. Of a diagonal M each entry is
``sqrt(var(x) / var(g))``.

`diagonal` needs sums only (`Moments`), the others the draws themselves, rows of an array. With less
draws than dimensions the covariances are known in the subspace that draws and gradients span, and
M is taken as diagonal beyond it.

References
----------
A. Seyboldt, E. Carlson, B. Carpenter, "Preconditioning Hamiltonian Monte Carlo by minimizing Fisher
divergence" (2026). T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample
variance", The American Statistician 37 (1983), for the moments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = [
    "RIDGE",
    "Fits",
    "Moments",
    "Rows",
    "Spectrum",
    "dense",
    "diagonal",
    "first_diagonal",
    "low_rank",
    "misfit",
    "noisy_ridge",
]

# Variances outside are no variances but overflow.
LEAST, MOST = 1e-20, 1e20
# Added to the variances of scaled draws and gradients, which are about 1: in a direction that one
# of them never took it decides. The small one is for what is near normal, where gradients say all;
# the other, this times the square of dimensions by draws and no more than the last, keeps noise
# from becoming directions where draws are as few as dimensions.
RIDGE, NOISY_RIDGE, LARGEST_RIDGE = 1e-5, 0.01, 0.1


@dataclass
class Moments:
    """Count, means and sums of squared deviations of draws and gradients, each (dim,)."""

    count: int
    mean: np.ndarray
    squares: np.ndarray
    grad_mean: np.ndarray
    grad_squares: np.ndarray

    @classmethod
    def empty(cls, dim: int) -> Moments:
        """Return moments of nothing."""
        return cls(0, np.zeros(dim), np.zeros(dim), np.zeros(dim), np.zeros(dim))

    @classmethod
    def of(cls, draws: np.ndarray, grads: np.ndarray) -> Moments:
        """Return the moments of rows."""
        n = len(draws)
        mean, grad_mean = draws.sum(axis=0) / n, grads.sum(axis=0) / n
        squares = ((draws - mean) ** 2).sum(axis=0)
        return cls(n, mean, squares, grad_mean, ((grads - grad_mean) ** 2).sum(axis=0))

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both (Chan et al. 1983)."""
        count = self.count + other.count
        if not count:
            return self
        share = other.count / count
        apart, grads_apart = other.mean - self.mean, other.grad_mean - self.grad_mean
        weight = self.count * share
        return Moments(
            count,
            self.mean + share * apart,
            self.squares + other.squares + weight * apart**2,
            self.grad_mean + share * grads_apart,
            self.grad_squares + other.grad_squares + weight * grads_apart**2,
        )


@dataclass(frozen=True)
class Spectrum:
    """The matrix ``S (I + V (L - I) V^T) S`` with scales S, orthonormal rows V, variances L."""

    scale: np.ndarray
    directions: np.ndarray
    variances: np.ndarray

    def diagonal(self) -> np.ndarray:
        """Return the diagonal matrix that is best in its place, as `diagonal` would find it."""
        rows = self.directions**2
        wide, narrow = (
            1.0 + (self.variances - 1.0) @ rows,
            1.0 + (1.0 / self.variances - 1.0) @ rows,
        )
        return self.scale**2 * np.sqrt(wide / narrow)

    def clipped(self, rank: int, cut: float) -> Spectrum:
        """Return it with the `rank` directions that matter most, none within a factor `cut`."""
        apart = np.abs(np.log(np.maximum(self.variances, LEAST)))
        kept = np.flatnonzero(apart > np.log(cut))
        kept = kept[np.argsort(-apart[kept], kind="stable")][:rank]
        return Spectrum(self.scale, self.directions[kept], self.variances[kept])

    def covariance(self) -> np.ndarray:
        """Return the whole matrix, shape (dim, dim), exactly symmetric."""
        inner = (self.directions.T * (self.variances - 1.0)) @ self.directions
        inner = 0.5 * (inner + inner.T) + np.eye(len(self.scale))
        return self.scale[:, None] * inner * self.scale


def first_diagonal(grad: np.ndarray) -> np.ndarray:
    """Return variances from one gradient alone: ``1 / |g|``, 1 where it is 0."""
    size = np.abs(grad)
    with np.errstate(divide="ignore"):
        return np.clip(np.where(size > 0.0, 1.0 / size, 1.0), LEAST, MOST)


def diagonal(moments: Moments, otherwise: np.ndarray) -> np.ndarray:
    """Return ``sqrt(var(x) / var(g))``, and `otherwise` where one of the two is 0 or overflows."""
    return _diagonal(moments.squares, moments.grad_squares, otherwise)


def noisy_ridge(n: int, dim: int) -> float:
    """Return the ridge for `n` draws whose gradients vary by more than their position says."""
    return max(RIDGE, min(NOISY_RIDGE * (dim / n) ** 2, LARGEST_RIDGE))


@dataclass(frozen=True)
class Rows:
    """Centred draws and gradients, shape (..., n, dim): leading axes hold samples of equal size."""

    draws: np.ndarray
    grads: np.ndarray

    @classmethod
    def of(cls, draws: np.ndarray, grads: np.ndarray) -> Rows:
        """Return rows less their means."""
        n = draws.shape[-2]
        return cls(
            draws - draws.sum(axis=-2, keepdims=True) / n,
            grads - grads.sum(axis=-2, keepdims=True) / n,
        )

    @classmethod
    def halves(cls, draws: np.ndarray, grads: np.ndarray) -> Rows:
        """Return the first and the second half of rows, shape (2, n // 2, dim)."""
        n, dim = draws.shape
        both = (x[: n // 2 * 2].reshape(2, n // 2, dim) for x in (draws, grads))
        return cls.of(*both)

    def swapped(self) -> Rows:
        """Return it with the first axis reversed: to each half the other one."""
        return Rows(self.draws[::-1], self.grads[::-1])

    def diagonal(self) -> np.ndarray:
        """Return `diagonal` of each sample, 1 where there is none."""
        return _diagonal((self.draws**2).sum(-2), (self.grads**2).sum(-2), 1.0)

    def plain_misfit(self, variance: np.ndarray) -> np.ndarray:
        """Return the misfit under the diagonals `variance`, shape (..., dim)."""
        n, dim = self.draws.shape[-2:]
        total = ((self.draws**2).sum(-2) / variance + (self.grads**2).sum(-2) * variance).sum(-1)
        return total / (2.0 * n * dim)

    def within(self, scale: np.ndarray, basis: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the covariances of scaled draws and gradients, (..., m, m) in a basis."""
        x, g = self.draws / scale[..., None, :], self.grads * scale[..., None, :]
        if basis is not None:
            x, g = x @ basis, g @ basis
        n = x.shape[-2]
        return np.swapaxes(x, -1, -2) @ x / n, np.swapaxes(g, -1, -2) @ g / n


@dataclass(frozen=True)
class Fits:
    """Low-rank matrices fitted to samples, one for each index of the leading axes (...).

    Parameters
    ----------
    scale : ndarray, shape (..., dim)
        Of the diagonal that was given.
    basis : ndarray, shape (..., dim, m), or None
        Orthonormal columns that the vectors are written in; None for the unit vectors.
    vectors : ndarray, shape (..., m, m)
        Directions, orthonormal columns.
    variances : ndarray, shape (..., m)
        Along them, in units of `common`; those that were dropped are 1.
    common : ndarray, shape (...)
        What all directions have in common.
    """

    scale: np.ndarray
    basis: np.ndarray | None
    vectors: np.ndarray
    variances: np.ndarray
    common: np.ndarray

    def misfit(self, rows: Rows) -> np.ndarray:
        """Return the misfit of rows, as `misfit` does, shape (...)."""
        of_x, of_g = rows.within(self.scale, self.basis)
        along = ((of_x @ self.vectors) * self.vectors).sum(-2)
        grads_along = ((of_g @ self.vectors) * self.vectors).sum(-2)
        n, dim = rows.draws.shape[-2:]
        square = self.scale**2
        total = (rows.draws**2).sum(-2) / square / n
        grads_total = (rows.grads**2).sum(-2) * square / n
        x = total.sum(-1) + (along * (1.0 / self.variances - 1.0)).sum(-1)
        g = grads_total.sum(-1) + (grads_along * (self.variances - 1.0)).sum(-1)
        return (x / self.common + g * self.common) / (2.0 * dim)

    def spectrum(self) -> Spectrum:
        """Return the one matrix that there is, without leading axes."""
        kept = self.variances != 1.0
        vectors = self.vectors[:, kept]
        directions = vectors if self.basis is None else self.basis @ vectors
        scale = self.scale * np.sqrt(self.common)
        return Spectrum(scale, np.ascontiguousarray(directions.T), self.variances[kept])


def low_rank(
    rows: Rows, variance: np.ndarray, *, rank: int, cut: float, ridge: float | np.ndarray
) -> Fits:
    """Return the diagonal and the directions that leave it most, for each sample of rows.

    The diagonal is that given times a number, the median of all variances.

    Parameters
    ----------
    rows : Rows, shape (..., n, dim)
    variance : ndarray, shape (..., dim)
        The diagonal, as `diagonal` gives it for the same rows.
    rank : int
        At most so many directions.
    cut : float
        Directions with variances between ``1 / cut`` and `cut` are dropped.
    ridge : float or ndarray
        Added to the variances of scaled draws and gradients; further leading axes make that many
        fits of each sample.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a decomposition does not converge: draws or gradients that overflow.
    """
    scale = np.sqrt(variance)
    n, dim = rows.draws.shape[-2:]
    basis = None
    if dim > 2 * n:
        spanning = [rows.draws / scale[..., None, :], rows.grads * scale[..., None, :]]
        basis = np.linalg.qr(np.swapaxes(np.concatenate(spanning, -2), -1, -2))[0]
    variances, vectors = _geometric_mean(*rows.within(scale, basis), np.asarray(ridge))
    logs = np.log(np.maximum(variances, LEAST))
    # Long directions that touch all coordinates make the scales too large for everything else:
    # what most directions have in common belongs to the scale, not to each of them.
    # They are in order.
    m = logs.shape[-1]
    common = 0.5 * (logs[..., m // 2, None] + logs[..., (m - 1) // 2, None])
    apart = np.abs(logs - common)
    kept = apart > np.log(cut)
    if rank < m:
        kept &= apart >= -np.partition(-apart, rank - 1)[..., rank - 1 : rank]
    variances = np.exp(np.where(kept, logs - common, 0.0))
    return Fits(scale, basis, vectors, variances, np.exp(common[..., 0]))


def dense(draws: np.ndarray, grads: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the whole matrix, shape (dim, dim), for rows of shape (n, dim)."""
    n, dim = draws.shape
    ridge = noisy_ridge(n, dim)
    fit = low_rank(Rows.of(draws, grads), variance, rank=dim, cut=1.0, ridge=ridge)
    return fit.spectrum().covariance()


def misfit(rows: Rows, spectrum: Spectrum) -> float:
    """Return how far draws and gradients are from being alike under a matrix, per dimension.

    The mean of ``x M^-1 x`` and ``g M g``, which is 1 for the right matrix of a normal posterior
    and grows with each direction that is too wide or too narrow.
    """
    x, g = rows.draws / spectrum.scale, rows.grads * spectrum.scale
    along, grads_along = x @ spectrum.directions.T, g @ spectrum.directions.T
    total = np.vdot(x, x) + ((along**2).sum(0) * (1.0 / spectrum.variances - 1.0)).sum()
    total += np.vdot(g, g) + ((grads_along**2).sum(0) * (spectrum.variances - 1.0)).sum()
    return float(total / (2.0 * x.size))


def _diagonal(
    squares: np.ndarray, grad_squares: np.ndarray, otherwise: float | np.ndarray
) -> np.ndarray:
    with np.errstate(all="ignore"):
        ratio = np.sqrt(squares) / np.sqrt(grad_squares)
        fine = (ratio >= LEAST) & (ratio <= MOST)
    return np.where(fine, ratio, otherwise)


def _geometric_mean(
    of_x: np.ndarray, of_g: np.ndarray, ridge: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Variances and directions of the matrix A with ``A G A = X``, for covariances plus a ridge."""
    more = np.eye(of_x.shape[-1]) * ridge[..., None, None]
    # With G = L L^T, A is L^-T (L^T X L)^(1/2) L^-1.
    factor = np.linalg.cholesky(of_g + more)
    back = np.linalg.inv(factor)
    values, inner = np.linalg.eigh(np.swapaxes(factor, -1, -2) @ (of_x + more) @ factor)
    half = np.swapaxes(back, -1, -2) @ (inner * np.maximum(values, 0.0)[..., None, :] ** 0.25)
    variances, directions = np.linalg.eigh(half @ np.swapaxes(half, -1, -2))
    return variances, directions
