"""Guides with a normal for each row: exact for independent rows, and no ties between them."""

import numpy as np
import pytest

import probtorch
from probtorch.distributions import Gamma, Normal
from probtorch.effects import plate, sample
from probtorch.effects.handlers import seed, trace
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import (
    SVI,
    AutoBatchedLowRankMultivariateNormal,
    AutoBatchedMultivariateNormal,
    Trace_ELBO,
)
from probtorch.optim import Adam
from probtorch.tensor import tensor

Y = np.array([1.0, -2.0, 3.0])
NOISE = np.array([0.5, 0.3, 1.0])
GUIDES = [AutoBatchedMultivariateNormal, AutoBatchedLowRankMultivariateNormal]


def shops(y):
    with plate("shop", 3):
        level = sample("level", Normal(0.0, 1.0))
        trend = sample("trend", Normal(0.0, 2.0))
        sample("y", Normal(level + 0.5 * trend, tensor(NOISE)), obs=y)


def closed_form():
    """Means and covariances of level and trend, row by row."""
    x = np.array([1.0, 0.5])
    found = []
    for y, noise in zip(Y, NOISE, strict=True):
        covariance = np.linalg.inv(np.diag([1.0, 0.25]) + np.outer(x, x) / noise**2)
        found.append((covariance @ x * y / noise**2, covariance))
    return np.array([m for m, _ in found]), np.array([c for _, c in found])


@pytest.mark.parametrize("kind", GUIDES)
def test_independent_rows_have_their_exact_posterior(kind):
    guide = kind(shops)
    loss = Trace_ELBO(20, vectorize_particles=True)
    svi = SVI(shops, guide, Adam({"lr": 0.01}), loss, seed=0)
    svi.run(2500, tensor(Y), progress_bar=False)
    mean, covariance = closed_form()
    posterior = guide.get_posterior()
    sd = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    # Adam's steps at a fixed rate: a tenth of a standard deviation, 0.15 of a variance.
    assert (abs(posterior.mean.numpy() - mean) < 0.1 * sd).all()
    found = posterior.base_dist.covariance_matrix.numpy()
    scale = sd[:, :, None] * sd[:, None, :]
    np.testing.assert_allclose(found / scale, covariance / scale, atol=0.15)
    low, middle, high = guide.quantiles([0.1587, 0.5, 0.8413])["trend"].numpy()
    np.testing.assert_allclose(middle, guide.median()["trend"].numpy())
    np.testing.assert_allclose((high - low) / 2, np.sqrt(found[:, 1, 1]), rtol=1e-3)
    draws = guide.sample_posterior(4000)["level"].numpy()
    assert draws.shape == (4000, 3)
    # 4000 independent draws of each of 3 rows, 5 standard errors: false alarm rate 2e-6.
    assert (abs(draws.mean(0) - posterior.mean.numpy()[:, 0]) < 5 * sd[:, 0] / 4000**0.5).all()


@pytest.mark.parametrize("kind", GUIDES)
def test_two_dims_of_rows_with_events_and_bounded_sites(kind):
    def table():
        with plate("row", 3, dim=-2), plate("column", 2, dim=-1):
            rate = sample("rate", Gamma(2.0, 1.0))
            sample("shape", Normal(rate, 1.0).expand([3, 2]))
            with plate("part", 1, dim=-3):
                pass
            sample("pair", Normal(tensor(np.zeros(2)), 1.0).to_event(1).expand([3, 2]))

    guide = kind(table, batch_ndim=2)
    with trace() as seen, seed(None, 0):
        guide()
    vector = seen["_auto_latent"].fn
    assert vector.event_shape == (3, 2, 4)
    assert seen["pair"].value.shape == (3, 2, 2) and (seen["rate"].value > 0.0).all()
    again = guide._cut(seen["_auto_latent"].value)
    np.testing.assert_array_equal(
        again["pair"].detach().numpy(), seen["pair"].value.detach().numpy()
    )
    assert guide.sample_posterior((5,))["pair"].shape == (5, 3, 2, 2)


def test_what_has_no_rows_is_refused_with_the_guide_that_takes_it():
    def with_common(y):
        mu = sample("mu", Normal(0.0, 1.0))
        with plate("shop", 3):
            sample("level", Normal(mu, 1.0))

    with pytest.raises(InferenceError, match=r"(?s)same 1 leading dims.*'mu' \(\).*AutoStructured"):
        AutoBatchedMultivariateNormal(with_common)(tensor(Y))
    with pytest.raises(ArgumentError, match=r"batch_ndim(.|\n)*got: +0"):
        AutoBatchedMultivariateNormal(shops, batch_ndim=0)
    with pytest.raises(ArgumentError, match=r"rank(.|\n)*at least 1"):
        AutoBatchedLowRankMultivariateNormal(shops, rank=0)
    assert probtorch.infer.AutoBatchedMultivariateNormal(shops).batch_ndim == 1
