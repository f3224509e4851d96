"""Runs in the background: what a `RunHandle` tells, and that nothing it is told changes a draw."""

import pickle
import time
import warnings

import numpy as np
import pytest

from probtorch.diagnostics import InferenceWarning
from probtorch.errors import ArgumentError, InferenceError
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
    with pytest.raises(ArgumentError, match="one of them"):
        mcmc.run(until_ess=100, blocking=False)


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
