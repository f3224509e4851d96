"""A script as a user with a type checker writes it; test_user_script.py has checkers read it."""

from __future__ import annotations

import itertools
from typing import assert_type

import numpy as np

import probtorch
import probtorch.distributions as dist
from probtorch import Tensor, func, handlers, nn
from probtorch.diagnostics import Summary
from probtorch.distributions import constraints, transforms
from probtorch.effects.density import log_density
from probtorch.estimators import expectation
from probtorch.infer import (
    MCMC,
    NUTS,
    SVI,
    Predictive,
    RandomWalk,
    Target,
    Trace_ELBO,
    TraceEnum_ELBO,
    init_to_median,
    init_to_value,
)
from probtorch.infer.guides import AutoMultivariateNormal, AutoNormal
from probtorch.ode import odeint, odeint_event
from probtorch.optim import LBFGS, SGD, Adam, Optimizer, lr_scheduler
from probtorch.utils.data import DataLoader, TensorDataset, random_split

Y = probtorch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = probtorch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


# ------------------------------------------------------------------------- a model and its draws


def schools(sigma: Tensor, y: Tensor | None = None) -> Tensor:
    mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
    tau = probtorch.sample("tau", dist.HalfCauchy(5.0))
    with probtorch.plate("school", len(sigma)):
        theta = probtorch.sample("theta", dist.Normal(mu, tau))
        probtorch.sample("y", dist.Normal(theta, sigma), obs=y)
    return probtorch.deterministic("best", theta.max())


def draws() -> dict[str, Tensor]:
    mcmc = MCMC(NUTS(schools), num_samples=100, warmup_steps=100, num_chains=2, seed=1)
    mcmc.run(SIGMA, Y)
    samples = mcmc.get_samples()
    mean: Tensor = samples["mu"].mean()
    spread: float = samples["tau"].std().item()
    mcmc.print_summary()
    print(mean, spread, samples["theta"].shape[0])
    assert_type(samples, dict[str, Tensor])
    assert_type(mcmc.draws["mu"], np.ndarray)
    assert_type(mcmc.summary(), Summary)
    assert_type(mcmc.get_extra_fields(), dict[str, np.ndarray])
    return samples


def settled() -> np.ndarray:
    start = init_to_value(values={"mu": 0.0}, fallback=init_to_median(num_samples=5))
    kernel = NUTS(schools, init_strategy=start, metric=[("mu", "tau")], target_accept_prob=0.9)
    result = MCMC(kernel, num_samples=100, initial_params={"mu": np.zeros(())}).run(SIGMA, Y)
    assert_type(result.sample_stats["diverging"], np.ndarray)
    target = Target.from_model(schools, SIGMA, Y)
    value, gradient = target.value_and_grad([0.0] * target.dim)
    assert_type(value, float)
    assert_type(target.constrain(probtorch.zeros(target.dim)), dict[str, Tensor])
    MCMC(RandomWalk(target, step_size=0.5), num_samples=10).run()
    return gradient


# ----------------------------------------------------------------------- variational inference


def fit(steps: int) -> list[float]:
    guide = AutoNormal(schools)
    svi = SVI(schools, guide, Adam({"lr": 0.01}), Trace_ELBO())
    losses: list[float] = [svi.step(SIGMA, Y) for _ in range(steps)]
    predictive = Predictive(schools, guide=guide, num_samples=10)
    assert_type(predictive(SIGMA), dict[str, Tensor])
    assert_type(guide.median(), dict[str, Tensor])
    return losses


def by_hand(sigma: Tensor, y: Tensor | None = None) -> None:
    loc = probtorch.param("loc", probtorch.zeros(2))
    probtorch.sample("mu", dist.Normal(loc[0], 1.0))
    probtorch.sample("tau", dist.LogNormal(loc[1], 1.0))


def losses() -> float:
    svi = SVI(schools, by_hand, Adam({"lr": 0.01}), TraceEnum_ELBO(num_particles=2), seed=0)
    result = svi.run(100, SIGMA, Y, progress_bar=False)
    assert_type(result.params, dict[str, Tensor])
    assert_type(result.summary(), Summary)
    assert_type(svi.step(SIGMA, Y), float)
    bound: Tensor = Trace_ELBO()(schools, AutoMultivariateNormal(schools))(SIGMA, Y)
    return float(bound)


# ------------------------------------------------------------------------- a module by hand


class Network(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, 1)
        self.scale = nn.Parameter(probtorch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(probtorch.tanh(self.first(x))) * self.scale


def train(x: Tensor, y: Tensor) -> float:
    network = Network(x.shape[1], 8)
    optimizer: Optimizer = Adam(network.parameters(), lr=1e-2)
    loss = probtorch.zeros(())
    for _ in range(10):
        optimizer.zero_grad()
        predicted: Tensor = network(x)
        loss = nn.functional.mse_loss(predicted.squeeze(-1), y)
        loss.backward()
        optimizer.step()
    sizes: list[int] = [p.numel() for p in network.parameters()]
    print(sizes, {name: t.dtype for name, t in network.named_parameters()})
    return float(loss)


# ------------------------------------------------------------- distributions and transforms


def densities(x: Tensor) -> Tensor:
    normal = dist.Normal(probtorch.zeros(3), 1.0).to_event(1)
    positive = transforms.ExpTransform()
    lognormal = dist.TransformedDistribution(dist.Normal(0.0, 1.0), [positive])
    unbounded = transforms.biject_to(constraints.positive).inv(x)
    total: Tensor = normal.log_prob(probtorch.randn(2, 3)).sum() + lognormal.log_prob(x).sum()
    divergence: Tensor = dist.kl_divergence(dist.Normal(0.0, 1.0), dist.Normal(1.0, 2.0))
    return total + divergence + unbounded.sum() + dist.Gamma(2.0, 1.0).rsample((4,)).sum()


# ------------------------------------------------------------------------ functional derivatives


def energy(w: Tensor, row: Tensor) -> Tensor:
    return (w * row).sum() ** 2


def derivatives(w: Tensor, rows: Tensor) -> Tensor:
    slope: Tensor = func.grad(energy)(w, rows[0])
    value, again = func.value_and_grad(energy)(w, rows[0])
    each: Tensor = func.vmap(energy, in_dims=(None, 0))(w, rows)
    assert_type(func.grad(energy)(w, rows[0]), Tensor)
    assert_type(func.vmap(energy, in_dims=(None, 0))(w, rows), Tensor)
    pulled, pull = func.vjp(energy, w, rows[0])
    assert_type(pulled, Tensor)
    curvature: Tensor = func.hessian(energy)(w, rows[0])
    print(pull(probtorch.ones(())), curvature)
    return slope + again + value + each.sum()


def loops(n: int) -> Tensor:
    def body(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return state[0] + 1, state[1] * 2.0

    start = probtorch.tensor(0), probtorch.tensor(1.0)
    i, x = probtorch.while_loop(lambda state: state[0] < n, body, start)
    assert_type(x, Tensor)
    return probtorch.cond(i > 0, lambda y: y, lambda y: -y, x)


def tensors() -> np.ndarray:
    a = probtorch.arange(6.0).reshape(2, 3)
    b = probtorch.cat([a, probtorch.ones_like(a)], dim=0).to(probtorch.float64)
    top = b.topk(2).values
    values, indices = b.sort(dim=-1)
    matrix = probtorch.linalg.cholesky(a @ a.T + probtorch.eye(2))
    picked = probtorch.where(a > 1, a, 0.0).clamp(min=0.5)
    shape: tuple[int, ...] = values.shape
    print(top, indices, shape, matrix.device, probtorch.logsumexp(picked, -1))
    return b.numpy()


# -------------------------------------------------------------- parameters, layers, optimizers


class Deep(nn.Module):
    """Layers in a list, a parameter by hand, and a recurrent layer."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.bias = nn.Parameter(probtorch.zeros(1))
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.memory = nn.LSTM(widths[-1], 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = probtorch.tanh(layer(x))
        output, (h, _) = self.memory(x)
        assert_type(output, Tensor)
        return h.sum() + self.bias


def layers(x: Tensor) -> None:
    deep = Deep([3, 8, 4])
    assert_type(deep(x), Tensor)
    assert_type(list(deep.parameters()), list[nn.Parameter])
    assert_type(dict(deep.named_parameters()), dict[str, nn.Parameter])
    assert_type(deep.eval().double(), Deep)
    assert_type(deep.bias, nn.Parameter)
    assert_type(deep.layers[0], nn.Module)
    assert_type(nn.functional.max_pool2d(x, 2), Tensor)
    assert_type(nn.functional.max_pool2d(x, 2, return_indices=True), tuple[Tensor, Tensor])
    deep.load_state_dict(deep.state_dict())


def fit_by_closure(x: Tensor) -> float:
    deep = Deep([3, 4])
    optimizer = SGD([{"params": deep.parameters(), "lr": 0.1}], lr=1e-3, momentum=0.9)
    assert_type(optimizer, SGD)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = deep(x)
        loss.backward()
        return loss

    assert_type(optimizer.step(closure), Tensor)
    assert_type(optimizer.step(), None)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    schedule.step()
    assert_type(schedule.get_last_lr(), list[float])
    return float(LBFGS(deep.parameters(), line_search_fn="strong_wolfe").step(closure))


# ------------------------------------------------------------- effects, data and distributions


def plated(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = probtorch.param("w", probtorch.zeros(2), constraint=constraints.real)
    with probtorch.plate("rows", len(x), subsample_size=2):
        return probtorch.sample("y", dist.Normal((x * w).sum(-1), 1.0), obs=y)


def under_handlers(x: Tensor) -> Tensor:
    run = handlers.trace(handlers.seed(plated, rng_seed=0)).get_trace(x)
    assert_type(run.log_prob_sum(), Tensor)
    assert_type(run["y"].compute_log_prob(), Tensor)
    with handlers.condition(data={"y": 1.0}), handlers.scale(scale=0.5), handlers.mask(mask=x > 0):
        handlers.block(plated, hide=["w"])(x)
    log_prob, again = log_density(plated, (x,), {}, {"y": x[:, 0]})
    return log_prob + again.log_prob_sum()


def families(x: Tensor) -> Tensor:
    normal = dist.Normal(0.0, 1.0)
    assert_type(normal.loc, Tensor)
    assert_type(normal.sample((3,)), Tensor)
    assert_type(normal.log_prob(x), Tensor)
    assert_type(normal.expand((2, 3)), dist.Normal)
    assert_type(dist.Gamma(1.0, 2.0).mean, Tensor)
    assert_type(dist.Uniform(0.0, 1.0).has_rsample, bool)
    assert_type(dist.Categorical(logits=x).enumerate_support(), Tensor)
    assert_type(dist.kl_divergence(normal, normal), Tensor)
    mixture = dist.MixtureSameFamily(dist.Categorical(probs=x), normal)
    return mixture.log_prob(x) + transforms.biject_to(constraints.positive)(x)


class Standard(dist.Normal):
    """A family of one's own, with a divergence."""


@dist.register_kl(Standard, Standard)
def no_divergence(p: Standard, q: Standard) -> Tensor:
    return probtorch.zeros(())


def batches(x: Tensor, y: Tensor) -> int:
    data = TensorDataset(x, y)
    assert_type(data[0], tuple[Tensor, ...])
    train, test = random_split(data, [0.8, 0.2])
    loader = DataLoader(train, batch_size=4, shuffle=True)
    total = len(test)
    for rows, labels in loader:
        total += len(rows) + len(labels)
    probtorch.save(loader.state_dict(), "loader.pt")
    return total


# ------------------------------------------------------------------------ equations, estimators


def decay(t: Tensor, y: Tensor) -> Tensor:
    return -y


def turning(t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    x, v = state
    return v, -x


def solutions(t: Tensor) -> Tensor:
    assert_type(odeint(decay, probtorch.ones(2), t), Tensor)
    x, _ = odeint(turning, (probtorch.ones(1), probtorch.zeros(1)), t, method="rk4")
    when, _ = odeint_event(decay, probtorch.ones(1), 0.0, event_fn=lambda t, y: y[0] - 0.5)
    assert_type(when, Tensor)
    value = expectation(dist.Bernoulli(0.3), lambda z: z * 2.0, estimator="disarm")
    assert_type(value, Tensor)
    return x.sum() + when + value
