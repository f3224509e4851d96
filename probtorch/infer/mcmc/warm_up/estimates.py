"""Mass matrices from draws and gradients: what minimises the Fisher divergence to a normal.

The inverse mass matrix M is sought for which the draws x and the gradients g of their log density,
both centred, become alike after rescaling: ``M^(-1/2) x`` and ``M^(1/2) g``. The mean squared sum
of the two is least where M is the geometric mean of the covariance of the draws and the inverse of
that of the gradients. For a normal posterior that is its covariance, exactly, from as many draws as
dimensions; with draws alone it takes a hundred times as many. Of a diagonal M each entry is
``sqrt(var(x) / var(g))``.

`diagonal` needs sums only (`Moments`), the others the draws themselves. Draws and gradients lie
side by side: an array (2, n, dim), or (2, dim) of their sums.

For a fit that may be rough, the covariances of many dimensions are looked at in the subspace of the
leading principal directions of draws and of gradients, where all that is wide or narrow shows, and
M is taken as diagonal beyond it.

References
----------
A. Seyboldt, E. Carlson, B. Carpenter, "Preconditioning Hamiltonian Monte Carlo by minimizing Fisher
divergence" (2026). T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample
variance", The American Statistician 37 (1983), for the moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from probtorch.infer.mcmc.warm_up import small_fits

__all__ = [
    "RIDGE",
    "Moments",
    "Rows",
    "Spectrum",
    "best_directions",
    "dense",
    "dense_of_scaled",
    "diagonal",
    "first_diagonal",
    "gain",
    "geometric_mean",
    "low_rank",
    "misfit",
    "noisy_ridge",
    "plain_misfit",
    "rounding_of_sums",
]

# Variances outside are no variances but overflow.
LEAST, MOST = 1e-20, 1e20
# Added to the variances of scaled draws and gradients, which are about 1: in a direction that one
# of them never took it decides. The small one is for what is near normal, where gradients say all;
# the other, this times the square of dimensions by draws and no more than the last, keeps noise
# from becoming directions where draws are as few as dimensions.
RIDGE, NOISY_RIDGE, LARGEST_RIDGE = 1e-5, 0.01, 0.1
# Principal directions that are looked for, of draws and of gradients each; and how often a guess of
# them is multiplied by the covariance.
PRINCIPAL, PASSES = 10, 2


@dataclass
class Moments:
    """Count, means and sums of squared deviations of draws and gradients, each (2, dim)."""

    count: int
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def empty(cls, dim: int) -> Moments:
        """Return moments of nothing."""
        return cls(0, np.zeros((2, dim)), np.zeros((2, dim)))

    @classmethod
    def of(cls, pairs: np.ndarray) -> Moments:
        """Return the moments of draws and gradients, shape (2, n, dim)."""
        n = pairs.shape[1]
        mean = np.add.reduce(pairs, axis=1) / n
        return cls(n, mean, np.add.reduce((pairs - mean[:, None]) ** 2, axis=1))

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both (Chan et al. 1983)."""
        if not self.count or not other.count:
            return other if other.count else self
        count = self.count + other.count
        share = other.count / count
        apart = other.mean - self.mean
        squares = self.squares + other.squares + (self.count * share) * apart**2
        return Moments(count, self.mean + share * apart, squares)


@dataclass(frozen=True)
class Spectrum:
    """The matrix ``S (I + V (L - I) V^T) S`` with scales S, orthonormal rows V, variances L."""

    scale: np.ndarray
    directions: np.ndarray
    variances: np.ndarray

    def __getitem__(self, i: int) -> Spectrum:
        """Return one of several that are stacked."""
        return Spectrum(self.scale[i], self.directions[i], self.variances[i])

    def diagonal(self) -> np.ndarray:
        """Return the diagonal matrix that is best in its place, as `diagonal` would find it."""
        rows = self.directions**2
        wide, narrow = (
            1.0 + (self.variances - 1.0) @ rows,
            1.0 + (1.0 / self.variances - 1.0) @ rows,
        )
        return self.scale**2 * np.sqrt(wide / narrow)

    def leading(self, rank: int, cut: float) -> tuple[np.ndarray, np.ndarray]:
        """Return which directions matter, the most first, `rank` at most, and how many do.

        None is within a factor `cut`. Of several that are stacked, of each.
        """
        apart = np.abs(np.log(np.maximum(self.variances, LEAST)))
        order = (-apart).argsort(axis=-1, kind="stable")[..., :rank]
        return order, np.minimum(rank, (apart > math.log(cut)).sum(axis=-1))

    def clipped(self, rank: int, cut: float) -> Spectrum:
        """Return it with the `rank` directions that matter most, none within a factor `cut`."""
        order, count = self.leading(rank, cut)
        kept = order[: int(count)]
        return Spectrum(self.scale, self.directions[kept], self.variances[kept])

    def covariance(self) -> np.ndarray:
        """Return the whole matrix, shape (..., dim, dim), exactly symmetric."""
        inner = (self.directions.mT * (self.variances - 1.0)[..., None, :]) @ self.directions
        inner = 0.5 * (inner + inner.mT) + np.eye(self.scale.shape[-1])
        return self.scale[..., :, None] * inner * self.scale[..., None, :]


def first_diagonal(grad: np.ndarray) -> np.ndarray:
    """Return variances from one gradient alone: ``1 / |g|``, 1 where it is 0."""
    size = np.abs(grad)
    with np.errstate(divide="ignore"):
        return np.clip(np.where(size > 0.0, 1.0 / size, 1.0), LEAST, MOST)


def diagonal(
    squares: np.ndarray, otherwise: Callable[[], np.ndarray] | np.ndarray | float
) -> np.ndarray:
    """Return ``sqrt(var(x) / var(g))``, and `otherwise` where one of the two is 0 or overflows.

    Parameters
    ----------
    squares : ndarray, shape (2, dim)
        Sums of squared deviations of draws and gradients.
    otherwise : ndarray, float or callable
        The latter makes the array where it is needed.
    """
    with np.errstate(all="ignore"):
        roots = np.sqrt(squares)
        ratio = roots[0] / roots[1]
    fine = (ratio >= LEAST) & (ratio <= MOST)
    if fine.all():
        return ratio
    return np.where(fine, ratio, otherwise() if callable(otherwise) else otherwise)


def noisy_ridge(n: int, dim: int) -> float:
    """Return the ridge for `n` draws whose gradients vary by more than their position says."""
    return max(RIDGE, min(NOISY_RIDGE * (dim / n) ** 2, LARGEST_RIDGE))


def rounding_of_sums(n: int) -> float:
    """Return the root of the sum of squares that rounding makes of `n` numbers 1 less their mean.

    At most: each addition rounds, and the mean may be off by n times as much.
    """
    return n * math.sqrt(n) * float(np.finfo(np.float64).eps)


class Rows:
    """Draws and gradients less their means.

    Parameters
    ----------
    pairs : ndarray, shape (2, n, dim)

    Attributes
    ----------
    count : int
        n.
    pairs : ndarray, shape (2, n, dim)
        Centred; 0 where all rows are equal but for rounding.
    squares : ndarray, shape (2, dim)
        Sums of squares over rows.
    """

    def __init__(self, pairs: np.ndarray) -> None:
        self.count = pairs.shape[1]
        self.pairs = pairs - pairs.sum(axis=1, keepdims=True) / self.count
        self.squares = np.einsum("snd,snd->sd", self.pairs, self.pairs)
        equal = np.sqrt(self.squares) <= np.abs(pairs[:, 0]) * rounding_of_sums(self.count)
        if equal.any():
            self.pairs *= ~equal[:, None]
            self.squares[equal] = 0.0

    def scaled(self, scale: np.ndarray) -> np.ndarray:
        """Return draws by scales, and gradients times scales."""
        return self.pairs * np.array([1.0 / scale, scale])[:, None]

    def halves(self) -> tuple[Rows, Rows]:
        """Return the earlier and the later half."""
        middle = self.count // 2
        return Rows(self.pairs[:, :middle]), Rows(self.pairs[:, middle:])


def low_rank(
    rows: Rows,
    variance: np.ndarray,
    *,
    rank: int,
    cut: float,
    ridges: Sequence[float],
    principal: bool = False,
) -> list[Spectrum]:
    """Return the diagonal and the directions that leave it most, for each ridge.

    The diagonal is that given times a number, the variance that most directions have in common.

    Parameters
    ----------
    rows : Rows
    variance : ndarray, shape (dim,)
        The diagonal, as `diagonal` gives it for the same rows.
    rank : int
        At most so many directions.
    cut : float
        Directions with variances between ``1 / cut`` and `cut` are dropped.
    ridges : sequence of float
        Added to the variances of scaled draws and gradients.
    principal : bool
        Whether, in many dimensions, to look at the leading principal directions only: a hundredth
        of the time, and less exact, since what draws and gradients have in common does not show.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a decomposition does not converge: draws or gradients that overflow.
    """
    scale = np.sqrt(variance)
    pairs = rows.scaled(scale)
    n, dim = rows.count, len(scale)
    basis = _principal(pairs) if principal and dim > 2 * PRINCIPAL else None
    within = pairs if basis is None else pairs @ basis
    of_both = within.transpose(0, 2, 1) @ within / n
    of_x, of_g = of_both
    beyond = np.zeros(0)
    if basis is not None:
        # There the one number that is best for all.
        x = rows.squares[0] @ (1.0 / variance) - n * np.trace(of_x)
        g = rows.squares[1] @ variance - n * np.trace(of_g)
        beyond = np.full(dim - len(of_x), np.sqrt(x / g) if x > 0.0 and g > 0.0 else 1.0)
    if len(of_x) <= 2 * PRINCIPAL:
        means = [small_fits.geometric_mean(of_both, ridge) for ridge in ridges]
    else:
        each = geometric_mean(of_x, of_g, np.array(ridges)[:, None, None])
        means = [(variances, vectors.T) for variances, vectors in zip(*each)]
    found = []
    for variances, rows_found in means:
        # Long directions that touch all coordinates make the scales too large for everything else:
        # what most directions have in common belongs to the scale, not to each of them.
        common = _median(np.concatenate([variances, beyond]))
        fit = Spectrum(scale * math.sqrt(common), rows_found, variances / common).clipped(rank, cut)
        if basis is not None:
            fit = Spectrum(fit.scale, fit.directions @ basis.T, fit.variances)
        found.append(fit)
    return found


def _median(values: np.ndarray) -> float:
    """The median; `np.median` takes ten times as long for a few numbers."""
    values.sort()
    return 0.5 * float(values[len(values) // 2] + values[(len(values) - 1) // 2])


def _principal(pairs: np.ndarray) -> np.ndarray:
    """Orthonormal columns that the leading principal directions of draws and of gradients span."""
    n = pairs.shape[1]
    count = min(PRINCIPAL, max(n // 2, 1))
    # Rows are a guess of their own principal directions.
    guess = pairs[:, :: n // count][:, :count].transpose(0, 2, 1)
    for _ in range(PASSES):
        guess = pairs.transpose(0, 2, 1) @ (pairs @ guess)
    guess /= np.sqrt((guess**2).sum(axis=1, keepdims=True))
    return np.linalg.qr(np.concatenate([*guess], axis=1))[0]


def dense(pairs: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the whole matrix, shape (dim, dim), for draws and gradients of shape (2, n, dim)."""
    _, n, dim = pairs.shape
    scale = np.sqrt(variance)
    return dense_of_scaled(Rows(pairs).scaled(scale), scale, n, noisy_ridge(n, dim))


def dense_of_scaled(
    within: np.ndarray, scale: np.ndarray, count: np.ndarray | int, ridge: np.ndarray | float
) -> np.ndarray:
    """Return what `dense` does for many windows at once, shape (..., dim, dim).

    Parameters
    ----------
    within : ndarray, shape (2, ..., n, dim)
        Scaled draws and gradients less their means; rows that are zero do not count.
    scale : ndarray, shape (..., dim)
    count, ridge : ndarray, shape (..., 1, 1), or number
    """
    of_x, of_g = within.mT @ within / count
    variances, vectors = geometric_mean(of_x, of_g, ridge)
    return Spectrum(scale, vectors.mT, variances).covariance()


def misfit(rows: Rows, spectrum: Spectrum) -> float:
    """Return how far draws and gradients are from being alike under a matrix, per dimension.

    The mean of ``x M^-1 x`` and ``g M g``, which is 1 for the right matrix of a normal posterior
    and grows with each direction that is too wide or too narrow.
    """
    along = ((rows.scaled(spectrum.scale) @ spectrum.directions.T) ** 2).sum(axis=1)
    excess = along[0] @ (1.0 / spectrum.variances - 1.0) + along[1] @ (spectrum.variances - 1.0)
    plain = plain_misfit(rows, spectrum.scale**2)
    return plain + float(excess) / (2.0 * rows.count * len(spectrum.scale))


def plain_misfit(rows: Rows | Moments, variance: np.ndarray) -> float:
    """Return `misfit` for a diagonal matrix."""
    total = rows.squares[0] @ (1.0 / variance) + rows.squares[1] @ variance
    return float(total) / (2.0 * rows.count * len(variance))


def gain(rows: Rows, variance: np.ndarray, spectrum: Spectrum) -> float:
    """Return what a matrix gains over a diagonal, in nats times two over all dimensions."""
    return 2.0 * len(variance) * (plain_misfit(rows, variance) - misfit(rows, spectrum))


def best_directions(
    rows: Rows,
    ridges: Sequence[float],
    rank: int,
    cuts: tuple[float, float],
    *,
    worth_it: float,
    both_ways: bool,
) -> tuple[float, float, float]:
    """Return what directions from the earlier half of the rows gain on the later, at best.

    With it the ridge, and the factor within which directions are left out.

    Parameters
    ----------
    rows : Rows
    ridges : sequence of float
        To choose from; 0 is none.
    rank : int
        At most so many directions.
    cuts : tuple of float
        The factor, and a finer one, which is taken where that gains `worth_it` more: each direction
        takes time.
    worth_it : float
    both_ways : bool
        Whether to take the mean of that gain and the other way round.
    """
    cut, finest = cuts
    ridges = [ridge for ridge in ridges if ridge > 0.0]
    early, late = rows.halves()
    gains = np.zeros((2, len(ridges)))
    for sample, judge in [(early, late), (late, early)][: 1 + both_ways]:
        variance = diagonal(sample.squares, 1.0)
        fits = low_rank(sample, variance, rank=rank, cut=finest, ridges=ridges, principal=True)
        for i, fit in enumerate(fits):
            few = fit.clipped(rank, cut)
            more = len(few.variances) < len(fit.variances)
            gains[0, i] += gain(judge, variance, few)
            gains[1, i] += gain(judge, variance, fit if more else few)
    gains /= 1 + both_ways
    gains[1] -= worth_it
    kind, i = divmod(int(gains.argmax()), len(ridges))
    return float(gains[kind, i]), ridges[i], finest if kind else cut


def geometric_mean(
    of_x: np.ndarray, of_g: np.ndarray, ridge: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """Return variances, in order, and directions of the matrix A with ``A G A = X``.

    Parameters
    ----------
    of_x, of_g : ndarray, shape (..., dim, dim)
        X and G.
    ridge : ndarray, shape (..., 1, 1), or float
        Added to the diagonals of both.

    Returns
    -------
    variances : ndarray, shape (..., dim)
    directions : ndarray, shape (..., dim, dim)
        Columns.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a decomposition does not converge, or what is found is not finite.
    """
    more = np.eye(of_x.shape[-1]) * ridge
    # With G = L L^T, A is L^-T (L^T X L)^(1/2) L^-1.
    factor = np.linalg.cholesky(of_g + more)
    back = np.linalg.inv(factor)
    values, inner = np.linalg.eigh(factor.mT @ (of_x + more) @ factor)
    half = back.mT @ (inner * (np.maximum(values, 0.0) ** 0.25)[..., None, :])
    variances, vectors = np.linalg.eigh(half @ half.mT)
    if not np.isfinite(variances).all():
        # LAPACK does not say so of a matrix with nan.
        raise np.linalg.LinAlgError("no geometric mean")
    return np.maximum(variances, LEAST), vectors
