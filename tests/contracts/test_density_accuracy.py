"""Log densities and their gradients against mpmath, over the whole range of parameters and values.

density_oracles.py states each density in numbers of any precision; a distribution that it does not
know fails here. What is compared is the density at the very numbers given, which the dtype has
already rounded.

The yardstick: a log density is measured against itself, or against 1 nat where it is smaller; a
slope against itself, or, where that is more, against one nat per standard deviation (the root of
the curvature) and one nat per unit of the logarithm of a positive number. On top of that a few
roundings of the inputs are allowed: what changes when each is moved by one unit in its last place
cannot be kept. So 1e-12 of a density in double precision and 4e-6 in single; of slopes 1e-8 and
1e-4, which leaves no sign wrong.
"""

import functools
import math
import warnings
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mpf

import probtorch.distributions as dist
from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.core.rng import Generator
from probtorch.tensor import tensor
from tests.contracts.density_oracles import ORACLES, Oracle, exactly
from tests.contracts.further_oracles import EXACT
from tests.distributions.cases import CASES, STRUCTURAL
from tests.distributions.further_cases import FURTHER

COUNT = 30
TOP = {np.float64: 1e200, np.float32: 1e30}
ROUNDINGS = 8.0

each = pytest.mark.parametrize("name", ORACLES)
# Their forms depend on whether data are known, and small; all others are for the nightly run.
PLAIN_WHERE_SMALL = (
    *("Beta", "BetaBinomial", "Binomial", "Dirichlet", "Gamma", "Multinomial"),
    *("NegativeBinomial", "Poisson", "StudentT"),
)
both_dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32])

# Their densities are those of what they are made of.
MADE_OF_OTHERS = STRUCTURAL | {
    "Delta",
    "DiscreteUniform",
    "ImproperUniform",
    "Independent",
    "MaskedDistribution",
    "TransformedDistribution",
    "Distribution",
}


def test_every_distribution_has_an_oracle():
    known = {name.partition("-")[0] for name in [*ORACLES, *EXACT]}
    known |= {case.cls.__name__ for case in FURTHER if case.event_dim} | MADE_OF_OTHERS
    classes = {
        name
        for name in dist.__all__
        if isinstance(getattr(dist, name), type)
        and issubclass(getattr(dist, name), dist.Distribution)
    }
    assert classes - known == set()
    assert {case.id for case in CASES} - set(ORACLES) == set()


# ------------------------------------------------------------------------ exact values


@dataclass(frozen=True)
class Asked:
    """Where a density is asked, and what it is there: rows of numbers of mpmath."""

    oracle: Oracle
    columns: list
    rows: list
    values: list
    dtype: Any

    def places(self):
        """Yield the index of a column, and of each number in one of its rows, to differentiate."""
        for j, column in enumerate(self.columns):
            if j not in self.oracle.whole:
                for index in np.ndindex(*column.shape[1:]):
                    yield j, index

    def tensors(self):
        return [tensor(c.astype(self.dtype)) for c in self.columns]


@functools.cache
def asked(name, dtype, count=COUNT):
    oracle = ORACLES[name]
    rng = np.random.default_rng(3)
    columns = [rounded(c, dtype) for c in oracle.draw(rng, count, TOP[dtype])]
    if oracle.fit:
        columns = [rounded(c, dtype) for c in oracle.fit(columns)]
    with mpmath.workdps(oracle.digits):
        rows = [exactly(row) for row in zip(*columns, strict=True)]
        return Asked(oracle, columns, rows, [oracle.exact(*row) for row in rows], dtype)


def rounded(column, dtype):
    return np.asarray(column, np.float64).astype(dtype).astype(np.float64)


def number_at(row, j, index):
    for i in (j, *index):
        row = row[i]
    return row


def moved(row, j, index, step):
    row = list(row)
    row[j] = moved(row[j], index[0], index[1:], step) if index else row[j] + step
    return row


def slope(fn, row, j, index):
    """Derivative of a function of a row in one of its numbers."""
    x = number_at(row, j, index)
    step = (abs(x) if x else 1) * mpf(10) ** -22
    return (fn(*moved(row, j, index, step)) - fn(*moved(row, j, index, -step))) / (2 * step)


def one_rounding(asked, fn, row):
    """What `fn` changes by when each of its numbers is moved by one unit in its last place."""
    eps = mpf(float(np.finfo(asked.dtype).eps))
    changes = (number_at(row, *at) * slope(fn, row, *at) for at in asked.places())
    return eps * sum(map(abs, changes))


def bend_of_roundings(asked, row):
    """What a few roundings change at a sharp peak, where the slopes are 0."""
    step, fn = ROUNDINGS * mpf(float(np.finfo(asked.dtype).eps)), asked.oracle.exact
    curvature = lambda at: slope(lambda *r: slope(fn, r, *at), row, *at)
    bends = (number_at(row, *at) ** 2 * curvature(at) for at in asked.places())
    return step * step / 2 * sum(map(abs, bends))


# ------------------------------------------------------------------------ comparisons


def value_error(asked, i, got):
    """Error of a log density as a share of what is allowed."""
    exact = asked.values[i]
    limits = np.finfo(asked.dtype)
    if abs(exact) > float(limits.max):
        return 0.0 if got == math.copysign(math.inf, exact) else math.inf
    if not math.isfinite(got):
        return math.inf
    error = abs(mpf(float(got)) - exact)
    allowed = 4e-6 if asked.dtype is np.float32 else 1e-12
    allowed *= max(1, abs(exact))
    if error > allowed:
        allowed += ROUNDINGS * one_rounding(asked, asked.oracle.exact, asked.rows[i])
    if error > allowed:
        allowed += bend_of_roundings(asked, asked.rows[i])
    return float(error / allowed)


def slope_error(asked, i, at, got):
    """Error of a slope of the log density as a share of what is allowed."""
    exact, row, limits = asked.oracle.exact, asked.rows[i], np.finfo(asked.dtype)
    if abs(asked.values[i]) > float(limits.max):
        return 0.0
    here = slope(exact, row, *at)
    if abs(here) > float(limits.max):
        return 0.0 if got == math.copysign(math.inf, here) else math.inf
    if not math.isfinite(got):
        return math.inf
    error = abs(mpf(float(got)) - here)
    share = 1e-4 if asked.dtype is np.float32 else 1e-8
    allowed = share * abs(here) + 8 * mpf(float(limits.tiny))
    if error > allowed and (asked.columns[at[0]] > 0.0).all():
        allowed = max(allowed, share / number_at(row, *at))
    if error > allowed:
        curvature = slope(lambda *r: slope(exact, r, *at), row, *at)
        allowed = max(allowed, share * mpmath.sqrt(abs(curvature)))
        allowed += ROUNDINGS * one_rounding(asked, lambda *r: slope(exact, r, *at), row)
    return float(error / allowed)


def density_and_slopes(oracle, count):
    """Return a function of columns: the log densities and the slopes of their sum."""
    inner = [j for j in range(count) if j not in oracle.whole]
    # Not the oracle: from its formulas a compiled function would reach all that mpmath remembers.
    make = oracle.make

    def fn(*columns):
        leaves = [c.detach().requires_grad_() if j in inner else c for j, c in enumerate(columns)]
        lp = make(*leaves[:-1]).log_prob(leaves[-1])
        return lp, *grad(lp.sum(), [leaves[j] for j in inner], materialize_grads=True)

    return fn


def numbers(x):
    return np.asarray(x.detach().numpy(), np.float64)


def assert_exact(asked, lp, slopes):
    with mpmath.workdps(asked.oracle.digits):
        for i, got in enumerate(numbers(lp)):
            error = value_error(asked, i, got)
            assert error <= 1.0, (error, got, float(asked.values[i]), inputs(asked, i))
        inner = list(dict.fromkeys(j for j, _ in asked.places()))
        found = {j: numbers(g) for j, g in zip(inner, slopes, strict=True)}
        for at in asked.places():
            for i in range(len(asked.rows)):
                got = found[at[0]][(i, *at[1])]
                error = slope_error(asked, i, at, got)
                assert error <= 1.0, (error, at, got, inputs(asked, i))


def inputs(asked, i):
    return [c[i].tolist() for c in asked.columns]


# ------------------------------------------------------------------------ the law


@both_dtypes
@each
def test_a_log_density_and_its_slopes_keep_their_digits(name, dtype):
    where = asked(name, dtype)
    with np.errstate(all="ignore"):
        lp, *slopes = density_and_slopes(where.oracle, len(where.columns))(*where.tensors())
    assert_exact(where, lp, slopes)


@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
@each
def test_native_densities_and_slopes_keep_their_digits(name, dtype):
    where = asked(name, dtype)
    native = compile(density_and_slopes(where.oracle, len(where.columns)))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error", CompileWarning)
        native(*where.tensors())
        lp, *slopes = native(*where.tensors())
    assert native.reason is None
    assert_exact(where, lp, slopes)


@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n.partition("-")[0] in PLAIN_WHERE_SMALL else pytest.mark.slow)
        for n in ORACLES
    ],
)
def test_the_density_of_data_keeps_its_digits(name, dtype):
    """Values and whole parameters known while recording: what is plain then is exact as well."""
    where = asked(name, dtype)
    make = where.oracle.make
    *given, values = where.tensors()
    known = {j: given[j] for j in where.oracle.whole if j < len(given)}
    # One at a time: whether values are small enough for the plain form is asked of all together.
    order = np.argsort(where.columns[-1].reshape(COUNT, -1)[:, 0])
    for rows in np.array_split(order, 2):
        data = {j: x[rows] for j, x in {**known, len(given): values}.items()}

        def density(*free, data=data):
            rest = iter(free)
            *all_given, x = (data[j] if j in data else next(rest) for j in range(len(given) + 1))
            return make(*all_given).log_prob(x)

        native, free = compile(density), [c[rows] for j, c in enumerate(given) if j not in known]
        with np.errstate(all="ignore"):
            native(*free)
            found = numbers(native(*free))
        with mpmath.workdps(where.oracle.digits):
            for i, got in zip(rows, found, strict=True):
                assert value_error(where, i, got) <= 1.0, (
                    got,
                    float(where.values[i]),
                    inputs(where, i),
                )


@pytest.mark.parametrize("row", [15, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [n for n in ORACLES if 0 not in ORACLES[n].whole])
def test_the_density_of_many_values_keeps_its_digits(name, row):
    """Numbers as parameters, and a vector of data: what they share is computed once."""
    where = asked(name, np.float64)
    *given, values = (np.asarray(c) for c in where.columns)
    free, make = [tensor(c[row]) for c in given], where.oracle.make
    draws = make(*free).sample((6,), Generator(row)).numpy().astype(float)
    data = tensor(np.concatenate([draws, values[row : row + 1]]))
    native = compile(lambda *free, data=data: make(*free).log_prob(data))
    with np.errstate(all="ignore"):
        native(*free)
        found = numbers(native(*free))
    with mpmath.workdps(where.oracle.digits):
        rows = [exactly([*(c[row] for c in given), x]) for x in data.numpy()]
        exact = [where.oracle.exact(*r) for r in rows]
        here = Asked(
            where.oracle,
            [np.stack([c[row]] * 7) for c in given] + [data.numpy()],
            rows,
            exact,
            np.float64,
        )
        for i, got in enumerate(found):
            assert value_error(here, i, got) <= 1.0, (got, float(exact[i]), inputs(here, i))


# ------------------------------------------------------------------------ counts of categories


def power(k, y):
    return mpmath.log(y) * k if k else mpf(0)


@pytest.mark.parametrize("given", ["probs", "logits"])
@pytest.mark.parametrize("n", [0, 3, 1000, 10**7])
def test_multinomial_masses_keep_their_digits(n, given):
    p = np.array([0.2, 0.3, 0.5 - 1e-4, 1e-4, 0.0])
    x = np.random.default_rng(n).multinomial(n, p).astype(np.float64)
    with np.errstate(divide="ignore"):
        weights = tensor(p if given == "probs" else np.log(p) + 3.0, requires_grad=True)
    lp = dist.Multinomial(n, **{given: weights}).log_prob(tensor(x))
    with mpmath.workdps(60):
        weight = sum([mpf(v) for v in p])
        terms = zip([mpf(v) for v in x], [mpf(v) for v in p], strict=True)
        parts = [power(k, q / weight) - mpmath.loggamma(k + 1) for k, q in terms]
        exact = float(mpmath.loggamma(n + 1) + sum(parts))
    # The weights, or their exponentials, are rounded when they are divided by their sum.
    assert abs(lp.item() - exact) < 1e-12 * max(1.0, abs(exact)) + 1e-15 * n**0.5
    assert not np.isnan(grad(lp, [weights])[0].numpy()).any()


def test_the_mass_of_a_category_that_underflows_is_that_of_its_logit():
    logits = tensor(np.array([0.0, -2000.0]), requires_grad=True)
    lp = dist.Multinomial(100, logits=logits).log_prob(tensor([98.0, 2.0]))
    assert abs(lp.item() - (-4000.0 + math.log(99 * 50))) < 1e-9
    assert np.allclose(grad(lp, [logits])[0].numpy(), [-2.0, 2.0])
