"""Data whose support depends on a site summed out: values that exclude them have no mass."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from probtorch.distributions import (
    Beta,
    Binomial,
    Categorical,
    DiscreteUniform,
    Gamma,
    HalfNormal,
    Poisson,
    Uniform,
)
from probtorch.effects import markov, plate, sample
from probtorch.errors import InferenceError
from probtorch.factories import arange, ones
from probtorch.infer import MCMC, NUTS, SVI, AutoNormal, Target, TraceEnum_ELBO, infer_discrete
from probtorch.optim import Adam
from probtorch.tensor import tensor

COUNTS = np.array([[3, 1, 2], [0, 0, 1], [5, 3, 4], [2, 2, 0]])
LARGEST = 30
POINTS = np.array([[1.2, -0.4], [0.1, 2.0], [2.5, -3.0]])


def visits(y):
    """How many animals live at each site, if each visit sees some of them (Royle 2004)."""
    rate = sample("rate", Gamma(2.0, 0.5))
    chance = sample("chance", Beta(1.0, 1.0))
    with plate("site", len(y), dim=-2):
        number = sample("number", Categorical(logits=Poisson(rate).log_prob(arange(LARGEST + 1.0))))
        with plate("visit", y.shape[1], dim=-1):
            sample("y", Binomial(number, chance), obs=y)


def density_of_visits(y, q):
    rate, chance = np.exp(q[0]), 1.0 / (1.0 + np.exp(-q[1]))
    number = np.arange(LARGEST + 1)
    weights = stats.poisson.logpmf(number, rate)
    weights = weights - logsumexp(weights)
    rows = weights + stats.binom.logpmf(y[:, :, None], number, chance).sum(1)
    prior = stats.gamma.logpdf(rate, 2.0, scale=2.0) + q[0] + np.log(chance * (1.0 - chance))
    return prior + logsumexp(rows, axis=1).sum()


def test_counts_of_an_unknown_number_are_summed_over_the_numbers_that_allow_them():
    target = Target.from_model(visits, tensor(COUNTS))
    for q in POINTS:
        value, gradient = target.value_and_grad(q)
        assert value == pytest.approx(density_of_visits(COUNTS, q), rel=1e-12)
        for i in range(2):
            step = np.eye(2)[i] * 1e-6
            rise = density_of_visits(COUNTS, q + step) - density_of_visits(COUNTS, q - step)
            assert gradient[i] == pytest.approx(rise / 2e-6, rel=1e-5)
    assert len(target.density.paths) == 1


def test_bounds_that_move_with_a_latent_site_and_a_summed_one():
    def model(y):
        width = sample("width", HalfNormal(2.0))
        kind = sample("kind", Categorical(ones(3)))
        with plate("data", 2):
            sample("y", Uniform(0.0, width * (kind + 1)), obs=y)

    target = Target.from_model(model, tensor([0.5, 0.9]))
    for q in (1.0, 0.01, -0.2, -1.0, 0.5):
        width = np.exp(q)
        tops = width * np.arange(1, 4)
        expected = np.log((tops > 0.9) @ tops**-2.0 / 3.0) + stats.halfnorm.logpdf(width, scale=2.0)
        assert target.value_and_grad([q])[0] == pytest.approx(expected + q, rel=1e-12)
    assert target.value_and_grad([-5.0])[0] == -np.inf


def test_draws_of_the_number_are_never_below_the_counts():
    mcmc = MCMC(NUTS(visits), num_samples=100, warmup_steps=200, seed=1, progress_bar=False)
    mcmc.diagnose = False
    number = mcmc.run(tensor(COUNTS)).infer_discrete(seed=2)["number"]
    assert number.shape == (1, 100, 4, 1)
    assert (number >= COUNTS.max(1, keepdims=True)).all()


def survivors(y):
    """An open population: each year some of those of the year before are left (Dail and Madsen)."""
    rate = sample("rate", Gamma(2.0, 0.5))
    share = sample("share", Beta(1.0, 1.0))
    chance = sample("chance", Beta(1.0, 1.0))
    with plate("site", len(y)):
        number = sample("n_0", Categorical(logits=Poisson(rate).log_prob(arange(LARGEST + 1.0))))
        for t in markov(range(y.shape[1])):
            if t:
                number = sample(f"n_{t}", Binomial(number, share))
            sample(f"y_{t}", Binomial(number, chance), obs=y[:, t])


def density_of_survivors(y, q):
    rate, share, chance = np.exp(q[0]), *1.0 / (1.0 + np.exp(-np.array(q[1:])))
    number = np.arange(LARGEST + 1)
    prior = stats.gamma.logpdf(rate, 2.0, scale=2.0) + q[0]
    total = prior + np.log(share * (1.0 - share) * chance * (1.0 - chance))
    first = stats.poisson.pmf(number, rate)
    move = stats.binom.pmf(number, number[:, None], share)
    for row in y:
        forward = first / first.sum() * stats.binom.pmf(row[0], number, chance)
        for seen in row[1:]:
            forward = (forward @ move) * stats.binom.pmf(seen, number, chance)
        total += np.log(forward.sum())
    return total


def test_a_number_of_at_most_a_summed_number_is_summed_too():
    y = np.array([[5, 4, 3], [9, 2, 2], [0, 1, 0]])
    target = Target.from_model(survivors, tensor(y))
    for q in ([2.0, 0.3, -0.2], [0.5, -1.0, 2.0]):
        value = target.value_and_grad(np.array(q))[0]
        assert value == pytest.approx(density_of_survivors(y, q), rel=1e-12)
    mcmc = MCMC(NUTS(survivors), num_samples=50, warmup_steps=200, seed=1, progress_bar=False)
    mcmc.diagnose = False
    found = mcmc.run(tensor(y)).infer_discrete(seed=2)
    numbers = [found[f"n_{t}"] for t in range(3)]
    assert (numbers[1] <= numbers[0]).all() and (numbers[2] <= numbers[1]).all()
    assert all((n >= y[:, t]).all() for t, n in enumerate(numbers))


def test_svi_and_infer_discrete_take_them_too():
    guide = AutoNormal(visits)
    svi = SVI(visits, guide, Adam({"lr": 0.05}), TraceEnum_ELBO(), seed=0)
    losses = svi.run(100, tensor(COUNTS), progress_bar=False).losses
    assert np.isfinite(losses).all()

    def known(y):
        number = sample("number", DiscreteUniform(0, 5))
        sample("y", Binomial(number, 1.0), obs=y)
        return number

    assert infer_discrete(known, temperature=0)(tensor(3.0)).item() == 3


def test_a_count_that_no_number_allows_is_the_one_named():
    y = COUNTS.copy()
    y[2, 1] = LARGEST + 1
    mcmc = MCMC(NUTS(visits), num_samples=10, seed=1, progress_bar=False)
    named = r"(?s)'y': 1 of 12 values.*first 31 at index \(2, 1\)"
    with pytest.raises(InferenceError, match=named):
        mcmc.run(tensor(y))
