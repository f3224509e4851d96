"""Draws of guides that run the model for each of them, whatever shapes the model bears."""

import warnings

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.infer import (
    SVI,
    AutoASVI,
    AutoCallable,
    AutoDAIS,
    AutoNormalMessenger,
    AutoSemiDAIS,
    Trace_ELBO,
)
from probtorch.optim import Adam

X = probtorch.tensor(np.random.default_rng(0).standard_normal((10, 2)))
SLOPES = np.array([0.5, -0.3])


def added(y):
    """A sum over all that there is: of draws side by side, over all draws."""
    b = probtorch.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    probtorch.sample("y", dist.Normal(b.sum(), 0.3), obs=y)


def multiplied(y):
    """A product that takes a batch of draws for a matrix."""
    b = probtorch.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with probtorch.plate("row", len(y)):
        probtorch.sample("y", dist.Normal(X @ b, 0.3), obs=y)


def posterior(design, y):
    precision = np.eye(2) + design.T @ design / 0.09
    covariance = np.linalg.inv(precision)
    return covariance @ design.T @ y / 0.09, covariance


@pytest.mark.parametrize("made", [AutoDAIS, AutoNormalMessenger, AutoASVI])
@pytest.mark.parametrize("model", [added, multiplied])
def test_draws_are_those_of_single_runs(made, model):
    if model is added:
        design, y = np.ones((1, 2)), probtorch.tensor(1.0).double()
    else:
        design, y = X.numpy(), X @ probtorch.tensor(SLOPES)
    guide = made(model)
    svi = SVI(model, guide, Adam({"lr": 0.02}), Trace_ELBO(), seed=0)
    svi.run(1000, y, progress_bar=False)
    generator = probtorch.Generator(1)
    many = guide.sample_posterior(2000, generator=generator)["b"].numpy()
    mean, covariance = posterior(design, np.atleast_1d(y.numpy()))
    sd = np.sqrt(np.diag(covariance))
    # The guides' own errors are up to 0.4 of a deviation, after 1000 noisy steps.
    np.testing.assert_allclose(many.mean(0), mean, atol=0.6 * sd.max())
    alone = np.stack([guide.sample_posterior(generator=generator)["b"].numpy() for _ in range(200)])
    # Standard errors of 0.07 deviations.
    np.testing.assert_allclose(many.mean(0), alone.mean(0), atol=0.3 * sd.max())
    np.testing.assert_allclose(many.std(0), alone.std(0), rtol=0.25)
    assert guide.sample_posterior((2, 3))["b"].shape == (2, 3, 2)
    assert guide.sample_posterior(0)["b"].shape == (0, 2)
    np.testing.assert_allclose(guide.median()["b"].numpy(), many.mean(0), atol=0.3 * sd.max())


def test_rows_of_subsamples_see_one_draw_of_what_they_share():
    y = probtorch.tensor(np.random.default_rng(1).normal(1.0, 1.0, 6))

    def model(y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        with probtorch.plate("row", 6, subsample_size=3) as rows:
            theta = probtorch.sample("theta", dist.Normal(mu.sum(), 1.0))
            probtorch.sample("y", dist.Normal(theta, 0.5), obs=y[rows])

    guide = AutoSemiDAIS(model, use_global_dais_params=True)
    svi = SVI(model, guide, Adam({"lr": 0.02}), Trace_ELBO(), seed=0)
    svi.run(1200, y, progress_bar=False)
    drawn = guide.sample_posterior(1000, generator=probtorch.Generator(1))
    assert drawn["mu"].shape == (1000, 2) and drawn["theta"].shape == (1000, 6)
    # Rows given the data have variance 1.25 around the sum, whose prior variance is 8.
    both = 8.0 * np.ones((6, 6)) + np.eye(6)
    mean = both @ np.linalg.solve(both + 0.25 * np.eye(6), y.numpy())
    np.testing.assert_allclose(drawn["theta"].numpy().mean(0), mean, atol=0.35)


def test_a_function_of_the_users_is_called_for_each_draw():
    rng, calls = np.random.default_rng(0), []

    def guide(y):
        calls.append(1)
        probtorch.sample("b", dist.Delta(probtorch.tensor(rng.standard_normal(2)), event_dim=1))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = AutoCallable(added, guide)
        made(probtorch.tensor(1.0))
        calls.clear()
        found = made.sample_posterior(5)["b"].numpy()
    assert len(calls) == 5 and len(np.unique(found)) == 10
