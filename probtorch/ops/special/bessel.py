"""Bessel functions: sinc, which is the spherical one of order 0, and the modified ones I_v."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import sign, where
from probtorch.ops.families import Binary, Unary, elementwise
from probtorch.ops.special.declaration import quiet, scipy_value
from probtorch.ops.trigonometry import cos, sin

if TYPE_CHECKING:
    from probtorch.core.tensor_base import TensorBase
    from probtorch.ops.algebra import Number, Scalars


__all__ = ["i0", "i0e", "i1", "i1e", "iv", "ive", "log_i0e", "mean_cosine_loss", "sinc"]


def _sinc(s: Scalars[Number], x: Number) -> Number:
    z = s.where(x == 0.0, 1.0, x * math.pi)
    return s.where(x == 0.0, 1.0, s.sin(z) / z)


# j1(z) / z = sum over k of (-1/2)^k z^(2k) / (k! (2k + 3)!!): ten terms give 1e-17 for |z| < 1,
# also twice differentiated.
_J1_SERIES = [
    (-0.5) ** k / (math.factorial(k) * math.prod(range(1, 2 * k + 4, 2))) for k in range(10)
]


def _sinc_slope(g: TensorBase, x: TensorBase) -> TensorBase:
    # sinc'(x) = -pi j1(pi x), j1(z) = sin z / z^2 - cos z / z: near 0 its series, whose derivatives
    # are right as well.
    z = x * math.pi
    near = absolute(z) < 1.0
    square = where(near, z * z, 0.0)
    series = _J1_SERIES[-1] * square + _J1_SERIES[-2]
    for c in _J1_SERIES[-3::-1]:
        series = series * square + c
    away = where(near, math.pi, z)
    return g * where(near, series * z, (sin(away) / away - cos(away)) / away) * -math.pi


sinc: Unary = elementwise(
    "sinc",
    formula=_sinc,
    partials=(_sinc_slope,),
    saves=("x",),
    domain=("real",),
    eager=np.sinc,
    reference=lambda x: np.sin(np.pi * x) / (np.pi * x),
    result="float",
    doc="sin(pi x) / (pi x), and 1 at 0; smooth in every derivative.",
)
i0: Unary = elementwise(
    "i0",
    formula=lambda s, x: s.i0(x),
    partials=(lambda g, x: g * i1(x),),
    saves=("x",),
    domain=("real",),
    eager="special.i0",
    reference=lambda x: scipy_value("iv", 0, x),
    result="float",
    doc="Modified Bessel function of the first kind, order 0.",
)
i1: Unary = elementwise(
    "i1",
    formula=lambda s, x: s.i1(x),
    partials=(lambda g, x: g * ((i0(x) + iv(2.0, x)) * 0.5),),
    saves=("x",),
    domain=("real",),
    eager="special.i1",
    reference=lambda x: scipy_value("iv", 1, x),
    result="float",
    doc="Modified Bessel function of the first kind, order 1.",
)
i0e: Unary = elementwise(
    "i0e",
    formula=lambda s, x: s.i0e(x),
    partials=(lambda g, y, x: g * (i1e(x) - sign(x) * y),),
    saves=("out x",),
    domain=("nonzero",),
    eager="special.i0e",
    reference=lambda x: scipy_value("ive", 0, x),
    result="float",
    doc="exp(-|x|) * i0(x), which does not overflow.",
)
i1e: Unary = elementwise(
    "i1e",
    formula=lambda s, x: s.i1e(x),
    partials=(lambda g, y, x: g * ((i0e(x) + ive(2.0, x)) * 0.5 - sign(x) * y),),
    saves=("out x",),
    domain=("nonzero",),
    eager="special.i1e",
    reference=lambda x: scipy_value("ive", 1, x),
    result="float",
    doc="exp(-|x|) * i1(x), which does not overflow.",
)
# From here on the terms below are exact to 1e-12; those of the quotient have lost 1e-14.
_MANY = 100.0
# I1(x) / I0(x) = 1 - sum over n of c_n / x^n, from the expansions of both (DLMF 10.40.1).
_LOSS = (1 / 2, 1 / 8, 1 / 8, 25 / 128, 13 / 32, 1073 / 1024)


def _mean_cosine_loss(s: Scalars[Number], x: Number) -> Number:
    x = s.wide(x)
    far = x > _MANY
    r = 1.0 / s.where(far, x, _MANY)
    series = _LOSS[-1] * r + _LOSS[-2]
    for c in _LOSS[-3::-1]:
        series = series * r + c
    near = s.where(far, 1.0, x)
    return s.where(far, series * r, 1.0 - s.i1e(near) / s.i0e(near))


def _mean_cosine_loss_slope(g: TensorBase, y: TensorBase, x: TensorBase) -> TensorBase:
    # r' = 1 - r / x - r^2 for r = I1 / I0, written for y = 1 - r; near 0 it is 1/2.
    small = absolute(x) < 1e-4
    near = where(small, 1.0, x)
    return g * where(small, y * y - 2.0 * y + 0.5, (1.0 - y) / near - y * (2.0 - y))


mean_cosine_loss: Unary = elementwise(
    "mean_cosine_loss",
    formula=_mean_cosine_loss,
    partials=(_mean_cosine_loss_slope,),
    saves=("out x",),
    domain=("positive",),
    eager=quiet(_mean_cosine_loss),
    reference=lambda x: 1.0 - scipy_value("iv", 1, x) / scipy_value("iv", 0, x),
    result="float",
    doc="1 - i1(x) / i0(x) for x > 0, without the cancellation for large x.",
)
log_i0e: Unary = elementwise(
    "log_i0e",
    formula=lambda s, x: s.log(s.i0e(x)),
    partials=(lambda g, x: -(g * mean_cosine_loss(x)),),
    saves=("x",),
    domain=("positive",),
    eager=quiet(lambda s, x: s.log(s.i0e(x))),
    reference=lambda x: np.log(scipy_value("iv", 0, x)) - x,
    result="float",
    doc="log(i0e(x)) for x > 0.",
)
OF_ORDER = "detach() the order, or write the function as an integral over an angle and integrate it"
# DLMF 10.29.1: 2 I_v' = I_{v-1} + I_{v+1}.
iv: Binary = elementwise(
    "iv",
    formula=lambda s, v, x: s.iv(v, x),
    partials=(None, lambda g, v, x: g * ((iv(v - 1.0, x) + iv(v + 1.0, x)) * 0.5)),
    saves=("", "v x"),
    domain=("positive", "positive"),
    eager="special.iv",
    reference=lambda v, x: scipy_value("ive", v, x) * np.exp(x),
    result="float",
    doc="Modified Bessel function of the first kind, order v; differentiable in x.",
    underivable={0: OF_ORDER},
)


def _ive(s: Scalars[Number], v: Number, x: Number) -> Number:
    # SciPy's function is nan at infinity, where all orders go to 0.
    return s.where(s.isinf(x), 0.0, s.ive(v, x))


ive: Binary = elementwise(
    "ive",
    formula=_ive,
    partials=(
        None,
        lambda g, y, v, x: g * ((ive(v - 1.0, x) + ive(v + 1.0, x)) * 0.5 - sign(x) * y),
    ),
    saves=("", "out v x"),
    domain=("positive", "positive"),
    eager=quiet(_ive),
    reference=lambda v, x: scipy_value("iv", v, x) * np.exp(-x),
    result="float",
    doc="exp(-|x|) * iv(v, x), which does not overflow.",
    underivable={0: OF_ORDER},
)
