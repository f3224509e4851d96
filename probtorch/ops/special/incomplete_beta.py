"""The incomplete beta function, differentiable in its shapes as well.

Densities come from Stirling rests (ops/stirling.py), so that they neither overflow nor cancel;
derivatives in the shapes from quadrature (ops/incomplete.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.dispatch import apply
from probtorch.core.native import NativeFunction
from probtorch.ops.arithmetic import where
from probtorch.ops.exponentials import log, log1p
from probtorch.ops.families import Ternary, elementwise, structured
from probtorch.ops.incomplete import beta_tail
from probtorch.ops.lanes import on_chunks
from probtorch.ops.special.declaration import quiet, scipy_value, tensor_like
from probtorch.ops.special.gamma import digamma_difference, polygamma
from probtorch.ops.special.logarithms import xlog1py, xlogy
from probtorch.ops.special.shape_derivatives import on_host, rules_from_parts, shape_operands
from probtorch.ops.stirling import BIG, HALF_LOG_2PI, lgamma_rest

if TYPE_CHECKING:
    from probtorch.core.tensor_base import TensorBase
    from probtorch.ops.algebra import Branching, Number, Scalars


__all__ = ["beta_density", "betainc", "betainc_grad", "slope_in_shapes"]


def _beta_density(s: Scalars[Number], a: Number, b: Number, x: Number) -> Number:
    # Stirling for a, b > 10: around the mean x0 = a / (a + b), the two logarithms are small and
    # their linear parts cancel.
    big = s.minimum(a, b) > BIG
    m, n = s.where(big, a, BIG), s.where(big, b, BIG)
    total = m + n
    shift = x - m / total
    t, u = shift * total / m, -shift * total / n
    rest = lgamma_rest(total) - lgamma_rest(m) - lgamma_rest(n)
    inside = s.logical_and(x > 0.0, x < 1.0)
    z = s.where(inside, x, 0.5)
    log_t = s.where(s.abs(t) < 0.5, s.log1p(t), s.log(z * (total / m)))
    log_u = s.where(s.abs(u) < 0.5, s.log1p(u), s.log1p(-z) + s.log(total / n))
    high = s.exp(m * (log_t - t) + n * (log_u - u) + rest - HALF_LOG_2PI)
    high = s.where(inside, high * s.sqrt(m / total * n) / (z * (1.0 - z)), 0.0)
    left = s.where(a == 1.0, 0.0, (a - 1.0) * s.log(x))
    right = s.where(b == 1.0, 0.0, (b - 1.0) * s.log1p(-x))
    low = s.exp(left + right - s.betaln(a, b))
    return s.where(s.logical_or(x < 0.0, x > 1.0), 0.0, s.where(big, high, low))


def _beta_density_in_x(
    g: TensorBase, y: TensorBase, a: TensorBase, b: TensorBase, x: TensorBase
) -> TensorBase:
    # Finite at the edges, where the limits are 0 or infinite unless a or b is 1.
    low, high = x <= 0.0, x >= 1.0
    left = where(low, 0.0, (tensor_like(a, g) - 1.0) / where(low, 1.0, x))
    right = where(high, 0.0, (tensor_like(b, g) - 1.0) / (1.0 - where(high, 0.0, x)))
    return g * y * (left - right)


beta_density: Ternary = elementwise(
    "beta_density",
    formula=_beta_density,
    partials=(
        lambda g, y, a, b, x: xlogy(g * y, tensor_like(x, g)) + g * y * digamma_difference(a, b),
        lambda g, y, a, b, x: xlog1py(g * y, -tensor_like(x, g)) + g * y * digamma_difference(b, a),
        _beta_density_in_x,
    ),
    saves=("out a b x", "out a b x", "out a b x"),
    domain=("positive", "positive", "probability"),
    eager=quiet(_beta_density),
    reference=lambda a, b, x: np.exp(
        (a - 1.0) * np.log(x) + (b - 1.0) * np.log1p(-x) - scipy_value("betaln", a, b)
    ),
    result="float",
    doc="Density at x of the beta distribution with parameters a and b.",
)
betainc: Ternary = elementwise(
    "betainc",
    formula=lambda s, a, b, x: s.betainc(a, b, x),
    partials=(
        lambda g, a, b, x: g * betainc_grad(a, b, x, (1, 0)),
        lambda g, a, b, x: g * betainc_grad(a, b, x, (0, 1)),
        lambda g, a, b, x: g * beta_density(a, b, x),
    ),
    saves=("a b x", "a b x", "a b x"),
    domain=("positive", "positive", "probability"),
    eager="special.betainc",
    reference=lambda a, b, x: 1.0 - scipy_value("betainc", b, a, 1.0 - x),
    result="float",
    doc="Regularised incomplete beta function I_x(a, b); differentiable in all three.",
)


def slope_in_shapes(
    s: Branching[Number], a: Number, b: Number, x: Number, order: tuple[int, int]
) -> Number:
    """(d/da)^i (d/db)^j I_x(a, b) for order = (i, j), over an algebra as in ops/incomplete.py."""
    weight = _beta_density(s, a, b, x) * x * (1.0 - x)
    tail = beta_tail(s, a, b, s.log(x) - s.log1p(-x), order)
    # At x = 0 and 1 the function is 0 and 1 for all a and b.
    ends = s.logical_or(s.logical_or(x == 0.0, x == 1.0), weight == 0.0)
    edge = s.logical_and(ends, s.logical_and(a > 0.0, b > 0.0))
    return s.where(edge, 0.0, -weight * tail)


def _run_betainc_grad(
    a: np.ndarray, b: np.ndarray, x: np.ndarray, order: tuple[int, int]
) -> np.ndarray:
    return on_chunks(lambda s, a, b, x: slope_in_shapes(s, a, b, x, order), a, b, x)


def _betainc_grad_parts(
    out: TensorBase, inputs: tuple[TensorBase, ...], order: tuple[int, int]
) -> tuple[TensorBase | None, ...]:
    a, b, x = inputs
    of_a = order[0] > 0
    edge = (x <= 0.0) | (x >= 1.0)
    inner = where(edge, 0.5, x)
    density = where(edge, 0.0, beta_density(a, b, inner))
    left = log(inner) + digamma_difference(a, b)
    right = log1p(-inner) + digamma_difference(b, a)
    if order == (1, 0):
        return betainc_grad(a, b, x, (2, 0)), betainc_grad(a, b, x, (1, 1)), density * left
    if order == (0, 1):
        return betainc_grad(a, b, x, (1, 1)), betainc_grad(a, b, x, (0, 2)), density * right
    common = polygamma(1, a + b)
    if order == (1, 1):
        return None, None, density * (left * right + common)
    side, own = (left, a) if of_a else (right, b)
    return None, None, density * (side * side - polygamma(1, own) + common)


def _betainc_grad_reference(
    a: np.ndarray, b: np.ndarray, x: np.ndarray, order: tuple[int, int]
) -> np.ndarray:
    i, j = order
    h = 1e-4
    p = [scipy_value("betainc", a + k * i * h, b + k * j * h, x) for k in (-2, -1, 1, 2)]
    return (p[0] - 8.0 * p[1] + 8.0 * p[2] - p[3]) / (12.0 * h)


_vjp, _jvp = rules_from_parts(_betainc_grad_parts, "betainc_grad")
_BETAINC_GRAD = structured(
    "betainc_grad", "special", run=on_host(_run_betainc_grad), vjp=_vjp, jvp=_jvp, saves="a b x",
    core="(),(),()->()",
    native=NativeFunction("betainc_grad_{order[0]}{order[1]}"),
    samples=lambda rng: [
        (
            (rng.uniform(0.5, 4.0, (3, 1)), rng.uniform(0.5, 4.0, (2,)), np.array(0.7)),
            {"order": (1, 0)},
        ),
        (tuple(rng.uniform(0.5, 0.9, (3, 4))), {"order": (0, 1)}),
    ],
    reference=_betainc_grad_reference,
    doc="(d/da)^i (d/db)^j of the regularised incomplete beta function, order = (i, j).",
)  # fmt: skip


def betainc_grad(
    a: TensorBase | float,
    b: TensorBase | float,
    x: TensorBase | float,
    order: tuple[int, int] = (1, 0),
) -> TensorBase:
    """Derivative of ``betainc(a, b, x)`` of order (i, j) in (a, b), with 1 <= i + j <= 2.

    Accurate to about 1e-12 relative, in the tails as well. Differentiable while i + j stays below
    3.
    """
    operands = shape_operands("betainc_grad", a, b, x)
    return apply(_BETAINC_GRAD, operands, {"order": tuple(order)})
