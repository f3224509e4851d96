"""The seconds that `fit` is given: what has been compiled, and has still to be, comes off them."""

from dataclasses import replace

import numpy as np
import pytest

from probtorch.compiler.native import host
from probtorch.core.rng import Generator
from probtorch.distributions import Normal
from probtorch.effects import param, plate, sample
from probtorch.errors import ArgumentError
from probtorch.infer import MCMC, SVI, fit
from probtorch.infer.plans.carried_out import Instead, Methods
from probtorch.infer.plans.facts import look_at
from probtorch.infer.plans.planning import planned
from probtorch.infer.plans.time_given import TimeGiven
from probtorch.infer.plans.until import Until
from probtorch.tensor import tensor

IR = "define i32 @answer() {\n  ret i32 42\n}\n"
SETTINGS = {"num_samples": 100, "num_chains": 2, "warmup_steps": 100, "threads": 2}


def level(y):
    mu = sample("mu", Normal(0.0, 2.0))
    sample("y", Normal(mu, 1.0), obs=y)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def slow_compiler(monkeypatch):
    """As if this process had compiled ten characters so far, in a second."""
    monkeypatch.setattr(host, "_spent", host._Spent(characters=10, seconds=1.0))


def rows(y):
    mu = sample("mu", Normal(0.0, 2.0))
    with plate("row", len(y), subsample_size=5) as i:
        sample("y", Normal(mu, 1.0), obs=y[i])


def test_what_is_left_is_at_least_a_second():
    clock = Clock()
    time = TimeGiven(3.0, clock)
    assert time.spent == 0.0 and time.left == 3.0 and time.until(0.5) == 102.5
    clock.now += 1.25
    assert time.spent == 1.25 and time.left == 1.75 and time.until(0.5) == 102.5
    clock.now += 60.0
    assert time.left == 1.0
    assert TimeGiven(None, clock).left is TimeGiven(None, clock).until(0.5) is None


def test_seconds_that_looking_took_are_not_there_for_chains():
    facts = look_at(level, (1.0,), {})
    # 8 leapfrogs a draw, 200 transitions, one round of chains: 1.6 s.
    for spent, method in ((0.0, "nuts"), (1.0, "nuts"), (2.0, "pathfinder"), (5.0, "pathfinder")):
        plan = planned(facts, 1e-3, method=None, budget=3.0, spent=spent, **SETTINGS)
        assert plan.method == method
    assert "more than the 0 s left of the time budget of 3 s" in str(plan)


def test_a_module_that_takes_too_long_to_compile_is_refused(slow_compiler):
    with (
        host.compiling_takes_at_most(0.1 * len(IR) - 0.5),
        pytest.raises(host.TooLongToCompile, match=r"(?s)at most 3.3 s.*about 3.8 s.*more time"),
    ):
        host.emit_object(IR)
    with host.compiling_takes_at_most(0.1 * len(IR) + 0.5):
        assert host.emit_object(IR)
    # What it really took has been added.
    assert host._spent.characters == 10 + len(IR) and host._spent.seconds > 1.0


def test_what_each_module_takes_is_not_taken_for_the_time_of_its_characters():
    spent = host._Spent()
    for length in (600, 2400, 4400, 9100):
        spent.add("x" * length, 0.015 + 1e-6 * length)
    large = "x" * 140_000
    # At one rate for all characters it would be 0.65 s.
    assert spent.expected(large) == pytest.approx(0.015 + 0.14)


def test_modules_that_say_little_of_a_larger_one_do_not_refuse_it():
    spent = host._Spent()
    for length, seconds in ((2400, 0.02), (4400, 0.09), (13100, 0.09), (13700, 0.02)):
        spent.add("x" * length, seconds)
    lengths, seconds = np.array([2400, 4400, 13100, 13700]), np.array([0.02, 0.09, 0.09, 0.02])
    for length in (8_000, 140_000):
        rows = np.stack([np.ones(4), lengths], -1)
        found, (left,), _, _ = np.linalg.lstsq(rows, seconds)
        one = np.array([1.0, length])
        error = np.sqrt(left / 2.0 * (1.0 + one @ np.linalg.inv(rows.T @ rows) @ one))
        expected = max(found @ one - error, 0.0)
        assert spent.expected("x" * length) == pytest.approx(expected, rel=1e-6)
    # One that took long says that another one will.
    spent.add("x" * 70_000, 5.0)
    assert spent.expected("x" * 140_000) > 5.0


def test_what_llvm_takes_to_start_does_not_count(monkeypatch):
    clock, target = Clock(), host.target

    def starts():
        clock.now += 5.0
        return target()

    monkeypatch.setattr(host, "_spent", host._Spent())
    monkeypatch.setattr(host.time, "perf_counter", clock)
    monkeypatch.setattr(host, "target", starts)
    host.emit_object(IR)
    assert (host._spent.modules, host._spent.seconds) == (1, 0.0)


def test_nothing_is_refused_before_anything_was_compiled(monkeypatch):
    monkeypatch.setattr(host, "_spent", host._Spent())
    with host.compiling_takes_at_most(0.0):
        assert host.emit_object(IR)


@pytest.mark.parametrize("method", [None, "nuts"])
def test_no_time_to_compile_a_sampler_leads_to_pathfinder(method, monkeypatch):
    """Half of what is left may go into one program; who has asked for NUTS waits for it."""
    allowed = []

    def run(self, *args, **kwargs):
        # The density has been compiled since.
        monkeypatch.setattr(host, "_spent", host._Spent(characters=10, seconds=1.0))
        allowed.append(host._limit.get())
        host._check_length("x" * 1000)  # 100 s
        return whole(self, *args, **kwargs)

    whole = MCMC.run
    monkeypatch.setattr(MCMC, "run", run)
    monkeypatch.setattr("probtorch.infer.plans.planned.TimeGiven", lambda s: TimeGiven(s, Clock()))
    found = fit(
        level, 1.0, method=method, seconds=60.0, num_samples=400, warmup_steps=200, seed=0,
        verbose=False,
    )  # fmt: skip
    assert allowed == [np.inf if method else 30.0]
    assert found.plan.method == ("nuts" if method else "pathfinder")
    assert method or "too little of the 60 s is left to compile NUTS: about 100 s" in str(
        found.plan
    )


def test_no_time_to_compile_chains_on_subsamples_leads_to_svi(monkeypatch):
    def run(self, *args, **kwargs):
        monkeypatch.setattr(host, "_spent", host._Spent(characters=10, seconds=1.0))
        host._check_length("x" * 1000)  # 100 s

    ran = []

    def svi(self):
        ran.append(self.plan)
        raise ArgumentError("ends here")

    monkeypatch.setattr(MCMC, "run", run)
    monkeypatch.setattr(Methods, "svi", svi)
    monkeypatch.setattr("probtorch.infer.plans.planned.TimeGiven", lambda s: TimeGiven(s, Clock()))
    with pytest.raises(ArgumentError, match="ends here"):
        fit(rows, tensor(np.ones(50)), seconds=60.0, verbose=False)
    (plan,) = ran
    assert plan.method == "svi"
    assert "left to compile chains on subsamples: about 100 s" in plan.decisions[0].because


def test_the_step_that_compiles_says_nothing_of_the_others():
    clock = Clock()
    until = Until(clock.now + 10.0, clock)
    clock.now += 8.0
    assert not until(np.ones(1))
    for steps in (11, 21, 31):
        clock.now += 0.5
        assert not until(np.ones(steps))
    # 0.05 s each: one more would be over.
    clock.now += 0.46
    assert until(np.ones(41))


def test_an_optimisation_that_begins_too_late_ends_after_its_first_step():
    clock = Clock()
    until = Until(clock.now + 10.0, clock)
    clock.now += 11.0
    assert until(np.ones(1))


def test_draws_leave_time_to_learn_what_they_are_drawn_from(monkeypatch):
    """A run of the model took half a second; 100 draws would take 15 times the budget."""
    ends = []

    def run(self, *args, until, **kwargs):
        ends.append(until.deadline)
        raise Instead(None)

    monkeypatch.setattr(SVI, "run", run)
    facts = replace(look_at(level, (1.0,), {}), seconds=0.5)
    plan = planned(facts, 1e-3, method="svi", budget=10.0, **SETTINGS)
    methods = Methods(
        level, (1.0,), {}, None, facts, 100, 1, 100, TimeGiven(10.0, Clock()), Generator(0), False,
        None, plan, None,
    )  # fmt: skip
    with pytest.raises(Instead):
        methods.svi()
    assert ends == [107.5]


@pytest.mark.parametrize(("learns", "given"), [(True, True), (True, False), (False, True)])
def test_steps_are_small_where_a_given_guide_and_the_model_are_networks(learns, given, monkeypatch):
    rates = []

    def run(self, *args, **kwargs):
        rates.append(self.optim.pt_optim_args["lr"])
        raise Instead(None)

    def model(y):
        loc = param("test_fit_budget_loc", tensor(0.0)) if learns else 0.0
        sample("y", Normal(sample("mu", Normal(loc, 2.0)), 1.0), obs=y)

    def guide(y):
        sample("mu", Normal(0.0, 1.0))

    monkeypatch.setattr(SVI, "run", run)
    facts = look_at(model, (1.0,), {})
    guide = guide if given else None
    plan = planned(facts, 1e-3, method="svi", budget=None, guide=guide, **SETTINGS)
    methods = Methods(
        model, (1.0,), {}, None, facts, 100, 1, 100, TimeGiven(None), Generator(0), False,
        guide, plan, None,
    )  # fmt: skip
    with pytest.raises(Instead):
        methods.svi()
    assert rates == [0.003 if learns and given else 0.01]
