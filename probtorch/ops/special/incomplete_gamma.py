"""The incomplete gamma function, differentiable in its shape too, and how gamma draws depend on it.

Densities come from Stirling rests (ops/stirling.py), so that they neither overflow nor cancel;
derivatives in the shape from quadrature (ops/incomplete.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.dispatch import apply
from probtorch.core.native import NativeFunction
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponentials import exp, log
from probtorch.ops.families import Binary, elementwise, structured
from probtorch.ops.incomplete import gamma_tail
from probtorch.ops.lanes import on_chunks
from probtorch.ops.special.declaration import quiet, scipy_value, tensor_like
from probtorch.ops.special.gamma import digamma, polygamma
from probtorch.ops.special.logarithms import xlogy
from probtorch.ops.special.shape_derivatives import on_host, rules_from_parts, shape_operands
from probtorch.ops.stirling import BIG, HALF_LOG_2PI, lgamma_rest

if TYPE_CHECKING:
    from probtorch.core.tensor_base import TensorBase
    from probtorch.ops.algebra import Branching, Number, Scalars


__all__ = [
    *("gamma_density", "gamma_log_implicit", "gammainc", "gammainc_grad_a", "gammaincc"),
    "slope_in_shape",
]


def _gamma_density(s: Scalars[Number], a: Number, x: Number) -> Number:
    # For large a the exponent is a (log1p(t) - t) with t = x/a - 1: small, where a log x - x -
    # lgamma(a) would cancel.
    big = a > BIG
    m = s.where(big, a, BIG)
    t = (x - m) / m
    z = s.where(x > 0.0, x, 1.0)
    log_ratio = s.where(s.abs(t) < 0.5, s.log1p(t), s.log(z / m))
    high = s.exp(m * (log_ratio - t) - lgamma_rest(m) - HALF_LOG_2PI) * s.sqrt(m) / z
    high = s.where(x > 0.0, high, 0.0)
    power = s.where(a == 1.0, 0.0, (a - 1.0) * s.log(x))
    low = s.exp(power - x - s.lgamma(a))
    return s.where(s.logical_or(x < 0.0, x == math.inf), 0.0, s.where(big, high, low))


def _gamma_density_in_a(g: TensorBase, y: TensorBase, a: TensorBase, x: TensorBase) -> TensorBase:
    x = tensor_like(x, g)
    return xlogy(g * y, x) - g * y * digamma(a)


def _gamma_density_in_x(g: TensorBase, y: TensorBase, a: TensorBase, x: TensorBase) -> TensorBase:
    # Finite at 0, where the limit is 0 or infinite unless a is 1.
    edge = x <= 0.0
    return g * y * (where(edge, 0.0, (tensor_like(a, g) - 1.0) / where(edge, 1.0, x)) - 1.0)


gamma_density: Binary = elementwise(
    "gamma_density",
    formula=_gamma_density,
    partials=(_gamma_density_in_a, _gamma_density_in_x),
    saves=("out a x", "out a x"),
    domain=("positive", "positive"),
    eager=quiet(_gamma_density),
    reference=lambda a, x: np.exp((a - 1.0) * np.log(x) - x - scipy_value("gammaln", a)),
    result="float",
    doc="Density at x of the standard gamma distribution with shape a: dP(a, x)/dx.",
)
gammainc: Binary = elementwise(
    "gammainc",
    formula=lambda s, a, x: s.gammainc(a, x),
    partials=(
        lambda g, a, x: g * gammainc_grad_a(a, x),
        lambda g, a, x: g * gamma_density(a, x),
    ),
    saves=("a x", "a x"),
    domain=("positive", "positive"),
    eager="special.gammainc",
    reference=lambda a, x: scipy_value("chdtr", 2.0 * a, 2.0 * x),
    result="float",
    doc="Regularised lower incomplete gamma function P(a, x); differentiable in both.",
)
gammaincc: Binary = elementwise(
    "gammaincc",
    formula=lambda s, a, x: s.gammaincc(a, x),
    partials=(
        lambda g, a, x: -(g * gammainc_grad_a(a, x)),
        lambda g, a, x: -(g * gamma_density(a, x)),
    ),
    saves=("a x", "a x"),
    domain=("positive", "positive"),
    eager="special.gammaincc",
    reference=lambda a, x: scipy_value("chdtrc", 2.0 * a, 2.0 * x),
    result="float",
    doc="Regularised upper incomplete gamma function, 1 - P(a, x); differentiable in both.",
)


def _log_implicit_parts(
    out: TensorBase, inputs: tuple[TensorBase, ...], order: int
) -> tuple[TensorBase | None, ...]:
    """Derivatives of -(d/da)^k P / W; dW/dy = (a - e^y) W and dW/da = (y - psi(a)) W."""
    a, y = inputs
    mean, slope = y - digamma(a), a - exp(y)
    if order == 1:
        return gamma_log_implicit(a, y, 2) - out * mean, -mean - out * slope
    return None, polygamma(1, a) - mean * mean - out * slope


def _log_implicit_reference(a: np.ndarray, y: np.ndarray, order: int) -> np.ndarray:
    # Central differences of SciPy's P in a, which is good to about 1e-9.
    h = 1e-3 * np.minimum(a, 1.0)
    p = [scipy_value("gammainc", a + k * h, np.exp(y)) for k in (-2, -1, 0, 1, 2)]
    first = (p[0] - 8.0 * p[1] + 8.0 * p[3] - p[4]) / (12.0 * h)
    second = (-p[0] + 16.0 * p[1] - 30.0 * p[2] + 16.0 * p[3] - p[4]) / (12.0 * h * h)
    return -(first if order == 1 else second) / np.exp(
        a * y - np.exp(y) - scipy_value("gammaln", a)
    )


def _run_log_implicit(a: np.ndarray, log_x: np.ndarray, order: int) -> np.ndarray:
    return on_chunks(lambda s, a, y: gamma_tail(s, a, y, order), a, log_x)


_vjp, _jvp = rules_from_parts(_log_implicit_parts, "gamma_log_implicit")
_GAMMA_LOG_IMPLICIT = structured(
    "gamma_log_implicit", "special", run=on_host(_run_log_implicit), vjp=_vjp, jvp=_jvp,
    saves="a log_x out",
    core="(),()->()",
    native=NativeFunction("gamma_log_implicit_{order}"),
    samples=lambda rng: [
        ((rng.uniform(0.5, 4.0, (3, 1)), rng.uniform(-1.0, 1.5, (2,))), {"order": 1}),
        ((np.array(rng.uniform(0.5, 4.0)), np.array(rng.uniform(-1.0, 1.5))), {"order": 1}),
    ],
    reference=_log_implicit_reference,
    doc="-(d/da)^order P(a, e^y) / (x p(x)) at x = e^y; order 1 is d(log x)/da of a gamma draw.",
)  # fmt: skip


def gamma_log_implicit(
    a: TensorBase | float, log_x: TensorBase | float, order: int = 1
) -> TensorBase:
    """Derivative of the logarithm of a standard gamma draw in its shape, at a fixed quantile.

    Parameters
    ----------
    a : Tensor
        Shape parameter, positive.
    log_x : Tensor
        Natural logarithm of the draw, so that draws below the smallest float have derivatives too.
    order : {1, 2}
        2 gives -(d/da)^2 P / (x p(x)) instead, which the derivative of order 1 needs.

    Returns
    -------
    Tensor
        d(log x)/da = -(dP/da) / (x p(x)), positive, for the distribution function P and density p.

    References
    ----------
    Figurnov, Mohamed, Mnih (2018), "Implicit reparameterization gradients".
    """
    return apply(
        _GAMMA_LOG_IMPLICIT, shape_operands("gamma_log_implicit", a, log_x), {"order": order}
    )


def slope_in_shape(s: Branching[Number], a: Number, x: Number, order: int) -> Number:
    """(d/da)^order P(a, x), over an algebra as in ops/incomplete.py."""
    weight = s.where(x > 0.0, _gamma_density(s, a, x) * x, 0.0)
    tail = gamma_tail(s, a, s.log(x), order)
    # P(a, 0) = 0 and P(a, inf) = 1 for every a; a weight that underflows beats whatever it
    # multiplies.
    valid = s.logical_and(a > 0.0, x >= 0.0)
    return s.where(s.logical_and(weight == 0.0, valid), 0.0, -weight * tail)


def _run_grad_a(a: np.ndarray, x: np.ndarray, order: int) -> np.ndarray:
    return on_chunks(lambda s, a, x: slope_in_shape(s, a, x, order), a, x)


def _grad_a_parts(
    out: TensorBase, inputs: tuple[TensorBase, ...], order: int
) -> tuple[TensorBase | None, ...]:
    a, x = inputs
    edge = eq(x, 0.0)
    mean = where(edge, 0.0, log(where(edge, 1.0, x))) - digamma(a)
    density = gamma_density(a, x)
    if order == 1:
        second = apply(_GAMMAINC_GRAD_A, inputs, {"order": 2})
        return second, density * mean
    return None, density * (mean * mean - polygamma(1, a))


def _grad_a_reference(a: np.ndarray, x: np.ndarray, order: int) -> np.ndarray:
    weight = np.exp(a * np.log(x) - x - scipy_value("gammaln", a))
    return -_log_implicit_reference(a, np.log(x), order) * weight


_vjp, _jvp = rules_from_parts(_grad_a_parts, "gammainc_grad_a")
_GAMMAINC_GRAD_A = structured(
    "gammainc_grad_a", "special", run=on_host(_run_grad_a), vjp=_vjp, jvp=_jvp, saves="a x",
    core="(),()->()",
    native=NativeFunction("gammainc_grad_a_{order}"),
    samples=lambda rng: [
        ((rng.uniform(0.5, 4.0, (3, 1)), rng.uniform(0.3, 5.0, (2,))), {"order": 1}),
        ((np.array(rng.uniform(0.5, 4.0)), np.array(rng.uniform(0.3, 5.0))), {"order": 1}),
    ],
    reference=_grad_a_reference,
    doc="(d/da)^order of the regularised lower incomplete gamma function.",
)  # fmt: skip


def gammainc_grad_a(a: TensorBase | float, x: TensorBase | float) -> TensorBase:
    """Derivative of ``gammainc(a, x)`` in `a`.

    Accurate to about 1e-13 relative, in the tails as well. Differentiable in both arguments, once
    more in `a`.
    """
    return apply(_GAMMAINC_GRAD_A, shape_operands("gammainc_grad_a", a, x), {"order": 1})
