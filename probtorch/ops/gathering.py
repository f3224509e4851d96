"""Selecting along a dim by integers or a mask: gather, scatter and their kin.

Compositions of `take` and `put` (take_put.py). Indices count from 0 here: a negative one is an
error, unlike in ``x[index]``.
"""

from __future__ import annotations

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.core.shape import normalize_dim
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_constant, read
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError, TensorIndexError
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import lt
from probtorch.ops.index_keys import bad_key
from probtorch.ops.indexing import getitem
from probtorch.ops.movement import broadcast_tensors, reshape, slice_
from probtorch.ops.take_put import near, put, take

__all__ = ["gather", "index_select", "masked_select", "one_hot", "scatter"]


def index_select(x: TensorLike, dim: int, index: TensorLike) -> TensorBase:
    """Return the slices of `x` at the 1-d integer tensor `index` along `dim`."""
    x = as_tensor(x, "index_select")
    dim = normalize_dim(dim, x.array.ndim, "index_select")
    index = as_tensor(index, "index_select")
    if not x.array.ndim and index.array.size == 1 and index.array.ndim < 2:
        return reshape(index_select(reshape(x, (1,)), 0, index), ())
    if not x.array.ndim or index.array.ndim > 1:
        raise ShapeError(
            "index_select",
            expected="a tensor with dims, and an index of one dim or none",
            got=f"shapes {x.array.shape} and {index.array.shape}",
            fix="use x[index] for others",
        )
    return take(x, (dim,), [_counted_from_0(index, dim, x, "index_select")])


def gather(x: TensorLike, dim: int, index: TensorLike) -> TensorBase:
    """Return ``out[i][j][k] = x[index[i][j][k]][j][k]`` for dim 0, and likewise for other dims."""
    x, index = as_tensor(x, "gather"), as_tensor(index, "gather")
    dim = _along(index, dim, x, "gather")
    if not x.array.ndim:
        return reshape(gather(reshape(x, (1,)), 0, reshape(index, (1,))), ())
    return take(x, tuple(range(x.array.ndim)), _grid(index, dim, x, "gather"))


def scatter(
    x: TensorLike, dim: int, index: TensorLike, src: TensorLike, *, accumulate: bool = False
) -> TensorBase:
    """Return a copy of `x` with ``out[index[i][j]][j] = src[i][j]``, here for dim 0."""
    x, index = as_tensor(x, "scatter"), as_tensor(index, "scatter")
    src = cast(as_tensor(src, "scatter"), x.array.dtype)
    if src.array.ndim:
        sizes, wanted = src.array.shape, index.array.shape
        # A slice beyond the end would silently be shorter here, and wrong when compiled.
        if len(sizes) != len(wanted) or any(n < m for n, m in zip(sizes, wanted, strict=True)):
            raise ShapeError(
                "scatter",
                expected=f"a source of at least the shape of the index, {wanted}",
                got=str(sizes),
                fix="expand the source, or pass a number",
            )
        src = slice_(src, tuple((0, 1, n) for n in index.array.shape))
    dim = _along(index, dim, x, "scatter")
    if not x.array.ndim:
        x, index, src = (reshape(t, (1,)) for t in (x, index, src))
        return reshape(scatter(x, 0, index, src, accumulate=accumulate), ())
    at = _grid(index, dim, x, "scatter")
    return put(x, src, tuple(range(x.array.ndim)), at, accumulate)


def _along(index: TensorBase, dim: int, x: TensorBase, op: str) -> int:
    """Return `dim` counted from 0, for an index with as many dims as `x`."""
    if index.array.ndim != x.array.ndim:
        raise ShapeError(
            op,
            expected=f"an index with {x.array.ndim} dims",
            got=str(index.array.shape),
            fix="unsqueeze it",
        )
    return normalize_dim(dim, x.array.ndim, op)


def _grid(index: TensorBase, dim: int, x: TensorBase, op: str) -> list[TensorBase]:
    """Return the index for every dim that `index` along `dim` means."""
    shape = index.array.shape
    index = _counted_from_0(index, dim, x, op)
    axes = [
        wrap(np.arange(n).reshape([-1 if j == i else 1 for j in range(len(shape))]))
        for i, n in enumerate(shape)
    ]
    axes[dim] = index
    return axes


def _counted_from_0(index: TensorBase, dim: int, x: TensorBase, op: str) -> TensorBase:
    """Return `index`, of which no element may be negative."""
    if index.array.dtype.kind not in "iu" and index.array.size:
        raise bad_key(index)
    if index.array.dtype.kind == "i" and index.array.size and int(index.array.min()) < 0:
        raise TensorIndexError(
            op,
            expected=f"indices in [0, {x.array.shape[dim] - 1}] for dim {dim}",
            got=str(int(index.array.min())),
            fix="add the size of the dim to count from the end, or use x[index]",
        )
    if not is_constant(index):
        # At each run: out of bounds, where compiled code looks for that.
        return where(index < 0, x.array.shape[dim], index)
    return index


def masked_select(x: TensorLike, mask: TensorLike) -> TensorBase:
    """Return the elements of `x` where `mask` is True, as a 1-d tensor; the two broadcast."""
    x, mask = as_tensor(x, "masked_select"), as_tensor(mask, "masked_select")
    if mask.array.dtype.kind != "b":
        raise DTypeError(
            "masked_select", expected="a boolean mask", got=str(mask.array.dtype), fix="use .bool()"
        )
    x, mask = broadcast_tensors(x, mask)
    return getitem(reshape(x, -1), reshape(mask, -1))


def one_hot(x: TensorLike, num_classes: int = -1) -> TensorBase:
    """Return int64 indicator vectors along a new last dim."""
    x = as_tensor(x, "one_hot")
    if num_classes < 0:
        read("one_hot without num_classes", x)
    if x.array.dtype.kind not in "iu":
        raise DTypeError(
            "one_hot", expected="integers", got=str(x.array.dtype), fix="use .long() first"
        )
    if num_classes < 0 and not x.array.size:
        raise ArgumentError(
            "one_hot",
            expected="num_classes, for no elements",
            got=f"shape {x.array.shape} alone",
            fix="pass num_classes=",
        )
    n = int(x.array.max()) + 1 if num_classes < 0 else num_classes
    if x.array.size and int(x.array.min()) < 0:
        raise TensorIndexError(
            "one_hot",
            expected="classes >= 0",
            got=str(int(x.array.min())),
            fix="categories are numbered from 0",
        )
    if recorder() is not None:
        # A replay checks bounds, but would count from the end: there is no place for n.
        x = where(lt(x, 0), n, x)
    # Written at places, not compared: so that bounds are checked when compiled too.
    (zeros,) = near(x, [wrap(np.zeros((*x.array.shape, n), np.int64))])
    return scatter(zeros, -1, x.unsqueeze(-1), 1)
