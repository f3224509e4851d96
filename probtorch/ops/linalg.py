"""Linear algebra on matrices in the last two dims: solves and inverses.

All is batched over the leading dims. Each op states its derivative rules in matrix products and
triangular solves, so that gradients of gradients work. What cannot be factorised raises
`LinAlgError`, which names the matrix of the batch and the step that failed.

Names and arguments are those of torch.linalg; `solve_vector` and `solve_triangular_vector` take one
right-hand side per matrix, without the ambiguity of guessing that from shapes. Cholesky
factors, determinants, eigenvalues and singular values have files of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.casting import cast, to_inexact
from probtorch.core.dispatch import apply, unwatched, wrap
from probtorch.core.dtype import promote_types
from probtorch.core.making import as_tensor
from probtorch.core.native import Routine
from probtorch.core.outputs import takes_out
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import DomainError, DTypeError, ShapeError
from probtorch.ops import lapack
from probtorch.ops.accumulate import add_up
from probtorch.ops.complex_numbers import conj
from probtorch.ops.contraction import matmul
from probtorch.ops.diagonals import diagonal, tril, triu
from probtorch.ops.families import structured, unbroadcast
from probtorch.ops.movement import expand, reshape, transpose, unsqueeze
from probtorch.ops.reduction import sum
from probtorch.ops.workspace import pivots

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = [
    "LinAlgError",
    "as_matrix",
    "batch_place",
    "first_true",
    "identity",
    "inv",
    "matrix_power",
    "mh",
    "mt",
    "solve",
    "solve_triangular",
    "solve_triangular_vector",
    "solve_vector",
    "symmetric_part",
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
    """Transposed."""
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
    """Return the identity of a size, of the dtype and where `like` is."""
    return wrap(namespace(like.array).eye(n, dtype=like.array.dtype))


def symmetric_part(x: TensorBase) -> TensorBase:
    """Half of the sum with the transpose: of complex numbers with the conjugate one."""
    return (x + mh(x)) * 0.5


def batch_place(at: tuple[int, ...]) -> str:
    """Say in a message which matrix of the batch is meant; `at` is its index, a tuple."""
    return f" at batch index {at[0] if len(at) == 1 else at}" if at else ""


def first_true(bad: np.ndarray) -> tuple[int, ...]:
    """Return the first index at which a boolean array is True."""
    return tuple(int(i[0]) for i in bad.nonzero()) if bad.ndim else ()


def general_samples(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return 0.5 * rng.standard_normal(shape) + 2.0 * np.eye(shape[-2], shape[-1])


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


def _solve_triangular_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    a, b = inputs
    gb = _transposed_solve(a, g, attrs)
    ga = None
    if needs[0]:
        ga = unbroadcast(_keep_triangle(-matmul(gb, mt(out)), **attrs), a.array.shape)
    return ga, unbroadcast(gb, b.array.shape) if needs[1] else None


def _solve_triangular_jvp(
    tangents: tuple[TensorBase | None, ...],
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> TensorBase:
    ta, tb = tangents
    right: Any = None if ta is None else -matmul(_keep_triangle(ta, **attrs), out)
    if tb is not None:
        right = tb if right is None else right + tb
    right = expand(right, out.array.shape)
    return apply(_SOLVE_TRIANGULAR, (inputs[0], right), attrs)


def _solve_triangular_reference(
    a: np.ndarray, b: np.ndarray, upper: bool, unitriangular: bool
) -> np.ndarray:
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


def _on_vectors(
    name: str, fn: Callable[..., TensorBase], a: TensorLike, b: TensorLike, **options: bool
) -> TensorBase:
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
    place = batch_place(first_true(np.linalg.slogdet(a)[0] == 0.0))
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


def _solve_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    a, b = inputs
    gb = apply(_SOLVE, (mt(a), g))
    ga = unbroadcast(-matmul(gb, mt(out)), a.array.shape) if needs[0] else None
    return ga, unbroadcast(gb, b.array.shape) if needs[1] else None


def _solve_jvp(
    tangents: tuple[TensorBase | None, ...],
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> TensorBase:
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


def _run_inv(a: np.ndarray, check: bool) -> np.ndarray:
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
    x = as_matrix("trace", input, square=False, floats=False)
    if x.array.dtype.kind == "f" and unwatched(x):
        return wrap(add_up(x.array.diagonal(0, -2, -1), (x.array.ndim - 2,), False))
    return sum(diagonal(x, 0, -2, -1), -1)


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
