"""A script as a user with a type checker writes it; test_user_script.py has checkers read it."""

from __future__ import annotations

import numpy as np

import probtorch
import probtorch.distributions as dist
from probtorch import Tensor, func, nn
from probtorch.distributions import constraints, transforms
from probtorch.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from probtorch.infer.guides import AutoNormal
from probtorch.optim import Adam, Optimizer

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
    return samples


# ----------------------------------------------------------------------- variational inference


def fit(steps: int) -> list[float]:
    guide = AutoNormal(schools)
    svi = SVI(schools, guide, Adam({"lr": 0.01}), Trace_ELBO())
    losses: list[float] = [svi.step(SIGMA, Y) for _ in range(steps)]
    predictive = Predictive(schools, guide=guide, num_samples=10)
    predictive(SIGMA)
    return losses


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
    return slope + again + value + each.sum()


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
