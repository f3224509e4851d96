"""Determinants of matrices, and their logarithms.

The determinant is differentiated through cofactors made without division, so singular matrices are
no exception. Read spectral.py first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import apply, wrap
from probtorch.core.native import Routine
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import NotDifferentiableError
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import lt
from probtorch.ops.complex_numbers import angle, complex, conj, imag, real
from probtorch.ops.contraction import matmul
from probtorch.ops.diagonals import diag_embed, diagonal
from probtorch.ops.families import structured
from probtorch.ops.linalg import INV, as_matrix, general_samples, mh, mt
from probtorch.ops.movement import unsqueeze
from probtorch.ops.named import Slogdet
from probtorch.ops.reduction import prod, sum
from probtorch.ops.workspace import pivots, pivots_and_logs

if TYPE_CHECKING:
    from probtorch.core.op import Attrs
from probtorch.ops.spectral import SVD, finite

__all__ = ["det", "logdet", "slogdet"]


def _oriented_svd(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    u, s, vh = np.linalg.svd(finite("det", a))
    return u, s, vh, np.linalg.det(u) * np.linalg.det(vh)


def _products_without(s: np.ndarray, width: int) -> np.ndarray:
    """Products of all s but one (width 1) or but two (width 2, diagonal 0), without dividing."""
    n = s.shape[-1]
    out = np.zeros(s.shape[:-1] + (n,) * width, s.dtype)
    for at in np.ndindex((n,) * width):
        if len(set(at)) == width:
            out[(..., *at)] = np.delete(s, at, axis=-1).prod(-1)
    return out


def _run_cofactor(a: np.ndarray) -> np.ndarray:
    # With a = U S V^T the cofactors are det(U) det(V) U diag(products of the other s) V^T, of
    # complex numbers with conjugates of U and V^T: no division, so also right for matrices of rank
    # n - 1, where they are the adjugate's.
    host = _to_numpy(a)
    u, s, vh, sign = _oriented_svd(host)
    return _back(
        (u.conj() * (sign[..., None, None] * _products_without(s, 1)[..., None, :])) @ vh.conj(), a
    )


def _svd_and_sign(a: TensorBase) -> tuple[TensorBase, ...]:
    u, s, vh = apply(SVD, (a,))
    sign = apply(_DET, (u,)) * apply(_DET, (vh,))
    return u, s, vh, unsqueeze(unsqueeze(sign, -1), -1)


def _all_but(s: TensorBase, width: int) -> TensorBase:
    """`_products_without` in tensor ops."""
    n = s.array.shape[-1]
    at = np.indices((n,) * width)[..., None] == np.arange(n)
    xp = namespace(s.array)
    gone, distinct = wrap(xp.asarray(at.any(0))), wrap(xp.asarray(at.any(0).sum(-1) == width))
    for _ in range(width):
        s = unsqueeze(s, -2)
    return where(distinct, prod(where(gone, 1.0, s), -1), 0.0)


def _cofactor_parts(a: TensorBase) -> TensorBase:
    u, s, vh, sign = _svd_and_sign(a)
    return matmul(conj(u) * (sign * unsqueeze(_all_but(s, 1), -2)), conj(vh))


def _det_hessian_parts(a: TensorBase, e: TensorBase) -> TensorBase:
    u, s, vh, sign = _svd_and_sign(a)
    inner = matmul(matmul(mh(u), e), mh(vh))
    p = _all_but(s, 2)
    along = matmul(p, unsqueeze(diagonal(inner, 0, -2, -1), -1))[..., 0]
    return sign * matmul(matmul(conj(u), diag_embed(along) - p * mt(inner)), conj(vh))


def _run_det_hessian(a: np.ndarray, e: np.ndarray) -> np.ndarray:
    # The second derivative of det at a, applied to e. In the basis of the svd, d cof_ii / d e_jj =
    # p_ij and d cof_ij / d e_ji = -p_ij, with p_ij the product of all singular values but the i-th
    # and the j-th.
    host = _to_numpy(a)
    u, s, vh, sign = _oriented_svd(host)
    ut, v = np.swapaxes(u, -1, -2).conj(), np.swapaxes(vh, -1, -2).conj()
    inner = ut @ _to_numpy(e) @ v
    p = _products_without(s, 2)
    out = -p * np.swapaxes(inner, -1, -2)
    rows = np.arange(a.shape[-1])
    out[..., rows, rows] = (p @ np.diagonal(inner, 0, -2, -1)[..., None])[..., 0]
    return _back(sign[..., None, None] * (u.conj() @ out @ vh.conj()), a)


def _to_numpy(x: np.ndarray) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else to_host(x)


def _back(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    return x if isinstance(like, np.ndarray) else namespace(like).asarray(x)


def _no_third() -> NotDifferentiableError:
    return NotDifferentiableError(
        "det",
        expected="at most two derivatives of a determinant",
        got="a third",
        fix="use slogdet, whose derivatives of every order exist for invertible matrices",
    )


def _det_hessian_vjp(
    g: TensorBase,
    out: object,
    inputs: tuple[TensorBase, TensorBase],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, TensorBase | None]:
    if needs[0]:
        raise _no_third()
    return None, apply(_DET_HESSIAN, (inputs[0], g))


def _det_hessian_jvp(
    tangents: tuple[TensorBase, ...], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    if tangents[0] is not None:
        raise _no_third()
    return apply(_DET_HESSIAN, (inputs[0], tangents[1]))


def _det_hessian_reference(a: np.ndarray, e: np.ndarray) -> np.ndarray:
    # For invertible a: d(det a^-T) = det (tr(a^-1 e) a^-T - a^-T e^T a^-T).
    inverse = np.linalg.inv(a)
    turned = np.swapaxes(inverse, -1, -2)
    along = np.trace(inverse @ e, axis1=-2, axis2=-1)[..., None, None]
    inner = along * turned - turned @ np.swapaxes(e, -1, -2) @ turned
    return np.linalg.det(a)[..., None, None] * inner


_DET_HESSIAN = structured(
    "det_hessian",
    "linalg",
    run=_run_det_hessian,
    vjp=_det_hessian_vjp,
    jvp=_det_hessian_jvp,
    saves="a",
    core="(n,n),(n,n)->(n,n)",
    samples=lambda rng: [((general_samples(rng, 2, 3, 3), rng.standard_normal((2, 3, 3))), {})],
    reference=_det_hessian_reference,
    extra={"not_differentiable": (0,), "decompose": _det_hessian_parts},
    complex=True,
    doc="Second derivative of the determinant, applied to a matrix.",
)
_COFACTOR = structured(
    "cofactor",
    "linalg",
    run=_run_cofactor,
    vjp=lambda g, out, inputs, attrs, needs: (apply(_DET_HESSIAN, (inputs[0], g)),),
    jvp=lambda tangents, out, inputs, attrs: apply(_DET_HESSIAN, (inputs[0], tangents[0])),
    saves="a",
    core="(n,n)->(n,n)",
    samples=lambda rng: [
        ((general_samples(rng, 3, 3),), {}),
        ((general_samples(rng, 2, 2, 2),), {}),
    ],
    reference=lambda a: np.linalg.det(a)[..., None, None] * np.swapaxes(np.linalg.inv(a), -1, -2),
    extra={"decompose": _cofactor_parts},
    complex=True,
    doc="Matrix of cofactors, the derivative of the determinant.",
)


def _det_jvp(
    tangents: tuple[TensorBase, ...], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    return sum(apply(_COFACTOR, inputs) * tangents[0], (-2, -1))


def _leibniz(a: np.ndarray) -> np.ndarray:
    """Determinant by expansion along the first row."""
    n = a.shape[-1]
    if n == 0:
        return np.ones(a.shape[:-2])
    total = np.zeros(a.shape[:-2])
    for j in range(n):
        total = total + (-1.0) ** j * a[..., 0, j] * _leibniz(np.delete(a[..., 1:, :], j, axis=-1))
    return total


_DET = structured(
    "det",
    "linalg",
    run=lambda a: namespace(a).linalg.det(a),
    jvp=_det_jvp,
    saves="a",
    vjp=lambda g, out, inputs, attrs, needs: (
        unsqueeze(unsqueeze(g, -1), -1) * apply(_COFACTOR, inputs),
    ),
    core="(n,n)->()",
    native=Routine(
        "det_{letter}",
        "a out logs n count pivots",
        outputs="out",
        columns="a",
        space=pivots_and_logs,
        empty=(1,),
    ),
    samples=lambda rng: [
        ((general_samples(rng, 3, 3),), {}),
        ((general_samples(rng, 2, 2, 2),), {}),
    ],
    reference=_leibniz,
    complex=True,
    doc="Determinant.",
)


@takes_out
def det(A: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return the determinant of each matrix; its gradient is exact for singular ones too."""
    return apply(_DET, (as_matrix("det", A),))


def _slogdet_vjp(
    g: Sequence[TensorBase | None],
    out: object,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None]:
    slope = g[1]
    if inputs[0].array.dtype.kind == "c" and g[0] is not None:
        # d sign = sign i Im(tr(A^-1 dA)), where d log |det| is the real part.
        turn = imag(g[0] * apply(_SLOGDET, inputs)[0])
        slope = complex(turn * 0.0 if slope is None else slope, turn)
    if slope is None:
        return (None,)
    inverse = apply(INV, inputs, {"check": False})
    return (unsqueeze(unsqueeze(slope, -1), -1) * mt(inverse),)


def _slogdet_jvp(
    tangents: tuple[TensorBase, ...],
    out: tuple[TensorBase, ...],
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> tuple[TensorBase, TensorBase]:
    inverse = apply(INV, inputs, {"check": False})
    along = sum(mt(inverse) * tangents[0], (-2, -1))
    if along.array.dtype.kind == "c":
        turn = imag(along)
        return out[0] * complex(turn * 0.0, turn), real(along)
    return out[0] * 0.0, along


_SLOGDET = structured(
    "slogdet",
    "linalg",
    run=lambda a: tuple(namespace(a).linalg.slogdet(a)),
    vjp=_slogdet_vjp,
    jvp=_slogdet_jvp,
    saves="a",
    num_outputs=2,
    core="(n,n)->(),()",
    native=Routine(
        "slogdet_{letter}",
        "a sign log n count pivots",
        outputs="sign log",
        columns="a",
        space=pivots,
        empty=(1, 0),
    ),
    samples=lambda rng: [
        ((general_samples(rng, 3, 3),), {}),
        ((-general_samples(rng, 2, 3, 3),), {}),
    ],
    reference=lambda a: (np.sign(_leibniz(a)), np.log(np.abs(_leibniz(a)))),
    complex=True,
    doc="Sign and logarithm of the absolute value of the determinant.",
)


@takes_out
def slogdet(A: TensorLike, *, out: tuple[TensorBase, ...] | None = None) -> Slogdet:
    """Return ``(sign, logabsdet)`` of the determinant; natural logarithm.

    A singular matrix has sign 0 and logabsdet -inf, with gradient nan: `det` is the function to
    differentiate there.
    """
    return Slogdet(*apply(_SLOGDET, (as_matrix("slogdet", A),)))


def logdet(input: TensorLike) -> TensorBase:
    """Return the natural logarithm of the determinant: -inf where that is 0, nan below.

    Of complex matrices it is complex.
    """
    sign, log_abs = slogdet(input)
    if sign.array.dtype.kind == "c":
        return complex(log_abs, angle(sign))
    return where(lt(sign, 0.0), math.nan, log_abs)
