"""Kullback-Leibler divergences against quadrature, enumeration, and the laws of a divergence."""

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import special, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.distributions import constraints, kl_divergence, kl_rules, register_kl
from probtorch.distributions.divergences import between
from probtorch.distributions.skewed import TwoSided
from probtorch.distributions.transforms import AffineTransform, ExpTransform
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.exponentials import exp
from probtorch.tensor import tensor
from probtorch.testing import assert_close
from tests.distributions.cases import CASES
from tests.distributions.further_cases import FURTHER
from tests.distributions.test_kl_of_parts import PARTS, SHARING

ENTRIES = {case.id: case for case in (*CASES, *FURTHER)}
SAME = [
    "Normal",
    "LogNormal",
    "HalfNormal",
    "Laplace",
    "Cauchy",
    "Gumbel",
    "Exponential",
    "Gamma",
    "Beta",
    "Dirichlet",
    "Bernoulli-probs",
    "Bernoulli-logits",
    "Geometric-probs",
    "Binomial-probs",
    "Binomial-logits",
    "Poisson",
    "Categorical-probs",
    "Categorical-logits",
    "OneHotCategorical-probs",
    "MultivariateNormal-covariance_matrix",
    "MultivariateNormal-scale_tril",
    "Chi2",
    "ContinuousBernoulli-probs",
    "ContinuousBernoulli-logits",
    "InverseGamma",
    "HalfCauchy",
    "Weibull",
    "VonMises",
    "LKJCholesky",
    "AsymmetricLaplace",
    "Chi",
    "Frechet",
    "InverseGaussian",
    "InverseWishart-scale_matrix",
    "InverseWishartCholesky-scale_tril",
    "LKJ",
    "LogitNormal",
    "Maxwell",
    "Moyal",
    "Rayleigh",
    "Wishart-covariance_matrix",
    "WishartCholesky-scale_tril",
]
# Their supports move with the parameters, or they are made of other distributions: tested below.
APART = {
    dist.MaskedDistribution,
    dist.Multinomial,
    dist.NegativeBinomial,
    dist.Uniform,
    dist.Pareto,
    dist.Delta,
    dist.Independent,
    dist.LowRankMultivariateNormal,
    dist.TransformedDistribution,
    dist.CAR,
    # In test_written.py.
    dist.ExponentialFamily,
    dist.GaussianRandomWalk,
    dist.GeneralizedNormal,
    dist.HurdleDistribution,
    dist.LogUniform,
    dist.LowerTruncatedPowerLaw,
    dist.MatrixNormal,
    dist.TruncatedNormal,
    dist.ZeroInflatedDistribution,
    dist.ZeroSumNormal,
    # In test_normal_kin.py.
    dist.OMTMultivariateNormal,
    dist.ExpGamma,
    dist.SigmoidBeta,
    # In test_polya_gamma.py.
    dist.PolyaGamma,
    # In test_particular.py.
    dist.SphericalUniform,
    dist.VonMisesFisher,
} | PARTS


def t(*values):
    return tensor(np.array(values, dtype=float))


HALVES = t(0.5, 0.5)


def test_every_rule_is_tested():
    tested = {ENTRIES[name].cls for name in SAME} | APART
    ruled = {p for p, q in kl_rules._RULES if p is q}
    assert {p for p in ruled if not any(issubclass(c, p) for c in tested)} == set()


def grid(p):
    """Points and weights of an integral over p, and its log density there.

    By the trapezoidal rule, where both ends of p have been sent to infinity: for smooth densities
    it converges faster than any power of the step.
    """
    if isinstance(p, dist.VonMises):
        x, slope, step = np.linspace(-np.pi, np.pi, 2001)[:-1, None], 1.0, np.pi / 1000
    elif hasattr(p, "low"):
        # Half of the points on each side of a kink.
        top = getattr(p, "peak", (p.low + p.high) / 2).numpy()
        u, weights = np.polynomial.legendre.leggauss(200)
        u, weights = 0.5 * (u[:, None] + 1), 0.5 * weights[:, None]
        low, high = p.low.numpy(), p.high.numpy()
        x = np.concatenate([low + (top - low) * u, top + (high - top) * u])
        slope, step = np.concatenate([(top - low) * weights, (high - top) * weights]), 1.0
    elif p.support is constraints.real:
        u, step = np.linspace(-25, 25, 10_001, retstep=True)
        scale = p.scale.numpy()
        x, slope = p.loc.numpy() + scale * np.sinh(u[:, None]), scale * np.cosh(u[:, None])
    elif p.support.upper_bound == 1.0 if hasattr(p.support, "upper_bound") else False:
        u, step = np.linspace(-150, 34, 5001, retstep=True)
        x = special.expit(u[:, None])
        slope = x * special.expit(-u[:, None])
    elif isinstance(p, dist.Pareto):
        u, step = np.linspace(-40, 6.3, 5001, retstep=True)
        x = p.scale.numpy() * np.exp(np.exp(u[:, None]))
        slope = x * np.exp(u[:, None])
    else:
        u, step = np.linspace(-150, 300, 10_001, retstep=True)
        x = slope = np.exp(u[:, None])
    x = np.broadcast_to(x, (len(x), 3))
    log_p = p.log_prob(tensor(x)).numpy()
    density = np.exp(log_p) * slope * step
    kept = (density > 1e-290).any(1)
    return x[kept], density[kept], log_p[kept]


def by_quadrature(p, q, points=None):
    """KL as an integral; `points` are those of p."""
    x, density, log_p = grid(p) if points is None else points
    log_q = q.log_prob(tensor(x)).numpy()
    counts = density > 1e-290
    outside = (counts & (log_q == -math.inf)).any(0)
    counts &= np.isfinite(log_q)
    gap = np.where(counts, log_p, 0.0) - np.where(counts, log_q, 0.0)
    return np.where(outside, math.inf, (np.where(counts, density, 0.0) * gap).sum(0))


def tolerance(p, q):
    """Of the rule: less where a kink lies between its points, and next to 1 in float64."""
    kinked = (
        dist.Laplace
        | dist.Beta
        | dist.AsymmetricLaplace
        | dist.Kumaraswamy
        | dist.GeneralizedNormal
    )
    return 1e-4 if any(isinstance(d, kinked) for d in (p, q)) else 1e-6


@pytest.mark.parametrize("name", SAME)
def test_closed_forms_equal_quadrature_or_enumeration(name):
    case = ENTRIES[name]
    p, _ = case.make(seed=1)
    q, _ = case.make(seed=2)
    value = kl_divergence(p, q)
    assert value.shape == (3,)
    if p.has_enumerate_support:
        x = p.enumerate_support()
        lp = p.log_prob(x)
        assert_close(value, (lp.exp() * (lp - q.log_prob(x))).sum(0), rtol=1e-10)
    elif p.is_discrete:
        x = tensor(np.arange(400.0)[:, None] * np.ones(3))
        lp = p.log_prob(x)
        assert_close(value, (lp.exp() * (lp - q.log_prob(x))).sum(0), rtol=1e-10)
    elif p.event_dim == 0:
        assert_close(value, by_quadrature(p, q), rtol=tolerance(p, q), atol=1e-9)
    else:
        # 10 000 draws; z below 5.3.
        x = p.sample((10_000,), Generator(0))
        gap = (p.log_prob(x) - q.log_prob(x)).numpy()
        assert (np.abs(gap.mean(0) - value.numpy()) < 5.3 * gap.std(0) / 100).all()


@pytest.mark.parametrize("name", SAME)
def test_divergence_is_zero_only_for_equals_and_positive_otherwise(name):
    p, _ = ENTRIES[name].make(seed=1)
    q, _ = ENTRIES[name].make(seed=2)
    assert_close(kl_divergence(p, p), np.zeros(3), atol=1e-12)
    assert (kl_divergence(p, q).numpy() > 0).all()


@pytest.mark.parametrize("name", SAME)
def test_divergence_has_gradient_zero_at_equality(name):
    case = ENTRIES[name]
    values = case.arguments(seed=3)
    leaves = {k: getattr(values, k).detach().requires_grad_() for k in case.params}
    p = case.cls(**vars(values))
    gradients = grad(
        kl_divergence(p, case.cls(**leaves, **case.fixed)).sum(), list(leaves.values())
    )
    constants = (constraints.positive_definite, constraints.lower_cholesky)
    for g in gradients:
        g = (
            np.tril(g.numpy())
            if case.cls._fields[case.params[-1]].constraint in constants and g.ndim > 2
            else g.numpy()
        )
        assert_close(g, np.zeros(g.shape), atol=1e-10)


def test_mass_outside_the_other_support_is_infinite():
    wide, narrow = dist.Uniform(0.0, 3.0), dist.Uniform(1.0, 2.0)
    assert kl_divergence(wide, narrow).item() == math.inf
    assert_close(kl_divergence(narrow, wide), math.log(3.0), rtol=1e-6)
    assert kl_divergence(dist.Pareto(1.0, 2.0), dist.Pareto(2.0, 2.0)).item() == math.inf
    # Here log p - log q = log 3 + 3 log 2 - log 2 - log x, and E log x under p is log 2 + 1 / 3.
    expected = math.log(6.0) - 1 / 3
    assert_close(
        kl_divergence(dist.Pareto(t(2.0), 3.0), dist.Pareto(t(1.0), 2.0)), [expected], rtol=1e-10
    )
    assert kl_divergence(dist.Bernoulli(0.5), dist.Bernoulli(1.0)).item() == math.inf
    assert kl_divergence(dist.Bernoulli(1.0), dist.Bernoulli(1.0)).item() == 0.0
    assert (
        kl_divergence(dist.Categorical(t(0.5, 0.5)), dist.Categorical(t(1.0, 0.0))).item()
        == math.inf
    )
    assert_close(
        kl_divergence(dist.Categorical(t(1.0, 0.0)), dist.Categorical(t(0.5, 0.5))), math.log(2.0)
    )
    assert_close(kl_divergence(dist.Poisson(t(0.0)), dist.Poisson(t(2.0))), [2.0])


def test_exponentials_are_gammas():
    e, g = dist.Exponential(t(1.5)), dist.Gamma(t(2.0), t(0.7))
    as_gamma = dist.Gamma(t(1.0), t(1.5))
    assert_close(kl_divergence(e, g), kl_divergence(as_gamma, g))
    assert_close(kl_divergence(g, e), kl_divergence(g, as_gamma))


def test_wrapped_distributions_use_the_rule_of_their_bases():
    p, q = dist.Normal(t(0.0, 1.0), 1.0), dist.Normal(t(0.5, 0.5), 2.0)
    assert_close(kl_divergence(p.to_event(1), q.to_event(1)), kl_divergence(p, q).sum())
    push = lambda d: dist.TransformedDistribution(d, [ExpTransform(), AffineTransform(1.0, 2.0)])
    assert_close(kl_divergence(push(p), push(q)), kl_divergence(p, q))
    assert kl_divergence(dist.Delta(t(1.0)), dist.Delta(t(1.0))).item() == 0.0
    assert kl_divergence(p.expand((3, 2)), q).shape == (3, 2)


@pytest.mark.parametrize(
    "p, q, expected, fix",
    [
        (dist.Normal(), dist.StudentT(1.0), "registered closed form", "num_samples=1000"),
        (
            dist.Multinomial(3, t(0.5, 0.5)),
            dist.Multinomial(4, t(0.5, 0.5)),
            "3 and 4",
            "num_samples",
        ),
        (dist.NegativeBinomial(3, 0.5), dist.NegativeBinomial(4, 0.5), "one", "num_samples"),
        (
            dist.Normal().expand((2, 2)).to_event(1),
            dist.Normal().expand((2, 2)).to_event(2),
            "as many",
            "num_samples",
        ),
        (
            dist.TransformedDistribution(dist.Normal(), ExpTransform()),
            dist.TransformedDistribution(dist.Normal(), AffineTransform(0.0, 2.0)),
            "same transforms",
            "draws",
        ),
    ],
)
def test_pairs_without_a_closed_form_are_refused(p, q, expected, fix):
    with pytest.raises(NotImplementedError) as caught:
        kl_divergence(p, q)
    assert expected in caught.value.expected and fix in caught.value.fix
    assert caught.value.got == f"{type(p).__name__} and {type(q).__name__}"
    if p.event_shape == q.event_shape:
        assert kl_divergence(p, q, num_samples=10).shape == p.batch_shape


NAMES = {
    "GammaFamily": "Gamma",
    "TwoSided": "AsymmetricLaplace",
    "ContinuousBernoulli": "ContinuousBernoulli-logits",
}
BETWEEN = sorted(
    {
        (p, q)
        for p in between._FAMILIES
        for q in between._CROSS
        if p is not q and (p, q) in kl_rules._RULES
    },
    key=str,
)


@pytest.mark.parametrize("first", sorted({p for p, _ in BETWEEN}, key=str))
def test_divergences_between_families_equal_quadrature(first):
    p, _ = ENTRIES[NAMES.get(first.__name__, first.__name__)].make(seed=1)
    points = grid(p)
    for second in [q for p, q in BETWEEN if p is first]:
        q, _ = ENTRIES[NAMES.get(second.__name__, second.__name__)].make(
            seed=2, validate_args=False
        )
        value = np.broadcast_to(kl_divergence(p, q).numpy(), (3,))
        expected = by_quadrature(p, q, points)
        assert (value[expected == math.inf] == math.inf).all(), second
        # Of an expectation that does not exist a sum over a grid says nothing.
        known = np.isfinite(value)
        assert_close(
            value[known], expected[known], rtol=tolerance(p, q), atol=1e-9, msg=str(second)
        )


def test_expectations_that_do_not_exist_make_the_divergence_infinite():
    heavy = [dist.Pareto(1.0, 0.9), dist.HalfCauchy(1.0), dist.InverseGamma(0.9, 1.0)]
    for p in heavy:
        for q in (dist.Normal(), dist.HalfNormal(), dist.Exponential(), dist.Gamma(2.0, 1.0)):
            if (type(p), type(q)) != (dist.HalfCauchy, dist.Gamma):
                assert kl_divergence(p, q).item() == math.inf, (p, q)
    assert kl_divergence(dist.Cauchy(), dist.Normal()).item() == math.inf
    assert kl_divergence(dist.StudentT(1.5), dist.Normal()).item() == math.inf
    assert kl_divergence(dist.Gamma(1.0, 1.0), dist.InverseGamma(1.0, 1.0)).item() == math.inf
    assert kl_divergence(dist.Laplace(0.0, 2.0), dist.Gumbel(0.0, 1.0)).item() == math.inf
    # The right one of two rows, and its gradient is not spoilt by the other.
    low = t(-0.5, 0.5).requires_grad_()
    value = kl_divergence(dist.Uniform(low, 2.0), dist.Gamma(2.0, 1.0))
    assert value[0].item() == math.inf and math.isfinite(value[1].item())
    assert np.isfinite(grad(value[1], low)[0].numpy()).all()


def test_counts_are_compared_by_exact_sums():
    p, q = dist.NegativeBinomial(t(2.5, 4.0), 0.4), dist.NegativeBinomial(t(2.5, 4.0), 0.7)
    x = tensor(np.arange(400.0)[:, None])
    lp = p.log_prob(x)
    expected = (lp.exp() * (lp - q.log_prob(x))).sum(0)
    assert_close(kl_divergence(p, q), expected, rtol=1e-10)

    a, b = t(0.2, 0.5, 0.3), t(0.6, 0.1, 0.3)
    counts = [(i, j, 4 - i - j) for i in range(5) for j in range(5 - i)]
    p, q = dist.Multinomial(4, a), dist.Multinomial(4, b)
    lp = p.log_prob(tensor(np.array(counts, float)))
    expected = (lp.exp() * (lp - q.log_prob(tensor(np.array(counts, float))))).sum()
    assert_close(kl_divergence(p, q), expected, rtol=1e-10)

    p, q = dist.Binomial(t(2.0, 5.0), 0.3), dist.Binomial(t(4.0, 4.0), 0.6)
    k = np.arange(3)
    mass, other = stats.binom(2, 0.3).pmf(k), stats.binom(4, 0.6).pmf(k)
    expected = [(mass * np.log(mass / other)).sum(), math.inf]
    assert_close(kl_divergence(p, q), expected, rtol=1e-6)

    p, q = dist.Bernoulli(t(0.3, 0.0)), dist.Poisson(t(0.8, 0.8))
    lp = p.log_prob(tensor([[0.0], [1.0]]))
    terms = [0.7 * (math.log(0.7) + 0.8) + 0.3 * (math.log(0.3) + 0.8 - math.log(0.8)), 0.8]
    assert_close(kl_divergence(p, q), terms, rtol=1e-10)
    assert kl_divergence(dist.Poisson(1.0), dist.Bernoulli(0.5)).item() == math.inf
    none = kl_divergence(dist.Poisson(0.0), dist.Binomial(3, 0.5))
    assert_close(none, 3 * math.log(2.0), rtol=1e-6)

    # Without a rule, over the finite support of p.
    p, q = dist.Categorical(a), dist.Poisson(t(1.2))
    expected = sum(
        w * (math.log(w) - stats.poisson(1.2).logpmf(i)) for i, w in enumerate(a.tolist())
    )
    assert_close(kl_divergence(p, q), [expected], rtol=1e-10)
    assert kl_divergence(p, dist.Binomial(1, 0.5)).item() == math.inf


def test_vectors_of_independent_normals_are_multivariate_normals():
    d = dist.Normal(t(0.3, -1.0), t(0.5, 2.0)).to_event(1)
    q = dist.MultivariateNormal(t(0.0, 1.0), tensor(np.array([[1.0, 0.4], [0.4, 2.0]])))
    same = dist.MultivariateNormal(t(0.3, -1.0), tensor(np.diag([0.25, 4.0])))
    assert_close(kl_divergence(d, q), kl_divergence(same, q), rtol=1e-12)
    assert_close(kl_divergence(q, d), kl_divergence(q, same), rtol=1e-12)


def test_low_rank_normals_are_multivariate_normals():
    w, d = tensor(np.array([[1.0], [-0.5], [0.3]])), t(0.5, 1.0, 2.0)
    low = dist.LowRankMultivariateNormal(t(0.0, 1.0, 2.0), w, d)
    whole = dist.MultivariateNormal(t(0.0, 1.0, 2.0), w @ w.mT + tensor(np.diag([0.5, 1.0, 2.0])))
    other = dist.MultivariateNormal(t(1.0, 1.0, 1.0), tensor(np.eye(3) * 1.5))
    lower = dist.LowRankMultivariateNormal(t(1.0, 1.0, 1.0), w * 0.0, t(1.5, 1.5, 1.5))
    assert_close(kl_divergence(low, other), kl_divergence(whole, other), rtol=1e-10)
    assert_close(kl_divergence(other, low), kl_divergence(other, whole), rtol=1e-10)
    assert_close(kl_divergence(low, lower), kl_divergence(whole, other), rtol=1e-10)


def entry_of(cls):
    """Return the first case of a class, or of one made of it."""
    found = [c for c in ENTRIES.values() if c.cls is cls]
    return next(iter(found or [c for c in ENTRIES.values() if issubclass(c.cls, cls)]), None)


# More parameters must agree than two random cases do, or they are made of other distributions.
ALIKE = {dist.GeneralizedNormal, dist.NegativeBinomial} | SHARING
# The mean of 1000 draws says little: the variance of a gap is infinite, or nearly so. Quadrature
# has tested these.
HEAVY = {
    dist.InverseGamma,
    dist.Pareto,
    dist.Cauchy,
    dist.HalfCauchy,
    dist.StudentT,
    dist.Frechet,
    dist.LogNormal,
    TwoSided,
}
PAIRS = [
    (p, q)
    for p, q in kl_rules._RULES
    if None not in (entry_of(p), entry_of(q)) and not (p is q and p in ALIKE)
]


@pytest.mark.parametrize("first", sorted({p for p, _ in PAIRS}, key=lambda c: c.__name__))
def test_every_rule_agrees_with_draws(first):
    # 1000 draws and three numbers for each of 500 pairs: at z of 6 one false alarm in 10^5 runs,
    # were the means normal; seeds are fixed.
    n = 1000
    p, _ = entry_of(first).make(seed=1)
    x = p.sample((n,), Generator(3))
    log_p = p.log_prob_inside(x)
    for second in [q for a, q in PAIRS if a is first]:
        q, _ = entry_of(second).make(seed=2, validate_args=False)
        if p.event_shape != q.event_shape:
            continue
        value = np.broadcast_to(kl_divergence(p, q).numpy(), (3,))
        assert (value > 0.0).all(), second
        gap = (log_p - q._to_batch(q._density(x, False))).numpy()
        known = np.isfinite(value)
        gap, value = gap[:, known], value[known]
        assert np.isfinite(gap).all(), second
        if first not in HEAVY:
            z = np.abs(gap.mean(0) - value) / (gap.std(0) / math.sqrt(n) + 1e-12)
            assert (z < 6.0).all(), second


def test_structured_normal_vectors_are_multivariate_normals():
    whole = lambda d, cov: dist.MultivariateNormal(
        d.mean.reshape(-1), covariance_matrix=tensor(np.array(cov))
    )
    tril = np.array([[1.0, 0.0], [0.4, 0.7]])
    ps = [
        (
            dist.MatrixNormal(tensor(m), tensor(tril * a), tensor(np.diag([1.0, b, 0.3]))),
            np.kron(tril @ tril.T * a * a, np.diag([1.0, b * b, 0.09])),
        )
        for m, a, b in ((np.zeros((2, 3)), 1.0, 0.5), (np.ones((2, 3)), 1.7, 0.9))
    ]
    walks = [
        (dist.GaussianRandomWalk(t(s), 3), s * s * np.minimum.outer([1, 2, 3], [1, 2, 3]))
        for s in (0.7, 1.9)
    ]
    adj = np.array([[0.0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
    nets = [
        (d := dist.CAR(t(*m), c, s, tensor(adj)), np.linalg.inv(d.precision_matrix.numpy()))
        for m, c, s in (((0.0, 0, 0, 0), 0.3, 1.0), ((1.0, 0, 2, 0), 0.8, 2.5))
    ]
    for (p, cov_p), (q, cov_q) in (ps, walks, nets):
        expected = kl_divergence(whole(p, cov_p), whole(q, cov_q))
        assert_close(kl_divergence(p, q).reshape(()), expected.reshape(()), rtol=1e-9)
    assert_close(kl_divergence(nets[0][0], whole(*nets[1])), kl_divergence(nets[0][0], nets[1][0]))
    p, q = dist.ZeroSumNormal(0.7, (3, 2)), dist.ZeroSumNormal(1.9, (3, 2))
    assert_close(
        kl_divergence(p, q), 2 * kl_divergence(dist.Normal(0.0, 0.7), dist.Normal(0.0, 1.9))
    )
    with pytest.raises(NotImplementedError, match="one event shape"):
        kl_divergence(p, dist.ZeroSumNormal(1.9, (4, 2)))


@pytest.mark.parametrize("make", [dist.ZeroInflatedPoisson, dist.HurdlePoisson])
@pytest.mark.parametrize("other", [dist.ZeroInflatedPoisson, dist.HurdlePoisson])
def test_counts_with_gates_are_compared_by_sums(make, other):
    p = make(rate=t(2.0, 0.4), gate=t(0.3, 0.0))
    q = other(rate=t(1.2, 3.0), gate=t(0.1, 0.6))
    x = tensor(np.arange(60.0)[:, None])
    lp, lq = p.log_prob(x).numpy(), q.log_prob(x).numpy()
    expected = (np.exp(lp) * np.where(lp > -math.inf, np.maximum(lp, -1e300) - lq, 0.0)).sum(0)
    assert_close(kl_divergence(p, q), expected, rtol=1e-10)
    assert_close(kl_divergence(p, p), [0.0, 0.0], atol=1e-15)


def test_positive_numbers_behind_a_hurdle():
    p, q = dist.HurdleGamma(0.3, t(2.0), t(1.0)), dist.HurdleGamma(0.6, t(1.2), t(2.0))
    gates = kl_divergence(dist.Bernoulli(t(0.3)), dist.Bernoulli(t(0.6)))
    expected = gates + 0.7 * kl_divergence(p.base_dist, q.base_dist)
    assert_close(kl_divergence(p, q), expected, rtol=1e-10)


def test_power_laws_and_flat_logarithms():
    p, q = dist.LowerTruncatedPowerLaw(t(-3.0), t(2.0)), dist.Pareto(t(1.0), t(1.5))
    assert_close(kl_divergence(p, q), kl_divergence(dist.Pareto(t(2.0), t(2.0)), q))
    wide, narrow = dist.LogUniform(t(1.0), t(8.0)), dist.LogUniform(t(2.0), t(4.0))
    assert_close(kl_divergence(narrow, wide), [math.log(3.0)])
    assert kl_divergence(wide, narrow).item() == math.inf
    a = dist.GeneralizedNormal(t(0.3), t(1.0), t(1.5))
    b = dist.GeneralizedNormal(t(0.3), t(2.0), t(2.5))
    assert_close(kl_divergence(a, b), by_quadrature(a, b)[:1], rtol=1e-5)
    gaussian = dist.GeneralizedNormal(t(0.3), t(math.sqrt(2.0)), t(2.0))
    assert_close(
        kl_divergence(gaussian, dist.Normal(0.3, 2.0)),
        kl_divergence(dist.Normal(t(0.3), 1.0), dist.Normal(0.3, 2.0)),
        rtol=1e-12,
    )


def test_truncated_normals_inside_one_another():
    p = dist.TruncatedNormal(t(0.0, 0.0, 3.0), 1.0, t(0.5, -math.inf, 0.0), t(2.0, 1.0, 1.0))
    q = dist.TruncatedNormal(t(1.0, 1.0, 1.0), 2.0, t(0.0, 0.0, -1.0), t(3.0, 3.0, 3.0))
    value = kl_divergence(p, q)
    assert value[1].item() == math.inf
    nodes, weights = np.polynomial.legendre.leggauss(40)
    inner = dist.TruncatedNormal(t(0.0, 3.0), 1.0, t(0.5, 0.0), t(2.0, 1.0))
    width = 0.5 * (inner.high - inner.low).numpy()
    x = tensor(inner.low.numpy() + width * (nodes[:, None] + 1.0))
    outer = dist.TruncatedNormal(t(1.0, 1.0), 2.0, t(0.0, -1.0), t(3.0, 3.0))
    gap = (inner.log_prob(x) - outer.log_prob(x)).numpy()
    expected = (inner.log_prob(x).exp().numpy() * gap * weights[:, None]).sum(0) * width
    assert_close(value[[0, 2]], expected, rtol=1e-10)
    assert_close(kl_divergence(q, q), np.zeros(3), atol=1e-14)


def test_masked_elements_are_not_counted():
    p, q = dist.Normal(t(0.0, 1.0), 1.0), dist.Normal(t(0.5, 0.5), 2.0)
    mask = tensor(np.array([True, False]))
    expected = kl_divergence(p, q).numpy() * [1, 0]
    assert_close(kl_divergence(p.mask(mask), q.mask(mask)), expected)
    assert_close(kl_divergence(p.mask(mask), q.mask(False)), [0.0, 0.0])


@pytest.mark.parametrize(
    "p, q",
    [
        (lambda x: dist.Normal(x, 1.0), dist.StudentT(3.0)),
        (lambda x: dist.Poisson(exp(x)), dist.Geometric(0.3)),
    ],
    ids=["pathwise", "score"],
)
def test_an_estimate_and_its_gradient_have_no_bias(p, q):
    # 20 000 draws; z below 4.5 for two numbers: one false alarm in 70 000.
    def truth(a):
        d = p(tensor(np.array(a)))
        if d.is_discrete:
            x = tensor(np.arange(60.0))
            return (d.log_prob(x).exp() * (d.log_prob(x) - q.log_prob(x))).sum().item()
        x = tensor(np.linspace(-12, 12, 4001))
        return ((d.log_prob(x).exp() * (d.log_prob(x) - q.log_prob(x))).sum() * 0.006).item()

    a = tensor(np.array(0.4)).requires_grad_()
    values, slopes = [], []
    for seed in range(40):
        value = kl_divergence(p(a), q, num_samples=500, generator=Generator(seed))
        values.append(value.item())
        slopes.append(grad(value, a)[0].item())
    expected = truth(0.4), (truth(0.401) - truth(0.399)) / 0.002
    for found, right in zip((values, slopes), expected, strict=True):
        assert abs(np.mean(found) - right) < 4.5 * np.std(found) / math.sqrt(39) + 1e-6


def test_estimates_refuse_what_has_no_meaning():
    with pytest.raises(ShapeError, match="one event shape"):
        kl_divergence(dist.Normal(), dist.Normal(t(0.0, 1.0)).to_event(1), num_samples=3)
    with pytest.raises(ArgumentError, match="from 1 on"):
        kl_divergence(dist.Normal(), dist.Normal(), num_samples=0)


@pytest.mark.parametrize(
    "p, q",
    [
        (dist.Gamma(t(2.0), t(0.7)), dist.Weibull(t(1.0), t(1.5))),
        (dist.Uniform(t(0.2), t(0.7)), dist.Beta(t(2.0), t(1.5))),
        (dist.Normal(t(0.2), t(0.7)), dist.Gumbel(t(2.0), t(1.5))),
        (dist.Uniform(t(-0.2), t(0.7)), dist.Exponential(t(2.0))),
    ],
    ids=str,
)
def test_divergences_compile(p, q):
    compiled = compile(kl_divergence)
    for _ in range(2):
        assert_close(compiled(p, q), kl_divergence(p, q), rtol=1e-12)


def test_the_most_specific_rule_is_taken():
    class Special(dist.Normal):
        pass

    try:
        register_kl(Special, dist.Normal)(lambda p, q: tensor(42.0))
        assert kl_divergence(Special(0.0, 1.0), dist.Normal(0.0, 1.0)).item() == 42.0
        assert kl_divergence(dist.Normal(0.0, 1.0), Special(0.0, 1.0)).item() == 0.0
    finally:
        del kl_rules._RULES[Special, dist.Normal]


def test_the_module_that_pytorch_has_knows_all_rules():
    code = (
        "from probtorch.distributions.kl import kl_divergence\n"
        "from probtorch.distributions import Normal\n"
        "print(kl_divergence(Normal(0.0, 1.0), Normal(1.0, 1.0)).item())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "0.5"
