"""Objectives that compare samples: the maximum mean discrepancy, and the energy distance."""

import math

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from probtorch.config import configure
from probtorch.distributions import Bernoulli, Delta, MultivariateNormal, Normal, Poisson
from probtorch.effects import param, plate, sample
from probtorch.effects.handlers import seed
from probtorch.effects.params import get_param_store
from probtorch.effects.runtime import Handler
from probtorch.errors import ArgumentError, InferenceError, ModelError
from probtorch.infer import SVI, EnergyDistance, Trace_MMD
from probtorch.infer.objectives.mmd import maximum_mean_discrepancy
from probtorch.optim import Adam
from probtorch.tensor import tensor
from tests.infer.svi.programs import gradients

RNG = np.random.default_rng(0)
X = RNG.normal(size=6)


@pytest.fixture(autouse=True)
def fresh_store():
    get_param_store().clear()


def rows(x):
    with plate("row", len(x)):
        z = sample("z", Normal(0.0, 1.0))
        sample("x", Normal(2.0 * z, 0.5), obs=x)


def rows_guide(x):
    w, log_sd = param("w", tensor(0.4)), param("log_sd", tensor(-1.0))
    with plate("row", len(x)):
        sample("z", Normal(w.double() * x, log_sd.double().exp()))


def test_discrepancy_is_its_definition():
    x, y = RNG.normal(size=(5, 3)), RNG.normal(size=(7, 3)) + 0.5
    gaussian = {(id(a), id(b)): np.exp(-cdist(a, b, "sqeuclidean")) for a in (x, y) for b in (x, y)}
    n, m = len(x), len(y)
    within = (gaussian[id(x), id(x)].sum() - n) / (n * (n - 1))
    within += (gaussian[id(y), id(y)].sum() - m) / (m * (m - 1))
    expected = within - 2.0 * gaussian[id(x), id(y)].mean()

    def kernel(a, b):
        return (-((a.unsqueeze(1) - b.unsqueeze(0)) ** 2).sum(-1)).exp()

    found = maximum_mean_discrepancy(tensor(x), tensor(y), kernel)
    np.testing.assert_allclose(found.item(), expected, rtol=1e-12)
    # Without a kernel: c / (c + d^2) with c twice the variance of y, all numbers together.
    c = 2.0 * y.var(axis=0, ddof=1).sum()
    default = {k: c / (c + cdist(*pair, "sqeuclidean")) for k, pair in
               {"xx": (x, x), "yy": (y, y), "xy": (x, y)}.items()}  # fmt: skip
    expected = (
        (default["xx"].sum() - n) / (n * (n - 1))
        + (default["yy"].sum() - m) / (m * (m - 1))
        - 2.0 * default["xy"].mean()
    )
    np.testing.assert_allclose(
        maximum_mean_discrepancy(tensor(x), tensor(y)).item(), expected, rtol=1e-12
    )


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_mmd_is_the_log_likelihood_less_the_discrepancy_of_all_rows(together):
    """The draws are those of the guide, then of the prior, from one generator."""
    objective = Trace_MMD(num_particles=3, mmd_scale=2.5, vectorize_particles=together)
    met = []

    class Listening(Handler):
        def after_sample(self, site):
            met.append((site.name, np.asarray(site.value.detach().array)))

    with seed(None, 3):
        objective.loss(rows, rows_guide, tensor(X))  # looks at the pair first, if together
    with Listening(), seed(None, 3):
        loss = objective.loss(rows, rows_guide, tensor(X))
    draws = [value.reshape(-1, 6) for name, value in met if name == "z"]
    # A guide's draw is stated twice, by the guide and by the model that is replayed.
    runs = 1 if together else 3
    of_guide = np.concatenate([draws[2 * i] for i in range(runs)])
    of_prior = np.concatenate(draws[2 * runs :])
    assert of_guide.shape == of_prior.shape == (3, 6)
    fit = -0.5 * ((X - 2.0 * of_guide) / 0.5) ** 2 - math.log(0.5) - 0.5 * math.log(2 * math.pi)
    far = maximum_mean_discrepancy(
        tensor(of_guide.reshape(-1, 1)), tensor(of_prior.astype(float).reshape(-1, 1))
    ).item()
    np.testing.assert_allclose(-loss, fit.sum(1).mean() - 2.5 * far, rtol=1e-9)


def test_gradients_of_both_are_those_of_finite_differences():
    for objective in (
        Trace_MMD(num_particles=4, vectorize_particles=True),
        EnergyDistance(1.3, 0.2, num_particles=4, vectorize_particles=True),
        EnergyDistance(num_particles=3),
    ):
        get_param_store().clear()
        with seed(None, 5):
            objective.loss(rows, rows_guide, tensor(X))
        with seed(None, 5):
            objective.loss_and_grads(rows, rows_guide, tensor(X))
        found = {name: float(g) for name, g in gradients().items()}

        def loss(w, log_sd, objective=objective):
            store = get_param_store()
            store["w"], store["log_sd"] = tensor(w), tensor(log_sd)
            with seed(None, 5):
                return objective.loss(rows, rows_guide, tensor(X))

        h = 2.0**-10  # parameters are in single precision
        slopes = (
            (loss(0.4 + h, -1.0) - loss(0.4 - h, -1.0)) / (2 * h),
            (loss(0.4, -1.0 + h) - loss(0.4, -1.0 - h)) / (2 * h),
        )
        np.testing.assert_allclose((found["w"], found["log_sd"]), slopes, rtol=2e-3, atol=2e-3)


def test_energy_distance_is_its_definition():
    """Two sites of data, an event dim, a scale of a plate and a mask."""
    a, b = RNG.normal(size=4), RNG.normal(size=2)
    mask = np.array([True, False, True, True])

    def model():
        mu = sample("mu", Normal(0.0, 1.0))
        with plate("row", 8, subsample=tensor(np.arange(4))):
            sample("a", Normal(mu, 1.0).mask(tensor(mask)), obs=tensor(a))
        loc = tensor(np.zeros(2)) + mu.unsqueeze(-1)
        sample("b", MultivariateNormal(loc, tensor(np.eye(2))), obs=tensor(b))

    def guide():
        sample("mu", Normal(param("loc", tensor(0.5)).double(), 0.3))

    for together in (False, True):
        objective = EnergyDistance(1.5, 0.7, num_particles=3, vectorize_particles=together)
        with seed(None, 1):
            objective.loss(model, guide)
        with seed(None, 1):
            runs = list(objective.runs(model, guide, (), {}))
        with seed(None, 1):
            loss = objective.loss(model, guide)
        sites = [run.model.nodes for run in runs]
        values = {
            name: np.concatenate(
                [np.asarray(s[name].value.detach().array).reshape(-1, size) for s in sites]
            )
            for name, size in (("mu", 1), ("a", 4), ("b", 2))
        }
        weights = np.concatenate([np.sqrt(2.0) * mask, np.ones(2)])
        drawn = np.concatenate([values["a"], values["b"]], axis=1) * weights
        real = np.concatenate([a, b]) * weights
        error = (cdist(drawn, real[None]) ** 1.5).mean()
        entropy = (cdist(drawn, drawn) ** 1.5).sum() / 6.0
        prior = (-0.5 * values["mu"] ** 2 - 0.5 * math.log(2.0 * math.pi)).mean()
        np.testing.assert_allclose(loss, error - 0.5 * entropy - 0.7 * prior, rtol=1e-6)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_energy_distance_is_the_same_compiled(together):
    losses = []
    for jit in (True, False):
        get_param_store().clear()
        loss = EnergyDistance(1.3, 0.2, num_particles=3, vectorize_particles=together)
        with configure(jit=jit):
            svi = SVI(rows, rows_guide, Adam({"lr": 0.05}), loss, seed=1)
            losses.append([svi.step(tensor(X)) for _ in range(4)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_predictions_that_are_compared_are_of_the_same_rows(together):
    """Rows are 100 apart, and predicted to 0.01: of other rows they would be as far apart."""
    far = tensor(np.arange(6.0) * 100.0)

    def model():
        with plate("row", 6, subsample_size=3) as rows:
            loc = far[rows] + param("by", tensor(0.0))
            sample("x", Normal(loc, 0.01), obs=far[rows])

    objective = EnergyDistance(num_particles=4, vectorize_particles=together)
    for jit in (True, False):
        with configure(jit=jit):
            svi = SVI(model, lambda: None, Adam({"lr": 0.01}), objective, seed=0)
            losses = [svi.step() for _ in range(3)]
        assert np.abs(losses).max() < 1.0


def test_an_autoencoder_by_mmd_keeps_what_a_row_says():
    data = np.random.default_rng(1).normal(size=200) * 2.0
    loss = Trace_MMD(num_particles=2, vectorize_particles=True, mmd_scale=100.0)
    svi = SVI(rows, rows_guide, Adam({"lr": 0.02}), loss, seed=0)
    params = svi.run(600, tensor(data), progress_bar=False).params
    # The fit alone wants w = 1 / 2 and no noise; draws that are like the prior's agree.
    assert abs(params["w"].item() - 0.5) < 0.05 and params["log_sd"].item() < -1.5


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_data_at_no_distance_are_named_and_missing_ones_left_out(bad, compiled):
    def model(y, seen=None):
        mu = sample("mu", Normal(0.0, 1.0))
        with plate("row", len(y)):
            d = Normal(mu, 1.0)
            sample("y", d if seen is None else d.mask(seen), obs=y)

    def guide(y, seen=None):
        sample("mu", Normal(param("loc", tensor(0.5)), 0.3))

    y = tensor([0.3, bad, 0.1])
    with configure(jit=compiled):
        svi = SVI(model, guide, Adam({"lr": 0.01}), EnergyDistance(num_particles=3), seed=0)
        svi.step(tensor([0.3, 0.2, 0.1]))
        with pytest.raises(ArgumentError, match=r"(?s)data of site 'y'.*1 of 3.*mask"):
            svi.step(y)
        kept = [
            SVI(model, guide, Adam({"lr": 0.01}), EnergyDistance(num_particles=3), seed=0)
            .run(4, tensor([0.3, x, 0.1]), tensor([True, False, True]), progress_bar=False)
            .losses
            for x in (bad, 7.0)
        ]
    assert np.isfinite(kept[0]).all()
    np.testing.assert_array_equal(kept[0], kept[1])


def test_what_has_no_path_is_refused_and_what_is_forgotten():
    def counts(y):
        mu = sample("mu", Normal(0.0, 1.0))
        sample("y", Poisson(mu.exp()), obs=y)

    def point(y):
        sample("mu", Delta(param("at", tensor(0.0))))

    with pytest.raises(InferenceError, match=r"(?s)'y' has no pathwise.*Poisson.*Trace_ELBO"):
        EnergyDistance().loss(counts, point, tensor(2.0))
    with pytest.raises(ModelError, match=r"(?s)no site 'z'.*allow_missing"):
        EnergyDistance().loss(rows, lambda x: None, tensor(X))
    assert math.isfinite(EnergyDistance(allow_missing=True).loss(rows, lambda x: None, tensor(X)))
    with pytest.raises(InferenceError, match=r"(?s)data.*sample statements with obs"):
        EnergyDistance().loss(lambda: sample("z", Normal(0.0, 1.0)), lambda: sample(
            "z", Normal(0.0, 1.0)))  # fmt: skip

    def switched(y):
        z = sample("z", Bernoulli(0.5))
        sample("y", Normal(z, 1.0), obs=y)

    def switch(y):
        sample("z", Bernoulli(param("p", tensor(0.4))))

    for objective in (Trace_MMD(), EnergyDistance()):
        with pytest.raises(InferenceError, match=r"(?s)'z' has no pathwise gradient.*Bernoulli"):
            objective.loss(switched, switch, tensor(1.0))
    for wrong in ({"beta": 2.0}, {"prior_scale": -1.0}, {"num_particles": 1}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            EnergyDistance(**wrong)
    for wrong in ({"mmd_scale": 0.0}, {"kernel": 3}, {"num_particles": 1}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            Trace_MMD(**wrong)
