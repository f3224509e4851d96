"""Between positive definite matrices and their Cholesky factors."""

from __future__ import annotations

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.distributions import constraints
from probtorch.distributions.transforms.matrix import LowerCholeskyTransform
from probtorch.distributions.transforms.scalar import LOG_2
from probtorch.distributions.transforms.transform import ComposeTransform, Transform
from probtorch.ops.arithmetic import neg
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.diagonals import diagonal
from probtorch.ops.exponentials import log
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["CholeskyTransform", "CorrMatrixCholeskyTransform", "PositiveDefiniteTransform"]


class _Factoring(Transform):
    """Matrices to their Cholesky factors."""

    def _call(self, x: Tensor) -> Tensor:
        return cholesky(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y @ y.mT


class CholeskyTransform(_Factoring):
    """Positive definite matrices to their Cholesky factors."""

    domain = constraints.positive_definite
    codomain = constraints.lower_cholesky

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # The map back, L -> L L^T, has determinant 2^n prod_i L_ii^(n - i), i from 0 (Muirhead
        # 1982, thm 2.1.9).
        n = y.array.shape[-1]
        weights = x.new_tensor(np.arange(n, 0, -1))
        return neg(total(weights * log(diagonal(y, 0, -2, -1)), -1) + n * LOG_2)


class CorrMatrixCholeskyTransform(_Factoring):
    """Correlation matrices to their Cholesky factors."""

    domain = constraints.corr_matrix
    codomain = constraints.corr_cholesky

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        n = y.array.shape[-1]
        weights = x.new_tensor(np.arange(n - 1, -1, -1))
        return neg(total(weights * log(diagonal(y, 0, -2, -1)), -1))


class CholeskyToInvCholeskyTransform(Transform):
    """Cholesky factors of matrices to those of their inverses; it is its own inverse."""

    domain = constraints.lower_cholesky
    codomain = constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        n = x.array.shape[-1]
        inverse = solve_triangular(x, x.new_tensor(np.eye(n)), upper=False)
        product = inverse.mT @ inverse
        return cholesky((product + product.mT) * 0.5)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._call(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # From L to A = L L^T, to its inverse (|A|^-(n + 1)), and back to a factor.
        n = x.array.shape[-1]
        weights = x.new_tensor(np.arange(n, 0, -1))
        before, after = (log(diagonal(m, 0, -2, -1)) for m in (x, y))
        return total(weights * (before - after), -1) - 2.0 * (n + 1) * total(before, -1)


class PositiveDefiniteTransform(ComposeTransform):
    """Vectors onto positive definite matrices, by their Cholesky factors."""

    _settings = ()

    def __init__(self, cache_size: int = 0) -> None:
        super().__init__([LowerCholeskyTransform(), CholeskyTransform().inv])


explain_calls(globals())
