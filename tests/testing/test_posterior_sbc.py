"""`posterior_sbc`: the posterior of both data sets, and draws that are not of the posterior."""

import functools

import numpy as np
import pytest
from scipy import stats

from probtorch.diagnostics import Draws
from probtorch.distributions import Normal
from probtorch.effects import plate, sample
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import NUTS, Target, init_to_uniform
from probtorch.infer.calibration.simulated import AugmentedTarget
from probtorch.infer.results import make_draws
from probtorch.tensor import tensor
from probtorch.testing import posterior_sbc


def test_density_with_further_data_is_that_of_both():
    data = {"y": np.array([0.5, -1.0])}
    more = {"y": np.array([1.5, 2.0])}
    target = AugmentedTarget(two_rows, (), {}, more, data)
    for q in (-0.7, 1.2):
        exact = stats.norm.logpdf(q) + stats.norm.logpdf([0.5, -1.0, 1.5, 2.0], q, 0.5).sum()
        assert target.density.value_and_grad(np.array([q]))[0] == pytest.approx(exact, rel=1e-12)
    target.exchange({"y": np.array([0.0, 0.0])})
    exact = stats.norm.logpdf(1.0) + stats.norm.logpdf([0.5, -1.0, 0.0, 0.0], 1.0, 0.5).sum()
    assert target.density.value_and_grad(np.ones(1))[0] == pytest.approx(exact, rel=1e-12)


def two_rows(y=None):
    mu = sample("mu", Normal(0.0, 1.0))
    with plate("row", 2):
        sample("y", Normal(mu, 0.5), obs=y)


def exact_draws(scale, count=400):
    """Draws of the posterior of two rows, as wide as they are, or wider."""
    y = tensor([0.5, -1.0])
    target = Target.from_model(two_rows, y)
    precision = 1.0 + 2 / 0.25
    q = np.random.default_rng(3).normal(-0.5 / 0.25 / precision, scale * precision**-0.5, count)
    return make_draws(target, q.reshape(1, count, 1), {})


def test_posterior_is_calibrated_around_its_data_and_another_is_not():
    """The kernel is right; what differs are the draws that it is said to have made."""
    # Starts and metrics take most of the time of short runs; a right sampler needs neither.
    quick = functools.partial(NUTS, adapt_mass_matrix=False, init_strategy=init_to_uniform)
    settings = {"warmup_steps": 50, "num_samples": 31, "seed": 1, "progress_bar": False}
    right = posterior_sbc(exact_draws(1.0), quick, 40, **settings)
    assert right.calibrated and right.replications == 40
    wrong = posterior_sbc(exact_draws(3.0), quick, 40, **settings)
    assert not wrong.calibrated and "mu" in wrong.ranks


def test_posterior_calibration_needs_a_model_and_data():
    with pytest.raises(InferenceError, match=r"(?s)know their model.*mcmc\.draws"):
        posterior_sbc(Draws({"x": np.zeros((1, 100))}))
    with pytest.raises(ArgumentError, match=r"(?s)at least 500 draws.*400 draws"):
        posterior_sbc(exact_draws(1.0), replications=500)
