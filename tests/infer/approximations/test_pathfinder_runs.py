"""Pathfinder as an algorithm: single, several paths, and draws by importance weights."""

import numpy as np
import pytest
from scipy.stats import kstest, multivariate_normal, norm

import probtorch
import probtorch.distributions as dist
from probtorch.core.rng import Generator
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import GuideWarning, Pathfinder, PathfinderResult, Target
from probtorch.ops.exponentials import log
from probtorch.tensor import tensor
from tests.infer.approximations.densities import (
    COVARIANCE,
    LOC,
    LOG_CONSTANT,
    PART,
    PRECISION,
    gaussian,
    two_modes,
)


def test_single_path_is_a_normal_whose_density_is_that_of_its_draws():
    result = Pathfinder(gaussian(), 1, resample=False, seed=0).run()
    points = result.sample(5, Generator(1))
    (mean,), (covariance,) = result.means, result.covariances
    expected = multivariate_normal(mean, covariance).logpdf(points)
    np.testing.assert_allclose(result.log_prob(points), expected, rtol=1e-9)
    assert not result.draws(1000).attrs["resampled"] and len(result.elbos) == 1


def test_density_of_several_paths_is_that_of_the_mixture():
    result = Pathfinder(two_modes(), 3, seed=2, radius=3.0).run()
    points = np.linspace(-9.0, 9.0, 7)[:, None]
    parts = norm(result.means.ravel(), np.sqrt(result.covariances.ravel())).pdf(points)
    np.testing.assert_allclose(result.log_prob(points), np.log(parts.mean(1)), rtol=1e-9)


def test_resampled_draws_of_a_gaussian_are_its_own():
    result = Pathfinder(gaussian(), seed=0).run()
    draws = result.draws(1000)
    assert draws.attrs["resampled"] and "log_weight" not in draws.sample_stats
    for i in range(3):
        # False alarm of each 1e-3; a spread 10 % off is found almost surely.
        z = (draws.positions[0, :, i] - LOC[i]) / np.sqrt(COVARIANCE[i, i])
        assert kstest(z, norm.cdf).pvalue > 1e-3
    value, error = result.log_evidence()
    # Four standard errors: false alarm 1e-4.
    assert abs(value - LOG_CONSTANT) < 4.0 * error < 0.1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_modes_count_by_mass_however_many_paths_found_them(seed):
    result = Pathfinder(two_modes(), 6, seed=seed, radius=3.0).run()
    found = (result.means < 0.0).mean()
    assert 0.0 < found < 1.0
    left = (result.samples["x"] < 0.0).mean()
    # 4000 proposals, the sd of the share is below 0.014: false alarm below 1e-4.
    assert abs(left - PART) < 0.06


def test_model_with_constraints_has_labelled_draws_predictions_and_a_verdict():
    def model(y):
        rate = probtorch.sample("rate", dist.Gamma(2.0, 1.0))
        with probtorch.plate("week", len(y)):
            probtorch.sample("y", dist.Poisson(rate), obs=y)

    y = tensor([1.0, 3.0, 2.0, 4.0])
    result = Pathfinder(model, 2, seed=0).run(y)
    # Gamma(12, 5): mean 2.4, sd 0.693; four standard errors of 1000 draws.
    assert abs(result.samples["rate"].mean() - 2.4) < 4.0 * 0.693 / np.sqrt(1000)
    assert result.predict(seed=0)["y"].shape == (1, 1000, 4)
    assert "within the limit" in str(result.summary())


def test_posterior_far_from_normal_is_told_of():
    funnel = Target.from_density(
        lambda q: -(q[0] ** 2) / 18.0 - 0.5 * (q[1:] ** 2).sum() * (-q[0]).exp() - 4.5 * q[0], 10
    )
    with pytest.warns(GuideWarning, match="Pathfinder's approximation is far from the posterior"):
        Pathfinder(funnel, 2, seed=0).run().draws(500)


def test_nothing_finite_is_an_error():
    with pytest.raises(InferenceError, match="no starting point"):
        Pathfinder(Target.from_density(lambda q: log(-1.0 - q * q).sum(), 2), seed=0).run()


def test_misuse_is_refused():
    with pytest.raises(ArgumentError, match="num_paths"):
        Pathfinder(gaussian(), 0)
    with pytest.raises(ArgumentError, match="radius"):
        Pathfinder(gaussian(), radius=0.0)
    with pytest.raises(ArgumentError, match="no arguments"):
        Pathfinder(gaussian()).run(3.0)
    with pytest.raises(ArgumentError, match="num_draws"):
        Pathfinder(gaussian(), seed=0).run().draws(0)


def test_draws_are_kept_by_seed_and_equal_those_made_again():
    result = Pathfinder(gaussian(), 2, seed=3).run()
    assert isinstance(result, PathfinderResult)
    first = result.draws(40, seed=5)
    assert result.draws(40, seed=5) is first
    again = result.draws(40, seed=Generator(5))
    np.testing.assert_array_equal(first.positions, again.positions)
    assert np.abs(PRECISION @ COVARIANCE - np.eye(3)).max() < 1e-12
