"""Mixtures of several families, choices by a mask, copulas, and PERT."""

import numpy as np
import pytest
from scipy import stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, unflatten
from probtorch.distributions import constraints
from probtorch.errors import ArgumentError, ShapeError
from probtorch.tensor import tensor
from probtorch.testing import assert_close

X = np.array([-0.4, 0.3, 2.2])
W = np.array([0.2, 0.5, 0.3])
PARTS = (stats.norm(0, 1), stats.gamma(2.0), stats.laplace(1.0, 0.5))


def mixture(w=W, rate=1.0):
    parts = [dist.Normal(0.0, 1.0), dist.Gamma(2.0, rate), dist.Laplace(1.0, 0.5)]
    return dist.Mixture(dist.Categorical(w), parts)


def test_a_mixture_of_families_is_the_weighted_sum():
    d = dist.MixtureGeneral(
        mixture().mixing_distribution, mixture().component_distributions, support=constraints.real
    )
    pdf = sum(w * p.pdf(X) for w, p in zip(W, PARTS, strict=True))
    assert_close(d.log_prob(tensor(X)), np.log(pdf))
    cdf = lambda x: sum(w * p.cdf(x) for w, p in zip(W, PARTS, strict=True))
    assert_close(d.cdf(tensor(X)), cdf(X))
    assert_close(d.icdf(d.cdf(tensor(X))), X)
    mean = sum(w * p.mean() for w, p in zip(W, PARTS, strict=True))
    second = sum(w * (p.var() + p.mean() ** 2) for w, p in zip(W, PARTS, strict=True))
    assert_close(d.mean, mean)
    assert_close(d.variance, second - mean**2)
    x = d.sample((2000,), Generator(0)).numpy()
    assert stats.kstest(x, cdf).pvalue > 1e-6
    again = unflatten(flatten(d)[1], flatten(d)[0])
    assert_close(again.log_prob(tensor(X)), d.log_prob(tensor(X)))
    assert d.expand((4, 3)).sample((2,)).shape == (2, 4, 3)


def test_weights_and_components_have_slopes_in_compiled_code():
    def slopes(w, rate):
        return grad(mixture(w, rate).log_prob(tensor(np.abs(X))).sum(), [w, rate])

    native = compile(slopes)
    for _ in range(2):
        leaves = tensor(W, requires_grad=True), tensor(np.array(1.3), requires_grad=True)
        for a, b in zip(native(*leaves), slopes(*leaves), strict=True):
            assert_close(a, b, rtol=1e-10)
    assert native.reason is None


def test_mixtures_of_vectors_weigh_whole_vectors():
    r = np.random.default_rng(0)
    locs, scale, logits = r.normal(size=(3, 2)), r.uniform(0.5, 2, (3, 2)), np.log(W)
    x = r.normal(size=(5, 2))
    each = [stats.norm(m, s).logpdf(x).sum(-1) for m, s in zip(locs, scale, strict=True)]
    expected = np.log(W @ np.exp(each))
    assert_close(dist.MixtureOfDiagNormals(locs, scale, logits).log_prob(tensor(x)), expected)
    shared = dist.MixtureOfDiagNormalsSharedCovariance(locs, scale[0], logits)
    each = [stats.norm(m, scale[0]).logpdf(x).sum(-1) for m in locs]
    assert_close(shared.log_prob(tensor(x)), np.log(W @ np.exp(each)))
    pair = dist.MixtureGeneral(
        dist.Categorical(W[:2]), [dist.Normal(locs[i], scale[i]).to_event(1) for i in range(2)]
    )
    assert pair.event_shape == (2,) and pair.sample((4,)).shape == (4, 2)


def test_a_mask_chooses_element_by_element():
    mask = np.array([True, False, True])
    d = dist.MaskedMixture(mask, dist.Normal(0.0, 1.0), dist.Gamma(2.0, 1.0))
    x = np.abs(X)
    expected = np.where(mask, stats.gamma(2.0).logpdf(x), stats.norm.logpdf(x))
    assert_close(d.log_prob(tensor(x)), expected)
    assert_close(d.mean, np.where(mask, 2.0, 0.0))
    assert (d.rsample((200,)).numpy()[:, mask] > 0).all()
    with pytest.raises(ShapeError, match="components of one event shape"):
        dist.MaskedMixture(mask, dist.Normal(0.0, 1.0), dist.Dirichlet(W))


def test_a_mixture_says_what_it_takes():
    with pytest.raises(ArgumentError, match="a Categorical"):
        dist.MixtureGeneral(dist.Normal(0.0, 1.0), [dist.Normal(0.0, 1.0)])
    with pytest.raises(ShapeError, match="3 components"):
        dist.Mixture(dist.Categorical(W), [dist.Normal(0.0, 1.0)])
    with pytest.raises(ArgumentError, match="all discrete, or all continuous"):
        dist.Mixture(dist.Categorical(np.ones(2)), [dist.Poisson(2.0), dist.Normal(0.0, 1.0)])


R = np.array([[1.0, 0.6], [0.6, 1.0]])


def test_a_copula_has_its_marginals_and_its_dependence():
    marginal = dist.Gamma(tensor(np.array([2.0, 3.5])), 1.5)
    d, ref = dist.GaussianCopula(marginal, R), stats.gamma([2.0, 3.5], scale=1 / 1.5)
    x = np.array([[0.5, 2.0], [3.0, 1.0], [1e-4, 9.0]])
    z = stats.norm.ppf(ref.cdf(x))
    expected = (
        stats.multivariate_normal([0, 0], R).logpdf(z)
        - stats.norm.logpdf(z).sum(-1)
        + ref.logpdf(x).sum(-1)
    )
    assert_close(d.log_prob(tensor(x)), expected, rtol=1e-8)
    draws = d.sample((1500,), Generator(1)).numpy()
    for k in range(2):
        assert stats.kstest(draws[:, k], lambda v, k=k: ref.cdf(v[:, None])[:, k]).pvalue > 1e-6
    # Kendall's tau of a Gaussian copula is 2 asin(r) / pi; its standard error is 0.014 here.
    tau = stats.kendalltau(draws[:, 0], draws[:, 1]).statistic
    assert abs(tau - 2 * np.arcsin(0.6) / np.pi) < 0.075
    again = unflatten(flatten(d)[1], flatten(d)[0])
    assert_close(again.log_prob(tensor(x)), d.log_prob(tensor(x)))
    alone = stats.gamma([2.0, 3.5], scale=1 / 1.5).entropy().sum()
    assert_close(d.entropy(), alone + 0.5 * np.log(np.linalg.det(R)), rtol=1e-9)
    with pytest.raises(ShapeError, match="one batch element per element"):
        dist.GaussianCopula(dist.Gamma(2.0), R)
    with pytest.raises(ArgumentError, match="a continuous marginal_dist"):
        dist.GaussianCopula(dist.Poisson(np.array([2.0, 3.0])), R)


def test_without_dependence_a_copula_is_independent():
    a, b = np.array([2.0, 0.7]), np.array([1.0, 3.0])
    d = dist.GaussianCopulaBeta(a, b, correlation_cholesky=np.eye(2))
    x = tensor(np.array([0.3, 0.01]))
    assert_close(d.log_prob(x), stats.beta(a, b).logpdf(x.numpy()).sum(), rtol=1e-9)


def test_pert_has_its_mode_at_the_peak():
    d = dist.PERT(1.0, 2.0, 5.0)
    ref = stats.beta(2.0, 4.0, 1.0, 4.0)
    x = np.array([1.2, 2.0, 4.4])
    assert_close(d.log_prob(tensor(x)), ref.logpdf(x))
    assert (d.log_prob(tensor([1.9, 2.1])) < d.log_prob(tensor([2.0]))).numpy().all()
