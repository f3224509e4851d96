"""A regression that explains a given share of the variance, by its prior predictive draws."""

import math

import numpy as np
import pytest

from probtorch.distributions import Normal
from probtorch.effects import R2D2M2CP, handlers, plate, sample
from probtorch.errors import ArgumentError, DomainError
from probtorch.infer import MCMC, NUTS
from probtorch.tensor import tensor
from probtorch.testing import assert_close

INPUTS = tensor(np.array([1.0, 2.0, 0.5]))


def drawn(n=4000, **options):
    """Residual scales and coefficients of draws from the prior."""
    out = []
    for seed in range(n):
        with handlers.seed(rng_seed=seed):
            out.append([v.numpy() for v in R2D2M2CP("b", 3.0, INPUTS, **options)])
    sigma, b = zip(*out, strict=True)
    return np.stack(sigma), np.stack(b)


@pytest.mark.parametrize("centered", [False, True])
def test_coefficients_have_their_part_of_the_variance_and_their_sign(centered):
    n, parts = 4000, np.array([0.2, 0.5, 0.3])
    signs = np.array([0.5, 0.9, 0.2])
    sigma, b = drawn(n, r2=0.6, variance_explained=parts, positive_probs=signs, centered=centered)
    assert_close(sigma, np.full(n, math.sqrt(0.4) * 3.0))
    squares = (b * INPUTS.numpy()) ** 2
    error = squares.std(0) / math.sqrt(n)
    assert (np.abs(squares.mean(0) - parts * 0.6 * 9.0) < 5.2 * error).all()
    error = np.sqrt(signs * (1 - signs) / n)
    assert (np.abs((b > 0).mean(0) - signs) < 5.2 * error).all()


def test_shares_and_parts_may_be_random():
    options = {"r2": 0.6, "r2_std": 0.1, "positive_probs": 0.7, "positive_probs_std": 0.2}
    model = lambda: R2D2M2CP("b", 3.0, INPUTS, importance_concentration=5.0, **options)
    with handlers.seed(rng_seed=1):
        trace = handlers.trace(model).get_trace()
    assert {"b_r2", "b_importance", "b_positive", "b_raw", "b"} <= set(trace.nodes)
    assert_close(trace.nodes["b_r2"]["fn"].mean, 0.6)
    assert_close(trace.nodes["b_r2"]["fn"].stddev, 0.1)
    assert_close(trace.nodes["b_importance"]["fn"].concentration.sum(), 5.0)


def test_a_regression_is_fitted():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3))
    y = tensor(x @ [1.0, 0.0, -0.5] + 0.5 * rng.standard_normal(60))
    x = tensor(x)

    def model():
        sigma, b = R2D2M2CP(
            "b",
            y.std(),
            x.std(0),
            r2=0.7,
            r2_std=0.15,
            variables_importance=[2.0, 2.0, 2.0],
            centered=True,
        )
        with plate("row", 60):
            sample("y", Normal(x @ b, sigma), obs=y)

    kernel = NUTS(model, target_accept_prob=0.95)
    mcmc = MCMC(kernel, num_samples=500, warmup_steps=400, num_chains=2, seed=3)
    mcmc.run()
    b = mcmc.get_samples()["b"].numpy().mean(0)
    assert np.abs(b - np.linalg.lstsq(x.numpy(), y.numpy(), rcond=None)[0]).max() < 0.15


def test_what_cannot_be_is_refused():
    with pytest.raises(DomainError, match="r2_std below"):
        R2D2M2CP("b", 1.0, INPUTS, r2=0.5, r2_std=0.6)
    with pytest.raises(ArgumentError, match="or neither"):
        R2D2M2CP("b", 1.0, INPUTS, r2=0.5, variables_importance=INPUTS, variance_explained=INPUTS)
