"""HMC with energy conserving subsampling, against sums over all choices of rows and quadrature."""

import itertools

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.diagnostics.convergence import ess_mean
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import HMC, HMCECS, MCMC, NUTS, Slice, Target
from probtorch.infer.mcmc.subsampling.difference_estimator import DifferenceTarget, TaylorProxy

X = np.random.default_rng(1).normal(size=300)
Y = (np.random.default_rng(2).uniform(size=300) < 1.0 / (1.0 + np.exp(-1.2 * X))).astype(float)


def logistic(x, y, size=15):
    slope = probtorch.sample("slope", dist.Normal(0.0, 2.0))
    probtorch.sample("pseudo", dist.Normal(slope, 1.0), obs=1.0)
    with probtorch.plate("rows", len(y), subsample_size=size) as i:
        probtorch.sample("y", dist.Bernoulli(logits=slope * x[i]), obs=y[i])


def data(count):
    return probtorch.tensor(X[:count]), probtorch.tensor(Y[:count])


def run(kernel, num_samples, **settings):
    settings = {"num_chains": 4, "seed": 4, "progress_bar": False, **settings}
    mcmc = MCMC(kernel, num_samples, 300, **settings)
    mcmc.diagnose = False
    return mcmc


def assert_moments(draws, grid, logs):
    """Mean and square of draws have scores below 5 around those of a density on a grid."""
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    for power in (1, 2):
        mean = weights @ grid**power
        sd = np.sqrt(weights @ (grid**power - mean) ** 2)
        size = ess_mean(draws**power)
        assert size > 400
        assert abs((draws**power).mean() - mean) < 5.0 * sd / np.sqrt(size)


@pytest.mark.parametrize("degree", [1, 2])
def test_the_estimate_is_unbiased_over_all_choices_of_rows(degree):
    proxy = TaylorProxy({"slope": 0.3}, degree)
    target = DifferenceTarget(logistic, data(6), {"size": 2}, proxy)
    for q in (-0.5, 0.3, 2.0):
        exact, slope = target.value_and_grad(np.array([q]))
        found, differences = [], []
        for rows in itertools.product(range(6), repeat=2):
            value, _ = target.row_density.value_and_grad(np.array([q, *rows], float))
            found.append(value)
            # Of one row twice there is no variance: N times the difference, and what is known.
            # That of two rows has the variance (N d - N d')^2 / 4, of which half was taken off.
            one, other = (target.row_density.value_and_grad(np.array([q, r, r]))[0] for r in rows)
            differences.append((one - other) ** 2 / 8.0)
        np.testing.assert_allclose(np.mean(np.array(found) + differences), exact, rtol=1e-10)
    # At the reference all proxies are exact.
    at = [target.row_density.value_and_grad(np.array([0.3, *r])) for r in ((0, 1), (3, 3), (5, 2))]
    exact, slope = target.value_and_grad(np.array([0.3]))
    np.testing.assert_allclose([value for value, _ in at], exact, rtol=1e-12)
    np.testing.assert_allclose([grad[0] for _, grad in at], slope[0], rtol=1e-9)


KERNELS = {
    "hmc": (lambda: HMC(logistic, num_steps=3), 6000),
    "nuts": (lambda: NUTS(logistic), 3000),
    "slice": (lambda: Slice(logistic), 3000),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("num_blocks", [1, 2])
def test_rows_and_position_have_their_joint_law(name, num_blocks):
    """With few rows and poor proxies the law is not the posterior, but the sum over all rows."""
    make, num_samples = KERNELS[name]
    proxy = HMCECS.taylor_proxy({"slope": -1.5}, degree=1)
    mcmc = run(HMCECS(make(), num_blocks=num_blocks, proxy=proxy), num_samples)
    draws = mcmc.run(*data(4), size=3)
    assert 0.05 < draws.sample_stats["rows_acceptance_rate"].mean() < 0.95
    grid = np.linspace(-6.0, 8.0, 281)
    density = mcmc.target.row_density
    logs = [
        [density.value_and_grad(np.array([q, *rows], float))[0] for q in grid]
        for rows in itertools.combinations_with_replacement(range(4), 3)
    ]
    counts = [
        len(set(itertools.permutations(rows)))
        for rows in itertools.combinations_with_replacement(range(4), 3)
    ]
    logs = np.log(np.array(counts)[:, None]) + np.array(logs)
    top = logs.max(axis=0)
    assert_moments(draws.posterior["slope"], grid, top + np.log(np.exp(logs - top).sum(axis=0)))


def test_posterior_of_a_regression_is_that_of_all_rows():
    mcmc = run(HMCECS(NUTS(logistic)), 1500)
    draws = mcmc.run(*data(300))
    assert draws.sample_stats["rows_acceptance_rate"].mean() > 0.9
    assert draws.attrs["proxy_degree"] == 2 and draws.attrs["inner_kernel"] == "NUTS"
    grid = np.linspace(0.0, 3.0, 301)
    logits = grid[:, None] * X
    logs = (Y * logits - np.logaddexp(0.0, logits)).sum(axis=1)
    assert_moments(draws.posterior["slope"], grid, logs - 0.125 * grid**2 - 0.5 * (grid - 1.0) ** 2)


def test_runs_depend_on_the_seed_alone_and_can_be_gone_on_with(tmp_path):
    def made(num_samples, threads=2):
        kernel = HMCECS(HMC(logistic, num_steps=3), num_blocks=3)
        return run(kernel, num_samples, num_chains=2, num_threads=threads)

    expected = made(60).run(*data(50)).positions
    np.testing.assert_array_equal(made(60, threads=1).run(*data(50)).positions, expected)
    first, later = made(40), made(20)
    first.run(*data(50))
    state = first.state_dict()
    np.testing.assert_array_equal(first.more(20).positions, expected)
    later.load_state_dict(state)
    np.testing.assert_array_equal(later.run(*data(50)).positions, expected[:, 40:])
    for _ in range(2):
        saved = made(60).run(*data(50), checkpoint=tmp_path).positions
        np.testing.assert_array_equal(saved, expected)


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: HMCECS(logistic), ArgumentError, ["HMCECS(kernel)", "HMCECS(NUTS(model))"]),
        (lambda: HMCECS(HMC(logistic), num_blocks=0), ArgumentError, ["num_blocks", "0"]),
        (lambda: HMCECS(HMC(logistic), proxy=2), ArgumentError, ["proxy", "taylor_proxy"]),
        (lambda: HMCECS.taylor_proxy(degree=3), ArgumentError, ["degree", "1 or 2"]),
        (
            lambda: run(HMCECS(HMC(logistic)), 9).run(*data(15)),
            InferenceError,
            ["subsamples of two rows or more", "all rows"],
        ),
        (
            lambda: run(HMCECS(HMC(Target.from_density(lambda q: -(q * q).sum(), 1))), 9).run(),
            ArgumentError,
            ["a kernel with a model", "nobody knows the rows"],
        ),
    ],
)
def test_what_does_not_fit_is_told_with_a_cure(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
