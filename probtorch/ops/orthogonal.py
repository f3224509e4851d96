"""QR: orthonormal columns and a triangular factor.

One op with its derivative rules in Tensor ops (Walter and Lehmann 2010). Read linalg.py first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.dispatch import apply
from probtorch.core.native import Routine
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError
from probtorch.ops.cholesky_factors import real_diagonal
from probtorch.ops.complex_numbers import complex, conj, imag
from probtorch.ops.contraction import matmul
from probtorch.ops.diagonals import diag_embed, diagonal, tril, triu
from probtorch.ops.families import structured
from probtorch.ops.linalg import as_matrix, general_samples, mh, mt, solve_triangular
from probtorch.ops.named import Qr
from probtorch.ops.pieces import cat
from probtorch.ops.workspace import qr_space

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = ["qr"]


def _run_qr(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    q, r = namespace(a).linalg.qr(a)
    # Householder's signs are arbitrary; a diagonal of one sign makes the factors unique.
    xp, along = namespace(a), namespace(a).diagonal(r, 0, -2, -1)
    if a.dtype.kind == "c":
        size = xp.abs(along)
        sign = xp.where(size == 0, 1.0, along / xp.where(size == 0, 1.0, size)).astype(a.dtype)
        r = r * sign.conj()[..., :, None]
        rows = xp.arange(along.shape[-1])
        r[..., rows, rows] = r[..., rows, rows].real
        return q * sign[..., None, :], r
    sign = xp.where(along < 0, -1.0, 1.0).astype(a.dtype)
    return q * sign[..., None, :], r * sign[..., :, None]


def _qr_vjp(
    g: list[TensorBase | None],
    out: tuple[TensorBase, TensorBase],
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    q, r = out
    gq = q * 0.0 if g[0] is None else conj(g[0])
    gr = r * 0.0 if g[1] is None else triu(conj(g[1]))
    # Walter and Lehmann (2010): copy the lower triangle of M = R G_R^T - G_Q^T Q onto the upper
    # one.
    m = matmul(r, mh(gr)) - matmul(mh(gq), q)
    below = tril(m, -1)
    if m.array.dtype.kind == "c":
        # The diagonal of R is real.
        whole = below + mh(below) + real_diagonal(m)
    else:
        whole = tril(m) + mt(below)
    inner = gq + matmul(q, whole)
    return (conj(mh(solve_triangular(r, mh(inner), upper=True))),)


def _qr_jvp(
    tangents: tuple[TensorBase, ...],
    out: tuple[TensorBase, TensorBase],
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> tuple[TensorBase, TensorBase]:
    q, r = out
    scaled = mt(solve_triangular(mt(r), mt(tangents[0]), upper=False))
    inner = matmul(mh(q), scaled)
    skew = tril(inner, -1) - mh(tril(inner, -1))
    if inner.array.dtype.kind == "c":
        turn = imag(diagonal(inner, 0, -2, -1))
        skew = skew + diag_embed(complex(turn * 0.0, turn))
    return scaled - matmul(q, inner - skew), matmul(inner - skew, r)


def _gram_schmidt(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """QR by orthogonalising columns in turn, twice."""
    q = np.zeros_like(a)
    for j in range(a.shape[-1]):
        v = a[..., :, j]
        for _ in range(2):
            v = v - np.einsum("...ik,...lk,...l->...i", q, q, v)
        q[..., :, j] = v / np.sqrt((v * v).sum(-1, keepdims=True))
    return q, np.swapaxes(q, -1, -2) @ a


_QR = structured(
    "qr",
    "linalg",
    run=_run_qr,
    vjp=_qr_vjp,
    jvp=_qr_jvp,
    num_outputs=2,
    saves="out",
    core="(m,n)->(m,n),(n,n)",
    native=Routine(
        "qr_{letter}",
        "a q r m n count heads floats size(floats)",
        outputs="q r",
        columns="a q r",
        space=qr_space,
        fails=True,
    ),
    samples=lambda rng: [
        ((general_samples(rng, 3, 3),), {}),
        ((general_samples(rng, 2, 4, 2),), {}),
    ],
    reference=_gram_schmidt,
    complex=True,
    doc="Orthonormal Q and upper triangular R, with a positive diagonal, of tall matrices.",
)


@takes_out
def qr(A: TensorLike, mode: str = "reduced", *, out: tuple[TensorBase, ...] | None = None) -> Qr:
    """Return ``(Q, R)`` with ``A = Q @ R``: Q with orthonormal columns, R upper triangular.

    Parameters
    ----------
    A : Tensor, shape (..., m, n)
    mode : {"reduced", "r"}
        "r" is for R alone: Q is empty.

    Returns
    -------
    Q : Tensor, shape (..., m, min(m, n))
    R : Tensor, shape (..., min(m, n), n)
        Its diagonal is nonnegative, which makes the factors unique.

    Raises
    ------
    ArgumentError
        For "complete", as what completes the basis is arbitrary and has no gradient.

    Notes
    -----
    Differentiable where the first min(m, n) columns are independent.
    """
    if mode not in ("reduced", "r"):
        raise ArgumentError(
            "qr(mode=...)",
            expected="'reduced' or 'r'",
            got=repr(mode),
            fix="complete the basis with numpy.linalg.qr on the array, outside the graph",
        )
    A = as_matrix("qr", A, square=False)
    if mode == "r":
        return Qr(A.new_empty(0), qr(A)[1])
    m, n = A.array.shape[-2:]
    if m >= n:
        return Qr(*apply(_QR, (A,)))
    q, r = apply(_QR, (A[..., :m],))
    return Qr(q, cat([r, matmul(mh(q), A[..., m:])], -1))
