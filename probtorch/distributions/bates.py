"""Means of uniform numbers."""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param, setting
from probtorch.distributions.precision import in_double
from probtorch.distributions.source import Source
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import clamp, where
from probtorch.ops.exponentials import log
from probtorch.ops.movement import unsqueeze
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import mean as average
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["Bates"]


class Bates(Distribution):
    """Mean of `total_count` uniform numbers.

    Density ``f(x) = n / ((high - low) * factorial(n - 1)) * sum((-1) ** k * binom(n, k) *
    positive(n * z - k) ** (n - 1) for k in range(n))`` with ``n = total_count`` and ``z = (x -
    low) / (high - low)``.

    Parameters
    ----------
    total_count : int
        How many, the same for the whole batch; 2 for a triangle.
    low, high : Tensor or number
        Ends of the interval, `low` below `high`.

    Notes
    -----
    The density is a spline, evaluated by its recursion, in which nothing cancels: it takes
    ``total_count ** 2`` operations.
    """

    _flat_ends = True, True

    total_count: int = setting()
    low: Parameter = param(constraints.real, default=0.0)
    high: Parameter = param(
        constraints.dependent(lambda self: constraints.greater_than(self.low)), default=1.0
    )

    def _infer_event_shape(self) -> Shape:
        n = self.total_count
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ArgumentError(
                "Bates",
                expected="total_count, a whole number from 1 on",
                got=repr(n),
                fix="write Bates(12)",
            )
        return ()

    @constraints.dependent_property(event_dim=0, is_discrete=False)
    def support(self) -> Constraint:
        """The interval."""
        return constraints.interval(self.low, self.high)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        share = average(rng.uniform((*shape, self.total_count)), -1)
        return self.low + (self.high - self.low) * share

    def _sum(self, x: Tensor) -> Tensor:
        """Return the sum of uniform numbers on (0, 1) that a mean stands for."""
        return clamp((x - self.low) / (self.high - self.low), 0.0, 1.0) * float(self.total_count)

    def _log_prob(self, x: Tensor) -> Tensor:
        n = self.total_count
        density = in_double(lambda y: _splines(y, n)[..., 0], self._sum(x))
        return log(density) + math.log(n) - log(self.high - self.low)

    def _cdf(self, x: Tensor) -> Tensor:
        n = self.total_count
        p = in_double(lambda y: total(_splines(y, n + 1), -1), self._sum(x))
        return where(x >= self.high, 1.0, p)

    def _survival(self, x: Tensor) -> Tensor:
        return self._cdf(self.low + self.high - x)

    def _mean(self) -> Tensor:
        return 0.5 * (self.low + self.high)

    _mode = _mean

    def _variance(self) -> Tensor:
        width = self.high - self.low
        return width * width / (12.0 * self.total_count)

    def _skewness(self) -> Tensor:
        return (self.high - self.low) * 0.0

    def _kurtosis(self) -> Tensor:
        return (self.high - self.low) * 0.0 - 6.0 / (5.0 * self.total_count)


def _splines(y: Tensor, n: int) -> Tensor:
    """Densities of a sum of n uniform numbers at y, y - 1, ..., y - n + 1, along a last dim.

    By de Boor's recursion, from indicators of intervals.
    """
    z = unsqueeze(y, -1) - y.new_tensor(np.arange(float(n)))
    # The upper end of the last interval belongs to it.
    m = where((z >= 0.0) & ((z < 1.0) | ((z == 1.0) & (unsqueeze(y, -1) == float(n)))), 1.0, 0.0)
    pad = m[..., :1] * 0.0
    for k in range(2, n + 1):
        m = (z * m + (float(k) - z) * cat([m[..., 1:], pad], -1)) / float(k - 1)
    return m
