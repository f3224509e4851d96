"""`fit` on the examples: that it plans what suits them, and draws what a run by hand draws."""

import math

import numpy as np
import pytest

from benchmarks.fit import (
    CASES,
    compare,
    compare_advice,
    compare_bounds,
    compare_readers,
    plan_of,
    predictive_score,
)
from probtorch.errors import InferenceError

NEEDS = {
    "varying_intercepts": "statsmodels",
    **dict.fromkeys(("logistic", "vae", "ss_vae"), "sklearn"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_of_an_example_suits_it(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    if CASES[name].method == "refused":
        with pytest.raises(InferenceError, match=r"(?s)nothing to infer.*maximum likelihood"):
            plan_of(name)
        return
    plan = plan_of(name)
    assert plan.method == CASES[name].method
    assert len(str(plan).splitlines()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.by_hand])
def test_fit_draws_what_a_run_by_hand_draws(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    plan, error = compare(name)
    assert plan.method == "nuts"
    # About 150 entries in all, means and spreads: beyond 5 by chance once in 10 000 times.
    assert error < 5.0


@pytest.mark.slow
def test_guides_of_scripts_are_compared_by_their_bounds():
    plan, gain = compare_bounds("lda", seconds=3.0)
    assert plan.method == "svi"
    assert math.isfinite(gain) and abs(gain) < 3.0  # nats per word, of which there are 25


def test_scores_of_new_points_have_the_error_of_chains():
    """Densities of two draws in each of three chains, one point; by hand."""
    density = np.array([[1.0, 3.0], [2.0, 2.0], [5.0, 7.0]])
    score, variance = predictive_score(np.log(density)[..., None])
    assert score == pytest.approx(math.log(10.0 / 3.0))
    # Chains have means 2, 2 and 6; without one of them the score is log 4, log 4, log 2.
    without = np.log([4.0, 4.0, 2.0])
    assert variance == pytest.approx(2.0 / 3.0 * np.sum((without - without.mean()) ** 2))


@pytest.mark.slow
def test_readers_of_digits_are_compared_by_what_they_read():
    pytest.importorskip("sklearn")
    found = compare_readers(frozen=100, steps=100, looks=3, times=2.0)
    assert found.plan.method == "svi" and found.plan.guide == "guide"
    assert min(found.right, found.right_by_hand) > 0.7
    assert found.error < 5.0 and 0.0 < found.gain_error < 1.0


@pytest.mark.slow
def test_what_the_refusal_of_the_flow_names_learns_it():
    gain, error = compare_advice(points=500, epochs=4, steps=100)
    assert math.isfinite(gain) and abs(gain) < 1.0 and 0.0 < error < 0.5
