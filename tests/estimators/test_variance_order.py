"""Exact variances, by enumeration, are in the order that the papers prove or report."""

import itertools

import numpy as np
import pytest

from probtorch.estimators import (
    ARM,
    DisARM,
    Enumerate,
    MeasureValued,
    ScoreFunction,
    SumAndSample,
    UnorderedSet,
)
from tests.estimators.programs import PROGRAMS
from tests.estimators.test_exact import applies, outcomes

ROUNDING = 1e-12


def variances(program, estimator, samples=1):
    """Variance of each element of the gradient."""
    order = 2 if isinstance(estimator, ARM) else 1
    mean, square = 0.0, 0.0
    for weight, _, g in outcomes(program, estimator, samples, order):
        mean, square = mean + weight * g, square + weight * g * g
    return np.maximum(square - mean * mean, 0.0)


def named(*names):
    return [pytest.param(p, id=p.name) for p in PROGRAMS if p.name in names]


BINARY = [
    pytest.param(p, id=p.name) for p in PROGRAMS if applies(p, DisARM()) and p.elements in (0, 1, 2)
]
SINGLE = [pytest.param(p, id=p.name) for p in PROGRAMS if p.elements == 0]


@pytest.mark.parametrize("program", BINARY)
def test_disarm_never_varies_more_than_arm(program):
    # Dong et al. (2020): DisARM is the mean of ARM given both draws.
    assert (
        variances(program, DisARM()) <= variances(program, ARM()) * (1 + ROUNDING) + ROUNDING
    ).all()


@pytest.mark.parametrize("program", named("coin", "fair coin", "likely coin", "two coins"))
def test_disarm_varies_less_than_two_scores_with_each_other_as_baseline(program):
    # At the same two evaluations; Dong et al. (2020), sec. 4, for interior probabilities.
    loo = variances(program, ScoreFunction("leave_one_out"), 2)
    assert variances(program, DisARM()).sum() <= loo.sum() + ROUNDING


@pytest.mark.parametrize("program", SINGLE)
def test_summing_more_never_varies_more_and_summing_nothing_is_the_score_function(program):
    # Liu et al. (2019), proposition 1.
    steps = [variances(program, SumAndSample(k)) for k in range(len(program.values) + 1)]
    np.testing.assert_allclose(steps[0], variances(program, ScoreFunction()), atol=ROUNDING)
    for more, less in itertools.pairwise(steps):
        assert (less <= more * (1 + ROUNDING) + ROUNDING).all()
    assert steps[-1].max() < ROUNDING


@pytest.mark.parametrize("program", SINGLE)
def test_enumeration_does_not_vary(program):
    assert variances(program, Enumerate()).max() < ROUNDING


@pytest.mark.parametrize(
    "program", named("coin", "two coins", "three categories", "one-hot", "five categories")
)
def test_a_good_baseline_takes_variance_away(program):
    # Not so for every cost: these have one sign on average.
    shifted = lambda baseline, n: variances(_raised(program), ScoreFunction(baseline), n).sum()
    assert shifted("leave_one_out", 2) < shifted(None, 2)


def _raised(program):
    """The program with 4 added to its cost."""
    fields = vars(program) | {"f": lambda z, theta: program.f(z, theta) + 4.0}
    return type(program)(**fields)


@pytest.mark.parametrize("program", named("three categories", "four categories", "weights"))
def test_an_unordered_set_varies_less_than_as_many_draws_with_replacement(program):
    # Kool et al. (2020), fig. 2: no evaluation is spent twice on one outcome.
    loo = variances(program, ScoreFunction("leave_one_out"), 2).sum()
    assert variances(program, UnorderedSet(2)).sum() < loo


@pytest.mark.parametrize("program", named("coin", "three categories", "rows of categoricals"))
def test_weak_derivatives_of_categories_do_not_vary(program):
    # Both parts are point masses; only draws of other elements are left to chance.
    assert variances(program, MeasureValued()).max() < ROUNDING
