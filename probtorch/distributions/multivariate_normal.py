"""The multivariate normal distribution."""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.shape import broadcast_shapes
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, Values, as_parameter, one_of, param
from probtorch.distributions.source import Source
from probtorch.errors import ShapeError
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.diagonals import diagonal
from probtorch.ops.exponentials import log
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import expand, reshape, unsqueeze
from probtorch.ops.pieces import flip
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["MultivariateNormal", "squared_length", "with_whole_loc"]

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def squared_length(tril: Tensor, x: Tensor) -> Tensor:
    """|tril^-1 x|^2 over the last dim: the squared Mahalanobis distance for tril tril^T."""
    n = tril.array.shape[-1]
    if tril.array.ndim == 2:
        # One factor, many vectors: a single solve with the vectors as columns.
        y = solve_triangular(tril, reshape(x, (-1, n)).mT, upper=False)
        return reshape(total(y * y, 0), x.array.shape[:-1])
    shape = broadcast_shapes(tril.array.shape[:-2], x.array.shape[:-1], op="MultivariateNormal")
    tril, x = expand(tril, (*shape, n, n)), expand(x, (*shape, n))
    y = solve_triangular(tril, unsqueeze(x, -1), upper=False)
    return total(y * y, (-2, -1))


def with_whole_loc(values: Values, *matrices: str) -> Values:
    """Return arguments in which a number as `loc` is a vector, as long as a matrix is wide."""
    loc = values.get("loc", 0.0)
    matrix = next((values[n] for n in matrices if values.get(n) is not None), None)
    number = type(loc) in (int, float) or getattr(loc, "ndim", 1) == 0
    if matrix is None or not number:
        return values
    matrix = as_parameter(matrix, matrices[0])[0]
    return {**values, "loc": matrix.new_zeros(matrix.array.shape[-1:]) + loc}


class MultivariateNormal(Distribution):
    """Normal distribution of vectors.

    Density ``f(x) = exp(-(x - loc) @ inv(covariance_matrix) @ (x - loc) / 2) / sqrt(det(2 * pi *
    covariance_matrix))``.

    Parameters
    ----------
    loc : Tensor, shape (..., n), or number
        Mean; a number for all elements.
    covariance_matrix : Tensor, shape (..., n, n), positive definite, optional
    precision_matrix : Tensor, shape (..., n, n), positive definite, optional
        Inverse of the covariance.
    scale_tril : Tensor, shape (..., n, n), lower-triangular with positive diagonal, optional
        Cholesky factor of the covariance; exactly one of the three is given. This one is used as it
        is; the others are factorised at each density or draw.

    Raises
    ------
    DomainError
        If a matrix is not positive definite; the message has its least eigenvalue.
    """

    loc: Parameter = param(constraints.real_vector, default=0.0)
    covariance_matrix: Parameter = param(constraints.positive_definite, default=None)
    precision_matrix: Parameter = param(constraints.positive_definite, default=None)
    scale_tril: Parameter = param(constraints.lower_cholesky, default=None)
    given = one_of("covariance_matrix", "precision_matrix", "scale_tril")
    support = constraints.real_vector

    def _completed(self, values: Values) -> Values:
        return with_whole_loc(values, *self._alternatives)

    def _infer_event_shape(self) -> Shape:
        matrix = next(self.__dict__[n] for n in self._alternatives if self._given(n))
        n = self.loc.array.shape[-1]
        if matrix.array.shape[-2:] != (n, n):
            raise ShapeError(
                "MultivariateNormal",
                expected=f"a matrix of shape (..., {n}, {n}), to match loc",
                got=f"shape {matrix.array.shape}",
                fix="check the sizes of loc and of the matrix",
            )
        return (n,)

    def _scale_tril(self) -> Tensor:
        if self._given("covariance_matrix"):
            return cholesky(self.covariance_matrix)
        # With the order of both dims reversed the factor of P gives U U^T = P, U upper; the factor
        # of the covariance is the inverse of U^T.
        upper = flip(cholesky(flip(self.precision_matrix, (-2, -1))), (-2, -1))
        n = upper.array.shape[-1]
        return solve_triangular(upper.mT, upper.new_tensor(np.eye(n)), upper=False)

    def _covariance_matrix(self) -> Tensor:
        tril = self.scale_tril
        return tril @ tril.mT

    def _precision_matrix(self) -> Tensor:
        tril = self.scale_tril
        inverse = solve_triangular(tril, tril.new_tensor(np.eye(tril.array.shape[-1])), upper=False)
        return inverse.mT @ inverse

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        noise = unsqueeze(rng.normal(shape), -1)
        return self.loc + reshape(self.scale_tril @ noise, shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        tril, n = self.scale_tril, self._event_shape[0]
        half_log_det = total(log(diagonal(tril, 0, -2, -1)), -1)
        return squared_length(tril, x - self.loc) * -0.5 - (half_log_det + n * HALF_LOG_2PI)

    def _entropy(self) -> Tensor:
        n = self._event_shape[0]
        half_log_det = total(log(diagonal(self.scale_tril, 0, -2, -1)), -1)
        return half_log_det + n * (0.5 + HALF_LOG_2PI)

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean

    def _variance(self) -> Tensor:
        if self._given("covariance_matrix"):
            return diagonal(self.covariance_matrix, 0, -2, -1)
        tril = self.scale_tril
        return total(tril * tril, -1)
