"""Matchings, spanning trees and coalescent times against enumeration and simple loops."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.dtype import float32, int64
from probtorch.core.rng import Generator
from probtorch.distributions import biject_to
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.func import jacrev
from probtorch.tensor import tensor
from probtorch.testing import assert_close

RNG = np.random.default_rng(5)
STRUCTURES = {
    "OneOneMatching": (dist.OneOneMatching, RNG.normal(size=(2, 4, 4)), 24),
    "OneTwoMatching": (dist.OneTwoMatching, RNG.normal(size=(2, 6, 3)), 90),
    "SpanningTree": (dist.SpanningTree, RNG.normal(size=(2, 10)), 125),
}
each = pytest.mark.parametrize("name", STRUCTURES)


def score(name, logits, value):
    """The sum of the logits of one value, by its definition."""
    if name != "SpanningTree":
        return sum(logits[i, d] for i, d in enumerate(value))
    order = [(a, b) for b in range(5) for a in range(b)]
    return sum(logits[order.index((a, b))] for a, b in value)


@each
def test_a_structure_has_the_density_that_enumeration_gives(name):
    cls, logits, count = STRUCTURES[name]
    d = cls(logits)
    values = d.enumerate_support(expand=False)
    assert values.shape == (count, 1, *d.event_shape)
    assert len({v.tobytes() for v in values.numpy()}) == count
    assert d.support.check(values).numpy().all()
    scores = np.array([[score(name, row, v[0]) for row in logits] for v in values.numpy()])
    logs = scores - np.log(np.exp(scores).sum(0))
    assert_close(d.log_prob(values), logs)
    assert_close(d.entropy(), -(np.exp(logs) * logs).sum(0))
    assert_close(d.log_prob(d.mode), logs.max(0))
    # The slope of the normaliser is the mean of what the logits are multiplied with.
    leaf = tensor(logits, requires_grad=True)
    (slope,) = grad(cls(leaf).log_partition_function.sum(), [leaf])
    ends = []
    for h in (1e-5, -1e-5):
        moved = logits.copy()
        moved[1].flat[2] += h
        ends.append(cls(moved).log_partition_function.sum().item())
    assert_close(slope[1].reshape(-1)[2], (ends[0] - ends[1]) / 2e-5, rtol=1e-8)
    native = compile(lambda x: cls(x).log_prob(values).sum())
    native(tensor(logits))
    assert_close(native(tensor(logits)), logs.sum())
    assert cls(tensor(logits).float()).log_prob(values).dtype == float32


@each
def test_draws_of_a_structure_have_its_probabilities(name):
    cls, logits, _ = STRUCTURES[name]
    d, n = cls(logits), 20_000
    x = d.sample((n,), Generator(2))
    assert x.dtype == int64 and d.support.check(x).numpy().all()
    values = d.enumerate_support(expand=False)
    p = d.log_prob(values).exp().numpy()
    for k in range(2):
        counts = Counter(v.tobytes() for v in np.ascontiguousarray(x.numpy()[:, k]))
        seen = np.array([counts[v.tobytes()] for v in values.numpy()[:, 0]])
        # The rarest are counted together.
        order = np.argsort(p[:, k])
        rare = np.searchsorted(p[order, k] * n, 5.0)
        edges = [0, *range(rare + 1, len(order))]
        pooled = [np.add.reduceat(a[order], edges) for a in (seen, p[:, k] * n)]
        assert stats.chisquare(*pooled).pvalue > 1e-6
    assert not d.support.check(x * 0).numpy().any()
    with pytest.raises(ShapeError, match=name):
        cls(logits[..., :-1])


def test_large_matchings_have_bethes_approximation():
    # Vontobel (2013), sec. IV: for n equal rows n log n + n (n - 1) log(1 - 1 / n).
    n = 6
    even = dist.OneOneMatching(np.zeros((n, n)), bp_iters=5).log_partition_function
    assert_close(even, n * math.log(n) + n * (n - 1) * math.log(1 - 1 / n))
    logits = RNG.normal(size=(8, 8))
    exact = dist.OneOneMatching(logits).log_partition_function.item()
    bethe = dist.OneOneMatching(logits, bp_iters=50).log_partition_function.item()
    # Anari and Rezaei (2019): not above, and not below by more than log(2) / 2 for each row.
    assert exact - 4 * math.log(2) <= bethe <= exact
    pairs = RNG.normal(size=(6, 3))
    near = dist.OneTwoMatching(pairs, bp_iters=50).log_partition_function.item()
    # A point of the free energy does not move with potentials shared out among rows and columns.
    moved = pairs + RNG.normal(size=(6, 1)) + (shift := RNG.normal(size=3))
    change = (moved - pairs - shift)[:, 0].sum() + 2 * shift.sum()
    other = dist.OneTwoMatching(moved, bp_iters=50).log_partition_function.item()
    assert_close(np.array(other), np.array(near + change), rtol=1e-8)
    big = dist.OneOneMatching(np.zeros((30, 30)), bp_iters=5)
    assert np.isfinite(big.log_prob(np.arange(30)).item())
    with pytest.raises(ArgumentError, match="bp_iters"):
        dist.OneOneMatching(np.zeros((30, 30))).sample()
    with pytest.raises(ArgumentError, match="bp_iters"):
        dist.OneOneMatching(np.zeros((3, 3)), bp_iters=0)


def test_edges_of_a_tree_have_the_probabilities_of_enumeration():
    _, logits, _ = STRUCTURES["SpanningTree"]
    d = dist.SpanningTree(logits)
    values, p = d.enumerate_support(expand=False).numpy()[:, 0], d.log_prob(
        d.enumerate_support(expand=False)
    ).exp().numpy()  # fmt: skip
    share = np.zeros((2, 5, 5))
    for v, q in zip(values, p, strict=True):
        for a, b in v:
            share[:, a, b] += q
            share[:, b, a] += q
    assert_close(d.edge_mean, share)
    with pytest.raises(ArgumentError, match="7 vertices"):
        dist.SpanningTree(np.zeros(28)).enumerate_support()


# ------------------------------------------------------------------------------ coalescents

LEAVES = np.array([0.3, 2.6, 1.2, 2.6])
EVENTS = np.array([-1.5, 0.1, 1.9])
GRID = np.array([0.7, 1.6, 0.4])


def hazard(t):
    """The integral of the rate of the grid from 0 to t."""
    parts = [min(t, 1.0) * GRID[0], min(max(t - 1, 0), 1) * GRID[1], max(t - 2, 0) * GRID[2]]
    return sum(parts)


def waits(leaves, events, clock):
    """Integrated hazards between events, with each event's number of pairs."""
    marks = sorted([(t, 1) for t in leaves] + [(t, -1) for t in events], reverse=True)
    lines, last, wait, out = 0, None, 0.0, []
    for t, change in marks:
        if last is not None:
            wait += lines * (lines - 1) / 2 * (clock(last) - clock(t))
        if change == -1:
            out.append((wait, lines * (lines - 1) / 2))
            wait = 0.0
        lines, last = lines + change, t
    return out


def test_coalescent_densities_are_those_of_waits():
    constant = waits(LEAVES, EVENTS, lambda t: 0.8 * t)
    expected = sum(math.log(0.8 * pairs) - wait for wait, pairs in constant)
    assert_close(dist.CoalescentTimes(LEAVES, 0.8).log_prob(EVENTS), expected)
    rate = lambda t: GRID[min(max(math.floor(t), 0), 2)]
    changing = waits(LEAVES, EVENTS, hazard)
    logs = [math.log(pairs) - wait for wait, pairs in changing]
    expected = sum(logs) + sum(math.log(rate(t)) for t in EVENTS)
    d = dist.CoalescentTimesWithRate(LEAVES, GRID)
    assert_close(d.log_prob(EVENTS), expected)
    likelihood = dist.CoalescentRateLikelihood(LEAVES, EVENTS, 3)
    assert_close(likelihood(GRID).sum(), expected)
    assert_close(likelihood(GRID[1], 1), likelihood(GRID)[1])
    native = compile(lambda g: dist.CoalescentTimesWithRate(LEAVES, g).log_prob(EVENTS))
    native(tensor(GRID))
    assert_close(native(tensor(GRID)), expected)
    for wrong in ([-1.5, 0.1, 2.7], [0.1, -1.5, 1.9], [0.5, 1.7, 1.9]):
        with pytest.raises(DomainError, match="outside the support"):
            d.log_prob(np.array(wrong))
    with pytest.raises(DomainError, match="two lines"):
        dist.CoalescentRateLikelihood(LEAVES, np.array([0.5, 1.7, 1.9]), 3)
    with pytest.raises(ShapeError, match="one time"):
        dist.CoalescentRateLikelihood(LEAVES, EVENTS[1:], 3)
    with pytest.raises(ArgumentError, match="duration"):
        dist.CoalescentRateLikelihood(LEAVES, EVENTS, 1)
    with pytest.raises(ShapeError, match="leaf_times"):
        dist.CoalescentTimes(LEAVES[:1])


@pytest.mark.parametrize("changing", [False, True])
def test_waits_of_coalescent_draws_are_exponential(changing):
    d = (
        dist.CoalescentTimesWithRate(LEAVES, GRID)
        if changing
        else dist.CoalescentTimes(LEAVES, 0.8)
    )
    x = d.sample((3000,), Generator(4))
    assert d.support.check(x).numpy().all()
    clock = hazard if changing else lambda t: 0.8 * t
    found = np.array([[w for w, _ in waits(LEAVES, row, clock)] for row in x.numpy()])
    for column in found.T:
        assert stats.kstest(column, "expon").pvalue > 1e-6


def test_unconstrained_space_covers_coalescent_times():
    d = dist.CoalescentTimes(LEAVES, 0.8)
    t = biject_to(d.support)
    x = tensor(RNG.normal(size=(5, 3)))
    y, ladj = t.call_and_ladj(x)
    assert d.support.check(y).numpy().all()
    assert_close(t.inv(y), x)
    for row, slope in zip(x, ladj, strict=True):
        assert_close(np.linalg.slogdet(jacrev(t)(row).numpy())[1], slope.item(), atol=1e-12)
    # Two leaves: one exponential number, by the trapezium rule.
    pair = dist.CoalescentTimes(LEAVES[:2], 0.8)
    grid = np.linspace(-30, 6, 2000)[:, None]
    y, ladj = biject_to(pair.support).call_and_ladj(tensor(grid))
    density = (pair.log_prob_inside(y) + ladj).exp().sum() * (grid[1] - grid[0])
    assert_close(density.reshape(()), 1.0, rtol=1e-8)
