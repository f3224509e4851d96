"""Hooks around the forward and the backward pass of a module."""

import copy

import numpy as np
import pytest

import probtorch.nn as nn
from probtorch.errors import ArgumentError
from probtorch.factories import ones
from probtorch.tensor import tensor
from probtorch.testing import assert_close


class Affine(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(tensor([2.0, 3.0]))

    def forward(self, x, shift=0.0):
        return x * self.weight + shift


def test_forward_hooks_see_and_replace():
    m, seen = Affine(), []
    m.register_forward_pre_hook(lambda mod, args: (args[0] + 1.0,))
    m.register_forward_hook(lambda mod, args, out: seen.append((args[0].tolist(), out.tolist())))
    last = m.register_forward_hook(lambda mod, args, out: out * 10.0)
    assert m(ones(2)).tolist() == [40.0, 60.0]
    assert seen == [([2.0, 2.0], [4.0, 6.0])]
    last.remove()
    last.remove()
    assert m(ones(2)).tolist() == [4.0, 6.0]


def test_single_value_from_a_pre_hook_is_the_argument():
    m = Affine()
    m.register_forward_pre_hook(lambda mod, args: args[0] * 0.0)
    assert m(ones(2)).tolist() == [0.0, 0.0]


def test_hooks_with_kwargs_see_them():
    m = Affine()
    m.register_forward_pre_hook(lambda mod, a, k: (a, {"shift": 5.0}), with_kwargs=True)
    m.register_forward_hook(lambda mod, a, k, out: out + k["shift"], with_kwargs=True)
    assert m(ones(2)).tolist() == [12.0, 13.0]
    m.register_forward_pre_hook(lambda mod, a, k: 3, with_kwargs=True)
    with pytest.raises(ArgumentError, match=r"a pair \(args, kwargs\)"):
        m(ones(2))


def test_prepended_hook_comes_first_and_handles_close_as_blocks():
    m, order = Affine(), []
    m.register_forward_hook(lambda *_: order.append("a"))
    with m.register_forward_hook(lambda *_: order.append("b"), prepend=True):
        m(ones(2))
    m(ones(2))
    assert order == ["b", "a", "a"]


def test_hook_that_is_always_called_sees_failures():
    m, seen = Affine(), []
    m.register_forward_hook(lambda mod, args, out: seen.append(out), always_call=True)
    m.register_forward_hook(lambda mod, args, out: seen.append("not reached"))
    with pytest.raises(TypeError):
        m("text")
    assert seen == [None]


def test_what_cannot_be_called_is_refused():
    with pytest.raises(ArgumentError, match="a function"):
        Affine().register_forward_hook(3)


def test_backward_hook_sees_the_gradients_of_inputs_and_outputs():
    m, seen = Affine(), []
    m.register_full_backward_hook(lambda mod, gi, go: seen.append((gi, go)))
    x = ones(2, requires_grad=True)
    (m(x) * tensor([1.0, 10.0])).sum().backward()
    ((gi,), (go,)) = seen[0]
    assert go.tolist() == [1.0, 10.0]
    assert gi.tolist() == x.grad.tolist() == [2.0, 30.0]
    assert m.weight.grad.tolist() == [1.0, 10.0]


def test_backward_hook_replaces_the_gradient_of_the_input():
    m = Affine()
    m.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 0.5,))
    x = ones(2, requires_grad=True)
    m(x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.5]
    assert m.weight.grad.tolist() == [1.0, 1.0]


def test_backward_pre_hook_replaces_the_gradient_of_the_output():
    m = Affine()
    m.register_full_backward_pre_hook(lambda mod, go: (go[0] * 100.0,))
    x = ones(2, requires_grad=True)
    m(x).sum().backward()
    assert x.grad.tolist() == [200.0, 300.0]
    assert m.weight.grad.tolist() == [100.0, 100.0]


def test_backward_hook_is_called_without_gradients_of_inputs():
    m, seen = Affine(), []
    m.register_full_backward_hook(lambda mod, gi, go: seen.append(gi))
    m(ones(2)).sum().backward()
    assert seen == [(None,)]


def test_backward_hook_with_too_many_gradients_is_refused():
    m = Affine()
    m.register_full_backward_hook(lambda mod, gi, go: (gi[0], gi[0]))
    x = ones(2, requires_grad=True)
    with pytest.raises(ArgumentError, match="1 gradients"):
        m(x).sum().backward()


def test_backward_hooks_reach_every_tensor_of_a_tuple():
    m, seen = nn.LSTM(2, 3), []
    m.register_full_backward_hook(lambda mod, gi, go: seen.append(go))
    out, (h, _) = m(ones(4, 1, 2, requires_grad=True))
    (out.sum() + 2.0 * h.sum()).backward()
    assert [None if g is None else g.shape for g in seen[0]] == [(4, 1, 3), (1, 1, 3), None]


def test_hooks_leave_gradients_as_they_were():
    plain, watched = Affine(), Affine()
    watched.register_full_backward_hook(lambda *_: None)
    watched.register_forward_hook(lambda *_: None)
    grads = []
    for m in (plain, watched):
        x = tensor(np.array([0.3, -2.0]), requires_grad=True)
        (m(x) ** 3).sum().backward()
        grads.append((x.grad, m.weight.grad))
    for a, b in zip(*grads):
        assert_close(a, b, rtol=0, atol=0)


def test_copy_has_hooks_of_its_own():
    m, seen = Affine(), []
    handle = m.register_forward_hook(lambda *_: seen.append(1))
    twin = copy.deepcopy(m)
    handle.remove()
    m(ones(2))
    assert seen == []
    twin(ones(2))
    assert seen == [1]
