"""Pseudoinverses and ranks of matrices, from their singular values; read spectral.py first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.dispatch import apply
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.ops.arithmetic import clamp, where
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
    rows = identity(a.array.shape[-2], a) - matmul(a, y)
    cols = identity(a.array.shape[-1], a) - matmul(y, a)
    tt, yt = mh(t), mh(y)
    inner = matmul(matmul(matmul(y, yt), tt), rows) + matmul(matmul(cols, tt), matmul(yt, y))
    return inner - matmul(matmul(y, t), y)


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
    The derivative holds where the rank is constant.
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
