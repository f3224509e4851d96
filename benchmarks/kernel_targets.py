"""Ten small posteriors for comparing kernels, each with draws that are known to be right.

Closed forms have exact draws. The two models have those of a long run of NUTS, whose agreement with
reference draws is a test of its own (tests/posteriordb).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import probtorch
import probtorch.distributions as dist
from probtorch.infer import MCMC, NUTS, Target

__all__ = ["PIECE", "SIGMA", "TARGETS", "Y", "KernelTarget", "logistic_data"]

# Draws of one compiled loop of a peer.
PIECE = 500
# Of the reference: exact draws, or draws of each of four chains.
EXACT, OF_NUTS = 400_000, 20_000


@dataclass(frozen=True)
class KernelTarget:
    """A posterior by name.

    Parameters
    ----------
    statement : str
        For people.
    make : callable
        Returns its `Target`.
    exact : callable, optional
        ``exact(rng, n)`` returns draws, shape (n, dim); where there is none, NUTS says what is
        right.
    """

    statement: str
    make: Callable[[], Target]
    exact: Callable[[np.random.Generator, int], np.ndarray] | None = None

    def reference(self, target: Target) -> np.ndarray:
        """Return draws that are right, shape (n, dim)."""
        if self.exact is not None:
            return self.exact(np.random.default_rng(1), EXACT)
        kernel = NUTS(target, adaptive_steps=True)
        mcmc = MCMC(kernel, OF_NUTS, 1000, num_chains=4, seed=99, progress_bar=False)
        return mcmc.run().positions.reshape(-1, target.dim)


def _gaussian(covariance: np.ndarray) -> KernelTarget:
    precision = probtorch.tensor(np.linalg.inv(covariance))
    dim = len(covariance)
    return KernelTarget(
        "",
        lambda: Target.from_density(lambda q: -0.5 * (q * (precision @ q)).sum(), dim),
        lambda rng, n: rng.multivariate_normal(np.zeros(dim), covariance, n),
    )


def _student(q):
    return -2.5 * probtorch.log1p(q * q / 4.0).sum()


def _log_gamma(q):
    return (0.5 * q - probtorch.exp(q)).sum()


def _banana(q):
    bent = q[2:] - q[:2] ** 2
    return -0.5 * (q[:2] ** 2).sum() - 2.0 * (bent**2).sum()


def _banana_draws(rng, n):
    x = rng.normal(size=(n, 2))
    return np.concatenate([x, x**2 + 0.5 * rng.normal(size=(n, 2))], axis=1)


def _funnel(q):
    v, x = q[0], q[1:]
    return -(v * v) / 18.0 - 2.0 * v - 0.5 * (x * x).sum() * probtorch.exp(-v)


def _funnel_draws(rng, n):
    v = 3.0 * rng.normal(size=(n, 1))
    return np.concatenate([v, np.exp(0.5 * v) * rng.normal(size=(n, 4))], axis=1)


def _two_modes(q):
    left, right = -0.5 * (q[0] + 2.5) ** 2, -0.5 * (q[0] - 2.5) ** 2
    return probtorch.logaddexp(left, right) - 0.5 * q[1] ** 2


def _two_modes_draws(rng, n):
    return rng.normal(size=(n, 2)) + np.stack([rng.choice([-2.5, 2.5], n), np.zeros(n)], axis=1)


Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def _eight_schools(sigma, y):
    mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
    tau = probtorch.sample("tau", dist.HalfCauchy(5.0))
    with probtorch.plate("schools", 8):
        z = probtorch.sample("z", dist.Normal(0.0, 1.0))
        probtorch.sample("y", dist.Normal(mu + tau * z, sigma), obs=y)


def _logistic(x, y):
    w = probtorch.sample("w", dist.Normal(0.0, 2.0).expand([5]).to_event(1))
    with probtorch.plate("rows", 100):
        probtorch.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def logistic_data() -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the logistic regression, and what was observed."""
    rng = np.random.default_rng(100)
    x = rng.normal(size=(100, 5))
    chance = 1.0 / (1.0 + np.exp(-(x @ np.array([1.0, -2.0, 0.5, 0.0, 1.5]))))
    return x, (rng.random(100) < chance).astype(np.float64)


def _logistic_target() -> Target:
    x, y = logistic_data()
    return Target.from_model(_logistic, probtorch.tensor(x), probtorch.tensor(y))


def _eight_schools_target() -> Target:
    return Target.from_model(_eight_schools, probtorch.tensor(SIGMA), probtorch.tensor(Y))


def _named(statement: str, target: KernelTarget) -> KernelTarget:
    return KernelTarget(statement, target.make, target.exact)


_APART = np.abs(np.subtract.outer(np.arange(10), np.arange(10)))
TARGETS = {
    "normal": _named("10 standard normals", _gaussian(np.eye(10))),
    "scales": _named(
        "10 normals, standard deviations from 0.01 to 100",
        _gaussian(np.diag(np.logspace(-4.0, 4.0, 10))),
    ),
    "correlated": _named(
        "10 normals, neighbours with a correlation of 0.95", _gaussian(0.95**_APART)
    ),
    "heavy": KernelTarget(
        "10 Student's t with 4 degrees of freedom",
        lambda: Target.from_density(_student, 10),
        lambda rng, n: rng.standard_t(4, size=(n, 10)),
    ),
    "skewed": KernelTarget(
        "5 logarithms of Gamma(0.5, 1)",
        lambda: Target.from_density(_log_gamma, 5),
        lambda rng, n: np.log(rng.gamma(0.5, size=(n, 5))),
    ),
    "banana": KernelTarget(
        "x ~ N(0, 1), y ~ N(x^2, 0.5), two such pairs",
        lambda: Target.from_density(_banana, 4),
        _banana_draws,
    ),
    "funnel": KernelTarget(
        "v ~ N(0, 3), x ~ N(0, exp(v / 2)), 4 of them",
        lambda: Target.from_density(_funnel, 5),
        _funnel_draws,
    ),
    "two modes": KernelTarget(
        "a normal and another, 5 standard deviations apart, in 2 dimensions",
        lambda: Target.from_density(_two_modes, 2),
        _two_modes_draws,
    ),
    "schools": KernelTarget("eight schools, not centred, 10 coordinates", _eight_schools_target),
    "logistic": KernelTarget("logistic regression, 100 rows, 5 weights", _logistic_target),
}
