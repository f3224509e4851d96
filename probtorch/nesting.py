"""Nested sequences as tensors: numbers, arrays and tensors, mixed as they come.

A tensor among them keeps its gradient: then the sequence is a `stack`, on the tape and in a
recording like any other operation. Without one it is NumPy's array.
"""

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast, cast_array
from probtorch.core.dispatch import grad_enabled, recorder, wrap
from probtorch.core.doors import nesting
from probtorch.core.making import as_tensor
from probtorch.core.refusals import no_numbers
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import entered, is_number, number_alone
from probtorch.errors import ShapeError
from probtorch.ops.pieces import stack

__all__ = ["followed", "from_nested"]


def followed(t):
    """Whether what happens to the tensor `t` is to be put on the tape or into a recording."""
    return (t.requires_grad and grad_enabled()) or recorder() is not None


def from_nested(data, dtype=None, op="tensor"):
    """Return a tensor of nested sequences; always new memory.

    Parameters
    ----------
    data : list or tuple
        Of numbers, arrays, tensors and sequences of them, rows of equal shape.
    dtype : dtype, optional
        Otherwise that of the tensors and arrays, promoted; Python floats alone have the default.

    Raises
    ------
    ShapeError
        If rows differ in shape.
    DTypeError
        If something else than numbers is among them.
    """
    leaves = list(_leaves(data))
    if dtype is None:
        dtype = _common(leaves)
    tensors = [x for x in leaves if isinstance(x, TensorBase)]
    if any(map(followed, tensors)) or any(type(t.array) is not np.ndarray for t in tensors):
        return _stacked(data, dtype, op)
    t = wrap(_array(data, dtype, op))
    if recorder() is not None:
        for x in leaves:
            entered(x, t)
    return t


def _leaves(data):
    for x in data:
        if isinstance(x, (list, tuple)):
            yield from _leaves(x)
        else:
            yield x


def _common(leaves):
    """The dtype of what has one, promoted; None where Python's numbers and arrays decide alone."""
    found = [_dtype_of(x) for x in leaves]
    floats = {d for d in found if isinstance(d, np.dtype) and d.kind in "fc"}
    if floats and any(type(x) is complex for x in leaves):
        floats.add(dtypes.complex64)
    return np.result_type(*floats) if floats else None


def _dtype_of(x):
    """NumPy's dtype of what has one, also of columns whose own dtypes are others."""
    found = None if is_number(x) else getattr(x, "dtype", None)
    if found is None or isinstance(found, np.dtype) or not hasattr(x, "__array__"):
        return found
    return np.asarray(x).dtype


def _array(data, dtype, op):
    """NumPy's array of nested sequences, floats in the default dtype where nothing else says so."""
    try:
        array = np.array(_plain(data))
    except ValueError as e:
        raise _ragged(op, str(e)) from None
    if array.dtype.kind not in "biufc":
        raise no_numbers(op, array, data)
    if dtype is None and array.dtype.kind in "fc":
        dtype = dtypes.as_dtype(float if array.dtype.kind == "f" else complex)
    return array if dtype is None else cast_array(array, dtype)


def _plain(data):
    """The same with the arrays of tensors in their places."""
    return [
        _plain(x) if isinstance(x, (list, tuple)) else x.array if isinstance(x, TensorBase) else x
        for x in data
    ]


def _stacked(data, dtype, op):
    """The rows one by one, stacked."""
    if not any(isinstance(x, TensorBase) for x in _leaves(data)):
        return from_nested(data, dtype, op)
    rows = [
        _stacked(x, dtype, op) if isinstance(x, (list, tuple)) else _row(x, dtype, op) for x in data
    ]
    shapes = {x.array.shape for x in rows}
    if len(shapes) > 1:
        raise _ragged(op, "rows of shapes " + ", ".join(sorted(map(str, shapes))))
    if dtype is None:
        dtype = np.result_type(*(x.array for x in rows))
    return stack([cast(x, dtype) for x in rows])


def _row(x, dtype, op):
    """One tensor, array or number; a number in the dtype to come, so that no digits are lost."""
    if is_number(x):
        return cast(number_alone(x), dtypes.default_dtype() if dtype is None else dtype)
    if isinstance(x, TensorBase) or hasattr(x, "__cuda_array_interface__"):
        return as_tensor(x, op)
    if dtype is None and type(x) in (float, complex):
        dtype = dtypes.as_dtype(type(x))
    t = wrap(np.asarray(_array([x], dtype, op)[0]))
    entered(x, t)
    return t


def _ragged(op, what):
    return ShapeError(
        op, expected="rows of equal length", got=f"ragged data ({what})", fix="pad the rows"
    )


nesting.fill(from_nested)
