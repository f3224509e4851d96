"""Log densities against 60 digits, over the whole range of parameters and values.

Each entry states a density in mpmath and where parameters and values are drawn from: with large
concentrations and counts, near the bulk of the mass and far from it, where differences of lgammas
and products with logarithms lose everything. Errors are relative to the log density, or to 1 where
that is smaller: 1e-12 in double precision, 4e-6 in single precision for parameters and values that
single precision has.
"""

import math
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mpf

import probtorch.distributions as dist
from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.tensor import tensor

COUNT = 60


def log_gamma_density(a, b, x):
    return a * mpmath.log(b) - mpmath.loggamma(a) + (a - 1) * mpmath.log(x) - b * x


def log_choose(n, k):
    return mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)


def log_beta(a, b):
    return mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b)


def power(x, y):
    return mpmath.log(y) * x if x else mpf(0)


def log_sigmoid(x):
    return -mpmath.log1p(mpmath.exp(-x))


def student(df, loc, scale, x):
    z = (x - loc) / scale
    constant = log_beta(df / 2, mpf(1) / 2) + mpmath.log(df) / 2 + mpmath.log(scale)
    return -(df + 1) / 2 * mpmath.log1p(z * z / df) - constant


@dataclass(frozen=True)
class Case:
    """A density, its twin in mpmath, and columns of parameters followed by the value."""

    make: Any
    exact: Any
    draw: Any
    whole: tuple = ()
    single: float = 4e-6


def positive(rng, low=-4.0, high=8.0):
    return 10.0 ** rng.uniform(low, high, COUNT)


def spread(rng):
    """Standard deviations from the bulk: some 0, most within 3, some beyond 100."""
    return rng.standard_normal(COUNT) * rng.choice([0.0, 1.0, 1.0, 100.0], COUNT)


def around(rng, mean, sd):
    """Positive numbers `spread` standard deviations from a mean."""
    x = mean + sd * spread(rng)
    return np.where(x > 0.0, x, mean * 10.0 ** rng.uniform(-3.0, 0.0, COUNT))


def counts(rng, mean, sd, top=math.inf):
    return np.clip(np.rint(around(rng, mean, sd)), 0.0, top)


def _gamma(rng):
    a, b = positive(rng), positive(rng, -3, 3)
    return a, b, around(rng, a / b, np.sqrt(a) / b)


def _poisson(rng):
    rate = positive(rng)
    return rate, counts(rng, rate, np.sqrt(rate))


def _binomial(rng):
    n = np.rint(positive(rng, 0.0, 8.0))
    p = rng.choice([0.5, 1e-3, 0.9, 1e-7], COUNT) * rng.uniform(0.5, 1.0, COUNT)
    return n, p, counts(rng, n * p, np.sqrt(n * p), n)


def _binomial_logits(rng):
    n, p, x = _binomial(rng)
    logits = np.log(p) - np.log1p(-p)
    far = rng.random(COUNT) < 0.1
    return n, np.where(far, rng.choice([-200.0, 200.0], COUNT), logits), x


def _negative_binomial(rng):
    r = positive(rng, -2.0, 8.0)
    p = rng.choice([0.5, 1e-3, 0.999], COUNT) * rng.uniform(0.9, 1.0, COUNT)
    mean = r * p / (1.0 - p)
    return r, p, counts(rng, mean, np.sqrt(mean / (1.0 - p)))


def _negative_binomial_logits(rng):
    r, p, x = _negative_binomial(rng)
    return r, np.log(p) - np.log1p(-p), x


def _beta(rng):
    a, b = positive(rng), positive(rng)
    mean = a / (a + b)
    x = around(rng, mean, np.sqrt(mean * (1.0 - mean) / (a + b + 1.0)))
    return a, b, np.where(x < 1.0, x, 0.5 * (1.0 + mean))


def _beta_binomial(rng):
    a, b, n = positive(rng, -2.0), positive(rng, -2.0), np.rint(positive(rng, 0.0, 7.0))
    mean = a / (a + b)
    sd = np.sqrt(n * mean * (1.0 - mean) * (a + b + n) / (a + b + 1.0))
    return a, b, n, counts(rng, n * mean, sd, n)


def _student(rng):
    df, loc, scale = positive(rng, -1.0), rng.standard_normal(COUNT), positive(rng, -2.0, 2.0)
    return df, loc, scale, loc + scale * spread(rng) * 10.0 ** rng.uniform(0.0, 6.0, COUNT)


def _dirichlet(rng):
    c = 10.0 ** rng.uniform(-2.0, 8.0, (COUNT, 3))
    # Parts that add up to 1 in single precision too.
    x = np.rint(c / c.sum(-1, keepdims=True) * 2.0**12) / 2.0**12
    x[:, :2] = np.maximum(x[:, :2], 2.0**-12)
    x[:, 2] = 1.0 - x[:, 0] - x[:, 1]
    return c, np.where((x > 0.0).all(-1, keepdims=True), x, [[0.25, 0.25, 0.5]])


CASES = {
    "Gamma": Case(dist.Gamma, log_gamma_density, _gamma),
    "Chi2": Case(
        dist.Chi2,
        lambda df, x: log_gamma_density(df / 2, mpf(1) / 2, x),
        lambda rng: (lambda a, b, x: (2.0 * a, 2.0 * b * x))(*_gamma(rng)),
    ),
    "InverseGamma": Case(
        dist.InverseGamma,
        lambda a, b, x: log_gamma_density(a, b, 1 / x) - 2 * mpmath.log(x),
        lambda rng: (lambda a, b, x: (a, b, 1.0 / x))(*_gamma(rng)),
        # 1 / x is rounded once more.
        single=3e-5,
    ),
    "Poisson": Case(
        dist.Poisson, lambda m, k: power(k, m) - m - mpmath.loggamma(k + 1), _poisson, (1,)
    ),
    "Binomial": Case(
        dist.Binomial,
        lambda n, p, k: log_choose(n, k) + power(k, p) + power(n - k, 1 - p),
        _binomial,
        (0, 2),
    ),
    "Binomial logits": Case(
        lambda n, x: dist.Binomial(n, logits=x),
        lambda n, x, k: log_choose(n, k) + k * log_sigmoid(x) + (n - k) * log_sigmoid(-x),
        _binomial_logits,
        (0, 2),
    ),
    "NegativeBinomial": Case(
        dist.NegativeBinomial,
        lambda r, p, k: (
            mpmath.loggamma(k + r) - mpmath.loggamma(r) - mpmath.loggamma(k + 1)
            + power(k, p) + r * mpmath.log1p(-p)
        ),
        _negative_binomial,
        (2,),
    ),
    "NegativeBinomial logits": Case(
        lambda r, x: dist.NegativeBinomial(r, logits=x),
        lambda r, x, k: (
            mpmath.loggamma(k + r) - mpmath.loggamma(r) - mpmath.loggamma(k + 1)
            + k * log_sigmoid(x) + r * log_sigmoid(-x)
        ),
        _negative_binomial_logits,
        (2,),
    ),
    "Beta": Case(
        dist.Beta,
        lambda a, b, x: (
            (a - 1) * mpmath.log(x) + (b - 1) * mpmath.log1p(-x) - log_beta(a, b)
        ),
        _beta,
    ),
    "BetaBinomial": Case(
        dist.BetaBinomial,
        lambda a, b, n, k: log_choose(n, k) + log_beta(k + a, n - k + b) - log_beta(a, b),
        _beta_binomial,
        (2, 3),
    ),
    "Dirichlet": Case(
        dist.Dirichlet,
        lambda c, x: (
            mpmath.loggamma(sum(c))
            + sum((a - 1) * mpmath.log(v) - mpmath.loggamma(a) for a, v in zip(c, x, strict=True))
        ),
        _dirichlet,
    ),
    "StudentT": Case(dist.StudentT, student, _student),
    "Cauchy": Case(
        dist.Cauchy,
        lambda loc, scale, x: student(mpf(1), loc, scale, x),
        lambda rng: _student(rng)[1:],
    ),
    "HalfCauchy": Case(
        dist.HalfCauchy,
        lambda scale, x: student(mpf(1), mpf(0), scale, x) + mpmath.log(2),
        lambda rng: (lambda df, loc, scale, x: (scale, np.abs(x - loc)))(*_student(rng)),
    ),
}  # fmt: skip


def exactly(column):
    return [mpf(float(v)) if np.ndim(v) == 0 else [mpf(float(u)) for u in v] for v in column]


def columns_of(case, dtype):
    """Parameters and values that the dtype has; whole numbers stay whole."""
    columns = [c.astype(dtype).astype(np.float64) for c in case.draw(np.random.default_rng(1))]
    if case.whole and case.whole[0] == 0:
        columns[-1] = np.minimum(columns[-1], columns[0])
    elif len(case.whole) == 2:
        columns[-1] = np.minimum(columns[-1], columns[case.whole[0]])
    if case.make is dist.Beta:
        columns[-1] = np.minimum(columns[-1], 1.0 - 2.0**-24)
    return columns


def exact_values(case, columns):
    with mpmath.workdps(60):
        return [case.exact(*row) for row in zip(*map(exactly, columns), strict=True)]


def errors(got, exact):
    found = np.asarray(got.detach().numpy(), np.float64).tolist()
    return np.array(
        [float(abs(mpf(g) - e) / max(1, abs(e))) for g, e in zip(found, exact, strict=True)]
    )


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", CASES)
def test_a_log_density_keeps_its_digits(name, dtype, compiled):
    case = CASES[name]
    columns = columns_of(case, dtype)
    exact = exact_values(case, columns)

    def density(*arguments):
        *parameters, value = arguments
        return case.make(*parameters).log_prob(value)

    fn = compile(density) if compiled else density
    found = errors(fn(*(tensor(c.astype(dtype)) for c in columns)), exact)
    worst = int(found.argmax())
    allowed = 1e-12 if dtype is np.float64 else case.single
    assert found[worst] < allowed, (found[worst], [c[worst] for c in columns], float(exact[worst]))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", CASES)
def test_the_density_of_data_keeps_its_digits(name, dtype):
    """Values and some parameters known while recording: what is plain then is exact as well."""
    case = CASES[name]
    columns = columns_of(case, dtype)
    exact = exact_values(case, columns)
    known = [tensor(c.astype(dtype)) for c in columns]
    # One at a time: whether values are small enough for the plain form is asked of all together.
    for rows in np.array_split(np.argsort(columns[-1].reshape(COUNT, -1)[:, 0]), 4):
        data = known[-1][rows]
        fn = compile(lambda *parameters, data=data: case.make(*parameters).log_prob(data))
        got = fn(*(c[rows] for c in known[:-1]))
        found = errors(got, [exact[i] for i in rows])
        assert found.max() < (1e-12 if dtype is np.float64 else case.single)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_a_log_density_keeps_its_digits(name):
    """In the parameters, by differences of 60 digits."""
    case = CASES[name]
    columns = columns_of(case, np.float64)
    if name == "Dirichlet":
        return
    rows = range(0, COUNT, 6)
    for i in rows:
        leaves = [tensor(c[i], requires_grad=True) for c in columns]
        lp = case.make(*leaves[:-1]).log_prob(leaves[-1].detach())
        wanted = [j for j in range(len(leaves) - 1) if j not in case.whole]
        got = grad(lp, [leaves[j] for j in wanted])
        with mpmath.workdps(60):
            exact = exactly([c[i] for c in columns])
            for j, g in zip(wanted, got, strict=True):
                step = exact[j] * mpf(10) ** -20 + mpf(10) ** -30
                ends = [
                    case.exact(*(v + s * step if k == j else v for k, v in enumerate(exact)))
                    for s in (1, -1)
                ]
                slope = (ends[0] - ends[1]) / (2 * step)
                # Against the size of one nat per standard deviation, or of the slope itself.
                scale = max(abs(slope), 1 / abs(exact[j]) if exact[j] else 1)
                assert float(abs(mpf(g.item()) - slope) / scale) < 1e-8, (
                    j,
                    [c[i] for c in columns],
                )


@pytest.mark.parametrize("given", ["probs", "logits"])
@pytest.mark.parametrize("n", [0, 3, 1000, 10**7])
def test_multinomial_masses_keep_their_digits(n, given):
    p = np.array([0.2, 0.3, 0.5 - 1e-4, 1e-4, 0.0])
    x = np.random.default_rng(n).multinomial(n, p).astype(np.float64)
    with np.errstate(divide="ignore"):
        weights = tensor(p if given == "probs" else np.log(p) + 3.0, requires_grad=True)
    lp = dist.Multinomial(n, **{given: weights}).log_prob(tensor(x))
    with mpmath.workdps(60):
        weight = sum(exactly(p))
        terms = zip(exactly(x), exactly(p), strict=True)
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
