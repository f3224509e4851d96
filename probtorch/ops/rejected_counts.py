"""Draws of counts as formulas; ops/rejection.py says over what, and makes draws of them.

Poisson and binomial ones of small means by inversion; else by Hoermann's transformed rejection
(1993), with acceptance by Loader's saddle-point form (2000), which does not cancel at large counts.
Sizes of family trees by rejection from an inverse Gaussian.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from probtorch.ops.exact import exp, log, log1p, normal_quantile
from probtorch.ops.quick import Quick, RejectionSampler
from probtorch.ops.stirling import lgamma_rest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from probtorch.ops.algebra import Drawing, ExactScalars, Number, Operand


__all__ = ["BINOMIAL", "POISSON", "PROGENY"]

_LOG_2PI = math.log(2.0 * math.pi)

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
# Steps of inversion that are made for all: one of 20 000 counts of mean 10 takes more.
_STEPS = 24


def _stirling_error(s: ExactScalars[Number], k: Number) -> Number:
    """log(k!) less Stirling's formula, for whole k >= 1."""
    big = k >= 10.0
    out = lgamma_rest(s.where(big, k, 10.0))
    for j, error in enumerate(_STIRLING_ERRORS, 1):
        out = s.where(k == float(j), error, out)
    return out


def _deviance(s: ExactScalars[Number], k: Number, mean: Number) -> Number:
    """Return k log(k / mean) + mean - k, for k > 0, without cancellation [loader2000]."""
    e = (k - mean) / mean
    return mean * ((e + 1.0) * log1p(s, e) - e)


def _log_poisson(s: ExactScalars[Number], k: Number, rate: Number) -> Number:
    """Logarithm of the Poisson probability of a whole k >= 0."""
    some = k > 0.0
    j = s.where(some, k, 1.0)
    many = -_deviance(s, j, rate) - _stirling_error(s, j) - (log(s, j) + _LOG_2PI) * 0.5
    return s.where(some, many, -rate)


def _log_binomial(s: ExactScalars[Number], k: Number, n: Number, p: Number) -> Number:
    """Logarithm of the binomial probability of a whole k from 0 to n, for 0 < p < 1, n >= 2."""
    q = 1.0 - p
    i = s.minimum(s.maximum(k, 1.0), n - 1.0)
    j = n - i
    errors = _stirling_error(s, n) - _stirling_error(s, i) - _stirling_error(s, j)
    inside = errors - _deviance(s, i, n * p) - _deviance(s, j, n * q)
    inside = inside - (log(s, i * (j / n)) + _LOG_2PI) * 0.5
    return s.where(k <= 0.0, n * log1p(s, -p), s.where(k >= n, n * log(s, p), inside))


def _transformed(
    s: Drawing[Number],
    frame: tuple[Number, Number, Number, Number],
    height: Number,
    accepts: Callable[..., Number],
    operands: Sequence[Number],
) -> Number:
    """Hoermann's transformed rejection: a proposal floor((2 slope / u' + width) u + offset).

    `frame` has offset, width, slope, and the bound that needs no further test;
    ``accepts(s, k, log_height, *operands)`` is the exact test.
    """

    def test(s: ExactScalars[Number], k: Number, ratio: Number, *operands: Number) -> Number:
        return accepts(s, k, log(s, ratio), *operands)

    def attempt(
        s: Drawing[Number],
        i: Number,
        _: Number,
        offset: Number,
        width: Number,
        slope: Number,
        bound: Number,
        height: Number,
        *operands: Number,
    ) -> tuple[Number, tuple[Number, Number]]:
        u, v = s.uniforms(i)
        sure, k, us = _transformed_proposal(s, u, v, offset, width, slope, bound)
        ratio = v * (height / (slope / (us * us) + width))
        return s.either(sure, test, (k, ratio, *operands)), (i + 1, k)

    offset = frame[0]
    return s.until(attempt, (s.counting(offset), offset), (*frame, height, *operands))[1]


def _transformed_proposal(
    s: ExactScalars[Number],
    u: Number,
    v: Number,
    offset: Number,
    width: Number,
    slope: Number,
    bound: Number,
) -> tuple[Number, Number, Number]:
    """Return whether a proposal needs no further test, the proposal, and its distance."""
    u = u - 0.5
    us = 0.5 - s.abs(u)
    k = s.floor((slope * 2.0 / us + width) * u + offset)
    return s.logical_and(us >= 0.07, v <= bound), k, us


def _transformed_at_once(
    s: ExactScalars[Number],
    pairs: Sequence[tuple[Number, Number]],
    frame: tuple[Number, Number, Number, Number],
    height: Number,
    accepts: Callable[..., Number],
    operands: Sequence[Number],
) -> tuple[Number, Number]:
    """Return whether the first proposal is taken, and that proposal."""
    ((u, v),) = pairs
    offset, width, slope, bound = frame
    sure, k, us = _transformed_proposal(s, u, v, offset, width, slope, bound)
    ratio = v * (height / (slope / (us * us) + width))
    return s.logical_or(sure, accepts(s, k, log(s, ratio), *operands)), k


def _first_steps(
    s: ExactScalars[Number], u: Number, first: Number, ratio: Callable[[float], Number]
) -> tuple[Number, Number]:
    """Return whether inversion ends within some steps, and where, for ``p[j + 1] = p[j] ratio(j)``.

    These are the steps of `_inverted`, one after the other for many draws.
    """
    k, mass, below = u * 0.0, first, first
    for j in range(_STEPS):
        k = k + s.where(u > below, 1.0, 0.0)
        mass = mass * ratio(float(j))
        below = below + mass
    return u <= below, k


def _inverted(
    s: Drawing[Number],
    u: Number,
    first: Number,
    ratio: Callable[..., Number],
    last: Callable[..., Number],
    operands: Sequence[Number],
) -> Number:
    """Count up to where the sum of masses ``p[k + 1] = p[k] ratio(s, k, *operands)`` reaches u.

    ``last(s, k, p, *operands)`` says where the masses that are left cannot be told from 0.
    """

    def step(
        s: ExactScalars[Number],
        k: Number,
        mass: Number,
        below: Number,
        u: Number,
        *operands: Number,
    ) -> tuple[Number, tuple[Number, Number, Number]]:
        done = s.logical_or(u <= below, last(s, k, mass, *operands))
        mass = mass * ratio(s, k, *operands)
        return done, (s.where(done, k, k + 1.0), mass, below + mass)

    return s.until(step, (u * 0.0, first, first), (u, *operands))[0]


def poisson(s: Drawing[Number], rate: Number) -> Number:
    """Draw from Poisson(rate)."""
    return s.choose(
        rate < _MEAN,
        _poisson_by_inversion,
        lambda s, rate: s.choose(
            rate <= _HUGE_RATE, _poisson_by_rejection, _poisson_by_normal, (rate,)
        ),
        (rate,),
    )


def _poisson_ratio(s: ExactScalars[Number], k: Operand[Number], rate: Number) -> Number:
    return rate * (1.0 / (k + 1.0))


def _poisson_by_inversion(s: Drawing[Number], rate: Number) -> Number:
    def last(s: ExactScalars[Number], k: Number, mass: Number, rate: Number) -> Number:
        return s.logical_and(mass < 1e-20, k > rate)

    u = s.uniforms(s.counting(rate))[0]
    return _inverted(s, u, exp(s, -rate), _poisson_ratio, last, (rate,))


def _poisson_at_first_steps(
    s: ExactScalars[Number], pairs: Sequence[tuple[Number, Number]], rate: Number
) -> tuple[Number, Number]:
    return _first_steps(s, pairs[0][0], exp(s, -rate), lambda k: _poisson_ratio(s, k, rate))


def _poisson_frame(
    s: ExactScalars[Number], rate: Number
) -> tuple[tuple[Number, Number, Number, Number], Number]:
    """Return what proposals lie around (offset, width, slope and bound), and their height."""
    width = s.sqrt(rate) * 2.53 + 0.931
    frame = rate + 0.43, width, width * 0.02483 - 0.059, 0.9277 - 3.6224 / (width - 2.0)
    return frame, 1.1328 / (width - 3.4) + 1.1239


def _poisson_accepts(
    s: ExactScalars[Number], k: Number, log_height: Number, rate: Number
) -> Number:
    possible = k >= 0.0
    return s.logical_and(possible, log_height <= _log_poisson(s, s.where(possible, k, 0.0), rate))


def _poisson_by_rejection(s: Drawing[Number], rate: Number) -> Number:
    frame, height = _poisson_frame(s, rate)
    return _transformed(s, frame, height, _poisson_accepts, (rate,))


def _poisson_by_proposal(
    s: ExactScalars[Number], pairs: Sequence[tuple[Number, Number]], rate: Number
) -> tuple[Number, Number]:
    return _transformed_proposal(s, *pairs[0], *_poisson_frame(s, rate)[0])[:2]


def _poisson_at_once(
    s: ExactScalars[Number], pairs: Sequence[tuple[Number, Number]], rate: Number
) -> tuple[Number, Number]:
    frame, height = _poisson_frame(s, rate)
    return _transformed_at_once(s, pairs, frame, height, _poisson_accepts, (rate,))


def _poisson_rejects(s: ExactScalars[Number], rate: Number) -> Number:
    return s.logical_and(rate >= _MEAN, rate <= _HUGE_RATE)


def _poisson_by_normal(s: Drawing[Number], rate: Number) -> Number:
    return s.rint(rate + s.sqrt(rate) * normal_quantile(s, s.uniforms(s.counting(rate))[0]))


def _smaller_side(s: ExactScalars[Number], p: Number) -> tuple[Number, Number]:
    """Return whether failures are counted, and the probability of what is."""
    turned = p > 0.5
    return turned, s.where(turned, 1.0 - p, p)


def binomial(s: Drawing[Number], n: Number, p: Number) -> Number:
    """Draw the number of successes in n trials of probability p."""
    turned, q = _smaller_side(s, p)
    k = s.choose(n * q < _MEAN, _binomial_by_inversion, _binomial_by_rejection, (n, q))
    return s.where(turned, n - k, k)


def _binomial_start(s: ExactScalars[Number], n: Number, p: Number) -> tuple[Number, Number]:
    """Return the probability of no success, and the odds."""
    return exp(s, n * log1p(s, -p)), p / (1.0 - p)


def _binomial_ratio(s: ExactScalars[Number], k: Operand[Number], n: Number, odds: Number) -> Number:
    return odds * ((n - k) * (1.0 / (k + 1.0)))


def _binomial_by_inversion(s: Drawing[Number], n: Number, p: Number) -> Number:
    def last(
        s: ExactScalars[Number], k: Number, mass: Number, n: Number, odds: Number, mean: Number
    ) -> Number:
        return s.logical_or(k >= n, s.logical_and(mass < 1e-20, k > mean))

    def ratio(s: ExactScalars[Number], k: Number, n: Number, odds: Number, mean: Number) -> Number:
        return _binomial_ratio(s, k, n, odds)

    first, odds = _binomial_start(s, n, p)
    u = s.uniforms(s.counting(n))[0]
    return _inverted(s, u, first, ratio, last, (n, odds, n * p))


def _binomial_frame(
    s: ExactScalars[Number], n: Number, p: Number
) -> tuple[tuple[Number, Number, Number, Number], Number]:
    """Return what proposals lie around, and their height, as for Poisson draws."""
    deviation = s.sqrt(n * p * (1.0 - p))
    width = deviation * 2.53 + 1.15
    slope = width * 0.0248 - 0.0873 + p * 0.01
    return (n * p + 0.5, width, slope, 0.92 - 4.2 / width), (5.1 / width + 2.83) * deviation


def _binomial_accepts(
    s: ExactScalars[Number], k: Number, log_height: Number, n: Number, p: Number
) -> Number:
    possible = s.logical_and(k >= 0.0, k <= n)
    top = _log_binomial(s, s.floor((n + 1.0) * p), n, p)
    ratio = _log_binomial(s, s.where(possible, k, 0.0), n, p) - top
    return s.logical_and(possible, log_height <= ratio)


def _binomial_by_rejection(s: Drawing[Number], n: Number, p: Number) -> Number:
    frame, height = _binomial_frame(s, n, p)
    return _transformed(s, frame, height, _binomial_accepts, (n, p))


def _of_smaller_side(
    formula: Callable[..., tuple[Number, Number]],
) -> Callable[..., tuple[Number, Number]]:
    """Return the quick formula of binomial draws from one for p <= 1/2."""

    def quick(
        s: ExactScalars[Number], pairs: Sequence[tuple[Number, Number]], n: Number, p: Number
    ) -> tuple[Number, Number]:
        turned, q = _smaller_side(s, p)
        sure, k = formula(s, pairs, n, q)
        return sure, s.where(turned, n - k, k)

    return quick


@_of_smaller_side
def _binomial_at_first_steps(
    s: ExactScalars[Number], pairs: Sequence[tuple[Number, Number]], n: Number, p: Number
) -> tuple[Number, Number]:
    first, odds = _binomial_start(s, n, p)
    return _first_steps(s, pairs[0][0], first, lambda k: _binomial_ratio(s, k, n, odds))


@_of_smaller_side
def _binomial_by_proposal(
    s: ExactScalars[Number], pairs: Sequence[tuple[Number, Number]], n: Number, p: Number
) -> tuple[Number, Number]:
    return _transformed_proposal(s, *pairs[0], *_binomial_frame(s, n, p)[0])[:2]


@_of_smaller_side
def _binomial_at_once(
    s: ExactScalars[Number], pairs: Sequence[tuple[Number, Number]], n: Number, p: Number
) -> tuple[Number, Number]:
    frame, height = _binomial_frame(s, n, p)
    return _transformed_at_once(s, pairs, frame, height, _binomial_accepts, (n, p))


def _binomial_inverts(s: ExactScalars[Number], n: Number, p: Number) -> Number:
    return n * _smaller_side(s, p)[1] < _MEAN


def _binomial_rejects(s: ExactScalars[Number], n: Number, p: Number) -> Number:
    return n * _smaller_side(s, p)[1] >= _MEAN


# ------------------------------------------------------------------------ sizes of family trees

# p(k) = rate / m poisson(k | m) with m = rate + excess k. With c = 1 - excess it is at most
# exp(-(rate - c k)^2 / (2 (k + 2 rate / 3))) times powers, as log(1 + v) <= v (6 + v) / (6 + 4 v)
# for v >= 0 and <= v - v^2 / 2 below: the exponent of an inverse Gaussian number z = y + 2 rate / 3
# of mean (rate + 2 c rate / 3) / c. With k the nearest count to y, the quotient of mass and density
# is at most 2.224 for rates from 1 on and counts from 1 on, at rate = c = 1 and k = 2.
_TREE_HEIGHT = math.log(2.25)
# Of smaller rates, for y from 1/2 on of density prop. to y^-3/2: the mass over the rate is at most
# 3 sqrt(3) times that, at c = 1 and k = 1.
_ROOT_HEIGHT = math.log(5.2 * math.sqrt(0.125))
# From this squared quotient of mean and spread on a normal approximation differs by less than the
# spacing of float64.
_NORMAL_TREE = 1e18


def _log_tree(s: ExactScalars[Number], k: Number, rate: Number, excess: Number) -> Number:
    """Log of p(k) over the rate, for k >= 1; what k is more than expected is written out."""
    mean = rate + excess * k
    e = ((1.0 - excess) * k - rate) / mean
    series = e * e * (0.5 - e * (1 / 6 - e * (1 / 12 - e * (1 / 20 - e * (1 / 30 - e / 42)))))
    deviance = mean * s.where(s.abs(e) < 1e-3, series, (e + 1.0) * log1p(s, e) - e)
    return -deviance - _stirling_error(s, k) - (log(s, k) + _LOG_2PI) * 0.5 - log(s, mean)


def progeny(s: Drawing[Number], rate: Number, excess: Number) -> Number:
    """Draw the size of a family tree of Poisson(rate) founders with Poisson(excess) children each.

    The number of attempts is that of a rejection at most a few times as high, whatever the mean.
    """
    first = s.uniforms(s.counting(rate))[0]
    some = first > exp(s, -rate)

    def none(s: ExactScalars[Number], rate: Number, excess: Number) -> Number:
        return rate * 0.0

    def others(s: ExactScalars[Number], rate: Number, excess: Number) -> Number:
        return s.choose(rate < 1.0, _small_tree, _large_tree, (rate, excess))

    return s.choose(some, others, none, (rate, excess))


def _small_tree(s: Drawing[Number], rate: Number, excess: Number) -> Number:
    def attempt(
        s: Drawing[Number], i: Number, _: Number, rate: Number, excess: Number
    ) -> tuple[Number, tuple[Number, Number]]:
        u, v = s.uniforms(i)
        y = 0.5 / (u * u)
        k = s.floor(y + 0.5)
        fits = log(s, v) + _ROOT_HEIGHT - log(s, y) * 1.5 <= _log_tree(s, k, rate, excess)
        return fits, (i + 1, k)

    return s.until(attempt, (s.counting(rate) + 1, rate), (rate, excess))[1]


def _large_tree(s: Drawing[Number], rate: Number, excess: Number) -> Number:
    c = 1.0 - excess
    return s.choose(rate * c > _NORMAL_TREE, _tree_by_normal, _tree_by_rejection, (rate, excess))


def _tree_by_normal(s: Drawing[Number], rate: Number, excess: Number) -> Number:
    c = 1.0 - excess
    z = normal_quantile(s, s.uniforms(s.counting(rate) + 1)[0])
    return s.rint(rate / c + s.sqrt(rate / c) / c * z)


def _tree_by_rejection(s: Drawing[Number], rate: Number, excess: Number) -> Number:
    def attempt(
        s: Drawing[Number],
        i: Number,
        _: Number,
        rate: Number,
        excess: Number,
        size: Number,
        c: Number,
    ) -> tuple[Number, tuple[Number, Number]]:
        u, v = s.uniforms(2 * i)
        w, _ = s.uniforms(2 * i + 1)
        # Of an inverse Gaussian by two roots [michael1976]_; the mean is size / c.
        n = normal_quantile(s, u)
        half = n * n * 0.5 / (c * size)
        root = 1.0 / (half + 1.0 + s.sqrt(half * (half + 2.0)))
        z = size / c * s.where(w * (root + 1.0) <= 1.0, root, 1.0 / root)
        y = z - rate * (2.0 / 3.0)
        k = s.floor(y + 0.5)
        gap = rate - c * y
        height = log(s, size) - (log(s, z) * 3.0 + _LOG_2PI + gap * gap / z) * 0.5
        level = log(s, v) + _TREE_HEIGHT + height
        mass = _log_tree(s, s.maximum(k, 1.0), rate, excess) + log(s, rate)
        return s.logical_and(k >= 1.0, level <= mass), (i + 1, k)

    c = 1.0 - excess
    fixed = (rate, excess, rate + c * rate * (2.0 / 3.0), c)
    return s.until(attempt, (s.counting(rate) + 1, rate), fixed)[1]


def _trees(s: ExactScalars[Number], rate: Number, excess: Number) -> Number:
    inside = s.logical_and(excess >= 0.0, excess < 1.0)
    return s.logical_and(s.logical_and(rate > 0.0, rate < math.inf), inside)


def _nonnegative(s: ExactScalars[Number], x: Number) -> Number:
    return s.logical_and(x >= 0.0, x < math.inf)


def _trials(s: ExactScalars[Number], n: Number, p: Number) -> Number:
    whole = s.logical_and(s.floor(n) == n, s.logical_and(n >= 0.0, n < 2.0**63))
    return s.logical_and(whole, s.logical_and(p >= 0.0, p <= 1.0))


POISSON = RejectionSampler(
    poisson,
    1,
    _nonnegative,
    (
        Quick((_poisson_at_first_steps,), lambda s, rate: rate < _MEAN),
        Quick((_poisson_by_proposal, _poisson_at_once), _poisson_rejects),
    ),
)
BINOMIAL = RejectionSampler(
    binomial,
    2,
    _trials,
    (
        Quick((_binomial_at_first_steps,), _binomial_inverts),
        Quick((_binomial_by_proposal, _binomial_at_once), _binomial_rejects),
    ),
)
PROGENY = RejectionSampler(progeny, 2, _trees)
