"""Transforms of vectors onto triangular matrices: Cholesky factors of covariances, correlations.

Unconstrained space is a vector with one number per degree of freedom, n (n + 1) / 2 for a
covariance and n (n - 1) / 2 for a correlation matrix of size n, filled row by row. PyTorch's
`LowerCholeskyTransform` takes a full square matrix instead; half of it would be free to drift in a
sampler.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.transforms.scalar import LOG_2
from probtorch.distributions.transforms.transform import Transform
from probtorch.distributions.transforms.vector import last_part
from probtorch.errors import ShapeError
from probtorch.ops.arithmetic import neg, sqrt
from probtorch.ops.diagonals import diag_embed, diagonal
from probtorch.ops.exponentials import exp, expm1, log, softplus
from probtorch.ops.movement import unsqueeze
from probtorch.ops.pieces import cat, flip
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import asinh, tanh
from probtorch.tensor import Tensor

__all__ = [
    "CorrCholeskyTransform",
    "CorrLCholeskyTransform",
    "FillTriangularTransform",
    "LowerCholeskyTransform",
    "ScaledUnitLowerCholeskyTransform",
    "SoftplusLowerCholeskyTransform",
    "UnitLowerCholeskyTransform",
]


def triangle(x: Tensor, n: int, below: int) -> Tensor:
    """Lay vectors out row by row as lower triangles; `below` 1 leaves the diagonal 0."""
    index = np.full((n, n), x.array.shape[-1])
    rows, cols = np.tril_indices(n, -below)
    index[rows, cols] = np.arange(len(rows))
    padded = cat([x, x.new_zeros((*x.array.shape[:-1], 1))], -1)
    return padded[..., as_tensor(index)]


def from_triangle(y: Tensor, below: int) -> Tensor:
    """Read lower-triangular matrices row by row: the inverse of `triangle`."""
    n = y.array.shape[-1]
    rows, cols = np.tril_indices(n, -below)
    flat = y.reshape((*y.array.shape[:-2], n * n))
    return flat[..., as_tensor(rows * n + cols)]


def matrix_size(count: int, below: int) -> int:
    """Return n with n (n + 1) / 2 (or, without the diagonal, n (n - 1) / 2) equal to `count`."""
    n = round((math.sqrt(8 * count + 1) - 1) / 2) + below
    if n * (n + 1 - 2 * below) // 2 != count:
        raise ShapeError(
            "triangular transform",
            expected=f"n (n {'-' if below else '+'} 1) / 2 numbers for a matrix of size n",
            got=f"{count}",
            fix="use inverse_shape() of the matrix shape to get the size",
        )
    return n


class _Triangular(Transform):
    """What vector-to-triangle transforms share: sizes."""

    domain = constraints.real_vector
    below = 0

    def forward_shape(self, shape: Shape) -> Shape:
        n = matrix_size(shape[-1], self.below)
        return (*shape[:-1], n, n)

    def inverse_shape(self, shape: Shape) -> Shape:
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise ShapeError(
                type(self).__name__,
                expected="square matrices",
                got=f"shape {tuple(shape)}",
                fix="check the event shape",
            )
        n = shape[-1]
        return (*shape[:-2], n * (n + 1 - 2 * self.below) // 2)


class FillTriangularTransform(_Triangular):
    """Vectors as lower-triangular matrices, row by row."""

    codomain = constraints.lower_triangular

    def _call(self, x: Tensor) -> Tensor:
        return triangle(x, matrix_size(x.array.shape[-1], 0), 0)

    def _inverse(self, y: Tensor) -> Tensor:
        return from_triangle(y, 0)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.array.shape[:-1])


class LowerCholeskyTransform(_Triangular):
    """Vectors onto lower-triangular matrices with a positive diagonal, by exp on the diagonal."""

    codomain = constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        m = triangle(x, matrix_size(x.array.shape[-1], 0), 0)
        d = diagonal(m, 0, -2, -1)
        return m + diag_embed(self._to_positive(d) - d)

    def _inverse(self, y: Tensor) -> Tensor:
        d = diagonal(y, 0, -2, -1)
        return from_triangle(y + diag_embed(self._from_positive(d) - d), 0)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        n = y.array.shape[-1]
        at = np.cumsum(np.arange(1, n + 1)) - 1
        return total(self._slope(x[..., as_tensor(at)]), -1)

    def _to_positive(self, d: Tensor) -> Tensor:
        return exp(d)

    def _from_positive(self, d: Tensor) -> Tensor:
        return log(d)

    def _slope(self, d: Tensor) -> Tensor:
        """Log-derivative of the map of the diagonal."""
        return d


class SoftplusLowerCholeskyTransform(LowerCholeskyTransform):
    """Vectors onto lower Cholesky factors, by softplus on the diagonal."""

    codomain = constraints.softplus_lower_cholesky

    def _to_positive(self, d: Tensor) -> Tensor:
        return softplus(d)

    def _from_positive(self, d: Tensor) -> Tensor:
        return d + log(neg(expm1(neg(d))))

    def _slope(self, d: Tensor) -> Tensor:
        return neg(softplus(neg(d)))


class ScaledUnitLowerCholeskyTransform(LowerCholeskyTransform):
    """Vectors onto lower Cholesky factors: unit triangles whose rows are scaled by softplus.

    The scales are standard deviations, and the rest does not change with them.
    """

    codomain = constraints.scaled_unit_lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        m = triangle(x, matrix_size(x.array.shape[-1], 0), 0)
        d = diagonal(m, 0, -2, -1)
        return (m + diag_embed(1.0 - d)) * unsqueeze(softplus(d), -1)

    def _inverse(self, y: Tensor) -> Tensor:
        d = diagonal(y, 0, -2, -1)
        free = d + log(neg(expm1(neg(d))))
        return from_triangle(y / unsqueeze(d, -1) + diag_embed(free - 1.0), 0)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        n = y.array.shape[-1]
        at = np.cumsum(np.arange(1, n + 1)) - 1
        # Row i has i numbers below the diagonal, each multiplied by its scale.
        rows = total(x.new_tensor(np.arange(n)) * log(diagonal(y, 0, -2, -1)), -1)
        return rows - total(softplus(neg(x[..., as_tensor(at)])), -1)


class UnitLowerCholeskyTransform(_Triangular):
    """Vectors onto lower-triangular matrices with ones on the diagonal."""

    codomain = constraints.unit_lower_cholesky
    below = 1

    def _call(self, x: Tensor) -> Tensor:
        n = matrix_size(x.array.shape[-1], 1)
        return triangle(x, n, 1) + x.new_tensor(np.eye(n))

    def _inverse(self, y: Tensor) -> Tensor:
        return from_triangle(y, 1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.array.shape[:-1])


class CorrCholeskyTransform(_Triangular):
    """Vectors onto Cholesky factors of correlation matrices, by tanh and stick-breaking by row.

    Entry (i, j) is tanh(x_ij) times the root of what the entries before it have left of the row's
    unit length (Lewandowski, Kurowicka, Joe 2009, by partial correlations).

    Notes
    -----
    What is left is a product of 1 / cosh(x)^2, kept as a sum of logarithms; the inverse
    uses sums of later squares. Neither side subtracts from 1.
    """

    codomain = constraints.corr_cholesky
    below = 1

    def _call(self, x: Tensor) -> Tensor:
        n = matrix_size(x.array.shape[-1], 1)
        m = triangle(x, n, 1)
        # tanh(0) = 0 and log cosh(0) = 0, so the zeros on and above the diagonal need no mask.
        left = cumsum(_log_sech(m), -1)
        before = cat([m.new_zeros((*m.array.shape[:-1], 1)), last_part(left, 0, -1)], -1)
        return tanh(m) * exp(before) + diag_embed(exp(diagonal(left, 0, -2, -1)))

    def _inverse(self, y: Tensor) -> Tensor:
        squares = y * y
        later = flip(cumsum(flip(squares, -1), -1), -1)
        after = from_triangle(
            cat([last_part(later, 1), y.new_zeros((*y.array.shape[:-1], 1))], -1), 1
        )
        # atanh(y_j / sqrt(sum of squares from j on)) = asinh(y_j / sqrt(sum of squares after j)).
        return asinh(from_triangle(y, 1) / sqrt(after))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        n = y.array.shape[-1]
        rows, cols = np.tril_indices(n, -1)
        # Entry j of row i has derivative sech(x_ij)^2 times the sech of each entry before it: the
        # sech of x_ij counts twice for itself and once for each of the i - 1 - j entries after it.
        weights = x.new_tensor(rows - cols + 1.0)
        return total(weights * _log_sech(x), -1)


# Pyro's name.
CorrLCholeskyTransform = CorrCholeskyTransform


def _log_sech(x: Tensor) -> Tensor:
    """log(1 / cosh(x)), even in x and accurate in both tails."""
    return LOG_2 - x - softplus(-2.0 * x)


explain_calls(globals())
