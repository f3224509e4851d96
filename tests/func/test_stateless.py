"""Modules as functions of their parameters, functions as linear maps, cotangents by the batch."""

import numpy as np
import pytest

import probtorch
from probtorch import autograd, func, nn
from probtorch.errors import ArgumentError, ShapeError
from probtorch.testing import assert_close


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


X = probtorch.tensor([[1.0, -2.0], [0.5, 3.0]])
TWICE = 2.0 * probtorch.eye(2)


def test_tied_weights_are_replaced_together_unless_told_otherwise():
    net = Tied()
    for name in ("first.weight", "second.weight"):
        assert_close(func.functional_call(net, {name: TWICE}, X), 4.0 * X)
    alone = func.functional_call(net, {"first.weight": TWICE}, (X,), tie_weights=False)
    assert_close(alone, net.second(2.0 * X))
    both = {"first.weight": TWICE, "second.weight": 3.0 * probtorch.eye(2)}
    assert_close(func.functional_call(net, both, X, tie_weights=False), 6.0 * X)
    with pytest.raises(ArgumentError, match="which are one parameter"):
        func.functional_call(net, both, X)
    assert net.second.weight is net.first.weight


def test_what_is_missing_or_unknown_is_named():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(ArgumentError, match=r"none for 0\.bias"):
        func.functional_call(net, {"0.weight": TWICE}, X, strict=True)
    with pytest.raises(ArgumentError, match=r"0\.wieght"):
        func.functional_call(net, {"0.wieght": TWICE}, X)
    with pytest.raises(ArgumentError, match="more than once"):
        func.functional_call(net, ({"0.weight": TWICE}, {"0.weight": TWICE}), X)
    func.functional_call(net, dict(net.state_dict()), X, strict=True)


def test_an_ensemble_is_one_batched_call():
    nets = [nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).eval() for _ in range(4)]
    params, buffers = func.stack_module_state(nets)
    assert all(p.requires_grad and p.is_leaf for p in params.values())
    outs = func.vmap(lambda p, b: func.functional_call(nets[0], (p, b), X))(params, buffers)
    assert_close(outs, probtorch.stack([net(X) for net in nets]))
    outs.sum().backward()
    nets[2](X).sum().backward()
    assert_close(params["0.weight"].grad[2], nets[2][0].weight.grad)
    with pytest.raises(ArgumentError, match="one class"):
        func.stack_module_state([nets[0], nn.Linear(2, 2)])
    with pytest.raises(ArgumentError, match="train"):
        func.stack_module_state([nets[0], nn.Sequential(nn.Linear(2, 2))])


def curved(x, w):
    return {"a": (x @ w["m"]).sin(), "b": (w["m"] ** 2).sum(), "n": probtorch.tensor(3)}


def test_linearize_agrees_with_forward_mode():
    rng = np.random.default_rng(0)
    x, m, dx, dm = (probtorch.tensor(rng.normal(size=(2, 2))) for _ in range(4))
    value, push = func.linearize(curved, x, {"m": m})
    for scale in (1.0, -2.0):
        tangents = scale * dx, {"m": scale * dm}
        expected, tangent = func.jvp(curved, (x, {"m": m}), tangents)
        found = push(*tangents)
        for name in ("a", "b"):
            assert_close(value[name], expected[name])
            assert_close(found[name], tangent[name])
        assert found["n"].item() == 0
    basis = probtorch.eye(4, dtype=probtorch.float64).reshape(4, 2, 2)
    columns = func.vmap(lambda t: push(t, {"m": 0.0 * dm})["a"])(basis)
    jacobian = func.jacrev(lambda x: curved(x, {"m": m})["a"])(x)
    assert_close(columns, jacobian.reshape(2, 2, 4).movedim(2, 0))
    with pytest.raises(ShapeError, match="tangent of shape"):
        push(dx[0], {"m": dm})
    with pytest.raises(ArgumentError, match="structured"):
        push(dx)


def test_linearize_runs_the_function_once_and_knows_constants():
    calls = []

    def fn(x):
        calls.append(x)
        return x * 2.0, probtorch.ones(2)

    _, push = func.linearize(fn, X[0])
    assert_close(push(X[1])[0], 2.0 * X[1])
    assert_close(push(X[1])[1], probtorch.zeros(2))
    assert len(calls) == 1


def test_batched_cotangents_give_what_a_loop_gives():
    x = probtorch.tensor([0.3, -1.0, 2.0], dtype=probtorch.float64, requires_grad=True)
    unused = probtorch.ones(2, dtype=probtorch.float64, requires_grad=True)
    y = (x.outer(x).exp(), x.sin())
    rng = np.random.default_rng(1)
    gs = [probtorch.tensor(rng.normal(size=(5, *t.shape))) for t in y]
    options = {"retain_graph": True, "allow_unused": True}
    found = autograd.grad(y, (x, unused), gs, is_grads_batched=True, **options)
    loop = [autograd.grad(y, x, [g[k] for g in gs], **options)[0] for k in range(5)]
    assert_close(found[0], probtorch.stack(loop))
    assert found[1] is None
    zeros = autograd.grad(
        y, (unused,), gs, is_grads_batched=True, retain_graph=True, materialize_grads=True
    )
    assert zeros[0].shape == (5, 2) and not zeros[0].any()
    (first,) = autograd.grad(y, x, gs, is_grads_batched=True, create_graph=True)
    (second,) = autograd.grad(first[2].sum(), x)
    (again,) = autograd.grad((x.outer(x).exp(), x.sin()), x, [g[2] for g in gs], create_graph=True)
    assert_close(second, autograd.grad(again.sum(), x)[0])
    with pytest.raises(ArgumentError, match="batch of cotangents"):
        autograd.grad(x.sum(), x, is_grads_batched=True)
