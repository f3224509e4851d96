"""Draws go wherever arrays go: NumPy, SciPy, pandas, xarray, Matplotlib and ArviZ."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats

import probtorch.distributions as dist
from probtorch import sample, tensor
from probtorch.infer import MCMC, NUTS


@pytest.fixture(scope="module")
def draws():
    def model():
        a = sample("a", dist.Normal(1.0, 1.0))
        sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        sample("y", dist.Normal(a, 1.0), obs=tensor(1.5))

    mcmc = MCMC(NUTS(model), num_samples=150, warmup_steps=100, seed=0, progress_bar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run()
    return mcmc.get_samples()


def arrays(draws):
    return draws["a"].numpy(), draws["b"].numpy()


def test_shares_of_draws(draws):
    a, b = arrays(draws)
    assert (draws["a"] > 1.0).mean().item() == pytest.approx((a > 1.0).mean())
    assert (draws["a"] > draws["b"][:, 0]).mean().item() == pytest.approx((a > b[:, 0]).mean())
    assert float(np.mean(draws["a"] > 1.0)) == pytest.approx((a > 1.0).mean())


@pytest.mark.parametrize(
    "function",
    [
        np.mean,
        np.std,
        np.var,
        np.median,
        np.sum,
        np.exp,
        np.sort,
        np.cumsum,
        lambda x: np.percentile(x, [5, 95]),
        lambda x: np.quantile(x, 0.3),
        lambda x: np.histogram(x)[0],
        lambda x: np.concatenate([x, x]),
        lambda x: np.stack([x, x], axis=-1),
        lambda x: np.outer(x, x),
        lambda x: np.cov(x, x),
        lambda x: np.corrcoef(x, x),
        lambda x: np.where(x > 1.0, 1, 0),
        scipy.special.expit,
        scipy.special.logsumexp,
        scipy.stats.norm.cdf,
        lambda x: scipy.stats.gaussian_kde(x)(1.0),
        lambda x: scipy.stats.describe(x).variance,
        lambda x: pd.Series(x).mean(),
        lambda x: pd.DataFrame({"x": x}).describe().to_numpy(),
    ],
)
def test_functions_of_other_libraries_take_draws_as_arrays(draws, function):
    found, expected = function(draws["a"]), function(arrays(draws)[0])
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-12)


def test_columns_of_data_meet_draws(draws):
    a, _ = arrays(draws)
    column = pd.Series(np.linspace(0.0, 1.0, 150))
    np.testing.assert_allclose(np.asarray(column * draws["a"]), column * a)
    np.testing.assert_allclose(np.asarray(draws["a"] * column), column * a)
    np.testing.assert_allclose(float(column @ draws["a"]), column @ a)


def test_draws_are_drawn(draws):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    _, axes = pyplot.subplots()
    heights, _, _ = axes.hist(draws["a"], bins=7)
    np.testing.assert_array_equal(heights, np.histogram(arrays(draws)[0], 7)[0])
    axes.plot(draws["a"])
    axes.scatter(draws["a"], draws["b"][:, 1])
    pyplot.close("all")
