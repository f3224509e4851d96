"""Recurrent layers against recursions written out in NumPy, gate by gate."""

import numpy as np
import pytest

import probtorch.nn as nn
from probtorch.autograd.modes import no_grad
from probtorch.compiler.compile import compile
from probtorch.core.rng import manual_seed
from probtorch.core.tree import flatten
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import zeros
from probtorch.func import jvp
from probtorch.nn.utils import functional_call
from probtorch.ops.trigonometry import sin
from probtorch.tensor import tensor
from probtorch.testing import assert_close

RNG = np.random.default_rng(3)


def normal(*shape):
    return RNG.standard_normal(shape)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def rnn(x, h, w):
    return (np.tanh(w["weight_ih"] @ x + w["bias_ih"] + w["weight_hh"] @ h[0] + w["bias_hh"]),)


def gru(x, h, w):
    xr, xz, xn = np.split(w["weight_ih"] @ x + w["bias_ih"], 3)
    hr, hz, hn = np.split(w["weight_hh"] @ h[0] + w["bias_hh"], 3)
    r, z = sigmoid(xr + hr), sigmoid(xz + hz)
    return ((1 - z) * np.tanh(xn + r * hn) + z * h[0],)


def lstm(x, state, w):
    h, c = state
    gates = w["weight_ih"] @ x + w["bias_ih"] + w["weight_hh"] @ h + w["bias_hh"]
    i, f, g, o = np.split(gates, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return (w["weight_hr"] @ h if "weight_hr" in w else h), c


STEPS = {"RNN": rnn, "GRU": gru, "LSTM": lstm}


def weights(module, suffix=""):
    return {
        name.removesuffix(suffix): p.detach().numpy()
        for name, p in module.named_parameters()
        if name.endswith(suffix)
    }


def written_out(module, name, x, start):
    """Outputs (L, N, size) and last states of a stack of layers, one number at a time."""
    directions = 1 + module.bidirectional
    last = [[] for _ in start]
    for layer in range(module.num_layers):
        outs = []
        for d in range(directions):
            w = weights(module, f"_l{layer}" + "_reverse" * d)
            k = layer * directions + d
            steps = range(len(x))[:: -1 if d else 1]
            out = np.zeros((len(x), x.shape[1], start[0].shape[-1]))
            ends = [np.zeros(s.shape[1:]) for s in start]
            for n in range(x.shape[1]):
                state = tuple(s[k, n] for s in start)
                for t in steps:
                    state = STEPS[name](x[t, n], state, w)
                    out[t, n] = state[0]
                for e, s in zip(ends, state):
                    e[n] = s
            outs.append(out)
            for found, e in zip(last, ends):
                found.append(e)
        x = np.concatenate(outs, -1)
    return x, [np.stack(found) for found in last]


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("given", [False, True], ids=["zeros", "given"])
def test_layer_follows_its_recursion(name, layers, bidirectional, given):
    m = getattr(nn, name)(3, 4, layers, bidirectional=bidirectional).double()
    x, count = normal(5, 2, 3), layers * (1 + bidirectional)
    states = 2 if name == "LSTM" else 1
    start = [normal(count, 2, 4) * given for _ in range(states)]
    expected, ends = written_out(m, name, x, start)
    hx = [tensor(s) for s in start]
    out, last = m(tensor(x), (hx if states == 2 else hx[0]) if given else None)
    assert_close(out.detach(), expected, rtol=1e-10, atol=1e-12)
    for got, e in zip(last if states == 2 else (last,), ends, strict=True):
        assert_close(got.detach(), e, rtol=1e-10, atol=1e-12)


def test_projected_lstm_follows_its_recursion():
    m = nn.LSTM(3, 4, 2, proj_size=2).double()
    x = normal(5, 2, 3)
    expected, ends = written_out(m, "LSTM", x, [np.zeros((2, 2, 2)), np.zeros((2, 2, 4))])
    out, (h, c) = m(tensor(x))
    for got, e in zip((out, h, c), (expected, *ends)):
        assert_close(got.detach(), e, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", STEPS)
def test_batch_first_and_unbatched_inputs_are_rearrangements(name):
    one = getattr(nn, name)(3, 4).double()
    two = getattr(nn, name)(3, 4, batch_first=True).double()
    two.load_state_dict(one.state_dict())
    x = normal(5, 2, 3)
    out, _ = one(tensor(x))
    swapped, last = two(tensor(x.swapaxes(0, 1)))
    assert_close(swapped.detach(), out.detach().numpy().swapaxes(0, 1), rtol=1e-13)
    assert (last[0] if name == "LSTM" else last).shape == (1, 2, 4)
    single, last = one(tensor(x[:, 1]))
    assert_close(single.detach(), out.detach().numpy()[:, 1], rtol=1e-12)
    assert (last[0] if name == "LSTM" else last).shape == (1, 4)


@pytest.mark.parametrize("name", STEPS)
def test_cell_is_one_step_of_the_layer(name):
    m = getattr(nn, name + "Cell")(3, 4).double()
    x, states = normal(2, 3), [normal(2, 4) for _ in range(2 if name == "LSTM" else 1)]
    hx = [tensor(s) for s in states]
    got = m(tensor(x), hx if name == "LSTM" else hx[0])
    w = weights(m)
    for n in range(2):
        expected = STEPS[name](x[n], tuple(s[n] for s in states), w)
        for g, e in zip(got if name == "LSTM" else (got,), expected, strict=True):
            assert_close(g.detach()[n], e, rtol=1e-11, atol=1e-13)
    start = m(tensor(x[0]))
    assert (start[0] if name == "LSTM" else start).shape == (4,)


@pytest.mark.parametrize("nonlinearity", ["linear", None])
def test_linear_rnn_is_a_power_of_its_matrix(nonlinearity):
    m = nn.RNN(2, 3, nonlinearity=nonlinearity, bias=False).double()
    w = m.weight_hh_l0.detach().numpy()
    h = normal(1, 1, 3)
    out, _ = m(zeros(6, 1, 2, dtype=np.float64), tensor(h))
    expected = [np.linalg.matrix_power(w, t + 1) @ h[0, 0] for t in range(6)]
    assert_close(out.detach()[:, 0], np.array(expected), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("nonlinearity", "fn"),
    [("relu", lambda x: np.maximum(x, 0)), (sin, np.sin)],
    ids=["relu", "a function"],
)
def test_rnn_takes_any_nonlinearity(nonlinearity, fn):
    m, cell = nn.RNN(2, 3, 1, nonlinearity).double(), nn.RNNCell(2, 3, True, nonlinearity).double()
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in m.state_dict().items()})
    x, w = normal(4, 1, 2), weights(m, "_l0")
    h = np.zeros(3)
    out, _ = m(tensor(x))
    for t in range(4):
        before = h
        h = fn(w["weight_ih"] @ x[t, 0] + w["bias_ih"] + w["weight_hh"] @ h + w["bias_hh"])
        assert_close(out.detach()[t, 0], h, rtol=1e-11, atol=1e-13)
        assert_close(cell(tensor(x[t, 0]), tensor(before)).detach(), h, rtol=1e-11, atol=1e-13)


def test_names_and_shapes_of_parameters():
    m = nn.LSTM(3, 4, 2, bidirectional=True)
    shapes = {name: tuple(p.shape) for name, p in m.named_parameters()}
    assert shapes["weight_ih_l0"] == (16, 3)
    assert shapes["weight_ih_l1_reverse"] == (16, 8)
    assert shapes["weight_hh_l1"] == (16, 4)
    assert shapes["bias_hh_l0_reverse"] == (16,)
    assert [len(group) for group in m.all_weights] == [4, 4, 4, 4]
    m.flatten_parameters()
    assert len(list(nn.GRU(3, 4, bias=False).parameters())) == 2


def test_dropout_acts_between_layers_in_training():
    manual_seed(0)
    m = nn.GRU(3, 4, 2, dropout=1.0).double()
    x = tensor(normal(3, 2, 3))
    alone, _ = m(x)
    other, _ = m(x * 5.0)
    assert_close(alone.detach(), other.detach(), rtol=0, atol=0)
    m.eval()
    assert np.abs(m(x)[0].detach().numpy() - alone.detach().numpy()).max() > 1e-3


def test_dropout_with_one_layer_warns():
    with pytest.warns(UserWarning, match="between layers"):
        nn.GRU(3, 4, dropout=0.5)


def test_gradient_of_a_long_sequence_reaches_its_start():
    m = nn.RNN(1, 2).double()
    x = tensor(np.zeros((3000, 1, 1)), requires_grad=True)
    m(x)[0][-1].sum().backward()
    assert x.grad.shape == (3000, 1, 1)
    assert np.abs(x.grad.numpy()[-1]).max() > 0


def test_empty_sequence_leaves_the_state():
    h = tensor(normal(1, 2, 4))
    out, last = nn.GRU(3, 4).double()(zeros(0, 2, 3, dtype=np.float64), h)
    assert out.shape == (0, 2, 4)
    assert_close(last, h, rtol=0, atol=0)


def test_forward_mode_follows_differences():
    m = nn.LSTM(2, 3).double()
    x, v, step = tensor(normal(4, 1, 2)), tensor(normal(4, 1, 2)), 1e-5
    _, tangent = jvp(lambda x: m(x)[0], (x,), (v,))
    numeric = (m(x + step * v)[0] - m(x - step * v)[0]) / (2 * step)
    assert_close(tangent.detach(), numeric.detach().numpy(), rtol=1e-6, atol=1e-8)


def test_compiled_layer_is_the_eager_one():
    m = nn.LSTM(2, 3).double()
    values = {name: p.detach() for name, p in m.named_parameters()}
    names = list(values)

    def run(x, *values):
        return functional_call(m, dict(zip(names, values)), x)[0]

    x = tensor(normal(5, 2, 2))
    native = compile(run)
    native(x, *values.values())
    assert native.reason is None
    assert_close(native(x, *values.values()), m(x)[0].detach().numpy(), rtol=1e-11, atol=1e-13)


def test_mistakes_are_named():
    with pytest.raises(ShapeError, match=r"\(L, N, 3\)"):
        nn.RNN(3, 4)(zeros(5, 2, 2))
    with pytest.raises(ShapeError, match=r"a state of shape \(2, 2, 4\)"):
        nn.RNN(3, 4, 2)(zeros(5, 2, 3), zeros(1, 2, 4))
    with pytest.raises(ArgumentError, match="2 states"):
        nn.LSTM(3, 4)(zeros(5, 2, 3), (zeros(1, 2, 4),))
    with pytest.raises(ArgumentError, match="'tanh', 'relu', 'linear'"):
        nn.RNN(3, 4, nonlinearity="sine")
    with pytest.raises(ArgumentError, match="proj_size smaller"):
        nn.LSTM(3, 4, proj_size=4)
    with pytest.raises(ShapeError, match=r"an input \(N, 3\)"):
        nn.GRUCell(3, 4)(zeros(2, 4))
    with pytest.raises(ShapeError, match="a state of shape"):
        nn.LSTMCell(3, 4)(zeros(2, 3), (zeros(2, 4), zeros(3, 4)))
    with pytest.raises(ArgumentError, match="hidden_size: an integer"):
        nn.GRU(3, 0)


# -------------------------------------------------------------------------- compiled long sequences


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(3, 4, bidirectional=True, proj_size=2),
        lambda: nn.GRU(3, 4),
        lambda: nn.RNN(3, 4, nonlinearity=sin, bias=False),
    ],
    ids=["LSTM", "GRU", "RNN"],
)
def test_compiled_long_sequences_are_loops_with_the_eager_gradients(make):
    m, x = make().double(), tensor(normal(20, 2, 3))

    def loss(x):
        m.zero_grad()
        out, last = m(x)
        total = (out**2).sum() + sum(s.sin().sum() for s in flatten(last)[0])
        total.backward()
        return total, [p.grad.clone() for p in m.parameters()]

    expected, compiled = loss(x), compile(loss)
    for _ in range(3):
        assert_close(compiled(x), expected, rtol=1e-10, atol=1e-12)
    assert compiled.reason is None
    other, longer = compile(loss), tensor(normal(60, 2, 3))
    other(longer)
    other(longer)
    nodes = [len(f.paths[0].program.graph.nodes) for f in (compiled, other)]
    assert nodes[0] == nodes[1]


def test_a_compiled_step_that_draws_is_as_it_is_eagerly():
    m = nn.RNN(3, 4, nonlinearity=lambda x: nn.functional.dropout(x.tanh(), 0.5))
    x = tensor(normal(20, 2, 3)).float()
    compiled = compile(no_grad()(lambda x: m(x)[0]))
    for seed in range(3):
        manual_seed(seed)
        found = compiled(x)
        manual_seed(seed)
        assert_close(found, m(x)[0].detach())
    assert compiled.reason is None
