"""`posterior_sbc`: the posterior of both data sets, and draws that are not of the posterior."""

import functools

import numpy as np
import pytest
from scipy import stats

from probtorch.diagnostics import Draws
from probtorch.distributions import Bernoulli, Beta, Normal, Poisson
from probtorch.effects import deterministic, plate, sample
from probtorch.effects.handlers import condition, scale, trace
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import (
    MCMC,
    NUTS,
    SVI,
    AutoNormal,
    Gibbs,
    Importance,
    LaplaceApproximation,
    Target,
    init_to_sample,
    init_to_uniform,
)
from probtorch.infer.calibration.augmented import AugmentedTarget, Twice
from probtorch.infer.results import make_draws
from probtorch.optim import Adam
from probtorch.tensor import tensor
from probtorch.testing import posterior_sbc


def test_density_with_further_data_is_that_of_both():
    data = {"y": np.array([0.5, -1.0])}
    more = {"y": np.array([1.5, 2.0])}
    target = AugmentedTarget(two_rows, (), {}, more, data)
    for q in (-0.7, 1.2):
        exact = stats.norm.logpdf(q) + stats.norm.logpdf([0.5, -1.0, 1.5, 2.0], q, 0.5).sum()
        assert target.density.value_and_grad(np.array([q]))[0] == pytest.approx(exact, rel=1e-12)
    target.exchange({"y": np.array([0.0, 0.0])})
    exact = stats.norm.logpdf(1.0) + stats.norm.logpdf([0.5, -1.0, 0.0, 0.0], 1.0, 0.5).sum()
    assert target.density.value_and_grad(np.ones(1))[0] == pytest.approx(exact, rel=1e-12)


def two_rows(y=None):
    mu = sample("mu", Normal(0.0, 1.0))
    with plate("row", 2):
        sample("y", Normal(mu, 0.5), obs=y)


def exact_draws(scale, count=400):
    """Draws of the posterior of two rows, as wide as they are, or wider."""
    y = tensor([0.5, -1.0])
    target = Target.from_model(two_rows, y)
    precision = 1.0 + 2 / 0.25
    q = np.random.default_rng(3).normal(-0.5 / 0.25 / precision, scale * precision**-0.5, count)
    return make_draws(target, q.reshape(1, count, 1), {})


def test_posterior_is_calibrated_around_its_data_and_another_is_not():
    """The kernel is right; what differs are the draws that it is said to have made."""
    # Starts and metrics take most of the time of short runs; a right sampler needs neither.
    quick = functools.partial(NUTS, adapt_mass_matrix=False, init_strategy=init_to_uniform)
    settings = {"warmup_steps": 50, "num_samples": 31, "seed": 1, "progress_bar": False}
    right = posterior_sbc(exact_draws(1.0), quick, 40, **settings)
    assert right.calibrated and right.replications == 40
    wrong = posterior_sbc(exact_draws(3.0), quick, 40, **settings)
    assert not wrong.calibrated and "mu" in wrong.ranks


def test_posterior_calibration_needs_a_model_and_data():
    with pytest.raises(InferenceError, match=r"(?s)know their model.*mcmc\.draws"):
        posterior_sbc(Draws({"x": np.zeros((1, 100))}))
    with pytest.raises(ArgumentError, match=r"(?s)at least 500 draws.*400 draws"):
        posterior_sbc(exact_draws(1.0), replications=500)


# ------------------------------------------------------------------------------------ any engine


def exact_given_both(args, data, seed, *, names=("first/y", "y")):
    """Draws of the posterior of `two_rows` given what is named, by its closed form."""
    y = np.concatenate([data[name] for name in names])
    precision = 1.0 + len(y) / 0.25
    rng = np.random.default_rng([seed.initial_seed(), seed.stream])
    return {"mu": rng.normal(y.sum() / 0.25 / precision, precision**-0.5, 31)}


def test_model_of_both_data_sets_has_their_density():
    """A model with a discrete site that is summed out for each set, and one that is its own."""
    data = {"y": np.array([0.5, -1.0])}
    more = {"y": np.array([1.5, 2.0])}
    for model, names, sites in (
        (two_rows, ["mu"], ["mu", "y", "first/y"]),
        (two_kinds, ["share", "loc"], ["share", "loc", "twice", "z", "y"]),
    ):
        y = tensor(data["y"])
        twice = condition(Twice(model, names), {"y": tensor(more["y"])})
        target = Target.from_model(twice, y)
        expected = AugmentedTarget(model, (y,), {}, more, data)
        q = np.linspace(-0.7, 1.2, target.dim)
        found, right = (t.density.value_and_grad(q) for t in (target, expected))
        np.testing.assert_allclose(found[0], right[0], rtol=1e-10)
        np.testing.assert_allclose(found[1], right[1], rtol=1e-8)
        with trace() as seen:
            twice(y)
        assert set(sites) <= set(seen)


def two_kinds(y=None):
    share = sample("share", Beta(2.0, 2.0))
    loc = sample("loc", Normal(0.0, 1.0))
    deterministic("twice", 2.0 * loc)
    with plate("row", 2):
        z = sample("z", Bernoulli(share))
        sample("y", Normal(loc + 2.0 * z, 0.7), obs=y)


def weakened(model):
    """An engine for something else: a tenth of prior and likelihood."""
    return LaplaceApproximation(scale(model, 0.1), num_starts=1)


@pytest.mark.parametrize(
    "engine, right",
    [
        (lambda m: LaplaceApproximation(m, num_starts=1), True),
        (weakened, False),
        (lambda m: Importance(m, num_samples=2000), True),
        pytest.param(lambda m: SVI(m, AutoNormal(m), Adam, lr=0.05), True, marks=pytest.mark.slow),
    ],
    ids=["Laplace", "Laplace of another density", "Importance", "SVI"],
)
def test_any_engine_is_calibrated_if_it_is_right(engine, right):
    settings = {"num_samples": 31, "num_steps": 150, "seed": 1, "progress_bar": False}
    result = posterior_sbc(exact_draws(1.0), engine, 40, level=1e-4, **settings)
    assert not result.failed
    assert result.calibrated == right, result


@pytest.mark.parametrize("names, right", [(("first/y", "y"), True), (("y",) * 6, False)])
def test_function_gets_both_data_sets(names, right):
    result = posterior_sbc(
        exact_draws(1.0),
        replications=100,
        posterior=functools.partial(exact_given_both, names=names),
        num_samples=31,
        level=1e-4,
        progress_bar=False,
    )
    assert result.calibrated == right, result


def seen_by_chance(y=None):
    """A count without bound, and what was seen of it: posterior counts are known by enumeration."""
    n = sample("n", Poisson(4.0))
    with plate("look", 3):
        sample("y", Poisson(0.1 + 0.4 * n), obs=y)


def count_draws(power=1.0):
    """Exact draws of the count given three looks, or of a power of its posterior."""
    y = np.array([2.0, 1.0, 3.0])
    gibbs = Gibbs(seen_by_chance, {"n": "metropolis"}, init_strategy=init_to_sample)
    draws = MCMC(gibbs, 200, 50, num_chains=1, seed=0, progress_bar=False).run(tensor(y))
    n = np.arange(60)
    log = stats.poisson.logpmf(n, 4.0) + stats.poisson.logpmf(y[:, None], 0.1 + 0.4 * n).sum(axis=0)
    weights = np.exp(power * (log - log.max()))
    chosen = np.random.default_rng(1).choice(n, 400, p=weights / weights.sum())
    target = draws.target
    points = [target.unconstrain({"n": np.float64(k)}) for k in chosen]
    return make_draws(target, np.stack(points)[None], {})


def test_discrete_sites_of_the_draws_are_parameters():
    gibbs = functools.partial(Gibbs, blocks={"n": "metropolis"}, init_strategy=init_to_sample)
    settings = {"num_samples": 31, "warmup_steps": 30, "level": 1e-4, "progress_bar": False}
    right = posterior_sbc(count_draws(), gibbs, 30, thinning=4, **settings)
    assert right.calibrated and set(right.ranks) == {"n", "log_likelihood"}
    wrong = posterior_sbc(count_draws(0.05), gibbs, 30, thinning=4, **settings)
    assert not wrong.calibrated


def test_discrete_sites_that_are_not_in_the_draws_are_asked_for():
    draws = MCMC(NUTS(two_kinds), 100, 100, num_chains=1, seed=0, progress_bar=False)
    draws.diagnose = False
    found = draws.run(tensor([0.5, -1.0]))
    with pytest.raises(ArgumentError, match=r"(?s)draws of all sites that are moved, 'z' too"):
        posterior_sbc(found, Gibbs, 20)
    with pytest.raises(ArgumentError, match=r"(?s)posterior_sbc\(kernel\).*method run"):
        posterior_sbc(found, 3)
