"""`LaplaceMarginal`: values and slopes, and posteriors that chains of the whole model have too."""

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch.diagnostics.convergence import ess_mean
from probtorch.errors import ArgumentError
from probtorch.infer import INLA, MCMC, NUTS, LaplaceMarginal
from tests.infer.approximations.test_nested_laplace import MEAN_TAU, Y, counts, effects

FEW = probtorch.tensor([3.0, 1.0, 4.0, 6.0, 9.0, 5.0, 12.0, 8.0])


def slopes_by_differences(target, q, h=1e-5):
    steps = h * np.eye(len(q))
    return np.array(
        [(target.value_and_grad(q + s)[0] - target.value_and_grad(q - s)[0]) / (2 * h)
         for s in steps]
    )  # fmt: skip


def test_of_a_gaussian_field_it_is_the_integral_in_closed_form():
    target = LaplaceMarginal(effects, "x", probtorch.tensor(Y))
    for log_tau in (-2.0, 0.0, 1.5):
        q = np.array([log_tau])
        tau = np.exp(log_tau)
        exact = stats.norm.logpdf(Y, 0.0, np.sqrt(tau**2 + 0.25)).sum()
        exact += stats.lognorm.logpdf(tau, 1.0) + log_tau
        value, slope = target.value_and_grad(q)
        assert value == pytest.approx(exact, abs=1e-9)
        np.testing.assert_allclose(slope, slopes_by_differences(target, q), atol=1e-7)
    assert target.density.reason is None


def test_slopes_have_the_third_derivatives_of_the_field():
    """A Poisson field: the curvature at the mode follows the hyperparameters, and the mode does."""
    target = LaplaceMarginal(counts, ["level", "trend", "extra"], FEW)
    assert list(target.slots) == ["scale", "noise"] and target.dim == 2
    for q in (np.array([0.0, -1.0]), np.array([-1.0, 0.5]), np.array([0.7, -3.0])):
        value, slope = target.value_and_grad(q)
        assert np.isfinite(value)
        np.testing.assert_allclose(slope, slopes_by_differences(target, q), rtol=1e-5, atol=1e-6)


def test_chains_of_it_have_the_posterior_of_the_model():
    target = LaplaceMarginal(effects, "x", probtorch.tensor(Y))
    mcmc = MCMC(NUTS(target), 1500, 500, num_chains=2, seed=1, progress_bar=False)
    draws = mcmc.run()
    tau = draws["tau"]
    assert abs(tau.mean() - MEAN_TAU) < 5.0 * tau.std() / np.sqrt(ess_mean(tau))
    whole = target.completed(draws, seed=0)
    # The field given tau is Gaussian: weights are equal.
    assert np.ptp(whole.sample_stats["log_weight"]) < 1e-6
    np.testing.assert_array_equal(whole["tau"], tau)
    shrunken = tau[..., None] ** 2 / (tau[..., None] ** 2 + 0.25) * Y
    left = whole["x"] - shrunken
    assert np.abs(left.mean((0, 1)) / left.std((0, 1))).max() < 5.0 / np.sqrt(1500)
    variance = (tau**2 / (tau**2 + 0.25) * 0.25).mean()
    np.testing.assert_allclose(left.var((0, 1)), variance, rtol=0.2)
    assert whole.predict(seed=0)["y"].shape[-1] == len(Y)


def test_a_poisson_field_agrees_with_nested_laplace():
    latent = ["level", "trend", "extra"]
    target = LaplaceMarginal(counts, latent, FEW)
    mcmc = MCMC(NUTS(target), 600, 300, num_chains=2, seed=1, progress_bar=False)
    mcmc.diagnose = False
    draws = mcmc.run()
    other = INLA(counts, latent, seed=0).run(FEW).draws(3000, resample=False)
    for name in ("scale", "noise"):
        x, y = draws[name], other[name][0]
        error = np.hypot(x.std() / np.sqrt(ess_mean(x)), y.std() / np.sqrt(1500))
        assert abs(x.mean() - y.mean()) < 5.0 * error + 0.03 * y.std(), name
    assert target.completed(draws, seed=0).attrs["pareto_k"] < 0.7


def test_points_in_the_space_of_the_model_go_there_and_back():
    target = LaplaceMarginal(counts, ["level", "trend", "extra"], FEW)
    values = {"scale": np.array(0.5), "noise": np.array(0.2)}
    back = target.constrain(probtorch.tensor(target.unconstrain(values)))
    for name, value in values.items():
        assert back[name].item() == pytest.approx(float(value))


def test_sites_that_are_not_there_are_told():
    with pytest.raises(ArgumentError, match=r"LaplaceMarginal.*effects"):
        LaplaceMarginal(effects, "z", probtorch.tensor(Y))


def cut(y):
    """Two humps in the field: at 0, where the search begins, the density is not concave."""
    dist_y = dist.Normal(0.0, 1.0)
    spread = probtorch.sample("spread", dist.LogNormal(0.0, 1.0))
    x = probtorch.sample("x", dist.Normal(0.0, spread))
    probtorch.sample("y", dist_y, obs=y + 0.0 * x)
    probtorch.factor("humps", 2.0 * x * x - 0.25 * x**4)


def test_where_the_field_is_not_concave_the_density_is_nothing_and_no_error():
    value, _ = LaplaceMarginal(cut, "x", probtorch.tensor(0.0)).value_and_grad(np.array([1.0]))
    assert value == -np.inf
