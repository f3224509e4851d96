"""Norms of vectors, over any dims, and of matrices.

Gradients at 0 are 0. Norms of matrices by singular values take these from spectral.py.
"""

from __future__ import annotations

import math

from probtorch.core.casting import cast, converted, to_float
from probtorch.core.outputs import takes_out
from probtorch.core.shape import normalize_dims
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Dims, DTypeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import add, where
from probtorch.ops.comparisons import eq, ne
from probtorch.ops.complex_numbers import imag, real
from probtorch.ops.extremes import amax, amin
from probtorch.ops.linalg import as_matrix
from probtorch.ops.movement import movedim, reshape
from probtorch.ops.reduction import in_single, kept_shape, safe_sqrt, sum
from probtorch.ops.spectral import svdvals

__all__ = ["matrix_norm", "norm"]


@takes_out
@in_single
def norm(
    input: TensorLike,
    p: float | str = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Vector p-norm over `dim`; its gradient at 0 is 0. `p` may be inf, -inf, 0 or any number.

    "fro" is 2; "nuc" is the nuclear norm of matrices in two dims. Cast to `dtype` first where that
    is given.
    """
    input = converted(input, dtype, "norm")
    dims = normalize_dims(axis if dim is None else dim, input.array.ndim, "norm")
    keep = keepdim or keepdims
    # Of complex numbers the norm is that of their sizes, and its square that of their parts.
    parts = [real(input), imag(input)] if input.array.dtype.kind == "c" else [to_float(input)]
    if p == "nuc":
        return _nuclear(input if len(parts) > 1 else parts[0], dims, keep)
    if isinstance(p, str):
        if p != "fro":
            raise ArgumentError(
                "norm", expected="p: a number, inf, 'fro' or 'nuc'", got=repr(p), fix="p=2 is usual"
            )
        p = 2
    if p == 2:
        squares = [part * part for part in parts]
        return safe_sqrt(sum(squares[0] if len(parts) == 1 else add(*squares), dims, keep))
    input = parts[0] if len(parts) == 1 else absolute(input)
    if p == math.inf:
        return amax(absolute(input), dims, keep)
    if p == -math.inf:
        return amin(absolute(input), dims, keep)
    if p == 0:
        return sum(cast(ne(input, 0.0), input.array.dtype), dims, keep)
    if p == 1:
        return sum(absolute(input), dims, keep)
    powers = absolute(input)
    if p < 1:
        # The slope at 0 is infinite; it counts as 0.
        zero = eq(powers, 0.0)
        powers = where(zero, math.inf if p < 0 else 0.0, where(zero, 1.0, powers) ** p)
    else:
        powers = powers**p
    total = sum(powers, dims, keep)
    flat = eq(total, 0.0)
    # A power below 0 adds up to 0 of infinite numbers alone, or of none.
    return where(flat, math.inf if p < 0 else 0.0, where(flat, 1.0, total) ** (1.0 / p))


def _nuclear(x: TensorBase, dims: tuple[int, ...], keep: bool) -> TensorBase:
    """Sum of the singular values of the matrices in two dims."""
    if len(dims) != 2:
        raise ShapeError(
            "norm",
            expected="two dims for the nuclear norm of matrices",
            got=f"dims {dims} of shape {x.array.shape}",
            fix="pass dim=(-2, -1), or another p for vectors",
        )
    out = matrix_norm(movedim(x, dims, (-2, -1)), "nuc")
    return reshape(out, kept_shape(x.array.shape, dims)) if keep else out


_NORMS = {
    "fro": lambda a: norm(a, 2, (-2, -1)),
    "nuc": lambda a: sum(svdvals(a), -1),
    2: lambda a: amax(svdvals(a), -1),
    -2: lambda a: amin(svdvals(a), -1),
    1: lambda a: amax(sum(absolute(a), -2), -1),
    -1: lambda a: amin(sum(absolute(a), -2), -1),
    math.inf: lambda a: amax(sum(absolute(a), -1), -1),
    -math.inf: lambda a: amin(sum(absolute(a), -1), -1),
}


@takes_out
@in_single
def matrix_norm(
    A: TensorLike,
    ord: int | float | str = "fro",
    dim: tuple[int, int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return a norm of each matrix.

    Parameters
    ----------
    A : Tensor
    ord : number or str
        "fro", "nuc", 2 or -2 (singular values), 1 or -1 (columns), inf or -inf (rows).
    dim : pair of int
        Rows and columns of the matrices.
    keepdim : bool
        Keep these dims with size 1.
    dtype : dtype, optional
        Cast to it first.
    """
    if ord not in _NORMS:
        raise ArgumentError(
            "matrix_norm",
            expected=f"one of {list(_NORMS)}",
            got=repr(ord),
            fix="use norm for vectors",
        )
    A = as_matrix("matrix_norm", converted(A, dtype, "matrix_norm"), square=False)
    dims = normalize_dims(dim, A.array.ndim, "matrix_norm")
    if len(dims) != 2:
        raise ShapeError(
            "matrix_norm", expected="two dims", got=f"dim={dim}", fix="name rows and columns"
        )
    found = _NORMS[ord](movedim(A, dims, (-2, -1)))
    return reshape(found, kept_shape(A.array.shape, dims)) if keepdim else found
