"""Draws by rejection as formulas: the same numbers from arrays and from generated code.

How many random words a rejection sampler takes depends on what it draws. So that every element can
be drawn alone, in any order and by any target, each has a stream of words of its own: the 64 bits
of its counter name the stream, under another key than that of all other draws. An element costs one
counter whatever happens inside.

The formulas are over an algebra `s`, as in ops/scalar.py, with more things: `s.uniforms(n)`, the
element's n-th pair of uniform numbers; `s.split` and `s.power_of_two`, which take floats apart and
make them; `s.choose`, a branch; `s.either`, a test after a test; and `s.until`, a loop. `Streams`
is the algebra on arrays; compiler/lang/routines/draws.py has the one that writes native code.

Logarithms, exponentials and quantiles are those of ops/exact.py. So eager and compiled draws agree
bit for bit, and no rounding can make one accept what the other rejects.

Gamma: Marsaglia and Tsang (2000). Von Mises: Best and Fisher (1979). Polya-gamma: Devroye's
alternating series, as in [polson2013]_. Counts are in ops/rejected_counts.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.philox import (
    bits_to_uniform,
    native_draw,
    philox_bits,
    philox_pairs,
)
from probtorch.ops.exact import ExactArrays, exp, log, normal_quantile
from probtorch.ops.quick import Quick, RejectionSampler
from probtorch.ops.rejected_counts import BINOMIAL, POISSON, PROGENY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from probtorch.ops.algebra import Drawing, ExactScalars, Number, Scalars


__all__ = ["SAMPLERS", "STREAM_KEY", "Streams", "draw"]

# The seed of an element's words is the generator's with these bits turned over: ASCII "rejectio".
STREAM_KEY = 0x72656A656374696F

# Elements per pass, so that the work arrays stay in the second-level cache.
_CHUNK = 4096


# -------------------------------------------------------------------------------------------- gamma


# The first block of an element's words that proposals take; block 0 is left for the boost.
_GAMMA_BLOCK = 1


def _marsaglia_tsang_scales(s: Scalars[Number], a: Number) -> tuple[Number, Number]:
    d = a - 1.0 / 3.0
    return d, 1.0 / s.sqrt(d * 9.0)


def _marsaglia_tsang(s: Drawing[Number], a: Number) -> tuple[Number, Number]:
    """Return d and v, with d v^3 a draw from Gamma(a, 1), for a >= 1."""
    d, c = _marsaglia_tsang_scales(s, a)

    def attempt(
        s: Drawing[Number], i: Number, _: Number, d: Number, c: Number
    ) -> tuple[Number, tuple[Number, Number]]:
        u, w = s.uniforms(i)
        quick, v, square = _marsaglia_tsang_proposal(s, u, normal_quantile(s, w), c)
        return s.either(quick, _marsaglia_tsang_test, (u, v, square, d)), (i + 1, v)

    return d, s.until(attempt, (s.counting(a) + _GAMMA_BLOCK, d), (d, c))[1]


def _marsaglia_tsang_proposal(
    s: Scalars[Number], u: Number, x: Number, c: Number
) -> tuple[Number, Number, Number]:
    """Return whether a proposal needs no further test; v; and the square of the normal number."""
    v = c * x + 1.0
    square = x * x
    return s.logical_and(v > 0.0, u < 1.0 - square * square * 0.0331), v, square


def _marsaglia_tsang_test(
    s: ExactScalars[Number], u: Number, v: Number, square: Number, d: Number
) -> Number:
    positive = v > 0.0
    log_v = log(s, s.where(positive, v, 1.0))
    bound = square * 0.5 + d * (1.0 - v * v * v + log_v * 3.0)
    return s.logical_and(positive, log(s, u) < bound)


def _log_gamma_from(s: ExactScalars[Number], d: Number, v: Number) -> Number:
    return log(s, d) + log(s, v) * 3.0


def _gamma_from(s: ExactScalars[Number], d: Number, v: Number) -> Number:
    return d * (v * v * v)


def _log_gamma_of_large(s: Drawing[Number], a: Number) -> Number:
    return _log_gamma_from(s, *_marsaglia_tsang(s, a))


def _log_gamma_of_small(s: Drawing[Number], a: Number) -> Number:
    return _boosted(s, _log_gamma_of_large(s, a + 1.0), s.uniforms(s.counting(a))[0], a)


def _boosted(s: ExactScalars[Number], log_gamma: Number, u: Number, a: Number) -> Number:
    # G(a) = G(a + 1) U^(1/a) in distribution; in log space the power cannot underflow.
    return log_gamma + log(s, u) / a


def log_gamma(s: Drawing[Number], a: Number) -> Number:
    """Logarithm of a draw from Gamma(a, 1)."""
    return s.choose(a < 1.0, _log_gamma_of_small, _log_gamma_of_large, (a,))


def gamma(s: Drawing[Number], a: Number) -> Number:
    """Draw from Gamma(a, 1); 0 where it underflows."""

    def large(s: Drawing[Number], a: Number) -> Number:
        return _gamma_from(s, *_marsaglia_tsang(s, a))

    return s.choose(a < 1.0, lambda s, a: exp(s, _log_gamma_of_small(s, a)), large, (a,))


def _large_gamma(finish: Callable[..., Number]) -> Quick:
    """Return the quick formulas of gamma draws that ``finish(s, d, v)`` makes, for a >= 1."""

    def some(
        s: ExactScalars[Number], pairs: Sequence[tuple[Number, Number]], a: Number
    ) -> tuple[Number, Number]:
        ((u, x),) = pairs
        d, c = _marsaglia_tsang_scales(s, a)
        sure, v, _ = _marsaglia_tsang_proposal(s, u, x, c)
        return sure, finish(s, d, s.where(sure, v, 1.0))

    def more(
        s: ExactScalars[Number], pairs: Sequence[tuple[Number, Number]], a: Number
    ) -> tuple[Number, Number]:
        ((u, x),) = pairs
        d, c = _marsaglia_tsang_scales(s, a)
        sure, v, square = _marsaglia_tsang_proposal(s, u, x, c)
        sure = s.logical_or(sure, _marsaglia_tsang_test(s, u, v, square, d))
        return sure, finish(s, d, s.where(sure, v, 1.0))

    return Quick((some, more), lambda s, a: a >= 1.0, (_GAMMA_BLOCK,), normal=True)


def _small_gamma(finish: Callable[..., Number]) -> Quick:
    """The same for a < 1, where ``finish(s, log_draw)`` makes them."""

    def boosted(
        formula: Callable[..., tuple[Number, Number]],
    ) -> Callable[..., tuple[Number, Number]]:
        def quick(
            s: ExactScalars[Number], pairs: Sequence[tuple[Number, Number]], a: Number
        ) -> tuple[Number, Number]:
            sure, larger = formula(s, pairs[1:], a + 1.0)
            return sure, finish(s, _boosted(s, larger, pairs[0][0], a))

        return quick

    formulas = tuple(map(boosted, _large_gamma(_log_gamma_from).formulas))
    return Quick(formulas, lambda s, a: a < 1.0, (0, _GAMMA_BLOCK), normal=True)


# ---------------------------------------------------------------------------------------- von Mises


# From here on the normal distribution is the same to rounding.
_STRAIGHT = 1e12


def von_mises(s: Drawing[Number], k: Number) -> Number:
    """Draw tan(angle / 2) from the von Mises distribution around 0 with concentration k."""
    return s.choose(k < _STRAIGHT, _von_mises_by_rejection, _von_mises_by_normal, (k,))


def _von_mises_by_normal(s: Drawing[Number], k: Number) -> Number:
    return normal_quantile(s, s.uniforms(s.counting(k))[0]) * 0.5 / s.sqrt(k)


def _von_mises_by_rejection(s: Drawing[Number], k: Number) -> Number:
    # The proposal is a wrapped Cauchy draw: a tangent times that of a uniform angle, which is the
    # quotient of the coordinates of a point in the unit disc.
    wide = s.maximum(k, 1e-5)
    root = s.sqrt(wide * wide * 4.0 + 1.0)
    r = root + 1.0
    rho = (r - s.sqrt(r * 2.0)) / (wide * 2.0)
    # Below 1e-5 the numerator of rho cancels; there rho is k / 2 to rounding.
    rho = s.where(k < 1e-5, k * 0.5, rho)
    shape = (1.0 - rho) / (rho + 1.0)

    def attempt(
        s: Drawing[Number], i: Number, _: Number, k: Number, rho: Number, shape: Number
    ) -> tuple[Number, tuple[Number, Number]]:
        x, y = (u * 2.0 - 1.0 for u in s.uniforms(2 * i))
        u, _ = s.uniforms(2 * i + 1)
        inside = x * x + y * y <= 1.0
        t = shape * (y / x)
        # k (s - f), with f = cos(angle) = (1 - t^2) / (1 + t^2) and s = (1 + rho^2) / (2 rho).
        square = t * t
        gap = (1.0 - rho) * (1.0 - rho) / (rho * 2.0) + square * 2.0 / (square + 1.0)
        c = k * gap
        fits = s.logical_or(c * (2.0 - c) > u, log(s, c / u) + 1.0 >= c)
        return s.logical_and(inside, fits), (i + 1, t)

    return s.until(attempt, (s.counting(k), k), (k, rho, shape))[1]


# ------------------------------------------------------------------------------------- Polya-gamma

# Where the two series of the density meet; any point near it would do. Proposals of the Levy kind
# are squares of normal deviates beyond 1.25: that share of them on one side.
_CUT, _BEYOND = 0.64, 0.10564977366685525


def polya_gamma(s: Drawing[Number], n: Number, z: Number, share: Number) -> Number:
    """Draw 4 times the sum of n Polya-gamma numbers of shape 1 and tilt 2 z, for z >= 0.

    `share` is the part of proposals that lie beyond 0.64, which come from an exponential
    distribution; the others are inverse Gaussian, cut off there. A side is kept until it has made
    a proposal.
    """

    def attempt(
        s: Drawing[Number],
        i: Number,
        made: Number,
        side: Number,
        sum_: Number,
        n: Number,
        z: Number,
        share: Number,
    ) -> tuple[Number, tuple[Number, Number, Number, Number]]:
        choice, accept = s.uniforms(2 * i)
        u, v = s.uniforms(2 * i + 1)
        side = s.where(side == 0.0, s.where(choice < share, side + 2.0, side + 1.0), side)
        beyond = side == 2.0
        below, proposed = _below_cut(s, u, v, z)
        x = s.where(beyond, _CUT - log(s, v) / (z * z * 0.5 + math.pi**2 / 8.0), below)
        proposed = s.logical_or(beyond, proposed)
        # The series is 1 - 3 c + 5 c^3 - 7 c^6: the next term is below 1e-26.
        c = exp(s, s.where(beyond, x * -(math.pi**2), -4.0 / x))
        cube = c * c * c
        ratio = 1.0 - c * 3.0 + cube * 5.0 - cube * cube * 7.0
        good = s.logical_and(proposed, accept <= ratio)
        made, sum_ = s.where(good, made + 1.0, made), s.where(good, sum_ + x, sum_)
        return made >= n, (i + 1, made, s.where(proposed, side * 0.0, side), sum_)

    zero = n * 0.0
    fixed = (s.maximum(n, 1.0), z, share)
    sum_ = s.until(attempt, (s.counting(n), zero, zero, zero), fixed)[3]
    return s.where(n > 0.0, sum_, 0.0)


def _below_cut(s: ExactScalars[Number], u: Number, v: Number, z: Number) -> tuple[Number, Number]:
    """Return a proposal from the inverse Gaussian of mean 1 / z below the cut, and if it is one."""
    flat = z * _CUT < 1.0
    # From the Levy distribution, cut off, thinned by exp(-z^2 x / 2) > 0.45.
    deviate = normal_quantile(s, u * _BEYOND)
    levy = 1.0 / (deviate * deviate)
    thinned = v <= exp(s, s.where(flat, levy * z * z * -0.5, 0.0))
    # Of a large tilt by two roots [michael1976]_, of which those beyond the cut are refused.
    m = 1.0 / s.where(flat, 1.0, z)
    normal = normal_quantile(s, u)
    half = normal * normal * m * 0.5
    root = m / (half + 1.0 + s.sqrt(half * (half + 2.0)))
    root = s.where(v * (m + root) <= m, root, m * m / root)
    return s.where(flat, levy, root), s.where(flat, thinned, root <= _CUT)


def _counted(s: Scalars[Number], n: Number, z: Number, share: Number) -> Number:
    """Whether the parameters of Polya-gamma draws are allowed."""
    whole = s.logical_and(s.floor(n) == n, s.logical_and(n >= 0.0, n < 2.0**53))
    return s.logical_and(whole, s.logical_and(z >= 0.0, z < math.inf))


def _positive(s: Scalars[Number], x: Number) -> Number:
    return s.logical_and(x > 0.0, x < math.inf)


_QUICK_LOG_GAMMA = _large_gamma(_log_gamma_from), _small_gamma(lambda s, log_draw: log_draw)
_QUICK_GAMMA = _large_gamma(_gamma_from), _small_gamma(exp)
SAMPLERS = {
    "log_gamma": RejectionSampler(log_gamma, 1, _positive, _QUICK_LOG_GAMMA),
    "gamma": RejectionSampler(gamma, 1, _positive, _QUICK_GAMMA),
    "poisson": POISSON,
    "binomial": BINOMIAL,
    "progeny": PROGENY,
    "von_mises": RejectionSampler(von_mises, 1, _positive),
    "polya_gamma": RejectionSampler(polya_gamma, 3, _counted),
}


# --------------------------------------------------------------------------------------- on arrays


class Streams(ExactArrays):
    """The algebra of samplers on flat float64 arrays.

    Parameters
    ----------
    seed : int
    streams : ndarray of uint64
        One per element.
    """

    def __init__(self, seed: int, streams: np.ndarray) -> None:
        self.seed = seed
        self.streams = streams

    def part(self, index: np.ndarray) -> Streams:
        """Return the algebra of some of the elements."""
        return Streams(self.seed, self.streams[index])

    @staticmethod
    def counting(like: np.ndarray) -> np.ndarray:
        """Return the number of the first attempt for each element."""
        return np.zeros(np.shape(like), np.int64)

    def uniforms(self, n: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
        """Return each element's n-th pair of uniform numbers."""
        first, second = philox_pairs(self.seed ^ STREAM_KEY, self.streams, n)
        return bits_to_uniform(first), bits_to_uniform(second)


def draw(
    name: str, seed: int, stream: int, counters: np.ndarray | int, *parameters: np.ndarray
) -> np.ndarray:
    """Return float64 draws, one per element of the parameters.

    Parameters
    ----------
    name : str
        One of `SAMPLERS`.
    seed, stream : int
    counters : ndarray of uint64 or int64, or int
        Of the shape of the parameters; or the first of consecutive ones.
    parameters : ndarray of float64
        Valid ones, of one shape.
    """
    native = native_draw(name, 100_000.0 + 500.0 * parameters[0].size)
    if native is not None:
        return native(seed, stream, counters, *parameters)
    shape, size = parameters[0].shape, parameters[0].size
    if not isinstance(counters, np.ndarray):
        counters = np.arange(size, dtype=np.uint64) + np.uint64(counters)
    flat = [np.asarray(p, np.float64).reshape(-1) for p in parameters]
    formula = SAMPLERS[name].formula
    streams = philox_bits(seed, stream, counters.reshape(-1))
    out = np.empty(streams.size)
    with np.errstate(all="ignore"):
        for i in range(0, out.size, _CHUNK):
            part = slice(i, i + _CHUNK)
            out[part] = formula(Streams(seed, streams[part]), *(p[part] for p in flat))
    return out.reshape(shape)
