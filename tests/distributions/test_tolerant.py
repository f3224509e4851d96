"""Values that others refuse: nan, counts out of range, the empty vector; and fields on graphs."""

import numpy as np
import pytest
from scipy import integrate, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.errors import ArgumentError, ShapeError
from probtorch.tensor import tensor
from probtorch.testing import assert_close

NAN = np.nan


def test_a_missing_number_has_no_part_in_the_density_or_its_slopes():
    x = np.array([0.3, NAN, -1.0])
    scale = tensor(np.full(3, 1.5), requires_grad=True)
    lp = dist.NanMaskedNormal(0.2, scale).log_prob(tensor(x))
    assert_close(lp.detach(), np.where(np.isnan(x), 0.0, stats.norm(0.2, 1.5).logpdf(x)))
    (g,) = grad(lp.sum(), [scale])
    assert g.numpy()[1] == 0.0 and np.isfinite(g.numpy()).all()


COV = np.array([[2.0, 0.5, 0.3], [0.5, 1.0, -0.2], [0.3, -0.2, 1.5]])


def test_missing_elements_are_integrated_out():
    rows = np.array([[0.3, -0.2, 1.0], [NAN, 0.5, NAN], [1.2, NAN, -0.4], [NAN, NAN, NAN]])
    loc = np.array([0.1, 0.2, 0.3])
    expected = []
    for row in rows:
        seen = ~np.isnan(row)
        part = stats.multivariate_normal(loc[seen], COV[np.ix_(seen, seen)]) if seen.any() else None
        expected.append(part.logpdf(row[seen]) if part else 0.0)
    for given in ({"covariance_matrix": COV}, {"scale_tril": np.linalg.cholesky(COV)}):
        d = dist.NanMaskedMultivariateNormal(loc, **given)
        assert_close(d.log_prob(tensor(rows)), expected)
    leaf = tensor(COV, requires_grad=True)
    d = dist.NanMaskedMultivariateNormal(loc, covariance_matrix=leaf)
    assert np.isfinite(grad(d.log_prob(tensor(rows)).sum(), [leaf])[0].numpy()).all()


def test_counts_out_of_range_have_mass_0():
    x = np.array([-1.0, 0.0, 3.0, 5.0, 6.0])
    ref = stats.binom(5, 0.3)
    for d, log_mass in (
        (dist.ExtendedBinomial(5, 0.3), ref.logpmf),
        (dist.ExtendedBinomial(5, logits=np.log(0.3 / 0.7)), ref.logpmf),
        (dist.ExtendedBetaBinomial(2.0, 3.0, 5), stats.betabinom(5, 2.0, 3.0).logpmf),
    ):
        assert_close(d.log_prob(tensor(x)), log_mass(x))
    p = tensor(np.array(0.3), requires_grad=True)
    lp = dist.ExtendedBinomial(tensor([-2.0, 5.0]).double(), p).log_prob(tensor([0.0, 1.0]))
    assert lp[0].item() == -np.inf
    assert np.isfinite(grad(lp[1], [p])[0].numpy())


def test_noisy_counts_are_a_mixture_over_the_noise():
    d = dist.LogNormalNegativeBinomial(3.0, 0.4, 0.5, num_quad_points=24)
    p = lambda e: 1 / (1 + np.exp(0.4 + 0.5 * e))
    for k in (0.0, 3.0, 11.0):
        f = lambda e, k=k: stats.norm.pdf(e) * stats.nbinom(3.0, p(e)).pmf(k)
        assert_close(d.log_prob(k), np.log(integrate.quad(f, -9, 9)[0]), rtol=1e-6)
    x = d.sample((20_000,), Generator(0)).numpy()
    # 5.2 standard errors; the fourth moment is finite.
    assert abs(x.mean() - d.mean.item()) < 5.2 * x.std() / 141
    spread = (x - d.mean.item()) ** 2
    assert abs(spread.mean() - d.variance.item()) < 5.2 * spread.std() / 141
    with pytest.raises(ArgumentError, match="num_quad_points"):
        dist.LogNormalNegativeBinomial(3.0, 0.4, 0.5, 0)


def test_the_empty_vector_has_the_log_factor_as_its_density():
    d = dist.Unit(tensor(np.array([0.3, -2.0])))
    x = d.sample((4,))
    assert x.shape == (4, 2, 0) and d.event_shape == (0,)
    assert_close(d.log_prob(x), np.broadcast_to([0.3, -2.0], (4, 2)))


W = np.array([[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 1], [0, 0, 1, 0]], float)


def test_an_autoregression_on_a_graph_is_the_normal_of_its_precision():
    loc, x = np.array([0.1, 0.2, 0.0, -0.3]), np.random.default_rng(0).normal(size=(5, 4))
    d = dist.CAR(loc, 0.7, 1.3, W)
    precision = 1.3 * (np.diag(W.sum(-1)) - 0.7 * W)
    ref = stats.multivariate_normal(loc, np.linalg.inv(precision))
    assert_close(d.log_prob(tensor(x)), ref.logpdf(x))
    assert_close(d.precision_matrix, precision)
    draws = d.sample((4000,), Generator(0)).numpy() - loc
    cov = np.linalg.inv(precision)
    size = np.sqrt((np.outer(np.diag(cov), np.diag(cov)) + cov**2) / 4000)
    assert (np.abs(draws.T @ draws / 4000 - cov) < 5.2 * size).all()
    slope = lambda rho, t: grad(dist.CAR(loc, rho, t, W).log_prob(tensor(x)).sum(), [rho, t])
    native = compile(slope)
    for _ in range(2):
        leaves = (
            tensor(np.array(0.7), requires_grad=True),
            tensor(np.array(1.3), requires_grad=True),
        )
        for a, b in zip(native(*leaves), slope(*leaves), strict=True):
            assert_close(a, b, rtol=1e-10)
    assert native.reason is None
    with pytest.raises(ShapeError, match="adj_matrix"):
        dist.CAR(loc[:3], 0.7, 1.3, W)


def test_an_intrinsic_autoregression_has_a_density_of_differences():
    x = np.array([0.3, -0.2, 0.5, -0.6])
    pairs = sum((x[i] - x[j]) ** 2 for i in range(4) for j in range(i) if W[i, j])
    expected = -0.5 * pairs / 1.5**2 + stats.norm(0, 0.004).logpdf(x.sum())
    assert_close(dist.ICAR(W, 1.5).log_prob(tensor(x)), expected)
