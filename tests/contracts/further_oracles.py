"""Twins in mpmath of the rarer distributions' log densities: parameters in the order of the case.

Densities are written from their definitions, with as many digits as it takes: none of the forms
that keep digits is repeated here.
"""

import mpmath
from mpmath import mpf

from tests.contracts.density_oracles import (
    log_beta,
    log_gamma_density,
    log_sigmoid,
    logistic,
    normal,
    student,
)
from tests.contracts.integral_oracles import discrete_weibull
from tests.contracts.rarest_oracles import RAREST

__all__ = ["EXACT"]

log, log1p, exp, expm1, lgamma, sqrt = (
    mpmath.log,
    mpmath.log1p,
    mpmath.exp,
    mpmath.expm1,
    mpmath.loggamma,
    mpmath.sqrt,
)
PI = mpmath.pi


def log_ndtr(z):
    if z > -(mpf(10) ** 20):
        return log(mpmath.erfc(-z / sqrt(2)) / 2)
    # Where mpmath's own would overflow: the asymptotic series, whose terms fall by 1e-40.
    term, series = mpf(1), mpf(1)
    for k in range(1, 12):
        term *= -(2 * k - 1) / (z * z)
        series += term
    return -z * z / 2 - log(-z * sqrt(2 * PI)) + log(series)


def two_sided(left, right, z):
    return (z / left if z < 0 else -z / right) - log(left + right)


def tilted(z, s, r):
    return -z / r + s * s / (2 * r * r) + log_ndtr(z / s - s / r)


def soft(loc, scale, asymmetry, softness, x):
    left, right, s, z = scale * asymmetry, scale / asymmetry, scale * softness, x - loc
    return log((exp(tilted(z, s, right)) + exp(tilted(-z, s, left))) / (left + right))


def skew_logistic(loc, scale, a, x):
    z = (loc - x) / scale
    return log(a / scale) + z - (a + 1) * log1p(exp(z))


def johnson(skew, tail, loc, scale, x):
    z = (x - loc) / scale
    slope = log(tail / scale) - log1p(z * z) / 2
    return normal(mpf(0), mpf(1), skew + tail * mpmath.asinh(z)) + slope


def sinh_arcsinh(loc, scale, skew, tail, x):
    size = scale * 2 / mpmath.sinh(tail * mpmath.asinh(2))
    y = (x - loc) / size
    inner = mpmath.asinh(y) / tail - skew
    slope = log(mpmath.cosh(inner)) - log1p(y * y) / 2 - log(tail * size)
    return normal(mpf(0), mpf(1), mpmath.sinh(inner)) + slope


def moyal(loc, scale, x):
    z = (x - loc) / scale
    return -(z + exp(-z)) / 2 - log(scale) - log(2 * PI) / 2


def levy(loc, scale, x):
    z = x - loc
    return log(scale / (2 * PI)) / 2 - scale / (2 * z) - 3 * log(z) / 2


def burr(c, a, scale, x):
    y = x / scale
    return log(a * c / x) + a * log(y) - (c + 1) * log1p(y**a)


def dagum(c, a, scale, x):
    y = x / scale
    return log(a * c / x) + a * c * log(y) - (c + 1) * log1p(y**a)


def f_density(d1, d2, x):
    a, b, y = d1 / 2, d2 / 2, d1 * x / d2
    return a * log(y) - (a + b) * log1p(y) - log_beta(a, b) - log(x)


def inverse_gaussian(m, c, x):
    return log(c / (2 * PI * x**3)) / 2 - c * (x - m) ** 2 / (2 * m * m * x)


def through_sigmoid(density, x):
    return density(log(x) - log1p(-x)) - log(x) - log1p(-x)


def relaxed(t, logits, x):
    return through_sigmoid(lambda y: logistic(logits / t, 1 / t, y), x)


def tilt(slope, x):
    return slope * x + (log(slope / expm1(slope)) if slope else 0)


def power_law(alpha, low, high, x):
    b = alpha + 1
    size = (high**b - low**b) / b if b else log(high / low)
    return alpha * log(x) - log(size)


def pareto(loc, scale, c, x):
    z = (x - loc) / scale
    if not c:
        return -z - log(scale)
    return -(1 + 1 / c) * log1p(c * z) - log(scale)


def extreme(loc, scale, c, x):
    z = (x - loc) / scale
    t = log1p(c * z) / c if c else z
    return -(1 + c) * t - exp(-t) - log(scale)


def triangular(low, high, peak, x):
    side = (x - low) / (peak - low) if x < peak else (high - x) / (high - peak)
    return log(2 * side / (high - low))


def kumaraswamy(a, b, x):
    return log(a * b) + (a - 1) * log(x) + (b - 1) * log(1 - x**a)


def beta_negative_binomial(a, n, k):
    b = mpf(12)
    return lgamma(n + k) - lgamma(n) - lgamma(k + 1) + log_beta(a + k, b + n) - log_beta(a, b)


def odds(p):
    return log(p) - log1p(-p)


EXACT = {
    "AsymmetricLaplace": lambda m, s, a, x: two_sided(s * a, s / a, x - m),
    "AsymmetricLaplaceQuantile": lambda m, s, q, x: two_sided(s / (1 - q), s / q, x - m),
    "BetaNegativeBinomial": beta_negative_binomial,
    "Burr": burr,
    "Chi": lambda df, x: log_gamma_density(df / 2, mpf(1), x * x / 2) + log(x),
    "ContinuousBernoulli-logits": tilt,
    "ContinuousBernoulli-probs": lambda p, x: tilt(odds(p), x),
    "Dagum": dagum,
    "DiscreteWeibull": discrete_weibull,
    "DoublyTruncatedPowerLaw": power_law,
    "ExGaussian": lambda m, s, r, x: tilted(x - m, s, r) - log(r),
    "FisherSnedecor": f_density,
    "Frechet": lambda c, s, x: log(c / x) - c * log(x / s) - (x / s) ** -c,
    "GeneralizedExtremeValue": extreme,
    "GeneralizedNormal": lambda m, s, b, x: (
        -(abs((x - m) / s) ** b) - log(2 * s) - lgamma(1 + 1 / b)
    ),
    "GeneralizedPareto": pareto,
    "Gompertz": lambda c, r, x: log(c * r) + r * x - c * expm1(r * x),
    "HalfStudentT": lambda df, s, x: student(df, mpf(0), s, x) + log(2),
    "InverseGaussian": inverse_gaussian,
    "JohnsonSU": johnson,
    "Kumaraswamy": kumaraswamy,
    "Levy": levy,
    "LogLogistic": lambda s, c, x: log(c / x) + 2 * log_sigmoid(c * log(x / s)) - c * log(x / s),
    "LogUniform": lambda low, high, x: -log(x) - log(log(high / low)),
    "LogitNormal": lambda m, s, x: through_sigmoid(lambda y: normal(m, s, y), x),
    "LowerTruncatedPowerLaw": lambda a, low, x: a * log(x) + log(-a - 1) - (a + 1) * log(low),
    "Maxwell": lambda s, x: log(2 / PI) / 2 + 2 * log(x) - 3 * log(s) - x * x / (2 * s * s),
    "Moyal": moyal,
    "Rayleigh": lambda s, x: log(x) - 2 * log(s) - x * x / (2 * s * s),
    "RelaxedBernoulli-logits": relaxed,
    "RelaxedBernoulli-probs": lambda t, p, x: relaxed(t, odds(p), x),
    "SinhArcsinh": sinh_arcsinh,
    "SkewLogistic": skew_logistic,
    "SkewNormal": lambda m, s, a, x: normal(m, s, x) + log_ndtr(a * (x - m) / s) + log(2),
    "SoftAsymmetricLaplace": soft,
    "SoftLaplace": lambda m, s, x: log(2 / (PI * s)) - log(2 * mpmath.cosh((x - m) / s)),
    "Triangular": triangular,
    "YuleSimon": lambda a, k: log(a) + log_beta(k, a + 1),
}
EXACT |= RAREST
