"""Kin of the multivariate normal: low rank, heavy tails, matrices, and vectors that sum to 0.

Densities solve with triangular factors and take logarithms of their diagonals, as that of the
multivariate normal does.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from probtorch.core.shape import broadcast_shapes
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, Values, param, setting
from probtorch.distributions.formulas import sum_rightmost
from probtorch.distributions.multivariate_normal import (
    MultivariateNormal,
    squared_length,
    with_whole_loc,
)
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.source import Source
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.diagonals import diag_embed, diagonal
from probtorch.ops.exponentials import exp, log, log1p, softplus
from probtorch.ops.extremes import amax
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import expand, reshape, unsqueeze
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import mean as average
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import digamma_difference, lgamma_difference
from probtorch.tensor import Tensor

__all__ = [
    "GaussianRandomWalk",
    "LowRankMultivariateNormal",
    "MatrixNormal",
    "MultivariateStudentT",
    "ZeroSumNormal",
]


def half_log_det(tril: Tensor) -> Tensor:
    """Log of the determinant of a triangular factor."""
    return total(log(diagonal(tril, 0, -2, -1)), -1)


def check_sizes(owner: str, what: str, expected: Shape, matrix: Tensor) -> None:
    """Raise ShapeError unless the last dims of a matrix, or of a vector, are those expected."""
    if matrix.array.shape[-len(expected) :] != expected:
        raise ShapeError(
            owner,
            expected=f"{what} of shape (..., {', '.join(map(str, expected))})",
            got=f"shape {matrix.array.shape}",
            fix="check the sizes of the vectors and of the matrix",
        )


class LowRankMultivariateNormal(Distribution):
    """Normal vectors with covariance ``cov_factor @ cov_factor.T + diag(cov_diag)``.

    Density ``f(x) = exp(-(x - loc) @ inv(S) @ (x - loc) / 2) / sqrt(det(2 * pi * S))`` with ``S =
    cov_factor @ transpose(cov_factor) + diag(cov_diag)``.

    Parameters
    ----------
    loc : Tensor, shape (..., n)
        Mean.
    cov_factor : Tensor, shape (..., n, rank)
    cov_diag : Tensor, shape (..., n), positive

    Notes
    -----
    Densities and draws cost O(n rank^2): only a matrix of the rank is factorised (Woodbury).
    """

    loc: Parameter = param(constraints.real_vector)
    cov_factor: Parameter = param(constraints.independent(constraints.real, 2))
    cov_diag: Parameter = param(constraints.independent(constraints.positive, 1))
    support = constraints.real_vector

    def _infer_event_shape(self) -> Shape:
        n = self.loc.array.shape[-1]
        rank = self.cov_factor.array.shape[-1]
        check_sizes("LowRankMultivariateNormal", "a cov_factor", (n, rank), self.cov_factor)
        if self.cov_diag.array.shape[-1] != n:
            raise ShapeError(
                "LowRankMultivariateNormal",
                expected=f"a cov_diag of shape (..., {n}), to match loc",
                got=f"shape {self.cov_diag.array.shape}",
                fix="give one variance for each element of loc",
            )
        return (n,)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        rank = self.cov_factor.array.shape[-1]
        common = self.cov_factor @ unsqueeze(rng.normal((*shape[:-1], rank)), -1)
        return self.loc + reshape(common, shape) + sqrt(self.cov_diag) * rng.normal(shape)

    @property
    def precision_matrix(self) -> Tensor:
        """Inverse of `covariance_matrix`: D^-1 less a matrix of the rank of W (Woodbury)."""
        scaled = self.cov_factor / unsqueeze(self.cov_diag, -1)
        half = _solved(self._capacitance(), scaled.mT)
        return diag_embed(1.0 / self.cov_diag) - half.mT @ half

    def _capacitance(self) -> Tensor:
        """Return the factor of 1 + W^T D^-1 W."""
        w = self.cov_factor
        scaled = w / unsqueeze(self.cov_diag, -1)
        return cholesky(w.mT @ scaled + w.new_tensor(np.eye(w.array.shape[-1])))

    def _half_log_det(self, tril: Tensor) -> Tensor:
        return half_log_det(tril) + 0.5 * total(log(self.cov_diag), -1)

    def _log_prob(self, x: Tensor) -> Tensor:
        tril, n = self._capacitance(), self._event_shape[0]
        apart = (x - self.loc) / self.cov_diag
        seen = reshape(self.cov_factor.mT @ unsqueeze(apart, -1), (*_batch(self, apart), -1))
        square = total((x - self.loc) * apart, -1) - squared_length(tril, seen)
        return square * -0.5 - (self._half_log_det(tril) + n * HALF_LOG_2PI)

    def _entropy(self) -> Tensor:
        n = self._event_shape[0]
        return self._half_log_det(self._capacitance()) + n * (0.5 + HALF_LOG_2PI)

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean

    def _variance(self) -> Tensor:
        return total(self.cov_factor * self.cov_factor, -1) + self.cov_diag

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance, shape (..., n, n)."""
        w, d = self.cov_factor, self.cov_diag
        eye = d.new_tensor(np.eye(d.array.shape[-1]))
        return w @ w.mT + unsqueeze(d, -1) * eye

    @property
    def scale_tril(self) -> Tensor:
        """Its Cholesky factor."""
        return cholesky(self.covariance_matrix)


def _batch(d: LowRankMultivariateNormal, x: Tensor) -> Shape:
    return broadcast_shapes(x.array.shape[:-1], d.cov_factor.array.shape[:-2], op="log_prob")


class MultivariateStudentT(Distribution):
    """Student's t distribution of vectors: a normal vector over the root of a chi-squared mean.

    Density ``f(x) = gamma((df + n) / 2) / (gamma(df / 2) * (pi * df) ** (n / 2) * det(scale_tril))
    * (1 + z @ z / df) ** (-(df + n) / 2)`` with ``z = inv(scale_tril) @ (x - loc)`` and ``n =
    len(x)``.

    Parameters
    ----------
    df : Tensor or number, positive
        Degrees of freedom.
    loc : Tensor, shape (..., n)
    scale_tril : Tensor, shape (..., n, n), lower-triangular with positive diagonal
        The covariance is ``scale_tril @ scale_tril.T * df / (df - 2)``.
    """

    df: Parameter = param(constraints.positive)
    loc: Parameter = param(constraints.real_vector)
    scale_tril: Parameter = param(constraints.lower_cholesky)
    support = constraints.real_vector

    def _completed(self, values: Values) -> Values:
        return with_whole_loc(values, "scale_tril")

    @property
    def covariance_matrix(self) -> Tensor:
        """The matrix ``scale_tril @ scale_tril.T``: the covariance of the normal vector."""
        return self.scale_tril @ self.scale_tril.mT

    @property
    def precision_matrix(self) -> Tensor:
        """Inverse of `covariance_matrix`."""
        return MultivariateNormal(
            self.loc, scale_tril=self.scale_tril, validate_args=False
        ).precision_matrix

    def _infer_event_shape(self) -> Shape:
        n = self.loc.array.shape[-1]
        check_sizes("MultivariateStudentT", "a scale_tril", (n, n), self.scale_tril)
        return (n,)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        half = self.df * 0.5
        ratio = exp((log(half) - rng.log_gamma(half, shape[:-1])) * 0.5)
        noise = rng.finite(rng.normal(shape) * unsqueeze(ratio, -1))
        return self.loc + reshape(self.scale_tril @ unsqueeze(noise, -1), shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        df, n = self.df, self._event_shape[0]
        size = half_log_det(self.scale_tril) + 0.5 * n * (log(df) + math.log(math.pi))
        constant = lgamma_difference(df * 0.5, 0.5 * n) - size
        return constant - (df + n) * 0.5 * self._log_growth(x - self.loc)

    def _log_growth(self, apart: Tensor) -> Tensor:
        """log(1 + square / df); squares of what is far out are beyond floats."""
        reach = amax(absolute(apart.detach()), -1)
        far = reach > 1e9
        unit = where(far, reach, 1.0)
        square = squared_length(self.scale_tril, apart / unsqueeze(unit, -1))
        beyond = log(where(far, square, 1.0)) + 2.0 * log(unit) - log(self.df)
        return where(far, softplus(beyond), log1p(square / self.df))

    def _entropy(self) -> Tensor:
        df, n = self.df, self._event_shape[0]
        size = half_log_det(self.scale_tril) + 0.5 * n * (log(df) + math.log(math.pi))
        spread = (df + n) * 0.5 * digamma_difference(df * 0.5, 0.5 * n)
        return size - lgamma_difference(df * 0.5, 0.5 * n) + spread

    def _mean(self) -> Tensor:
        return where(unsqueeze(self.df, -1) > 1.0, self.loc, math.nan)

    def _mode(self) -> Tensor:
        return self.loc

    def _variance(self) -> Tensor:
        finite = self.df > 2.0
        df = where(finite, self.df, 3.0)
        square = total(self.scale_tril * self.scale_tril, -1)
        spread = square * unsqueeze(df / (df - 2.0), -1)
        none = unsqueeze(where(self.df > 1.0, math.inf, math.nan), -1)
        return where(unsqueeze(finite, -1), spread, none)


class MatrixNormal(Distribution):
    """Normal matrices whose rows and columns are correlated: ``loc + A noise B.T``.

    Density ``f(x) = exp(-trace(inv(V) @ transpose(x - loc) @ inv(U) @ (x - loc)) / 2) / ((2 *
    pi) ** (n * p / 2) * det(U) ** (p / 2) * det(V) ** (n / 2))`` with ``U = scale_tril_row @
    transpose(scale_tril_row)`` and ``V = scale_tril_column @ transpose(scale_tril_column)`` and
    ``n = len(x)`` and ``p = len(transpose(x))``.

    Parameters
    ----------
    loc : Tensor, shape (..., n, p)
    scale_tril_row : Tensor, shape (..., n, n), lower-triangular with positive diagonal
        The factor A.
    scale_tril_column : Tensor, shape (..., p, p), lower-triangular with positive diagonal
        The factor B.
    """

    loc: Parameter = param(constraints.real_matrix)
    scale_tril_row: Parameter = param(constraints.lower_cholesky)
    scale_tril_column: Parameter = param(constraints.lower_cholesky)
    support = constraints.real_matrix

    def _infer_event_shape(self) -> Shape:
        n, p = self.loc.array.shape[-2:]
        check_sizes("MatrixNormal", "a scale_tril_row", (n, n), self.scale_tril_row)
        check_sizes("MatrixNormal", "a scale_tril_column", (p, p), self.scale_tril_column)
        return (n, p)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self.loc + self.scale_tril_row @ rng.normal(shape) @ self.scale_tril_column.mT

    def _log_prob(self, x: Tensor) -> Tensor:
        n, p = self._event_shape
        rows = _solved(self.scale_tril_row, x - self.loc)
        z = _solved(self.scale_tril_column, rows.mT)
        size = p * half_log_det(self.scale_tril_row) + n * half_log_det(self.scale_tril_column)
        return total(z * z, (-2, -1)) * -0.5 - (size + n * p * HALF_LOG_2PI)

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean

    def _variance(self) -> Tensor:
        a, b = self.scale_tril_row, self.scale_tril_column
        return unsqueeze(total(a * a, -1), -1) * unsqueeze(total(b * b, -1), -2)


def _solved(tril: Tensor, x: Tensor) -> Tensor:
    """tril^-1 x, batches broadcast."""
    shape = broadcast_shapes(tril.array.shape[:-2], x.array.shape[:-2], op="MatrixNormal")
    tril = expand(tril, (*shape, *tril.array.shape[-2:]))
    return solve_triangular(tril, expand(x, (*shape, *x.array.shape[-2:])), upper=False)


class ZeroSumNormal(Distribution):
    """Independent normal numbers, centred along each of their dims: they sum to 0.

    Density ``f(x) = exp(-sum(x ** 2) / (2 * scale ** 2)) / (2 * pi * scale ** 2) ** ((len(x) -
    1) / 2)``.

    Parameters
    ----------
    scale : Tensor or number, positive
        Standard deviation before centring.
    event_shape : tuple of int
        Dims along which the sums are 0; the density is that on this subspace.
    """

    scale: Parameter = param(constraints.positive)
    event_shape_: Shape = setting()
    _also: ClassVar = {"event_shape": "event_shape_"}

    def _infer_event_shape(self) -> Shape:
        shape = self.event_shape_
        if isinstance(shape, int) or not shape or any(n < 1 for n in shape):
            raise ArgumentError(
                "ZeroSumNormal",
                expected="event_shape_, a tuple of sizes",
                got=repr(shape),
                fix="write ZeroSumNormal(scale, (n,))",
            )
        return tuple(shape)

    @constraints.dependent_property(event_dim=1, is_discrete=False)
    def support(self) -> Constraint:
        """Arrays whose sums are 0."""
        return constraints.zero_sum(len(self._event_shape))

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        x = rng.normal(shape)
        for dim in range(-len(self._event_shape), 0):
            x = x - average(x, dim, True)
        return x * self._wide(self.scale)

    def _wide(self, x: Tensor) -> Tensor:
        return reshape(x, (*x.array.shape, *(1,) * len(self._event_shape)))

    def _log_prob(self, x: Tensor) -> Tensor:
        count = math.prod(n - 1 for n in self._event_shape)
        z = x / self._wide(self.scale)
        square = sum_rightmost(z * z, len(self._event_shape))
        return square * -0.5 - (log(self.scale) + HALF_LOG_2PI) * float(count)

    def _entropy(self) -> Tensor:
        count = math.prod(n - 1 for n in self._event_shape)
        return (log(self.scale) + (HALF_LOG_2PI + 0.5)) * float(count)

    def _mean(self) -> Tensor:
        zero = self._wide(self.scale) * 0.0
        return expand(zero, (*self.scale.array.shape, *self._event_shape))

    _mode = _mean

    def _variance(self) -> Tensor:
        share = math.prod(1.0 - 1.0 / n for n in self._event_shape)
        square = self._wide(self.scale * self.scale) * share
        return expand(square, (*self.scale.array.shape, *self._event_shape))


class GaussianRandomWalk(Distribution):
    """A walk of independent normal steps from 0.

    Density ``f(x) = prod(exp(-(d / scale) ** 2 / 2) / (scale * sqrt(2 * pi)))`` with ``d =
    differences(x)``.

    Parameters
    ----------
    scale : Tensor or number, positive
        Standard deviation of a step.
    num_steps : int
    """

    scale: Parameter = param(constraints.positive, default=1.0)
    num_steps: int = setting(default=1)
    support = constraints.real_vector

    def _infer_event_shape(self) -> Shape:
        if not isinstance(self.num_steps, int) or self.num_steps < 1:
            raise ArgumentError(
                "GaussianRandomWalk",
                expected="num_steps, a whole number from 1 on",
                got=repr(self.num_steps),
                fix="write GaussianRandomWalk(scale, num_steps=10)",
            )
        return (self.num_steps,)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return cumsum(rng.normal(shape), -1) * unsqueeze(self.scale, -1)

    def _log_prob(self, x: Tensor) -> Tensor:
        steps = cat([x[..., :1], x[..., 1:] - x[..., :-1]], -1)
        z = steps / unsqueeze(self.scale, -1)
        return total(z * z, -1) * -0.5 - (log(self.scale) + HALF_LOG_2PI) * float(self.num_steps)

    def _entropy(self) -> Tensor:
        return (log(self.scale) + (0.5 + HALF_LOG_2PI)) * float(self.num_steps)

    def _mean(self) -> Tensor:
        return expand(unsqueeze(self.scale * 0.0, -1), (*self.scale.array.shape, self.num_steps))

    _mode = _mean

    def _variance(self) -> Tensor:
        times = self.scale.new_tensor(np.arange(1.0, self.num_steps + 1.0))
        return unsqueeze(self.scale * self.scale, -1) * times
