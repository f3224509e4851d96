"""The models that systems are given, with their data: three for all suites, five for densities.

The models are stated here in words and in each adapter in that system's own style. Sites are
declared in the order listed under `layout`, so that unconstrained vectors agree between systems:
positive sites enter by their log.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["DENSITIES", "PROBLEMS", "Problem"]


@dataclass(frozen=True)
class Problem:
    """A model by name: what it is, its data, and what is compared.

    Attributes
    ----------
    name, statement : str
        For people.
    data : dict of ndarray
        Passed to the model by keyword.
    layout : dict of int
        Latent sites in order, with their sizes in the unconstrained vector.
    monitored : tuple of str
        Sites (latent or deterministic) whose posteriors are compared and whose ESS counts.
    """

    name: str
    statement: str
    data: dict[str, np.ndarray]
    layout: dict[str, int]
    monitored: tuple[str, ...]

    @property
    def dim(self) -> int:
        """Size of the unconstrained vector."""
        return sum(self.layout.values())


def _eight_schools() -> Problem:
    # Rubin (1981): effects of coaching on test scores, and their standard errors.
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    return Problem(
        "eight_schools",
        "mu ~ N(0, 5); tau ~ HalfCauchy(5); z_j ~ N(0, 1); y_j ~ N(mu + tau z_j, sigma_j)",
        {"y": y, "sigma": sigma},
        {"mu": 1, "tau": 1, "z": 8},
        ("mu", "tau", "theta"),
    )


def _logistic() -> Problem:
    rng = np.random.default_rng(5000)
    x = rng.normal(size=(5000, 50))
    beta = rng.normal(size=50) * 0.3
    y = (rng.random(5000) < 1.0 / (1.0 + np.exp(-(x @ beta)))).astype(np.float64)
    return Problem(
        "logistic",
        "beta ~ N(0, 1), 50 of them; y_i ~ Bernoulli(logit = x_i beta), 5000 rows",
        {"x": x, "y": y},
        {"beta": 50},
        ("beta",),
    )


def _varying_intercepts() -> Problem:
    # The size of the radon data: 919 houses in 85 counties.
    rng = np.random.default_rng(919)
    group = np.concatenate([np.arange(85), rng.integers(0, 85, 919 - 85)])
    x = rng.integers(0, 2, 919).astype(np.float64)
    alpha = 1.5 + 0.3 * rng.normal(size=85)
    y = alpha[group] - 0.7 * x + 0.75 * rng.normal(size=919)
    return Problem(
        "varying_intercepts",
        "mu, beta ~ N(0, 5); tau, sigma ~ HalfNormal(2); z_j ~ N(0, 1), 85 groups; "
        "y_i ~ N(mu + tau z_g(i) + beta x_i, sigma), 919 rows",
        {"x": x, "group": group, "y": y},
        {"mu": 1, "tau": 1, "beta": 1, "sigma": 1, "z": 85},
        ("mu", "tau", "beta", "sigma", "alpha"),
    )


def _many_rows() -> Problem:
    rng = np.random.default_rng(10_000)
    group = np.concatenate([np.arange(400), rng.integers(0, 400, 10_000 - 400)])
    x = rng.normal(size=10_000)
    y = rng.normal(size=400)[group] + 0.3 * x + rng.normal(size=10_000)
    return Problem(
        "many_rows",
        "varying_intercepts with 400 groups and 10 000 rows",
        {"x": x, "group": group, "y": y},
        {"mu": 1, "tau": 1, "beta": 1, "sigma": 1, "z": 400},
        ("mu", "tau", "beta", "sigma"),
    )


def _gaussian_process() -> Problem:
    rng = np.random.default_rng(200)
    x = np.sort(rng.uniform(-3.0, 3.0, 200))
    y = np.sin(2.0 * x) + 0.2 * rng.normal(size=200)
    return Problem(
        "gaussian_process",
        "rho, alpha, sigma ~ HalfNormal(1); y ~ N(0, alpha^2 exp(-(x - x')^2 / (2 rho^2)) + "
        "(sigma^2 + 1e-6) I), 200 points",
        {"x": x, "y": y},
        {"rho": 1, "alpha": 1, "sigma": 1},
        ("rho", "alpha", "sigma"),
    )


def _hidden_markov() -> Problem:
    rng = np.random.default_rng(1000)
    state, y = 0, np.zeros(1000)
    for t in range(1000):
        state = state if rng.random() < 0.9 else int(rng.integers(0, 5))
        y[t] = 2.0 * state + rng.normal()
    return Problem(
        "hidden_markov",
        "logits ~ N(0, 1), 5 x 5; loc ~ N(0, 5), 5 of them; states by softmax(logits), uniform "
        "at first, summed out; y_t ~ N(loc_state, 1), 1000 steps",
        {"y": y},
        {"logits": 25, "loc": 5},
        ("loc",),
    )


def _autoregression() -> Problem:
    rng = np.random.default_rng(5)
    y = np.zeros(5000)
    for t in range(5, 5000):
        y[t] = 0.1 + y[t - 5 : t] @ [0.05, 0.0, -0.1, 0.2, 0.5] + rng.normal()
    return Problem(
        "autoregression",
        "alpha ~ N(0, 1); beta_k ~ N(0, 1), 5 of them; sigma ~ HalfNormal(1); "
        "y_t ~ N(alpha + sum_k beta_k y_{t-5+k}, sigma), 5000 steps, step by step",
        {"y": y},
        {"alpha": 1, "beta": 5, "sigma": 1},
        ("alpha", "beta", "sigma"),
    )


def _softmax_regression() -> Problem:
    rng = np.random.default_rng(2000)
    x = rng.normal(size=(2000, 20))
    scores = x @ rng.normal(size=(20, 5)) + rng.gumbel(size=(2000, 5))
    return Problem(
        "softmax_regression",
        "weights ~ N(0, 1), 20 x 5; y_i ~ Categorical(logits = x_i weights), 2000 rows",
        {"x": x, "y": scores.argmax(-1)},
        {"weights": 100},
        ("weights",),
    )


PROBLEMS = {p.name: p for p in (_eight_schools(), _logistic(), _varying_intercepts())}
# For the density suite.
DENSITIES = PROBLEMS | {
    p.name: p
    for p in (
        _many_rows(),
        _gaussian_process(),
        _hidden_markov(),
        _autoregression(),
        _softmax_regression(),
    )
}
