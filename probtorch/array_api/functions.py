"""Functions of the array API on arrays, but for linear algebra.

Those that take the same arguments as an operation of ours are that operation; the others say what
differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.making import as_tensor
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType, DTypeLike
from probtorch.errors import ArgumentError
from probtorch.ops import (
    arithmetic,
    comparisons,
    exponentials,
    extremes,
    movement,
    pieces,
    reduction,
    repeating,
    searching,
    sorting,
    trigonometry,
)
from probtorch.ops.gathering import repeat_interleave
from probtorch.ops.index_keys import nonzero as indices_of
from probtorch.ops.indexing import getitem

# ------------------------------------------------------------------------------ elementwise

abs, add, ceil, clip = arithmetic.abs, arithmetic.add, arithmetic.ceil, arithmetic.clamp
copysign, divide, floor = arithmetic.copysign, arithmetic.div, arithmetic.floor
floor_divide, maximum, minimum = arithmetic.floor_divide, arithmetic.maximum, arithmetic.minimum
multiply, negative, remainder = arithmetic.mul, arithmetic.neg, arithmetic.remainder
round, sign, sqrt, square = arithmetic.round, arithmetic.sign, arithmetic.sqrt, arithmetic.square
subtract, trunc, where = arithmetic.sub, arithmetic.trunc, arithmetic.where

bitwise_and, bitwise_invert = comparisons.bitwise_and, comparisons.bitwise_not
bitwise_left_shift, bitwise_right_shift = comparisons.shift_left, comparisons.shift_right
bitwise_or, bitwise_xor, equal = comparisons.bitwise_or, comparisons.bitwise_xor, comparisons.eq
greater, greater_equal, isfinite = comparisons.gt, comparisons.ge, comparisons.isfinite
isinf, isnan, less, less_equal = (
    comparisons.isinf,
    comparisons.isnan,
    comparisons.lt,
    comparisons.le,
)
logical_and, logical_not = comparisons.logical_and, comparisons.logical_not
logical_or, logical_xor = comparisons.logical_or, comparisons.logical_xor
not_equal, signbit = comparisons.ne, comparisons.signbit

exp, expm1, log, log1p = exponentials.exp, exponentials.expm1, exponentials.log, exponentials.log1p
log2, log10, logaddexp = exponentials.log2, exponentials.log10, exponentials.logaddexp
pow = exponentials.pow

acos, acosh, asin, asinh = (
    trigonometry.acos,
    trigonometry.acosh,
    trigonometry.asin,
    trigonometry.asinh,
)
atan, atan2, atanh, cos = (
    trigonometry.atan,
    trigonometry.atan2,
    trigonometry.atanh,
    trigonometry.cos,
)
cosh, sin, sinh, tan = trigonometry.cosh, trigonometry.sin, trigonometry.sinh, trigonometry.tan
hypot, tanh = trigonometry.hypot, trigonometry.tanh


def positive(x: TensorBase, /) -> TensorBase:
    """Return a copy of `x`."""
    return arithmetic.clone(x)


# ------------------------------------------------------------------------------- reductions

Axis = int | tuple[int, ...] | None


def _dims(x: TensorBase, axis: Axis) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(x.array.ndim))
    return (axis,) if isinstance(axis, int) else tuple(axis)


def _summed_in(x: TensorBase, dtype: DTypeLike | None) -> DType:
    """The dtype of sums and products: of small integers the largest."""
    if dtype is not None:
        return dtypes.as_dtype(dtype)
    return dtypes.int64 if x.array.dtype.kind in "iub" else x.array.dtype


def sum(
    x: TensorBase, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False
) -> TensorBase:
    """Return the sum over axes, all of them by default."""
    x, dims = cast(x, _summed_in(x, dtype)), _dims(x, axis)
    return reduction.sum(x, dims, keepdim=keepdims) if dims else x


def prod(
    x: TensorBase, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False
) -> TensorBase:
    """Return the product over axes, all of them by default."""
    found, ndim = cast(x, _summed_in(x, dtype)), x.array.ndim
    for dim in sorted((d % ndim for d in _dims(x, axis)), reverse=True):
        found = reduction.prod(found, dim, keepdim=keepdims)
    return found


def mean(x: TensorBase, /, *, axis: Axis = None, keepdims: bool = False) -> TensorBase:
    """Return the mean over axes, all of them by default."""
    dims = _dims(x, axis)
    return reduction.mean(x, dims, keepdim=keepdims) if dims else x


def var(
    x: TensorBase, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> TensorBase:
    """Return the variance over axes, divided by their size less `correction`."""
    dims = _dims(x, axis)
    if not dims:
        return x * 0.0
    return reduction.var(x, dims, correction=correction, keepdim=keepdims)


def std(
    x: TensorBase, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> TensorBase:
    """Return the standard deviation over axes; see `var`."""
    dims = _dims(x, axis)
    if not dims:
        return x * 0.0
    return reduction.std(x, dims, correction=correction, keepdim=keepdims)


def max(x: TensorBase, /, *, axis: Axis = None, keepdims: bool = False) -> TensorBase:
    """Return the largest element over axes, all of them by default."""
    dims = _dims(x, axis)
    return extremes.amax(x, dims, keepdim=keepdims) if dims else x


def min(x: TensorBase, /, *, axis: Axis = None, keepdims: bool = False) -> TensorBase:
    """Return the smallest element over axes, all of them by default."""
    dims = _dims(x, axis)
    return extremes.amin(x, dims, keepdim=keepdims) if dims else x


def all(x: TensorBase, /, *, axis: Axis = None, keepdims: bool = False) -> TensorBase:
    """Whether all elements over axes are other than 0."""
    found = x != 0
    for dim in sorted((d % x.array.ndim for d in _dims(x, axis)), reverse=True):
        found = reduction.all(found, dim, keepdim=keepdims)
    return found


def any(x: TensorBase, /, *, axis: Axis = None, keepdims: bool = False) -> TensorBase:
    """Whether any element over axes is other than 0."""
    found = x != 0
    for dim in sorted((d % x.array.ndim for d in _dims(x, axis)), reverse=True):
        found = reduction.any(found, dim, keepdim=keepdims)
    return found


def cumulative_sum(
    x: TensorBase,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> TensorBase:
    """Return running sums along an axis, which may be left out if there is one only.

    Raises
    ------
    ArgumentError
        If it is left out and there are others.
    """
    if axis is None and x.array.ndim != 1:
        raise ArgumentError(
            "cumulative_sum", expected="an axis", got=f"shape {x.array.shape}", fix="write axis=0"
        )
    dim = 0 if axis is None else axis % x.array.ndim
    x = cast(x, _summed_in(x, dtype))
    if include_initial:
        start = (*x.array.shape[:dim], 1, *x.array.shape[dim + 1 :])
        x = pieces.cat([as_tensor(np.zeros(start, x.array.dtype)), x], dim)
    return reduction.cumsum(x, dim)


# ----------------------------------------------------------------------------- manipulation


def broadcast_arrays(*arrays: TensorBase) -> list[TensorBase]:
    """Return tensors expanded to the shape that they have in common."""
    shape = broadcast_shapes(*(x.array.shape for x in arrays))
    return [movement.expand(x, shape) for x in arrays]


def broadcast_to(x: TensorBase, /, shape: tuple[int, ...]) -> TensorBase:
    """Return `x` expanded to a shape."""
    return movement.expand(x, shape)


def concat(arrays: Sequence[TensorBase], /, *, axis: int | None = 0) -> TensorBase:
    """Join tensors along an axis; flattened if it is None."""
    items = list(arrays)
    kinds = [x.array.dtype for x in items]
    common = kinds[0]
    for kind in kinds[1:]:
        common = dtypes.promote_types(common, kind)
    items = [cast(x, common) for x in items]
    if axis is None:
        return pieces.cat([movement.reshape(x, (-1,)) for x in items], 0)
    return pieces.cat(items, axis)


def expand_dims(x: TensorBase, /, *, axis: int = 0) -> TensorBase:
    """Return `x` with a new axis of size 1."""
    return movement.unsqueeze(x, axis)


def flip(x: TensorBase, /, *, axis: Axis = None) -> TensorBase:
    """Return `x` in reverse order along axes, all of them by default."""
    return pieces.flip(x, list(_dims(x, axis)))


def moveaxis(
    x: TensorBase, source: int | tuple[int, ...], destination: int | tuple[int, ...], /
) -> TensorBase:
    """Return `x` with axes in other places."""
    return movement.movedim(x, source, destination)


def permute_dims(x: TensorBase, /, axes: tuple[int, ...]) -> TensorBase:
    """Return `x` with its axes in another order."""
    return movement.permute(x, tuple(axes))


def repeat(x: TensorBase, repeats: int | TensorBase, /, *, axis: int | None = None) -> TensorBase:
    """Repeat each element along an axis; of the flattened tensor if it is None."""
    if axis is None:
        x, axis = movement.reshape(x, (-1,)), 0
    return repeat_interleave(x, repeats, axis)


def reshape(x: TensorBase, /, shape: tuple[int, ...], *, copy: bool | None = None) -> TensorBase:
    """Return the elements in another shape; with ``copy=False`` in the same memory."""
    if copy is False:
        return movement.view(x, shape)
    return arithmetic.clone(movement.reshape(x, shape)) if copy else movement.reshape(x, shape)


def roll(x: TensorBase, /, shift: int | tuple[int, ...], *, axis: Axis = None) -> TensorBase:
    """Shift elements along axes, those at the end coming to the beginning."""
    if axis is None:
        flat = repeating.roll(movement.reshape(x, (-1,)), shift, 0)
        return movement.reshape(flat, tuple(x.array.shape))
    return repeating.roll(x, shift, axis)


def squeeze(x: TensorBase, /, axis: int | tuple[int, ...]) -> TensorBase:
    """Return `x` without axes of size 1.

    Raises
    ------
    ArgumentError
        If one has another size.
    """
    dims = _dims(x, axis)
    if [d for d in dims if x.array.shape[d] != 1]:
        raise ArgumentError(
            "squeeze",
            expected="axes of size 1",
            got=f"axes {dims} of shape {x.array.shape}",
            fix="name those that have size 1",
        )
    return movement.squeeze(x, dims)


def stack(arrays: Sequence[TensorBase], /, *, axis: int = 0) -> TensorBase:
    """Join tensors along a new axis."""
    return concat([movement.unsqueeze(x, axis) for x in arrays], axis=axis)


def tile(x: TensorBase, repetitions: tuple[int, ...], /) -> TensorBase:
    """Repeat the whole tensor along its axes."""
    return repeating.tile(x, tuple(repetitions))


def unstack(x: TensorBase, /, *, axis: int = 0) -> tuple[TensorBase, ...]:
    """Return the slices along an axis."""
    return tuple(pieces.unbind(x, axis))


# ----------------------------------------------------------------- searching, sorting, sets


def argmax(x: TensorBase, /, *, axis: int | None = None, keepdims: bool = False) -> TensorBase:
    """Return the place of the largest element, of the flattened tensor by default."""
    return extremes.argmax(x, axis, keepdim=keepdims)


def argmin(x: TensorBase, /, *, axis: int | None = None, keepdims: bool = False) -> TensorBase:
    """Return the place of the smallest element, of the flattened tensor by default."""
    return extremes.argmin(x, axis, keepdim=keepdims)


def nonzero(x: TensorBase, /) -> tuple[TensorBase, ...]:
    """Return the indices of elements other than 0, a tensor per axis."""
    found = indices_of(x, as_tuple=True)
    assert isinstance(found, tuple)
    return found


def searchsorted(
    x1: TensorBase, x2: TensorBase, /, *, side: str = "left", sorter: TensorBase | None = None
) -> TensorBase:
    """Return where elements would go into sorted ones, before equal ones or behind."""
    ordered = x1 if sorter is None else take(x1, sorter, axis=0)
    return searching.searchsorted(ordered, x2, right=side == "right")


def sort(
    x: TensorBase, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> TensorBase:
    """Return the elements in order along an axis."""
    return sorting.sort(x, axis, descending, stable)[0]


def argsort(
    x: TensorBase, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> TensorBase:
    """Return the places of the elements in order along an axis."""
    return sorting.argsort(x, axis, descending, stable)


def take(x: TensorBase, indices: TensorBase, /, *, axis: int | None = None) -> TensorBase:
    """Return elements by their places along an axis."""
    if axis is None and x.array.ndim != 1:
        raise ArgumentError(
            "take", expected="an axis", got=f"shape {x.array.shape}", fix="write axis=0"
        )
    dim = 0 if axis is None else axis % x.array.ndim
    return getitem(x, (slice(None),) * dim + (indices,))


class UniqueAll(NamedTuple):
    """Distinct elements, where each first is, which each element is, and how often each is."""

    values: TensorBase
    indices: TensorBase
    inverse_indices: TensorBase
    counts: TensorBase


class UniqueCounts(NamedTuple):
    """Distinct elements, and how often each is."""

    values: TensorBase
    counts: TensorBase


class UniqueInverse(NamedTuple):
    """Distinct elements, and which each element is."""

    values: TensorBase
    inverse_indices: TensorBase


def unique_all(x: TensorBase, /) -> UniqueAll:
    """Return the distinct elements of a tensor and all that is asked about them."""
    values, inverse, counts = sorting.unique(x, True, True, True)
    order = sorting.argsort(movement.reshape(inverse, (-1,)), 0, False, True)
    first = reduction.cumsum(counts, 0) - counts
    return UniqueAll(values, take(order, first), inverse, counts)


def unique_counts(x: TensorBase, /) -> UniqueCounts:
    """Return the distinct elements of a tensor, and how often each occurs."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: TensorBase, /) -> UniqueInverse:
    """Return the distinct elements of a tensor, and for each element which of them it is."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: TensorBase, /) -> TensorBase:
    """Return the distinct elements of a tensor."""
    return unique_all(x).values
