"""Draws by rejection as formulas: the same numbers from arrays and from generated code.

How many random words a rejection sampler takes depends on what it draws. So that every element can
be drawn alone, in any order and by any target, each has a stream of words of its own: the 64 bits
of its counter name the stream, under another key than that of all other draws. An element costs one
counter whatever happens inside.

The formulas are over an algebra `s`, as in ops/scalar.py, with more things: `s.uniforms(n)`, the
element's n-th pair of uniform numbers; `s.split` and `s.power_of_two`, which take floats apart and
make them; `s.choose`, a branch; `s.either`, a test after a test; and `s.until`, a loop. `Streams`
is the algebra on arrays; compiler/lang/routines/draws.py has the one that writes native code.

Every operation is one that IEEE 754 rounds correctly (or SciPy's ndtri, the same code on both
sides), logarithms and exponentials included, which are written out here. So eager and compiled
draws agree bit for bit, and no rounding can make one accept what the other rejects.

Gamma: Marsaglia and Tsang (2000). Poisson and binomial: Hoermann's transformed rejection (1993),
with acceptance by Loader's saddle-point form (2000), which does not cancel at large counts;
small means by inversion. Von Mises: Best and Fisher (1979). Polya-gamma: Devroye's alternating
series, as in [polson2013]_.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from probtorch.core.rng import bits_to_uniform, native_draw, philox_bits, philox_pairs
from probtorch.ops.lanes import Lanes
from probtorch.ops.scalar import special_function
from probtorch.ops.stirling import lgamma_rest

__all__ = ["SAMPLERS", "STREAM_KEY", "Streams", "draw"]

# The seed of an element's words is the generator's with these bits turned over: ASCII "rejectio".
STREAM_KEY = 0x72656A656374696F

# Of an algebra and parameters.
_Formula: TypeAlias = Callable[..., Any]

# Elements per pass, so that the work arrays stay in the second-level cache.
_CHUNK = 4096

# fdlibm's: ln 2 in two parts, and (log(1 + f) - f) as a series in (f / (2 + f))^2.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LOG = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
_EXP = tuple(1.0 / math.factorial(n) for n in range(14))
_SQRT_HALF = math.sqrt(0.5)
_LOG_2PI = math.log(2.0 * math.pi)


# ---------------------------------------------------------------------------------- exact functions


def _horner(coefficients, z):
    total = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = total * z + c
    return total


def _log(s, x):
    """log(x) of positive normal numbers, within 1 unit in the last place."""
    k, m = s.split(x)
    f = m - 1.0
    half = f * f * 0.5
    q = f / (f + 2.0)
    z = q * q
    tail = z * _horner(_LOG, z)
    return k * _LN2_HIGH - ((half - (q * (half + tail) + k * _LN2_LOW)) - f)


def _log1p(s, x):
    """log(1 + x) for x > -1: what rounding 1 + x loses is made good by a quotient (Kahan)."""
    u = x + 1.0
    near = u == 1.0
    return s.where(near, x, _log(s, u) * (x / s.where(near, 1.0, u - 1.0)))


def _exp(s, x):
    """exp(x), within 1 unit in the last place; 0 below -746."""
    x = s.maximum(x, -746.0)
    n = s.floor(x * (1.0 / math.log(2.0)) + 0.5)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    half = s.floor(n * 0.5)
    return _horner(_EXP, r) * s.power_of_two(half) * s.power_of_two(n - half)


# -------------------------------------------------------------------------------------------- gamma


# The first block of an element's words that proposals take; block 0 is left for the boost.
_GAMMA_BLOCK = 1


def _marsaglia_tsang_scales(s, a):
    d = a - 1.0 / 3.0
    return d, 1.0 / s.sqrt(d * 9.0)


def _marsaglia_tsang(s, a):
    """Return d and v, with d v^3 a draw from Gamma(a, 1), for a >= 1."""
    d, c = _marsaglia_tsang_scales(s, a)

    def attempt(s, i, _, d, c):
        u, w = s.uniforms(i)
        quick, v, square = _marsaglia_tsang_proposal(s, u, s.ndtri(w), c)
        return s.either(quick, _marsaglia_tsang_test, (u, v, square, d)), (i + 1, v)

    return d, s.until(attempt, (s.counting(a) + _GAMMA_BLOCK, d), (d, c))[1]


def _marsaglia_tsang_proposal(s, u, x, c):
    """Return whether a proposal needs no further test; v; and the square of the normal number."""
    v = c * x + 1.0
    square = x * x
    return s.logical_and(v > 0.0, u < 1.0 - square * square * 0.0331), v, square


def _marsaglia_tsang_test(s, u, v, square, d):
    positive = v > 0.0
    log_v = _log(s, s.where(positive, v, 1.0))
    bound = square * 0.5 + d * (1.0 - v * v * v + log_v * 3.0)
    return s.logical_and(positive, _log(s, u) < bound)


def _log_gamma_from(s, d, v):
    return _log(s, d) + _log(s, v) * 3.0


def _gamma_from(s, d, v):
    return d * (v * v * v)


def _log_gamma_of_large(s, a):
    return _log_gamma_from(s, *_marsaglia_tsang(s, a))


def _log_gamma_of_small(s, a):
    # G(a) = G(a + 1) U^(1/a) in distribution; in log space the power cannot underflow.
    return _log_gamma_of_large(s, a + 1.0) + _log(s, s.uniforms(s.counting(a))[0]) / a


def log_gamma(s, a):
    """Logarithm of a draw from Gamma(a, 1)."""
    return s.choose(a < 1.0, _log_gamma_of_small, _log_gamma_of_large, (a,))


def gamma(s, a):
    """Draw from Gamma(a, 1); 0 where it underflows."""

    def large(s, a):
        return _gamma_from(s, *_marsaglia_tsang(s, a))

    return s.choose(a < 1.0, lambda s, a: _exp(s, _log_gamma_of_small(s, a)), large, (a,))


def _quick_gamma(finish):
    """Return the quick formula of gamma draws that ``finish(s, d, v)`` makes."""

    def quick(s, u, x, a):
        d, c = _marsaglia_tsang_scales(s, a)
        sure, v, _ = _marsaglia_tsang_proposal(s, u, x, c)
        return sure, finish(s, d, s.where(sure, v, 1.0))

    return Quick(quick, lambda s, a: a >= 1.0, _GAMMA_BLOCK, normal=True)


# ------------------------------------------------------------------------------------------- counts

# log(k!) - ((k + 1/2) log k - k + log(2 pi) / 2) for k = 1, ..., 9; from 10 on Stirling's series.
_STIRLING_ERRORS = (
    0.08106146679532726,
    0.0413406959554093,
    0.02767792568499834,
    0.02079067210376509,
    0.016644691189821193,
    0.013876128823070748,
    0.01189670994589177,
    0.010411265261972096,
    0.009255462182712733,
)
# NumPy's integers end near 2**63; from here on a normal approximation differs by less than the
# spacing of float64.
_HUGE_RATE = 1e18
# From this mean on rejection takes over from inversion.
_MEAN = 10.0


def _stirling_error(s, k):
    """log(k!) less Stirling's formula, for whole k >= 1."""
    big = k >= 10.0
    out = lgamma_rest(s.where(big, k, 10.0))
    for j, error in enumerate(_STIRLING_ERRORS, 1):
        out = s.where(k == float(j), error, out)
    return out


def _deviance(s, k, mean):
    """Return k log(k / mean) + mean - k, for k > 0, without cancellation [loader2000]."""
    e = (k - mean) / mean
    return mean * ((e + 1.0) * _log1p(s, e) - e)


def _log_poisson(s, k, rate):
    """Logarithm of the Poisson probability of a whole k >= 0."""
    some = k > 0.0
    j = s.where(some, k, 1.0)
    many = -_deviance(s, j, rate) - _stirling_error(s, j) - (_log(s, j) + _LOG_2PI) * 0.5
    return s.where(some, many, -rate)


def _log_binomial(s, k, n, p):
    """Logarithm of the binomial probability of a whole k from 0 to n, for 0 < p < 1, n >= 2."""
    q = 1.0 - p
    i = s.minimum(s.maximum(k, 1.0), n - 1.0)
    j = n - i
    errors = _stirling_error(s, n) - _stirling_error(s, i) - _stirling_error(s, j)
    inside = errors - _deviance(s, i, n * p) - _deviance(s, j, n * q)
    inside = inside - (_log(s, i * (j / n)) + _LOG_2PI) * 0.5
    return s.where(k <= 0.0, n * _log1p(s, -p), s.where(k >= n, n * _log(s, p), inside))


def _transformed(s, offset, width, slope, bound, height, accepts, operands):
    """Hoermann's transformed rejection: a proposal floor((2 slope / u' + width) u + offset).

    ``accepts(s, k, log_height, *operands)`` is the exact test; `bound` the one that needs none.
    """

    def test(s, k, ratio, *operands):
        return accepts(s, k, _log(s, ratio), *operands)

    def attempt(s, i, _, offset, width, slope, bound, height, *operands):
        u, v = s.uniforms(i)
        sure, k, us = _transformed_proposal(s, u, v, offset, width, slope, bound)
        ratio = v * (height / (slope / (us * us) + width))
        return s.either(sure, test, (k, ratio, *operands)), (i + 1, k)

    fixed = (offset, width, slope, bound, height, *operands)
    return s.until(attempt, (s.counting(offset), offset), fixed)[1]


def _transformed_proposal(s, u, v, offset, width, slope, bound):
    """Return whether a proposal needs no further test, the proposal, and its distance."""
    u = u - 0.5
    us = 0.5 - s.abs(u)
    k = s.floor((slope * 2.0 / us + width) * u + offset)
    return s.logical_and(us >= 0.07, v <= bound), k, us


def poisson(s, rate):
    """Draw from Poisson(rate)."""
    return s.choose(
        rate < _MEAN,
        _poisson_by_inversion,
        lambda s, rate: s.choose(
            rate <= _HUGE_RATE, _poisson_by_rejection, _poisson_by_normal, (rate,)
        ),
        (rate,),
    )


def _poisson_by_inversion(s, rate):
    def step(s, k, p, u, rate):
        spent = s.logical_and(p < 1e-20, k > rate)
        done = s.logical_or(u <= p, spent)
        return done, (s.where(done, k, k + 1.0), p * (rate / (k + 1.0)), u - p)

    start = (rate * 0.0, _exp(s, -rate), s.uniforms(s.counting(rate))[0])
    return s.until(step, start, (rate,))[0]


def _poisson_frame(s, rate):
    """Return what proposals lie around: offset, width, slope and bound."""
    width = s.sqrt(rate) * 2.53 + 0.931
    return rate + 0.43, width, width * 0.02483 - 0.059, 0.9277 - 3.6224 / (width - 2.0)


def _poisson_by_rejection(s, rate):
    offset, width, slope, bound = _poisson_frame(s, rate)
    height = 1.1328 / (width - 3.4) + 1.1239

    def accepts(s, k, log_height, rate):
        possible = k >= 0.0
        return s.logical_and(
            possible, log_height <= _log_poisson(s, s.where(possible, k, 0.0), rate)
        )

    return _transformed(s, offset, width, slope, bound, height, accepts, (rate,))


def _quick_poisson(s, u, v, rate):
    return _transformed_proposal(s, u, v, *_poisson_frame(s, rate))[:2]


def _poisson_rejects(s, rate):
    return s.logical_and(rate >= _MEAN, rate <= _HUGE_RATE)


def _poisson_by_normal(s, rate):
    return s.rint(rate + s.sqrt(rate) * s.ndtri(s.uniforms(s.counting(rate))[0]))


def binomial(s, n, p):
    """Draw the number of successes in n trials of probability p."""
    turned = p > 0.5
    q = s.where(turned, 1.0 - p, p)
    k = s.choose(n * q < _MEAN, _binomial_by_inversion, _binomial_by_rejection, (n, q))
    return s.where(turned, n - k, k)


def _binomial_by_inversion(s, n, p):
    def step(s, k, f, u, n, p, odds):
        spent = s.logical_or(k >= n, s.logical_and(f < 1e-20, k > n * p))
        done = s.logical_or(u <= f, spent)
        following = f * (odds * ((n - k) / (k + 1.0)))
        return done, (s.where(done, k, k + 1.0), following, u - f)

    start = (n * 0.0, _exp(s, n * _log1p(s, -p)), s.uniforms(s.counting(n))[0])
    return s.until(step, start, (n, p, p / (1.0 - p)))[0]


def _binomial_frame(s, n, p):
    """Return the standard deviation, and what proposals lie around, as for Poisson draws."""
    deviation = s.sqrt(n * p * (1.0 - p))
    width = deviation * 2.53 + 1.15
    slope = width * 0.0248 - 0.0873 + p * 0.01
    return deviation, (n * p + 0.5, width, slope, 0.92 - 4.2 / width)


def _binomial_by_rejection(s, n, p):
    deviation, (offset, width, slope, bound) = _binomial_frame(s, n, p)
    height = (5.1 / width + 2.83) * deviation

    def accepts(s, k, log_height, n, p):
        possible = s.logical_and(k >= 0.0, k <= n)
        top = _log_binomial(s, s.floor((n + 1.0) * p), n, p)
        ratio = _log_binomial(s, s.where(possible, k, 0.0), n, p) - top
        return s.logical_and(possible, log_height <= ratio)

    return _transformed(s, offset, width, slope, bound, height, accepts, (n, p))


def _quick_binomial(s, u, v, n, p):
    turned = p > 0.5
    q = s.where(turned, 1.0 - p, p)
    sure, k, _ = _transformed_proposal(s, u, v, *_binomial_frame(s, n, q)[1])
    return sure, s.where(turned, n - k, k)


def _binomial_rejects(s, n, p):
    return n * s.where(p > 0.5, 1.0 - p, p) >= _MEAN


# ---------------------------------------------------------------------------------------- von Mises


# From here on the normal distribution is the same to rounding.
_STRAIGHT = 1e12


def von_mises(s, k):
    """Draw tan(angle / 2) from the von Mises distribution around 0 with concentration k."""
    return s.choose(k < _STRAIGHT, _von_mises_by_rejection, _von_mises_by_normal, (k,))


def _von_mises_by_normal(s, k):
    return s.ndtri(s.uniforms(s.counting(k))[0]) * 0.5 / s.sqrt(k)


def _von_mises_by_rejection(s, k):
    # The proposal is a wrapped Cauchy draw: a tangent times that of a uniform angle, which is the
    # quotient of the coordinates of a point in the unit disc.
    wide = s.maximum(k, 1e-5)
    root = s.sqrt(wide * wide * 4.0 + 1.0)
    r = root + 1.0
    rho = (r - s.sqrt(r * 2.0)) / (wide * 2.0)
    # Below 1e-5 the numerator of rho cancels; there rho is k / 2 to rounding.
    rho = s.where(k < 1e-5, k * 0.5, rho)
    shape = (1.0 - rho) / (rho + 1.0)

    def attempt(s, i, _, k, rho, shape):
        x, y = (u * 2.0 - 1.0 for u in s.uniforms(2 * i))
        u, _ = s.uniforms(2 * i + 1)
        inside = x * x + y * y <= 1.0
        t = shape * (y / x)
        # k (s - f), with f = cos(angle) = (1 - t^2) / (1 + t^2) and s = (1 + rho^2) / (2 rho).
        square = t * t
        gap = (1.0 - rho) * (1.0 - rho) / (rho * 2.0) + square * 2.0 / (square + 1.0)
        c = k * gap
        fits = s.logical_or(c * (2.0 - c) > u, _log(s, c / u) + 1.0 >= c)
        return s.logical_and(inside, fits), (i + 1, t)

    return s.until(attempt, (s.counting(k), k), (k, rho, shape))[1]


# ------------------------------------------------------------------------------------- Polya-gamma

# Where the two series of the density meet; any point near it would do. Proposals of the Levy kind
# are squares of normal deviates beyond 1.25: that share of them on one side.
_CUT, _BEYOND = 0.64, 0.10564977366685525


def polya_gamma(s, n, z, share):
    """Draw 4 times the sum of n Polya-gamma numbers of shape 1 and tilt 2 z, for z >= 0.

    `share` is the part of proposals that lie beyond 0.64, which come from an exponential
    distribution; the others are inverse Gaussian, cut off there. A side is kept until it has made
    a proposal.
    """

    def attempt(s, i, made, side, sum_, n, z, share):
        choice, accept = s.uniforms(2 * i)
        u, v = s.uniforms(2 * i + 1)
        side = s.where(side == 0.0, s.where(choice < share, side + 2.0, side + 1.0), side)
        beyond = side == 2.0
        below, proposed = _below_cut(s, u, v, z)
        x = s.where(beyond, _CUT - _log(s, v) / (z * z * 0.5 + math.pi**2 / 8.0), below)
        proposed = s.logical_or(beyond, proposed)
        # The series is 1 - 3 c + 5 c^3 - 7 c^6: the next term is below 1e-26.
        c = _exp(s, s.where(beyond, x * -(math.pi**2), -4.0 / x))
        cube = c * c * c
        ratio = 1.0 - c * 3.0 + cube * 5.0 - cube * cube * 7.0
        good = s.logical_and(proposed, accept <= ratio)
        made, sum_ = s.where(good, made + 1.0, made), s.where(good, sum_ + x, sum_)
        return made >= n, (i + 1, made, s.where(proposed, side * 0.0, side), sum_)

    zero = n * 0.0
    fixed = (s.maximum(n, 1.0), z, share)
    sum_ = s.until(attempt, (s.counting(n), zero, zero, zero), fixed)[3]
    return s.where(n > 0.0, sum_, 0.0)


def _below_cut(s, u, v, z):
    """Return a proposal from the inverse Gaussian of mean 1 / z below the cut, and if it is one."""
    flat = z * _CUT < 1.0
    # From the Levy distribution, cut off, thinned by exp(-z^2 x / 2) > 0.45.
    deviate = s.ndtri(u * _BEYOND)
    levy = 1.0 / (deviate * deviate)
    thinned = v <= _exp(s, s.where(flat, levy * z * z * -0.5, 0.0))
    # Of a large tilt by two roots [michael1976]_, of which those beyond the cut are refused.
    m = 1.0 / s.where(flat, 1.0, z)
    normal = s.ndtri(u)
    half = normal * normal * m * 0.5
    root = m / (half + 1.0 + s.sqrt(half * (half + 2.0)))
    root = s.where(v * (m + root) <= m, root, m * m / root)
    return s.where(flat, levy, root), s.where(flat, thinned, root <= _CUT)


def _counted(s, n, z, share):
    """Whether the parameters of Polya-gamma draws are allowed."""
    whole = s.logical_and(s.floor(n) == n, s.logical_and(n >= 0.0, n < 2.0**53))
    return s.logical_and(whole, s.logical_and(z >= 0.0, z < math.inf))


def _positive(s, x):
    return s.logical_and(x > 0.0, x < math.inf)


def _trials(s, n, p):
    whole = s.logical_and(s.floor(n) == n, s.logical_and(n >= 0.0, n < 2.0**63))
    return s.logical_and(whole, s.logical_and(p >= 0.0, p <= 1.0))


@dataclass(frozen=True)
class Quick:
    """What most draws come to, without a branch: native code computes many at once.

    Attributes
    ----------
    formula : callable
        ``formula(s, u, v, *parameters)`` of a pair of uniform numbers gives whether the draw is
        made by them, and the draw where it is: that of the whole formula, bit for bit.
    covers : callable
        ``covers(s, *parameters)`` gives for which parameters the formula holds.
    block : int
        Which pair of the element's that is.
    normal : bool
        Whether `v` is the normal number of that quantile.
    """

    formula: _Formula
    covers: _Formula
    block: int = 0
    normal: bool = False


@dataclass(frozen=True)
class RejectionSampler:
    """A formula of parameters, how many there are, and which it may be given."""

    formula: _Formula
    arity: int
    allows: _Formula
    quick: Quick | None = None


def _nonnegative(s, x):
    return s.logical_and(x >= 0.0, x < math.inf)


SAMPLERS = {
    "log_gamma": RejectionSampler(log_gamma, 1, _positive, _quick_gamma(_log_gamma_from)),
    "gamma": RejectionSampler(gamma, 1, _positive, _quick_gamma(_gamma_from)),
    "poisson": RejectionSampler(poisson, 1, _nonnegative, Quick(_quick_poisson, _poisson_rejects)),
    "binomial": RejectionSampler(binomial, 2, _trials, Quick(_quick_binomial, _binomial_rejects)),
    "von_mises": RejectionSampler(von_mises, 1, _positive),
    "polya_gamma": RejectionSampler(polya_gamma, 3, _counted),
}


# --------------------------------------------------------------------------------------- on arrays


class Streams(Lanes):
    """The algebra of samplers on flat float64 arrays.

    Parameters
    ----------
    seed : int
    streams : ndarray of uint64
        One per element.
    """

    ndtri = staticmethod(special_function("ndtri"))

    def __init__(self, seed, streams):
        self.seed = seed
        self.streams = streams

    def part(self, index):
        """Return the algebra of some of the elements."""
        return Streams(self.seed, self.streams[index])

    @staticmethod
    def counting(like):
        """Return the number of the first attempt for each element."""
        return np.zeros(np.shape(like), np.int64)

    def uniforms(self, n):
        """Return each element's n-th pair of uniform numbers."""
        first, second = philox_pairs(self.seed ^ STREAM_KEY, self.streams, n)
        return bits_to_uniform(first), bits_to_uniform(second)

    @staticmethod
    def split(x):
        """Return k and m in [sqrt(1/2), sqrt(2)) with x = 2**k m."""
        m, k = np.frexp(x)
        low = m < _SQRT_HALF
        return k - low.astype(np.float64), np.where(low, m * 2.0, m)

    @staticmethod
    def power_of_two(n):
        """Return 2**n for whole n in the range of normal exponents."""
        return np.ldexp(1.0, n.astype(np.int64))


def draw(name, seed, stream, counters, *parameters):
    """Return float64 draws, one per element of the parameters.

    Parameters
    ----------
    name : str
        One of `SAMPLERS`.
    seed, stream : int
    counters : ndarray of uint64 or int64
    parameters : ndarray of float64
        Valid ones, of the shape of `counters`.
    """
    shape, counters = counters.shape, counters.reshape(-1)
    flat = [np.asarray(p, np.float64).reshape(-1) for p in parameters]
    native = native_draw(name, 100_000.0 + 500.0 * counters.size)
    if native is not None:
        return native(seed, stream, counters, *flat).reshape(shape)
    formula = SAMPLERS[name].formula
    streams = philox_bits(seed, stream, counters)
    out = np.empty(streams.size)
    with np.errstate(all="ignore"):
        for i in range(0, out.size, _CHUNK):
            part = slice(i, i + _CHUNK)
            out[part] = formula(Streams(seed, streams[part]), *(p[part] for p in flat))
    return out.reshape(shape)
