"""Operators whose right operand is of a class that knows them better.

Python asks the left operand first, and a tensor takes lists, arrays and tables. What it cannot
take, or would take for a plain list though its class says otherwise, is asked as Python would ask
it: by the reflected method.
"""

from __future__ import annotations

from probtorch.core.tensor_base import TensorBase

__all__ = ["by_right_operand"]

# By the name of an op, the method of the other operand.
_REFLECTED = {
    "add": "__radd__",
    "sub": "__rsub__",
    "mul": "__rmul__",
    "div": "__rtruediv__",
    "pow": "__rpow__",
    "remainder": "__rmod__",
    "floor_divide": "__rfloordiv__",
    "matmul": "__rmatmul__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
    "shift_left": "__rlshift__",
    "shift_right": "__rrshift__",
    "lt": "__gt__",
    "le": "__ge__",
    "gt": "__lt__",
    "ge": "__le__",
}
_PLAIN = (list, tuple, object)
# What has one of these computes with NumPy's arrays: it would ask for the tensor's numbers.
_OF_ARRAYS = ("__array__", "__array_priority__")


def by_right_operand(op: str, input: object, other: object) -> object:
    """Return what the class of `other` makes of ``input op other``, or NotImplemented."""
    name = _REFLECTED.get(op)
    kind = type(other)
    if name is None or not isinstance(input, TensorBase) or isinstance(other, TensorBase):
        return NotImplemented
    if kind.__module__ == "builtins" or any(hasattr(kind, mark) for mark in _OF_ARRAYS):
        return NotImplemented
    method = getattr(kind, name, None)
    if method is None or any(method is getattr(plain, name, None) for plain in _PLAIN):
        return NotImplemented
    return method(other, input)
