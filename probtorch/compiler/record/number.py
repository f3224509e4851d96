"""`Number`: a tensor that a recording has in the place of a Python float which changes.

It does what the float does: with tensors it takes their dtype, with numbers it is a number again,
in double precision. Divided by zero it raises what Python raises; that it does not is a guard.
Where Python looks at the float itself (a dict, a format, `round`, `isinstance`), the recording
hears of a value that holds for this float alone. Nobody hears `type`: functions whose code names it
have no such inputs (`guards/walk.py`).
"""

import operator
import sys
from pathlib import Path

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.told import read
from probtorch.ops.arithmetic import abs as magnitude
from probtorch.ops.comparisons import isfinite
from probtorch.tensor import Tensor, retyped

__all__ = ["Number", "stand_in"]

_NUMBERS = (float, int, bool)
_OURS = str(Path(sys.modules["probtorch"].__file__ or "").parent)


class Number(Tensor):
    """A tensor of no dims for a Python float; see `stand_in`."""

    __slots__ = ()

    @property  # type: ignore[misc]  # what typeshed has can be written to
    def __class__(self):
        # Asked by `isinstance` for whatever is no class of tensors: `float`, say.
        if not sys._getframe(1).f_code.co_filename.startswith(_OURS):
            read("isinstance()", self, self.array.item())
        return Number

    def __hash__(self):
        return hash(read("hash()", self, self.array.item()))

    def __round__(self, ndigits=None):
        return round(float(self), ndigits)

    def __neg__(self):
        return _number(-_plain(self))

    def __abs__(self):
        return _number(magnitude(_plain(self)))


def stand_in(value):
    """Return a tensor in the place of a float."""
    return _number(wrap(np.array(value, np.float64)))


def _number(t):
    found = retyped(t, Number)
    found._extra = {"number": True, **(t._extra or {})}
    return found


def _plain(x):
    return retyped(x, Tensor) if type(x) is Number else x


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
    setattr(Number, f"__r{name}__", back)


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
