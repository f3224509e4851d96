"""Counts above 0 of hurdle distributions, drawn by their first event: the law is SciPy's."""

import numpy as np
import pytest
from scipy import special, stats

from probtorch.core.rng import Generator
from probtorch.distributions import HurdleDistribution, NegativeBinomial, Poisson

DRAWS, GATE = 100_000, 0.25
# One false alarm in a thousand runs over all cases.
LEVEL = 1e-3 / 12
POISSON = [1e-3, 0.3, 2.0, 40.0, 1e4]
NEGATIVE_BINOMIAL = [(0.2, 0.5), (3.0, 0.9), (1.0, 0.1), (50.0, 0.3), (0.01, 0.99)]
CASES = [
    *((Poisson(rate), stats.poisson(rate)) for rate in POISSON),
    *((NegativeBinomial(n, probs=p), stats.nbinom(n, 1.0 - p)) for n, p in NEGATIVE_BINOMIAL),
]


def p_value(x, law):
    """Of the chi-squared test on 0 and the counts above it."""
    counts = np.arange(1, int(x.max()) + 1)
    expected = np.r_[GATE, (1.0 - GATE) * law.pmf(counts) / law.sf(0)] * len(x)
    seen = np.bincount(x.astype(int), minlength=len(expected))
    often = expected > 10.0
    rest = len(x) - expected[often].sum()
    if rest > 10.0:
        expected, seen = np.r_[expected[often], rest], np.r_[seen[often], seen[~often].sum()]
    else:
        expected, seen = expected[often], seen[often]
    return stats.chi2.sf(((seen - expected) ** 2 / expected).sum(), len(expected) - 1)


@pytest.mark.parametrize(("base", "law"), CASES)
def test_draws_have_the_law_of_counts_that_are_not_0(base, law):
    draws = HurdleDistribution(base, gate=GATE).sample((DRAWS,), generator=Generator(3))
    assert p_value(draws.numpy(), law) > LEVEL


@pytest.mark.parametrize("base", [Poisson(0.0), Poisson(1e-320), NegativeBinomial(1.0, 1e-300)])
def test_a_count_that_is_never_above_0_by_itself_is_1_above_the_hurdle(base):
    draws = HurdleDistribution(base, gate=0.5).sample((50,), generator=Generator(0))
    assert set(draws.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("logit", [36.0, 45.0, 200.0])
def test_counts_without_a_largest_are_numbers_where_probs_are_1_but_for_rounding(logit):
    # Of a tiny total_count these are logarithmic: sums of p**j / j over L, an exponential integral.
    base = NegativeBinomial(np.array(1e-9), logits=np.array(logit))
    draws = HurdleDistribution(base, gate=GATE).sample((DRAWS,), generator=Generator(1)).numpy()
    assert np.isfinite(draws).all()
    for k in np.exp(np.linspace(0.1, 0.95, 5) * logit):
        share = (1.0 - GATE) * special.exp1(k * np.exp(-logit)) / logit
        sd = np.sqrt(share * (1.0 - share) / DRAWS)
        assert abs((draws > k).mean() - share) < 5.0 * sd
