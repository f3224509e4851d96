"""Numerical cases N36 to N76: where samplers and densities of libraries have gone wrong.

The numbers are those of ../shared/reference/reliability.md, 1.7. Each row says what is right: a
limit, a closed form, SciPy, or mpmath. Statistical rows have fixed seeds and a z below 5.3, which
chance exceeds in 1e-7 of all runs.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

import probtorch.distributions as dist
from probtorch import multinomial
from probtorch.autograd import grad
from probtorch.config import configure
from probtorch.core.rng import Generator
from probtorch.distributions import biject_to, constraints
from probtorch.distributions import transforms as tr
from probtorch.errors import DomainError
from probtorch.ops import categories
from probtorch.ops.special import betaln
from probtorch.tensor import tensor
from probtorch.testing import assert_close

INF, NAN = math.inf, math.nan


def t(x):
    return tensor(np.asarray(x, np.float64))


def single(x):
    return tensor(np.asarray(x, np.float32))


PRECISIONS = pytest.mark.parametrize("f", [t, single], ids=["double", "single"])


def slopes(fn, *starts):
    """Return the value of ``fn`` and its gradient in each argument."""
    leaves = [t(x).requires_grad_() for x in starts]
    value = fn(*leaves)
    return value.detach().numpy(), [g.numpy() for g in grad(value.sum(), leaves)]


def loose(cls, *args, **kwargs):
    return cls(*args, validate_args=False, **kwargs)


def pushed(base, *transforms, **options):
    return dist.TransformedDistribution(base, list(transforms), **options)


# ------------------------------------------------------------------------------ values


STANDARD = lambda f: loose(dist.Normal, f(0.0), f(1.0))

# Case, distribution, value, log density by the closed form or limit that is named beside it.
VALUES = [
    ("N40 flat beta at 0", lambda f: dist.Beta(f(1.0), f(1.0)), 0.0, 0.0),
    ("N40 flat beta at 1", lambda f: dist.Beta(f(1.0), f(1.0)), 1.0, 0.0),
    ("N41 exponential gamma at 0", lambda f: dist.Gamma(f(1.0), f(1.0)), 0.0, 0.0),
    ("N42 gamma below 0", lambda f: loose(dist.Gamma, f(2.0), f(1.0)), -1.0, -INF),
    ("N42 log-normal at 0", lambda f: loose(dist.LogNormal, f(0.0), f(1.0)), 0.0, -INF),
    ("N42 weibull 0.5 at 0", lambda f: loose(dist.Weibull, f(1.0), f(0.5)), 0.0, INF),
    ("N42 weibull 1 at 0", lambda f: loose(dist.Weibull, f(1.0), f(1.0)), 0.0, 0.0),
    ("N42 weibull 2 at 0", lambda f: loose(dist.Weibull, f(1.0), f(2.0)), 0.0, -INF),
    ("N43 no trials", lambda f: dist.Binomial(0, f(0.3)), 0.0, 0.0),
    ("N44 probs 0", lambda f: dist.Binomial(5, f(0.0)), 0.0, 0.0),
    ("N44 probs 1", lambda f: dist.Binomial(5, f(1.0)), 5.0, 0.0),
    ("N44 logits -inf", lambda f: dist.Binomial(5, logits=f(-INF)), 0.0, 0.0),
    ("N44 logits inf", lambda f: dist.Binomial(5, logits=f(INF)), 5.0, 0.0),
    ("N45 never", lambda f: dist.Bernoulli(f(0.0)), 1.0, -INF),
    ("N45 never, by logits", lambda f: dist.Bernoulli(logits=f(-INF)), 1.0, -INF),
    ("N46 weight 0", lambda f: dist.Categorical(f([0.0, 2.0, 3.0])), 0.0, -INF),
    ("N46 weight 2 of 5", lambda f: dist.Categorical(f([0.0, 2.0, 3.0])), 1.0, math.log(0.4)),
    ("N50 rate 0 at 0", lambda f: dist.Poisson(f(0.0)), 0.0, 0.0),
    ("N50 rate 0 at 1", lambda f: dist.Poisson(f(0.0)), 1.0, -INF),
    ("N52 certain success", lambda f: dist.Geometric(f(1.0)), 0.0, 0.0),
    ("N53 no failures at 0", lambda f: dist.NegativeBinomial(f(0.0), f(0.3)), 0.0, 0.0),
    ("N53 no failures at 1", lambda f: dist.NegativeBinomial(f(0.0), f(0.3)), 1.0, -INF),
    ("N53 mean 0 at 0", lambda f: dist.NegativeBinomial2(f(0.0), f(3.0)), 0.0, 0.0),
    ("N53 mean 0 at 1", lambda f: dist.NegativeBinomial2(f(0.0), f(3.0)), 1.0, -INF),
    # log of 20 choose 10 times B(10 + 1e7, 10 + 1e7) / B(1e7, 1e7), mpmath.
    ("N54", lambda f: dist.BetaBinomial(f(1e7), f(1e7), 20), 10.0, -1.73615279659622),
    # -log(2 pi) / 2 - 1 / 2, less 1.25e-9 for the finite df: mpmath.
    ("N56", lambda f: dist.StudentT(f(1e8)), 1.0, -1.41893853820467),
    ("N58 flat", lambda f: dist.VonMises(f(0.0), f(1e-8)), 0.0, -1.8378770564093453),
    ("N58 narrow", lambda f: dist.VonMises(f(0.0), f(1e4)), 0.0, 3.6862191521584),
    ("N58 needle", lambda f: dist.VonMises(f(0.0), f(1e8)), 0.0, 8.29140183752151),
    # kappa - log(2 pi I0(kappa)) is log(kappa / 2 pi) / 2 - 1 / (8 kappa) + O(kappa^-2).
    ("N60 low rate", lambda f: dist.Truncated(dist.Gamma(f(2.0), f(1e-6)), 0.0, 2.0), 1.0,
     math.log(0.5) + 1e-6 / 3),
    ("N61", lambda f: dist.Normal(f(0.0), f(1e-30)), 0.0,
     30 * math.log(10) - 0.5 * math.log(2 * math.pi)),
    ("N62 half-normal below 0", lambda f: loose(dist.HalfNormal, f(1.0)), -1.0, -INF),
    ("N62 half-cauchy below 0", lambda f: loose(dist.HalfCauchy, f(1.0)), -1.0, -INF),
    ("N63 uniform at low", lambda f: loose(dist.Uniform, f(0.0), f(2.0)), 0.0, math.log(0.5)),
    ("N63 uniform at high", lambda f: loose(dist.Uniform, f(0.0), f(2.0)), 2.0, -INF),
    ("N63 uniform outside", lambda f: loose(dist.Uniform, f(0.0), f(2.0)), -1.0, -INF),
    ("N64 sigmoid at 1", lambda f: pushed(STANDARD(f), tr.SigmoidTransform()), 1.0, -INF),
    ("N64 tanh at 1", lambda f: pushed(STANDARD(f), tr.TanhTransform()), 1.0, -INF),
    ("N73 tiny covariance", lambda f: dist.MultivariateNormal(t([0.0, 0.0]), t(1e-40 * np.eye(2))),
     (0.0, 0.0), 40 * math.log(10) - math.log(2 * math.pi)),
    # Covariance 1e-40 (I + 1 1^T), whose determinant is 3e-80.
    ("N73 tiny low rank", lambda f: dist.LowRankMultivariateNormal(
        t([0.0, 0.0]), t([[1e-20], [1e-20]]), t([1e-40, 1e-40])),
     (0.0, 0.0), 40 * math.log(10) - math.log(2 * math.pi) - 0.5 * math.log(3.0)),
    ("N75 gate 0 at 0", lambda f: dist.ZeroInflatedPoisson(f(2.0), gate=f(0.0)), 0.0, -2.0),
    ("N75 gate 1 at 0", lambda f: dist.ZeroInflatedPoisson(f(2.0), gate=f(1.0)), 0.0, 0.0),
    ("N75 gate 1 at 3", lambda f: dist.ZeroInflatedPoisson(f(2.0), gate=f(1.0)), 3.0, -INF),
    ("N75 logits -inf at 0", lambda f: dist.ZeroInflatedPoisson(f(2.0), gate_logits=f(-INF)),
     0.0, -2.0),
    ("N75 logits inf at 3", lambda f: dist.ZeroInflatedPoisson(f(2.0), gate_logits=f(INF)),
     3.0, -INF),
]  # fmt: skip


@PRECISIONS
@pytest.mark.parametrize("make, value, expected", [pytest.param(*v, id=n) for n, *v in VALUES])
def test_values_at_the_edge(make, value, expected, f):
    rtol, atol = (1e-12, 1e-14) if f is t else (4e-6, 1e-7)
    assert_close(make(f).log_prob(f(value)).double(), expected, rtol=rtol, atol=atol)


# Case, log density of the parameters, the parameters, value, gradients.
SLOPES = [
    ("N40", lambda a, b: dist.Beta(a, b).log_prob(t(0.0)), (1.0, 1.0), 0.0, (1.0, 1.0)),
    # The one-sided derivative is -inf; log b - digamma(a) stands for it.
    ("N41", lambda a, b: dist.Gamma(a, b).log_prob(t(0.0)), (1.0, 1.0), 0.0,
     (0.57721566490153286, 1.0)),
    ("N43", lambda p: dist.Binomial(0, p).log_prob(t(0.0)), (0.3,), 0.0, (0.0,)),
    ("N44 probs 0", lambda p: dist.Binomial(5, p).log_prob(t(0.0)), (0.0,), 0.0, (-5.0,)),
    ("N44 probs 1", lambda p: dist.Binomial(5, p).log_prob(t(5.0)), (1.0,), 0.0, (5.0,)),
    ("N44 logits", lambda p: dist.Binomial(5, logits=p).log_prob(t(0.0)), (-INF,), 0.0, (0.0,)),
    # 1 / p less 1 / the sum of the weights.
    ("N46", lambda p: dist.Categorical(p).log_prob(tensor(1)), ((0.0, 2.0, 3.0),), math.log(0.4),
     ((-0.2, 0.3, -0.2),)),
    ("N48 logits", lambda p: dist.Multinomial(3, logits=p).log_prob(t([0.0, 1.0, 2.0])),
     ((-INF, 0.0, 0.0),), math.log(3 / 8), ((0.0, -0.5, 0.5),)),
    # count / p - 3 / sum; at p of 0 the slope of the normalisation alone.
    ("N48 probs", lambda p: dist.Multinomial(3, p).log_prob(t([0.0, 1.0, 2.0])),
     ((0.0, 0.5, 0.5),), math.log(3 / 8), ((-3.0, -1.0, 1.0),)),
    ("N50", lambda r: dist.Poisson(r).log_prob(t(0.0)), (0.0,), 0.0, (-1.0,)),
    ("N62 half-normal", lambda s: loose(dist.HalfNormal, s).log_prob(t(-1.0)), (1.0,), -INF,
     (0.0,)),
    ("N62 half-cauchy", lambda s: loose(dist.HalfCauchy, s).log_prob(t(-1.0)), (1.0,), -INF,
     (0.0,)),
    ("N63", lambda a, b: loose(dist.Uniform, a, b).log_prob(t(3.0)), (0.0, 2.0), -INF, (0.0, 0.0)),
    # The second of two equal normals: Gaussian slopes times the weight.
    ("N68", lambda w, m: dist.MixtureSameFamily(
        dist.Categorical(w), dist.Normal(m, 1.0)).log_prob(t(0.5)),
     ((0.0, 1.0), (7.0, 0.5)), -0.5 * math.log(2 * math.pi), (None, (0.0, 0.0))),
    ("N69", lambda w, r: loose(dist.MixtureSameFamily, dist.Categorical(w),
                               loose(dist.Exponential, r)).log_prob(t(-0.5)),
     ((0.4, 0.6), (1.0, 2.0)), -INF, ((0.0, 0.0), (0.0, 0.0))),
    ("N70", lambda m, s: dist.Normal(m, s).mask(tensor([True, False])).log_prob(
        t([0.5, NAN])).sum(), (0.0, 1.0), stats.norm.logpdf(0.5), (0.5, -0.75)),
    # (1 - exp(-2)) / exp(-2), and the rate's slope of the Poisson.
    ("N75 gate 0", lambda g, r: dist.ZeroInflatedPoisson(r, gate=g).log_prob(t(0.0)), (0.0, 2.0),
     -2.0, (math.expm1(2.0), -1.0)),
    ("N75 gate 1", lambda g, r: dist.ZeroInflatedPoisson(r, gate=g).log_prob(t(0.0)), (1.0, 2.0),
     0.0, (-math.expm1(-2.0), 0.0)),
    ("N75 logits", lambda g, r: dist.ZeroInflatedPoisson(r, gate_logits=g).log_prob(t(0.0)),
     (-INF, 2.0), -2.0, (0.0, -1.0)),
]  # fmt: skip


@pytest.mark.parametrize(
    "fn, starts, expected, gradients", [pytest.param(*s, id=n) for n, *s in SLOPES]
)
def test_slopes_at_the_edge(fn, starts, expected, gradients):
    value, found = slopes(fn, *starts)
    assert_close(value, expected, rtol=1e-12, atol=1e-14)
    for got, right in zip(found, gradients, strict=True):
        if right is None:
            assert np.isfinite(got).all()
        else:
            assert_close(got, np.asarray(right), rtol=1e-12, atol=1e-14)


def test_n46_entropy_with_a_weight_of_zero():
    assert_close(dist.Categorical(t([0.0, 2.0, 3.0])).entropy(), stats.entropy([2, 3]))


@pytest.mark.parametrize("make", [dist.ZeroInflatedPoisson, dist.HurdlePoisson])
@pytest.mark.parametrize("edge, x", [(0.0, 0.0), (0.0, 3.0), (1.0, 0.0), (1.0, 3.0)])
def test_n75_gates_that_decide_leave_a_sum_its_slope(make, edge, x):
    """log of P(x | g) + P(x | edge): what one of them makes impossible may not spoil the other."""

    def both(g):
        return make(rate=2.0, gate=g * t([1.0, 0.0]) + t([0.0, edge])).log_prob(t(x)).logsumexp(-1)

    _, (slope,) = slopes(both, 0.3)
    ends = [both(t(g)).item() for g in (0.3 - 1e-6, 0.3 + 1e-6)]
    assert_close(slope, (ends[1] - ends[0]) / 2e-6, rtol=1e-7)


# ------------------------------------------------------------------------------ extreme parameters


@PRECISIONS
@pytest.mark.parametrize("count", [1e8, 1e12])
def test_n53_a_negative_binomial_with_many_failures_is_poisson(f, count):
    d = dist.NegativeBinomial(f(count), logits=f(math.log(3.0 / count)))
    with mpmath.workdps(50):
        r, x = mpmath.mpf(count), 2
        logit = mpmath.mpf(d.logits.item())
        exact = mpmath.loggamma(x + r) - mpmath.loggamma(r) - mpmath.log(2)
        exact += x * logit - (x + r) * mpmath.log1p(mpmath.exp(logit))
    assert_close(d.log_prob(f(2.0)).double(), float(exact), rtol=1e-12 if f is t else 4e-6)
    assert_close(float(exact), stats.poisson(3.0).logpmf(2), rtol=1e-5)


@PRECISIONS
def test_n55_a_beta_function_of_very_different_arguments(f):
    big = f(1e20).item()
    with mpmath.workdps(60):
        exact = mpmath.log(2) - sum(mpmath.log(mpmath.mpf(big) + k) for k in range(3))
    assert_close(betaln(f(1e20), f(3.0)).double(), float(exact), rtol=1e-14 if f is t else 1e-7)
    assert round(float(exact), 4) == -137.462


def test_n57_moments_of_student_t():
    d = dist.StudentT(t([0.5, 1.0, 1.5, 2.0, 3.0]))
    assert_close(d.mean, [NAN, NAN, 0.0, 0.0, 0.0])
    assert_close(d.variance, [NAN, NAN, INF, INF, 3.0])


@pytest.mark.parametrize("kappa", [1e-8, 1e4, 1e8])
def test_n58_angles_are_drawn_from_flat_to_needle(kappa):
    x = dist.VonMises(t(0.0), t(kappa)).sample((4000,), Generator(1)).numpy()
    # sqrt(kappa) x tends to a standard normal, and x to a uniform angle.
    limit = stats.norm(0, kappa**-0.5) if kappa > 1.0 else stats.uniform(-math.pi, 2 * math.pi)
    # At 1e4 the limit is off by less than 2e-5 in cdf; Dvoretzky, Kiefer and Wolfowitz at 1e-7.
    assert stats.kstest(x, limit.cdf).statistic < math.sqrt(math.log(2 / 1e-7) / 8000) + 2e-5


@PRECISIONS
def test_n59_a_normal_cut_off_far_in_its_tail(f):
    d = dist.TruncatedNormal(f(0.0), f(1.0), low=f(40.0))
    at = f(40.1).item()
    with mpmath.workdps(60):
        exact = mpmath.log(mpmath.npdf(at) / mpmath.ncdf(-40))
    assert_close(d.log_prob(f(at)).double(), float(exact), rtol=1e-11 if f is t else 4e-6)
    assert round(float(exact), 3) == -0.315
    x = d.sample((2000,), Generator(0)).numpy()
    assert (x >= 40.0).all() and np.isfinite(d.log_prob(x).numpy()).all()
    # The excess is nearly exponential of rate 40.02, by the hazard of the normal.
    assert abs(x.mean() - 40 - 1 / 40.05) < 5.3 / 40 / math.sqrt(2000)


def test_n60_a_truncated_gamma_of_small_rate_integrates_to_one():
    d = dist.Truncated(dist.Gamma(t(2.0), t(1e-6)), 0.5, 10.0)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    x = 0.5 + 4.75 * (nodes + 1.0)
    assert_close((np.exp(d.log_prob(t(x)).numpy()) * weights).sum() * 4.75, 1.0, rtol=1e-12)


@pytest.mark.parametrize("cls", [dist.HalfNormal, dist.HalfCauchy])
def test_n62_no_mass_below_zero(cls):
    assert cls(t(1.0)).cdf(t([-1.0, -1e-300, 0.0])).tolist() == [0.0, 0.0, 0.0]


def test_n65_a_draw_on_the_bound_has_the_density_of_what_it_came_from():
    d = pushed(dist.Normal(single(20.0), single(1e-3)), tr.TanhTransform())
    x, remembered = d.sample_and_log_prob((), Generator(0))
    base = dist.Normal(single(20.0), single(1e-3)).sample((), Generator(0)).item()
    assert x.item() == 1.0
    # log(1 - tanh(u)^2) is 2 log 2 - 2 u where exp(-2 u) is nothing.
    expected = stats.norm(20.0, 1e-3).logpdf(base) - 2 * (math.log(2.0) - base)
    assert_close(remembered, np.float32(expected), rtol=1e-4)
    assert d.log_prob(x).item() == remembered.item()


def test_n66_gradients_do_not_depend_on_what_is_remembered():
    loc = t(0.3).requires_grad_()
    d = pushed(dist.Normal(loc, 1.0), tr.TanhTransform())
    x = d.rsample((), Generator(3))
    u = dist.Normal(loc, 1.0).rsample((), Generator(3))
    by_memory = grad(d.log_prob(x), [loc], retain_graph=True)[0]
    without = grad(d.log_prob(u.tanh() * 1.0), [loc])[0]
    # Along the path only the log-determinant moves: d/du -log(1 - tanh^2) = 2 tanh u.
    assert_close(by_memory, 2.0 * math.tanh(u.item()), rtol=1e-9)
    assert_close(without, by_memory, rtol=1e-9)


@pytest.mark.parametrize("gate", [{"gate": 0.3}, {"gate_logits": math.log(3 / 7)}], ids=str)
def test_n75_zeros_are_as_many_as_their_mass(gate):
    n = 40_000
    x = dist.ZeroInflatedPoisson(t(2.0), **{k: t(v) for k, v in gate.items()})
    share = (x.sample((n,), Generator(0)).numpy() == 0.0).mean()
    expected = 0.3 + 0.7 * math.exp(-2.0)
    assert abs(share - expected) < 5.3 * math.sqrt(expected * (1 - expected) / n)


def test_n74_moments_that_diverge():
    assert_close(dist.InverseGamma(t([0.5, 1.0, 1.5]), 1.0).mean, [INF, INF, 2.0])
    assert_close(dist.Pareto(1.0, t([1.0, 1.5])).mean, [INF, 3.0])
    assert_close(dist.Pareto(1.0, t([1.5, 2.0, 3.0])).variance, [INF, INF, 0.75])
    assert math.isnan(dist.Cauchy().mean.item()) and dist.HalfCauchy().mean.item() == INF


# ------------------------------------------------------------------------------ draws


def test_n36_gamma_draws_of_tiny_concentration_stop_at_the_smallest_normal_float():
    n, tiny = 40_000, np.finfo(np.float32).tiny
    d = dist.Gamma(single(1e-3), single(1.0))
    x = d.sample((n,), Generator(0)).numpy()
    assert x.min() == tiny and np.isfinite(d.log_prob(x).numpy()).all()
    share = stats.gamma(1e-3).cdf(tiny)
    assert 0.916 < share < 0.917
    assert abs((x == tiny).mean() - share) < 5.3 * math.sqrt(share * (1 - share) / n)


@PRECISIONS
@pytest.mark.parametrize("a", [1e-3, 0.03, 1.0, 30.0, 1e3, 1e6])
def test_n37_gamma_draws_move_with_the_concentration_at_a_fixed_quantile(a, f):
    concentration = f(np.full(200, a)).requires_grad_()
    x = dist.Gamma(concentration, 1.0).rsample((), Generator(5))
    (found,) = grad(x.sum(), [concentration])
    values = x.detach().numpy()
    moved = np.flatnonzero(values > 2 * np.finfo(values.dtype).tiny)[:3]
    for i in moved:
        with mpmath.workdps(40):
            v, k = mpmath.mpf(float(values[i])), mpmath.mpf(float(concentration[0].item()))
            h = k * mpmath.mpf(10) ** -12
            ends = [mpmath.gammainc(k + s, 0, v, regularized=True) for s in (h, -h)]
            density = mpmath.exp((k - 1) * mpmath.log(v) - v - mpmath.loggamma(k))
            exact = -(ends[0] - ends[1]) / (2 * h) / density
        assert_close(found[int(i)].double(), float(exact), rtol=1e-10 if f is t else 1e-6)


@PRECISIONS
def test_n38_beta_draws_of_tiny_concentration_lie_at_the_ends(f):
    n = 40_000
    d = dist.Beta(f(1e-3), f(1e-3))
    x = d.sample((n,), Generator(0)).numpy()
    share = np.diff(stats.beta(1e-3, 1e-3).cdf([0.4, 0.6]))[0]
    assert round(share, 4) == 0.0004
    assert abs(((x > 0.4) & (x < 0.6)).mean() - share) < 5.3 * math.sqrt(share / n)
    assert 0.0 < x.min() and x.max() < 1.0 and np.isfinite(d.log_prob(x).numpy()).all()


@PRECISIONS
def test_n39_dirichlet_draws_of_tiny_concentration_lie_in_the_corners(f):
    n = 20_000
    y = dist.Dirichlet(f([1e-3] * 3)).sample((n,), Generator(0)).numpy()
    # The largest part is below 1/2 only if all three are comparable: the chance is of order a^2,
    # 3 pairs of gaps of log-gammas, whose rate is a: below 1e-5. Two in n would be 1e-2 of luck.
    assert (y.max(-1) < 0.5).sum() <= 2
    # Each part is beta(a, 2a).
    inner = np.diff(stats.beta(1e-3, 2e-3).cdf([0.01, 0.99]))[0]
    found = ((y > 0.01) & (y < 0.99)).mean(0)
    assert (np.abs(found - inner) < 5.3 * math.sqrt(inner / n)).all()


def test_n47_a_category_of_weight_zero_is_never_drawn(monkeypatch):
    # Not by drawing often: from every uniform number at which it could happen.
    info = np.finfo(np.float64)
    sums = np.cumsum([0.0, 0.1, 0.0, 0.2, 0.7, 0.0])
    around = [np.nextafter(s / sums[-1], e) for s in sums for e in (0.0, 1.0)]
    u = np.array([info.tiny, 2.0**-53, *sums / sums[-1], *around, 1.0 - info.epsneg])
    u = u[(u > 0.0) & (u < 1.0)]
    monkeypatch.setattr(categories, "_uniforms", lambda shape, generator: u)
    # Native code, where there is some by now, takes its numbers elsewhere.
    with configure(jit=False):
        x = dist.Categorical(t([0.0, 0.1, 0.0, 0.2, 0.7, 0.0])).sample((len(u),)).numpy()
    assert set(x.tolist()) == {1, 3, 4}


@pytest.mark.slow
def test_n49_more_categories_than_single_precision_counts():
    weights = np.zeros(2**24 + 3, np.float32)
    weights[[2**24, 2**24 + 2]] = 1.0
    x = dist.Categorical(tensor(weights)).sample((200,), Generator(0)).numpy()
    assert set((x - 2**24).tolist()) == {0, 2}
    y = multinomial(tensor(weights), 50, replacement=True, generator=Generator(0)).numpy()
    assert set((y - 2**24).tolist()) == {0, 2}


@PRECISIONS
def test_n51_huge_poisson_rates_give_huge_draws(f):
    x = dist.Poisson(f(1e20)).sample((5,), Generator(0)).numpy()
    assert (np.abs(x / 1e20 - 1.0) < 1e-6).all()


@PRECISIONS
def test_n67_densities_of_nearly_discrete_draws_are_finite(f):
    for d in (
        dist.RelaxedOneHotCategorical(f(0.01), logits=f([0.1, 0.2, 0.3])),
        dist.RelaxedBernoulli(f(0.01), logits=f(0.3)),
    ):
        x = d.sample((5000,), Generator(0))
        assert np.isfinite(d.log_prob(x).numpy()).all()


def test_n71_correlations_of_fifty_variables_in_single_precision():
    d = dist.LKJCholesky(50, single(1.0))
    x = d.sample((20,), Generator(0))
    factor = x.numpy().astype(float)
    least = np.linalg.eigvalsh(factor @ np.swapaxes(factor, -1, -2)).min()
    assert least > -1e-6 * 50 and np.isfinite(d.log_prob(x).numpy()).all()
    assert (np.diagonal(factor, 0, -2, -1) > 0.0).all()


@pytest.mark.parametrize("far", [2.0, 20.0])
def test_n71_correlations_from_unconstrained_numbers(far):
    z = single(np.random.default_rng(0).uniform(-far, far, 45))
    for constraint in (constraints.corr_cholesky, constraints.corr_matrix):
        x, slope = biject_to(constraint).call_and_ladj(z)
        matrix = x.numpy().astype(float)
        if constraint is constraints.corr_cholesky:
            matrix = matrix @ matrix.T
        assert np.linalg.eigvalsh(matrix).min() > -1e-6 * 10
        assert math.isfinite(slope.item())


@pytest.mark.parametrize(
    "z, flagged",
    [
        ([16.6, -87.3], None),
        ([-100.0, -100.0], None),
        ([100.0, -100.0], [100.0, -INF]),
        # What is left after the first part underflows: the second is inf, of the third nothing is
        # known.
        ([100.0, 100.0, 100.0], [100.0, INF, 0.0]),
    ],
)
def test_n72_a_simplex_round_trip_returns_or_says_that_it_cannot(z, flagged):
    transform = biject_to(constraints.simplex)
    y, slope = transform.call_and_ladj(single(z))
    assert constraints.simplex.check(y).item() and math.isfinite(slope.item())
    # A subnormal float has a few bits left.
    assert_close(transform.inv(y), np.float32(flagged or z), rtol=2e-3)


def test_n72_a_simplex_of_many_parts_may_be_rounded():
    weights = np.random.default_rng(0).random(100_000).astype(np.float32)
    weights /= weights.sum(dtype=np.float32)
    assert constraints.simplex.check(tensor(weights)).item()


def test_n73_singular_covariances_are_named():
    with pytest.raises(DomainError, match="eigenvalue"):
        dist.MultivariateNormal(t([0.0, 0.0]), t(np.ones((2, 2))))
    # Not singular, only of rows of very different sizes.
    wide = t([[1e-30, 4e-16], [4e-16, 1.0]])
    expected = -math.log(2 * math.pi) - 0.5 * math.log(0.84) + 15 * math.log(10)
    d = dist.MultivariateNormal(t([0.0, 0.0]), wide)
    assert_close(d.log_prob(t([0.0, 0.0])), expected, rtol=1e-12)


@PRECISIONS
@pytest.mark.parametrize("n, df", [(2, 1.001), (3, 2.001), (3, 2.05), (10, 9.01), (30, 29.01)])
def test_n74_wishart_draws_with_few_degrees_of_freedom_are_positive_definite(n, df, f):
    d = dist.Wishart(f(df), covariance_matrix=f(np.eye(n) + 0.5))
    x = d.sample((300,), Generator(0))
    assert d.support.check(x).numpy().all()
    assert np.isfinite(d.log_prob(x).numpy()).all()


@PRECISIONS
def test_n76_binomial_draws_stay_in_their_range(f):
    for count in (1.0, 10.0, 1e6, 2.0**24):
        for p in (1e-12, 0.3, 1.0 - 1e-7, 1.0):
            x = dist.Binomial(f(count), f(p)).sample((10_000,), Generator(0)).numpy()
            assert x.min() >= 0 and x.max() <= count and (x == np.floor(x)).all()


@pytest.mark.parametrize("trials", [0, 1, 50, 120])
def test_trials_among_many_categories_follow_their_weights(trials):
    """Drawn one by one where they are fewer than the categories (N49), in classes of weight."""
    weights = np.arange(100.0) * np.ones((2, 1))
    n = 4000
    x = dist.Multinomial(trials, t(weights)).sample((n,), Generator(3)).numpy()
    assert x.shape == (n, 2, 100) and (x.sum(-1) == trials).all() and not x[..., 0].any()
    share = weights / weights.sum(-1, keepdims=True)
    spread = np.sqrt(trials * share * (1.0 - share) / n)
    assert (np.abs(x.mean(0) - trials * share) <= 5.5 * spread).all()
    if trials > 1:
        # Counts of two categories are apart as those of one trial are, times the trials.
        found = np.cov(x[:, 0, 98], x[:, 0, 99])[0, 1]
        assert abs(found + trials * share[0, 98] * share[0, 99]) < 6.0 * trials * 0.02 / n**0.5


def test_more_categories_than_a_float_counts_are_drawn_from():
    n = 2**24 + 5
    x = dist.Multinomial(10, probs=tensor(np.ones(n, np.float32))).sample((), Generator(0)).numpy()
    assert x.shape == (n,) and x.sum() == 10 and (np.flatnonzero(x) > 1000).all()
