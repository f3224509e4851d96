"""The no-U-turn sampler against a recursive one, written here after Stan's base_nuts.hpp."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from probtorch.compiler.density import NativeDensity
from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.infer.mcmc.kernels import nuts
from probtorch.infer.mcmc.kernels.hmc import HMCState
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.mcmc.metrics import DiagonalMetric
from probtorch.infer.mcmc.randomness import Key, key_of
from tests.infer.mcmc.targets import banana, eager, funnel, handle, number

# --------------------------------------------------------------------------------- the reference


@dataclass
class Reference:
    """A trajectory of Stan's recursive NUTS with unit metric; times are counted in steps."""

    value_and_grad: object
    step_size: float
    q: np.ndarray
    p: np.ndarray
    directions: int
    max_depth: int
    n_steps: int = 0
    accept_sum: float = 0.0
    depth: int = 0
    turning: bool = False
    diverging: bool = False
    chance: dict = field(default_factory=lambda: {0: 1.0})
    where: dict = field(default_factory=dict)

    def energy(self, q, p):
        return 0.5 * p @ p - self.value_and_grad(q)[0]

    def leaf(self, time, q, p, sign):
        eps = sign * self.step_size
        p = p + 0.5 * eps * self.value_and_grad(q)[1]
        q = q + eps * p
        p = p + 0.5 * eps * self.value_and_grad(q)[1]
        self.where[time + sign] = q
        return time + sign, q, p

    def build(self, depth, time, q, p, sign):
        """Return (valid, first p, last point, sum of p, weights by time) of a subtree."""
        if depth == 0:
            time, q, p = self.leaf(time, q, p, sign)
            drop = self.start_energy - self.energy(q, p)
            self.n_steps += 1
            self.accept_sum += math.exp(min(drop, 0.0))
            self.diverging |= drop <= -1000.0
            return not self.diverging, p, (time, q, p), p, {time: math.exp(drop)}
        valid, first, (t, q1, mid), rho1, w1 = self.build(depth - 1, time, q, p, sign)
        if not valid:
            return False, first, (t, q1, mid), rho1, w1
        valid, second, (t, q2, last), rho2, w2 = self.build(depth - 1, t, q1, mid, sign)
        end = (t, q2, last)
        if not valid:
            return False, first, end, rho1 + rho2, w1 | w2
        persists = (
            criterion(first, last, rho1 + rho2)
            and criterion(first, second, rho1 + second)
            and criterion(mid, last, rho2 + mid)
        )
        self.turning |= not persists
        return persists, first, end, rho1 + rho2, w1 | w2

    def run(self):
        self.start_energy = self.energy(self.q, self.p)
        back = ahead = (0, self.q, self.p)
        rho, total = self.p, 1.0
        self.where[0] = self.q
        while self.depth < self.max_depth:
            forward = self.directions >> self.depth & 1
            edge, sign = (ahead, 1) if forward else (back, -1)
            valid, first, end, rho_new, weights = self.build(self.depth, *edge, sign)
            if not valid:
                break
            self.depth += 1
            new = sum(weights.values())
            accept = min(1.0, new / total)
            self.chance = {t: (1.0 - accept) * c for t, c in self.chance.items()}
            # Where all weights underflow nothing is accepted.
            self.chance |= {t: accept * w / (new or 1.0) for t, w in weights.items()}
            total += new
            far = back if forward else ahead
            persists = (
                criterion(far[2], end[2], rho + rho_new)
                and criterion(far[2], first, rho + first)
                and criterion(edge[2], end[2], rho_new + edge[2])
            )
            rho = rho + rho_new
            back, ahead = (back, end) if forward else (end, ahead)
            if not persists:
                self.turning = True
                break
        self.span = back[0], ahead[0]
        return self


def criterion(p_first, p_last, rho):
    return p_first @ rho > 0.0 and p_last @ rho > 0.0


# ----------------------------------------------------------------------------- the kernel, native


def banana_logdensity(q):
    bent = q[1] - q[0] * q[0]
    return -0.5 * q[0] * q[0] - 2.0 * bent * bent


def stretched(q):
    """A Gaussian with scales 1 and 5."""
    return -0.5 * q[0] ** 2 - 0.02 * q[1] ** 2, np.array([-q[0], -0.04 * q[1]])


def stretched_logdensity(q):
    return -0.5 * q[0] * q[0] - 0.02 * q[1] * q[1]


def funnel_2d(q):
    v, x = q[0], q[1]
    return -(v * v) / 18.0 - 0.5 * v - 0.5 * x * x * (-v).exp()


TARGETS = {
    "stretched": (stretched, stretched_logdensity),
    "banana": (banana, banana_logdensity),
    "funnel": (funnel, funnel_2d),
}


class Native:
    """One transition with a momentum and directions of our choice; other random numbers by key."""

    def __init__(self, name, max_depth, monkeypatch):
        self.fn, logdensity = TARGETS[name]
        self.context = NativeDensity(logdensity, 2).context()
        density = handle(self.context)

        def step(tree):
            key, state, momentum, directions, step_size = tree
            monkeypatch.setattr(nuts, "sample_momentum", lambda *_: momentum)
            monkeypatch.setattr(nuts, "bits", lambda *_: directions)
            kernel = NUTS.of(
                density,
                step_size=step_size,
                metric=DiagonalMetric.unit(2),
                max_tree_depth=max_depth,
            )
            return kernel.step(key, state)

        self.program = NativeProgram(step, self.arguments(0, np.zeros(2), np.zeros(2), 0, 0.1))
        self.bound = self.program.bind()

    def arguments(self, stream, q, p, directions, step_size):
        value, grad = self.fn(q)
        state = HMCState(wrap(q), number(value), wrap(np.asarray(grad)), wrap(np.array(0)))
        key = Key(wrap(np.array(1)), wrap(np.array(stream)))
        return key, state, wrap(p), wrap(np.array(directions)), number(step_size)

    def __call__(self, *args):
        return self.bound(self.arguments(*args))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("max_depth", [1, 2, 4, 6])
def test_trajectory_is_that_of_the_recursion(name, max_depth, monkeypatch):
    """Steps, depth, the reason for the end, acceptance and the draw's place in the trajectory."""
    native, rng = Native(name, max_depth, monkeypatch), np.random.default_rng(max_depth)
    depths = set()
    for i in range(200):
        q, p = rng.normal(size=2) * 1.5, rng.normal(size=2)
        step_size, directions = 10.0 ** rng.uniform(-1.7, 0.3), int(rng.integers(64))
        state, info = native(i, q, p, directions, step_size)
        ref = Reference(native.fn, step_size, q, p, directions, max_depth).run()
        assert int(info.n_steps.array) == ref.n_steps
        assert int(info.tree_depth.array) == ref.depth
        assert bool(info.diverging.array) == ref.diverging
        assert bool(info.reached_max_treedepth.array) == (not ref.turning and not ref.diverging)
        np.testing.assert_allclose(info.accept_prob.array, ref.accept_sum / ref.n_steps, rtol=1e-6)
        near = min(ref.chance, key=lambda t: np.abs(ref.where[t] - state.position.array).max())
        np.testing.assert_allclose(state.position.array, ref.where[near], atol=1e-7)
        assert ref.chance[near] > 0.0
        depths.add(ref.depth)
    assert depths >= set(range(1, max_depth + 1))


@pytest.mark.parametrize("far", [nuts.FAR, -math.inf], ids=["one exponential", "any energies"])
def test_draw_is_chosen_by_weight_and_distance(far, monkeypatch):
    """Frequencies over 10 000 draws from one trajectory; any |z| > 5 has a chance below 1e-5."""
    monkeypatch.setattr(nuts, "FAR", far)
    rng, chance = np.random.default_rng(4), []
    while len(chance) < 8 or min(chance) < 0.003:
        q, p, directions = rng.normal(size=2), rng.normal(size=2), int(rng.integers(16))
        step_size = rng.uniform(0.3, 0.6)
        ref = Reference(banana, step_size, q, p, directions, 4).run()
        chance = [c for c in ref.chance.values() if c > 0.0]
    ref.chance = {t: c for t, c in ref.chance.items() if c > 0.0}
    native, draws = Native("banana", 4, monkeypatch), 10_000
    places = np.array([ref.where[t] for t in ref.chance])
    counts = np.zeros(len(places))
    for i in range(draws):
        state, _ = native(i, q, p, directions, step_size)
        distance = np.abs(places - state.position.array).max(axis=1)
        assert distance.min() < 1e-9
        counts[distance.argmin()] += 1
    chance = np.array(list(ref.chance.values()))
    z = (counts - draws * chance) / np.sqrt(draws * chance * (1.0 - chance))
    assert np.abs(z).max() < 5.0, (chance, counts / draws)


def test_weights_that_overflow_choose_as_if_they_did_not(monkeypatch):
    """From far out, with long steps, energies fall by thousands in one transition."""

    def course(seed):
        kernel = NUTS.of(
            eager(stretched), step_size=number(1.7), metric=DiagonalMetric.unit(2), max_tree_depth=4
        )
        key, state = key_of(Generator(seed)), kernel.init(wrap(np.full(2, 300.0)))
        for _ in range(4):
            state, info = kernel.step(key, state)
            yield [float(x.array) for x in (*state.position, info.accept_prob, info.energy_error)]

    found = np.array([list(course(seed)) for seed in range(12)])
    assert found[..., -1].min() < -2 * nuts.FAR
    monkeypatch.setattr(nuts, "FAR", -math.inf)
    others = np.array([list(course(seed)) for seed in range(12)])
    np.testing.assert_allclose(found, others, rtol=1e-9)


def test_trajectory_is_found_again_from_each_of_its_points(monkeypatch):
    """Reversibility: from leaf j of 2^D the directions are the bits of 2^D - 1 - j."""
    rng, found = np.random.default_rng(3), set()
    natives = {d: Native("banana", d, monkeypatch) for d in range(1, 7)}
    for _ in range(60):
        q, p = rng.normal(size=2), rng.normal(size=2)
        step_size, directions = 10.0 ** rng.uniform(-2.0, -0.3), int(rng.integers(64))
        ref = Reference(banana, step_size, q, p, directions, 6).run()
        size = 2**ref.depth
        if ref.depth == 0 or ref.span[1] - ref.span[0] + 1 != size:
            continue
        found.add(ref.depth)
        points = walk(q, p, step_size, ref.span)
        for j, (qj, pj) in enumerate(points):
            _, info = natives[ref.depth](0, qj, pj, size - 1 - j, step_size)
            assert int(info.tree_depth.array) == ref.depth
            assert int(info.n_steps.array) == size - 1
    assert {2, 3, 4, 5} <= found


def walk(q, p, step_size, span):
    """The points of a leapfrog trajectory at times span[0] .. span[1]."""
    helper = Reference(banana, step_size, q, p, 0, 0)
    points = {0: (q, p)}
    for sign, last in ((1, span[1]), (-1, span[0])):
        time, qt, pt = 0, q, p
        while time != last:
            time, qt, pt = helper.leaf(time, qt, pt, sign)
            points[time] = (qt, pt)
    return [points[t] for t in sorted(points)]


def test_eager_step_is_the_compiled_step():
    """One algorithm, two executions: equal but for the last bits of exp and log."""
    context = NativeDensity(funnel_2d, 2).context()
    compiled_kernel = NUTS.of(handle(context), step_size=number(0.3), metric=DiagonalMetric.unit(2))
    eager_kernel = NUTS.of(eager(funnel), step_size=number(0.3), metric=DiagonalMetric.unit(2))
    key = key_of(Generator(11))
    state = eager_kernel.init(wrap(np.array([0.5, -0.3])))
    program = NativeProgram(lambda t: compiled_kernel.step(*t), (key, state))
    for _ in range(12):
        ours, info = eager_kernel.step(key, state)
        theirs, native_info = program((key, state))
        np.testing.assert_allclose(ours.position.array, theirs.position.array, rtol=1e-9)
        np.testing.assert_allclose(info.accept_prob.array, native_info.accept_prob.array, rtol=1e-9)
        assert int(ours.counter.array) == int(theirs.counter.array)
        assert int(info.n_steps.array) == int(native_info.n_steps.array)
        state = ours


def test_nan_energy_is_a_divergence_and_the_chain_stays():
    def broken(q):
        value = -0.005 if q[0] == 0.1 else math.nan
        return value, -q

    kernel = NUTS.of(eager(broken), step_size=number(2.0), metric=DiagonalMetric.unit(1))
    state = kernel.init(wrap(np.array([0.1])))
    for stream in range(5):
        new, info = kernel.step(key_of(Generator(0, stream)), state)
        assert bool(info.diverging.array) and int(info.tree_depth.array) == 0
        assert float(new.position.array[0]) == 0.1
        assert math.isfinite(float(info.energy.array))


def test_pole_of_the_density_is_a_divergence_not_a_trap():
    def pole(q):
        return (math.inf if q[0] > 1.0 else 0.0), np.zeros(1)

    kernel = NUTS.of(eager(pole), step_size=number(30.0), metric=DiagonalMetric.unit(1))
    new, info = kernel.step(key_of(Generator(2)), kernel.init(wrap(np.array([0.0]))))
    while float(new.position.array[0]) <= 1.0 and not bool(info.diverging.array):
        new, info = kernel.step(key_of(Generator(2)), new)
    assert bool(info.diverging.array) and float(new.position.array[0]) <= 1.0
