"""Maps that change the form of a law of the line, and the one from shares to thresholds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.transforms.flows.roots import increasing_root
from probtorch.distributions.transforms.scalar import LOG_2
from probtorch.distributions.transforms.transform import Transform
from probtorch.distributions.transforms.vector import last_part
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import sign
from probtorch.ops.exponentials import exp, log, log1p, sigmoid
from probtorch.ops.exponentials import pow as power
from probtorch.ops.pieces import cat, flip
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import log1p_square
from probtorch.ops.trigonometry import asinh, sinh
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution

__all__ = [
    "CumulativeDistributionTransform",
    "LambertWTailTransform",
    "PositivePowerTransform",
    "PartialSumsTransform",
    "SimplexToOrderedTransform",
    "SinhArcsinhTransform",
]


class SinhArcsinhTransform(Transform):
    """y = c sinh(tailweight (asinh(x) + skewness)), with c such that 2 stays 2 without skewness.

    Parameters
    ----------
    skewness : float
        Above 0 the right tail becomes longer.
    tailweight : float, positive
        Above 1 tails become heavier, below 1 lighter.

    References
    ----------
    Jones and Pewsey (2009), "Sinh-arcsinh distributions".
    """

    _settings = ("skewness", "tailweight")

    def __init__(self, skewness: float = 0.0, tailweight: float = 1.0) -> None:
        if not tailweight > 0.0:
            raise ArgumentError(
                "SinhArcsinhTransform",
                expected="a tailweight above 0",
                got=repr(tailweight),
                fix="1 leaves the tails as they are",
            )
        self.skewness, self.tailweight = float(skewness), float(tailweight)

    def _scale(self) -> float:
        return 2.0 / math.sinh(math.asinh(2.0) * self.tailweight)

    def _angle(self, x: Tensor) -> Tensor:
        return (asinh(x) + self.skewness) * self.tailweight

    def _call(self, x: Tensor) -> Tensor:
        return sinh(self._angle(x)) * self._scale()

    def _inverse(self, y: Tensor) -> Tensor:
        return sinh(asinh(y / self._scale()) / self.tailweight - self.skewness)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        u = absolute(self._angle(x))
        log_cosh = u + log1p(exp(-2.0 * u)) - LOG_2
        return log_cosh - 0.5 * log1p_square(x) + math.log(self.tailweight * self._scale())


class LambertWTailTransform(Transform):
    """y = shift + scale x exp(tailweight x^2 / 2): heavier tails for a normal number x.

    Parameters
    ----------
    shift : Tensor or float
    scale : Tensor or float, positive
    tailweight : Tensor or float, positive
        Moments of order 1 / tailweight and more are infinite.

    Notes
    -----
    The inverse is the principal branch of Lambert's W, found as a root.

    References
    ----------
    Goerg (2015), "The Lambert way to Gaussianize heavy-tailed data".
    """

    _settings = ("shift", "scale", "tailweight")
    costly_inverse = True

    def __init__(
        self, shift: Tensor | float, scale: Tensor | float, tailweight: Tensor | float
    ) -> None:
        self.shift, self.scale, self.tailweight = shift, scale, tailweight

    def _call(self, x: Tensor) -> Tensor:
        return self._standard(x)[0] * self.scale + self.shift

    def _standard(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value and the log slope for shift 0 and scale 1."""
        bend = self.tailweight * x * x
        return x * exp(0.5 * bend), 0.5 * bend + log1p(bend)

    def _inverse(self, y: Tensor) -> Tensor:
        return increasing_root(self._standard, (y - self.shift) / self.scale)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self._standard(x)[1] + log(x * 0.0 + self.scale)


class PositivePowerTransform(Transform):
    """y = sign(x) |x| ** exponent, of the whole line.

    Parameters
    ----------
    exponent : float, positive
    """

    _settings = ("exponent",)

    def __init__(self, exponent: float, cache_size: int = 0) -> None:
        if not exponent > 0.0:
            raise ArgumentError(
                "PositivePowerTransform",
                expected="an exponent above 0",
                got=repr(exponent),
                fix="use PowerTransform for others, on the positive numbers",
            )
        self.exponent = float(exponent)

    def _call(self, x: Tensor) -> Tensor:
        return sign(x) * power(absolute(x), self.exponent)

    def _inverse(self, y: Tensor) -> Tensor:
        return sign(y) * power(absolute(y), 1.0 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return math.log(self.exponent) + (self.exponent - 1.0) * log(absolute(x))


class CumulativeDistributionTransform(Transform):
    """y = P(draw <= x): a distribution's values onto the unit interval.

    Parameters
    ----------
    distribution : Distribution
        Univariate and continuous, with a cdf.
    """

    codomain = constraints.unit_interval
    _settings = ("distribution",)

    def __init__(self, distribution: Distribution, cache_size: int = 0) -> None:
        self.distribution = distribution
        self.domain = distribution.support

    def _call(self, x: Tensor) -> Tensor:
        return self.distribution.cdf(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distribution.log_prob_inside(x)


class SimplexToOrderedTransform(Transform):
    """Probabilities of K ordered outcomes to the K - 1 thresholds of the logit that give them.

    Parameters
    ----------
    anchor_point : float
        Added to the thresholds.
    """

    domain = constraints.simplex
    codomain = constraints.ordered_vector
    _settings = ("anchor_point",)

    def __init__(self, anchor_point: float = 0.0) -> None:
        self.anchor_point = float(anchor_point)

    def _call(self, x: Tensor) -> Tensor:
        # Both sums instead of 1 minus one: either may be small.
        below, above = self._sums(x)
        return log(below) - log(above) + self.anchor_point

    @staticmethod
    def _sums(x: Tensor) -> tuple[Tensor, Tensor]:
        above = flip(cumsum(flip(last_part(x, 1), -1), -1), -1)
        return cumsum(last_part(x, 0, -1), -1), above

    def _inverse(self, y: Tensor) -> Tensor:
        p = sigmoid(y - self.anchor_point)
        one = p.new_ones((*p.array.shape[:-1], 1))
        return cat([p, one], -1) - cat([one * 0.0, p], -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        below, above = self._sums(x)
        return -total(log(below) + log(above), -1)

    def forward_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] - 1)

    def inverse_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] + 1)


class PartialSumsTransform(Transform):
    """The simplex of K parts to the K - 1 sums of its first parts: increasing numbers in (0, 1)."""

    domain = constraints.simplex
    codomain = constraints.ordered_within(constraints.unit_interval)

    def _call(self, x: Tensor) -> Tensor:
        return cumsum(last_part(x, 0, -1), -1)

    def _inverse(self, y: Tensor) -> Tensor:
        one = y.new_ones((*y.array.shape[:-1], 1))
        return cat([y, one], -1) - cat([one * 0.0, y], -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return total(y, -1) * 0.0

    def forward_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] - 1)

    def inverse_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] + 1)


explain_calls(globals())
