"""Twins in mpmath of the distributions in tests/distributions/rarest_cases.py."""

import mpmath
from mpmath import mpf

from tests.contracts.density_oracles import log_beta, log_i0, normal, student
from tests.contracts.integral_oracles import noncentral_chi2

__all__ = ["RAREST"]

log, exp, lgamma, sqrt = mpmath.log, mpmath.exp, mpmath.loggamma, mpmath.sqrt


def rice(nu, scale, x):
    y, m = x / scale, nu / scale
    return log(y / scale) - (y * y + m * m) / 2 + log_i0(y * m)


def noncentral_t(df, nc, loc, scale, x):
    """The integral over u = log(s) of s times a normal density at s t - nc, for a chi s.

    By the trapezium rule, to 1e-30, in w with u = u0 + width (w + 1 - exp(-w)).
    """
    t = (x - loc) / scale
    size, m = t * t + df, t * nc
    s0 = (m + sqrt(m * m + 4 * size * (df + 1))) / (2 * size)
    u0, width = log(s0), 1 / sqrt(size * s0 * s0 + df + 1)
    height = lambda u: u * (1 + df) - (t * exp(u) - nc) ** 2 / 2 - df * exp(2 * u) / 2
    top, step, total = height(u0), mpf(20) / 300, mpf(0)
    for k in range(301):
        w = k * step - 6
        e = exp(-w)
        total += exp(height(u0 + width * (w + 1 - e)) - top) * (1 + e)
    a = df / 2
    constant = log(2 / mpmath.pi) / 2 + a * log(a) - lgamma(a) - log(scale)
    return top + log(total * step * width) + constant


def generalized_poisson(m, c, k):
    rate = m + k * c
    return log(m) + (k - 1) * log(rate) - rate - lgamma(k + 1)


def log_k1(x):
    """Of the modified Bessel function, by the trapezium rule on its integral over cosh: to 1e-110,
    a hundred times faster than mpmath's for arguments around 30.
    """
    top = mpmath.acosh(1 + 290 / x)
    count = max(int(28 * top), 300)
    h = top / count
    total, last, here = mpf(1) / 2, mpf(1), mpmath.cosh(h)
    twice = 2 * here
    for _ in range(count):
        total += exp(x * (1 - here)) * here
        last, here = here, twice * here - last
    return log(total * h) - x


def normal_inverse_gaussian(loc, d, a, b, x):
    z = x - loc
    q, c = sqrt(d * d + z * z), sqrt(a * a - b * b)
    return log(a * d / (mpmath.pi * q)) + log_k1(a * q) + d * c + b * z


def log_gamma(a, rate, x):
    y = x + log(rate)
    return a * y - exp(y) - lgamma(a)


def log_odds(a, b, y):
    return a * y - (a + b) * mpmath.log1p(exp(y)) - log_beta(a, b)


def skew_t(a, b, loc, scale, x):
    size = scale * sqrt(a + b)
    z = (x - loc) / size
    return log_odds(a, b, 2 * mpmath.asinh(z)) + log(2 / size) - mpmath.log1p(z * z) / 2


def two_piece(loc, scale, k, x, whole):
    low, high = scale / k, scale * k
    return whole((x - loc) / (low if x < loc else high)) + log(2 / (low + high))


def bates(low, high, x):
    y = 3 * (x - low) / (high - low)
    sum_ = mpf(0)
    for k in range(4):
        if y > k:
            sum_ += (-1) ** k * mpmath.binomial(3, k) * (y - k) ** 2
    return log(sum_ / 2) + log(3 / (high - low))


def lambert_w_normal(loc, scale, d, x):
    z = (x - loc) / scale
    w = mpmath.lambertw(d * z * z).real
    u = sqrt(w / d) if d else z
    return normal(mpf(0), mpf(1), u) - w / 2 - mpmath.log1p(w) - log(scale)


def beta_quotient(a, b, c, d, x):
    if x > 1:
        return beta_quotient(c, d, a, b, 1 / x) - 2 * log(x)
    sizes = log_beta(a + c, d) - log_beta(a, b) - log_beta(c, d)
    return sizes + (a - 1) * log(x) + log(mpmath.hyp2f1(a + c, 1 - b, a + c + d, x))


def extended_pareto(loc, scale, c, kappa, x):
    z = (x - loc) / scale
    t = mpmath.log1p(c * z) / c if c else z
    return log(kappa) + (kappa - 1) * log(-mpmath.expm1(-t)) - (1 + c) * t - log(scale)


RAREST = {
    "ExtendedGeneralizedPareto": extended_pareto,
    "BetaQuotient": beta_quotient,
    "LambertWNormal": lambert_w_normal,
    "Bates": bates,
    "DoublesidedMaxwell": lambda m, s, x: normal(m, s, x) + 2 * log(abs(x - m) / s),
    "ExpGamma": log_gamma,
    "ExpInverseGamma": lambda a, rate, x: log_gamma(a, rate, -x),
    "GammaGamma": lambda a, b, s, x: log_odds(a, b, log(x / s)) - log(x),
    "SigmoidBeta": log_odds,
    "SkewStudentT": skew_t,
    "TwoPieceNormal": lambda m, s, k, x: two_piece(m, s, k, x, lambda y: normal(0, mpf(1), y)),
    "TwoPieceStudentT": lambda df, m, s, k, x: two_piece(
        m, s, k, x, lambda y: student(df, mpf(0), mpf(1), y)
    ),
    "GeneralizedPoisson": generalized_poisson,
    "NoncentralChi2": noncentral_chi2,
    "NoncentralT": noncentral_t,
    "NormalInverseGaussian": normal_inverse_gaussian,
    "Rice": rice,
    "Zipf": lambda s, k: -s * log(k) - log(mpmath.zeta(s)),
}
