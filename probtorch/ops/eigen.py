"""Eigenvalues and eigenvectors of general matrices, which are complex.

Vectors have length 1 and an arbitrary angle. The derivative is that of simple eigenvalues (Giles
2008, sec. 3.1); between equal ones there is none, as in `eigh` of spectral.py, which read first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import where
from probtorch.ops.complex_numbers import conj, real
from probtorch.ops.contraction import matmul
from probtorch.ops.diagonals import diag_embed, diagonal
from probtorch.ops.extremes import amax
from probtorch.ops.families import structured
from probtorch.ops.linalg import as_matrix, general_samples, mh, solve
from probtorch.ops.movement import unsqueeze
from probtorch.ops.named import Eig
from probtorch.ops.reduction import sum
from probtorch.ops.spectral import finite, without_phase

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = ["eig", "eigvals"]


def _run_eig(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = namespace(a).linalg.eig(finite("eig", a))
    single = a.dtype in (dtypes.float32, dtypes.complex64)
    dtype = dtypes.complex64 if single else dtypes.complex128
    return values.astype(dtype, copy=False), vectors.astype(dtype, copy=False)


def _inverse_gaps(values: TensorBase) -> TensorBase:
    """1 / (v_j - v_i) as a matrix with rows i; 0 where the two agree to rounding."""
    gap = unsqueeze(values, -2) - unsqueeze(values, -1)
    if not values.array.size:
        return gap
    rtol = values.array.shape[-1] * float(np.finfo(values.array.dtype).eps)
    same = absolute(gap) <= unsqueeze(amax(absolute(values), -1, True), -1) * rtol
    return where(same, 0.0, 1.0 / where(same, 1.0, gap))


def _eig_vjp(
    g: list[TensorBase | None],
    out: tuple[TensorBase, TensorBase],
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    values, vectors = out
    inner = None if g[0] is None else diag_embed(conj(g[0]))
    if g[1] is not None:
        turned = matmul(mh(vectors), conj(g[1]))
        without_phase("eig", turned)
        # Less what changes the lengths, which are 1.
        along = unsqueeze(real(diagonal(turned, 0, -2, -1)), -2)
        apart = (turned - matmul(mh(vectors), vectors * along)) * conj(_inverse_gaps(values))
        inner = apart if inner is None else inner + apart
    assert inner is not None
    slope = conj(solve(mh(vectors), matmul(inner, mh(vectors))))
    return (slope if inputs[0].array.dtype.kind == "c" else real(slope),)


def _eig_jvp(
    tangents: Sequence[TensorBase],
    out: tuple[TensorBase, TensorBase],
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> tuple[TensorBase, TensorBase]:
    values, vectors = out
    tangent = cast(tangents[0], vectors.array.dtype)
    inner = solve(vectors, matmul(tangent, vectors))
    turned = matmul(vectors, inner * _inverse_gaps(values))
    along = real(sum(conj(vectors) * turned, -2, True))
    return diagonal(inner, 0, -2, -1), turned - vectors * along


_EIG = structured(
    "eig",
    "linalg",
    run=_run_eig,
    vjp=_eig_vjp,
    jvp=_eig_jvp,
    num_outputs=2,
    saves="out",
    core="(n,n)->(n),(n,n)",
    samples=lambda rng: [
        ((general_samples(rng, 3, 3),), {}),
        ((general_samples(rng, 2, 4, 4),), {}),
    ],
    reference=lambda a: tuple(np.linalg.eig(a.astype(complex))),
    complex=True,
    extra={"of_complex": True},
    doc="Eigenvalues and eigenvectors of general matrices.",
)


@takes_out
def eig(A: TensorLike, *, out: tuple[TensorBase, ...] | None = None) -> Eig:
    """Return ``(eigenvalues, eigenvectors)`` of square matrices: complex, vectors in columns.

    Parameters
    ----------
    A : Tensor, shape (..., n, n)
        Real or complex.

    Returns
    -------
    eigenvalues : Tensor, shape (..., n)
        Complex, in no order.
    eigenvectors : Tensor, shape (..., n, n)
        Of length 1; the angle of each is arbitrary.

    Raises
    ------
    LinAlgError
        If an element is not finite.
    NotDifferentiableError
        In a backward pass, of a function that changes with the angles of the vectors.

    Notes
    -----
    Gradients are those of distinct eigenvalues; pairs of equal ones contribute no differences.
    `eigh` is faster and more exact where matrices are symmetric.
    """
    return Eig(*apply(_EIG, (as_matrix("eig", A),)))


@takes_out
def eigvals(A: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return the eigenvalues of square matrices, complex; see `eig`."""
    return eig(A)[0]
