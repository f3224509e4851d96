"""Runs that end before their time, and runs in the background: what they keep and what they say."""

import contextlib
import itertools
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import probtorch
from probtorch.core.dtype import default_dtype_as
from probtorch.core.validation import validation_enabled, validation_in_force
from probtorch.distributions import Bernoulli, HalfNormal, Normal, StudentT
from probtorch.effects import factor, plate, sample
from probtorch.effects.handlers import condition
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import (
    ABC,
    ABCSMC,
    DADVI,
    MCMC,
    NUTS,
    SMC,
    SVGD,
    SVI,
    AutoNormal,
    Importance,
    ImportanceWarning,
    LaplaceApproximation,
    NaturalGradientVI,
    ParticleGibbs,
    Pathfinder,
    RandomWalk,
    RBFKernel,
    SteinVI,
    check,
    control,
    fit_many,
    in_background,
    loo_kfold,
)
from probtorch.infer.critique.checking import PARTS
from probtorch.optim import Adam
from probtorch.tensor import tensor
from probtorch.testing import sbc

Y = tensor(np.random.default_rng(0).normal(1.5, 1.0, 20))


def model(y):
    mu, scale = sample("mu", Normal(0.0, 2.0)), sample("scale", HalfNormal(1.0))
    with plate("row", 20):
        sample("y", Normal(mu, scale), obs=y)


def simulator():
    mu = sample("mu", Normal(0.0, 2.0))
    with plate("row", 20):
        sample("y", Normal(mu, 1.0))


def branching(y):
    loc = sample("loc", Normal(0.0, 2.0)) if sample("moved", Bernoulli(0.5)).item() else 0.0
    sample("y", Normal(loc, 1.0), obs=y)


def svi():
    return SVI(model, AutoNormal(model), Adam({"lr": 0.01}), seed=0)


def mean_of(data):
    return data["y"].mean()


ENDLESS = {
    "SVI": lambda: (svi().run, 10**9, Y),
    "SVGD": lambda: (SVGD(model, RBFKernel(), Adam({"lr": 0.01}), 4, seed=0).run, 10**9, Y),
    "SteinVI": lambda: (
        SteinVI(model, AutoNormal(model), Adam({"lr": 0.01}), RBFKernel()).run, 10**9, Y,
    ),
    "Importance": lambda: (Importance(branching, num_samples=10**9, seed=0).run, tensor(1.0)),
    "ParticleGibbs": lambda: (
        ParticleGibbs(branching, 2, 10**9, 0, seed=0, progress_bar=False).run, tensor(1.0),
    ),
    "ABCSMC": lambda: (
        ABCSMC(simulator, 100, summary=mean_of, epsilon=1e-12, min_acceptance=1e-9, seed=0,
               progress_bar=False).run, {"y": Y},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_an_engine_ends_when_its_time_is_up_and_keeps_what_there_is(name, monkeypatch):
    """By a clock that goes on by 0.1 s at each look."""
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: 0.1 * next(ticks))
    monkeypatch.setattr(control, "time", clock)
    run, *args = ENDLESS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run(*args, max_seconds=0.55)
    assert next(ticks) == 7
    fitted = name in ("SVI", "SteinVI")
    assert found.interrupted if fitted else found.attrs["interrupted"]
    if fitted:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert "interrupted" in repr(found) and found.draws(100).attrs["interrupted"]
    with pytest.raises(ArgumentError, match=rf"{name}.run\(max_seconds(.|\n)*a positive number"):
        run(*args, max_seconds=-1.0)


@pytest.mark.parametrize("name", ["SVI", "SVGD", "SteinVI"])
def test_a_run_whose_time_is_up_with_its_last_step_was_not_interrupted(name, monkeypatch):
    """By a clock that jumps once all steps are made."""
    run, _, data = ENDLESS[name]()
    owner = run.__self__
    clock = SimpleNamespace(perf_counter=lambda: 0.0 if owner.num_steps < 3 else 1e9)
    monkeypatch.setattr(control, "time", clock)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run(3, data, max_seconds=1.0, progress_bar=False)
    assert owner.num_steps == 3
    assert not (found.attrs["interrupted"] if name == "SVGD" else found.interrupted)


def wide_tails(y):
    sample("x", StudentT(1.0, 0.0, 0.01))


SEARCHES = {
    "Pathfinder": lambda: Pathfinder(model, max_gradients=10**9, seed=0).run,
    "NaturalGradientVI": lambda: NaturalGradientVI(model, num_steps=10**9, seed=0).run,
    "ABC": lambda: ABC(simulator, 5, 10**9, summary=mean_of, seed=0).run,
    "DADVI": lambda: DADVI(model, seed=0).run,
    "LaplaceApproximation": lambda: LaplaceApproximation(model, seed=0).run,
    "LaplaceApproximation on wide tails": lambda: LaplaceApproximation(wide_tails, seed=0).run,
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_ends_when_its_time_is_up_with_what_it_found_or_with_a_word(name, monkeypatch):
    """By a clock that goes on by 0.1 s at each look: 5 of them, or 200."""
    monkeypatch.setattr("probtorch.infer.sequential.abc.BLOCK", 20)
    data = {"y": Y} if name == "ABC" else Y

    def ended(seconds):
        ticks = itertools.count()
        clock = SimpleNamespace(perf_counter=lambda: 0.1 * next(ticks))
        monkeypatch.setattr(control, "time", clock)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return SEARCHES[name]()(data, max_seconds=seconds)

    if name in ("DADVI", "LaplaceApproximation on wide tails"):
        with pytest.raises(InferenceError, match=r"(?s)time for the search for the .*0.15"):
            ended(0.15)
        assert not ended(1e3).attrs["interrupted"]
        return
    found = ended(0.55)
    attrs = found.attrs
    assert attrs["interrupted"]
    if name == "NaturalGradientVI":
        assert attrs["num_steps"] == len(found.elbos) == 6
    if name == "ABC":
        assert attrs["num_simulations"] == 120 and found.num_draws == 1
    if name == "LaplaceApproximation":
        np.testing.assert_allclose(found.mean, ended(1e3).mean, atol=1e-6)
    if name == "Pathfinder":
        assert np.isfinite(found.elbos).all() and attrs["gradients"] < 500


def test_time_that_does_not_reach_is_an_error_with_the_cure():
    smc = SMC(RandomWalk(model), 50, seed=0, progress_bar=False)
    with pytest.raises(InferenceError, match=r"(?s)time for the first temp.*max_seconds=1e-"):
        smc.run(Y, max_seconds=1e-6)


def test_importance_draws_until_weights_are_worth_enough():
    for program, data in ((model, Y), (branching, tensor(2.0))):
        found = Importance(program, num_samples=100, seed=0).run(data, until_ess=150.0)
        assert found.ess >= 150.0 and found.log_ratios.size % 100 == 0
        # The draws are those of one longer run.
        whole = Importance(program, num_samples=found.log_ratios.size, seed=0).run(data)
        if program is branching:
            np.testing.assert_array_equal(whole.log_ratios, found.log_ratios)
            assert len(found.values) == found.log_ratios.size


def test_particle_gibbs_goes_on_until_there_is_enough():
    gibbs = ParticleGibbs(branching, 5, 20, 2, num_chains=2, seed=0, progress_bar=False)
    found = gibbs.run(tensor(1.0), until_ess=30.0)
    count = found.num_draws
    whole = ParticleGibbs(branching, 5, count, 2, num_chains=2, seed=0, progress_bar=False)
    assert count > 20 and not found.attrs["interrupted"]
    np.testing.assert_array_equal(found["moved"], whole.run(tensor(1.0))["moved"])


def test_a_run_in_the_background_waits_goes_on_and_ends_as_told():
    run = in_background(svi().run, 10**9, Y, progress_bar=False)
    while "steps" not in str(run.progress):
        time.sleep(0.01)
    run.pause()
    time.sleep(0.2)  # the steps of one native call
    before = str(run.progress).split(" steps")[0]
    time.sleep(0.1)
    assert run.paused and not run.finished and str(run.progress).split(" steps")[0] == before
    with pytest.raises(TimeoutError):
        run.result(timeout=0.01)
    found = run.abort()
    assert found.interrupted and run.finished and "finished" in repr(run)


def chains(seed):
    mcmc = MCMC(NUTS(model), 200, 100, num_chains=2, seed=seed, progress_bar=False)
    mcmc.diagnose = False
    return mcmc.run(Y)


def test_what_comes_after_chains_in_one_run_in_the_background_is_what_it_is_elsewhere():
    """The end of chains, or of their time, is not that of the run that they are a part of."""

    def many():
        endless = MCMC(NUTS(model), 10**8, 100, num_chains=1, seed=0, progress_bar=False)
        endless.diagnose = False
        with contextlib.suppress(InferenceError):  # of a machine that is busy
            endless.run(Y, max_seconds=0.2)
        with ThreadPoolExecutor(1) as pool:
            remote = MCMC(NUTS(model), 50, 50, num_chains=1, seed=0, executor=pool)
            remote.diagnose = False
            remote.run(Y)
        return chains(1), chains(2), svi().run(50, Y, progress_bar=False)

    *found, fitted = in_background(many).result()
    for draws, seed in zip(found, (1, 2)):
        np.testing.assert_array_equal(draws.positions, chains(seed).positions)
        assert not draws.attrs["interrupted"]
    assert len(fitted.losses) == 50 and not fitted.interrupted


def test_all_parts_of_a_check_in_the_background_are_made():
    found = in_background(check, model, Y, replications=2, num_samples=100).result()
    assert [part.title for part in found.sections] == list(PARTS)
    assert "could not be made" not in str(found)


def line(y=None):
    sample("y", Normal(sample("mu", Normal(0.0, 1.0)), 1.0), obs=y)


MANY = {
    "sbc": lambda: (sbc, line, NUTS, 10**5),
    "fit_many": lambda: (fit_many, model, [Y] * 2000),
    "fit_many, long": lambda: (lambda: fit_many(model, [Y], NUTS, num_samples=10**7),),
    "check": lambda: (lambda: check(line, 1.0, replications=10**5),),
    "loo_kfold": lambda: (lambda: loo_kfold(chains(0), 20, fit=endless),),
}


def endless(part):
    return MCMC(NUTS(part), 10**7, 100, num_chains=1, seed=0, progress_bar=False).run()


@pytest.mark.parametrize("name", MANY)
def test_what_makes_many_runs_ends_as_told_with_those_that_are_done(name):
    run = in_background(*MANY[name]())
    while "no progress" in str(run.progress):
        assert not run.wait(0.01)
    run.pause()
    assert run.paused and not run.wait(0.05)
    # Whether a part is done by now is the scheduler's affair.
    with contextlib.suppress(InferenceError):
        run.abort()
        assert name in ("sbc", "fit_many", "check")
    assert run.finished


def test_a_part_of_a_run_is_told_what_the_whole_is_told_and_not_the_other_way_round():
    whole = control.Control()
    whole.pause()
    time.sleep(0.02)
    whole.resume()
    part, other = control.Control(whole), control.Control(whole)
    assert whole.waited >= 0.02 and part.waited == 0.0  # it was before
    part.stop()
    assert part.stopped and not part.go_on() and other.go_on()
    assert not whole.stopped and not part.aborted
    whole.pause()
    assert other.paused
    whole.abort()
    assert other.stopped and other.aborted and not other.go_on() and not other.paused


def test_ctrl_c_ends_the_wait_for_a_run_and_not_the_run():
    """A second one, too; up to Python 3.12 `Thread.join` calls such a thread ended."""
    gate, main = threading.Event(), threading.main_thread().ident
    run = in_background(gate.wait)

    def wait():
        threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT]).start()
        run.result(timeout=60.0)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert not run.finished and "running" in repr(run)
    gate.set()
    assert run.result() is True and run.finished


def test_what_a_run_returns_and_raises_comes_with_its_result():
    expected = svi().run(30, Y, progress_bar=False)
    found = in_background(svi().run, 30, Y, progress_bar=False).result()
    np.testing.assert_array_equal(found.losses, expected.losses)
    with pytest.raises(ArgumentError, match="unknown argument 'z'"):
        in_background(svi().run, 30, Y, z=1).result()
    with pytest.raises(ArgumentError, match="the call is made there"):
        in_background(found)
    mcmc = MCMC(NUTS(model), 50, 50, num_chains=1, seed=0, progress_bar=False)
    mcmc.diagnose = False
    assert in_background(mcmc.run, Y).result().num_draws == 50


def test_importance_says_that_its_weights_never_got_there():
    with pytest.warns(ImportanceWarning, match=r"(?s)until_ess=300.*gave up.*from 300 draws"):
        found = Importance(tilted, num_samples=3, seed=0).run(until_ess=300.0)
    assert 200.0 < found.ess < 300.0 and not found.attrs["interrupted"]


def tilted():
    factor("slope", 0.3 * sample("x", Normal(0.0, 1.0)))


def test_modes_around_the_call_hold_in_the_run():
    def modes():
        made = probtorch.tensor(1.0).dtype
        return probtorch.is_grad_enabled(), made, validation_in_force()

    with probtorch.no_grad(), default_dtype_as("float64"), validation_enabled(False):
        expected = modes()
        found = in_background(modes).result()
    assert found == expected == (False, probtorch.float64, False)
    assert in_background(modes).result() == modes() == (True, probtorch.float32, True)


def test_handlers_around_the_call_hold_in_the_run():
    with condition(data={"mu": probtorch.tensor(0.5)}):
        found = in_background(Importance(model, num_samples=10, seed=0).run, Y).result()
    assert list(found.samples) == ["scale"]


@pytest.mark.parametrize("asked, fix", [("stop", "until_ess=400"), ("blocking", "in_background")])
def test_how_a_run_is_ended_is_told_to_who_asks_otherwise(asked, fix):
    with pytest.raises(ArgumentError, match=fix):
        SMC(RandomWalk(model), 50, seed=0).run(Y, **{asked: 1})
