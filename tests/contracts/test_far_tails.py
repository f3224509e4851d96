"""Cdfs and survival functions from 1e-305 to 1e305: between neighbours they change as the density.

The density has its own laws, against mpmath. A tail that is 0 or 1 too early, since a quotient or a
square of the value has overflowed, does not change at all.
"""

import warnings

import mpmath
import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.core.rng import Generator
from probtorch.ops.special import log1p_square, log_ratio
from probtorch.tensor import tensor
from tests.contracts.test_every_sampler import SLOW_CDF, UNIVARIATE, made

# A thousandth on both sides; what is left out of the share of a tail is below STEP^2.
STEP, SHARE = 1e-3, 0.02
POWERS = (-305, -200, -140, -100, -50, -20, 20, 50, 100, 140, 160, 200, 250, 305)
# A circle has no tails.
CIRCLES = {"VonMises"}
TAILED = [
    c for c in UNIVARIATE if not (c.is_discrete or c.costly or c.id in SLOW_CDF or c.id in CIRCLES)
]


@pytest.mark.parametrize("spread", [6.0, 9.0])
@pytest.mark.parametrize("case", TAILED, ids=lambda c: c.id)
def test_tails_change_as_the_density_says(case, spread):
    d, _, given = made(case, np.float64, spread)
    for x in [sign * 1.37 * 10.0**k for k in POWERS for sign in (1.0, -1.0)]:
        if not d.support.check(tensor(np.array(x))).numpy().all():
            continue
        with np.errstate(all="ignore"):
            near = [tensor(np.array(x * (1.0 + s * STEP))) for s in (-1.0, 0.0, 1.0)]
            log_mass = d.log_prob(near[1]).numpy() + np.log(abs(x) * 2.0 * STEP)
            for log_tail, sign in ((d.log_survival, -1.0), (d.log_cdf, 1.0)):
                below, here, above = (log_tail(v).numpy() for v in near)
                expected, got = sign * np.sign(x) * np.exp(log_mass - here), above - below
                # Where the mass is large beside rounding, and small beside the tail.
                seen = (log_mass > -575.0) & np.isfinite(log_mass)
                seen &= ~np.isfinite(here) | ((abs(expected) > 1e-9) & (abs(expected) < 0.5))
                wrong = seen & ~(abs(got - expected) < SHARE * abs(expected) + 1e-9)
            assert not wrong.any(), (x, here, got, expected, given)


UNITS = {"scale", "rate"}
SCALED = [c for c in TAILED if UNITS & set(c.params)]


@pytest.mark.parametrize("case", SCALED, ids=lambda c: c.id)
def test_tails_of_any_scale_change_as_the_density_says(case):
    """Where a value is so many scales away that its probability is no float."""
    _, _, given = made(case, np.float64, 0.5)
    (unit,) = UNITS & set(case.params)
    for power in (-250, -170, -120, 120, 170, 250):
        values = {n: v * 10.0**power if n == unit else v for n, v in given.items()}
        values |= {n: 0.0 * values[n] for n in ("loc", "mu") if n in values}
        arguments = {n: tensor(v) for n, v in values.items()}
        d = case.cls(**arguments, **case.fixed, validate_args=False)
        for x in [sign * 1.37 * 10.0**k for k in POWERS for sign in (1.0, -1.0)]:
            # A denormal number of scales has few digits, in densities too.
            sizes = [abs(np.log10(abs(x)) + sign * power) for sign in (1.0, -1.0)]
            denormal = any(305 < size < 325 for size in sizes)
            if denormal or not d.support.check(tensor(np.array(x))).numpy().all():
                continue
            with np.errstate(all="ignore"):
                near = [tensor(np.array(x * (1.0 + s * STEP))) for s in (-1.0, 0.0, 1.0)]
                log_mass = d.log_prob(near[1]).numpy() + np.log(abs(x) * 2.0 * STEP)
                for log_tail, sign in ((d.log_survival, -1.0), (d.log_cdf, 1.0)):
                    below, here, above = (log_tail(v).numpy() for v in near)
                    expected, got = sign * np.sign(x) * np.exp(log_mass - here), above - below
                    seen = np.isfinite(log_mass) & (log_mass > -1e5)
                    seen &= ~np.isfinite(here) | ((abs(expected) > 1e-9) & (abs(expected) < 0.5))
                    wrong = seen & ~(abs(got - expected) < SHARE * abs(expected) + 1e-9)
                    assert not wrong.any(), (power, x, here, got, expected)


NUMBER = lambda v: tensor(np.array(v, dtype=float))
# Distributions, a value, and the exact log of the probability above it, or below it.
BEYOND = {
    "Gamma, above": (
        lambda: (dist.Gamma(NUMBER(2.0), NUMBER(1.0)), 1000.0),
        lambda: mpmath.log(mpmath.gammainc(2, 1000, regularized=True)),
    ),
    "Gamma, below": (
        lambda: (dist.Gamma(NUMBER(1000.0), NUMBER(1.0)), 200.0),
        lambda: mpmath.log(mpmath.gammainc(1000, 0, 200, regularized=True)),
    ),
    "Beta, above": (
        lambda: (dist.Beta(NUMBER(2.0), NUMBER(500.0)), 0.9),
        lambda: beta_above(2, 500, 0.9),
    ),
    "StudentT, above": (
        lambda: (dist.StudentT(NUMBER(3.0), NUMBER(1.0), NUMBER(1e-20)), 1e120),
        lambda: mpmath.log(
            mpmath.betainc(1.5, 0.5, 0, 3 / (3 + mpmath.mpf(1e140) ** 2), regularized=True) / 2
        ),
    ),
    "Poisson, above": (
        lambda: (dist.Poisson(NUMBER(3.0)), 400.0),
        lambda: mpmath.log(mpmath.gammainc(401, 0, 3, regularized=True)),
    ),
    "Poisson, slowly": (
        lambda: (dist.Poisson(NUMBER(1e6)), 1.05e6),
        lambda: poisson_above(10**6, 1050000),
    ),
    "Poisson, below": (
        lambda: (dist.Poisson(NUMBER(2000.0)), 150.0),
        lambda: mpmath.log(mpmath.gammainc(151, 2000, regularized=True)),
    ),
    "NegativeBinomial, above": (
        lambda: (dist.NegativeBinomial(NUMBER(5.0), NUMBER(0.3)), 5000.0),
        lambda: mpmath.log(mpmath.betainc(5001, 5, 0, mpmath.mpf(0.3), regularized=True)),
    ),
    "Binomial, above": (
        lambda: (dist.Binomial(NUMBER(1000.0), NUMBER(0.01)), 900.0),
        lambda: mpmath.log(mpmath.betainc(901, 100, 0, mpmath.mpf(0.01), regularized=True)),
    ),
    "InverseGaussian, above": (
        lambda: (dist.InverseGaussian(NUMBER(1.0), NUMBER(1.0)), 4000.0),
        lambda: wald_above(4000),
    ),
    "Maxwell, above": (
        lambda: (dist.Maxwell(NUMBER(1.0)), 60.0),
        lambda: mpmath.log(mpmath.gammainc(1.5, 1800, regularized=True)),
    ),
}


def poisson_above(rate, x):
    """From the ratios of successive masses."""
    term = total = mpmath.mpf(1)
    for k in range(x + 2, x + 5000):
        term *= mpmath.mpf(rate) / k
        total += term
    return (x + 1) * mpmath.log(rate) - rate - mpmath.loggamma(x + 2) + mpmath.log(total)


def wald_above(x):
    """Of mean 1 and shape 1."""
    root = mpmath.sqrt(mpmath.mpf(x))
    normal = lambda z: mpmath.erfc(z / mpmath.sqrt(2)) / 2
    return mpmath.log(normal(root - 1 / root) - mpmath.e**2 * normal(root + 1 / root))


@pytest.mark.parametrize("native", [False, True], ids=["eager", "native"])
@pytest.mark.parametrize("name", BEYOND)
def test_logs_of_tails_that_no_float_holds_are_exact(name, native):
    made_of, exact = BEYOND[name]
    with mpmath.workdps(60):
        exact = exact()
    d, x = made_of()
    below = name.endswith("below")
    log_tail = lambda d, x: d.log_cdf(x) if below else d.log_survival(x)
    tail = compile(log_tail) if native else log_tail
    for _ in range(2):
        found = tail(d, NUMBER(x)).item()
        assert abs(found - exact) < 1e-10 * abs(exact)
        # In one batch with a value in the middle, whose tail is that of the formula.
        both = tail(d, NUMBER([x, d.mean.item()])).numpy()
        assert both[0] == pytest.approx(found, rel=1e-13) and both[1] > -5.0


def test_one_native_function_has_both_near_and_far_tails():
    """Without a warning of the branch that is not taken, which is recorded at the same values."""
    d, x = dist.Gamma(NUMBER(2.0), NUMBER(1.0)), NUMBER(1000.0)
    tail = compile(lambda d, x: d.log_survival(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [tail(d, v).item() for v in (NUMBER(3.0), x, NUMBER(3.0), x)]
    assert tail.reason is None
    exact = [np.log(4.0) - 3.0, np.log(1001.0) - 1000.0]
    np.testing.assert_allclose(found, exact * 2, rtol=1e-12)


@pytest.mark.parametrize("native", [False, True], ids=["eager", "native"])
def test_slopes_of_tails_that_no_float_holds_are_those_of_their_integral(native):
    def fn(a, x):
        a, x = a.detach().requires_grad_(), x.detach().requires_grad_()
        value = dist.Gamma(a, 1.0).log_survival(x)
        return grad(value, [a, x])

    run = compile(fn) if native else fn
    log_tail = lambda a, x: mpmath.log(mpmath.gammainc(a, x, regularized=True))
    with mpmath.workdps(60):
        exact = [mpmath.diff(log_tail, (2, 1000), n) for n in ((1, 0), (0, 1))]
    for _ in range(2):
        found = [g.item() for g in run(NUMBER(2.0), NUMBER(1000.0))]
        np.testing.assert_allclose(found, [float(v) for v in exact], rtol=1e-9)


SMALL = 1e-250
POWER_TAILS = {
    "Cauchy": (lambda s: dist.Cauchy(NUMBER(0.0), s), 1.0),
    "HalfCauchy": (lambda s: dist.HalfCauchy(s), 1.0),
    "StudentT": (lambda s: dist.StudentT(NUMBER(3.0), NUMBER(0.0), s), 3.0),
    "HalfStudentT": (lambda s: dist.HalfStudentT(NUMBER(0.4), s), 0.4),
}


@pytest.mark.parametrize("name", POWER_TAILS)
def test_tails_of_t_are_powers_also_where_the_quotient_by_the_scale_overflows(name):
    """So many scales away that neither the quotient nor the density is a float."""
    make, df = POWER_TAILS[name]
    scale = NUMBER(SMALL).requires_grad_()
    d = make(scale)
    near, far = d.log_survival(NUMBER(1e30)), d.log_survival(NUMBER(1e200))
    assert (far - near).item() == pytest.approx(-df * 170.0 * np.log(10.0), rel=1e-13)
    assert grad(far, [scale])[0].item() * SMALL == pytest.approx(df, rel=1e-12)
    if not name.startswith("Half"):
        assert d.log_cdf(NUMBER(-1e200)).item() == far.item()
        assert d.log_cdf(NUMBER(1e200)).item() == 0.0
    assert d.log_survival(NUMBER([0.0, 1e200])).detach().numpy()[1] == far.item()


QUANTILES = {
    "StudentT": lambda c: dist.StudentT(NUMBER(2.0), NUMBER(0.0), NUMBER(c)),
    "Gamma": lambda c: dist.Gamma(NUMBER(0.7), NUMBER(1.0 / c)),
    "SkewNormal": lambda c: dist.SkewNormal(NUMBER(0.0), NUMBER(c), NUMBER(2.0)),
    "NoncentralT": lambda c: dist.NoncentralT(NUMBER(3.0), NUMBER(1.0), NUMBER(0.0), NUMBER(c)),
}


@pytest.mark.parametrize("scale", [1e-250, 1e-170, 1e170, 1e250])
@pytest.mark.parametrize("name", QUANTILES)
def test_quantiles_are_found_at_any_scale(name, scale):
    d, unit = QUANTILES[name](scale), QUANTILES[name](1.0)
    p = NUMBER([1e-30, 1e-5, 0.3, 0.5, 0.9, 1.0 - 1e-6])
    np.testing.assert_allclose(d.icdf(p).numpy() / scale, unit.icdf(p).numpy(), rtol=1e-9)
    np.testing.assert_allclose(unit.cdf(unit.icdf(p)).numpy(), p.numpy(), rtol=1e-9)


# ------------------------------------------------------------------------------ cut-out tails


COUNTS = {
    "Poisson": (lambda: dist.Poisson(NUMBER(3.0)), 400.0, None),
    "Poisson, slowly": (lambda: dist.Poisson(NUMBER(1e6)), 1.05e6, None),
    "Poisson, below": (lambda: dist.Poisson(NUMBER(2000.0)), None, 150.0),
    "NegativeBinomial": (lambda: dist.NegativeBinomial(NUMBER(5.0), NUMBER(0.3)), 5000.0, None),
    "Binomial": (lambda: dist.Binomial(NUMBER(1000.0), NUMBER(0.01)), 900.0, None),
    "Geometric": (lambda: dist.Geometric(NUMBER(0.3)), 10000.0, None),
    "Skellam": (lambda: dist.Skellam(NUMBER(3.0), NUMBER(2.0)), 100.0, None),
    "Poisson, the middle": (lambda: dist.Poisson(NUMBER(300.0)), 2.0, 2000.0),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_a_cut_out_tail_have_its_masses(name):
    base, low, high = COUNTS[name]
    base = base()
    d = dist.Truncated(base, low, high)
    n = 5_000
    draws = d.sample((n,), Generator(5)).numpy()
    least, most = (-np.inf if low is None else low), (np.inf if high is None else high)
    assert draws.min() >= least and draws.max() <= most
    k = np.arange(draws.min(), draws.max() + 1.0)
    mass = np.exp(d.log_prob(tensor(k)).numpy())
    # What no draw has reached, from the ratios of masses of the base alone.
    side = low if low is not None else high
    far = tensor(side + np.sign(1.0 if low is not None else -1.0) * np.arange(3000.0))
    far = far if high is None or low is not None else far[: int(side) + 1]
    logs = base.log_prob_inside(far).numpy()
    logs = logs[np.isfinite(logs)]
    total = np.exp(logs - logs.max()).sum()
    some = tensor(np.array(float(draws[0])))
    expected = base.log_prob(some).item() - logs.max() - np.log(total)
    assert d.log_prob(some).item() == pytest.approx(expected, abs=1e-6)
    # The largest distance of both cdfs passes this once in a million times.
    shares = np.searchsorted(np.sort(draws), k, side="right") / n
    below = 0.0 if low is not None else 1.0 - mass.sum()
    assert np.abs(shares - below - np.cumsum(mass)).max() < np.sqrt(np.log(2e6) / (2 * n))


def test_values_of_a_cut_out_tail_are_beyond_its_bound_and_have_its_density():
    d = dist.Truncated(dist.Gamma(NUMBER(2.0), NUMBER(1.0)), 1000.0)
    draws = d.sample((4000,), Generator(0)).numpy()
    # Beyond x are (1 + x) exp(-x).
    x = draws - 1000.0
    shares = -np.expm1(-x) - x * np.exp(-x) / 1001.0
    gap = np.abs(np.sort(shares) - (np.arange(4000) + 0.5) / 4000).max()
    assert x.min() > 0.0 and gap < np.sqrt(np.log(2e6) / 8000)
    assert d.log_prob(NUMBER(1001.0)).item() == pytest.approx(-1.0, abs=1e-9)


def beta_above(a, b, x):
    with mpmath.workdps(400):
        return mpmath.log(mpmath.betainc(b, a, 0, 1 - mpmath.mpf(x), regularized=True))


@pytest.mark.parametrize("native", [False, True])
def test_tails_of_many_degrees_of_freedom_are_no_complements(native):
    run = compile if native else lambda fn: fn
    number = lambda v: tensor(np.array(v))
    above = run(lambda a, b, x: dist.Beta(a, b).log_survival(x))
    for _ in range(2):
        got = above(number(2.0), number(1000.0), number(0.3)).item()
    assert abs(got - beta_above(2, 1000, 0.3)) < 1e-10
    tail = run(lambda df, x: dist.StudentT(df, 0.0, 1.0).log_survival(x))
    for _ in range(2):
        got = tail(number(1553.0), number(23.5)).item()
    exact = mpmath.log(mpmath.betainc(776.5, 0.5, 0, 1553 / (1553 + 23.5**2), regularized=True) / 2)
    assert abs(got - exact) < 1e-10


@pytest.mark.parametrize("x", [1e-300, 1.0, 1e200, 1e299, 1e305])
@pytest.mark.parametrize("y", [1e-300, 1e-30, 1e-5, 1e-3, 0.9, 1.0, 1e200])
def test_the_log_of_a_quotient_that_overflows_is_exact(x, y):
    high, low = (tensor(np.array(v)).requires_grad_() for v in (max(x, y), min(x, y)))
    value = log_ratio(high, low)
    exact = mpmath.log(mpmath.mpf(max(x, y)) / mpmath.mpf(min(x, y)))
    assert abs(value.item() - exact) <= 1e-15 * exact
    assert all(np.isfinite(g.item()) for g in grad(value, [high, low]))


def test_the_log_of_a_quotient_keeps_its_digits_on_both_sides_of_one():
    rng = np.random.default_rng(0)
    y = 10.0 ** rng.uniform(-5, 5, 400)
    sides = rng.choice([-1.0, 1.0], 200)
    ratio = np.concatenate(
        [1.0 + sides * 10.0 ** rng.uniform(-15, -0.31, 200), 10.0 ** rng.uniform(-100, 100, 200)]
    )
    x = y * ratio
    with mpmath.workdps(60):
        exact = [
            float(mpmath.log(mpmath.mpf(a) / mpmath.mpf(b))) for a, b in zip(x, y, strict=True)
        ]
    native = compile(log_ratio)
    for call in (log_ratio, native, native):
        found = call(tensor(x), tensor(y)).numpy()
        np.testing.assert_allclose(found, exact, rtol=1e-15)
        assert call(tensor(np.zeros(1)), tensor(np.ones(1))).item() == -np.inf
    above = ratio > 0.6  # where the arrays' own formula is the shorter one
    found = log_ratio(tensor(x[above]), tensor(y[above])).numpy()
    np.testing.assert_allclose(found, np.array(exact)[above], rtol=1e-15)


@pytest.mark.parametrize("far", [False, True])
def test_the_log_of_one_plus_a_square_and_its_slopes_have_one_value_by_both_formulas(far):
    rng = np.random.default_rng(1)
    x = np.concatenate([[0.0, 1e-200], rng.normal(size=50) * 10.0 ** rng.uniform(-8, 8, 50)])
    x = np.append(x, [1e200, -1e30] if far else [3.0])
    with mpmath.workdps(60):
        squares = [mpmath.mpf(v) ** 2 for v in x]
        exact = [float(mpmath.log1p(s)) for s in squares]
        slope = [float(2 * mpmath.mpf(v) / (1 + s)) for v, s in zip(x, squares, strict=True)]
        curved = [float(2 * (1 - s) / (1 + s) ** 2) for s in squares]
    at = tensor(x).requires_grad_()
    value = log1p_square(at)
    (first,) = grad(value.sum(), [at], create_graph=True)
    (second,) = grad(first.sum(), [at])
    np.testing.assert_allclose(value.detach().numpy(), exact, rtol=1e-15)
    np.testing.assert_allclose(first.detach().numpy(), slope, rtol=1e-15)
    np.testing.assert_allclose(second.numpy()[:52], curved[:52], rtol=1e-9)
