"""Tensor Monte Carlo against the mean over all combinations of its draws, and exact sums."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

import probtorch
import probtorch.distributions as dist
from probtorch import float64
from probtorch.effects import handlers, param, plate, sample
from probtorch.errors import InferenceError
from probtorch.infer import SVI, TraceTMC_ELBO, config_enumerate
from probtorch.optim import Adam
from probtorch.tensor import tensor
from tests.infer.svi.programs import (
    DATA,
    gradients,
    normal_evidence,
    normal_guide,
    normal_model,
    normal_posterior,
)

ROWS = np.array([0.3, 1.4, -0.6])
MANY = {"enumerate": "parallel"}


def rows_model(y):
    a = sample("a", dist.Normal(tensor(0.0, dtype=float64), 1.0))
    with plate("rows", 3):
        b = sample("b", dist.Normal(a, 1.0))
        sample("y", dist.Normal(b, 0.5), obs=y)


def rows_guide(y):
    loc = param("loc", tensor(0.4, dtype=float64))
    a = sample("a", dist.Normal(loc, 1.2), infer={**MANY, "num_samples": 3})
    with plate("rows", 3):
        sample("b", dist.Normal(0.5 * a + 0.2 * loc, 0.8), infer={**MANY, "num_samples": 2})


def test_bound_is_the_mean_over_all_combinations_of_draws():
    objective = TraceTMC_ELBO()
    y = tensor(ROWS, dtype=float64)
    with handlers.seed(None, 3):
        (run,) = objective.runs(rows_model, rows_guide, (y,), {})
    a = run.guide["a"].value.detach().numpy().reshape(3)
    b = run.guide["b"].value.detach().numpy().reshape(2, 3, 3)  # draw of b, draw of a, row
    log_a = norm(0.0, 1.0).logpdf(a) - norm(0.4, 1.2).logpdf(a)
    log_b = norm(a[:, None], 1.0).logpdf(b) + norm(b, 0.5).logpdf(ROWS)
    log_b -= norm(0.5 * a[:, None] + 0.08, 0.8).logpdf(b)
    combinations = [
        log_a[i] + sum(log_b[k, i, r] for r, k in enumerate(ks))
        for i in range(3)
        for ks in itertools.product(range(2), repeat=3)
    ]
    expected = logsumexp(combinations) - math.log(3 * 2**3)
    np.testing.assert_allclose(objective.estimate(run).value.item(), expected, rtol=1e-10)


def test_gradient_is_that_of_the_bound_along_the_paths():
    objective, y, h = TraceTMC_ELBO(), tensor(ROWS, dtype=float64), 1e-5
    store = probtorch.effects.get_param_store()

    def loss():
        with handlers.seed(None, 5):
            return objective.loss(rows_model, rows_guide, y)

    loss()
    with handlers.seed(None, 5):
        objective.loss_and_grads(rows_model, rows_guide, y)
    found = gradients()["loc"]
    values = []
    for shift in (h, -h):
        store["loc"] = tensor(0.4 + shift, dtype=float64)
        values.append(loss())
    np.testing.assert_allclose(found, (values[0] - values[1]) / (2.0 * h), rtol=1e-6)


def test_one_site_has_the_importance_weighted_bound():
    guide = config_enumerate(normal_guide, "parallel", num_samples=6)
    objective = TraceTMC_ELBO()
    with handlers.seed(None, 0):
        (run,) = objective.runs(normal_model, guide, (DATA,), {})
    z = run.guide["mu"].value.detach().numpy().reshape(-1)
    mean, sd = normal_posterior()
    log_w = norm(mean, sd).logpdf(z) + normal_evidence()
    fn = run.guide["mu"].fn
    log_w -= norm(fn.loc.item(), fn.scale.detach().numpy().reshape(-1)[0]).logpdf(z)
    expected = logsumexp(log_w) - math.log(6)
    np.testing.assert_allclose(objective.estimate(run).value.item(), expected, rtol=1e-9)
    # With one draw it is the plain bound of that draw.
    single = config_enumerate(normal_guide, "parallel", num_samples=1)
    with handlers.seed(None, 0):
        (run,) = objective.runs(normal_model, single, (DATA,), {})
    z = run.guide["mu"].value.item()
    log_w = norm(mean, sd).logpdf(z) + normal_evidence() - run.guide["mu"].fn.log_prob(
        tensor(z, dtype=float64)).item()  # fmt: skip
    np.testing.assert_allclose(objective.estimate(run).value.item(), log_w, rtol=1e-9)


def mixture(y):
    p = sample("p", dist.Normal(tensor(0.3, dtype=float64), 1.0), infer={**MANY, "num_samples": 4})
    with plate("rows", 3):
        z = sample("z", dist.Bernoulli(logits=p))
        sample("y", dist.Normal(3.0 * z, 1.0), obs=y)


def test_draws_from_the_prior_and_exact_sums_in_the_model():
    objective, y = TraceTMC_ELBO(), tensor(ROWS, dtype=float64)
    with handlers.seed(None, 1):
        (run,) = objective.runs(mixture, lambda y: None, (y,), {})
    p = run.model["p"].value.detach().numpy().reshape(4, 1)
    share = 1.0 / (1.0 + np.exp(-p))
    each = np.log(share * norm(3.0, 1.0).pdf(ROWS) + (1.0 - share) * norm(0.0, 1.0).pdf(ROWS))
    expected = logsumexp(each.sum(1)) - math.log(4)
    np.testing.assert_allclose(objective.estimate(run).value.item(), expected, rtol=1e-9)


@pytest.mark.parametrize("at_once", [False, True])
def test_svi_learns_with_it(at_once):
    loss = TraceTMC_ELBO(num_particles=2, vectorize_particles=at_once)
    guide = config_enumerate(normal_guide, "parallel", num_samples=4)
    svi = SVI(normal_model, guide, Adam({"lr": 0.05}), loss, seed=0)
    result = svi.run(150, DATA, progress_bar=False)
    mean, sd = normal_posterior()
    assert abs(result.params["loc"].item() - mean) < 0.3 * sd
    # A lower bound in expectation, tight for so close a guide.
    assert abs(result.losses[-30:].mean() + normal_evidence()) < 0.1


def test_what_has_no_gradient_or_weight_is_refused():
    y = tensor(ROWS, dtype=float64)

    def discrete(y):
        with plate("rows", 3):
            sample("z", dist.Bernoulli(0.5), infer={**MANY, "num_samples": 2})

    def masked(y):
        a = sample("a", dist.Normal(0.0, 1.2))
        with plate("rows", 3), handlers.mask(mask=tensor([True, False, True])):
            sample("b", dist.Normal(0.5 * a, 0.8), infer={**MANY, "num_samples": 2})

    def chosen(y):
        sample("p", dist.Normal(0.0, 1.0))
        with plate("rows", 3):
            sample("z", dist.Bernoulli(0.5))

    def in_turn(y):
        sample("p", dist.Normal(0.0, 1.0))
        for i in plate("rows", 3):
            sample(f"z{i}", dist.Bernoulli(0.5), infer={"enumerate": "sequential"})

    def in_turn_model(y):
        p = sample("p", dist.Normal(0.0, 1.0))
        for i in plate("rows", 3):
            z = sample(f"z{i}", dist.Bernoulli(logits=p))
            sample(f"y{i}", dist.Normal(3.0 * z, 1.0), obs=y[i])

    objective = TraceTMC_ELBO(allow_missing=True)
    for model, guide, words in (
        (mixture, discrete, "pathwise gradient"),
        (mixture, chosen, "pathwise gradient"),
        (rows_model, masked, "a mask"),
        (in_turn_model, in_turn, "enumerated sequentially"),
    ):
        with pytest.raises(InferenceError, match=words):
            objective.loss(model, guide, y)
