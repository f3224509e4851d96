"""Flat and degenerate distributions: uniform, improper uniform, point mass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape, TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, Values, as_parameter, param
from probtorch.distributions.formulas import sum_rightmost
from probtorch.distributions.source import Source
from probtorch.errors import ShapeError
from probtorch.ops.arithmetic import clamp, where
from probtorch.ops.exponentials import log
from probtorch.ops.movement import expand
from probtorch.ops.reduction import all as every
from probtorch.tensor import Tensor

__all__ = ["Delta", "ImproperUniform", "Uniform"]


class Uniform(Distribution):
    """Uniform distribution on [low, high): the density is 1 / (high - low) at `low`, 0 at `high`.

    Density ``f(x) = 1 / (high - low)``.

    Parameters
    ----------
    low : Tensor or number
    high : Tensor or number, above `low`
    """

    low: Parameter = param(constraints.real, default=0.0)
    high: Parameter = param(
        constraints.dependent(lambda self: constraints.greater_than(self.low)), default=1.0
    )
    _total = True

    @constraints.dependent_property(event_dim=0, is_discrete=False)
    def support(self) -> Constraint:
        """Values from `low` on, below `high`."""
        return constraints.half_open_interval(self.low, self.high)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        # Rounding may reach `high`, which is outside.
        x = rng.uniform(shape, self.low, self.high - self.low)
        return rng.below(x, self.high, self.low)

    def _log_prob(self, x: Tensor) -> Tensor:
        width = self.high - self.low
        return expand(-log(width), broadcast_shapes(x.array.shape, width.array.shape))

    def _cdf(self, x: Tensor) -> Tensor:
        return clamp((x - self.low) / (self.high - self.low), 0.0, 1.0)

    def _icdf(self, p: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * p

    def _entropy(self) -> Tensor:
        return log(self.high - self.low)

    def _mean(self) -> Tensor:
        return (self.high + self.low) * 0.5

    _mode = _mean

    def _variance(self) -> Tensor:
        width = self.high - self.low
        return width * width * (1.0 / 12.0)

    def _survival(self, x: Tensor) -> Tensor:
        return clamp((self.high - x) / (self.high - self.low), 0.0, 1.0)

    def _skewness(self) -> Tensor:
        return self.low * 0.0

    def _kurtosis(self) -> Tensor:
        return self.low * 0.0 - 1.2


class ImproperUniform(Distribution):
    """Log density 0 on a whole support, which may have infinite volume; it cannot be sampled.

    Density ``f(x) = 1``.

    Parameters
    ----------
    support : Constraint
    batch_shape, event_shape : tuple of int
    """

    _total = True
    __tree_fields__ = ()
    __static_fields__ = (
        "support",
        "_batch_shape",
        "_event_shape",
        "_expanded",
        "_validate_args",
        "_weak",
    )

    def __init__(
        self,
        support: Constraint,
        batch_shape: Sequence[int] = (),
        event_shape: Sequence[int] = (),
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.support: Constraint = support
        self._set_shapes(batch_shape, event_shape, validate_args=validate_args)

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(*values.values())

    def _tree_names(self) -> tuple[str, ...]:
        return ("support",)

    def _log_prob(self, x: Tensor) -> Tensor:
        shape = x.array.shape
        batch = shape[: len(shape) - len(self._event_shape)]
        return x.new_zeros(broadcast_shapes(batch, self._batch_shape))


def _all_rightmost(x: Tensor, n: int) -> Tensor:
    """1 where all of the last n dims hold, else 0."""
    return where(every(x, tuple(range(-n, 0))) if n else x, 1.0, 0.0)


class Delta(Distribution):
    """Point mass at `v`.

    Density ``f(x) = exp(log_density) if x == v else 0``.

    Parameters
    ----------
    v : Tensor or number
        The point.
    log_density : Tensor or number, shape of the batch
        Log density there, 0 for a probability of 1; other values serve as weights.
    event_dim : int
        How many rightmost dims of `v` are one event.

    Notes
    -----
    A draw is `v` itself, so gradients flow to it; the density is not differentiable in the value.
    """

    _mass_on_ends = True

    _total = True
    _takes_integers = True
    __tree_fields__ = ("v", "log_density")
    __static_fields__ = ("event_dim", "_expanded", "_validate_args", "_weak")

    def __init__(
        self,
        v: TensorLike,
        log_density: TensorLike = 0.0,
        event_dim: int = 0,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.v, weak = as_parameter(v, "v", as_is=True)
        self.log_density, _ = as_parameter(log_density, "log_density")
        shape = self.v.array.shape
        if event_dim > len(shape):
            raise ShapeError(
                "Delta",
                expected=f"a point with at least event_dim={event_dim} dims",
                got=f"shape {shape}",
                fix="give a smaller event_dim",
            )
        batch = shape[: len(shape) - event_dim]
        self._set_shapes(
            broadcast_shapes(batch, self.log_density.array.shape, op="Delta"),
            shape[len(batch) :],
            dtype=None if weak else self.v.array.dtype,
            validate_args=validate_args,
        )

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(*values.values())

    def _tree_names(self) -> tuple[str, ...]:
        return ("v", "log_density")

    @constraints.dependent_property(event_dim=0, is_discrete=False)
    def support(self) -> Constraint:
        """Everything: away from `v` the density is 0, which is no error."""
        return constraints.independent(constraints.real, len(self._event_shape))

    # Of a number; that of a vector has neither quantiles nor one tail.

    def _cdf(self, x: Tensor) -> Tensor:
        return _all_rightmost(x >= self.v, len(self._event_shape))

    def _icdf(self, p: Tensor) -> Tensor:
        if self._event_shape:
            raise NotImplementedError("Delta of a vector has no quantiles")
        return self.v + p * 0.0

    def _entropy(self) -> Tensor:
        return self.log_density * 0.0

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return expand(self.v, shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        n = len(self._event_shape)
        return sum_rightmost(where(x == self.v, 0.0, -math.inf), n) + self.log_density

    def _mean(self) -> Tensor:
        return self.v

    _mode = _mean

    def _variance(self) -> Tensor:
        return self.v.new_zeros(self.v.array.shape)


explain_calls(globals())
