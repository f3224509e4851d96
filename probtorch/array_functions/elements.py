"""Functions of NumPy and of `scipy.special` that are computed element by element."""

import sys

import numpy as np

from probtorch.array_functions.arguments import tensor_of
from probtorch.array_functions.composed import COMPOSED, float_power, heaviside
from probtorch.core.casting import to_float, to_inexact
from probtorch.ops import (
    arithmetic,
    comparisons,
    complex_numbers,
    contraction,
    exponentials,
    numeric,
    special,
    trigonometry,
)

__all__ = ["named_operation", "operation_of"]

# NumPy's name, and ours where it differs.
_NUMPY_TABLE = (
    "add subtract=sub multiply=mul true_divide=div power=pow negative=neg "
    "absolute=abs exp exp2 expm1 log log2 log10 log1p sqrt square sin cos tan sinh cosh "
    "tanh arcsin=asin arccos=acos arctan=atan arctan2=atan2 arcsinh=asinh arccosh=acosh "
    "arctanh=atanh hypot maximum minimum fmax fmin equal=eq not_equal=ne less=lt less_equal=le "
    "greater=gt greater_equal=ge logical_and logical_or logical_xor logical_not isnan isfinite "
    "isinf signbit copysign nextafter floor ceil sign remainder floor_divide logaddexp "
    "logaddexp2 reciprocal cbrt trunc fmod ldexp gcd lcm deg2rad rad2deg "
    "degrees=rad2deg radians=deg2rad bitwise_and bitwise_or bitwise_xor "
    "invert=bitwise_not left_shift=bitwise_left_shift right_shift=bitwise_right_shift"
)
_SCIPY_TABLE = (
    "expit=sigmoid logit gammaln=lgamma psi=digamma digamma erf erfc erfinv xlogy expm1 log1p exp2 "
    "cbrt i0 log_expit=log_sigmoid ndtr log_ndtr ndtri i0e i1 i1e iv ive kv kve erfcx xlog1py "
    "betaln entr betainc gammainc gammaincc j0=bessel_j0 j1=bessel_j1 y0=bessel_y0 y1=bessel_y1 "
    "k0=modified_bessel_k0 k1=modified_bessel_k1 k0e=scaled_modified_bessel_k0 "
    "k1e=scaled_modified_bessel_k1"
)


def named_operation(name):
    """Return our operation on elements of that name, None without one."""
    rooms = (
        arithmetic,
        comparisons,
        exponentials,
        trigonometry,
        special,
        numeric,
        complex_numbers,
    )
    for module in rooms:
        if hasattr(module, name):
            return getattr(module, name)
    return None


# ------------------------------------------------------------------------------------ the tables


def _table(source, entries):
    found = {}
    for entry in entries.split():
        name, _, given = entry.partition("=")
        ufunc, op = getattr(source, name, None), named_operation(given or name)
        if ufunc is not None and op is not None:
            found[ufunc] = op
    return found


def _conjugate(x):
    x = tensor_of(x)
    return complex_numbers.conj(x) if x.array.dtype.kind == "c" else arithmetic.clone(x)


_UFUNCS = _table(np, _NUMPY_TABLE)
_UFUNCS[np.matmul] = contraction.matmul
_UFUNCS[np.conjugate] = _conjugate
_UFUNCS[np.positive] = lambda x: arithmetic.clone(tensor_of(x))
_UFUNCS[np.heaviside] = heaviside
_UFUNCS[np.fabs] = lambda x: arithmetic.abs(to_float(tensor_of(x)))
_UFUNCS[np.rint] = lambda x: arithmetic.round(to_inexact(tensor_of(x)))
_UFUNCS[np.float_power] = float_power
_scipy_ufuncs: dict = {}


def operation_of(ufunc):
    """Return our operation for a ufunc, None without one."""
    op = _UFUNCS.get(ufunc)
    if op is None and not _scipy_ufuncs and "scipy.special" in sys.modules:
        # Only now: importing it takes longer than everything else of a front door.
        source = sys.modules["scipy.special"]
        _scipy_ufuncs.update(_table(source, _SCIPY_TABLE))
        _scipy_ufuncs.update(
            {getattr(source, n): fn for n, fn in COMPOSED.items() if hasattr(source, n)}
        )
        _UFUNCS.update(_scipy_ufuncs)
        op = _UFUNCS.get(ufunc)
    return op
