"""Rarer distributions: whole parameters, and names that stand for distributions there are."""

import math

import mpmath
import numpy as np
import pytest
from scipy import special, stats

import probtorch.distributions as dist
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.errors import ArgumentError, DomainError
from probtorch.tensor import tensor
from probtorch.testing import assert_close


def test_a_discrete_uniform_has_both_its_ends():
    low, high = np.array([-2.0, 0.0, 3.0]), np.array([4.0, 0.0, 12.0])
    d, reference = dist.DiscreteUniform(low, high), stats.randint(low, high + 1)
    x = d.sample((4000,), Generator(1)).numpy()
    assert (x.min(0) == low).all() and (x.max(0) == high).all()
    assert stats.chisquare(np.bincount((x[:, 2] - 3).astype(int))).pvalue > 1e-6
    assert_close(d.log_prob(x[:9]), reference.logpmf(x[:9]))
    at = np.arange(-4.0, 15.0)[:, None] + np.zeros(3)
    assert_close(d.cdf(at), reference.cdf(at))
    assert_close(d.icdf(d.cdf(x[:9])), x[:9])
    assert_close(d.mean, (low + high) / 2)
    assert_close(d.variance, ((high - low + 1) ** 2 - 1) / 12)
    assert_close(d.entropy(), np.log(high - low + 1))
    assert_close(d.kurtosis[2], stats.randint(3, 13).stats("k"))
    assert (dist.DiscreteUniform(1, 3).enumerate_support().numpy() == [1, 2, 3]).all()
    with pytest.raises(ArgumentError, match="the same bounds"):
        d.enumerate_support()
    with pytest.raises(DomainError, match="parameter high"):
        dist.DiscreteUniform(3.0, 2.0)
    with pytest.raises(DomainError, match="outside the support"):
        dist.DiscreteUniform(0, 2).log_prob(3.0)


COUNTS = np.array([0.0, 1.0, 4.0])
SHARES = np.array([0.1, 0.5, 0.93])
PAIR = [[0.3, -0.7], [-1.0, 2.0]]
SPREAD = [0.0, 1.0], [1.0, 2.0]
DIAGONAL = [0.0, 1.0], [[1.0, 0.0], [0.0, 4.0]]
MATRIX = [0.0, 1.0], np.array([[1.0, 0.5], [0.5, 2.0]])
FACTOR = [0.0, 1.0], np.linalg.cholesky(MATRIX[1])
# SciPy's kappa, place and scale: tails exp(-kappa (x - place) / scale) and exp((x - place) / (kappa
# scale)), where Stan has 2 tau / sigma and 2 (1 - tau) / sigma.
SKEWED = np.sqrt(0.3 / 0.7), 0.2, 0.4 / np.sqrt(0.3 * 0.7)
SAME = {
    "BernoulliLogits": ((0.3,), COUNTS[:2], stats.bernoulli(special.expit(0.3))),
    "BernoulliProbs": ((0.3,), COUNTS[:2], stats.bernoulli(0.3)),
    "BinomialLogit": ((5, 0.3), COUNTS, stats.binom(5, special.expit(0.3))),
    "ChiSquared": ((3.0,), SHARES, stats.chi2(3.0)),
    "GenExtreme": ((0.1, 0.5, 0.2), SHARES, stats.genextreme(-0.2, 0.1, 0.5)),
    "GenPareto": ((0.1, 0.5, 0.2), SHARES, stats.genpareto(0.2, 0.1, 0.5)),
    "LogPoisson": ((0.3,), COUNTS, stats.poisson(np.exp(0.3))),
    "MultivariateNormalDiag": (
        ([0.0, 1.0], [1.0, 2.0]),
        PAIR,
        stats.multivariate_normal(*DIAGONAL),
    ),
    "MultivariateNormalFullCovariance": (MATRIX, PAIR, stats.multivariate_normal(*MATRIX)),
    "MultivariateNormalTriL": (FACTOR, PAIR, stats.multivariate_normal(*MATRIX)),
    "MvNormal": (MATRIX, PAIR, stats.multivariate_normal(*MATRIX)),
    "MvStudentT": ((5.0, *MATRIX), PAIR, stats.multivariate_t(*MATRIX, 5.0)),
    "SkewDoubleExponential": ((0.2, 0.8, 0.3), SHARES, stats.laplace_asymmetric(*SKEWED)),
    "BetaProportion": ((0.3, 5.0), SHARES, stats.beta(1.5, 3.5)),
    "BinomialLogits": ((0.3, 5), COUNTS, stats.binom(5, special.expit(0.3))),
    "BinomialProbs": ((0.3, 5), COUNTS, stats.binom(5, 0.3)),
    "CategoricalLogits": (([0.0, np.log(3.0)],), COUNTS[:2], stats.bernoulli(0.75)),
    "CategoricalProbs": (([0.2, 0.8],), COUNTS[:2], stats.bernoulli(0.8)),
    "ExponentiallyModifiedGaussian": ((0.3, 2.0, 0.4), COUNTS, stats.exponnorm(1.25, 0.3, 2.0)),
    "GammaPoisson": ((3.0, 0.5), COUNTS, stats.nbinom(3.0, 0.5 / 1.5)),
    "GeometricLogits": ((0.3,), COUNTS, stats.geom(special.expit(0.3), -1)),
    "GeometricProbs": ((0.3,), COUNTS, stats.geom(0.3, -1)),
    "Lomax": ((3.0, 2.0, -0.5), COUNTS, stats.lomax(3.0, -0.5, 2.0)),
    "MultinomialLogits": (([0.0, 0.0], 3), [[1.0, 2.0]], stats.multinomial(3, [0.5, 0.5])),
    "MultinomialProbs": (([0.2, 0.8], 3), [[1.0, 2.0]], stats.multinomial(3, [0.2, 0.8])),
    "NegativeBinomial2": ((2.0, 3.0), COUNTS, stats.nbinom(3.0, 0.6)),
    "NegativeBinomialLogits": ((3.0, 0.0), COUNTS, stats.nbinom(3.0, 0.5)),
    "NegativeBinomialProbs": ((3.0, 0.4), COUNTS, stats.nbinom(3.0, 0.6)),
    "ScaledInverseChi2": ((4.0, 1.5), SHARES, stats.invgamma(2.0, scale=4.5)),
    "Wald": ((2.0, 3.0), SHARES, stats.invgauss(2 / 3, scale=3.0)),
}


@pytest.mark.parametrize("name", SAME)
def test_another_name_makes_the_same_distribution(name):
    arguments, x, reference = SAME[name]
    d = getattr(dist, name)(*(np.array(a) if isinstance(a, list) else a for a in arguments))
    log = getattr(reference, "logpmf", None) or reference.logpdf
    assert_close(d.log_prob(tensor(np.asarray(x))), log(x), rtol=1e-12)


def test_flat_priors_have_log_density_0():
    assert dist.Flat().log_prob(-3.0).item() == 0.0
    assert dist.HalfFlat().log_prob(3.0).item() == 0.0
    with pytest.raises(DomainError, match="outside the support"):
        dist.HalfFlat().log_prob(-1.0)


def test_an_affine_beta_is_a_beta_on_another_interval():
    d, reference = dist.AffineBeta(2.0, 3.0, -1.0, 4.0), stats.beta(2.0, 3.0, -1.0, 4.0)
    x = np.array([-0.9, 0.3, 2.8])
    assert_close(d.log_prob(tensor(x)), reference.logpdf(x))
    assert_close(d.cdf(tensor(x)), reference.cdf(x))


def test_a_relaxed_bernoulli_by_logits_is_one_by_probabilities():
    d = dist.RelaxedBernoulliLogits(0.7, 0.3)
    other = dist.RelaxedBernoulli(0.7, probs=special.expit(0.3))
    assert_close(d.log_prob(tensor(SHARES)), other.log_prob(tensor(SHARES)))


def test_quantiles_by_search_have_the_dtype_of_level_and_parameters():
    single, double = tensor([0.3, 0.9]), tensor(np.array([0.3, 0.9]))
    exact = stats.gamma(2.0).ppf([0.3, 0.9])
    for d, p, dtype in (
        (dist.Gamma(2.0), single, "float32"),
        (dist.Gamma(2.0), double, "float64"),
        (dist.Gamma(tensor([2.0])), single, "float32"),
        (dist.Gamma(tensor(np.array([2.0]))), single, "float64"),
    ):
        x = d.icdf(p)
        assert x.array.dtype == dtype
        assert_close(x.numpy(), exact, rtol=1e-6)
    assert abs(dist.Gamma(2.0).icdf(0.5).item() - stats.gamma(2.0).median()) < 1e-6
    assert dist.Poisson(2.5).icdf(0.5).item() == 2.0
    assert np.isnan(dist.Gamma(2.0).icdf(tensor([-0.1, 1.1])).numpy()).all()
    ends = dist.Gamma(2.0).icdf(tensor([0.0, 1.0])).numpy()
    assert ends[0] == 0.0 and ends[1] == np.inf


def test_points_and_mixtures_have_the_names_of_other_libraries():
    for d in (dist.Deterministic(2.0), dist.DiracDelta(2.0)):
        assert isinstance(d, dist.Delta) and d.cdf(2.0).item() == 1.0
    w, mu, sigma = np.array([0.2, 0.8]), np.array([0.0, 3.0]), np.array([1.0, 0.5])
    d = dist.NormalMixture(w, mu, sigma)
    expected = np.log((w * stats.norm(mu, sigma).pdf(1.7)).sum())
    assert_close(d.log_prob(1.7), expected)
    with pytest.raises(ArgumentError, match="exactly one of scale, chol"):
        dist.MvStudentT(5.0, [0.0, 1.0])


@pytest.mark.parametrize(
    ("make", "exact", "x"),
    [
        (lambda a: dist.YuleSimon(a), lambda a, k: mpmath.log(a * mpmath.beta(k, a + 1)), 4.0),
        (lambda a: dist.YuleSimon(a), lambda a, k: mpmath.log(a * mpmath.beta(k, a + 1)), 9e4),
        (
            lambda a: dist.BetaNegativeBinomial(a, 25099.0, 4e7),
            lambda a, k: (
                mpmath.log(mpmath.beta(a + k, 25099 + mpmath.mpf(4e7)))
                - mpmath.log(mpmath.beta(a, 25099))
                + mpmath.loggamma(4e7 + k)
                - mpmath.loggamma(4e7)
                - mpmath.loggamma(k + 1)
            ),
            71274.0,
        ),
        (
            lambda a: dist.Chi(a),
            lambda a, x: (
                (a - 1) * mpmath.log(x)
                - x * x / 2
                - (a / 2 - 1) * mpmath.log(2)
                - mpmath.loggamma(a / 2)
            ),
            1e-300,
        ),
    ],
)
@pytest.mark.parametrize("a", [1e-5, 3.0, 8e14, 5e44])
def test_densities_hold_where_numbers_are_of_very_different_size(make, exact, x, a):
    with mpmath.workdps(120):
        value = float(exact(mpmath.mpf(a), mpmath.mpf(x)))
    d = make(tensor(np.array(a)))
    assert_close(d.log_prob(tensor(np.array(x))), value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("c", "kappa"), [(0.1, 1e5), (0.05, 1e3), (-0.3, 2.0)])
def test_moments_of_an_extended_pareto_tail_keep_their_digits_in_single_precision(c, kappa):
    c = float(np.float32(c))
    d = dist.ExtendedGeneralizedPareto(0.0, 1.0, tensor(np.float32(c)), tensor(np.float32(kappa)))
    a, b = (
        mpmath.gamma(kappa + 1) * mpmath.gamma(1 - i * c) / mpmath.gamma(kappa + 1 - i * c)
        for i in (1, 2)
    )
    assert d.mean.dtype == d.variance.dtype == tensor(np.float32(0)).dtype
    assert_close(d.mean, np.float32((a - 1) / c), rtol=1e-5)
    assert_close(d.variance, np.float32((b - a * a) / c**2), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "make",
    [
        dist.GeneralizedPareto,
        lambda *given: dist.ExtendedGeneralizedPareto(*given, 5.0),
        dist.GeneralizedExtremeValue,
    ],
    ids=["GPD", "extended", "GEV"],
)
def test_draws_of_bounded_tails_have_finite_densities(make, dtype):
    # Most of the mass is nearer to the end than floats lie there.
    loc, scale = np.array([0.015, 3e3, 0.0], dtype), np.array([67.0, 0.2, 1.0], dtype)
    for c in (-12.0, -2.0, -40.0):
        d = make(tensor(loc), tensor(scale), tensor(np.array(c, dtype)))
        x = d.sample((400,), Generator(1))
        assert d.support.check(x).numpy().all()
        assert np.isfinite(d.log_prob(x).numpy()).all()


def log_truncated(loc, scale, low, high, x):
    upper = lambda z: mpmath.erfc(z / mpmath.sqrt(2)) / 2
    near, far = sorted(abs((v - loc) / scale) for v in (low, high))
    mass = upper(near) - (0 if far == mpmath.inf else upper(far))
    size = mpmath.log(scale * mass) + mpmath.log(2 * mpmath.pi) / 2
    return -(((x - loc) / scale) ** 2) / 2 - size


@pytest.mark.parametrize(
    ("low", "high"), [(1e7, 1e7 + 1e-6), (-1e7 - 1e-6, -1e7), (2e4, math.inf), (-3.0, -1.5)]
)
def test_far_in_both_tails_a_truncated_normal_keeps_its_digits(low, high):
    step = 0.25 * min(high - low, 1e-4)
    x = tensor(np.array(high - step if low < 0 else low + step))
    given = [tensor(np.array(v), requires_grad=True) for v in (0.3, 0.5, low, high)]
    lp = dist.TruncatedNormal(*given).log_prob(x)
    with mpmath.workdps(60):
        loc, *others = (mpmath.mpf(v.item()) for v in (*given, x))
        value, h = log_truncated(loc, *others), mpmath.mpf(10) ** -20
        slope = (log_truncated(loc + h, *others) - value) / h
    assert_close(lp, float(value), rtol=1e-12)
    unit = 1.0 / min(abs(low), abs(high))
    assert abs(grad(lp, given[:1])[0].item() - float(slope)) < 1e-7 * (abs(slope) + unit)
