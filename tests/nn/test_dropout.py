"""Dropout: how often, how much, when, and from which draws."""

import numpy as np
import pytest

import probtorch.nn as nn
import probtorch.nn.functional as F
from probtorch.core.rng import manual_seed
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import ones
from probtorch.ops.sampling import randn


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_stated_share_is_dropped_and_the_rest_scaled(p):
    manual_seed(0)
    x = ones(40_000, requires_grad=True)
    y = nn.Dropout(p)(x)
    kept = y.detach().numpy() != 0
    np.testing.assert_allclose(y.detach().numpy()[kept], 1 / (1 - p), rtol=1e-6)
    # Five standard errors of a share of 40 000.
    assert abs(kept.mean() - (1 - p)) < 5 * np.sqrt(p * (1 - p) / 40_000)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())


def test_evaluation_and_probability_zero_return_the_input():
    x = ones(3)
    assert nn.Dropout(0.5).eval()(x) is x
    assert nn.Dropout(0.0)(x) is x
    assert F.dropout(x, 0.5, training=False) is x
    assert nn.Dropout(1.0)(x).tolist() == [0.0, 0.0, 0.0]


def test_seed_fixes_what_is_dropped():
    masks = []
    for seed in (1, 1, 2):
        manual_seed(seed)
        masks.append(nn.Dropout()(ones(50)).tolist())
    assert masks[0] == masks[1] != masks[2]


@pytest.mark.parametrize(
    ("n", "shape"), [(1, (20, 30, 4)), (2, (20, 30, 3, 2)), (3, (30, 2, 2, 2))]
)
def test_channels_are_dropped_whole(n, shape):
    manual_seed(3)
    y = getattr(nn, f"Dropout{n}d")(0.4)(ones(*shape)).numpy()
    flat = y.reshape(*shape[: len(shape) - n], -1)
    assert (flat == flat[..., :1]).all()
    assert 0 < (flat[..., 0] == 0).mean() < 1
    with pytest.raises(ShapeError, match="channels before"):
        getattr(nn, f"Dropout{n}d")()(ones(3))


def test_alpha_dropout_keeps_mean_and_variance():
    manual_seed(4)
    y = nn.AlphaDropout(0.3)(randn(200_000, dtype=np.float64)).numpy()
    # Five standard errors; the variance of squares of this mixture is below 6.
    assert abs(y.mean()) < 5 / np.sqrt(200_000)
    assert abs(y.var() - 1) < 5 * np.sqrt(6 / 200_000)
    assert F.alpha_dropout(ones(3), 0.5).tolist() == [1.0, 1.0, 1.0]


def test_in_place_dropout_overwrites():
    x = ones(10)
    assert F.dropout(x, 0.5, inplace=True) is x
    assert set(x.tolist()) <= {0.0, 2.0}


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_what_is_no_probability_is_refused(p):
    with pytest.raises(ArgumentError, match="a probability in"):
        nn.Dropout(p)
    with pytest.raises(ArgumentError, match="a probability in"):
        F.alpha_dropout(ones(2), p)
