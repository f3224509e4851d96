"""Arrays turned, laid out anew and taken from.

What NumPy does to the places of elements it can do to their numbers: `rearranged` gives those to
its own function and takes the elements from there. So every argument means what it means there.
"""

import numpy as np

from probtorch.array_functions.arguments import (
    UnknownArgument,
    absent,
    flat,
    one_axis,
    plain_arrays,
    rearranged,
    tensor_of,
    whole,
)
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.shape import normalize_dims
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ShapeError
from probtorch.ops import arithmetic, diagonals, gathering, movement, padding, pieces, repeating

__all__ = ["SHAPES"]


def _transpose(a, axes=None):
    x = tensor_of(a)
    return movement.permute(x, tuple(range(x.array.ndim))[::-1] if axes is None else tuple(axes))


def _reshape(a, /, shape=None, order="C", *, copy=None):
    x = tensor_of(a)
    if shape is None:
        raise UnknownArgument("shape")
    if copy is False and (order != "C" or not np.shares_memory(x.array.reshape(shape), x.array)):
        if x.array.size:
            raise UnknownArgument("copy")  # NumPy knows whether it is a view
    if order not in ("C", "A") or (order == "A" and not x.array.flags.c_contiguous):
        return rearranged(np.reshape, x, plain_arrays(shape, force=True), order)
    found = movement.reshape(x, shape)
    return arithmetic.clone(found) if copy else found


def _ravel(a, order="C"):
    x = tensor_of(a)
    if order != "C" and not x.array.flags.c_contiguous:
        # In memory's own order, or by columns, of which only x itself knows.
        places = np.empty_like(x.array, int, order="K")
        places[...] = np.arange(x.array.size).reshape(x.array.shape)
        return flat(x)[wrap(places.ravel(order))]
    return flat(x) if order in ("C", "K", "A") else rearranged(np.ravel, x, order)


def _squeeze(a, axis=None):
    x = tensor_of(a)
    if axis is None:
        return movement.squeeze(x)
    dims = normalize_dims(axis, x.array.ndim, "squeeze")
    if any(x.array.shape[d] != 1 for d in dims):
        raise ShapeError(
            "squeeze",
            expected="axes of size 1",
            got=f"axis={axis} of shape {tuple(x.array.shape)}",
            fix="take an element there, or leave axis out",
        )
    return movement.squeeze(x, dims) if dims else x


def _expand_dims(a, axis):
    x = tensor_of(a)
    if type(axis) is int:
        return movement.unsqueeze(x, axis)
    return movement.reshape(x, np.expand_dims(np.empty(x.array.shape, bool), axis).shape)


def _swapaxes(a, axis1, axis2):
    x = tensor_of(a)
    if not x.array.ndim:
        raise UnknownArgument("axis1")  # NumPy has the words for it
    return movement.swapaxes(x, one_axis(axis1, x, "swapaxes"), one_axis(axis2, x, "swapaxes"))


def _moveaxis(a, source, destination):
    def listed(axes):
        if isinstance(axes, (tuple, list, np.ndarray)) and np.ndim(axes):
            return tuple(one_axis(i, x, "moveaxis") for i in axes)
        return (one_axis(axes, x, "moveaxis"),)

    x = tensor_of(a)
    if not x.array.ndim:
        raise UnknownArgument("source")
    return movement.movedim(x, listed(source), listed(destination))


def _roll(a, shift, axis=None):
    x = tensor_of(a)
    if type(shift) is int and x.array.ndim and (axis is None or type(axis) is int):
        if axis is None:
            return movement.reshape(repeating.roll(flat(x), shift, 0), tuple(x.array.shape))
        return repeating.roll(x, shift, axis)
    return rearranged(np.roll, x, plain_arrays(shift, force=True), axis)


def _flip(m, axis=None):
    x = tensor_of(m)
    return pieces.flip(x, list(normalize_dims(axis, x.array.ndim, "flip")))


def _flipped(name, dim):
    def handler(m):
        x = tensor_of(m)
        if x.array.ndim <= dim:
            raise ShapeError(
                name,
                expected=f"an array of at least {dim + 1} dims",
                got=f"shape {tuple(x.array.shape)}",
                fix="reshape it",
            )
        return pieces.flip(x, [dim])

    return handler


def _rot90(m, k=1, axes=(0, 1)):
    return rearranged(np.rot90, tensor_of(m), k, axes)


def _triangle(fn):
    def handler(m, k=0):
        x, k = tensor_of(m), whole(k, "k")
        if x.array.ndim == 1:  # the rows of a square
            x = movement.expand(x, (x.array.shape[0], x.array.shape[0]))
        return fn(x, k)

    return handler


def _diag(v, k=0):
    x, k = tensor_of(v), whole(k, "k")
    if x.array.ndim not in (1, 2):
        raise ShapeError(
            "diag",
            expected="a vector or a matrix",
            got=f"shape {tuple(x.array.shape)}",
            fix="for stacks of matrices, numpy.diagonal(x, axis1=-2, axis2=-1)",
        )
    return diagonals.diag_embed(x, k) if x.array.ndim == 1 else diagonals.diagonal(x, k)


def _diagonal(a, offset=0, axis1=0, axis2=1):
    x = tensor_of(a)
    axes = one_axis(axis1, x, "diagonal"), one_axis(axis2, x, "diagonal")
    return diagonals.diagonal(x, whole(offset, "offset"), *axes)


def _take(a, indices, axis=None, out=None, mode="raise"):
    absent({"out": out})
    x = tensor_of(a)
    dim = 0 if axis is None else one_axis(axis, x, "take")
    x = flat(x) if axis is None or not x.array.ndim else x
    if mode != "raise":
        return rearranged(np.take, x, plain_arrays(indices, force=True), dim, None, mode)
    at = tensor_of(indices)
    if at.array.dtype.kind not in "iu":
        # An empty list is one of doubles; a mask is none of places.
        if at.array.size or at.array.dtype.kind != "f":
            raise UnknownArgument("indices")
        at = cast(at, np.dtype(np.int64))
    return x[(slice(None),) * dim + (at,)]


def _take_along_axis(arr, indices, axis=-1):
    at = tensor_of(indices)
    if axis is None:
        if at.array.ndim != 1:
            raise UnknownArgument("indices")  # NumPy has the words for it
        return gathering.take_along_dim(flat(arr), at)
    x = tensor_of(arr)
    return gathering.take_along_dim(x, at, one_axis(axis, x, "take_along_axis"))


def _full_like(a, fill_value, dtype=None, order="K", subok=True, shape=None, *, device=None):
    x = tensor_of(a)
    dtype = x.array.dtype if dtype is None else np.dtype(dtype)
    shape = x.array.shape if shape is None else shape
    if isinstance(fill_value, TensorBase):
        value = cast(fill_value, dtype)
        return arithmetic.clone(movement.expand(value, np.broadcast_shapes(shape)))
    return wrap(np.full(shape, fill_value, dtype))


def _filled(value):
    """`np.zeros_like` and its kin, whose second argument is the dtype."""

    def handler(a, dtype=None, order="K", subok=True, shape=None, *, device=None):
        return _full_like(a, value, dtype, order, subok, shape)

    return handler


def _repeat(a, repeats, axis=None):
    x = tensor_of(a)
    dim = None if axis is None else one_axis(axis, x, "repeat")
    x = x if x.array.ndim else flat(x)
    if type(repeats) is int and repeats >= 0:
        return gathering.repeat_interleave(x, repeats, dim)
    return rearranged(np.repeat, x, plain_arrays(repeats, force=True), dim)


def _tile(A, reps):
    counts = plain_arrays(reps, force=True)
    return repeating.tile(tensor_of(A), [whole(r, "reps") for r in np.atleast_1d(counts)])


def _pad(array, pad_width, mode="constant", **kwargs):
    x = tensor_of(array)
    width = plain_arrays(pad_width, force=True)
    if mode in ("edge", "wrap", "reflect", "symmetric") and not kwargs.get("reflect_type") == "odd":
        return rearranged(np.pad, x, width, mode, **kwargs)
    value = kwargs.pop("constant_values", 0)
    absent(kwargs)
    if mode != "constant" or type(value) not in (int, float) or isinstance(width, dict):
        raise UnknownArgument("mode")
    width = np.asarray(width)
    if width.dtype.kind not in "iu" or (width < 0).any():
        raise UnknownArgument("pad_width")  # NumPy has the words for it
    widths = np.broadcast_to(width, (x.array.ndim, 2))
    return padding.pad(x, widths[::-1].ravel().tolist(), "constant", float(value))


SHAPES = {
    np.reshape: _reshape,
    np.ravel: _ravel,
    np.transpose: _transpose,
    np.squeeze: _squeeze,
    np.expand_dims: _expand_dims,
    np.swapaxes: _swapaxes,
    np.moveaxis: _moveaxis,
    np.tile: _tile,
    np.repeat: _repeat,
    np.pad: _pad,
    np.roll: _roll,
    np.rot90: _rot90,
    np.flip: _flip,
    np.flipud: _flipped("flipud", 0),
    np.fliplr: _flipped("fliplr", 1),
    np.tril: _triangle(diagonals.tril),
    np.triu: _triangle(diagonals.triu),
    np.diag: _diag,
    np.diagflat: lambda v, k=0: diagonals.diag_embed(flat(v), whole(k, "k")),
    np.diagonal: _diagonal,
    np.take: _take,
    np.take_along_axis: _take_along_axis,
    np.copy: lambda a, order="K", subok=False: arithmetic.clone(tensor_of(a)),
    np.zeros_like: _filled(0),
    np.ones_like: _filled(1),
    np.empty_like: _filled(0),
    np.full_like: _full_like,
}
# Names of newer releases.
if hasattr(np, "matrix_transpose"):
    SHAPES[np.matrix_transpose] = lambda x, /: movement.swapaxes(tensor_of(x), -1, -2)
