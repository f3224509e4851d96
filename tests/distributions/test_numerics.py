"""Values where distributions go wrong, beyond the rows of test_numbered_cases.py.

The expected numbers are limits, closed forms, or mpmath at 50 digits.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy import special, stats

import probtorch.distributions as dist
from probtorch import stack
from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.core.rng import Generator
from probtorch.distributions import origins
from probtorch.distributions import transforms as tr
from probtorch.effects import sample
from probtorch.errors import DomainError
from probtorch.infer import Target
from probtorch.ops.variates import _run_angle_slope
from probtorch.tensor import tensor
from probtorch.testing import assert_close

INF = math.inf


def t(*values):
    return tensor(np.array(values if len(values) > 1 else values[0], dtype=float))


def single(x):
    return tensor(np.asarray(x, np.float32))


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("df", [0.5, 3.0, 1e8])
def test_half_of_a_student_t_has_both_tails_and_its_slope_at_zero(dtype, df):
    x = tensor(np.array([0.0, 1e-6, 1e-3, 1.0, 4.0], dtype)).requires_grad_()
    d = dist.HalfStudentT(tensor(dtype(df)), tensor(dtype(2.0)))
    z = x.detach().numpy().astype(float) / 2.0
    survival, density = 2.0 * stats.t(df).sf(z), stats.t(df).pdf(z)
    rtol = 1e-5 if dtype is np.float32 else 1e-10
    assert_close(d.survival(x), survival, rtol=rtol)
    assert_close(d.cdf(x), 1.0 - survival, rtol=rtol, atol=1e-15)
    assert_close(grad(d.cdf(x).sum(), [x])[0], density, rtol=rtol)
    assert_close(grad(d.survival(x).sum(), [x])[0], -density, rtol=rtol)
    assert d.cdf(-1.0).item() == 0.0
    assert d.survival(math.inf).item() == 0.0


@pytest.mark.parametrize("alpha", [1e-4, 0.3, 20.0, 1e6])
@pytest.mark.parametrize("z", [-20.0, -1.0, 0.0, 0.7])
def test_the_thin_tail_of_a_skew_normal_keeps_its_digits(z, alpha):
    with mpmath.workdps(40):
        # The derivative by alpha is elementary; integrated from alpha on, in logarithms.
        h, a = mpmath.mpf(abs(z)), mpmath.mpf(alpha)
        c = a * h
        end = mpmath.log(1 + 200 / c**2) / 2 if h else mpmath.mpf(120)
        share = lambda u: mpmath.exp(-mpmath.expm1(2 * u) * c * c / 2)
        at = lambda u: share(u) / (mpmath.exp(-u) / a + a * mpmath.exp(u))
        whole = mpmath.quad(at, mpmath.linspace(0, end, 12))
        thin = whole * mpmath.exp(-(h * h + c * c) / 2) / mpmath.pi
        normal = mpmath.erfc(h / mpmath.sqrt(2))
        cdf = float(thin if z < 0 else 1 - normal + thin)
        other = float(normal - thin if z < 0 else 1 - thin)
        slope = float(2 * mpmath.npdf(z) * mpmath.ncdf(a * mpmath.mpf(z)))
        tilt = float(-mpmath.exp(-h * h * (1 + a * a) / 2) / (1 + a * a) / mpmath.pi)
    x, leaning = leaf(z), leaf(alpha)
    d = dist.SkewNormal(0.0, 1.0, leaning)
    assert_close(d.cdf(x), cdf, rtol=1e-11, atol=1e-300)
    assert_close(dist.SkewNormal(0.0, 1.0, -leaning).cdf(x), other, rtol=1e-11)
    assert_close(dist.SkewNormal(0.0, 1.0, -leaning).survival(-x), cdf, rtol=1e-11, atol=1e-300)
    for found, exact in zip(grad(d.cdf(x), [x, leaning]), (slope, tilt), strict=True):
        assert_close(found, exact, rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("power", [0.3, 0.999])
def test_the_tip_of_a_cusp_has_slopes(power):
    loc, scale, p, x = leaf(1.0), leaf(2.0), leaf(power), leaf(1.0)
    lp = dist.GeneralizedNormal(loc, scale, p).log_prob(x)
    # -log(2 scale gamma(1 + 1 / power)), and its derivatives.
    assert_close(lp, -math.log(4.0) - special.gammaln(1.0 + 1.0 / power))
    of_power = special.digamma(1.0 + 1.0 / power) / power**2
    for found, exact in zip(grad(lp, [loc, scale, p, x]), (0.0, -0.5, of_power, 0.0), strict=True):
        assert_close(found, exact, atol=1e-15)


@pytest.mark.parametrize("loc, concentration", [(6e29, 4e-3), (6e-23, 7e26), (1.0, 1e-25)])
def test_first_passages_of_any_size_are_numbers_in_single_precision(loc, concentration):
    loc, concentration = single(loc).requires_grad_(), single(concentration)
    x = dist.InverseGaussian(loc, concentration).rsample((200,), Generator(0))
    assert x.isfinite().all().item() and (x > 0.0).all().item()
    # With little concentration concentration / n^2 for n normal, whose median square is 0.455.
    if concentration.item() < loc.item():
        middle = np.median(x.detach().numpy()) / concentration.item()
        assert 1.0 < middle < 5.0


@pytest.mark.parametrize("dtype, rtol", [(np.float32, 3e-5), (np.float64, 1e-13)])
def test_the_variance_of_a_chi_number_keeps_its_digits(dtype, rtol):
    df = np.array([0.5, 10.0, 24.9, 25.1, 1e3, 1e8, 1e16], dtype)
    given = tensor(df).requires_grad_()
    found = dist.Chi(given).variance
    with mpmath.workdps(60):

        def exact(v):
            return v - 2 * mpmath.exp(2 * (mpmath.loggamma((v + 1) / 2) - mpmath.loggamma(v / 2)))

        wanted = np.array([float(exact(mpmath.mpf(float(v)))) for v in df])
        slopes = np.array([float(mpmath.diff(exact, mpmath.mpf(float(v)))) for v in df[:5]])
    assert_close(found, wanted, rtol=rtol)
    slope = grad(found.sum(), [given])[0]
    assert_close(slope[:5], slopes, rtol=100 * rtol, atol=rtol)
    assert slope.isfinite().all().item()


def test_a_negative_binomial_with_many_failures_is_poisson():
    for r in (1e8, 1e12):
        logits = math.log(5.0 / r)
        wide = dist.NegativeBinomial(t(r), logits=t(logits)).log_prob(t(3.0))
        assert_close(wide, stats.poisson(5).logpmf(3), rtol=2e-8)
        narrow = dist.NegativeBinomial(single(r), logits=single(logits)).log_prob(single(3.0))
        assert_close(narrow, stats.poisson(5).logpmf(3), rtol=1e-5)
    assert not dist.NegativeBinomial(0.0, 0.3).sample((5,)).numpy().any()


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


def test_tiny_covariances_and_singular_ones():
    d = dist.MultivariateNormal(t(0.0, 0.0), tensor(1e-40 * np.eye(2)))
    assert_close(d.log_prob(t(0.0, 0.0)), 40 * math.log(10) - math.log(2 * math.pi))
    with pytest.raises(DomainError, match="eigenvalue"):
        dist.MultivariateNormal(t(0.0, 0.0), tensor(np.ones((2, 2))))
    loose = dist.MultivariateNormal(t(0.0, 0.0), tensor(np.ones((2, 2))), validate_args=False)
    with pytest.raises(np.linalg.LinAlgError):
        loose.log_prob(t(0.0, 0.0))


# ------------------------------------------------------------------------------ draws and their
# densities


EXTREME = {
    "LogNormal": lambda f: dist.LogNormal(f(0.0), f(50.0)),
    "Weibull": lambda f: dist.Weibull(f(1.0), f(0.1)),
    "Weibull small scale": lambda f: dist.Weibull(f(1e-3), f(0.01)),
    "StudentT": lambda f: dist.StudentT(f(0.1)),
    "StudentT small scale": lambda f: dist.StudentT(f(0.01), f(3.0), f(1e-3)),
    "StudentT large scale": lambda f: dist.StudentT(f(0.01), f(3.0), f(1e3)),
    "Cauchy": lambda f: dist.Cauchy(f(0.0), f(1e35)),
    "HalfCauchy": lambda f: dist.HalfCauchy(f(1e35)),
    "Dirichlet": lambda f: dist.Dirichlet(f([0.001, 0.001, 0.001])),
    "Beta": lambda f: dist.Beta(f(0.001), f(0.001)),
    "Gamma": lambda f: dist.Gamma(f(0.001), f(1e6)),
    "Chi2": lambda f: dist.Chi2(f(0.001)),
    "InverseGamma": lambda f: dist.InverseGamma(f(0.01), f(5.0)),
    "InverseGamma small rate": lambda f: dist.InverseGamma(f(0.001), f(5e-3)),
    "Pareto": lambda f: dist.Pareto(f(2.0), f(0.01)),
    "Exponential": lambda f: dist.Exponential(f(1e-38)),
    "Geometric": lambda f: dist.Geometric(f(1e-38)),
    "NegativeBinomial": lambda f: dist.NegativeBinomial(f(0.01), f(1.0 - 1e-7)),
    "Poisson": lambda f: dist.Poisson(f(1e30)),
    "TruncatedNormal": lambda f: dist.TruncatedNormal(f(0.0), f(1.0), f(30.0), f(31.0)),
    "VonMises": lambda f: dist.VonMises(f(3.0), f(1e9)),
    "exp": lambda f: dist.TransformedDistribution(
        dist.Normal(f(0.0), f(50.0)), tr.ExpTransform()
    ),
    "tanh": lambda f: dist.TransformedDistribution(
        dist.Normal(f(5.0), f(20.0)), tr.TanhTransform()
    ),
    "scaled tanh": lambda f: dist.TransformedDistribution(
        dist.Normal(f(0.0), f(1.0)),
        [tr.AffineTransform(f(3.0), f(20.0)), tr.TanhTransform(), tr.AffineTransform(0.0, 2.0)],
    ),
    "sigmoid": lambda f: dist.TransformedDistribution(
        dist.Normal(f(0.0), f(90.0)), tr.SigmoidTransform()
    ),
    "softplus": lambda f: dist.TransformedDistribution(
        dist.Normal(f(-90.0), f(90.0)), tr.SoftplusTransform()
    ),
    "stick breaking": lambda f: dist.TransformedDistribution(
        dist.Normal(f([0.0, 1.0, 2.0]), f(100.0)).to_event(1), tr.StickBreakingTransform()
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXTREME)
def test_a_density_accepts_its_own_draws_in_single_precision(name):
    d = EXTREME[name](single)
    x = d.sample((20_000,), Generator(1))
    assert x.dtype == np.float32
    assert np.isfinite(d.log_prob(x).numpy()).all()


def test_the_density_of_a_draw_at_a_bound_is_that_of_what_it_came_from():
    loc, scale = single(20.0).requires_grad_(), single(3.0).requires_grad_()
    d = dist.TransformedDistribution(dist.Normal(loc, scale), tr.TanhTransform())
    x = d.sample((50,), Generator(2))
    u = dist.Normal(20.0, 3.0).sample((50,), Generator(2))
    assert (x.numpy() == 1.0).mean() > 0.9
    expected = stats.norm.logpdf(u.numpy(), 20.0, 3.0) - 2 * (math.log(2.0) - u.numpy())
    assert_close(d.log_prob(x), expected.astype(np.float32), rtol=1e-5)
    by_loc, by_scale = grad(d.log_prob(x).sum(), [loc, scale])
    z = (u.numpy() - 20.0) / 3.0
    assert_close(by_loc, np.float32(z.sum() / 3.0), rtol=1e-4)
    assert_close(by_scale, np.float32((z * z - 1.0).sum() / 3.0), rtol=1e-4)
    # A draw with a gradient: the total derivative, as from the pre-image.
    y = d.rsample((50,), Generator(2))
    (total,) = grad(d.log_prob(y).sum(), [loc])
    assert_close(total, np.float32(2.0 * 50), rtol=1e-4)
    # Equal numbers that were not drawn have been on the bound all the time.
    assert (d.log_prob(x.clone())[x == 1.0] == -INF).numpy().all()
    x[0] = 0.5
    assert_close(d.log_prob(x)[0], d.log_prob(single(0.5)))


def test_a_draw_keeps_its_origin_no_longer_than_itself():
    d = dist.TransformedDistribution(dist.Normal(0.0, 1.0), tr.TanhTransform())
    before = len(origins._ORIGINS)
    draws = [d.sample() for _ in range(3)]
    assert len(origins._ORIGINS) == before + len(draws)
    del draws
    assert len(origins._ORIGINS) == before


# ------------------------------------------------------------------------------ far out


@pytest.mark.parametrize("dtype, far", [(np.float32, 1e20), (np.float64, 1e200)])
@pytest.mark.parametrize(
    "make, df",
    [
        (lambda s: dist.Cauchy(0.0, s), 1.0),
        (lambda s: dist.HalfCauchy(s), 1.0),
        (lambda s: dist.StudentT(1.0, 0.0, s), 1.0),
        (lambda s: dist.StudentT(3.0, 0.0, s), 3.0),
    ],
)
def test_heavy_tails_reach_values_whose_square_overflows(make, df, dtype, far):
    scale, x = (tensor(np.array(v, dtype), requires_grad=True) for v in (1.5, far))
    lp = make(scale).log_prob(x)
    with mpmath.workdps(40):
        z = mpmath.mpf(float(x.item())) / 1.5
        half = isinstance(make(scale), dist.HalfCauchy)
        norm = mpmath.gamma((df + 1) / 2) / mpmath.gamma(df / 2) / mpmath.sqrt(df * mpmath.pi)
        power = -(df + 1) / 2 * mpmath.log1p(z * z / df)
        exact = mpmath.log(norm * (1 + half) / 1.5) + power
    assert_close(lp, dtype(exact), rtol=1e-6 if dtype is np.float32 else 1e-13)
    by_scale, by_x = grad(lp, [scale, x])
    assert_close(by_scale, dtype(df / 1.5), rtol=1e-6)
    assert_close(by_x, dtype(-(df + 1) / far), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_keep_their_digits_where_a_share_is_rounded_to_one(dtype):
    def exact(fn, *args):
        with mpmath.workdps(40):
            return float(fn(*(mpmath.mpf(float(a)) for a in args)))

    upper = lambda a, b, x: mpmath.betainc(a, b, x, 1, regularized=True)
    lower = lambda a, b, x: mpmath.betainc(a, b, 0, x, regularized=True)
    number = lambda v: tensor(np.asarray(v, dtype))
    rtol = 1e-5 if dtype is np.float32 else 1e-12
    a, x = dtype(0.05), dtype(1e-30)
    got = dist.Beta(number(a), number(a)).survival(number(x))
    assert_close(got.double(), exact(upper, a, a, x), rtol=rtol)
    f = dist.FisherSnedecor(number(0.5), number(0.25))
    for at in (1e-20, 1e20):
        v = number(at)
        for method, part in ((f.cdf, lower), (f.survival, upper)):
            right = exact(lambda w, part=part: part(0.25, 0.125, w / (w + 0.5)), v.item())
            assert_close(method(v).double(), right, rtol=10 * rtol)
    z, half = number([1e-6, -1e-4, 0.0]), dist.StudentT(number(3.0))
    density = math.exp(stats.t(3).logpdf(0.0))
    assert_close(half.cdf(z).double() - 0.5, z.double() * density, rtol=1e-4, atol=1e-7)
    leaf_ = number(0.0).requires_grad_()
    assert_close(grad(half.cdf(leaf_), [leaf_])[0].double(), density, rtol=rtol)


# ------------------------------------------------------------------------------ impossible outcomes


AT_ZERO = {
    "Bernoulli": lambda p: dist.Bernoulli(p),
    "Binomial": lambda p: dist.Binomial(3, p),
    "NegativeBinomial": lambda p: dist.NegativeBinomial(2.0, p),
    "Poisson": lambda p: dist.Poisson(p),
    "Categorical": lambda p: dist.Categorical(stack([1.0 - p, p], -1)),
    "OneHotCategorical": lambda p: dist.OneHotCategorical(stack([1.0 - p, p], -1)),
    "Multinomial": lambda p: dist.Multinomial(1, stack([1.0 - p, p], -1)),
}


@pytest.mark.parametrize("outcome", [0.0, 1.0])
@pytest.mark.parametrize("name", AT_ZERO)
def test_an_impossible_branch_of_a_sum_leaves_the_gradient_alone(name, outcome):
    """log of P(y | p) + P(y | 0): the mass of the second term may be 0, its slope not nan."""
    p = leaf(0.3)
    d = AT_ZERO[name](p * t(1.0, 0.0))
    y = t(1.0 - outcome, outcome) if d.event_shape else t(outcome)
    lp = d.log_prob(y).logsumexp(-1)
    assert math.isfinite(lp.item())
    (g,) = grad(lp, [p])
    h = 1e-6
    ends = [
        AT_ZERO[name](tensor(np.array([q, 0.0]))).log_prob(y).logsumexp(-1).item()
        for q in (0.3 - h, 0.3 + h)
    ]
    assert_close(g, (ends[1] - ends[0]) / (2 * h), rtol=1e-6)


def test_a_certain_failure_under_enumeration_has_a_gradient():
    def model(y):
        p = sample("p", dist.Uniform(0.0, 1.0))
        z = sample("z", dist.Bernoulli(0.5))
        sample("y", dist.Bernoulli(p * z), obs=y)

    value, gradient = Target.from_model(model, t(1.0)).value_and_grad([0.3])
    # log(p / 2) of p uniform, over the log odds: p / 2 p (1 - p) = exp(2 log p + log(1 - p)) / 2.
    p = 1.0 / (1.0 + math.exp(-0.3))
    assert_close(value, math.log(0.5 * p) + math.log(p * (1.0 - p)))
    assert_close(np.asarray(gradient), [2.0 * (1.0 - p) - p])


BOUNDED = {
    "Bernoulli": (dist.Bernoulli, (0.0, 1.0)),
    "Binomial": (lambda **p: dist.Binomial(3, **p), (0.0, 1.0, 3.0)),
    "NegativeBinomial": (lambda **p: dist.NegativeBinomial(2.0, **p), (0.0, 1.0)),
    "Geometric": (dist.Geometric, (0.0, 1.0)),
}


@pytest.mark.parametrize("name, given", [(n, g) for n in BOUNDED for g in ("probs", "logits")])
def test_gradients_at_certain_parameters_are_numbers_where_the_density_is_finite(name, given):
    make, values = BOUNDED[name]
    for edge in (0.0, 1.0) if given == "probs" else (-INF, INF):
        for value in values:
            p = leaf(edge)
            try:
                lp = make(**{given: p}).log_prob(t(value))
            except DomainError:
                continue
            if math.isfinite(lp.item()):
                assert not math.isnan(grad(lp, [p])[0].item()), (edge, value)


@pytest.mark.parametrize("cls", [dist.Gamma, dist.InverseGamma])
@pytest.mark.parametrize("shape", [(0, 1), (3,), (4, 3), (2, 1, 3), (0, 3)], ids=str)
@pytest.mark.parametrize("batch", [(), (3,), (1,), (2, 1, 1)], ids=str)
def test_gamma_data_of_any_shape_has_the_density_and_slopes_of_eager_runs(cls, shape, batch):
    rng = np.random.default_rng(0)
    x = tensor(rng.gamma(2.0, 1.0, shape))
    a, b = (tensor(rng.gamma(2.0, 1.0, batch)) for _ in range(2))

    def slopes(a, b):
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        lp = cls(a, b).log_prob(x)
        return lp.detach(), *grad(lp.sum(), [a, b], materialize_grads=True)

    native = compile(slopes)
    native(a, b)
    for got, expected in zip(native(a, b), slopes(a, b), strict=True):
        assert_close(got, expected, rtol=1e-12)
    assert native.reason is None


def test_an_exact_zero_beside_a_gamma_leaves_slopes_alone():
    """A value that is impossible for one component of a mixture."""
    a, weight = leaf(2.0), leaf(0.3)
    x = t(0.0, 0.7, 2.0)
    parts = stack(
        [
            weight.log() + dist.Gamma(a, 1.0).log_prob(x),
            (1.0 - weight).log() + dist.Exponential(1.0).log_prob(x),
        ]
    )
    got = grad(parts.logsumexp(0).sum(), [a, weight])
    h = 1e-6

    def total(a, w):
        with np.errstate(divide="ignore"):
            terms = [np.log(w) + stats.gamma(a).logpdf(x.numpy()), np.log1p(-w) - x.numpy()]
        return np.logaddexp(*terms).sum()

    expected = [
        (total(2.0 + h, 0.3) - total(2.0 - h, 0.3)) / (2 * h),
        (total(2.0, 0.3 + h) - total(2.0, 0.3 - h)) / (2 * h),
    ]
    assert_close(got[0], expected[0], rtol=1e-6)
    assert_close(got[1], expected[1], rtol=1e-6)
