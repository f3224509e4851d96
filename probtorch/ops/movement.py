"""Movement ops: they place elements elsewhere and never compute with them.

Every one is linear, its transpose is another op of this file. `slice_` takes a normalised spec, one
``(start, step, count)`` per dim, so that a view is always described in one way; index_keys.py
translates Python's index syntax into it. Results share memory with the input where NumPy can.

What joins tensors is in pieces.py, diagonals and triangles are in diagonals.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.dispatch import applied, applied_in_turn, apply, grad_enabled
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.refusals import library_refused
from probtorch.core.shape import (
    ALL_DIMS,
    broadcast_shapes,
    normalize_dim,
    normalize_dims,
    parse_size,
)
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import layout_read
from probtorch.core.typed import Dims, SizeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.families import linear, unbroadcast

__all__ = [
    "another",
    "broadcast_tensors",
    "expand",
    "expanded",
    "flatten",
    "movedim",
    "permute",
    "reshape",
    "reversed_dims",
    "row",
    "rows",
    "slice_",
    "slice_at",
    "squeeze",
    "swapaxes",
    "transpose",
    "unslice",
    "unsqueeze",
]


_RESHAPE = linear(
    "reshape",
    "movement",
    run=lambda x, shape: x.reshape(shape),
    transpose=lambda g, x, shape: reshape(g, x.array.shape),
    native="view",
    samples=lambda rng: [
        ((rng.standard_normal((2, 6)),), {"shape": (3, 4)}),
        ((rng.standard_normal(()),), {"shape": (1, 1)}),
    ],
    reference=lambda x, shape: np.reshape(x, shape),
    view=True,
    doc="Same elements in row-major order, another shape.",
)


def _itself(x: TensorBase) -> TensorBase:
    """Return `x`, which is its own view; off the tape another name, with no gradient."""
    return another(x) if x.requires_grad and not grad_enabled() else x


def another(x: TensorBase) -> TensorBase:
    """Return a view of all of `x`: another tensor on the tape, where `x` may count twice."""
    return apply(_RESHAPE, (x,), {"shape": x.array.shape})


def reshape(input: TensorLike, *shape: Any) -> TensorBase:
    """Return `input` with another shape of as many elements; one size may be -1.

    Raises
    ------
    ShapeError
        If the number of elements differs.
    """
    input = as_tensor(input, "reshape")
    shape = parse_size(shape)
    array = input.array
    if shape == array.shape:
        return _itself(input)
    try:
        array = array.reshape(shape)
    except ValueError:
        raise _other_size(input, shape) from None
    if array.shape != shape:
        if -1 not in shape:  # NumPy takes any negative size for the one that follows
            raise _other_size(input, shape)
        shape = array.shape
        if shape == input.array.shape:
            return _itself(input)
    return applied(_RESHAPE, input, array, {"shape": shape})


def _other_size(x: TensorBase, shape: tuple[int, ...]) -> ShapeError:
    size = x.array.size
    if -1 in shape:
        return ShapeError(
            "reshape",
            expected=f"sizes whose product is {size}",
            got=f"{shape} from {x.array.shape}",
            fix="use at most one -1, and sizes that divide the number of elements",
        )
    return ShapeError(
        "reshape",
        expected=f"{size} elements",
        got=f"{shape}, which has {math.prod(shape)}",
        fix="use -1 for the size that should follow from the others",
    )


def view(x: TensorBase, *shape: int | tuple[int, ...]) -> TensorBase:
    """Return `x` with another shape, in the same memory; an error where that needs a copy."""
    x = as_tensor(x, "view")
    out = reshape(x, *shape)
    layout_read()
    if not (x.array.flags.c_contiguous or _in_place(x.array, out.array.shape)):
        raise ShapeError(
            "view",
            expected="a shape into which the elements fall as they lie in memory",
            got=f"{out.array.shape} of shape {x.array.shape}, strides {x.stride()}",
            fix="use reshape, which copies where it must; what is written to a copy is not seen "
            "in the tensor",
        )
    return out


def _in_place(array: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Whether an array has a view of another shape: no size is made of elements with a gap."""
    runs: list[list[int]] = []  # lengths of elements at even distances, and those, innermost first
    for n, step in zip(reversed(array.shape), reversed(array.strides), strict=True):
        if runs and step == runs[-1][0] * runs[-1][1]:
            runs[-1][0] *= n
        elif n != 1:
            runs.append([n, step])
    lengths, left = iter(runs), 1
    for n in reversed(shape):
        if n > 1 and left == 1:
            left = next(lengths)[0]
        if left % max(n, 1):
            return False
        left //= max(n, 1)
    return True


_PERMUTE = linear(
    "permute",
    "movement",
    run=lambda x, dims: x.transpose(dims),
    transpose=lambda g, x, dims: _permuted(g, _inverse(dims)),
    native="view",
    samples=lambda rng: [
        ((rng.standard_normal((2, 3, 4)),), {"dims": (2, 0, 1)}),
        ((rng.standard_normal((0, 3)),), {"dims": (1, 0)}),
    ],
    reference=lambda x, dims: np.transpose(x, dims),
    view=True,
    doc="Dims in another order.",
)


@functools.lru_cache(256)
def _inverse(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the order of dims that undoes an order."""
    return tuple(sorted(range(len(dims)), key=dims.__getitem__))


def permute(input: TensorLike, *order: SizeLike, dims: Sequence[int] | None = None) -> TensorBase:
    """Return `input` with its dims in an order, given by place or as `dims`."""
    input = as_tensor(input, "permute")
    ndim = input.array.ndim
    given = parse_size(order if dims is None else (dims,))
    places = tuple([normalize_dim(d, ndim, "permute") for d in given])
    if len(places) != ndim or len(set(places)) != ndim:
        raise ShapeError(
            "permute", expected=f"each of {ndim} dims once", got=str(places), fix="list every dim"
        )
    return _permuted(input, places)


def _permuted(x: TensorBase, dims: tuple[int, ...]) -> TensorBase:
    """Return `x` with its dims in an order that is one."""
    if dims == ALL_DIMS[len(dims)]:
        return _itself(x)
    return applied(_PERMUTE, x, x.array.transpose(dims), {"dims": dims})


def transpose(
    input: TensorLike, dim0: int | tuple[int, ...] | list[int], dim1: int | None = None
) -> TensorBase:
    """Return `input` with two dims swapped, or, as in NumPy, with its dims in the order of a tuple.

    Raises
    ------
    ArgumentError
        If it is neither two dims nor one tuple.
    """
    input = as_tensor(input, "transpose")
    if dim1 is None or isinstance(dim0, (tuple, list)):
        if dim1 is None and isinstance(dim0, (tuple, list)):
            return permute(input, tuple(dim0))
        raise ArgumentError(
            "transpose",
            expected="two dims, or all of them as a tuple",
            got=f"{dim0!r:.60} and {dim1!r:.60}",
            fix="write transpose(x, 0, 1); x.T has all dims in reverse order",
        )
    ndim = input.array.ndim
    a, b = normalize_dim(dim0, ndim, "transpose"), normalize_dim(dim1, ndim, "transpose")
    if a == b:
        return _itself(input)
    dims = list(ALL_DIMS[ndim])
    dims[a], dims[b] = b, a
    return _permuted(input, tuple(dims))


def swapaxes(
    input: TensorLike, axis0: int | tuple[int, ...] | list[int], axis1: int | None = None
) -> TensorBase:
    """`transpose`, by NumPy's names."""
    return transpose(input, axis0, axis1)


def reversed_dims(x: TensorBase) -> TensorBase:
    """Return `x` with its dims in reverse order."""
    return _permuted(x, ALL_DIMS[x.array.ndim][::-1])


@in_our_words
def movedim(input: TensorLike, source: SizeLike, destination: SizeLike) -> TensorBase:
    """Return `input` with dim(s) `source` moved to `destination`, the others in order."""
    input = as_tensor(input, "movedim")
    ndim = input.array.ndim
    source = [
        normalize_dim(d, ndim, "movedim") for d in ([source] if isinstance(source, int) else source)
    ]
    target = [
        normalize_dim(d, ndim, "movedim")
        for d in ([destination] if isinstance(destination, int) else destination)
    ]
    if (
        len(set(source)) != len(source)
        or len(set(target)) != len(target)
        or (len(source) != len(target))
    ):
        raise ShapeError(
            "movedim",
            expected="as many destinations as sources, each named once",
            got=f"{source} to {target}",
            fix="give one destination per source",
        )
    if not ndim:
        return _itself(input)
    order = [d for d in range(ndim) if d not in source]
    for t, s in sorted(zip(target, source, strict=True)):
        order.insert(t, s)
    return _permuted(input, tuple(order))


_NO_STEPS = tuple((0,) * n for n in range(65))


def expanded(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array `x` broadcast to `shape`, which it fits into, as a read-only view."""
    if type(x) is np.ndarray and x.flags.c_contiguous:
        # What broadcast_to does, without its general machinery.
        if x.size == 1:  # the gradient of every sum
            steps = _NO_STEPS[len(shape)]
        else:
            there = x.strides
            if 1 in x.shape:
                there = tuple([0 if a == 1 else s for a, s in zip(x.shape, there)])  # hot
            steps = _NO_STEPS[len(shape) - x.ndim] + there
        out = np.ndarray(shape, x.dtype, x, 0, steps)
        out.setflags(write=False)
        return out
    return namespace(x).broadcast_to(x, shape)


_EXPAND = linear(
    "expand",
    "movement",
    run=expanded,
    transpose=lambda g, x, shape: unbroadcast(g, x.array.shape),
    native="view",
    samples=lambda rng: [
        ((rng.standard_normal((3, 1)),), {"shape": (2, 3, 4)}),
        ((rng.standard_normal(()),), {"shape": (2,)}),
    ],
    reference=lambda x, shape: np.broadcast_to(x, shape),
    view=True,
    doc="Repeat along new dims and dims of size 1 without copying.",
)


def expand(x: TensorLike, *shape: Any) -> TensorBase:
    """Return `x` broadcast to `shape`; -1 keeps a size. The result is a read-only view."""
    x = as_tensor(x, "expand")
    shape = parse_size(shape)
    have = x.array.shape
    if shape == have:
        return _itself(x)
    pad = len(shape) - len(have)
    if -1 in shape and pad >= 0:
        shape = tuple(have[i - pad] if s == -1 and i >= pad else s for i, s in enumerate(shape))
        if shape == have:
            return _itself(x)
    fits = pad >= 0
    if fits:
        for a, b in zip(have, shape[pad:]):  # hot
            if a != b and a != 1:
                fits = False
    if not fits:
        raise ShapeError(
            "expand",
            expected=f"a shape that {have} broadcasts to",
            got=str(shape),
            fix="only dims of size 1 and new leading dims can grow",
        )
    try:
        array = expanded(x.array, shape)
    except ValueError as error:  # sizes below 0, or more elements than there is memory for
        raise library_refused(_EXPAND, [x], {"shape": shape}, error) from error
    return applied(_EXPAND, x, array, {"shape": shape})


def unsqueeze(input: TensorLike, dim: int) -> TensorBase:
    """Return `input` with a dim of size 1 inserted at `dim`."""
    input = as_tensor(input, "unsqueeze")
    shape = input.array.shape
    dim = normalize_dim(dim, len(shape) + 1, "unsqueeze")
    return reshape(input, (*shape[:dim], 1, *shape[dim:]))


def squeeze(input: TensorLike, dim: Dims = None) -> TensorBase:
    """Return `input` without its dims of size 1, or without those of `dim` that have size 1."""
    input = as_tensor(input, "squeeze")
    shape = input.array.shape
    drop = normalize_dims(dim, len(shape), "squeeze")
    return reshape(input, tuple([s for i, s in enumerate(shape) if s != 1 or i not in drop]))


def flatten(input: TensorLike, start_dim: int = 0, end_dim: int = -1) -> TensorBase:
    """Return `input` with dims `start_dim` to `end_dim` merged into one."""
    input = as_tensor(input, "flatten")
    if type(start_dim) is int is type(end_dim) and start_dim == 0 and end_dim == -1:
        return reshape(input, (input.array.size,))
    shape = input.array.shape or (1,)
    a, b = (
        normalize_dim(start_dim, len(shape), "flatten"),
        normalize_dim(end_dim, len(shape), "flatten"),
    )
    if a > b:
        raise ShapeError(
            "flatten",
            expected="start_dim before end_dim",
            got=f"dims {a} and {b} of shape {input.array.shape}",
            fix="exchange them",
        )
    return reshape(input, (*shape[:a], math.prod(shape[a : b + 1]), *shape[b + 1 :]))


def python_slices(spec: tuple[tuple[int, ...], ...]) -> tuple[slice, ...]:
    """Return the tuple of Python slices that a slice spec means."""
    # A negative step down to element 0 needs stop=None, as -1 would mean the last element.
    out = []
    for start, step, count in spec:
        stop = start + step * count
        out.append(slice(start, stop if stop >= 0 else None, step) if count else slice(0, 0))
    return tuple(out)


_SLICE = linear(
    "slice",
    "movement",
    run=lambda x, spec: x[python_slices(spec)],
    transpose=lambda g, x, spec: unslice(g, spec, x.array.shape),
    native="view",
    samples=lambda rng: [
        ((rng.standard_normal((5, 4)),), {"spec": ((1, 2, 2), (3, -1, 4))}),
        ((rng.standard_normal((3,)),), {"spec": ((2, 1, 0),)}),
    ],
    reference=lambda x, spec: x[np.ix_(*[np.arange(n) * st + a for a, st, n in spec])],
    view=True,
    doc="Regularly spaced elements along each dim.",
)


def slice_(x: TensorBase, spec: tuple[tuple[int, ...], ...]) -> TensorBase:
    """Return the elements ``start + step * k``, k < count, of each dim.

    `spec` has one ``(start, step, count)`` per dim.
    """
    return apply(_SLICE, (x,), {"spec": spec})


# One for all: a recording that compares turns of a loop sees at once that it is the same.
_ONE = {"shape": ()}


def row(x: TensorBase, i: int) -> TensorBase:
    """Return element `i` of the first dim, 0 <= i < its size: a slice without that dim."""
    array, rest = x.array, x.array.shape[1:]
    spec = ((i, 1, 1), *[(0, 1, n) for n in rest]) if rest else ((i, 1, 1),)
    return _without_dims(x, spec, array[i : i + 1], rest)


def rows(x: TensorBase, key: slice) -> TensorBase:
    """Return the elements of the first dim at a slice of Python's numbers."""
    array, (n, *rest) = x.array, x.array.shape
    start, stop, step = key.indices(n)
    count = len(range(start, stop, step))
    if start == 0 and step == 1 and count == n:
        return _itself(x)
    spec = ((start, step, count), *[(0, 1, m) for m in rest])
    return applied(_SLICE, x, array[key], {"spec": spec})


def slice_at(x: TensorBase, dim: int, i: int) -> TensorBase:
    """Return element `i` of a dim, 0 <= i < its size: a slice without that dim."""
    array, shape = x.array, x.array.shape
    spec = [(0, 1, n) for n in shape]
    spec[dim] = (i, 1, 1)
    part = array[(slice(None),) * dim + (slice(i, i + 1),)]
    return _without_dims(x, tuple(spec), part, shape[:dim] + shape[dim + 1 :])


def place(x: TensorBase, indices: tuple[int, ...]) -> TensorBase:
    """Return what is at `indices` of the first dims, 0 <= each < its size, without these dims."""
    array, rest = x.array, x.array.shape[len(indices) :]
    spec = (*[(i, 1, 1) for i in indices], *[(0, 1, n) for n in rest])
    return _without_dims(x, spec, array[tuple([slice(i, i + 1) for i in indices])], rest)


def _without_dims(
    x: TensorBase, spec: tuple[tuple[int, ...], ...], part: np.ndarray, rest: tuple[int, ...]
) -> TensorBase:
    shape = {"shape": rest} if rest else _ONE
    return applied_in_turn(_SLICE, x, part, {"spec": spec}, _RESHAPE, part.reshape(rest), shape)


def _run_unslice(
    g: np.ndarray, spec: tuple[tuple[int, ...], ...], shape: tuple[int, ...]
) -> np.ndarray:
    out = namespace(g).zeros(shape, g.dtype)
    out[python_slices(spec)] = g
    return out


def _unslice_reference(
    g: np.ndarray, spec: tuple[tuple[int, ...], ...], shape: tuple[int, ...]
) -> np.ndarray:
    out = np.zeros(shape, g.dtype)
    out[np.ix_(*[np.arange(n) * st + a for a, st, n in spec])] = g
    return out


_UNSLICE = linear(
    "unslice",
    "movement",
    run=_run_unslice,
    transpose=lambda g, x, spec, shape: slice_(g, spec),
    samples=lambda rng: [
        ((rng.standard_normal((2, 3)),), {"spec": ((1, 2, 2), (2, -1, 3)), "shape": (5, 4)})
    ],
    reference=_unslice_reference,
    doc="Zeros with the input at the places `slice` would read: the transpose of `slice`.",
)


def unslice(x: TensorBase, spec: tuple[tuple[int, ...], ...], shape: tuple[int, ...]) -> TensorBase:
    """Return zeros of `shape` with `x` at the places that ``slice_(_, spec)`` reads."""
    return apply(_UNSLICE, (x,), {"spec": spec, "shape": shape})


def broadcast_tensors(*tensors: TensorLike) -> tuple[TensorBase, ...]:
    """Return the tensors expanded to their common shape."""
    found = [as_tensor(t, "broadcast_tensors") for t in tensors]
    shape = broadcast_shapes(*(t.array.shape for t in found), op="broadcast_tensors")
    return tuple(expand(t, shape) for t in found)
