"""`Predictive` some draws at a time, with discrete sites inferred, with computed values kept."""

import numpy as np
import pytest
from scipy import stats

from probtorch import configure
from probtorch.diagnostics import InferenceWarning
from probtorch.distributions import Bernoulli, Beta, Categorical, HalfNormal, Normal, Poisson
from probtorch.effects import deterministic, plate, sample
from probtorch.errors import ArgumentError, ModelError, ShapeError
from probtorch.infer import AutoNormal, Predictive, log_likelihood
from probtorch.tensor import tensor

X = np.array([1.0, 2.0, 4.0])


def line(x, y=None):
    slope = sample("slope", Normal(0.0, 1.0))
    scale = sample("scale", HalfNormal(1.0))
    with plate("row", len(x)):
        mean = deterministic("mean", slope * x)
        return sample("y", Normal(mean, scale), obs=y)


def line_samples(n):
    rng = np.random.default_rng(0)
    return {"slope": rng.normal(2.0, 0.3, size=n), "scale": np.full(n, 0.5)}


def branching(x):
    slope = sample("slope", Normal(0.0, 1.0))
    with plate("row", len(x)):
        sample("y", Normal(slope * x if slope > 2.0 else -slope * x, 0.1))


# ------------------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize("model", [line, branching], ids=["at once", "one by one"])
def test_batches_are_the_draws_of_a_call(model):
    samples = {n: x for n, x in line_samples(50).items() if model is line or n == "slope"}
    predictive = Predictive(model, samples, seed=3, batch_size=20, return_sites=["y"])
    parts = [part["y"].numpy() for part in predictive.batches(X)]
    assert [len(part) for part in parts] == [20, 20, 10]
    np.testing.assert_array_equal(np.concatenate(parts), predictive(X)["y"].numpy())


def test_compiled_blocks_are_those_of_python():
    predictive = Predictive(line, line_samples(65), seed=3, batch_size=4)
    compiled = predictive(X)
    with configure(jit=False):
        eager = predictive(X)
    for name in ("mean", "y"):
        np.testing.assert_allclose(compiled[name].numpy(), eager[name].numpy(), rtol=1e-13)
    assert len(np.unique(compiled["y"].numpy())) == 65 * 3


def test_batches_of_chains_come_one_chain_after_the_other():
    samples = {name: x.reshape(2, 10) for name, x in line_samples(20).items()}
    parts = list(Predictive(line, samples, batch_size=8).batches(X))
    means = np.concatenate([part["mean"].numpy() for part in parts])
    np.testing.assert_allclose(means, samples["slope"].reshape(-1, 1) * X)


@pytest.mark.parametrize("size", [0, -3, True])
def test_batches_of_no_draws_are_refused(size):
    with pytest.raises(ArgumentError, match=r"(?s)batch_size.*at least 1.*64 MiB"):
        Predictive(line, num_samples=5, batch_size=size)


# ----------------------------------------------------------------------------------- discrete sites


def mixture(y=None):
    share = sample("share", Beta(1.0, 1.0))
    with plate("row", 2):
        z = sample("z", Bernoulli(share))
        deterministic("centre", 4.0 * z)
        sample("y", Normal(4.0 * z, 2.0), obs=y)


def test_discrete_sites_are_drawn_from_their_posterior():
    n, y = 4000, np.array([0.5, 3.0])
    share = np.where(np.arange(n) < n // 2, 0.3, 0.8)
    found = Predictive(mixture, {"share": share}, infer_discrete=True, seed=1)(tensor(y))
    assert set(found) == {"z", "centre"}
    z = found["z"].numpy()
    np.testing.assert_array_equal(found["centre"], 4.0 * z)
    for half, p in ((z[: n // 2], 0.3), (z[n // 2 :], 0.8)):
        one = p * stats.norm.pdf(y, 4.0, 2.0)
        exact = one / (one + (1 - p) * stats.norm.pdf(y, 0.0, 2.0))
        # 2 shares of 2000 draws each, 5 standard errors: false alarm rate 2e-6.
        assert (np.abs(half.mean(0) - exact) < 5 * np.sqrt(exact * (1 - exact) / len(half))).all()


def test_a_chain_of_discrete_sites_is_drawn_jointly():
    """Neighbours that are never equal: single draws from their marginals would be."""

    def chain(y):
        level = sample("level", Normal(0.0, 1.0))
        before = None
        for t in range(3):
            probs = (
                tensor([0.5, 0.5]) if before is None else tensor([[0.0, 1.0], [1.0, 0.0]])[before]
            )
            before = sample(f"z{t}", Categorical(probs))
            sample(f"y{t}", Normal(level + 1.0 * before, 1.0), obs=y[t])

    y = np.array([0.2, 0.9, 0.1])
    found = Predictive(chain, {"level": np.zeros(600)}, infer_discrete=True, seed=0)(tensor(y))
    z = np.stack([found[f"z{t}"].numpy() for t in range(3)], axis=1)
    assert (z[:, 0] != z[:, 1]).all() and (z[:, 1] != z[:, 2]).all()
    weights = [stats.norm.logpdf(y, path).sum() for path in ([0, 1, 0], [1, 0, 1])]
    exact = 1.0 / (1.0 + np.exp(weights[1] - weights[0]))
    assert abs((z[:, 0] == 0).mean() - exact) < 5 * np.sqrt(exact * (1 - exact) / 600)


def test_discrete_sites_need_the_data():
    with pytest.raises(ModelError, match=r"(?s)'y' has neither samples nor data.*pass the data"):
        Predictive(mixture, {"share": np.full(5, 0.3)}, infer_discrete=True)()


def test_counts_among_the_samples_keep_their_dtype():
    def model(y):
        k = sample("k", Poisson(3.0))
        z = sample("z", Bernoulli(0.5))
        sample("y", Normal(k + z, 0.1), obs=y)

    found = Predictive(model, {"k": np.array([2.0, 3.0, 3.0])}, infer_discrete=True)(3.0)
    np.testing.assert_array_equal(found["z"], [1.0, 0.0, 0.0])


# ---------------------------------------------------------------------------------- computed values


@pytest.mark.parametrize("parallel", [None, False])
def test_computed_values_are_kept_when_asked_for(parallel):
    samples = line_samples(30) | {"mean": np.arange(90.0).reshape(30, 3)}
    kept = Predictive(line, samples, exclude_deterministic=False, parallel=parallel, seed=1)(X)
    assert set(kept) == {"y"}
    # 90 residuals are N(0, 0.5^2): 5 standard errors.
    residuals = (kept["y"].numpy() - samples["mean"]) / 0.5
    assert abs(residuals.mean()) < 5 / np.sqrt(90) and residuals.std() < 1.5
    anew = Predictive(line, samples, seed=1)(X)
    np.testing.assert_allclose(anew["mean"], samples["slope"][:, None] * X)


def test_computed_values_of_another_shape_are_refused():
    samples = line_samples(5) | {"mean": np.zeros((5, 2))}
    with pytest.raises(
        ShapeError, match=r"(?s)'mean'.*\(5, 3\).*\(5, 2\).*computed from the others"
    ):
        Predictive(line, samples, exclude_deterministic=False)(X)


# ------------------------------------------------------------------------------------ minibatches


def in_minibatches(x, y=None):
    slope = sample("slope", Normal(0.0, 1.0))
    with plate("row", len(x), subsample_size=16) as rows:
        sample("y", Normal(slope * x[rows], 0.1), obs=None if y is None else y[rows])


@pytest.mark.parametrize("count", [1, 5, 16, 40])
def test_fewer_rows_than_a_minibatch_has_are_predicted(count):
    """A subsample's size is for learning; predictions are of all rows that are given."""
    x, slope = tensor(np.linspace(1.0, 2.0, count)), np.linspace(1.0, 3.0, 9)
    found = Predictive(in_minibatches, {"slope": slope}, seed=0)(x)["y"].numpy()
    assert found.shape == (9, count)
    np.testing.assert_allclose(found, slope[:, None] * x.numpy(), atol=0.6)
    with pytest.raises(ArgumentError, match="at most 5 rows"):
        Predictive(in_minibatches, {"slope": slope}, all_rows=False)(tensor(np.ones(5)))


def test_a_guide_that_first_runs_without_data_is_told_to_see_them():
    def model(y=None):
        sample("y", Normal(sample("z", Normal(0.0, 1.0)), 1.0), obs=y)

    with pytest.raises(ArgumentError, match="run the guide with the data once"):
        Predictive(model, guide=AutoNormal(model), num_samples=3)()
    guide = AutoNormal(model)
    guide(tensor(0.5))
    assert list(Predictive(model, guide=guide, num_samples=3)()) == ["y"]


def test_draws_of_a_reparameterised_kernel_are_those_of_the_model():
    rng = np.random.default_rng(0)

    def model(y=None):
        loc = sample("loc", Normal(0.0, 1.0))
        with plate("row", 2):
            x = sample("x", Normal(loc, 1.0))
            sample("y", Normal(x, 1.0), obs=y)

    x = rng.normal(size=(5, 2))
    samples = {"loc": rng.normal(size=5), "x": x, "x_decentered": rng.normal(size=(5, 2))}
    assert list(Predictive(model, samples)()) == ["y"]  # and no warning
    found = log_likelihood(model, samples, tensor(np.zeros(2)))["y"]
    np.testing.assert_allclose(found, stats.norm.logpdf(x))
    with pytest.warns(InferenceWarning, match="'other'"):
        Predictive(model, samples | {"other": np.zeros(5)})()
