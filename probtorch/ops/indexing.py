"""Indexing: Python's and NumPy's index syntax, read and written.

`x[key]` and `x[key] = value` are translated into slices and into primitives at integer tensors
(take_put.py), both with gradients; index_keys.py says what a key means. `Vindex` is the same for
batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from probtorch.backends.registry import device_of
from probtorch.core.casting import cast
from probtorch.core.dispatch import grad_enabled, mark_changed, recorder, unseen, untaped_view, wrap
from probtorch.core.history import root_of
from probtorch.core.in_place import assign
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Index, TensorLike
from probtorch.errors import ArgumentError, DeviceError, ShapeError, TensorIndexError
from probtorch.ops.index_keys import Entry, parse, with_masks_of_dims
from probtorch.ops.movement import expand, permute, place, reshape, row, rows, slice_
from probtorch.ops.take_put import put, slice_put, take
from probtorch.ops.view_places import is_there

__all__ = ["Vindex", "getitem", "index_put", "setitem", "vindex"]


def getitem(x: TensorBase, key: Index) -> TensorBase:
    """x[key] with NumPy's rules; differentiable in `x`."""
    if recorder() is None:
        quick = _plain_view(x, key)
        if quick is not None:
            return quick
    if type(key) is int and x.array.ndim:
        n = x.array.shape[0]
        if -n <= key < n:
            return row(x, key % n)
    elif type(key) is slice and x.array.ndim and _has_numbers(key):
        return rows(x, key)
    elif type(key) is tuple and _INTEGERS.issuperset(map(type, key)):
        sizes = x.array.shape
        if 0 < len(key) <= len(sizes) and all(-n <= i < n for i, n in zip(key, sizes)):
            return place(x, tuple([i % n for i, n in zip(key, sizes)]))
    if isinstance(key, TensorBase) and key.array.ndim and x.array.ndim:
        kind = key.array.dtype.kind
        if kind == "i":
            return take(x, (0,), [key])
        if kind == "b" and key.array.shape == x.array.shape and unseen(x, key):
            return wrap(x.array[key.array])
    x, entries = with_masks_of_dims(x, key)
    spec, layout, index = parse(x, entries)
    shape = x.array.shape
    if any(s != (0, 1, n) for s, n in zip(spec, shape, strict=True)):
        x = slice_(x, spec)
    x = reshape(x, tuple(1 if isinstance(d, str) else spec[d][2] for d in layout))
    if not index:
        return x
    index = {layout.index(d): i for d, i in index.items()}
    if len(index) > 1:
        # As in PyTorch, a 0-d tensor is an integer: its dim goes before the others are looked at.
        for d in sorted((d for d, i in index.items() if not i.array.ndim), reverse=True):
            if len(index) > 1:
                x = take(x, (d,), [index.pop(d)])
                index = {k - (k > d): i for k, i in index.items()}
    return take(x, tuple(index), list(index.values()))


def _has_numbers(key: slice) -> bool:
    """Whether bounds and step are Python's own numbers, or none; a step of 0 is an error."""
    kinds = type(key.start), type(key.stop), type(key.step)
    return _BOUNDS.issuperset(kinds) and key.step != 0


_INTEGERS = frozenset((int,))
_BOUNDS = frozenset((int, type(None)))
_PLAIN_KEYS = frozenset((int, slice, type(None), type(Ellipsis)))


def _plain_view(x: TensorBase, key: Index) -> TensorBase | None:
    """Return x[key] where NumPy alone can make it: a view, off the tape; else None. To be called
    while nobody listens.
    """
    array = x.array
    if type(array) is not np.ndarray:
        return None
    if type(key) is int:
        where: object = (key, ...)  # a view where the index alone gives a number
    elif type(key) in _PLAIN_KEYS:
        where = key
    elif type(key) is tuple and _PLAIN_KEYS.issuperset(map(type, key)):
        where = key if ... in key else (*key, ...)
    else:
        return None
    try:
        found = array[where]  # type: ignore[call-overload]  # of one of the types just asked for
    except (IndexError, TypeError, ValueError):
        return None  # for an error of ours
    if found.shape == array.shape:
        # All of it; what has the shape but other steps, x[::-1] say, goes the long way.
        return (
            reshape(x, found.shape)
            if type(key) is slice and found.strides == array.strides
            else None
        )
    return untaped_view(x, found)


def setitem(x: TensorBase, key: Index, value: TensorBase) -> None:
    """x[key] = value in place, on the tape where a gradient is wanted."""
    value = as_tensor(value, "index assignment", x.array.dtype)
    if type(value.array) is not type(x.array):
        value = _moved_there(value, x)
    if value._base is not None and is_there(value, x, key):
        return  # the end of x[key] += y, whose view has been written to
    entries: list[Entry]
    at: int | slice | tuple[slice | EllipsisType | int | np.ndarray | None, ...] | None = None
    if type(key) is int or type(key) is slice:
        entries, at = [key], key
    else:
        x, entries = with_masks_of_dims(x, key)
    root = root_of(x)
    taped = grad_enabled() and (
        x.requires_grad or value.requires_grad or (root is not None and root.requires_grad)
    )
    if recorder() is not None or taped or _mixes_integers_and_tensors(entries):
        assign(x, _updated(x, entries, cast(value, x.array.dtype)), "index assignment")
        return
    dtype = x.array.dtype
    if value.array.dtype is not dtype and value.array.dtype.kind != dtype.kind:
        value = cast(value, dtype)  # the same nan and ends as elsewhere
    if not x.array.flags.writeable:
        raise ArgumentError(
            "index assignment",
            expected="writable memory",
            got="a read-only array",
            fix="clone() the tensor first",
        )
    if at is None:
        at = tuple(k.array if isinstance(k, TensorBase) else k for k in entries)
    try:
        # NumPy takes one number for one place, not an array of one number.
        x.array[at] = value.array if value.array.size != 1 else value.array.reshape(())
    except (IndexError, TypeError) as e:
        raise TensorIndexError(
            "index assignment",
            expected=f"an index into shape {x.array.shape}",
            got=str(e),
            fix="dims and elements are numbered from 0",
        ) from None
    except ValueError as e:
        raise ShapeError(
            "index assignment",
            expected="a value that broadcasts into the place",
            got=str(e),
            fix="reshape or expand the value",
        ) from None
    mark_changed(x)


@in_our_words
def index_put(
    x: TensorBase, indices: Sequence[Any], values: TensorLike, accumulate: bool = False
) -> TensorBase:
    """Return a copy of `x` with `values` written or added at integer tensors, first dims first."""
    x = as_tensor(x, "index_put")
    values = as_tensor(values, "index_put", x.array.dtype)
    indices = [as_tensor(i, "index_put") for i in indices]
    places = broadcast_shapes(*(i.array.shape for i in indices), op="index_put")
    values = _fit(cast(values, x.array.dtype), places + x.array.shape[len(indices) :])
    return put(x, values, tuple(range(len(indices))), indices, accumulate)


def _moved_there(value: TensorBase, x: TensorBase) -> TensorBase:
    """Return `value`, of which one element lies on another device, where `x` is."""
    if value.array.ndim:
        raise DeviceError(
            "index assignment",
            expected=f"a value on {device_of(x.array)}, numbers of shape () aside",
            got=f"one of shape {value.array.shape} on {device_of(value.array)}",
            fix="move it there with .to(device)",
        )
    return value.to(device=device_of(x.array))


def _mixes_integers_and_tensors(key: list[Entry]) -> bool:
    """Whether NumPy would place the dims of ``x[key]`` differently: integers come first here."""
    tensors = [k for k in key if isinstance(k, TensorBase)]
    return bool(tensors) and (
        any(type(k) is int for k in key) or any(not t.array.ndim for t in tensors)
    )


def _updated(x: TensorBase, key: list[Entry], value: TensorBase) -> TensorBase:
    """Return a copy of `x` with `value` at `key`."""
    shape = x.array.shape
    spec, layout, index = parse(x, key)
    if not index:
        value = _fit(value, tuple(1 if isinstance(d, str) else spec[d][2] for d in layout))
        if value.array.ndim:
            value = reshape(value, tuple(n for _, _, n in spec))
        return slice_put(x, value, spec)
    if len(layout) == len(spec) and spec == tuple((0, 1, n) for n in shape):
        places = broadcast_shapes(*(i.array.shape for i in index.values()), op="index assignment")
        dims = tuple(index)
        if dims == tuple(range(dims[0], dims[0] + len(dims))):
            value = _fit(value, shape[: dims[0]] + places + shape[dims[-1] + 1 :])
            return put(x, value, dims, list(index.values()), False)
    # Integer tensors together with partial slices, integers or None: find the flat positions.
    size = math.prod(shape)
    at = getitem(wrap(np.arange(size).reshape(shape)), tuple(key))
    flat = put(reshape(x, -1), _fit(value, at.array.shape), (0,), [at], False)
    return reshape(flat, shape)


def _fit(value: TensorBase, shape: tuple[int, ...]) -> TensorBase:
    """Return `value` ready for a place of `shape`; a 0-d value is left to broadcast."""
    have = value.array.shape
    extra = len(have) - len(shape)
    if extra > 0 and have[:extra] == (1,) * extra:
        value, extra = reshape(value, have[extra:]), 0
    if not value.array.ndim or value.array.shape == shape:
        return value
    have_now = value.array.shape
    tail = shape[len(shape) - len(have_now) :]
    if extra > 0 or any(a not in (1, b) for a, b in zip(have_now, tail)):
        raise ShapeError(
            "index assignment",
            expected=f"a value that broadcasts to shape {shape}, that of the place",
            got=f"shape {have}",
            fix="reshape or expand the value",
        )
    return expand(value, shape)


# ------------------------------------------------------------------------------ indices in batches


def vindex(x: TensorLike, key: Index) -> TensorBase:
    """Index the rightmost dims of `x`, with all batch dims broadcast against each other.

    A leading ``...`` stands for the batch dims of `x`; the other entries, one per remaining dim,
    are integers, integer tensors whose dims are all batch dims, or ``:``. So an expression for one
    element, such as ``x[i, j, :]``, becomes one for batches: ``Vindex(x)[..., i, j, :]``.

    Parameters
    ----------
    x : Tensor
    key : tuple

    Returns
    -------
    Tensor, shape ``broadcast(batch of x, i.shape, j.shape) + (sizes of the : dims)``

    Raises
    ------
    TensorIndexError
        If ``...`` is not leading, a slice is not ``:``, or there are too many entries.

    Examples
    --------
    >>> from probtorch.ops.indexing import Vindex
    >>> import probtorch
    >>> x = probtorch.arange(24).reshape(2, 3, 4)
    >>> i = probtorch.tensor([[0], [1]])
    >>> Vindex(x)[..., i, :].shape
    Size([2, 2, 4])
    """
    x = as_tensor(x, "vindex")
    key = key if isinstance(key, tuple) else (key,)
    if key and key[0] is Ellipsis:
        key = key[1:]
    else:
        key = key + (slice(None),) * (x.array.ndim - len(key))
    whole = [isinstance(k, slice) and k == slice(None) for k in key]
    if len(key) > x.array.ndim or any(
        not w and (k is None or k is Ellipsis or isinstance(k, slice))
        for k, w in zip(key, whole, strict=True)
    ):
        raise TensorIndexError(
            "vindex",
            expected=f"`...` on the left only, then at most {x.array.ndim} integers, integer "
            "tensors or `:`",
            got=repr(key),
            fix="slice the tensor first, then index it",
        )
    lead = x.array.ndim - len(key)
    at = [i + lead for i, w in enumerate(whole) if not w]
    kept = [i + lead for i, w in enumerate(whole) if w]
    x = permute(x, (*range(lead), *at, *kept))
    index = [as_tensor(k, "vindex") for k, w in zip(key, whole, strict=True) if not w]
    if not index:
        return x
    batch = x.array.shape[:lead]
    if not any(i.array.ndim for i in index):
        places: list[slice | TensorBase] = [*[slice(None)] * lead, *index]
        return getitem(x, tuple(places))
    rows = [wrap(np.arange(n).reshape((n,) + (1,) * (lead - 1 - d))) for d, n in enumerate(batch)]
    return take(x, tuple(range(lead + len(index))), [*rows, *index])


class Vindex:
    """``Vindex(x)[..., i, :]`` is ``vindex(x, (..., i, slice(None)))``; see `vindex`.

    Parameters
    ----------
    x : Tensor
    """

    def __init__(self, x: TensorLike) -> None:
        self._x = x

    def __getitem__(self, key: tuple[TensorBase | int, slice]) -> TensorBase:
        return vindex(self._x, key)
