"""Laplace's approximation: exact for normals, and honest elsewhere."""

import warnings

import numpy as np
import pytest
from scipy.stats import norm

import probtorch
import probtorch.distributions as dist
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import GuideWarning, LaplaceApproximation, Target
from probtorch.infer.approximations.second_order import Hessians, hessian_diagonal
from probtorch.ops.exponentials import log
from probtorch.tensor import tensor
from tests.infer.approximations.densities import (
    COVARIANCE,
    LOC,
    LOG_CONSTANT,
    PRECISION,
    gaussian,
    two_modes,
)


def regression(x, y):
    weight = probtorch.sample("weight", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with probtorch.plate("row", len(y)):
        probtorch.sample("y", dist.Bernoulli(logits=x @ weight), obs=y)


def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 2))
    return x, (rng.random(40) < 1.0 / (1.0 + np.exp(-x @ [1.0, -1.0]))).astype(float)


def test_gaussian_is_its_own_approximation():
    result = LaplaceApproximation(gaussian(), seed=0).run()
    np.testing.assert_allclose(result.mean, LOC, atol=1e-8)
    np.testing.assert_allclose(result.covariance, COVARIANCE, rtol=1e-9)
    assert abs(result.log_marginal_likelihood - LOG_CONSTANT) < 1e-9
    # All importance ratios are equal: the evidence has no error, the weights have no tail.
    value, error = result.log_evidence(50)
    assert abs(value - LOG_CONSTANT) < 1e-7 and error < 1e-7 and result.pareto_k == -np.inf


def test_diagonal_structure_keeps_the_spread_given_the_others():
    result = LaplaceApproximation(gaussian(), "diag", seed=0).run()
    np.testing.assert_allclose(result.mean, LOC, atol=1e-5)
    np.testing.assert_allclose(result.covariance, np.diag(1.0 / np.diag(PRECISION)), rtol=1e-9)
    points = np.array([[0.0, 0.5, 1.0]])
    expected = norm(result.mean, 1.0 / np.sqrt(np.diag(PRECISION))).logpdf(points).sum()
    np.testing.assert_allclose(result.log_prob(points), expected, rtol=1e-12)


def test_conjugate_model_has_the_evidence_of_the_closed_form():
    def model(y):
        mu = probtorch.sample("mu", dist.Normal(1.0, 2.0))
        probtorch.deterministic("double", 2.0 * mu)
        with probtorch.plate("row", len(y)):
            probtorch.sample("y", dist.Normal(mu, 0.5), obs=y)

    y = np.array([0.3, 1.2, 2.2, 0.9])
    result = LaplaceApproximation(model, seed=0).run(tensor(y))
    precision = 0.25 + 4 / 0.25
    mean = (0.25 * 1.0 + y.sum() / 0.25) / precision
    np.testing.assert_allclose(result.mode["mu"].item(), mean, rtol=1e-9)
    np.testing.assert_allclose(result.mode["double"].item(), 2.0 * mean, rtol=1e-9)
    # log p(y) = log p(y, mean) - log p(mean | y).
    joint = norm(1.0, 2.0).logpdf(mean) + norm(mean, 0.5).logpdf(y).sum()
    evidence = joint - norm(mean, precision**-0.5).logpdf(mean)
    np.testing.assert_allclose(result.log_marginal_likelihood, evidence, rtol=1e-9)


def test_logistic_regression_agrees_with_quadrature():
    x, y = data()
    result = LaplaceApproximation(regression, seed=0).run(tensor(x), tensor(y))
    axis = np.linspace(-6.0, 6.0, 301)
    weights = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    logits = weights @ x.T
    joint = (logits * y - np.logaddexp(0.0, logits)).sum(1)
    joint += norm(0.0, 2.0).logpdf(weights).sum(1)
    exact = np.log(np.exp(joint).sum() * (axis[1] - axis[0]) ** 2)
    value, error = result.log_evidence(2000)
    # Four standard errors; in closed form it is some hundredths of a nat off.
    assert abs(value - exact) < 4.0 * error < 0.05
    assert 1e-3 < abs(result.log_marginal_likelihood - exact) < 0.1
    draws = result.draws(2000, resample=True).posterior["weight"][0]
    share = np.exp(joint - exact) * (axis[1] - axis[0]) ** 2
    sd = np.sqrt(share @ weights**2 - (share @ weights) ** 2)
    # Of 2000 resampled draws; false alarm of each 1e-3.
    assert (np.abs(draws.mean(0) - share @ weights) < 3.3 * sd / np.sqrt(2000)).all()


def test_second_derivatives_are_those_of_the_formula():
    target = Target.from_density(lambda q: (q[0] ** 2 * q[1]).sin() + q[2] * q[0], 3)
    points = np.random.default_rng(1).standard_normal((7, 3))
    a, b, _ = points.T
    found = Hessians(target)(points)
    u = a * a * b
    np.testing.assert_allclose(found[:, 0, 0], 2 * b * np.cos(u) - (2 * a * b) ** 2 * np.sin(u))
    np.testing.assert_allclose(found[:, 0, 1], 2 * a * np.cos(u) - 2 * a**3 * b * np.sin(u))
    np.testing.assert_allclose(found[:, 1, 1], -(a**4) * np.sin(u))
    np.testing.assert_allclose(found[:, 0, 2], 1.0)
    np.testing.assert_allclose(hessian_diagonal(target, points[0]), np.diag(found[0]))


def test_second_mode_is_told_of():
    with pytest.warns(GuideWarning, match="the posterior has another mode"):
        LaplaceApproximation(two_modes(0.55), num_starts=8, seed=0).run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LaplaceApproximation(two_modes(1.0 - 1e-9), num_starts=8, seed=0).run()


@pytest.mark.parametrize("dim", [1, 2])
def test_pole_is_no_mode(dim):
    # Climbs end where curvatures and differences are beyond what numbers hold, some on the way.
    target = Target.from_density(lambda q: -0.4 * log(q * q).sum() - 0.5 * (q * q).sum(), dim)
    for structure in ("full", "diag"):
        for seed in range(5):
            with pytest.raises(InferenceError, match=r"(?s)expected: a mode.*fix: .*non-centred"):
                LaplaceApproximation(target, structure, seed=seed).run()


def test_misuse_is_refused():
    with pytest.raises(ArgumentError, match=r"'full' or 'diag'.*\n.*'dense'"):
        LaplaceApproximation(gaussian(), "dense")
    with pytest.raises(ArgumentError, match="num_starts"):
        LaplaceApproximation(gaussian(), num_starts=0)
    with pytest.raises(ArgumentError, match="a model: a function"):
        LaplaceApproximation(None).run()
