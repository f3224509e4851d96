"""Derivatives of incomplete gamma and beta functions in their shapes, as scalar functions.

The integrals, and why they are accurate, are those of ops/incomplete.py, whose names and order this
file keeps; there arrays are worked off in chunks, here the nodes of the quadrature are the vector.
`text` hands out the writers of functions, for a processor or a GPU.
"""

import math

import numpy as np

from probtorch.core.op import REGISTRY
from probtorch.ops.stirling import difference_of_digammas

__all__ = [
    "BETA_ORDERS",
    "angle_signatures",
    "beta_signatures",
    "gamma_signatures",
    "write_angle",
    "write_beta",
    "write_gamma",
]

_CUT = 40.0
BETA_ORDERS = ((1, 0), (0, 1), (2, 0), (1, 1), (0, 2))


def gamma_signatures():
    """Return the gamma functions of a and log x, and of a and x, for both orders."""
    return {
        f"pt_{name}_{order}": ("double", ["double", "double"])
        for name in ("gamma_log_implicit", "gammainc_grad_a")
        for order in (1, 2)
    }


def beta_signatures(order):
    """Return the beta function of a, b and x for one order (i, j) of derivatives."""
    return {f"pt_betainc_grad_{order[0]}{order[1]}": ("double", ["double"] * 3)}


class _Rule:
    """Nodes and weights of Gauss and Legendre on [0, 1], as tables of the module."""

    def __init__(self, text, count=48):
        self.count = count
        nodes, weights = np.polynomial.legendre.leggauss(count)
        self.nodes = text.table((0.5 * (nodes + 1.0)).tolist())
        self.weights = text.table((0.5 * weights).tolist())

    def integrate(self, w, integrand):
        """Return the weighted sum of ``integrand(node)``; LLVM vectorises it."""
        total = w.variable("double", 0.0)
        with w.loop(0, self.count) as i:
            term = integrand(w.entry(self.nodes, i)) * w.entry(self.weights, i)
            total.value = w.binary("add", total.value, term, "reassoc contract")
        return total.value


def _density(w, name, *operands):
    """Write the formula of an elementwise op."""
    formula = REGISTRY[name].formula
    assert formula is not None
    return formula(w, *operands)


# -------------------------------------------------------------------------------------------- gamma


def write_gamma(text):
    """Write the module of the gamma functions."""
    rule = _Rule(text)
    for order in (1, 2):
        w = text.function(f"pt_gamma_log_implicit_{order}", "double", ["double", "double"])
        a, y = w.arguments
        out = w.variable("double", math.nan)
        positive = a > 0.0
        with w.when(w.logical_and(positive, y <= math.log(0.5))):
            out.value = _gamma_series(w, a, y, order)
        inside = w.logical_and(y > math.log(0.5), y < math.inf)
        with w.when(w.logical_and(positive, inside)):
            out.value = _gamma_quadrature(w, rule, a, y, order)
        with w.when(w.logical_and(positive, y == math.inf)):
            out.value = 0.0
        w.finish(out.value)
    for order in (1, 2):
        _write_gammainc_grad_a(text, order)


def _write_gammainc_grad_a(text, order):
    w = text.function(f"pt_gammainc_grad_a_{order}", "double", ["double", "double"])
    a, x = w.arguments
    weight = w.where(x > 0.0, _density(w, "gamma_density", a, x) * x, 0.0)
    tail = w.call(f"pt_gamma_log_implicit_{order}", "double", a, w.log(x))
    # P(a, 0) = 0 and P(a, inf) = 1 for every a; a weight that underflows beats whatever it
    # multiplies.
    valid = w.logical_and(a > 0.0, x >= 0.0)
    gone = w.logical_and(weight == 0.0, valid)
    w.finish(w.where(gone, 0.0, -weight * tail))


def _gamma_series(w, a, y, order):
    x = w.exp(y)
    sums = [w.variable("double", start) for start in (1.0, 0.0, 0.0)]
    term = w.variable("double", 1.0)
    with w.loop(1, 17) as i:
        k = w.as_float(i)
        below = a + k
        term.value = term.value * (-x / k)
        parts = (
            term.value * (a / below),
            term.value * k / (below * below),
            term.value * k / (below * below * below),
        )
        for total, part in zip(sums, parts, strict=True):
            total.value = total.value + part
    b0, b1, b2 = (total.value for total in sums)
    slope = y - w.digamma(a + 1.0)
    if order == 1:
        inner = slope * b0 + b1
    else:
        inner = (slope * slope - w.zeta(2.0, a + 1.0)) * b0 + slope * b1 * 2.0 + b2 * -2.0
    return -w.exp(x) / a * inner


def _gamma_quadrature(w, rule, a, y, order):
    x, mean = w.exp(y), w.digamma(a)
    sign = w.where(y < mean, w.value(-1.0, "double"), 1.0)
    length = _gamma_length(w, a, x, sign)
    spread = w.zeta(2.0, a) if order == 2 else None

    def integrand(node):
        u = sign * (length * node)
        weight = (y - mean) + u
        if order == 2:
            weight = weight * weight - spread
        return weight * w.exp(a * u - x * w.expm1(u))

    return sign * length * rule.integrate(w, integrand)


def _gamma_length(w, a, x, sign):
    """Where the exponent h(s) = a u - x expm1(u), u = sign * s, has fallen to -40."""
    far = w.abs(x - a)
    right = 2.0 * _CUT / ((x - a) + _hypot(w, far, w.sqrt(2.0 * _CUT * x)))
    left = 2.0 * _CUT / (far + _hypot(w, far, w.sqrt(4.0 / 3.0 * _CUT * x)))
    left = w.where(left <= 1.0, left, w.minimum(_CUT / far, (_CUT + x) / a))
    s = w.variable("double", w.where(sign > 0.0, right, left))
    with w.loop(0, 8):
        u = sign * s.value
        height = a * u - x * w.expm1(u) + _CUT
        slope = sign * (a - x * w.exp(u))
        step = w.logical_and(height < 0.0, slope < 0.0)
        s.value = w.where(step, s.value - height / slope, s.value)
    return s.value


def _hypot(w, a, b):
    """sqrt(a^2 + b^2) of numbers >= 0, without overflow."""
    top = w.maximum(a, b)
    ratio = w.minimum(a, b) / top
    return w.where(top == 0.0, 0.0, top * w.sqrt(1.0 + ratio * ratio))


# --------------------------------------------------------------------------------------------- beta


def write_beta(text, order):
    """Write the module of the beta function for one order (i, j)."""
    rule = _Rule(text)
    i, j = order
    w = text.function(f"pt_betainc_grad_{i}{j}", "double", ["double"] * 3)
    a, b, x = w.arguments
    weight = _density(w, "beta_density", a, b, x) * x * (1.0 - x)
    v = w.log(x) - w.log1p(-x)
    out = w.variable("double", math.nan)
    positive = w.logical_and(a > 0.0, b > 0.0)
    with w.when(w.logical_and(positive, w.abs(v) < math.inf)):
        out.value = _beta_quadrature(w, rule, a, b, v, order)
    # At x = 0 and 1 the function is 0 and 1 for all a and b.
    ends = w.logical_or(x == 0.0, x == 1.0)
    edge = w.logical_and(w.logical_or(ends, weight == 0.0), positive)
    w.finish(w.where(edge, 0.0, -weight * out.value))


def _softplus(w, v):
    return w.maximum(v, 0.0) + w.log1p(w.exp(-w.abs(v)))


def _beta_quadrature(w, rule, a, b, v, order):
    i, j = order
    mean_left = -difference_of_digammas(w, a, b)
    mean_right = -difference_of_digammas(w, b, a)
    if j == 0:
        to_left = -_softplus(w, -v) < mean_left
    elif i == 0:
        to_left = -_softplus(w, v) > mean_right
    else:
        to_left = v < w.log(a / b)
    # The left tail is the right one of the mirrored problem: v -> -v, a <-> b.
    sign = w.where(to_left, w.value(-1.0, "double"), 1.0)
    rise, fall, start = w.where(to_left, b, a), w.where(to_left, a, b), sign * v
    length = _beta_length(w, rise, fall, start)
    spreads = [w.zeta(2.0, q) if i + j == 2 else 0.0 for q in (a, b, a + b)]

    def integrand_of(low, width):
        def integrand(node):
            s = low + width * node
            inside = w.exp(rise * s - (rise + fall) * _softplus_step(w, start, s))
            at = v + sign * s
            sides = [
                -_softplus(w, -at) - mean_left if i else 1.0,
                -_softplus(w, at) - mean_right if j else 1.0,
            ]
            if i + j == 1:
                return inside * sides[0] * sides[1]
            if (i, j) == (1, 1):
                return inside * (sides[0] * sides[1] + spreads[2])
            one, own = (sides[0], spreads[0]) if i else (sides[1], spreads[1])
            return inside * (one * one - own + spreads[2])

        return integrand

    total = w.variable("double", 0.0)
    low = w.variable("double", 0.0)
    cuts = _cuts(w, start, length)
    with w.repeat_while(lambda: low.value < length):
        here = low.value
        end = length
        for cut in cuts:
            end = w.where(w.logical_and(cut > here, cut < end), cut, end)
        width = end - here
        total.value = total.value + width * rule.integrate(w, integrand_of(here, width))
        low.value = end
    return sign * total.value


def _cuts(w, start, length):
    """Where the exponent may bend: panels end there."""
    steps = [w.value(s, "double") for s in (14.0, 28.0, 42.0)]
    bends = [b - start for b in (-40.0, -24.0, -8.0, 8.0, 24.0, 40.0)]
    return steps + [length - s for s in steps] + bends


def _softplus_step(w, start, s):
    """softplus(start + s) - softplus(start) for s >= 0, without cancellation."""
    e = w.exp(-w.abs(start))
    low, high = e / (1.0 + e), 1.0 / (1.0 + e)
    up = w.minimum(s, 700.0)
    left = start <= 0.0
    return w.where(
        left,
        w.log1p(low * w.expm1(up)) + (s - up),
        s + w.log1p(w.where(left, high, low) * w.expm1(-s)),
    )


def _beta_length(w, rise, fall, start):
    """Where h(s) = rise s - (rise + fall) softplus_step(start, s) has fallen to -40."""
    total = rise + fall
    s = w.variable("double", (_CUT + total * _softplus(w, -start)) / fall)
    with w.loop(0, 24):
        height = rise * s.value - total * _softplus_step(w, start, s.value) + _CUT
        slope = rise - total / (1.0 + w.exp(-(start + s.value)))
        step = w.logical_and(height < 0.0, slope < 0.0)
        s.value = w.where(step, s.value - height / slope, s.value)
    return s.value


# ---------------------------------------------------------------------------------------- von Mises


def angle_signatures():
    """Return the derivative of a von Mises angle, a function of concentration and angle."""
    return {"pt_von_mises_slope": ("double", ["double", "double"])}


def write_angle(text):
    """Write the module of `von_mises_slope`, as `_run_angle_slope` in ops/variates.py."""
    rule = _Rule(text, 64)
    w = text.function("pt_von_mises_slope", "double", ["double", "double"])
    k, x = w.arguments
    end = w.abs(x)
    inner = end * w.sqrt(k) < 1.5
    turn = _square(w.sin(end * 0.5))
    far = w.sqrt(w.minimum(turn + 20.0 / k, 1.0))
    start = w.where(inner, 0.0, w.asin(far) * 2.0)
    # Both ends of the range from its middle, so that the nodes on [0, 1] serve.
    low, width = w.minimum(start, end), w.abs(start - end)
    shortfall = 1.0 - w.i1e(k) / w.i0e(k)

    def integrand(node):
        part = _square(w.sin((low + width * node) * 0.5))
        return (part * 2.0 - shortfall) * w.exp(k * 2.0 * (turn - part))

    integral = width * rule.integrate(w, integrand)
    w.finish(w.where(inner, integral, -integral) * w.where(x == 0.0, x, w.copysign(1.0, x)))


def _square(x):
    return x * x
