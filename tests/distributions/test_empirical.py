"""Weighted values, refused proposals and the Polya-gamma distribution."""

import math
import pickle

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.core.dtype import float32, int64
from probtorch.core.rng import Generator
from probtorch.errors import ArgumentError, ShapeError
from probtorch.tensor import tensor
from probtorch.testing import assert_close

VALUES = np.array([3.0, -1.0, 3.0, 0.5, 8.0])
WEIGHTS = np.array([0.5, 2.0, 1.0, 0.5, 1.0])


def test_weighted_values_are_a_discrete_distribution():
    d = dist.Empirical(VALUES, np.log(WEIGHTS))
    points = np.array([-1.0, 0.5, 3.0, 8.0])
    p = np.array([2.0, 0.5, 1.5, 1.0]) / 5.0
    reference = stats.rv_discrete(values=(np.arange(4), p))
    assert d.sample_size == 5 and d.has_enumerate_support
    assert_close(d.log_prob(points).exp(), p)
    assert d.log_prob(2.0).item() == -math.inf
    mean = p @ points
    assert_close(d.mean, mean)
    for name, power in (("variance", 2), ("skewness", 3), ("kurtosis", 4)):
        moment = p @ (points - mean) ** power / (p @ (points - mean) ** 2) ** (power / 2)
        expected = {2: p @ (points - mean) ** 2, 3: moment, 4: moment - 3}[power]
        assert_close(getattr(d, name), expected)
    assert d.mode.item() == -1.0
    assert_close(d.entropy(), reference.entropy())
    assert_close(d.cdf(np.array([-2.0, -1.0, 1.0, 3.0, 9.0])), np.array([0, 0.4, 0.5, 0.8, 1.0]))
    assert_close(
        d.icdf(np.array([0.1, 0.45, 0.49, 0.6, 1.0])), np.array([-1.0, 0.5, 0.5, 3.0, 8.0])
    )
    x = d.sample((4000,), Generator(1)).numpy()
    seen = (x[:, None] == points).sum(0)
    assert seen.sum() == 4000 and stats.chisquare(seen, p * 4000).pvalue > 1e-7
    assert_close(pickle.loads(pickle.dumps(d)).log_prob(points), d.log_prob(points))
    native = compile(lambda w: dist.Empirical(VALUES, w).log_prob(points))
    native(tensor(np.log(WEIGHTS)))
    assert_close(native(tensor(np.log(WEIGHTS))).exp(), p)
    with pytest.raises(ShapeError, match="log_weights"):
        dist.Empirical(VALUES, np.zeros(4))


def test_values_may_be_vectors_or_whole_and_come_in_batches():
    rows = np.array([[[0, 1], [2, 2], [0, 1]], [[5, 5], [5, 5], [1, 0]]])
    d = dist.Empirical(rows, np.zeros((2, 3)))
    assert d.batch_shape == (2,) and d.event_shape == (2,)
    assert_close(d.log_prob(np.array([[0, 1], [1, 0]])).exp(), np.array([2, 1]) / 3)
    assert_close(d.mean, rows.mean(1))
    assert_close(d.variance, rows.var(1))
    assert (d.mode.numpy() == [[0, 1], [5, 5]]).all()
    x = d.sample((7,), Generator(0))
    assert x.shape == (7, 2, 2) and x.dtype == int64
    assert np.isfinite(d.log_prob(x).numpy()).all()
    assert_close(d.entropy(), np.full(2, -(2 * math.log(2 / 3) + math.log(1 / 3)) / 3))
    with pytest.raises(ArgumentError, match="without a batch"):
        d.enumerate_support()


def test_what_a_rejector_keeps_has_the_density_of_the_target():
    # A normal cut off at 1, from a normal.
    accept = lambda x: (x > 1.0).to(dtype=x.dtype).log()
    d = dist.Rejector(dist.Normal(np.zeros(2), 1.0), accept, stats.norm.logsf(1.0))
    x = d.sample((3000,), Generator(2)).numpy()
    target = stats.truncnorm(1.0, np.inf)
    assert_close(d.log_prob(x[:5]), target.logpdf(x[:5]), rtol=1e-6)
    assert stats.kstest(x.ravel(), target.cdf).pvalue > 1e-7
    assert not d.has_rsample and d.batch_shape == (2,)


def polya_gamma(x):
    n = np.arange(60)
    terms = (2 * n + 1) / np.sqrt(2 * np.pi * x**3) * np.exp(-((2 * n + 1) ** 2) / (8 * x))
    return float(((-1.0) ** n * terms).sum())


def test_a_polya_gamma_density_has_its_series_and_its_draws():
    d = dist.TruncatedPolyaGamma(tensor(np.zeros((4, 2))))
    assert d.batch_shape == ()
    kept = 1 - 4 / math.pi * math.exp(-1.25 * math.pi**2)
    x = np.array([0.01, 0.1, 0.1599, 0.1601, 0.5, 2.4])
    expected = np.array([polya_gamma(v) for v in x]) / kept
    assert_close(d.log_prob(x).exp(), expected, rtol=1e-11)
    assert_close(d.log_prob(1e-4), 0.5 * math.log(1 / (2 * math.pi * 1e-12)) - 1250.0, rtol=1e-7)
    area = [integrate.quad(polya_gamma, 1e-3, v, points=(0.1,), epsabs=1e-12)[0] for v in x]
    assert_close(d.cdf(x), np.array(area) / kept, rtol=1e-8, atol=1e-12)
    assert_close(d.survival(x), 1 - np.array(area) / kept, rtol=1e-6, atol=1e-10)
    assert_close(d.icdf(d.cdf(x)), x, rtol=1e-9)
    y = d.sample((5000,), Generator(3))
    assert d.support.check(y).numpy().all()
    assert stats.kstest(d.cdf(y).numpy(), "uniform").pvalue > 1e-7
    # The mean of exp(-x t^2 / 2) is 1 / cosh(t / 2), but for the tail.
    means = (-0.5 * y).exp().numpy()
    assert abs(means.mean() - 1 / math.cosh(0.5)) < 5.2 * means.std() / math.sqrt(5000) + 1e-5
    assert dist.TruncatedPolyaGamma(tensor(np.zeros(3)).float()).sample((2,)).dtype == float32
    native = compile(lambda v: d.log_prob(v).sum())
    native(tensor(x))
    assert_close(native(tensor(x)), np.log(expected).sum(), rtol=1e-11)


@pytest.mark.slow
def test_polya_gamma_moments_are_those_of_mpmath():
    d = dist.TruncatedPolyaGamma(tensor(np.zeros(())))

    def density(x):
        rate = mpmath.pi**2 * x / 2 if x > 0.16 else 1 / (8 * x)
        size = 2 * mpmath.pi if x > 0.16 else 1 / mpmath.sqrt(2 * mpmath.pi * x**3)
        odd = [2 * k + 1 for k in range(12)]
        return size * sum((-1) ** (k // 2) * k * mpmath.exp(-k * k * rate) for k in odd)

    parts = [0.001, 0.02, 0.06, 0.16, 0.5, 1.2, 2.5]
    whole = mpmath.quad(density, parts)
    mean_of = lambda fn: mpmath.quad(lambda x: fn(x) * density(x) / whole, parts)
    mean = mean_of(lambda x: x)
    spread = mean_of(lambda x: (x - mean) ** 2)
    assert_close(d.mean, float(mean), rtol=1e-12)
    assert_close(d.variance, float(spread), rtol=1e-12)
    assert_close(d.skewness, float(mean_of(lambda x: (x - mean) ** 3) / spread**1.5), rtol=1e-11)
    assert_close(d.kurtosis, float(mean_of(lambda x: (x - mean) ** 4) / spread**2 - 3), rtol=1e-11)
    assert_close(d.entropy(), -float(mean_of(lambda x: mpmath.log(density(x) / whole))), rtol=1e-12)
    top = d.log_prob(d.mode.item() + np.array([-1e-4, 0.0, 1e-4])).numpy()
    assert top[1] > max(top[0], top[2]) and abs(top[0] - top[2]) < 1e-11 * 1e3
