"""Whole modules in files: what comes back, what is refused, and what a hostile file cannot do."""

import io
import json
import tracemalloc

import numpy as np
import pytest

import probtorch
from probtorch import nn, serialization
from probtorch.errors import ArgumentError, DTypeError, FileError
from probtorch.nn.utils.parametrizations import low_rank, orthogonal, spectral_norm, stiefel
from probtorch.nn.utils.parametrize import is_parametrized
from probtorch.serialization import container, safe_globals
from probtorch.testing.compare import assert_close
from tests.nn.layers import LAYERS


class Net(nn.Module):
    """A module of a user's."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.again = self.first
        self.by_name = {"first": self.first, "shape": (2, 3)}
        self.activation = nn.functional.relu
        self.seen = {"b", "a"}
        self.parameter("scale", (3,), init=nn.init.constant(2.0))
        self.buffer("count", (), init=nn.init.zeros(), persistent=False)

    def forward(self, x):
        return self.activation(self.again(x)) * self.scale


def shouted(x):
    return x * 100.0


def saved(obj):
    file = io.BytesIO()
    probtorch.save(obj, file)
    file.seek(0)
    return file


def through(obj, **options):
    return probtorch.load(saved(obj), **options)


# --------------------------------------------------------------------------------- what comes back


@pytest.mark.parametrize("row", LAYERS, ids=lambda row: row.id)
def test_every_layer_comes_back(row):
    made = row.build().eval()
    found = through(made)
    assert type(found) is type(made)
    assert repr(found) == repr(made)
    assert list(found.state_dict()) == list(made.state_dict())
    inputs = [t.detach().float() if t.is_floating_point() else t for t in row.tensors()]
    with probtorch.no_grad():
        expected, output = made(*inputs), found(*inputs)
    expected, output = (y if isinstance(y, tuple) else (y,) for y in (expected, output))
    for a, b in zip(expected, output):
        if isinstance(a, probtorch.Tensor):
            assert a.array.tobytes() == b.array.tobytes()


def test_model_comes_back_as_it_was():
    net = nn.Sequential(
        nn.Linear(3, 4),
        nn.BatchNorm1d(4),
        probtorch.tanh,
        orthogonal(nn.Linear(4, 4)),
        spectral_norm(nn.Linear(4, 3)),
        stiefel(nn.Linear(3, 2)),
        low_rank(nn.Linear(2, 2)),
    )
    net(probtorch.randn(5, 3)).sum().backward()
    net[0].bias.requires_grad_(False)
    net[1].eval()
    found = through({"net": net, "epoch": 3})["net"]
    assert [m.training for m in found.modules()] == [m.training for m in net.modules()]
    assert [p.requires_grad for p in found.parameters()] == [
        p.requires_grad for p in net.parameters()
    ]
    assert all(isinstance(p, nn.Parameter) and p.grad is None for p in found.parameters())
    assert is_parametrized(found[3], "weight") and not is_parametrized(found[0])
    x = probtorch.randn(5, 3)
    assert_close(found.eval()(x), net.eval()(x))
    found.load_state_dict(net.state_dict())


def test_module_of_ones_own_keeps_what_it_shares():
    net = Net()
    with safe_globals([Net]):
        found = through(net)
    assert type(found) is Net
    assert found.again is found.first is found.by_name["first"]
    assert found.by_name["shape"] == (2, 3) and found.seen == {"a", "b"}
    assert found.activation is nn.functional.relu
    assert len(list(found.parameters())) == 3
    assert list(found.state_dict()) == list(net.state_dict())
    with probtorch.no_grad():
        found.scale.fill_(0.0)
    found.reset_parameters()
    assert_close(found.scale, np.full(3, 2.0, np.float32))
    assert_close(net.scale, np.full(3, 2.0, np.float32))


def test_compiled_module_is_saved_as_what_it_was_compiled_from():
    for net in (nn.Linear(3, 2), orthogonal(nn.Linear(3, 3))):
        found = through(probtorch.compile(net))
        assert type(found) is type(net)
        assert_close(found.weight, net.weight)


def test_file_may_lie_on_the_disk_and_be_mapped(tmp_path):
    net = nn.Linear(3, 2)
    probtorch.save(net, tmp_path / "net.pt")
    for options in ({}, {"mmap": True}, {"map_location": "cpu"}):
        found = probtorch.load(tmp_path / "net.pt", **options)
        assert_close(found.weight, net.weight)
        with probtorch.no_grad():
            found.weight.mul_(2.0)


# ------------------------------------------------------------------------------- who may be named


def test_class_of_ones_own_has_to_be_allowed():
    with pytest.raises(FileError, match=r"safe_globals\(\[Net\]\)") as error:
        through({"models": [Net()]})
    assert "test_modules.Net" in str(error.value)
    assert type(through(Net(), weights_only=False)) is Net


def test_function_of_ones_own_has_to_be_allowed():
    net = nn.Sequential(shouted)
    with pytest.raises(FileError, match="shouted"):
        through(net)
    for found in (through(net, weights_only=False), allowed(net, shouted)):
        assert found(probtorch.tensor(2.0)).item() == 200.0


def allowed(net, *named):
    with safe_globals(named):
        return through(net)


def test_what_is_allowed_is_forgotten_again():
    before = serialization.get_safe_globals()
    with safe_globals([Net]):
        assert Net in serialization.get_safe_globals()
    assert serialization.get_safe_globals() == before
    serialization.add_safe_globals([Net])
    try:
        assert type(through(Net())) is Net
    finally:
        serialization.clear_safe_globals()
    assert serialization.get_safe_globals() == []


# ------------------------------------------------------------------------------------------ refused


def inner():
    class Local(nn.Module):
        pass

    return Local()


def with_hook():
    made = nn.Linear(2, 2)
    made.register_forward_hook(lambda module, args, output: None)
    return made


@pytest.mark.parametrize(
    "make, text",
    [
        (inner, "define the class at the top level"),
        (lambda: nn.Sequential(lambda x: x), r"object\.\_modules\['0'\]\.fn"),
        (lambda: nn.Sequential(lambda x: x), "save the module's state_dict"),
        (with_hook, "remove the hooks"),
        (lambda: {"f": shouted}, "code and objects are not saved"),
    ],
)
def test_what_has_no_address_is_refused(make, text):
    with pytest.raises(DTypeError, match=text):
        saved(make())


def test_hook_that_was_removed_is_no_obstacle():
    made = nn.Linear(2, 2)
    made.register_forward_hook(lambda module, args, output: None).remove()
    assert_close(through(made).weight, made.weight)


def test_only_what_has_an_address_can_be_allowed():
    with pytest.raises(ArgumentError, match="out of the function it is in"):
        serialization.add_safe_globals([type(inner())])
    with pytest.raises(ArgumentError, match="classes and functions"):
        serialization.add_safe_globals([3])


# ------------------------------------------------------------------------------------------ hostile


def file_of(nodes):
    file = io.BytesIO()
    header = {"library": "0", "nodes": nodes, "views": [], "blobs": []}
    container.write(file, header, [])
    file.seek(0)
    return file


LINEAR = ["probtorch.nn.linear", "Linear"]
# Nodes 0 to 6 of a module without anything in it; the last is the place of one attribute more.
EMPTY = ["_parameters", "_buffers", "_modules", ["dict", []], "_non_persistent", ["set", []]]
ITEMS = [0, 3, 1, 3, 2, 3, 4, 5]


def module(address=LINEAR, names=(), attribute=None, value=None, value_nodes=()):
    nodes = [*EMPTY, *value_nodes]
    items = list(ITEMS)
    if attribute is not None:
        nodes += [attribute, value]
        items += [len(nodes) - 2, len(nodes) - 1]
    return [*nodes, ["object", *address, list(names), items]]


def test_smallest_module_is_one():
    found = probtorch.load(file_of(module(attribute="in_features", value=3)))
    assert type(found) is nn.Linear and found.in_features == 3


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(module(address=address), id=".".join(map(str, address)))
        for address in [
            ["os", "system"],
            ["builtins", "eval"],
            ["subprocess", "Popen"],
            ["probtorch.__main__", "main"],
            ["probtorch.serialization.saving", "save"],
            ["probtorch.nn.linear", "Missing"],
            ["probtorch.nn.linear", "Tensor"],
            ["probtorch.nn.linear", "Linear.forward"],
            ["probtorch.nn.linear", ""],
            ["probtorch.nn..linear", "Linear"],
            ["probtorch.nn.module", "inspect.os.system"],
            ["probtorch.nn.hooks", "Hooks"],
            ["probtorch.nn.linear", 3],
            [None, "Linear"],
            ["probtorch.ops.arithmetic", "relu"],
            ["probtorch.distributions.normal", "Normal"],
        ]
    ]
    + [
        pytest.param([["named", *address]], id="named " + ".".join(address))
        for address in [
            ["os", "system"],
            ["builtins", "exec"],
            ["probtorch.nn.module", "inspect.os.system"],
            ["probtorch.serialization.saving", "load"],
            ["probtorch.distributions.normal", "Normal"],
            ["probtorch.distributions.validation", "unwritten"],
        ]
    ]
    + [
        module(attribute="forward", value=["named", "probtorch.nn.functional.activation", "relu"]),
        module(attribute="__class__", value=3),
        module(attribute="_hooks", value=3),
        module(attribute=3, value=3),
        module(names=["weight"]),
        module(names="weight"),
        module(names=[3]),
        [*EMPTY, ["object", *LINEAR, [], []]],
        [*EMPTY, ["object", *LINEAR, [], [0, 5, 1, 3, 2, 3, 4, 5]]],
        [*EMPTY, "x", 7, ["dict", [6, 7]], ["object", *LINEAR, [], [0, 8, 1, 3, 2, 3, 4, 5]]],
        [*EMPTY, "x", 7, ["dict", [6, 7]], ["object", *LINEAR, [], [0, 3, 1, 3, 2, 8, 4, 5]]],
        [["object", *LINEAR, [], [0, 0]]],
        [["set", [0]]],
        [["list", []], ["set", [0]]],
        [1, ["set", [0, 0]]],
    ],
    ids=lambda nodes: json.dumps(nodes[-1])[:60],
)
def test_file_cannot_choose_what_is_called(nodes):
    with pytest.raises(FileError):
        probtorch.load(file_of(nodes))


def test_many_modules_take_memory_by_the_length_of_their_file():
    nodes = [*EMPTY, *[["object", *LINEAR, [], ITEMS]] * 3000]
    file = file_of(nodes)
    length = len(file.getvalue())
    tracemalloc.start()
    found = probtorch.load(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found, nn.Linear)
    assert peak < 12 * length + 2**20
