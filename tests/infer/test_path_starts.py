"""Starts in the typical set: false modes are left, other modes kept, poles avoided."""

import functools

import numpy as np
import pytest

from probtorch.compiler.density import NativeDensity
from probtorch.config import configure
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.diagnostics import DivergenceWarning
from probtorch.distributions import (
    Dirichlet,
    Exponential,
    HalfCauchy,
    HalfNormal,
    ImproperUniform,
    Normal,
    constraints,
)
from probtorch.effects import factor, plate, sample
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import (
    HMC,
    MCMC,
    NUTS,
    AutoNormal,
    Target,
    init_to_typical_set,
    init_to_uniform,
    init_to_value,
)
from probtorch.infer.mcmc.starts import new_chains
from probtorch.infer.starts.initialization import starting_points
from probtorch.infer.starts.lbfgs_paths import LbfgsPaths, best_of_paths
from probtorch.infer.starts.native_climbs import climb
from probtorch.infer.starts.path_starts import Evaluations, chosen_paths, climbed
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, log, logaddexp
from probtorch.ops.pieces import stack
from probtorch.tensor import tensor


def starts(target, chains=4, seed=0, strategy=init_to_typical_set):
    return starting_points(target, chains, Generator(seed), strategy).positions


def density(fn, dim):
    return Target.from_density(fn, dim)


def log_densities(target, points):
    return np.array([target.value_and_grad(q)[0] for q in points])


# ------------------------------------------------------------------------------------- typical set


def correlated(q):
    x = q / tensor(10.0 ** np.linspace(-1.0, 1.0, 12))
    return -0.5 * (x * x).sum() - 2.0 * (x.sum() - 3.0) ** 2


def half_open(q):  # no density left of 0, and a wall at 30
    return (2.0 * log(q) - 10.0 * q).sum() - 1e6 * (q[0] > 30.0)


def heavy_tails(q):
    return -log(1.0 + (q * q).sum())


@pytest.mark.parametrize("fn, dim", [(correlated, 12), (half_open, 3), (heavy_tails, 2)])
def test_native_climbs_are_those_of_numpy(fn, dim):
    target = density(fn, dim)
    begun = np.random.default_rng(0).uniform(0.01, 40.0, (6, dim))
    evaluate = Evaluations(target)
    at_start = evaluate(begun)
    told = {"max_gradients": 40, "tolerance": 1e-3, "patience": 10.0, "reluctance": 0.5}

    def evidence(paths, rows):
        volume = 0.5 * paths.log_det[rows]
        return paths.value[rows] + volume - np.minimum(paths.gain[rows], dim)

    before = evaluate.count
    plain = best_of_paths(LbfgsPaths(evaluate, begun, *at_start), evidence, **told)
    native, evaluations, raised = climb(evaluate.context, begun, *at_start, **told)
    assert evaluations == evaluate.count - before and not raised
    for name in ("position", "value", "score", "gradient", "log_det", "top_score"):
        np.testing.assert_allclose(
            getattr(native, name), getattr(plain, name), rtol=1e-5, atol=1e-5, err_msg=name
        )
    np.testing.assert_array_equal(native.hessian.order, plain.hessian.order)
    np.testing.assert_allclose(
        native.hessian.apply(begun), plain.hessian.apply(begun), rtol=1e-4, atol=1e-8
    )


def test_ctrl_c_in_an_eager_climb_is_the_end_of_its_evaluations():
    count = 0

    def slow(q):
        nonlocal count
        count += 1
        if count >= 20:
            raise KeyboardInterrupt
        return -0.5 * float(q @ q) ** 1.5, -1.5 * q * np.sqrt(q @ q)

    context = NativeDensity.from_python(slow, 3).context()
    begun = np.full((4, 3), 1e6)
    values, gradients = (np.array(x) for x in zip(*map(slow, begun), strict=True))
    told = {"tolerance": 0.0, "patience": np.inf, "reluctance": 0.0}
    with pytest.raises(KeyboardInterrupt):
        climb(context, begun, values, gradients, max_gradients=1000, **told)
    assert count == 20


def test_a_climb_stays_away_from_where_the_model_raises():
    def fails_beyond(q):
        if float(q[0].detach()) > 5.0:
            raise ValueError("too far")
        return -0.5 * ((q - 4.0) ** 2).sum()

    with configure(jit=False):
        found = starts(density(fails_beyond, 2), 2)
    assert found[:, 0].max() <= 5.0 and found.mean() > 2.0


@pytest.mark.parametrize("dim", [1, 5, 200])
def test_starts_lie_as_deep_as_draws_of_a_gaussian_do(dim):
    # In many dims 35 evaluations do not reach the top from far off.
    decades = 2.0 if dim < 10 else 0.5
    scale = 10.0 ** np.random.default_rng(0).uniform(-decades, decades, dim)
    loc = np.random.default_rng(1).normal(0.0, 5.0 * decades, dim)
    target = density(lambda q: -0.5 * (((q - tensor(loc)) / tensor(scale)) ** 2).sum(), dim)
    depths = np.concatenate([-log_densities(target, starts(target, 4, s)) for s in range(5)])
    # Of draws they are Gamma(dim / 2): mean dim / 2, and none is twice as deep in many dims.
    assert depths.max() < 1.5 * dim + 10.0
    assert depths.mean() > 0.1 * dim


def test_starts_differ_between_chains_and_seeds():
    target = density(lambda q: -0.5 * (q * q).sum(), 3)
    points = np.concatenate([starts(target, 4, seed) for seed in range(3)])
    assert len(np.unique(points[:, 0])) == 12
    # 12 draws of a standard normal: a spread below 0.5 has probability 1e-3.
    assert points.std(0).min() > 0.5


def test_start_depends_on_the_seed_and_the_chain_only():
    target = density(lambda q: -0.5 * (q * q * tensor([1.0, 100.0, 4.0])).sum(), 3)
    four = starts(target, 4)
    np.testing.assert_array_equal(starts(target, 4), four)
    np.testing.assert_array_equal(starts(target, 2), four[:2])


def test_starts_of_a_funnel_are_not_in_its_neck():
    def funnel():
        v = sample("v", Normal(0.0, 3.0))
        with plate("row", 9):
            sample("x", Normal(0.0, exp(0.5 * v)))

    target = Target.from_model(funnel)
    v = np.concatenate([starts(target, 4, seed)[:, 0] for seed in range(5)])
    # The density is highest at v = -40; draws are within 9 but for one in 400.
    assert (np.abs(v) < 9.0).all()


def test_starts_of_a_centred_hierarchy_are_not_in_its_neck():
    def schools(y, sigma):
        mu = sample("mu", Normal(0.0, 5.0))
        tau = sample("tau", HalfCauchy(5.0))
        with plate("school", 8):
            sample("y", Normal(sample("theta", Normal(mu, tau)), sigma), obs=y)

    y = tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    target = Target.from_model(schools, y, sigma)
    log_tau = np.concatenate([starts(target, 4, seed)[:, 1] for seed in range(5)])
    # Draws of tau are below 0.1 in one of 60 cases.
    assert (log_tau > np.log(0.05)).all()


def test_starts_of_an_unbounded_density_are_finite_and_off_the_pole():
    target = density(lambda q: -0.4 * log(q * q).sum() - 0.5 * (q * q).sum(), 2)
    points = np.concatenate([starts(target, 4, seed) for seed in range(3)])
    assert np.isfinite(log_densities(target, points)).all()
    assert (np.abs(points) > 1e-8).all()


# ------------------------------------------------------------------------------------------- modes


def events(y):
    """Two states with exponential waiting times, ordered means; states summed out by recursion."""
    mean = sample("mean", ImproperUniform(constraints.positive_ordered_vector, (), (2,)))
    factor("prior", HalfNormal(50.0).log_prob(mean).sum())
    rows = [sample(f"row{k}", Dirichlet(tensor([1.0, 1.0]))) for k in range(2)]
    transition, waiting = log(stack(rows)), Exponential(1.0 / mean)
    forward = waiting.log_prob(y[0])
    for t in range(1, len(y)):
        forward = logsumexp(forward.unsqueeze(-1) + transition, 0) + waiting.log_prob(y[t])
    factor("y", logsumexp(forward, 0))


@functools.cache
def events_target():
    rng, state, y = np.random.default_rng(5), 0, []
    for _ in range(60):
        state = 1 - state if rng.random() < 0.1 else state
        y.append(rng.exponential((10.0, 300.0)[state]))
    return Target.from_model(events, tensor(np.array(y)))


def test_no_start_is_in_a_false_mode_of_a_hidden_markov_model():
    target = events_target()
    found = [log_densities(target, starts(target, 4, seed)) for seed in range(10)]
    best = max(map(np.max, found))
    assert min(map(np.min, found)) > best - 15.0
    # There is such a mode: with one path for each chain that is kept it is found.
    ends = [starts(target, 1, seed, init_to_typical_set(num_paths=1)) for seed in range(40)]
    assert min(log_densities(target, np.concatenate(ends))) < best - 15.0


def with_false_mode(q):
    """Two normals of scale 0.3, the left one e^-60 as high: the top where sum(q) < -1.8."""
    right, left = ((q - 1.5) ** 2).sum(), ((q + 1.5) ** 2).sum()
    return logaddexp(-right / 0.18, -60.0 - left / 0.18)


def test_no_start_is_in_a_mode_sixty_nats_lower():
    target = density(with_false_mode, 4)
    uniform = np.concatenate([starts(target, 4, s, init_to_uniform) for s in range(25)])
    assert 10 <= (uniform.sum(-1) < -1.8).sum() <= 40  # where 22 of 100 chains begin
    points = np.concatenate([starts(target, 4, s) for s in range(25)])
    assert (points.sum(-1) > 0.0).all()


def test_both_modes_of_equal_weight_are_started_from():
    def mixture(q):
        return logaddexp(-0.5 * ((q - 10.0) ** 2).sum(), -0.5 * ((q + 10.0) ** 2).sum())

    target = density(mixture, 3)
    sides = np.concatenate([starts(target, 4, seed)[:, 0] > 0 for seed in range(10)])
    # 40 starts by chance on either side: below 6 with probability 2e-6.
    assert 6 <= sides.sum() <= 34


def test_a_mode_that_a_spare_path_has_seen_is_started_from():
    """By chance four chains are on one side in one run of 8, eight paths in one of 128."""

    def mixture(q):
        return logaddexp(-0.5 * ((q - 10.0) ** 2).sum(), -0.5 * ((q + 10.0) ** 2).sum())

    target = density(mixture, 3)
    both = [len(set(starts(target, 4, seed)[:, 0] > 0)) == 2 for seed in range(40)]
    assert sum(both) >= 38


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 100.0])
def test_evidence_of_a_normalised_gaussian_is_zero_whatever_its_width(scale):
    # Log densities at the tops differ by 115 nats, which the volumes have to make up for.
    dim, factors = 10, np.geomspace(0.5, 2.0, 10) * scale
    constant = -np.log(factors).sum() - 0.5 * dim * np.log(2.0 * np.pi)
    target = density(lambda q: constant - 0.5 * ((q / tensor(factors)) ** 2).sum(), dim)
    best, _ = climbed(target, 4, Generator(0))
    found = best.value + 0.5 * best.log_det + 0.5 * dim * np.log(2.0 * np.pi)
    assert np.abs(found).max() < 10.0  # a path is dropped for more


def test_path_is_dropped_for_much_less_evidence_only():
    level = np.zeros(6)
    kept = chosen_paths(np.array([0.0, -9.0, 0.0, 0.0, 0.0, 0.0]), level, 3, 4)
    np.testing.assert_array_equal(kept, [0, 1, 2, 3])
    # In place of a dropped one comes one that no chain has, then one that a chain has.
    evidence = np.array([0.0, -90.0, -80.0, 0.0, -70.0, -1.0])
    np.testing.assert_array_equal(chosen_paths(evidence, level, 3, 4), [0, 5, 5, 3])


def test_volume_is_doubted_where_it_decides():
    evidence = np.array([0.0, -30.0])
    np.testing.assert_array_equal(chosen_paths(evidence, np.zeros(2), 3, 2), [0, 0])
    np.testing.assert_array_equal(chosen_paths(evidence, np.array([0.0, 90.0]), 3, 2), [0, 1])


# ----------------------------------------------------------------------------------------- corners


def test_starts_avoid_where_density_or_gradient_are_not_finite():
    def value_and_grad(q):
        # No density left of -1; a finite one without a gradient between -1 and 0; its top at 0.
        if q[0] < -1.0:
            return np.nan, np.zeros(1)
        return -0.5 * q @ q, np.where(q < 0.0, np.nan, -q)

    target = density(lambda q: -0.5 * (q * q).sum(), 1)
    target.density = NativeDensity.from_python(value_and_grad, 1)
    points = np.concatenate([starts(target, 4, seed) for seed in range(5)])
    assert (points >= 0.0).all()


def test_model_that_raises_far_out_is_climbed_all_the_same():
    def value_and_grad(q):
        if abs(q[0]) > 2.5:
            raise ValueError("the solver gave up")
        return -200.0 * (q[0] - 2.2) ** 2, -400.0 * (q - 2.2)

    target = density(lambda q: -0.5 * (q * q).sum(), 1)
    target.density = NativeDensity.from_python(value_and_grad, 1)
    np.testing.assert_allclose(starts(target), 2.2, atol=0.25)


def half(low):
    """A density that is finite everywhere, and has no gradient in x below `low`."""
    x = sample("x", Normal(0.0, 1.0))
    sample("other", Normal(0.0, 1.0))
    above = 0.5 * (abs(x - low) + (x - low))  # 0 below, with a slope of 0
    factor("f", 0.1 * sqrt(above * above))


@pytest.mark.parametrize("kernel", [NUTS(half), HMC(half, num_steps=8)], ids=["NUTS", "HMC"])
def test_chain_never_stands_where_there_is_no_gradient(kernel):
    mcmc = MCMC(kernel, 200, 200, num_chains=2, seed=0, progress_bar=False)
    with pytest.warns(DivergenceWarning):
        mcmc.run(0.0)
    assert float(mcmc.get_samples()["x"].min()) > 0.0


def test_nan_gradient_at_a_finite_density_is_left_and_names_its_site():
    points = starts(Target.from_model(half, 0.0))
    assert (points[:, 0] > 0.0).all()
    with pytest.raises(InferenceError, match="but the gradient for site 'x' is nan"):
        starts(Target.from_model(half, 1e9))


def test_given_start_without_a_gradient_names_its_site():
    def cusp():
        sample("a", Normal(0.0, 1.0))
        x = sample("x", Normal(0.0, 1.0))
        factor("f", -sqrt(x * x))

    mcmc = MCMC(NUTS(cusp), num_samples=10, progress_bar=False)
    with pytest.raises(InferenceError, match=r"(?s)initial_params.*gradient for site 'x' is nan"):
        mcmc.run(init_params={"a": 0.0, "x": 0.0})


def test_starts_in_python_alone_are_those_of_native_code():
    def line(y):
        loc, scale = sample("loc", Normal(0.0, 10.0)), sample("scale", HalfNormal(5.0))
        with plate("row", 3):
            sample("y", Normal(loc, scale), obs=y)

    y = tensor([4.0, 6.0, 7.0])
    native = starts(Target.from_model(line, y))
    with configure(jit=False):
        eager = starts(Target.from_model(line, y))
    np.testing.assert_allclose(eager, native, rtol=1e-6)


def test_start_in_many_dims():
    scale = np.geomspace(0.01, 10.0, 20_000)
    target = density(lambda q: -0.5 * ((q / tensor(scale)) ** 2).sum(), 20_000)
    found = starting_points(target, 4, Generator(0), init_to_typical_set)
    assert found.gradients <= 4 * 45
    assert -log_densities(target, found.positions).min() < 20_000


def test_gradients_are_counted():
    calls = []

    def value_and_grad(q):
        calls.append(q)
        return -0.5 * q @ q, -q

    target = density(lambda q: -0.5 * (q * q).sum(), 2)
    target.density = NativeDensity.from_python(value_and_grad, 2)
    found = starting_points(target, 3, Generator(0), init_to_typical_set)
    assert found.gradients == len(calls) > 6
    calls.clear()
    uniform = starting_points(target, 3, Generator(0), init_to_uniform)
    assert uniform.gradients == len(calls) == 3


def test_chains_say_what_their_starts_took():
    target = density(lambda q: -0.5 * (q * q).sum(), 2)
    started = new_chains(NUTS(target), target, None, 3, Generator(0))
    given = new_chains(NUTS(target), target, np.zeros(2), 3, Generator(0))
    assert len(started) == 3 and started.gradients > 10 and given.gradients == 3


# ---------------------------------------------------------------------------------------- settings


def test_it_is_the_default_and_another_strategy_is_respected():
    def model():
        sample("x", Normal(1000.0, 0.1))

    assert NUTS(model).init_strategy is HMC(model).init_strategy is init_to_typical_set
    target = Target.from_model(model)
    for chain, _ in new_chains(NUTS(model), target, None, 4, Generator(0)):
        assert abs(chain.state.position.array[0] - 1000.0) < 1.0
    points = target.initial(2, Generator(0), init_to_uniform)
    assert (np.abs(points) <= 2.0).all()
    points = target.initial(2, Generator(0), init_to_uniform(radius=0.1))
    assert (np.abs(points) <= 0.1).all()
    points = target.initial(2, Generator(0), init_to_value(values={"x": 3.0}))
    np.testing.assert_array_equal(points, 3.0)
    # What is given is where the chain starts, bit for bit.
    chains = new_chains(NUTS(target), target, np.array([[1.5], [2.5]]), 2, Generator(0))
    np.testing.assert_array_equal([c.state.position.array[0] for c, _ in chains], [1.5, 2.5])


def test_guide_refuses_it_with_the_cure():
    guide = AutoNormal(lambda: sample("x", Normal(0.0, 1.0)), init_to_typical_set)
    with pytest.raises(InferenceError, match=r"(?s)for site 'x'.*fix: .*init_to_median"):
        guide()


def test_no_paths_are_refused():
    target = density(lambda q: -0.5 * (q * q).sum(), 2)
    with pytest.raises(ArgumentError, match=r"(?s)num_paths.*at least 1.*got: +0"):
        starts(target, strategy=init_to_typical_set(num_paths=0))


def test_constrained_values_per_chain_start_there():
    def model():
        sample("mu", Normal(0.0, 1.0))
        sample("tau", HalfNormal(1.0))

    target = Target.from_model(model)
    points = target.initial(2, Generator(0), init_to_value(values={"tau": [0.5, 2.0]}))
    np.testing.assert_allclose([target.constrain(wrap(q))["tau"].array for q in points], [0.5, 2.0])
    assert points[0, 0] != points[1, 0]
