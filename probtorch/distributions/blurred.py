"""Exponential tails blurred by a normal: an exponential number, or a Laplace one, added to it.

What an exponential tail and a normal have in common is one function, `log_tilted`, in which neither
factor under- or overflows. A cdf is a difference of it and the normal's, which cancel where the
normal is narrow: it is an integral then.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.normal import HALF_LOG_2PI, ROOT_2
from probtorch.distributions.precision import doubled
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import clamp, maximum, minimum, sqrt, where
from probtorch.ops.exponentials import exp, expm1, log, log1p, logaddexp
from probtorch.ops.exponentials import pow as power
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import erfcx, log_ndtr
from probtorch.tensor import Tensor

__all__ = ["ExGaussian", "SoftAsymmetricLaplace"]

# Gauss's rule on [0, 1]: for what is a power to rounding at most, over a factor of 1.5.
NODES, WEIGHTS = (v * 0.5 for v in np.polynomial.legendre.leggauss(16))
NODES = NODES + 0.5
# From here on Mills's ratio is its asymptotic series: what is left after these terms is 1e-13.
SERIES, ODD = 25.0, (15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0)
# Squares of numbers up to here are floats, and so is the other, with which nothing is infinite.
LARGE, LARGEST = 1e150, 1e300


def log_tilted(z: Tensor, scale: Tensor, length: Tensor) -> Tensor:
    """log(exp(-z / length + (scale / length)^2 / 2) ndtr(z / scale - scale / length)).

    An exponential density of mean `length` times that, blurred by a normal of sd `scale`.
    """
    u, q = z / scale, scale / length
    t = q - u
    far = t > 0.0
    # ndtr(-t) = exp(-t^2 / 2) erfcx(t / sqrt 2) / 2, and the squares of t cancel.
    tail = u * u * -0.5 + log(erfcx(where(far, t, 0.0) / ROOT_2)) - math.log(2.0)
    return where(far, tail, q * (q * 0.5 - where(far, 0.0, u)) + log_ndtr(-where(far, 0.0, t)))


def log_rest(z: Tensor, scale: Tensor, length: Tensor) -> Tensor:
    """Log of the survival at z of an exponential number of mean `length` plus a normal one."""
    return logaddexp(log_ndtr(-z / scale), log_tilted(z, scale, length))


def mills(t: Tensor) -> Tensor:
    """ndtr(-t) over the normal density at t."""
    return erfcx(t / ROOT_2) * math.sqrt(0.5 * math.pi)


def fall(t: Tensor) -> Tensor:
    """How fast `mills` falls: 1 - t mills(t)."""
    far = t > SERIES
    s = where(far, 1.0 / where(far, t, 1.0), 0.0)
    square, series = s * s, t * 0.0 + 1.0
    for odd in ODD:
        series = 1.0 - odd * square * series
    near = where(far, 0.0, t)
    return where(far, square * series, 1.0 - near * mills(near))


def mills_between(t: Tensor, q: Tensor) -> Tensor:
    """mills(t) - mills(t + q) for t from -1/2 on, which loses nothing for small q."""
    apart = q > 0.5 * (1.0 + maximum(t, 0.0))
    width = where(apart, 0.0, q)
    at = unsqueeze(t, -1) + unsqueeze(width, -1) * t.new_tensor(NODES)
    integral = width * total(fall(at) * t.new_tensor(WEIGHTS), -1)
    return where(apart, mills(t) - mills(t + where(apart, q, 1.0)), integral)


def log_level(z: Tensor, scale: Tensor, length: Tensor) -> Tensor:
    """Log of the cdf at z of an exponential number of mean `length` plus a normal of sd `scale`."""
    u, q = clamp(z / scale, -LARGEST, LARGEST), minimum(scale / length, LARGE)
    u, q = u + q * 0.0, q + u * 0.0
    narrow = q < 1.0
    low = (u < 0.0) | (narrow & (u < 0.5 * q))
    # Below, phi(u) (mills(-u) - mills(q - u)).
    v = maximum(where(low, u, -1.0), -LARGE)
    below = v * v * -0.5 - HALF_LOG_2PI + log(mills_between(-v, q))
    # Above, where q is small, 1 - exp(q^2 / 2 - q u) and what that leaves out.
    start = narrow & ~low
    v, k = where(start, u, 1.0), where(start, q, 0.5)
    seen = minimum(v, LARGE)
    rest = exp(seen * seen * -0.5 - HALF_LOG_2PI) * mills_between(seen - k, k)
    above = rest - expm1(k * (0.5 * k - v))
    whole = log(where(start, minimum(above, 1.0), 1.0))
    # Where much of the mass is below, 1 - survival.
    survival = exp(log_rest(z, scale, length))
    most = ~low & (~narrow | (survival < 0.5))
    return where(low, below, where(most, log1p(-where(most, survival, 0.0)), whole))


def log_blurred(z: Tensor, left: Tensor, right: Tensor, scale: Tensor) -> Tensor:
    """Log of the cdf at z of a Laplace number with two lengths plus a normal of sd `scale`.

    A number of the side above is an exponential one, with the share of its length.
    """
    above = log(right) + log_level(z, scale, right)
    below = log(left) + log_rest(-z, scale, left)
    return logaddexp(above, below) - log(left + right)


class SoftAsymmetricLaplace(Distribution):
    """Sum of an asymmetric Laplace and a normal number of sd ``scale * softness``.

    Density ``f(x) = (exp(s ** 2 / (2 * R ** 2) - z / R) * Phi(z / s - s / R) + exp(s ** 2 / (2
    * L ** 2) + z / L) * Phi(-z / s - s / L)) / (L + R)`` with ``z = x - loc`` and ``L = scale
    * asymmetry`` and ``R = scale / asymmetry`` and ``s = scale * softness``.

    Parameters
    ----------
    loc : Tensor or number
    scale : Tensor or number, positive
        The tail below is ``scale * asymmetry`` long, the one above ``scale / asymmetry``.
    asymmetry : Tensor or number, positive
    softness : Tensor or number, positive
        Small for a sharp peak.
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)
    asymmetry: Parameter = param(constraints.positive, default=1.0)
    softness: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    @property
    def left_scale(self) -> Tensor:
        """Mean length of the tail below."""
        return self.scale * self.asymmetry

    @property
    def right_scale(self) -> Tensor:
        """Mean length of the tail above."""
        return self.scale / self.asymmetry

    @property
    def soft_scale(self) -> Tensor:
        """Standard deviation of the normal number."""
        return self.scale * self.softness

    def _sides(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.left_scale, self.right_scale, self.soft_scale

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        left, right, soft = self._sides()
        sharp = right * rng.exponential(shape) - left * rng.exponential(shape)
        return rng.finite(self.loc + sharp + rng.finite(soft * rng.normal(shape)))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        # The slopes of the two terms cancel around the peak.
        left, right, soft = self._sides()
        z = x - self.loc
        both = logaddexp(log_tilted(z, soft, right), log_tilted(-z, soft, left))
        return both - log(left + right)

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        return exp(self._log_cdf(x))

    @doubled
    def _log_cdf(self, x: Tensor) -> Tensor:
        left, right, soft = self._sides()
        return log_blurred(x - self.loc, left, right, soft)

    @doubled
    def _log_survival(self, x: Tensor) -> Tensor:
        left, right, soft = self._sides()
        return log_blurred(self.loc - x, right, left, soft)

    def _mean(self) -> Tensor:
        left, right, _ = self._sides()
        return self.loc + (right - left)

    def _variance(self) -> Tensor:
        left, right, soft = self._sides()
        return left * left + right * right + soft * soft

    def _skewness(self) -> Tensor:
        left, right, _ = self._sides()
        sd = sqrt(self._variance())
        return 2.0 * (power(right / sd, 3.0) - power(left / sd, 3.0))

    def _kurtosis(self) -> Tensor:
        left, right, _ = self._sides()
        sd = sqrt(self._variance())
        return 6.0 * (power(right / sd, 4.0) + power(left / sd, 4.0))


class ExGaussian(Distribution):
    """Sum of a normal and an exponential number: a model of reaction times.

    Density ``f(x) = exp((scale / nu) ** 2 / 2 - (x - loc) / nu) * Phi((x - loc) / scale - scale /
    nu) / nu``.

    Parameters
    ----------
    loc : Tensor or number
        Mean of the normal.
    scale : Tensor or number, positive
        Its standard deviation.
    nu : Tensor or number, positive
        Mean of the exponential.
    """

    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    nu: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.finite(
            self.loc + self.scale * rng.normal(shape) + self.nu * rng.exponential(shape)
        )

    def _log_prob(self, x: Tensor) -> Tensor:
        return log_tilted(x - self.loc, self.scale, self.nu) - log(self.nu)

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        return exp(log_level(x - self.loc, self.scale, self.nu))

    @doubled
    def _log_cdf(self, x: Tensor) -> Tensor:
        return log_level(x - self.loc, self.scale, self.nu)

    @doubled
    def _log_survival(self, x: Tensor) -> Tensor:
        return log_rest(x - self.loc, self.scale, self.nu)

    def _mean(self) -> Tensor:
        return self.loc + self.nu

    def _variance(self) -> Tensor:
        return self.scale * self.scale + self.nu * self.nu

    def _skewness(self) -> Tensor:
        return 2.0 * power(self.nu / sqrt(self._variance()), 3.0)

    def _kurtosis(self) -> Tensor:
        return 6.0 * power(self.nu / sqrt(self._variance()), 4.0)
