"""Writing along a dim by integers or a mask: scatter and its kin; gathering.py reads.

Compositions of `put` (take_put.py) and `where`. All return a copy; the in-place forms of Tensor
write the result back. Where a function of PyTorch counts from 0, a negative index is an error.
"""

from __future__ import annotations

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import recorder, unseen, wrap
from probtorch.core.dtype import int64
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.shape import integer, normalize_dim
from probtorch.core.signatures import also_called
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import Shape, TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError, TensorIndexError
from probtorch.ops.arithmetic import clone, where
from probtorch.ops.comparisons import ge, logical_and, lt
from probtorch.ops.diagonals import diagonal
from probtorch.ops.fused import whole_factors
from probtorch.ops.gathering import along, counted_from_0, grid, select
from probtorch.ops.movement import broadcast_tensors, movedim, reshape, slice_
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import cumsum
from probtorch.ops.take_put import near, put, slice_put, take

__all__ = [
    "diagonal_scatter",
    "index_add",
    "index_copy",
    "index_fill",
    "masked_fill",
    "masked_scatter",
    "one_hot",
    "put_flat",
    "scatter",
    "scatter_add",
    "select_scatter",
    "slice_scatter",
]


@also_called("scatter", value="src")
@takes_out
def scatter(
    input: TensorLike,
    dim: int,
    index: TensorLike,
    src: TensorLike,
    *,
    accumulate: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return a copy of `input` with ``out[index[i][j]][j] = src[i][j]``, here for dim 0."""
    input, index = as_tensor(input, "scatter"), as_tensor(index, "scatter")
    src = cast(as_tensor(src, "scatter", input.array.dtype), input.array.dtype)
    if not index.array.size and index.array.ndim == input.array.ndim:
        return clone(input)
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
    dim = along(index, dim, input, "scatter")
    if not input.array.ndim:
        input, index, src = (reshape(t, (1,)) for t in (input, index, src))
        return reshape(scatter(input, 0, index, src, accumulate=accumulate), ())
    at = grid(index, dim, input, "scatter")
    return put(input, src, tuple(range(input.array.ndim)), at, accumulate)


@in_our_words
def one_hot(tensor: TensorLike, num_classes: int = -1) -> TensorBase:
    """Return int64 indicator vectors along a new last dim."""
    tensor = as_tensor(tensor, "one_hot")
    if num_classes < 0:
        read("one_hot without num_classes", tensor)
    if tensor.array.dtype.kind not in "iu":
        raise DTypeError(
            "one_hot", expected="integers", got=str(tensor.array.dtype), fix="use .long() first"
        )
    if num_classes < 0 and not tensor.array.size:
        raise ArgumentError(
            "one_hot",
            expected="num_classes, for no elements",
            got=f"shape {tensor.array.shape} alone",
            fix="pass num_classes=",
        )
    n = int(tensor.array.max()) + 1 if num_classes < 0 else num_classes
    if tensor.array.size and int(tensor.array.min()) < 0:
        raise TensorIndexError(
            "one_hot",
            expected="classes >= 0",
            got=str(int(tensor.array.min())),
            fix="categories are numbered from 0",
        )
    if recorder() is not None:
        # A replay checks bounds, but would count from the end: there is no place for n.
        tensor = where(lt(tensor, 0), n, tensor)
    elif type(tensor.array) is np.ndarray and (num_classes < 0 or _all_below(tensor.array, n)):
        places = tensor.array.reshape(-1)
        marked = np.zeros((places.size, n), np.int64)
        marked[np.arange(places.size), places] = 1
        return wrap(marked.reshape(*tensor.array.shape, n))
    # Written at places, not compared: so that bounds are checked when compiled too.
    (zeros,) = near(tensor, [wrap(np.zeros((*tensor.array.shape, n), np.int64))])
    return scatter(zeros, -1, tensor.unsqueeze(-1), 1)


def _all_below(x: np.ndarray, n: int) -> bool:
    return not x.size or int(x.max()) < n


# ------------------------------------------------------------------------------------ by one index


@takes_out
def scatter_add(
    input: TensorLike,
    dim: int,
    index: TensorLike,
    src: TensorLike,
    *,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return a copy of `input` with ``out[index[i][j]][j] += src[i][j]``, here for dim 0."""
    if unseen(input, index, src) and (quick := _added(input, dim, index, src)) is not None:
        return quick
    input, src = as_tensor(input, "scatter_add"), as_tensor(src, "scatter_add")
    if src.array.dtype != input.array.dtype:
        raise other_dtype("scatter_add", input, src)
    return scatter(input, dim, index, src, accumulate=True)


def _added(input: TensorLike, dim: int, index: TensorLike, src: TensorLike) -> TensorBase | None:
    """Return what `scatter_add` does where all operands are vectors or matrices that fit, as they
    mostly are, and nobody asks how; else None.
    """
    if not (
        isinstance(input, TensorBase)
        and isinstance(index, TensorBase)
        and isinstance(src, TensorBase)
    ):
        return None
    a, i, v = input.array, index.array, src.array
    n = a.ndim
    if i.ndim != n or v.shape != i.shape or v.dtype is not a.dtype or i.dtype is not int64:
        return None
    if not 0 < n < 3 or type(dim) is not int or not -n <= dim < n or not i.size:
        return None
    dim %= n
    # Numbers below 0 are large ones as well.
    if i.view(np.uint64).max() >= a.shape[dim] or (n == 2 and i.shape[1 - dim] > a.shape[1 - dim]):
        return None
    out = a.copy()
    if n == 1:
        np.add.at(out, i, v)
        return wrap(out)
    other = np.arange(i.shape[1 - dim])
    places = i * a.shape[1] + other if dim == 0 else i + (other * a.shape[1])[:, None]
    np.add.at(out.reshape(-1), places.reshape(-1), v.reshape(-1))
    return wrap(out)


@takes_out
def index_add(
    input: TensorLike,
    dim: int,
    index: TensorLike,
    source: TensorLike,
    *,
    alpha: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return a copy of `input` with the slices of `source`, times `alpha`, added at `index`.

    Parameters
    ----------
    input : Tensor
    dim : int
    index : Tensor of integers, shape (n,)
        Repeated ones add up.
    source : Tensor
        Of the shape of `input`, but `n` along `dim`.
    alpha : float

    Raises
    ------
    DTypeError
        If `alpha` is a fraction and the tensors are integers.
    """
    input = as_tensor(input, "index_add")
    whole_factors("index_add", input.array.dtype, alpha=alpha)
    whole, dim, at, values = fitting_slices("index_add", input, dim, index, source)
    values = values if alpha == 1 else values * alpha
    return reshape(put(whole, values, (dim,), [at], True), input.array.shape)


@takes_out
def index_copy(
    input: TensorLike,
    dim: int,
    index: TensorLike,
    source: TensorLike,
    *,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return a copy of `input` with the slices of `source` written at `index` along `dim`."""
    input = as_tensor(input, "index_copy")
    whole, dim, at, values = fitting_slices("index_copy", input, dim, index, source)
    return reshape(put(whole, values, (dim,), [at], False), input.array.shape)


def index_fill(x: TensorLike, dim: int, index: TensorLike, value: TensorLike) -> TensorBase:
    """Return a copy of `x` with one number written in the slices at `index` along `dim`.

    Negative indices count from the end.
    """
    x = as_tensor(x, "index_fill")
    value = _number("index_fill", x, value)
    if not x.array.ndim:
        return reshape(index_fill(reshape(x, (1,)), 0, index, value), ())
    index = as_tensor(index, "index_fill")
    if index.array.ndim > 1:
        raise ShapeError(
            "index_fill",
            expected="an index of one dim",
            got=str(index.array.shape),
            fix="use scatter",
        )
    return put(x, value, (normalize_dim(dim, x.array.ndim, "index_fill"),), [index], False)


def fitting_slices(
    op: str, x: TensorLike, dim: int, index: TensorLike, source: TensorLike
) -> tuple[TensorBase, int, TensorBase, TensorBase]:
    """Return what writes slices: `x`, the dim from 0, the index from 0 and slices that fit."""
    x, source = as_tensor(x, op), as_tensor(source, op)
    if source.array.dtype != x.array.dtype:
        raise other_dtype(op, x, source)
    if not x.array.ndim:
        x, source = reshape(x, (1,)), reshape(source, -1)
    dim = normalize_dim(dim, x.array.ndim, op)
    index = _vector(op, index, dim, x)
    wanted = (*x.array.shape[:dim], index.array.shape[0], *x.array.shape[dim + 1 :])
    if source.array.shape != wanted:
        raise ShapeError(
            op,
            expected=f"a source of shape {wanted}: of x, but one slice for each index",
            got=str(source.array.shape),
            fix="expand or reshape the source",
        )
    return x, dim, index, source


def _vector(op: str, index: TensorLike, dim: int, x: TensorBase) -> TensorBase:
    index = as_tensor(index, op)
    if index.array.ndim > 1:
        raise ShapeError(
            op, expected="an index of one dim", got=str(index.array.shape), fix="use scatter"
        )
    return counted_from_0(reshape(index, -1), dim, x, op)


def other_dtype(op: str, x: TensorBase, source: TensorBase) -> DTypeError:
    """Return the error for a source whose dtype is not that of `x`."""
    return DTypeError(
        op,
        expected=f"a source of dtype {x.array.dtype}, that of x",
        got=str(source.array.dtype),
        fix=f"convert it with .to({x.array.dtype})",
    )


def _number(op: str, x: TensorBase, value: TensorLike) -> TensorBase:
    """Return one number in the dtype of `x`."""
    value = as_tensor(value, op, x.array.dtype)
    if value.array.ndim:
        raise ShapeError(
            op,
            expected="one number",
            got=f"shape {value.array.shape}",
            fix="use where(mask, value, x) for values of their own",
        )
    dtypes.check_fits(op, value.array, x.array.dtype)
    return near(x, [cast(value, x.array.dtype)], None)[0]


def put_flat(
    x: TensorLike, index: TensorLike, source: TensorLike, accumulate: bool = False
) -> TensorBase:
    """Return a copy of `x` with `source` written or added at places of its flattened form.

    Negative places count from the end. As a method of Tensor it is called `put`.
    """
    x, index, source = (as_tensor(t, "put") for t in (x, index, source))
    if source.array.dtype != x.array.dtype:
        raise other_dtype("put", x, source)
    if source.array.size != index.array.size:
        raise ShapeError(
            "put",
            expected=f"as many elements as places, {index.array.size}",
            got=str(source.array.size),
            fix="expand the source",
        )
    values = reshape(source, -1)
    found = put(reshape(x, -1), values, (0,), [reshape(index, -1)], accumulate)
    return reshape(found, x.array.shape)


# ---------------------------------------------------------------------------------- by a mask


def masked_fill(x: TensorLike, mask: TensorLike, value: TensorLike) -> TensorBase:
    """Return `x` with one number where `mask` is True; the two broadcast."""
    x, mask = as_tensor(x, "masked_fill"), _mask("masked_fill", mask)
    return where(mask, _number("masked_fill", x, value), x)


def masked_scatter(x: TensorLike, mask: TensorLike, source: TensorLike) -> TensorBase:
    """Return `x` with the first elements of `source`, in their order, where `mask` is True.

    Raises
    ------
    TensorIndexError
        If `source` has less elements than `mask` has places.
    """
    x, source = as_tensor(x, "masked_scatter"), as_tensor(source, "masked_scatter")
    if source.array.dtype != x.array.dtype:
        raise other_dtype("masked_scatter", x, source)
    x, mask = broadcast_tensors(x, _mask("masked_scatter", mask))
    if not x.array.size:
        return x
    # One element more, so that an empty source has one for the places that are not written.
    (more,) = near(source, [wrap(np.zeros(1, source.array.dtype))], None)
    elements = cat([reshape(source, -1), more])
    places = cumsum(reshape(cast(mask, dtypes.int64), -1), 0) - 1
    beyond = logical_and(reshape(mask, -1), ge(places, source.array.size))
    places = where(reshape(mask, -1), where(beyond, source.array.size + 1, places), 0)
    return where(mask, reshape(take(elements, (0,), [places]), x.array.shape), x)


def _mask(op: str, mask: TensorLike) -> TensorBase:
    mask = as_tensor(mask, op)
    if mask.array.dtype.kind != "b":
        raise DTypeError(
            op, expected="a boolean mask", got=str(mask.array.dtype), fix="use .bool()"
        )
    return mask


# ------------------------------------------------------------------------- a view, written to


@in_our_words
def select_scatter(input: TensorLike, src: TensorLike, dim: int, index: int) -> TensorBase:
    """Return a copy of `input` with `src` written at one index of `dim`: where `select` reads."""
    input, src = as_tensor(input, "select_scatter"), as_tensor(src, "select_scatter")
    wanted = select(input, dim, index).array.shape
    _same_shape("select_scatter", src, wanted)
    dim = normalize_dim(dim, input.array.ndim, "select_scatter")
    n = input.array.shape[dim]
    spec = [(0, 1, s) for s in input.array.shape]
    spec[dim] = (int(index) % n, 1, 1)
    return _written(input, reshape(src, (*wanted[:dim], 1, *wanted[dim:])), spec)


def slice_scatter(
    input: TensorLike,
    src: TensorLike,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> TensorBase:
    """Return a copy of `input` with `src` written at ``input[start:end:step]`` of `dim`."""
    input, src = as_tensor(input, "slice_scatter"), as_tensor(src, "slice_scatter")
    if not input.array.ndim:
        raise ShapeError(
            "slice_scatter",
            expected="at least one dim",
            got="a 0-d tensor",
            fix="reshape it to (1,)",
        )
    dim = normalize_dim(dim, input.array.ndim, "slice_scatter")
    start, end = (
        n if n is None else integer("slice_scatter", "start, end", n) for n in (start, end)
    )
    if integer("slice_scatter", "step", step) < 1:
        raise ArgumentError(
            "slice_scatter", expected="step >= 1", got=str(step), fix="flip the tensor instead"
        )
    begin, stop, _ = slice(start, end, step).indices(input.array.shape[dim])
    spec = [(0, 1, s) for s in input.array.shape]
    spec[dim] = (begin, step, max(0, -(-(stop - begin) // step)))
    _same_shape("slice_scatter", src, tuple(n for _, _, n in spec))
    return _written(input, src, spec)


def diagonal_scatter(
    input: TensorLike, src: TensorLike, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorBase:
    """Return a copy of `input` with `src` written on a diagonal: where `diagonal` reads."""
    input, src = as_tensor(input, "diagonal_scatter"), as_tensor(src, "diagonal_scatter")
    wanted = diagonal(input, offset, dim1, dim2).array.shape
    _same_shape("diagonal_scatter", src, wanted)
    moved = movedim(input, (dim1, dim2), (0, 1))
    i = np.arange(wanted[-1])
    places = [wrap(i + max(-offset, 0)), wrap(i + max(offset, 0))]
    value = cast(movedim(src, -1, 0), input.array.dtype)
    return movedim(put(moved, value, (0, 1), places, False), (0, 1), (dim1, dim2))


def _same_shape(op: str, src: TensorBase, wanted: Shape) -> None:
    if src.array.shape != wanted:
        raise ShapeError(
            op,
            expected=f"a source of shape {wanted}, what is written to",
            got=str(src.array.shape),
            fix="expand or reshape the source",
        )


def _written(x: TensorBase, src: TensorBase, spec: list[tuple[int, int, int]]) -> TensorBase:
    return slice_put(x, cast(src, x.array.dtype), tuple(spec))


# ---------------------------------------------------------------------------------- combining
