"""Draws of no density on R^n know the model as it was called, and what held around the call."""

import pickle

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch.distributions import Bernoulli, Normal
from probtorch.effects import deterministic, handlers, plate, sample
from probtorch.errors import InferenceError
from probtorch.infer import ABC, Importance, ParticleGibbs

Y = probtorch.tensor([0.2, 1.1, 0.4])


def level(y=None):
    mu, shift = sample("mu", Normal(0.0, 1.0)), sample("shift", Normal(0.0, 1.0))
    mean = deterministic("mean", mu + shift)
    with plate("row", 3):
        sample("y", Normal(mean, 0.5), obs=y)


def test_handlers_around_the_inference_hold_in_predictions():
    with handlers.condition(data={"shift": probtorch.tensor(0.2)}):
        found = Importance(level, num_samples=200, seed=0).run(Y)
        runs = ParticleGibbs(level, 3, 10, 0, seed=0, progress_bar=False).run(Y)
    for draws in (found.draws(), runs):
        assert list(draws.posterior) == ["mu", "mean"]
        mean = draws.predict(None, seed=0)["mean"]
        np.testing.assert_allclose(mean, draws["mu"] + 0.2, rtol=1e-6)
        expected = stats.norm.logpdf(Y.numpy(), mean[..., None], 0.5)
        np.testing.assert_allclose(draws.log_likelihood()["y"], expected, rtol=1e-4, atol=1e-5)


def test_parameters_that_were_given_hold_in_predictions():
    def model(y=None):
        scale = probtorch.param("scale", probtorch.tensor(1.0))
        deterministic("times", sample("mu", Normal(0.0, 1.0)) * scale)
        sample("y", Normal(0.0, scale).expand([3]).to_event(1), obs=y)

    given = {"scale": probtorch.tensor(2.0)}
    draws = Importance(model, num_samples=30, params=given, seed=0).run(Y).draws()
    np.testing.assert_allclose(draws.predict(None, seed=0)["times"], 2.0 * draws["mu"], rtol=1e-6)
    expected = stats.norm.logpdf(Y.numpy(), 0.0, 2.0).sum()
    np.testing.assert_allclose(draws.log_likelihood()["y"], expected, rtol=1e-5)


def test_a_simulator_without_a_density_predicts_and_says_that_it_has_none():
    def model():
        mu = sample("mu", Normal(0.0, 1.0))
        deterministic("y", mu + 0.1 * sample("noise", Normal(0.0, 1.0)))

    draws = ABC(model, 50, seed=0, parameters=["mu"]).run({"y": 0.5})
    again = draws.predict(seed=0)["y"]
    # 50 normal numbers of standard deviation 0.1: none is 5 of them away.
    assert again.shape == draws["mu"].shape and abs(again - draws["mu"]).max() < 0.5
    with pytest.raises(InferenceError, match=r"(?s)sample statements.*draws 'noise' anew"):
        draws.log_likelihood()
    assert "log_likelihood" not in draws.extended().groups

    def steady():
        deterministic("y", 2.0 * sample("mu", Normal(0.0, 1.0)))

    with pytest.raises(InferenceError, match=r"(?s)sample statements.*'y', which have none"):
        ABC(steady, 50, seed=0).run({"y": 0.5}).log_likelihood()


def test_a_mask_is_a_gap_in_the_data():
    seen = probtorch.tensor([True, False, True])

    def model(y):
        mu = sample("mu", Normal(0.0, 1.0))
        with plate("row", 3), handlers.mask(mask=seen):
            sample("y", Normal(mu, 1.0), obs=y)

    found = Importance(model, num_samples=30, seed=0).run(Y).draws()
    runs = ParticleGibbs(model, 3, 10, 0, seed=0, progress_bar=False).run(Y)
    for draws in (found, runs):
        assert np.isnan(draws.groups["observed_data"]["y"]).tolist() == [False, True, False]
        assert (draws.log_likelihood()["y"][..., 1] == 0.0).all()


def test_weighted_draws_are_resampled_in_the_same_way_unless_told():
    found = Importance(level, num_samples=100, seed=0).run(Y)
    assert found.draws() is found.draws() and found.draws(20, seed=1) is found.draws(20, seed=1)
    one, other = found.draws(seed=None), found.draws(seed=None)
    assert not np.array_equal(one["mu"], other["mu"])
    verdict = str(found.summary()).split("\n")[-1]
    assert f"100 weighted draws are worth {found.ess:.0f}" in verdict and "Pareto k" in verdict
    kept = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(kept.draws()["mu"], found.draws()["mu"])
    with pytest.raises(InferenceError, match="draws that know their model"):
        kept.predict()


def test_runs_with_sites_of_their_own_are_asked_one_by_one():
    def model(y=None):
        loc = sample("loc", Normal(0.0, 1.0)) if sample("moved", Bernoulli(0.5)).item() else 0.0
        deterministic("mean", loc + probtorch.tensor(0.0))
        with plate("row", 3):
            sample("y", Normal(loc, 1.0), obs=y)

    weighted = Importance(model, num_samples=40, seed=0).run(Y)
    runs = ParticleGibbs(model, 5, 40, 0, seed=0, progress_bar=False).run(Y)
    for draws in (weighted.draws(), runs):
        loc = np.array([[run.get("loc", 0.0) for run in chain] for chain in draws.values])
        assert 0 < np.count_nonzero(loc) < loc.size
        np.testing.assert_allclose(draws.predict(None, seed=0)["mean"], loc, rtol=1e-6)
        expected = stats.norm.logpdf(Y.numpy(), loc[..., None])
        np.testing.assert_allclose(draws.log_likelihood()["y"], expected, rtol=1e-5)
        assert "log_likelihood" not in draws.extended().groups  # unless it is asked for
        assert draws.dims["y"] == ("row",)
