"""Tempered `SMC`: evidence against closed forms and quadrature, draws, threads, refusals."""

import warnings

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import expit

import probtorch
from probtorch import distributions as dist
from probtorch import infer
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.tree import leaves, replace
from probtorch.effects import plate, sample
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer import (
    AIES,
    MCLMC,
    MCMC,
    NUTS,
    SMC,
    IndependentMH,
    RandomWalk,
    Slice,
    SMCWarning,
    Target,
)
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.metrics import DiagonalMetric
from probtorch.infer.mcmc.randomness import key_of
from probtorch.infer.sequential.moves import MoveTask, move_particles, program_of
from probtorch.infer.sequential.tempering import TemperedPath

RNG = np.random.default_rng(0)
X = RNG.normal(size=20)
Y = 1.0 + 2.0 * X + 0.5 * RNG.normal(size=20)
# Seeds are fixed; of a sound estimate one in 15,000 is further from the truth than this many
# standard errors.
SIGMAS = 4.0


def line(x, y):
    a = sample("a", dist.Normal(0.0, 2.0))
    b = sample("b", dist.Normal(0.0, 2.0))
    with plate("row", len(x)):
        sample("y", dist.Normal(a + b * x, 0.5), obs=y)


DESIGN = np.stack([np.ones(20), X])
EVIDENCE = stats.multivariate_normal(np.zeros(20), 0.25 * np.eye(20) + 4.0 * DESIGN.T @ DESIGN)
COVARIANCE = np.linalg.inv(DESIGN @ DESIGN.T / 0.25 + np.eye(2) / 4.0)
MEAN = COVARIANCE @ DESIGN @ Y / 0.25


@pytest.mark.parametrize(
    "kernel, options",
    [
        (RandomWalk, {}),
        pytest.param(NUTS, {}, marks=pytest.mark.slow),
        (Slice, {"resampling": "residual"}),
        (RandomWalk, {"waste_free": True, "num_steps": 10}),
    ],
)
def test_evidence_and_posterior_of_a_linear_model(kernel, options):
    draws = SMC(kernel(line), num_particles=400, seed=1, **options).run(X, Y)
    assert abs(draws.log_evidence - EVIDENCE.logpdf(Y)) < SIGMAS * draws.log_evidence_error
    assert draws.log_evidence_error < 0.5 and draws.temperatures[-1] == 1.0
    found = np.stack([draws["a"][0], draws["b"][0]])
    # Families of resampled particles: a quarter of them count as independent.
    sd = np.sqrt(np.diag(COVARIANCE) / 100)
    assert (np.abs(found.mean(axis=1) - MEAN) < SIGMAS * sd).all()
    np.testing.assert_allclose(found.std(axis=1) ** 2 / np.diag(COVARIANCE), 1.0, atol=0.5)
    q = draws.positions[0, 0]
    lp = draws.target.logdensity(wrap(q)).item()
    assert draws.sample_stats["lp"][0, 0] == pytest.approx(lp)


def test_summed_site_bounded_support_and_factor_against_quadrature():
    def model(y):
        p = sample("p", dist.Beta(2.0, 2.0))
        z = sample("z", dist.Bernoulli(p))
        sample("y", dist.Normal(3.0 * z, 0.3), obs=y)
        probtorch.factor("tilt", -2.0 * p)

    def joint(p):
        likelihood = p * stats.norm.pdf(2.5, 3.0, 0.3) + (1 - p) * stats.norm.pdf(2.5, 0.0, 0.3)
        return stats.beta.pdf(p, 2, 2) * likelihood * np.exp(-2.0 * p)

    exact = integrate.quad(joint, 0.0, 1.0)[0]
    mean = integrate.quad(lambda p: p * joint(p), 0.0, 1.0)[0] / exact
    draws = SMC(RandomWalk(model), num_particles=300, temperatures=[0.3, 1.0], seed=0).run(
        probtorch.tensor(2.5)
    )
    assert draws.temperatures == [0.3, 1.0]
    assert abs(draws.log_evidence - np.log(exact)) < SIGMAS * draws.log_evidence_error
    assert abs(draws["p"].mean() - mean) < SIGMAS * 0.2 / np.sqrt(100)


def test_sites_drawn_given_what_was_observed_before_them():
    def model(y):
        z = sample("z", dist.Normal(0.0, 1.0))
        first = sample("first", dist.Normal(z, 1.0), obs=y[0])
        last = sample("last", dist.Normal(first, 1.0))
        sample("second", dist.Normal(last, 1.0), obs=y[1])

    draws = SMC(RandomWalk(model), 300, seed=0).run(probtorch.tensor([2.0, 0.5]))
    exact = stats.norm.logpdf(2.0, 0.0, 2**0.5) + stats.norm.logpdf(0.5, 2.0, 2**0.5)
    assert abs(draws.log_evidence - exact) < SIGMAS * draws.log_evidence_error
    assert abs(draws["last"].mean() - 1.25) < SIGMAS * 0.5**0.5 / np.sqrt(75)


def test_both_modes_of_a_density_are_found_from_a_reference():
    def two(q):
        # Weights 0.3 and 0.7 at -6 and 6, in two dimensions; its integral is e.
        modes = [np.log(w) - 0.5 * ((q - m) ** 2).sum() for w, m in ((0.3, -6.0), (0.7, 6.0))]
        return probtorch.logsumexp(probtorch.stack(modes), 0) - np.log(2 * np.pi) + 1.0

    reference = dist.Normal(0.0, 6.0).expand([2]).to_event(1)
    smc = SMC(RandomWalk(Target.from_density(two, 2)), 600, reference=reference, seed=0)
    draws = smc.run()
    assert abs(draws.log_evidence - 1.0) < SIGMAS * draws.log_evidence_error
    share = (draws["x"][0, :, 0] > 0.0).mean()
    # The share of a mode is decided by the first particles near it, some 60 of them.
    assert abs(share - 0.7) < SIGMAS * np.sqrt(0.21 / 60)


def test_draws_depend_on_the_seed_and_not_on_the_number_of_threads():
    def positions(threads, seed):
        smc = SMC(RandomWalk(line), 150, num_steps=4, num_threads=threads, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SMCWarning)
            return smc.run(X, Y).positions

    one = positions(1, 3)
    np.testing.assert_array_equal(one, positions(3, Generator(3)))
    assert (one != positions(1, 4)).any()


@pytest.mark.parametrize("keep", [1, 4])
def test_eager_moves_are_the_compiled_ones(keep):
    path = TemperedPath(Target.from_model(line, X, Y), None)
    context = path.density.context()
    handle = path.handle(context, 0.4)
    metric = DiagonalMetric.from_inverse_mass([0.1, 0.1])
    kernel = RandomWalk(line, step_size=0.7, metric="diag").in_use(handle, metric=metric)
    starts = np.random.default_rng(1).normal(size=(64, 2))
    count, first, steps = (wrap(np.array(n)) for n in (3, 5, 3))
    task = MoveTask(kernel, key_of(Generator(2)), wrap(starts), first, count, steps)
    eager, compiled = move_particles(task, keep), program_of(move_particles, task, keep)(task)
    assert eager.positions.array.shape == (64, keep, 2)
    for ours, theirs in zip(leaves(eager), leaves(compiled), strict=True):
        np.testing.assert_allclose(ours.array, theirs.array, rtol=1e-8, atol=1e-12)
    again = move_particles(replace(task, first=wrap(np.array(6))), keep)
    # The second particle has the stream that the third had, wherever it starts.
    assert (again.positions.array[0] != eager.positions.array[0]).any()


def test_prior_draws_are_those_of_the_prior():
    def model(y):
        s = sample("s", dist.HalfNormal(2.0))
        sample("u", dist.Uniform(s, s + 1.0))
        sample("y", dist.Normal(s, 1.0), obs=y)

    target = Target.from_model(model, probtorch.tensor(0.5))
    path = TemperedPath(target, None)
    q = path.draws(400, Generator(0))
    found = target.constrain_many(q)
    # One false alarm in 1000 for each of two.
    assert stats.kstest(found["s"], stats.halfnorm(scale=2.0).cdf).pvalue > 1e-3
    assert stats.kstest(found["u"] - found["s"], stats.uniform.cdf).pvalue > 1e-3


def test_particles_that_do_not_move_are_told_of():
    kernel = RandomWalk(line, step_size=1e-4, adapt_step_size=False)
    with pytest.warns(SMCWarning, match="descend from") as caught:
        with pytest.warns(SMCWarning, match="stay where they were resampled"):
            SMC(kernel, 100, num_steps=1, seed=0).run(X, Y)
    assert caught[0].filename == __file__


def test_what_cannot_be_run_is_refused():
    density = Target.from_density(lambda q: -(q * q).sum(), 2)
    with pytest.raises(ArgumentError, match="no model"):
        SMC(RandomWalk(density)).run()
    with pytest.raises(ShapeError, match="reference"):
        SMC(RandomWalk(density), reference=dist.Normal(0.0, 1.0)).run()
    with pytest.raises(ArgumentError, match="kernel"):
        SMC(line)
    with pytest.raises(ArgumentError, match="one point"):
        SMC(AIES(line, walkers=6))
    with pytest.raises(ArgumentError, match="MCLMC, which does not"):
        SMC(MCLMC(line))
    with pytest.raises(ArgumentError, match="ascending"):
        SMC(NUTS(line), temperatures=[0.5, 0.2, 1.0])
    with pytest.raises(ArgumentError, match="multiple of num_steps"):
        SMC(NUTS(line), 100, waste_free=True, num_steps=30)
    with pytest.raises(ArgumentError, match="ess_threshold"):
        SMC(NUTS(line), ess_threshold=1.0)
    with pytest.raises(ArgumentError, match="resampling"):
        SMC(NUTS(line), resampling="killing")

    def impossible(y):
        x = sample("x", dist.Normal(0.0, 1.0))
        sample("y", dist.Uniform(x, x + 1e-9), obs=y)

    with pytest.raises(InferenceError, match="log likelihood"):
        SMC(RandomWalk(impossible), 50, seed=0).run(probtorch.tensor(3.0))


@pytest.mark.slow
def test_every_kernel_moves_particles_or_says_that_it_does_not():
    kinds = [getattr(infer, name) for name in infer.__all__]
    kinds = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Kernel)]
    movers = [kind for kind in kinds if kind.moves_particles and not kind(line).members]
    assert {NUTS, RandomWalk, Slice} < set(movers) and not {MCLMC, AIES} & set(movers)
    for kind in movers:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", SMCWarning)
            draws = SMC(kind(line), 400, seed=1).run(X, Y)
        # Independent proposals are of the whole posterior: at low temperatures they are too narrow.
        assert bool(told) == (kind is IndependentMH), (kind, told)
        if not told:
            assert abs(draws.log_evidence - EVIDENCE.logpdf(Y)) < SIGMAS * draws.log_evidence_error


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"resampling": "multinomial"}, {"waste_free": True}])
def test_stated_errors_are_those_of_repeated_runs(options):
    target = Target.from_model(line, X, Y)
    scores = []
    for seed in range(60):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SMCWarning)
            draws = SMC(RandomWalk(target), 800, seed=seed, **options).run()
        scores.append((draws.log_evidence - EVIDENCE.logpdf(Y)) / draws.log_evidence_error)
    # The mean square of 60 normal scores is above 1.6 in one of 500; the errors are estimates.
    assert np.mean(np.square(scores)) < 1.8
    assert np.mean(np.square(scores)) > 0.4


@pytest.mark.slow
def test_ranks_of_simulated_parameters_are_uniform():
    """Simulation-based calibration of draws, one false alarm in 1000 for each of two tests."""
    rng = np.random.default_rng(5)
    ranks = []
    for seed in range(120):
        a, b = rng.normal(0.0, 2.0, size=2)
        y = a + b * X[:4] + 0.5 * rng.normal(size=4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SMCWarning)
            draws = SMC(RandomWalk(line), 400, num_threads=1, seed=seed).run(X[:4], y)
        # A few, far apart: neighbours have common ancestors.
        some = rng.choice(400, 11, replace=False)
        ranks.append([(draws["a"][0, some] < a).sum(), (draws["b"][0, some] < b).sum()])
    for column in np.transpose(ranks):
        counts = np.bincount(column, minlength=12)
        assert stats.chisquare(counts).pvalue > 1e-3


def bridge(target, q):
    """The log evidence by bridge sampling between draws and a normal (Meng and Wong 1996)."""
    fit, rest = q[::2], q[1::2]
    normal = stats.multivariate_normal(fit.mean(axis=0), np.cov(fit.T))
    mine = normal.rvs(len(rest), random_state=0)
    at_rest, at_mine = (
        np.array([target.value_and_grad(x)[0] for x in points]) - normal.logpdf(points)
        for points in (rest, mine)
    )
    value = np.median(at_rest)
    for _ in range(200):
        above = np.mean(expit(at_mine - value))
        below = np.mean(expit(value - at_rest))
        value += np.log(above) - np.log(below)
    # Relative variance of both means, as if draws were independent: half of them are, and more.
    terms = expit(at_mine - value), expit(value - at_rest)
    spread = sum(x.var() / x.mean() ** 2 / len(x) for x in terms)
    return value, np.sqrt(2.0 * spread)


@pytest.mark.slow
def test_evidence_agrees_with_bridge_sampling_of_eight_schools():
    y = probtorch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = probtorch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def schools(y, sigma):
        mu = sample("mu", dist.Normal(0.0, 5.0))
        tau = sample("tau", dist.HalfCauchy(5.0))
        with plate("school", 8):
            z = sample("z", dist.Normal(0.0, 1.0))
            sample("y", dist.Normal(mu + tau * z, sigma), obs=y)

    kernel = NUTS(schools, target_accept_prob=0.95)
    mcmc = MCMC(kernel, num_samples=2000, num_chains=2, seed=0, progress_bar=False)
    draws = mcmc.run(y, sigma)
    value, error = bridge(draws.target, draws.positions.reshape(-1, 10))
    assert error < 0.1
    found = SMC(NUTS(schools), 1000, seed=0).run(y, sigma)
    assert found.log_evidence_error < 0.2
    both = np.hypot(error, found.log_evidence_error)
    assert abs(found.log_evidence - value) < SIGMAS * both
