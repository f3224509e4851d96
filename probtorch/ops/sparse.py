"""Products with sparse matrices of SciPy: ``X @ b`` for a design matrix that is mostly zeros.

A matrix of SciPy is data. One primitive takes it by rows (where each begins, columns and numbers),
and its transpose as well, with which the derivative is the same primitive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeGuard

import numpy as np

from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, wrap
from probtorch.core.dtype import float32, promote_types
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import DTypeError, ShapeError
from probtorch.ops.families import structured
from probtorch.ops.movement import movedim, reshape
from probtorch.ops.reduction import sum as total
from probtorch.ops.searching import searchsorted
from probtorch.ops.take_put import put, take

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

    Sample = tuple[tuple[np.ndarray, ...], dict[str, object]]

__all__ = ["SparseMatrix", "is_sparse", "sparse_product", "sparse_rows"]


class SparseMatrix(Protocol):
    """What is asked of a matrix of SciPy."""

    shape: tuple[int, ...]
    dtype: np.dtype
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray

    def tocsr(self) -> SparseMatrix: ...

    def transpose(self) -> SparseMatrix: ...


def is_sparse(x: object) -> TypeGuard[SparseMatrix]:
    """Whether `x` is a sparse matrix or array of SciPy."""
    kind = type(x)
    return kind.__module__.startswith("scipy.sparse") and hasattr(kind, "tocsr")


# ---------------------------------------------------------------------------------- the primitive


def _run(
    starts: np.ndarray,
    columns: np.ndarray,
    weights: np.ndarray,
    t_starts: np.ndarray,
    t_columns: np.ndarray,
    t_weights: np.ndarray,
    x: np.ndarray,
) -> np.ndarray:
    from scipy import sparse  # late: whoever has a matrix of SciPy has loaded it

    device = device_of(x)
    parts = [to_host(a) for a in (weights, columns, starts)]
    shape = (starts.shape[0] - 1, x.shape[0])
    return to_device(sparse.csr_array(tuple(parts), shape=shape) @ to_host(x), device)


def _vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    matrix, turned, x = inputs[:3], inputs[3:6], inputs[6]
    weights = None
    if needs[2]:
        row, column = _row_of_each(matrix), matrix[1]
        weights = total(take(g, (0,), [row]) * take(x, (0,), [column]), 1)
    gx = apply(_SPARSE, (*turned, *matrix, g)) if needs[6] else None
    return None, None, weights, None, None, None, gx


def _jvp(
    tangents: list[TensorBase | None],
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> TensorBase:
    weights, tx = tangents[2], tangents[6]
    slope = wrap(np.zeros(out.array.shape, out.array.dtype))
    if weights is not None:
        terms = reshape(weights, (-1, 1)) * take(inputs[6], (0,), [inputs[1]])
        slope = put(slope, terms, (0,), [_row_of_each(inputs[:3])], True)
    return slope if tx is None else slope + apply(_SPARSE, (*inputs[:6], tx))


def _row_of_each(matrix: tuple[TensorBase, ...]) -> TensorBase:
    starts, columns, _ = matrix
    places = wrap(np.arange(columns.array.shape[0]))
    return searchsorted(starts, places, right=True) - 1


def _samples(rng: np.random.Generator) -> list[Sample]:
    def case(dense: np.ndarray, k: int) -> Sample:
        parts = [*sparse_rows(dense), *sparse_rows(dense.T)]
        return ((*parts, rng.standard_normal((dense.shape[1], k))), {})

    dense = rng.standard_normal((4, 3)) * (rng.random((4, 3)) < 0.5)
    return [case(dense, 1), case(dense, 3), case(np.zeros((2, 3)), 2)]


def sparse_rows(dense: np.ndarray) -> list[np.ndarray]:
    """Return where rows of a dense matrix begin, and columns and numbers of what is not 0."""
    rows, columns = np.nonzero(dense)
    starts = np.searchsorted(rows, np.arange(dense.shape[0] + 1))
    return [starts.astype(np.int64), columns.astype(np.int64), dense[rows, columns]]


def _reference(*inputs: np.ndarray) -> np.ndarray:
    starts, columns, weights, *_, x = inputs
    out = np.zeros((starts.shape[0] - 1, x.shape[1]), x.dtype)
    for row in range(out.shape[0]):
        for at in range(starts[row], starts[row + 1]):
            out[row] += weights[at] * x[columns[at]]
    return out


_SPARSE = structured(
    "sparse_product",
    "contraction",
    run=_run,
    vjp=_vjp,
    jvp=_jvp,
    saves="starts columns t_starts t_columns t_weights x",
    samples=_samples,
    reference=_reference,
    doc="A sparse matrix by rows times the columns of a dense one.",
)


# --------------------------------------------------------------------------------- what users call


def sparse_product(matrix: SparseMatrix, other: TensorLike) -> TensorBase:
    """Return ``matrix @ other`` for a sparse matrix of SciPy, with the gradient in `other`.

    Parameters
    ----------
    matrix : sparse matrix or array of SciPy, shape (m, n)
        Of any format; its numbers are data.
    other : Tensor, shape (n,) or (..., n, k)

    Returns
    -------
    Tensor, shape (m,) or (..., m, k)
        In the wider dtype of the two.

    Raises
    ------
    ShapeError
        If the inner sizes differ.
    DTypeError
        If the numbers are not real.
    """
    x = as_tensor(other, "matmul")
    shape, given = tuple(matrix.shape), tuple(x.array.shape)
    vector = len(given) == 1
    if len(shape) != 2 or not given or given[-1 if vector else -2] != shape[1]:
        raise ShapeError(
            "matmul with a sparse matrix",
            expected=f"a vector or matrix with {shape[-1]} rows" if len(shape) == 2 else "a matrix",
            got=f"{shape} @ {given}",
            fix="check which dim should be summed over",
        )
    dtype = promote_types(promote_types(matrix.dtype, x.array.dtype), float32)
    if dtype.kind != "f":
        raise DTypeError(
            "matmul with a sparse matrix",
            expected="real numbers",
            got=f"{matrix.dtype} @ {x.array.dtype}",
            fix="multiply real and imaginary parts by themselves",
        )
    parts = [wrap(a) for a in (*_by_rows(matrix, dtype), *_by_rows(matrix.transpose(), dtype))]
    x = cast(x, dtype)
    # Batches are further columns.
    batch = given[:-2]
    columns = reshape(
        movedim(x, -2, 0) if batch else x,
        (shape[1], math.prod(batch) * (1 if vector else given[-1])),
    )
    found = apply(_SPARSE, (*parts, columns))
    if vector:
        return reshape(found, (shape[0],))
    found = reshape(found, (shape[0], *batch, given[-1]))
    return movedim(found, 0, -2) if batch else found


def _by_rows(matrix: SparseMatrix, dtype: np.dtype) -> list[np.ndarray]:
    csr = matrix.tocsr()
    return [csr.indptr.astype(np.int64), csr.indices.astype(np.int64), csr.data.astype(dtype)]
