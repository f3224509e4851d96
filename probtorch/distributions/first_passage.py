"""Decisions as first passages: which of two boundaries a noisy walk reaches, and when.

Density and cdf are sums over images of the start, or over waves between the boundaries: the first
converges fast at short times, the second at long ones [navarro2009]_.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dtype import float64
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.normal import ROOT_2
from probtorch.distributions.precision import in_double
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import maximum, minimum, sign, sqrt, where
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp, expm1, log
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.reduction import any as some
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import erfcx, ndtr
from probtorch.ops.trigonometry import sin
from probtorch.tensor import Tensor

__all__ = ["Wiener"]

# In units of the squared distance of the boundaries; there eight terms of either sum are exact to
# rounding.
SWITCH = 0.4
# A point, the bracket around it, how far it moved last, and the number of steps.
Search: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
IMAGES, WAVES = np.arange(-5.0, 6.0), np.arange(1.0, 10.0)


class Beyond(Constraint):
    """Numbers on both sides of 0, farther from it than a delay."""

    def __init__(self, delay: Tensor) -> None:
        self.delay = delay

    def check(self, value: Tensor) -> Tensor:
        return absolute(value) > self.delay

    def interior(self, value: Tensor) -> float | Tensor:
        return self.delay + 1.0


class Wiener(Distribution):
    """Time at which a walk with drift leaves an interval, negative where it leaves below.

    The diffusion model of decisions: `abs(x)` is the response time and the sign of x the response.

    Density ``f(x) = pi / boundary ** 2 * exp(-boundary * v * w - v ** 2 * t / 2) * sum(k * exp(-(k
    * pi / boundary) ** 2 * t / 2) * sin(k * pi * w) for k in range(1, inf))`` with ``t = abs(x) -
    delay`` and ``w = bias if x < 0 else 1 - bias`` and ``v = drift if x < 0 else -drift``.

    Parameters
    ----------
    boundary : Tensor or number, positive
        Distance of the boundaries; Stan's alpha.
    delay : Tensor or number, nonnegative
        Time that passes besides; Stan's tau.
    bias : Tensor or number in (0, 1)
        Start, as a share of the way from the lower boundary to the upper; Stan's beta.
    drift : Tensor or number
        Mean of the walk at time 1, whose variance is 1; Stan's delta.

    Notes
    -----
    Stan's density is that of upper responses; it is the same at ``x > 0``. Here both responses
    are one distribution, which integrates to 1.
    """

    boundary: Parameter = param(constraints.positive)
    delay: Parameter = param(constraints.nonnegative)
    bias: Parameter = param(constraints.open_interval(0.0, 1.0), default=0.5)
    drift: Parameter = param(constraints.real, default=0.0)

    @constraints.dependent_property(event_dim=0, is_discrete=False)
    def support(self) -> Constraint:
        """Times longer than the delay, with a sign."""
        return Beyond(self.delay)

    def _toward(self, above: Tensor) -> tuple[Tensor, Tensor]:
        """Return start and drift as seen from the boundary that is reached: the lower, or upper."""
        return where(above, 1.0 - self.bias, self.bias), where(above, -self.drift, self.drift)

    def _log_prob(self, x: Tensor) -> Tensor:
        w, v = self._toward(x > 0.0)
        t = absolute(x) - self.delay
        return in_double(_log_density, t, self.boundary, w, v)

    def _below(self) -> Tensor:
        """Return the probability of a lower response."""
        return in_double(_share, self.boundary, self.bias, self.drift)

    def _cdf(self, x: Tensor) -> Tensor:
        later = self._later_than(x)
        return where(x > 0.0, 1.0 - later, later)

    def _survival(self, x: Tensor) -> Tensor:
        later = self._later_than(x)
        return where(x > 0.0, later, 1.0 - later)

    def _later_than(self, x: Tensor) -> Tensor:
        """Return the probability of the same response at a later time."""
        w, v = self._toward(x > 0.0)
        t = minimum(maximum(absolute(x) - self.delay, 0.0), 1e150)
        return in_double(_later, t, self.boundary, w, v)

    def _icdf(self, p: Tensor) -> Tensor:
        low = self._below()
        above = p > low
        # How much of the response is still to come.
        rest = where(above, 1.0 - p, p)
        w, v = self._toward(above)
        t = _time(*(cast(y, float64) for y in (rest, self.boundary, w, v)))
        return where(above, 1.0, -1.0) * (self.delay + cast(t, low.array.dtype))

    def _responses(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return probability, mean time and its variance of the lower and the upper response."""
        v = absolute(self.drift) * self.boundary
        low = self._below()
        out = []
        for chance, w in ((low, self.bias), (1.0 - low, 1.0 - self.bias)):
            # How long the way is to the other boundary, past which no walk has gone.
            rest = 1.0 - w
            (whole, whole_slope), (part, part_slope) = _cotangents(v), _cotangents(v * rest)
            square = self.boundary * self.boundary
            mean = square * (whole - rest * rest * part)
            out.append((chance, mean, square * square * (whole_slope - rest**4 * part_slope)))
        return out

    def _mean(self) -> Tensor:
        (low, below, _), (up, above, _) = self._responses()
        return up * (self.delay + above) - low * (self.delay + below)

    def _variance(self) -> Tensor:
        (low, below, spread), (up, above, spread_up) = self._responses()
        apart = below + above + 2.0 * self.delay
        return low * spread + up * spread_up + low * up * apart * apart

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        low = expand(cast(self._below(), float64), shape)
        above = cast(rng.uniform(shape), float64) > low
        w, v = self._toward(above)
        rest = cast(rng.uniform(shape), float64) * where(above, 1.0 - low, low)
        t = cast(_time(rest, cast(self.boundary, float64), w, v), rng.dtype)
        least = self.delay * (1.0 + 2e-7 if rng.dtype.itemsize < 8 else 1.0 + 4e-16)
        return where(above, 1.0, -1.0) * maximum(self.delay + rng.positive(t), least)


# Of y coth(y) = 1 + sum of these, times y^(2 n): 2 (-1)^(n - 1) zeta(2 n) / pi^(2 n).
COTH = [
    2.0 * (-1) ** (n - 1) * sum(k ** (-2.0 * n) for k in range(60, 0, -1)) / math.pi ** (2 * n)
    for n in range(1, 18)
]
# The sums above end early for the first ones, which are known.
COTH[:4] = [1 / 3, -1 / 45, 2 / 945, -1 / 4725]


def _cotangents(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(y coth(y) - 1) / y ** 2``, from 1/3 at 0, and minus its slope over y, from 2/45.

    They are means and variances of passage times of a walk that ends at one boundary: the Laplace
    transform of these is a quotient of sinh, whose logarithm has these derivatives.
    """
    near = y < 1.0
    z = where(near, y * y, 0.0)
    value, slope = z * 0.0, z * 0.0
    for n in range(len(COTH) - 1, -1, -1):
        value = value * z + COTH[n]
        if n:
            slope = slope * z - 2.0 * n * COTH[n]
    far = where(near, 1.0, y)
    fall = exp(-2.0 * far)
    coth = far * (1.0 + fall) / (1.0 - fall)
    fallen = 4.0 * far * far * fall / ((1.0 - fall) * (1.0 - fall))
    square = far * far
    return where(near, value, (coth - 1.0) / square), where(
        near, slope, (coth + fallen - 2.0) / (square * square)
    )


def _log_density(t: Tensor, a: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Of reaching the lower boundary at time t, from w a."""
    u = t / (a * a)
    short = u < SWITCH
    return (
        -2.0 * log(a)
        - v * (a * w)
        - 0.5 * v * v * t
        + where(
            short,
            _log_images(where(short, u, SWITCH), w),
            _log_waves(where(short, SWITCH, u), w),
        )
    )


def _log_images(u: Tensor, w: Tensor) -> Tensor:
    k = u.new_tensor(IMAGES)
    at, start = unsqueeze(u, -1), unsqueeze(w, -1)
    terms = (start + 2.0 * k) * exp(-2.0 * k * (start + k) / at)
    size = log(maximum(total(terms, -1), 1e-300))
    return size - w * w / (2.0 * u) - 1.5 * log(u) - 0.5 * math.log(2.0 * math.pi)


def _log_waves(u: Tensor, w: Tensor) -> Tensor:
    k = u.new_tensor(WAVES)
    # sin(pi w) from the nearer boundary keeps its digits.
    decay = exp((1.0 - k * k) * (0.5 * math.pi**2) * unsqueeze(u, -1))
    terms = k * decay * sin(k * (math.pi * unsqueeze(w, -1)))
    return log(maximum(total(terms, -1), 1e-300)) + math.log(math.pi) - 0.5 * math.pi**2 * u


def _share(a: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Probability of reaching the lower boundary at all, from w a."""
    # (exp(-2 v a w) - exp(-2 v a)) / (1 - exp(-2 v a)); for v < 0 divided by exp(-2 v a).
    size = 2.0 * absolute(v) * a
    still = size < 1e-12
    s = where(still, 1.0, size)
    up = exp(-s * w) * expm1(-s * (1.0 - w)) / expm1(-s)
    down = expm1(-s * (1.0 - w)) / expm1(-s)
    return where(still, 1.0 - w, where(v > 0.0, up, down))


def _later(t: Tensor, a: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Probability of reaching the lower boundary, after time t."""
    short = t < SWITCH * a * a
    early = where(short, maximum(t, 1e-290), SWITCH * a * a)
    late = where(short, SWITCH * a * a, t)
    return where(
        short, _share(a, w, v) - _images_until(early, a, w, v), _waves_after(late, a, w, v)
    )


def _images_until(t: Tensor, a: Tensor, w: Tensor, v: Tensor) -> Tensor:
    k = t.new_tensor(IMAGES)
    at, drift = unsqueeze(t, -1), absolute(unsqueeze(v, -1))
    y = unsqueeze(a, -1) * (unsqueeze(w, -1) + 2.0 * k)
    size, root = absolute(y), sqrt(at)
    # exp(-c y) ndtr((c t - y) / r) + exp(c y) ndtr(-(c t + y) / r), r the root of the time.
    low, high = (drift * at - size) / root, (drift * at + size) / root
    far = exp(-0.5 * low * low) * (0.5 * erfcx(high / ROOT_2))
    shift = unsqueeze(v * a * w, -1)
    each = exp(-drift * size - shift) * (ndtr(low) + far)
    return total(sign(y) * each, -1)


def _waves_after(t: Tensor, a: Tensor, w: Tensor, v: Tensor) -> Tensor:
    k = t.new_tensor(WAVES)
    wide, start = unsqueeze(a, -1), unsqueeze(w, -1)
    rate = 0.5 * (unsqueeze(v * v, -1) + k * k * (math.pi**2) / (wide * wide))
    decay = exp(-rate * unsqueeze(t, -1) - unsqueeze(v * a * w, -1))
    terms = k * sin(k * math.pi * start) * decay / rate
    return total(terms, -1) * math.pi / (a * a)


def _time(rest: Tensor, a: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """The time after which the lower boundary is reached with probability `rest`.

    By Newton's method in its logarithm, with a bisection wherever a step would leave the bracket.
    """
    square = a * a
    zero = (rest + square + w + v) * 0.0

    def closer(state: Search) -> Search:
        s, low, high, _, n = state
        t = exp(s) * square
        gap = _later(t, a, w, v) - rest
        low, high = where(gap > 0.0, s, low), where(gap > 0.0, high, s)
        slope = exp(_log_density(t, a, w, v)) * t
        known = slope > 0.0
        step = s + gap / where(known, slope, 1.0)
        new = where(known & (step > low) & (step < high), step, 0.5 * (low + high))
        # Probabilities have roundings of their own: closer than those there is nothing to find.
        found = absolute(gap) <= 1e-15
        return where(found, s, new), low, high, where(found, 0.0, absolute(new - s)), n + 1.0

    def going(state: Search) -> Tensor:
        return some(state[3] > 1e-12) & (state[4] < 100.0)

    count = total(zero) * 0.0
    s, *_ = while_loop(going, closer, (zero - 1.0, zero - 25.0, zero + 5.0, zero + 1.0, count))
    return exp(s) * square
