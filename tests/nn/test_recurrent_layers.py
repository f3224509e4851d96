"""Layers whose steps are one operation, held against the same steps one by one."""

import numpy as np
import pytest

import probtorch as pt
from probtorch import nn
from probtorch.config import configure

RNG = np.random.default_rng(11)


def made(layer, x, states, watched):
    """Outputs, last states, and gradients of all that there is."""
    leaves = [x.detach().requires_grad_(), *[s.detach().requires_grad_() for s in states]]
    layer.zero_grad()
    given = tuple(leaves[1:]) if len(states) > 1 else leaves[1]
    with pt.autograd.detect_anomaly(check_nan=False) if watched else configure():
        y, last = layer(leaves[0], given)
        last = last if isinstance(last, tuple) else (last,)
        weights = [
            pt.tensor(np.linspace(-1.0, 2.0, t.numel())).reshape(t.shape) for t in (y, *last)
        ]
        sum((t * w.to(t.dtype)).sum() for t, w in zip((y, *last), weights, strict=True)).backward()
    found = [y, *last, *[t.grad for t in leaves], *[p.grad for p in layer.parameters()]]
    return [t.detach().numpy().copy() for t in found]


@pytest.mark.parametrize("dtype", [pt.float64, pt.float32], ids=str)
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"bidirectional": True, "num_layers": 2}])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_layer_gives_what_its_steps_give(kind, options, dtype):
    pt.manual_seed(0)
    layer = getattr(nn, kind)(5, 19, **options, dtype=dtype)
    count = layer.num_layers * (1 + layer.bidirectional)
    x = pt.tensor(RNG.standard_normal((6, 3, 5)), dtype=dtype)
    states = [
        pt.tensor(RNG.standard_normal((count, 3, 19)), dtype=dtype)
        for _ in range(1 + (kind == "LSTM"))
    ]
    whole, by_steps = made(layer, x, states, False), made(layer, x, states, True)
    limit = 1e-12 if dtype == pt.float64 else 2e-5
    for a, b in zip(whole, by_steps, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=limit, atol=limit)
    with pt.no_grad():
        alone = layer(x, tuple(states) if len(states) > 1 else states[0])[0]
    np.testing.assert_array_equal(alone.numpy(), whole[0])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_derivatives_of_derivatives_go_step_by_step(kind):
    pt.manual_seed(1)
    layer = getattr(nn, kind)(2, 3, dtype=pt.float64)
    x = pt.tensor(RNG.standard_normal((3, 2, 2)), requires_grad=True)
    assert pt.testing.gradgradcheck(lambda x: layer(x)[0], x)


def test_gates_far_from_zero_are_at_their_limits():
    layer = nn.LSTM(1, 1, bias=False, dtype=pt.float64)
    with pt.no_grad():
        for p in layer.parameters():
            p.fill_(1.0)
    y, (_, c) = layer(pt.tensor([[[800.0]], [[-800.0]]], dtype=pt.float64))
    assert y[0].item() == np.tanh(1.0)
    assert c.item() == y[1].item() == 0.0


def test_outputs_may_change_in_place_before_the_backward_pass():
    layer = nn.GRU(2, 3, dtype=pt.float64)
    x = pt.tensor(RNG.standard_normal((4, 2, 2)))
    layer(x)[0].sum().backward()
    want = layer.weight_hh_l0.grad.clone()
    layer.zero_grad()
    y, _ = layer(x)
    y.mul_(1.0).add_(2.0).sum().backward()
    np.testing.assert_array_equal(layer.weight_hh_l0.grad.numpy(), want.numpy())


def test_steps_of_a_subclass_are_taken():
    class Doubled(nn.GRU):
        def step(self, projected, state, fixed):
            return tuple(2.0 * s for s in super().step(projected, state, fixed))

    pt.manual_seed(0)
    layer = Doubled(2, 3)
    pt.manual_seed(0)
    plain = nn.GRU(2, 3)
    x = pt.ones(1, 1, 2)
    np.testing.assert_allclose(
        layer(x)[0].detach().numpy(), 2.0 * plain(x)[0].detach().numpy(), rtol=1e-6
    )


def test_a_weight_that_changed_since_is_refused():
    layer = nn.LSTM(2, 3)
    y, _ = layer(pt.ones(3, 1, 2))
    with pt.no_grad():
        layer.weight_hh_l0.mul_(2.0)
    with pytest.raises(pt.errors.AutogradError, match="in place"):
        y.sum().backward()
