"""Normal numbers whose variance is itself drawn: heavy tails, and priors that shrink.

An inverse Gaussian variance gives the normal-inverse Gaussian distribution, an exponential one the
Laplace distribution of vectors, the square of a half-Cauchy one the horseshoe.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dtype import float64
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.location_scale import EULER_GAMMA
from probtorch.distributions.multivariate_normal import squared_length
from probtorch.distributions.precision import doubled, in_double
from probtorch.distributions.ratios import InverseGaussian
from probtorch.distributions.source import Source
from probtorch.distributions.vectors import check_sizes, half_log_det
from probtorch.distributions.windows import ARC, DROP, log_kve, nodes_like, weighted
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, maximum, minimum, sqrt, where
from probtorch.ops.exponentials import exp, log
from probtorch.ops.movement import reshape, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import erfc, ndtr
from probtorch.ops.trigonometry import asinh, sinh, tan
from probtorch.tensor import Tensor

__all__ = ["Horseshoe", "MultivariateLaplace", "NormalInverseGaussian"]

# From -1 to 1, with the weights of the trapezium rule.
BOTH = np.concatenate([-ARC[:0:-1], ARC])


class NormalInverseGaussian(Distribution):
    """Normal numbers whose variance is inverse Gaussian: semi-heavy tails, one of them longer.

    Density ``f(x) = tailweight * scale * Kv(1, tailweight * r) / (pi * r) * exp(scale *
    sqrt(tailweight ** 2 - skewness_ ** 2) + skewness_ * (x - loc))`` with ``r = sqrt(scale ** 2 +
    (x - loc) ** 2)``.

    Parameters
    ----------
    loc : Tensor or number
    scale : Tensor or number, positive
    tailweight : Tensor or number, positive
        Rate of the exponential factor of both tails: large for nearly normal numbers.
    skewness_ : Tensor or number in (-tailweight, tailweight)
        Positive for a longer tail above; TFP's `skewness`.
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)
    tailweight: Parameter = param(constraints.positive)
    skewness_: Parameter = param(
        constraints.dependent(
            lambda self: constraints.open_interval(-self.tailweight, self.tailweight)
        ),
        default=0.0,
    )
    support = constraints.real

    def _rate(self) -> Tensor:
        """Return sqrt(tailweight^2 - skewness^2)."""
        a, b = self.tailweight, self.skewness_
        # Of a product that may leave the range of floats.
        return sqrt(a - b) * sqrt(a + b)

    def _variances(self) -> InverseGaussian:
        return InverseGaussian(
            self.scale / self._rate(), self.scale * self.scale, validate_args=False
        )

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        # Squares and products of parameters may leave single precision, draws do not.
        names = ("loc", "scale", "tailweight", "skewness_")
        wide = {name: cast(getattr(self, name), float64) for name in names}
        v = NormalInverseGaussian(**wide, validate_args=False)._variances()._rsample(rng, shape)
        x = wide["loc"] + wide["skewness_"] * v + sqrt(v) * rng.normal(shape)
        return rng.finite(cast(x, rng.dtype))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        gap, rate = x - self.loc, self._rate()
        return _log_normal_inverse_gaussian(gap, self.scale, self.tailweight, self.skewness_, rate)

    def _share(self, x: Tensor, sign: float) -> Tensor:
        gap = (x - self.loc) * sign
        return in_double(_share_below, gap, self.scale, self.skewness_ * sign, self._rate())

    def _cdf(self, x: Tensor) -> Tensor:
        return clamp(self._share(x, 1.0), 0.0, 1.0)

    def _survival(self, x: Tensor) -> Tensor:
        return clamp(self._share(x, -1.0), 0.0, 1.0)

    def _mean(self) -> Tensor:
        return self.loc + self.scale * (self.skewness_ / self._rate())

    def _variance(self) -> Tensor:
        ratio = self.tailweight / self._rate()
        return self.scale / self._rate() * ratio * ratio

    def _skewness(self) -> Tensor:
        return 3.0 * self.skewness_ / (self.tailweight * sqrt(self.scale * self._rate()))

    def _kurtosis(self) -> Tensor:
        lean = self.skewness_ / self.tailweight
        return 3.0 * (1.0 + 4.0 * lean * lean) / (self.scale * self._rate())


def _log_normal_inverse_gaussian(z: Tensor, d: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """log(a d / pi) + log K1(a q) - log q + d c + b z, for q = sqrt(d^2 + z^2), c^2 = a^2 - b^2."""
    size, lean = absolute(z), absolute(b)
    large, small = maximum(size, d), minimum(size, d)
    q = large * sqrt(1.0 + (small / large) * (small / large))
    # a q - b z and a z - b q, without differences where b z is positive.
    same = b * z > 0.0
    both = where(same, a * q + b * z, 1.0)
    apart = (a * d / both) * (a * d) + (c * z / both) * (c * z)
    length = where(same, apart, a * q - b * z)
    turn = where(same, (a - lean) * size - lean * (d * (d / (q + size))), a * size + lean * q)
    # a q - b z - c d is that, with (a z - b q)^2 the difference of squares.
    exponent = -turn * (turn / (length + c * d))
    reach = a * q
    tiny = reach < 1e-10
    # K1 is 1 / x there.
    bessel = where(
        tiny, reach - log(where(tiny, reach, 1.0)), log_kve(1.0, where(tiny, 1.0, reach))
    )
    return log(a) + log(d / q) - math.log(math.pi) + bessel + exponent


def _share_below(gap: Tensor, d: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """P(X <= loc + gap): the integral of a normal cdf over the log of the variance."""
    gap = clamp(gap, -1e150, 1e150)
    n = (c * d + gap * 0.0).detach()
    reach = 2.0 * asinh(sqrt(DROP / (2.0 * n)))
    reach = 2.0 * asinh(sqrt((DROP + 0.5 * reach) / (2.0 * n)))
    t = unsqueeze(reach, -1) * nodes_like(n, BOTH)
    half, rate = sinh(t * 0.5), unsqueeze(c * d, -1)
    weights = sqrt(rate) * exp(-0.5 * t - 2.0 * rate * (half * half)) * unsqueeze(reach, -1)
    v = unsqueeze(d / c, -1) * exp(t)
    below = ndtr((unsqueeze(gap, -1) - unsqueeze(b, -1) * v) / sqrt(v))
    return total(weights * below, -1) * (1.0 / 128 / math.sqrt(2.0 * math.pi))


class Horseshoe(Distribution):
    """Normal numbers whose standard deviation is half-Cauchy: most near 0, some far from it.

    Density ``f(x) = exp(u) * E1(u) / (scale * sqrt(2 * pi ** 3))`` with ``u = x ** 2 / (2 *
    scale ** 2)``.

    Parameters
    ----------
    scale : Tensor or number, positive

    Notes
    -----
    The density is infinite at 0. In a model it samples better in two parts,
    ``HalfCauchy(1)`` times ``Normal(0, scale)``, of which this is the marginal.
    """

    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        spread = tan(rng.uniform(shape) * (0.5 * math.pi))
        return self.scale * rng.finite(rng.normal(shape) * spread)

    def _log_prob(self, x: Tensor) -> Tensor:
        size = log(self.scale) + 0.5 * math.log(2.0 * math.pi**3)
        return in_double(_log_tail, x / self.scale) - size

    def _survival(self, x: Tensor) -> Tensor:
        above = in_double(_horseshoe_tail, absolute(x / self.scale))
        return where(x > 0.0, above, 1.0 - above)

    def _cdf(self, x: Tensor) -> Tensor:
        return self._survival(-x)

    def _mean(self) -> Tensor:
        return self.scale * math.nan

    _variance = _mean

    def _mode(self) -> Tensor:
        return self.scale * 0.0


def _log_tail(y: Tensor) -> Tensor:
    """Log of exp(z) E1(z) for z = y^2 / 2."""
    size = absolute(y)
    near = size < math.sqrt(2.0)
    low = where(near, size, 1.0)
    z = low * low * 0.5
    # DLMF 6.6.2
    series = z * 0.0
    for k in range(20, 0, -1):
        series = (series * (-z) + 1.0 / (k * math.factorial(k))) if k > 1 else 1.0 - z * series
    small = z + log(z * series - 2.0 * log(low) + (math.log(2.0) - EULER_GAMMA))
    # The integral over t of exp(-t) / (z + t).
    high = where(near, 2.0, size)
    z = unsqueeze(high * high * 0.5, -1)
    large = log(weighted(1.0 / (z + nodes_like(z, TIMES)), nodes_like(z, MASSES)))
    return where(near, small, large)


# t = exp(u - exp(-u)) makes both tails of exp(-t) dt doubly exponential.
_U = np.linspace(-4.2, 3.9, 72)
TIMES = np.exp(_U - np.exp(-_U))
MASSES = np.exp(-TIMES) * TIMES * (1.0 + np.exp(-_U)) * (_U[1] - _U[0])

_V = np.linspace(-38.0, 38.0, 420)
SIZES, SHARES = np.exp(_V), (_V[1] - _V[0]) / (2.0 * np.pi * np.cosh(_V))


def _horseshoe_tail(z: Tensor) -> Tensor:
    """P(X > z), over the log of the half-Cauchy standard deviation."""
    ratio = unsqueeze(z, -1) / nodes_like(z, SIZES)
    return weighted(erfc(ratio * math.sqrt(0.5)), nodes_like(z, SHARES))


class MultivariateLaplace(Distribution):
    """Normal vectors whose covariance is scaled by an exponential number of mean 1.

    Density ``f(x) = 2 * (q / 2) ** (v / 2) * Kv(v, sqrt(2 * q)) / sqrt((2 * pi) ** len(x) *
    det(S))`` with ``S = scale_tril @ transpose(scale_tril)`` and ``q = (x - loc) @ inv(S) @ (x
    - loc)`` and ``v = 1 - len(x) / 2``.

    Parameters
    ----------
    loc : Tensor, shape (..., n)
    scale_tril : Tensor, shape (..., n, n), lower-triangular with positive diagonal
        The covariance is ``scale_tril @ scale_tril.T``.

    Notes
    -----
    Symmetric, each margin a Laplace distribution; from two dims on the density is infinite at
    `loc`.
    """

    loc: Parameter = param(constraints.real_vector)
    scale_tril: Parameter = param(constraints.lower_cholesky)
    support = constraints.real_vector

    def _infer_event_shape(self) -> Shape:
        n = self.loc.array.shape[-1]
        check_sizes("MultivariateLaplace", "a scale_tril", (n, n), self.scale_tril)
        return (n,)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        noise = rng.normal(shape) * unsqueeze(sqrt(rng.exponential(shape[:-1])), -1)
        return self.loc + reshape(self.scale_tril @ unsqueeze(noise, -1), shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        n = self._event_shape[0]
        square = squared_length(self.scale_tril, x - self.loc)
        size = half_log_det(self.scale_tril) + 0.5 * n * math.log(2.0 * math.pi)
        return in_double(lambda q: _log_laplace(q, n), square) - size

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean

    def _variance(self) -> Tensor:
        return total(self.scale_tril * self.scale_tril, -1)


def _log_laplace(square: Tensor, n: int) -> Tensor:
    """Log of 2 (q / 2)^(v / 2) K_v(sqrt(2 q)) for v = 1 - n / 2 (Kotz et al. 2001)."""
    q, order = maximum(square, 1e-38), 1.0 - 0.5 * n
    root = sqrt(2.0 * q)
    power = 0.5 * order * (log(q) - math.log(2.0))
    return math.log(2.0) + power + log_kve(abs(order), root) - root
