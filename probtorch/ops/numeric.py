"""Elementwise functions made of others: lengths, steps, angles, what skips nan, whole numbers.

Conventions at non-smooth points are those of arithmetic.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast, to_float
from probtorch.core.dispatch import unseen
from probtorch.core.dtype import promote, promote_types
from probtorch.core.making import as_tensor
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import DTypeError
from probtorch.ops.arithmetic import (
    abs,
    clamp,
    clone,
    floor,
    floor_divide,
    mul,
    remainder,
    trunc,
    where,
)
from probtorch.ops.arithmetic import add as plus
from probtorch.ops.arithmetic import sub as minus
from probtorch.ops.comparisons import (
    eq,
    ge,
    gt,
    isinf,
    isnan,
    logical_and,
    logical_or,
    lt,
    ne,
    shift_left,
    shift_right,
)
from probtorch.ops.complex_numbers import complex, imag, real
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp2, log2, logaddexp, pow
from probtorch.ops.families import Binary, elementwise
from probtorch.ops.movement import broadcast_tensors
from probtorch.ops.reduction import any as any_of

__all__ = [
    "Frexp",
    "add",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "clamp_max",
    "clamp_min",
    "deg2rad",
    "float_power",
    "fmax",
    "fmin",
    "frac",
    "frexp",
    "gcd",
    "heaviside",
    "isneginf",
    "isposinf",
    "lcm",
    "ldexp",
    "logaddexp2",
    "nan_to_num",
    "nextafter",
    "positive",
    "rad2deg",
    "rsub",
    "safe_where",
    "sub",
]

LN2 = math.log(2.0)


def _share(g: TensorBase, wins: TensorBase, x: TensorBase, y: TensorBase) -> TensorBase:
    """The cotangent of one of two operands: all of it where it wins, half where they are equal."""
    return where(wins, g, where(eq(x, y), 0.5 * g, 0.0))


fmax: Binary = elementwise(
    "fmax",
    formula=lambda s, x, y: s.where(s.isnan(x), y, s.where(s.isnan(y), x, s.maximum(x, y))),
    partials=(
        lambda g, x, y: _share(g, logical_or(gt(x, y), isnan(y)), x, y),
        lambda g, x, y: _share(g, logical_or(lt(x, y), logical_and(isnan(x), ~isnan(y))), x, y),
    ),
    saves=("x y", "x y"),
    domain=("real", "real"),
    eager=np.fmax,
    reference=np.fmax,
    doc="Elementwise maximum; nan loses.",
)
fmin: Binary = elementwise(
    "fmin",
    formula=lambda s, x, y: s.where(s.isnan(x), y, s.where(s.isnan(y), x, s.minimum(x, y))),
    partials=(
        lambda g, x, y: _share(g, logical_or(lt(x, y), isnan(y)), x, y),
        lambda g, x, y: _share(g, logical_or(gt(x, y), logical_and(isnan(x), ~isnan(y))), x, y),
    ),
    saves=("x y", "x y"),
    domain=("real", "real"),
    eager=np.fmin,
    reference=np.fmin,
    doc="Elementwise minimum; nan loses.",
)


nextafter: Binary = elementwise(
    "nextafter",
    formula=lambda s, x, y: s.nextafter(x, y),
    partials=(lambda g: g, None),
    domain=("real", "real"),
    eager=np.nextafter,
    reference=np.nextafter,
    result="float",
    doc="The next floating-point number after x in the direction of y.",
)


def safe_where(
    condition: TensorLike,
    fn: Callable[[TensorBase], TensorBase],
    x: TensorLike,
    otherwise: TensorLike = 0.0,
    *,
    at: float = 1.0,
) -> TensorBase:
    """Return ``fn(x)`` where `condition` holds and `otherwise` elsewhere; no slope is lost to nan.

    ``where(x > 0, sqrt(x), 0.0)`` computes the root of negative numbers too, and its slope there,
    nan, times 0 is nan. Here `fn` never sees what it is not meant for.

    Parameters
    ----------
    condition : Tensor of booleans, broadcastable with x
    fn : callable
        Elementwise, of one tensor.
    x : Tensor
    otherwise : Tensor or number
        Has a gradient as in `where`.
    at : float
        What `fn` sees in place of x where `condition` does not hold: a place where it is smooth.

    Examples
    --------
    >>> import probtorch
    >>> x = probtorch.tensor([-1.0, 4.0], requires_grad=True)
    >>> probtorch.safe_where(x > 0, probtorch.sqrt, x, x).sum().backward()
    >>> x.grad
    tensor([1.0000, 0.2500])
    """
    x = as_tensor(x, "safe_where")
    return where(condition, fn(where(condition, x, at)), otherwise)


def heaviside(
    input: TensorLike, values: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return 0 below 0, 1 above, and `values` at 0; nan stays nan."""
    input, values = as_tensor(input, "heaviside"), as_tensor(values, "heaviside")
    if input.array.dtype != values.array.dtype:
        raise DTypeError(
            "heaviside",
            expected="two tensors of one dtype",
            got=f"{input.array.dtype} and {values.array.dtype}",
            fix="convert them with .to(dtype)",
        )
    step = (
        where(isnan(input), input, cast(gt(input, 0), input.array.dtype))
        if _is_float(input)
        else gt(input, 0)
    )
    return where(eq(input, 0), values, cast(step, input.array.dtype), out=out)


def frac(input: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return what is behind the point, with the sign of `input`."""
    return minus(input, trunc(input), out=out)


class Frexp(NamedTuple):
    """Numbers as ``mantissa * 2**exponent``, mantissas in [0.5, 1)."""

    mantissa: TensorBase
    exponent: TensorBase


_FAR = 2.0**64  # makes the least of numbers normal


@takes_out
def frexp(input: TensorLike, *, out: tuple[TensorBase, ...] | None = None) -> Frexp:
    """Return ``(mantissa, exponent)`` with ``input = mantissa * 2**exponent``.

    Mantissas have sizes in [0.5, 1) and the sign of `input`, and its gradient divided by the power.
    Exponents are int32. What is 0, infinite or nan is its own mantissa, with exponent 0.

    Raises
    ------
    DTypeError
        Of integers.
    """
    input = as_tensor(input, "frexp")
    if not _is_float(input):
        raise DTypeError(
            "frexp", expected="floats", got=str(input.array.dtype), fix="call .float()"
        )
    wide = cast(input, dtypes.float32) if input.array.dtype is dtypes.float16 else input
    size = abs(wide.detach())
    plain = logical_and(gt(size, 0.0), lt(size, math.inf))
    small = lt(size, 1.0 / _FAR)
    size = where(plain, where(small, size * _FAR, size), 0.5)
    # Of a logarithm that was rounded to the next whole number, one too many.
    power = floor(log2(size)) + 1.0
    share = size * exp2(-power)
    power = power + where(ge(share, 1.0), 1.0, 0.0) - where(lt(share, 0.5), 1.0, 0.0)
    whole = where(small, wide * _FAR, wide) * exp2(-power)
    mantissa = where(plain, whole, wide)
    exponent = where(plain, power - where(small, 64.0, 0.0), 0.0)
    return Frexp(cast(mantissa, input.array.dtype), cast(exponent, dtypes.int32))


def deg2rad(input: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return degrees as radians."""
    return mul(to_float(as_tensor(input, "deg2rad")), math.pi / 180.0, out=out)


def rad2deg(input: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return radians as degrees."""
    return mul(to_float(as_tensor(input, "rad2deg")), 180.0 / math.pi, out=out)


def logaddexp2(
    input: TensorLike, other: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return log2(2^x + 2^y) without overflow."""
    input, other = as_tensor(input, "logaddexp2"), as_tensor(other, "logaddexp2")
    common = promote([input.array, other.array])
    input, other = (to_float(cast(t, common)) for t in (input, other))
    return mul(logaddexp(input * LN2, other * LN2), 1.0 / LN2, out=out)


def ldexp(input: TensorLike, other: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return ``input * 2**other``."""
    input, other = as_tensor(input, "ldexp"), as_tensor(other, "ldexp")
    if _is_float(input):
        other = cast(
            other, promote([input.array, other.array]) if _is_float(other) else input.array.dtype
        )
    other = to_float(other)
    # The power alone may be beyond the numbers: its largest factor last, so that a result below the
    # normal numbers is rounded once. That one has the slope.
    info = np.finfo(other.array.dtype)
    low, high = float(info.minexp), float(info.maxexp - 1)
    infinite = isinf(other.detach())
    scale = where(infinite, exp2(other.detach()), 1.0)
    other = clamp(other, 3.0 * low, 3.0 * high)
    at = other.detach()
    larger = clamp(at - clamp(at, low, high), low, high)
    rest = at - clamp(at, low, high) - larger
    return mul(input * scale * exp2(rest) * exp2(larger), exp2(other - larger - rest), out=out)


def add(
    input: TensorLike,
    other: TensorLike,
    *,
    alpha: float | TensorBase = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``input + alpha * other``."""
    return plus(input, other if _is_one(alpha) else _scaled("add", other, alpha), out=out)


def sub(
    input: TensorLike,
    other: TensorLike,
    *,
    alpha: float | TensorBase = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``input - alpha * other``."""
    return minus(input, other if _is_one(alpha) else _scaled("sub", other, alpha), out=out)


add.usual, sub.usual = plus, minus  # type: ignore[attr-defined]  # what they are without options


def _is_one(alpha: float | TensorBase) -> bool:
    return isinstance(alpha, int) and alpha == 1


def _scaled(op: str, y: TensorLike, alpha: float | TensorBase) -> TensorBase:
    if isinstance(alpha, float) and as_tensor(y, op).array.dtype.kind not in "fc":
        raise DTypeError(
            op,
            expected="a whole number as alpha, as the operand is of whole numbers",
            got=f"alpha={alpha}",
            fix="convert the operand to floats first",
        )
    return mul(y, alpha)


def clamp_min(x: TensorLike, min: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return `x` with what is below `min` raised to it."""
    return clamp(x, min=min, out=out)


def clamp_max(x: TensorLike, max: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return `x` with what is above `max` lowered to it."""
    return clamp(x, max=max, out=out)


@takes_out
def float_power(
    input: TensorLike, exponent: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return ``input ** exponent`` in double precision, integers too."""
    input, exponent = (as_tensor(t, "float_power") for t in (input, exponent))
    wide = (promote_types(t.array.dtype, dtypes.float64) for t in (input, exponent))
    return pow(*(cast(t, dtype) for t, dtype in zip((input, exponent), wide, strict=True)))


def positive(input: TensorLike) -> TensorBase:
    """Return `input` as it is.

    Raises
    ------
    DTypeError
        Of truth values, which have no sign.
    """
    input = as_tensor(input, "positive")
    if input.array.dtype.kind == "b":
        raise DTypeError("positive", expected="numbers", got="bool", fix="use .int() first")
    return input


def rsub(x: TensorLike, other: TensorLike, *, alpha: float = 1) -> TensorBase:
    """Return ``other - alpha * x``."""
    return minus(other, x if alpha == 1 else mul(x, alpha))


@takes_out
def nan_to_num(
    input: TensorLike,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
    *,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return `input` with nan replaced by 0, infinities by the largest numbers, or by those given.

    Of complex numbers real and imaginary part are looked at one by one.
    """
    input = as_tensor(input, "nan_to_num")
    if input.array.dtype.kind == "c":
        return complex(
            *(nan_to_num(part, nan, posinf, neginf) for part in (real(input), imag(input)))
        )
    if not _is_float(input):
        return clone(input)
    if unseen(input) and np.isfinite(input.array).all():
        return clone(input)  # as nearly always
    limits = np.finfo(input.array.dtype)
    found = where(isnan(input), 0.0 if nan is None else nan, input)
    found = where(isposinf(input), float(limits.max) if posinf is None else posinf, found)
    return where(isneginf(input), float(limits.min) if neginf is None else neginf, found)


@takes_out
def isposinf(input: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return where `input` is inf."""
    return logical_and(isinf(input), gt(input, 0))


@takes_out
def isneginf(input: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return where `input` is -inf."""
    return logical_and(isinf(input), lt(input, 0))


def _is_float(x: TensorBase) -> bool:
    return x.array.dtype.kind == "f"


# ------------------------------------------------------------------------------------ whole numbers


def _integers(op: str, x: TensorLike, y: TensorLike) -> Iterator[TensorBase]:
    x, y = as_tensor(x, op), as_tensor(y, op)
    for t in (x, y):
        if t.array.dtype.kind not in "iu":
            raise DTypeError(
                op, expected="integers", got=str(t.array.dtype), fix="convert it with .long()"
            )
    dtype = promote_types(x.array.dtype, y.array.dtype)
    return (cast(t, dtype) for t in broadcast_tensors(x, y))


@takes_out
def gcd(input: TensorLike, other: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return the greatest common divisor of integers; gcd(0, 0) is 0."""
    a, b = _integers("gcd", input, other)

    def step(pair: tuple[TensorBase, TensorBase]) -> tuple[TensorBase, TensorBase]:
        a, b = pair
        done = eq(b, 0)
        return where(done, a, b), where(done, b, remainder(a, where(done, 1, b)))

    return while_loop(lambda pair: any_of(ne(pair[1], 0)), step, (abs(a), abs(b)))[0]


@takes_out
def lcm(input: TensorLike, other: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return the least common multiple of integers; 0 if one of them is."""
    a, b = _integers("lcm", input, other)
    common = gcd(a, b)
    return abs(mul(floor_divide(a, where(eq(common, 0), 1, common)), b))


@takes_out
def bitwise_left_shift(
    input: TensorLike, other: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return integers shifted left by `other` bits."""
    return shift_left(input, other)


@takes_out
def bitwise_right_shift(
    input: TensorLike, other: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return integers shifted right by `other` bits, keeping their sign."""
    return shift_right(input, other)
