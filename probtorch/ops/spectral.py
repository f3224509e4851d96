"""Determinants, eigenvalues, singular values, QR and pseudoinverses of matrices.

Matrices are in the last two dims. Each factorisation is one op with its derivative rules in Tensor
ops (Giles 2008; Walter and Lehmann 2010 for qr). Two things hold throughout: symmetric matrices get
symmetric gradients, and pairs of equal eigenvalues or singular values drop out of the derivative,
which is right for every function that does not depend on the arbitrary choice of their vectors. The
determinant is differentiated through cofactors made without division, so singular matrices are no
exception.

Names are those of torch.linalg. Read linalg.py first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, recorder, wrap
from probtorch.core.native import Routine
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, NotDifferentiableError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import isfinite, lt
from probtorch.ops.complex_numbers import angle, complex, conj, imag, real
from probtorch.ops.contraction import matmul
from probtorch.ops.families import structured
from probtorch.ops.linalg import (
    INV,
    LinAlgError,
    as_matrix,
    from_lower,
    general_samples,
    identity,
    lower_part,
    mh,
    mt,
    positive_definite_samples,
    real_diagonal,
    solve_triangular,
    symmetric_part,
)
from probtorch.ops.movement import (
    cat,
    diag_embed,
    diagonal,
    expand,
    tril,
    triu,
    unsqueeze,
)
from probtorch.ops.named import Eigh, Qr, Slogdet, Svd
from probtorch.ops.reduction import all as all_of
from probtorch.ops.reduction import amax, prod, sum
from probtorch.ops.sampling import demand
from probtorch.ops.workspace import eigh_space, pivots, pivots_and_logs, qr_space, svd_space

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = [
    "det",
    "eigh",
    "eigvalsh",
    "finite",
    "logdet",
    "matrix_rank",
    "pinv",
    "qr",
    "slogdet",
    "svd",
    "svdvals",
    "without_phase",
]


# ------------------------------------------------------------------------------------- determinants


def finite(name: str, a: np.ndarray) -> np.ndarray:
    """Return the array `a`; on infinities LAPACK's singular values would never be done."""
    if not namespace(a).isfinite(a).all():
        raise LinAlgError(
            name,
            expected="matrices of finite numbers",
            got="nan or infinite elements",
            fix="look for what made them, or mask them",
        )
    return a


def _finite_replay(a: TensorBase) -> TensorBase:
    """Return the tensor `a`; where a recording runs again, it must be finite there too."""
    return a if recorder() is None else demand(a, all_of(isfinite(a)))


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


def _run_cofactor(a):
    # With a = U S V^T the cofactors are det(U) det(V) U diag(products of the other s) V^T, of
    # complex numbers with conjugates of U and V^T: no division, so also right for matrices of rank
    # n - 1, where they are the adjugate's.
    host = _to_numpy(a)
    u, s, vh, sign = _oriented_svd(host)
    return _back(
        (u.conj() * (sign[..., None, None] * _products_without(s, 1)[..., None, :])) @ vh.conj(), a
    )


def _svd_and_sign(a):
    u, s, vh = apply(_SVD, (a,))
    sign = apply(_DET, (u,)) * apply(_DET, (vh,))
    return u, s, vh, unsqueeze(unsqueeze(sign, -1), -1)


def _all_but(s, width):
    """`_products_without` in tensor ops."""
    n = s.array.shape[-1]
    at = np.indices((n,) * width)[..., None] == np.arange(n)
    xp = namespace(s.array)
    gone, distinct = wrap(xp.asarray(at.any(0))), wrap(xp.asarray(at.any(0).sum(-1) == width))
    for _ in range(width):
        s = unsqueeze(s, -2)
    return where(distinct, prod(where(gone, 1.0, s), -1), 0.0)


def _cofactor_parts(a):
    u, s, vh, sign = _svd_and_sign(a)
    return matmul(conj(u) * (sign * unsqueeze(_all_but(s, 1), -2)), conj(vh))


def _det_hessian_parts(a, e):
    u, s, vh, sign = _svd_and_sign(a)
    inner = matmul(matmul(mh(u), e), mh(vh))
    p = _all_but(s, 2)
    along = matmul(p, unsqueeze(diagonal(inner, 0, -2, -1), -1))[..., 0]
    return sign * matmul(matmul(conj(u), diag_embed(along) - p * mt(inner)), conj(vh))


def _run_det_hessian(a, e):
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


def _to_numpy(x):
    return x if isinstance(x, np.ndarray) else x.get()


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
    g: TensorBase, out, inputs: tuple[TensorBase, TensorBase], attrs: Attrs, needs: Sequence[bool]
) -> tuple[TensorBase | None, TensorBase | None]:
    if needs[0]:
        raise _no_third()
    return None, apply(_DET_HESSIAN, (inputs[0], g))


def _det_hessian_jvp(tangents, out, inputs, attrs: Attrs):
    if tangents[0] is not None:
        raise _no_third()
    return apply(_DET_HESSIAN, (inputs[0], tangents[1]))


def _det_hessian_reference(a, e):
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


def _det_jvp(tangents, out, inputs, attrs: Attrs):
    return sum(apply(_COFACTOR, inputs) * tangents[0], (-2, -1))


def _leibniz(a):
    """Determinant by expansion along the first row."""
    n = a.shape[-1]
    if n == 0:
        return np.ones(a.shape[:-2])
    total = 0.0
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
def det(a: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return the determinant of each matrix; its gradient is exact for singular ones too."""
    return apply(_DET, (as_matrix("det", a),))


def _slogdet_vjp(g, out, inputs, attrs, needs):
    slope = g[1]
    if inputs[0].array.dtype.kind == "c" and g[0] is not None:
        # d sign = sign i Im(tr(A^-1 dA)), where d log |det| is the real part.
        turn = imag(g[0] * apply(_SLOGDET, inputs)[0])
        slope = complex(turn * 0.0 if slope is None else slope, turn)
    if slope is None:
        return (None,)
    inverse = apply(INV, inputs, {"check": False})
    return (unsqueeze(unsqueeze(slope, -1), -1) * mt(inverse),)


def _slogdet_jvp(tangents, out, inputs, attrs: Attrs):
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
def slogdet(a: TensorLike, *, out: tuple[TensorBase, ...] | None = None) -> Slogdet:
    """Return ``(sign, logabsdet)`` of the determinant; natural logarithm.

    A singular matrix has sign 0 and logabsdet -inf, with gradient nan: `det` is the function to
    differentiate there.
    """
    return Slogdet(*apply(_SLOGDET, (as_matrix("slogdet", a),)))


def logdet(a: TensorLike) -> TensorBase:
    """Return the natural logarithm of the determinant: -inf where that is 0, nan below.

    Of complex matrices it is complex.
    """
    sign, log_abs = slogdet(a)
    if sign.array.dtype.kind == "c":
        return complex(log_abs, angle(sign))
    return where(lt(sign, 0.0), math.nan, log_abs)


# --------------------------------------------------------------------------------------------- eigh


def _scale_columns(x: TensorBase, d: TensorBase) -> TensorBase:
    return x * unsqueeze(d, -2)


def _scale_rows(x: TensorBase, d: TensorBase) -> TensorBase:
    return x * unsqueeze(d, -1)


def _gaps(values: TensorBase, rtol: float) -> TensorBase:
    """1 / (v_j - v_i) as a matrix with rows i; 0 where the two agree to rounding."""
    gap = unsqueeze(values, -2) - unsqueeze(values, -1)
    scale = (
        expand(amax(absolute(values), -1, True).unsqueeze(-1), gap.array.shape)
        if values.array.size
        else gap
    )
    same = absolute(gap) <= scale * rtol
    return where(same, 0.0, 1.0 / where(same, 1.0, gap))


def _run_eigh(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return tuple(namespace(a).linalg.eigh(finite("eigh", a)))


def _tolerance(x: TensorBase) -> float:
    return x.array.shape[-1] * float(np.finfo(x.array.dtype).eps) if x.array.size else 0.0


def _eigh_vjp(
    g: list[TensorBase | None],
    out: tuple[TensorBase, TensorBase],
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    values, vectors = out
    inner: Any = diag_embed(g[0]) if g[0] is not None else None
    if g[1] is not None:
        turned = matmul(mh(vectors), conj(g[1]))
        without_phase("eigh", turned)
        turned = turned * _gaps(values, _tolerance(values))
        inner = turned if inner is None else inner + turned
    inner = cast(inner, vectors.array.dtype)
    return (conj(lower_part(symmetric_part(matmul(matmul(vectors, inner), mh(vectors))))),)


def without_phase(op: str, turned: TensorBase, others: TensorBase | None = None) -> None:
    """Refuse gradients of what depends on the angles of complex vectors, which are arbitrary."""
    if turned.array.dtype.kind != "c" or not turned.array.size:
        return
    slope = imag(diagonal(turned, 0, -2, -1))
    if others is not None:
        slope = slope + imag(diagonal(others, 0, -2, -1))
    digits = 1e4 * float(np.finfo(slope.array.dtype).eps)
    size = namespace(turned.array).abs(turned.array).max()
    if bool((namespace(slope.array).abs(slope.array) > digits * max(1.0, float(size))).any()):
        raise NotDifferentiableError(
            op,
            expected="a function of the vectors that does not change when one is multiplied by "
            "exp(i angle), as that is arbitrary",
            got="one that does",
            fix="use abs of their elements, projections v v^H, or fix an angle before the loss",
        )


def _eigh_jvp(tangents, out, inputs, attrs: Attrs):
    values, vectors = out
    inner = matmul(matmul(mh(vectors), from_lower(tangents[0])), vectors)
    return real(diagonal(inner, 0, -2, -1)), matmul(
        vectors, inner * _gaps(values, _tolerance(values))
    )


def _eigh_reference(a):
    """Eigenvalues and vectors by Jacobi rotations, ordered and signed as LAPACK has them."""
    a = np.tril(a) + np.swapaxes(np.tril(a, -1), -1, -2)
    n, given = a.shape[-1], np.linalg.eigh(a)[1]
    v = np.broadcast_to(np.eye(n), a.shape).copy()
    for _ in range(12):
        for p, q in itertools.combinations(range(n), 2):
            angle = 0.5 * np.arctan2(2.0 * a[..., p, q], a[..., q, q] - a[..., p, p])
            turn = np.broadcast_to(np.eye(n), a.shape).copy()
            turn[..., p, p] = turn[..., q, q] = np.cos(angle)
            turn[..., p, q], turn[..., q, p] = np.sin(angle), -np.sin(angle)
            a, v = np.swapaxes(turn, -1, -2) @ a @ turn, v @ turn
    values = np.diagonal(a, 0, -2, -1)
    order = np.argsort(values, -1)
    v = np.take_along_axis(v, order[..., None, :], -1)
    return np.take_along_axis(values, order, -1), v * np.sign((v * given).sum(-2, keepdims=True))


_EIGH = structured(
    "eigh",
    "linalg",
    run=_run_eigh,
    vjp=_eigh_vjp,
    jvp=_eigh_jvp,
    num_outputs=2,
    saves="out",
    core="(n,n)->(n),(n,n)",
    native=Routine(
        "eigh_{letter}",
        "a values n count floats size(floats) integers size(integers)",
        outputs="values a",
        columns="a",
        space=eigh_space,
        fails=True,
    ),
    samples=lambda rng: [
        ((positive_definite_samples(rng, 3),), {}),
        ((positive_definite_samples(rng, 2, 3),), {}),
    ],
    reference=_eigh_reference,
    complex=True,
    doc="Eigenvalues, ascending, and eigenvectors of symmetric matrices.",
)


@takes_out
def eigh(a: TensorLike, *, out: tuple[TensorBase, ...] | None = None) -> Eigh:
    """Return ``(eigenvalues, eigenvectors)`` of symmetric matrices: ascending, vectors in columns.

    Parameters
    ----------
    a : Tensor, shape (..., n, n)
        Symmetric, else their symmetric part counts; the gradient is symmetric. Of complex numbers
        Hermitian takes the place of symmetric; eigenvalues are real.

    Raises
    ------
    NotDifferentiableError
        In a backward pass, of a function that changes with the angles of complex vectors.

    Notes
    -----
    Signs, and the basis within equal eigenvalues, are arbitrary. Gradients are right for functions
    that do not depend on them, but between vectors of equal eigenvalues there are none: of a
    function of a matrix, such as `linalg.matrix_exp`, that part is left out.
    """
    return Eigh(*apply(_EIGH, (_finite_replay(symmetric_part(as_matrix("eigh", a))),)))


@takes_out
def eigvalsh(a: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return the eigenvalues of symmetric matrices, ascending."""
    return eigh(a)[0]


# ----------------------------------------------------------------------------------------------- qr


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


def _qr_jvp(tangents, out, inputs, attrs: Attrs):
    q, r = out
    scaled = mt(solve_triangular(mt(r), mt(tangents[0]), upper=False))
    inner = matmul(mh(q), scaled)
    skew = tril(inner, -1) - mh(tril(inner, -1))
    if inner.array.dtype.kind == "c":
        turn = imag(diagonal(inner, 0, -2, -1))
        skew = skew + diag_embed(complex(turn * 0.0, turn))
    return scaled - matmul(q, inner - skew), matmul(inner - skew, r)


def _gram_schmidt(a):
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
def qr(a: TensorLike, *, out: tuple[TensorBase, ...] | None = None) -> Qr:
    """Return ``(Q, R)`` with ``a = Q @ R``: Q with orthonormal columns, R upper triangular.

    Parameters
    ----------
    a : Tensor, shape (..., m, n)

    Returns
    -------
    Q : Tensor, shape (..., m, min(m, n))
    R : Tensor, shape (..., min(m, n), n)
        Its diagonal is nonnegative, which makes the factors unique.

    Notes
    -----
    Differentiable where the first min(m, n) columns are independent.
    """
    a = as_matrix("qr", a, square=False)
    m, n = a.array.shape[-2:]
    if m >= n:
        return Qr(*apply(_QR, (a,)))
    q, r = apply(_QR, (a[..., :m],))
    return Qr(q, cat([r, matmul(mh(q), a[..., m:])], -1))


# ---------------------------------------------------------------------------------------------- svd


def _run_svd(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(namespace(a).linalg.svd(finite("svd", a), full_matrices=False))


def _inverse_or_zero(s: TensorBase, rtol: float) -> TensorBase:
    floor = amax(s, -1, True) * rtol if s.array.size else s
    gone = s <= floor
    return where(gone, 0.0, 1.0 / where(gone, 1.0, s))


def _svd_vjp(
    g: list[TensorBase | None],
    out: tuple[TensorBase, TensorBase, TensorBase],
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    u, s, vh = out
    ut, v = mh(u), mh(vh)
    rtol = _tolerance(s)
    gaps = _gaps(s * s, rtol)
    inner: Any = cast(diag_embed(g[1] if g[1] is not None else s * 0.0), u.array.dtype)
    left: Any = None
    right: Any = None
    outside = None
    inverse = _inverse_or_zero(s, rtol)
    if g[0] is not None:
        gu = conj(g[0])
        left = turned = matmul(ut, gu)
        inner = inner + _scale_columns(gaps * (turned - mh(turned)), s)
        outside = matmul(_scale_columns(gu - matmul(u, turned), inverse), vh)
    if g[2] is not None:
        gv = mh(conj(g[2]))
        right = turned = matmul(vh, gv)
        inner = inner + _scale_rows(gaps * (turned - mh(turned)), s)
        rest = matmul(_scale_columns(u, inverse), mh(gv - matmul(v, turned)))
        outside = rest if outside is None else outside + rest
    if u.array.dtype.kind == "c" and (left is not None or right is not None):
        # Of the angles of a pair of vectors only the difference is determined.
        without_phase("svd", *[t for t in (left, right) if t is not None])
        turn = imag(diagonal(right if left is None else left, 0, -2, -1)) * inverse
        turn = complex(turn * 0.0, turn)
        inner = inner + diag_embed(-turn if left is None else turn)
    total = matmul(matmul(u, inner), vh)
    return (conj(total if outside is None else total + outside),)


def _svd_jvp(tangents, out, inputs, attrs: Attrs):
    u, s, vh = out
    ut, v = mh(u), mh(vh)
    t = tangents[0]
    rtol = _tolerance(s)
    gaps, inverse = _gaps(s * s, rtol), _inverse_or_zero(s, rtol)
    inner = matmul(matmul(ut, t), v)
    tu = matmul(u, gaps * (_scale_columns(inner, s) + _scale_rows(mh(inner), s)))
    tv = matmul(v, gaps * (_scale_rows(inner, s) + _scale_columns(mh(inner), s)))
    if inner.array.dtype.kind == "c":
        turn = imag(diagonal(inner, 0, -2, -1)) * inverse * 0.5
        turn = complex(turn * 0.0, turn)
        tu, tv = tu + _scale_columns(u, turn), tv - _scale_columns(v, turn)
    right, left = matmul(t, v), matmul(mh(t), u)
    tu = tu + _scale_columns(right - matmul(u, matmul(ut, right)), inverse)
    tv = tv + _scale_columns(left - matmul(v, matmul(vh, left)), inverse)
    return tu, real(diagonal(inner, 0, -2, -1)), mh(tv)


def _svd_reference(a):
    """Thin SVD from the eigenvectors of the smaller Gram matrix, signs as LAPACK has them."""
    given = np.linalg.svd(a, full_matrices=False)[0]
    wide = a.shape[-2] < a.shape[-1]
    b = np.swapaxes(a, -1, -2) if wide else a
    squares, v = np.linalg.eigh(np.swapaxes(b, -1, -2) @ b)
    s, v = np.sqrt(squares[..., ::-1]), v[..., ::-1]
    u = b @ v / s[..., None, :]
    u, v = (v, u) if wide else (u, v)
    sign = np.sign((u * given).sum(-2, keepdims=True))
    return u * sign, s, np.swapaxes(v * sign, -1, -2)


_SVD = structured(
    "svd",
    "linalg",
    run=_run_svd,
    vjp=_svd_vjp,
    jvp=_svd_jvp,
    num_outputs=3,
    saves="out",
    core="(m,n)->(m,k),(k),(k,n)",
    native=Routine(
        "svd_{letter}",
        "a u s vh m n count floats size(floats) integers",
        outputs="u s vh",
        columns="a u vh",
        space=svd_space,
        fails=True,
    ),
    samples=lambda rng: [
        ((general_samples(rng, 3, 3),), {}),
        ((general_samples(rng, 4, 2),), {}),
        ((general_samples(rng, 2, 2, 3),), {}),
    ],
    reference=_svd_reference,
    complex=True,
    doc="Thin singular value decomposition.",
)


@takes_out
def svd(
    a: TensorLike, full_matrices: bool = False, *, out: tuple[TensorBase, ...] | None = None
) -> Svd:
    """Return ``(U, S, Vh)`` with ``a = U @ diag(S) @ Vh``; singular values descend.

    Parameters
    ----------
    a : Tensor, shape (..., m, n)
    full_matrices : bool
        Must be False: the thin factors are the differentiable ones.

    Returns
    -------
    U : Tensor, shape (..., m, k), with k = min(m, n)
    S : Tensor, shape (..., k)
    Vh : Tensor, shape (..., k, n)

    Notes
    -----
    The derivative rules are those of `eigh`: equal singular values contribute no differences.
    """
    if full_matrices:
        raise ArgumentError(
            "svd",
            expected="full_matrices=False",
            got="full_matrices=True",
            fix="complete the basis with numpy.linalg.svd on the array, outside the graph",
        )
    return Svd(*apply(_SVD, (_finite_replay(as_matrix("svd", a, square=False)),)))


@takes_out
def svdvals(a: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return the singular values of each matrix, descending."""
    return svd(a)[1]


# ------------------------------------------------------------------------------------ pseudoinverse


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


def _pinv_jvp(tangents, y, inputs, attrs: Attrs):
    (a,), t = inputs, tangents[0]
    rows = identity(a.array.shape[-2], a) - matmul(a, y)
    cols = identity(a.array.shape[-1], a) - matmul(y, a)
    tt, yt = mh(t), mh(y)
    inner = matmul(matmul(matmul(y, yt), tt), rows) + matmul(matmul(cols, tt), matmul(yt, y))
    return inner - matmul(matmul(y, t), y)


def _pinv_parts(a, rtol):
    """The inverse as NumPy makes it, from ops that are compiled."""
    u, s, vh = apply(_SVD, (a,))
    if s.array.size == 0:
        return matmul(mh(vh), mh(u))
    kept = s > amax(s, -1, True) * rtol
    inverse = where(kept, 1.0 / where(kept, s, 1.0), 0.0)
    return matmul(mh(vh), _scale_rows(mh(u), inverse))


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


@takes_out
def pinv(a: TensorLike, *, rtol: float | None = None, out: TensorBase | None = None) -> TensorBase:
    """Return the Moore-Penrose inverse; singular values up to `rtol` times the largest count as 0.

    The default `rtol` is the larger size times the machine epsilon. The derivative holds where the
    rank is constant.
    """
    a = as_matrix("pinv", a, square=False)
    if rtol is None:
        rtol = max(a.array.shape[-2:]) * float(np.finfo(a.array.dtype).eps)
    return apply(_PINV, (_finite_replay(a),), {"rtol": float(rtol)})


# ---------------------------------------------------------------------------------- ------ ranks
@takes_out
def matrix_rank(
    a: TensorLike, *, rtol: float | None = None, out: TensorBase | None = None
) -> TensorBase:
    """Return the number of singular values above `rtol` times the largest; no gradient."""
    a = as_matrix("matrix_rank", a, square=False)
    s = svdvals(a.detach())
    if not s.array.shape[-1]:
        return sum(s > 0.0, -1)
    if rtol is None:
        rtol = max(a.array.shape[-2:]) * float(np.finfo(a.array.dtype).eps)
    return sum(s > amax(s, -1, True) * rtol, -1)
