"""Kernels beside HMC and its kin, from their warm-up to posteriors whose moments are known."""

import warnings

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch.core.dispatch import wrap
from probtorch.diagnostics.convergence import ess_mean
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import (
    AIES,
    ESS,
    GHMC,
    GIST,
    MALA,
    MALT,
    MCLMC,
    MCMC,
    MEADS,
    SA,
    SMMALA,
    SNAPERHMC,
    AdjustedMCLMC,
    BarkerMH,
    ChEESHMC,
    DEMetropolis,
    DynamicHMC,
    EllipticalSlice,
    IndependentMH,
    OrbitalHMC,
    RandomWalk,
    Slice,
    Target,
)

X = np.array([0.2, -1.0, 1.7, 3.1, 0.4])
Y = 1.0 + 0.5 * X + np.array([0.3, -0.1, 0.2, 0.0, -0.4])
# Prior precision 1 on both weights, noise 0.5.
DESIGN = np.stack([np.ones(5), X], axis=1)
COVARIANCE = np.linalg.inv(np.eye(2) + DESIGN.T @ DESIGN / 0.25)
MEAN = COVARIANCE @ DESIGN.T @ Y / 0.25


def line(x, y):
    a = probtorch.sample("a", dist.Normal(0.0, 1.0))
    b = probtorch.sample("b", dist.Normal(0.0, 1.0))
    with probtorch.plate("data", 5):
        probtorch.sample("y", dist.Normal(a + b * x, 0.5), obs=y)


ONE = Target.from_density(lambda q: -0.5 * (q * q).sum(), 1)
ARGUMENTS = probtorch.tensor(X), probtorch.tensor(Y)
KERNELS = {
    "random walk": (RandomWalk, 8000),
    "random walk, variances": (lambda m: RandomWalk(m, metric="diag"), 8000),
    "mala": (MALA, 3000),
    "barker": (BarkerMH, 5000),
    "dynamic hmc": (DynamicHMC, 1000),
    "ghmc": (GHMC, 5000),
    "chees": (lambda m: ChEESHMC(m, walkers=8), 500),
    "meads": (lambda m: MEADS(m, walkers=16), 1200),
    "snaper": (lambda m: SNAPERHMC(m, walkers=8), 500),
    "adjusted mclmc": (AdjustedMCLMC, 1500),
    "malt": (MALT, 1500),
    "gist": (GIST, 1500),
    "orbital": (OrbitalHMC, 1500),
    "simplified manifold mala": (SMMALA, 3000),
    "independent metropolis": (IndependentMH, 1500),
    "independent metropolis, normal": (lambda m: IndependentMH(m, df=None), 1000),
    "slice": (Slice, 2000),
    "affine-invariant ensemble": (lambda m: AIES(m, walkers=8), 5000),
    "differential evolution": (lambda m: DEMetropolis(m, walkers=8), 5000),
    "ensemble slice": (lambda m: ESS(m, walkers=8), 1000),
    "sample adaptive": (lambda m: SA(m, walkers=10), 1500),
    "elliptical slice": (EllipticalSlice, 8000),
}


def run(kernel, num_samples, **settings):
    settings = {"num_chains": 4, "seed": 2, "progress_bar": False, **settings}
    return MCMC(kernel, num_samples, 500, **settings)


@pytest.mark.parametrize("name", KERNELS)
def test_posterior_of_a_line_has_its_mean_and_covariance(name):
    """Five scores below 5: by chance one of them is above in 3 of a million runs."""
    make, num_samples = KERNELS[name]
    mcmc = run(make(line), num_samples)
    draws = mcmc.run(*ARGUMENTS).posterior  # and no warning: diagnose is content
    a, b = ((draws[n] - m) / s for n, m, s in zip("ab", MEAN, np.sqrt(np.diag(COVARIANCE))))
    r = COVARIANCE[0, 1] / np.sqrt(COVARIANCE.diagonal().prod())
    for values, sd in (
        (a, 1.0),
        (b, 1.0),
        (a**2 - 1.0, np.sqrt(2.0)),
        (b**2 - 1.0, np.sqrt(2.0)),
        (a * b - r, np.sqrt(1.0 + r**2)),
    ):
        assert ess_mean(values) > 400
        assert abs(values.mean()) < 5.0 * sd / np.sqrt(ess_mean(values))


@pytest.mark.parametrize("name, target", [("random walk", 0.234), ("mala", 0.574), ("barker", 0.4)])
def test_warmup_finds_the_acceptance_and_the_covariance(name, target):
    scale = np.array([1e-3, 1.0, 50.0])
    correlated = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    precision = probtorch.tensor(np.linalg.inv(correlated * np.outer(scale, scale)))
    make, _ = KERNELS[name]
    mcmc = run(make(Target.from_density(lambda q: -0.5 * (q * (precision @ q)).sum(), 3)), 3000)
    draws = mcmc.run()
    assert abs(draws.sample_stats["acceptance_rate"].mean() - target) < 0.1
    for chain in mcmc.adapted:
        found = chain.inverse_mass() / np.outer(scale, scale)
        assert 0.3 < found.diagonal().min() and found.diagonal().max() < 3.0
        assert found[0, 1] / np.sqrt(found[0, 0] * found[1, 1]) > 0.6


def test_walkers_are_chains_of_the_result():
    mcmc = run(AIES(line, walkers=6), 30, num_chains=2, keep_warmup=True, thinning=3)
    mcmc.diagnose = False
    draws = mcmc.run(*ARGUMENTS)
    assert draws.posterior["a"].shape == (12, 10)
    assert draws.sample_stats["acceptance_rate"].shape == (12, 10)
    assert (draws.sample_stats["n_steps"] == 3).all()
    assert draws.groups["warmup_posterior"]["a"].shape == (12, 500)
    # A walker moves or stays; it does not jump to where another one was.
    whole = run(AIES(line, walkers=6), 30, num_chains=2)
    whole.diagnose = False
    np.testing.assert_array_equal(whole.run(*ARGUMENTS).positions[:, 2::3], draws.positions)
    stays = np.diff(whole.draws.posterior["a"], axis=1) == 0.0
    assert 0.1 < stays.mean() < 0.9
    assert mcmc.more(3).num_draws == 11
    assert mcmc.adapted == []


@pytest.mark.parametrize("kernel", [ChEESHMC, SNAPERHMC])
def test_walkers_learn_how_long_trajectories_should_be(kernel):
    """Of a correlated normal they have to be as long as its widest direction, here 4 times."""
    lengths = []
    for r in (0.0, 0.95):
        covariance = np.full((20, 20), r) + (1.0 - r) * np.eye(20)
        precision = probtorch.tensor(np.linalg.inv(covariance))
        target = Target.from_density(lambda q, p=precision: -0.5 * (q * (p @ q)).sum(), 20)
        mcmc = run(kernel(target, walkers=12), 20, num_chains=1)
        mcmc.diagnose = False
        mcmc.run()
        lengths.append(float(mcmc.last_state[0].kernel.trajectory_length.array))
    assert 0.3 < lengths[0] < 1.5 and 2.5 * lengths[0] < lengths[1]


def test_the_bias_of_steps_that_are_not_adjusted_is_controlled():
    """At five standard errors beside the bias, either bound is crossed by chance in 1 of 2e6."""
    target = Target.from_density(lambda q: -0.5 * (q * q).sum(), 20)
    for wanted, bias in ((5e-4, 0.03), (5e-6, 0.006)):
        mcmc = run(MCLMC(target, desired_energy_var=wanted), 1000)
        draws = mcmc.run()
        x = draws.posterior["x"]
        error = np.sqrt(2.0 / 20 / ess_mean(x[..., 0] ** 2))
        assert abs(x.var(axis=(0, 1)).mean() - 1.0) < bias + 5.0 * error
        assert 0.5 < draws.sample_stats["energy_variance"].mean() / wanted < 2.0
        assert not draws.sample_stats["diverging"].any()


def test_a_step_that_loses_the_energy_is_not_taken_and_told():
    """Beyond a wall there is nothing: a chain stays before it, and says that it met it."""
    inf = probtorch.tensor(-np.inf, dtype=probtorch.float64)

    def walled(q):
        return probtorch.where(q[0] > -1.0, -0.5 * (q * q).sum(), inf)

    mcmc = run(MCLMC(Target.from_density(walled, 2), step_size=0.5), 200)
    mcmc.diagnose = False
    with warnings.catch_warnings(action="ignore"):
        draws = mcmc.run(init_params=np.ones(2))
    assert draws.posterior["x"][..., 0].min() > -1.0
    diverging = draws.sample_stats["diverging"]
    assert diverging.any()
    assert (np.isinf(draws.sample_stats["energy_variance"]) == diverging).all()


@pytest.mark.parametrize("name", [*KERNELS, "mclmc"])
def test_runs_depend_on_the_seed_alone_and_can_be_gone_on_with(name, tmp_path):
    make = MCLMC if name == "mclmc" else KERNELS[name][0]
    whole, threads, first = (
        run(make(line), n, num_chains=2, num_threads=t) for n, t in ((60, 1), (60, 2), (40, 2))
    )
    for mcmc in (whole, threads, first):
        mcmc.diagnose = False
        mcmc.run(*ARGUMENTS)
    np.testing.assert_array_equal(whole.draws.positions, threads.draws.positions)
    state = first.state_dict()
    np.testing.assert_array_equal(first.more(20).positions, whole.draws.positions)
    later = run(make(line), 20, num_chains=2)
    later.diagnose = False
    later.load_state_dict(state)
    np.testing.assert_array_equal(later.run(*ARGUMENTS).positions, whole.draws.positions[:, 40:])
    saved = run(make(line), 60, num_chains=2)
    saved.diagnose = False
    for _ in range(2):  # the second one finds the end of the first
        saved.run(*ARGUMENTS, checkpoint=tmp_path)
        np.testing.assert_array_equal(saved.draws.positions, whole.draws.positions)


def test_what_a_kernel_does_not_tell_is_done_without():
    mcmc = run(Slice(line), 100)
    mcmc.diagnose = False
    draws = mcmc.run(*ARGUMENTS, extra_fields=("potential_energy", "num_steps"))
    assert set(draws.sample_stats) == {"lp", "n_steps"}
    assert set(mcmc.get_extra_fields()) == {"potential_energy", "num_steps"}
    assert set(mcmc.diagnostics()) == {"a", "b"}
    with pytest.raises(ArgumentError, match="diverging"):
        mcmc.run(*ARGUMENTS, extra_fields=("diverging",))


def test_slice_sampling_copes_with_jumps():
    """A density of 2 on (0, 1) and 1 on (1, 3): a half of it in each."""
    inf = probtorch.tensor(-np.inf, dtype=probtorch.float64)

    def steps(q):
        x = q[0]
        inside = (x > 0.0) & (x < 3.0)
        return probtorch.where(inside, probtorch.where(x < 1.0, np.log(2.0), 0.0), inf)

    mcmc = run(Slice(Target.from_density(steps, 1)), 3000)
    x = mcmc.run(init_params=np.array([0.5])).posterior["x"]
    below = (x < 1.0).astype(float)
    assert abs(below.mean() - 0.5) < 5.0 * 0.5 / np.sqrt(ess_mean(below))
    assert x.min() > 0.0 and x.max() < 3.0


def test_walkers_of_differential_evolution_go_between_modes():
    """3/10 of the weight is 12 sd away from the rest: the share has a score below 5."""

    def two(q):
        logs = probtorch.stack([-0.5 * (q[0] + 6.0) ** 2, -0.5 * (q[0] - 6.0) ** 2])
        return probtorch.logsumexp(logs + probtorch.tensor([0.3, 0.7]).log(), 0)

    mcmc = run(DEMetropolis(Target.from_density(two, 1), walkers=8, jumps=0.3), 10000)
    mcmc.diagnose = False
    starts = np.where(np.arange(32) % 2, -6.0, 6.0) + 0.01 * np.arange(32)
    left = (mcmc.run(init_params=starts[:, None]).posterior["x"] < 0.0).astype(float)
    assert ess_mean(left) > 400
    assert abs(left.mean() - 0.3) < 5.0 * np.sqrt(0.21 / ess_mean(left))


def test_warmup_of_ensemble_slices_expands_as_often_as_it_shrinks():
    mcmc = run(ESS(line, walkers=6, mu=40.0), 300)
    mcmc.diagnose = False
    mcmc.run(*ARGUMENTS)
    chain = mcmc.last_state[0]
    assert 0.3 < float(chain.kernel.mu.array) < 5.0
    # About five evaluations a draw; stuck with the interval of 80 differences, some ten.
    assert mcmc.draws.sample_stats["n_steps"].mean() < 6.5


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: RandomWalk(line, metric="low_rank"), ["RandomWalk(metric=...)", "gradients"]),
        (lambda: RandomWalk(line, find_heuristic_step_size=True), ["leave it out"]),
        (lambda: MALA(line, target_accept_prob=1.5), ["MALA(target_accept_prob=...)", "(0, 1)"]),
        (lambda: MALA(), ["MALA", "one of model and potential_fn", "neither"]),
        (lambda: DynamicHMC(line, law="normal"), ["DynamicHMC(law=...)", "'exponential'"]),
        (lambda: DynamicHMC(line, max_num_steps=0), ["max_num_steps", "at least 1"]),
        (lambda: MALT(line, max_num_steps=0), ["MALT(max_num_steps=...)", "at least 1"]),
        (lambda: MALT(line, friction=-1.0), ["MALT(friction=...)", "-1.0"]),
        (lambda: GIST(line, max_num_steps=0.5), ["GIST(max_num_steps=...)", "at least 1"]),
        (lambda: OrbitalHMC(line, num_points=1), ["OrbitalHMC(num_points=...)", "at least 2"]),
        (lambda: SMMALA(line, metric="dense"), ["SMMALA(metric=...)", "'diag'"]),
        (lambda: SMMALA(line, find_heuristic_step_size=True), ["SMMALA(find", "leave it out"]),
        (lambda: IndependentMH(line, df=0), ["IndependentMH(df=...)", "None for a normal"]),
        (lambda: IndependentMH(line, loc=np.zeros(2)), ["IndependentMH", "loc alone"]),
        (lambda: IndependentMH(line, proposal="prior"), ["IndependentMH(proposal=...)", "'prior'"]),
        (lambda: ChEESHMC(line, walkers=1), ["ChEESHMC(walkers=...)", "at least 2"]),
        (lambda: ChEESHMC(line, metric="dense"), ["ChEESHMC(metric=...)", "'diag'"]),
        (lambda: MEADS(line, folds=1), ["MEADS(folds=...)", "at least 2"]),
        (lambda: MEADS(line, walkers=10), ["MEADS(walkers=...)", "a multiple of 4", "10"]),
        (lambda: MCLMC(line, integrator="euler"), ["MCLMC(integrator=...)", "'leapfrog'"]),
        (lambda: MCLMC(line, num_steps=0), ["MCLMC(num_steps=...)", "at least 1"]),
        (lambda: run(AdjustedMCLMC(ONE), 9).run(), ["2 coordinates", "NUTS"]),
        (lambda: BarkerMH(line, dense_mass=True), ["BarkerMH(dense_mass=...)", "metric"]),
        (lambda: GHMC(line, drift=1.5), ["GHMC(drift=...)", "(0, 1)"]),
        (lambda: Slice(line, width=-1.0), ["Slice(width=...)", "-1.0"]),
        (lambda: Slice(line, max_treedepth=3), ["Slice(max_treedepth=...)", "a name among"]),
        (lambda: AIES(line, walkers=1), ["AIES(walkers=...)", "at least 2"]),
        (lambda: DEMetropolis(line, walkers=3), ["DEMetropolis(walkers=...)", "at least 4"]),
        (lambda: DEMetropolis(line, snooker=1.5), ["DEMetropolis(snooker=...)", "1.5"]),
        (lambda: DEMetropolis(line, gamma=-1.0), ["DEMetropolis(gamma=...)", "-1.0"]),
        (lambda: run(AIES(line, walkers=3), 9).run(*ARGUMENTS), ["at least 4", "walkers=4"]),
    ],
)
def test_settings_that_do_not_fit_are_told_with_a_cure(make, words):
    with pytest.raises(ArgumentError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_walkers_that_start_in_one_place_are_refused():
    mcmc = run(AIES(line, walkers=8), 10)
    with pytest.raises(InferenceError, match="span"):
        mcmc.run(*ARGUMENTS, init_params={"a": 0.0, "b": 0.0})


@pytest.mark.parametrize("metric", ["dense", "diag"])
def test_rates_of_sample_adaptive_moves_are_normals_through_the_other_points(metric):
    points = np.random.default_rng(0).normal(size=(9, 3)) @ np.array(
        [[2.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 0.1]]
    )
    expected = []
    for j in range(9):
        others = np.delete(points, j, axis=0)
        covariance = np.cov(others.T, bias=True)
        if metric == "diag":
            covariance = np.diag(covariance.diagonal())
        law = stats.multivariate_normal(others.mean(axis=0), covariance)
        expected.append(law.logpdf(points[j]))
    found = SA(ONE, walkers=8, metric=metric)._left_out(wrap(points)).array
    np.testing.assert_allclose(found - found[0], np.array(expected) - expected[0], rtol=1e-9)


def test_sample_adaptive_points_stay_inside_of_a_bounded_density():
    """A triangle: mean 1/3 and variance 1/18 on [0, 1]; most proposals are impossible."""

    def triangle(q):
        inside = (q > 0.0).all() & (q.sum() < 1.0)
        return probtorch.where(inside, 0.0, -np.inf)

    target = Target.from_density(triangle, 2)
    starts = np.random.default_rng(0).dirichlet(np.ones(3), size=(2, 20))[..., :2]
    mcmc = run(SA(target, walkers=20), 2000, num_chains=2)
    draws = mcmc.run(init_params=starts.reshape(-1, 2))["x"]
    assert (draws > 0.0).all() and (draws.sum(axis=-1) < 1.0).all()
    for values in (draws[..., 0] - 1 / 3, (draws[..., 1] - 1 / 3) ** 2 - 1 / 18):
        # One of two scores beyond 5 has a chance of 1e-6.
        assert abs(values.mean()) < 5.0 * values.std() / np.sqrt(ess_mean(values))


def test_sample_adaptive_metric_is_one_of_two():
    with pytest.raises(ArgumentError, match="metric"):
        SA(ONE, metric="full")
