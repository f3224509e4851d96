"""Clipping, vectors of parameters, and calls with other parameters."""

import math

import numpy as np
import pytest

import probtorch.nn as nn
from probtorch.autograd.tape import grad
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.factories import ones, zeros
from probtorch.nn.utils import (
    clip_grad_norm_,
    clip_grad_value_,
    functional_call,
    parameters_to_vector,
    vector_to_parameters,
    with_parameters,
)
from probtorch.tensor import tensor
from probtorch.testing import assert_close

RNG = np.random.default_rng(2)


def with_gradients():
    net = nn.Linear(3, 2).double()
    for p in net.parameters():
        p.grad = tensor(RNG.standard_normal(p.shape))
    return net, np.concatenate([p.grad.numpy().ravel() for p in net.parameters()])


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_norm_of_all_gradients_is_limited(norm_type, max_norm):
    net, flat = with_gradients()
    before = np.linalg.norm(flat, norm_type)
    assert_close(clip_grad_norm_(net.parameters(), max_norm, norm_type), before, rtol=1e-12)
    after = np.concatenate([p.grad.numpy().ravel() for p in net.parameters()])
    np.testing.assert_allclose(after, flat * min(1, max_norm / (before + 1e-6)), rtol=1e-12)


def test_norm_that_is_not_finite_can_be_an_error():
    net, _ = with_gradients()
    net.bias.grad[0] = math.nan
    with pytest.raises(InferenceError, match="a finite norm"):
        clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
    assert clip_grad_norm_([nn.Parameter(ones(2))], 1.0).item() == 0.0


def test_values_are_limited():
    net, flat = with_gradients()
    clip_grad_value_(net.parameters(), 0.3)
    after = np.concatenate([p.grad.numpy().ravel() for p in net.parameters()])
    np.testing.assert_array_equal(after, np.clip(flat, -0.3, 0.3))


def test_vector_of_parameters_and_back():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    v = parameters_to_vector(net.parameters())
    assert v.shape == (13,)
    (v * v).sum().backward()
    assert_close(net[0].weight.grad, 2 * net[0].weight.detach().numpy())
    identity = net[1].bias
    vector_to_parameters(tensor(np.arange(13.0)), net.parameters())
    assert net[1].bias is identity and identity.tolist() == [12.0]
    assert net[0].weight.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    with pytest.raises(ShapeError, match="13 elements"):
        vector_to_parameters(zeros(12), net.parameters())
    with pytest.raises(ArgumentError, match="at least one"):
        parameters_to_vector([])


def test_functional_call_differentiates_in_the_given_values():
    net = nn.Sequential(nn.Linear(2, 1), nn.Tanh())
    own = net[0].weight
    w = tensor([[1.0, -2.0]], requires_grad=True)
    x = tensor([[0.3, 0.1]])
    y = functional_call(net, {"0.weight": w, "0.bias": zeros(1)}, x)
    assert y.item() == pytest.approx(math.tanh(0.1), rel=1e-6)
    (g,) = grad(y.sum(), w)
    assert_close(g, (1 - math.tanh(0.1) ** 2) * x.numpy(), rtol=1e-5)
    assert net[0].weight is own and own.grad is None


def test_functional_call_restores_after_errors_and_knows_buffers():
    m = nn.BatchNorm1d(2).eval()
    mean = m.running_mean
    out = functional_call(m, [{"running_mean": ones(2)}], (ones(3, 2),))
    assert_close(out.detach(), np.zeros((3, 2), np.float32))
    with pytest.raises(ShapeError):
        functional_call(m, {"running_mean": ones(2)}, (ones(3, 5),))
    assert m.running_mean is mean
    with pytest.raises(ArgumentError, match="names of parameters and buffers"):
        functional_call(m, {"wieght": ones(2)}, ones(3, 2))


def test_a_module_with_other_parameters_leaves_the_first_as_it_was():
    shared = nn.Linear(2, 2).double()
    net = nn.Sequential(shared, nn.Tanh(), shared, nn.BatchNorm1d(2).double().eval())
    x = tensor(RNG.standard_normal((3, 2)))
    before = net(x).detach().numpy()
    values = {n: tensor(RNG.standard_normal(p.shape)) for n, p in net.named_parameters()}
    values["0.weight"].requires_grad_()
    other = with_parameters(net, values)
    assert other[0] is other[2] and other[0] is not shared and net[0] is shared
    assert_close(other(x).detach(), functional_call(net, values, x).detach(), rtol=1e-12)
    assert_close(net(x).detach(), before, rtol=0, atol=0)
    assert grad(other(x).sum(), [values["0.weight"]])[0].shape == (2, 2)
    with pytest.raises(ArgumentError, match="with_parameters"):
        with_parameters(net, {"weight": values["0.weight"]})
