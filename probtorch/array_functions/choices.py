"""Functions that choose among values or change them one by one, and are no ufuncs."""

import numpy as np

from probtorch.array_functions.arguments import (
    UnknownArgument,
    absent,
    is_given,
    plain_arrays,
    tensor_of,
    whole,
)
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.ops import arithmetic, complex_numbers, movement, numeric, special
from probtorch.ops.take_put import put

__all__ = ["CHOICES"]


def _where(condition, *choices):
    if not choices:
        return np.where(plain_arrays(condition, force=True))
    return arithmetic.where(tensor_of(condition), *choices)


def _clip(a, a_min=np._NoValue, a_max=np._NoValue, out=None, *, min=None, max=None, **kwargs):
    absent({**kwargs, "out": out})
    one = a_min is not np._NoValue
    if one is not (a_max is not np._NoValue) or (one and (is_given(min) or is_given(max))):
        raise UnknownArgument("a_min")  # NumPy has the words for it
    low, high = (a_min, a_max) if one else (min, max)
    x = tensor_of(a)
    if not is_given(low) and not is_given(high):
        return arithmetic.clone(x)
    x = arithmetic.maximum(x, tensor_of(low)) if is_given(low) else x
    return arithmetic.minimum(x, tensor_of(high)) if is_given(high) else x


def _select(condlist, choicelist, default=0):
    if len(condlist) != len(choicelist):
        raise ValueError("list of cases must be same length as list of conditions")
    if any(tensor_of(c).array.dtype.kind != "b" for c in condlist):
        raise UnknownArgument("condlist")  # NumPy has the words for it
    out = tensor_of(default)
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        out = arithmetic.where(tensor_of(condition), tensor_of(choice), out)
    return out


def _piecewise(x, condlist, funclist, *args, **kw):
    x = tensor_of(x)
    if not x.array.ndim:
        rows = np.asarray(plain_arrays(condlist, force=True), bool).reshape(-1, 1)
        line = _piecewise(movement.reshape(x, (1,)), list(rows), funclist, *args, **kw)
        return movement.reshape(line, ())
    given = plain_arrays(condlist, force=True)
    if np.isscalar(given) or not isinstance(given[0], (list, np.ndarray)):
        given = [given]
    conditions = [np.asarray(c, bool) for c in given]
    if len(conditions) not in (len(funclist), len(funclist) - 1):
        raise ValueError("with n conditions there are n or n + 1 functions")
    if any(c.shape != x.array.shape for c in conditions):
        raise UnknownArgument("condlist")
    if len(funclist) > len(conditions):
        conditions.append(~np.any(conditions, axis=0))
    out = wrap(np.zeros(x.array.shape, x.array.dtype))
    # Of two conditions that hold the later one counts; a function sees what is its own.
    for condition, function in zip(conditions, funclist, strict=True):
        if callable(function) and not condition.any():
            continue
        where = [wrap(a) for a in np.nonzero(condition)]
        value = function(x[tuple(where)], *args, **kw) if callable(function) else function
        value = movement.expand(cast(tensor_of(value), x.array.dtype), (int(condition.sum()),))
        out = put(out, value, tuple(range(x.array.ndim)), where, False)
    return out


def _nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    return numeric.nan_to_num(tensor_of(x), nan, posinf, neginf)


def _round(a, decimals=0, out=None):
    absent({"out": out})
    x, places = tensor_of(a), whole(decimals, "decimals")
    if x.array.dtype.kind == "c":
        parts = complex_numbers.real(x), complex_numbers.imag(x)
        return complex_numbers.complex(*(arithmetic.round(p, decimals=places) for p in parts))
    if x.array.dtype.kind == "b" or (x.array.dtype.kind in "iu" and places < 0):
        raise UnknownArgument("decimals")  # NumPy's own: there is no gradient to be lost
    if x.array.dtype.kind in "iu":
        return arithmetic.clone(x)
    return arithmetic.round(x, decimals=places)


def _fix(x, out=None):
    absent({"out": out})
    return arithmetic.trunc(tensor_of(x))


def _imag(val):
    x = tensor_of(val)
    if x.array.dtype.kind != "c":
        return wrap(np.zeros(x.array.shape, x.array.dtype))
    return complex_numbers.imag(x)


def _angle(z, deg=False):
    angle = complex_numbers.angle(tensor_of(z))
    return angle * (180.0 / np.pi) if deg else angle


CHOICES = {
    np.where: _where,
    np.clip: _clip,
    np.select: _select,
    np.piecewise: _piecewise,
    np.nan_to_num: _nan_to_num,
    np.round: _round,
    np.around: _round,
    np.fix: _fix,
    np.sinc: lambda x: special.sinc(tensor_of(x)),
    np.i0: lambda x: special.i0(tensor_of(x)),
    np.real: lambda val: complex_numbers.real(tensor_of(val)),
    np.imag: _imag,
    np.angle: _angle,
}
