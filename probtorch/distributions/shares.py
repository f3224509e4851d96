"""Distributions of the unit interval and of other bounded intervals, besides the beta.

Kumaraswamy, logit-normal, relaxed Bernoulli, triangular; and those whose density is an exponential
between bounds: the continuous Bernoulli in the value, power laws (power_laws.py) in its logarithm.
They share `Tilt`, which is exact around a flat density too: series there, where differences would
cancel.
"""

from __future__ import annotations

import math

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.bernoulli import Trial
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.facts import expectation
from probtorch.distributions.fields import Parameter, one_of, param, setting
from probtorch.distributions.location_scale import EULER_GAMMA, Logistic
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.precision import doubled
from probtorch.distributions.source import Source
from probtorch.distributions.transforms.scalar import log_sigmoid_derivative
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, sqrt, where
from probtorch.ops.exponentials import exp, expm1, log, log1p, logaddexp, sigmoid
from probtorch.ops.exponentials import pow as power
from probtorch.ops.special import (
    betaln,
    digamma,
    log1mexp,
    log_ndtr,
    logit,
    ndtr,
    ndtri,
    xlogy,
)
from probtorch.tensor import Tensor

__all__ = [
    "ContinuousBernoulli",
    "Kumaraswamy",
    "LogitNormal",
    "RelaxedBernoulli",
    "Triangular",
]


class Kumaraswamy(Distribution):
    """Kumaraswamy distribution: cdf ``1 - (1 - x ** concentration1) ** concentration0``.

    Density ``f(x) = a * b * x ** (a - 1) * (1 - x ** a) ** (b - 1)`` with ``a = concentration1``
    and ``b = concentration0``.

    Parameters
    ----------
    concentration1 : Tensor or number, positive
    concentration0 : Tensor or number, positive
    """

    concentration1: Parameter = param(constraints.positive)
    concentration0: Parameter = param(constraints.positive)
    support = constraints.unit_interval

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.inside_unit(self._from_exponential(rng.exponential(shape)))

    def _from_exponential(self, e: Tensor) -> Tensor:
        return exp(log1mexp(e / self.concentration0) / self.concentration1)

    def _log_rest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return where x is inside, and log(1 - x ** concentration1) there."""
        inside = (x > 0.0) & (x < 1.0)
        return inside, log1mexp(-self.concentration1 * log(where(inside, x, 0.5)))

    def _log_prob(self, x: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        inside, rest = self._log_rest(x)
        end = xlogy(b - 1.0, where(inside | (x <= 0.0), 1.0, 0.0))
        return xlogy(a - 1.0, x) + where(inside, (b - 1.0) * rest, end) + (log(a) + log(b))

    def _survival(self, x: Tensor) -> Tensor:
        inside, rest = self._log_rest(x)
        return where(inside, exp(self.concentration0 * rest), where(x > 0.0, 0.0, 1.0))

    def _cdf(self, x: Tensor) -> Tensor:
        inside, rest = self._log_rest(x)
        return where(inside, -expm1(self.concentration0 * rest), where(x > 0.0, 1.0, 0.0))

    def _icdf(self, p: Tensor) -> Tensor:
        return self._from_exponential(-log1p(-p))

    def _entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = digamma(b + 1.0) + EULER_GAMMA
        return (1.0 - 1.0 / b) + (1.0 - 1.0 / a) * harmonic - log(a) - log(b)

    def _raw(self, order: float) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return b * exp(betaln(1.0 + order / a, b))

    def _mean(self) -> Tensor:
        return self._raw(1.0)

    def _variance(self) -> Tensor:
        m = self._raw(1.0)
        return self._raw(2.0) - m * m

    def _mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        hill = (a > 1.0) & (b > 1.0)
        top = power(where(hill, (a - 1.0) / (a * b - 1.0), 0.5), 1.0 / a)
        # Without a hill the density is highest at the end where its exponent is smaller.
        return where(hill, top, where(a < b, 0.0, 1.0))


class LogitNormal(Distribution):
    """Distribution of sigmoid(x) for x normal.

    Density ``f(x) = exp(-z ** 2 / 2) / (scale * sqrt(2 * pi) * x * (1 - x))`` with ``z = (log(x /
    (1 - x)) - loc) / scale``.

    Parameters
    ----------
    loc : Tensor or number
        Mean of the log odds.
    scale : Tensor or number, positive
        Their standard deviation.
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)
    support = constraints.open_interval(0.0, 1.0)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.inside_unit(sigmoid(self.loc + self.scale * rng.normal(shape)))

    def _standard(self, x: Tensor) -> Tensor:
        return (logit(x) - self.loc) / self.scale

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        z = self._standard(x)
        return z * z * -0.5 - log(x) - log1p(-x) - (log(self.scale) + HALF_LOG_2PI)

    def _cdf(self, x: Tensor) -> Tensor:
        return ndtr(self._standard(clamp(x, 0.0, 1.0)))

    def _log_cdf(self, x: Tensor) -> Tensor:
        return log_ndtr(self._standard(clamp(x, 0.0, 1.0)))

    def _log_survival(self, x: Tensor) -> Tensor:
        return log_ndtr(-self._standard(clamp(x, 0.0, 1.0)))

    def _icdf(self, p: Tensor) -> Tensor:
        return sigmoid(self.loc + self.scale * ndtri(p))


class RelaxedBernoulli(Distribution):
    """Continuous relaxation of a Bernoulli draw (Maddison et al. 2017): sigmoid of a logistic one.

    Density ``f(x) = temperature * w * (x * (1 - x)) ** (-temperature - 1) / (w * x **
    (-temperature) + (1 - x) ** (-temperature)) ** 2`` with ``w = probs / (1 - probs)``.

    Parameters
    ----------
    temperature : Tensor or number, positive
        Near 0 the draws are near 0 and 1.
    probs : Tensor or number in [0, 1], optional
    logits : Tensor or number, optional
        Log odds; exactly one of the two is given.
    """

    temperature: Parameter = param(constraints.positive)
    probs: Parameter = param(constraints.unit_interval, default=None)
    logits: Parameter = param(constraints.real, default=None)
    given = one_of("probs", "logits")
    support: Constraint = constraints.open_interval(0.0, 1.0)
    _probs, _logits = Trial._probs, Trial._logits

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.inside_unit(self._icdf(rng.uniform(shape)))

    def _standard(self, x: Tensor) -> Tensor:
        return self.temperature * logit(x) - self.logits

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        z = self._standard(x)
        return log_sigmoid_derivative(z) + log(self.temperature) - log(x) - log1p(-x)

    def _cdf(self, x: Tensor) -> Tensor:
        return sigmoid(self._standard(clamp(x, 0.0, 1.0)))

    def _survival(self, x: Tensor) -> Tensor:
        return sigmoid(-self._standard(clamp(x, 0.0, 1.0)))

    def _icdf(self, p: Tensor) -> Tensor:
        return sigmoid((logit(p) + self.logits) / self.temperature)

    def _odds(self) -> Logistic:
        """The distribution of the log odds; integrals over it see no poles at 0 and 1."""
        d = Logistic(self.logits / self.temperature, 1.0 / self.temperature, validate_args=False)
        return d.expand(self._batch_shape)

    def _mean(self) -> Tensor:
        return expectation(self._odds(), sigmoid)

    def _central(self, order: int) -> Tensor:
        mean = self._mean()
        return expectation(self._odds(), lambda y: (sigmoid(y) - mean) ** order)

    def _variance(self) -> Tensor:
        return self._central(2)

    def _skewness(self) -> Tensor:
        return self._central(3) / self._central(2) ** 1.5

    def _kurtosis(self) -> Tensor:
        return self._central(4) / self._central(2) ** 2 - 3.0

    def _entropy(self) -> Tensor:
        odds = self._odds()
        return odds.entropy() + expectation(odds, log_sigmoid_derivative)


class Triangular(Distribution):
    """Density that rises in a line from `low` to `peak` and falls in a line to `high`.

    Density ``f(x) = 2 / (high - low) * ((x - low) / (peak - low) if x < peak else (high - x) /
    (high - peak))``.

    Parameters
    ----------
    low : Tensor or number
    high : Tensor or number, above `low`
    peak : Tensor or number between them
    """

    low: Parameter = param(constraints.real, default=0.0)
    high: Parameter = param(
        constraints.dependent(lambda self: constraints.greater_than(self.low)), default=1.0
    )
    peak: Parameter = param(
        constraints.dependent(lambda self: constraints.interval(self.low, self.high)), default=0.5
    )

    @constraints.dependent_property(event_dim=0, is_discrete=False)
    def support(self) -> Constraint:
        """Values between the bounds."""
        return constraints.interval(self.low, self.high)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        x = self._icdf(rng.uniform(shape))
        # At a bound that draws are rounded to, the density is 0.
        return where((x > self.low) & (x < self.high), x, self.peak)

    def _log_prob(self, x: Tensor) -> Tensor:
        rising = x < self.peak
        way = where(rising, x - self.low, self.high - x)
        side = where(rising, self.peak - self.low, self.high - self.peak)
        # At a peak on a bound the way is 0 over 0, and the density that of the peak.
        flat = side == 0.0
        share = where(flat, 1.0, way) / where(flat, 1.0, side)
        return log(share) + (math.log(2.0) - log(self.high - self.low))

    def _sides(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether x is below the peak; the mass below x if so, the mass above x if not."""
        width, x = self.high - self.low, clamp(x, self.low, self.high)
        up, down = self.peak - self.low, self.high - self.peak
        left = (x - self.low) / width * ((x - self.low) / where(up > 0.0, up, 1.0))
        right = (self.high - x) / width * ((self.high - x) / where(down > 0.0, down, 1.0))
        return x < self.peak, left, right

    def _cdf(self, x: Tensor) -> Tensor:
        rising, left, right = self._sides(x)
        return where(rising, left, 1.0 - right)

    def _survival(self, x: Tensor) -> Tensor:
        rising, left, right = self._sides(x)
        return where(rising, 1.0 - left, right)

    def _icdf(self, p: Tensor) -> Tensor:
        width, up, down = self.high - self.low, self.peak - self.low, self.high - self.peak
        below = p * width < up
        left = self.low + sqrt(where(below, p * width * up, 1.0))
        right = self.high - sqrt(where(below, 1.0, (1.0 - p) * width * down))
        return where(below, left, right)

    def _entropy(self) -> Tensor:
        return 0.5 + log((self.high - self.low) * 0.5)

    def _mean(self) -> Tensor:
        return (self.low + self.high + self.peak) / 3.0

    def _mode(self) -> Tensor:
        return self.peak

    def _variance(self) -> Tensor:
        width, up = self.high - self.low, self.peak - self.low
        return (width * width - up * (width - up)) / 18.0

    def _skewness(self) -> Tensor:
        u = (self.peak - self.low) / (self.high - self.low)
        top = math.sqrt(2.0) * (1.0 - 2.0 * u) * (u + 1.0) * (2.0 - u)
        return top / (5.0 * power(1.0 - u + u * u, 1.5))

    def _kurtosis(self) -> Tensor:
        return self.low * 0.0 - 0.6


class Tilt:
    """The density prop. to exp(slope x) on [0, 1]."""

    def __init__(self, slope: Tensor) -> None:
        self.slope = slope
        self.flat = absolute(slope) < 1e-3
        # In place of a slope near 0, where a series is used.
        self.steep = where(self.flat, 1.0, slope)

    def log_density(self, x: Tensor) -> Tensor:
        """Log density at x."""
        return self.slope * (x - where(self.slope > 0.0, 1.0, 0.0)) - self._log_size()

    def _log_size(self) -> Tensor:
        """Log of the integral of exp(-abs(slope) x): log((1 - exp(-y)) / y)."""
        y = absolute(self.slope)
        small = y < 0.5
        # log(sinh(u) / u) - u with u = y / 2
        u = where(small, self.slope, 0.5) * 0.5
        s = u * u
        series = s * (1 / 6 - s * (1 / 180 - s * (1 / 2835 - s * (1 / 37800 - s / 467775))))
        big = where(small, 1.0, y)
        return where(small, series - 0.5 * y, log1mexp(big) - log(big))

    def cdf(self, x: Tensor) -> Tensor:
        """Probability below x in [0, 1]."""
        s, h, t = self.slope, x - 1.0, self.steep
        # Bernoulli polynomials
        series = x + x * h * s * (0.5 + s * ((2.0 * x - 1.0) / 12.0 + s * x * h / 24.0))
        rising = t > 0.0
        y = absolute(t)
        share = expm1(-y * x) / expm1(-y)
        return where(self.flat, series, where(rising, exp(y * h) * share, share))

    def quantile(self, p: Tensor) -> Tensor:
        """Inverse of the cdf."""
        s, q, t = self.slope, 1.0 - p, self.steep
        v = p * q
        # Cumulants of a Bernoulli number
        cubic = v * (q - p) / 6.0 + s * v * (1.0 - 6.0 * v) / 24.0
        series = p + s * (v * 0.5 + s * cubic)
        rising = t > 0.0
        # Small numbers from expm1, while that is one of single precision; others from what is left
        # up to the end, as it is also where that is nothing beside 1.
        mild = where(rising, t < 80.0, p < 0.5)
        near = log1p(p * expm1(where(mild, t, 1.0))) / where(mild, t, 1.0)
        first, last = where(rising, p, q), where(rising, q, p)
        rest = -logaddexp(log(first), log(last) - absolute(t)) / absolute(t)
        far = where(rising, 1.0 - rest, rest)
        return where(self.flat, series, where(mild, near, far))

    def mean(self) -> Tensor:
        """Mean of x."""
        small = absolute(self.slope) < 0.3
        y = where(small, self.slope, 0.0)
        s, big = y * y, where(small, 1.0, self.slope)
        series = y * (1 / 12 - s * (1 / 720 - s * (1 / 30240 - s * (1 / 1209600 - s / 47900160))))
        # 1 / (1 - exp(-t)) - 1 / t, whose exponential would overflow for t far below 0
        far = absolute(big)
        mirrored = 1.0 / far - exp(-far) / -expm1(-far)
        direct = where(big > 0.0, 1.0 - mirrored, mirrored)
        return where(small, 0.5 + series, direct)

    def variance(self) -> Tensor:
        """Variance of x."""
        small = absolute(self.slope) < 0.3
        s = where(small, self.slope * self.slope, 0.0)
        y = where(small, 1.0, absolute(self.slope))
        series = 1 / 12 - s * (1 / 240 - s * (1 / 6048 - s * (1 / 172800 - s / 5322240)))
        e = expm1(-y)
        return where(small, series, 1.0 / (y * y) - exp(-y) / (e * e))


class ContinuousBernoulli(Trial):
    """Density prop. to ``probs ** x * (1 - probs) ** (1 - x)`` on [0, 1]
    (Loaiza-Ganem and Cunningham 2019).

    Density ``f(x) = c * probs ** x * (1 - probs) ** (1 - x)`` with ``c = log(probs / (1 - probs)) /
    (2 * probs - 1)``.

    Parameters
    ----------
    probs : Tensor or number in [0, 1], optional
    logits : Tensor or number, optional
        Log odds, the slope of the log density; exactly one of the two is given.
    lims : pair of numbers
        For calls written for PyTorch, and not used: densities around 1/2 are exact.
    """

    probs: Parameter = param(constraints.unit_interval, default=None)
    logits: Parameter = param(constraints.real, default=None)
    lims: tuple[float, float] = setting(default=(0.499, 0.501))
    given = one_of("probs", "logits")
    support = constraints.unit_interval

    def _tilt(self) -> Tilt:
        return Tilt(self.logits)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.inside_unit(self._tilt().quantile(rng.uniform(shape)))

    def _log_prob(self, x: Tensor) -> Tensor:
        return self._tilt().log_density(x)

    def _cdf(self, x: Tensor) -> Tensor:
        return self._tilt().cdf(clamp(x, 0.0, 1.0))

    def _icdf(self, p: Tensor) -> Tensor:
        return self._tilt().quantile(p)

    def _entropy(self) -> Tensor:
        tilt = self._tilt()
        return -tilt.log_density(tilt.mean())

    def _mean(self) -> Tensor:
        return self._tilt().mean()

    def _mode(self) -> Tensor:
        return where(self.logits > 0.0, 1.0, 0.0)

    def _variance(self) -> Tensor:
        return self._tilt().variance()
