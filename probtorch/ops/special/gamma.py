"""Gamma, beta and their logarithmic derivatives, also as differences that do not cancel.

Densities of counts, and of what is gamma or beta distributed, are made of two kinds of ops: a
kernel (`poisson_kernel` and its kin) holds all that is large in the plain form, and is near 0 where
the density is high; a rest (`gamma_rest`, `factorial_rest`, `stirling_rest`) is what a lgamma has
beside. Formulas are in ops/stirling.py.
"""

import math

import numpy as np

from probtorch.backends.registry import array_module, device_of, to_device
from probtorch.core.dispatch import as_tensor
from probtorch.errors import ArgumentError
from probtorch.ops.elementwise import (
    eq,
    ge,
    log,
    logical_and,
    maximum,
    sigmoid,
    softplus,
    to_float,
    where,
)
from probtorch.ops.families import elementwise
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum
from probtorch.ops.scalar import special_function
from probtorch.ops.special.declaration import quiet, scipy_value, tensor_like
from probtorch.ops.stirling import (
    deviance,
    digamma_less_log,
    digamma_step,
    lgamma_less_power,
    lgamma_step,
)

__all__ = [
    "beta_kernel",
    "betaln",
    "binomial_kernel",
    "binomial_logits_kernel",
    "digamma",
    "digamma_difference",
    "factorial_rest",
    "gamma_kernel",
    "gamma_rest",
    "gammaln",
    "lgamma",
    "lgamma_difference",
    "multigammaln",
    "poisson_kernel",
    "polygamma",
    "psi",
    "stirling_rest",
    "zeta",
]

# Below it SciPy's function overflows on the way to its finite value; the factor is 2**60.
_TINY, _FACTOR = 1e-290, 2.0**60
_scipy_lgamma = special_function("gammaln")


def _lgamma(s, x):
    # lgamma(x) = -log(x) near 0, so a factor of the argument is a term of the value. At -inf the
    # value is inf, the limit of the poles; SciPy says -inf.
    tiny = s.abs(x) < _TINY
    safe = s.where(x == -math.inf, math.inf, s.where(tiny, x * _FACTOR, x))
    return s.lgamma(safe) + s.where(tiny & (x != 0.0), math.log(_FACTOR), 0.0)


def _eager_lgamma(x):
    out = _scipy_lgamma(x)
    if array_module(x).isfinite(out).all():
        return out
    return quiet(_lgamma)(x)


lgamma = elementwise(
    "lgamma",
    formula=_lgamma,
    partials=(lambda g, _, x: g * digamma(x),),
    domain=("positive",),
    eager=_eager_lgamma,
    reference=lambda x: scipy_value("loggamma", x + 0j).real,
    result="float",
    doc="Logarithm of the absolute value of the gamma function.",
)
gammaln = lgamma
digamma = elementwise(
    "digamma",
    formula=lambda s, x: s.digamma(x),
    partials=(lambda g, _, x: g * polygamma(1, x),),
    domain=("positive",),
    eager="special.digamma",
    reference=lambda x: scipy_value("psi", x + 0j).real,
    result="float",
    doc="Derivative of lgamma.",
)
psi = digamma


def _zeta_reference(x, q):
    # Two hundred terms, then Euler-Maclaurin: the first term left out is below 1e-12.
    k = 200.0 + q
    head = np.sum([(q + i) ** -x for i in range(200)], axis=0)
    return head + k ** (1.0 - x) / (x - 1.0) + 0.5 * k**-x + x / 12.0 * k ** (-x - 1.0)


zeta = elementwise(
    "zeta",
    formula=lambda s, x, q: s.zeta(x, q),
    partials=(None, lambda g, _, x, q: g * (-x * zeta(x + 1.0, q))),
    domain=("above_one", "positive"),
    eager="special.zeta",
    reference=_zeta_reference,
    result="float",
    doc="Hurwitz zeta function, sum over k >= 0 of (k + q) ** -x; differentiable in q.",
)


def polygamma(n, x):
    """Derivative of order `n` of digamma.

    Parameters
    ----------
    n : int
        At least 0.
    x : Tensor

    Raises
    ------
    ArgumentError
        If `n` is not a nonnegative integer.
    """
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0:
        raise ArgumentError(
            "polygamma",
            expected="an integer order n >= 0",
            got=f"n = {n!r}",
            fix="the order comes first: polygamma(1, x) is trigamma",
        )
    x = to_float(as_tensor(x, "polygamma"))
    if n == 0:
        return digamma(x)
    # DLMF 5.15.1: psi^(n)(x) = (-1)^(n + 1) n! zeta(n + 1, x).
    return zeta(float(n + 1), x) * (-1.0) ** (n + 1) * float(math.factorial(n))


def multigammaln(a, p):
    """Logarithm of the multivariate gamma function of dimension `p`.

    Parameters
    ----------
    a : Tensor
        Above (p - 1) / 2.
    p : int

    Returns
    -------
    Tensor of the shape of `a`
    """
    if isinstance(p, bool) or not isinstance(p, (int, np.integer)) or p < 1:
        raise ArgumentError(
            "multigammaln",
            expected="an integer dimension p >= 1",
            got=f"p = {p!r}",
            fix="pass the size of the matrices, as in multigammaln(a, 3)",
        )
    a = to_float(as_tensor(a, "multigammaln"))
    half = _like(np.arange(int(p)) * 0.5, a)
    return sum(lgamma(unsqueeze(a, -1) - half), -1) + 0.25 * p * (p - 1) * math.log(math.pi)


def _like(array, x):
    """Return a NumPy array as a tensor in the dtype and on the device of `x`."""
    return as_tensor(to_device(np.asarray(array, x._data.dtype), device_of(x._data)))


def _lgamma_difference(s, x, y):
    return lgamma_step(s, s.wide(x), s.wide(y))


def _digamma_difference(s, x, y):
    return digamma_step(s, s.wide(x), s.wide(y))


lgamma_difference = elementwise(
    "lgamma_difference",
    formula=_lgamma_difference,
    partials=(
        lambda g, _, x, y: g * digamma_difference(x, y),
        lambda g, _, x, y: g * digamma(tensor_like(x + y, g)),
    ),
    domain=("positive", "positive"),
    eager=quiet(_lgamma_difference),
    reference=lambda x, y: scipy_value("gammaln", x + y) - scipy_value("gammaln", x),
    result="float",
    doc="lgamma(x + y) - lgamma(x), without the cancellation of the difference for large x.",
)
digamma_difference = elementwise(
    "digamma_difference",
    formula=_digamma_difference,
    partials=(
        lambda g, _, x, y: g * (polygamma(1, tensor_like(x + y, g)) - polygamma(1, x)),
        lambda g, _, x, y: g * polygamma(1, tensor_like(x + y, g)),
    ),
    domain=("positive", "positive"),
    eager=quiet(_digamma_difference),
    reference=lambda x, y: scipy_value("psi", x + y) - scipy_value("psi", x),
    result="float",
    doc="digamma(x + y) - digamma(x), without the cancellation of the difference for large x.",
)


# ------------------------------------------------------------------------ densities of counts


def _poisson_kernel(s, k, m):
    return deviance(s, s.wide(k), s.wide(m))


def _gamma_kernel(s, a, b, x):
    return deviance(s, s.wide(a) - 1.0, s.wide(b) * s.wide(x))


def _beta_kernel(s, a, b, x):
    # Any c would do in exact arithmetic; with this one all terms are small, and the log-derivative
    # in c is 0.
    a, b, x = s.wide(a), s.wide(b), s.wide(x)
    c = s.maximum(a + b - 1.0, 1.0)
    return deviance(s, a - 1.0, c * x) + deviance(s, b - 1.0, c * (1.0 - x)) + s.log(c)


def _binomial_kernel(s, k, l, p):
    k, l, p = s.wide(k), s.wide(l), s.wide(p)
    n = k + l
    return deviance(s, k, n * p) + deviance(s, l, n * (1.0 - p))


def _binomial_logits_kernel(s, k, l, x):
    k, l, x = s.wide(k), s.wide(l), s.wide(x)
    n, small = k + l, s.exp(-s.abs(x))
    # Of p and 1 - p the smaller and the larger, and their logarithms.
    high = 1.0 / (1.0 + small)
    low = small * high
    log_high = -s.log1p(small)
    log_low = log_high - s.abs(x)
    up = x > 0.0
    p, log_p = s.where(up, high, low), s.where(up, log_high, log_low)
    q, log_q = s.where(up, low, high), s.where(up, log_low, log_high)
    return deviance(s, k, n * p, lambda c: s.log(n / c) + log_p) + deviance(
        s, l, n * q, lambda c: s.log(n / c) + log_q
    )


def _log_of_ratio(m, k):
    """log(m / k), and log(m) for k < 1; 0 where both are 0."""
    none = logical_and(eq(k, 0.0), eq(m, 0.0))
    return log(where(none, 1.0, m * (1.0 / maximum(k, 1.0))))


def _over(top, x):
    """Top / x, and 0 for 0 / 0: a count of 0, or what nothing depends on."""
    none = logical_and(eq(top, 0.0), eq(x, 0.0))
    return where(none, 0.0, top / where(none, 1.0, x))


def _power_and_scale(k):
    """K log k - k from 1 on, and -1 below: what `deviance` subtracts."""
    c = np.maximum(k, 1.0)
    return k * np.log(c) - c


def _gamma_kernel_reference(a, b, x):
    return (a - 1.0) * np.log(b * x) - b * x - _power_and_scale(a - 1.0)


def _beta_kernel_reference(a, b, x):
    c = np.maximum(a + b - 1.0, 1.0)
    terms = _gamma_kernel_reference(a, c, x) + _gamma_kernel_reference(b, c, 1.0 - x)
    return terms + np.log(c)


def _binomial_kernel_reference(k, l, p):
    n = k + l
    terms = k * np.log(n * p) - n * p + l * np.log(n * (1.0 - p)) - n * (1.0 - p)
    return terms - _power_and_scale(k) - _power_and_scale(l)


def _beta_slope(g, a, b, x):
    """Derivative of the kernel in `a`; in `b` with 1 - x for x."""
    a, b, x = (tensor_like(v, g) for v in (a, b, x))
    return g * _log_of_ratio(maximum(a + b - 1.0, 1.0) * x, a - 1.0)


def _beta_kernel_in_x(g, _, a, b, x):
    return _over(g * (tensor_like(a, g) - 1.0), x) - _over(g * (tensor_like(b, g) - 1.0), 1.0 - x)


def _binomial_slope(g, k, l, p):
    """Derivative of the kernel in `k`; in `l` with 1 - p for p. That in k + l is 0."""
    k, l, p = (tensor_like(v, g) for v in (k, l, p))
    return g * _log_of_ratio((k + l) * p, k)


def _binomial_logits_slope(g, k, l, x):
    """Derivative of the kernel in `k`; in `l` with -x for x."""
    k, l, x = (tensor_like(v, g) for v in (k, l, x))
    none = eq(k + l, 0.0)
    return g * (log(where(none, 1.0, k + l) / maximum(k, 1.0)) - softplus(-x))


poisson_kernel = elementwise(
    "poisson_kernel",
    formula=_poisson_kernel,
    partials=(
        lambda g, _, k, m: g * _log_of_ratio(tensor_like(m, g), tensor_like(k, g)),
        lambda g, _, k, m: _over(g * tensor_like(k, g), tensor_like(m, g)) - g,
    ),
    domain=("above_one", "positive"),
    eager=quiet(_poisson_kernel),
    reference=lambda k, m: k * np.log(m) - m - _power_and_scale(k),
    result="float",
    doc="k log m - m less its largest value over m, and less -1 for k < 1; 0 log 0 is 0.",
)
gamma_kernel = elementwise(
    "gamma_kernel",
    formula=_gamma_kernel,
    partials=(
        lambda g, _, a, b, x: g * _log_of_ratio(tensor_like(b * x, g), tensor_like(a - 1.0, g)),
        lambda g, _, a, b, x: _over(g * (tensor_like(a, g) - 1.0), tensor_like(b, g)) - g * x,
        lambda g, _, a, b, x: _over(g * (tensor_like(a, g) - 1.0), tensor_like(x, g)) - g * b,
    ),
    domain=("above_two", "positive", "positive"),
    eager=quiet(_gamma_kernel),
    reference=_gamma_kernel_reference,
    result="float",
    doc="poisson_kernel(a - 1, b x), without rounding the product.",
)
beta_kernel = elementwise(
    "beta_kernel",
    formula=_beta_kernel,
    partials=(
        lambda g, _, a, b, x: _beta_slope(g, a, b, x),
        lambda g, _, a, b, x: _beta_slope(g, b, a, 1.0 - x),
        _beta_kernel_in_x,
    ),
    domain=("above_two", "above_two", "probability"),
    eager=quiet(_beta_kernel),
    reference=_beta_kernel_reference,
    result="float",
    doc="gamma_kernel(a, c, x) + gamma_kernel(b, c, 1 - x) + log c with c = max(a + b - 1, 1).",
)
binomial_kernel = elementwise(
    "binomial_kernel",
    formula=_binomial_kernel,
    partials=(
        lambda g, _, k, l, p: _binomial_slope(g, k, l, p),
        lambda g, _, k, l, p: _binomial_slope(g, l, k, 1.0 - p),
        lambda g, _, k, l, p: (
            _over(g * k, tensor_like(p, g)) - _over(g * l, 1.0 - tensor_like(p, g))
        ),
    ),
    domain=("above_one", "above_one", "probability"),
    eager=quiet(_binomial_kernel),
    reference=_binomial_kernel_reference,
    result="float",
    doc="poisson_kernel(k, n p) + poisson_kernel(l, n (1 - p)) with n = k + l.",
)
binomial_logits_kernel = elementwise(
    "binomial_logits_kernel",
    formula=_binomial_logits_kernel,
    partials=(
        lambda g, _, k, l, x: _binomial_logits_slope(g, k, l, x),
        lambda g, _, k, l, x: _binomial_logits_slope(g, l, k, -x),
        lambda g, _, k, l, x: g * (k * sigmoid(-x) - l * sigmoid(x)),
    ),
    domain=("above_one", "above_one", "real"),
    eager=quiet(_binomial_logits_kernel),
    reference=lambda k, l, x: _binomial_kernel_reference(k, l, 1.0 / (1.0 + np.exp(-x))),
    result="float",
    doc="binomial_kernel(k, l, sigmoid(x)), also where a probability underflows.",
)


def _gamma_rest(s, a):
    a = s.wide(a)
    return lgamma_less_power(s, a, a - 1.0, 0.5)


def _gamma_rest_slope(s, a):
    a = s.wide(a)
    return digamma_less_log(s, a, a - 1.0, 0.5)


def _factorial_rest(s, k):
    k = s.wide(k)
    return lgamma_less_power(s, k + 1.0, k, 0.5)


def _factorial_rest_slope(s, k):
    k = s.wide(k)
    return digamma_less_log(s, k + 1.0, k, 0.5)


def _stirling_rest(s, a):
    a = s.wide(a)
    return lgamma_less_power(s, a, a, -0.5)


def _stirling_rest_slope(s, a):
    a = s.wide(a)
    return digamma_less_log(s, a, a, -0.5)


def _inverse_from_one(k):
    above = ge(k, 1.0)
    return where(above, 1.0 / where(above, k, 1.0), 0.0)


def _with_slope(name, formula, slope, curvature, domain, reference, slope_reference, doc):
    """Declare an op of one argument and its derivative, whose own derivative is `curvature`."""
    first = elementwise(
        name + "_slope",
        formula=slope,
        partials=(lambda g, _, a: g * curvature(a),),
        domain=(domain,),
        eager=quiet(slope),
        reference=slope_reference,
        result="float",
        doc=f"Derivative of {name}.",
    )
    return elementwise(
        name,
        formula=formula,
        partials=(lambda g, _, a: g * first(a),),
        domain=(domain,),
        eager=quiet(formula),
        reference=reference,
        result="float",
        doc=doc,
    )


gamma_rest = _with_slope(
    "gamma_rest",
    _gamma_rest,
    _gamma_rest_slope,
    lambda a: polygamma(1, a) - _inverse_from_one(a - 1.0),
    "above_two",
    lambda a: scipy_value("gammaln", a) - _power_and_scale(a - 1.0),
    lambda a: scipy_value("psi", a) - np.log(np.maximum(a - 1.0, 1.0)),
    "lgamma(a) - (k log k - k) with k = a - 1, and lgamma(a) + 1 for k < 1.",
)
factorial_rest = _with_slope(
    "factorial_rest",
    _factorial_rest,
    _factorial_rest_slope,
    lambda k: polygamma(1, k + 1.0) - _inverse_from_one(k),
    "above_one",
    lambda k: scipy_value("gammaln", k + 1.0) - _power_and_scale(k),
    lambda k: scipy_value("psi", k + 1.0) - np.log(np.maximum(k, 1.0)),
    "log(k!) - (k log k - k), and log(k!) + 1 for k < 1.",
)
stirling_rest = _with_slope(
    "stirling_rest",
    _stirling_rest,
    _stirling_rest_slope,
    lambda a: polygamma(1, a) - 1.0 / a,
    "positive",
    lambda a: scipy_value("gammaln", a) - (a * np.log(a) - a),
    lambda a: scipy_value("psi", a) - np.log(a),
    "lgamma(a) - (a log a - a), which is about half of log(2 pi / a).",
)
betaln = elementwise(
    "betaln",
    formula=lambda s, a, b: s.betaln(a, b),
    partials=(
        lambda g, _, a, b: -(g * digamma_difference(a, b)),
        lambda g, _, a, b: -(g * digamma_difference(b, a)),
    ),
    domain=("positive", "positive"),
    eager="special.betaln",
    reference=lambda a, b: (
        scipy_value("gammaln", a) + scipy_value("gammaln", b) - scipy_value("gammaln", a + b)
    ),
    result="float",
    doc="Logarithm of the beta function, also for arguments of very different size.",
)
