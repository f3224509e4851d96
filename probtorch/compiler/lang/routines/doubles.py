"""sin, cos, pow, erf, erfc, lgamma and digamma of doubles: for one number or a vector of them.

As in `elementary` there are no branches on the way of ordinary arguments. Those for which another
way would be needed go to the C library or to SciPy, number by number (`LlvmPrinter.seldom`): huge
angles, what is no positive number for the gamma functions, and operands of a power that are zero,
infinite or nan. Floats in single precision are computed in double.

Sources: Cody and Waite (1980) for the reduction of angles, in four parts, with the polynomials of
fdlibm (Sun Microsystems 1993) for what is left; Shepherd and Laframboise (1981, Mathematics of
Computation 36, 249-253) for exp(x**2) erfc(x) as one polynomial; recurrences and Stirling's series
(DLMF 5.5, 5.11) for the gamma functions; logarithms in two parts, by Dekker (1971), for powers.
Polynomials without a source are interpolations at Chebyshev's points in 200-bit arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.routines.elementary import exp_of_parts, log, polynomial, split
from probtorch.compiler.lang.routines.formats import F64
from probtorch.ops.stirling import BIG, HALF_LOG_2PI, digamma_rest, lgamma_rest

if TYPE_CHECKING:
    from probtorch.compiler.lang.function import KernelFunction
    from probtorch.compiler.lang.llvm import LlvmPrinter

__all__ = ["DOUBLES", "power"]

# ----------------------------------------------------------------------------------- sums, products


def _seldom(w: KernelFunction, c: Value, function: str, args: list[Value], usual: Value) -> Value:
    """Return `usual`, but where `c` holds what another function gives: `LlvmPrinter.seldom`."""
    return cast("LlvmPrinter", w.printer).seldom(w, c, function, args, usual)


def _sum(a: Value, b: Value) -> tuple[Value, Value]:
    """Return a + b, and what rounding it lost (Knuth)."""
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


def _product(w: KernelFunction, a: Value, b: Value) -> tuple[Value, Value]:
    """Return a b, and what rounding it lost (Dekker; by halves without a fused multiply-add)."""
    p = a * b
    if w.printer.fuses:
        return p, w.fma(a, b, -p)
    halves = []
    for x in (a, b):
        moved = x * 134217729.0  # 2**27 + 1
        high = moved - (moved - x)
        halves.append((high, x - high))
    (a, a_low), (b, b_low) = halves
    return p, (((a * b - p) + a * b_low) + a_low * b) + a_low * b_low


# ----------------------------------------------------------------------------------------- sin, cos

# pi / 2 in four parts; products of the first three with whole numbers below 2**20 are exact.
_QUARTER = (
    1.57079632673412561417e00,
    6.07710050630396597660e-11,
    2.02226624871116645580e-21,
    8.47842766036889956997e-32,
)
_SIN = (
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)
# Near 1/6, as the others are fitted.
_SIXTH = 1.66666666666666324348e-01
_COS = (
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)
_LARGEST_ANGLE = 1e6


def _wave(w: KernelFunction, x: Value, name: str, turns: int) -> Value:
    """sin(x + turns pi / 2)."""
    shifted = x * (2.0 / math.pi) + F64.magic
    n = shifted - F64.magic
    # The low bits of n + magic are n.
    quadrant = w.to_bits(shifted) + turns
    first, second, third, rest = _QUARTER
    r, lost = _sum(x - n * first, n * -second)
    r, lost_too = _sum(r, n * -third)
    low = (lost + lost_too) - n * rest
    r, low = r + low, low - ((r + low) - r)
    z = r * r
    cube = z * r
    inner = polynomial(w, z, _SIN)
    sine = r - ((z * (low * 0.5 - cube * inner) - low) + cube * _SIXTH)
    half = z * 0.5
    one = 1.0 - half
    inner = z * z * polynomial(w, z, _COS)
    cosine = one + (((1.0 - one) - half) + (inner - r * low))
    found = w.where((quadrant & 1) != 0, cosine, sine)
    found = w.where((quadrant & 2) != 0, -found, found)
    if not turns:
        found = w.where(abs(x) < 1e-9, x, found)  # with the sign of zero
    far = w.logical_not(abs(x) < _LARGEST_ANGLE)
    return _seldom(w, far, f"libm.{name}", [x], found)


# ---------------------------------------------------------------------------------------------- pow

# log((1 + s) / (1 - s)) = 2 s + 2/3 s**3 + s**5 q(s**2), |s| <= (sqrt(2) - 1) / (sqrt(2) + 1).
_ATANH = (
    0.4000000000000003,
    0.2857142857133756,
    0.22222222271506856,
    0.1818180818482265,
    0.1538557917296539,
    0.1328581722836087,
    0.12915296330052584,
)
_TWO_THIRDS = 2.0 / 3.0, 3.700743415417188e-17
_LARGEST_EXPONENT = 1e15


def _log_in_parts(w: KernelFunction, x: Value) -> tuple[Value, Value]:
    """log(x) of a positive normal number as a sum of two, to some 65 bits."""
    k, m = split(w, F64, x)
    f, d = m - 1.0, m + 1.0
    d_low = m - (d - 1.0)
    inverse = 1.0 / d
    s = f * inverse
    p, lost = _product(w, s, d)
    s_low = (((f - p) - lost) - s * d_low) * inverse
    z, z_low = _product(w, s, s)
    z_low = z_low + s * s_low * 2.0
    q = z * polynomial(w, z, _ATANH)
    factor = q + _TWO_THIRDS[0]
    factor_low = ((_TWO_THIRDS[0] - factor) + q) + _TWO_THIRDS[1]
    cube, cube_low = _product(w, s, z)
    cube_low = cube_low + (s * z_low + s_low * z)
    tail, tail_low = _product(w, cube, factor)
    tail_low = tail_low + (cube * factor_low + cube_low * factor)
    # Of each pair the first is the larger one, or 0.
    whole, twice = k * F64.ln2_high, s + s
    head = whole + twice
    low = (whole - head) + twice
    found = head + tail
    low = low + ((head - found) + tail)
    return found, low + (k * F64.ln2_low + (s_low * 2.0 + tail_low))


def power(w: KernelFunction, x: Value, y: Value) -> Value:
    """|x|**y as exp(y log |x|), with the sign that whole exponents of negative numbers give."""
    size = abs(x)
    high, low = _log_in_parts(w, size)
    e, e_low = _product(w, y, high)
    inside = abs(e) < 800.0
    e_low = w.where(inside, e_low + y * low, 0.0)
    found = exp_of_parts(w, F64, e, e_low)
    half = y * 0.5
    whole = w.rint(y) == y
    odd = w.logical_and(whole, w.rint(half) != half)
    signed = w.where(whole, w.where(odd, -found, found), math.nan)
    found = w.where(x < 0.0, signed, found)
    ordinary = w.logical_and(size >= F64.smallest_normal, size < math.inf)
    ordinary = w.logical_and(ordinary, abs(y) < _LARGEST_EXPONENT)
    return _seldom(w, w.logical_not(ordinary), "libm.pow", [x, y], found)


# ---------------------------------------------------------------------------------------- erf, erfc

# erf(x) / x as a polynomial in x**2, |x| <= 1/2.
_ERF = (
    1.1283791670955126,
    -0.37612638903183476,
    0.11283791670925375,
    -0.02686617063289225,
    0.005223977373047937,
    -0.0008548297752405017,
    0.00012053334897755713,
    -1.4845839586739444e-05,
    1.4725727841328908e-06,
)
# (1 + 2 x) exp(x**2) erfc(x) as a polynomial in (x - 2) / (x + 2), 1/2 <= x <= 28.
_ERFCX = (
    1.2769783815525286,
    -0.09276382658574574,
    -0.1660303976152801,
    0.16405128003339495,
    -0.05422000099280659,
    -0.008034015079838256,
    0.00872265390020179,
    0.0012713388975288066,
    -0.0014568143369809575,
    -0.0004543398013952615,
    0.0002063706895452421,
    0.00015102966758670497,
    -1.5277946367094363e-06,
    -3.636771338840851e-05,
    -1.3442394844300548e-05,
    3.504285914624456e-06,
    5.1729770901978245e-06,
    1.9746574873645693e-06,
    -7.96742888442861e-07,
    -1.438795283211358e-06,
    7.296600700799807e-08,
    4.822855794487192e-07,
    -1.2695691866127863e-07,
)


# From this square on SciPy's erfc is 0, not yet subnormal: the same numbers are infinitely unlikely
# eager and compiled.
_UNDERFLOW = 709.782712893384


def _error_function(w: KernelFunction, x: Value) -> tuple[Value, Value]:
    """erf(x) as it is near 0, and erfc(|x|) as it is elsewhere."""
    near = x * polynomial(w, x * x, _ERF)
    size = abs(x)
    size = w.where(size > 28.0, 28.0, size)
    t = (size - 2.0) / (size + 2.0)
    square, lost = _product(w, size, size)
    scaled = polynomial(w, t, _ERFCX) / (size * 2.0 + 1.0)
    return near, exp_of_parts(w, F64, -square, -lost, scaled)


def _erf(w: KernelFunction, x: Value) -> Value:
    near, upper = _error_function(w, x)
    return w.where(abs(x) < 0.5, near, w.copysign(1.0 - upper, x))


def _erfc(w: KernelFunction, x: Value) -> Value:
    near, upper = _error_function(w, x)
    upper = w.where(x * x > _UNDERFLOW, 0.0, upper)
    return w.where(abs(x) < 0.5, 1.0 - near, w.where(x < 0.0, 2.0 - upper, upper))


# ---------------------------------------------------------------------------------- lgamma, digamma

# lgamma(2 + u) / u, |u| <= 1/2.
_LGAMMA = (
    0.42278433509846713,
    0.32246703342411326,
    -0.06735230105319814,
    0.020580808427780335,
    -0.007385551028668096,
    0.002890510331036772,
    -0.0011927539120033873,
    0.0005096695153484373,
    -0.00022315475069647703,
    9.945767440096764e-05,
    -4.492635166770342e-05,
    2.0505584372896933e-05,
    -9.438454884054723e-06,
    4.3847319318293745e-06,
    -2.044935323180052e-06,
    9.199898075671394e-07,
    -4.303234692956732e-07,
    2.7880013392491846e-07,
    -1.341570273460026e-07,
)
# Stirling's series from here on, and steps of one from 5/2 to there.
_STIRLING = 10.5
_STEPS = 8
_ZERO_OF_DIGAMMA = 1.4616321449683622, 9.549995429965697e-17
# digamma(z + d) / d around its zero z, |d| <= 1/4.
_DIGAMMA = (
    0.9676722454476212,
    -0.4427631689835921,
    0.2584997609556688,
    -0.16394270544244552,
    0.10782405068530725,
    -0.0721995612477424,
    0.048804288923852635,
    -0.03316112734798109,
    0.022597600701742035,
    -0.015424719566042874,
    0.010540402677069462,
    -0.00720592607573689,
    0.004896670362821703,
    -0.0033461134528099566,
    0.0025947726328002423,
    -0.0017882716815602986,
)


def _lgamma(w: KernelFunction, x: Value) -> Value:
    """By whole steps to [3/2, 5/2), whose factors have one logarithm, or by Stirling's series."""
    large = x >= _STIRLING
    steps = w.floor(x - 1.5)
    factors = [w.where(steps >= float(i), x - float(i), 1.0) for i in range(1, _STEPS + 1)]
    while len(factors) > 1:
        factors = [a * b for a, b in zip(factors[::2], factors[1::2], strict=True)]
    # Below 3/2 steps go up: u is x - 1 or x itself, exactly.
    below, lowest = x < 1.5, x < 0.5
    u = w.where(lowest, x, w.where(below, x - 1.0, (x - steps) - 2.0))
    factor = w.where(lowest, x * (x + 1.0), w.where(below, x, factors[0]))
    logarithm = log(w, F64, w.where(large, x, factor))
    series = u * polynomial(w, u, _LGAMMA)
    found = series + w.where(below, -logarithm, logarithm)
    y = w.where(large, x, _STIRLING)
    stirling = ((y - 0.5) * logarithm - y) + (HALF_LOG_2PI + lgamma_rest(y))
    found = w.where(large, stirling, found)
    # Beyond 1e300 the parts are infinite before the whole is.
    other = w.logical_not(w.logical_and(x >= F64.smallest_normal, x < 1e300))
    return _seldom(w, other, "scipy.gammaln", [x], found)


def _digamma(w: KernelFunction, x: Value) -> Value:
    """By ten steps of one, all in one fraction, and the series; around its zero directly."""
    small = x < BIG
    at = w.where(small, x, 1.0)
    # 1 / (x + i) + 1 / (x + 9 - i) is (2 x + 9) / (x (x + 9) + i (9 - i)).
    pair = at * (at + 9.0)
    product, slope = pair, w.value(1.0, "double")
    for i in range(1, 5):
        factor = pair + float(i * (9 - i))
        product, slope = product * factor, slope * factor + product
    y = w.where(small, x + BIG, x)
    series = (log(w, F64, y) - 0.5 / y) + digamma_rest(y)
    steps = (at * 2.0 + 9.0) * (slope / product)
    found = w.where(small, series - steps, series)
    d = (x - _ZERO_OF_DIGAMMA[0]) - _ZERO_OF_DIGAMMA[1]
    found = w.where(abs(d) < 0.25, d * polynomial(w, d, _DIGAMMA), found)
    other = w.logical_not(x >= F64.smallest_normal)
    return _seldom(w, other, "scipy.psi", [x], found)


DOUBLES: dict[str, Callable[..., Value]] = {
    "sin": lambda w, x: _wave(w, x, "sin", 0),
    "cos": lambda w, x: _wave(w, x, "cos", 1),
    "pow": power,
    "erf": _erf,
    "erfc": _erfc,
    "lgamma": _lgamma,
    "digamma": _digamma,
}
