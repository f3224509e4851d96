"""Stable distributions: the limits of sums, with heavy tails (Levy 1925, Zolotarev 1986).

Density and cdf are integrals over one angle (Nolan 1997), and so is the sampler: for a uniform
angle and an exponential number w, a draw is the x at which ``u(x, angle) = w`` (Chambers, Mallows,
Stuck 1976). Given the angle the density of x is u exp(-u) times the slope of log u, and averaging
that over angles is Nolan's integral: `_Side.log_u` is the only formula here.

The angle is described by its distances p and q to both ends, so that neither is lost in rounding.
Integrals run over y = log(p / q), in steps that are short around its peak.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.dispatch import set_grad_enabled
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param, setting
from probtorch.distributions.pathwise import moving
from probtorch.distributions.precision import in_double
from probtorch.distributions.source import Source
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, maximum, minimum, sqrt, where
from probtorch.ops.comparisons import eq
from probtorch.ops.control import while_loop
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, expm1, log, log1p, sigmoid
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import atan, cos, sin, tan
from probtorch.tensor import Tensor

__all__ = ["Stable", "standard_draw"]

HALF_PI = 0.5 * math.pi
# Nearer to a stability of 1 than this the formula of this distance is used: the error is that
# small, and the peak of the integral, as narrow, is still found by angles in double precision.
NEAREST = 1e-8
# Steps of the integral, in units of the width of its peak: sinh(k h), out to 90 of them, where
# it has fallen by exp(-45) at least.
STEP, PLACES = 0.05, np.arange(-104.0, 105.0)
GRID = np.sinh(STEP * PLACES)
GRID_LOG = np.log(STEP * np.cosh(STEP * PLACES))
# Distance to -b within which a density is what it is at -b. Nearer the peak of the integral would
# lie beyond the angles that have a number, and densities at the mode came out as 0.
CLOSEST = 1e-200
# log(p / q) beyond which one of the two underflows, and halvings of the range that find the peak.
FARTHEST, HALVINGS = 600.0, 50


class _Side:
    """The standard distribution on one side of ``-b``, where its formula changes.

    ``b = skew tan(pi stability / 2)``; `z` is the distance to ``-b``, and `x` the value. For what
    lies to the left of ``-b`` both `x` and `b` have their signs changed.
    """

    def __init__(self, alpha: Tensor, skew: Tensor, sign: Tensor | float) -> None:
        gap = 1.0 - alpha
        least = gap.new_tensor(NEAREST)
        self.a = where(absolute(gap) < NEAREST, where(gap < 0.0, -least, least), gap)
        self.alpha = 1.0 - self.a
        self.b = sign * skew / tan(HALF_PI * self.a)
        turn = atan(self.b)
        # Of the range of angles; 0 where there is nothing on this side.
        length = HALF_PI + turn / self.alpha
        self.alive = length > 1e-14
        self.length = where(self.alive, length, 1.0)
        # What pi is more than length, and than alpha length: 0 at a skew of 1, or -1.
        self.beyond = maximum(math.pi - self.length, 0.0)
        self.rest = maximum(math.pi - HALF_PI * self.alpha - turn, 0.0)

    def angles(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return sine and cosine of q, of alpha p, and of alpha p + q, exact near pi as near 0."""
        both = where(self.a > 0.0, self.beyond + self.a * p, self.rest - self.a * q)
        return (
            *_sin_cos(q, self.beyond + p),
            *_sin_cos(self.alpha * p, self.rest + self.alpha * q),
            *_sin_cos(self.alpha * p + q, both),
        )

    def log_u(self, x: Tensor, z: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """Log of u, which grows (a > 0) or falls with the angle from 0 to infinity."""
        plain, near, exact, rest = self._parts(p, q)
        safe = where(exact, self.b, 1.0)
        ratio = where(exact, log1p(where(exact, x / safe, 0.0)) - near, log(z) - plain)
        return rest - (self.alpha / self.a) * ratio

    def x_where(self, log_w: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """Return the x at which u is w."""
        plain, near, exact, rest = self._parts(p, q)
        ratio = (self.a / self.alpha) * (rest - log_w)
        far = exp(where(exact, 0.0, ratio + plain)) - self.b
        return where(exact, self.b * expm1(where(exact, ratio + near, 0.0)), far)

    def _parts(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return what z is measured against, in two forms, which is exact, and the rest of log u.

        Near a stability of 1 `b` is large and ``z = b (1 + x / b)``; what z is measured against is
        then ``b (1 + excess)``, and the difference of the two logarithms small, as what it is
        divided by.
        """
        sin_q, cos_q, sin_p, _, sin_both, _ = self.angles(p, q)
        size = log1p(self.b * self.b)
        plain = log(sin_p) - log(sin_q) + size * (0.5 / self.alpha)
        large = self.b >= 1.0
        c = where(large, 1.0 / where(large, self.b, 1.0), 1.0)
        turn = self.a * (HALF_PI - q)
        half = sin(0.5 * turn)
        rise = sin(turn) + c * cos(turn)
        excess = -2.0 * half * half - c * sin(turn) + rise * (cos_q / sin_q)
        exact = large & (excess > -0.5)
        # Of a stability of 1 the limit of this term is log(b) a.
        near = log1p(where(exact, excess, 0.0)) + 0.5 * (self.a / self.alpha) * size
        return plain, near, exact, log(sin_both) - log(sin_q)

    def slope(self, p: Tensor, q: Tensor) -> Tensor:
        """Derivative of log u in the angle p."""
        sin_q, cos_q, sin_p, cos_p, sin_both, cos_both = self.angles(p, q)
        outer = (self.alpha * cos_p / sin_p + cos_q / sin_q) * (self.alpha / self.a)
        return outer - self.a * cos_both / sin_both + cos_q / sin_q

    def distances(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return p and q, with ``p + q = length`` and ``p / q = exp(y)``."""
        return self.length * sigmoid(y), self.length * sigmoid(-y)

    def wide(self) -> _Side:
        """Return this with a new last dim, for the points of an integral."""
        out = object.__new__(_Side)
        for name, value in vars(self).items():
            setattr(out, name, unsqueeze(value, -1))
        return out


def _sin_cos(t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """Sine and cosine of an angle up to pi, of which `rest` is left."""
    upper = t > HALF_PI
    nearer = where(upper, rest, t)
    return sin(nearer), where(upper, -cos(nearer), cos(nearer))


def _points(side: _Side, x: Tensor, z: Tensor) -> tuple[_Side, Tensor, Tensor, Tensor, Tensor]:
    """Return points of an integral over the angle: p, q, log u and log weights."""
    before = set_grad_enabled(False)
    try:
        zero = (x + side.length) * 0.0

        def bend(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Return u, and the slopes in y of its logarithm and of log(u exp(-u) p q)."""
            p, q = side.distances(y)
            u = exp(minimum(side.log_u(x, z, p, q), 600.0))
            slope = side.slope(p, q) * p * q / side.length
            return u, slope, (1.0 - u) * slope + (q - p) / side.length

        def halve(state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            y, width, n = state
            return y + where(bend(y)[2] > 0.0, width, -width), width * 0.5, n + 1.0

        start = (zero, zero + 0.5 * FARTHEST, total(zero) * 0.0)
        y, *_ = while_loop(lambda state: state[2] < HALVINGS, halve, start)
        u, slope, _ = bend(y)
        width = 1.0 / (absolute(slope) * sqrt(u) + 0.5)
        width = unsqueeze(width.detach(), -1)
        y = clamp(unsqueeze(y.detach(), -1) + width * width.new_tensor(GRID), -FARTHEST, FARTHEST)
        p, q = side.wide().distances(y)
        weights = log(p) + log(q) - log(p + q) + log(width) + width.new_tensor(GRID_LOG)
    finally:
        set_grad_enabled(before)
    # The angles stay when parameters move, p with them does not; at both ends nothing is lost.
    wide = side.wide()
    p, q = p.detach() + moving(wide.length), q.detach()
    return wide, p, q, wide.log_u(unsqueeze(x, -1), unsqueeze(z, -1), p, q), weights.detach()


def _sides(alpha: Tensor, skew: Tensor, x: Tensor) -> tuple[_Side, Tensor, Tensor, Tensor]:
    """Return the side of -b that x is on, x and its distance there, and whether it is the right."""
    right = _Side(alpha, skew, 1.0)
    above = x + right.b >= 0.0
    one = x.new_tensor(1.0)
    sign = where(above, one, -one)
    side = _Side(alpha, skew, sign)
    x = sign * x
    return side, x, maximum(x + side.b, CLOSEST), above


def _log_density(alpha: Tensor, skew: Tensor, x: Tensor) -> Tensor:
    side, x, z, _ = _sides(alpha, skew, x)
    _, _, _, log_u, weights = _points(side, x, z)
    mass = logsumexp(_bell(log_u) + weights, -1)
    inner = log(side.alpha / absolute(side.a)) - log(z) + mass - math.log(math.pi)
    return where(side.alive, inner, -math.inf)


def _bell(log_u: Tensor) -> Tensor:
    """Log of u exp(-u), with a derivative of 0 where that is 0."""
    return log_u - exp(minimum(log_u, FARTHEST))


def _log_above(alpha: Tensor, skew: Tensor, x: Tensor) -> Tensor:
    """Return the log probability above x, exact where it is small.

    The probability beyond x, away from -b, is the integral of 1 - exp(-u), or for a stability
    above 1 of exp(-u), over the angle; by parts, that of a bell times the distance q to the end.
    Between -b and x it is, below 1, that of the same bell times p.
    """
    side, x, z, right = _sides(alpha, skew, x)
    wide, p, q, log_u, weights = _points(side, x, z)
    bell = exp(_bell(log_u) + weights) * absolute(wide.slope(p, q))
    within = (side.beyond + total(bell * p, -1)) * (1.0 / math.pi)
    beyond = total(bell * q, -1) * (1.0 / math.pi)
    # A skew of 1 below a stability of 1: u does not start from 0.
    one_sided = (side.beyond < 1e-13) & (side.a > 0.0)
    first = log(where(side.a > 0.0, side.a, 1.0)) + (side.alpha / side.a) * (
        log(side.alpha) + log1p(side.b * side.b) * (0.5 / side.alpha) - log(z)
    )
    beyond = where(one_sided, beyond - expm1(-exp(minimum(first, FARTHEST))), beyond)
    below = side.a > 0.0
    within = where(below, within, 1.0 - beyond)
    beyond = where(below & (within < 0.9), 1.0 - within, beyond)
    within, beyond = (where(side.alive, a, b) for a, b in ((within, 1.0), (beyond, 0.0)))
    above = where(right, beyond, within)
    some = above > 0.0
    return where(some, log(minimum(where(some, above, 1.0), 1.0)), -math.inf)


def standard_draw(alpha: Tensor, skew: Tensor, level: Tensor, w: Tensor) -> Tensor:
    """Return a draw of the standard distribution, from a uniform number and an exponential one.

    `level` in (0, 1) is uniform, `w` exponential; coordinates are those of "S0".
    """
    right = _Side(alpha, skew, 1.0)
    q = math.pi * level
    above = q < HALF_PI + atan(right.b) / right.alpha
    one = q.new_tensor(1.0)
    sign = where(above, one, -one)
    side = _Side(alpha, skew, sign)
    q = where(above, q, math.pi - q)
    return sign * side.x_where(log(w), maximum(side.length - q, 1e-290), q)


class Stable(Distribution):
    """Stable distribution: sums of such numbers are such numbers again, shifted and scaled.

    Density ``f(x) = integral(exp(-t ** stability) * cos(t * z + skew * tan(pi * stability / 2) * (t
    - t ** stability)) for t in between(0, inf)) / (pi * scale)`` with ``z = (x - loc) / scale``.

    That is for "S0" and a stability other than 1.

    Parameters
    ----------
    stability : Tensor or number in (0, 2]
        2 for a normal (of variance ``2 scale ** 2``), 1 without skew for a Cauchy distribution;
        tails fall like ``abs(x) ** -(stability + 1)``.
    skew : Tensor or number in [-1, 1]
    scale : Tensor or number, positive
    loc : Tensor or number
    coords : "S0" or "S"
        In "S0" the density is continuous in all parameters; in "S", that of SciPy and of most
        books, `loc` is the mean for a stability above 1, and is far off near 1 (Nolan 1997).

    Notes
    -----
    Draws have pathwise gradients. The density is an integral over 209 points. A log density has a
    relative error of about 1e-12, or that of a few roundings of the inputs, for a stability from
    0.02 to 1.95 and skews within 0.95, but within 1e-4 of a stability of 1, where it grows to 1e-8
    times the log of the distance at 1. Beyond, the lighter tail loses digits: next to a skew of 1
    or -1, a stability of 2 or 0, up to all of them at a log density of -30 and below. Density and
    cdf differentiate once. `StableWithLogProb` is the same class.

    References
    ----------
    Nolan (1997), "Numerical calculation of stable densities and distribution functions".
    """

    stability: Parameter = param(constraints.left_open_interval(0.0, 2.0))
    skew: Parameter = param(constraints.interval(-1.0, 1.0))
    scale: Parameter = param(constraints.positive, default=1.0)
    loc: Parameter = param(constraints.real, default=0.0)
    coords: str = setting(default="S0")
    support = constraints.real

    def _infer_event_shape(self) -> Shape:
        if self.coords not in ("S", "S0"):
            raise ArgumentError(
                "Stable",
                expected='coords="S0" or "S"',
                got=repr(self.coords),
                fix="S0 is continuous in all parameters; S is that of SciPy",
            )
        return ()

    def _shift(self) -> Tensor:
        """What is added to draws of S0 around 0 for those of S."""
        if self.coords == "S0":
            return self.loc
        away = tan(HALF_PI * (1.0 - self.stability))
        one = eq(self.stability, 1.0)
        shift = where(
            one, self.skew * log(self.scale) * (2.0 / math.pi), self.skew / where(one, 1.0, away)
        )
        return self.loc + self.scale * shift

    def _standard(self, x: Tensor) -> Tensor:
        return (x - self._shift()) / self.scale

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        noise = (rng.uniform(shape), rng.exponential(shape))
        x = in_double(standard_draw, self.stability, self.skew, *noise)
        return rng.finite(self._shift() + self.scale * rng.finite(x))

    def _log_prob(self, x: Tensor) -> Tensor:
        z = self._standard(x)
        return in_double(_log_density, self.stability, self.skew, z) - log(self.scale)

    def _log_cdf(self, x: Tensor) -> Tensor:
        return in_double(_log_above, self.stability, -self.skew, -self._standard(x))

    def _log_survival(self, x: Tensor) -> Tensor:
        return in_double(_log_above, self.stability, self.skew, self._standard(x))

    def _cdf(self, x: Tensor) -> Tensor:
        return exp(self._log_cdf(x))

    def _mean(self) -> Tensor:
        one = self.stability > 1.0
        away = tan(HALF_PI * (1.0 - where(one, self.stability, 1.5)))
        apart = 0.0 if self.coords == "S" else self.scale * self.skew / away
        return where(one, self.loc - apart, math.nan)

    def _variance(self) -> Tensor:
        return where(self.stability < 2.0, math.inf, 2.0 * self.scale * self.scale)

    def _skewness(self) -> Tensor:
        return where(self.stability < 2.0, math.nan, 0.0 * self.scale)

    _kurtosis = _skewness
