"""What densities of counts, and of gamma and beta variates, have beside large terms that cancel.

They are made of two kinds of ops: a kernel (`poisson_kernel` and its kin) holds all that is large
in the plain form, and is near 0 where the density is high; a rest (`gamma_rest`, `factorial_rest`,
`stirling_rest`) is what a lgamma has beside. Derivatives of kernels are logarithms of ratios near
1, ops of their own: products and complements are taken in double precision before they are rounded.
Formulas are in ops/stirling.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq, ge, logical_and
from probtorch.ops.exponentials import sigmoid
from probtorch.ops.families import elementwise
from probtorch.ops.special.declaration import quiet, scipy_value, tensor_like
from probtorch.ops.special.gamma import polygamma
from probtorch.ops.stirling import (
    deviance,
    digamma_less_log,
    excess,
    lgamma_less_power,
    log_of_ratio,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from probtorch.core.tensor_base import TensorBase
    from probtorch.ops.algebra import Number, Scalars


__all__ = [
    "beta_binomial_kernel",
    "beta_kernel",
    "binomial_kernel",
    "binomial_logits_kernel",
    "factorial_rest",
    "gamma_kernel",
    "gamma_rest",
    "poisson_kernel",
    "stirling_rest",
]

# ------------------------------------------------------------------------ formulas


def _poisson_kernel(s: Scalars[Number], k: Number, m: Number) -> Number:
    return deviance(s, s.wide(k), s.wide(m))


def _gamma_kernel(s: Scalars[Number], a: Number, b: Number, x: Number) -> Number:
    return deviance(s, s.wide(a) - 1.0, s.wide(b) * s.wide(x))


def _gamma_slope(s: Scalars[Number], a: Number, b: Number, x: Number) -> Number:
    return log_of_ratio(s, s.wide(b) * s.wide(x), s.wide(a) - 1.0)


def _beta_kernel(s: Scalars[Number], a: Number, b: Number, x: Number) -> Number:
    # Any c would do in exact arithmetic; with this one all terms are small, and the log-derivative
    # in c is 0.
    a, b, x = s.wide(a), s.wide(b), s.wide(x)
    c = s.maximum(a + b - 1.0, 1.0)
    return deviance(s, a - 1.0, c * x) + deviance(s, b - 1.0, c * (1.0 - x)) + s.log(c)


def _beta_slope(s: Scalars[Number], a: Number, b: Number, x: Number) -> Number:
    a, b, x = s.wide(a), s.wide(b), s.wide(x)
    return log_of_ratio(s, s.maximum(a + b - 1.0, 1.0) * x, a - 1.0)


def _beta_other_slope(s: Scalars[Number], a: Number, b: Number, x: Number) -> Number:
    a, b, x = s.wide(a), s.wide(b), s.wide(x)
    return log_of_ratio(s, s.maximum(a + b - 1.0, 1.0) * (1.0 - x), b - 1.0)


def _binomial_kernel(s: Scalars[Number], k: Number, l: Number, p: Number) -> Number:
    k, l, p = s.wide(k), s.wide(l), s.wide(p)
    n, q, few = k + l, 1.0 - p, p <= 0.5
    # What the rarer of both is short of, and the other has too much: small where few are expected.
    lost = s.minimum(k, l) - (n - s.maximum(k, l))
    share = s.where(few, p, q)
    short = excess(s, n, share, s.where(few, k, l)) + lost * share
    more = s.where(few, short, -short)
    return deviance(s, k, n * p, difference=more) + deviance(s, l, n * q, difference=-more)


def _binomial_slope(s: Scalars[Number], k: Number, l: Number, p: Number) -> Number:
    k, l, p = s.wide(k), s.wide(l), s.wide(p)
    return log_of_ratio(s, (k + l) * p, k)


def _binomial_other_slope(s: Scalars[Number], k: Number, l: Number, p: Number) -> Number:
    k, l, p = s.wide(k), s.wide(l), s.wide(p)
    return log_of_ratio(s, (k + l) * (1.0 - p), l)


def _two_shares(s: Scalars[Number], x: Number) -> tuple[Number, Number, Number, Number]:
    """Sigmoid(x) and sigmoid(-x), and their logarithms."""
    small = s.exp(-s.abs(x))
    high = 1.0 / (1.0 + small)
    low = small * high
    log_high = -s.log1p(small)
    log_low = log_high - s.abs(x)
    up = x > 0.0
    p, log_p = s.where(up, high, low), s.where(up, log_high, log_low)
    q, log_q = s.where(up, low, high), s.where(up, log_low, log_high)
    return p, log_p, q, log_q


def _binomial_logits_kernel(s: Scalars[Number], k: Number, l: Number, x: Number) -> Number:
    k, l, x = s.wide(k), s.wide(l), s.wide(x)
    n = k + l
    p, log_p, q, log_q = _two_shares(s, x)
    return deviance(s, k, n * p, lambda c: s.log(n / c) + log_p) + deviance(
        s, l, n * q, lambda c: s.log(n / c) + log_q
    )


def _binomial_logits_slope(s: Scalars[Number], k: Number, l: Number, x: Number) -> Number:
    k, l, x = s.wide(k), s.wide(l), s.wide(x)
    n = k + l
    _, log_p, _, _ = _two_shares(s, x)
    return s.where(n == 0.0, 0.0, s.log(n / s.maximum(k, 1.0))) + log_p


def _binomial_logits_score(s: Scalars[Number], k: Number, l: Number, x: Number) -> Number:
    k, l, x = s.wide(k), s.wide(l), s.wide(x)
    p, _, q, _ = _two_shares(s, x)
    return k * q - l * p


def _beta_binomial_kernel(s: Scalars[Number], a: Number, b: Number, k: Number, l: Number) -> Number:
    # Of t trials n are seen and r imagined. Of u successes among all a share n / t is expected to
    # be seen, as of the failures.
    a, b, k, l = s.wide(a), s.wide(b), s.wide(k), s.wide(l)
    n, r, u, v = k + l, a + b, k + a, l + b
    inverse = 1.0 / (n + r)
    seen, imagined = n * inverse, r * inverse
    # What each of the four is more or less than expected: the same number but for its sign.
    more = a * (l * inverse) - b * (k * inverse)
    successes = deviance(s, k, u * seen, difference=more) + deviance(
        s, a, u * imagined, difference=-more
    )
    failures = deviance(s, l, v * seen, difference=-more) + deviance(
        s, b, v * imagined, difference=more
    )
    return successes + failures


def _beta_binomial_slope(s: Scalars[Number], a: Number, b: Number, k: Number, l: Number) -> Number:
    a, b, k, l = s.wide(a), s.wide(b), s.wide(k), s.wide(l)
    n, r, u = k + l, a + b, k + a
    return log_of_ratio(s, u * (r * (1.0 / (n + r))), a)


# ------------------------------------------------------------------------ references


def _power_and_scale(k: np.ndarray) -> np.ndarray:
    """K log k - k from 1 on, and -1 below: what `deviance` subtracts."""
    c = np.maximum(k, 1.0)
    return k * np.log(c) - c


def _gamma_kernel_reference(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (a - 1.0) * np.log(b * x) - b * x - _power_and_scale(a - 1.0)


def _beta_kernel_reference(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    c = np.maximum(a + b - 1.0, 1.0)
    terms = _gamma_kernel_reference(a, c, x) + _gamma_kernel_reference(b, c, 1.0 - x)
    return terms + np.log(c)


def _binomial_kernel_reference(k: np.ndarray, l: np.ndarray, p: np.ndarray) -> np.ndarray:
    n = k + l
    terms = k * np.log(n * p) - n * p + l * np.log(n * (1.0 - p)) - n * (1.0 - p)
    return terms - _power_and_scale(k) - _power_and_scale(l)


def _beta_binomial_kernel_reference(
    a: np.ndarray, b: np.ndarray, k: np.ndarray, l: np.ndarray
) -> np.ndarray:
    n, r, u, v = k + l, a + b, k + a, l + b
    power = lambda z: z * np.log(z) - z
    terms = power(u) + power(v) - power(n + r) + power(n) + power(r)
    return terms - sum(_power_and_scale(z) for z in (a, b, k, l))


def _ratio_reference(m: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.log(m / np.maximum(k, 1.0))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


# ------------------------------------------------------------------------ derivatives of ratios


def _over(top: TensorBase, x: TensorBase) -> TensorBase:
    """Top / x, and 0 for 0 / 0: a count of 0, or what nothing depends on."""
    none = logical_and(eq(top, 0.0), eq(x, 0.0))
    return where(none, 0.0, top / where(none, 1.0, x))


def _inverse(x: TensorBase, k: TensorBase) -> TensorBase:
    """1 / x, and 0 where both x and k are 0: the logarithm of a ratio of both is 0 there."""
    none = logical_and(eq(x, 0.0), eq(k, 0.0))
    return where(none, 0.0, 1.0 / where(none, 1.0, x))


def _inverse_from_one(k: TensorBase) -> TensorBase:
    above = ge(k, 1.0)
    return where(above, 1.0 / where(above, k, 1.0), 0.0)


def _times(g: TensorBase, slope: TensorBase) -> TensorBase:
    """G * slope, and 0 where nothing depends on the value, though its slope be infinite."""
    none = eq(g, 0.0)
    return where(none, 0.0, g * where(none, 0.0, slope))


def _all_like(partial: Callable[..., TensorBase]) -> Callable[..., TensorBase]:
    """Return a rule for a partial derivative of tensors: numbers among the operands become some."""
    return lambda g, *operands: _times(g, partial(*(tensor_like(v, g) for v in operands)))


def _declared(
    name: str,
    *,
    formula: Callable[..., np.ndarray],
    partials: tuple[Callable[..., TensorBase], ...],
    saves: tuple[str, ...],
    domain: tuple[str, ...],
    reference: Callable[..., np.ndarray],
    doc: str,
) -> Callable[..., TensorBase]:
    """Declare an op of floats; on arrays its formula runs without warnings."""
    return elementwise(
        name,
        formula=formula,
        eager=quiet(formula),
        result="float",
        partials=partials,
        saves=saves,
        domain=domain,
        reference=reference,
        doc=doc,
    )


def _ratio(
    name: str,
    formula: Callable[..., np.ndarray],
    partials: Sequence[Callable[..., TensorBase]],
    saves: tuple[str, ...],
    domain: tuple[str, ...],
    reference: Callable[..., np.ndarray],
    doc: str,
) -> Callable[..., TensorBase]:
    """Declare the derivative of a kernel, a logarithm of a ratio."""
    return _declared(
        name,
        formula=formula,
        partials=tuple(map(_all_like, partials)),
        saves=saves,
        domain=domain,
        reference=reference,
        doc=doc,
    )


_COUNTS = ("above_one", "above_one", "probability")
_TWOS = ("above_two", "above_two", "probability")

gamma_slope = _ratio(
    "gamma_kernel_slope",
    _gamma_slope,
    (
        lambda a: -_inverse_from_one(a - 1.0),
        lambda a, b: _inverse(b, a - 1.0),
        lambda a, x: _inverse(x, a - 1.0),
    ),
    ("a", "a b", "a x"),
    ("above_two", "positive", "positive"),
    lambda a, b, x: _ratio_reference(b * x, a - 1.0),
    "log(b x / (a - 1)), and log(b x) for a < 2.",
)
beta_slope = _ratio(
    "beta_kernel_slope",
    _beta_slope,
    (
        lambda a, b: _inverse_from_one(a + b - 1.0) - _inverse_from_one(a - 1.0),
        lambda a, b: _inverse_from_one(a + b - 1.0),
        lambda a, x: _inverse(x, a - 1.0),
    ),
    ("a b", "a b", "a x"),
    _TWOS,
    lambda a, b, x: _ratio_reference((a + b - 1.0) * x, a - 1.0),
    "Derivative of beta_kernel in a.",
)
beta_other_slope = _ratio(
    "beta_kernel_other_slope",
    _beta_other_slope,
    (
        lambda a, b: _inverse_from_one(a + b - 1.0),
        lambda a, b: _inverse_from_one(a + b - 1.0) - _inverse_from_one(b - 1.0),
        lambda b, x: -_inverse(1.0 - x, b - 1.0),
    ),
    ("a b", "a b", "b x"),
    _TWOS,
    lambda a, b, x: _ratio_reference((a + b - 1.0) * (1.0 - x), b - 1.0),
    "Derivative of beta_kernel in b.",
)
binomial_slope = _ratio(
    "binomial_kernel_slope",
    _binomial_slope,
    (
        lambda k, l: _inverse(k + l, k) - _inverse_from_one(k),
        lambda k, l: _inverse(k + l, k),
        lambda k, p: _inverse(p, k),
    ),
    ("k l", "k l", "k p"),
    _COUNTS,
    lambda k, l, p: _ratio_reference((k + l) * p, k),
    "Derivative of binomial_kernel in k.",
)
binomial_other_slope = _ratio(
    "binomial_kernel_other_slope",
    _binomial_other_slope,
    (
        lambda k, l: _inverse(k + l, l),
        lambda k, l: _inverse(k + l, l) - _inverse_from_one(l),
        lambda l, p: -_inverse(1.0 - p, l),
    ),
    ("k l", "k l", "l p"),
    _COUNTS,
    lambda k, l, p: _ratio_reference((k + l) * (1.0 - p), l),
    "Derivative of binomial_kernel in l.",
)
binomial_logits_slope = _ratio(
    "binomial_logits_kernel_slope",
    _binomial_logits_slope,
    (
        lambda k, l: _inverse(k + l, k) - _inverse_from_one(k),
        lambda k, l: _inverse(k + l, k),
        lambda x: sigmoid(-x),
    ),
    ("k l", "k l", "x"),
    ("above_one", "above_one", "real"),
    lambda k, l, x: _ratio_reference((k + l) * _sigmoid(x), k),
    "Derivative of binomial_logits_kernel in k.",
)
binomial_logits_score = _ratio(
    "binomial_logits_kernel_score",
    _binomial_logits_score,
    (
        lambda x: sigmoid(-x),
        lambda x: -sigmoid(x),
        lambda k, l, x: -(k + l) * (sigmoid(x) * sigmoid(-x)),
    ),
    ("x", "x", "k l x"),
    ("above_one", "above_one", "real"),
    lambda k, l, x: k * _sigmoid(-x) - l * _sigmoid(x),
    "Derivative of binomial_logits_kernel in x.",
)
beta_binomial_slope = _ratio(
    "beta_binomial_kernel_slope",
    _beta_binomial_slope,
    (
        lambda a, b, k, l: (
            1.0 / (k + a) + 1.0 / (a + b) - 1.0 / (k + l + (a + b)) - _inverse_from_one(a)
        ),
        lambda a, b, k, l: 1.0 / (a + b) - 1.0 / (k + l + (a + b)),
        lambda a, b, k, l: 1.0 / (k + a) - 1.0 / (k + l + (a + b)),
        lambda a, b, k, l: -1.0 / (k + l + (a + b)),
    ),
    ("a b k l", "a b k l", "a b k l", "a b k l"),
    ("above_one",) * 4,
    lambda a, b, k, l: _ratio_reference((k + a) * (a + b) / (k + l + a + b), a),
    "Derivative of beta_binomial_kernel in a.",
)

# ------------------------------------------------------------------------ kernels


def _beta_kernel_in_x(g: TensorBase, a: TensorBase, b: TensorBase, x: TensorBase) -> TensorBase:
    return _over(g * (tensor_like(a, g) - 1.0), x) - _over(g * (tensor_like(b, g) - 1.0), 1.0 - x)


poisson_kernel = _declared(
    "poisson_kernel",
    formula=_poisson_kernel,
    partials=(
        lambda g, k, m: _times(g, gamma_slope(tensor_like(k, g) + 1.0, m, 1.0)),
        lambda g, k, m: _over(g * tensor_like(k, g), tensor_like(m, g)) - g,
    ),
    saves=("k m", "k m"),
    domain=("above_one", "positive"),
    reference=lambda k, m: k * np.log(m) - m - _power_and_scale(k),
    doc="k log m - m less its largest value over m, and less -1 for k < 1; 0 log 0 is 0.",
)
gamma_kernel = _declared(
    "gamma_kernel",
    formula=_gamma_kernel,
    partials=(
        lambda g, a, b, x: _times(g, gamma_slope(a, b, x)),
        lambda g, a, b, x: _over(g * (tensor_like(a, g) - 1.0), tensor_like(b, g)) - g * x,
        lambda g, a, b, x: _over(g * (tensor_like(a, g) - 1.0), tensor_like(x, g)) - g * b,
    ),
    saves=("a b x", "a b x", "a b x"),
    domain=("above_two", "positive", "positive"),
    reference=_gamma_kernel_reference,
    doc="poisson_kernel(a - 1, b x), without rounding the product.",
)
beta_kernel = _declared(
    "beta_kernel",
    formula=_beta_kernel,
    partials=(
        lambda g, a, b, x: _times(g, beta_slope(a, b, x)),
        lambda g, a, b, x: _times(g, beta_other_slope(a, b, x)),
        _beta_kernel_in_x,
    ),
    saves=("a b x", "a b x", "a b x"),
    domain=("above_two", "above_two", "probability"),
    reference=_beta_kernel_reference,
    doc="gamma_kernel(a, c, x) + gamma_kernel(b, c, 1 - x) + log c with c = max(a + b - 1, 1).",
)
binomial_kernel = _declared(
    "binomial_kernel",
    formula=_binomial_kernel,
    # That in k + l is 0.
    partials=(
        lambda g, k, l, p: _times(g, binomial_slope(k, l, p)),
        lambda g, k, l, p: _times(g, binomial_other_slope(k, l, p)),
        lambda g, k, l, p: _over(g * k, tensor_like(p, g)) - _over(g * l, 1.0 - tensor_like(p, g)),
    ),
    saves=("k l p", "k l p", "k l p"),
    domain=_COUNTS,
    reference=_binomial_kernel_reference,
    doc="poisson_kernel(k, n p) + poisson_kernel(l, n (1 - p)) with n = k + l.",
)
binomial_logits_kernel = _declared(
    "binomial_logits_kernel",
    formula=_binomial_logits_kernel,
    partials=(
        lambda g, k, l, x: _times(g, binomial_logits_slope(k, l, x)),
        lambda g, k, l, x: _times(g, binomial_logits_slope(l, k, -x)),
        lambda g, k, l, x: g * binomial_logits_score(k, l, x),
    ),
    saves=("k l x", "k l x", "k l x"),
    domain=("above_one", "above_one", "real"),
    reference=lambda k, l, x: _binomial_kernel_reference(k, l, _sigmoid(x)),
    doc="binomial_kernel(k, l, sigmoid(x)), also where a probability underflows.",
)
beta_binomial_kernel = _declared(
    "beta_binomial_kernel",
    formula=_beta_binomial_kernel,
    # It stays the same with what is seen and what is imagined exchanged.
    partials=(
        lambda g, a, b, k, l: _times(g, beta_binomial_slope(a, b, k, l)),
        lambda g, a, b, k, l: _times(g, beta_binomial_slope(b, a, l, k)),
        lambda g, a, b, k, l: _times(g, beta_binomial_slope(k, l, a, b)),
        lambda g, a, b, k, l: _times(g, beta_binomial_slope(l, k, b, a)),
    ),
    saves=("a b k l", "a b k l", "a b k l", "a b k l"),
    domain=("above_one",) * 4,
    reference=_beta_binomial_kernel_reference,
    doc="Kernels of k of k + a and l of l + b with probability (k + l) / (k + l + a + b).",
)

# ------------------------------------------------------------------------ rests


def _gamma_rest(s: Scalars[Number], x: Number) -> Number:
    x = s.wide(x)
    return lgamma_less_power(s, x, x - 1.0, 0.5)


def _gamma_rest_slope(s: Scalars[Number], x: Number) -> Number:
    x = s.wide(x)
    return digamma_less_log(s, x, x - 1.0, 0.5)


def _factorial_rest(s: Scalars[Number], x: Number) -> Number:
    x = s.wide(x)
    return lgamma_less_power(s, x + 1.0, x, 0.5)


def _factorial_rest_slope(s: Scalars[Number], x: Number) -> Number:
    x = s.wide(x)
    return digamma_less_log(s, x + 1.0, x, 0.5)


def _stirling_rest(s: Scalars[Number], x: Number) -> Number:
    x = s.wide(x)
    return lgamma_less_power(s, x, x, -0.5)


def _stirling_rest_slope(s: Scalars[Number], x: Number) -> Number:
    x = s.wide(x)
    return digamma_less_log(s, x, x, -0.5)


def _with_slope(
    name: str,
    formula: Callable[..., np.ndarray],
    slope: Callable[..., np.ndarray],
    curvature: Callable[[TensorBase], TensorBase],
    domain: str,
    reference: Callable[..., np.ndarray],
    slope_reference: Callable[..., np.ndarray],
    doc: str,
) -> Callable[..., TensorBase]:
    """Declare an op of one argument and its derivative, whose own derivative is `curvature`."""
    first = _declared(
        name + "_slope",
        formula=slope,
        partials=(lambda g, x: g * curvature(x),),
        saves=("x",),
        domain=(domain,),
        reference=slope_reference,
        doc=f"Derivative of {name}.",
    )
    return _declared(
        name,
        formula=formula,
        partials=(lambda g, x: g * first(x),),
        saves=("x",),
        domain=(domain,),
        reference=reference,
        doc=doc,
    )


gamma_rest = _with_slope(
    "gamma_rest",
    _gamma_rest,
    _gamma_rest_slope,
    lambda a: polygamma(1, a) - _inverse_from_one(a - 1.0),
    "above_two",
    lambda a: scipy_value("gammaln", a) - _power_and_scale(a - 1.0),
    lambda a: scipy_value("psi", a) - np.log(np.maximum(a - 1.0, 1.0)),
    "lgamma(a) - (k log k - k) with k = a - 1, and lgamma(a) + 1 for k < 1.",
)
factorial_rest = _with_slope(
    "factorial_rest",
    _factorial_rest,
    _factorial_rest_slope,
    lambda k: polygamma(1, k + 1.0) - _inverse_from_one(k),
    "above_one",
    lambda k: scipy_value("gammaln", k + 1.0) - _power_and_scale(k),
    lambda k: scipy_value("psi", k + 1.0) - np.log(np.maximum(k, 1.0)),
    "log(k!) - (k log k - k), and log(k!) + 1 for k < 1.",
)
stirling_rest = _with_slope(
    "stirling_rest",
    _stirling_rest,
    _stirling_rest_slope,
    lambda a: polygamma(1, a) - 1.0 / a,
    "positive",
    lambda a: scipy_value("gammaln", a) - (a * np.log(a) - a),
    lambda a: scipy_value("psi", a) - np.log(a),
    "lgamma(a) - (a log a - a), which is about half of log(2 pi / a).",
)
