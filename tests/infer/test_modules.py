"""Networks under inference: learned weights in SVI, random ones in NUTS and in SVI."""

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch import nn
from probtorch.effects import PyroModule, PyroSample, module, random_module
from probtorch.errors import ModelError
from probtorch.infer import (
    MCMC,
    NUTS,
    SVI,
    AutoMultivariateNormal,
    AutoNormal,
    Predictive,
    Target,
    Trace_ELBO,
)
from probtorch.optim import SGD, Adam
from probtorch.testing import assert_close

RNG = np.random.default_rng(11)
X = RNG.normal(size=(20, 2))
Y = X @ np.array([1.0, -2.0]) + 0.5 + 0.3 * RNG.normal(size=20)
NOISE = 0.3


def nothing(*args):
    """The guide of a model without latent sites."""


def perceptron(seed=0):
    probtorch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(2, 4, dtype=probtorch.float64),
        nn.Tanh(),
        nn.Linear(4, 1, dtype=probtorch.float64),
    )


def regression(net, statement=module):
    def model(x, y):
        loc = statement("net", net)(x).squeeze(-1)
        with probtorch.plate("data", len(x)):
            probtorch.sample("y", dist.Normal(loc, NOISE), obs=y)

    return model


DATA = probtorch.tensor(X), probtorch.tensor(Y)

# ------------------------------------------------------------------------------ learned weights


def trained_by_hand(steps):
    """The network and losses of plain training, without a model."""
    net, (x, y) = perceptron(), DATA
    optimizer = Adam(net.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        error = (y - net(x).squeeze(-1)) / NOISE
        loss = (0.5 * error * error + np.log(NOISE) + 0.5 * np.log(2 * np.pi)).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return net, losses


OPTIMIZERS = {
    "by dict": lambda net: Adam({"lr": 0.02}),
    "by class": lambda net: Adam,
    "over the network": lambda net: Adam(net.parameters(), lr=0.02),
}


@pytest.mark.parametrize("form", OPTIMIZERS)
def test_svi_trains_a_network_as_by_hand(form):
    net = perceptron()
    options = {"lr": 0.02} if form == "by class" else {}
    svi = SVI(regression(net), nothing, OPTIMIZERS[form](net), Trace_ELBO(), **options)
    result = svi.run(50, *DATA, progress_bar=False)
    expected, losses = trained_by_hand(50)
    assert_close(result.losses, losses, rtol=1e-12)
    for (name, p), q in zip(net.named_parameters(), expected.parameters(), strict=True):
        assert_close(p, q, rtol=1e-12, atol=1e-12)
        assert_close(result.params[f"net.{name}"], p, rtol=0.0, atol=0.0)
    assert list(svi.state_dict()["updater"]["params"]) == [f"net.{n}" for n in net.state_dict()]


def test_parameter_with_two_names_is_moved_once():
    net = nn.Linear(2, 1, bias=False, dtype=probtorch.float64)
    start = net.weight.detach().numpy().copy()

    def model(x, y):
        module("b", net)
        regression(net)(x, y)

    svi = SVI(model, nothing, SGD({"lr": 1e-3}), Trace_ELBO())
    svi.step(*DATA)
    gradient = (start @ X.T - Y) @ X / NOISE**2
    assert_close(net.weight, start - 1e-3 * gradient, rtol=1e-12)


class Autoencoder:
    """A model and a guide that share one network."""

    def __init__(self):
        probtorch.manual_seed(1)
        self.net = nn.Linear(2, 2, dtype=probtorch.float64)

    def model(self, x):
        net = module("net", self.net)
        with probtorch.plate("data", len(x)):
            z = probtorch.sample("z", dist.Normal(probtorch.zeros(2), 1.0).to_event(1))
            probtorch.sample("x", dist.Normal(net(z), 1.0).to_event(1), obs=x)

    def guide(self, x):
        net = module("net", self.net)
        with probtorch.plate("data", len(x)):
            probtorch.sample("z", dist.Normal(net(x), 1.0).to_event(1))


def test_model_and_guide_may_share_a_network():
    pair = Autoencoder()
    svi = SVI(pair.model, pair.guide, Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    losses = svi.run(200, DATA[0], progress_bar=False).losses
    assert sorted(svi.get_params()) == ["net.bias", "net.weight"]
    assert losses[-20:].mean() < losses[:20].mean() - 1.0


def with_batch_norm(seed=0):
    probtorch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.2), nn.Linear(3, 1))
    return net, SVI(regression(net), nothing, Adam({"lr": 0.05}), Trace_ELBO(), seed=3)


def test_resumed_training_is_the_same_bit_for_bit_buffers_included():
    x, y = (t.float() for t in DATA)
    net, svi = with_batch_norm()
    svi.run(5, x, y, progress_bar=False)
    state = svi.state_dict()
    losses = svi.run(5, x, y, progress_bar=False).losses
    other, resumed = with_batch_norm(seed=9)
    resumed.load_state_dict(state)
    assert np.array_equal(resumed.run(5, x, y, progress_bar=False).losses, losses)
    for (name, a), b in zip(net.state_dict().items(), other.state_dict().values(), strict=True):
        assert np.array_equal(a.numpy(), b.numpy()), name


def test_a_step_that_is_not_finite_leaves_running_statistics_alone():
    x, y = (t.float() for t in DATA)
    net, svi = with_batch_norm()
    svi.patience = None
    svi.step(x, y)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert np.isnan(svi.step(x * float("nan"), y))
    for name, value in net.state_dict().items():
        assert_close(value, before[name], rtol=0.0, atol=0.0)
    assert np.isfinite(svi.step(x, y))


def test_results_keep_their_weights_when_training_goes_on():
    pair = Autoencoder()
    svi = SVI(pair.model, pair.guide, Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    result = svi.run(3, DATA[0], progress_bar=False)
    weight = result.params["net.weight"].numpy()
    svi.run(50, DATA[0], progress_bar=False)
    z = result.draws(4000, seed=1).posterior["z"][0]
    expected = X @ weight.T + result.params["net.bias"].numpy()
    # Draws have standard deviation 1; 6 standard errors.
    assert np.abs(z.mean(0) - expected).max() < 6.0 / np.sqrt(4000)


@pytest.mark.filterwarnings("ignore:SVI.step runs eagerly")
def test_network_made_in_each_run_is_refused_and_trained_where_it_takes_the_stored_values():
    def model(x, y, update):
        made = nn.Linear(2, 1, dtype=probtorch.float64)
        net = module("net", made, update_module_params=update)
        with probtorch.plate("data", len(x)):
            probtorch.sample("y", dist.Normal(net(x).squeeze(-1), NOISE), obs=y)

    svi = SVI(model, nothing, Adam({"lr": 0.1}), Trace_ELBO())
    svi.step(*DATA, False)
    with pytest.raises(ModelError, match="another module"):
        svi.step(*DATA, False)
    svi = SVI(model, nothing, Adam({"lr": 0.1}), Trace_ELBO())
    svi.run(300, *DATA, True, progress_bar=False)
    design = np.column_stack([X, np.ones(len(X))])
    best = np.linalg.lstsq(design, Y, rcond=None)[0]
    assert_close(svi.get_params()["net.weight"][0], best[:2], rtol=1e-3)


# ------------------------------------------------------------------------------- random weights


class Linear(PyroModule):
    """Bayesian linear regression with known noise."""

    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](2, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.5))
        self.linear.bias = PyroSample(dist.Normal(0.0, 1.0).expand([1]).to_event(1))

    def forward(self, x, y=None):
        loc = self.linear(x).squeeze(-1)
        with probtorch.plate("data", len(x)):
            return probtorch.sample("y", dist.Normal(loc, NOISE), obs=y)


def linear_posterior():
    """Mean and covariance of (weights, bias) in closed form."""
    design = np.column_stack([X, np.ones(len(X))])
    precision = np.diag([1 / 1.5**2, 1 / 1.5**2, 1.0]) + design.T @ design / NOISE**2
    cov = np.linalg.inv(precision)
    return cov @ design.T @ Y / NOISE**2, cov


@pytest.fixture(scope="module")
def sampled():
    mcmc = MCMC(NUTS(Linear()), num_warmup=500, num_samples=1000, num_chains=4, seed=1)
    mcmc.progress_bar = False
    mcmc.run(*DATA)
    return mcmc


def flat(samples):
    return np.column_stack(
        [np.reshape(samples[n], (-1, k)) for n, k in (("linear.weight", 2), ("linear.bias", 1))]
    )


def test_nuts_on_random_weights_finds_the_posterior(sampled):
    mean, cov = linear_posterior()
    draws = flat(sampled.get_samples())
    sd = np.sqrt(np.diag(cov))
    # About 4000 effective draws: 5 standard errors of mean and of variance.
    assert (np.abs(draws.mean(0) - mean) < 5.0 * sd / np.sqrt(3000)).all()
    assert_close(np.cov(draws.T), cov, rtol=0.2, atol=0.2 * sd.min() ** 2)


def test_predictions_from_random_weights_have_the_predictive_distribution(sampled):
    mean, cov = linear_posterior()
    new = np.array([[0.5, -1.0], [2.0, 1.0], [0.0, 0.0]])
    design = np.column_stack([new, np.ones(3)])
    y = Predictive(Linear(), sampled.get_samples(), seed=2)(probtorch.tensor(new))["y"].numpy()
    expected = np.sqrt(np.diag(design @ cov @ design.T) + NOISE**2)
    assert (np.abs(y.mean(0) - design @ mean) < 5.0 * expected / np.sqrt(3000)).all()
    assert_close(y.std(0), expected, rtol=0.1)


def test_results_have_shapes_names_and_data_of_a_module(sampled):
    tree = sampled.to_arviz()
    assert tree["posterior"]["linear.weight"].shape == (4, 1000, 1, 2)
    assert tree["posterior"]["linear.bias"].shape == (4, 1000, 1)
    assert_close(tree["constant_data"]["x"].values, X)
    assert tree["log_likelihood"]["y"].shape == (4, 1000, 20)


@pytest.mark.parametrize("kind", [AutoNormal, AutoMultivariateNormal])
def test_automatic_guides_take_random_weights(kind):
    model = Linear()
    guide = kind(model)
    svi = SVI(model, guide, Adam({"lr": 0.03}), Trace_ELBO(num_particles=8), seed=0)
    svi.run(1200, *DATA, progress_bar=False)
    mean, cov = linear_posterior()
    median = guide.median()
    found = np.concatenate([median[n].numpy().ravel() for n in ("linear.weight", "linear.bias")])
    assert (np.abs(found - mean) < 0.5 * np.sqrt(np.diag(cov))).all()


def mlp_log_joint(values):
    """Log joint density of the Bayesian perceptron in NumPy."""
    w0, b0, w2, b2 = (values[f"net.{n}"] for n in ("0.weight", "0.bias", "2.weight", "2.bias"))
    loc = (np.tanh(X @ w0.T + b0) @ w2.T + b2)[:, 0]
    prior = sum(stats.norm(0.0, 1.0).logpdf(v).sum() for v in values.values())
    return prior + stats.norm(loc, NOISE).logpdf(Y).sum()


def bayesian(net):
    return regression(net, lambda name, net: random_module(name, net, dist.Normal(0.0, 1.0)))


def test_density_of_a_bayesian_network_is_compiled_and_right():
    net = perceptron()
    target = Target.from_model(bayesian(net), *DATA)
    assert list(target.slots) == ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]
    rng = np.random.default_rng(2)
    for _ in range(3):
        q = rng.normal(size=target.dim)
        value, gradient = target.value_and_grad(q)
        values = {n: q[s.start : s.stop].reshape(s.shape) for n, s in target.slots.items()}
        assert_close(value, mlp_log_joint(values), rtol=1e-12)
        for i in range(target.dim):
            step = np.zeros(target.dim)
            step[i] = 1e-6
            ends = [
                mlp_log_joint(
                    {n: p[s.start : s.stop].reshape(s.shape) for n, s in target.slots.items()}
                )
                for p in (q + step, q - step)
            ]
            assert_close(gradient[i], (ends[0] - ends[1]) / 2e-6, rtol=1e-4, atol=1e-4)
    assert target.density.reason is None
    assert target.density.paths


@pytest.mark.filterwarnings("ignore::probtorch.diagnostics.InferenceWarning")
def test_sampling_leaves_the_network_as_it_was():
    net = perceptron()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    mcmc = MCMC(
        NUTS(bayesian(net)), num_warmup=50, num_samples=50, num_chains=2, progress_bar=False, seed=0
    )
    mcmc.run(*DATA)
    assert mcmc.get_samples()["net.0.weight"].shape == (100, 4, 2)
    for name, value in net.state_dict().items():
        assert_close(value, before[name], rtol=0.0, atol=0.0)


def test_some_weights_are_random_and_the_others_learned():
    net = perceptron()
    prior = {"0.weight": dist.Normal(0.0, 1.0)}
    model = regression(net, lambda name, net: random_module(name, net, prior))
    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.02}), Trace_ELBO(), seed=0)
    start = net[2].weight.clone()
    losses = svi.run(300, *DATA, progress_bar=False).losses
    assert losses[-50:].mean() < losses[:50].mean()
    assert not np.allclose(net[2].weight.detach().numpy(), start.detach().numpy())
    names = [n for n in svi.get_params() if not n.startswith("net.0.weight")]
    assert sorted(names) == ["net.0.bias", "net.2.bias", "net.2.weight"]
