"""Twenty posteriors for the warm-up suite: twelve of posteriordb, eight with data made up here.

The twelve are those of tests/posteriordb, with the data of ../shared/posteriordb (left out where
that folder is absent). The eight are of the kinds at which adaptation differs between samplers:
hierarchies, item response, predictors on unequal scales, a Gaussian with a few long directions,
Gaussian processes. All are functions without arguments that return ``(model, arguments)``.
"""

import json
from pathlib import Path

import numpy as np

import probtorch
import probtorch.distributions as dist
from benchmarks.peers import adapter
from benchmarks.problems import PROBLEMS
from probtorch import plate, sample
from tests.posteriordb.models import MODELS, as_arguments, flat

__all__ = ["POSTERIORS"]

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "posteriordb"


def _of_posteriordb(name):
    def make():
        return MODELS[name], as_arguments(json.loads((FOLDER / f"{name}.data.json").read_text()))

    return make


def rats():
    # Gelfand et al. (1990): weights of 30 rats at five ages, here with made-up weights.
    rng = np.random.default_rng(30)
    age = np.array([8.0, 15.0, 22.0, 29.0, 36.0]) - 22.0
    intercept, slope = 242.0 + 14.5 * rng.normal(size=(30, 1)), 6.2 + 0.5 * rng.normal(size=(30, 1))
    weight = intercept + slope * age + 6.1 * rng.normal(size=(30, 5))

    def model(age, weight):
        mu = sample("mu", dist.Normal(0.0, 100.0).expand([2]).to_event(1))
        scale_a = sample("scale_alpha", dist.HalfCauchy(25.0))
        scale_b = sample("scale_beta", dist.HalfCauchy(5.0))
        sigma = sample("sigma", dist.HalfCauchy(25.0))
        with plate("rat", 30, dim=-2):
            alpha = sample("alpha", dist.Normal(mu[0], scale_a))
            beta = sample("beta", dist.Normal(mu[1], scale_b))
            with plate("week", 5, dim=-1):
                sample("weight", dist.Normal(alpha + beta * age, sigma), obs=weight)

    return model, {"age": age, "weight": weight}


def radon():
    """Return 919 houses in 85 counties, intercepts not centred."""
    return adapter("probtorch").model(PROBLEMS["varying_intercepts"])


def irt_2pl():
    """Return 20 items answered by 100 people, with two parameters an item."""
    rng = np.random.default_rng(20)
    ability, easiness = rng.normal(size=100), rng.normal(size=(20, 1))
    slope = np.exp(0.4 * rng.normal(size=(20, 1)))
    y = rng.random((20, 100)) < 1.0 / (1.0 + np.exp(-slope * (ability - easiness)))

    def model(y):
        scale_theta = sample("scale_theta", dist.HalfCauchy(2.0))
        scale_a = sample("scale_a", dist.HalfCauchy(2.0))
        mu_b = sample("mu_b", dist.Normal(0.0, 5.0))
        scale_b = sample("scale_b", dist.HalfCauchy(2.0))
        people, items = plate("person", 100, dim=-1), plate("item", 20, dim=-2)
        with people:
            theta = sample("theta", dist.Normal(0.0, scale_theta))
        with items:
            a = sample("a", dist.LogNormal(0.0, scale_a))
            b = sample("b", dist.Normal(mu_b, scale_b))
        with people, items:
            sample("y", dist.Bernoulli(logits=a * (theta - b)), obs=y)

    return model, {"y": y.astype(np.float64)}


ELECTION_GROUPS = {"age": 4, "education": 4, "age_by_education": 16, "state": 51, "region": 5}


def election():
    """Return 1000 votes by state, region, age and education, as in Gelman and Hill (2007).

    Not centred: centred, its groups of four are funnels, in which effective sizes are luck.
    """
    rng = np.random.default_rng(1988)
    index = {name: rng.integers(0, n, 1000) for name, n in ELECTION_GROUPS.items()}
    index["age_by_education"] = 4 * index["age"] + index["education"]
    index["region"] = (index["state"] * 5) // 51
    black, female = rng.random(1000) < 0.1, rng.random(1000) < 0.5
    previous = (0.5 + 0.08 * rng.normal(size=51))[index["state"]]
    eta = 0.3 - 1.6 * black - 0.1 * female + 2.0 * (previous - 0.5)
    for name, n in ELECTION_GROUPS.items():
        eta = eta + (0.25 * rng.normal(size=n))[index[name]]
    y = rng.random(1000) < 1.0 / (1.0 + np.exp(-eta))
    x = np.stack([np.ones(1000), black, female, previous, female * black], -1).astype(np.float64)

    def model(x, y, **index):
        beta = sample("beta", dist.Normal(0.0, 10.0).expand([5]).to_event(1))
        eta = x @ beta
        for name, n in ELECTION_GROUPS.items():
            scale = sample(f"scale_{name}", dist.HalfNormal(1.0))
            with plate(name, n):
                z = sample(f"z_{name}", dist.Normal(0.0, 1.0))
            eta = eta + (scale * z)[index[name]]
        with plate("voter", 1000):
            sample("y", dist.Bernoulli(logits=eta), obs=y)

    return model, {"x": x, "y": y.astype(np.float64), **index}


def unscaled_regression():
    """Return twelve predictors on scales from 1 to 10 000, none of them centred, flat priors."""
    rng = np.random.default_rng(12)
    scales = np.logspace(0.0, 4.0, 12)
    x = scales * (rng.uniform(1.0, 4.0, 12) + rng.normal(size=(300, 12)))
    x[:, 1] = 0.8 * x[:, 1] + 0.6 * scales[1] * x[:, 0] / scales[0]
    y = 3.0 + (x / scales) @ rng.normal(size=12) + 2.0 * rng.normal(size=300)

    def model(x, y):
        intercept = sample("intercept", flat())
        beta = sample("beta", flat(12))
        sigma = sample("sigma", dist.HalfCauchy(10.0))
        with plate("row", 300):
            sample("y", dist.Normal(intercept + x @ beta, sigma), obs=y)

    return model, {"x": x, "y": y}


def low_rank_gaussian():
    """Return a Gaussian in 100 dimensions: sd 1, but 30 to 100 along five random directions."""
    rng = np.random.default_rng(100)
    directions = np.linalg.qr(rng.normal(size=(100, 5)))[0]
    # Precision and covariance are both the identity but for these directions.
    shrink = 1.0 - 1.0 / np.array([30.0, 40.0, 55.0, 75.0, 100.0]) ** 2
    precision = np.eye(100) - (directions * shrink) @ directions.T

    def model(precision):
        x = sample("x", flat(100))
        probtorch.factor("density", -0.5 * (x * (precision @ x)).sum())

    return model, {"precision": precision}


def latent_gp():
    """Return 30 observations whose log scale is a Gaussian process: stiff where it is long."""
    rng = np.random.default_rng(60)
    x = np.linspace(0.0, 10.0, 30)
    y = np.exp(0.5 + 0.9 * np.sin(x)) * rng.normal(size=30)

    def model(x, y):
        rho = sample("rho", dist.InverseGamma(5.0, 8.0))
        alpha = sample("alpha", dist.HalfNormal(1.0))
        mu = sample("mu", dist.Normal(0.0, 1.0))
        z = sample("z", dist.Normal(0.0, 1.0).expand([30]).to_event(1))
        squares = ((x[:, None] - x) / rho) ** 2
        covariance = (-0.5 * squares).exp() + 1e-6 * probtorch.eye(30, dtype=x.dtype)
        f = mu + alpha * (probtorch.linalg.cholesky(covariance) @ z)
        with plate("row", 30):
            sample("y", dist.Normal(0.0, f.exp()), obs=y)

    return model, {"x": x, "y": y}


def stochastic_volatility():
    """Return 200 returns whose log variance is an autoregression, innovations not centred."""
    rng = np.random.default_rng(200)
    h = np.zeros(200)
    for t in range(1, 200):
        h[t] = 0.95 * h[t - 1] + 0.25 * rng.normal()
    y = np.exp(0.5 * (h - 1.0)) * rng.normal(size=200)

    def model(y):
        mu = sample("mu", dist.Normal(0.0, 5.0))
        phi = 2.0 * sample("phi", dist.Beta(20.0, 1.5)) - 1.0
        sigma = sample("sigma", dist.HalfNormal(0.5))
        z = sample("z", dist.Normal(0.0, 1.0).expand([200]).to_event(1))
        h = z[0] * sigma / (1.0 - phi**2).sqrt()
        total = dist.Normal(0.0, (0.5 * (mu + h)).exp()).log_prob(y[0])
        for t in range(1, 200):
            h = phi * h + sigma * z[t]
            total = total + dist.Normal(0.0, (0.5 * (mu + h)).exp()).log_prob(y[t])
        probtorch.factor("y", total)

    return model, {"y": y}


OWN = (
    rats,
    radon,
    irt_2pl,
    election,
    unscaled_regression,
    low_rank_gaussian,
    latent_gp,
    stochastic_volatility,
)
POSTERIORS = {
    **{
        name.split("-")[1]: _of_posteriordb(name)
        for name in MODELS
        if (FOLDER / f"{name}.data.json").exists()
    },
    **{make.__name__: make for make in OWN},
}
