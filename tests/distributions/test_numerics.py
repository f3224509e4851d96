"""Values where distributions go wrong: boundaries, extreme parameters, single precision.

The expected numbers are limits, closed forms, or mpmath at 50 digits.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

import probtorch.distributions as dist
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.errors import DomainError
from probtorch.ops.variates import _run_angle_slope
from probtorch.tensor import tensor
from probtorch.testing import assert_close

INF = math.inf


def t(*values):
    return tensor(np.array(values if len(values) > 1 else values[0], dtype=float))


def single(x):
    return tensor(np.float32(x))


def leaf(*values):
    return t(*values).requires_grad_()


# ------------------------------------------------------------------------------ boundaries


@pytest.mark.parametrize(
    "d, value, expected",
    [
        (dist.Beta(1.0, 1.0), 0.0, 0.0),
        (dist.Beta(1.0, 1.0), 1.0, 0.0),
        (dist.Beta(0.5, 2.0), 0.0, INF),
        (dist.Beta(2.0, 2.0), 1.0, -INF),
        (dist.Gamma(1.0, 1.0), 0.0, 0.0),
        (dist.Gamma(2.0, 1.0), 0.0, -INF),
        (dist.Gamma(0.5, 1.0), 0.0, INF),
        (dist.Weibull(1.0, 0.5), 0.0, INF),
        (dist.Weibull(1.0, 1.0), 0.0, 0.0),
        (dist.Weibull(1.0, 2.0), 0.0, -INF),
        (dist.HalfNormal(1.0), 0.0, math.log(2.0) - 0.5 * math.log(2 * math.pi)),
        (dist.Exponential(2.0), 0.0, math.log(2.0)),
        (dist.Uniform(1.0, 3.0), 1.0, -math.log(2.0)),
        (dist.Pareto(2.0, 3.0), 2.0, math.log(1.5)),
        (dist.Binomial(0, 0.3), 0.0, 0.0),
        (dist.Binomial(5, 0.0), 0.0, 0.0),
        (dist.Binomial(5, 1.0), 5.0, 0.0),
        (dist.Binomial(5, 0.0), 1.0, -INF),
        (dist.Binomial(5, logits=-INF), 0.0, 0.0),
        (dist.Binomial(5, logits=INF), 5.0, 0.0),
        (dist.Binomial(5, logits=INF), 4.0, -INF),
        (dist.Bernoulli(0.0), 1.0, -INF),
        (dist.Bernoulli(0.0), 0.0, 0.0),
        (dist.Bernoulli(1.0), 0.0, -INF),
        (dist.Bernoulli(logits=-INF), 0.0, 0.0),
        (dist.Bernoulli(logits=-INF), 1.0, -INF),
        (dist.Geometric(1.0), 0.0, 0.0),
        (dist.Geometric(1.0), 1.0, -INF),
        (dist.Geometric(logits=INF), 0.0, 0.0),
        (dist.Poisson(0.0), 0.0, 0.0),
        (dist.Poisson(0.0), 1.0, -INF),
        (dist.NegativeBinomial(0.0, 0.3), 0.0, 0.0),
        (dist.NegativeBinomial(0.0, 0.3), 1.0, -INF),
        (dist.NegativeBinomial(2.0, 0.0), 0.0, 0.0),
        (dist.NegativeBinomial(2.0, 0.0), 1.0, -INF),
    ],
    ids=lambda x: repr(x)[:45],
)
def test_boundary_values_are_the_limits(d, value, expected):
    assert_close(d.log_prob(t(value)), expected, atol=1e-14)


@pytest.mark.parametrize(
    "make, value, start, expected",
    [
        (lambda p: dist.Binomial(0, p), 0.0, 0.3, 0.0),
        (lambda p: dist.Binomial(5, p), 0.0, 0.0, -5.0),
        (lambda p: dist.Binomial(5, p), 5.0, 1.0, 5.0),
        (lambda p: dist.Bernoulli(p), 0.0, 0.0, -1.0),
        (lambda p: dist.Poisson(p), 0.0, 0.0, -1.0),
        (lambda p: dist.NegativeBinomial(3.0, p), 0.0, 0.0, -3.0),
        (lambda p: dist.Binomial(5, logits=p), 0.0, -INF, 0.0),
        (lambda p: dist.Binomial(5, logits=p), 5.0, INF, 0.0),
        (lambda p: dist.Bernoulli(logits=p), 1.0, INF, 0.0),
    ],
)
def test_gradients_at_certain_outcomes_are_the_limits(make, value, start, expected):
    p = leaf(start)
    assert_close(grad(make(p).log_prob(t(value)), [p])[0], expected)


def test_the_gradient_at_a_pole_of_the_gamma_is_finite():
    a = leaf(1.0)
    # The one-sided derivative in the concentration is -inf; digamma(1) with the sign turned stands
    # for it.
    assert_close(grad(dist.Gamma(a, 1.0).log_prob(t(0.0)), [a])[0], 0.57721566490153286)


def test_a_category_of_weight_zero():
    p = leaf(0.0, 2.0, 3.0)
    d = dist.Categorical(p)
    assert d.log_prob(tensor(0)).item() == -INF
    assert_close(d.entropy(), stats.entropy([2, 3]))
    assert_close(grad(d.log_prob(tensor(1)), [p])[0], [-0.2, 0.5 - 0.2, -0.2])
    assert np.isfinite(grad(d.entropy(), [p])[0].numpy()[1:]).all()
    draws = dist.Categorical(tensor([0.5, 0.0, 0.5, 0.0])).sample((300_000,), Generator(0))
    assert not (draws.numpy() % 2).any()


def test_a_sum_over_all_categories_passes_gradients_by_those_of_weight_zero():
    """The mean over categories, as enumeration takes it: weight 0 times log density -inf."""
    p = leaf([0.25, 0.0, 0.75])
    logs = dist.Categorical(p).log_prob(tensor([0, 1, 2]))
    assert logs[1].item() == -math.inf
    (g,) = grad(logs.logsumexp(0), [p])
    # The weights add up to 1 whatever they are; the slope through the impossible one is lost.
    assert_close(g, [0.0, -1.0, 0.0], atol=1e-15)


def test_counts_of_categories_of_weight_zero():
    for start, given in ((leaf(0.0, 0.4, 0.6), "probs"), (leaf(-INF, 0.0, 1.0), "logits")):
        d = dist.Multinomial(3, **{given: start})
        lp = d.log_prob(t(0.0, 1.0, 2.0))
        w = np.array([0.4, 0.6]) if given == "probs" else np.exp([0.0, 1.0]) / (1 + math.e)
        assert_close(lp, stats.multinomial(3, w).logpmf([1, 2]))
        (g,) = grad(lp, [start])
        assert np.isfinite(g.numpy()).all()
        assert d.log_prob(t(1.0, 1.0, 1.0)).item() == -INF


@pytest.mark.parametrize("cls", [dist.HalfNormal, dist.HalfCauchy, dist.Exponential])
def test_below_zero_there_is_no_mass(cls):
    scale, x = leaf(1.5), leaf(-1.0)
    d = cls(scale, validate_args=False)
    lp = d.log_prob(x)
    assert lp.item() == -INF
    assert [g.item() for g in grad(lp, [scale, x])] == [0.0, 0.0]
    assert d.cdf(t(-1.0)).item() == 0.0


def test_a_uniform_is_closed_below_and_open_above():
    d = dist.Uniform(1.0, 2.0, validate_args=False)
    assert_close(d.log_prob(t(1.0, 2.0, 3.0, 0.9)), [0.0, -INF, -INF, -INF])
    narrow = dist.Uniform(single(1.0), single(1.0 + 2.0**-22)).sample((10_000,), Generator(0))
    assert (narrow.numpy() < 1.0 + 2.0**-22).all()


# ------------------------------------------------------------------------------ extreme parameters


def test_student_t_with_many_degrees_of_freedom_is_normal():
    for df, tolerance in ((1e8, 2e-8), (1e15, 1e-14)):
        d = dist.StudentT(t(df))
        assert_close(d.log_prob(t(0.0, 1.0)), stats.norm.logpdf([0, 1]), rtol=tolerance)
    assert_close(dist.StudentT(single(1e8)).log_prob(single(1.0)), -1.4189385, rtol=1e-6)


def test_student_t_moments_exist_only_for_enough_degrees_of_freedom():
    d = dist.StudentT(t(0.5, 1.0, 1.5, 2.0, 3.0))
    assert_close(d.mean, [math.nan, math.nan, 0.0, 0.0, 0.0])
    assert_close(d.variance, [math.nan, math.nan, INF, INF, 3.0])


def test_moments_that_diverge_say_so():
    assert_close(dist.InverseGamma(t(0.5, 1.0, 1.5, 2.5), 1.0).mean, [INF, INF, 2.0, 1 / 1.5])
    assert_close(dist.InverseGamma(t(1.5, 2.0, 4.0), 1.0).variance, [INF, INF, 1 / 18])
    assert_close(dist.Pareto(1.0, t(1.0, 1.5)).mean, [INF, 3.0])
    assert math.isnan(dist.Cauchy().mean.item()) and dist.HalfCauchy().mean.item() == INF


def test_a_negative_binomial_with_many_failures_is_poisson():
    for r in (1e8, 1e12):
        logits = math.log(5.0 / r)
        wide = dist.NegativeBinomial(t(r), logits=t(logits)).log_prob(t(3.0))
        assert_close(wide, stats.poisson(5).logpmf(3), rtol=2e-8)
        narrow = dist.NegativeBinomial(single(r), logits=single(logits)).log_prob(single(3.0))
        assert_close(narrow, stats.poisson(5).logpmf(3), rtol=1e-5)
    assert not dist.NegativeBinomial(0.0, 0.3).sample((5,)).numpy().any()


def test_a_beta_binomial_with_huge_concentrations_is_binomial():
    exact = -1.736153  # mpmath
    assert_close(dist.BetaBinomial(t(1e7), t(1e7), 20).log_prob(t(10.0)), exact, rtol=1e-6)
    assert_close(
        dist.BetaBinomial(single(1e7), single(1e7), 20).log_prob(single(10.0)), exact, rtol=1e-5
    )


@pytest.mark.parametrize("kappa", [1e-8, 1e-3, 1.0, 1e4, 1e8])
def test_von_mises_from_flat_to_needle(kappa):
    with mpmath.workdps(50):
        for x in (0.0, min(1.0, 2.0 / math.sqrt(kappa))):
            exact = kappa * mpmath.cos(x) - mpmath.log(2 * mpmath.pi * mpmath.besseli(0, kappa))
            assert_close(dist.VonMises(0.0, kappa).log_prob(t(x)), float(exact), rtol=1e-12)
            narrow = dist.VonMises(single(0.0), single(kappa)).log_prob(single(x))
            assert_close(narrow, float(exact), rtol=1e-6, atol=1e-6)
    # The circular variance of 5000 draws; its spread is below 1.2 / sqrt(5000) of the scale of the
    # distribution.
    x = dist.VonMises(0.0, t(kappa)).sample((5000,), Generator(1)).numpy()
    expected = dist.VonMises(0.0, kappa).variance.item()
    assert abs((1 - np.cos(x)).mean() - expected) < 5.3 * 1.2 / math.sqrt(5000) * min(
        1.0, 1.0 / kappa
    )
    assert (np.abs(x) <= math.pi).all()


@pytest.mark.parametrize("kappa", [1e-3, 2.0, 30.0, 1e4])
@pytest.mark.parametrize("z", [0.01, -1.4, 1.6, 3.0])
def test_von_mises_draws_move_with_the_concentration_at_a_fixed_quantile(kappa, z):
    x = z / math.sqrt(max(kappa, 1.0))
    with mpmath.workdps(30):
        mean_cosine = mpmath.besseli(1, kappa) / mpmath.besseli(0, kappa)
        ratio = lambda s: mpmath.exp(kappa * (mpmath.cos(s) - mpmath.cos(x)))
        knots = [mpmath.mpf(x) * i / 8 for i in range(9)]
        exact = mpmath.quad(lambda s: (mean_cosine - mpmath.cos(s)) * ratio(s), knots)
    assert_close(_run_angle_slope(np.array(kappa), np.array(x)), float(exact), rtol=1e-10)


def test_truncated_normal_far_in_a_tail():
    for low, high, x in ((40.0, INF, 40.1), (-INF, -40.0, -40.1), (40.0, 41.0, 40.1)):
        d = dist.TruncatedNormal(0.0, 1.0, low, high)
        with mpmath.workdps(60):
            mass = mpmath.ncdf(-min(abs(low), abs(high))) - mpmath.ncdf(-max(abs(low), abs(high)))
            exact = mpmath.log(mpmath.npdf(x) / mass)
        assert_close(d.log_prob(t(x)), float(exact), rtol=1e-11)
        draws = d.expand((2000,)).sample((), Generator(0)).numpy()
        assert ((draws >= low) & (draws <= high)).all()
        # Beyond 40 the excess is exponential with mean 1 / 40.02: 2000 draws, z of 5.3.
        assert abs(np.abs(draws).mean() - 40 - 1 / 40.02) < 5.3 / 40 / math.sqrt(2000) + 1e-4


def test_the_pathwise_gradient_of_a_far_tail_is_that_of_the_quantile():
    loc, low = leaf(0.0), leaf(38.0)
    d = dist.TruncatedNormal(loc, 1.0, low)
    x = d.rsample((), Generator(0))
    by_loc, by_low = grad(x, [loc, low])
    step = 1e-4
    shifted = lambda m, b: dist.TruncatedNormal(t(m), 1.0, t(b)).rsample((), Generator(0)).item()
    assert_close(by_loc, (shifted(step, 38.0) - shifted(-step, 38.0)) / (2 * step), rtol=1e-5)
    assert_close(
        by_low, (shifted(0.0, 38 + step) - shifted(0.0, 38 - step)) / (2 * step), rtol=1e-5
    )


def test_without_bounds_the_truncated_normal_is_normal_with_its_gradients():
    loc, scale = leaf(0.3), leaf(2.0)
    d = dist.TruncatedNormal(loc, scale)
    lp = d.log_prob(t(1.0))
    assert_close(lp, stats.norm(0.3, 2.0).logpdf(1.0))
    whole = grad(dist.Normal(loc, scale).log_prob(t(1.0)), [loc, scale])
    for ours, theirs in zip(grad(lp, [loc, scale]), whole):
        assert_close(ours, theirs)
    assert_close(d.variance, 4.0)


def test_a_needle_of_a_normal_in_single_precision():
    d = dist.Normal(single(0.0), single(1e-30))
    assert_close(d.log_prob(single(0.0)), 68.1586, rtol=1e-6)


def test_tiny_covariances_and_singular_ones():
    d = dist.MultivariateNormal(t(0.0, 0.0), tensor(1e-40 * np.eye(2)))
    assert_close(d.log_prob(t(0.0, 0.0)), 40 * math.log(10) - math.log(2 * math.pi))
    with pytest.raises(DomainError, match="eigenvalue"):
        dist.MultivariateNormal(t(0.0, 0.0), tensor(np.ones((2, 2))))
    loose = dist.MultivariateNormal(t(0.0, 0.0), tensor(np.ones((2, 2))), validate_args=False)
    with pytest.raises(np.linalg.LinAlgError):
        loose.log_prob(t(0.0, 0.0))


# ------------------------------------------------------------------------------ draws


def test_gamma_draws_of_tiny_concentration_stop_at_the_smallest_normal_float():
    n = 50_000
    d = dist.Gamma(single(1e-3), single(1.0))
    x = d.sample((n,), Generator(0)).numpy()
    tiny = np.finfo(np.float32).tiny
    assert x.min() == tiny and np.isfinite(d.log_prob(x).numpy()).all()
    share = stats.gamma(1e-3).cdf(tiny)
    assert abs((x == tiny).mean() - share) < 5.3 * math.sqrt(share * (1 - share) / n)


def test_beta_and_dirichlet_draws_of_tiny_concentration_lie_in_the_corners():
    n = 50_000
    x = dist.Beta(single(1e-3), single(1e-3)).sample((n,), Generator(0)).numpy()
    share = stats.beta(1e-3, 1e-3).cdf(0.6) - stats.beta(1e-3, 1e-3).cdf(0.4)
    assert abs(((x > 0.4) & (x < 0.6)).mean() - share) < 5.3 * math.sqrt(share / n)
    assert x.min() > 0.0 and x.max() < 1.0
    y = dist.Dirichlet(tensor([1e-3] * 3)).sample((n,), Generator(0)).numpy()
    assert (y.max(-1) < 0.5).mean() < 1e-3


def test_huge_poisson_rates_give_huge_draws():
    x = dist.Poisson(1e20).sample((5,), Generator(0)).numpy()
    assert (np.abs(x / 1e20 - 1.0) < 1e-6).all()


def test_binomial_draws_stay_in_their_range():
    for p in (1e-12, 0.5, 1.0 - 1e-12):
        x = dist.Binomial(10, p).sample((100_000,), Generator(0)).numpy()
        assert x.min() >= 0 and x.max() <= 10 and (x == np.floor(x)).all()


def test_a_large_correlation_factor_in_single_precision():
    d = dist.LKJCholesky(50, single(1.0))
    x = d.sample((), Generator(0))
    r = x.numpy() @ x.numpy().T
    assert np.linalg.eigvalsh(r).min() > 0 and np.isfinite(d.log_prob(x).item())
    assert_close(np.diag(r), np.ones(50, np.float32), atol=1e-5)


@pytest.mark.parametrize("a", [1e-3, 0.1, 1.0, 30.0, 1e5])
def test_gamma_gradients_are_the_derivative_at_a_fixed_quantile(a):
    concentration = leaf(a)
    # Half of the draws at 1e-3 are below the smallest float, which has no gradient: take the first
    # above.
    tries = (dist.Gamma(concentration, 1.0).rsample((), Generator(seed)) for seed in range(20))
    x = next(x for x in tries if x.item() > np.finfo(float).tiny)
    (g,) = grad(x, [concentration])
    with mpmath.workdps(40):
        v = mpmath.mpf(x.item())
        cdf = lambda k: mpmath.gammainc(k, 0, v, regularized=True)
        slope = -mpmath.diff(cdf, mpmath.mpf(a)) / (
            mpmath.exp(-v) * v ** (mpmath.mpf(a) - 1) / mpmath.gamma(a)
        )
    assert_close(g, float(slope), rtol=1e-8)
