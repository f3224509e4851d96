"""Saved-tensor hooks, edges, and hooks on several tensors."""

import gc
import weakref

import numpy as np
import pytest

import probtorch as torch
from probtorch.autograd import graph
from probtorch.errors import ArgumentError, AutogradError
from probtorch.testing import assert_close


def several(x, w):
    h = (x * 2.0).exp()
    mixed = ((h @ w).sin() * h.sum(1, keepdim=True)).tanh().sum()
    return mixed + h.cumsum(1).prod(1).log().sum() + torch.logsumexp(h, 1).sum()


@pytest.fixture
def operands():
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.standard_normal((3, 4)), requires_grad=True)
    return x, torch.tensor(rng.standard_normal((4, 2)))


def copies(log):
    def pack(t):
        log.append("pack")
        return t.numpy(force=True).copy()

    def unpack(a):
        log.append("unpack")
        return torch.tensor(a)

    return graph.saved_tensors_hooks(pack, unpack)


def test_gradients_of_what_was_packed_are_the_same(operands):
    log = []
    (expected,) = torch.autograd.grad(several(*operands), operands[0])
    with copies(log):
        y = several(*operands)
    packed = log.count("pack")
    assert packed >= 8 and len(log) == packed
    (found,) = torch.autograd.grad(y, operands[0])
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert 0 < log.count("unpack") <= packed


def test_second_derivatives_of_what_was_packed_are_the_same(operands):
    x, w = operands
    found = []
    for hooks in (False, True):
        if hooks:
            with copies([]):
                y = several(x, w)
        else:
            y = several(x, w)
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        found += torch.autograd.grad((g * g).sum(), x)
    assert_close(*found)


def test_what_is_packed_does_not_stay_in_memory():
    x = torch.ones(3, requires_grad=True)
    with copies([]):
        kept = x * 2.0
        y = (kept * kept).sum()
    alive = weakref.ref(kept)
    del kept
    gc.collect()
    assert alive() is None
    y.backward()
    assert x.grad.tolist() == [8.0] * 3


def test_other_values_come_back_where_the_hook_changes_them():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with graph.saved_tensors_hooks(lambda t: t.numpy(force=True) * 10.0, torch.tensor):
        y = (x + 0.0).square().sum()
    y.backward()
    assert x.grad.tolist() == [20.0, 40.0]


def test_changes_in_place_are_noticed_where_memory_is_shared():
    x = torch.ones(3, requires_grad=True)
    with graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        kept = x * 2.0
        y = kept * kept
    kept.add_(1.0)
    with pytest.raises(AutogradError, match="modified in place"):
        y.sum().backward()


def test_what_comes_back_must_have_the_shape():
    x = torch.ones(3, requires_grad=True)
    with graph.saved_tensors_hooks(lambda t: 0, lambda _: torch.zeros(2)):
        y = (x * 2.0).square().sum()
    with pytest.raises(ArgumentError, match=r"of shape \(3,\)"):
        y.backward()


def test_hooks_can_be_refused():
    with graph.disable_saved_tensors_hooks("not here"):
        with pytest.raises(AutogradError, match="not here"), copies([]):
            pass
    with graph.save_on_cpu():
        x = torch.ones(2, requires_grad=True)
        y = (x * 2.0).square().sum()
    y.backward()
    assert x.grad.tolist() == [8.0, 8.0]


def test_edges_name_the_node_and_the_output():
    x = torch.ones(2, 2, requires_grad=True)
    values, _ = torch.max(x * 2.0, 1)
    edge = graph.get_gradient_edge(values)
    assert edge.node is values.grad_fn and edge.output_nr == values.output_nr
    assert isinstance(edge.node, graph.Node)
    with pytest.raises(AutogradError, match="a leaf"):
        graph.get_gradient_edge(x)


def test_a_hook_on_several_tensors_waits_for_all_of_them():
    a, b = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    heard = []
    handle = graph.register_multi_grad_hook([a, b], lambda g: heard.append([t.tolist() for t in g]))
    first = []
    other = graph.register_multi_grad_hook([a, b], lambda g: first.append(1), mode="any")
    for _ in range(2):
        (a.sum() * 2.0 + (b * 3.0).sum()).backward()
    assert heard == [[[2.0] * 2, [3.0] * 3]] * 2 and len(first) == 2
    handle.remove()
    other.remove()
    (a.sum() + b.sum()).backward()
    assert len(heard) == 2


def test_changes_by_other_means_can_be_told():
    x = torch.ones(2, requires_grad=True)
    kept = x * 2.0
    y = kept * kept
    graph.increment_version(kept)
    with pytest.raises(AutogradError, match="modified in place"):
        y.sum().backward()
