"""Runs in the background: what a `RunHandle` tells, and that nothing it is told changes a draw."""

import itertools
import pickle
import time
import warnings

import numpy as np
import pytest

from probtorch.diagnostics import InferenceWarning
from probtorch.errors import InferenceError
from probtorch.infer import MCMC, NUTS, Checkpoint, Target
from probtorch.serialization import load

# More draws than a test has time for.
ENDLESS = 10_000_000


def density(q):
    return -0.5 * (q * q).sum()


def mcmc_of(num_samples=300, warmup_steps=150, **settings):
    settings = {"num_chains": 2, "seed": 5, "progress_bar": False, **settings}
    mcmc = MCMC(NUTS(Target.from_density(density, 2)), num_samples, warmup_steps, **settings)
    mcmc.diagnose = False
    return mcmc


@pytest.fixture
def endless():
    """A run that ends when it is told, with some draws; it ends with the test."""
    handle = mcmc_of(ENDLESS, num_chains=1).run(blocking=False)
    until(lambda: handle.progress.chains[0].draws > 500)
    yield handle
    handle.abort()


def until(holds):
    deadline = time.monotonic() + 30.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_run_in_the_background_draws_what_one_that_blocks_draws():
    mcmc = mcmc_of()
    handle = mcmc.run(blocking=False)
    draws, expected = handle.result(), mcmc_of().run()
    for name, values in expected.sample_stats.items():
        assert np.array_equal(draws.sample_stats[name], values), name
    assert np.array_equal(draws["x"], expected["x"])
    assert handle.result() is draws is mcmc.draws and handle.abort() is draws
    assert handle.finished and handle.progress.share == 1.0
    assert [chain.phase for chain in handle.progress.chains] == ["done", "done"]
    assert mcmc.more(50).num_draws == 350
    assert pickle.loads(pickle.dumps(mcmc)).draws.num_draws == 350


def test_a_paused_run_stands_still_and_goes_on_as_if_it_had_not(endless):
    endless.pause()
    assert endless.paused and endless.progress.chains[0].phase == "paused"
    before = -1
    while before != (before := endless.progress.chains[0].iteration):
        time.sleep(0.2)
    seen = endless.peek()
    assert seen.num_draws == before - 150
    assert not endless.wait(0.1) and endless.progress.chains[0].iteration == before
    endless.resume()
    until(lambda: endless.progress.chains[0].iteration > before)
    draws = endless.abort()
    assert draws.num_draws > seen.num_draws and draws.attrs["interrupted"]
    assert np.array_equal(draws["x"][:, : seen.num_draws], seen["x"])
    assert np.array_equal(draws["x"][:, :300], mcmc_of(num_chains=1).run()["x"])
    assert draws.attrs["sampling_time"] < endless.progress.chains[0].seconds + 0.15


def test_progress_says_how_far_each_chain_is(endless):
    progress = endless.progress
    (chain,) = progress.chains
    assert chain.phase == "sampling" and chain.total == ENDLESS + 150
    assert chain.draws >= 500 and chain.divergences == 0 and 0.1 < chain.step_size < 3.0
    assert 0.0 < progress.share < 1.0 and "draws (" in str(progress)
    assert repr(endless).startswith("RunHandle(running: ")
    assert endless._repr_html_().count("<tr>") == 2


def test_a_run_without_draws_has_none_to_look_at_or_to_keep():
    handle = mcmc_of(warmup_steps=ENDLESS).run(blocking=False)
    assert handle.peek() is None
    assert handle.progress.chains[0].phase in ("waiting", "warm-up")
    with pytest.raises(InferenceError, match="time for the warm-up and some draws"):
        handle.abort()
    assert handle.finished


def test_an_mcmc_has_one_run_at_a_time():
    mcmc = mcmc_of(ENDLESS)
    handle = mcmc.run(blocking=False)
    with pytest.raises(InferenceError, match="a run in the background"):
        mcmc.run()
    with pytest.raises(TimeoutError, match="goes on"):
        handle.result(timeout=0.01)
    until(lambda: handle.progress.chains[-1].draws)
    handle.abort()
    mcmc.num_samples = 20
    assert mcmc.run().num_draws == 20


def test_what_goes_wrong_in_the_background_is_said_where_the_draws_are_asked_for():
    def fail(kernel, params, stage, i):
        if i == 170:
            raise ValueError("no more")

    handle = mcmc_of(hook_fn=fail).run(blocking=False)
    assert handle.wait(30.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="no more"):
            handle.result()
    assert handle.progress.chains[0].phase == "failed"
    mcmc = mcmc_of(20)
    mcmc.diagnose = True
    handle = mcmc.run(blocking=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        handle.result()
        handle.result()
    assert [w.filename for w in told] == [__file__] and told[0].category is not InferenceWarning
    assert issubclass(told[0].category, InferenceWarning)


def test_time_in_a_pause_does_not_count():
    handle = mcmc_of(ENDLESS, num_chains=1).run(blocking=False, max_seconds=0.4)
    handle.pause()
    assert not handle.wait(0.6)
    handle.resume()
    assert 0.0 < handle.result().attrs["sampling_time"] < 0.6


def test_a_paused_run_is_saved_as_far_as_it_is(tmp_path):
    handle = mcmc_of(ENDLESS).run(blocking=False, checkpoint=tmp_path, checkpoint_every=0.05)
    until(lambda: handle.progress.chains[0].draws)
    handle.pause()

    def saved():
        files = Checkpoint(tmp_path).files()
        return [chain["iteration"] for chain in load(files[0])["values"]["chains"]] if files else []

    until(lambda: saved() == [chain.iteration for chain in handle.progress.chains])
    handle.abort()


def test_a_run_until_enough_in_the_background_draws_what_one_that_blocks_draws(tmp_path):
    expected = mcmc_of(100, thinning=2).run(until_ess=1500)
    for saving in ({}, {"checkpoint": tmp_path}, {"checkpoint": tmp_path}):
        mcmc = mcmc_of(100, thinning=2)
        handle = mcmc.run(until_ess=1500, blocking=False, **saving)
        draws = handle.result()
        assert draws.num_draws == expected.num_draws > 200
        for name, values in expected.sample_stats.items():
            assert np.array_equal(draws.sample_stats[name], values), name
        assert np.array_equal(draws["x"], expected["x"]) and not draws.attrs["interrupted"]
        assert handle.result() is draws is mcmc.draws
        assert np.array_equal(handle.peek()["x"], draws["x"])
        progress = handle.progress
        assert progress.share == 1.0 and str(progress).startswith("beyond ")
        assert [chain.phase for chain in progress.chains] == ["done", "done"]
        assert [chain.draws for chain in progress.chains] == [draws.num_draws] * 2
        assert progress.chains[0].total == progress.chains[0].iteration
        assert mcmc.more(50).num_draws == draws.num_draws + 25


@pytest.fixture
def extended():
    """A run that is among the draws beyond those it began with; it ends with the test."""
    mcmc = mcmc_of(100)
    mcmc.hook_fn = lambda *_: time.sleep(1e-5)  # so that it can be looked at
    handle = mcmc.run(until_ess=10_000_000, blocking=False)
    until(lambda: handle.progress.chains[-1].draws > 500)
    yield handle
    handle.abort()


def test_a_run_beyond_its_first_draws_is_looked_at_paused_and_ended(extended):
    extended.pause()
    before = -1
    while before != (before := sum(chain.iteration for chain in extended.progress.chains)):
        time.sleep(0.2)
    progress, seen = extended.progress, extended.peek()
    assert seen.num_draws == min(chain.draws for chain in progress.chains) > 500
    assert "paused" in {chain.phase for chain in progress.chains} and not extended.wait(0.1)
    assert 0.0 < progress.share < 1.0 and progress.ess > 300
    extended.resume()
    until(lambda: extended.progress.chains[-1].draws > progress.chains[-1].draws)
    draws = extended.abort()
    assert draws.num_draws >= seen.num_draws and draws.attrs["interrupted"]
    assert extended.finished and not extended.paused
    expected = mcmc_of(draws.num_draws).run()
    assert np.array_equal(draws["x"], expected["x"])
    assert np.array_equal(seen["x"], expected["x"][:, : seen.num_draws])


def test_time_in_a_pause_beyond_the_first_draws_does_not_count():
    handle = mcmc_of(100, num_chains=1).run(until_ess=1e9, max_seconds=2.0, blocking=False)
    until(lambda: handle.progress.chains[0].draws > 100)
    handle.pause()
    assert not handle.wait(2.5)
    drawn = handle.progress.chains[0].draws
    handle.resume()
    draws = handle.result()
    assert draws.num_draws > 3 * drawn and draws.attrs["interrupted"]


def failing_after(count):
    """A hook that raises once, after so many draws."""
    made = itertools.count()

    def hook(kernel, params, stage, i):
        if stage == "Sample" and next(made) == count:
            raise ValueError("no more")

    return hook


def test_a_chain_that_fails_beyond_the_first_draws_is_told_where_they_are_asked_for():
    handle = mcmc_of(100, hook_fn=failing_after(250)).run(until_ess=1500, blocking=False)
    assert handle.wait(30.0)
    blocking = mcmc_of(100, hook_fn=failing_after(250))
    for ask in (handle.result, lambda: blocking.run(until_ess=1500)):
        with pytest.warns(InferenceWarning, match="(?s)chain 0 failed.*no more") as told:
            draws = ask()
        assert [w.filename for w in told] == [__file__]
        assert draws.num_draws == 100 and draws.attrs["interrupted"]
        assert np.array_equal(draws["x"], mcmc_of(100).run()["x"])
    assert [chain.phase for chain in handle.progress.chains] == ["failed", "done"]


def test_an_error_beyond_the_first_draws_leaves_an_mcmc_that_can_run_again():
    mcmc = mcmc_of(100, num_chains=1, hook_fn=failing_after(150))
    handle = mcmc.run(until_ess=1500, blocking=False)
    for _ in range(2):
        with pytest.raises(ValueError, match="no more"):
            handle.result()
    expected = mcmc_of(100, num_chains=1).run()
    assert np.array_equal(mcmc.draws["x"], expected["x"])  # as after a run that blocks
    mcmc.hook_fn = None
    assert np.array_equal(mcmc.run()["x"], expected["x"])
