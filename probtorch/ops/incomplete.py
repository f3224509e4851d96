"""Derivatives of the incomplete gamma and beta functions in their shape parameters.

No closed form exists, so they are integrals. In u = log t the gamma density is exp(a u - e^u) /
Gamma(a); with P the lower regularised function and W(u) = x p(x) at x = e^u,

    dP/da = integral over u < log x of (u - psi(a)) W(u) du,

and the same integral over the whole line is 0. So the lighter of the two tails is integrated: on it
the integrand has one sign, nothing cancels, and the result is accurate relative to itself however
small it is. The integrand is entire and the exponent concave; Gauss-Legendre on the range where it
exceeds exp(-40) converges to rounding. The beta function is treated in the same way in v = logit t.
Everything is returned divided by -W, which never underflows: that ratio is the implicit derivative
of a draw (Figurnov, Mohamed, Mnih 2018) and what samplers need.

The formulas are over an algebra `s` with branches, loops and integrals: that of `lanes.py` for
arrays, that of compiler/lang/function.py for native code. The public functions are in special/.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from probtorch.ops.lanes import gauss_rule
from probtorch.ops.stirling import difference_of_digammas

if TYPE_CHECKING:
    from collections.abc import Iterator

    from probtorch.ops.algebra import Branching, Number, Operand, Scalars


__all__ = ["beta_tail", "gamma_tail"]

# Integrands are cut where they are exp(-40) of their value at the start: below 1e-17 of the result.
_CUT = 40.0
# An exponential decay over 40 e-folds needs about 24 nodes for 1e-16, Gaussian ones a few more.
_NODES = 48


# -------------------------------------------------------------------------------------------- gamma


def gamma_tail(s: Branching[Number], a: Number, y: Number, order: int = 1) -> Number:
    """Return ``-(d/da)**order P(a, x) / (x p(x))`` of the gamma distribution with shape `a`.

    Parameters
    ----------
    s : algebra
    a, y : values of it
        `y` is the natural logarithm of x, so that x may underflow.
    order : {1, 2}

    Returns
    -------
    value
        For order 1 it is d(log x)/da at constant P: positive everywhere.
    """

    def edge(s: Branching[Number], a: Number, y: Number) -> Number:
        return s.where(s.logical_and(a > 0.0, y == math.inf), 0.0, math.nan)

    def large(s: Branching[Number], a: Number, y: Number) -> Number:
        inside = s.logical_and(y > math.log(0.5), y < math.inf)
        inside = s.logical_and(a > 0.0, inside)
        return s.choose(inside, lambda s, a, y: _gamma_quadrature(s, a, y, order), edge, (a, y))

    # The series has terms (-x)^k / k!: at 0.5, sixteen of them reach 1e-18.
    small = s.logical_and(a > 0.0, y <= math.log(0.5))
    return s.choose(small, lambda s, a, y: _gamma_series(s, a, y, order), large, (a, y))


def _gamma_series(s: Branching[Number], a: Number, y: Number, order: int) -> Number:
    # P = x^a / Gamma(a + 1) * B, with B = sum of (-x)^k / k! * a / (a + k); primes below are d/da.
    x = s.exp(y)

    def ratio(k: Number, a: Number, x: Number) -> Number:
        return -x / k

    def parts(term: Number, k: Number, a: Number, x: Number) -> Iterator[Number]:
        below = a + k
        yield term * (a / below)
        yield term * k / (below * below)
        if order == 2:
            yield term * k / (below * below * below)

    starts = (1.0, 0.0, 0.0)[: order + 1]
    b0, b1, *rest = s.series(16, ratio, parts, starts, (a, x))
    slope = y - s.digamma(a + 1.0)
    if order == 1:
        inner = slope * b0 + b1
    else:
        inner = (slope * slope - s.zeta(2.0, a + 1.0)) * b0 + slope * b1 * 2.0 + rest[0] * -2.0
    return -s.exp(x) / a * inner


def _gamma_quadrature(s: Branching[Number], a: Number, y: Number, order: int) -> Number:
    x, mean = s.exp(y), s.digamma(a)
    sign = s.where(y < mean, -1.0, 1.0)
    length = _gamma_length(s, a, x, sign)
    spread = s.zeta(2.0, a) if order == 2 else 0.0

    def integrand(
        s: Branching[Number],
        at: Number,
        a: Number,
        x: Number,
        sign: Number,
        gap: Number,
        spread: Operand[Number],
    ) -> Number:
        u = sign * at
        weight = gap + u
        if order == 2:
            weight = weight * weight - spread
        return weight * s.exp(a * u - x * s.expm1(u))

    operands = (a, x, sign, y - mean, spread)
    return sign * s.quadrature(gauss_rule(_NODES), integrand, 0.0, length, operands)


def _gamma_length(s: Branching[Number], a: Number, x: Number, sign: Number) -> Number:
    """Where the exponent h(t) = a u - x expm1(u), u = sign * t, has fallen to -40."""
    far = s.abs(x - a)
    # Right: expm1(t) >= t + t^2/2. Left, for t <= 1: 1 - exp(-t) <= t - t^2/3; else -h >= max((a -
    # x) t, a t - x).
    right = 2.0 * _CUT / ((x - a) + s.hypot(far, s.sqrt(2.0 * _CUT * x)))
    left = 2.0 * _CUT / (far + s.hypot(far, s.sqrt(4.0 / 3.0 * _CUT * x)))
    left = s.where(left <= 1.0, left, s.minimum(_CUT / far, (_CUT + x) / a))

    # h is concave, so each step stays on the far side of the root: stopping early only widens the
    # range a little.
    def newton(s: Branching[Number], _: float, t: Number) -> tuple[Number]:
        u = sign * t
        height = a * u - x * s.expm1(u) + _CUT
        slope = sign * (a - x * s.exp(u))
        return (s.where(s.logical_and(height < 0.0, slope < 0.0), t - height / slope, t),)

    return s.fold(0, 8, newton, (s.where(sign > 0.0, right, left),))[0]


# --------------------------------------------------------------------------------------------- beta


def beta_tail(
    s: Branching[Number], a: Number, b: Number, v: Number, order: tuple[int, int] = (1, 0)
) -> Number:
    """Return ``-(d/da)**i (d/db)**j I_x(a, b) / (x (1 - x) p(x))`` of the beta distribution.

    Parameters
    ----------
    s : algebra
    a, b, v : values of it
        `v` is log(x / (1 - x)).
    order : (i, j), one of {(1, 0), (0, 1), (2, 0), (1, 1), (0, 2)}

    Returns
    -------
    value
        For order (1, 0) it is d(logit x)/da at constant I: positive everywhere.
    """
    positive = s.logical_and(a > 0.0, b > 0.0)
    return s.choose(
        s.logical_and(positive, s.abs(v) < math.inf),
        lambda s, a, b, v: _beta_quadrature(s, a, b, v, order),
        lambda *_: math.nan,
        (a, b, v),
    )


def _softplus(s: Scalars[Number], v: Number) -> Number:
    return s.maximum(v, 0.0) + s.log1p(s.exp(-s.abs(v)))


def _beta_quadrature(
    s: Branching[Number], a: Number, b: Number, v: Number, order: tuple[int, int]
) -> Number:
    i, j = order
    mean_left = -difference_of_digammas(s, a, b)
    mean_right = -difference_of_digammas(s, b, a)
    if j == 0:
        to_left = -_softplus(s, -v) < mean_left
    elif i == 0:
        to_left = -_softplus(s, v) > mean_right
    else:
        to_left = v < s.log(a / b)
    # The left tail is the right one of the mirrored problem: v -> -v, a <-> b.
    sign = s.where(to_left, -1.0, 1.0)
    rise, fall, start = s.where(to_left, b, a), s.where(to_left, a, b), sign * v
    length = _beta_length(s, rise, fall, start)
    spreads = [s.zeta(2.0, q) if i + j == 2 else 0.0 for q in (a, b, a + b)]

    def integrand(
        s: Branching[Number],
        t: Number,
        v: Number,
        sign: Number,
        rise: Number,
        fall: Number,
        start: Number,
        mean_left: Number,
        mean_right: Number,
        own_a: Operand[Number],
        own_b: Operand[Number],
        common: Operand[Number],
    ) -> Number:
        inside = s.exp(rise * t - (rise + fall) * _softplus_step(s, start, t))
        at = v + sign * t
        left = -_softplus(s, -at) - mean_left if i else 1.0
        right = -_softplus(s, at) - mean_right if j else 1.0
        if i + j == 1:
            return inside * left * right
        if (i, j) == (1, 1):
            return inside * (left * right + common)
        one, own = (left, own_a) if i else (right, own_b)
        return inside * (one * one - own + common)

    def panel(
        s: Branching[Number], low: Number, width: Number, *operands: Operand[Number]
    ) -> Number:
        return s.quadrature(gauss_rule(_NODES), integrand, low, width, operands)

    operands = (v, sign, rise, fall, start, mean_left, mean_right, *spreads)
    return sign * s.panels(length, _cuts(start, length), panel, operands)


def _cuts(start: Number, length: Number) -> list[Operand[Number]]:
    """Where the exponent may bend: panels end there.

    softplus bends at v = 0 and is straight to rounding 40 away from it; the density bends within 40
    of the two ends. Panels of at most 16 there are resolved by 48 nodes, as the nearest
    singularities, at v = +-i pi, are far enough.
    """
    steps = [14.0, 28.0, 42.0]
    bends = [b - start for b in (-40.0, -24.0, -8.0, 8.0, 24.0, 40.0)]
    return steps + [length - t for t in steps] + bends


def _softplus_step(s: Scalars[Number], start: Number, t: Number) -> Number:
    """softplus(start + t) - softplus(start) for t >= 0, without cancellation."""
    # With x = sigmoid(start): log(1 - x + x e^t), from whichever side keeps the argument of log1p
    # above -1/2.
    e = s.exp(-s.abs(start))
    low, high = e / (1.0 + e), 1.0 / (1.0 + e)
    up = s.minimum(t, 700.0)
    left = start <= 0.0
    return s.where(
        left,
        s.log1p(low * s.expm1(up)) + (t - up),
        t + s.log1p(s.where(left, high, low) * s.expm1(-t)),
    )


def _beta_length(s: Branching[Number], rise: Number, fall: Number, start: Number) -> Number:
    """Where h(t) = rise t - (rise + fall) softplus_step(start, t) has fallen to -40."""
    total = rise + fall

    def newton(s: Branching[Number], _: float, t: Number) -> tuple[Number]:
        height = rise * t - total * _softplus_step(s, start, t) + _CUT
        slope = rise - total / (1.0 + s.exp(-(start + t)))
        return (s.where(s.logical_and(height < 0.0, slope < 0.0), t - height / slope, t),)

    # h(t) <= -fall t + total softplus(-start).
    return s.fold(0, 24, newton, ((_CUT + total * _softplus(s, -start)) / fall,))[0]
