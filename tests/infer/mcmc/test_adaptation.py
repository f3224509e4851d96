"""Step size and mass matrix adaptation against closed forms, NumPy and Stan's windows."""

import numpy as np
import pytest

from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.infer.mcmc.adaptation import (
    dual_averaging_start,
    dual_averaging_update,
    find_step_size,
    inverse_mass_of,
    moments_start,
    moments_update,
    schedule,
    windows,
)
from probtorch.infer.mcmc.hmc import HMCState
from probtorch.infer.mcmc.metrics import DiagonalMetric
from probtorch.infer.mcmc.randomness import key_of
from probtorch.testing.compare import assert_close
from tests.infer.mcmc.targets import eager, gaussian, number


@pytest.mark.parametrize("accept, target", [(0.6, 0.8), (0.95, 0.8), (0.7, 0.9)])
def test_dual_averaging_of_a_constant_acceptance_has_a_closed_form(accept, target):
    """With a constant error e the weighted mean after n updates is e * n / (n + 10)."""
    state = dual_averaging_start(number(0.5))
    for _ in range(25):
        state = dual_averaging_update(state, number(accept), target)
    n, error = 25, target - accept
    average = error * n / (n + 10.0)
    assert_close(state.error, average)
    assert_close(state.log_step, np.log(5.0) - average * np.sqrt(n) / 0.05)


def test_dual_averaging_keeps_the_weighted_mean_of_its_steps():
    """The weights k^-0.75 unroll to a sum; the first one is 1, so the start is forgotten."""
    state, steps = dual_averaging_start(number(0.1)), []
    accepts = np.random.default_rng(0).uniform(size=12)
    for a in accepts:
        state = dual_averaging_update(state, number(a), 0.8)
        steps.append(float(state.log_step._data))
    k = np.arange(1, 13)
    weights = k**-0.75 * np.append(np.cumprod((1.0 - k[1:] ** -0.75)[::-1])[::-1], 1.0)
    assert_close(weights.sum(), 1.0)
    assert_close(state.log_step_mean, weights @ steps)


def test_dual_averaging_finds_the_step_size_with_the_target_acceptance():
    """For acceptance exp(-step) the answer for a target of 0.8 is -log 0.8."""
    state = dual_averaging_start(number(1.0))
    rng = np.random.default_rng(1)
    for _ in range(2000):
        accept = np.exp(-np.exp(state.log_step._data)) + rng.uniform(-0.1, 0.1)
        state = dual_averaging_update(state, number(accept), 0.8)
    assert abs(np.exp(state.log_step_mean._data) / -np.log(0.8) - 1.0) < 0.05


@pytest.mark.parametrize("dense", [False, True])
def test_running_moments_are_those_of_all_positions(dense):
    positions = np.random.default_rng(2).normal(size=(40, 3)) @ np.triu(np.ones((3, 3))) + 100.0
    moments = moments_start(3, dense)
    for q in positions:
        moments = moments_update(moments, wrap(q))
    assert_close(moments.mean, positions.mean(axis=0))
    expected = np.cov(positions.T) if dense else positions.var(axis=0, ddof=1)
    assert_close(inverse_mass_of(moments, regularize=False), expected, rtol=1e-10)
    # Stan: weights n / (n + 5) and 5 / (n + 5), towards 1e-3.
    shrunk = 40.0 / 45.0 * expected + 1e-3 * 5.0 / 45.0 * (np.eye(3) if dense else 1.0)
    assert_close(inverse_mass_of(moments), shrunk, rtol=1e-10)


# Stan's windowed_adaptation.hpp, worked out by hand.
@pytest.mark.parametrize(
    "num_warmup, expected",
    [
        (1000, [(75, 100), (100, 150), (150, 250), (250, 450), (450, 950)]),
        (150, [(75, 100)]),
        (200, [(75, 100), (100, 150)]),
        (149, [(22, 135)]),
        (20, [(3, 18)]),
        (19, []),
        (5, []),
        (0, []),
    ],
)
def test_windows_are_those_of_stan(num_warmup, expected):
    assert windows(num_warmup) == expected


@pytest.mark.parametrize("num_warmup", [*range(60), 100, 149, 150, 151, 160, 175, 333, 1000, 5000])
def test_segments_fill_the_warmup_and_follow_the_windows(num_warmup):
    segments = schedule(num_warmup)
    assert sum(s.length for s in segments) == num_warmup
    assert all(s.length for s in segments)
    starts = np.cumsum([0, *(s.length for s in segments)])
    assert [(a, a + s.length) for a, s in zip(starts, segments) if s.collect] == windows(num_warmup)
    # A step size is looked for at the start and after each new mass matrix, nowhere else.
    fresh = [True, *(s.close for s in segments)]
    assert [s.search for s in segments] == fresh[: len(segments)]
    # No window that is too short to estimate a variance.
    assert all(s.length >= 15 for s in segments if s.close)


def test_schedule_leaves_out_what_is_not_adapted():
    assert [s.length for s in schedule(500, adapt_mass_matrix=False)] == [500]
    assert not any(s.search for s in schedule(500, adapt_step_size=False))
    assert not any(s.search for s in schedule(500, search=False))


@pytest.mark.parametrize("first", [1e-4, 0.3, 50.0])
def test_found_step_size_stands_where_acceptance_crosses(first):
    """Between the smallest scale, 0.1, and twice that, where leapfrog becomes unstable."""
    fn = gaussian(np.diag([1.0, 0.01]))
    position = np.array([0.3, 0.05])
    value, grad = fn(position)
    state = HMCState(wrap(position), number(value), wrap(grad), wrap(np.array(7)))
    key = key_of(Generator(5))
    found, counter = find_step_size(
        eager(fn), DiagonalMetric.unit(2), key, state.counter, state, number(first)
    )
    # Within a factor of two, as steps double.
    assert 0.05 < float(found._data) < 0.4
    assert np.log2(found._data / first) == round(np.log2(found._data / first))
    assert (int(counter._data) - 7) % 2 == 0 and int(counter._data) > 7
