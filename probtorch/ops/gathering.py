"""Reading along a dim by integers or a mask: gather and its kin; scattering.py writes.

Compositions of `take` (take_put.py) and of slices. Where a function of PyTorch counts from 0, a
negative index is an error, unlike in ``x[index]``.
"""

from __future__ import annotations

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import unheard, wrap
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.shape import broadcast_shapes, integer, normalize_dim, parse_size
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_constant, read
from probtorch.core.typed import SizeLike, TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError, TensorIndexError
from probtorch.ops.arithmetic import floor_divide, remainder, where
from probtorch.ops.comparisons import lt
from probtorch.ops.index_keys import bad_key, nonzero
from probtorch.ops.indexing import getitem
from probtorch.ops.movement import broadcast_tensors, expand, reshape, slice_
from probtorch.ops.take_put import take as take_at
from probtorch.ops.take_put import take_along

__all__ = [
    "argwhere",
    "gather",
    "index_select",
    "masked_select",
    "narrow",
    "repeat_interleave",
    "select",
    "take",
    "take_along_dim",
    "unravel_index",
]


@takes_out
def index_select(
    input: TensorLike, dim: int, index: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return the slices of `input` at the 1-d integer tensor `index` along `dim`."""
    input = as_tensor(input, "index_select")
    dim = normalize_dim(dim, input.array.ndim, "index_select")
    index = as_tensor(index, "index_select")
    if not input.array.ndim and index.array.size == 1 and index.array.ndim < 2:
        return reshape(index_select(reshape(input, (1,)), 0, index), ())
    if not input.array.ndim or index.array.ndim > 1:
        raise ShapeError(
            "index_select",
            expected="a tensor with dims, and an index of one dim or none",
            got=f"shapes {input.array.shape} and {index.array.shape}",
            fix="use x[index] for others",
        )
    return take_at(input, (dim,), [counted_from_0(index, dim, input, "index_select")])


@takes_out
def gather(
    input: TensorLike,
    dim: int,
    index: TensorLike,
    *,
    sparse_grad: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``out[i][j][k] = input[index[i][j][k]][j][k]`` for dim 0, and so for others.

    `sparse_grad` is accepted for PyTorch's sake: gradients are dense.
    """
    input, index = as_tensor(input, "gather"), as_tensor(index, "gather")
    dim = along(index, dim, input, "gather")
    if not input.array.ndim:
        return reshape(gather(reshape(input, (1,)), 0, reshape(index, (1,))), ())
    if input.array.ndim == 1:
        return take_at(input, (0,), [counted_from_0(index, dim, input, "gather")])
    if unheard() and index.array.size:
        found = take_along(input, counted_from_0(index, dim, input, "gather"), dim)
        if found is not None:
            return found
    return take_at(input, tuple(range(input.array.ndim)), grid(index, dim, input, "gather"))


def along(index: TensorBase, dim: int, x: TensorBase, op: str) -> int:
    """Return `dim` counted from 0, for an index with as many dims as `x`."""
    if index.array.ndim != x.array.ndim:
        raise ShapeError(
            op,
            expected=f"an index with {x.array.ndim} dims",
            got=str(index.array.shape),
            fix="unsqueeze it",
        )
    return normalize_dim(dim, x.array.ndim, op)


def grid(index: TensorBase, dim: int, x: TensorBase, op: str) -> list[TensorBase]:
    """Return the index for every dim that `index` along `dim` means."""
    shape = index.array.shape
    index = counted_from_0(index, dim, x, op)
    axes = [
        wrap(np.arange(n).reshape([-1 if j == i else 1 for j in range(len(shape))]))
        for i, n in enumerate(shape)
    ]
    axes[dim] = index
    return axes


def counted_from_0(index: TensorBase, dim: int, x: TensorBase, op: str) -> TensorBase:
    """Return `index`, of which no element may be negative."""
    if index.array.dtype.kind not in "iu" and index.array.size:
        raise bad_key(index)
    if index.array.dtype.kind == "i" and index.array.size and _least(index.array) < 0:
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


def _least(x: np.ndarray) -> int:
    return np.minimum.reduce(x, None) if type(x) is np.ndarray else x.min()


@takes_out
def masked_select(
    input: TensorLike, mask: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return the elements of `input` where `mask` is True, as a 1-d tensor; the two broadcast."""
    input, mask = as_tensor(input, "masked_select"), as_tensor(mask, "masked_select")
    if mask.array.dtype.kind != "b":
        raise DTypeError(
            "masked_select", expected="a boolean mask", got=str(mask.array.dtype), fix="use .bool()"
        )
    input, mask = broadcast_tensors(input, mask)
    return getitem(reshape(input, -1), reshape(mask, -1))


@takes_out
def take_along_dim(
    input: TensorLike, indices: TensorLike, dim: int | None = None, *, out: TensorBase | None = None
) -> TensorBase:
    """Return the elements of `input` at `indices` along `dim`, the other dims broadcast.

    As `gather`, which does not broadcast, nor count negative indices from the end. With
    ``dim=None`` both are flattened.
    """
    input, indices = as_tensor(input, "take_along_dim"), as_tensor(indices, "take_along_dim")
    if dim is None:
        input, indices, dim = reshape(input, -1), reshape(indices, -1), 0
    dim = along(indices, dim, input, "take_along_dim")
    shapes = [t.array.shape[:dim] + t.array.shape[dim + 1 :] for t in (input, indices)]
    rest = broadcast_shapes(*shapes, op="take_along_dim")
    input, indices = (
        expand(t, (*rest[:dim], t.array.shape[dim], *rest[dim:])) for t in (input, indices)
    )
    if indices.array.dtype.kind == "i" and not (unheard() and _none_below_0(indices.array)):
        indices = where(lt(indices, 0), indices + input.array.shape[dim], indices)
    return gather(input, dim, indices)


def _none_below_0(x: np.ndarray) -> bool:
    return bool(not x.size or x.min() >= 0)


@takes_out
def take(input: TensorLike, index: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return the elements of `input` at places of its flattened form, in the shape of `index`.

    Negative places count from the end.
    """
    input, index = as_tensor(input, "take"), as_tensor(index, "take")
    return take_at(reshape(input, -1), (0,), [index])


@in_our_words
def select(input: TensorLike, dim: int, index: int) -> TensorBase:
    """Return the slice of `input` at one index of `dim`, without that dim, as a view."""
    input = as_tensor(input, "select")
    dim = normalize_dim(dim, _with_dims(input, "select"), "select")
    key: list[slice | int] = [slice(None)] * dim
    return getitem(input, (*key, integer("select", "index", index)))


def narrow(input: TensorLike, dim: int, start: int | TensorBase, length: int) -> TensorBase:
    """Return the `length` slices of `input` from `start` on along `dim`, as a view.

    Raises
    ------
    TensorIndexError
        If they reach beyond the end.
    """
    input = as_tensor(input, "narrow")
    dim = normalize_dim(dim, _with_dims(input, "narrow"), "narrow")
    n, begin = input.array.shape[dim], integer("narrow", "start", start)
    length = integer("narrow", "length", length)
    first = begin + n if begin < 0 else begin
    if not 0 <= first <= n or not 0 <= length <= n - first:
        raise TensorIndexError(
            "narrow",
            expected=f"a start and a length within dim {dim} of size {n}",
            got=f"start={start}, length={length}",
            fix="check both, or use a slice, which is cut off at the end: x[start:stop]",
        )
    spec = [(0, 1, s) for s in input.array.shape]
    spec[dim] = (first, 1, length)
    return slice_(input, tuple(spec))


@in_our_words
def repeat_interleave(
    input: TensorLike,
    repeats: TensorLike | None = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> TensorBase:
    """Return `input` with each slice along `dim` repeated, one after the other.

    Parameters
    ----------
    input : Tensor
        Of integers, and alone: how often each of 0, 1, 2 ... is repeated.
    repeats : int or Tensor of integers
        One number, or one for each slice.
    dim : int, optional
        `input` is flattened without it.
    output_size : int, optional
        Accepted so that scripts run; the size follows from `repeats`.
    """
    given = as_tensor(input, "repeat_interleave")
    counts = as_tensor(given if repeats is None else repeats, "repeat_interleave")
    input = wrap(np.arange(given.array.size)) if repeats is None else given
    if dim is None:
        input, dim = reshape(input, -1), 0
    dim = normalize_dim(dim, _with_dims(input, "repeat_interleave"), "repeat_interleave")
    n = input.array.shape[dim]
    if counts.array.dtype.kind not in "iu" or counts.array.ndim > 1:
        raise DTypeError(
            "repeat_interleave",
            expected="one integer, or a vector of integers",
            got=f"{counts.array.dtype} of shape {counts.array.shape}",
            fix="convert the counts with .long()",
        )
    read("the counts of repeat_interleave", counts)
    often = to_host(counts.array).reshape(-1)
    if often.size not in (1, n):
        raise ShapeError(
            "repeat_interleave",
            expected=f"1 or {n} counts, the size of dim {dim}",
            got=str(often.size),
            fix="give one count for each slice",
        )
    if often.size and often.min() < 0:
        raise ArgumentError(
            "repeat_interleave", expected="counts >= 0", got=str(often.min()), fix="check them"
        )
    places = np.repeat(np.arange(n), often if often.size == n else int(often[0]))
    return take_at(input, (dim,), [wrap(places)])


def argwhere(input: TensorLike) -> TensorBase:
    """Return the places where `input` is not 0 as rows, shape (n, ndim)."""
    return nonzero(input)


def unravel_index(indices: TensorLike, shape: SizeLike) -> tuple[TensorBase, ...]:
    """Return the index along each dim of a shape for places in its flattened form."""
    left, out = as_tensor(indices, "unravel_index"), []
    for n in reversed(parse_size((shape,))):
        out.append(remainder(left, n))
        left = floor_divide(left, n)
    return tuple(reversed(out))


def _with_dims(x: TensorBase, op: str) -> int:
    if not x.array.ndim:
        raise ShapeError(
            op, expected="at least one dim", got="a 0-d tensor", fix="reshape it to (1,)"
        )
    return x.array.ndim
