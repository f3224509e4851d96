"""Bessel functions J and Y, which oscillate, K, which decays, and Airy's function, which does both.

Derivatives follow DLMF 10.6 and 10.29. Read bessel.py for the functions I.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.casting import to_float
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq, isinf
from probtorch.ops.families import Binary, Unary, elementwise
from probtorch.ops.scalar import NumpyAlgebra
from probtorch.ops.special.bessel import OF_ORDER, sinc
from probtorch.ops.special.declaration import quiet, scipy_value

__all__ = [
    "airy_ai",
    "airy_ai_slope",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "kv",
    "kve",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "spherical_bessel_j0",
]

bessel_j0: Unary = elementwise(
    "bessel_j0",
    formula=lambda s, x: s.j0(x),
    partials=(lambda g, x: -g * bessel_j1(x),),
    saves=("x",),
    domain=("real",),
    eager="special.j0",
    reference=lambda x: scipy_value("jv", 0, x),
    result="float",
    doc="Bessel function of the first kind, order 0.",
)


def _j1_slope(g: TensorBase, y: TensorBase, x: TensorBase) -> TensorBase:
    # J1' = J0 - J1 / x, and J1 / x is 1/2, with slope 0, at 0.
    at_0 = eq(x, 0.0)
    return g * (bessel_j0(x) - where(at_0, 0.5, y / where(at_0, 1.0, x)))


bessel_j1: Unary = elementwise(
    "bessel_j1",
    formula=lambda s, x: s.j1(x),
    partials=(_j1_slope,),
    saves=("out x",),
    domain=("real",),
    eager="special.j1",
    reference=lambda x: scipy_value("jv", 1, x),
    result="float",
    doc="Bessel function of the first kind, order 1.",
)
bessel_y0: Unary = elementwise(
    "bessel_y0",
    formula=lambda s, x: s.y0(x),
    partials=(lambda g, x: -g * bessel_y1(x),),
    saves=("x",),
    domain=("positive",),
    eager="special.y0",
    reference=lambda x: scipy_value("yv", 0, x),
    result="float",
    doc="Bessel function of the second kind, order 0.",
)
bessel_y1: Unary = elementwise(
    "bessel_y1",
    formula=lambda s, x: s.y1(x),
    partials=(lambda g, y, x: g * where(eq(x, 0.0), math.inf, bessel_y0(x) - y / x),),
    saves=("out x",),
    domain=("positive",),
    eager="special.y1",
    reference=lambda x: scipy_value("yv", 1, x),
    result="float",
    doc="Bessel function of the second kind, order 1.",
)
modified_bessel_k0: Unary = elementwise(
    "modified_bessel_k0",
    formula=lambda s, x: s.k0(x),
    partials=(lambda g, x: -g * modified_bessel_k1(x),),
    saves=("x",),
    domain=("positive",),
    eager="special.k0",
    reference=lambda x: scipy_value("kv", 0, x),
    result="float",
    doc="Modified Bessel function of the second kind, order 0.",
)
modified_bessel_k1: Unary = elementwise(
    "modified_bessel_k1",
    formula=lambda s, x: s.k1(x),
    partials=(lambda g, y, x: -g * (modified_bessel_k0(x) + y / x),),
    saves=("out x",),
    domain=("positive",),
    eager="special.k1",
    reference=lambda x: scipy_value("kv", 1, x),
    result="float",
    doc="Modified Bessel function of the second kind, order 1.",
)


# At 0 these are differences of infinities, of which the second grows faster.
def _k0e_slope(g: TensorBase, y: TensorBase, x: TensorBase) -> TensorBase:
    return g * where(eq(x, 0.0), -math.inf, y - scaled_modified_bessel_k1(x))


def _k1e_slope(g: TensorBase, y: TensorBase, x: TensorBase) -> TensorBase:
    return g * where(eq(x, 0.0), -math.inf, y - scaled_modified_bessel_k0(x) - y / x)


scaled_modified_bessel_k0: Unary = elementwise(
    "scaled_modified_bessel_k0",
    formula=lambda s, x: s.k0e(x),
    partials=(_k0e_slope,),
    saves=("out x",),
    domain=("positive",),
    eager="special.k0e",
    reference=lambda x: scipy_value("kve", 0, x),
    result="float",
    doc="exp(x) times the modified Bessel function of the second kind, order 0.",
)
scaled_modified_bessel_k1: Unary = elementwise(
    "scaled_modified_bessel_k1",
    formula=lambda s, x: s.k1e(x),
    partials=(_k1e_slope,),
    saves=("out x",),
    domain=("positive",),
    eager="special.k1e",
    reference=lambda x: scipy_value("kve", 1, x),
    result="float",
    doc="exp(x) times the modified Bessel function of the second kind, order 1.",
)


# DLMF 10.29.1: -2 K_v' = K_{v-1} + K_{v+1}, of which both are infinite at 0.
def _kv_slope(g: TensorBase, v: TensorBase, x: TensorBase) -> TensorBase:
    return g * ((kv(v - 1.0, x) + kv(v + 1.0, x)) * -0.5)


def _kve_slope(g: TensorBase, y: TensorBase, v: TensorBase, x: TensorBase) -> TensorBase:
    slope = y - (kve(v - 1.0, x) + kve(v + 1.0, x)) * 0.5
    return g * where(eq(x, 0.0), -math.inf, slope)


kv: Binary = elementwise(
    "kv",
    formula=lambda s, v, x: s.kv(v, x),
    partials=(None, _kv_slope),
    saves=("", "v x"),
    domain=("positive", "positive"),
    eager="special.kv",
    reference=lambda v, x: scipy_value("kve", v, x) * np.exp(-x),
    result="float",
    doc="Modified Bessel function of the second kind, order v; differentiable in x.",
    underivable={0: OF_ORDER},
)
kve: Binary = elementwise(
    "kve",
    formula=lambda s, v, x: s.kve(v, x),
    partials=(None, _kve_slope),
    saves=("", "out v x"),
    domain=("positive", "positive"),
    eager="special.kve",
    reference=lambda v, x: scipy_value("kv", v, x) * np.exp(x),
    result="float",
    doc="exp(x) * kv(v, x), which does not underflow.",
    underivable={0: OF_ORDER},
)


def spherical_bessel_j0(input: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return ``sin(input) / input``, and 1 at 0: the spherical Bessel function of order 0."""
    input = to_float(as_tensor(input, "spherical_bessel_j0"))
    far = isinf(input)
    return where(far, 0.0, sinc(where(far, 0.0, input) / math.pi), out=out)


# Near 0, where the fractional orders below divide 0 by 0: Ai = c1 f - c2 g (DLMF 9.4.1).
_C1 = 3.0 ** (-2 / 3) / math.gamma(2 / 3)
_C2 = 3.0 ** (-1 / 3) / math.gamma(1 / 3)
_TERMS = 12  # enough for 1e-17 at |x| <= 1


def _coefficients(first: float, start: int) -> list[float]:
    """Return those of ``x^(3 k + start)``, each being the last over m (m - 1), m its power."""
    found = [first]
    for m in range(start + 3, start + 3 * _TERMS, 3):
        found.append(found[-1] / (m * (m - 1)))
    return found


_F, _G = _coefficients(_C1, 0), _coefficients(_C2, 1)
_F_SLOPE = [c * 3 * k for k, c in enumerate(_F)][1:]
_G_SLOPE = [c * (3 * k + 1) for k, c in enumerate(_G)]


def _sum(coefficients: list[float], cube: np.ndarray) -> np.ndarray:
    total = cube * 0.0
    for c in reversed(coefficients):
        total = total * cube + c
    return total


def _airy(s: NumpyAlgebra, x: np.ndarray) -> np.ndarray:
    x = s.wide(x)
    near = s.abs(x) < 1.0
    inner = s.where(near, x, 0.0)
    cube = inner * inner * inner
    middle = _sum(_F, cube) - inner * _sum(_G, cube)
    size = s.where(near, 1.0, s.abs(x))
    root = s.sqrt(size)
    zeta = (2.0 / 3.0) * size * root
    decays = root * (math.sqrt(1.0 / 3.0) / math.pi) * s.kv(1.0 / 3.0, zeta)
    waves = (root / 3.0) * (s.jv(1.0 / 3.0, zeta) + s.jv(-1.0 / 3.0, zeta))
    away = s.where(s.abs(x) == math.inf, 0.0, s.where(x > 0.0, decays, waves))
    found: np.ndarray = s.where(near, middle, away)
    return found


def _airy_slope(s: NumpyAlgebra, x: np.ndarray) -> np.ndarray:
    x = s.wide(x)
    near = s.abs(x) < 1.0
    inner = s.where(near, x, 0.0)
    cube = inner * inner * inner
    middle = inner * inner * _sum(_F_SLOPE, cube) - _sum(_G_SLOPE, cube)
    size = s.where(near, 1.0, s.abs(x))
    zeta = (2.0 / 3.0) * size * s.sqrt(size)
    decays = size * (-math.sqrt(1.0 / 3.0) / math.pi) * s.kv(2.0 / 3.0, zeta)
    waves = (size / 3.0) * (s.jv(2.0 / 3.0, zeta) - s.jv(-2.0 / 3.0, zeta))
    away = s.where(s.abs(x) == math.inf, 0.0, s.where(x > 0.0, decays, waves))
    found: np.ndarray = s.where(near, middle, away)
    return found


airy_ai: Unary = elementwise(
    "airy_ai",
    formula=_airy,
    partials=(lambda g, x: g * airy_ai_slope(x),),
    saves=("x",),
    domain=("real",),
    eager=quiet(_airy),
    reference=lambda x: scipy_value("airy", x)[0],
    result="float",
    doc="Airy's function Ai, which solves y'' = x y and decays to the right.",
)
airy_ai_slope: Unary = elementwise(
    "airy_ai_slope",
    formula=_airy_slope,
    partials=(lambda g, x: g * x * airy_ai(x),),
    saves=("x",),
    domain=("real",),
    eager=quiet(_airy_slope),
    reference=lambda x: scipy_value("airy", x)[1],
    result="float",
    doc="Derivative of Airy's function Ai.",
)
