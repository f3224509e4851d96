"""Step size adaptation against closed forms, and the course of a warm-up."""

import numpy as np
import pytest

from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.infer.mcmc.kernels.hmc import HMCState
from probtorch.infer.mcmc.metrics import DiagonalMetric
from probtorch.infer.mcmc.randomness import key_of
from probtorch.infer.mcmc.warm_up.adaptation import (
    dual_averaging_start,
    dual_averaging_update,
    find_step_size,
    mean_restarted,
    schedule,
    switches,
)
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
        steps.append(float(state.log_step.array))
    k = np.arange(1, 13)
    weights = k**-0.75 * np.append(np.cumprod((1.0 - k[1:] ** -0.75)[::-1])[::-1], 1.0)
    assert_close(weights.sum(), 1.0)
    assert_close(state.log_step_mean, weights @ steps)


def test_the_mean_forgets_the_steps_before_it_was_restarted():
    """The next step is the first of the mean; the steps themselves go on as they would have."""
    state = dual_averaging_start(number(0.1))
    for accept in (0.1, 0.2, 0.9):
        state = dual_averaging_update(state, number(accept), 0.8)
    after = dual_averaging_update(mean_restarted(state), number(0.7), 0.8)
    assert_close(after.log_step_mean, float(after.log_step.array))
    assert_close(after.log_step, dual_averaging_update(state, number(0.7), 0.8).log_step.array)


def test_dual_averaging_finds_the_step_size_with_the_target_acceptance():
    """For acceptance exp(-step) the answer for a target of 0.8 is -log 0.8."""
    state = dual_averaging_start(number(1.0))
    rng = np.random.default_rng(1)
    for _ in range(2000):
        accept = np.exp(-np.exp(state.log_step.array)) + rng.uniform(-0.1, 0.1)
        state = dual_averaging_update(state, number(accept), 0.8)
    assert abs(np.exp(state.log_step_mean.array) / -np.log(0.8) - 1.0) < 0.05


@pytest.mark.parametrize("num_warmup", [*range(60), 100, 149, 300, 333, 400, 1000, 5000])
def test_segments_fill_the_warmup_and_end_with_the_step_size_alone(num_warmup):
    segments = schedule(num_warmup)
    assert sum(s.length for s in segments) == num_warmup
    assert all(s.length for s in segments)
    ends = np.cumsum([s.length for s in segments])
    stop = num_warmup - max(int(0.15 * num_warmup), 1)
    assert [int(end) for end, s in zip(ends, segments) if s.switch] == switches(stop)
    # A step size is looked for at the start, nowhere else.
    assert [s.search for s in segments] == [True, *[False] * (len(segments) - 1)][: len(segments)]
    for end, segment in zip(ends, segments):
        assert segment.learn == segment.update == (end <= stop)
        assert not segment.switch or segment.choose
    # The mass matrix is set at the end of its part, and every few draws from the fifth on.
    if stop >= 5:
        assert next(s for end, s in zip(ends, segments) if end == stop).choose
        assert ends[0] <= 5
        # None beside the end of a window, so that up to 1.5 times a fifth lies between two.
        assert all(s.length <= max(15, 0.3 * end) for end, s in zip(ends, segments[:-1]))


@pytest.mark.parametrize("stop", [0, 5, 10, 50, 85, 255, 340, 850, 8500])
def test_windows_grow_and_the_last_estimate_has_most_of_the_draws(stop):
    found = switches(stop)
    assert (np.diff([0, *found], n=2) >= 0).all()
    # What is estimated at the end begins at the last switch but one.
    begin = found[-2] if len(found) > 1 else 0
    assert stop - begin >= 0.4 * stop


def test_schedule_leaves_out_what_is_not_adapted():
    assert [s.length for s in schedule(500, adapt_mass_matrix=False)] == [500]
    assert not any(s.search for s in schedule(500, adapt_step_size=False))
    assert schedule(500, adapt_step_size=False)[-1].update
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
    assert 0.05 < float(found.array) < 0.4
    assert np.log2(found.array / first) == round(np.log2(found.array / first))
    assert (int(counter.array) - 7) % 2 == 0 and int(counter.array) > 7


def test_the_search_for_a_step_size_is_one_leapfrog_step_of_a_program():
    """A second one, before the loop, took a tenth of the time to compile a sampler."""
    met = []

    def density(q):
        met.append(q)
        return -0.5 * (q * q).sum(), -q

    def search(first):
        q = wrap(np.ones(2))
        state = HMCState(q, *density(q), wrap(np.array(0)))
        return find_step_size(
            density, DiagonalMetric.unit(2), key_of(Generator(0)), state.counter, state, first
        )

    NativeProgram(search, number(0.1))
    assert len(met) == 1 + 1  # the state's own
