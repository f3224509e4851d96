"""Functions of NumPy and of `scipy.special` that are computed element by element."""

import math
import sys

import numpy as np

from probtorch.array_functions.arguments import tensor_of
from probtorch.core.casting import cast
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
    "add subtract=sub multiply=mul true_divide=div power=pow float_power=pow negative=neg "
    "absolute=abs fabs=abs exp exp2 expm1 log log2 log10 log1p sqrt square sin cos tan sinh cosh "
    "tanh arcsin=asin arccos=acos arctan=atan arctan2=atan2 arcsinh=asinh arccosh=acosh "
    "arctanh=atanh hypot maximum minimum fmax fmin equal=eq not_equal=ne less=lt less_equal=le "
    "greater=gt greater_equal=ge logical_and logical_or logical_xor logical_not isnan isfinite "
    "isinf signbit copysign nextafter floor ceil sign remainder floor_divide logaddexp "
    "logaddexp2 reciprocal cbrt rint=round trunc fmod ldexp gcd lcm deg2rad rad2deg "
    "degrees=rad2deg radians=deg2rad conjugate=conj bitwise_and bitwise_or bitwise_xor "
    "invert=bitwise_not left_shift=bitwise_left_shift right_shift=bitwise_right_shift"
)
_SCIPY_TABLE = (
    "expit=sigmoid logit gammaln=lgamma psi=digamma digamma erf erfc erfinv xlogy expm1 log1p exp2 "
    "cbrt i0 log_expit=log_sigmoid ndtr log_ndtr ndtri i0e i1 i1e iv ive erfcx xlog1py betaln entr "
    "betainc gammainc gammaincc j0=bessel_j0 j1=bessel_j1 y0=bessel_y0 y1=bessel_y1 "
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


# ------------------------------------------------------------- functions in terms of others of ours


def _sign_of_gamma(x):
    # Below 0 gamma changes its sign at each whole number.
    even = arithmetic.floor(x) * 0.5 == arithmetic.floor(arithmetic.floor(x) * 0.5)
    return arithmetic.where((x > 0.0) | even, 1.0, -1.0)


def _gamma(x):
    x = tensor_of(x)
    return _sign_of_gamma(x) * exponentials.exp(special.lgamma(x))


def _rgamma(x):
    x = tensor_of(x)
    return _sign_of_gamma(x) * exponentials.exp(-special.lgamma(x))


def _beta(a, b):
    a, b = tensor_of(a), tensor_of(b)
    sign = _sign_of_gamma(a) * _sign_of_gamma(b) * _sign_of_gamma(a + b)
    return sign * exponentials.exp(special.betaln(a, b))


def _box_cox(of_log):
    """`boxcox` of x has log(x), `boxcox1p` log(1 + x)."""

    def transformed(x, lmbda):
        log, power = of_log(tensor_of(x)), tensor_of(lmbda)
        none = power == 0.0
        used = arithmetic.where(none, 1.0, power)
        return arithmetic.where(none, log, exponentials.expm1(used * log) / used)

    return transformed


def _inverse_box_cox(from_log):
    def transformed(y, lmbda):
        y, power = tensor_of(y), tensor_of(lmbda)
        none = power == 0.0
        used = arithmetic.where(none, 1.0, power)
        return from_log(arithmetic.where(none, y, exponentials.log1p(used * y) / used))

    return transformed


def _rel_entr(x, y):
    x, y = tensor_of(x), tensor_of(y)
    both, zero = (x > 0.0) & (y > 0.0), (x == 0.0) & (y >= 0.0)
    x_used, y_used = arithmetic.where(both, x, 1.0), arithmetic.where(both, y, 1.0)
    inside = x_used * exponentials.log(x_used / y_used)
    unknown = (x != x) | (y != y)
    outside = arithmetic.where(unknown, math.nan, arithmetic.where(zero, 0.0, math.inf))
    return arithmetic.where(both, inside, outside)


def _huber(delta, r):
    delta, size = tensor_of(delta), arithmetic.abs(tensor_of(r))
    loss = arithmetic.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta))
    return arithmetic.where(delta < 0.0, math.inf, loss)


def _pseudo_huber(delta, r):
    delta, r = tensor_of(delta), tensor_of(r)
    used = arithmetic.where(delta > 0.0, delta, 1.0)
    u = (r / used) * (r / used)
    loss = used * used * (u / (1.0 + arithmetic.sqrt(1.0 + u)))
    return arithmetic.where(delta > 0.0, loss, arithmetic.where(delta == 0.0, 0.0, math.inf))


def _exprel(x):
    x = tensor_of(x)
    near = x == 0.0
    used = arithmetic.where(near, 1.0, x)
    # The slope at 0 is 1/2.
    return arithmetic.where(near, 1.0 + 0.5 * x, exponentials.expm1(used) / used)


def _powm1(x, y):
    x, y = tensor_of(x), tensor_of(y)
    above = x > 0.0
    near = exponentials.expm1(y * exponentials.log(arithmetic.where(above, x, 1.0)))
    return arithmetic.where(above, near, exponentials.pow(x, y) - 1.0)


def _heaviside(x1, x2):
    x, at_zero = tensor_of(x1), tensor_of(x2)
    dtype = np.result_type(x.array.dtype, at_zero.array.dtype)
    return numeric.heaviside(cast(x, dtype), cast(at_zero, dtype))


# Of scipy.special, by name.
_COMPOSED = {
    "gamma": _gamma,
    "rgamma": _rgamma,
    "beta": _beta,
    "boxcox": _box_cox(exponentials.log),
    "boxcox1p": _box_cox(exponentials.log1p),
    "inv_boxcox": _inverse_box_cox(exponentials.exp),
    "inv_boxcox1p": _inverse_box_cox(exponentials.expm1),
    "rel_entr": _rel_entr,
    "kl_div": lambda x, y: _rel_entr(x, y) - tensor_of(x) + tensor_of(y),
    "huber": _huber,
    "pseudo_huber": _pseudo_huber,
    "exp10": lambda x: exponentials.exp(math.log(10.0) * tensor_of(x)),
    "exprel": _exprel,
    "powm1": _powm1,
    "cosm1": lambda x: -2.0 * arithmetic.square(trigonometry.sin(0.5 * tensor_of(x))),
}


# ------------------------------------------------------------------------------------ the tables


def _table(source, entries):
    found = {}
    for entry in entries.split():
        name, _, given = entry.partition("=")
        ufunc, op = getattr(source, name, None), named_operation(given or name)
        if ufunc is not None and op is not None:
            found[ufunc] = op
    return found


_UFUNCS = _table(np, _NUMPY_TABLE)
_UFUNCS[np.matmul] = contraction.matmul
_UFUNCS[np.positive] = tensor_of
_UFUNCS[np.heaviside] = _heaviside
_scipy_ufuncs: dict = {}


def operation_of(ufunc):
    """Return our operation for a ufunc, None without one."""
    op = _UFUNCS.get(ufunc)
    if op is None and not _scipy_ufuncs and "scipy.special" in sys.modules:
        # Only now: importing it takes longer than everything else of a front door.
        source = sys.modules["scipy.special"]
        _scipy_ufuncs.update(_table(source, _SCIPY_TABLE))
        _scipy_ufuncs.update(
            {getattr(source, n): fn for n, fn in _COMPOSED.items() if hasattr(source, n)}
        )
        _UFUNCS.update(_scipy_ufuncs)
        op = _UFUNCS.get(ufunc)
    return op
