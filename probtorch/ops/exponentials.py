"""Elementwise ops: powers, exponentials and logarithms.

Read arithmetic.py first.
"""

from __future__ import annotations

import cmath
import math
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.dispatch import called, unseen, wrap
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq, ge, le, logical_and
from probtorch.ops.families import Binary, Power, Unary, elementwise
from probtorch.ops.native_rows import native_elements
from probtorch.ops.scalar import numpy_algebra

if TYPE_CHECKING:
    from probtorch.core.tensor_base import TensorBase
    from probtorch.ops.algebra import Number, Scalars


LN2 = math.log(2.0)
LN10 = math.log(10.0)


def _pow_base(g: TensorBase, x: TensorBase | complex, y: TensorBase | complex) -> TensorBase:
    if isinstance(y, (int, float, complex)):
        return g * (pow(x, y - 1) * y) if y else g * 0.0
    zero = eq(y, 0.0)
    return where(zero, 0.0, g * (y * pow(x, where(zero, 1.0, y - 1.0))))


def _pow_exponent(
    g: TensorBase, z: TensorBase, x: TensorBase | complex, y: TensorBase
) -> TensorBase:
    if z.array.dtype.kind == "c":
        # At 0 the power is 0 whatever the exponent, or has no derivative at all.
        if isinstance(x, (int, float, complex)):
            return g * (z * cmath.log(x)) if x else g * 0.0
        flat = eq(x, 0.0)
        return where(flat, 0.0, g * (z * log(where(flat, 1.0, x))))
    if isinstance(x, (int, float)):
        return (
            g * (z * (math.log(x) if x > 0 else math.nan))
            if x
            # At 0: z log(0), which is infinite below an exponent of 0.
            else where(ge(y, 0.0), 0.0, g * (z * -math.inf))
        )
    flat = logical_and(eq(x, 0.0), ge(y, 0.0))
    return where(flat, 0.0, g * (z * log(where(flat, 1.0, x))))


pow: Power = called(
    elementwise(
        "pow",
        formula=lambda s, x, y: s.pow(x, y),
        partials=(_pow_base, _pow_exponent),
        saves=("x y", "out x y"),
        domain=("positive", "real"),
        eager=np.power,
        reference=np.power,
        extra={"takes": "exponents >= 0 for integer bases"},
        complex=True,
        doc="x ** y. Derivatives at x = 0 are the limits where finite; that in y is nan for x < 0.",
    ),
    other="exponent",
)

exp: Unary = elementwise(
    "exp",
    formula=lambda s, x: s.exp(x),
    partials=(lambda g, y: g * y,),
    saves=("out",),
    domain=("real",),
    eager=np.exp,
    reference=np.exp,
    result="float",
    complex=True,
    doc="Exponential.",
)

exp2: Unary = elementwise(
    "exp2",
    formula=lambda s, x: s.exp2(x),
    partials=(lambda g, y: g * (y * LN2),),
    saves=("out",),
    domain=("real",),
    eager=np.exp2,
    reference=np.exp2,
    result="float",
    complex=True,
    doc="2 ** x.",
)

expm1: Unary = elementwise(
    "expm1",
    formula=lambda s, x: s.expm1(x),
    partials=(lambda g, y: g * (y + 1.0),),
    saves=("out",),
    domain=("real",),
    eager=np.expm1,
    reference=np.expm1,
    result="float",
    doc="exp(x) - 1, accurate near 0.",
)

log: Unary = elementwise(
    "log",
    formula=lambda s, x: s.log(x),
    partials=(lambda g, x: g / x,),
    saves=("x",),
    domain=("positive",),
    eager=np.log,
    reference=np.log,
    result="float",
    complex=True,
    doc="Natural logarithm.",
)

# The least logarithm of a probability in PyTorch's binary cross entropy, and the number it is of.
_LEAST_LOG = -100.0
_LEAST = math.exp(_LEAST_LOG)


def _cut_slope(g: TensorBase, x: TensorBase) -> TensorBase:
    if unseen(g, x) and x.array.shape == g.array.shape:
        cut = x.array <= _LEAST
        if cut.any():
            return wrap(np.where(cut, 0.0, g.array) / np.where(cut, x.array.dtype.type(1), x.array))
        return wrap(np.asarray(g.array / x.array))
    less = le(x, _LEAST)
    return where(less, 0.0, g) / where(less, 1.0, x)


cut_log: Unary = elementwise(
    "cut_log",
    formula=lambda s, x: s.where(x <= _LEAST, _LEAST_LOG, s.log(s.where(x <= _LEAST, 1.0, x))),
    partials=(_cut_slope,),
    saves=("x",),
    domain=("probability",),
    eager=lambda x: np.maximum(np.log(np.maximum(x, 0.0)), _LEAST_LOG),
    reference=lambda x: np.log(x),
    result="float",
    doc="Logarithm, and -100 with slope 0 where it is less, below 0 too.",
)

log2: Unary = elementwise(
    "log2",
    formula=lambda s, x: s.log2(x),
    partials=(lambda g, x: g / (x * LN2),),
    saves=("x",),
    domain=("positive",),
    eager=np.log2,
    reference=np.log2,
    result="float",
    complex=True,
    doc="Logarithm to base 2.",
)

log10: Unary = elementwise(
    "log10",
    formula=lambda s, x: s.log10(x),
    partials=(lambda g, x: g / (x * LN10),),
    saves=("x",),
    domain=("positive",),
    eager=np.log10,
    reference=np.log10,
    result="float",
    complex=True,
    doc="Logarithm to base 10.",
)

log1p: Unary = elementwise(
    "log1p",
    formula=lambda s, x: s.log1p(x),
    partials=(lambda g, x: g / (x + 1.0),),
    saves=("x",),
    domain=("positive",),
    eager=np.log1p,
    reference=np.log1p,
    result="float",
    doc="log(1 + x), accurate near 0.",
)


def _sigmoid(s: Scalars[Number], x: Number) -> Number:
    # exp(-|x|) never overflows; the two branches are 1 / (1 + e) and e / (1 + e).
    e = s.exp(-s.abs(x))
    return s.where(x >= 0.0, 1.0, e) / (1.0 + e)


def _eager_sigmoid(x: np.ndarray) -> np.ndarray:
    native = native_elements("sigmoid", x)
    if native is not None:
        return native(x)
    if type(x) is not np.ndarray or not x.ndim:
        return _sigmoid(numpy_algebra, x)
    # The same numbers: the choice is the larger of e and 1 or 0, without a branch per element.
    e = np.abs(x)
    np.exp(np.negative(e, out=e), out=e)
    y = (x >= 0.0).astype(x.dtype)
    np.maximum(y, e, out=y)
    y /= np.add(e, 1.0, out=e)
    return y


sigmoid: Unary = elementwise(
    "sigmoid",
    formula=_sigmoid,
    eager=_eager_sigmoid,
    partials=(lambda g, y: g * y * (1.0 - y),),
    saves=("out",),
    domain=("real",),
    reference=lambda x: 1.0 / (1.0 + np.exp(-x)),
    result="float",
    doc="Logistic function, 1 / (1 + exp(-x)).",
)


def _softplus(s: Scalars[Number], x: Number) -> Number:
    # max(x, 0) + log1p(exp(-|x|)): exact to rounding at both ends, and smooth in every derivative.
    return s.maximum(x, 0.0) + s.log1p_unit(s.exp(-s.abs(x)))


def _log_sigmoid(s: Scalars[Number], x: Number) -> Number:
    return s.minimum(x, 0.0) - s.log1p_unit(s.exp(-s.abs(x)))


def _log1p_exp(x: np.ndarray) -> np.ndarray:
    """log1p(exp(-|x|)) of an array, in one temporary."""
    y = np.abs(x)
    np.exp(np.negative(y, out=y), out=y)
    return np.log1p(y, out=y)


def _eager_softplus(x: np.ndarray) -> np.ndarray:
    native = native_elements("softplus", x)
    if native is not None:
        return native(x)
    if type(x) is not np.ndarray or not x.ndim:
        return _softplus(numpy_algebra, x)
    y = _log1p_exp(x)
    return np.add(np.maximum(x, 0.0), y, out=y)


def _eager_log_sigmoid(x: np.ndarray) -> np.ndarray:
    native = native_elements("log_sigmoid", x)
    if native is not None:
        return native(x)
    if type(x) is not np.ndarray or not x.ndim:
        return _log_sigmoid(numpy_algebra, x)
    y = _log1p_exp(x)
    return np.subtract(np.minimum(x, 0.0), y, out=y)


softplus: Unary = elementwise(
    "softplus",
    formula=_softplus,
    eager=_eager_softplus,
    partials=(lambda g, x: g * sigmoid(x),),
    saves=("x",),
    domain=("real",),
    reference=lambda x: np.logaddexp(0.0, x),
    result="float",
    doc="Smooth positive part, log(1 + exp(x)).",
)

log_sigmoid: Unary = elementwise(
    "log_sigmoid",
    formula=_log_sigmoid,
    eager=_eager_log_sigmoid,
    partials=(lambda g, x: g * sigmoid(-x),),
    saves=("x",),
    domain=("real",),
    reference=lambda x: -np.logaddexp(0.0, -x),
    result="float",
    doc="log(sigmoid(x)).",
)


def _logaddexp(s: Scalars[Number], x: Number, y: Number) -> Number:
    m = s.maximum(x, y)
    # Equal infinities would give inf - inf; then the larger one is already the answer.
    d = s.where(x == y, 0.0, -s.abs(x - y))
    return m + s.log1p_unit(s.exp(d))


logaddexp: Binary = elementwise(
    "logaddexp",
    formula=_logaddexp,
    partials=(lambda g, x, y: _share(g, x, y), lambda g, x, y: _share(g, y, x)),
    saves=("x y", "x y"),
    domain=("real", "real"),
    eager=np.logaddexp,
    reference=np.logaddexp,
    result="float",
    doc="log(exp(x) + exp(y)) without overflow.",
)


def _share(g: TensorBase, x: TensorBase, y: TensorBase) -> TensorBase:
    """Weight of `x` in logaddexp(x, y): sigmoid(x - y), with equal infinities handled."""
    both = eq(x, y)
    weight = sigmoid(where(both, 0.0, x - where(both, 0.0, y)))
    return g * where(logical_and(both, eq(x, -math.inf)), 0.0, weight)
