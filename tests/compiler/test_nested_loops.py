"""Python loops in loops become native loops in native loops, whoever runs them."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.compiler.compile import compile
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.record import following, watching
from probtorch.compiler.record.record import record
from probtorch.config import configure
from probtorch.core.dispatch import wrap
from probtorch.infer import Target
from probtorch.ops.pieces import stack

RNG = np.random.default_rng(0)
SERIES, STEPS = 14, 25
Y = probtorch.tensor(RNG.standard_normal((SERIES, STEPS)))
X = probtorch.tensor(RNG.standard_normal((STEPS, 3)))
LENGTHS = RNG.integers(10, STEPS, SERIES).tolist()
FEW = 100


def smoothed(q):
    total = q[0] * 0.0
    for s in range(SERIES):
        level = probtorch.tensor(0.0, dtype=probtorch.float64)
        for t in range(STEPS):
            level = q[0] * level + (1.0 - q[0]) * Y[s, t]
            total = total - 0.5 * (Y[s, t] - level) ** 2
    return total


def levels_of_their_own(q):
    """Each series has parameters, each step too; Python makes numbers of its own."""
    total = -(q * q).sum()
    for s in range(SERIES):
        level, scale = q[s], q[SERIES].exp()
        for t in range(1, STEPS):
            level = 0.9 * level + 0.1 * Y[s, t - 1] + q[SERIES + 1 + t] * 0.99**t
            total = total - 0.5 * ((Y[s, t] - level) / scale) ** 2 - q[SERIES] * (1.0 + s)
        total = total + level.tanh()
    return total


def latent_grid(q):
    """A latent value for each series and step, as a matrix."""
    grid, total = q.reshape(SERIES, STEPS), -(q * q).sum()
    for s in range(SERIES):
        for t in range(1, STEPS):
            total = total - 0.5 * (grid[s, t] - 0.8 * grid[s, t - 1]) ** 2
            total = total - 0.5 * (Y[s, t] - grid[s, t]).tanh() ** 2
    return total


def collected(q):
    """States of each series are put in a list and read afterwards; vectors go from turn to turn."""
    total = q[0] * 0.0
    for s in range(SERIES):
        h, kept = q[:3] * Y[s, 0], []
        for t in range(STEPS):
            h = (h * q[3] + X[t] * Y[s, t]).tanh()
            kept.append(h)
        total = total + (stack(kept) * X).sum() + (h[:, None] + q[3:6]).logsumexp(0).sum()
    return total


def three_deep(q):
    total, h = q[0] * 0.0, q[1]
    for a in range(9):
        h = h * 0.5 + q[2]
        for b in range(10):
            level = h * Y[a, b]
            for c in range(20):
                level = (level * q[0] + Y[a, c] * X[b, 1]).tanh()
            total = total + level * q[3]
    return total + h


def of_unequal_length(q):
    total = q[0] * 0.0
    for s in range(SERIES):
        level = q[1] * Y[s, 0]
        for t in range(1, LENGTHS[s]):
            level = (q[0] * level + q[2] * Y[s, t]).tanh()
            total = total - 0.5 * (Y[s, t] - level) ** 2
    return total


def one_turn_differs(q):
    """What one turn of one series does else is done there only."""
    total = q[0] * 0.0
    for s in range(SERIES):
        level = q[1] * Y[s, 0]
        for t in range(1, STEPS):
            level = (q[0] * level + q[2] * Y[s, t]).tanh()
            if (s, t) == (9, 7):
                level = level.exp()
            total = total - 0.5 * (Y[s, t] - level) ** 2
    return total


CASES = {
    smoothed: 1,
    levels_of_their_own: SERIES + STEPS + 1,
    latent_grid: SERIES * STEPS,
    collected: 6,
    three_deep: 4,
    of_unequal_length: 3,
    one_turn_differs: 3,
}
DEPTHS = {smoothed: 2, levels_of_their_own: 2, latent_grid: 1, collected: 2, three_deep: 3}


@pytest.fixture(params=["followed", "recorded"])
def how(request, monkeypatch):
    """Turns are followed soon, or never."""
    monkeypatch.setattr(watching, "FIRST_LOOK", 200 if request.param == "followed" else 10**9)
    monkeypatch.setattr(following, "WORTH", 200)
    return request.param


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_the_density_of_a_loop_in_a_loop_is_pythons(fn, how):
    density = NativeDensity(fn, CASES[fn])
    for _ in range(2):
        q = RNG.standard_normal(CASES[fn]) * 0.3
        value, gradient = density.value_and_grad(q)
        expected, expected_gradient = density.eager(q)
        assert value == pytest.approx(expected, rel=1e-11)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-10)
    assert density.reason is None
    if fn in DEPTHS and how == "recorded":
        (path,) = density.paths
        assert len(path.graph.nodes) < FEW
        assert _depth(path.graph) == DEPTHS[fn]


def _depth(graph):
    """Return how deep loops stand in loops."""
    return max(
        (1 + max(map(_depth, n.subgraphs())) for n in graph.nodes if n.subgraphs()), default=0
    )


@pytest.mark.parametrize("fn", [smoothed, of_unequal_length], ids=lambda f: f.__name__)
def test_a_compiled_loop_in_a_loop_is_pythons(fn, how):
    compiled = compile(fn)
    for _ in range(3):
        q = probtorch.tensor(RNG.standard_normal(CASES[fn]) * 0.3)
        np.testing.assert_allclose(compiled(q).array, fn(q).array, rtol=1e-9, atol=1e-11)


def test_turns_that_hold_loops_leave_no_nodes(monkeypatch):
    monkeypatch.setattr(watching, "FIRST_LOOK", 200)
    monkeypatch.setattr(following, "WORTH", 200)
    rec, _ = record(levels_of_their_own, [wrap(np.ones(SERIES + STEPS + 1))], turns=True)
    *inner, outer = [n.attrs["turns"].turns for n in rec.graph.nodes if n.name == "turns"]
    assert (len(inner), outer) == (2, SERIES - 2)  # two series show that there is a loop around


ZERO = probtorch.tensor(0.0, dtype=probtorch.float64)
LONG = RNG.standard_normal((30, 100))


def begun_outside(y, a):
    """Each series begins at one tensor, so that its first turn looks like all others."""
    total = probtorch.tensor(0.0, dtype=probtorch.float64)
    for s in range(30):
        level = ZERO
        for t in range(100):
            level = a * level + (1.0 - a) * y[s, t]
            total = total - 0.5 * (y[s, t] - level) ** 2
    return total


def test_the_outer_loop_is_seen_where_first_turns_look_like_the_others():
    given = [wrap(LONG), wrap(np.array(0.3))]
    rec, _ = record(begun_outside, given, turns=True)
    followed = [n.attrs["turns"] for n in rec.graph.nodes if n.name == "turns"]
    assert len(followed[-1].operations) >= 100
    compiled = compile(begun_outside)
    for _ in range(3):
        np.testing.assert_allclose(compiled(*given).array, begun_outside(*given).array, rtol=1e-11)


def panel(y):
    a = probtorch.sample("a", dist.Normal(0.5, 0.1))
    scale = probtorch.sample("scale", dist.HalfNormal(1.0))
    for s in range(SERIES):
        level = probtorch.sample(f"level_{s}", dist.Normal(0.0, 1.0))
        for t in range(STEPS):
            probtorch.sample(f"y_{s}_{t}", dist.Normal(level, scale), obs=y[s, t])
            level = a * level + (1.0 - a) * y[s, t]


def test_a_model_with_sites_in_both_loops():
    target = Target.from_model(panel, Y)
    q = RNG.standard_normal(target.dim) * 0.2
    value, gradient = target.value_and_grad(q)
    (path,) = target.density.paths
    assert len(path.graph.nodes) < 1000  # of 8000: the first two series stay as they are
    assert _depth(path.graph) == 2
    with configure(jit=False):
        expected, expected_gradient = Target.from_model(panel, Y).value_and_grad(q)
    assert value == pytest.approx(expected, rel=1e-11)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-10)
