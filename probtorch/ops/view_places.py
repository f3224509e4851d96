"""Views by their place: where the elements of a view lie in the tensor whose memory it shares.

A view that is changed in place on the tape is written into its root, and read from it again. Both
need its place there: the spec of a slice, or positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from probtorch.core import doors
from probtorch.core.dispatch import TapeNode, wrap
from probtorch.core.history import ViewOps, take_over
from probtorch.core.in_place import assign
from probtorch.core.op import Attrs, Op
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Index
from probtorch.errors import AutogradError
from probtorch.ops.movement import reshape, slice_, unslice
from probtorch.ops.take_put import put, slice_put, take, untake

# The spec of a slice of the base, or positions in it flattened; and the shape of the view.
Place: TypeAlias = tuple[tuple[tuple[int, int, int], ...] | np.ndarray, tuple[int, ...]]

__all__ = ["is_there", "place_in", "read_place", "written"]


def place_in(view: np.ndarray, base: np.ndarray, op: str) -> Place:
    """Return where the elements of the array `view` lie in `base`, whose memory it shares.

    Returns
    -------
    at : tuple or ndarray
        The spec of the slice of `base` with the same elements, if there is one; else the positions
        in the flattened `base`, in the shape of the view.
    shape : tuple
        That of the view.
    """
    spec = _spec(view, base)
    if spec is not None:
        return spec, view.shape
    unit, order = base.itemsize, np.arange(base.size)
    offset = _address(view) - _address(base)
    at = _offsets(view.shape, view.strides) + offset
    have = _offsets(base.shape, base.strides).ravel()
    if not base.flags.c_contiguous:
        sorting = np.argsort(have, kind="stable")
        have, order = have[sorting], order[sorting]
    found = np.minimum(np.searchsorted(have, at), max(have.size - 1, 0))
    if view.itemsize != unit or not np.array_equal(have[found] if have.size else at, at):
        raise AutogradError(
            f"{op}: in-place change of a view inside a recorded computation",
            expected="a view whose elements are elements of its base",
            got=f"a view of dtype {view.dtype} and strides {view.strides} of a tensor of dtype "
            f"{base.dtype}, shape {base.shape} and strides {base.strides}",
            fix="assign through the base, base[index] = value, or clone() the view first",
        )
    return order[found], view.shape


def _spec(view: np.ndarray, base: np.ndarray) -> tuple[tuple[int, int, int], ...] | None:
    """Return the spec of the slice of `base` that has the elements of `view`, None without one."""
    if not view.size or not base.flags.c_contiguous or view.dtype != base.dtype:
        return None
    offset = _address(view) - _address(base)
    if view.size == base.size and not offset and view.flags.c_contiguous:
        return tuple((0, 1, n) for n in base.shape)
    # Dims of one element mean nothing; the others must be dims of the base, in order.
    have = [(n, s) for n, s in zip(view.shape, view.strides, strict=True) if n != 1]
    spec = []
    s = view.itemsize * base.size
    for n in base.shape:
        s //= n
        start, offset = divmod(offset, s)
        count, step = 1, 1
        if have and have[0][1] % s == 0:
            count, step = have[0][0], have[0][1] // s
            if 0 <= start + step * (count - 1) < n and step:
                have.pop(0)
            else:
                count, step = 1, 1
        if not 0 <= start < n:
            return None
        spec.append((start, step, count))
    return None if have or offset else tuple(spec)


def _address(array: np.ndarray) -> int:
    if isinstance(array, np.ndarray):
        return array.__array_interface__["data"][0]
    return array.data.ptr


def _offsets(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    out = np.zeros((1,) * len(shape), np.int64)
    for d, (n, s) in enumerate(zip(shape, strides, strict=True)):
        out = out + (np.arange(n) * s).reshape([-1 if k == d else 1 for k in range(len(shape))])
    return np.broadcast_to(out, shape)


def read_place(base: TensorBase, place: Place) -> TensorBase:
    """Return the elements of `base` at a place; see `place_in`."""
    at, shape = place
    if isinstance(at, np.ndarray):
        return take(reshape(base, -1), (0,), [wrap(at)])
    if any(s != (0, 1, n) for s, n in zip(at, base.array.shape, strict=True)):
        base = slice_(base, at)
    return reshape(base, shape)


def written(
    base: TensorBase,
    value: TensorBase,
    place: Place,
) -> TensorBase:
    """Return a copy of `base` with `value` at a place."""
    at, _ = place
    if isinstance(at, np.ndarray):
        flat = put(reshape(base, -1), value, (0,), [wrap(at)], False)
        return reshape(flat, base.array.shape)
    value = reshape(value, tuple(n for _, _, n in at))
    return slice_put(base, value, at)


def _write_through_view(
    view: TensorBase, base: TensorBase, value: TensorBase, op: str
) -> TensorBase:
    """Change a view in place on the tape: its base takes the values, the view reads them there."""
    place = place_in(view.array, base.array, op)
    assign(base, written(base, value, place), op)
    owner = base if base._base is None else base._base
    take_over(view, read_place(base, place), owner._version)
    return view


def _view_node(view: TensorBase, base: TensorBase) -> TapeNode:
    """Return a node that reads `view` from `base`."""
    return TapeNode(_READ, (base,), {"place": place_in(view.array, base.array, "view")})


def _read_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    at, _ = attrs["place"]
    shape = inputs[0].array.shape
    if isinstance(at, np.ndarray):
        return (reshape(untake(g, (0,), [wrap(at)], (inputs[0].array.size,)), shape),)
    return (unslice(reshape(g, tuple(n for _, _, n in at)), at, shape),)


# Never run: a view is there already. Its nodes say where its elements lie in its root by now.
_READ = Op("view", "movement", lambda x, place: x, _read_vjp, saves=())
doors.views.fill(ViewOps(_write_through_view, _view_node))


def is_there(value: Any, x: TensorBase, key: Index) -> bool:
    """Whether `value` is the view ``x[key]`` itself."""
    if value._base is not (x if x._base is None else x._base):
        return False
    if any(type(k) not in _BASIC for k in (key if isinstance(key, tuple) else (key,))):
        return False
    # With an Ellipsis, as an index by integers alone makes a number.
    key = key if isinstance(key, tuple) else (key,)
    try:
        a, b = value.array, x.array[key if Ellipsis in key else (*key, ...)]
    except (IndexError, ValueError):
        return False
    return (
        a.shape == b.shape
        and a.strides == b.strides
        and a.dtype == b.dtype
        and _address(a) == _address(b)
    )


_BASIC = frozenset((int, slice, type(None), type(Ellipsis)))
