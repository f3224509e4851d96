"""Special functions: gamma, beta, error, Bessel and entropy functions with their derivatives.

Almost all are elementwise ops whose formula is one intrinsic of ops/scalar.py, so they fuse in
compiled code. Derivatives are written so that they neither overflow nor cancel where the function
itself does not: the slope of log_ndtr comes from erfcx, densities of gamma and beta from Stirling
rests (ops/stirling.py), and derivatives in the shape parameters of gammainc and betainc from
quadrature (ops/incomplete.py); those last run eagerly only.

Names are those of torch.special; `gammainc(a, x)` and `betainc(a, b, x)` have SciPy's order of
arguments.
"""

import math

import numpy as np

from probtorch.backends.registry import array_module, device_of, to_device, to_host
from probtorch.core.dispatch import apply, as_tensor, cast
from probtorch.core.dtype import promote
from probtorch.core.shape import broadcast_shapes
from probtorch.errors import ArgumentError, NotDifferentiableError
from probtorch.ops.elementwise import abs as absolute
from probtorch.ops.elementwise import (
    clamp,
    cos,
    eq,
    exp,
    expm1,
    log,
    log1p,
    logical_and,
    sigmoid,
    sign,
    sin,
    to_float,
    where,
)
from probtorch.ops.families import elementwise, structured, unbroadcast
from probtorch.ops.incomplete import beta_tail, gamma_tail
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum
from probtorch.ops.scalar import numpy_algebra
from probtorch.ops.stirling import (
    BIG,
    HALF_LOG_2PI,
    difference_of_digammas,
    difference_of_lgammas,
    lgamma_rest,
)

__all__ = [
    "betainc",
    "betainc_grad",
    "betaln",
    "digamma",
    "digamma_difference",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "expit",
    "gamma_log_implicit",
    "gammainc",
    "gammainc_grad_a",
    "gammaincc",
    "gammaln",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "iv",
    "ive",
    "lgamma",
    "lgamma_difference",
    "log1mexp",
    "log_ndtr",
    "logit",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "sinc",
    "xlog1py",
    "xlogy",
    "zeta",
]

SQRT_PI = math.sqrt(math.pi)
SQRT_2PI = math.sqrt(2.0 * math.pi)
SQRT_HALF = math.sqrt(0.5)
LN2 = math.log(2.0)


def _tensor(x, like):
    """Return `x`; a Python number as a 0-d tensor of the dtype and device of `like`."""
    if not isinstance(x, (int, float)):
        return x
    return as_tensor(array_module(like._data).asarray(x, dtype=like._data.dtype))


def _quiet(formula):
    """Run a formula on arrays; of its choices both sides are computed, the unused one may warn."""

    def eager(*operands):
        like = next(x for x in operands if not isinstance(x, (int, float)))
        xp = array_module(like)
        with np.errstate(all="ignore"):
            # A choice between two Python numbers would forget the dtype.
            return formula(numpy_algebra, *(xp.asarray(x, dtype=like.dtype) for x in operands))

    return eager


def _scipy(name, *arrays):
    """Value of a SciPy special function, for the references."""
    import scipy.special

    return getattr(scipy.special, name)(*arrays)


# -------------------------------------------------------------------------------------------- gamma

lgamma = elementwise(
    "lgamma",
    formula=lambda s, x: s.lgamma(x),
    partials=(lambda g, _, x: g * digamma(x),),
    domain=("positive",),
    eager="special.gammaln",
    reference=lambda x: _scipy("loggamma", x + 0j).real,
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
    reference=lambda x: _scipy("psi", x + 0j).real,
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


lgamma_difference = elementwise(
    "lgamma_difference",
    formula=difference_of_lgammas,
    partials=(
        lambda g, _, x, y: g * digamma_difference(x, y),
        lambda g, _, x, y: g * digamma(_tensor(x + y, g)),
    ),
    domain=("positive", "positive"),
    eager=_quiet(difference_of_lgammas),
    reference=lambda x, y: _scipy("gammaln", x + y) - _scipy("gammaln", x),
    result="float",
    doc="lgamma(x + y) - lgamma(x), without the cancellation of the difference for large x.",
)
digamma_difference = elementwise(
    "digamma_difference",
    formula=difference_of_digammas,
    partials=(
        lambda g, _, x, y: g * (polygamma(1, _tensor(x + y, g)) - polygamma(1, x)),
        lambda g, _, x, y: g * polygamma(1, _tensor(x + y, g)),
    ),
    domain=("positive", "positive"),
    eager=_quiet(difference_of_digammas),
    reference=lambda x, y: _scipy("psi", x + y) - _scipy("psi", x),
    result="float",
    doc="digamma(x + y) - digamma(x), without the cancellation of the difference for large x.",
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
    reference=lambda a, b: _scipy("gammaln", a) + _scipy("gammaln", b) - _scipy("gammaln", a + b),
    result="float",
    doc="Logarithm of the beta function, also for arguments of very different size.",
)

# ---------------------------------------------------------------------------------- error functions

erf = elementwise(
    "erf",
    formula=lambda s, x: s.erf(x),
    partials=(lambda g, _, x: g * (exp(-x * x) * (2.0 / SQRT_PI)),),
    domain=("real",),
    eager="special.erf",
    reference=lambda x: np.vectorize(math.erf, otypes=[float])(x),
    result="float",
    doc="Error function.",
)
erfc = elementwise(
    "erfc",
    formula=lambda s, x: s.erfc(x),
    partials=(lambda g, _, x: g * (exp(-x * x) * (-2.0 / SQRT_PI)),),
    domain=("real",),
    eager="special.erfc",
    reference=lambda x: np.vectorize(math.erfc, otypes=[float])(x),
    result="float",
    doc="1 - erf(x), accurate in the right tail.",
)
erfcx = elementwise(
    "erfcx",
    formula=lambda s, x: s.erfcx(x),
    partials=(lambda g, y, x: g * (x * y * 2.0 - 2.0 / SQRT_PI),),
    domain=("real",),
    eager="special.erfcx",
    reference=lambda x: np.exp(x * x) * np.vectorize(math.erfc, otypes=[float])(x),
    result="float",
    doc="exp(x ** 2) * erfc(x), which neither underflows nor loses digits in the right tail.",
)
erfinv = elementwise(
    "erfinv",
    formula=lambda s, x: s.erfinv(x),
    partials=(lambda g, y, _x: g * (exp(y * y) * (SQRT_PI / 2.0)),),
    domain=("unit",),
    eager="special.erfinv",
    reference=lambda x: _scipy("ndtri", 0.5 * (x + 1.0)) * SQRT_HALF,
    result="float",
    doc="Inverse of erf on (-1, 1).",
)
ndtr = elementwise(
    "ndtr",
    formula=lambda s, x: s.ndtr(x),
    partials=(lambda g, _, x: g * (exp(x * x * -0.5) * (1.0 / SQRT_2PI)),),
    domain=("real",),
    eager="special.ndtr",
    reference=lambda x: 0.5 * np.vectorize(math.erfc, otypes=[float])(-x * SQRT_HALF),
    result="float",
    doc="Standard normal cumulative distribution function, accurate in the left tail.",
)


def _mills_slope(g, y, x):
    # For large x, y underflows to 0, and 0 * x is the limit also at x = inf.
    return -(g * y * (y + where(eq(y, 0.0), 0.0, x)))


# phi(x) / Phi(x) = sqrt(2 / pi) / erfcx(-x / sqrt(2)): grows like -x on the left, where both
# factors underflow.
normal_hazard = elementwise(
    "normal_hazard",
    formula=lambda s, x: math.sqrt(2.0 / math.pi) / s.erfcx(x * -SQRT_HALF),
    partials=(_mills_slope,),
    domain=("real",),
    reference=lambda x: np.exp(-0.5 * x * x - _scipy("log_ndtr", x)) / SQRT_2PI,
    result="float",
    doc="Normal density over its cumulative distribution function, the derivative of log_ndtr.",
)
log_ndtr = elementwise(
    "log_ndtr",
    formula=lambda s, x: s.log_ndtr(x),
    partials=(lambda g, _, x: g * normal_hazard(x),),
    domain=("real",),
    eager="special.log_ndtr",
    reference=lambda x: np.log(0.5 * np.vectorize(math.erfc, otypes=[float])(-x * SQRT_HALF)),
    result="float",
    doc="Logarithm of ndtr; it and its derivative are accurate in the far left tail.",
)
ndtri = elementwise(
    "ndtri",
    formula=lambda s, p: s.normal_quantile(p),
    partials=(lambda g, x, _p: g * (exp(x * x * 0.5) * SQRT_2PI),),
    domain=("probability",),
    eager="special.ndtri",
    reference=lambda p: -math.sqrt(2.0) * _scipy("erfcinv", 2.0 * p),
    result="float",
    doc="Inverse of ndtr: the standard normal quantile of a probability.",
)

# --------------------------------------------------------------------------------------- logarithms


def _xlogy_first(g, _, x, y):
    y = _tensor(y, g)
    both = logical_and(eq(x, 0.0), eq(y, 0.0))
    return where(both, 0.0, g * log(where(both, 1.0, y)))


def _xlogy_second(g, _, x, y):
    x = _tensor(x, g)
    both = logical_and(eq(x, 0.0), eq(y, 0.0))
    return where(both, 0.0, g * x / where(both, 1.0, y))


xlogy = elementwise(
    "xlogy",
    formula=lambda s, x, y: s.where(x == 0.0, s.where(s.isnan(y), y, 0.0), x * s.log(y)),
    partials=(_xlogy_first, _xlogy_second),
    domain=("positive", "positive"),
    eager="special.xlogy",
    reference=lambda x, y: x * np.log(y),
    result="float",
    doc="x * log(y), and 0 where x is 0; both derivatives are 0 at (0, 0).",
)


def _xlog1py_first(g, _, x, y):
    y = _tensor(y, g)
    both = logical_and(eq(x, 0.0), eq(y, -1.0))
    return where(both, 0.0, g * log1p(where(both, 0.0, y)))


def _xlog1py_second(g, _, x, y):
    x = _tensor(x, g)
    both = logical_and(eq(x, 0.0), eq(y, -1.0))
    return where(both, 0.0, g * x / (where(both, 0.0, y) + 1.0))


xlog1py = elementwise(
    "xlog1py",
    formula=lambda s, x, y: s.where(x == 0.0, s.where(s.isnan(y), y, 0.0), x * s.log1p(y)),
    partials=(_xlog1py_first, _xlog1py_second),
    domain=("positive", "positive"),
    eager="special.xlog1py",
    reference=lambda x, y: x * np.log1p(y),
    result="float",
    doc="x * log(1 + y), and 0 where x is 0; both derivatives are 0 at (0, -1).",
)
entr = elementwise(
    "entr",
    formula=lambda s, x: s.where(
        x > 0.0, -x * s.log(x), s.where(x == 0.0, 0.0, s.where(x < 0.0, -math.inf, x))
    ),
    partials=(lambda g, _, x: g * (-1.0 - log(x)),),
    domain=("positive",),
    eager="special.entr",
    reference=lambda x: -x * np.log(x),
    result="float",
    doc="-x * log(x): 0 at 0 and -inf below.",
)


def _log1mexp(s, x):
    # Maechler (2012): both forms are exact to rounding on their side of log 2.
    return s.where(x < LN2, s.log(-s.expm1(-x)), s.log1p(-s.exp(-x)))


log1mexp = elementwise(
    "log1mexp",
    formula=_log1mexp,
    partials=(lambda g, _, x: g / expm1(x),),
    domain=("positive",),
    eager=_quiet(_log1mexp),
    reference=lambda x: np.log(1.0 - np.exp(-x)),
    result="float",
    doc="log(1 - exp(-x)) for x > 0; -inf at 0.",
)
_logit = elementwise(
    "logit",
    formula=lambda s, p: s.log(p) - s.log1p(-p),
    partials=(lambda g, _, p: g / (p * (1.0 - p)),),
    domain=("probability",),
    eager="special.logit",
    reference=lambda p: np.log(p / (1.0 - p)),
    result="float",
    doc="Log odds, log(p / (1 - p)).",
)


def logit(p, eps=None):
    """Log odds, log(p / (1 - p)); with `eps`, p is first limited to [eps, 1 - eps]."""
    return _logit(p if eps is None else clamp(p, eps, 1.0 - eps))


expit = sigmoid

# ------------------------------------------------------------------------------ oscillation, Bessel


def _sinc(s, x):
    z = s.where(x == 0.0, 1.0, x * math.pi)
    return s.where(x == 0.0, 1.0, s.sin(z) / z)


# j1(z) / z = sum over k of (-1/2)^k z^(2k) / (k! (2k + 3)!!): ten terms give 1e-17 for |z| < 1,
# also twice differentiated.
_J1_SERIES = [
    (-0.5) ** k / (math.factorial(k) * math.prod(range(1, 2 * k + 4, 2))) for k in range(10)
]


def _sinc_slope(g, _, x):
    # sinc'(x) = -pi j1(pi x), j1(z) = sin z / z^2 - cos z / z: near 0 its series, whose derivatives
    # are right as well.
    z = x * math.pi
    near = absolute(z) < 1.0
    square = where(near, z * z, 0.0)
    series = _J1_SERIES[-1]
    for c in _J1_SERIES[-2::-1]:
        series = series * square + c
    away = where(near, math.pi, z)
    return g * where(near, series * z, (sin(away) / away - cos(away)) / away) * -math.pi


sinc = elementwise(
    "sinc",
    formula=_sinc,
    partials=(_sinc_slope,),
    domain=("real",),
    eager=np.sinc,
    reference=lambda x: np.sin(np.pi * x) / (np.pi * x),
    result="float",
    doc="sin(pi x) / (pi x), and 1 at 0; smooth in every derivative.",
)
i0 = elementwise(
    "i0",
    formula=lambda s, x: s.i0(x),
    partials=(lambda g, _, x: g * i1(x),),
    domain=("real",),
    eager="special.i0",
    reference=lambda x: _scipy("iv", 0, x),
    result="float",
    doc="Modified Bessel function of the first kind, order 0.",
)
i1 = elementwise(
    "i1",
    formula=lambda s, x: s.i1(x),
    partials=(lambda g, _, x: g * ((i0(x) + iv(2.0, x)) * 0.5),),
    domain=("real",),
    eager="special.i1",
    reference=lambda x: _scipy("iv", 1, x),
    result="float",
    doc="Modified Bessel function of the first kind, order 1.",
)
i0e = elementwise(
    "i0e",
    formula=lambda s, x: s.i0e(x),
    partials=(lambda g, y, x: g * (i1e(x) - sign(x) * y),),
    domain=("nonzero",),
    eager="special.i0e",
    reference=lambda x: _scipy("ive", 0, x),
    result="float",
    doc="exp(-|x|) * i0(x), which does not overflow.",
)
i1e = elementwise(
    "i1e",
    formula=lambda s, x: s.i1e(x),
    partials=(lambda g, y, x: g * ((i0e(x) + ive(2.0, x)) * 0.5 - sign(x) * y),),
    domain=("nonzero",),
    eager="special.i1e",
    reference=lambda x: _scipy("ive", 1, x),
    result="float",
    doc="exp(-|x|) * i1(x), which does not overflow.",
)
# DLMF 10.29.1: 2 I_v' = I_{v-1} + I_{v+1}.
iv = elementwise(
    "iv",
    formula=lambda s, v, x: s.iv(v, x),
    partials=(None, lambda g, _, v, x: g * ((iv(v - 1.0, x) + iv(v + 1.0, x)) * 0.5)),
    domain=("positive", "positive"),
    eager="special.iv",
    reference=lambda v, x: _scipy("ive", v, x) * np.exp(x),
    result="float",
    doc="Modified Bessel function of the first kind, order v; differentiable in x.",
)
ive = elementwise(
    "ive",
    formula=lambda s, v, x: s.ive(v, x),
    partials=(
        None,
        lambda g, y, v, x: g * ((ive(v - 1.0, x) + ive(v + 1.0, x)) * 0.5 - sign(x) * y),
    ),
    domain=("positive", "positive"),
    eager="special.ive",
    reference=lambda v, x: _scipy("iv", v, x) * np.exp(-x),
    result="float",
    doc="exp(-|x|) * iv(v, x), which does not overflow.",
)

# --------------------------------------------------------------------------------- incomplete gamma


def _gamma_density(s, a, x):
    # For large a the exponent is a (log1p(t) - t) with t = x/a - 1: small, where a log x - x -
    # lgamma(a) would cancel.
    big = a > BIG
    m = s.where(big, a, BIG)
    t = (x - m) / m
    z = s.where(x > 0.0, x, 1.0)
    log_ratio = s.where(s.abs(t) < 0.5, s.log1p(t), s.log(z / m))
    high = s.exp(m * (log_ratio - t) - lgamma_rest(m) - HALF_LOG_2PI) * s.sqrt(m) / z
    high = s.where(x > 0.0, high, 0.0)
    power = s.where(a == 1.0, 0.0, (a - 1.0) * s.log(x))
    low = s.exp(power - x - s.lgamma(a))
    return s.where((x < 0.0) | (x == math.inf), 0.0, s.where(big, high, low))


def _gamma_density_in_a(g, y, a, x):
    x = _tensor(x, g)
    return xlogy(g * y, x) - g * y * digamma(a)


def _gamma_density_in_x(g, y, a, x):
    # Finite at 0, where the limit is 0 or infinite unless a is 1.
    edge = x <= 0.0
    return g * y * (where(edge, 0.0, (_tensor(a, g) - 1.0) / where(edge, 1.0, x)) - 1.0)


gamma_density = elementwise(
    "gamma_density",
    formula=_gamma_density,
    partials=(_gamma_density_in_a, _gamma_density_in_x),
    domain=("positive", "positive"),
    eager=_quiet(_gamma_density),
    reference=lambda a, x: np.exp((a - 1.0) * np.log(x) - x - _scipy("gammaln", a)),
    result="float",
    doc="Density at x of the standard gamma distribution with shape a: dP(a, x)/dx.",
)
gammainc = elementwise(
    "gammainc",
    formula=lambda s, a, x: s.gammainc(a, x),
    partials=(
        lambda g, _, a, x: g * gammainc_grad_a(a, x),
        lambda g, _, a, x: g * gamma_density(a, x),
    ),
    domain=("positive", "positive"),
    eager="special.gammainc",
    reference=lambda a, x: _scipy("chdtr", 2.0 * a, 2.0 * x),
    result="float",
    doc="Regularised lower incomplete gamma function P(a, x); differentiable in both.",
)
gammaincc = elementwise(
    "gammaincc",
    formula=lambda s, a, x: s.gammaincc(a, x),
    partials=(
        lambda g, _, a, x: -(g * gammainc_grad_a(a, x)),
        lambda g, _, a, x: -(g * gamma_density(a, x)),
    ),
    domain=("positive", "positive"),
    eager="special.gammaincc",
    reference=lambda a, x: _scipy("chdtrc", 2.0 * a, 2.0 * x),
    result="float",
    doc="Regularised upper incomplete gamma function, 1 - P(a, x); differentiable in both.",
)


def _beyond(name):
    return NotDifferentiableError(
        name,
        expected="at most two derivatives in the shape parameters",
        got="a third",
        fix="detach() the shape parameters before the last derivative",
    )


def _host(fn):
    """Run a float64 NumPy routine on arrays of any float dtype and backend."""

    def run(*arrays, **attrs):
        device, dtype = device_of(arrays[0]), arrays[0].dtype
        result = fn(*(to_host(a).astype(np.float64, copy=False) for a in arrays), **attrs)
        return to_device(np.asarray(result).astype(dtype, copy=False), device)

    return run


def _log_implicit_parts(out, inputs, order):
    """Derivatives of -(d/da)^k P / W; dW/dy = (a - e^y) W and dW/da = (y - psi(a)) W."""
    a, y = inputs
    mean, slope = y - digamma(a), a - exp(y)
    if order == 1:
        return gamma_log_implicit(a, y, 2) - out * mean, -mean - out * slope
    return None, polygamma(1, a) - mean * mean - out * slope


def _from_parts(parts_of, name):
    """Build vjp and jvp from a function that returns the partial derivatives (None: too high)."""

    def vjp(g, out, inputs, attrs, needs):
        parts = parts_of(out, inputs, attrs["order"])
        grads = []
        for x, part, need in zip(inputs, parts, needs, strict=True):
            if need and part is None:
                raise _beyond(name)
            grads.append(unbroadcast(g * part, x._data.shape) if need else None)
        return grads

    def jvp(tangents, out, inputs, attrs):
        parts = parts_of(out, inputs, attrs["order"])
        total = None
        for t, part in zip(tangents, parts, strict=True):
            if t is None:
                continue
            if part is None:
                raise _beyond(name)
            total = t * part if total is None else total + t * part
        return total

    return vjp, jvp


def _log_implicit_reference(a, y, order):
    # Central differences of SciPy's P in a, which is good to about 1e-9.
    h = 1e-3 * np.minimum(a, 1.0)
    p = [_scipy("gammainc", a + k * h, np.exp(y)) for k in (-2, -1, 0, 1, 2)]
    first = (p[0] - 8.0 * p[1] + 8.0 * p[3] - p[4]) / (12.0 * h)
    second = (-p[0] + 16.0 * p[1] - 30.0 * p[2] + 16.0 * p[3] - p[4]) / (12.0 * h * h)
    return -(first if order == 1 else second) / np.exp(a * y - np.exp(y) - _scipy("gammaln", a))


_vjp, _jvp = _from_parts(_log_implicit_parts, "gamma_log_implicit")
_GAMMA_LOG_IMPLICIT = structured(
    "gamma_log_implicit", "special", run=_host(gamma_tail), vjp=_vjp, jvp=_jvp, reads_output=True,
    samples=lambda rng: [
        ((rng.uniform(0.5, 4.0, (3, 1)), rng.uniform(-1.0, 1.5, (2,))), {"order": 1}),
        ((np.array(rng.uniform(0.5, 4.0)), np.array(rng.uniform(-1.0, 1.5))), {"order": 1}),
    ],
    reference=_log_implicit_reference,
    doc="-(d/da)^order P(a, e^y) / (x p(x)) at x = e^y; order 1 is d(log x)/da of a gamma draw.",
)  # fmt: skip


def _operands(op, *operands):
    """Return tensors of one float dtype whose shapes broadcast; Python numbers take the dtype."""
    tensors = [to_float(as_tensor(x, op)) for x in operands if not isinstance(x, (int, float))]
    like = cast(tensors[0], promote([x._data for x in tensors])) if tensors else as_tensor(0.0)
    tensors = [cast(to_float(as_tensor(_tensor(x, like), op)), like._data.dtype) for x in operands]
    broadcast_shapes(*(x._data.shape for x in tensors), op=op)
    return tuple(tensors)


def gamma_log_implicit(a, log_x, order=1):
    """Derivative of the logarithm of a standard gamma draw in its shape, at a fixed quantile.

    Parameters
    ----------
    a : Tensor
        Shape parameter, positive.
    log_x : Tensor
        Natural logarithm of the draw, so that draws below the smallest float have derivatives too.
    order : {1, 2}
        2 gives -(d/da)^2 P / (x p(x)) instead, which the derivative of order 1 needs.

    Returns
    -------
    Tensor
        d(log x)/da = -(dP/da) / (x p(x)), positive, for the distribution function P and density p.

    References
    ----------
    Figurnov, Mohamed, Mnih (2018), "Implicit reparameterization gradients".
    """
    return apply(_GAMMA_LOG_IMPLICIT, _operands("gamma_log_implicit", a, log_x), {"order": order})


def _run_grad_a(a, x, order):
    with np.errstate(all="ignore"):
        y = np.log(x)
        weight = np.where(x > 0.0, _gamma_density(numpy_algebra, a, x) * x, 0.0)
        out = -weight * gamma_tail(a, y, order)
        # P(a, 0) = 0 and P(a, inf) = 1 for every a; a weight that underflows beats whatever it
        # multiplies.
        return np.where((weight == 0.0) & (a > 0.0) & (x >= 0.0), 0.0, out)


def _grad_a_parts(out, inputs, order):
    a, x = inputs
    edge = eq(x, 0.0)
    mean = where(edge, 0.0, log(where(edge, 1.0, x))) - digamma(a)
    density = gamma_density(a, x)
    if order == 1:
        second = apply(_GAMMAINC_GRAD_A, inputs, {"order": 2})
        return second, density * mean
    return None, density * (mean * mean - polygamma(1, a))


def _grad_a_reference(a, x, order):
    weight = np.exp(a * np.log(x) - x - _scipy("gammaln", a))
    return -_log_implicit_reference(a, np.log(x), order) * weight


_vjp, _jvp = _from_parts(_grad_a_parts, "gammainc_grad_a")
_GAMMAINC_GRAD_A = structured(
    "gammainc_grad_a", "special", run=_host(_run_grad_a), vjp=_vjp, jvp=_jvp,
    samples=lambda rng: [
        ((rng.uniform(0.5, 4.0, (3, 1)), rng.uniform(0.3, 5.0, (2,))), {"order": 1}),
        ((np.array(rng.uniform(0.5, 4.0)), np.array(rng.uniform(0.3, 5.0))), {"order": 1}),
    ],
    reference=_grad_a_reference,
    doc="(d/da)^order of the regularised lower incomplete gamma function.",
)  # fmt: skip


def gammainc_grad_a(a, x):
    """Derivative of ``gammainc(a, x)`` in `a`.

    Accurate to about 1e-13 relative, in the tails as well. Differentiable in both arguments, once
    more in `a`.
    """
    return apply(_GAMMAINC_GRAD_A, _operands("gammainc_grad_a", a, x), {"order": 1})


# ---------------------------------------------------------------------------------- incomplete beta


def _beta_density(s, a, b, x):
    # Stirling for a, b > 10: around the mean x0 = a / (a + b), the two logarithms are small and
    # their linear parts cancel.
    big = s.minimum(a, b) > BIG
    m, n = s.where(big, a, BIG), s.where(big, b, BIG)
    total = m + n
    shift = x - m / total
    t, u = shift * total / m, -shift * total / n
    rest = lgamma_rest(total) - lgamma_rest(m) - lgamma_rest(n)
    inside = (x > 0.0) & (x < 1.0)
    z = s.where(inside, x, 0.5)
    log_t = s.where(s.abs(t) < 0.5, s.log1p(t), s.log(z * (total / m)))
    log_u = s.where(s.abs(u) < 0.5, s.log1p(u), s.log1p(-z) + s.log(total / n))
    high = s.exp(m * (log_t - t) + n * (log_u - u) + rest - HALF_LOG_2PI)
    high = s.where(inside, high * s.sqrt(m / total * n) / (z * (1.0 - z)), 0.0)
    left = s.where(a == 1.0, 0.0, (a - 1.0) * s.log(x))
    right = s.where(b == 1.0, 0.0, (b - 1.0) * s.log1p(-x))
    low = s.exp(left + right - s.betaln(a, b))
    return s.where((x < 0.0) | (x > 1.0), 0.0, s.where(big, high, low))


def _beta_density_in_x(g, y, a, b, x):
    # Finite at the edges, where the limits are 0 or infinite unless a or b is 1.
    low, high = x <= 0.0, x >= 1.0
    left = where(low, 0.0, (_tensor(a, g) - 1.0) / where(low, 1.0, x))
    right = where(high, 0.0, (_tensor(b, g) - 1.0) / (1.0 - where(high, 0.0, x)))
    return g * y * (left - right)


beta_density = elementwise(
    "beta_density",
    formula=_beta_density,
    partials=(
        lambda g, y, a, b, x: xlogy(g * y, _tensor(x, g)) + g * y * digamma_difference(a, b),
        lambda g, y, a, b, x: xlog1py(g * y, -_tensor(x, g)) + g * y * digamma_difference(b, a),
        _beta_density_in_x,
    ),
    domain=("positive", "positive", "probability"),
    eager=_quiet(_beta_density),
    reference=lambda a, b, x: np.exp(
        (a - 1.0) * np.log(x) + (b - 1.0) * np.log1p(-x) - _scipy("betaln", a, b)
    ),
    result="float",
    doc="Density at x of the beta distribution with parameters a and b.",
)
betainc = elementwise(
    "betainc",
    formula=lambda s, a, b, x: s.betainc(a, b, x),
    partials=(
        lambda g, _, a, b, x: g * betainc_grad(a, b, x, (1, 0)),
        lambda g, _, a, b, x: g * betainc_grad(a, b, x, (0, 1)),
        lambda g, _, a, b, x: g * beta_density(a, b, x),
    ),
    domain=("positive", "positive", "probability"),
    eager="special.betainc",
    reference=lambda a, b, x: 1.0 - _scipy("betainc", b, a, 1.0 - x),
    result="float",
    doc="Regularised incomplete beta function I_x(a, b); differentiable in all three.",
)


def _run_betainc_grad(a, b, x, order):
    with np.errstate(all="ignore"):
        weight = _beta_density(numpy_algebra, a, b, x) * x * (1.0 - x)
        out = -weight * beta_tail(a, b, np.log(x) - np.log1p(-x), order)
        # At x = 0 and 1 the function is 0 and 1 for all a and b.
        edge = ((x == 0.0) | (x == 1.0) | (weight == 0.0)) & (a > 0.0) & (b > 0.0)
        return np.where(edge, 0.0, out)


def _betainc_grad_parts(out, inputs, order):
    a, b, x = inputs
    of_a = order[0] > 0
    edge = (x <= 0.0) | (x >= 1.0)
    inner = where(edge, 0.5, x)
    density = where(edge, 0.0, beta_density(a, b, inner))
    left = log(inner) + digamma_difference(a, b)
    right = log1p(-inner) + digamma_difference(b, a)
    if order == (1, 0):
        return betainc_grad(a, b, x, (2, 0)), betainc_grad(a, b, x, (1, 1)), density * left
    if order == (0, 1):
        return betainc_grad(a, b, x, (1, 1)), betainc_grad(a, b, x, (0, 2)), density * right
    common = polygamma(1, a + b)
    if order == (1, 1):
        return None, None, density * (left * right + common)
    side, own = (left, a) if of_a else (right, b)
    return None, None, density * (side * side - polygamma(1, own) + common)


def _betainc_grad_reference(a, b, x, order):
    i, j = order
    h = 1e-4
    p = [_scipy("betainc", a + k * i * h, b + k * j * h, x) for k in (-2, -1, 1, 2)]
    return (p[0] - 8.0 * p[1] + 8.0 * p[2] - p[3]) / (12.0 * h)


_vjp, _jvp = _from_parts(_betainc_grad_parts, "betainc_grad")
_BETAINC_GRAD = structured(
    "betainc_grad", "special", run=_host(_run_betainc_grad), vjp=_vjp, jvp=_jvp,
    samples=lambda rng: [
        (
            (rng.uniform(0.5, 4.0, (3, 1)), rng.uniform(0.5, 4.0, (2,)), np.array(0.7)),
            {"order": (1, 0)},
        ),
        (tuple(rng.uniform(0.5, 0.9, (3, 4))), {"order": (0, 1)}),
    ],
    reference=_betainc_grad_reference,
    doc="(d/da)^i (d/db)^j of the regularised incomplete beta function, order = (i, j).",
)  # fmt: skip


def betainc_grad(a, b, x, order=(1, 0)):
    """Derivative of ``betainc(a, b, x)`` of order (i, j) in (a, b), with 1 <= i + j <= 2.

    Accurate to about 1e-12 relative, in the tails as well. Differentiable while i + j stays below
    3.
    """
    operands = _operands("betainc_grad", a, b, x)
    return apply(_BETAINC_GRAD, operands, {"order": tuple(order)})
