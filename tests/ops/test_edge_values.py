"""Values and gradients at the edges: infinities, zeros, ties and kinks.

The cases are rows N01 to N18 of the reliability table; what is expected is a
limit or a stated convention (even split on ties, 0 for abs, relu, norm and std at 0).
"""

import math
import pickle

import numpy as np
import pytest

import probtorch
from probtorch.autograd import grad
from probtorch.testing import assert_close

INF = math.inf


def leaf(*values):
    return probtorch.tensor(list(values), dtype=probtorch.float64, requires_grad=True)


def value_and_gradient(fn, *values):
    x = leaf(*values)
    out = fn(x)
    (g,) = grad(out.sum(), x)
    return out.tolist(), g.tolist()


def test_where_around_a_bad_branch_needs_a_safe_argument():
    # N01: at op level nan may come through the branch not taken; the documented cure works.
    safe = lambda x: probtorch.where(x > 0, probtorch.sqrt(probtorch.where(x > 0, x, 1.0)), x)
    assert value_and_gradient(safe, -1.0, 4.0) == ([-1.0, 2.0], [1.0, 0.25])


@pytest.mark.parametrize(
    "values, value, gradient",
    [
        ((-INF, -INF), -INF, [0.0, 0.0]),
        ((INF, 0.0), INF, [1.0, 0.0]),
        ((-INF, 3.0), 3.0, [0.0, 1.0]),
        ((1000.0, 1000.0), 1000.0 + math.log(2.0), [0.5, 0.5]),
    ],
    ids=str,
)
def test_logsumexp_of_infinities(values, value, gradient):
    got, slopes = value_and_gradient(lambda x: probtorch.logsumexp(x, 0), *values)
    assert got == pytest.approx(value)
    assert slopes == pytest.approx(gradient)


def test_logsumexp_of_nothing_is_minus_infinity():
    assert probtorch.logsumexp(probtorch.zeros(0, 2), 0).tolist() == [-INF, -INF]


@pytest.mark.parametrize(
    "x, y, value, slopes",
    [
        (-INF, -INF, -INF, (0.0, 0.0)),
        (INF, 0.0, INF, (1.0, 0.0)),
        (-INF, 2.0, 2.0, (0.0, 1.0)),
        (5.0, 5.0, 5.0 + math.log(2.0), (0.5, 0.5)),
    ],
    ids=str,
)
def test_logaddexp_of_infinities(x, y, value, slopes):
    a, b = leaf(x), leaf(y)
    out = probtorch.logaddexp(a, b)
    ga, gb = grad(out.sum(), [a, b])
    assert out.item() == pytest.approx(value)
    assert (ga.item(), gb.item()) == slopes


def test_logcumsumexp_with_a_prefix_of_minus_infinity():
    value, slopes = value_and_gradient(lambda x: probtorch.logcumsumexp(x, 0)[2:], -INF, -INF, 0.0)
    assert value == [0.0]
    assert slopes == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("p", [1, 2, 3, 1.5, INF, "fro"], ids=str)
def test_norm_at_zero_has_gradient_zero(p):
    assert value_and_gradient(lambda x: probtorch.norm(x, p), 0.0, 0.0) == (0.0, [0.0, 0.0])


def test_norm_agrees_with_numpy():
    x = np.array([[1.0, -2.0], [3.0, 0.5]])
    for p in (0, 1, 2, 3.5, INF, -INF):
        got = probtorch.norm(probtorch.from_numpy(x), p, 1)
        assert_close(got, np.linalg.norm(x, p, axis=1))


@pytest.mark.parametrize(
    "base, exponent, slopes",
    [(0.0, 0.0, (0.0, 0.0)), (0.0, 2.0, (0.0, 0.0)), (2.0, 3.0, (12.0, 8.0 * math.log(2.0)))],
    ids=str,
)
def test_pow_at_zero(base, exponent, slopes):
    x, y = leaf(base), leaf(exponent)
    gx, gy = grad((x**y).sum(), [x, y])
    assert (gx.item(), gy.item()) == pytest.approx(slopes)


def test_pow_of_a_negative_base():
    x, y = leaf(-2.0), leaf(3.0)
    gx, gy = grad((x**y).sum(), [x, y])
    assert gx.item() == 12.0
    assert math.isnan(gy.item())


def test_second_derivative_of_the_first_power_is_zero_at_zero():
    x = leaf(0.0)
    (first,) = grad((x**1.0).sum(), x, create_graph=True)
    (second,) = grad(first.sum(), x, materialize_grads=True)
    assert (first.item(), second.item()) == (1.0, 0.0)


def test_clamp_passes_the_gradient_at_its_bounds():
    _, slopes = value_and_gradient(lambda x: probtorch.clamp(x, 0.0, 1.0), -1.0, 0.0, 0.5, 1.0, 2.0)
    assert slopes == [0.0, 1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: probtorch.amax(x),
        lambda x: -probtorch.amin(-x),
        lambda x: probtorch.maximum(x[0], x[1]) + 0.0 * x[2],
    ],
    ids=["amax", "amin", "maximum"],
)
def test_ties_share_the_gradient_evenly(fn):
    assert value_and_gradient(fn, 2.0, 2.0, 1.0) == (2.0, [0.5, 0.5, 0.0])


def test_abs_and_relu_at_zero_have_slope_zero():
    assert value_and_gradient(probtorch.abs, 0.0)[1] == [0.0]
    assert value_and_gradient(probtorch.relu, 0.0, -0.0)[1] == [0.0, 0.0]


def test_softplus_and_log_sigmoid_far_out():
    assert value_and_gradient(probtorch.softplus, -1000.0, 1000.0) == ([0.0, 1000.0], [0.0, 1.0])
    assert value_and_gradient(probtorch.log_sigmoid, -1000.0, 1000.0) == (
        [-1000.0, 0.0],
        [1.0, 0.0],
    )


def test_second_derivative_of_softplus_decays_smoothly():
    x = leaf(15.0, 25.0, 35.0)
    (first,) = grad(probtorch.softplus(x).sum(), x, create_graph=True)
    (second,) = grad(first.sum(), x)
    # sigmoid'(x) = exp(-x) / (1 + exp(-x))^2: no step where implementations switch to the identity.
    expected = np.exp(-x.detach().numpy()) / (1 + np.exp(-x.detach().numpy())) ** 2
    assert_close(second, expected, rtol=1e-2)


def test_softmax_of_minus_infinities_is_nan_as_documented():
    assert np.isnan(probtorch.softmax(probtorch.tensor([-INF, -INF]), 0).numpy()).all()
    assert probtorch.softmax(probtorch.tensor([-INF, 0.0]), 0).tolist() == [0.0, 1.0]


def test_xlogy_at_the_origin():
    x, y = leaf(0.0), leaf(0.0)
    out = probtorch.xlogy(x, y)
    gx, gy = grad(out.sum(), [x, y])
    assert (out.item(), gx.item(), gy.item()) == (0.0, 0.0, 0.0)


def test_atan2_at_the_origin():
    y, x = leaf(0.0), leaf(0.0)
    gy, gx = grad(probtorch.atan2(y, x).sum(), [y, x])
    assert (gy.item(), gx.item()) == (0.0, 0.0)


def test_std_of_constants_has_gradient_zero():
    assert value_and_gradient(probtorch.std, 3.0, 3.0, 3.0) == (0.0, [0.0, 0.0, 0.0])


def test_std_of_one_element_is_nan_with_a_warning():
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert math.isnan(probtorch.tensor([3.0]).std().item())


@pytest.mark.parametrize(
    "values, gradient",
    [
        ((0.0, 2.0, 3.0), [6.0, 0.0, 0.0]),
        ((0.0, 2.0, 0.0), [0.0, 0.0, 0.0]),
        ((1.0, 2.0, 3.0), [6.0, 3.0, 2.0]),
        ((4.0,), [1.0]),
    ],
    ids=str,
)
def test_gradient_of_prod_is_exact_with_zeros(values, gradient):
    assert value_and_gradient(lambda x: x.prod(), *values)[1] == gradient


def test_hessian_of_prod_is_exact_with_two_zeros():
    h = probtorch.func.hessian(lambda x: x.prod())(probtorch.tensor([0.0, 5.0, 0.0]))
    assert h.tolist() == [[0.0, 0.0, 5.0], [0.0, 0.0, 0.0], [5.0, 0.0, 0.0]]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 33])
def test_gradient_of_prod_for_every_length(n):
    x = np.random.default_rng(n).uniform(0.5, 1.5, (2, n))
    t = probtorch.tensor(x, requires_grad=True)
    (g,) = grad(t.prod(1).sum(), t)
    assert_close(g, np.prod(x, axis=1, keepdims=True) / x)


def test_gradient_of_cumprod_is_exact_with_a_zero():
    assert value_and_gradient(lambda x: probtorch.cumprod(x, 0), 0.0, 2.0, 3.0)[1] == [
        9.0,
        0.0,
        0.0,
    ]


def test_nan_wins_in_extremes():
    x = probtorch.tensor([1.0, math.nan, 3.0])
    assert math.isnan(x.amax().item()) and math.isnan(x.amin().item())
    assert math.isnan(probtorch.maximum(x[1], x[0]).item())
    assert x.argmax().item() == 1


def test_sum_of_many_float32_ones_is_exact():
    assert probtorch.ones(2**25).sum().item() == 2.0**25


@pytest.mark.parametrize("name", ["tanh", "exp", "softplus", "add", "lgamma"])
def test_elementwise_functions_pickle_by_name(name):
    function = getattr(probtorch, name)
    assert pickle.loads(pickle.dumps(function)) is function
