"""Joining tensors and taking them apart, by the names that say along which dim.

Compositions of `cat`, `split` and their kin (pieces.py); what they return are views.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import promote
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.refusals import shown
from probtorch.core.shape import integer, normalize_dim
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import SizeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.movement import expand, reshape
from probtorch.ops.pieces import cat, split, stack
from probtorch.ops.take_put import near, take

__all__ = [
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block_diag",
    "cartesian_prod",
    "column_stack",
    "combinations",
    "dsplit",
    "dstack",
    "hsplit",
    "hstack",
    "tensor_split",
    "vsplit",
    "vstack",
]


# ---------------------------------------------------------------------------------- at least


def _at_least(ndim: int, op: str, tensors: Sequence[TensorLike]) -> tuple[TensorBase, ...]:
    """Return tensors with leading dims of size 1 as needed; the third dim comes last."""
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tensors[0]
    found = []
    for t in tensors:
        x = as_tensor(t, op)
        shape = x.array.shape
        if len(shape) < ndim:
            lead = (1,) * (min(ndim, 2) - len(shape))
            shape = (*lead, *shape, *((1,) if ndim == 3 else ()))
        found.append(reshape(x, shape))
    return tuple(found)


def _one_or_all(
    given: Sequence[TensorLike], found: tuple[TensorBase, ...]
) -> TensorBase | tuple[TensorBase, ...]:
    single = len(given) == 1 and not isinstance(given[0], (list, tuple))
    return found[0] if single else found


def atleast_1d(*tensors: TensorLike) -> TensorBase | tuple[TensorBase, ...]:
    """Return each tensor with at least one dim: one tensor, or a tuple of them."""
    return _one_or_all(tensors, _at_least(1, "atleast_1d", tensors))


def atleast_2d(*tensors: TensorLike) -> TensorBase | tuple[TensorBase, ...]:
    """Return each tensor with at least two dims; a vector is a row."""
    return _one_or_all(tensors, _at_least(2, "atleast_2d", tensors))


def atleast_3d(*tensors: TensorLike) -> TensorBase | tuple[TensorBase, ...]:
    """Return each tensor with at least three dims; (n,) becomes (1, n, 1), (m, n) (m, n, 1)."""
    return _one_or_all(tensors, _at_least(3, "atleast_3d", tensors))


# ---------------------------------------------------------------------------------- joining


def _stacked(op: str, ndim: int, dim: int, tensors: Iterable[TensorLike]) -> TensorBase:
    found = _at_least(ndim, op, list(tensors))
    if not found:
        raise ArgumentError(
            op,
            expected="at least one tensor",
            got="an empty sequence",
            fix="pass the tensors to join",
        )
    return cat(found, 0 if found[0].array.ndim == 1 else dim)


@takes_out
def hstack(tensors: Iterable[TensorLike], *, out: TensorBase | None = None) -> TensorBase:
    """Join side by side: along dim 1, vectors and numbers along dim 0."""
    return _stacked("hstack", 1, 1, tensors)


@takes_out
def vstack(tensors: Iterable[TensorLike], *, out: TensorBase | None = None) -> TensorBase:
    """Join on top of each other: along dim 0, each vector as a row."""
    return _stacked("vstack", 2, 0, tensors)


@takes_out
def dstack(tensors: Iterable[TensorLike], *, out: TensorBase | None = None) -> TensorBase:
    """Join along dim 2, matrices and vectors as slices of depth 1."""
    return _stacked("dstack", 3, 2, tensors)


@takes_out
def column_stack(tensors: Iterable[TensorLike], *, out: TensorBase | None = None) -> TensorBase:
    """Join side by side, each vector as a column."""
    found = [as_tensor(t, "column_stack") for t in tensors]
    return hstack([reshape(t, (-1, 1)) if t.array.ndim < 2 else t for t in found])


def block_diag(*tensors: TensorLike) -> TensorBase:
    """Return the matrix with these matrices on its diagonal; a vector counts as a row.

    Raises
    ------
    ShapeError
        For a tensor with more than two dims.
    """
    blocks = [as_tensor(t, "block_diag") for t in tensors]
    for i, t in enumerate(blocks):
        if t.array.ndim > 2:
            raise ShapeError(
                "block_diag",
                expected="tensors with at most 2 dims",
                got=f"shape {t.array.shape} for tensor {i}",
                fix="pass the matrices of a batch one by one: block_diag(*batch)",
            )
    blocks = list(_at_least(2, "block_diag", blocks)) or [wrap(np.zeros((1, 0), np.float32))]
    dtype = promote([as_tensor(t).array for t in tensors] or [blocks[0].array])
    width, at, rows = sum(t.array.shape[1] for t in blocks), 0, []
    for t in blocks:
        height, size = t.array.shape
        sides = [np.zeros((height, n), dtype) for n in (at, width - at - size)]
        left, right = near(t, [wrap(side) for side in sides], dtype)
        rows.append(cat([left, cast(t, dtype), right], 1))
        at += size
    return cat(rows, 0)


def cartesian_prod(*tensors: TensorLike) -> TensorBase:
    """Return all combinations of one element of each vector, as rows; of one vector, itself."""
    found = [as_tensor(t, "cartesian_prod") for t in tensors]
    for i, t in enumerate(found):
        if t.array.ndim != 1:
            raise ShapeError(
                "cartesian_prod",
                expected="vectors",
                got=f"shape {t.array.shape} for tensor {i}",
                fix="flatten it",
            )
    if len(found) == 1:
        return found[0]
    shape = tuple(t.array.shape[0] for t in found)
    columns = [
        reshape(expand(reshape(t, [-1 if j == i else 1 for j in range(len(found))]), shape), -1)
        for i, t in enumerate(found)
    ]
    if not columns:
        raise ArgumentError(
            "cartesian_prod", expected="at least one vector", got="none", fix="pass the vectors"
        )
    return stack(columns, 1)


@in_our_words
def combinations(input: TensorLike, r: int = 2, with_replacement: bool = False) -> TensorBase:
    """Return the combinations of `r` elements of a vector as rows, as `itertools` orders them."""
    input = as_tensor(input, "combinations")
    if input.array.ndim != 1:
        raise ShapeError(
            "combinations", expected="a vector", got=f"shape {input.array.shape}", fix="flatten it"
        )
    if r < 0:
        raise ArgumentError(
            "combinations", expected="r >= 0", got=str(r), fix="say how many elements a row has"
        )
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(choose(range(input.array.shape[0]), r))
    if not rows or not r:
        return reshape(input[:0], (0, r) if r else (0,))
    return take(input, (0,), [wrap(np.array(rows, np.int64))])


# ---------------------------------------------------------------------------------- taking apart


@in_our_words
def tensor_split(
    input: TensorLike, indices_or_sections: SizeLike | TensorBase, dim: int = 0
) -> tuple[TensorBase, ...]:
    """Return `input` in so many pieces along `dim`, the first ones larger by 1, or cut at indices.

    Parameters
    ----------
    input : Tensor
    indices_or_sections : int, sequence of int or Tensor
        The number of pieces, or where each piece after the first begins.
    dim : int
    """
    input = as_tensor(input, "tensor_split")
    n = _size("tensor_split", input, dim)
    where = indices_or_sections
    if isinstance(where, TensorBase):
        read("tensor_split", where)
        where = where.array.tolist()
    if not isinstance(where, (list, tuple)):
        where = integer("tensor_split", "indices_or_sections", where)
        if not 1 <= where < 2**31:
            raise ArgumentError(
                "tensor_split",
                expected="sections from 1 to 2**31",
                got=shown(where),
                fix="say how many pieces",
            )
        sizes = [n // where + (i < n % where) for i in range(where)]
        return split(input, sizes, dim)
    places = [integer("tensor_split", "indices_or_sections", i) for i in where]
    return _cut("tensor_split", input, places, dim, n)


def _cut(op: str, x: TensorBase, indices: list[int], dim: int, n: int) -> tuple[TensorBase, ...]:
    from_0 = [min(max(i + n if i < 0 else i, 0), n) for i in indices]
    spec = [slice(None)] * x.array.ndim
    out = []
    for start, stop in zip([0, *from_0], [*from_0, n], strict=True):
        spec[normalize_dim(dim, x.array.ndim, op)] = slice(start, max(stop, start))
        out.append(x[tuple(spec)])
    return tuple(out)


def _size(op: str, x: TensorBase, dim: int) -> int:
    if not x.array.ndim:
        raise ShapeError(
            op, expected="at least one dim", got="a 0-d tensor", fix="reshape it to (1,)"
        )
    return x.array.shape[normalize_dim(dim, x.array.ndim, op)]


def _split_evenly(
    op: str, x: TensorLike, where: SizeLike | TensorBase, dim: int, least: int
) -> tuple[TensorBase, ...]:
    x = as_tensor(x, op)
    if x.array.ndim < least:
        raise ShapeError(
            op,
            expected=f"at least {least} dim{'s' if least > 1 else ''}",
            got=f"shape {x.array.shape}",
            fix="use tensor_split, which is told the dim",
        )
    n = _size(op, x, dim)
    if isinstance(where, int) and (where < 1 or n % where):
        raise ArgumentError(
            op,
            expected=f"a divisor of {n}, the size of dim {dim}",
            got=str(where),
            fix="use tensor_split for pieces of unequal size",
        )
    return tensor_split(x, where, dim)


def hsplit(input: TensorLike, indices_or_sections: SizeLike | TensorBase) -> tuple[TensorBase, ...]:
    """Return equal pieces along dim 1 (of a vector along dim 0), or cut at indices."""
    input = as_tensor(input, "hsplit")
    return _split_evenly("hsplit", input, indices_or_sections, int(input.array.ndim > 1), 1)


def vsplit(input: TensorLike, indices_or_sections: SizeLike | TensorBase) -> tuple[TensorBase, ...]:
    """Return equal pieces along dim 0 of a tensor with at least two dims, or cut at indices."""
    return _split_evenly("vsplit", input, indices_or_sections, 0, 2)


def dsplit(input: TensorLike, indices_or_sections: SizeLike | TensorBase) -> tuple[TensorBase, ...]:
    """Return equal pieces along dim 2 of a tensor with at least three dims, or cut at indices."""
    return _split_evenly("dsplit", input, indices_or_sections, 2, 3)
