"""Python loops over time become native loops: few nodes, and the numbers of the loop itself."""

import warnings

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.nests.lowering import RULES
from probtorch.compiler.record import rolled as carried_out
from probtorch.compiler.record import rolling
from probtorch.compiler.record.record import record
from probtorch.config import configure
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.errors import CompileError
from probtorch.infer import Target
from probtorch.ops.arithmetic import where
from probtorch.ops.pieces import cat, stack
from probtorch.ops.sampling import randn
from probtorch.tensor import tensor

RNG = np.random.default_rng(0)
T = 250
Y = tensor(RNG.standard_normal(T))
X = tensor(RNG.standard_normal((T, 3)))
FEW = 120


def autoregression(q):
    alpha, beta, log_s = q[0], q[1:6], q[6]
    s = log_s.exp()
    total = -(q * q).sum()
    for t in range(5, T):
        mu = alpha
        for k in range(5):
            mu = mu + beta[k] * Y[t - k - 1]
        total = total - 0.5 * ((Y[t] - mu) / s) ** 2 - log_s
    return total


def windows(q):
    total = -(q * q).sum()
    for t in range(5, T):
        mu = q[0] + (q[1:6] * Y[t - 5 : t]).sum()
        total = total - 0.5 * ((Y[t] - mu) / q[6].exp()) ** 2 - q[6]
    return total


def latent_walk(q):
    """Slices of a vector of latent values, one per turn, and the one before."""
    s = q[0].exp()
    total = -0.5 * q[1] ** 2
    for t in range(1, T - 1):
        total = total - 0.5 * ((q[t + 1] - 0.9 * q[t]) / s) ** 2 - q[0]
        total = total - 0.5 * (Y[t] - q[t + 1]) ** 2
    return total


def second_order(q):
    """Two turns back, and numbers that change from turn to turn."""
    a, b = q[0], q[1]
    before, last = q[2], q[3]
    total = last * 0.0
    for t in range(T):
        new = (a * last + b * before + 0.01 * t).tanh() * 0.99**t
        before, last = last, new
        total = total + new * Y[t]
    return total + last


def collected(q):
    """Outputs gathered in a list, summed afterwards, and stacked as well."""
    terms, states, h = [], [], q[:3]
    for t in range(T):
        h = (h * q[3] + X[t]).tanh()
        states.append(h)
        terms.append((h * q[4:7]).sum())
    total = sum(terms)
    return total + (stack(states) * X).sum() + cat([terms[0].reshape(1), h]).sum()


def backwards(q):
    """A loop that reads what an earlier one made, from its end."""
    alphas, a = [], q[:3]
    for t in range(T):
        a = (a[:, None] + q[3:6] + X[t]).logsumexp(0)
        alphas.append(a)
    b = q[:3] * 0.0
    total = q[0] * 0.0
    for t in reversed(range(T)):
        b = (b + X[t]).tanh()
        total = total + (alphas[t] * b).sum() * 1e-3
    return total


def two_kinds_of_turns(q):
    """The first turns differ from the rest."""
    h, total = q[0], q[1] * 0.0
    for t in range(T):
        if t < 3:
            h = h.exp() * 0.1
        h = h * q[2] + Y[t]
        total = total - h * h
    return total


def forward_algorithm(q):
    log_move = (q[:9].reshape(3, 3)).log_softmax(-1)
    means = q[9:12]
    log_alpha = -0.5 * (Y[0] - means) ** 2
    for t in range(1, T):
        log_alpha = (log_alpha[:, None] + log_move).logsumexp(0) - 0.5 * (Y[t] - means) ** 2
    return log_alpha.logsumexp(0)


def same_in_every_turn(q):
    """Turns that depend on nothing that changes, as the logs of one matrix of probabilities."""
    return stack([(q.exp() + 1.0).log().tanh().sum() for _ in range(T)]).sum()


W = RNG.integers(0, 4, T)
V = RNG.integers(0, 3, T)


def hidden_states(numbers):
    """An HMM whose observations index a table: numbers of Python, or of NumPy."""

    def fn(q):
        log_move = q[:9].reshape(3, 3).log_softmax(-1)
        log_emit = q[9:21].reshape(3, 4).log_softmax(-1)
        log_alpha = log_emit[:, numbers[0]]
        for t in range(1, T):
            log_alpha = (log_alpha[:, None] + log_move).logsumexp(0) + log_emit[:, numbers[t]]
        return log_alpha.logsumexp(0)

    return fn


def known_states(q):
    """Elements of a table by two numbers that change, and of what the loop itself carries."""
    h, table, total = q[:4], q[4:16].reshape(4, 3), q[0] * 0.0
    for t in range(T):
        total = total + table[W[t], V[t]] * Y[t] + h[W[t]]
        h = (h * 0.9 + table[:, V[t]]).tanh()
    return total + h.sum()


def kept_in_place(q):
    """A tensor that each turn writes to, where the data say."""
    h = q[:4] * 1.0
    for t in range(T):
        h[W[t]] = (h[W[t]] * 0.5 + q[4 + V[t]] * Y[t]).tanh()
    return (h * h).sum()


def windows_anywhere(q):
    total = q[0] * 0.0
    for t in range(T):
        total = total + (q[V[t] : V[t] + 4] * X[t, W[t] % 3]).sum().tanh()
    return total


CASES = {
    autoregression: 7,
    windows: 7,
    latent_walk: T,
    second_order: 4,
    collected: 7,
    backwards: 6,
    two_kinds_of_turns: 3,
    forward_algorithm: 12,
    same_in_every_turn: 3,
    hidden_states(W): 21,
    hidden_states(W.tolist()): 21,
    hidden_states(W.astype(np.int8)): 21,
    known_states: 16,
    kept_in_place: 7,
    windows_anywhere: 7,
}


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_the_density_of_a_python_loop_is_a_native_loop(fn):
    dim = CASES[fn]
    density = NativeDensity(fn, dim)
    for seed in range(3):
        q = np.random.default_rng(seed).standard_normal(dim) * 0.3
        value, gradient = density.value_and_grad(q)
        expected, expected_gradient = density.eager(q)
        assert value == pytest.approx(expected, rel=1e-11)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-9)
    assert density.reason is None
    assert density.evaluations == 1
    (path,) = density.paths
    assert len(path.graph.nodes) < FEW
    assert any(node.name == "while" for node in path.graph.nodes)


def test_a_model_with_a_sample_statement_per_step():
    def model(y):
        phi = probtorch.sample("phi", dist.Normal(0.5, 0.2))
        s = probtorch.sample("s", dist.HalfNormal(1.0))
        last = 0.0
        for t in range(150):
            last = probtorch.sample(f"x_{t}", dist.Normal(phi * last, s))
            probtorch.sample(f"y_{t}", dist.Normal(last, 0.5), obs=y[t])

    target = Target.from_model(model, Y)
    q = RNG.standard_normal(152) * 0.2
    value, gradient = target.value_and_grad(q)
    with configure(jit=False):
        expected, expected_gradient = Target.from_model(model, Y).value_and_grad(q)
    assert value == pytest.approx(expected, rel=1e-11)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-10)


def test_an_enumerated_chain_is_rolled():
    """Its dims are reused in turn, and its sum is another loop over what the first one made."""

    def model(y):
        move = probtorch.sample("move", dist.Dirichlet(tensor(np.ones((3, 3)))).to_event(1))
        loc = probtorch.sample("loc", dist.Normal(tensor(np.zeros(3)), 1.0).to_event(1))
        z = 0
        for t in probtorch.markov(range(len(y))):
            z = probtorch.sample(
                f"z_{t}", dist.Categorical(move[z]), infer={"enumerate": "parallel"}
            )
            probtorch.sample(f"y_{t}", dist.Normal(loc[z], 1.0), obs=y[t])

    target = Target.from_model(model, Y[:120])
    q = RNG.standard_normal(target.dim) * 0.3
    value, gradient = target.value_and_grad(q)
    assert len(target.density.paths[0].graph.nodes) < 5 * FEW
    with configure(jit=False):
        expected, expected_gradient = Target.from_model(model, Y[:120]).value_and_grad(q)
    assert value == pytest.approx(expected, rel=1e-11)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-10)


def test_guards_before_and_after_a_loop_still_make_paths():
    def fn(q):
        sign = 1.0 if q[0] > 0 else -1.0
        h = q[1]
        for t in range(T):
            h = (h * q[2] + Y[t]).tanh()
        return h * sign if h > 0 else h * sign * 2.0 - h * h

    density = NativeDensity(fn, 3)
    for q in ([1.0, 0.1, 0.5], [-1.0, 0.1, 0.5], [1.0, 0.3, 5.0], [-1.0, 0.1, -0.5]):
        value, gradient = density.value_and_grad(np.array(q))
        expected, expected_gradient = density.eager(np.array(q))
        assert value == pytest.approx(expected, rel=1e-11)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9)
    assert density.reason is None


def test_a_branch_inside_a_loop_is_not_rolled_away():
    def fn(q):
        h = q[0]
        for t in range(T):
            h = (h * q[1] + Y[t]).tanh() if h > 0 else (h * 0.5 - Y[t]).tanh()
        return h

    density = NativeDensity(fn, 2)
    for q in ([0.1, 0.5], [0.2, -0.5]):
        value, gradient = density.value_and_grad(np.array(q))
        expected, expected_gradient = density.eager(np.array(q))
        assert value == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-10)


KINDS = ["mul", "add", "tanh", "where", "shift", "take", "pick", "put"]


@pytest.mark.parametrize("seed", range(20))
def test_random_loops(seed):
    """Loops of random bodies: operands of all kinds, lags, irregular turns."""
    rng = np.random.default_rng(seed)
    turns, width = int(rng.integers(60, 140)), int(rng.integers(2, 5))
    data = tensor(rng.standard_normal((turns + 8, width)))
    plan = [(rng.choice(KINDS), *rng.integers(0, 6, 2)) for _ in range(int(rng.integers(3, 9)))]
    odd = set(rng.integers(0, turns, int(rng.integers(0, 3))).tolist())
    places = rng.integers(0, width, turns).tolist()

    def fn(q):
        past = [q[:width] * (0.1 * i) for i in range(4)]
        total = q.sum() * 0.1
        kept = []
        for t in range(turns):
            h = past[-1]
            for kind, i, j in plan:
                other = (past[-1 - i % 3], data[t + j], q[j : j + width], data[0], h, past[-2])[i]
                if kind == "mul":
                    h = h * other * 0.5
                elif kind == "add":
                    h = h + other
                elif kind == "tanh":
                    h = (h + 0.1 * t).tanh()
                elif kind == "where":
                    h = probtorch.where(data[t] > 0.0, h, other)
                elif kind == "shift":
                    h = h + q[0] * other.sum()
                elif kind == "pick":
                    h = h * q[places[t]] + other[places[t - 1]]
                elif kind == "put":
                    h = h.clone()
                    h[places[t]] = other[0]
                else:
                    h = h + data[t : t + 2].sum(0) * 0.1
            if t in odd:
                h = h.sin()
            h = h.tanh()
            past.append(h)
            kept.append(h[0])
            total = total + h.sum()
        return total + stack(kept).sum() + kept[turns // 2]

    dim = 6 + width
    density = NativeDensity(fn, dim)
    q = rng.standard_normal(dim) * 0.5
    value, gradient = density.value_and_grad(q)
    expected, expected_gradient = density.eager(q)
    assert density.reason is None
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-7, atol=1e-8)


def test_a_compiled_function_with_gradients_draws_and_updates_is_rolled():
    def make():
        weight = tensor(np.array([0.5, -0.2]), requires_grad=True)
        rng = Generator(3)

        def step(y):
            h = weight[0] * 0.0
            loss = h
            for t in range(T):
                h = (weight[0] * h + weight[1] * y[t] + 0.1 * randn((), generator=rng)).tanh()
                loss = loss + (h - y[t]) ** 2
            (g,) = grad(loss, [weight])
            with probtorch.no_grad():
                weight.sub_(g * 1e-4)
            return loss.detach()

        return step, weight, rng

    (step, weight, rng), (eager, other, theirs) = make(), make()
    compiled = compile(step)
    for _ in range(3):
        assert compiled(Y).item() == pytest.approx(eager(Y).item(), rel=1e-11)
        np.testing.assert_allclose(weight.detach().numpy(), other.detach().numpy(), rtol=1e-10)
    assert rng.get_state() == theirs.get_state()
    assert compiled.reason is None
    (path,) = compiled.paths
    assert len(path.program.graph.nodes) < FEW


def test_gradients_inside_of_loops_over_data_are_rolled():
    weight = tensor(RNG.standard_normal((4, 3)), requires_grad=True)
    start = weight.detach().clone()

    def step(y):
        h = weight[0] * 0.0
        for t in range(T):
            h = (h * 0.7 + weight[W[t]] * y[t]).tanh() + h[V[t]]
        (g,) = grad(h.sum(), [weight])
        with probtorch.no_grad():
            weight.sub_(0.01 * g)
        return g

    expected = [step(Y), step(Y)]
    with probtorch.no_grad():
        weight.copy_(start)
    native = compile(step)
    for e in expected:
        np.testing.assert_allclose(native(Y).numpy(), e.numpy(), rtol=1e-9)
    assert native.reason is None
    (path,) = native.paths
    assert len(path.program.graph.nodes) < FEW


def test_a_loop_begins_where_little_goes_from_turn_to_turn():
    """The user's turn ends with a matrix; the loop's with a vector, so that it keeps vectors."""

    def fn(q):
        move = q[:36].reshape(6, 6).log_softmax(-1)
        table = move - 0.5 * (Y[0] - q[36:42]) ** 2
        for t in range(1, T):
            alpha = table.logsumexp(-1)
            table = alpha + move - 0.5 * (Y[t] - q[36:42]) ** 2
        return table.logsumexp(-1).sum()

    density = NativeDensity(fn, 42)
    q = RNG.standard_normal(42) * 0.3
    value, gradient = density.value_and_grad(q)
    expected, expected_gradient = density.eager(q)
    assert value == pytest.approx(expected, rel=1e-11)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-9)
    (path,) = density.paths
    kept = [o.shape for node in path.graph.nodes if node.name == "while" for o in node.outs]
    assert any(shape[0] > 200 for shape in kept if shape)
    assert all(np.prod(shape[1:]) <= 6 for shape in kept if shape and shape[0] > 200)


def test_short_loops_are_left_alone():
    def fn(q):
        h = q
        for _ in range(5):
            h = (h * 1.1).tanh()
        return h.sum()

    rec, _ = record(fn, [wrap(np.ones(3))])
    assert rolling.rolled(rec.graph) is None


SEQUENCES = {
    "range": range(400),
    "floats": [3.0 * np.sin(i).item() for i in range(400)],
    "mixed": [i if i % 3 else 0.5 * i for i in range(400)],
    "booleans": [i % 3 == 0 for i in range(400)],
    "numbers of NumPy": np.sin(np.arange(400.0)),
    "short numbers of NumPy": list(np.arange(400, dtype=np.float32)),
    "integers of NumPy": np.arange(400) % 100,
}


@pytest.mark.parametrize("numbers", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
@pytest.mark.parametrize("dtype", [probtorch.float32, probtorch.float64], ids=str)
def test_numbers_that_change_from_turn_to_turn_take_the_dtype_of_the_tensors(numbers, shape, dtype):
    def fn(c, x):
        for t in numbers:
            c = (c * 0.9 + x.sum()).sin() + t
        return c

    native = compile(fn)
    c, x = probtorch.ones(shape, dtype=dtype), probtorch.ones(4, dtype=dtype)
    expected, _, found = fn(c, x), native(c, x), native(c, x)
    assert found.dtype == expected.dtype
    rtol = 1e-4 if dtype == probtorch.float32 else 1e-9
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=rtol)
    assert native.reason is None
    (path,) = native.paths
    assert len(path.program.graph.nodes) < FEW


def test_integers_and_choices_between_numbers_are_rolled():
    def fn(c, x, y):
        for t in range(400):
            c = (c * x) % (t + 1) + (c > t) * t
            y = where(y > t, y - 1, (y * 0.3).sin() + t % 7)
        return c, y

    native = compile(fn)
    arguments = tensor(7), tensor(3), tensor(2.0)
    (c, y), _, (found, other) = fn(*arguments), native(*arguments), native(*arguments)
    assert found.item() == c.item()
    assert other.item() == pytest.approx(y.item(), rel=1e-5)
    assert native.reason is None


@pytest.mark.parametrize("place", ["rolled", "record", "lower"])
def test_what_fails_in_rolling_is_no_error_of_the_users(monkeypatch, place):
    """Three places: finding the loops, recording them, writing them as native code."""
    if place == "rolled":
        monkeypatch.setattr(rolling, "_longest", lambda *_: 1 / 0)
    elif place == "record":
        monkeypatch.setattr(carried_out, "scan", lambda *_, **__: 1 / 0)
    else:
        monkeypatch.setitem(RULES, "while", refuse)

    def fn(c):
        for t in range(400):
            c = (c * 0.9).sin() + t
        return c

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        native = compile(fn)
        native(tensor(1.0))
        assert native(tensor(2.0)).item() == pytest.approx(fn(tensor(2.0)).item(), rel=1e-4)
        density = NativeDensity(lambda q: fn(q[0]), 1)
        point = np.array([0.7])
        (value, slope), (expected, gradient) = density.value_and_grad(point), density.eager(point)
    assert native.reason is None and density.reason is None
    assert value == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(slope, gradient, rtol=1e-6)


def refuse(low, node, block):
    raise CompileError("a loop", expected="none", got="one", fix="leave it out")
