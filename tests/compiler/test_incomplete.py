"""Native derivatives of incomplete gamma and beta functions and of von Mises angles, by mpmath."""

import mpmath
import numpy as np
import pytest

from probtorch.compiler.compile import compile
from probtorch.core.dispatch import apply, wrap
from probtorch.ops.special import betainc_grad, gamma_log_implicit, gammainc_grad_a
from probtorch.ops.variates import _ANGLE_SLOPE
from probtorch.tensor import tensor

GAMMA = [(0.01, 1e-30), (0.3, 0.2), (1.0, 3.0), (7.0, 2.0), (40.0, 41.0), (2000.0, 1930.0)]
BETA = [
    (0.02, 16.0, 0.002),
    (1.8, 95.0, 0.022),
    (0.4, 0.2, 0.37),
    (93.0, 0.3, 0.997),
    (300.0, 200.0, 0.61),
]


def native(fn, *arrays):
    """Result of the second call of a compiled function."""
    compiled = compile(fn)
    for _ in range(2):
        out = compiled(*map(wrap, arrays))
    assert compiled.reason is None
    return out.array


def derivative(f, order, at):
    """Derivative by central differences in 120 digits."""
    h = mpmath.mpf(at) * mpmath.mpf(10) ** -30
    if order == 1:
        return (f(at + h) - f(at - h)) / (2 * h)
    return (f(at + h) - 2 * f(at) + f(at - h)) / h**2


def lower_gamma(a, x):
    return mpmath.gammainc(a, 0, x, regularized=True)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("a, x", GAMMA)
def test_gamma_derivatives(a, x, order):
    with mpmath.workdps(120):
        a_, x_ = mpmath.mpf(a), mpmath.mpf(x)
        exact = derivative(lambda s: lower_gamma(s, x_), order, a_)
        weight = mpmath.exp(a_ * mpmath.log(x_) - x_ - mpmath.loggamma(a_))
        ratio = float(-exact / weight)
    got = native(lambda a, y: gamma_log_implicit(a, y, order), np.array(a), np.log(np.array(x)))
    assert float(got) == pytest.approx(ratio, rel=2e-11)
    if order == 1:
        got = native(gammainc_grad_a, np.array(a), np.array(x))
        assert float(got) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("order", [(1, 0), (0, 1), (2, 0), (0, 2)])
@pytest.mark.parametrize("a, b, x", BETA)
def test_beta_derivatives(a, b, x, order):
    with mpmath.workdps(120):
        a_, b_, x_ = map(mpmath.mpf, (a, b, x))

        def function(s):
            shapes = (s, b_) if order[0] else (a_, s)
            return mpmath.betainc(*shapes, 0, x_, regularized=True)

        exact = float(derivative(function, sum(order), a_ if order[0] else b_))
    got = native(lambda *xs: betainc_grad(*xs, order), *map(np.array, (a, b, x)))
    assert float(got) == pytest.approx(exact, rel=1e-10)


def test_edges_have_the_values_of_eager_execution():
    a = np.array([2.0, 2.0, 2.0, -1.0, np.nan, 0.5])
    x = np.array([0.0, np.inf, 1e-320, 1.0, 1.0, np.nan])
    np.testing.assert_array_equal(
        native(gammainc_grad_a, a, x), gammainc_grad_a(wrap(a), wrap(x)).array
    )
    x = np.array([0.0, 1.0, 0.5, 0.5, 0.5, np.nan])
    got = native(lambda a, x: betainc_grad(a, a, x, (1, 0)), a, x)
    np.testing.assert_allclose(got, betainc_grad(wrap(a), wrap(a), wrap(x), (1, 0)).array, 1e-13)


@pytest.mark.parametrize("k", [1e-3, 0.7, 5.0, 300.0, 1e6])
def test_von_mises_angles_turn_as_their_quantiles_do(k):
    compiled = compile(lambda k, x: apply(_ANGLE_SLOPE, (k, x)))
    x = np.array([-3.0, -0.4, 0.0, 0.01, 1.3, 3.1]) / max(1.0, np.sqrt(k))
    for _ in range(2):
        got = compiled(tensor(np.full(6, k)), tensor(x)).numpy()
    assert compiled.reason is None
    with mpmath.workdps(40):
        mean = mpmath.besseli(1, k) / mpmath.besseli(0, k)
        exact = [
            float(
                mpmath.quad(
                    lambda t, b=b: (
                        (mean - mpmath.cos(t)) * mpmath.exp(k * (mpmath.cos(t) - mpmath.cos(b)))
                    ),
                    [0, b / 2, b],
                )
            )
            for b in x
        ]
    np.testing.assert_allclose(got, exact, rtol=1e-9, atol=1e-300)
