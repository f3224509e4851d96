"""Transforms of single numbers: exp, affine, sigmoid, softplus, tanh, power, intervals.

Log-determinants are closed forms in `x` where that is the accurate side: log sigmoid' is -x - 2
softplus(-x), never the logarithm of a product that has lost its small factor.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.making import as_tensor
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_number, number_alone
from probtorch.core.typed import Shape, TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.transforms.transform import Transform
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, neg, sign, where
from probtorch.ops.exponentials import exp, expm1, log, log1p, sigmoid, softplus
from probtorch.ops.exponentials import pow as power
from probtorch.ops.movement import expand
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import atanh, tanh
from probtorch.tensor import Tensor

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "ELUTransform",
    "ExpTransform",
    "IntervalTransform",
    "LeakyReLUTransform",
    "PowerTransform",
    "RowsTransform",
    "SigmoidTransform",
    "SoftplusTransform",
    "TanhTransform",
    "elu",
    "leaky_relu",
    "log_sigmoid_derivative",
]

LOG_2 = math.log(2.0)
# Slope of the leaky unit below 0, as in PyTorch.
LEAK = 0.01


def log_sigmoid_derivative(x: TensorLike) -> Tensor:
    """log(s(x) (1 - s(x))) for the logistic s; even in x, accurate in both tails."""
    return neg(x + 2.0 * softplus(neg(x)))


def _broadcast(shape: Shape, *parameters: TensorLike) -> Shape:
    """Shape of an argument of `shape` with parameters that may be tensors."""
    shapes = [p.array.shape for p in parameters if isinstance(p, TensorBase)]
    return broadcast_shapes(tuple(shape), *shapes, op="transform")


class ExpTransform(Transform):
    """y = exp(x).

    Parameters
    ----------
    domain : Constraint, optional
        A narrower set than the reals, of numbers between bounds; the codomain follows.
    """

    codomain: Constraint = constraints.positive

    def __init__(self, cache_size: int = 0, *, domain: Constraint | None = None) -> None:
        if domain is not None:
            self.domain, self.codomain = domain, _exponentials(domain)

    def _call(self, x: Tensor) -> Tensor:
        return exp(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


def _exponentials(domain: Constraint) -> Constraint:
    """Return the set of the exponentials of a set of numbers or of ordered ones."""
    low, high = (getattr(domain, f"{end}_bound", None) for end in ("lower", "upper"))
    low, high = (None if b is None else exp(as_tensor(b)) for b in (low, high))
    if domain is constraints.ordered_vector:
        return constraints.positive_ordered_vector
    if high is None:
        return constraints.positive if low is None else constraints.greater_than(low)
    return constraints.interval(0.0 if low is None else low, high)


class SoftplusTransform(Transform):
    """y = log(1 + exp(x)), which grows like x: kinder to large values than exp."""

    codomain = constraints.softplus_positive

    def _call(self, x: Tensor) -> Tensor:
        return softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y + log(neg(expm1(neg(y))))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return neg(softplus(neg(x)))


class SigmoidTransform(Transform):
    """y = 1 / (1 + exp(-x))."""

    codomain = constraints.unit_interval

    def _call(self, x: Tensor) -> Tensor:
        return sigmoid(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y) - log1p(neg(y))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return log_sigmoid_derivative(x)


class TanhTransform(Transform):
    """y = tanh(x)."""

    codomain = constraints.interval(-1.0, 1.0)

    def _call(self, x: Tensor) -> Tensor:
        return tanh(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return atanh(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)), without the cancellation.
        return 2.0 * (LOG_2 - x - softplus(-2.0 * x))


class ELUTransform(Transform):
    """y = x above 0 and exp(x) - 1 below: the exponential linear unit."""

    codomain = constraints.greater_than(-1.0)

    def _call(self, x: Tensor) -> Tensor:
        return where(x > 0.0, x, expm1(clamp(x, max=0.0)))

    def _inverse(self, y: Tensor) -> Tensor:
        return where(y > 0.0, y, log1p(clamp(y, max=0.0)))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return clamp(x, max=0.0)


class LeakyReLUTransform(Transform):
    """y = x above 0 and 0.01 x below."""

    def _call(self, x: Tensor) -> Tensor:
        return where(x > 0.0, x, LEAK * x)

    def _inverse(self, y: Tensor) -> Tensor:
        return where(y > 0.0, y, y / LEAK)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return where(x > 0.0, x.new_zeros(()), math.log(LEAK))


class AbsTransform(Transform):
    """y = abs(x); the right inverse is the identity."""

    codomain = constraints.nonnegative
    bijective = False

    def _call(self, x: Tensor) -> Tensor:
        return absolute(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class AffineTransform(Transform):
    """y = loc + scale * x.

    Parameters
    ----------
    loc, scale : Tensor, array or number
        `scale` is not 0.
    event_dim : int
        How many rightmost dims of x form one element.
    domain, codomain : Constraint, optional
        Where a narrower set than the reals is known to be mapped onto another.
    """

    _settings = ("loc", "scale", "event_dim")
    event_dim: int = 0

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        event_dim: int = 0,
        cache_size: int = 0,
        *,
        domain: Constraint | None = None,
        codomain: Constraint | None = None,
    ) -> None:
        self.loc, self.scale = (
            as_tensor(x) if isinstance(x, np.ndarray) else x for x in (loc, scale)
        )
        self.event_dim = event_dim
        reals = constraints.independent(constraints.real, event_dim)
        self.domain = reals if domain is None else domain
        self.codomain = reals if codomain is None else codomain

    @property
    def sign(self) -> float | Tensor:
        """Sign of `scale`."""
        if isinstance(self.scale, TensorBase):
            return sign(self.scale)
        return math.copysign(1.0, self.scale)

    def forward_shape(self, shape: Shape) -> Shape:
        return _broadcast(shape, self.loc, self.scale)

    inverse_shape = forward_shape

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        scale = self.scale
        if is_number(scale):
            slope = cast(log(absolute(number_alone(scale))), x.array.dtype)
        elif isinstance(scale, TensorBase):
            slope = log(absolute(scale))
        else:
            slope = x.new_full((), math.log(abs(scale)))
        ladj = expand(slope, broadcast_shapes(x.array.shape, slope.array.shape))
        return total(ladj, tuple(range(-self.event_dim, 0))) if self.event_dim else ladj


def elu() -> ELUTransform:
    """Return an `ELUTransform`: Pyro's name beside those of its flows."""
    return ELUTransform()


def leaky_relu() -> LeakyReLUTransform:
    """Return a `LeakyReLUTransform`: Pyro's name beside those of its flows."""
    return LeakyReLUTransform()


def _log(x: float | TensorBase) -> float | Tensor:
    """The logarithm of a tensor, or of a number in double precision."""
    if is_number(x):
        return log(number_alone(x))
    return log(x) if isinstance(x, TensorBase) else math.log(x)


class PowerTransform(Transform):
    """y = x ** exponent, on the positive reals.

    Parameters
    ----------
    exponent : Tensor or number
        Not 0.
    """

    domain = constraints.positive
    codomain = constraints.positive
    _settings = ("exponent",)

    def __init__(self, exponent: float | Tensor, cache_size: int = 0) -> None:
        self.exponent = exponent

    @property
    def sign(self) -> float | Tensor:
        """Sign of `exponent`."""
        if isinstance(self.exponent, TensorBase):
            return sign(self.exponent)
        return math.copysign(1.0, self.exponent)

    def forward_shape(self, shape: Shape) -> Shape:
        return _broadcast(shape, self.exponent)

    inverse_shape = forward_shape

    def _call(self, x: Tensor) -> Tensor:
        return power(x, self.exponent)

    def _inverse(self, y: Tensor) -> Tensor:
        return power(y, 1.0 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        exponent = self.exponent
        if isinstance(exponent, TensorBase) and not is_number(exponent):
            slope: float | Tensor = log(absolute(exponent))
        else:
            slope = _log(abs(exponent))
        return (exponent - 1.0) * log(x) + slope


class IntervalTransform(Transform):
    """y = lower + (upper - lower) sigmoid(x), onto an interval with number or tensor bounds.

    Parameters
    ----------
    lower_bound, upper_bound : Tensor or number
    codomain : Constraint, optional
        The interval as the caller has it (half-open, open); closed if None.
    """

    _settings = ("lower_bound", "upper_bound")

    def __init__(
        self,
        lower_bound: float | Tensor,
        upper_bound: float | Tensor,
        *,
        codomain: Constraint | None = None,
    ) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound
        closed = constraints.interval(lower_bound, upper_bound)
        self.codomain = closed if codomain is None else codomain

    def forward_shape(self, shape: Shape) -> Shape:
        return _broadcast(shape, self.lower_bound, self.upper_bound)

    inverse_shape = forward_shape

    def _call(self, x: Tensor) -> Tensor:
        return self.lower_bound + (self.upper_bound - self.lower_bound) * sigmoid(x)

    def _inverse(self, y: Tensor) -> Tensor:
        # Two distances instead of a quotient in (0, 1): both ends keep their precision.
        return log(y - self.lower_bound) - log(self.upper_bound - y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        width = self.upper_bound - self.lower_bound
        return log_sigmoid_derivative(x) + _log(width)


class RowsTransform(IntervalTransform):
    """Onto intervals of which each row may have two bounds, one or none.

    An `IntervalTransform` where there are two, lower + exp(x) or upper - exp(-x) where there is
    one, and x itself where there is none: there the bounds are infinite.
    """

    def _bounds(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return both bounds, finite numbers where there is none, and which rows have them."""
        low, high = as_tensor(self.lower_bound), as_tensor(self.upper_bound)
        begins, ends = low > -math.inf, high < math.inf
        low = where(begins, low, where(ends, high - 1.0, 0.0))
        return low, where(ends, high, low + 1.0), begins, ends

    def _call(self, x: Tensor) -> Tensor:
        low, high, begins, ends = self._bounds()
        one = begins ^ ends
        way = exp(where(one, where(begins, x, neg(x)), 0.0))
        half = where(begins, low + way, high - way)
        return where(one, half, where(begins, low + (high - low) * sigmoid(x), x))

    def _inverse(self, y: Tensor) -> Tensor:
        low, high, begins, ends = self._bounds()
        below = where(begins, log(where(begins, y - low, 1.0)), 0.0)
        above = where(ends, log(where(ends, high - y, 1.0)), 0.0)
        return where(begins | ends, below - above, y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        low, high, begins, ends = self._bounds()
        one, slope = where(begins, x, neg(x)), log_sigmoid_derivative(x) + log(high - low)
        return where(begins ^ ends, one, where(begins, slope, x * 0.0))


explain_calls(globals())
