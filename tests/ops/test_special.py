"""Special functions where they are hard: tails, edges, cancellation, derivatives in the shapes.

Values and first derivatives in the ordinary range are swept in tests/contracts/test_every_op.py.
"""

import math

import mpmath as mp
import numpy as np
import pytest
import scipy.special

from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.core.dtype import float32, float64
from probtorch.errors import ArgumentError, AutogradError, NotDifferentiableError
from probtorch.ops.special import (
    beta_kernel,
    betainc,
    betaln,
    digamma,
    digamma_difference,
    entr,
    erfcx,
    gamma_log_implicit,
    gammainc,
    gammainc_grad_a,
    gammaincc,
    i0,
    i0e,
    i1,
    lgamma,
    lgamma_difference,
    log1mexp,
    log_ndtr,
    logit,
    multigammaln,
    ndtr,
    ndtri,
    polygamma,
    sinc,
    xlog1py,
    xlogy,
    zeta,
)
from probtorch.ops.special.incomplete_beta import beta_density
from probtorch.ops.special.incomplete_gamma import gamma_density
from probtorch.tensor import tensor
from probtorch.testing.compare import assert_close

mp.mp.dps = 30


def leaf(x):
    return tensor(x, dtype=float64, requires_grad=True)


def slope(fn, x):
    """First derivative at a number, as a number."""
    x = leaf(x)
    return grad(fn(x), [x])[0].item()


def curvature(fn, x):
    """Second derivative at a number, as a number."""
    x = leaf(x)
    (g,) = grad(fn(x), [x], create_graph=True)
    return grad(g, [x])[0].item()


def near(expected, rtol):
    return pytest.approx(float(expected), rel=rtol, abs=0.0)


# -------------------------------------------------------------------------------------------- gamma


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("x", [1e-3, 0.7, 3.0, 1e4])
def test_polygamma_and_its_derivative_agree_with_mpmath(n, x):
    assert polygamma(n, leaf(x)).item() == near(mp.polygamma(n, x), 1e-13)
    assert slope(lambda t: polygamma(n, t), x) == near(mp.polygamma(n + 1, x), 1e-13)


def test_trigamma_of_many_numbers_agrees_with_mpmath():
    x = np.concatenate([10.0 ** np.linspace(-8, 15, 120), [0.5, 1.0, 1.4616321449683622, 30.0]])
    want = np.array([float(mp.polygamma(1, mp.mpf(v))) for v in x])
    np.testing.assert_allclose(polygamma(1, tensor(x)).numpy(), want, rtol=1e-15, atol=0)
    single = polygamma(1, tensor(x[60:].astype(np.float32))).numpy()
    exact = [float(mp.polygamma(1, mp.mpf(float(v)))) for v in x[60:].astype(np.float32)]
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, np.float32(exact), rtol=1.3e-7)


def test_trigamma_of_many_numbers_is_what_it_is_of_one_at_poles_and_ends():
    ends = [0.0, -1.0, -1.5, math.nan, math.inf, -math.inf, 5e-324]
    many = polygamma(1, tensor(np.array([*ends, *np.linspace(0.1, 9.0, 100)]))).numpy()
    single = [polygamma(1, tensor(np.array(x))).item() for x in ends]
    np.testing.assert_array_equal(many[: len(ends)], single)
    few = polygamma(1, tensor(np.array([math.inf, 5e-324, 1e-150, *[1.0] * 70]))).numpy()
    np.testing.assert_allclose(few[:3], [0.0, math.inf, 1e300], rtol=1e-15)


@pytest.mark.parametrize("order", [-1, 1.5, True, "1"], ids=repr)
def test_polygamma_refuses_what_is_no_order(order):
    with pytest.raises(
        ArgumentError, match=r"expected: an integer order(.*\n)+.*got:(.*\n)+.*fix:"
    ):
        polygamma(order, tensor(1.0))


def test_multigammaln_is_the_log_of_the_product_of_gammas():
    a = np.array([[2.5, 3.0], [10.0, 400.0]])
    expected = scipy.special.multigammaln(a, 4)
    assert_close(multigammaln(tensor(a), 4), expected, rtol=1e-13)
    x = leaf(a)
    (g,) = grad(multigammaln(x, 4).sum(), [x])
    assert_close(g, sum(scipy.special.psi(a - 0.5 * i) for i in range(4)), rtol=1e-13)
    with pytest.raises(ArgumentError, match="dimension p >= 1"):
        multigammaln(tensor(a), 0)


def test_zeta_is_differentiable_in_its_second_argument():
    assert slope(lambda q: zeta(2.5, q), 1.7) == near(-2.5 * mp.zeta(3.5, 1.7), 1e-13)


@pytest.mark.parametrize(
    "x, step", [(1e7, 20.0), (1e12, 0.5), (30.0, 1e-6), (2.0, 3.0), (11.0, -10.5)]
)
def test_differences_of_lgamma_and_digamma_do_not_cancel(x, step):
    expected = mp.loggamma(mp.mpf(x) + step) - mp.loggamma(x)
    assert lgamma_difference(leaf(x), leaf(step)).item() == near(expected, 1e-12)
    expected = mp.digamma(mp.mpf(x) + step) - mp.digamma(x)
    assert digamma_difference(leaf(x), leaf(step)).item() == near(expected, 1e-12)
    assert slope(lambda t: lgamma_difference(t, step), x) == near(expected, 1e-12)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("step", [0.7, -6.3, 11.4])
@pytest.mark.parametrize("x", [-2.5, -7.75, 3.25])
def test_differences_hold_below_0(x, step, compiled):
    how = compile if compiled else lambda fn: fn
    sizes = [mp.log(abs(mp.gamma(t))) for t in (mp.mpf(x) + step, mp.mpf(x))]
    slopes = [mp.digamma(t) for t in (mp.mpf(x) + step, mp.mpf(x))]
    values = leaf([x, 2.0]), leaf([step, 1.5])  # beside a positive one
    assert how(lgamma_difference)(*values)[0].item() == near(sizes[0] - sizes[1], 1e-12)
    assert how(digamma_difference)(*values)[0].item() == near(slopes[0] - slopes[1], 1e-12)
    assert slope(lambda t: lgamma_difference(t, step), x) == near(slopes[0] - slopes[1], 1e-12)


def test_difference_of_lgammas_keeps_float32_digits_where_subtraction_has_none():
    x, step = tensor(1e7, dtype=float32), tensor(20.0, dtype=float32)
    expected = float(mp.loggamma(1e7 + 20) - mp.loggamma(1e7))
    assert abs((lgamma(x + step) - lgamma(x)).item() - expected) > 1.0
    assert lgamma_difference(x, step).item() == near(expected, 1e-6)


@pytest.mark.parametrize(
    "a, b, value",
    [(1e20, 3.0, -137.46196), (3.0, 1e20, -137.46196), (1e7, 1e7, None), (1e-8, 2.0, None)],
)
def test_betaln_holds_for_arguments_of_very_different_size(a, b, value):
    with mp.workdps(60):
        a_, b_ = mp.mpf(a), mp.mpf(b)
        expected = mp.loggamma(a_) + mp.loggamma(b_) - mp.loggamma(a_ + b_)
        derivative = mp.digamma(a_) - mp.digamma(a_ + b_)
    assert betaln(leaf(a), leaf(b)).item() == near(expected, 1e-13)
    assert slope(lambda t: betaln(t, b), a) == near(derivative, 1e-12)
    if value is not None:
        assert betaln(leaf(a), leaf(b)).item() == near(value, 1e-7)


@pytest.mark.parametrize("run", [lambda fn: fn, compile], ids=["eager", "compiled"])
def test_slopes_of_betaln_are_right_below_zero(run):
    a = [1.5, 30.2, -3.3, -20.5, 1e-3, 1e8, 2.5, 0.0625]
    b = [-13.2, -12.7, 2.0, -7.3, -5.3, -0.5, 3.5, -200.25]

    def of(a, b):
        first = grad(betaln(a, b).sum(), [a, b], create_graph=True)
        return *first, grad(first[0].sum(), [b])[0]

    fn = run(of)
    for x, y in ((a, b), (b, a)):
        fn(leaf(x), leaf(y))  # once eagerly
        in_x, in_y, mixed = fn(leaf(x), leaf(y))
        points = [(mp.mpf(p), mp.mpf(q)) for p, q in zip(x, y, strict=True)]
        expected = [mp.psi(0, p) - mp.psi(0, p + q) for p, q in points]
        assert in_x.tolist() == [near(e, 1e-11) for e in expected]
        expected = [mp.psi(0, q) - mp.psi(0, p + q) for p, q in points]
        assert in_y.tolist() == [near(e, 1e-11) for e in expected]
        assert mixed.tolist() == [near(-mp.psi(1, p + q), 1e-11) for p, q in points]


# ------------------------------------------------------------------------------- normal, logarithms


def test_normal_tails_agree_with_mpmath():
    assert ndtr(leaf(-10.0)).item() == near(mp.ncdf(-10), 1e-13)
    assert log_ndtr(leaf(-40.0)).item() == near(mp.log(mp.ncdf(-40)), 1e-14)
    assert ndtri(leaf(1e-20)).item() == near(-9.262340089798408, 1e-12)


@pytest.mark.parametrize("x", [-1e8, -1e3, -40.0, -3.0, 0.5, 8.0, 40.0])
def test_slope_of_log_ndtr_is_accurate_in_both_tails(x):
    with mp.workdps(60):
        z = mp.mpf(x)
        density = mp.npdf(z)
        # Below -1e4 the continued fraction of the Mills ratio: phi / Phi = t + 1/t - 2/t^3 + ...
        hazard = density / mp.ncdf(z) if x > -1e4 else -z - 1 / z + 2 / z**3
    assert slope(log_ndtr, x) == near(hazard, 1e-13)
    bound = 1e-12 * max(1.0, x * x)
    assert curvature(log_ndtr, x) == pytest.approx(
        float(-hazard * (z + hazard)), rel=bound, abs=1e-300
    )


def test_erfcx_neither_underflows_nor_overflows_on_the_right():
    assert erfcx(leaf(1e10)).item() == near(1.0 / (1e10 * math.sqrt(math.pi)), 1e-14)


def test_xlogy_at_the_origin_is_0_with_derivatives_0():
    x, y = leaf(0.0), leaf(0.0)
    assert [g.item() for g in grad(xlogy(x, y), [x, y])] == [0.0, 0.0]
    y = leaf(-1.0)
    assert [g.item() for g in grad(xlog1py(x, y), [x, y])] == [0.0, 0.0]
    assert xlogy(leaf(0.0), leaf(math.inf)).item() == 0.0
    assert math.isnan(xlogy(leaf(0.0), leaf(math.nan)).item())


def test_xlogy_of_no_counts_has_its_mixed_derivative():
    # d/dx d/dy x log y = 1/y, also at x = 0, where the value does not depend on y.
    x, y = leaf(0.0), leaf(2.0)
    (g,) = grad(xlogy(x, y), [y], create_graph=True)
    assert grad(g, [x])[0].item() == 0.5


def test_entr_and_logit_at_their_edges():
    assert entr(leaf([0.0, 1.0, -1.0])).tolist() == [0.0, 0.0, -math.inf]
    assert logit(leaf([0.0, 1.0])).tolist() == [-math.inf, math.inf]
    assert_close(logit(tensor([0.0, 1.0]), eps=0.1), logit(tensor([0.1, 0.9])))


@pytest.mark.parametrize("x", [1e-300, 1e-8, 0.6931, 0.6932, 5.0, 700.0])
def test_log1mexp_is_exact_on_both_sides_of_log_2(x):
    with mp.workdps(400):
        expected = mp.log(-mp.expm1(-mp.mpf(x)))
    assert log1mexp(leaf(x)).item() == near(expected, 1e-14)
    assert slope(log1mexp, x) == near(1 / mp.expm1(x), 1e-14)


def test_sinc_is_smooth_at_0():
    assert sinc(leaf(0.0)).item() == 1.0 and slope(sinc, 0.0) == 0.0
    assert curvature(sinc, 0.0) == near(-(math.pi**2) / 3, 1e-14)


@pytest.mark.parametrize("x", [1e-9, 0.1, 0.31, 0.32, 2.0])
def test_derivatives_of_sinc_agree_with_mpmath(x):
    def f(t):
        return mp.sinc(mp.pi * t)

    assert slope(sinc, x) == near(mp.diff(f, x), 1e-12)
    assert curvature(sinc, x) == near(mp.diff(f, x, 2), 1e-11)


def test_bessel_functions_have_scaled_forms_that_do_not_overflow():
    assert i0e(leaf(800.0)).item() == near(mp.besseli(0, 800) * mp.exp(-800), 1e-14)
    assert slope(i0e, 800.0) == near(
        (mp.besseli(1, 800) - mp.besseli(0, 800)) * mp.exp(-800), 1e-11
    )
    # I0'''' = 3/8 at 0: through i1 and iv every derivative at 0 is right.
    x = leaf(0.0)
    derivatives = [i0(x)]
    for _ in range(4):
        derivatives.append(grad(derivatives[-1], [x], create_graph=True)[0])
    assert [d.item() for d in derivatives] == pytest.approx([1.0, 0.0, 0.5, 0.0, 0.375])
    assert curvature(i1, 0.0) == 0.0


# ------------------------------------------------------------------------ incomplete gamma and beta


def tail_integral(height, weight, kinks):
    """Integral of weight(s) exp(height(s)) over s > 0, for a concave height, in 30 digits."""
    end = mp.mpf(1)
    while height(end) > -75:
        end *= 2
    start = mp.mpf(0)
    for _ in range(60):
        middle = (start + end) / 2
        start, end = (middle, end) if height(middle) > -75 else (start, middle)
    points = sorted({end * j / 8 for j in range(9)} | {k for k in kinks if 0 < k < end})
    return mp.quad(lambda s: weight(s) * mp.exp(height(s)), points)


def gamma_derivative(a, x):
    """-dP/da / (x p(x)): the integral over the lighter tail in t = log u, in 30 digits."""
    a, x = mp.mpf(a), mp.mpf(x)
    y, mean = mp.log(x), mp.digamma(a)
    sign = -1 if y < mean else 1
    return sign * tail_integral(
        lambda s: sign * a * s - x * mp.expm1(sign * s),
        lambda s: y + sign * s - mean,
        [-y + j for j in range(-6, 7, 3)],
    )


@pytest.mark.parametrize("a", [1e-3, 0.3, 1.0, 7.5, 1e3, 1e6])
@pytest.mark.parametrize("ratio", [1e-6, 0.5, 0.999, 1.0, 1.01, 20.0])
def test_derivative_of_gammainc_in_the_shape_is_exact_to_eleven_digits(a, ratio):
    x = a * ratio if a > 1.0 else ratio
    assert gamma_log_implicit(leaf(a), leaf(math.log(x))).item() == near(
        gamma_derivative(a, x), 1e-11
    )


@pytest.mark.parametrize(
    "a, x", [(2.0, 1.0), (0.01, 0.3), (50.0, 55.0), (50.0, 5.0), (1e4, 1.01e4)]
)
def test_gradients_of_gammainc_agree_with_mpmath_in_both_arguments(a, x):
    in_a = -gamma_derivative(a, x) * mp.exp(a * mp.log(x) - x - mp.loggamma(a))
    in_x = mp.exp((a - 1) * mp.log(x) - x - mp.loggamma(a))
    for fn, sign in ((gammainc, 1), (gammaincc, -1)):
        t, u = leaf(a), leaf(x)
        ga, gx = grad(fn(t, u), [t, u])
        assert ga.item() == near(sign * in_a, 1e-11)
        assert gx.item() == near(sign * in_x, 1e-12)


def test_gammainc_gradient_has_its_published_value():
    # mpmath: diff(lambda a: gammainc(a, 0, 1, regularized=True), 2).
    assert slope(lambda a: gammainc(a, 1.0), 2.0) == near(-0.276196045702834796791994540694, 1e-13)


@pytest.mark.parametrize("a, x", [(0.7, 0.2), (3.0, 5.0), (40.0, 35.0)])
def test_second_derivatives_of_gammainc_agree_with_differences_in_mpmath(a, x):
    def p(s, t):
        return mp.gammainc(s, 0, t, regularized=True)

    t, u = leaf(a), leaf(x)
    ga, gx = grad(gammainc(t, u), [t, u], create_graph=True)
    assert grad(ga, [t], retain_graph=True)[0].item() == near(
        mp.diff(lambda s: p(s, x), a, 2), 1e-10
    )
    mixed = mp.diff(p, (a, x), (1, 1))
    assert grad(ga, [u], retain_graph=True)[0].item() == near(mixed, 1e-10)
    assert grad(gx, [t])[0].item() == near(mixed, 1e-10)


def test_a_third_derivative_in_the_shape_is_refused():
    a = leaf(2.0)
    (g,) = grad(gammainc(a, 1.0), [a], create_graph=True)
    (g,) = grad(g, [a], create_graph=True)
    with pytest.raises(NotDifferentiableError, match=r"expected: at most two(.*\n)+.*fix:"):
        grad(g, [a])


def test_gammainc_at_the_ends_has_finite_derivatives_in_the_shape():
    a, x = leaf([0.5, 2.0, 2.0]), leaf([0.0, 0.0, 1e300])
    ga, _ = grad(gammainc(a, x).sum(), [a, x])
    assert ga.tolist() == [0.0, 0.0, 0.0]
    assert math.isnan(gammainc_grad_a(leaf(-1.0), leaf(1.0)).item())


@pytest.mark.parametrize("a, x", [(1e6, 1.001e6), (50.0, 40.0), (0.5, 1e-9), (12.0, 100.0)])
def test_gamma_density_keeps_its_digits_for_large_shapes(a, x):
    expected = mp.exp((mp.mpf(a) - 1) * mp.log(x) - x - mp.loggamma(a))
    assert gamma_density(leaf(a), leaf(x)).item() == near(expected, 1e-11)


def beta_derivative(a, b, x, in_a):
    """-dI/da / (x (1 - x) p), or in b: the integral over a tail in the logit, in 30 digits."""
    a, b, x = mp.mpf(a), mp.mpf(b), mp.mpf(x)
    v = mp.log(x / (1 - x))
    mean = mp.digamma(a if in_a else b) - mp.digamma(a + b)

    def soft(u):
        return mp.log1p(mp.exp(u)) if u < 0 else u + mp.log1p(mp.exp(-u))

    def weight(u):
        return -soft(-u if in_a else u) - mean

    sign = -1 if v < mp.log(a / b) else 1
    return sign * tail_integral(
        lambda s: sign * a * s - (a + b) * (soft(v + sign * s) - soft(v)),
        lambda s: weight(v + sign * s),
        [-sign * v + j for j in range(-40, 41, 8)],
    )


@pytest.mark.parametrize(
    "a, b, x",
    [(2.0, 3.0, 0.4), (1e-3, 1e-3, 0.5), (0.01, 50.0, 1e-6), (1e3, 2e3, 0.34), (1e6, 1e6, 0.5003),
     (1e6, 0.5, 0.999999), (5.0, 5.0, 0.01)],
)  # fmt: skip
def test_gradients_of_betainc_agree_with_mpmath_in_all_three_arguments(a, b, x):
    weight = mp.exp(
        a * mp.log(x)
        + b * mp.log1p(-mp.mpf(x))
        + mp.loggamma(mp.mpf(a) + b)
        - mp.loggamma(a)
        - mp.loggamma(b)
    )
    t, u, v = leaf(a), leaf(b), leaf(x)
    ga, gb, gx = grad(betainc(t, u, v), [t, u, v])
    assert ga.item() == near(-weight * beta_derivative(a, b, x, True), 1e-9)
    assert gb.item() == near(-weight * beta_derivative(a, b, x, False), 1e-9)
    assert gx.item() == near(weight / (mp.mpf(x) * (1 - mp.mpf(x))), 1e-9)


def test_betainc_at_the_ends_has_finite_derivatives():
    a, b, x = leaf([2.0, 2.0]), leaf([3.0, 3.0]), leaf([0.0, 1.0])
    for g in grad(betainc(a, b, x).sum(), [a, b, x]):
        assert g.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("a, b, x", [(1e6, 2e6, 0.3333), (20.0, 0.5, 0.99), (11.0, 12.0, 1e-5)])
def test_beta_density_keeps_its_digits_for_large_parameters(a, b, x):
    expected = mp.exp(
        (mp.mpf(a) - 1) * mp.log(x) + (mp.mpf(b) - 1) * mp.log1p(-mp.mpf(x))
        + mp.loggamma(mp.mpf(a) + b) - mp.loggamma(a) - mp.loggamma(b)
    )  # fmt: skip
    assert beta_density(leaf(a), leaf(b), leaf(x)).item() == near(expected, 1e-11)


# ----------------------------------------------------------------------------------------- kernels


def test_second_derivatives_of_kernels_refuse_operands_that_were_changed_in_place():
    a, x = leaf(3.0), leaf(0.3)
    b = leaf(2.0) * 1.0
    (g,) = grad(beta_kernel(a, b, x), [a], create_graph=True)
    b.mul_(0.9)
    with pytest.raises(AutogradError, match="beta_kernel_slope"):
        grad(g, [a])


# ---------------------------------------------------------------------------------- dtypes, numbers


def test_python_numbers_take_the_dtype_of_the_tensor_and_lose_nothing():
    x64, x32 = leaf(0.3), tensor(0.3, requires_grad=True)
    for fn in (lambda x: gammainc(1.1, x), lambda x: betaln(x, 1.1), lambda x: xlogy(x, 1.1)):
        assert fn(x32).dtype == float32 and grad(fn(x32), [x32])[0].dtype == float32
    exact = math.log(1.1)
    assert slope(lambda x: xlogy(x, 1.1), 0.3) == exact
    assert slope(lambda a: gammainc(a, 1.1), 0.3) == near(
        slope(lambda a: gammainc(a, leaf(1.1)), 0.3), 1e-15
    )
    assert digamma(x64).dtype == float64
