"""A twin in mpmath for every distribution: what its log density is, and where it is asked.

An entry states the density in numbers of any precision and draws columns of parameters, followed by
the value: parameters over sixteen orders of magnitude, counts up to 10^15, values near the bulk of
the mass and far from it, as far as 10^200. Each entry stands under the id of its case in
tests/distributions/cases.py; a case without one makes test_density_accuracy.py fail.
"""

import math
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
from mpmath import mpf

import probtorch.distributions as dist
from probtorch import stack

__all__ = ["ORACLES", "Oracle", "exactly"]


@dataclass(frozen=True)
class Oracle:
    """A density, its twin in mpmath, and where both are compared.

    Attributes
    ----------
    make : callable
        From columns of parameters to the distribution.
    exact : callable
        From numbers of mpmath, the value last, to the log density.
    draw : callable
        From a generator, a count and the largest value to columns, the value last.
    whole : tuple of int
        Columns of whole numbers, in which there is no derivative.
    fit : callable
        From columns rounded to the dtype to columns inside the support.
    digits : int
        Of the numbers of mpmath: more where numbers of very different size are added.
    """

    make: Any
    exact: Any
    draw: Any
    whole: tuple = ()
    fit: Any = None
    digits: int = 120


# ------------------------------------------------------------------------ numbers


def exactly(column):
    """Numbers of mpmath for one row: a number each, or nested lists of them."""
    return [_exact(v) for v in column]


def _exact(v):
    return mpf(float(v)) if np.ndim(v) == 0 else [_exact(u) for u in v]


def wide(rng, n, low=-8.0, high=8.0):
    """Positive numbers of any order of magnitude."""
    return 10.0 ** rng.uniform(low, high, n)


def signed(rng, n, low=-8.0, high=8.0):
    """Numbers of any order of magnitude and either sign, and some zeros."""
    return wide(rng, n, low, high) * rng.choice([-1.0, 1.0, 1.0, 0.0, -1.0], n)


def spread(rng, n):
    """Standard deviations from the bulk: some 0, most within 3, some beyond 100."""
    return rng.standard_normal(n) * rng.choice([0.0, 1.0, 1.0, 100.0], n)


def on_line(rng, n, loc, scale, top):
    """Values of the line: most near the bulk, some anywhere up to `top`."""
    far = signed(rng, n, -3.0, math.log10(top))
    return np.where(rng.random(n) < 0.7, loc + scale * spread(rng, n), far)


def above_zero(rng, n, mean, sd, top):
    """Positive values: most near the bulk, some below it, some anywhere from 1 / `top` to `top`."""
    size = math.log10(top)
    near = mean + sd * spread(rng, n)
    near = np.where(near > 0.0, near, mean * wide(rng, n, -3.0, 0.0))
    x = np.where(rng.random(n) < 0.7, near, wide(rng, n, -size, size))
    return np.clip(x, 1.0 / top, top)


def counts(rng, n, mean, sd, top):
    """Counts from 0 to `top`: most near the bulk, some anywhere."""
    near = mean + sd * spread(rng, n)
    near = np.where(near > 0.0, near, mean * wide(rng, n, -3.0, 0.0))
    far = wide(rng, n, -1.0, 15.0)
    return np.clip(np.rint(np.where(rng.random(n) < 0.85, near, far)), 0.0, np.minimum(top, 1e15))


def shares(rng, n):
    """Probabilities near 0, in the middle, and near 1."""
    p = rng.choice([0.5, 1e-3, 0.9, 1e-7], n) * rng.uniform(0.5, 1.0, n)
    return np.where(rng.random(n) < 0.1, 1.0 - wide(rng, n, -7, -1), p)


def log_odds(rng, n, p):
    """Of probabilities, and some far beyond what a probability can say."""
    far = rng.random(n) < 0.15
    return np.where(far, signed(rng, n, 0.0, 2.5), np.log(p) - np.log1p(-p))


def below(column, bound):
    """Return a `fit` that keeps a column at most another."""

    def fit(columns):
        columns[column] = np.minimum(columns[column], columns[bound])
        return columns

    return fit


def in_unit(columns):
    """Keep values inside the open unit interval, whatever the dtype."""
    columns[-1] = np.clip(columns[-1], 1e-37, 1.0 - 2.0**-24)
    return columns


# ------------------------------------------------------------------------ mathematics

log, log1p, exp, lgamma = mpmath.log, mpmath.log1p, mpmath.exp, mpmath.loggamma
PI = mpmath.pi


def log_gamma_density(a, b, x):
    return a * log(b) - lgamma(a) + (a - 1) * log(x) - b * x


def log_choose(n, k):
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def log_beta(a, b):
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def power(k, y):
    return log(y) * k if k else mpf(0)


def log_sigmoid(x):
    return -log1p(exp(-x))


def student(df, loc, scale, x):
    z = (x - loc) / scale
    constant = log_beta(df / 2, mpf(1) / 2) + log(df) / 2 + log(scale)
    return -(df + 1) / 2 * log1p(z * z / df) - constant


def normal(loc, scale, x):
    z = (x - loc) / scale
    return -z * z / 2 - log(scale) - log(2 * PI) / 2


def truncated(loc, scale, low, high, x):
    a, b = (low - loc) / scale, (high - loc) / scale
    if a > 0:
        a, b = -b, -a
    upper = lambda z: mpmath.erfc(z / mpmath.sqrt(2)) / 2
    if b < 0:
        mass = upper(-b) - upper(-a)
    else:
        mass = mpmath.erf(b / mpmath.sqrt(2)) / 2 - mpmath.erf(a / mpmath.sqrt(2)) / 2
    return normal(loc, scale, x) - log(mass)


def log_i0(k):
    """Of the modified Bessel function, by its expansion where that has 40 digits."""
    if k < 1000:
        return log(mpmath.besseli(0, k))
    term, total = mpf(1), mpf(1)
    for i in range(1, 40):
        term = term * (2 * i - 1) ** 2 / (8 * i * k)
        total += term
    return k - log(2 * PI * k) / 2 + log(total)


def logistic(loc, scale, x):
    z = abs((x - loc) / scale)
    return -z - 2 * log1p(exp(-z)) - log(scale)


def gumbel(loc, scale, x):
    z = (x - loc) / scale
    return -z - exp(-z) - log(scale)


def negative_binomial(r, k, log_p, log_q):
    if not r:
        return mpf(0) if not k else -mpmath.inf
    return lgamma(k + r) - lgamma(r) - lgamma(k + 1) + (k * log_p if k else 0) + r * log_q


def log_softmax(x):
    top = max(x)
    size = top + log(sum(exp(v - top) for v in x))
    return [v - size for v in x]


def log_shares(p):
    size = log(sum(p))
    return [log(v) - size for v in p]


def multinomial(logs, x):
    n = sum(x)
    return lgamma(n + 1) + sum(k * w - lgamma(k + 1) for k, w in zip(x, logs, strict=True))


def dirichlet(c, x):
    parts = sum((a - 1) * log(v) - lgamma(a) for a, v in zip(c, x, strict=True))
    return lgamma(sum(c)) + parts


def lkj(c, x):
    d = len(x)
    out = mpf(0)
    for n in range(1, d):
        a = c + mpf(d - 1 - n) / 2
        out -= n * log(PI) / 2 + lgamma(a) - lgamma(a + mpf(n) / 2)
        out += (d - n - 1 + 2 * (c - 1)) * log(x[n][n])
    return out


def gaussian(loc, covariance, x):
    (a, b), (b2, c) = covariance
    u, v = (p - q for p, q in zip(x, loc, strict=True))
    det = a * c - b * b2
    return -((c * u - b2 * v) * u + (a * v - b * u) * v) / det / 2 - log(det) / 2 - log(2 * PI)


def inverse(m):
    (a, b), (b2, c) = m
    det = a * c - b * b2
    return [[c / det, -b / det], [-b2 / det, a / det]]


def outer(m):
    (a, _), (b, c) = m
    return [[a * a, a * b], [a * b, b * b + c * c]]


# ------------------------------------------------------------------------ where


def _line(rng, n, top):
    loc, scale = signed(rng, n), wide(rng, n)
    return loc, scale, on_line(rng, n, loc, scale, top)


def _half(rng, n, top):
    scale = wide(rng, n)
    return scale, above_zero(rng, n, scale, scale, top)


def _log_normal(rng, n, top):
    loc, scale = signed(rng, n, -8, 2), wide(rng, n, -8, 3)
    size = math.log(top)
    near = np.exp(np.clip(loc + scale * spread(rng, n), -size, size))
    return loc, scale, np.where(rng.random(n) < 0.7, near, above_zero(rng, n, 1.0, 1.0, top))


def _truncated(rng, n, top):
    loc, scale = signed(rng, n, -3, 3), wide(rng, n, -3, 3)
    low = loc + scale * signed(rng, n, -2, 1.7)
    high = low + scale * wide(rng, n, -3, 2)
    return loc, scale, low, high, low + (high - low) * rng.uniform(0, 1, n)


def _fit_truncated(columns):
    loc, scale, low, high, x = columns
    high = np.maximum(high, low + 1e-3 * scale + 1e-4 * abs(low)).astype(np.float32)
    return [loc, scale, low, high.astype(float), np.clip(x, low, high)]


def _student(rng, n, top):
    df, loc, scale = wide(rng, n), signed(rng, n), wide(rng, n)
    x = loc + scale * spread(rng, n) * wide(rng, n, 0.0, 6.0)
    return df, loc, scale, np.where(rng.random(n) < 0.7, x, on_line(rng, n, loc, scale, top))


def _von_mises(rng, n, top):
    k = wide(rng, n)
    x = spread(rng, n) / np.sqrt(k)
    return signed(rng, n, -8, 1), k, np.where(abs(x) < np.pi, x, rng.uniform(-np.pi, np.pi, n))


def _uniform(rng, n, top):
    low, width = signed(rng, n), wide(rng, n)
    return low, low + width, low + width * rng.uniform(0, 1, n)


def _fit_uniform(columns):
    low, high, x = columns
    high = np.maximum(high, low + 1e-5 + 1e-5 * abs(low)).astype(np.float32).astype(float)
    return [low, high, np.where((x >= low) & (x < high), x, low)]


def _weibull(rng, n, top):
    scale, k = wide(rng, n), wide(rng, n, -3, 3)
    x = scale * np.exp(np.clip(np.log(rng.exponential(size=n)) / k, -80, 80))
    return (
        scale,
        k,
        np.where(rng.random(n) < 0.7, np.minimum(x, top), above_zero(rng, n, 1.0, 1.0, top)),
    )


def _pareto(rng, n, top):
    scale, a = wide(rng, n), wide(rng, n)
    x = scale * np.exp(np.clip(rng.exponential(size=n) / a, 0, math.log(top)))
    return scale, a, np.where(rng.random(n) < 0.7, x, scale * wide(rng, n, 0, math.log10(top)))


def _above_first(columns):
    columns[-1] = np.maximum(columns[-1], columns[0])
    return columns


def _gamma(rng, n, top):
    a, b = wide(rng, n), wide(rng, n)
    return a, b, above_zero(rng, n, a / b, np.sqrt(a) / b, top)


def _chi2(rng, n, top):
    a = wide(rng, n)
    return a, above_zero(rng, n, a, np.sqrt(2 * a), top)


def _inverse_gamma(rng, n, top):
    a, b, x = _gamma(rng, n, top)
    return a, b, 1.0 / x


def _beta(rng, n, top):
    a, b = wide(rng, n), wide(rng, n)
    mean = a / (a + b)
    sd = np.sqrt(mean * (1.0 - mean) / (a + b + 1.0))
    x = np.minimum(mean + sd * spread(rng, n), 0.5 * (1.0 + mean))
    x = np.where(x > 0.0, x, mean * wide(rng, n, -3, 0))
    edge = np.where(rng.random(n) < 0.5, wide(rng, n, -30, 0), 1.0 - wide(rng, n, -7, 0))
    return a, b, np.where(rng.random(n) < 0.8, x, edge)


def _bernoulli(rng, n, top):
    return shares(rng, n), rng.choice([0.0, 1.0], n)


def _geometric(rng, n, top):
    p = np.where(rng.random(n) < 0.3, wide(rng, n, -8, 0), shares(rng, n))
    return p, counts(rng, n, 1.0 / p, 1.0 / p, 1e15)


def _binomial(rng, n, top):
    total, p = np.rint(wide(rng, n, 0.0, 15.0)), shares(rng, n)
    return total, p, counts(rng, n, total * p, np.sqrt(total * p * (1 - p)), total)


def _with_logits(draw, at):
    def drawn(rng, n, top):
        columns = list(draw(rng, n, top))
        columns[at] = log_odds(rng, n, columns[at])
        return columns

    return drawn


def _beta_binomial(rng, n, top):
    a, b, total = wide(rng, n), wide(rng, n), np.rint(wide(rng, n, 0.0, 15.0))
    mean = a / (a + b)
    sd = np.sqrt(total * mean * (1.0 - mean) * (a + b + total) / (a + b + 1.0))
    return a, b, total, counts(rng, n, total * mean, sd, total)


def _poisson(rng, n, top):
    rate = wide(rng, n, -8.0, 15.0)
    return rate, counts(rng, n, rate, np.sqrt(rate), 1e15)


def _negative_binomial(rng, n, top):
    r, p = wide(rng, n), shares(rng, n)
    mean = r * p / (1.0 - p)
    return r, p, counts(rng, n, mean, np.sqrt(mean / (1.0 - p)), 1e15)


def _weights(rng, n, top):
    return wide(rng, (n, 3)), rng.integers(0, 3, n).astype(float)


def _logits(rng, n, top):
    x = rng.choice([1.0, 10.0, 1000.0], (n, 1)) * rng.standard_normal((n, 3))
    return x + signed(rng, (n, 1), 0, 3), rng.integers(0, 3, n).astype(float)


def _one_hot(draw):
    def drawn(rng, n, top):
        given, index = draw(rng, n, top)
        return given, np.eye(3)[index.astype(int)]

    return drawn


TRIALS = 1000


def _multinomial(draw):
    def drawn(rng, n, top):
        given, _ = draw(rng, n, top)
        if draw is _weights:
            p = given / given.sum(-1, keepdims=True)
        else:
            p = np.exp(given - given.max(-1, keepdims=True))
            p = p / p.sum(-1, keepdims=True)
        near = rng.multinomial(TRIALS, p * (1.0 - 1e-12))
        any_ = rng.multinomial(TRIALS, np.full((n, 3), 1 / 3))
        return given, np.where(rng.random((n, 1)) < 0.8, near, any_).astype(float)

    return drawn


def _dirichlet(rng, n, top):
    c = wide(rng, (n, 3))
    # Parts that add up to 1 in single precision too.
    x = np.rint(c / c.sum(-1, keepdims=True) * 2.0**12) / 2.0**12
    x[:, :2] = np.maximum(x[:, :2], 2.0**-12)
    x[:, 2] = 1.0 - x[:, 0] - x[:, 1]
    return c, np.where((x > 0.0).all(-1, keepdims=True), x, [[0.25, 0.25, 0.5]])


def _factor(rng, n, top):
    rows = np.zeros((n, 3, 3))
    rows[:, 0, 0] = 1.0
    a = rng.uniform(-1, 1, n) * rng.choice([1e-4, 0.1, 1.0], n)
    u = rng.standard_normal((n, 2)) * rng.choice([1e-4, 0.1, 0.5], (n, 1))
    u = u / np.maximum(1.0, 1.01 * np.sqrt((u * u).sum(-1, keepdims=True)))
    rows[:, 1, 0], rows[:, 1, 1] = a, np.sqrt(1.0 - a * a)
    rows[:, 2, :2], rows[:, 2, 2] = u, np.sqrt(1.0 - (u * u).sum(-1))
    return wide(rng, n), rows


def _vectors(rng, n, top):
    loc, size = signed(rng, (n, 2), -3, 3), wide(rng, (n, 1, 1), -4, 4)
    tril = np.tril(rng.standard_normal((n, 2, 2)))
    tril[:, [0, 1], [0, 1]] = rng.uniform(0.3, 2.0, (n, 2))
    tril = tril * size
    return loc, tril, loc + (tril @ spread(rng, (n, 2, 1)))[..., 0]


def _covariances(rng, n, top):
    loc, tril, x = _vectors(rng, n, top)
    return loc, tril @ np.swapaxes(tril, -1, -2), x


def _precisions(rng, n, top):
    loc, tril, x = _vectors(rng, n, top)
    m = np.linalg.inv(tril @ np.swapaxes(tril, -1, -2))
    return loc, (m + np.swapaxes(m, -1, -2)) * 0.5, x


def _mixture(rng, n, top):
    loc, scale = rng.standard_normal((n, 2)), wide(rng, (n, 2), -3, 3)
    w = rng.uniform(0.01, 0.99, n)
    k = rng.integers(0, 2, n)
    x = np.take_along_axis(loc + scale * spread(rng, (n, 2)), k[:, None], 1)[:, 0]
    return w, loc, scale, x


def _make_mixture(w, loc, scale):
    weights = dist.Categorical(stack([w, 1.0 - w], -1))
    return dist.MixtureSameFamily(weights, dist.Normal(loc, scale))


def mixture(w, loc, scale, x):
    parts = [normal(m, s, x) for m, s in zip(loc, scale, strict=True)]
    return log(w * exp(parts[0]) + (1 - w) * exp(parts[1]))


# Values up to 1e200 beside parameters of 1e-8, and shares that underflow.
MANY = 470

ORACLES = {
    "Normal": Oracle(dist.Normal, normal, _line, digits=MANY),
    "LogNormal": Oracle(
        dist.LogNormal, lambda m, s, x: normal(m, s, log(x)) - log(x), _log_normal
    ),
    "HalfNormal": Oracle(
        dist.HalfNormal, lambda s, x: normal(mpf(0), s, x) + log(2), _half
    ),
    "TruncatedNormal": Oracle(
        dist.TruncatedNormal, truncated, _truncated, fit=_fit_truncated, digits=250
    ),
    "Cauchy": Oracle(dist.Cauchy, lambda m, s, x: student(mpf(1), m, s, x), _line, digits=MANY),
    "HalfCauchy": Oracle(
        dist.HalfCauchy, lambda s, x: student(mpf(1), mpf(0), s, x) + log(2), _half
    ),
    "StudentT": Oracle(dist.StudentT, student, _student, digits=MANY),
    "Laplace": Oracle(
        dist.Laplace, lambda m, s, x: -abs(x - m) / s - log(2 * s), _line, digits=MANY),
    "Logistic": Oracle(dist.Logistic, logistic, _line, digits=MANY),
    "Gumbel": Oracle(dist.Gumbel, gumbel, _line, digits=MANY),
    "VonMises": Oracle(
        dist.VonMises,
        lambda m, k, x: k * mpmath.cos(x - m) - log(2 * PI) - log_i0(k),
        _von_mises,
    ),
    "Uniform": Oracle(
        dist.Uniform, lambda low, high, x: -log(high - low), _uniform, fit=_fit_uniform
    ),
    "Exponential": Oracle(dist.Exponential, lambda b, x: log(b) - b * x, lambda rng, n, top: (
        lambda s, x: (1.0 / s, x))(*_half(rng, n, top))),
    "Weibull": Oracle(
        dist.Weibull,
        lambda s, k, x: log(k / s) + (k - 1) * log(x / s) - exp(k * log(x / s)),
        _weibull, digits=MANY),
    "Pareto": Oracle(
        dist.Pareto, lambda s, a, x: log(a) + a * log(s / x) - log(x), _pareto, fit=_above_first
    ),
    "Gamma": Oracle(dist.Gamma, log_gamma_density, _gamma, digits=MANY),
    "Chi2": Oracle(
        dist.Chi2, lambda df, x: log_gamma_density(df / 2, mpf(1) / 2, x), _chi2, digits=MANY),
    "InverseGamma": Oracle(
        dist.InverseGamma,
        lambda a, b, x: log_gamma_density(a, b, 1 / x) - 2 * log(x),
        _inverse_gamma, digits=MANY),
    "Beta": Oracle(
        dist.Beta,
        lambda a, b, x: (a - 1) * log(x) + (b - 1) * log1p(-x) - log_beta(a, b),
        _beta,
        fit=in_unit,
    ),
    "Bernoulli-probs": Oracle(
        dist.Bernoulli, lambda p, k: log(p) if k else log1p(-p), _bernoulli, (1,)
    ),
    "Bernoulli-logits": Oracle(
        lambda x: dist.Bernoulli(logits=x),
        lambda x, k: log_sigmoid(x if k else -x),
        _with_logits(_bernoulli, 0),
        (1,),
    ),
    "Geometric-probs": Oracle(
        dist.Geometric, lambda p, k: power(k, 1 - p) + log(p), _geometric, (1,)
    ),
    "Geometric-logits": Oracle(
        lambda x: dist.Geometric(logits=x),
        lambda x, k: k * log_sigmoid(-x) + log_sigmoid(x),
        _with_logits(_geometric, 0),
        (1,),
    ),
    "Binomial-probs": Oracle(
        dist.Binomial,
        lambda n, p, k: log_choose(n, k) + power(k, p) + power(n - k, 1 - p),
        _binomial,
        (0, 2),
        below(2, 0),
    ),
    "Binomial-logits": Oracle(
        lambda n, x: dist.Binomial(n, logits=x),
        lambda n, x, k: log_choose(n, k) + k * log_sigmoid(x) + (n - k) * log_sigmoid(-x),
        _with_logits(_binomial, 1),
        (0, 2),
        below(2, 0),
    ),
    "BetaBinomial": Oracle(
        dist.BetaBinomial,
        lambda a, b, n, k: log_choose(n, k) + log_beta(k + a, n - k + b) - log_beta(a, b),
        _beta_binomial,
        (2, 3),
        below(3, 2),
    ),
    "Poisson": Oracle(
        dist.Poisson, lambda m, k: power(k, m) - m - lgamma(k + 1), _poisson, (1,)
    ),
    "NegativeBinomial-probs": Oracle(
        dist.NegativeBinomial,
        lambda r, p, k: negative_binomial(r, k, log(p), log1p(-p)),
        _negative_binomial,
        (2,),
    ),
    "NegativeBinomial-logits": Oracle(
        lambda r, x: dist.NegativeBinomial(r, logits=x),
        lambda r, x, k: negative_binomial(r, k, log_sigmoid(x), log_sigmoid(-x)),
        _with_logits(_negative_binomial, 1),
        (2,),
    ),
    "Categorical-probs": Oracle(
        dist.Categorical, lambda p, k: log_shares(p)[int(k)], _weights, (1,)
    ),
    "Categorical-logits": Oracle(
        lambda x: dist.Categorical(logits=x),
        lambda x, k: log_softmax(x)[int(k)],
        _logits,
        (1,),
        digits=MANY,
    ),
    "OneHotCategorical-probs": Oracle(
        dist.OneHotCategorical,
        lambda p, x: log_shares(p)[x.index(1)],
        _one_hot(_weights),
        (1,),
    ),
    "OneHotCategorical-logits": Oracle(
        lambda x: dist.OneHotCategorical(logits=x),
        lambda x, v: log_softmax(x)[v.index(1)],
        _one_hot(_logits),
        (1,),
        digits=MANY,
    ),
    "Multinomial-probs": Oracle(
        lambda p: dist.Multinomial(TRIALS, p),
        lambda p, x: multinomial(log_shares(p), x),
        _multinomial(_weights),
        (1,),
    ),
    "Multinomial-logits": Oracle(
        lambda v: dist.Multinomial(TRIALS, logits=v),
        lambda v, x: multinomial(log_softmax(v), x),
        _multinomial(_logits),
        (1,),
        digits=MANY,
    ),
    "Dirichlet": Oracle(dist.Dirichlet, dirichlet, _dirichlet),
    "LKJCholesky": Oracle(lambda c: dist.LKJCholesky(3, c), lkj, _factor, (1,)),
    "MultivariateNormal-covariance_matrix": Oracle(
        dist.MultivariateNormal, gaussian, _covariances
    ),
    "MultivariateNormal-precision_matrix": Oracle(
        lambda m, p: dist.MultivariateNormal(m, precision_matrix=p),
        lambda m, p, x: gaussian(m, inverse(p), x),
        _precisions,
    ),
    "MultivariateNormal-scale_tril": Oracle(
        lambda m, l: dist.MultivariateNormal(m, scale_tril=l),
        lambda m, l, x: gaussian(m, outer(l), x),
        _vectors,
    ),
    "MixtureSameFamily": Oracle(_make_mixture, mixture, _mixture, digits=MANY),
}  # fmt: skip
