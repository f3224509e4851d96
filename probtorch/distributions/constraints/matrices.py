"""Sets of square matrices: symmetric, positive definite, triangular, Cholesky factors."""

from __future__ import annotations

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import set_recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.told import is_constant, read
from probtorch.distributions.constraints.base import Constraint, named
from probtorch.distributions.constraints.vectors import slack
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.cholesky_factors import cholesky, cholesky_ex
from probtorch.ops.comparisons import eq, ge, gt, le, logical_and
from probtorch.ops.diagonals import diagonal, tril
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "CorrCholesky",
    "CorrMatrix",
    "LowerCholesky",
    "LowerTriangular",
    "PositiveDefinite",
    "PositiveSemidefinite",
    "ScaledUnitLowerCholesky",
    "SoftplusLowerCholesky",
    "Square",
    "Symmetric",
    "UnitLowerCholesky",
    "corr_cholesky",
    "corr_matrix",
    "lower_cholesky",
    "lower_triangular",
    "positive_definite",
    "positive_semidefinite",
    "scaled_unit_lower_cholesky",
    "softplus_lower_cholesky",
    "square",
    "symmetric",
    "unit_lower_cholesky",
]


class Square(Constraint):
    """Square matrices."""

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        shape = value.array.shape
        same = every(eq(value, value), (-2, -1))
        return same if shape[-1] == shape[-2] else same & False

    def interior(self, value: Tensor) -> float | Tensor:
        return wrap(np.eye(value.array.shape[-1], dtype=value.array.dtype))


class Symmetric(Square):
    """Matrices equal to their transpose, within rounding."""

    def check(self, value: Tensor) -> Tensor:
        gap = absolute(value - value.mT)
        size = absolute(value) + absolute(value.mT)
        near = every(le(gap, size * 1e-6), (-2, -1))
        return logical_and(super().check(value), near)


class PositiveSemidefinite(Symmetric):
    """Symmetric matrices without a negative eigenvalue (beyond rounding)."""

    def check(self, value: Tensor) -> Tensor:
        values = _eigenvalues(value)
        least = values.amin(-1)
        return logical_and(super().check(value), ge(least, -slack(value) * values.amax(-1)))


class PositiveDefinite(Symmetric):
    """Symmetric matrices whose eigenvalues are all positive."""

    def check(self, value: Tensor) -> Tensor:
        near = super().check(value)
        if not is_constant(value):
            return logical_and(near, _has_factor(value))
        return logical_and(near, gt(_eigenvalues(value, unit_diagonal=True).amin(-1), 0.0))


def _has_factor(value: Tensor) -> Tensor:
    """Whether matrices have Cholesky factors, for a recording, which then has the very factors that
    a distribution computes with.
    """
    before = set_recorder(None)
    try:
        failed = cholesky_ex(value)[1].array.any()
    finally:
        set_recorder(before)
    factor = cholesky_ex(value)[0] if failed else cholesky(value)
    ends = _diagonal(factor)
    return every(eq(ends, ends), -1)


def _eigenvalues(value: Tensor, unit_diagonal: bool = False) -> Tensor:
    """Eigenvalues of symmetric matrices, by LAPACK on the host; nan and inf count as 0.

    Scaled to a `unit_diagonal` a matrix is as definite as before, and rounding hides it no more
    where its rows are of different sizes.
    A test of membership has no derivative, so no op is needed; a recording is told that it cannot
    repeat this one.
    """
    read("a test for positive definiteness", value)
    matrix = to_host(value.array)
    matrix = np.where(np.isfinite(matrix), matrix, 0.0)
    if unit_diagonal:
        ends = np.sqrt(np.abs(np.diagonal(matrix, 0, -2, -1)))
        ends = np.where(ends > 0.0, ends, 1.0)
        matrix = matrix / ends[..., None] / ends[..., None, :]
    return as_tensor(np.linalg.eigvalsh(matrix))


class LowerTriangular(Square):
    """Square matrices with zeros above the diagonal."""

    def check(self, value: Tensor) -> Tensor:
        return logical_and(super().check(value), every(eq(value, tril(value)), (-2, -1)))


class LowerCholesky(LowerTriangular):
    """Lower-triangular matrices with a positive diagonal."""

    def check(self, value: Tensor) -> Tensor:
        return logical_and(super().check(value), every(gt(_diagonal(value), 0.0), -1))


class SoftplusLowerCholesky(LowerCholesky):
    """Lower-triangular matrices whose positive diagonal is reached by softplus instead of exp."""


class ScaledUnitLowerCholesky(LowerCholesky):
    """Lower Cholesky factors that are reached as unit triangles with scaled rows."""


class UnitLowerCholesky(LowerTriangular):
    """Lower-triangular matrices with ones on the diagonal."""

    def check(self, value: Tensor) -> Tensor:
        return logical_and(super().check(value), every(eq(_diagonal(value), 1.0), -1))


class CorrCholesky(LowerCholesky):
    """Cholesky factors of correlation matrices: lower Cholesky with rows of length 1."""

    def check(self, value: Tensor) -> Tensor:
        length = total(value * value, -1)
        unit = every(le(absolute(length - 1.0), slack(value)), -1)
        return logical_and(super().check(value), unit)


class CorrMatrix(PositiveDefinite):
    """Positive definite matrices with ones on the diagonal."""

    def check(self, value: Tensor) -> Tensor:
        unit = every(le(absolute(_diagonal(value) - 1.0), slack(value)), -1)
        return logical_and(super().check(value), unit)


def _diagonal(x: Tensor) -> Tensor:
    return diagonal(x, 0, -2, -1)


square = named("square", Square())
symmetric = named("symmetric", Symmetric())
positive_semidefinite = named("positive_semidefinite", PositiveSemidefinite())
positive_definite = named("positive_definite", PositiveDefinite())
lower_triangular = named("lower_triangular", LowerTriangular())
lower_cholesky = named("lower_cholesky", LowerCholesky())
softplus_lower_cholesky = named("softplus_lower_cholesky", SoftplusLowerCholesky())
scaled_unit_lower_cholesky = named("scaled_unit_lower_cholesky", ScaledUnitLowerCholesky())
unit_lower_cholesky = named("unit_lower_cholesky", UnitLowerCholesky())
corr_cholesky = named("corr_cholesky", CorrCholesky())
corr_matrix = named("corr_matrix", CorrMatrix())


explain_calls(globals())
