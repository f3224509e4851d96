"""exp, log, log1p, expm1, tanh: exactly what is computed, for one number or a vector of them.

There are no branches: corners are patched with choices at the end. Argument reduction follows Cody
and Waite (1980), compensated sums Dekker (1971); `formats` has the polynomials. `render/mathlib.py`
makes functions of them, and says how accurate they are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.routines.formats import Format

if TYPE_CHECKING:
    from probtorch.compiler.lang.builder import Builder

__all__ = ["FUNCTIONS", "exp_of_parts", "log", "polynomial", "split"]


def _exp(w: Builder, f: Format, x: Value) -> Value:
    """exp(x) = 2**n exp(r), with x = n ln 2 + r and |r| <= ln(2) / 2."""
    x = _clamp(w, x, f.underflow, f.overflow)
    n, r, _ = _reduce(w, f, x)
    # 1 + r in two parts: rounded once more it would cost a quarter ulp.
    high = 1.0 + r
    low = (1.0 - high) + r
    return _scale(w, f, high + w.fma(r * r, polynomial(w, r, f.exp_tail), low), n)


def exp_of_parts(
    w: Builder, f: Format, x: Value, x_low: Value, factor: Value | float = 1.0
) -> Value:
    """exp(x + x_low) times a factor, which is rounded with it where the result is subnormal."""
    x = _clamp(w, x, f.underflow, f.overflow)
    n, r, r_low = _reduce(w, f, x)
    high = 1.0 + r
    low = w.fma(r * r, polynomial(w, r, f.exp_tail), (1.0 - high) + r)
    low = low + (r_low + x_low) * (high + low)
    return _scale(w, f, (high + low) * factor, n)


def _expm1(w: Builder, f: Format, x: Value) -> Value:
    """expm1(x) = 2**n ((1 - 2**-n) + r + r**2 / 2 + r**3 q(r)).

    The first three are added exactly. They must be: at n = -1 and n = 1 the sum is small, and
    errors of r**2 / 2 alone would pass 1 ulp.
    """
    clamped = _clamp(w, x, f.expm1_saturation, f.overflow)
    n, r, r_low = _reduce(w, f, clamped)
    # 2**-64 is as good as anything smaller, and 2**-1024 has no exponent field.
    back = _power_of_two(w, f, -w.where(n > 64.0, 64.0, n))
    y = 1.0 - back
    y_low = (1.0 - y) - back
    # r with half its bits has an exact square.
    grid = f.magic * 2.0 ** -((f.mantissa + 1) // 2)
    half = (r + grid) - grid
    square = (half * half) * 0.5
    square_low = ((r - half) * (r + half)) * 0.5
    cubic = ((r * r) * r) * polynomial(w, r, f.expm1_tail)
    # Fast two-sums: |y| >= 1/2 > |r| unless n = 0, where y = 0; and |y + r| > 0.15 > r**2 / 2
    # unless n = 0.
    s = y + r
    s_low = (y - s) + r
    t = s + square
    t_low = (s - t) + square
    result = _scale(w, f, t + (cubic + (square_low + ((t_low + s_low) + (r_low + y_low)))), n)
    return w.where(abs(x) < f.negligible, x, result)


def log(w: Builder, f: Format, x: Value) -> Value:
    """log(x) = k ln 2 + log(1 + f), with x = 2**k (1 + f) and 1 + f in [sqrt(1/2), sqrt(2))."""
    subnormal = x < f.smallest_normal
    shift = float(f.mantissa + 2)
    k, m = split(w, f, w.where(subnormal, x * 2.0**shift, x))
    k = w.where(subnormal, k - shift, k)
    result = _log_of_split(w, f, k, m - 1.0, 0.0)
    return _log_corners(w, x, zero=x == 0.0, below=x < 0.0, result=result)


def _log1p(w: Builder, f: Format, x: Value) -> Value:
    """log1p(x) = log(u) + (what rounding 1 + x to u lost) / u."""
    u = 1.0 + x
    part = u - 1.0
    lost = (1.0 - (u - part)) + (x - part)
    k, m = split(w, f, u)
    near = k == 0.0
    # With k = 0 nothing need be rounded: f is x itself.
    result = _log_of_split(w, f, k, w.where(near, x, m - 1.0), w.where(near, 0.0, lost / u))
    result = w.where(abs(x) < f.negligible, x, result)
    return _log_corners(w, x, zero=x == -1.0, below=x < -1.0, result=result)


def _log1p_unit(w: Builder, f: Format, x: Value) -> Value:
    """log1p(x) for x in [0, 1], at half the cost: k ln 2 + log(1 + f) with f in (-1/4, 1/2]."""
    upper = x > 0.5
    rest = w.where(upper, (x - 1.0) * 0.5, x)  # exact
    k = w.where(upper, 1.0, 0.0)
    return _log_of_split(w, f, k, rest, 0.0, f.log1p_unit_tail)


def _tanh(w: Builder, f: Format, x: Value) -> Value:
    """An odd polynomial below 0.55, above it 1 - 2 / (exp(2 |x|) + 1) with exp in two parts."""
    a = abs(x)
    square = x * x
    small = w.fma(x, square * polynomial(w, square, f.tanh_tail), x)

    n, r, r_low = _reduce(w, f, _clamp(w, a, 0.0, f.tanh_saturation) * 2.0)
    tail = w.fma(r * r, polynomial(w, r, f.exp_tail), r_low)
    y = r + tail
    y_low = (r - y) + tail
    high = 1.0 + y
    low = ((1.0 - high) + y) + y_low
    p = _power_of_two(w, f, n)
    e = high * p
    d = e + 1.0
    d_low = ((e - d) + 1.0) + low * p
    q = 2.0 / d
    t = 1.0 - q
    # 2 / (d + d_low) is q - q**2 d_low / 2 to first order.
    t_low = ((1.0 - t) - q) + (q * q) * (d_low * 0.5)
    return w.copysign(w.where(a < 0.55, small, t + t_low), x)


def _reduce(w: Builder, f: Format, x: Value) -> tuple[Value, Value, Value]:
    """Return n, r and what rounding r lost, with x = n ln 2 + r + lost and |r| <= ln(2) / 2."""
    n = _round(f, x * (1.0 / math.log(2.0)))
    exact = w.fma(n, -f.ln2_high, x)
    r = w.fma(n, -f.ln2_low, exact)
    return n, r, w.fma(n, -f.ln2_low, exact - r)


def _scale(w: Builder, f: Format, y: Value, n: Value) -> Value:
    """Return y 2**n by two factors: only the second can overflow or lose bits."""
    scaled = w.scaled(y, n)
    if scaled is not None:
        return scaled
    # In integers, which leaves the units for floats free; the low bits of n + magic are n.
    whole = w.to_bits(n + f.magic) - _bits_of(f, f.magic)
    half = whole >> 1
    first, second = (
        w.from_bits((part + f.bias) << f.mantissa, f.float_type) for part in (half, whole - half)
    )
    return (y * first) * second


def split(w: Builder, f: Format, x: Value) -> tuple[Value, Value]:
    """Return k and m with x = 2**k m and m in [sqrt(1/2), sqrt(2)), for positive normal x."""
    root = _bits_of(f, math.sqrt(0.5))
    # Moved up by 1 - sqrt(1/2), in steps of the last place, the exponent field itself is k + bias.
    moved = w.to_bits(x) + (_bits_of(f, 1.0) - root)
    field = w.lshr(moved, f.mantissa)
    m = w.from_bits((moved & ((1 << f.mantissa) - 1)) + root, f.float_type)
    # An integer below 2**mantissa, put into the low bits of 2**mantissa, becomes a float without a
    # conversion.
    k = w.from_bits(field | _bits_of(f, 2.0**f.mantissa), f.float_type)
    return k - (2.0**f.mantissa + f.bias), m


def _log_of_split(
    w: Builder,
    f: Format,
    k: Value,
    u: Value,
    correction: Value | float,
    tail_of: tuple[float, ...] | None = None,
) -> Value:
    """Return k ln 2 + log(1 + u) + correction.

    log(1 + u) is 2 atanh(s), s = u / (2 + u), arranged so that u itself keeps all its bits.
    """
    half_square = (u * u) * 0.5
    s = u / (2.0 + u)
    z = s * s
    tail = z * polynomial(w, z, tail_of or f.log_tail)
    low = w.fma(k, f.ln2_low, correction)
    return k * f.ln2_high - ((half_square - w.fma(s, half_square + tail, low)) - u)


def _log_corners(w: Builder, x: Value, zero: Value, below: Value, result: Value) -> Value:
    """-inf at the pole, nan below it, and inf and nan as they came."""
    result = w.where(zero, -math.inf, result)
    result = w.where(below, math.nan, result)
    return w.where(x < math.inf, result, x)


def polynomial(w: Builder, x: Value, coefficients: Sequence[Value | float]) -> Value:
    """Evaluate by Estrin's scheme, for latency, but the last step by Horner, for accuracy."""
    first, *terms = [w.value(c, x.ty) for c in coefficients]
    power = x
    while len(terms) > 1:
        pairs = [w.fma(power, b, a) for a, b in zip(terms[::2], terms[1::2])]
        terms = pairs + terms[len(terms) & ~1 :]
        power = power * power if len(terms) > 1 else power
    return w.fma(x, terms[0], first)


def _clamp(w: Builder, x: Value, low: float, high: float) -> Value:
    """Limit to [low, high]; nan stays nan because it compares false."""
    x = w.where(x < low, low, x)
    return w.where(x > high, high, x)


def _round(f: Format, x: Value) -> Value:
    """Round to the nearest integer, |x| < 2**(mantissa - 2)."""
    return (x + f.magic) - f.magic


def _power_of_two(w: Builder, f: Format, n: Value) -> Value:
    """Return 2**n for an integer-valued n in the range of normal exponents."""
    # The low bits of n + magic are n; the shift drops all others.
    return w.from_bits((w.to_bits(n + f.magic) + f.bias) << f.mantissa, f.float_type)


def _bits_of(f: Format, x: float) -> int:
    """The integer whose bits are the float's, in this format."""
    pack = ("<d", "<q") if f.bits == 64 else ("<f", "<i")
    return int(struct.unpack(pack[1], struct.pack(pack[0], x))[0])


FUNCTIONS: dict[str, Callable[[Builder, Format, Value], Value]] = {
    "exp": _exp,
    "log": log,
    "log1p": _log1p,
    "log1p_unit": _log1p_unit,
    "expm1": _expm1,
    "tanh": _tanh,
}
