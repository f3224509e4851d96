"""Cdfs and survival functions from 1e-305 to 1e305: between neighbours they change as the density.

The density has its own laws, against mpmath. A tail that is 0 or 1 too early, since a quotient or a
square of the value has overflowed, does not change at all.
"""

import mpmath
import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch.autograd import grad
from probtorch.compiler.compile import compile
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
