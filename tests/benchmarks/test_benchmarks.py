"""The benchmark machinery: what it reports, and that it refuses to time a wrong answer.

No test here reads a clock: the suites are given contestants and timings made up for the purpose.
"""

import dataclasses
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from scipy import special, stats

import probtorch
from benchmarks import (
    compile_time,
    density,
    distributions,
    eager,
    kernel_peers,
    loops,
    nuts,
    problems,
    svi,
)
from benchmarks.peers import OURS, PEERS, adapter
from benchmarks.problems import DENSITIES
from benchmarks.report import duration, table, write_section
from benchmarks.timing import Timing


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.0, "2 s"), (0.0321, "32.1 ms"), (4.5e-6, "4.5 us"), (1.7e-7, "170 ns")]
)
def test_duration_picks_a_readable_unit(seconds, text):
    assert duration(seconds) == text


def test_table_columns_line_up():
    lines = table(["a", "long name"], [["1", "2"], ["333", "4"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[2] == "| 1   | 2         |"


def test_section_is_replaced_and_the_rest_of_the_page_kept(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- eager: begin -->\nold\n<!-- eager: end -->\nafter\n")
    write_section("eager", "new", page)
    write_section("eager", "newer", page)
    assert page.read_text() == (
        "before\n<!-- eager: begin -->\nnewer\n<!-- eager: end -->\nafter\n"
    )


def test_page_without_markers_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing here")
    with pytest.raises(ValueError, match="add the two markers"):
        write_section("eager", "new", page)


@pytest.mark.parametrize("name", (OURS, *PEERS))
def test_adapter_says_what_it_needs_and_offers_a_suite(name):
    module = adapter(name)
    assert module.DISTRIBUTIONS
    offered = {"tensor_library", "density", "sampler", "autoencoder", "kernel_sampler"}
    assert offered & set(vars(module))


@pytest.mark.parametrize("problem", DENSITIES.values(), ids=lambda p: p.name)
def test_problem_data_is_finite_and_the_same_every_time(problem):
    fresh = getattr(problems, f"_{problem.name}")()
    for name, value in problem.data.items():
        assert np.all(np.isfinite(value))
        np.testing.assert_array_equal(value, fresh.data[name])


def normal_density(q):
    return stats.norm.logpdf(q).sum(), -q


def fake_race(monkeypatch, suite):
    """Time nothing: every contestant takes a second."""
    raced = []

    def race(contestants, rounds, round_seconds=0.1, clock=time.perf_counter):
        raced.append(set(contestants))
        return {name: Timing(1.0, 1.0, rounds) for name in contestants}

    monkeypatch.setattr(suite, "race", race)
    return raced


def use_densities(monkeypatch, **densities):
    modules = {
        name: types.SimpleNamespace(
            density=lambda problem, f=f: f, density_in_loop=lambda problem, n: lambda q: None
        )
        for name, f in densities.items()
    }
    monkeypatch.setattr(density, "adapter", modules.__getitem__)
    monkeypatch.setattr(density, "trained", lambda systems: ({}, {}, []))


def test_density_that_agrees_up_to_a_constant_is_timed(monkeypatch):
    raced = fake_race(monkeypatch, density)
    use_densities(
        monkeypatch,
        jax=normal_density,
        probtorch=lambda q: (normal_density(q)[0] + 7.0, normal_density(q)[1]),
    )
    text, failures = density.run([OURS, "jax"])
    assert failures == []
    assert {OURS, "jax"} in raced
    assert "1.00" in text


@pytest.mark.parametrize(
    "wrong",
    [lambda q: (normal_density(q)[0], -q * 1.001), lambda q: (2.0 * normal_density(q)[0], -q)],
    ids=["gradient", "value"],
)
def test_density_that_disagrees_is_reported_and_not_timed(monkeypatch, wrong):
    raced = fake_race(monkeypatch, density)
    use_densities(monkeypatch, jax=normal_density, probtorch=wrong)
    text, failures = density.run([OURS, "jax"])
    assert len(failures) == len(DENSITIES)
    assert all("another density" in failure for failure in failures)
    assert not any(OURS in names for names in raced)
    assert "failed" in text


def closed_form(name, case, compiled=None, factor=1.0):
    """Half normal densities and their slope in the scale, by SciPy."""
    scale = case.parameters["scale"]
    value = stats.halfnorm.logpdf(case.values, scale=scale).sum()
    slope = (case.values / scale) ** 2 / scale - 1.0 / scale
    return lambda: (value * factor, slope)


@pytest.mark.parametrize(("factor", "found"), [(1.0, []), (1.001, ["other numbers"])])
def test_distributions_that_disagree_are_reported_and_not_timed(monkeypatch, factor, found):
    raced = fake_race(monkeypatch, distributions)
    ours = adapter(OURS)
    theirs = types.SimpleNamespace(
        log_density_of=lambda name, case: closed_form(name, case, factor=factor)
    )
    modules = {OURS: ours, "torch": theirs}
    monkeypatch.setattr(distributions, "adapter", modules.__getitem__)
    case = distributions.CASES["HalfNormal"]
    monkeypatch.setattr(distributions, "CASES", {"HalfNormal": case})
    monkeypatch.setattr(distributions, "SAMPLERS", {})
    _, failures = distributions.run([OURS, "torch"])
    assert [f for f, word in zip(failures, found, strict=True) if word in f] == failures
    both = {distributions.COMPILED, distributions.EAGER}
    assert raced == [both | ({"torch"} if factor == 1.0 else set())]


def test_training_step_counts_in_the_mean_of_densities(monkeypatch):
    def race(contestants, rounds, round_seconds=0.1, clock=time.perf_counter):
        training = round_seconds == 0.3
        ours = 512.0 if training else 1.0
        return {n: Timing(ours if n == OURS else 1.0, 1.0, rounds) for n in contestants}

    use_densities(monkeypatch, probtorch=normal_density, jax=normal_density)
    steps = {OURS: lambda: 1.0, "jax": lambda: 1.0}
    monkeypatch.setattr(density, "trained", lambda systems: (steps, {}, []))
    monkeypatch.setattr(density, "race", race)
    text, failures = density.run([OURS, "jax"])
    assert failures == []
    # The ninth root of 512, the other eight ratios being 1. The last column is of JAX in a loop.
    assert text.split("geometric mean")[1].split("\n")[0].split("|")[-3].strip() == "2.00"


def test_loops_stay_out_of_the_mean_of_a_peer_without_loops(monkeypatch):
    def race(contestants, rounds, round_seconds=0.1, clock=time.perf_counter):
        return {n: Timing(1.0, 1.0, rounds) for n in contestants}

    slow = [name in density.LEFT_OUT["torch"] for name in DENSITIES]
    seconds = iter([Timing(1000.0 if s else 0.5, 1.0, 9) for s in slow])
    use_densities(monkeypatch, probtorch=normal_density, torch=normal_density)
    monkeypatch.setattr(
        density, "race", lambda c, **k: race(c, 9) | ({"torch": next(seconds)} if c else {})
    )
    text, _ = density.run([OURS, "torch"])
    assert "| 0.001 " in text
    assert text.split("geometric mean")[1].split("\n")[0].split("|")[-2].strip() == "2.00"


def losses(**means):
    """Make adapters for `trained` that lose as much as is said at each step."""

    def step(loss):
        if loss is None:
            raise RuntimeError("no compiler")
        return lambda: loss

    return lambda system, data: step(means[system])


def test_training_that_reaches_another_loss_is_reported_and_not_timed(monkeypatch):
    monkeypatch.setattr(svi, "autoencoder", losses(probtorch=100.0, jax=105.0, torch=120.0))
    steps, means, failures = svi.trained([OURS, "jax", "torch"])
    assert set(steps) == {OURS, "jax"}
    assert means == {OURS: 100.0, "jax": 105.0, "torch": 120.0}
    assert failures == ["torch: loss 120.0, probtorch 100.0"]


def test_training_that_cannot_be_compiled_is_reported_with_its_error(monkeypatch):
    monkeypatch.setattr(svi, "autoencoder", losses(probtorch=100.0, torch=None))
    steps, _, failures = svi.trained([OURS, "torch"])
    assert set(steps) == {OURS}
    assert failures == ["torch: RuntimeError: no compiler"]


@pytest.mark.parametrize(
    ("name", "spelling"), [(n, s) for n, each in loops.SPELLINGS.items() for s in each]
)
def test_loop_spellings_are_one_density(monkeypatch, name, spelling):
    problem = short(monkeypatch, name)
    q = probtorch.tensor(np.random.default_rng(3).normal(0.0, 0.3, problem.dim))
    value = float(getattr(loops, name)(spelling)(q))
    expected = {"autoregression": ar_density, "hidden_markov": hmm_density}[name]
    np.testing.assert_allclose(value, expected(np.asarray(q), problem.data["y"]), rtol=1e-10)


def short(monkeypatch, name, steps=40):
    """Let a series of `benchmarks.loops` be a few steps long."""
    problem = DENSITIES[name]
    problem = dataclasses.replace(problem, data={"y": problem.data["y"][:steps]})
    monkeypatch.setitem(loops.DENSITIES, name, problem)
    return problem


def ar_density(q, y):
    alpha, beta, sigma = q[0], q[1:6], np.exp(q[6])
    lags = np.lib.stride_tricks.sliding_window_view(y, 5)[:-1]
    prior = stats.norm.logpdf(q[:6]).sum() + stats.halfnorm.logpdf(sigma) + q[6]
    return prior + stats.norm.logpdf(y[5:], alpha + lags @ beta, sigma).sum()


def hmm_density(q, y):
    logits, loc = q[:25].reshape(5, 5), q[25:]
    move = special.softmax(logits, -1)
    prior = stats.norm.logpdf(logits).sum() + stats.norm.logpdf(loc, 0.0, 5.0).sum()
    alpha = stats.norm.pdf(y[0], loc) / 5.0
    for seen in y[1:]:
        alpha = alpha @ move * stats.norm.pdf(seen, loc)
    return prior + np.log(alpha.sum())


def test_loop_of_another_density_is_reported_and_not_timed(monkeypatch):
    raced = fake_race(monkeypatch, loops)
    parts = dict.fromkeys(("total", "recording", "rolling", "compiling"), 1.0)
    monkeypatch.setattr(loops, "first_calls", lambda name, spelling: (parts, parts))
    wrong = {"scan": lambda q: (normal_density(q)[0], -q * 1.001)}
    monkeypatch.setattr(
        loops, "value_and_grad", lambda name, spelling: wrong.get(spelling, normal_density)
    )
    text, failures = loops.run([OURS, "jax"])
    assert len(failures) == len(loops.SPELLINGS)
    assert all("scan: another density" in failure for failure in failures)
    assert not any("scan" in names for names in raced)
    assert "lax.scan" in text


def test_peer_that_fails_is_named_with_its_error(monkeypatch):
    fake_race(monkeypatch, eager)
    monkeypatch.setattr(eager, "adapter", lambda name: types.SimpleNamespace())
    _, failures = eager.run([OURS])
    assert any(f.startswith(f"{OURS}: AttributeError") for f in failures)


def sampled(shift):
    """What a child process reports, with draws around `shift`."""
    draws = {"beta": np.random.default_rng(1).normal(shift, 1.0, (4, 500, 3))}
    return {"first_result": 2.0, "sampling": 0.5, "draws": draws}


@pytest.mark.parametrize(("shift", "agrees"), [(0.0, True), (0.5, False)])
def test_other_posterior_is_reported(monkeypatch, shift, agrees):
    shifts = {OURS: 0.0, "nutpie": shift}
    monkeypatch.setattr(nuts, "measure", lambda system, *rest: sampled(shifts[system]))
    text, failures = nuts.run([OURS, "nutpie"], problems=["logistic"])
    assert (failures == []) is agrees
    assert text.count("logistic") == 2


def test_process_that_fails_is_reported_with_its_last_line(monkeypatch):
    def broken(*args):
        raise RuntimeError("the process ended with 1: NameError: no such thing")

    monkeypatch.setattr(nuts, "measure", broken)
    _, failures = nuts.run([OURS], problems=["logistic"])
    assert failures == [f"{OURS}, logistic: the process ended with 1: NameError: no such thing"]


def test_ratios_of_kernels_are_ours_to_theirs_and_wrong_draws_have_none():
    ours = kernel_peers.Figures(seconds=1e-6, effective=0.5, per_evaluation=0.1, off=0.0)
    theirs = kernel_peers.Figures(seconds=8e-6, effective=0.25, per_evaluation=0.2, off=0.0)
    wrong = dataclasses.replace(theirs, off=0.5)
    outcomes = {
        ("NUTS", "normal"): {OURS: ours, "blackjax": theirs},
        ("MALA", "normal"): {OURS: ours, "blackjax": wrong},
    }
    lines = kernel_peers.report(outcomes, ["normal"], ["blackjax"]).splitlines()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "blackjax" in line
    ]
    assert rows == [
        ["NUTS", "blackjax", "8.0"],
        ["MALA", "blackjax", "8.0"],
        ["NUTS", "blackjax", "0.50"],
        ["MALA", "blackjax", "!"],
        ["NUTS", "blackjax", "16.00"],
        ["MALA", "blackjax", "!"],
    ]


def test_what_the_cost_of_checks_is_taken_from_is_there():
    # In a process of its own: the module keeps the process that imports it to one core.
    ask = "from benchmarks import checks; [getattr(o, a) for _, o, a in checks.places()]"
    subprocess.run([sys.executable, "-c", ask], check=True)


@pytest.mark.parametrize("program", compile_time.PROGRAMS)
def test_what_the_parts_of_a_first_call_are_taken_from_is_there(program, tmp_path):
    found = compile_time.first_call(program, tmp_path / "cache")
    assert found["compiled"] and found["ops"] > 0
    assert found["recording"] and found["compiling"]
