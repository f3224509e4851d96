"""Looks at runs in the background: what each engine has so far, and that no look changes a number.

Runs are looked at each time they ask whether to go on, and held where a look shows what a test
waits for: so nothing here depends on when who looks.
"""

import contextlib
import threading
import warnings

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch import distributions as dist
from probtorch.core.rng import default_generator
from probtorch.effects import deterministic, plate, sample
from probtorch.errors import InferenceError
from probtorch.infer import (
    ABC,
    ABCSMC,
    AIS,
    ASVGD,
    MCMC,
    NUTS,
    SMC,
    SVGD,
    SVI,
    AutoNormal,
    Importance,
    Involution,
    InvolutiveMCMC,
    NestedSampler,
    ParticleGibbs,
    Pathfinder,
    RandomWalk,
    RBFKernel,
    SteinVI,
    fit,
    in_background,
)
from probtorch.infer import control as controls
from probtorch.optim import Adam

pytestmark = pytest.mark.filterwarnings("ignore")  # of few draws

Y = probtorch.tensor(np.random.default_rng(0).normal(1.5, 1.0, 12))
QUIET = {"progress_bar": False}


def model(y):
    mu = sample("mu", dist.Normal(0.0, 2.0))
    scale = sample("scale", dist.HalfNormal(1.0))
    deterministic("precision", scale**-2.0)
    with plate("row", 12):
        sample("y", dist.Normal(mu, scale), obs=y)


def guarded(y):
    """At several draws at once, of which few have weight."""
    mu = sample("mu", dist.Normal(0.0, 2.0))
    with plate("row", 12):
        sample("y", dist.Normal(mu, 0.6), obs=y)


def branching(y):
    loc = (
        sample("loc", dist.Normal(0.0, 2.0)) if sample("moved", dist.Bernoulli(0.8)).item() else 0.0
    )
    with plate("row", 12):
        sample("y", dist.Normal(loc, 1.0), obs=y)


def simulator():
    mu = sample("mu", dist.Normal(0.0, 2.0))
    with plate("row", 12):
        sample("y", dist.Normal(mu, 1.0))


def mean_of(data):
    return data["y"].mean()


def adam():
    return Adam({"lr": 0.05})


def svgd(engine):
    return engine(model, RBFKernel(), adam(), 6, seed=0)


DRIFT = Involution.drift(0.3, of=("mu", "scale"))

# A call that runs an engine, with the steps that it is given if it is given any; and whether what
# it has so far is what the test waits for.
RUNS = {
    "SVI": (
        lambda steps=60: SVI(model, AutoNormal(model), adam(), seed=0).run(steps, Y, **QUIET),
        lambda found: len(found.losses) >= 5,
    ),
    "SVI, callback": (
        lambda steps=60: SVI(model, AutoNormal(model), adam(), seed=0).run(
            steps, Y, callback=lambda *_: None, **QUIET
        ),
        lambda found: len(found.losses) == 7,
    ),
    "SteinVI": (
        lambda steps=20: SteinVI(model, AutoNormal(model), adam(), RBFKernel(), 2, seed=0).run(
            steps, Y, **QUIET
        ),
        lambda found: len(found.losses) == 5,
    ),
    "SVGD": (
        lambda steps=30: svgd(SVGD).run(steps, Y, **QUIET),
        lambda found: found.attrs["num_steps"] == 11,
    ),
    "ASVGD": (
        lambda steps=33: svgd(ASVGD).run(steps, Y, **QUIET),
        lambda found: found.attrs["num_steps"] == 11,
    ),
    "SMC": (
        lambda: SMC(RandomWalk(model), 80, seed=0, **QUIET).run(Y),
        lambda found: len(found.temperatures) == 2,
    ),
    "SMC, waste-free": (
        lambda: SMC(RandomWalk(model), 80, num_steps=10, waste_free=True, seed=0, **QUIET).run(Y),
        lambda found: len(found.temperatures) == 2,
    ),
    "AIS": (
        lambda: AIS(RandomWalk(model), 80, seed=0, **QUIET).run(Y),
        lambda found: len(found.attrs["temperatures"]) == 4,
    ),
    "NestedSampler": (
        lambda: NestedSampler(model, 40, seed=0, **QUIET).run(Y),
        lambda found: found.attrs["num_points"] >= 100,
    ),
    "ParticleGibbs": (
        lambda: ParticleGibbs(model, 4, 9, 2, num_chains=2, seed=0, **QUIET).run(Y),
        lambda found: found.posterior["mu"].shape[:2] == (2, 3),
    ),
    "InvolutiveMCMC": (
        lambda: InvolutiveMCMC(model, [DRIFT], 9, 2, num_chains=2, seed=0, **QUIET).run(Y),
        lambda found: found.posterior["mu"].shape[:2] == (2, 3),
    ),
    "Importance": (
        lambda: Importance(guarded, num_samples=20, seed=0).run(Y, until_ess=12.0),
        lambda found: found.num_samples == 60,
    ),
    "Importance, one by one": (
        lambda: Importance(branching, num_samples=40, seed=0).run(Y),
        lambda found: found.num_samples == 25,
    ),
    "ABC": (
        lambda: ABC(simulator, 30, 3000, summary=mean_of, seed=0).run({"y": Y}),
        lambda found: found.attrs["num_simulations"] == 2000,
    ),
    "ABCSMC": (
        lambda: ABCSMC(simulator, 60, summary=mean_of, epsilon=0.05, seed=0, **QUIET).run({"y": Y}),
        lambda found: len(found.attrs["epsilons"]) == 3,
    ),
}
every = pytest.mark.parametrize("name", RUNS)


@contextlib.contextmanager
def held(run, ready, monkeypatch):
    """A run in the background that is looked at at each turn, and waits where a look is `ready`."""
    turn, there, looks = controls.Control.turn, threading.Event(), []

    def looking(self, loop):
        seen = loop.shown()
        looks.append(seen)
        if seen is not None and ready(seen) and not there.is_set():
            self.pause()
            there.set()
        return turn(self, loop)

    with monkeypatch.context() as m:
        m.setattr(controls.Control, "turn", looking)
        handle = in_background(run)
        assert there.wait(120.0), "the run was never there"
        try:
            yield handle, looks
        finally:
            handle.resume()
            handle.wait()


def arrays_of(found):
    """All numbers of a result, by name."""
    out = {}
    if hasattr(found, "losses"):
        out |= {"losses": found.losses}
        out |= {name: x.detach().numpy() for name, x in found.params.items()}
    elif hasattr(found, "log_ratios"):
        out |= {**found.samples, "log_ratios": found.log_ratios}
    else:
        out |= {**found.posterior, **{f"stat {n}": x for n, x in found.sample_stats.items()}}
    weighted = getattr(found, "weighted", None)
    return out | (
        {} if weighted is None else {f"all {n}": x for n, x in arrays_of(weighted).items()}
    )


def assert_same(found, expected):
    assert type(found) is type(expected)
    one, other = arrays_of(found), arrays_of(expected)
    assert one.keys() == other.keys()
    for name, x in one.items():
        np.testing.assert_array_equal(x, other[name], err_msg=name)


@every
def test_a_run_that_is_looked_at_at_each_turn_ends_as_one_that_is_not(name, monkeypatch):
    run, ready = RUNS[name]
    probtorch.manual_seed(3)
    expected = run()
    after = default_generator.get_state()
    probtorch.manual_seed(3)
    with held(run, ready, monkeypatch) as (handle, looks):
        first, second = handle.peek(), handle.peek()
        assert handle.paused and not handle.finished
        assert_same(first, second)
        then = {name: np.array(x) for name, x in arrays_of(first).items()}
    assert ready(first) and sum(seen is not None for seen in looks) >= 2
    assert_same(handle.result(), expected)
    assert default_generator.get_state() == after
    # What was seen stays as it was, and after the end there is the result.
    for key, x in arrays_of(first).items():
        np.testing.assert_array_equal(x, then[key])
    assert handle.peek() is handle.result()


@every
def test_what_is_seen_is_what_the_run_would_keep(name, monkeypatch):
    run, ready = RUNS[name]
    with held(run, ready, monkeypatch) as (handle, _):
        seen = handle.peek()
        if name == "AIS":
            with pytest.raises(InferenceError, match="the last temperature"):
                handle.abort()
            return
        kept = handle.abort()
    if name in ("SVGD", "ASVGD"):  # whose densities no step is taken for
        assert set(kept.sample_stats) == {"lp"} and not seen.sample_stats
        np.testing.assert_array_equal(seen.positions, kept.positions)
        np.testing.assert_array_equal(seen["scale"], kept["scale"])
    else:
        assert_same(seen, kept)
    assert seen.interrupted if hasattr(seen, "losses") else seen.attrs["interrupted"]


@pytest.mark.parametrize("name", ["SVI", "SVI, callback", "SteinVI", "SVGD"])
def test_steps_so_far_are_those_of_a_shorter_run(name, monkeypatch):
    run, ready = RUNS[name]
    with held(run, ready, monkeypatch) as (handle, _):
        seen = handle.peek()
        steps = seen.attrs["num_steps"] if name == "SVGD" else len(seen.losses)
        if name != "SVGD":  # the guide as it was, asked while the run waits and when it is over
            during = seen.draws(50, seed=1)
    shorter = run(steps)
    if name == "SVGD":
        np.testing.assert_array_equal(seen["mu"], shorter["mu"])
        return
    assert_same(seen, shorter)
    for draws in (during, seen.draws(51, seed=1)):
        again = shorter.draws(draws.num_draws, seed=1)
        np.testing.assert_array_equal(draws["mu"], again["mu"])
    whole = handle.result().draws(50, seed=1)
    assert not np.array_equal(whole["mu"], during["mu"])
    # What is seen stands apart from what goes on: another thread may draw from it meanwhile.
    at, on = (getattr(x, "svi", None) or x.stein for x in (seen, handle.result()))
    assert at is not on and at.num_steps == steps < on.num_steps


def test_runs_so_far_are_the_first_of_the_result(monkeypatch):
    for name in ("ParticleGibbs", "InvolutiveMCMC"):
        with held(*RUNS[name], monkeypatch) as (handle, looks):
            seen = handle.peek()
        whole = handle.result()
        np.testing.assert_array_equal(seen["mu"], whole["mu"][:, : seen.num_draws])
        assert len(seen.values[1]) == seen.num_draws
        # Of the first chain alone, before the second has a draw.
        alone = next(found for found in looks if found is not None)
        np.testing.assert_array_equal(alone["mu"], whole["mu"][:1, :1])


def test_particles_so_far_are_draws_at_their_temperature(monkeypatch):
    """Of a conjugate model in closed form: the power t of the likelihood of n rows."""

    def conjugate(y):
        mu = sample("mu", dist.Normal(0.0, 2.0))
        with plate("row", 12):
            sample("y", dist.Normal(mu, 1.0), obs=y)

    y, n = Y.numpy(), 12

    def log_evidence(t):
        # Normal rows to the power t are rows of variance 1 / t, up to a constant.
        cov = np.eye(n) / t + 4.0
        constant = 0.5 * n * (np.log(2 * np.pi / t) - t * np.log(2 * np.pi))
        return stats.multivariate_normal.logpdf(y, cov=cov) + constant

    runs = {
        "SMC": lambda: SMC(RandomWalk(conjugate), 400, seed=1, **QUIET).run(Y),
        "AIS": lambda: AIS(RandomWalk(conjugate), 400, seed=1, **QUIET).run(Y),
    }
    for name, run in runs.items():
        ready = RUNS[name][1]
        with held(run, ready, monkeypatch) as (handle, _):
            seen = handle.peek()
        t = seen.attrs["temperatures"][-1]
        assert 0.0 < t < 1.0 == handle.result().attrs["temperatures"][-1]
        precision = 0.25 + n * t
        mean, sd = t * y.sum() / precision, precision**-0.5
        draws = seen["mu"] if name == "SMC" else seen.draws(seed=0)["mu"]
        # 400 particles, some of them of one family: six standard errors of a quarter of them.
        assert abs(draws.mean() - mean) < 6.0 * sd / 10.0
        error = seen.attrs["log_evidence_error"] if name == "SMC" else seen.log_evidence_error
        found = seen.attrs["log_evidence"] if name == "SMC" else seen.log_evidence
        assert abs(found - log_evidence(t)) < 5.0 * error < 1.5


def test_points_so_far_make_the_evidence_with_the_live_ones_for_the_rest(monkeypatch):
    with held(*RUNS["NestedSampler"], monkeypatch) as (handle, _):
        seen = handle.peek()
    whole = handle.result()
    dead = seen.attrs["num_points"] - 40
    assert seen.attrs["num_points"] < whole.attrs["num_points"]
    np.testing.assert_array_equal(seen.weighted["mu"][:dead], whole.weighted["mu"][:dead])
    assert np.isclose(seen.weighted.weights.sum(), 1.0)
    assert seen.attrs["dlogz"] > whole.attrs["dlogz"]


def test_a_run_that_has_nothing_yet_shows_nothing(monkeypatch):
    gate, started = threading.Event(), threading.Event()

    def waiting(y):
        started.set()
        gate.wait()
        model(y)

    handle = in_background(lambda: SMC(RandomWalk(waiting), 80, seed=0, **QUIET).run(Y))
    assert started.wait(120.0)
    assert handle.peek() is None
    gate.set()
    assert handle.result().num_draws == 80
    # Searches have nothing on their way, and what is no run has nothing at all.
    with held(RUNS["SVI"][0], RUNS["SVI"][1], monkeypatch) as (_, looks):
        assert looks[0] is None
    for other in (lambda: Pathfinder(model, seed=0).run(Y), lambda: 3):
        handle = in_background(other)
        handle.wait()
        assert handle.peek() is handle.result()


def test_what_goes_wrong_in_a_look_is_said_where_it_was_asked_and_the_run_goes_on(monkeypatch):
    engine = ABC(simulator, 30, 3000, summary=mean_of, seed=0)
    ready = RUNS["ABC"][1]

    def run():
        return engine.run({"y": Y})

    expected = run()
    engine = ABC(simulator, 30, 3000, summary=mean_of, seed=0)
    with held(run, ready, monkeypatch) as (handle, _):
        with monkeypatch.context() as m:
            m.setattr(engine, "_closest", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                handle.peek()
    assert_same(handle.result(), expected)


def test_a_step_that_takes_too_long_is_an_error_and_a_run_that_fails_has_nothing():
    gate, begun = threading.Event(), threading.Event()

    def callback(step, loss):
        if step == 3:
            begun.set()
            gate.wait()
            raise ValueError("no more")

    handle = in_background(
        SVI(model, AutoNormal(model), adam(), seed=0).run, 50, Y, callback=callback, **QUIET
    )
    assert begun.wait(120.0)
    with pytest.raises(TimeoutError, match="a step goes on"):
        handle.peek(timeout=0.01)
    asked = []
    asking = threading.Thread(target=lambda: asked.append(handle.peek()))
    asking.start()
    gate.set()
    asking.join()
    assert asked == [None] and handle.peek() is None
    with pytest.raises(ValueError, match="no more"):
        handle.result()


def test_weights_on_their_way_are_not_warned_of(monkeypatch):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with held(*RUNS["AIS"], monkeypatch) as (handle, looks):
            pass
        found = handle.result()
    assert len(looks) > 3 and not found.attrs["interrupted"]
    assert sum("far from the posterior" in str(w.message) for w in told) <= 1


@pytest.mark.parametrize("name", ["SVI", "SMC", "ParticleGibbs", "ABCSMC"])
def test_a_run_that_is_asked_all_the_time_ends_as_one_that_is_not(name):
    run, _ = RUNS[name]
    expected, handle = run(), in_background(run)
    while not handle.finished:
        handle.peek()
    assert_same(handle.result(), expected)


def test_what_a_look_draws_is_drawn_again_by_the_run():
    def looked_at(peeks):
        probtorch.manual_seed(0)
        interrupt = controls.Interrupt("a loop")
        interrupt.shows(lambda: probtorch.rand(3))
        with interrupt:
            seen = [interrupt.shown() for _ in range(peeks)]
            return seen, probtorch.rand(3)

    (one, other), after = looked_at(2)
    assert one.tolist() == other.tolist() == after.tolist() == looked_at(0)[1].tolist()
    assert controls.Interrupt("a loop").shown() is None


def test_the_loop_within_answers_and_the_one_around_it_after_that():
    """As a search in a step of a fit: what the outer one has is in the midst of that step."""
    control, order = controls.Control(), []

    def run():
        controls.under_control(control)
        with controls.Interrupt("outer") as outer:
            outer.shows(lambda: "outer")
            first = control.ask()
            with controls.Interrupt("inner") as inner:
                inner.shows(lambda: "inner")
                assert not outer.asked and not inner.asked
                order.append(first.value)
            second = control.ask()
            assert not controls.Interrupt("search").asked and not second.answered
            assert not outer.asked
            order.append(second.value)
            third = control.ask()
        order.append(third.value)  # at the end of the loop
        fourth = control.ask()
        control.close()
        order.append((fourth.answered, fourth.wait(0.0), control.ask()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert order == ["inner", "outer", "outer", (False, True, None)]


def chains(**until):
    mcmc = MCMC(NUTS(model), 60, 100, num_chains=1, seed=0, **QUIET)
    mcmc.diagnose = False
    return mcmc.run(Y, **until)


CHAINS = {
    "MCMC": chains,
    "MCMC, until": lambda: chains(until_ess=80.0),
    "fit": lambda: fit(model, Y, num_samples=60, num_chains=1, seed=0, verbose=False),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_in_the_midst_of_another_run_show_their_first_draws(name, monkeypatch):
    """Looked at each time that a chain asks whether to go on."""
    expected, seen, started, may = CHAINS[name](), [], [], threading.Event()
    go_on = controls.Control.go_on

    def look(self):
        seen.append(started[0].peek())
        return go_on(self)

    def run():
        may.wait()
        return CHAINS[name]()

    monkeypatch.setattr(controls.Control, "go_on", look)
    started.append(in_background(run))
    may.set()
    whole = started[0].result()
    np.testing.assert_array_equal(whole["mu"], expected["mu"])
    some = [draws for draws in seen if draws is not None]
    assert some and some[-1].num_draws <= whole.num_draws
    for draws in some:
        np.testing.assert_array_equal(draws["mu"], whole["mu"][:, : draws.num_draws])


def test_what_any_thread_may_look_at_is_looked_at_at_once_and_no_more_when_it_is_closed():
    control, order = controls.Control(), []
    inside, leave, out = threading.Event(), threading.Event(), threading.Event()

    def run():
        controls.under_control(control)
        with controls.Interrupt("around") as around:
            around.shows(lambda: "around")
            pending = control.ask()
            with controls.shown_to_any_thread(lambda: threading.current_thread().name):
                order.append(pending.value)  # asked before
                inside.set()
                leave.wait()
            out.set()

    thread = threading.Thread(target=run, name="the run")
    thread.start()
    inside.wait()
    order.append(control.ask().value)
    leave.set()
    out.wait()
    thread.join()
    late = control.ask()
    assert order == ["the run", threading.current_thread().name] and not late.answered
    shown = controls._Open(lambda: 1)
    shown.close()
    assert not shown.answer([controls.Question()])
