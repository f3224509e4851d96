"""Elementwise ops: circular and hyperbolic functions, their inverses, and hypot.

Read arithmetic.py first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probtorch.ops.arithmetic import rsqrt, where
from probtorch.ops.comparisons import eq
from probtorch.ops.families import Binary, Unary, elementwise

if TYPE_CHECKING:
    from probtorch.core.tensor_base import TensorBase
    from probtorch.ops.algebra import Number, Scalars


sin: Unary = elementwise(
    "sin",
    formula=lambda s, x: s.sin(x),
    partials=(lambda g, x: g * cos(x),),
    saves=("x",),
    domain=("real",),
    eager=np.sin,
    reference=np.sin,
    result="float",
    complex=True,
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
    complex=True,
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
    complex=True,
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
    complex=True,
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
    complex=True,
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
    complex=True,
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
    complex=True,
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
    complex=True,
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
    complex=True,
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
    complex=True,
    doc="Inverse hyperbolic sine.",
)


def _acosh_slope(x: TensorBase) -> TensorBase:
    # Of complex numbers the root of the product is not the product of the roots.
    if x.array.dtype.kind == "c":
        return rsqrt(x - 1.0) * rsqrt(x + 1.0)
    return rsqrt(x * x - 1.0)


acosh: Unary = elementwise(
    "acosh",
    formula=lambda s, x: s.acosh(x),
    partials=(lambda g, x: g * _acosh_slope(x),),
    saves=("x",),
    domain=("above_one",),
    eager=np.arccosh,
    reference=np.arccosh,
    result="float",
    complex=True,
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
    complex=True,
    doc="Inverse hyperbolic tangent.",
)


def _over_radius(g: TensorBase, x: TensorBase, y: TensorBase) -> TensorBase:
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


def _length(s: Scalars[Number], x: Number, y: Number) -> Number:
    long, short = s.maximum(s.abs(x), s.abs(y)), s.minimum(s.abs(x), s.abs(y))
    share = s.where(long == 0.0, 0.0, short / long)
    infinite = s.logical_or(s.isinf(x), s.isinf(y))
    return s.where(infinite, np.inf, long * s.sqrt(1.0 + share * share))


hypot: Binary = elementwise(
    "hypot",
    formula=_length,
    partials=(
        lambda g, out, x: g * where(eq(out, 0.0), 0.0, x / out),
        lambda g, out, y: g * where(eq(out, 0.0), 0.0, y / out),
    ),
    saves=("out x", "out y"),
    domain=("nonzero", "nonzero"),
    eager=np.hypot,
    reference=np.hypot,
    result="float",
    doc="Length of the vector (x, y), without overflow; the derivative at (0, 0) is 0.",
)
