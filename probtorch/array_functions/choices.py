"""Functions that choose among values or change them one by one, and are no ufuncs."""

import numpy as np

from probtorch.array_functions.arguments import absent, is_given, plain_arrays, tensor_of, whole
from probtorch.ops import arithmetic, comparisons, complex_numbers, special

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
    x = arithmetic.where(comparisons.isnan(x), float(nan), x)
    x = arithmetic.where(x == np.inf, float(high), x)
    return arithmetic.where(x == -np.inf, float(low), x)


def _select(condlist, choicelist, default=0):
    if len(condlist) != len(choicelist):
        raise ValueError("list of cases must be same length as list of conditions")
    out = tensor_of(default)
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        out = arithmetic.where(tensor_of(condition), tensor_of(choice), out)
    return out


def _piecewise(x, condlist, funclist, *args, **kw):
    x = tensor_of(x)
    conditions = list(condlist) if isinstance(condlist, (list, tuple)) else [condlist]
    if len(conditions) not in (len(funclist), len(funclist) - 1):
        raise ValueError("with n conditions there are n or n + 1 functions")
    pieces = [tensor_of(f(x, *args, **kw) if callable(f) else f) for f in funclist]
    out = pieces[-1] if len(pieces) > len(conditions) else tensor_of(0.0)
    # Of two conditions that hold the later one counts.
    for condition, piece in zip(conditions, pieces, strict=False):
        out = arithmetic.where(tensor_of(condition), piece, out)
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
