"""Probabilities, quantiles and moments far out, and where rounding would hide them.

The oracle is mpmath, at the very numbers given.
"""

import math

import mpmath
import numpy as np
import pytest
from mpmath import mpf

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.tensor import tensor
from probtorch.testing import assert_close

TINY = {np.float64: 1e-11, np.float32: 2e-6}
both = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def beta_below(a, b, odds):
    odds = mpmath.mpf(odds)
    return mpmath.betainc(a, b, 0, odds / (1 + odds), regularized=True)


def beta_above(a, b, odds):
    return beta_below(b, a, 1 / mpmath.mpf(odds))


def half_t(df, scale):
    odds = lambda x: mpmath.mpf(x) ** 2 / mpmath.mpf(scale) ** 2 / df
    return [lambda x, f=f: f(mpmath.mpf(1) / 2, mpmath.mpf(df) / 2, odds(x)) for f in BETA]


BETA = (beta_below, beta_above)
# The distribution by name and numbers; its cdf and survival; values.
FAR = [
    ("HalfStudentT", (0.25, 1.5), half_t(0.25, 1.5), (1e-3, 4.0, 1e9, 1e15)),
    (
        "GammaGamma",
        (0.75, 0.125, 4.0),
        [lambda x, f=f: f(0.75, 0.125, mpmath.mpf(x) / 4) for f in BETA],
        (1e-20, 3.0, 1e9, 1e22),
    ),
    (
        "FisherSnedecor",
        (0.5, 0.25),
        [lambda x, f=f: f(0.25, 0.125, 2 * mpmath.mpf(x)) for f in BETA],
        (1e-20, 3.0, 1e9, 1e22),
    ),
    (
        "SigmoidBeta",
        (0.125, 0.25),
        [lambda x, f=f: f(0.125, 0.25, mpmath.exp(x)) for f in BETA],
        (-900.0, -60.0, -1.0, 2.0, 50.0, 300.0),
    ),
    (
        "ExpGamma",
        (0.125, 2.0),
        [
            lambda x: mpmath.gammainc(0.125, 0, 2 * mpmath.exp(x), regularized=True),
            lambda x: mpmath.gammainc(0.125, 2 * mpmath.exp(x), regularized=True),
        ],
        (-900.0, -150.0, -20.0, 0.5),
    ),
]


@both
@pytest.mark.parametrize(("name", "numbers", "exact", "values"), FAR, ids=[r[0] for r in FAR])
def test_probabilities_far_out_keep_their_digits(name, numbers, exact, values, dtype):
    d = getattr(dist, name)(*(tensor(np.array(v, dtype)) for v in numbers))
    x = tensor(np.array(values, dtype), requires_grad=True)
    with mpmath.workdps(40):
        below, above = ([float(f(float(v))) for v in x.detach().numpy()] for f in exact)
    p = d.cdf(x)
    assert_close(p.detach(), np.array(below, dtype), rtol=TINY[dtype])
    assert_close(d.survival(x.detach()), np.array(above, dtype), rtol=TINY[dtype])
    (slope,) = grad(p.sum(), [x])
    density = d.log_prob(x.detach()).exp().numpy()
    assert_close(slope, density, rtol=1e-9 if dtype is np.float64 else 1e-4)


def test_the_square_of_a_t_may_be_no_number_of_single_precision():
    one = lambda v: tensor(np.array(v, np.float32))
    d = dist.StudentT(one(0.25))
    p = 0.5 * float(half_t(0.25, 1.0)[1](1e25))
    assert_close(d.cdf(one(-1e25)), np.float32(p), rtol=1e-5)
    assert_close(d.icdf(one(p)), np.float32(-1e25), rtol=1e-4)
    small = float(half_t(0.25, 1.0)[0](1e-25))
    assert_close(dist.HalfStudentT(one(0.25)).cdf(one(1e-25)), np.float32(small), rtol=1e-5)


@pytest.mark.parametrize(
    ("d", "low", "high"),
    [
        (dist.VonMises(np.array([0.5, -2.0]), 0.3), -math.pi, math.pi),
        (dist.VonMises(np.float32([1.2, 0.3]), np.float32(7.3)), -math.pi, math.pi),
        (dist.ContinuousBernoulli(logits=np.float32([2.7, 150.0])), 0.0, 1.0),
        (dist.DoublyTruncatedPowerLaw(np.array([0.5, -0.6]), 0.16, 4.1), 0.16, 4.1),
        (dist.TruncatedNormal(np.array([1.36, 0.0]), 0.86, 1.3, 47.0), 1.3, 47.0),
        (dist.TruncatedNormal(0.0, np.array([1.0, 2.0]), 40.0), 40.0, math.inf),
        (dist.InverseGamma(np.array([0.017, 0.02]), 1.35), 0.0, math.inf),
        (dist.SkewStudentT(np.array([0.017, 0.02]), 1.35, 1.8, 2.2), -math.inf, math.inf),
    ],
    ids=lambda d: type(d).__name__,
)
def test_quantiles_rise_from_one_end_of_the_support_to_the_other(d, low, high):
    levels = np.array([0.0, 1e-30, 1e-10, 1e-3, 0.5, 1.0 - 1e-6, 1.0])[:, None]
    x = d.icdf(tensor(levels.astype(d.mean.numpy().dtype))).numpy()
    assert (x[1:] >= x[:-1]).all()
    assert_close(x[0], np.full(2, low, x.dtype))
    assert_close(x[-1], np.full(2, high, x.dtype))


def test_small_quantiles_of_a_tilted_share_keep_their_digits():
    for logits in (0.3, 2.7, 60.0, 500.0):
        for p in (1e-12, 1e-3, 0.4):
            with mpmath.workdps(60):
                exact = mpmath.log1p(p * mpmath.expm1(logits)) / logits
            x = dist.ContinuousBernoulli(logits=np.array(logits)).icdf(np.array(p))
            assert_close(x, float(exact), rtol=1e-13)


@pytest.mark.parametrize(
    "d",
    [
        dist.Bates(3, np.array(0.3), 0.7),
        dist.BetaBinomial(np.array(1.7), 0.16, 9.0),
        dist.NoncentralChi2(np.array(1.7), 0.16),
        dist.NoncentralT(np.array(1.7), -1.8),
        dist.NormalInverseGaussian(np.float32(0.3), np.float32(1.4), np.float32(0.7)),
        dist.Rice(np.array(1.6), 0.9),
        dist.VonMises(np.array(-1.95), 0.24),
        dist.Zipf(np.float32(2.3)),
        dist.Zipf(np.array(1.017)),
    ],
    ids=lambda d: type(d).__name__,
)
def test_all_of_the_mass_is_below_infinity_and_no_more(d):
    x = np.array([-math.inf, -1e30, 0.5, 1e30, math.inf], d.mean.numpy().dtype)
    for p in (d.cdf(x).numpy(), d.survival(x).numpy()[::-1]):
        assert ((p >= 0.0) & (p <= 1.0)).all()
        assert_close(p[[0, -1]], np.array([0.0, 1.0], p.dtype), rtol=1e-14, atol=1e-200)


# Standardised bounds; the mean as a distance from the nearer end where that is what has digits.
BETWEEN = [
    *((-1.0, 2.0), (0.0, 1e-6), (5.0, 6.0), (40.0, math.inf), (-3.0, -2.9999)),
    *((-math.inf, -1.5), (-0.2, 0.7), (1e4, 1e4 + 1e-3)),
]


@both
@pytest.mark.parametrize(("low", "high"), BETWEEN)
def test_moments_of_a_truncated_normal_hold_in_tails_and_narrow_intervals(low, high, dtype):
    one = lambda v: tensor(np.array(v, dtype))
    d = dist.TruncatedNormal(one(0.5), one(2.0), one(0.5 + 2.0 * low), one(0.5 + 2.0 * high))
    with mpmath.workdps(40):
        a, b = ((mpmath.mpf(float(v)) - 0.5) / 2 for v in (d.low.item(), d.high.item()))
        a, b = max(a, min(b, 0) - 40), min(b, max(a, 0) + 40)
        shift = min(abs(a), abs(b)) ** 2 if a * b > 0 else 0
        weight = lambda z: mpmath.exp((shift - z * z) / 2)
        points = [a, a + (b - a) / 20, a + (b - a) / 4, b - (b - a) / 4, b - (b - a) / 20, b]
        mean_of = lambda f: mpmath.quad(lambda z: f(z) * weight(z), points) / mass
        mass = mpmath.quad(weight, points)
        mean = mean_of(lambda z: z)
        variance = mean_of(lambda z: (z - mean) ** 2)
        entropy = mpmath.log(mass) + mean_of(lambda z: (z * z - shift) / 2) + mpmath.log(2)
    rtol = 1e-12 if dtype is np.float64 else 2e-6
    assert_close(d.mean, dtype(float(0.5 + 2 * mean)), rtol=rtol)
    assert_close(d.variance, dtype(float(4 * variance)), rtol=rtol)
    assert_close(d.entropy(), dtype(float(entropy)), rtol=rtol)


def test_draws_that_round_to_the_lower_bound_are_put_above_it():
    d = dist.ExtendedGeneralizedPareto(*(tensor(np.float32(v)) for v in (0.42, 0.06, 1.7, 0.05)))
    x = d.sample((2000,), Generator(0))
    assert (x > d.loc).numpy().all()
    assert np.isfinite(d.log_prob(x).numpy()).all()


@pytest.mark.parametrize(("df", "nc"), [(1.7, -1.8), (5.0, 0.3), (0.3, 0.3)])
def test_the_cdf_of_a_noncentral_t_has_slopes(df, nc):
    def cdf(df, nc, x):
        return dist.NoncentralT(df, nc, 0.5, 2.0).cdf(x)

    x = np.array([-62.0, -0.3, 0.5, 0.7, 3.0])
    leaves = [tensor(np.full(5, v), requires_grad=True) for v in (df, nc)]
    leaves.append(tensor(x, requires_grad=True))
    slopes = grad(cdf(*leaves).sum(), leaves)
    given = [np.full(5, df), np.full(5, nc), x]
    for k, slope in enumerate(slopes[:2]):
        ends = [
            cdf(*(tensor(v + (h if i == k else 0.0)) for i, v in enumerate(given))).numpy()
            for h in (1e-5, -1e-5)
        ]
        assert_close(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-9)
    density = dist.NoncentralT(df, nc, 0.5, 2.0).log_prob(x).exp()
    assert_close(slopes[2], density, rtol=1e-9)


@both
@pytest.mark.parametrize("power", [0.3, 2.0, 40.0, 300.0])
def test_the_cdf_of_a_generalised_normal_has_its_density_as_slope_in_the_middle(power, dtype):
    d = dist.GeneralizedNormal(dtype(1.0), dtype(0.5), dtype(power))
    x = tensor(np.array([0.7, 0.98, 1.0, 1.0 + 1e-6, 1.01, 1.3], dtype), requires_grad=True)
    p = d.cdf(x)
    exact = []
    for v in x.detach().numpy():
        z = (mpmath.mpf(float(v)) - 1) / mpmath.mpf(0.5)
        part = mpmath.gammainc(1 / d.power.item(), 0, abs(z) ** d.power.item(), regularized=True)
        exact.append(float(0.5 + 0.5 * mpmath.sign(z) * part))
    assert_close(p, np.array(exact, dtype), rtol=1e-12 if dtype is np.float64 else 2e-6)
    (slope,) = grad(p.sum(), [x])
    assert_close(slope, d.log_prob(x.detach()).exp(), rtol=1e-9 if dtype is np.float64 else 1e-4)


def power_law(x, scale, df):
    """Log density of t at x, by mpmath."""
    x, s, n = mpf(x), mpf(scale), mpf(df)
    constant = mpmath.loggamma((n + 1) / 2) - mpmath.loggamma(n / 2) - mpmath.log(n * mpmath.pi) / 2
    return constant - mpmath.log(s) - (n + 1) / 2 * mpmath.log1p((x / s) ** 2 / n)


AWAY = np.array([1e307, -1.7e308, 3e200, -4e150, 5.0])
NARROW = np.array([1e-3, 1e-300, 1e-150, 2e-160, 2.0])
DEGREES = np.array([3.0, 0.5, 1e5, 7.0, 2.5])
HEAVY = {
    "StudentT": (lambda s, n: dist.StudentT(n, 0.0, s), power_law),
    "HalfStudentT": (
        lambda s, n: dist.HalfStudentT(n, s), lambda *row: power_law(*row) + mpmath.log(2)
    ),
    "Cauchy": (lambda s, n: dist.Cauchy(0.0, s), lambda x, s, n: power_law(x, s, 1)),
    "HalfCauchy": (
        lambda s, n: dist.HalfCauchy(s), lambda x, s, n: power_law(x, s, 1) + mpmath.log(2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("native", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", HEAVY)
def test_densities_of_power_laws_go_on_where_the_quotient_by_the_scale_overflows(name, native):
    make, exact = HEAVY[name]
    x = np.abs(AWAY) if name.startswith("Half") else AWAY

    def run(scale, df):
        lp = make(scale, df).log_prob(tensor(x))
        return lp, *grad(lp.sum(), [scale, df], materialize_grads=True)

    leaves = [tensor(v, requires_grad=True) for v in (NARROW, DEGREES)]
    run = compile(run) if native else run
    run(*leaves)
    lp, *slopes = (v.detach().numpy() for v in run(*leaves))
    with mpmath.workdps(60):
        for i, row in enumerate(zip(x, NARROW, DEGREES, strict=True)):
            assert_close(lp[i], float(exact(*row)), rtol=1e-12)
            for j, slope in enumerate(slopes, 1):
                # By differences of the parameter's last digits but twenty.
                expected = mpmath.diff(
                    lambda v, j=j, row=row: exact(*row[:j], v, *row[j + 1 :]),
                    mpf(row[j]),
                    h=mpf(row[j]) * mpf(10) ** -20,
                )
                assert_close(slope[i], float(expected), rtol=1e-8)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 5.0, 1e200])
@pytest.mark.parametrize("name", HEAVY)
def test_a_density_of_a_power_law_overflows_nowhere_on_its_way(name, scale):
    d = HEAVY[name][0](tensor(np.array(scale)), tensor(np.array(3.0)))
    with np.errstate(over="raise"):
        assert np.isfinite(d.log_prob(tensor(np.array([0.0, 1.0, 1e100]))).numpy()).all()


def test_densities_with_exponential_tails_are_0_where_the_quotient_by_the_scale_overflows():
    x = tensor(np.array([-1e307, 1e307]))
    for cls in (dist.Logistic, dist.Gumbel, dist.Laplace, dist.Normal):
        assert (cls(0.0, tensor(np.array(1e-3))).log_prob(x) == -math.inf).numpy().all()


def test_a_beta_share_at_the_least_that_is_not_a_power_has_its_own_survival():
    for a, b in ((0.5, 1.0), (1e-3, 2.0), (2.0, 3.0), (0.01, 0.01)):
        for x in (9.99e-301, 1e-300, 1.0000001e-300):
            with mpmath.workdps(40):
                expected = 1 - mpmath.betainc(a, b, 0, x, regularized=True)
            assert_close(dist.Beta(a, b).survival(tensor(np.array(x))), float(expected), rtol=1e-13)
