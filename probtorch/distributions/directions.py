"""Unit vectors: uniform, and around a mean direction.

Both others are a cosine with the mean direction, which is a transformed beta number, and a uniform
direction at a right angle to it. Von Mises-Fisher is the normal distribution of directions; the
power spherical one has a density in closed form and draws with a gradient (De Cao and Aziz 2020).
"""

from __future__ import annotations

import math

from probtorch.core.casting import cast
from probtorch.core.dtype import float64
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param, setting
from probtorch.distributions.particular_counts import found_outward
from probtorch.distributions.precision import in_double
from probtorch.distributions.source import Source
from probtorch.distributions.windows import counts_around
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import floor, maximum, minimum, sqrt, where
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, log, logaddexp
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import digamma, ive, lgamma, lgamma_difference
from probtorch.tensor import Tensor

__all__ = ["PowerSpherical", "SphericalUniform", "VonMisesFisher"]


def log_area(n: int) -> float:
    """Log of the area of the unit sphere in n dims."""
    return math.log(2.0) + 0.5 * n * math.log(math.pi) - math.lgamma(0.5 * n)


def _normalised(x: Tensor) -> Tensor:
    return x / sqrt(total(x * x, -1, True))


def _across(rng: Source, direction: Tensor, shape: Shape) -> Tensor:
    """Return uniform unit vectors at a right angle to a direction."""
    noise = rng.normal(shape)
    for _ in range(2):
        # Twice, since rounding leaves a part along the direction where the rest is short.
        noise = noise - direction * total(noise * direction, -1, True)
    return _normalised(noise)


def _around(rng: Source, loc: Tensor, b: Tensor, rest: Tensor, shape: Shape) -> Tensor:
    """Return unit vectors whose cosine with `loc` is 2 b - 1; `rest` is 1 - b."""
    cosine = unsqueeze(where(b > 0.5, 1.0 - 2.0 * rest, 2.0 * b - 1.0), -1)
    sine = unsqueeze(2.0 * sqrt(b * rest), -1)
    return _normalised(cosine * loc + sine * _across(rng, loc, shape))


def _beta(rng: Source, a: Tensor, b: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Return beta draws and 1 less them."""
    x, y = rng.log_gamma(a, shape), rng.log_gamma(b, shape)
    both = logaddexp(x, y)
    return exp(x - both), exp(y - both)


class SphericalUniform(Distribution):
    """Directions, all with the same density.

    Density ``f(x) = gamma(dim / 2) / (2 * pi ** (dim / 2))``.

    Parameters
    ----------
    dim : int
        Size of the vectors, from 2 on.
    """

    dim: int = setting()
    support = constraints.sphere

    def _infer_event_shape(self) -> Shape:
        return (_size("SphericalUniform", self.dim),)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return _normalised(rng.normal(shape))

    def _log_prob(self, x: Tensor) -> Tensor:
        return total(x, -1) * 0.0 - log_area(self.dim)

    def _entropy(self) -> Tensor:
        return Tensor(log_area(self.dim))

    def _mean(self) -> Tensor:
        return Tensor([0.0] * self.dim)

    def _variance(self) -> Tensor:
        return Tensor([1.0 / self.dim] * self.dim)


def _size(owner: str, n: object) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 2:
        raise ArgumentError(
            owner,
            expected="vectors of at least two elements",
            got=f"{n!r}",
            fix="on a line there are two directions: use Bernoulli",
        )
    return n


class Directed(Distribution):
    """What distributions around a mean direction have in common."""

    loc: Parameter
    concentration: Parameter
    support = constraints.sphere

    def _infer_event_shape(self) -> Shape:
        return (_size(type(self).__name__, self.loc.array.shape[-1]),)

    def _half(self) -> float:
        """Exponent of the marginal of the cosine without concentration."""
        return 0.5 * (self._event_shape[0] - 1)

    def _mode(self) -> Tensor:
        return self.loc


class VonMisesFisher(Directed):
    """Directions with density proportional to ``exp(concentration * (loc * x).sum())``.

    Density ``f(x) = concentration ** (n / 2 - 1) * exp(concentration * (loc @ x)) / ((2 * pi) ** (n
    / 2) * Iv(n / 2 - 1, concentration))`` with ``n = len(x)``.

    Parameters
    ----------
    loc : Tensor, shape (..., n), of length 1
        Mean direction.
    concentration : Tensor or number, positive
        Near 0 uniform; large nearly normal, with variance 1 / concentration across.

    Notes
    -----
    Exact draws: given a count the cosine is a transformed beta number. They take as many steps as
    the root of the concentration, and have no pathwise gradient.
    """

    loc: Parameter = param(constraints.sphere)
    concentration: Parameter = param(constraints.positive)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        a, k = self._half(), expand(cast(self.concentration, float64), shape[:-1])

        def rise(j: Tensor) -> Tensor:
            return 2.0 * k * (a + j) / ((j + 1.0) * (2.0 * a + j))

        # exp(2 k b) is a sum over j of powers of b, each of which gives a beta number.
        gap = 2.0 * k - 2.0 * a
        start = maximum(floor(0.5 * (gap + sqrt(gap * gap + 8.0 * k * a))), 0.0)
        weight = _log_weights(start, k, a) - 2.0 * k - _log_confluent(k, a)
        u = cast(rng.uniform(shape[:-1]), float64)
        j = found_outward(u, start, start * 0.0, start * 0.0 + 1e15, exp(weight), rise)
        b, rest = _beta(rng, a + j, a + j * 0.0, shape[:-1])
        return _around(rng, cast(self.loc, float64), b, rest, shape)

    def _log_size(self) -> Tensor:
        """Log of the integral of exp(concentration * (cosine - 1))."""
        n, a = self._event_shape[0], self._half()
        return in_double(lambda k: _log_confluent(k, a), self.concentration) + log_area(n)

    def _log_prob(self, x: Tensor) -> Tensor:
        apart = x - self.loc
        # 1 - cosine, without the difference
        loss = 0.5 * total(apart * apart, -1)
        return -self.concentration * loss - self._log_size()

    def _length(self) -> Tensor:
        """Length of the mean: the derivative of the log of the size, and 1."""
        order = 0.5 * self._event_shape[0]
        k = self.concentration
        low = ive(order - 1.0, k)
        usual = low > 1e-200
        ratio = ive(order, k) / where(usual, low, 1.0)
        return where(usual, ratio, k / (2.0 * order))

    def _entropy(self) -> Tensor:
        return self._log_size() + self.concentration * (1.0 - self._length())

    def _mean(self) -> Tensor:
        return self.loc * unsqueeze(self._length(), -1)

    def _variance(self) -> Tensor:
        n, m = self._event_shape[0], unsqueeze(self._length(), -1)
        k = unsqueeze(self.concentration, -1)
        # E[cosine^2] = 1 - (n - 1) m / k
        across = m / k
        along = 1.0 - (n - 1.0) * across
        square = self.loc * self.loc
        return square * (along - m * m) + (1.0 - square) * across


def _log_weights(j: Tensor, k: Tensor, a: float) -> Tensor:
    """Log of (2 k)^j / j! (a)_j / (2 a)_j."""
    ratio = lgamma(j + a) - math.lgamma(a) - lgamma(j + 2.0 * a) + math.lgamma(2.0 * a)
    return j * log(2.0 * k) - lgamma(j + 1.0) + ratio


def _log_confluent(k: Tensor, a: float) -> Tensor:
    """Log of exp(-2 k) times their sum over j, Kummer's function M(a, 2 a, 2 k)."""
    order = a - 0.5
    near = k < 60.0 + order
    low = where(near, k, 1.0)
    gap = 2.0 * low - 2.0 * a
    j, weights = counts_around(maximum(0.5 * (gap + sqrt(gap * gap + 8.0 * low * a)), 0.0))
    some = weights > 0.0
    terms = _log_weights(j, unsqueeze(low, -1), a) + log(where(some, weights, 1.0))
    series = logsumexp(where(some, terms, -math.inf), -1)
    high = where(near, 60.0 + order, k)
    # DLMF 13.6.9: exp(k) times a Bessel function of order a - 1/2.
    bessel = log(ive(order, high)) + math.lgamma(a + 0.5) - order * log(high * 0.5)
    return where(near, series - 2.0 * low, bessel)


class PowerSpherical(Directed):
    """Directions with density proportional to ``(1 + (loc * x).sum()) ** concentration``.

    Density ``f(x) = (1 + loc @ x) ** concentration * gamma(a + b) / (2 ** (a + b) * pi ** b *
    gamma(a))`` with ``b = (len(x) - 1) / 2`` and ``a = b + concentration``.

    Parameters
    ----------
    loc : Tensor, shape (..., n), of length 1
        Mean direction.
    concentration : Tensor or number, positive
        Near 0 uniform.
    """

    loc: Parameter = param(constraints.sphere)
    concentration: Parameter = param(constraints.positive)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        b = self._half()
        first, rest = _beta(rng, self.concentration + b, self.concentration * 0.0 + b, shape[:-1])
        return _around(rng, self.loc, first, rest, shape)

    def _log_size(self) -> Tensor:
        """Log of the integral of ((1 + cosine) / 2) ** concentration."""
        b, n = self._half(), self._event_shape[0]
        k = self.concentration
        # gamma(k + b) gamma(2 b) / (gamma(k + 2 b) gamma(b))
        ratio = lgamma_difference(2.0 * b + k * 0.0, k) - lgamma_difference(b + k * 0.0, k)
        return log_area(n) - ratio

    def _log_prob(self, x: Tensor) -> Tensor:
        both = x + self.loc
        # (1 + cosine) / 2, without the difference
        share = maximum(0.25 * total(both * both, -1), 1e-300)
        return self.concentration * log(minimum(share, 1.0)) - self._log_size()

    def _entropy(self) -> Tensor:
        b, k = self._half(), self.concentration
        return self._log_size() - k * (digamma(k + b) - digamma(k + 2.0 * b))

    def _length(self) -> Tensor:
        return self.concentration / (self.concentration + 2.0 * self._half())

    def _mean(self) -> Tensor:
        return self.loc * unsqueeze(self._length(), -1)

    def _variance(self) -> Tensor:
        b, k = self._half(), self.concentration
        sum_ = k + 2.0 * b
        # Of 2 x - 1 for x beta with exponents k + b and b.
        along = unsqueeze(4.0 * b * (k + b) / (sum_ * sum_ * (sum_ + 1.0)), -1)
        m = unsqueeze(self._length(), -1)
        across = (1.0 - along - m * m) / (2.0 * b)
        square = self.loc * self.loc
        return square * along + (1.0 - square) * across
