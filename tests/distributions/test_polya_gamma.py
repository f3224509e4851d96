"""Polya-gamma numbers of any shape and tilt: the alternating series in mpmath is the oracle."""

import math

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from scipy import stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.dtype import float32
from probtorch.core.rng import Generator
from probtorch.distributions import kl_divergence
from probtorch.errors import DomainError
from probtorch.ops.variates import polya_gamma
from probtorch.tensor import tensor
from probtorch.testing import assert_close


def log_density(h, z, x):
    """The series of Polson, Scott and Windle (2013), with the digits that it cancels."""
    with mpmath.workdps(60 + int(2.2 * float(x) + 0.7 * float(h))):
        h, z, x = mpf(h), mpf(z), mpf(x)
        sum_, weight, n = mpf(0), mpf(1), 0
        while True:
            term = weight * (2 * n + h) * mpmath.exp(-((2 * n + h) ** 2) / (8 * x))
            sum_ += term if n % 2 == 0 else -term
            if n > 5 and abs(term) < abs(sum_) * mpf(10) ** -40 and (2 * n + h) ** 2 > 24 * n * x:
                break
            weight *= (n + h) / (n + 1)
            n += 1
        tilt = h * mpmath.log(2 * mpmath.cosh(z / 2)) - z * z * x / 2
        return tilt - mpmath.log(8 * mpmath.pi * x**3) / 2 + mpmath.log(sum_)


def spread_out(n, seed):
    """Shapes, tilts and values over some orders of magnitude, values around the mean."""
    rng = np.random.default_rng(seed)
    h, z = np.exp(2.0 * rng.standard_normal(n)), 3.0 * rng.standard_normal(n)
    return h, z, h * np.tanh(z / 2) / (2 * z) * np.exp(1.5 * rng.standard_normal(n))


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-12), (np.float32, 4e-6)])
def test_the_density_is_that_of_the_series(dtype, rtol):
    h, z, x = (np.concatenate(c) for c in zip(spread_out(25, 1), EDGES.T, strict=True))
    h, z, x = (v.astype(dtype) for v in (h, z, x))
    exact = np.array([float(log_density(*map(float, r))) for r in zip(h, z, x, strict=True)])
    got = dist.PolyaGamma(tensor(h), tensor(z)).log_prob(tensor(x)).numpy()
    assert got.dtype == dtype
    assert (np.abs(got - exact) <= rtol * np.maximum(np.abs(exact), 1.0)).all()


# A tiny shape, no tilt and a large one, both tails, and a large shape around its mean.
EDGES = np.array(
    [
        [1e-4, 0.3, 1e-9],
        [1e-4, 0.3, 2.0],
        [1.0, 0.0, 1e-7],
        [1.0, 0.0, 30.0],
        [3.0, 50.0, 0.03],
        [300.0, 0.0, 75.0],
        [300.0, 2.0, 58.0],
        [1500.0, 1e-3, 380.0],
    ]
)


def test_far_to_the_left_the_density_is_its_first_term():
    h, z, x = 2.5, 1.5, 1e-100
    first = h * math.log(2 * math.cosh(z / 2)) + math.log(h / 2) - 0.5 * math.log(2 * math.pi)
    exact = first - 1.5 * math.log(x) - h * h / (8 * x)
    assert_close(dist.PolyaGamma(tensor(np.array(h)), z).log_prob(x), exact, rtol=1e-13)


def test_a_large_shape_is_nearly_normal():
    # The error of the normal density is of order 1 / h at the mean.
    d = dist.PolyaGamma(np.array([1e8, 1e12]), np.array([0.0, 2.0]))
    scale = d.stddev.numpy()
    assert_close(d.log_prob(d.mean), stats.norm(0.0, scale).logpdf(0.0), atol=1e-7)
    assert_close(d.cdf(d.mean), [0.5, 0.5], atol=1e-4)


def test_slopes_are_those_of_the_series():
    h, z, x = spread_out(6, 2)
    leaves = [tensor(v, requires_grad=True) for v in (h, z, x)]
    lp = dist.PolyaGamma(*leaves[:2]).log_prob(leaves[2])
    slopes = [g.numpy() for g in grad(lp.sum(), leaves)]
    for i, row in enumerate(zip(h, z, x, strict=True)):
        for k in range(3):
            along = lambda v, k=k, row=row: log_density(*row[:k], v, *row[k + 1 :])
            step = mpf(10) ** -12
            with mpmath.workdps(60):
                expected = (along(mpf(row[k]) + step) - along(mpf(row[k]) - step)) / (2 * step)
            assert_close(slopes[k][i], float(expected), rtol=1e-9, atol=1e-9)


def test_both_tails_are_integrals_of_the_density():
    h, z = 2.5, 1.5
    d = dist.PolyaGamma(np.array(h), z)
    density = lambda x: mpmath.exp(log_density(h, z, x))
    for x in (0.05, 0.3, 0.5331, 1.2, 4.0):
        below = float(mpmath.quad(density, [1e-4, x / 4, x / 2, x]))
        assert_close(d.cdf(x), below, rtol=1e-10)
        if x > 0.5:
            above = float(mpmath.quad(density, [x, x + 0.5, x + 1, x + 2, x + 4, x + 8]))
            assert_close(d.survival(x), above, rtol=1e-9)
    assert_close(d.cdf(np.array([-1.0, 0.0, math.inf])), [0.0, 0.0, 1.0])
    assert_close(d.icdf(d.cdf(0.7)), 0.7, rtol=1e-10)


@pytest.mark.parametrize(
    "h", [4.0, *(pytest.param(h, marks=pytest.mark.slow) for h in (1.0, 0.3, 300.5))]
)
def test_draws_follow_the_cdf_and_compiled_code_makes_the_same(h):
    n = 2000 if h == round(h) else 500
    d = dist.PolyaGamma(tensor(np.full(3, h)), tensor([0.0, -1.0, 7.0]).double())
    x = d.sample((n,), Generator(3))
    assert d.support.check(x).numpy().all()
    levels = d.cdf(x).numpy()
    assert min(stats.kstest(levels[:, i], "uniform").pvalue for i in range(3)) > 1e-6
    native = compile(lambda z: dist.PolyaGamma(d.h, z).sample((n,), Generator(3)))
    assert (native(d.z).numpy() == x.numpy()).all()


def test_counts_of_several_sizes_are_drawn_at_once():
    h = tensor(np.array([1.0, 2.5, 255.0, 400.0]))
    x = dist.PolyaGamma(h, 1.0).sample((1000,), Generator(5)).numpy()
    d = dist.PolyaGamma(h, 1.0)
    assert (np.abs(x.mean(0) - d.mean.numpy()) < 5.2 * x.std(0) / math.sqrt(1000)).all()
    assert dist.PolyaGamma(h.float(), 1.0).sample((2,)).dtype == float32


def test_the_laplace_transform_is_the_quotient_of_two_cosh():
    h, z, t = 3.0, 1.2, 0.9
    x = dist.PolyaGamma(np.array(h), z).sample((50_000,), Generator(8)).numpy()
    terms = np.exp(-0.5 * t * t * x)
    exact = (math.cosh(z / 2) / math.cosh(math.hypot(z, t) / 2)) ** h
    assert abs(terms.mean() - exact) < 5.2 * terms.std() / math.sqrt(50_000)


def test_the_divergence_of_two_tilts_is_the_mean_over_draws():
    p, q = (dist.PolyaGamma(np.array([1.0, 6.0]), z) for z in (np.array([0.5, -2.0]), 1.0))
    exact = kl_divergence(p, q).numpy()
    x = p.sample((3000,), Generator(2))
    terms = (p.log_prob(x) - q.log_prob(x)).numpy()
    assert (np.abs(terms.mean(0) - exact) < 5.2 * terms.std(0) / math.sqrt(3000)).all()
    assert_close(kl_divergence(p, p), np.zeros(2))
    with pytest.raises(NotImplementedError, match="one h on both sides"):
        kl_divergence(p, dist.PolyaGamma(2.0, 1.0))


def test_a_logistic_model_has_normal_conditionals_given_the_draws():
    # Gibbs steps for the log odds b of 30 successes in 40 trials, prior N(0, 1).
    n, k, b, rng = 40.0, 30.0, 0.0, Generator(11)
    kept = []
    for _ in range(1500):
        w = float(dist.PolyaGamma(np.array(n), b).sample((), rng))
        spread = 1.0 / (1.0 + w)
        b = float(dist.Normal(np.array(spread * (k - n / 2)), math.sqrt(spread)).sample((), rng))
        kept.append(b)
    grid = np.linspace(-3, 4, 2001)
    p = np.exp(k * grid - n * np.logaddexp(0, grid) - grid**2 / 2 - 20)
    # Draws are correlated: an effective size of a third at least.
    mean = (p * grid).sum() / p.sum()
    assert abs(np.mean(kept) - mean) < 5.2 * np.std(kept) / math.sqrt(500)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(DomainError, match="whole counts"):
        polya_gamma(tensor(1.5), tensor(0.0))
    with pytest.raises(DomainError, match="finite tilts"):
        polya_gamma(tensor(1.0), tensor(math.inf))
    with pytest.raises(DomainError, match="PolyaGamma: parameter h"):
        dist.PolyaGamma(0.0)


@pytest.mark.parametrize(
    ("h", "z"), [(1e-9, 0.5), (1e-11, 0.5), (1e-30, 2.0), (1e-100, 3.0), (1e-12, 1e14)]
)
def test_draws_of_a_tiny_shape_are_first_passages(h, z):
    # cosh(u)^-h is exp(-h u) but for shares of h: an inverse Gaussian. At p < 1e-6 in one of 1e6
    # seeds.
    d, size = dist.PolyaGamma(tensor(np.array(h)), z), h * h / 4
    x = d.sample((2000,), Generator(0))
    u = stats.invgauss(h / (2 * z) / size).cdf(x.numpy() / size)
    assert stats.kstest(u, "uniform").pvalue > 1e-6
    assert_close(d.cdf(x), u, rtol=1e-6, atol=1e-8)


def test_draws_below_all_doubles_are_the_smallest_one():
    d = dist.PolyaGamma(tensor(np.array(1e-200)), 1.0)
    assert (d.sample((5,), Generator(0)) == np.finfo(float).tiny).all()
