"""`EnsembleKalmanFilter`: the Kalman filter in the limit, and for the transform exactly."""

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch.errors import ArgumentError, ShapeError
from probtorch.infer import EnsembleKalmanFilter, ParticleFilter

A = np.array([[0.9, 0.3], [-0.2, 0.8]])
H = np.array([[1.0, 0.5], [0.0, 1.0], [1.0, -1.0]])
Q = np.array([[0.3, 0.1], [0.1, 0.2]])
R = np.array([[0.5, 0.1, 0.0], [0.1, 0.4, 0.0], [0.0, 0.0, 0.8]])
RNG = np.random.default_rng(0)
SERIES = RNG.normal(size=(8, 3)) + np.arange(8)[:, None] * 0.2
SERIES[3] = np.nan
SERIES[5, 1] = np.nan
METHODS = ["etkf", "stochastic"]


def normal(loc, covariance):
    return dist.MultivariateNormal(loc, covariance_matrix=probtorch.tensor(covariance))


INITIAL = normal(probtorch.zeros(2, dtype=probtorch.float64), np.eye(2))


def transition(x, t):
    return normal(x @ probtorch.tensor(A.T), Q)


def observation(x, t):
    return normal(x @ probtorch.tensor(H.T), R)


def enkf(count, method, **options):
    return EnsembleKalmanFilter(
        INITIAL, transition, observation, count, method=method, **{"seed": 1, **options}
    )


def kalman(series):
    """Means, covariances and increments of the exact filter, in its textbook form."""
    mean, cov, found = np.zeros(2), np.eye(2), []
    for t, y in enumerate(series):
        if t:
            mean, cov = A @ mean, A @ cov @ A.T + Q
        there, gained = ~np.isnan(y), 0.0
        if there.any():
            h, r = H[there], R[np.ix_(there, there)]
            s = h @ cov @ h.T + r
            gained = stats.multivariate_normal(h @ mean, s).logpdf(y[there])
            gain = cov @ h.T @ np.linalg.inv(s)
            mean, cov = mean + gain @ (y[there] - h @ mean), cov - gain @ h @ cov
        found.append((mean, cov, gained))
    return tuple(np.array(x) for x in zip(*found))


@pytest.mark.parametrize("method", METHODS)
def test_many_members_are_the_kalman_filter(method):
    """20,000 members: errors of means are 0.007 sd, of variances 1 %; five times as much passes."""
    found = enkf(20_000, method).run(SERIES)
    mean, cov, gained = kalman(SERIES)
    sd = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
    assert np.abs((found.mean - mean) / sd).max() < 0.06
    assert np.abs(found.std / sd - 1.0).max() < 0.03
    np.testing.assert_allclose(found.increments, gained, atol=0.06)
    assert found.increments[3] == 0.0
    assert abs(found.log_evidence - gained.sum()) < 0.1


def test_the_transform_moves_an_ensemble_exactly_as_its_moments_say():
    """Five members: mean and covariance after are the Kalman filter's for those before."""
    found = enkf(5, "etkf").run(SERIES[:1])
    before, after = found.forecast[0], found.members[0]
    mean, cov = before.mean(axis=0), np.cov(before.T)
    s = H @ cov @ H.T + R
    gain = cov @ H.T @ np.linalg.inv(s)
    np.testing.assert_allclose(after.mean(axis=0), mean + gain @ (SERIES[0] - H @ mean))
    np.testing.assert_allclose(np.cov(after.T), cov - gain @ H @ cov, atol=1e-12)
    expected = stats.multivariate_normal(H @ mean, s).logpdf(SERIES[0])
    np.testing.assert_allclose(found.log_evidence, expected)


def test_members_that_all_see_one_observation_are_too_sure_of_themselves(monkeypatch):
    """The mistake of the first ensemble filters: the test above has to tell."""
    monkeypatch.setattr(
        EnsembleKalmanFilter, "_noise", lambda self, rng, size: np.zeros((size, self.num_members))
    )
    found = enkf(20_000, "stochastic").run(SERIES)
    sd = np.sqrt(np.diagonal(kalman(SERIES)[1], axis1=1, axis2=2))
    assert np.abs(found.std / sd - 1.0).max() > 0.2


@pytest.mark.parametrize("method", METHODS)
def test_the_functions_of_a_particle_filter_serve(method):
    """Scalar states that are bent a little: both filters agree to a few per cent of a deviation."""
    parts = (
        dist.Normal(0.0, 1.0),
        lambda x, t: dist.Normal(0.9 * x + 0.1 * x.sin(), 0.5),
        lambda x, t: dist.Normal(x, 0.5),
    )
    y = np.array([0.3, 0.5, 1.2, 0.8, 0.4])
    found = EnsembleKalmanFilter(*parts, 5000, method=method, seed=0).run(y)
    right = ParticleFilter(*parts, 20_000, seed=1).run(y)
    assert np.abs((found.mean - right.mean) / right.std).max() < 0.1
    assert abs(found.log_evidence - right.log_evidence) < 0.1


def test_inflation_widens_forecasts_and_runs_depend_on_the_seed_alone():
    one, same = (enkf(50, "etkf").run(SERIES) for _ in range(2))
    np.testing.assert_array_equal(one.members, same.members)
    wide = enkf(50, "etkf", inflation=1.5).run(SERIES)
    ratio = wide.forecast[0].std(axis=0) / one.forecast[0].std(axis=0)
    np.testing.assert_allclose(ratio, 1.5)


@pytest.mark.parametrize(
    "make, word",
    [
        (lambda: enkf(1, "etkf"), "num_members"),
        (lambda: enkf(10, "particle"), "'stochastic'"),
        (lambda: enkf(10, "etkf", inflation=0.5), "inflation"),
        (lambda: EnsembleKalmanFilter(INITIAL, INITIAL, observation), "transition"),
        (lambda: enkf(10, "etkf").run(np.zeros((4, 2))), "3 numbers"),
        (lambda: enkf(10, "etkf").run(np.zeros((0, 3))), "at least one time"),
    ],
)
def test_what_does_not_fit_is_told(make, word):
    with pytest.raises((ArgumentError, ShapeError), match=word):
        make()
