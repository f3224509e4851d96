"""The von Mises distribution: a normal on the circle.

Draws carry implicit gradients (Figurnov, Mohamed, Mnih 2018), from ops/variates.py.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.precision import doubled, in_double
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import clamp, floor, sqrt, where
from probtorch.ops.exponentials import exp
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import log_i0e, mean_cosine_loss
from probtorch.ops.trigonometry import sin
from probtorch.tensor import Tensor

__all__ = ["VonMises"]

# The circular kurtosis in powers of 1 / concentration, from those of I1 / I0 (DLMF 10.40.1).
KURTOSIS = (
    2.0,
    1.0,
    21 / 8,
    125 / 16,
    3455 / 128,
    27075 / 256,
    473819 / 1024,
    4579025 / 2048,
    387749259 / 32768,
)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)


def _nodes(half: Tensor) -> Tensor:
    """Distances from the start of an interval of twice the length, along a new last dim."""
    return unsqueeze(half, -1) * (half.new_tensor(NODES) + 1.0)


def _sum(half: Tensor, values: Tensor) -> Tensor:
    """Integral over the interval, from values at the nodes."""
    return half * total(values * half.new_tensor(WEIGHTS), -1)


class VonMises(Distribution):
    """Von Mises distribution of angles, with density prop. to exp(concentration * cos(x - loc)).

    Density ``f(x) = exp(concentration * cos(x - loc)) / (2 * pi * Iv(0, concentration))``.

    Parameters
    ----------
    loc : Tensor or number
        Mean direction, in radians.
    concentration : Tensor or number, positive
        Near 0 uniform, large nearly normal with variance 1 / concentration.

    Notes
    -----
    Draws lie in [-pi, pi); the density has period 2 pi and integrates to 1 over one period. Their
    gradient is that of a function of the angle with period 2 pi; it can be taken once.
    """

    loc: Parameter = param(constraints.real)
    concentration: Parameter = param(constraints.positive)
    support = constraints.circular

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        x = rng.von_mises(self.concentration, shape) + self.loc
        return (x + math.pi) % (2.0 * math.pi) - math.pi

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        # cos d - 1 = -2 sin(d / 2)^2 has no cancellation, and i0e = exp(-concentration) i0 no
        # overflow.
        s = sin((x - self.loc) * 0.5)
        constant = log_i0e(self.concentration) + math.log(2.0 * math.pi)
        return self.concentration * (s * s) * -2.0 - constant

    def _entropy(self) -> Tensor:
        k = self.concentration
        return log_i0e(k) + math.log(2.0 * math.pi) + k * mean_cosine_loss(k)

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean

    def _variance(self) -> Tensor:
        """Circular variance, 1 minus the length of the mean of (cos x, sin x)."""
        return mean_cosine_loss(self.concentration)

    def _skewness(self) -> Tensor:
        """Circular skewness of Mardia and Jupp (2000): of a symmetric density 0."""
        return 0.0 * (self.loc + self.concentration)

    def _kurtosis(self) -> Tensor:
        """Circular kurtosis, (m2 - m1^4) / variance^2 with m_k the mean of cos k (x - loc)."""
        return in_double(_circular_kurtosis, self.concentration)

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        """Probability of an angle from -pi to x."""
        end, x = x >= math.pi, clamp(x, -math.pi, math.pi)
        p = clamp(self._turned(x - self.loc) - self._turned(-math.pi - self.loc), 0.0, 1.0)
        return where(end, 1.0, p)

    def _turned(self, d: Tensor) -> Tensor:
        """The integral of the density around 0 from -pi to d, over whole turns too."""
        turns = floor((d + math.pi) * (0.5 / math.pi))
        d, k = d - turns * (2.0 * math.pi), self.concentration
        # Gauss's rule in the angle; where the density is narrow, in s = 2 sqrt(k) sin(d / 2), in
        # which it is nearly that of a normal.
        sharp = k > 50.0
        mild, root = where(sharp, 1.0, k), sqrt(where(sharp, k, 50.0))
        half = (d + math.pi) * 0.5
        t = sin((_nodes(half) - math.pi) * 0.5)
        flat = _sum(half, exp(unsqueeze(mild, -1) * (t * t) * -2.0))
        half = (clamp(2.0 * root * sin(d * 0.5), -14.0, 14.0) + 14.0) * 0.5
        s = _nodes(half) - 14.0
        wide = 2.0 * unsqueeze(root, -1)
        bent = exp(s * s * -0.5) / sqrt(1.0 - (s / wide) * (s / wide))
        size = where(sharp, _sum(half, bent) / root, flat)
        return turns + size * exp(-log_i0e(k)) * (0.5 / math.pi)


def _circular_kurtosis(k: Tensor) -> Tensor:
    """What a normal number has is 0: differences of ratios of Bessel functions, or their series."""
    wide = k < 60.0
    flat = where(wide, k, 1.0)
    loss = mean_cosine_loss(flat)
    ratio = 1.0 - loss
    square = ratio * ratio
    # I2 / I1 by its continued fraction (DLMF 10.33.1), where 1 - 2 ratio / k has no digits.
    quarter, fraction = 0.25 * flat * flat, 1.0 + 0.0 * flat
    for n in range(9, 1, -1):
        fraction = 1.0 + quarter / (n * (n + 1)) / fraction
    second = where(flat < 1.0, ratio * flat * 0.25 / fraction, 1.0 - 2.0 * ratio / flat)
    direct = (second - square * square) / (loss * loss)
    inverse, series = 1.0 / where(wide, 60.0, k), k * 0.0
    for c in reversed(KURTOSIS):
        series = (series + c) * inverse
    return where(wide, direct, series)
