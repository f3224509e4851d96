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
    "Moments",
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
        mean, grad_mean = draws.mean(axis=0), grads.mean(axis=0)
        return cls(
            len(draws),
            mean,
            ((draws - mean) ** 2).sum(axis=0),
            grad_mean,
            ((grads - grad_mean) ** 2).sum(axis=0),
        )

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
    with np.errstate(all="ignore"):
        ratio = np.sqrt(moments.squares) / np.sqrt(moments.grad_squares)
    fine = np.isfinite(ratio) & (ratio >= LEAST) & (ratio <= MOST)
    return np.where(fine, ratio, otherwise)


def noisy_ridge(n: int, dim: int) -> float:
    """Return the ridge for `n` draws whose gradients vary by more than their position says."""
    return max(RIDGE, min(NOISY_RIDGE * (dim / n) ** 2, LARGEST_RIDGE))


def low_rank(
    draws: np.ndarray,
    grads: np.ndarray,
    variance: np.ndarray,
    *,
    rank: int,
    cut: float,
    ridge: float = RIDGE,
) -> Spectrum:
    """Return a diagonal and the directions that leave it most.

    The diagonal is that given times a number, the median of all variances.

    Parameters
    ----------
    draws, grads : ndarray, shape (n, dim)
    variance : ndarray, shape (dim,)
        The diagonal, as `diagonal` gives it for the same rows.
    rank : int
        At most so many directions.
    cut : float
        Directions with variances between ``1 / cut`` and `cut` are dropped.
    ridge : float
        Added to the variances of scaled draws and gradients.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a decomposition does not converge: draws or gradients that overflow.
    """
    scale = np.sqrt(variance)
    x, g = _scaled(draws, grads, scale)
    n, dim = x.shape
    basis = None
    if dim > 2 * n:
        basis = np.linalg.qr(np.concatenate([x, g]).T)[0]
        x, g = x @ basis, g @ basis
    variances, vectors = np.linalg.eigh(_geometric_mean(x, g, ridge))
    variances = np.maximum(variances, LEAST)
    # Long directions that touch all coordinates make the scales too large for everything else:
    # what most directions have in common belongs to the scale, not to each of them.
    common = float(np.exp(np.median(np.log(variances))))
    directions = vectors.T if basis is None else (basis @ vectors).T
    scale = scale * np.sqrt(common)
    return Spectrum(scale, np.ascontiguousarray(directions), variances / common).clipped(rank, cut)


def dense(draws: np.ndarray, grads: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the whole matrix, shape (dim, dim); arguments as for `low_rank`."""
    n, dim = draws.shape
    ridge = noisy_ridge(n, dim)
    return low_rank(draws, grads, variance, rank=dim, cut=1.0, ridge=ridge).covariance()


def misfit(draws: np.ndarray, grads: np.ndarray, spectrum: Spectrum) -> float:
    """Return how far draws and gradients are from being alike under a matrix, per dimension.

    The mean of ``x M^-1 x`` and ``g M g``, which is 1 for the right matrix of a normal posterior
    and grows with each direction that is too wide or too narrow.
    """
    x, g = _scaled(draws, grads, spectrum.scale)
    along, grads_along = x @ spectrum.directions.T, g @ spectrum.directions.T
    total = (x**2).sum() + (along**2 @ (1.0 / spectrum.variances - 1.0)).sum()
    total += (g**2).sum() + (grads_along**2 @ (spectrum.variances - 1.0)).sum()
    return float(total / (2.0 * x.size))


def _scaled(draws, grads, scale):
    return (draws - draws.mean(axis=0)) / scale, (grads - grads.mean(axis=0)) * scale


def _geometric_mean(x, g, ridge):
    """The matrix A with ``A G A = X`` for the covariances X and G of the columns, plus a ridge."""
    n, dim = x.shape
    of_x = x.T @ x / n + ridge * np.eye(dim)
    of_g = g.T @ g / n + ridge * np.eye(dim)
    values, vectors = np.linalg.eigh(of_g)
    root = np.sqrt(np.maximum(values, ridge))
    half = (vectors * root) @ vectors.T
    values, inner = np.linalg.eigh(half @ of_x @ half)
    inner = (inner * np.sqrt(np.maximum(values, 0.0))) @ inner.T
    back = (vectors / root) @ vectors.T
    mean = back @ inner @ back
    return 0.5 * (mean + mean.T)
