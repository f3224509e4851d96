"""Lazy layers become those that they stand for, with the shapes of their first input."""

import copy
import pickle

import numpy as np
import pytest

import probtorch
import probtorch.nn as nn
from probtorch.core.rng import manual_seed
from probtorch.errors import ModelError, ShapeError
from probtorch.factories import ones
from probtorch.optim import SGD
from probtorch.testing import assert_close

SPATIAL = {1: (6,), 2: (5, 6), 3: (3, 4, 5)}
CASES = [("Linear", (4,), {}, (2, 3)), ("Linear", (4,), {"bias": False}, (3,))]
for n, spatial in SPATIAL.items():
    CASES += [
        (f"Conv{n}d", (4, 2), {"groups": 2}, (2, 6, *spatial)),
        (f"ConvTranspose{n}d", (4, 2), {"bias": False}, (6, *spatial)),
        (f"BatchNorm{n}d", (), {}, (2, 6, *spatial)),
        (f"InstanceNorm{n}d", (), {"affine": True, "track_running_stats": True}, (2, 6, *spatial)),
    ]


@pytest.mark.parametrize(("name", "args", "options", "shape"), CASES)
def test_a_lazy_layer_becomes_the_layer_of_its_first_input(name, args, options, shape):
    x, size = ones(*shape), {"Linear": -1}.get(name, 1 if len(shape) > 2 and shape[0] == 2 else 0)
    lazy, cls = getattr(nn, "Lazy" + name)(*args, **options), getattr(nn, name)
    assert isinstance(lazy, cls)
    assert lazy.has_uninitialized_params()
    assert "Lazy" + name in repr(lazy)
    held = list(lazy.parameters())
    manual_seed(2)
    found = lazy(x)
    manual_seed(2)
    usual = cls(shape[size], *args, **options)
    assert type(lazy) is cls
    assert_close(found.detach(), usual(x).detach(), rtol=0, atol=0)
    assert repr(lazy) == repr(usual)
    assert [p is q for p, q in zip(held, lazy.parameters(), strict=True)] == [True] * len(held)
    assert {k: v.shape for k, v in lazy.state_dict().items()} == {
        k: v.shape for k, v in usual.state_dict().items()
    }
    manual_seed(3)
    lazy.reset_parameters()
    manual_seed(3)
    usual.reset_parameters()
    for p, q in zip(lazy.parameters(), usual.parameters()):
        assert_close(p.detach(), q.detach(), rtol=0, atol=0)


def test_optimizers_made_before_the_first_call_keep_the_parameters():
    net = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(1)).double()
    optimizer = SGD(net.parameters(), lr=0.1)
    x = ones(4, 2, dtype=probtorch.float64)
    net(x).sum().backward()
    before = [p.detach().clone() for p in net.parameters()]
    optimizer.step()
    assert all(p.dtype == np.float64 for p in net.parameters())
    for p, old in zip(net.parameters(), before):
        assert_close(p.detach(), old - 0.1 * p.grad, rtol=1e-12)


def test_loaded_state_gives_the_shapes():
    usual, lazy = nn.Linear(3, 2), nn.LazyLinear(2)
    lazy.load_state_dict(usual.state_dict())
    assert not lazy.has_uninitialized_params()
    x = ones(1, 3)
    assert_close(lazy(x).detach(), usual(x).detach(), rtol=0, atol=0)
    assert lazy.in_features == 3


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_of_lazy_layers_are_lazy_too(duplicate):
    lazy = nn.LazyBatchNorm1d()
    twin = duplicate(lazy)
    assert twin.has_uninitialized_params()
    twin(ones(3, 2))
    assert lazy.has_uninitialized_params() and not isinstance(twin, nn.LazyBatchNorm1d)


def test_what_has_no_shape_says_so():
    lazy = nn.LazyLinear(2)
    assert isinstance(lazy.weight, nn.UninitializedParameter)
    assert repr(lazy.weight) == "<UninitializedParameter>"
    with pytest.raises(ModelError, match="call the module once"):
        lazy.weight.shape  # noqa: B018
    with pytest.raises(ShapeError, match="3 or 4 dims"):
        nn.LazyConv2d(1, 1)(ones(2, 2))
    with pytest.raises(ModelError, match="before it is compiled"):
        probtorch.compile(lambda x: lazy(x).sum())(ones(1, 3))


@pytest.mark.parametrize(
    "make", [lambda: nn.LazyLinear(3), nn.LazyBatchNorm1d], ids=("linear", "norm")
)
def test_state_of_a_layer_that_has_met_no_input_stays_without_shapes(make, tmp_path):
    lazy, other, met = make(), make(), make()
    met(probtorch.ones(4, 5))
    state = lazy.state_dict()
    assert isinstance(state["weight"], nn.UninitializedParameter)
    probtorch.save(state, tmp_path / "state")
    for given in (state, probtorch.load(tmp_path / "state")):
        other.load_state_dict(given)
        assert isinstance(other.weight, nn.UninitializedParameter)
        with pytest.raises(ModelError, match="no shape for weight"):
            met.load_state_dict(given)
    assert met.weight.shape[-1] == 5
    other.load_state_dict(met.state_dict())
    x = probtorch.randn(4, 5)
    assert_close(other(x), met(x))
