"""The graph of a tape has a node for each operation and each leaf, and an edge for each input."""

import re

import pytest

import probtorch
from probtorch import nn
from probtorch.errors import AutogradError
from probtorch.tensor import tensor
from probtorch.viz import make_dot


def nodes(graph):
    return dict(re.findall(r'^  "(\w+)" \[label="([^"]*)"', graph.source, re.MULTILINE))


def edges(graph):
    labels = nodes(graph)
    found = re.findall(r'^  "(\w+)" -> "(\w+)"', graph.source, re.MULTILINE)
    return sorted((labels[a], labels[b]) for a, b in found)


def test_operations_leaves_and_results():
    w, b = (tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    y = (w * b).exp() + w
    graph = make_dot(y, params={"w": w, "b": b})
    assert (
        edges(graph)
        == [
            ("\\n (2)", "add"),
            ("add", "\\n (2)"),
            ("b\\n (2)", "mul"),
            ("exp", "add"),
            ("mul", "exp"),
            ("w\\n (2)", "add"),
            ("w\\n (2)", "mul"),
        ][1:]
    )


def test_every_parameter_of_a_network_has_its_name():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    graph = make_dot(net(probtorch.ones(4, 2)).mean(), params=net.named_parameters())
    for name, p in net.named_parameters():
        sizes = ", ".join(map(str, p.shape))
        assert f'label="{name}\\n ({sizes})" fillcolor="lightblue"' in graph.source
    assert list(nodes(graph).values()).count("affine") == 2


def test_what_is_used_twice_is_drawn_once_and_what_needs_no_gradient_not_at_all():
    x = tensor([1.0], requires_grad=True)
    y = x.exp()
    graph = make_dot((y * y, y + tensor([1.0])))
    assert sorted(nodes(graph).values()) == ["\\n (1)", "\\n (1)", "\\n (1)", "add", "exp", "mul"]
    assert edges(graph).count(("exp", "mul")) == 2


def test_attributes_and_saved_tensors_are_shown_when_asked_for():
    x = tensor([[1.0, 2.0]], requires_grad=True)
    y = x.exp().sum(dim=1)
    plain = make_dot(y).source
    assert "dims" not in plain and "orange" not in plain
    assert "dims: (1,)" in make_dot(y, show_attrs=True).source
    cut = make_dot(y, show_attrs=True, max_attr_chars=3).source
    assert "dims: ..." in cut
    assert "orange" in make_dot(x * x, params={"x": x}, show_saved=True).source


def test_views_and_changes_in_place_are_on_it():
    x = tensor([1.0, 2.0], requires_grad=True)
    y = x * 2.0
    y[0] = 5.0
    assert "x\\n (2)" in nodes(make_dot(y.sum(), params={"x": x})).values()


def test_a_long_tape_is_drawn():
    x = tensor(1.0, requires_grad=True)
    y = x
    for _ in range(3000):
        y = y + 1.0
    assert list(nodes(make_dot(y)).values()).count("add") == 3000


def test_a_leaf_is_a_graph_of_one_and_what_is_not_on_the_tape_none():
    x = tensor([1.0], requires_grad=True)
    assert list(nodes(make_dot(x, params={"x": x})).values()) == ["x\\n (1)"]
    with pytest.raises(AutogradError, match="not on the tape"):
        make_dot(tensor([1.0]))
