"""The law of the ECDF statistic is exact: compared with all outcomes where they can be counted."""

import itertools

import numpy as np
import pytest
from scipy import stats

from probtorch.infer.calibration.uniformity import (
    cumulative_counts,
    ecdf_band,
    holm,
    uniformity_pvalue,
)


def smallest_tail(ranks, num_draws):
    """The statistic, by SciPy's binomial test-like tails, one point at a time."""
    found = []
    for i in range(1, num_draws + 1):
        law = stats.binom(len(ranks), i / (num_draws + 1))
        below = int(np.sum(np.asarray(ranks) < i))
        found.append(min(1.0, 2.0 * min(law.cdf(below), law.sf(below - 1))))
    return min(found)


@pytest.mark.parametrize("replications, num_draws", [(4, 3), (3, 4), (5, 2), (2, 6), (6, 1)])
def test_pvalue_is_the_share_of_all_outcomes_that_are_as_far_from_uniform(replications, num_draws):
    outcomes = list(itertools.product(range(num_draws + 1), repeat=replications))
    statistic = np.array([smallest_tail(ranks, num_draws) for ranks in outcomes])
    rng = np.random.default_rng(0)
    for i in rng.choice(len(outcomes), 40):
        expected = np.mean(statistic <= statistic[i] * (1.0 + 1e-9))
        found = uniformity_pvalue(np.array(outcomes[i]), num_draws)
        assert abs(found - expected) < 1e-12


@pytest.mark.parametrize("replications, num_draws", [(100, 63), (40, 200), (300, 9)])
def test_bands_hold_uniform_ranks_as_often_as_they_say(replications, num_draws):
    """4000 simulations: the share outside is at most the level, and not far below it.

    Both bounds are five standard errors of the share away from what must hold: a chance of 1e-6.
    """
    level, tries = 0.1, 4000
    lower, upper = ecdf_band(replications, num_draws, level)
    ranks = np.random.default_rng(3).integers(0, num_draws + 1, (tries, replications))
    share = np.stack([cumulative_counts(r, num_draws) for r in ranks]) / replications
    outside = ((share < lower - 1e-12) | (share > upper + 1e-12)).any(axis=1)
    error = 5.0 * np.sqrt(level * (1 - level) / tries)
    assert 0.6 * level - error < outside.mean() < level + error


def test_a_curve_leaves_the_band_where_its_pvalue_is_below_the_level():
    replications, num_draws, level = 60, 31, 0.2
    lower, upper = ecdf_band(replications, num_draws, level)
    rng, told = np.random.default_rng(4), []
    for _ in range(300):
        ranks = rng.integers(0, num_draws + 1, replications)
        share = cumulative_counts(ranks, num_draws) / replications
        outside = bool(((share < lower - 1e-12) | (share > upper + 1e-12)).any())
        assert outside == (uniformity_pvalue(ranks, num_draws) <= level)
        told.append(outside)
    assert 20 < sum(told) < 100


def test_pvalues_far_out_are_small_and_positive():
    piled = np.concatenate([np.zeros(50, int), np.full(50, 63)])
    assert 0.0 < uniformity_pvalue(piled, 63) < 1e-15
    assert uniformity_pvalue(np.arange(64), 63) == pytest.approx(1.0)


def test_holm_multiplies_by_the_number_of_hypotheses_that_are_left():
    found = holm(np.array([0.01, 0.04, 0.03, 0.005]))
    np.testing.assert_allclose(found, [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm(np.array([0.9, 0.8])), [1.0, 1.0])
