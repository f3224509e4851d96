"""Diagonals and triangles of matrices."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.backends.registry import device_of
from probtorch.core.dispatch import apply, unseen, wrap
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.shape import normalize_dim
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ShapeError
from probtorch.ops.families import linear
from probtorch.ops.movement import movedim
from probtorch.ops.pieces import has_dims

__all__ = ["diag_embed", "diagonal", "tril", "triu"]


def _run_diagonal(x: np.ndarray, offset: int) -> np.ndarray:
    out = x.diagonal(offset, -2, -1)
    if type(x) is np.ndarray and x.flags.writeable:
        out.setflags(write=True)  # a view like others, which NumPy marks read-only for now
    return out


_DIAGONAL = linear(
    "diagonal",
    "movement",
    run=_run_diagonal,
    transpose=lambda g, x, offset: apply(
        _DIAG_EMBED, (g,), {"offset": offset, "shape": x.array.shape[-2:]}
    ),
    core="(m,n)->(k)",
    native="view",
    samples=lambda rng: [
        ((rng.standard_normal((2, 3, 4)),), {"offset": 1}),
        ((rng.standard_normal((3, 3)),), {"offset": 0}),
    ],
    reference=lambda x, offset: np.diagonal(x, offset, -2, -1),
    view=True,
    doc="Diagonal of the last two dims.",
)


def diagonal(input: TensorLike, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorBase:
    """Return the diagonal of `dim1` and `dim2` as the last dim, `offset` above the main one."""
    input = as_tensor(input, "diagonal")
    ndim = input.array.ndim
    dims = normalize_dim(dim1, ndim, "diagonal"), normalize_dim(dim2, ndim, "diagonal")
    if dims[0] == dims[1]:
        raise ShapeError(
            "diagonal",
            expected="two different dims",
            got=f"dim1={dim1} and dim2={dim2} of shape {input.array.shape}",
            fix="a diagonal runs through matrices; unsqueeze a vector",
        )
    moved = input if dims == (ndim - 2, ndim - 1) else movedim(input, dims, (-2, -1))
    return apply(_DIAGONAL, (moved,), {"offset": offset})


def _run_diag_embed(x: np.ndarray, offset: int, shape: tuple[int, ...]) -> np.ndarray:
    out = namespace(x).zeros(x.shape[:-1] + shape, x.dtype)
    i = np.arange(x.shape[-1])
    out[..., i + max(-offset, 0), i + max(offset, 0)] = x
    return out


def _diag_embed_reference(x: np.ndarray, offset: int, shape: tuple[int, ...]) -> np.ndarray:
    out = np.zeros((*x.shape[:-1], *shape), x.dtype)
    for k in range(x.shape[-1]):
        out[..., k + max(-offset, 0), k + max(offset, 0)] = x[..., k]
    return out


_DIAG_EMBED = linear(
    "diag_embed",
    "movement",
    run=_run_diag_embed,
    transpose=lambda g, x, offset, shape: apply(_DIAGONAL, (g,), {"offset": offset}),
    core="(k)->(m,n)",
    samples=lambda rng: [((rng.standard_normal((2, 3)),), {"offset": 1, "shape": (3, 4)})],
    reference=_diag_embed_reference,
    doc="Matrices with the last dim on a diagonal and zeros elsewhere.",
)


@in_our_words
def diag_embed(input: TensorLike, offset: int = 0, dim1: int = -2, dim2: int = -1) -> TensorBase:
    """Return square matrices with the last dim of `input` on the diagonal `offset`.

    `dim1` and `dim2` are the dims of their rows and columns in the result.
    """
    input = as_tensor(input, "diag_embed")
    has_dims("diag_embed", input)
    n = input.array.shape[-1] + abs(offset)
    made = apply(_DIAG_EMBED, (input,), {"offset": offset, "shape": (n, n)})
    return made if (dim1, dim2) == (-2, -1) else movedim(made, (-2, -1), (dim1, dim2))


_LARGE = 65536  # of larger matrices no mask is kept


@functools.lru_cache(16)
def _kept(
    n: int, m: int, diagonal: int, keep: Callable[[np.ndarray, int], np.ndarray]
) -> np.ndarray:
    """Return where in a matrix `keep` holds of the number of the diagonal, read-only."""
    columns = np.arange(m)
    rows = columns if n == m else np.arange(n)
    kept = keep(columns - rows[:, None], diagonal)
    kept.setflags(write=False)
    return kept


def _triangle(
    x: TensorLike, diagonal: int, keep: Callable[[np.ndarray, int], np.ndarray]
) -> TensorBase:
    x = as_tensor(x, "tril")
    if x.array.ndim < 2:
        raise ShapeError(
            "tril, triu",
            expected="matrices in the last two dims",
            got=f"shape {x.array.shape}",
            fix="unsqueeze a vector into a matrix",
        )
    n, m = x.array.shape[-2:]
    kept = (_kept if n * m <= _LARGE else _kept.__wrapped__)(n, m, diagonal, keep)
    if unseen(x):
        return wrap(np.where(kept, x.array, x.array.dtype.type(0)))
    mask = as_tensor(kept)
    if type(x.array) is not np.ndarray:
        mask = mask.to(device=device_of(x.array))
    # A choice, not a product: what is left out may be nan.
    return x.where(mask, False if x.array.dtype.kind == "b" else 0)


@takes_out
def tril(input: TensorLike, diagonal: int = 0, *, out: TensorBase | None = None) -> TensorBase:
    """Return `input` with the elements above diagonal `diagonal` of its last two dims set to 0."""
    return _triangle(input, diagonal, np.less_equal)


@takes_out
def triu(input: TensorLike, diagonal: int = 0, *, out: TensorBase | None = None) -> TensorBase:
    """Return `input` with the elements below diagonal `diagonal` of its last two dims set to 0."""
    return _triangle(input, diagonal, np.greater_equal)
