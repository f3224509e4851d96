"""Programs as tutorials of Pyro and NumPyro have them: imports changed, and keys left out."""

import itertools

import numpy as np
import pytest

import probtorch
import probtorch as numpyro
import probtorch as pyro
import probtorch as torch
import probtorch.distributions as dist
from probtorch import nn, poutine
from probtorch.contrib.control_flow import scan
from probtorch.diagnostics import hpdi, print_summary
from probtorch.distributions import constraints
from probtorch.handlers import reparam
from probtorch.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceEnum_ELBO, log_likelihood
from probtorch.infer.autoguide import AutoDelta, AutoDiagonalNormal
from probtorch.infer.initialization import init_to_median
from probtorch.infer.reparam import LocScaleReparam
from probtorch.infer.util import initialize_model, log_density
from probtorch.nn import PyroModule, PyroSample
from probtorch.ops.indexing import Vindex
from probtorch.optim import Adam

pytestmark = pytest.mark.slow


class BayesianRegression(PyroModule):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = PyroModule[nn.Linear](in_features, out_features)
        self.linear.weight = PyroSample(
            dist.Normal(0.0, 1.0).expand([out_features, in_features]).to_event(2)
        )
        self.linear.bias = PyroSample(dist.Normal(0.0, 10.0).expand([out_features]).to_event(1))

    def forward(self, x, y=None):
        sigma = pyro.sample("sigma", dist.Uniform(0.0, 10.0))
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("data", x.shape[0]):
            pyro.sample("obs", dist.Normal(mean, sigma), obs=y)
        return mean


def test_pyros_bayesian_regression():
    pyro.set_rng_seed(1)
    pyro.clear_param_store()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(170, 3))
    y = 9.2 + x @ [-1.9, -0.2, 0.35] + 0.8 * rng.normal(size=170)
    x_data, y_data = torch.tensor(x, dtype=torch.float), torch.tensor(y, dtype=torch.float)
    model = BayesianRegression(3, 1)
    guide = AutoDiagonalNormal(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), loss=Trace_ELBO())
    for _ in range(1500):
        svi.step(x_data, y_data)
    guide.requires_grad_(False)
    assert all(pyro.param(name) is not None for name, _ in pyro.get_param_store().items())
    assert guide.quantiles([0.25, 0.5, 0.75])["sigma"].shape == (3,)
    sites = ("linear.weight", "obs", "_RETURN")
    samples = Predictive(model, guide=guide, num_samples=800, return_sites=sites)(x_data)
    assert samples["linear.weight"].shape == (800, 1, 3)
    # Against least squares, whose standard errors are about 0.06.
    design = np.column_stack([x, np.ones(170)])
    fitted = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    assert np.abs(samples["_RETURN"].mean(0).numpy() - fitted).max() < 0.4
    low, high = (samples["obs"].kthvalue(k, dim=0)[0].numpy() for k in (40, 760))
    # Of 170 observations 90 % are expected inside, with a standard deviation of 4.
    assert 135 <= ((low < y) & (y < high)).sum() <= 168
    trace = poutine.trace(model).get_trace(x_data, y_data)
    trace.compute_log_prob()
    assert "obs" in trace.format_shapes()


def hierarchical(patient_code, weeks, FVC_obs=None):
    mu_a = numpyro.sample("mu_a", dist.Normal(0.0, 1.0))
    sigma_a = numpyro.sample("sigma_a", dist.HalfNormal(1.0))
    mu_b = numpyro.sample("mu_b", dist.Normal(0.0, 1.0))
    sigma_b = numpyro.sample("sigma_b", dist.HalfNormal(1.0))
    with numpyro.plate("plate_i", len(np.unique(patient_code))):
        a = numpyro.sample("a", dist.Normal(mu_a, sigma_a))
        b = numpyro.sample("b", dist.Normal(mu_b, sigma_b))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(patient_code)):
        FVC_est = a[patient_code] + b[patient_code] * weeks
        numpyro.sample("obs", dist.Normal(FVC_est, sigma), obs=FVC_obs)


def test_numpyros_hierarchical_regression(capsys):
    rng = np.random.default_rng(0)
    patient, weeks = np.repeat(np.arange(12), 9), np.tile(np.linspace(-1.5, 1.5, 9), 12)
    a, b = rng.normal(0.3, 0.8, 12), rng.normal(-0.5, 0.3, 12)
    observed = a[patient] + b[patient] * weeks + 0.3 * rng.normal(size=108)
    model = reparam(hierarchical, config={"a": LocScaleReparam(0), "b": LocScaleReparam(0)})
    kernel = NUTS(model, target_accept_prob=0.9, init_strategy=init_to_median(num_samples=20))
    mcmc = MCMC(kernel, num_samples=500, num_warmup=500, num_chains=2, progress_bar=False, seed=0)
    mcmc.run(patient, weeks, FVC_obs=observed, extra_fields=("potential_energy",))
    mcmc.print_summary(0.9)
    samples = mcmc.get_samples()
    print_summary(samples, 0.9, group_by_chain=False)
    assert "sigma_a" in capsys.readouterr().out
    low, high = hpdi(samples["a"], 0.99)
    # Of 12 intervals of 99 %, two that miss have probability 0.006.
    assert ((low < a) & (a < high)).sum() >= 11
    predictions = Predictive(model, samples, return_sites=["sigma", "obs"])(patient, weeks, None)
    assert predictions["obs"].shape == (1000, 108)
    assert log_likelihood(model, samples, patient, weeks, observed)["obs"].shape == (1000, 108)
    # Minus the potential energy is the log density with the Jacobians of the three scales.
    info = initialize_model(model, (patient, weeks), {"FVC_obs": observed}, seed=0)
    values = info.postprocess_fn(info.param_info.z)
    at = {name: values[name] for name in info.param_info.z}
    density, _ = log_density(model, (patient, weeks, observed), {}, at)
    logs = sum(float(info.param_info.z[name]) for name in ("sigma_a", "sigma_b", "sigma"))
    found = -float(info.param_info.potential_energy)
    assert found == pytest.approx(float(density) + logs, rel=1e-9)


def hidden_markov(sequences, lengths, batch_size=None, include_prior=True):
    num_sequences, max_length, data_dim = sequences.shape
    hidden_dim = 2
    with poutine.mask(mask=include_prior):
        rows = 0.9 * torch.eye(hidden_dim) + 0.1
        probs_w = pyro.sample("probs_w", dist.Dirichlet(rows).to_event(1))
        probs_x = pyro.sample("probs_x", dist.Dirichlet(rows).to_event(1))
        shape = [hidden_dim, hidden_dim, data_dim]
        probs_y = pyro.sample("probs_y", dist.Beta(0.1, 0.9).expand(shape).to_event(3))
    tones_plate = pyro.plate("tones", data_dim, dim=-1)
    with pyro.plate("sequences", num_sequences, batch_size, dim=-2) as batch:
        lengths = lengths[batch]
        w, x = 0, 0
        for t in pyro.markov(range(max_length)):
            with poutine.mask(mask=(t < lengths).unsqueeze(-1)):
                parallel = {"enumerate": "parallel"}
                w = pyro.sample(f"w_{t}", dist.Categorical(probs_w[w]), infer=parallel)
                x = pyro.sample(f"x_{t}", dist.Categorical(Vindex(probs_x)[x]), infer=parallel)
                with tones_plate as tones:
                    p = Vindex(probs_y)[w, x, tones]
                    pyro.sample(f"y_{t}", dist.Bernoulli(p), obs=sequences[batch, t])


def test_pyros_factorial_hidden_markov_model():
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    rng = np.random.default_rng(0)
    sequences = torch.tensor((rng.random((5, 4, 3)) < 0.3).astype(np.float32))
    lengths = torch.tensor([4, 3, 2, 4, 1])
    guide = AutoDelta(
        poutine.block(hidden_markov, expose_fn=lambda msg: msg["name"].startswith("probs_"))
    )
    elbo = TraceEnum_ELBO(max_plate_nesting=2)
    svi = SVI(hidden_markov, guide, Adam({"lr": 0.05}), elbo)
    losses = [svi.step(sequences, lengths, batch_size=5) for _ in range(60)]
    assert losses[-1] < losses[0]
    found = elbo.loss(hidden_markov, guide, sequences, lengths, include_prior=False)
    # The sum over all states, sequence by sequence, of 4 joint states that start from state 0.
    p = {name: x.detach().numpy() for name, x in guide.median().items()}
    step = np.einsum("ab,cd->acbd", p["probs_w"], p["probs_x"]).reshape(4, 4)
    emit = p["probs_y"].reshape(4, 3)
    total = 0.0
    for y, length in zip(sequences.numpy(), lengths.tolist(), strict=True):
        state = np.eye(4)[0]
        for now in y[:length]:
            state = (state @ step) * np.prod(np.where(now > 0, emit, 1.0 - emit), axis=1)
        total += np.log(state.sum())
    assert found == pytest.approx(-total, rel=1e-5)


def test_numpyros_scan_in_its_room():
    def walk(carry, y):
        x = numpyro.sample("x", dist.Normal(carry, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x, x

    def model(y):
        scan(walk, probtorch.tensor(0.0), y)

    run = poutine.trace(poutine.seed(model, 0)).get_trace(torch.zeros(5))
    assert run["x"]["value"].shape == (5,)
    assert constraints.real.check(run["x"]["value"]).all()


def of_second_order(sequences, lengths):
    """Model 6 of Pyro's hidden Markov examples: weights that start a simplex have any sum."""
    count, longest, data_dim = sequences.shape
    hidden_dim, rng = 2, np.random.default_rng(0)
    start = torch.tensor(rng.uniform(0.1, 1.0, (hidden_dim, hidden_dim, hidden_dim)))
    probs_x = pyro.param("probs_x", start, constraint=constraints.simplex)
    start = torch.tensor(rng.uniform(0.1, 0.9, (hidden_dim, data_dim)))
    probs_y = pyro.param("probs_y", start, constraint=constraints.unit_interval)
    tones_plate = pyro.plate("tones", data_dim, dim=-1)
    with pyro.plate("sequences", count, dim=-2) as batch:
        lengths = lengths[batch]
        x_curr, x_prev = torch.tensor(0), torch.tensor(0)
        for t in pyro.markov(range(longest), history=2):
            with poutine.mask(mask=(t < lengths).unsqueeze(-1)):
                probs_x_t = Vindex(probs_x)[x_prev, x_curr]
                new = pyro.sample(
                    f"x_{t}", dist.Categorical(probs_x_t), infer={"enumerate": "parallel"}
                )
                x_prev, x_curr = x_curr, new
                with tones_plate:
                    probs_y_t = probs_y[x_curr.squeeze(-1)]
                    pyro.sample(f"y_{t}", dist.Bernoulli(probs_y_t), obs=sequences[batch, t])


def test_pyros_hidden_markov_model_of_second_order():
    pyro.clear_param_store()
    rng = np.random.default_rng(1)
    sequences = (rng.random((3, 4, 2)) < 0.4).astype(float)
    lengths = [4, 2, 3]
    svi = SVI(
        of_second_order,
        lambda *args: None,
        Adam({"lr": 0.05}),
        TraceEnum_ELBO(max_plate_nesting=2),
    )
    data = torch.tensor(sequences), torch.tensor(lengths)
    first = svi.evaluate_loss(*data)
    p, q = (pyro.param(name).detach().numpy() for name in ("probs_x", "probs_y"))
    np.testing.assert_allclose(p.sum(-1), 1.0, rtol=1e-12)
    total = 0.0
    for y, length in zip(sequences, lengths, strict=True):
        likelihood = 0.0
        for states in itertools.product(range(2), repeat=length):
            before, term = (0, 0), 1.0
            for x, now in zip(states, y, strict=False):
                term *= p[(*before, x)] * np.prod(np.where(now > 0, q[x], 1.0 - q[x]))
                before = before[1], x
            likelihood += term
        total -= np.log(likelihood)
    assert first == pytest.approx(total, rel=1e-10)
    losses = [svi.step(*data) for _ in range(20)]
    assert losses[-1] < losses[0]


def test_a_conditional_autoencoder_states_its_plate_without_a_size():
    encode, decode = nn.Linear(12, 4), nn.Linear(2, 6)

    def model(xs, ys):
        pyro.module("decode", decode)
        with pyro.plate("data"):
            prior = dist.Normal(torch.zeros(xs.shape[0], 2), 1.0).to_event(1)
            zs = pyro.sample("z", prior)
            loc = torch.sigmoid(decode(zs))
            pyro.sample("y", dist.Bernoulli(loc, validate_args=False).to_event(1), obs=ys)

    def guide(xs, ys):
        pyro.module("encode", encode)
        with pyro.plate("data"):
            loc, scale = encode(torch.cat([xs, ys], -1)).split(2, -1)
            pyro.sample("z", dist.Normal(loc, scale.exp()).to_event(1))

    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    xs, ys = torch.rand(7, 6), (torch.rand(7, 6) > 0.5).float()
    svi = SVI(model, guide, Adam({"lr": 0.02}), Trace_ELBO())
    losses = [svi.step(xs[:n], ys[:n]) / n for n in (7, 3) * 60]
    assert np.mean(losses[-20:]) < np.mean(losses[:20])
