"""Eigenvalues of symmetric matrices and singular values.

Matrices are in the last two dims. Each factorisation is one op with its derivative rules in Tensor
ops (Giles 2008). Two things hold throughout: symmetric matrices get symmetric gradients, and pairs
of equal eigenvalues or singular values drop out of the derivative, which is right for every
function that does not depend on the arbitrary choice of their vectors.

Names are those of torch.linalg. Read linalg.py first; determinants.py and pseudoinverses.py build
on this.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.backends.registry import to_device
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, recorder, wrap
from probtorch.core.native import Routine
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, NotDifferentiableError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import where
from probtorch.ops.cholesky_factors import from_lower, lower_part, positive_definite_samples
from probtorch.ops.comparisons import isfinite
from probtorch.ops.complex_numbers import complex, conj, imag, real
from probtorch.ops.contraction import matmul
from probtorch.ops.demands import demand
from probtorch.ops.diagonals import diag_embed, diagonal
from probtorch.ops.extremes import amax
from probtorch.ops.families import structured
from probtorch.ops.linalg import LinAlgError, as_matrix, general_samples, mh, symmetric_part
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.named import Eigh, Svd
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import all as all_of
from probtorch.ops.workspace import eigh_space, svd_space

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = [
    "SVD",
    "TELLING",
    "eigh",
    "eigvalsh",
    "finite",
    "finite_replay",
    "svd",
    "svdvals",
    "without_phase",
]

# The sign of a real vector is that of its first element of more than so much of the largest size.
# LAPACK's is an accident of rounding: eager and native code, which call different builds, differed
# in one of 100 matrices of 3 x 3 in single precision. The largest element itself would not do: of
# (1, -1) it is either. No ratio that matrices of simple numbers have is this one.
TELLING = 0.37


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


def finite_replay(a: TensorBase) -> TensorBase:
    """Return the tensor `a`; where a recording runs again, it must be finite there too."""
    return a if recorder() is None else demand(a, all_of(isfinite(a)))


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
    values, vectors = namespace(a).linalg.eigh(finite("eigh", a))
    return values, (vectors * _signs(vectors) if _signed(vectors) else vectors)


def _signed(vectors: np.ndarray) -> bool:
    """Whether there are signs to settle: complex vectors have angles, which stay LAPACK's."""
    return bool(vectors.size) and vectors.dtype.kind != "c"


def _signs(vectors: np.ndarray) -> np.ndarray:
    """What makes the first telling element of vectors in columns positive: shape (..., 1, n)."""
    xp = namespace(vectors)
    sizes = xp.abs(vectors)
    first = (sizes > TELLING * sizes.max(-2, keepdims=True)).argmax(-2)[..., None, :]
    return 1 - 2 * xp.signbit(xp.take_along_axis(vectors, first, -2)).astype(vectors.dtype)


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


def _eigh_jvp(
    tangents: tuple[TensorBase, ...],
    out: tuple[TensorBase, ...],
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> tuple[TensorBase, ...]:
    values, vectors = out
    inner = matmul(matmul(mh(vectors), from_lower(tangents[0])), vectors)
    return real(diagonal(inner, 0, -2, -1)), matmul(
        vectors, inner * _gaps(values, _tolerance(values))
    )


def _eigh_reference(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and vectors by Jacobi rotations, ascending, with the signs of `eigh`."""
    a = np.tril(a) + np.swapaxes(np.tril(a, -1), -1, -2)
    n = a.shape[-1]
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
    return np.take_along_axis(values, order, -1), v * _signs_one_by_one(v)


def _signs_one_by_one(v: np.ndarray) -> np.ndarray:
    found = np.empty((*v.shape[:-2], 1, v.shape[-1]))
    for *batch, j in np.ndindex(*v.shape[:-2], v.shape[-1]):
        x = v[(*batch, slice(None), j)]
        found[(*batch, 0, j)] = np.sign(next(y for y in x if abs(y) > TELLING * abs(x).max()))
    return found


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
def eigh(
    A: TensorLike, UPLO: str | None = None, *, out: tuple[TensorBase, ...] | None = None
) -> Eigh:
    """Return ``(eigenvalues, eigenvectors)`` of symmetric matrices: ascending, vectors in columns.

    Parameters
    ----------
    A : Tensor, shape (..., n, n)
        Symmetric, else their symmetric part counts; the gradient is symmetric. Of complex numbers
        Hermitian takes the place of symmetric; eigenvalues are real.
    UPLO : {"L", "U"}, optional
        Look at the lower or the upper triangle alone.

    Raises
    ------
    ArgumentError
        If `UPLO` is none of these.
    NotDifferentiableError
        In a backward pass, of a function that changes with the angles of complex vectors.

    Notes
    -----
    A real vector has its first element of more than 0.37 of the largest size positive, here and in
    compiled code; NumPy and PyTorch leave signs to rounding. The angles of complex vectors, and the
    basis within equal eigenvalues, are arbitrary. Gradients are right for functions that do not
    depend on them, but between vectors of equal eigenvalues there are none: of a function of a
    matrix, such as `linalg.matrix_exp`, that part is left out.
    """
    A = as_matrix("eigh", A)
    if UPLO is None:
        A = symmetric_part(A)
    elif UPLO in ("L", "l"):
        A = from_lower(A)
    elif UPLO in ("U", "u"):
        A = from_lower(mh(A))
    else:
        raise ArgumentError(
            "eigh(UPLO=...)",
            expected="'L' or 'U'",
            got=repr(UPLO),
            fix="leave it out for matrices that are symmetric",
        )
    return Eigh(*apply(_EIGH, (finite_replay(A),)))


@takes_out
def eigvalsh(
    A: TensorLike, UPLO: str | None = None, *, out: TensorBase | None = None
) -> TensorBase:
    """Return the eigenvalues of symmetric matrices, ascending; `UPLO` as for `eigh`."""
    return eigh(A, UPLO)[0]


# ---------------------------------------------------------------------------------------------- svd


def _run_svd(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    u, s, vh = namespace(a).linalg.svd(finite("svd", a), full_matrices=False)
    if _signed(vh):
        signs = _signs(vh.swapaxes(-1, -2))
        u, vh = u * signs, vh * signs.swapaxes(-1, -2)
    return u, s, vh


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


def _svd_jvp(
    tangents: tuple[TensorBase, ...],
    out: tuple[TensorBase, ...],
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> tuple[TensorBase, ...]:
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


def _svd_reference(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thin SVD from the eigenvectors of the smaller Gram matrix, with the signs of `svd`."""
    wide = a.shape[-2] < a.shape[-1]
    b = np.swapaxes(a, -1, -2) if wide else a
    squares, v = np.linalg.eigh(np.swapaxes(b, -1, -2) @ b)
    s, v = np.sqrt(squares[..., ::-1]), v[..., ::-1]
    u = b @ v / s[..., None, :]
    u, v = (v, u) if wide else (u, v)
    sign = _signs_one_by_one(v)
    return u * sign, s, np.swapaxes(v * sign, -1, -2)


SVD = structured(
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
    A: TensorLike,
    full_matrices: bool = True,
    *,
    driver: str | None = None,
    out: tuple[TensorBase, ...] | None = None,
) -> Svd:
    """Return ``(U, S, Vh)`` with ``A = U @ diag(S) @ Vh``; singular values descend.

    Parameters
    ----------
    A : Tensor, shape (..., m, n)
    full_matrices : bool
        Whether U and Vh are square. What completes them is some basis, and has no gradient.
    driver : str, optional
        For PyTorch's sake: there is one routine.

    Returns
    -------
    U : Tensor, shape (..., m, m), or (..., m, k) with k = min(m, n) if not `full_matrices`
    S : Tensor, shape (..., k)
    Vh : Tensor, shape (..., n, n), or (..., k, n)

    Notes
    -----
    The derivative rules are those of `eigh`: equal singular values contribute no differences. So
    are the signs, of the real vectors in Vh; those in U go with them.
    """
    x = as_matrix("svd", A, square=False)
    rows, columns = x.array.shape[-2:]
    u, s, vh = apply(SVD, (finite_replay(x),))
    if full_matrices and rows > columns:
        u = _completed(u)
    elif full_matrices and rows < columns:
        vh = mh(_completed(mh(vh)))
    return Svd(u, s, vh)


def _completed(basis: TensorBase) -> TensorBase:
    """Orthonormal columns, with further ones beside them that make the matrix square.

    These span the space of eigenvalue 1 of the projector onto what is left, which has no others
    but 0: so they are found well whatever the columns are.
    """
    rows, columns = basis.array.shape[-2:]
    fixed = basis.detach()
    eye = wrap(to_device(np.eye(rows, dtype=basis.array.dtype), basis.device))
    others = eigh(eye - matmul(fixed, mh(fixed)))[1][..., columns:]
    return cat([basis, others], -1)


@takes_out
def svdvals(
    A: TensorLike, *, driver: str | None = None, out: TensorBase | None = None
) -> TensorBase:
    """Return the singular values of each matrix, descending; `driver` as for `svd`."""
    return svd(A, False)[1]
