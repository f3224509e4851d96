"""Forecasts: against exact distributions of linear Gaussian series, and what is passed on, scored
and refused.
"""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.contrib.forecast import (
    Forecaster,
    ForecastingModel,
    HMCForecaster,
    backtest,
    eval_crps,
    eval_mae,
    eval_rmse,
)
from probtorch.contrib.forecast.model import continued
from probtorch.errors import ArgumentError, DTypeError, ModelError, ShapeError
from probtorch.handlers import seed, trace
from probtorch.tensor import tensor

F64 = probtorch.float64
T, AHEAD = 30, 8
STEP, NOISE = 0.4, 0.3


class Level(ForecastingModel):
    """A level that wanders with known scales: everything is normal."""

    def model(self, zero_data, covariates):
        with self.time_plate:
            step = probtorch.sample("step", dist.Normal(0.0, 1.0))
        self.predict(dist.Normal(0.0, NOISE), (STEP * step).cumsum(-1).unsqueeze(-1))


def wandering(steps=T):
    rng = np.random.default_rng(5)
    return np.cumsum(STEP * rng.normal(size=steps)) + NOISE * rng.normal(size=steps)


def exact(y, ahead):
    """Mean and covariance of the steps to come, given the others, by the joint normal."""
    n = len(y) + ahead
    at = np.arange(1, n + 1)
    joint = STEP**2 * np.minimum(at[:, None], at) + NOISE**2 * np.eye(n)
    t = len(y)
    gain = np.linalg.solve(joint[:t, :t], joint[:t, t:]).T
    return gain @ y, joint[t:, t:] - gain @ joint[:t, t:]


def none(steps):
    return probtorch.zeros(steps, 0, dtype=F64)


@pytest.mark.parametrize("kind", ["svi", "nuts"])
def test_draws_have_the_exact_moments_of_a_linear_gaussian_series(kind):
    """Means within 0.12 of a standard deviation (NUTS: 4 standard errors of 2000 draws), standard
    deviations within 10 %, correlations within 0.1.
    """
    y = wandering()
    data = tensor(y[:, None])
    if kind == "svi":
        fit = Forecaster(Level(), data, none(T), learning_rate=0.02, num_steps=6000, seed=0)
    else:
        fit = HMCForecaster(Level(), data, none(T), num_warmup=300, num_samples=2000, seed=0)
    pred = fit(data, none(T + AHEAD), 2000).numpy()[..., 0]
    mean, cov = exact(y, AHEAD)
    spread = np.sqrt(np.diag(cov))
    assert pred.shape == (2000, AHEAD)
    assert (np.abs(pred.mean(0) - mean) < 0.12 * spread).all()
    np.testing.assert_allclose(pred.std(0), spread, rtol=0.1)
    np.testing.assert_allclose(np.corrcoef(pred.T), cov / np.outer(spread, spread), atol=0.1)


@pytest.mark.filterwarnings("ignore:too few effective draws")
def test_fits_are_compiled():
    data = tensor(wandering()[:, None])
    fit = Forecaster(Level(), data, num_steps=20, seed=0)
    assert "1 compiled path" in fit.svi.explain()
    fit = HMCForecaster(Level(), data, num_warmup=100, num_samples=200, seed=0)
    assert fit.mcmc.target.density.reason is None


def test_a_fit_and_its_draws_are_those_of_the_seed():
    data = tensor(wandering()[:, None])

    def drawn(number):
        fit = Forecaster(Level(), data, num_steps=50, seed=number)
        return fit(data, none(T + 2), 5).numpy()

    np.testing.assert_array_equal(drawn(3), drawn(3))
    assert (drawn(3) != drawn(4)).all()


def test_noise_with_a_memory_goes_on_from_the_last_residuals():
    """Residuals of an autoregression by `GaussianHMM`: the forecast is the closed form."""
    rho, q = 0.9, 0.2

    class Remembering(ForecastingModel):
        def model(self, zero_data, covariates):
            offset = probtorch.sample("offset", dist.Normal(0.0, 1e-4))
            one = probtorch.ones(1, 1, dtype=F64)
            small = dist.Normal(tensor([0.0], dtype=F64), 1e-4).to_event(1)
            noise = dist.GaussianHMM(
                dist.Normal(tensor([0.0], dtype=F64), 1.0).to_event(1),
                one * rho,
                dist.Normal(tensor([0.0], dtype=F64), q).to_event(1),
                one,
                small,
                duration=zero_data.shape[-2],
            )
            self.predict(noise, zero_data + offset + 2.0)

    y = 2.0 + 0.5 * np.sin(np.arange(20.0))
    data = tensor(y[:, None])
    fit = HMCForecaster(Remembering(), data, num_warmup=200, num_samples=500, seed=0)
    pred = fit(data, none(23), 500).numpy()[..., 0]
    powers = rho ** np.arange(1, 4)
    spread = q * np.sqrt(np.cumsum(rho ** (2 * np.arange(3))))
    assert (np.abs(pred.mean(0) - 2.0 - (y[-1] - 2.0) * powers) < 5.0 * spread / np.sqrt(500)).all()
    np.testing.assert_allclose(pred.std(0), spread, rtol=0.15)


class Panel(ForecastingModel):
    """Counts of several series with rates of their own, and a network of the covariates."""

    def __init__(self):
        super().__init__()
        self.effect = probtorch.nn.Linear(1, 1, dtype=F64)

    def model(self, zero_data, covariates):
        with probtorch.plate("series", zero_data.shape[-3], dim=-2):
            base = probtorch.sample("base", dist.Normal(1.0, 1.0))
            with self.time_plate:
                shock = probtorch.sample("shock", dist.Normal(0.0, 0.1))
            rate = (base + shock + self.effect(covariates)[..., 0]).exp()
            self.observe(dist.Poisson(rate.unsqueeze(-1)))


def test_panels_of_counts_keep_their_series_and_weights_of_the_model():
    rng = np.random.default_rng(0)
    x = np.linspace(-1.0, 1.0, 40)
    rates = np.exp(np.array([[0.5], [3.0]]) + 0.8 * x)
    counts, covariates = tensor(rng.poisson(rates)[..., None] * 1.0), tensor(x[:, None])
    model = Panel()
    fit = Forecaster(
        model, counts[:, :30], covariates[:30], learning_rate=0.05, num_steps=1500, seed=0
    )
    pred = fit(counts[:, :30], covariates, 300)
    assert pred.shape == (300, 2, 10, 1)
    assert (pred.numpy() == np.round(pred.numpy())).all()
    np.testing.assert_allclose(pred.numpy().mean(0)[..., 0], rates[:, 30:], rtol=0.5)
    assert abs(model.effect.weight.item() - 0.8) < 0.2


def test_parameters_by_statement_are_those_of_the_fit():
    class Constant(ForecastingModel):
        def model(self, zero_data, covariates):
            mean = probtorch.param("mean", tensor(0.0, dtype=F64))
            scale = probtorch.sample("scale", dist.LogNormal(-1.0, 0.5))
            self.predict(dist.Normal(0.0, scale), zero_data + mean)

    data = tensor(np.random.default_rng(0).normal(3.0, 0.3, (50, 1)))
    fit = Forecaster(Constant(), data, learning_rate=0.1, num_steps=800, seed=0)
    # Another fit of the same name in between changes nothing.
    Forecaster(Constant(), data - 10.0, learning_rate=0.1, num_steps=200, seed=0)
    assert fit(data, none(55), 400).mean().item() == pytest.approx(3.0, abs=0.15)


def test_the_past_of_a_site_is_kept_and_its_future_drawn():
    model = Level()
    past = tensor(np.arange(5.0))
    with seed(rng_seed=0):
        sites = trace(continued({"step": past})(model)).get_trace(probtorch.zeros(5, 1), none(8))
    step = sites.nodes["step"]["value"]
    np.testing.assert_array_equal(step[:5].numpy(), past.numpy())
    assert step.shape == (8,)
    assert len(set(step[5:].tolist())) == 3


# ------------------------------------------------------------------------------------------ scores


def test_scores_are_what_they_say():
    rng = np.random.default_rng(0)
    pred, truth = rng.normal(size=(101, 4, 1)), rng.normal(size=(4, 1))
    assert eval_mae(pred, truth) == pytest.approx(np.abs(np.median(pred, 0) - truth).mean())
    assert eval_rmse(pred, truth) == pytest.approx(np.sqrt(((pred.mean(0) - truth) ** 2).mean()))
    near = np.abs(pred - truth).mean(0)
    apart = np.abs(pred[:, None] - pred).mean((0, 1))
    assert eval_crps(pred, truth) == pytest.approx((near - 0.5 * apart).mean(), rel=0.02)


class Recording:
    """A forecaster that keeps what it is given and forecasts the last value."""

    calls = []

    def __init__(self, model, data, covariates, *, seed, width=0.0):
        self.calls.append((model, data.shape, covariates.shape, seed, width))

    def __call__(self, data, covariates, num_samples, batch_size):
        ahead = covariates.shape[-2] - data.shape[-2]
        return data[-1:].expand(num_samples, ahead, 1)


@pytest.mark.parametrize(
    "sizes, windows",
    [
        ({"train_window": 4, "test_window": 2, "stride": 3}, [(0, 4, 6), (3, 7, 9)]),
        ({"min_train_window": 7, "min_test_window": 2}, [(0, 7, 10), (0, 8, 10)]),
        ({"min_train_window": 8, "test_window": 1}, [(0, 8, 9), (0, 9, 10)]),
    ],
)
def test_windows_of_a_backtest(sizes, windows):
    Recording.calls = []
    data = tensor(np.arange(10.0)[:, None])
    found = backtest(
        data,
        None,
        Level,
        forecaster_fn=Recording,
        seed=7,
        num_samples=3,
        transform=lambda pred, truth: (2.0 * pred, 2.0 * truth),
        metrics={"mae": eval_mae, "shape": lambda pred, truth: tuple(pred.shape)},
        forecaster_options=lambda t0, t1, t2: {"width": t2 - t1},
        **sizes,
    )
    assert [(s["t0"], s["t1"], s["t2"]) for s in found] == windows
    for s, (model, shape, covariates, number, width) in zip(found, Recording.calls, strict=True):
        t0, t1, t2 = s["t0"], s["t1"], s["t2"]
        assert isinstance(model, Level)
        assert (shape, covariates, number, width) == ((t1 - t0, 1), (t1 - t0, 0), 7, t2 - t1)
        # The last value is k steps behind the truth at step k, and all is doubled.
        assert s["mae"] == pytest.approx(t2 - t1 + 1.0)
        assert s["shape"] == (3, t2 - t1, 1)
        assert s["seed"] == 7
        assert s["train_walltime"] >= 0.0
    assert len({id(call[0]) for call in Recording.calls}) == len(windows)


def test_backtests_fit_and_score():
    data = tensor(wandering(36)[:, None])
    options = {"num_steps": 800, "learning_rate": 0.03}
    arguments = (data, None, Level)
    sizes = {"train_window": 24, "test_window": 4, "stride": 8, "forecaster_options": options}
    found = backtest(*arguments, **sizes)
    again = backtest(*arguments, **sizes)
    assert [s["t1"] for s in found] == [24, 32]
    for s, other in zip(found, again, strict=True):
        assert 0.0 < s["crps"] <= s["mae"] * 1.05
        assert (s["crps"], s["mae"], s["rmse"]) == (other["crps"], other["mae"], other["rmse"])


# ------------------------------------------------------------------------------------------ errors


class Silent(ForecastingModel):
    def model(self, zero_data, covariates):
        probtorch.sample("a", dist.Normal(0.0, 1.0))


class Flat(ForecastingModel):
    def model(self, zero_data, covariates):
        with self.time_plate:
            step = probtorch.sample("step", dist.Normal(0.0, 1.0))
        self.predict(dist.Normal(0.0, 1.0), step)


class Whole(ForecastingModel):
    def model(self, zero_data, covariates):
        walk = probtorch.sample("walk", dist.GaussianRandomWalk(1.0, zero_data.shape[-2]))
        self.predict(dist.Normal(0.0, 1.0), walk.unsqueeze(-1))


def test_what_is_wrong_is_said():
    data = probtorch.zeros(5, 1, dtype=F64)
    fit = Forecaster(Level(), data, num_steps=2, seed=0)
    with pytest.raises(ShapeError, match=r"5 steps of the data(.|\n)*5 and 5 steps"):
        fit(data, none(5))
    with pytest.raises(ShapeError, match="4 and 9 steps"):
        fit(data[:4], none(9))
    with pytest.raises(ShapeError, match="as many steps as the 5"):
        fit(data, none(4))
    with pytest.raises(ShapeError, match="to fit them"):
        Forecaster(Level(), data, none(9))
    with pytest.raises(ShapeError, match=r"x\.unsqueeze"):
        Forecaster(Level(), data[:, 0])
    with pytest.raises(DTypeError, match="make it"):
        Forecaster(Level, data)
    with pytest.raises(ArgumentError, match="decay in"):
        Forecaster(Level(), data, learning_rate_decay=0.0)
    with pytest.raises(ArgumentError, match="AutoMultivariateNormal"):
        Forecaster(Level(), data, dct_gradients=True)
    with pytest.raises(ModelError, match=r"self\.predict"):
        Silent()(data, none(6))
    with pytest.raises(ModelError, match="none yet"):
        Level().time_plate  # noqa: B018
    with pytest.raises(ShapeError, match=r"5, 1\)(.|\n)*unsqueeze"):
        Flat()(data, none(5))
    with pytest.raises(ModelError, match=r"site 'walk'(.|\n)*inside self\.time_plate"):
        Forecaster(Whole(), data, num_steps=2, seed=0)(data, none(7), 1)
    with pytest.raises(ArgumentError, match="6 steps to fit, 1 to forecast"):
        backtest(data, None, Level, train_window=6)
