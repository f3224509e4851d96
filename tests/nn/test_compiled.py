"""A compiled module is the module: its class, parameters, hooks, settings; its calls are native."""

import copy
import pickle
import warnings

import numpy as np
import pytest

import probtorch
from probtorch import nn, optim
from probtorch.compiler.paths import CompileWarning
from probtorch.testing import assert_close


class Net(nn.Module):
    """Two layers, a setting, and a method besides `forward`."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 1)
        self.scale = 2.0

    def encode(self, x):
        return self.first(x).tanh()

    def forward(self, x):
        return self.scale * self.last(self.norm(self.encode(x)))


@pytest.fixture
def pair():
    probtorch.manual_seed(0)
    module = Net().eval()
    return module, probtorch.compile(module)


X = probtorch.tensor([[1.0, -2.0, 0.5], [0.3, 0.1, -1.0]])


def test_it_is_a_module_of_the_same_class_and_state(pair):
    module, compiled = pair
    assert isinstance(compiled, Net)
    assert repr(compiled) == repr(module)
    assert list(compiled.state_dict()) == list(module.state_dict())
    pairs = list(zip(compiled.parameters(), module.parameters(), strict=True))
    assert all(a is b for a, b in pairs) and len(pairs) == 6
    outer = nn.Sequential(nn.Linear(3, 3), compiled)
    assert "1.first.weight" in outer.state_dict()
    assert [name for name, _ in outer.named_modules()][2:] == ["1", "1.first", "1.norm", "1.last"]
    assert_close(compiled.encode(X), module.encode(X))
    assert optim.SGD(compiled.parameters(), lr=0.1).param_groups[0]["params"][0] is pairs[0][1]


def test_its_calls_are_native_and_follow_the_module(pair):
    module, compiled = pair

    def agree():
        with probtorch.no_grad():
            for _ in range(3):
                assert_close(compiled(X), module(X))
        assert compiled.last is not None and compiled.reason is None

    agree()
    compiled.scale = 3.0
    assert module.scale == 3.0
    agree()
    handle = module.register_forward_hook(lambda m, args, out: out + 1.0)
    agree()
    handle.remove()
    compiled.train()
    assert module.norm.training
    agree()
    module.last = nn.Linear(4, 2)
    agree()
    compiled.requires_grad_(False)
    compiled.double()
    assert module.first.weight.dtype is probtorch.float64
    with probtorch.no_grad():
        assert compiled(X.double()).dtype is probtorch.float64


def test_copies_are_compiled_and_stand_alone(pair):
    module, compiled = pair
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert type(other).__name__ == "CompiledNet" and isinstance(other, Net)
        assert_close(other(X), module(X))
        other.load_state_dict({k: v + 1.0 for k, v in module.state_dict().items()})
        assert not np.allclose(other(X).tolist(), module(X).tolist())
    assert probtorch.compile(compiled).first is module.first


def test_gradients_flow_through_its_calls(pair):
    module, compiled = pair
    for _ in range(4):
        module.zero_grad()
        compiled(X).sum().backward()
        found = [p.grad.tolist() for p in module.parameters()]
        module.zero_grad()
        module(X).sum().backward()
        for g, p in zip(found, module.parameters(), strict=True):
            np.testing.assert_allclose(g, p.grad.tolist(), 1e-5, 1e-6)
    assert compiled.reason is None


@pytest.mark.parametrize(
    "layer, reason",
    [(nn.Dropout(0.5), "a draw"), (nn.BatchNorm1d(3), "a change of a tensor outside")],
    ids=["dropout", "batch norm"],
)
def test_what_stays_eager_on_the_tape_says_so_once_with_its_line(layer, reason):
    compiled = probtorch.compile(nn.Sequential(nn.Linear(3, 3), layer))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", CompileWarning)
        for _ in range(4):
            compiled(X).sum().backward()
    (only,) = told
    assert reason in str(only.message) and only.filename == __file__
    assert reason in str(compiled.explain())


def test_names_of_the_modules_own_come_first():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 1)
            self.reason = "mine"

        def explain(self):
            return "mine, too"

        def forward(self, x):
            return self.last(x)

    compiled = probtorch.compile(Named())
    assert isinstance(compiled.last, nn.Linear)
    assert (compiled.reason, compiled.explain()) == ("mine", "mine, too")


def test_compile_in_place_is_of_the_calls_of_this_module_alone():
    probtorch.manual_seed(0)
    net = Net().eval()
    plain = copy.deepcopy(net)
    net.compile(fullgraph=True)
    net.register_forward_hook(lambda module, args, out: out + 1.0)
    net.first.register_forward_pre_hook(lambda module, args: (args[0] * 2.0,))
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    other = optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(6):
        found, expected = net(X), plain(2.0 * X) + 1.0
        assert_close(found, expected)
        for loss, steps in ((found.square().mean(), optimizer), (expected.square().mean(), other)):
            steps.zero_grad()
            loss.backward()
            steps.step()
    assert net._hooks.compiled.paths is not None
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(plain))):
        assert again._hooks is None or again._hooks.compiled is None
    assert list(net.state_dict()) == list(plain.state_dict())
