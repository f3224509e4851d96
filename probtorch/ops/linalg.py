"""Linear algebra on matrices in the last two dims: Cholesky factors, solves and inverses.

All is batched over the leading dims. Each op states its derivative rules in matrix products and
triangular solves, so that gradients of gradients work. What cannot be factorised raises
`LinAlgError`, which names the matrix of the batch and the step that failed.

Names and arguments are those of torch.linalg; `solve_vector` and `solve_triangular_vector` take one
right-hand side per matrix, without the ambiguity of guessing that from shapes. Determinants,
eigenvalues and singular values are in spectral.py, and what is made of them in files of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.casting import cast, to_inexact
from probtorch.core.dispatch import apply, unseen, wrap
from probtorch.core.dtype import promote_types
from probtorch.core.making import as_tensor
from probtorch.core.native import Routine
from probtorch.core.outputs import takes_out
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import DomainError, DTypeError, ShapeError
from probtorch.ops import lapack
from probtorch.ops.comparisons import isnan
from probtorch.ops.complex_numbers import conj, real
from probtorch.ops.contraction import matmul
from probtorch.ops.families import structured, unbroadcast
from probtorch.ops.movement import (
    cat,
    diag_embed,
    diagonal,
    expand,
    reshape,
    transpose,
    tril,
    triu,
    unsqueeze,
)
from probtorch.ops.reduction import any as any_of
from probtorch.ops.reduction import sum
from probtorch.ops.workspace import pivots

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = [
    "LinAlgError",
    "cholesky",
    "cholesky_ex",
    "cholesky_inverse",
    "cholesky_solve",
    "inv",
    "matrix_power",
    "solve",
    "solve_triangular",
    "solve_triangular_vector",
    "solve_vector",
    "trace",
]


class LinAlgError(DomainError, np.linalg.LinAlgError):
    """A matrix that cannot be factorised or solved with; also a numpy.linalg.LinAlgError."""


# ------------------------------------------------------------------------------- arguments, helpers


def as_matrix(name: str, x: TensorLike, square: bool = True, floats: bool = True) -> TensorBase:
    """Return `x` as a tensor of matrices (of floats), checked to be square if need be."""
    x = as_tensor(x, name)
    x = to_inexact(x) if floats else x
    shape = x.array.shape
    if len(shape) < 2 or (square and shape[-1] != shape[-2]):
        raise ShapeError(
            name,
            expected="square matrices in the last two dims"
            if square
            else "matrices in the last two dims",
            got=f"shape {shape}",
            fix="reshape, or unsqueeze a vector into a matrix of one column",
        )
    if floats and x.array.dtype.itemsize < 4:
        raise DTypeError(
            name, expected="float32 or float64", got=str(x.array.dtype), fix="call .float() first"
        )
    return x


def mt(x: TensorLike) -> TensorBase:
    return transpose(x, -2, -1)


def mh(x: TensorLike) -> TensorBase:
    """Transposed and conjugated.

    Rules of what is holomorphic (solve, inv, det) have `mt`; those of Hermitian matrices and of
    unitary factors have `mh`, and are written for gradients, which are conjugates of what the
    sweep carries (autograd/tape.py). Of real numbers nothing of this is seen.
    """
    return transpose(conj(x), -2, -1)


def _common(x: TensorBase, y: TensorBase) -> tuple[TensorBase, TensorBase]:
    dtype = promote_types(x.array.dtype, y.array.dtype)
    return cast(x, dtype), cast(y, dtype)


def identity(n: int, like: TensorBase) -> TensorBase:
    return wrap(namespace(like.array).eye(n, dtype=like.array.dtype))


def symmetric_part(x: TensorBase) -> TensorBase:
    """Half of the sum with the transpose: of complex numbers with the conjugate one."""
    return (x + mh(x)) * 0.5


def _half_lower(x: TensorBase) -> TensorBase:
    """Lower triangle with its diagonal halved: the adjoint of symmetrising a lower triangle."""
    n = x.array.shape[-1]
    weights = np.tril(np.ones((n, n)), -1) + 0.5 * np.eye(n)
    return x * wrap(namespace(x.array).asarray(weights, dtype=x.array.dtype))


def _place(at: tuple[int, ...]) -> str:
    """Say in a message which matrix of the batch is meant; `at` is its index, a tuple."""
    return f" at batch index {at[0] if len(at) == 1 else at}" if at else ""


def _first(bad: np.ndarray) -> tuple[int, ...]:
    """Return the first index at which a boolean array is True."""
    return tuple(int(i[0]) for i in bad.nonzero()) if bad.ndim else ()


def positive_definite_samples(rng: np.random.Generator, *shape: int) -> np.ndarray:
    x = rng.standard_normal((*shape, shape[-1] + 2))
    return x @ np.swapaxes(x, -1, -2)


def general_samples(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return 0.5 * rng.standard_normal(shape) + 2.0 * np.eye(shape[-2], shape[-1])


# ----------------------------------------------------------------------------------------- cholesky


def _run_cholesky(a, check):
    xp = namespace(a)
    if xp is np:
        if a.ndim == 2 and a.size:
            factor, info = lapack.cholesky_factor(a)
            if info > 0 and check:
                raise _not_positive_definite(_place(()), info)
            return factor if info == 0 else np.full_like(a, np.nan)
        try:
            return np.linalg.cholesky(a)
        except np.linalg.LinAlgError:
            return _cholesky_one_by_one(a, check)
    out = xp.linalg.cholesky(a)
    failed = xp.isnan(out).any(axis=(-2, -1))
    if check and bool(failed.any()):
        raise _not_positive_definite(_place(_first(failed)), None)
    return out


def _cholesky_one_by_one(a: np.ndarray, check: bool) -> np.ndarray:
    out = np.empty_like(a)
    for at in np.ndindex(a.shape[:-2]):
        factor, info = lapack.cholesky_factor(a[at])
        if info > 0 and check:
            raise _not_positive_definite(_place(at), info)
        out[at] = factor if info == 0 else np.nan
    return out


def _not_positive_definite(place, minor):
    which = "" if minor is None else f": its leading minor of order {minor} is not positive"
    return LinAlgError(
        "cholesky",
        expected="positive definite matrices",
        got=f"a matrix{place} that is not{which}",
        fix="add a small multiple of the identity, or check that the matrix is a covariance",
    )


def lower_part(x: TensorBase) -> TensorBase:
    """Gradient in the lower triangle alone of a function of the symmetric matrix it stands for."""
    return tril(x) + tril(mh(x), -1)


def from_lower(x: TensorBase) -> TensorBase:
    """Symmetric (of complex numbers Hermitian) matrix with the lower triangle of `x`."""
    if x.array.dtype.kind != "c":
        return tril(x) + mt(tril(x, -1))
    below = tril(x, -1)
    return below + mh(below) + real_diagonal(x)


def real_diagonal(x: TensorBase) -> TensorBase:
    """Diagonal matrix of the real parts of the diagonal."""
    return diag_embed(cast(real(diagonal(x, 0, -2, -1)), x.array.dtype))


def _cholesky_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    if unseen(g, out) and g.array.ndim == 2 and g.array.size and g.array.dtype.kind == "f":
        return (wrap(lapack.cholesky_slope(out.array, g.array)),)
    return (conj(lower_part(_symmetric_slope(out, tril(conj(g))))),)


# Sizes from which a factor's derivative is taken by halves.
_HALVED_FROM = 96


def _symmetric_slope(factor: TensorBase, g: TensorBase) -> TensorBase:
    """Symmetric gradient of a matrix, for the gradient of its lower factor, itself lower."""
    n = factor.array.shape[-1]
    if n < _HALVED_FROM:
        # L^-T Phi(L^T G) L^-1 (Murray 2016, eq. 10).
        inner = _half_lower(matmul(mh(factor), g))
        left = solve_triangular(mh(factor), inner, upper=True)
        return symmetric_part(mh(solve_triangular(mh(factor), mh(left), upper=True)))
    # By blocks: A11 = L11 L11^T, L21 = A21 L11^-T, and L22 is the factor of A22 - L21 L21^T. Half
    # of the work is products then, and what is 0 or known by symmetry is not computed.
    k = n // 2
    first, below, last = factor[..., :k, :k], factor[..., k:, :k], factor[..., k:, k:]
    of_last = _symmetric_slope(last, g[..., k:, k:])
    of_below = g[..., k:, :k] - 2.0 * matmul(of_last, below)
    of_below = mh(solve_triangular(mh(first), mh(of_below), upper=True))
    of_first = _symmetric_slope(first, g[..., :k, :k] - tril(matmul(mh(of_below), below)))
    half = 0.5 * of_below
    return cat([cat([of_first, mh(half)], -1), cat([half, of_last], -1)], -2)


def _cholesky_jvp(tangents, out, inputs, attrs: Attrs):
    inner = solve_triangular(out, from_lower(tangents[0]), upper=False)
    inner = mh(solve_triangular(out, mh(inner), upper=False))
    return matmul(out, _half_lower(inner))


def _cholesky_reference(a, check):
    """Cholesky factor, one entry after the other."""
    out = np.zeros_like(a)
    for i in range(a.shape[-1]):
        for j in range(i + 1):
            rest = a[..., i, j] - (out[..., i, :j] * out[..., j, :j]).sum(-1)
            out[..., i, j] = np.sqrt(rest) if i == j else rest / out[..., j, j]
    return out


_CHOLESKY = structured(
    "cholesky",
    "linalg",
    run=_run_cholesky,
    vjp=_cholesky_vjp,
    jvp=_cholesky_jvp,
    saves="out",
    core="(n,n)->(n,n)",
    native=Routine(
        "cholesky_{letter}", "a n count", outputs="a", fails="check", small="small_cholesky"
    ),
    samples=lambda rng: [
        ((positive_definite_samples(rng, 3),), {"check": True}),
        ((positive_definite_samples(rng, 2, 4),), {"check": True}),
    ],
    reference=_cholesky_reference,
    complex=True,
    doc="Lower factor L of the positive definite matrix L @ L.T whose lower triangle is given.",
)


@takes_out
def cholesky(A: TensorLike, *, upper: bool = False, out: TensorBase | None = None) -> TensorBase:
    """Return the lower (or upper) triangular factor L of ``A = L @ L.mH`` (or ``U.mH @ U``).

    Parameters
    ----------
    A : Tensor, shape (..., n, n)
        Symmetric positive definite, else its symmetric part counts; the gradient is symmetric. Of
        complex numbers Hermitian takes the place of symmetric.
    upper : bool

    Returns
    -------
    Tensor, shape (..., n, n)
        nan where the matrix has nan.

    Raises
    ------
    LinAlgError
        If a matrix is not positive definite: with the first leading minor that fails, and the batch
        index.
    """
    A = symmetric_part(as_matrix("cholesky", A))
    factor = apply(_CHOLESKY, (A,), {"check": True})
    return mh(factor) if upper else factor


@takes_out
def cholesky_ex(
    A: TensorLike,
    *,
    upper: bool = False,
    check_errors: bool = False,
    out: tuple[TensorBase, ...] | None = None,
) -> tuple[TensorBase, TensorBase]:
    """Return ``(factor, failed)``: `cholesky` that fills factors with nan instead of raising.

    `failed` is a boolean tensor of the batch shape. With `check_errors` it raises all the same.
    """
    if check_errors:
        factor = cholesky(A, upper=upper)
        return factor, any_of(isnan(factor), (-2, -1))
    A = symmetric_part(as_matrix("cholesky_ex", A))
    factor = apply(_CHOLESKY, (A,), {"check": False})
    failed = any_of(isnan(factor), (-2, -1))
    return (mh(factor) if upper else factor), failed


@takes_out
def cholesky_solve(
    B: TensorLike, L: TensorLike, upper: bool = False, *, out: TensorBase | None = None
) -> TensorBase:
    """Return x with ``a @ x = B``, given the Cholesky factor of `a` (PyTorch's order of arguments).

    Parameters
    ----------
    B : Tensor, shape (..., n, k)
    L : Tensor, shape (..., n, n)
    upper : bool
        Whether the factor is the upper one.
    """
    L = as_matrix("cholesky_solve", L)
    lower = mh(L) if upper else L
    return solve_triangular(mh(lower), solve_triangular(lower, B, upper=False), upper=True)


@takes_out
def cholesky_inverse(
    L: TensorLike, upper: bool = False, *, out: TensorBase | None = None
) -> TensorBase:
    """Return the inverse of the matrix with this Cholesky factor."""
    L = as_matrix("cholesky_inverse", L)
    eye = expand(identity(L.array.shape[-1], L), L.array.shape)
    return cholesky_solve(eye, L, upper)


# --------------------------------------------------------------------------------- triangular solve


def _substitute(a: np.ndarray, b: np.ndarray, upper: bool, unitriangular: bool) -> np.ndarray:
    """Solve by substitution, one row at a time for the whole batch."""
    xp = namespace(a)
    n = a.shape[-1]
    shape = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = xp.empty((*shape, *b.shape[-2:]), b.dtype)
    for i in reversed(range(n)) if upper else range(n):
        known = slice(i + 1, n) if upper else slice(0, i)
        row = b[..., i, :] - (a[..., i : i + 1, known] @ x[..., known, :])[..., 0, :]
        with np.errstate(all="ignore"):
            x[..., i, :] = row if unitriangular else row / a[..., i, i, None]
    return x


def _run_solve_triangular(
    a: np.ndarray, b: np.ndarray, upper: bool, unitriangular: bool
) -> np.ndarray:
    shape = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    n = a.shape[-1]
    if namespace(a) is not np or n == 0 or b.shape[-1] == 0 or math.prod(shape) > n:
        return _substitute(a, b, upper, unitriangular)
    full_a, full_b = (
        np.broadcast_to(a, shape + a.shape[-2:]),
        np.broadcast_to(b, shape + b.shape[-2:]),
    )
    out = np.empty(full_b.shape, b.dtype)
    for at in np.ndindex(shape):
        singular = not (unitriangular or full_a[at].diagonal().all())
        solve = _substitute if singular else lapack.solve_triangle
        out[at] = solve(full_a[at], full_b[at], upper, unitriangular)
    return out


def _keep_triangle(x: TensorBase, upper: bool, unitriangular: bool) -> TensorBase:
    return triu(x, int(unitriangular)) if upper else tril(x, -int(unitriangular))


def _transposed_solve(a: TensorBase, b: TensorBase, attrs: Attrs) -> TensorBase:
    return apply(
        _SOLVE_TRIANGULAR,
        (mt(a), b),
        {"upper": not attrs["upper"], "unitriangular": attrs["unitriangular"]},
    )


def _solve_triangular_vjp(g, out, inputs, attrs, needs):
    a, b = inputs
    gb = _transposed_solve(a, g, attrs)
    ga = None
    if needs[0]:
        ga = unbroadcast(_keep_triangle(-matmul(gb, mt(out)), **attrs), a.array.shape)
    return ga, unbroadcast(gb, b.array.shape) if needs[1] else None


def _solve_triangular_jvp(tangents, out, inputs, attrs):
    ta, tb = tangents
    right: Any = None if ta is None else -matmul(_keep_triangle(ta, **attrs), out)
    if tb is not None:
        right = tb if right is None else right + tb
    right = expand(right, out.array.shape)
    return apply(_SOLVE_TRIANGULAR, (inputs[0], right), attrs)


def _solve_triangular_reference(a, b, upper, unitriangular):
    keep = np.triu if upper else np.tril
    a = keep(a, int(unitriangular) * (1 if upper else -1)) + (
        np.eye(a.shape[-1]) if unitriangular else 0.0
    )
    return np.linalg.inv(a) @ b


def _triangular_samples(
    rng: np.random.Generator,
) -> list[tuple[tuple[np.ndarray, np.ndarray], dict[str, bool]]]:
    return [
        (
            (general_samples(rng, 3, 3), rng.standard_normal((3, 2))),
            {"upper": False, "unitriangular": False},
        ),
        (
            (general_samples(rng, 2, 3, 3), rng.standard_normal((3, 1))),
            {"upper": True, "unitriangular": False},
        ),
        (
            (general_samples(rng, 3, 3), rng.standard_normal((5, 3, 2))),
            {"upper": False, "unitriangular": True},
        ),
    ]


_SOLVE_TRIANGULAR = structured(
    "solve_triangular",
    "linalg",
    run=_run_solve_triangular,
    vjp=_solve_triangular_vjp,
    jvp=_solve_triangular_jvp,
    saves="a out",
    core="(n,n),(n,m)->(n,m)",
    native=Routine(
        "trsm_{letter}",
        "a b n m upper unitriangular count step(a)",
        outputs="b",
        keeps="a",
        small="small_solve",
    ),
    samples=_triangular_samples,
    reference=_solve_triangular_reference,
    complex=True,
    doc="x with a @ x = b for triangular a; the other triangle is not read.",
)


def _check_sides(name: str, a: TensorBase, b: TensorBase, left: bool = True) -> None:
    rows = b.array.shape[-2 if left else -1]
    if a.array.shape[-1] != rows:
        raise ShapeError(
            name,
            expected=f"b with {a.array.shape[-1]} {'rows' if left else 'columns'}, the size of a",
            got=f"a of shape {a.array.shape} and b of shape {b.array.shape}",
            fix="for one vector per matrix use the function whose name ends in _vector",
        )
    broadcast_shapes(a.array.shape[:-2], b.array.shape[:-2], op=f"{name} (batch dims)")


@takes_out
def solve_triangular(
    A: TensorLike,
    B: TensorLike,
    *,
    upper: bool = False,
    left: bool = True,
    unitriangular: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return x with ``A @ x = B`` (or ``x @ A = B``) for triangular matrices.

    Parameters
    ----------
    A : Tensor, shape (..., n, n)
        Only the triangle in question is read; the rest may hold anything and has gradient 0.
    B : Tensor, shape (..., n, k), or (..., k, n) unless `left`
        Batch dims broadcast.
    upper : bool
        Which triangle.
    left : bool
        Whether `A` stands on the left.
    unitriangular : bool
        Take the diagonal as ones without reading it.

    Returns
    -------
    Tensor of the shape of `B` with the broadcast batch dims
        Infinite or nan where the diagonal has zeros, as in PyTorch.
    """
    A = as_matrix("solve_triangular", A)
    B = as_matrix("solve_triangular", B, square=False)
    A, B = _common(A, B)
    _check_sides("solve_triangular", A, B, left)
    if left:
        return apply(
            _SOLVE_TRIANGULAR, (A, B), {"upper": bool(upper), "unitriangular": bool(unitriangular)}
        )
    attrs = {"upper": not upper, "unitriangular": bool(unitriangular)}
    return mt(apply(_SOLVE_TRIANGULAR, (mt(A), mt(B)), attrs))


def _on_vectors(name, fn, a, b, **options):
    b = to_inexact(as_tensor(b, name))
    if b.array.ndim == 0:
        raise ShapeError(
            name,
            expected="vectors in the last dim of b",
            got="a 0-d tensor",
            fix="reshape it to (1,)",
        )
    x = fn(a, unsqueeze(b, -1), **options)
    return reshape(x, x.array.shape[:-1])


def solve_triangular_vector(
    a: TensorLike, b: TensorLike, *, upper: bool = False, unitriangular: bool = False
) -> TensorBase:
    """Return x, shape (..., n), with ``a @ x = b`` for triangular `a` and vectors `b`."""
    return _on_vectors(
        "solve_triangular_vector", solve_triangular, a, b, upper=upper, unitriangular=unitriangular
    )


# ----------------------------------------------------------------------------------- solve, inverse


def _singular(name: str, a: np.ndarray) -> LinAlgError:
    """Return the error for a batch in which some matrix is singular."""
    place = _place(_first(np.linalg.slogdet(a)[0] == 0.0))
    return LinAlgError(
        name,
        expected="invertible matrices",
        got=f"a singular matrix{place}",
        fix="use pinv, or add a small multiple of the identity",
    )


def _run_solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    try:
        return namespace(a).linalg.solve(a, b)
    except np.linalg.LinAlgError:
        raise _singular("solve", a) from None


def _solve_vjp(g, out, inputs, attrs, needs):
    a, b = inputs
    gb = apply(_SOLVE, (mt(a), g))
    ga = unbroadcast(-matmul(gb, mt(out)), a.array.shape) if needs[0] else None
    return ga, unbroadcast(gb, b.array.shape) if needs[1] else None


def _solve_jvp(tangents, out, inputs, attrs):
    ta, tb = tangents
    right: Any = None if ta is None else -matmul(ta, out)
    if tb is not None:
        right = tb if right is None else right + tb
    return apply(_SOLVE, (inputs[0], expand(right, out.array.shape)))


_SOLVE = structured(
    "solve",
    "linalg",
    run=_run_solve,
    vjp=_solve_vjp,
    jvp=_solve_jvp,
    saves="a out",
    core="(n,n),(n,m)->(n,m)",
    native=Routine(
        "solve_{letter}",
        "a b n m count pivots",
        outputs="b",
        columns="a b",
        space=pivots,
        fails=True,
    ),
    samples=lambda rng: [
        ((general_samples(rng, 3, 3), rng.standard_normal((3, 2))), {}),
        ((general_samples(rng, 2, 1, 3, 3), rng.standard_normal((4, 3, 1))), {}),
    ],
    reference=lambda a, b: np.linalg.inv(a) @ b,
    complex=True,
    doc="x with a @ x = b.",
)


@takes_out
def solve(
    A: TensorLike, B: TensorLike, *, left: bool = True, out: TensorBase | None = None
) -> TensorBase:
    """Return x with ``A @ x = B`` (or ``x @ A = B``).

    Parameters
    ----------
    A : Tensor, shape (..., n, n)
    B : Tensor, shape (..., n, k), or (..., k, n) unless `left`
        A 1-d `B`, or one of the shape of `A` without its last dim, is taken as vectors, as in
        PyTorch.
    left : bool
        Whether `A` stands on the left.

    Raises
    ------
    LinAlgError
        If a matrix is singular.
    """
    A, B = as_matrix("solve", A), to_inexact(as_tensor(B, "solve"))
    shape = B.array.shape
    if left and (
        len(shape) == 1 or (len(shape) == A.array.ndim - 1 and shape == A.array.shape[:-1])
    ):
        return solve_vector(A, B)
    A, B = _common(A, as_matrix("solve", B, square=False))
    _check_sides("solve", A, B, left)
    if left:
        return apply(_SOLVE, (A, B))
    return mt(apply(_SOLVE, (mt(A), mt(B))))


def _solve_matrix(a: TensorBase, b: TensorBase) -> TensorBase:
    a, b = _common(as_matrix("solve_vector", a), b)
    _check_sides("solve_vector", a, b)
    return apply(_SOLVE, (a, b))


def solve_vector(a: TensorLike, b: TensorLike) -> TensorBase:
    """Return x, shape (..., n), with ``a @ x = b`` for matrices `a` and vectors `b`."""
    return _on_vectors("solve_vector", _solve_matrix, a, b)


def _run_inv(a, check):
    try:
        return namespace(a).linalg.inv(a)
    except np.linalg.LinAlgError:
        if check:
            raise _singular("inv", a) from None
    out = np.full(a.shape, np.nan, a.dtype)
    for at in np.argwhere(np.linalg.slogdet(a)[0] != 0.0):
        out[tuple(at)] = np.linalg.inv(a[tuple(at)])
    return out


INV = structured(
    "inv",
    "linalg",
    run=_run_inv,
    saves="out",
    vjp=lambda g, y, inputs, attrs, needs: (-matmul(matmul(mt(y), g), mt(y)),),
    jvp=lambda tangents, y, inputs, attrs: -matmul(matmul(y, tangents[0]), y),
    core="(n,n)->(n,n)",
    native=Routine(
        "inv_{letter}",
        "a out n count pivots",
        outputs="out",
        columns="a out",
        space=pivots,
        fails="check",
    ),
    samples=lambda rng: [
        ((general_samples(rng, 3, 3),), {"check": True}),
        ((general_samples(rng, 2, 2, 2),), {"check": True}),
    ],
    reference=lambda a, check: np.linalg.solve(a, np.broadcast_to(np.eye(a.shape[-1]), a.shape)),
    complex=True,
    doc="Matrix inverse.",
)


@takes_out
def inv(A: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return the inverse of each matrix.

    Raises
    ------
    LinAlgError
        If a matrix is singular.
    """
    return apply(INV, (as_matrix("inv", A),), {"check": True})


# ------------------------------------------------------------------------------------- compositions


def trace(input: TensorLike) -> TensorBase:
    """Return the sum of the diagonal of each matrix; integers give int64."""
    return sum(diagonal(as_matrix("trace", input, square=False, floats=False), 0, -2, -1), -1)


@takes_out
def matrix_power(A: TensorLike, n: int, *, out: TensorBase | None = None) -> TensorBase:
    """Return the n-th power of each square matrix; negative powers are those of the inverse."""
    A = as_matrix("matrix_power", A, floats=n < 0)
    if n < 0:
        A, n = inv(A), -n
    out = None
    while n:
        if n & 1:
            out = A if out is None else matmul(out, A)
        n >>= 1
        A = matmul(A, A) if n else A
    return expand(identity(A.array.shape[-1], A), A.array.shape) if out is None else out
