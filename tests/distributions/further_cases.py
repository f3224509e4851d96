"""Entries of the rarer distributions, as in cases.py; laws that compile run for them at night.

Where SciPy lacks a distribution its density stands here, written from its definition, and all
else (cdf, quantiles, moments, entropy) is made of it by quadrature or by sums.
"""

import math

import numpy as np
import pytest
from scipy import special, stats

import probtorch.distributions as dist
from tests.distributions.cases import CASES, Case, Lkj, Rows, _mvn, _outer, sigmoid
from tests.distributions.rarest_cases import RAREST
from tests.distributions.references import (
    NODES,
    WEIGHTS,
    Masses,
    Stated,
    Through,
    Vector,
    between,
    on_line,
    on_unit,
    through_sigmoid,
)
from tests.distributions.vector_cases import VECTORS

__all__ = ["FURTHER", "common_or_slow"]


def common_or_slow(cases=CASES):
    """Return the common cases, and the rarer ones marked as slow."""
    return [*cases, *(pytest.param(c, marks=pytest.mark.slow) for c in FURTHER)]


# ------------------------------------------------------------------------------ densities


def _soft_laplace_pair(p):
    left, right = p.scale * p.asymmetry, p.scale / p.asymmetry
    s = p.scale * p.softness

    def logpdf(x):
        z = x - p.loc
        above = -z / right + s**2 / (2 * right**2) + special.log_ndtr(z / s - s / right)
        below = z / left + s**2 / (2 * left**2) + special.log_ndtr(-z / s - s / left)
        return np.logaddexp(above, below) - np.log(left + right)

    return on_line(logpdf)


def _standardised(raw, letter):
    """Skewness or excess kurtosis, from the means of x to x^4."""
    a, b, c, d = raw
    with np.errstate(invalid="ignore"):
        v = b - a * a
        if letter == "s":
            return (c - 3 * a * b + 2 * a**3) / v**1.5
        return (d - 4 * a * c + 6 * a * a * b - 3 * a**4) / v**2 - 3


def _kumaraswamy(p):
    # A root of a beta draw whose first exponent is 1.
    a, b = p.concentration1, p.concentration0
    power = stats.beta(1.0, b)
    raw = lambda k: b * special.beta(1 + k / a, b)
    harmonic = special.digamma(1 + b)
    logs = (a - 1) / a * (special.digamma(1) - harmonic) + (b - 1) * (special.digamma(b) - harmonic)
    return Stated(
        None,
        logpdf=lambda x: power.logpdf(x**a) + np.log(a) + (a - 1) * np.log(x),
        cdf=lambda x: power.cdf(np.clip(x, 0, 1) ** a),
        sf=lambda x: power.sf(np.clip(x, 0, 1) ** a),
        ppf=lambda q: power.ppf(q) ** (1 / a),
        mean=lambda: raw(1),
        var=lambda: raw(2) - raw(1) ** 2,
        stats=lambda letter: _standardised([raw(k) for k in (1, 2, 3, 4)], letter),
        entropy=lambda: -np.log(a * b) - logs,
    )


def _half_t(p):
    t = stats.t(p.df, 0, p.scale)
    gammas = np.exp(special.gammaln((p.df + 1) / 2) - special.gammaln(p.df / 2))
    size = 2 * p.scale * np.sqrt(p.df / np.pi) * gammas
    mean = np.where(p.df > 1, size / (p.df - 1), np.inf)
    return Stated(
        None,
        logpdf=lambda x: t.logpdf(x) + math.log(2),
        cdf=lambda x: np.where(x > 0, 1 - 2 * t.sf(x), 0.0),
        sf=lambda x: np.where(x > 0, 2 * t.sf(x), 1.0),
        ppf=lambda q: t.isf((1 - q) / 2),
        mean=lambda: mean,
        var=lambda: np.where(p.df > 2, t.var() - np.where(p.df > 2, mean, 0) ** 2, np.inf),
        entropy=lambda: t.entropy() - math.log(2),
    )


def _frechet(p):
    # SciPy gives finite moments where they are infinite.
    c, s = p.concentration, stats.invweibull(p.concentration, scale=p.scale)
    raw = lambda k: p.scale**k * special.gamma(1 - k / np.where(c > k, c, 2 * k))
    return Stated(
        s,
        mean=lambda: np.where(c > 1, raw(1), np.inf),
        var=lambda: np.where(c > 2, raw(2) - raw(1) ** 2, np.inf),
        stats=lambda letter: np.where(
            c > (3 if letter == "s" else 4),
            _standardised([raw(k) for k in (1, 2, 3, 4)], letter),
            np.inf,
        ),
    )


def _with_entropy(frozen):
    """A frozen distribution with an entropy by integration over levels, for SciPy's 8 digits."""

    def entropy():
        edges = np.linspace(-36, 36, 201)[:, None]
        half = 0.5 * np.diff(edges, axis=0)
        t = (edges[:-1] + half * (1 + NODES)).reshape(-1, 1)
        u = special.expit(t)
        x = np.where(t < 0, frozen.ppf(u), frozen.isf(special.expit(-t)))
        weights = (half * WEIGHTS).reshape(-1, 1) * u * special.expit(-t)
        return -(frozen.logpdf(x) * weights).sum(0)

    return Stated(frozen, entropy=entropy)


def _continuous_bernoulli(p):
    # Loaiza-Ganem and Cunningham (2019)
    c = np.log(2 * np.arctanh(1 - 2 * p) / (1 - 2 * p))
    return on_unit(lambda x: x * np.log(p) + (1 - x) * np.log1p(-p) + c)


def _power_law(p):
    b = p.alpha + 1
    size = np.log((p.high**b - p.low**b) / b)
    return between(lambda x: p.alpha * np.log(x) - size, p.low, p.high)


def _discrete_weibull(p):
    q, b = p.q, p.beta
    survival = lambda k: np.where(k < 0, 1.0, q ** (np.maximum(np.floor(k) + 1, 0) ** b))
    mass = lambda k: np.log(survival(k - 1) - survival(k))
    return Stated(
        Masses(mass, top=30_000),
        logpmf=mass,
        cdf=lambda k: 1 - survival(k),
        sf=survival,
        ppf=lambda r: np.ceil((np.log1p(-r) / np.log(q)) ** (1 / b) - 1),
    )


def _beta_negative_binomial(p):
    a, b, n = p.concentration1, p.concentration0, p.n

    def logpmf(k):
        choose = special.gammaln(n + k) - special.gammaln(n) - special.gammaln(k + 1)
        return choose + special.betaln(a + k, b + n) - special.betaln(a, b)

    return Masses(logpmf, top=3000)


def _low_rank(p):
    d = p.cov_diag[..., None] * np.eye(p.cov_diag.shape[-1])
    return _mvn(p.loc, p.cov_factor @ np.swapaxes(p.cov_factor, -1, -2) + d)


def _multivariate_t(p):
    cov = _outer(p.scale_tril)
    sd = np.sqrt(np.diagonal(cov, 0, -2, -1))

    def marginals(x):
        each = [(x[..., k], stats.t(p.df, p.loc[:, k], sd[:, k])) for k in range(2)]
        w = np.array([0.6, -1.1])
        spread = np.sqrt(np.einsum("i,bij,j->b", w, cov, w))
        return [*each, (x @ w, stats.t(p.df, p.loc @ w, spread))]

    rows = zip(p.loc, cov, p.df, strict=True)
    return Rows([stats.multivariate_t(m, c, df) for m, c, df in rows], marginals)


def _walk(p):
    times = np.arange(1.0, 3.0)
    cov = p.scale[:, None, None] ** 2 * np.minimum(times, times[:, None])
    return _mvn(np.zeros((len(p.scale), 2)), cov)


def _garch(p):
    def spread(x, i):
        return np.sqrt(p.omega[i] + p.alpha_1[i] * x**2 + p.beta_1[i] * p.initial_vol[i] ** 2)

    def rows(i):
        first = stats.norm(0, p.initial_vol[i])
        return Vector(lambda x: first.logpdf(x[0]) + stats.norm(0, spread(x[0], i)).logpdf(x[1]))

    def marginals(x):
        scaled = np.stack([x[:, i, 1] / spread(x[:, i, 0], i) for i in range(x.shape[1])], 1)
        one = np.ones(x.shape[1])
        return [(x[..., 0], stats.norm(0, p.initial_vol)), (scaled, stats.norm(0, one))]

    return Rows([rows(i) for i in range(len(p.omega))], marginals)


def _zero_sum(p):
    # In the coordinates of an orthonormal basis of the plane.
    q, _ = np.linalg.qr(np.column_stack([np.ones(3), np.arange(3.0), np.arange(3.0) ** 2]))
    logpdf = lambda s: Vector(
        lambda x: stats.norm(0, s).logpdf(q[:, 1:].T @ x).sum(), 2 * stats.norm(0, s).entropy()
    )
    sd = p.scale * np.sqrt(2 / 3)
    marginals = lambda x: [(x[..., k], stats.norm(0, sd)) for k in range(3)]
    return Rows([logpdf(s) for s in p.scale], marginals)


def _relaxed_one_hot(weights, t):
    # Maddison, Mnih and Teh (2017), eq. 26
    def logpdf(a, t):
        n = len(a)
        size = special.gammaln(n) + (n - 1) * np.log(t)
        return Vector(
            lambda x: size + (np.log(a) - (t + 1) * np.log(x)).sum() - n * np.log((a * x**-t).sum())
        )

    def marginals(x):
        # The difference of two logs is logistic.
        logits = (np.log(weights[:, 0]) - np.log(weights[:, 1])) / t
        return [(np.log(x[..., 0] / x[..., 1]), stats.logistic(logits, 1 / t))]

    return Rows([logpdf(a, s) for a, s in zip(weights, t, strict=True)], marginals)


def _dirichlet_multinomial(c):
    rest = c.sum(-1, keepdims=True) - c
    marginals = lambda x: [
        (x[..., k], stats.betabinom(5, c[:, k], rest[:, k])) for k in range(c.shape[1])
    ]
    return Rows([stats.dirichlet_multinomial(row, 5) for row in c], marginals)


def _jacobian(x):
    n = len(x)
    return n * math.log(2) + (np.arange(n, 0, -1) * np.log(np.diag(x))).sum()


def _wishart(df, v):
    d = np.diagonal(v, 0, -2, -1)
    marginals = lambda x: [(x[..., k, k], stats.chi2(df, scale=d[:, k])) for k in range(2)]
    return Rows([stats.wishart(a, m) for a, m in zip(df, v, strict=True)], marginals)


def _factor_of(matrix, marginals, squares):
    """A distribution of Cholesky factors, from that of the matrices.

    `squares` are the distributions of the squares on the diagonal.
    """
    logs = np.stack([0.5 * _mean_log(d) for d in squares], -1)
    rows = [
        Vector(lambda x, f=f: f.logpdf(x @ x.T) + _jacobian(x), f.entropy() - _jacobian(np.diag(m)))
        for f, m in zip(matrix.frozen, np.exp(logs), strict=True)
    ]
    return Rows(rows, marginals)


def _mean_log(d):
    """Of positive numbers, by quadrature over their levels."""
    t = np.linspace(-4.5, 4.5, 2001)
    level, rest = special.expit(np.pi * np.sinh(t)), special.expit(-np.pi * np.sinh(t))
    x = np.where(t[:, None] < 0, d.ppf(level[:, None]), d.isf(rest[:, None]))
    weight = (t[1] - t[0]) * np.pi * np.cosh(t) * level * rest
    return (weight[:, None] * np.log(x)).sum(0)


def _last_square(v):
    """The last diagonal element of the factor of a 2 by 2 matrix, squared."""
    return np.linalg.det(v) / v[:, 0, 0]


def _wishart_factor(df, v):
    scale = np.sqrt(v[:, 0, 0])
    squares = stats.chi2(df, scale=v[:, 0, 0]), stats.chi2(df - 1, scale=_last_square(v))
    first = lambda x: [(x[..., 0, 0], stats.chi(df, scale=scale))]
    return _factor_of(_wishart(df, v), first, squares)


def _inverse_wishart(df, v):
    d = np.diagonal(v, 0, -2, -1)
    marginals = lambda x: [
        (x[..., k, k], stats.invgamma((df - 1) / 2, scale=d[:, k] / 2)) for k in range(2)
    ]
    return Rows([_inverse(a, m) for a, m in zip(df, v, strict=True)], marginals)


def _inverse(df, v):
    """SciPy's inverse Wishart density of 2 by 2 matrices; the entropy by that of the inverse.

    SciPy's own entropy is off for more than one dim: it is not the mean of its log density.
    """
    d = stats.invwishart(df, v)
    direct = stats.wishart(df, np.linalg.inv(v))
    # X -> 1 / X has the slope det(X)^-(n + 1), and det is a product of two chi-squared numbers.
    squares = stats.chi2(np.array([df, df - 1.0]))
    log_det = _mean_log(squares).sum() - np.linalg.slogdet(v)[1]
    return Vector(d.logpdf, direct.entropy() - 3 * log_det)


def _inverse_wishart_factor(df, v):
    size = stats.invgamma((df - 1) / 2, scale=v[:, 0, 0] / 2)
    square = lambda x: [(x[..., 0, 0] ** 2, size)]
    last = stats.invgamma(df / 2, scale=_last_square(v) / 2)
    return _factor_of(_inverse_wishart(df, v), square, (size, last))


def _correlations(eta):
    def logpdf(e):
        factor = Lkj(3, e)
        slope = lambda f: (np.arange(2.0, -1.0, -1.0) * np.log(np.diag(f))).sum()
        density = lambda f: factor.logpdf(f) - slope(f)
        inner = 0.5 * _mean_log(stats.beta(np.array([e + 0.5]), 0.5))[0]
        return Vector(lambda x: density(np.linalg.cholesky(x)), factor.entropy() + inner)

    shape = eta + 0.5
    pairs = [(0, 1), (0, 2), (1, 2)]
    marginals = lambda x: [(x[..., i, j], stats.beta(shape, shape, -1, 2)) for i, j in pairs]
    return Rows([logpdf(e) for e in eta], marginals)


def _sinh_arcsinh(p):
    # Jones and Pewsey (2009), eq. 1
    size = p.scale * 2 / np.sinh(p.tailweight * np.arcsinh(2.0))
    back = lambda x: np.sinh(np.arcsinh((x - p.loc) / size) / p.tailweight - p.skew)
    place = lambda n: p.loc + size * np.sinh((np.arcsinh(n) + p.skew) * p.tailweight)
    slope = lambda x: (
        0.5 * np.log1p(back(x) ** 2)
        - 0.5 * np.log1p(((x - p.loc) / size) ** 2)
        - np.log(p.tailweight * size)
    )
    return Through(stats.norm(np.zeros(3), 1.0), place, back, slope)


def _quantile_laplace(p):
    left, right = p.scale / (1 - p.quantile), p.scale / p.quantile
    return stats.laplace_asymmetric(np.sqrt(left / right), p.loc, np.sqrt(left * right))


FURTHER = [
    Case(dist.GARCH11, ("omega", "alpha_1", "beta_1", "initial_vol"), _garch, {"steps": 1}),
    Case(
        dist.AsymmetricLaplace,
        ("loc", "scale", "asymmetry"),
        lambda p: stats.laplace_asymmetric(p.asymmetry, p.loc, p.scale),
        coupled=False,
    ),
    Case(
        dist.AsymmetricLaplaceQuantile,
        ("loc", "scale", "quantile"),
        _quantile_laplace,
        coupled=False,
    ),
    Case(
        dist.SoftAsymmetricLaplace,
        ("loc", "scale", "asymmetry", "softness"),
        _soft_laplace_pair,
        coupled=False,
    ),
    Case(
        dist.ExGaussian,
        ("loc", "scale", "nu"),
        lambda p: on_line(stats.exponnorm(p.nu / p.scale, p.loc, p.scale).logpdf),
        coupled=False,
    ),
    Case(
        dist.SkewLogistic,
        ("loc", "scale", "asymmetry"),
        lambda p: stats.genlogistic(p.asymmetry, p.loc, p.scale),
    ),
    Case(
        dist.SkewNormal,
        ("loc", "scale", "alpha"),
        lambda p: stats.skewnorm(p.alpha, p.loc, p.scale),
        coupled=False,
    ),
    Case(dist.SinhArcsinh, ("loc", "scale", "skew", "tailweight"), _sinh_arcsinh),
    Case(dist.SoftLaplace, ("loc", "scale"), lambda p: stats.hypsecant(p.loc, p.scale)),
    Case(dist.Moyal, ("loc", "scale"), lambda p: stats.moyal(p.loc, p.scale)),
    Case(
        dist.GeneralizedNormal,
        ("loc", "scale", "power"),
        lambda p: stats.gennorm(p.power, p.loc, p.scale),
        coupled=False,
    ),
    Case(
        dist.JohnsonSU,
        ("skew", "tailweight", "loc", "scale"),
        lambda p: stats.johnsonsu(p.skew, p.tailweight, p.loc, p.scale),
    ),
    Case(
        dist.Gompertz,
        ("concentration", "rate"),
        lambda p: stats.gompertz(p.concentration, scale=1 / p.rate),
    ),
    Case(dist.Levy, ("loc", "scale"), lambda p: stats.levy(p.loc, p.scale), bounds=("loc",)),
    Case(
        dist.LogLogistic,
        ("scale", "concentration"),
        lambda p: stats.fisk(p.concentration, scale=p.scale),
    ),
    Case(
        dist.Frechet,
        ("concentration", "scale"),
        _frechet,
    ),
    Case(
        dist.Dagum,
        ("concentration", "sharpness", "scale"),
        lambda p: _with_entropy(stats.burr(p.sharpness, p.concentration, scale=p.scale)),
    ),
    Case(
        dist.Burr,
        ("concentration", "sharpness", "scale"),
        lambda p: _with_entropy(stats.burr12(p.sharpness, p.concentration, scale=p.scale)),
    ),
    Case(dist.Rayleigh, ("scale",), lambda p: stats.rayleigh(scale=p.scale)),
    Case(dist.Maxwell, ("scale",), lambda p: stats.maxwell(scale=p.scale)),
    Case(dist.Chi, ("df",), lambda p: stats.chi(p.df)),
    Case(
        dist.HalfStudentT,
        ("df", "scale"),
        _half_t,
        coupled=False,
    ),
    Case(dist.FisherSnedecor, ("df1", "df2"), lambda p: stats.f(p.df1, p.df2), coupled=False),
    Case(
        dist.InverseGaussian,
        ("loc", "concentration"),
        lambda p: stats.invgauss(p.loc / p.concentration, scale=p.concentration),
    ),
    Case(dist.Kumaraswamy, ("concentration1", "concentration0"), _kumaraswamy),
    Case(dist.LogitNormal, ("loc", "scale"), lambda p: through_sigmoid(stats.norm(p.loc, p.scale))),
    Case(
        dist.RelaxedBernoulli,
        ("temperature", "probs"),
        lambda p: through_sigmoid(
            stats.logistic(special.logit(p.probs) / p.temperature, 1 / p.temperature)
        ),
    ),
    Case(
        dist.RelaxedBernoulli,
        ("temperature", "logits"),
        lambda p: through_sigmoid(stats.logistic(p.logits / p.temperature, 1 / p.temperature)),
    ),
    Case(
        dist.ContinuousBernoulli,
        ("probs",),
        lambda p: _continuous_bernoulli(p.probs),
        {"lims": (0.499, 0.501)},
    ),
    Case(
        dist.ContinuousBernoulli,
        ("logits",),
        lambda p: _continuous_bernoulli(sigmoid(p.logits)),
        {"lims": (0.499, 0.501)},
    ),
    Case(
        dist.Triangular,
        ("low", "high", "peak"),
        lambda p: stats.triang((p.peak - p.low) / (p.high - p.low), p.low, p.high - p.low),
        bounds=("low", "high"),
    ),
    Case(
        dist.DoublyTruncatedPowerLaw,
        ("alpha", "low", "high"),
        _power_law,
        bounds=("low", "high"),
    ),
    Case(
        dist.LogUniform,
        ("low", "high"),
        lambda p: stats.loguniform(p.low, p.high),
        bounds=("low", "high"),
    ),
    Case(
        dist.LowerTruncatedPowerLaw,
        ("alpha", "low"),
        lambda p: stats.pareto(-1 - p.alpha, scale=p.low),
        bounds=("low",),
    ),
    Case(
        dist.GeneralizedPareto,
        ("loc", "scale", "concentration"),
        lambda p: stats.genpareto(p.concentration, p.loc, p.scale),
        bounds=("loc", "scale", "concentration"),
    ),
    Case(
        dist.GeneralizedExtremeValue,
        ("loc", "scale", "concentration"),
        lambda p: stats.genextreme(-p.concentration, p.loc, p.scale),
        bounds=("loc", "scale", "concentration"),
    ),
    Case(
        dist.BetaNegativeBinomial,
        ("concentration1", "n"),
        _beta_negative_binomial,
        {"concentration0": 12.0},
    ),
    Case(dist.DiscreteWeibull, ("q", "beta"), _discrete_weibull),
    Case(dist.YuleSimon, ("alpha",), lambda p: stats.yulesimon(p.alpha), least={"alpha": 5.0}),
    Case(
        dist.LowRankMultivariateNormal,
        ("loc", "cov_factor", "cov_diag"),
        _low_rank,
        sizes={"loc": (2,), "cov_factor": (2, 1), "cov_diag": (2,)},
    ),
    Case(
        dist.MultivariateStudentT,
        ("df", "loc", "scale_tril"),
        _multivariate_t,
        sizes={"loc": (2,), "scale_tril": (2, 2)},
        least={"df": 8.0},
    ),
    Case(dist.GaussianRandomWalk, ("scale",), _walk, {"num_steps": 2}),
    Case(dist.ZeroSumNormal, ("scale",), _zero_sum, {"event_shape_": (3,)}),
    Case(
        dist.RelaxedOneHotCategorical,
        ("temperature", "probs"),
        lambda p: _relaxed_one_hot(p.probs, p.temperature),
        sizes={"probs": (3,)},
    ),
    Case(
        dist.RelaxedOneHotCategorical,
        ("temperature", "logits"),
        lambda p: _relaxed_one_hot(np.exp(p.logits), p.temperature),
        sizes={"logits": (3,)},
    ),
    Case(
        dist.DirichletMultinomial,
        ("concentration",),
        lambda p: _dirichlet_multinomial(p.concentration),
        {"total_count": 5},
        {"concentration": (3,)},
    ),
    Case(
        dist.LKJ,
        ("concentration",),
        lambda p: _correlations(p.concentration),
        {"dim": 3},
        narrow=True,
    ),
]

for _cls, _reference in (
    (dist.Wishart, _wishart),
    (dist.WishartCholesky, _wishart_factor),
):
    for _name, _cov in (
        ("covariance_matrix", lambda m: m),
        ("precision_matrix", np.linalg.inv),
        ("scale_tril", _outer),
    ):
        FURTHER.append(
            Case(
                _cls,
                ("df", _name),
                lambda p, n=_name, r=_reference, c=_cov: r(p.df, c(getattr(p, n))),
                sizes={_name: (2, 2)},
                least={"df": 2.0},
                narrow=True,
            )
        )
for _cls, _reference in (
    (dist.InverseWishart, _inverse_wishart),
    (dist.InverseWishartCholesky, _inverse_wishart_factor),
):
    for _name, _cov in (
        ("scale_matrix", lambda m: m),
        ("rate_matrix", np.linalg.inv),
        ("scale_tril", _outer),
    ):
        FURTHER.append(
            Case(
                _cls,
                ("df", _name),
                lambda p, n=_name, r=_reference, c=_cov: r(p.df, c(getattr(p, n))),
                sizes={_name: (2, 2)},
                least={"df": 12.0},
                narrow=True,
            )
        )
FURTHER += RAREST
FURTHER += VECTORS
