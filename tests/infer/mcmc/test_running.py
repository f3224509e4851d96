"""R-hat and effective sizes of running chains, against their formulas and closed forms."""

import numpy as np
import pytest
from scipy.signal import lfilter

from probtorch.infer.mcmc import running
from probtorch.infer.mcmc.running import BATCHES, BatchMoments, RunningTrace, convergence
from tests.infer.watched import watched


def autoregressive(coefficient, draws, chains, seed):
    """Stationary chains (chains, draws) whose effective size is draws (1 - c) / (1 + c)."""
    rng = np.random.default_rng(seed)
    start = rng.normal(size=(chains, 1))
    noise = np.sqrt(1 - coefficient**2) * rng.normal(size=(chains, draws))
    return lfilter([1.0], [1.0, -coefficient], noise, axis=1, zi=coefficient * start)[0]


def moments_of(rows, parts):
    found = BatchMoments(rows.shape[1])
    for part in np.split(rows, parts):
        found.add(part)
    return found


def test_moments_are_those_of_the_batches_however_draws_come():
    rng = np.random.default_rng(0)
    rows = 5.0 + rng.normal(size=(1000, 3))
    whole, parts = moments_of(rows, []), moments_of(rows, np.unique(rng.integers(0, 1000, 90)))
    assert whole.length == 16 and whole.count == 62
    batches = rows[: 62 * 16].reshape(62, 16, 3)
    for found in (whole, parts, whole.copy()):
        means, squares = found.full()
        np.testing.assert_allclose(means, batches.mean(axis=1), rtol=1e-12)
        np.testing.assert_allclose(squares, 16 * batches.var(axis=1), rtol=1e-10)
    again = BatchMoments(3)
    again.restore(moments_of(rows[:333], [5, 100]).snapshot())
    again.add(rows[333:])
    np.testing.assert_allclose(again.full(), whole.full(), rtol=1e-10)


def test_split_rhat_is_its_formula():
    rng = np.random.default_rng(1)
    draws = (
        rng.normal(size=(4, 1024, 2)) + np.array([[0.0, 0.0], [0, 0], [0, 0], [0, 1.0]])[:, None]
    )
    found, _ = convergence([moments_of(chain, [10, 700]) for chain in draws])
    halves = draws.reshape(8, 512, 2)
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    expected = np.sqrt((511 / 512 * within + halves.mean(axis=1).var(axis=0, ddof=1)) / within)
    # 1024 draws are 64 batches of 16, joined in pairs when the next comes: halves are exact.
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert found[0] < 1.01 < 1.05 < found[1]


@pytest.mark.parametrize("coefficient", [0.0, 0.9, -0.5])
def test_effective_size_is_that_of_autoregressive_chains(coefficient):
    """Batch means of 4 chains with 32 to 64 batches each err by 12 % at most (one sd)."""
    draws = autoregressive(coefficient, 40_000, 4, seed=2)
    rhat, ess = convergence([moments_of(chain[:, None], [777]) for chain in draws])
    expected = draws.size * (1 - coefficient) / (1 + coefficient)
    assert rhat < 1.01 and abs(ess / expected - 1.0) < 0.5  # four standard deviations


def test_chains_apart_have_few_effective_draws_and_members_are_chains():
    draws = np.random.default_rng(3).normal(size=(2, 2000, 1)) + np.array([0.0, 5.0])[:, None, None]
    apart = [moments_of(chain, []) for chain in draws]
    rhat, ess = convergence(apart)
    assert rhat > 3.0 and ess < 100.0
    ensemble = [moments_of(np.concatenate([draws[0], draws[1]], axis=1), [])]
    np.testing.assert_allclose(convergence(ensemble, members=2), (rhat, ess), rtol=1e-12)


def test_chains_of_other_lengths_are_compared_and_few_draws_or_constants_say_nothing():
    draws = np.random.default_rng(4).normal(size=(5000, 1))
    long, short = moments_of(draws[:4000], []), moments_of(draws[4000:4900], [])
    rhat, ess = convergence([long, short])
    assert rhat < 1.02 and 2500 < ess < 9000
    assert np.isnan(convergence([long, moments_of(draws[:5], [])])).all()
    assert np.isnan(convergence([moments_of(np.ones((500, 1)), [])])).all()


def test_a_trace_loses_nothing_to_those_who_look_at_it():
    """At most 64 means of equally many values; those that make no whole mean yet are left out."""
    values = np.random.default_rng(5).normal(size=500)
    trace = RunningTrace()

    def look():
        if not running._taking_in.locked():  # who comes then waits
            assert len(trace.values) <= BATCHES

    def tell():
        for value in values:
            trace.add(float(value))

    watched(tell, look, running)
    each = 8  # 500 values in fewer than 64 means
    whole = values[: len(values) // each * each].reshape(-1, each)
    np.testing.assert_allclose(trace.values, whole.mean(axis=1), rtol=1e-12)
