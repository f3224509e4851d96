"""Arrays put together, taken apart and turned."""

import numpy as np

from probtorch.array_functions.arguments import (
    UnknownArgument,
    absent,
    as_given,
    at_least,
    flat,
    of_one_dtype,
    tensor_of,
    whole,
)
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.ops import (
    arithmetic,
    diagonals,
    gathering,
    joining,
    movement,
    padding,
    pieces,
    repeating,
    reshaping,
)

__all__ = ["SHAPES"]


def _joined(fn):
    def handler(arrays, axis=0, out=None, **kwargs):
        absent({**kwargs, "out": out})
        items = [tensor_of(x) for x in arrays]
        if axis is None:
            return fn([flat(x) for x in items], 0)
        return fn(of_one_dtype(items), axis)

    return handler


def _vstack(tup, **kwargs):
    absent(kwargs)
    return pieces.cat(of_one_dtype([at_least(x, 2) for x in tup]), 0)


def _hstack(tup, **kwargs):
    absent(kwargs)
    items = of_one_dtype([at_least(x, 1) for x in tup])
    return pieces.cat(items, 0 if items[0].array.ndim == 1 else 1)


def _column_stack(tup):
    items = [at_least(x, 1) for x in tup]
    items = [x if x.array.ndim > 1 else movement.reshape(x, (-1, 1)) for x in items]
    return pieces.cat(of_one_dtype(items), 1)


def _transpose(a, axes=None):
    a = tensor_of(a)
    return movement.permute(a, tuple(range(a.array.ndim))[::-1] if axes is None else tuple(axes))


def _reshape(a, /, shape=None, order="C", *, copy=None, **kwargs):
    absent({**kwargs, "order": None if order == "C" else order, "copy": copy})
    return movement.reshape(tensor_of(a), shape)


def _ravel(a, order="C"):
    absent({"order": None if order == "C" else order})
    return movement.reshape(tensor_of(a), (-1,))


def _squeeze(a, axis=None):
    return movement.squeeze(tensor_of(a)) if axis is None else movement.squeeze(tensor_of(a), axis)


def _expand_dims(a, axis):
    if not isinstance(axis, int):
        raise UnknownArgument("axis")
    return movement.unsqueeze(tensor_of(a), axis)


def _broadcast_to(array, shape, subok=False):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return movement.expand(tensor_of(array), shape)


def _roll(a, shift, axis=None):
    if axis is None:
        a = tensor_of(a)
        flat = repeating.roll(movement.reshape(a, (-1,)), shift, 0)
        return movement.reshape(flat, tuple(a.array.shape))
    return repeating.roll(tensor_of(a), shift, axis)


def _flip(m, axis=None):
    m = tensor_of(m)
    axes = range(m.array.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    return pieces.flip(m, list(axes))


def _diag(v, k=0):
    v = tensor_of(v)
    return diagonals.diag_embed(v, k) if v.array.ndim == 1 else diagonals.diagonal(v, k)


def _diagonal(a, offset=0, axis1=0, axis2=1):
    return diagonals.diagonal(tensor_of(a), offset, axis1, axis2)


def _take(a, indices, axis=None, out=None, mode="raise"):
    absent({"out": out, "mode": None if mode == "raise" else mode})
    x = tensor_of(a)
    if axis is None:
        return flat(x)[tensor_of(indices)]
    return x[(slice(None),) * (axis % x.array.ndim) + (tensor_of(indices),)]


def _full_like(value):
    def handler(a, fill_value=value, dtype=None, **kwargs):
        absent({k: v for k, v in kwargs.items() if k not in ("order", "subok")})
        dtype = a.array.dtype if dtype is None else np.dtype(dtype)
        if isinstance(fill_value, TensorBase):
            shape = tuple(a.array.shape)
            return arithmetic.clone(movement.expand(cast(fill_value, dtype), shape))
        return wrap(np.full(a.array.shape, fill_value, dtype))

    return handler


def _repeat(a, repeats, axis=None):
    if isinstance(repeats, int):
        return gathering.repeat_interleave(tensor_of(a), repeats, axis)
    return gathering.repeat_interleave(tensor_of(a), tensor_of(repeats), axis)


def _split(uneven):
    """`np.array_split` takes pieces that differ by one, `np.split` does not."""

    def handler(ary, indices_or_sections, axis=0):
        x = tensor_of(ary)
        at = indices_or_sections
        if isinstance(at, (int, np.integer)):
            if not uneven and x.array.shape[axis] % at:
                raise ValueError("array split does not result in an equal division")
            at = int(at)
        else:
            at = [whole(i, "indices_or_sections") for i in at]
        return list(joining.tensor_split(x, at, axis))

    return handler


def _split_along(axis):
    def handler(ary, indices_or_sections):
        dim = 0 if axis == 1 and tensor_of(ary).array.ndim == 1 else axis
        return _split(False)(ary, indices_or_sections, dim)

    return handler


def _pad(array, pad_width, mode="constant", **kwargs):
    value = kwargs.pop("constant_values", 0)
    absent(kwargs)
    if mode not in ("constant", "edge", "wrap", "reflect") or not isinstance(value, (int, float)):
        raise UnknownArgument("mode")
    x = tensor_of(array)
    widths = np.broadcast_to(np.asarray(pad_width), (x.array.ndim, 2))
    if mode == "constant":
        return padding.pad(x, widths[::-1].ravel().tolist(), "constant", float(value))
    for axis, (before, after) in enumerate(widths.tolist()):
        # Places along the axis with its own as the numbers of what stands there.
        places = np.pad(np.arange(x.array.shape[axis]), (before, after), mode=mode)
        x = x[(slice(None),) * axis + (wrap(places),)]
    return x


def _append(arr, values, axis=None):
    return _joined(pieces.cat)((arr, values), axis)


def _insert(arr, obj, values, axis=None):
    x, at = tensor_of(arr), whole(obj, "obj")
    x, axis = (flat(x), 0) if axis is None else (x, axis)
    size = x.array.shape[axis]
    if not -size <= at <= size:
        raise IndexError(f"index {at} is out of bounds for axis {axis} with size {size}")
    before, after = joining.tensor_split(x, [at % (size + 1) if at >= 0 else at + size], axis)
    v = tensor_of(values)
    if v.array.ndim < x.array.ndim:
        v = movement.expand(v, (1,) * (x.array.ndim - v.array.ndim) + tuple(v.array.shape))
        if x.array.ndim > 1:
            shape = [*x.array.shape]
            shape[axis] = 1
            v = movement.expand(v, shape)
        elif v.array.shape == ():
            v = movement.reshape(v, (1,))
    return _joined(pieces.cat)((before, cast(v, x.array.dtype), after), axis)


def _delete(arr, obj, axis=None):
    x = tensor_of(arr)
    x, axis = (flat(x), 0) if axis is None else (x, axis)
    if isinstance(obj, TensorBase):
        raise UnknownArgument("obj")
    kept = np.delete(np.arange(x.array.shape[axis]), obj)
    return x[(slice(None),) * (axis % x.array.ndim) + (wrap(kept),)]


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


def _meshgrid(*xi, copy=True, sparse=False, indexing="xy"):
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


def _broadcast_arrays(*args, subok=False):
    items = [tensor_of(x) for x in args]
    shape = np.broadcast_shapes(*(tuple(x.array.shape) for x in items))
    return tuple(movement.expand(x, shape) for x in items)


def _unstack(x, /, *, axis=0):
    return tuple(pieces.unbind(tensor_of(x), axis))


def _take_along_axis(arr, indices, axis=-1):
    if axis is None:
        return gathering.take_along_dim(flat(arr), tensor_of(indices))
    return gathering.take_along_dim(tensor_of(arr), tensor_of(indices), axis)


SHAPES = {
    np.concatenate: _joined(pieces.cat),
    np.stack: _joined(pieces.stack),
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
    np.reshape: _reshape,
    np.ravel: _ravel,
    np.transpose: _transpose,
    np.squeeze: _squeeze,
    np.expand_dims: _expand_dims,
    np.swapaxes: as_given(movement.swapaxes),
    np.moveaxis: as_given(movement.movedim),
    np.atleast_1d: _at_least(1),
    np.atleast_2d: _at_least(2),
    np.atleast_3d: _at_least(3),
    np.broadcast_to: _broadcast_to,
    np.broadcast_arrays: _broadcast_arrays,
    np.meshgrid: _meshgrid,
    np.tile: lambda A, reps: repeating.tile(tensor_of(A), np.atleast_1d(reps).tolist()),
    np.repeat: _repeat,
    np.pad: _pad,
    np.roll: _roll,
    np.rot90: lambda m, k=1, axes=(0, 1): reshaping.rot90(tensor_of(m), k, tuple(axes)),
    np.flip: _flip,
    np.flipud: lambda m: _flip(m, 0),
    np.fliplr: lambda m: _flip(m, 1),
    np.tril: as_given(diagonals.tril),
    np.triu: as_given(diagonals.triu),
    np.diag: _diag,
    np.diagflat: lambda v, k=0: diagonals.diag_embed(flat(v), k),
    np.diagonal: _diagonal,
    np.take: _take,
    np.take_along_axis: _take_along_axis,
    np.copy: lambda a, order="K", subok=False: arithmetic.clone(tensor_of(a)),
    np.zeros_like: _full_like(0),
    np.ones_like: _full_like(1),
    np.empty_like: _full_like(0),
    np.full_like: _full_like(0),
}
# Names of newer releases.
if hasattr(np, "unstack"):
    SHAPES[np.unstack] = _unstack
if hasattr(np, "matrix_transpose"):
    SHAPES[np.matrix_transpose] = lambda x, /: movement.swapaxes(tensor_of(x), -1, -2)
