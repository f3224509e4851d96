"""DADVI and natural gradients: normals at the top of the bound, against closed forms."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.core.rng import Generator
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import DADVI, NaturalGradientVI, Target
from probtorch.infer.approximations.natural_gradient import _moved
from probtorch.ops.exponentials import exp, log
from probtorch.tensor import tensor
from tests.infer.approximations.densities import (
    COVARIANCE,
    LOC,
    LOG_CONSTANT,
    PRECISION,
    gaussian,
)

A, B = 4.0, 2.0
# The best normal for the log of a Gamma(A, B): the bound is A m - B exp(m + s^2 / 2) + log s.
BEST_MEAN, BEST_VARIANCE = np.log(A / B) - 0.5 / A, 1.0 / A


def log_gamma():
    """The density of the log of a Gamma(A, B), without its constant."""
    return Target.from_density(lambda q: (A * q - B * exp(q)).sum(), 1)


def test_linear_response_is_the_covariance_of_a_normal():
    result = DADVI(gaussian(), seed=3).run()
    np.testing.assert_allclose(result.mean, LOC, atol=1e-5)
    np.testing.assert_allclose(result.covariance, COVARIANCE, rtol=1e-9)
    # Pairs of opposite sign have no error of the mean there.
    assert result.sampling_error.max() < 1e-12
    value, error = result.log_evidence(100)
    assert abs(value - LOG_CONSTANT) < 1e-4 and error < 1e-4


def test_mean_field_normal_without_linear_response():
    result = DADVI(gaussian(), 2000, linear_response=False, seed=0).run()
    assert result.sampling_error is None
    best = 1.0 / np.diag(PRECISION)
    # Mean squares of 1000 independent normals: an sd of 4.5 %; false alarm of all below 1e-4.
    np.testing.assert_allclose(np.diag(result.covariance), best, rtol=0.2)
    np.testing.assert_allclose(result.covariance, np.diag(result.sd**2))
    constant = LOG_CONSTANT - 0.5 * (np.log(np.diag(PRECISION)).sum()
                                     - np.linalg.slogdet(PRECISION)[1])  # fmt: skip
    assert abs(result.elbo - constant) < 0.1


def test_top_of_the_bound_is_within_its_sampling_error():
    found = [DADVI(log_gamma(), 40, seed=s).run() for s in range(30)]
    means = np.array([r.mean[0] for r in found])
    errors = np.array([r.sampling_error[0] for r in found])
    # The mean of 30 runs, and their spread against the error they state (its sd is 13 %): false
    # alarms below 1e-4.
    assert abs(means.mean() - BEST_MEAN) < 4.0 * means.std() / np.sqrt(30) + 0.01
    assert 0.5 < means.std(ddof=1) / errors.mean() < 1.7
    np.testing.assert_allclose(np.mean([r.sd[0] ** 2 for r in found]), BEST_VARIANCE, rtol=0.05)


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_natural_gradients_find_the_best_normal(covariance):
    result = NaturalGradientVI(
        log_gamma(), covariance, num_particles=20, num_steps=400, lr=0.1, seed=0
    ).run()
    # Of draws like those of the last 50 steps or so.
    assert abs(result.mean[0] - BEST_MEAN) < 0.03
    np.testing.assert_allclose(result.covariance[0, 0], BEST_VARIANCE, rtol=0.1)
    assert result.elbos[-50:].mean() > result.elbos[:5].mean()


def test_natural_gradients_find_a_normal_itself():
    result = NaturalGradientVI(gaussian(), num_steps=120, seed=1).run()
    np.testing.assert_allclose(result.mean, LOC, atol=1e-4)
    np.testing.assert_allclose(result.covariance, COVARIANCE, rtol=1e-4)
    assert result.log_prob(LOC[None]).shape == (1,)
    assert result.sample(7, Generator(0)).shape == (7, 3)


def test_precision_stays_positive_definite_whatever_the_curvature():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.standard_normal((2, 4, 4))
        moved = _moved(a @ a.T + 0.01 * np.eye(4), 30.0 * (b + b.T), 0.9)
        assert np.linalg.eigvalsh(moved)[0] > 0.0
    assert (_moved(np.array([1.0, 2.0]), np.array([-50.0, 0.1]), 1.0) > 0.0).all()


def test_models_have_draws_in_their_own_space():
    def model(y):
        mu = probtorch.sample("mu", dist.Normal(1.0, 2.0))
        with probtorch.plate("row", len(y)):
            probtorch.sample("y", dist.Normal(mu, 0.5), obs=y)

    y = np.array([0.3, 1.2, 2.2, 0.9])
    precision = 0.25 + 4.0 / 0.25
    mean = (0.25 + y.sum() / 0.25) / precision
    for make in (DADVI, NaturalGradientVI):
        draws = make(model, seed=0).run(tensor(y)).draws(1000)
        assert abs(draws["mu"].mean() - mean) < 4.0 / np.sqrt(1000 * precision)
        assert draws.attrs["inference_method"] in ("DADVI", "NaturalGradient")


def test_density_that_ends_is_told_of():
    target = Target.from_density(lambda q: log(1.0 - q * q).sum(), 1)
    with pytest.raises(InferenceError, match="NaturalGradientVI for"):
        NaturalGradientVI(target, lr=1.0, num_particles=200, radius=0.5, seed=0).run()


def test_top_that_is_not_reached_is_told_of():
    with pytest.raises(InferenceError, match=r"(?s)DADVI for .*a top of the bound"):
        DADVI(gaussian(), max_gradients=2, seed=0).run()


def test_misuse_is_refused():
    for make in (
        lambda: DADVI(gaussian(), 0),
        lambda: DADVI(gaussian(), radius=-1.0),
        lambda: NaturalGradientVI(gaussian(), "dense"),
        lambda: NaturalGradientVI(gaussian(), lr=2.0),
        lambda: NaturalGradientVI(gaussian(), num_steps=0),
    ):
        with pytest.raises(ArgumentError, match="fix:"):
            make()
