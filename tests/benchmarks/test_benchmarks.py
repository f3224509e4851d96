"""The benchmark machinery: what it reports, and that it refuses to time a wrong answer.

No test here reads a clock: the suites are given contestants and timings made up for the purpose.
"""

import types

import numpy as np
import pytest
from scipy import stats

from benchmarks import density, eager, nuts, problems
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
    assert {"tensor_library", "density", "sampler", "autoencoder"} & set(vars(module))


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

    def race(contestants, rounds):
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
