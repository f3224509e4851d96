"""Sequential, ModuleList, ModuleDict, ParameterList and ParameterDict."""

from collections import OrderedDict

import pytest

import probtorch.nn as nn
from probtorch.errors import ArgumentError, DTypeError, TensorIndexError
from probtorch.factories import ones, zeros
from probtorch.ops.sampling import rand, randn
from probtorch.ops.trigonometry import tanh
from probtorch.testing import assert_close


def test_sequential_passes_each_output_on():
    model = nn.Sequential(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.Conv2d(20, 64, 5), nn.ReLU())
    out = model(rand(1, 1, 32, 32))
    assert out.shape == (1, 64, 24, 24)
    assert bool((out >= 0).all())


def test_sequential_accepts_plain_functions():
    first, last = nn.Linear(3, 3), nn.Linear(3, 2)
    net = nn.Sequential(first, tanh, last)
    x = randn(5, 3)
    assert_close(net(x).detach(), last(tanh(first(x))).detach(), rtol=0, atol=0)
    assert list(net.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert repr(net[1]) == "Lambda(tanh)"


def test_sequential_takes_names_from_a_dict():
    layers = [("conv1", nn.Conv2d(1, 20, 5)), ("relu1", nn.ReLU()), ("conv2", nn.Conv2d(20, 64, 5))]
    model = nn.Sequential(OrderedDict(layers))
    assert model.conv1 is model[0]
    assert next(iter(model.state_dict())) == "conv1.weight"


def test_sequential_is_a_sequence():
    a, b, c, d = nn.Tanh(), nn.ReLU(), nn.Sigmoid(), nn.Identity()
    net = nn.Sequential(a, b)
    assert net.append(c) is net
    assert len(net) == 3 and net[-1] is c and b in net
    net.insert(0, d)
    assert list(net) == [d, a, b, c]
    assert [type(m) for m in net[1:3]] == [nn.Tanh, nn.ReLU]
    assert isinstance(net[1:3], nn.Sequential)
    net[0] = tanh
    assert isinstance(net[0], nn.Lambda)
    del net[0]
    assert list(net._modules) == ["0", "1", "2"]
    assert net.pop() is c
    assert list(net + nn.Sequential(d)) == [a, b, d]
    net += [c]
    assert list(net) == [a, b, c]
    with pytest.raises(TensorIndexError, match="3 elements"):
        net[3]


def test_sequential_refuses_lists_and_classes():
    with pytest.raises(ArgumentError, match="separate arguments") as e:
        nn.Sequential([nn.Tanh(), nn.Tanh()])
    assert e.value.fix == "put a star before it: Sequential(*layers)"
    with pytest.raises(DTypeError, match="a Module or a function") as e:
        nn.Sequential(nn.Tanh)
    assert e.value.fix == "make one: Tanh(...)"
    with pytest.raises(DTypeError, match="a Module or a function"):
        nn.Sequential(nn.Linear(1, 1), ones(1))


class MyModule(nn.Module):
    """The example of PyTorch's ModuleList."""

    def __init__(self):
        super().__init__()
        self.linears = nn.ModuleList([nn.Linear(10, 10) for i in range(10)])

    def forward(self, x):
        for i, l in enumerate(self.linears):
            x = self.linears[i // 2](x) + l(x)
        return x


def test_module_list_registers_its_modules():
    m = MyModule()
    assert m(randn(2, 10)).shape == (2, 10)
    assert len(list(m.parameters())) == 20


def test_module_list_grows_while_training():
    layers = nn.ModuleList([nn.Linear(2, 2)])
    layers.append(nn.Linear(2, 2)).extend([nn.Linear(2, 2)])
    layers += [nn.Linear(2, 2)]
    assert len(layers) == 4
    assert [n for n, _ in layers.named_parameters()][-1] == "3.bias"
    assert len(layers[:2]) == 2
    assert len(layers + layers[:1]) == 5
    with pytest.raises(NotImplementedError):
        layers(ones(2))


def test_module_dict_is_a_dict():
    d = nn.ModuleDict({"a": nn.Tanh()})
    d["b"] = nn.Linear(1, 1)
    d.update([("c", nn.ReLU())])
    assert list(d) == list(d.keys()) == ["a", "b", "c"]
    assert "b" in d and len(d) == 3
    assert [type(m) for m in d.values()] == [nn.Tanh, nn.Linear, nn.ReLU]
    assert isinstance(d.pop("c"), nn.ReLU)
    del d["a"]
    assert [k for k, _ in d.items()] == ["b"]
    assert list(d.state_dict()) == ["b.weight", "b.bias"]
    d.clear()
    assert len(d) == 0


def test_parameter_list_makes_parameters():
    p = nn.ParameterList([ones(2), nn.Parameter(zeros(3))])
    p.append(ones(1))
    p += [ones(4)]
    p[0] = zeros(2)
    assert [n for n, _ in p.named_parameters()] == ["0", "1", "2", "3"]
    assert all(isinstance(x, nn.Parameter) for x in p)
    assert p[-1].shape == (4,)
    assert len(p[1:]) == 3
    assert "(1): Parameter of size 3, float32" in repr(p)


def test_parameter_dict_makes_parameters():
    p = nn.ParameterDict({"a": ones(2)})
    p["b"] = zeros(3)
    p.update({"c": ones(1)})
    assert list(p.keys()) == ["a", "b", "c"]
    assert list(p.state_dict()) == ["a", "b", "c"]
    assert p.get("z", 1) == 1
    p.pop("c")
    del p["b"]
    assert [k for k, _ in p.items()] == ["a"]
    assert "a" in p and len(list(p.values())) == 1
    assert "(a): Parameter of size 2, float32" in repr(p)


def test_what_is_no_function_cannot_be_wrapped():
    with pytest.raises(DTypeError, match="a function"):
        nn.Lambda(3)


def test_parameter_dicts_have_what_dicts_have():
    one = nn.ParameterDict({"a": zeros(2), "b": ones(1)})
    other = one.copy()
    assert other is not one
    assert other["a"] is one["a"]
    assert one.setdefault("a", ones(3)) is other["a"]
    assert one.setdefault("c", ones(3)).shape == (3,)
    assert one.popitem()[0] == "c"
    assert list(one.fromkeys(["x", "y"], zeros(2)).keys()) == ["x", "y"]
    one.clear()
    assert (len(one), len(other)) == (0, 2)


def test_modules_are_exchanged_by_name_and_emptied():
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1)))
    net.set_submodule("1.0", nn.Identity())
    assert isinstance(net[1][0], nn.Identity)
    with pytest.raises(AttributeError, match="no module 'other'"):
        net.set_submodule("1.other", nn.Identity(), strict=True)
    weight = net[0].weight
    assert net.to_empty(device="cpu")[0].weight is weight
    assert weight.shape == (3, 2)
    assert weight.requires_grad


def test_parameter_containers_keep_other_values_in_their_place():
    p = nn.ParameterList([ones(2), 3, "a", None])
    p.append(nn.Linear(1, 1))
    assert [n for n, _ in p.named_parameters()] == ["0", "4.weight", "4.bias"]
    assert list(p)[1:4] == [3, "a", None]
    p[0], p[1] = 5, ones(1)
    assert p[0] == 5 and isinstance(p[1], nn.Parameter)
    assert list(p.state_dict()) == ["1", "4.weight", "4.bias"]
    d = nn.ParameterDict({"rate": 0.5, "weight": ones(2)})
    d["rate"] = ones(1)
    assert (list(d), list(d.state_dict())) == (["rate", "weight"], ["weight", "rate"])
    del d.weight
    assert list(d) == ["rate"]
    assert d.fromkeys(["x", "y"])["y"] is None
    with pytest.raises(ArgumentError, match="already exists"):
        d["keys"] = 1
    with pytest.raises(KeyError, match="empty"):
        nn.ParameterDict().popitem()
    with pytest.raises(ArgumentError, match="parameters in a list"):
        p.extend(ones(2))


def test_parameter_dicts_are_joined():
    one, two = nn.ParameterDict({"a": ones(1)}), nn.ParameterDict({"b": ones(2), "a": ones(3)})
    joined = one | two
    assert [(k, p.shape) for k, p in joined.items()] == [("a", (3,)), ("b", (2,))]
    assert one["a"].shape == (1,)
    one |= {"c": ones(4)}
    assert list(reversed(one)) == ["c", "a"]
    assert list({"z": ones(1)} | two) == ["z", "b", "a"]


def test_rows_are_repeated_with_the_same_layers():
    row = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    twice = row * 2
    assert len(twice) == 4 and twice[2] is row[0]
    assert len(3 * row) == 6
    row *= 2
    assert list(dict(row.named_children(), **row._modules)) == ["0", "1", "2", "3"]
    with pytest.raises(ArgumentError, match="whole number"):
        row * 0


def test_slices_are_of_the_same_class():
    class Doubled(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * 2.0

    assert Doubled(nn.Identity(), nn.Identity())[:1](ones(1)).tolist() == [2.0]

    class Blocks(nn.ModuleList):
        pass

    assert type(Blocks([nn.Identity(), None])[1:]) is Blocks
    assert Blocks([nn.Identity(), None])[1] is None
    with pytest.raises(ArgumentError, match="modules in a list"):
        Blocks().extend(nn.Linear(1, 1))
