"""Pooling: the largest, the mean or a norm over windows of the last one to three dims.

Regular windows go through the primitives of `ops/windows.py`. Adaptive windows overlap irregularly,
but are products of intervals, one per dim: each dim is pooled by itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, overload

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import unheard, unwatched, wrap
from probtorch.core.making import as_tensor
from probtorch.core.refusals import real_only, shown
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import SizeLike, TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.ops.accumulate import add_up
from probtorch.ops.arithmetic import abs, relu, sign
from probtorch.ops.exponentials import pow
from probtorch.ops.extremes import amax, argmax
from probtorch.ops.gathering import gather
from probtorch.ops.intervals import interval_maxima, interval_means, intervals, part_of
from probtorch.ops.movement import reshape
from probtorch.ops.padding import beside, pad
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import mean
from probtorch.ops.windows import (
    drop_first,
    number_per_dim,
    window_counts,
    window_max,
    window_sum,
    windows,
)

# How many intervals there are to be along each dim; None for as many as there are elements.
Sizes: TypeAlias = int | Sequence[int | None] | None

__all__ = ["adaptive_avg_pool", "adaptive_max_pool", "avg_pool", "lp_pool", "max_pool"]


def _input(op: str, n: int, input: TensorLike) -> TensorBase:
    x = as_tensor(input, op)
    if x.array.ndim not in (n + 1, n + 2):
        dims = {1: "L", 2: "H, W", 3: "D, H, W"}[n]
        raise ShapeError(
            op,
            expected=f"an input of shape (N, C, {dims}) or (C, {dims})",
            got=str(x.array.shape),
            fix="add a channel dim with unsqueeze",
        )
    return x


def _overhang(
    spatial: tuple[int, ...],
    sizes: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    ceil_mode: bool,
) -> tuple[int, ...]:
    """Return how far the last windows reach beyond the right padding, per dim (0 unless ceil)."""
    out = []
    for m, k, s, p, d in zip(spatial, sizes, stride, padding, dilation):
        span = d * (k - 1) + 1
        room = m + 2 * p - span
        count = (-(-room // s) if ceil_mode else room // s) + 1
        # As in PyTorch, a window may not start in the right padding.
        if ceil_mode and (count - 1) * s >= m + p:
            count -= 1
        out.append(max((count - 1) * s + span - m - 2 * p, 0))
    return tuple(out)


def _windowed(
    op: str,
    x: TensorBase,
    n: int,
    kernel_size: SizeLike,
    stride: SizeLike | None,
    padding: SizeLike | str,
    dilation: SizeLike,
    ceil_mode: bool,
) -> tuple[tuple[int, ...], ...]:
    """Return sizes, stride, padding, dilation and overhang as tuples, checked."""
    given = kernel_size, stride, padding, dilation
    # Of single numbers, as they mostly are, the answer is kept: it is a third of the time.
    known = _window_arguments if _NUMBERS.issuperset(map(type, given)) else _checked_arguments
    return known(op, x.array.shape[-n:], n, *given, bool(ceil_mode))


_NUMBERS = frozenset((int, type(None)))


def _checked_arguments(
    op: str,
    spatial: tuple[int, ...],
    n: int,
    kernel_size: SizeLike,
    stride: SizeLike | None,
    padding: SizeLike | str,
    dilation: SizeLike,
    ceil_mode: bool,
) -> tuple[tuple[int, ...], ...]:
    sizes = number_per_dim(op, "kernel_size", kernel_size, n)
    stride = number_per_dim(op, "stride", sizes if stride in (None, ()) else stride, n)
    padding = number_per_dim(op, "padding", padding, n, least=0)
    dilation = number_per_dim(op, "dilation", dilation, n)
    if any(2 * p > k for p, k in zip(padding, sizes)):
        raise ArgumentError(
            op,
            expected="padding of at most half the kernel size",
            got=f"padding={padding}, kernel_size={sizes}",
            fix="a wider border would make windows of nothing else: use pad first if that is meant",
        )
    padded = tuple(m + 2 * p for m, p in zip(spatial, padding))
    if min(window_counts(padded, sizes, stride, dilation)) < 1:
        raise ShapeError(
            op,
            expected=f"a padded input at least as large as the window of size {sizes}",
            got=f"spatial sizes {spatial} with padding {padding}",
            fix="use a smaller kernel_size",
        )
    return (
        sizes,
        stride,
        padding,
        dilation,
        _overhang(spatial, sizes, stride, padding, dilation, ceil_mode),
    )


_window_arguments = functools.lru_cache(256)(_checked_arguments)


def _bordered(
    x: TensorBase, padding: Sequence[int], overhang: Sequence[int], value: float
) -> TensorBase:
    if not any(padding) and not any(overhang):
        return x
    widths = [(p, p + o) for p, o in zip(padding, overhang)]
    return pad(x, [w for pair in reversed(widths) for w in pair], value=value)


@overload
def max_pool(
    op: str,
    n: int,
    input: TensorLike,
    kernel_size: SizeLike,
    stride: SizeLike | None,
    padding: SizeLike,
    dilation: SizeLike,
    ceil_mode: bool,
    return_indices: Literal[True],
) -> tuple[TensorBase, TensorBase]: ...
@overload
def max_pool(
    op: str,
    n: int,
    input: TensorLike,
    kernel_size: SizeLike,
    stride: SizeLike | None,
    padding: SizeLike,
    dilation: SizeLike,
    ceil_mode: bool,
    return_indices: bool,
) -> TensorBase | tuple[TensorBase, TensorBase]: ...
def max_pool(
    op: str,
    n: int,
    input: TensorLike,
    kernel_size: SizeLike,
    stride: SizeLike | None,
    padding: SizeLike,
    dilation: SizeLike,
    ceil_mode: bool,
    return_indices: bool,
) -> TensorBase | tuple[TensorBase, TensorBase]:
    """Return the largest element of each window of the last `n` dims, and where it is if asked.

    The border counts as -inf. Indices are flat, into the spatial dims of the input, as int64.
    """
    x = _input(op, n, input)
    real_only(op, x)
    if x.array.dtype.kind == "b":
        raise DTypeError(op, expected="numbers", got="bool", fix="convert them with .float()")
    sizes, stride, padding, dilation, overhang = _windowed(
        op, x, n, kernel_size, stride, padding, dilation, ceil_mode
    )
    floating = x.array.dtype.kind == "f"
    lowest = -math.inf if floating else np.iinfo(x.array.dtype).min
    bordered = _bordered(x, padding, overhang, lowest)
    if not return_indices:
        return window_max(bordered, sizes, stride, dilation)
    spatial = x.array.shape[-n:]
    numbers = beside(x, np.arange(math.prod(spatial)).reshape(spatial))
    where = windows(_bordered(numbers, padding, overhang, -1), sizes, stride, dilation)
    seen = windows(bordered, sizes, stride, dilation)
    counts = seen.array.shape[-n:]
    window = math.prod(sizes)
    seen = reshape(seen, (window, *x.array.shape[:-n], *counts))
    best = argmax(seen, 0, keepdim=True)
    lead = (1,) * (x.array.ndim - n)
    where = reshape(where, (window, *lead, *counts)).expand(seen.array.shape)
    return drop_first(gather(seen, 0, best)), drop_first(gather(where, 0, best))


def avg_pool(
    op: str,
    n: int,
    input: TensorLike,
    kernel_size: SizeLike,
    stride: SizeLike | None,
    padding: SizeLike | str,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> TensorBase:
    """Return the mean of each window of the last `n` dims.

    The padding counts as zeros (or, without `count_include_pad`, not at all); what `ceil_mode`
    reaches beyond it never counts. `divisor_override` replaces the number of elements.
    """
    x = _input(op, n, input)
    if x.array.dtype is dtypes.float16:
        # Added up in single precision.
        wide = cast(x, dtypes.float32), kernel_size, stride, padding
        out = avg_pool(op, n, *wide, ceil_mode, count_include_pad, divisor_override)
        return cast(out, dtypes.float16)
    sizes, stride, padding, dilation, overhang = _windowed(
        op, x, n, kernel_size, stride, padding, 1, ceil_mode
    )
    if divisor_override is not None:
        number_per_dim(op, "divisor_override", divisor_override, 1)
    total = window_sum(_bordered(x, padding, overhang, 0), sizes, stride, dilation)
    if divisor_override is not None:
        return total / float(divisor_override)
    if not any(overhang) and (count_include_pad or not any(padding)):
        return total / float(math.prod(sizes))
    inside = [p if count_include_pad else 0 for p in padding]
    ones = np.ones([m + 2 * i for m, i in zip(x.array.shape[-n:], inside)], x.array.dtype)
    outside = [p - i for p, i in zip(padding, inside)]
    counted = _bordered(beside(x, ones), outside, overhang, 0)
    return total / window_sum(counted, sizes, stride, dilation)


def lp_pool(
    op: str,
    n: int,
    input: TensorLike,
    norm_type: float,
    kernel_size: SizeLike,
    stride: SizeLike | None,
    ceil_mode: bool,
) -> TensorBase:
    """Return ``sum(x ** p) ** (1 / p)`` over each window of the last `n` dims, p = norm_type."""
    p = float(norm_type)
    if not p:
        raise ArgumentError(
            op, expected="norm_type other than 0", got=str(norm_type), fix="use 2, or avg_pool"
        )
    powers = pow(as_tensor(input, op), p)
    size = math.prod(number_per_dim(op, "kernel_size", kernel_size, n))
    mean = avg_pool(op, n, powers, kernel_size, stride, 0, ceil_mode, True, None)
    # As PyTorch computes it; the sign matters for odd p only.
    return pow(sign(mean) * relu(abs(mean)) * float(size), 1.0 / p)


def _output_size(op: str, x: TensorBase, n: int, output_size: Sizes) -> tuple[int, ...]:
    if isinstance(output_size, (list, tuple)) and len(output_size) == n:
        output_size = [m if o is None else o for o, m in zip(output_size, x.array.shape[-n:])]
    counts = number_per_dim(op, "output_size", output_size, n)
    if max(counts) >= 2**31:
        raise ArgumentError(
            op,
            expected="output_size: numbers of intervals below 2**31",
            got=", ".join(map(shown, counts)),
            fix="say how many numbers there are to be along each dim",
        )
    return counts


# Of so many numbers at most, all dims go at once: NumPy adds up one dim after the other faster, but
# each takes a call.
_FEW = 4096


def adaptive_avg_pool(op: str, n: int, input: TensorLike, output_size: Sizes) -> TensorBase:
    """Return means over as many intervals per dim as `output_size` says."""
    x = _input(op, n, input)
    counts = _output_size(op, x, n, output_size)
    if set(counts) == {1} and unheard() and x.array.size and x.array.dtype.kind == "f":
        return mean(x, tuple(range(-n, 0)), True)
    if x.array.size <= _FEW:
        x = _evenly_parted(x, counts)
    for i, count in enumerate(counts):
        dim = x.array.ndim - n + i
        size = x.array.shape[dim]
        if count == size:
            continue
        if not size:
            raise ShapeError(
                op,
                expected="spatial dims with elements",
                got=f"shape {x.array.shape}",
                fix="check for empty data",
            )
        if size % count == 0:
            parted = reshape(
                x, (*x.array.shape[:dim], count, size // count, *x.array.shape[dim + 1 :])
            )
            x = mean(parted, dim + 1)
            continue
        if unheard() and x.array.dtype.char in "fd" and type(x.array) is np.ndarray:
            x = interval_means(x, dim, count)
        else:
            x = stack([mean(part_of(x, dim, *bin), dim) for bin in intervals(size, count)], dim)
    return x


def _evenly_parted(x: TensorBase, counts: tuple[int, ...]) -> TensorBase:
    """Return `x` with the mean over the intervals of those of its last dims that they divide."""
    shape, dims = _parted(x, counts)
    if not dims:
        return x
    if x.array.dtype.char in "fd" and x.array.size and unwatched(x):
        parted = x.array.reshape(shape)
        return wrap(add_up(parted, dims, False) / float(math.prod([shape[d] for d in dims])))
    return mean(reshape(x, shape), dims)


def _parted(x: TensorBase, counts: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of `x` with those last dims that intervals divide as two each, and which
    dims the intervals are.
    """
    lead = x.array.ndim - len(counts)
    shape, dims = list(x.array.shape[:lead]), []
    for size, count in zip(x.array.shape[lead:], counts):
        if size % count or size == count:
            shape.append(size)
            continue
        shape += [count, size // count]
        dims.append(len(shape) - 1)
    return tuple(shape), tuple(dims)


@overload
def adaptive_max_pool(
    op: str, n: int, input: TensorLike, output_size: Sizes, return_indices: Literal[True]
) -> tuple[TensorBase, TensorBase]: ...
@overload
def adaptive_max_pool(
    op: str, n: int, input: TensorLike, output_size: Sizes, return_indices: bool
) -> TensorBase | tuple[TensorBase, TensorBase]: ...
def adaptive_max_pool(
    op: str, n: int, input: TensorLike, output_size: Sizes, return_indices: bool
) -> TensorBase | tuple[TensorBase, TensorBase]:
    """Return largest elements over as many intervals per dim as `output_size` says."""
    x = _input(op, n, input)
    spatial = x.array.shape[-n:]
    sizes = _output_size(op, x, n, output_size)
    if return_indices:
        return _adaptive_max_with_indices(x, n, spatial, sizes)
    if 0 < x.array.size <= _FEW and x.array.dtype.char in "fd" and unwatched(x):
        shape, dims = _parted(x, sizes)
        if len(dims) == n:
            return wrap(np.maximum.reduce(x.array.reshape(shape), dims))
    for i, count in enumerate(sizes):
        dim = x.array.ndim - n + i
        if (
            unheard()
            and x.array.dtype.char in "fd"
            and type(x.array) is np.ndarray
            and x.array.size
        ):
            x = interval_maxima(x, dim, count)
            continue
        x = stack([amax(part_of(x, dim, *bin), dim) for bin in intervals(spatial[i], count)], dim)
    return x


def _adaptive_max_with_indices(
    x: TensorBase, n: int, spatial: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[TensorBase, TensorBase]:
    shape = x.array.shape
    flat = reshape(x, (*shape[:-n], math.prod(spatial)))
    grids = [intervals(m, count) for m, count in zip(spatial, sizes)]
    numbers = np.arange(math.prod(spatial)).reshape(spatial)
    found = []
    for at in np.ndindex(*sizes):
        box = tuple(slice(*grid[i]) for grid, i in zip(grids, at))
        inside = beside(x, numbers[box].reshape(-1))
        found.append(inside[argmax(flat[..., inside], -1)])
    where = stack(found, -1)
    out = (*shape[:-n], *sizes)
    return reshape(gather(flat, -1, where), out), reshape(where, out)
