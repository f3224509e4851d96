"""Linear algebra of the array API: its extension `linalg`, and what of it is in the main part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from probtorch.array_api.functions import sum
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.errors import ArgumentError
from probtorch.ops import (
    arithmetic,
    cholesky_factors,
    contraction,
    determinants,
    diagonals,
    linalg,
    movement,
    norms,
    orthogonal,
    pseudoinverses,
    repeating,
    spectral,
)

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]

det, inv, matmul, outer = determinants.det, linalg.inv, contraction.matmul, contraction.outer
matrix_power, slogdet, svdvals = linalg.matrix_power, determinants.slogdet, spectral.svdvals
eigh, eigvalsh = spectral.eigh, spectral.eigvalsh


def cholesky(x: TensorBase, /, *, upper: bool = False) -> TensorBase:
    """Return the triangular factor of symmetric positive definite matrices."""
    return cholesky_factors.cholesky(x, upper=upper)


def cross(x1: TensorBase, x2: TensorBase, /, *, axis: int = -1) -> TensorBase:
    """Return the cross product of vectors of three along an axis."""
    a, b = (movement.movedim(x, axis, -1) for x in (x1, x2))
    if a.array.shape[-1] != 3 or b.array.shape[-1] != 3:
        raise ArgumentError(
            "cross",
            expected="vectors of three",
            got=f"sizes {a.array.shape[-1]} and {b.array.shape[-1]} along axis {axis}",
            fix="name the axis that has size 3",
        )
    product = a * repeating.roll(b, -1, -1) - repeating.roll(a, -1, -1) * b
    return movement.movedim(repeating.roll(product, -1, -1), -1, axis)


def diagonal(x: TensorBase, /, *, offset: int = 0) -> TensorBase:
    """Return a diagonal of matrices in the last two dims."""
    return diagonals.diagonal(x, offset, -2, -1)


def matrix_norm(
    x: TensorBase, /, *, keepdims: bool = False, ord: float | str = "fro"
) -> TensorBase:
    """Return the norm of matrices in the last two dims."""
    found = norms.matrix_norm(x, ord)
    return movement.unsqueeze(movement.unsqueeze(found, -1), -1) if keepdims else found


def matrix_rank(x: TensorBase, /, *, rtol: float | None = None) -> TensorBase:
    """Return how many singular values are larger than a share of the largest."""
    return pseudoinverses.matrix_rank(x, rtol=rtol)


def matrix_transpose(x: TensorBase, /) -> TensorBase:
    """Return `x` with its last two dims swapped."""
    return movement.transpose(x, -2, -1)


def pinv(x: TensorBase, /, *, rtol: float | None = None) -> TensorBase:
    """Return the pseudo-inverse."""
    return pseudoinverses.pinv(x, rtol=rtol)


class QRResult(NamedTuple):
    """An orthonormal and an upper triangular factor."""

    Q: TensorBase
    R: TensorBase


def qr(x: TensorBase, /, *, mode: str = "reduced") -> QRResult:
    """Return an orthonormal and a triangular factor; only reduced ones.

    Raises
    ------
    ArgumentError
        For another `mode`.
    """
    if mode != "reduced":
        raise ArgumentError(
            "qr", expected='mode "reduced"', got=repr(mode), fix="complete the basis by hand"
        )
    return QRResult(*orthogonal.qr(x))


def solve(x1: TensorBase, x2: TensorBase, /) -> TensorBase:
    """Return the solution of ``x1 @ x = x2``; a vector if `x2` has one dim."""
    if x2.array.ndim == 1:
        return linalg.solve_vector(x1, x2)
    return linalg.solve(x1, x2)


class SVDResult(NamedTuple):
    """Left singular vectors, singular values, and right singular vectors as rows."""

    U: TensorBase
    S: TensorBase
    Vh: TensorBase


def svd(x: TensorBase, /, *, full_matrices: bool = True) -> SVDResult:
    """Return the singular value decomposition."""
    return SVDResult(*spectral.svd(x, full_matrices))


def tensordot(
    x1: TensorBase, x2: TensorBase, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> TensorBase:
    """Return sums of products over the last axes of one and the first of the other, or as named."""
    return contraction.tensordot(x1, x2, axes)


def trace(x: TensorBase, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> TensorBase:
    """Return the sum of a diagonal of matrices in the last two dims."""
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vecdot(x1: TensorBase, x2: TensorBase, /, *, axis: int = -1) -> TensorBase:
    """Return the inner product of vectors along an axis."""
    return sum(x1 * x2, axis=axis)


def vector_norm(
    x: TensorBase,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    ord: float = 2,
) -> TensorBase:
    """Return the norm of vectors along axes, of all elements by default."""
    if axis is None:
        dims = tuple(range(x.array.ndim))
    else:
        dims = (axis,) if isinstance(axis, int) else axis
    if not dims:
        return arithmetic.abs(x)
    kept = tuple(d for d in range(x.array.ndim) if d not in {d % x.array.ndim for d in dims})
    # One axis of all that are summed over, so that no two of them are a matrix.
    flat = movement.permute(x, (*kept, *(d % x.array.ndim for d in dims)))
    flat = movement.reshape(flat, (*(x.array.shape[d] for d in kept), -1))
    found = norms.norm(flat, ord, -1)
    if not keepdims:
        return found
    closed = {d % x.array.ndim for d in dims}
    return movement.reshape(
        found, tuple(1 if d in closed else n for d, n in enumerate(x.array.shape))
    )
