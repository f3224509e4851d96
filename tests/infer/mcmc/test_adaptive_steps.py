"""Steps that are refined until their energies keep within a tolerance, alone and in trajectories.

The oracle is `plain_step`, written here after the paper in NumPy with a list of energies.
"""

import math

import numpy as np
import pytest
from scipy import stats

from probtorch.compiler.density import NativeDensity
from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.tree import replace
from probtorch.diagnostics.convergence import ess_mean
from probtorch.errors import ArgumentError
from probtorch.infer import MCMC, NUTS
from probtorch.infer.mcmc import chunk
from probtorch.infer.mcmc.chunk import Chain, ChunkRunner
from probtorch.infer.mcmc.integrators import FixedSteps, PhasePoint
from probtorch.infer.mcmc.kernels.adaptive_steps import AdaptiveSteps
from probtorch.infer.mcmc.kernels.hmc import HMCState
from probtorch.infer.mcmc.metrics import DenseMetric, DiagonalMetric
from probtorch.infer.mcmc.randomness import Key, key_of
from tests.infer.mcmc.targets import (
    banana,
    eager,
    funnel,
    funnel_logdensity,
    gaussian,
    handle,
    number,
)

TARGETS = {
    "funnel": (funnel, funnel_logdensity, 3),
    "banana": (banana, lambda q: -0.5 * q[0] * q[0] - 2.0 * (q[1] - q[0] * q[0]) ** 2, 2),
    "narrow": (gaussian(np.diag([1.0, 1e-3])), lambda q: -0.5 * q[0] ** 2 - 500.0 * q[1] ** 2, 2),
}


def plain_step(value_and_grad, q, p, step_size, tolerance, max_halvings):
    """Return (halvings or None, q, p, reversible, gradients) of a macro step with unit metric."""
    spent = 0

    def path(q, p, step_size, halvings):
        """End and whether it is within tolerance, up to where it first is not."""
        nonlocal spent
        value, grad = value_and_grad(q)
        energies, eps = [0.5 * p @ p - value], step_size / 2**halvings
        for _ in range(2**halvings):
            p = p + 0.5 * eps * grad
            q = q + eps * p
            value, grad = value_and_grad(q)
            spent += 1
            p = p + 0.5 * eps * grad
            energies.append(0.5 * p @ p - value)
            if not np.ptp(energies) <= tolerance:
                return q, p, False
        return q, p, True

    for halvings in range(max_halvings + 1):
        end_q, end_p, fine = path(q, p, step_size, halvings)
        if fine:
            break
    else:
        return None, end_q, end_p, True, spent
    for coarser in reversed(range(halvings)):
        if path(end_q, -end_p, step_size, coarser)[2]:
            return halvings, end_q, end_p, False, spent
    return halvings, end_q, end_p, True, spent


def phase_point(value_and_grad, q, p):
    value, grad = value_and_grad(q)
    return PhasePoint(wrap(q), wrap(p), number(value), wrap(np.asarray(grad)))


def compiled_step(name, integrator, metric=None):
    """A function of (q, p, step size): the `Step` by native code."""
    value_and_grad, logdensity, dim = TARGETS[name]
    context = NativeDensity(logdensity, dim).context()
    metric = metric or DiagonalMetric.unit(dim)

    def start(q, p, step_size):
        return phase_point(value_and_grad, q, p), number(step_size)

    program = NativeProgram(
        lambda task: integrator(handle(context), metric, *task), start(*np.zeros((2, dim)), 0.1)
    )
    return lambda *args: program(start(*args))


def points(name, count, seed=0):
    rng, dim = np.random.default_rng(seed), TARGETS[name][2]
    for _ in range(count):
        yield rng.normal(size=dim), rng.normal(size=dim), 10.0 ** rng.uniform(-1.5, 0.5)


# ----------------------------------------------------------------------------------------- one step


@pytest.mark.parametrize("name", TARGETS)
def test_step_is_the_coarsest_within_tolerance(name):
    """Its end, whether it can be taken back, and the gradients it took: of 300 random steps."""
    step, seen = compiled_step(name, AdaptiveSteps(0.3, 6)), set()
    for i, (q, p, size) in enumerate(points(name, 300)):
        size = size if i % 2 else -size
        ours = step(q, p, size)
        halvings, end_q, end_p, reversible, spent = plain_step(
            TARGETS[name][0], q, p if i % 2 else -p, abs(size), 0.3, 6
        )
        assert bool(ours.accurate.array) == (halvings is not None)
        assert int(ours.gradients.array) == spent
        assert bool(ours.reversible.array) == reversible
        if halvings is not None:
            end = ours.point
            np.testing.assert_allclose(end.position.array, end_q, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(
                end.momentum.array, end_p if i % 2 else -end_p, rtol=1e-7, atol=1e-9
            )
            energy = 0.5 * end_p @ end_p - TARGETS[name][0](end_q)[0]
            np.testing.assert_allclose(ours.energy.array, energy, rtol=1e-8, atol=1e-8)
        seen.add((halvings, reversible))
    # All kinds were among them.
    assert {(0, True), (1, True), (1, False), (3, True)} <= seen


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("metric", ["diagonal", "dense"])
def test_step_comes_back_exactly_where_it_says_so(name, metric):
    """From its end, with as many gradients; where it does not say so it comes elsewhere."""
    dim = TARGETS[name][2]
    metric = (
        DiagonalMetric.from_inverse_mass(np.linspace(0.5, 1.5, dim))
        if metric == "diagonal"
        else DenseMetric.from_inverse_mass(np.eye(dim) + 0.3)
    )
    step, counts = compiled_step(name, AdaptiveSteps(0.3, 8), metric), np.zeros(2, int)
    for q, p, size in points(name, 300, seed=1):
        there = step(q, p, size)
        if not bool(there.accurate.array):
            continue
        back = step(there.point.position.array, there.point.momentum.array, -size)
        returns = np.allclose(back.point.position.array, q, rtol=0, atol=1e-6)
        assert returns == bool(there.reversible.array)
        counts[int(returns)] += 1
        if returns:
            assert bool(back.reversible.array) and bool(back.accurate.array)
            assert int(back.gradients.array) == int(there.gradients.array)
    assert counts.min() >= 1, counts


def test_first_trial_is_what_the_step_size_is_tuned_by():
    step = compiled_step("narrow", AdaptiveSteps(0.3))
    fixed = compiled_step("narrow", FixedSteps())
    q, p = np.array([0.3, 0.02]), np.array([0.4, -1.0])
    for size in (0.01, 0.1, 1.0):
        expected = fixed(q, p, size).energy.array
        np.testing.assert_allclose(step(q, p, size).tried_energy.array, expected, rtol=1e-12)


# --------------------------------------------------------------------------------- in trajectories


def transition(value_and_grad, q, step_size, integrator, stream=0, **settings):
    q = np.asarray(q, float)
    metric = DiagonalMetric.unit(q.size)
    kernel = NUTS.of(
        eager(value_and_grad),
        step_size=number(step_size),
        metric=metric,
        integrator=integrator,
        **settings,
    )
    return kernel.step(key_of(Generator(0, stream)), kernel.init(wrap(q)))


def test_coarse_step_that_diverges_does_not_end_the_trajectory():
    """Steps of 30 sd: fixed ones diverge at once, adaptive ones go on."""
    narrow = gaussian(np.array([[1e-4]]))
    for stream in range(10):
        _, fixed = transition(narrow, [0.01], 0.3, FixedSteps(), stream)
        assert bool(fixed.diverging.array) and int(fixed.tree_depth.array) == 0
    ends = [transition(narrow, [0.01], 0.3, AdaptiveSteps(), stream) for stream in range(10)]
    assert not any(bool(info.diverging.array) for _, info in ends)
    assert sum(int(info.tree_depth.array) for _, info in ends) >= 5
    assert len({float(state.position.array[0]) for state, _ in ends}) > 3


def test_step_that_no_halving_mends_is_a_divergence():
    for stream in range(5):
        new, info = transition(
            gaussian(np.array([[1e-12]])), [1e-6], 1.0, AdaptiveSteps(2.0, 4), stream
        )
        assert bool(info.diverging.array) and int(info.tree_depth.array) == 0
        assert float(new.position.array[0]) == 1e-6


@pytest.mark.parametrize("beyond", [math.nan, math.inf, -math.inf])
def test_places_without_a_density_are_not_entered(beyond):
    """Nan, poles and walls at q > 1: no draw is there, and what was met is a divergence."""

    def walled(q):
        return (beyond, np.zeros(1)) if q[0] > 1.0 else (0.0, np.zeros(1))

    met = 0
    for stream in range(20):
        new, info = transition(walled, [0.5], 1.0, AdaptiveSteps(2.0, 3), stream, max_tree_depth=3)
        assert float(new.position.array[0]) <= 1.0
        assert math.isfinite(float(info.energy.array))
        met += bool(info.diverging.array)
    assert met > 0


def test_no_tolerance_is_plain_nuts():
    """Where every step is accurate: the same draws, the same count of gradients."""
    q = np.array([0.5, -0.3])
    for stream in range(10):
        plain, a = transition(banana, q, 0.1, FixedSteps(), stream)
        ours, b = transition(banana, q, 0.1, AdaptiveSteps(1e6), stream)
        np.testing.assert_array_equal(plain.position.array, ours.position.array)
        assert int(a.n_steps.array) == int(b.n_steps.array)
        assert float(a.accept_prob.array) == float(b.accept_prob.array)


def ends_of_exact_draws(starts, kernel, value_and_grad, transitions):
    """Where draws of the target are after some transitions."""
    state = kernel.init(wrap(starts[0].copy()))
    chain = Chain(kernel, state, key_of(Generator(8)), None)
    runner, ends = ChunkRunner(chain), []
    for i, q in enumerate(starts):
        value, grad = value_and_grad(q)
        here = HMCState(wrap(q), number(value), wrap(grad), state.counter)
        runner.chain = replace(chain, state=here, key=Key(chain.key.seed, wrap(np.array(i))))
        ends.append(runner.run(transitions)[0][-1].copy())
    return np.array(ends)


def funnel_pvalues(count, integrator, step_size=1.0, transitions=12):
    """Kolmogorov-Smirnov tests of a funnel in five dims after transitions from exact draws."""
    rng = np.random.default_rng(5)
    v = 3.0 * rng.normal(size=count)
    starts = np.column_stack([v, np.exp(0.5 * v)[:, None] * rng.normal(size=(count, 4))])
    context = NativeDensity(funnel_logdensity, 5).context()
    kernel = NUTS.of(
        handle(context),
        step_size=number(step_size),
        metric=DiagonalMetric.unit(5),
        integrator=integrator,
    )
    ends = ends_of_exact_draws(starts, kernel, funnel, transitions)
    assert np.abs(ends[:, 0] - v).mean() > 0.5
    z = ends[:, 1:] * np.exp(-0.5 * ends[:, :1])
    mixed = (ends[:, 0] / 3.0 + z[:, 0]) / math.sqrt(2.0)
    values = [ends[:, 0] / 3.0, z[:, 0], mixed]
    radius = stats.kstest((z**2).sum(axis=1), stats.chi2(4).cdf).pvalue
    return [*(stats.kstest(x, "norm").pvalue for x in values), radius]


def test_kernel_leaves_a_funnel_invariant():
    """3000 exact draws stay exact; a p-value below 1e-6 in four tests is 4e-6."""
    assert min(funnel_pvalues(3000, AdaptiveSteps(0.5))) > 1e-6


def test_invariance_needs_the_way_back(monkeypatch):
    """The same test without the look back: points that are not to be reached bend the law."""
    whole = AdaptiveSteps.__call__

    def forgetful(self, *args):
        step = whole(self, *args)
        return replace(step, reversible=step.accurate | ~step.accurate)

    monkeypatch.setattr(AdaptiveSteps, "__call__", forgetful)
    monkeypatch.setattr(chunk, "_programs", {})
    assert min(funnel_pvalues(3000, AdaptiveSteps(0.5))) < 1e-15


@pytest.mark.slow
def test_kernel_leaves_a_funnel_invariant_to_two_figures():
    assert min(funnel_pvalues(60_000, AdaptiveSteps())) > 1e-6


# --------------------------------------------------------------------------------------- whole runs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::probtorch.diagnostics.InferenceWarning")
def test_neck_of_a_funnel_is_visited_as_often_as_it_should():
    """Ten dims, 80 000 draws; any of seven scores beyond 4.5 has a chance of 5e-5.

    Plain NUTS, whose step size does not fit into the neck, stops short of it and says divergences.
    """

    def potential(q):
        v, x = q["v"], q["x"]
        return v * v / 18.0 + 4.5 * v + 0.5 * (x * x).sum() * (-v).exp()

    def draws(**settings):
        mcmc = MCMC(NUTS(potential_fn=potential, **settings), 20_000, 1000, num_chains=4, seed=1)
        return mcmc.run(init_params={"v": 0.0, "x": np.ones(9)})

    levels = np.array([0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
    ours = draws(adaptive_steps=True)
    for level, quantile in zip(levels, 3.0 * stats.norm.ppf(levels)):
        below = (ours.posterior["v"] < quantile).astype(float)
        error = math.sqrt(level * (1.0 - level) / ess_mean(below))
        assert abs(below.mean() - level) < 4.5 * error, (level, below.mean(), error)
        assert error < 0.25 * math.sqrt(level)
    assert ours.sample_stats["diverging"].mean() < 1e-4
    plain = draws()
    assert (plain.posterior["v"] < 3.0 * stats.norm.ppf(0.05)).mean() < 0.01
    assert plain.sample_stats["diverging"].any()


@pytest.mark.filterwarnings("ignore::probtorch.diagnostics.InferenceWarning")
def test_draws_do_not_depend_on_threads_and_say_how_they_came():
    runs = []
    for threads in (1, 4):
        target = NUTS(
            potential_fn=lambda q: 0.5 * (q["x"] * q["x"]).sum() * 1e4, adaptive_steps=True
        )
        mcmc = MCMC(target, 200, 100, num_chains=3, seed=4, num_threads=threads)
        runs.append(mcmc.run(init_params={"x": np.ones(3)}))
    np.testing.assert_array_equal(runs[0].posterior["x"], runs[1].posterior["x"])
    attrs = runs[0].attrs
    assert (attrs["adaptive_steps"], attrs["energy_tolerance"], attrs["max_halvings"]) == (
        True,
        2.0,
        10,
    )


@pytest.mark.parametrize(
    "wrong", [{"energy_tolerance": 0.0}, {"energy_tolerance": math.nan}, {"max_halvings": 0}]
)
def test_settings_are_checked(wrong):
    (name,) = wrong
    with pytest.raises(ArgumentError, match=rf"NUTS\({name}=...\)"):
        NUTS(lambda: None, adaptive_steps=True, **wrong)
