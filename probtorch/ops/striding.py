"""Windows on memory: elements at regular distances, which may overlap (`as_strided`, `unfold`).

One op says it all: of a vector, the elements ``offset + sum(stride * index)``. It is a view, its
transpose adds up what overlaps.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.backends.registry import address
from probtorch.backends.registry import array_module as namespace
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, wrap
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.shape import integer, normalize_dim, parse_size
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import layout_read
from probtorch.core.typed import Shape, TensorLike
from probtorch.errors import ArgumentError, ShapeError, TensorIndexError
from probtorch.ops.families import linear
from probtorch.ops.movement import movedim, permute, reshape
from probtorch.ops.take_put import put, untake

__all__ = ["as_strided", "as_strided_scatter", "storage_offset", "unfold"]


def _positions(size: Shape, stride: Shape, offset: int) -> np.ndarray:
    """Return the places in the vector that the op reads, in the shape of what it gives."""
    out = np.full((1,) * len(size), offset)
    for d, (n, s) in enumerate(zip(size, stride, strict=True)):
        out = out + (np.arange(n) * s).reshape([-1 if k == d else 1 for k in range(len(size))])
    return np.broadcast_to(out, size)


def _overlap(size: Shape, stride: Shape) -> bool:
    """Whether an element may be read twice."""
    reach = 0
    for s, n in sorted(zip(stride, size, strict=True)):
        if n > 1:
            if s <= reach:
                return True
            reach += s * (n - 1)
    return False


def _run_strided(x: np.ndarray, size: Shape, stride: Shape, offset: int) -> np.ndarray:
    step = x.strides[-1]
    shape = (*x.shape[:-1], *size)
    strides = (*x.strides[:-1], *(s * step for s in stride))
    if not isinstance(x, np.ndarray):
        return namespace(x).lib.stride_tricks.as_strided(x[..., offset:], shape, strides)
    if not math.prod(shape):
        return np.zeros(shape, x.dtype)
    owner = x if x.base is None else x.base
    memory = owner.T if isinstance(owner, np.ndarray) and owner.flags.f_contiguous else owner
    try:
        ahead = address(x) + offset * step - np.frombuffer(memory, np.uint8).ctypes.data
        there = np.ndarray(shape, x.dtype, memory, ahead, strides)
    except (ValueError, TypeError, BufferError):
        # Memory that cannot be addressed: elements of their own, which nobody may write to.
        there = x[..., _positions(size, stride, offset)]
        there.setflags(write=False)
        return there
    if _overlap(size, stride) or not x.flags.writeable:
        there.setflags(write=False)
    return there


def _added(g: TensorBase, x: TensorBase, size: Shape, stride: Shape, offset: int) -> TensorBase:
    lead = x.array.ndim - 1
    at = wrap(_positions(size, stride, offset))
    return untake(g, (lead,), [at], x.array.shape)


_STRIDED = linear(
    "strided",
    "movement",
    run=_run_strided,
    transpose=_added,
    native="view",
    samples=lambda rng: [
        ((rng.standard_normal(7),), {"size": (3, 3), "stride": (2, 1), "offset": 0}),
        ((rng.standard_normal((2, 6)),), {"size": (2, 2), "stride": (1, 3), "offset": 1}),
        ((rng.standard_normal(4),), {"size": (), "stride": (), "offset": 2}),
    ],
    reference=lambda x, size, stride, offset: x[..., _positions(size, stride, offset)],
    view=True,
    doc="Elements of a vector at regular distances along each of several dims.",
)


def storage_offset(x: TensorBase) -> int:
    """Return how many elements of the memory that `x` has a part of lie before its first one."""
    layout_read()
    root = x if x._base is None else x._base
    first = _lowest(root.array)
    return (address(x.array) - first) // x.array.itemsize


def _lowest(array: np.ndarray) -> int:
    back = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True) if s < 0 and n)
    return address(array) + back


def _in_order(x: TensorBase) -> tuple[TensorBase, tuple[int, ...]]:
    """Return `x` with its dims in the order in which they lie in memory, and that order."""
    layout_read()
    order = tuple(sorted(range(x.array.ndim), key=lambda d: -x.array.strides[d]))
    return permute(x, order), order


def _vector(op: str, x: TensorBase) -> TensorBase:
    """Return the elements of `x` as a vector in the order in which they lie in memory."""
    dense, _ = _in_order(x)
    if not dense.array.flags.c_contiguous:
        raise ShapeError(
            op,
            expected="a tensor whose elements lie in memory without gaps",
            got=f"shape {x.array.shape}, strides {x.stride()}",
            fix="call contiguous() first; what is written to that copy is not seen in the tensor",
        )
    return reshape(dense, -1)


def _windows_of(
    op: str, x: TensorBase, size: Shape, stride: Shape, offset: int | None
) -> tuple[TensorBase, Shape, Shape, int]:
    """Return the vector that windows are on, their sizes, strides and their start in it."""
    size, stride = parse_size((size,)), parse_size((stride,))
    if len(size) != len(stride) or min((*size, *stride), default=0) < 0:
        raise ArgumentError(
            op,
            expected="as many strides as sizes, none of them negative",
            got=f"sizes {size} and strides {stride}",
            fix="give a stride, in elements, for each dim",
        )
    flat = _vector(op, x)
    start = 0
    if offset is not None:
        start = integer(op, "storage_offset", offset) - storage_offset(flat)
    last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    n = flat.array.shape[0]
    if math.prod(size) and not (0 <= start and last < n):
        raise TensorIndexError(
            op,
            expected=f"elements 0 to {n - 1} of the tensor",
            got=f"{start} to {last}, by sizes {size} and strides {stride}",
            fix="check the sizes, strides and the offset; a view has no more than its own elements",
        )
    return flat, size, stride, min(max(start, 0), n)


def as_strided(
    input: TensorLike, size: Shape, stride: Shape, storage_offset: int | None = None
) -> TensorBase:
    """Return the elements ``offset + sum(index * stride)`` of the memory of `input`, as a view.

    Parameters
    ----------
    input : Tensor
        Whose elements lie in memory without gaps, in any order.
    size : tuple of int
        Shape of the result.
    stride : tuple of int
        How many elements lie between neighbours along each dim; windows may overlap.
    storage_offset : int, optional
        Where the first element lies; left out, where that of `input` does.

    Returns
    -------
    Tensor, shape `size`
        A view, read-only where an element occurs twice.

    Raises
    ------
    TensorIndexError
        If it would reach elements that `input` has not.
    ShapeError
        If `input` has gaps in memory.

    Notes
    -----
    Elements that occur several times add up their gradients.
    """
    flat, *window = _windows_of(
        "as_strided", as_tensor(input, "as_strided"), size, stride, storage_offset
    )
    return apply(_STRIDED, (flat,), dict(zip(("size", "stride", "offset"), window, strict=True)))


def as_strided_scatter(
    input: TensorLike,
    src: TensorLike,
    size: Shape,
    stride: Shape,
    storage_offset: int | None = None,
) -> TensorBase:
    """Return a copy of `input` with `src` written where ``as_strided(input, ...)`` reads.

    Of several numbers for one element one is written, nobody says which.
    """
    input, src = as_tensor(input, "as_strided_scatter"), as_tensor(src, "as_strided_scatter")
    dense, order = _in_order(input)
    if not dense.array.flags.c_contiguous:
        dense, order = input.contiguous(), tuple(range(input.array.ndim))
    flat, size, stride, start = _windows_of(
        "as_strided_scatter", dense, size, stride, storage_offset
    )
    if src.array.shape != size:
        raise ShapeError(
            "as_strided_scatter",
            expected=f"a source of shape {size}",
            got=str(src.array.shape),
            fix="expand or reshape the source",
        )
    at = wrap(_positions(size, stride, start))
    found = put(flat, cast(src, input.array.dtype), (0,), [at], False)
    back = tuple(order.index(d) for d in range(len(order)))
    return permute(reshape(found, dense.array.shape), back)


@in_our_words
def unfold(x: TensorLike, dimension: int, size: int, step: int) -> TensorBase:
    """Return windows of `size` elements along a dim, each `step` further, in a new last dim.

    Parameters
    ----------
    x : Tensor
    dimension : int
    size, step : int

    Returns
    -------
    Tensor
        ``out[..., i, ..., j] = x[..., i * step + j, ...]``, with ``(n - size) // step + 1``
        windows where `x` has n elements: a view, read-only where windows overlap.
    """
    x = as_tensor(x, "unfold")
    if not x.array.ndim:
        return unfold(reshape(x, (1,)), 0, size, step)[0]
    dim = normalize_dim(dimension, x.array.ndim, "unfold")
    n = x.array.shape[dim]
    if not 0 <= size <= n or step < 1:
        raise ArgumentError(
            "unfold",
            expected=f"windows of at most {n} elements, the size of dim {dim}, and a step >= 1",
            got=f"size={size}, step={step}",
            fix="pad the tensor, or make windows smaller",
        )
    last = dim == x.array.ndim - 1
    attrs = {"size": ((n - size) // step + 1, size), "stride": (step, 1), "offset": 0}
    parts = apply(_STRIDED, (x if last else movedim(x, dim, -1),), attrs)
    return parts if last else movedim(parts, -2, dim)
