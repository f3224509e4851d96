"""Products and distances of vectors and matrices, norms by their order, and what solves with them.

Compositions of contraction.py, linalg.py, spectral.py and pseudoinverses.py.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from probtorch.core.casting import cast, converted
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import int64
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.shape import broadcast_shapes, normalize_dim, normalize_dims
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Dims, DTypeLike, TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.ops.arithmetic import ceil, maximum, minimum, where
from probtorch.ops.comparisons import gt
from probtorch.ops.complex_numbers import conj, real
from probtorch.ops.contraction import matmul
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import log2
from probtorch.ops.extremes import amax
from probtorch.ops.linalg import as_matrix, identity, inv, solve
from probtorch.ops.movement import broadcast_tensors, expand, permute, reshape, unsqueeze
from probtorch.ops.norms import matrix_norm, norm
from probtorch.ops.pseudoinverses import matrix_rank, pinv
from probtorch.ops.reduction import sum
from probtorch.ops.repeating import roll
from probtorch.ops.spectral import svdvals
from probtorch.ops.take_put import take

__all__ = [
    "Lstsq",
    "cdist",
    "chain_matmul",
    "cond",
    "cross",
    "kron",
    "linalg_cross",
    "linalg_norm",
    "linalg_vander",
    "lstsq",
    "matrix_exp",
    "multi_dot",
    "pdist",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    "vector_norm",
]


# ----------------------------------------------------------------------------------- vectors


@takes_out
def vecdot(
    x: TensorLike, y: TensorLike, *, dim: int = -1, out: TensorBase | None = None
) -> TensorBase:
    """Return the inner products along `dim`, of the conjugate of `x`; the other dims broadcast."""
    x, y = as_tensor(x, "vecdot"), as_tensor(y, "vecdot")
    return sum(conj(x) * y, dim)


@takes_out
def linalg_cross(
    input: TensorLike, other: TensorLike, *, dim: int = -1, out: TensorBase | None = None
) -> TensorBase:
    """Return the vector products along `dim`, which has 3 elements; the other dims broadcast."""
    input, other = as_tensor(input, "cross"), as_tensor(other, "cross")
    for t in (input, other):
        n = t.array.shape[normalize_dim(dim, t.array.ndim, "cross")] if t.array.ndim else 0
        if n != 3:
            raise ShapeError(
                "cross",
                expected=f"3 elements along dim {dim}",
                got=f"shape {t.array.shape}",
                fix="name the dim of the coordinates with dim=",
            )
    input, other = broadcast_tensors(input, other)
    return roll(input, -1, dim) * roll(other, -2, dim) - roll(input, -2, dim) * roll(other, -1, dim)


@takes_out
def cross(
    input: TensorLike, other: TensorLike, dim: int | None = None, *, out: TensorBase | None = None
) -> TensorBase:
    """Return the vector products along `dim`, by default the first that has 3 elements."""
    input, other = as_tensor(input, "cross"), as_tensor(other, "cross")
    if dim is None:
        shape = broadcast_shapes(input.array.shape, other.array.shape, op="cross")
        if 3 not in shape:
            raise ShapeError(
                "cross", expected="a dim of 3 elements", got=f"shape {shape}", fix="stack them"
            )
        dim = shape.index(3) - len(shape)
    return linalg_cross(input, other, dim=dim)


@takes_out
def vector_norm(
    x: TensorLike,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return the norm of the vectors in `dim`, or of all elements: any number, inf or -inf."""
    x = converted(x, dtype, "vector_norm")
    if x.array.dtype.kind not in "fc":
        raise DTypeError(
            "vector_norm",
            expected="a floating-point tensor",
            got=str(x.array.dtype),
            fix="convert it with .float()",
        )
    if isinstance(ord, str):
        raise ArgumentError(
            "vector_norm",
            expected="ord: a number, inf or -inf",
            got=repr(ord),
            fix="use matrix_norm for the norms of matrices",
        )
    return norm(x, float(ord), dim, keepdim)


@takes_out
def linalg_norm(
    input: TensorLike,
    ord: float | str | None = None,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return a norm of vectors (one dim) or matrices (two dims); without `dim` of all of `input`.

    Parameters
    ----------
    input : Tensor
    ord : number or str, optional
        As for `vector_norm` or `matrix_norm`; the root of the sum of squares without it.
    dim : int or pair of int, optional
    keepdim : bool
    dtype : dtype, optional
        Cast to it first.
    """
    input = converted(input, dtype, "norm")
    if ord is None:
        return vector_norm(input, 2, dim, keepdim)
    ndim = input.array.ndim
    dims = (dim,) if isinstance(dim, int) else tuple(range(ndim) if dim is None else dim)
    if len(dims) == 1 and not isinstance(ord, str):
        return vector_norm(input, ord, dims, keepdim)
    if len(dims) != 2:
        raise ShapeError(
            "norm",
            expected="one dim for vectors, two for matrices",
            got=f"{len(dims)} dims with ord={ord!r}",
            fix="name them with dim=, or leave ord out",
        )
    return matrix_norm(input, ord, dims, keepdim)


@in_our_words
def cdist(
    x1: TensorLike, x2: TensorLike, p: float = 2.0, compute_mode: str | None = None
) -> TensorBase:
    """Return the p-norms of the differences of all rows, shape (..., rows of x1, rows of x2).

    `compute_mode` is accepted for PyTorch's sake: the differences themselves are computed.
    """
    a, b = as_tensor(x1, "cdist"), as_tensor(x2, "cdist")
    if min(a.array.ndim, b.array.ndim) < 2 or a.array.shape[-1] != b.array.shape[-1]:
        raise ShapeError(
            "cdist",
            expected="two matrices with rows of one length",
            got=f"shapes {a.array.shape} and {b.array.shape}",
            fix="unsqueeze a vector: x[None] for one row, x[:, None] for rows of one number",
        )
    return norm(unsqueeze(a, -2) - unsqueeze(b, -3), p, -1)


def pdist(input: TensorLike, p: float = 2.0) -> TensorBase:
    """Return the p-norms of the differences of the rows of a matrix, each pair once."""
    input = as_tensor(input, "pdist")
    if input.array.ndim != 2:
        raise ShapeError(
            "pdist",
            expected="a matrix",
            got=f"shape {input.array.shape}",
            fix="use cdist for batches",
        )
    rows, others = (wrap(i) for i in np.triu_indices(input.array.shape[0], 1))
    return norm(take(input, (0,), [rows]) - take(input, (0,), [others]), p, -1)


# ----------------------------------------------------------------------------------- matrices


@takes_out
def kron(input: TensorLike, other: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return the Kronecker product; missing leading dims have size 1."""
    input, other = as_tensor(input, "kron"), as_tensor(other, "kron")
    ndim = max(input.array.ndim, other.array.ndim)
    a, b = ((1,) * (ndim - t.array.ndim) + t.array.shape for t in (input, other))
    apart = [n for size in a for n in (size, 1)], [n for size in b for n in (1, size)]
    product = reshape(input, apart[0]) * reshape(other, apart[1])
    return reshape(product, [m * n for m, n in zip(a, b, strict=True)])


@takes_out
def multi_dot(
    tensors: list[TensorBase] | tuple[TensorBase, ...], *, out: TensorBase | None = None
) -> TensorBase:
    """Return the product of matrices, in the order of least work; first and last may be vectors."""
    found = [as_tensor(t, "multi_dot") for t in tensors]
    if len(found) < 2:
        raise ArgumentError(
            "multi_dot",
            expected="at least two tensors",
            got=str(len(found)),
            fix="pass all of them",
        )
    for i, t in enumerate(found):
        if t.array.ndim not in ((1, 2) if i in (0, len(found) - 1) else (2,)):
            raise ShapeError(
                "multi_dot",
                expected="matrices, and vectors at the ends only",
                got=f"shape {t.array.shape} for tensor {i}",
                fix="use matmul for batches",
            )
    ends = [found[0].array.ndim == 1, found[-1].array.ndim == 1]
    if ends[0]:
        found[0] = unsqueeze(found[0], 0)
    if ends[1]:
        found[-1] = unsqueeze(found[-1], 1)
    out = _in_best_order(found)
    rest = [n for n, end in zip(out.array.shape, ends, strict=True) if not end]
    return reshape(out, rest)


def _in_best_order(found: list[TensorBase]) -> TensorBase:
    """The product by the parentheses that dynamic programming finds."""
    n = len(found)
    size = [found[0].array.shape[0], *(t.array.shape[1] for t in found)]
    cost = {(i, i): (0, i) for i in range(n)}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            cost[i, j] = min(
                (cost[i, k][0] + cost[k + 1, j][0] + size[i] * size[k + 1] * size[j + 1], k)
                for k in range(i, j)
            )

    def product(i: int, j: int) -> TensorBase:
        if i == j:
            return found[i]
        k = cost[i, j][1]
        return matmul(product(i, k), product(k + 1, j))

    return product(0, n - 1)


@takes_out
def chain_matmul(*matrices: TensorLike, out: TensorBase | None = None) -> TensorBase:
    """Return the product of matrices, in the order of least work."""
    if len(matrices) == 1:
        return as_tensor(matrices[0], "chain_matmul")
    return multi_dot([as_tensor(m, "chain_matmul") for m in matrices])


@in_our_words
def linalg_vander(x: TensorLike, *, N: int | None = None) -> TensorBase:
    """Return the powers 0, 1, ... N - 1 of the last dim of `x` along a new one."""
    x = as_tensor(x, "vander")
    if not x.array.ndim:
        x = reshape(x, (1,))
    n = x.array.shape[-1] if N is None else N
    if x.array.dtype.kind in "biu":
        x = cast(x, int64)
    powers = cast(wrap(np.arange(n)), x.array.dtype)
    return unsqueeze(x, -1) ** powers


def vander(x: TensorLike, N: int | None = None, increasing: bool = False) -> TensorBase:
    """Return the Vandermonde matrix of a vector, shape (n, N): powers N - 1, ... 1, 0."""
    x = as_tensor(x, "vander")
    if x.array.ndim != 1:
        raise ShapeError(
            "vander", expected="a vector", got=f"shape {x.array.shape}", fix="use linalg.vander"
        )
    out = linalg_vander(x, N=N)
    return out if increasing else out.flip(-1)


# Padé's approximant of degree 13 of the exponential: N. J. Higham, "The scaling and squaring method
# for the matrix exponential revisited", SIAM J. Matrix Anal. Appl. 26 (2005), table 2.3.
_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0,
    129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0,
    40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
# Up to this 1-norm it is exact to double precision.
_PADE_NORM = 5.371920351148152


def matrix_exp(A: TensorLike) -> TensorBase:
    """Return the exponential of each square matrix, by scaling and squaring (Higham 2005).

    Raises
    ------
    ShapeError
        Unless the last two dims are equal.
    """
    A = as_matrix("matrix_exp", A)
    n = A.array.shape[-1]
    if not A.array.size:
        return A
    largest = amax(matrix_norm(A.detach(), 1))
    # Of infinities no number of halvings makes anything small: 1024 do of all others.
    halvings = ceil(log2(where(gt(largest, 0.0), largest, 1.0) / _PADE_NORM))
    halvings = minimum(maximum(halvings, 0.0), 1024.0)
    A = A * 0.5**halvings
    eye = expand(identity(n, A), A.array.shape)
    a2 = matmul(A, A)
    a4 = matmul(a2, a2)
    a6 = matmul(a4, a2)
    b = _PADE
    odd = matmul(a6, b[13] * a6 + b[11] * a4 + b[9] * a2)
    odd = matmul(A, odd + b[7] * a6 + b[5] * a4 + b[3] * a2 + b[1] * eye)
    even = matmul(a6, b[12] * a6 + b[10] * a4 + b[8] * a2)
    even = even + b[6] * a6 + b[4] * a4 + b[2] * a2 + b[0] * eye

    def square(state: tuple[TensorBase, TensorBase]) -> tuple[TensorBase, TensorBase]:
        left, power = state
        return left - 1.0, matmul(power, power)

    start = halvings, solve(even - odd, even + odd)
    return while_loop(lambda state: gt(state[0], 0.0), square, start)[1]


@takes_out
def cond(
    A: TensorLike, p: float | str | None = None, *, out: TensorBase | None = None
) -> TensorBase:
    """Return the condition number of each matrix: the norm, times that of the inverse.

    `p` is a norm as for `matrix_norm`; by default the ratio of the largest to the least singular
    value, which matrices that are not square have too.
    """
    if p in (None, 2, -2):
        s = svdvals(as_matrix("cond", A, square=False))
        return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
    assert p is not None
    A = as_matrix("cond", A)
    return matrix_norm(A, p) * matrix_norm(inv(A), p)


# ----------------------------------------------------------------------------------- solving


class Lstsq(NamedTuple):
    """A least-squares solution, and what is known of it."""

    solution: TensorBase
    residuals: TensorBase
    rank: TensorBase
    singular_values: TensorBase


def lstsq(
    A: TensorLike, B: TensorLike, rcond: float | None = None, *, driver: str | None = None
) -> Lstsq:
    """Return the solution of least length of ``min |A x - B|``, by singular values.

    Parameters
    ----------
    A : Tensor, shape (..., m, n)
    B : Tensor, shape (..., m, k) or (..., m)
    rcond : float, optional
        Singular values below this times the largest count as 0.
    driver : str, optional
        Accepted so that scripts run.

    Returns
    -------
    Lstsq
        `solution`, `residuals` (sums of squares of the columns; empty unless m > n and the rank is
        n), `rank` and `singular_values`.
    """
    A, B = as_matrix("lstsq", A, square=False), as_tensor(B, "lstsq")
    m, n = A.array.shape[-2:]
    if not B.array.ndim:
        raise ShapeError(
            "lstsq",
            expected=f"{m} rows, as the matrix has",
            got="a 0-d tensor",
            fix="reshape it to (1,)",
        )
    vector = B.array.ndim == 1 or B.array.shape[:-1] == A.array.shape[:-1]
    if vector and not (B.array.ndim > 1 and B.array.shape[-2:-1] == (m,)):
        B = unsqueeze(B, -1)
    else:
        vector = False
    if B.array.shape[-2] != m:
        raise ShapeError(
            "lstsq",
            expected=f"{m} rows, as the matrix has",
            got=f"shape {B.array.shape}",
            fix="transpose the right-hand side with .mT",
        )
    tol = np.finfo(A.array.dtype).eps * max(m, n) if rcond is None else rcond
    solution = matmul(pinv(A, rtol=tol), cast(B, A.array.dtype))
    rank, values = matrix_rank(A, rtol=tol), svdvals(A)
    residuals = solution[..., :0, :].reshape(-1)[:0]
    if m > n and bool((rank == n).all()):
        apart = matmul(A, solution) - B
        residuals = sum(real(apart * conj(apart)), -2)
    return Lstsq(solution[..., 0] if vector else solution, residuals, rank, values)


@takes_out
def tensorsolve(
    A: TensorLike,
    B: TensorLike,
    dims: tuple[int, ...] | None = None,
    *,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return `x` with ``tensordot(A, x, x.ndim) == B``.

    Parameters
    ----------
    A : Tensor
        The first dims are those of `B`, the product of the others as large.
    B : Tensor
    dims : tuple of int, optional
        Dims of `A` that are moved to its end first.
    """
    A, B = as_tensor(A, "tensorsolve"), as_tensor(B, "tensorsolve")
    if dims is not None:
        last = normalize_dims(dims, A.array.ndim, "tensorsolve")
        A = permute(A, [d for d in range(A.array.ndim) if d not in last] + list(last))
    rest = A.array.shape[B.array.ndim :]
    _square("tensorsolve", A, B.array.size, math.prod(rest))
    return reshape(solve(reshape(A, (B.array.size, -1)), reshape(B, -1)), rest)


@takes_out
def tensorinv(A: TensorLike, ind: int = 2, *, out: TensorBase | None = None) -> TensorBase:
    """Return the inverse of `A` for tensordot over its last dims; the first `ind` come last."""
    A = as_tensor(A, "tensorinv")
    first, rest = A.array.shape[:ind], A.array.shape[ind:]
    _square("tensorinv", A, math.prod(first), math.prod(rest))
    return reshape(inv(reshape(A, (math.prod(first), -1))), (*rest, *first))


def _square(op: str, a: TensorBase, n: int, m: int) -> None:
    if n != m:
        raise ShapeError(
            op,
            expected="first and last dims of equal size in all",
            got=f"{n} and {m} of shape {a.array.shape}",
            fix="check which dims belong to the right-hand side",
        )
