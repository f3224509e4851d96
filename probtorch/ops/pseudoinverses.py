"""Pseudoinverses and ranks of matrices, from their singular values; read spectral.py first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.dispatch import apply
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.ops.arithmetic import clamp, where
from probtorch.ops.comparisons import logical_xor
from probtorch.ops.complex_numbers import conj
from probtorch.ops.contraction import matmul
from probtorch.ops.extremes import amax
from probtorch.ops.families import structured
from probtorch.ops.linalg import as_matrix, general_samples, identity, mh, symmetric_part
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum

if TYPE_CHECKING:
    from probtorch.core.op import Attrs
from probtorch.ops.spectral import SVD, finite, finite_replay, svdvals

__all__ = ["matrix_rank", "pinv"]


def _run_pinv(a: np.ndarray, rtol: float) -> np.ndarray:
    return namespace(a).linalg.pinv(finite("pinv", a), rtol)


def _pinv_vjp(
    g: TensorBase,
    y: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    # Golub and Pereyra (1973), for matrices whose rank does not change nearby.
    (a,) = inputs
    if _drops_much(a, attrs):
        return (conj(_slope_of_part(a, attrs["rtol"], mh(conj(g)))),)
    rows = identity(a.array.shape[-2], a) - matmul(a, y)
    cols = identity(a.array.shape[-1], a) - matmul(y, a)
    g = conj(g)
    gt, yt = mh(g), mh(y)
    inner = matmul(matmul(rows, gt), matmul(y, yt)) + matmul(matmul(yt, y), matmul(gt, cols))
    return (conj(inner - matmul(matmul(yt, g), yt)),)


def _pinv_jvp(
    tangents: tuple[TensorBase, ...],
    y: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> TensorBase:
    (a,), t = inputs, tangents[0]
    if _drops_much(a, attrs):
        return mh(_slope_of_part(a, attrs["rtol"], t))
    rows = identity(a.array.shape[-2], a) - matmul(a, y)
    cols = identity(a.array.shape[-1], a) - matmul(y, a)
    tt, yt = mh(t), mh(y)
    inner = matmul(matmul(matmul(y, yt), tt), rows) + matmul(matmul(cols, tt), matmul(yt, y))
    return inner - matmul(matmul(y, t), y)


def _drops_much(a: TensorBase, attrs: Attrs) -> bool:
    """Whether singular values may be dropped that are more than rounding: the rule for a constant
    rank leaves out how the kept vectors turn towards the dropped ones, as much as these weigh.
    """
    return bool(a.array.size) and attrs["rtol"] > math.sqrt(np.finfo(a.array.dtype).eps)


def _slope_of_part(a: TensorBase, rtol: float, x: TensorBase) -> TensorBase:
    """The adjoint of the derivative at `a` in the direction `x`, which is its own transpose.

    By Daleckii and Krein (1965): divided differences of 1 / s for kept singular values and of 0 for
    the others.
    """
    u, s, vh = apply(SVD, (a,))
    kept = s > amax(s, -1, True) * rtol
    inverse = where(kept, 1.0 / where(kept, s, 1.0), 0.0)
    mine, other = unsqueeze(kept, -1), unsqueeze(kept, -2)
    one = logical_xor(mine, other)
    row, column = unsqueeze(s, -1), unsqueeze(s, -2)
    large, small = where(mine, row, column), where(mine, column, row)
    gap = where(one, large * large - small * small, 1.0)
    straight = where(one, 1.0 / gap, 0.0)
    across = where(one, small / where(one, large, 1.0), 0.0) / gap
    across = across - unsqueeze(inverse, -1) * unsqueeze(inverse, -2)
    squares = unsqueeze(inverse * inverse, -1)
    right = matmul(x, mh(vh))
    left = matmul(mh(u), x)
    inner = matmul(mh(u), right)
    outside_rows = matmul(right - matmul(u, inner), squares * vh)
    outside_columns = matmul(u, squares * (left - matmul(inner, vh)))
    inside = matmul(u, matmul(straight * inner + across * mh(inner), vh))
    return inside + outside_rows + outside_columns


def _pinv_parts(a: TensorBase, rtol: float) -> TensorBase:
    """The inverse as NumPy makes it, from ops that are compiled."""
    u, s, vh = apply(SVD, (a,))
    if s.array.size == 0:
        return matmul(mh(vh), mh(u))
    kept = s > amax(s, -1, True) * rtol
    inverse = where(kept, 1.0 / where(kept, s, 1.0), 0.0)
    return matmul(mh(vh), unsqueeze(inverse, -1) * mh(u))


_PINV = structured(
    "pinv",
    "linalg",
    run=_run_pinv,
    vjp=_pinv_vjp,
    jvp=_pinv_jvp,
    saves="a out",
    core="(m,n)->(n,m)",
    samples=lambda rng: [
        ((general_samples(rng, 4, 2),), {"rtol": 1e-12}),
        ((general_samples(rng, 2, 2, 3),), {"rtol": 1e-12}),
    ],
    reference=lambda a, rtol: (
        np.linalg.inv(np.swapaxes(a, -1, -2) @ a) @ np.swapaxes(a, -1, -2)
        if a.shape[-2] >= a.shape[-1]
        else np.swapaxes(a, -1, -2) @ np.linalg.inv(a @ np.swapaxes(a, -1, -2))
    ),
    extra={"decompose": _pinv_parts},
    complex=True,
    doc="Moore-Penrose inverse.",
)


def _tolerances(A: TensorBase, atol: float | None, rtol: float | None) -> tuple[float, float]:
    """Absolute and relative tolerance: as in PyTorch the relative one is 0 beside an absolute."""
    if rtol is None:
        eps = float(np.finfo(A.array.dtype).eps)
        rtol = 0.0 if atol else max(A.array.shape[-2:]) * eps
    return float(atol or 0.0), float(rtol)


@takes_out
def pinv(
    A: TensorLike,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    hermitian: bool = False,
    rcond: float | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return the Moore-Penrose inverse, without the singular values that count as 0.

    Parameters
    ----------
    A : Tensor, shape (..., m, n)
    atol, rtol : float, optional
        Singular values up to `atol`, or `rtol` times the largest, count as 0. By default `rtol` is
        the larger size times the machine epsilon, and 0 where `atol` is given.
    hermitian : bool
        The matrices are symmetric: their symmetric part counts.
    rcond : float, optional
        The name of `rtol` in ``pinverse``.

    Notes
    -----
    The derivative holds where the number of singular values that are kept is constant.
    """
    A = as_matrix("pinv", A, square=hermitian)
    A = symmetric_part(A) if hermitian else A
    least, share = _tolerances(A, atol, rcond if rtol is None else rtol)
    if not least:
        return apply(_PINV, (finite_replay(A),), {"rtol": share})
    if not A.array.size:
        return apply(_PINV, (A,), {"rtol": share})
    u, s, vh = apply(SVD, (finite_replay(A),))
    kept = s > clamp(amax(s, -1, True) * share, min=least)
    return matmul(mh(vh), unsqueeze(where(kept, 1.0 / where(kept, s, 1.0), 0.0), -1) * mh(u))


@takes_out
def matrix_rank(
    A: TensorLike,
    tol: float | None = None,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    hermitian: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return the number of singular values that count as more than 0; no gradient.

    Parameters
    ----------
    A : Tensor, shape (..., m, n)
    tol, atol, rtol, hermitian
        As for `pinv`; `tol` is an older name of `atol`.
    """
    A = as_matrix("matrix_rank", A, square=hermitian)
    A = symmetric_part(A) if hermitian else A
    s = svdvals(A.detach())
    if not s.array.shape[-1]:
        return sum(s > 0.0, -1)
    least, share = _tolerances(A, tol if atol is None else atol, rtol)
    return sum(s > clamp(amax(s, -1, True) * share, min=least), -1)
