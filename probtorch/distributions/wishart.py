"""Random positive definite matrices: Wishart, its inverse, and the Cholesky factors of both.

A Wishart draw is L A A^T L^T with A lower-triangular, chi numbers on its diagonal and normal ones
below (Bartlett 1933). Densities work with factors: a matrix is factorised once.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.shape import broadcast_shapes
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, one_of, param
from probtorch.distributions.source import Source
from probtorch.distributions.vectors import half_log_det
from probtorch.errors import ShapeError
from probtorch.ops.arithmetic import where
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.diagonals import diag_embed, diagonal
from probtorch.ops.exponentials import exp, log, log1p
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.pieces import cat, flip
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import digamma, lgamma, lgamma_difference
from probtorch.tensor import Tensor

__all__ = ["InverseWishart", "InverseWishartCholesky", "Wishart", "WishartCholesky"]

LOG_2 = math.log(2.0)


def log_multigamma(a: Tensor, n: int) -> Tensor:
    """Log of the multivariate gamma function of n dims."""
    steps = a.new_tensor(0.5 * np.arange(n))
    return total(lgamma(unsqueeze(a, -1) - steps), -1) + 0.25 * n * (n - 1) * math.log(math.pi)


def inverse_of_factor(tril: Tensor) -> Tensor:
    """The inverse of a triangular matrix."""
    eye = tril.new_tensor(np.eye(tril.array.shape[-1]))
    return solve_triangular(tril, expand(eye, tril.array.shape), upper=False)


def factor_of_inverse(matrix: Tensor) -> Tensor:
    """The Cholesky factor of the inverse of a positive definite matrix."""
    # With both dims reversed the factor gives U U^T = P with U upper.
    upper = flip(cholesky(flip(matrix, (-2, -1))), (-2, -1))
    return inverse_of_factor(upper.mT)


def log_slope_of_square(x: Tensor) -> Tensor:
    """Log-determinant of L -> L L^T: 2^n prod_i L_ii^(n - i), i from 0."""
    n = x.array.shape[-1]
    weights = x.new_tensor(np.arange(float(n), 0.0, -1.0))
    return total(weights * log(diagonal(x, 0, -2, -1)), -1) + n * LOG_2


def bartlett(rng: Source, df: Tensor, shape: Shape, least: float = 0.0) -> Tensor:
    """Return the factors of standard Wishart draws; `shape` is that of the matrices.

    No number on the diagonal is below `least`.
    """
    n = shape[-1]
    half = (unsqueeze(df, -1) - df.new_tensor(np.arange(float(n)))) * 0.5
    roots = exp((rng.log_gamma(half, shape[:-1]) + LOG_2) * 0.5)
    roots = where(roots < least, least, roots) if least else roots
    eye, below = df.new_tensor(np.eye(n)), df.new_tensor(np.tril(np.ones((n, n)), -1))
    return rng.normal(shape) * below + unsqueeze(roots, -1) * eye


class ByScale(Distribution):
    """What the two families share: degrees of freedom, and the factor of a scale matrix."""

    df: Parameter

    def _infer_event_shape(self) -> Shape:
        matrix = next(self.__dict__[n] for n in self._alternatives if self._given(n))
        shape = matrix.array.shape[-2:]
        if shape[0] != shape[1]:
            raise ShapeError(
                type(self).__name__,
                expected="a square matrix in the last two dims",
                got=f"shape {matrix.array.shape}",
                fix="give one positive definite matrix per batch element",
            )
        return tuple(shape)

    @property
    def _size(self) -> int:
        return self._event_shape[-1]

    def _log_roots(self) -> Tensor:
        """Mean logs of the diagonal of a standard factor: of roots of chi-squared numbers with df,
        df - 1, ... degrees of freedom.
        """
        half = (unsqueeze(self.df, -1) - self.df.new_tensor(np.arange(float(self._size)))) * 0.5
        return 0.5 * (digamma(half) + LOG_2)


MATRICES = ("covariance_matrix", "precision_matrix", "scale_matrix", "rate_matrix", "scale_tril")


def _above_size(owner: object) -> Constraint:
    """Values above the size of the matrices less 1; with fewer they would be singular."""
    given = (v for n, v in vars(owner).items() if n in MATRICES and v is not None)
    matrix = next(given, None)
    return constraints.greater_than(0.0 if matrix is None else matrix.array.shape[-1] - 1.0)


class Wishart(ByScale):
    """Wishart distribution: the scatter matrix of `df` normal vectors of mean 0.

    Density ``f(x) = det(x) ** ((df - n - 1) / 2) * exp(-trace(inv(covariance_matrix) @ x) / 2) / (2
    ** (df * n / 2) * det(covariance_matrix) ** (df / 2) * multigamma(df / 2, n))`` with ``n =
    len(x)``.

    Parameters
    ----------
    df : Tensor or number, above the size of the matrices less 1
    covariance_matrix : Tensor, shape (..., n, n), positive definite, optional
        Of the vectors; the mean is `df` times that.
    precision_matrix : Tensor, shape (..., n, n), positive definite, optional
    scale_tril : Tensor, shape (..., n, n), optional
        Cholesky factor of the covariance; exactly one of the three is given.
    """

    df: Parameter = param(constraints.dependent(_above_size))
    covariance_matrix: Parameter = param(constraints.positive_definite, default=None)
    precision_matrix: Parameter = param(constraints.positive_definite, default=None)
    scale_tril: Parameter = param(constraints.lower_cholesky, default=None)
    given = one_of("covariance_matrix", "precision_matrix", "scale_tril")
    support: Constraint = constraints.positive_definite
    _also: ClassVar = {
        "concentration": "df",
        "scale_matrix": "covariance_matrix",
        "rate_matrix": "precision_matrix",
    }

    def _scale_tril(self) -> Tensor:
        if self._given("covariance_matrix"):
            return cholesky(self.covariance_matrix)
        return factor_of_inverse(self.precision_matrix)

    def _covariance_matrix(self) -> Tensor:
        return self.scale_tril @ self.scale_tril.mT

    def _precision_matrix(self) -> Tensor:
        inverse = inverse_of_factor(self.scale_tril)
        return inverse.mT @ inverse

    def _factor(self, rng: Source, shape: Shape) -> Tensor:
        return self.scale_tril @ bartlett(rng, self.df, shape)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return squared(self._factor(rng, shape))

    def _log_prob(self, x: Tensor) -> Tensor:
        return self._log_density_of_factor(cholesky(x))

    def _log_density_of_factor(self, factor: Tensor) -> Tensor:
        """Log density of the matrix whose Cholesky factor is given."""
        n, df = self._size, self.df
        z = _solved(self.scale_tril, factor)
        rest = (df - (n + 1.0)) * half_log_det(factor) - 0.5 * total(z * z, (-2, -1))
        return rest - self._log_normaliser()

    def _log_normaliser(self) -> Tensor:
        n, df = self._size, self.df
        size = half_log_det(self.scale_tril) + 0.5 * n * LOG_2
        return df * size + log_multigamma(df * 0.5, n)

    def _entropy(self) -> Tensor:
        n, df = self._size, self.df
        logs = half_log_det(self.scale_tril) + total(self._log_roots(), -1)
        return self._log_normaliser() - (df - (n + 1.0)) * logs + 0.5 * n * df

    def _mean(self) -> Tensor:
        return self.covariance_matrix * unsqueeze(unsqueeze(self.df, -1), -1)

    def _mode(self) -> Tensor:
        rest = self.df - (self._size + 1.0)
        rest = unsqueeze(unsqueeze(rest, -1), -1)
        return where(rest > 0.0, self.covariance_matrix * rest, math.nan)

    def _variance(self) -> Tensor:
        v = self.covariance_matrix
        d = diagonal(v, 0, -2, -1)
        square = v * v + unsqueeze(d, -1) * unsqueeze(d, -2)
        return square * unsqueeze(unsqueeze(self.df, -1), -1)


def squared(factor: Tensor, log_root: Tensor | None = None) -> Tensor:
    """F F^T, positive definite after rounding, too.

    `log_root` is the log of the determinant of an F that is no triangle.

    Each entry is rounded by up to n eps of the root of its two diagonal ones. Where the matrix is
    closer to a singular one than that, its diagonal grows by as much.
    """
    x = factor @ factor.mT
    n, ends = x.array.shape[-1], diagonal(x, 0, -2, -1)
    eps = 4.0 * n * float(dtypes.finfo(x.array.dtype).eps)
    # Of unit diagonal, the least eigenvalue is above a third of the determinant.
    log_root = half_log_det(factor) if log_root is None else log_root
    log_det = unsqueeze(log_root * 2.0 - total(log(ends), -1), -1)
    share = where(log_det < math.log(6.0 * eps), eps, 0.0)
    return x + diag_embed(ends * share)


def _solved(tril: Tensor, x: Tensor) -> Tensor:
    shape = broadcast_shapes(tril.array.shape, x.array.shape, op="log_prob")
    return solve_triangular(expand(tril, shape), expand(x, shape), upper=False)


class WishartCholesky(Wishart):
    """Cholesky factors of Wishart matrices.

    Density ``f(x) = 2 ** n * prod(x[i, i] ** (df - i - 1) for i in range(n)) *
    exp(-trace(inv(covariance_matrix) @ x @ transpose(x)) / 2) / (2 ** (df * n / 2) *
    det(covariance_matrix) ** (df / 2) * multigamma(df / 2, n))`` with ``n = len(x)``.

    Parameters
    ----------
    df : Tensor or number, above the size of the matrices less 1
    covariance_matrix : Tensor, shape (..., n, n), positive definite, optional
    precision_matrix : Tensor, shape (..., n, n), positive definite, optional
    scale_tril : Tensor, shape (..., n, n), optional
        Exactly one of the three is given, as for `Wishart`.
    """

    support = constraints.lower_cholesky

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._factor(rng, shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        return self._log_density_of_factor(x) + log_slope_of_square(x)

    def _entropy(self) -> Tensor:
        logs = log(diagonal(self.scale_tril, 0, -2, -1)) + self._log_roots()
        return super()._entropy() - log_slope_of_square(diag_embed(exp(logs)))

    def _mean(self) -> Tensor:
        """Mean of the factor: chi means on the diagonal of the standard one."""
        n = self._size
        half = (unsqueeze(self.df, -1) - self.df.new_tensor(np.arange(float(n)))) * 0.5
        roots = exp(lgamma(half + 0.5) - lgamma(half)) * math.sqrt(2.0)
        return self.scale_tril * unsqueeze(roots, -2)

    def _mode(self) -> Tensor:
        n = self._size
        # Entry i of the standard factor has density prop. to x^(df - i - 1) exp(-x^2 / 2), and
        # the rows of L scale its powers by the diagonal only.
        rest = unsqueeze(self.df, -1) - self.df.new_tensor(np.arange(1.0, n + 1.0))
        some = rest > 0.0
        return self.scale_tril * unsqueeze(where(some, where(some, rest, 1.0) ** 0.5, math.nan), -2)

    def _variance(self) -> Tensor:
        n = self._size
        half = (unsqueeze(self.df, -1) - self.df.new_tensor(np.arange(float(n)))) * 0.5
        m = exp(lgamma(half + 0.5) - lgamma(half)) * math.sqrt(2.0)
        # Of A: chi variances on the diagonal, 1 below it; rows of L A mix them.
        eye, below = m.new_tensor(np.eye(n)), m.new_tensor(np.tril(np.ones((n, n)), -1))
        spread = below + unsqueeze(2.0 * half - m * m, -1) * eye
        square = self.scale_tril * self.scale_tril
        return square @ spread


class InverseFamily(ByScale):
    """The density and the draws of an inverse Wishart matrix."""

    scale_matrix: Parameter
    rate_matrix: Parameter
    scale_tril: Parameter
    _also: ClassVar = {"concentration": "df"}

    def _scale_tril(self) -> Tensor:
        if self._given("scale_matrix"):
            return cholesky(self.scale_matrix)
        return factor_of_inverse(self.rate_matrix)

    def _scale_matrix(self) -> Tensor:
        return self.scale_tril @ self.scale_tril.mT

    def _rate_matrix(self) -> Tensor:
        inverse = inverse_of_factor(self.scale_tril)
        return inverse.mT @ inverse

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        # (L^-T A A^T L^-1)^-1 = (L A^-T)(L A^-T)^T
        # Squares of the inverse are to be floats: what is nearer to 0 stands for itself no more.
        least = float(dtypes.finfo(rng.dtype).max) ** -0.4
        factor = bartlett(rng, self.df, shape, least)
        rest = half_log_det(self.scale_tril) - half_log_det(factor)
        return squared(self.scale_tril @ inverse_of_factor(factor).mT, rest)

    def _log_prob(self, x: Tensor) -> Tensor:
        return self._log_density_of_factor(cholesky(x))

    def _log_density_of_factor(self, factor: Tensor) -> Tensor:
        n, df = self._size, self.df
        z = _solved(factor, self.scale_tril)
        rest = (df + (n + 1.0)) * half_log_det(factor) + 0.5 * total(z * z, (-2, -1))
        return -rest - self._log_normaliser()

    def _log_normaliser(self) -> Tensor:
        n, df = self._size, self.df
        size = 0.5 * n * LOG_2 - half_log_det(self.scale_tril)
        return log_multigamma(df * 0.5, n) + df * size

    def _entropy(self) -> Tensor:
        n, df = self._size, self.df
        logs = half_log_det(self.scale_tril) - total(self._log_roots(), -1)
        return self._log_normaliser() + (df + (n + 1.0)) * logs + 0.5 * n * df


class InverseWishart(InverseFamily):
    """Distribution of the inverse of a Wishart matrix: a conjugate prior of covariances.

    Density ``f(x) = det(scale_matrix) ** (df / 2) * det(x) ** (-(df + n + 1) / 2) *
    exp(-trace(scale_matrix @ inv(x)) / 2) / (2 ** (df * n / 2) * multigamma(df / 2, n))`` with ``n
    = len(x)``.

    Parameters
    ----------
    df : Tensor or number, above the size of the matrices less 1
    scale_matrix : Tensor, shape (..., n, n), positive definite, optional
        The mean is ``scale_matrix / (df - n - 1)``.
    rate_matrix : Tensor, shape (..., n, n), positive definite, optional
        Its inverse.
    scale_tril : Tensor, shape (..., n, n), optional
        Its Cholesky factor; exactly one of the three is given.
    """

    df: Parameter = param(constraints.dependent(_above_size))
    scale_matrix: Parameter = param(constraints.positive_definite, default=None)
    rate_matrix: Parameter = param(constraints.positive_definite, default=None)
    scale_tril: Parameter = param(constraints.lower_cholesky, default=None)
    given = one_of("scale_matrix", "rate_matrix", "scale_tril")
    support = constraints.positive_definite

    def _mean(self) -> Tensor:
        rest = unsqueeze(unsqueeze(self.df - (self._size + 1.0), -1), -1)
        finite = rest > 0.0
        # Without a mean the diagonal, of positive numbers, has an infinite one.
        none = self.df.new_tensor(np.where(np.eye(self._size), math.inf, math.nan))
        return where(finite, self.scale_matrix / where(finite, rest, 1.0), none)

    def _mode(self) -> Tensor:
        return self.scale_matrix / unsqueeze(unsqueeze(self.df + (self._size + 1.0), -1), -1)

    def _variance(self) -> Tensor:
        v = self.scale_matrix
        d = diagonal(v, 0, -2, -1)
        rest = unsqueeze(unsqueeze(self.df - float(self._size), -1), -1)
        finite = rest > 3.0
        k = where(finite, rest, 4.0)
        top = (k + 1.0) * (v * v) + (k - 1.0) * (unsqueeze(d, -1) * unsqueeze(d, -2))
        size = top / (k * (k - 1.0) * (k - 1.0) * (k - 3.0))
        return where(finite, size, where(rest > 1.0, math.inf, math.nan))


class InverseWishartCholesky(InverseFamily):
    """Cholesky factors of inverse Wishart matrices.

    Density ``f(x) = 2 ** n * det(scale_matrix) ** (df / 2) * prod(x[i, i] ** (-(df + i + 1))
    for i in range(n)) * exp(-trace(scale_matrix @ inv(x @ transpose(x))) / 2) / (2 ** (df * n
    / 2) * multigamma(df / 2, n))`` with ``n = len(x)``.

    Parameters
    ----------
    df : Tensor or number, above the size of the matrices less 1
    scale_matrix : Tensor, shape (..., n, n), positive definite, optional
    rate_matrix : Tensor, shape (..., n, n), positive definite, optional
    scale_tril : Tensor, shape (..., n, n), optional
        Exactly one of the three is given, as for `InverseWishart`.
    """

    df: Parameter = param(constraints.dependent(_above_size))
    scale_matrix: Parameter = param(constraints.positive_definite, default=None)
    rate_matrix: Parameter = param(constraints.positive_definite, default=None)
    scale_tril: Parameter = param(constraints.lower_cholesky, default=None)
    given = one_of("scale_matrix", "rate_matrix", "scale_tril")
    support = constraints.lower_cholesky

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return cholesky(super()._rsample(rng, shape))

    def _log_prob(self, x: Tensor) -> Tensor:
        return self._log_density_of_factor(x) + log_slope_of_square(x)

    def _halves(self) -> Tensor:
        """Half the degrees of freedom of the chi-squared numbers whose inverses are the squares on
        the diagonal of the standard factor: df - n + 1, ..., df.
        """
        return (
            flip(unsqueeze(self.df, -1) - self.df.new_tensor(np.arange(float(self._size))), (-1,))
            * 0.5
        )

    def _entropy(self) -> Tensor:
        logs = log(diagonal(self.scale_tril, 0, -2, -1)) - flip(self._log_roots(), (-1,))
        return super()._entropy() - log_slope_of_square(diag_embed(exp(logs)))

    def _mean_roots(self) -> Tensor:
        """Means of 1 / chi; 0 where there is none."""
        half = self._halves()
        finite = half > 0.5
        rest = where(finite, half - 0.5, 0.5)
        return where(finite, exp(-lgamma_difference(rest, 0.5)) * math.sqrt(0.5), 0.0)

    def _columns(self, value: Tensor, low: float, none: np.ndarray) -> Tensor:
        """Return L @ value, or `none` in columns with at most `low` degrees of freedom."""
        lost = unsqueeze(self._halves() * 2.0 <= low, -2)
        below = self.df.new_tensor(np.tril(np.ones((self._size, self._size)))) > 0.0
        return where(below & lost, self.df.new_tensor(none), value)

    def _mean(self) -> Tensor:
        # Turning a sign leaves the standard factor's distribution: 0 below its diagonal.
        value = self.scale_tril * unsqueeze(self._mean_roots(), -2)
        return self._columns(value, 1.0, np.where(np.eye(self._size), math.inf, math.nan))

    def _variance(self) -> Tensor:
        # Of the standard factor C, row k is C_kk times normal numbers times the rows before, so
        # E C_kj^2 = E C_kk^2 times the sum of E C_ij^2 for i < k.
        n, twice, m = self._size, self._halves() * 2.0, self._mean_roots()
        some = twice > 2.0
        square = 1.0 / (where(some, twice, 3.0) - 2.0)
        grown = cumsum(log1p(square), -1)
        before = cat([grown[..., :1] * 0.0, grown[..., :-1]], -1)
        rows = unsqueeze(square * exp(before), -1)
        below = rows * unsqueeze(square * exp(-grown), -2)
        lower = below * below.new_tensor(np.tril(np.ones((n, n)), -1))
        spread = lower + diag_embed(square - m * m)
        value = self._columns(
            (self.scale_tril * self.scale_tril) @ spread, 2.0, np.full((n, n), math.inf)
        )
        return self._columns(value, 1.0, np.full((n, n), math.nan))

    def _mode(self) -> Tensor:
        # Column i, from 1, of the standard factor: x^-(df + i) exp(-1 / (2 x^2)), and 0 below.
        n = self._size
        roots = (unsqueeze(self.df, -1) + self.df.new_tensor(np.arange(1.0, n + 1.0))) ** -0.5
        return self.scale_tril * unsqueeze(roots, -2)
