"""Samplers by rejection: exact functions, probabilities, and fit over every branch.

Statistical tests have fixed seeds; each rejects a right sampler with probability 1e-6 over seeds.
"""

import math

import mpmath
import numpy as np
import pytest
import scipy.stats

from probtorch.ops import exact, rejected_counts
from probtorch.ops.rejection import Streams, draw

COUNT = 60_000
FALSE_ALARM = 1e-6
S = Streams(0, np.arange(1, dtype=np.uint64))


def ulps(got, exact):
    return max(
        float(abs(mpmath.mpf(float(a)) - b)) / np.spacing(abs(float(b)))
        for a, b in zip(got, exact, strict=True)
    )


def test_logarithm_and_exponential_are_within_one_unit_in_the_last_place():
    rng = np.random.default_rng(1)
    x = np.concatenate([np.exp(rng.uniform(-700, 700, 200)), 1.0 + rng.uniform(-0.3, 0.4, 200)])
    assert ulps(exact.log(S, x), [mpmath.log(float(v)) for v in x]) <= 1.0
    x = np.concatenate([rng.uniform(-700, 700, 200), rng.uniform(-1, 1, 200)])
    assert ulps(exact.exp(S, x), [mpmath.exp(float(v)) for v in x]) <= 1.0
    assert exact.exp(S, np.array([-math.inf, -1e300, 0.0])).tolist() == [0.0, 0.0, 1.0]
    x = np.concatenate([rng.uniform(-0.99, 3.0, 200), rng.uniform(-1, 1, 200) * 1e-9])
    assert ulps(exact.log1p(S, x), [mpmath.log1p(float(v)) for v in x]) <= 3.0


@pytest.mark.parametrize(
    "k, rate", [(0, 12.0), (3, 40.0), (9, 11.0), (10, 11.0), (10**6, 10**6 + 800.0)]
)
def test_log_probability_of_poisson_counts(k, rate):
    with mpmath.workdps(40):
        exact = k * mpmath.log(rate) - rate - mpmath.loggamma(k + 1)
    got = rejected_counts._log_poisson(S, np.array(float(k)), np.array(rate))
    assert float(got) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize(
    "k, n, p",
    [(0, 30, 0.4), (30, 30, 0.4), (1, 40, 0.3), (29, 30, 0.45), (10**9 + 9, 3 * 10**9, 1 / 3)],
)
def test_log_probability_of_binomial_counts(k, n, p):
    with mpmath.workdps(40):
        exact = (
            mpmath.log(mpmath.binomial(n, k))
            if n < 100
            else (mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1))
        )
        exact += k * mpmath.log(p) + (n - k) * mpmath.log1p(-p)
    got = rejected_counts._log_binomial(S, np.array(float(k)), np.array(float(n)), np.array(p))
    assert float(got) == pytest.approx(float(exact), rel=1e-12)


def sample(name, *parameters):
    columns = [np.full(COUNT, p, float) for p in parameters]
    return draw(name, 17, 4, np.arange(COUNT, dtype=np.uint64), *columns)


def assert_continuous_fit(x, cdf):
    assert scipy.stats.kstest(x, cdf).pvalue > FALSE_ALARM


def assert_discrete_fit(x, distribution):
    """Kolmogorov and Smirnov, with each value spread over the step of its distribution."""
    u = np.random.default_rng(2).random(x.size)
    assert_continuous_fit(distribution.cdf(x - 1) + u * distribution.pmf(x), "uniform")


@pytest.mark.parametrize("a", [0.05, 0.7, 1.0, 3.5, 1e6])
def test_gamma_draws_fit_and_are_the_exponentials_of_the_logarithms(a):
    x, y = sample("gamma", a), sample("log_gamma", a)
    assert_continuous_fit(x, scipy.stats.gamma(a).cdf)
    np.testing.assert_allclose(np.log(x), y, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("rate", [0.0, 0.3, 9.9, 10.0, 12.5, 300.0, 1e9, 1e17, 1e19])
def test_poisson_draws_fit_on_both_sides_of_every_branch(rate):
    x = sample("poisson", rate)
    assert (x == np.floor(x)).all() and (x >= 0).all()
    if rate == 0.0:
        assert (x == 0).all()
    elif rate < 1e12:
        assert_discrete_fit(x, scipy.stats.poisson(rate))
    else:
        assert_continuous_fit((x - rate) / math.sqrt(rate), "norm")


@pytest.mark.parametrize(
    "n, p",
    [
        (1, 0.4),
        (19, 0.5),
        (21, 0.5),
        (21, 0.49),
        (60, 0.2),
        (400, 0.97),
        (10**6, 0.3),
        (10**9, 3e-9),
    ],
)
def test_binomial_draws_fit_on_both_sides_of_every_branch(n, p):
    assert_discrete_fit(sample("binomial", n, p), scipy.stats.binom(n, p))


def test_binomial_draws_are_sure_where_they_are():
    assert (sample("binomial", 7, 0.0) == 0).all() and (sample("binomial", 7, 1.0) == 7).all()
    assert (sample("binomial", 0, 0.3) == 0).all()


@pytest.mark.parametrize("k", [1e-7, 0.5, 4.0, 500.0, 1e8, 1e13])
def test_von_mises_tangents_fit(k):
    angle = 2.0 * np.arctan(sample("von_mises", k))
    if k > 1e4:
        assert_continuous_fit(angle * math.sqrt(k), "norm")
    else:
        assert_continuous_fit(angle, scipy.stats.vonmises(k).cdf)
