"""Posteriors that samplers get wrong: right, or a warning that names chains, and its cure works.

Each case has statistics with known truth. A run is wrong if one of them is further off than its
Monte Carlo error explains; then the run must have warned, and the run that follows the warning's
advice must be right or warn in its turn. Two seeds each by default, twenty behind the slow marker.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import ode
from probtorch.diagnostics.convergence import ess_mean
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.infer import MCMC, NUTS, Target
from tests.infer.test_path_starts import events_target

# Standard errors beyond which an estimate is wrong: chance 1e-6 for each.
Z = 5.0


@dataclass(frozen=True)
class Case:
    """A target, statistics of the draws with their truth, and what the warning advises."""

    target: Callable[[], Any]
    truth: dict[str, tuple[Callable[[Any], np.ndarray], Any]]
    cure: Callable[[int], Any] | None = None


def flat(fn, dim):
    return functools.cache(lambda: Target.from_density(fn, dim))


def coordinate(i, of=lambda x: x):
    return lambda draws: of(draws.positions[..., i])


def below(i, value):
    return coordinate(i, lambda x: (x < value).astype(float))


def off(draws, statistic, truth):
    """Return how many Monte Carlo standard errors an estimate is from the truth."""
    values = statistic(draws)
    truth = truth() if callable(truth) else truth
    size = min(float(ess_mean(values)), values.size)
    return abs(values.mean() - truth) / (max(values.std(), 1e-3) / np.sqrt(size))


# --------------------------------------------------------------------------------------- the cases


def funnel(q):
    v, x = q[0], q[1:]
    return -(v * v) / 18.0 - 4.5 * v - 0.5 * (x * x).sum() * (-v).exp()


def ridge(q):
    """x ~ N(0, 1), y ~ N(x^2, 0.05): a bent ridge."""
    bent = (q[1] - q[0] * q[0]) / 0.05
    return -0.5 * q[0] * q[0] - 0.5 * bent * bent


def cauchy(q):
    return -(1.0 + q * q).log().sum()


def modes(q):
    """Two normals, 16 standard deviations apart, of equal weight."""
    a, b = -0.5 * ((q - 8.0) ** 2).sum(), -0.5 * ((q + 8.0) ** 2).sum()
    return probtorch.logaddexp(a, b)


POINTS = np.linspace(0.0, 10.0, 25)
KERNEL = np.exp(-0.5 * (np.subtract.outer(POINTS, POINTS) / 1.5) ** 2) + 1e-3 * np.eye(25)


def log_scales(y, centred):
    """Noise whose log scale is a Gaussian process: stiff where it is written centred."""
    if centred:
        f = probtorch.sample("f", dist.MultivariateNormal(np.zeros(25), covariance_matrix=KERNEL))
    else:
        z = probtorch.sample("z", dist.Normal(0.0, 1.0).expand([25]).to_event(1))
        f = probtorch.deterministic("f", probtorch.tensor(np.linalg.cholesky(KERNEL)) @ z)
    with probtorch.plate("point", 25):
        probtorch.sample("y", dist.Normal(0.0, f.exp()), obs=y)


@functools.cache
def log_scales_target(centred=True):
    y = np.exp(np.sin(POINTS)) * np.random.default_rng(3).normal(size=25)
    return Target.from_model(log_scales, probtorch.tensor(y), centred)


@functools.cache
def log_scales_truth():
    """Means of the first and the tenth log scale, by a long run of the easy spelling."""
    mcmc = MCMC(NUTS(log_scales_target(False)), 8000, num_chains=4, seed=0, progress_bar=False)
    return mcmc.run()["f"].mean(axis=(0, 1))


def site(name, i):
    return lambda draws: draws[name][..., i]


def decay(y, times):
    """Exponential decay by a solver, whose rate is infeasible where it is large."""
    rate = probtorch.sample("rate", dist.LogNormal(0.0, 2.0))
    x = ode.odeint(lambda t, x: -rate * x, probtorch.ones(1), times, rtol=1e-6, atol=1e-8)
    with probtorch.plate("time", len(y)):
        probtorch.sample("y", dist.Normal(x[1:, 0], 0.05), obs=y)


@functools.cache
def decay_target():
    times = np.linspace(0.0, 2.0, 9)
    rng = np.random.default_rng(0)
    y = np.exp(-0.7 * times[1:]) + 0.05 * rng.normal(size=8)
    return Target.from_model(decay, probtorch.tensor(y), probtorch.tensor(times))


def decay_truth():
    times = np.linspace(0.0, 2.0, 9)[1:]
    y = np.exp(-0.7 * times) + 0.05 * np.random.default_rng(0).normal(size=8)
    u = np.linspace(-6.0, 3.0, 40_001)
    fit = -0.5 * (((y - np.exp(-np.exp(u)[:, None] * times)) / 0.05) ** 2).sum(axis=1) - u**2 / 8.0
    weight = np.exp(fit - fit.max())
    return float((weight * u).sum() / weight.sum())


CASES = {
    "funnel": Case(
        flat(funnel, 10),
        {"mean": (coordinate(0), 0.0), "neck": (below(0, -3.0), 0.158655)},
        cure=lambda seed: NUTS(flat(funnel, 10)(), adaptive_steps=True, target_accept_prob=0.95),
    ),
    "ridge": Case(
        flat(ridge, 2),
        {"x": (coordinate(0), 0.0), "y": (coordinate(1), 1.0), "far": (below(1, 0.454936), 0.5)},
        cure=lambda seed: NUTS(flat(ridge, 2)(), target_accept_prob=0.99),
    ),
    "cauchy": Case(
        flat(cauchy, 3),
        {"quartile": (below(0, -1.0), 0.25), "tail": (below(1, 6.313752), 0.95)},
        cure=lambda seed: NUTS(flat(cauchy, 3)(), max_tree_depth=12),
    ),
    "modes": Case(flat(modes, 2), {"left": (below(0, 0.0), 0.5)}),
    "stiff": Case(
        log_scales_target,
        {
            "first": (site("f", 0), lambda: log_scales_truth()[0]),
            "tenth": (site("f", 9), lambda: log_scales_truth()[9]),
        },
        cure=lambda seed: NUTS(log_scales_target(), adaptive_steps=True),
    ),
    "solver": Case(decay_target, {"log rate": (coordinate(0), decay_truth())}),
}


def sampled(kernel, seed, draws=1000):
    """Draws of a run, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mcmc = MCMC(kernel, draws, num_chains=4, seed=seed, progress_bar=False)
        result = mcmc.run()
    return result, [str(w.message) for w in caught if issubclass(w.category, InferenceWarning)]


def check(name, seed):
    case = CASES[name]
    draws, told = sampled(NUTS(case.target()), seed)
    wrong = {key: off(draws, *what) for key, what in case.truth.items()}
    if max(wrong.values()) < Z:
        return "right", told
    assert told, f"{name}, seed {seed}: {wrong} and no warning"
    assert any("chain" in text for text in told)
    if case.cure is not None:
        draws, again = sampled(case.cure(seed), seed, 2000)
        wrong = {key: off(draws, *what) for key, what in case.truth.items()}
        assert max(wrong.values()) < Z or again, f"{name}, seed {seed}: the cure left {wrong}"
    return "told", told


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CASES)
def test_wrong_posteriors_are_told_of(name, seed):
    check(name, seed)


def false_modes(seed):
    """How many chains are far below the best one, where the true mode is 60 nats above a false."""
    draws, told = sampled(NUTS(events_target()), seed, 300)
    height = np.median(draws.sample_stats["lp"], axis=1)
    return int((height < height.max() - 20.0).sum()), told


@pytest.mark.parametrize("seed", range(2))
def test_no_chain_stays_in_a_false_mode_unseen(seed):
    lost, told = false_modes(seed)
    assert not lost or any("chain" in text for text in told)


def test_a_chain_in_a_false_mode_goes_on_from_where_another_stands():
    def logdensity(q):
        # A spike of weight e^-60 beside the posterior, both with sd 1.
        near, far = -0.5 * (q * q).sum(), -60.0 - 0.5 * ((q - 30.0) ** 2).sum()
        return probtorch.logaddexp(near, far)

    target = Target.from_density(logdensity, 2)
    starts = np.array([[0.0, 0.0], [30.0, 30.0], [1.0, 0.0], [0.0, 1.0]])
    mcmc = MCMC(NUTS(target), 1000, num_chains=4, seed=1, progress_bar=False)
    draws = mcmc.run(init_params=starts)
    assert draws.attrs["moved_chains"] == draws.attrs["extended_chains"] == [1]
    assert np.abs(draws.positions).max() < 10.0
    again = MCMC(NUTS(target), 1000, num_chains=4, num_threads=1, seed=1, progress_bar=False)
    np.testing.assert_array_equal(again.run(init_params=starts).positions, draws.positions)


def test_modes_of_equal_weight_are_left_where_they_are_and_told():
    starts = np.array([[8.0, 8.0], [-8.0, -8.0], [8.0, 8.0], [8.0, 8.0]])
    mcmc = MCMC(NUTS(CASES["modes"].target()), 500, num_chains=4, seed=0, progress_bar=False)
    with pytest.warns(InferenceWarning, match="chains disagree") as caught:
        draws = mcmc.run(init_params=starts)
    assert "moved_chains" not in draws.attrs
    assert "by chain" in str(caught[0].message)


@pytest.mark.slow
def test_no_chain_stays_in_a_false_mode_unseen_in_twenty_runs():
    found = [false_modes(seed) for seed in range(2, 20)]
    assert all(told for lost, told in found if lost)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_wrong_posteriors_are_told_of_in_twenty_runs(name):
    for seed in range(2, 20):
        check(name, seed)
