"""What the suite `scale` measures is right, and told as it was. No test here reads a clock."""

import subprocess

import numpy as np
import pytest
from scipy import stats

from benchmarks import scale
from benchmarks.peers import OURS, PEERS
from benchmarks.scale_arrays import CASES
from benchmarks.scale_cases import numbers


def points(**seconds):
    """Made-up points of systems."""
    return {n: {"first": 1.0, "seconds": x, "mb": 3.0} for n, x in seconds.items()}


def test_every_case_is_ours_and_asks_for_known_systems():
    known = {OURS, *PEERS, *scale.BESIDE}
    for case in CASES.values():
        assert OURS in case.makers and set(case.makers) <= known
        assert set(case.few) <= set(case.makers) and list(case.sizes) == sorted(case.sizes)
        assert "{}" in case.what


def test_a_line_has_the_fastest_peer():
    line = scale._line(points(probtorch=2.0, jax=4.0, torch=1.0))
    assert line == ["1 s", "2 s", "3", "torch", "1 s", "1 s", "3", "2.00"]
    assert scale._line(points(probtorch=2.0)) == ["1 s", "2 s", "3", "", "", "", "", ""]


def test_a_point_that_fails_is_told_and_the_others_stay():
    asked = []

    def measure(name, size, system):
        asked.append((size, system))
        if system == "torch" and size == 10_000:
            raise subprocess.TimeoutExpired("child", 300)
        return points(x=1.0)["x"]

    text, failures = scale.against([OURS, "torch", "jax"], measure, ["Loop"])
    assert [f.split(":")[0] for f in failures] == ["Loop 10000 torch"]
    assert len(text.splitlines()) == 2 + len(CASES["Loop"].sizes)
    # JAX unrolls the loop, which it is asked for at the smallest size only.
    assert [size for size, system in asked if system == "jax"] == [1000] * scale.TURNS


def test_the_best_turn_of_a_system_counts_and_a_long_one_has_no_second():
    turns = iter([(1.0, 4.0), (1.0, 2.0), (3.0, 3.0), (2.0, 5.0), (9.0, 7.0), (1.0, 1.0)])

    def measure(name, size, system):
        first, seconds = next(turns)
        return {"first": first, "seconds": seconds, "mb": 3.0}

    text, failures = scale.against([OURS, "torch"], measure, ["LeNet"])
    assert not failures
    cells = [cell.strip() for cell in text.splitlines()[-1].split("|")]
    # Ours 4 and 3 seconds, torch 2 and 5.
    assert cells[2:4] == ["1 s", "3 s"] and cells[5:8] == ["torch", "1 s", "2 s"]
    asked = []

    def long(name, size, system):
        asked.append(system)
        return {"first": scale.SHORT + 1.0, "seconds": 1.0, "mb": 3.0}

    scale.against([OURS, "torch"], long, ["LeNet"])
    assert sorted(asked) == [OURS, "torch"]


def test_systems_that_nobody_asked_for_are_left_out():
    asked = []

    def measure(name, size, system):
        asked.append(system)
        return points(x=1.0)["x"]

    scale.against([OURS], measure, ["Process"])
    assert set(asked) == {OURS, "scipy"}


@pytest.mark.parametrize("name", ["Loop", "Scan"])
def test_a_smoothed_series_is_that_of_numbers(name):
    y, level, total = numbers(50), 0.0, 0.0
    for now in y:
        level = 0.3 * level + 0.7 * now
        total -= 0.5 * (now - level) ** 2
    found = CASES[name].makers[OURS](50)()
    np.testing.assert_allclose(float(found), total, rtol=1e-5)  # 0.3 is a float32 in one of them


@pytest.mark.parametrize("name", ["Markov", "MarkovScan"])
def test_a_hidden_markov_model_is_that_of_the_other_spelling(name):
    value, slope = CASES[name].makers[OURS](20)()
    seen, q = numbers(20, 50), numbers(2500).reshape(50, 50)
    move = q - np.logaddexp.reduce(q, axis=1, keepdims=True)
    state = seen[0]
    for now in seen[1:]:
        state = np.logaddexp.reduce(state[:, None] + move, axis=0) + now
    np.testing.assert_allclose(value, np.logaddexp.reduce(state), rtol=1e-10)
    assert slope.shape == (2500,) and np.abs(slope.reshape(50, 50).sum(axis=1)).max() < 1e-8


def test_a_process_is_a_multivariate_normal():
    squares, y = CASES["Process"].makers[OURS].__globals__["Process"]._data(30)
    rho, alpha, sigma = np.exp([-0.5, 0.0, -1.0])
    k = alpha**2 * np.exp(-0.5 * squares / rho**2) + (sigma**2 + 1e-6) * np.eye(30)
    value, _ = CASES["Process"].makers[OURS](30)()
    expected = stats.multivariate_normal.logpdf(y, np.zeros(30), k)
    np.testing.assert_allclose(value, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        *(n for n, c in CASES.items() if c.what.startswith(("eager", "compiled", "{} draw"))),
        *("Rows", "HierarchyGradient", "Nested"),
    ],
)
def test_small_work_done_again_comes_to_the_same(name):
    """Draws, which are to be new ones, to as many."""
    case = CASES[name]
    work = case.makers[OURS](min(case.sizes[0], 919 * 85 if "logsumexp" in name else 12))
    results = []
    for _ in range(2):
        done = work()
        # What follows a gradient leaves it at the leaves, and returns nothing.
        parts = done if isinstance(done, tuple) else () if done is None else (done,)
        results.append([np.array(getattr(part, "array", part)) for part in parts])
    first, second = results
    assert len(first) == len(second) == (0 if name.endswith("gradient") else max(len(first), 1))
    drawn = "draw" in case.what or name == "eager randn"
    for a, b in zip(first, second):
        assert a.shape == b.shape and a.dtype == b.dtype and np.isfinite(a).all()
        if not drawn:
            np.testing.assert_allclose(a, b, rtol=1e-12)  # the first was eager, the second not
        elif a.dtype.kind == "f" and "Poisson" not in name:
            assert (a != b).all()
