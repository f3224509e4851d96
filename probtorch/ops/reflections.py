"""Householder's reflections, matrices of low rank by random projections, and triangular systems in
PyTorch's older form.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.refusals import real_only, shown
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import clone
from probtorch.ops.contraction import matmul
from probtorch.ops.linalg import as_matrix, mh, mt, solve_triangular
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.orthogonal import qr
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import mean
from probtorch.ops.sampling import randn
from probtorch.ops.spectral import svd, svdvals

__all__ = [
    "Geqrf",
    "LowRankSvd",
    "TriangularSolve",
    "geqrf",
    "householder_product",
    "ormqr",
    "pca_lowrank",
    "svd_lowrank",
    "svd_old",
    "triangular_solve",
]


class Geqrf(NamedTuple):
    """R above and reflectors below the diagonal, and the factors of the reflectors."""

    a: TensorBase
    tau: TensorBase


class TriangularSolve(NamedTuple):
    """The solution, and a copy of the matrix."""

    solution: TensorBase
    cloned_coefficient: TensorBase


class LowRankSvd(NamedTuple):
    """Left vectors in columns, singular values, right vectors in columns."""

    U: TensorBase
    S: TensorBase
    V: TensorBase


@takes_out
def geqrf(input: TensorLike, *, out: tuple[TensorBase, ...] | None = None) -> Geqrf:
    """Return the QR factorisation as LAPACK has it, for `householder_product` and `ormqr`.

    No gradient; `linalg.qr` has one.
    """
    input = as_matrix("geqrf", input, square=False)
    real_only("geqrf", input)
    read("geqrf", input)
    packed, tau = np.linalg.qr(to_host(input.array), mode="raw")
    device = device_of(input.array)
    rows = np.ascontiguousarray(np.swapaxes(packed, -1, -2))
    return Geqrf(*(wrap(to_device(a, device)) for a in (rows, tau)))


def _reflected(
    op: str, v: TensorBase, tau: TensorBase, x: TensorBase, forwards: bool
) -> TensorBase:
    """Return the product of reflectors ``1 - tau v v'``, in order or in reverse, with `x`."""
    m, most = v.array.shape[-2:]
    count = tau.array.shape[-1] if tau.array.ndim else most + 1
    if tau.array.shape[:-1] != v.array.shape[:-2] or count > most:
        raise ShapeError(
            op,
            expected=f"a factor for each of at most {most} reflectors, batch {v.array.shape[:-2]}",
            got=str(tau.array.shape),
            fix="pass both results of geqrf",
        )
    lead = v.array.shape[:-2]
    for i in range(count) if forwards else reversed(range(count)):
        head = wrap(np.eye(1, m, i, dtype=v.array.dtype).T[: i + 1])
        column = cat([expand(head, (*lead, i + 1, 1)), v[..., i + 1 :, i : i + 1]], -2)
        scale = unsqueeze(tau[..., i : i + 1], -1)
        x = x - scale * matmul(column, matmul(mt(column), x))
    return x


@takes_out
def householder_product(
    A: TensorLike, tau: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return the first n columns of a product of Householder's reflections.

    Parameters
    ----------
    A : Tensor, shape (..., m, n)
        Reflectors in its columns below the diagonal, where each has a 1.
    tau : Tensor, shape (..., k)
        Their factors, k <= n <= m.

    Returns
    -------
    Tensor, shape (..., m, n)
    """
    v, tau = as_matrix("householder_product", A, square=False), as_tensor(tau)
    real_only("householder_product", v)
    m, n = v.array.shape[-2:]
    if n > m:
        raise ShapeError(
            "householder_product",
            expected="at least as many rows as columns",
            got=f"shape {v.array.shape}",
            fix="transpose the matrix",
        )
    eye = wrap(np.eye(m, n, dtype=v.array.dtype))
    start = expand(eye, v.array.shape)
    return _reflected("householder_product", v, tau, start, forwards=False)


@takes_out
def ormqr(
    input: TensorLike,
    tau: TensorLike,
    other: TensorLike,
    left: bool = True,
    transpose: bool = False,
    *,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``Q @ other``, Q being the whole product of the reflections of `geqrf`.

    Parameters
    ----------
    input : Tensor, shape (..., m, k)
    tau : Tensor, shape (..., k)
    other : Tensor, shape (..., m, n), or (..., n, m) where ``left=False``
    left : bool
        False returns ``other @ Q``.
    transpose : bool
        Take the transpose of Q.
    """
    v, tau, other = as_matrix("ormqr", input, square=False), as_tensor(tau), as_tensor(other)
    real_only("ormqr", v, other)
    if other.array.ndim < 2 or other.array.shape[-2 if left else -1] != v.array.shape[-2]:
        raise ShapeError(
            "ormqr",
            expected=f"a matrix with {v.array.shape[-2]} {'rows' if left else 'columns'}",
            got=str(other.array.shape),
            fix="transpose it, or change left=",
        )
    if left:
        return _reflected("ormqr", v, tau, other, forwards=transpose)
    return mt(_reflected("ormqr", v, tau, mt(other), forwards=not transpose))


@takes_out
def triangular_solve(
    b: TensorLike,
    A: TensorLike,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
    *,
    out: tuple[TensorBase, ...] | None = None,
) -> TriangularSolve:
    """Solve ``A @ x = b`` for a triangular A; `linalg.solve_triangular` in PyTorch's older form."""
    a = as_matrix("triangular_solve", A)
    b = as_matrix("triangular_solve", b, square=False)
    turned, at_top = (mt(a), not upper) if transpose else (a, upper)
    found = solve_triangular(turned, b, upper=at_top, unitriangular=unitriangular)
    return TriangularSolve(found, clone(a))


@in_our_words
def svd_lowrank(
    A: TensorLike, q: int | None = 6, niter: int = 2, M: TensorLike | None = None
) -> LowRankSvd:
    """Return the largest singular values and their vectors, by random projections.

    Parameters
    ----------
    A : Tensor, shape (..., m, n)
    q : int
        How many, a few more than the rank that counts; at most min(m, n).
    niter : int
        Rounds of subspace iteration.
    M : Tensor, broadcast with A, optional
        Subtracted from A first: its mean.

    Returns
    -------
    U : Tensor, shape (..., m, q)
    S : Tensor, shape (..., q)
    V : Tensor, shape (..., n, q)

    References
    ----------
    Halko, Martinsson and Tropp (2011), algorithm 5.1.
    """
    a = as_matrix("svd_lowrank", A, square=False)
    real_only("svd_lowrank", a)
    a = a if M is None else a - as_tensor(M, "svd_lowrank")
    m, n = a.array.shape[-2:]
    count = 6 if q is None else q
    if not 0 <= count <= min(m, n) or not 0 <= niter <= 10**6:
        raise ArgumentError(
            "svd_lowrank",
            expected=f"q from 0 to {min(m, n)}, the smaller size, niter to 10**6",
            got=f"q={count}, niter={shown(niter)}",
            fix="use linalg.svd for all singular values",
        )
    basis = qr(matmul(a, randn(n, count, dtype=a.array.dtype).to(device=a.device))).Q
    for _ in range(niter):
        basis = qr(matmul(mt(a), basis)).Q
        basis = qr(matmul(a, basis)).Q
    u, s, vh = svd(matmul(mt(basis), a), False)
    return LowRankSvd(matmul(basis, u), s, mt(vh))


@takes_out
def svd_old(
    input: TensorLike,
    some: bool = True,
    compute_uv: bool = True,
    *,
    out: tuple[TensorBase, ...] | None = None,
) -> LowRankSvd:
    """Return ``(U, S, V)`` with ``input = U @ diag(S) @ V.mH``: PyTorch's older form.

    Parameters
    ----------
    input : Tensor, shape (..., m, n)
    some : bool
        Leave U and V thin, of min(m, n) columns.
    compute_uv : bool
        Without it, U and V are square matrices of zeros.

    Returns
    -------
    U : Tensor, shape (..., m, k), with k = min(m, n), or m if not `some`
    S : Tensor, shape (..., min(m, n))
    V : Tensor, shape (..., n, k), not its transpose
    """
    if compute_uv:
        u, s, vh = svd(input, not some)
        return LowRankSvd(u, s, mh(vh))
    a = as_matrix("svd", input, square=False)
    *batch, m, n = a.array.shape
    u, v = (wrap(to_device(np.zeros((*batch, k, k), a.array.dtype), a.device)) for k in (m, n))
    return LowRankSvd(u, svdvals(a), v)


@in_our_words
def pca_lowrank(
    A: TensorLike, q: int | None = None, center: bool = True, niter: int = 2
) -> LowRankSvd:
    """Return the principal components of rows of data, by `svd_lowrank`.

    Parameters
    ----------
    A : Tensor, shape (..., m, n)
        m rows of n numbers.
    q : int, optional
        How many; min(6, m, n) if left out.
    center : bool
        Subtract the mean of the rows first.
    niter : int
        As in `svd_lowrank`.

    Returns
    -------
    U, S, V
        The components are the columns of V.
    """
    a = as_matrix("pca_lowrank", A, square=False)
    real_only("pca_lowrank", a)
    count = min(6, *a.array.shape[-2:]) if q is None else q
    return svd_lowrank(a, count, niter, mean(a, -2, True) if center else None)
