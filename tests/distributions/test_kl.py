"""Kullback-Leibler divergences against quadrature, enumeration, and the laws of a divergence."""

import math

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.distributions import constraints, kl, kl_divergence, register_kl
from probtorch.distributions.transforms import AffineTransform, ExpTransform
from probtorch.errors import ArgumentError
from probtorch.tensor import tensor
from probtorch.testing import assert_close
from tests.distributions.cases import CASES

ENTRIES = {case.id: case for case in CASES}
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
]
# Their supports move with the parameters, or they are made of other distributions: tested below.
APART = {dist.Uniform, dist.Pareto, dist.Delta, dist.Independent, dist.TransformedDistribution}


def t(*values):
    return tensor(np.array(values, dtype=float))


def test_every_rule_is_tested():
    tested = {ENTRIES[name].cls for name in SAME} | APART
    ruled = {p for p, _ in kl._RULES}
    assert {p for p in ruled if not any(issubclass(c, p) for c in tested)} == set()


def by_levels(p, q, reference):
    """KL of distributions of the line as an integral over the probability levels of p."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    # Panels in logit steps: the integrand grows like the log odds at both ends.
    edges = np.linspace(-34, 34, 2001)
    half = 0.5 * np.diff(edges)[:, None]
    logits = (0.5 * (edges[1:] + edges[:-1])[:, None] + half * nodes).reshape(-1, 1)
    level = 1 / (1 + np.exp(-logits))
    upper = 1 / (1 + np.exp(logits))
    x = np.where(level < 0.5, reference.ppf(level), reference.isf(upper))
    inside = (x > 0) & (x < 1) if isinstance(p, dist.Beta) else np.isfinite(x)
    safe = tensor(np.where(inside, x, 0.5))
    gap = np.where(inside, (p.log_prob(safe) - q.log_prob(safe)).numpy(), 0.0)
    return (gap * level * upper * (half * weights).reshape(-1, 1)).sum(0)


@pytest.mark.parametrize("name", SAME)
def test_closed_forms_equal_quadrature_or_enumeration(name):
    case = ENTRIES[name]
    p, reference = case.make(seed=1)
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
        # Quantiles next to 1, and kinks inside a panel, are resolved to about 1e-6.
        assert_close(value, by_levels(p, q, reference), rtol=1e-5, atol=1e-9)
    else:
        # 40 000 draws; z below 5.3.
        x = p.sample((40_000,), Generator(0))
        gap = (p.log_prob(x) - q.log_prob(x)).numpy()
        assert (np.abs(gap.mean(0) - value.numpy()) < 5.3 * gap.std(0) / 200).all()


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
        (dist.Normal(), dist.Poisson(1.0), "registered closed form", "register_kl"),
        (dist.Binomial(3, 0.5), dist.Binomial(4, 0.5), "same total_count", "enumerate_support"),
        (
            dist.Normal().expand((2, 2)).to_event(1),
            dist.Normal().expand((2, 2)).to_event(2),
            "as many",
            "to_event",
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
    with pytest.raises(ArgumentError) as caught:
        kl_divergence(p, q)
    assert expected in caught.value.expected and fix in caught.value.fix and caught.value.got


def test_the_most_specific_rule_is_taken():
    class Special(dist.Normal):
        pass

    try:
        register_kl(Special, dist.Normal)(lambda p, q: tensor(42.0))
        assert kl_divergence(Special(0.0, 1.0), dist.Normal(0.0, 1.0)).item() == 42.0
        assert kl_divergence(dist.Normal(0.0, 1.0), Special(0.0, 1.0)).item() == 0.0
    finally:
        del kl._RULES[Special, dist.Normal]
