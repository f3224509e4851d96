"""Entries of distributions that PyMC, Stan and TFP have beyond the usual libraries."""

import mpmath
import numpy as np
from scipy import special, stats

import probtorch.distributions as dist
from tests.distributions.cases import Case, Rows, _outer
from tests.distributions.references import (
    Density,
    Masses,
    Stated,
    Through,
    Vector,
    on_line,
    on_positive,
)

__all__ = ["RAREST"]


def _zipf_entropy(a):
    size = mpmath.zeta(a)
    return float(mpmath.log(size) - a * mpmath.zeta(a, derivative=1) / size)


def _zipf(s):
    zeta = special.zeta
    raw = lambda k: np.where(s > k + 1, zeta(np.where(s > k + 1, s - k, 3.0)) / zeta(s), np.inf)
    square = lambda: np.where(s > 3, raw(2) - np.where(s > 3, raw(1), 0.0) ** 2, np.inf)
    sf = lambda k: np.where(k < 1, 1.0, zeta(s, np.maximum(np.floor(k), 0) + 1) / zeta(s))
    return Stated(
        None,
        logpmf=lambda k: -s * np.log(k) - np.log(zeta(s)),
        cdf=lambda k: 1 - sf(k),
        sf=sf,
        ppf=lambda q: np.full(len(s), 3000.0),
        mean=lambda: raw(1),
        var=square,
        entropy=lambda: np.array([_zipf_entropy(a) for a in s]),
    )


def _generalized_poisson(m, c):
    def logpmf(k):
        rate = m + k * c
        return np.log(m) + (k - 1) * np.log(rate) - rate - special.gammaln(k + 1)

    return Masses(logpmf, top=3000)


def _inverse_gaussian_mixture(p):
    scaled = p.tailweight * p.scale, p.skewness_ * p.scale
    return on_line(stats.norminvgauss(*scaled, p.loc, p.scale).logpdf)


def _laplace_vectors(p):
    cov = _outer(p.scale_tril)
    sd = np.sqrt(np.diagonal(cov, 0, -2, -1))

    def logpdf(m, c):
        n = len(m)
        order, size = 1 - n / 2, np.log(2) - n / 2 * np.log(2 * np.pi) - np.linalg.slogdet(c)[1] / 2

        def log(x):
            q = (x - m) @ np.linalg.solve(c, x - m)
            return size + order / 2 * np.log(q / 2) + np.log(special.kv(order, np.sqrt(2 * q)))

        return Vector(log)

    marginals = lambda x: [
        (x[..., k], stats.laplace(p.loc[:, k], sd[:, k] / np.sqrt(2))) for k in range(2)
    ]
    return Rows([logpdf(m, c) for m, c in zip(p.loc, cov, strict=True)], marginals)


def _log_gamma(p, sign=1.0):
    a, shift = p.concentration, np.log(p.rate)
    return on_line(lambda x: a * (sign * x + shift) - np.exp(sign * x + shift) - special.gammaln(a))


def _log_odds(a, b):
    return lambda y: a * y - (a + b) * np.logaddexp(0, y) - special.betaln(a, b)


def _beta_prime(p):
    log = _log_odds(p.concentration, p.mixing_concentration)
    return Density(
        lambda x: log(np.log(x / p.mixing_rate)) - np.log(x), np.exp, np.log, np.exp, 150.0, 3
    )


def _beta_quotient(p):
    # Pham-Gia (2000): a hypergeometric function on either side of 1.
    a, b = p.concentration1_numerator, p.concentration0_numerator
    c, d = p.concentration1_denominator, p.concentration0_denominator

    def side(x, a, b, c, d):
        sizes = special.betaln(a + c, d) - special.betaln(a, b) - special.betaln(c, d)
        rise = special.hyp2f1(a + c, 1 - b, a + c + d, x)
        return sizes + (a - 1) * np.log(x) + np.log(rise)

    def logpdf(x):
        low, high = np.minimum(x, 1.0), np.minimum(1 / x, 1.0)
        return np.where(x <= 1, side(low, a, b, c, d), side(high, c, d, a, b) + 2 * np.log(high))

    return on_positive(logpdf)


def _skew_t(p):
    size, log = p.scale * np.sqrt(p.a + p.b), _log_odds(p.a, p.b)

    def logpdf(x):
        z = (x - p.loc) / size
        return log(2 * np.arcsinh(z)) + np.log(2 / size) - 0.5 * np.log1p(z * z)

    return Density(logpdf, np.sinh, np.arcsinh, np.cosh, 40.0, 3)


def _extended_pareto(p):
    # The power of a cdf; moments by Gauss's rule over the log odds of levels.
    c, k, h = p.concentration, p.kappa, stats.genpareto(p.concentration, p.loc, p.scale)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    odds = (np.arange(-60, 700, 0.5)[:, None] + 0.25 + 0.25 * nodes).reshape(-1, 1)
    level, rest = special.expit(odds), special.expit(-odds)
    mass = np.tile(0.25 * weights, 1520)[:, None] * level * rest
    # The exponential number at a level, from the nearer end of the levels.
    high = -np.expm1(np.log1p(-np.minimum(rest, 0.5)) / k)
    low = np.exp(np.log(np.minimum(level, 0.5)) / k)
    t = np.where(odds < 0, -np.log1p(-low), -np.log(high))
    excess = p.scale * np.expm1(c * t) / c
    height = (k - 1) * np.log(-np.expm1(-t)) - (1 + c) * t + np.log(k / p.scale)

    def moment(n):
        x = np.where(c * n < 1, excess, 0.0)
        return np.where(c * n < 1, (mass * x**n).sum(0), np.inf)

    def standard(letter):
        raw = [moment(n) for n in (1, 2, 3, 4)]
        a, b, third, fourth = raw
        with np.errstate(invalid="ignore"):
            v = b - a * a
            if letter == "s":
                value = (third - 3 * a * b + 2 * a**3) / v**1.5
                return np.where(3 * c < 1, value, np.inf)
            value = (fourth - 4 * a * third + 6 * a * a * b - 3 * a**4) / v**2 - 3
        return np.where(4 * c < 1, value, np.inf)

    return Stated(
        None,
        logpdf=lambda x: np.log(k) + (k - 1) * h.logcdf(x) + h.logpdf(x),
        cdf=lambda x: h.cdf(x) ** k,
        sf=lambda x: -np.expm1(k * h.logcdf(x)),
        ppf=lambda q: h.ppf(q ** (1 / k)),
        mean=lambda: p.loc + moment(1),
        var=lambda: moment(2) - np.where(c < 0.5, moment(1), 0.0) ** 2,
        stats=standard,
        entropy=lambda: -(mass * height).sum(0),
    )


def _two_piece(p, whole, size):
    low, high = p.scale / p.asymmetry, p.scale * p.asymmetry
    share = low / (low + high)
    scaled = lambda x: np.where(x < p.loc, (x - p.loc) / low, (x - p.loc) / high)
    cubes = (low**3 + high**3) / (low + high)
    upper = lambda x: 2 * (1 - share) * whole.sf(scaled(x))
    lower = lambda x: 2 * share * whole.cdf(scaled(x))

    def ppf(q):
        below = p.loc + low * whole.ppf(np.minimum(q / (2 * share), 0.5))
        above = p.loc - high * whole.ppf(np.minimum((1 - q) / (2 * (1 - share)), 0.5))
        return np.where(q < share, below, above)

    return Stated(
        None,
        logpdf=lambda x: whole.logpdf(scaled(x)) + np.log(2 / (low + high)),
        cdf=lambda x: np.where(x < p.loc, lower(x), 1 - upper(x)),
        sf=lambda x: np.where(x < p.loc, 1 - lower(x), upper(x)),
        ppf=ppf,
        mean=lambda: p.loc + (high - low) * size,
        var=lambda: cubes * whole.var() - ((high - low) * size) ** 2,
        entropy=lambda: whole.entropy() + np.log((low + high) / 2),
    )


def _mean_size_of_t(df):
    logs = special.gammaln((df + 1) / 2) - special.gammaln(df / 2)
    return 2 * np.sqrt(df / np.pi) * np.exp(logs) / (df - 1)


def _sticks(alpha, breaks):
    def logpdf(a):
        def log(w):
            left = np.cumsum(w[::-1])[::-1]
            shares = w[:-1] / left[:-1]
            return stats.beta(1, a).logpdf(shares).sum() - np.log(left[1:-1]).sum()

        return Vector(log)

    marginals = lambda x: [
        (x[..., 0], stats.beta(1, alpha)),
        (-np.log(x[..., -1]), stats.gamma(breaks, scale=1 / alpha)),
    ]
    rows = Rows([logpdf(a) for a in alpha], marginals)
    n = breaks
    each = (alpha - 1) / alpha - np.log(alpha)
    rows.entropy = lambda: n * each - n * (n - 1) / 2 / alpha
    return rows


def _bates(p):
    width = p.high - p.low
    return Stated(
        stats.irwinhall(np.full(3, 3), loc=p.low, scale=width / 3),
        mean=lambda: (p.low + p.high) / 2,
        var=lambda: width**2 / 36,
        stats=lambda letter: np.full(3, 0.0 if letter == "s" else -0.4),
    )


def _lambert_w(p):
    d = p.tailweight

    def back(x):
        z = (x - p.loc) / p.scale
        with np.errstate(invalid="ignore"):
            w = special.lambertw(np.where(np.isfinite(z), d * z * z, 1.0)).real
            return np.where(np.isfinite(z), np.sign(z) * np.sqrt(w / d), z)

    slope = lambda x: -np.log(p.scale) - 0.5 * d * back(x) ** 2 - np.log1p(d * back(x) ** 2)
    place = lambda u: p.loc + p.scale * u * np.exp(0.5 * d * u * u)
    spread = np.where(d < 0.5, np.where(d < 0.5, 1 - 2 * d, 1.0) ** -1.5, np.inf)
    return Stated(
        Through(stats.norm(np.zeros(3), 1.0), place, back, slope),
        mean=lambda: np.where(d < 1, p.loc, np.nan),
        var=lambda: np.where(d < 1, p.scale**2 * spread, np.nan),
        stats=lambda letter: (
            np.where(d < 1 / 3, 0.0, np.nan)
            if letter == "s"
            else np.where(
                d < 0.25,
                3 * (1 - 2 * d) ** 3 / np.where(d < 0.25, 1 - 4 * d, 1.0) ** 2.5 - 3,
                np.inf,
            )
        ),
    )


RAREST = [
    Case(dist.LambertWNormal, ("loc", "scale", "tailweight"), _lambert_w),
    Case(
        dist.StickBreakingWeights,
        ("alpha",),
        lambda p: _sticks(p.alpha, 2),
        {"K": 2},
    ),
    Case(
        dist.Bates,
        ("low", "high"),
        _bates,
        {"total_count": 3},
        bounds=("low", "high"),
    ),
    Case(
        dist.TwoPieceNormal,
        ("loc", "scale", "asymmetry"),
        lambda p: _two_piece(p, stats.norm(np.zeros(3)), np.sqrt(2 / np.pi)),
    ),
    Case(
        dist.TwoPieceStudentT,
        ("df", "loc", "scale", "asymmetry"),
        lambda p: _two_piece(p, stats.t(p.df), _mean_size_of_t(p.df)),
        least={"df": 2.5},
    ),
    Case(
        dist.DoublesidedMaxwell,
        ("loc", "scale"),
        lambda p: on_line(
            lambda x: stats.norm(p.loc, p.scale).logpdf(x) + 2 * np.log(np.abs(x - p.loc) / p.scale)
        ),
    ),
    Case(dist.ExpGamma, ("concentration", "rate"), _log_gamma),
    Case(dist.ExpInverseGamma, ("concentration", "rate"), lambda p: _log_gamma(p, -1.0)),
    Case(
        dist.GammaGamma,
        ("concentration", "mixing_concentration", "mixing_rate"),
        _beta_prime,
        least={"mixing_concentration": 3.0},
        coupled=False,
    ),
    Case(
        dist.SigmoidBeta,
        ("concentration1", "concentration0"),
        lambda p: on_line(_log_odds(p.concentration1, p.concentration0)),
        coupled=False,
    ),
    Case(
        dist.SkewStudentT,
        ("a", "b", "loc", "scale"),
        _skew_t,
        least={"a": 2.0, "b": 2.0},
        coupled=False,
    ),
    Case(
        dist.NormalInverseGaussian,
        ("loc", "scale", "tailweight", "skewness_"),
        _inverse_gaussian_mixture,
        coupled=False,
        costly=True,
    ),
    Case(
        dist.MultivariateLaplace,
        ("loc", "scale_tril"),
        _laplace_vectors,
        sizes={"loc": (2,), "scale_tril": (2, 2)},
        narrow=True,
        coupled=False,
    ),
    Case(
        dist.Rice,
        ("nu", "scale"),
        lambda p: stats.rice(p.nu / p.scale, scale=p.scale),
        coupled=False,
    ),
    Case(
        dist.NoncentralChi2,
        ("df", "nc"),
        lambda p: stats.ncx2(p.df, p.nc),
        coupled=False,
        costly=True,
    ),
    Case(
        dist.NoncentralT,
        ("df", "nc", "loc", "scale"),
        lambda p: stats.nct(p.df, p.nc, p.loc, p.scale),
        coupled=False,
        costly=True,
    ),
    Case(
        dist.ExtendedGeneralizedPareto,
        ("loc", "scale", "concentration", "kappa"),
        _extended_pareto,
        bounds=("loc", "scale", "concentration"),
    ),
    Case(dist.Zipf, ("power",), lambda p: _zipf(p.power), least={"power": 5.0}),
    Case(
        dist.GeneralizedPoisson,
        ("rate", "excess"),
        lambda p: _generalized_poisson(p.rate, p.excess),
        costly=True,
    ),
    Case(
        dist.BetaQuotient,
        (
            "concentration1_numerator",
            "concentration0_numerator",
            "concentration1_denominator",
            "concentration0_denominator",
        ),
        _beta_quotient,
        coupled=False,
        # Smooth at 1, so that the reference's integrals are exact.
        least={
            "concentration1_numerator": 1.0,
            "concentration0_numerator": 5.0,
            "concentration1_denominator": 8.0,
            "concentration0_denominator": 5.0,
        },
        costly=True,
    ),
]
