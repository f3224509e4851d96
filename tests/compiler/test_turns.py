"""Turns that are followed say what the nodes would have said that were not made."""

import itertools

import numpy as np
import pytest

import probtorch
from probtorch import distributions as dist
from probtorch import where
from probtorch.compiler.compile import compile
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.graph import GraphValue
from probtorch.compiler.record import following, periods, rolling, turns, watching
from probtorch.compiler.record.record import Recorder, record
from probtorch.core.dispatch import wrap
from probtorch.errors import DomainError
from probtorch.ops.pieces import stack
from tests.compiler.loop_programs import random_loop
from tests.compiler.test_rolling import CASES

RNG = np.random.default_rng(1)
STEPS = 120
SERIES = probtorch.tensor(RNG.standard_normal((3, STEPS)))
WORDS = RNG.integers(0, 3, STEPS)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Turns are followed early and compared often."""
    monkeypatch.setattr(watching, "FIRST_LOOK", 60)
    monkeypatch.setattr(following, "WORTH", 60)
    monkeypatch.setattr(following, "TOGETHER", 30)


def nested(q):
    """A loop in a loop, whose first turn is like the others but for what it begins with."""
    total = q[0] * 0.0
    for s in range(3):
        level = probtorch.tensor(0.0, dtype=probtorch.float64)
        for t in range(STEPS):
            level = q[0] * level + (1.0 - q[0]) * SERIES[s, t]
            total = total - 0.5 * (SERIES[s, t] - level) ** 2
    return total


def held(q):
    """Tensors that a list keeps, every third of them, and what is made of these afterwards."""
    h, kept = q[:3], []
    for t in range(STEPS):
        h = (h * q[3] + SERIES[:, t]).tanh()
        if t % 3 == 0:
            kept.append(h)
    return (stack(kept) ** 2).sum() + sum(x[0] for x in reversed(kept))


def one_turn_differs(q):
    total = q[0]
    for t in range(STEPS):
        total = (total * 0.5 + q[1] * SERIES[0, t]).tanh()
        if t == 77:
            total = total.exp()
    return total


def another_operand(q):
    """The ops stay the same; what they read does not."""
    total, last = q[0], q[0]
    for t in range(STEPS):
        new = (total * 0.5 + (q[1] if t < 70 else q[2]) * SERIES[0, t]).tanh()
        total, last = new + (total if t < 90 else last), new
    return total + last


def numbers_and_zeros(q):
    """Signs of zeros and kinds of numbers change."""
    total = q[0]
    for t in range(STEPS):
        total = total * 0.9 + (0.0 if t < 80 else -0.0) * q[1] + (1 if t < 100 else 1.5) * 0.99**t
    return total


def constants_made_inside(q):
    total = q[0]
    for t in range(STEPS):
        made = probtorch.tensor([float(t), 2.0], dtype=probtorch.float64) * 2.0
        total = total * 0.5 + (made * q[:2]).sum()
    return total


def far_back(q):
    before = [q[0], q[1], q[2]]
    for t in range(STEPS):
        before.append((before[-1] * q[0] + before[-3] * 0.5 + SERIES[0, t]).tanh())
    return sum(before[-7:])


def values_asked_for(q):
    """Python reads a number now and then, which is a guard."""
    total = q[0]
    for t in range(STEPS):
        total = (total * 0.5 + q[1] * SERIES[0, t]).tanh()
        if t in (50, 51, 90) and total > -10.0:
            total = total + 1.0
    return total


def written_into(q):
    """A tensor of its own gets an element per turn, after a loop that writes to none."""
    total, out = q[0], probtorch.zeros(STEPS, dtype=probtorch.float64)
    for t in range(STEPS):
        total = (total * 0.5 + q[1] * SERIES[0, t]).tanh()
    for t in range(STEPS):
        total = total * 0.5 + q[2]
        out[t] = total
    return out.sum()


def read_anew(q):
    """What turns read changes in place between them."""
    box, total = q * 1.0, q[0]
    for _ in range(4):
        for t in range(40):
            total = (total * 0.5 + box[1] * SERIES[0, t]).tanh()
        box += 1.0
    return total


def selected(q):
    """Results that come in pairs, and integers on the way."""
    total = q[0]
    for t in range(STEPS):
        best, at = (q * SERIES[0, t]).max(0)
        total = total * 0.5 + best + at.to(probtorch.float64) * 0.1
    return total


def gathered_states(q):
    log_move = q[:9].reshape(3, 3).log_softmax(-1)
    alpha = log_move[0]
    for t in range(STEPS):
        alpha = (alpha[:, None] + log_move).logsumexp(0) + log_move[:, WORDS[t]]
    return alpha.logsumexp(0)


def checked(q):
    """Parameters of distributions are checked: computed in each turn, outside, and constants."""
    scale, total = q[1].exp(), q[0]
    for t in range(STEPS):
        loc = q[2] + 0.5 * (SERIES[0, t - 1] if t else q[3])
        total = total + dist.Normal(loc, scale).log_prob(SERIES[0, t])
        total = total + dist.Normal(loc, 2.0).log_prob(SERIES[1, t])
    return total


def scales_of_turns(q):
    """What is checked is carried, and one number is checked in two turns."""
    last, total = q[0].exp(), q[1]
    for t in range(STEPS):
        scale = (0.1 + 0.5 * last + 0.3 * SERIES[0, t] ** 2).sqrt()
        total = total + dist.Normal(0.0, scale).log_prob(SERIES[0, t])
        total = total + dist.Laplace(q[2], last).log_prob(SERIES[1, t])
        last = scale
    return total


def seldom_checked(q):
    """The same operations, of which some turns have checks and some do not."""
    total = q[0]
    for t in range(STEPS):
        loc = (q[1] * SERIES[0, t]).tanh()
        total = total * 0.9 + loc
        if t not in (50, 51, 90):
            total = total * dist.Delta(loc).v.clamp(0.5, 2.0)
    return total


def numbers_out_of_sight(q):
    """Nan in what is checked would not show in the result."""
    total, loc = q[0], q[1]
    for t in range(STEPS):
        loc = loc * 0.9 + q[2] * SERIES[0, t]
        seen = dist.Normal(loc, 1.0).log_prob(SERIES[1, t])
        total = total + where(SERIES[2, t] > 0.0, seen, 0.0)
    return total


def constants_and_not(q):
    """What is checked is the same at each replay in most turns, and computed in some."""
    total = q[0]
    for t in range(STEPS):
        x = SERIES[0, t].abs() + 0.5 if t not in (70, 71) else q[1].exp() + 0.5
        total = total + dist.Exponential(x * 1.0).log_prob(1.0) * q[2]
    return total


OURS = [
    *(checked, scales_of_turns, seldom_checked, numbers_out_of_sight, constants_and_not),
    nested,
    held,
    one_turn_differs,
    another_operand,
    numbers_and_zeros,
    constants_made_inside,
    far_back,
    values_asked_for,
    written_into,
    read_anew,
    selected,
    gathered_states,
]
ALL = [(fn, CASES[fn], True) for fn in CASES] + [(fn, 9, x) for fn in OURS for x in (True, False)]


def canonical(graph):
    """Return a graph with its values numbered as they come."""
    counter, numbers = itertools.count(), {}

    def name(v):
        if type(v) is not GraphValue:
            return type(v).__name__, repr(v)
        if v.kind == "const":
            return "const", v.array.dtype.str, v.array.shape, v.array.tobytes()
        if v.kind == "ref":
            return "ref", id(v.array)
        return numbers[v.id]

    for v in graph.inputs:
        numbers[v.id] = next(counter)
    found = []
    for node in graph.nodes:
        inputs = list(map(name, node.inputs))
        for v in node.outs:
            assert v.node is node
            numbers[v.id] = next(counter)
        outs = [(v.shape, v.dtype, v.index) for v in node.outs]
        found.append((node.name, inputs, repr(node.attrs), outs))
    return found, list(map(name, graph.outputs)), [(name(v), x) for v, x, _ in graph.guards]


def recorded(fn, q, frozen, followed):
    rec, _ = record(fn, [wrap(q)], frozen=frozen, turns=followed)
    return rec.graph


@pytest.mark.parametrize("fn, dim, frozen", ALL, ids=lambda x: getattr(x, "__name__", str(x)))
def test_turns_that_were_followed_expand_to_the_nodes_that_were_recorded(fn, dim, frozen):
    q = RNG.standard_normal(dim) * 0.3
    plain = recorded(fn, q, frozen, False)
    followed = recorded(fn, q, frozen, True)
    assert turns.length(followed) == len(plain.nodes)
    assert canonical(turns.expanded(followed)) == canonical(plain)


def test_random_loops_expand_to_the_nodes_that_were_recorded():
    followed = 0
    for seed in range(30):
        fn, q, frozen = random_loop(seed), RNG.standard_normal(3), bool(seed % 2)
        graph = recorded(fn, q, frozen, True)
        followed += any(node.name == "turns" for node in graph.nodes)
        plain = canonical(recorded(fn, q, frozen, False))
        assert canonical(turns.expanded(graph)) == plain, f"seed {seed}"
    assert followed > 10


@pytest.mark.parametrize("fn", OURS, ids=lambda fn: fn.__name__)
def test_a_function_whose_turns_were_followed_is_compiled_to_what_python_computes(fn):
    compiled = compile(fn)
    for _ in range(3):
        q = probtorch.tensor(RNG.standard_normal(9) * 0.3)
        got, expected = compiled(q), fn(q)
        np.testing.assert_allclose(got.array, expected.array, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "fn", [nested, held, far_back, gathered_states], ids=lambda fn: fn.__name__
)
def test_most_turns_leave_no_nodes(fn):
    graph = recorded(fn, RNG.standard_normal(9), True, True)
    assert len(graph.nodes) < turns.length(graph) / 2


def test_tensors_of_turns_that_nobody_holds_are_forgotten():
    def walk(q, steps):
        for _ in range(steps):
            q = (q * 0.5 + 1.0).tanh()
        return q

    kept = [
        len(record(lambda q, n=n: walk(q, n), [wrap(np.ones(2))], turns=True)[0]._alive)
        for n in (300, 3000)
    ]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("fn", [checked, scales_of_turns], ids=lambda fn: fn.__name__)
def test_checks_of_parameters_end_no_turns(fn):
    rec = Recorder()

    def density(q):
        value = fn(q)
        rec.settle(value)
        return value

    record(density, [wrap(RNG.standard_normal(9) * 0.3)], recorder=rec, turns=True)
    assert len(rec.graph.nodes) < turns.length(rec.graph) / 2


@pytest.mark.parametrize("fn", [numbers_out_of_sight, seldom_checked], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("bad", [np.nan, 0.1])
def test_nan_in_a_turn_that_was_followed_is_what_it_is_for_python(fn, bad):
    native = NativeDensity(fn, 4)
    native.value_and_grad(np.full(4, 0.1))
    for k in range(1, 3):
        q = np.full(4, 0.1)
        q[k] = bad
        value, gradient = native.value_and_grad(q)
        try:
            expected, expected_gradient = native.eager(q)
        except DomainError:
            assert value == -np.inf
            continue
        np.testing.assert_allclose(value, expected, rtol=1e-11)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9)


@pytest.mark.parametrize("how", ["detach", "no_grad"])
def test_what_a_loop_keeps_off_the_tape_stays_off_it(how):
    def density(q):
        h = q[0]
        for t in range(STEPS):
            if how == "detach":
                before = h.detach()
            else:
                with probtorch.no_grad():
                    before = h * 1.0
            h = (h * q[1] - 0.3 * before + SERIES[0, t]).tanh() * 1.0 + 0.0 * q[1] * h * 2.0 - 0.1
        return h

    native, q = NativeDensity(density, 2), RNG.standard_normal(2)
    value, gradient = native.value_and_grad(q)
    expected, expected_gradient = native.eager(q)
    assert value == pytest.approx(expected, rel=1e-11)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-12)


class Steep(probtorch.autograd.Function):
    """Twice a number, whose slope is said to be another."""

    @staticmethod
    def forward(ctx, a):
        return a * 2.0

    @staticmethod
    def backward(ctx, g):
        return g * 7.0


def one_turn_without_gradients(x):
    s = x * 0.0
    for t in range(1500):
        if t == 1495:
            with probtorch.no_grad():
                s = s * 0.99 + x.sin()
        else:
            s = s * 0.99 + x.sin()
    return s


def a_copy_off_the_tape(x):
    m, s = probtorch.zeros(2, dtype=x.dtype), x * 1.0
    with probtorch.no_grad():
        m.copy_(x)
    for _ in range(1200):
        s = s * 0.99 + x - m * 0.05
    return s


def a_row_off_the_tape(x):
    m, s = probtorch.zeros(2, dtype=x.dtype), x * 1.0
    for _ in range(600):
        s = s * 0.99 + x - m * 0.05
        with probtorch.no_grad():
            m[0] = s[1] * 0.5
    return s


def taken_off_in_place(x):
    c, s = x.tanh(), x * 1.0
    c.detach_()
    for _ in range(1200):
        s = s * 0.99 + x * c
    return s


def a_hook_inside(x):
    s = x * 1.0
    for _ in range(1200):
        s = s * 0.99 + x
    s.register_hook(lambda g: g * 0.5)
    return s


def a_rule_of_its_own_after_the_loop(x):
    s = x * 1.0
    for _ in range(1200):
        s = s * 0.5 + x
    return Steep.apply(s)


KEPT_OFF = [
    *(one_turn_without_gradients, a_copy_off_the_tape, a_row_off_the_tape),
    *(taken_off_in_place, a_hook_inside, a_rule_of_its_own_after_the_loop),
]


@pytest.mark.parametrize("walk", KEPT_OFF, ids=lambda fn: fn.__name__)
def test_what_python_keeps_off_the_tape_stays_off_in_the_first_gradient(walk):
    def density(x):
        return walk(x).sum() * 0.01 - (x * x).sum()

    q = np.array([0.3, 0.7])
    native = NativeDensity(density, 2)
    value, slope = native.value_and_grad(q)
    expected, expected_slope = native.eager(q)
    assert value == pytest.approx(expected, rel=1e-11)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_names_repeat_wherever_turns_are_found(seed):
    # Of so few operations that there are turns by chance, too; behind and ahead of them others.
    rng = np.random.default_rng(seed)
    for period in (1, 2, 3, 7, 11, 12, 13, 40, 99, 100, 130):
        before, turn, after = (rng.integers(0, 5, n) for n in (rng.integers(300), period, 20))
        for count in (3, 8, 9, 12):
            at_end = np.concatenate([before, np.tile(turn, count)])
            signatures = np.concatenate([at_end, after[: rng.integers(20)]])
            if rolling._longest(signatures) is not None:
                assert periods.repeats(signatures.tolist())
            found = watching._period(at_end)
            # Fewer turns than these are no loop's (`_begin`).
            if found is not None and found[1] >= (watching.least_turns(found[0]) + 1) * found[0]:
                assert periods.repeats(at_end.tolist())


def test_names_in_no_order_do_not_repeat():
    names = np.random.default_rng(0).integers(0, 9, 1000).tolist()
    assert not periods.repeats(names)
    assert periods.repeats([*names[:500], *names[100:200] * 8, *names[500:]])
    assert not periods.repeats([])
