"""The Polya-gamma distributions of logistic regression [polson2013]_.

`PolyaGamma` has any shape and tilt. Its alternating series cancels for large values and shapes, so
density and cdf are the inverse of its Laplace transform, by the trapezium rule on a path through
the saddle point, where nothing cancels; far to the left, the first term of the series. Draws of
whole shapes are sums of Devroye's (ops/rejection.py).

`TruncatedPolyaGamma` is the one of shape 1 cut off at 2.5. Density and cdf are alternating series
of two kinds, one for small values and one for large: where they meet, at 0.16, the fifth term is
below rounding [devroye2009]_.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dtype import float64
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.precision import in_double
from probtorch.distributions.quantiles import quantile
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, maximum, minimum, sqrt, where
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp, expm1, log, log1p
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.reduction import any as some
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import erfc, ndtri
from probtorch.ops.trigonometry import atan2, cos, cosh, sin, sinh, tanh
from probtorch.tensor import Tensor

__all__ = ["PolyaGamma", "TruncatedPolyaGamma"]

END = 2.5
# Below it the series in 1 / x, above it that in x.
MEETING = 0.16
ORDERS = np.arange(6.0)
SIGNS = (-1.0) ** ORDERS
RATE = 0.5 * math.pi**2
# Beyond the end only the first term of the series in x is above 1e-48 of it.
LOST = 4.0 / math.pi * math.exp(-RATE * END)
LOG_KEPT = math.log1p(-LOST)
# Cumulants of the whole: -log(cosh(sqrt(t / 2))) is the log of the mean of exp(-t x).
CUMULANTS = (1 / 4, 1 / 24, 1 / 60, 17 / 1680)
# The maximum of the density, and the integral of -f log f; test_empirical.py has both by mpmath.
MODE = 0.08332106637373697
ENTROPY = -0.5110901572425026


def _raw_moments() -> list[float]:
    """Return the means of x, ..., x^4 without what is beyond the end."""
    a, b, c, d = CUMULANTS
    whole = [a, b + a * a, c + 3 * b * a + a**3, d + 4 * c * a + 3 * b * b + 6 * b * a * a + a**4]
    cut = [2.0 * math.pi * _tail(r) for r in (1, 2, 3, 4)]
    return [(m - t) / (1.0 - LOST) for m, t in zip(whole, cut, strict=True)]


def _tail(r: int) -> float:
    """The integral of x^r exp(-RATE x) beyond the end."""
    parts = (math.perm(r, k) * END ** (r - k) / RATE ** (k + 1) for k in range(r + 1))
    return math.exp(-RATE * END) * sum(parts)


class TruncatedPolyaGamma(Distribution):
    """Polya-gamma distribution PG(1, 0) on (0, 2.5), which has all but 6e-6 of its mass.

    Given x, the logistic likelihood is normal: sigmoid(t) is exp(t / 2) / 2 times the mean of
    exp(-x t^2 / 2).

    Density ``f(x) = sum((-1) ** k * (2 * k + 1) * exp(-(2 * k + 1) ** 2 / (8 * x)) for k in
    range(inf)) / (m * sqrt(2 * pi * x ** 3))`` with ``m = integral(sum((-1) ** k * (2 * k + 1) *
    exp(-(2 * k + 1) ** 2 / (8 * t)) for k in range(inf)) / sqrt(2 * pi * t ** 3) for t in
    between(0, 5 / 2))``.

    Parameters
    ----------
    prototype : Tensor
        Of any shape: its dtype and device are those of draws.

    Notes
    -----
    Normalised on its interval, and exact there, as are draws. The signature is Pyro's.

    References
    ----------
    [polson2013]_
    """

    prototype: Parameter = param(constraints.real)
    support = constraints.interval(0.0, END)

    def _infer_event_shape(self) -> Shape:
        # Its dtype counts, not its shape or its values.
        self.__dict__["prototype"] = self.prototype.new_zeros(())
        self._batch_shape = ()
        return ()

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return clamp(quantile(self, rng.uniform(shape)), 1e-30, END)

    def _log_prob(self, x: Tensor) -> Tensor:
        small = x < MEETING
        low, high = where(small, clamp(x, 1e-300, MEETING), MEETING), where(small, MEETING, x)
        near = 0.125 / low
        below = log1p(self._rest(near, ORDERS)) - near - 1.5 * log(low) - HALF_LOG_2PI
        above = log1p(self._rest(RATE * high, ORDERS)) - RATE * high + math.log(2.0 * math.pi)
        return where(small, below, above) - LOG_KEPT

    @staticmethod
    def _rest(rate: Tensor, n: np.ndarray) -> Tensor:
        """Sum of (-1)^n (2 n + 1) exp(-((2 n + 1)^2 - 1) rate) from 1 on."""
        odd = 2.0 * n[1:] + 1.0
        terms = exp(unsqueeze(-rate, -1) * rate.new_tensor(odd * odd - 1.0))
        return total(terms * rate.new_tensor(SIGNS[1:] * odd), -1)

    def _whole_cdf(self, x: Tensor, of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return ``of(cdf, survival)`` of the whole, of which the exact one is used."""
        x = clamp(x, 1e-300, END)
        small = x < MEETING
        low, high = where(small, x, MEETING), where(small, MEETING, x)
        odd = low.new_tensor(2.0 * ORDERS + 1.0)
        signs = low.new_tensor(SIGNS)
        below = 2.0 * total(signs * erfc(odd / (2.0 * sqrt(2.0 * unsqueeze(low, -1)))), -1)
        terms = exp(unsqueeze(-RATE * high, -1) * (odd * odd)) / odd
        above = (4.0 / math.pi) * total(signs * terms, -1)
        return of(where(small, below, 1.0 - above), where(small, 1.0 - below, above))

    def _cdf(self, x: Tensor) -> Tensor:
        inside = self._whole_cdf(x, lambda cdf, _: cdf * (1.0 / (1.0 - LOST)))
        return where(x > 0.0, clamp(inside, 0.0, 1.0), 0.0)

    def _survival(self, x: Tensor) -> Tensor:
        inside = self._whole_cdf(x, lambda _, rest: (rest - LOST) * (1.0 / (1.0 - LOST)))
        return where(x > 0.0, clamp(inside, 0.0, 1.0), 1.0)

    def _stated(self, value: float) -> Tensor:
        return self.prototype * 0.0 + value

    def _mean(self) -> Tensor:
        return self._stated(_raw_moments()[0])

    def _variance(self) -> Tensor:
        a, b, _, _ = _raw_moments()
        return self._stated(b - a * a)

    def _skewness(self) -> Tensor:
        a, b, c, _ = _raw_moments()
        return self._stated((c - 3 * a * b + 2 * a**3) / (b - a * a) ** 1.5)

    def _kurtosis(self) -> Tensor:
        a, b, c, d = _raw_moments()
        return self._stated((d - 4 * a * c + 6 * a * a * b - 3 * a**4) / (b - a * a) ** 2 - 3.0)

    def _mode(self) -> Tensor:
        return self._stated(MODE)

    def _entropy(self) -> Tensor:
        return self._stated(ENTROPY)


# ------------------------------------------------------------------------------ any shape and tilt

# With u = sqrt(s / 2) the Laplace transform at s is cosh(u)^-h, whose singularities have
# u^2 = -(pi / 2)^2 (2 k + 1)^2. In w, with u^2 = w^2 - (pi / 2)^2, they lie on the imaginary axis,
# and on lines beside it exp(s x) falls as exp(-2 x v^2).
EDGE = 0.25 * math.pi**2
# Points of the trapezium rule on half of a line, in units of 1 / sqrt(x): what lies beyond is
# exp(-38), and a distance of ROOM from a singularity makes an error of exp(-40).
REACH, NODES, ROOM = 4.4, 56, 0.6
# For a quantile that is then made exact: 1e-7.
ROUGH = 20
# Where (1 + h) / (2 x) is larger the second term of the alternating series is below rounding.
FIRST = 45.0
# Of the search of a quantile: from far out in a tail it moves by 1 at a time.
STEPS = 100.0
# Below it a draw is that of a walk's first passage, up to about 0.01. Points of paths go with
# 1 / h, and their fourth powers are doubles.
SMALL, LEAST, LARGE = 1e-8, 1e-70, 1e12
# Up to this shape a draw is a sum of draws of shape 1.
MOST = 256.0


class PolyaGamma(Distribution):
    """Polya-gamma distribution: the precision that makes a logistic likelihood normal.

    Density ``f(x) = cosh(z / 2) ** h * exp(-z ** 2 * x / 2) * 2 ** (h - 1) / gamma(h) *
    sum((-1) ** n * gamma(n + h) / factorial(n) * (2 * n + h) / sqrt(2 * pi * x ** 3) * exp(-(2
    * n + h) ** 2 / (8 * x)) for n in range(inf))``.

    Given x from PG(h, 0), ``exp(t / 2) ** h / 2 ** h`` times the mean of ``exp(-x * t ** 2 / 2)``
    is ``exp(t) ** h / (1 + exp(t)) ** h``; given t and a count h, x is drawn from PG(h, t).

    Parameters
    ----------
    h : Tensor or number, positive
        Shape: the number of trials.
    z : Tensor or number
        Tilt: the log odds.

    Notes
    -----
    Draws with whole `h` up to 256 are exact, by rejection on the alternating series
    [devroye2009]_, and cost the sum of `h` of them; others are quantiles, found on the cdf, and
    cost some hundred times a draw of shape 1. The arguments are PyMC's.

    References
    ----------
    [polson2013]_
    """

    h: Parameter = param(constraints.positive, default=1.0)
    z: Parameter = param(constraints.real, default=0.0)
    support = constraints.positive

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        h, z = (cast(expand(p, shape), float64) for p in (self.h, self.z))
        many = h > MOST
        whole = where(many, 0.0, h.floor())
        x = rng.polya_gamma(whole, z)
        rest = h - whole
        left = rest > 0.0
        if bool(some(left)):
            y = _quantile(where(left, rest, 1.0), z, cast(rng.uniform(shape), float64))
            x = x + where(left, y, 0.0)
        return rng.positive(x)

    def _log_prob(self, x: Tensor) -> Tensor:
        return in_double(_log_density, self.h, self.z, x)

    def _cdf(self, x: Tensor) -> Tensor:
        return in_double(lambda *args: _between(*args)[0], self.h, self.z, x)

    def _survival(self, x: Tensor) -> Tensor:
        return in_double(lambda *args: _between(*args)[1], self.h, self.z, x)

    def _mean(self) -> Tensor:
        return 0.25 * self.h * tanh_ratio(0.25 * self.z * self.z)[0]

    def _variance(self) -> Tensor:
        return -0.125 * self.h * tanh_ratio(0.25 * self.z * self.z)[1]


def tanh_ratio(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return tanh(u) / u as a function of y = u^2, with tan for y < 0, and its slope in y."""
    near = absolute(y) < 0.05
    apart = where(near, 1.0, y)
    up, down = where(apart > 0.0, apart, 1.0), where(apart < 0.0, -apart, 0.25)
    a, b = sqrt(up), sqrt(down)
    far = where(apart > 0.0, tanh(a) / a, sin(b) / (b * cos(b)))
    # 1 - y (tanh(u) / u)^2, without the difference for large y.
    fall, side = exp(-2.0 * a), cos(b)
    square = where(apart > 0.0, 4.0 * fall / ((1.0 + fall) * (1.0 + fall)), 1.0 / (side * side))
    slope = (square - far) / (2.0 * apart)
    y = where(near, y, 0.0)
    series, rise = y * 0.0, y * 0.0
    for k in range(len(TANH) - 1, -1, -1):
        series = series * y + TANH[k]
        if k:
            rise = rise * y + k * TANH[k]
    return where(near, series, far), where(near, rise, slope)


def _tanh_series(count: int) -> tuple[float, ...]:
    """Coefficients of tanh(u) / u in u^2, from the slope of tanh, 1 - tanh^2."""
    out = [1.0]
    for n in range(1, count):
        out.append(-sum(out[i] * out[n - 1 - i] for i in range(n)) / (2 * n + 1))
    return tuple(out)


TANH = _tanh_series(16)


def _saddle(h: Tensor, x: Tensor) -> Tensor:
    """Return w where 2 x w^2 - h log cosh(u) is stationary: tanh(u) / u is 4 x / h there."""
    # Beyond, the saddle point is nearer to the edge than to anything that a path goes by.
    aim = minimum(4.0 * x / h, 1e12)
    # In w^2 the ratio is 2 / w^2 near 0 and 1 / w far out.
    y = (1.0 + sqrt(1.0 + 16.0 * aim * aim)) / (2.0 * aim * aim)
    for _ in range(4):
        ratio, slope = tanh_ratio(y - EDGE)
        # Newton's step for the logarithm of the ratio in that of y.
        y = y * exp(clamp((log(aim) - log(ratio)) * ratio / (y * slope), -1.0, 1.0))
    return sqrt(y)


class _Path:
    """A line in w through `start`, and on it u, the gap D = w^2 - w(z)^2 and what follows.

    w(z) is where s is 0: there u = z / 2, and D is s / 2.
    """

    def __init__(self, h: Tensor, z: Tensor, x: Tensor, start: Tensor, nodes: int = NODES) -> None:
        root, step = 1.0 / sqrt(x.detach()), REACH / nodes
        v = unsqueeze(root, -1) * x.new_tensor((np.arange(nodes) + 0.5) * step)
        h, x, w = unsqueeze(h, -1), unsqueeze(x, -1), unsqueeze(start, -1)
        half = unsqueeze(0.5 * absolute(z), -1)
        self.w, self.v, self.width = w, v, root * (step / math.pi)
        # u = a + i b
        p, q = w * w - v * v - EDGE, 2.0 * w * v
        size = sqrt(p * p + q * q)
        right = p > 0.0
        large = sqrt(0.5 * (size + absolute(p)))
        small = q / (2.0 * large)
        self.a, self.b = a, b = where(right, large, small), where(right, small, large)
        # D, and u less z / 2: D / (u + z / 2)
        self.gap = gap = w * w - v * v - (EDGE + half * half)
        s = a + half
        below = s * s + b * b
        c, d = (gap * s + q * b) / below, (q * s - gap * b) / below
        # log(cosh(u) / cosh(z / 2)), twice: near z / 2 nothing may cancel, far from it neither.
        tilt = exp(-2.0 * half)
        share = tilt / (1.0 + tilt)
        low = c < -300.0
        c_high = where(low, -300.0, c)
        fall = exp(-2.0 * c_high)
        turn = sin(d)
        re = share * (expm1(-2.0 * c_high) - 2.0 * fall * turn * turn)
        im = -share * fall * sin(2.0 * d)
        # Where the share underflows, and its product does not.
        left = exp(-2.0 * a)
        re = where(low, left * (1.0 - 2.0 * turn * turn), re)
        im = where(low, -left * sin(2.0 * d), im)
        # Beside the first singularity cosh(u) is the sine of a small angle, and its part here 0.
        self.beside = beside = w * w + v * v < 0.25
        re, im = where(beside, 0.0, re), where(beside, 0.0, im)
        far = c + _log_size(re, im), d + atan2(im, 1.0 + re)
        close = (half < 1.0) & (absolute(c) + absolute(d) < 1.0)
        k, m, n, o = (where(close, 0.5 * y, 0.0) for y in (s, b, c, d))
        one = sinh(k) * cos(m), cosh(k) * sin(m)
        two = sinh(n) * cos(o), cosh(n) * sin(o)
        # sinh((u + z / 2) / 2) of s + i b, as u + z / 2 is; times that of the difference.
        scale = 2.0 / cosh(where(half < 1.0, half, 0.0))
        re = scale * (one[0] * two[0] - one[1] * two[1])
        im = scale * (one[0] * two[1] + one[1] * two[0])
        re, im = where(beside, 0.0, re), where(beside, 0.0, im)
        near = _log_size(re, im), atan2(im, 1.0 + re)
        self.sine, self.cosine = self._angle(q)
        large = maximum(absolute(self.sine[0]), absolute(self.sine[1]))
        p, r = self.sine[0] / large, self.sine[1] / large
        size = log(large) + 0.5 * log(p * p + r * r) - half - log1p(tilt) + math.log(2.0)
        turned = atan2(self.sine[1], self.sine[0])
        self.log_size = 2.0 * x * gap - h * where(beside, size, where(close, near[0], far[0]))
        self.phase = 2.0 * x * q - h * where(beside, turned, where(close, near[1], far[1]))
        self.q = q

    def _angle(self, q: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Sine and cosine of pi / 2 + i u, which is (w + i v)^2 / (pi / 2 - i u)."""
        w, v, p = self.w, self.v, 0.5 * math.pi + self.b
        square, size = (w - v) * (w + v), p * p + self.a * self.a
        c = where(self.beside, (square * p - q * self.a) / size, 1.0)
        d = where(self.beside, (square * self.a + q * p) / size, 1.0)
        return (sin(c) * cosh(d), cos(c) * sinh(d)), (cos(c) * cosh(d), -sin(c) * sinh(d))

    def transform(self) -> tuple[Tensor, Tensor]:
        """Return tanh(u) (w + i v) / u, as real and imaginary part."""
        a, b = self.a, self.b
        e = exp(-2.0 * a)
        cosine, sine = cos(b), sin(b)
        lost = -expm1(-2.0 * a)
        twist = e * sin(2.0 * b)
        up, down = lost + 2.0 * e * sine * sine, lost + 2.0 * e * cosine * cosine
        # tanh(u) = (up + i twist) / (down - i twist), or i times the cotangent of the angle.
        large = maximum(absolute(self.sine[0]), absolute(self.sine[1]))
        p, r = self.sine[0] / large, self.sine[1] / large
        k, o = self.cosine
        ratio = (k * p + o * r) / (p * p + r * r), (o * p - k * r) / (p * p + r * r)
        size = down * down + twist * twist
        size = where(self.beside, 1.0, size)
        n = (up * down - twist * twist) / size, twist * (up + down) / size
        n = where(self.beside, -ratio[1] / large, n[0]), where(self.beside, ratio[0] / large, n[1])
        whole = a * a + b * b
        m = (self.w * a + self.v * b) / whole, (self.v * a - self.w * b) / whole
        return n[0] * m[0] - n[1] * m[1], n[0] * m[1] + n[1] * m[0]

    def log_sum(self, re: Tensor, im: Tensor) -> Tensor:
        """Log of the integral of the transform times exp(s x) times ``re + i im``, over pi."""
        top = self.log_size[..., :1]
        waves = re * cos(self.phase) - im * sin(self.phase)
        value = total(exp(self.log_size - top) * waves, -1)
        return top[..., 0] + log(value * self.width)


def _log_size(re: Tensor, im: Tensor) -> Tensor:
    """Log of the size of 1 + re + i im."""
    return 0.5 * log1p(2.0 * re + re * re + im * im)


def _log_density(h: Tensor, z: Tensor, x: Tensor) -> Tensor:
    early = (1.0 + h) > (2.0 * FIRST + 2.0 * log(2.0 + h)) * x
    inner = where(early, 0.25 * h, x)
    rest, bottom = inner.detach(), 0.25 * h.detach()
    start = maximum(_saddle(4.0 * bottom, rest), ROOM / sqrt(rest))
    path = _Path(h, z, inner, start)
    # x f(x) / h has the transform tanh(u) / (4 u) cosh(u)^-h: no small h cancels. Times 4 w.
    re, im = path.transform()
    late = log(h) - log(inner) + path.log_sum(re, im)
    x = where(early, x, inner)
    half = 0.5 * absolute(z)
    # (2 cosh(z / 2))^h h / sqrt(2 pi x^3) / 2 exp(-h^2 / (8 x) - z^2 x / 2), by one square
    gap = h - 4.0 * half * x
    powers = h * log1p(exp(-2.0 * half)) - gap * (gap / (8.0 * x))
    first = powers + log(h) - 1.5 * log(x) - (HALF_LOG_2PI + math.log(2.0))
    return where(early, first, late)


def _tails(h: Tensor, z: Tensor, x: Tensor, nodes: int = NODES) -> tuple[Tensor, Tensor, Tensor]:
    """Return cdf, survival and density at 0 < x: by a line beside the pole of 1 / s."""
    # All of the mass of a smaller h is where x goes with its square.
    shrunk = minimum(h / LEAST, 1.0)
    near = minimum(x / shrunk / shrunk, 1e-3)
    h, x = maximum(h, LEAST), where(shrunk < 1.0, near, x)
    # Less than a share of 1e-2000 lies below: for small h a draw is about h^2 / 4.
    least = h.detach() * minimum(h.detach() * 1e-5, 1e-10)
    at = maximum(x, maximum(least, 1e-305))
    rest, tilt = at.detach(), z.detach()
    root = 1.0 / sqrt(rest)
    pole = sqrt(EDGE + 0.25 * tilt * tilt)
    peak = _saddle(h.detach(), rest)
    left = minimum(peak, pole - ROOM * root)
    # On the left of the pole the integral is minus the survival.
    beyond = (peak < pole) & (left >= ROOM * root)
    start = where(beyond, left, maximum(maximum(peak, pole + ROOM * root), ROOM * root))
    path = _Path(h, z, at, start, nodes)
    # 4 (w + i v) / (2 D)
    size = unsqueeze(where(beyond, -0.5, 0.5), -1) * (path.gap * path.gap + path.q * path.q)
    re = (path.w * path.gap + path.v * path.q) / size
    im = (path.v * path.gap - path.w * path.q) / size
    part = clamp(exp(path.log_sum(re, im)), 0.0, 1.0)
    low, high = where(beyond, 1.0 - part, part), where(beyond, part, 1.0 - part)
    return low, high, exp(path.log_sum(4.0 * path.w, 4.0 * path.v))


def _between(h: Tensor, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return cdf and survival at any number."""
    inside = (x > 0.0) & (x < math.inf)
    low, high, _ = _tails(h, z, where(inside, x, 1.0))
    below = x <= 0.0
    return where(inside, low, where(below, 0.0, 1.0)), where(inside, high, where(below, 1.0, 0.0))


def _quantile(h: Tensor, z: Tensor, p: Tensor) -> Tensor:
    """Return quantiles, by Newton's method for the log of x and that of the smaller tail."""
    # What is smaller still goes with the square of h, as far as there are doubles.
    shrunk = minimum(h / LEAST, 1.0)
    # Of a larger h the first guess is exact to rounding.
    large, whole = h > LARGE, h
    h = where(large, LARGE, maximum(h, LEAST))
    upper = p > 0.5
    aim = log(where(upper, 1.0 - p, p))
    d = PolyaGamma(where(large, whole, h), z, validate_args=False)
    mean = d._mean()
    # From the cube of a normal number with the first two moments (Wilson and Hilferty).
    ninth = d._variance() / (9.0 * mean * mean)
    cube = maximum(1.0 - ninth + ndtri(p) * sqrt(ninth), 0.05)

    def closer(t: Tensor, nodes: int) -> Tensor:
        x = exp(t)
        low, high, density = _tails(h, z, x, nodes)
        tail = maximum(where(upper, high, low), 1e-300)
        slope = where(upper, -1.0, 1.0) * x * maximum(density, 1e-300) / tail
        return clamp((aim - log(tail)) / slope, -1.0, 1.0)

    def step(state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        t, _, n = state
        move = closer(t, ROUGH)
        return t + move, absolute(move), n + 1.0

    start = log(mean) + 3.0 * log(cube)
    # h^2 / (4 y^2) for a normal y, until the tilt or the series ends it.
    passage = 2.0 * (log(h) - log(maximum(-ndtri(0.5 * p), 1e-160))) - math.log(4.0)
    start = where(h < SMALL, minimum(passage, -log(8.0 + z * z)), start)
    first = start
    start = where(large, log(0.25 * h), start)
    t, _, _ = while_loop(
        lambda s: some(s[1] > 1e-4) & (s[2].max() < STEPS),
        step,
        (start, start * 0.0 + 1.0, start * 0.0),
    )
    for _ in range(2):
        t = t + closer(t, NODES)
    return exp(where(large, first, t)) * shrunk * shrunk
