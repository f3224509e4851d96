"""Every distribution of single numbers has a cdf, quantiles, moments, a mode and an entropy.

The law walks over all public classes; what is missing or not a number stands in a table, with the
reason. That numbers are right is shown in test_every_distribution.py against references, and here
for what is found by quadrature, where it is asked for much.
"""

import inspect
import math

import numpy as np
import pytest
from scipy import special, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.distributions import constraints
from probtorch.tensor import tensor
from probtorch.testing import assert_close
from tests.distributions.cases import CASES
from tests.distributions.further_cases import FURTHER

PROBABILITIES = ("cdf", "log_cdf", "survival", "log_survival")
MOMENTS = ("mean", "variance", "mode", "skewness", "kurtosis")
ALL = (*PROBABILITIES, "icdf", *MOMENTS, "entropy")

NORMAL = dist.Normal(np.zeros(2), np.array([1.0, 2.0]))
TWO = dist.Categorical(np.array([0.3, 0.7]))
# Distributions made of others, or of whole numbers, which have no entry in cases.py.
MADE = {
    "DiscreteUniform": dist.DiscreteUniform(np.array([0.0, 2.0]), np.array([4.0, 9.0])),
    "Empirical": dist.Empirical(np.array([[1.0, 2.0, 5.0]] * 2), np.zeros((2, 3))),
    "ExtendedBetaBinomial": dist.ExtendedBetaBinomial(
        np.array([2.0, 3.0]), np.array([1.5, 0.7]), np.array([5.0, 5.0])
    ),
    "ExtendedBinomial": dist.ExtendedBinomial(np.array([5.0, 5.0]), np.array([0.3, 0.6])),
    "FiniteDiscrete": dist.FiniteDiscrete(
        np.array([1.0, 2.5, 7.0]), np.array([[0.2, 0.5, 0.3]] * 2)
    ),
    "FoldedDistribution": dist.FoldedDistribution(NORMAL),
    "HyperGeometric": dist.HyperGeometric(
        np.array([20.0, 50.0]), np.array([7.0, 11.0]), np.array([5.0, 30.0])
    ),
    "Interpolated": dist.Interpolated(np.linspace(0, 1, 4), np.array([[0.1, 0.5, 1.0, 0.4]] * 2)),
    "LogNormalNegativeBinomial": dist.LogNormalNegativeBinomial(
        np.array([2.0, 5.0]), np.array([0.3, -0.4]), np.array([0.3, 0.6])
    ),
    "MixtureGeneral": dist.MixtureGeneral(TWO, [NORMAL, dist.Gumbel(np.zeros(2), 1.0)]),
    "MixtureSameFamily": dist.MixtureSameFamily(TWO, NORMAL).expand((2,)),
    "NanMaskedNormal": dist.NanMaskedNormal(np.zeros(2), 1.0),
    "PolyaGamma": dist.PolyaGamma(np.array([1.0, 2.5]), np.array([0.0, -1.3])),
    "QuantizedDistribution": dist.QuantizedDistribution(dist.Gamma(np.array([2.0, 30.0]), 0.5)),
    "Skellam": dist.Skellam(np.array([3.0, 700.0]), np.array([5.0, 0.4])),
    "Stable": dist.Stable(np.array([1.6, 2.0]), np.array([0.4, 0.0])),
    "TransformedDistribution": dist.TransformedDistribution(NORMAL, dist.transforms.ExpTransform()),
    "TruncatedDistribution": dist.Truncated(NORMAL, -1.0, np.array([2.0, 3.0])),
    "TruncatedPolyaGamma": dist.TruncatedPolyaGamma(np.zeros(2)).expand((2,)),
    "ZeroInflatedDistribution": dist.ZeroInflatedDistribution(
        dist.Poisson(np.array([0.7, 40.0])), gate=0.3
    ),
}

ATOMS = "a density with atoms: its integrals are not those of a density"
NO_NUMBERS = "not a distribution of single numbers until it is told of what"
# Classes that have none of it, or lack the facts named.
EXCEPTIONS = {
    "Categorical": (("mean", "variance", "skewness", "kurtosis"), "categories are no quantities"),
    "Interpolated": (
        ("skewness", "kurtosis", "entropy"),
        "a kink at each of its points: nan",
    ),
    "ZeroOneInflatedBeta": (ALL, ATOMS),
    "VonMises": (("skewness", "kurtosis"), "an angle has a circular mean and variance alone"),
    "Censored": (ALL, ATOMS),
    "LeftCensoredDistribution": (ALL, ATOMS),
    "RightCensoredDistribution": (ALL, ATOMS),
    "HurdleDistribution": (ALL, ATOMS + "; with a discrete base as ZeroInflatedDistribution"),
    "Wiener": (ALL, "first passage times with a sign: a density by series, without a cdf"),
    "Delta": (ALL, "a point, without a density"),
    "ImproperUniform": (ALL, "no probability distribution"),
    "Distribution": (ALL, NO_NUMBERS),
    "ExponentialFamily": (ALL, NO_NUMBERS),
    "Independent": (ALL, NO_NUMBERS),
    "MaskedDistribution": (ALL, "a density of 0 where it is masked, which is none"),
    "MaskedMixture": (ALL, "elements of a batch from two distributions: ask each"),
    "Rejector": (ALL, "a density by any function, without a cdf"),
    "HiddenMarkovModel": (ALL, "a series, whatever the event shape of its class"),
    "RelaxedBernoulliStraightThrough": (ALL, "draws are rounded, the density is the relaxed one's"),
    "BernoulliLogitGLM": (ALL, "a regression: ask the distribution of one response"),
    "BinomialLogitGLM": (ALL, "a regression: ask the distribution of one response"),
    "CategoricalLogitGLM": (ALL, "a regression: ask the distribution of one response"),
    "NegBinomial2LogGLM": (ALL, "a regression: ask the distribution of one response"),
    "NormalIdGLM": (ALL, "a regression: ask the distribution of one response"),
    "OrderedLogisticGLM": (ALL, "a regression: ask the distribution of one response"),
    "PoissonLogGLM": (ALL, "a regression: ask the distribution of one response"),
    "Horseshoe": (ALL, "its density is an integral itself, and has a pole"),
}
# What is not a finite number, though the class has it; most for parameters of the entry.
INFINITE = {
    "Cauchy", "HalfCauchy", "StudentT", "Pareto", "InverseGamma", "Levy", "LogLogistic", "Frechet",
    "Dagum", "Burr", "HalfStudentT", "FisherSnedecor", "LowerTruncatedPowerLaw", "NoncentralT",
    "GeneralizedPareto", "GeneralizedExtremeValue", "Stable", "RelaxedBernoulli", "Beta",
    "YuleSimon", "Kumaraswamy", "Chi", "NoncentralChi2", "TwoPieceStudentT",
    "GammaGamma", "SkewStudentT", "Zipf", "LambertWNormal",
}  # fmt: skip

SCALAR = {c.cls.__name__: c for c in CASES + FURTHER if c.event_dim == 0}


def instance(name):
    return MADE[name] if name in MADE else SCALAR[name].make(seed=6)[0]


def test_every_univariate_class_is_asked():
    names = {
        name
        for name in dist.__all__
        if inspect.isclass(cls := getattr(dist, name))
        and issubclass(cls, dist.Distribution)
        and getattr(cls.support, "event_dim", 0) == 0
    }
    assert names - set(SCALAR) - set(MADE) - set(EXCEPTIONS) == set()
    assert all(reason for _, reason in EXCEPTIONS.values())


ASKED = [n for n in {**SCALAR, **MADE} if EXCEPTIONS.get(n, ((), ""))[0] is not ALL]
# Densities or cdfs that are sums or integrals take long; that of Stable a minute.
LONG = {
    "HyperGeometric", "LogNormalNegativeBinomial", "NoncentralChi2", "NoncentralT", "Skellam",
    "NormalInverseGaussian", "PolyaGamma", "Rice", "SkewStudentT", "Stable",
}  # fmt: skip
ASKED = [pytest.param(n, marks=pytest.mark.slow if n in LONG else []) for n in ASKED]


@pytest.mark.parametrize("name", ASKED)
def test_a_univariate_distribution_has_all_its_facts(name):
    d = instance(name)
    without = EXCEPTIONS.get(name, ((), ""))[0]
    middle = d.icdf(tensor(np.full(d.batch_shape, 0.4)))
    assert d.support.check(middle).numpy().all()
    cdf, log_cdf, above, log_above = (getattr(d, p)(middle).numpy() for p in PROBABILITIES)
    assert_close(cdf + above, np.ones(d.batch_shape), rtol=1e-6)
    assert (cdf >= 0.4 - 1e-6).all()
    assert_close(log_cdf, np.log(cdf), rtol=1e-5, atol=1e-6)
    with np.errstate(divide="ignore"):
        assert_close(log_above, np.log(above), rtol=1e-5, atol=1e-6)
    for fact in (*MOMENTS, "entropy"):
        if fact in without:
            continue
        value = d.entropy() if fact == "entropy" else getattr(d, fact)
        assert value.shape == d.batch_shape, fact
        if name not in INFINITE:
            assert np.isfinite(value.numpy()).all(), (fact, value)


# ------------------------------------------------------------------------------ by quadrature


@pytest.mark.parametrize("rate", [1e-6, 0.3, 40.0, 1023.7, 5e4, 1e7, 1e12])
def test_the_entropy_of_a_poisson_is_found_at_every_size(rate):
    if rate < 2000.0:
        k = np.arange(4000.0)
        expected = special.entr(stats.poisson(rate).pmf(k)).sum()
    else:
        # The asymptotic series; the next term is of order rate^-3.
        expected = (
            0.5 * math.log(2 * math.pi * math.e * rate) - 1 / (12 * rate) - 1 / (24 * rate**2)
        )
    assert_close(dist.Poisson(np.array(rate)).entropy(), expected, rtol=2e-9)


@pytest.mark.parametrize(("count", "probs"), [(0.05, 0.3), (3.0, 0.99), (40.0, 0.98), (1e4, 0.2)])
def test_the_entropy_of_a_negative_binomial_is_its_sum(count, probs):
    reference = stats.nbinom(count, 1 - probs)
    k = np.arange(60_000.0)
    p = reference.pmf(k)
    expected = -(p * np.where(p > 0, reference.logpmf(k), 0.0)).sum()
    d = dist.NegativeBinomial(np.array(count), np.array(probs))
    assert_close(d.entropy(), expected, rtol=1e-8)


def test_facts_of_made_distributions_are_those_of_scipy():
    # Cut off on both sides, and a density with a pole at 0.
    cut = dist.Truncated(dist.Normal(np.array(0.0), 1.0), -1.0, 2.0)
    reference = stats.truncnorm(-1, 2)
    for name, value in zip(("mean", "variance"), reference.stats("mv"), strict=True):
        assert_close(getattr(cut, name), value, rtol=1e-7)
    assert_close(cut.entropy(), reference.entropy(), rtol=1e-7)
    assert_close(cut.mode, 0.0, atol=1e-6)
    pole = dist.Truncated(dist.Gamma(np.array(0.1), np.array(1.0)), upper=np.array(5.0))
    inside = special.gammainc(0.1, 5.0)
    assert_close(pole.mean, 0.1 * special.gammainc(1.1, 5.0) / inside, rtol=1e-8)
    t = np.linspace(-400.0, math.log(5.0), 400_001)
    log_p = -0.9 * t - np.exp(t) - special.gammaln(0.1) - math.log(inside)
    expected = -np.trapezoid(log_p * np.exp(log_p + t), t)
    assert_close(pole.entropy(), expected, rtol=1e-7)
    # A tail of 3.5: the fourth moment has no end.
    heavy = dist.TransformedDistribution(
        dist.StudentT(np.array(3.5), np.array(0.0), np.array(1.0)),
        dist.transforms.AffineTransform(1.0, 2.0),
    )
    assert_close(heavy.mean, 1.0, rtol=1e-8)
    assert_close(heavy.variance, 4.0 * 3.5 / 1.5, rtol=1e-8)
    assert heavy.kurtosis.item() == math.inf
    table = dist.FiniteDiscrete(np.array([1.0, 2.5, 7.0]), np.array([0.2, 0.5, 0.3]))
    third = np.array([0.2, 0.5, 0.3]) @ (np.array([1.0, 2.5, 7.0]) - 3.55) ** 3
    assert_close(table.skewness, third / 5.4225**1.5)
    # Masses that do not sum to 1 give no number.
    assert math.isnan(dist.Censored(dist.Normal(np.array(0.0), 1.0), -1.0, 1.0).mean.item())


@pytest.mark.slow
def test_facts_by_quadrature_have_slopes_and_are_compiled():
    def entropy(a, high):
        return dist.Truncated(dist.Gamma(a, a * 0.0 + 1.0), 0.5, high).entropy()

    given = [np.array(2.3), np.array(4.0)]
    leaves = [tensor(v, requires_grad=True) for v in given]
    for k, slope in enumerate(grad(entropy(*leaves), leaves)):
        ends = []
        for h in (1e-5, -1e-5):
            moved = [v + (h if i == k else 0.0) for i, v in enumerate(given)]
            ends.append(entropy(*map(tensor, moved)).item())
        assert_close(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-5)
    native = compile(lambda r: dist.Poisson(r).entropy())
    native(tensor(np.array(7.0)))
    assert_close(native(tensor(np.array(7.0))), stats.poisson(7.0).entropy(), rtol=1e-8)
    assert isinstance(dist.VonMises.support, constraints.Circular)
    with pytest.raises(NotImplementedError, match="closed-form skewness"):
        _ = dist.VonMises(0.0, 1.0).skewness
