"""The von Mises distribution: a normal on the circle.

Draws carry implicit gradients (Figurnov, Mohamed, Mnih 2018), from ops/variates.py.
"""

from __future__ import annotations

import math

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.source import Source
from probtorch.ops.special import log_i0e, mean_cosine_loss
from probtorch.ops.trigonometry import sin
from probtorch.tensor import Tensor

__all__ = ["VonMises"]


class VonMises(Distribution):
    """Von Mises distribution of angles, with density prop. to exp(concentration * cos(x - loc)).

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
