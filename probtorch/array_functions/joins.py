"""Arrays put together and taken apart."""

import numpy as np

from probtorch.array_functions.arguments import (
    UnknownArgument,
    absent,
    at_least,
    flat,
    of_one_dtype,
    one_axis,
    one_of,
    plain_arrays,
    rearranged,
    tensor_of,
    whole,
)
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.shape import normalize_dim
from probtorch.errors import ShapeError
from probtorch.ops import joining, movement, pieces

__all__ = ["JOINS"]


def _in_dtype(items, dtype, casting):
    """The tensors in the dtype that is asked for, or in that which holds all of them."""
    items = of_one_dtype(items)
    one_of("casting", casting, "same_kind", "unsafe", "safe")
    if dtype is None:
        return items
    if not np.can_cast(items[0].array.dtype, np.dtype(dtype), casting):
        raise UnknownArgument("casting")
    return [cast(x, np.dtype(dtype)) for x in items]


def _concatenate(arrays, /, axis=0, out=None, *, dtype=None, casting="same_kind"):
    absent({"out": out})
    items = _in_dtype([tensor_of(x) for x in arrays], dtype, casting)
    if axis is None:
        return pieces.cat([flat(x) for x in items], 0)
    if not items[0].array.ndim:
        raise UnknownArgument("arrays")  # NumPy has the words for it
    return pieces.cat(items, one_axis(axis, items[0], "concatenate"))


def _stack(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    absent({"out": out})
    items = _in_dtype([tensor_of(x) for x in arrays], dtype, casting)
    return pieces.stack(items, normalize_dim(axis, items[0].array.ndim + 1, "stack"))


def _vstack(tup, *, dtype=None, casting="same_kind"):
    return pieces.cat(_in_dtype([at_least(x, 2) for x in tup], dtype, casting), 0)


def _hstack(tup, *, dtype=None, casting="same_kind"):
    items = _in_dtype([at_least(x, 1) for x in tup], dtype, casting)
    return pieces.cat(items, 0 if items[0].array.ndim == 1 else 1)


def _column_stack(tup):
    items = [at_least(x, 1) for x in tup]
    items = [x if x.array.ndim > 1 else movement.reshape(x, (-1, 1)) for x in items]
    return pieces.cat(of_one_dtype(items), 1)


def _block(arrays):
    def joined(part, depth):
        if not isinstance(part, list):
            return tensor_of(part)
        items = [joined(p, depth + 1) for p in part]
        ndim = max(most, *(x.array.ndim for x in items))
        items = of_one_dtype([at_least(x, ndim) for x in items])
        return pieces.cat(items, depth - most)

    def levels(part):
        return 1 + max(map(levels, part)) if isinstance(part, list) else 0

    most = levels(arrays)
    return joined(arrays, 0)


def _append(arr, values, axis=None):
    return _concatenate((arr, values), axis)


def _insert(arr, obj, values, axis=None):
    x, v = tensor_of(arr), tensor_of(values)
    count, more = x.array.size, v.array.size
    # Where each number of the result stands in x and, behind it, in the values.
    numbers = np.arange(count + more)
    places = np.insert(
        numbers[:count].reshape(x.array.shape),
        plain_arrays(obj, force=True),
        numbers[count:].reshape(v.array.shape),
        axis,
    )
    return pieces.cat([flat(x), flat(cast(v, x.array.dtype))], 0)[wrap(places)]


def _delete(arr, obj, axis=None):
    return rearranged(np.delete, tensor_of(arr), plain_arrays(obj, force=True), axis)


def _split(uneven):
    """`np.array_split` takes pieces that differ by one, `np.split` does not."""

    def handler(ary, indices_or_sections, axis=0):
        x = tensor_of(ary)
        dim = one_axis(axis, x, "split")
        at = indices_or_sections
        if isinstance(at, (int, np.integer)):
            if not uneven and x.array.ndim and x.array.shape[dim] % at:
                raise ValueError("array split does not result in an equal division")
            at = int(at)
        else:
            at = [whole(i, "indices_or_sections") for i in plain_arrays(at, force=True)]
        return list(joining.tensor_split(x, at, dim))

    return handler


def _split_along(axis):
    def handler(ary, indices_or_sections):
        x = tensor_of(ary)
        least = 1 if axis == 1 else axis + 1 if axis else 2
        if x.array.ndim < least:
            raise ShapeError(
                ("vsplit", "hsplit", "dsplit")[axis],
                expected=f"an array of at least {least} dims",
                got=f"shape {tuple(x.array.shape)}",
                fix="say along which axis, numpy.split(x, n, axis)",
            )
        dim = 0 if axis == 1 and x.array.ndim == 1 else axis
        return _split(False)(x, indices_or_sections, dim)

    return handler


def _meshgrid(*xi, copy=True, sparse=False, indexing="xy"):
    one_of("indexing", indexing, "xy", "ij")
    n, out = len(xi), []
    lines = [flat(x) for x in xi]
    places = list(range(n))
    if indexing == "xy" and n > 1:
        places[:2] = 1, 0
    shape = [0] * n
    for line, place in zip(lines, places, strict=True):
        shape[place] = line.array.shape[0]
    for line, place in zip(lines, places, strict=True):
        grid = movement.reshape(line, tuple(-1 if d == place else 1 for d in range(n)))
        out.append(grid if sparse else movement.expand(grid, tuple(shape)))
    return tuple(out)


def _at_least(ndim):
    def handler(*arys):
        fn = (joining.atleast_1d, joining.atleast_2d, joining.atleast_3d)[ndim - 1]
        out = tuple(fn(tensor_of(x)) for x in arys)
        return out[0] if len(out) == 1 else out

    return handler


def _broadcast_to(array, shape, subok=False):
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    sizes = tuple(whole(s, "shape") for s in sizes)
    if min(sizes, default=0) < 0:
        raise UnknownArgument("shape")  # NumPy has the words for it
    return movement.expand(tensor_of(array), sizes)


def _broadcast_arrays(*args, subok=False):
    items = [tensor_of(x) for x in args]
    shape = np.broadcast_shapes(*(tuple(x.array.shape) for x in items))
    return tuple(movement.expand(x, shape) for x in items)


def _unstack(x, /, *, axis=0):
    return tuple(pieces.unbind(tensor_of(x), one_axis(axis, tensor_of(x), "unstack")))


JOINS = {
    np.concatenate: _concatenate,
    np.stack: _stack,
    np.vstack: _vstack,
    np.hstack: _hstack,
    np.dstack: lambda tup: joining.dstack(of_one_dtype([tensor_of(x) for x in tup])),
    np.column_stack: _column_stack,
    np.block: _block,
    np.append: _append,
    np.insert: _insert,
    np.delete: _delete,
    np.split: _split(False),
    np.array_split: _split(True),
    np.vsplit: _split_along(0),
    np.hsplit: _split_along(1),
    np.dsplit: _split_along(2),
    np.atleast_1d: _at_least(1),
    np.atleast_2d: _at_least(2),
    np.atleast_3d: _at_least(3),
    np.broadcast_to: _broadcast_to,
    np.broadcast_arrays: _broadcast_arrays,
    np.meshgrid: _meshgrid,
}
# Names of newer releases.
if hasattr(np, "unstack"):
    JOINS[np.unstack] = _unstack
