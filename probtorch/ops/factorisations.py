"""LU factors of matrices: the op, what is made of it, and solves and inverses that do not raise.

The derivative is that of both factors (de Hoog, Anderssen and Lukas 2011; the rectangular cases as
in PyTorch): with ``P' A = L U`` and F the change of ``P' A`` seen from both sides,
``L^-1 dA U^-1``, the strict lower triangle of F belongs to L and the rest to U. Read linalg.py
first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, wrap
from probtorch.core.dtype import int32, int64
from probtorch.core.making import as_tensor
from probtorch.core.native import Routine
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.complex_numbers import conj
from probtorch.ops.contraction import matmul
from probtorch.ops.diagonals import diag_embed, diagonal, tril, triu
from probtorch.ops.extremes import argmax
from probtorch.ops.families import structured
from probtorch.ops.gathering import take_along_dim
from probtorch.ops.linalg import (
    LinAlgError,
    as_matrix,
    general_samples,
    identity,
    mt,
    solve_triangular,
)
from probtorch.ops.movement import expand, reshape, unsqueeze
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import any as any_of
from probtorch.ops.sorting import argsort
from probtorch.ops.workspace import pivots as exchanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from probtorch.core.op import Attrs

__all__ = [
    "LU",
    "InvEx",
    "LUFactor",
    "LUFactorEx",
    "SolveEx",
    "inv_ex",
    "lu",
    "lu_factor",
    "lu_factor_ex",
    "lu_pair",
    "lu_solve",
    "lu_solve_old",
    "lu_unpack",
    "solve_ex",
]


class LU(NamedTuple):
    """Permutation, unit lower and upper triangle, with ``A = P @ L @ U``."""

    P: TensorBase
    L: TensorBase
    U: TensorBase


class LUFactor(NamedTuple):
    """Both triangles in one matrix, and the row exchanges, counted from 1."""

    LU: TensorBase
    pivots: TensorBase


class LUFactorEx(NamedTuple):
    """As `LUFactor`, and which pivot is the first that is 0, counted from 1; 0 if none is."""

    LU: TensorBase
    pivots: TensorBase
    info: TensorBase


class InvEx(NamedTuple):
    """Inverses, and which pivot is the first that is 0, counted from 1; 0 if none is."""

    inverse: TensorBase
    info: TensorBase


class SolveEx(NamedTuple):
    """Solutions, and which pivot is the first that is 0, counted from 1; 0 if none is."""

    result: TensorBase
    info: TensorBase


@functools.cache
def _getrf(letter: str) -> Callable[..., tuple[np.ndarray, np.ndarray, int]]:
    import scipy.linalg.lapack  # heavy, and few programs come here

    found: Callable[..., tuple[np.ndarray, np.ndarray, int]]
    found = getattr(scipy.linalg.lapack, f"{letter}getrf")
    return found


def _run_lu(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    host = to_host(a)
    m, n = host.shape[-2:]
    lead, k = host.shape[:-2], min(m, n)
    packed = np.array(host, order="C").reshape(math.prod(lead), m, n)
    pivots = np.zeros((len(packed), k), np.int32)
    rows = np.broadcast_to(np.arange(m), (len(packed), m)).copy()
    factor = _getrf({"f": "s", "F": "c", "D": "z"}.get(a.dtype.char, "d"))
    for i in range(len(packed)):
        if packed[i].size:
            packed[i], exchanged, _ = factor(packed[i])
            pivots[i] = exchanged + 1
            for j, other in enumerate(exchanged):
                rows[i, [j, other]] = rows[i, [other, j]]
    device = device_of(a)
    return (
        to_device(packed.reshape(host.shape), device),
        to_device(pivots.reshape(*lead, k), device),
        to_device(rows.reshape(*lead, m), device),
    )


def _parts(packed: TensorBase) -> tuple[TensorBase, TensorBase]:
    """Return the unit lower triangle (m, k) and the upper triangle (k, n)."""
    m, n = packed.array.shape[-2:]
    k = min(m, n)
    ones = wrap(namespace(packed.array).eye(m, k, dtype=packed.array.dtype))
    return tril(packed[..., :k], -1) + ones, triu(packed[..., :k, :])


def _permuted(x: TensorBase, rows: TensorBase) -> TensorBase:
    """Return the rows of matrices in another order."""
    at = unsqueeze(rows, -1)
    return take_along_dim(x, expand(at, x.array.shape), -2)


def _lu_vjp(
    g: list[TensorBase | None],
    out: tuple[TensorBase, ...],
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    if g[0] is None:
        return (None,)
    packed, _, rows = out
    m, n = packed.array.shape[-2:]
    k = min(m, n)
    low, up = _parts(packed)
    gl, gu = tril(g[0][..., :k], -1), triu(g[0][..., :k, :])
    l1, u1 = low[..., :k, :], up[..., :k]
    lower = matmul(mt(l1), gl[..., :k, :])
    upper = matmul(gu[..., :k], mt(u1))
    if n > m:
        lower = lower - matmul(gu[..., k:], mt(up[..., k:]))
    if m > n:
        upper = upper - matmul(mt(low[..., k:, :]), gl[..., k:, :])
    inner = tril(lower, -1) + triu(upper)
    right = mt(solve_triangular(u1, mt(inner), upper=True))  # inner @ u1^-T, u1 being upper
    if m > n:
        top = solve_triangular(mt(l1), inner, upper=True, unitriangular=True)
        both = cat([top, gl[..., k:, :]], -2)
        whole = mt(solve_triangular(up, mt(both), upper=True))
    else:
        both = right if n == m else cat([right, gu[..., k:]], -1)
        whole = solve_triangular(mt(low), both, upper=True, unitriangular=True)
    return (_permuted(whole, argsort(rows, -1)),)


def _lu_jvp(
    tangents: list[TensorBase],
    out: tuple[TensorBase, ...],
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> tuple[TensorBase, ...]:
    packed, _, rows = out
    m, n = packed.array.shape[-2:]
    k = min(m, n)
    low, up = _parts(packed)
    l1, u1 = low[..., :k, :], up[..., :k]
    moved = _permuted(tangents[0], rows)
    left = solve_triangular(l1, moved[..., :k, :], upper=False, unitriangular=True)
    f = mt(solve_triangular(mt(u1), mt(left[..., :k]), upper=False))
    strict, rest = tril(f, -1), triu(f)
    dl, du = matmul(l1, strict), matmul(rest, u1)
    if n > m:
        du = cat([du, left[..., k:] - matmul(strict, up[..., k:])], -1)
    if m > n:
        below = mt(solve_triangular(mt(u1), mt(moved[..., k:, :]), upper=False))
        dl = cat([dl, below - matmul(low[..., k:, :], rest)], -2)
    if n > m:
        zeros = dl[..., :1] * 0.0
        dl = cat([dl, expand(zeros, (*dl.array.shape[:-1], n - k))], -1)
    if m > n:
        zeros = du[..., :1, :] * 0.0
        du = cat([du, expand(zeros, (*du.array.shape[:-2], m - k, n))], -2)
    moves = tril(dl, -1) + triu(du)
    return moves, None, None  # type: ignore[return-value]  # integers do not move


def _doolittle(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """LU by rows, one after the other, the largest of each column first."""
    whole = np.array(a, np.result_type(a, np.float64))
    m, n = whole.shape[-2:]
    lead, k = whole.shape[:-2], min(m, n)
    pivots = np.zeros((*lead, k), np.int32)
    rows = np.zeros((*lead, m), np.int64)
    for at in np.ndindex(lead):
        x, order = whole[at], list(range(m))
        for j in range(k):
            best = j + int(np.argmax(abs(x[j:, j])))
            pivots[(*at, j)] = best + 1
            x[[j, best]] = x[[best, j]]
            order[j], order[best] = order[best], order[j]
            x[j + 1 :, j] /= x[j, j]
            x[j + 1 :, j + 1 :] -= np.outer(x[j + 1 :, j], x[j, j + 1 :])
        rows[at] = order
    return whole, pivots, rows


_LU = structured(
    "lu",
    "linalg",
    run=_run_lu,
    vjp=_lu_vjp,
    jvp=_lu_jvp,
    num_outputs=3,
    complex=True,
    saves="out",
    core="(m,n)->(m,n),(k),(m)",
    native=Routine(
        "lu_{letter}",
        "a pivots rows m n count exchanges",
        outputs="a pivots rows",
        columns="a",
        space=lambda dtype, m, n, **_: {"exchanges": exchanges(dtype, max(m, n))["pivots"]},
    ),
    samples=lambda rng: [
        ((rng.standard_normal((3, 3)),), {}),
        ((general_samples(rng, 2, 4, 2),), {}),
        ((rng.standard_normal((2, 3)),), {}),
    ],
    reference=_doolittle,
    doc="Both LU factors in one matrix, row exchanges counted from 1, and the order of the rows.",
)


def _pivoted(op: str, pivot: bool) -> None:
    if not pivot:
        raise ArgumentError(
            op,
            expected="pivot=True",
            got="False",
            fix="rows are exchanged: without that most factors are inaccurate",
        )


def _first_zero(packed: TensorBase) -> TensorBase:
    """Return which pivot is the first that is 0, counted from 1; 0 if none is."""
    zero = eq(diagonal(packed, 0, -2, -1), 0.0)
    if not zero.array.shape[-1]:
        return wrap(namespace(packed.array).zeros(zero.array.shape[:-1], np.int32))
    first = cast(argmax(cast(zero, int64), -1), int32) + 1
    return cast(where(any_of(zero, -1), first, 0), int32)


@takes_out
def lu_factor_ex(
    A: TensorLike,
    *,
    pivot: bool = True,
    check_errors: bool = False,
    out: tuple[TensorBase, ...] | None = None,
) -> LUFactorEx:
    """Return `lu_factor` of matrices, and which pivot of each is 0; see there.

    With `check_errors` a pivot that is 0 is an error.
    """
    _pivoted("lu_factor_ex", pivot)
    packed, pivots, _ = apply(_LU, (as_matrix("lu_factor", A, square=False),))
    info = _first_zero(packed)
    _checked("lu_factor", info, check_errors)
    return LUFactorEx(packed, pivots, info)


def _checked(op: str, info: TensorBase, wanted: bool) -> None:
    """Raise if a matrix is singular, where that is wanted."""
    if not wanted:
        return
    read(op, info)
    if to_host(info.array).any():
        worst = int(to_host(info.array).max())
        raise LinAlgError(
            op,
            expected="matrices that are not singular",
            got=f"pivot {worst} is 0",
            fix="look at the matrix for columns that depend on each other, or use pinv or lstsq",
        )


@takes_out
def lu_factor(
    A: TensorLike, *, pivot: bool = True, out: tuple[TensorBase, ...] | None = None
) -> LUFactor:
    """Return the LU factors of matrices in a compact form, for `lu_solve` and `lu_unpack`.

    Parameters
    ----------
    A : Tensor, shape (..., m, n)
    pivot : bool
        Rows are exchanged; False is refused, as on PyTorch's CPU.

    Returns
    -------
    LU : Tensor, shape (..., m, n)
        L below the diagonal, whose own is 1, and U.
    pivots : Tensor of int32, shape (..., min(m, n))
        With which row each was exchanged, counted from 1.
    """
    _pivoted("lu_factor", pivot)
    packed, pivots, _ = apply(_LU, (as_matrix("lu_factor", A, square=False),))
    return LUFactor(packed, pivots)


@takes_out
def lu(A: TensorLike, *, pivot: bool = True, out: tuple[TensorBase, ...] | None = None) -> LU:
    """Return ``(P, L, U)`` with ``A = P @ L @ U``.

    Parameters
    ----------
    A : Tensor, shape (..., m, n)
    pivot : bool
        As in `lu_factor`.

    Returns
    -------
    P : Tensor, shape (..., m, m)
        A permutation.
    L : Tensor, shape (..., m, min(m, n))
        Unit lower triangle, or trapezium.
    U : Tensor, shape (..., min(m, n), n)
        Upper one.

    Notes
    -----
    Differentiable where the first min(m, n) columns are independent.
    """
    _pivoted("lu", pivot)
    x = as_matrix("lu", A, square=False)
    packed, _, rows = apply(_LU, (x,))
    low, up = _parts(packed)
    return LU(_matrix_of(rows, x.array.dtype), low, up)


def _matrix_of(rows: TensorBase, dtype: np.dtype) -> TensorBase:
    """Return the matrix P with ``a = P @ a[rows]``."""
    places = wrap(np.arange(rows.array.shape[-1])[:, None])
    return cast(eq(unsqueeze(rows, -2), places), dtype)


def lu_pair(
    a: TensorLike, *, pivot: bool = True, get_infos: bool = False
) -> tuple[TensorBase, ...]:
    """Return `lu_factor` in PyTorch's older form: ``(LU, pivots)``, and `info` if asked for."""
    found = lu_factor_ex(a, pivot=pivot, check_errors=not get_infos)
    return tuple(found) if get_infos else tuple(found[:2])


def _order(pivots: TensorBase, m: int) -> TensorBase:
    """Return the order of the rows that exchanges leave."""
    read("lu_unpack", pivots)
    given = to_host(pivots.array)
    if given.size and not ((given >= 1) & (given <= m)).all():
        raise ArgumentError(
            "lu_unpack",
            expected=f"pivots from 1 to {m}",
            got=f"{given.min()} to {given.max()}",
            fix="pass the pivots of lu_factor: rows are counted from 1",
        )
    flat = given.reshape(math.prod(given.shape[:-1]), given.shape[-1])
    rows = np.broadcast_to(np.arange(m), (len(flat), m)).copy()
    for row, exchanged in zip(rows, flat, strict=True):
        for j, other in enumerate(exchanged):
            row[[j, other - 1]] = row[[other - 1, j]]
    shaped = rows.reshape(*given.shape[:-1], m)
    return wrap(to_device(shaped, device_of(pivots.array)))


@takes_out
def lu_unpack(
    LU_data: TensorLike,
    LU_pivots: TensorLike,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
    *,
    out: tuple[TensorBase, ...] | None = None,
) -> LU:
    """Return ``(P, L, U)`` of what `lu_factor` returned; what is not unpacked is empty."""
    packed = as_matrix("lu_unpack", LU_data, square=False)
    pivots = as_tensor(LU_pivots, "lu_unpack")
    _whole("lu_unpack", pivots)
    empty = wrap(namespace(packed.array).empty(0, packed.array.dtype))
    p = empty
    if unpack_pivots:
        p = _matrix_of(_order(pivots, packed.array.shape[-2]), packed.array.dtype)
    return LU(p, *(_parts(packed) if unpack_data else (empty, empty)))


def _whole(op: str, pivots: TensorBase) -> None:
    if pivots.array.dtype.kind not in "iu" or not pivots.array.ndim:
        raise ArgumentError(
            op,
            expected="pivots: integers, one row for each matrix",
            got=f"{pivots.array.dtype} of shape {pivots.array.shape}",
            fix="pass the pivots of lu_factor",
        )


@takes_out
def lu_solve(
    LU: TensorLike,
    pivots: TensorLike,
    B: TensorLike,
    *,
    left: bool = True,
    adjoint: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Solve ``A @ X = B`` by the factors that `lu_factor` returned for A.

    Parameters
    ----------
    LU : Tensor, shape (..., n, n)
    pivots : Tensor of int32, shape (..., n)
    B : Tensor, shape (..., n, k), or (..., k, n) where ``left=False``
    left : bool
        False solves ``X @ A = B``.
    adjoint : bool
        Solve with the transpose of A.

    Returns
    -------
    Tensor, of the shape of B
    """
    packed, b = as_matrix("lu_solve", LU), as_matrix("lu_solve", B, square=False)
    exchanged = as_tensor(pivots, "lu_solve")
    _whole("lu_solve", exchanged)
    if exchanged.array.shape != packed.array.shape[:-1]:
        raise ShapeError(
            "lu_solve",
            expected=f"pivots of shape {packed.array.shape[:-1]}",
            got=str(exchanged.array.shape),
            fix="pass both results of lu_factor",
        )
    rows = _order(exchanged, packed.array.shape[-1])
    if adjoint:
        # A^H x = b says A^T conj(x) = conj(b), and likewise where x is on the left.
        return conj(_sided(packed, rows, conj(b), left, True))
    return _sided(packed, rows, b, left, False)


def _sided(
    packed: TensorBase, rows: TensorBase, b: TensorBase, left: bool, turned: bool
) -> TensorBase:
    if not left:
        return mt(_solved(packed, rows, mt(b), not turned))
    return _solved(packed, rows, b, turned)


@takes_out
def lu_solve_old(
    b: TensorLike, LU_data: TensorLike, LU_pivots: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Solve ``A @ x = b`` by the factors of A; `linalg.lu_solve` in PyTorch's older form."""
    return lu_solve(LU_data, LU_pivots, b)


def _solved(packed: TensorBase, rows: TensorBase, b: TensorBase, turned: bool) -> TensorBase:
    low, up = _parts(packed)
    if turned:
        inner = solve_triangular(mt(up), b, upper=False)
        inner = solve_triangular(mt(low), inner, upper=True, unitriangular=True)
        return _rows_of(inner, argsort(rows, -1))
    inner = _rows_of(b, rows)
    inner = solve_triangular(low, inner, upper=False, unitriangular=True)
    return solve_triangular(up, inner, upper=True)


def _rows_of(x: TensorBase, rows: TensorBase) -> TensorBase:
    """Return the rows of matrices in another order, their batches broadcast."""
    lead = np.broadcast_shapes(x.array.shape[:-2], rows.array.shape[:-1])
    x = expand(x, (*lead, *x.array.shape[-2:]))
    return _permuted(x, expand(rows, (*lead, rows.array.shape[-1])))


@takes_out
def solve_ex(
    A: TensorLike,
    B: TensorLike,
    *,
    left: bool = True,
    check_errors: bool = False,
    out: tuple[TensorBase, ...] | None = None,
) -> SolveEx:
    """Return ``(solution, info)`` of ``A @ x = B``: nan where a matrix is singular, not an error.

    Parameters
    ----------
    A : Tensor, shape (..., n, n)
    B : Tensor, shape (..., n, k), or (..., n) as in `solve`
    left : bool
        False solves ``x @ A = B``.
    check_errors : bool
        Raise all the same.

    Returns
    -------
    result : Tensor, of the shape of b
    info : Tensor of int32, shape (...)
        Which pivot is 0, counted from 1, and 0 where none is.
    """
    A, B = as_matrix("solve_ex", A), as_tensor(B, "solve_ex")
    # As in `solve`: a vector, or one for each matrix of the batch.
    vector = B.array.ndim == 1 or (
        B.array.ndim == A.array.ndim - 1 and B.array.shape == A.array.shape[:-1]
    )
    columns = as_matrix("solve_ex", unsqueeze(B, -1) if vector else B, square=False)
    n = A.array.shape[-1]
    if columns.array.shape[-2 if left or vector else -1] != n:
        raise ShapeError(
            "solve_ex",
            expected=f"a right-hand side of {n} rows",
            got=str(B.array.shape),
            fix="transpose it, or pass left=False for x @ a = b",
        )
    packed, _, rows = apply(_LU, (A,))
    info = _first_zero(packed)
    _checked("solve_ex", info, check_errors)
    packed = packed + diag_embed(_gaps(packed))
    if left or vector:
        x = _solved(packed, rows, columns, False)
    else:
        x = mt(_solved(packed, rows, mt(columns), True))
    return SolveEx(reshape(x, x.array.shape[:-1]) if vector else x, info)


def _gaps(packed: TensorBase) -> TensorBase:
    """Return nan for each pivot of a matrix that has one which is 0, and 0 elsewhere."""
    d = diagonal(packed, 0, -2, -1)
    bad = any_of(eq(d, 0.0), -1, True)
    return where(expand(bad, d.array.shape), float("nan"), d * 0.0)


@takes_out
def inv_ex(
    A: TensorLike, *, check_errors: bool = False, out: tuple[TensorBase, ...] | None = None
) -> InvEx:
    """Return ``(inverse, info)``: nan where a matrix is singular, not an error; see `solve_ex`."""
    A = as_matrix("inv_ex", A)
    eye = expand(identity(A.array.shape[-1], A), A.array.shape)
    return InvEx(*solve_ex(A, eye, check_errors=check_errors))
