"""Every distribution of single numbers has a cdf, quantiles, moments, a mode and an entropy.

The law walks over all public classes; what is missing or not a number stands in a table, with the
reason. That numbers are right is shown in test_every_distribution.py against references, and here
for what is found by quadrature, where it is asked for much.
"""

import inspect
import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import special, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.distributions import constraints
from probtorch.errors import DomainError
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
    "Censored": dist.Censored(NORMAL, -0.5, np.array([1.0, 3.0])),
    "Delta": dist.Delta(np.array([1.0, -2.0])),
    "HurdleDistribution": dist.HurdleGamma(np.array([0.3, 0.05]), 2.0, 1.5),
    "LeftCensoredDistribution": dist.LeftCensoredDistribution(NORMAL, True),
    "RightCensoredDistribution": dist.RightCensoredDistribution(NORMAL, True),
    "ZeroOneInflatedBeta": dist.ZeroOneInflatedBeta(2.0, np.array([3.0, 1.5]), 0.3, 0.6),
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
    "Wiener": dist.Wiener(np.array([1.0, 1.4]), 0.1, 0.3, np.array([0.0, -0.8])),
    "ZeroInflatedDistribution": dist.ZeroInflatedDistribution(
        dist.Poisson(np.array([0.7, 40.0])), gate=0.3
    ),
}

NO_NUMBERS = "not a distribution of single numbers until it is told of what"
# Classes that have none of it, or lack the facts named.
EXCEPTIONS = {
    "Wiener": (("skewness", "kurtosis", "mode", "entropy"), "a density by series, of two parts"),
    "Delta": (("skewness", "kurtosis"), "a point has no spread to measure them in"),
    "ImproperUniform": (ALL, "no probability distribution"),
    "Distribution": (ALL, NO_NUMBERS),
    "ExponentialFamily": (ALL, NO_NUMBERS),
    "Independent": (ALL, NO_NUMBERS),
    "MaskedDistribution": (ALL, "a density of 0 where it is masked, which is none"),
    "MaskedMixture": (ALL, "elements of a batch from two distributions: ask each"),
    "Rejector": (ALL, "a density by any function, without a cdf"),
    "MarkovChain": (ALL, "a series, whatever the event shape of its class"),
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
    "GammaGamma", "SkewStudentT", "Zipf", "LambertWNormal", "ExtendedGeneralizedPareto",
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
    "BetaQuotient", "NormalInverseGaussian", "PolyaGamma", "Rice", "SkewStudentT", "Stable",
}  # fmt: skip


def each_asked(names):
    """Names as parameters, those that take long at night."""
    return [pytest.param(n, marks=pytest.mark.slow if n in LONG else []) for n in names]


ASKED = each_asked(ASKED)


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


# ------------------------------------------------------------------------------ partly points


def by_parts(points, weight, log_density, low, high):
    """Mean, variance, skewness, excess kurtosis and entropy of points and a density between."""
    u, w = np.polynomial.legendre.leggauss(400)
    x, mass = low + (high - low) * (u + 1) / 2, weight * np.exp(log_density) * w * (high - low) / 2
    x = np.concatenate([x, [at for _, at in points]])
    p = np.concatenate([mass, [share for share, _ in points]])
    logs = np.concatenate([math.log(weight) + log_density, np.log([s for s, _ in points])])
    mean = (p * x).sum()
    c = [(p * (x - mean) ** k).sum() for k in range(5)]
    return mean, c[2], c[3] / c[2] ** 1.5, c[4] / c[2] ** 2 - 3, -(p * logs).sum()


def nodes(low, high):
    return low + (high - low) * (np.polynomial.legendre.leggauss(400)[0] + 1) / 2


def partly_points():
    n, b, g = stats.norm(), stats.beta(2.0, 3.0), stats.gamma(2.0)
    ends, inside = [(n.cdf(-0.5), -0.5), (n.sf(1.0), 1.0)], n.cdf(1.0) - n.cdf(-0.5)
    cut = n.logpdf(nodes(-0.5, 1.0)) - math.log(inside)
    yield dist.Censored(dist.Normal(np.array(0.0), 1.0), -0.5, 1.0), (ends, inside, cut, -0.5, 1.0)
    yield (
        dist.HurdleGamma(np.array(0.3), 2.0),
        ([(0.3, 0.0)], 0.7, g.logpdf(nodes(0.0, 60.0)), 0.0, 60.0),
    )
    yield (
        dist.ZeroOneInflatedBeta(np.array(2.0), 3.0, 0.2, 0.4),
        ([(0.12, 0.0), (0.08, 1.0)], 0.8, b.logpdf(nodes(0.0, 1.0)), 0.0, 1.0),
    )


def test_what_is_partly_points_has_the_facts_of_both_parts():
    for d, parts in partly_points():
        found = [d.mean, d.variance, d.skewness, d.kurtosis, d.entropy()]
        for ours, theirs in zip(found, by_parts(*parts), strict=True):
            assert_close(ours, theirs, rtol=1e-6, msg=type(d).__name__)


def test_a_censored_count_is_a_count():
    d, k = dist.Censored(dist.Poisson(np.array(3.0)), 1.0, 6.0), np.arange(1.0, 7.0)
    p = stats.poisson(3.0).pmf(k)
    p[0], p[-1] = stats.poisson(3.0).cdf(1), stats.poisson(3.0).sf(5)
    assert d.is_discrete
    assert_close(d.log_prob(k), np.log(p))
    assert_close(d.cdf(k), p.cumsum())
    assert_close(d.survival(k), 1.0 - p.cumsum(), atol=1e-12)
    assert_close(d.mean, (k * p).sum(), rtol=1e-9)
    assert_close(d.entropy(), special.entr(p).sum(), rtol=1e-9)
    assert_close(d.mode, 1.0 + p.argmax())
    with pytest.raises(DomainError, match="Censored: parameter high"):
        dist.Censored(dist.Poisson(3.0), high=2.5)


def test_straight_lines_between_points_are_integrated_exactly():
    x, y = np.array([0.0, 1.0, 1.5, 4.0]), np.array([0.0, 2.0, 2.1, 0.3])
    d = dist.Interpolated(x, y)
    at = np.concatenate([nodes(a, b) for a, b in itertools.pairwise(x)])
    log_p, w = d.log_prob(at).numpy(), np.polynomial.legendre.leggauss(400)[1]
    mass = np.exp(log_p) * np.concatenate([w * (b - a) / 2 for a, b in itertools.pairwise(x)])
    mean = (mass * at).sum()
    c = [(mass * (at - mean) ** k).sum() for k in range(5)]
    assert_close(d.skewness, c[3] / c[2] ** 1.5)
    assert_close(d.kurtosis, c[4] / c[2] ** 2 - 3.0)
    assert_close(d.entropy(), -(mass * log_p).sum(), rtol=1e-9)


def test_the_cdf_of_independent_elements_is_a_product():
    d = dist.Normal(np.array([0.0, 1.0]), 2.0).to_event(1)
    x = np.array([0.5, -1.0])
    assert_close(d.cdf(x), stats.norm([0.0, 1.0], 2.0).cdf(x).prod())
    assert_close(d.log_survival(x), math.log1p(-stats.norm([0.0, 1.0], 2.0).cdf(x).prod()))


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
    assert math.isnan(dist.Wiener(np.array(1.0), 0.1).skewness.item())


@pytest.mark.parametrize("name", ["Gompertz", "ExtendedGeneralizedPareto", "Bates"])
def test_facts_by_quadrature_have_slopes_where_the_density_ends_or_overflows(name):
    case = SCALAR[name]
    given = {n: v for n, v in vars(case.arguments(3)).items() if n in case.params}

    def fact(what, values):
        d = case.cls(**values, **case.fixed)
        return d.entropy() if what == "entropy" else getattr(d, what)

    for what in ("mean", "variance", "entropy"):
        leaves = {n: v.detach().requires_grad_() for n, v in given.items()}
        slopes = grad(fact(what, leaves).sum(), list(leaves.values()), materialize_grads=True)
        for n, slope in zip(given, slopes, strict=True):
            ends = [fact(what, {**given, n: given[n] + h}).numpy() for h in (1e-5, -1e-5)]
            assert_close(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-4, atol=1e-6, msg=(what, n))


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


def test_angles_have_circular_shape_parameters():
    """Mardia and Jupp (2000), 3.4: ratios of Bessel functions, by mpmath."""
    k = np.array([1e-8, 1e-3, 0.5, 3.0, 50.0, 59.0, 61.0, 1e4])
    with mpmath.workdps(60):
        exact = []
        for c in map(mpmath.mpf, k):
            one, two = (mpmath.besseli(n, c) / mpmath.besseli(0, c) for n in (1, 2))
            exact.append(float((two - one**4) / (1 - one) ** 2))
    d = dist.VonMises(0.3, k)
    assert_close(d.kurtosis, np.array(exact), rtol=1e-9)
    assert (d.skewness.numpy() == 0.0).all()


def test_moments_of_categories_are_those_of_their_numbers():
    weights = np.array([[2.0, 5.0, 3.0], [0.1, 0.1, 0.8]])
    d = dist.Categorical(probs=weights)
    for i, p in enumerate(weights / weights.sum(-1, keepdims=True)):
        exact = stats.rv_discrete(values=(range(3), p)).stats(moments="mvsk")
        for fact, value in zip(("mean", "variance", "skewness", "kurtosis"), exact, strict=True):
            assert_close(getattr(d, fact)[i], value, rtol=1e-12)
