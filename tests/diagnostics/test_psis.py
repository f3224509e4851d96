"""`psis` against ArviZ's implementation, closed forms, and ratios whose shape is known."""

import warnings

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from probtorch.diagnostics.psis import generalized_pareto, pareto_k_limit, psis
from probtorch.errors import DomainError, ShapeError


def arviz_psislw(x, reff):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arviz = pytest.importorskip("arviz")
        if not hasattr(arviz, "psislw"):
            pytest.skip("this ArviZ has no psislw")
        return arviz.psislw(np.array(x), reff=reff)


@pytest.mark.parametrize("draws", [25, 100, 1000, 4001])
@pytest.mark.parametrize("reff", [1.0, 0.4])
@pytest.mark.parametrize("spread", [0.3, 1.5, 6.0])
def test_weights_and_shape_equal_those_of_arviz(draws, reff, spread):
    x = spread * np.random.default_rng(draws).standard_normal((3, draws))
    weights, k = psis(x, reff=reff)
    expected_weights, expected_k = arviz_psislw(x, reff)
    # ArviZ drops grid points of weight below 1e-15, which moves the last digits.
    np.testing.assert_allclose(k, expected_k, rtol=1e-9)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9])
def test_shape_of_pareto_draws_is_found(shape):
    x = np.sort(stats.genpareto(shape, scale=2.0).rvs(20_000, random_state=1))
    k, scale = generalized_pareto(x)
    # The sd of the estimate is (1 + k) / sqrt(n) = 0.0134 at most: five of them.
    assert abs(k - shape) < 0.067
    assert abs(scale / 2.0 - 1.0) < 0.08


def test_a_narrow_proposal_is_flagged_and_a_wide_one_is_not():
    x = np.random.default_rng(2).standard_normal(5000)
    narrow = stats.norm.logpdf(x, scale=3.0) - stats.norm.logpdf(x)
    wide = stats.norm.logpdf(x, scale=0.8) - stats.norm.logpdf(x)
    assert psis(narrow)[1] > 0.7 > 0.5 > psis(wide)[1]


def test_weights_are_normalised_and_keep_their_order():
    x = 2.0 * np.random.default_rng(3).standard_normal(500)
    weights, _ = psis(x + 1e6)
    np.testing.assert_allclose(logsumexp(weights), 0.0, atol=1e-12)
    np.testing.assert_array_equal(np.argsort(weights), np.argsort(x))


def test_an_additive_constant_changes_nothing():
    x = np.random.default_rng(4).standard_normal(200)
    np.testing.assert_allclose(psis(x)[0], psis(x - 700.0)[0], atol=1e-9)


def test_equal_ratios_have_no_tail_to_fit():
    rounding = 1e-15 * (np.arange(100) % 2)
    for ratios in (np.full(100, -3.0), -3.0 + rounding):
        weights, k = psis(ratios)
        assert k == -np.inf
    np.testing.assert_allclose(weights, -np.log(100.0))


def test_a_few_weights_that_stand_out_are_too_few_for_a_fit():
    x = np.zeros(100)
    x[:3] = 5.0
    assert psis(x)[1] == np.inf


def test_zero_weights_are_kept():
    x = np.random.default_rng(5).standard_normal(200)
    x[:50] = -np.inf
    weights, k = psis(x)
    assert np.isfinite(k) and (weights[:50] == -np.inf).all()


def test_the_argument_is_not_changed():
    x = np.random.default_rng(6).standard_normal(100)
    before = x.copy()
    psis(x)
    np.testing.assert_array_equal(x, before)


def test_limit_grows_with_the_number_of_draws_up_to_seven_tenths():
    assert pareto_k_limit(100) == 0.5
    assert pareto_k_limit(10_000) == 0.7


@pytest.mark.parametrize(
    ("ratios", "error", "words"),
    [
        (np.zeros(24), ShapeError, "at least 25 draws"),
        (np.full(30, np.nan), DomainError, "nan"),
        (np.full(30, -np.inf), DomainError, "-inf"),
        (np.append(np.zeros(30), np.inf), DomainError, "inf"),
    ],
    ids=["few", "nan", "all zero", "infinite"],
)
def test_ratios_that_cannot_be_smoothed_are_refused(ratios, error, words):
    with pytest.raises(error, match=words):
        psis(ratios)
