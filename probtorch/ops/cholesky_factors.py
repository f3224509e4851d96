"""Cholesky factors, and what is solved with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, unseen, wrap
from probtorch.core.native import Routine
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.ops import lapack
from probtorch.ops.comparisons import isnan
from probtorch.ops.complex_numbers import conj, real
from probtorch.ops.contraction import matmul
from probtorch.ops.diagonals import diag_embed, diagonal, tril
from probtorch.ops.families import structured
from probtorch.ops.linalg import (
    LinAlgError,
    as_matrix,
    batch_place,
    first_true,
    identity,
    mh,
    mt,
    solve_triangular,
    symmetric_part,
)
from probtorch.ops.movement import expand
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import any as any_of

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = ["cholesky", "cholesky_ex", "cholesky_inverse", "cholesky_solve"]


def _half_lower(x: TensorBase) -> TensorBase:
    """Lower triangle with its diagonal halved: the adjoint of symmetrising a lower triangle."""
    n = x.array.shape[-1]
    weights = np.tril(np.ones((n, n)), -1) + 0.5 * np.eye(n)
    return x * wrap(namespace(x.array).asarray(weights, dtype=x.array.dtype))


def positive_definite_samples(rng: np.random.Generator, *shape: int) -> np.ndarray:
    x = rng.standard_normal((*shape, shape[-1] + 2))
    return x @ np.swapaxes(x, -1, -2)


def _run_cholesky(a: np.ndarray, check: bool) -> np.ndarray:
    xp = namespace(a)
    if xp is np:
        if a.ndim == 2 and a.size:
            factor, info = lapack.cholesky_factor(a)
            if info > 0 and check:
                raise _not_positive_definite(batch_place(()), info)
            return factor if info == 0 else np.full_like(a, np.nan)
        try:
            return np.linalg.cholesky(a)
        except np.linalg.LinAlgError:
            return _cholesky_one_by_one(a, check)
    out = xp.linalg.cholesky(a)
    failed = xp.isnan(out).any(axis=(-2, -1))
    if check and bool(failed.any()):
        raise _not_positive_definite(batch_place(first_true(failed)), None)
    return out


def _cholesky_one_by_one(a: np.ndarray, check: bool) -> np.ndarray:
    out = np.empty_like(a)
    for at in np.ndindex(a.shape[:-2]):
        factor, info = lapack.cholesky_factor(a[at])
        if info > 0 and check:
            raise _not_positive_definite(batch_place(at), info)
        out[at] = factor if info == 0 else np.nan
    return out


def _not_positive_definite(place: str, minor: int | None) -> LinAlgError:
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


def _cholesky_jvp(
    tangents: tuple[TensorBase, ...], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    inner = solve_triangular(out, from_lower(tangents[0]), upper=False)
    inner = mh(solve_triangular(out, mh(inner), upper=False))
    return matmul(out, _half_lower(inner))


def _cholesky_reference(a: np.ndarray, check: bool) -> np.ndarray:
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
