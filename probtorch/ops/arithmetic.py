"""Elementwise ops: arithmetic, rounding, choosing.

One declaration per op (see families.py). At non-smooth points the derivative is fixed: abs and relu
have 0 at 0, ties of maximum and minimum are split evenly, clamp passes the gradient at its bounds.
Where a function is flat almost everywhere (sign, floor, round ...) its derivative is 0.

Comparisons are in comparisons.py, powers, exponentials and logarithms in exponentials.py, circular
and hyperbolic functions in trigonometry.py, special functions in special/.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DivisionByZeroError, DTypeError
from probtorch.ops.comparisons import eq, gt, logical_and, logical_or, lt, signbit
from probtorch.ops.families import Binary, Ternary, Unary, elementwise

if TYPE_CHECKING:
    from probtorch.ops.algebra import Number, Scalars


def _flat(g: TensorBase) -> TensorBase:
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
    complex=True,
    doc="Sum, x + y.",
)

sub: Binary = elementwise(
    "sub",
    formula=lambda s, x, y: x - y,
    partials=(lambda g: g, lambda g: -g),
    domain=("real", "real"),
    eager=np.subtract,
    reference=np.subtract,
    complex=True,
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
    complex=True,
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
    complex=True,
    doc="Quotient, x / y; integers give the default float dtype.",
)


def divide(
    input: TensorLike,
    other: TensorLike,
    *,
    rounding_mode: str | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Quotient, x / y; integers give the default float dtype unless it is rounded.

    Parameters
    ----------
    input, other : Tensor or number
    rounding_mode : {None, "trunc", "floor"}
        Round towards 0 or down; integers then stay integers, and the derivative is 0.
    out : Tensor, optional

    Raises
    ------
    DivisionByZeroError
        If integers are divided by 0 and rounded.
    """
    if rounding_mode is None:
        return div(input, other, out=out)
    if rounding_mode == "floor":
        return floor_divide(input, other, out=out)
    if rounding_mode != "trunc":
        raise ArgumentError(
            "div",
            expected="rounding_mode: None, 'trunc' or 'floor'",
            got=repr(rounding_mode),
            fix="leave it out for the exact quotient",
        )
    a, b = as_tensor(input, "div"), as_tensor(other, "div")
    if "f" in (a.array.dtype.kind, b.array.dtype.kind):
        return _trunc_divide(input, other, out=out)  # as they came: numbers have no dtype
    return floor_divide(sub(a, fmod(a, b)), b, out=out)


divide.usual = div  # type: ignore[attr-defined]  # what it is without options

clone: Unary = elementwise(
    "clone",
    formula=lambda s, x: x,
    partials=(lambda g: g,),
    domain=("real",),
    eager=lambda x: x.copy(),
    reference=lambda x: x,
    complex=True,
    doc="A copy, connected on the tape.",
)

neg: Unary = elementwise(
    "neg",
    formula=lambda s, x: -x,
    partials=(lambda g: -g,),
    domain=("real",),
    eager=np.negative,
    reference=np.negative,
    complex=True,
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
    complex=True,
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
    complex=True,
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
    complex=True,
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
    complex=True,
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


def _checked(name: str, ufunc: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return `ufunc` with an error where integers are divided by 0, for which there is no value."""

    def call(x: np.ndarray, y: np.ndarray) -> np.ndarray:
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


def _remainder(s: Scalars[Number], x: Number, y: Number) -> Number:
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


def _floor_divide(s: Scalars[Number], x: Number, y: Number) -> Number:
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


# ----------------------------------------------------------------------------------------- rounding


def _of_floats(ufunc: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
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

# The most decimal places that a power of ten in double precision has.
_PLACES = 308

_round: Unary = elementwise(
    "round",
    formula=lambda s, x: s.rint(x),
    partials=(_flat,),
    domain=("real",),
    eager=_of_floats(np.rint),
    reference=np.rint,
    doc="Nearest integer, halves to even.",
)


@takes_out
def round(input: TensorLike, *, decimals: int = 0, out: TensorBase | None = None) -> TensorBase:
    """Round to `decimals` decimal places, below 0 to tens and hundreds; halves to even.

    The numbers are scaled by a power of ten, rounded and scaled back: what is no sum of powers of
    two may come out a last digit off, as in NumPy and PyTorch.
    """
    if decimals == 0:
        return _round(input)
    x = as_tensor(input, "round")
    if x.array.dtype.kind != "f":
        raise DTypeError(
            "round",
            expected="a floating-point tensor where decimals is given",
            got=str(x.array.dtype),
            fix="convert it with .float()",
        )
    if decimals < 0:
        places = builtins.min(-decimals, _PLACES)
        return _round(x / 10.0**places) * 10.0**places
    scale = 10.0 ** builtins.min(decimals, _PLACES)
    scaled = x * scale
    # What is too large to be scaled has no places to round.
    return where(lt(abs(scaled), math.inf), _round(scaled) / scale, x)


def _flip_sign(g: TensorBase, flipped: TensorBase) -> TensorBase:
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
    extra={"mask_inputs": (0,), "names": ("condition", "input", "other")},
    complex=True,
    doc="x where the condition holds, else y. Both are computed: a gradient needs both finite.",
)


def _tied(g: TensorBase, larger: TensorBase, x: TensorBase, y: TensorBase) -> TensorBase:
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
    input: TensorLike,
    min: TensorLike | None = None,
    max: TensorLike | None = None,
    *,
    out: TensorBase | None = None,
) -> TensorBase:
    """Limit `input` to ``[min, max]``, None being no bound; the gradient passes at the bounds.

    Raises
    ------
    ArgumentError
        If both bounds are None.
    """
    if min is None and max is None:
        raise ArgumentError(
            "clamp", expected="min, max or both", got="neither", fix="give at least one bound"
        )
    input = as_tensor(input, "clamp")
    if input.array.dtype.kind != "f":
        if min is not None and max is not None:
            return minimum(maximum(input, min), max, out=out)
        if min is not None:
            return maximum(input, min, out=out)
        if max is not None:
            return minimum(input, max, out=out)
    return _clamp(
        input, -math.inf if min is None else min, math.inf if max is None else max, out=out
    )
