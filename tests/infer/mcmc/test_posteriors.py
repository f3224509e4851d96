"""Posteriors with known answers, from models, and long runs that only the nightly job affords."""

import warnings

import numpy as np
import pytest
from scipy import stats

from probtorch.compiler.density import NativeDensity
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.tree import replace
from probtorch.diagnostics.convergence import ess_mean
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.normal import Normal
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.infer.mcmc.chunk import Chain, ChunkRunner
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.kernels.adaptive_steps import AdaptiveSteps
from probtorch.infer.mcmc.kernels.hmc import HMC
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.mcmc.metrics import DenseMetric, DiagonalMetric, LowRankMetric
from probtorch.infer.mcmc.randomness import Key, key_of
from probtorch.infer.potential import Target
from tests.infer.mcmc.targets import handle


def normal_model(y):
    loc = sample("loc", Normal(0.0, 10.0))
    with plate("observation", len(y)):
        sample("y", Normal(loc, 2.0), obs=y)


def rate_model(total, exposure):
    rate = sample("rate", Gamma(3.0, 2.0))
    sample("total", Normal(rate * exposure, 0.5), obs=total)


@pytest.mark.parametrize("kernel", [NUTS, HMC], ids=["nuts", "hmc"])
def test_normal_model_has_its_exact_posterior(kernel):
    """Mean and sd within 5 standard errors, Kolmogorov-Smirnov of thinned draws: chance 1e-5."""
    y = np.array([3.1, 2.2, 4.5, 1.9, 2.8])
    precision = 1.0 / 100.0 + len(y) / 4.0
    exact = stats.norm(y.sum() / 4.0 / precision, precision**-0.5)
    settings = {"trajectory_length": 1.5} if kernel is HMC else {}
    mcmc = MCMC(kernel(normal_model, **settings), 2000, 500, num_chains=4, seed=3)
    draws = mcmc.run(y).posterior["loc"]
    size = ess_mean(draws)
    assert abs(draws.mean() - exact.mean()) < 5.0 * exact.std() / np.sqrt(size)
    assert abs(draws.std() / exact.std() - 1.0) < 5.0 / np.sqrt(size)
    assert stats.kstest(draws[:, ::10].ravel(), exact.cdf).pvalue > 1e-5


def test_positive_site_comes_back_in_its_own_space():
    """The Jacobian is in: quantiles of the rate against quadrature, within 5 standard errors."""
    grid = np.linspace(1e-6, 12.0, 200_001)
    logp = stats.gamma(3.0, scale=0.5).logpdf(grid) + stats.norm(2.0 * grid, 0.5).logpdf(4.0)
    weight = np.exp(logp - logp.max())
    mean = (grid * weight).sum() / weight.sum()
    sd = np.sqrt((grid**2 * weight).sum() / weight.sum() - mean**2)
    mcmc = MCMC(NUTS(rate_model), 2000, 500, num_chains=4, seed=5)
    draws = mcmc.run(4.0, 2.0).posterior["rate"]
    assert (draws > 0.0).all()
    assert abs(draws.mean() - mean) < 5.0 * sd / np.sqrt(ess_mean(draws))
    assert abs(draws.std() / sd - 1.0) < 0.08


# ----------------------------------------------------------------------------------------- slow

UNIT = DiagonalMetric.unit(2)
KERNELS = {
    "nuts": lambda density: NUTS.of(density, step_size=0.35, metric=UNIT),
    "nuts, dense": lambda density: NUTS.of(
        density, step_size=0.4, metric=DenseMetric.from_inverse_mass([[1.0, 0.3], [0.3, 2.0]])
    ),
    "low rank": lambda density: NUTS.of(
        density,
        step_size=0.4,
        metric=LowRankMetric.of(np.array([1.0, 2.0]), np.array([[0.6, 0.8]]), np.array([4.0]), 2),
    ),
    "nuts, adaptive steps": lambda density: NUTS.of(
        density, step_size=1.0, metric=UNIT, integrator=AdaptiveSteps(tolerance=0.5)
    ),
    "hmc": lambda density: HMC.of(
        density, step_size=0.3, metric=UNIT, trajectory_length=1.5, jitter=0.2
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_leaves_a_curved_density_invariant(name):
    """100 000 exact draws of a banana stay exact; a p-value below 1e-6 in four tests is 4e-6."""

    def logdensity(q):
        bent = q[1] - q[0] * q[0]
        return -0.5 * q[0] * q[0] - 2.0 * bent * bent

    rng, count = np.random.default_rng(12), 100_000
    first = rng.normal(size=count)
    starts = np.stack([first, first**2 + 0.5 * rng.normal(size=count)], axis=1)
    context = NativeDensity(logdensity, 2).context()
    kernel = KERNELS[name](handle(context))
    state = kernel.init(wrap(starts[0].copy()))
    chain = Chain(kernel, state, key_of(Generator(8)), None)
    runner, ends = ChunkRunner(chain), []
    for i, q in enumerate(starts):
        here = kernel.init(wrap(q))
        runner.chain = replace(chain, state=here, key=Key(chain.key.seed, wrap(np.array(i))))
        ends.append(runner.run(3)[0][-1].copy())
    x, y = np.array(ends).T
    noise = (y - x**2) / 0.5
    assert np.abs(np.array(ends) - starts).mean() > 0.1
    for values in (x, noise, (x + noise) / np.sqrt(2.0), (x - noise) / np.sqrt(2.0)):
        assert stats.kstest(values, "norm").pvalue > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("full_mass", [False, True])
def test_moments_of_a_correlated_gaussian_to_three_figures(full_mass):
    """160 000 draws in 20 dims; any of 230 scores beyond 5.5 has a chance of 1e-5."""
    rng, dim = np.random.default_rng(0), 20
    root = rng.normal(size=(dim, dim)) / np.sqrt(dim) + np.diag(np.exp(rng.normal(size=dim)))
    covariance = root @ root.T
    precision = wrap(np.linalg.inv(covariance))
    target = Target.from_density(lambda q: -0.5 * (q * (precision @ q)).sum(), dim)
    mcmc = MCMC(NUTS(target, full_mass=full_mass), 40_000, 2000, num_chains=4, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InferenceWarning)
        mcmc.run()
    whitened = mcmc.draws.positions @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    for i in range(dim):
        x = whitened[..., i]
        assert abs(x.mean()) * np.sqrt(ess_mean(x)) < 5.5
        for j in range(i + 1):
            product = x * whitened[..., j]
            error = product.std() / np.sqrt(ess_mean(product))
            assert abs(product.mean() - (i == j)) < 5.5 * error
