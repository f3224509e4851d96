"""Autoregressive networks: what an output may depend on, and that it does."""

import numpy as np
import pytest

from probtorch.core.rng import manual_seed
from probtorch.errors import ArgumentError, ShapeError
from probtorch.func import jacrev
from probtorch.nn import (
    AutoRegressiveNN,
    ConditionalAutoRegressiveNN,
    MaskedLinear,
    Tanh,
)
from probtorch.tensor import tensor

ORDER = [2, 0, 3, 1]
SETTINGS = [
    {"hidden_dims": [7]},
    {"hidden_dims": [9, 5], "skip_connections": True},
    {"hidden_dims": [4, 4, 4], "param_dims": [1, 3]},
]


def connected(jacobian):
    """Whether input j has an influence on any output of number i; jacobian (out..., dim, in)."""
    dim = jacobian.shape[-2]
    return (np.abs(jacobian.reshape(-1, dim, jacobian.shape[-1])) > 0).any(0)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_an_output_sees_all_numbers_before_it_and_no_others(settings):
    manual_seed(0)
    net = AutoRegressiveNN(4, permutation=ORDER, nonlinearity=Tanh(), **settings).double()
    x = tensor(np.random.default_rng(0).standard_normal(4))
    place = np.argsort(ORDER)
    expected = place[:, None] > place
    for i in range(2):
        jacobian = jacrev(lambda x, i=i: net(x)[i])(x).detach().numpy()
        np.testing.assert_array_equal(connected(jacobian), expected)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_output_sees_the_context(settings):
    manual_seed(0)
    net = ConditionalAutoRegressiveNN(
        4, 2, permutation=ORDER, nonlinearity=Tanh(), **settings
    ).double()
    rng = np.random.default_rng(0)
    x, context = tensor(rng.standard_normal(4)), tensor(rng.standard_normal(2))
    jacobian = jacrev(lambda c: net(x, c)[0])(context).detach().numpy()
    assert connected(jacobian).all()
    place = np.argsort(ORDER)
    jacobian = jacrev(lambda x: net(x, context)[0])(x).detach().numpy()
    np.testing.assert_array_equal(connected(jacobian), place[:, None] > place)


def test_a_single_number_depends_on_nothing():
    net, x = AutoRegressiveNN(1, [4]).double(), tensor([0.3], dtype=np.dtype("f8"))
    assert not jacrev(lambda x: net(x)[0])(x).detach().numpy().any()


def test_orders_are_drawn_and_can_be_given():
    manual_seed(0)
    orders = {tuple(AutoRegressiveNN(5, [8]).get_permutation().tolist()) for _ in range(10)}
    assert len(orders) > 1 and all(sorted(o) == [0, 1, 2, 3, 4] for o in orders)
    assert AutoRegressiveNN(4, [8], permutation=ORDER).permutation.tolist() == ORDER


def test_what_is_no_order_is_refused():
    with pytest.raises(ArgumentError, match="permutation") as error:
        AutoRegressiveNN(3, [8], permutation=[0, 0, 2])
    assert "[0, 0, 2]" in error.value.got


def test_a_network_without_layers_is_refused():
    with pytest.raises(ArgumentError, match="hidden layer"):
        AutoRegressiveNN(3, [])


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ShapeError, match="mask of shape"):
        MaskedLinear(3, 2, np.ones((3, 2)))
