"""Module: registration, names, modes, conversion, and what it says when something is wrong."""

import copy
import pickle

import numpy as np
import pytest

import probtorch.nn as nn
import probtorch.nn.functional as F
from probtorch.autograd.modes import no_grad
from probtorch.core.rng import manual_seed
from probtorch.errors import ArgumentError, DTypeError
from probtorch.factories import ones, zeros
from probtorch.nn import init
from probtorch.nn.arguments import documented_by
from probtorch.ops.sampling import randn
from probtorch.tensor import tensor
from probtorch.testing import assert_close


class Net(nn.Module):
    """The convolutional network of PyTorch's first tutorial."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Scale(nn.Module):
    """One parameter, one buffer, one child; the old spelling of super()."""

    def __init__(self, size, bias=True):
        super(Scale, self).__init__()  # noqa: UP008
        self.parameter("weight", (size,), init=init.constant(2.0))
        self.parameter("bias", (size,) if bias else None, init=init.zeros())
        self.register_buffer("count", zeros(()))
        self.inner = nn.Identity()

    def forward(self, x):
        y = self.inner(x) * self.weight
        return y if self.bias is None else y + self.bias


def test_network_of_the_tutorial_has_its_parameters_and_output():
    net = Net()
    params = list(net.parameters())
    assert len(params) == 10
    assert sum(p.numel() for p in params) == 61_706
    assert params[0].size() == (6, 1, 5, 5)
    out = net(randn(1, 1, 32, 32))
    assert out.shape == (1, 10)
    net.zero_grad()
    assert net.conv1.bias.grad is None
    out.backward(randn(1, 10))
    assert net.conv1.bias.grad.shape == (6,)


def test_loss_of_the_tutorial_runs_with_integer_target_and_a_warning_about_its_shape():
    output = Net()(randn(1, 1, 32, 32))
    with pytest.warns(UserWarning, match="different to the input size"):
        loss = nn.MSELoss()(output, tensor(np.arange(1, 11)))
    loss.backward()
    assert np.isfinite(loss.item())


def test_attributes_are_registered_by_their_kind():
    m = nn.Module()
    m.p, m.b, m.c, m.plain = nn.Parameter(ones(2)), nn.Buffer(ones(3)), nn.Identity(), 4
    assert [n for n, _ in m.named_parameters()] == ["p"]
    assert [n for n, _ in m.named_buffers()] == ["b"]
    assert [n for n, _ in m.named_children()] == ["c"]
    assert list(m.state_dict()) == ["p", "b"]
    m.p = None
    assert m.p is None
    assert list(m.parameters()) == []
    del m.c
    assert list(m.children()) == []
    assert not hasattr(m, "c")


def test_parameter_shares_the_memory_of_its_tensor():
    t = zeros(2)
    p = nn.Parameter(t)
    with no_grad():
        p.add_(1.0)
    assert t.tolist() == [1.0, 1.0]
    assert p.is_leaf and p.requires_grad and isinstance(p, type(t))
    assert repr(p) == "Parameter containing:\ntensor([1., 1.], requires_grad=True)"


def test_change_of_the_tensor_behind_a_parameter_is_noticed():
    t = ones(2)
    p = nn.Parameter(t)
    loss = (p * p).sum()
    t.add_(1.0)
    with pytest.raises(RuntimeError, match="modified in place"):
        loss.backward()


def test_parameter_from_a_result_is_a_leaf():
    x = tensor([1.0, 2.0], requires_grad=True)
    p = nn.Parameter(x * 2.0)
    p.sum().backward()
    assert x.grad is None
    assert p.grad.tolist() == [1.0, 1.0]


def test_buffer_that_is_not_persistent_is_not_saved():
    m = nn.Module()
    m.register_buffer("a", ones(1), persistent=False)
    m.b = nn.Buffer(ones(1), persistent=False)
    assert list(m.state_dict()) == []
    assert [n for n, _ in m.named_buffers()] == ["a", "b"]
    assert copy.deepcopy(m.b).persistent is False
    assert pickle.loads(pickle.dumps(m.b)).persistent is False


def test_names_are_dotted_and_shared_modules_come_once():
    shared = nn.Linear(2, 2)
    net = nn.Sequential(shared, nn.Sequential(shared, nn.Linear(2, 1)))
    assert [n for n, _ in net.named_modules()] == ["", "0", "1", "1.1"]
    assert [n for n, _ in net.named_parameters()] == [
        "0.weight",
        "0.bias",
        "1.1.weight",
        "1.1.bias",
    ]
    assert [n for n, _ in net.named_parameters(remove_duplicate=False)][2:4] == [
        "1.0.weight",
        "1.0.bias",
    ]
    assert next(n for n, _ in net.named_parameters("net")) == "net.0.weight"
    assert list(net.parameters(recurse=False)) == []
    assert net.get_submodule("1.1") is net[1][1]
    assert net.get_parameter("1.1.bias") is net[1][1].bias
    with pytest.raises(AttributeError, match="no module '7'"):
        net.get_submodule("1.7")


def test_shared_parameter_is_counted_once():
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    b.weight = a.weight
    net = nn.Sequential(a, b)
    assert len(list(net.parameters())) == 3
    assert b.weight is a.weight


def test_train_and_eval_reach_every_module():
    net = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()))
    assert all(m.training for m in net.modules())
    assert net.eval() is net
    assert not any(m.training for m in net.modules())
    assert all(m.training for m in net.train().modules())
    with pytest.raises(ArgumentError, match="a boolean"):
        net.train("yes")


def test_apply_goes_from_the_leaves_up():
    seen = []
    net = nn.Sequential(nn.Identity(), nn.Sequential(nn.Tanh()))
    assert net.apply(lambda m: seen.append(type(m).__name__)) is net
    assert seen == ["Identity", "Tanh", "Sequential", "Sequential"]


def test_to_converts_floats_and_keeps_the_identity_of_parameters():
    m = nn.BatchNorm1d(2)
    p, count = m.weight, m.num_batches_tracked
    (p * 2.0).sum().backward()
    assert m.to(np.dtype(np.float64)) is m
    assert m.weight is p
    assert p.dtype == m.running_mean.dtype == p.grad.dtype == np.float64
    assert m.num_batches_tracked is count and count.dtype == np.int64
    assert m.float().weight.dtype == np.float32
    assert m.half().weight.dtype == np.float16
    assert m.double().cpu().to("cpu").weight.dtype == np.float64
    assert m.to(zeros(1)).weight.dtype == np.float32
    with pytest.raises(DTypeError, match="floating dtype"):
        m.to(np.dtype(np.int64))


def test_dtype_argument_reaches_parameters_and_buffers():
    m = nn.BatchNorm1d(2, dtype=np.float64)
    assert {t.dtype.name for t in m.state_dict().values()} == {"float64", "int64"}


def test_requires_grad_freezes_and_zero_grad_forgets():
    m = nn.Linear(2, 1)
    m(ones(2)).sum().backward()
    m.zero_grad(set_to_none=False)
    assert m.weight.grad.tolist() == [[0.0, 0.0]]
    m.zero_grad()
    assert m.weight.grad is None
    m.requires_grad_(False)
    assert not m(ones(2)).requires_grad


def test_parameter_states_shape_and_start_once():
    m = Scale(3)
    with no_grad():
        m.weight.mul_(5.0)
    m.reset_parameters()
    assert m.weight.tolist() == [2.0, 2.0, 2.0]
    assert Scale(3, bias=False).bias is None
    assert "bias" in dict(Scale(3, bias=False)._parameters)


def test_bias_can_be_left_out():
    assert nn.Linear(4, 4, bias=False).bias is None
    assert list(nn.Linear(4, 4, bias=False).state_dict()) == ["weight"]


def test_seed_makes_the_same_network():
    nets = []
    for _ in range(2):
        manual_seed(7)
        nets.append(Net())
    for a, b in zip(nets[0].parameters(), nets[1].parameters()):
        assert_close(a.detach(), b.detach(), rtol=0, atol=0)


def test_attribute_error_names_what_was_meant():
    with pytest.raises(AttributeError, match=r"no attribute 'wieght'\. Did you mean: 'weight'"):
        nn.Linear(2, 2).wieght  # noqa: B018


def test_misspelt_argument_is_answered_with_the_right_name():
    with pytest.raises(ArgumentError, match="unexpected keyword argument 'out_feature'") as e:
        nn.Linear(2, out_feature=3)
    assert "did you mean 'out_features'?" in e.value.fix


def test_forgotten_super_call_is_named():
    class Forgetful(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(2, 2)

    with pytest.raises(AttributeError, match=r"before Module.__init__\(\) call"):
        Forgetful()


def test_module_without_forward_says_so():
    class Empty(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match='missing the required "forward"'):
        Empty()(1)


def test_what_is_no_parameter_cannot_take_the_place_of_one():
    m = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="cannot assign 'Tensor' as parameter 'weight'"):
        m.weight = zeros(2, 2)
    with pytest.raises(TypeError, match="a Parameter or None"):
        m.register_parameter("other", zeros(2))
    with pytest.raises(TypeError, match="a Module or None"):
        m.add_module("other", abs)
    with pytest.raises(TypeError, match="a Tensor or None"):
        m.register_buffer("other", 3.0)


@pytest.mark.parametrize("name", ["", "a.b", 3])
def test_name_that_would_break_dotted_names_is_refused(name):
    with pytest.raises(ArgumentError, match="without dots"):
        nn.Module().add_module(name, nn.Identity())


def test_name_of_a_method_is_refused():
    with pytest.raises(ArgumentError, match="attribute 'train' already exists"):
        nn.Module().register_buffer("train", ones(1))


def test_names_that_pytorch_leaves_free_can_be_registered():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("buffer", ones(2))
            self.parameter = nn.Parameter(ones(3))

    net = Net()
    assert net.buffer.shape == (2,) and net.parameter.shape == (3,)
    assert set(net.state_dict()) == {"buffer", "parameter"}
    net.double()
    assert net.buffer.dtype == net.parameter.dtype == np.float64
    net.load_state_dict({"buffer": zeros(2), "parameter": zeros(3)})
    assert net.buffer.sum() == 0.0 and copy.deepcopy(net).parameter.sum() == 0.0
    # Beside them the methods are what they were.
    assert nn.Linear(2, 3).parameter.__func__ is nn.Module.parameter


def test_function_with_state_is_a_module_that_calls_it():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", tensor(0))

        def forward(self, x):
            self.calls += 1
            return x

    m = Counter()
    m(ones(1)), m(ones(1))
    assert m.state_dict()["calls"].item() == 2
    assert isinstance(m._buffers["calls"], type(ones(1)))


def test_repr_is_a_tree():
    net = nn.Sequential(nn.Conv2d(1, 20, 5), nn.ReLU())
    assert repr(net) == (
        "Sequential(\n  (0): Conv2d(1, 20, kernel_size=(5, 5), stride=(1, 1))\n  (1): ReLU()\n)"
    )
    assert repr(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.Tanh()])) == (
        "ModuleList(\n"
        "  (0-1): 2 x Linear(in_features=2, out_features=2, bias=True)\n"
        "  (2): Tanh()\n"
        ")"
    )


def test_positions_of_parts_can_be_listed():
    assert {"weight", "bias", "in_features", "forward"} <= set(dir(nn.Linear(2, 2)))


@pytest.mark.parametrize("base", ["\n    ", "\n"], ids=["indented", "taken out"])
def test_a_docstring_goes_on_with_that_of_the_base(base):
    """Before Python 3.13 the compiler leaves the indentation of docstrings in, later not."""

    def written(text):
        return text.replace("\n", base)

    class Base:
        __doc__ = written("The family.\n\nParameters\n----------\nsize : int\n    Of it.\n")

    @documented_by(Base)
    class One(Base):
        __doc__ = written("One of\nthem.\n")

    assert One.__doc__ == "One of\nthem.\n\nParameters\n----------\nsize : int\n    Of it."

    @documented_by(Base)
    class Silent(Base):
        __doc__ = None

    assert Silent.__doc__ == "Parameters\n----------\nsize : int\n    Of it."


def test_a_layer_has_the_parameters_of_its_family_in_its_docstring():
    paragraphs = nn.MaxPool2d.__doc__.split("\n\n")
    assert paragraphs[1].startswith("Parameters\n----------\n")


class Delegating(nn.Module):
    """Looks in what it wraps for what it does not have."""

    def __init__(self, base):
        super().__init__()
        self.register_buffer("weight", ones(1))
        self.base = base

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base, name)


def test_registering_asks_no_getattr_of_the_user():
    made = Delegating(nn.Linear(2, 3))
    assert list(made.state_dict()) == ["weight", "base.weight", "base.bias"]
    assert made.in_features == 2


def test_conversions_ask_each_module_and_no_method_named_to():
    class Held(nn.Linear):
        """Keeps a tensor that is no buffer beside its weights."""

        def __init__(self):
            super().__init__(1, 1)
            self.table = [ones(2)]

        def _apply(self, fn, recurse=True):
            self.table = [fn(t) for t in self.table]
            return super()._apply(fn, recurse)

        def to(self, *args, **kwargs):
            return self.cpu()

    net = nn.Sequential(Held())
    assert net.double()[0].table[0].dtype == np.float64
    assert net[0].to("elsewhere").float().weight.dtype == np.float32
    assert net[0].half().table[0].dtype == np.float16
