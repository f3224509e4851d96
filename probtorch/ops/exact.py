"""Functions whose bits do not depend on who computes them: logarithm, exponential, normal quantile.

The formulas are over an algebra `s`, as in ops/scalar.py, with more things: `s.split` and
`s.power_of_two`, which take floats apart and make them, and `s.choose`, a branch. Every operation
is one that IEEE 754 rounds correctly, and none may be contracted to a fused multiply-add. So
arrays, Python's floats and native code agree in every bit, and so do draws that are made of them.

Logarithm: fdlibm's series. Normal quantile: algorithm AS 241 (Wichura 1988, Applied Statistics 37,
477-484), double precision: one of three rational functions of degree 7, by the distance from the
median.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from probtorch.ops.lanes import Lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from probtorch.ops.algebra import ExactScalars, Number, Scalars


__all__ = [
    *("FAR", "FAR_SHIFT", "MIDDLE", "NEAR", "NEAR_SHIFT", "ExactArrays", "of_uniforms"),
    *("exp", "horner", "is_far", "log", "log1p", "normal_quantile"),
    *("quantile_in_the_middle", "quantile_in_the_tails"),
]

# fdlibm's: ln 2 in two parts, and (log(1 + f) - f) as a series in (f / (2 + f))^2.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LOG = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
_EXP = tuple(1.0 / math.factorial(n) for n in range(14))
_SQRT_HALF, _TINY = math.sqrt(0.5), 2.0**-1022

# Numerator and denominator, lowest power first. In the middle q p(r) with r = 0.180625 - q**2,
# q = p - 1/2, |q| <= 0.425; in the tails p(r - shift), r = sqrt(-log(min(p, 1 - p))).
MIDDLE = (
    (
        3.3871328727963666080,
        1.3314166789178437745e2,
        1.9715909503065514427e3,
        1.3731693765509461125e4,
        4.5921953931549871457e4,
        6.7265770927008700853e4,
        3.3430575583588128105e4,
        2.5090809287301226727e3,
    ),
    (
        1.0,
        4.2313330701600911252e1,
        6.8718700749205790830e2,
        5.3941960214247511077e3,
        2.1213794301586595867e4,
        3.9307895800092710610e4,
        2.8729085735721942674e4,
        5.2264952788528545610e3,
    ),
)
NEAR = (
    (
        1.42343711074968357734,
        4.63033784615654529590,
        5.76949722146069140550,
        3.64784832476320460504,
        1.27045825245236838258,
        2.41780725177450611770e-1,
        2.27238449892691845833e-2,
        7.74545014278341407640e-4,
    ),
    (
        1.0,
        2.05319162663775882187,
        1.67638483018380384940,
        6.89767334985100004550e-1,
        1.48103976427480074590e-1,
        1.51986665636164571966e-2,
        5.47593808499534494600e-4,
        1.05075007164441684324e-9,
    ),
)
FAR = (
    (
        6.65790464350110377720,
        5.46378491116411436990,
        1.78482653991729133580,
        2.96560571828504891230e-1,
        2.65321895265761230930e-2,
        1.24266094738807843860e-3,
        2.71155556874348757815e-5,
        2.01033439929228813265e-7,
    ),
    (
        1.0,
        5.99832206555887937690e-1,
        1.36929880922735805310e-1,
        1.48753612908506148525e-2,
        7.86869131145613259100e-4,
        1.84631831751005468180e-5,
        1.42151175831644588870e-7,
        2.04426310338993978564e-15,
    ),
)
NEAR_SHIFT, FAR_SHIFT = 1.6, 5.0


def horner(coefficients: Sequence[float | Number], z: Number) -> Number:
    total = coefficients[-1] * z + coefficients[-2]
    for c in coefficients[-3::-1]:
        total = total * z + c
    return total


def log(s: ExactScalars[Number], x: Number) -> Number:
    """log(x) of positive normal numbers, within 1 unit in the last place."""
    k, m = s.split(x)
    f = m - 1.0
    half = f * f * 0.5
    q = f / (f + 2.0)
    z = q * q
    tail = z * horner(_LOG, z)
    return k * _LN2_HIGH - ((half - (q * (half + tail) + k * _LN2_LOW)) - f)


def log1p(s: ExactScalars[Number], x: Number) -> Number:
    """log(1 + x) for x > -1: what rounding 1 + x loses is made good by a quotient (Kahan)."""
    u = x + 1.0
    near = u == 1.0
    return s.where(near, x, log(s, u) * (x / s.where(near, 1.0, u - 1.0)))


def exp(s: ExactScalars[Number], x: Number) -> Number:
    """exp(x), within 1 unit in the last place; 0 below -746."""
    x = s.maximum(x, -746.0)
    n = s.floor(x * (1.0 / math.log(2.0)) + 0.5)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    half = s.floor(n * 0.5)
    return horner(_EXP, r) * s.power_of_two(half) * s.power_of_two(n - half)


def is_far(s: Scalars[Number], u: Number) -> Number:
    """Whether the quantile of `u` is one of `quantile_in_the_tails`."""
    return s.abs(u - 0.5) > 0.425


def quantile_in_the_middle(s: Scalars[Number], u: Number) -> Number:
    """Normal quantile of u, |u - 1/2| <= 0.425."""
    q = u - 0.5
    r = 0.180625 - q * q
    return q * (horner(MIDDLE[0], r) / horner(MIDDLE[1], r))


def quantile_in_the_tails(s: ExactScalars[Number], u: Number) -> Number:
    """Normal quantile of u farther from the median; infinite at 0 and 1, nan outside."""
    above = u > 0.5
    rest = s.where(above, 1.0 - u, u)
    inside, subnormal = rest > 0.0, rest < _TINY
    scaled = s.where(inside, s.where(subnormal, rest * 2.0**54, rest), 0.5)
    r = s.sqrt(s.where(subnormal, 54.0 * math.log(2.0), 0.0) - log(s, scaled))
    near = r <= FAR_SHIFT
    t = r - s.where(near, NEAR_SHIFT, FAR_SHIFT)
    parts = (
        horner([s.where(near, x, y) for x, y in zip(NEAR[i], FAR[i], strict=True)], t)
        for i in range(2)
    )
    value = next(parts) / next(parts)
    value = s.where(inside, value, s.where(rest == 0.0, math.inf, math.nan))
    return s.where(above, value, -value)


def normal_quantile(s: ExactScalars[Number], u: Number) -> Number:
    """Standard normal number below which a share u of such numbers is."""
    return s.choose(is_far(s, u), quantile_in_the_tails, quantile_in_the_middle, (u,))


def _split(x: float) -> tuple[float, float]:
    """Return k and m in [sqrt(1/2), sqrt(2)) with x = 2**k m, for a positive normal float."""
    m, k = math.frexp(x)
    return (float(k - 1), m * 2.0) if m < _SQRT_HALF else (float(k), m)


class ExactArrays(Lanes):
    """The algebra on flat float64 arrays."""

    @staticmethod
    def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return k and m in [sqrt(1/2), sqrt(2)) with x = 2**k m."""
        m, k = np.frexp(x)
        low = m < _SQRT_HALF
        return k - low.astype(np.float64), np.where(low, m * 2.0, m)

    @staticmethod
    def power_of_two(n: np.ndarray) -> np.ndarray:
        """Return 2**n for whole n in the range of normal exponents."""
        return np.ldexp(1.0, n.astype(np.int64))


class _Floats:
    """The algebra on Python's floats, for a few numbers."""

    abs = staticmethod(abs)
    sqrt = staticmethod(math.sqrt)
    split = staticmethod(_split)

    @staticmethod
    def where(condition: bool, x: float, y: float) -> float:
        """Return one of two numbers."""
        return x if condition else y

    @classmethod
    def choose(
        cls,
        condition: bool,
        yes: Callable[..., float],
        no: Callable[..., float],
        operands: Sequence[float],
    ) -> float:
        """Return ``yes(s, *operands)`` or ``no(s, *operands)``."""
        return (yes if condition else no)(cls, *operands)


# Up to here Python's floats (2 us each) beat the fixed cost of arrays (90 us).
_FEW = 40
# Elements per pass, so that the work arrays stay in the second-level cache.
_CHUNK = 4096


def of_uniforms(formula: Callable[..., np.ndarray | float], u: np.ndarray) -> np.ndarray:
    """Return ``formula(s, x)`` for the elements x of a flat array of numbers in (0, 1)."""
    if u.size < _FEW:
        return np.array([formula(_Floats, x) for x in u.tolist()], np.float64)
    out = np.empty(u.size)
    for i in range(0, u.size, _CHUNK):
        out[i : i + _CHUNK] = formula(ExactArrays(), u[i : i + _CHUNK])
    return out
