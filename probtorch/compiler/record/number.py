"""`Number`: a tensor that a recording has in the place of a Python float which changes.

It does what the float does: with tensors it takes their dtype, with numbers it is a number again,
in double precision. Divided by zero it raises what Python raises; that it does not is a guard, and
so is what a comparison with a number says. To the user's code its class is `float`, and it has the
attributes of one; our own sees a tensor. Where Python looks at the float itself (a dict, a format,
`round`), the recording hears of a value that holds for this float alone. Nobody hears `type`:
where functions run whose code names it there are no such inputs (`guards/calls.py`).
"""

import operator
import sys
from pathlib import Path

import numpy as np

from probtorch.array_protocols import array_ufunc
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.errors import is_users
from probtorch.ops.arithmetic import abs as magnitude
from probtorch.ops.comparisons import isfinite
from probtorch.tensor import Tensor, retyped

__all__ = ["Number", "stand_in"]

_NUMBERS = (float, int, bool)
_OURS = str(Path(sys.modules["probtorch"].__file__ or "").parent)


class Number(TensorBase):
    """A tensor of no dims for a Python float; see `stand_in`."""

    __slots__ = ()

    def __getattribute__(self, name):
        file = sys._getframe(1).f_code.co_filename
        if name == "__class__":
            # Asked by `isinstance` for whatever is no class that this one derives from.
            return Tensor if file.startswith(_OURS) else float
        if name.startswith("__") or not is_users(file):
            return object.__getattribute__(self, name)
        value = object.__getattribute__(self, "array").item()
        if name == "real":
            return self
        if hasattr(value, name):
            value = read(f".{name}", self, value)
        return getattr(value, name)

    def __hash__(self):
        return hash(read("hash()", self, self.array.item()))

    def __round__(self, ndigits=None):
        return round(float(self), ndigits)

    def __neg__(self):
        return _number(-_plain(self))

    def __pos__(self):
        return self

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        plain = tuple(map(_plain, inputs))  # NumPy has dtypes of its own
        return array_ufunc(ufunc, method, plain, kwargs)

    def __abs__(self):
        return _number(magnitude(_plain(self)))


for _name in ("__len__", "__iter__", "__contains__", "__reversed__"):
    setattr(Number, _name, None)  # as for what has no items
for _name, _part in vars(Tensor).items():
    if _name not in vars(Number) and _name not in ("__module__", "__new__", "__weakref__"):
        setattr(Number, _name, _part)


def stand_in(value):
    """Return a tensor in the place of a float."""
    return _number(wrap(np.array(value, np.float64)))


def _number(t):
    found = retyped(t, Number)
    found._extra = {"number": True, **(t._extra or {})}
    return found


def _plain(x):
    """A number as a tensor in double precision, with a dtype that counts."""
    if type(x) is not Number:
        return x
    found = retyped(x, Tensor)
    found._extra = {k: v for k, v in (x._extra or {}).items() if k != "number"} or None
    return found


def _of_dtype(x, other):
    """The number as a tensor that takes part in the arithmetic of another one."""
    dtype = other.array.dtype
    if dtype.kind == "c":
        dtype = other.array.real.dtype
    return cast(_plain(x), dtype if dtype.kind == "f" else dtypes.default_dtype())


def _divides(x, y):
    if bool(_plain(y) == 0) if isinstance(y, Tensor) else y == 0:
        raise ZeroDivisionError("float division by zero")


def _raises_to(x, y):
    if bool(_plain(x) <= 0) if isinstance(x, Tensor) else x <= 0:
        float(y)  # an error, or a complex number, for some exponents: Python's affair
    if not bool(isfinite(_plain(x) ** _plain(y))):
        raise OverflowError("numerical result out of range")


def _method(name, check):
    compute = getattr(operator, name)

    def forth(self, other):
        if type(other) is Number or type(other) in _NUMBERS:
            check(self, other)
            return _number(compute(_plain(self), _plain(other)))
        if isinstance(other, Tensor):
            return compute(_of_dtype(self, other), other)
        return compute(_plain(self), other)

    def back(self, other):
        if type(other) in _NUMBERS:
            check(other, self)
            return _number(compute(other, _plain(self)))
        if isinstance(other, Tensor):
            return compute(other, _of_dtype(self, other))
        return compute(other, _plain(self))

    setattr(Number, f"__{name}__", forth)
    setattr(Number, f"__i{name}__", forth)  # which leaves what it was, as floats do
    setattr(Number, f"__r{name}__", back)


def _comparison(name):
    compute = getattr(operator, name)

    def compare(self, other):
        if type(other) is Number or type(other) in _NUMBERS:
            return bool(compute(_plain(self), _plain(other)))
        if isinstance(other, Tensor):
            return compute(_of_dtype(self, other), other)
        if not isinstance(other, np.ndarray | np.generic):  # which know what to do
            return getattr(0.0, f"__{name}__")(other)
        return compute(_plain(self), other)

    setattr(Number, f"__{name}__", compare)


def _nothing(x, y):
    pass


for _name, _check in {
    "add": _nothing,
    "sub": _nothing,
    "mul": _nothing,
    "truediv": _divides,
    "floordiv": _divides,
    "mod": _divides,
    "pow": _raises_to,
}.items():
    _method(_name, _check)
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _comparison(_name)
