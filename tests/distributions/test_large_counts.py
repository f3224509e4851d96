"""Counts whose means or totals are beyond what can be counted one by one."""

import itertools

import mpmath
import numpy as np
import pytest
from scipy import special, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.tensor import tensor
from probtorch.testing import assert_close


def radius(n):
    """Dvoretzky, Kiefer and Wolfowitz: exceeded once in 1e7 runs."""
    return np.sqrt(np.log(2 / 1e-7) / (2 * n))


# ------------------------------------------------------------------------ sizes of family trees

N = 4000


# Few founders and many, few children and nearly one each: all three ways of the sampler.
@pytest.mark.parametrize(
    ("rate", "excess"),
    [(1e-3, 0.3), (0.4, 0.0), (0.7, 0.999), (1.0, 0.0), (1.0, 0.6), (40.0, 0.3), (9.0, 0.99)],
)
def test_sizes_of_family_trees_follow_their_masses(rate, excess):
    d = dist.GeneralizedPoisson(tensor(np.array(rate)), tensor(np.array(excess)))
    x = d.sample((N,), Generator(3)).numpy()
    k = np.arange(30_000.0)
    cdf = d.log_prob(tensor(k)).exp().numpy().cumsum()
    shares = np.searchsorted(np.sort(x), k, side="right") / N
    assert np.abs(shares - cdf).max() < radius(N)
    native = compile(lambda r: dist.GeneralizedPoisson(r, excess).sample((N,), Generator(3)))
    assert (native(d.rate).numpy() == x).all()


@pytest.mark.parametrize(
    ("rate", "excess"), [(1e4, 0.9), (1e9, 0.2), (1e15, 0.5), (1e30, 0.9), (3e5, 1.0 - 1e-4)]
)
def test_large_family_trees_are_nearly_normal(rate, excess):
    d = dist.GeneralizedPoisson(tensor(np.array(rate)), tensor(np.array(excess)))
    x = d.sample((N,), Generator(3)).numpy()
    z = (x - d.mean.item()) / d.stddev.item()
    # An error of skewness / 6 phi(0), at most, beside that of the draws.
    room = radius(N) + d.skewness.item() / 15.0
    assert stats.kstest(z, "norm").statistic < room


def test_trees_that_nearly_never_end_are_first_passages():
    # Of 1e3 founders with nearly one child each: an inverse Gaussian, but for shares of 1e-3.
    rate, c = 1e3, 1e-7
    d = dist.GeneralizedPoisson(tensor(np.array(rate)), tensor(np.array(1.0 - c)))
    x = d.sample((N,), Generator(5)).numpy()
    exact = stats.invgauss(1.0 / (c * rate), scale=rate * rate)
    assert stats.kstest(x, exact.cdf).statistic < radius(N) + 1e-3


# ------------------------------------------------------------------------ trials

PARTS = [[0.2, 0.3, 0.5], [0.01, 0.98, 0.01], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0]]


@pytest.mark.parametrize("n", [0, 1, 5, 12])
def test_the_mode_of_a_multinomial_is_its_likeliest_count(n):
    counts = np.array([c for c in itertools.product(range(n + 1), repeat=3) if sum(c) == n])
    for p in PARTS:
        d = dist.Multinomial(n, tensor(np.array(p)))
        best = d.log_prob(tensor(counts.astype(float))).numpy().max()
        assert d.mode.numpy().sum() == n
        assert_close(d.log_prob(d.mode), best, rtol=1e-12)


@pytest.mark.parametrize(
    ("size", "n", "dtype"), [(20_000, 10**6, np.float64), (500, 2**25 + 3, np.float32)]
)
def test_the_mode_of_many_categories_and_trials_adds_up(size, n, dtype):
    p = np.random.default_rng(0).dirichlet(np.ones(size)).astype(dtype)
    x = dist.Multinomial(n, tensor(p)).mode.numpy().astype(float)
    assert x.sum() == n
    p = p.astype(float) / p.astype(float).sum()
    # No trial is likelier anywhere else.
    some = x > 0
    assert (p[some] / x[some]).min() >= (p / (x + 1)).max() * (1.0 - 1e-12)
    assert (dist.Multinomial(10, tensor(np.ones(7))).mode.numpy() == [2, 2, 2, 1, 1, 1, 1]).all()


def entropy_of_counts(n, p):
    """Of the draws in their order, less that of the order."""
    k = np.arange(n + 1.0)
    orders = sum((stats.binom(n, q).pmf(k) * special.gammaln(k + 1)).sum() for q in p)
    return n * stats.entropy(p) - special.gammaln(n + 1) + orders


@pytest.mark.parametrize("n", [0, 1, 7, 300, 5000])
def test_entropies_of_trials_are_sums_over_counts(n):
    for p in PARTS:
        got = dist.Multinomial(n, tensor(np.array(p))).entropy()
        assert_close(got, entropy_of_counts(n, p), rtol=1e-12, atol=1e-14 * max(n, 10))
    totals, q = np.array([n, 2.0 * n]), np.array([0.3, 0.999])
    exact = stats.binom(totals, q).entropy()
    assert_close(dist.Binomial(totals, q).entropy(), exact, rtol=1e-10, atol=1e-12)


def test_entropies_of_very_many_trials_are_those_of_normal_numbers():
    n, p = 10**12, np.array([0.2, 0.3, 0.5])
    # Of all but one of the counts, whose covariance has the determinant n^2 p1 p2 p3.
    normal = np.log(2.0 * np.pi * np.e * n) + 0.5 * np.log(p.prod())
    assert_close(dist.Multinomial(n, tensor(p)).entropy(), normal, rtol=1e-11)
    binomial = 0.5 * np.log(2.0 * np.pi * np.e * n * 0.21)
    weights = tensor(np.array(0.3), requires_grad=True)
    assert_close(dist.Binomial(float(n), weights).entropy(), binomial, rtol=1e-11)
    h = dist.Binomial(1e7, weights).entropy()
    assert_close(grad(h, [weights])[0], 0.5 * (1 / 0.3 - 1 / 0.7), rtol=1e-6)


@pytest.mark.parametrize("x", [1.0, 3.0, 1e5])
@pytest.mark.parametrize(
    "make",
    [dist.Poisson, lambda r: dist.Gamma(2.0, r), lambda r: dist.Gamma(0.5, r), dist.Exponential],
    ids=["Poisson", "Gamma(2)", "Gamma(1/2)", "Exponential"],
)
def test_rates_beyond_single_precision_leave_no_density_eager_and_compiled(make, x):
    fn = lambda x: make(1e300).log_prob(x)
    value = tensor(np.array([x], np.float32))
    with np.errstate(all="ignore"):
        assert fn(value).tolist() == [-np.inf]
        assert compile(fn)(value).tolist() == [-np.inf]


# ------------------------------------------------------ a gamma's counts, at the ends of parameters


def gamma_counts(c, r, k):
    """Log probability of k by 60 digits."""
    c, r = mpmath.mpf(c), mpmath.mpf(r)
    ways = mpmath.loggamma(c + k) - mpmath.loggamma(c) - mpmath.loggamma(k + 1)
    return ways + c * mpmath.log(r / (1 + r)) - k * mpmath.log(1 + r)


COMPILED = pytest.mark.parametrize("wrap", [lambda f: f, compile], ids=["eager", "compiled"])
INF = float("inf")


@COMPILED
@pytest.mark.parametrize(("c", "r"), [(2.5, 1e-310), (2.5, 1e308), (1e-300, 1e-300), (1e9, 1e-320)])
def test_counts_of_a_gamma_have_all_digits_where_rates_have_no_reciprocal(c, r, wrap):
    log_prob = wrap(lambda c, r, k: dist.GammaPoisson(c, r).log_prob(k))
    given = [tensor(np.array(p)) for p in (c, r)]
    with mpmath.workdps(60):
        for k in (0.0, 1.0, 7.0):
            for _ in range(2):
                found = log_prob(*given, tensor(np.array(k))).item()
                assert_close(found, float(gamma_counts(c, r, int(k))), rtol=1e-13)


@COMPILED
@pytest.mark.parametrize("k", [0.0, 3.0])
@pytest.mark.parametrize("r", [0.0, 1e-5, 1.0, 1e5, INF])
@pytest.mark.parametrize("c", [0.0, 0.5, 1e3, INF])
def test_counts_of_a_gamma_at_its_ends_are_limits(c, r, k, wrap):
    if c == r == INF:
        return  # a Poisson's, of whatever their ratio comes to
    log_prob = wrap(lambda c, r, k: dist.GammaPoisson(c, r).log_prob(k))
    found = [log_prob(*(tensor(np.array(p)) for p in (c, r, k))).item() for _ in range(2)]
    assert found[0] == found[1] or abs(found[0] - found[1]) < 1e-12 * abs(found[0])
    # Towards the end, as far again in logarithms: what has a limit stays where it is.
    with mpmath.workdps(500):
        near, nearer = (close_to_ends(c, r, int(k), mpmath.mpf(10) ** -n) for n in (100, 200))
    if nearer < near - 1.0:
        assert found[0] == -INF
    else:
        assert abs(found[0] - nearer) < 1e-9 * (1.0 + abs(nearer))


def close_to_ends(c, r, k, e):
    """The log probability with e for a concentration of 0, and for a rate of 0, which comes first,
    its square.
    """
    c = min(c, 1 / e) or e
    r = min(r, 1 / e) or e * e
    return float(gamma_counts(c, r, k))


def test_counts_of_a_gamma_that_nothing_tells_are_nan():
    both = dist.GammaPoisson(tensor(np.array(INF)), tensor(np.array(INF)))
    assert np.isnan(both.log_prob(tensor(np.arange(3.0))).numpy()).all()
