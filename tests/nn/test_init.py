"""Initial values: bounds, moments, and the defaults of layers, which are PyTorch's."""

import math
import pickle

import numpy as np
import pytest
from scipy import stats

import probtorch.nn as nn
from probtorch.core.rng import Generator, manual_seed
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import empty
from probtorch.nn import init

# Kolmogorov-Smirnov p-values; at fixed seeds, with 30 tests, 1e-4 fails by chance 3 times in 1000.
LEVEL = 1e-4


def p_value(t, distribution):
    return stats.kstest(t.detach().double().numpy().ravel(), distribution.cdf).pvalue


def uniform(bound):
    return stats.uniform(-bound, 2 * bound)


@pytest.mark.parametrize(
    ("fill", "distribution"),
    [
        (lambda t: init.uniform_(t, -2.0, 3.0), stats.uniform(-2, 5)),
        (lambda t: init.normal_(t, 1.0, 2.0), stats.norm(1, 2)),
        (lambda t: init.trunc_normal_(t, 1.0, 2.0, 0.0, 2.5), stats.truncnorm(-0.5, 0.75, 1, 2)),
        (init.fan_in_, uniform(1 / math.sqrt(60))),
        (lambda t: init.fan_in_(t, 25), uniform(0.2)),
        (lambda t: init.xavier_uniform_(t, 2.0), uniform(2 * math.sqrt(6 / 110))),
        (init.xavier_normal_, stats.norm(0, math.sqrt(2 / 110))),
        (
            lambda t: init.kaiming_uniform_(t, nonlinearity="relu"),
            uniform(math.sqrt(2) * math.sqrt(3 / 60)),
        ),
        (
            lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="tanh"),
            stats.norm(0, 5 / 3 / math.sqrt(50)),
        ),
        (
            lambda t: init.kaiming_uniform_(t, a=math.sqrt(5)),
            uniform(1 / math.sqrt(60)),
        ),
    ],
    ids=(
        "uniform_ normal_ trunc_normal_ fan_in_ fan_in_25 xavier_uniform_ xavier_normal_ "
        "kaiming_uniform_ kaiming_normal_ kaiming_sqrt5"
    ).split(),
)
def test_draws_follow_the_stated_distribution(fill, distribution):
    manual_seed(11)
    t = empty(50, 60)
    assert fill(t) is t
    assert p_value(t, distribution) > LEVEL


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: nn.Linear(30, 400), {"weight": 30, "bias": 30}),
        (lambda: nn.Conv2d(4, 300, (3, 5), groups=2), {"weight": 30, "bias": 30}),
        (lambda: nn.ConvTranspose1d(300, 60, 7, groups=2), {"weight": 210, "bias": 210}),
        (lambda: nn.Bilinear(9, 20, 40), {"weight": 9, "bias": 9}),
        (lambda: nn.GRU(20, 50), {n + "_l0": 50 for n in ("weight_ih", "weight_hh", "bias_ih")}),
        (lambda: nn.LSTMCell(20, 50), {"weight_ih": 50, "weight_hh": 50, "bias_hh": 50}),
    ],
    ids=["Linear", "Conv2d", "ConvTranspose1d", "Bilinear", "GRU", "LSTMCell"],
)
def test_layers_start_uniform_within_one_over_the_root_of_their_inputs(build, expected):
    manual_seed(5)
    parameters = dict(build().named_parameters())
    for name, fan in expected.items():
        assert p_value(parameters[name], uniform(1 / math.sqrt(fan))) > LEVEL, name


def test_layers_with_other_starts():
    manual_seed(6)
    embedding = nn.Embedding(60, 50, padding_idx=-1)
    assert p_value(embedding.weight[:-1], stats.norm()) > LEVEL
    assert not embedding.weight[-1].any()
    attention = nn.MultiheadAttention(30, 2)
    assert p_value(attention.in_proj_weight, uniform(math.sqrt(6 / 120))) > LEVEL
    assert not attention.in_proj_bias.any() and not attention.out_proj.bias.any()
    for layer in (nn.LayerNorm(4), nn.BatchNorm1d(4), nn.GroupNorm(2, 4)):
        assert (layer.weight == 1.0).all() and not layer.bias.any()


@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (7, 2, 3)], ids=str)
def test_orthogonal_rows_or_columns_are(shape):
    manual_seed(1)
    w = init.orthogonal_(empty(shape, dtype=np.float64), 3.0).numpy().reshape(shape[0], -1)
    w = w if w.shape[0] <= w.shape[1] else w.T
    np.testing.assert_allclose(w @ w.T, 9.0 * np.eye(len(w)), atol=1e-12)


def test_identities():
    assert init.eye_(empty(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]
    w = init.dirac_(empty(4, 2, 3), groups=2)
    x = np.random.default_rng(0).standard_normal((1, 4, 6)).astype(np.float32)
    y = nn.functional.conv1d(nn.Parameter(x), w, padding=1, groups=2)
    np.testing.assert_array_equal(y.detach().numpy(), x)


def test_sparse_columns_have_their_zeros():
    manual_seed(2)
    w = init.sparse_(empty(10, 5), 0.25).numpy()
    assert ((w == 0).sum(0) == 3).all()


def test_constants():
    assert init.constant_(empty(2), 3.5).tolist() == [3.5, 3.5]
    assert init.ones_(empty(2)).tolist() == [1.0, 1.0]
    assert init.zeros_(empty(2, dtype=np.int64)).tolist() == [0, 0]


def test_own_generator_leaves_the_default_one_alone():
    manual_seed(3)
    a = init.normal_(empty(3)).tolist()
    manual_seed(3)
    init.normal_(empty(5), generator=Generator(1))
    assert init.normal_(empty(3)).tolist() == a


def test_recipes_repeat_and_travel():
    recipe = init.kaiming_normal(mode="fan_out", nonlinearity="relu")
    assert repr(recipe) == "kaiming_normal(mode='fan_out', nonlinearity='relu')"
    manual_seed(4)
    a = recipe(empty(3, 3)).tolist()
    manual_seed(4)
    assert pickle.loads(pickle.dumps(recipe))(empty(3, 3)).tolist() == a


@pytest.mark.parametrize(
    ("name", "param", "gain"),
    [
        ("linear", None, 1.0),
        ("conv2d", None, 1.0),
        ("tanh", None, 5 / 3),
        ("relu", None, math.sqrt(2)),
        ("leaky_relu", 2.0, math.sqrt(0.4)),
        ("leaky_relu", None, math.sqrt(2 / 1.0001)),
        ("selu", None, 0.75),
    ],
)
def test_gain(name, param, gain):
    assert init.calculate_gain(name, param) == pytest.approx(gain)


def test_errors():
    with pytest.raises(ArgumentError, match="one of"):
        init.calculate_gain("sine")
    with pytest.raises(ShapeError, match="at least 2 dims"):
        init.xavier_uniform_(empty(3))
    with pytest.raises(ArgumentError, match="'fan_in' or 'fan_out'"):
        init.kaiming_normal_(empty(3, 3), mode="fan")
    with pytest.raises(ShapeError, match="a matrix"):
        init.eye_(empty(3))
    with pytest.raises(ShapeError, match="divisible by groups"):
        init.dirac_(empty(3, 2, 3), groups=2)
