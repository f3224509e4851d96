"""Samplers and predictions on models whose plates have loaders or draw subsamples: all rows."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.effects import plate, sample
from probtorch.errors import InferenceError, ShapeError
from probtorch.infer import SVI, AutoNormal, Predictive, Target, Trace_ELBO, log_likelihood
from probtorch.optim import Adam
from probtorch.testing import assert_close
from probtorch.utils.data import DataLoader, TensorDataset

RNG = np.random.default_rng(8)
X = RNG.normal(size=12).astype(np.float32)
Y = (2.0 * X + 0.3 * RNG.normal(size=12)).astype(np.float32)
LOADER = DataLoader(
    TensorDataset(probtorch.tensor(X), probtorch.tensor(Y)),
    batch_size=5,
    shuffle=True,
    generator=probtorch.Generator(1),
)


def by_loader(loader=LOADER):
    w = sample("w", dist.Normal(0.0, 1.0))
    with plate("data", loader) as (x, y):
        probtorch.deterministic("x", x)
        sample("y", dist.Normal(w * x, 0.5), obs=y)


def by_arrays():
    w = sample("w", dist.Normal(0.0, 1.0))
    with plate("data", 12):
        sample("y", dist.Normal(w * probtorch.tensor(X), 0.5), obs=probtorch.tensor(Y))


def by_subsample(x, observed=True):
    w = sample("w", dist.Normal(0.0, 1.0))
    with plate("data", len(x), subsample_size=3) as rows:
        probtorch.deterministic("rows", rows)
        y = probtorch.tensor(Y)[rows] if observed else None
        sample("y", dist.Normal(w * x[rows], 0.5), obs=y)


def test_a_sampler_has_the_density_of_the_whole_dataset():
    looped, whole = Target.from_model(by_loader), Target.from_model(by_arrays)
    for w in (-1.0, 0.5, 2.0):
        q = np.array([w])
        value, gradient = looped.value_and_grad(q)
        expected, slope = whole.value_and_grad(q)
        # The arrays of the second are no arguments, so they stay in single precision.
        assert_close(value, expected, rtol=1e-6)
        assert_close(gradient, slope, rtol=1e-6)
    assert looped.density.reason is None
    assert_close(looped.observed_data["y"], Y)
    assert looped.observed_data["y"].dtype == np.float64


def test_a_sampler_refuses_random_subsamples():
    with pytest.raises(InferenceError, match="draws 3 of 12 rows"):
        Target.from_model(by_subsample, probtorch.tensor(X))


def test_predictions_are_of_the_whole_dataset_in_order():
    draws = {"w": np.linspace(1.0, 2.0, 50)}
    found = Predictive(by_loader, draws, return_sites=["x", "y"])()
    assert found["y"].shape == (50, 12)
    assert_close(found["x"][7], X)


def test_predictions_of_another_loader_are_of_its_dataset():
    new = DataLoader(TensorDataset(probtorch.arange(3.0), probtorch.zeros(3)), batch_size=2)
    found = Predictive(by_loader, {"w": np.ones(4)}, return_sites=["x", "y"])(new)
    assert found["x"][0].tolist() == [0.0, 1.0, 2.0]


def test_predictions_of_a_subsampling_model_are_of_all_rows():
    draws = {"w": np.ones(50)}
    x = probtorch.tensor(X)
    found = Predictive(by_subsample, draws, return_sites=["rows", "y"])(x)
    assert found["y"].shape == (50, 12)
    assert found["rows"][0].tolist() == list(range(12))
    prior = Predictive(by_subsample, num_samples=5)(x, observed=False)
    assert prior["y"].shape == (5, 12)


def test_data_cut_to_the_subsample_are_predicted_as_they_are():
    def model(x, rows):
        w = sample("w", dist.Normal(0.0, 1.0))
        with plate("data", rows, subsample_size=len(x)):
            sample("y", dist.Normal(w * x, 0.5))

    part, draws = probtorch.tensor(X[:4]), {"w": np.ones(6)}
    with pytest.raises(ShapeError, match="12 vs 4"):
        Predictive(model, draws)(part, 12)
    assert Predictive(model, draws, all_rows=False)(part, 12)["y"].shape == (6, 4)


def test_log_likelihood_is_of_all_rows():
    w = np.array([0.5, 2.0])
    expected = dist.Normal(probtorch.tensor(np.outer(w, X)), 0.5).log_prob(probtorch.tensor(Y))
    for model, args in ((by_loader, ()), (by_subsample, (probtorch.tensor(X),))):
        found = log_likelihood(model, {"w": w}, *args)
        assert_close(found["y"], expected, rtol=1e-6)


def local():
    with plate("data", LOADER) as (_, y):
        z = sample("z", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(z, 0.5), obs=y)


def test_predictions_from_a_guide_have_its_local_latents_for_all_rows():
    guide = AutoNormal(local)
    svi = SVI(local, guide, Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    svi.run(30, progress_bar=False)
    found = Predictive(local, guide=guide, num_samples=400, return_sites=["z", "y"], seed=1)()
    assert found["z"].shape == found["y"].shape == (400, 12)
    params = svi.get_params()
    sd = params["z_auto_scale"].numpy()
    # 400 draws: 5 standard errors.
    assert (np.abs(found["z"].numpy().mean(0) - params["z_auto_loc"].numpy()) < 0.25 * sd).all()


def test_a_result_of_minibatches_predicts_all_rows():
    svi = SVI(by_loader, AutoNormal(by_loader), Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    result = svi.run(300, progress_bar=False)
    found = result.predict(seed=3)
    assert set(found) == {"y"}
    assert found["y"].shape == (1, 1000, 12)
    loc, scale = (result.params[f"w_auto_{name}"].item() for name in ("loc", "scale"))
    sd = np.sqrt(0.25 + (scale * X) ** 2)
    # 1000 draws: 5 standard errors.
    assert (np.abs(found["y"][0].mean(0) - loc * X) < 5.0 * sd / np.sqrt(1000)).all()
    new = DataLoader(TensorDataset(probtorch.arange(3.0), probtorch.zeros(3)), batch_size=2)
    assert result.predict(new, seed=3)["x"].shape == (1, 1000, 3)


def test_a_result_draws_what_lies_outside_of_minibatches():
    model = by_loader
    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    result = svi.run(200, progress_bar=False)
    draws = result.draws(200)
    assert set(draws.posterior) == {"w"}
    assert np.isnan(draws.attrs["pareto_k"])
    # Drawing used up no batch: the next step is what it would have been.
    twin = SVI(model, AutoNormal(model), Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    twin.load_state_dict(svi.state_dict())
    expected = twin.step()
    svi.load_state_dict(svi.state_dict())
    assert svi.step() == expected
