"""Elliptical slice sampling: the prior it finds, and Gaussians that are given to it."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.diagnostics.convergence import ess_mean
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer import MCMC, EllipticalSlice, Target
from probtorch.infer.mcmc.kernels.gaussian_prior import gaussian_prior


def walk(counts):
    level = probtorch.sample("level", dist.GaussianRandomWalk(0.3, 5))
    probtorch.sample("counts", dist.Poisson(level.exp()).to_event(1), obs=counts)


def groups(y):
    top = probtorch.sample("top", dist.LogNormal(1.0, 2.0))
    with probtorch.plate("group", 3):
        each = probtorch.sample("each", dist.Normal(top.log(), 0.5))
        probtorch.sample("y", dist.Normal(each, 1.0), obs=y)


def independent(y):
    a = probtorch.sample("a", dist.Normal(2.0, 3.0))
    b = probtorch.sample("b", dist.Normal(-1.0, 0.5))
    probtorch.sample("y", dist.StudentT(3.0, a + b, 1.0), obs=y)


STEPS = np.arange(1.0, 6.0)
NESTED = 4.0 + 0.25 * np.diag([0.0, 1.0, 1.0, 1.0])
# A model, its data, and mean and covariance of its prior.
PRIORS = {
    "a random walk": (walk, np.ones(5), np.zeros(5), 0.09 * np.minimum.outer(STEPS, STEPS)),
    "groups around a log-normal": (groups, np.ones(3), np.ones(4), NESTED),
    "independent": (independent, 1.0, np.array([2.0, -1.0]), np.array([9.0, 0.25])),
}


@pytest.mark.parametrize("name", PRIORS)
def test_the_prior_of_a_model_is_found(name):
    model, data, loc, covariance = PRIORS[name]
    found = gaussian_prior(Target.from_model(model, probtorch.tensor(data)), "EllipticalSlice")
    np.testing.assert_allclose(found.loc.array, loc, atol=1e-12)
    np.testing.assert_allclose(found.metric.inverse_mass(), covariance, atol=1e-12)


def test_a_prior_that_is_no_gaussian_is_refused_by_name():
    def scaled(y):
        scale = probtorch.sample("scale", dist.HalfNormal(1.0))
        probtorch.sample("free", dist.Normal(0.0, 1.0))
        probtorch.sample("y", dist.Normal(0.0, scale), obs=y)

    mcmc = MCMC(EllipticalSlice(scaled), num_samples=10, progress_bar=False)
    with pytest.raises(InferenceError, match=r"another density of 'scale'\n"):
        mcmc.run(probtorch.tensor(0.3))
    density = Target.from_density(lambda q: -0.5 * (q * q).sum(), 2)
    with pytest.raises(InferenceError, match="nobody knows what the prior is"):
        MCMC(EllipticalSlice(density), num_samples=10, progress_bar=False).run()


def test_a_gaussian_that_is_given_may_be_another_than_the_prior():
    """An exponential of rate 2, in its logarithm: mean and square have scores below 5."""

    def model():
        probtorch.sample("x", dist.Exponential(2.0))
        probtorch.sample("y", dist.Normal(1.0, 2.0))

    for loc, covariance in (({"x": -1.0, "y": 0.0}, [4.0, 9.0]), ([0.0, 0.5], [[5.0, 1], [1, 6]])):
        kernel = EllipticalSlice(model, loc=loc, covariance=covariance)
        mcmc = MCMC(kernel, 4000, 200, num_chains=2, seed=3, progress_bar=False)
        mcmc.diagnose = False
        x = mcmc.run().posterior["x"]
        assert ess_mean(x) > 400
        assert abs(x.mean() - 0.5) < 5.0 * 0.5 / np.sqrt(ess_mean(x))
        assert abs((x**2).mean() - 0.5) < 5.0 * np.sqrt(1.25) / np.sqrt(ess_mean(x**2))


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: EllipticalSlice(walk, loc=np.zeros(5)), ArgumentError, ["neither", "loc alone"]),
        (
            lambda: MCMC(
                EllipticalSlice(walk, loc=np.zeros(3), covariance=np.ones(5)),
                num_samples=10,
                progress_bar=False,
            ).run(probtorch.ones(5)),
            ShapeError,
            ["shape (5,)", "(3,) and (5,)"],
        ),
    ],
)
def test_gaussians_that_do_not_fit_are_told_with_a_cure(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
