"""Elementwise ops: arithmetic, comparisons, exponentials, trigonometry, rounding, choosing.

One declaration per op (see families.py); special functions are in special/. At non-smooth points
the derivative is fixed: abs and relu have 0 at 0, ties of maximum and minimum are split evenly,
clamp passes the gradient at its bounds. Where a function is flat almost everywhere (sign, floor,
round ...) its derivative is 0.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.backends.registry import array_module
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DivisionByZeroError
from probtorch.ops.families import Binary, Ternary, Unary, elementwise

LN2 = math.log(2.0)
LN10 = math.log(10.0)


def _flat(g):
    """Cotangent of an operand that the result does not change with: zeros."""
    return wrap(array_module(g.array).zeros_like(g.array))


# --------------------------------------------------------------------------------------- arithmetic

add: Binary = elementwise(
    "add",
    formula=lambda s, x, y: x + y,
    partials=(lambda g: g, lambda g: g),
    domain=("real", "real"),
    eager=np.add,
    reference=np.add,
    doc="Sum, x + y.",
)
sub: Binary = elementwise(
    "sub",
    formula=lambda s, x, y: x - y,
    partials=(lambda g: g, lambda g: -g),
    domain=("real", "real"),
    eager=np.subtract,
    reference=np.subtract,
    doc="Difference, x - y.",
)
mul: Binary = elementwise(
    "mul",
    formula=lambda s, x, y: x * y,
    partials=(lambda g, y: g * y, lambda g, x: g * x),
    saves=("y", "x"),
    domain=("real", "real"),
    eager=np.multiply,
    reference=np.multiply,
    doc="Product, x * y.",
)
div: Binary = elementwise(
    "div",
    formula=lambda s, x, y: x / y,
    partials=(lambda g, y: g / y, lambda g, z, y: -(g * z) / y),
    saves=("y", "out y"),
    domain=("real", "nonzero"),
    eager=np.true_divide,
    reference=np.true_divide,
    result="float",
    doc="Quotient, x / y; integers give the default float dtype.",
)


def divide(
    x: TensorLike, y: TensorLike, *, rounding_mode: str | None = None, out: TensorBase | None = None
) -> TensorBase:
    """Quotient, x / y; integers give the default float dtype unless it is rounded.

    Parameters
    ----------
    x, y : Tensor or number
    rounding_mode : {None, "trunc", "floor"}
        Round towards 0 or down; integers then stay integers, and the derivative is 0.
    out : Tensor, optional

    Raises
    ------
    DivisionByZeroError
        If integers are divided by 0 and rounded.
    """
    if rounding_mode is None:
        return div(x, y, out=out)
    if rounding_mode == "floor":
        return floor_divide(x, y, out=out)
    if rounding_mode != "trunc":
        raise ArgumentError(
            "div",
            expected="rounding_mode: None, 'trunc' or 'floor'",
            got=repr(rounding_mode),
            fix="leave it out for the exact quotient",
        )
    a, b = as_tensor(x, "div"), as_tensor(y, "div")
    if "f" in (a.array.dtype.kind, b.array.dtype.kind):
        # The operands as they came: Python numbers have no dtype of their own.
        return _trunc_divide(x, y, out=out)
    x, y = a, b
    return floor_divide(sub(x, fmod(x, y)), y, out=out)


clone: Unary = elementwise(
    "clone",
    formula=lambda s, x: x,
    partials=(lambda g: g,),
    domain=("real",),
    eager=lambda x: x.copy(),
    reference=lambda x: x,
    doc="A copy, connected on the tape.",
)
neg: Unary = elementwise(
    "neg",
    formula=lambda s, x: -x,
    partials=(lambda g: -g,),
    domain=("real",),
    eager=np.negative,
    reference=np.negative,
    doc="Negative, -x.",
)
reciprocal: Unary = elementwise(
    "reciprocal",
    formula=lambda s, x: 1.0 / x,
    partials=(lambda g, y: -(g * y) * y,),
    saves=("out",),
    domain=("nonzero",),
    eager=lambda x: 1.0 / x,
    reference=lambda x: 1.0 / x,
    result="float",
    doc="1 / x.",
)
square: Unary = elementwise(
    "square",
    formula=lambda s, x: x * x,
    partials=(lambda g, x: g * (x * 2.0),),
    saves=("x",),
    domain=("real",),
    eager=np.square,
    reference=np.square,
    extra={"booleans_as_integers": True},
    doc="x * x.",
)
sqrt: Unary = elementwise(
    "sqrt",
    formula=lambda s, x: s.sqrt(x),
    partials=(lambda g, y: g / (y * 2.0),),
    saves=("out",),
    domain=("positive",),
    eager=np.sqrt,
    reference=np.sqrt,
    result="float",
    doc="Square root; nan below 0, derivative infinite at 0.",
)
rsqrt: Unary = elementwise(
    "rsqrt",
    formula=lambda s, x: 1.0 / s.sqrt(x),
    partials=(lambda g, y, x: g * y / (x * -2.0),),
    saves=("out x",),
    domain=("positive",),
    reference=lambda x: x**-0.5,
    result="float",
    doc="1 / sqrt(x).",
)
cbrt: Unary = elementwise(
    "cbrt",
    formula=lambda s, x: s.cbrt(x),
    partials=(lambda g, y: g / (y * y * 3.0),),
    saves=("out",),
    domain=("nonzero",),
    eager=np.cbrt,
    reference=np.cbrt,
    result="float",
    doc="Real cube root.",
)
abs: Unary = elementwise(
    "abs",
    formula=lambda s, x: s.abs(x),
    # Detached, as its derivative is 0 anyway.
    partials=(lambda g, x: g * sign(x.detach()),),
    saves=("x",),
    domain=("nonzero",),
    eager=np.abs,
    reference=np.abs,
    doc="Absolute value; derivative 0 at 0.",
)
sign: Unary = elementwise(
    "sign",
    formula=lambda s, x: s.where(x > 0.0, 1.0, s.where(x < 0.0, -1.0, x + 0.0)),
    partials=(_flat,),
    domain=("nonzero",),
    eager=lambda x: np.sign(x) if x.dtype.kind != "b" else x.copy(),
    reference=np.sign,
    doc="-1, 0 or 1; nan for nan. Its derivative is 0.",
)


def _pow_base(g, x, y):
    if isinstance(y, (int, float)):
        return g * (y * pow(x, y - 1)) if y else g * 0.0
    zero = eq(y, 0.0)
    return where(zero, 0.0, g * (y * pow(x, where(zero, 1.0, y - 1.0))))


def _pow_exponent(g, z, x, y):
    if isinstance(x, (int, float)):
        return (
            g * (z * (math.log(x) if x > 0 else math.nan))
            if x
            # At 0: z log(0), which is infinite below an exponent of 0.
            else where(ge(y, 0.0), 0.0, g * (z * -math.inf))
        )
    flat = logical_and(eq(x, 0.0), ge(y, 0.0))
    return where(flat, 0.0, g * (z * log(where(flat, 1.0, x))))


pow: Binary = elementwise(
    "pow",
    formula=lambda s, x, y: s.pow(x, y),
    partials=(_pow_base, _pow_exponent),
    saves=("x y", "out x y"),
    domain=("positive", "real"),
    eager=np.power,
    reference=np.power,
    extra={"takes": "exponents >= 0 for integer bases"},
    doc="x ** y. Derivatives at x = 0 are the limits where finite; that in y is nan for x < 0.",
)


def _checked(name, ufunc):
    """Return `ufunc` with an error where integers are divided by 0, for which there is no value."""

    def call(x, y):
        array = y if isinstance(x, (int, float)) else x
        if array.dtype.kind in "iub" and not array_module(array).all(y) and array.size:
            raise DivisionByZeroError(
                name,
                expected="integer divisors other than 0",
                got="a divisor of 0",
                fix="convert to float to get inf or nan, or mask the zeros",
            )
        return ufunc(x, y)

    return call


fmod: Binary = elementwise(
    "fmod",
    formula=lambda s, x, y: s.fmod(x, y),
    partials=(lambda g: g, lambda g, x, y: -(g * _trunc_divide(x, y))),
    saves=("", "x y"),
    domain=("real", "nonzero"),
    eager=_checked("fmod", np.fmod),
    reference=np.fmod,
    doc="Remainder with the sign of x (C's fmod).",
)


def _remainder(s, x, y):
    r = s.fmod(x, y)
    return s.where(
        (r != 0.0) & ((r < 0.0) != (y < 0.0)), r + y, s.where(r == 0.0, s.copysign(r, y), r)
    )


remainder: Binary = elementwise(
    "remainder",
    formula=_remainder,
    # Quotients of one op, flat in both, as the slope of x / y at 0 is no number.
    partials=(lambda g: g, lambda g, x, y: -(g * floor_divide(x, y))),
    saves=("", "x y"),
    domain=("real", "nonzero"),
    eager=_checked("remainder", np.remainder),
    reference=np.mod,
    doc="Remainder with the sign of y (Python's %).",
)


def _floor_divide(s, x, y):
    # As NumPy: from the exact remainder, so that rounding of x / y cannot cross an integer.
    r = s.fmod(x, y)
    d = (x - r) / y
    d = s.where((r != 0.0) & ((r < 0.0) != (y < 0.0)), d - 1.0, d)
    low = s.floor(d)
    low = s.where(d - low > 0.5, low + 1.0, low)
    return s.where(y == 0.0, x / y, s.where(low == 0.0, s.copysign(low, x / y), low))


floor_divide: Binary = elementwise(
    "floor_divide",
    formula=_floor_divide,
    partials=(_flat, _flat),
    domain=("real", "nonzero"),
    eager=_checked("floor_divide", np.floor_divide),
    reference=np.floor_divide,
    doc="floor(x / y).",
)

_trunc_divide: Binary = elementwise(
    "trunc_divide",
    formula=lambda s, x, y: s.trunc(x / y),
    partials=(_flat, _flat),
    domain=("real", "nonzero"),
    eager=lambda x, y: np.trunc(np.true_divide(x, y)),
    reference=lambda x, y: np.trunc(x / y),
    result="float",
    doc="trunc(x / y).",
)

# ------------------------------------------------------------------------------------- exponentials

exp: Unary = elementwise(
    "exp",
    formula=lambda s, x: s.exp(x),
    partials=(lambda g, y: g * y,),
    saves=("out",),
    domain=("real",),
    eager=np.exp,
    reference=np.exp,
    result="float",
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
    doc="Natural logarithm.",
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


def _sigmoid(s, x):
    # exp(-|x|) never overflows; the two branches are 1 / (1 + e) and e / (1 + e).
    e = s.exp(-s.abs(x))
    return s.where(x >= 0.0, 1.0, e) / (1.0 + e)


sigmoid: Unary = elementwise(
    "sigmoid",
    formula=_sigmoid,
    partials=(lambda g, y: g * y * (1.0 - y),),
    saves=("out",),
    domain=("real",),
    reference=lambda x: 1.0 / (1.0 + np.exp(-x)),
    result="float",
    doc="Logistic function, 1 / (1 + exp(-x)).",
)


def _softplus(s, x):
    # max(x, 0) + log1p(exp(-|x|)): exact to rounding at both ends, and smooth in every derivative.
    return s.maximum(x, 0.0) + s.log1p_unit(s.exp(-s.abs(x)))


softplus: Unary = elementwise(
    "softplus",
    formula=_softplus,
    partials=(lambda g, x: g * sigmoid(x),),
    saves=("x",),
    domain=("real",),
    reference=lambda x: np.logaddexp(0.0, x),
    result="float",
    doc="Smooth positive part, log(1 + exp(x)).",
)
log_sigmoid: Unary = elementwise(
    "log_sigmoid",
    formula=lambda s, x: -_softplus(s, -x),
    partials=(lambda g, x: g * sigmoid(-x),),
    saves=("x",),
    domain=("real",),
    reference=lambda x: -np.logaddexp(0.0, -x),
    result="float",
    doc="log(sigmoid(x)).",
)


def _logaddexp(s, x, y):
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


def _share(g, x, y):
    """Weight of `x` in logaddexp(x, y): sigmoid(x - y), with equal infinities handled."""
    both = eq(x, y)
    weight = sigmoid(where(both, 0.0, x - where(both, 0.0, y)))
    return g * where(logical_and(both, eq(x, -math.inf)), 0.0, weight)


# ------------------------------------------------------------------------------------- trigonometry

sin: Unary = elementwise(
    "sin",
    formula=lambda s, x: s.sin(x),
    partials=(lambda g, x: g * cos(x),),
    saves=("x",),
    domain=("real",),
    eager=np.sin,
    reference=np.sin,
    result="float",
    doc="Sine of radians.",
)
cos: Unary = elementwise(
    "cos",
    formula=lambda s, x: s.cos(x),
    partials=(lambda g, x: -(g * sin(x)),),
    saves=("x",),
    domain=("real",),
    eager=np.cos,
    reference=np.cos,
    result="float",
    doc="Cosine of radians.",
)
tan: Unary = elementwise(
    "tan",
    formula=lambda s, x: s.tan(x),
    partials=(lambda g, y: g * (y * y + 1.0),),
    saves=("out",),
    domain=("unit",),
    eager=np.tan,
    reference=np.tan,
    result="float",
    doc="Tangent of radians.",
)
asin: Unary = elementwise(
    "asin",
    formula=lambda s, x: s.asin(x),
    partials=(lambda g, x: g * rsqrt(1.0 - x * x),),
    saves=("x",),
    domain=("unit",),
    eager=np.arcsin,
    reference=np.arcsin,
    result="float",
    doc="Arc sine, in radians.",
)
acos: Unary = elementwise(
    "acos",
    formula=lambda s, x: s.acos(x),
    partials=(lambda g, x: -(g * rsqrt(1.0 - x * x)),),
    saves=("x",),
    domain=("unit",),
    eager=np.arccos,
    reference=np.arccos,
    result="float",
    doc="Arc cosine, in radians.",
)
atan: Unary = elementwise(
    "atan",
    formula=lambda s, x: s.atan(x),
    partials=(lambda g, x: g / (x * x + 1.0),),
    saves=("x",),
    domain=("real",),
    eager=np.arctan,
    reference=np.arctan,
    result="float",
    doc="Arc tangent, in radians.",
)
sinh: Unary = elementwise(
    "sinh",
    formula=lambda s, x: s.sinh(x),
    partials=(lambda g, x: g * cosh(x),),
    saves=("x",),
    domain=("real",),
    eager=np.sinh,
    reference=np.sinh,
    result="float",
    doc="Hyperbolic sine.",
)
cosh: Unary = elementwise(
    "cosh",
    formula=lambda s, x: s.cosh(x),
    partials=(lambda g, x: g * sinh(x),),
    saves=("x",),
    domain=("real",),
    eager=np.cosh,
    reference=np.cosh,
    result="float",
    doc="Hyperbolic cosine.",
)
tanh: Unary = elementwise(
    "tanh",
    formula=lambda s, x: s.tanh(x),
    partials=(lambda g, y: g * (1.0 - y * y),),
    saves=("out",),
    domain=("real",),
    eager=np.tanh,
    reference=np.tanh,
    result="float",
    doc="Hyperbolic tangent.",
)
asinh: Unary = elementwise(
    "asinh",
    formula=lambda s, x: s.asinh(x),
    partials=(lambda g, x: g * rsqrt(x * x + 1.0),),
    saves=("x",),
    domain=("real",),
    eager=np.arcsinh,
    reference=np.arcsinh,
    result="float",
    doc="Inverse hyperbolic sine.",
)
acosh: Unary = elementwise(
    "acosh",
    formula=lambda s, x: s.acosh(x),
    partials=(lambda g, x: g * rsqrt(x * x - 1.0),),
    saves=("x",),
    domain=("above_one",),
    eager=np.arccosh,
    reference=np.arccosh,
    result="float",
    doc="Inverse hyperbolic cosine.",
)
atanh: Unary = elementwise(
    "atanh",
    formula=lambda s, x: s.atanh(x),
    partials=(lambda g, x: g / (1.0 - x * x),),
    saves=("x",),
    domain=("unit",),
    eager=np.arctanh,
    reference=np.arctanh,
    result="float",
    doc="Inverse hyperbolic tangent.",
)


def _over_radius(g, x, y):
    """G / (x^2 + y^2), and 0 at the origin."""
    r = x * x + y * y
    origin = eq(r, 0.0)
    return where(origin, 0.0, g / where(origin, 1.0, r))


atan2: Binary = elementwise(
    "atan2",
    formula=lambda s, y, x: s.atan2(y, x),
    partials=(
        lambda g, y, x: _over_radius(g * x, x, y),
        lambda g, y, x: _over_radius(-(g * y), x, y),
    ),
    saves=("y x", "y x"),
    domain=("nonzero", "nonzero"),
    eager=np.arctan2,
    reference=np.arctan2,
    result="float",
    doc="Angle of the point (x, y) in radians, arguments (y, x); derivative 0 at the origin.",
)

# ----------------------------------------------------------------------------------------- rounding


def _of_floats(ufunc):
    """Return `ufunc` with a copy for integers, which are round already."""
    return lambda x: ufunc(x) if x.dtype.kind == "f" else x.copy()


floor: Unary = elementwise(
    "floor",
    formula=lambda s, x: s.floor(x),
    partials=(_flat,),
    domain=("real",),
    eager=_of_floats(np.floor),
    reference=np.floor,
    doc="Largest integer not above x.",
)
ceil: Unary = elementwise(
    "ceil",
    formula=lambda s, x: s.ceil(x),
    partials=(_flat,),
    domain=("real",),
    eager=_of_floats(np.ceil),
    reference=np.ceil,
    doc="Smallest integer not below x.",
)
trunc: Unary = elementwise(
    "trunc",
    formula=lambda s, x: s.trunc(x),
    partials=(_flat,),
    domain=("real",),
    eager=_of_floats(np.trunc),
    reference=np.trunc,
    doc="Integer part.",
)
round: Unary = elementwise(
    "round",
    formula=lambda s, x: s.rint(x),
    partials=(_flat,),
    domain=("real",),
    eager=_of_floats(np.rint),
    reference=np.rint,
    doc="Nearest integer, halves to even.",
)


def _flip_sign(g, flipped):
    return where(flipped, -g, g)


copysign: Binary = elementwise(
    "copysign",
    formula=lambda s, x, y: s.copysign(x, y),
    partials=(lambda g, x, y: _flip_sign(g * sign(x.detach()), signbit(y)), _flat),
    saves=("x y", ""),
    domain=("nonzero", "nonzero"),
    eager=np.copysign,
    reference=np.copysign,
    result="float",
    doc="Magnitude of x with the sign of y.",
)

# ----------------------------------------------------------------------------------------- choosing

where: Ternary = elementwise(
    "where",
    formula=lambda s, c, x, y: s.where(c, x, y),
    partials=(
        None,
        lambda g, c: where(c, g, 0.0),
        lambda g, c: where(c, 0.0, g),
    ),
    saves=("", "c", "c"),
    domain=("boolean", "real", "real"),
    eager=np.where,
    reference=np.where,
    extra={"mask_inputs": (0,)},
    doc="x where the condition holds, else y. Both are computed: a gradient needs both finite.",
)


def _tied(g, larger, x, y):
    """Cotangent of the chosen operand; half of it at a tie."""
    return where(larger, g, where(eq(x, y), g * 0.5, 0.0))


maximum: Binary = elementwise(
    "maximum",
    formula=lambda s, x, y: s.maximum(x, y),
    partials=(
        lambda g, x, y: _tied(g, gt(x, y), x, y),
        lambda g, x, y: _tied(g, lt(x, y), x, y),
    ),
    saves=("x y", "x y"),
    domain=("real", "real"),
    eager=np.maximum,
    reference=np.maximum,
    doc="Elementwise maximum; nan wins.",
)
minimum: Binary = elementwise(
    "minimum",
    formula=lambda s, x, y: s.minimum(x, y),
    partials=(
        lambda g, x, y: _tied(g, lt(x, y), x, y),
        lambda g, x, y: _tied(g, gt(x, y), x, y),
    ),
    saves=("x y", "x y"),
    domain=("real", "real"),
    eager=np.minimum,
    reference=np.minimum,
    doc="Elementwise minimum; nan wins.",
)
relu: Unary = elementwise(
    "relu",
    formula=lambda s, x: s.where(x < 0.0, 0.0, x),
    partials=(lambda g, x: where(gt(x, 0.0), g, 0.0),),
    saves=("x",),
    domain=("nonzero",),
    eager=lambda x: np.maximum(x, 0),
    reference=lambda x: np.maximum(x, 0),
    doc="Positive part; derivative 0 at 0.",
)
_clamp: Ternary = elementwise(
    "clamp",
    formula=lambda s, x, lo, hi: s.minimum(s.maximum(x, lo), hi),
    partials=(
        lambda g, x, lo, hi: where(logical_or(lt(x, lo), gt(x, hi)), 0.0, g),
        lambda g, x, lo, hi: where(logical_and(lt(x, lo), lt(lo, hi)), g, 0.0),
        lambda g, x, lo, hi: where(logical_or(gt(x, hi), gt(lo, hi)), g, 0.0),
    ),
    saves=("x lo hi", "x lo hi", "x lo hi"),
    domain=("real", "negative", "positive"),
    eager=lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi),
    reference=lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi),
    doc="x limited to [min, max]; max where min exceeds it, nan where one of the three is.",
)


def clamp(
    x: TensorLike,
    min: TensorLike | None = None,
    max: TensorLike | None = None,
    *,
    out: TensorBase | None = None,
) -> TensorBase:
    """Limit `x` to ``[min, max]``, None being no bound; the gradient passes at the bounds.

    Raises
    ------
    ArgumentError
        If both bounds are None.
    """
    if min is None and max is None:
        raise ArgumentError(
            "clamp", expected="min, max or both", got="neither", fix="give at least one bound"
        )
    x = as_tensor(x, "clamp")
    if x.array.dtype.kind != "f":
        if min is not None:
            x = maximum(x, min)
        return x if max is None else minimum(x, max, out=out)
    return _clamp(x, -math.inf if min is None else min, math.inf if max is None else max, out=out)


# -------------------------------------------------------------------------------------- comparisons


def _comparison(name, ufunc, formula, doc):
    return elementwise(
        name,
        formula=formula,
        partials=(None, None),
        domain=("real", "real"),
        eager=ufunc,
        reference=ufunc,
        result="bool",
        doc=doc,
    )


eq: Binary = _comparison("eq", np.equal, lambda s, x, y: x == y, "x == y, elementwise.")
ne: Binary = _comparison("ne", np.not_equal, lambda s, x, y: x != y, "x != y, elementwise.")
lt: Binary = _comparison("lt", np.less, lambda s, x, y: x < y, "x < y, elementwise.")
le: Binary = _comparison("le", np.less_equal, lambda s, x, y: x <= y, "x <= y, elementwise.")
gt: Binary = _comparison("gt", np.greater, lambda s, x, y: x > y, "x > y, elementwise.")
ge: Binary = _comparison("ge", np.greater_equal, lambda s, x, y: x >= y, "x >= y, elementwise.")


def _predicate(name, ufunc, formula, doc, arity=1, domain="real"):
    return elementwise(
        name,
        formula=formula,
        partials=(None,) * arity,
        domain=(domain,) * arity,
        eager=ufunc,
        reference=ufunc,
        result="bool",
        doc=doc,
    )


isnan: Unary = _predicate("isnan", np.isnan, lambda s, x: s.isnan(x), "Whether x is nan.")
isinf: Unary = _predicate(
    "isinf", np.isinf, lambda s, x: s.isinf(x), "Whether x is plus or minus infinity."
)
isfinite: Unary = _predicate(
    "isfinite",
    np.isfinite,
    lambda s, x: s.logical_not(s.logical_or(s.isnan(x), s.isinf(x))),
    "Whether x is finite.",
)
signbit: Unary = _predicate(
    "signbit",
    np.signbit,
    lambda s, x: s.copysign(1.0, x) < 0.0,
    "Whether the sign bit is set.",
)
logical_not: Unary = _predicate(
    "logical_not", np.logical_not, lambda s, x: s.logical_not(x), "not x.", 1, "boolean"
)
logical_and: Binary = _predicate(
    "logical_and", np.logical_and, lambda s, x, y: s.logical_and(x, y), "x and y.", 2, "boolean"
)
logical_or: Binary = _predicate(
    "logical_or", np.logical_or, lambda s, x, y: s.logical_or(x, y), "x or y.", 2, "boolean"
)
logical_xor: Binary = _predicate(
    "logical_xor",
    np.logical_xor,
    lambda s, x, y: s.logical_and(s.logical_or(x, y), s.logical_not(s.logical_and(x, y))),
    "Exactly one of x and y.",
    2,
    "boolean",
)


def _bits(name, ufunc, formula, doc):
    return elementwise(
        name,
        formula=formula,
        partials=(None, None),
        domain=("integer", "integer"),
        eager=ufunc,
        reference=ufunc,
        doc=doc,
        extra={"integers_only": True},
    )


bitwise_and: Binary = _bits(
    "bitwise_and", np.bitwise_and, lambda s, x, y: x & y, "Bitwise and of integers or booleans."
)
bitwise_or: Binary = _bits(
    "bitwise_or", np.bitwise_or, lambda s, x, y: x | y, "Bitwise or of integers or booleans."
)
bitwise_xor: Binary = _bits(
    "bitwise_xor",
    np.bitwise_xor,
    lambda s, x, y: x ^ y,
    "Bitwise exclusive or of integers or booleans.",
)
shift_left: Binary = _bits(
    "shift_left", np.left_shift, lambda s, x, y: x << y, "x shifted left by y bits."
)
shift_right: Binary = _bits(
    "shift_right",
    np.right_shift,
    lambda s, x, y: x >> y,
    "x shifted right by y bits, keeping its sign.",
)


def bitwise_not(x: TensorLike) -> TensorBase:
    """Bitwise complement of integers; logical not of booleans."""
    x = as_tensor(x, "bitwise_not")
    return logical_not(x) if x.array.dtype == dtypes.bool_ else bitwise_xor(x, -1)


def to_float(x) -> TensorBase:
    """Return `x` in the default float dtype if it is of integers or booleans, else unchanged."""
    return x if x.array.dtype.kind == "f" else cast(x, dtypes.default_dtype())
