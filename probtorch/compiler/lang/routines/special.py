"""Special functions that CUDA lacks, for doubles; on a processor SciPy has them.

Sources: reflection, recurrence and asymptotic series of digamma (Abramowitz and Stegun 1972, 6.3);
incomplete gamma by its series, Lentz's continued fraction and Temme's expansion (Temme 1979; DLMF
8.12); incomplete beta by its continued fraction (Didonato and Morris 1992, from whom the scaled
forms of x**a (1 - x)**b / B(a, b) come too); Bessel functions by their series (DLMF 10.25, 10.40).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from probtorch.compiler.lang.cells import Cell
from probtorch.compiler.lang.function import KernelFunction, KernelRoutine
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.routines.zeta import zeta
from probtorch.ops.stirling import digamma_rest, lgamma_rest

__all__ = ["SPECIAL"]

_D = "double"
_2PI = 2.0 * math.pi


def _c(w: KernelFunction, name: str, *args: Value) -> Value:
    """Call a function of C that formulas have under another name, or not at all."""
    return w.call(name, _D, *args)


def _all(w: KernelFunction, *conditions: Value) -> Value:
    return functools.reduce(w.logical_and, conditions)


def _any(w: KernelFunction, *conditions: Value) -> Value:
    return functools.reduce(w.logical_or, conditions)


def _horner(coefficients: Sequence[float], z: Value) -> Value | float:
    total: Value | float = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = total * z + c
    return total


def _is_whole(w: KernelFunction, x: Value) -> Value:
    return w.floor(x) == x


# ---------------------------------------------------------------------- gamma and its logarithm


def _log_ndtr(w: KernelFunction, x: Value) -> Value:
    # erfcx carries the scale of the lower tail, so that nothing is lost.
    r = math.sqrt(0.5)
    return w.choose(
        x < -1.0,
        lambda w, x: w.log(w.erfcx(-x * r) * 0.5) - x * 0.5 * x,
        lambda w, x: w.log1p(w.erfc(x * r) * -0.5),
        (x,),
    )


def _digamma(w: KernelFunction, x: Value) -> Value:
    mirrored = x < 0.0
    at = w.variable(_D, w.where(mirrored, 1.0 - x, x))
    turn = w.tan((x - w.rint(x)) * math.pi)
    shift = w.variable(_D, w.where(mirrored, -math.pi / turn, 0.0))
    whole = w.logical_and(at.value <= 10.0, _is_whole(w, at.value))
    harmonic, series = w.branch(whole)
    out = w.variable(_D)
    with harmonic:
        n = w.convert(at.value, "i64")
        with w.loop(1, n) as i:
            shift.value = shift.value + 1.0 / w.as_float(n - i)
        out.value = shift.value - 0.57721566490153286061
    with series:
        with w.repeat_while(lambda: at.value < 10.0):
            shift.value = shift.value - 1.0 / at.value
            at.value = at.value + 1.0
        y = at.value
        out.value = w.log(y) - 0.5 / y + digamma_rest(y) + shift.value
    found = w.where(w.logical_and(mirrored, _is_whole(w, x)), math.nan, out.value)
    return w.where(x == 0.0, w.copysign(math.inf, -x), found)


def _lgamma(w: KernelFunction, x: Value) -> Value:
    return w.where(x == -math.inf, x, _c(w, "lgamma", x))


def _betaln(w: KernelFunction, a: Value, b: Value) -> Value:
    # SciPy's values at whole numbers below 1: finite where the poles of two gamma functions cancel.
    turned = w.logical_and(a <= 0.0, _is_whole(w, a))
    p, q = w.where(turned, b, a), w.where(turned, a, b)
    at_pole = w.logical_and(q <= 0.0, _is_whole(w, q))
    mirrored = 1.0 - p - q
    small = w.logical_and(w.abs(p) <= 2147483647.0, q > -2147483648.0)
    finite = _all(w, _is_whole(w, p), mirrored > 0.0, small, p > 0.0)
    endless = w.logical_and(at_pole, w.logical_not(finite))
    q = w.where(at_pole, mirrored, q)
    low, high = w.where(p > q, q, p), w.where(p > q, p, q)
    plain = w.logical_or(w.logical_not(low > 0.0), high < 10.0)
    found = w.choose(plain, _betaln_of_small, _betaln_of_large, (low, high))
    # B(a, inf) = 0 for a > 0.
    limit = w.where(low == math.inf, math.nan, w.where(low > 0.0, -math.inf, math.inf))
    found = w.where(endless, math.inf, w.where(high == math.inf, limit, found))
    return w.where(w.logical_or(w.isnan(a), w.isnan(b)), a + b, found)


def _betaln_of_small(w: KernelFunction, a: Value, b: Value) -> Value:
    return _c(w, "lgamma", a) + _c(w, "lgamma", b) - _c(w, "lgamma", a + b)


def _betaln_of_large(w: KernelFunction, a: Value, b: Value) -> Value:
    def one(w: KernelFunction, a: Value, b: Value) -> Value:
        rest = lgamma_rest(b) - lgamma_rest(a + b) - (a + b - 0.5) * w.log1p(a / b)
        return _c(w, "lgamma", a) + rest - a * w.log(b) + a

    def both(w: KernelFunction, a: Value, b: Value) -> Value:
        rest = lgamma_rest(a) + lgamma_rest(b) - lgamma_rest(a + b)
        rest = 0.5 * math.log(_2PI) - w.log(b) * 0.5 + rest
        return rest + (a - 0.5) * w.log(a / (a + b)) - b * w.log1p(a / b)

    return w.choose(a < 10.0, one, both, (a, b))


@functools.cache
def _lgamma1p_terms() -> tuple[float, ...]:
    """Return (-1)**k (zeta(k) - 1) / k from k = 2, by 200 terms and the Euler-Maclaurin formula."""
    n, terms = 200, []
    for k in range(2, 60):
        head = sum(i**-k for i in range(n - 1, 1, -1))
        tail = n ** (1 - k) / (k - 1) + 0.5 * n**-k + k * n ** (-k - 1) / 12
        tail -= k * (k + 1) * (k + 2) * n ** (-k - 3) / 720
        terms.append((-1) ** k * (head + tail) / k)
    return tuple(terms)


def _lgamma1p(w: KernelFunction, a: Value) -> Value:
    """lgamma(1 + a) for 0 <= a < 1, by its power series with zeta(k) - 1 instead of zeta(k)."""
    return (_horner(_lgamma1p_terms(), a) * a + 0.42278433509846713939) * a - w.log1p(a)


def _log1p_gap(w: KernelFunction, u: Value) -> Value:
    """Return u - log1p(u), without cancellation near 0."""
    r = u / (u + 2.0)
    z = r * r
    close = r * (u - z * 2.0 * (_horner([1.0 / k for k in range(3, 25, 2)], z)))
    return w.where(w.logical_or(u < -0.4, u > 0.5), u - w.log1p(u), close)


# --------------------------------------------------------------------------- incomplete integrals


def _lentz(w: KernelFunction, a: Value, b: Value | float, c: Cell, d: Cell) -> Value:
    """Take in the term a / (b + ...): the factor by which a continued fraction changes."""

    def kept(x: Value) -> Value:
        return w.where(w.abs(x) < 1e-300, 1e-300, x)

    d.value = 1.0 / kept(a * d.value + b)
    c.value = kept(b + a / c.value)
    return d.value * c.value


def _sum_fraction(
    w: KernelFunction, start: Value, c: float, step: Callable[..., list[Value]]
) -> Value:
    """Multiply up the factors ``step(i, c, d)`` of a continued fraction until they are 1."""
    d, h = w.variable(_D, start), w.variable(_D, start)
    top, i, done = w.variable(_D, c), w.variable("i64", 1), w.variable("i1", False)
    with w.repeat_while(lambda: w.logical_and(i.value < 100000, w.logical_not(done.value))):
        factors = step(w.as_float(i.value), top, d)
        for factor in factors:
            h.value = h.value * factor
        done.value = w.abs(factors[-1] - 1.0) < 1e-16
        i.value = i.value + 1
    return h.value


def _gamma_term(w: KernelFunction, a: Value, x: Value) -> Value:
    """x**a exp(-x) / Gamma(a + 1)."""

    def small(w: KernelFunction, a: Value, x: Value) -> Value:
        near = w.logical_and(x > 1e-25, x < 500.0)
        return w.choose(
            near,
            lambda w, a, x: w.pow(x, a) * w.exp(-x) / _c(w, "tgamma", a + 1.0),
            lambda w, a, x: w.exp(a * w.log(x) - x - _c(w, "lgamma", a + 1.0)),
            (a, x),
        )

    def large(w: KernelFunction, a: Value, x: Value) -> Value:
        return w.exp(-a * _log1p_gap(w, (x - a) / a) - lgamma_rest(a)) / w.sqrt(a * _2PI)

    return w.choose(a < 10.0, small, large, (a, x))


def _gamma_series(w: KernelFunction, a: Value, x: Value) -> Value:
    term, total = w.variable(_D, 1.0), w.variable(_D, 1.0)
    k = w.variable(_D, a + 1.0)
    with w.repeat_while(lambda: term.value > total.value * 1e-17):
        term.value = term.value * (x / k.value)
        total.value = total.value + term.value
        k.value = k.value + 1.0
    return w.runtime("pt_gamma_term", _D, a, x) * total.value


def _gamma_fraction(w: KernelFunction, a: Value, x: Value) -> Value:
    first = x + 1.0 - a

    def step(i: Value, c: Cell, d: Cell) -> list[Value]:
        return [_lentz(w, -i * (i - a), first + i * 2.0, c, d)]

    h = _sum_fraction(w, 1.0 / first, 1e300, step)
    return w.runtime("pt_gamma_term", _D, a, x) * a * h


# Temme's coefficients c_0 and c_1 in powers of eta.
_TEMME = (
    (-1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -139 / 777600, 1 / 25515, -571 / 261273600),
    (-1 / 540, -1 / 288, 1 / 378, -77 / 77760),
)


def _gamma_uniform(w: KernelFunction, a: Value, x: Value, sign: float) -> Value:
    """Temme's expansion for large a: the upper (+1) or lower (-1) function."""
    mu = (x - a) / a
    g = _log1p_gap(w, mu)
    eta = w.copysign(w.sqrt(g * 2.0), mu)
    c0, c1 = (_horner(c, eta) for c in _TEMME)
    rest = w.exp(-a * g) / w.sqrt(a * _2PI) * (c0 + c1 / a)
    return w.erfc(eta * sign * w.sqrt(a * 0.5)) * 0.5 + rest * sign


def _gamma_near_zero(w: KernelFunction, a: Value, x: Value) -> Value:
    """1 - P without cancelling: Gamma(a + 1) P = x**a (1 + a sum) by its alternating series."""
    term, total = w.variable(_D, 1.0), w.variable(_D, 0.0)
    with w.loop(1, 60) as i:
        k = w.as_float(i)
        term.value = term.value * (-x / k)
        total.value = total.value + term.value / (a + k)
    power = a * w.log(x) - _lgamma1p(w, a)
    return -w.expm1(power) - w.exp(power) * a * total.value


def _incomplete_gamma(w: KernelFunction, a: Value, x: Value, upper: bool) -> Value:
    def whole(yes: bool) -> float:
        return 1.0 if yes else 0.0

    def uniform(w: KernelFunction, a: Value, x: Value) -> Value:
        return _gamma_uniform(w, a, x, 1.0 if upper else -1.0)

    def series(w: KernelFunction, a: Value, x: Value) -> Value:
        found = _gamma_series(w, a, x)
        return 1.0 - found if upper else found

    def near(w: KernelFunction, a: Value, x: Value) -> Value:
        if not upper:
            return series(w, a, x)
        close = w.logical_and(x <= 1.1, a < 1.0)
        return w.choose(close, _gamma_near_zero, series, (a, x))

    def far(w: KernelFunction, a: Value, x: Value) -> Value:
        found = _gamma_fraction(w, a, x)
        return found if upper else 1.0 - found

    def inside(w: KernelFunction, a: Value, x: Value) -> Value:
        middle = w.logical_and(a > 1e5, w.abs(x - a) < a * 0.1)
        left = w.logical_or(x < 1.1, x < a)
        rest = lambda w, a, x: w.choose(left, near, far, (a, x))
        return w.choose(middle, uniform, rest, (a, x))

    high = w.logical_or(a == 0.0, x == math.inf)
    low = w.logical_or(x == 0.0, a == math.inf)
    bad = w.logical_not(w.logical_and(a >= 0.0, x >= 0.0))
    both = w.logical_or(
        w.logical_and(a == 0.0, x == 0.0), w.logical_and(a == math.inf, x == math.inf)
    )
    edge = _any(w, high, low, bad)
    limit = w.where(high, w.value(whole(not upper), _D), whole(upper))
    limit = w.where(w.logical_or(bad, both), math.nan, limit)
    return w.choose(edge, lambda w, a, x: limit, inside, (a, x))


def _beta_term(w: KernelFunction, a: Value, b: Value, x: Value) -> Value:
    """x**a (1 - x)**b / B(a, b)."""

    def small(w: KernelFunction, a: Value, b: Value, x: Value) -> Value:
        power = a * w.log(x) + b * w.log1p(-x)
        return w.exp(power - w.runtime("pt_betaln", _D, a, b))

    def large(w: KernelFunction, a: Value, b: Value, x: Value) -> Value:
        y = 1.0 - x
        gap = w.where(a <= b, a - (a + b) * x, (a + b) * y - b)
        u, v = _log1p_gap(w, -gap / a), _log1p_gap(w, gap / b)
        correction = lgamma_rest(a) + lgamma_rest(b) - lgamma_rest(a + b)
        scale = w.sqrt(a / (a + b) * b / _2PI)
        return scale * w.exp(-(a * u + b * v) - correction)

    return w.choose(w.logical_or(a < 10.0, b < 10.0), small, large, (a, b, x))


def _beta_fraction(w: KernelFunction, a: Value, b: Value, x: Value) -> Value:
    first = 1.0 - (a + b) * x / (a + 1.0)
    first = w.where(w.abs(first) < 1e-300, 1e-300, first)

    def step(m: Value, c: Cell, d: Cell) -> list[Value]:
        n = a + m * 2.0
        even = m / (n - 1.0) * ((b - m) / n * x)
        odd = -(a + m) / n * ((a + b + m) / (n + 1.0) * x)
        return [_lentz(w, even, 1.0, c, d), _lentz(w, odd, 1.0, c, d)]

    h = _sum_fraction(w, 1.0 / first, 1.0, step)
    return _beta_term(w, a, b, x) * h / a


def _betainc(w: KernelFunction, a: Value, b: Value, x: Value) -> Value:
    def inside(w: KernelFunction, a: Value, b: Value, x: Value) -> Value:
        left = x <= (a + 1.0) / (a + b + 2.0)
        turned = [w.where(left, a, b), w.where(left, b, a), w.where(left, x, 1.0 - x)]
        found = _beta_fraction(w, *turned)
        return w.where(left, found, 1.0 - found)

    bad = w.logical_not(_all(w, a >= 0.0, b >= 0.0, x >= 0.0, x <= 1.0))
    both = w.logical_or(
        w.logical_and(a == 0.0, b == 0.0), w.logical_and(a == math.inf, b == math.inf)
    )
    high, low = w.logical_or(a == 0.0, b == math.inf), w.logical_or(b == 0.0, a == math.inf)
    end = w.logical_or(x == 0.0, x == 1.0)
    limit = w.where(end, x, w.where(high, w.value(1.0, _D), 0.0))
    limit = w.where(w.logical_or(bad, both), math.nan, limit)
    edge = _any(w, bad, high, low, end)
    return w.choose(edge, lambda w, a, b, x: limit, inside, (a, b, x))


# -------------------------------------------------------------------------------- Bessel functions


def _bessel(w: KernelFunction, x: Value, order: int) -> Value:
    """exp(-|x|) I_order(|x|): power series to 20, where the asymptotic one has full precision."""

    def small(w: KernelFunction, x: Value) -> Value:
        z = x * x * 0.25
        first = x * 0.5 if order else w.value(1.0, _D)
        term, total = w.variable(_D, first), w.variable(_D, first)
        k = w.variable(_D, 1.0)
        with w.repeat_while(lambda: term.value > total.value * 1e-18):
            term.value = term.value * (z / (k.value * (k.value + float(order))))
            total.value = total.value + term.value
            k.value = k.value + 1.0
        return w.exp(-x) * total.value

    def large(w: KernelFunction, x: Value) -> Value:
        term, total = w.variable(_D, 1.0), w.variable(_D, 1.0)
        k = w.variable(_D, 1.0)
        more = lambda: w.logical_and(k.value < 40.0, w.abs(term.value) > 1e-18)
        with w.repeat_while(more):
            odd = k.value * 2.0 - 1.0
            term.value = term.value * ((odd * odd - 4.0 * order) / (k.value * 8.0 * x))
            total.value = total.value + term.value
            k.value = k.value + 1.0
        return total.value / w.sqrt(x * _2PI)

    size = w.abs(x)
    found = w.choose(size < 20.0, small, large, (size,))
    found = w.where(size == math.inf, 0.0, found)
    found = w.copysign(found, x) if order else found
    return w.where(w.isnan(x), x, found)


_TWO = "double double"
SPECIAL = {
    "pt_log_ndtr": KernelRoutine(_log_ndtr),
    "pt_digamma": KernelRoutine(_digamma),
    "pt_zeta": KernelRoutine(zeta, _TWO, flags=""),
    "pt_lgamma": KernelRoutine(_lgamma),
    "pt_betaln": KernelRoutine(_betaln, _TWO),
    "pt_gamma_term": KernelRoutine(_gamma_term, _TWO),
    "pt_gammainc": KernelRoutine(functools.partial(_incomplete_gamma, upper=False), _TWO),
    "pt_gammaincc": KernelRoutine(functools.partial(_incomplete_gamma, upper=True), _TWO),
    "pt_betainc": KernelRoutine(_betainc, f"{_TWO} double"),
    "pt_i0e": KernelRoutine(functools.partial(_bessel, order=0)),
    "pt_i1e": KernelRoutine(functools.partial(_bessel, order=1)),
}
