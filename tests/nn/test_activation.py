"""Activations against their formulas, their limits, and the modules that hold their settings."""

import math

import numpy as np
import pytest
from scipy import special, stats

import probtorch.nn as nn
import probtorch.nn.functional as F
from probtorch.core.rng import manual_seed
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import zeros
from probtorch.tensor import tensor
from probtorch.testing import assert_close

X = np.linspace(-7.3, 7.1, 41)


def elu(x, alpha=1.0):
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


FORMULAS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "rrelu": lambda x: np.where(x > 0, x, x * (1 / 8 + 1 / 3) / 2),
    "elu": elu,
    "celu": elu,
    "selu": lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772),
    "gelu": lambda x: x * stats.norm.cdf(x),
    "silu": lambda x: x * special.expit(x),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "sigmoid": special.expit,
    "logsigmoid": special.log_expit,
    "tanh": np.tanh,
    "tanhshrink": lambda x: x - np.tanh(x),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hardshrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "softshrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
}
MODULES = {
    name: getattr(nn, cls)()
    for name, cls in zip(
        FORMULAS,
        (
            "ReLU ReLU6 LeakyReLU RReLU ELU CELU SELU GELU SiLU Mish Softplus Softsign Sigmoid "
            "LogSigmoid Tanh Tanhshrink Hardtanh Hardsigmoid Hardswish Hardshrink Softshrink"
        ).split(),
        strict=True,
    )
}
IN_PLACE = "relu relu6 leaky_relu elu celu selu silu mish hardtanh hardsigmoid hardswish".split()


@pytest.mark.parametrize("name", FORMULAS)
def test_function_and_module_follow_the_formula(name):
    expected = FORMULAS[name](X)
    assert_close(getattr(F, name)(tensor(X)), expected, rtol=1e-12, atol=1e-13)
    got = MODULES[name].eval()(tensor(X))
    assert_close(got, getattr(F, name)(tensor(X)), rtol=0, atol=0)


@pytest.mark.parametrize("name", FORMULAS)
def test_far_arguments_give_finite_gradients(name):
    x = tensor(np.array([-1e4, -50.0, 50.0, 1e4]), requires_grad=True)
    getattr(F, name)(x).sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_form_overwrites_its_input(name):
    x = tensor(X)
    assert getattr(F, name)(x, inplace=True) is x
    assert_close(x, FORMULAS[name](X), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softplus_is_its_argument_beyond_the_threshold(dtype):
    x = tensor(np.array([20.1, 25.0, 80.0, 300.0], dtype), requires_grad=True)
    y = F.softplus(x)
    y.sum().backward()
    np.testing.assert_array_equal(y.detach().numpy(), x.detach().numpy())
    np.testing.assert_array_equal(x.grad.numpy(), np.ones(4, dtype))


def test_settings_reach_the_function():
    x = tensor(X)
    assert_close(nn.Softplus(2.0, 1.0)(x), np.where(X > 0.5, X, np.log1p(np.exp(2 * X)) / 2))
    assert_close(nn.ELU(0.5)(x), elu(X, 0.5))
    assert_close(nn.CELU(0.5)(x), np.where(X > 0, X, 0.5 * np.expm1(np.minimum(X, 0) / 0.5)))
    assert_close(nn.Hardtanh(-2.0, 3.0)(x), np.clip(X, -2, 3))
    assert_close(nn.Threshold(1.0, 20.0)(x), np.where(X > 1, X, 20))
    inner = math.sqrt(2 / math.pi) * (X + 0.044715 * X**3)
    assert_close(nn.GELU("tanh")(x), 0.5 * X * (1 + np.tanh(inner)), rtol=1e-11)
    with pytest.raises(ArgumentError, match="'none' or 'tanh'"):
        F.gelu(x, "sigmoid")


def test_prelu_learns_one_slope_or_one_per_channel():
    x = tensor(-np.ones((2, 3, 2)))
    m = nn.PReLU(3, dtype=np.float64)
    m(x).sum().backward()
    assert m.weight.grad.tolist() == [-4.0, -4.0, -4.0]
    assert_close(F.prelu(tensor([-2.0]), tensor([0.5])), np.array([-1.0], np.float32))
    assert F.prelu(tensor(-2.0), tensor([0.5])).item() == -1.0
    with pytest.raises(ShapeError, match="1 or 3 slopes"):
        nn.PReLU(2)(x)


def test_random_slopes_lie_between_their_bounds():
    manual_seed(0)
    m = nn.RReLU(0.2, 0.4)
    y = m(tensor(-np.ones(1000))).numpy()
    assert -0.4 < y.min() < -0.39 and -0.21 < y.max() < -0.2
    assert_close(m.eval()(tensor([-1.0])), np.array([-0.3], np.float32))


def test_softmax_family():
    x = np.random.default_rng(0).standard_normal((3, 4))
    t = tensor(x)
    assert_close(nn.Softmax(1)(t), special.softmax(x, 1), rtol=1e-12)
    assert_close(nn.Softmin(0)(t), special.softmax(-x, 0), rtol=1e-12)
    assert_close(nn.LogSoftmax(1)(t), special.log_softmax(x, 1), rtol=1e-12)
    assert F.softmax(tensor([1, 2]), 0, dtype=np.float64).dtype == np.float64
    image = x.reshape(1, 3, 2, 2)
    assert_close(nn.Softmax2d()(tensor(image)), special.softmax(image, 1), rtol=1e-12)
    with pytest.raises(ShapeError, match="Softmax2d"):
        nn.Softmax2d()(t)


def test_softmax_without_dim_warns_and_chooses_as_pytorch_does():
    x = np.random.default_rng(0).standard_normal((3, 4))
    with pytest.warns(UserWarning, match="pass dim="):
        got = F.softmax(tensor(x))
    assert_close(got, special.softmax(x, 1), rtol=1e-12)


def test_glu_gates_one_half_with_the_other():
    x = np.random.default_rng(0).standard_normal((3, 4))
    assert_close(nn.GLU()(tensor(x)), x[:, :2] * special.expit(x[:, 2:]), rtol=1e-12)
    with pytest.raises(ShapeError, match="an even size"):
        F.glu(tensor(x), 0)


def test_gumbel_softmax_draws_categories_with_their_probabilities():
    manual_seed(1)
    p = np.array([0.1, 0.2, 0.7])
    logits = tensor(np.log(p) + zeros(20_000, 3, dtype=np.float64).numpy(), requires_grad=True)
    y = F.gumbel_softmax(logits, 0.5, hard=True)
    assert_close(y.sum(-1).detach(), np.ones(20_000), atol=1e-12)
    # Five standard errors: 5 * sqrt(0.21 / 20000) = 0.016.
    assert np.abs(y.detach().numpy().mean(0) - p).max() < 0.016
    (y * tensor([0.0, 1.0, 2.0])).sum().backward()
    assert np.abs(logits.grad.numpy()).sum() > 0
    soft = F.gumbel_softmax(logits.detach(), 0.5)
    assert_close(soft.sum(-1), np.ones(20_000), rtol=1e-12)


def test_loop_of_the_promenade_ends_at_256():
    x, count = tensor(np.full((2, 2), 2.0)), 0
    while x.sum() < 100:
        x, count = nn.ReLU()(x**2), count + 1
    assert (x.tolist(), count) == ([[256.0, 256.0], [256.0, 256.0]], 3)
