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
from probtorch.ops import arithmetic, comparisons, complex_numbers, movement, special
from probtorch.ops.take_put import put

__all__ = ["CHOICES"]


def _where(condition, *choices):
    if not choices:
        return np.where(plain_arrays(condition, force=True))
    return arithmetic.where(tensor_of(condition), *choices)


def _clip(a, a_min=None, a_max=None, out=None, *, min=None, max=None, **kwargs):
    absent({**kwargs, "out": out})
    low = a_min if is_given(a_min) else min
    high = a_max if is_given(a_max) else max
    x = tensor_of(a)
    x = arithmetic.maximum(x, tensor_of(low)) if is_given(low) else x
    return arithmetic.minimum(x, tensor_of(high)) if is_given(high) else x


def _nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    x = tensor_of(x)
    limits = np.finfo(x.array.dtype) if x.array.dtype.kind == "f" else None
    if limits is None:
        return x
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    x = arithmetic.where(comparisons.isnan(x), nan, x)
    x = arithmetic.where(x == np.inf, high, x)
    return arithmetic.where(x == -np.inf, low, x)


def _select(condlist, choicelist, default=0):
    if len(condlist) != len(choicelist):
        raise ValueError("list of cases must be same length as list of conditions")
    out = tensor_of(default)
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        out = arithmetic.where(tensor_of(condition), tensor_of(choice), out)
    return out


def _piecewise(x, condlist, funclist, *args, **kw):
    x = tensor_of(x)
    given = condlist if isinstance(condlist, (list, tuple)) else [condlist]
    if len(given) == 1 and np.ndim(plain_arrays(given[0], force=True)) > x.array.ndim:
        given = list(plain_arrays(given[0], force=True))
    conditions = [np.asarray(plain_arrays(c, force=True), bool) for c in given]
    if any(c.shape != x.array.shape for c in conditions):
        raise UnknownArgument("condlist")
    if len(conditions) not in (len(funclist), len(funclist) - 1):
        raise ValueError("with n conditions there are n or n + 1 functions")
    if len(funclist) > len(conditions):
        conditions.append(~np.any(conditions, axis=0))
    out = wrap(np.zeros(x.array.shape, x.array.dtype))
    # Of two conditions that hold the later one counts; a function sees what is its own.
    for condition, function in zip(conditions, funclist, strict=True):
        if not condition.any():
            continue
        where = [wrap(a) for a in np.nonzero(condition)]
        value = function(x[tuple(where)], *args, **kw) if callable(function) else function
        value = movement.expand(cast(tensor_of(value), x.array.dtype), (int(condition.sum()),))
        out = put(out, value, tuple(range(x.array.ndim)), where, False)
    return out


def _round(a, decimals=0, out=None):
    absent({"out": out})
    return arithmetic.round(tensor_of(a), decimals=whole(decimals, "decimals"))


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
    np.fix: lambda x, out=None: arithmetic.trunc(tensor_of(x)),
    np.sinc: lambda x: special.sinc(tensor_of(x)),
    np.i0: lambda x: special.i0(tensor_of(x)),
    np.real: lambda val: complex_numbers.real(tensor_of(val)),
    np.imag: lambda val: complex_numbers.imag(tensor_of(val)),
    np.angle: _angle,
}
