"""Functions of `scipy.special` in terms of ops of ours, right in slope where they are not singular.

A quotient of two numbers that go to 0 is a series there; what is beyond the numbers is computed by
logarithms. Formulas are those of the NIST Digital Library of Mathematical Functions, chapters 4
and 5.
"""

import math

import numpy as np

from probtorch.array_functions.arguments import tensor_of
from probtorch.core.casting import cast, to_float
from probtorch.ops import arithmetic, comparisons, exponentials, numeric, special, trigonometry

__all__ = ["COMPOSED", "float_power", "heaviside"]


def _sign_of_gamma(x):
    # Below 0 gamma changes its sign at each whole number, of which 0 has two.
    even = arithmetic.floor(x) * 0.5 == arithmetic.floor(arithmetic.floor(x) * 0.5)
    sign = arithmetic.where((x > 0.0) | even, 1.0, -1.0)
    return arithmetic.where(x == 0.0, arithmetic.copysign(1.0, x), sign)


def _gamma(x):
    x = to_float(tensor_of(x))
    pole = (x < 0.0) & ((arithmetic.floor(x) == x) | (x == -math.inf))
    found = _sign_of_gamma(x) * exponentials.exp(special.lgamma(arithmetic.where(pole, 1.0, x)))
    # No number is meant at a pole, and no slope: nan * x has neither.
    return arithmetic.where(pole, math.nan * arithmetic.where(pole, x, 0.0), found)


# 1 / gamma(x) is 0 in double precision from here on.
_NO_MORE = 185.0

# The largest power of e that is a number, rounded down, by the bytes of one.
_EXPONENT = {2: 11.0, 4: 88.0, 8: 709.0}


def _rgamma(x):
    # Below 1/2 by reflection, sin(pi x) / pi * gamma(1 - x), whose slope is right at the zeros.
    x = to_float(tensor_of(x))
    low, done = x < 0.5, (x >= _NO_MORE) | (x == -math.inf)
    above = arithmetic.where(low | done, 1.0, x)
    below = arithmetic.where(low & ~done, x, 0.25)
    whole = arithmetic.round(below).detach()
    even = whole * 0.5 == arithmetic.floor(whole * 0.5)
    sine = trigonometry.sin(math.pi * (below - whole)) / math.pi
    # Gamma may be beyond the numbers where its product with a small sine is not, and at whole
    # numbers the product is 0: a root at a time, the root itself kept a number.
    half = 0.5 * special.lgamma(1.0 - below)
    root = exponentials.exp(arithmetic.clamp(half, max=_EXPONENT[x.array.dtype.itemsize]))
    mirrored = arithmetic.where(even, sine, -sine) * root * root
    found = arithmetic.where(low, mirrored, exponentials.exp(-special.lgamma(above)))
    return arithmetic.where(done, 0.0 * arithmetic.copysign(1.0, x), found)


def _at_pole(x):
    return (x <= 0.0) & (arithmetic.floor(x) == x)


def _beta(a, b):
    a, b = to_float(tensor_of(a)), to_float(tensor_of(b))
    sign = _sign_of_gamma(a) * _sign_of_gamma(b) * _sign_of_gamma(a + b)
    # Logarithms have no slope where gamma(a + b) is infinite, and lose digits near 0.
    size = arithmetic.maximum(arithmetic.abs(a), arithmetic.abs(b))
    zero = _at_pole(a + b) & (size < _FACTORS[a.array.dtype.itemsize])
    plain = ((size < _SMALL) | zero) & ~_at_pole(a) & ~_at_pole(b)
    x, y = arithmetic.where(plain, a, 1.0), arithmetic.where(plain, b, 1.0)
    product = _gamma(x) * _gamma(y) * _rgamma(x + y)
    a, b = arithmetic.where(plain, 1.0, a), arithmetic.where(plain, 1.0, b)
    return arithmetic.where(plain, product, sign * exponentials.exp(special.betaln(a, b)))


# gamma(12) ** 2 is a number in single precision too; gamma alone up to here, by the bytes of one.
_SMALL = 12.0
_FACTORS = {2: 9.0, 4: 35.0, 8: 171.0}


def _series(coefficients, u):
    out = coefficients[-1]
    for c in coefficients[-2::-1]:
        out = out * u + c
    return out


# (exp(u) - 1) / u and log(1 + u) / u near 0: their derivatives there are theirs as well. Twenty
# terms leave 1e-26 at |u| = 1/2, thirty 1e-20 at 1/5.
_EXPREL = [1.0 / math.factorial(k + 1) for k in range(20)]
_LOGREL = [(-1.0) ** k / (k + 1) for k in range(30)]


def _box_cox(shift):
    """`boxcox` of x is of x, `boxcox1p` of 1 + x."""
    of_log = exponentials.log1p if shift else exponentials.log

    def transformed(x, lmbda):
        x, power = to_float(tensor_of(x)), to_float(tensor_of(lmbda))
        base = x + shift
        inside = base > 0.0
        log = of_log(arithmetic.where(inside, x, 1.0))
        none = (power == 0.0) & comparisons.isinf(log)
        u = power * arithmetic.where(none, 0.0, log)
        near = inside & (arithmetic.abs(u) < 0.5) & ~none
        # Down to a base of 0, whose logarithm has no slope.
        low = (inside & (u < -0.5)) | ((base == 0.0) & (power > 0.0))
        close = log * _series(_EXPREL, arithmetic.where(near, u, 0.0))
        used = arithmetic.where(near | (power == 0.0), 1.0, power)
        away = exponentials.expm1(arithmetic.where(near | low, 1.0, u)) / used
        below = exponentials.pow(arithmetic.where(low, base, 1.0), used) - 1.0
        found = arithmetic.where(low, below / used, arithmetic.where(near, close, away))
        found = arithmetic.where(none, log, found)
        edge = arithmetic.where((base == 0.0) & (power == power), -math.inf, math.nan)
        return arithmetic.where(inside | low, found, edge)

    return transformed


def _inverse_box_cox(shift):
    from_log = exponentials.expm1 if shift else exponentials.exp

    def transformed(y, lmbda):
        y, power = to_float(tensor_of(y)), to_float(tensor_of(lmbda))
        u = power * y
        none = (power == 0.0) & comparisons.isinf(y)
        near, low = (arithmetic.abs(u) < 0.2) | none, (u < -0.2) & (u >= -1.0)
        close = y * _series(_LOGREL, arithmetic.where(near & ~none, u, 0.0))
        used = arithmetic.where(near, 1.0, power)
        away = exponentials.log1p(arithmetic.where(near | low, 1.0, u)) / used
        found = from_log(arithmetic.where(none, y, arithmetic.where(near, close, away)))
        # Down to 1 + u = 0, whose logarithm has no slope.
        base = arithmetic.where(low, 1.0 + u, 1.0)
        return arithmetic.where(low, exponentials.pow(base, 1.0 / used) - shift, found)

    return transformed


def _relative(x, y, inside):
    """``inside(x, y)`` of positive numbers; the other cases of the relative entropy."""
    both, zero = (x > 0.0) & (y > 0.0), (x == 0.0) & (y >= 0.0)
    within = inside(arithmetic.where(both, x, 1.0), arithmetic.where(both, y, 1.0))
    unknown = (x != x) | (y != y)
    outside = arithmetic.where(unknown, math.nan, arithmetic.where(zero, 0.0, math.inf))
    return arithmetic.where(both, within, outside), zero


def _rel_entr(x, y):
    return _relative(tensor_of(x), tensor_of(y), lambda x, y: x * exponentials.log(x / y))[0]


def _kl_div(x, y):
    x, y = tensor_of(x), tensor_of(y)
    found, zero = _relative(x, y, lambda x, y: x * exponentials.log(x / y) - x + y)
    return arithmetic.where(zero, y - x, found)


def _huber(delta, r):
    delta, size = tensor_of(delta), arithmetic.abs(tensor_of(r))
    loss = arithmetic.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta))
    return arithmetic.where(delta < 0.0, math.inf, loss)


def _pseudo_huber(delta, r):
    delta, r = tensor_of(delta), tensor_of(r)
    used = arithmetic.where(delta > 0.0, delta, 1.0)
    size = arithmetic.abs(r / used)
    far = size > 1e9  # 1 is lost beside its square
    u = arithmetic.where(far, 1.0, size) * arithmetic.where(far, 1.0, size)
    near = u / (1.0 + arithmetic.sqrt(1.0 + u))
    loss = used * used * arithmetic.where(far, size - 1.0, near)
    less = arithmetic.where(delta < 0.0, math.inf, math.nan)
    nothing = (delta == 0.0) | (r == 0.0) & ~(delta < 0.0)  # even of what is no number
    return arithmetic.where(nothing, 0.0, arithmetic.where(delta > 0.0, loss, less))


# From where on exprel is computed by logarithms, and from where on it is beyond the numbers, by the
# bytes of one.
_LARGE = {2: (10.0, 14.0), 4: (80.0, 94.0), 8: (700.0, 717.0)}


def _exprel(x):
    x = to_float(tensor_of(x))
    start, end = _LARGE[x.array.dtype.itemsize]
    near, high = arithmetic.abs(x) < 0.5, x > start
    used = arithmetic.where(near | high, 1.0, x)
    away = exponentials.expm1(used) / used
    # exp(x) is beyond the numbers there before it is divided.
    large = arithmetic.where(high & (x < end), x, 2.0)
    beyond = exponentials.exp(large - exponentials.log(large))
    done = x >= end
    beyond = arithmetic.where(done, math.inf * arithmetic.where(done, x, 1.0), beyond)
    close = _series(_EXPREL, arithmetic.where(near, x, 0.0))
    return arithmetic.where(near, close, arithmetic.where(high, beyond, away))


def _powm1(x, y):
    x, y = tensor_of(x), tensor_of(y)
    u = y * exponentials.log(arithmetic.where(x > 0.0, x, 1.0))
    near = (x > 0.0) & (arithmetic.abs(u) < 0.5)
    close = exponentials.expm1(arithmetic.where(near, u, 0.0))
    base, power = arithmetic.where(near, 1.0, x), arithmetic.where(near, 1.0, y)
    return arithmetic.where(near, close, exponentials.pow(base, power) - 1.0)


def heaviside(x1, x2):
    """Return the step, `x2` where `x1` is 0, in the dtype that holds both."""
    x, at_zero = to_float(tensor_of(x1)), to_float(tensor_of(x2))
    dtype = np.result_type(x.array.dtype, at_zero.array.dtype)
    return numeric.heaviside(cast(x, dtype), cast(at_zero, dtype))


def float_power(x1, x2):
    """Return the power in double precision, whatever numbers are given."""
    x, y = tensor_of(x1), tensor_of(x2)
    dtype = np.result_type(x.array.dtype, y.array.dtype, np.float64)
    return exponentials.pow(cast(x, dtype), cast(y, dtype))


# Of scipy.special, by name.
COMPOSED = {
    "gamma": _gamma,
    "rgamma": _rgamma,
    "beta": _beta,
    "boxcox": _box_cox(0.0),
    "boxcox1p": _box_cox(1.0),
    "inv_boxcox": _inverse_box_cox(0.0),
    "inv_boxcox1p": _inverse_box_cox(1.0),
    "rel_entr": _rel_entr,
    "kl_div": _kl_div,
    "huber": _huber,
    "pseudo_huber": _pseudo_huber,
    "exp10": lambda x: exponentials.exp(math.log(10.0) * tensor_of(x)),
    "exprel": _exprel,
    "powm1": _powm1,
    "cosm1": lambda x: -2.0 * arithmetic.square(trigonometry.sin(0.5 * tensor_of(x))),
}
