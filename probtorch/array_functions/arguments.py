"""What entries of the tables share: unknown arguments, and tensors of what is given."""

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.shape import broadcast_shapes, normalize_dim
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ShapeError
from probtorch.ops import arithmetic, movement

__all__ = [
    "UnknownArgument",
    "absent",
    "at_least",
    "flat",
    "is_given",
    "kept",
    "of_one_dtype",
    "one_axis",
    "one_of",
    "ours",
    "plain_arrays",
    "rearranged",
    "tensor_of",
    "where_true",
    "whole",
]


def plain_arrays(x, force=False):
    """The same with arrays in the place of tensors; a recording hears of it."""
    if isinstance(x, TensorBase):
        return x.numpy(force=force)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return x
    if isinstance(x, (list, tuple)):
        return type(x)(plain_arrays(item, force) for item in x)
    if isinstance(x, dict):
        return {k: plain_arrays(v, force) for k, v in x.items()}
    return x


def tensor_of(x):
    """Return what is given to a function of NumPy's as a tensor: lists and numbers are of doubles.

    A tensor of no dims has no say about the dtype of what is computed with it.
    """
    if isinstance(x, (bool, int, float, complex)):
        return as_tensor(np.asarray(x))
    if isinstance(x, (list, tuple, range)) and not _holds_tensor(x):
        return as_tensor(np.asarray(x))
    return as_tensor(x)


def _holds_tensor(x):
    if isinstance(x, (list, tuple)):
        return any(map(_holds_tensor, x))
    return isinstance(x, TensorBase)


def absent(kwargs, *known):
    """Refuse arguments that were given and are not known here."""
    for name, value in kwargs.items():
        if name not in known and value is not None and value is not np._NoValue:
            raise UnknownArgument(name)


def is_given(x):
    """Whether an argument is neither None nor NumPy's mark for none."""
    return x is not None and x is not np._NoValue


def at_least(x, ndim):
    """The same with as many dims of size 1 before its own as it takes."""
    x = tensor_of(x)
    return movement.reshape(x, (1,) * (ndim - x.array.ndim) + tuple(x.array.shape))


def of_one_dtype(items):
    """The tensors in the dtype that holds all of them."""
    dtype = np.result_type(*(x.array.dtype for x in items))
    return [cast(x, dtype) for x in items]


def ours(fn, most=2):
    """An entry for a function with the same arguments."""

    def handler(*args, **kwargs):
        if kwargs or len(args) > most:
            raise UnknownArgument("arguments")
        return fn(*(tensor_of(x) for x in args))

    return handler


class UnknownArgument(Exception):
    """An argument that an entry of the table does not know."""


def flat(x):
    """All elements of what is given, in one dim."""
    return movement.reshape(tensor_of(x), (-1,))


def rearranged(fn, x, *args, **kwargs):
    """Return what a function of NumPy's that only moves elements makes of a tensor."""
    places = fn(np.arange(x.array.size).reshape(x.array.shape), *args, **kwargs)
    return flat(x)[wrap(np.array(places))]


def whole(x, name):
    """Return a Python integer; what is none is an argument that the entry does not know."""
    if isinstance(x, bool) or not isinstance(x, (int, np.integer)):
        raise UnknownArgument(name)
    return int(x)


def one_axis(axis, x, op):
    """Return NumPy's axis of a tensor from 0 up; an error of ours where it has none."""
    return normalize_dim(axis, x.array.ndim, op)


def one_of(name, value, *known):
    """Refuse what is not known of an argument that is one of a few words."""
    if value not in known:
        raise UnknownArgument(name)


def kept(keepdims):
    """Return NumPy's ``keepdims`` as a bool, False where it was not given."""
    return bool(is_given(keepdims) and keepdims)


def where_true(where, x, other):
    """Return `x` with another number where a mask, which broadcasts to its shape, is not true."""
    mask = tensor_of(where)
    shape = tuple(x.array.shape)
    if broadcast_shapes(tuple(mask.array.shape), shape, op="where") != shape:
        raise ShapeError(
            "where",
            expected=f"a mask that broadcasts to {shape}",
            got=f"shape {tuple(mask.array.shape)}",
            fix="expand the array first",
        )
    if mask.array.dtype.kind != "b":
        raise UnknownArgument("where")
    return arithmetic.where(mask, x, other)
