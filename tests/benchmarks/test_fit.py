"""`fit` on the examples: that it plans what suits them, and draws what a run by hand draws."""

import math

import pytest

from benchmarks.fit import CASES, compare, compare_bounds, plan_of
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
