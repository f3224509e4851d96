"""Stirling's series: what is left of lgamma and digamma after their leading terms.

lgamma(x) = (x - 1/2) log x - x + log(2 pi)/2 + lgamma_rest(x), and digamma(x) = log x -
1/(2 x) + .... For large arguments the leading terms are huge and cancel in every density; written
with the rests, the cancellation happens in the algebra and not in floating point. Each function
takes the algebra `s` of ops/scalar.py, so it serves arrays and generated code alike.

The coefficients are B_2k / (2k (2k - 1)) and -B_2k / (2k), DLMF 5.11.1 and 5.11.2.
"""

import math

__all__ = ["BIG", "difference_of_digammas", "difference_of_lgammas", "lgamma_rest"]

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)

# From here on eight terms are exact to rounding: the ninth is below 2e-17.
BIG = 10.0

_LGAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
_DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760, -1 / 12, 3617 / 8160)


def _series(coefficients, z):
    """Value of the polynomial with these coefficients, lowest first."""
    total = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = total * z + c
    return total


def lgamma_rest(x):
    """lgamma(x) less its Stirling formula, for x >= BIG."""
    r = 1.0 / x
    return r * _series(_LGAMMA, r * r)


def _divided(coefficients, p, q):
    """Divided difference (f(q) - f(p)) / (q - p) of a polynomial, without the quotient."""
    value, slope = coefficients[-1], 0.0
    for c in coefficients[-2::-1]:
        slope = slope * q + value
        value = value * p + c
    return slope


def _difference_of_rests(coefficients, u, v, d):
    """Differences from u to v = u + d of r f(r^2) and of r^2 f(r^2), where r is the reciprocal."""
    p, q = 1.0 / u, 1.0 / v
    change = -d * p * q
    tangent = _divided(coefficients, p * p, q * q)
    value = _series(coefficients, q * q)
    return change * (value + p * (p + q) * tangent), change * (p + q) * (value + p * p * tangent)


def difference_of_lgammas(s, x, step):
    """lgamma(x + step) - lgamma(x), accurate also where both are huge."""
    y = x + step
    big = s.minimum(x, y) >= BIG
    u, v = s.where(big, x, BIG), s.where(big, y, BIG)
    d = s.where(big, step, 0.0)
    rest, _ = _difference_of_rests(_LGAMMA, u, v, d)
    far = (u - 0.5) * s.log1p(d / u) + d * (s.log(v) - 1.0) + rest
    return s.where(big, far, s.lgamma(y) - s.lgamma(x))


def difference_of_digammas(s, x, step):
    """digamma(x + step) - digamma(x), accurate also where both are close."""
    y = x + step
    big = s.minimum(x, y) >= BIG
    u, v = s.where(big, x, BIG), s.where(big, y, BIG)
    d = s.where(big, step, 0.0)
    _, rest = _difference_of_rests(_DIGAMMA, u, v, d)
    far = s.log1p(d / u) + 0.5 * d / (u * v) + rest
    return s.where(big, far, s.digamma(y) - s.digamma(x))
