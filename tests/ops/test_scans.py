"""Scans where they are hard: zeros in products, infinite prefixes, ties and nan in extremes."""

import math

import numpy as np
import pytest
import scipy.integrate

from probtorch.autograd import grad
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.scans import (
    cummax,
    cummin,
    cumprod,
    cumulative_trapezoid,
    diff,
    linear_recurrence,
    logcumsumexp,
    trapezoid,
)
from probtorch.tensor import tensor
from probtorch.testing.compare import assert_close
from tests.derivatives import gradcheck, gradgradcheck

RNG = np.random.default_rng(8)
X = RNG.standard_normal((3, 5))


def leaf(x):
    return tensor(np.asarray(x, np.float64), requires_grad=True)


@pytest.mark.parametrize(
    "x, expected",
    # The sum of all products x_0 ... x_j, differentiated by hand.
    [
        ([2.0, 0.0, 3.0], [1.0, 8.0, 0.0]),
        ([0.0, 0.0, 3.0], [1.0, 0.0, 0.0]),
        ([2.0, 3.0, 0.0], [4.0, 2.0, 6.0]),
    ],
    ids=str,
)
def test_cumprod_has_an_exact_gradient_with_zeros(x, expected):
    x = leaf(x)
    assert grad(cumprod(x, 0).sum(), [x])[0].tolist() == expected


def test_cumprod_has_an_exact_hessian_with_two_zeros():
    # The last product is x0 x1 x2; its only second derivative that survives x0 = x1 = 0 is d01 =
    # x2.
    x = leaf([0.0, 0.0, 3.0])
    (g,) = grad(cumprod(x, 0)[2], [x], create_graph=True)
    hessian = [grad(g[i], [x], retain_graph=True)[0].tolist() for i in range(3)]
    assert hessian == [[0.0, 3.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_cumprod_of_integers_and_booleans_counts_in_int64():
    assert cumprod(tensor([True, True, False]), 0).tolist() == [1, 1, 0]
    assert cumprod(tensor(3.0), 0).item() == 3.0


def test_logcumsumexp_with_an_infinite_prefix_has_gradient_0_there():
    x = leaf([-math.inf, -math.inf, 0.0])
    y = logcumsumexp(x, 0)
    assert y.tolist() == [-math.inf, -math.inf, 0.0]
    assert grad(y[2], [x])[0].tolist() == [0.0, 0.0, 1.0]


def test_logcumsumexp_reaching_infinity_keeps_its_gradient():
    x = leaf([0.0, math.inf, 1.0])
    y = logcumsumexp(x, 0)
    assert y.tolist() == [0.0, math.inf, math.inf]
    assert grad(y[2], [x])[0].tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("spread", [1.0, 800.0])
def test_logcumsumexp_neither_overflows_nor_loses_its_gradient(spread):
    x = leaf(spread * X)
    y = logcumsumexp(x, 1)
    assert_close(y, np.logaddexp.accumulate(spread * X, 1), rtol=1e-14)
    assert_close(grad(y[:, -1].sum(), [x])[0].sum(1), np.ones(3), rtol=1e-12)


@pytest.mark.parametrize("fn", [cumprod, logcumsumexp], ids=["cumprod", "logcumsumexp"])
def test_scans_differentiate_twice_along_either_dim(fn):
    for dim in (0, 1):
        assert gradcheck(lambda x, dim=dim: fn(x, dim), (leaf(X),))
        assert gradgradcheck(lambda x, dim=dim: fn(x, dim), (leaf(X),))


def test_linear_recurrence_is_an_autoregression():
    a, b = leaf(0.9), leaf(X)
    y = linear_recurrence(a, b, 1)
    expected = np.zeros((3, 5))
    for j in range(5):
        expected[:, j] = 0.9 * expected[:, j - 1] + X[:, j] if j else X[:, j]
    assert_close(y, expected, rtol=1e-14)
    assert gradcheck(lambda s, t: linear_recurrence(s, t, 1), (a, b))
    assert gradgradcheck(lambda s, t: linear_recurrence(s, t, 1), (a, b))
    with pytest.raises(ShapeError, match="at least one dim"):
        linear_recurrence(a, leaf(1.0))


@pytest.mark.parametrize("dim", [0, 1])
def test_running_extremes_agree_with_numpy_and_point_at_their_elements(dim):
    for fn, ufunc in ((cummax, np.maximum), (cummin, np.minimum)):
        values, index = fn(tensor(X), dim)
        np.testing.assert_array_equal(values.numpy(), ufunc.accumulate(X, dim))
        np.testing.assert_array_equal(np.take_along_axis(X, index.numpy(), dim), values.numpy())


def test_running_extremes_prefer_the_last_of_equals_and_keep_nan():
    values, index = cummax(tensor([1.0, 3.0, 3.0, 2.0, math.nan, 9.0]), 0)
    np.testing.assert_array_equal(values.numpy(), [1.0, 3.0, 3.0, 3.0, math.nan, math.nan])
    assert index.tolist() == [0, 1, 2, 2, 4, 4]
    assert [t.item() for t in cummin(tensor(2.0), 0)] == [2.0, 0]


def test_running_extremes_send_the_gradient_to_the_elements_chosen():
    x = leaf([1.0, 3.0, 2.0])
    assert grad(cummax(x, 0)[0].sum(), [x])[0].tolist() == [1.0, 2.0, 0.0]


@pytest.mark.parametrize("n", [0, 1, 3, 9])
@pytest.mark.parametrize("dim", [0, 1])
def test_diff_agrees_with_numpy(n, dim):
    np.testing.assert_allclose(diff(tensor(X), n, dim).numpy(), np.diff(X, n, dim), atol=1e-13)


def test_diff_joins_ends_and_compares_booleans():
    x = tensor([1, 4, 9])
    assert diff(x, prepend=tensor([0]), append=tensor([16])).tolist() == [1, 3, 5, 7]
    assert diff(tensor([True, True, False])).tolist() == [False, True]
    with pytest.raises(ArgumentError, match="n >= 0 and at least one dim"):
        diff(x, -1)


@pytest.mark.parametrize("dim", [0, 1])
def test_trapezoids_agree_with_scipy(dim):
    points = np.sort(RNG.uniform(size=X.shape[dim]))
    for x, dx in ((None, 0.5), (points, 1.0)):
        t = None if x is None else tensor(x)
        total = scipy.integrate.trapezoid(X, x, dx=dx, axis=dim)
        running = scipy.integrate.cumulative_trapezoid(X, x, dx=dx, axis=dim)
        assert_close(trapezoid(tensor(X), t, dx=dx, dim=dim), total, rtol=1e-12, atol=1e-14)
        assert_close(
            cumulative_trapezoid(tensor(X), t, dx=dx, dim=dim), running, rtol=1e-12, atol=1e-14
        )


def test_methods_of_tensor_are_the_functions():
    x = tensor([1.0, 2.0, 3.0])
    assert x.cumprod(0).tolist() == [1.0, 2.0, 6.0] and x.diff().tolist() == [1.0, 1.0]
    assert x.cummax(0)[0].tolist() == [1.0, 2.0, 3.0]
