"""Stirling's series: what is left of lgamma and digamma after their leading terms.

lgamma(x) = (x - 1/2) log x - x + log(2 pi)/2 + lgamma_rest(x), and digamma(x) = log x -
1/(2 x) + .... For large arguments the leading terms are huge and cancel in every density; written
with the rests, the cancellation happens in the algebra and not in floating point. Each function
takes the algebra `s` of ops/scalar.py, so it serves arrays and generated code alike. Those of the
densities of counts compute in double precision whatever the dtype: products of two float32 numbers
are exact there, and a density at 10^7 keeps its digits. They have no branches and call nothing but
log, log1p and sqrt, so loops over them are vectorised.

The coefficients are B_2k / (2k (2k - 1)) and -B_2k / (2k), DLMF 5.11.1 and 5.11.2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from probtorch.ops.algebra import Number, Scalars


__all__ = [
    "BIG",
    "deviance",
    "difference_of_digammas",
    "digamma_less_log",
    "digamma_rest",
    "digamma_step",
    "excess",
    "lgamma_less_power",
    "lgamma_rest",
    "lgamma_step",
    "log_of_ratio",
]

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)

# From here on eight terms are exact to rounding: the ninth is below 2e-17.
BIG = 10.0

_LGAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
_DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760, -1 / 12, 3617 / 8160)


def _series(coefficients: Sequence[float], z: Number) -> Number:
    """Value of the polynomial with these coefficients, lowest first."""
    total = coefficients[-1] * z + coefficients[-2]
    for c in coefficients[-3::-1]:
        total = total * z + c
    return total


def lgamma_rest(x: Number) -> Number:
    """lgamma(x) less its Stirling formula, for x >= BIG."""
    r = 1.0 / x
    return r * _series(_LGAMMA, r * r)


def digamma_rest(x: Number) -> Number:
    """digamma(x) - log(x) + 1 / (2 x), for x >= BIG."""
    r = 1.0 / x
    return r * r * _series(_DIGAMMA, r * r)


def _divided(coefficients: Sequence[float], p: Number, q: Number) -> Number:
    """Divided difference (f(q) - f(p)) / (q - p) of a polynomial, without the quotient."""
    slope = 0.0 * q + coefficients[-1]
    value = coefficients[-1] * p + coefficients[-2]
    for c in coefficients[-3::-1]:
        slope = slope * q + value
        value = value * p + c
    return slope


def _difference_of_rests(
    coefficients: Sequence[float], u: Number, v: Number, d: Number
) -> tuple[Number, Number]:
    """Differences from u to v = u + d of r f(r^2) and of r^2 f(r^2), where r is the reciprocal."""
    p, q = 1.0 / u, 1.0 / v
    change = -d * p * q
    tangent = _divided(coefficients, p * p, q * q)
    value = _series(coefficients, q * q)
    return change * (value + p * (p + q) * tangent), change * (p + q) * (value + p * p * tangent)


def difference_of_digammas(s: Scalars[Number], x: Number, step: Number) -> Number:
    """digamma(x + step) - digamma(x), accurate also where both are close."""
    y = x + step
    big = s.minimum(x, y) >= BIG
    u, v = s.where(big, x, BIG), s.where(big, y, BIG)
    d = s.where(big, step, 0.0)
    _, rest = _difference_of_rests(_DIGAMMA, u, v, d)
    far = s.log1p(d / u) + 0.5 * d / (u * v) + rest
    return s.where(big, far, s.digamma(y) - s.digamma(x))


# ------------------------------------------------------------------------ densities of counts

# (atanh(v) - v) / v^3 as a series in v^2, exact to 2e-14 for |v| < NEAR; from there on the plain
# form loses 1e-13.
NEAR = 0.04
_ATANH = tuple(1 / (2 * i + 3) for i in range(4))


def deviance(
    s: Scalars[Number],
    k: Number,
    m: Number,
    log_ratio: Callable[[Number], Number] | None = None,
    difference: Number | None = None,
) -> Number:
    """K log m - m less what it is at m = k: minus half the deviance of a count k where m is usual.

    For k < 1 the subtracted number is that of k = 1, namely -1, so that any k > -1 will do, and 0
    log 0 is 0. Near m = k the difference is 2 k (atanh v - v) - v (m - k) with v = (m - k) / (m +
    k), which does not cancel (Loader 2000). `log_ratio` gives log(m / k), or log m for k < 1, as a
    function of max(k, 1) where m itself may underflow; `difference` is m - k where more digits of
    it are known than are left after m has been rounded.
    """
    c = s.maximum(k, 1.0)
    d = m - c if difference is None else s.where(k >= 1.0, difference, m - c)
    v = d / (m + c)
    z = v * v
    close = v * (2.0 * c * (z * _series(_ATANH, z)) - d)
    log = log_of_ratio(s, m, k) if log_ratio is None else log_ratio(c)
    # With an infinite m the density is 0, whatever the power.
    power = s.where(s.logical_or(k == 0.0, log == math.inf), 0.0, k * log)
    return s.where(s.logical_and(s.abs(v) < NEAR, k >= 1.0), close, power - d)


# Half the bits of a number: what is at most so long has exact products in double precision.
_HALF = 2.0**26


def excess(s: Scalars[Number], n: Number, p: Number, k: Number) -> Number:
    """N p - k for a count n up to 2^53, a probability p and a count k, to rounding of n p - k.

    Both factors are split into multiples of powers of two, so that the products that cancel against
    k are exact, whether or not a compiler rounds a product and a sum as one.
    """
    n_high, p_high = s.floor(n * (1.0 / _HALF)) * _HALF, s.floor(p * _HALF) * (1.0 / _HALF)
    n_low, p_low = n - n_high, p - p_high
    return ((n_high * p_high - k) + n_low * p_high) + n * p_low


def log_of_ratio(s: Scalars[Number], m: Number, k: Number) -> Number:
    """log(m / k), and log m for k < 1; 0 where both are 0. The derivative of `deviance` in k."""
    none = s.logical_and(k == 0.0, m == 0.0)
    return s.log(s.where(none, 1.0, m * (1.0 / s.maximum(k, 1.0))))


# Below this the argument is raised by 8, where eight terms of the series are exact to rounding.
_LOW = 8.0


def _rising(a: Number) -> tuple[Number, Number]:
    """A (a + 1) ... (a + 7), and its logarithmic derivative."""
    t = a * (a + 7.0)
    product = t * (t + 6.0) * (t + 10.0) * (t + 12.0)
    return product, (a + a + 7.0) * (((4.0 * t + 84.0) * t + 504.0) * t + 720.0) / product


def lgamma_less_power(s: Scalars[Number], a: Number, k: Number, half: float) -> Number:
    """lgamma(a) - (k log c - c), where k is a or a - 1 and c = k, from 1 on if it is a - 1.

    `half` is -1/2 if k = a and 1/2 if k = a - 1. What is left is half of log(2 pi k), or less.
    """
    c = k if half < 0.0 else s.maximum(k, 1.0)
    low = k < _LOW
    z = s.where(low, a + 8.0, k)
    square = z * z
    fourth = square * square
    product, _ = _rising(s.where(low, a, 1.0))
    ratio = s.where(low, fourth * fourth / product, 1.0)
    root = s.sqrt(z)
    shift = s.where(low, c - z, 0.0)
    power = k * s.log(s.where(low, z / c, 1.0))
    scale = s.log(ratio / root if half < 0.0 else ratio * root)
    return power + scale + (shift + HALF_LOG_2PI) + lgamma_rest(z)


def digamma_less_log(s: Scalars[Number], a: Number, k: Number, half: float) -> Number:
    """Derivative of `lgamma_less_power`: digamma(a) - log(c)."""
    c = k if half < 0.0 else s.maximum(k, 1.0)
    low = k < _LOW
    z = s.where(low, a + 8.0, k)
    r = 1.0 / z
    _, slope = _rising(s.where(low, a, 1.0))
    tail = s.where(low, -0.5, half) * r + r * r * _series(_DIGAMMA, r * r)
    return s.log(s.where(low, z / c, 1.0)) + (tail - s.where(low, slope, 0.0))


def _raised(s: Scalars[Number], a: Number) -> tuple[Number, Number, Number, Number]:
    low = a < _LOW
    product, slope = _rising(s.where(low, a, 1.0))
    up = s.where(low, 8.0, 0.0)
    return up, a + up, s.where(low, product, 1.0), s.where(low, slope, 0.0)


def lgamma_step(s: Scalars[Number], x: Number, step: Number) -> Number:
    """lgamma(x + step) - lgamma(x), accurate also where both are huge."""
    y = x + step
    up_x, u, below, _ = _raised(s, x)
    up_y, v, above, _ = _raised(s, y)
    d = step + (up_y - up_x)
    # lgamma(v) - lgamma(u); log v is split, as log u may be the same for many steps.
    far = (v - 0.5) * s.log1p(d / u) + d * (s.log(u) - 1.0)
    rest, _ = _difference_of_rests(_LGAMMA, u, v, d)
    return far + rest + s.log(s.abs(below / above))


def digamma_step(s: Scalars[Number], x: Number, step: Number) -> Number:
    """digamma(x + step) - digamma(x), accurate also where both are close."""
    y = x + step
    up_x, u, _, below = _raised(s, x)
    up_y, v, _, above = _raised(s, y)
    d = step + (up_y - up_x)
    _, rest = _difference_of_rests(_DIGAMMA, u, v, d)
    return s.log1p(d / u) + 0.5 * d / (u * v) + rest + (below - above)
