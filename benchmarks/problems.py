"""The three models every system is given, with their data.

The models are stated here in words and in each adapter in that system's own style. Sites are
declared in the order listed under `layout`, so that unconstrained vectors agree between systems:
positive sites enter by their log.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["PROBLEMS", "Problem"]


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


PROBLEMS = {p.name: p for p in (_eight_schools(), _logistic(), _varying_intercepts())}
