"""`INLA`: exact for Gaussian fields, as chains for others, and a grid that integrates."""

import dataclasses

import numpy as np
import pytest
from scipy import integrate, stats

import probtorch
import probtorch.distributions as dist
from probtorch.diagnostics.convergence import ess_mean
from probtorch.errors import ArgumentError, InferenceError
from probtorch.handlers import reparam
from probtorch.infer import INLA, MCMC, NUTS
from probtorch.infer.approximations import nested_laplace
from probtorch.infer.reparam import LocScaleReparam

Y = np.array([1.2, -0.4, 2.2, 0.7, 1.9, -1.0, 0.3])


def effects(y):
    tau = probtorch.sample("tau", dist.LogNormal(0.0, 1.0))
    with probtorch.plate("group", len(y)):
        x = probtorch.sample("x", dist.Normal(0.0, tau))
        probtorch.sample("y", dist.Normal(x, 0.5), obs=y)


def joint(tau):
    """Of tau and the data, the effects integrated out: in closed form."""
    like = stats.norm.pdf(Y, 0.0, np.sqrt(tau**2 + 0.25)).prod()
    return stats.lognorm.pdf(tau, 1.0) * like


EVIDENCE = integrate.quad(joint, 0.0, 50.0, limit=200)[0]
MEAN_TAU = integrate.quad(lambda t: t * joint(t), 0.0, 50.0, limit=200)[0] / EVIDENCE


def test_a_gaussian_field_is_integrated_exactly():
    """The centred form has a pole for a mode of all; given tau it is Gaussian."""
    result = INLA(effects, latent="x", seed=0).run(probtorch.tensor(Y))
    # The grid's own evidence is a sum of cells of half a standard deviation.
    assert result.evidence == pytest.approx(np.log(EVIDENCE), abs=0.02)
    corrected, error = result.log_evidence(4000)
    assert abs(corrected - np.log(EVIDENCE)) < 4.0 * error < 0.1
    assert result.pareto_k < 0.5
    draws = result.draws(4000)
    tau = draws["tau"][0]
    assert abs(tau.mean() - MEAN_TAU) < 5.0 * tau.std() / np.sqrt(2000)
    # Of x given the data: the mean over tau of its shrunken observation.
    weight = (
        integrate.quad(lambda t: t**2 / (t**2 + 0.25) * joint(t), 0.0, 50.0, limit=200)[0]
        / EVIDENCE
    )
    x = draws["x"][0]
    assert np.abs((x.mean(axis=0) - weight * Y) / x.std(axis=0)).max() < 5.0 / np.sqrt(2000)


def test_the_density_of_the_approximation_integrates_to_one_and_its_draws_are_of_it():
    result = INLA(effects, latent="x", seed=0).run(probtorch.tensor(Y[:2]))
    rng = np.random.default_rng(0)
    points = result.sample(20_000, probtorch.Generator(0))
    mean, cov = points.mean(axis=0), np.cov(points.T)
    other = stats.multivariate_normal(mean, 0.5 * cov)
    # The mean of r / q over draws of q is the integral of r, here of a normal inside of q.
    ratios = np.exp(other.logpdf(points) - result.log_prob(points))
    assert ratios.mean() == pytest.approx(1.0, abs=0.03)
    # And the mean of q / r over draws of r the integral of q, as far as r reaches.
    wide = stats.multivariate_t(mean, 2.0 * cov, df=5)
    rows = wide.rvs(40_000, random_state=rng)
    assert np.exp(result.log_prob(rows) - wide.logpdf(rows)).mean() == pytest.approx(1.0, abs=0.03)


def counts(y):
    scale = probtorch.sample("scale", dist.HalfNormal(1.0))
    noise = probtorch.sample("noise", dist.HalfNormal(0.5))
    level = probtorch.sample("level", dist.Normal(0.0, 2.0))
    trend = probtorch.sample("trend", dist.GaussianRandomWalk(0.3, len(y)))
    with probtorch.plate("row", len(y)):
        extra = probtorch.sample("extra", dist.Normal(0.0, noise))
        probtorch.sample("y", dist.Poisson((level + scale * trend + extra).exp()), obs=y)


def test_a_poisson_field_of_two_scales_agrees_with_nuts():
    y = probtorch.tensor([3.0, 1.0, 4.0, 6.0, 9.0, 5.0, 12.0, 8.0])
    result = INLA(counts, latent=["level", "trend", "extra"], seed=0).run(y)
    assert result.pareto_k < 0.7
    draws = result.draws(4000)
    # The same posterior; where `noise` is small, chains get into the neck of this one.
    apart = reparam(counts, {"extra": LocScaleReparam(0.0)})
    mcmc = MCMC(NUTS(apart, target_accept_prob=0.95), 2000, 500, num_chains=4, seed=1,
                progress_bar=False)  # fmt: skip
    mcmc.diagnose = False
    chains = mcmc.run(y)
    for name in ("level", "scale", "noise"):
        one, other = draws[name][0], chains[name]
        error = np.hypot(one.std() / np.sqrt(1500), other.std() / np.sqrt(ess_mean(other)))
        assert abs(one.mean() - other.mean()) < 5.0 * error, name
        assert abs(one.std() / other.std() - 1.0) < 0.15, name


def test_runs_depend_on_nothing_but_the_model():
    y = probtorch.tensor(Y)
    one, other = (INLA(effects, latent="x", seed=s).run(y) for s in (0, 1))
    np.testing.assert_array_equal(one.log_weights, other.log_weights)
    np.testing.assert_array_equal(one.draws(50, seed=3)["x"], other.draws(50, seed=3)["x"])


def test_what_cannot_be_parted_is_refused():
    y = probtorch.tensor(Y)
    for latent, word in (("z", "has not"), (["x", "tau"], "leave 0"), ([], "leave 8")):
        with pytest.raises(ArgumentError, match=word):
            INLA(effects, latent=latent).run(y)

    def flat():
        tau = probtorch.sample("tau", dist.HalfCauchy(1.0))
        x = probtorch.sample("x", dist.Normal(0.0, 1.0))
        probtorch.factor("pole", (1.0 + tau).log() * 3.0 + 0.0 * x)

    with pytest.raises(InferenceError):
        INLA(flat, latent="x", seed=0).run()


def test_a_marginal_without_the_curvature_is_told_by_the_evidence(monkeypatch):
    """The wrong variant: the profile of the density instead of its integral."""
    right = nested_laplace.Fields._found

    def profile(self, points, values, whole):
        found = right(self, points, values, whole)
        logs = np.log(np.diagonal(found.root, axis1=1, axis2=2)).sum(axis=1)
        return dataclasses.replace(found, marginal=found.marginal + logs)

    monkeypatch.setattr(nested_laplace.Fields, "_found", profile)
    try:
        wrong = INLA(effects, latent="x", seed=0).run(probtorch.tensor(Y)).evidence
    except InferenceError:
        return  # it has no peak: the pole of the joint density
    assert abs(wrong - np.log(EVIDENCE)) > 0.5
