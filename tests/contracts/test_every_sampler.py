"""Laws of every sampler at parameters of all sizes, in both precisions, small concentrations too.

Parameters are drawn through `biject_to`, several times wider than those of test_every_distribution
(which compares draws with SciPy's twins): positive ones over some five orders of magnitude. Draws
follow the distribution's own cdf, which other laws compare with SciPy's and with mpmath, they lie
in the support, and no density of them is infinite.

Draws are rounded: the share of draws up to a float t lies between the probabilities up to t and up
to the float after it. Between either and the share of n draws, Dvoretzky, Kiefer and Wolfowitz: a
gap above the radius comes in 1e-9 of all runs; there are some 5000 margins, and seeds are fixed.
"""

import math

import numpy as np
import pytest

from probtorch.core.rng import Generator
from probtorch.distributions import biject_to, constraints
from probtorch.tensor import Tensor, tensor
from tests.distributions.cases import CASES as COMMON
from tests.distributions.further_cases import FURTHER

ROWS, SPREAD = 8, 3.0
DTYPES = (np.float64, np.float32)


def wide_of(case, dtype, spread=SPREAD, seed=11):
    """Return parameters of ROWS batch elements as arrays of a precision, and what is fixed."""
    rng, given, owner = np.random.default_rng(seed), {}, type("Given", (), {})()
    for name in case.params:
        constraint = case.cls._fields[name].constraint
        if constraints.is_dependent(constraint):
            constraint = constraint.resolve(owner)
        transform = biject_to(constraint)
        shape = transform.inverse_shape((ROWS, *case.sizes.get(name, ())))
        # Matrices of larger spread have no rounded inverse.
        wide = spread if constraint.event_dim < 2 else 1.0
        value = transform(tensor(wide * rng.standard_normal(shape))).numpy()
        value = value.astype(dtype) if value.dtype.kind == "f" else value
        setattr(owner, name, tensor(value.astype(np.float64) if value.dtype.kind == "f" else value))
        given[name] = value
    return given


def inside(case, given):
    """Rows whose rounded parameters are still those of a distribution."""
    ok, owner = np.ones(ROWS, bool), type("Given", (), {})()
    for name, value in given.items():
        setattr(owner, name, tensor(value))
    for name, value in given.items():
        constraint = case.cls._fields[name].constraint
        if constraints.is_dependent(constraint):
            constraint = constraint.resolve(owner)
        ok &= constraint.check(tensor(value)).numpy().reshape(ROWS, -1).all(-1)
    return ok


def made(case, dtype, spread=SPREAD):
    """The distribution of a precision, and the same one in double precision."""
    given = wide_of(case, dtype, spread)
    keep = inside(case, given)
    given = {name: value[keep] for name, value in given.items()}
    exact = {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in given.items()}
    fixed = {
        n: v.to(tensor(np.zeros(1, dtype)).dtype)
        if isinstance(v, Tensor) and v.dtype.kind == "f"
        else v
        for n, v in case.fixed.items()
    }
    both = (
        case.cls(**{n: tensor(v) for n, v in given.items()}, **fixed, validate_args=False),
        case.cls(**{n: tensor(v) for n, v in exact.items()}, **case.fixed, validate_args=False),
    )
    return *both, exact


def radius(n):
    return math.sqrt(math.log(2 / 1e-9) / (2 * n))


def ends_of(d, x, dtype):
    """Which draws stand for all that lies below them, or above: floats cannot hold it, or it has
    rounded to a bound, where a density may be infinite.
    """
    tiny, huge = 1e4 * np.finfo(dtype).tiny, 1e-9 * np.finfo(dtype).max
    low, high = (getattr(d.support, end, None) for end in ("lower_bound", "upper_bound"))
    below, above = (np.abs(x) <= tiny) | (x <= -huge), (np.abs(x) <= tiny) | (x >= huge)
    reach = 4.0 * np.spacing(np.abs(x))
    for bound, side in ((low, below), (high, above)):
        if bound is not None:
            side |= np.abs(x - np.asarray(getattr(bound, "array", bound))) <= reach
    # A positive number has nothing above the smallest float but what is there.
    return below, above & ~((np.abs(x) <= tiny) & (low is not None))


def gap_of(cdf, x, ends, whole):
    """By how much shares of draws, sorted along the first axis, leave what they may be."""
    n, at, ones = len(x), x.astype(np.float64), np.ones((1, x.shape[1]), bool)
    up = np.arange(1.0, n + 1)[:, None] / n
    # Of equal draws the last says which share is up to them, the first which share is below.
    change = x[1:] != x[:-1]
    last, first = np.concatenate([change, ones]), np.concatenate([ones, change])
    # Whole numbers are exact up to where floats are more than 1 apart.
    ulp = np.spacing(np.abs(x)).astype(np.float64)
    ulp = np.where(ulp > 1.0, ulp, 0.0) if whole else ulp
    lowest, highest = ends
    before = at - ulp - (1.0 if whole else 0.0)
    few = np.where(last & ~highest, cdf(at - ulp) - up, 0.0)
    many = np.where(last & ~highest, up - cdf(at + ulp), 0.0)
    below = np.where(first & ~lowest & ~highest, cdf(before) - (up - 1.0 / n), 0.0)
    return np.max([few, many, below], (0, 1))


UNIVARIATE = [c for c in COMMON + FURTHER if c.event_dim == 0 and hasattr(c.cls, "_cdf")]
# Whose cdf at thousands of numbers is a long sum, or an integral of each: fewer draws.
SLOW_CDF = {
    "BetaNegativeBinomial": 400,
    "BetaQuotient": 250,
    "GeneralizedPoisson": 400,
    "NoncentralChi2": 1500,
    "NoncentralT": 400,
    "NormalInverseGaussian": 1500,
    "Rice": 1500,
}


def each_of(cases):
    """Cases as parameters, those whose draws or densities are long sums at night."""
    marked = [pytest.param(c, marks=pytest.mark.slow) if c.costly else c for c in cases]
    return pytest.mark.parametrize("case", marked, ids=lambda c: c.id)


both_dtypes = pytest.mark.parametrize("dtype", DTYPES)


@both_dtypes
@each_of([c for c in UNIVARIATE if c.id not in SLOW_CDF])
def test_draws_follow_their_distribution_at_parameters_of_all_sizes(case, dtype):
    assert_follows(case, dtype, 2000)


@pytest.mark.slow
@both_dtypes
@each_of(UNIVARIATE)
def test_many_draws_follow_their_distribution_at_parameters_of_all_sizes(case, dtype):
    assert_follows(case, dtype, SLOW_CDF.get(case.id, 100_000))


def assert_follows(case, dtype, n):
    d, exact, given = made(case, dtype)
    x = np.sort(d.sample((n,), Generator(7)).numpy().astype(dtype), 0)
    with np.errstate(all="ignore"):
        cdf = lambda v: exact.cdf(tensor(v)).numpy()
        gap = gap_of(cdf, x, ends_of(d, x, dtype), case.is_discrete)
    worst = np.argmax(np.nan_to_num(gap, nan=np.inf))
    assert gap[worst] <= radius(n), (gap, {k: v[worst] for k, v in given.items()}, x[:5, worst])


@both_dtypes
@each_of(COMMON + FURTHER)
def test_draws_lie_where_their_density_is_finite(case, dtype):
    for spread in (SPREAD, 2.0 * SPREAD):
        d, _, given = made(case, dtype, spread)
        x = d.sample((500,), Generator(8))
        with np.errstate(all="ignore"):
            lp = d.log_prob(x).numpy()
        ok = d.support.check(x).numpy() & np.isfinite(lp)
        bad = tuple(np.argwhere(~ok)[:1].T)
        assert ok.all(), (lp[bad], x.numpy()[bad], {k: v[bad[1]] for k, v in given.items()})
